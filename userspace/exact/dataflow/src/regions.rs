//! Inclusive regions: from each outermost call of a function to the return.
//!
//! Calls and returns show the stack pointer by the place of the return address. A region
//! ends with the return from the place of the function's own call's return address, or
//! when the stack is above the place (`longjmp`, an exception). Jumps into the function
//! begin a region as calls do, with the return address of the preceding call.

use locality_stream::{Arena, Plain, Range, Span};

/// Calls stored; deeper calls are not distinguished.
const DEPTH: usize = 1 << 16;

/// Position of a thread; lies in an arena.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Regions {
    frames: Span<u64>,
    depth: u64,
    /// Not 0 within a region.
    inside: u64,
    /// Place of the return address.
    slot: u64,
    /// Regions begun.
    pub(crate) calls: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Regions {}

impl Regions {
    /// Outside; `None` without room.
    pub fn new<A: Arena + ?Sized>(arena: &A) -> Option<Regions> {
        Some(Regions { frames: Span::allocate(arena, DEPTH)?, depth: 0, inside: 0, slot: 0, calls: 0 })
    }

    /// Room of the table.
    pub fn range(&self) -> Range {
        self.frames.range()
    }

    /// Whether the table is sound.
    pub fn is_whole<A: Arena + ?Sized>(&self, arena: &A) -> bool {
        self.frames.get(arena).is_some() && self.frames.count() == DEPTH && self.depth as usize <= DEPTH
    }

    /// Whether the thread is within a region.
    #[inline(always)]
    pub fn is_inside(&self) -> bool {
        self.inside != 0
    }

    fn drop_below<A: Arena + ?Sized>(&mut self, arena: &A, address: u64) {
        let Some(first) = self.frames.get(arena) else { return };
        while self.depth > 0 {
            // SAFETY: the depth is at most the count of the table.
            let last = unsafe { first.as_ptr().add(self.depth as usize - 1).read() };
            if last > address {
                break;
            }
            self.depth -= 1;
        }
    }

    /// A call stores the return address. True when a region has ended unseen before.
    pub fn call<A: Arena + ?Sized>(&mut self, arena: &A, address: u64) -> bool {
        let ended = self.inside != 0 && address > self.slot;
        if ended {
            self.inside = 0;
        }
        self.drop_below(arena, address);
        if (self.depth as usize) < DEPTH
            && let Some(first) = self.frames.get(arena)
        {
            // SAFETY: below the count of the table.
            unsafe { first.as_ptr().add(self.depth as usize).write(address) };
            self.depth += 1;
        }
        ended
    }

    /// A return loads the return address. True if a region ends with the return.
    pub fn leave<A: Arena + ?Sized>(&mut self, arena: &A, address: u64) -> bool {
        self.drop_below(arena, address);
        let ends = self.inside != 0 && address >= self.slot;
        if ends {
            self.inside = 0;
        }
        ends
    }

    /// The function begins. True when a region does.
    pub fn enter<A: Arena + ?Sized>(&mut self, arena: &A) -> bool {
        if self.inside != 0 {
            return false;
        }
        let last = self.frames.get(arena).filter(|_| self.depth > 0);
        // SAFETY: the depth is at most the count of the table.
        self.slot =
            last.map_or(u64::MAX, |first| unsafe { first.as_ptr().add(self.depth as usize - 1).read() });
        self.inside = 1;
        self.calls += 1;
        true
    }

    /// Regions begun.
    pub fn calls(&self) -> u64 {
        self.calls
    }
}
