//! Newborn threads and processes known from the ring alone. Newborns
//! become tracees at the first sample, or at an age of a few milliseconds.
//! In a storm of births most end sooner, without further cost.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use locality_common::record::LifecycleRecord;

use super::{counters::add, event_loop::Capture};
use locality_kernel::{proc, sys};

/// Age at which a newborn thread becomes a tracee.
pub const YOUTH: Duration = Duration::from_nanos(AGE_NS);
const AGE_NS: u64 = 5_000_000;
/// So many are met at once.
const MOST: usize = 32;

/// A pending thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newborn {
    /// Its process.
    pub tgid: u32,
    /// When it was born, or began another program.
    pub born_ns: u64,
}

/// All pending threads.
#[derive(Debug, Default)]
pub struct PendingTracees {
    by_tid: HashMap<u32, Newborn>,
    /// In order of birth; some are gone or younger by now.
    waiting: VecDeque<(u64, u32)>,
    /// Threads of each process that are here.
    of_process: HashMap<u32, u32>,
}

impl PendingTracees {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_tid.is_empty()
    }

    /// Whether a thread of this process is pending.
    pub fn has_process(&self, tgid: u32) -> bool {
        self.of_process.contains_key(&tgid)
    }

    /// A pending thread.
    pub fn get(&self, tid: u32) -> Option<Newborn> {
        self.by_tid.get(&tid).copied()
    }

    /// Takes one in.
    pub fn add(&mut self, tid: u32, newborn: Newborn) {
        // The id may have belonged to another thread, whose end was lost.
        self.remove(tid);
        self.by_tid.insert(tid, newborn);
        self.waiting.push_back((newborn.born_ns, tid));
        *self.of_process.entry(newborn.tgid).or_default() += 1;
    }

    /// Removes a thread that ended or became a tracee. Returns
    /// whether the thread was the last pending thread of the process.
    pub fn remove(&mut self, tid: u32) -> Option<(Newborn, bool)> {
        let newborn = self.by_tid.remove(&tid)?;
        let left = self.of_process.get_mut(&newborn.tgid)?;
        *left -= 1;
        let is_last = *left == 0;
        if is_last {
            self.of_process.remove(&newborn.tgid);
        }
        Some((newborn, is_last))
    }

    /// The process begins another program. False if not pending.
    pub fn renew(&mut self, tid: u32, now_ns: u64) -> bool {
        let Some(newborn) = self.by_tid.get_mut(&tid) else { return false };
        newborn.born_ns = now_ns;
        self.waiting.push_back((now_ns, tid));
        true
    }

    /// The next thread that is old enough.
    pub fn next(&mut self, now_ns: u64) -> Option<u32> {
        while let Some((born_ns, tid)) = self.waiting.front().copied() {
            if born_ns + AGE_NS > now_ns {
                return None;
            }
            self.waiting.pop_front();
            if self.by_tid.get(&tid).is_some_and(|newborn| newborn.born_ns == born_ns) {
                return Some(tid);
            }
        }
        None
    }
}

impl Capture {
    /// A birth that ptrace does not announce.
    pub(super) fn take_newborn(&mut self, record: &LifecycleRecord) {
        let (tgid, tid, born_ns) = (record.other_tgid, record.other_tid, record.header.time_ns);
        match self.settings.heap.clone() {
            // Its first allocations are to be followed, too.
            Some(heap) if tgid != record.header.tgid => {
                self.meet_newborn(tgid, tid);
                if let Some(process) = self.tracees.processes.get_mut(&tgid) {
                    process.is_newborn = true;
                }
                heap.forked(record.header.tgid, tgid, born_ns);
            }
            _ if self.tracees.threads.contains_key(&tid) => {}
            _ => self.pending.add(tid, Newborn { tgid, born_ns }),
        }
    }

    /// Makes tracees of threads that are old enough.
    pub(super) fn meet_survivors(&mut self) {
        let now = sys::monotonic_ns();
        for _ in 0..MOST {
            let Some(tid) = self.pending.next(now) else { return };
            if let Some(Newborn { tgid, .. }) = self.pending.get(tid).filter(|_| proc::exists(tid)) {
                self.meet(tgid, tid);
            }
            // A full ring may have lost its end.
            if self.end_newborn(tid, 0) {
                self.send_if_alone();
            }
        }
    }

    /// The end of a pending thread; false if the thread is not pending.
    pub(super) fn end_newborn(&mut self, tid: u32, cpu_ns: u64) -> bool {
        let Some((Newborn { tgid, .. }, is_last)) = self.pending.remove(tid) else { return false };
        add(&self.costs.stop.brief, 1);
        if is_last && self.tracees.is_empty(tgid) {
            self.end_process(tgid, cpu_ns);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_live_are_met_in_order_and_once() {
        let mut pending = PendingTracees::default();
        for (tid, tgid) in [(11, 10), (12, 10), (20, 20), (30, 30)] {
            pending.add(tid, Newborn { tgid, born_ns: u64::from(tid) });
        }
        assert_eq!(pending.next(AGE_NS + 10), None);
        assert_eq!(pending.remove(12), Some((Newborn { tgid: 10, born_ns: 12 }, false)), "it has ended");
        assert!(pending.renew(20, 1_000) && !pending.renew(21, 1_000));
        assert_eq!([0; 3].map(|_| pending.next(AGE_NS + 100)), [Some(11), Some(30), None]);
        assert_eq!(pending.next(AGE_NS + 1_000), Some(20));
        // Another with the number of one whose end was lost.
        pending.add(11, Newborn { tgid: 40, born_ns: 9_000 });
        assert_eq!(pending.next(AGE_NS + 9_000), Some(11));
        let gone =
            [11, 20, 30, 11].map(|tid| pending.remove(tid).map(|(newborn, last)| (newborn.tgid, last)));
        assert_eq!(gone, [Some((40, true)), Some((20, true)), Some((30, true)), None]);
        assert!(pending.is_empty() && pending.of_process.is_empty());
    }
}
