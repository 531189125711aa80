//! A trace from start to profile: prepares, runs until something ends it, closes the books.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use locality_analysis::model::{Mode, Overhead, Profile, Run, Sources};
use locality_common::rules::START_TICK_NS;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot},
};

use super::{
    assemble::{Assembler, Tally},
    calibrate,
    clock::Clock,
    governor::{self, Governor, Prices, Spending},
    host, launch, ledger,
    progress::Progress,
    store::{Store, Summary},
};
use crate::{
    capture::{
        Capture, Command, Handle, Settings,
        event::{Costs, Event, get},
    },
    guard,
    kernel::{
        btf,
        object::{Filter, Object},
        proc, sys,
    },
    plan::{Plan, Targets, check_rights},
};

/// Events that may wait between capture and assembler; each may carry a copy of a stack.
const QUEUE: usize = 1024;

/// How often the governor looks and the profile is written.
const TICK: Duration = Duration::from_millis(100);

/// How often all that was collected goes to the file, with what is known only at the end, in case that the end never
/// comes: a killed trace lacks at most a second, and a busy machine adds to this.
const SUMMARY_EVERY: Duration = Duration::from_millis(500);

/// Most other threads of a process in which a watch is armed.
const SIBLINGS: usize = 16;

/// How a trace ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was collected.
    pub profile: Profile,
    /// The launched command.
    pub command: Option<launch::Started>,
    /// Why the file lacks rows that the profile has, if so.
    pub unwritten: Option<String>,
    /// The profile file.
    pub file: std::path::PathBuf,
}

/// CPU time of the targets, the ended ones as last read.
#[derive(Debug, Default)]
struct CpuTimes(HashMap<u32, (u64, u64)>);

impl CpuTimes {
    /// Counts a process from `base_ns` of its CPU time on.
    fn add(&mut self, pid: u32, base_ns: u64) {
        self.0.entry(pid).or_insert((base_ns, base_ns));
    }

    /// Counts a process that was met during the trace: all of its time when it was born after `start_ticks`, else what
    /// it uses from now on.
    fn meet(&mut self, pid: u32, start_ticks: u64) {
        if !self.0.contains_key(&pid) {
            let born = proc::start_ticks(pid).unwrap_or(u64::MAX);
            let base_ns = if born >= start_ticks { 0 } else { sys::process_cpu_ns(pid).unwrap_or(0) };
            self.add(pid, base_ns);
        }
    }

    fn read(&mut self) -> u64 {
        for (pid, (_, last_ns)) in &mut self.0 {
            // An ended process keeps its last reading.
            *last_ns = sys::process_cpu_ns(*pid).unwrap_or(0).max(*last_ns);
        }
        self.0.values().map(|(base_ns, last_ns)| last_ns - base_ns).sum()
    }
}

/// What the assembler thread shows to the controller.
#[derive(Debug, Default)]
struct Shown {
    tally: Tally,
    failed: Option<String>,
    pids: HashSet<u32>,
    /// For the file, taken at the next [`Event::Second`].
    summary: Option<Summary>,
}

/// What ends a trace, as the assembler saw it.
#[derive(Debug)]
enum Notable {
    CommandEnded(i32),
    NoTargets,
    Failed(String),
    Unguarded,
}

/// Measures the prices of this machine alone. Must be called while the process has one thread.
pub fn calibrate() -> Result<Prices> {
    check_rights()?;
    let (mut object, mut ring) = Object::load(&Filter::Processes, &btf::kernel_offsets()?)?;
    calibrate::measure(&mut object, &mut ring)
}

/// Runs a trace. Must be called while the process has one thread.
pub fn run(plan: &Plan) -> Result<Outcome> {
    sys::block_sigchld().context("cannot block SIGCHLD")?;
    let heartbeat = Arc::new(guard::start().context("cannot start the watchdog process")?);
    let launched = match &plan.targets {
        Targets::Command(words) => {
            // Before there is a profile file that would replace an earlier one for nothing.
            launch::find(words)?;
            Some(launch::prepare(words).context("cannot fork")?)
        }
        _ => None,
    };
    let offsets = btf::kernel_offsets()?;
    let (mut object, mut ring) = Object::load(&plan.filter(), &offsets)?;
    let prices = calibrate::measure(&mut object, &mut ring)?;
    tracing::debug!(?prices, "calibrated");
    let store = Store::create(&plan.profile)
        .context("the profile cannot be written; name another place for it with -o FILE")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let trace = Trace { plan, prices, costs: Arc::default(), heartbeat };
    runtime.block_on(trace.run(object, ring, store, launched))
}

/// A running trace.
struct Trace<'a> {
    plan: &'a Plan,
    prices: Prices,
    costs: Arc<Costs>,
    heartbeat: Arc<guard::Heartbeat>,
}

impl Trace<'_> {
    async fn run(
        self,
        mut object: Object,
        ring: crate::kernel::object::Ring,
        store: Store,
        launched: Option<launch::Launched>,
    ) -> Result<Outcome> {
        // From here on SIGTSTP lets the targets go before it stops us.
        let mut signals = Signals::new()?;
        // Before anything can write to the ring: what is read from it must have been counted.
        let before = object.counters()?;
        object.attach_lifecycle()?;
        let mut governor = Governor::new(self.plan.overhead_percent / 100.0, self.prices);
        let mut clock = Clock::open(&object, governor::period_ns(governor.rate(), 0))?;
        let started = Started::now(self.plan);
        let (events, queue) = mpsc::channel(QUEUE);
        let settings = Settings {
            policy: self.plan.policy,
            max_stop_ns: self.plan.max_stop.as_nanos() as u64,
            no_stops: (!self.plan.may_stop).then_some("--no-stop"),
            watch_unheld: self.plan.watch_unheld,
            siblings: SIBLINGS,
            trap_cost_ns: self.prices.trap_ns,
            tick_cost_ns: self.prices.tick_ns,
            budget: self.plan.overhead_percent / 100.0,
        };
        let capture = Capture::new(
            object,
            ring,
            settings,
            Arc::clone(&self.costs),
            Arc::clone(&self.heartbeat),
            events.clone(),
        )?;
        let mut handle = capture.start()?;
        let file = store.path();
        let shown = Arc::new(Mutex::new(Shown::default()));
        let (assembler, mut notables) = start_assembler(queue, store, started.mono_ns, Arc::clone(&shown))?;
        let mut cpu = CpuTimes::default();
        let pids = self.attach(&handle, launched.as_ref(), &mut cpu).await?;
        clock.start()?;
        let launched_pid = launched.as_ref().map(|launched| launched.pid);
        if let (Some(launched), Targets::Command(words)) = (launched, &self.plan.targets) {
            launched.go().map_err(|error| launch::CannotRun::new(words, error))?;
        }

        let mut progress = Progress::new(self.plan.quiet);
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let until = self.plan.duration.map(|duration| Instant::now() + duration);
        let mut command_status = None;
        let mut summary_due = Instant::now();
        let ended_by = loop {
            tokio::select! {
                biased;
                _ = signals.interrupt.recv() => break "Ctrl-C".to_owned(),
                _ = signals.terminate.recv() => break "SIGTERM".to_owned(),
                _ = signals.hangup.recv() => break "SIGHUP".to_owned(),
                _ = signals.pause.recv() => {
                    clock.stop();
                    progress.clear();
                    handle = self.start_afresh(handle, &pids, &shown, true).await?;
                    clock.start()?;
                }
                notable = notables.recv() => match notable {
                    Some(Notable::CommandEnded(status)) => {
                        command_status = Some(status);
                        break "the command ended".to_owned();
                    }
                    Some(Notable::Unguarded) => {
                        handle = self.start_afresh(handle, &pids, &shown, false).await?;
                    }
                    Some(Notable::NoTargets) => break "the last traced process ended".to_owned(),
                    Some(Notable::Failed(why)) => break why,
                    None => break "the assembler thread ended".to_owned(),
                },
                _ = ticks.tick() => {
                    if until.is_some_and(|until| Instant::now() >= until) {
                        break "the asked duration".to_owned();
                    }
                    let state = lock(&shown);
                    for pid in &state.pids {
                        cpu.meet(*pid, started.ticks);
                    }
                    if let Some(why) = &state.failed {
                        break why.clone();
                    }
                    let spending = self.spending(&mut cpu);
                    let rate = governor.steer(spending);
                    let now = sys::monotonic_ns();
                    clock.steer(governor::period_ns(rate, now), now);
                    progress.show(&progress_line(&started, &state.tally, &spending, self.prices, self.plan));
                    drop(state);
                    if Instant::now() >= summary_due {
                        summary_due = Instant::now() + SUMMARY_EVERY;
                        self.write_summary(&events, &shown, &started, &pids, &spending, &governor);
                    }
                }
            }
        };
        progress.clear();
        clock.stop();
        if let (Some(pid), None, "SIGTERM") = (launched_pid, command_status, ended_by.as_str()) {
            // Who ends us means the command; Ctrl-C and a closed terminal reach it by themselves.
            launch::Started { pid, status: None }.signal(libc::SIGTERM);
        }
        handle.send(Command::Finish);
        let mut capture = handle.join()?;
        capture.end_lifecycle();
        capture.drain_rest();
        let after = capture.kernel_counters()?;
        let spending = self.spending(&mut cpu);
        // Without senders the queue is closed, and the assembler ends when it has read it.
        drop((capture, events));
        let mut assembler_end = tokio::task::spawn_blocking(move || assembler.join())
            .await?
            .map_err(|_| anyhow::anyhow!("the assembler thread panicked"))?;
        while let Ok(notable) = notables.try_recv() {
            // Its status was collected while the trace ended for another reason.
            if let Notable::CommandEnded(status) = notable {
                command_status = Some(status);
            }
        }
        let command = launched_pid.map(|pid| launch::Started { pid, status: command_status });
        let tally = lock(&shown).tally.clone();
        let summary = Summary {
            run: self.describe_run(&started, pids, &spending, &tally, ended_by, &governor),
            ledger: ledger::close(&before, &after, &self.costs, &tally),
            overhead: self.overhead(&spending),
            notices: self.notices(&tally, &after, &before),
        };
        assembler_end.summary(&summary);
        let (mut profile, unwritten) = assembler_end.finish()?;
        if let Some(why) = &unwritten {
            profile.notices.insert(
                0,
                format!("The trace ended early because its file could not be written ({why}); this report has everything that was collected, the file may not."),
            );
        }
        Ok(Outcome { profile, command, unwritten, file })
    }

    /// Has the file hold, once a second, all that a killed tracer could not write any more.
    fn write_summary(
        &self,
        events: &mpsc::Sender<Event>,
        shown: &Mutex<Shown>,
        started: &Started,
        pids: &[u32],
        spending: &Spending,
        governor: &Governor,
    ) {
        let mut state = lock(shown);
        let tally = &state.tally;
        let summary = Summary {
            run: self.describe_run(started, pids.to_vec(), spending, tally, String::new(), governor),
            overhead: self.overhead(spending),
            ..Summary::default()
        };
        state.summary = Some(summary);
        drop(state);
        // Where the queue is full, the assembler is busy writing anyway.
        let _ = events.try_send(Event::Second);
    }

    /// Attaches to the targets; returns their process ids.
    async fn attach(
        &self,
        handle: &Handle,
        launched: Option<&launch::Launched>,
        cpu: &mut CpuTimes,
    ) -> Result<Vec<u32>> {
        let pids = match (&self.plan.targets, launched) {
            (Targets::Processes(pids), _) => pids.clone(),
            (_, Some(launched)) => vec![launched.pid],
            _ => return Ok(Vec::new()),
        };
        if let Some(launched) = launched {
            handle.send(Command::Launched(launched.pid));
        }
        for pid in &pids {
            cpu.add(*pid, sys::process_cpu_ns(*pid).unwrap_or(0));
            let (answer, held) = oneshot::channel();
            handle.send(Command::Attach(*pid, answer));
            match held.await {
                Ok(Ok(held)) => tracing::debug!("process {pid}: {held} threads held"),
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::NotFound => bail!(
                    "cannot trace process {pid}: it ended at once; `locality-bpf -- COMMAND` traces a command from its start"
                ),
                Ok(Err(error)) => bail!("cannot trace process {pid}: {error}"),
                Err(_) => bail!("the capture thread ended while it attached to process {pid}"),
            }
        }
        Ok(pids)
    }

    /// Lets every target go and attaches again; for Ctrl-Z, stops in between until continued.
    async fn start_afresh(
        &self,
        handle: Handle,
        pids: &[u32],
        shown: &Mutex<Shown>,
        stop: bool,
    ) -> Result<Handle> {
        handle.send(Command::Finish);
        let capture = handle.join()?;
        if stop {
            // SAFETY: a system call with plain arguments. It returns when somebody continues us.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
        let handle = capture.start()?;
        let mut all: HashSet<u32> = lock(shown).pids.clone();
        all.extend(pids);
        for pid in all.into_iter().filter(|pid| proc::status(*pid).is_ok()) {
            let (answer, held) = oneshot::channel();
            handle.send(Command::Attach(pid, answer));
            // A process that ended meanwhile is reported as ended, not as an error.
            let _ = held.await;
        }
        Ok(handle)
    }

    fn spending(&self, cpu: &mut CpuTimes) -> Spending {
        let costs = &self.costs;
        let samples = get(&costs.samples);
        Spending {
            stop_ns: get(&costs.stop_ns),
            imposed_ns: get(&costs.imposed_ns),
            traps: get(&costs.traps),
            ticks: samples + get(&costs.kernel_ticks),
            samples,
            cpu_ns: cpu.read(),
        }
    }

    fn overhead(&self, spending: &Spending) -> Overhead {
        Overhead {
            budget_percent: self.plan.overhead_percent,
            measured_percent: spending.share(self.prices) * 100.0,
            stop_ns: spending.stop_ns + spending.imposed_ns,
            trap_ns: spending.traps * self.prices.trap_ns,
            bpf_ns: spending.ticks * self.prices.tick_ns,
            controller_ns: sys::own_cpu_ns(),
            stops: get(&self.costs.stops),
            longest_stop_ns: get(&self.costs.longest_stop_ns),
            max_stop_ns: self.plan.max_stop.as_nanos() as u64,
        }
    }

    fn describe_run(
        &self,
        started: &Started,
        pids: Vec<u32>,
        spending: &Spending,
        tally: &Tally,
        ended_by: String,
        governor: &Governor,
    ) -> Run {
        let address = match (tally.held, tally.not_held) {
            (0, 0) => "none",
            (_, 0) => "zero-skid stop",
            (0, _) => "sampled registers",
            _ => "zero-skid stop, sampled registers",
        };
        Run {
            command: started.command.clone(),
            pids,
            started_unix_ns: started.unix_ns,
            started_mono_ns: started.mono_ns,
            wall_ns: sys::monotonic_ns() - started.mono_ns,
            cpu_ns: spending.cpu_ns,
            host: host::describe(),
            mode: Mode::Live,
            sources: Sources {
                address: address.to_owned(),
                rate: None,
                clock: format!("cpu-clock, {:.0} Hz at the end", governor.rate()),
            },
            ended_by,
            policy: self.plan.policy.to_string(),
            distance_resolution_ns: self.prices.trap_ns,
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    fn notices(&self, tally: &Tally, after: &ledger::Counters, before: &ledger::Counters) -> Vec<String> {
        use locality_common::counter::TARGETS_FULL;
        let mut notices = Vec::new();
        let mut reasons: Vec<_> = tally.not_held_threads.iter().collect();
        reasons.sort();
        for (reason, threads) in reasons {
            notices.push(match self.plan.watch_unheld {
                true => format!(
                    "{threads} threads were measured without stops ({reason}): their watchpoints were armed some 100 µs \
                     late and the first trap was taken as the use, so reuses shorter than that are missing."
                ),
                false => format!(
                    "{threads} threads were sampled without stops and not watched ({reason}): in a virtual machine a \
                     watchpoint can end a thread that is not held; --watch-unheld takes that risk."
                ),
            });
        }
        let behind = get(&self.costs.controller_behind);
        if behind > 0 {
            notices
                .push(format!("{behind} events were dropped because symbolisation was too slow for them."));
        }
        let unknown = get(&self.costs.unknown_records);
        if unknown > 0 {
            notices.push(format!("{unknown} records of an unknown kind were ignored."));
        }
        let full = after[TARGETS_FULL as usize] - before[TARGETS_FULL as usize];
        if full > 0 {
            notices.push(format!("{full} new processes were not followed: more than 65536 at once."));
        }
        notices
    }
}

/// When the trace began and what it traced then.
struct Started {
    unix_ns: u64,
    mono_ns: u64,
    /// In the unit and on the clock of a process's start time.
    ticks: u64,
    command: String,
}

impl Started {
    fn now(plan: &Plan) -> Self {
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self {
            unix_ns: unix.as_nanos() as u64,
            mono_ns: sys::monotonic_ns(),
            ticks: sys::boottime_ns() / START_TICK_NS,
            command: plan.describe(),
        }
    }
}

/// The signals that end or pause a trace.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    pause: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            pause: signal(SignalKind::from_raw(libc::SIGTSTP))?,
        })
    }
}

fn progress_line(
    started: &Started,
    tally: &Tally,
    spending: &Spending,
    prices: Prices,
    plan: &Plan,
) -> String {
    format!(
        "locality-bpf: {:.0} s, {} samples, {} reuses, {} watches without reuse, cost {:.2} % of {} % allowed (Ctrl-C ends)",
        (sys::monotonic_ns() - started.mono_ns) as f64 / 1e9,
        tally.held + tally.not_held,
        tally.trapped,
        tally.censored,
        spending.share(prices) * 100.0,
        plan.overhead_percent
    )
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type AssemblerThread = std::thread::JoinHandle<Store>;

/// Starts the thread that turns events into rows; it ends when the queue is closed and empty.
fn start_assembler(
    mut queue: mpsc::Receiver<Event>,
    store: Store,
    origin_ns: u64,
    shown: Arc<Mutex<Shown>>,
) -> Result<(AssemblerThread, mpsc::UnboundedReceiver<Notable>)> {
    let (notify, notables) = mpsc::unbounded_channel();
    let thread = std::thread::Builder::new()
        .name("assemble".into())
        .spawn(move || {
            let mut assembler = Assembler::new(store, origin_ns);
            while let Some(event) = queue.blocking_recv() {
                assembler.take(&event);
                if let Event::Second = event {
                    let summary = lock(&shown).summary.take();
                    assembler.store().so_far(&summary.unwrap_or_default());
                }
                let notable = match event {
                    Event::CommandEnded(status) => Some(Notable::CommandEnded(status)),
                    Event::NoTargets => Some(Notable::NoTargets),
                    Event::Failed(why) => Some(Notable::Failed(why)),
                    Event::Unguarded => Some(Notable::Unguarded),
                    Event::ThreadStarted { pid, .. } => {
                        lock(&shown).pids.insert(pid);
                        None
                    }
                    _ => None,
                };
                let mut state = lock(&shown);
                state.tally.clone_from(assembler.tally());
                state.failed = assembler.store().failed().map(str::to_owned);
                drop(state);
                if let Some(notable) = notable {
                    // The controller may have left its loop already.
                    let _ = notify.send(notable);
                }
            }
            assembler.into_store()
        })
        .context("cannot start the assembler thread")?;
    Ok((thread, notables))
}
