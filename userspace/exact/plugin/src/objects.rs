//! Places of data objects, for simulations of caches: known from the
//! program's own system calls, and by the symbols of the mapped files.
//!
//! Each object has a number and a line in the region's log,
//! `object NUMBER KIND BYTES ADDRESS<TAB>MODULE<TAB>NAME` (numbers
//! hexadecimal, the address is a variable's in the module). Each placement is
//! an entry of the region's list, received by threads in order with accesses.
//! Unmapping is not reported: memory is not accessed until the next placement.
//!
//! Mappings without a file are one object for each size. [`HEAP`] is
//! allocators' memory in small pieces: memory from `brk`, mappings smaller
//! than glibc's `mmap` threshold, and address space reserved without access.
//!
//! Limits: variables without a symbol (stripped files, or symbols in a separate
//! file) count as the section; thread-local variables count as the thread's
//! stack, which is mapped together, or as the heap; shared memory of `shmat`
//! has no name; a moved mapping of a file counts as a mapping without a file.

use std::{
    cmp::Reverse,
    collections::HashMap,
    ffi::c_uint,
    fmt::Write as _,
    fs::File,
    ops::Range,
    path::Path,
    sync::atomic::Ordering::{Relaxed, Release},
};

use locality_stream::{Event, Kind, Placement};
use object::{
    Object as _, ObjectSection as _, ObjectSegment as _, ObjectSymbol as _, ReadCache, SectionFlags,
    SymbolFlags, elf, read::elf::ElfFile64,
};

use crate::{
    mappings,
    process::Process,
    region::{PLACEMENTS, Region},
};

/// The common number of stacks.
pub const STACK: u32 = 1;
/// The number of the heap.
pub const HEAP: u32 = 2;
/// First number of an object with a line in the log.
const FIRST: u32 = 3;
/// Blocks from here on have a separate mapping: glibc's `M_MMAP_THRESHOLD`.
const SMALLEST_BLOCK: u64 = 128 << 10;
const PAGE: u64 = 4096;

/// A placing system call, with arguments.
#[derive(Clone, Copy)]
struct Call {
    number: i64,
    arguments: [u64; 6],
}

/// Knowledge about the program's memory.
#[derive(Default)]
pub struct Objects {
    begun: bool,
    /// Number by description in the log.
    numbers: HashMap<String, u32>,
    /// Begun by each vCPU.
    calls: HashMap<c_uint, Call>,
    /// Memory of modules: later mappings by the loader within belong to the module.
    modules: Vec<Range<u64>>,
    /// Start of `brk`, and the placed end.
    heap: Option<Range<u64>>,
}

/// A system call begins.
pub fn before(process: &Process, vcpu: c_uint, number: i64, arguments: [u64; 6]) {
    let places = matches!(number, libc::SYS_mmap | libc::SYS_mremap | libc::SYS_brk | libc::SYS_munmap);
    if places && process.settings().tells_objects() {
        process.translation().objects.calls.insert(vcpu, Call { number, arguments });
    }
}

/// A system call has returned. Whether anything lies elsewhere now.
pub fn after(process: &Process, vcpu: c_uint, number: i64, result: i64) -> bool {
    let places = matches!(number, libc::SYS_mmap | libc::SYS_mremap | libc::SYS_brk | libc::SYS_munmap);
    if !places || !process.settings().tells_objects() {
        return false;
    }
    let before = process.region().header().placements.load(Relaxed);
    let objects = &mut process.translation().objects;
    let call = objects.calls.remove(&vcpu).filter(|call| call.number == number);
    // Errors are the last page's addresses.
    if let Some(call) = call
        && !(-4096..0).contains(&result)
    {
        objects.returned(process.region(), &call, result.cast_unsigned());
    }
    process.region().header().placements.load(Relaxed) != before
}

/// Places existing memory before the program's first system call, once: the stack,
/// with the address shown by the first events, the file and the interpreter.
pub fn begin(process: &Process, events: &[Event]) {
    if !process.settings().tells_objects() {
        return;
    }
    let objects = &mut process.translation().objects;
    if std::mem::replace(&mut objects.begun, true) {
        return;
    }
    let Ok(maps) = std::fs::read("/proc/self/maps") else { return };
    let maps = String::from_utf8_lossy(&maps);
    let region = process.region();
    let base = region.header().guest_base.load(Relaxed);
    // A program's first access is to the stack, if not by a call.
    let call = events.iter().find(|event| event.kind == Kind::CALL);
    let stack = call.or_else(|| events.iter().find(|event| event.kind.is_access())).map(|event| event.value);
    let program = process.settings().program.canonicalize().ok();
    let interpreter =
        program.as_deref().and_then(Module::read).and_then(|module| module.interpreter?.canonicalize().ok());
    let files = [program, interpreter];
    for line in maps.lines() {
        let Some((range, offset, path)) = mappings::parse(line) else { continue };
        let range = range.start.wrapping_sub(base)..range.end.wrapping_sub(base);
        if stack.is_some_and(|address| range.contains(&address)) {
            place(region, range, STACK);
        } else if offset == 0
            && !path.is_empty()
            && files.iter().flatten().any(|file| file.as_os_str() == path)
            && let Some(module) = Module::read(Path::new(path))
        {
            objects.load(region, path, &module, range.start);
        }
    }
}

impl Objects {
    fn returned(&mut self, region: &Region, call: &Call, result: u64) {
        let [a1, a2, a3, a4, a5, a6] = call.arguments;
        match call.number {
            libc::SYS_munmap => self.forget(&(a1..a1.saturating_add(a2))),
            libc::SYS_brk => {
                let heap = self.heap.get_or_insert(result..result);
                if result > heap.end {
                    place(region, heap.start..result, HEAP);
                    heap.end = result;
                }
            }
            libc::SYS_mremap => self.map_memory(region, result, a3, false, false),
            _ => {
                let (protection, flags) = (a3 as i32, a4 as i32);
                let is_fixed = flags & libc::MAP_FIXED != 0;
                let range = result..result.saturating_add(a2);
                if is_fixed && self.modules.iter().any(|m| m.start <= range.start && range.end <= m.end) {
                    return;
                }
                self.forget(&range);
                if flags & libc::MAP_ANONYMOUS == 0 {
                    self.map_file(region, range, a5 as i32, a6, is_fixed, flags & libc::MAP_PRIVATE != 0);
                } else {
                    let is_stack = flags & libc::MAP_STACK != 0;
                    self.map_memory(region, result, a2, is_stack, protection == libc::PROT_NONE);
                }
            }
        }
    }

    fn forget(&mut self, range: &Range<u64>) {
        self.modules.retain(|module| module.end <= range.start || range.end <= module.start);
    }

    fn map_memory(&mut self, region: &Region, start: u64, bytes: u64, is_stack: bool, is_reserved: bool) {
        let bytes = bytes.next_multiple_of(PAGE);
        let object = if is_stack {
            STACK
        } else if is_reserved || bytes < SMALLEST_BLOCK {
            HEAP
        } else {
            self.number(region, &format!("mapped {bytes:x} 0\t\t"))
        };
        place(region, start..start.saturating_add(bytes), object);
    }

    fn map_file(
        &mut self,
        region: &Region,
        range: Range<u64>,
        file: i32,
        offset: u64,
        is_fixed: bool,
        is_private: bool,
    ) {
        let Ok(path) = std::fs::read_link(format!("/proc/self/fd/{file}")) else { return };
        let path = path.to_string_lossy();
        let module = if offset == 0 && is_private { Module::read(Path::new(&*path)) } else { None };
        let pages = |bytes: u64| bytes.next_multiple_of(PAGE);
        // A loader takes the room of every segment at once; a reader of the file takes the file's.
        if let Some(module) = module.filter(|m| is_fixed || pages(m.bytes) == pages(range.end - range.start))
        {
            return self.load(region, &path, &module, range.start);
        }
        let bytes = std::fs::metadata(&*path).map_or(0, |file| file.len());
        let object = self.number(region, &format!("file {bytes:x} 0\t\t{path}"));
        place(region, range.start..range.start + pages(range.end - range.start), object);
    }

    /// A module comes to lie at `start`.
    fn load(&mut self, region: &Region, path: &str, module: &Module, start: u64) {
        let bias = start.wrapping_sub(module.start);
        let end = start.saturating_add(module.bytes.next_multiple_of(PAGE));
        self.modules.push(start..end);
        let rest = self.number(region, &format!("static {:x} 0\t{path}\t[module]", module.bytes));
        place(region, start..end, rest);
        for Variable { address, bytes, name } in &module.variables {
            let object = self.number(region, &format!("static {bytes:x} {address:x}\t{path}\t{name}"));
            let at = address.wrapping_add(bias);
            place(region, at..at.saturating_add(*bytes), object);
        }
    }

    /// The number of an object, by description in the log; 0 if the log is full.
    fn number(&mut self, region: &Region, what: &str) -> u32 {
        if let Some(number) = self.numbers.get(what) {
            return *number;
        }
        let number = FIRST + self.numbers.len() as u32;
        let mut line = String::new();
        // Cannot fail: a string takes every text.
        let _ = write!(line, "object {number:x} ");
        line.extend(what.chars().map(|c| if c == '\n' { '?' } else { c }));
        line.push('\n');
        if !region.append_log(line.as_bytes()) {
            return 0;
        }
        self.numbers.insert(what.to_owned(), number);
        number
    }
}

/// Adds an entry to the list, with the owner of the translation
/// lock as only writer. Without room the entry is counted.
fn place(region: &Region, range: Range<u64>, object: u32) {
    let header = region.header();
    let count = header.placements.load(Relaxed);
    if count as usize >= PLACEMENTS {
        header.placements_lost.fetch_add(1, Relaxed);
        return;
    }
    let placement = Placement { start: range.start, end: range.end, object, reserved: 0 };
    // SAFETY: below PLACEMENTS, and readers see entries below the count only.
    unsafe { region.placements().add(count as usize).write(placement) };
    header.placements.store(count + 1, Release);
}

/// A file mapped by a loader.
struct Module {
    /// First address, at the beginning of a page.
    start: u64,
    /// Bytes of memory from there on.
    bytes: u64,
    interpreter: Option<std::path::PathBuf>,
    /// Sections, and then variables by address: of two at an equal address
    /// the larger first, to place the smaller variable into the larger.
    variables: Vec<Variable>,
}

/// A variable, or a section.
struct Variable {
    address: u64,
    bytes: u64,
    name: String,
}

impl Module {
    fn read(path: &Path) -> Option<Self> {
        let cache = ReadCache::new(File::open(path).ok()?);
        let file = ElfFile64::<object::Endianness, _>::parse(&cache).ok()?;
        let first = file.segments().map(|segment| segment.address()).min()?;
        let start = first - first % PAGE;
        let end = file.segments().map(|segment| segment.address().saturating_add(segment.size())).max()?;
        let interpreter = file.section_by_name_bytes(b".interp").and_then(|section| {
            let text = section.data().ok()?.split(|byte| *byte == 0).next()?;
            Some(std::str::from_utf8(text).ok()?.into())
        });
        let loaded = file.sections().filter(|section| {
            let SectionFlags::Elf { sh_flags } = section.flags() else { return false };
            // Thread-local memory has no place in the module.
            sh_flags & u64::from(elf::SHF_ALLOC | elf::SHF_TLS) == elf::SHF_ALLOC.into()
        });
        let mut sections: Vec<Variable> = loaded
            .map(|section| Variable {
                address: section.address(),
                bytes: section.size(),
                name: format!("[{}]", section.name().unwrap_or_default()),
            })
            .collect();
        let mut variables: Vec<Variable> = Vec::new();
        for symbol in file.symbols().chain(file.dynamic_symbols()) {
            let SymbolFlags::Elf { st_info, .. } = symbol.flags() else { continue };
            let is_data = matches!(st_info & 0xf, elf::STT_OBJECT | elf::STT_COMMON);
            let range = symbol.address()..symbol.address().saturating_add(symbol.size());
            if !is_data || symbol.is_undefined() || range.is_empty() || range.start < start || range.end > end
            {
                continue;
            }
            let Ok(name) = symbol.name() else { continue };
            variables.push(Variable {
                address: range.start,
                bytes: symbol.size(),
                // Without the version.
                name: name.split('@').next().unwrap_or(name).to_owned(),
            });
        }
        // Of several names for a place, the name with the fewest leading underscores.
        let plain = |name: &str| name.bytes().take_while(|byte| *byte == b'_').count();
        variables
            .sort_by_cached_key(|one| (one.address, Reverse(one.bytes), plain(&one.name), one.name.clone()));
        variables.dedup_by_key(|one| (one.address, one.bytes));
        sections.append(&mut variables);
        Some(Self { start, bytes: end - start, interpreter, variables: sections })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static KNOWN: [u64; 5] = [1, 2, 3, 4, 5];

    #[test]
    fn this_programs_variables_are_found() {
        let module = Module::read(&std::env::current_exe().unwrap()).unwrap();
        let found =
            module.variables.iter().find(|one| one.name.contains("KNOWN") && one.name.contains("objects"));
        assert_eq!(found.map(|one| one.bytes), Some(size_of_val(&KNOWN) as u64), "{}", KNOWN[0]);
        assert!(module.variables.iter().any(|one| one.name == "[.rodata]"));
        assert!(module.interpreter.is_some_and(|path| path.is_absolute()));
    }

    #[test]
    fn system_calls_place_objects() {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(&folder.path().join("1.0"), None).unwrap();
        let mut objects = Objects::default();
        let mut call =
            |number, arguments, result| objects.returned(&region, &Call { number, arguments }, result);
        let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let none = u64::MAX;
        call(libc::SYS_brk, [0; 6], 0x10_0123);
        call(libc::SYS_brk, [0x20_0000, 0, 0, 0, 0, 0], 0x20_0000);
        call(libc::SYS_mmap, [0, 1 << 20, writable, private, none, 0], 0x7f00_0000);
        call(libc::SYS_mmap, [0, 5000, writable, private, none, 0], 0x7e00_0000);
        call(libc::SYS_mmap, [0, 8 << 20, 0, private | libc::MAP_STACK as u64, none, 0], 0x7d00_0000);
        call(libc::SYS_mmap, [0, 64 << 20, 0, private, none, 0], 0x6000_0000);
        call(libc::SYS_mremap, [0x7f00_0000, 1 << 20, 2 << 20, 0, 0, 0], 0x5000_0000);
        call(libc::SYS_mmap, [0, (1 << 20) - 1, writable, private, none, 0], 0x4000_0000);
        let placed: Vec<(u64, u64, u32)> = region
            .placed()
            .iter()
            .map(|placement| (placement.start, placement.end - placement.start, placement.object))
            .collect();
        assert_eq!(
            placed,
            [
                (0x10_0123, 0x20_0000 - 0x10_0123, HEAP),
                (0x7f00_0000, 1 << 20, FIRST),
                (0x7e00_0000, 8192, HEAP),
                (0x7d00_0000, 8 << 20, STACK),
                (0x6000_0000, 64 << 20, HEAP),
                (0x5000_0000, 2 << 20, FIRST + 1),
                (0x4000_0000, 1 << 20, FIRST),
            ]
        );
        // SAFETY: no writer.
        let log = String::from_utf8_lossy(unsafe { region.log() }).into_owned();
        assert_eq!(log, "object 3 mapped 100000 0\t\t\nobject 4 mapped 200000 0\t\t\n");
        region.unmap();
    }
}
