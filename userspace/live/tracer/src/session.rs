//! A trace from start to profile: prepares, runs until something ends it, completes the ledger.

mod afresh;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::ErrorKind,
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::ExitStatus,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use locality_model::{Profile, Run};
use locality_rate::Machine;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::{mpsc, oneshot},
};

use self::afresh::Afresh;
use super::{
    calibrate::{self, Calibration},
    calibration_cache::{self, Remembered},
    convergence::Precision,
    core_microbench,
    cpu_times::CpuTimes,
    debuggers, event_ledger,
    governor::{self, CostTotals, Governor, UnitCosts},
    plan::{Following, Plan, Targets},
    profile_sink::{Store, Summary, unwritable},
    progress::Progress,
    rate_tracking::RateTracker,
    recorder_thread::{self, AssemblerThread, Notable, Shown},
    run_summary::{self, RunSummary, Started, starved},
    sampling_clock::Clock,
    skid::{self, Skid},
};
use locality_capture::watchdog;
use locality_capture::{
    Capture, Command, Handle, Settings, SharedCode, SharedRegions, UNGUARDED, Wanted, Windows, aside::Aside,
    counters::get, events::Event, exclusions::Exclusions,
};
use locality_heap::{self as heap, HeapThread, recorder::Recorder};
use locality_kernel::{
    btf, cgroup, ending, inherited, launch,
    lock::lock,
    machine::{self, check_rights, data_caches},
    object::{EventCounts, Filter, HeapObject, Object, Ring},
    proc,
    rights::Rights,
    sources::{Cpu, EVENT_SOURCES, counters::Counting, discover, select, trial},
    sys,
};

/// Events that may wait between capture and assembler; each may carry a copy of a stack.
const QUEUE: usize = 4096;

/// How often the governor looks and the profile is written.
const TICK: Duration = Duration::from_millis(100);

/// How often all that was collected goes to the file, with what is known only at the end, in case
/// that the end never comes: a killed trace lacks at most a second, and a busy machine adds to
/// this.
const SUMMARY_EVERY: Duration = Duration::from_millis(500);

/// Share of the budget for allocation probes; the rest is for samples.
const HEAP_SHARE: f64 = 0.4;

/// Why no thread is stopped at the user's request.
const NO_STOP: &str = "--no-stop";

/// Child processes that were running before the trace and are counted.
const MOST_CHILDREN: usize = 1000;

/// How a trace ended.
#[derive(Debug)]
pub struct Outcome {
    /// What was collected.
    pub profile: Profile,
    /// The launched command.
    pub command: Option<launch::Started>,
    /// Why the file lacks rows of the profile, if so.
    pub unwritten: Option<String>,
    /// The profile file.
    pub file: std::path::PathBuf,
}

/// Measures the prices, the skid and the processor of this machine alone. Must be called while the
/// process has one thread.
pub fn calibrate() -> Result<(UnitCosts, Skid, Machine)> {
    check_rights(false)?;
    let (mut object, mut ring) = Object::load(&Filter::Processes, &btf::kernel_offsets()?)?;
    let prices = calibrate::measure(&mut object, &mut ring)?;
    let _hurry = sys::Hurry::begin();
    let machine = core_microbench::measure(&data_caches());
    if calibrate::are_plausible(&prices) {
        calibration_cache::remember(&Remembered { prices, machine });
    }
    Ok((prices, skid::measure(&mut object, &mut ring)?, machine))
}

/// Prices of this machine and, for windows, the abilities of the processor: remembered from an
/// earlier start, or measured.
fn know_machine(object: &mut Object, ring: &mut Ring, plan: &Plan, windows: bool) -> (Calibration, Machine) {
    let recalled = match plan.recalibrate {
        true => Err("--recalibrate".to_owned()),
        false => calibration_cache::recall(),
    };
    let recalled = recalled.and_then(|known| match calibrate::probe(object, ring, &known.prices) {
        Ok(true) => Ok(known),
        Ok(false) => Err("a tick costs something else now".to_owned()),
        Err(error) => Err(format!("{error:#}")),
    });
    match recalled {
        Ok(Remembered { prices, machine }) => return (Calibration { prices, guessed: None }, machine),
        Err(why) => tracing::debug!("measured anew: {why}"),
    }
    let calibration = calibrate::measure_or_guess(object, ring);
    if !windows {
        return (calibration, Machine::default());
    }
    let machine = core_microbench::measure(&data_caches());
    if calibration.guessed.is_none() {
        calibration_cache::remember(&Remembered { prices: calibration.prices, machine });
    }
    (calibration, machine)
}

/// Runs a trace. Must be called while the process has one thread.
pub fn run(plan: &Plan) -> Result<Outcome> {
    run_to_end(plan).map_err(|error| match starved() {
        // Whatever failed came too late, so the wait is part of the cause.
        Some(waited) => error.context(format!(
            "this tool had no processor for {:.1} s, because real-time programs, or many others, went before it; \
             leave one processor free of them",
            waited.as_secs_f64()
        )),
        None => error,
    })
}

/// Starts the capture thread above the priority of traced real-time threads: a thread below would
/// not run while these have all processors.
fn outrank(targets: &Targets) {
    let is_program = |pid: &u32| !proc::status(*pid).is_ok_and(|status| status.kernel_thread);
    let pids: Vec<u32> = match targets {
        Targets::Processes(pids) => pids.clone(),
        Targets::Cgroups(_, folders) => {
            folders.iter().flat_map(|folder| cgroup::processes(folder)).filter(is_program).collect()
        }
        Targets::All | Targets::Namespace => proc::all().into_iter().filter(is_program).collect(),
        Targets::Command(_) => Vec::new(),
    };
    for tid in pids.into_iter().flat_map(|pid| proc::threads(pid).unwrap_or_default()) {
        sys::outrank(sys::real_time_priority(tid));
    }
}

fn run_to_end(plan: &Plan) -> Result<Outcome> {
    sys::block_sigchld().context("cannot block SIGCHLD")?;
    let heartbeat = Arc::new(watchdog::start().context("cannot start the watchdog process")?);
    let mut preload = None;
    // Its start goes on beside the rest of ours.
    let launched = match &plan.targets {
        Targets::Command(words) => {
            // Before a profile file replaces an earlier one in vain.
            let program = launch::find(words)?;
            let mut environment = inherited::environment(&program);
            if plan.heap == Following::Preload {
                let recorder = heap::eligible::recorder(&program);
                if let Ok(recorder) = &recorder {
                    environment = recorder.files().environment(environment);
                }
                preload = Some(recorder);
            }
            Some(launch::prepare(words, &environment).context("cannot fork")?)
        }
        _ => None,
    };
    // The command is a separate process already, and retains its inherited state.
    sys::check_descriptors(sys::loosen_limits())?;
    // The end of a segment before its begin is the agent's.
    if plan.steps_aside {
        ending::by_default()
    } else {
        ending::before_trace()
    }
    let (devices, cpu) = (Path::new(EVENT_SOURCES), Cpu::own());
    let selected = select::select(&discover(devices, &cpu), plan.source, trial::samples_of)?;
    let counting = Counting::find(devices, &cpu);
    tracing::debug!(?selected, ?counting);
    let windows = match plan.windows && plan.may_stop {
        true => Some(Windows::start()),
        false => None,
    };
    if let (Some(Err(why)), Some(_)) = (&windows, plan.until_ci) {
        bail!(
            "no precision can be waited for without windows, and {why}: end the trace by -d SECONDS in place of --until-ci"
        );
    }
    outrank(&plan.targets);
    let hurry = sys::Hurry::begin();
    let offsets = btf::kernel_offsets()?;
    let (mut object, mut ring, heap) =
        Object::load_with(&plan.filter(), &offsets, plan.heap == Following::Probes)?;
    if let Some(why) = heap.as_ref().and_then(no_heap) {
        bail!("allocations cannot be probed on this kernel: {why}; leave --heap=probes out");
    }
    let (calibration, machine) = know_machine(&mut object, &mut ring, plan, matches!(windows, Some(Ok(_))));
    drop(hurry);
    tracing::debug!(?calibration, ?machine);
    let store = Store::create(&plan.profile).map_err(unwritable)?;
    let file = store.path();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // From here on SIGTSTP lets the targets go before it stops us.
        ending::by_default();
        let mut signals = Signals::new()?;
        ending::listen(&file).context("cannot listen to signals")?;
        // Before anything can write to the ring: what is read from it must have been counted.
        let before = object.counters()?;
        let spared = Exclusions::of_this_process().and(&plan.exclude);
        spared.announce(&mut object, launched.as_ref().map(|launched| launched.pid))?;
        if plan.steps_aside {
            object.report_debuggers(&debuggers::names())?;
        }
        object.attach_lifecycle()?;
        let (windows, no_windows) = match windows {
            Some(Ok(windows)) => (Some(windows), None),
            Some(Err(why)) => (None, Some(why.to_string())),
            None => (None, None),
        };
        // Probes were refused above where they were asked for and cannot be.
        let (heap, no_heap) = match (heap.and_then(Result::ok), preload) {
            (Some(heap), _) => (Some(Allocations::Probed(Box::new(heap))), None),
            (None, Some(Ok(recorder))) => (Some(Allocations::Recorded(recorder)), None),
            (None, Some(Err(why))) => (None, Some(why)),
            (None, None) => (None, None),
        };
        let standing = heartbeat.standing().unwrap_or_else(|error| {
            tracing::debug!("watchdog: {error}");
            watchdog::Standing::Absent
        });
        if !plan.quiet {
            for warning in standing.warning().into_iter().chain(Rights::own().losses()) {
                eprintln!("locality-bpf: {warning}");
            }
        }
        let summary = RunSummary {
            heap: heap.as_ref().map(|heap| match heap {
                Allocations::Probed(_) => run_summary::PROBES,
                Allocations::Recorded(_) => run_summary::RECORDER,
            }),
            standing,
            watchdogs_lost: 0,
            spared,
            left_out: BTreeMap::new(),
            not_followed: Vec::new(),
            no_windows,
            no_heap,
            plan,
            selected,
            counting: counting.ok(),
            calibration,
            machine,
            costs: Arc::default(),
            started: Started::now(plan),
        };
        let mut trace = Trace::start(summary, object, ring, heap, heartbeat, windows, store)?;
        trace.attach(launched.as_ref()).await?;
        trace.follow_allocations(launched.as_ref())?;
        trace.clock.start()?;
        let command = launched.as_ref().map(|launched| launched.pid);
        if let (Some(launched), Targets::Command(words)) = (launched, &plan.targets) {
            launched.go().map_err(|error| launch::CannotRun::new(words, error))?;
        }
        let ended_by = trace.follow(&mut signals).await?;
        let outcome = trace.close(command, &before, &ended_by, file).await;
        // The report takes all CPUs for a second, and the targets run on beside it.
        sys::make_thread_modest();
        outcome
    })
}

/// Why allocations cannot be probed, though that was asked for.
fn no_heap(loaded: &Result<HeapObject>) -> Option<String> {
    machine::harmful_returns().or_else(|| loaded.as_ref().err().map(|why| format!("{why:#}")))
}

/// Who follows allocations.
enum Allocations {
    /// Probes.
    Probed(Box<HeapObject>),
    /// The preloaded library.
    Recorded(Recorder),
}

/// A running trace.
struct Trace<'a> {
    summary: RunSummary<'a>,
    heartbeat: Arc<watchdog::Heartbeat>,
    clock: Clock,
    governor: Governor,
    capture: Handle,
    heap: Option<HeapThread>,
    events: mpsc::Sender<Event>,
    assembler: AssemblerThread,
    shown: Arc<Mutex<Shown>>,
    notables: mpsc::UnboundedReceiver<Notable>,
    cpu: CpuTimes,
    /// Debuggers that start.
    debuggers: mpsc::UnboundedReceiver<u32>,
    /// Who is not seized because of them.
    aside: Aside,
    /// Until when all processes of a debugger's user are not seized, and the debugger.
    aside_until: Option<(Instant, u32)>,
    /// What was asked for.
    pids: Vec<u32>,
    /// No thread of a target is known to the capture thread any more.
    may_be_over: bool,
    progress: Progress,
    precision: Option<Precision>,
    command_status: Option<i32>,
}

impl<'a> Trace<'a> {
    /// Starts the threads; nothing is measured yet.
    fn start(
        summary: RunSummary<'a>,
        object: Object,
        ring: Ring,
        heap: Option<Allocations>,
        heartbeat: Arc<watchdog::Heartbeat>,
        windows: Option<Windows>,
        store: Store,
    ) -> Result<Self> {
        let (plan, prices) = (summary.plan, summary.calibration.prices);
        let progress = Progress::new(plan.quiet);
        let wanted = plan.until_ci.is_some() || progress.is_wanted();
        let precision = (wanted && windows.is_some())
            .then(|| Precision::new(store.path(), plan.estimator, plan.until_ci));
        let wanted = Wanted::default();
        let code = SharedCode::default();
        let shared = SharedRegions::default();
        let pace = RateTracker::new(
            &prices,
            summary.machine,
            Arc::clone(&summary.costs),
            Arc::clone(&wanted),
            Arc::clone(&code),
        );
        tracing::debug!("prices: {prices:?}");
        let governor =
            Governor::new(plan.overhead_percent / 100.0, plan.own_budget(), prices, plan.user_only);
        let (rate, now) = (governor.rate(), sys::monotonic_ns());
        let first = |cpu: u32| governor::first_period_ns(rate, now.wrapping_add(cpu.into()));
        let clock = Clock::open_with(&object, &summary.selected, first)?;
        let (events, queue) = mpsc::channel(QUEUE);
        let (started_debugger, debuggers) = mpsc::unbounded_channel();
        let heap = heap.map(|source| {
            let settings = heap::Settings {
                share: HEAP_SHARE * plan.overhead_percent / 100.0,
                min_bytes: plan.heap_min,
                copy_ns: prices.tick_ns,
            };
            let cost_ns = Arc::clone(&summary.costs.cpu.heap_ns);
            match source {
                Allocations::Probed(object) => heap::start(*object, settings, cost_ns, events.clone()),
                Allocations::Recorded(recorder) => {
                    heap::start_recorder(recorder, settings, cost_ns, events.clone())
                }
            }
        });
        let heap = heap.transpose()?;
        let blocks = heap.as_ref().map(|thread| thread.heap().clone());
        let settings = Settings {
            heap: blocks.clone(),
            policy: plan.policy,
            max_stop_ns: plan.max_stop.as_nanos() as u64,
            registers: plan.registers,
            named: matches!(plan.targets, Targets::Processes(_) | Targets::Command(_)),
            spared: summary.spared.clone(),
            no_stops: match summary.standing {
                _ if !plan.may_stop => Some(NO_STOP),
                watchdog::Standing::Absent => Some(UNGUARDED),
                _ => None,
            },
            aside: Aside::default(),
            debuggers: started_debugger,
            watch_unheld: plan.watch_unheld,
            user_only: plan.user_only,
            trap_cost_ns: prices.trap_ns,
            gap_cost_ns: prices.gap_ns,
            disarm_cost_ns: prices.disarm_ns,
            tick_cost_ns: prices.tick_ns,
            meter_cost_ns: prices.meter_ns,
            counting: summary.counting,
            wanted,
            code,
            shared: Arc::clone(&shared),
            budget: plan.overhead_percent / 100.0,
            string_lost: prices.string_lost(),
            split_store_ns: prices.split_store_ns(),
            switch_ns: prices.switch_ns(),
        };
        let (costs, beats) = (Arc::clone(&summary.costs), Arc::clone(&heartbeat));
        let capture = Capture::new(object, ring, settings, costs, beats, windows, events.clone())?.start()?;
        let shown = Arc::new(Mutex::new(Shown::default()));
        let pace = (pace, clock.periods());
        let (assembler, notables) = recorder_thread::start(
            queue,
            store,
            summary.started.mono_ns,
            pace,
            (blocks, plan.recorded),
            shared,
            Arc::clone(&shown),
        )?;
        Ok(Self {
            precision,
            progress,
            summary,
            heartbeat,
            clock,
            governor,
            capture,
            heap,
            events,
            assembler,
            shown,
            notables,
            cpu: CpuTimes::default(),
            debuggers,
            aside: Aside::default(),
            aside_until: None,
            pids: Vec::new(),
            may_be_over: false,
            command_status: None,
        })
    }

    /// Attaches to the targets.
    async fn attach(&mut self, launched: Option<&launch::Launched>) -> Result<()> {
        self.pids = match (&self.summary.plan.targets, launched) {
            (Targets::Processes(pids), _) => pids.clone(),
            (Targets::Cgroups(..) | Targets::Namespace, _) => {
                let running = match &self.summary.plan.targets {
                    Targets::Cgroups(_, folders) => {
                        folders.iter().flat_map(|folder| cgroup::processes(folder)).collect()
                    }
                    _ => proc::all(),
                };
                // Present processes; later ones, and ones that end first, are met at their sample.
                for pid in running {
                    if let Some(why) = self.summary.spared.why(pid) {
                        tracing::debug!("process {pid} is not traced: {why}");
                        *self.summary.left_out.entry(why).or_default() += 1;
                        continue;
                    }
                    if self.attach_to(&self.capture, pid).await?.is_ok()
                        && let Ok(base_ns) = sys::process_cpu_ns(pid)
                    {
                        self.cpu.add(pid, base_ns);
                    }
                }
                return Ok(());
            }
            (_, Some(launched)) => vec![launched.pid],
            _ => {
                self.exclude_running();
                return Ok(());
            }
        };
        if let Some(launched) = launched {
            self.capture.send(Command::Launched(launched.pid));
        }
        for pid in self.pids.clone() {
            self.cpu.add(pid, sys::process_cpu_ns(pid).unwrap_or(0));
            match self.attach_to(&self.capture, pid).await? {
                Ok(held) => tracing::debug!("process {pid}: {held} threads held"),
                Err(error) if error.kind() == ErrorKind::NotFound => bail!(
                    "cannot trace process {pid}: it ended at once; `locality-bpf -- COMMAND` traces a command from its start"
                ),
                Err(error) => bail!("cannot trace process {pid}: {error}"),
            }
        }
        if launched.is_none() {
            let below = self.pids.iter().flat_map(|pid| proc::descendants(*pid, MOST_CHILDREN));
            let others: BTreeSet<u32> = below.filter(|pid| !self.pids.contains(pid)).collect();
            self.summary.not_followed = others.into_iter().collect();
            let notice = run_summary::not_followed(&self.summary.not_followed);
            if let Some(notice) = notice.filter(|_| !self.summary.plan.quiet) {
                eprintln!("locality-bpf: {notice}");
            }
        }
        Ok(())
    }

    /// Leaves running programs out before the first sample. Others of the machine are met at their samples.
    fn exclude_running(&self) {
        let spared = &self.summary.spared;
        if !spared.has_patterns() {
            return;
        }
        for pid in proc::all()
            .into_iter()
            .filter(|pid| spared.excluded_by(*pid).is_some() && spared.why(*pid).is_none())
        {
            self.capture.send(Command::Exclude(pid));
        }
    }

    /// Has the launched command's program probed before its first instruction.
    fn follow_allocations(&self, launched: Option<&launch::Launched>) -> Result<()> {
        if let (Some(thread), Some(launched), Targets::Command(words)) =
            (&self.heap, launched, &self.summary.plan.targets)
        {
            thread.heap().launched(launched.pid, launch::find(words)?);
        }
        Ok(())
    }

    /// Has the capture thread attach to one process; returns the number of seized threads.
    async fn attach_to(&self, capture: &Handle, pid: u32) -> Result<std::io::Result<usize>> {
        let (answer, held) = oneshot::channel();
        capture.send(Command::Attach(pid, answer));
        held.await.with_context(|| format!("the capture thread ended while it attached to process {pid}"))
    }

    /// Whether no target is left. The capture thread may have known no target because the rest was not
    /// attached yet, or because the processes of the group are excluded until they become other programs.
    fn have_targets_ended(&mut self) -> bool {
        if !self.may_be_over {
            return false;
        }
        let running = match &self.summary.plan.targets {
            Targets::Cgroups(_, folders) => {
                folders.iter().flat_map(|folder| cgroup::processes(folder)).collect()
            }
            Targets::Processes(pids) => pids.clone(),
            _ => proc::all(),
        };
        let is_named = matches!(self.summary.plan.targets, Targets::Processes(_));
        let is_target = |pid: &u32| {
            let has_ended = proc::executable(*pid).is_err_and(|why| why.kind() == ErrorKind::NotFound);
            !has_ended && (is_named || self.summary.spared.why(*pid).is_none())
        };
        let is_over = !running.iter().any(is_target);
        // The end of a named target is reported again. Excluded processes end without a report.
        self.may_be_over &= !is_named;
        is_over
    }

    /// Runs until the end of the trace; returns its cause.
    async fn follow(&mut self, signals: &mut Signals) -> Result<String> {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
        let until = self.summary.plan.duration.map(|duration| Instant::now() + duration);
        let mut summary_due = Instant::now();
        loop {
            let ended_by = tokio::select! {
                biased;
                _ = signals.interrupt.recv() => "Ctrl-C".to_owned(),
                _ = signals.terminate.recv() => "SIGTERM".to_owned(),
                _ = received(&mut signals.hangup) => "SIGHUP".to_owned(),
                _ = signals.pause.recv() => {
                    self.clock.stop();
                    self.progress.clear();
                    self.start_afresh(Afresh::Paused).await?;
                    self.clock.start()?;
                    continue;
                }
                Some(debugger) = self.debuggers.recv() => {
                    self.step_aside(debugger).await?;
                    continue;
                }
                notable = self.notables.recv() => match notable {
                    Some(Notable::CommandEnded(status)) => {
                        self.command_status = Some(status);
                        launch::end_of_command(status)
                    }
                    Some(Notable::Unguarded) => {
                        self.summary.watchdogs_lost += 1;
                        self.start_afresh(Afresh::Unguarded).await?;
                        continue;
                    }
                    Some(Notable::NoTargets) if self.summary.plan.outlives_targets => continue,
                    Some(Notable::NoTargets) => {
                        self.may_be_over = true;
                        continue;
                    }
                    Some(Notable::Failed(why)) => why,
                    None => "the assembler thread ended".to_owned(),
                },
                _ = ticks.tick() => {
                    self.return_from_aside().await?;
                    if self.have_targets_ended() {
                        return Ok("the last traced process ended".to_owned());
                    }
                    let over = until.is_some_and(|until| Instant::now() >= until);
                    if self.precision.as_mut().is_some_and(Precision::turn) {
                        return Ok("the asked precision".to_owned());
                    }
                    let failed = lock(&self.shown).failed.clone();
                    match (over, failed) {
                        (true, _) if self.summary.plan.until_ci.is_some() => {
                            "the asked duration, before the asked precision".to_owned()
                        }
                        (true, _) => "the asked duration".to_owned(),
                        (_, Some(why)) => why,
                        _ => {
                            let mut spending = self.steer();
                            if Instant::now() >= summary_due {
                                spending.page_faults = Some(self.cpu.page_faults());
                                summary_due = Instant::now() + SUMMARY_EVERY;
                                self.write_summary(&spending);
                            }
                            continue;
                        }
                    }
                }
            };
            return Ok(ended_by);
        }
    }

    /// Counts the CPU time of the processes that were met since the last call: each is asked for once,
    /// for one that has ended stays ended.
    fn meet_processes(&mut self) {
        let met = std::mem::take(&mut lock(&self.shown).met);
        for pid in met {
            self.cpu.meet(pid, self.summary.started.ticks);
        }
    }

    /// Sets the sampling rate by what was spent.
    fn steer(&mut self) -> CostTotals {
        self.meet_processes();
        let spending = self.summary.spending(&mut self.cpu);
        self.summary.costs.cpu.target_cpu_ns.store(spending.cpu_ns, std::sync::atomic::Ordering::Relaxed);
        let rate = self.governor.steer(spending);
        let now = sys::monotonic_ns();
        let sampled = get(&self.summary.costs.sampling.sampled_accesses);
        let period_ns = |cpu: u32| governor::period_ns(rate, now.wrapping_add(cpu.into()));
        self.clock.steer(period_ns, now, (sampled, spending.cpu_ns));
        let precision = self.precision.as_ref().map(Precision::words).unwrap_or_default();
        self.progress.show(&self.summary.progress(&spending, &precision));
        spending
    }

    /// Writes to the file, twice a second, everything that a killed tracer could not write any
    /// more.
    fn write_summary(&self, spending: &CostTotals) {
        let mut state = lock(&self.shown);
        let summary = Summary {
            run: self.summary.run(&self.pids, spending, &state.tally, "", self.pacing()),
            overhead: self.summary.overhead(spending),
            ..Summary::default()
        };
        state.summary = Some(summary);
        drop(state);
        // Where the queue is full, the assembler is busy writing anyway.
        let _ = self.events.try_send(Event::Second);
    }

    /// Samples a second, and accesses a hardware sample.
    fn pacing(&self) -> (f64, u64) {
        (self.governor.rate(), self.clock.period_accesses())
    }

    /// Lets the targets go, empties the queues, completes the ledger and the file.
    async fn close(
        mut self,
        command: Option<u32>,
        before: &EventCounts,
        ended_by: &str,
        file: std::path::PathBuf,
    ) -> Result<Outcome> {
        ending::closing();
        // The capture thread, whose wait counts, ends below.
        starved();
        self.progress.clear();
        self.clock.stop();
        if let (Some(pid), None, "SIGTERM") = (command, self.command_status, ended_by) {
            // Who ends us means the command; Ctrl-C and a closed terminal reach it by themselves.
            launch::Started { pid, status: None }.signal(libc::SIGTERM);
        }
        self.capture.send(Command::Finish);
        let mut capture = self.capture.join()?;
        capture.end_lifecycle();
        capture.drain_rest();
        let after = capture.kernel_counters()?;
        (self.summary.plan.on_release)();
        // After the last event that may ask, before the last that may tell.
        if let Some(heap) = &mut self.heap {
            heap.finish();
        }
        let mut spending = self.summary.spending(&mut self.cpu);
        spending.page_faults = Some(self.cpu.page_faults());
        let pacing = self.pacing();
        let ended_ns = sys::monotonic_ns();
        // Without senders the queue is closed, and the assembler ends when it has read it.
        drop((capture, self.events));
        let assembler = self.assembler;
        let mut store = tokio::task::spawn_blocking(move || assembler.join())
            .await?
            .map_err(|_| anyhow::anyhow!("the assembler thread panicked"))?;
        while let Ok(notable) = self.notables.try_recv() {
            // Its status was collected while the trace ended for another reason.
            if let Notable::CommandEnded(status) = notable {
                self.command_status = Some(status);
            }
        }
        let tally = lock(&self.shown).tally.clone();
        let heap = self.heap.as_ref().map(|thread| thread.heap().summary());
        if heap.as_ref().is_some_and(heap::Summary::is_idle) {
            self.summary.heap = None;
        }
        let run = self.summary.run(&self.pids, &spending, &tally, ended_by, pacing);
        let mut notices = self.summary.notices(&tally, heap.as_ref(), before, &after);
        notices.extend(self.summary.over_own_budget(&spending));
        let signal = self.command_status.and_then(|status| ExitStatus::from_raw(status).signal());
        if let (Some(signal), Some(run_summary::PROBES)) = (signal, self.summary.heap) {
            notices.splice(0..0, run_summary::ended_by_a_trap(signal));
        }
        store.summary(&Summary {
            // What was read of debug information since then is not part of the trace.
            run: Run { wall_ns: ended_ns.saturating_sub(run.started_mono_ns), ..run },
            ledger: event_ledger::close(before, &after, &self.summary.costs, &tally),
            overhead: self.summary.overhead(&spending),
            notices,
        });
        let (mut profile, unwritten) = store.finish()?;
        if let Some(why) = &unwritten {
            profile.notices.insert(
                0,
                format!("The trace ended early because its file could not be written ({why}); this report has everything that was collected, the file may not."),
            );
        }
        let status = self.command_status;
        if let (Some(pid), None) = (command, status) {
            ending::means(pid.cast_signed());
        }
        Ok(Outcome { profile, command: command.map(|pid| launch::Started { pid, status }), unwritten, file })
    }
}

/// The signals that end or pause a trace.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Absent under `nohup`.
    hangup: Option<Signal>,
    pause: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: match sys::is_ignored(libc::SIGHUP) {
                true => None,
                false => Some(signal(SignalKind::hangup())?),
            },
            pause: signal(SignalKind::from_raw(libc::SIGTSTP))?,
        })
    }
}

/// The next arrival of a signal; of one that is not listened to, never.
async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}
