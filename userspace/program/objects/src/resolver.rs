//! The resolver: from an address and the place of the
//! access to the object, by the rules of the address space.
//!
//! Order: addresses in a loaded module are static variables; addresses in the thread's thread-local
//! blocks are thread-local; addresses in a frame, or in a stack's mapping, are stack variables;
//! then recorded heap blocks; then the mapping itself. An address of another thread's stack is
//! named as such if the caller knows the stack, else by its mapping.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use locality_symbols::Processes;

use crate::chunks::Chunks;
use crate::debug::DebugFaults;
use crate::held::HeldPointers;
use crate::infer::Inferred;
use crate::module::{add, blank, replace};
use crate::named::{Field, Kind, Named, Object, TypeId};
use crate::path::Fields;
use crate::place::{HeapBlock, Place};
use crate::revealed::Blocks;
use crate::space::Space;
use crate::stack::Stacks;
use crate::tls::Threads;
use crate::types::Types;

/// Accesses to a site's blocks after which a pointer into one block suffices for its name.
const PATIENCE: u32 = 64;

/// Names the objects of one process. Reads files of the process's modules at the first address
/// within them; caches the results for its whole life. Can be sent to another thread.
#[derive(Debug)]
pub struct Resolver {
    pub(crate) processes: Processes,
    pub(crate) pid: u32,
    pub(crate) space: Space,
    /// Number of the reading of the mappings.
    reading: u64,
    pub(crate) types: Types,
    pub(crate) fields: Fields,
    pub(crate) objects: Vec<Arc<Object>>,
    /// Objects by allocation site.
    heap: HashMap<u64, Site>,
    unmapped: Option<Arc<Object>>,
    pub(crate) stacks: Stacks,
    pub(crate) threads: Threads,
    pub(crate) inferred: Inferred,
    pub(crate) chunks: Chunks,
    pub(crate) revealed: Blocks,
    pub(crate) held: HeldPointers,
}

/// What is known of an allocation site.
#[derive(Debug)]
struct Site {
    object: Arc<Object>,
    /// How often a block of it was asked for.
    asked: u32,
    /// Then a name is looked for.
    due: u32,
    /// Bytes of a block before its elements.
    skipped: u64,
}

impl Resolver {
    /// For a process; attaches it to `processes` unless that was done before. Fails when the
    /// process does not exist or may not be inspected.
    pub fn new(processes: &Processes, pid: u32) -> io::Result<Self> {
        if processes.mappings(pid).is_none() {
            processes.attach(pid)?;
        }
        let mut this = Self {
            processes: processes.clone(),
            pid,
            space: Space::default(),
            reading: 0,
            types: Types::default(),
            fields: Fields::default(),
            objects: Vec::new(),
            heap: HashMap::new(),
            unmapped: None,
            stacks: Stacks::default(),
            threads: Threads::default(),
            inferred: Inferred::default(),
            chunks: Chunks::default(),
            revealed: Blocks::default(),
            held: HeldPointers::default(),
        };
        this.take_mappings();
        Ok(this)
    }

    /// Reads the mappings again, for instance after an unmapping or an exec; addresses outside of
    /// the known mappings do this on their own. True after a reading (none follows right after
    /// another).
    pub fn refresh(&mut self) -> io::Result<bool> {
        let read = self.processes.refresh(self.pid);
        // Another user may have caused the reading.
        self.take_mappings();
        read
    }

    /// Names the object at an address of the process. Never
    /// fails: [`Object::unknown`] states missing facts.
    pub fn resolve(&mut self, address: u64, at: &Place<'_>) -> Named {
        let mut region = self.region(address);
        if let Some(region) = region
            && let Some(module) = self.space.module(region, &self.processes, self.pid)
            && let Some(named) = self.in_module(module, address)
        {
            return named;
        }
        if let Some(named) = self.thread_local(address, at) {
            return named;
        }
        if let Some(named) = self.on_stack(address, at, region) {
            return named;
        }
        // A file may have been mapped over memory that was mapped before, or a block may lie where
        // a file was.
        let mut is_file = region.is_some_and(|region| self.space.is_file(region));
        if is_file && at.heap.is_some_and(|heap| heap.block(address).is_some()) {
            let is_read = self.refresh().is_ok_and(|is_read| is_read);
            region = self.space.find(address);
            is_file = is_read && region.is_some_and(|region| self.space.is_file(region));
        }
        if !is_file && let Some(named) = self.in_heap(address, at) {
            return named;
        }
        if let Some(region) = region
            && self.space.is_private_memory(region)
            && let Some(memory) = at.memory
            && let Some(named) =
                self.infer(address, at, region).or_else(|| self.by_size(address, memory, region))
        {
            return named;
        }
        let plain = region.and_then(|region| self.space.plain(region, address, &mut self.objects));
        match plain {
            Some((object, offset)) => Named { object, offset, field: None },
            None => self.nothing(address),
        }
    }

    /// An object by number, with the present name: a heap
    /// object may get a name after the first answers.
    pub fn object(&self, id: crate::ObjectId) -> Option<&Arc<Object>> {
        self.objects.get(id.0 as usize)
    }

    /// Path of the module that has the code or data at an address, as the process sees it.
    pub fn module_path(&mut self, address: u64) -> Option<&str> {
        let region = self.region(address)?;
        let module = self.space.module(region, &self.processes, self.pid)?;
        self.space.modules.get(module as usize).map(|module| &*module.path)
    }

    /// The field at an offset of an object of this type, or of a block of such elements when `repeated`.
    pub fn field(&mut self, ty: TypeId, repeated: bool, offset: u64) -> Option<Arc<Field>> {
        self.fields.at(&self.types, ty, repeated, offset)
    }

    /// Unreadable debug information of the modules needed so far, by path.
    pub fn debug_faults(&self) -> Vec<(Arc<str>, DebugFaults)> {
        let indexed = self.space.modules.iter().filter_map(|module| Some((module, module.debug()?)));
        indexed.map(|(module, debug)| (Arc::clone(&module.path), debug.faults)).collect()
    }

    fn take_mappings(&mut self) {
        let reading = self.processes.readings(self.pid);
        if reading != self.reading
            && let Some(mappings) = self.processes.mappings(self.pid)
        {
            self.reading = reading;
            self.space.update(&mappings);
            self.threads = Threads::default();
        }
    }

    fn region(&mut self, address: u64) -> Option<usize> {
        match self.space.find(address) {
            // Also if a second reading is impossible: another user may have caused one before the
            // process ended.
            None => _ = self.refresh(),
            Some(region) if self.space.may_be_loading(region) => self.take_mappings(),
            found => return found,
        }
        self.space.find(address)
    }

    fn in_module(&mut self, index: u32, address: u64) -> Option<Named> {
        let module = self.space.modules.get_mut(index as usize)?;
        let inside = address.wrapping_sub(module.bias);
        if !module.elf.holds(inside) {
            return None;
        }
        let (mut context, debug, statics) = module.context(index, &mut self.types, &mut self.objects);
        let statics = statics?;
        if let Some((object, offset)) = statics.find(inside, false, debug, &mut context) {
            let field = object.ty.and_then(|ty| self.fields.at(&self.types, ty, false, offset));
            return Some(Named { object, offset, field });
        }
        let (object, start) = statics.section(inside, &mut context);
        Some(Named { object, offset: inside.wrapping_sub(start), field: None })
    }

    fn in_heap(&mut self, address: u64, at: &Place<'_>) -> Option<Named> {
        let block = at.heap?.block(address)?;
        let offset = address.checked_sub(block.start).filter(|offset| *offset < block.bytes)?;
        let objects = &mut self.objects;
        let site = self.heap.entry(block.site).or_insert_with(|| {
            let (bytes, site) = (block.bytes, Some(block.site));
            let object = add(objects, Object { name: "[heap]".into(), bytes, site, ..blank(Kind::Heap) });
            Site { object, asked: 0, due: 1, skipped: 0 }
        });
        site.asked = site.asked.saturating_add(1);
        if site.object.bytes < block.bytes {
            site.object = replace(objects, Object { bytes: block.bytes, ..(*site.object).clone() });
        }
        // Ever more rarely: most sites without a name at first never get a name.
        if !site.object.inferred && at.memory.is_some() && site.asked >= site.due {
            site.due = site.asked.saturating_add(site.asked / 4).saturating_add(1);
            self.name_site(&block, at);
        }
        let site = self.heap.get(&block.site)?;
        let (object, skipped) = (Arc::clone(&site.object), site.skipped);
        let field = object.ty.and_then(|ty| {
            self.field_in_block(ty, block.bytes.checked_sub(skipped)?, offset.checked_sub(skipped)?)
        });
        Some(Named { object, offset, field })
    }

    /// Names the site's object by a pointer to a block of the site.
    fn name_site(&mut self, block: &HeapBlock, at: &Place<'_>) {
        let Some(lead) = self.name_block(block, at) else { return };
        let Some(site) = self.heap.get(&block.site) else { return };
        // A pointer into the block names it only when none to its start was found for long, and a
        // mapping never.
        if !lead.to_start && (block.mapped || site.asked < PATIENCE) {
            return;
        }
        if !at.heap.is_some_and(|heap| heap.stands(block)) {
            return;
        }
        let mut object = (*site.object).clone();
        self.describe_lead(lead, &mut object);
        let object = replace(&mut self.objects, object);
        if let Some(site) = self.heap.get_mut(&block.site) {
            site.object = object;
            site.skipped = lead.skipped;
        }
    }

    fn nothing(&mut self, address: u64) -> Named {
        let objects = &mut self.objects;
        let object = self.unmapped.get_or_insert_with(|| {
            let unknown = Some("nothing is mapped there, or not any more".into());
            add(objects, Object { name: "[unmapped]".into(), unknown, ..blank(Kind::Mapped) })
        });
        Named { object: Arc::clone(object), offset: address, field: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tracer resolves on another thread than it starts on.
    #[test]
    fn can_be_sent() {
        fn sent<T: Send>() {}
        sent::<Resolver>();
        sent::<Named>();
    }
}
