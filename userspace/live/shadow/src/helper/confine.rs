//! Takes every right from the window process before the first target.
//!
//! Another user with no capabilities, no descriptors but the socket and descriptors
//! handed over, no new privileges, limits, and a list of system calls: the kernel
//! kills the process at a call outside the list. Rights left to an attacker in the
//! process: reading the memory of traced processes, and writing into the memory
//! shared with the tracer. The tracer checks the numbers in shared memory.

use std::io;
use std::os::fd::RawFd;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// The user and group without property: the kernel's overflow ids (`/proc/sys/kernel/overflowuid`).
pub(super) const NOBODY: u32 = 65_534;
/// Greatest number of open descriptors.
pub(super) const FILES: u64 = 4096;
/// Memory allowed beyond the amount at the time of the limit.
const MEMORY: u64 = 1 << 30;

/// The failed step, and the error.
#[derive(Debug)]
pub(super) struct Refused(pub(super) &'static str, pub(super) io::Error);

fn must(what: &'static str, result: libc::c_long) -> Result<(), Refused> {
    if result < 0 { Err(Refused(what, io::Error::last_os_error())) } else { Ok(()) }
}

/// Own session, the first victim when memory is short, and the requested priority.
pub(super) fn settle(real_time: Option<i32>) {
    // A failure here makes the process slower or later to die, not less confined.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let priority = real_time.unwrap_or(0);
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: system calls with plain arguments and a live parameter block; the name is a C string.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"locality-window".as_ptr());
        let urgent =
            priority > 0 && libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) == 0;
        if !urgent {
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        }
    }
}

/// Another user, no capabilities, ends with `parent`.
pub(super) fn drop_rights(parent: u32) -> Result<(), Refused> {
    // A tracer without CAP_KILL may end the window process, and the kernel may after
    // the tracer's end, only if the saved user is still the tracer's. The process
    // cannot return to the saved user: the filter allows no call to change users.
    let saved = if may_kill_others() { NOBODY } else { u32::MAX };
    // SAFETY: system calls with plain arguments; the list of groups is empty.
    unsafe {
        for capability in 0..64 {
            // Fails beyond the last capability, and without the right.
            libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0);
        }
        let changed = [
            ("give up its groups", libc::setgroups(0, std::ptr::null())),
            ("change its group", libc::setresgid(NOBODY, NOBODY, NOBODY)),
            ("change its user", libc::setresuid(NOBODY, NOBODY, saved)),
        ];
        // A user without the right to change groups or users has little to give up.
        if libc::geteuid() == 0 || changed.iter().any(|(_, result)| *result == 0) {
            for (what, result) in changed {
                must(what, result.into())?;
            }
        }
    }
    // _LINUX_CAPABILITY_VERSION_3 and no capability in the three sets (`capget(2)`).
    let header = [0x2008_0522_u32, 0];
    let none = [0_u32; 6];
    // SAFETY: both arrays have the layout of the version and are live;
    // the remaining calls have plain arguments. A change of user clears
    // `PR_SET_PDEATHSIG` and `PR_SET_DUMPABLE`, so both calls come last.
    unsafe {
        must("give up its capabilities", libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()))?;
        must("forbid others to trace it", libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0).into())?;
        must("die with the tracer", libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0).into())?;
        if libc::getppid() as u32 != parent {
            return Err(Refused("find its tracer alive", io::ErrorKind::NotFound.into()));
        }
    }
    Ok(())
}

/// Whether the window process, and therefore the tracer, has `CAP_KILL`.
fn may_kill_others() -> bool {
    const CAP_KILL: u64 = 5;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    set.is_some_and(|set| set >> CAP_KILL & 1 == 1)
}

/// Limits: no core, no files written, no processes,
/// memory, and time without sleep at a real-time priority.
pub(super) fn set_limits(real_time_us: u64) -> Result<(), Refused> {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
    let limits = [
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_FSIZE, 0),
        (libc::RLIMIT_NPROC, 0),
        (libc::RLIMIT_NOFILE, FILES),
        (libc::RLIMIT_MEMLOCK, 0),
        (libc::RLIMIT_MSGQUEUE, 0),
        (libc::RLIMIT_SIGPENDING, 16),
        (libc::RLIMIT_RTTIME, real_time_us),
        (libc::RLIMIT_AS, pages * 4096 + MEMORY),
    ];
    for (resource, most) in limits {
        // SAFETY: the limit is live.
        unsafe {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            must("read its limits", libc::getrlimit(resource, &raw mut limit).into())?;
            limit.rlim_max = limit.rlim_max.min(most);
            limit.rlim_cur = limit.rlim_max;
            must("limit itself", libc::setrlimit(resource, &raw const limit).into())?;
        }
    }
    Ok(())
}

/// Closes every descriptor above `last`.
pub(super) fn close_above(last: RawFd) -> Result<(), Refused> {
    // SAFETY: the process does not use descriptors above `last` any more.
    must("close descriptors", unsafe { libc::syscall(libc::SYS_close_range, last + 1, u32::MAX, 0) })
}

/// From here on only the system calls of the list; another call kills the process.
pub(super) fn allow_only_what_windows_need(socket: RawFd) -> Result<(), Refused> {
    let refused = |e: seccompiler::Error| Refused("confine itself", io::Error::other(e.to_string()));
    let program = filter(socket).map_err(|e| refused(e.into()))?;
    seccompiler::apply_filter(&program).map_err(refused)
}

fn filter(socket: RawFd) -> Result<BpfProgram, BackendError> {
    let futex = [libc::FUTEX_WAIT_BITSET, libc::FUTEX_WAKE];
    let futex: Result<Vec<_>, _> =
        futex.into_iter().map(|operation| SeccompRule::new(vec![is(1, operation as u64)?])).collect();
    allow_only(vec![
        // The targets' memory; no further file is open.
        (libc::SYS_pread64, Vec::new()),
        (libc::SYS_preadv, Vec::new()),
        // Questions and answers; descriptors.
        (libc::SYS_futex, futex?),
        (libc::SYS_recvmsg, vec![SeccompRule::new(vec![is(0, socket as u64)?])?]),
    ])
}

/// System calls with conditions; none: always allowed.
pub type Rules = Vec<(i64, Vec<SeccompRule>)>;

/// The condition that an argument, counted from 0, has `value` in the lower half.
///
/// # Errors
/// The argument does not exist.
pub fn is(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// A filter for the system calls in `rules`, and for the calls needed by every
/// helper: own memory, never executable, and exit. Another call kills the process.
///
/// # Errors
/// A rule that cannot be compiled.
pub fn allow_only(mut rules: Rules) -> Result<BpfProgram, BackendError> {
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    rules.extend([
        (libc::SYS_close, Vec::new()),
        // Called by the standard library before closing a descriptor, in debug builds.
        (libc::SYS_fcntl, vec![SeccompRule::new(vec![is(1, libc::F_GETFD as u64)?])?]),
        (libc::SYS_brk, Vec::new()),
        (libc::SYS_mmap, vec![SeccompRule::new(vec![is(2, data)?, is(3, anonymous)?])?]),
        (libc::SYS_mremap, Vec::new()),
        (libc::SYS_munmap, Vec::new()),
        (libc::SYS_madvise, Vec::new()),
        // The time limit, if the clock needs a system call; the way
        // back from a fault in a stub, and from a stop; the end.
        (libc::SYS_clock_gettime, Vec::new()),
        (libc::SYS_rt_sigreturn, Vec::new()),
        (libc::SYS_restart_syscall, Vec::new()),
        (libc::SYS_exit, Vec::new()),
        (libc::SYS_exit_group, Vec::new()),
    ]);
    let (kill, allow) = (SeccompAction::KillProcess, SeccompAction::Allow);
    SeccompFilter::new(rules.into_iter().collect(), kill, allow, TargetArch::x86_64)?.try_into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_list_compiles() {
        assert!(super::filter(0).unwrap().len() > 40);
    }
}
