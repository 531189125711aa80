//! A table in an arena that is replaced by a larger one as a whole: a kill at any instruction
//! leaves one of the two in use. Not here: what stands in the table.

use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Arena, Plain, Span};

/// The table in use and the one before or after it; lies in an arena itself.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Twin<T> {
    tables: [Span<T>; 2],
    /// Which is in use: 0 or 1.
    active: u64,
}

impl<T> Clone for Twin<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Twin<T> {}
// SAFETY: integers without padding.
unsafe impl<T: 'static> Plain for Twin<T> {}

impl<T: Plain> Twin<T> {
    pub(crate) fn new(first: Span<T>) -> Twin<T> {
        Twin { tables: [first, Span::default()], active: 0 }
    }

    /// The table in use.
    #[inline(always)]
    pub(crate) fn table(&self) -> Span<T> {
        let [first, second] = self.tables;
        if self.active == 0 { first } else { second }
    }

    /// Changes with every replacement.
    #[inline(always)]
    pub(crate) fn active(&self) -> u64 {
        self.active
    }

    /// Takes `new`, which is complete, into use and gives the room of the table before back.
    pub(crate) fn replace<A: Arena + ?Sized>(&mut self, arena: &A, new: Span<T>) {
        let old = self.table();
        let [first, second] = &mut self.tables;
        *(if self.active == 0 { second } else { first }) = new;
        // One store switches.
        compiler_fence(Ordering::SeqCst);
        self.active ^= 1;
        compiler_fence(Ordering::SeqCst);
        old.release(arena);
    }

    /// Whether a table that comes out of another process' hands lies in the arena and has a size
    /// that hashing needs.
    pub(crate) fn is_sound<A: Arena + ?Sized>(&self, arena: &A) -> bool {
        let table = self.table();
        self.active <= 1
            && table.count().is_power_of_two()
            && table.count() >= 2
            && table.get(arena).is_some()
    }
}
