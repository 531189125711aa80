//! The address space of the process, mapping by mapping: those of loaded modules, and the kind of
//! the rest.
//!
//! A mapping belongs to a module if its address relative to the module's code is the loader's; the
//! same file mapped by the program itself as data is a file. Zero-filled memory after a module's
//! last file page has no name in the maps; it belongs to the module up to its segment's end.
//!
//! Limit: an address outside the snapshot causes a new snapshot; the replacement of a mapping in
//! place does not. [`crate::Resolver::refresh`] takes a new one, and an address in a file outside
//! all modules uses snapshots taken by others.

use std::sync::Arc;

use locality_symbols::{Mapping, Mappings, Processes, Unknown};

use crate::elf::DataElf;
use crate::module::{Module, add, blank};
use crate::named::{Kind, Object};

/// Mappings before an anonymous one that may share its zero-filled segment.
const MAX_CHAIN: usize = 8;
/// Mappings beside a mapping to search for the module's code.
const MAX_NEAR: usize = 32;

/// What a mapping is.
#[derive(Debug, Clone)]
pub(crate) enum Slot {
    Unseen,
    /// Of the module with this index; where the module's segments do not reach, anonymous.
    Module(u32),
    /// No module.
    Plain,
}

#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) mapping: Mapping,
    pub(crate) slot: Slot,
    pub(crate) object: Option<Arc<Object>>,
    trouble: Option<Unknown>,
}

/// The snapshot, and the modules found so far.
#[derive(Debug, Default)]
pub(crate) struct Space {
    regions: Vec<Region>,
    last: usize,
    pub(crate) modules: Vec<Module>,
}

impl Space {
    /// Takes over new mappings; unchanged ones retain their facts.
    pub(crate) fn update(&mut self, mappings: &Mappings) {
        let mut old = std::mem::take(&mut self.regions).into_iter().peekable();
        for mapping in mappings.iter() {
            while old.next_if(|region| region.mapping.start < mapping.start).is_some() {}
            let kept = old.next_if(|region| region.mapping == *mapping);
            self.regions.push(kept.unwrap_or_else(|| Region {
                mapping: mapping.clone(),
                slot: Slot::Unseen,
                object: None,
                trouble: None,
            }));
        }
        self.last = 0;
    }

    /// Index of the mapping around an address.
    pub(crate) fn find(&mut self, address: u64) -> Option<usize> {
        if self.regions.get(self.last).is_some_and(|region| region.mapping.contains(address)) {
            return Some(self.last);
        }
        let index = self.peek(address)?;
        self.last = index;
        Some(index)
    }

    /// [`Self::find`] for an address without meaning for the next.
    pub(crate) fn peek(&self, address: u64) -> Option<usize> {
        let behind = self.regions.partition_point(|region| region.mapping.start <= address);
        let index = behind.checked_sub(1)?;
        self.regions.get(index)?.mapping.contains(address).then_some(index)
    }

    pub(crate) fn region(&self, index: usize) -> Option<&Region> {
        self.regions.get(index)
    }

    /// The first mapping of a file.
    pub(crate) fn first_of_inode(&self, inode: u64) -> Option<usize> {
        self.regions.iter().position(|region| region.mapping.inode == inode)
    }

    /// True when a file with this beginning of its name is mapped.
    pub(crate) fn maps_file_named(&self, prefix: &str) -> bool {
        let name = |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with(prefix));
        self.regions.iter().any(|region| region.mapping.inode != 0 && name(&region.mapping.path))
    }

    /// The module of a mapping, and none for what is no module's.
    pub(crate) fn module(&mut self, index: usize, processes: &Processes, pid: u32) -> Option<u32> {
        if let Slot::Unseen = self.regions.get(index)?.slot {
            let slot = match self.regions.get(index)?.mapping.inode {
                0 => self.zero_filled(index, processes, pid),
                _ => self.of_file(index, processes, pid),
            };
            self.regions.get_mut(index)?.slot = slot;
        }
        match self.regions.get(index)?.slot {
            Slot::Module(module) => Some(module),
            _ => None,
        }
    }

    fn zero_filled(&mut self, index: usize, processes: &Processes, pid: u32) -> Slot {
        let mut first = index;
        for _ in 0..MAX_CHAIN {
            let adjacent = first.checked_sub(1).filter(|&before| {
                match (self.regions.get(before), self.regions.get(first)) {
                    (Some(before), Some(here)) => before.mapping.end == here.mapping.start,
                    _ => false,
                }
            });
            let Some(before) = adjacent else { break };
            first = before;
            if self.regions.get(first).is_some_and(|region| region.mapping.inode != 0) {
                break;
            }
        }
        let start = self.regions.get(index).map_or(0, |region| region.mapping.start);
        if first != index
            && self.regions.get(first).is_some_and(|region| region.mapping.inode != 0)
            && let Some(module) = self.module(first, processes, pid)
            && let Some(found) = self.modules.get(module as usize)
            && found.elf.holds(start.wrapping_sub(found.bias))
        {
            return Slot::Module(module);
        }
        Slot::Plain
    }

    fn of_file(&mut self, index: usize, processes: &Processes, pid: u32) -> Slot {
        let Some(region) = self.regions.get(index) else { return Slot::Plain };
        let mapping = region.mapping.clone();
        let key = (mapping.device, mapping.inode);
        let fits =
            |elf: &DataElf, bias: u64| elf.is_loaded_at(mapping.offset, mapping.start.wrapping_sub(bias));
        let known = self.modules.iter().position(|m| m.key == key && fits(&m.elf, m.bias));
        if let Some(known) = known {
            return Slot::Module(u32::try_from(known).unwrap_or(u32::MAX));
        }
        let file = match processes.open_module(pid, &mapping) {
            Ok(file) => file,
            Err(reason) => {
                if let Some(region) = self.regions.get_mut(index) {
                    region.trouble = (reason != Unknown::NotElf).then_some(reason);
                }
                return Slot::Plain;
            }
        };
        let Some(elf) = DataElf::parse(&file) else { return Slot::Plain };
        let near = self.regions.iter().enumerate().filter(|(other, region)| {
            other.abs_diff(index) <= MAX_NEAR && (region.mapping.device, region.mapping.inode) == key
        });
        // A file without code is a module if its mappings lie as a loader would place them, header
        // first.
        let mut bases: Vec<(usize, u64)> = near
            .filter(|(_, region)| region.mapping.executable || !elf.has_code() && region.mapping.offset == 0)
            .filter_map(|(other, region)| {
                let address = elf.address_of_mapping(region.mapping.offset, region.mapping.executable)?;
                Some((other.abs_diff(index), region.mapping.start.wrapping_sub(address)))
            })
            .collect();
        bases.sort_unstable();
        match bases.iter().find(|(_, bias)| fits(&elf, *bias)) {
            Some((_, bias)) => {
                self.modules.push(Module::new(file, elf, *bias, key));
                Slot::Module(u32::try_from(self.modules.len() - 1).unwrap_or(u32::MAX))
            }
            None => Slot::Plain,
        }
    }

    /// True for memory that an allocator may have taken: writable, without a file, no stack.
    pub(crate) fn is_private_memory(&self, index: usize) -> bool {
        self.regions.get(index).is_some_and(|region| {
            let mapping = &region.mapping;
            let named = mapping.path.starts_with('[');
            let heap = &*mapping.path == "[heap]" || mapping.path.starts_with("[anon:");
            mapping.inode == 0 && mapping.writable && (!named || heap)
        })
    }

    /// True for a mapping of a file without a known module: it may be a library's first mapping of
    /// the whole file, before the segments.
    pub(crate) fn may_be_loading(&self, index: usize) -> bool {
        let region = self.regions.get(index);
        region.is_some_and(|region| region.mapping.inode != 0 && !matches!(region.slot, Slot::Module(_)))
    }

    /// True for a mapping of a file that somebody reads.
    pub(crate) fn is_file(&self, index: usize) -> bool {
        self.regions.get(index).is_some_and(|region| is_file(&region.mapping))
    }

    /// The mapping as an object, and the offset of an address in the mapping.
    pub(crate) fn plain(
        &mut self,
        index: usize,
        address: u64,
        objects: &mut Vec<Arc<Object>>,
    ) -> Option<(Arc<Object>, u64)> {
        let region = self.regions.get(index)?;
        let mapping = &region.mapping;
        let is_file = is_file(mapping);
        let file_offset = if mapping.inode != 0 { mapping.offset } else { 0 };
        let offset = address.wrapping_sub(mapping.start).wrapping_add(file_offset);
        if let Some(object) = &region.object {
            return Some((Arc::clone(object), offset));
        }
        // All mappings of a file are one object.
        let same_file = self.regions.iter().filter(|other| {
            mapping.inode != 0
                && (other.mapping.device, other.mapping.inode) == (mapping.device, mapping.inode)
                && other.object.is_some()
        });
        let mut object = same_file.filter_map(|other| other.object.clone()).next();
        if object.is_none() {
            let mut new = blank(if is_file { Kind::File } else { Kind::Mapped });
            let path = mapping.path.strip_suffix(" (deleted)").unwrap_or(&mapping.path);
            new.bytes = mapping.end - mapping.start;
            if is_file {
                // The part of the file that is mapped somewhere.
                let same = self.regions.iter().map(|region| &region.mapping);
                let same = same.filter(|o| (o.device, o.inode) == (mapping.device, mapping.inode));
                new.bytes = same.map(|o| o.offset.saturating_add(o.end - o.start)).max().unwrap_or(0);
            }
            if let Some(reason) = region.trouble {
                new.unknown = Some(reason.as_str().into());
                let of_program = self.regions.iter().any(|region| {
                    region.mapping.executable
                        && (region.mapping.device, region.mapping.inode) == (mapping.device, mapping.inode)
                });
                // Data of a program or library whose file cannot be read.
                if of_program {
                    new.kind = Kind::Static;
                    new.module = Some(Arc::from(path));
                }
            }
            new.name = match path {
                "" => "[anonymous memory]".into(),
                "[heap]" => {
                    new.kind = Kind::Heap;
                    "[heap]".into()
                }
                path => Arc::from(path),
            };
            if mapping.inode == 0 && (path.is_empty() || path == "[heap]") {
                new.unknown = Some(NOT_RECORDED.into());
            }
            object = Some(add(objects, new));
        }
        let object = object?;
        self.regions.get_mut(index)?.object = Some(Arc::clone(&object));
        Some((object, offset))
    }
}

/// Said of anonymous memory that no allocation record covers.
const NOT_RECORDED: &str = "no allocation record covers it: allocated before the trace began, without --heap, or not by an allocator";

/// Neither shared memory nor huge pages: these have names, but no readable file.
fn is_file(mapping: &Mapping) -> bool {
    let memory = ["/memfd:", "/dev/zero", "/dev/shm/", "/SYSV", "/anon_hugepage"];
    mapping.inode != 0 && !memory.iter().any(|prefix| mapping.path.starts_with(prefix))
}
