//! `top`: the numbers of an agent, or of an agent of its own, for the live table.
//!
//! With targets, an agent is started on a store of its own, with segments of a minute. The agent ends
//! with `top`, and the store goes.

use std::io::{IsTerminal as _, Read as _};
use std::os::unix::{fs::DirBuilderExt as _, process::CommandExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;
use locality_kernel::{machine, writing::to_stdout};
use locality_service::live::{Found, Reader};
use locality_top::{Part, Snapshot, View};
use locality_units::parse::WrongUse;

use crate::agent::targets;
use crate::cli::{
    agent_args::{QueryFormat, TopArgs, WhomArgs},
    colour::When,
};

/// Length of a segment of an own agent.
const WINDOW: &str = "60s";
/// Bytes of segments of an own agent.
const STORE_BYTES: &str = "64M";
/// Shortest and longest time between two tables.
const INTERVALS: std::ops::RangeInclusive<Duration> = Duration::from_millis(200)..=Duration::from_secs(3600);
/// A table stays at least so many times as long as the computation of its numbers.
const REST: u32 = 20;
/// Longest wait for the first group of a single table.
const FIRST: Duration = Duration::from_secs(60);
/// Wait for a group that --filter shows, while there are others.
const HIDDEN: Duration = Duration::from_secs(10);
/// Most names of groups in a message.
const LISTED: usize = 20;
/// Longest wait for the end of an own agent.
const END: Duration = Duration::from_secs(10);
/// Bytes of an own agent's messages that are read.
const SAID: usize = 16 << 10;

/// Shows the table until a key, a signal, or the end of the traced processes.
///
/// # Errors
/// There is no agent, or the own agent fails.
pub fn run(args: &TopArgs, when: When) -> Result<ExitCode> {
    if !INTERVALS.contains(&args.interval) {
        bail!(WrongUse("--interval is 200ms to 1h".to_owned()));
    }
    let own = args.whom.is_given().then(|| Own::start(&args.whom)).transpose()?;
    let folder = own.as_ref().map_or(&args.store, |own| &own.folder);
    if own.is_none() && locality_service::live::agent(folder).is_none() {
        let lacks_rights = Reader::new(folder).err();
        return Err(lacks_rights.unwrap_or_else(|| {
            anyhow::anyhow!(
                "no agent writes to {}: -p PID or --cgroup PATH trace without an agent, and --store names \
                 the folder of one",
                folder.display()
            )
        }));
    }
    let feed = Feed { reader: Reader::new(folder)?, own, words: words(&args.whom), caches: caches() };
    let (is_terminal, is_dumb) = (
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty()),
    );
    let is_batch = args.batch || args.once || args.count.is_some() || args.format == QueryFormat::Json;
    let view = View::new(&args.filter, when.on(&std::io::stdout()));
    if is_batch || !is_terminal || is_dumb { print(args, feed, view) } else { follow(args, feed, view) }
}

/// Who is traced, in words of the first line.
fn words(whom: &WhomArgs) -> Option<String> {
    let list = |names: Vec<String>| names.join(", ");
    match whom.is_given() {
        false => None,
        true if whom.all => Some("the whole machine".to_owned()),
        true if whom.namespace => Some("this pid namespace".to_owned()),
        true if !whom.pids.is_empty() => {
            Some(format!("process {}", list(whom.pids.iter().map(u32::to_string).collect())))
        }
        true => Some(list(whom.cgroup.iter().map(|path| path.display().to_string()).collect())),
    }
}

fn caches() -> Vec<(u8, u64)> {
    machine::data_caches().iter().map(|cache| (cache.level, cache.bytes)).collect()
}

/// Tables one below the other.
fn print(args: &TopArgs, mut feed: Feed, mut view: View) -> Result<ExitCode> {
    let most = if args.once { Some(1) } else { args.count };
    let started = Instant::now();
    let mut printed = 0;
    loop {
        let (snapshot, rest) = feed.next(args.interval)?;
        view.take(snapshot);
        if printed == 0
            && (view.is_over() || started.elapsed() >= HIDDEN)
            && let Some(groups) = view.hidden()
        {
            let groups = groups.into_iter().take(LISTED).collect::<Vec<_>>().join(", ");
            bail!("no group contains the text of --filter, {}; groups: {groups}", args.filter);
        }
        // The first table waits for a group.
        if view.has_rows() || view.is_over() || started.elapsed() >= FIRST || printed > 0 {
            let page = match args.format {
                QueryFormat::Text => locality_top::text(&view),
                QueryFormat::Json => locality_top::json(&view),
            };
            to_stdout(page.as_bytes())?;
            printed += 1;
        }
        if view.is_over() && printed > 0 {
            if !view.has_rows() {
                bail!("the traced processes ended before a sample was taken");
            }
            return Ok(ExitCode::SUCCESS);
        }
        if most.is_some_and(|most| printed >= most) {
            if !view.has_rows() {
                bail!("no sample was taken in {} s: the traced processes sleep", FIRST.as_secs());
            }
            return Ok(ExitCode::SUCCESS);
        }
        feed.rest(rest);
    }
}

/// The table on the terminal; the numbers are computed by a thread of low priority.
fn follow(args: &TopArgs, mut feed: Feed, view: View) -> Result<ExitCode> {
    let (sender, receiver) = mpsc::sync_channel(2);
    let (end, ended) = mpsc::channel::<()>();
    let interval = args.interval;
    let thread = std::thread::Builder::new().name("locality-top".to_owned()).spawn(move || {
        Reader::be_modest();
        loop {
            let (sent, rest) = match feed.next(interval) {
                Ok((snapshot, rest)) => {
                    let is_over = snapshot.is_over;
                    (sender.send(Ok(snapshot)).is_ok() && !is_over, rest)
                }
                Err(error) => {
                    let _ = sender.send(Err(format!("{error:#}")));
                    (false, Duration::ZERO)
                }
            };
            let until = Instant::now() + rest;
            while sent && Instant::now() < until && ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
                if feed.has_ended() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            if !sent || ended.try_recv() == Err(mpsc::TryRecvError::Disconnected) {
                // The own agent ends here.
                return;
            }
        }
    });
    let thread = thread.context("cannot start a thread")?;
    let shown = locality_top::follow(view, &receiver);
    drop((receiver, end));
    let _ = thread.join();
    shown?;
    Ok(ExitCode::SUCCESS)
}

/// The source of numbers.
struct Feed {
    reader: Reader,
    own: Option<Own>,
    words: Option<String>,
    caches: Vec<(u8, u64)>,
}

impl Feed {
    /// The next numbers, and the time until further ones.
    ///
    /// # Errors
    /// The store is unreadable, or the own agent failed.
    fn next(&mut self, interval: Duration) -> Result<(Snapshot, Duration)> {
        let started = Instant::now();
        // Looked at first: what the agent wrote until its end is then read.
        let has_ended = self.has_ended();
        if has_ended && let Some(own) = &mut self.own {
            own.check()?;
        }
        let found = self.reader.look()?;
        let is_over = has_ended || (self.own.is_none() && found.agent.is_none());
        let snapshot = self.snapshot(found, is_over);
        let rest = (started.elapsed() * REST).max(interval.saturating_sub(started.elapsed()));
        Ok((snapshot, rest))
    }

    fn snapshot(&self, found: Found, is_over: bool) -> Snapshot {
        let cost = found.segments.iter().rev().find_map(|segment| segment.cost);
        let state = match (&self.words, &found.agent) {
            (Some(words), _) => words.clone(),
            (None, Some((pid, state))) => format!("agent {pid} ({state})"),
            (None, None) => "no agent".to_owned(),
        };
        let parts = found.segments.into_iter().map(|segment| Part {
            started_ns: segment.started_ns,
            wall_ns: segment.wall_ns,
            rows: segment.rows,
        });
        Snapshot {
            now_ns: found.now_ns,
            parts: parts.collect(),
            caches: self.caches.clone(),
            cost,
            state,
            is_over,
        }
    }

    fn has_ended(&mut self) -> bool {
        self.own.as_mut().is_some_and(Own::has_ended)
    }

    /// Waits; the end of the own agent ends the wait.
    fn rest(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until && !self.has_ended() {
            std::thread::sleep(
                Duration::from_millis(50).min(until.saturating_duration_since(Instant::now())),
            );
        }
    }
}

/// An agent of `top`, with its store; both end with the value.
struct Own {
    child: Child,
    folder: PathBuf,
    said: Arc<Mutex<Vec<u8>>>,
    reader: Option<std::thread::JoinHandle<()>>,
    status: Option<std::process::ExitStatus>,
}

impl Own {
    fn start(whom: &WhomArgs) -> Result<Self> {
        let folder = new_folder()?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["--quiet", "agent", "--window", WINDOW, "--store-bytes", STORE_BYTES]);
        command.args(["--only-for", &std::process::id().to_string(), "--store"]).arg(&folder);
        command.args(["--overhead", &whom.overhead().to_string(), "--own", &whom.own().to_string()]);
        if let Some(by) = whom.by().to_possible_value() {
            command.args(["--group", by.get_name()]);
        }
        command.args(targets(whom));
        for pid in &whom.pids {
            command.args(["--pid", &pid.to_string()]);
        }
        // Ctrl-C reaches `top` alone, and messages stay off the table.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let child = command.spawn().context("cannot start an agent");
        let mut child = child.inspect_err(|_| drop(std::fs::remove_dir_all(&folder)))?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let reader = child.stderr.take().map(|mut stderr| {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                let mut bytes = [0; 1024];
                while let Ok(n @ 1..) = stderr.read(&mut bytes) {
                    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                    let room = SAID.saturating_sub(said.len());
                    said.extend_from_slice(bytes.get(..n.min(room)).unwrap_or_default());
                }
            })
        });
        Ok(Self { child, folder, said, reader, status: None })
    }

    fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status.is_some()
    }

    /// The agent's reason for a failure.
    fn check(&mut self) -> Result<()> {
        let Some(status) = self.status.filter(|status| !status.success()) else { return Ok(()) };
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = String::from_utf8_lossy(&said).into_owned();
        // The first sentence is the tracer's, and has the reason.
        let why = said.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let why = why.strip_prefix("locality-bpf: ").unwrap_or(why);
        match why.is_empty() {
            true => bail!("the agent ended ({status})"),
            false => bail!("{why}"),
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let until = Instant::now() + END;
        if !self.has_ended() {
            locality_service::live::end(self.child.id());
        }
        while !self.has_ended() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A new folder that only this user may read.
fn new_folder() -> Result<PathBuf> {
    let base = std::env::temp_dir();
    let made = |attempt: u32| -> (PathBuf, std::io::Result<()>) {
        let path: &Path = &base;
        let path = path.join(format!("locality-top-{}-{attempt}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        (path, made)
    };
    for attempt in 0..100 {
        match made(attempt) {
            (path, Ok(())) => return Ok(path),
            (_, Err(error)) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            (path, Err(error)) => {
                return Err(error).with_context(|| format!("cannot make {}", path.display()));
            }
        }
    }
    bail!("cannot make a folder in {}: TMPDIR names another place", base.display())
}
