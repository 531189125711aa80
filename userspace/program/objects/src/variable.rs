//! Debug information about one variable: name, type, declaration.
//!
//! A variable's entry may leave most of it to another one: the member of the class
//! (`DW_AT_specification`) or the abstract instance of an inlined function
//! (`DW_AT_abstract_origin`); DWARF 5, §2.13.2, §3.3.8.

use gimli::constants as dw;
use locality_symbols::{ModuleFile, demangle, parallel_region, region_name};

use crate::debug::{Die, Function};
use crate::named::{Declared, TypeId};
use crate::session::{Session, at};
use crate::type_reader::{TypeReader, udata};
use crate::types::{Member, Shape, Type};

/// Most entries to follow for one variable.
const MAX_HOPS: usize = 4;

/// A variable or function as its entries describe it.
#[derive(Debug, Default)]
pub(crate) struct Described {
    pub(crate) name: Option<String>,
    pub(crate) linkage: Option<String>,
    pub(crate) ty: Option<Die>,
    pub(crate) declared: Option<Declared>,
    pub(crate) tag: Option<gimli::DwTag>,
    /// The entry that all instances of an inlined function's variable go back to.
    pub(crate) origin: Option<Die>,
}

impl Described {
    /// Reads an entry and its references.
    pub(crate) fn read(session: &Session<'_>, die: Die) -> Self {
        let mut this = Self::default();
        let mut next = Some(die);
        for _ in 0..MAX_HOPS {
            let Some(here) = next else { break };
            let Some(unit) = session.unit(here.unit) else { break };
            let Ok(entry) = unit.entry(at(here)) else { break };
            let text = |name| session.text(&unit, entry.attr_value(name)?);
            this.origin = Some(here);
            this.tag = this.tag.or(Some(entry.tag()));
            this.name = this.name.or_else(|| text(dw::DW_AT_name));
            this.linkage = this
                .linkage
                .or_else(|| text(dw::DW_AT_linkage_name))
                .or_else(|| text(dw::DW_AT_MIPS_linkage_name));
            let follow = |name| session.follow(here.unit, &entry.attr_value(name)?);
            this.ty = this.ty.or_else(|| follow(dw::DW_AT_type));
            this.declared = this.declared.or_else(|| session.declared(&unit, &entry));
            next = follow(dw::DW_AT_specification).or_else(|| follow(dw::DW_AT_abstract_origin));
        }
        this
    }

    /// Whether the compiler made the function out of a parallel region.
    pub(crate) fn is_region(&self) -> bool {
        self.name.as_deref().is_some_and(|name| parallel_region(name).is_some())
    }

    /// The name of a compiler-made parallel region of a module: by its function and first line.
    /// `None` for other functions.
    pub(crate) fn region(&self, session: &Session<'_>, file: &ModuleFile, at: Function) -> Option<String> {
        let function = self.name.as_deref().and_then(parallel_region)?;
        let place = self.declared.clone().or_else(|| session.line_at(at));
        let place = place.as_ref().map(|place| (&*place.file, place.line)).filter(|(_, line)| *line > 0);
        let around = match place {
            Some((path, line)) if function.is_empty() => file.function_around(at.start, path, line),
            _ => None,
        };
        Some(region_name(around.as_deref().unwrap_or(function), place))
    }

    /// The name for people: the demangled linkage name if present, because it is qualified.
    pub(crate) fn full_name(&self) -> Option<String> {
        if let Some(function) = self.name.as_deref().and_then(parallel_region) {
            let place = self.declared.as_ref().map(|at| (&*at.file, at.line)).filter(|(_, line)| *line > 0);
            return Some(region_name(function, place));
        }
        let linkage = self.linkage.as_deref().map(demangle).filter(|name| !name.starts_with("_Z"));
        // gfortran's mark of a module's variable or procedure.
        let fortran = linkage.as_deref().and_then(|name| name.strip_prefix("__")?.split_once("_MOD_"));
        match (fortran, &self.name) {
            (Some((module, _)), Some(name)) => Some(format!("{module}::{name}")),
            // Of functions that the compiler made, the mangled name is the only one.
            _ => linkage.or_else(|| self.name.as_deref().map(demangle)),
        }
    }
}

/// The members of a Fortran common block as one record: the block is an object, its variables are
/// its fields.
pub(crate) fn common_block(
    reader: &mut TypeReader<'_, '_>,
    die: Die,
    address: u64,
    name: &str,
) -> Option<TypeId> {
    let session = reader.session;
    let unit = session.unit(die.unit)?;
    let mut found = Vec::new();
    {
        let mut tree = unit.entries_tree(Some(at(die))).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Ok(Some(child)) = children.next() {
            let entry = child.entry();
            if let Some(gimli::AttributeValue::Exprloc(place)) = entry.attr_value(dw::DW_AT_location)
                && let Some((place, false)) =
                    crate::debug::fixed_place(&session.dwarf, &unit, place.0.slice())
                && let Some(offset) = place.checked_sub(address)
                && let Ok(child) = u32::try_from(entry.offset().0)
            {
                found.push((
                    offset,
                    Die { unit: die.unit, offset: child },
                    udata(entry, dw::DW_AT_byte_size),
                ));
            }
        }
    }
    let mut members = Vec::new();
    for (offset, child, bytes) in found {
        let described = Described::read(session, child);
        let Some(ty) = described.ty.and_then(|ty| reader.read(ty)) else { continue };
        let bytes = bytes.or_else(|| reader.types.bytes(ty)).unwrap_or(0);
        members.push(Member {
            name: described.name.unwrap_or_default().into(),
            ty,
            offset,
            bytes,
            bits: None,
        });
    }
    members.sort_by_key(|member| member.offset);
    let bytes = members.iter().map(Member::end).max()?;
    Some(reader.types.add(Type {
        name: format!("common /{name}/").into(),
        bytes: Some(bytes),
        declared: None,
        shape: Shape::Record { members, element: None },
    }))
}
