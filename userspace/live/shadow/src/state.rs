//! The registers with which a window begins. Not here: how they are read from a thread (ptrace).

use locality_isa::Registers;

use crate::xstate;

/// Registers of a stopped thread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ThreadState {
    /// General registers, flags and segment bases.
    pub registers: Registers,
    /// Vector and x87 state in the XSAVE area's standard (not compacted) form, as
    /// `PTRACE_GETREGSET` with `NT_X86_XSTATE` gives it: the legacy area of 512 bytes, then the
    /// header, whose bit i says whether component i is in use, then the components at the offsets
    /// of CPUID leaf 13. May be shorter than what this processor saves; without a header
    /// (`NT_PRFPREG`, of a processor without XSAVE) the legacy area counts.
    pub extended: Vec<u8>,
}

impl ThreadState {
    /// So many first bytes of an XSAVE area of this processor are all that windows need: without
    /// AMX tiles, which take three quarters of it. To be asked once, since a virtual machine is
    /// left for it.
    pub fn extended_bytes() -> usize {
        let layout = xstate::Layout::detect();
        match layout.enabled {
            // No XSAVE, hence no header.
            0 => xstate::HEADER,
            _ => layout.standard(xstate::HELD | xstate::PROTECTION_KEYS).0,
        }
    }
}
