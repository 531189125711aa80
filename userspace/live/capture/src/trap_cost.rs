//! The part of a trap outside of the recording program, measured in the traced threads during the
//! trace.
//!
//! Short distances are no longer than that, and on a shared host it changes within seconds (13 to
//! 21 µs were seen), so what was calibrated before the trace is out of date. Some stops measure it
//! in place of a watch: three words are watched that the window shows to be touched for the first
//! time shortly after one another. From when the kernel side is done with the second trap to the
//! third lies that part of a trap and one access; the first trap finds the kernel's code cold
//! after the stop. Source of error: so does, a little, the third (0.5 to 1 µs here).
//!
//! Where a loop loads a word and stores it, no stop is needed for that: after the reuse by the
//! load comes the store's trap (`rules::behind_reuse`).

use std::{collections::VecDeque, sync::atomic::Ordering};

use locality_common::record::{SampleRecord, touch};
use locality_stream::Event;

use super::{
    Capture,
    counters::add,
    events::{EndOutcome, Trap},
    ring_events::TracerTime,
    watchpoints::{Followed, Watch},
    window_sampling::{WORD, touches},
    windows::Taken,
};
use locality_kernel::perf::Event as PerfEvent;

/// Share of the stops used for a measurement: while reuses come soon, and otherwise.
const SHARES: [f64; 2] = [0.25, 0.0625];

/// CPU time between a use and a reuse that comes soon: beyond, the price hardly matters.
const SOON_NS: u64 = 100_000;

/// Readings are no use after so long.
const OLD_NS: u64 = 10_000_000_000;

/// Times the calibrated price that a reading is not believed beyond: something came in between.
const MOST: u64 = 4;

/// Accesses of a window among which three are looked for.
const REACH: usize = 64;

/// Latest readings that the price is the least of: a neighbour makes single traps dearer by half,
/// and a distance that too much is taken from is worse than one that is too long.
const LATEST: usize = 3;

/// Number of latest differences that show the scatter of readings, at most and at least.
const SCATTERED: usize = 64;
const FEWEST: usize = 8;

/// Three words with consecutive first touches, each at most one basic block after the one before:
/// the program's own time in between counts as a trap's.
pub(super) fn words(events: impl Iterator<Item = Event>) -> Option<[u64; 3]> {
    let (mut accesses, mut blocks): (Vec<(Event, u32)>, u32) = (Vec::with_capacity(REACH), 0);
    for event in events {
        match event.kind.is_access() {
            true => accesses.push((event, std::mem::take(&mut blocks))),
            false => blocks += 1,
        }
        if accesses.len() == REACH {
            break;
        }
    }
    let fresh = |at: usize| {
        let word = accesses.get(at)?.0.value & !(WORD - 1);
        (!accesses.iter().take(at).any(|(before, _)| touches(before, word, WORD))).then_some(word)
    };
    let is_close = |at: usize| accesses.get(at).is_some_and(|(_, blocks)| *blocks <= 1);
    (2..accesses.len())
        .filter(|at| is_close(at - 1) && is_close(*at))
        .find_map(|at| Some([fresh(at - 2)?, fresh(at - 1)?, fresh(at)?]))
}

/// The latest readings.
#[derive(Debug)]
pub(super) struct TrapCost {
    /// When, and what was read.
    latest: VecDeque<(u64, u64)>,
    /// How far the latest lay from what was believed when they were taken.
    off_ns: VecDeque<u64>,
    /// The last watch that ended saw no reuse soon after the use.
    far: bool,
}

impl Default for TrapCost {
    fn default() -> Self {
        Self { latest: VecDeque::new(), off_ns: VecDeque::new(), far: true }
    }
}

impl TrapCost {
    /// `believed_ns`: the value used so far.
    fn note(&mut self, now_ns: u64, gap_ns: u64, believed_ns: u64) {
        self.off_ns.truncate(SCATTERED - 1);
        self.off_ns.push_front(gap_ns.abs_diff(believed_ns));
        self.latest.truncate(LATEST - 1);
        self.latest.push_front((now_ns, gap_ns));
    }

    /// Notes how a watch ended: with a reuse at this distance, or without.
    pub(super) fn note_end(&mut self, distance_ns: Option<u64>) {
        self.far = distance_ns.is_none_or(|distance_ns| distance_ns >= SOON_NS);
    }

    /// Chance that a stop is used for a measurement.
    pub(super) fn share(&self) -> f64 {
        let [soon, far] = SHARES;
        if self.far { far } else { soon }
    }

    /// How far readings lay from what was believed, in the median.
    fn scatter_ns(&self) -> Option<u64> {
        let mut off_ns: Vec<u64> = self.off_ns.iter().copied().collect();
        off_ns.sort_unstable();
        off_ns.get(off_ns.len() / 2).copied().filter(|_| off_ns.len() >= FEWEST)
    }

    /// The least of the recent measurements.
    fn gap_ns(&self, now_ns: u64) -> Option<u64> {
        let is_old = |(then_ns, _): &(u64, u64)| now_ns.saturating_sub(*then_ns) > OLD_NS;
        let none = self.latest.len() < LATEST || self.latest.iter().any(is_old);
        self.latest.iter().map(|(_, gap_ns)| *gap_ns).min().filter(|_| !none)
    }
}

impl Capture {
    /// Present cost of a trap, and the part outside of the recording program.
    pub(super) fn trap_prices(&self, now_ns: u64) -> (u64, u64) {
        let (trap_ns, calibrated_ns) = (self.settings.trap_cost_ns, self.settings.gap_cost_ns);
        let gap_ns = self.trap_cost.gap_ns(now_ns).unwrap_or(calibrated_ns);
        (trap_ns.saturating_sub(calibrated_ns) + gap_ns, gap_ns)
    }

    /// The words by which this stop could measure a trap, if registers are free.
    pub(super) fn measurable_words(&self, record: &SampleRecord, taken: &Taken<'_>) -> Option<[u64; 3]> {
        let process = self.tracees.processes.get(&record.header.tgid)?;
        let free = process.arbiter.owned().saturating_sub(process.arbiter.granted());
        let thread = self.tracees.threads.get(&record.header.tid)?;
        let is_watched = |word: &u64| process.watched.contains_key(word);
        if !thread.held || free < 3 {
            return None;
        }
        let words = taken.trap_cost_words()?;
        (!words.iter().any(is_watched)).then_some(words)
    }

    /// Watches three words until the third was touched, or until the process' next sample. Best effort.
    pub(super) fn arm_trap_measurement(
        &mut self,
        record: &SampleRecord,
        words: [u64; 3],
        starter: Option<&PerfEvent>,
    ) {
        let (tgid, tid) = (record.header.tgid, record.header.tid);
        self.end_companions(tgid, || EndOutcome::Replaced);
        let mut before = None;
        for (n, word) in words.into_iter().enumerate() {
            let mut watch = Watch::new(self.watches.next_id(), tgid, word, 0, tid);
            (watch.measures_trap, watch.no_turns) = (true, true);
            watch.follows = before.filter(|_| n == 2);
            before = Some(Followed { id: watch.id, word });
            // The others stay armed, for disarming would take time in between.
            let traps = if n == 2 { 1 } else { 2 };
            if !self.arm_beside(watch, traps, starter) {
                self.end_companions(tgid, || EndOutcome::Replaced);
                return;
            }
        }
    }

    /// Learns from a trap right after another one; returns whether possible.
    pub(super) fn note_gap(&mut self, trap: &Trap, gap_ns: Option<u64>) -> bool {
        let (header, most_ns) = (trap.record.header, MOST * self.settings.gap_cost_ns);
        let Some(gap_ns) = gap_ns.filter(|gap_ns| *gap_ns <= most_ns) else { return false };
        tracing::trace!(gap_ns, cpu = header.cpu, "gauge");
        let (_, believed_ns) = self.trap_prices(header.time_ns);
        self.trap_cost.note(header.time_ns, gap_ns, believed_ns);
        let scatter_ns = self.trap_cost.scatter_ns().unwrap_or(0);
        self.costs.trap.trap_scatter_ns.store(scatter_ns, Ordering::Relaxed);
        true
    }

    /// A touch of a word of such a measurement.
    pub(super) fn on_trap_measurement(&mut self, trap: Box<Trap>, ours: TracerTime) {
        let id = trap.record.watch;
        match trap.record.role {
            touch::USE => {
                for second in self.watches.iter_mut().filter(|watch| watch.is_behind(id)) {
                    second.used = Some((trap.clone(), ours));
                }
            }
            touch::NEAR_REUSE => {}
            _ => {
                let Some(mut watch) = self.watches.remove(id) else { return };
                // One instruction may touch both words, in one trap.
                if let Some((used, before)) = &watch.used
                    && used.record.header.tid == trap.record.header.tid
                    && used.record.regs != trap.record.regs
                {
                    let told = self.note_gap(&trap, ours.gap_since(&trap, *before));
                    add(&self.costs.trap.trap_measurements, u64::from(told));
                }
                if watch.follows.is_some() {
                    self.end_companions(watch.tgid, || EndOutcome::Replaced);
                }
                self.disarm(&mut watch, trap.record.header.time_ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use locality_stream::Kind;

    use super::*;

    #[test]
    fn words_whose_traps_are_measured_are_new_and_follow_one_another() {
        // 0 for a basic block.
        let event = |value: &u64| {
            let kind = if *value == 0 { Kind::BLOCK } else { Kind::LOAD };
            Event { value: *value, index: 1, size: 8, kind, flags: 0 }
        };
        let of = |addresses: &[u64]| words(addresses.iter().map(event));
        assert_eq!(of(&[0x100, 0x108, 0x204]), Some([0x100, 0x108, 0x200]));
        assert_eq!(of(&[0x100, 0x104, 0x200, 0, 0x300, 0, 0x400]), Some([0x200, 0x300, 0x400]));
        // A word that was touched before, and work in between.
        assert_eq!(of(&[0x100, 0x200, 0x104, 0x300]), None);
        assert_eq!(of(&[0x100, 0x200, 0, 0, 0x300]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_price_is_the_least_of_the_latest() {
        let mut trap_cost = TrapCost::default();
        for (gap_ns, price) in [(9, None), (5, None), (7, Some(5)), (8, Some(5)), (9, Some(7))] {
            trap_cost.note(1_000, gap_ns, 8);
            assert_eq!(trap_cost.gap_ns(1_000), price, "{:?}", trap_cost.latest);
        }
        assert_eq!(trap_cost.scatter_ns(), None, "of five");
        assert_eq!(trap_cost.gap_ns(1_000 + OLD_NS), Some(7));
        assert_eq!(trap_cost.gap_ns(1_001 + OLD_NS), None);
    }

    /// Around what was believed: the calibrated price (40) before there are three, then the least of three.
    #[test]
    fn readings_scatter_around_what_was_believed() {
        let mut trap_cost = TrapCost::default();
        for gap_ns in [20, 22, 30, 23, 26, 20, 23, 23, 23, 29, 26] {
            trap_cost.note(1_000, gap_ns, trap_cost.gap_ns(1_000).unwrap_or(40));
        }
        assert_eq!(trap_cost.off_ns, [3, 6, 3, 3, 3, 3, 4, 3, 10, 18, 20]);
        assert_eq!(trap_cost.scatter_ns(), Some(3));
    }
}
