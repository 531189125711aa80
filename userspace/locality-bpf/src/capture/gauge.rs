//! What of a trap lies outside of the program that records it, measured in the traced threads while they are traced.
//!
//! Short distances are no longer than that, and on a shared host it changes within seconds (13 to 21 µs were seen), so what was
//! calibrated before the trace does not hold. Some stops take a gauge in place of a watch: three words are watched that the
//! window shows to be touched for the first time one right after the other. From when the
//! kernel side is done with the second trap to the third lies that part of a trap and one access; the first trap
//! finds the kernel's code cold behind the stop. Source of error: so does, a little, the third (0.5 to 1 µs here).

use std::collections::VecDeque;

use locality_common::record::{SampleRecord, touch};
use locality_stream::Event;

use super::{
    Capture,
    choice::{WORD, touches},
    event::{EndOutcome, Trap, add},
    touches::Ours,
    watching::{Followed, Watch},
};
use crate::kernel::perf::Event as PerfEvent;

/// Share of the stops that take one, where they can: while reuses are near, and otherwise.
const SHARES: [f64; 2] = [0.25, 0.0625];

/// CPU time between a use and a near reuse.
const NEAR_NS: u64 = 100_000;

/// Accesses of a window among which three are looked for.
const REACH: usize = 64;

/// Latest readings that the price is the least of: a neighbour makes single traps dearer by half, and a distance that too much is
/// taken from is worse than one that is too long.
const LATEST: usize = 3;

/// Three words whose first touches follow one another.
pub(super) fn words(events: impl Iterator<Item = Event>) -> Option<[u64; 3]> {
    let accesses: Vec<Event> = events.filter(|event| event.kind.is_access()).take(REACH).collect();
    let fresh = |at: usize| {
        let word = accesses.get(at)?.value & !(WORD - 1);
        (!accesses.iter().take(at).any(|before| touches(before, word, WORD))).then_some(word)
    };
    (2..accesses.len()).find_map(|at| Some([fresh(at - 2)?, fresh(at - 1)?, fresh(at)?]))
}

/// The latest readings.
#[derive(Debug, Default)]
pub(super) struct Gauge {
    latest: VecDeque<u64>,
    /// The latest reuse was far.
    far: bool,
}

impl Gauge {
    fn note(&mut self, gap_ns: u64) {
        self.latest.truncate(LATEST - 1);
        self.latest.push_front(gap_ns);
    }

    /// Notes the distance of a reuse.
    pub(super) fn note_reuse(&mut self, distance_ns: u64) {
        self.far = distance_ns >= NEAR_NS;
    }

    /// Chance that a stop takes one, where it can.
    pub(super) fn share(&self) -> f64 {
        let [near, far] = SHARES;
        if self.far { far } else { near }
    }

    /// The least of them.
    fn gap_ns(&self) -> Option<u64> {
        self.latest.iter().copied().min().filter(|_| self.latest.len() == LATEST)
    }
}

impl Capture {
    /// What a trap costs now, and what of that lies outside of the program that records it.
    pub(super) fn trap_prices(&self) -> (u64, u64) {
        let (trap_ns, calibrated_ns) = (self.settings.trap_cost_ns, self.settings.gap_cost_ns);
        let gap_ns = self.gauge.gap_ns().unwrap_or(calibrated_ns);
        (trap_ns.saturating_sub(calibrated_ns) + gap_ns, gap_ns)
    }

    /// The words that a gauge would take in this stop, if there are registers for them.
    pub(super) fn gaugeable(&self, record: &SampleRecord, words: Option<[u64; 3]>) -> Option<[u64; 3]> {
        let process = self.members.processes.get(&record.header.tgid)?;
        let free = process.arbiter.owned().saturating_sub(process.arbiter.granted());
        let thread = self.members.threads.get(&record.header.tid)?;
        let is_watched = |word: &u64| process.watched.contains_key(word);
        words.filter(|words| thread.held && free >= words.len() && !words.iter().any(is_watched))
    }

    /// Watches three words until the third was touched, or until the process' next sample. Best effort.
    pub(super) fn arm_gauge(&mut self, record: &SampleRecord, words: [u64; 3], starter: Option<&PerfEvent>) {
        let (tgid, tid) = (record.header.tgid, record.header.tid);
        self.end_companions(tgid, || EndOutcome::Replaced);
        let mut before = None;
        for (n, word) in words.into_iter().enumerate() {
            let mut watch = Watch::new(self.watches.next_id(), tgid, word, 0, tid);
            watch.is_gauge = true;
            watch.follows = before.filter(|_| n == 2);
            before = Some(Followed { id: watch.id, word });
            // The others stay armed, for disarming would take time in between.
            let traps = if n == 2 { 1 } else { 2 };
            let announced = self.kernel.add_watch(watch.key(), watch.state());
            let armed = announced.and_then(|()| Ok(watch.arm_in(tid, traps, self.programs.fd(), starter)?));
            if let Some(process) = self.members.processes.get_mut(&tgid) {
                process.watched.insert(word, watch.id);
            }
            self.watches.insert(watch);
            if let Err(error) = armed {
                tracing::debug!("no gauge in thread {tid}: {error:#}");
                self.end_companions(tgid, || EndOutcome::Replaced);
                return;
            }
        }
    }

    /// A touch of a gauge's word.
    pub(super) fn on_gauge(&mut self, trap: Box<Trap>, ours: Ours) {
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
                // One instruction may touch both, in one trap.
                if let Some((used, before)) = &watch.used
                    && used.record.regs != trap.record.regs
                    && let Some(gap_ns) = ours.gap_since(&trap, *before)
                {
                    tracing::trace!(gap_ns, cpu = trap.record.header.cpu, "gauge");
                    self.gauge.note(gap_ns);
                    add(&self.costs.gauges, 1);
                }
                if watch.follows.is_some() {
                    self.end_companions(watch.tgid, || EndOutcome::Replaced);
                }
                self.disarm(&mut watch);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use locality_stream::Kind;

    use super::*;

    #[test]
    fn words_of_a_gauge_are_new_and_follow_one_another() {
        let load = |address: &u64| Event { value: *address, index: 1, size: 8, kind: Kind::LOAD, flags: 0 };
        let of = |addresses: &[u64]| words(addresses.iter().map(load));
        assert_eq!(of(&[0x100, 0x108, 0x204]), Some([0x100, 0x108, 0x200]));
        assert_eq!(of(&[0x100, 0x104, 0x200, 0x300, 0x400]), Some([0x200, 0x300, 0x400]));
        // A word that was touched before.
        assert_eq!(of(&[0x100, 0x200, 0x104, 0x300]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn the_price_is_the_least_of_the_latest() {
        let mut gauge = Gauge::default();
        for (gap_ns, price) in [(9, None), (5, None), (7, Some(5)), (8, Some(5)), (9, Some(7))] {
            gauge.note(gap_ns);
            assert_eq!(gauge.gap_ns(), price, "{:?}", gauge.latest);
        }
    }
}
