//! Puts split debug information together: what a program's skeleton units leave to `.dwo` files, or to a `.dwp` package, becomes
//! one debug file in memory, which all readers then take like the separate debug file of a stripped program.
//!
//! A package is looked for beside the program (`PROGRAM.dwp`), a `.dwo` file where the build put it and beside the program; each below
//! the process's root and then below ours. Its id must be the unit's. Units without a file stay as they are. Source: DWARF 5, §7.3.
//! gimli converts. Limits: packages and files of more than [`MOST_BYTES`] in all are left alone, as reading is not lazy here; type units are not
//! converted, and what gimli cannot convert leaves all of the program split.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::FromRawFd as _;
use std::path::{Path, PathBuf};

use gimli::write::{Address, EndianVec, Sections};
use gimli::{Dwarf, DwarfPackageSections, DwarfSections, DwoId, EndianSlice, LittleEndian, SectionId};
use object::read::elf::ElfFile64;
use object::write::Object as Output;
use object::{
    Architecture, BinaryFormat, CompressionFormat, Endianness, Object as _, ObjectSection as _, SectionKind,
};

use crate::elf::Bytes;
use crate::module::open_regular;
use crate::symbolize::guarded;

/// Largest `.dwo` files, or package, of one program.
const MOST_BYTES: usize = 64 << 20;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// The debug file of an ELF file that the process sees at `path` below `root`; `None` where nothing is split, or no part is found.
pub fn unsplit(elf: &[u8], root: &Path, path: &str) -> Option<File> {
    // Skeletons have one; nearly all other programs need not be looked through.
    ElfFile64::<Endianness>::parse(elf).ok()?.section_by_name(".debug_addr")?;
    let skeletons = DwarfSections::load(|id| section(elf, id.name())).ok()?;
    let skeletons = skeletons.borrow(|section| slice(section));
    let wanted = wanted(&skeletons);
    if wanted.is_empty() {
        return None;
    }
    let open = |place: &Path| {
        let below = root.join(place.strip_prefix("/").ok()?);
        let file = open_regular(&below).or_else(|_| open_regular(place)).ok()?;
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
    let mut parts: HashMap<DwoId, Dwarf<Slice<'_>>> = HashMap::new();
    for (id, sections) in &loaded {
        let mut part = sections.borrow(|section| slice(section));
        part.make_dwo(&skeletons);
        let header = part.units().next().ok().flatten();
        let unit = header.and_then(|header| part.unit(header).ok());
        if unit.is_some_and(|unit| unit.dwo_id == Some(**id)) {
            parts.insert(**id, part);
        }
    }
    for id in wanted.keys() {
        if let Some(Ok(Some(part))) = package.as_ref().map(|package| package.find_cu(*id, &skeletons)) {
            parts.insert(*id, part);
        }
    }
    if parts.is_empty() {
        return None;
    }
    guarded(|| write(&converted(&skeletons, &parts).ok()?))?
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

/// All units, those with a part whole.
fn converted(
    skeletons: &Dwarf<Slice<'_>>,
    parts: &HashMap<DwoId, Dwarf<Slice<'_>>>,
) -> gimli::write::ConvertResult<Sections<EndianVec<LittleEndian>>> {
    let address = |address| Some(Address::Constant(address));
    let mut whole = gimli::write::Dwarf::new();
    let mut convert = whole.convert(skeletons)?;
    while let Some((mut unit, skeleton)) = convert.read_unit()? {
        let part = unit.read_unit.dwo_id.and_then(|id| parts.get(&id));
        let Some(part) = part else {
            unit.convert(skeleton, &address)?;
            continue;
        };
        let mut split = unit.convert_split(part)?;
        let (mut unit, root) = split.read_unit()?;
        unit.convert(root, &address)?;
        let root = unit.unit.root();
        for attribute in &skeleton.attrs {
            // Where the code is, only the skeleton says.
            if matches!(
                attribute.name(),
                gimli::DW_AT_low_pc | gimli::DW_AT_high_pc | gimli::DW_AT_ranges | gimli::DW_AT_comp_dir
            ) {
                let value = unit.convert_attribute_value(skeleton.read_unit, attribute, &address)?;
                unit.unit.get_mut(root).set(attribute.name(), value);
            }
        }
        for name in [gimli::DW_AT_dwo_name, gimli::DW_AT_GNU_dwo_name, gimli::DW_AT_GNU_dwo_id] {
            unit.unit.get_mut(root).delete(name);
        }
    }
    let mut sections = Sections::new(EndianVec::new(LittleEndian));
    whole.write(&mut sections)?;
    Ok(sections)
}

/// An ELF file without a name that has these sections.
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
    // SAFETY: a system call with a constant name; the descriptor that it returns is nobody else's.
    let mut file = unsafe {
        let fd = libc::memfd_create(c"debug".as_ptr(), libc::MFD_CLOEXEC);
        (fd >= 0).then(|| File::from_raw_fd(fd))?
    };
    file.write_all(&bytes).ok()?;
    Some(file)
}

/// A section, unpacked where it is compressed; empty where there is none, or one that claims to be too large.
fn section<'a>(elf: &'a [u8], name: &str) -> Result<Cow<'a, [u8]>, gimli::Error> {
    let find = || {
        let file = ElfFile64::<Endianness>::parse(elf).ok()?;
        let section = file.section_by_name(name)?;
        let range = section.compressed_file_range().ok()?;
        let fits = range.format == CompressionFormat::None || range.uncompressed_size <= MOST_BYTES as u64;
        if fits { section.uncompressed_data().ok() } else { None }
    };
    Ok(find().unwrap_or_default())
}

fn dwo_section<'a>(elf: &'a [u8], id: SectionId) -> Result<Cow<'a, [u8]>, gimli::Error> {
    id.dwo_name().map_or(Ok(Cow::default()), |name| section(elf, name))
}

fn slice(section: &[u8]) -> Slice<'_> {
    EndianSlice::new(section, LittleEndian)
}
