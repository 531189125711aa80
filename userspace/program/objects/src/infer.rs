//! Names for heap blocks without a record: the pointer variables that lead to the blocks.
//!
//! [`crate::reading`] reads the existing pointers; its values may be newer than the sample, and a
//! pointer may be a leftover of a freed block: every name from here is marked as inferred. A
//! recorded block is named only by readings from its lifetime.
//!
//! A block's bounds come from the allocation record, or from glibc's own bookkeeping before the
//! block (glibc 2.36, malloc/malloc.c, `struct malloc_chunk`: size and flags in the word before the
//! block), which is checked against the next chunk; otherwise only the first element counts, or,
//! for a pointer to the start of an anonymous mapping, the mapping.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::chunks::Bounds;
use crate::module::{add, replace};
use crate::named::{Declared, Kind, Named, Object, TypeId};
use crate::place::{HeapBlock, Memory, Place};
use crate::pointers::Pointer;
use crate::resolver::Resolver;

/// Readings are believed for this long after a newer reading was possible.
const MAX_AGE: Duration = Duration::from_secs(1);
/// The longest pause after readings in vain, and how often it doubles at most.
const MOST_PAUSE: Duration = Duration::from_secs(5);
const MOST_DOUBLINGS: u32 = 8;
/// Pointers after one to search for the next mapping.
const MAX_NEIGHBOURS: usize = 4096;
/// Where mappings begin.
const PAGE: u64 = 4096;
/// Bytes that `new T[n]` puts before elements that have a destructor (Itanium C++ ABI, §2.7).
const COOKIE: u64 = 8;
/// Bytes from a block's start at which a pointer still leads to the block as a whole: an
/// allocator's header, or padding for alignment to a page.
const HEADER: u64 = 64;
const ALIGNED: u64 = 4096;
/// Known pointers below an address that may lead to the address's block.
const LOOK_BACK: usize = 8;

/// Targets of pointers with one name.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) object: Arc<Object>,
    /// The object for a mapping without an allocator's part.
    pub(crate) mapping: Option<Arc<Object>>,
    /// The pointer's type, to follow its pointers. The object has no type if the pointer's type is
    /// only the beginning of a container's node.
    pub(crate) ty: Option<TypeId>,
    /// A container's own.
    pub(crate) closed: bool,
    /// The name without the last step through nodes of one type.
    pub(crate) root: Arc<str>,
    pub(crate) declared: Option<Declared>,
    pub(crate) module: Option<Arc<str>>,
    pub(crate) hops: u8,
}

/// A value of pointers, and its target.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub(crate) value: u64,
    pub(crate) target: u32,
    /// Usable bytes of the glibc block there, asked once in a reading.
    pub(crate) chunk: Option<Option<u64>>,
}

/// A pointer to a recorded block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lead {
    target: u32,
    /// Bytes of the block before the place that the pointer leads to.
    pub(crate) skipped: u64,
    /// It leads to the first element.
    pub(crate) to_start: bool,
}

/// A block without a record.
struct Block {
    start: u64,
    bytes: u64,
    target: u32,
    /// The block is a whole mapping.
    is_mapping: bool,
    /// The block is all memory handed out by an allocator, from the pointer's target on.
    is_whole: bool,
}

/// What is known of pointers.
#[derive(Debug, Default)]
pub(crate) struct Inferred {
    /// By value.
    pub(crate) known: Vec<Known>,
    pub(crate) targets: Vec<Target>,
    pub(crate) by_name: HashMap<(Arc<str>, Option<TypeId>), u32>,
    /// When the last reading began.
    pub(crate) read_at: Option<Instant>,
    pub(crate) next_reading: Option<Instant>,
    /// Consecutive readings without a name for the requested place.
    in_vain: u32,
    pub(crate) of_types: HashMap<TypeId, Arc<[Pointer]>>,
    pub(crate) glibc: Option<bool>,
    /// Pointers to blocks that live as long as their mapping, by start and bytes. The last field
    /// marks a variable in a register.
    standing: HashMap<(u64, u64), (u64, u32, bool)>,
}

impl Inferred {
    /// Says whether the last reading named the place that was asked for. Memory that no pointer of a
    /// known type leads to is asked for again and again, so each reading in vain doubles the pause.
    fn judge_reading(&mut self, has_named: bool) {
        self.in_vain = if has_named { 0 } else { (self.in_vain + 1).min(MOST_DOUBLINGS) };
        if let Some(next) = &mut self.next_reading {
            let pause = next.saturating_duration_since(Instant::now());
            *next += (pause * ((1 << self.in_vain) - 1)).min(MOST_PAUSE.saturating_sub(pause));
        }
    }
}

impl Resolver {
    /// The pointer to a recorded block, and the elements' distance from the block's start.
    pub(crate) fn name_block(&mut self, block: &HeapBlock, at: &Place<'_>) -> Option<Lead> {
        let lead = |this: &Self, value: u64, target: u32| {
            let skipped = value.checked_sub(block.start)?;
            let to_start = skipped == 0 || skipped == COOKIE && this.has_cookie(block, target, at.memory);
            (skipped < block.bytes.max(1)).then_some(Lead { target, skipped, to_start })
        };
        let find = |this: &Self| {
            let known = &this.inferred.known;
            let first = known.partition_point(|known| known.value < block.start);
            let Known { value, target, .. } = *known.get(first)?;
            lead(this, value, target)
        };
        let stood = |moment| at.heap.is_some_and(|heap| heap.stood_at(block, moment));
        let mut found = find(self).filter(|_| self.inferred.read_at.is_some_and(stood));
        if !found.is_some_and(|lead| lead.to_start) && stood(Instant::now()) && self.read_pointers(at) {
            let newly = find(self).filter(|_| self.inferred.read_at.is_some_and(stood));
            self.inferred.judge_reading(newly.is_some_and(|lead| lead.to_start));
            found = newly.or(found);
        }
        // Registers name blocks without a pointer in memory.
        if !found.is_some_and(|lead| lead.to_start) && self.inferred.read_at.is_some_and(stood) {
            self.read_held(at);
            let held = self.held.pointers.iter().filter(|held| held.least <= block.bytes);
            let mut held = held.filter_map(|held| lead(self, held.value, held.target));
            found = held.find(|lead| lead.to_start).or(found);
        }
        found
    }

    /// True when the block's first word is the number of elements that fill the rest.
    fn has_cookie(&self, block: &HeapBlock, target: u32, memory: Option<&dyn Memory>) -> bool {
        let target = self.inferred.targets.get(target as usize);
        let one = target.and_then(|target| self.types.bytes(target.ty?)).unwrap_or(0);
        let count = memory.and_then(|memory| memory.word(block.start)).unwrap_or(0);
        let filled = count.checked_mul(one).and_then(|elements| elements.checked_add(COOKIE));
        // Allocators round up.
        let slack = filled.and_then(|filled| block.bytes.checked_sub(filled));
        one > 0 && count > 0 && slack.is_some_and(|slack| slack < 32)
    }

    /// Names a place in a block that was never recorded.
    pub(crate) fn infer(&mut self, address: u64, at: &Place<'_>, region: usize) -> Option<Named> {
        let memory = at.memory?;
        let mut found = self.block_around(address, memory, region);
        let reread = match &found {
            Some(_) => self.inferred.next_reading.is_some_and(|next| next.elapsed() > MAX_AGE),
            None => true,
        };
        if reread && self.read_pointers(at) {
            found = self.block_around(address, memory, region);
            self.inferred.judge_reading(found.is_some());
        }
        if found.is_none() && self.inferred.read_at.is_some() {
            self.read_held(at);
            found = self.held_around(address, memory, region);
        }
        let Block { start, bytes, target, is_mapping, is_whole } = found?;
        let target = self.inferred.targets.get_mut(target as usize)?;
        let objects = &mut self.objects;
        if !is_mapping && is_whole && target.object.bytes < bytes {
            target.object = replace(objects, Object { bytes, ..(*target.object).clone() });
        }
        let object = match is_mapping {
            false => &target.object,
            true => target.mapping.get_or_insert_with(|| {
                add(objects, Object { kind: Kind::Mapped, bytes, ..(*target.object).clone() })
            }),
        };
        let (object, ty) = (Arc::clone(object), object.ty);
        let offset = address.checked_sub(start)?;
        let field = ty.and_then(|ty| self.field_in_block(ty, bytes, offset));
        Some(Named { object, offset, field })
    }

    /// The field at an offset of a block of elements of one type.
    pub(crate) fn field_in_block(
        &mut self,
        ty: TypeId,
        bytes: u64,
        offset: u64,
    ) -> Option<Arc<crate::Field>> {
        let one = self.types.bytes(ty).filter(|&one| one > 0)?;
        let repeated = bytes / one >= 2 && !self.types.is_flexible(ty);
        self.fields.at(&self.types, ty, repeated, offset)
    }

    /// Name, type, declaration and module that pointers give a block.
    pub(crate) fn describe_lead(&self, lead: Lead, object: &mut Object) {
        let Some(target) = self.inferred.targets.get(lead.target as usize) else { return };
        object.name = Arc::clone(&target.object.name);
        // Where elements begin is only known from a pointer to the first.
        if lead.to_start {
            object.type_name = target.object.type_name.clone();
            object.ty = target.object.ty;
        }
        object.declared = target.declared.clone();
        object.module = target.module.clone();
        object.inferred = true;
    }

    /// The block around an address that a pointer in memory leads to: by the allocator's bounds, else
    /// by the nearest pointer below.
    fn block_around(&mut self, address: u64, memory: &dyn Memory, region: usize) -> Option<Block> {
        let bounds = self.bounds(address, memory, region);
        if let Some(block) = bounds.and_then(|bounds| self.lead_to(bounds, address)) {
            return Some(block);
        }
        self.block_below(address, memory, region).filter(|block| is_inside(block, bounds))
    }

    /// The same by variables in registers.
    fn held_around(&mut self, address: u64, memory: &dyn Memory, region: usize) -> Option<Block> {
        let bounds = self.bounds(address, memory, region);
        match bounds {
            // A place in the middle of a block is no name for the following bytes.
            Some(bounds) => self.held_lead(bounds, address),
            None => self.held_below(address, region),
        }
    }

    /// The pointer to a block of an allocator.
    fn lead_to(&mut self, bounds: Bounds, address: u64) -> Option<Block> {
        let known = &self.inferred.known;
        let first = known.partition_point(|known| known.value < bounds.start);
        let known = known.get(first).copied().filter(|known| bounds.is_led_to(known.value, address));
        let mut lead = known.map(|known| (known.value, known.target));
        if bounds.mapped {
            let before = self.inferred.standing.get(&(bounds.start, bounds.bytes)).copied();
            lead = match (lead, before) {
                // A name from registers goes when memory has one.
                (Some(new), Some(old)) => {
                    Some(if new.0 < old.0 || old.2 { (new.0, new.1) } else { (old.0, old.1) })
                }
                (new, old) => new.or(old.map(|old| (old.0, old.1))),
            };
            let by_held = known.is_none() && before.is_some_and(|before| before.2);
            self.stands(bounds, lead.map(|lead| (lead.0, lead.1, by_held)));
        }
        // An earlier found target may begin after this address, inside a header.
        lead.filter(|(value, _)| *value <= address).map(|(value, target)| bounds.block(value, target))
    }

    /// The block at a pointer from a variable in a register.
    fn held_lead(&mut self, bounds: Bounds, address: u64) -> Option<Block> {
        let Bounds { start, bytes, mapped } = bounds;
        let end = start.checked_add(bytes)?;
        let held = || self.held.pointers.iter();
        let whole = held().filter(|held| held.least <= bytes && bounds.is_led_to(held.value, address));
        // Of several at one place the outermost variable.
        let whole = whole.min_by_key(|held| held.value).map(|held| (held.value, held.target));
        if let Some((value, target)) = whole {
            if mapped {
                self.stands(bounds, Some((value, target, true)));
            }
            return Some(bounds.block(value, target));
        }
        // Parts of a block without a name for the whole are passed as arrays.
        let arrays = || held().filter(|held| held.is_array && (start..end).contains(&held.value));
        let part = arrays().filter(|held| held.value <= address).max_by_key(|held| held.value)?;
        let next = arrays().map(|held| held.value).filter(|other| *other > address).min().unwrap_or(end);
        let (start, target) = (part.value, part.target);
        Some(Block { start, bytes: next - start, target, is_mapping: false, is_whole: false })
    }

    /// Remembers the pointers to a block with a separate mapping, and names the block.
    fn stands(&mut self, bounds: Bounds, lead: Option<(u64, u32, bool)>) {
        let Some(lead) = lead else { return };
        let before = self.inferred.standing.insert((bounds.start, bounds.bytes), lead);
        if before != Some(lead) {
            self.rename_block(bounds.start, bounds.bytes, lead.1);
        }
    }

    /// Renames earlier reports of a block once a pointer leads to it.
    fn rename_block(&mut self, start: u64, bytes: u64, target: u32) {
        let Some(target) = self.inferred.targets.get(target as usize) else { return };
        let before = self.chunks.of_mapped(start, bytes);
        let votes = before.as_ref().and_then(|before| self.revealed.of_nameless(before.id));
        for old in before.into_iter().chain(votes) {
            let bytes = target.object.bytes.max(bytes);
            replace(&mut self.objects, Object { id: old.id, bytes, ..(*target.object).clone() });
        }
    }

    /// The nearest variable of the stop below an address of memory without bounds: an array lies
    /// there, or the program's own mapping begins there.
    fn held_below(&mut self, address: u64, region: usize) -> Option<Block> {
        let glibc = self.is_glibc();
        let mapping = &self.space.region(region)?.mapping;
        let (first, end) = (mapping.start, mapping.end);
        let nameless = mapping.path.is_empty() && glibc;
        let inside = || self.held.pointers.iter().filter(|held| (first..end).contains(&held.value));
        let held = *inside().filter(|held| held.value <= address).min_by_key(|held| address - held.value)?;
        let ty = self.inferred.targets.get(held.target as usize).and_then(|target| target.ty);
        let one = ty.and_then(|ty| self.types.bytes(ty)).unwrap_or(0);
        let is_mapping = nameless && held.value.is_multiple_of(PAGE);
        // Of a single structure a pointer is no name.
        if held.least > 1 && !is_mapping {
            return None;
        }
        let next = inside().map(|held| held.value).filter(|other| *other > address).min().unwrap_or(end);
        let bytes = if is_mapping || held.is_array { next - held.value } else { one };
        let (start, target) = (held.value, held.target);
        (address - start < bytes).then_some(Block { start, bytes, target, is_mapping, is_whole: false })
    }

    fn block_below(&mut self, address: u64, memory: &dyn Memory, region: usize) -> Option<Block> {
        let glibc = self.is_glibc();
        let region = self.space.region(region)?;
        let (first, end) = (region.mapping.start, region.mapping.end);
        let nameless = region.mapping.path.is_empty();
        let behind = self.inferred.known.partition_point(|known| known.value <= address);
        for at in (behind.saturating_sub(LOOK_BACK)..behind).rev() {
            let known = *self.inferred.known.get(at)?;
            let Known { value: start, target, .. } = known;
            if start < first {
                return None;
            }
            let chunk = match known.chunk {
                Some(asked) => asked,
                None => {
                    let asked = if glibc { self.chunk_at(start, end, target, memory) } else { None };
                    if let Some(known) = self.inferred.known.get_mut(at) {
                        known.chunk = Some(asked);
                    }
                    asked
                }
            };
            let target_is = self.inferred.targets.get(target as usize);
            // The kernel shows neighbours as one mapping; a variable shows the start of one.
            let begins =
                start - first < PAGE || glibc && start.is_multiple_of(PAGE) && self.is_variable(target);
            let is_mapping = chunk.is_none() && begins && nameless;
            let ty = target_is.and_then(|target| target.ty);
            let one = || ty.and_then(|ty| self.types.bytes(ty));
            let bytes = chunk
                .or_else(|| if is_mapping { Some(self.next_mapping(start, end) - start) } else { one() });
            if let Some(bytes) = bytes.filter(|bytes| address - start < *bytes) {
                return Some(Block { start, bytes, target, is_mapping, is_whole: chunk.is_some() });
            }
        }
        None
    }

    /// Whether the process allocates by glibc, with large blocks and mappings at
    /// separate pages; allocators except glibc's divide mappings into blocks.
    fn is_glibc(&mut self) -> bool {
        let maps = |name| self.space.maps_file_named(name);
        let others = ["libjemalloc", "libtcmalloc", "libmimalloc"];
        let found = || maps("libc.so") && !others.iter().any(|other| maps(other));
        *self.inferred.glibc.get_or_insert_with(found)
    }

    /// Whether a variable leads there directly, not a pointer in another block.
    fn is_variable(&self, target: u32) -> bool {
        let target = self.inferred.targets.get(target as usize);
        target.is_some_and(|target| target.hops == 0 && !target.object.name.contains(['[', '*']))
    }

    /// Start of the next mapping after `start` with a
    /// variable that points to the mapping, at most `end`.
    fn next_mapping(&self, start: u64, end: u64) -> u64 {
        let behind = self.inferred.known.partition_point(|known| known.value <= start);
        let next = self.inferred.known.get(behind..).unwrap_or_default().iter().take(MAX_NEIGHBOURS);
        let mut next = next.take_while(|known| known.value < end);
        let next = next.find(|known| known.value.is_multiple_of(PAGE) && self.is_variable(known.target));
        next.map_or(end, |known| known.value)
    }

    /// Usable bytes from a place on that is the start of a glibc block, or of the elements after
    /// their number.
    fn chunk_at(&self, start: u64, end: u64, target: u32, memory: &dyn Memory) -> Option<u64> {
        if start.is_multiple_of(16) {
            return chunk_bytes(start, end, memory);
        }
        let block = start.checked_sub(COOKIE)?;
        let bytes = chunk_bytes(block, end, memory)?;
        let block = HeapBlock { start: block, bytes, site: 0, mapped: false, since_ns: 0 };
        self.has_cookie(&block, target, Some(memory)).then(|| bytes - COOKIE)
    }
}

impl Bounds {
    /// Whether a value leads to the block as a whole, and not after an address in it.
    fn is_led_to(self, value: u64, address: u64) -> bool {
        let Some(skipped) = value.checked_sub(self.start) else { return false };
        let aligned = value.is_multiple_of(64) && skipped <= ALIGNED;
        value <= address && skipped < self.bytes && (skipped <= HEADER || aligned)
    }

    /// From where a pointer leads on.
    fn block(self, value: u64, target: u32) -> Block {
        let bytes = self.start.saturating_add(self.bytes).saturating_sub(value);
        Block { start: value, bytes, target, is_mapping: false, is_whole: true }
    }
}

/// Whether a block found by a pointer can be a part of the allocator's block: a pointer to another
/// block proves nothing about this block.
fn is_inside(block: &Block, bounds: Option<Bounds>) -> bool {
    bounds.is_none_or(|bounds| block.start >= bounds.start && !block.is_mapping)
}

/// Usable bytes of the glibc block at an address, if the words around it show a block in use.
pub(crate) fn chunk_bytes(block: u64, mapping_end: u64, memory: &dyn Memory) -> Option<u64> {
    const PREVIOUS_IN_USE: u64 = 1;
    const MAPPED: u64 = 2;
    if !block.is_multiple_of(16) {
        return None;
    }
    let chunk = block.checked_sub(16)?;
    let word = memory.word(chunk + 8)?;
    let bytes = word & !7;
    let end = chunk.checked_add(bytes).filter(|&end| end <= mapping_end)?;
    if word & MAPPED != 0 {
        // Padding for alignment lies before it (`_int_memalign`).
        let before = memory.word(chunk).filter(|before| *before <= chunk)?;
        let pages = ((chunk - before) | before.checked_add(bytes)?).is_multiple_of(4096);
        return (pages && bytes >= 4096).then(|| bytes - 16);
    }
    if bytes < 32 || !bytes.is_multiple_of(16) {
        return None;
    }
    let next = memory.word(end.checked_add(8)?)?;
    (next & PREVIOUS_IN_USE != 0 && next & !7 >= 16).then(|| bytes - 8)
}
