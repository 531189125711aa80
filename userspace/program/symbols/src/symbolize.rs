//! Turns code addresses into source frames.
//!
//! blazesym reads lines and inlining from DWARF; names without DWARF come from the ELF symbol
//! tables, names of generated code from perf maps. A function that none of them names is named by
//! its start, from the unwind table. Each address of a file is resolved once, whatever process it
//! is seen in, and answers stay valid when the process has ended. Limits: zstd-compressed debug
//! sections are not read; the cache holds every address that was ever asked for.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use blazesym::helper::ElfResolver;
use blazesym::symbolize::{CodeInfo, FindSymOpts, SrcLang, Symbolize};

use crate::cfi;
use crate::demangle::{demangle, is_mangled, parallel_region, region_name};
use crate::elf::Bytes;
use crate::frame::{ModuleInfo, SourceFrame, Unknown};
use crate::isolated::Question;
use crate::module::{Module, unknown};
use crate::opening::open_regular;
use crate::process::{Code, Processes, lock};
use crate::regions::enclosing_function;
use crate::unwind::CodeAddress;

/// Resolves addresses of all processes. Cannot be sent to another thread (blazesym shares its state
/// without locks): create it in the using thread.
pub struct Symbolizer {
    processes: Processes,
    /// By the address of the module, which the entry keeps alive.
    modules: HashMap<*const Module, Resolved>,
    /// Modules of profiles, by path and build id.
    files: HashMap<ModuleInfo, Result<Arc<Module>, Unknown>>,
    anonymous: Arc<ModuleInfo>,
    generated: Arc<ModuleInfo>,
}

/// Known addresses of one module.
pub(crate) struct Resolved {
    module: Arc<Module>,
    /// `None` without readable DWARF, or with another reading process.
    dwarf: Option<ElfResolver>,
    frames: HashMap<u64, Rc<[SourceFrame]>>,
}

impl Symbolizer {
    /// For the addresses of these processes.
    pub fn new(processes: Processes) -> Self {
        let named = |path: &str| Arc::new(ModuleInfo { path: path.to_owned(), build_id: String::new() });
        Self {
            processes,
            modules: HashMap::new(),
            files: HashMap::new(),
            anonymous: named("[anon]"),
            generated: named("[jit]"),
        }
    }

    /// The source frames at an address of a process, innermost first; never empty.
    pub fn symbolize(&mut self, pid: u32, at: CodeAddress) -> Vec<SourceFrame> {
        match self.processes.code_at(pid, at.lookup()) {
            Code::Module { module, bias } => {
                self.in_module(&module, at.lookup().wrapping_sub(bias), at.address())
            }
            Code::Generated => vec![self.in_generated_code(pid, at)],
            Code::Unreadable(reason) => {
                let path = self.mapped_path(pid, at.lookup());
                let module = path.map(|path| Arc::new(ModuleInfo { path, build_id: String::new() }));
                vec![SourceFrame {
                    address: at.address(),
                    module,
                    unknown: Some(reason),
                    ..Default::default()
                }]
            }
        }
    }

    /// The source frames at an address of a file, without a process: for profiles whose symbols
    /// were not written. `module_address` as in [`SourceFrame::module_address`]. The file must
    /// still have the build id; one that was recorded without build id cannot be checked.
    pub fn symbolize_in_file(&mut self, module: &ModuleInfo, module_address: u64) -> Vec<SourceFrame> {
        match self.file(module) {
            Ok(opened) => self.in_module(&opened, module_address, module_address),
            Err(reason) => vec![SourceFrame {
                module: Some(Arc::new(module.clone())),
                module_address: Some(module_address),
                address: module_address,
                unknown: Some(reason),
                ..Default::default()
            }],
        }
    }

    /// Finds out about many addresses at once, where another process is asked: as many questions
    /// would take longer.
    pub fn prepare(&mut self, pid: u32, addresses: impl IntoIterator<Item = CodeAddress>) {
        if self.processes.reader().is_none() {
            return;
        }
        let mut wanted: Vec<Question> = Vec::new();
        for at in addresses {
            let Code::Module { module, bias } = self.processes.code_at(pid, at.lookup()) else { continue };
            let inside = at.lookup().wrapping_sub(bias);
            match wanted.iter_mut().find(|question| Arc::ptr_eq(&question.module, &module)) {
                Some(question) => question.addresses.push(inside),
                None => wanted.push(Question { module, addresses: vec![inside] }),
            }
        }
        self.ask(wanted);
    }

    /// The same for addresses of a file, as [`Symbolizer::symbolize_in_file`] takes them.
    pub fn prepare_in_file(&mut self, module: &ModuleInfo, addresses: Vec<u64>) {
        if self.processes.reader().is_none() {
            return;
        }
        if let Ok(module) = self.file(module) {
            self.ask(vec![Question { module, addresses }]);
        }
    }

    fn ask(&mut self, mut wanted: Vec<Question>) {
        let Some(mut reader) = self.processes.reader() else { return };
        for question in &mut wanted {
            question.addresses.sort_unstable();
            question.addresses.dedup();
            if let Some(known) = self.modules.get(&Arc::as_ptr(&question.module)) {
                question.addresses.retain(|inside| !known.frames.contains_key(inside));
            }
        }
        wanted.retain(|question| !question.addresses.is_empty());
        let answers = reader.frames(&wanted);
        drop(reader);
        for (Question { module, addresses }, answer) in wanted.into_iter().zip(answers) {
            let resolved =
                self.modules.entry(Arc::as_ptr(&module)).or_insert_with(|| Resolved::unread(module));
            resolved.frames.extend(addresses.into_iter().zip(answer));
        }
    }

    /// The module of a profile, opened.
    fn file(&mut self, module: &ModuleInfo) -> Result<Arc<Module>, Unknown> {
        if let Some(known) = self.files.get(module) {
            return known.clone();
        }
        let opened = open_by_path(module);
        self.files.insert(module.clone(), opened.clone());
        opened
    }

    fn in_module(&mut self, module: &Arc<Module>, inside: u64, address: u64) -> Vec<SourceFrame> {
        let reader = self.processes.reader();
        let resolved = self.modules.entry(Arc::as_ptr(module)).or_insert_with(|| match &reader {
            None => Resolved::new(Arc::clone(module)),
            Some(_) => Resolved::unread(Arc::clone(module)),
        });
        let known = resolved.frames.get(&inside).map(Rc::clone);
        let frames = match (known, reader) {
            (Some(frames), _) => frames,
            (None, None) => resolved.frames(inside),
            (None, Some(mut reader)) => {
                let frames = reader.frames_at(module, inside);
                resolved.frames.insert(inside, Rc::clone(&frames));
                frames
            }
        };
        let mut frames = frames.to_vec();
        for frame in &mut frames {
            frame.address = address;
        }
        frames
    }

    fn in_generated_code(&mut self, pid: u32, at: CodeAddress) -> SourceFrame {
        let name = match self.processes.process(pid) {
            Ok(process) => lock(&process).perf_map.find(at.lookup()).map(str::to_owned),
            Err(_) => Err(Unknown::NoPerfMap),
        };
        let (module, unknown) = match name {
            Ok(_) => (&self.generated, Unknown::PerfMapHasNoLines),
            Err(reason) => (&self.anonymous, reason),
        };
        SourceFrame {
            function: name.ok(),
            module: Some(Arc::clone(module)),
            address: at.address(),
            unknown: Some(unknown),
            ..Default::default()
        }
    }

    fn mapped_path(&self, pid: u32, address: u64) -> Option<String> {
        let process = self.processes.process(pid).ok()?;
        let process = lock(&process);
        let path = &process.mappings().find(address)?.path;
        (!path.is_empty()).then(|| path.strip_suffix(" (deleted)").unwrap_or(path).to_owned())
    }
}

impl Resolved {
    /// Opens the debug information.
    pub(crate) fn new(module: Arc<Module>) -> Self {
        let dwarf = module.dwarf_file().and_then(open_dwarf);
        Self { dwarf, ..Self::unread(module) }
    }

    fn unread(module: Arc<Module>) -> Self {
        Self { module, dwarf: None, frames: HashMap::new() }
    }

    fn frames(&mut self, inside: u64) -> Rc<[SourceFrame]> {
        if let Some(frames) = self.frames.get(&inside) {
            return Rc::clone(frames);
        }
        let frames: Rc<[SourceFrame]> = self.resolve(inside).into();
        self.frames.insert(inside, Rc::clone(&frames));
        frames
    }

    pub(crate) fn resolve(&mut self, inside: u64) -> Vec<SourceFrame> {
        let blank = SourceFrame {
            module: Some(Arc::clone(&self.module.info)),
            module_address: Some(inside),
            ..Default::default()
        };
        if let Some((_, name)) = self.module.stub(inside) {
            return vec![SourceFrame {
                function: Some(demangle(name)),
                unknown: Some(Unknown::LinkersStub),
                ..blank
            }];
        }
        let mut broken = self.module.dwarf_file().is_some() && self.dwarf.is_none();
        if let Some(dwarf) = &self.dwarf {
            match guarded(|| self.resolve_by_dwarf(dwarf, &blank, inside)) {
                Some(Ok(Some(frames))) => return frames,
                Some(Ok(None)) => {}
                Some(Err(_)) => broken = true,
                None => (self.dwarf, broken) = (None, true),
            }
        }
        let symbol = self.module.function(inside);
        let by_start = || {
            let start = cfi::entry_start(&self.module.elf, inside)?;
            let path = &self.module.info.path;
            Some(format!("{}+{start:#x}", path.rsplit('/').next().unwrap_or(path)))
        };
        let plain = |name| match parallel_region(name) {
            Some(function) => region_name(function, None),
            None => demangle(name),
        };
        let function = symbol.map(|(_, name, _)| plain(name)).or_else(by_start);
        let unknown = match symbol {
            None if function.is_some() => Unknown::OnlyStart,
            _ if self.module.debug().is_refused => Unknown::DebugInfoRefused,
            _ if broken => Unknown::BadDebugInfo,
            None => Unknown::NoSymbols,
            Some((_, _, true)) => Unknown::NoDebugInfo,
            Some((_, _, false)) => Unknown::Stripped,
        };
        vec![SourceFrame { function, unknown: Some(unknown), ..blank }]
    }

    fn resolve_by_dwarf(
        &self,
        dwarf: &ElfResolver,
        blank: &SourceFrame,
        inside: u64,
    ) -> Result<Option<Vec<SourceFrame>>, blazesym::Error> {
        let Ok(found) = dwarf.find_sym(inside, &FindSymOpts::CodeInfoAndInlined)? else { return Ok(None) };
        // blazesym lists inlined calls from the outermost to the innermost.
        let mut frames: Vec<SourceFrame> = found
            .inlined
            .iter()
            .rev()
            .filter(|call| parallel_region(&call.name).is_none() || parallel_region(found.name).is_none())
            .map(|call| with_line(blank, Some(demangle(&call.name)), call.code_info.as_ref(), true))
            .collect();
        // gcc gives templates over local types and closures only a short name; the symbol has the whole one.
        let is_short = found.lang == SrcLang::Cpp && !is_mangled(found.name);
        let symbol = (found.name.is_empty() || is_short).then(|| self.module.function(inside)).flatten();
        let name = symbol.map_or(found.name, |(_, name, _)| name);
        let name = Some(name).filter(|name| !name.is_empty());
        let named = |name| self.region(dwarf, name, found.addr).unwrap_or_else(|| demangle(name));
        let inner = found.inlined.iter().find(|call| parallel_region(&call.name).is_some());
        // clang's region with debug information is inlined into one without: one place, by the inner's line.
        let line = match name.and_then(parallel_region).and(inner) {
            Some(inner) => inner.code_info.as_ref(),
            None => found.code_info.as_deref(),
        };
        frames.push(with_line(blank, name.map(named), line, false));
        Ok(Some(frames))
    }

    /// The name of a region that threads run, by its function and first line.
    fn region(&self, dwarf: &ElfResolver, name: &str, start: u64) -> Option<String> {
        let function = parallel_region(name)?;
        let first = dwarf.find_sym(start, &FindSymOpts::CodeInfo).ok().and_then(Result::ok);
        let first = first.and_then(|first| first.code_info);
        let file = first.as_ref().map(|first| first.to_path().to_string_lossy().into_owned());
        let place = file.as_deref().zip(first.as_ref().and_then(|first| first.line));
        let around = match place {
            Some((file, line)) if function.is_empty() => {
                enclosing_function(self.module.dwarf_bytes(), start, file, line)
            }
            _ => None,
        };
        Some(region_name(around.as_deref().unwrap_or(function), place))
    }
}

/// Runs a part of a library. blazesym panics on some broken debug information (0.2.7: a line
/// program without files), which a traced program may bring along; `None` then, and its state is
/// not used again.
pub(crate) fn guarded<T>(part: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(part)).ok()
}

fn with_line(
    blank: &SourceFrame,
    function: Option<String>,
    line: Option<&CodeInfo<'_>>,
    inlined: bool,
) -> SourceFrame {
    let file = line.map(|line| line.to_path().to_string_lossy().into_owned());
    let unknown = match (&function, &file) {
        (None, _) => Some(Unknown::NoSymbols),
        (_, None) => Some(Unknown::NoDebugInfo),
        _ => None,
    };
    SourceFrame { function, file, line: line.and_then(|line| line.line), inlined, unknown, ..blank.clone() }
}

fn open_dwarf(file: &File) -> Option<ElfResolver> {
    guarded(|| ElfResolver::open(format!("/proc/self/fd/{}", file.as_raw_fd())))?.ok()
}

/// The file of a profile's module: at its path, or only its debug file when the path has another file by now.
fn open_by_path(wanted: &ModuleInfo) -> Result<Arc<Module>, Unknown> {
    let open = |path: &str| {
        let file = open_regular(Path::new(path)).map_err(|error| unknown(&error))?;
        let bytes = Bytes::map(&file).map_err(|_| Unknown::NotElf)?;
        let module = Module::new(&wanted.path, bytes, Some(file), Path::new("/")).ok_or(Unknown::NotElf)?;
        if module.info.build_id == wanted.build_id { Ok(module) } else { Err(Unknown::FileReplaced) }
    };
    let debug = wanted.build_id.split_at_checked(2).filter(|(_, rest)| !rest.is_empty());
    let by_build_id = || {
        let (first, rest) = debug?;
        open(&format!("/usr/lib/debug/.build-id/{first}/{rest}.debug")).ok()
    };
    open(&wanted.path).or_else(|reason| by_build_id().ok_or(reason)).map(Arc::new)
}
