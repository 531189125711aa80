//! Memory shared by the tracer and the window process, and the exchange of questions and answers.
//!
//! # Rule
//! The tracer reads this memory only through [`Shared::load`] and [`Shared::copy`]: by value, word
//! by word, atomically. The tracer never makes a reference into the memory, never reads a number
//! twice, and checks each number before use. Whatever and whenever a compromised window process
//! writes, the tracer therefore computes with arbitrary numbers but never reads out of bounds. The
//! window process may make references: the process writes only between a question and the answer,
//! and the tracer reads only after the answer.
//!
//! The file cannot shrink (sealed), hence reading cannot fail.
//! The file is sparse, hence unused room costs no memory.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use locality_stream::Plain;

use super::layout::{Layout, MOST_EXTENDED, Room, Section, WORD, plain};
use super::{death, sys};
use crate::memory::PAGE;

/// The memory, mapped.
#[derive(Debug)]
pub(super) struct Shared {
    base: NonNull<u8>,
    /// Positions of the parts.
    pub(super) layout: Layout,
}

// SAFETY: the mapping is owned, and the tracer accesses it by atomics only.
unsafe impl Send for Shared {}
// SAFETY: all safe access is by atomics.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the file, which must be as long as the layout says.
    pub(super) fn map(file: BorrowedFd<'_>, room: &Room) -> io::Result<Shared> {
        let layout = Layout::new(room);
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, placed by the kernel.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), layout.bytes, protection, flags, file.as_raw_fd(), 0) };
        match NonNull::new(base.cast()) {
            Some(found) if base != libc::MAP_FAILED => Ok(Shared { base: found, layout }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Populates the pages for a window of `usual` instructions in advance:
    /// for writing in the window process, then for reading in the tracer.
    pub(super) fn make_ready(&self, usual: usize, write: bool) {
        let layout = &self.layout;
        self.populate(&layout.request, 1, !write);
        self.populate(&layout.request_extended, MOST_EXTENDED / WORD, !write);
        self.populate(&layout.answer, 1, write);
        self.populate(&layout.answer_extended, MOST_EXTENDED / WORD, write);
        self.populate(&layout.events, usual, write);
        self.populate(&layout.values, usual, write);
        self.populate(&layout.registers, usual / 4, write);
        self.populate(&layout.instructions, usual, write);
        self.populate(&layout.blocks, usual / 4, write);
    }

    /// Populates the pages of a section's first entries. A kernel
    /// without `MADV_POPULATE_*` (before 5.14) populates by page faults.
    fn populate<T>(&self, section: &Section<T>, count: usize, write: bool) {
        let bytes = (count.min(section.count) * size_of::<T>()).next_multiple_of(PAGE as usize);
        let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
        // SAFETY: within the mapping, which each section fills up to a page's end.
        unsafe { libc::madvise(self.base.as_ptr().add(section.offset).cast(), bytes, advice) };
    }

    /// Number of the last question.
    pub(super) fn asked(&self) -> &AtomicU32 {
        // SAFETY: the first bytes of the mapping, aligned;
        // both sides access the bytes as an atomic only.
        unsafe { self.base.cast::<AtomicU32>().as_ref() }
    }

    /// Number of the last answered question, or [`death::open`]
    /// while a question is open; in a separate cache line.
    pub(super) fn answered(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.base.add(64).cast::<AtomicU32>().as_ref() }
    }

    /// The window process' id, marked after the process' death; [`death`]
    /// requires one cache line's distance from [`Shared::answered`].
    pub(super) fn alive(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.base.add(128).cast::<AtomicU32>().as_ref() }
    }

    /// Waits for the answer to question `number` until
    /// `deadline_ns`. False for a late answer or a dead process.
    pub(super) fn wait_for(&self, number: u32, deadline_ns: u64) -> bool {
        loop {
            let seen = self.answered().load(Ordering::SeqCst);
            if seen == number {
                return true;
            }
            if death::is_marked(seen | self.alive().load(Ordering::SeqCst)) || sys::now_ns() >= deadline_ns {
                return false;
            }
            sys::futex_wait(self.answered(), seen, Some(deadline_ns));
        }
    }

    /// The words of entry `index` on; `None` beyond the section's end.
    fn words<T: Plain>(&self, section: &Section<T>, index: usize, count: usize) -> Option<&[AtomicU64]> {
        const { assert!(size_of::<T>().is_multiple_of(WORD)) };
        if index.checked_add(count)? > section.count {
            return None;
        }
        let offset = section.offset + index * size_of::<T>();
        // SAFETY: sections lie in the mapping, the range lies in the section, and is
        // aligned to a word because sections begin pages and entries are whole words.
        let first = unsafe { self.base.add(offset) }.cast::<AtomicU64>();
        // SAFETY: as above; the mapping lives as long as `self`.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), count * (size_of::<T>() / WORD)) })
    }

    /// One entry.
    pub(super) fn load<T: Plain>(&self, section: &Section<T>, index: usize) -> Option<T> {
        self.words(section, index, 1).map(value)
    }

    /// The first entries; none if fewer exist.
    pub(super) fn first<T: Plain>(&self, section: &Section<T>, count: usize) -> impl Iterator<Item = T> {
        let words = self.words(section, 0, count).unwrap_or_default();
        words.chunks_exact(size_of::<T>() / WORD).map(value)
    }

    /// Appends entries `from` to `to` to a vector; entries beyond the section's end are left out.
    pub(super) fn copy<T: Plain>(&self, section: &Section<T>, from: usize, to: usize, into: &mut Vec<T>) {
        let to = to.min(section.count);
        let count = to.saturating_sub(from);
        let Some(words) = self.words(section, from, count) else { return };
        into.reserve(count);
        let end = into.spare_capacity_mut().as_mut_ptr().cast::<u64>();
        for (n, word) in words.iter().enumerate() {
            // SAFETY: room for `count` entries is reserved, with as many words as the slice.
            unsafe { end.add(n).write_unaligned(word.load(Ordering::Relaxed)) };
        }
        // SAFETY: all words of the entries are written, and all bytes are valid for a plain type.
        unsafe { into.set_len(into.len() + count) };
    }

    /// Writes entries from `index` on; entries beyond the section's end are left out.
    pub(super) fn store<T: Plain>(&self, section: &Section<T>, index: usize, values: &[T]) {
        let count = values.len().min(section.count.saturating_sub(index));
        let Some(words) = self.words(section, index, count) else { return };
        for (n, word) in words.iter().enumerate() {
            // SAFETY: the values have at least as many words as the slice.
            let value = unsafe { values.as_ptr().cast::<u64>().add(n).read_unaligned() };
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Writes bytes into a section of words; bytes beyond the section's end are left out.
    pub(super) fn store_bytes(&self, section: &Section<u64>, bytes: &[u8]) {
        let Some(words) = self.words(section, 0, section.count) else { return };
        let (whole, rest) = bytes.as_chunks::<WORD>();
        let mut last = [0; WORD];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        for (word, value) in words.iter().zip(whole.iter().chain((!rest.is_empty()).then_some(&last))) {
            word.store(u64::from_le_bytes(*value), Ordering::Relaxed);
        }
    }

    /// The first bytes of a section of words, at most the whole section.
    pub(super) fn load_bytes(&self, section: &Section<u64>, count: usize, into: &mut Vec<u8>) {
        into.clear();
        let Some(words) = self.words(section, 0, section.count.min(count.div_ceil(WORD))) else { return };
        words.iter().for_each(|word| into.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes()));
        into.truncate(count);
    }

    /// Leaves a text for the opposite side.
    pub(super) fn leave_note(&self, text: &str) {
        self.store_bytes(&self.layout.note, text.as_bytes());
    }

    /// The text left by the opposite side.
    pub(super) fn note(&self) -> String {
        let mut bytes = Vec::new();
        self.load_bytes(&self.layout.note, PAGE as usize, &mut bytes);
        plain(bytes.split(|byte| *byte == 0).next().unwrap_or_default())
    }

    /// The entries themselves. For the window process only.
    ///
    /// # Safety
    /// The section must have no other reference during the slice's life.
    #[expect(clippy::mut_from_ref, reason = "memory outside Rust's own; the caller excludes aliases")]
    pub(super) unsafe fn slice<T: Plain>(&self, section: &Section<T>) -> &mut [T] {
        // SAFETY: sections lie in the mapping and begin pages; all bytes
        // are valid for a plain type; no aliases, as the caller says.
        unsafe {
            let first = self.base.add(section.offset).cast::<T>();
            std::slice::from_raw_parts_mut(first.as_ptr(), section.count)
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, without remaining references.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.layout.bytes) };
    }
}

/// The entry in `words`.
#[inline(always)]
fn value<T: Plain>(words: &[AtomicU64]) -> T {
    assert_eq!(words.len(), size_of::<T>() / WORD);
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    for (n, word) in words.iter().enumerate() {
        // SAFETY: `T` has as many words as the slice.
        unsafe { value.as_mut_ptr().cast::<u64>().add(n).write_unaligned(word.load(Ordering::Relaxed)) };
    }
    // SAFETY: all words are written, and all bytes are valid for a plain type.
    unsafe { value.assume_init() }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use locality_stream::{BlockRecord, Event};

    use super::*;

    fn shared(room: &Room) -> Shared {
        let file = sys::sealed_memory(Layout::new(room).bytes).unwrap();
        Shared::map(file.as_fd(), room).unwrap()
    }

    #[test]
    fn what_is_stored_is_loaded_and_nothing_beyond_a_section() {
        let room = Room { events: 5, values: 600, registers: 3, instructions: 7, blocks: 9 };
        let shared = shared(&room);
        let layout = shared.layout;
        let events: Vec<Event> =
            (0..5).map(|n| Event::access(locality_stream::Kind::STORE, n, u64::from(n) << 40, 8)).collect();
        shared.store(&layout.events, 0, &events);
        shared.store(&layout.events, 3, &events);
        assert_eq!(shared.load(&layout.events, 2), Some(events[2]));
        assert_eq!(shared.load(&layout.events, 4), Some(events[1]));
        assert_eq!(shared.load(&layout.events, 5), None);
        assert_eq!(shared.load(&layout.values, 0), Some(0));
        let first: Vec<Event> = shared.first(&layout.events, 4).collect();
        assert_eq!(first, [events[0], events[1], events[2], events[0]]);
        assert_eq!(shared.first(&layout.events, 6).count(), 0);
        let mut copied = vec![events[4]];
        shared.copy(&layout.events, 3, usize::MAX, &mut copied);
        assert_eq!(copied, [events[4], events[0], events[1]]);
        shared.copy(&layout.events, 6, 9, &mut copied);
        shared.copy(&layout.events, usize::MAX, usize::MAX, &mut copied);
        assert_eq!(copied.len(), 3);
        let blocks: Vec<BlockRecord> = (0..9).map(|n| BlockRecord { first: n, count: n + 1 }).collect();
        shared.store(&layout.blocks, 0, &blocks);
        let mut copied = Vec::new();
        shared.copy(&layout.blocks, 1, 9, &mut copied);
        assert_eq!(copied, blocks[1..]);
    }

    #[test]
    fn a_note_is_plain_text() {
        let shared = shared(&Room { events: 1, values: 1, registers: 1, instructions: 1, blocks: 1 });
        assert_eq!(shared.note(), "");
        shared.leave_note("panicked at a.rs:7:\n\x1b[2J index é out of bounds");
        assert_eq!(shared.note(), "panicked at a.rs:7:  [2J index    out of bounds");
        shared.leave_note(&"x".repeat(10_000));
        assert_eq!(shared.note().len(), PAGE as usize);
    }

    #[test]
    fn an_answer_that_does_not_come_is_not_waited_for_longer_than_said() {
        let shared = shared(&Room { events: 1, values: 1, registers: 1, instructions: 1, blocks: 1 });
        let begin = sys::now_ns();
        assert!(!shared.wait_for(1, begin + 2_000_000));
        assert!(sys::now_ns() >= begin + 2_000_000);
        shared.answered().store(1, Ordering::Release);
        assert!(shared.wait_for(1, 0));
    }
}
