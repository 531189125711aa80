//! The only writer of the ring buffer; counts what becomes of every event (`locality_common::counter`).

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::generated::bpf_ringbuf_output,
};
use locality_common::counter;

use crate::maps::{COUNTERS, RING, Scratch};

/// Adds one to a counter of this CPU.
#[inline(always)]
pub fn count(index: u32) {
    if let Some(counter) = COUNTERS.get_ptr_mut(index) {
        // SAFETY: the map lookup returned this CPU's slot, and only this CPU writes it.
        unsafe { *counter += 1 };
    }
}

/// Whether the reader is woken for a record. Waking costs the interrupted thread several microseconds (an interrupt to
/// itself, and in a virtual machine an exit), so it is done only where the reader cannot wait for its next turn.
#[derive(Clone, Copy)]
pub enum Wake {
    Now,
    NextTurn,
}

impl Wake {
    const fn flags(self) -> u64 {
        match self {
            Self::Now => BPF_RB_FORCE_WAKEUP as u64,
            Self::NextTurn => BPF_RB_NO_WAKEUP as u64,
        }
    }
}

/// Sends the first `bytes` of `scratch`.
#[inline(always)]
pub fn submit(scratch: *mut Scratch, bytes: u32, wake: Wake) {
    output(scratch.cast(), u64::from(bytes), wake);
}

/// Sends a record that lies on the stack.
#[inline(always)]
pub fn submit_small<T>(record: &T, wake: Wake) {
    output(core::ptr::from_ref(record).cast_mut().cast(), size_of::<T>() as u64, wake);
}

#[inline(always)]
fn output(data: *mut c_void, bytes: u64, wake: Wake) {
    // SAFETY: the verifier checks that `bytes` bytes may be read at `data`.
    let failed =
        unsafe { bpf_ringbuf_output((&raw const RING).cast_mut().cast(), data, bytes, wake.flags()) };
    count(if failed == 0 { counter::SUBMITTED } else { counter::LOST_RING_FULL });
}
