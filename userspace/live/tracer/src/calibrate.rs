//! Measures what a clock tick and a watchpoint trap cost on this machine, on a child process of ours.
//!
//! Tick: the child spins on the clock and notes the gaps; the price is the median of the gaps in
//! which a sample was taken. Trap: the child times single accesses to a watched word; the price is
//! the median, less that of unwatched ones. Once more with events that disarm themselves at each.
//! Reading of a meter: as a tick, but the lower quartile. Waking: the spinning child is stopped by
//! a signal and resumed; the price is the lower quartile from our resuming it to the end of the
//! gap. The child rests between slices of some milliseconds, and while it waits for orders: another
//! program that wants its processor waits for one slice only. String instructions: the child copies
//! pages, without a watched word and with one that it does not touch. Stores across cache lines:
//! likewise, a thousand in a row. Switches between threads: likewise, to a child of the child on the
//! same processor and back. Sources of error: the child's
//! stack and caches are small, so a tick that copies a deep stack costs more.

use std::{
    arch::asm,
    io,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use locality_common::{
    record::{Meter, WatchKey, WatchState, touch as role},
    rules::phase,
};

use super::{governor::UnitCosts, sampling_clock::Clock};
use locality_kernel::{
    object::{Object, Ring},
    perf::Event,
    ptrace,
    records::{Record, decode},
    sys,
};

/// Length of the spinning run.
const SPIN_NS: u64 = 30_000_000;

/// Sampling period while spinning.
const PERIOD_NS: u64 = 1_000_000;

/// Shorter gaps are the loop alone.
const GAP_NS: u64 = 1_000;

/// Gaps that the child can note.
const GAPS: usize = 512;

/// Traps that are timed.
const TRAPS: u64 = 24;

/// Longest time for the child's whole calibration.
const PATIENCE: Duration = Duration::from_millis(1500);

/// The child waits awake for an order for so long, then asleep.
const AWAKE: Duration = Duration::from_millis(1);

/// How long it sleeps at a time then.
const NAP: Duration = Duration::from_micros(100);

/// Longest time of spinning in a row, and the rest after it.
const SLICE_NS: u64 = 4_000_000;
const REST_NS: u64 = 1_000_000;

/// Assumed on a machine too busy to measure: the highest prices seen on virtual machines, to
/// respect the budget.
pub(super) const GUESS: UnitCosts = UnitCosts {
    tick_ns: 30_000,
    trap_ns: 20_000,
    gap_ns: 15_000,
    disarm_ns: 20_000,
    meter_ns: 20_000,
    wake_ns: 50_000,
    copies_ns: [500, 20_000],
    split_stores_ns: [600, 6_600],
    switches_ns: [2_000, 4_000],
};

/// A price beyond this is a wait for a CPU: ten times what was seen on virtual machines.
const MOST_NS: u64 = 200_000;

#[repr(C)]
struct Shared {
    /// The child's next order; the child answers in `done`.
    order: AtomicU64,
    done: AtomicU64,
    result_ns: AtomicU64,
    word: AtomicU64,
    /// Starts and ends of gaps.
    gaps: [[AtomicU64; 2]; GAPS],
}

const QUIT: u64 = u64::MAX;
const SPIN: u64 = 1 << 32;
const SHORT_SPIN: u64 = 1 << 33;
const COPY: u64 = 1 << 34;
const PROBE: u64 = 1 << 35;
const STORE: u64 = 1 << 36;
const SWITCH: u64 = 1 << 37;

/// Pages that are copied at a time, and how often.
const PAGES: usize = 16;
const COPIES: usize = 9;

/// Stores across lines that are timed together, in rounds over so many lines.
const SPLIT_STORES: usize = 1000;
const STORED_LINES: usize = 25;

/// Switches there and back that are timed together, and how often.
const SWITCHES: u64 = 20;
const SWITCH_ROUNDS: u64 = 12;

/// A child that follows orders.
struct Child {
    pid: u32,
    page: NonNull<Shared>,
    orders: u64,
    until: Instant,
}

/// Name of the child, the only traced process of this tool, traced to measure the cost of a stop.
const CHILD: &std::ffi::CStr = c"calibration";

impl Child {
    fn start() -> io::Result<Self> {
        let page = sys::shared_memory(size_of::<Shared>())?.cast::<Shared>();
        let parent = std::process::id();
        // SAFETY: with one thread the child may continue as a copy of this process.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: system calls with plain arguments: the child does not outlive us, also
                // when we were killed before it said so.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::prctl(libc::PR_SET_NAME, CHILD.as_ptr());
                    if libc::getppid() as u32 != parent {
                        libc::_exit(1);
                    }
                }
                survive_stray_traps();
                // SAFETY: the mapping is shared with the parent and lives as long as the process.
                obey(unsafe { page.as_ref() })
            }
            pid => Ok(Self { pid: pid as u32, page, orders: 0, until: Instant::now() + PATIENCE }),
        }
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping is unmapped only in `drop`.
        unsafe { self.page.as_ref() }
    }

    /// Gives an order and returns the answer.
    fn ask(&mut self, kind: u64) -> Result<u64> {
        let order = self.tell(kind);
        self.answer(order)
    }

    fn tell(&mut self, kind: u64) -> u64 {
        self.orders += 1;
        let order = kind | self.orders;
        self.shared().order.store(order, Ordering::Release);
        order
    }

    fn answer(&self, order: u64) -> Result<u64> {
        // It may spin on the CPU on which we would wake up: a reading and our looking would make one gap.
        let is_done = || self.shared().done.load(Ordering::Acquire) == order;
        if !is_done() {
            let spins_ns = Self::spins_ns(order);
            std::thread::sleep(Duration::from_nanos(spins_ns + spins_ns / SLICE_NS * REST_NS));
        }
        while !is_done() {
            anyhow::ensure!(
                Instant::now() < self.until,
                "the machine is too busy to measure what a tick and a trap cost"
            );
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(self.shared().result_ns.load(Ordering::Relaxed))
    }

    /// How long the order has it spin.
    fn spins_ns(order: u64) -> u64 {
        if order & SPIN != 0 {
            SPIN_NS
        } else if order & SHORT_SPIN != 0 {
            SPIN_NS / 2
        } else if order & PROBE != 0 {
            SPIN_NS / 6
        } else {
            0
        }
    }

    /// The gaps that the child noted, as starts and ends.
    fn gaps(&self, noted: u64) -> Vec<[u64; 2]> {
        let gaps = self.shared().gaps.iter().take(noted as usize);
        gaps.map(|gap| [gap[0].load(Ordering::Relaxed), gap[1].load(Ordering::Relaxed)]).collect()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.shared().order.store(QUIT, Ordering::Release);
        // SAFETY: our own child is killed and reaped once, and our own mapping unmapped once.
        unsafe {
            libc::kill(self.pid as i32, libc::SIGKILL);
            libc::waitpid(self.pid as i32, std::ptr::null_mut(), 0);
            libc::munmap(self.page.as_ptr().cast(), size_of::<Shared>());
        }
    }
}

/// A trap without its cause (`capture::ptrace_stops::is_stray_trap`) must not end the child, whose
/// signals are not swallowed.
fn survive_stray_traps() {
    extern "C" fn ignore(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = ignore;
    // SAFETY: the handler does nothing, which is safe at any moment.
    unsafe { libc::signal(libc::SIGTRAP, handler as usize) };
}

/// The child's life: follow orders until the order to quit.
fn obey(shared: &Shared) -> ! {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        let order = shared.order.load(Ordering::Acquire);
        if order == QUIT {
            // SAFETY: ends the copy of the process without running our own exit handlers.
            unsafe { libc::_exit(0) };
        }
        if order == last {
            match since.elapsed() < AWAKE {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(NAP),
            }
            continue;
        }
        let result_ns = match Child::spins_ns(order) {
            0 if order & COPY != 0 => copy(),
            0 if order & STORE != 0 => store(),
            0 if order & SWITCH != 0 => switch(),
            0 => touch(&shared.word),
            length_ns => spin(shared, length_ns),
        };
        last = order;
        shared.result_ns.store(result_ns, Ordering::Relaxed);
        shared.done.store(order, Ordering::Release);
        since = Instant::now();
    }
}

/// Notes the gaps while spinning; returns their number.
fn spin(shared: &Shared, length_ns: u64) -> u64 {
    let (mut left_ns, mut gaps) = (length_ns, 0);
    let mut start = sys::monotonic_ns();
    let mut before = start;
    while gaps < GAPS {
        let now = sys::monotonic_ns();
        if now - before > GAP_NS {
            shared.gaps[gaps][0].store(before, Ordering::Relaxed);
            shared.gaps[gaps][1].store(now, Ordering::Relaxed);
            gaps += 1;
        }
        before = now;
        if now - start > SLICE_NS.min(left_ns) {
            left_ns = left_ns.saturating_sub(now - start);
            if left_ns == 0 {
                break;
            }
            std::thread::sleep(Duration::from_nanos(REST_NS));
            start = sys::monotonic_ns();
            before = start;
        }
    }
    gaps as u64
}

/// Time of an access; another one follows.
fn touch(word: &AtomicU64) -> u64 {
    let start = sys::monotonic_ns();
    word.load(Ordering::Relaxed);
    let time_ns = sys::monotonic_ns() - start;
    word.load(Ordering::Relaxed);
    time_ns
}

/// Time of copies by a string instruction.
fn copy() -> u64 {
    const PAGE: usize = 4096;
    let (from, mut to) = ([1u8; PAGE], [0u8; PAGE]);
    let start = sys::monotonic_ns();
    for _ in 0..PAGES {
        // SAFETY: both arrays are that long; the direction flag is clear, as the calling convention has it.
        unsafe {
            asm!("rep movsb", inout("rcx") PAGE => _, inout("rsi") from.as_ptr() => _, inout("rdi") to.as_mut_ptr() => _,
                options(nostack, preserves_flags));
        }
    }
    std::hint::black_box(&to);
    sys::monotonic_ns() - start
}

/// Time of stores across lines, [`SPLIT_STORES`] in a row.
fn store() -> u64 {
    #[repr(C, align(64))]
    struct Lines([u8; (STORED_LINES + 1) * 64]);
    let mut lines = Lines([0; (STORED_LINES + 1) * 64]);
    let first = lines.0.as_mut_ptr();
    let start = sys::monotonic_ns();
    for _ in 0..SPLIT_STORES / STORED_LINES {
        for line in 0..STORED_LINES {
            // SAFETY: the array has a line more than stored to; the eight bytes begin four bytes before
            // the end of a line.
            unsafe {
                let to = first.add(line * 64 + 60);
                asm!("mov qword ptr [{to}], {value}", to = in(reg) to, value = in(reg) line,
                    options(nostack, preserves_flags));
            }
        }
    }
    let time_ns = sys::monotonic_ns() - start;
    std::hint::black_box(&lines);
    time_ns
}

/// Least time of a switch to another process on this processor and back; 0 if that cannot be had.
fn switch() -> u64 {
    let mut ends = [[0; 2]; 2];
    let mut byte = 0u8;
    // SAFETY: system calls with live arguments. This process has one thread, so the new one may go on
    // as its copy; the copy makes system calls only, and ends with this process.
    unsafe {
        let mut before = std::mem::zeroed::<libc::cpu_set_t>();
        let mut one = before;
        libc::CPU_SET(libc::sched_getcpu().max(0) as usize, &mut one);
        let made = ends.iter_mut().all(|ends| libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) == 0)
            && libc::sched_getaffinity(0, size_of_val(&before), &raw mut before) == 0
            && libc::sched_setaffinity(0, size_of_val(&one), &raw const one) == 0;
        let [[from_us, to_other], [from_other, to_us]] = ends;
        let other = if made { libc::fork() } else { -1 };
        if other == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            while libc::read(from_us, (&raw mut byte).cast(), 1) == 1 {
                libc::write(to_us, (&raw const byte).cast(), 1);
            }
            libc::_exit(0);
        }
        let mut least_ns = if other < 0 { 0 } else { u64::MAX };
        for _ in 0..if other < 0 { 0 } else { SWITCH_ROUNDS } {
            let start = sys::monotonic_ns();
            for _ in 0..SWITCHES {
                libc::write(to_other, (&raw const byte).cast(), 1);
                libc::read(from_other, (&raw mut byte).cast(), 1);
            }
            least_ns = least_ns.min((sys::monotonic_ns() - start) / SWITCHES);
        }
        if other > 0 {
            libc::kill(other, libc::SIGKILL);
            libc::waitpid(other, std::ptr::null_mut(), 0);
        }
        libc::sched_setaffinity(0, size_of_val(&before), &raw const before);
        ends.as_flattened().iter().filter(|end| **end > 0).for_each(|end| _ = libc::close(*end));
        least_ns
    }
}

/// Prices and their origin.
#[derive(Debug, Clone)]
pub struct Calibration {
    /// Measured, or [`GUESS`].
    pub prices: UnitCosts,
    /// A sentence for the reader if the prices are a guess.
    pub guessed: Option<String>,
}

/// Whether no price is a wait for a CPU.
pub fn are_plausible(prices: &UnitCosts) -> bool {
    let UnitCosts { tick_ns, trap_ns, gap_ns, disarm_ns, meter_ns, wake_ns, .. } = *prices;
    let of_watches = [prices.copies_ns, prices.split_stores_ns, prices.switches_ns];
    let longest_ns = of_watches.into_iter().flatten().max().unwrap_or(0);
    [tick_ns, trap_ns, gap_ns, disarm_ns, meter_ns, wake_ns].iter().all(|price_ns| *price_ns <= MOST_NS)
        && tick_ns > 0
        && longest_ns <= 10 * MOST_NS
}

/// The prices of this machine, or a careful guess if unmeasurable.
pub fn measure_or_guess(object: &mut Object, ring: &mut Ring) -> Calibration {
    let why = match measure(object, ring) {
        Ok(prices) if are_plausible(&prices) => return Calibration { prices, guessed: None },
        // The child or we waited for a CPU.
        Ok(_) => "the machine is too busy to measure what a tick and a trap cost".to_owned(),
        Err(error) => format!("{error:#}"),
    };
    let guessed = format!(
        "The cost is an estimate: {why}, so {} µs a tick, {} µs a trap, {} µs more for one that disarms, {} µs a reading and {} µs a waking were assumed.",
        GUESS.tick_ns / 1000,
        GUESS.trap_ns / 1000,
        GUESS.disarm_ns / 1000,
        GUESS.meter_ns / 1000,
        GUESS.wake_ns / 1000
    );
    Calibration { prices: GUESS, guessed: Some(guessed) }
}

/// The prices of this machine. Must be called while the process has one thread; leaves the ring empty.
pub fn measure(object: &mut Object, ring: &mut Ring) -> Result<UnitCosts> {
    let mut child = Child::start().context("cannot start the calibration child")?;
    object.add_target(child.pid)?;
    let measured = ticks(&mut child, object, ring, (SPIN, PERIOD_NS)).and_then(|tick_ns| {
        let meter_ns = readings(&mut child, object, ring)?;
        let [trap_ns, gap_ns, disarm_ns] = traps(&mut child, object, ring)?;
        // Before the child is seized, for then its own child would be.
        let [copies_ns, split_stores_ns, switches_ns] = slower(&mut child, object)?;
        let (wake_ns, copies_ns) = (wakings(&mut child)?, copies_ns.map(|ns| ns / PAGES as u64));
        Ok(UnitCosts {
            tick_ns,
            trap_ns,
            gap_ns,
            disarm_ns,
            meter_ns,
            wake_ns,
            copies_ns,
            split_stores_ns,
            switches_ns,
        })
    });
    object.remove_target(child.pid);
    drop(child);
    while ring.next().is_some() {}
    measured
}

/// Whether a tick still costs about what it cost when these prices were measured: a look of some
/// milliseconds. Must be called while the process has one thread; leaves the ring empty.
pub fn probe(object: &mut Object, ring: &mut Ring, prices: &UnitCosts) -> Result<bool> {
    let mut child = Child::start().context("cannot start the calibration child")?;
    object.add_target(child.pid)?;
    let tick_ns = ticks(&mut child, object, ring, (PROBE, PERIOD_NS / 4));
    object.remove_target(child.pid);
    drop(child);
    while ring.next().is_some() {}
    // The median of some twenty, and of thirty then.
    Ok((prices.tick_ns / 2..=prices.tick_ns.saturating_mul(2)).contains(&tick_ns?))
}

fn ticks(child: &mut Child, object: &Object, ring: &mut Ring, (order, period_ns): (u64, u64)) -> Result<u64> {
    let mut clock = Clock::open(object, period_ns)?;
    clock.start()?;
    let noted = child.ask(order);
    clock.stop();
    let at = |record: &Record| match record {
        Record::Sample(sample, _) => Some(sample.header.time_ns),
        _ => None,
    };
    let gaps = child.gaps(noted?);
    price(&gaps, ring, at, 2).context("the sampling clock did not fire while a process ran")
}

fn readings(child: &mut Child, object: &mut Object, ring: &mut Ring) -> Result<u64> {
    let event = Event::meter(child.pid, PERIOD_NS, None).context("cannot set a meter")?;
    event.set_program(object.program_fd("meter")?)?;
    object.set_meter(child.pid, &Meter::default())?;
    let order = child.tell(SHORT_SPIN);
    event.enable()?;
    let noted = child.answer(order);
    object.remove_meter(child.pid);
    drop(event);
    let at = |record: &Record| match record {
        Record::Meter(reading) => Some(reading.header.time_ns),
        _ => None,
    };
    let gaps = child.gaps(noted?);
    // The lower quartile: readings go on through the whole trace, and while these milliseconds are
    // noisy their median says two or three times as much (15 to 45 µs were seen from one start to
    // the next).
    price(&gaps, ring, at, 4).context("the meter did not fire while a process ran")
}

/// The length above one of `parts` of the gaps with a record.
fn price(
    gaps: &[[u64; 2]],
    ring: &mut Ring,
    at: impl Fn(&Record) -> Option<u64>,
    parts: usize,
) -> Option<u64> {
    let mut costs_ns = Vec::new();
    while let Some(item) = ring.next() {
        if let Some(at) = at(&decode(&item)) {
            costs_ns
                .extend(gaps.iter().find(|gap| (gap[0]..=gap[1]).contains(&at)).map(|gap| gap[1] - gap[0]));
        }
    }
    (!costs_ns.is_empty()).then(|| quantile(costs_ns, parts))
}

/// Cost of a trap that stays armed, its part outside of the recording program, and the extra cost
/// of disarming an event.
fn traps(child: &mut Child, object: &mut Object, ring: &mut Ring) -> Result<[u64; 3]> {
    let quiet_ns = median((0..TRAPS).map(|_| child.ask(0)).collect::<Result<_>>()?);
    let (trap_ns, gaps_ns) = timed_traps(child, object, ring, Event::enable)?;
    let (last_ns, _) = timed_traps(child, object, ring, |event| event.enable_for(1))?;
    anyhow::ensure!(!gaps_ns.is_empty(), "the kernel side does not tell how long a trap took");
    let less = |time_ns: u64| time_ns.saturating_sub(quiet_ns);
    Ok([less(trap_ns), less(median(gaps_ns)), last_ns.saturating_sub(trap_ns)])
}

/// Median time of an access that traps, each time with an event of its own, enabled by `enable`,
/// and the times from when the kernel side was done with it to the next one.
fn timed_traps(
    child: &mut Child,
    object: &mut Object,
    ring: &mut Ring,
    enable: fn(&Event) -> io::Result<()>,
) -> Result<(u64, Vec<u64>)> {
    let address = &raw const child.shared().word as u64;
    let key = WatchKey { address, tgid: child.pid, reserved: 0 };
    let (mut times, mut gaps) = (Vec::new(), Vec::new());
    for _ in 0..TRAPS {
        // Each trap takes the whole path, record included: a use, then a reuse.
        let state = WatchState { phase: phase::ARMED, owner_tid: child.pid, ..WatchState::default() };
        object.add_watch(key, state)?;
        let event = Event::watchpoint(child.pid, address, 8, None).context("cannot set a watchpoint")?;
        event.set_program(object.program_fd("touch")?)?;
        enable(&event)?;
        times.push(child.ask(0)?);
        while let Some(item) = ring.next() {
            if let Record::Touch(touch, _) = decode(&item)
                && matches!(touch.role, role::REUSE | role::NEAR_REUSE)
                && touch.since_ns != u64::MAX
            {
                gaps.push(touch.enabled_ns.saturating_sub(touch.since_ns));
            }
        }
    }
    object.remove_watch(&key);
    Ok((median(times), gaps))
}

/// What copies of [`PAGES`] pages by a string instruction, [`SPLIT_STORES`] stores across lines, and
/// a switch there and back take without a watch and with one.
fn slower(child: &mut Child, object: &mut Object) -> Result<[[u64; 2]; 3]> {
    let shortest = |child: &mut Child, order| {
        let times: Result<Vec<u64>> = (0..COPIES).map(|_| child.ask(order)).collect();
        // The shortest: interruptions are no part of a copy.
        Ok::<_, anyhow::Error>(times?.into_iter().min().unwrap_or(0))
    };
    let timed = |child: &mut Child| {
        Ok::<_, anyhow::Error>([shortest(child, COPY)?, shortest(child, STORE)?, child.ask(SWITCH)?])
    };
    let free = timed(child)?;
    // Words that none of these orders touches, as many as are watched at a time by default.
    let mut events = Vec::new();
    for n in 0..3 {
        let address = &raw const child.shared().gaps[n] as u64;
        let event = match Event::watchpoint(child.pid, address, 8, None) {
            // A register is taken by somebody else.
            Err(_) if n > 0 => break,
            event => event.context("cannot set a watchpoint")?,
        };
        event.set_program(object.program_fd("touch")?)?;
        event.enable()?;
        events.push(event);
    }
    let armed = timed(child)?;
    Ok([0, 1, 2].map(|kind| [free[kind], armed[kind]]))
}

fn wakings(child: &mut Child) -> Result<u64> {
    ptrace::seize(child.pid).context("cannot hold the calibration child")?;
    let order = child.tell(SPIN);
    let mut resumed_ns = Vec::new();
    while child.shared().done.load(Ordering::Acquire) != order && Instant::now() < child.until {
        std::thread::sleep(Duration::from_millis(1));
        // SAFETY: a system call with plain arguments; the child is ours and not reaped.
        unsafe { libc::kill(child.pid as i32, libc::SIGURG) };
        while ptrace::next_status_of(child.pid)?.is_none() {
            anyhow::ensure!(
                Instant::now() < child.until,
                "the machine is too busy to stop a process in time"
            );
            std::hint::spin_loop();
        }
        ptrace::resume(child.pid, 0)?;
        resumed_ns.push(sys::monotonic_ns());
    }
    let gaps = child.gaps(child.answer(order)?);
    let woken = resumed_ns.iter().filter_map(|resumed_ns| {
        let gap = gaps.iter().find(|gap| (gap[0]..=gap[1]).contains(resumed_ns))?;
        Some(gap[1] - resumed_ns)
    });
    // The lower quartile: whoever waits for a CPU, the child or we, waits for milliseconds.
    Ok(quantile(woken.collect(), 4))
}

fn median(values: Vec<u64>) -> u64 {
    quantile(values, 2)
}

/// The value above one of `parts` of all values.
fn quantile(mut values: Vec<u64>, parts: usize) -> u64 {
    values.sort_unstable();
    values.get(values.len() / parts).copied().unwrap_or(0)
}
