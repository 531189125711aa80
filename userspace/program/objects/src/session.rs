//! Reading entries of a module's DWARF again, by the index over it: units, references, texts, declarations.
//!
//! A session is short: what stays between sessions are the abbreviation tables, because units
//! cannot outlive the bytes they borrow.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};

use gimli::{
    AttributeValue, DebugInfoOffset, DebugTypes, DebuggingInformationEntry, Dwarf, Section, Unit, UnitOffset,
    constants as dw,
};

use crate::debug::{Debug, Die, Function, UnitPlace};
use crate::definitions::Definitions;
use crate::elf::Slice;
use crate::named::Declared;

/// Parsed abbreviation tables that stay.
const MAX_ABBREVIATIONS: usize = 64;

/// Rows of a unit's line table that are looked through for one line.
const MAX_ROWS: usize = 1 << 22;

/// One reading of entries: units stay parsed for as long as it lives.
pub(crate) struct Session<'a> {
    pub(crate) dwarf: Dwarf<Slice<'a>>,
    debug: &'a Debug,
    units: RefCell<HashMap<u32, Rc<Unit<Slice<'a>>>>>,
}

impl<'a> Session<'a> {
    pub(crate) fn new(dwarf: Dwarf<Slice<'a>>, debug: &'a Debug) -> Self {
        Self { dwarf, debug, units: RefCell::default() }
    }

    /// A parsed unit.
    pub(crate) fn unit(&self, index: u32) -> Option<Rc<Unit<Slice<'a>>>> {
        if let Some(unit) = self.units.borrow().get(&index) {
            return Some(Rc::clone(unit));
        }
        let header = match *self.debug.units.get(index as usize)? {
            UnitPlace::Info(offset) => self.dwarf.debug_info.header_from_offset(DebugInfoOffset(offset)),
            UnitPlace::Types(offset) => {
                // gimli finds them only by a walk from the section's start, so the section passed
                // to gimli starts there.
                let section = self.dwarf.debug_types.reader().slice().get(offset..)?;
                let mut units = DebugTypes::new(section, gimli::LittleEndian).units();
                Ok(units.next().ok()??)
            }
        };
        let header = header.ok()?;
        let table = header.debug_abbrev_offset().0;
        let tables = || self.debug.abbreviations.lock().unwrap_or_else(PoisonError::into_inner);
        let parsed = tables().get(&table).cloned();
        let abbreviations = match parsed {
            Some(parsed) => parsed,
            None => {
                let parsed = self.dwarf.abbreviations(&header).ok()?;
                let mut tables = tables();
                if tables.len() >= MAX_ABBREVIATIONS {
                    tables.clear();
                }
                tables.insert(table, Arc::clone(&parsed));
                parsed
            }
        };
        let unit = Rc::new(Unit::new_with_abbreviations(&self.dwarf, header, abbreviations).ok()?);
        self.units.borrow_mut().insert(index, Rc::clone(&unit));
        Some(unit)
    }

    /// Drops a completely read unit.
    pub(crate) fn forget(&self, index: u32) {
        self.units.borrow_mut().remove(&index);
    }

    /// The entry that a reference leads to.
    pub(crate) fn follow(&self, from: u32, reference: &AttributeValue<Slice<'a>>) -> Option<Die> {
        match *reference {
            AttributeValue::UnitRef(offset) => {
                Some(Die { unit: from, offset: u32::try_from(offset.0).ok()? })
            }
            AttributeValue::DebugInfoRef(offset) => self.at_section_offset(offset),
            AttributeValue::DebugTypesRef(signature) => self.debug.signatures.get(&signature.0).copied(),
            _ => None,
        }
    }

    /// A text attribute.
    pub(crate) fn text(&self, unit: &Unit<Slice<'a>>, value: AttributeValue<Slice<'a>>) -> Option<String> {
        Some(self.dwarf.attr_string(unit, value).ok()?.to_string_lossy().into_owned())
    }

    /// The place that an entry of the unit says it is declared at.
    pub(crate) fn declared(
        &self,
        unit: &Unit<Slice<'a>>,
        entry: &DebuggingInformationEntry<Slice<'a>>,
    ) -> Option<Declared> {
        let AttributeValue::FileIndex(file) = entry.attr_value(dw::DW_AT_decl_file)? else { return None };
        let line = entry.attr_value(dw::DW_AT_decl_line)?.udata_value()?;
        let header = unit.line_program.as_ref()?.header();
        let file = header.file(file)?;
        let mut path = self.text(unit, file.path_name())?;
        if !path.starts_with('/')
            && let Some(directory) = file.directory(header).and_then(|value| self.text(unit, value))
        {
            path = format!("{directory}/{path}");
        }
        if !path.starts_with('/')
            && let Some(directory) = unit.comp_dir
        {
            path = format!("{}/{path}", directory.to_string_lossy());
        }
        Some(Declared { file: path.into(), line: u32::try_from(line).ok()? })
    }

    /// The line that a function's code begins with.
    pub(crate) fn line_at(&self, function: Function) -> Option<Declared> {
        let unit = self.unit(function.die.unit)?;
        let mut rows = unit.line_program.clone()?.rows();
        for _ in 0..MAX_ROWS {
            let (header, row) = rows.next_row().ok()??;
            if row.address() == function.start && !row.end_sequence() {
                let line = row.line()?.get();
                let path = self.text(&unit, row.file(header)?.path_name())?;
                return Some(Declared { file: path.into(), line: u32::try_from(line).ok()? });
            }
        }
        None
    }

    /// The definition of a struct that the unit in question only declares.
    pub(crate) fn definition(&self, name: &str) -> Option<Die> {
        self.debug.definitions.get_or_init(|| Definitions::find(self, self.debug.units.len())).get(name)
    }

    /// The entry at an offset in `.debug_info`.
    pub(crate) fn at_section_offset(&self, offset: DebugInfoOffset) -> Option<Die> {
        let start = |unit: &UnitPlace| match *unit {
            UnitPlace::Info(start) => start,
            UnitPlace::Types(_) => usize::MAX,
        };
        let behind = self.debug.units.partition_point(|unit| start(unit) <= offset.0);
        let unit = behind.checked_sub(1)?;
        let inside = offset.0.checked_sub(start(self.debug.units.get(unit)?))?;
        Some(Die { unit: u32::try_from(unit).ok()?, offset: u32::try_from(inside).ok()? })
    }
}

/// An offset in a unit for gimli.
pub(crate) fn at(die: Die) -> UnitOffset {
    UnitOffset(die.offset as usize)
}
