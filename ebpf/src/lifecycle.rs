//! `thread_fork`, `process_exec`, `thread_exit`: births, program changes and deaths of targets.
//! Keeps the target map and the held map true in the kernel, so that no forked process is missed
//! and nothing stays held on the dead.

use aya_ebpf::{
    helpers::generated::{
        bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_ktime_get_ns,
    },
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use locality_common::{
    config::{mode, spared},
    counter,
    record::{Header, LifecycleRecord, kind, lifecycle},
};

use crate::{
    log::log,
    maps::{self, HELD, SPARED, TARGETS},
    ring::{Wake, count, submit_small},
    target,
    task::Task,
};

/// `sched_process_fork(parent, child)`: runs in the parent, before the child runs.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn thread_fork(ctx: RawTracePointContext) -> i32 {
    let child = Task::from_pointer(ctx.arg::<u64>(1));
    let (other_tid, other_tgid) = (child.tid(), child.tgid());
    let tgid = current_tgid();
    if other_tgid != tgid {
        if target::is_own(tgid) {
            // Before it runs, so that no sample of it is taken.
            let _ = SPARED.insert(other_tgid, spared::OWN, 0);
        } else if maps::mode() == mode::PROCESSES
            && target::is_listed(tgid)
            && TARGETS.insert(other_tgid, 1, 0).is_err()
        {
            count(counter::TARGETS_FULL);
        }
    }
    record(&ctx, lifecycle::FORK, other_tid, other_tgid, 0);
    0
}

/// `sched_process_exec(task, old_pid, bprm)`: runs in the thread that goes on, which is now the leader.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn process_exec(ctx: RawTracePointContext) -> i32 {
    record(&ctx, lifecycle::EXEC, ctx.arg::<u32>(1), 0, 0);
    0
}

/// `sched_process_exit(task)`: runs in the dying thread.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn thread_exit(ctx: RawTracePointContext) -> i32 {
    record(&ctx, lifecycle::EXIT, 0, 0, Task::current().cpu_ns());
    // SAFETY: a helper call without arguments.
    let tid = unsafe { bpf_get_current_pid_tgid() } as u32;
    // Absent for a thread that was never held.
    let _ = HELD.remove(tid);
    if tid == current_tgid() {
        // Its number may become another process'.
        let _ = SPARED.remove(tid);
    }
    0
}

#[inline(always)]
fn current_tgid() -> u32 {
    // SAFETY: a helper call without arguments.
    (unsafe { bpf_get_current_pid_tgid() } >> 32) as u32
}

#[inline(always)]
fn record(ctx: &RawTracePointContext, event: u32, other_tid: u32, other_tgid: u32, cpu_ns: u64) {
    count(counter::SEEN);
    // SAFETY: helper calls without arguments.
    let (pid_tgid, cpu, now) =
        unsafe { (bpf_get_current_pid_tgid(), bpf_get_smp_processor_id(), bpf_ktime_get_ns()) };
    let tgid = (pid_tgid >> 32) as u32;
    if !target::is_target(tgid) {
        count(counter::FILTERED_LIFECYCLE);
        return;
    }
    log!(
        ctx,
        "lifecycle event {} of thread {} of process {}, other thread {}",
        event,
        pid_tgid as u32,
        tgid,
        other_tid
    );
    let mut record = LifecycleRecord {
        header: Header {
            kind: kind::LIFECYCLE,
            bytes: size_of::<LifecycleRecord>() as u32,
            time_ns: now,
            tgid,
            tid: pid_tgid as u32,
            cpu,
            nested_traps: 0,
        },
        event,
        other_tid,
        other_tgid,
        reserved: 0,
        comm: [0; 16],
        cpu_ns,
    };
    // SAFETY: the destination is a local of the size given.
    unsafe { bpf_get_current_comm((&raw mut record.comm).cast(), 16) };
    // Births and deaths may come in storms, and nobody waits for them but who follows the heap: a
    // child inherits blocks.
    let is_child = event == lifecycle::FORK && other_tgid != tgid;
    let is_awaited = event == lifecycle::EXEC || (is_child && maps::heap() != 0);
    let wake = if is_awaited { Wake::Now } else { Wake::NextTurn };
    submit_small(&record, wake);
}
