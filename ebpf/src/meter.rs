//! `meter`: runs a few times after a stop, each time that the thread has used a
//! little more CPU time, and records the thread's progress: registers and a few
//! words of memory. User space computes the rate of accesses from the records.
//!
//! The events are task clocks of the thread alone, count CPU time and follow the thread from CPU to
//! CPU; two events have different periods, because equal intervals would fall into step with a
//! loop. A non-zero return lets the event's limit count, and the event ends without a further call.

use aya_ebpf::{
    bindings::{bpf_perf_event_data, pt_regs},
    helpers::generated::{
        bpf_get_current_task_btf, bpf_get_smp_processor_id, bpf_ktime_get_ns, bpf_probe_read_kernel,
        bpf_probe_read_user, bpf_task_pt_regs,
    },
};
use locality_common::{
    counter,
    record::{METER_WORDS, MeterRecord, kind},
};

use crate::{
    accesses,
    ids::{self, Ids},
    maps::{METERS, SCRATCH, Scratch},
    ring::{Wake, count, submit},
    strings,
    task::Task,
};

/// Let the event limit count.
const COUNT_TICK: u32 = 1;

/// Without aya's `#[perf_event]`, which would return 0.
#[unsafe(no_mangle)]
#[unsafe(link_section = "perf_event")]
pub fn meter(data: *mut bpf_perf_event_data) -> u32 {
    count(counter::SEEN);
    // SAFETY: helper calls without arguments.
    let (cpu, now) = unsafe { (bpf_get_smp_processor_id(), bpf_ktime_get_ns()) };
    let ids = ids::current();
    strings::note(data, ids.tgid);
    match SCRATCH.get_ptr_mut(cpu) {
        Some(scratch) => record(scratch, ids, cpu, now),
        None => count(counter::LOST_SCRATCH),
    }
    COUNT_TICK
}

/// The record, and after it a place for the saved registers.
#[repr(C)]
struct Room {
    record: MeterRecord,
    saved: pt_regs,
}

#[inline(always)]
fn record(scratch: *mut Scratch, Ids { tgid, tid }: Ids, cpu: u32, now: u64) {
    // SAFETY: the entry may be replaced during the read; then the reading belongs to a past sample.
    let Some(meter) = (unsafe { METERS.get(tid) }) else {
        count(counter::FILTERED_STALE_METER);
        return;
    };
    let room = scratch.cast::<Room>();
    // SAFETY: `scratch` is this CPU's map value, larger than `Room`;
    // the helpers check their sources. The saved registers of a thread
    // interrupted in user mode are the registers at the interrupt.
    unsafe {
        let saved = &raw mut (*room).saved;
        let kept = bpf_task_pt_regs(bpf_get_current_task_btf());
        bpf_probe_read_kernel(saved.cast(), size_of::<pt_regs>() as u32, kept as *const _);
        let record = &raw mut (*room).record;
        (*record).header.kind = kind::METER;
        (*record).header.bytes = size_of::<MeterRecord>() as u32;
        (*record).header.time_ns = now;
        (*record).header.tgid = tgid;
        (*record).header.tid = tid;
        (*record).header.cpu = cpu;
        (*record).header.nested_traps = 0;
        (*record).sequence = meter.sequence;
        (*record).switches = Task::current().switches();
        (*record).accesses = accesses::so_far(tid);
        (*record).ip = (*saved).rip;
        let registers = &raw mut (*record).registers;
        macro_rules! copy {
            ($($index:literal $field:ident)*) => { $((*registers)[$index] = (*saved).$field;)* };
        }
        copy!(0 rax 1 rcx 2 rdx 3 rbx 4 rsp 5 rbp 6 rsi 7 rdi 8 r8 9 r9 10 r10 11 r11 12 r12 13 r13 14 r14 15 r15);
        let mut readable = 0;
        for index in 0..METER_WORDS {
            let (address, word) = (meter.words[index], &raw mut (*record).words[index]);
            *word = 0;
            if address != 0 && bpf_probe_read_user(word.cast(), 8, address as *const _) == 0 {
                readable |= 1 << index;
            }
        }
        (*record).readable = readable;
        (*record).reserved = 0;
        submit(scratch, size_of::<MeterRecord>() as u32, Wake::NextTurn);
    }
}
