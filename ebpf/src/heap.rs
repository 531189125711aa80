//! `heap`: runs at the entry and the return of allocation
//! functions, and records begin, end and place of blocks.
//!
//! One program in three shapes, because kernels offer different probes: `heap_session`
//! (Linux 6.13) at both ends, with a decision at the entry about the need for the
//! return (a small allocation costs one trap and leaves the return address unchanged);
//! `heap_entry` and `heap_return` (Linux 6.6) otherwise. The probes run in the thread's
//! own context and may be preempted; hence no record is put together in per-CPU memory.
//!
//! Not here: naming the place of a call and recording its stack (`heap_site`).

use aya_ebpf::{
    bindings::{BPF_ANY, pt_regs},
    helpers::generated::{bpf_get_attach_cookie, bpf_get_func_ip, bpf_probe_read_user},
};
use locality_common::{
    counter,
    heap::{HeapRecord, HeapSettings, LiveBlock, LiveKey, Pending, event, function, reallocates},
    record::kind,
    rules::PAGE_BYTES,
};

use crate::{
    heap_site::{Call, maps_a_block, note_small, place, return_address},
    maps::{HEAP_LIVE, HEAP_PENDING, HEAP_SETTINGS, HELD},
    ring::{count, submit_heap},
    task::Task,
};

/// Answer of a session's entry: the return is of no interest.
const NOT_THE_RETURN: u32 = 1;
/// Place of the kernel's code for probed returns: the last page of a
/// program's address space (`xol_add_vma` in kernel/events/uprobes.c).
pub const TRAMPOLINE: u64 = (1 << 47) - 2 * PAGE_BYTES;
/// All other kinds.
const DONE: u32 = 0;

#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe/heap_session")]
pub fn heap_session(regs: *mut pt_regs) -> u32 {
    // SAFETY: the context is valid for the program's whole run. At the return, this is still the
    // probed address.
    let at_entry = unsafe { bpf_get_func_ip(regs.cast()) == (*regs).rip };
    if at_entry {
        return if entered(regs) { DONE } else { NOT_THE_RETURN };
    }
    returned(regs);
    DONE
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe/heap_entry")]
pub fn heap_entry(regs: *mut pt_regs) -> u32 {
    entered(regs);
    DONE
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe/heap_return")]
pub fn heap_return(regs: *mut pt_regs) -> u32 {
    returned(regs);
    DONE
}

/// At a function's entry; true when the return is of interest.
#[inline(always)]
fn entered(regs: *mut pt_regs) -> bool {
    // SAFETY: the context is valid for the program's whole run.
    let cookie = unsafe { bpf_get_attach_cookie(regs.cast()) };
    let stepped = cookie & function::STEPPED != 0;
    count(if stepped { counter::HEAP_STEPPED_CALLS } else { counter::HEAP_CALLS });
    let which = (cookie & function::MASK) as u32;
    // SAFETY: as above.
    let (first, second, third, fourth, rsp) =
        unsafe { ((*regs).rdi, (*regs).rsi, (*regs).rdx, (*regs).rcx, (*regs).rsp) };
    let call = Call::now();
    if call.tid == 0 {
        return false; // A thread outside of our pid namespace.
    }
    let settings = HEAP_SETTINGS.get(0).copied().unwrap_or(HeapSettings::default());
    // SAFETY: only this thread changes its own entry.
    let outer = unsafe { HEAP_PENDING.get(call.tid) };
    let nested = outer.is_some_and(|outer| outer.epoch == settings.epoch && is_within(outer, rsp));
    if which == function::FREE || which == function::MUNMAP {
        if nested {
            count(counter::HEAP_NESTED);
        } else {
            freed(&call, which, first, second);
        }
        return false;
    }
    let (bytes, block) = match which {
        function::CALLOC => (first.wrapping_mul(second), 0),
        function::REALLOC => (second, first),
        function::REALLOC_ARRAY => (second.wrapping_mul(third), first),
        function::RUST_REALLOC => (fourth, first),
        function::HEAP_CALLOC => (second.wrapping_mul(third), 0),
        function::HEAP_REALLOC => (third, second),
        function::MEMALIGN | function::MMAP => (second, 0),
        function::POSIX_MEMALIGN => (third, first),
        _ => (first, 0),
    };
    if nested || which == function::MMAP && !maps_a_block(&call, rsp, fourth) {
        count(counter::HEAP_NESTED);
        return false;
    }
    if bytes < settings.min_bytes && !(reallocates(which) && is_live(&call, block)) {
        count(counter::HEAP_SMALL);
        if cookie & function::OWN != 0 && which != function::MMAP {
            note_small(call.tid, rsp);
        }
        return false;
    }
    if outer.is_some_and(|outer| is_above(outer, rsp, settings.epoch)) {
        count(counter::HEAP_UNFOLLOWED);
        return false;
    }
    // A probed return makes a system call (`uretprobe`, Linux 6.11): strace 6.1 dies of the call.
    if Task::current().has_tracer() && HELD.get_ptr(call.tid).is_none() {
        count(counter::HEAP_UNFOLLOWED);
        return false;
    }
    let return_address = return_address(rsp);
    let pending = Pending {
        rsp,
        return_address,
        bytes,
        block,
        site: place(regs, &call, which, rsp, return_address, bytes),
        called_ns: call.now,
        epoch: settings.epoch,
        function: which,
    };
    let followed = HEAP_PENDING.insert(call.tid, pending, u64::from(BPF_ANY)).is_ok();
    count(if followed { counter::HEAP_FOLLOWED } else { counter::HEAP_UNFOLLOWED });
    followed
}

/// Whether a call at `rsp` is made by the unfinished function of `outer`:
/// from below, or by a jump in place of the function. After a jump, the probe
/// of the function's own return belongs to the return address of the call.
#[inline(always)]
fn is_within(outer: &Pending, rsp: u64) -> bool {
    outer.rsp > rsp || (outer.rsp == rsp && return_address(rsp) >= TRAMPOLINE)
}

/// Whether `outer` has yet to return and lies below a call at `rsp`, which then runs on another
/// stack (an alternate signal stack, a fiber). The kernel takes each probed return below a new one
/// for abandoned, and ends the program by SIGILL when that return comes (`cleanup_return_instances`
/// in kernel/events/uprobes.c). The trampoline itself overwrites the place of the return address,
/// which therefore speaks only where a return may have been missed.
#[inline(always)]
fn is_above(outer: &Pending, rsp: u64, epoch: u32) -> bool {
    outer.rsp < rsp && (outer.epoch == epoch || return_address(outer.rsp) >= TRAMPOLINE)
}

#[inline(always)]
fn is_live(call: &Call, block: u64) -> bool {
    HEAP_LIVE.get_ptr(LiveKey { address: block, tgid: call.tgid, reserved: 0 }).is_some()
}

/// A block is about to be given back.
#[inline(always)]
fn freed(call: &Call, which: u32, address: u64, unmapped_bytes: u64) {
    let key = LiveKey { address, tgid: call.tgid, reserved: 0 };
    // SAFETY: an entry removed meanwhile is a block freed twice.
    let Some(bytes) = (unsafe { HEAP_LIVE.get(key) }).map(|block| block.bytes) else {
        count(counter::HEAP_FREE_UNKNOWN);
        return;
    };
    if which == function::MUNMAP && unmapped_bytes < bytes {
        // The rest of the block retains the name.
        count(counter::HEAP_FREE_UNKNOWN);
        return;
    }
    let _ = HEAP_LIVE.remove(key);
    submit_heap(&HeapRecord {
        header: call.header(kind::HEAP, size_of::<HeapRecord>()),
        address,
        bytes,
        old_address: 0,
        site: 0,
        called_ns: call.now,
        event: event::FREED,
        function: which,
    });
}

/// At a function's return.
#[inline(always)]
fn returned(regs: *mut pt_regs) {
    let call = Call::now();
    // SAFETY: only this thread changes its own entry.
    let Some(pending) = (unsafe { HEAP_PENDING.get(call.tid) }).copied() else { return };
    // SAFETY: the context is valid for the program's whole run.
    let (result, rsp) = unsafe { ((*regs).rax, (*regs).rsp) };
    // The return address is popped; another call returned before.
    if pending.rsp.wrapping_add(8) != rsp {
        return;
    }
    let _ = HEAP_PENDING.remove(call.tid);
    let which = pending.function;
    let address = match which {
        function::POSIX_MEMALIGN => {
            let mut block = 0u64;
            if result as u32 == 0 {
                // SAFETY: the destination is a local of the size given; the helper checks the source.
                unsafe { bpf_probe_read_user((&raw mut block).cast(), 8, pending.block as *const _) };
            }
            block
        }
        function::MMAP if result == u64::MAX => 0,
        _ => result,
    };
    let mut old = if reallocates(which) { pending.block } else { 0 };
    if address == 0 {
        count(counter::HEAP_FAILED);
        // The old block stays if memory was short, and is gone if size 0 was requested.
        if old != 0 && pending.bytes == 0 {
            freed(&call, function::FREE, old, 0);
        }
        return;
    }
    if old != 0 {
        let key = LiveKey { address: old, tgid: call.tgid, reserved: 0 };
        // SAFETY: as in `freed`. A block that began after the call is another thread's new one at
        // the same place.
        let known = unsafe { HEAP_LIVE.get(key) }.is_some_and(|block| block.since_ns <= pending.called_ns);
        if known {
            let _ = HEAP_LIVE.remove(key);
        } else {
            old = 0;
        }
    }
    let block = LiveBlock { bytes: pending.bytes, since_ns: call.now };
    let key = LiveKey { address, tgid: call.tgid, reserved: 0 };
    if HEAP_LIVE.insert(key, block, u64::from(BPF_ANY)).is_err() {
        count(counter::HEAP_LIVE_FULL);
    }
    submit_heap(&HeapRecord {
        header: call.header(kind::HEAP, size_of::<HeapRecord>()),
        address,
        bytes: pending.bytes,
        old_address: old,
        site: pending.site,
        called_ns: pending.called_ns,
        event: if old == 0 { event::ALLOCATED } else { event::MOVED },
        function: which,
    });
}
