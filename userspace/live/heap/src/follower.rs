//! The loop of the heap thread, whatever follows allocations: probes (`tracker`) or the preloaded
//! recorder (`preloaded`).

use std::{iter, sync::mpsc, time::Duration};

use super::{block_table::Notice, tracker::SETTLE_NS};

/// What the loop drives.
pub(super) trait Follower: Sized {
    /// Takes a notice; true when the trace is over.
    fn on_notice(&mut self, notice: Notice) -> bool;

    /// One round; returns the time until the next.
    fn turn(&mut self) -> Duration;

    /// The end: no block is followed from now on.
    fn end(self);

    /// Serves notices, and takes turns, until the trace is over or the last sender is gone.
    fn run(mut self, notices: &mpsc::Receiver<Notice>) {
        let mut wait = Duration::ZERO;
        loop {
            let first = notices.recv_timeout(wait);
            if matches!(first, Err(mpsc::RecvTimeoutError::Disconnected)) {
                break;
            }
            let more = iter::from_fn(|| notices.try_recv().ok());
            let mut over = false;
            for notice in first.ok().into_iter().chain(more) {
                over |= self.on_notice(notice);
            }
            if over {
                break;
            }
            wait = self.turn();
        }
        self.end();
    }
}

/// A fork that may yet become another program: parent, child, when.
pub(super) type Fork = (u32, u32, u64);

/// Removes the forks that continue as copies.
pub(super) fn settled(forks: &mut Vec<Fork>, now_ns: u64) -> Vec<Fork> {
    forks.extract_if(.., |(_, _, at_ns)| now_ns.saturating_sub(*at_ns) > SETTLE_NS).collect()
}
