//! Runs windows: loads the thread's state, executes block after block, fills in the log.

use std::io;
use std::time::Instant;

use crate::blocks::{Blocks, Source, Tables};
use crate::context::{Low, STATUS, ZERO};
use crate::enter::{Guard, prepare};
use crate::hash::Map;
use crate::machine::{Machine, Step};
use crate::memory::Memory;
use crate::pages::Pages;
use crate::process::Process;
use crate::record::Record;
use crate::state::ThreadState;
use crate::whitelist::Host;
use crate::window::{Counts, End, Limits, Log};
use crate::xstate::{self, Layout, SHADOW_STACK};

/// Most remembered processes; beyond that all are forgotten.
const PROCESSES: usize = 256;
/// What a system call returns that the kernel will start again once the thread runs: ERESTARTSYS,
/// ERESTARTNOINTR, ERESTARTNOHAND, ERESTART_RESTARTBLOCK (`include/linux/errno.h`).
const RESTARTS: [i64; 4] = [-512, -513, -514, -516];
const NO_BLOCK: u32 = u32::MAX;

/// Executes windows; keeps decoded code from one to the next.
///
/// One thread uses it at a time. It handles `SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL` and `SIGTRAP`
/// of its own code, once created, and passes on those of other code. Everything it needs of the
/// system it asks for in [`Executor::new`] and in the first window of a thread (an alternate signal
/// stack).
pub struct Executor {
    low: Low,
    pages: Pages,
    blocks: Blocks,
    processes: Map<u64, Process>,
    made: u32,
    window: u64,
    layout: Layout,
}

impl std::fmt::Debug for Executor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executor").field("windows", &self.window).finish_non_exhaustive()
    }
}

impl Executor {
    /// Maps its memory and installs its signal handlers.
    pub fn new(tables: Tables) -> io::Result<Executor> {
        prepare()?;
        let host = Host::detect();
        Ok(Executor {
            low: Low::new()?,
            pages: Pages::new()?,
            blocks: Blocks::new(tables, host),
            processes: Map::default(),
            made: 0,
            window: 0,
            layout: Layout::detect(),
        })
    }

    /// Forgets a process: it has executed another program, or ended, or what was
    /// [`crate::Trust::Text`] is so no more.
    pub fn forget(&mut self, process: u64) {
        self.processes.remove(&process);
    }

    /// Executes what comes next in a thread of `process`, a key of the address space.
    ///
    /// Returns the registers at the window's end; `log.counts` says how it ended and how far the
    /// log is filled. An instruction that could not be executed is the one that `rip` points to.
    pub fn run<M: Memory>(
        &mut self,
        process: u64,
        state: &ThreadState,
        memory: &mut M,
        limits: &Limits,
        log: &mut Log<'_>,
    ) -> ThreadState {
        self.run_dyn(process, state, memory, limits, log)
    }

    fn run_dyn(
        &mut self,
        process: u64,
        state: &ThreadState,
        memory: &mut dyn Memory,
        limits: &Limits,
        log: &mut Log<'_>,
    ) -> ThreadState {
        let started = Instant::now();
        log.counts = Counts::default();
        let mut result = state.clone();
        if prepare().is_err() {
            log.counts.end = End::Helper as u32;
            return result;
        }
        self.window += 1;
        self.blocks.make_room(&mut self.low);
        if self.processes.len() >= PROCESSES && !self.processes.contains_key(&process) {
            self.processes.clear();
        }
        let made = &mut self.made;
        let process = self.processes.entry(process).or_insert_with(|| {
            *made += 1;
            Process::new(*made)
        });
        self.pages.begin(limits.pages);
        process.fetch(&mut self.pages, memory, limits.pages);
        // The context is referred to twice: by the machine, and by the decoder, which asks for
        // addresses in it and adds stubs after it.
        let context = std::ptr::from_mut(self.low.context());
        // SAFETY: the mapping lives as long as `low`; `Low::append` and `places` touch no byte of
        // the context.
        let context = unsafe { &mut *context };
        enter(context, &self.layout, state);
        let guard = Guard::new(context);
        let mut machine = Machine {
            context,
            pages: &mut self.pages,
            memory,
            record: Record::new(log),
            limits: *limits,
            executed: 0,
            first_tick: None,
            next: state.registers.rip,
            end: (End::Instructions, 0),
            started,
            until_clock: 1,
            part_done: false,
            layout: &self.layout,
        };
        let mut source = Source { process, low: &mut self.low, window: self.window };
        let ip = if xstate::word(&state.extended, xstate::HEADER) & SHADOW_STACK != 0 {
            // Its returns would have to be checked, and its pointer is not among the registers.
            machine.end = (End::Unsupported, state.registers.rip);
            state.registers.rip
        } else if is_restarted(&mut machine, state) {
            machine.end = (End::Restart, 0);
            state.registers.rip
        } else {
            execute(&mut machine, &mut self.blocks, &mut source)
        };
        drop(guard);
        let counts = Counts {
            instructions: machine.executed,
            accesses: machine.record.value_count as u64,
            detail: machine.end.1,
            time_ns: 0,
            events: machine.record.event_count as u32,
            blocks: machine.record.block_count as u32,
            pages: machine.pages.slots().len() as u32 + source.process.text_reads,
            end: machine.end.0 as u32,
        };
        leave(machine.context, &self.layout, ip, &mut result);
        source.process.learn(machine.pages);
        log.counts = counts;
        log.counts.time_ns = started.elapsed().as_nanos() as u64;
        result
    }
}

fn enter(context: &mut crate::context::Context, layout: &Layout, state: &ThreadState) {
    context.gpr = [0; 32];
    for (to, from) in context.gpr.iter_mut().zip(state.registers.general()) {
        *to = from;
    }
    debug_assert_eq!(context.get(ZERO), 0);
    context.flags = state.registers.rflags & STATUS;
    context.other_flags = state.registers.rflags & !STATUS;
    context.fs_base = state.registers.fs_base;
    context.gs_base = state.registers.gs_base;
    xstate::enter(context, layout, &state.extended);
}

fn leave(context: &crate::context::Context, layout: &Layout, ip: u64, state: &mut ThreadState) {
    state.registers = locality_isa::Registers {
        rip: ip,
        rflags: context.rflags(),
        fs_base: context.fs_base,
        gs_base: context.gs_base,
        ..locality_isa::Registers::of_general(context.general())
    };
    xstate::leave(context, layout, &mut state.extended);
}

/// Whether the kernel is about to start a system call again: its number is then put back into RAX,
/// and RIP goes back.
fn is_restarted(machine: &mut Machine<'_>, state: &ThreadState) -> bool {
    if !RESTARTS.contains(&(state.registers.rax as i64)) {
        return false;
    }
    let before = state.registers.rip.wrapping_sub(2);
    // syscall, int 0x80, sysenter.
    machine.load(before, 2).is_ok_and(|bytes| matches!(bytes, 0x050f | 0x80cd | 0x340f))
}

/// Runs blocks to the end of the window; returns the final position.
fn execute(machine: &mut Machine<'_>, blocks: &mut Blocks, source: &mut Source<'_>) -> u64 {
    let window = source.window;
    let mut current = NO_BLOCK;
    let mut known = 0;
    loop {
        let ip = machine.next;
        if machine.executed >= machine.limits.instructions {
            machine.end = (End::Instructions, 0);
            finish(machine, blocks, current, u64::MAX);
            return ip;
        }
        let found = match blocks.linked(current, ip, window) {
            Some(block) => Ok(block),
            None => blocks.enter(current, ip, source, machine.pages, machine.memory),
        };
        // Each takes as long as a few dozen blocks: with cold code, a window's time was over long
        // before the clock was looked at.
        let fresh = machine.pages.slots().len() + source.process.text_reads as usize + blocks.count();
        machine.hurry(fresh.saturating_sub(known) as u32);
        known = fresh;
        let ticked = if found.is_ok() { machine.tick() } else { Ok(()) };
        let (block, block_number) = match (found, ticked) {
            (Ok(number), Ok(())) => match blocks.get(number) {
                Some(block) => (*block, number),
                None => return ip,
            },
            (Ok(_), Err(_)) => {
                finish(machine, blocks, current, u64::MAX);
                return ip;
            }
            (Err(ended), _) => {
                machine.end = ended;
                finish(machine, blocks, current, u64::MAX);
                return ip;
            }
        };
        if !machine.record.block(block_number, machine.context.general()) {
            machine.end = (End::Log, 0);
            finish(machine, blocks, current, u64::MAX);
            return ip;
        }
        current = block_number;
        let ops = blocks.ops.get(block.first as usize..block.end as usize).unwrap_or_default();
        machine.next = ops.last().map_or(ip, crate::op::Op::next);
        for (n, op) in (0_u64..).zip(ops) {
            let index = block.first.wrapping_add(n as u32);
            if step(machine, op, index, &blocks.complex).is_err() {
                let part = u64::from(machine.part_done);
                machine.executed += part;
                finish(machine, blocks, current, n + part);
                return op.ip;
            }
        }
    }
}

#[inline(always)]
fn step(
    machine: &mut Machine<'_>,
    op: &crate::op::Op,
    index: u32,
    complex: &[iced_x86::Instruction],
) -> Step {
    if machine.executed >= machine.limits.instructions {
        return machine.stop(End::Instructions, 0);
    }
    if !machine.record.has_room(usize::from(op.events)) {
        return machine.stop(End::Log, 0);
    }
    machine.run(op, index, complex)?;
    machine.executed += 1;
    Ok(())
}

/// The event at the end: how many instructions of the last block were executed, at most all.
fn finish(machine: &mut Machine<'_>, blocks: &Blocks, block: u32, instructions: u64) {
    if let Some(last) = blocks.get(block) {
        machine.record.cut(block, instructions.min(u64::from(last.end - last.first)));
    }
}
