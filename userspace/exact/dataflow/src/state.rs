//! An engine's state of a thread in an arena, for another process to continue.

use locality_stream::{Arena, Flow, List, Plain, Range, Span, are_apart};

use crate::levels::Levels;
use crate::ops::PLACES;
use crate::regions::Regions;
use crate::setup::{LANES, Lane, Latency, Predict, Setup, View};
use crate::shadow::Pages;

/// Marks a complete state of the current version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"dataflo\x02");
/// Stores of one execution, stored apart until completion.
pub(crate) const STORES: usize = 16;
/// Most stretches of the run with noted time.
pub(crate) const MARKS: usize = 1024;
/// Instructions of a stretch at first.
const STRETCH: u64 = 1024;
/// Stands for no block, and for no instruction.
pub(crate) const NONE: u32 = u32::MAX;

/// Counts of a branch instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct BranchCount {
    /// Index of the instruction.
    pub instruction: u64,
    /// Executions.
    pub executed: u64,
    /// Branches to another place than the next instruction.
    pub taken: u64,
    /// Branches missed by the first imperfect predictor.
    pub mispredicted: u64,
}
// SAFETY: integers.
unsafe impl Plain for BranchCount {}

/// A setup as plain numbers.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Plan {
    lanes: u32,
    view: u32,
    latency: u32,
    reserved: u32,
    windows: [u32; LANES],
    predicts: [u32; LANES],
}
// SAFETY: integers without padding.
unsafe impl Plain for Plan {}

impl Plan {
    fn of(setup: &Setup) -> Plan {
        let mut plan = Plan {
            lanes: setup.lanes.len().min(LANES) as u32,
            view: u32::from(setup.view.stack)
                | u32::from(setup.view.induction) << 1
                | u32::from(setup.view.copies) << 2
                | u32::from(setup.view.reductions) << 3,
            latency: (setup.latency == Latency::Machine).into(),
            reserved: 0,
            windows: [0; LANES],
            predicts: [0; LANES],
        };
        for (at, lane) in setup.lanes.iter().enumerate().take(LANES) {
            plan.windows[at] = lane.window.unwrap_or(0);
            plan.predicts[at] = match lane.predict {
                Predict::Perfect => 0,
                Predict::Tage => 1,
                Predict::Static => 2,
                Predict::None => 3,
                Predict::Gshare(bits) => 4 + bits,
            };
        }
        plan
    }

    /// The setup; `None` for invalid numbers.
    pub fn setup(&self) -> Option<Setup> {
        let lanes = usize::try_from(self.lanes).ok().filter(|lanes| (1..=LANES).contains(lanes))?;
        let predict = |number| match number {
            0 => Some(Predict::Perfect),
            1 => Some(Predict::Tage),
            2 => Some(Predict::Static),
            3 => Some(Predict::None),
            5..=24 => Some(Predict::Gshare(number - 4)),
            _ => None,
        };
        let lane = |at: usize| {
            let window = Some(*self.windows.get(at)?).filter(|window| *window != 0);
            if window.is_some_and(|window| window > crate::setup::LARGEST_WINDOW) {
                return None;
            }
            Some(Lane { window, predict: predict(*self.predicts.get(at)?)? })
        };
        let has = |bit: u32| self.view & 1 << bit != 0;
        Some(Setup {
            view: View { stack: has(0), induction: has(1), copies: has(2), reductions: has(3) },
            latency: if self.latency == 0 { Latency::Unit } else { Latency::Machine },
            lanes: (0..lanes).map(lane).collect::<Option<_>>()?,
        })
    }
}

/// The state.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct State<const L: usize> {
    pub magic: u64,
    /// Machines side by side, `L`.
    pub width: u64,
    pub plan: Plan,
    /// Events taken.
    pub consumed: u64,
    /// Events under way; 0 between calls.
    pub busy: u64,
    /// Events interrupted by a kill.
    pub torn: u64,
    /// 1 when the arena ran full.
    pub full: u64,
    /// Not 0 if only regions count.
    pub restricted: u64,
    /// Instructions executed: the number of the next instruction.
    pub instructions: u64,
    /// Accesses.
    pub loads: u64,
    pub stored: u64,
    /// Cycles of all instructions, one after the other.
    pub serial: u64,
    pub times: [[u32; L]; PLACES],
    /// The reduction whose result lies in each place, also after moves; 0 for none.
    pub origins: [u32; PLACES],
    /// Completion of the instructions up to now.
    pub retired: [u32; L],
    /// Earliest start of the next instruction: after mispredicted branches, within the region.
    pub least: [u32; L],
    /// Total reduction of times.
    pub rebased: [u64; L],
    /// Mispredicted branches.
    pub mispredicted: [u64; L],
    /// [`State::retired`] after the latest instructions.
    pub ring: Span<[u32; L]>,
    pub levels: [Levels; L],
    /// Times at the ends of stretches.
    pub marks: Span<[u64; L]>,
    pub marked: u64,
    pub stretch: u64,
    pub next_mark: u64,
    pub pages: Pages,
    pub branches: List<BranchCount>,
    pub regions: Regions,
    /// General registers: the last block writing each, and the last block addressing by each.
    pub written: [u32; 16],
    pub addressed: [u32; 16],
    /// Number of the block under way.
    pub sequence: u32,
    /// The block, an index; [`NONE`].
    pub block: u32,
    /// The block's instructions executed or under way.
    pub position: u32,
    /// The instruction under way, by place in the block; [`NONE`].
    pub open: u32,
    pub open_start: [u32; L],
    pub stores: [[u64; 2]; STORES],
    pub store_count: u32,
    pub loads_seen: u32,
    pub stores_seen: u32,
    pub top: u32,
    /// The string instruction executed last: address, and the number of the next instruction.
    pub string: [u64; 2],
}
// SAFETY: integers without padding for an even L: the
// parts are multiples of 8 bytes or come in pairs.
unsafe impl<const L: usize> Plain for State<L> {}

impl<const L: usize> State<L> {
    /// Fills a state of zeros.
    pub fn begin<A: Arena + ?Sized>(&mut self, arena: &A, setup: &Setup, restricted: bool) -> Option<()> {
        self.width = L as u64;
        self.plan = Plan::of(setup);
        self.restricted = restricted.into();
        let largest = setup.lanes.iter().filter_map(|lane| lane.window).max().unwrap_or(1);
        self.ring = Span::allocate(arena, (largest as usize).next_power_of_two().max(64))?;
        for (levels, lane) in self.levels.iter_mut().zip(&setup.lanes) {
            *levels = Levels::new(arena, lane.window)?;
        }
        self.marks = Span::allocate(arena, MARKS)?;
        (self.stretch, self.next_mark) = (STRETCH, STRETCH);
        self.pages = Pages::new(arena)?;
        self.branches = List::new(arena, 1 << 10)?;
        self.regions = Regions::new(arena)?;
        (self.block, self.open) = (NONE, NONE);
        Some(())
    }

    /// Checks a state from another process, and repairs damage by a kill.
    pub fn repair<A: Arena + ?Sized>(&mut self, arena: &A, own: Range) -> Option<Setup> {
        let setup = self.plan.setup().filter(|setup| setup.lanes.len() <= L && self.width == L as u64)?;
        let largest = setup.lanes.iter().filter_map(|lane| lane.window).max().unwrap_or(1);
        let mut ranges =
            vec![own, self.ring.range(), self.marks.range(), self.branches.range(), self.regions.range()];
        let sound = self.ring.get(arena).is_some()
            && self.ring.count().is_power_of_two()
            && self.ring.count() >= largest as usize
            && self.marks.get(arena).is_some()
            && self.marks.count() == MARKS
            && self.marked as usize <= MARKS
            && (1..1 << 60).contains(&self.stretch)
            && self.branches.is_whole(arena)
            && self.regions.is_whole(arena)
            && self.store_count as usize <= STORES;
        if !sound {
            return None;
        }
        for (levels, lane) in self.levels.iter().zip(&setup.lanes) {
            if !levels.is_whole(arena, lane.window) {
                return None;
            }
            ranges.extend(levels.ranges());
        }
        ranges.extend(self.pages.ranges::<L, A>(arena)?);
        if !are_apart(arena, ranges) {
            return None;
        }
        self.pages.forget_room();
        // Numbers of another process.
        self.origins = [0; PLACES];
        if self.busy != 0 {
            self.consumed = self.consumed.saturating_add(self.busy);
            self.torn = self.torn.saturating_add(self.busy);
            self.busy = 0;
            (self.block, self.open, self.store_count) = (NONE, NONE, 0);
        }
        Some(setup)
    }
}

/// Whether a branch at a block's end may be mispredicted.
pub(crate) fn is_predicted(flow: Flow) -> bool {
    matches!(flow, Flow::Conditional | Flow::IndirectJump | Flow::IndirectCall)
}
