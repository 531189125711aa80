//! A growable array in an arena.

use locality_stream::{Arena, Plain, Span};

/// The array; lies in an arena itself.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct List<T> {
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
    /// An empty array with room for `room` values at first.
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, room: usize) -> Option<List<T>> {
        Some(List { span: Span::allocate(arena, room.max(1))?, used: 0 })
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.used as usize
    }

    /// The values.
    pub(crate) fn values<'a, A: Arena + ?Sized>(&self, arena: &'a A) -> &'a [T] {
        // SAFETY: the list's owner does not write while it reads.
        unsafe { self.span.slice(arena) }.and_then(|all| all.get(..self.len())).unwrap_or_default()
    }

    /// Appends a value; `None` when the arena is full.
    pub(crate) fn push<A: Arena + ?Sized>(&mut self, arena: &A, value: T) -> Option<()> {
        if self.len() == self.span.count() {
            let larger: Span<T> = Span::allocate(arena, self.span.count() * 2)?;
            let (from, to) = (self.span.get(arena)?, larger.get(arena)?);
            // SAFETY: both spans have room for `len` values and do not overlap.
            unsafe { to.copy_from_nonoverlapping(from, self.len()) };
            std::mem::replace(&mut self.span, larger).release(arena);
        }
        let first = self.span.get(arena)?;
        // SAFETY: `used` is below the span's count.
        unsafe { first.add(self.len()).write(value) };
        self.used += 1;
        Some(())
    }

    /// Checks a list that comes out of another process' hands.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&self, arena: &A) -> bool {
        self.span.get(arena).is_some() && self.span.count() > 0 && self.len() <= self.span.count()
    }
}

impl<T: Plain> List<T> {
    /// Replaces one value; of no effect beyond the end.
    pub(crate) fn set<A: Arena + ?Sized>(&mut self, arena: &A, index: usize, value: T) {
        if index < self.len()
            && let Some(first) = self.span.get(arena)
        {
            // SAFETY: the index is below `used`, which is at most the span's count.
            unsafe { first.add(index).write(value) };
        }
    }
}
