//! Puts split debug information together: what a program's skeleton units leave to `.dwo` files, or
//! to a `.dwp` package, becomes one debug file in memory, which all readers then take like the
//! separate debug file of a stripped program.
//!
//! A package is looked for beside the program (`PROGRAM.dwp`), a `.dwo` file where the build put it
//! and beside the program; each below the process's root and then below ours. Its id must be the
//! unit's. Units without a file stay as they are. Source: DWARF 5, §7.3. gimli converts; it writes
//! no type units, so those become ordinary ones, to which references lead by place in place of
//! signature. Limits: packages and files of more than [`MOST_BYTES`] in all are left alone, as
//! reading is not lazy here; units of DWARF 4 with type units stay split, and what gimli cannot
//! convert leaves all of the program split. A variable that gcc describes in part by a pointer to
//! no entry has no location at all.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::FromRawFd as _;
use std::path::{Path, PathBuf};

use gimli::write::{
    Address, AttributeValue, ConvertError, ConvertResult, ConvertUnit, ConvertUnitEntry, DebugInfoRef,
    EndianVec, Location, LocationList, Range, RangeList, Sections, UnitEntryId,
};
use gimli::{
    DebugInfo, DebugTypeSignature, Dwarf, DwarfPackageSections, DwarfSections, DwoId, EndianSlice,
    LittleEndian, Section as _, SectionId, UnitType,
};
use object::read::elf::ElfFile64;
use object::write::Object as Output;
use object::{
    Architecture, BinaryFormat, CompressionFormat, Endianness, Object as _, ObjectSection as _, SectionKind,
};

use crate::compressed::unpacked;
use crate::elf::Bytes;
use crate::opening::{Links, open_below, open_regular};
use crate::symbolize::guarded;

/// Largest `.dwo` files, or package, of one program.
const MOST_BYTES: usize = 64 << 20;

type Slice<'a> = EndianSlice<'a, LittleEndian>;
type Unit<'u, 'a> = ConvertUnit<'u, Slice<'a>>;
type Entry<'u, 'a> = ConvertUnitEntry<'u, Slice<'a>>;

/// The debug file of an ELF file that the process sees at `path` below `root`; `None` where nothing
/// is split, or no part is found.
pub fn unsplit(elf: &[u8], root: &Path, path: &str) -> Option<File> {
    // Only skeletons have one; nearly all other programs need not be searched.
    ElfFile64::<Endianness>::parse(elf).ok()?.section_by_name(".debug_addr")?;
    let skeletons = DwarfSections::load(|id| section(elf, id.name())).ok()?;
    let skeletons = skeletons.borrow(|section| slice(section));
    let wanted = wanted(&skeletons);
    if wanted.is_empty() {
        return None;
    }
    let open = |place: &Path| {
        let file = open_below(root, place, Links::All).or_else(|_| open_regular(place)).ok()?;
        Bytes::map(&file).ok()
    };
    let package = open(Path::new(&format!("{path}.dwp"))).filter(|bytes| bytes.len() <= MOST_BYTES);
    let package =
        package.as_ref().and_then(|bytes| DwarfPackageSections::load(|id| dwo_section(bytes, id)).ok());
    let package = package
        .as_ref()
        .and_then(|sections| sections.borrow(|section| slice(section), Slice::default()).ok());
    let mut left = MOST_BYTES;
    let mut files = Vec::new();
    for (id, place) in &wanted {
        let packed = package.as_ref().is_some_and(|package| package.cu_index.find(id.0).is_some());
        let beside = Path::new(path).with_file_name(place.file_name()?);
        if let Some(bytes) = open(place).or_else(|| open(&beside)).filter(|_| !packed) {
            left = left.checked_sub(bytes.len())?;
            files.push((*id, bytes));
        }
    }
    let mut loaded = Vec::new();
    for (id, bytes) in &files {
        loaded.push((id, DwarfSections::load(|section| dwo_section(bytes, section)).ok()?));
    }
    let (mut parts, mut types) = (HashMap::new(), Vec::new());
    for (id, sections) in &loaded {
        let load = || {
            let mut file = sections.borrow(|section| slice(section));
            file.make_dwo(&skeletons);
            file
        };
        let mut part = load();
        if let Some(unit) = compilation(&part, **id) {
            part.debug_info = DebugInfo::new(unit, LittleEndian);
            parts.insert(**id, part);
            types.push(load());
        }
    }
    // Type units of DWARF 4 have a section of their own, which gimli does not convert.
    if let Some(package) = package.filter(|package| package.debug_types.reader().is_empty()) {
        for id in wanted.keys() {
            if let Ok(Some(part)) = package.find_cu(*id, &skeletons) {
                parts.insert(*id, part);
            }
        }
        let rows = 1..=package.tu_index.unit_count();
        types.extend(rows.filter_map(|row| package.tu_sections(row, &skeletons).ok()));
    }
    if parts.is_empty() {
        return None;
    }
    guarded(|| write(&converted(&skeletons, &parts, &types).ok()?))?
}

/// The bytes of the unit with this id; `None` also for unconvertible types.
fn compilation<'a>(file: &Dwarf<Slice<'a>>, id: DwoId) -> Option<&'a [u8]> {
    let mut headers = file.units();
    while let Ok(Some(header)) = headers.next() {
        let start = header.debug_info_offset()?.0;
        let bytes = file.debug_info.reader().slice().get(start..)?.get(..header.length_including_self())?;
        if file.unit(header).is_ok_and(|unit| unit.dwo_id == Some(id)) {
            return Some(bytes).filter(|_| file.debug_types.reader().is_empty());
        }
    }
    None
}

/// Ids of split units, and where the build put their files.
fn wanted(skeletons: &Dwarf<Slice<'_>>) -> HashMap<DwoId, PathBuf> {
    let mut wanted = HashMap::new();
    let mut headers = skeletons.units();
    while let Ok(Some(header)) = headers.next() {
        let Ok(unit) = skeletons.unit(header) else { continue };
        if let (Some(id), Ok(Some(name))) = (unit.dwo_id, unit.dwo_name())
            && let Ok(name) = skeletons.attr_string(&unit, name)
        {
            let directory = unit.comp_dir.map(|directory| directory.to_string_lossy().into_owned());
            let place = Path::new(&directory.unwrap_or_default()).join(&*name.to_string_lossy());
            wanted.insert(id, place);
        }
    }
    wanted
}

/// All units, those with a part whole, and those of types.
fn converted(
    skeletons: &Dwarf<Slice<'_>>,
    parts: &HashMap<DwoId, Dwarf<Slice<'_>>>,
    types: &[Dwarf<Slice<'_>>],
) -> ConvertResult<Sections<EndianVec<LittleEndian>>> {
    let mut whole = gimli::write::Dwarf::new();
    let mut convert = whole.convert(skeletons)?;
    while let Some((mut unit, skeleton)) = convert.read_unit()? {
        let part = unit.read_unit.dwo_id.and_then(|id| parts.get(&id));
        let Some(part) = part else {
            whole_unit(&mut unit, skeleton)?;
            continue;
        };
        let mut split = unit.convert_split(part)?;
        let (mut unit, root) = split.read_unit()?;
        whole_unit(&mut unit, root)?;
        let root = unit.unit.root();
        for attribute in &skeleton.attrs {
            // Where the code is, only the skeleton says.
            if matches!(
                attribute.name(),
                gimli::DW_AT_low_pc | gimli::DW_AT_high_pc | gimli::DW_AT_ranges | gimli::DW_AT_comp_dir
            ) {
                let value = unit.convert_attribute_value(skeleton.read_unit, attribute, &constant)?;
                unit.unit.get_mut(root).set(attribute.name(), value);
            }
        }
        for name in [gimli::DW_AT_dwo_name, gimli::DW_AT_GNU_dwo_name, gimli::DW_AT_GNU_dwo_id] {
            unit.unit.get_mut(root).delete(name);
        }
        if unit.unit.version() < 5 {
            based(unit.unit);
        }
    }
    let mut signed = HashMap::new();
    for file in types {
        let mut convert = whole.convert(file)?;
        while let Some((mut unit, entry)) = convert.read_unit()? {
            let header = &unit.read_unit.header;
            let UnitType::SplitType { type_signature, type_offset } = header.type_() else {
                unit.skip();
                continue;
            };
            if let Some(place) = type_offset.to_debug_info_offset(header) {
                signed.insert(type_signature, unit.convert_debug_info_ref(place)?);
            }
            entries(&mut unit, entry, false)?;
        }
    }
    lead(&mut whole, &signed);
    let mut sections = Sections::new(EndianVec::new(LittleEndian));
    whole.write(&mut sections)?;
    Ok(sections)
}

fn constant(address: u64) -> Option<Address> {
    Some(Address::Constant(address))
}

/// Writes the lists of ranges and locations of a unit of DWARF 4 from its base address on. A split
/// unit has them by address, and in sections of DWARF 4 an address is taken from the base on. gimli
/// refuses to write such a mixture.
fn based(unit: &mut gimli::write::Unit) {
    let base = match unit.get(unit.root()).get(gimli::DW_AT_low_pc) {
        Some(AttributeValue::Address(Address::Constant(base))) if *base != 0 => *base,
        _ => return,
    };
    let ranges = std::mem::take(&mut unit.ranges);
    let locations = std::mem::take(&mut unit.locations);
    let (mut new_ranges, mut new_locations) = (HashMap::new(), HashMap::new());
    let mut left = vec![unit.root()];
    while let Some(id) = left.pop() {
        left.extend(unit.get(id).children());
        let attributes = unit.get(id).attrs().map(|attribute| attribute.get().clone());
        for (index, value) in attributes.collect::<Vec<_>>().into_iter().enumerate() {
            let new = match value {
                AttributeValue::RangeListRef(old) => AttributeValue::RangeListRef(
                    *new_ranges
                        .entry(old)
                        .or_insert_with(|| unit.ranges.add(ranges_from(ranges.get(old), base))),
                ),
                AttributeValue::LocationListRef(old) => AttributeValue::LocationListRef(
                    *new_locations
                        .entry(old)
                        .or_insert_with(|| unit.locations.add(locations_from(locations.get(old), base))),
                ),
                _ => continue,
            };
            if let Some(attribute) = unit.get_mut(id).attrs_mut().nth(index) {
                attribute.set(new);
            }
        }
    }
}

/// The bounds of a range by address as distances from a base.
fn distances(begin: Address, end: Address, base: u64) -> Option<(u64, u64)> {
    match (begin, end) {
        (Address::Constant(begin), Address::Constant(end)) if begin != end => {
            // Addresses below the base wrap, and readers add the base with wrapping, too.
            Some((begin.wrapping_sub(base), end.wrapping_sub(base)))
        }
        _ => None,
    }
}

fn after(begin: Address, length: u64) -> Address {
    match begin {
        Address::Constant(begin) => Address::Constant(begin.wrapping_add(length)),
        other => other,
    }
}

fn ranges_from(list: &RangeList, mut base: u64) -> RangeList {
    let mut based = Vec::with_capacity(list.0.len());
    for range in &list.0 {
        let (begin, end) = match *range {
            Range::BaseAddress { address } => {
                base = if let Address::Constant(address) = address { address } else { base };
                based.push(range.clone());
                continue;
            }
            Range::OffsetPair { .. } => {
                based.push(range.clone());
                continue;
            }
            Range::StartEnd { begin, end } => (begin, end),
            Range::StartLength { begin, length } => (begin, after(begin, length)),
        };
        let pair = distances(begin, end, base).map(|(begin, end)| Range::OffsetPair { begin, end });
        based.extend(pair);
    }
    RangeList(based)
}

fn locations_from(list: &LocationList, mut base: u64) -> LocationList {
    let mut based = Vec::with_capacity(list.0.len());
    for location in &list.0 {
        let (begin, end, data) = match location {
            Location::BaseAddress { address } => {
                base = if let Address::Constant(address) = address { *address } else { base };
                based.push(location.clone());
                continue;
            }
            Location::OffsetPair { .. } => {
                based.push(location.clone());
                continue;
            }
            Location::StartEnd { begin, end, data } => (*begin, *end, data),
            Location::StartLength { begin, length, data } => (*begin, after(*begin, *length), data),
            // Lists of DWARF 4 have none.
            Location::DefaultLocation { .. } => continue,
        };
        let data = data.clone();
        let pair = distances(begin, end, base).map(|(begin, end)| Location::OffsetPair { begin, end, data });
        based.extend(pair);
    }
    LocationList(based)
}

/// A unit with its lines.
fn whole_unit<'u, 'a>(unit: &mut Unit<'u, 'a>, root: Entry<'u, 'a>) -> ConvertResult<()> {
    if let Some(lines) = unit.read_line_program(None, None)? {
        let (lines, files) = lines.convert(&constant)?;
        unit.set_line_program(lines, files);
    }
    attributes(unit, unit.unit.root(), &root, true)?;
    entries(unit, root, true)
}

/// Entries below a root. Type units are left without files: gcc writes file tables for them that
/// gimli rejects.
fn entries<'u, 'a>(unit: &mut Unit<'u, 'a>, mut entry: Entry<'u, 'a>, files: bool) -> ConvertResult<()> {
    while let Some(id) = unit.read_entry(&mut entry)? {
        let id = unit.add_entry(id, &entry);
        attributes(unit, id, &entry, files)?;
    }
    Ok(())
}

fn attributes<'a>(
    unit: &mut Unit<'_, 'a>,
    id: UnitEntryId,
    entry: &Entry<'_, 'a>,
    files: bool,
) -> ConvertResult<()> {
    for attribute in &entry.attrs {
        let is_file = matches!(attribute.name(), gimli::DW_AT_decl_file | gimli::DW_AT_call_file);
        let value = match attribute.raw_value() {
            // gimli has no name for it.
            _ if attribute.name() == gimli::DW_AT_GNU_locviews || is_file && !files => continue,
            // It numbers files anew, but forgets files whose number stands with the abbreviation.
            gimli::AttributeValue::Sdata(file) if is_file => {
                AttributeValue::FileIndex(unit.convert_file_index(entry.read_unit, file.cast_unsigned())?)
            }
            _ => match unit.convert_attribute_value(entry.read_unit, attribute, &constant) {
                // gcc leaves pointers to entry 0 in lists of locations, for variables without a
                // place of their own.
                Err(ConvertError::InvalidDebugInfoRef) if attribute.name() == gimli::DW_AT_location => {
                    continue;
                }
                converted => converted?,
            },
        };
        unit.unit.get_mut(id).set(attribute.name(), value);
    }
    Ok(())
}

/// References by signature become references by place.
fn lead(whole: &mut gimli::write::Dwarf, signed: &HashMap<DebugTypeSignature, DebugInfoRef>) {
    for (_, unit) in whole.units.iter_mut() {
        // What was skipped is empty.
        let mut left = if unit.count() == 0 { Vec::new() } else { vec![unit.root()] };
        while let Some(id) = left.pop() {
            let entry = unit.get_mut(id);
            left.extend(entry.children());
            for attribute in entry.attrs_mut() {
                if let AttributeValue::DebugTypesRef(signature) = attribute.get()
                    && let Some(place) = signed.get(signature)
                {
                    attribute.set(AttributeValue::DebugInfoRef(*place));
                }
            }
        }
    }
}

/// An unnamed ELF file with these sections.
fn write(sections: &Sections<EndianVec<LittleEndian>>) -> Option<File> {
    let mut output = Output::new(BinaryFormat::Elf, Architecture::X86_64, object::Endianness::Little);
    let add = |id: SectionId, bytes: &EndianVec<LittleEndian>| {
        if !bytes.slice().is_empty() {
            let section = output.add_section(Vec::new(), id.name().into(), SectionKind::Debug);
            output.append_section_data(section, bytes.slice(), 1);
        }
        Ok::<_, std::convert::Infallible>(())
    };
    let Ok(()) = sections.for_each(add);
    let bytes = output.write().ok()?;
    // SAFETY: a system call with a constant name; the returned descriptor has no other owner.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"debug".as_ptr(), libc::MFD_CLOEXEC);
        (fd >= 0).then(|| File::from_raw_fd(fd))?
    };
    file.write_all(&bytes).ok()?;
    Some(file)
}

/// All sections of a name, decompressed; empty for an absent section, or one with too large a
/// claim.
pub(crate) fn section<'a>(elf: &'a [u8], name: &str) -> Result<Cow<'a, [u8]>, gimli::Error> {
    let find = || {
        let file = ElfFile64::<Endianness>::parse(elf).ok()?;
        let mut found: Cow<'_, [u8]> = Cow::default();
        // The older way of compression has another name.
        let names = [name.to_owned(), name.replacen(".debug", ".zdebug", 1)];
        let called = |name: &str| names.iter().any(|one| one == name);
        // In a `.dwo` file each type unit has its own.
        for section in file.sections().filter(|section| section.name().is_ok_and(called)) {
            let range = section.compressed_file_range().ok()?;
            let bytes = match range.format {
                CompressionFormat::None => Cow::Borrowed(section.data().ok()?),
                _ if range.uncompressed_size > MOST_BYTES as u64 => return None,
                _ => Cow::Owned(unpacked(&section.compressed_data().ok()?).ok()?),
            };
            // A damaged file may have many sections of one name.
            if found.len() + bytes.len() > MOST_BYTES && !found.is_empty() {
                return None;
            }
            if found.is_empty() { found = bytes } else { found.to_mut().extend_from_slice(&bytes) }
        }
        Some(found)
    };
    Ok(find().unwrap_or_default())
}

fn dwo_section<'a>(elf: &'a [u8], id: SectionId) -> Result<Cow<'a, [u8]>, gimli::Error> {
    id.dwo_name().map_or(Ok(Cow::default()), |name| section(elf, name))
}

fn slice(section: &[u8]) -> Slice<'_> {
    EndianSlice::new(section, LittleEndian)
}
