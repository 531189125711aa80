//! From registers and stack bytes to the call stack of an access.
//!
//! A trap reports the instruction pointer *after* the access, so the accessing instruction is
//! looked for in the code before it (`locality_isa`); the callers come from the unwinder. Not here:
//! names and lines.

use std::collections::HashMap;

use locality_common::record::{Code as RawCode, Registers as RawRegisters, TouchRecord};
use locality_isa as isa;
use locality_model::AccessKind;
use locality_symbols::{CodeAddress, Processes, RegisterFile, Registers, StackFrame, StackSlice, Unwinder};

use locality_capture::{
    access::{kind, registers},
    events::Trap,
    window_sampling::Path,
};

/// Bytes of code in front of a return address in which the call is looked for.
const CALL_BYTES: u64 = 80;

/// Bytes below a known stack pointer that an access may lie and still be of the innermost frame.
const REACH: u64 = 1 << 20;

/// Longest x86 instruction.
const CALL_LENGTH_MAX: u64 = 15;

/// A call stack as addresses, innermost first.
#[derive(Debug, Clone, Default)]
pub struct Walk {
    /// The accessing (or sampled) instruction, then return addresses.
    pub addresses: Vec<CodeAddress>,
    /// The frames of these addresses; one more or less than addresses after a correction of the
    /// innermost.
    pub frames: Vec<StackFrame>,
    /// Why outer frames are missing.
    pub cut: Option<&'static str>,
    /// Direction of the access, as far as it is known.
    pub kind: AccessKind,
}

/// Walks stacks of all traced processes.
pub struct Sites {
    processes: Processes,
    unwinders: HashMap<u32, Unwinder>,
}

impl std::fmt::Debug for Sites {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sites").field("processes", &self.unwinders.len()).finish_non_exhaustive()
    }
}

impl Sites {
    /// Knows the processes that `processes` knows.
    pub fn new(processes: Processes) -> Self {
        Self { processes, unwinders: HashMap::new() }
    }

    /// A process is gone.
    pub fn forget(&mut self, pid: u32) {
        self.unwinders.remove(&pid);
        self.processes.forget(pid);
    }

    /// The stack from `regs` on; `bytes` begin at `regs.rsp`.
    pub fn walk(&mut self, pid: u32, regs: &RawRegisters, bytes: &[u8]) -> Walk {
        let mut walk = Walk::default();
        let unwinder = match self.unwinders.entry(pid) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(free) => {
                match Unwinder::for_process(&self.processes, pid) {
                    Ok(unwinder) => free.insert(unwinder),
                    Err(_) => {
                        walk.addresses.push(CodeAddress::Exact(regs.rip));
                        walk.cut = Some("process gone before its mappings were read");
                        return walk;
                    }
                }
            }
        };
        let registers = Registers { rip: regs.rip, rsp: regs.rsp, rbp: regs.rbp };
        let slice = StackSlice { base: regs.rsp, bytes };
        walk.cut = unwinder.unwind_frames(registers, &slice, &mut walk.frames).map(|reason| reason.as_str());
        unwinder.restore(register_file(regs), &slice, &mut walk.frames);
        walk.addresses.extend(walk.frames.iter().map(|frame| frame.at));
        walk
    }

    /// The stack of a touch; the innermost frame is the accessing instruction, if found.
    pub fn of_touch(&mut self, trap: &Trap) -> Walk {
        let record = &trap.record;
        if is_worker(record) {
            return Walk::default();
        }
        let pid = record.header.tgid;
        let mut walk = self.walk(pid, &record.regs, &trap.stack);
        if record.kernel != 0 {
            // In a system call the saved address lies after the two-byte `syscall`.
            if let (Some(first), true) = (walk.addresses.first_mut(), (record.regs.orig_rax as i64) >= 0) {
                *first = CodeAddress::Exact(record.regs.rip.wrapping_sub(2));
            }
            return walk;
        }
        if let Ok(found) = self.accessing_instruction(trap, record.address) {
            walk.kind = kind(found.kind);
            match found.site {
                isa::Site::Instruction { ip } => {
                    if let Some(first) = walk.addresses.first_mut() {
                        *first = CodeAddress::Exact(ip);
                    }
                }
                // The trap came in the called function; the call itself stands in its caller.
                isa::Site::Call { .. } if walk.addresses.len() > 1 => {
                    walk.addresses.remove(0);
                }
                isa::Site::Call { .. } | isa::Site::Return => {}
            }
        }
        walk
    }

    /// Whether a trap can come from the instruction at `ip`: false when another one was found to
    /// have made it.
    pub fn agrees(&self, trap: &Trap, ip: u64) -> bool {
        if trap.record.kernel != 0 {
            return false;
        }
        match self.accessing_instruction(trap, trap.record.address).map(|found| found.site) {
            Ok(isa::Site::Instruction { ip: found }) => found == ip,
            Ok(isa::Site::Call { return_address: Some(after) }) => {
                (1..=CALL_LENGTH_MAX).contains(&after.wrapping_sub(ip))
            }
            Ok(isa::Site::Call { return_address: None } | isa::Site::Return) | Err(_) => true,
        }
    }

    /// Whether a trap was raised by one of `others`, words that were watched before: a debug
    /// register of a virtual machine may keep an old address for a while (docs/limitations.md).
    pub fn is_stale<'a>(&self, trap: &Trap, others: impl IntoIterator<Item = &'a u64>) -> bool {
        let touches = |address| self.accessing_instruction(trap, address);
        trap.record.kernel == 0
            && touches(trap.record.address).is_err()
            && others
                .into_iter()
                .any(|other| touches(*other).is_ok_and(|found| found.certainty == isa::Certainty::Verified))
    }

    /// The instruction that touched `address` and raised this trap.
    fn accessing_instruction(&self, trap: &Trap, address: u64) -> Result<isa::Found, isa::NotFound> {
        let record = &trap.record;
        let pid = record.header.tgid;
        let top_of_stack = trap.stack.first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
        let mut question = isa::Trap {
            registers: registers(&record.regs),
            watched: isa::Watched { address, bytes: 8 },
            function_start: self.processes.function_start(pid, record.regs.rip),
            top_of_stack,
            call_site: None,
        };
        let caller_text = match (question.is_on_top_of_stack(), top_of_stack) {
            (true, Some(top)) if top > CALL_BYTES => self.processes.text_bytes(pid, top - CALL_BYTES..top),
            _ => None,
        };
        if let (Some(bytes), Some(top)) = (&caller_text, top_of_stack) {
            question.call_site = Some(isa::Code { address: top - CALL_BYTES, bytes });
        }
        let text = text_from(&self.processes, pid, question.function_start, &record.code);
        isa::accessing_instruction(&isa::Code { address: text.0, bytes: &text.1 }, &question)
    }
}

/// The general registers by the numbers of DWARF.
fn register_file(regs: &RawRegisters) -> RegisterFile {
    let RawRegisters { rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15, .. } =
        *regs;
    RegisterFile::whole([rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8, r9, r10, r11, r12, r13, r14, r15])
}

/// Whether a thread of the kernel touched that works for the process and never runs its program:
/// the kernel leaves no instruction and no stack in such a thread's user registers (`copy_thread`
/// of Linux, `PF_USER_WORKER`).
pub fn is_worker(record: &TouchRecord) -> bool {
    record.kernel != 0 && record.regs.rip == 0 && record.regs.rsp == 0
}

/// Kind of such a thread, by its name.
pub fn worker(thread: &str) -> &'static str {
    let kinds = [
        ("iou-wrk-", "[kernel] io_uring worker"),
        ("iou-sqp-", "[kernel] io_uring polling thread"),
        ("vhost-", "[kernel] vhost worker"),
    ];
    let kind = kinds.iter().find(|(prefix, _)| thread.starts_with(prefix));
    kind.map_or("[kernel] worker", |(_, what)| what)
}

/// Longest piece of a function decoded from its start.
const FUNCTION_BYTES_MAX: u64 = 64 << 10;

/// Code to search, with its address: from the function's start in the file, if known; else the
/// kernel's copy.
fn text_from(processes: &Processes, pid: u32, function_start: Option<u64>, code: &RawCode) -> (u64, Vec<u8>) {
    let copied = code.bytes.get(..code.len as usize).unwrap_or_default();
    let end = code.start + copied.len() as u64;
    if let Some(start) =
        function_start.filter(|start| *start < code.start && end - start <= FUNCTION_BYTES_MAX)
        && let Some(bytes) = processes.text_bytes(pid, start..end)
    {
        return (start, bytes);
    }
    (code.start, copied.to_vec())
}

/// The frames at an access that a window reached by `path` from the stop at `walk`. Of a function
/// that was called meanwhile its frame address is where its return address lies; how far down it
/// reaches is known as far as the access does.
pub fn frames_at(walk: &Walk, path: &Path, ip: u64, address: u64) -> Vec<StackFrame> {
    let below = |top: u64| if address < top && top - address <= REACH { address } else { top };
    let mut frames = Vec::with_capacity(path.slots.len() + walk.frames.len());
    let returns = path.called.iter().rev();
    let mut ats = std::iter::once(CodeAddress::Exact(ip)).chain(returns.map(|at| CodeAddress::Return(*at)));
    // Slots first: one more address remains, that of the frame at the stop.
    for (slot, at) in path.slots.iter().rev().zip(ats.by_ref()) {
        let cfa = slot.wrapping_add(8);
        // The caller's frame ends at its call.
        let sp = frames.last().and_then(|inner: &StackFrame| inner.cfa).unwrap_or_else(|| below(*slot));
        let (bp, registers) = (cfa.wrapping_sub(16), RegisterFile::default());
        frames.push(StackFrame { at, sp, bp, cfa: Some(cfa), registers });
    }
    let inner = frames.last().and_then(|inner| inner.cfa);
    let mut outer = walk.frames.iter().skip(path.returned).copied();
    if let (Some(first), Some(at)) = (outer.next(), ats.next()) {
        // Since the stop it may have pushed more.
        let sp = inner.unwrap_or_else(|| below(first.sp));
        let registers = if at == first.at { first.registers } else { RegisterFile::default() };
        frames.push(StackFrame { at, sp, registers, ..first });
    }
    frames.extend(outer);
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk() -> Walk {
        let frame = |at, sp, cfa| StackFrame { at, sp, bp: 0, cfa, registers: RegisterFile::default() };
        Walk {
            frames: vec![
                frame(CodeAddress::Exact(0x10), 0x7000, Some(0x7020)),
                frame(CodeAddress::Return(0x20), 0x7020, Some(0x7100)),
                frame(CodeAddress::Return(0x30), 0x7100, None),
            ],
            ..Walk::default()
        }
    }

    fn seen(frames: &[StackFrame]) -> Vec<(u64, u64, Option<u64>)> {
        frames.iter().map(|frame| (frame.at.address(), frame.sp, frame.cfa)).collect()
    }

    #[test]
    fn at_the_stop_only_the_instruction_is_another() {
        let frames = frames_at(&walk(), &Path::default(), 0x14, 0x7008);
        assert_eq!(
            seen(&frames),
            [(0x14, 0x7000, Some(0x7020)), (0x20, 0x7020, Some(0x7100)), (0x30, 0x7100, None)]
        );
        // It has pushed more since; what lies far away is no matter of the stack.
        assert_eq!(frames_at(&walk(), &Path::default(), 0x14, 0x6f00)[0].sp, 0x6f00);
        assert_eq!(frames_at(&walk(), &Path::default(), 0x14, 0x55)[0].sp, 0x55);
        let far = frames_at(&walk(), &Path::default(), 0x14, 0x9000);
        assert_eq!(far[0].sp, 0x7000);
    }

    #[test]
    fn called_functions_have_frames_down_from_their_return_addresses() {
        let path = Path { returned: 0, called: vec![0x15, 0x45], slots: vec![0x6ff8, 0x6f78] };
        let frames = frames_at(&walk(), &path, 0x60, 0x6f00);
        assert_eq!(
            seen(&frames)[..3],
            [(0x60, 0x6f00, Some(0x6f80)), (0x45, 0x6f80, Some(0x7000)), (0x15, 0x7000, Some(0x7020))]
        );
    }

    #[test]
    fn frames_that_were_returned_from_are_gone() {
        let path = Path { returned: 1, ..Path::default() };
        let frames = frames_at(&walk(), &path, 0x24, 0x7030);
        assert_eq!(seen(&frames), [(0x24, 0x7020, Some(0x7100)), (0x30, 0x7100, None)]);
    }
}
