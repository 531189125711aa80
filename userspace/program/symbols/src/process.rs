//! Facts of the traced processes: mappings, and the modules that addresses fell in.
//!
//! A snapshot that outlives the process: modules stay open, and vanished mappings (unload, exec,
//! exit) are remembered if an address was seen in them. The process is never stopped, written or
//! traced; only `/proc` is read. Each stack's mappings are compared with the kernel's, so a module
//! that another one replaces at the same address is noticed. Limit: kernels before 6.11 answer no
//! questions about single mappings; there the old one's names may stand for a tenth of a second.
//!
//! Mappings of a new program are never taken for the old program's: until a call of
//! [`Processes::exec`] the snapshot stays as before. Exceptions: a process that may not be
//! inspected, and a child that still shares its parent's memory (vfork).

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cfi;
use crate::changed::{self, Now};
use crate::frame::Unknown;
use crate::isolated::{Client, Isolation};
use crate::jit::PerfMap;
use crate::maps::{Mapping, Mappings};
use crate::module::{Module, ModuleFile, Modules};

/// Addresses that keep missing must not make us read a long maps file all the time: reading may
/// take this part of the time (one in twenty), and there are at least [`MIN_INTERVAL`] between two
/// readings. Not longer: the maps read at exec lack the libraries, and what starts and ends within
/// a tenth of a second is sampled a few milliseconds later.
const READING_SHARE: u32 = 20;
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// Without answers about single mappings, all are read again after this
/// time, or after the given multiple of the reading time if longer.
const UNCHECKED: Duration = Duration::from_millis(100);
const UNCHECKED_SHARE: u32 = 100;

/// An exec is noticed within this time.
const TOLD_WITHIN: Duration = Duration::from_secs(1);
/// Number of readings of a process that execs in between.
const READINGS_MAX: u32 = 3;
/// Vanished mappings that are remembered per process.
const MAX_PAST: usize = 1024;

/// The traced processes. A cheap handle; clones share everything.
#[derive(Debug, Clone, Default)]
pub struct Processes {
    processes: Arc<Mutex<HashMap<u32, Arc<Mutex<Process>>>>>,
    modules: Arc<Modules>,
}

impl Processes {
    /// Knows no process yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Knows no process yet. Names and debug information of files are read by a separate process,
    /// whose death costs the names of the file being read. The thread of the first question must
    /// outlive all questions.
    pub fn isolated(settings: Isolation) -> Self {
        let modules = Arc::new(Modules::isolated(Client::new(settings)));
        Self { processes: Arc::default(), modules }
    }

    /// The reader of names, if another process.
    pub(crate) fn reader(&self) -> Option<MutexGuard<'_, Client>> {
        Some(self.modules.reader.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a snapshot of the mappings. Earlier knowledge under this process id is forgotten, so
    /// call it once per process, and make its [`crate::Unwinder`] after it. Fails for a missing
    /// process, or without the right to inspect it.
    pub fn attach(&self, pid: u32) -> io::Result<()> {
        let process = Process::new(pid, Arc::clone(&self.modules))?;
        self.lock().insert(pid, Arc::new(Mutex::new(process)));
        Ok(())
    }

    /// Reads the mappings again, for instance after a library was loaded, unless that was done a
    /// moment ago (1 ms, or 20 times the reading time where that is longer). True when they were
    /// read; an error when the process has ended or runs another program. Unwinding and symbolising
    /// do this on their own when an address is not in a known executable mapping.
    pub fn refresh(&self, pid: u32) -> io::Result<bool> {
        let process = self.process(pid)?;
        lock(&process).refresh()
    }

    /// Tells that the process has executed another program. Symbolise the addresses from before
    /// first: where old and new program overlap, an address means the new one from now on.
    pub fn exec(&self, pid: u32) -> io::Result<()> {
        let process = self.process(pid)?;
        lock(&process).start_again()
    }

    /// Forgets a process and closes the modules used by no other process.
    pub fn forget(&self, pid: u32) {
        self.lock().remove(&pid);
        self.modules.close_unused();
    }

    /// A copy of the mappings as they were last read.
    pub fn mappings(&self, pid: u32) -> Option<Mappings> {
        let process = self.process(pid).ok()?;
        Some(lock(&process).mappings.clone())
    }

    /// Number of readings of the mappings: while unchanged,
    /// [`Processes::mappings`] is unchanged. 0 for an unknown process.
    pub fn readings(&self, pid: u32) -> u64 {
        self.process(pid).map_or(0, |process| lock(&process).readings)
    }

    /// Changes when an address of the process may have a new meaning. 0 for an unknown process.
    pub fn generation(&self, pid: u32) -> u64 {
        self.process(pid).map_or(0, |process| lock(&process).generation)
    }

    /// Opens the ELF file of a mapping of the process, executable or not. Open
    /// files are shared: asking again is cheap while one handle lives. Files
    /// opened while the process lived are found after the process's end too.
    pub fn open_module(&self, pid: u32, mapping: &Mapping) -> Result<ModuleFile, Unknown> {
        if mapping.inode == 0 {
            return Err(Unknown::NotElf);
        }
        let process = self.process(pid).map_err(|_| Unknown::Unmapped)?;
        let mut process = lock(&process);
        let key = (mapping.device, mapping.inode);
        if let Some(module) = process.files.get(&key) {
            return Ok(ModuleFile(Arc::clone(module)));
        }
        let opened = match process.is_alive() {
            true => self.modules.open(pid, mapping),
            false => Err(Unknown::FileGone),
        };
        let module = opened.or_else(|reason| self.modules.opened_before(mapping).ok_or(reason))?;
        process.files.insert(key, Arc::clone(&module));
        Ok(ModuleFile(module))
    }

    /// Number of open modules at this moment, over all processes.
    pub fn open_modules(&self) -> usize {
        self.modules.len()
    }

    /// The file with the code at an address, and the process's addresses minus
    /// the file's (wrapping); `None` for generated code and unreadable files.
    pub fn module_of(&self, pid: u32, address: u64) -> Option<(Arc<crate::ModuleInfo>, u64)> {
        match self.code_at(pid, address) {
            Code::Module { module, bias } => Some((Arc::clone(&module.info), bias)),
            _ => None,
        }
    }

    /// Process address of the start of the function around `address`:
    /// of the symbol or, without a symbol, of the unwind table entry.
    pub fn function_start(&self, pid: u32, address: u64) -> Option<u64> {
        let Code::Module { module, bias } = self.code_at(pid, address) else { return None };
        let inside = address.wrapping_sub(bias);
        let symbol = match self.reader() {
            Some(mut reader) => reader.function_start(&module, inside),
            None => module.function(inside).map(|(start, _, _)| start),
        };
        let start = symbol.or_else(|| cfi::entry_start(&module.elf, inside))?;
        Some(start.wrapping_add(bias))
    }

    /// Code bytes from the mapped file, not from the process, hence
    /// without breakpoints patched in by debuggers. `None` when the range
    /// does not lie inside one segment of a file, or is longer than 1 MiB.
    pub fn text_bytes(&self, pid: u32, range: Range<u64>) -> Option<Vec<u8>> {
        let len = usize::try_from(range.end.checked_sub(range.start)?).ok().filter(|&len| len <= 1 << 20)?;
        let Code::Module { module, bias } = self.code_at(pid, range.start) else { return None };
        let bytes = module.elf.at(range.start.wrapping_sub(bias), len)?;
        (bytes.len() == len).then(|| bytes.to_vec())
    }

    pub(crate) fn process(&self, pid: u32) -> io::Result<Arc<Mutex<Process>>> {
        let unknown = || io::Error::new(io::ErrorKind::NotFound, format!("process {pid} is not attached"));
        self.lock().get(&pid).map(Arc::clone).ok_or_else(unknown)
    }

    pub(crate) fn code_at(&self, pid: u32, address: u64) -> Code {
        match self.process(pid) {
            Ok(process) => lock(&process).code_at(address).unwrap_or(Code::Unreadable(Unknown::Unmapped)),
            Err(_) => Code::Unreadable(Unknown::Unmapped),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<Mutex<Process>>>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn lock(process: &Mutex<Process>) -> MutexGuard<'_, Process> {
    process.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an executable mapping turned out to be.
#[derive(Debug, Clone)]
pub(crate) enum Code {
    /// Process address minus module address is `bias` (wrapping).
    Module { module: Arc<Module>, bias: u64 },
    /// No file: generated at run time.
    Generated,
    /// A file that we cannot read.
    Unreadable(Unknown),
}

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    /// Start time in clock ticks since boot: process ids are used again.
    started: Option<u64>,
    mappings: Mappings,
    /// How often they were read.
    readings: u64,
    /// The memory of the mappings' program.
    memory: Option<File>,
    /// Its maps file, to ask about single mappings.
    maps: Option<File>,
    /// Starts of mappings that were compared with the kernel's for the stack being walked.
    compared: Vec<u64>,
    /// Starts of mappings replaced since the last reading.
    outdated: Vec<u64>,
    /// Since when another program is seen to run.
    another_since: Option<Instant>,
    /// Executable mappings that an address fell in, by start.
    seen: HashMap<u64, Code>,
    /// Files that were opened on demand, by device and inode.
    files: HashMap<((u32, u32), u64), Arc<Module>>,
    /// Vanished mappings of `seen`, the latest last.
    past: Vec<(Mapping, Code)>,
    pub(crate) perf_map: PerfMap,
    modules: Arc<Modules>,
    next_reading: Instant,
    /// See [`UNCHECKED`].
    next_unchecked: Instant,
    /// Changes when an address may have a new meaning.
    pub(crate) generation: u64,
}

impl Process {
    fn new(pid: u32, modules: Arc<Modules>) -> io::Result<Self> {
        let mut process = Self {
            pid,
            started: start_time(pid),
            mappings: Mappings::default(),
            readings: 0,
            memory: None,
            maps: None,
            compared: Vec::new(),
            outdated: Vec::new(),
            another_since: None,
            seen: HashMap::new(),
            files: HashMap::new(),
            past: Vec::new(),
            perf_map: PerfMap::default(),
            modules,
            next_reading: Instant::now(),
            next_unchecked: Instant::now(),
            generation: 0,
        };
        process.start_again()?;
        Ok(process)
    }

    /// Reads the mappings of the program that runs now.
    fn start_again(&mut self) -> io::Result<()> {
        let mut read = Ok(());
        for _ in 0..READINGS_MAX {
            // Names of code generated by another program are invalid for the new program.
            self.perf_map = PerfMap::default();
            // First, because a reading then belongs to this
            // program or, visibly, to a later program.
            self.open_memory();
            read = self.read_again();
            if read.is_ok() {
                break;
            }
        }
        read
    }

    fn open_memory(&mut self) {
        self.memory = File::open(format!("/proc/{}/mem", self.pid)).ok();
        self.maps = File::open(format!("/proc/{}/maps", self.pid)).ok();
    }

    /// Mappings of the next stack are compared with the kernel's anew.
    pub(crate) fn begin_stack(&mut self) {
        self.compared.clear();
    }

    /// Reads the mappings again if the known mapping at a code address was replaced.
    pub(crate) fn compare(&mut self, address: u64) {
        let Some(known) = self.mappings.find(address).filter(|mapping| mapping.executable) else { return };
        if self.compared.contains(&known.start) {
            return;
        }
        let start = known.start;
        self.compared.push(start);
        let now = self.maps.as_ref().map_or(Now::Ended, |maps| changed::ask(maps, address, known));
        let is_due = match now {
            Now::Same | Now::Ended => false,
            Now::Other => true,
            Now::NoAnswer => Instant::now() >= self.next_unchecked,
        };
        if is_due && !matches!(self.refresh(), Ok(true)) && now == Now::Other {
            self.outdated.push(start);
        }
    }

    /// Whether the program's memory is gone, by an exec or an exit. A descriptor stays with the
    /// memory; unmapped addresses are an error while it exists, and empty afterwards (`mem_rw` in
    /// fs/proc/base.c).
    fn is_another_program(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| matches!(memory.read_at(&mut [0], 0), Ok(0)))
    }

    pub(crate) fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    pub(crate) fn refresh(&mut self) -> io::Result<bool> {
        if Instant::now() < self.next_reading {
            return Ok(false);
        }
        self.read_again().map(|()| true)
    }

    fn read_again(&mut self) -> io::Result<()> {
        let started = Instant::now();
        let read =
            if self.is_alive() { Mappings::read(self.pid) } else { Err(io::ErrorKind::NotFound.into()) };
        let done = Instant::now();
        self.next_reading = done + ((done - started) * READING_SHARE).max(MIN_INTERVAL);
        self.next_unchecked = done + ((done - started) * UNCHECKED_SHARE).max(UNCHECKED);
        let read = read?;
        if self.is_another_program() {
            // The tracer that follows the process reports
            // the exec, unless the kernel's event was lost.
            let since = *self.another_since.get_or_insert(started);
            if since.elapsed() < TOLD_WITHIN {
                return Err(io::Error::new(io::ErrorKind::NotFound, "the process runs another program"));
            }
            self.open_memory();
        }
        self.another_since = None;
        let old = std::mem::replace(&mut self.mappings, read);
        self.readings += 1;
        self.outdated.clear();
        let mut gone = Vec::new();
        self.seen.retain(|start, code| {
            let Some(before) = old.find(*start) else { return false };
            let kept = self.mappings.find(*start) == Some(before);
            if !kept {
                gone.push((before.clone(), code.clone()));
            }
            kept
        });
        if !gone.is_empty() {
            self.generation += 1;
        }
        self.past.append(&mut gone);
        let excess = self.past.len().saturating_sub(MAX_PAST);
        self.past.drain(..excess);
        Ok(())
    }

    /// The code at an address; `None` without executable code, now or in the past.
    pub(crate) fn code_at(&mut self, address: u64) -> Option<Code> {
        if let Some(code) = self.current_code_at(address) {
            return Some(code);
        }
        let is_outdated = self.is_outdated(address);
        if !is_outdated
            && let Some((_, code)) = self.past.iter().rev().find(|(mapping, _)| mapping.contains(address))
        {
            return Some(code.clone());
        }
        // A process that has ended has no maps; the snapshot stays.
        match self.refresh() {
            Ok(true) => self.current_code_at(address),
            _ => None,
        }
    }

    fn is_outdated(&self, address: u64) -> bool {
        !self.outdated.is_empty()
            && self.mappings.find(address).is_some_and(|mapping| self.outdated.contains(&mapping.start))
    }

    /// The same by the last reading of the mappings.
    pub(crate) fn current_code_at(&mut self, address: u64) -> Option<Code> {
        if self.is_outdated(address) {
            return None;
        }
        let mapping = self.mappings.find(address).filter(|mapping| mapping.executable)?;
        let code = match self.seen.get(&mapping.start) {
            Some(code) => code.clone(),
            None => {
                let (start, code) = (mapping.start, self.open(mapping));
                self.seen.insert(start, code.clone());
                code
            }
        };
        if matches!(code, Code::Generated) && self.perf_map.wants_file() && self.is_alive() {
            self.perf_map.open(self.pid, self.started);
        }
        Some(code)
    }

    /// False as well when another process has got the id.
    fn is_alive(&self) -> bool {
        self.started.is_some() && start_time(self.pid) == self.started
    }

    fn open(&self, mapping: &Mapping) -> Code {
        if mapping.inode == 0 && &*mapping.path != "[vdso]" {
            return if &*mapping.path == "[vsyscall]" {
                Code::Unreadable(Unknown::NoSymbols)
            } else {
                Code::Generated
            };
        }
        let opened = match self.is_alive() {
            true => self.modules.open(self.pid, mapping),
            false => Err(Unknown::FileGone),
        };
        match opened.or_else(|reason| self.modules.opened_before(mapping).ok_or(reason)) {
            Ok(module) => match module.elf.address_of_mapping(mapping.offset) {
                Some(address) => Code::Module { bias: mapping.start.wrapping_sub(address), module },
                None => Code::Unreadable(Unknown::NotElf),
            },
            Err(_) if is_shared_memory(&mapping.path) => Code::Generated,
            Err(reason) => Code::Unreadable(reason),
        }
    }
}

/// Field 22 of `/proc/PID/stat` (proc_pid_stat(5)). The preceding
/// name may contain any bytes; fields count from the name's end.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

/// Runtimes map their code through shared memory, to have it writable at one place and executable
/// at another.
fn is_shared_memory(path: &str) -> bool {
    ["/memfd:", "/dev/zero", "/dev/shm/", "/SYSV"].iter().any(|prefix| path.starts_with(prefix))
}
