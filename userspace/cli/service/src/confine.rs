//! Takes every right from the exporter before it answers the first request.
//!
//! Another user, no capabilities, no descriptors but three, no files, no processes, and a list of system
//! calls beyond which the kernel kills the process. What is left to whoever took it over: the sockets that
//! it listens on, and questions for profiles.

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

/// The last descriptor that stays open.
const LAST: i32 = 2;
/// Memory that it may take.
const MEMORY: u64 = 512 << 20;

/// Confines this process.
///
/// # Errors
/// A sentence that says what was not possible; it must end then.
pub(crate) fn confine(parent: u32) -> Result<(), String> {
    // SAFETY: plain arguments, and a C string.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"locality-export".as_ptr());
        let none = libc::rlimit { rlim_cur: MEMORY, rlim_max: MEMORY };
        libc::setrlimit(libc::RLIMIT_AS, &raw const none);
    }
    locality_shadow::helper::give_up_rights(parent, LAST)?;
    let program = filter().map_err(|error| format!("cannot confine itself: {error}"))?;
    seccompiler::apply_filter(&program).map_err(|error| format!("cannot confine itself: {error}"))
}

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let is = |argument: u8, value: u64| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
    };
    let any = Vec::new;
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let rules = [
        // Requests and answers.
        (libc::SYS_read, any()),
        (libc::SYS_write, any()),
        (libc::SYS_recvfrom, any()),
        (libc::SYS_sendto, any()),
        (libc::SYS_accept4, any()),
        (libc::SYS_shutdown, any()),
        (libc::SYS_close, any()),
        (libc::SYS_poll, any()),
        (libc::SYS_ioctl, vec![SeccompRule::new(vec![is(1, libc::FIONBIO)?])?]),
        (libc::SYS_fcntl, vec![SeccompRule::new(vec![is(1, libc::F_GETFD as u64)?])?]),
        // Memory of its own, never executable.
        (libc::SYS_brk, any()),
        (libc::SYS_mmap, vec![SeccompRule::new(vec![is(2, data)?, is(3, anonymous)?])?]),
        (libc::SYS_mremap, any()),
        (libc::SYS_munmap, any()),
        (libc::SYS_madvise, any()),
        (libc::SYS_getrandom, any()),
        (libc::SYS_clock_gettime, any()),
        (libc::SYS_rt_sigreturn, any()),
        (libc::SYS_restart_syscall, any()),
        (libc::SYS_exit, any()),
        (libc::SYS_exit_group, any()),
    ];
    let (kill, allow) = (SeccompAction::KillProcess, SeccompAction::Allow);
    SeccompFilter::new(rules.into_iter().collect(), kill, allow, TargetArch::x86_64)?.try_into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_list_compiles() {
        assert!(super::filter().unwrap().len() > 40);
    }
}
