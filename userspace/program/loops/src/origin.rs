//! Origin of addresses: the loads with values that form an address.

use iced_x86::{Decoder, DecoderOptions};
use locality_stream::{Code, DataType, Instruction};

use crate::hash::Map;

/// Loads of a value, the newest ones.
const MOST: usize = 4;

/// Instructions with loaded values that form a value; 0
/// stands for none, a positive number for the index plus one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Origin([u32; MOST]);

impl Origin {
    pub fn has(self, index: u32) -> bool {
        self.0.contains(&(index + 1))
    }

    pub fn loads(self) -> impl Iterator<Item = u32> {
        self.0.into_iter().filter_map(|index| index.checked_sub(1))
    }

    /// A value that the instruction `index` loaded from an address of origin `self`.
    fn loaded_by(self, index: u32) -> Self {
        let mut loads = [index + 1, 0, 0, 0];
        let others = self.0.into_iter().filter(|other| *other != 0 && *other != index + 1);
        for (to, from) in loads.iter_mut().skip(1).zip(others) {
            *to = from;
        }
        Self(loads)
    }

    fn and(self, other: Self) -> Self {
        let mut all = self;
        for number in other.0.into_iter().filter(|number| *number != 0 && !self.0.contains(number)) {
            if let Some(free) = all.0.iter_mut().find(|at| **at == 0) {
                *free = number;
            }
        }
        all
    }
}

/// The needed facts of a static instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// Registers of the memory operand.
    bases: u64,
    reads: u64,
    writes: u64,
    loads: bool,
    stores: bool,
    /// The operand in memory is an integer of at most eight bytes.
    pub is_integer: bool,
}

impl Facts {
    pub fn of(code: &Code<'_>, index: u32) -> Option<Facts> {
        /// All flags: decisions by a comparison with a loaded value pass through them.
        const FLAGS: u64 = 1 << 16;
        let record = code.instruction(index)?;
        let decoded = Decoder::with_ip(64, record.code(), record.address, DecoderOptions::NONE).decode();
        let bit = |register| Instruction::register_bit(register).map_or(0, |bit| 1_u64 << bit);
        let instruction = Instruction::classify(record);
        let bases = bit(decoded.memory_base()) | bit(decoded.memory_index());
        let touches = instruction.loads || instruction.stores;
        let is_integer = matches!(instruction.data, DataType::Integer(1..=8));
        let is_cleared = decoded.op_count() == 2
            && instruction.writes & !FLAGS == bit(decoded.op0_register())
            && decoded.op0_register() == decoded.op1_register()
            && matches!(decoded.mnemonic(), iced_x86::Mnemonic::Xor | iced_x86::Mnemonic::Sub);
        let reads = if is_cleared { 0 } else { instruction.reads };
        Some(Facts {
            bases: if touches { bases } else { 0 },
            reads: if touches { reads & !bases } else { reads },
            writes: instruction.writes,
            loads: instruction.loads,
            stores: instruction.stores,
            is_integer,
        })
    }
}

/// Origins of the values in registers and in words of memory stored by the window.
#[derive(Debug)]
pub(crate) struct Origins {
    registers: [Origin; 64],
    words: Map<u64, Origin>,
}

impl Default for Origins {
    fn default() -> Self {
        Self { registers: [Origin::default(); 64], words: Map::default() }
    }
}

impl Origins {
    /// Origin of the address of an instruction's memory operand.
    pub fn address(&self, facts: &Facts) -> Origin {
        self.all(facts.bases)
    }

    fn all(&self, registers: u64) -> Origin {
        let mut all = Origin::default();
        let mut left = registers;
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            left &= left - 1;
            all = all.and(self.registers.get(bit).copied().unwrap_or_default());
        }
        all
    }

    /// Goes past an instruction that loaded from and stored to these addresses.
    pub fn pass(&mut self, index: u32, facts: &Facts, loaded: Option<u64>, stored: Option<u64>) {
        if !facts.loads && !facts.stores && facts.writes == 0 {
            return;
        }
        let mut value = self.all(facts.reads);
        if let Some(address) = loaded {
            let brought = match self.words.get(&(address >> 3)) {
                Some(origin) => *origin,
                None => self.address(facts).loaded_by(index),
            };
            value = brought.and(value);
        }
        if let Some(address) = stored {
            self.words.insert(address >> 3, value);
        }
        let mut left = facts.writes;
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some(register) = self.registers.get_mut(bit) {
                *register = value;
            }
        }
    }
}
