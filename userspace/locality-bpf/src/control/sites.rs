//! From registers and stack bytes to the call stack of an access.
//!
//! A trap reports the instruction pointer *after* the access, so the accessing instruction is looked for in the code
//! before it (`locality_isa`); the callers come from the unwinder. Not here: names and lines.

use std::collections::HashMap;

use locality_analysis::model::AccessKind;
use locality_common::record::{Code as RawCode, Registers as RawRegisters};
use locality_isa as isa;
use locality_symbols::{CodeAddress, Processes, Registers, StackSlice, Unwinder};

use crate::capture::event::Trap;

/// Bytes of code in front of a return address in which the call is looked for.
const CALL_BYTES: u64 = 80;

/// Longest x86 instruction.
const CALL_LENGTH_MAX: u64 = 15;

/// A call stack as addresses, innermost first.
#[derive(Debug, Clone, Default)]
pub struct Walk {
    /// The accessing (or sampled) instruction, then return addresses.
    pub addresses: Vec<CodeAddress>,
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
        walk.cut = unwinder.unwind(registers, &slice, &mut walk.addresses).map(|reason| reason.as_str());
        walk
    }

    /// The stack of a touch, its innermost frame the accessing instruction where it was found.
    pub fn of_touch(&mut self, trap: &Trap) -> Walk {
        let record = &trap.record;
        let pid = record.header.tgid;
        let mut walk = self.walk(pid, &record.regs, &trap.stack);
        if record.kernel != 0 {
            // In a system call the saved address lies behind the two-byte `syscall`.
            if let (Some(first), true) = (walk.addresses.first_mut(), (record.regs.orig_rax as i64) >= 0) {
                *first = CodeAddress::Exact(record.regs.rip.wrapping_sub(2));
            }
            return walk;
        }
        if let Ok(found) = self.accessing_instruction(trap) {
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

    /// Whether a trap can come from the instruction at `ip`: false when another one was found to have made it.
    pub fn agrees(&self, trap: &Trap, ip: u64) -> bool {
        if trap.record.kernel != 0 {
            return false;
        }
        match self.accessing_instruction(trap).map(|found| found.site) {
            Ok(isa::Site::Instruction { ip: found }) => found == ip,
            Ok(isa::Site::Call { return_address: Some(after) }) => {
                (1..=CALL_LENGTH_MAX).contains(&after.wrapping_sub(ip))
            }
            Ok(isa::Site::Call { return_address: None } | isa::Site::Return) | Err(_) => true,
        }
    }

    fn accessing_instruction(&self, trap: &Trap) -> Result<isa::Found, isa::NotFound> {
        let record = &trap.record;
        let pid = record.header.tgid;
        let top_of_stack = trap.stack.first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
        let mut question = isa::Trap {
            registers: registers(&record.regs),
            watched: isa::Watched { address: record.address, bytes: 8 },
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

/// Longest piece of a function that is decoded from its start.
const FUNCTION_BYTES_MAX: u64 = 64 << 10;

/// The code to look in, with its address: from the function's start, out of the file, where that is known; else what
/// the kernel copied.
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

/// The model's word for a direction.
pub fn kind(kind: isa::AccessKind) -> AccessKind {
    match kind {
        isa::AccessKind::Load => AccessKind::Load,
        isa::AccessKind::Store => AccessKind::Store,
        isa::AccessKind::ReadWrite => AccessKind::ReadWrite,
    }
}

/// Registers after an access, as the instruction-set package wants them. Segment bases are not recorded.
pub fn registers(regs: &RawRegisters) -> isa::Registers {
    isa::registers_of!(regs, 0, 0)
}
