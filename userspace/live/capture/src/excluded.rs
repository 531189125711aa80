//! Processes that match a pattern of `--exclude`: when they are looked at, and how they are left alone.
//!
//! A process is looked at when it is met, when it is about to be seized, and after exec. A match is counted
//! once, and the kernel side passes over the process from then on: neither samples nor births or deaths are
//! reported. For the same reason nobody reports that it became another program. Hence a few excluded
//! processes are looked at each second in turn, and targets again if no pattern matches any more.

use std::collections::{HashMap, VecDeque};

use locality_common::config::spared;
use locality_kernel::proc;

use super::{event_loop::Capture, events::Event};

/// Excluded processes that are looked at again in a second, at some 0.05 ms each.
const A_SECOND: usize = 32;

/// The excluded processes.
#[derive(Debug, Default)]
pub(super) struct ExcludedProcesses {
    /// Starts since boot, by process id.
    starts: HashMap<u32, u64>,
    /// The next to be looked at comes first.
    turns: VecDeque<u32>,
}

impl ExcludedProcesses {
    /// Takes a process in; false if known.
    fn add(&mut self, pid: u32, start: u64) -> bool {
        match self.starts.insert(pid, start) {
            Some(before) => before != start,
            None => {
                self.turns.push_back(pid);
                true
            }
        }
    }

    /// The next processes in turn, with their starts, removed.
    fn take(&mut self, most: usize) -> Vec<(u32, u64)> {
        let next: Vec<u32> = self.turns.drain(..most.min(self.turns.len())).collect();
        next.into_iter().filter_map(|pid| Some((pid, self.starts.remove(&pid)?))).collect()
    }
}

impl Capture {
    /// Whether a pattern matches a process that is no part of the tool. Then nobody traces the process any
    /// more, and its threads count as ended. None of its threads may be seized, but for one that stands at
    /// exec, which the caller detaches.
    pub(super) fn exclude(&mut self, pid: u32) -> bool {
        if self.settings.named || !self.settings.spared.has_patterns() {
            return false;
        }
        let Some(pattern) = self.settings.spared.excluded_by(pid) else { return false };
        if self.excluded.add(pid, proc::start_ticks(pid).unwrap_or(0)) {
            self.settings.spared.count(pattern);
        }
        let threads = self.tracees.processes.get(&pid).map(|process| process.threads.clone());
        for tid in threads.into_iter().flatten() {
            self.forget_thread(tid);
        }
        if self.tracees.processes.contains_key(&pid) {
            self.end_process(pid, 0);
        }
        self.kernel.remove_target(pid);
        if let Err(error) = self.kernel.spare(pid, spared::ALONE) {
            // Its samples are passed over here.
            tracing::debug!("process {pid} is not left out in the kernel: {error:#}");
        }
        true
    }

    /// Makes targets of excluded processes that no pattern matches any more.
    pub(super) fn review_excluded(&mut self) {
        for (pid, start) in self.excluded.take(A_SECOND) {
            let is_same = proc::start_ticks(pid).is_ok_and(|now| now == start);
            match is_same && self.settings.spared.excluded_by(pid).is_some() {
                true => drop(self.excluded.add(pid, start)),
                false if is_same => {
                    self.kernel.unspare(pid);
                    // If it was a target before, its mappings may be others now.
                    self.send(Event::Exec { pid });
                }
                // The kernel side has forgotten an ended process, and the number may be another's now.
                false => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counts_once_and_has_its_turn() {
        let mut excluded = ExcludedProcesses::default();
        assert!(excluded.add(1, 10) && excluded.add(2, 20) && excluded.add(3, 30));
        assert!(!excluded.add(2, 20), "known");
        assert!(excluded.add(2, 25), "another process with the number");
        assert_eq!(excluded.take(2), [(1, 10), (2, 25)]);
        assert!(excluded.add(1, 10));
        assert_eq!(excluded.take(5), [(3, 30), (1, 10)]);
        assert!(excluded.turns.is_empty() && excluded.starts.is_empty());
    }
}
