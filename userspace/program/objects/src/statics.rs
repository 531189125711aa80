//! The variables at fixed places of a module, from its symbol tables and its DWARF, by address.
//!
//! Both sources are merged by address: a variable known from symbols alone has a name and a size,
//! one known from DWARF alone (local to a function, folded) has a type. Its size decides about an
//! address: the symbol's if present, because the linker laid it out, otherwise the type's.

use std::collections::HashMap;
use std::sync::Arc;

use locality_symbols::{ModuleFile, demangle};

use crate::debug::Debug;
use crate::debug::Variable;
use crate::elf::{DataElf, DataSymbol};
use crate::module::Context;
use crate::named::{Kind, Object};
use crate::type_reader::TypeReader;
use crate::variable::{Described, common_block};

/// Entries before an address that may reach it: variables rarely overlap, and then little.
const LOOK_BACK: usize = 16;

/// One place.
#[derive(Debug)]
pub(crate) struct Entry {
    address: u64,
    symbol: Option<DataSymbol>,
    variable: Option<Variable>,
    object: Option<Arc<Object>>,
}

/// All of a module: variables of the process, and those of each thread (by offset in the
/// thread-local segment).
#[derive(Debug)]
pub(crate) struct Statics {
    shared: Vec<Entry>,
    thread_local: Vec<Entry>,
    /// Objects for the sections, by start.
    sections: HashMap<u64, Arc<Object>>,
}

impl Statics {
    pub(crate) fn new(elf: &DataElf, file: &ModuleFile, debug: Option<&Debug>) -> Self {
        let mut all: Vec<(bool, Entry)> = Vec::new();
        for symbol in elf.data_symbols(file) {
            let entry = Entry { address: symbol.address, symbol: Some(symbol), variable: None, object: None };
            all.push((symbol.thread_local, entry));
        }
        for variable in debug.map_or(&[][..], |debug| &debug.variables) {
            let entry =
                Entry { address: variable.address, symbol: None, variable: Some(*variable), object: None };
            all.push((variable.thread_local, entry));
        }
        // Symbols first, the largest before all, then the plainest name.
        all.sort_by_cached_key(|(thread_local, entry)| {
            let symbol = entry.symbol.map(|symbol| (u64::MAX - symbol.bytes, symbol.rank(file)));
            let symbol = symbol.unwrap_or((u64::MAX, (0, 0)));
            (*thread_local, entry.address, symbol, entry.variable.map(|variable| variable.die))
        });
        all.dedup_by(|(later_local, later), (local, kept)| {
            let same = later_local == local && later.address == kept.address;
            if same {
                kept.variable = kept.variable.or(later.variable);
                kept.symbol = kept.symbol.or(later.symbol);
            }
            same
        });
        let (thread_local, shared): (Vec<_>, Vec<_>) = all.into_iter().partition(|(local, _)| *local);
        let strip = |entries: Vec<(bool, Entry)>| entries.into_iter().map(|(_, entry)| entry).collect();
        Self { shared: strip(shared), thread_local: strip(thread_local), sections: HashMap::new() }
    }

    /// The variable around an address of the module, or around an offset in its thread-local
    /// segment, and the offset in the variable.
    pub(crate) fn find(
        &mut self,
        address: u64,
        thread_local: bool,
        debug: Option<&Debug>,
        context: &mut Context<'_>,
    ) -> Option<(Arc<Object>, u64)> {
        let entries = if thread_local { &mut self.thread_local } else { &mut self.shared };
        let behind = entries.partition_point(|entry| entry.address <= address);
        let first = behind.saturating_sub(LOOK_BACK);
        for entry in entries.get_mut(first..behind)?.iter_mut().rev() {
            let object =
                entry.object.get_or_insert_with(|| describe(entry.symbol, entry.variable, debug, context));
            let offset = address - entry.address;
            if offset < object.bytes {
                return Some((Arc::clone(object), offset));
            }
        }
        None
    }

    /// The section around an address that no variable covers, and its start.
    pub(crate) fn section(&mut self, address: u64, context: &mut Context<'_>) -> (Arc<Object>, u64) {
        let section = context.elf.section(address);
        let start = section.map_or(0, |section| section.address);
        let object = self.sections.entry(start).or_insert_with(|| {
            let mut object = context.blank(Kind::Static);
            let name = section.map_or("module", |section| &*section.name);
            object.name = format!("[{name}]").into();
            object.bytes = section.map_or(0, |section| section.bytes);
            object.unknown = Some(context.undescribed("no variable covers this place"));
            context.add(object)
        });
        (Arc::clone(object), start)
    }

    /// For a place in the module's thread-local segment that no variable covers.
    pub(crate) fn thread_local_segment(&mut self, bytes: u64, context: &mut Context<'_>) -> Arc<Object> {
        let object = self.sections.entry(u64::MAX).or_insert_with(|| {
            let mut object = context.blank(Kind::ThreadLocal);
            object.name = "[thread-local data]".into();
            object.bytes = bytes;
            object.unknown = Some(context.undescribed("no variable covers this place"));
            context.add(object)
        });
        Arc::clone(object)
    }

    /// Addresses and objects of all variables with possible pointers: those with debug information.
    pub(crate) fn typed(&mut self, debug: &Debug, context: &mut Context<'_>) -> Vec<(u64, Arc<Object>)> {
        let writable = |address| context.elf.is_writable(address);
        let typed: Vec<&mut Entry> = self
            .shared
            .iter_mut()
            .filter(|entry| entry.variable.is_some() && writable(entry.address))
            .collect();
        typed
            .into_iter()
            .map(|entry| {
                let object = entry
                    .object
                    .get_or_insert_with(|| describe(entry.symbol, entry.variable, Some(debug), context));
                (entry.address, Arc::clone(object))
            })
            .collect()
    }
}

fn describe(
    symbol: Option<DataSymbol>,
    variable: Option<Variable>,
    debug: Option<&Debug>,
    context: &mut Context<'_>,
) -> Arc<Object> {
    let mut object = context.blank(Kind::Static);
    let thread_local =
        variable.map(|variable| variable.thread_local).or(symbol.map(|symbol| symbol.thread_local));
    if thread_local == Some(true) {
        object.kind = Kind::ThreadLocal;
    }
    let symbol_name = symbol.and_then(|symbol| symbol.name(context.file)).map(demangle);
    let symbol_bytes = symbol.map_or(0, |symbol| symbol.bytes);
    object.bytes = symbol_bytes;
    let mut name = None;
    match (variable, debug) {
        (Some(variable), Some(debug)) => {
            let session = debug.session(context.file);
            let described = Described::read(&session, variable.die);
            let is_common = described.tag == Some(gimli::DW_TAG_common_block);
            name = if (variable.function > 0 || is_common) && described.name.is_some() {
                described.name.clone()
            } else if described.linkage.is_none()
                && symbol_name.as_ref().is_some_and(|name| name.contains("::"))
            {
                // Of a variable visible in one file, the symbol alone is qualified.
                symbol_name.clone()
            } else {
                described.full_name()
            };
            if variable.function > 0 {
                let function = crate::debug::Die { unit: variable.die.unit, offset: variable.function };
                object.function = Described::read(&session, function).full_name().map(Into::into);
            }
            object.declared = described.declared.clone();
            let mut reader = TypeReader::new(&session, context.types, context.module);
            let ty = if is_common {
                let name = described.name.as_deref().unwrap_or("");
                common_block(&mut reader, variable.die, variable.address, name)
            } else {
                described.ty.and_then(|ty| reader.read(ty))
            };
            object.ty = ty;
            if let Some(ty) = ty.and_then(|ty| context.types.get(ty)) {
                object.type_name = Some(Arc::clone(&ty.name));
                object.bytes = symbol_bytes.max(ty.bytes.unwrap_or(0));
            } else {
                object.unknown = Some(context.undescribed("its type cannot be read from the debug info"));
            }
        }
        (_, Some(_)) => object.unknown = Some(context.undescribed("the debug info does not describe it")),
        (_, None) => object.unknown = Some(context.undescribed("name from the symbol table, type unknown")),
    }
    object.name = name.or(symbol_name).unwrap_or_else(|| "?".to_owned()).into();
    context.add(object)
}
