//! A window, sorted: visits by block, accesses to words by address. And its timing by a simple model.

use locality_stream::Kind;

use crate::types::WindowView;

/// A block begun.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Visit {
    pub start: u64,
    pub end: u64,
    /// Index into the window's registers.
    pub order: u32,
    /// Accesses made before.
    pub access: u32,
}

/// An access to a word.
#[derive(Debug, Clone, Copy)]
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
    pub visits: Vec<Visit>,
    pub registers: &'a [[u64; 16]],
    /// Of 4 and 8 bytes, aligned, to addresses that are stored to; by address, then in order.
    pub words: Vec<WordAccess>,
    /// In the window.
    pub accesses: f64,
    pub instructions: f64,
    /// Nanoseconds per access by the model, unscaled.
    pub model: f64,
    /// Accesses per nanosecond by the model, unscaled.
    pub weight: f64,
}

impl<'a> Digest<'a> {
    pub fn new(window: &WindowView<'a>) -> Digest<'a> {
        let (mut visits, mut words, mut lines) = (Vec::new(), Vec::new(), Vec::new());
        let (mut access, mut order) = (0_u32, 0_u32);
        for event in window.events {
            if event.kind.is_access() {
                let bits = u32::from(event.size) * 8;
                let value = window.values.get(access as usize).copied();
                if let (4 | 8, false, Some(value)) = (event.size, event.kind.is_flow(), value)
                    && event.value % u64::from(event.size) == 0
                {
                    let is_store = event.kind.is_store();
                    words.push(WordAccess { address: event.value, access, bits, is_store, value });
                }
                lines.push(event.value >> 6);
                access += 1;
            } else if event.kind == Kind::BLOCK {
                if let Some((first, last)) = {
                    let block = window.code.block(event.index);
                    block.first().zip(block.last())
                } {
                    let end = last.address.wrapping_add(u64::from(last.length));
                    visits.push(Visit { start: first.address, end, order, access });
                }
                order += 1;
            }
        }
        visits.sort_unstable_by_key(|visit| (visit.start, visit.order));
        keep_stored(&mut words);
        let accesses = f64::from(access);
        let instructions = window.instructions as f64;
        let model = model(instructions, &lines) / accesses.max(1.0);
        Digest {
            visits,
            registers: window.registers,
            words,
            accesses,
            instructions,
            model,
            weight: if model > 0.0 { 1.0 / model } else { 1.0 },
        }
    }
}

/// Sorts, and leaves out words that are only loaded.
fn keep_stored(words: &mut Vec<WordAccess>) {
    let mut stored: Vec<u64> = words.iter().filter(|word| word.is_store).map(|word| word.address).collect();
    stored.sort_unstable();
    stored.dedup();
    words.retain(|word| stored.binary_search(&word.address).is_ok());
    words.sort_unstable_by_key(|word| (word.address, word.access));
}

/// Nanoseconds, up to a factor that each process calibrates: instructions at three a cycle of 3 GHz, lines that the window
/// touches for the first time at what a prefetched one or a missed one costs. The costs are round numbers of the order
/// that this kind of machine shows; only their proportions matter.
fn model(instructions: f64, lines: &[u64]) -> f64 {
    const INSTRUCTION: f64 = 0.11;
    const NEXT_LINE: f64 = 2.0;
    const OTHER_LINE: f64 = 8.0;
    let mut distinct: Vec<u64> = lines.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let mut sum = instructions * INSTRUCTION;
    for pair in distinct.windows(2) {
        if let [a, b] = pair {
            sum += if b - a <= 2 { NEXT_LINE } else { OTHER_LINE };
        }
    }
    sum
}
