//! Translation: each block and its instructions are written down once, and get their callbacks.
//!
//! QEMU translates a block again when its cache is full, when a second thread begins, and when code
//! was rewritten. The same bytes at the same address are the same block then; other bytes are a new
//! one.

use std::{
    collections::HashMap,
    ffi::c_void,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering::{Relaxed, Release},
};

use iced_x86::InstructionInfoFactory;
use locality_stream::{BlockRecord, Instruction, InstructionRecord};

use crate::{
    api::{Id, MEM_READ, MEM_WRITE, NO_REGS, OnBlock, OnMemory, Tb},
    functions::{BEGINS, CHOSEN, Functions, IGNORED, LINES, Lines, SKIPPED},
    mappings::Mappings,
    objects::Objects,
    process::{self, Process},
    recorder,
    region::{BLOCKS, INSTRUCTIONS},
    sampled,
    settings::{Mode, Settings},
    shape::{Shape, shape},
};

/// What is known of translated code.
pub struct Translation {
    /// Blocks by address and bytes.
    blocks: HashMap<(u64, Box<[u8]>), u32>,
    /// Handlers of signals, by address.
    pub handlers: HashMap<u64, u32>,
    /// Mapped files.
    pub mappings: Mappings,
    /// Data objects.
    pub objects: Objects,
    /// What the run is restricted to.
    functions: Functions,
    /// Functions whose costs go to their callers.
    skipped: Functions,
    /// Functions whose whole calls are measured.
    inclusive: Functions,
    /// Code of ignored lines.
    ignored: Lines,
    factory: InstructionInfoFactory,
    bytes: Vec<u8>,
    shapes: Vec<Shape>,
}

/// QEMU translates a block.
pub unsafe extern "C" fn on_translate(_: Id, tb: *mut Tb) {
    let done = catch_unwind(AssertUnwindSafe(|| {
        if let Some(process) = process::current()
            && !process.has_stopped()
        {
            translate(process, tb);
        }
    }));
    if done.is_err() {
        process::stop("a fault at a translation");
    }
}

fn translate(process: &Process, tb: *mut Tb) {
    let api = process.api();
    // SAFETY: the handle is valid during the callback, as are those of its instructions.
    let count = unsafe { (api.block_length)(tb) };
    if count == 0 {
        return;
    }
    if process.settings().mode == Mode::Empty {
        for at in 0..count {
            // SAFETY: as above, and `at` is below the number of instructions.
            unsafe {
                let instruction = (api.block_instruction)(tb, at);
                let any = MEM_READ | MEM_WRITE;
                let nothing: OnMemory = recorder::on_nothing;
                (api.register_memory)(instruction, nothing, NO_REGS, any, std::ptr::null_mut());
            }
        }
        return;
    }
    let mut held = process.translation();
    let translation = &mut *held;
    let Some((address, sizes)) = translation.read(process, tb, count) else { return };
    let Settings { functions: names, skipped, inclusive, .. } = process.settings();
    if translation.mappings.note(process, address)
        && !(names.is_empty() && skipped.is_empty() && inclusive.is_empty() && translation.ignored.is_empty())
    {
        let (files, header) = (translation.mappings.files(), process.region().header());
        header.functions_found.fetch_or(translation.functions.update(names, &files), Relaxed);
        header.skipped_found.fetch_or(translation.skipped.update(skipped, &files), Relaxed);
        translation.ignored.update(&files);
        header.inclusive_found.fetch_or(translation.inclusive.update(inclusive, &files), Relaxed);
    }
    let Some(block) = translation.block(process, address, &sizes) else {
        process::stop("more code than an image may have");
        return;
    };
    // SAFETY: as above; the callbacks are ours and bear any thread and any time.
    unsafe {
        match translation.handlers.get(&address) {
            None => {
                let settings = process.settings();
                let callback: OnBlock = if settings.tells_blocks() {
                    recorder::on_told_block
                } else if settings.cache.as_ref().is_some_and(|cache| cache.inclusive) {
                    recorder::on_entered_block
                } else {
                    recorder::on_block
                };
                (api.register_block)(tb, callback, NO_REGS, block as usize as *mut c_void);
            }
            Some(signal) => {
                let word = u64::from(*signal) << 32 | u64::from(block);
                (api.register_block)(tb, recorder::on_handler, NO_REGS, word as *mut c_void);
            }
        }
        for (at, shape) in translation.shapes.iter().enumerate() {
            let samples = process.settings().sample_lines > 0;
            let (callback, word): (OnMemory, u64) = match *shape {
                Shape::Nothing => continue,
                Shape::Load(what) | Shape::Store(what) if samples && what >> 49 & 1 == 0 => {
                    (sampled::on_access, what)
                }
                Shape::Load(what) | Shape::Store(what) if samples => (sampled::on_flow, what),
                Shape::Mixed(template) if samples => (sampled::on_mixed, template),
                Shape::Joined(template) if samples => (sampled::on_piece, template),
                Shape::Flow(template) => (sampled::on_flow_only, template),
                Shape::Load(what) | Shape::Store(what) => (recorder::on_access, what),
                Shape::Mixed(template) => (recorder::on_mixed, template),
                Shape::Joined(template) => (recorder::on_piece, template),
            };
            let instruction = (api.block_instruction)(tb, at);
            // One callback for both directions: QEMU 7.2 mixes the directions up if asked for one
            // (a callback for loads is never called), and drops accesses of helpers with two
            // callbacks.
            let both = MEM_READ | MEM_WRITE;
            (api.register_memory)(instruction, callback, NO_REGS, both, word as *mut c_void);
        }
    }
}

impl Default for Translation {
    fn default() -> Self {
        Self {
            blocks: HashMap::new(),
            handlers: HashMap::new(),
            mappings: Mappings::default(),
            objects: Objects::default(),
            functions: Functions::default(),
            skipped: Functions::default(),
            inclusive: Functions::default(),
            ignored: Lines::default(),
            factory: InstructionInfoFactory::new(),
            bytes: Vec::new(),
            shapes: Vec::new(),
        }
    }
}

impl Translation {
    /// Of a process with these settings.
    pub fn new(settings: &Settings) -> Self {
        let text = || std::fs::read_to_string(settings.folder.join(LINES)).unwrap_or_default();
        let ignored = if settings.ignores_lines { Lines::parse(&text()) } else { Lines::default() };
        Self { ignored, ..Self::default() }
    }

    /// Reads the block's bytes into `self.bytes`; its address and the sizes of its instructions.
    fn read(&mut self, process: &Process, tb: *mut Tb, count: usize) -> Option<(u64, Vec<u8>)> {
        let api = process.api();
        let mut sizes = Vec::with_capacity(count);
        let mut first = None;
        self.bytes.clear();
        for at in 0..count {
            // SAFETY: handles are valid during the callback. In user mode QEMU has just read these
            // bytes at their host address, which is the guest's plus a constant.
            unsafe {
                let instruction = (api.block_instruction)(tb, at);
                let size = (api.instruction_size)(instruction);
                let address = (api.instruction_address)(instruction);
                let base = match first {
                    Some((_, base)) => base,
                    None => {
                        let host = (api.instruction_host)(instruction) as u64;
                        let base = if host == 0 { 0 } else { host.wrapping_sub(address) };
                        first = Some((address, base));
                        base
                    }
                };
                let host = address.wrapping_add(base) as *const u8;
                self.bytes.extend_from_slice(std::slice::from_raw_parts(host, size.min(15)));
                sizes.push(size.min(15) as u8);
            }
        }
        let (address, base) = first?;
        process.region().header().guest_base.store(base, Relaxed);
        Some((address, sizes))
    }

    /// Whether the block in `self.bytes` only passes control on to the called function in the next
    /// block.
    fn is_stub(&self, address: u64, sizes: &[u8]) -> bool {
        let mut from = 0;
        let record = |size: &u8| {
            let bytes = self.bytes.get(from..from + usize::from(*size)).unwrap_or_default();
            let record = InstructionRecord::new(address + from as u64, bytes);
            from += usize::from(*size);
            record
        };
        // No stub has more than three instructions.
        sizes.len() <= 3 && locality_cachesim::is_stub(&sizes.iter().map(record).collect::<Vec<_>>())
    }

    /// The block's index, new or known, and in `self.shapes` how its instructions are recorded.
    /// `None` without room.
    fn block(&mut self, process: &Process, address: u64, sizes: &[u8]) -> Option<u32> {
        let region = process.region();
        let header = region.header();
        let known = self.blocks.get(&(address, self.bytes.as_slice().into())).copied();
        let first = match known {
            // SAFETY: a complete record without later writes.
            Some(block) => unsafe { region.blocks().add(block as usize).read().first },
            None => header.instructions.load(Relaxed),
        };
        if known.is_none() && first as usize + sizes.len() > INSTRUCTIONS {
            return None;
        }
        let settings = process.settings();
        let restricted = settings.is_restricted();
        self.shapes.clear();
        let (mut at, mut from) = (address, 0usize);
        for (index, size) in (first..).zip(sizes) {
            let bytes = self.bytes.get(from..from + usize::from(*size)).unwrap_or_default();
            let shape = shape(index, at, bytes, &mut self.factory);
            // Calls and returns of what is not chosen make the contexts.
            let is_ignored = settings.ignores_lines && self.ignored.contain(at);
            let chosen = restricted
                && !is_ignored
                && (settings.functions.is_empty() || self.functions.contain(at))
                && (settings.data_types.is_empty() || {
                    let facts = Instruction::classify(&InstructionRecord::new(at, bytes));
                    settings.data_types.contains(&facts.data)
                });
            // Parallelism and bytes between threads need all accesses.
            let is_recorded = chosen || !restricted || settings.parallelism.is_some() || settings.sharing;
            self.shapes.push(match is_recorded {
                true => shape,
                false if settings.sample_lines > 0 => shape.flow_alone(),
                false => shape.flow(),
            });
            let skipped = !settings.skipped.is_empty() && self.skipped.contain(at);
            let begins = self.inclusive.begins(at).map_or(0, |name| BEGINS << name);
            let marks = [(chosen, CHOSEN), (skipped, SKIPPED), (is_ignored, IGNORED), (true, begins)];
            let at_marked = marks.iter().filter(|(is_set, _)| *is_set).fold(at, |all, (_, mark)| all | mark);
            if known.is_none() {
                // SAFETY: below INSTRUCTIONS, and only the holder of the translation lock writes the table.
                unsafe {
                    region.instructions().add(index as usize).write(InstructionRecord::new(at_marked, bytes));
                }
            }
            at += u64::from(*size);
            from += usize::from(*size);
        }
        if settings.cache.is_some() && !settings.tells_blocks() && self.is_stub(address, sizes) {
            self.shapes.iter_mut().for_each(|shape| *shape = shape.leading_on());
        }
        if let Some(block) = known {
            return Some(block);
        }
        let block = header.blocks.load(Relaxed);
        if block as usize >= BLOCKS {
            return None;
        }
        // SAFETY: below BLOCKS, and only the holder of the translation lock writes the table.
        unsafe {
            region.blocks().add(block as usize).write(BlockRecord { first, count: sizes.len() as u32 });
        }
        // Readers take the counts first: everything below them is written.
        header.instructions.store(first + sizes.len() as u32, Release);
        header.blocks.store(block + 1, Release);
        self.blocks.insert((address, self.bytes.as_slice().into()), block);
        Some(block)
    }
}
