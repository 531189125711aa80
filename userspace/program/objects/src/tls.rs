//! Thread-local storage: where the accessing thread's copy of each module's thread-local segment lies.
//!
//! The program's own block ends at the thread pointer, which needs only the fs base. Blocks of
//! libraries are found through the thread's vector of them (DTV), which needs [`crate::Memory`]:
//! the C library numbers modules in the dynamic linker's list order.
//!
//! Source: Drepper, "ELF Handling For Thread-Local Storage", §3 (variant II, DTV); glibc 2.36,
//! sysdeps/x86_64/nptl/tls.h (`tcbhead_t`: the DTV's address at offset 8), sysdeps/generic/dl-dtv.h
//! (16 bytes an entry); musl 1.2, src/internal/pthread_impl.h (the same place, 8 bytes an entry);
//! elf/link.h (`r_debug`, `link_map`). Limits: numbers that were used again after `dlclose` are not
//! known, so libraries are left out when the vector has another length than the list; other
//! threads' blocks are not looked at.

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use crate::module::{add, blank};
use crate::named::{Kind, Named, Object};
use crate::place::{Memory, Place};
use crate::resolver::Resolver;

/// Entry of the dynamic section that the dynamic linker puts `r_debug`'s address into.
const DT_DEBUG: u64 = 21;
/// Modules that a list of the dynamic linker is followed for.
const MAX_MODULES: usize = 4096;
/// Threads whose blocks are remembered.
const MAX_THREADS: usize = 4096;
/// Bytes from the thread pointer on that every x86-64 C library uses for itself (self pointer, DTV,
/// stack guard).
const CONTROL_BLOCK: u64 = 64;

/// A module's block of one thread.
#[derive(Debug, Clone, Copy)]
struct Block {
    start: u64,
    end: u64,
    module: u32,
}

/// What is known of threads, by fs base.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    blocks: std::collections::HashMap<u64, (bool, Arc<[Block]>)>,
    control: Option<Arc<Object>>,
    /// The program's own module, once searched for.
    program: Option<Option<u32>>,
}

impl Resolver {
    /// Names a place in the thread's blocks.
    pub(crate) fn thread_local(&mut self, address: u64, at: &Place<'_>) -> Option<Named> {
        let fs_base = at.fs_base.filter(|&base| base != 0)?;
        if (fs_base..fs_base.saturating_add(CONTROL_BLOCK)).contains(&address) {
            let objects = &mut self.objects;
            let control = self.threads.control.get_or_insert_with(|| {
                let unknown =
                    Some("the C library's own words of the thread (stack guard, thread pointer)".into());
                let name = "[thread control block]".into();
                add(objects, Object { name, bytes: CONTROL_BLOCK, unknown, ..blank(Kind::ThreadLocal) })
            });
            let object = Arc::clone(control);
            return Some(Named { object, offset: address - fs_base, field: None });
        }
        let blocks = self.blocks(fs_base, at.memory);
        let block = blocks.iter().find(|block| (block.start..block.end).contains(&address))?;
        let offset = address - block.start;
        let module = self.space.modules.get_mut(block.module as usize)?;
        let (mut context, debug, statics) = module.context(block.module, &mut self.types, &mut self.objects);
        let statics = statics?;
        if let Some((object, offset)) = statics.find(offset, true, debug, &mut context) {
            let field = object.ty.and_then(|ty| self.fields.at(&self.types, ty, false, offset));
            return Some(Named { object, offset, field });
        }
        let object = statics.thread_local_segment(block.end - block.start, &mut context);
        Some(Named { object, offset, field: None })
    }

    /// The thread's blocks at its first question with the same means.
    fn blocks(&mut self, fs_base: u64, memory: Option<&dyn Memory>) -> Arc<[Block]> {
        if let Some((with_memory, known)) = self.threads.blocks.get(&fs_base)
            && (*with_memory || memory.is_none())
        {
            return Arc::clone(known);
        }
        let found = self.find_blocks(fs_base, memory);
        if self.threads.blocks.len() >= MAX_THREADS {
            self.threads.blocks.clear();
        }
        self.threads.blocks.insert(fs_base, (memory.is_some(), Arc::clone(&found)));
        found
    }

    fn find_blocks(&mut self, fs_base: u64, memory: Option<&dyn Memory>) -> Arc<[Block]> {
        let Some(program) = self.program() else { return Arc::default() };
        let mut blocks = Vec::new();
        let tls = |this: &Self, module: u32| this.space.modules.get(module as usize).and_then(|m| m.elf.tls);
        if let Some(own) = tls(self, program)
            && let Some(start) = fs_base.checked_sub(own.bytes.next_multiple_of(own.align.max(1)))
        {
            blocks.push(Block { start, end: start.saturating_add(own.bytes), module: program });
        }
        let listed = memory.and_then(|memory| {
            let listed = self.listed_modules(program, memory)?;
            let with_tls: Vec<u32> =
                listed.into_iter().filter(|module| tls(self, *module).is_some()).collect();
            let starts = self.vector(fs_base, with_tls.len(), memory)?;
            Some(with_tls.into_iter().zip(starts))
        });
        for (module, start) in listed.into_iter().flatten() {
            if module != program
                && let Some(segment) = tls(self, module)
                && let Some(start) = start
            {
                blocks.push(Block { start, end: start.saturating_add(segment.bytes), module });
            }
        }
        blocks.into()
    }

    /// The module of the program itself.
    pub(crate) fn program(&mut self) -> Option<u32> {
        if let Some(known) = self.threads.program {
            return known;
        }
        let found = self.find_program();
        self.threads.program = Some(found);
        found
    }

    fn find_program(&mut self) -> Option<u32> {
        let inode = std::fs::metadata(format!("/proc/{}/exe", self.pid)).ok()?.ino();
        let region = self.space.first_of_inode(inode)?;
        self.space.module(region, &self.processes, self.pid)
    }

    /// The loaded modules in the dynamic linker's order.
    fn listed_modules(&mut self, program: u32, memory: &dyn Memory) -> Option<Vec<u32>> {
        let module = self.space.modules.get(program as usize)?;
        let (bias, dynamic) = (module.bias, module.elf.dynamic?);
        let mut at = dynamic.wrapping_add(bias);
        let debug = loop {
            match memory.word(at)? {
                0 => return None,
                DT_DEBUG => break memory.word(at.wrapping_add(8))?,
                _ => at = at.wrapping_add(16),
            }
        };
        // `r_debug`: version, then the first `link_map`: address, name, dynamic section, next.
        let mut link = memory.word(debug.wrapping_add(8))?;
        let mut found = Vec::new();
        while link != 0 && found.len() < MAX_MODULES {
            let dynamic = memory.word(link.wrapping_add(16))?;
            if let Some(region) = self.space.find(dynamic)
                && let Some(module) = self.space.module(region, &self.processes, self.pid)
            {
                found.push(module);
            }
            link = memory.word(link.wrapping_add(24))?;
        }
        Some(found)
    }

    /// Block addresses of modules 1 to `count`; `None` for one that the thread has not needed yet.
    fn vector(&self, fs_base: u64, count: usize, memory: &dyn Memory) -> Option<Vec<Option<u64>>> {
        let vector = memory.word(fs_base.wrapping_add(8))?;
        let entry_bytes = if self.space.maps_file_named("ld-musl-") { 8 } else { 16 };
        let entry = |module: usize| {
            let start = memory.word(vector.wrapping_add(entry_bytes * module as u64))?;
            // Not handed out, or to be handed out at the first use.
            Some(Some(start).filter(|&start| start != 0 && start != u64::MAX))
        };
        (1..=count).map(entry).collect()
    }
}
