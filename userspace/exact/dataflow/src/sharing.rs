//! Bytes that threads hand over to each other through memory, in a stream of all threads in one order.
//!
//! A byte is handed over when a thread reads it that another thread wrote last. A byte read again counts
//! again only if it was written again, or if another thread has read a part of the same word of 8 bytes in
//! between. Memory written by the kernel keeps its last writer among the threads.

use std::ptr::NonNull;
use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Analysis, Arena, ArenaFull, Code, Event, Kind, List, Offset, Plain, Span, are_apart};

use crate::OpenError;
use crate::shadow::{Pages, Shadow};
use crate::tasks::Edges;

/// Marks a complete state of the current version.
const MAGIC: u64 = u64::from_le_bytes(*b"sharing\x01");
/// Numbers of a word or byte: writer (position plus 1), last reader, bytes read, reserved.
const CELL: usize = 4;

/// The state.
#[derive(Clone, Copy)]
#[repr(C)]
struct State {
    magic: u64,
    consumed: u64,
    busy: u64,
    torn: u64,
    full: u64,
    /// The thread whose events follow, position plus 1; 0 before the first.
    current: u64,
    threads: List<u64>,
    pages: Pages,
    edges: Edges,
}
// SAFETY: integers without padding.
unsafe impl Plain for State {}

/// What a thread handed over to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// Id of the writing thread.
    pub from: u64,
    /// Id of the reading thread.
    pub to: u64,
    /// Bytes.
    pub bytes: u64,
    /// Reads with such bytes.
    pub values: u64,
}

/// The analysis, with its state in an arena.
pub struct Sharing<'a, A: Arena + ?Sized> {
    arena: &'a A,
    state: NonNull<State>,
    offset: Offset,
    shadow: Shadow<'a, CELL, A>,
}

// SAFETY: the state belongs to the analysis alone.
unsafe impl<A: Arena + Sync + ?Sized> Send for Sharing<'_, A> {}

impl<'a, A: Arena + ?Sized> Sharing<'a, A> {
    /// An analysis with an empty state.
    ///
    /// # Errors
    /// An arena without room for it.
    pub fn create(arena: &'a A) -> Result<Self, ArenaFull> {
        let span: Span<State> = Span::allocate(arena, 1).ok_or(ArenaFull)?;
        let state = span.get(arena).ok_or(ArenaFull)?;
        let begun = || {
            let (threads, pages) = (List::new(arena, 64)?, Pages::new(arena)?);
            Some(State {
                magic: MAGIC,
                consumed: 0,
                busy: 0,
                torn: 0,
                full: 0,
                current: 0,
                threads,
                pages,
                edges: Edges::new(arena)?,
            })
        };
        let begun = begun().ok_or(ArenaFull)?;
        // SAFETY: fresh room for one state.
        unsafe { state.as_ptr().write(begun) };
        Ok(Self { arena, state, offset: span.offset(), shadow: Shadow::new(arena) })
    }

    /// Takes up the state at `offset`, after any end of its process. The process must not run any more.
    ///
    /// # Errors
    /// A place without a state, or a damaged one.
    pub fn open(arena: &'a A, offset: Offset) -> Result<Self, OpenError> {
        let span = Span::<State>::from_parts(offset, 1);
        let state = span.get(arena).ok_or(OpenError::NoState)?;
        // SAFETY: within the arena; the writer is gone.
        let s = unsafe { &mut *state.as_ptr() };
        if s.magic != MAGIC {
            return Err(OpenError::NoState);
        }
        if !s.threads.is_whole(arena) || !s.edges.is_whole(arena) || s.current > s.threads.len() as u64 {
            return Err(OpenError::Damaged);
        }
        let mut ranges = vec![span.range(), s.threads.range(), s.edges.range()];
        ranges.extend(s.pages.ranges::<CELL, A>(arena).ok_or(OpenError::Damaged)?);
        if !are_apart(arena, ranges) {
            return Err(OpenError::Damaged);
        }
        s.pages.forget_room();
        let busy = std::mem::take(&mut s.busy);
        s.consumed = s.consumed.saturating_add(busy);
        s.torn = s.torn.saturating_add(busy);
        Ok(Self { arena, state, offset, shadow: Shadow::new(arena) })
    }

    /// Where the state lies, for [`Sharing::open`].
    pub fn state(&self) -> Offset {
        self.offset
    }

    /// Events taken so far.
    pub fn consumed(&self) -> u64 {
        // SAFETY: the state belongs to the analysis alone.
        unsafe { self.state.as_ref() }.consumed
    }

    fn values(&mut self) -> &'a mut State {
        // SAFETY: the state belongs to the analysis alone, borrowed for writing.
        unsafe { &mut *self.state.as_ptr() }
    }

    fn take(&mut self, events: &[Event]) -> Option<()> {
        let s = self.values();
        for event in events {
            if event.kind == Kind::THREAD {
                let known = s.threads.values(self.arena).iter().position(|thread| *thread == event.value);
                let position = match known {
                    Some(position) => position as u64,
                    None => u64::from(s.threads.push(self.arena, event.value)?),
                };
                s.current = position + 1;
            } else if event.kind.is_access() && s.current != 0 {
                let own = s.current as u32;
                if event.kind.is_store() {
                    self.shadow.store(&mut s.pages, event.value, event.size, &[own, 0, 0, 0])?;
                } else {
                    self.load(event, own)?;
                }
            }
        }
        Some(())
    }

    fn load(&mut self, event: &Event, own: u32) -> Option<()> {
        let s = self.values();
        // Pieces by the same writer are one value.
        let mut last = (0, 0);
        let mut full = false;
        let (edges, arena) = (&mut s.edges, self.arena);
        let mut hand_over = |(writer, bytes): (u32, u64)| {
            full |= bytes > 0 && edges.add(arena, [writer - 1, own - 1], true, bytes).is_none();
        };
        self.shadow.visit(&s.pages, event.value, event.size, |cell, bytes| {
            if cell[0] == own || cell[0] == 0 {
                return;
            }
            if cell[1] != own {
                (cell[1], cell[2]) = (own, 0);
            }
            let new = u32::from(bytes) & !cell[2];
            cell[2] |= new;
            if new != 0 && last.0 != cell[0] {
                hand_over(std::mem::replace(&mut last, (cell[0], 0)));
            }
            last.1 += u64::from(new.count_ones());
        });
        hand_over(last);
        if full { None } else { Some(()) }
    }

    /// Whether room ran out before the end.
    pub fn is_full(&self) -> bool {
        // SAFETY: the state belongs to the analysis alone.
        unsafe { self.state.as_ref() }.full != 0
    }

    /// The matrix of writers and readers, by ids; threads without shared bytes are left out.
    pub fn finish(&mut self) -> Vec<Shared> {
        let s = self.values();
        let threads = s.threads.values(self.arena);
        let id = |position: u32| threads.get(position as usize).copied();
        let row = |([from, to], _, bytes, values): ([u32; 2], bool, u64, u64)| {
            Some(Shared { from: id(from)?, to: id(to)?, bytes, values })
        };
        let mut rows: Vec<Shared> = s.edges.all(self.arena).into_iter().filter_map(row).collect();
        rows.sort_by_key(|row| (row.from, row.to));
        rows
    }
}

impl<A: Arena + ?Sized> Analysis for Sharing<'_, A> {
    fn observe(&mut self, events: &[Event], _: &Code<'_>) -> Result<(), ArenaFull> {
        let s = self.values();
        if s.full != 0 {
            return Err(ArenaFull);
        }
        for events in events.chunks(4096) {
            s.busy = events.len() as u64;
            compiler_fence(Ordering::SeqCst);
            if self.take(events).is_none() {
                (s.full, s.busy) = (1, 0);
                return Err(ArenaFull);
            }
            compiler_fence(Ordering::SeqCst);
            s.consumed += events.len() as u64;
            s.busy = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use locality_stream::Heap;

    use super::*;

    fn thread(id: u64) -> Event {
        Event::new(Kind::THREAD, 0, id)
    }

    fn run(events: &[Event]) -> Vec<(u64, u64, u64, u64)> {
        let heap = Heap::new(1 << 26).unwrap();
        let mut sharing = Sharing::create(&heap).unwrap();
        let (first, second) = events.split_at(events.len() / 3);
        sharing.observe(first, &Code::default()).unwrap();
        // Another process goes on.
        let offset = sharing.state();
        let mut sharing = Sharing::open(&heap, offset).unwrap();
        assert_eq!(sharing.consumed(), first.len() as u64);
        sharing.observe(second, &Code::default()).unwrap();
        sharing.finish().iter().map(|row| (row.from, row.to, row.bytes, row.values)).collect()
    }

    #[test]
    fn what_a_thread_writes_another_reads_once() {
        let store = |address, size| Event::access(Kind::STORE, 0, address, size);
        let load = |address, size| Event::access(Kind::LOAD, 0, address, size);
        let mut events = vec![thread(7)];
        events.extend((0..100).map(|at| store(0x1000 + at * 8, 8)));
        events.push(thread(9));
        // Twice, the first time in halves; two words were never written.
        events.extend((0..204).map(|at| load(0x1000 + at * 4, 4)));
        events.extend((0..102).map(|at| load(0x1000 + at * 8, 8)));
        events.push(store(0x1000, 1));
        events.push(thread(7));
        events.extend([load(0x1000, 8), load(0x1000, 8), load(0x1008, 8)]);
        assert_eq!(run(&events), [(7, 9, 800, 200), (9, 7, 1, 1)]);
    }

    #[test]
    fn random_streams_equal_a_table_of_bytes() {
        for seed in 0..u64::from(locality_stream::testing::cases(200)) {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut events = Vec::new();
            let mut own = 0;
            let mut bytes: HashMap<u64, (u64, u64)> = HashMap::new();
            let mut sums: BTreeMap<(u64, u64), u64> = BTreeMap::new();
            for _ in 0..2000 {
                if own == 0 || random.u32(0..10) == 0 {
                    own = random.u64(1..5);
                    events.push(thread(own));
                }
                // One reader a word, so that every byte counts once until it is written again.
                let size = [1, 2, 4, 8][random.usize(0..4)];
                let address = random.u64(0..64) * 64 + own * 8 + random.u64(0..8) / size * size;
                let is_store = random.bool();
                let address = if is_store { address % 4096 + random.u64(0..4) * 8 % 32 } else { address };
                let kind = if is_store { Kind::STORE } else { Kind::LOAD };
                events.push(Event::access(kind, 0, address, size as u16));
                for byte in address..address + size {
                    if is_store {
                        bytes.insert(byte, (own, 0));
                    } else if let Some((writer, reader)) = bytes.get_mut(&byte)
                        && *writer != own
                        && *reader != own
                    {
                        *reader = own;
                        *sums.entry((*writer, own)).or_default() += 1;
                    }
                }
            }
            let found: BTreeMap<(u64, u64), u64> =
                run(&events).iter().map(|(from, to, bytes, _)| ((*from, *to), *bytes)).collect();
            assert_eq!(found, sums, "{seed}");
        }
    }

    #[test]
    fn damaged_states_are_refused_or_bear_it() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..u64::from(locality_stream::testing::cases(100)) {
            let heap = Heap::new(1 << 26).unwrap();
            let mut sharing = Sharing::create(&heap).unwrap();
            let mut events = vec![thread(1)];
            events.extend((0..500).map(|at| Event::access(Kind::STORE, 0, at * 24, 4)));
            events.push(thread(2));
            events.extend((0..500).map(|at| Event::access(Kind::LOAD, 0, at * 24, 8)));
            sharing.observe(&events, &Code::default()).unwrap();
            let offset = sharing.state();
            crate::tests::damage(&heap, offset, 2000, &mut random);
            if let Ok(mut sharing) = Sharing::open(&heap, offset) {
                let _ = sharing.observe(&events, &Code::default());
                let _ = sharing.finish();
            }
        }
        let heap = Heap::new(1 << 20).unwrap();
        assert_eq!(Sharing::open(&heap, 4096).err(), Some(OpenError::NoState));
    }
}
