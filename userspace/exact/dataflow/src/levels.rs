//! How many instructions start in each cycle: exact distributions.
//!
//! With a window, cycles before the window's floor are final: a ring of counters
//! is enough. Without a window, every cycle may still get instructions: each
//! cycle is counted, in 4 bytes; beyond [`LEVELS`] neighbours are summed, and
//! the resolution is part of the result. Classes have a coarser table.

use locality_stream::{Arena, Plain, Range, Span};

/// Bins of parallelism: 0, 1, 2 to 3, 4 to 7 …
pub const BINS: usize = 33;
/// Cycles, or sums of neighbours, counted without a window.
const LEVELS: usize = 1 << 24;
/// As `LEVELS`, by class.
const CLASS_LEVELS: usize = 1 << 18;

/// Counts of a cycle by class.
type ByClass = [u32; 16];

/// A distribution of parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Histogram {
    /// Cycles by number of instructions.
    pub cycles: [u64; BINS],
    /// Instructions with a start in the cycles.
    pub instructions: [u64; BINS],
    /// Instructions by class.
    pub classes: [[u64; 16]; BINS],
}
// SAFETY: integers without padding.
unsafe impl Plain for Histogram {}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { cycles: [0; BINS], instructions: [0; BINS], classes: [[0; 16]; BINS] }
    }
}

impl Histogram {
    /// Adds another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        let add = |ours: &mut [u64], theirs: &[u64]| {
            ours.iter_mut().zip(theirs).for_each(|(a, b)| *a = a.saturating_add(*b));
        };
        add(&mut self.cycles, &other.cycles);
        add(&mut self.instructions, &other.instructions);
        self.classes.iter_mut().zip(&other.classes).for_each(|(a, b)| add(a, b));
    }
}

/// The bin of a parallelism.
#[inline(always)]
pub fn bin(parallelism: u64) -> usize {
    (64 - parallelism.leading_zeros() as usize).min(BINS - 1)
}

/// Counters of a lane; lie in an arena.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Levels {
    pub histogram: Histogram,
    /// With a window: cycles from `next` on.
    ring: Span<ByClass>,
    next: u64,
    /// Without a window.
    table: Span<u32>,
    classes: Span<ByClass>,
    shift: u32,
    class_shift: u32,
}
// SAFETY: integers without padding.
unsafe impl Plain for Levels {}

impl Levels {
    pub fn new<A: Arena + ?Sized>(arena: &A, window: Option<u32>) -> Option<Levels> {
        let mut levels = Levels {
            histogram: Histogram::default(),
            ring: Span::default(),
            next: 0,
            table: Span::default(),
            classes: Span::default(),
            shift: 0,
            class_shift: 0,
        };
        match window {
            Some(window) => {
                levels.ring = Span::allocate(arena, (window as usize * 4).next_power_of_two().max(1024))?;
            }
            None => {
                levels.table = Span::allocate(arena, LEVELS)?;
                levels.classes = Span::allocate(arena, CLASS_LEVELS)?;
            }
        }
        Some(levels)
    }

    pub fn ranges(&self) -> [Range; 3] {
        [self.ring.range(), self.table.range(), self.classes.range()]
    }

    /// Whether the tables belong to the window.
    pub fn is_whole<A: Arena + ?Sized>(&self, arena: &A, window: Option<u32>) -> bool {
        let fits = self.ring.get(arena).is_some()
            && self.table.get(arena).is_some()
            && self.classes.get(arena).is_some();
        let sizes = match window {
            Some(_) => self.ring.count().is_power_of_two(),
            None => self.table.count() == LEVELS && self.classes.count() == CLASS_LEVELS,
        };
        fits && sizes && self.shift < 44 && self.class_shift < 50
    }

    /// Counts an instruction with a start in a cycle;
    /// `floor`: earliest start to come. With a window.
    #[inline(always)]
    pub fn count<A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        start: u64,
        class: u8,
        floor: impl FnOnce() -> u64,
    ) -> Option<()> {
        let mask = self.ring.count() as u64 - 1;
        if start.wrapping_sub(self.next) > mask {
            self.make_room(arena, start, floor())?;
        }
        let mask = self.ring.count() as u64 - 1;
        let first = self.ring.get(arena)?.as_ptr();
        // SAFETY: below the count of the ring, which is a power of two.
        let cycle = unsafe { &mut *first.add((start & mask) as usize) };
        cycle[usize::from(class & 15)] += 1;
        Some(())
    }

    #[inline(never)]
    fn make_room<A: Arena + ?Sized>(&mut self, arena: &A, start: u64, floor: u64) -> Option<()> {
        self.settle(arena, floor);
        if start < self.next {
            // Of a damaged state only.
            self.next = start;
        }
        while start - self.next >= self.ring.count() as u64 {
            let old = self.ring;
            let larger: Span<ByClass> = Span::allocate(arena, old.count() * 2)?;
            let (from, to) = (old.get(arena)?.as_ptr(), larger.get(arena)?.as_ptr());
            for cycle in self.next..self.next + old.count() as u64 {
                let at = |span: &Span<ByClass>| (cycle & (span.count() as u64 - 1)) as usize;
                // SAFETY: both below the counts of the rings.
                unsafe { *to.add(at(&larger)) = *from.add(at(&old)) };
            }
            self.ring = larger;
            old.release(arena);
        }
        Some(())
    }

    /// Takes the cycles before `end` into the histogram.
    pub fn settle<A: Arena + ?Sized>(&mut self, arena: &A, end: u64) {
        let Some(first) = self.ring.get(arena) else { return };
        let mask = self.ring.count() as u64 - 1;
        let counted = end.min(self.next + mask + 1);
        while self.next < counted {
            // SAFETY: below the count of the ring.
            let cycle = unsafe { &mut *first.as_ptr().add((self.next & mask) as usize) };
            let all: u32 = cycle.iter().sum();
            self.add(1, all.into(), all.into());
            let row = &mut self.histogram.classes[bin(all.into())];
            row.iter_mut().zip(cycle.iter()).for_each(|(sum, count)| *sum += u64::from(*count));
            *cycle = [0; 16];
            self.next += 1;
        }
        if end > self.next {
            self.add(end - self.next, 0, 0);
            self.next = end;
        }
    }

    fn add(&mut self, cycles: u64, parallelism: u64, instructions: u64) {
        let at = bin(parallelism);
        self.histogram.cycles[at] = self.histogram.cycles[at].saturating_add(cycles);
        self.histogram.instructions[at] = self.histogram.instructions[at].saturating_add(instructions);
    }

    /// Counts an instruction. Without a window.
    #[inline(always)]
    pub fn count_any<A: Arena + ?Sized>(&mut self, arena: &A, start: u64, class: u8) -> Option<()> {
        if start >> self.shift >= LEVELS as u64 {
            self.halve(arena, start)?;
        }
        if start >> self.class_shift >= CLASS_LEVELS as u64 {
            self.halve_classes(arena, start)?;
        }
        // SAFETY: below the counts of both tables, checked at creation or opening.
        unsafe {
            let base = arena.base().as_ptr();
            let cycle =
                base.add(self.table.offset() as usize).cast::<u32>().add((start >> self.shift) as usize);
            *cycle = (*cycle).saturating_add(1);
            let classes = base.add(self.classes.offset() as usize).cast::<ByClass>();
            let count = &mut (*classes.add((start >> self.class_shift) as usize))[usize::from(class & 15)];
            *count = count.saturating_add(1);
        }
        Some(())
    }

    #[cold]
    fn halve<A: Arena + ?Sized>(&mut self, arena: &A, start: u64) -> Option<()> {
        let first = self.table.get(arena)?.as_ptr();
        while start >> self.shift >= LEVELS as u64 {
            for at in 0..LEVELS {
                // SAFETY: below the count of the table.
                let at_once = |at: usize| unsafe { &mut *first.add(at) };
                *at_once(at) = match at < LEVELS / 2 {
                    true => at_once(2 * at).saturating_add(*at_once(2 * at + 1)),
                    false => 0,
                };
            }
            self.shift += 1;
        }
        Some(())
    }

    #[cold]
    fn halve_classes<A: Arena + ?Sized>(&mut self, arena: &A, start: u64) -> Option<()> {
        let first = self.classes.get(arena)?.as_ptr();
        while start >> self.class_shift >= CLASS_LEVELS as u64 {
            for at in 0..CLASS_LEVELS {
                // SAFETY: below the count of the table.
                let read = |at: usize| unsafe { *first.add(at) };
                let sum = match at < CLASS_LEVELS / 2 {
                    true => {
                        let (one, other) = (read(2 * at), read(2 * at + 1));
                        std::array::from_fn(|class| one[class].saturating_add(other[class]))
                    }
                    false => [0; 16],
                };
                // SAFETY: as above.
                unsafe { *first.add(at) = sum };
            }
            self.class_shift += 1;
        }
        Some(())
    }

    /// The distribution of a run of `cycles` cycles,
    /// and cycles of a counter, in total and by class.
    pub fn finish<A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        window: Option<u32>,
        cycles: u64,
    ) -> (Histogram, u64, u64) {
        if window.is_some() {
            self.settle(arena, cycles);
            // Copies without a latency may start after the last completion.
            let mask = (self.ring.count() as u64).wrapping_sub(1);
            let last = self.ring.get(arena).filter(|_| self.next == cycles);
            // SAFETY: below the count of the ring.
            if last.is_some_and(|first| unsafe { *first.as_ptr().add((cycles & mask) as usize) } != [0; 16]) {
                self.settle(arena, cycles + 1);
            }
            return (self.histogram, 1, 1);
        }
        let mut found = Histogram::default();
        let (step, class_step) = (1u64 << self.shift, 1u64 << self.class_shift);
        // SAFETY: no writer of the tables meanwhile.
        let (table, classes) = unsafe { (self.table.slice(arena), self.classes.slice(arena)) };
        let (Some(table), Some(classes)) = (table, classes) else { return (found, 1, 1) };
        let beyond = |step: u64, is_used: bool| cycles + u64::from(cycles.is_multiple_of(step) && is_used);
        let end = beyond(step, table.get((cycles / step) as usize).is_some_and(|count| *count > 0));
        for (at, count) in table.iter().enumerate().take(end.div_ceil(step) as usize) {
            let length = step.min(end - at as u64 * step);
            let bin = bin(u64::from(*count) / length);
            found.cycles[bin] += length;
            found.instructions[bin] += u64::from(*count);
        }
        let end = beyond(
            class_step,
            classes.get((cycles / class_step) as usize).is_some_and(|counts| *counts != [0; 16]),
        );
        for (at, counts) in classes.iter().enumerate().take(end.div_ceil(class_step) as usize) {
            let length = class_step.min(end - at as u64 * class_step);
            let all: u64 = counts.iter().map(|count| u64::from(*count)).sum();
            let row = &mut found.classes[bin(all / length)];
            row.iter_mut().zip(counts).for_each(|(sum, count)| *sum += u64::from(*count));
        }
        (found, step, class_step)
    }

    /// Instructions in each of at most `most` equal stretches of
    /// the cycles, and the stretches' length. Without a window.
    pub fn over_time<A: Arena + ?Sized>(&self, arena: &A, cycles: u64, most: u64) -> (u64, Vec<u64>) {
        let step = 1u64 << self.shift;
        let counters = cycles.div_ceil(step);
        let together = counters.div_ceil(most).max(1);
        // SAFETY: no writer of the table meanwhile.
        let table = unsafe { self.table.slice(arena) }.unwrap_or_default();
        let counted = table.get(..(counters as usize).min(table.len())).unwrap_or_default();
        let sum = |counts: &[u32]| counts.iter().map(|count| u64::from(*count)).sum();
        (together * step, counted.chunks(together as usize).map(sum).collect())
    }
}
