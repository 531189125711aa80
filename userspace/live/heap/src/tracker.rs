//! The thread that drives the probes: finds the allocators of new processes and programs, reads the
//! ring, keeps the budget.
//!
//! The thread may block (a grace period of the kernel, a process with a locked memory map), does
//! no further work therefore, and answers do not wait for the thread. A process is examined when
//! met, again soon after and then each second, because libraries come later. Probes stay through
//! an exec. A launched command, a copy of this process before the exec, has the C library's probes
//! from the first instruction; allocations in further libraries are missed for a few milliseconds.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context as _, Result};
use locality_common::{
    counter,
    heap::{HeapSettings, ProcessText},
    rules::START_TICK_NS,
};
use locality_symbols::Mappings;
use tokio::sync::mpsc as async_mpsc;

use super::{
    block_table::{Heap, HeapSite, Notice, Source},
    copied_code, eligible,
    follower::{Follower, Fork, settled},
    modules::{self, Executed, FileId},
    probe_budget::{Counted, Decision, Duty, Prices},
    probe_cost,
};
use locality_kernel::{
    object::{EventCounts, HeapObject},
    proc, sys,
    uprobe::{Link, Probe, Programs},
};

/// Time from the meeting of a process, or from a change of the program,
/// to the first look through; then after twice the time, and so on.
const FIRST_SCAN_NS: u64 = 1_000_000;
/// …up to this.
const SCANS_NS: u64 = 1_000_000_000;

/// Age after which a forked process without an exec is taken for a copy that continues.
pub(super) const SETTLE_NS: u64 = 20_000_000;

/// Blocks of fewer bytes are taken for gone when the probes go: the end would be unseen.
pub(super) const KEPT_BYTES: u64 = 64 << 10;

/// Failures that are reported.
const FAILURES_MAX: usize = 8;

/// What the command line decided.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Share of the targets' CPU time that the probes may cost.
    pub share: f64,
    /// Least size to begin with.
    pub min_bytes: u64,
    /// What the copy of a stack costs a thread.
    pub copy_ns: u64,
}

/// The running thread.
#[derive(Debug)]
pub struct HeapThread {
    pub(super) heap: Heap,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl HeapThread {
    /// Who answers.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Takes the probes away, reads what is left in the ring and tells the last sites.
    pub fn finish(&mut self) {
        self.heap.tell(Notice::Finish);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::debug!("the heap thread panicked");
        }
    }
}

/// Starts the thread; sites go to `events`, what the probes cost to `cost_ns`, in nanoseconds.
pub fn start<E: From<Box<HeapSite>> + Send + 'static>(
    object: HeapObject,
    settings: Settings,
    cost_ns: Arc<AtomicU64>,
    events: async_mpsc::Sender<E>,
) -> Result<HeapThread> {
    let (heap, notices) = Heap::new(Source::Probes(Box::new(object)));
    let programs = heap.lock().programs()?;
    let own = heap.clone();
    let thread = std::thread::Builder::new()
        .name("heap".into())
        .spawn(move || {
            // While the thread waits for a CPU no burst is cut, and the traced program pays.
            let _hurry = sys::Hurry::begin();
            Tracker::new(own, programs, settings, cost_ns, events).run(&notices);
        })
        .context("cannot start the heap thread")?;
    Ok(HeapThread { heap, thread: Some(thread) })
}

/// A traced process.
#[derive(Debug)]
struct Process {
    links: HashMap<FileId, Link>,
    /// Probes of its future program, and the program's inode.
    ahead: Option<(u64, Link)>,
    /// It runs another program than at first.
    became: bool,
    /// Executed files at the last look.
    seen: copied_code::Seen,
    /// Probes could harm it.
    refused: bool,
    scan_due_ns: u64,
    scan_after_ns: u64,
    /// CPU time when it was met, and when last looked at.
    cpu_ns: (u64, u64),
}

struct Tracker<E> {
    heap: Heap,
    programs: Arc<Programs>,
    prices: Prices,
    duty: Duty,
    /// Least size to begin with.
    min_bytes: u64,
    cost_ns: Arc<AtomicU64>,
    events: async_mpsc::Sender<E>,
    processes: HashMap<u32, Process>,
    /// Forks that may still exec.
    forks: Vec<Fork>,
    /// Places to probe in the met files.
    files: HashMap<FileId, Arc<[Probe]>>,
    /// CPU time of processes that ended.
    past_cpu_ns: u64,
    /// EventCounts when tracing began.
    before: EventCounts,
    epoch: u32,
    failures: HashSet<String>,
    /// Nothing may be probed for now.
    held: bool,
}

/// Closes links, each in a separate thread: closing removes breakpoints at once and then waits for
/// a grace period, which would delay the next link.
fn close(links: impl Iterator<Item = Link>) -> Vec<JoinHandle<()>> {
    links.map(|link| std::thread::spawn(move || drop(link))).collect()
}

impl<E: From<Box<HeapSite>>> Follower for Tracker<E> {
    fn on_notice(&mut self, notice: Notice) -> bool {
        let now_ns = sys::monotonic_ns();
        // What was recorded before comes first.
        self.heap.lock().drain(now_ns);
        match notice {
            Notice::Started(pid) => self.meet(pid, now_ns, until_grown_ns(pid)),
            Notice::Launched { pid, program, done } => {
                self.meet(pid, now_ns, 0);
                self.probe_program(pid, &program);
                // Who asked may have given up.
                let _ = done.send(());
            }
            Notice::Away(done) => {
                self.held = true;
                // Not before they are gone.
                self.take_away().into_iter().for_each(|closing| drop(closing.join()));
                self.heap.lock().doubt(KEPT_BYTES, sys::monotonic_ns());
                let _ = done.send(());
            }
            Notice::Back => {
                self.held = false;
                self.put_back();
            }
            Notice::Forked { parent, child, at_ns } => self.forks.push((parent, child, at_ns)),
            Notice::Exec(pid, at_ns) => {
                self.forks.retain(|(_, child, _)| *child != pid);
                self.heap.lock().clear(pid, at_ns);
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.became = true;
                    (process.seen, process.refused) = (copied_code::Seen::default(), false);
                }
                self.meet(pid, now_ns, 0);
            }
            Notice::Ended(pid, at_ns) => {
                self.forks.retain(|(_, child, _)| *child != pid);
                self.heap.lock().end(pid, at_ns);
                if let Some(process) = self.processes.remove(&pid) {
                    self.past_cpu_ns += process.cpu_ns.1.saturating_sub(process.cpu_ns.0);
                    close(process.links.into_values());
                }
            }
            Notice::Finish => return true,
        }
        false
    }

    fn turn(&mut self) -> Duration {
        let now_ns = sys::monotonic_ns();
        self.heap.lock().drain(now_ns);
        send_sites(&self.heap, &self.events);
        for (parent, child, at_ns) in settled(&mut self.forks, now_ns) {
            self.heap.lock().fork(parent, child, at_ns);
            self.meet(child, now_ns, 0);
        }
        let due: Vec<u32> = self
            .processes
            .iter()
            .filter(|(_, process)| process.scan_due_ns <= now_ns)
            .map(|(pid, _)| *pid)
            .collect();
        for pid in due {
            self.scan(pid, now_ns);
        }
        let cpu_ns = self.cpu_ns();
        if self.held {
            return self.duty.next_look(cpu_ns);
        }
        let Some(counted) = self.count() else { return self.duty.next_look(cpu_ns) };
        let decision = self.duty.turn(sys::monotonic_ns(), cpu_ns, counted);
        if decision != Decision::Keep {
            tracing::debug!(?decision, cpu_ns, ?counted);
        }
        match decision {
            Decision::Keep => {}
            Decision::Raise(min_bytes) => self.set(min_bytes),
            Decision::Pause => self.pause(),
            Decision::Resume => self.put_back(),
        }
        self.cost_ns.store(counted.cost_ns(&self.prices), Ordering::Relaxed);
        let next_scan_ns = self.processes.values().map(|process| process.scan_due_ns).min();
        let until_scan = next_scan_ns.map_or(Duration::MAX, |due_ns| {
            Duration::from_nanos(due_ns.saturating_sub(sys::monotonic_ns()).max(500_000))
        });
        self.duty.next_look(cpu_ns).min(until_scan)
    }

    fn end(mut self) {
        self.heap.lock().finish();
        self.take_away();
        self.turn();
        self.summarise();
        send_last_sites(&self.heap, &self.events);
    }
}

impl<E: From<Box<HeapSite>>> Tracker<E> {
    fn new(
        heap: Heap,
        programs: Arc<Programs>,
        settings: Settings,
        cost_ns: Arc<AtomicU64>,
        events: async_mpsc::Sender<E>,
    ) -> Self {
        let (mut prices, guessed) = probe_cost::measure(&heap);
        prices.site_ns = prices.site_ns.max(settings.copy_ns);
        tracing::debug!(?prices, ?guessed, "allocation probes");
        let mut state = heap.lock();
        let before = state.counters().unwrap_or([0; counter::COUNT as usize]);
        state.set(HeapSettings { min_bytes: settings.min_bytes, epoch: 1, reserved: 0 });
        drop(state);
        Self {
            heap,
            programs,
            prices,
            duty: Duty::new(settings.share, prices, settings.min_bytes),
            min_bytes: settings.min_bytes,
            cost_ns,
            events,
            processes: HashMap::new(),
            forks: Vec::new(),
            // A command before the exec is a copy of us.
            files: modules::own().into_iter().map(|own| (own, Arc::from([]))).collect(),
            past_cpu_ns: 0,
            before,
            epoch: 1,
            failures: HashSet::new(),
            held: false,
        }
    }

    /// Looks a process through, after `wait_ns` and then a few times soon.
    fn meet(&mut self, pid: u32, now_ns: u64, wait_ns: u64) {
        let is_new = !self.processes.contains_key(&pid);
        let process = self.processes.entry(pid).or_insert_with(|| Process {
            links: HashMap::new(),
            ahead: None,
            became: false,
            seen: copied_code::Seen::default(),
            refused: false,
            scan_due_ns: 0,
            scan_after_ns: 0,
            cpu_ns: (0, 0),
        });
        (process.scan_due_ns, process.scan_after_ns) = (now_ns + wait_ns, FIRST_SCAN_NS);
        if wait_ns == 0 {
            self.scan(pid, now_ns);
        }
        if let (true, Some(process)) = (is_new, self.processes.get_mut(&pid)) {
            // CPU time counts from here on, as the process is watched from here on.
            let cpu_ns = sys::process_cpu_ns(pid).unwrap_or(0);
            process.cpu_ns = (cpu_ns, cpu_ns);
        }
    }

    /// CPU time of the targets since they were met.
    fn cpu_ns(&mut self) -> u64 {
        let live = self.processes.iter_mut().map(|(pid, process)| {
            // The last known state of an ended process.
            process.cpu_ns.1 = sys::process_cpu_ns(*pid).unwrap_or(process.cpu_ns.1).max(process.cpu_ns.1);
            process.cpu_ns.1 - process.cpu_ns.0
        });
        live.sum::<u64>() + self.past_cpu_ns
    }

    /// Counters for the cost only, because each takes a system call.
    fn count(&self) -> Option<Counted> {
        let state = self.heap.lock();
        let of = |index: u32| Some(state.counter(index).ok()?.saturating_sub(self.before[index as usize]));
        Some(Counted {
            calls: of(counter::HEAP_CALLS)?,
            stepped: of(counter::HEAP_STEPPED_CALLS)?,
            followed: of(counter::HEAP_FOLLOWED)?,
            sites: of(counter::HEAP_SITES)? + of(counter::HEAP_SITES_LOST)?,
        })
    }

    /// For the report.
    fn summarise(&self) {
        let cost_ns = self.cost_ns.load(Ordering::Relaxed);
        let Ok(now) = self.heap.lock().counters() else { return };
        let of = |index: u32| now[index as usize].saturating_sub(self.before[index as usize]);
        let counted = of(counter::HEAP_SMALL) + of(counter::HEAP_FOLLOWED) + of(counter::HEAP_UNFOLLOWED)
            - of(counter::HEAP_FAILED).min(of(counter::HEAP_FOLLOWED));
        let watched = self.duty.watched();
        let mut state = self.heap.lock();
        let summary = &mut state.summary;
        summary.made = (counted as f64 / watched.max(1e-6)) as u64;
        summary.small = of(counter::HEAP_SMALL);
        summary.lost += of(counter::HEAP_LOST) + of(counter::HEAP_SITES_LOST);
        summary.folded += of(counter::HEAP_LIVE_FULL);
        summary.unwatched = summary.made.saturating_sub(counted);
        summary.unfollowed = of(counter::HEAP_UNFOLLOWED);
        summary.min_bytes = (self.min_bytes, self.duty.min_bytes());
        (summary.watched, summary.cost_ns) = (watched, cost_ns);
    }

    /// Probes what a process executes and has no probes yet.
    fn scan(&mut self, pid: u32, now_ns: u64) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.scan_due_ns = now_ns + process.scan_after_ns;
        process.scan_after_ns = (process.scan_after_ns * 2).min(SCANS_NS);
        if self.duty.is_paused() || self.held || process.refused {
            return;
        }
        let Ok(status) = proc::status(pid) else { return };
        if !is_ours(status.tracer) {
            self.leave(pid);
            return;
        }
        if status.state == 'T' {
            // The process allocates no memory, and a program
            // started by strace waits in this state for its tracer.
            return;
        }
        let Ok(mappings) = Mappings::read(pid) else { return };
        let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        let code = mappings.iter().filter(|mapping| mapping.executable && mapping.inode != 0);
        if let Some(name) = eligible::translator(&program, code.map(|mapping| &*mapping.path)) {
            self.refuse(pid, format!("{name} translates or replays code, which probes could harm"));
            return;
        }
        let files = modules::executed(pid, &mappings);
        if self.is_copied(pid, &mappings, &files) {
            self.refuse(
                pid,
                "it executes a copy of code with probes in it, which were taken away; --heap=preload or --heap=off \
                 puts none there"
                    .to_owned(),
            );
            return;
        }
        // Before a library's probes, the library's code: the
        // library's mappings are no blocks of the program.
        let mut text = ProcessText::default();
        let mut allocators = text.allocators.iter_mut();
        for file in &files {
            if file.is_program {
                text.program = file.text;
            } else if modules::is_allocator(&self.probes(file))
                && let Some(allocator) = allocators.next()
            {
                *allocator = file.text;
            }
        }
        self.heap.lock().set_text(pid, text);
        if let Some(process) = self.processes.get_mut(&pid)
            && let Some((inode, link)) = process.ahead.take()
        {
            match files.iter().find(|file| file.id.inode() == inode) {
                Some(file) => drop(process.links.insert(file.id, link)),
                // The exec is not done yet, or another one happened.
                None if !process.became => process.ahead = Some((inode, link)),
                None => drop(close(std::iter::once(link))),
            }
        }
        for file in files {
            self.probe(pid, &file);
        }
    }

    /// Removes the probes from a process with another tracer: a probe's return is a system call,
    /// and strace 6.1 ends a program by SIGSEGV when counting it.
    fn leave(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let links = std::mem::take(&mut process.links).into_values();
        drop(close(links.chain(process.ahead.take().map(|(_, link)| link))));
        self.fail("a process is traced by another program, which probes could harm".to_owned());
    }

    /// Takes the probes out of a process, and inserts none until the process runs another program.
    fn refuse(&mut self, pid: u32, why: String) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.refused = true;
            let links = std::mem::take(&mut process.links).into_values();
            drop(close(links.chain(process.ahead.take().map(|(_, link)| link))));
        }
        self.fail(why);
    }

    /// Whether a process executes anonymous copies of code with probes in it.
    fn is_copied(&mut self, pid: u32, mappings: &Mappings, files: &[Executed]) -> bool {
        let Some(process) = self.processes.get_mut(&pid) else { return false };
        let probed: Vec<_> = files
            .iter()
            .filter(|file| process.links.contains_key(&file.id))
            .filter_map(|file| Some((file.id, file.text, self.files.get(&file.id)?.as_ref())))
            .collect();
        process.seen.is_copied(pid, mappings, &probed)
    }

    /// Notes why a process is not followed, each reason once.
    fn fail(&mut self, why: String) {
        if self.failures.len() < FAILURES_MAX && self.failures.insert(why.clone()) {
            self.heap.lock().summary.failures.push(why);
        }
    }

    /// Probes the program that a process is going to run.
    fn probe_program(&mut self, pid: u32, program: &Path) {
        let Ok(file) = program.metadata().map(|metadata| FileId::of(&metadata)) else { return };
        let resolved = fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
        if let Some(name) = eligible::translator(&resolved, std::iter::empty()) {
            self.fail(format!("{name} translates or replays code, which probes could harm"));
            return;
        }
        let Ok(probes) = modules::probes(program, true) else { return };
        let Some(process) = self.processes.get_mut(&pid).filter(|_| !probes.is_empty()) else { return };
        if process.links.keys().any(|known| known.inode() == file.inode()) {
            // It runs already.
            return;
        }
        self.heap.probed().say(file, &probes);
        match self.programs.attach(pid, program, &probes) {
            Ok(link) => process.ahead = Some((file.inode(), link)),
            Err(error) => tracing::debug!("{}: {error}", program.display()),
        }
    }

    /// Where to probe a file.
    fn probes(&mut self, file: &Executed) -> Arc<[Probe]> {
        if let Some(known) = self.files.get(&file.id) {
            return Arc::clone(known);
        }
        // Entries that vanished are met again when needed.
        let Ok(probes) = modules::probes(&file.path, file.is_program) else { return Arc::default() };
        tracing::debug!("{}: {probes:x?}", file.path.display());
        let probes: Arc<[Probe]> = probes.into();
        self.files.insert(file.id, Arc::clone(&probes));
        if !probes.is_empty() {
            self.heap.probed().say(file.id, &probes);
        }
        probes
    }

    fn probe(&mut self, pid: u32, file: &Executed) {
        if self.processes.get(&pid).is_none_or(|process| process.links.contains_key(&file.id)) {
            return;
        }
        let probes = self.probes(file);
        if probes.is_empty() {
            return;
        }
        match self.programs.attach(pid, &file.path, &probes) {
            Ok(link) => {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.links.insert(file.id, link);
                }
                self.heap.lock().summary.probes += probes.len() as u64;
            }
            // It ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => {
                let why = format!("probes were refused: {error}");
                tracing::debug!("process {pid}, {}: {why}", file.path.display());
                self.fail(why);
            }
        }
    }

    fn set(&mut self, min_bytes: u64) {
        tracing::debug!("allocations of {min_bytes} bytes and more are followed");
        self.heap.lock().set(HeapSettings { min_bytes, epoch: self.epoch, reserved: 0 });
    }

    /// Takes all probes away.
    fn take_away(&mut self) -> Vec<JoinHandle<()>> {
        let links = self.processes.values_mut().flat_map(|process| {
            let ahead = process.ahead.take().map(|(_, link)| link);
            process.links.drain().map(|(_, link)| link).chain(ahead)
        });
        let closing = close(links);
        tracing::debug!("probes of {} files are taken away", closing.len());
        closing
    }

    /// Takes all probes away to save.
    fn pause(&mut self) {
        self.take_away();
        let mut state = self.heap.lock();
        state.doubt(KEPT_BYTES, sys::monotonic_ns());
        state.summary.pauses += 1;
    }

    /// Puts the probes back.
    fn put_back(&mut self) {
        // Returns that were missed meanwhile are no calls under way.
        self.epoch += 1;
        self.set(self.duty.min_bytes());
        let now_ns = sys::monotonic_ns();
        let pids: Vec<u32> = self.processes.keys().copied().collect();
        for pid in pids {
            self.scan(pid, now_ns);
        }
        let cpu_ns = self.cpu_ns();
        self.duty.stands(sys::monotonic_ns(), cpu_ns);
    }
}

/// Hands new sites to the recorder thread; the rest waits for room.
pub(super) fn send_sites<E: From<Box<HeapSite>>>(heap: &Heap, events: &async_mpsc::Sender<E>) {
    let mut sites = heap.lock().take_sites().into_iter();
    while sites.len() > 0 {
        let Ok(room) = events.try_reserve() else {
            heap.lock().return_sites(sites.collect());
            return;
        };
        if let Some(site) = sites.next() {
            room.send(Box::new(site).into());
        }
    }
}

/// Hands the last ones over, and waits for room.
pub(super) fn send_last_sites<E: From<Box<HeapSite>>>(heap: &Heap, events: &async_mpsc::Sender<E>) {
    for site in heap.lock().take_sites() {
        if events.blocking_send(Box::new(site).into()).is_err() {
            return;
        }
    }
}

/// Wait before a newly forked process is probed: the process may
/// run another program, and a debugger may be about to attach.
fn until_grown_ns(pid: u32) -> u64 {
    let born_ns = proc::start_ticks(pid).unwrap_or(0) * START_TICK_NS;
    let is_young = sys::boottime_ns().saturating_sub(born_ns) < SETTLE_NS;
    if is_young { SETTLE_NS } else { 0 }
}

/// Whether a tracer is one of our threads, or none.
fn is_ours(tracer: u32) -> bool {
    tracer == 0 || Path::new(&format!("/proc/self/task/{tracer}")).exists()
}
