//! Walks a call stack from registers and a copy of the stack.
//!
//! By `.eh_frame` where the module has it, by frame pointers where it has none (generated code,
//! assembly), through signal frames. A cut stack says why. Nothing is read from the process: a
//! frame above the copied slice is a cut.
//!
//! Without unwind information the interrupted function may be a leaf without a frame: its return
//! address is then on top of the stack, proved by a call in front of it.
//!
//! Known error: code without unwind information *and* without frame pointers that has pushed
//! something, entered from code with frame pointers, loses its direct caller; the walk goes on one
//! frame higher.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};

use crate::cfi::{self, Context, Kept, Rule};
use crate::module::Module;
use crate::process::{Code, Process, Processes, lock};

/// Frames after which a walk ends.
pub const MAX_FRAMES: usize = 512;
/// Rules that an unwinder remembers before it starts afresh (about 3 MB).
const MAX_RULES: usize = 1 << 16;
/// Frames whose registers are returned.
const MAX_RESTORED: usize = 64;
/// A frame pointer this far above rsp is taken to point into the same stack (the default limit of a
/// main thread).
const STACK_REACH: u64 = 8 << 20;

/// The registers that a walk starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer.
    pub rip: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Frame pointer.
    pub rbp: u64,
}

/// A copy of the stack, from rsp upwards.
#[derive(Debug, Clone, Copy)]
pub struct StackSlice<'a> {
    /// Address of the first byte: rsp at the time of the copy.
    pub base: u64,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl StackSlice<'_> {
    fn read(&self, address: u64) -> Result<u64, CutReason> {
        let at = address.checked_sub(self.base).ok_or(CutReason::StackSliceEnded)?;
        let at = usize::try_from(at).map_err(|_| CutReason::StackSliceEnded)?;
        let word = self.bytes.get(at..).and_then(|rest| rest.first_chunk::<8>());
        word.map(|word| u64::from_le_bytes(*word)).ok_or(CutReason::StackSliceEnded)
    }
}

/// An address in a call stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CodeAddress {
    /// The instruction that was interrupted.
    Exact(u64),
    /// The instruction after a call: the call itself is what lines and unwind rules are asked for.
    Return(u64),
}

impl CodeAddress {
    /// The address as it is.
    pub fn address(self) -> u64 {
        match self {
            Self::Exact(address) | Self::Return(address) => address,
        }
    }

    /// The address to look up: one less for return addresses.
    pub fn lookup(self) -> u64 {
        match self {
            Self::Exact(address) => address,
            Self::Return(address) => address.wrapping_sub(1),
        }
    }
}

/// Why a walk ended before the outermost frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CutReason {
    /// The next frame lies outside the copied slice.
    StackSliceEnded,
    /// The code has no unwind information, and its frame pointer leads nowhere.
    NoUnwindInfo,
    /// The unwind information is broken or leads nowhere.
    BadUnwindInfo,
    /// The unwind information needs a register that was not captured.
    RegisterUnknown,
    /// More than [`MAX_FRAMES`] frames.
    TooDeep,
    /// Nothing executable is mapped at the address.
    Unmapped,
}

impl CutReason {
    /// The text for the user.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::StackSliceEnded => "the copied part of the stack ended",
            Self::NoUnwindInfo => "no unwind information",
            Self::BadUnwindInfo => "bad unwind information",
            Self::RegisterUnknown => "unwinding needs a register that was not captured",
            Self::TooDeep => "more than 512 frames",
            Self::Unmapped => "unmapped code address",
        }
    }
}

impl fmt::Display for CutReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What general registers hold, by the numbers of DWARF (AMD64 supplement, table 3.36), as far as
/// that is known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegisterFile {
    values: [u64; 16],
    known: u16,
}

impl RegisterFile {
    /// All registers.
    pub fn whole(values: [u64; 16]) -> Self {
        Self { values, known: u16::MAX }
    }

    /// One register; `None` if unknown or not general.
    pub fn get(&self, register: u16) -> Option<u64> {
        let is_known = register < 16 && self.known >> register & 1 != 0;
        self.values.get(usize::from(register)).copied().filter(|_| is_known)
    }

    fn set(&mut self, register: u16, value: u64) {
        if let Some(slot) = self.values.get_mut(usize::from(register)) {
            *slot = value;
            self.known |= 1 << register;
        }
    }
}

/// A frame of a call stack with what its variables' places follow from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StackFrame {
    /// Where the frame's function stands.
    pub at: CodeAddress,
    /// Its stack pointer: the frame's lowest byte.
    pub sp: u64,
    /// rbp there.
    pub bp: u64,
    /// Canonical frame address: the first byte after the frame and its return address. `None` for
    /// the last frame of the walk, and for a frame interrupted by a signal (its end is unknown).
    pub cfa: Option<u64>,
    /// Further known registers: all of the innermost frame's; of callers those preserved by the
    /// functions in between ([`Unwinder::restore`]).
    pub registers: RegisterFile,
}

/// Unwinds the stacks of one process. Can be sent to another thread.
pub struct Unwinder {
    process: Arc<Mutex<Process>>,
    rules: HashMap<CodeAddress, (Rule, Option<Place>)>,
    /// Where callers' registers are.
    kept: HashMap<CodeAddress, [Kept; 5]>,
    generation: u64,
    context: Context,
}

/// A module and the place of an address in it, where a rule must be evaluated anew each time.
type Place = (Arc<Module>, u64);

impl Unwinder {
    /// For a process; attaches it to `processes` unless that was done before.
    pub fn for_process(processes: &Processes, pid: u32) -> io::Result<Self> {
        if processes.process(pid).is_err() {
            processes.attach(pid)?;
        }
        let process = processes.process(pid)?;
        Ok(Self {
            process,
            rules: HashMap::new(),
            kept: HashMap::new(),
            generation: 0,
            context: Context::new(),
        })
    }

    /// Appends the call stack to `out`, innermost first, beginning with rip itself. `None` when it
    /// is complete.
    pub fn unwind(
        &mut self,
        registers: Registers,
        stack: &StackSlice<'_>,
        out: &mut Vec<CodeAddress>,
    ) -> Option<CutReason> {
        self.walk(registers, stack, &mut |at, _| out.push(at))
    }

    /// The same walk, with each frame's extent on the stack.
    pub fn unwind_frames(
        &mut self,
        registers: Registers,
        stack: &StackSlice<'_>,
        out: &mut Vec<StackFrame>,
    ) -> Option<CutReason> {
        let first = out.len();
        self.walk(registers, stack, &mut |at, registers| {
            // Data of a signal's interrupted code lies above the context stored by the kernel, not
            // above this frame.
            if out.len() > first
                && let CodeAddress::Return(_) = at
                && let Some(inner) = out.last_mut()
            {
                inner.cfa = Some(registers.rsp);
            }
            let (sp, bp) = (registers.rsp, registers.rbp);
            out.push(StackFrame { at, sp, bp, cfa: None, registers: RegisterFile::default() });
        })
    }

    /// Computes the registers of the last unwound frames from those of the innermost one. Registers
    /// not preserved for the caller stay unknown, as do all beyond a signal.
    pub fn restore(&mut self, innermost: RegisterFile, stack: &StackSlice<'_>, frames: &mut [StackFrame]) {
        let process = Arc::clone(&self.process);
        let mut process = lock(&process);
        let mut registers = innermost;
        for frame in frames.iter_mut().take(MAX_RESTORED) {
            frame.registers = registers;
            let Some(cfa) = frame.cfa else { return };
            let kept = match self.kept.get(&frame.at) {
                Some(kept) => *kept,
                None => {
                    let Some(Code::Module { module, bias }) = process.code_at(frame.at.lookup()) else {
                        return;
                    };
                    let inside = frame.at.lookup().wrapping_sub(bias);
                    let Some(kept) = cfi::kept(&module.elf, inside, &mut self.context) else { return };
                    self.kept.insert(frame.at, kept);
                    kept
                }
            };
            let mut caller = RegisterFile::default();
            for (register, kept) in cfi::KEPT.iter().zip(kept) {
                let value = match kept {
                    Kept::Unchanged => registers.get(*register),
                    Kept::Stored(offset) => stack.read(cfa.wrapping_add_signed(offset)).ok(),
                    Kept::Unknown => None,
                };
                if let Some(value) = value {
                    caller.set(*register, value);
                }
            }
            registers = caller;
        }
    }

    fn walk(
        &mut self,
        registers: Registers,
        stack: &StackSlice<'_>,
        found: &mut dyn FnMut(CodeAddress, &Registers),
    ) -> Option<CutReason> {
        let process = Arc::clone(&self.process);
        let mut process = lock(&process);
        process.begin_stack();
        if self.rules.len() > MAX_RULES {
            self.forget(&process);
        }
        let mut registers = registers;
        let mut at = CodeAddress::Exact(registers.rip);
        found(at, &registers);
        let Some(mut rule) = self.rule(&mut process, at) else { return Some(CutReason::Unmapped) };
        for _ in 1..MAX_FRAMES {
            let interrupted = matches!(at, CodeAddress::Exact(_));
            let leaf = match rule.0 {
                Rule::FramePointer(_) if interrupted => caller_of_leaf(&mut process, &registers, stack),
                _ => None,
            };
            let stepped = match leaf {
                Some(caller) => Ok(Some(caller)),
                None => self.step(&rule, &registers, stack, interrupted),
            };
            match stepped {
                Ok(Some(next)) => registers = next,
                Ok(None) => return None,
                Err(reason) => return Some(reason),
            }
            at = match rule.0 {
                Rule::SignalReturn => CodeAddress::Exact(registers.rip),
                _ => CodeAddress::Return(registers.rip),
            };
            if at == CodeAddress::Return(0) {
                // Made-up stacks (threads, fibers, entry code of generated functions) end like this.
                return None;
            }
            let guessed = match rule.0 {
                Rule::FramePointer(reason) => Some(reason),
                _ => None,
            };
            let Some(next_rule) = self.rule(&mut process, at) else {
                return Some(guessed.unwrap_or(CutReason::Unmapped));
            };
            if let Some(reason) = guessed
                && next_rule.0 != Rule::SignalReturn
                && let code = process.code_at(registers.rip.wrapping_sub(1))
                && follows_call(code, registers.rip) == Some(false)
            {
                return Some(reason);
            }
            found(at, &registers);
            rule = next_rule;
        }
        Some(CutReason::TooDeep)
    }

    fn forget(&mut self, process: &Process) {
        self.generation = process.generation;
        self.rules.clear();
        self.kept.clear();
    }

    /// `None` when the address is not executable.
    fn rule(&mut self, process: &mut Process, at: CodeAddress) -> Option<(Rule, Option<Place>)> {
        process.compare(at.lookup());
        if self.generation != process.generation {
            self.forget(process);
        }
        if let Some(known) = self.rules.get(&at) {
            return Some(known.clone());
        }
        // A signal frame's return address is the first byte of the trampoline, which no call precedes.
        let code = process.code_at(at.lookup()).or_else(|| process.code_at(at.address()))?;
        let found = match code {
            Code::Module { module, bias } => {
                let inside = at.lookup().wrapping_sub(bias);
                if is_signal_return(&module, at.address().wrapping_sub(bias)) {
                    (Rule::SignalReturn, None)
                } else {
                    let rule = cfi::rule(&module.elf, inside, &mut self.context);
                    (rule, (rule == Rule::Complex).then_some((module, inside)))
                }
            }
            Code::Generated | Code::Unreadable(_) => (Rule::FramePointer(CutReason::NoUnwindInfo), None),
        };
        self.rules.insert(at, found.clone());
        Some(found)
    }

    /// The caller's registers; `None` at the outermost frame.
    fn step(
        &mut self,
        (rule, place): &(Rule, Option<Place>),
        registers: &Registers,
        stack: &StackSlice<'_>,
        interrupted: bool,
    ) -> Result<Option<Registers>, CutReason> {
        let next = match *rule {
            Rule::Root => return Ok(None),
            Rule::Offsets { from_rbp, cfa, rbp } => {
                let base = if from_rbp { registers.rbp } else { registers.rsp };
                let cfa = base.wrapping_add_signed(cfa.into());
                let rbp = match rbp {
                    None => registers.rbp,
                    Some(offset) => match cfa.wrapping_add_signed(offset.into()) {
                        // Epilogues may have popped rbp already without the tables saying so.
                        slot if slot < registers.rsp && interrupted => registers.rbp,
                        slot => stack.read(slot)?,
                    },
                };
                check_grows(registers.rsp, cfa)?;
                Registers { rip: stack.read(cfa.wrapping_sub(8))?, rsp: cfa, rbp }
            }
            Rule::Complex => {
                let (module, inside) = place.as_ref().ok_or(CutReason::BadUnwindInfo)?;
                let read = |address| stack.read(address);
                let next = cfi::evaluate(&module.elf, *inside, registers, &read, &mut self.context)?;
                check_grows(registers.rsp, next.rsp)?;
                next
            }
            Rule::SignalReturn => {
                // `struct ucontext` lies at rsp when the handler has returned; offsets of rbp, rsp
                // and rip in it: arch/x86/include/uapi/asm/{ucontext,sigcontext}.h.
                let saved = |offset| stack.read(registers.rsp.wrapping_add(offset));
                Registers { rip: saved(168)?, rsp: saved(160)?, rbp: saved(120)? }
            }
            Rule::FramePointer(reason) => {
                let rbp = registers.rbp;
                if rbp == 0 && !interrupted {
                    // The ABI's mark of the outermost frame (AMD64 supplement, §3.4.1).
                    return Ok(None);
                }
                let distance = rbp.checked_sub(registers.rsp).filter(|&distance| distance < STACK_REACH);
                if distance.is_none() || !rbp.is_multiple_of(8) {
                    return Err(reason);
                }
                Registers {
                    rip: stack.read(rbp.wrapping_add(8))?,
                    rsp: rbp.wrapping_add(16),
                    rbp: stack.read(rbp)?,
                }
            }
        };
        Ok(Some(next))
    }
}

/// Stacks grow downwards: a caller's frame lies above.
fn check_grows(rsp: u64, cfa: u64) -> Result<(), CutReason> {
    if cfa > rsp { Ok(()) } else { Err(CutReason::BadUnwindInfo) }
}

/// `mov $15, %rax` (or eax), `syscall`: the code of glibc, musl and Go after signal handlers.
/// Debuggers know these bytes, too; the code often lacks unwind tables.
fn is_signal_return(module: &Module, address: u64) -> bool {
    const SYSCALL: [u8; 2] = [0x0f, 0x05];
    const MOVES: [&[u8]; 2] = [&[0x48, 0xc7, 0xc0, 15, 0, 0, 0], &[0xb8, 15, 0, 0, 0]];
    MOVES.iter().any(|mov| {
        // Interrupted before the move or before the system call.
        [0, mov.len() as u64].iter().any(|&done| {
            let code = address.checked_sub(done).and_then(|start| module.elf.at(start, mov.len() + 2));
            code.is_some_and(|code| code.starts_with(mov) && code.ends_with(&SYSCALL))
        })
    })
}

/// The caller's registers if what is on top of the stack is a return address.
fn caller_of_leaf(process: &mut Process, registers: &Registers, stack: &StackSlice<'_>) -> Option<Registers> {
    let rip = stack.read(registers.rsp).ok()?;
    // Most often this is no code address at all: no reason to read the mappings again.
    let code = process.current_code_at(rip.wrapping_sub(1));
    follows_call(code, rip)?.then(|| Registers { rip, rsp: registers.rsp.wrapping_add(8), ..*registers })
}

/// Whether a call instruction may end at the address: guards against values that only look like
/// return addresses. `None` where the code cannot be read.
fn follows_call(code: Option<Code>, address: u64) -> Option<bool> {
    let Some(Code::Module { module, bias }) = code else { return None };
    let start = address.wrapping_sub(bias).wrapping_sub(7);
    let before = module.elf.at(start, 7).filter(|before| before.len() == 7)?;
    // call rel32, or call through a register or memory (FF /2) in its lengths.
    Some(
        before[2] == 0xe8
            || [0, 1, 3, 4, 5].iter().any(|&at| before[at] == 0xff && (before[at + 1] >> 3) & 7 == 2),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tracer unwinds and symbolises on different threads.
    #[test]
    fn can_be_sent() {
        fn sent<T: Send>() {}
        fn shared<T: Send + Sync>() {}
        sent::<Unwinder>();
        shared::<Processes>();
    }
}
