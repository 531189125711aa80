//! The debug information of one module, read unit by unit when an address asks for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gimli::UnitHeader;

use crate::module::{Module, Slice};
use crate::reason::Reason;
use crate::unit::{Function, Spot, Unit, Variable};

/// Index of a unit in the module.
pub(crate) type UnitAt = usize;

/// A module's debug information, read as far as it was asked for.
pub(crate) struct Debug {
    /// Offsets of the unit headers in `.debug_info`.
    units: Vec<gimli::DebugInfoOffset>,
    /// Code ranges: start, end, unit.
    ranges: Vec<(u64, u64, UnitAt)>,
    read: HashMap<UnitAt, Arc<UnitState>>,
    /// Start of each static variable's memory to its unit and index there; of thread-local ones the offset.
    statics: Option<(StaticIndex, StaticIndex)>,
    /// Whether the list of units ended early.
    broken: bool,
}

type StaticIndex = BTreeMap<u64, (UnitAt, usize)>;

/// A unit, and whether reading it came to its end.
pub(crate) struct UnitState {
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

    /// A unit by its index, read if it was not yet.
    pub(crate) fn unit(&mut self, module: &Module, at: UnitAt) -> Option<Arc<UnitState>> {
        if let Some(unit) = self.read.get(&at) {
            return Some(unit.clone());
        }
        let dwarf = module.dwarf();
        let header = dwarf.debug_info.header_from_offset(*self.units.get(at)?).ok()?;
        let parsed = dwarf.unit(header).ok()?;
        let split = parsed.dwo_name().ok().flatten().is_some();
        let (unit, error) = Unit::read(parsed.unit_ref(&dwarf));
        let state = Arc::new(UnitState { unit, split, broken: error.is_some() });
        self.read.insert(at, state.clone());
        Some(state)
    }

    /// The function whose code holds the address.
    pub(crate) fn function(state: &UnitState, address: u64) -> Result<&Function, Reason> {
        let holds = |function: &&Function| function.code.iter().any(|range| range.contains(&address));
        let none = if state.broken { Reason::BrokenDebugInfo } else { Reason::NotCovered };
        state.unit.functions.iter().find(holds).ok_or(none)
    }

    /// The static variable that covers an address, with its unit, and the address's offset in it. Reads all units.
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
        if self.statics.is_none() {
            let found = self.all_statics(module);
            self.statics = Some(found);
        }
        let (statics, thread_local) = self.statics.as_ref()?;
        let index = if tls { thread_local } else { statics };
        let (start, (unit_at, variable_at)) =
            index.range(..=address).next_back().map(|(start, at)| (*start, *at))?;
        let state = self.unit(module, unit_at)?;
        let variable = state.unit.statics.get(variable_at)?;
        let by_type = variable.of.and_then(|of| state.unit.types.size(of));
        let by_symbol =
            Module::covering(&module.variables, start).filter(|symbol| !tls && symbol.address == start);
        // An array that is declared without a size has only the symbol's.
        let size = by_type.filter(|size| *size > 0).or(by_symbol.map(|symbol| symbol.size)).unwrap_or(1);
        let inside = address - start;
        (inside < size.max(1)).then_some((state, variable_at, inside))
    }

    fn all_statics(&mut self, module: &Module) -> (StaticIndex, StaticIndex) {
        let (mut statics, mut thread_local) = (StaticIndex::new(), StaticIndex::new());
        for at in 0..self.units.len() {
            let Some(state) = self.unit(module, at) else { continue };
            for (index, variable) in state.unit.statics.iter().enumerate() {
                match first_spot(variable) {
                    Some(Spot::Address(address)) if address != 0 => {
                        statics.entry(address).or_insert((at, index));
                    }
                    Some(Spot::ThreadLocal(offset)) => {
                        thread_local.entry(offset).or_insert((at, index));
                    }
                    _ => {}
                }
            }
        }
        (statics, thread_local)
    }
}

fn first_spot(variable: &Variable) -> Option<Spot> {
    variable.places.first().map(|place| place.spot)
}
