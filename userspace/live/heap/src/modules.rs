//! Files executed by a process, and the places of their allocation functions to probe.
//!
//! Reads `/proc` and ELF symbol tables; `allocators` selects the symbols. Limits: a
//! static and stripped program names no functions, hence has no probes. A file truncated
//! during reading ends the tool with SIGBUS, and programs running from the file too.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use locality_common::heap::{TextRange, function};
use locality_symbols::{Mapping, Mappings};
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _};

use super::allocators::{self, BODY_BYTES, Point, Symbol};
use locality_kernel::uprobe::Probe;

/// More symbols than this are not looked through.
const SYMBOLS_MAX: usize = 4_000_000;

/// Names a file, whatever its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    device: (u32, u32),
    inode: u64,
}

impl FileId {
    /// Device number of a file, if the file system reports equal numbers for mappings.
    pub fn of(metadata: &fs::Metadata) -> Self {
        let device = (libc::major(metadata.dev()), libc::minor(metadata.dev()));
        Self { device, inode: metadata.ino() }
    }

    /// The same file in `locality_shadow::helper::What::Text`.
    pub fn key(&self) -> u64 {
        let (major, minor) = self.device;
        self.inode ^ (u64::from(major) << 32 | u64::from(minor)).rotate_left(24)
    }

    /// Whether a mapping is of it.
    pub fn is_of(&self, mapping: &Mapping) -> bool {
        (self.device, self.inode) == (mapping.device, mapping.inode)
    }

    /// The file's inode; further calls may report another device.
    pub fn inode(&self) -> u64 {
        self.inode
    }
}

/// A file that a process executes.
#[derive(Debug, Clone)]
pub struct Executed {
    /// Which.
    pub id: FileId,
    /// A path to the file, from every mount namespace.
    pub path: PathBuf,
    /// It is the process' program.
    pub is_program: bool,
    /// Range of its code.
    pub text: TextRange,
}

/// Files executed by a process, from its memory map.
pub fn executed(pid: u32, mappings: &Mappings) -> Vec<Executed> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let mut files: Vec<Executed> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.executable && mapping.inode != 0) {
        let id = FileId { device: mapping.device, inode: mapping.inode };
        if let Some(file) = files.iter_mut().find(|file| file.id == id) {
            file.text.start = file.text.start.min(mapping.start);
            file.text.end = file.text.end.max(mapping.end);
            continue;
        }
        // A path to the mapped file, even if the file's own path
        // is gone or leads to another file in the mount namespace.
        let path = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end).into();
        let text = TextRange { start: mapping.start, end: mapping.end };
        files.push(Executed { id, path, is_program: Path::new(&*mapping.path) == program, text });
    }
    files
}

/// Our own program.
pub fn own() -> Option<FileId> {
    let here = own as *const () as u64;
    let mappings = Mappings::read(std::process::id()).ok()?;
    mappings.find(here).map(|mapping| FileId { device: mapping.device, inode: mapping.inode })
}

/// Whether a file with these probes has an allocator, with mappings for its store.
pub fn is_allocator(probes: &[Probe]) -> bool {
    let which = |probe: &Probe| (probe.cookie & function::MASK) as u32;
    probes.iter().any(|probe| !matches!(which(probe), function::MMAP | function::MUNMAP))
}

/// Places to probe in a file; none without allocation functions, or for another format than ELF.
pub fn probes(path: &Path, is_program: bool) -> io::Result<Vec<Probe>> {
    // A device must not even be opened.
    if !fs::metadata(path)?.is_file() {
        return Ok(Vec::new());
    }
    let file = File::open(path)?;
    // SAFETY: the mapping is private and read-only; bytes that change under us are survived,
    // truncation is the limit above.
    let bytes = unsafe { memmap2::Mmap::map(&file) }?;
    let mut probes = probes_of(&bytes);
    if is_program && is_allocator(&probes) {
        probes.iter_mut().for_each(|probe| probe.cookie |= function::OWN);
    }
    Ok(probes)
}

pub(super) fn probes_of(bytes: &[u8]) -> Vec<Probe> {
    let Ok(elf) = object::File::parse(bytes) else { return Vec::new() };
    if elf.architecture() != object::Architecture::X86_64 {
        return Vec::new();
    }
    let mut symbols = Vec::new();
    for symbol in elf.dynamic_symbols().chain(elf.symbols()).take(SYMBOLS_MAX) {
        if !symbol.is_definition() || symbol.kind() != object::SymbolKind::Text {
            continue;
        }
        if let Ok(name) = symbol.name()
            && (allocators::is_candidate(name) || allocators::is_hint(name))
        {
            symbols.push(Symbol { name: name.to_owned(), address: symbol.address() });
        }
    }
    let offset = |address: u64| {
        elf.segments().find_map(|segment| {
            let (offset, bytes) = segment.file_range();
            let within = address.checked_sub(segment.address())?;
            (within < bytes).then_some(offset + within)
        })
    };
    let body = |address: u64| {
        let start = offset(address).and_then(|offset| usize::try_from(offset).ok()).unwrap_or(usize::MAX);
        let rest = bytes.get(start..).unwrap_or_default();
        rest.get(..BODY_BYTES.min(rest.len())).unwrap_or_default().to_vec()
    };
    let points = allocators::points(&symbols, body);
    points
        .into_iter()
        .filter_map(|point| {
            let (offset, Point { cookie, followed, .. }) = (offset(point.address)?, point);
            Some(Probe { offset, cookie, followed, byte: *bytes.get(usize::try_from(offset).ok()?)? })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use locality_common::heap::function;
    use locality_shadow::helper::What;

    use super::*;

    #[test]
    fn our_own_allocator_is_found() {
        let own = std::process::id();
        let files = executed(own, &Mappings::read(own).unwrap());
        let here = executed as *const () as u64;
        let program: Vec<_> = files.iter().filter(|file| file.is_program).collect();
        assert!(program.len() == 1 && program[0].text.contains(here), "{program:?}");
        let of = |file: &Executed| probes(&file.path, file.is_program).unwrap_or_default();
        // The C library has an allocator, and the program has none.
        let allocators: Vec<_> = files.iter().filter(|file| is_allocator(&of(file))).collect();
        assert!(allocators.len() == 1 && !allocators[0].is_program, "{allocators:?}");
        assert!(allocators[0].text.contains(libc::malloc as *const () as u64), "{allocators:?}");
        let probes: Vec<Probe> = files.iter().flat_map(of).collect();
        let has = |which: u32| probes.iter().any(|probe| probe.cookie & function::MASK == u64::from(which));
        for which in
            [function::MALLOC, function::CALLOC, function::REALLOC, function::FREE, function::POSIX_MEMALIGN]
        {
            assert!(has(which), "{which} is not in {probes:?}");
        }
        for probe in probes {
            let gives_back =
                matches!((probe.cookie & function::MASK) as u32, function::FREE | function::MUNMAP);
            assert_ne!(probe.followed, gives_back, "{probe:?}");
        }
    }

    #[test]
    fn files_have_the_names_that_windows_know_them_by() {
        let own = own().unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let here = executed as *const () as u64;
        let ranges = locality_shadow::helper::ranges(&maps);
        let range = ranges.iter().find(|range| (range.start..range.end).contains(&here)).unwrap();
        let What::Text { file, .. } = range.what else { panic!("{range:?}") };
        assert_eq!(file, own.key());
    }

    #[test]
    fn what_is_no_program_has_no_probes() {
        assert_eq!(probes_of(b"\x7fELF but not really"), []);
        assert_eq!(probes_of(&[]), []);
        assert_eq!(probes(Path::new("/dev/null"), false).unwrap(), []);
    }
}
