//! Breakdown of each spot's time by the schedule: computing, lines of each level, overlap, what binds it, the
//! issue rate, and instructions of a miss of the first-level cache (the paper's breakdowns of T into Tc, Tm
//! and To, and its issue rates, section VII).
//!
//! The paper's parts, found by replays with more and more of the lines:
//!
//! - Tc: all lines in the first-level cache.
//! - Waits: what lines of the second level add, then those of the last level, then those of memory. The waits
//!   and Tc sum to T.
//! - To: the lines' latencies, each after the other, less the waits: the part that other work covers.
//!
//! What binds a spot is the limit without which it gains most. Sources of error: those of
//! [`crate::schedule`]; foreseen lines count with the whole latency in To; waits of a level depend on the
//! order of adding levels, since lines of two levels may overlap.

use std::collections::BTreeMap;

pub use locality_rate::Constraint;
use locality_rate::{Misses, Replay, Timing};
use locality_stream::Event;

use crate::build::Built;
use crate::schedule::{LineSources, Processor, Replays};
use crate::spots::{self, Place};

/// Windows for the limits, evenly over those that are replayed: a replay for each limit is expensive.
const LIMIT_WINDOWS: usize = 24;
/// Least gain of a limit that is named, as a share of the time.
const LEAST_GAIN: f64 = 0.02;

/// Parts of a spot's time. Shares are of T = Tc + Tm - To.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Breakdown {
    /// Tc.
    pub compute: f64,
    /// What lines of the second-level cache, the last-level cache and memory add.
    pub waits: [f64; 3],
    /// To.
    pub overlap: f64,
    /// Cycles of an instruction.
    pub cycles_per_instruction: f64,
    /// Instructions of a line from beyond the first-level cache; `None` without such lines.
    pub instructions_per_miss: Option<f64>,
    /// The limit that binds, and the share of the time saved without it.
    pub bound_by: Option<(Constraint, f64)>,
}

#[derive(Debug, Clone, Default)]
struct Sums {
    instructions: f64,
    /// Cycles with no lines, with those of one level, of two, of all.
    cycles: [f64; 4],
    /// Lines by level.
    lines: [f64; 3],
    /// In the windows for limits: cycles, and cycles without each limit.
    limited: f64,
    without: [f64; Constraint::ALL.len()],
}

/// By spot.
pub fn by_spot(
    built: &Built,
    replays: &Replays<'_>,
    machine: Processor,
    sources: LineSources<'_>,
) -> BTreeMap<Place, Breakdown> {
    let rebuilder = &replays.rebuilder;
    // Spots by number, and the number of each instruction's.
    let mut numbers: BTreeMap<Place, usize> = BTreeMap::new();
    let spot_of = |(_, function, label): &(crate::observed::At, usize, u64)| {
        let place = spots::spot_of(built, *function, *label)?;
        let next = numbers.len();
        Some(*numbers.entry(place).or_insert(next))
    };
    let of_instruction: Vec<Option<usize>> = rebuilder.places.iter().map(spot_of).collect();
    let mut sums = vec![Sums::default(); numbers.len()];
    let mut replay = Replay::new(machine);
    let (mut timing, mut freed) = (Timing::default(), Timing::default());
    let step = replays.walks.len().div_ceil(LIMIT_WINDOWS).max(1);
    for (number, (weight, walk)) in replays.walks.iter().enumerate() {
        replay.read(&replays.view(walk));
        let executed: Vec<Option<usize>> = replay
            .executed()
            .map(|executed| of_instruction.get(executed.instruction as usize).copied().flatten())
            .collect();
        let mut add = |timing: &Timing, to: &dyn Fn(&mut Sums) -> &mut f64| {
            for (spot, cycles) in executed.iter().zip(&timing.cycles) {
                if let Some(sum) = spot.and_then(|spot| sums.get_mut(spot)) {
                    *to(sum) += weight * f64::from(*cycles);
                }
            }
        };
        let level = |event: &Event| replays.level(event, sources, walk.window as u64);
        for levels in 0..4 {
            let nearer = |event: &Event| level(event).filter(|level| *level < levels);
            replay.time_into(Misses::Each(&nearer), None, &mut timing);
            add(&timing, &|sum| &mut sum.cycles[levels]);
        }
        if number % step == 0 {
            add(&timing, &|sum| &mut sum.limited);
            for (place, limit) in Constraint::ALL.into_iter().enumerate() {
                let of_lines = matches!(limit, Constraint::L1Misses | Constraint::DeeperMisses);
                if of_lines || replay.may_bind(limit) {
                    replay.time_into(Misses::Each(&level), Some(limit), &mut freed);
                    add(&freed, &|sum| &mut sum.without[place]);
                } else {
                    add(&timing, &|sum| &mut sum.without[place]);
                }
            }
        }
        for spot in executed.iter().flatten() {
            if let Some(sum) = sums.get_mut(*spot) {
                sum.instructions += weight;
            }
        }
        let mut lines = std::collections::HashSet::new();
        for event in walk.events.iter().filter(|event| event.kind.is_access()) {
            let spot = of_instruction.get(event.index as usize).copied().flatten();
            if let (true, Some(level)) = (lines.insert(event.value >> 6), level(event))
                && let Some(sum) = spot.and_then(|spot| sums.get_mut(spot))
            {
                sum.lines[level] += weight;
            }
        }
    }
    numbers.into_iter().filter_map(|(place, number)| Some((place, sums[number].shares(&machine)?))).collect()
}

impl Sums {
    fn shares(&self, machine: &Processor) -> Option<Breakdown> {
        let [core, second, last, all] = self.cycles;
        if all <= 0.0 || self.instructions <= 0.0 {
            return None;
        }
        // Schedules with more lines may be shorter by chance.
        let waits = [second - core, last - second, all - last].map(|cycles| (cycles / all).max(0.0));
        let most = waits.iter().sum::<f64>().max(1.0);
        let waits = waits.map(|wait| wait / most);
        let compute = (1.0 - waits.iter().sum::<f64>()).max(0.0);
        let latencies: f64 =
            self.lines.iter().zip(machine.levels).map(|(lines, level)| lines * level.latency).sum();
        let gains = Constraint::ALL.into_iter().zip(self.without);
        let gains = gains.map(|(limit, without)| (limit, 1.0 - without / self.limited.max(1e-300)));
        let most = gains.max_by(|a, b| a.1.total_cmp(&b.1));
        let missing: f64 = self.lines.iter().sum();
        Some(Breakdown {
            compute,
            waits,
            overlap: (latencies / all - waits.iter().sum::<f64>()).max(0.0),
            cycles_per_instruction: all / self.instructions,
            instructions_per_miss: (missing > 0.0).then(|| self.instructions / missing),
            bound_by: most.filter(|(_, gain)| self.limited > 0.0 && *gain >= LEAST_GAIN),
        })
    }
}
