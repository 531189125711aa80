//! The data object to charge for a line: the object at the address of the loading access.
//!
//! An object is looked up when a line is loaded, and the object's number stays with the
//! line: the costs at the end of the line's life go to the object at the beginning.
//! Most accesses of an instruction are to one object: the last ranges are cached by
//! cell. Placements from the source are derived, hence lie outside the arena.
//!
//! Limits: a line of two objects is charged as a whole to the loading access's.
//! Addresses placed twice name the newer object, from the object's event on.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use locality_stream::{Arena, Placement, Plain};

use crate::columns::{Column, Costs};
use crate::config::MAX_LEVELS;
use crate::state::State;

/// The object of unplaced addresses.
pub const UNKNOWN_OBJECT: u32 = 0;
/// Ranges cached.
const KEPT: usize = 256;
/// The columns of use by level: the first, the second of three, the last of several.
pub(crate) const USE: [(Column, Column, Column); MAX_LEVELS] = [
    (Column::AcCost1, Column::SpLoss1, Column::Lines1),
    (Column::AcCost2, Column::SpLoss2, Column::Lines2),
    (Column::AcCostL, Column::SpLossL, Column::LinesL),
];

/// Costs of an object's lines at a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct LevelUse {
    /// Lines loaded: both, of an access to two.
    pub lines: u64,
    /// As [`Column::AcCost1`].
    pub access_cost: u64,
    /// As [`Column::SpLoss1`].
    pub spatial_loss: u64,
}

/// Costs for the first level, the second of three, and the last of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct ObjectUse {
    /// By level.
    pub levels: [LevelUse; MAX_LEVELS],
}
// SAFETY: integers.
unsafe impl Plain for ObjectUse {}

impl AddAssign<&ObjectUse> for ObjectUse {
    fn add_assign(&mut self, other: &ObjectUse) {
        for (ours, theirs) in self.levels.iter_mut().zip(&other.levels) {
            ours.lines = ours.lines.wrapping_add(theirs.lines);
            ours.access_cost = ours.access_cost.wrapping_add(theirs.access_cost);
            ours.spatial_loss = ours.spatial_loss.wrapping_add(theirs.spatial_loss);
        }
    }
}

/// Whether the objects' costs sum to the costs of use,
/// to the last count; if objects are distinguished.
pub(crate) fn balance(objects: &[ObjectUse], sum: &Costs) -> bool {
    let mut all = ObjectUse::default();
    objects.iter().for_each(|object| all += object);
    objects.is_empty()
        || all.levels.iter().zip(USE).all(|(level, (access_cost, loss, lines))| {
            (level.access_cost, level.spatial_loss, level.lines) == (sum[access_cost], sum[loss], sum[lines])
        })
}

/// Charges costs left by a kill between an instruction and an object to the unknown object.
pub(crate) fn make_balance(objects: &mut [ObjectUse], sum: &Costs) {
    let mut all = ObjectUse::default();
    objects.iter().for_each(|object| all += object);
    let Some(unknown) = objects.get_mut(UNKNOWN_OBJECT as usize) else { return };
    for ((all, (access_cost, loss, lines)), ours) in all.levels.iter().zip(USE).zip(&mut unknown.levels) {
        ours.access_cost = ours.access_cost.wrapping_add(sum[access_cost].wrapping_sub(all.access_cost));
        ours.spatial_loss = ours.spatial_loss.wrapping_add(sum[loss].wrapping_sub(all.spatial_loss));
        ours.lines = ours.lines.wrapping_add(sum[lines].wrapping_sub(all.lines));
    }
}

/// A range found, empty at first.
#[derive(Debug, Clone, Copy, Default)]
struct Found {
    start: u64,
    bytes: u64,
    object: u32,
}

/// Placements of objects.
#[derive(Debug)]
pub(crate) struct Objects {
    /// Start to end and object.
    ranges: BTreeMap<u64, (u64, u32)>,
    /// Starts of `ranges` in order, for searching; empty if to be rebuilt.
    starts: Vec<u64>,
    ends: Vec<(u64, u32)>,
    found: [Found; KEPT],
    /// Placements in `ranges`.
    applied: usize,
}

impl Default for Objects {
    fn default() -> Self {
        Objects {
            ranges: BTreeMap::new(),
            starts: Vec::new(),
            ends: Vec::new(),
            found: [Found::default(); KEPT],
            applied: 0,
        }
    }
}

impl Objects {
    /// Takes over the first `count` placements.
    pub(crate) fn follow(&mut self, placed: &[Placement], count: usize) {
        let Some(fresh) = placed.get(self.applied..count.min(placed.len())).filter(|fresh| !fresh.is_empty())
        else {
            return;
        };
        for placement in fresh {
            self.place(placement);
        }
        self.applied += fresh.len();
        self.found.fill(Found::default());
        self.starts.clear();
        self.ends.clear();
    }

    fn place(&mut self, placement: &Placement) {
        let Placement { start, end, object, .. } = *placement;
        if start >= end {
            return;
        }
        // A range reaching into the new range retains the outer part.
        if let Some((&before, &(before_end, other))) = self.ranges.range(..start).next_back()
            && before_end > start
        {
            self.ranges.insert(before, (start, other));
            if before_end > end {
                self.ranges.insert(end, (before_end, other));
            }
        }
        let covered: Vec<u64> = self.ranges.range(start..end).map(|(start, _)| *start).collect();
        for at in covered {
            if let Some((at_end, other)) = self.ranges.remove(&at)
                && at_end > end
            {
                self.ranges.insert(end, (at_end, other));
            }
        }
        self.ranges.insert(start, (end, object));
    }

    /// The object at an address, for an access of a cell.
    #[inline(always)]
    pub(crate) fn at(&mut self, cell: u32, address: u64, placed: &[Placement]) -> u32 {
        let found = &self.found[cell as usize % KEPT];
        if address.wrapping_sub(found.start) < found.bytes {
            return found.object;
        }
        self.look_up(cell, address, placed)
    }

    fn search(&mut self, address: u64) -> Option<Found> {
        if self.starts.is_empty() {
            self.starts.extend(self.ranges.keys());
            self.ends.extend(self.ranges.values());
        }
        let at = self.starts.partition_point(|start| *start <= address).checked_sub(1)?;
        let (start, (end, object)) = (*self.starts.get(at)?, *self.ends.get(at)?);
        (address < end).then_some(Found { start, bytes: end - start, object })
    }

    #[inline(never)]
    fn look_up(&mut self, cell: u32, address: u64, placed: &[Placement]) -> u32 {
        let mut range = self.search(address);
        if range.is_none() && self.applied < placed.len() {
            // Another thread placed an object, as the current thread learns later.
            self.follow(placed, placed.len());
            range = self.search(address);
        }
        let Some(range) = range else { return UNKNOWN_OBJECT };
        self.found[cell as usize % KEPT] = range;
        range.object
    }
}

impl State {
    /// Charges a line to the line's object.
    ///
    /// # Safety
    /// Objects are distinguished, and the number is in the list, as for lines in caches.
    #[inline(always)]
    pub(crate) unsafe fn charge_object<A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        object: u32,
        level: usize,
        (access_cost, spatial_loss): (u64, u64),
    ) {
        // SAFETY: promised by the caller; the list is in order.
        let used = unsafe { self.objects.at(arena, object) };
        if let Some(used) = used.levels.get_mut(level) {
            used.lines = used.lines.wrapping_add(1);
            used.access_cost = used.access_cost.wrapping_add(access_cost);
            used.spatial_loss = used.spatial_loss.wrapping_add(spatial_loss);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_instruction_that_stays_in_an_object_is_not_searched_for() {
        let place = |start, end, object| Placement { start, end, object, reserved: 0 };
        let placed = [place(0x1000, 0x90_0000, 1), place(0x2000, 0x80_0000, 2), place(0x3000, 0x4000, 3)];
        let mut objects = Objects::default();
        objects.follow(&placed, 3);
        assert_eq!(objects.at(4670, 0x5000, &placed), 2);
        // What is searched for would have another number now.
        objects.starts.clear();
        objects.ends.clear();
        objects.ranges.insert(0x4000, (0x80_0000, 9));
        assert_eq!(objects.at(4670, 0x5040, &placed), 2);
        assert_eq!(objects.at(4671, 0x5040, &placed), 9);
    }

    proptest! {
        /// Against an object for each address.
        #[test]
        fn the_newest_placement_holds(
            placed in proptest::collection::vec((0..60_u64, 0..30_u64, 0..5_u32), 0..40),
            questions in proptest::collection::vec((0..2000_u32, 0..100_u64, 0..41_usize), 0..60),
        ) {
            let placed: Vec<Placement> = placed
                .iter()
                .map(|(start, bytes, object)| {
                    Placement { start: *start, end: start + bytes, object: *object, reserved: 0 }
                })
                .collect();
            let (mut objects, mut known) = (Objects::default(), 0);
            let mut questions = questions;
            questions.sort_by_key(|question| question.2);
            for (cell, address, count) in questions {
                known = known.max(count.min(placed.len()));
                objects.follow(&placed, count);
                let of = |known: usize| {
                    let mut before = placed[..known].iter().rev();
                    before.find(|range| (range.start..range.end).contains(&address)).map(|range| range.object)
                };
                if of(known).is_none() {
                    // Where nothing is known, what comes later is looked at too.
                    known = placed.len();
                }
                prop_assert_eq!(objects.at(cell, address, &placed), of(known).unwrap_or(UNKNOWN_OBJECT));
            }
        }
    }
}
