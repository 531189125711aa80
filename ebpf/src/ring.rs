//! The only writer of the ring buffers; counts what becomes of every event (`locality_common::counter`).

use core::{arch::asm, ffi::c_void};

use aya_ebpf::{
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::generated::{bpf_ringbuf_output, bpf_ringbuf_reserve, bpf_ringbuf_submit},
};
use locality_common::{counter, heap::HeapRecord};

use crate::maps::{COUNTERS, HEAP_RING, RING, Scratch};

/// Adds one to a counter of this CPU, in one instruction: a program may be interrupted by another task's
/// run of the program, or by a program of the sampling clock, which counts too.
#[inline(always)]
pub fn count(index: u32) {
    if let Some(counter) = COUNTERS.get_ptr_mut(index) {
        // SAFETY: the map lookup returned a live slot; the instruction changes nothing but that word.
        unsafe { asm!("lock *(u64 *)({slot} + 0) += {one}", slot = in(reg) counter, one = in(reg) 1u64) };
    }
}

/// Whether the reader is woken for a record. Waking costs the interrupted thread
/// several microseconds (an interrupt to itself, and in a virtual machine an
/// exit), and is done only if the reader cannot wait for the next turn.
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

/// Sends an event of a block. The reader is never woken.
#[inline(always)]
pub fn submit_heap(record: &HeapRecord) {
    let data = core::ptr::from_ref(record).cast_mut().cast();
    // SAFETY: the record is live and of the size given.
    let failed = unsafe {
        bpf_ringbuf_output(
            (&raw const HEAP_RING).cast_mut().cast(),
            data,
            size_of::<HeapRecord>() as u64,
            Wake::NextTurn.flags(),
        )
    };
    count(if failed == 0 { counter::HEAP_RECORDED } else { counter::HEAP_LOST });
}

/// Room of `BYTES` bytes in the ring for a site's record; null without room.
/// [`submit_site`] sends the written record, a call that the verifier insists on.
#[inline(always)]
pub fn room_for_site<const BYTES: u64>() -> *mut u8 {
    // SAFETY: a helper call on a live map.
    let room = unsafe { bpf_ringbuf_reserve((&raw const HEAP_RING).cast_mut().cast(), BYTES, 0) };
    if room.is_null() {
        count(counter::HEAP_SITES_LOST);
    }
    room.cast()
}

/// Sends the record of a site.
///
/// # Safety
///
/// `room` comes from [`room_for_site`], is not null, and is not used any more.
#[inline(always)]
pub unsafe fn submit_site(room: *mut u8) {
    // SAFETY: the caller vouches for the room.
    unsafe { bpf_ringbuf_submit(room.cast(), Wake::NextTurn.flags()) };
    count(counter::HEAP_SITES);
}
