//! From ring records to blocks, and answers about blocks;
//! shared by the thread that drives the probes and the askers.
//!
//! A question about a moment after the last record read has the ring read first:
//! an answer is never out of date. Not here: when probes stand (`tracker`).

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    time::Duration,
};

use locality_common::{
    heap::{HeapRecord, HeapSettings, HeapSiteRecord, LiveBlock, ProcessText, event, function},
    record::Registers,
};

use locality_objects::HeapBlock;

use super::{
    block_map::{Block, HeapMap, Made},
    probed_sites::Probed,
    recorder::{Recorded, Recorder},
};
use locality_kernel::{
    object::{HEAP_BLOCKS_MAX, HeapObject},
    records::{self, Record},
    sys,
};

/// Stored live and former blocks of a process.
const BLOCKS_MAX: usize = HEAP_BLOCKS_MAX as usize / 2;

/// Former blocks are stored so long, unless the assembler is known to have passed.
const MEMORY_NS: u64 = 10_000_000_000;

/// Sites whose stacks may wait for the assembler.
const SITES_WAITING_MAX: usize = 512;

/// Interval of looks for a repeated question whether a block lives: longer than the ring's.
const LOOKS_MAX: usize = 20;
const LOOK: Duration = Duration::from_millis(3);

/// A site met for the first time: the data of its stack.
#[derive(Debug, Clone)]
pub struct HeapSite {
    /// Process.
    pub pid: u32,
    /// Name of the site, unique in the trace; several names may turn out to have one stack.
    pub site: u64,
    /// When, monotonic clock.
    pub time_ns: u64,
    /// One of `locality_common::heap::function`.
    pub function: u32,
    /// Bytes of the first allocation there.
    pub bytes: u64,
    /// Registers at the allocation function's entry (or a few instructions after it, the return
    /// address still on top).
    pub regs: Registers,
    /// Copy of the user stack from `regs.rsp`.
    pub stack: Vec<u8>,
}

/// What was allocated at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteTotal {
    /// Process.
    pub pid: u32,
    /// As in [`HeapSite::site`].
    pub site: u64,
    /// Recorded allocations.
    pub allocations: u64,
    /// Bytes of the recorded allocations.
    pub bytes: u64,
}

/// What became of the allocations, over the whole trace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// Allocations that were recorded and read.
    pub seen: u64,
    /// Allocations of the targets, as far as countable. Small allocations are
    /// included, and allocations during pauses, extrapolated from CPU time without the
    /// time of the probes. If the probes took nearly the whole time, as with a program
    /// that only allocates, the order of magnitude alone is right. At least `seen`.
    pub made: u64,
    /// Allocations of fewer than the least size.
    pub small: u64,
    /// Records of allocations, frees and sites that found no room.
    pub lost: u64,
    /// Blocks folded, or with a free that will not be seen, to bound memory.
    pub folded: u64,
    /// Blocks whose place was taken though no free had been seen.
    pub unseen_frees: u64,
    /// Share of the targets' CPU time in which the probes stood.
    pub watched: f64,
    /// The least size at the beginning, and at the end.
    pub min_bytes: (u64, u64),
    /// Allocations that were made while the probes were away, by extrapolation as for `made`.
    pub unwatched: u64,
    /// Calls that could not be followed: no room, or a debugger.
    pub unfollowed: u64,
    /// How often the probes were taken away to keep the budget.
    pub pauses: u64,
    /// Time that the probes cost the targets.
    pub cost_ns: u64,
    /// Places that were probed.
    pub probes: u64,
    /// Why a process was not probed, if so.
    pub failures: Vec<String>,
    /// Outcome of the processes with a preloaded library.
    pub recorded: Option<Recorded>,
}

impl Summary {
    /// No process was changed.
    pub fn is_idle(&self) -> bool {
        self.recorded.as_ref().map_or(self.probes == 0, |recorded| recorded.processes == 0)
    }
}

/// A process' blocks.
#[derive(Debug)]
struct Process {
    map: HeapMap,
    /// It ended then.
    ended_ns: Option<u64>,
}

/// Where records come from.
#[derive(Debug)]
pub(super) enum Source {
    /// Probes in the kernel, which know the live blocks themselves.
    Probes(Box<HeapObject>),
    /// A library in the traced programs.
    Preload(Box<Recorder>),
}

/// Everything that is shared.
#[derive(Debug)]
pub(super) struct State {
    source: Source,
    processes: HashMap<u32, Process>,
    /// Records up to this moment were read.
    drained_ns: u64,
    /// Time since which no block is followed.
    over_ns: Option<u64>,
    passed_ns: u64,
    waiting: Vec<HeapSite>,
    totals: HashMap<(u32, u64), (u64, u64)>,
    /// Of processes that were forgotten.
    folded: u64,
    unseen_frees: u64,
    pub(super) summary: Summary,
}

/// Messages to the thread that drives the probes.
#[derive(Debug)]
pub(super) enum Notice {
    /// Probe a process.
    Started(u32),
    /// Probe a process that will run a program; report when done.
    Launched { pid: u32, program: PathBuf, done: mpsc::Sender<()> },
    /// Removes every probe, and reports the removal.
    Away(mpsc::Sender<()>),
    /// Put them back.
    Back,
    /// The process `child` became a copy of `parent` at `at_ns`.
    Forked { parent: u32, child: u32, at_ns: u64 },
    /// It runs another program since then.
    Exec(u32, u64),
    /// It ended then.
    Ended(u32, u64),
    /// The trace is over.
    Finish,
}

impl Source {
    /// A block that is known no more.
    fn forget_block(&mut self, pid: u32, address: u64) {
        if let Self::Probes(object) = self {
            object.forget_block(pid, address);
        }
    }
}

/// Answers questions about heap blocks, and is notified of processes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Heap {
    state: Arc<Mutex<State>>,
    probed: Arc<Probed>,
    notices: mpsc::Sender<Notice>,
}

impl Heap {
    pub(super) fn new(source: Source) -> (Self, mpsc::Receiver<Notice>) {
        let state = State {
            source,
            processes: HashMap::new(),
            drained_ns: 0,
            over_ns: None,
            passed_ns: 0,
            waiting: Vec::new(),
            totals: HashMap::new(),
            folded: 0,
            unseen_frees: 0,
            summary: Summary { watched: 1.0, ..Summary::default() },
        };
        let (notices, told) = mpsc::channel();
        (Self { state: Arc::new(Mutex::new(state)), probed: Arc::default(), notices }, told)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Plain values: whoever panicked meanwhile left them whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, notice: Notice) {
        // After the thread's end the message has no reader.
        let _ = self.notices.send(notice);
    }

    /// Have a process probed.
    pub fn started(&self, pid: u32) {
        self.tell(Notice::Started(pid));
    }

    /// Bytes of files replaced by breakpoints.
    pub fn probed(&self) -> &Arc<Probed> {
        &self.probed
    }

    /// Has a process probed that is going to run a program, and waits for the probes.
    pub fn launched(&self, pid: u32, program: PathBuf) {
        let (done, told) = mpsc::channel();
        self.tell(Notice::Launched { pid, program, done });
        // An error ends the thread, and no process is probed afterwards.
        let _ = told.recv();
    }

    /// Takes every probe away until [`Heap::back`], and waits until the probes are gone.
    pub fn away(&self) {
        let (done, told) = mpsc::channel();
        self.tell(Notice::Away(done));
        // As above.
        let _ = told.recv();
    }

    /// Puts the probes back.
    pub fn back(&self) {
        self.tell(Notice::Back);
    }

    /// A process was forked.
    pub fn forked(&self, parent: u32, child: u32, at_ns: u64) {
        self.tell(Notice::Forked { parent, child, at_ns });
    }

    /// A process runs another program.
    pub fn exec(&self, pid: u32, at_ns: u64) {
        self.tell(Notice::Exec(pid, at_ns));
    }

    /// A process ended.
    pub fn ended(&self, pid: u32, at_ns: u64) {
        self.tell(Notice::Ended(pid, at_ns));
    }

    /// The block of a process that contained an address at a moment of the monotonic clock, which may be
    /// seconds ago.
    pub fn find(&self, pid: u32, address: u64, at_ns: u64) -> Option<Block> {
        let mut state = self.lock();
        if state.drained_ns <= at_ns {
            state.drain(sys::monotonic_ns());
        }
        state.processes.get(&pid)?.map.find(address, at_ns)
    }

    /// Whether a block of a process stood at a moment and stands still, as far as records were read.
    pub fn stood_at(&self, pid: u32, block: &HeapBlock, at_ns: u64) -> bool {
        block.since_ns <= at_ns && self.lock().stands(pid, block)
    }

    /// Whether the block stands now. Waits until the records up
    /// to now are read, for the caller must not hold the ring up.
    pub fn stands(&self, pid: u32, block: &HeapBlock) -> bool {
        let asked_ns = sys::monotonic_ns();
        for _ in 0..LOOKS_MAX {
            let state = self.lock();
            if !state.stands(pid, block) {
                return false;
            }
            if state.drained_ns > asked_ns {
                return true;
            }
            drop(state);
            std::thread::sleep(LOOK);
        }
        false
    }

    /// No later question concerns a moment before `at_ns`.
    pub fn passed(&self, at_ns: u64) {
        let mut state = self.lock();
        state.passed_ns = state.passed_ns.max(at_ns);
    }

    /// Allocations by site, in no order.
    pub fn totals(&self) -> Vec<SiteTotal> {
        let state = self.lock();
        let total = |(key, sums): (&(u32, u64), &(u64, u64))| SiteTotal {
            pid: key.0,
            site: key.1,
            allocations: sums.0,
            bytes: sums.1,
        };
        state.totals.iter().map(total).collect()
    }

    /// What became of the allocations.
    pub fn summary(&self) -> Summary {
        let state = self.lock();
        let mut summary = state.summary.clone();
        let maps = || state.processes.values().map(|process| &process.map);
        summary.folded += state.folded + maps().map(HeapMap::folded).sum::<u64>();
        summary.unseen_frees = state.unseen_frees + maps().map(HeapMap::unseen_frees).sum::<u64>();
        summary.made = summary.made.max(summary.seen);
        summary
    }
}

/// The last answers come within this time after the last record.
/// Blocks that stood at the last record are taken to stand meanwhile.
const LAST_ANSWERS_NS: u64 = 2_000_000_000;

impl State {
    /// Whether a block stands, as far as records were read;
    /// false once the block's end would long have been unseen.
    fn stands(&self, pid: u32, block: &HeapBlock) -> bool {
        let found =
            self.processes.get(&pid).and_then(|process| process.map.find(block.start, self.drained_ns));
        let same = |found: Block| found.start == block.start && found.since_ns == block.since_ns;
        let closed = self.over_ns.is_some_and(|over_ns| sys::monotonic_ns() > over_ns + LAST_ANSWERS_NS);
        !closed && found.is_some_and(|found| found.certain && same(found))
    }

    /// The probes go and do not come back.
    pub(super) fn finish(&mut self) {
        self.over_ns = Some(sys::monotonic_ns());
    }

    /// Reads the ring to its end.
    pub(super) fn drain(&mut self, now_ns: u64) {
        if let Source::Preload(recorder) = &mut self.source {
            recorder.look();
        }
        while let Some(record) = self.next_record() {
            match record {
                Record::Heap(record) => self.on_record(&record),
                Record::HeapSite(record, stack) => self.on_site(&record, stack),
                other => tracing::debug!("not a record of the heap: {other:?}"),
            }
        }
        self.drained_ns = now_ns;
        let horizon_ns = self.passed_ns.max(now_ns.saturating_sub(MEMORY_NS));
        for process in self.processes.values_mut() {
            process.map.forget_before(horizon_ns);
        }
        let over = |process: &Process| process.ended_ns.is_some_and(|ended_ns| ended_ns < horizon_ns);
        let gone: Vec<u32> =
            self.processes.iter().filter(|(_, process)| over(process)).map(|(pid, _)| *pid).collect();
        for pid in gone {
            if let Some(process) = self.processes.remove(&pid) {
                self.folded += process.map.folded();
                self.unseen_frees += process.map.unseen_frees();
            }
        }
    }

    fn next_record(&mut self) -> Option<Record> {
        match &mut self.source {
            Source::Probes(object) => object.ring.next().map(|item| records::decode(&item)),
            Source::Preload(recorder) => recorder.read(),
        }
    }

    fn map(&mut self, pid: u32) -> &mut HeapMap {
        let new = || Process { map: HeapMap::new(BLOCKS_MAX, BLOCKS_MAX), ended_ns: None };
        &mut self.processes.entry(pid).or_insert_with(new).map
    }

    fn on_record(&mut self, record: &HeapRecord) {
        let (pid, at_ns) = (record.header.tgid, record.header.time_ns);
        if record.event == event::FREED {
            let map = self.map(pid);
            // The rest of a mapping keeps its name.
            let whole = record.function != function::MUNMAP
                || map.find(record.address, at_ns).is_none_or(|block| block.bytes <= record.bytes);
            if whole {
                map.free(record.address, at_ns, at_ns);
            }
            return;
        }
        self.summary.seen += 1;
        let total = self.totals.entry((pid, record.site)).or_default();
        *total = (total.0 + 1, total.1.saturating_add(record.bytes));
        let made = Made { site: record.site, mapped: record.function == function::MMAP };
        let map = self.map(pid);
        if record.event == event::MOVED {
            map.free(record.old_address, record.called_ns, at_ns);
        }
        if let Some(folded) = map.allocate(record.address, record.bytes, made, at_ns) {
            self.source.forget_block(pid, folded);
        }
    }

    fn on_site(&mut self, record: &HeapSiteRecord, stack: Vec<u8>) {
        if self.waiting.len() >= SITES_WAITING_MAX {
            match &mut self.source {
                Source::Probes(object) => object.forget_site(record.site),
                Source::Preload(recorder) => recorder.forget_site(record.site),
            }
            self.summary.lost += 1;
            return;
        }
        self.waiting.push(HeapSite {
            pid: record.header.tgid,
            site: record.site,
            time_ns: record.header.time_ns,
            function: record.function,
            bytes: record.bytes,
            regs: record.regs,
            stack,
        });
    }

    /// Sites that the assembler has not got yet.
    pub(super) fn take_sites(&mut self) -> Vec<HeapSite> {
        std::mem::take(&mut self.waiting)
    }

    /// Puts back what could not be sent.
    pub(super) fn return_sites(&mut self, sites: Vec<HeapSite>) {
        self.waiting.splice(0..0, sites);
    }

    /// Forgets every record so far.
    pub(super) fn discard(&mut self, pid: u32) {
        self.drain(sys::monotonic_ns());
        if let Some(process) = self.processes.remove(&pid) {
            for address in process.map.addresses() {
                self.source.forget_block(pid, address);
            }
        }
        self.totals.retain(|(of, _), _| *of != pid);
        self.waiting.retain(|site| site.pid != pid);
        self.summary.seen = 0;
    }

    /// The child has the parent's blocks of that moment.
    pub(super) fn fork(&mut self, parent: u32, child: u32, at_ns: u64) {
        let Some(map) = self.processes.get(&parent).map(|process| process.map.forked(at_ns)) else { return };
        for address in map.addresses() {
            let block = map.find(address, u64::MAX - 1);
            let bytes = block.map_or(0, |block| block.bytes);
            let block = LiveBlock { bytes, since_ns: at_ns };
            if let Source::Probes(object) = &mut self.source
                && object.add_block(child, address, block).is_err()
            {
                self.summary.folded += 1;
            }
        }
        // Later allocations of the child lie beside these.
        let since = self.processes.insert(child, Process { map, ended_ns: None });
        if let (Some(since), Some(process)) = (since, self.processes.get_mut(&child)) {
            process.map.adopt(&since.map);
        }
    }

    /// The process runs another program since then.
    pub(super) fn clear(&mut self, pid: u32, at_ns: u64) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        for address in process.map.clear(at_ns) {
            self.source.forget_block(pid, address);
        }
    }

    /// The process ended.
    pub(super) fn end(&mut self, pid: u32, at_ns: u64) {
        self.clear(pid, at_ns);
        match &mut self.source {
            Source::Probes(object) => object.forget_process(pid),
            Source::Preload(recorder) => recorder.part(pid),
        }
        if let Some(process) = self.processes.get_mut(&pid) {
            process.ended_ns = Some(at_ns);
        }
    }

    /// The probes are away from now on.
    pub(super) fn doubt(&mut self, keep_bytes: u64, at_ns: u64) {
        for (pid, process) in &mut self.processes {
            for address in process.map.doubt(keep_bytes, at_ns) {
                self.source.forget_block(*pid, address);
            }
        }
    }

    /// Blocks of fewer bytes are followed no more: their ends will not be reported.
    pub(super) fn drop_below(&mut self, bytes: u64, at_ns: u64) {
        self.processes.values_mut().for_each(|process| process.map.drop_below(bytes, at_ns));
    }

    /// Changes what is recorded.
    pub(super) fn set(&mut self, settings: HeapSettings) {
        match &mut self.source {
            Source::Preload(recorder) => recorder.set(settings),
            Source::Probes(object) => {
                if let Err(error) = object.set(settings) {
                    tracing::debug!("heap settings not changed: {error:#}");
                }
            }
        }
    }

    /// The library's side, where a library records.
    pub(super) fn recorder(&mut self) -> Option<&mut Recorder> {
        match &mut self.source {
            Source::Preload(recorder) => Some(recorder),
            Source::Probes(_) => None,
        }
    }

    fn object(&self) -> anyhow::Result<&HeapObject> {
        match &self.source {
            Source::Probes(object) => Ok(object),
            Source::Preload(_) => anyhow::bail!("no probes"),
        }
    }

    /// Says where a process' code lies.
    pub(super) fn set_text(&mut self, pid: u32, text: ProcessText) {
        if let Source::Probes(object) = &mut self.source
            && let Err(error) = object.set_text(pid, text)
        {
            tracing::debug!("text of process {pid} not told: {error:#}");
        }
    }

    /// The kernel side's counters.
    pub(super) fn counters(&self) -> anyhow::Result<locality_kernel::object::EventCounts> {
        self.object()?.counters()
    }

    /// One of the tables.
    pub(super) fn counter(&self, index: u32) -> anyhow::Result<u64> {
        self.object()?.counter(index)
    }

    /// Puts probes into a process.
    pub(super) fn programs(&self) -> anyhow::Result<Arc<locality_kernel::uprobe::Programs>> {
        Ok(Arc::clone(&self.object()?.programs))
    }
}
