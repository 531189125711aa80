//! A growable array in an arena that survives the writer's death.
//!
//! Without pointers. A growing list moves, so references do not outlive an insertion.

use std::sync::atomic::{Ordering, compiler_fence};

use crate::arena::{Arena, Offset, Plain, Range, Span};

/// The array; lies in an arena itself.
#[derive(Debug)]
#[repr(C)]
pub struct List<T> {
    span: Span<T>,
    used: u64,
}

impl<T> Clone for List<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for List<T> {}
// SAFETY: a span and an integer without padding.
unsafe impl<T: 'static> Plain for List<T> {}

impl<T: Plain> List<T> {
    /// An empty list with room for `room` values at first.
    pub fn new<A: Arena + ?Sized>(arena: &A, room: usize) -> Option<List<T>> {
        Some(List { span: Span::allocate(arena, room.max(1))?, used: 0 })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.used as usize
    }

    /// True without any value.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Where the values lie in the arena, until the list grows.
    pub fn offset(&self) -> Offset {
        self.span.offset()
    }

    /// The list's room, for [`crate::are_apart`].
    pub fn range(&self) -> Range {
        self.span.range()
    }

    /// The values, which must have no writer meanwhile.
    pub fn values<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> &'a [T] {
        // SAFETY: the list's owner does not write while it reads.
        unsafe { self.span.slice(arena) }.and_then(|all| all.get(..self.len())).unwrap_or_default()
    }

    /// A value, for writing.
    pub fn get_mut<'a, A: Arena + ?Sized>(&'a mut self, arena: &'a A, index: u32) -> Option<&'a mut T> {
        if index as usize >= self.len() {
            return None;
        }
        // SAFETY: below `used`, hence within the span, which `get` checks; `self` is the only way to it.
        Some(unsafe { &mut *self.span.get(arena)?.as_ptr().add(index as usize) })
    }

    /// A value without a check.
    ///
    /// # Safety
    /// The list is in order ([`List::is_whole`]), the index is below its length, the arena outlives
    /// the reference, and no other reference to the value or to all of them is in use.
    #[inline(always)]
    pub unsafe fn at<'a, A: Arena + ?Sized>(&self, arena: &A, index: u32) -> &'a mut T {
        debug_assert!((index as usize) < self.len());
        // SAFETY: promised by the caller.
        unsafe {
            &mut *arena.base().as_ptr().add(self.span.offset() as usize).cast::<T>().add(index as usize)
        }
    }

    /// Appends a value and returns its index; `None` when the arena is full.
    pub fn push<A: Arena + ?Sized>(&mut self, arena: &A, value: T) -> Option<u32> {
        let index = u32::try_from(self.used).ok().filter(|index| *index < u32::MAX)?;
        if self.len() == self.span.count() {
            self.grow(arena, self.span.count() * 2)?;
        }
        let first = self.span.get(arena)?;
        // SAFETY: `used` is below the span's count.
        unsafe { first.add(self.len()).write(value) };
        // Whoever reads after a kill finds the value when it finds the count.
        compiler_fence(Ordering::SeqCst);
        self.used += 1;
        Some(index)
    }

    /// Makes the list longer with zeros.
    pub fn extend<A: Arena + ?Sized>(&mut self, arena: &A, len: usize) -> Option<()> {
        if len > self.span.count() {
            self.grow(arena, len.checked_next_power_of_two()?)?;
        }
        let old = self.len();
        if len > old {
            // Unused room has zeros, unless a stray write changed them.
            // SAFETY: below the span's count, which is at least `len`.
            unsafe { self.span.get(arena)?.add(old).write_bytes(0, len - old) };
            self.used = len as u64;
        }
        Some(())
    }

    #[cold]
    fn grow<A: Arena + ?Sized>(&mut self, arena: &A, room: usize) -> Option<()> {
        let larger: Span<T> = Span::allocate(arena, room)?;
        let (from, to) = (self.span.get(arena)?, larger.get(arena)?);
        // SAFETY: both spans have room for `len` values and do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, self.len()) };
        compiler_fence(Ordering::SeqCst);
        std::mem::replace(&mut self.span, larger).release(arena);
        Some(())
    }

    /// Checks a list that comes out of another process' hands.
    pub fn is_whole<A: Arena + ?Sized>(&self, arena: &A) -> bool {
        self.span.get(arena).is_some() && self.span.count() > 0 && self.len() <= self.span.count()
    }

    /// Replaces one value; of no effect beyond the end.
    pub fn set<A: Arena + ?Sized>(&mut self, arena: &A, index: usize, value: T) {
        if index < self.len()
            && let Some(first) = self.span.get(arena)
        {
            // SAFETY: the index is below `used`, which is at most the span's count.
            unsafe { first.add(index).write(value) };
        }
    }
}
