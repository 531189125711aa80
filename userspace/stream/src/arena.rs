//! Memory for an analysis's state: one range, addressed by offsets. A parent
//! process can map the range at another address and finish a killed process's work.
//!
//! Values never move, and room is not freed for reuse: a table that outgrows
//! a room takes a larger room and releases the old. Unwritten memory is free
//! of cost if the source maps lazily; room may be taken generously.
//!
//! Limits: offsets fit 64 bits, but tables that store references in 32 bits reach 64 GiB
//! ([`Arena::base`] on).

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Values valid for arbitrary bytes: no padding, no pointers, no invalid bit patterns.
///
/// # Safety
/// The type must have no padding, and every bit pattern must be valid. Zero must be a sensible first value.
pub unsafe trait Plain: Copy + 'static {}

macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: integers have no padding and no invalid values.
        unsafe impl Plain for $t {}
    )* };
}
plain!(u8, u16, u32, u64, i32, i64);
// SAFETY: arrays add no padding.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Bytes from the base of an arena.
pub type Offset = u64;

/// Bytes per unit of allocation: a page, because released pages can go back to the system.
const PAGE: usize = 4096;
/// Alignment of small allocations.
const LINE: usize = 64;

/// A range of memory from which tables take room.
///
/// # Safety
/// `base` must not change, be aligned to 4096, and `len` bytes from it must be readable and
/// writable as long as the arena lives. Ranges that `allocate` returns must lie within and not
/// overlap.
pub unsafe trait Arena {
    /// First byte.
    fn base(&self) -> NonNull<u8>;
    /// Bytes.
    fn len(&self) -> usize;
    /// Counter of the bytes taken so far; in the arena itself if another process is to continue.
    fn taken(&self) -> &AtomicUsize;
    /// Tells that `bytes` bytes at `offset` will not be used again. Whole pages may be given back
    /// to the system.
    fn release(&self, offset: Offset, bytes: usize);

    /// True without any room.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes `bytes` zeroed bytes; aligned to a page if at least a page, else to a
    /// cache line. `None` when the arena is used up. May be called by several threads.
    fn allocate(&self, bytes: usize) -> Option<Offset> {
        let align = if bytes >= PAGE { PAGE } else { LINE };
        let taken = self.taken();
        let mut old = taken.load(Ordering::Relaxed);
        loop {
            let start = old.checked_next_multiple_of(align)?;
            let end = start.checked_add(bytes.max(1))?.checked_next_multiple_of(align)?;
            if end > self.len() {
                return None;
            }
            match taken.compare_exchange_weak(old, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(start as Offset),
                Err(now) => old = now,
            }
        }
    }
}

/// `count` values of `T` in an arena. Plain data: tables can refer to tables.
#[derive(Debug)]
#[repr(C)]
pub struct Span<T> {
    offset: Offset,
    count: u64,
    of: PhantomData<T>,
}

impl<T> Clone for Span<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Span<T> {}
// SAFETY: two integers; `Span::get` checks their target.
unsafe impl<T: 'static> Plain for Span<T> {}

impl<T> Default for Span<T> {
    fn default() -> Self {
        Span { offset: 0, count: 0, of: PhantomData }
    }
}

/// Bytes of an arena: offset of the first, and how many.
pub type Range = (Offset, u64);

/// Whether tables of a state from another process lie in taken room, without overlap.
///
/// Without the check, writes to one table may change checked data of another.
pub fn are_apart<A: Arena + ?Sized>(arena: &A, mut ranges: Vec<Range>) -> bool {
    let end = |(start, bytes): Range| start.checked_add(bytes);
    let taken = arena.taken().load(Ordering::Relaxed).min(arena.len()) as u64;
    ranges.retain(|(_, bytes)| *bytes > 0);
    ranges.sort_unstable();
    let next = ranges.iter().skip(1).map(|range| range.0).chain([taken]);
    ranges.iter().zip(next).all(|(range, next)| end(*range).is_some_and(|end| end <= next))
}

impl<T: Plain> Span<T> {
    /// Takes room for `count` zeroed values.
    pub fn allocate<A: Arena + ?Sized>(arena: &A, count: usize) -> Option<Span<T>> {
        let offset = arena.allocate(count.checked_mul(size_of::<T>())?)?;
        Some(Span { offset, count: count as u64, of: PhantomData })
    }

    /// A span from its stored parts.
    pub fn from_parts(offset: Offset, count: usize) -> Span<T> {
        Span { offset, count: count as u64, of: PhantomData }
    }

    /// Bytes from the base.
    pub fn offset(&self) -> Offset {
        self.offset
    }

    /// Number of values.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// Where the values lie, for [`are_apart`].
    pub fn range(&self) -> Range {
        (self.offset, self.count.saturating_mul(size_of::<T>() as u64))
    }

    /// Gives the room back.
    pub fn release<A: Arena + ?Sized>(self, arena: &A) {
        arena.release(self.offset, self.count() * size_of::<T>());
    }

    /// The first value's address, after checking that all values lie in the arena and are aligned.
    pub fn get<A: Arena + ?Sized>(&self, arena: &A) -> Option<NonNull<T>> {
        let bytes = self.count().checked_mul(size_of::<T>())?;
        let start = usize::try_from(self.offset).ok()?;
        if start.checked_add(bytes)? > arena.len() || !start.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: within the arena, as just checked.
        Some(unsafe { arena.base().add(start) }.cast())
    }

    /// The values, for reading.
    ///
    /// # Safety
    /// The values must have no writer during the slice's life.
    pub unsafe fn slice<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> Option<&'a [T]> {
        let first = self.get(arena)?;
        // SAFETY: `get` checked range and alignment; any bytes are valid values; the caller excludes writers.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), self.count()) })
    }
}

/// An arena on the heap.
pub struct Heap {
    memory: NonNull<u8>,
    layout: Layout,
    base: NonNull<u8>,
    len: usize,
    taken: AtomicUsize,
    released: AtomicUsize,
}

// SAFETY: the memory is owned; the right to write is the rule of the tables, as for every arena.
unsafe impl Send for Heap {}
// SAFETY: as above; `taken` is atomic.
unsafe impl Sync for Heap {}

impl Heap {
    /// An arena of `bytes` bytes. The system gives pages on touch;
    /// a request far above the system's memory may be refused.
    pub fn new(bytes: usize) -> Option<Heap> {
        // Not aligned by the allocator, which would write zeros to the whole range.
        let layout = Layout::from_size_align(bytes.checked_add(PAGE)?, 16).ok()?;
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = memory.as_ptr().align_offset(PAGE);
        // SAFETY: `skip` is below a page, by which the allocation is longer than `bytes`.
        let base = unsafe { memory.add(skip) };
        // Offset 0 is left out: it stands for "none" in tables.
        Some(Heap {
            memory,
            layout,
            base,
            len: bytes,
            taken: AtomicUsize::new(LINE),
            released: AtomicUsize::new(0),
        })
    }

    /// Bytes taken and not released, touched or not.
    pub fn in_use(&self) -> usize {
        self.taken.load(Ordering::Relaxed) - self.released.load(Ordering::Relaxed)
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) };
    }
}

// SAFETY: `base` is aligned by `new`, and the range is owned until drop.
unsafe impl Arena for Heap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    fn len(&self) -> usize {
        self.len
    }
    fn taken(&self) -> &AtomicUsize {
        &self.taken
    }
    fn release(&self, _: Offset, bytes: usize) {
        self.released.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_apart_zeroed_and_within() {
        let heap = Heap::new(1 << 16).unwrap();
        let mut end = 0;
        let mut taken = 0;
        for bytes in [1, 64, 65, 4096, 10, 5000, 100_000, 8] {
            let Some(offset) = heap.allocate(bytes) else {
                assert_eq!(bytes, 100_000);
                continue;
            };
            assert!(offset as usize >= end.max(1) && offset as usize + bytes <= heap.len());
            assert!((offset as usize).is_multiple_of(if bytes >= PAGE { PAGE } else { LINE }));
            end = offset as usize + bytes;
            taken += 1;
        }
        assert_eq!(taken, 7);
        let span = Span::<u64>::allocate(&heap, 100).unwrap();
        // SAFETY: no writer.
        assert_eq!(unsafe { span.slice(&heap) }.unwrap(), &[0; 100]);
    }

    #[test]
    fn tables_in_each_other_or_in_free_room_are_told() {
        let heap = Heap::new(1 << 16).unwrap();
        let (a, b) = (Span::<u64>::allocate(&heap, 8).unwrap(), Span::<u64>::allocate(&heap, 16).unwrap());
        let apart = |ranges: &[Range]| are_apart(&heap, ranges.to_vec());
        assert!(apart(&[b.range(), a.range()]) && apart(&[]));
        let empty = Span::<u64>::from_parts(a.offset() + 8, 0);
        assert!(apart(&[a.range(), empty.range(), b.range()]));
        assert!(!apart(&[a.range(), a.range()]));
        assert!(!apart(&[a.range(), Span::<u64>::from_parts(a.offset() + 56, 2).range()]));
        assert!(!apart(&[Span::<u64>::from_parts(b.offset(), 17).range()]));
        assert!(!apart(&[Span::<u64>::from_parts(u64::MAX - 7, 2).range(), a.range()]));
    }

    #[test]
    fn spans_outside_are_refused() {
        let heap = Heap::new(1 << 16).unwrap();
        for (offset, count) in [(1 << 16, 1), (8, usize::MAX), (u64::MAX, 2), (4, 1), ((1 << 16) - 8, 2)] {
            assert!(Span::<u64>::from_parts(offset, count).get(&heap).is_none(), "{offset} {count}");
        }
        assert!(Span::<u64>::from_parts((1 << 16) - 8, 1).get(&heap).is_some());
    }
}
