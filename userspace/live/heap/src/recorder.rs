//! The recorder's side of the tracer: hands the library and
//! the shared memory to a command, and reads the records.
//!
//! Both are files in memory that only our descriptors name; the command opens the files
//! below our `/proc` folder and closes them again. The shared memory's contents are a
//! stranger's word: every number is checked here. A record left unfinished (the writing
//! thread was killed, or stands still) is passed over after [`PATIENCE_NS`]. Source of
//! error: times are interpolated between readings of both clocks, a few milliseconds apart.

use std::{
    collections::{HashMap, VecDeque},
    ffi::CString,
    fs::{self, File},
    io::{self, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::FileExt as _,
    },
    sync::atomic::Ordering,
};

use locality_common::{
    heap::{HeapRecord, HeapSettings, HeapSiteRecord, event, function},
    record::{Header, Registers, kind},
};
use locality_preload::{
    layout::{self, EVENTS, FILLER, MAGIC, OFF, PROCESSES, STACK_BYTES, STACKS, Shared, VARIABLE, state},
    record,
};
use memmap2::MmapRaw;

use locality_kernel::{memory_file, records::Record, sys};

/// The library.
static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/liblocality_preload.so"));

/// Age at which an unfinished record will not be finished.
const PATIENCE_NS: u64 = 100_000_000;

/// Readings of both clocks that are remembered.
const READINGS: usize = 64;

/// The two files of a trace.
#[derive(Debug)]
pub struct Files {
    library: OwnedFd,
    ring: OwnedFd,
}

impl Files {
    /// Makes the files, before the fork of the command, which then knows the descriptors' numbers.
    pub fn create() -> io::Result<Self> {
        let needed = LIBRARY.len().max(size_of::<Shared>()) as u64;
        memory_file::without_limit(needed, Self::make)
    }

    fn make() -> io::Result<Self> {
        let library = memory_file::create(c"liblocality_preload.so")?;
        let mut file = File::from(library.try_clone()?);
        file.write_all(LIBRARY)?;
        let ring = memory_file::create(c"locality-heap")?;
        File::from(ring.try_clone()?).set_len(size_of::<Shared>() as u64)?;
        Ok(Self { library, ring })
    }

    fn path(fd: &OwnedFd) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd())
    }

    /// Our environment with what has a program load the library: two variables more, at the end.
    pub fn environment(&self, ours: Vec<CString>) -> Vec<CString> {
        let library = Self::path(&self.library);
        let mut variables = Vec::new();
        let mut had = false;
        for word in ours {
            let mut bytes = word.into_bytes();
            if bytes.starts_with(b"LD_PRELOAD=") && !had {
                had = true;
                bytes.push(b':');
                bytes.extend(library.as_bytes());
            }
            variables.push(bytes);
        }
        if !had {
            variables.push(format!("LD_PRELOAD={library}").into_bytes());
        }
        variables.push(format!("{VARIABLE}{}:{library}", Self::path(&self.ring)).into_bytes());
        if had {
            variables.push(FILLER.as_bytes().to_vec());
        }
        // A variable with a zero byte in it does not exist.
        variables.into_iter().filter_map(|bytes| CString::new(bytes).ok()).collect()
    }
}

/// What became of the processes of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Recorded processes, copies by fork included.
    pub processes: u64,
    /// Own allocators of processes that were left alone.
    pub foreign: Vec<String>,
    /// Processes that gave up reading the time, and were recorded no more.
    pub closed: u64,
    /// Programs that loaded the library.
    pub loaded: u64,
    /// Programs started by traced processes without loading the recorder.
    pub unrecorded: u64,
}

/// Reads the shared memory.
#[derive(Debug)]
pub struct Recorder {
    files: Files,
    map: MmapRaw,
    clock: Clock,
    /// Process ids by number; 0 for an unknown process.
    pids: HashMap<u32, u32>,
    /// Who may have an unknown number.
    candidates: Vec<u32>,
    /// Since when the next place of each ring has waited for its writer.
    waits: [Option<(u64, u64)>; 2],
    /// How far each ring is read.
    until: [u64; 2],
    /// Records lost on this side.
    lost: u64,
}

/// Time stamps to the monotonic clock.
#[derive(Debug, Default)]
struct Clock(VecDeque<(u64, u64)>);

impl Clock {
    fn read(&mut self) {
        let (before, now_ns) = (locality_preload::sys::time(), sys::monotonic_ns());
        let stamp = before + locality_preload::sys::time().saturating_sub(before) / 2;
        if self.0.len() == READINGS {
            self.0.pop_front();
        }
        self.0.push_back((stamp, now_ns));
    }

    /// Between the two readings around it, or along the nearest two.
    fn time_ns(&self, stamp: u64) -> u64 {
        let (Some(first), Some(last)) = (self.0.front(), self.0.back()) else { return 0 };
        let behind = self.0.partition_point(|reading| reading.0 < stamp).clamp(1, self.0.len() - 1);
        let (Some(a), Some(b)) = (self.0.get(behind - 1), self.0.get(behind)) else { return first.1 };
        if b.0 <= a.0 || first.0 >= last.0 {
            return a.1;
        }
        let slope = (b.1 - a.1) as f64 / (b.0 - a.0) as f64;
        let from_a = stamp as i128 - i128::from(a.0);
        a.1.saturating_add_signed((from_a as f64 * slope) as i64)
    }
}

impl Recorder {
    /// Maps the shared memory; records nothing until [`Recorder::set`].
    pub fn new(files: Files) -> io::Result<Self> {
        let map = memmap2::MmapOptions::new().map_raw(&File::from(files.ring.try_clone()?))?;
        let mut recorder = Self {
            files,
            map,
            clock: Clock::default(),
            pids: HashMap::new(),
            candidates: Vec::new(),
            waits: [None; 2],
            until: [0; 2],
            lost: 0,
        };
        recorder.stop();
        recorder.clock.read();
        recorder.shared().magic.store(MAGIC, Ordering::Release);
        Ok(recorder)
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping has the size of the structure, whose fields are atomics or padding; a
        // page's alignment suffices.
        unsafe { &*self.map.as_ptr().cast::<Shared>() }
    }

    /// The library's and the memory's files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Says which allocations are recorded from now on.
    pub fn set(&self, settings: HeapSettings) {
        let front = &self.shared().front;
        front.free_min.store(settings.min_bytes, Ordering::Relaxed);
        front.min_bytes.store(settings.min_bytes, Ordering::Relaxed);
    }

    /// Records nothing from now on.
    pub fn stop(&self) {
        let front = &self.shared().front;
        front.min_bytes.store(OFF, Ordering::Relaxed);
        front.free_min.store(OFF, Ordering::Relaxed);
    }

    /// A process that may have loaded the library.
    pub fn meet(&mut self, pid: u32) {
        if !self.candidates.contains(&pid) {
            self.candidates.push(pid);
        }
        self.pids.retain(|_, known| *known != 0);
    }

    /// It is gone.
    pub fn part(&mut self, pid: u32) {
        self.candidates.retain(|candidate| *candidate != pid);
    }

    /// Has a site's next call tell of it.
    pub fn forget_site(&self, site: u64) {
        record::forget(&self.shared().sites, site);
    }

    /// Reads the clocks, and how far the rings were written: so far is read from here on, and no
    /// further, for a program can write as fast as we read.
    pub fn look(&mut self) {
        let shared = self.shared();
        let heads = [&shared.event_ends, &shared.stack_ends].map(|ends| ends.head.load(Ordering::Acquire));
        self.until = heads;
        self.clock.read();
    }

    /// The next record; [`Recorder::look`] must have been called since it was written.
    pub fn read(&mut self) -> Option<Record> {
        self.next_stack().or_else(|| self.next_event())
    }

    /// The next place to read, if written, or if it never will be.
    fn place(&mut self, ring: usize) -> Option<(u64, bool)> {
        let shared = self.shared();
        let (ends, places) = match ring {
            0 => (&shared.event_ends, EVENTS),
            _ => (&shared.stack_ends, STACKS),
        };
        let (head, tail) = (self.until[ring], ends.tail.load(Ordering::Relaxed));
        if head.wrapping_sub(tail) as i64 <= 0 {
            self.waits[ring] = None;
            return None;
        }
        let index = tail as usize % places;
        let sequence = match ring {
            0 => shared.events[index].sequence.load(Ordering::Acquire),
            _ => shared.stacks[index].sequence.load(Ordering::Acquire),
        };
        if sequence == tail.wrapping_add(1) {
            self.waits[ring] = None;
            return Some((tail, true));
        }
        let now_ns = sys::monotonic_ns();
        match self.waits[ring] {
            Some((place, since_ns)) if place == tail => {
                if now_ns.saturating_sub(since_ns) < PATIENCE_NS {
                    return None;
                }
                self.waits[ring] = None;
                Some((tail, false))
            }
            _ => {
                self.waits[ring] = Some((tail, now_ns));
                None
            }
        }
    }

    fn next_stack(&mut self) -> Option<Record> {
        loop {
            let (tail, whole) = self.place(1)?;
            let record = if whole { self.stack(tail as usize % STACKS) } else { None };
            self.shared().stack_ends.tail.store(tail.wrapping_add(1), Ordering::Release);
            match record {
                Some(record) => return Some(record),
                None => self.lost += 1,
            }
        }
    }

    fn stack(&mut self, index: usize) -> Option<Record> {
        let from = &self.shared().stacks[index];
        let get = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
        let (at, site, bytes, what) = (get(&from.at), get(&from.site), get(&from.bytes), get(&from.kind));
        let copied = get(&from.copied).min(STACK_BYTES as u64) as usize & !7;
        let [rbx, r12, r13, r14, r15, rbp, rsp, rip] = from.registers.each_ref().map(get);
        let stack: Vec<u8> =
            from.words.iter().take(copied / 8).flat_map(|word| get(word).to_ne_bytes()).collect();
        let regs = Registers { rbx, r12, r13, r14, r15, rbp, rsp, rip, ..Registers::default() };
        let (_, by, process) = layout::of_kind(what);
        let header = self.header(kind::HEAP_SITE, at, process)?;
        let record = HeapSiteRecord { header, site, bytes, function: by.into(), reserved: 0, regs };
        Some(Record::HeapSite(Box::new(record), stack))
    }

    fn next_event(&mut self) -> Option<Record> {
        loop {
            let (tail, whole) = self.place(0)?;
            let record = if whole { self.event(tail as usize % EVENTS) } else { None };
            self.shared().event_ends.tail.store(tail.wrapping_add(1), Ordering::Release);
            match record {
                Some(record) => return Some(Record::Heap(record)),
                None => self.lost += 1,
            }
        }
    }

    fn event(&mut self, index: usize) -> Option<HeapRecord> {
        let from = &self.shared().events[index];
        let get = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
        let (at, called, what) = (get(&from.at), get(&from.called), get(&from.kind));
        let (address, bytes, old_address, site) =
            (get(&from.address), get(&from.bytes), get(&from.old), get(&from.site));
        let (event, by, process) = layout::of_kind(what);
        if !(event::ALLOCATED..=event::MOVED).contains(&event.into())
            || !(function::MALLOC..=function::MUNMAP).contains(&by.into())
        {
            return None;
        }
        let header = self.header(kind::HEAP, at, process)?;
        let called_ns = self.clock.time_ns(called);
        let (event, function) = (event.into(), by.into());
        Some(HeapRecord { header, address, bytes, old_address, site, called_ns, event, function })
    }

    fn header(&mut self, kind: u32, at: u64, process: u32) -> Option<Header> {
        let tgid = self.pid(process)?;
        Some(Header { kind, time_ns: self.clock.time_ns(at), tgid, tid: tgid, ..Header::default() })
    }

    /// The process of a number.
    fn pid(&mut self, number: u32) -> Option<u32> {
        if let Some(known) = self.pids.get(&number) {
            return (*known != 0).then_some(*known);
        }
        let process = self.shared().processes.get(number as usize)?;
        let (pid, parent) = (process.pid.load(Ordering::Acquire), process.parent.load(Ordering::Relaxed));
        let token_at = process.token_at.load(Ordering::Relaxed);
        let has = |pid: &u32| {
            let mut word = [0u8; 8];
            File::open(format!("/proc/{pid}/mem"))
                .and_then(|memory| memory.read_exact_at(&mut word, token_at))
                .is_ok_and(|()| u64::from_ne_bytes(word) == u64::from(number) + 1)
        };
        let mut found = (pid != 0).then_some(pid).filter(has);
        if found.is_none() {
            let above = if parent == number { None } else { self.pids.get(&parent).copied() };
            let born = above.into_iter().flat_map(children);
            found = born.chain(self.candidates.iter().copied()).find(has);
        }
        // An ended process is known by its own record.
        let found = found.or((pid != 0).then_some(pid));
        self.pids.insert(number, found.unwrap_or(0));
        found
    }

    /// Small allocations, about.
    pub fn small(&self) -> u64 {
        self.shared().front.small.iter().map(|stripe| stripe.0.load(Ordering::Relaxed)).sum()
    }

    /// Records ever written or dropped.
    pub fn events(&self) -> u64 {
        let ends = &self.shared().event_ends;
        ends.head.load(Ordering::Relaxed) + ends.lost.load(Ordering::Relaxed)
    }

    /// Allocations that were followed and did not fail.
    pub fn followed(&self) -> u64 {
        let shared = self.shared();
        let followed = shared.followed.load(Ordering::Relaxed);
        followed.saturating_sub(shared.failed.load(Ordering::Relaxed))
    }

    /// Stacks that were copied.
    pub fn stacks(&self) -> u64 {
        self.shared().copied.load(Ordering::Relaxed)
    }

    /// Records that found no room, or no process.
    pub fn lost(&self) -> u64 {
        let of = |ends: &layout::Ends| ends.lost.load(Ordering::Relaxed);
        self.lost + of(&self.shared().event_ends)
    }

    /// What became of the processes.
    pub fn recorded(&self) -> Recorded {
        let shared = self.shared();
        let met = (shared.processes_met.load(Ordering::Acquire) as usize).min(PROCESSES);
        let mut recorded = Recorded::default();
        for process in shared.processes.iter().take(met) {
            // Copies by fork do not ask for their number.
            recorded.loaded += u64::from(process.pid.load(Ordering::Acquire) != 0);
            match process.state.load(Ordering::Acquire) {
                state::FOREIGN => {
                    let bytes: Vec<u8> = process
                        .why
                        .iter()
                        .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
                        .take_while(|byte| byte.is_ascii_graphic())
                        .collect();
                    let name = String::from_utf8_lossy(&bytes).into_owned();
                    if !recorded.foreign.contains(&name) {
                        recorded.foreign.push(name);
                    }
                }
                other => {
                    recorded.processes += u64::from(other != state::FREE);
                    recorded.closed += u64::from(other == state::CLOSED);
                }
            }
        }
        recorded
    }
}

/// The children of a process.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_lie_between_the_readings_around_them() {
        let clock = Clock(VecDeque::from([(1000, 50), (3000, 1050), (4000, 1250)]));
        assert_eq!([1000, 2000, 3000, 3500].map(|stamp| clock.time_ns(stamp)), [50, 550, 1050, 1150]);
        // Along the nearest two.
        assert_eq!([5000, 800].map(|stamp| clock.time_ns(stamp)), [1450, 0]);
    }

    #[test]
    fn our_variables_come_last_and_other_libraries_first() {
        let files = Files::create().unwrap();
        let of = |variables: &[(&str, &str)]| {
            let ours = variables.iter().map(|(name, value)| CString::new(format!("{name}={value}")).unwrap());
            let all: Vec<String> = files
                .environment(ours.collect())
                .into_iter()
                .map(|variable| variable.into_string().unwrap())
                .collect();
            all
        };
        let library = Files::path(&files.library);
        let ours = format!("LOCALITY_HEAP={}:{library}", Files::path(&files.ring));
        assert_eq!(of(&[("A", "1")]), ["A=1", &format!("LD_PRELOAD={library}"), &ours]);
        let both = of(&[("LD_PRELOAD", "a.so"), ("B", "")]);
        assert_eq!(both, [&format!("LD_PRELOAD=a.so:{library}"), "B=", &ours, "LOCALITY_HEAP_END="]);
    }

    #[test]
    fn what_is_written_is_read_and_what_is_never_finished_is_passed_over() {
        let mut recorder = Recorder::new(Files::create().unwrap()).unwrap();
        // SAFETY: as in `shared`; apart from the borrow that reading takes.
        let shared = unsafe { &*recorder.map.as_ptr().cast::<Shared>() };
        let token = Box::leak(Box::new(std::sync::atomic::AtomicU64::new(0)));
        assert_eq!(record::meet(shared, token, 0, std::process::id()), Some(0));
        let write = |place: u64, what: u64| {
            let to = &shared.events[place as usize];
            to.address.store(0x1000 + place, Ordering::Relaxed);
            to.kind.store(what, Ordering::Relaxed);
            to.sequence.store(place + 1, Ordering::Release);
        };
        write(0, layout::kind(1, 1, 0));
        // 1 is never written; 2 is nonsense; 3 is of a process that nobody met.
        write(2, layout::kind(77, 1, 0));
        write(3, layout::kind(1, 1, 9));
        write(4, layout::kind(2, 8, 0));
        shared.event_ends.head.store(5, Ordering::Release);
        recorder.look();
        let mut next = || match recorder.read() {
            Some(Record::Heap(record)) => Some((record.header.tgid, record.address, record.event)),
            _ => None,
        };
        let own = std::process::id();
        assert_eq!(next(), Some((own, 0x1000, 1)));
        assert_eq!(next(), None);
        std::thread::sleep(std::time::Duration::from_nanos(PATIENCE_NS + 10_000_000));
        assert_eq!(next(), Some((own, 0x1004, 2)));
        assert_eq!((next(), recorder.lost()), (None, 3));
    }
}
