//! Which threads are seized, and when; why a thread is not seized.
//!
//! A process after fork or exec is left alone for [`SETTLE_NS`] and until its next sample. Another
//! sample follows at once and takes the place of that sample, to give processes of milliseconds a
//! window. A new program may want its own tracer (`gdb`, `strace`), or none (LeakSanitizer, visible
//! once its library is loaded). Processes that end sooner cost nothing. New threads of a seized
//! process are seized from their first instruction. Not here: the work at a stop (`ptrace_stops`).

use std::{
    io,
    time::{Duration, Instant},
};

use locality_common::record::SampleRecord;

use super::{
    aside::ASIDE,
    counters::add,
    event_loop::Capture,
    events::Event,
    exclusions::{ANCESTOR, why_not_held},
    tracees::{SecondSample, Thread},
};
use locality_kernel::{
    proc, ptrace,
    sources::{Source, open::open},
    sys,
};

/// Time for which a new program is left alone. A program in the dynamic loader is left alone
/// longer, up to [`LOADING_NS`].
const SETTLE_NS: u64 = 3_000_000;
/// It may have waited for a CPU for as long, and be about to ask for its tracer.
const SETTLE_CPU_NS: u64 = 1_000_000;
const LOADING_NS: u64 = 20_000_000;

/// CPU time after which a newly seized thread is sampled again, until found in user mode. An odd
/// number, to recognise the sample.
const AGAIN_NS: u64 = 200_003;

/// Seizing a thread takes some .2 ms at a priority above all ordinary threads. With thousands of
/// threads the capture thread seizes for this time, and then leaves the processor to others.
const AT_ONCE: Duration = Duration::from_millis(4);
const PAUSE: Duration = Duration::from_millis(1);

/// How a thread becomes known.
#[derive(Debug)]
pub(super) enum Holding {
    /// Seized.
    Held,
    /// To be seized at the first sample a while after this time, which may be in the future.
    Later(u64),
    /// Not seized, and why.
    Never(String),
}

impl Capture {
    /// Seizes all threads of a process, including threads born meanwhile; returns the number of
    /// newly seized ones.
    pub(super) fn attach(&mut self, pid: u32) -> io::Result<usize> {
        if let Some(why) = self.why_spared(pid) {
            return Err(io::Error::other(why));
        }
        let threads = &self.tracees.threads;
        let is_held = self.tracees.processes.get(&pid).is_some_and(|process| {
            process.threads.iter().any(|tid| threads.get(tid).is_some_and(|thread| thread.held))
        });
        if !is_held && self.exclude(pid) {
            return Err(io::Error::other("it is excluded"));
        }
        self.kernel.add_target(pid).map_err(io::Error::other)?;
        let unfit = self.why_unfit(pid);
        let mut held = 0;
        let mut since = Instant::now();
        loop {
            let mut news = 0;
            for tid in proc::threads(pid)? {
                if since.elapsed() >= AT_ONCE {
                    std::thread::sleep(PAUSE);
                    since = Instant::now();
                }
                if self.tracees.threads.get(&tid).is_some_and(|thread| thread.settling_since_ns.is_none()) {
                    continue;
                }
                news += 1;
                let Some(holding) = self.seize(tid, unfit.as_deref()) else {
                    // The thread ended meanwhile; the end of a known thread is reported.
                    self.settled(tid);
                    continue;
                };
                held += usize::from(matches!(holding, Holding::Held));
                self.adopt(pid, tid, holding);
            }
            if let Some(process) = self.tracees.processes.get_mut(&pid) {
                process.unfit.clone_from(&unfit);
            }
            if news == 0 {
                return Ok(held);
            }
        }
    }

    /// Why a process is none of the targets, if so.
    fn why_spared(&self, pid: u32) -> Option<&'static str> {
        // What was met before was asked before.
        let is_new = !self.settings.named && !self.tracees.processes.contains_key(&pid);
        self.settings.spared.why(pid).filter(|_| is_new)
    }

    /// Why the threads of a process must not be seized, if so.
    fn why_unfit(&self, pid: u32) -> Option<String> {
        if let Some(reason) = self.settings.no_stops {
            return Some(reason.to_owned());
        }
        if self.settings.aside.has(pid) {
            return Some(ASIDE.to_owned());
        }
        if self.settings.spared.is_ancestor(pid) {
            return Some(ANCESTOR.to_owned());
        }
        if let Some(why) = Some(pid).filter(|_| !self.settings.named).and_then(why_not_held) {
            return Some(why);
        }
        proc::leak_checker(pid).then(|| "it looks for leaks at its end, which no held process can".to_owned())
    }

    /// `None` when the thread has ended.
    fn seize(&self, tid: u32, unfit: Option<&str>) -> Option<Holding> {
        if let Some(reason) = unfit {
            return Some(Holding::Never(reason.to_owned()));
        }
        match ptrace::seize(tid) {
            Ok(()) => Some(Holding::Held),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => None,
            Err(error) => Some(Holding::Never(match proc::status(tid) {
                Ok(status) if status.tracer != 0 => {
                    // A thread of the debugger.
                    let debugger = proc::status(status.tracer).map_or(status.tracer, |tracer| tracer.tgid);
                    format!("already traced by process {debugger}")
                }
                _ => format!("ptrace refused: {error}"),
            })),
        }
    }

    /// Records a thread, or changes how a recorded thread is seized.
    pub(super) fn adopt(&mut self, tgid: u32, tid: u32, holding: Holding) {
        if let Some(heap) = &self.settings.heap
            && !self.tracees.processes.contains_key(&tgid)
        {
            heap.started(tgid);
        }
        let new = self.tracees.add(tgid, tid, (self.settings.policy, self.settings.registers));
        self.had_targets = true;
        self.outrank(tid);
        self.heartbeat.watch_over(tgid);
        let mut not_held = None;
        let settling_since_ns = match holding {
            Holding::Held => {
                not_held = self.announce_held(tid).err().map(|error| format!("{error:#}"));
                if let Some(windows) = &mut self.windows {
                    windows.meet(tgid, sys::monotonic_ns());
                }
                None
            }
            Holding::Later(since_ns) => Some(since_ns),
            Holding::Never(reason) => {
                not_held = Some(reason);
                None
            }
        };
        if let Some(thread) = self.tracees.threads.get_mut(&tid) {
            thread.settling_since_ns = settling_since_ns;
        }
        match (new, not_held) {
            (true, not_held) => {
                let name = proc::status(tid).map(|status| status.name).unwrap_or_default();
                self.send(Event::ThreadStarted {
                    pid: tgid,
                    tid,
                    name,
                    not_held,
                    time_ns: sys::monotonic_ns(),
                });
            }
            (false, Some(reason)) => self.send(Event::ThreadReleased { tid, reason }),
            (false, None) => {}
        }
    }

    /// Takes a priority above a traced real-time thread, for the window process too: otherwise no
    /// stop would end while real-time threads have the processors.
    pub(super) fn outrank(&mut self, tid: u32) {
        if sys::outrank(sys::real_time_priority(tid)) && !self.place.is_ordinary() {
            let raised = sys::make_thread_urgent();
            tracing::debug!(?raised, priority = sys::capture_priority(), "real-time threads are traced");
            self.urgent_window = 0;
        }
    }

    /// The same for threads of processes seized since.
    pub(super) fn outrank_all(&mut self, now_ns: u64) {
        let is_awake = |thread: &Thread| now_ns.saturating_sub(thread.last_seen_ns) < 1_000_000_000;
        let awake = self.tracees.threads.iter().filter(|(_, thread)| is_awake(thread));
        let awake: Vec<u32> = awake.map(|(tid, _)| *tid).collect();
        awake.into_iter().for_each(|tid| self.outrank(tid));
    }

    /// Gives a new window process its priority, if the start did not.
    pub(super) fn raise_window(&mut self, window: u32) {
        if window != self.urgent_window {
            self.urgent_window = window;
            let priority = sys::capture_priority();
            if window != 0 && priority > sys::CAPTURE_PRIORITY {
                let raised = sys::make_urgent(window, priority - 1);
                tracing::debug!(?raised, "window process");
            }
        }
    }

    /// Tells the kernel side that a seized thread may be stopped.
    fn announce_held(&mut self, tid: u32) -> anyhow::Result<()> {
        self.kernel.hold(tid, proc::start_ticks(tid)?)?;
        if let Some(thread) = self.tracees.threads.get_mut(&tid) {
            (thread.held, thread.announces_clones) = (true, true);
        }
        Ok(())
    }

    fn settled(&mut self, tid: u32) {
        if let Some(thread) = self.tracees.threads.get_mut(&tid) {
            thread.settling_since_ns = None;
        }
    }

    /// A sampled thread's process is seized when it has settled. Returns whether the thread is seized
    /// now and was not.
    pub(super) fn seize_if_settled(&mut self, record: &SampleRecord) -> bool {
        let (tgid, tid) = (record.header.tgid, record.header.tid);
        let Some(thread) = self.tracees.threads.get(&tid) else { return false };
        let has_worked = || sys::process_cpu_ns(tgid).is_ok_and(|used_ns| used_ns > SETTLE_CPU_NS);
        let is_settled = |since_ns| {
            let age_ns = record.header.time_ns.saturating_sub(since_ns);
            age_ns > LOADING_NS
                || (age_ns > SETTLE_NS && has_worked() && !proc::is_loading(tgid, record.regs.rip))
        };
        if !thread.settling_since_ns.is_some_and(is_settled) {
            return false;
        }
        if let Err(error) = self.attach(tgid) {
            tracing::debug!("process {tgid} not seized: {error}");
        }
        self.tracees.threads.get(&tid).is_some_and(|thread| thread.held)
    }

    /// The sample at which a thread was seized came too early for a stop: another follows it at
    /// once and takes its place.
    pub(super) fn sample_again(&mut self, tid: u32, first: Box<(SampleRecord, Vec<u8>)>) {
        self.give_up_again(tid);
        let source = Source { user_only: true, ..Source::clock() };
        let clock = open(&source, tid as i32, -1, AGAIN_NS).map_err(anyhow::Error::from);
        let clock = clock.and_then(|clock| {
            clock.event.set_program(self.kernel.program_fd("sample")?)?;
            clock.enable()?;
            Ok(clock)
        });
        match (clock, self.tracees.threads.get_mut(&tid)) {
            (Ok(clock), Some(thread)) => thread.again = Some(SecondSample { clock, first }),
            (clock, _) => {
                if let Err(error) = clock {
                    tracing::debug!("thread {tid} not sampled again: {error:#}");
                }
                self.send_unseized_sample(*first, "not held yet");
            }
        }
    }

    /// Ends the wait for the replacing sample, if this is the one. Returns whether the sample
    /// counts: its clock may have ticked twice before the close.
    pub(super) fn end_again(&mut self, record: &SampleRecord) -> bool {
        if record.address != 0 || record.period != AGAIN_NS {
            return true;
        }
        let thread = self.tracees.threads.get_mut(&record.header.tid);
        let first = thread.and_then(|thread| thread.again.take());
        let count = if first.is_some() {
            &self.costs.sampling.replaced_samples
        } else {
            &self.costs.sampling.surplus_samples
        };
        add(count, 1);
        first.is_some()
    }

    /// No second samples from now on.
    pub(super) fn flush_again(&mut self) {
        let threads: Vec<u32> = self.tracees.threads.keys().copied().collect();
        threads.into_iter().for_each(|tid| self.give_up_again(tid));
    }

    /// The replacing sample will not come.
    pub(super) fn give_up_again(&mut self, tid: u32) {
        let again = self.tracees.threads.get_mut(&tid).and_then(|thread| thread.again.take());
        if let Some(again) = again {
            self.send_unseized_sample(*again.first, "not held yet");
        }
    }

    /// Takes in a thread that ptrace did not announce: of an unseized process, or in a traced cgroup.
    pub(super) fn meet(&mut self, tgid: u32, tid: u32) {
        let is_known = self.tracees.threads.contains_key(&tid);
        if is_known || proc::status(tid).is_err() || self.why_spared(tgid).is_some() {
            return;
        }
        if !self.tracees.processes.contains_key(&tgid) && self.exclude(tgid) {
            self.pending.remove(tid);
            return;
        }
        let newborn = self.pending.get(tid);
        let is_newborn = newborn.is_some() && !self.tracees.processes.contains_key(&tgid);
        let holding = match self.tracees.processes.get(&tgid) {
            Some(process) => {
                let siblings = process.threads.iter().filter_map(|tid| self.tracees.threads.get(tid));
                // A resting sibling does not keep this thread from being seized.
                let now_ns = sys::monotonic_ns();
                let settling = siblings.filter_map(|thread| thread.settling_since_ns);
                match settling.filter(|since_ns| *since_ns <= now_ns).max() {
                    Some(since_ns) => Some(Holding::Later(since_ns)),
                    None => self.seize(tid, process.unfit.as_deref()),
                }
            }
            None => Some(match (self.later(), newborn) {
                (Holding::Later(_), Some(newborn)) => Holding::Later(newborn.born_ns),
                (holding, _) => holding,
            }),
        };
        if let Some(holding) = holding {
            // A newborn thread that ended just now stays in the list until its end is counted.
            self.pending.remove(tid);
            self.adopt(tgid, tid, holding);
        }
        if let Some(process) = self.tracees.processes.get_mut(&tgid).filter(|_| is_newborn) {
            process.is_newborn = true;
        }
    }

    /// Takes in a newborn thread whose birth came through the ring, even after its end: the end
    /// follows the birth in the ring.
    pub(super) fn meet_newborn(&mut self, tgid: u32, tid: u32) {
        self.meet(tgid, tid);
        let is_new = !self.tracees.threads.contains_key(&tid) && self.why_spared(tgid).is_none();
        if is_new && (self.tracees.processes.contains_key(&tgid) || !self.exclude(tgid)) {
            self.adopt(tgid, tid, self.later());
        }
    }

    /// The process runs another program: its other threads are gone, addresses have new meanings,
    /// and the new program is left alone at first.
    pub(super) fn become_another_program(&mut self, tgid: u32) {
        if self.exclude(tgid) {
            return;
        }
        if let Some(heap) = &self.settings.heap {
            heap.exec(tgid, sys::monotonic_ns());
        }
        self.end_process_watches(tgid);
        self.forget_windows(tgid);
        if !self.tracees.threads.contains_key(&tgid) {
            // The leader had ended; the process lives on.
            self.adopt(tgid, tgid, self.later());
        }
        let threads = self.tracees.processes.get(&tgid).map(|process| process.threads.clone());
        // The leader is what goes on, whichever thread made the call; its process stays a target.
        for other in threads.into_iter().flatten().filter(|other| *other != tgid) {
            self.forget_thread(other);
        }
        self.give_up_again(tgid);
        self.kernel.unhold(tgid);
        if let Err(error) = self.kernel.add_target(tgid) {
            tracing::debug!("process {tgid} not measured after exec: {error:#}");
        }
        if let Some(thread) = self.tracees.threads.get_mut(&tgid) {
            (thread.held, thread.announces_clones) = (false, false);
        }
        self.send(Event::Exec { pid: tgid });
        self.adopt(tgid, tgid, self.later());
    }

    fn later(&self) -> Holding {
        match self.settings.no_stops {
            Some(reason) => Holding::Never(reason.to_owned()),
            None => Holding::Later(sys::monotonic_ns()),
        }
    }

    /// Removes threads whose end nobody reports, because a full ring may have lost the record.
    pub(super) fn forget_the_dead(&mut self) {
        let unheld = self.tracees.threads.iter().filter(|(_, thread)| !thread.held);
        let dead: Vec<u32> = unheld.map(|(tid, _)| *tid).filter(|tid| !proc::exists(*tid)).collect();
        for tid in &dead {
            self.forget_thread(*tid);
        }
        if !dead.is_empty() {
            self.send_if_alone();
        }
    }
}
