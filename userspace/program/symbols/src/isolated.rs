//! The symboliser process, and the tracer's side: strangers'
//! files are read by a process whose death costs only names.
//!
//! Debug information and symbol tables of traced programs may be made to end their
//! reader: by an allocation that fails, by recursion until the stack ends, by a loop,
//! by a file system that never answers. No panic handler could catch such an end. A
//! separate process therefore opens debug files, reads symbols and runs blazesym. The
//! tracer waits for each answer no longer than [`Isolation::patience`].
//!
//! The process is the tracer's own program, started anew rather than forked: a replacement starts
//! when the tracer has many threads, and must not contain a copy of the tracer's memory. Memory is
//! limited (`serve`). Module and root directory arrive as open descriptors, independent of a traced
//! process that ends meanwhile. Answers come in the order of requests, hence the file read at a
//! death is known. The file's names are never requested again, and [`unnamed`] lists the file.
//!
//! Limits: headers and unwind tables of modules are still read by the tracer. The process has the
//! tracer's rights.

mod process;
mod serve;
mod wire;

use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::frame::{SourceFrame, Unknown};
use crate::module::Module;
use process::Process;
use wire::{Ask, Said};

pub use serve::become_symboliser_if_asked;

/// How a symboliser process is started and waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Isolation {
    /// The program that becomes the process; its `main` calls [`become_symboliser_if_asked`] first.
    pub program: PathBuf,
    /// How long the answer about one file may take.
    pub patience: Duration,
}

impl Default for Isolation {
    fn default() -> Self {
        Self { program: "/proc/self/exe".into(), patience: PATIENCE }
    }
}

/// A program of 284 MB with debug information has its first 3,000 names within
/// 0.6 s (`cargo run --release -p locality-symbols --example isolation -- FILE 3000`).
/// A hang delays all further names by the same time.
const PATIENCE: Duration = Duration::from_secs(10);
/// After so many ends no further process is started: each may have cost [`PATIENCE`].
const MOST_ENDS: u32 = 8;

/// Addresses of one request, few enough for [`Isolation::patience`] and the slowest file.
const MOST_ADDRESSES: usize = 256;
/// Requests that are sent before the first answer is read: fewer bytes than a socket holds, or both
/// sides would wait.
const MOST_REQUESTS: usize = 8;

/// CPU time of all symboliser processes of this client, in nanoseconds.
static CPU_NS: AtomicU64 = AtomicU64::new(0);
/// Files without names, and why.
static UNNAMED: Mutex<Vec<Unnamed>> = Mutex::new(Vec::new());

/// CPU time of all symboliser processes started by this process, up to their last answers, in
/// nanoseconds.
pub fn symbolisers_cpu_ns() -> u64 {
    CPU_NS.load(Ordering::Relaxed)
}

/// Names that are missing because of a symboliser process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unnamed {
    /// The file being read; `None` without a process any more, for all later files.
    pub path: Option<String>,
    /// How the process ended, as the end of a sentence.
    pub how: String,
}

/// Files without names in this process so far.
pub fn unnamed() -> Vec<Unnamed> {
    UNNAMED.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn tell(path: Option<String>, how: &str) {
    let unnamed = Unnamed { path, how: how.to_owned() };
    UNNAMED.lock().unwrap_or_else(PoisonError::into_inner).push(unnamed);
}

/// Addresses of a module, each once.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) module: Arc<Module>,
    pub(crate) addresses: Vec<u64>,
}

/// The tracer's side.
#[derive(Debug)]
pub(crate) struct Client {
    settings: Isolation,
    process: Option<Process>,
    /// By the address of the module, which the entry keeps alive.
    modules: HashMap<usize, Known>,
    ends: u32,
    /// No process is started any more.
    gave_up: bool,
}

#[derive(Debug)]
struct Known {
    module: Arc<Module>,
    number: u32,
    /// A process ended while reading this file.
    is_lost: bool,
    starts: HashMap<u64, Option<u64>>,
}

/// What is to be asked of a module.
enum Wanted<'q> {
    Frames(&'q [u64]),
    Start(u64),
}

impl Drop for Client {
    /// Reaps the process: a process 1 of a container may reap no children.
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.end();
        }
    }
}

impl Client {
    pub(crate) fn new(settings: Isolation) -> Self {
        Self { settings, process: None, modules: HashMap::new(), ends: 0, gave_up: false }
    }

    /// The frames at each address of each question, innermost first, without process addresses.
    /// Never empty.
    pub(crate) fn frames(&mut self, questions: &[Question]) -> Vec<Vec<Rc<[SourceFrame]>>> {
        let mut wanted = Vec::with_capacity(questions.len());
        for question in questions {
            let key = self.known(&question.module);
            let pieces = question.addresses.chunks(MOST_ADDRESSES);
            wanted.extend(pieces.map(|addresses| (key, Wanted::Frames(addresses))));
        }
        let mut answers = self.answers(&wanted).into_iter();
        let frames = |question: &Question| {
            let pieces = question.addresses.chunks(MOST_ADDRESSES).zip(answers.by_ref());
            pieces.flat_map(|(addresses, said)| frames(&question.module, addresses, said)).collect()
        };
        questions.iter().map(frames).collect()
    }

    /// [`Client::frames`] for one address.
    pub(crate) fn frames_at(&mut self, module: &Arc<Module>, inside: u64) -> Rc<[SourceFrame]> {
        let question = Question { module: Arc::clone(module), addresses: vec![inside] };
        let answer = self.frames(std::slice::from_ref(&question)).pop().and_then(|mut frames| frames.pop());
        answer.unwrap_or_else(|| lost(&question.module, inside))
    }

    /// Start of the function around an address, from a symbol table.
    pub(crate) fn function_start(&mut self, module: &Arc<Module>, inside: u64) -> Option<u64> {
        let key = self.known(module);
        if let Some(start) = self.modules.get(&key).and_then(|known| known.starts.get(&inside)) {
            return *start;
        }
        let start = match self.answers(&[(key, Wanted::Start(inside))]).pop() {
            Some(Some(Said::Start(start))) => start,
            _ => None,
        };
        if let Some(known) = self.modules.get_mut(&key) {
            known.starts.insert(inside, start);
        }
        start
    }

    fn known(&mut self, module: &Arc<Module>) -> usize {
        let (key, number) = (Arc::as_ptr(module) as usize, self.modules.len() as u32);
        self.modules.entry(key).or_insert_with(|| Known {
            module: Arc::clone(module),
            number,
            is_lost: false,
            starts: HashMap::new(),
        });
        key
    }

    fn is_lost(&self, key: usize) -> bool {
        self.gave_up || self.modules.get(&key).is_none_or(|known| known.is_lost)
    }

    /// An answer to each; `None` where the file is lost. Each death of a process loses one file.
    fn answers(&mut self, wanted: &[(usize, Wanted<'_>)]) -> Vec<Option<Said>> {
        let mut answers = Vec::with_capacity(wanted.len());
        while answers.len() < wanted.len() {
            let rest = wanted.get(answers.len()..).unwrap_or_default();
            let rest = rest.get(..MOST_REQUESTS).unwrap_or(rest);
            if let Err(how) = self.exchange(rest, &mut answers)
                && let Some((key, _)) = wanted.get(answers.len())
            {
                self.lose(*key, &how);
            }
        }
        answers
    }

    /// Asks for every address without a lost file, and appends answers
    /// as received. An error says how the process ended over the next.
    fn exchange(
        &mut self,
        rest: &[(usize, Wanted<'_>)],
        answers: &mut Vec<Option<Said>>,
    ) -> Result<(), String> {
        if rest.iter().all(|(key, _)| self.is_lost(*key)) {
            answers.extend(rest.iter().map(|_| None));
            return Ok(());
        }
        if self.process.as_mut().is_some_and(Process::has_ended) {
            // Without a question no file is to blame.
            self.bury();
        }
        let mut process = match self.process.take().map_or_else(|| Process::start(&self.settings), Ok) {
            Ok(process) => process,
            Err(error) => {
                self.give_up(&format!("cannot be started: {error}"));
                return Ok(());
            }
        };
        let asked = rest.iter().filter(|(key, _)| !self.is_lost(*key));
        let sent = asked.clone().try_for_each(|(key, wanted)| {
            let Some(known) = self.modules.get(key) else { return Ok(()) };
            if process.takes(known.number) {
                process.put_module(known.number, &known.module)?;
            }
            process.put(&match wanted {
                Wanted::Frames(addresses) => Ask::Frames(known.number, addresses.to_vec()),
                Wanted::Start(inside) => Ask::Start(known.number, *inside),
            })
        });
        let mut result = sent.and_then(|()| process.flush());
        for (key, wanted) in rest {
            if self.is_lost(*key) {
                answers.push(None);
                continue;
            }
            if result.is_ok() {
                match process.answer() {
                    Ok(said) if said.fits(wanted) => {
                        answers.push(Some(said));
                        continue;
                    }
                    Ok(_) => result = Err("answered something else".to_owned()),
                    Err(how) => result = Err(how),
                }
            }
            break;
        }
        self.process = Some(process);
        result.map_err(|how| {
            let ended = self.bury();
            ended.unwrap_or(how)
        })
    }

    /// Ends the process. Returns the manner of an earlier end.
    fn bury(&mut self) -> Option<String> {
        self.process.take()?.bury()
    }

    fn lose(&mut self, key: usize, how: &str) {
        self.ends += 1;
        if let Some(known) = self.modules.get_mut(&key) {
            known.is_lost = true;
            tell(Some(known.module.info.path.clone()), how);
        }
        if self.ends == MOST_ENDS {
            self.give_up(&format!("ended {MOST_ENDS} times"));
        }
    }

    fn give_up(&mut self, why: &str) {
        self.gave_up = true;
        tell(None, why);
    }
}

/// As many as there are addresses, whatever was said.
fn frames(module: &Module, addresses: &[u64], said: Option<Said>) -> Vec<Rc<[SourceFrame]>> {
    let said = match said {
        Some(Said::Frames(frames)) => frames,
        _ => Vec::new(),
    };
    let mut said = said.into_iter();
    let at = |inside: &u64| {
        let parts = said.next().filter(|parts| !parts.is_empty());
        let Some(parts) = parts else { return lost(module, *inside) };
        let frame = |part: wire::Part| SourceFrame {
            function: part.function,
            file: part.file,
            line: part.line,
            module: Some(Arc::clone(&module.info)),
            module_address: Some(*inside),
            address: 0,
            inlined: part.inlined,
            unknown: part.unknown,
        };
        parts.into_iter().map(frame).collect()
    };
    addresses.iter().map(at).collect()
}

fn lost(module: &Module, inside: u64) -> Rc<[SourceFrame]> {
    Rc::new([SourceFrame {
        module: Some(Arc::clone(&module.info)),
        module_address: Some(inside),
        unknown: Some(Unknown::SymboliserEnded),
        ..SourceFrame::default()
    }])
}
