//! A program under ptrace: readings, stops, windows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use locality_isa::registers_of;
use locality_rate::{Rates, Reading, Sample, Wanted, WindowView};
use locality_shadow::{
    Counts, End, Executor, Limits, Log, Memory, Page, TableCounts, Tables, ThreadState, Trust,
};
use locality_stream::{BlockRecord, Code, Event, InstructionRecord, Kind};

use crate::ticks::Ticks;

struct Pages(File);

impl Memory for Pages {
    fn read(&mut self, pages: &[u64], into: &mut [Page], found: &mut [bool]) {
        for ((page, to), found) in pages.iter().zip(into).zip(found) {
            *found = self.0.read_exact_at(to, *page).is_ok();
        }
    }

    fn trust(&self, _: u64) -> Trust {
        Trust::Nothing
    }
}

pub struct Target {
    child: Child,
    pid: i32,
    ticks: Ticks,
    tick_ns: f64,
    memory: Pages,
    executor: Executor,
    code: (&'static [InstructionRecord], &'static [BlockRecord], &'static TableCounts),
    events: Vec<Event>,
    values: Vec<u64>,
    registers: Vec<[u64; 16]>,
    switches: u64,
    /// Time spent in [`Rates::observe`].
    pub observing: Duration,
}

fn check(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

const LONGEST: usize = 200_000;

impl Target {
    pub fn start(command: &[String], tick_ns: f64) -> io::Result<Target> {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: sets how precisely our sleeps end.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
        let mut prepared = Command::new(program);
        prepared.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
        let child = prepared.spawn()?;
        let pid = child.id() as i32;
        // The program alone on one processor, as far as that can be had, and we on the other.
        // SAFETY: plain system calls on ourselves and our child.
        unsafe {
            for (who, cpu) in [(pid, 1), (0, 0)] {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(who, size_of::<libc::cpu_set_t>(), &raw const set);
            }
            libc::setpriority(libc::PRIO_PROCESS, pid as u32, -20);
            let priority = libc::sched_param { sched_priority: 1 };
            libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority);
        }
        let ticks = Ticks::open(pid, 120_000)?;
        // SAFETY: the program is our child.
        check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) })?;
        let memory = Pages(File::open(format!("/proc/{pid}/mem"))?);
        let instructions = vec![InstructionRecord::new(0, &[]); 1 << 18].leak();
        let blocks = vec![BlockRecord { first: 0, count: 0 }; 1 << 17].leak();
        let counts: &'static TableCounts = Box::leak(Box::default());
        // SAFETY: only what the counts say is complete is looked at, between windows.
        let code = unsafe {
            (
                std::slice::from_raw_parts(instructions.as_ptr(), instructions.len()),
                std::slice::from_raw_parts(blocks.as_ptr(), blocks.len()),
                counts,
            )
        };
        Ok(Target {
            child,
            pid,
            ticks,
            tick_ns,
            memory,
            executor: Executor::new(Tables { instructions, blocks, counts })?,
            code,
            events: vec![Event::new(Kind::BLOCK, 0, 0); LONGEST * 3],
            values: vec![0; LONGEST * 2],
            registers: vec![[0; 16]; LONGEST],
            switches: 0,
            observing: Duration::ZERO,
        })
    }

    fn time(&self, cpu_ns: u64, ticks: u64) -> u64 {
        (cpu_ns as f64 - ticks as f64 * self.tick_ns).max(0.0) as u64
    }

    fn words(&self, wanted: &Wanted, reading: &mut Reading) {
        reading.wanted = wanted.number;
        for (slot, address) in wanted.addresses.iter().enumerate().filter(|(_, address)| **address != 0) {
            let mut bytes = [0; 8];
            if self.memory.0.read_exact_at(&mut bytes, *address).is_ok() {
                reading.words[slot] = u64::from_le_bytes(bytes);
                reading.read |= 1 << slot;
            }
        }
    }

    /// One sample after a pause in µs; `None` when the program has ended.
    pub fn sample(
        &mut self,
        pause_us: u64,
        instructions: u64,
        rates: &mut Rates,
        random: &mut fastrand::Rng,
    ) -> io::Result<Option<&'static str>> {
        std::thread::sleep(Duration::from_micros(pause_us));
        self.ticks.take();
        let wanted = rates.words();
        let mut readings: Vec<(u64, Reading)> = Vec::new();
        let mut of_words: Vec<(u64, Reading)> = Vec::new();
        for _ in 0..8 {
            // 50 µs to 1 ms, the short ones as frequent as the long ones.
            std::thread::sleep(Duration::from_micros((50.0 * 20_f64.powf(random.f64())) as u64));
            if wanted.number > 0 {
                let mut reading = Reading::default();
                let before = Ticks::clock_ns();
                self.words(&wanted, &mut reading);
                let after = Ticks::clock_ns();
                if after - before < 20_000 {
                    of_words.push((before.midpoint(after), reading));
                }
            }
        }
        let status = self.interrupt()?;
        if !libc::WIFSTOPPED(status) {
            return Ok(None);
        }
        let cpu_ns = self.ticks.cpu_ns();
        let ticks = self.ticks.take();
        for (number, tick) in &ticks {
            if random.u32(0..3) == 0 {
                let reading = Reading {
                    time_ns: self.time(tick.cpu_ns, *number),
                    ip: tick.ip,
                    registers: tick.registers,
                    ..Reading::default()
                };
                readings.push((tick.cpu_ns, reading));
            }
        }
        for (clock, mut reading) in of_words {
            // Between two ticks between which the program ran nearly all the time, CPU time is the
            // clock's share.
            let at = ticks.partition_point(|(_, tick)| tick.clock_ns < clock);
            let Some(((number, a), (_, b))) = at.checked_sub(1).and_then(|n| ticks.get(n)).zip(ticks.get(at))
            else {
                continue;
            };
            let (ran, passed) = (b.cpu_ns - a.cpu_ns, b.clock_ns - a.clock_ns);
            if passed.abs_diff(ran) < 40_000 && passed > 0 {
                let cpu_ns = a.cpu_ns + (clock - a.clock_ns) * ran / passed;
                reading.time_ns = self.time(cpu_ns, number + 1);
                readings.push((cpu_ns, reading));
            }
        }
        readings.sort_by_key(|reading| reading.0);
        let state = self.state()?;
        let mut stop = Reading {
            time_ns: self.time(cpu_ns, self.ticks.count),
            ip: state.registers.rip,
            registers: state.registers.general(),
            ..Reading::default()
        };
        self.words(&wanted, &mut stop);
        readings.push((cpu_ns, stop));
        let readings: Vec<Reading> =
            readings.into_iter().map(|(_, reading)| Reading { switches: self.switches, ..reading }).collect();
        let counts = self.window(&state, instructions);
        let code = Code {
            instructions: &self.code.0[..self.code.2.instructions.load(Ordering::Acquire) as usize],
            blocks: &self.code.1[..self.code.2.blocks.load(Ordering::Acquire) as usize],
        };
        let window = WindowView {
            events: &self.events[..counts.events as usize],
            values: &self.values[..counts.accesses as usize],
            registers: &self.registers[..counts.blocks as usize],
            code,
            instructions: counts.instructions,
            accesses: counts.accesses,
        };
        self.switches += 1;
        let started = std::time::Instant::now();
        rates.observe(&Sample { thread: 1, readings: &readings, window: Some(window) });
        self.observing += started.elapsed();
        // SAFETY: the program stands.
        check(unsafe {
            libc::ptrace(libc::PTRACE_CONT, self.pid, 0, libc::WSTOPSIG(status) & pass(status))
        })?;
        Ok(Some(End::from_number(counts.end).map_or("?", End::name)))
    }

    fn window(&mut self, state: &ThreadState, instructions: u64) -> Counts {
        let limits = Limits { instructions, pages: 4096, time_ns: 1_000_000_000 };
        let mut log = Log {
            events: &mut self.events,
            values: &mut self.values,
            registers: &mut self.registers,
            counts: Counts::default(),
        };
        self.executor.run(self.pid as u64, state, &mut self.memory, &limits, &mut log);
        log.counts
    }

    fn interrupt(&self) -> io::Result<i32> {
        let mut status = 0;
        // SAFETY: the program is ours and traced.
        unsafe {
            if libc::ptrace(libc::PTRACE_INTERRUPT, self.pid, 0, 0) < 0 {
                return Ok(0);
            }
            check(libc::waitpid(self.pid, &mut status, libc::__WALL).into())?;
        }
        Ok(status)
    }

    fn state(&self) -> io::Result<ThreadState> {
        let mut extended = vec![0_u8; 16 << 10];
        let mut room = libc::iovec { iov_base: extended.as_mut_ptr().cast(), iov_len: extended.len() };
        // SAFETY: the program stands; destinations are live.
        let regs = unsafe {
            let mut regs = std::mem::zeroed::<libc::user_regs_struct>();
            check(libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, &raw mut regs))?;
            check(libc::ptrace(libc::PTRACE_GETREGSET, self.pid, 0x202, &raw mut room))?;
            regs
        };
        extended.truncate(room.iov_len);
        let registers = registers_of!(regs);
        Ok(ThreadState { registers, extended })
    }

    /// Lets the program run to its end; returns its CPU time in nanoseconds, less the time of
    /// ticks.
    pub fn finish(mut self) -> io::Result<f64> {
        let mut cpu_ns = self.ticks.cpu_ns();
        loop {
            let now = self.ticks.cpu_ns();
            cpu_ns = cpu_ns.max(now);
            self.ticks.take();
            let mut status = 0;
            // SAFETY: the program is ours.
            let pid = unsafe { libc::waitpid(self.pid, &mut status, libc::__WALL | libc::WNOHANG) };
            if pid == self.pid && libc::WIFSTOPPED(status) {
                // SAFETY: the program stands.
                check(unsafe {
                    libc::ptrace(libc::PTRACE_CONT, self.pid, 0, libc::WSTOPSIG(status) & pass(status))
                })?;
            } else if pid != 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(self.child.try_wait());
        cpu_ns = cpu_ns.max(self.ticks.cpu_ns());
        Ok(cpu_ns as f64 - self.ticks.count as f64 * self.tick_ns)
    }
}

/// All ones if the stop was for a signal to be handed on, 0 if it was for the interrupt.
fn pass(status: i32) -> i32 {
    if status >> 16 == 0 { -1 } else { 0 }
}
