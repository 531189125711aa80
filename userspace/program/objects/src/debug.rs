//! The index over a module's DWARF: units, variables and functions with their places. Made in one
//! pass over the entries, at the first question about the module; single entries are read again
//! when needed.
//!
//! An unreadable unit is skipped and counted. Units with
//! entries in further files (split DWARF) are counted too.
//!
//! Source: DWARF 5, §2.6 (locations), §3.3 (subroutines), §4.1 (variables), §7.5.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use gimli::{Abbreviations, AttributeValue, Dwarf, DwarfSections, Unit, UnitType, constants as dw};
use locality_symbols::ModuleFile;

use crate::definitions::Definitions;
use crate::elf::{DataElf, SectionBytes, Slice, dwarf};
use crate::session::Session;

/// An entry: unit, and position in the unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Die {
    pub(crate) unit: u32,
    pub(crate) offset: u32,
}

/// Offset of a unit's header in its section.
#[derive(Debug, Clone, Copy)]
pub(crate) enum UnitPlace {
    Info(usize),
    Types(usize),
}

/// A variable with a fixed place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Variable {
    /// Address in the module, or offset in its thread-local segment.
    pub(crate) address: u64,
    pub(crate) die: Die,
    /// The function that declares the entry, in the same unit; 0 outside functions.
    pub(crate) function: u32,
    pub(crate) thread_local: bool,
}

/// A stretch of a function's code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Function {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) die: Die,
}

/// What could not be read of a module's debug information.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DebugFaults {
    /// Units read.
    pub units: u32,
    /// Units skipped from the first unreadable entry on.
    pub broken: u32,
    /// Units whose entries lie in `.dwo` or `.dwp` files.
    pub split: u32,
}

/// The index, shared by all processes that map the file.
#[derive(Debug)]
pub(crate) struct Debug {
    sections: DwarfSections<SectionBytes>,
    /// Offsets of the unit headers, `.debug_info` first, ascending; then `.debug_types`.
    pub(crate) units: Vec<UnitPlace>,
    /// By address.
    pub(crate) variables: Vec<Variable>,
    /// By start.
    pub(crate) functions: Vec<Function>,
    /// Type units by signature.
    pub(crate) signatures: HashMap<u64, Die>,
    pub(crate) faults: DebugFaults,
    pub(crate) trouble: Vec<String>,
    /// By offset in their section.
    pub(crate) abbreviations: Mutex<HashMap<usize, Arc<Abbreviations>>>,
    pub(crate) definitions: OnceLock<Definitions>,
}

impl Debug {
    /// Makes the pass.
    pub(crate) fn index(elf: &DataElf, file: &ModuleFile) -> Self {
        let (sections, trouble) = elf.load_dwarf(file);
        let mut this = Self {
            sections,
            units: Vec::new(),
            variables: Vec::new(),
            functions: Vec::new(),
            signatures: HashMap::new(),
            faults: DebugFaults::default(),
            trouble,
            abbreviations: Mutex::default(),
            definitions: OnceLock::new(),
        };
        let sections = std::mem::take(&mut this.sections);
        let dwarf = dwarf(&sections, file);
        let mut pass = Pass { elf, dwarf: &dwarf, index: &mut this, cached: None };
        pass.run();
        drop(dwarf);
        this.sections = sections;
        this.variables.sort_by_key(|variable| (variable.thread_local, variable.address, variable.die));
        this.functions.sort_by_key(|function| (function.start, function.die));
        this.variables.shrink_to_fit();
        this.functions.shrink_to_fit();
        this
    }

    /// The function whose code contains the address of the module.
    pub(crate) fn function(&self, address: u64) -> Option<Function> {
        let behind = self.functions.partition_point(|function| function.start <= address);
        // Of code that identical functions were folded into, the first is taken.
        let mut before = self.functions.get(..behind)?.iter().rev().take(8);
        before.find(|function| address < function.end).copied()
    }

    /// For reading entries.
    pub(crate) fn session<'a>(&'a self, file: &'a ModuleFile) -> Session<'a> {
        Session::new(dwarf(&self.sections, file), self)
    }
}

/// A Fortran common block: the members are the block's
/// fields, and the first member's address is the block's.
struct CommonBlock {
    depth: isize,
    die: Die,
    lowest: Option<u64>,
}

impl CommonBlock {
    fn take(&mut self) -> Option<Variable> {
        self.depth = isize::MAX;
        let address = self.lowest.take().filter(|&lowest| lowest != 0)?;
        Some(Variable { address, die: self.die, function: 0, thread_local: false })
    }
}

struct Pass<'p, 'a> {
    elf: &'p DataElf,
    dwarf: &'p Dwarf<Slice<'a>>,
    index: &'p mut Debug,
    /// The last abbreviation table: many units share one (`ld -r`, link-time optimisation).
    cached: Option<(usize, Arc<Abbreviations>)>,
}

impl<'a> Pass<'_, 'a> {
    fn run(&mut self) {
        let mut units = self.dwarf.units();
        loop {
            match units.next() {
                Ok(Some(header)) => self.unit(header),
                Ok(None) => break,
                Err(_) => {
                    // Without this unit's length the next one's start is not known.
                    self.index.faults.broken += 1;
                    break;
                }
            }
        }
        let mut units = self.dwarf.type_units();
        while let Ok(Some(header)) = units.next() {
            self.unit(header);
        }
    }

    fn unit(&mut self, header: gimli::UnitHeader<Slice<'a>>) {
        let Ok(index) = u32::try_from(self.index.units.len()) else { return };
        self.index.units.push(match (header.debug_info_offset(), header.debug_types_offset()) {
            (_, Some(offset)) => UnitPlace::Types(offset.0),
            (Some(offset), None) => UnitPlace::Info(offset.0),
            (None, None) => return,
        });
        match header.type_() {
            UnitType::Type { type_signature, type_offset } => {
                if let Ok(offset) = u32::try_from(type_offset.0) {
                    self.index.signatures.insert(type_signature.0, Die { unit: index, offset });
                }
                self.index.faults.units += 1;
                return;
            }
            UnitType::SplitCompilation(_) | UnitType::SplitType { .. } => {
                self.index.faults.split += 1;
                return;
            }
            UnitType::Compilation | UnitType::Partial | UnitType::Skeleton(_) => {}
        }
        self.index.faults.units += 1;
        let table = header.debug_abbrev_offset().0;
        let abbreviations = match &self.cached {
            Some((at, kept)) if *at == table => Ok(Arc::clone(kept)),
            _ => self.dwarf.abbreviations(&header),
        };
        let unit = abbreviations.and_then(|abbreviations| {
            self.cached = Some((table, Arc::clone(&abbreviations)));
            Unit::new_with_abbreviations(self.dwarf, header, abbreviations)
        });
        let read = match unit {
            Ok(unit) if matches!(unit.dwo_name(), Ok(Some(_))) => {
                self.index.faults.split += 1;
                self.index.faults.units -= 1;
                Ok(())
            }
            Ok(unit) => self.entries(index, &unit),
            Err(error) => Err(error),
        };
        if read.is_err() {
            self.index.faults.broken += 1;
        }
    }

    fn entries(&mut self, index: u32, unit: &Unit<Slice<'a>>) -> Result<(), gimli::Error> {
        let mut entries = unit.entries_raw(None)?;
        // Functions around the entry, and their depths.
        let mut functions: Vec<(isize, u32)> = Vec::new();
        let mut common = CommonBlock { depth: isize::MAX, die: Die { unit: 0, offset: 0 }, lowest: None };
        let mut ranges: [Option<AttributeValue<Slice<'a>>>; 3];
        while !entries.is_empty() {
            let (offset, depth) = (entries.next_offset(), entries.next_depth());
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            let tag = abbreviation.tag();
            if !matches!(tag, dw::DW_TAG_variable | dw::DW_TAG_subprogram | dw::DW_TAG_common_block) {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            if depth <= common.depth {
                self.index.variables.extend(common.take());
            }
            if tag == dw::DW_TAG_common_block {
                let offset = u32::try_from(offset.0).map_err(|_| gimli::Error::UnsupportedOffset)?;
                common = CommonBlock { depth, die: Die { unit: index, offset }, lowest: None };
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            while functions.last().is_some_and(|(outer, _)| *outer >= depth) {
                functions.pop();
            }
            let offset = u32::try_from(offset.0).map_err(|_| gimli::Error::UnsupportedOffset)?;
            let die = Die { unit: index, offset };
            if tag == dw::DW_TAG_subprogram {
                ranges = [None; 3];
                for spec in abbreviation.attributes() {
                    let attribute = entries.read_attribute(*spec)?;
                    let slot = match attribute.name() {
                        dw::DW_AT_low_pc => 0,
                        dw::DW_AT_high_pc => 1,
                        dw::DW_AT_ranges => 2,
                        _ => continue,
                    };
                    ranges[slot] = Some(attribute.value());
                }
                self.function(unit, die, &ranges);
                if abbreviation.has_children() {
                    functions.push((depth, offset));
                }
                continue;
            }
            let mut location = None;
            for spec in abbreviation.attributes() {
                if spec.name() == dw::DW_AT_location {
                    location = Some(entries.read_attribute(*spec)?.value());
                } else {
                    entries.skip_attributes(std::slice::from_ref(spec))?;
                }
            }
            let Some(AttributeValue::Exprloc(expression)) = location else { continue };
            let Some((address, thread_local)) = fixed_place(self.dwarf, unit, expression.0.slice()) else {
                continue;
            };
            // Of variables that the linker dropped, the place is 0 or out of the file.
            if depth > common.depth {
                common.lowest = Some(common.lowest.map_or(address, |lowest| lowest.min(address)));
            } else if thread_local || address != 0 && self.elf.holds(address) {
                let function = functions.last().map_or(0, |(_, offset)| *offset);
                let address = if thread_local { self.elf.thread_local_offset(address) } else { address };
                self.index.variables.push(Variable { address, die, function, thread_local });
            }
        }
        self.index.variables.extend(common.take());
        Ok(())
    }

    fn function(
        &mut self,
        unit: &Unit<Slice<'a>>,
        die: Die,
        ranges: &[Option<AttributeValue<Slice<'a>>>; 3],
    ) {
        let mut push = |start: u64, end: u64| {
            if start != 0 && start < end && self.elf.holds(start) {
                self.index.functions.push(Function { start, end, die });
            }
        };
        if let [Some(low), Some(high), _] = ranges {
            let Ok(Some(start)) = self.dwarf.attr_address(unit, *low) else { return };
            let end = match self.dwarf.attr_address(unit, *high) {
                Ok(Some(end)) => Some(end),
                _ => high.udata_value().map(|len| start.saturating_add(len)),
            };
            if let Some(end) = end {
                push(start, end);
            }
        } else if let Some(list) = ranges[2]
            && let Ok(Some(mut list)) = self.dwarf.attr_ranges(unit, list)
        {
            while let Ok(Some(range)) = list.next() {
                push(range.begin, range.end);
            }
        }
    }
}

/// The address named by an expression without any state, and whether it is an offset in the
/// thread-local segment.
pub(crate) fn fixed_place(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    bytes: &[u8],
) -> Option<(u64, bool)> {
    let expression = gimli::Expression(gimli::EndianSlice::new(bytes, gimli::LittleEndian));
    let mut operations = expression.operations(unit.encoding());
    let mut address = match operations.next().ok()?? {
        gimli::Operation::Address { address } => address,
        gimli::Operation::AddressIndex { index } => dwarf.address(unit, index).ok()?,
        gimli::Operation::UnsignedConstant { value } => {
            return is_tls(&mut operations).then_some((value, true));
        }
        gimli::Operation::SignedConstant { value } => {
            return is_tls(&mut operations).then_some((value.cast_unsigned(), true));
        }
        gimli::Operation::ConstantIndex { index } => {
            let value = dwarf.address(unit, index).ok()?;
            return is_tls(&mut operations).then_some((value, true));
        }
        _ => return None,
    };
    match operations.next().ok()? {
        None => return Some((address, false)),
        Some(gimli::Operation::TLS) => return Some((address, true)),
        // Members of a Fortran common block.
        Some(gimli::Operation::PlusConstant { value }) => address = address.wrapping_add(value),
        Some(_) => return None,
    }
    matches!(operations.next(), Ok(None)).then_some((address, false))
}

fn is_tls(operations: &mut gimli::OperationIter<Slice<'_>>) -> bool {
    matches!(operations.next(), Ok(Some(gimli::Operation::TLS))) && matches!(operations.next(), Ok(None))
}
