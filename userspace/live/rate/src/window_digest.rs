//! A window, sorted: visits by block, accesses to words by address. And its timing by a simple model.

use locality_stream::Kind;

use crate::core_limits::Machine;
use crate::core_model::{Duration, Processor};
use crate::table::Table;
use crate::types::WindowView;

/// Visits from which a window counts as a loop's.
const LOOPS: usize = 16;

/// A block begun.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Visit {
    pub start: u64,
    pub end: u64,
    /// Index into the window's registers.
    pub order: u32,
    /// Accesses made before.
    pub access: u32,
}

/// An access to a word.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WordAccess {
    pub address: u64,
    pub access: u32,
    pub bits: u32,
    pub is_store: bool,
    pub value: u64,
}

/// A window made ready.
#[derive(Debug)]
pub(crate) struct Digest<'a> {
    /// By block, then in order.
    pub visits: &'a [Visit],
    pub registers: &'a [[u64; 16]],
    /// Of 4 and 8 bytes, aligned, to addresses that are stored to; by address, then in order.
    pub words: &'a [WordAccess],
    /// Start of the block that was begun most often.
    pub hottest: Option<u64>,
    /// In the window.
    pub accesses: f64,
    pub instructions: f64,
    /// Accesses per nanosecond by the model, unscaled.
    pub weight: f64,
    /// [`Duration::waiting`] of it.
    pub waiting: f64,
}

/// Prepares windows one after the other in the same memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Digester {
    visits: Sorter<Visit>,
    words: Sorter<WordAccess>,
    processor: Processor,
}

/// Sorts by groups in order of arrival.
#[derive(Debug, Clone, Default)]
struct Sorter<T> {
    groups: Table,
    unsorted: Vec<(u32, T)>,
    /// Where the next item of each group goes.
    next: Vec<u32>,
    sorted: Vec<T>,
}

impl<T: Copy + Default> Sorter<T> {
    fn clear(&mut self) {
        self.groups.clear();
        self.unsorted.clear();
    }

    fn sort(&mut self) -> &[T] {
        self.next.clear();
        self.next.resize(self.groups.keys().len() + 1, 0);
        for (group, _) in &self.unsorted {
            if let Some(count) = self.next.get_mut(*group as usize + 1) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for next in &mut self.next {
            sum += *next;
            *next = sum;
        }
        self.sorted.clear();
        self.sorted.resize(self.unsorted.len(), T::default());
        for (group, item) in &self.unsorted {
            if let Some(next) = self.next.get_mut(*group as usize)
                && let Some(place) = self.sorted.get_mut(*next as usize)
            {
                *place = *item;
                *next += 1;
            }
        }
        &self.sorted
    }
}

impl Digester {
    pub fn new(machine: Machine) -> Self {
        Self { processor: Processor::new(machine), ..Self::default() }
    }

    /// See [`Processor::line_latency_ns`].
    pub fn line_latency_ns(&self) -> f64 {
        self.processor.line_latency_ns()
    }

    pub fn digest<'a>(&'a mut self, window: &WindowView<'a>) -> Digest<'a> {
        let Digester { visits, words, processor } = self;
        visits.clear();
        words.clear();
        // Words with loads only show nothing.
        for event in window.events {
            if matches!(event.size, 4 | 8) && event.kind == Kind::STORE {
                words.groups.insert(event.value);
            }
        }
        let (mut access, mut order) = (0_u32, 0_u32);
        for event in window.events {
            if event.kind.is_access() {
                let bits = u32::from(event.size) * 8;
                if let (4 | 8, false) = (event.size, event.kind.is_flow())
                    && event.value % u64::from(event.size) == 0
                    && let Some(group) = words.groups.get(event.value)
                    && let Some(value) = window.values.get(access as usize).copied()
                {
                    let is_store = event.kind.is_store();
                    let word = WordAccess { address: event.value, access, bits, is_store, value };
                    words.unsorted.push((group, word));
                }
                access += 1;
            } else if event.kind == Kind::BLOCK {
                if let Some((first, last)) = {
                    let block = window.code.block(event.index);
                    block.first().zip(block.last())
                } {
                    let end = last.address.wrapping_add(u64::from(last.length));
                    let visit = Visit { start: first.address, end, order, access };
                    visits.unsorted.push((visits.groups.insert(first.address), visit));
                }
                order += 1;
            }
        }
        let accesses = f64::from(access);
        let instructions = window.instructions as f64;
        let Duration { ns, waiting } = processor.run(window);
        let visits = visits.sort();
        Digest {
            visits,
            registers: window.registers,
            words: words.sort(),
            hottest: hottest(visits),
            accesses,
            instructions,
            weight: if ns > 0.0 { accesses.max(1.0) / ns } else { 1.0 },
            waiting,
        }
    }
}

/// The block begun most often. Some blocks of a loop begin once more than others, depending on the
/// window's ends: of these the lowest.
fn hottest(visits: &[Visit]) -> Option<u64> {
    let blocks = || visits.chunk_by(|a, b| a.start == b.start);
    let most = blocks().map(<[Visit]>::len).max()?;
    let fewest = if most >= LOOPS { most - 1 } else { most };
    blocks().filter(|block| block.len() >= fewest).filter_map(|block| Some(block.first()?.start)).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a loop of four blocks, wherever a window begins and ends.
    #[test]
    fn one_block_stands_for_a_loop() {
        for (first, length) in [(0, 80), (1, 81), (2, 82), (3, 83), (2, 87)] {
            let mut visits: Vec<Visit> = (first..first + length)
                .map(|n| Visit { start: 0x1000 + n % 4 * 16, ..Visit::default() })
                .chain((0..3).map(|_| Visit { start: 0x800, ..Visit::default() }))
                .collect();
            visits.sort_by_key(|visit| visit.start);
            assert_eq!(hottest(&visits), Some(0x1000), "{first} {length}");
        }
        assert_eq!(hottest(&[]), None);
    }

    #[test]
    fn sorted_by_group_and_then_in_order() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut sorter = Sorter::<(u64, usize)>::default();
        for length in [0, 1, 50, 3000] {
            sorter.clear();
            let mut truth: Vec<(u32, (u64, usize))> = Vec::new();
            for n in 0..length {
                let key = random.u64(0..200);
                let item = (sorter.groups.insert(key), (key, n));
                sorter.unsorted.push(item);
                truth.push(item);
            }
            truth.sort_by_key(|item| item.0);
            assert!(sorter.sort().iter().eq(truth.iter().map(|item| &item.1)));
        }
    }
}
