//! Makes one zero-skid stop of a spinning child.
//!
//! The same path as in a trace: seize, a clock tick runs the `sample` program, it signals the
//! thread, the thread halts before its next instruction. The test compares the sampled instruction
//! with the halted thread's instruction.

use std::{io, time::Duration};

use anyhow::{Context as _, Result, bail};

use super::{Check, probe};
use locality_kernel::{
    object::{Object, Ring},
    proc, ptrace, records, sys,
};

/// A tick of 1 ms hits a spinning child at once; a busy machine may take longer to let it run.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) fn check(kernel: Option<&mut (Object, Ring)>, online: &[u32]) -> Check {
    let found = |text: String| Check::ok("zero_skid_stop", "zero-skid stop", text);
    let lost = "threads run on at a sample, so uses are found from sampled registers and are less exact";
    let tried = Spinning::start().context("cannot start a child to try it on").and_then(|child| {
        ptrace::seize(child.pid).context("ptrace refused")?;
        kernel.map(|(object, ring)| stop(&child, object, ring, online)).transpose()
    });
    match tried {
        Ok(Some(Stop { signal, skid_bytes: 0 })) => found(format!("works, with {}", signal_name(signal))),
        Ok(Some(Stop { signal, skid_bytes })) => {
            found(format!("{} bytes of skid, with {}", skid_bytes, signal_name(signal)))
                .degraded("a thread stops behind the sampled instruction, so uses are less exact")
        }
        Ok(None) => {
            found("a child may be traced".into()).unknown("a stop was not tried without the eBPF object")
        }
        Err(error) => probe::mend_rights(found(format!("{error:#}")).degraded(lost), probe::io_error(&error)),
    }
}

/// Name of one of the stop signals.
pub(super) fn signal_name(signal: u32) -> &'static str {
    match signal as i32 {
        libc::SIGURG => "SIGURG",
        libc::SIGWINCH => "SIGWINCH",
        libc::SIGCHLD => "SIGCHLD",
        _ => "another signal",
    }
}

struct Stop {
    signal: u32,
    skid_bytes: u64,
}

fn stop(child: &Spinning, object: &mut Object, ring: &mut Ring, online: &[u32]) -> Result<Stop> {
    object.hold(child.pid, proc::start_ticks(child.pid)?)?;
    object.add_target(child.pid)?;
    let clocks = probe::open_clocks(Some(object), online)?;
    for clock in &clocks {
        clock.enable()?;
    }
    let stopped = wait_for_stop(child, object, ring);
    drop(clocks);
    object.remove_target(child.pid);
    object.unhold(child.pid);
    // From here on no stop is asked for.
    object.beat(0)?;
    stopped
}

fn wait_for_stop(child: &Spinning, object: &mut Object, ring: &mut Ring) -> Result<Stop> {
    let end_ns = sys::monotonic_ns() + PATIENCE.as_nanos() as u64;
    while sys::monotonic_ns() < end_ns {
        object.beat(sys::monotonic_ns())?;
        match ptrace::next_status_of(child.pid)? {
            None => std::thread::sleep(Duration::from_micros(500)),
            Some(ptrace::Status::Signal(signal)) => {
                let stands_at = ptrace::registers(child.pid)?.rip;
                let sampled_at = sampled_at(ring, child.pid).context("a stop without a sample")?;
                return Ok(Stop { signal: signal as u32, skid_bytes: stands_at.abs_diff(sampled_at) });
            }
            Some(other) => bail!("the child did something else: {other:?}"),
        }
    }
    bail!("no stop within {} ms", PATIENCE.as_millis())
}

/// Place of the sample that requested the stop.
fn sampled_at(ring: &mut Ring, pid: u32) -> Option<u64> {
    let mut newest = None;
    while let Some(item) = ring.next() {
        if let records::Record::Sample(sample, _) = records::decode(&item)
            && sample.header.tid == pid
            && sample.signal != 0
        {
            newest = Some(sample.regs.rip);
        }
    }
    newest
}

/// A child that spins until dropped, until its parent dies, or for two seconds.
pub(super) struct Spinning {
    pub(super) pid: u32,
}

impl Spinning {
    pub(super) fn start() -> io::Result<Self> {
        // SAFETY: the child only makes system calls and spins, without anything locked by other
        // threads.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: system calls with plain arguments. The default action of SIGALRM ends the process.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::prctl(libc::PR_SET_NAME, c"doctor-probe".as_ptr());
                    libc::signal(libc::SIGALRM, libc::SIG_DFL);
                    libc::alarm(2);
                }
                loop {
                    std::hint::spin_loop();
                }
            }
            pid => Ok(Self { pid: pid as u32 }),
        }
    }
}

impl Drop for Spinning {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: this process's own child, without other waiters; the destination is live.
        unsafe {
            libc::kill(self.pid as i32, libc::SIGKILL);
            // A last ptrace stop may be reported first.
            while libc::waitpid(self.pid as i32, &mut status, libc::__WALL) > 0 && libc::WIFSTOPPED(status) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_object_only_ptrace_is_tried() {
        let check = check(None, &[0]);
        assert!(
            check.found.contains("may be traced") || check.found.starts_with("ptrace refused"),
            "{check:?}"
        );
        assert!(check.consequence.is_some());
    }

    #[test]
    fn the_child_is_gone_when_dropped() {
        let child = Spinning::start().unwrap();
        let pid = child.pid;
        assert_eq!(proc::status(pid).unwrap().tgid, pid);
        drop(child);
        assert!(proc::status(pid).is_err());
    }
}
