//! Reads DWARF types into the graph of [`crate::types`]: types contained by value with the
//! variable's, types of pointers' targets on request.
//!
//! Source: DWARF 5, §5. Qualifiers are left out, so `const cell` and `cell` are one type. A struct
//! that a unit only declares is looked for by name in the module's other units. Sizes that depend
//! on run-time values (Fortran's allocatable arrays, C99's variable-length arrays) are unknown.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use gimli::{AttributeValue, DebuggingInformationEntry, Unit, constants as dw};

use crate::debug::Die;
use crate::elf::Slice;
use crate::named::{Declared, TypeId};
use crate::session::{Session, at};
use crate::types::{FLEXIBLE, Member, Shape, Type, Types};

/// Nesting by value after which a type is given up: deeper than any real program's.
const MAX_DEPTH: usize = 64;
/// Members after which a struct is given up.
const MAX_MEMBERS: usize = 1 << 16;

/// Reads types of one module.
pub(crate) struct TypeReader<'r, 'a> {
    pub(crate) session: &'r Session<'a>,
    pub(crate) types: &'r mut Types,
    pub(crate) module: u32,
    reading: HashSet<Die>,
}

type Entry<'a> = DebuggingInformationEntry<Slice<'a>>;

impl<'r, 'a> TypeReader<'r, 'a> {
    pub(crate) fn new(session: &'r Session<'a>, types: &'r mut Types, module: u32) -> Self {
        Self { session, types, module, reading: HashSet::new() }
    }

    /// The type at an entry. `None` when it cannot be read.
    pub(crate) fn read(&mut self, die: Die) -> Option<TypeId> {
        if let Some(known) = self.types.by_die.get(&(self.module, die)) {
            return *known;
        }
        // A type that contains itself by value is no type.
        if self.reading.len() > MAX_DEPTH || !self.reading.insert(die) {
            return None;
        }
        let read = self.read_new(die);
        self.reading.remove(&die);
        self.types.by_die.insert((self.module, die), read);
        read
    }

    fn read_new(&mut self, die: Die) -> Option<TypeId> {
        let unit = self.session.unit(die.unit)?;
        let entry = unit.entry(at(die)).ok()?;
        // It represents a type with its own unit.
        let signed = entry.attr_value(dw::DW_AT_signature);
        if let Some(elsewhere) = signed.and_then(|signature| self.session.follow(die.unit, &signature)) {
            return self.read(elsewhere);
        }
        match entry.tag() {
            dw::DW_TAG_const_type
            | dw::DW_TAG_volatile_type
            | dw::DW_TAG_restrict_type
            | dw::DW_TAG_atomic_type
            | dw::DW_TAG_immutable_type
            | dw::DW_TAG_packed_type
            | dw::DW_TAG_shared_type => match self.target(die.unit, &entry) {
                Some(target) => self.read(target),
                None => Some(self.types.unnamed()),
            },
            dw::DW_TAG_typedef => self.alias(die, &unit, &entry),
            dw::DW_TAG_pointer_type | dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type => {
                let name = self.name(die, 0);
                let to = self.target(die.unit, &entry).map(|to| (self.module, to));
                let bytes = udata(&entry, dw::DW_AT_byte_size).unwrap_or(8);
                Some(self.types.add(Type {
                    name: name.into(),
                    bytes: Some(bytes),
                    declared: None,
                    shape: Shape::Pointer { to },
                }))
            }
            dw::DW_TAG_array_type => self.array(die, &unit, &entry),
            dw::DW_TAG_structure_type
            | dw::DW_TAG_class_type
            | dw::DW_TAG_union_type
            | dw::DW_TAG_interface_type => self.record(die, &unit, &entry),
            dw::DW_TAG_ptr_to_member_type => Some(self.scalar(die, &entry, Some(8))),
            _ => Some(self.scalar(die, &entry, None)),
        }
    }

    fn scalar(&mut self, die: Die, entry: &Entry<'a>, otherwise: Option<u64>) -> TypeId {
        let bytes = udata(entry, dw::DW_AT_byte_size).or(otherwise);
        let name = self.name(die, 0).into();
        self.types.add(Type { name, bytes, declared: None, shape: Shape::Scalar })
    }

    fn alias(&mut self, die: Die, unit: &Unit<Slice<'a>>, entry: &Entry<'a>) -> Option<TypeId> {
        let name: Arc<str> = self.name(die, 0).into();
        let Some(target) = self.target(die.unit, entry) else {
            return Some(self.scalar(die, entry, None));
        };
        let of = self.read(target)?;
        let ty = self.types.get(of)?.clone();
        if is_anonymous(&ty.name) {
            // `typedef struct { … } cell;`: the typedef is the struct's name.
            let declared = ty.declared.or_else(|| self.declared(unit, entry));
            if let Shape::Record { members, .. } = &ty.shape {
                let signatures: Vec<u64> = members.iter().map(|member| self.signature(member.ty)).collect();
                return Some(self.types.add_record(Type { name, declared, ..ty }, &signatures));
            }
            return Some(self.types.add(Type { name, declared, ..ty }));
        }
        Some(self.types.add(Type { name, bytes: ty.bytes, declared: None, shape: Shape::Alias { of } }))
    }

    fn array(&mut self, die: Die, unit: &Unit<Slice<'a>>, entry: &Entry<'a>) -> Option<TypeId> {
        let name: Arc<str> = self.name(die, 0).into();
        // A descriptor stands at the variable's place, the elements elsewhere.
        let elsewhere = [dw::DW_AT_data_location, dw::DW_AT_allocated, dw::DW_AT_associated];
        let target = self.target(die.unit, entry);
        if elsewhere.iter().any(|attribute| entry.has_attr(*attribute)) {
            let to = target.map(|to| (self.module, to));
            return Some(self.types.add(Type {
                name,
                bytes: None,
                declared: None,
                shape: Shape::Pointer { to },
            }));
        }
        let element = match target {
            Some(target) => self.read(target)?,
            None => self.types.unnamed(),
        };
        let stride = udata(entry, dw::DW_AT_byte_stride).or_else(|| self.types.bytes(element)).unwrap_or(0);
        let counts = self.dimensions(unit, die);
        let dimensions = u8::try_from(counts.len().max(1)).unwrap_or(u8::MAX);
        let count =
            counts.iter().try_fold(1u64, |product, count| count.and_then(|count| product.checked_mul(count)));
        let count = if counts.is_empty() { None } else { count };
        let bytes = udata(entry, dw::DW_AT_byte_size).or_else(|| count?.checked_mul(stride));
        let shape = Shape::Array { element, stride, count, dimensions };
        Some(self.types.add(Type { name, bytes, declared: None, shape }))
    }

    /// Number of elements of each dimension, `None` where it is not fixed.
    fn dimensions(&self, unit: &Unit<Slice<'a>>, die: Die) -> Vec<Option<u64>> {
        let mut found = Vec::new();
        let Ok(mut tree) = unit.entries_tree(Some(at(die))) else { return found };
        let Ok(root) = tree.root() else { return found };
        let mut children = root.children();
        while let Ok(Some(child)) = children.next() {
            let entry = child.entry();
            if !matches!(entry.tag(), dw::DW_TAG_subrange_type | dw::DW_TAG_enumeration_type)
                || found.len() > 16
            {
                continue;
            }
            let upper = sdata(entry, dw::DW_AT_upper_bound);
            let lower = match entry.attr_value(dw::DW_AT_lower_bound) {
                Some(_) => sdata(entry, dw::DW_AT_lower_bound),
                None => Some(i64::from(is_one_based(unit))),
            };
            found.push(udata(entry, dw::DW_AT_count).or_else(|| {
                // `int a[]` and `int a[0]` have an upper bound of -1 or none.
                u64::try_from(upper?.checked_sub(lower?)?.checked_add(1)?).ok()
            }));
        }
        found
    }

    fn record(&mut self, die: Die, unit: &Unit<Slice<'a>>, entry: &Entry<'a>) -> Option<TypeId> {
        if entry.has_attr(dw::DW_AT_declaration) {
            return match self.session.definition(&self.own_name(unit, entry).unwrap_or_default()) {
                Some(elsewhere) if elsewhere != die => self.read(elsewhere),
                _ => Some(self.scalar(die, entry, None)),
            };
        }
        let bytes = udata(entry, dw::DW_AT_byte_size);
        let mut members = Vec::new();
        self.members(unit, die, &mut members, 0);
        members.sort_by_key(|member| (member.offset, member.bits.map_or(0, |(bit, _)| bit)));
        if let [first, .., last] = members.as_mut_slice()
            && last.bytes == 0
            && last.offset > first.offset
            && matches!(
                self.types.get(self.types.strip(last.ty)),
                Some(Type { shape: Shape::Array { .. }, .. })
            )
        {
            last.bytes = FLEXIBLE;
        }
        let name: Arc<str> = self.name(die, 0).into();
        let declared = self.declared(unit, entry);
        let element = is_vector(&name).then(|| self.parameter(unit, die)).flatten();
        let signatures: Vec<u64> = members.iter().map(|member| self.signature(member.ty)).collect();
        let shape = Shape::Record { members, element: element.map(|element| (self.module, element)) };
        Some(self.types.add_record(Type { name, bytes, declared, shape }, &signatures))
    }

    /// Equal for types that are the same in the source, seen from different units. For a pointer's
    /// target, name, size and the names and types of members count: nested types of templates share
    /// their names.
    fn signature(&self, id: TypeId) -> u64 {
        let mut hash = DefaultHasher::new();
        let id = self.types.strip(id);
        match self.types.get(id) {
            Some(Type { shape: Shape::Record { .. }, .. }) => id.0.hash(&mut hash),
            Some(Type { shape: Shape::Array { element, count, .. }, .. }) => {
                (self.signature(*element), count).hash(&mut hash);
            }
            Some(Type { name, bytes, shape, .. }) => {
                (name, bytes).hash(&mut hash);
                if let Shape::Pointer { to: Some((module, to)) } = shape
                    && *module == self.module
                {
                    self.hash_pointee(*to, &mut hash);
                }
            }
            None => {}
        }
        hash.finish()
    }

    fn hash_pointee(&self, to: Die, hash: &mut DefaultHasher) {
        let Some(unit) = self.session.unit(to.unit) else { return };
        let Ok(mut tree) = unit.entries_tree(Some(at(to))) else { return };
        let Ok(root) = tree.root() else { return };
        udata(root.entry(), dw::DW_AT_byte_size).hash(hash);
        if let Some(AttributeValue::DebugTypesRef(signature)) = root.entry().attr_value(dw::DW_AT_signature) {
            signature.0.hash(hash);
        }
        if !root.entry().has_attr(dw::DW_AT_byte_size) {
            return;
        }
        let mut children = root.children();
        while let Ok(Some(child)) = children.next() {
            let entry = child.entry();
            if matches!(entry.tag(), dw::DW_TAG_member | dw::DW_TAG_inheritance) {
                self.own_name(&unit, entry).hash(hash);
                self.target(to.unit, entry).map(|target| self.name(target, 0)).hash(hash);
            }
        }
    }

    /// The type that a record was instantiated for.
    fn parameter(&self, unit: &Unit<Slice<'a>>, die: Die) -> Option<Die> {
        let mut tree = unit.entries_tree(Some(at(die))).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Ok(Some(child)) = children.next() {
            let entry = child.entry();
            if entry.tag() == dw::DW_TAG_template_type_parameter
                && self.own_name(unit, entry).as_deref() == Some("T")
            {
                return self.target(die.unit, entry);
            }
        }
        None
    }

    /// Appends the members below an entry: of a record, or of the variants of a Rust enum.
    fn members(&mut self, unit: &Unit<Slice<'a>>, die: Die, into: &mut Vec<Member>, depth: usize) {
        let mut below = Vec::new();
        {
            let Ok(mut tree) = unit.entries_tree(Some(at(die))) else { return };
            let Ok(root) = tree.root() else { return };
            let mut children = root.children();
            while let Ok(Some(child)) = children.next() {
                below.push(child.entry().clone());
            }
        }
        for entry in below {
            if into.len() >= MAX_MEMBERS {
                return;
            }
            let Ok(offset) = u32::try_from(entry.offset().0) else { continue };
            let child = Die { unit: die.unit, offset };
            match entry.tag() {
                dw::DW_TAG_member | dw::DW_TAG_inheritance => {
                    if let Some(member) = self.member(unit, die.unit, &entry) {
                        into.push(member);
                    }
                }
                dw::DW_TAG_variant_part | dw::DW_TAG_variant if depth < 4 => {
                    self.members(unit, child, into, depth + 1);
                }
                _ => {}
            }
        }
    }

    fn member(&mut self, unit: &Unit<Slice<'a>>, unit_index: u32, entry: &Entry<'a>) -> Option<Member> {
        // Static members are declared here and lie elsewhere.
        if entry.has_attr(dw::DW_AT_external) || entry.has_attr(dw::DW_AT_const_value) {
            return None;
        }
        let target = self.target(unit_index, entry)?;
        let ty = self.read(target)?;
        let storage = udata(entry, dw::DW_AT_byte_size).or_else(|| self.types.bytes(ty)).unwrap_or(0);
        let bit_size = udata(entry, dw::DW_AT_bit_size);
        let byte_offset = match entry.attr_value(dw::DW_AT_data_member_location) {
            None => None,
            Some(AttributeValue::Exprloc(expression)) => Some(constant_offset(unit, expression)?),
            Some(value) => Some(value.udata_value()?),
        };
        let first_bit = match (bit_size, entry.attr_value(dw::DW_AT_data_bit_offset)) {
            (None, _) => None,
            (Some(_), Some(bit)) => {
                Some(byte_offset.unwrap_or(0).checked_mul(8)?.checked_add(bit.udata_value()?)?)
            }
            (Some(size), None) => {
                // DWARF 2 and 3: counted from the storage unit's most significant bit.
                let from_top = udata(entry, dw::DW_AT_bit_offset).unwrap_or(0);
                let in_storage = storage.checked_mul(8)?.checked_sub(from_top)?.checked_sub(size)?;
                Some(byte_offset.unwrap_or(0).checked_mul(8)?.checked_add(in_storage)?)
            }
        };
        let name: Arc<str> = match entry.tag() {
            dw::DW_TAG_inheritance => "".into(),
            _ => member_name(&self.own_name(unit, entry).unwrap_or_default()).into(),
        };
        Some(match (first_bit, bit_size) {
            (Some(bit), Some(size)) => {
                let offset = bit / 8;
                let bytes = (bit % 8).checked_add(size)?.div_ceil(8);
                Member { name, ty, offset, bytes, bits: Some((bit % 8, size)) }
            }
            _ => Member { name, ty, offset: byte_offset.unwrap_or(0), bytes: storage, bits: None },
        })
    }

    /// Where `DW_AT_type` leads.
    pub(crate) fn target(&self, unit: u32, entry: &Entry<'a>) -> Option<Die> {
        self.session.follow(unit, &entry.attr_value(dw::DW_AT_type)?)
    }

    fn own_name(&self, unit: &Unit<Slice<'a>>, entry: &Entry<'a>) -> Option<String> {
        self.session.text(unit, entry.attr_value(dw::DW_AT_name)?)
    }

    fn declared(&self, unit: &Unit<Slice<'a>>, entry: &Entry<'a>) -> Option<Declared> {
        self.session.declared(unit, entry)
    }

    /// A type's name in the source, without reading its content.
    pub(crate) fn name(&self, die: Die, depth: usize) -> String {
        let found = (|| {
            if depth > 16 {
                return None;
            }
            let unit = self.session.unit(die.unit)?;
            let entry = unit.entry(at(die)).ok()?;
            if let Some(name) = self.own_name(&unit, &entry) {
                return Some(name);
            }
            if let Some(signature) = entry.attr_value(dw::DW_AT_signature)
                && let Some(elsewhere) = self.session.follow(die.unit, &signature)
            {
                return Some(self.name(elsewhere, depth + 1));
            }
            let target = || match self.target(die.unit, &entry) {
                Some(target) => self.name(target, depth + 1),
                None => "void".to_owned(),
            };
            let pointer = |mark: &str| {
                let target = target();
                if target.ends_with('*') { format!("{target}{mark}") } else { format!("{target} {mark}") }
            };
            Some(match entry.tag() {
                dw::DW_TAG_pointer_type => pointer("*"),
                dw::DW_TAG_reference_type => pointer("&"),
                dw::DW_TAG_rvalue_reference_type => pointer("&&"),
                dw::DW_TAG_array_type => {
                    let mut name = target();
                    if language(&unit) == Some(dw::DW_LANG_Rust) {
                        for count in self.dimensions(&unit, die) {
                            name = format!("[{name}; {}]", count.map_or("_".to_owned(), |n| n.to_string()));
                        }
                        return Some(name);
                    }
                    name.push(' ');
                    if is_one_based(&unit) {
                        let extent = |count: Option<u64>| count.map_or(":".to_owned(), |n| n.to_string());
                        let extents: Vec<String> =
                            self.dimensions(&unit, die).into_iter().map(extent).collect();
                        return Some(format!("{name}({})", extents.join(",")));
                    }
                    for count in self.dimensions(&unit, die) {
                        name += &count.map_or("[]".to_owned(), |count| format!("[{count}]"));
                    }
                    name
                }
                dw::DW_TAG_subroutine_type => "function".to_owned(),
                dw::DW_TAG_ptr_to_member_type => "pointer to member".to_owned(),
                dw::DW_TAG_structure_type => "<anonymous struct>".to_owned(),
                dw::DW_TAG_class_type => "<anonymous class>".to_owned(),
                dw::DW_TAG_union_type => "<anonymous union>".to_owned(),
                dw::DW_TAG_enumeration_type => "<anonymous enum>".to_owned(),
                _ => target(),
            })
        })();
        found.unwrap_or_else(|| "?".to_owned())
    }
}

/// Rust's containers of elements side by side.
fn is_vector(name: &str) -> bool {
    ["Vec<", "VecDeque<"].iter().any(|start| name.starts_with(start))
}

fn is_anonymous(name: &str) -> bool {
    name.starts_with("<anonymous ")
}

/// Rust numbers a tuple's members `__0`; gcc calls the table pointer `_vptr.Base`.
fn member_name(name: &str) -> &str {
    match name.strip_prefix("__") {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => digits,
        _ if name.starts_with("_vptr") => "<vtable>",
        _ => name,
    }
}

/// `DW_OP_plus_uconst n`, as DWARF 2 writes offsets. Those of virtual base classes are computed at run time.
fn constant_offset(unit: &Unit<Slice<'_>>, expression: gimli::Expression<Slice<'_>>) -> Option<u64> {
    let mut operations = expression.operations(unit.encoding());
    let first = operations.next().ok()??;
    let None = operations.next().ok()? else { return None };
    match first {
        gimli::Operation::PlusConstant { value } | gimli::Operation::UnsignedConstant { value } => {
            Some(value)
        }
        _ => None,
    }
}

fn language(unit: &Unit<Slice<'_>>) -> Option<gimli::DwLang> {
    match unit.entry(unit.header.root_offset()).ok()?.attr_value(dw::DW_AT_language)? {
        AttributeValue::Language(language) => Some(language),
        _ => None,
    }
}

/// Fortran counts from 1 unless the entry says otherwise (DWARF 5, table 7.17).
fn is_one_based(unit: &Unit<Slice<'_>>) -> bool {
    let language = language(unit);
    matches!(
        language,
        Some(
            dw::DW_LANG_Fortran77
                | dw::DW_LANG_Fortran90
                | dw::DW_LANG_Fortran95
                | dw::DW_LANG_Fortran03
                | dw::DW_LANG_Fortran08
                | dw::DW_LANG_Ada83
                | dw::DW_LANG_Ada95
                | dw::DW_LANG_Pascal83
                | dw::DW_LANG_Modula2
                | dw::DW_LANG_Cobol74
                | dw::DW_LANG_Cobol85
                | dw::DW_LANG_PLI
                | dw::DW_LANG_Julia
        )
    )
}

pub(crate) fn udata(entry: &Entry<'_>, name: dw::DwAt) -> Option<u64> {
    entry.attr_value(name)?.udata_value()
}

fn sdata(entry: &Entry<'_>, name: dw::DwAt) -> Option<i64> {
    match entry.attr_value(name)? {
        AttributeValue::Sdata(value) => Some(value),
        // Fixed-size forms have no sign; gimli would give them one.
        value => i64::try_from(value.udata_value()?).ok(),
    }
}
