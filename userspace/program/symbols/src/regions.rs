//! Which function a parallel region belongs to, where the name that the compiler gave the region
//! does not tell (clang before version 17: `.omp_outlined.`).
//!
//! A region lies in the text of its function, so that the function is the last one that the source
//! declares at or before the region's first line, in the same file. Source of error: a function
//! that another one's text contains (a lambda, a member of a local class) in front of the region.

use std::borrow::Cow;

use gimli::{AttributeValue, Dwarf, EndianSlice, LittleEndian, Unit, constants as dw};

use crate::demangle::parallel_region;
use crate::elf::Slice;
use crate::unsplit::section;

/// Most entries of one unit to look at.
const MAX_ENTRIES: usize = 1 << 21;
/// Units that are looked at.
const MAX_UNITS: usize = 1 << 16;

/// The mangled name of the function around a line, of the unit whose code contains an address.
pub(crate) fn enclosing_function(elf: &[u8], address: u64, file: &str, line: u32) -> Option<String> {
    let sections = gimli::DwarfSections::load(|id| section(elf, id.name())).ok()?;
    let dwarf = sections.borrow(|section: &Cow<'_, [u8]>| EndianSlice::new(section, LittleEndian));
    let mut units = dwarf.units();
    for _ in 0..MAX_UNITS {
        let unit = dwarf.unit(units.next().ok()??).ok()?;
        let mut ranges = dwarf.unit_ranges(&unit).ok()?;
        while let Ok(Some(range)) = ranges.next() {
            if (range.begin..range.end).contains(&address) {
                return last_before(&dwarf, &unit, file, line);
            }
        }
    }
    None
}

fn last_before(dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>, file: &str, line: u32) -> Option<String> {
    let mut best: Option<(u64, String)> = None;
    let mut entries = unit.entries();
    for _ in 0..MAX_ENTRIES {
        let Ok(Some(entry)) = entries.next_dfs() else { break };
        if entry.tag() != dw::DW_TAG_subprogram || entry.has_attr(dw::DW_AT_declaration) {
            continue;
        }
        let declared = entry.attr_value(dw::DW_AT_decl_line).and_then(|value| value.udata_value());
        let Some(declared) = declared.filter(|declared| *declared <= line.into()) else { continue };
        // Of a member that is defined outside of its class, the declaration has the rest.
        let declaration = match entry.attr_value(dw::DW_AT_specification) {
            Some(AttributeValue::UnitRef(offset)) => unit.entry(offset).ok(),
            _ => None,
        };
        let attribute = |name| entry.attr_value(name).or_else(|| declaration.as_ref()?.attr_value(name));
        let named = |name| {
            let name = dwarf.attr_string(unit, attribute(name)?).ok()?;
            Some(name.to_string_lossy().into_owned())
        };
        let Some(name) = named(dw::DW_AT_linkage_name).or_else(|| named(dw::DW_AT_name)) else { continue };
        // Compilers' own names begin so.
        if name.starts_with('.')
            || parallel_region(&name).is_some()
            || best.as_ref().is_some_and(|(best, _)| *best > declared)
        {
            continue;
        }
        if is_of_file(dwarf, unit, attribute(dw::DW_AT_decl_file), file) {
            best = Some((declared, name));
        }
    }
    best.map(|(_, name)| name)
}

/// Whether a function is declared in a file of this name, the directory apart.
fn is_of_file(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    declared: Option<AttributeValue<Slice<'_>>>,
    file: &str,
) -> bool {
    let Some(AttributeValue::FileIndex(index)) = declared else { return false };
    let Some(program) = &unit.line_program else { return false };
    let Some(entry) = program.header().file(index) else { return false };
    let Ok(path) = dwarf.attr_string(unit, entry.path_name()) else { return false };
    let path = path.to_string_lossy();
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    last(&path) == last(file)
}
