//! An opened module: the ELF file of a mapping, open as long as needed.
//!
//! Modules are shared among processes. The bytes are a private mapping of the file that the process
//! really runs, so a file that is deleted or replaced, and a process that ends, take nothing away
//! from us. A file descriptor stays for the symboliser process, and because blazesym opens files
//! by path and `/proc/self/fd/N` is the only path that stays true. Debug information is opened with
//! the module, or by the symboliser process (`isolated`).
//!
//! Modules without a process stay open for the next process with the same file, because
//! programs start the same commands and load the same libraries repeatedly; see [`SPARE`].

use std::any::Any;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt as _, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::debug_file::{self, links_are_harmless};
use crate::demangle::demangle;
use crate::elf::{Bytes, Elf, Symbols};
use crate::frame::{ModuleInfo, Unknown};
use crate::isolated::Client;
use crate::maps::Mapping;
use crate::opening::{Links, open_below, open_regular};
use crate::regions::enclosing_function;
use crate::stubs::Stubs;
use crate::unsplit::unsplit;

/// Open modules without a process: the last used, limited
/// by number and by the sum of the files' bytes.
const SPARE: usize = 48;
const SPARE_BYTES: usize = 128 << 20;

/// Identity of a file and contents on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum FileKey {
    File { device: u64, inode: u64, bytes: u64, modified_ns: (i64, i64) },
    Vdso { bytes: Vec<u8> },
}

impl FileKey {
    fn of(metadata: &Metadata) -> Self {
        Self::File {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.size(),
            modified_ns: (metadata.mtime(), metadata.mtime_nsec()),
        }
    }
}

/// An ELF file with an executable mapping in some process.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) info: Arc<ModuleInfo>,
    pub(crate) elf: Elf,
    /// The mapped file; `None` for the vdso.
    pub(crate) file: Option<File>,
    /// Root directory of the process of its first use.
    pub(crate) root: PathBuf,
    debug: OnceLock<Debug>,
    /// The symboliser process has got the module, and has looked for its debug information.
    is_sent: AtomicBool,
    /// Data derived from the file by a reader ([`ModuleFile::derived`]).
    derived: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// Facts of a module beyond headers and unwind tables.
#[derive(Debug)]
pub(crate) struct Debug {
    /// The separate debug file, for names that were stripped from the module; or split debug
    /// information, put together.
    elf: Option<Elf>,
    /// The separate file that has the DWARF.
    dwarf_file: Option<File>,
    /// The module's own file has it.
    dwarf_is_own: bool,
    /// Debug information is left out, because it could harm the reader.
    pub(crate) is_refused: bool,
    symbols: OnceLock<(Symbols, Symbols)>,
    stubs: OnceLock<Stubs>,
}

impl Module {
    pub(crate) fn new(path: &str, bytes: Bytes, file: Option<File>, root: &Path) -> Option<Self> {
        let elf = Elf::parse(bytes)?;
        let info = Arc::new(ModuleInfo { path: path.to_owned(), build_id: elf.build_id.clone() });
        Some(Self {
            info,
            elf,
            file,
            root: root.to_owned(),
            debug: OnceLock::new(),
            is_sent: AtomicBool::new(false),
            derived: OnceLock::new(),
        })
    }

    /// Opens the debug information at the first call: reads untrusted bytes.
    pub(crate) fn debug(&self) -> &Debug {
        self.debug.get_or_init(|| Debug::of(self))
    }

    /// The symboliser process has got it.
    pub(crate) fn sent(&self) {
        self.is_sent.store(true, Ordering::Relaxed);
    }

    /// Whether the root directory is not needed any more.
    fn is_settled(&self) -> bool {
        self.debug.get().is_some() || self.is_sent.load(Ordering::Relaxed)
    }

    /// The file that has the DWARF.
    pub(crate) fn dwarf_file(&self) -> Option<&File> {
        let debug = self.debug();
        debug.dwarf_file.as_ref().or_else(|| self.file.as_ref().filter(|_| debug.dwarf_is_own))
    }

    /// The bytes of the file that has the DWARF.
    pub(crate) fn dwarf_bytes(&self) -> &[u8] {
        let debug = self.debug();
        let own = debug.dwarf_is_own || debug.elf.is_none();
        if own { &self.elf.bytes } else { debug.elf.as_ref().map_or(&[], |elf| &elf.bytes) }
    }

    /// Opens the debug information, and keeps no descriptor that only another process would need.
    fn read_here(&mut self) {
        if !self.debug().dwarf_is_own {
            self.file = None;
        }
    }

    /// Start and mangled name of the function around an address of the module, and whether the name
    /// comes from a full symbol table.
    pub(crate) fn function(&self, address: u64) -> Option<(u64, &str, bool)> {
        if let Some((start, name)) = self.stub(address) {
            return Some((start, name, false));
        }
        self.symbol(address)
    }

    /// Start and name of the linkage table's stub around an address.
    pub(crate) fn stub(&self, address: u64) -> Option<(u64, &str)> {
        let name = |address| self.symbol(address).map(|(_, name, _)| demangle(name));
        self.debug().stubs.get_or_init(|| Stubs::read(&self.elf.bytes, &name)).find(address)
    }

    /// Addresses and mangled name of the function around an address.
    pub(crate) fn symbol_range(&self, address: u64) -> Option<(std::ops::Range<u64>, String)> {
        let debug = self.debug();
        let (own, separate) = debug.symbols.get_or_init(|| {
            let separate = debug.elf.as_ref().map(Elf::symbols).unwrap_or_default();
            (self.elf.symbols(), separate)
        });
        let found = debug.elf.as_ref().and_then(|elf| separate.range(elf, address));
        let (range, name) = found.or_else(|| own.range(&self.elf, address))?;
        Some((range, name.to_owned()))
    }

    fn symbol(&self, address: u64) -> Option<(u64, &str, bool)> {
        let debug = self.debug();
        let (own, separate) = debug.symbols.get_or_init(|| {
            let separate = debug.elf.as_ref().map(Elf::symbols).unwrap_or_default();
            (self.elf.symbols(), separate)
        });
        let found = debug.elf.as_ref().and_then(|elf| separate.find(elf, address));
        let full = found.is_some() || own.full;
        let (start, name) = found.or_else(|| own.find(&self.elf, address))?;
        Some((start, name, full))
    }
}

impl Debug {
    fn of(module: &Module) -> Self {
        let Module { info, elf, file, root, .. } = module;
        let (path, mut debug_elf, mut dwarf_file) = (&info.path, None, None);
        let mut dwarf_is_own = elf.has_debug_info() && file.is_some();
        if !elf.has_debug_info()
            && let Some(debug) = debug_file::find(elf, root, path)
        {
            debug_elf = Bytes::map(&debug).ok().and_then(Elf::parse);
            dwarf_file = debug_elf.as_ref().is_some_and(Elf::has_debug_info).then_some(debug);
        }
        if (dwarf_is_own || dwarf_file.is_some())
            && let Some(whole) = unsplit(&debug_elf.as_ref().unwrap_or(elf).bytes, root, path)
            && let Some(whole_elf) = Bytes::map(&whole).ok().and_then(Elf::parse)
        {
            (debug_elf, dwarf_file, dwarf_is_own) = (Some(whole_elf), Some(whole), false);
        }
        let mut is_refused = elf.is_refused() || debug_elf.as_ref().is_some_and(Elf::is_refused);
        if let Some(file) = file.as_ref().filter(|_| dwarf_is_own).or(dwarf_file.as_ref())
            && !links_are_harmless(&debug_elf.as_ref().unwrap_or(elf).bytes, file)
        {
            (dwarf_file, dwarf_is_own, is_refused) = (None, false, true);
        }
        Self {
            elf: debug_elf,
            dwarf_file,
            dwarf_is_own,
            is_refused,
            symbols: OnceLock::new(),
            stubs: OnceLock::new(),
        }
    }
}

/// A handle on an opened ELF file, for readers beyond code: its bytes stay mapped.
#[derive(Debug, Clone)]
pub struct ModuleFile(pub(crate) Arc<Module>);

impl ModuleFile {
    /// Path and build id.
    pub fn info(&self) -> &Arc<ModuleInfo> {
        &self.0.info
    }

    /// The file that is mapped.
    pub fn bytes(&self) -> &[u8] {
        &self.0.elf.bytes
    }

    /// Mangled name of the function around an address of the module, from its symbol tables.
    pub fn function(&self, address: u64) -> Option<&str> {
        self.0.function(address).map(|(_, name, _)| name)
    }

    /// Mangled name of the function that the source declares around a line, in the
    /// unit with the address: for code that the compiler took out of the function.
    pub fn function_around(&self, address: u64, path: &str, line: u32) -> Option<String> {
        enclosing_function(self.0.dwarf_bytes(), address, path, line)
    }

    /// Data derived from the file, once for all processes that map it.
    /// Each file has a single value; `None` for a request of another type.
    pub fn derived<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<Arc<T>> {
        let derived = self.0.derived.get_or_init(|| Arc::new(make()));
        Arc::clone(derived).downcast().ok()
    }

    /// The separate debug file, found by build id or debug link, or put together from
    /// split debug information; `None` as well when the file contains debug information.
    pub fn debug_bytes(&self) -> Option<&[u8]> {
        self.0.debug().elf.as_ref().map(|elf| &*elf.bytes)
    }
}

/// The opened modules by file, with the process's path; each with the number of its last question.
#[derive(Debug, Default)]
struct OpenModules {
    by_file: HashMap<(FileKey, String), (Arc<Module>, u64)>,
    /// Keys in `by_file` by device, inode and path of the mapping that each module was opened for.
    by_mapping: HashMap<Mapped, (FileKey, String)>,
    questions: u64,
}

/// A file as lists of mappings name it: device, inode, path.
type Mapped = ((u32, u32), u64, Arc<str>);

/// All opened modules, shared among processes.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    open: Mutex<OpenModules>,
    /// The reader of names and debug information, if another process.
    pub(crate) reader: Option<Mutex<Client>>,
}

impl Modules {
    /// The module of an executable mapping of process `pid`.
    pub(crate) fn open(&self, pid: u32, mapping: &Mapping) -> Result<Arc<Module>, Unknown> {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        if &*mapping.path == "[vdso]" {
            let bytes = vdso(pid, mapping).map_err(|error| unknown(&error))?;
            let key = FileKey::Vdso { bytes: bytes.clone() };
            let key = (key, "[vdso]".to_owned());
            return self.get_or_open(key, || Module::new("[vdso]", Bytes::Copied(bytes), None, &root));
        }
        let (file, path) = open_mapped(pid, mapping)?;
        let metadata = file.metadata().map_err(|error| unknown(&error))?;
        let path = started_as(pid, path, &metadata).unwrap_or_else(|| path.to_owned());
        let key = (FileKey::of(&metadata), path.clone());
        let module = self.get_or_open(key.clone(), || {
            let bytes = Bytes::map(&file).ok()?;
            Module::new(&path, bytes, Some(file), &root)
        })?;
        self.lock().by_mapping.insert(mapped(mapping), key);
        Ok(module)
    }

    /// The module opened for another process's mapping of the same file: a process of milliseconds
    /// is gone before its files are opened. A file written in place meanwhile is taken as before.
    pub(crate) fn opened_before(&self, mapping: &Mapping) -> Option<Arc<Module>> {
        let open_modules = self.lock();
        let key = open_modules.by_mapping.get(&mapped(mapping))?;
        Some(Arc::clone(&open_modules.by_file.get(key)?.0))
    }

    fn get_or_open(
        &self,
        key: (FileKey, String),
        open: impl FnOnce() -> Option<Module>,
    ) -> Result<Arc<Module>, Unknown> {
        let mut open_modules = self.lock();
        open_modules.questions += 1;
        let question = open_modules.questions;
        if let Some((module, asked)) = open_modules.by_file.get_mut(&key) {
            *asked = question;
            return Ok(Arc::clone(module));
        }
        let mut module = open().ok_or(Unknown::NotElf)?;
        if self.reader.is_none() {
            // At once: the debug file may be gone with the process.
            module.read_here();
        }
        let module = Arc::new(module);
        open_modules.by_file.insert(key, (Arc::clone(&module), question));
        Ok(module)
    }

    fn lock(&self) -> MutexGuard<'_, OpenModules> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same with names read by another process.
    pub(crate) fn isolated(reader: Client) -> Self {
        Self { open: Mutex::default(), reader: Some(Mutex::new(reader)) }
    }

    /// Closes modules without a using process or symbolizer, except for the spare ones. A module
    /// whose debug information was not searched for is closed, because the search needs the root
    /// directory of a living process.
    pub(crate) fn close_unused(&self) {
        let mut open_modules = self.lock();
        let OpenModules { by_file, by_mapping, .. } = &mut *open_modules;
        let is_unused = |module: &Arc<Module>| Arc::strong_count(module) == 1;
        let mut unused: Vec<(u64, usize)> = by_file
            .values()
            .filter(|(module, _)| is_unused(module) && module.is_settled())
            .map(|(module, asked)| (*asked, module.elf.bytes.len()))
            .collect();
        unused.sort_unstable_by(|a, b| b.cmp(a));
        let mut bytes = 0;
        let spare = unused.iter().take(SPARE).take_while(|(_, of_file)| {
            bytes += of_file;
            bytes <= SPARE_BYTES
        });
        let oldest = spare.last().map_or(u64::MAX, |(asked, _)| *asked);
        by_file.retain(|_, (module, asked)| !is_unused(module) || *asked >= oldest && module.is_settled());
        by_mapping.retain(|_, key| by_file.contains_key(key));
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().by_file.len()
    }
}

fn mapped(mapping: &Mapping) -> Mapped {
    (mapping.device, mapping.inode, Arc::clone(&mapping.path))
}

/// Opens the file that is really mapped. `/proc/PID/map_files` always leads to the mapped
/// file, but requires CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE (proc_pid_map_files(5)). The
/// path below the process's root may meanwhile lead to another file, distinguished by inode.
fn open_mapped(pid: u32, mapping: &Mapping) -> Result<(File, &str), Unknown> {
    let (path, deleted) = match mapping.path.strip_suffix(" (deleted)") {
        Some(path) => (path, true),
        None => (&*mapping.path, false),
    };
    let exact = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
    match open_regular(Path::new(&exact)) {
        Ok(file) => return Ok((file, path)),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(Unknown::NotElf),
        Err(_) => {}
    }
    if deleted {
        return Err(Unknown::FileGone);
    }
    let root = format!("/proc/{pid}/root");
    let file = open_below(Path::new(&root), Path::new(path), Links::All).map_err(|error| unknown(&error))?;
    if file.metadata().map_err(|error| unknown(&error))?.ino() != mapping.inode {
        return Err(Unknown::FileReplaced);
    }
    Ok((file, path))
}

/// The path by which the process's own program was started, if a link to the mapped file: Debian's
/// `redis-server` is a link to `redis-check-rdb`, and the first name decides about its work. `None`
/// for libraries, and for an equal path.
fn started_as(pid: u32, mapped: &str, file: &Metadata) -> Option<String> {
    let same = |metadata: &Metadata| (metadata.dev(), metadata.ino()) == (file.dev(), file.ino());
    if !std::fs::metadata(format!("/proc/{pid}/exe")).is_ok_and(|program| same(&program)) {
        return None;
    }
    let root = format!("/proc/{pid}/root");
    let (directory, name) = mapped.rsplit_once('/')?;
    let beside = |name: &str| format!("{directory}/{name}");
    let told = executed_path(pid);
    let last = told.as_deref().and_then(|told| told.rsplit('/').next()).map(beside);
    // The kernel's name of the thread is the file's name until the program changes the name.
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok();
    let comm = comm.map(|comm| beside(comm.trim_end_matches('\n')));
    let absolute = told.filter(|told| told.starts_with('/'));
    let mut candidates = [last, absolute, comm].into_iter().flatten();
    candidates.find(|candidate| {
        // Another root directory shows the same file by another path, not another name.
        let renamed = candidate.rsplit('/').next().is_some_and(|last| !last.is_empty() && last != name);
        let leads_there = |root: &str| {
            let opened = open_below(Path::new(root), Path::new(candidate), Links::All);
            opened.and_then(|opened| opened.metadata()).is_ok_and(|metadata| same(&metadata))
        };
        renamed && (leads_there(&root) || leads_there("/"))
    })
}

/// The path that the program was executed by, as the kernel left it on the program's stack
/// (`AT_EXECFN`); the program may have overwritten the text since.
fn executed_path(pid: u32) -> Option<String> {
    const AT_EXECFN: u64 = 31;
    const PATH_BYTES: usize = 4096;
    let vector = std::fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let word = |bytes: &[u8]| bytes.first_chunk::<8>().map(|word| u64::from_le_bytes(*word));
    let mut entries = vector.chunks_exact(16).take(256);
    let address = entries.find_map(|entry| {
        let (kind, value) = entry.split_at(8);
        (word(kind)? == AT_EXECFN).then(|| word(value)).flatten()
    })?;
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut text = vec![0; PATH_BYTES];
    // The text stands near the stack's end: fewer bytes are no error.
    let got = memory.read_at(&mut text, address).ok()?;
    let end = text.get(..got)?.iter().position(|byte| *byte == 0)?;
    String::from_utf8(text.get(..end)?.to_vec()).ok().filter(|path| !path.is_empty())
}

pub(crate) fn unknown(error: &io::Error) -> Unknown {
    match error.kind() {
        io::ErrorKind::InvalidInput => Unknown::NotElf,
        io::ErrorKind::PermissionDenied => Unknown::NotPermitted,
        _ => Unknown::FileGone,
    }
}

/// The vdso is no file, and is read from the process or, if forbidden, from this
/// process: one kernel has one 64-bit vdso, and another size shows a foreign one.
fn vdso(pid: u32, mapping: &Mapping) -> io::Result<Vec<u8>> {
    read_memory(&pid.to_string(), mapping.start, mapping.end).or_else(|error| {
        let own = crate::maps::Mappings::read(std::process::id())?;
        let own = own.iter().find(|own| own.path == mapping.path);
        match own {
            Some(own) if own.end - own.start == mapping.end - mapping.start => {
                read_memory("self", own.start, own.end)
            }
            _ => Err(error),
        }
    })
}

fn read_memory(process: &str, start: u64, end: u64) -> io::Result<Vec<u8>> {
    let mut memory = File::open(format!("/proc/{process}/mem"))?;
    memory.seek(SeekFrom::Start(start))?;
    // A vdso has two or four pages; anything large is not one.
    let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(0).min(1 << 20)];
    memory.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Without the right to use `map_files`, the path leads to whatever is there now; the inode tells.
    #[test]
    fn another_file_at_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::copy("/proc/self/exe", &path).unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        // No mapping of ours has these bounds, so `map_files` has no entry.
        let mut mapping = Mapping {
            start: 0x1000,
            end: 0x2000,
            offset: 0,
            readable: true,
            writable: false,
            executable: true,
            shared: false,
            device: (0, 0),
            inode,
            path: path.to_str().unwrap().into(),
        };
        let modules = Modules::default();
        let own = std::process::id();
        assert!(modules.open(own, &mapping).is_ok());
        mapping.inode += 1;
        assert_eq!(modules.open(own, &mapping).unwrap_err(), Unknown::FileReplaced);
        mapping.path = format!("{} (deleted)", mapping.path).into();
        assert_eq!(modules.open(own, &mapping).unwrap_err(), Unknown::FileGone);
        mapping.path = "/dev/null".into();
        assert_eq!(modules.open(own, &mapping).unwrap_err(), Unknown::NotElf);
    }
}
