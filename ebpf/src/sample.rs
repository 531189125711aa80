//! `sample`: runs on each tick of a CPU's clock event, or at each access
//! that the hardware samples. Records the place of a target's thread in
//! user mode, and stops the thread at the place if seized by the freezer.
//!
//! A hardware sample's instruction pointer points to the sampled instruction; the
//! thread has gone on since, and all other registers show the place of the interrupt.

use aya_ebpf::{
    bindings::{bpf_perf_event_data, pt_regs},
    helpers::generated::{
        bpf_get_current_cgroup_id, bpf_get_current_task_btf, bpf_get_smp_processor_id, bpf_ktime_get_ns,
        bpf_probe_read_kernel, bpf_send_signal_thread, bpf_task_pt_regs,
    },
    macros::perf_event,
    programs::PerfEventContext,
};
use locality_common::{
    config::HEARTBEAT_MAX_AGE_NS,
    counter,
    record::{HeldThread, SampleRecord, kind, no_stop},
    rules::START_TICK_NS,
};

use crate::{
    copy, heap_site,
    ids::{self, Ids},
    kernel_time,
    maps::{HEARTBEAT, HELD, SCRATCH, Scratch},
    ring::{Wake, count, submit},
    strings, target,
    task::Task,
};

/// Flag of a hardware sample whose instruction pointer is exact (`PERF_EFLAGS_EXACT` in
/// arch/x86/include/asm/perf_event.h); the processor itself never sets it.
const EXACT: u64 = 1 << 3;

#[perf_event]
pub fn sample(ctx: PerfEventContext) -> u32 {
    count(counter::SEEN);
    let data = ctx.ctx;
    // SAFETY: helper calls without arguments.
    let (cpu, now) = unsafe { (bpf_get_smp_processor_id(), bpf_ktime_get_ns()) };
    let Ids { tgid, tid } = ids::current();
    if !target::is_target(tgid) {
        count(counter::FILTERED_OTHER);
        return 0;
    }
    // SAFETY: the context is valid for the program's whole run, here and below.
    let (cs, ss, flags, address) =
        unsafe { ((*data).regs.cs, (*data).regs.ss, (*data).regs.eflags, (*data).addr) };
    if flags & EXACT == 0 && address == 0 {
        strings::note(data, tgid);
    }
    // A hardware sample's `cs` is that of the sampled instruction; only `ss` says whether the
    // interrupt, too, came in user mode. A thread that has entered the kernel since must not be
    // stopped: its system call would fail.
    if cs & ss & 3 != 3 {
        count(counter::KERNEL_TICKS);
        if flags & EXACT != 0 || address != 0 {
            count(counter::FILTERED_KERNEL);
        } else {
            kernel_time::record(tgid, tid, cpu, now);
        }
        return 0;
    }
    if (flags & EXACT != 0) != (address != 0) {
        count(counter::FILTERED_NO_ADDRESS);
        return 0;
    }
    match SCRATCH.get_ptr_mut(cpu) {
        Some(scratch) => record(data, scratch, tgid, tid, cpu, now),
        None => count(counter::LOST_SCRATCH),
    }
    0
}

#[inline(always)]
fn record(data: *mut bpf_perf_event_data, scratch: *mut Scratch, tgid: u32, tid: u32, cpu: u32, now: u64) {
    let record = scratch.cast::<SampleRecord>();
    // SAFETY: `scratch` is this CPU's map value, larger than the record and its stack; the context is valid.
    unsafe {
        (*record).header.kind = kind::SAMPLE;
        (*record).header.time_ns = now;
        (*record).header.tgid = tgid;
        (*record).header.tid = tid;
        (*record).header.cpu = cpu;
        // Unique: one CPU takes one sample at a time, and no run lasts 2^50 ns … nor has 2^14 CPUs.
        (*record).sequence = now << 14 | u64::from(cpu & 0x3fff);
        (*record).period = (*data).sample_period;
        (*record).cgroup = bpf_get_current_cgroup_id();
        copy::registers(&raw const (*data).regs, &raw mut (*record).regs);
        ((*record).address, (*record).accessed_by) = ((*data).addr, 0);
        if (*record).address != 0 {
            (*record).accessed_by = (*record).regs.rip;
            // Registers that the kernel saved for an interrupt from user mode.
            let saved = bpf_task_pt_regs(bpf_get_current_task_btf()) as *const pt_regs;
            // Instruction pointer, code segment and flags follow each other in both.
            let to = &raw mut (*record).regs.rip;
            bpf_probe_read_kernel(to.cast(), 3 * 8, (&raw const (*saved).rip).cast());
        }
        copy::code((*record).regs.rip, &raw mut (*record).code);
        let (rsp, to) = ((*data).regs.rsp, scratch.cast::<u8>().add(size_of::<SampleRecord>()));
        let stack = copy::stack(tgid, rsp, to);
        heap_site::restore_return_address(tid, rsp, stack.bytes, to);
        let bytes = size_of::<SampleRecord>() as u32 + stack.bytes;
        (*record).header.nested_traps = stack.nested_traps;
        (*record).header.bytes = bytes;
        let (signal, reason) = stop(record, tid, now);
        (*record).signal = signal;
        (*record).no_stop = reason;
        // A stop wakes the reader; without a stop, the watch is
        // armed as soon as the record is read, if a reader exists.
        let wake = match reason {
            no_stop::STOPPED | no_stop::NO_HEARTBEAT => Wake::NextTurn,
            _ => Wake::Now,
        };
        submit(scratch, bytes, wake);
    }
}

/// Stops the thread before its next instruction, if the freezer holds it; returns the signal or why not.
#[inline(always)]
fn stop(record: *const SampleRecord, tid: u32, now: u64) -> (u32, u32) {
    // First, to prevent a record from waking an absent reader.
    let heartbeat = HEARTBEAT.get(0).copied().unwrap_or(0);
    if now.saturating_sub(heartbeat) > HEARTBEAT_MAX_AGE_NS {
        return (0, no_stop::NO_HEARTBEAT);
    }
    let Some(held) = HELD.get_ptr_mut(tid) else {
        return (0, no_stop::NOT_HELD);
    };
    // SAFETY: the lookup returned a live map value; only the thread itself runs this program with
    // its own entry.
    let held: &mut HeldThread = unsafe { &mut *held };
    let task = Task::current();
    if held.start_ticks != task.start_boottime_ns() / START_TICK_NS {
        return (0, no_stop::RECYCLED);
    }
    let signal = task.free_signal();
    if signal == 0 {
        return (0, no_stop::NO_FREE_SIGNAL);
    }
    // SAFETY: `record` was filled by the caller.
    held.sequence = unsafe { (*record).sequence };
    held.signal = signal;
    // SAFETY: a helper call with a plain argument.
    if unsafe { bpf_send_signal_thread(signal) } != 0 {
        return (0, no_stop::SEND_FAILED);
    }
    count(counter::STOP_SIGNALS);
    (signal, no_stop::STOPPED)
}
