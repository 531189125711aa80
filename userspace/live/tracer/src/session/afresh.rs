//! All targets are released and seized again: after Ctrl-Z, after the loss of a watchdog, and where a
//! debugger may want some of them.

use std::{collections::HashSet, time::Instant};

use anyhow::Result;
use locality_capture::{Command, UNGUARDED};
use locality_heap::HeapThread;
use locality_kernel::proc;

use super::{NO_STOP, Trace};
use crate::debuggers;

/// Why all targets are released and seized again.
pub(super) enum Afresh {
    /// Ctrl-Z.
    Paused,
    /// The watchdog is lost.
    Unguarded,
    /// Others than before are left to debuggers.
    Aside,
}

/// Most watchdogs started after lost ones.
const WATCHDOGS: u32 = 3;

impl Trace<'_> {
    /// Releases whom a debugger that just started may want.
    pub(super) async fn step_aside(&mut self, debugger: u32) -> Result<()> {
        self.meet_processes();
        let traced: HashSet<u32> = self.cpu.pids().chain(self.pids.iter().copied()).collect();
        let Some(wanted) = debuggers::wanted(debugger, &traced) else { return Ok(()) };
        tracing::debug!(?wanted, "debugger {debugger} started");
        if wanted.whose.is_some() {
            self.aside_until = Some((Instant::now() + debuggers::WAIT, debugger));
        }
        self.aside.add(wanted);
        self.start_afresh(Afresh::Aside).await
    }

    /// Seizes again whom a debugger might have wanted, after its end or some time.
    pub(super) async fn return_from_aside(&mut self) -> Result<()> {
        let is_over =
            |(until, debugger): &(Instant, u32)| Instant::now() >= *until || !proc::exists(*debugger);
        if self.aside_until.take_if(|until| is_over(until)).is_none() {
            return Ok(());
        }
        self.aside.whose = None;
        self.start_afresh(Afresh::Aside).await
    }

    /// Lets every target go and attaches again; for Ctrl-Z, stops in between until continued.
    pub(super) async fn start_afresh(&mut self, cause: Afresh) -> Result<()> {
        self.capture.send(Command::Finish);
        let mut capture = self.capture.join()?;
        if matches!(cause, Afresh::Unguarded) {
            let guarded = self.guard_again();
            tracing::debug!(?guarded, "the watchdog was lost");
            let may_stop = self.summary.plan.may_stop;
            capture.set_no_stops(match guarded {
                Ok(()) if may_stop => None,
                Ok(()) => Some(NO_STOP),
                Err(_) => Some(UNGUARDED),
            });
        }
        capture.set_aside(self.aside.clone());
        if matches!(cause, Afresh::Paused) {
            // Without that thread nothing limits their cost.
            let heap = self.heap.as_ref().map(HeapThread::heap);
            heap.inspect(|heap| heap.away());
            // SAFETY: a system call with plain arguments. It returns when somebody continues us.
            unsafe { libc::raise(libc::SIGSTOP) };
            heap.inspect(|heap| heap.back());
        }
        self.capture = capture.start()?;
        self.meet_processes();
        let mut all: HashSet<u32> = self.cpu.pids().collect();
        all.extend(&self.pids);
        for pid in all.into_iter().filter(|pid| proc::status(*pid).is_ok()) {
            // A process that ended meanwhile is reported as ended, not as an error.
            let held = self.attach_to(&self.capture, pid).await?;
            tracing::debug!(?held, "process {pid} taken up again");
        }
        Ok(())
    }

    /// Starts another watchdog, unless whoever ends them is at it again and again.
    fn guard_again(&mut self) -> Result<()> {
        loop {
            anyhow::ensure!(self.summary.watchdogs_lost <= WATCHDOGS, "too many watchdogs were lost");
            self.heartbeat.start_watchdog()?;
            match self.heartbeat.standing() {
                Ok(standing) => {
                    self.summary.standing = standing;
                    return Ok(());
                }
                // The watchdog was lost before it was placed.
                Err(_) => self.summary.watchdogs_lost += 1,
            }
        }
    }
}
