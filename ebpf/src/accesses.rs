//! Reads the hardware counters of loads and stores of the current thread, if opened by user space.
//!
//! The counters are events of the thread, not of the CPU: the kernel carries
//! the counts over context switches and from CPU to CPU, and reads the counts
//! for the thread alone (`perf_event_read_local` in kernel/events/core.c).
//! The first is pinned: a count is whole or an error, never scaled.

use core::ptr;

use aya_ebpf::{bindings::bpf_perf_event_value, helpers::generated::bpf_perf_event_read_value};
use locality_common::record::NOT_COUNTED;

use crate::maps::{ACCESS_EVENTS, COUNTED};

/// Loads and stores of thread `tid`, which must be the current one, since the counters were opened.
#[inline(always)]
pub fn so_far(tid: u32) -> u64 {
    // SAFETY: the entry may be replaced during the read; then
    // the entry's events are not of this thread, and refuse.
    let Some(place) = (unsafe { COUNTED.get(tid) }) else {
        return NOT_COUNTED;
    };
    let (loads, stores) = (one(*place), one(*place + 1));
    if loads == NOT_COUNTED || stores == NOT_COUNTED { NOT_COUNTED } else { loads.wrapping_add(stores) }
}

#[inline(always)]
fn one(index: u32) -> u64 {
    let mut value = bpf_perf_event_value { counter: 0, enabled: 0, running: 0 };
    let events = (&raw const ACCESS_EVENTS).cast_mut().cast();
    let bytes = size_of::<bpf_perf_event_value>() as u32;
    // SAFETY: the map is alive as long as the program, and the destination is a local of the size given.
    let failed = unsafe { bpf_perf_event_read_value(events, index.into(), ptr::from_mut(&mut value), bytes) };
    if failed == 0 { value.counter } else { NOT_COUNTED }
}
