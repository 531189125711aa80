//! How often clocks find processes with watched words in a repeated string instruction, which takes
//! many times as long on some processors while a debug register is armed.

use aya_ebpf::{
    bindings::bpf_perf_event_data,
    helpers::generated::{bpf_probe_read_kernel, bpf_probe_read_user},
};
use locality_common::{
    counter,
    rules::{self, STRING_COPY_BYTES},
};

use crate::{maps::WATCHED, ring::count};

/// Counts where a clock's tick, of the processor or of the thread, met process `tgid`, in user mode
/// or in the kernel. Not for samples of accesses.
#[inline(always)]
pub fn note(data: *const bpf_perf_event_data, tgid: u32) {
    // SAFETY: the entry is not looked at.
    if unsafe { WATCHED.get(tgid) }.is_none() {
        return;
    }
    // SAFETY: the context is valid for the program's whole run.
    let (rip, cs) = unsafe { ((*data).regs.rip, (*data).regs.cs) };
    count(counter::ARMED_TICKS);
    if rules::is_string_copy(instruction(rip, cs)) {
        count(counter::ARMED_STRING_TICKS);
    }
}

/// The first bytes of the instruction at `ip`, of the kernel or of user code by `cs`; zeroes where
/// they cannot be read.
#[inline(always)]
fn instruction(ip: u64, cs: u64) -> [u8; STRING_COPY_BYTES] {
    let mut bytes = [0; STRING_COPY_BYTES];
    let (to, from, len) = (bytes.as_mut_ptr().cast(), ip as *const _, STRING_COPY_BYTES as u32);
    // SAFETY: the destination is a local of that size; the helpers check the source and zero it on a fault.
    unsafe {
        match cs & 3 {
            3 => bpf_probe_read_user(to, len, from),
            _ => bpf_probe_read_kernel(to, len, from),
        }
    };
    bytes
}
