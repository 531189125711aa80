//! Memory mapped by several traced processes, and watches of shared words in each process.
//!
//! The next touch of a shared word may be another process'. A watch of a shared word therefore
//! takes a register in each traced process that maps the word, from the process's arbiter, like a
//! sample of the process would. The chances of survival multiply, because the arbiters draw
//! independently. When an arbiter gives the register to another watch, the watch ends everywhere.
//!
//! The recorder reads mappings and writes the table ([`SharedRegions`]); the capture thread only
//! looks words up. Limits: a watch armed without a stop stays in its own process, because the use
//! may be any thread's. At most [`GUESTS`] processes, the last sampled, are armed. With the
//! policy `reservoir`, an arbiter may refuse the register; the process's touches are then unseen.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use locality_arbiter::{Ended, WatchKey as ArbiterKey};
use locality_common::record::{WatchKey, WatchState};

use super::{
    event_loop::Capture,
    events::EndOutcome,
    watchpoints::{Guest, Watch},
};
use locality_kernel::{proc, sys};

/// Most other processes with a watch armed.
const GUESTS: usize = 16;

/// Most other processes to look at in a stop.
const LOOKED_AT: usize = 2;

/// A range of a process' addresses that another traced process maps too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlap {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// The other process.
    pub other: u32,
    /// Position of [`Overlap::start`] in the other process.
    pub there: u64,
}

/// Which ranges overlap, by process.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Regions {
    by_process: HashMap<u32, Vec<Overlap>>,
}

impl Regions {
    /// A table of these.
    pub fn new(overlaps: impl IntoIterator<Item = (u32, Overlap)>) -> Self {
        let mut by_process: HashMap<u32, Vec<Overlap>> = HashMap::new();
        for (pid, overlap) in overlaps {
            by_process.entry(pid).or_default().push(overlap);
        }
        Self { by_process }
    }

    /// Further processes that map the word at `address`, each with its own address.
    pub fn elsewhere(&self, pid: u32, address: u64) -> Vec<(u32, u64)> {
        let overlaps = self.by_process.get(&pid).into_iter().flatten();
        let here = overlaps.filter(|overlap| (overlap.start..overlap.end).contains(&address));
        here.map(|overlap| (overlap.other, overlap.there + (address - overlap.start))).collect()
    }
}

/// Written by the recorder, read by the capture thread without waiting for the lock.
pub type SharedRegions = Arc<Mutex<Regions>>;

impl Capture {
    /// Addresses of a word in other traced processes, the last sampled first.
    pub(super) fn places_elsewhere(&self, tgid: u32, address: u64) -> Vec<(u32, u64)> {
        let regions = self.settings.shared.try_lock();
        let mut places = regions.map(|regions| regions.elsewhere(tgid, address)).unwrap_or_default();
        let seen = |(other, _): &(u32, u64)| {
            let threads = self.tracees.processes.get(other).map(|process| &process.threads);
            let threads = threads.into_iter().flatten().filter_map(|tid| self.tracees.threads.get(tid));
            threads.map(|thread| thread.last_seen_ns).max()
        };
        places.retain(|place| seen(place).is_some());
        places.sort_by_key(|place| std::cmp::Reverse(seen(place)));
        places.truncate(GUESTS);
        places
    }

    /// Arms a watch, within the stop of its thread, in another process with one waiting
    /// thread: the reuse is often the waiting thread's next step. Arming a running thread
    /// takes an interrupt of the thread's processor, for which a stop does not wait.
    pub(super) fn arm_waiting_elsewhere(&mut self, id: u64) {
        let Some(watch) = self.watches.get_mut(id).filter(|watch| watch.owner != 0) else { return };
        let is_ready = |(other, _): &(u32, u64)| {
            let process = self.tracees.processes.get(other);
            let one = process.filter(|process| process.threads.len() == 1);
            one.and_then(|process| process.threads.first()).is_some_and(|tid| proc::is_waiting(*tid))
        };
        let Some(at) = watch.elsewhere.iter().take(LOOKED_AT).position(is_ready) else { return };
        let (other, there) = watch.elsewhere.remove(at);
        self.arm_in_process(id, other, there);
    }

    /// Arms a watch in the further traced processes that map the word.
    pub(super) fn arm_elsewhere(&mut self, id: u64) {
        let Some(watch) = self.watches.get_mut(id).filter(|watch| watch.owner != 0) else { return };
        for (other, there) in std::mem::take(&mut watch.elsewhere) {
            self.arm_in_process(id, other, there);
        }
    }

    fn arm_in_process(&mut self, id: u64, other: u32, there: u64) {
        let mut threads = self.tracees.siblings(other, 0, super::SIBLINGS);
        threads.retain(|tid| self.may_watch(*tid));
        // It may have ended meanwhile, by the arbiter of another process.
        let Some(main) = self.watches.get_mut(id).map(|watch| watch.key()).filter(|_| !threads.is_empty())
        else {
            return;
        };
        self.end_companions(other, || EndOutcome::Replaced);
        self.end_waiting(other);
        let Some(process) = self.tracees.processes.get_mut(&other) else { return };
        if process.watched.contains_key(&there) {
            return;
        }
        let decision = process.arbiter.offer(ArbiterKey(id));
        if let Some(ended) = decision.evict {
            self.give_up(ended, EndOutcome::Replaced);
        }
        let announced = decision.arm && {
            let key = WatchKey { address: there, tgid: other, reserved: 0 };
            let state = WatchState {
                watch: id,
                main_word: main.address,
                main_tgid: main.tgid,
                ..WatchState::default()
            };
            self.kernel.add_watch(key, state).is_ok()
        };
        let armed = |watch: &mut Watch| {
            let guest =
                Guest { tgid: other, address: there, cpu_ns: sys::process_cpu_ns(other).unwrap_or(0) };
            watch.arm_guest(guest, &threads, self.programs.fd())
        };
        if announced && self.watches.get_mut(id).is_some_and(armed) {
            if let Some(process) = self.tracees.processes.get_mut(&other) {
                process.watched.insert(there, id);
            }
            self.note_armed(other);
            return;
        }
        if announced {
            self.kernel.remove_watch(&WatchKey { address: there, tgid: other, reserved: 0 });
        }
        if let Some(process) = self.tracees.processes.get_mut(&other) {
            process.arbiter.ended(ArbiterKey(id));
        }
    }

    /// Ends a watch that lost the register in a process.
    pub(super) fn give_up(&mut self, ended: Ended, outcome: EndOutcome) {
        let Some(watch) = self.watches.remove(ended.id.0) else { return };
        let p_survive = ended.p_survive * self.survival(&watch);
        self.end_watch(watch, p_survive, sys::monotonic_ns(), outcome);
    }

    /// Removes a process after its end or an exec from
    /// another process's watch; false for a watch of its own.
    pub(super) fn leave(&mut self, id: u64, tgid: u32) -> bool {
        let Some(watch) = self.watches.get_mut(id).filter(|watch| watch.tgid != tgid) else { return false };
        let threads = self.tracees.processes.get(&tgid).map(|process| &process.threads);
        for tid in threads.into_iter().flatten() {
            watch.disarm_in(*tid);
        }
        let left: Vec<Guest> = watch.guests.extract_if(.., |guest| guest.tgid == tgid).collect();
        for guest in left {
            self.forget_guest(&guest, sys::monotonic_ns());
        }
        true
    }

    /// Forgets where a watch was armed in another process, after its events are closed.
    pub(super) fn forget_guest(&mut self, guest: &Guest, ended_ns: u64) {
        self.kernel.remove_watch(&WatchKey { address: guest.address, tgid: guest.tgid, reserved: 0 });
        if let Some(process) = self.tracees.processes.get_mut(&guest.tgid) {
            process.watched.remove(&guest.address);
            if process.watched.is_empty() {
                self.note_disarmed(guest.tgid, ended_ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_found_at_each_other_address() {
        let overlap = |start, end, other, there| Overlap { start, end, other, there };
        let regions = Regions::new([
            (1, overlap(0x1000, 0x3000, 2, 0x8000)),
            (1, overlap(0x2000, 0x3000, 3, 0x5000)),
            (2, overlap(0x8000, 0xa000, 1, 0x1000)),
        ]);
        assert_eq!(regions.elsewhere(1, 0x1008), [(2, 0x8008)]);
        assert_eq!(regions.elsewhere(1, 0x2ff8), [(2, 0x9ff8), (3, 0x5ff8)]);
        assert_eq!(regions.elsewhere(2, 0x9ff8), [(1, 0x2ff8)]);
        assert!(regions.elsewhere(1, 0x3000).is_empty() && regions.elsewhere(3, 0x5000).is_empty());
    }
}
