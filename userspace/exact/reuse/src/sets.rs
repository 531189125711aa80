//! Stack distances within the sets of a set-associative
//! cache: the accesses' distances for a given number of sets.
//!
//! A granule belongs to the set by granule number modulo the number of sets; the
//! distance counts granules of the set only (Mattson et al. 1970, congruence mapping).
//! A single pass gives the misses for every associativity up to the bound. Cost: up to
//! one step per way; a list in order of last touch for each set, in the arena.

use locality_stream::{Analysis, Arena, ArenaFull, Code, Event, Offset, Plain, Span};

#[derive(Clone, Copy)]
#[repr(C)]
struct State {
    /// Granule size as a power of two.
    bits: u64,
    sets: u64,
    ways: u64,
    touches: u64,
    /// Granule number plus 1, newest first, `ways` for each set.
    lists: Span<u64>,
    /// Reuses at each distance below `ways`.
    distances: Span<u64>,
}
// SAFETY: integers without padding.
unsafe impl Plain for State {}

/// The analysis.
pub struct SetStacks<'a, A: Arena + ?Sized> {
    arena: &'a A,
    state: Span<State>,
}

/// Counts of the analysis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetSummary {
    /// Bytes of a granule.
    pub bytes: u64,
    /// Number of sets.
    pub sets: u64,
    /// Touches of granules.
    pub touches: u64,
    /// Reuses at each distance within the set, below the number of ways looked at.
    pub distances: Vec<u64>,
}

impl<'a, A: Arena + ?Sized> SetStacks<'a, A> {
    /// An empty state for granules of `bytes` (a power of two,
    /// otherwise the next power), and associativities up to `ways`.
    pub fn create(arena: &'a A, bytes: u64, sets: u64, ways: u64) -> Result<Self, ArenaFull> {
        let (sets, ways) = (sets.max(1), ways.max(1));
        let cells = usize::try_from(sets.checked_mul(ways).ok_or(ArenaFull)?).map_err(|_| ArenaFull)?;
        let lists = Span::allocate(arena, cells).ok_or(ArenaFull)?;
        let distances = Span::allocate(arena, ways as usize).ok_or(ArenaFull)?;
        let state: Span<State> = Span::allocate(arena, 1).ok_or(ArenaFull)?;
        let bits = u64::from(bytes.next_power_of_two().trailing_zeros());
        let first = state.get(arena).ok_or(ArenaFull)?;
        // SAFETY: fresh room for a state.
        unsafe { first.write(State { bits, sets, ways, touches: 0, lists, distances }) };
        Ok(SetStacks { arena, state })
    }

    /// Takes up the state at `offset`; `None` if not sound.
    pub fn open(arena: &'a A, offset: Offset) -> Option<Self> {
        let analysis = SetStacks { arena, state: Span::from_parts(offset, 1) };
        let state = analysis.read()?;
        let sound = state.ways > 0
            && state.sets > 0
            && state.bits < 64
            && state.lists.get(arena).is_some()
            && state.distances.get(arena).is_some()
            && state.sets.checked_mul(state.ways) == Some(state.lists.count() as u64)
            && state.distances.count() as u64 == state.ways;
        sound.then_some(analysis)
    }

    /// Offset of the state.
    pub fn state(&self) -> Offset {
        self.state.offset()
    }

    fn read(&self) -> Option<State> {
        // SAFETY: the state belongs to the analysis alone.
        unsafe { self.state.slice(self.arena) }?.first().copied()
    }

    /// The results up to now.
    pub fn summary(&self) -> Option<SetSummary> {
        let state = self.read()?;
        // SAFETY: the distances belong to the analysis alone.
        let distances = unsafe { state.distances.slice(self.arena) }?.to_vec();
        Some(SetSummary { bytes: 1 << state.bits, sets: state.sets, touches: state.touches, distances })
    }
}

impl SetSummary {
    /// Misses of an LRU cache with the summary's sets and
    /// `ways` ways; `None` beyond the associativity examined.
    pub fn misses(&self, ways: usize) -> Option<u64> {
        let hits = self.distances.get(..ways)?.iter().sum::<u64>();
        Some(self.touches.saturating_sub(hits))
    }
}

impl<A: Arena + ?Sized> Analysis for SetStacks<'_, A> {
    fn observe(&mut self, events: &[Event], _: &Code<'_>) -> Result<(), ArenaFull> {
        let first = self.state.get(self.arena).ok_or(ArenaFull)?;
        // SAFETY: one state, owned by the analysis alone, as are the
        // two tables, with sizes set by `create` or checked by `open`.
        let (state, lists, distances) = unsafe {
            let state = &mut *first.as_ptr();
            let lists = state.lists.get(self.arena).ok_or(ArenaFull)?;
            let distances = state.distances.get(self.arena).ok_or(ArenaFull)?;
            let lists = std::slice::from_raw_parts_mut(lists.as_ptr(), state.lists.count());
            let distances = std::slice::from_raw_parts_mut(distances.as_ptr(), state.distances.count());
            (state, lists, distances)
        };
        let ways = state.ways as usize;
        for event in events.iter().filter(|event| event.kind.is_access()) {
            let last = event.value.saturating_add(u64::from(event.size).max(1) - 1) >> state.bits;
            for granule in event.value >> state.bits..=last {
                let start = (granule % state.sets) as usize * ways;
                let Some(list) = lists.get_mut(start..start + ways) else { continue };
                let found = list.iter().position(|held| *held == granule.wrapping_add(1));
                if let Some(n) = found.and_then(|distance| distances.get_mut(distance)) {
                    *n += 1;
                }
                if let Some(moved) = list.get_mut(..=found.unwrap_or(ways - 1)) {
                    moved.rotate_right(1);
                }
                if let Some(newest) = list.first_mut() {
                    *newest = granule.wrapping_add(1);
                }
                state.touches += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use locality_stream::{Heap, Kind};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn misses_equal_a_simulated_cache(
            accesses in proptest::collection::vec((0..900_u64, 1..70_u16), 0..300), sets in 1..9_u64
        ) {
            let heap = Heap::new(1 << 20).unwrap();
            let mut analysis = SetStacks::create(&heap, 16, sets, 6).unwrap();
            let events: Vec<Event> =
                accesses.iter().map(|(address, size)| Event::access(Kind::LOAD, 0, *address, *size)).collect();
            let (first, second) = events.split_at(events.len() / 2);
            analysis.observe(first, &Code::default()).unwrap();
            let mut analysis = SetStacks::open(&heap, analysis.state()).unwrap();
            analysis.observe(second, &Code::default()).unwrap();
            let summary = analysis.summary().unwrap();
            for ways in 1..=6 {
                let mut cache = vec![VecDeque::new(); sets as usize];
                let mut misses = 0;
                for (address, size) in &accesses {
                    for granule in address / 16..=(address + u64::from(*size) - 1) / 16 {
                        let set = &mut cache[(granule % sets) as usize];
                        match set.iter().position(|held| *held == granule) {
                            Some(at) => drop(set.remove(at)),
                            None => misses += 1,
                        }
                        set.push_front(granule);
                        set.truncate(ways);
                    }
                }
                prop_assert_eq!(summary.misses(ways), Some(misses));
            }
            prop_assert_eq!(summary.misses(7), None);
        }
    }
}
