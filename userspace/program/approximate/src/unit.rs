//! One compilation unit of the debug information as owned values: functions with their variables
//! and places, static variables, types, lines.
//!
//! DWARF 4 and 5 (§2.6 locations, §3.3 functions, §4.1 variables). A variable belongs to the
//! function in whose code it lives; of an inlined function it bears that one's name. Location
//! expressions beyond a register, a place relative to a register or the frame, an address and a
//! register's value plus a constant are left out.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use gimli::{AttributeValue, DebuggingInformationEntry, Expression, Operation, UnitOffset, UnitRef};

use crate::lines::Lines;
use crate::module::Slice;
use crate::types::{Member, Shape, Type, TypeAt, Types};

/// Deepest nesting of entries that is followed.
const DEEPEST: isize = 200;

/// Where a variable is while the code runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spot {
    /// In the register of that DWARF number.
    Register(u16),
    /// In memory at the frame base plus this.
    Frame(i64),
    /// In memory at an address of the module.
    Address(u64),
    /// In memory at an offset in the module's thread-local block.
    ThreadLocal(u64),
    /// In memory at a register plus this.
    Memory(u16, i64),
    /// Nowhere, but equal to a register plus this.
    Value(u16, i64),
}

/// A spot and its code addresses; without addresses it holds everywhere.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) code: Option<Range<u64>>,
    pub(crate) spot: Spot,
}

#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) name: Arc<str>,
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: u32,
    pub(crate) of: Option<TypeAt>,
    /// Function around its source; `None` for globals.
    pub(crate) function: Option<Arc<str>>,
    pub(crate) places: Vec<Place>,
}

/// How the frame base of a function is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameBase {
    /// The canonical frame address: the stack pointer before the call.
    Cfa,
    /// A register plus this.
    Register(u16, i64),
    Unknown,
}

#[derive(Debug, Clone)]
pub(crate) struct Function {
    pub(crate) name: Option<Arc<str>>,
    /// Its code; the entry is the start of the first.
    pub(crate) code: Vec<Range<u64>>,
    pub(crate) frame_base: FrameBase,
    /// All variables and parameters of the function and of its inlined code.
    pub(crate) variables: Vec<Variable>,
}

/// One unit.
#[derive(Debug, Default)]
pub(crate) struct Unit {
    pub(crate) functions: Vec<Function>,
    /// With their entries, in order.
    pub(crate) statics: Vec<(TypeAt, Variable)>,
    pub(crate) types: Types,
    pub(crate) lines: Lines,
}

/// Name, type and place of declaration of an entry, as given by itself.
#[derive(Debug, Clone, Default)]
struct Own {
    name: Option<Arc<str>>,
    of: Option<TypeAt>,
    file: Option<u64>,
    line: u32,
    /// The linker's name of a global variable, which is qualified.
    linkage: Option<Arc<str>>,
    /// Entry with the missing attributes.
    origin: Option<TypeAt>,
}

struct Reader<'a> {
    unit: UnitRef<'a, Slice<'a>>,
    own: HashMap<TypeAt, Own>,
    types: HashMap<TypeAt, Type>,
    strings: HashMap<&'a [u8], Arc<str>>,
    /// Functions with code: entry, what is known, variables.
    functions: Vec<(TypeAt, Function, Vec<Found>)>,
    statics: Vec<Found>,
}

/// A variable entry, its names yet to be looked up.
struct Found {
    at: TypeAt,
    /// Entry of the function around its source.
    within: Option<TypeAt>,
    places: Vec<Place>,
}

/// Kinds of the entries above the current one.
#[derive(Clone, Copy)]
enum Scope {
    /// Type entry that takes members.
    Type(TypeAt),
    /// Function or inlined call: its entry, and the index of the function with the code.
    Function(TypeAt, Option<usize>),
    Other,
}

impl Unit {
    /// Reads a unit, up to a fault in it: the part before stays.
    pub(crate) fn read<'a>(unit: UnitRef<'a, Slice<'a>>) -> (Self, Option<gimli::Error>) {
        let lines = Lines::read(&unit);
        let mut reader = Reader {
            unit,
            own: HashMap::new(),
            types: HashMap::new(),
            strings: HashMap::new(),
            functions: Vec::new(),
            statics: Vec::new(),
        };
        let error = reader.walk().err();
        (reader.finish(lines), error)
    }
}

impl<'a> Reader<'a> {
    fn walk(&mut self) -> gimli::Result<()> {
        let mut scopes: Vec<(isize, Scope)> = Vec::new();
        let unit = self.unit;
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs()? {
            let depth = entry.depth();
            if depth > DEEPEST {
                continue;
            }
            while scopes.last().is_some_and(|(above, _)| *above >= depth) {
                scopes.pop();
            }
            let function = scopes.iter().rev().find_map(|(_, scope)| match scope {
                Scope::Function(at, index) => Some((*at, *index)),
                _ => None,
            });
            let scope = self.entry(entry, scopes.last().map(|(_, scope)| *scope), function)?;
            scopes.push((depth, scope));
        }
        Ok(())
    }

    fn entry(
        &mut self,
        entry: &DebuggingInformationEntry<Slice<'a>>,
        parent: Option<Scope>,
        function: Option<(TypeAt, Option<usize>)>,
    ) -> gimli::Result<Scope> {
        let at = entry.offset().0;
        Ok(match entry.tag() {
            gimli::DW_TAG_subprogram => {
                let own = self.own_of(entry)?;
                self.own.insert(at, own);
                let code = self.ranges(entry)?;
                if code.is_empty() {
                    return Ok(Scope::Function(at, None));
                }
                let frame_base = self.frame_base(entry);
                let new = Function { name: None, code, frame_base, variables: Vec::new() };
                self.functions.push((at, new, Vec::new()));
                Scope::Function(at, Some(self.functions.len() - 1))
            }
            gimli::DW_TAG_inlined_subroutine => {
                let own = self.own_of(entry)?;
                self.own.insert(at, own);
                Scope::Function(at, function.and_then(|(_, index)| index))
            }
            gimli::DW_TAG_variable | gimli::DW_TAG_formal_parameter => {
                let own = self.own_of(entry)?;
                self.own.insert(at, own);
                let places = self.places(entry);
                let is_static =
                    places.iter().any(|place| matches!(place.spot, Spot::Address(_) | Spot::ThreadLocal(_)));
                let found = Found { at, within: function.map(|(at, _)| at), places };
                if is_static {
                    self.statics.push(found);
                } else if !found.places.is_empty()
                    && let Some((_, _, variables)) =
                        function.and_then(|(_, index)| index).and_then(|index| self.functions.get_mut(index))
                {
                    variables.push(found);
                }
                Scope::Other
            }
            tag => match type_tag(tag) {
                Some((shape, prefix)) => {
                    let own = self.own_of(entry)?;
                    let size = entry.attr_value(gimli::DW_AT_byte_size).and_then(|value| value.udata_value());
                    let (name, target) = (own.name, own.of);
                    let new = Type { shape, prefix, name, size, target, count: 1, members: Vec::new() };
                    self.types.insert(at, new);
                    Scope::Type(at)
                }
                None => {
                    if let Some(Scope::Type(of)) = parent {
                        self.part_of_type(entry, of)?;
                    }
                    Scope::Other
                }
            },
        })
    }

    /// Members of structs and dimensions of arrays.
    fn part_of_type(
        &mut self,
        entry: &DebuggingInformationEntry<Slice<'a>>,
        of: TypeAt,
    ) -> gimli::Result<()> {
        match entry.tag() {
            gimli::DW_TAG_member | gimli::DW_TAG_inheritance => {
                let own = self.own_of(entry)?;
                let place = entry.attr_value(gimli::DW_AT_data_member_location);
                // A static member has no place in the value.
                let is_static = entry.has_attr(gimli::DW_AT_external);
                if is_static {
                    self.own.insert(entry.offset().0, own.clone());
                }
                let offset = place.map_or(Some(0), |value| value.udata_value());
                if let (Some(offset), Some(holder), false) = (offset, self.types.get_mut(&of), is_static) {
                    holder.members.push(Member { offset, name: own.name, of: own.of });
                }
            }
            gimli::DW_TAG_subrange_type => {
                let number = |name| entry.attr_value(name).and_then(|value| value.udata_value());
                let count = number(gimli::DW_AT_count)
                    .or_else(|| number(gimli::DW_AT_upper_bound).and_then(|bound| bound.checked_add(1)));
                if let Some(holder) = self.types.get_mut(&of) {
                    holder.count = holder.count.saturating_mul(count.unwrap_or(0));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn own_of(&mut self, entry: &DebuggingInformationEntry<Slice<'a>>) -> gimli::Result<Own> {
        let mut own = Own::default();
        for attribute in entry.attrs() {
            match attribute.name() {
                gimli::DW_AT_name => own.name = self.string(attribute.value()),
                gimli::DW_AT_linkage_name => own.linkage = self.string(attribute.value()),
                gimli::DW_AT_type => own.of = reference(attribute.value()),
                gimli::DW_AT_decl_line => {
                    own.line = attribute.udata_value().and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
                }
                gimli::DW_AT_decl_file => {
                    own.file = match attribute.value() {
                        AttributeValue::FileIndex(index) => Some(index),
                        value => value.udata_value(),
                    }
                }
                gimli::DW_AT_abstract_origin | gimli::DW_AT_specification => {
                    own.origin = reference(attribute.value());
                }
                _ => {}
            }
        }
        Ok(own)
    }

    fn string(&mut self, value: AttributeValue<Slice<'a>>) -> Option<Arc<str>> {
        let text = self.unit.attr_string(value).ok()?;
        let text: &'a [u8] = text.slice();
        let shared = self.strings.entry(text).or_insert_with(|| String::from_utf8_lossy(text).into());
        Some(shared.clone())
    }

    fn ranges(&self, entry: &DebuggingInformationEntry<Slice<'a>>) -> gimli::Result<Vec<Range<u64>>> {
        let mut found = Vec::new();
        let mut ranges = self.unit.die_ranges(entry)?;
        while let Some(range) = ranges.next()? {
            // Functions that the linker threw away begin at 0.
            if range.begin < range.end && range.begin != 0 {
                found.push(range.begin..range.end);
            }
        }
        Ok(found)
    }

    fn frame_base(&self, entry: &DebuggingInformationEntry<Slice<'a>>) -> FrameBase {
        let Some(AttributeValue::Exprloc(expression)) = entry.attr_value(gimli::DW_AT_frame_base) else {
            return FrameBase::Unknown;
        };
        match operations(&self.unit, expression).as_deref() {
            Some([Operation::CallFrameCFA]) => FrameBase::Cfa,
            Some([Operation::Register { register }]) => FrameBase::Register(register.0, 0),
            Some([Operation::RegisterOffset { register, offset, .. }]) => {
                FrameBase::Register(register.0, *offset)
            }
            _ => FrameBase::Unknown,
        }
    }

    /// Broken lists and strange expressions are absence.
    fn places(&self, entry: &DebuggingInformationEntry<Slice<'a>>) -> Vec<Place> {
        let Some(value) = entry.attr_value(gimli::DW_AT_location) else { return Vec::new() };
        if let AttributeValue::Exprloc(expression) = value {
            return spot(&self.unit, expression).map(|spot| Place { code: None, spot }).into_iter().collect();
        }
        let Ok(Some(mut list)) = self.unit.attr_locations(value) else { return Vec::new() };
        let mut places = Vec::new();
        while let Ok(Some(entry)) = list.next() {
            let code = Some(entry.range.begin..entry.range.end);
            places.extend(spot(&self.unit, entry.data).map(|spot| Place { code, spot }));
        }
        places
    }

    /// Follows origins until each is known.
    fn resolved(&self, at: TypeAt) -> Own {
        let mut own = self.own.get(&at).cloned().unwrap_or_default();
        for _ in 0..8 {
            let Some(next) = own.origin.and_then(|origin| self.own.get(&origin)) else { break };
            own = Own {
                name: own.name.or_else(|| next.name.clone()),
                of: own.of.or(next.of),
                line: if own.line == 0 { next.line } else { own.line },
                file: own.file.or(next.file),
                linkage: own.linkage.or_else(|| next.linkage.clone()),
                origin: next.origin,
            };
        }
        own
    }

    fn variable(&self, found: &Found, lines: &Lines) -> Option<Variable> {
        let own = self.resolved(found.at);
        Some(Variable {
            name: qualified(&own)?,
            file: own.file.and_then(|file| lines.file(file)),
            line: own.line,
            of: own.of,
            function: found.within.and_then(|at| self.resolved(at).name),
            places: found.places.clone(),
        })
    }

    fn finish(mut self, lines: Lines) -> Unit {
        let functions = std::mem::take(&mut self.functions);
        let functions = functions
            .into_iter()
            .map(|(at, function, variables)| Function {
                name: self.resolved(at).name,
                variables: variables.iter().filter_map(|found| self.variable(found, &lines)).collect(),
                ..function
            })
            .collect();
        let statics =
            self.statics.iter().filter_map(|found| Some((found.at, self.variable(found, &lines)?))).collect();
        Unit { functions, statics, types: Types(self.types), lines }
    }
}

/// The name for people: of a global variable that has one, the demangled name of the linker.
fn qualified(own: &Own) -> Option<Arc<str>> {
    let linkage = own.linkage.as_deref().map(locality_symbols::demangle);
    let demangled = linkage.filter(|name| !name.starts_with('_'));
    demangled.map(Arc::from).or_else(|| own.name.clone())
}

fn reference(value: AttributeValue<Slice<'_>>) -> Option<TypeAt> {
    match value {
        AttributeValue::UnitRef(UnitOffset(at)) => Some(at),
        _ => None,
    }
}

fn type_tag(tag: gimli::DwTag) -> Option<(Shape, &'static str)> {
    Some(match tag {
        gimli::DW_TAG_typedef => (Shape::Alias, ""),
        gimli::DW_TAG_const_type => (Shape::Alias, "const"),
        gimli::DW_TAG_volatile_type => (Shape::Alias, "volatile"),
        gimli::DW_TAG_restrict_type => (Shape::Alias, ""),
        gimli::DW_TAG_atomic_type => (Shape::Alias, "_Atomic"),
        gimli::DW_TAG_pointer_type | gimli::DW_TAG_reference_type | gimli::DW_TAG_rvalue_reference_type => {
            (Shape::Pointer, "")
        }
        gimli::DW_TAG_array_type => (Shape::Array, ""),
        gimli::DW_TAG_structure_type => (Shape::Struct, "struct"),
        gimli::DW_TAG_class_type => (Shape::Struct, "class"),
        gimli::DW_TAG_union_type => (Shape::Struct, "union"),
        gimli::DW_TAG_base_type => (Shape::Other, ""),
        gimli::DW_TAG_enumeration_type => (Shape::Other, "enum"),
        gimli::DW_TAG_subroutine_type => (Shape::Other, "function"),
        _ => return None,
    })
}

/// A location expression as a spot, if simple enough.
pub(crate) fn spot<'a>(unit: &UnitRef<'a, Slice<'a>>, expression: Expression<Slice<'a>>) -> Option<Spot> {
    Some(match *operations(unit, expression)?.as_slice() {
        [Operation::Register { register }] => Spot::Register(register.0),
        [Operation::FrameOffset { offset }] => Spot::Frame(offset),
        [Operation::Address { address }] => Spot::Address(address),
        [Operation::AddressIndex { index }] => Spot::Address(unit.address(index).ok()?),
        [Operation::RegisterOffset { register, offset, .. }] => Spot::Memory(register.0, offset),
        [Operation::RegisterOffset { register, offset, .. }, Operation::StackValue] => {
            Spot::Value(register.0, offset)
        }
        [Operation::UnsignedConstant { value }, Operation::TLS] => Spot::ThreadLocal(value),
        _ => return None,
    })
}

fn operations<'a>(
    unit: &UnitRef<'a, Slice<'a>>,
    expression: Expression<Slice<'a>>,
) -> Option<Vec<Operation<Slice<'a>>>> {
    let mut operations = expression.operations(unit.encoding());
    let mut found = Vec::new();
    while let Some(operation) = operations.next().ok()? {
        found.push(operation);
        if found.len() > 8 {
            return None;
        }
    }
    Some(found)
}
