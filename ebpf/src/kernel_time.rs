//! Samples in the kernel: the thread's system call, page
//! fault or interrupt, and the place of entry in the program.

use aya_ebpf::{
    bindings::pt_regs,
    helpers::generated::{bpf_get_current_task_btf, bpf_probe_read_kernel, bpf_task_pt_regs},
};
use locality_common::{
    counter,
    record::{KERNEL_RECORD_NS, KernelRecord, kind},
};

use crate::{
    copy, heap_site,
    maps::{KERNEL_RECORDED, SCRATCH},
    ring::{Wake, count, submit},
};

/// Records where the current thread has entered the kernel, if
/// this processor's last record of an entry is long enough ago.
#[inline(always)]
pub fn record(tgid: u32, tid: u32, cpu: u32, now: u64) {
    let Some(last) = KERNEL_RECORDED.get_ptr_mut(0) else {
        count(counter::FILTERED_KERNEL);
        return;
    };
    // SAFETY: this processor's own map value.
    let last = unsafe { &mut *last };
    if now.saturating_sub(*last) < KERNEL_RECORD_NS {
        count(counter::FILTERED_KERNEL);
        return;
    }
    *last = now;
    let Some(scratch) = SCRATCH.get_ptr_mut(cpu) else {
        count(counter::LOST_SCRATCH);
        return;
    };
    let record = scratch.cast::<KernelRecord>();
    // SAFETY: `scratch` is this CPU's map value, larger than the record and its stack.
    unsafe {
        (*record).header.kind = kind::KERNEL;
        (*record).header.time_ns = now;
        (*record).header.tgid = tgid;
        (*record).header.tid = tid;
        (*record).header.cpu = cpu;
        let saved = bpf_task_pt_regs(bpf_get_current_task_btf());
        let regs = &raw mut (*record).regs;
        bpf_probe_read_kernel(regs.cast(), size_of::<pt_regs>() as u32, saved as *const _);
        let (rsp, to) = ((*record).regs.rsp, scratch.cast::<u8>().add(size_of::<KernelRecord>()));
        let stack = copy::stack(tgid, rsp, to);
        heap_site::restore_return_address(tid, rsp, stack.bytes, to);
        let bytes = size_of::<KernelRecord>() as u32 + stack.bytes;
        (*record).header.nested_traps = stack.nested_traps;
        (*record).header.bytes = bytes;
        submit(scratch, bytes, Wake::NextTurn);
    }
}
