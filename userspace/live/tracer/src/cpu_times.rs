//! CPU time of the targets over a trace. Living processes are read. The capture thread knows the
//! time of ended ones, because a process of milliseconds is gone before a reading.
//!
//! Source of error: a process that its parent has taken leave of before we look is known up to its
//! last scheduler tick only.

use std::collections::HashMap;

use locality_common::rules::START_TICK_NS;

use locality_capture::events::Ended;

use locality_kernel::{proc, sys};

/// First and latest reading of each process, in nanoseconds.
#[derive(Debug, Default)]
pub struct CpuTimes {
    live: HashMap<u32, (u64, u64)>,
    /// When the last process of a number ended, in clock ticks since boot.
    ended: HashMap<u32, u64>,
    ended_ns: u64,
    /// First and latest count of each process's page faults.
    faults: HashMap<u32, (u64, u64)>,
    /// Page faults of ended processes.
    ended_faults: u64,
}

impl CpuTimes {
    /// Counts a process from `base_ns` of its CPU time on.
    pub fn add(&mut self, pid: u32, base_ns: u64) {
        self.live.entry(pid).or_insert((base_ns, base_ns));
        let faults = if base_ns == 0 { 0 } else { proc::page_faults(pid).unwrap_or(0) };
        self.faults.entry(pid).or_insert((faults, faults));
    }

    /// Counts a process met during the trace: all of its time if born after `start_ticks`, else the
    /// time from now on.
    pub fn meet(&mut self, pid: u32, start_ticks: u64) {
        if self.live.contains_key(&pid) {
            return;
        }
        // The time of an ended process before the trace is unknown.
        let Ok(born) = proc::start_ticks(pid) else { return };
        let is_over = self.ended.get(&pid).is_some_and(|ended| born <= *ended);
        let base = if born >= start_ticks { Ok(0) } else { sys::process_cpu_ns(pid) };
        if let Ok(base_ns) = base
            && !is_over
        {
            self.add(pid, base_ns);
        }
    }

    /// Processes that are counted and have not ended.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.live.keys().copied()
    }

    /// A process has ended. An uncounted one is counted, if born during the trace.
    pub fn end(&mut self, Ended { pid, cpu_ns, is_newborn }: Ended) {
        let used_ns = match self.live.remove(&pid) {
            Some((base_ns, last_ns)) => cpu_ns.max(last_ns) - base_ns,
            None if is_newborn => cpu_ns,
            None => 0,
        };
        self.ended_ns += used_ns;
        let (base, last) = self.faults.remove(&pid).unwrap_or_default();
        self.ended_faults += last - base;
        self.ended.insert(pid, sys::boottime_ns() / START_TICK_NS);
    }

    /// Page faults of all processes since their addition. Those of a process's last moments are
    /// missing.
    pub fn page_faults(&mut self) -> u64 {
        for (pid, (_, last)) in &mut self.faults {
            *last = proc::page_faults(*pid).unwrap_or(0).max(*last);
        }
        self.ended_faults + self.faults.values().map(|(base, last)| last - base).sum::<u64>()
    }

    /// Nanoseconds of CPU time of all processes since their addition.
    pub fn read(&mut self) -> u64 {
        for (pid, (_, last_ns)) in &mut self.live {
            // An unnoticed end leaves the last reading.
            *last_ns = sys::process_cpu_ns(*pid).unwrap_or(0).max(*last_ns);
        }
        self.ended_ns + self.live.values().map(|(base_ns, last_ns)| last_ns - base_ns).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No process has these numbers.
    const PIDS: [u32; 3] = [0x3fff_fff0, 0x3fff_fff1, 0x3fff_fff2];

    #[test]
    fn ended_processes_count_what_they_used() {
        let mut times = CpuTimes::default();
        times.add(PIDS[0], 100);
        assert_eq!(times.read(), 0);
        times.end(Ended { pid: PIDS[0], cpu_ns: 150, is_newborn: false });
        // Of the second nobody had heard before its end; what the third used before the trace is not known.
        times.end(Ended { pid: PIDS[1], cpu_ns: 70, is_newborn: true });
        times.end(Ended { pid: PIDS[2], cpu_ns: 9_000, is_newborn: false });
        assert_eq!(times.read(), 120);
        // Its samples are read after its end.
        PIDS.iter().for_each(|pid| times.meet(*pid, 0));
        assert_eq!(times.read(), 120);
        times.end(Ended { pid: PIDS[1], cpu_ns: 30, is_newborn: true });
        assert_eq!(times.read(), 150, "another process of the same number");
    }

    #[test]
    fn page_faults_count_from_the_beginning() {
        let (pid, mut times) = (std::process::id(), CpuTimes::default());
        times.add(pid, 1);
        let before = times.page_faults();
        const BYTES: usize = 4 << 20;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, whose bytes are touched within its bounds and which nothing refers
        // to afterwards. An allocator might give memory that has its pages already.
        unsafe {
            let room = libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0);
            assert_ne!(room, libc::MAP_FAILED);
            libc::madvise(room, BYTES, libc::MADV_NOHUGEPAGE);
            (0..BYTES).step_by(4096).for_each(|at| room.cast::<u8>().add(at).write_volatile(1));
            libc::munmap(room, BYTES);
        }
        let after = times.page_faults();
        assert!((500..100_000).contains(&(after - before)), "{before} {after}");
        times.end(Ended { pid, cpu_ns: 2, is_newborn: false });
        assert_eq!(times.page_faults(), after);
    }

    /// Numbers come round: ours was that of another process.
    #[test]
    fn a_process_with_the_number_of_an_ended_one_counts() {
        let (pid, mut times) = (std::process::id(), CpuTimes::default());
        times.ended.insert(pid, proc::start_ticks(pid).unwrap());
        times.meet(pid, 0);
        assert_eq!(times.read(), 0, "it has ended since");
        times.ended.insert(pid, proc::start_ticks(pid).unwrap() - 1);
        times.meet(pid, 0);
        assert!(times.read() > 0);
    }
}
