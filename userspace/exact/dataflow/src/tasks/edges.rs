//! Bytes and values by writer and reader: a hash table in the arena.

use locality_stream::{Arena, Plain, Range, Span};

/// Slots at first.
const SLOTS: usize = 1 << 12;

/// A slot: key, bytes, values, reserved. A key of 0 is an empty slot.
type Slot = [u64; 4];

/// The table; lies in an arena.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Edges {
    slots: Span<Slot>,
    used: u64,
}
// SAFETY: a span and an integer without padding.
unsafe impl Plain for Edges {}

/// Nodes are below 2^30, so the key is never 0.
fn key(from: u32, to: u32, memory: bool) -> u64 {
    1 << 63 | u64::from(from) << 32 | u64::from(to) << 1 | u64::from(memory)
}

impl Edges {
    pub fn new<A: Arena + ?Sized>(arena: &A) -> Option<Edges> {
        Some(Edges { slots: Span::allocate(arena, SLOTS)?, used: 0 })
    }

    pub fn range(&self) -> Range {
        self.slots.range()
    }

    /// Checks a table from another process; `None` for an impossible one.
    pub fn is_whole<A: Arena + ?Sized>(&mut self, arena: &A) -> bool {
        if !self.slots.count().is_power_of_two() || self.slots.get(arena).is_none() {
            return false;
        }
        // SAFETY: the table has no writer.
        let slots = unsafe { self.slots.slice(arena) }.unwrap_or_default();
        // Counted anew: a kill may have come between a key and the count.
        self.used = slots.iter().filter(|slot| slot[0] != 0).count() as u64;
        // An empty slot must remain, to end searches.
        (self.used as usize) < slots.len()
    }

    #[inline]
    fn slot<A: Arena + ?Sized>(&self, arena: &A, key: u64) -> Option<*mut Slot> {
        let (first, mask) = (self.slots.get(arena)?.as_ptr(), self.slots.count() - 1);
        let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
        loop {
            // SAFETY: below the count of the table.
            let slot = unsafe { first.add(at) };
            // SAFETY: as above.
            let found = unsafe { (*slot)[0] };
            if found == key || found == 0 {
                return Some(slot);
            }
            at = (at + 1) & mask;
        }
    }

    /// Adds a value.
    #[inline]
    pub fn add<A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        [from, to]: [u32; 2],
        memory: bool,
        bytes: u64,
    ) -> Option<()> {
        let key = key(from, to, memory);
        let mut slot = self.slot(arena, key)?;
        // SAFETY: a slot of the table.
        if unsafe { (*slot)[0] } == 0 {
            if (self.used as usize + 1) * 2 > self.slots.count() {
                self.grow(arena)?;
                slot = self.slot(arena, key)?;
            }
            self.used += 1;
        }
        // SAFETY: as above, without other references.
        let slot = unsafe { &mut *slot };
        slot[0] = key;
        slot[1] += bytes;
        slot[2] += 1;
        Some(())
    }

    #[cold]
    fn grow<A: Arena + ?Sized>(&mut self, arena: &A) -> Option<()> {
        let larger = Edges { slots: Span::allocate(arena, self.slots.count() * 2)?, used: self.used };
        // SAFETY: the owner alone writes.
        for slot in unsafe { self.slots.slice(arena) }?.iter().filter(|slot| slot[0] != 0) {
            // SAFETY: an empty slot of the new table.
            unsafe { *larger.slot(arena, slot[0])? = *slot };
        }
        std::mem::replace(&mut self.slots, larger.slots).release(arena);
        Some(())
    }

    /// Writer, reader, whether through memory, bytes, values.
    pub fn all<A: Arena + ?Sized>(&self, arena: &A) -> Vec<([u32; 2], bool, u64, u64)> {
        // SAFETY: the owner alone writes.
        let slots = unsafe { self.slots.slice(arena) }.unwrap_or_default();
        let of = |slot: &Slot| {
            let [from, to] = [(slot[0] >> 32) as u32 & 0x7fff_ffff, (slot[0] as u32) >> 1];
            ([from, to], slot[0] & 1 == 1, slot[1], slot[2])
        };
        slots.iter().filter(|slot| slot[0] != 0).map(of).collect()
    }
}
