//! Names for heap blocks without a record and a pointer: by the type that an access reveals.
//!
//! `locality-approximate` follows pointers through the machine code and finds the type;
//! this module makes an object and a field from the type. A structure is one object in
//! every block. Other blocks have the most frequent type, and large blocks also the
//! variable's name. An access with a value of another size or kind than the pointer's
//! type is no proof. Marked as inferred, since the block may contain other data.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use gimli::DebugInfoOffset;

use crate::module::{add, blank, replace};
use crate::named::{Field, Kind, Named, Object, ObjectId, TypeId};
use crate::resolver::Resolver;
use crate::type_reader::TypeReader;
use crate::types::Shape;

/// What an access reveals.
#[derive(Debug, Clone, Copy)]
pub struct Revealed<'a> {
    /// The accessing instruction.
    pub ip: u64,
    /// Offset of the type's entry in the `.debug_info` of the instruction's module.
    pub entry: usize,
    /// Offset of the access in a value of the type.
    pub offset: u64,
    /// The variable with the access's pointer, if any.
    pub through: Option<&'a str>,
    /// Bytes of the value as the instruction takes it, and whether it is a floating-point number.
    pub element: Option<(u64, bool)>,
    /// The instruction's file and line.
    pub line: &'a str,
}

/// Bytes of a block that counts as an object.
const LARGE: u64 = 4096;

/// Facts revealed by accesses so far.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// Objects of structures, whatever block they lie in: by the structure's name and size.
    structures: HashMap<(Arc<str>, u64), Arc<Object>>,
    /// Claims of accesses about an unnamed object.
    votes: HashMap<ObjectId, Votes>,
}

impl Blocks {
    /// What accesses made of a nameless object.
    pub(crate) fn of_nameless(&self, id: ObjectId) -> Option<Arc<Object>> {
        self.votes.get(&id).map(|votes| Arc::clone(&votes.object))
    }
}

/// Claims of accesses about one unnamed object, the most frequent first.
#[derive(Debug)]
struct Votes {
    object: Arc<Object>,
    said: HashMap<Said, u32>,
    most: u32,
}

/// What an access says of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Said {
    ty: TypeId,
    name: Arc<str>,
}

impl Resolver {
    /// True for an answer that may be memory of an allocator,
    /// without a record or a pointer for the content.
    pub fn is_nameless_block(&mut self, address: u64, named: &Named) -> bool {
        let Object { kind, ty, site, unknown, .. } = &*named.object;
        let nameless = ty.is_none() && site.is_none() && unknown.is_some();
        nameless
            && matches!(kind, Kind::Heap | Kind::Mapped)
            && self.space.find(address).is_some_and(|region| self.space.is_private_memory(region))
    }

    /// A path by which the file of the code at an address can be opened while the process lives,
    /// and the address in the module.
    pub fn code(&mut self, address: u64) -> Option<(PathBuf, u64)> {
        let region = self.space.find(address)?;
        let module = self.space.module(region, &self.processes, self.pid)?;
        let mapping = &self.space.region(region)?.mapping;
        let (start, end) = (mapping.start, mapping.end);
        let path = format!("/proc/{}/map_files/{start:x}-{end:x}", self.pid);
        Some((path.into(), address.wrapping_sub(self.space.modules.get(module as usize)?.bias)))
    }

    /// Names a nameless block by the type that an access
    /// revealed. `None` if the type does not fit into the block.
    pub fn reveal(&mut self, named: &Named, revealed: &Revealed<'_>) -> Option<Named> {
        let region = self.space.find(revealed.ip)?;
        let number = self.space.module(region, &self.processes, self.pid)?;
        let module = self.space.modules.get_mut(number as usize)?;
        let (context, debug, _) = module.context(number, &mut self.types, &mut self.objects);
        let session = debug?.session(context.file);
        let die = session.at_section_offset(DebugInfoOffset(revealed.entry))?;
        let ty = TypeReader::new(&session, context.types, number).read(die)?;
        let own = self.types.bytes(ty).filter(|own| *own > 1)?;
        // The bytes of a mapping are not a block's.
        let block = if named.object.inferred { named.object.bytes } else { 0 };
        let fits = block == 0 || own <= block && named.offset >= revealed.offset;
        let field = self.fields.at(&self.types, ty, false, revealed.offset).filter(|_| fits)?;
        if !revealed.agrees(&field) {
            return None;
        }
        let (type_name, line) = (Arc::clone(&self.types.get(ty)?.name), revealed.line);
        let why = |unknown: &mut Object| {
            let why = format!(
                "no record and no pointer leads to it; its type is inferred from the access at {line}"
            );
            unknown.unknown = Some(why.into());
        };
        let within = match block {
            0 => format!("{type_name} in {} ({line})", named.object.name),
            bytes => format!("{type_name} in {bytes}-byte blocks ({line})"),
        };
        let blank = Object {
            name: within.into(),
            type_name: Some(Arc::clone(&type_name)),
            ty: Some(ty),
            bytes: block,
            inferred: true,
            ..blank(named.object.kind)
        };
        let objects = &mut self.objects;
        let is_structure = matches!(self.types.get(self.types.strip(ty))?.shape, Shape::Record { .. });
        if is_structure {
            // Units and blocks apart, a structure is one object.
            let new = || {
                let mut object = blank;
                why(&mut object);
                add(objects, object)
            };
            let object = self.revealed.structures.entry((type_name, own)).or_insert_with(new);
            return Some(Named { object: Arc::clone(object), offset: named.offset, field: Some(field) });
        }
        // A separate block has the name of its most frequent accessing variable.
        let name = match revealed.through {
            Some(variable) if block >= LARGE && !variable.starts_with('.') => variable.into(),
            _ => Arc::clone(&blank.name),
        };
        let said = Said { ty, name: Arc::clone(&name) };
        let new = || {
            let mut object = Object { name: Arc::clone(&name), ..blank.clone() };
            why(&mut object);
            Votes { object: add(objects, object), said: HashMap::new(), most: 0 }
        };
        let votes = self.revealed.votes.entry(named.object.id).or_insert_with(new);
        let count = votes.said.entry(said).or_insert(0);
        *count = count.saturating_add(1);
        if *count > votes.most {
            votes.most = *count;
            if votes.object.ty != Some(ty) || votes.object.name != name {
                let mut object = Object { id: votes.object.id, name, ..blank };
                why(&mut object);
                votes.object = replace(&mut self.objects, object);
            }
        }
        let object = Arc::clone(&votes.object);
        // Another type's field is none of the object's.
        let field = Some(field).filter(|_| object.ty == Some(ty));
        Some(Named { object, offset: named.offset, field })
    }
}

impl Revealed<'_> {
    /// Whether the instruction's operand can be this field.
    fn agrees(&self, field: &Field) -> bool {
        let Some((bytes, is_float)) = self.element else { return true };
        let name = field.type_name.as_deref().unwrap_or_default();
        let known = matches!(field.bytes, 1 | 2 | 4 | 8);
        let integer = ["int", "long", "short", "char", "size_t"].iter().any(|word| {
            name.split_whitespace().any(|part| {
                part == *word
                    || part
                        .strip_suffix("_t")
                        .is_some_and(|part| part.trim_start_matches('u').starts_with("int"))
            })
        });
        let integer = integer && !name.contains("double") && !name.contains("float");
        !known || field.bytes == bytes && !(is_float && integer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An instruction that takes another value than the pointer's type tells contradicts it.
    #[test]
    fn an_instruction_may_contradict_a_type() {
        let field = |name: &str, bytes| Field {
            path: "".into(),
            offset: 0,
            bytes,
            type_name: Some(name.into()),
            within: None,
            path_within: "".into(),
            offset_within: 0,
        };
        let agrees = |element, name: &str, bytes| {
            let revealed = Revealed { ip: 0, entry: 0, offset: 0, through: None, element, line: "a.c:1" };
            revealed.agrees(&field(name, bytes))
        };
        for (element, name, bytes, wanted) in [
            (Some((8, true)), "double", 8, true),
            (Some((8, true)), "int", 4, false),
            (Some((8, true)), "long int", 8, false),
            (Some((8, true)), "uint64_t", 8, false),
            (Some((8, true)), "Real_t", 8, true),
            (Some((4, true)), "float", 4, true),
            (Some((4, true)), "unsigned int", 4, false),
            // Copies go through integer registers.
            (Some((8, false)), "double", 8, true),
            (Some((8, false)), "int", 4, false),
            (None, "int", 4, true),
            (Some((8, true)), "struct pair", 16, true),
        ] {
            assert_eq!(agrees(element, name, bytes), wanted, "{element:?} {name}");
        }
    }
}
