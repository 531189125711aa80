//! Result of a run: mergeable plain values.

use std::collections::BTreeMap;

use crate::levels::Histogram;
use crate::setup::{Lane, Setup};
use crate::state::BranchCount;

/// A machine's results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneSummary {
    /// Window and predictor.
    pub lane: Lane,
    /// From the first start to the last result.
    pub cycles: u64,
    /// Cycles and instructions by parallelism.
    pub histogram: Histogram,
    /// Neighbouring cycles counted together; 1 is exact.
    pub resolution: u64,
    /// As `resolution`, for counts by class.
    pub class_resolution: u64,
    /// Stretches: start of each (with a window: instruction; without: cycle), instructions, cycles.
    pub over_time: Vec<(u64, u64, u64)>,
    /// Mispredicted branches.
    pub mispredicted: u64,
}

/// Sums of an engine in the middle of its work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Instructions executed.
    pub instructions: u64,
    /// By machine, in the order of the setup: cycles until the last result.
    pub cycles: Vec<u64>,
}

/// Results of a thread, or of several summed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The requested setup.
    pub setup: Setup,
    /// Instructions executed.
    pub instructions: u64,
    /// Loads by the instructions.
    pub loads: u64,
    /// Stores by the instructions.
    pub stores: u64,
    /// Regions begun; 0 if everything counts.
    pub calls: u64,
    /// By machine, in the order of the setup.
    pub lanes: Vec<LaneSummary>,
    /// Branches by instruction.
    pub branches: Vec<BranchCount>,
    /// Events interrupted by a kill.
    pub torn: u64,
    /// Whether room ran out before the end.
    pub full: bool,
}

impl Summary {
    /// Adds another thread's results: instructions and cycles are summed, as of
    /// threads run in turn. Over time, the thread with more instructions counts.
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

/// Counts of each executed branch, once.
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
