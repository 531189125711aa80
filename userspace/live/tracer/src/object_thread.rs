//! The thread that finds the data object of an address, apart from the assembler: reading
//! debug information delays neither the assembler nor, in the first moments, the program.
//!
//! The thread reads at the lowest ordinary priority, and only mappings until [`HEAD_START`]
//! has passed; earlier questions wait. Short-lived facts are taken at once and at ordinary
//! priority, or would be lost on a busy machine: the files of addresses and code are opened
//! (not read), heap blocks come with the question. Questions about a process that ends or
//! runs another program are answered before the process is forgotten, from the last known
//! mappings; at ordinary priority, too, for the next process is waiting.
//!
//! Not here: how an address is resolved (`locality_objects`); ids of modules and
//! stacks, which the assembler gives out. Limits: beyond [`WAITING_MAX`] questions
//! and [`PROCESSES_MAX`] processes accesses stay without an object, and are counted.
//! Names found through pointers are read from memory up to a few seconds after the
//! access; a recorded block gets a name from pointers only while allocated.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use locality_model::{
    Accessed, Field, FieldId, Located, Member, Object, ObjectId, ObjectKind, Record, RecordId,
};
use locality_objects::{HeapBlock, HeapBlocks, Kind, Layout, Named, Place, ProcessMemory, Resolver, TypeId};
use locality_symbols::{Mappings, ModuleFile, Processes, StackFrame};

use super::object_types::Revealing;
use locality_heap::Heap;
use locality_kernel::{ending, sys};

/// Time without reading after the first question.
pub const HEAD_START: Duration = Duration::from_millis(1500);
/// Questions that may wait.
const WAITING_MAX: usize = 1 << 18;
/// Processes that are known at once.
const PROCESSES_MAX: usize = 256;
/// Stacks of a process that are stored.
const STACKS_MAX: usize = 1024;
/// Largest mapping taken as a thread's stack.
const STACK_MAX: u64 = 64 << 20;
/// How often the end of the thread is looked for.
const LOOK: Duration = Duration::from_millis(2);
/// Interval of an idle thread's look-ups.
const PATIENCE: Duration = Duration::from_millis(100);

/// A question.
#[derive(Debug)]
pub struct Question {
    /// The access.
    pub of: Accessed,
    /// Its process.
    pub pid: u32,
    /// The touched byte.
    pub address: u64,
    /// The instruction.
    pub ip: u64,
    /// The call stack, innermost first.
    pub frames: Arc<[StackFrame]>,
    /// The call stack at the thread's stop, the start of the window; empty without a window.
    pub stop: Arc<[StackFrame]>,
    /// The thread's stack pointer, 0 if unknown.
    pub sp: u64,
    /// The thread's fs base, if known.
    pub fs_base: Option<u64>,
    /// The recorded heap block that contained the address.
    pub heap: Option<HeapBlock>,
}

/// Messages to the thread.
#[derive(Debug)]
pub enum Told {
    /// A process runs another program. New processes are met at the first
    /// question: most processes that end within milliseconds are never asked for.
    Exec(u32),
    /// A process ended.
    Ended(u32),
    /// Question: where does an address lie?
    Asked(Box<Question>),
}

/// A row of the profile. Rows of objects may come again, with more in them.
#[derive(Debug)]
pub enum Answer {
    /// An object, the path of its module, and its allocation site as named by the question.
    Object(ObjectId, Box<Object>, Option<Arc<str>>, Option<u64>),
    /// A structure type.
    Record(RecordId, Record),
    /// A part of an object.
    Field(FieldId, Field),
    /// Where an access lies.
    Located(Located),
}

/// The thread, seen from outside.
#[derive(Debug)]
pub struct Locator {
    tell: Option<mpsc::Sender<Told>>,
    answers: mpsc::Receiver<Answer>,
    thread: Option<std::thread::JoinHandle<()>>,
    haste: Arc<Haste>,
}

/// Whether somebody waits for the thread's end.
#[derive(Debug, Default)]
struct Haste {
    /// The thread's number; 0 until it runs.
    tid: AtomicU32,
    is_awaited: AtomicBool,
}

impl Locator {
    /// Starts the thread; `heap` knows the live blocks.
    ///
    /// # Errors
    /// The system has no thread for us.
    pub fn start(heap: Option<Heap>) -> std::io::Result<Self> {
        let (tell, told) = mpsc::channel();
        let (answer, answers) = mpsc::channel();
        let haste = Arc::new(Haste::default());
        let own = Arc::clone(&haste);
        let thread = std::thread::Builder::new().name("objects".into()).spawn(move || {
            own.tid.store(sys::this_thread(), Ordering::Relaxed);
            Work::new(answer, heap).run(&told, &own.is_awaited);
        })?;
        Ok(Self { tell: Some(tell), answers, thread: Some(thread), haste })
    }

    /// Sends a message; without effect after the thread's end.
    pub fn tell(&self, what: Told) {
        if let Some(tell) = &self.tell {
            let _ = tell.send(what);
        }
    }

    /// What was found since the last call.
    pub fn answers(&self) -> impl Iterator<Item = Answer> + '_ {
        self.answers.try_iter()
    }

    /// Has the thread answer every question, and returns the remaining
    /// answers; if no report is wanted, open questions stay without an object.
    pub fn finish(&mut self) -> Vec<Answer> {
        self.tell = None;
        // A reader waits now, and on busy processors the low priority would take minutes.
        self.haste.is_awaited.store(true, Ordering::Release);
        sys::end_patience(self.haste.tid.load(Ordering::Relaxed));
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && !ending::is_urgent() {
            std::thread::sleep(LOOK);
        }
        if let Some(thread) = self.thread.take().filter(std::thread::JoinHandle::is_finished)
            && thread.join().is_err()
        {
            tracing::debug!("the thread that locates objects panicked");
        }
        self.answers.try_iter().collect()
    }
}

/// One recorded block.
struct One<'a> {
    block: HeapBlock,
    pid: u32,
    heap: Option<&'a Heap>,
}

impl HeapBlocks for One<'_> {
    fn block(&self, address: u64) -> Option<HeapBlock> {
        let HeapBlock { start, bytes, .. } = self.block;
        (address.checked_sub(start)? < bytes.max(1)).then_some(self.block)
    }

    fn stood_at(&self, block: &HeapBlock, moment: Instant) -> bool {
        let at_ns = sys::monotonic_ns().saturating_sub(moment.elapsed().as_nanos() as u64);
        self.heap.is_some_and(|heap| heap.stood_at(self.pid, block, at_ns))
    }

    fn stands(&self, block: &HeapBlock) -> bool {
        self.heap.is_some_and(|heap| heap.stands(self.pid, block))
    }
}

/// What is known of a process.
struct Known {
    resolver: Resolver,
    revealing: Revealing,
    memory: Option<ProcessMemory>,
    /// Mappings as they were last seen.
    mappings: Mappings,
    /// Number of the reading.
    reading: u64,
    /// Stacks of met threads; after a thread's end a stack may be other memory.
    stacks: Vec<(u64, u64)>,
    /// Starts of mappings read after a touch, with a file that was opened or cannot be.
    opened: HashSet<u64>,
    /// The files, open for later questions.
    files: Vec<ModuleFile>,
    objects: HashMap<locality_objects::ObjectId, (ObjectId, Arc<locality_objects::Object>)>,
    fields: HashMap<(Option<TypeId>, u64, Arc<str>), FieldId>,
    records: HashMap<TypeId, Option<RecordId>>,
    waiting: Vec<Question>,
}

struct Work {
    answer: mpsc::Sender<Answer>,
    heap: Option<Heap>,
    processes: Processes,
    known: HashMap<u32, Known>,
    /// Questions of all processes.
    waiting: usize,
    dropped: u64,
    first: Option<Instant>,
    ids: [u32; 3],
}

impl Work {
    fn new(answer: mpsc::Sender<Answer>, heap: Option<Heap>) -> Self {
        Self {
            answer,
            heap,
            processes: Processes::new(),
            known: HashMap::new(),
            waiting: 0,
            dropped: 0,
            first: None,
            ids: [0; 3],
        }
    }

    fn run(&mut self, told: &mpsc::Receiver<Told>, is_awaited: &AtomicBool) {
        loop {
            match told.recv_timeout(PATIENCE) {
                Ok(what) => {
                    self.take(what);
                    told.try_iter().for_each(|what| self.take(what));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            if self.waiting > 0 && self.first.is_some_and(|first| first.elapsed() >= HEAD_START) {
                for pid in self.known.keys().copied().collect::<Vec<_>>() {
                    sys::make_thread_patient(!is_awaited.load(Ordering::Acquire));
                    self.answer_all(pid);
                    sys::make_thread_patient(false);
                    told.try_iter().for_each(|what| self.take(what));
                }
            }
        }
        for pid in self.known.keys().copied().collect::<Vec<_>>() {
            self.forget(pid);
        }
        if self.dropped > 0 {
            tracing::debug!("{} accesses were not looked for", self.dropped);
        }
    }

    fn take(&mut self, what: Told) {
        match what {
            Told::Exec(pid) => {
                self.forget(pid);
                // An unreadable file stays unknown.
                _ = self.meet(pid);
            }
            Told::Ended(pid) => self.forget(pid),
            Told::Asked(question) => self.ask(*question),
        }
    }

    /// The process, if it can be read.
    fn meet(&mut self, pid: u32) -> Option<&mut Known> {
        if !self.known.contains_key(&pid) {
            if self.known.len() >= PROCESSES_MAX || self.processes.attach(pid).is_err() {
                return None;
            }
            let known = Known {
                resolver: Resolver::new(&self.processes, pid).ok()?,
                revealing: Revealing::default(),
                memory: ProcessMemory::open(pid).ok(),
                mappings: Mappings::default(),
                reading: 0,
                stacks: Vec::new(),
                opened: HashSet::new(),
                files: Vec::new(),
                objects: HashMap::new(),
                fields: HashMap::new(),
                records: HashMap::new(),
                waiting: Vec::new(),
            };
            self.known.insert(pid, known);
        }
        self.known.get_mut(&pid)
    }

    fn ask(&mut self, question: Question) {
        self.first.get_or_insert_with(Instant::now);
        if self.waiting >= WAITING_MAX {
            self.dropped += 1;
            return;
        }
        let (pid, processes) = (question.pid, self.processes.clone());
        let Some(known) = self.meet(pid) else {
            self.dropped += 1;
            return;
        };
        let code = question.frames.iter().map(|frame| frame.at.lookup());
        let sp = Some(question.sp).filter(|sp| *sp != 0);
        let addresses: Vec<u64> = [question.address, question.ip].into_iter().chain(code).chain(sp).collect();
        known.open(&processes, pid, &addresses);
        known.meet_stack(question.sp);
        known.waiting.push(question);
        self.waiting += 1;
    }

    fn answer_all(&mut self, pid: u32) {
        let Some(known) = self.known.get_mut(&pid) else { return };
        let questions = std::mem::take(&mut known.waiting);
        self.waiting -= questions.len();
        for question in questions {
            let named = known.resolve(&question, self.heap.as_ref());
            known.tell(question.of, &named, &mut self.ids, &self.answer);
        }
    }

    /// Answers the waiting questions and lets go of the process. Names found meanwhile are sent.
    fn forget(&mut self, pid: u32) {
        self.answer_all(pid);
        let Some(known) = self.known.remove(&pid) else { return };
        for (id, before) in known.objects.values() {
            if let Some(now) = known.resolver.object(before.id)
                && !Arc::ptr_eq(now, before)
            {
                let _ = self.answer.send(object_row(*id, now));
            }
        }
        self.processes.forget(pid);
    }
}

impl Known {
    /// Opens the files of touched addresses, unless tried before.
    fn open(&mut self, processes: &Processes, pid: u32, addresses: &[u64]) {
        let is_met = |address: &u64| {
            let mapping = self.mappings.find(*address);
            mapping.is_some_and(|mapping| mapping.inode == 0 || self.opened.contains(&mapping.start))
        };
        if addresses.iter().all(is_met) {
            return;
        }
        // A library's file is first mapped whole, and then overlaid by segments:
        // early readings may be outdated. Reads mappings again only now and then,
        // and not for an ended process or after an exec, which is reported late.
        let is_sure = !matches!(processes.refresh(pid), Ok(false));
        let reading = processes.readings(pid);
        if reading != self.reading {
            self.reading = reading;
            self.mappings = processes.mappings(pid).unwrap_or_default();
        }
        for mapping in addresses.iter().filter_map(|address| self.mappings.find(*address)) {
            if mapping.inode == 0 || self.opened.contains(&mapping.start) {
                continue;
            }
            // An unreadable file is no module; the resolver gives the mapping's kind.
            self.files.extend(processes.open_module(pid, mapping));
            if is_sure {
                self.opened.insert(mapping.start);
            }
        }
    }

    /// The mapping around a thread's stack pointer, if similar to a separate stack: after an
    /// inaccessible page.
    fn stack_around(&self, sp: u64) -> Option<(u64, u64)> {
        let mapping = self.mappings.find(sp).filter(|_| sp != 0)?;
        let guard = self.mappings.find(mapping.start.checked_sub(1)?)?;
        let guarded = !guard.readable && !guard.writable;
        let sound = mapping.inode == 0 && mapping.end - mapping.start <= STACK_MAX;
        (guarded && sound).then_some((mapping.start, mapping.end))
    }

    /// Remembers the mapping around a stack pointer, to recognise other threads' accesses to the
    /// stack.
    fn meet_stack(&mut self, sp: u64) {
        if self.stacks.iter().any(|(start, end)| (*start..*end).contains(&sp)) {
            return;
        }
        if let Some(stack) = self.stack_around(sp).filter(|_| self.stacks.len() < STACKS_MAX) {
            self.stacks.push(stack);
        }
    }

    fn resolve(&mut self, question: &Question, heap: Option<&Heap>) -> Named {
        let heap = question.heap.map(|block| One { block, pid: question.pid, heap });
        let stack = self.stack_around(question.sp);
        // The recorded block is newer.
        let stacks = if heap.is_some() { [].as_slice() } else { self.stacks.as_slice() };
        let place = Place {
            ip: question.ip,
            frames: &question.frames,
            stop: &question.stop,
            stack,
            stacks,
            fs_base: question.fs_base,
            heap: heap.as_ref().map(|one| one as &dyn HeapBlocks),
            memory: self.memory.as_ref().map(|memory| memory as &dyn locality_objects::Memory),
        };
        let named = self.resolver.resolve(question.address, &place);
        self.revealing.complete(&mut self.resolver, named, question.address, question.ip)
    }

    fn tell(&mut self, of: Accessed, named: &Named, ids: &mut [u32; 3], to: &mpsc::Sender<Answer>) {
        let mut next = |index: usize| {
            let id = ids[index];
            ids[index] += 1;
            id
        };
        let object = &named.object;
        // The receiver is missing only when the assembler is gone, and answers are useless then.
        let send = |answer: Answer| drop(to.send(answer));
        let id = match self.objects.get_mut(&object.id) {
            Some((id, told)) => {
                if !Arc::ptr_eq(told, object) {
                    *told = Arc::clone(object);
                    send(object_row(*id, object));
                }
                *id
            }
            None => {
                let id = ObjectId(next(0));
                self.objects.insert(object.id, (id, Arc::clone(object)));
                send(object_row(id, object));
                id
            }
        };
        let field = named.field.as_ref().map(|field| {
            let record = field.within.and_then(|ty| {
                *self.records.entry(ty).or_insert_with(|| {
                    let layout = self.resolver.layout(ty)?;
                    let id = RecordId(next(1));
                    send(Answer::Record(id, record(&layout)));
                    Some(id)
                })
            });
            let key = (field.within, field.offset, Arc::clone(&field.path));
            *self.fields.entry(key).or_insert_with(|| {
                let id = FieldId(next(2));
                let row = Field {
                    path: field.path.to_string(),
                    type_name: field.type_name.as_deref().map(str::to_owned),
                    offset: field.offset,
                    bytes: field.bytes,
                    record,
                    record_offset: field.offset_within,
                };
                send(Answer::Field(id, row));
                id
            })
        });
        send(Answer::Located(Located { of, object: id, offset: Some(named.offset), field }));
    }
}

fn object_row(id: ObjectId, object: &locality_objects::Object) -> Answer {
    let text = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
    let nothing = object.kind == Kind::Mapped && &*object.name == "[unmapped]";
    let row = Object {
        kind: match object.kind {
            _ if nothing => ObjectKind::Unknown,
            Kind::Static => ObjectKind::Static,
            Kind::Stack => ObjectKind::Stack,
            Kind::ThreadLocal => ObjectKind::ThreadLocal,
            Kind::Heap => ObjectKind::Heap,
            Kind::Mapped => ObjectKind::Mapped,
            Kind::File => ObjectKind::File,
        },
        name: object.name.to_string(),
        type_name: text(&object.type_name),
        module: None,
        declared: object
            .declared
            .as_ref()
            .map(|at| (at.file.to_string(), Some(at.line).filter(|line| *line > 0))),
        bytes: Some(object.bytes).filter(|bytes| *bytes > 0),
        function: text(&object.function),
        site: None,
        // A recorded block is known, whoever gave it a name.
        inferred: object.inferred && object.site.is_none(),
        name_inferred: object.inferred,
        unknown: text(&object.unknown),
    };
    Answer::Object(id, Box::new(row), object.module.clone(), object.site)
}

fn record(layout: &Layout) -> Record {
    let member = |field: &locality_objects::LayoutField| Member {
        path: field.path.to_string(),
        type_name: field.type_name.as_deref().map(str::to_owned),
        offset: field.offset,
        bytes: field.bytes,
        align: field.align,
    };
    Record {
        name: layout.name.to_string(),
        bytes: layout.bytes,
        members: layout.fields.iter().filter(|field| !field.is_hole()).map(member).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use locality_model::SampleId;
    use locality_symbols::Mapping;
    use std::os::fd::AsRawFd;

    fn question(pid: u32, address: u64) -> Told {
        Told::Asked(Box::new(Question {
            of: Accessed::Sample(SampleId(7)),
            pid,
            address,
            ip: address,
            frames: Arc::from([]),
            stop: Arc::from([]),
            sp: 0,
            fs_base: None,
            heap: None,
        }))
    }

    /// Every question about a process that can be read is answered by the end, what lies nowhere
    /// with a reason.
    #[test]
    fn nothing_asked_is_lost() {
        let mut locator = Locator::start(None).unwrap();
        let own = std::process::id();
        for _ in 0..3 {
            locator.tell(question(own, 0x10));
        }
        // A process that does not exist.
        locator.tell(question(0x3fff_fff0, 0x10));
        let answers = locator.finish();
        let located = answers.iter().filter(|answer| matches!(answer, Answer::Located(_))).count();
        assert_eq!(located, 3);
        let objects: Vec<_> = answers
            .iter()
            .filter_map(|answer| match answer {
                Answer::Object(id, object, ..) => Some((*id, object)),
                _ => None,
            })
            .collect();
        assert_eq!(objects.len(), 1);
        assert_eq!((objects[0].0, objects[0].1.kind), (ObjectId(0), ObjectKind::Unknown));
        assert!(objects[0].1.unknown.as_ref().is_some_and(|why| why.contains("nothing is mapped")));
    }

    /// A library's file as a loader maps it: whole at first, then its segments, in a child that
    /// stops before them and behind.
    struct Loading {
        child: u32,
        whole: u64,
        bytes: usize,
        /// Of the last segment, which is data.
        data: u64,
    }

    impl Loading {
        /// With the C library that this process has loaded, whose segments tell where they belong.
        fn start() -> Self {
            let mappings = Mappings::read(std::process::id()).unwrap();
            let is_library = |mapping: &&Mapping| mapping.path.ends_with("/libc.so.6");
            let segments: Vec<_> = mappings.iter().filter(is_library).cloned().collect();
            let (first, last) = (segments[0].start, segments.last().unwrap());
            let bytes = (last.end - first) as usize;
            assert!(last.writable);
            let file = std::fs::File::open(&*last.path).unwrap();
            let map = |at: *mut libc::c_void, bytes, protection, flags, offset| {
                let (flags, offset) = (flags | libc::MAP_PRIVATE, offset as i64);
                // SAFETY: a mapping of its own or, in the child, one over that.
                unsafe { libc::mmap(at, bytes, protection, flags, file.as_raw_fd(), offset) }
            };
            let whole = map(std::ptr::null_mut(), bytes, libc::PROT_READ, 0, 0);
            assert_ne!(whole, libc::MAP_FAILED);
            let (whole, data) = (whole as u64, whole as u64 + (last.start - first));
            // SAFETY: the child makes system calls only, and does not outlive us.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: as above.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::raise(libc::SIGSTOP);
                }
                for segment in &segments {
                    let flag = |is_set, flag| if is_set { flag } else { 0 };
                    let protection = flag(segment.readable, libc::PROT_READ)
                        | flag(segment.writable, libc::PROT_WRITE)
                        | flag(segment.executable, libc::PROT_EXEC);
                    let at = (whole + (segment.start - first)) as *mut libc::c_void;
                    let bytes = (segment.end - segment.start) as usize;
                    map(at, bytes, protection, libc::MAP_FIXED, segment.offset);
                }
                // SAFETY: as above.
                unsafe {
                    libc::raise(libc::SIGSTOP);
                    libc::_exit(0)
                }
            }
            let this = Self { child: child as u32, whole, bytes, data };
            this.wait();
            this
        }

        /// Until it has stopped or ended.
        fn wait(&self) {
            // SAFETY: a status that nobody asks for need not be written.
            let waited = unsafe { libc::waitpid(self.child as i32, std::ptr::null_mut(), libc::WUNTRACED) };
            assert_eq!(waited, self.child as i32);
        }

        fn signal(&self, signal: i32) {
            // SAFETY: plain system call; the child was not waited for since its last stop.
            assert_eq!(unsafe { libc::kill(self.child as i32, signal) }, 0);
            self.wait();
        }
    }

    impl Drop for Loading {
        fn drop(&mut self) {
            // SAFETY: mapped in `start`, and nobody looks into it.
            unsafe { libc::munmap(self.whole as *mut libc::c_void, self.bytes) };
        }
    }

    /// Its mappings were read while it was being loaded, by the resolver and for a question about
    /// something else.
    #[test]
    fn a_library_that_was_met_while_it_was_loaded() {
        let loading = Loading::start();
        let (answer, answers) = mpsc::channel();
        let mut work = Work::new(answer, None);
        let elsewhere = Mappings::read(loading.child).unwrap().iter().next().unwrap().start;
        work.take(question(loading.child, elsewhere));
        loading.signal(libc::SIGCONT);
        for _ in 0..10 {
            // Mappings are not read again at once.
            std::thread::sleep(Duration::from_millis(20));
            work.take(question(loading.child, loading.data));
        }
        loading.signal(libc::SIGKILL);
        work.take(Told::Ended(loading.child));
        let mut objects = HashMap::new();
        let mut located = Vec::new();
        for answer in answers.try_iter() {
            match answer {
                Answer::Object(id, object, module, _) => _ = objects.insert(id, (object.kind, module)),
                Answer::Located(found) => located.push(found.object),
                Answer::Record(..) | Answer::Field(..) => {}
            }
        }
        assert_eq!(located.len(), 11);
        for id in &located[1..] {
            let (kind, module) = &objects[id];
            assert_eq!(*kind, ObjectKind::Static);
            assert!(module.as_ref().is_some_and(|path| path.ends_with("/libc.so.6")), "{module:?}");
        }
    }

    #[test]
    fn a_block_holds_its_own_bytes_only() {
        let block = HeapBlock { start: 100, bytes: 8, site: 1, mapped: false, since_ns: 1 };
        let one = One { block, pid: 1, heap: None };
        let held: Vec<u64> = (90..120).filter(|address| one.block(*address).is_some()).collect();
        assert_eq!(held, (100..108).collect::<Vec<u64>>());
    }
}
