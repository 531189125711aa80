//! Decoded code: blocks by process and address, and their records in the caller's tables.
//!
//! An instruction's op has the number of its record. A block that begins inside a
//! known block shares the known block's records. Blocks of text are decoded once;
//! remaining blocks are compared with the bytes at the first execution in each window.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use iced_x86::{Decoder as Iced, DecoderError, DecoderOptions, Instruction};
use locality_stream::{BlockRecord, InstructionRecord};

use crate::context::Low;
use crate::decode::Decoder;
use crate::hash::Map;
use crate::memory::{Memory, PAGE};
use crate::op::{Do, Op};
use crate::pages::{Ended, Pages};
use crate::process::Process;
use crate::whitelist::Host;
use crate::window::End;

/// Most instructions of a block.
const LONGEST: usize = 64;
/// Room for stubs below which everything is forgotten before a window.
const STUB_ROOM: usize = 64 << 10;
/// Valid in every window.
const ALWAYS: u64 = u64::MAX;
const NO_BLOCK: u32 = u32::MAX;

/// How far the tables are filled. May lie in shared memory.
#[derive(Debug, Default)]
#[repr(C)]
pub struct TableCounts {
    /// Rises when the tables start again from empty, only between
    /// windows: indices in a log belong to the epoch at the log's end.
    pub epoch: AtomicU64,
    /// Number of complete records. Written after the records, with release order.
    pub instructions: AtomicU32,
    /// Number of complete records of blocks, written likewise.
    pub blocks: AtomicU32,
}

/// Where the code of windows is recorded. Append-only within an epoch.
#[derive(Debug)]
pub struct Tables {
    /// Instructions; at least 64.
    pub instructions: &'static mut [InstructionRecord],
    /// Blocks.
    pub blocks: &'static mut [BlockRecord],
    /// Numbers of complete records.
    pub counts: &'static TableCounts,
}

/// A block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    /// First op of the block, and the end of the block's ops.
    pub(crate) first: u32,
    pub(crate) end: u32,
    /// The blocks that followed last: address and number.
    links: [(u64, u32); 2],
    older: bool,
    process: u32,
    /// The window of the last comparison of the bytes.
    valid: u64,
}

/// All blocks.
pub(crate) struct Blocks {
    tables: Tables,
    pub(crate) ops: Vec<Op>,
    pub(crate) complex: Vec<Instruction>,
    blocks: Vec<Block>,
    by_address: Map<(u32, u64), u32>,
    /// Number of the op at an address, and the end of the block's ops.
    inside: Map<(u32, u64), (u32, u32)>,
    decoder: Decoder,
    is_full: bool,
}

/// Whence code is read.
pub(crate) struct Source<'a> {
    pub(crate) process: &'a mut Process,
    pub(crate) low: &'a mut Low,
    /// Number of the window.
    pub(crate) window: u64,
}

impl Blocks {
    pub(crate) fn new(tables: Tables, host: Host) -> Blocks {
        let blocks = Blocks {
            tables,
            ops: Vec::new(),
            complex: Vec::new(),
            blocks: Vec::new(),
            by_address: Map::default(),
            inside: Map::default(),
            decoder: Decoder::new(host),
            is_full: false,
        };
        blocks.publish();
        blocks
    }

    fn publish(&self) {
        self.tables.counts.instructions.store(self.ops.len() as u32, Ordering::Release);
        self.tables.counts.blocks.store(self.blocks.len() as u32, Ordering::Release);
    }

    /// Before a window: starts again where a table is full or nearly so.
    pub(crate) fn make_room(&mut self, low: &mut Low) {
        let nearly = |used: usize, room: usize| used > room - room / 16;
        if self.is_full
            || nearly(self.ops.len(), self.tables.instructions.len())
            || nearly(self.blocks.len(), self.tables.blocks.len())
            || low.room() < STUB_ROOM
        {
            self.clear(low);
        }
    }

    fn clear(&mut self, low: &mut Low) {
        self.ops.clear();
        self.complex.clear();
        self.blocks.clear();
        self.by_address.clear();
        self.inside.clear();
        self.decoder.clear();
        low.clear();
        self.is_full = false;
        self.publish();
        self.tables.counts.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Number of blocks.
    pub(crate) fn count(&self) -> usize {
        self.blocks.len()
    }

    /// A block by its number.
    #[inline(always)]
    pub(crate) fn get(&self, block: u32) -> Option<&Block> {
        self.blocks.get(block as usize)
    }

    /// The block at `ip` if it followed `from` before and is valid in this window.
    #[inline(always)]
    pub(crate) fn linked(&self, from: u32, ip: u64, window: u64) -> Option<u32> {
        let block = self.blocks.get(from as usize)?;
        let link = block.links.iter().find(|link| link.0 == ip && link.1 != NO_BLOCK)?;
        let to = self.blocks.get(link.1 as usize)?;
        (to.valid == ALWAYS || to.valid == window).then_some(link.1)
    }

    /// The block at `ip`, decoded if need be; `from` leads there.
    pub(crate) fn enter(
        &mut self,
        from: u32,
        ip: u64,
        source: &mut Source<'_>,
        pages: &mut Pages,
        memory: &mut dyn Memory,
    ) -> Result<u32, Ended> {
        let known = self.by_address.get(&(source.process.number, ip)).copied();
        let block = match known {
            Some(block) if self.is_valid(block, source, pages, memory)? => block,
            _ => self.decode(ip, source, pages, memory)?,
        };
        if let Some(from) = self.blocks.get_mut(from as usize)
            && from.process == source.process.number
        {
            let slot = if from.links[0].1 == NO_BLOCK || from.links[0].0 == ip || from.older { 0 } else { 1 };
            from.older = !from.older;
            from.links[slot] = (ip, block);
        }
        Ok(block)
    }

    /// Whether the block's bytes are still the decoded bytes.
    fn is_valid(
        &mut self,
        block: u32,
        source: &mut Source<'_>,
        pages: &mut Pages,
        memory: &mut dyn Memory,
    ) -> Result<bool, Ended> {
        let Some(known) = self.blocks.get(block as usize).copied() else { return Ok(false) };
        if known.valid == ALWAYS || known.valid == source.window {
            return Ok(true);
        }
        let same = self.compare(known.first, known.end, source, pages, memory)?;
        if let Some(known) = self.blocks.get_mut(block as usize).filter(|_| same) {
            known.valid = source.window;
        }
        Ok(same)
    }

    fn compare(
        &self,
        first: u32,
        end: u32,
        source: &mut Source<'_>,
        pages: &mut Pages,
        memory: &mut dyn Memory,
    ) -> Result<bool, Ended> {
        let records = self.tables.instructions.get(first as usize..end as usize).unwrap_or_default();
        let ops = self.ops.get(first as usize..).unwrap_or_default();
        let mut at = 0;
        while let (Some(record), Some(op)) = (records.get(at), ops.get(at)) {
            let offset = (op.ip % PAGE) as usize;
            let length = usize::from(op.length);
            // The record may lie in memory with other writers: decoding counts only if the bytes
            // are unchanged afterwards.
            if offset + length > PAGE as usize {
                let mut bytes = [0; 15];
                let (count, _) = source.process.code(op.ip, &mut bytes, pages, memory)?;
                if count < length || record.bytes.get(..length) != bytes.get(..length) {
                    return Ok(false);
                }
                at += 1;
                continue;
            }
            // All blocks in this page.
            let start = op.ip - offset as u64;
            let (page, _) = source.process.page(start, pages, memory)?;
            while let (Some(record), Some(op)) = (records.get(at), ops.get(at)) {
                let Some(offset) = op.ip.checked_sub(start) else { break };
                let length = usize::from(op.length);
                let Some(bytes) = page.get(offset as usize..(offset as usize).saturating_add(length)) else {
                    break;
                };
                if record.bytes.get(..length) != Some(bytes) {
                    return Ok(false);
                }
                at += 1;
            }
        }
        Ok(!records.is_empty())
    }

    fn decode(
        &mut self,
        ip: u64,
        source: &mut Source<'_>,
        pages: &mut Pages,
        memory: &mut dyn Memory,
    ) -> Result<u32, Ended> {
        if self.blocks.len() >= self.tables.blocks.len() {
            return self.full();
        }
        let process = source.process.number;
        if let Some((first, end)) = self.inside.get(&(process, ip)).copied() {
            let mut bytes = [0; 15];
            let (_, kept) = source.process.code(ip, &mut bytes, pages, memory)?;
            if self.compare(first, end, source, pages, memory)? {
                return Ok(self.add(ip, first, end, kept, source));
            }
        }
        let first = self.ops.len();
        let (mut at, mut all_kept) = (ip, true);
        while self.ops.len() - first < LONGEST {
            let mut bytes = [0; 15];
            let found = source.process.code(at, &mut bytes, pages, memory);
            let (count, kept) = match found {
                Ok(found) => found,
                Err(_) if self.ops.len() > first => break,
                Err(ended) => return Err(ended),
            };
            let code = bytes.get(..count).unwrap_or_default();
            let mut iced = Iced::with_ip(64, code, at, DecoderOptions::NONE);
            let instruction = iced.decode();
            if instruction.is_invalid() {
                if self.ops.len() > first {
                    break;
                }
                let is_cut = iced.last_error() == DecoderError::NoMoreBytes && count < bytes.len();
                return Err(if is_cut { (End::UnreadableCode, at) } else { (End::Invalid, at) });
            }
            let Some(record) = self.tables.instructions.get_mut(self.ops.len()) else {
                if self.ops.len() > first {
                    break;
                }
                return self.full();
            };
            let Ok(op) = self.decoder.op(&instruction, code, source.low, &mut self.complex) else {
                if self.ops.len() > first {
                    break;
                }
                return self.full();
            };
            *record = InstructionRecord::new(at, code.get(..instruction.len()).unwrap_or_default());
            all_kept &= kept;
            self.ops.push(op);
            at = instruction.next_ip();
            if ends_block(op.what) {
                break;
            }
        }
        let end = self.ops.len() as u32;
        for (number, op) in (first as u32..end).zip(self.ops.get(first..).unwrap_or_default()) {
            self.inside.insert((process, op.ip), (number, end));
        }
        Ok(self.add(ip, first as u32, end, all_kept, source))
    }

    fn full(&mut self) -> Result<u32, Ended> {
        self.is_full = true;
        Err((End::Log, 0))
    }

    fn add(&mut self, ip: u64, first: u32, end: u32, kept: bool, source: &Source<'_>) -> u32 {
        let number = self.blocks.len() as u32;
        if let Some(record) = self.tables.blocks.get_mut(self.blocks.len()) {
            *record = BlockRecord { first, count: end - first };
        }
        let process = source.process.number;
        self.blocks.push(Block {
            first,
            end,
            links: [(0, NO_BLOCK); 2],
            older: false,
            process,
            valid: if kept { ALWAYS } else { source.window },
        });
        self.by_address.insert((process, ip), number);
        self.publish();
        number
    }
}

/// Whether control leaves the straight line here.
fn ends_block(what: Do) -> bool {
    matches!(
        what,
        Do::Call
            | Do::CallRegister
            | Do::CallMemory
            | Do::Return
            | Do::Jump
            | Do::JumpRegister
            | Do::JumpMemory
            | Do::JumpIf
            | Do::Loop
            | Do::End(_)
    )
}
