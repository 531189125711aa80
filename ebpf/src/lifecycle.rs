//! `thread_fork`, `process_exec`, `thread_exit`: births, program changes and deaths of targets.
//! Keeps the target map and the map of seized threads true in the kernel, so that no forked process is missed
//! and no entry of a dead thread stays. Starts of debuggers are reported of every process, where an agent
//! asks.

use aya_ebpf::{
    helpers::generated::{bpf_get_current_comm, bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use locality_common::{
    config::{mode, spared},
    counter,
    record::{Header, LifecycleRecord, kind, lifecycle},
};

use crate::{
    ids::{self, Ids},
    log::log,
    maps::{self, DEBUGGERS, HELD, SPARED, TARGETS},
    ring::{Wake, count, submit_small},
    target,
    task::Task,
};

/// For events without another thread.
const NOBODY: Ids = Ids { tgid: 0, tid: 0 };

/// `sched_process_fork(parent, child)`: runs in the parent, before the child runs.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
pub fn thread_fork(ctx: RawTracePointContext) -> i32 {
    let child = Task::from_pointer(ctx.arg::<u64>(1));
    let (parent, child) = (ids::current(), ids::of(child));
    let (tgid, other_tgid) = (parent.tgid, child.tgid);
    // A child that `setns` of its parent put into another namespace than ours has no id.
    let has_id = maps::namespace() == 0 || other_tgid != 0;
    if other_tgid != tgid && has_id {
        if target::is_own(tgid) {
            // Before the process runs, to prevent samples.
            let _ = SPARED.insert(other_tgid, spared::OWN, 0);
        } else if maps::mode() == mode::PROCESSES
            && target::is_listed(tgid)
            && TARGETS.insert(other_tgid, 1, 0).is_err()
        {
            count(counter::TARGETS_FULL);
        }
    }
    record(&ctx, lifecycle::FORK, parent, child, 0);
    0
}

/// `sched_process_exec(task, old_pid, bprm)`: runs in the thread that goes on, now the leader.
#[raw_tracepoint(tracepoint = "sched_process_exec")]
pub fn process_exec(ctx: RawTracePointContext) -> i32 {
    let ids = ids::current();
    record(&ctx, lifecycle::EXEC, ids, NOBODY, 0);
    let mut comm = [0_u8; 16];
    // SAFETY: the destination is a local of the size given.
    unsafe { bpf_get_current_comm((&raw mut comm).cast(), 16) };
    if ids.tgid != 0 && DEBUGGERS.get_ptr(comm).is_some() && !target::is_own(ids.tgid) {
        record(&ctx, lifecycle::DEBUGGER, ids, NOBODY, 0);
    }
    0
}

/// `sched_process_exit(task)`: runs in the dying thread.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
pub fn thread_exit(ctx: RawTracePointContext) -> i32 {
    let ids = ids::current();
    record(&ctx, lifecycle::EXIT, ids, NOBODY, Task::current().cpu_ns());
    // Absent for a thread that was never seized.
    let _ = HELD.remove(ids.tid);
    if ids.tid == ids.tgid {
        // Its number may become another process'.
        let _ = SPARED.remove(ids.tid);
    }
    0
}

#[inline(always)]
fn record(ctx: &RawTracePointContext, event: u32, Ids { tgid, tid }: Ids, other: Ids, cpu_ns: u64) {
    count(counter::SEEN);
    // SAFETY: helper calls without arguments.
    let (cpu, now) = unsafe { (bpf_get_smp_processor_id(), bpf_ktime_get_ns()) };
    if event != lifecycle::DEBUGGER && !target::is_target(tgid) {
        count(counter::FILTERED_LIFECYCLE);
        return;
    }
    log!(ctx, "lifecycle event {} of thread {} of process {}, other thread {}", event, tid, tgid, other.tid);
    let mut record = LifecycleRecord {
        header: Header {
            kind: kind::LIFECYCLE,
            bytes: size_of::<LifecycleRecord>() as u32,
            time_ns: now,
            tgid,
            tid,
            cpu,
            nested_traps: 0,
        },
        event,
        other_tid: other.tid,
        other_tgid: other.tgid,
        reserved: 0,
        comm: [0; 16],
        cpu_ns,
    };
    // SAFETY: the destination is a local of the size given.
    unsafe { bpf_get_current_comm((&raw mut record.comm).cast(), 16) };
    // Births and deaths may come in storms, and only a reader that
    // follows the heap waits for the records: a child inherits blocks.
    let is_child = event == lifecycle::FORK && other.tgid != tgid;
    let is_awaited =
        matches!(event, lifecycle::EXEC | lifecycle::DEBUGGER) || (is_child && maps::heap() != 0);
    let wake = if is_awaited { Wake::Now } else { Wake::NextTurn };
    submit_small(&record, wake);
}
