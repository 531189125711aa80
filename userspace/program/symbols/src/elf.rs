//! Facts of an ELF file without debug information: segments,
//! build id, place of the unwind tables, function names.
//!
//! Reads x86-64 little-endian files only. Segments are read before sections,
//! independently of sections: a file without a section table can still be
//! unwound. The file is not trusted: offsets out of bounds are absence.
//!
//! A file truncated in place while mapped reads as zeros from the new end on (`truncated`).

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::sync::OnceLock;

use gimli::{BaseAddresses, EhFrameHdr, EndianSlice, LittleEndian, Pointer};
use object::elf::{self, FileHeader64};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{Endianness, Object};

use crate::cfi;
use crate::compressed::is_bounded;
use crate::truncated::survive_truncation;

const PAGE_BYTES: u64 = 4096;

/// The bytes of an ELF file: a file on disk, or a copy of the vdso.
#[derive(Debug)]
pub(crate) enum Bytes {
    Mapped(memmap2::Mmap),
    Copied(Vec<u8>),
}

impl Bytes {
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        survive_truncation();
        // SAFETY: the mapping is private and read-only. Writers that change the file under us can
        // make us read other bytes, and every reader in this crate must survive arbitrary bytes.
        unsafe { memmap2::Mmap::map(file) }.map(Self::Mapped)
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Copied(bytes) => bytes,
        }
    }
}

/// A PT_LOAD segment.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    address: u64,
    offset: u64,
    file_bytes: u64,
    executable: bool,
}

/// Place of `.eh_frame` in the file, and how to find an address in `.eh_frame`.
#[derive(Debug, Clone)]
pub(crate) struct UnwindTables {
    pub(crate) index: UnwindIndex,
    pub(crate) frames: Range<usize>,
    pub(crate) frames_address: u64,
    pub(crate) bases: BaseAddresses,
}

/// Finds entries of `.eh_frame` by address.
#[derive(Debug, Clone)]
pub(crate) enum UnwindIndex {
    /// Where `.eh_frame_hdr` lies in the file.
    Header(Range<usize>),
    /// Start addresses and offsets of the entries, sorted: for files without header, as gcc links
    /// static programs.
    Sorted(Vec<(u64, usize)>),
}

/// The parsed headers of one file.
#[derive(Debug)]
pub(crate) struct Elf {
    pub(crate) bytes: Bytes,
    segments: Vec<Segment>,
    /// Lower-case hexadecimal, empty when there is none.
    pub(crate) build_id: String,
    pub(crate) unwind_tables: Option<UnwindTables>,
    claims_debug_info: bool,
    /// Whether its compressed sections may be unpacked, once somebody asked.
    is_bounded: OnceLock<bool>,
    pub(crate) has_symbol_table: bool,
    /// File name and CRC of `.gnu_debuglink`.
    pub(crate) debug_link: Option<(String, u32)>,
}

impl Elf {
    /// `None` when this is not an x86-64 ELF file.
    pub(crate) fn parse(bytes: Bytes) -> Option<Self> {
        let data = &*bytes;
        let header = FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        if header.e_machine(endian) != elf::EM_X86_64 || endian != Endianness::Little {
            return None;
        }
        let mut segments = Vec::new();
        let mut tables_at = None;
        for program in header.program_headers(endian, data).ok()? {
            let (address, offset) = (program.p_vaddr(endian), program.p_offset(endian));
            let file_bytes = program.p_filesz(endian);
            match program.p_type(endian) {
                elf::PT_LOAD => {
                    let executable = program.p_flags(endian) & elf::PF_X != 0;
                    segments.push(Segment { address, offset, file_bytes, executable });
                }
                elf::PT_GNU_EH_FRAME => tables_at = Some((address, offset, file_bytes)),
                _ => {}
            }
        }
        let mut this = Self {
            segments,
            build_id: String::new(),
            unwind_tables: None,
            claims_debug_info: false,
            is_bounded: OnceLock::new(),
            has_symbol_table: false,
            debug_link: None,
            bytes,
        };
        this.unwind_tables = tables_at.and_then(|(address, offset, len)| this.tables(address, offset, len));
        this.read_sections();
        if this.unwind_tables.is_none() {
            this.unwind_tables = this.tables_without_header();
        }
        Some(this)
    }

    /// `.eh_frame_hdr` names the start of `.eh_frame`; the assumed end is the segment's
    /// end, harmless because entries are found through the header's sorted table.
    fn tables(&self, address: u64, offset: u64, len: u64) -> Option<UnwindTables> {
        let header = usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(len)?).ok()?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(address);
        let parsed = EhFrameHdr::new(self.bytes.get(header.clone())?, LittleEndian).parse(&bases, 8).ok()?;
        let Pointer::Direct(frames_address) = parsed.eh_frame_ptr() else { return None };
        let segment = self.segments.iter().find(|segment| segment.holds_address(frames_address))?;
        let start = (frames_address - segment.address).checked_add(segment.offset)?;
        let end = segment.offset.checked_add(segment.file_bytes)?.min(self.bytes.len() as u64);
        let frames = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
        self.bytes.get(frames.clone())?;
        let bases = bases.set_eh_frame(frames_address);
        Some(UnwindTables { index: UnwindIndex::Header(header), frames, frames_address, bases })
    }

    fn tables_without_header(&self) -> Option<UnwindTables> {
        let file = ElfFile64::<Endianness>::parse(&*self.bytes).ok()?;
        let endian = file.endian();
        let (_, section) = file.elf_section_table().section_by_name(endian, b".eh_frame")?;
        let (offset, len) = section.file_range(endian)?;
        let frames = usize::try_from(offset).ok()?..usize::try_from(offset.checked_add(len)?).ok()?;
        let frames_address = section.sh_addr(endian);
        let bases = BaseAddresses::default().set_eh_frame(frames_address);
        let index = cfi::sorted_index(self.bytes.get(frames.clone())?, &bases);
        Some(UnwindTables { index: UnwindIndex::Sorted(index), frames, frames_address, bases })
    }

    fn read_sections(&mut self) {
        let Ok(file) = ElfFile64::<Endianness>::parse(&*self.bytes) else { return };
        let endian = file.endian();
        let has = |name: &[u8]| {
            file.elf_section_table().section_by_name(endian, name).is_some_and(|(_, section)| {
                section.sh_type(endian) != elf::SHT_NOBITS && section.sh_size(endian) > 0
            })
        };
        let claims_debug_info = has(b".debug_info");
        let has_symbol_table = has(b".symtab");
        let build_id = file.build_id().ok().flatten().map(hexadecimal).unwrap_or_default();
        let debug_link = file
            .gnu_debuglink()
            .ok()
            .flatten()
            .map(|(name, crc)| (String::from_utf8_lossy(name).into_owned(), crc));
        self.claims_debug_info = claims_debug_info;
        self.has_symbol_table = has_symbol_table;
        self.build_id = build_id;
        self.debug_link = debug_link;
    }

    /// Whether the file has debug information that may be read. The first answer may take long.
    pub(crate) fn has_debug_info(&self) -> bool {
        self.claims_debug_info && *self.is_bounded.get_or_init(|| is_bounded(&self.bytes))
    }

    /// Whether debug information is left out, because it claims an impossible size.
    pub(crate) fn is_refused(&self) -> bool {
        self.claims_debug_info && !self.has_debug_info()
    }

    /// Address, in the file's own address space, of the executable mapping
    /// from `offset`, the start of a page. The page may begin before the
    /// mapped segment, with the end of another segment (lld's layout).
    pub(crate) fn address_of_mapping(&self, offset: u64) -> Option<u64> {
        let holds = |segment: &&Segment| {
            let first_page = segment.offset & !(PAGE_BYTES - 1);
            offset.checked_sub(first_page).is_some_and(|distance| {
                distance < segment.file_bytes.saturating_add(segment.offset - first_page)
            })
        };
        let code = self.segments.iter().filter(|segment| segment.executable).find(holds);
        // Without a code segment it was mapped by hand, not by the dynamic linker.
        let segment = code.or_else(|| self.segments.iter().find(holds))?;
        Some(segment.address.wrapping_add(offset).wrapping_sub(segment.offset))
    }

    /// Bytes of the file that are mapped from `address` on; shorter at the end of the segment.
    pub(crate) fn at(&self, address: u64, len: usize) -> Option<&[u8]> {
        let segment = self.segments.iter().find(|segment| segment.holds_address(address))?;
        let skip = address - segment.address;
        let len = (len as u64).min(segment.file_bytes - skip);
        let start = segment.offset.checked_add(skip)?;
        self.bytes.get(usize::try_from(start).ok()?..usize::try_from(start.checked_add(len)?).ok()?)
    }

    /// Builds the sorted table of function symbols: `.symtab` if present, else `.dynsym`.
    pub(crate) fn symbols(&self) -> Symbols {
        let Ok(file) = ElfFile64::<Endianness>::parse(&*self.bytes) else { return Symbols::default() };
        let endian = file.endian();
        let full = !file.elf_symbol_table().is_empty();
        let table = if full { file.elf_symbol_table() } else { file.elf_dynamic_symbol_table() };
        let mut entries = Vec::new();
        for symbol in table.iter() {
            let function = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC);
            // Hand-written assembly often lacks the type; labels in code count.
            let label = symbol.st_type() == elf::STT_NOTYPE && symbol.st_name(endian) != 0;
            let address = symbol.st_value(endian);
            let defined = symbol.st_shndx(endian) != elf::SHN_UNDEF;
            if !defined || !(function || label && self.is_code(address)) {
                continue;
            }
            let Ok(name) = symbol.name(endian, table.strings()) else { continue };
            let Some(name_at) = (name.as_ptr() as usize).checked_sub(self.bytes.as_ptr() as usize) else {
                continue;
            };
            let rank = Rank {
                label: !function,
                binding: match symbol.st_bind() {
                    elf::STB_GLOBAL => 0,
                    elf::STB_WEAK => 1,
                    _ => 2,
                },
                underscores: name.iter().take_while(|&&byte| byte == b'_').count(),
            };
            let size = u32::try_from(symbol.st_size(endian)).unwrap_or(u32::MAX);
            entries
                .push((Symbol { address, size, name_len: name.len() as u32, name_at: name_at as u64 }, rank));
        }
        // Of several names for one address the plainest is taken: `read`, not `__read`.
        entries.sort_by(|(a, rank_a), (b, rank_b)| {
            (a.address, rank_a, a.name_at).cmp(&(b.address, rank_b, b.name_at))
        });
        entries.dedup_by_key(|(symbol, _)| symbol.address);
        let entries = entries.into_iter().map(|(symbol, _)| symbol).collect();
        Symbols { entries, full }
    }

    pub(crate) fn is_code(&self, address: u64) -> bool {
        self.segments.iter().any(|segment| segment.executable && segment.holds_address(address))
    }
}

impl Segment {
    fn holds_address(&self, address: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|distance| distance < self.file_bytes)
    }
}

/// Order of several names for an address; the smallest is shown.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    label: bool,
    binding: u8,
    underscores: usize,
}

#[derive(Debug, Clone, Copy)]
struct Symbol {
    address: u64,
    size: u32,
    name_len: u32,
    name_at: u64,
}

/// Function symbols of one file, by address. Names stay in the file.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    entries: Vec<Symbol>,
    /// From `.symtab`; otherwise only what the file exports is known.
    pub(crate) full: bool,
}

impl Symbols {
    /// Addresses and mangled name of the function around an address.
    pub(crate) fn range<'e>(&self, elf: &'e Elf, address: u64) -> Option<(Range<u64>, &'e str)> {
        let (start, name) = self.find(elf, address)?;
        let at = self.entries.binary_search_by_key(&start, |symbol| symbol.address).ok()?;
        let next = self.entries.get(at + 1).map(|symbol| symbol.address);
        let end = match self.entries.get(at).map_or(0, |symbol| symbol.size) {
            0 => next?,
            size => start.checked_add(u64::from(size))?,
        };
        Some((start..end, name))
    }

    /// Start and mangled name of the function around an address. `elf` must be the file they were built from.
    pub(crate) fn find<'e>(&self, elf: &'e Elf, address: u64) -> Option<(u64, &'e str)> {
        let behind = self.entries.partition_point(|symbol| symbol.address <= address);
        // Local labels inside a function hide it; search a few entries back for a label that
        // reaches this far.
        for index in (behind.saturating_sub(16)..behind).rev() {
            let symbol = self.entries[index];
            let covers = match symbol.size {
                0 if self.full => index + 1 == behind,
                // An export without a size may precede much foreign code.
                0 => symbol.address == address,
                size => address - symbol.address < u64::from(size),
            };
            if covers {
                let start = usize::try_from(symbol.name_at).ok()?;
                let name = elf.bytes.get(start..start.checked_add(symbol.name_len as usize)?)?;
                let name = std::str::from_utf8(name).ok()?;
                return Some((symbol.address, name.split_once('@').map_or(name, |(name, _)| name)));
            }
        }
        None
    }
}

/// Little-endian bytes for gimli.
pub(crate) type Slice<'a> = EndianSlice<'a, LittleEndian>;

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers may say that a segment lies anywhere in the file; no sum of their numbers may end us.
    #[test]
    fn segments_at_impossible_offsets_have_no_unwind_tables() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let header = FileHeader64::<Endianness>::parse(&*whole).unwrap();
        let first = header.e_phoff(Endianness::Little) as usize;
        let count = usize::from(header.e_phnum(Endianness::Little));
        let mut tables = 0;
        for offset in [0, 1 << 63, u64::MAX - 1, u64::MAX] {
            let mut bytes = whole.clone();
            for at in (0..count).map(|number| first + 56 * number) {
                if offset > 0 && bytes[at..at + 4] == elf::PT_LOAD.to_le_bytes() {
                    bytes[at + 8..at + 16].copy_from_slice(&offset.to_le_bytes());
                }
            }
            let parsed = Elf::parse(Bytes::Copied(bytes)).unwrap();
            let has_header = |tables: UnwindTables| matches!(tables.index, UnwindIndex::Header(_));
            tables += usize::from(parsed.unwind_tables.is_some_and(has_header));
        }
        assert_eq!(tables, 1, "only the whole file has tables that the header leads to");
    }
}
