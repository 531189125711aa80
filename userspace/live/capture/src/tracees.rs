//! The traced processes and threads, and what is pending in each. Plain bookkeeping: no system call.

use std::collections::{BTreeSet, HashMap};

use locality_arbiter::{Arbiter, Ended, Policy};
use locality_common::record::SampleRecord;

use super::progress_sampling::METER_CLOCKS;
use locality_kernel::{perf::Event as PerfEvent, sources::open::Opened};

/// Debug registers of an x86 thread.
pub const REGISTERS: u8 = 4;

/// A traced process.
#[derive(Debug)]
pub struct Process {
    /// The arbiter of the process's debug registers. A watch takes one register in each thread,
    /// hence one arbiter a process.
    pub arbiter: Arbiter,
    /// Its live threads.
    pub threads: BTreeSet<u32>,
    /// Live watches by watched word.
    pub watched: HashMap<u64, u64>,
    /// Watched uses whose line has other words to watch, and those of them with such a watch.
    pub lines: Lines,
    /// Why the threads are not to be seized, if so.
    pub unfit: Option<String>,
    /// It was born during the trace.
    pub is_newborn: bool,
    /// Least CPU time known at the end of the last ended thread.
    pub cpu_ns: u64,
}

/// Lines of watched uses, counted. Without companions, nothing is known of a line between the end of
/// the window and the next touch of the use's own word.
#[derive(Debug, Clone, Copy, Default)]
pub struct Lines {
    /// Lines with other words to watch.
    pub wanted: u32,
    /// Lines of which another word was watched.
    pub followed: u32,
}

impl Lines {
    /// Lines followed first of all, and the share of lines followed afterwards, where long reuses take
    /// all registers: estimators infer the other lines from these lines.
    const FIRST: u32 = 16;
    const ONE_IN: u32 = 16;

    /// Whether a companion is due, at the price of a longer watch.
    pub fn is_due(self) -> bool {
        self.followed < Self::FIRST + self.wanted / Self::ONE_IN
    }
}

/// A traced thread.
#[derive(Debug)]
pub struct Thread {
    /// Its process.
    pub tgid: u32,
    /// Whether we hold the ptrace relation.
    pub held: bool,
    /// Start of the program, or the end of a released thread's rest; the thread will be seized a
    /// while later.
    pub settling_since_ns: Option<u64>,
    /// Newest served stop, by the sample's sequence: each stop is ours once.
    pub served: u64,
    /// Samples in a row that found no free signal for a stop.
    pub unstoppable: u32,
    /// The sample with an awaited stop, and the sample's stack.
    pub awaited: Option<Box<(SampleRecord, Vec<u8>)>>,
    /// The thread was seized at its last sample; the replacing sample is awaited.
    pub again: Option<SecondSample>,
    /// When it was last sampled.
    pub last_seen_ns: u64,
    /// Time of the tool's ticks and traps in this thread, taken off measured distances.
    pub disturbance_ns: u64,
    /// Whether ptrace announces new threads and processes of the thread.
    pub announces_clones: bool,
    /// Stops imposed by ptrace, not asked for.
    pub imposed: ImposedStops,
    /// The thread's meter, once a stop had a window.
    pub meter: [Option<PerfEvent>; METER_CLOCKS],
    /// Readings of the meter since the last stop.
    pub readings: u32,
    /// Place of the thread's counters of accesses, on machines with counters.
    pub counted: Option<u32>,
}

/// A second sample of a thread that could not be stopped at the first, because not seized yet.
#[derive(Debug)]
pub struct SecondSample {
    /// The event that starts the sample. Closing the event ends the wait.
    #[expect(dead_code, reason = "it is kept open")]
    pub clock: Opened,
    /// The replaced sample and its stack.
    pub first: Box<(SampleRecord, Vec<u8>)>,
}

/// Counts the stops that ptrace imposes on a thread (the program's own signals, births), in windows
/// of a second.
#[derive(Debug, Clone, Copy, Default)]
pub struct ImposedStops {
    window_start_ns: u64,
    cost_ns: u64,
}

impl ImposedStops {
    /// Adds a stop of `cost_ns` at `now_ns`; true when this window's stops cost more than `allowed_ns`.
    pub fn exceeds(&mut self, now_ns: u64, cost_ns: u64, allowed_ns: u64) -> bool {
        if now_ns.saturating_sub(self.window_start_ns) > 1_000_000_000 {
            *self = Self { window_start_ns: now_ns, cost_ns: 0 };
        }
        self.cost_ns += cost_ns;
        self.cost_ns > allowed_ns
    }
}

/// All traced processes and threads.
#[derive(Debug, Default)]
pub struct Tracees {
    /// By process id.
    pub processes: HashMap<u32, Process>,
    /// By thread id.
    pub threads: HashMap<u32, Thread>,
}

impl Tracees {
    /// Adds a thread and, with the first thread, its process, with the number of registers and the
    /// policy. Returns false for a known thread.
    pub fn add(&mut self, tgid: u32, tid: u32, (policy, registers): (Policy, u8)) -> bool {
        if self.threads.contains_key(&tid) {
            return false;
        }
        let thread = Thread {
            tgid,
            held: false,
            settling_since_ns: None,
            served: 0,
            unstoppable: 0,
            awaited: None,
            again: None,
            last_seen_ns: 0,
            disturbance_ns: 0,
            announces_clones: false,
            imposed: ImposedStops::default(),
            meter: std::array::from_fn(|_| None),
            readings: 0,
            counted: None,
        };
        self.threads.insert(tid, thread);
        let process = self.processes.entry(tgid).or_insert_with(|| Process {
            arbiter: Arbiter::new(policy, registers, u64::from(tgid)),
            threads: BTreeSet::new(),
            watched: HashMap::new(),
            lines: Lines::default(),
            unfit: None,
            is_newborn: false,
            cpu_ns: 0,
        });
        process.threads.insert(tid);
        true
    }

    /// Counts a line with companions to watch; the watch that ends in their favour, if one does.
    pub fn room_for_companion(&mut self, tgid: u32) -> Option<Ended> {
        let process = self.processes.get_mut(&tgid)?;
        process.lines.wanted += 1;
        let is_full = process.arbiter.granted() >= process.arbiter.owned();
        if is_full && process.lines.is_due() { process.arbiter.make_room() } else { None }
    }

    /// Removes a thread. The process stays in `processes`, even without threads.
    pub fn remove(&mut self, tid: u32) -> Option<Thread> {
        let thread = self.threads.remove(&tid)?;
        if let Some(process) = self.processes.get_mut(&thread.tgid) {
            process.threads.remove(&tid);
        }
        Some(thread)
    }

    /// Whether a process has no thread left.
    pub fn is_empty(&self, tgid: u32) -> bool {
        self.processes.get(&tgid).is_none_or(|process| process.threads.is_empty())
    }

    /// Watched threads of a process besides `of`: the most recently sampled first, at most `most`.
    pub fn siblings(&self, tgid: u32, of: u32, most: usize) -> Vec<u32> {
        let Some(process) = self.processes.get(&tgid) else { return Vec::new() };
        let mut others: Vec<_> = process.threads.iter().copied().filter(|tid| *tid != of).collect();
        let seen = |tid: &u32| self.threads.get(tid).map_or(0, |thread| thread.last_seen_ns);
        others.sort_by_key(|tid| std::cmp::Reverse(seen(tid)));
        others.truncate(most);
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siblings_are_the_recently_seen_ones() {
        let mut tracees = Tracees::default();
        for tid in [10, 11, 12, 13] {
            assert!(tracees.add(10, tid, (Policy::Reservoir, REGISTERS)));
        }
        assert!(!tracees.add(10, 11, (Policy::Reservoir, REGISTERS)));
        tracees.threads.get_mut(&12).unwrap().last_seen_ns = 5;
        tracees.threads.get_mut(&13).unwrap().last_seen_ns = 9;
        assert_eq!(tracees.siblings(10, 11, 2), [13, 12]);
        assert!(tracees.siblings(99, 1, 2).is_empty());
    }

    #[test]
    fn imposed_stops_are_counted_by_the_second() {
        let mut imposed = ImposedStops::default();
        let ms = 1_000_000;
        assert!(!imposed.exceeds(2000 * ms, 3 * ms, 5 * ms));
        assert!(!imposed.exceeds(3500 * ms, 3 * ms, 5 * ms));
        assert!(imposed.exceeds(3600 * ms, 3 * ms, 5 * ms));
    }

    #[test]
    fn a_process_is_empty_when_its_last_thread_is_gone() {
        let mut tracees = Tracees::default();
        tracees.add(10, 10, (Policy::Reservoir, REGISTERS));
        assert!(!tracees.is_empty(10));
        assert!(tracees.remove(10).is_some());
        assert!(tracees.remove(10).is_none());
        assert!(tracees.is_empty(10));
    }

    #[test]
    fn some_lines_have_a_companion_however_many_have_none() {
        let mut lines = Lines::default();
        for _ in 0..3_200 {
            lines.wanted += 1;
            lines.followed += u32::from(lines.is_due());
        }
        assert_eq!(lines.followed, 16 + 3_200 / 16);
        assert!(!Lines { wanted: 100, followed: 90 }.is_due());
    }

    #[test]
    fn no_watch_ends_while_a_register_is_free() {
        let mut tracees = Tracees::default();
        tracees.add(7, 7, (Policy::QuickReservoir, 3));
        for key in 0..10 {
            let arbiter = &tracees.processes.get(&7).unwrap().arbiter;
            let is_full = arbiter.granted() == arbiter.owned();
            let ended = tracees.room_for_companion(7);
            assert!(is_full || ended.is_none());
            tracees.processes.get_mut(&7).unwrap().arbiter.offer(locality_arbiter::WatchKey(key));
        }
        assert!((0..10).any(|_| tracees.room_for_companion(7).is_some()));
    }
}
