//! Reads the process's pointers: values, and the variables that contain the pointers.
//!
//! Roots are the writable static variables with debug information and the variables of the sample's
//! frames and registers; from there the reader follows pointers through blocks of known type, so
//! that `grid->cells` gets its name. One reading reads at most [`MAX_READ`] bytes, and readings
//! together take at most one part in [`READING_SHARE`] of the time; between two readings, new
//! blocks are not found.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use locality_symbols::StackFrame;

use crate::infer::{Known, Target, chunk_bytes};
use crate::module::{add, blank};
use crate::named::{Declared, Kind, Object, TypeId};
use crate::place::{HeapBlocks, Memory, Place};
use crate::pointers::{Pointer, pointers};
use crate::resolver::Resolver;
use crate::scope::Local;
use crate::stack::place;
use crate::type_reader::TypeReader;
use crate::types::TypeDie;

/// One part in this many of the time may go into reading pointers.
const READING_SHARE: u32 = 100;
const MIN_INTERVAL: Duration = Duration::from_millis(20);
/// Most pointers to follow in one reading.
const MAX_FOLLOWED: usize = 1 << 16;
/// Most bytes of one object, and of one reading.
const MAX_OBJECT: u64 = 1 << 20;
const MAX_READ: u64 = 64 << 20;
const MAX_WORDS: u64 = MAX_READ / 8;
/// Elements of an array that are followed.
const MAX_ELEMENTS: u64 = 4096;
/// Pointers on the way from a variable, without pointers to a node of the node's own type.
const MAX_HOPS: u8 = 3;

/// A place that holds pointers.
struct Root {
    address: u64,
    ty: TypeId,
    name: Arc<str>,
    declared: Option<Declared>,
    module: Option<Arc<str>>,
}

impl Resolver {
    /// Reads all pointers again, unless just done.
    pub(crate) fn read_pointers(&mut self, at: &Place<'_>) -> bool {
        let Some(memory) = at.memory else { return false };
        let started = Instant::now();
        if self.inferred.next_reading.is_some_and(|next| started < next) {
            return false;
        }
        let mut roots = self.static_roots();
        roots.extend(self.stack_roots(at.frames));
        let mut reading = Reading::default();
        for root in roots {
            self.follow_root(&root, memory, &mut reading);
        }
        self.follow_queue(memory, at.heap, &mut reading);
        // Last, the blocks at variables in registers: structures contain further pointers.
        self.read_held(at);
        for held in &self.held.pointers {
            if !held.is_array && reading.seen.insert(held.value) {
                reading.queue.push((held.value, held.target));
            }
        }
        self.follow_queue(memory, at.heap, &mut reading);
        let mut found = reading.found;
        found.sort_unstable();
        found.dedup_by_key(|(value, _)| *value);
        let known = |(value, target)| Known { value, target, chunk: None };
        self.inferred.known = found.into_iter().map(known).collect();
        let took = started.elapsed();
        self.inferred.read_at = Some(started);
        self.inferred.next_reading = Some(Instant::now() + (took * READING_SHARE).max(MIN_INTERVAL));
        true
    }

    fn follow_queue(&mut self, memory: &dyn Memory, heap: Option<&dyn HeapBlocks>, reading: &mut Reading) {
        while let Some((value, target)) = reading.queue.get(reading.next).copied() {
            reading.next += 1;
            self.follow_block(value, target, memory, heap, reading);
        }
    }

    /// The writable static variables of the program and of
    /// the libraries that an address has fallen in.
    fn static_roots(&mut self) -> Vec<Root> {
        let mut roots = Vec::new();
        let program = self.program();
        for index in 0..self.space.modules.len() {
            let Some(module) = self.space.modules.get_mut(index) else { break };
            if module.debug().is_none() && program.is_none_or(|program| program as usize != index) {
                continue;
            }
            let bias = module.bias;
            let Ok(number) = u32::try_from(index) else { break };
            let (mut context, debug, statics) = module.context(number, &mut self.types, &mut self.objects);
            let (Some(debug), Some(statics)) = (debug, statics) else { continue };
            for (address, object) in statics.typed(debug, &mut context) {
                let Some(ty) = object.ty else { continue };
                roots.push(Root {
                    address: address.wrapping_add(bias),
                    ty,
                    name: Arc::clone(&object.name),
                    declared: object.declared.clone(),
                    module: object.module.clone(),
                });
            }
        }
        roots
    }

    fn stack_roots(&mut self, frames: &[StackFrame]) -> Vec<Root> {
        let mut roots = Vec::new();
        // The outermost variable with a pointer is more
        // likely the owner than a parameter further in.
        for frame in frames.iter().rev() {
            let Some(scope) = self.scope(frame) else { continue };
            // Compilers name their own variables so.
            let own = |local: &&Local| !local.object.name.starts_with(['.', '?']);
            for local in scope.locals.iter().filter(|local| local.skipped == 0).filter(own) {
                if let (Some(address), Some(ty)) = (place(local, frame, None), local.object.ty)
                    && local.bytes >= self.types.bytes(ty).unwrap_or(u64::MAX)
                {
                    roots.push(Root {
                        address,
                        ty,
                        name: Arc::clone(&local.object.name),
                        declared: local.object.declared.clone(),
                        module: local.object.module.clone(),
                    });
                }
            }
        }
        roots
    }

    fn follow_root(&mut self, root: &Root, memory: &dyn Memory, reading: &mut Reading) {
        let pointers = self.pointers_of(root.ty);
        // Descriptors (Fortran's arrays) have no size of their own.
        let reach = pointers.iter().map(|pointer| pointer.offset.saturating_add(8)).max().unwrap_or(0);
        let bytes = self.types.bytes(root.ty).unwrap_or(0).max(reach);
        if pointers.is_empty() || !reading.read(root.address, bytes, memory) {
            return;
        }
        for pointer in pointers.iter() {
            let name: Arc<str> = format!("{}{}", root.name, pointer.path).into();
            let target = self.target(&name, &name, pointer, 0, (root.declared.clone(), root.module.clone()));
            reading.take(0, pointer, target);
        }
    }

    /// Follows the pointers in the elements of a block.
    fn follow_block(
        &mut self,
        start: u64,
        target: u32,
        memory: &dyn Memory,
        heap: Option<&dyn HeapBlocks>,
        reading: &mut Reading,
    ) {
        let Some(from) = self.inferred.targets.get(target as usize) else { return };
        let Some(ty) = from.ty else { return };
        let (name, root, hops) = (Arc::clone(&from.object.name), Arc::clone(&from.root), from.hops);
        let closed = from.closed;
        let about = (from.declared.clone(), from.module.clone());
        let inside = self.pointers_of(ty);
        let Some(one) = self.types.bytes(ty).filter(|&one| one > 0 && !inside.is_empty()) else { return };
        let bytes = heap.and_then(|heap| heap.block(start)).filter(|block| block.start == start);
        let bytes = bytes.map(|block| block.bytes).or_else(|| {
            let region = self.space.find(start)?;
            chunk_bytes(start, self.space.region(region)?.mapping.end, memory)
        });
        let elements = (bytes.unwrap_or(one) / one).clamp(1, MAX_ELEMENTS);
        if !reading.read(start, elements.saturating_mul(one), memory) {
            return;
        }
        for pointer in inside.iter() {
            let pointee = self.pointee(pointer);
            // The nodes of a container are called as it is.
            let node = closed && pointee.is_some_and(|ty| self.is_node(ty));
            let same = pointee == Some(ty) || node;
            if !same && hops + 1 >= MAX_HOPS {
                continue;
            }
            let arrow = if elements > 1 { "[]." } else { "->" };
            let path = pointer.path.trim_start_matches('.');
            // A chain of nodes is `list->next` however long it is.
            let base = if same { &root } else { &name };
            let named: Arc<str> = match path {
                _ if node => Arc::clone(&root),
                "" => format!("*{base}").into(),
                path if path.starts_with('[') => format!("{base}{path}").into(),
                path => format!("{base}{arrow}{path}").into(),
            };
            let root = if same { Arc::clone(&root) } else { Arc::clone(&named) };
            let pointer = &Pointer { closed: pointer.closed || node, ..pointer.clone() };
            let target = self.target(&named, &root, pointer, hops + u8::from(!same), about.clone());
            for element in 0..elements {
                reading.take(element * one, pointer, target);
            }
        }
    }

    /// True for the common beginning of the nodes of libstdc++'s containers: the elements follow it untyped.
    fn is_node(&self, ty: TypeId) -> bool {
        self.types.get(self.types.strip(ty)).is_some_and(|ty| ty.name.ends_with("_node_base"))
    }

    pub(crate) fn pointers_of(&mut self, ty: TypeId) -> Arc<[Pointer]> {
        let types = &self.types;
        Arc::clone(self.inferred.of_types.entry(ty).or_insert_with(|| pointers(types, ty).into()))
    }

    /// The type that a pointer points to.
    pub(crate) fn pointee(&mut self, pointer: &Pointer) -> Option<TypeId> {
        self.pointed_type(pointer.to)
    }

    /// The type at an entry.
    pub(crate) fn pointed_type(&mut self, to: TypeDie) -> Option<TypeId> {
        if let Some(known) = self.types.known(to) {
            return Some(known);
        }
        let module = self.space.modules.get(to.0 as usize)?;
        let session = module.debug()?.session(&module.file);
        TypeReader::new(&session, &mut self.types, to.0).read(to.1)
    }

    fn target(
        &mut self,
        name: &Arc<str>,
        root: &Arc<str>,
        pointer: &Pointer,
        hops: u8,
        about: (Option<Declared>, Option<Arc<str>>),
    ) -> u32 {
        let ty = self.pointee(pointer);
        self.target_of(name, root, ty, pointer.closed, hops, about)
    }

    /// The object of the given name and element type.
    pub(crate) fn target_of(
        &mut self,
        name: &Arc<str>,
        root: &Arc<str>,
        ty: Option<TypeId>,
        closed: bool,
        hops: u8,
        (declared, module): (Option<Declared>, Option<Arc<str>>),
    ) -> u32 {
        let ty = ty.filter(|ty| self.types.bytes(*ty).is_some_and(|bytes| bytes > 0));
        let whole = ty.filter(|ty| !self.is_node(*ty));
        let key = (Arc::clone(name), ty);
        if let Some(known) = self.inferred.by_name.get(&key) {
            return *known;
        }
        let object = add(
            &mut self.objects,
            Object {
                name: Arc::clone(name),
                type_name: whole.and_then(|ty| self.types.get(ty)).map(|ty| Arc::clone(&ty.name)),
                ty: whole,
                declared: declared.clone(),
                module: module.clone(),
                inferred: true,
                ..blank(Kind::Heap)
            },
        );
        let number = u32::try_from(self.inferred.targets.len()).unwrap_or(u32::MAX);
        self.inferred.targets.push(Target {
            object,
            mapping: None,
            ty,
            closed,
            root: Arc::clone(root),
            declared,
            module,
            hops,
        });
        self.inferred.by_name.insert(key, number);
        number
    }
}

/// One reading.
#[derive(Default)]
struct Reading {
    found: Vec<(u64, u32)>,
    /// Blocks to be followed.
    queue: Vec<(u64, u32)>,
    /// The next reading.
    next: usize,
    seen: HashSet<u64>,
    /// What was read last.
    bytes: Vec<u8>,
    /// Bytes read, and words looked at, in all.
    read: u64,
    words: u64,
}

impl Reading {
    /// Reads an object, or the object's beginning. False
    /// for unreadable memory, or at the limit of bytes.
    fn read(&mut self, address: u64, bytes: u64, memory: &dyn Memory) -> bool {
        let bytes = bytes.min(MAX_OBJECT);
        if bytes < 8 || self.read >= MAX_READ || self.found.len() >= MAX_FOLLOWED {
            return false;
        }
        self.read += bytes;
        self.bytes.resize(usize::try_from(bytes).unwrap_or(0), 0);
        memory.read(address, &mut self.bytes)
    }

    /// Takes a pointer, or an array of pointers, from an element of the last read object.
    fn take(&mut self, element: u64, pointer: &Pointer, target: u32) {
        for index in 0..pointer.count.min(MAX_ELEMENTS) {
            self.words += 1;
            if self.words > MAX_WORDS {
                return;
            }
            let at = index.checked_mul(pointer.stride).and_then(|at| at.checked_add(pointer.offset));
            let at = at.and_then(|at| usize::try_from(at.checked_add(element)?).ok());
            let Some(word) = at.and_then(|at| self.bytes.get(at..)?.first_chunk::<8>()) else { return };
            let value = u64::from_le_bytes(*word);
            if value >= 4096 && self.found.len() < MAX_FOLLOWED && self.seen.insert(value) {
                self.found.push((value, target));
                self.queue.push((value, target));
            }
        }
    }
}
