//! The program's code as it was translated: each static instruction and each block once.
//!
//! Records are plain and carry the bytes: a record can lie in shared memory, and
//! further facts are derived later ([`crate::Instruction::classify`]). Code translated
//! again gets new blocks; new records for the instructions are up to the source.
//! Self-modified code gets new records: an address may thus occur more than once.

use crate::arena::Plain;
use crate::classify::Instruction;

/// A static instruction as recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct InstructionRecord {
    /// Address in the traced program.
    pub address: u64,
    /// The instruction's bytes; bytes beyond `length` are 0.
    pub bytes: [u8; 15],
    /// Number of bytes, 1 to 15; 0 in a record that was not completed.
    pub length: u8,
}

const _: () = assert!(size_of::<InstructionRecord>() == 24);
// SAFETY: repr(C) without padding, any bytes are valid.
unsafe impl Plain for InstructionRecord {}

impl InstructionRecord {
    /// The record of an instruction; bytes beyond the fifteenth are left out.
    pub fn new(address: u64, code: &[u8]) -> InstructionRecord {
        let mut bytes = [0; 15];
        let mut length = 0;
        for (to, from) in bytes.iter_mut().zip(code) {
            *to = *from;
            length += 1;
        }
        InstructionRecord { address, bytes, length }
    }

    /// The bytes of the instruction.
    pub fn code(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or(&self.bytes)
    }
}

/// A block: consecutive instructions of [`Code::instructions`], executed in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct BlockRecord {
    /// Index of the first instruction.
    pub first: u32,
    /// Number of instructions.
    pub count: u32,
}

// SAFETY: two integers.
unsafe impl Plain for BlockRecord {}

/// Views of the two tables.
#[derive(Debug, Clone, Copy, Default)]
pub struct Code<'a> {
    /// All instructions so far.
    pub instructions: &'a [InstructionRecord],
    /// All blocks so far.
    pub blocks: &'a [BlockRecord],
}

impl<'a> Code<'a> {
    /// The record of an instruction.
    pub fn instruction(&self, index: u32) -> Option<&'a InstructionRecord> {
        self.instructions.get(index as usize)
    }

    /// The records of a block; empty unless the tables have the whole block.
    pub fn block(&self, index: u32) -> &'a [InstructionRecord] {
        self.blocks
            .get(index as usize)
            .and_then(|block| {
                let first = block.first as usize;
                self.instructions.get(first..first.checked_add(block.count as usize)?)
            })
            .unwrap_or_default()
    }

    /// What follows from the bytes, for each instruction in order.
    pub fn classify(&self) -> Vec<Instruction> {
        Instruction::classify_all(self.instructions)
    }
}
