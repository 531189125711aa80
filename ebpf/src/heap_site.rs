//! Where an allocation function was called from: a name for the place, made from the stack near the
//! call, and the stack itself for each name once.
//!
//! The return address replaced by a probe is known (`Pending`): a sample of the thread inside
//! an allocation can restore the address in the copied stack ([`restore_return_address`]).

use aya_ebpf::{
    bindings::{BPF_ANY, BPF_NOEXIST, pt_regs},
    helpers::generated::{bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_user},
};
use locality_common::{
    heap::{HeapSiteRecord, SITE_PIECES, SITE_WORDS, SmallCall, TextRange, is_memory, site, site_piece},
    record::{Header, RECORD_BYTES_MAX, kind},
};

use crate::{
    copy,
    heap::TRAMPOLINE,
    ids::{self, Ids},
    maps::{self, HEAP_PENDING, HEAP_SITES, HEAP_SMALL_CALL, HEAP_TEXT},
    ring::{room_for_site, submit_site},
};

/// The kernel's word for a key that is in a map already.
#[doc(alias = "EEXIST")]
const IS_THERE: i32 = -17;

/// The calling thread, and the time.
pub struct Call {
    /// Process.
    pub tgid: u32,
    /// Thread.
    pub tid: u32,
    /// Monotonic clock.
    pub now: u64,
}

impl Call {
    /// This site.
    #[inline(always)]
    pub fn now() -> Self {
        let Ids { tgid, tid } = ids::current();
        // SAFETY: a helper call without arguments.
        Self { tgid, tid, now: unsafe { bpf_ktime_get_ns() } }
    }

    /// Of a record of the call.
    #[inline(always)]
    pub fn header(&self, kind: u32, bytes: usize) -> Header {
        // SAFETY: a helper call without arguments.
        let cpu = unsafe { bpf_get_smp_processor_id() };
        let (tgid, tid) = (self.tgid, self.tid);
        Header { kind, bytes: bytes as u32, time_ns: self.now, tgid, tid, cpu, nested_traps: 0 }
    }
}

/// Names the site and, if new, records the stack.
#[inline(always)]
pub fn place(regs: *mut pt_regs, call: &Call, which: u32, rsp: u64, return_address: u64, bytes: u64) -> u64 {
    // SAFETY: two threads of one process read the same value.
    let text = unsafe { HEAP_TEXT.get(call.tgid) }.map_or(TextRange::default(), |text| text.program);
    let name = named(call.tgid, rsp, return_address, text);
    // Of threads at a new site at one time, a single thread
    // reports the site; with a full map, each call does.
    if HEAP_SITES.get_ptr(name).is_some()
        || HEAP_SITES.insert(name, 1, u64::from(BPF_NOEXIST)).is_err_and(|error| error == IS_THERE)
    {
        return name;
    }
    // Without a closure: its name would depend on the place of compilation.
    let room = room_for_site::<{ RECORD_BYTES_MAX as u64 }>();
    if room.is_null() {
        // The next call tells.
        let _ = HEAP_SITES.remove(name);
        return name;
    }
    let record = room.cast::<HeapSiteRecord>();
    // SAFETY: the room is larger than the record and the stack; the context is valid. It is sent once.
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
        submit_site(room);
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

/// The word on top of the stack at a function's entry.
#[inline(always)]
pub fn return_address(rsp: u64) -> u64 {
    let mut address = 0u64;
    // SAFETY: the destination is a local of the size given; the helper checks the source.
    unsafe { bpf_probe_read_user((&raw mut address).cast(), 8, rsp as *const _) };
    address
}

/// Records an unfollowed call, because the call may map memory.
#[inline(always)]
pub fn note_small(tid: u32, rsp: u64) {
    let now = SmallCall { rsp, return_address: return_address(rsp) };
    // A full map forgets the oldest.
    let _ = HEAP_SMALL_CALL.insert(tid, now, u64::from(BPF_ANY));
}

/// Whether a call of `mmap` gives the program a block: memory, and not an allocator's store.
#[inline(always)]
pub fn maps_a_block(call: &Call, rsp: u64, flags: u64) -> bool {
    if !is_memory(flags) {
        return false;
    }
    // SAFETY: two threads of one process read the same value.
    if let Some(text) = unsafe { HEAP_TEXT.get(call.tgid) } {
        let caller = return_address(rsp);
        if text.allocators.iter().any(|range| range.contains(caller)) {
            return false;
        }
    }
    // SAFETY: only this thread changes its own entry.
    let Some(outer) = (unsafe { HEAP_SMALL_CALL.get(call.tid) }) else { return true };
    // A call whose return is probed has got another return address since.
    let now = return_address(outer.rsp);
    outer.rsp < rsp || (now != outer.return_address && now < TRAMPOLINE)
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
