//! A traced program under the test's control: started, waited for, signalled, and ended with the test.

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::overseer::Overseer;
use crate::programs;

/// Longest time until a program is ready on a busy machine; a slower program hangs.
const READY_LIMIT: Duration = Duration::from_secs(20);

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Target {
    child: Child,
    name: String,
    lines: Receiver<String>,
    /// Lines before and after the line "ready".
    seen: Vec<String>,
    errors: Option<JoinHandle<String>>,
    /// For a tracer.
    overseer: Option<Overseer>,
}

/// Results of an ended program.
#[derive(Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// Lines on stdout, the line "ready PID" left out.
    pub stdout: Vec<String>,
    /// The whole stderr.
    pub stderr: String,
}

impl Target {
    /// Starts a target program and waits for its message that the traced phase begins.
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let mut command = Command::new(programs::build(program));
        command.args(arguments);
        Self::start_command(command)
    }

    /// Starts a command that runs a target program: as another user, under another program, ….
    pub fn start_command(command: Command) -> Self {
        let mut target = Self::spawn(command);
        let deadline = Instant::now() + READY_LIMIT;
        loop {
            match target.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.starts_with("ready ") => return target,
                Ok(line) => target.seen.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} was not ready after {READY_LIMIT:?}", target.name)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let name = target.name.clone();
                    panic!("{name} ended before it was ready: {:?}", target.finish(READY_LIMIT))
                }
            }
        }
    }

    /// Starts a program without waiting for a message.
    pub fn spawn(mut command: Command) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot start {name}: {e}"));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (sender, lines) = mpsc::channel();
        // Both are read while the program runs: the program never waits for a full pipe.
        thread::spawn(move || pass_lines(stdout, &sender));
        let errors = Some(thread::spawn(move || collect(stderr)));
        Self { child, name, lines, seen: Vec::new(), errors, overseer: None }
    }

    /// The program is a tracer, which must trace none of its own processes: if the overseer sees
    /// such a trace, the test fails at the end.
    #[must_use]
    pub fn overseen(mut self) -> Self {
        self.overseer = Some(Overseer::of(self.pid()));
        self
    }

    fn end_overseer(&mut self) {
        let seen = self.overseer.take().map(Overseer::finish).unwrap_or_default();
        assert!(seen.is_empty() || thread::panicking(), "the tool traced itself: {seen:?}");
    }

    /// The program's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The program's present thread ids.
    pub fn threads(&self) -> Vec<u32> {
        let entries = fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
    }

    /// Used CPU time, user and system, in the kernel's clock ticks of 10 ms.
    pub fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        // The name in parentheses may contain every character; fields
        // 14 and 15 are counted from the name's end (proc_pid_stat(5)).
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: i32) {
        let pid = libc::pid_t::try_from(self.pid()).unwrap_or(libc::pid_t::MAX);
        // SAFETY: kill takes plain numbers and touches no memory of
        // ours; the child is not reaped, hence the pid is the child's.
        let result = unsafe { libc::kill(pid, signal) };
        assert_eq!(result, 0, "cannot signal {}: {}", self.name, std::io::Error::last_os_error());
    }

    /// Whether the program has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the program's end and returns the results; panics after `limit`.
    pub fn finish(mut self, limit: Duration) -> Finished {
        let deadline = Instant::now() + limit;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                Ok(None) => panic!("{} still runs after {limit:?}", self.name),
                Err(e) => panic!("cannot wait for {}: {e}", self.name),
            }
        };
        self.end_overseer();
        // A grandchild may have the pipe open: take the lines that come within a moment.
        let mut stdout = std::mem::take(&mut self.seen);
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(500)) {
            if !line.starts_with("ready ") {
                stdout.push(line);
            }
        }
        let stderr = self.errors.take().and_then(|errors| errors.join().ok()).unwrap_or_default();
        Finished { status, stdout, stderr }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // An earlier end is fine.
        drop(self.child.kill());
        drop(self.child.wait());
        self.end_overseer();
    }
}

fn pass_lines(from: Option<ChildStdout>, to: &mpsc::Sender<String>) {
    for line in from.into_iter().flat_map(|from| BufReader::new(from).split(b'\n')).map_while(Result::ok) {
        if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
            return;
        }
    }
}

fn collect(from: Option<ChildStderr>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        // Bytes read before an error stay.
        drop(from.read_to_end(&mut bytes));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
