//! `heap`: runs at the entry and the return of allocation functions, and records which blocks begin and end where.
//!
//! One program in three shapes, because kernels differ in what they offer: `heap_session` (Linux 6.13) at both ends, which
//! at the entry decides whether the return is of interest, so that a small allocation costs one trap and its return
//! address is left alone; `heap_entry` and `heap_return` (Linux 6.6) otherwise. The probes run in the thread's own
//! context and may be preempted, so nothing is put together in per-CPU memory.
//!
//! What a probe of a return replaces on the stack is known here (`Pending`), so that a sample that meets the thread inside of an
//! allocation can put it back into its copy ([`restore_return_address`]).

use aya_ebpf::{
    bindings::{BPF_ANY, pt_regs},
    helpers::generated::{
        bpf_get_attach_cookie, bpf_get_current_pid_tgid, bpf_get_func_ip, bpf_get_smp_processor_id,
        bpf_ktime_get_ns, bpf_probe_read_user,
    },
};
use locality_common::{
    counter,
    heap::{
        HeapRecord, HeapSettings, HeapSiteRecord, LiveBlock, LiveKey, Pending, SITE_PIECES, SITE_WORDS,
        THROWING_BYTES_MAX, TextRange, event, function, reallocates, site, site_piece,
    },
    record::{Header, RECORD_BYTES_MAX, kind},
    rules::PAGE_BYTES,
};

use crate::{
    copy,
    maps::{self, HEAP_LIVE, HEAP_PENDING, HEAP_SETTINGS, HEAP_SITES, HEAP_TEXT},
    ring::{count_shared, submit_heap, submit_site},
};

/// What a session's entry says: the return is of no interest.
const NOT_THE_RETURN: u32 = 1;
/// Where the kernel puts what a probed return goes through: the last page of a program's address space (`xol_add_vma` in
/// kernel/events/uprobes.c).
const TRAMPOLINE: u64 = (1 << 47) - 2 * PAGE_BYTES;
/// What everything else says.
const DONE: u32 = 0;

#[unsafe(no_mangle)]
#[unsafe(link_section = "uprobe/heap_session")]
pub fn heap_session(regs: *mut pt_regs) -> u32 {
    // SAFETY: the context is valid for the program's whole run. At the return, this is still the probed address.
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

/// Who calls, and when.
struct Call {
    tgid: u32,
    tid: u32,
    now: u64,
}

impl Call {
    #[inline(always)]
    fn now() -> Self {
        // SAFETY: helper calls without arguments.
        let (pid_tgid, now) = unsafe { (bpf_get_current_pid_tgid(), bpf_ktime_get_ns()) };
        Self { tgid: (pid_tgid >> 32) as u32, tid: pid_tgid as u32, now }
    }

    #[inline(always)]
    fn header(&self, kind: u32, bytes: usize) -> Header {
        // SAFETY: a helper call without arguments.
        let cpu = unsafe { bpf_get_smp_processor_id() };
        let (tgid, tid) = (self.tgid, self.tid);
        Header { kind, bytes: bytes as u32, time_ns: self.now, tgid, tid, cpu, nested_traps: 0 }
    }
}

/// At a function's entry; true when its return is of interest.
#[inline(always)]
fn entered(regs: *mut pt_regs) -> bool {
    // SAFETY: the context is valid for the program's whole run.
    let cookie = unsafe { bpf_get_attach_cookie(regs.cast()) };
    let stepped = cookie & function::STEPPED != 0;
    count_shared(if stepped { counter::HEAP_STEPPED_CALLS } else { counter::HEAP_CALLS });
    let which = (cookie & function::MASK) as u32;
    // SAFETY: as above.
    let (first, second, third, fourth) = unsafe { ((*regs).rdi, (*regs).rsi, (*regs).rdx, (*regs).rcx) };
    // SAFETY: as above.
    let rsp = unsafe { (*regs).rsp };
    let call = Call::now();
    // SAFETY: user space replaces the value as a whole word at a time, and any mixture is one that was meant.
    let settings = HEAP_SETTINGS.get(0).copied().unwrap_or(HeapSettings::default());
    // SAFETY: only this thread changes its own entry.
    let outer = unsafe { HEAP_PENDING.get(call.tid) };
    let nested = outer.is_some_and(|outer| outer.epoch == settings.epoch && is_within(outer, rsp));
    if which == function::FREE || which == function::MUNMAP {
        if nested {
            count_shared(counter::HEAP_NESTED);
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
        function::MEMALIGN | function::MMAP => (second, 0),
        function::POSIX_MEMALIGN => (third, first),
        _ => (first, 0),
    };
    if nested {
        count_shared(counter::HEAP_NESTED);
        return false;
    }
    if bytes < settings.min_bytes && !(reallocates(which) && is_live(&call, block)) {
        count_shared(counter::HEAP_SMALL);
        return false;
    }
    if cookie & function::THROWS != 0 && bytes > THROWING_BYTES_MAX {
        count_shared(counter::HEAP_UNFOLLOWED);
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
    count_shared(if followed { counter::HEAP_FOLLOWED } else { counter::HEAP_UNFOLLOWED });
    followed
}

/// Whether a call at `rsp` is made by the function that `outer` is in the middle of: from below it, or by a jump in its
/// place, to whose return address the probe of its own return then belongs.
#[inline(always)]
fn is_within(outer: &Pending, rsp: u64) -> bool {
    outer.rsp > rsp || (outer.rsp == rsp && return_address(rsp) >= TRAMPOLINE)
}

#[inline(always)]
fn return_address(rsp: u64) -> u64 {
    let mut address = 0u64;
    // SAFETY: the destination is a local of the size given; the helper checks the source.
    unsafe { bpf_probe_read_user((&raw mut address).cast(), 8, rsp as *const _) };
    address
}

#[inline(always)]
fn is_live(call: &Call, block: u64) -> bool {
    HEAP_LIVE.get_ptr(LiveKey { address: block, tgid: call.tgid, reserved: 0 }).is_some()
}

/// A block is about to be given back.
#[inline(always)]
fn freed(call: &Call, which: u32, address: u64, unmapped_bytes: u64) {
    let key = LiveKey { address, tgid: call.tgid, reserved: 0 };
    // SAFETY: an entry that is removed meanwhile is a block that is freed twice.
    let Some(bytes) = (unsafe { HEAP_LIVE.get(key) }).map(|block| block.bytes) else {
        count_shared(counter::HEAP_FREE_UNKNOWN);
        return;
    };
    if which == function::MUNMAP && unmapped_bytes < bytes {
        // What is left of it keeps its name.
        count_shared(counter::HEAP_FREE_UNKNOWN);
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

/// Names the site and, when it is new, records its stack.
#[inline(always)]
fn place(regs: *mut pt_regs, call: &Call, which: u32, rsp: u64, return_address: u64, bytes: u64) -> u64 {
    // SAFETY: two threads of one process read the same value.
    let text = unsafe { HEAP_TEXT.get(call.tgid) }.copied().unwrap_or(TextRange::default());
    let name = named(call.tgid, rsp, return_address, text);
    if HEAP_SITES.get_ptr(name).is_some() {
        return name;
    }
    let sent = submit_site::<{ RECORD_BYTES_MAX as u64 }>(|room| {
        let record = room.cast::<HeapSiteRecord>();
        // SAFETY: the room is larger than the record and the stack; the context is valid.
        unsafe {
            (*record).header = call.header(kind::HEAP_SITE, size_of::<HeapSiteRecord>());
            (*record).site = name;
            (*record).bytes = bytes;
            (*record).function = which;
            (*record).reserved = 0;
            copy::registers(regs, &raw mut (*record).regs);
            let stack = copy::stack(call.tgid, rsp, room.add(size_of::<HeapSiteRecord>()));
            (*record).header.nested_traps = stack.nested_traps;
            (*record).header.bytes = size_of::<HeapSiteRecord>() as u32 + stack.bytes;
        }
        true
    });
    if sent {
        let _ = HEAP_SITES.insert(name, 1, u64::from(BPF_ANY));
    }
    name
}

#[inline(always)]
fn named(tgid: u32, rsp: u64, return_address: u64, text: TextRange) -> u64 {
    let mut name = site(tgid, rsp, return_address);
    let mut words = [0u64; SITE_WORDS];
    let bytes = size_of_val(&words) as u64;
    for piece in 0..SITE_PIECES as u64 {
        let from = rsp + 8 + piece * bytes;
        // SAFETY: the destination is a local of the size given; the helper checks the source.
        if unsafe { bpf_probe_read_user((&raw mut words).cast(), bytes as u32, from as *const _) } != 0 {
            break;
        }
        name = site_piece(name, &words, text);
    }
    name
}

/// At a function's return.
#[inline(always)]
fn returned(regs: *mut pt_regs) {
    let call = Call::now();
    // SAFETY: only this thread changes its own entry.
    let Some(pending) = (unsafe { HEAP_PENDING.get(call.tid) }).copied() else { return };
    // SAFETY: the context is valid for the program's whole run.
    let (result, rsp) = unsafe { ((*regs).rax, (*regs).rsp) };
    // The return address is popped; another one returned before.
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
        count_shared(counter::HEAP_FAILED);
        // The old block stands where there was no room, and is gone where nothing was asked for.
        if old != 0 && pending.bytes == 0 {
            freed(&call, function::FREE, old, 0);
        }
        return;
    }
    if old != 0 {
        let key = LiveKey { address: old, tgid: call.tgid, reserved: 0 };
        // SAFETY: as in `freed`. A block that began after the call is another thread's new one at the same place.
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
        count_shared(counter::HEAP_LIVE_FULL);
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

/// Puts the return address that a probe replaced back into the copy `to` of a stack that begins at `rsp`.
#[inline(always)]
pub fn restore_return_address(tid: u32, rsp: u64, copied: u32, to: *mut u8) {
    if maps::heap() == 0 {
        return;
    }
    // SAFETY: the entry is the current thread's own.
    let Some(pending) = (unsafe { HEAP_PENDING.get(tid) }) else { return };
    let at = pending.rsp.wrapping_sub(rsp);
    if at.wrapping_add(8) <= u64::from(copied) {
        copy::put_word(at, pending.return_address, to);
    }
}
