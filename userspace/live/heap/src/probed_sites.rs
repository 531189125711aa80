//! Bytes of files replaced by breakpoints of the tool:
//! shadow windows execute the file's bytes instead.
//!
//! Announced before the insertion of breakpoints, which waits for the acknowledgement by the
//! executors of windows: a page read with a breakpoint would be cached.

use std::{
    collections::HashMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use locality_shadow::helper::{TextRange, What};

use super::modules::FileId;
use locality_kernel::uprobe::Probe;

/// Longest wait for an acknowledgement; a hanging executor executes no windows.
const PATIENCE: Duration = Duration::from_millis(50);

/// Shared by the prober and the executor of windows.
#[derive(Debug, Default)]
pub struct Probed {
    /// Rises with each file.
    version: AtomicU64,
    heard: AtomicU64,
    /// Offsets and bytes, by [`FileId::key`].
    files: Mutex<HashMap<u64, Vec<(u64, u8)>>>,
}

impl Probed {
    /// A file will be probed. Returns when that is known, or after a while.
    pub(super) fn say(&self, file: FileId, probes: &[Probe]) {
        let bytes = probes.iter().map(|probe| (probe.offset, probe.byte)).collect();
        self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(file.key(), bytes);
        let version = self.version.fetch_add(1, Ordering::AcqRel) + 1;
        let until = Instant::now() + PATIENCE;
        while self.heard.load(Ordering::Acquire) < version && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The newest version, if newer than the acknowledged one.
    pub fn news(&self) -> Option<u64> {
        let version = self.version.load(Ordering::Acquire);
        (version != self.heard.load(Ordering::Acquire)).then_some(version)
    }

    /// Every executor of windows knows `version`.
    pub fn heard(&self, version: u64) {
        self.heard.store(version, Ordering::Release);
    }

    /// Adds the bytes within these ranges.
    pub fn add_to(&self, ranges: &mut Vec<TextRange>) {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        for range in ranges.iter() {
            let What::Text { file, offset } = range.what else { continue };
            for (at, byte) in files.get(&file).into_iter().flatten() {
                let within = at.checked_sub(offset).filter(|within| *within < range.end - range.start);
                if let Some(within) = within {
                    let start = range.start + within;
                    found.push(TextRange { start, end: start + 1, what: What::Probed(*byte) });
                }
            }
        }
        ranges.extend(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_found_in_each_mapping_that_holds_them() {
        let probed = Probed::default();
        let own = super::super::modules::own().unwrap();
        let probe = |offset, byte| Probe { offset, cookie: 1, followed: true, byte };
        probed.say(own, &[probe(0x1ffe, 0x53), probe(0x5000, 0x55)]);
        assert_eq!(probed.news(), Some(1));
        probed.heard(1);
        assert_eq!(probed.news(), None);
        let text =
            |start, file| TextRange { start, end: start + 0x3000, what: What::Text { file, offset: 0x1000 } };
        let closed = TextRange { start: 0x9000, end: 0xa000, what: What::Closed };
        let mut ranges =
            vec![text(0x40_0000, own.key()), text(0x50_0000, 3), closed, text(0x60_0000, own.key())];
        probed.add_to(&mut ranges);
        let added: Vec<_> = ranges.iter().skip(4).map(|range| (range.start, range.what)).collect();
        assert_eq!(added, [(0x40_0ffe, What::Probed(0x53)), (0x60_0ffe, What::Probed(0x53))]);
    }
}
