//! The assembler's part about samples in the kernel: which system call, or page fault, from where.

use locality_common::record::KernelRecord;
use locality_model::KernelSample;
use locality_symbols::CodeAddress;
use syscalls::Sysno;

use super::Assembler;

/// Bytes of the instruction `syscall`, after which the saved instruction pointer lies.
const SYSCALL_BYTES: u64 = 2;

impl Assembler {
    /// Writes a sample in the kernel. `stack`: the copy of the stack from `rsp`.
    pub(super) fn kernel_sample(&mut self, record: &KernelRecord, stack: &[u8]) {
        let (header, regs) = (&record.header, &record.regs);
        // A thread of the kernel that works for the process has no program to point at.
        if regs.rip == 0 && regs.rsp == 0 {
            return;
        }
        let mut walk = self.sites.walk(header.tgid, regs, stack);
        let call = u32::try_from(regs.orig_rax as i64).ok();
        if let (Some(first), true) = (walk.addresses.first_mut(), call.is_some()) {
            *first = CodeAddress::Exact(regs.rip.wrapping_sub(SYSCALL_BYTES));
        }
        let sample = KernelSample {
            time_ns: self.since_start(header.time_ns),
            thread: self.thread(header.tgid, header.tid),
            stack: self.stack(header.tgid, &walk),
            call: call.map(name),
        };
        self.store.kernel_sample(sample);
    }
}

/// Name of a system call of x86-64, or its number.
fn name(call: u32) -> String {
    Sysno::new(call as usize).map_or_else(|| format!("system call {call}"), |call| call.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_calls_have_names() {
        assert_eq!(name(0), "read");
        assert_eq!(name(202), "futex");
        assert_eq!(name(100_000), "system call 100000");
    }
}
