//! Result of a run: plain values that merge.

use std::collections::BTreeMap;

use crate::levels::Histogram;
use crate::setup::{Lane, Setup};
use crate::state::BranchCount;

/// One machine's results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneSummary {
    /// Its window and predictor.
    pub lane: Lane,
    /// From the first start to the last result.
    pub cycles: u64,
    /// Cycles and instructions by parallelism.
    pub histogram: Histogram,
    /// Neighbouring cycles counted as one; 1 is exact.
    pub resolution: u64,
    /// The same of counts by class.
    pub class_resolution: u64,
    /// Stretches: start of each (with a window: instruction; without: cycle), its instructions, its
    /// cycles.
    pub over_time: Vec<(u64, u64, u64)>,
    /// Branches that were not foreseen.
    pub mispredicted: u64,
}

/// Results of one thread, or of several summed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// What was asked for.
    pub setup: Setup,
    /// Instructions executed.
    pub instructions: u64,
    /// Loads by them.
    pub loads: u64,
    /// Stores by them.
    pub stores: u64,
    /// Regions begun; 0 where everything counts.
    pub calls: u64,
    /// By machine, in the order of the setup.
    pub lanes: Vec<LaneSummary>,
    /// Branches by instruction.
    pub branches: Vec<BranchCount>,
    /// Events that a kill left in the middle.
    pub torn: u64,
    /// Whether room ran out before the end.
    pub full: bool,
}

impl Summary {
    /// Adds another thread's results: instructions and cycles are summed, as if the one came after
    /// the other. Over time, the thread with more instructions counts.
    pub fn merge(&mut self, other: &Summary) {
        let is_larger = other.instructions > self.instructions;
        self.instructions += other.instructions;
        self.loads += other.loads;
        self.stores += other.stores;
        self.calls += other.calls;
        self.torn += other.torn;
        self.full |= other.full;
        for (ours, theirs) in self.lanes.iter_mut().zip(&other.lanes) {
            ours.cycles += theirs.cycles;
            ours.mispredicted += theirs.mispredicted;
            ours.histogram.merge(&theirs.histogram);
            ours.resolution = ours.resolution.max(theirs.resolution);
            ours.class_resolution = ours.class_resolution.max(theirs.class_resolution);
            if is_larger {
                ours.over_time.clone_from(&theirs.over_time);
            }
        }
        let all: Vec<BranchCount> = self.branches.iter().chain(&other.branches).copied().collect();
        self.branches = by_instruction(&all);
    }
}

/// Counts of each branch that was executed, once.
pub(crate) fn by_instruction(counts: &[BranchCount]) -> Vec<BranchCount> {
    let mut all: BTreeMap<u64, BranchCount> = BTreeMap::new();
    for count in counts.iter().filter(|count| count.executed > 0) {
        let sum = all.entry(count.instruction).or_default();
        sum.instruction = count.instruction;
        sum.executed += count.executed;
        sum.taken += count.taken;
        sum.mispredicted += count.mispredicted;
    }
    all.into_values().collect()
}
