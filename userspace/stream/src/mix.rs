//! Instruction mix: how many instructions of each class were executed, from the executions of blocks.
//!
//! A source counts how often each block began (an array beside the blocks, or [`Kind::BLOCK`]
//! events); the rest follows from the code. Exact but for blocks that were left early (faults,
//! signals): their remaining instructions count as executed unless [`Kind::BLOCK_CUT`] tells. An
//! instruction with a repeat prefix is one, however often it repeats.

use std::collections::BTreeMap;

use crate::analysis::{Analysis, ArenaFull};
use crate::classify::{Class, Instruction};
use crate::code::{BlockRecord, Code};
use crate::event::{Event, Kind};

/// Executed instructions by class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mix {
    /// All executions.
    pub instructions: u64,
    /// Possible loads: executions with a read memory operand, implicit ones (pops, returns)
    /// included. Conditional and masked loads always count.
    pub loads: u64,
    /// Possible stores.
    pub stores: u64,
    /// By class; the sum is `instructions`. Classes that did not occur are absent.
    pub classes: BTreeMap<Class, u64>,
}

impl Mix {
    /// The mix of `counts[i]` executions of each block `i`. `facts` are the instructions of `code` by index
    /// ([`Code::classify`]); what either side has not is left out.
    pub fn of_counts(code: &Code<'_>, facts: &[Instruction], counts: &[u64]) -> Mix {
        Self::of_chosen(code, facts, counts, |_| true)
    }

    /// The same for the `chosen` instructions only, by index.
    pub fn of_chosen(
        code: &Code<'_>,
        facts: &[Instruction],
        counts: &[u64],
        chosen: impl Fn(usize) -> bool,
    ) -> Mix {
        let mut mix = Mix::default();
        for (block, count) in code.blocks.iter().zip(counts).filter(|(_, count)| **count > 0) {
            let first = block.first as usize;
            let end = first.saturating_add(block.count as usize);
            for (index, instruction) in (first..).zip(facts.get(first..end).unwrap_or_default()) {
                if chosen(index) {
                    mix.add(instruction, *count);
                }
            }
        }
        mix
    }

    /// Adds `count` executions of an instruction.
    pub fn add(&mut self, instruction: &Instruction, count: u64) {
        if count == 0 {
            return;
        }
        self.instructions = self.instructions.saturating_add(count);
        let add = |to: &mut u64, counts: bool| *to = to.saturating_add(if counts { count } else { 0 });
        add(&mut self.loads, instruction.loads);
        add(&mut self.stores, instruction.stores);
        add(self.classes.entry(instruction.class).or_default(), true);
    }

    /// Adds another thread's or process' mix.
    pub fn merge(&mut self, other: &Mix) {
        self.instructions = self.instructions.saturating_add(other.instructions);
        self.loads = self.loads.saturating_add(other.loads);
        self.stores = self.stores.saturating_add(other.stores);
        for (class, count) in &other.classes {
            let sum = self.classes.entry(*class).or_default();
            *sum = sum.saturating_add(*count);
        }
    }

    /// A class's part of all instructions, 0 to 1; 0 when there are none.
    pub fn fraction(&self, class: Class) -> f64 {
        self.part(self.classes.get(&class).copied().unwrap_or(0))
    }

    /// `count` as a part of all instructions.
    pub fn part(&self, count: u64) -> f64 {
        if self.instructions == 0 { 0.0 } else { count as f64 / self.instructions as f64 }
    }
}

/// Counts the executions of blocks from a stream that has an event of each.
#[derive(Debug, Default)]
pub struct BlockCounts {
    /// By block.
    counts: Vec<u64>,
    /// By instruction: executions that a block's count claims and that did not take place.
    unexecuted: BTreeMap<u32, u64>,
    /// The block begun last, by thread.
    begun: BTreeMap<u64, u32>,
    thread: u64,
}

impl BlockCounts {
    /// The mix so far.
    pub fn mix(&self, code: &Code<'_>, facts: &[Instruction]) -> Mix {
        let mut mix = Mix::of_counts(code, facts, &self.counts);
        for (index, count) in &self.unexecuted {
            if let Some(instruction) = facts.get(*index as usize) {
                mix.instructions = mix.instructions.saturating_sub(*count);
                mix.loads = mix.loads.saturating_sub(if instruction.loads { *count } else { 0 });
                mix.stores = mix.stores.saturating_sub(if instruction.stores { *count } else { 0 });
                if let Some(sum) = mix.classes.get_mut(&instruction.class) {
                    *sum = sum.saturating_sub(*count);
                }
            }
        }
        mix.classes.retain(|_, count| *count > 0);
        mix
    }

    fn cut(&mut self, executed: u64, code: &Code<'_>) {
        let block = self.begun.remove(&self.thread).and_then(|block| code.blocks.get(block as usize));
        // As in `Mix::of_chosen`, a block that the code has not whole counts for nothing; a damaged
        // one may have billions.
        let is_whole = |block: &&BlockRecord| {
            (block.first as usize).saturating_add(block.count as usize) <= code.instructions.len()
        };
        if let Some(block) = block.filter(is_whole) {
            let executed = u32::try_from(executed).unwrap_or(u32::MAX).min(block.count);
            for index in block.first + executed..block.first + block.count {
                *self.unexecuted.entry(index).or_default() += 1;
            }
        }
    }
}

impl Analysis for BlockCounts {
    fn observe(&mut self, events: &[Event], code: &Code<'_>) -> Result<(), ArenaFull> {
        for event in events {
            match event.kind {
                // Unknown blocks would give nothing.
                Kind::BLOCK if (event.index as usize) < code.blocks.len() => {
                    let index = event.index as usize;
                    if self.counts.len() <= index {
                        self.counts.resize(index + 1, 0);
                    }
                    if let Some(count) = self.counts.get_mut(index) {
                        *count += 1;
                    }
                    self.begun.insert(self.thread, event.index);
                }
                Kind::BLOCK_CUT => self.cut(event.value, code),
                Kind::THREAD => self.thread = event.value,
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::code::InstructionRecord;

    /// Bytes, class, loads, stores: as the processor's manual has it.
    const CODE: [(&[u8], Class, bool, bool); 12] = [
        (&[0x48, 0x8b, 0x07], Class::Move, true, false), // mov rax, [rdi]
        (&[0x48, 0x89, 0x07], Class::Move, false, true), // mov [rdi], rax
        (&[0x48, 0x01, 0x07], Class::Integer, true, true), // add [rdi], rax
        (&[0x48, 0x0f, 0xaf, 0xc7], Class::IntegerMultiply, false, false), // imul rax, rdi
        (&[0xf2, 0x0f, 0x58, 0x07], Class::Float, true, false), // addsd xmm0, [rdi]
        (&[0x66, 0x0f, 0x58, 0xc1], Class::Vector, false, false), // addpd xmm0, xmm1
        (&[0x50], Class::Stack, false, true),            // push rax
        (&[0xe8, 0, 0, 0, 0], Class::Call, false, true), // call
        (&[0xc3], Class::Return, true, false),           // ret
        (&[0x75, 0x00], Class::Branch, false, false),    // jne
        (&[0x0f, 0x05], Class::SystemCall, false, false), // syscall
        (&[0x90], Class::Other, false, false),           // nop
    ];

    fn code() -> Vec<InstructionRecord> {
        CODE.iter().zip(0..).map(|((bytes, ..), n)| InstructionRecord::new(0x1000 + n * 16, bytes)).collect()
    }

    /// Instruction by instruction.
    fn oracle(executed: impl Iterator<Item = usize>) -> Mix {
        let mut mix = Mix::default();
        for (_, class, loads, stores) in executed.map(|index| CODE[index]) {
            mix.instructions += 1;
            mix.loads += u64::from(loads);
            mix.stores += u64::from(stores);
            *mix.classes.entry(class).or_default() += 1;
        }
        mix
    }

    /// What another process' memory may say of a block: no loop over billions of instructions, and
    /// no count of them.
    #[test]
    fn a_block_that_the_code_has_not_whole_counts_for_nothing() {
        let instructions = code();
        for (first, count) in [(0, u32::MAX), (5, 8), (u32::MAX, 1), (u32::MAX, u32::MAX)] {
            let blocks = [BlockRecord { first, count }, BlockRecord { first: 0, count: 2 }];
            let code = Code { instructions: &instructions, blocks: &blocks };
            let mut analysis = BlockCounts::default();
            let events = [
                Event::new(Kind::BLOCK, 1, 0),
                Event::new(Kind::BLOCK, 0, 0),
                Event::new(Kind::BLOCK_CUT, 0, 1),
            ];
            analysis.observe(&events, &code).unwrap();
            assert!(analysis.unexecuted.is_empty(), "{first} {count}");
            assert_eq!(analysis.mix(&code, &code.classify()), oracle(0..2), "{first} {count}");
        }
    }

    proptest! {
        #[test]
        fn equals_counting_each_instruction(
            shapes in proptest::collection::vec((0..12_u32, 0..13_u32), 1..6),
            run in proptest::collection::vec((0..8_u32, proptest::option::of(0..14_u64), 0..3_u64), 0..60)
        ) {
            let instructions = code();
            let blocks: Vec<BlockRecord> = shapes
                .iter()
                .map(|(first, count)| BlockRecord { first: *first, count: (*count).min(12 - first) })
                .collect();
            let code = Code { instructions: &instructions, blocks: &blocks };
            let facts = code.classify();
            let (mut events, mut executed, mut whole) = (Vec::new(), Vec::new(), Vec::new());
            let mut counts = vec![0; blocks.len()];
            for (block, cut, thread) in run {
                events.push(Event::new(Kind::THREAD, 0, thread));
                events.push(Event::new(Kind::BLOCK, block, 0));
                events.push(Event::access(Kind::LOAD, 0, 64, 8));
                let Some(record) = blocks.get(block as usize) else { continue };
                counts[block as usize] += 1;
                let all = record.first as usize..(record.first + record.count) as usize;
                whole.extend(all.clone());
                match cut {
                    Some(n) => {
                        events.push(Event::new(Kind::BLOCK_CUT, 0, n));
                        executed.extend(all.take(n as usize));
                    }
                    None => executed.extend(all),
                }
            }
            let mut analysis = BlockCounts::default();
            for piece in events.chunks(5) {
                analysis.observe(piece, &code).unwrap();
            }
            prop_assert_eq!(analysis.mix(&code, &facts), oracle(executed.into_iter()));
            let mix = Mix::of_counts(&code, &facts, &counts);
            prop_assert_eq!(&mix, &oracle(whole.iter().copied()));
            let sum: f64 = Class::ALL.iter().map(|class| mix.fraction(*class)).sum();
            prop_assert!(whole.is_empty() || (sum - 1.0).abs() < 1e-9);
            // Merging two halves is counting both.
            let (a, b) = whole.split_at(whole.len() / 2);
            let mut merged = oracle(b.iter().copied());
            merged.merge(&oracle(a.iter().copied()));
            prop_assert_eq!(merged, mix);
        }
    }
}
