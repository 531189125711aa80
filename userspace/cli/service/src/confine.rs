//! Takes every right from the exporter before it answers the first request.
//!
//! Another user, no capabilities, no descriptors but three, no files, no processes, and
//! a list of allowed system calls; the kernel kills the process at a further call. An
//! attacker in the process has only the listening sockets, and questions for profiles.

use locality_shadow::helper;
use seccompiler::{BackendError, BpfProgram, SeccompRule};

/// The last open descriptor.
const LAST: i32 = 2;
/// Limit of memory, in bytes.
const MEMORY: u64 = 512 << 20;

/// Confines the process.
///
/// # Errors
/// A sentence with the failed step; the process must end then.
pub(crate) fn confine(parent: u32) -> Result<(), String> {
    // SAFETY: plain arguments, and a C string.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_NAME, c"locality-export".as_ptr());
        let none = libc::rlimit { rlim_cur: MEMORY, rlim_max: MEMORY };
        libc::setrlimit(libc::RLIMIT_AS, &raw const none);
    }
    helper::give_up_rights(parent, LAST)?;
    let program = filter().map_err(|error| format!("cannot confine itself: {error}"))?;
    seccompiler::apply_filter(&program).map_err(|error| format!("cannot confine itself: {error}"))
}

fn filter() -> Result<BpfProgram, BackendError> {
    helper::allow_only(vec![
        // Requests and answers.
        (libc::SYS_read, Vec::new()),
        (libc::SYS_write, Vec::new()),
        (libc::SYS_recvfrom, Vec::new()),
        (libc::SYS_sendto, Vec::new()),
        (libc::SYS_accept4, Vec::new()),
        (libc::SYS_shutdown, Vec::new()),
        (libc::SYS_poll, Vec::new()),
        (libc::SYS_ioctl, vec![SeccompRule::new(vec![helper::is(1, libc::FIONBIO)?])?]),
        (libc::SYS_getrandom, Vec::new()),
    ])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_list_compiles() {
        assert!(super::filter().unwrap().len() > 40);
    }
}
