//! A forked child gets a separate file, at the parent's address, before touching the parent's file.
//!
//! The child's translated code stays valid: the tables of code are
//! copied; counts begin at zero, and the child's first touches are cold,
//! even of data used by the parent. Calling contexts begin at the fork.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering::Relaxed,
};

use crate::{
    analyses,
    process::{self, Process},
    recorder,
    region::Region,
    turn, worker,
};

/// Has [`in_child`] called in every child. False when the C library refuses.
pub fn prepare() -> bool {
    // SAFETY: the handler bears the state of a freshly forked child.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) == 0 }
}

unsafe extern "C" fn in_child() {
    let Some(process) = process::current() else { return };
    // The file stays named for the parent even if everything below fails.
    let moved = catch_unwind(AssertUnwindSafe(|| move_out(process)));
    if !matches!(moved, Ok(Ok(()))) {
        process.region().header().children_lost.fetch_add(1, Relaxed);
        if Region::replace_by_private(process.region()).is_err() {
            recorder::give_up();
        }
        process::stop("no file for a forked child");
    }
    turn::reset();
    analyses::reset();
    worker::reset();
}

fn move_out(process: &Process) -> std::io::Result<()> {
    let old = process.region();
    let fresh = process::new_region(process.settings(), Some(old))?;
    // SAFETY: the child has only the calling thread; a parent's translating
    // thread leaves at worst a last record beyond the copied counts.
    unsafe { fresh.copy_code(old) };
    fresh.take_place_of(old)?;
    process.introduce();
    Ok(())
}
