//! The code tables of the window process, stored for the thread that learns from windows.

use std::sync::{Arc, Mutex};

use locality_stream::{BlockRecord, Code, InstructionRecord};

/// The code that windows refer to.
#[derive(Debug, Clone, Default)]
pub struct CodeTables {
    /// The window process whose numbering the tables have.
    pub generation: u32,
    /// Static instructions.
    pub instructions: Vec<InstructionRecord>,
    /// Static blocks.
    pub blocks: Vec<BlockRecord>,
}

impl CodeTables {
    /// As windows need it.
    pub fn code(&self) -> Code<'_> {
        Code { instructions: &self.instructions, blocks: &self.blocks }
    }

    /// Takes over what was added.
    pub fn follow(&mut self, generation: u32, code: &Code<'_>) {
        if generation != self.generation {
            self.instructions.clear();
            self.blocks.clear();
            self.generation = generation;
        }
        let (instructions, blocks) = (self.instructions.len(), self.blocks.len());
        self.instructions.extend_from_slice(code.instructions.get(instructions..).unwrap_or_default());
        self.blocks.extend_from_slice(code.blocks.get(blocks..).unwrap_or_default());
    }
}

/// The capture thread writes after each window, unless the lock is taken. A reader locks only while
/// copying new entries.
pub type SharedCode = Arc<Mutex<CodeTables>>;
