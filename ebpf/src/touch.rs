//! `touch`: runs on each trap of a watchpoint. The first trap of the sampled thread is
//! the use, the next of any thread is the reuse; after a near reuse, the sampled thread's
//! next touches are recorded too. A word mapped by another process too has an entry for
//! the process that leads to the entry of the use. Touches by the kernel are passed over
//! if requested. A non-zero return lets the event's limit (`PERF_EVENT_IOC_REFRESH`)
//! count the trap, and the event disarms itself in the kernel.

use core::arch::asm;

use aya_ebpf::{
    bindings::{bpf_perf_event_data, bpf_perf_event_value, pt_regs},
    helpers::generated::{
        bpf_get_current_task_btf, bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_perf_prog_read_value,
        bpf_probe_read_kernel, bpf_task_pt_regs,
    },
};
use locality_common::{
    counter,
    record::{TouchRecord, WatchKey, kind, touch as role},
    rules::{TouchMeaning, behind_reuse, is_use_again, phase, touch_meaning},
};

use crate::{
    accesses,
    copy::{self, Copied},
    heap_site,
    ids::{self, Ids},
    maps::{SCRATCH, Scratch, WATCHES},
    ring::{Wake, count, submit},
};

/// Let the event limit count this trap.
const COUNT_TRAP: u32 = 1;
/// Leave the event armed as if nothing had happened.
const IGNORE_TRAP: u32 = 0;

/// Without aya's `#[perf_event]`: the macro returns 0 for every result, and no trap would count.
#[unsafe(no_mangle)]
#[unsafe(link_section = "perf_event")]
pub fn touch(data: *mut bpf_perf_event_data) -> u32 {
    count(counter::SEEN);
    // SAFETY: helper calls without arguments; the context is valid for the program's whole run.
    let (now, address) = unsafe { (bpf_ktime_get_ns(), (*data).addr) };
    let Ids { tgid, tid } = ids::current();
    let Some(state) = WATCHES.get_ptr_mut(WatchKey { address, tgid, reserved: 0 }) else {
        count(counter::FILTERED_STALE_WATCH);
        return COUNT_TRAP;
    };
    // SAFETY: the lookup returned a live map value.
    let (main_word, main_tgid) = unsafe { ((*state).main_word, (*state).main_tgid) };
    let state = match main_word {
        0 => state,
        address => match WATCHES.get_ptr_mut(WatchKey { address, tgid: main_tgid, reserved: 0 }) {
            Some(state) => state,
            None => {
                count(counter::FILTERED_STALE_WATCH);
                return COUNT_TRAP;
            }
        },
    };
    // SAFETY: the lookup returned a live map value.
    let (watch, owner_tid, seen) =
        unsafe { ((*state).watch, (*state).owner_tid, (&raw const (*state).phase).read_volatile()) };
    // SAFETY: the context is valid for the program's whole run, and the lookup returned a live map value.
    let (touched, used) = unsafe {
        let used = match (*state).follows {
            0 => ((*state).used_ip, (*state).used_ns),
            word => (0, done_with_use_ns(WatchKey { address: word, tgid, reserved: 0 })),
        };
        (((*data).regs.rip, enabled_ns(data)), used)
    };
    let meaning = touch_meaning(seen, owner_tid, tid);
    let is_over = seen == phase::DONE || matches!(meaning, TouchMeaning::Early);
    // SAFETY: as above.
    let is_passed = !is_over && unsafe { is_in_kernel(data) && (*state).passes != 0 };
    let (next, role) = match meaning {
        _ if is_passed => {
            // Two threads at the same moment may pass once for two.
            // SAFETY: the lookup returned a live map value.
            unsafe { (*state).passes = (*state).passes.saturating_sub(1) };
            (seen, role::PASSED)
        }
        TouchMeaning::Use => {
            // SAFETY: the lookup returned a live map value.
            unsafe { (*state).used_ip = touched.0 };
            (phase::USED, role::USE)
        }
        TouchMeaning::Reuse if owner_tid == tid => match behind_reuse(used, touched) {
            phase::DONE => (phase::DONE, role::REUSE),
            // SAFETY: the lookup returned a live map value.
            phase::NEAR_PAIR if unsafe { (*state).no_turns } != 0 => (phase::DONE, role::REUSE),
            next => (next, role::NEAR_REUSE),
        },
        TouchMeaning::Reuse => (phase::DONE, role::REUSE),
        TouchMeaning::UseAgain if is_use_again(used, touched) => (phase::NEAR, role::USE_AGAIN),
        TouchMeaning::UseAgain | TouchMeaning::Again => (phase::DONE, role::AGAIN),
        TouchMeaning::Before(next) => {
            // Only the owner's touches get here, hence no other thread changes the phase meanwhile.
            // SAFETY: the lookup returned a live map value.
            unsafe { (&raw mut (*state).phase).write_volatile(next) };
            count(counter::FILTERED_EARLY_TOUCH);
            return COUNT_TRAP;
        }
        TouchMeaning::Forgone => {
            // SAFETY: the lookup returned a live map value. The owner may be here at the same
            // moment; the reuse's own distance stands then too.
            unsafe { (&raw mut (*state).phase).write_volatile(phase::DONE) };
            count(counter::FILTERED_LATE_TOUCH);
            return COUNT_TRAP;
        }
        TouchMeaning::Early => {
            count(counter::FILTERED_EARLY_TOUCH);
            return IGNORE_TRAP;
        }
        TouchMeaning::Late => {
            count(counter::FILTERED_LATE_TOUCH);
            return COUNT_TRAP;
        }
    };
    // SAFETY: the lookup returned a live map value, and the field is an aligned `u64`.
    if !is_passed && unsafe { compare_and_swap(&raw mut (*state).phase, seen, next) } != seen {
        // Another thread's simultaneous touch was first; ours is later.
        count(counter::FILTERED_LATE_TOUCH);
        return COUNT_TRAP;
    }
    // SAFETY: a helper call without arguments.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    let Some(scratch) = SCRATCH.get_ptr_mut(cpu) else {
        count(counter::LOST_SCRATCH);
        return COUNT_TRAP;
    };
    let since_ns = used.1;
    record(
        data,
        scratch,
        &Trap { tgid, tid, cpu, now, watch, address, role, touched, since_ns, foreign: owner_tid != tid },
    );
    // Read back, since the verifier would go through all of the above for each role that it knows of.
    // SAFETY: this CPU's map value, of which the record was just made.
    let role = unsafe { (&raw const (*scratch.cast::<TouchRecord>()).role).read_volatile() };
    let is_between = role == role::NEAR_REUSE || role == role::USE_AGAIN;
    if role == role::USE || is_between {
        // How long the record took depends on the stack, so time is counted from here.
        // SAFETY: the lookup returned a live map value.
        unsafe { (*state).used_ns = enabled_ns(data) };
    }
    if is_between || role == role::PASSED { IGNORE_TRAP } else { COUNT_TRAP }
}

/// Whether the kernel touched on the thread's behalf.
///
/// # Safety
///
/// `data` is the context of a run that has not ended.
#[inline(always)]
unsafe fn is_in_kernel(data: *mut bpf_perf_event_data) -> bool {
    // SAFETY: the caller vouches for `data`.
    unsafe { (*data).regs.cs & 3 == 0 }
}

/// [`WatchState::used_ns`] of another watch, if its use was its last touch; else 0.
#[inline(always)]
fn done_with_use_ns(key: WatchKey) -> u64 {
    let Some(state) = WATCHES.get_ptr(key) else { return 0 };
    // SAFETY: the lookup returned a live map value.
    unsafe { if (*state).phase == phase::USED { (*state).used_ns } else { 0 } }
}

/// Replaces `*word` by `new` if it is `old`, atomically; returns the former value. (`core` has no
/// such operation for BPF.)
///
/// # Safety
///
/// `word` points to an aligned, live map value.
#[inline(always)]
unsafe fn compare_and_swap(word: *mut u64, old: u64, new: u64) -> u64 {
    let was;
    // SAFETY: the caller vouches for `word`; the instruction changes nothing but `r0` and the word.
    unsafe {
        asm!("r0 = cmpxchg_64({word} + 0, r0, {new})", word = in(reg) word, new = in(reg) new, inlateout("r0") old => was);
    }
    was
}

struct Trap {
    tgid: u32,
    tid: u32,
    cpu: u32,
    now: u64,
    watch: u64,
    address: u64,
    role: u32,
    /// Instruction pointer, and the thread's clock.
    touched: (u64, u64),
    since_ns: u64,
    foreign: bool,
}

#[inline(always)]
fn record(data: *mut bpf_perf_event_data, scratch: *mut Scratch, trap: &Trap) {
    let record = scratch.cast::<TouchRecord>();
    // SAFETY: `scratch` is this CPU's map value, larger than the record and its stack; the context is valid.
    unsafe {
        (*record).header.kind = kind::TOUCH;
        (*record).header.time_ns = trap.now;
        (*record).header.tgid = trap.tgid;
        (*record).header.tid = trap.tid;
        (*record).header.cpu = trap.cpu;
        (*record).watch = trap.watch;
        (*record).address = trap.address;
        (*record).role = trap.role;
        ((*record).trap_ip, (*record).enabled_ns) = trap.touched;
        (*record).since_ns = trap.since_ns;
        (*record).accesses = accesses::so_far(trap.tid);
        let in_kernel = is_in_kernel(data);
        (*record).kernel = u32::from(in_kernel);
        let regs = &raw mut (*record).regs;
        if in_kernel {
            // The user registers lie where the kernel saved them at the system call.
            let saved = bpf_task_pt_regs(bpf_get_current_task_btf());
            bpf_probe_read_kernel(regs.cast(), size_of::<pt_regs>() as u32, saved as *const _);
        } else {
            copy::registers(&raw const (*data).regs, regs);
        }
        copy::code((*record).regs.rip, &raw mut (*record).code);
        let (rsp, to) = ((*record).regs.rsp, scratch.cast::<u8>().add(size_of::<TouchRecord>()));
        let stack = match trap.role {
            role::PASSED => Copied { bytes: 0, nested_traps: 0 },
            _ => copy::stack(trap.tgid, rsp, to),
        };
        heap_site::restore_return_address(trap.tid, rsp, stack.bytes, to);
        let bytes = size_of::<TouchRecord>() as u32 + stack.bytes;
        (*record).header.nested_traps = stack.nested_traps;
        (*record).header.bytes = bytes;
        // A reuse in another thread is measured by the process's clock, which user space reads when
        // it is woken.
        let is_awaited = trap.foreign && trap.role != role::PASSED;
        submit(scratch, bytes, if is_awaited { Wake::Now } else { Wake::NextTurn });
    }
}

/// CPU time of this thread with the event enabled; `u64::MAX` when the kernel will not say.
#[inline(always)]
fn enabled_ns(data: *mut bpf_perf_event_data) -> u64 {
    let mut value = bpf_perf_event_value { counter: 0, enabled: 0, running: 0 };
    // SAFETY: the destination is a local of the size given.
    let failed =
        unsafe { bpf_perf_prog_read_value(data, &raw mut value, size_of::<bpf_perf_event_value>() as u32) };
    if failed == 0 { value.enabled } else { u64::MAX }
}
