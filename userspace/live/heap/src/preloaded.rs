//! The thread that reads the preloaded recorder's records,
//! and enforces the recorder's share of the budget.
//!
//! The counterpart of `tracker`, which drives probes. No probe need be put into
//! processes, which bring the recorder. An unrecorded call costs a few nanoseconds
//! that no pause could save; `probe_budget` decides the saving by a larger least size.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use locality_common::heap::HeapSettings;
use locality_preload::{layout::Shared, record, resolve::place};
use tokio::sync::mpsc as async_mpsc;

use super::{
    block_table::{Heap, HeapSite, Notice, Source},
    follower::{Follower, Fork, settled},
    probe_budget::{Counted, Decision, Duty, Prices},
    recorder::Recorder,
    tracker::{HeapThread, KEPT_BYTES, Settings, send_last_sites, send_sites},
};
use locality_kernel::sys;

/// Cost of a call that is only counted, with the call that gives the
/// block back: 4.6 ns were measured on a virtual machine of 2026.
const SMALL_PS: u64 = 5_000;

/// Assumed time of a record, if unmeasurable.
const GUESS_NS: u64 = 150;

/// Assumed time for the copy of a stack: 16 KiB, mostly outside of the thread's caches.
const SITE_NS: u64 = 4_000;

/// Time in which a program with a processor loads its libraries.
const LOADING_NS: u64 = 200_000_000;

/// Calls that are measured in a batch, and batches, of which the fastest counts.
const CALLS: u32 = 200;
const BATCHES: usize = 10;

/// Waits between two looks: the ring holds 64 stacks, and a program that begins meets many sites.
const LOOKS: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Starts the thread; sites go to `events`, what the recorder costs to `cost_ns`, in nanoseconds.
pub fn start<E: From<Box<HeapSite>> + Send + 'static>(
    recorder: Recorder,
    settings: Settings,
    cost_ns: Arc<AtomicU64>,
    events: async_mpsc::Sender<E>,
) -> Result<HeapThread> {
    let (heap, notices) = Heap::new(Source::Preload(Box::new(recorder)));
    let prices = Prices { call_ns: 0, stepped_ns: 0, follow_ns: price(), site_ns: SITE_NS };
    tracing::debug!(?prices, "the recorder");
    let reader = Reader {
        heap: heap.clone(),
        prices,
        duty: Duty::new(settings.share, prices, settings.min_bytes),
        min_bytes: settings.min_bytes,
        cost_ns,
        events,
        processes: HashMap::new(),
        past_cpu_ns: 0,
        forks: Vec::new(),
        execs: 0,
        began: HashMap::new(),
        held: false,
    };
    // Before the command begins.
    reader.set(settings.min_bytes);
    let thread = std::thread::Builder::new()
        .name("heap".into())
        .spawn(move || reader.run(&notices))
        .context("cannot start the heap thread")?;
    Ok(HeapThread { heap, thread: Some(thread) })
}

struct Reader<E> {
    heap: Heap,
    prices: Prices,
    duty: Duty,
    /// Least size to begin with.
    min_bytes: u64,
    cost_ns: Arc<AtomicU64>,
    events: async_mpsc::Sender<E>,
    /// CPU time of each process when it was met, and when last looked at.
    processes: HashMap<u32, (u64, u64)>,
    past_cpu_ns: u64,
    /// Forks that may still exec.
    forks: Vec<Fork>,
    /// Programs that traced processes began.
    execs: u64,
    /// Living processes, and the start of their last program.
    began: HashMap<u32, u64>,
    /// Nothing may be recorded for now.
    held: bool,
}

impl<E: From<Box<HeapSite>>> Follower for Reader<E> {
    fn on_notice(&mut self, notice: Notice) -> bool {
        // What was recorded before comes first.
        self.heap.lock().drain(sys::monotonic_ns());
        match notice {
            Notice::Started(pid) => self.meet(pid),
            Notice::Launched { pid, done, .. } => {
                self.meet(pid);
                // Who asked may have given up.
                let _ = done.send(());
            }
            Notice::Away(done) => {
                self.held = true;
                self.stop();
                self.heap.lock().doubt(KEPT_BYTES, sys::monotonic_ns());
                let _ = done.send(());
            }
            Notice::Back => {
                self.held = false;
                self.resume();
            }
            Notice::Forked { parent, child, at_ns } => {
                self.with(|recorder| recorder.meet(child));
                self.forks.push((parent, child, at_ns));
            }
            Notice::Exec(pid, at_ns) => {
                self.forks.retain(|(_, child, _)| *child != pid);
                self.heap.lock().clear(pid, at_ns);
                self.execs += 1;
                self.began.insert(pid, at_ns);
                self.meet(pid);
            }
            Notice::Ended(pid, at_ns) => {
                self.forks.retain(|(_, child, _)| *child != pid);
                self.heap.lock().end(pid, at_ns);
                self.began.remove(&pid);
                if let Some((met_ns, last_ns)) = self.processes.remove(&pid) {
                    self.past_cpu_ns += last_ns.saturating_sub(met_ns);
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
            self.meet(child);
        }
        let cpu_ns = self.cpu_ns();
        let (counted, small) = self.count();
        let decision = if self.held { Decision::Keep } else { self.duty.turn(now_ns, cpu_ns, counted) };
        match decision {
            Decision::Keep => {}
            Decision::Raise(min_bytes) => {
                self.set(min_bytes);
                let mut state = self.heap.lock();
                state.drain(now_ns);
                state.drop_below(min_bytes, now_ns);
            }
            Decision::Pause => {
                self.stop();
                let mut state = self.heap.lock();
                state.drain(now_ns);
                state.doubt(KEPT_BYTES, now_ns);
                state.summary.pauses += 1;
            }
            Decision::Resume => self.resume(),
        }
        let cost_ns = counted.cost_ns(&self.prices) + small * SMALL_PS / 1000;
        self.cost_ns.store(cost_ns, Ordering::Relaxed);
        self.duty.next_look(cpu_ns).clamp(LOOKS.0, LOOKS.1)
    }

    fn end(mut self) {
        self.heap.lock().finish();
        self.stop();
        self.turn();
        self.summarise();
        send_last_sites(&self.heap, &self.events);
    }
}

impl<E: From<Box<HeapSite>>> Reader<E> {
    fn with(&self, act: impl FnOnce(&mut Recorder)) {
        if let Some(recorder) = self.heap.lock().recorder() {
            act(recorder);
        }
    }

    fn meet(&mut self, pid: u32) {
        self.with(|recorder| recorder.meet(pid));
        let cpu_ns = sys::process_cpu_ns(pid).unwrap_or(0);
        self.processes.entry(pid).or_insert((cpu_ns, cpu_ns));
    }

    /// CPU time of the targets since they were met.
    fn cpu_ns(&mut self) -> u64 {
        let live = self.processes.iter_mut().map(|(pid, (met_ns, last_ns))| {
            *last_ns = sys::process_cpu_ns(*pid).unwrap_or(*last_ns).max(*last_ns);
            *last_ns - (*met_ns).min(*last_ns)
        });
        live.sum::<u64>() + self.past_cpu_ns
    }

    /// Counts from which the cost follows, and the allocations only counted.
    fn count(&self) -> (Counted, u64) {
        let mut counted = (Counted::default(), 0);
        self.with(|recorder| {
            counted.0 =
                Counted { followed: recorder.events(), sites: recorder.stacks(), ..Counted::default() };
            counted.1 = recorder.small();
        });
        counted
    }

    fn set(&self, min_bytes: u64) {
        tracing::debug!("allocations of {min_bytes} bytes and more are recorded");
        self.heap.lock().set(HeapSettings { min_bytes, epoch: 0, reserved: 0 });
    }

    fn stop(&self) {
        self.with(|recorder| recorder.stop());
    }

    fn resume(&mut self) {
        self.set(self.duty.min_bytes());
        let cpu_ns = self.cpu_ns();
        self.duty.stands(sys::monotonic_ns(), cpu_ns);
    }

    /// For the report.
    fn summarise(&self) {
        let mut state = self.heap.lock();
        let Some(recorder) = state.recorder() else { return };
        let (followed, small, lost) = (recorder.followed(), recorder.small(), recorder.lost());
        let mut recorded = recorder.recorded();
        // A process that began a moment ago may still load the recorder.
        let since_ns = sys::monotonic_ns().saturating_sub(LOADING_NS);
        let loading = self.began.values().filter(|at_ns| **at_ns > since_ns).count() as u64;
        recorded.unrecorded = self.execs.saturating_sub(recorded.loaded + loading);
        let watched = self.duty.watched();
        let summary = &mut state.summary;
        let counted = followed + small;
        summary.made = (counted as f64 / watched.max(1e-6)) as u64;
        summary.small = small;
        summary.lost += lost;
        summary.unwatched = summary.made.saturating_sub(counted);
        summary.min_bytes = (self.min_bytes, self.duty.min_bytes());
        (summary.watched, summary.cost_ns) = (watched, self.cost_ns.load(Ordering::Relaxed));
        summary.recorded = Some(recorded);
    }
}

/// Cost of one record on this machine: the recorder's own code on memory of our own, less
/// the C library's time, and half on top for the traced program's larger working set.
fn price() -> u64 {
    static TOKEN: AtomicU64 = AtomicU64::new(0);
    let bytes = size_of::<Shared>();
    let Ok(mut memory) = memmap2::MmapOptions::new().len(bytes).populate().map_anon() else {
        return GUESS_NS;
    };
    let shared = memory.as_mut_ptr().cast::<Shared>();
    let real: record::Real = std::array::from_fn(|_| AtomicU64::new(libc::malloc as *const () as u64));
    let frame = record::Frame { arguments: [4096, 0, 0, 0, 0, 0], kept: [0; 6], back: 0 };
    let batch = |allocate: &dyn Fn() -> u64, tell: bool| {
        let began = Instant::now();
        for _ in 0..CALLS {
            let block = allocate();
            if tell {
                record::freed(place::FREE, block, 0);
            }
            // SAFETY: the block was just allocated.
            unsafe { libc::free(block as *mut libc::c_void) };
        }
        began.elapsed().as_nanos() as u64 / u64::from(CALLS)
    };
    let time = |allocate: &dyn Fn() -> u64, tell: bool| {
        (0..BATCHES).map(|_| batch(allocate, tell)).min().unwrap_or(GUESS_NS)
    };
    // SAFETY: plain allocation.
    let bare_ns = time(&|| std::hint::black_box(unsafe { libc::malloc(4096) }) as u64, false);
    TOKEN.store(0, Ordering::Relaxed);
    // SAFETY: zeroed memory of this size with atomic
    // fields only; the memory outlives the use below.
    if record::meet(unsafe { &*shared }, &TOKEN, 0, std::process::id()).is_none() {
        return GUESS_NS;
    }
    record::TOKEN.store((&raw const TOKEN).cast_mut(), Ordering::Release);
    record::SHARED.store(shared, Ordering::Release);
    // SAFETY: the table's functions are `malloc`, as the place says.
    let recorded_ns = time(&|| unsafe { record::followed(&frame, place::MALLOC, &real) }, true);
    record::SHARED.store(std::ptr::null_mut(), Ordering::Release);
    // A beginning and an end.
    let one_ns = recorded_ns.saturating_sub(bare_ns) / 2;
    one_ns.max(10) * 3 / 2
}
