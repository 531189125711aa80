//! Small system calls without a home elsewhere: clocks, epoll, eventfd, signalfd, scheduling.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr::NonNull,
    sync::atomic::{AtomicI32, Ordering},
    time::Duration,
};

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system call returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn clock_ns(clock: libc::clockid_t) -> io::Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the destination is a live `timespec`.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// `CLOCK_MONOTONIC`, the clock of `bpf_ktime_get_ns`.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// `CLOCK_BOOTTIME`, the clock of a process's start time.
pub fn boottime_ns() -> u64 {
    clock_ns(libc::CLOCK_BOOTTIME).unwrap_or(0)
}

/// CPU time used by our own process.
pub fn own_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// CPU time used by all threads of a process, the ended ones included (`clock_getcpuclockid(3)`).
pub fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    // CPUCLOCK_SCHED of the process: the kernel's encoding of a per-process clock.
    clock_ns((!(pid as i32) << 3) | 2)
}

/// An `epoll(7)` instance that watches for input.
#[derive(Debug)]
pub struct Poll(OwnedFd);

impl Poll {
    /// A new instance.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a system call without pointers.
        owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Self)
    }

    /// Watches `fd`.
    pub fn add(&self, fd: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: the event is live for the call.
        if unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Waits until one is readable, at most `timeout`.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
        let timeout_ms = timeout.as_millis().min(i32::MAX as u128) as i32;
        // SAFETY: the array is live and its length is given.
        let n = unsafe {
            libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, timeout_ms)
        };
        match n {
            0.. => Ok(()),
            _ => match io::Error::last_os_error() {
                e if e.kind() == io::ErrorKind::Interrupted => Ok(()),
                e => Err(e),
            },
        }
    }
}

/// A counter that wakes a [`Poll`].
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A new counter at 0.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a system call without pointers.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(Self)
    }

    /// A counter at 0 on which [`Waker::clear`] waits until it is readable.
    pub fn blocking() -> io::Result<Self> {
        // SAFETY: a system call without pointers.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) }).map(Self)
    }

    /// Makes it readable.
    pub fn wake(&self) {
        let one = 1u64;
        // SAFETY: eight live bytes. It can only fail when the counter is full, and then it is readable.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Makes it unreadable.
    pub fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: eight live bytes. A failure means unreadable memory.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) };
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Reports `SIGCHLD`, that is, stops and ends of traced threads, as input on a descriptor.
#[derive(Debug)]
pub struct ChildSignals(OwnedFd);

fn sigchld_set() -> libc::sigset_t {
    // SAFETY: an all-zero set is a valid value to initialise.
    let mut set = unsafe { std::mem::zeroed::<libc::sigset_t>() };
    // SAFETY: the set is live.
    unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
    }
    set
}

/// Blocks `SIGCHLD` in this thread and its later threads; call before the first thread is started.
pub fn block_sigchld() -> io::Result<()> {
    // SAFETY: the set is live.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &sigchld_set(), std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

impl ChildSignals {
    /// The descriptor; `SIGCHLD` must be blocked.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the set is live.
        owned(unsafe { libc::signalfd(-1, &sigchld_set(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) }).map(Self)
    }

    /// Makes it unreadable; whether a signal had come since the last time.
    pub fn clear(&self) -> bool {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        // SAFETY: the buffer is live. `SIGCHLD` does not queue, so one read empties it.
        unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), info.len()) > 0 }
    }
}

impl AsRawFd for ChildSignals {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Highest real-time priority (`sched(7)`).
pub const MOST_URGENT: i32 = 99;

/// The capture thread's real-time priority: the lowest but one, which is the window process'.
pub const CAPTURE_PRIORITY: i32 = 2;

/// Highest priority of the capture thread: below the watchdog.
const CAPTURE_MOST: i32 = MOST_URGENT - 1;

/// The capture thread's priority at the moment.
static CAPTURE_NOW: AtomicI32 = AtomicI32::new(CAPTURE_PRIORITY);

/// The capture thread's priority at the moment: [`CAPTURE_PRIORITY`], or more where real-time
/// threads are traced.
pub fn capture_priority() -> i32 {
    CAPTURE_NOW.load(Ordering::Relaxed)
}

/// Raises the capture thread's priority, to have it and the window process go before threads of
/// this real-time priority, which would otherwise keep it from resuming them. Returns whether
/// anything changed; the callers set the threads' priorities.
pub fn outrank(priority: i32) -> bool {
    let wanted = (priority + 2).min(CAPTURE_MOST);
    priority > 0 && CAPTURE_NOW.fetch_max(wanted, Ordering::Relaxed) < wanted
}

/// Real-time priority of a thread; 0 for ordinary, deadline and ended threads.
pub fn real_time_priority(tid: u32) -> i32 {
    let mut parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the destination is live.
    match unsafe { libc::sched_getparam(tid as libc::pid_t, &raw mut parameters) } {
        0 => parameters.sched_priority,
        _ => 0,
    }
}

/// Gives this thread [`capture_priority`], to run as soon as a target stops.
pub fn make_thread_urgent() -> io::Result<()> {
    make_urgent(0, capture_priority())
}

/// Gives this thread the lowest priority, until [`make_urgent`].
pub fn make_thread_idle() -> io::Result<()> {
    set_policy(0, libc::SCHED_IDLE, 0)
}

/// Whether a thread has the priority of [`make_thread_idle`]; true for an ended thread.
pub fn is_idle(tid: u32) -> bool {
    // SAFETY: a system call with plain arguments.
    let policy = unsafe { libc::sched_getscheduler(tid as libc::pid_t) };
    policy < 0 || policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_IDLE
}

fn set_policy(tid: u32, policy: i32, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    let policy = policy | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameters are live.
    match unsafe { libc::sched_setscheduler(tid as libc::pid_t, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Number of the calling thread.
pub fn this_thread() -> u32 {
    // SAFETY: a system call without arguments.
    unsafe { libc::gettid() as u32 }
}

/// Number of this thread's processor.
pub fn this_processor() -> u32 {
    // SAFETY: a call without arguments.
    unsafe { libc::sched_getcpu() as u32 }
}

/// A set of processors that a thread may use.
#[derive(Clone)]
pub struct Processors(libc::cpu_set_t);

impl std::fmt::Debug for Processors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} processors", self.count())
    }
}

impl Processors {
    /// Processors allowed for the calling thread.
    pub fn of_this_thread() -> io::Result<Self> {
        // SAFETY: an all-zero set is valid; the set is live and its size is given.
        unsafe {
            let mut set = std::mem::zeroed::<libc::cpu_set_t>();
            match libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) {
                0 => Ok(Self(set)),
                _ => Err(io::Error::last_os_error()),
            }
        }
    }

    /// All processors of a set, present or not.
    pub fn all() -> Self {
        // SAFETY: an all-zero set is a valid one, and the numbers lie within it.
        unsafe {
            let mut set = std::mem::zeroed::<libc::cpu_set_t>();
            (0..libc::CPU_SETSIZE as usize).for_each(|cpu| libc::CPU_SET(cpu, &mut set));
            Self(set)
        }
    }

    /// A single processor; an error beyond the set's size.
    pub fn only(cpu: u32) -> io::Result<Self> {
        if cpu >= libc::CPU_SETSIZE as u32 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: an all-zero set is a valid one, and the number lies within it.
        unsafe {
            let mut set = std::mem::zeroed::<libc::cpu_set_t>();
            libc::CPU_SET(cpu as usize, &mut set);
            Ok(Self(set))
        }
    }

    /// Whether the set contains a processor.
    pub fn contains(&self, cpu: u32) -> bool {
        // SAFETY: the number lies within the set.
        cpu < libc::CPU_SETSIZE as u32 && unsafe { libc::CPU_ISSET(cpu as usize, &self.0) }
    }

    /// The set without one processor.
    pub fn without(&self, cpu: u32) -> Self {
        let mut others = self.clone();
        if cpu < libc::CPU_SETSIZE as u32 {
            // SAFETY: the number lies within the set.
            unsafe { libc::CPU_CLR(cpu as usize, &mut others.0) };
        }
        others
    }

    /// How many.
    pub fn count(&self) -> u32 {
        // SAFETY: the set is live.
        unsafe { libc::CPU_COUNT(&self.0) as u32 }
    }

    /// Restricts a thread (0: this one) to these processors.
    pub fn assign(&self, tid: u32) -> io::Result<()> {
        // SAFETY: the set is live and its size is given.
        match unsafe { libc::sched_setaffinity(tid as libc::pid_t, size_of_val(&self.0), &raw const self.0) }
        {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Gives a thread (0: this one) a real-time priority.
pub fn make_urgent(tid: u32, priority: i32) -> io::Result<()> {
    set_policy(tid, libc::SCHED_FIFO, priority)
}

/// Makes a thread of ours an ordinary one.
pub fn make_ordinary(tid: u32) -> io::Result<()> {
    set_policy(tid, libc::SCHED_OTHER, 0)
}

/// Gives this thread a lower priority than all others, or ends that. Without the right, nothing
/// changes.
pub fn make_thread_patient(patient: bool) {
    renice(if patient { 19 } else { 0 });
}

/// Ends the effect of [`make_thread_patient`] for another thread of the tool. Without the right or
/// the thread, nothing changes.
pub fn end_patience(tid: u32) {
    if tid != 0 {
        // SAFETY: a system call with plain arguments.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, 0) };
    }
}

/// A tenth of the CPU for this thread and its later threads under competition: the work may take
/// long, but must end on a machine that is busy for hours.
pub fn make_thread_modest() {
    renice(10);
}

/// For this thread. Without the right, nothing changes.
fn renice(nice: i32) {
    // SAFETY: a system call with plain arguments.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

/// Half of a processor for this thread however many others want one, until it is dropped: a start
/// beside hundreds of runnable threads must not take long, and beside a few it must not hold them
/// up.
#[derive(Debug)]
pub struct Hurry(i32);

impl Hurry {
    /// From now on; without the right, nothing changes.
    pub fn begin() -> Self {
        // SAFETY: a system call with plain arguments, for this thread.
        let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        renice(niceness(runnable().saturating_sub(1), cpus).min(before));
        Self(before)
    }
}

/// Running and runnable threads, this one included.
fn runnable() -> usize {
    let stat = std::fs::read("/proc/stat").unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let number = stat.lines().find_map(|line| line.strip_prefix("procs_running "));
    number.and_then(|number| number.trim().parse().ok()).unwrap_or(1)
}

/// The nice value with which a thread has as much of a processor as all others that want it; each
/// step is a quarter more (`sched_prio_to_weight` in the kernel's kernel/sched/core.c).
fn niceness(others: usize, cpus: usize) -> i32 {
    let rivals = others as f64 / cpus.max(1) as f64;
    -(rivals.max(1.0).ln() / 1.25_f64.ln()).round().min(20.0) as i32
}

/// Work in slices: another thread waits for one slice only.
#[derive(Debug)]
pub struct Slices(std::cell::Cell<std::time::Instant>);

/// Longest time in a row that a measurement takes a processor, but for the last piece of work.
const SLICE: Duration = Duration::from_millis(3);

/// Rest between two.
const REST: Duration = Duration::from_millis(1);

impl Slices {
    /// The first begins now.
    pub fn begin() -> Self {
        Self(std::time::Instant::now().into())
    }

    /// Rests, if the slice is over. To be called before each piece of work, of a millisecond at most.
    pub fn rest(&self) {
        if self.0.get().elapsed() > SLICE {
            std::thread::sleep(REST);
            self.0.set(std::time::Instant::now());
        }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        renice(self.0);
    }
}

/// Descriptors of a trace without watchpoints.
const FEWEST_DESCRIPTORS: u64 = 64;
/// A hard limit below this is raised where we have the right to.
const USUAL_DESCRIPTORS: u64 = 4096;

/// Has this process open as many files as it may, and lets a write beyond the file size limit fail
/// instead of ending us. Children that are started from here on inherit both. Returns how many
/// files may be open.
pub fn loosen_limits() -> u64 {
    // SAFETY: the limit is live; a signal that is ignored runs no code of ours. Errors leave the
    // limits as they are.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut files) != 0 {
            return u64::MAX;
        }
        if files.rlim_max < USUAL_DESCRIPTORS {
            let usual = libc::rlimit { rlim_cur: USUAL_DESCRIPTORS, rlim_max: USUAL_DESCRIPTORS };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &usual) == 0 {
                return USUAL_DESCRIPTORS;
            }
        }
        files.rlim_cur = files.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &files);
        files.rlim_cur
    }
}

/// Refuses a limit of open files with which no trace can be made.
///
/// # Errors
/// One sentence with the command that helps.
pub fn check_descriptors(allowed: u64) -> io::Result<()> {
    if allowed >= FEWEST_DESCRIPTORS {
        return Ok(());
    }
    let why = format!(
        "at most {allowed} files may be open (`ulimit -n`), and a trace needs {FEWEST_DESCRIPTORS}: run it in a shell in \
         which `sudo prlimit --nofile={USUAL_DESCRIPTORS} --pid $$` was run"
    );
    Err(io::Error::other(why))
}

/// Whether whoever started us wants a signal ignored, as `nohup` does.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: all-zero bytes are a valid value to overwrite, and the destination is live.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

/// Memory of zeros that children forked from here on share with us; page-aligned, and there until
/// it is unmapped.
pub fn shared_memory(bytes: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new anonymous mapping, placed by the kernel.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(memory.cast()).ok_or_else(io::Error::last_os_error)
}

/// Whether a descriptor takes some bytes without waiting.
pub fn takes_writing(to: &impl AsRawFd) -> bool {
    let mut wanted = libc::pollfd { fd: to.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one live structure.
    unsafe { libc::poll(&raw mut wanted, 1, 0) == 1 && wanted.revents & libc::POLLOUT != 0 }
}

/// Whether the effective user is root.
pub fn is_root() -> bool {
    // SAFETY: a system call without arguments.
    unsafe { libc::geteuid() == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hurry_takes_half_a_processor() {
        assert_eq!([0, 1, 2, 3].map(|others| niceness(others, 2)), [0, 0, 0, -2]);
        assert_eq!((niceness(20, 2), niceness(600, 2), niceness(7, 0)), (-10, -20, -9));
        assert!(runnable() > 0);
    }

    #[test]
    fn slices_end() {
        let slices = Slices::begin();
        let (began, mut worked) = (std::time::Instant::now(), Duration::ZERO);
        while began.elapsed() < 5 * SLICE {
            let now = std::time::Instant::now();
            while now.elapsed() < Duration::from_micros(200) {}
            worked += now.elapsed();
            slices.rest();
        }
        assert!(began.elapsed() - worked >= 2 * REST);
    }
}
