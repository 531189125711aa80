//! The needed parts of an ELF file: code bytes, places of its debug sections, symbol or variable of
//! each slot of the global offset table, size of its thread-local block.
//!
//! The file is not trusted: data out of bounds is absent. x86-64 little-endian
//! only. Separate debug files are looked up by build id in the usual place.
//! Limit: a file truncated in place while mapped ends us with SIGBUS.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use gimli::{EndianSlice, LittleEndian, SectionId};
use object::elf::{self, FileHeader64};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{
    CompressionFormat, Endianness, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable as _,
    RelocationFlags, RelocationTarget,
};

use crate::reason::Unreadable;

/// Bytes of the module's debug information.
pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A read-only mapping of a file.
struct Mapped(memmap2::Mmap);

impl Mapped {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Self::of(&file)
    }

    fn of(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is private and read-only; writers that change
        // the file under us make us read other bytes, and every reader in this
        // crate survives arbitrary bytes. Truncation is the limit named above.
        unsafe { memmap2::Mmap::map(file) }.map(Mapped)
    }
}

impl Deref for Mapped {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// Where the bytes of a section are.
enum SectionBytes {
    /// In the file that holds the debug information.
    Mapped(Range<usize>),
    /// Decompressed.
    Owned(Vec<u8>),
}

/// Content of a slot filled by the dynamic linker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    /// An address of this module.
    Address(u64),
    /// The address of a symbol of another module.
    Symbol(String),
}

/// A piece of the file as it is mapped.
#[derive(Debug, Clone)]
struct Segment {
    address: u64,
    bytes: Range<usize>,
    in_memory: u64,
    executable: bool,
}

/// A symbol with an address.
#[derive(Debug, Clone)]
pub(crate) struct Symbol {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) name: String,
}

/// One opened ELF file.
pub(crate) struct Module {
    file: Mapped,
    /// The separate file with the debug information, if not in `file`.
    debug: Option<Mapped>,
    sections: HashMap<SectionId, SectionBytes>,
    segments: Vec<Segment>,
    slots: HashMap<u64, Slot>,
    /// Functions by address.
    pub(crate) functions: Vec<Symbol>,
    /// Variables by address.
    pub(crate) variables: Vec<Symbol>,
    /// Whether the module is loaded at the stated address.
    pub(crate) fixed: bool,
    /// Bytes from the start of the thread-local block to the thread pointer.
    pub(crate) tls_bytes: u64,
}

impl Module {
    pub(crate) fn open(path: &Path) -> Result<Self, Unreadable> {
        let file = Mapped::open(path).map_err(|error| Unreadable::File(error.to_string()))?;
        let header = FileHeader64::<Endianness>::parse(&*file).map_err(|_| Unreadable::NotElf)?;
        let endian = header.endian().map_err(|_| Unreadable::NotElf)?;
        if header.e_machine(endian) != elf::EM_X86_64 || endian != Endianness::Little {
            return Err(Unreadable::NotElf);
        }
        let (mut segments, mut tls_bytes) = (Vec::new(), 0);
        for program in header.program_headers(endian, &*file).map_err(|_| Unreadable::NotElf)? {
            match program.p_type(endian) {
                elf::PT_LOAD => segments.extend(segment(program, endian, file.len())),
                elf::PT_TLS => {
                    let align = program.p_align(endian).max(1);
                    tls_bytes = program.p_memsz(endian).checked_next_multiple_of(align).unwrap_or(0);
                }
                _ => {}
            }
        }
        let fixed = header.e_type(endian) == elf::ET_EXEC;
        let mut this = Module {
            debug: None,
            sections: HashMap::new(),
            segments,
            slots: HashMap::new(),
            functions: Vec::new(),
            variables: Vec::new(),
            fixed,
            tls_bytes,
            file,
        };
        // Where `/proc` leads, packages are not.
        let path =
            std::fs::read_link(path).ok().filter(|_| path.starts_with("/proc")).unwrap_or(path.to_owned());
        this.read_sections(&path.to_string_lossy());
        Ok(this)
    }

    /// Build id of the file, lower-case hexadecimal; `None` without one.
    pub(crate) fn build_id(&self) -> Option<String> {
        let elf = ElfFile64::<Endianness>::parse(&*self.file).ok()?;
        elf.build_id().ok().flatten().map(hexadecimal)
    }

    /// Everything from the section table, which may be absent.
    fn read_sections(&mut self, path: &str) {
        let Ok(elf) = ElfFile64::<Endianness>::parse(&*self.file) else { return };
        let slots = dynamic_slots(&elf);
        let mut sections = debug_sections(&elf, &self.file);
        let (mut functions, mut variables) = (Vec::new(), Vec::new());
        let mut read = |elf: &ElfFile64<'_, Endianness>| {
            for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
                let list = match symbol.kind() {
                    object::SymbolKind::Text => &mut functions,
                    object::SymbolKind::Data => &mut variables,
                    _ => continue,
                };
                if symbol.is_definition()
                    && let Ok(name) = symbol.name()
                {
                    list.push(Symbol {
                        address: symbol.address(),
                        size: symbol.size(),
                        name: name.to_owned(),
                    });
                }
            }
        };
        read(&elf);
        let mut debug = None;
        if !sections.contains_key(&SectionId::DebugInfo)
            && let Some(found) = elf.build_id().ok().flatten().and_then(separate)
        {
            if let Ok(elf) = ElfFile64::<Endianness>::parse(&*found) {
                sections = debug_sections(&elf, &found);
                read(&elf);
            }
            debug = Some(found);
        }
        let holder = debug.as_deref().unwrap_or(&self.file);
        if let Some(whole) = locality_symbols::unsplit(holder, Path::new("/"), path)
            && let Ok(whole) = Mapped::of(&whole)
            && let Ok(elf) = ElfFile64::<Endianness>::parse(&*whole)
        {
            sections = debug_sections(&elf, &whole);
            debug = Some(whole);
        }
        for list in [&mut functions, &mut variables] {
            // Of several names for one place, the name with a size.
            list.sort_by(|a, b| (a.address, b.size).cmp(&(b.address, a.size)));
            list.dedup_by_key(|symbol| symbol.address);
        }
        (self.slots, self.sections, self.functions, self.variables) = (slots, sections, functions, variables);
        self.debug = debug;
    }

    /// Views of the debug sections; absent ones are empty.
    pub(crate) fn dwarf(&self) -> gimli::Dwarf<Slice<'_>> {
        let file: &[u8] = self.debug.as_deref().unwrap_or(&self.file);
        let section = |id: SectionId| -> Result<Slice<'_>, std::convert::Infallible> {
            let bytes = match self.sections.get(&id) {
                Some(SectionBytes::Mapped(range)) => file.get(range.clone()).unwrap_or_default(),
                Some(SectionBytes::Owned(bytes)) => bytes,
                None => &[],
            };
            Ok(EndianSlice::new(bytes, LittleEndian))
        };
        match gimli::Dwarf::load(section) {
            Ok(dwarf) => dwarf,
            Err(never) => match never {},
        }
    }

    pub(crate) fn has_debug_info(&self) -> bool {
        self.sections.contains_key(&SectionId::DebugInfo)
    }

    /// The code mapped to these addresses; shorter at the end of the segment.
    pub(crate) fn code(&self, addresses: &Range<u64>) -> &[u8] {
        let found = self.segments.iter().find(|segment| segment.executable && segment.holds(addresses.start));
        let bytes = found.and_then(|segment| {
            let skip = usize::try_from(addresses.start.checked_sub(segment.address)?).ok()?;
            let whole = self.file.get(segment.bytes.clone())?.get(skip..)?;
            let wanted = usize::try_from(addresses.end.checked_sub(addresses.start)?).ok()?;
            whole.get(..wanted.min(whole.len()))
        });
        bytes.unwrap_or_default()
    }

    /// Whether data may lie at the address.
    pub(crate) fn holds_data(&self, address: u64) -> bool {
        self.segments.iter().any(|segment| !segment.executable && segment.holds(address))
    }

    /// Content placed by the dynamic linker.
    pub(crate) fn slot(&self, address: u64) -> Option<&Slot> {
        self.slots.get(&address)
    }

    /// The symbol of a list that covers the address.
    pub(crate) fn covering(symbols: &[Symbol], address: u64) -> Option<&Symbol> {
        let behind = symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = symbols.get(behind.checked_sub(1)?)?;
        (address - symbol.address < symbol.size.max(1)).then_some(symbol)
    }
}

impl Segment {
    fn holds(&self, address: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|skip| skip < self.in_memory)
    }
}

fn segment(program: &elf::ProgramHeader64<Endianness>, endian: Endianness, len: usize) -> Option<Segment> {
    let start = usize::try_from(program.p_offset(endian)).ok()?.min(len);
    let bytes = usize::try_from(program.p_filesz(endian)).ok()?;
    Some(Segment {
        address: program.p_vaddr(endian),
        bytes: start..start.saturating_add(bytes).min(len),
        in_memory: program.p_memsz(endian),
        executable: program.p_flags(endian) & elf::PF_X != 0,
    })
}

/// Slots that relocations fill with an address.
fn dynamic_slots(elf: &ElfFile64<'_, Endianness>) -> HashMap<u64, Slot> {
    let mut slots = HashMap::new();
    for (address, relocation) in elf.dynamic_relocations().into_iter().flatten() {
        let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
        let slot = match (r_type, relocation.target()) {
            (elf::R_X86_64_RELATIVE, _) => u64::try_from(relocation.addend()).ok().map(Slot::Address),
            (
                elf::R_X86_64_GLOB_DAT | elf::R_X86_64_64 | elf::R_X86_64_JUMP_SLOT,
                RelocationTarget::Symbol(index),
            ) => {
                let symbol = elf.dynamic_symbol_table().and_then(|table| table.symbol_by_index(index).ok());
                symbol.and_then(|symbol| {
                    if symbol.is_definition() {
                        Some(Slot::Address(symbol.address().wrapping_add_signed(relocation.addend())))
                    } else {
                        symbol.name().ok().map(|name| Slot::Symbol(name.to_owned()))
                    }
                })
            }
            _ => None,
        };
        slots.extend(slot.map(|slot| (address, slot)));
    }
    slots
}

fn debug_sections(elf: &ElfFile64<'_, Endianness>, file: &[u8]) -> HashMap<SectionId, SectionBytes> {
    let mut found = HashMap::new();
    if !locality_symbols::claims_are_bounded(file) {
        return found;
    }
    for section in elf.sections() {
        let Ok(name) = section.name() else { continue };
        let Some(id) = SECTIONS.into_iter().find(|id| id.name() == name) else { continue };
        let Ok(data) = section.compressed_data() else { continue };
        let bytes = match data.format {
            CompressionFormat::None if data.data.is_empty() => continue,
            CompressionFormat::None => {
                let bytes = data.data;
                // A borrowed slice lies in the file, so the difference of the addresses is the offset.
                let start = (bytes.as_ptr() as usize).wrapping_sub(file.as_ptr() as usize);
                SectionBytes::Mapped(start..start.saturating_add(bytes.len()))
            }
            _ => match locality_symbols::unpacked(&data) {
                Ok(bytes) => SectionBytes::Owned(bytes),
                Err(_) => continue,
            },
        };
        found.insert(id, bytes);
    }
    found
}

const SECTIONS: [SectionId; 11] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The separate debug file of a build id, if the id matches.
fn separate(build_id: &[u8]) -> Option<Mapped> {
    let hexadecimal = hexadecimal(build_id);
    let (first, rest) = hexadecimal.split_at_checked(2)?;
    let path = PathBuf::from(format!("/usr/lib/debug/.build-id/{first}/{rest}.debug"));
    let file = Mapped::open(&path).ok()?;
    let right = {
        let elf = ElfFile64::<Endianness>::parse(&*file).ok()?;
        elf.build_id().ok().flatten() == Some(build_id)
    };
    right.then_some(file)
}
