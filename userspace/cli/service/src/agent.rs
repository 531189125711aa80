//! The agent's main process: starts tracers and jobs, and passes results on.
//!
//! Each segment has a tracer process. Memory is therefore freed with each segment, seized processes are
//! released once a window, and a fault ends a single segment. `locality_untraced_seconds_total` and the
//! agent's own CPU time show the cost of a start. Watches cut off by the end of a segment are counted.
//!
//! The next tracer starts as soon as the last has released
//! the targets, while the last still completes a profile.
//!
//! A single thread waits for signals, questions of the exporter, and due work.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use locality_kernel::{proc, writing::say};
use locality_rollup::{Keys, Rollup};
use locality_units::parse::WrongUse;

use crate::collector::Collector;
use crate::exporter::{Exporter, Question};
use crate::frames;
use crate::jobs::{self, Settings};
use crate::listen::{self, Listen, Listeners};
use crate::notify::Notify;
use crate::release;
use crate::rollups::Rollups;
use crate::store::{self, Store};
use crate::sys::{self, Wait};
use crate::totals::{Exposed, Totals, excluded, shown_sizes};

mod sending;

use sending::Sending;

/// Shortest window.
pub const SHORTEST: Duration = Duration::from_secs(1);
/// Longest window.
pub const LONGEST: Duration = Duration::from_secs(3600);
/// Least room for segments.
pub const LEAST_STORE: u64 = 16 << 20;
/// Longest wait of the loop without an event.
const LOOK: Duration = Duration::from_millis(500);
/// Wait after a failed tracer, doubled each time.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Time for a rollup, and for a profile; the exporter's client waits somewhat longer.
const ROLLUP_TIME: Duration = Duration::from_secs(600);
const PROFILE_TIME: Duration = Duration::from_secs(55);
/// Time for a tracer to end before SIGKILL.
const END_TIME: Duration = Duration::from_secs(60);
/// Limit of tracers completing profiles at a time.
const CLOSING: usize = 2;
/// The tracer's least share of the budget for own CPU time.
const LEAST_OWN: f64 = 0.25;

/// Options of the agent.
#[derive(Debug, Clone)]
pub struct Options {
    /// Words of a trace: targets and costs.
    pub words: Vec<OsString>,
    /// Named processes, with starts since boot; the agent ends
    /// with the last. Empty if `words` names the targets.
    pub targets: Vec<(u32, u64)>,
    /// CPU budget of the agent with helpers, percent of the time of every processor.
    pub own_percent: f64,
    /// Length of a segment.
    pub window: Duration,
    /// How processes are grouped.
    pub keys: Keys,
    /// Folder of the store.
    pub store: PathBuf,
    /// Limit of bytes of segments in the store.
    pub store_bytes: u64,
    /// Addresses and sockets of the metrics.
    pub listen: Vec<Listen>,
    /// Whether remote machines may reach the metrics.
    pub listen_anywhere: bool,
    /// Where profiles of segments are sent.
    pub collector: Option<Collector>,
    /// Whether profiles name the folders of files.
    pub with_paths: bool,
    /// No remarks.
    pub quiet: bool,
    /// The parent process that alone reads the store: the agent ends with the parent, without
    /// the last rollups, and removes the store if the parent can no longer do so.
    pub only_for: Option<u32>,
}

/// Checks the options for contradictions, before any effect.
///
/// # Errors
/// A sentence with the mend.
pub fn check(options: &Options) -> Result<(), WrongUse> {
    if !(SHORTEST..=LONGEST).contains(&options.window) {
        return Err(WrongUse("--window is 1s to 1h: 5m has some hundred samples a group".to_owned()));
    }
    if options.store_bytes < LEAST_STORE {
        return Err(WrongUse("--store-bytes is at least 16M: a segment may take some megabytes".to_owned()));
    }
    listen::check(&options.listen, options.listen_anywhere)
}

/// A running tracer.
struct Tracer {
    child: Child,
    part: PathBuf,
    started: Instant,
    /// Time of the request to end.
    asked: Option<Instant>,
}

/// A running job, with output to an unnamed file.
struct Job {
    child: Child,
    output: File,
    until: Instant,
}

struct Agent {
    options: Options,
    store: Store,
    rollups: Rollups,
    signals: OwnedFd,
    listeners: Listeners,
    notify: Notify,
    tracer: Option<Tracer>,
    /// Tracers after the release of the targets, completing profiles.
    closing: Vec<Tracer>,
    exporter: Option<Exporter>,
    rollup: Option<(Job, PathBuf)>,
    profile: Option<Job>,
    waiting: VecDeque<PathBuf>,
    sending: Option<Sending>,
    totals: Totals,
    shown: Option<Exposed>,
    next_start: Instant,
    /// End of a time without tracing.
    away_until: Instant,
    wait: Duration,
    is_ready: bool,
    is_ending: bool,
    /// Rollups are not waited for.
    in_a_hurry: bool,
    /// CPU time and wall time when the last rollup came.
    own: (Duration, Instant),
    /// Share of the own budget for rollups and starts.
    others: f64,
    next_exporter: Instant,
}

/// Runs until a signal, or the last of named processes, ends it. Must be called while the process has one
/// thread.
///
/// # Errors
/// The agent cannot start, or the first tracer failed;
/// the sentence gives the reason unless the tracer did.
pub fn run(options: Options) -> Result<()> {
    check(&options)?;
    if options.only_for.is_some_and(|parent| !sys::end_with_parent(parent, libc::SIGTERM)) {
        bail!("the process that this agent is for has ended");
    }
    let store = Store::open(&options.store, options.store_bytes)?;
    let rollups = Rollups::open(store.folder())?;
    jobs::note_keys(store.folder(), &options.keys)?;
    let listeners = listen::open(&options.listen)?;
    let signals = sys::signals().context("cannot listen to signals")?;
    let now = Instant::now();
    let mut agent = Agent {
        listeners,
        store,
        rollups,
        signals,
        notify: Notify::from_environment(),
        tracer: None,
        closing: Vec::new(),
        exporter: None,
        rollup: None,
        profile: None,
        waiting: VecDeque::new(),
        sending: options.collector.clone().map(Sending::to),
        totals: Totals { sent: sending::fates(options.collector.is_some()), ..Totals::default() },
        shown: None,
        next_start: now,
        away_until: now,
        wait: FIRST_WAIT,
        is_ready: false,
        is_ending: false,
        in_a_hurry: false,
        own: (sys::cpu_time(), now),
        others: 0.0,
        next_exporter: now,
        options,
    };
    let ended = agent.follow();
    agent.notify.say("STOPPING=1");
    if let Some(exporter) = agent.exporter.take() {
        exporter.end();
    }
    listen::remove(&agent.options.listen);
    if agent.options.only_for.is_some_and(|parent| !sys::is_parent(parent)) {
        let _ = std::fs::remove_dir_all(agent.store.folder());
    }
    ended
}

impl Agent {
    fn follow(&mut self) -> Result<()> {
        self.take_over();
        loop {
            self.start_what_is_due()?;
            let is_tracing = self.tracer.is_some() || !self.closing.is_empty();
            if self.is_ending && !is_tracing && (self.in_a_hurry || self.is_idle()) {
                self.end_jobs();
                return Ok(());
            }
            self.wait();
            while let Some((signal, number)) = sys::next_signal(&self.signals) {
                match signal {
                    libc::SIGCHLD => {}
                    libc::SIGUSR1 => self.release(number),
                    _ => self.end(signal),
                }
            }
            self.notify.live();
            self.questions();
            self.look_after_tracers()?;
            self.look_after_jobs();
            self.look_after_exporter();
        }
    }

    fn is_idle(&self) -> bool {
        let has_sent = self.sending.as_ref().is_none_or(Sending::is_idle);
        self.rollup.is_none() && self.waiting.is_empty() && has_sent
    }

    fn say(&self, sentence: &str) {
        if !self.options.quiet {
            say(sentence);
        }
    }

    /// Completes the segments of a killed agent and makes the rollups.
    fn take_over(&mut self) {
        for part in self.store.left_behind() {
            self.complete(&part);
        }
        self.store.make_room();
    }

    fn complete(&mut self, part: &Path) {
        match self.store.complete(part) {
            Ok(Some(segment)) => {
                if let Some(sending) = &mut self.sending {
                    let dropped = sending.add(segment.clone());
                    self.count_sent(sending::DROPPED, dropped);
                }
                self.waiting.push_back(segment);
            }
            Ok(None) => {}
            Err(error) => say(&format!("cannot rename {}: {error}", part.display())),
        }
    }

    /// The first signal ends the tracer, then the agent after
    /// the last rollup; the second does not wait for rollups.
    fn end(&mut self, signal: i32) {
        tracing::debug!(signal, "ends");
        self.in_a_hurry = self.is_ending || self.options.only_for.is_some();
        self.is_ending = true;
        if let Some(tracer) = &mut self.tracer {
            sys::signal(tracer.child.id(), libc::SIGTERM);
            tracer.asked.get_or_insert_with(Instant::now);
        }
    }

    /// Ends the segment; the next starts after `seconds`.
    fn release(&mut self, seconds: i32) {
        let time = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        self.away_until = Instant::now() + time.min(release::LONGEST);
        if let Some(tracer) = &mut self.tracer {
            sys::signal(tracer.child.id(), libc::SIGTERM);
            tracer.asked.get_or_insert_with(Instant::now);
        } else {
            self.note_release();
        }
    }

    fn note_release(&mut self) {
        let is_away = Instant::now() < self.away_until;
        self.note(if is_away { store::RELEASED } else { store::STARTING });
    }

    fn note(&mut self, state: &str) {
        if let Err(error) = self.store.note(state) {
            tracing::warn!("the state is not written: {error}");
        }
    }

    fn start_what_is_due(&mut self) -> Result<()> {
        let now = Instant::now();
        let has_room = self.tracer.is_none() && self.closing.len() < CLOSING;
        if has_room && !self.is_ending && now >= self.next_start.max(self.away_until) {
            self.start_tracer()?;
        }
        if self.rollup.is_none()
            && let Some(segment) = self.waiting.pop_front()
        {
            let settings = self.settings(segment.clone());
            match self.job(jobs::ROLLUP, &settings, ROLLUP_TIME) {
                Ok(job) => self.rollup = Some((job, segment)),
                Err(error) => {
                    self.totals.failed_rollups += 1;
                    say(&format!("cannot start the rollup of {}: {error}", segment.display()));
                }
            }
        }
        self.send_what_is_due();
        let wants_exporter = !self.options.listen.is_empty() && !self.is_ending;
        if wants_exporter && self.exporter.is_none() && now >= self.next_exporter {
            self.next_exporter = now + FIRST_WAIT;
            match Exporter::start(&self.listeners) {
                Ok(exporter) => {
                    self.exporter = Some(exporter);
                    self.show();
                }
                Err(error) => say(&format!("cannot start the exporter: {error}")),
            }
        }
        Ok(())
    }

    fn start_tracer(&mut self) -> Result<()> {
        let part = self.store.next_part();
        let own = self.options.own_percent * (1.0 - self.others).max(LEAST_OWN);
        let child = Command::new("/proc/self/exe")
            .args(["--quiet", "--no-values", "--segment"])
            .arg(std::process::id().to_string())
            .args(["--duration", &format!("{}ms", self.options.window.as_millis())])
            .args(["--own", &format!("{own:.4}")])
            .arg("--output")
            .arg(&part)
            .args(&self.options.words)
            .args(self.living().flat_map(|pid| ["--pid".to_owned(), pid.to_string()]))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C reaches the agent alone; the agent ends the tracer.
            .process_group(0)
            .spawn()
            .context("cannot start a tracer")?;
        let started = Instant::now();
        self.tracer = Some(Tracer { child, part, started, asked: None });
        self.note(store::TRACING);
        Ok(())
    }

    /// Living named processes.
    fn living(&self) -> impl Iterator<Item = u32> {
        let lives = |(pid, start): &&(u32, u64)| {
            proc::start_ticks(*pid).is_ok_and(|now| now == *start)
                && proc::status(*pid).is_ok_and(|status| !matches!(status.state, 'Z' | 'X'))
        };
        self.options.targets.iter().filter(lives).map(|(pid, _)| *pid)
    }

    fn settings(&self, path: PathBuf) -> Settings {
        Settings {
            agent: std::process::id(),
            path,
            by: jobs::number(self.options.keys.by),
            cgroups: self.options.keys.cgroups.clone(),
            group: None,
            seconds: 0,
            with_paths: self.options.with_paths,
            collector: None,
        }
    }

    fn job(&self, role: &str, settings: &Settings, time: Duration) -> io::Result<Job> {
        let path = self.store.folder().join("job");
        let output = File::options().create(true).truncate(true).read(true).write(true).open(&path)?;
        std::fs::remove_file(&path)?;
        let child = Command::new("/proc/self/exe")
            .arg(role)
            .arg(serde_json::to_string(settings)?)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(if role == jobs::PROFILE { Stdio::from(output.try_clone()?) } else { Stdio::inherit() })
            .process_group(0)
            .spawn()?;
        Ok(Job { child, output, until: Instant::now() + time })
    }

    fn wait(&self) {
        let mut waits = vec![Wait { fd: self.signals.as_fd(), to_write: false }];
        if let Some(exporter) = &self.exporter {
            waits.push(Wait { fd: exporter.socket.as_fd(), to_write: false });
        }
        let said = self.tracer.as_ref().and_then(|tracer| tracer.child.stdout.as_ref());
        waits.extend(said.map(|stdout| Wait { fd: stdout.as_fd(), to_write: false }));
        let next_start = self.next_start.max(self.away_until);
        let until_start = next_start.saturating_duration_since(Instant::now());
        let timeout = match self.tracer {
            None if !self.is_ending => LOOK.min(until_start),
            _ if !self.is_ready => Duration::from_millis(50),
            _ => LOOK,
        };
        sys::ready(&waits, timeout);
    }

    fn look_after_tracers(&mut self) -> Result<()> {
        if let Some(tracer) = &self.tracer
            && !self.is_ready
            && tracer.part.exists()
        {
            self.is_ready = true;
            self.notify.say("READY=1");
            self.say(&beginning(&self.options, self.store.folder()));
        }
        if let Some(tracer) = self.tracer.take_if(|tracer| tracer.has_released()) {
            self.next_start = Instant::now() + tracer.rest(self.options.window);
            self.closing.push(tracer);
            self.note_release();
        }
        let longest = self.options.window + END_TIME;
        for tracer in self.tracer.iter_mut().chain(&mut self.closing) {
            let is_late = tracer.started.elapsed() > longest;
            if is_late || tracer.asked.is_some_and(|asked| asked.elapsed() > END_TIME) {
                let _ = tracer.child.kill();
            }
        }
        if let Some((tracer, status)) = ended(&mut self.tracer) {
            self.next_start = Instant::now() + tracer.rest(self.options.window);
            self.note_release();
            self.tracer_ended(&tracer, status)?;
        }
        for mut tracer in std::mem::take(&mut self.closing).into_iter().map(Some) {
            match ended(&mut tracer) {
                Some((tracer, status)) => self.tracer_ended(&tracer, status)?,
                None => self.closing.extend(tracer),
            }
        }
        let is_alone = !self.options.targets.is_empty() && self.living().next().is_none();
        if is_alone && self.tracer.is_none() && !self.is_ending {
            self.say("the last traced process ended");
            self.is_ending = true;
        }
        Ok(())
    }

    fn tracer_ended(&mut self, tracer: &Tracer, status: ExitStatus) -> Result<()> {
        self.complete(&tracer.part);
        self.store.make_room();
        if !is_failure(status, tracer.asked.is_some()) || self.is_ending {
            self.wait = FIRST_WAIT;
            return Ok(());
        }
        self.totals.failed_segments += 1;
        self.show();
        if !self.is_ready {
            // The tracer has said why.
            bail!("the tracer failed at the start ({status})");
        }
        say(&format!("the tracer failed ({status}); another one starts in {} s", self.wait.as_secs()));
        self.next_start = Instant::now() + self.wait;
        self.wait = (self.wait * 2).min(LONGEST_WAIT);
        Ok(())
    }

    fn look_after_jobs(&mut self) {
        if let Some((job, _)) = &mut self.rollup
            && let Some(result) = job.result()
            && let Some((_, segment)) = self.rollup.take()
        {
            let rollup = result.and_then(|bytes| Ok(serde_json::from_slice::<Rollup>(&bytes)?));
            match rollup {
                Ok(rollup) => self.take_rollup(&rollup, &segment),
                Err(error) => {
                    self.totals.failed_rollups += 1;
                    say(&format!("no rollup of {}: {error}", segment.display()));
                    self.show();
                }
            }
        }
        self.look_after_sending();
        if let Some(job) = &mut self.profile
            && let Some(result) = job.result()
        {
            self.profile = None;
            match result {
                Ok(bytes) => self.tell(frames::PROFILE, &bytes),
                Err(error) => {
                    let why = format!("{error:#}");
                    let is_unknown = why.starts_with(jobs::NO_GROUP);
                    self.tell(if is_unknown { frames::NO_GROUP } else { frames::REFUSED }, why.as_bytes());
                }
            }
        }
    }

    fn take_rollup(&mut self, rollup: &Rollup, segment: &Path) {
        if let Err(error) = self.rollups.put(rollup) {
            self.totals.failed_rollups += 1;
            say(&format!("the rollup of {} is not stored: {error:#}", segment.display()));
        }
        self.totals.add(rollup);
        let before = self.shown.as_ref().map_or(0.0, |shown| shown.last_s);
        let last_s = (rollup.started_unix_ns + rollup.wall_ns) as f64 / 1e9;
        let started_s = rollup.started_unix_ns as f64 / 1e9;
        if before > 0.0 && started_s > before {
            self.totals.untraced_ns += ((started_s - before) * 1e9) as u64;
        }
        let cpu = sys::cpu_time();
        let wall = self.own.1.elapsed().as_secs_f64();
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let own = cpu.saturating_sub(self.own.0).as_secs_f64();
        self.own = (cpu, Instant::now());
        let own_cost = own / (wall.max(1e-3) * processors);
        self.divide_budget(own_cost);
        self.shown = Some(Exposed {
            totals: Totals::default(),
            rows: self.totals.shown(rollup),
            sizes: shown_sizes(rollup),
            targets_cost: rollup.health.cost,
            own_cost,
            longest_stop_ns: rollup.health.longest_stop_ns,
            excluded: excluded(rollup),
            balanced: rollup.health.balanced,
            last_s,
            store_bytes: self.store.used(),
        });
        self.show();
    }

    /// Reserves a share of the own budget for rollups
    /// and starts, by half of the last window's excess.
    fn divide_budget(&mut self, own_cost: f64) {
        let budget = self.options.own_percent / 100.0;
        let over = (own_cost - budget) / budget;
        self.others = (self.others + 0.5 * over).clamp(0.0, 1.0 - LEAST_OWN);
    }

    /// Sends metrics to the exporter.
    fn show(&mut self) {
        let Some(shown) = &mut self.shown else { return };
        shown.totals = self.totals.clone();
        if let Ok(bytes) = serde_json::to_vec(shown) {
            self.tell(frames::METRICS, &bytes);
        }
    }

    fn tell(&mut self, kind: u8, bytes: &[u8]) {
        let Some(exporter) = &mut self.exporter else { return };
        if exporter.send(kind, bytes).is_err() {
            let _ = exporter.child.kill();
        }
    }

    fn questions(&mut self) {
        let Some(exporter) = &mut self.exporter else { return };
        let Ok(questions) = exporter.questions() else {
            let _ = exporter.child.kill();
            return;
        };
        for Question { group, seconds } in questions {
            let path = self.store.folder().to_owned();
            let settings = Settings { group, seconds, ..self.settings(path) };
            match self.profile.is_none().then(|| self.job(jobs::PROFILE, &settings, PROFILE_TIME)) {
                Some(Ok(job)) => self.profile = Some(job),
                _ => self.tell(frames::REFUSED, b"the agent cannot make a profile now"),
            }
        }
    }

    fn look_after_exporter(&mut self) {
        let Some(exporter) = &mut self.exporter else { return };
        let Ok(Some(status)) = exporter.child.try_wait() else { return };
        self.exporter = None;
        if !self.is_ending {
            self.totals.exporters_lost += 1;
            say(&format!("the exporter ended ({status}); another one starts"));
        }
    }

    fn end_jobs(&mut self) {
        let sending = self.sending.take().and_then(Sending::end);
        let jobs =
            self.rollup.take().map(|(job, _)| job).into_iter().chain(self.profile.take()).chain(sending);
        for mut job in jobs {
            let _ = job.child.kill();
            let _ = job.child.wait();
        }
    }
}

/// What a healthy agent says at the start: targets, store, places of metrics, time of the first values.
fn beginning(options: &Options, store: &Path) -> String {
    let mut words = options.words.iter().map(|word| word.to_string_lossy());
    let mut whom: Vec<String> = options.targets.iter().map(|(pid, _)| format!("process {pid}")).collect();
    let mut without: Vec<String> = Vec::new();
    while let Some(word) = words.next() {
        match &*word {
            "--all" => whom.push("all programs".to_owned()),
            "--namespace" => whom.push("the pid namespace".to_owned()),
            "--cgroup" => whom.extend(words.next().map(|path| path.into_owned())),
            "--exclude" => without.extend(words.next().map(|pattern| pattern.into_owned())),
            _ => {}
        }
    }
    let without = match without.as_slice() {
        [] => String::new(),
        without => format!(" without {}", without.join(", ")),
    };
    let places: Vec<String> = options.listen.iter().map(ToString::to_string).collect();
    let metrics = match places.as_slice() {
        [] => "no metrics without --listen".to_owned(),
        places => format!("metrics on {}", places.join(" and ")),
    };
    let to = options.collector.as_ref().map_or_else(String::new, |to| format!("; profiles go to {to}"));
    format!(
        "traces {}{without}; store {}; {metrics}{to}; first values in {} s",
        whom.join(", "),
        store.display(),
        options.window.as_secs_f64()
    )
}

/// Whether a tracer failed. A tracer that was asked to end while starting ends by the signal itself.
fn is_failure(status: ExitStatus, is_asked: bool) -> bool {
    !(status.success() || is_asked && status.signal() == Some(libc::SIGTERM))
}

/// An ended tracer, with the exit status.
fn ended(tracer: &mut Option<Tracer>) -> Option<(Tracer, ExitStatus)> {
    let status = tracer.as_mut()?.child.try_wait().ok()??;
    Some((tracer.take()?, status))
}

impl Tracer {
    /// Whether the tracer has reported the release of the targets.
    fn has_released(&mut self) -> bool {
        let Some(stdout) = &mut self.child.stdout else { return false };
        let waits = [Wait { fd: stdout.as_fd(), to_write: false }];
        // The end of the process reads as 0 bytes.
        sys::ready(&waits, Duration::ZERO) == [true] && stdout.read(&mut [0; 16]).is_ok_and(|n| n > 0)
    }

    /// Wait before the next tracer after an early end, against restarts in a loop.
    fn rest(&self, window: Duration) -> Duration {
        if self.started.elapsed() < window { FIRST_WAIT } else { Duration::ZERO }
    }
}

impl Job {
    /// The job's output or error; `None` while the job runs.
    fn result(&mut self) -> Option<Result<Vec<u8>>> {
        if Instant::now() > self.until {
            let _ = self.child.kill();
        }
        let status = match self.child.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => status,
            Err(error) => return Some(Err(error.into())),
        };
        let mut bytes = Vec::new();
        let read = self.output.rewind().and_then(|()| self.output.read_to_end(&mut bytes));
        Some(match read {
            Err(error) => Err(error.into()),
            Ok(_) if status.success() => Ok(bytes),
            Ok(_) => {
                let said = String::from_utf8_lossy(&bytes);
                let said = said.lines().next_back().unwrap_or_default();
                let said = said.strip_prefix("locality-bpf: ").unwrap_or(said);
                Err(anyhow::anyhow!(if said.is_empty() { status.to_string() } else { said.to_owned() }))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options {
            words: ["--overhead", "1", "--cgroup", "/a", "--cgroup", "/b"].map(Into::into).to_vec(),
            targets: Vec::new(),
            own_percent: 1.0,
            window: Duration::from_secs(300),
            keys: Keys::default(),
            store: "/s".into(),
            store_bytes: LEAST_STORE,
            listen: vec!["127.0.0.1:9955".parse().unwrap(), "unix:/run/s".parse().unwrap()],
            listen_anywhere: false,
            collector: None,
            with_paths: true,
            quiet: false,
            only_for: None,
        }
    }

    #[test]
    fn the_beginning_has_targets_store_and_places() {
        assert_eq!(
            beginning(&options(), Path::new("/s")),
            "traces /a, /b; store /s; metrics on 127.0.0.1:9955 and unix:/run/s; first values in 300 s"
        );
        let named = Options {
            words: vec!["--overhead".into(), "1".into()],
            targets: vec![(7, 1)],
            listen: Vec::new(),
            ..options()
        };
        assert!(beginning(&named, Path::new("/s")).starts_with("traces process 7; store /s; no metrics"));
        let words = ["--all", "--exclude", "uid:0", "--exclude", "comm:a"].map(Into::into).to_vec();
        let all = beginning(&Options { words, ..options() }, Path::new("/s"));
        assert!(all.starts_with("traces all programs without uid:0, comm:a; store"), "{all}");
    }

    #[test]
    fn a_store_without_room_is_refused() {
        assert!(check(&options()).is_ok());
        let small = Options { store_bytes: 10, ..options() };
        assert!(check(&small).unwrap_err().to_string().contains("at least 16M"));
    }

    #[test]
    fn a_tracer_that_was_asked_to_end_has_not_failed() {
        let (asked, signal, code) = (true, ExitStatus::from_raw, |code: i32| ExitStatus::from_raw(code << 8));
        assert!(!is_failure(signal(libc::SIGTERM), asked) && !is_failure(code(0), !asked));
        assert!(is_failure(signal(libc::SIGTERM), !asked), "somebody else's signal");
        assert!(is_failure(signal(libc::SIGKILL), asked) && is_failure(code(1), asked), "nothing is hidden");
    }
}
