//! Names for heap blocks that no record and no pointer names: by the type that an access to them reveals.
//!
//! Whoever follows pointers through the machine code (`locality-approximate`) tells the type; here
//! it becomes an object, one for each type and size of block, and a field. Marked as inferred: what
//! was stored in the block may be something else.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use gimli::DebugInfoOffset;

use crate::module::{add, blank};
use crate::named::{Kind, Named, Object, TypeId};
use crate::resolver::Resolver;
use crate::type_reader::TypeReader;

/// What an access reveals.
#[derive(Debug, Clone, Copy)]
pub struct Revealed<'a> {
    /// The accessing instruction.
    pub ip: u64,
    /// Offset of the type's entry in the `.debug_info` of the instruction's module.
    pub entry: usize,
    /// Offset of the access in a value of the type.
    pub offset: u64,
    /// The instruction's file and line.
    pub line: &'a str,
}

/// Objects by type and bytes of the block, 0 where those are not known, and by the mapping's own object.
pub(crate) type Blocks = HashMap<(TypeId, u64, crate::ObjectId), Arc<Object>>;

impl Resolver {
    /// True for an answer that is memory of an allocator, or may be, of which neither a record nor
    /// a pointer tells what it holds.
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

    /// Names a nameless block by what an access revealed. `None` where the type does not fit into the block.
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
        let type_name = Arc::clone(&self.types.get(ty)?.name);
        let objects = &mut self.objects;
        let object = self.revealed.entry((ty, block, named.object.id)).or_insert_with(|| {
            let line = revealed.line;
            let name = match block {
                0 => format!("{type_name} in {} ({line})", named.object.name),
                bytes => format!("{type_name} in {bytes}-byte blocks ({line})"),
            };
            let why = format!(
                "no record and no pointer leads to it; its type is inferred from the access at {line}"
            );
            let object = Object {
                name: name.into(),
                type_name: Some(type_name),
                ty: Some(ty),
                bytes: block,
                inferred: true,
                unknown: Some(why.into()),
                ..blank(named.object.kind)
            };
            add(objects, object)
        });
        Some(Named { object: Arc::clone(object), offset: named.offset, field: Some(field) })
    }
}
