//! A target's memory through `/proc/PID/mem`: in the window process, or for a window in the tracer.
//!
//! Where the kernel has put breakpoints into text (uprobes) that the caller named, the file's
//! bytes are returned.
//!
//! Runs of pages take one `preadv`, for any order and destination. An absent page ends a run
//! without other effects.
//!
//! A page that waits for a `userfaultfd(2)` handler is absent for this file, hence never waited
//! for.
//!
//! Pages of the kernel's clock are ours (`clock_pages`).
//!
//! Limits: this file shows memory that the program itself may not read (`PROT_NONE`), where the
//! program's own load would fault. A read waits for a page swapped out or on a slow file system,
//! with the target's map locked for reading, so that the target's remaining threads cannot change
//! mappings meanwhile; the client's time limit frees the stopped thread, not the map
//! (https://github.com/torvalds/linux/blob/v6.12/mm/memory.c, `__access_remote_vm`).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;

use super::clock_pages::{self, ClockPages};
use super::ranges::{At, Lookup, TextRange, in_namespace, packed};
use crate::memory::{Memory, PAGE, Page, Trust};
use crate::window::End;

/// Most pages of one call; the kernel takes at most 1,024 (`IOV_MAX`).
const RUN: usize = 512;

/// The memory of one process.
#[derive(Debug)]
pub struct ProcessMemory {
    file: OwnedFd,
    /// Text, and memory that must not be read.
    pub(super) ranges: Lookup,
    clocks: Arc<ClockPages>,
    /// The address space is gone: the process has ended or executed another program.
    pub(super) gone: bool,
    /// Pages asked for since the last reset to 0.
    pub(super) asked: usize,
    order: Vec<u32>,
    parts: Vec<libc::iovec>,
}

// SAFETY: the parts are used within one call only.
unsafe impl Send for ProcessMemory {}

impl ProcessMemory {
    /// The memory of a traceable process with the ranges `maps`.
    pub fn open(pid: u32, maps: &[TextRange]) -> io::Result<ProcessMemory> {
        let file = File::open(format!("/proc/{pid}/mem"))?;
        let maps = in_namespace(maps, clock_pages::is_same_time(pid));
        Ok(ProcessMemory::with(file.into(), Lookup::new(packed(&maps)), Arc::new(ClockPages::find())))
    }

    /// The memory of a descriptor.
    pub(super) fn with(file: OwnedFd, ranges: Lookup, clocks: Arc<ClockPages>) -> ProcessMemory {
        ProcessMemory { file, ranges, clocks, gone: false, asked: 0, order: Vec::new(), parts: Vec::new() }
    }

    /// Checks whether the address space still exists, by reading a page.
    pub(super) fn probe(&mut self, page: u64) {
        let (mut into, mut found) = ([[0; PAGE as usize]], [false]);
        self.read(&[page & !(PAGE - 1)], &mut into, &mut found);
    }

    /// Reads consecutive pages of the target. Returns the number of pages read.
    fn run(&mut self, first: u64) -> usize {
        // SAFETY: the parts point to distinct pages of the caller's slice.
        let got = unsafe {
            libc::preadv(
                self.file.as_raw_fd(),
                self.parts.as_ptr(),
                self.parts.len() as i32,
                first as libc::off_t,
            )
        };
        // The end of the file means an unused address space:
        // https://github.com/torvalds/linux/blob/v6.12/fs/proc/base.c (mem_rw).
        self.gone |= got == 0;
        usize::try_from(got).unwrap_or(0) / PAGE as usize
    }
}

impl Memory for ProcessMemory {
    fn read(&mut self, pages: &[u64], into: &mut [Page], found: &mut [bool]) {
        let count = pages.len().min(into.len()).min(found.len());
        self.asked += count;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(0..count as u32);
        let page = |n: u32| pages.get(n as usize).copied().unwrap_or(u64::MAX);
        if !pages.is_sorted() {
            order.sort_unstable_by_key(|n| page(*n));
        }
        found.fill(false);
        order.retain(|n| match self.ranges.at(page(*n)) {
            At::Data | At::Text => true,
            At::Closed | At::OtherClock => false,
            At::Clock(clock, number, count) => {
                if let (Some(into), Some(found)) = (into.get_mut(*n as usize), found.get_mut(*n as usize)) {
                    *found = self.clocks.copy(clock, number, count, into);
                }
                false
            }
        });
        let mut rest = order.as_slice();
        while let Some(first) = rest.first().copied() {
            let follows = |(at, n): (usize, &u32)| page(*n) == page(first).wrapping_add(at as u64 * PAGE);
            let run =
                rest.iter().enumerate().take(RUN).take_while(|(at, n)| follows((*at, n))).count().max(1);
            let (these, others) = rest.split_at(run.min(rest.len()));
            self.parts.clear();
            // Anew for each run, as the pages are looked at in between.
            let base = into.as_mut_ptr();
            self.parts.extend(these.iter().map(|n| libc::iovec {
                // SAFETY: the number is below `count`, hence below the length of `into`.
                iov_base: unsafe { base.add(*n as usize) }.cast(),
                iov_len: PAGE as usize,
            }));
            let got = self.run(page(first)).min(run);
            for n in these.iter().take(got) {
                if let Some(found) = found.get_mut(*n as usize) {
                    *found = true;
                }
                if let Some(bytes) = into.get_mut(*n as usize) {
                    self.ranges.unprobe(page(*n), bytes);
                }
            }
            // The page at the end of the run is absent; the next pages may be present.
            rest = if got == run { others } else { rest.get(got + 1..).unwrap_or_default() };
        }
        self.order = order;
    }

    fn trust(&self, page: u64) -> Trust {
        if self.ranges.at(page) == At::Text { Trust::Text } else { Trust::Nothing }
    }

    fn refusal(&self, page: u64) -> End {
        if self.ranges.at(page) == At::OtherClock { End::OtherTime } else { End::Unreadable }
    }
}

#[cfg(test)]
mod tests {
    use super::super::What;
    use super::*;

    /// Eight pages of our own; of each, its number in all bytes; the fourth and the eighth are not there.
    fn pages() -> (u64, ProcessMemory) {
        const PAGES: usize = 8;
        // SAFETY: a new mapping with two holes, leaked.
        let base = unsafe {
            let (protection, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let base = libc::mmap(std::ptr::null_mut(), PAGES << 12, protection, flags, -1, 0).cast::<u8>();
            for page in 0..PAGES {
                base.add(page << 12).write_bytes(page as u8 + 1, 4096);
            }
            libc::munmap(base.add(3 << 12).cast(), 4096);
            libc::munmap(base.add(7 << 12).cast(), 4096);
            base as u64
        };
        let file = std::fs::File::open("/proc/self/mem").unwrap();
        (base, ProcessMemory::with(file.into(), Lookup::default(), Arc::default()))
    }

    fn read(target: &mut ProcessMemory, wanted: &[u64]) -> Vec<Option<u8>> {
        let mut into = vec![[0; PAGE as usize]; wanted.len()];
        let mut found = vec![true; wanted.len()];
        target.read(wanted, &mut into, &mut found);
        into.iter()
            .zip(found)
            .map(|(page, found)| {
                assert!(page.iter().all(|byte| *byte == page[0]));
                found.then_some(page[0])
            })
            .collect()
    }

    #[test]
    fn pages_in_any_order_go_to_their_places() {
        let (base, mut target) = pages();
        let at = |n: u64| base + n * PAGE;
        let all: Vec<u64> = (0..8).map(at).collect();
        assert_eq!(read(&mut target, &[at(0), at(1), at(2)]), [Some(1), Some(2), Some(3)]);
        assert_eq!(
            read(&mut target, &[at(5), at(0), at(3), at(4), at(2)]),
            [Some(6), Some(1), None, Some(5), Some(3)]
        );
        assert_eq!(
            read(&mut target, &all),
            [Some(1), Some(2), Some(3), None, Some(5), Some(6), Some(7), None]
        );
        assert_eq!(read(&mut target, &[]), []);
        assert_eq!(read(&mut target, &[u64::MAX << 12, 0, at(6)]), [None, None, Some(7)]);
        assert!(!target.gone);
        assert_eq!(target.asked, 3 + 5 + 8 + 3);
    }

    #[test]
    fn closed_ranges_are_not_read_and_text_is_trusted() {
        let (base, mut target) = pages();
        let range = |n: u64, what| TextRange { start: base + n * PAGE, end: base + (n + 1) * PAGE, what };
        let list = [range(1, What::Closed), range(2, What::Text { file: 1, offset: 0 })];
        target.ranges = Lookup::new(packed(&list));
        assert_eq!(read(&mut target, &[base, base + PAGE, base + 2 * PAGE]), [Some(1), None, Some(3)]);
        assert_eq!(
            [0, 1, 2].map(|n| target.trust(base + n * PAGE)),
            [Trust::Nothing, Trust::Nothing, Trust::Text]
        );
    }

    #[test]
    fn the_memory_of_a_process_that_has_ended_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let file = std::fs::File::open(format!("/proc/{}/mem", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let mut target = ProcessMemory::with(file.into(), Lookup::default(), Arc::default());
        target.probe(0x40_0123);
        assert!(target.gone);
    }
}
