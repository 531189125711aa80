//! A program that does equal units of work until killed, and the moment of each unit's end.
//!
//! A unit is a line on the program's stdout, or a block taken from stdin. The
//! program's CPU clock is read with each unit (`clock_getcpuclockid(3)`), by
//! a thread of the benchmark that sleeps in between.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The end of a unit.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    wall: Instant,
    cpu_s: f64,
}

/// Seconds that a unit took, on average over a while.
#[derive(Debug, Clone, Copy)]
pub struct PerUnit {
    /// On the clock.
    pub wall_s: f64,
    /// Of the program's CPU time.
    pub cpu_s: f64,
}

/// How a program shows that a unit is done.
#[derive(Debug, Clone)]
pub enum Work {
    /// It prints a line.
    Lines,
    /// The program takes the next block from stdin; after
    /// the last comes the block with the given index.
    Blocks(Arc<Vec<Vec<u8>>>, usize),
}

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    units: Arc<Mutex<Vec<Unit>>>,
}

impl Worker {
    /// Starts the program and waits for the first 20 units.
    pub fn start(mut command: Command, work: Work) -> Self {
        command.stderr(Stdio::null());
        match work {
            Work::Lines => command.stdin(Stdio::null()).stdout(Stdio::piped()),
            Work::Blocks(..) => command.stdin(Stdio::piped()).stdout(Stdio::null()),
        };
        let mut child = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let units: Arc<Mutex<Vec<Unit>>> = Arc::default();
        let clock = cpu_clock(child.id());
        let note = {
            let units = Arc::clone(&units);
            move || lock(&units).push(Unit { wall: Instant::now(), cpu_s: seconds(clock) })
        };
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        thread::spawn(move || match (work, stdin, stdout) {
            (Work::Blocks(blocks, again), Some(stdin), _) => feed(stdin, &blocks, again, note),
            (_, _, stdout) => read(stdout, note),
        });
        let mut worker = Self { child, units };
        let deadline = Instant::now() + Duration::from_secs(60);
        while lock(&worker.units).len() < 20 {
            assert!(Instant::now() < deadline, "{command:?} does no work");
            assert!(matches!(worker.child.try_wait(), Ok(None)), "{command:?} ended");
            thread::sleep(Duration::from_millis(10));
        }
        worker
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What a unit took between two moments; whole units only.
    pub fn per_unit(&self, from: Instant, to: Instant) -> PerUnit {
        let units = lock(&self.units);
        let within: Vec<&Unit> = units.iter().filter(|unit| (from..=to).contains(&unit.wall)).collect();
        let (Some(first), Some(last), 10..) = (within.first(), within.last(), within.len()) else {
            panic!("only {} units in {:?}", within.len(), to - from);
        };
        let count = (within.len() - 1) as f64;
        PerUnit {
            wall_s: (last.wall - first.wall).as_secs_f64() / count,
            cpu_s: (last.cpu_s - first.cpu_s) / count,
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The program ends in no other way; then the pipes close, and the reading thread ends too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(stdout: Option<ChildStdout>, note: impl Fn()) {
    for _ in stdout.into_iter().flat_map(|stdout| BufReader::new(stdout).split(b'\n')).map_while(Result::ok) {
        note();
    }
}

fn feed(mut stdin: ChildStdin, blocks: &[Vec<u8>], again: usize, note: impl Fn()) {
    // The smallest pipe: a block is taken when the program wants the block
    // and not long before.
    // SAFETY: a system call with plain arguments on a live descriptor. A larger pipe only blurs the
    // moments.
    unsafe { libc::fcntl(stdin.as_raw_fd(), libc::F_SETPIPE_SZ, 4096) };
    let mut at = 0;
    while let Some(block) = blocks.get(at) {
        if stdin.write_all(block).is_err() {
            return;
        }
        note();
        at = if at + 1 == blocks.len() { again } else { at + 1 };
    }
}

/// The clock of a process's CPU time.
fn cpu_clock(pid: u32) -> libc::clockid_t {
    let mut clock = 0;
    // SAFETY: the destination is live; the child is not reaped, hence the pid is the child's.
    let result = unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) };
    assert_eq!(result, 0, "process {pid} has no CPU clock");
    clock
}

/// The clock's reading in seconds; 0 once the process is gone.
fn seconds(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the destination is live.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
