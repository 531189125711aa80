//! The capture thread's loop and its commands.

use std::{
    io,
    os::fd::AsRawFd as _,
    sync::{Arc, mpsc},
    thread::JoinHandle,
};

use anyhow::{Context as _, Result};
use locality_arbiter::Policy;
use locality_common::counter;
use tokio::sync::mpsc as async_mpsc;

use super::{
    access_counters::Places,
    armed_cost::ArmedCost,
    aside::Aside,
    code_tables::SharedCode,
    counters::{Costs, add},
    cpu_affinity::Place,
    events::{EndOutcome, Ended, Event, WatchEnd},
    excluded::ExcludedProcesses,
    exclusions::Exclusions,
    pending_tracees::{PendingTracees, YOUTH},
    shared_regions::SharedRegions,
    tracees::Tracees,
    trap_cost::TrapCost,
    watchpoints::{Watch, Watches},
    windows::{Wanted, Windows},
};
use locality_heap::Heap;
use locality_kernel::{
    object::{Object, Ring},
    perf::Event as PerfEvent,
    ptrace, records,
    sources::counters::Counting,
    sys,
};

/// Most ring records in one turn, to bound the wait of a stopped thread. A watch and its companions
/// may have 256 passed touches, which the ring reports without a wake-up.
const RECORDS_A_TURN: usize = 512;

/// Each report of ptrace comes with a signal. Without a signal, ptrace is asked at this interval.
const ASK_NS: u64 = 100_000_000;

/// Why no thread is stopped without a watchdog.
pub const UNGUARDED: &str = "there is no watchdog process";

/// So many turns of the loop without a sign of life of the watchdog are a loss, some tenths of a second.
const SILENT_TURNS: u32 = 10;

/// Options of the command line for the capture thread, and state shared with the recorder.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Who gets the debug registers.
    pub policy: Policy,
    /// Longest time that a thread may be stopped for arming.
    pub max_stop_ns: u64,
    /// Who is never traced.
    pub spared: Exclusions,
    /// Whether processes were named, or commands: then others are not met.
    pub named: bool,
    /// Debug registers of each thread that watches may take.
    pub registers: u8,
    /// Why no thread may be stopped, if so.
    pub no_stops: Option<&'static str>,
    /// Who is not seized for a while.
    pub aside: Aside,
    /// Receives the process id of each debugger that starts, from an object that reports them.
    pub debuggers: async_mpsc::UnboundedSender<u32>,
    /// Whether unseized threads may be watched: a trap without its cause would end them.
    pub watch_unheld: bool,
    /// Whether touches by the kernel are passed over.
    pub user_only: bool,
    /// Calibrated cost of one trap.
    pub trap_cost_ns: u64,
    /// The part of a trap outside of the recording program.
    pub gap_cost_ns: u64,
    /// What the last trap or reading of an event costs beyond that.
    pub disarm_cost_ns: u64,
    /// Calibrated cost of one clock tick.
    pub tick_cost_ns: u64,
    /// Calibrated cost of one reading of a meter.
    pub meter_cost_ns: u64,
    /// Words for the meters to read, chosen by the recorder.
    pub wanted: Wanted,
    /// The code that windows refer to, for the recorder.
    pub code: SharedCode,
    /// Memory shared by traced processes, located by the recorder.
    pub shared: SharedRegions,
    /// Is notified of processes, where allocations are followed.
    pub heap: Option<Heap>,
    /// How this machine counts accesses, if at all.
    pub counting: Option<Counting>,
    /// Share of a thread's time that stops for the program's own signals and births may cost before
    /// the thread is released.
    pub budget: f64,
    /// What of the time in a string instruction is lost while a watch is armed.
    pub string_lost: f64,
    /// Time more for a store across cache lines while a watch is armed, in nanoseconds.
    pub split_store_ns: f64,
    /// Time more for a switch from a thread to another and back while a watch is armed.
    pub switch_ns: u64,
}

/// What the controller may ask for.
#[derive(Debug)]
pub enum Command {
    /// Traces a process with all threads; answers with the number of seized threads.
    Attach(u32, tokio::sync::oneshot::Sender<io::Result<usize>>),
    /// Leaves a process out, if a pattern of `--exclude` matches it.
    Exclude(u32),
    /// Report the end of this process as the launched command's.
    Launched(u32),
    /// End: disarm everything, drain the ring, release the targets. The thread's state can be started again.
    Finish,
}

/// The running capture thread.
#[derive(Debug)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
    waker: Arc<sys::Waker>,
    thread: Option<JoinHandle<Capture>>,
}

impl Handle {
    /// Sends a command; false when the thread has ended.
    pub fn send(&self, command: Command) -> bool {
        let sent = self.commands.send(command).is_ok();
        self.waker.wake();
        sent
    }

    /// Waits for the thread's end and takes its state back. The end of the thread released every target.
    pub fn join(&mut self) -> Result<Capture> {
        let thread = self.thread.take().context("the capture thread has ended")?;
        thread.join().map_err(|_| anyhow::anyhow!("the capture thread panicked"))
    }
}

/// State of the capture thread.
pub struct Capture {
    pub(super) kernel: Object,
    ring: Ring,
    pub(super) settings: Settings,
    pub(super) tracees: Tracees,
    pub(super) watches: Watches,
    pub(super) places: Places,
    pub(super) costs: Arc<Costs>,
    /// Absent where windows cannot be taken.
    pub(super) windows: Option<Windows>,
    pub(super) random: fastrand::Rng,
    /// Room for a thread's vector registers.
    pub(super) extended_state: Vec<u8>,
    events: async_mpsc::Sender<Event>,
    pub(super) heartbeat: Arc<crate::watchdog::Heartbeat>,
    pub(super) launched: Option<u32>,
    /// Set once a target existed, to give "none left" a meaning.
    pub(super) had_targets: bool,
    pub(super) programs: TouchProgram,
    pub(super) trap_cost: TrapCost,
    pub(super) place: Place,
    pub(super) armed_cost: ArmedCost,
    /// The window process with its priority set.
    pub(super) urgent_window: u32,
    /// Turns of the loop in a row that found no sign of life of the watchdog.
    silent_turns: u32,
    restored_ns: u64,
    /// When ptrace was last asked for reports.
    asked_ns: u64,
    /// When it last waited for reports until then.
    pub(super) woken_ns: u64,
    /// How many CPUs there are.
    pub(super) processors: usize,
    /// Who was born lately.
    pub(super) pending: PendingTracees,
    /// Who matches a pattern of `--exclude`.
    pub(super) excluded: ExcludedProcesses,
    /// Ended processes that the controller does not know of yet.
    pub(super) ended: Vec<Ended>,
    /// Counters of the kernel side when this run began.
    pub(super) before: [u64; counter::COUNT as usize],
    /// Messages that the controller must receive although its queue was full.
    unheard: std::cell::RefCell<Vec<Event>>,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("members", &self.tracees).finish_non_exhaustive()
    }
}

/// The `touch` program's descriptor, stored apart from the object so that both can be borrowed.
#[derive(Debug)]
pub struct TouchProgram(std::os::fd::OwnedFd);

impl TouchProgram {
    pub(super) fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
        use std::os::fd::AsFd as _;
        self.0.as_fd()
    }
}

impl Capture {
    /// State for a loaded object.
    pub fn new(
        kernel: Object,
        ring: Ring,
        settings: Settings,
        costs: Arc<Costs>,
        heartbeat: Arc<crate::watchdog::Heartbeat>,
        mut windows: Option<Windows>,
        events: async_mpsc::Sender<Event>,
    ) -> Result<Self> {
        if let (Some(windows), Some(heap)) = (&mut windows, &settings.heap) {
            windows.subscribe(Arc::clone(heap.probed()));
        }
        let armed_cost = ArmedCost::new(
            settings.budget,
            settings.string_lost,
            (settings.split_store_ns, settings.switch_ns),
        );
        let before = kernel.counters()?;
        let programs = TouchProgram(kernel.program_fd("touch")?.try_clone_to_owned()?);
        Ok(Self {
            kernel,
            ring,
            places: Places::new(settings.counting),
            settings,
            tracees: Tracees::default(),
            watches: Watches::default(),
            costs,
            events,
            heartbeat,
            windows,
            random: fastrand::Rng::new(),
            extended_state: Vec::new(),
            launched: None,
            had_targets: false,
            programs,
            trap_cost: TrapCost::default(),
            place: Place::default(),
            armed_cost,
            woken_ns: 0,
            asked_ns: 0,
            processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            pending: PendingTracees::default(),
            excluded: ExcludedProcesses::default(),
            silent_turns: 0,
            urgent_window: 0,
            restored_ns: 0,
            ended: Vec::new(),
            unheard: std::cell::RefCell::default(),
            before,
        })
    }

    /// Says why no thread may be stopped from now on, if so. The thread must not run.
    pub fn set_no_stops(&mut self, why: Option<&'static str>) {
        self.settings.no_stops = why;
        self.silent_turns = 0;
    }

    /// Processes that are not seized from now on. The thread must not run.
    pub fn set_aside(&mut self, aside: Aside) {
        self.settings.aside = aside;
    }

    /// Nobody would free a thread from us now, should we hang: the controller has us let go of all.
    pub(super) fn lose_watchdog(&mut self) {
        if self.settings.no_stops.is_none() {
            self.settings.no_stops = Some(UNGUARDED);
            if let Err(error) = self.kernel.beat(0) {
                tracing::debug!("stops are not forbidden: {error:#}");
            }
            self.send(Event::Unguarded);
        }
    }

    /// Starts the thread. `SIGCHLD` must be blocked in the calling thread.
    pub fn start(mut self) -> Result<Handle> {
        let (sender, commands) = mpsc::channel();
        let waker = Arc::new(sys::Waker::new()?);
        let signals = sys::ChildSignals::new()?;
        let poll = sys::Poll::new()?;
        for fd in [self.ring.as_raw_fd(), signals.as_raw_fd(), waker.as_raw_fd()] {
            poll.add(fd)?;
        }
        let thread_waker = Arc::clone(&waker);
        let keeper = PerfEvent::keeper().context("cannot open a perf event")?;
        let thread = std::thread::Builder::new()
            .name(super::THREAD.into())
            .spawn(move || {
                let _keeper = keeper;
                super::ptrace_stops::warm_up();
                self.heartbeat.beats_here();
                match sys::make_thread_urgent() {
                    Ok(()) => self.place = Place::of_this_thread(),
                    Err(error) => tracing::debug!("capture thread runs at ordinary priority: {error}"),
                }
                if let Err(error) = self.run(&poll, &signals, &thread_waker, &commands) {
                    self.send(Event::Failed(format!("{error:#}")));
                }
                // Sent by this thread, and restarted in another.
                self.place = Place::default();
                self
            })
            .context("cannot start the capture thread")?;
        Ok(Handle { commands: sender, waker, thread: Some(thread) })
    }

    /// Gives back, once a second, the registers that the kernel refused: their holder may be gone.
    fn restore_registers(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.restored_ns) < 1_000_000_000 {
            return;
        }
        self.restored_ns = now_ns;
        self.read_counters();
        for process in self.tracees.processes.values_mut() {
            process.arbiter.restore();
        }
        self.forget_the_dead();
        self.review_excluded();
        self.outrank_all(now_ns);
    }

    /// Costs that leave no record in the ring.
    fn read_counters(&self) {
        let Ok(counters) = self.kernel.counters() else { return };
        let since = |index: u32| counters[index as usize].saturating_sub(self.before[index as usize]);
        let silent = [
            counter::FILTERED_STALE_WATCH,
            counter::FILTERED_EARLY_TOUCH,
            counter::FILTERED_LATE_TOUCH,
            counter::LOST_RING_FULL,
        ];
        let relaxed = std::sync::atomic::Ordering::Relaxed;
        let in_kernel = since(counter::KERNEL_TICKS);
        self.costs.sampling.in_kernel.store(in_kernel, relaxed);
        self.costs.sampling.kernel_ticks.store(in_kernel + since(counter::FILTERED_NO_ADDRESS), relaxed);
        self.costs.trap.silent_traps.store(silent.into_iter().map(since).sum(), relaxed);
        let windows_ns = self.windows.as_ref().map_or(0, Windows::cpu_ns);
        self.costs.cpu.helpers_cpu_ns.store(windows_ns + self.heartbeat.watchdog_cpu_ns(), relaxed);
    }

    fn run(
        &mut self,
        poll: &sys::Poll,
        signals: &sys::ChildSignals,
        waker: &sys::Waker,
        commands: &mpsc::Receiver<Command>,
    ) -> Result<()> {
        loop {
            let now = sys::monotonic_ns();
            self.heartbeat.beat(now);
            let window_process = self.windows.as_ref().map_or(0, Windows::pid);
            self.heartbeat.waits_for([self.place.booster(), window_process]);
            self.raise_window(window_process);
            // Without a watchdog a hanging tracer would stop a thread for ever, so no thread is
            // stopped.
            if self.heartbeat.watchdog_is_alive(now) {
                self.silent_turns = 0;
                self.kernel.beat(now)?;
            } else {
                // A machine that was suspended as a whole wakes us first.
                self.silent_turns += 1;
                if self.silent_turns == SILENT_TURNS {
                    self.lose_watchdog();
                }
            }
            self.restore_registers(now);
            if let Some(windows) = &mut self.windows {
                windows.revive();
                windows.receive(now);
            } else if let Some(probed) = self.settings.heap.as_ref().map(Heap::probed)
                && let Some(version) = probed.news()
            {
                probed.heard(version);
            }
            self.send_overdue();
            let sleep = self.update_armed_cost();
            let longest = self.place.settle();
            let longest = if self.pending.is_empty() { longest } else { longest.min(YOUTH) };
            poll.wait(sleep.map_or(longest, |sleep| sleep.min(longest)))?;
            let is_signalled = signals.clear();
            // Nothing had been reported at the beginning of the wait.
            self.woken_ns = sys::monotonic_ns();
            // Samples first: a stop needs its record.
            self.drain_ring(RECORDS_A_TURN);
            // To ask costs the kernel a look at each tracee, .1 ms where they are thousands.
            if is_signalled || self.woken_ns.saturating_sub(self.asked_ns) > ASK_NS {
                self.asked_ns = self.woken_ns;
                while let Some((tid, status)) = ptrace::next_status()? {
                    self.on_status(tid, status);
                }
            }
            self.meet_survivors();
            waker.clear();
            while let Ok(command) = commands.try_recv() {
                match command {
                    Command::Attach(pid, answer) => {
                        // Nobody listens when the controller gave up meanwhile.
                        let _ = answer.send(self.attach(pid));
                    }
                    Command::Exclude(pid) => drop(self.exclude(pid)),
                    Command::Launched(pid) => self.launched = Some(pid),
                    Command::Finish => {
                        self.finish();
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Reads at most `most` ring records.
    pub(super) fn drain_ring(&mut self, most: usize) -> usize {
        for read in 0..most {
            let Some(item) = self.ring.next() else { return read };
            let record = records::decode(&item);
            drop(item);
            add(&self.costs.loss.received, 1);
            self.on_record(record);
        }
        most
    }

    /// Sends to the controller, and counts messages beyond its speed. Indispensable messages are
    /// sent later rather than never.
    pub(super) fn send(&self, event: Event) {
        match self.events.try_send(event) {
            Ok(()) => {}
            Err(async_mpsc::error::TrySendError::Full(event)) if event.is_essential() => {
                self.unheard.borrow_mut().push(event);
            }
            Err(error) => {
                add(&self.costs.loss.controller_behind, 1);
                tracing::debug!("event not sent: {error}");
            }
        }
    }

    fn send_overdue(&self) {
        for event in self.unheard.take() {
            self.send(event);
        }
    }

    /// Takes a watch out of every book and reports how it ended.
    pub(super) fn end_watch(&mut self, mut watch: Watch, p_survive: f64, ended_ns: u64, outcome: EndOutcome) {
        self.disarm(&mut watch, ended_ns);
        if watch.measures_trap {
            self.send(Event::TrapCostMeasured(watch.tgid, watch.address));
            return;
        }
        // The watch was waiting for touches after its reuse only.
        let (ended_ns, outcome) = match watch.reused.take() {
            Some((reuse, _)) => (reuse.trap.record.header.time_ns, EndOutcome::Reused(reuse)),
            None => (ended_ns, outcome),
        };
        if watch.follows.is_none() {
            self.trap_cost.note_end(match &outcome {
                EndOutcome::Reused(reuse) => Some(reuse.distance.ns),
                _ => None,
            });
        }
        let counter = match outcome {
            EndOutcome::Reused(..) => &self.costs.watch.trapped,
            EndOutcome::Replaced | EndOutcome::StillArmed | EndOutcome::Gone => &self.costs.watch.censored,
            EndOutcome::Refused => &self.costs.watch.refused,
        };
        add(counter, 1);
        let end = WatchEnd {
            watch: watch.id,
            tgid: watch.tgid,
            address: watch.address,
            armed_ns: watch.armed_ns,
            ended_ns,
            used: watch.used.take().map(|(trap, _)| trap),
            held: watch.owner != 0,
            p_arm: watch.p_arm,
            p_survive,
            threads_armed: watch.threads_armed,
            threads_alive: watch.threads_alive,
            also_in: watch.guests.iter().map(|guest| (guest.tgid, guest.address)).collect(),
            outcome,
        };
        self.send(Event::WatchEnded(Box::new(end)));
    }

    /// Frees a watch' register; a trap may have done so at `ended_ns`.
    pub(super) fn disarm(&mut self, watch: &mut Watch, ended_ns: u64) {
        watch.disarm();
        self.kernel.remove_watch(&watch.key());
        if let Some(process) = self.tracees.processes.get_mut(&watch.tgid) {
            process.watched.remove(&watch.address);
            if process.watched.is_empty() {
                self.note_disarmed(watch.tgid, ended_ns);
            }
        }
        for guest in &watch.guests {
            self.forget_guest(guest, ended_ns);
        }
    }

    /// Ends all watches of a process that is gone or runs another program.
    pub(super) fn end_process_watches(&mut self, tgid: u32) {
        let Some(process) = self.tracees.processes.get_mut(&tgid) else { return };
        for ended in process.arbiter.drain() {
            if !self.leave(ended.id.0, tgid) {
                self.give_up(ended, EndOutcome::Gone);
            }
        }
        self.end_companions(tgid, || EndOutcome::Gone);
    }

    /// Disarms everything, then reads the rest of the ring, so that the ledger balances.
    fn finish(&mut self) {
        // No stop is asked for from here on; those under way are served before anything is
        // disarmed, since they may arm.
        let forbidden = self.kernel.beat(0);
        tracing::debug!(?forbidden, "finishing");
        self.drain_ring(usize::MAX);
        self.flush_again();
        while let Ok(Some((tid, status))) = ptrace::next_status() {
            self.on_status(tid, status);
        }
        let tgids: Vec<u32> = self.tracees.processes.keys().copied().collect();
        for watch in self.watches.iter_mut() {
            watch.disarm();
        }
        self.drain_ring(usize::MAX);
        for tgid in tgids {
            let Some(process) = self.tracees.processes.get_mut(&tgid) else { continue };
            for ended in process.arbiter.drain() {
                self.give_up(ended, EndOutcome::StillArmed);
            }
            self.end_companions(tgid, || EndOutcome::StillArmed);
        }
        self.flush_awaited();
        locality_kernel::lock::lock(&self.costs.cpu.ended).append(&mut self.ended);
        // The kernel releases the threads at the end of this thread.
        let tids: Vec<u32> = self.tracees.threads.keys().copied().collect();
        for tid in tids {
            self.kernel.unhold(tid);
            if let Some(place) = self.tracees.threads.get(&tid).and_then(|thread| thread.counted) {
                self.places.end(&mut self.kernel, tid, place);
            }
        }
        self.tracees = Tracees::default();
        self.end_armed_cost();
    }

    /// Detaches the programs of births and deaths, after which nothing writes to the ring.
    pub fn end_lifecycle(&mut self) {
        self.kernel.detach_lifecycle();
    }

    /// Counters of the kernel side.
    pub fn kernel_counters(&self) -> Result<[u64; counter::COUNT as usize]> {
        self.kernel.counters()
    }

    /// Reads the rest of the ring, after the last writer.
    pub fn drain_rest(&mut self) {
        self.drain_ring(usize::MAX);
        self.read_counters();
    }
}
