//! The register values of this package. Not here: their validity ([`crate::known`]).

/// General registers, instruction pointer, flags and the two segment bases of a stopped thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the architecture's own names")]
pub struct Registers {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rbx: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
    pub fs_base: u64,
    pub gs_base: u64,
}

impl Registers {
    /// The general registers in the order of their encoding (rax, rcx, rdx, rbx, rsp, rbp, rsi,
    /// rdi, r8 … r15).
    pub fn general(&self) -> [u64; 16] {
        [
            self.rax, self.rcx, self.rdx, self.rbx, self.rsp, self.rbp, self.rsi, self.rdi, self.r8, self.r9,
            self.r10, self.r11, self.r12, self.r13, self.r14, self.r15,
        ]
    }

    /// General registers in the order of [`Registers::general`]; the rest is 0.
    pub fn of_general(general: [u64; 16]) -> Self {
        let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = general;
        Registers {
            rax,
            rcx,
            rdx,
            rbx,
            rsp,
            rbp,
            rsi,
            rdi,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            ..Registers::default()
        }
    }
}

/// [`Registers`] from a value with the kernel's names, `eflags` included (`user_regs_struct`,
/// `pt_regs`); with the two segment bases if it lacks them.
#[macro_export]
macro_rules! registers_of {
    ($regs:expr) => {
        $crate::registers_of!($regs, $regs.fs_base, $regs.gs_base)
    };
    ($regs:expr, $fs_base:expr, $gs_base:expr) => {
        $crate::Registers {
            rax: $regs.rax,
            rcx: $regs.rcx,
            rdx: $regs.rdx,
            rbx: $regs.rbx,
            rsp: $regs.rsp,
            rbp: $regs.rbp,
            rsi: $regs.rsi,
            rdi: $regs.rdi,
            r8: $regs.r8,
            r9: $regs.r9,
            r10: $regs.r10,
            r11: $regs.r11,
            r12: $regs.r12,
            r13: $regs.r13,
            r14: $regs.r14,
            r15: $regs.r15,
            rip: $regs.rip,
            rflags: $regs.eflags,
            fs_base: $fs_base,
            gs_base: $gs_base,
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_general_registers_is_kept() {
        let general = std::array::from_fn(|n| n as u64 + 1);
        let registers = Registers::of_general(general);
        assert_eq!(registers.general(), general);
        assert_eq!((registers.rax, registers.rsp, registers.r15), (1, 5, 16));
        assert_eq!((registers.rip, registers.rflags, registers.fs_base, registers.gs_base), (0, 0, 0, 0));
    }
}
