//! The debug information of one module, read unit by unit on request of an address.

use std::collections::HashMap;
use std::sync::Arc;

use gimli::UnitHeader;

use crate::module::{Module, Slice};
use crate::reason::Reason;
use crate::statics::Statics;
use crate::unit::{Function, Unit};

/// Index of a unit in the module.
pub(crate) type UnitAt = usize;

/// A module's debug information, read as far as it was asked for.
pub(crate) struct Debug {
    /// Offsets of the unit headers in `.debug_info`.
    units: Vec<gimli::DebugInfoOffset>,
    /// Code ranges: start, end, unit.
    ranges: Vec<(u64, u64, UnitAt)>,
    read: HashMap<UnitAt, Arc<UnitState>>,
    statics: Option<Statics>,
    /// Whether the list of units ended early.
    broken: bool,
}

/// A unit, and whether the reading reached the end.
pub(crate) struct UnitState {
    /// Offset of its header in `.debug_info`.
    pub(crate) start: usize,
    pub(crate) unit: Unit,
    pub(crate) split: bool,
    pub(crate) broken: bool,
}

impl Debug {
    /// Lists the units and their code.
    pub(crate) fn index(module: &Module) -> Self {
        let mut this = Debug {
            units: Vec::new(),
            ranges: Vec::new(),
            read: HashMap::new(),
            statics: None,
            broken: false,
        };
        let dwarf = module.dwarf();
        let mut headers = dwarf.units();
        loop {
            let header = match headers.next() {
                Ok(Some(header)) => header,
                Ok(None) => break,
                Err(_) => {
                    this.broken = true;
                    break;
                }
            };
            let Some(offset) = header.debug_info_offset() else { continue };
            let at = this.units.len();
            this.units.push(offset);
            if this.add_ranges(&dwarf, header, at).is_err() {
                this.broken = true;
            }
        }
        this.ranges.sort_unstable();
        this
    }

    fn add_ranges<'a>(
        &mut self,
        dwarf: &gimli::Dwarf<Slice<'a>>,
        header: UnitHeader<Slice<'a>>,
        at: UnitAt,
    ) -> gimli::Result<()> {
        let unit = dwarf.unit(header)?;
        let mut ranges = dwarf.unit_ranges(&unit)?;
        while let Some(range) = ranges.next()? {
            if range.begin < range.end && range.begin != 0 {
                self.ranges.push((range.begin, range.end, at));
            }
        }
        Ok(())
    }

    /// The unit whose code holds the address.
    pub(crate) fn unit_of(&mut self, module: &Module, address: u64) -> Result<Arc<UnitState>, Reason> {
        if !module.has_debug_info() {
            return Err(Reason::NoDebugInfo);
        }
        let behind = self.ranges.partition_point(|(start, ..)| *start <= address);
        let found = behind.checked_sub(1).and_then(|at| self.ranges.get(at));
        let at = match found {
            Some((_, end, unit)) if address < *end => *unit,
            _ if self.broken => return Err(Reason::BrokenDebugInfo),
            _ => return Err(Reason::NotCovered),
        };
        let unit = self.unit(module, at).ok_or(Reason::BrokenDebugInfo)?;
        if unit.split {
            return Err(Reason::SplitDebugInfo);
        }
        Ok(unit)
    }

    /// A unit by index, read at the first request.
    pub(crate) fn unit(&mut self, module: &Module, at: UnitAt) -> Option<Arc<UnitState>> {
        if let Some(unit) = self.read.get(&at) {
            return Some(unit.clone());
        }
        let dwarf = module.dwarf();
        let start = *self.units.get(at)?;
        let header = dwarf.debug_info.header_from_offset(start).ok()?;
        let parsed = dwarf.unit(header).ok()?;
        let split = parsed.dwo_name().ok().flatten().is_some();
        let (unit, error) = Unit::read(parsed.unit_ref(&dwarf));
        let state = Arc::new(UnitState { start: start.0, unit, split, broken: error.is_some() });
        self.read.insert(at, state.clone());
        Some(state)
    }

    /// The function whose code holds the address.
    pub(crate) fn function(state: &UnitState, address: u64) -> Result<&Function, Reason> {
        let holds = |function: &&Function| function.code.iter().any(|range| range.contains(&address));
        let none = if state.broken { Reason::BrokenDebugInfo } else { Reason::NotCovered };
        state.unit.functions.iter().find(holds).ok_or(none)
    }

    /// The static variable around an address, with unit,
    /// and offset in the variable. Looks at all units once.
    pub(crate) fn static_at(
        &mut self,
        module: &Module,
        address: u64,
    ) -> Option<(Arc<UnitState>, usize, u64)> {
        self.covering(module, address, false)
    }

    /// The same for an offset in the thread-local block.
    pub(crate) fn thread_local_at(
        &mut self,
        module: &Module,
        offset: u64,
    ) -> Option<(Arc<UnitState>, usize, u64)> {
        self.covering(module, offset, true)
    }

    fn covering(&mut self, module: &Module, address: u64, tls: bool) -> Option<(Arc<UnitState>, usize, u64)> {
        let statics = match self.statics.take() {
            Some(statics) => statics,
            None => self.all_statics(module),
        };
        let index = if tls { &statics.thread_local } else { &statics.by_address };
        let found = index.range(..=address).next_back().map(|(start, at)| (*start, *at));
        self.statics = Some(statics);
        let (start, (unit_at, entry)) = found?;
        let state = self.unit(module, unit_at)?;
        let variable_at = state.unit.statics.binary_search_by_key(&entry, |(at, _)| *at).ok()?;
        let (_, variable) = state.unit.statics.get(variable_at)?;
        let by_type = variable.of.and_then(|of| state.unit.types.size(of));
        let by_symbol =
            Module::covering(&module.variables, start).filter(|symbol| !tls && symbol.address == start);
        // An array that is declared without a size has only the symbol's.
        let size = by_type.filter(|size| *size > 0).or(by_symbol.map(|symbol| symbol.size)).unwrap_or(1);
        let inside = address - start;
        (inside < size.max(1)).then_some((state, variable_at, inside))
    }

    fn all_statics(&self, module: &Module) -> Statics {
        let mut statics = Statics::default();
        let dwarf = module.dwarf();
        for (at, offset) in self.units.iter().enumerate() {
            let Ok(header) = dwarf.debug_info.header_from_offset(*offset) else { continue };
            let Ok(unit) = dwarf.unit(header) else { continue };
            // A fault ends the unit; variables before the fault stay.
            let _broken = statics.add(unit.unit_ref(&dwarf), at);
        }
        statics
    }
}
