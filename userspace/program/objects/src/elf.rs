//! Data in an ELF file: segments, sections, data symbols, the thread-local segment, and the
//! position of its DWARF.
//!
//! Names stay in the file, which is not trusted: data out of bounds is absent. A failed
//! decompression of a section becomes a sentence ([`DataElf::load_dwarf`]).

use std::ops::Range;

use gimli::{Dwarf, DwarfSections, EndianSlice, LittleEndian, SectionId};
use locality_symbols::{ModuleFile, claims_are_bounded, unpacked};
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{CompressionFormat, Endianness, Object, ObjectSection};

/// Little-endian bytes for gimli.
pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;

const PAGE: u64 = 4096;

/// A PT_LOAD segment, or a part of its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) memory_bytes: u64,
    offset: u64,
    file_bytes: u64,
    executable: bool,
    writable: bool,
}

/// A section that is loaded.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    pub(crate) name: Box<str>,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) thread_local: bool,
}

/// The thread-local segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TlsSegment {
    address: u64,
    pub(crate) bytes: u64,
    pub(crate) align: u64,
}

/// A data symbol. The name lies in the module's file or debug file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DataSymbol {
    /// Of thread-local symbols the offset in the thread-local segment.
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) thread_local: bool,
    in_debug_file: bool,
    name_len: u32,
    name_at: u64,
}

/// Where the bytes of a debug section are.
#[derive(Debug, Default)]
pub(crate) enum SectionBytes {
    #[default]
    Absent,
    File(Range<usize>),
    DebugFile(Range<usize>),
    Unpacked(Box<[u8]>),
}

/// The parsed headers of one module.
#[derive(Debug)]
pub(crate) struct DataElf {
    pub(crate) segments: Vec<Segment>,
    /// Loaded sections by address.
    pub(crate) sections: Vec<Section>,
    pub(crate) tls: Option<TlsSegment>,
    /// Address in the module of its dynamic section.
    pub(crate) dynamic: Option<u64>,
    /// The file or its debug file has `.debug_info`.
    pub(crate) has_dwarf: bool,
    /// The DWARF lies in the separate debug file.
    dwarf_in_debug_file: bool,
}

impl DataElf {
    pub(crate) fn parse(file: &ModuleFile) -> Option<Self> {
        let own = ElfFile64::<Endianness>::parse(file.bytes());
        let endian = Endianness::Little;
        let header = elf::FileHeader64::<Endianness>::parse(file.bytes()).ok()?;
        let (mut segments, mut tls, mut dynamic) = (Vec::new(), None, None);
        for program in header.program_headers(endian, file.bytes()).ok()? {
            let (address, memory_bytes) = (program.p_vaddr(endian), program.p_memsz(endian));
            match program.p_type(endian) {
                elf::PT_LOAD => segments.push(Segment {
                    address,
                    memory_bytes,
                    offset: program.p_offset(endian),
                    file_bytes: program.p_filesz(endian),
                    executable: program.p_flags(endian) & elf::PF_X != 0,
                    writable: program.p_flags(endian) & elf::PF_W != 0,
                }),
                elf::PT_TLS => {
                    tls = Some(TlsSegment {
                        address,
                        bytes: memory_bytes,
                        align: program.p_align(endian).max(1),
                    });
                }
                elf::PT_DYNAMIC => dynamic = Some(address),
                _ => {}
            }
        }
        let mut sections = Vec::new();
        if let Ok(own) = &own {
            for section in own.sections() {
                let raw = section.elf_section_header();
                let flags = raw.sh_flags(endian);
                if flags & u64::from(elf::SHF_ALLOC) == 0 || raw.sh_size(endian) == 0 {
                    continue;
                }
                sections.push(Section {
                    name: section.name().unwrap_or_default().into(),
                    address: raw.sh_addr(endian),
                    bytes: raw.sh_size(endian),
                    thread_local: flags & u64::from(elf::SHF_TLS) != 0,
                });
            }
        }
        sections.sort_by_key(|section| section.address);
        let has = |bytes: &[u8]| {
            ElfFile64::<Endianness>::parse(bytes).is_ok_and(|file| {
                [".debug_info", ".zdebug_info"].iter().any(|name| {
                    file.section_by_name(name).is_some_and(|section| {
                        section.elf_section_header().sh_type(endian) != elf::SHT_NOBITS && section.size() > 0
                    })
                })
            })
        };
        let in_own = has(file.bytes());
        // If both have debug information, the file's own is split.
        let dwarf_in_debug_file = file.debug_bytes().is_some_and(has);
        Some(Self {
            segments,
            sections,
            tls,
            dynamic,
            has_dwarf: in_own || dwarf_in_debug_file,
            dwarf_in_debug_file,
        })
    }

    /// Address in the file's own address space of a mapping with this file offset and size. A page
    /// may belong to two segments; `executable` decides.
    pub(crate) fn address_of_mapping(&self, offset: u64, executable: bool) -> Option<u64> {
        let holds = |segment: &&Segment| {
            let first_page = segment.offset & !(PAGE - 1);
            offset.checked_sub(first_page).is_some_and(|distance| {
                distance < segment.file_bytes.saturating_add(segment.offset - first_page)
            })
        };
        let same = self.segments.iter().filter(|segment| segment.executable == executable).find(holds);
        let segment = same.or_else(|| self.segments.iter().find(holds))?;
        Some(segment.address.wrapping_add(offset).wrapping_sub(segment.offset))
    }

    /// True when some segment is code.
    pub(crate) fn has_code(&self) -> bool {
        self.segments.iter().any(|segment| segment.executable)
    }

    /// True for a mapping of this file offset at the loader's address in the module.
    pub(crate) fn is_loaded_at(&self, offset: u64, address: u64) -> bool {
        self.segments.iter().any(|segment| {
            let page = segment.address & !(PAGE - 1);
            let end = segment.address.saturating_add(segment.memory_bytes).saturating_add(PAGE - 1);
            (page..end).contains(&address)
                && address.wrapping_sub(segment.address) == offset.wrapping_sub(segment.offset)
        })
    }

    /// Offset in the thread-local segment of a DWARF address: in split DWARF gcc 12 writes the
    /// address of the initial copy.
    pub(crate) fn thread_local_offset(&self, said: u64) -> u64 {
        let Some(tls) = self.tls.filter(|tls| said >= tls.bytes) else { return said };
        said.checked_sub(tls.address).filter(|offset| *offset < tls.bytes).unwrap_or(said)
    }

    /// True when the address of the module lies in a segment.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.segments.iter().any(|segment| {
            address.checked_sub(segment.address).is_some_and(|distance| distance < segment.memory_bytes)
        })
    }

    /// True for an address that the program may write; bytes
    /// written by the dynamic linker alone count, too.
    pub(crate) fn is_writable(&self, address: u64) -> bool {
        self.segments.iter().any(|segment| {
            segment.writable
                && address
                    .checked_sub(segment.address)
                    .is_some_and(|distance| distance < segment.memory_bytes)
        })
    }

    /// The section around an address of the module.
    pub(crate) fn section(&self, address: u64) -> Option<&Section> {
        let behind = self.sections.partition_point(|section| section.address <= address);
        // `.tbss` takes no room: the next section has the same addresses.
        let before = self.sections.get(..behind)?.iter().rev().take(4);
        let mut holding = before.filter(|section| address - section.address < section.bytes);
        holding.find(|section| !section.thread_local || &*section.name == ".tdata")
    }

    /// All data symbols with a size, from every symbol table of the file and its debug file.
    pub(crate) fn data_symbols(&self, file: &ModuleFile) -> Vec<DataSymbol> {
        let mut found = Vec::new();
        let files = [(Some(file.bytes()), false), (file.debug_bytes(), true)];
        for (bytes, in_debug_file) in files.into_iter().filter_map(|(bytes, debug)| Some((bytes?, debug))) {
            let Ok(parsed) = ElfFile64::<Endianness>::parse(bytes) else { continue };
            for table in [parsed.elf_symbol_table(), parsed.elf_dynamic_symbol_table()] {
                for symbol in table.iter() {
                    let kind = symbol.st_type();
                    let endian = Endianness::Little;
                    let data =
                        matches!(kind, elf::STT_OBJECT | elf::STT_COMMON | elf::STT_TLS | elf::STT_GNU_IFUNC);
                    if !data || kind == elf::STT_GNU_IFUNC || symbol.st_size(endian) == 0 {
                        continue;
                    }
                    if symbol.st_shndx(endian) == elf::SHN_UNDEF {
                        continue;
                    }
                    let Ok(name) = symbol.name(endian, table.strings()) else { continue };
                    let Some(name_at) = (name.as_ptr() as usize).checked_sub(bytes.as_ptr() as usize) else {
                        continue;
                    };
                    found.push(DataSymbol {
                        address: symbol.st_value(endian),
                        bytes: symbol.st_size(endian),
                        thread_local: kind == elf::STT_TLS,
                        in_debug_file,
                        name_len: u32::try_from(name.len()).unwrap_or(0),
                        name_at: name_at as u64,
                    });
                }
            }
        }
        found
    }

    /// The debug sections, decompressed, and a sentence for each failure.
    pub(crate) fn load_dwarf(&self, file: &ModuleFile) -> (DwarfSections<SectionBytes>, Vec<String>) {
        let mut trouble = Vec::new();
        let bytes = if self.dwarf_in_debug_file { file.debug_bytes() } else { Some(file.bytes()) };
        let bytes = bytes.filter(|bytes| {
            let bounded = claims_are_bounded(bytes);
            if !bounded {
                trouble.push("a compressed section claims more than it can hold".to_owned());
            }
            bounded
        });
        let parsed = bytes.and_then(|bytes| ElfFile64::<Endianness>::parse(bytes).ok());
        let mut load = |id: SectionId| -> Result<SectionBytes, std::convert::Infallible> {
            // Not read here, and large.
            if matches!(id, SectionId::DebugMacro | SectionId::DebugMacinfo | SectionId::DebugNames) {
                return Ok(SectionBytes::Absent);
            }
            let section = parsed.as_ref().and_then(|file| file.section_by_name(id.name()));
            Ok(match section.map(|section| self.section_bytes(&section)) {
                None => SectionBytes::Absent,
                Some(Ok(bytes)) => bytes,
                Some(Err(reason)) => {
                    trouble.push(format!("{}: {reason}", id.name()));
                    SectionBytes::Absent
                }
            })
        };
        let sections = match DwarfSections::load(&mut load) {
            Ok(sections) => sections,
            Err(never) => match never {},
        };
        let names = [".gnu_debugaltlink", ".debug_sup"];
        if names.iter().any(|name| parsed.as_ref().is_some_and(|file| file.section_by_name(name).is_some())) {
            trouble.push("parts of it lie in a common file that dwz made, which is not read".to_owned());
        }
        (sections, trouble)
    }

    fn section_bytes<'d, S: ObjectSection<'d>>(&self, section: &S) -> Result<SectionBytes, String> {
        let range = section.compressed_file_range().map_err(|error| error.to_string())?;
        if range.format == CompressionFormat::None {
            let start = usize::try_from(range.offset).map_err(|_| "out of bounds".to_owned())?;
            let len = usize::try_from(range.compressed_size).map_err(|_| "out of bounds".to_owned())?;
            let range = start..start.checked_add(len).ok_or("out of bounds")?;
            return Ok(if self.dwarf_in_debug_file {
                SectionBytes::DebugFile(range)
            } else {
                SectionBytes::File(range)
            });
        }
        let data = section.compressed_data().map_err(|error| error.to_string())?;
        unpacked(&data).map(|data| SectionBytes::Unpacked(data.into()))
    }
}

impl DataSymbol {
    /// The name in the symbol table, without its version.
    pub(crate) fn name<'f>(&self, file: &'f ModuleFile) -> Option<&'f str> {
        let bytes = if self.in_debug_file { file.debug_bytes()? } else { file.bytes() };
        let start = usize::try_from(self.name_at).ok()?;
        let name = bytes.get(start..start.checked_add(self.name_len as usize)?)?;
        let name = std::str::from_utf8(name).ok()?;
        Some(name.split_once('@').map_or(name, |(name, _)| name))
    }

    /// The shown name of several for one place: the smallest.
    pub(crate) fn rank(&self, file: &ModuleFile) -> (usize, u64) {
        let underscores =
            self.name(file).map_or(usize::MAX, |name| name.bytes().take_while(|&byte| byte == b'_').count());
        (underscores, self.name_at)
    }
}

/// gimli's view of the sections.
pub(crate) fn dwarf<'a>(sections: &'a DwarfSections<SectionBytes>, file: &'a ModuleFile) -> Dwarf<Slice<'a>> {
    sections.borrow(|section| {
        let bytes = match section {
            SectionBytes::Absent => None,
            SectionBytes::File(range) => file.bytes().get(range.clone()),
            SectionBytes::DebugFile(range) => file.debug_bytes().and_then(|bytes| bytes.get(range.clone())),
            SectionBytes::Unpacked(bytes) => Some(&**bytes),
        };
        EndianSlice::new(bytes.unwrap_or_default(), LittleEndian)
    })
}
