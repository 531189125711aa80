//! The thread around the assembler, and the state shown to the controller.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::sync::mpsc;

use super::{
    plan::Recorded,
    profile_sink::{Store, Summary},
    rate_tracking::RateTracker,
    recorder::{Assembler, RecorderStats},
    sampling_clock::Periods,
};
use locality_capture::{SharedRegions, events::Event};
use locality_heap::Heap;
use locality_kernel::{lock::lock, sys};

/// What the assembler thread shows to the controller.
#[derive(Debug, Default)]
pub struct Shown {
    /// Facts so far.
    pub tally: RecorderStats,
    /// Why the profile cannot be written from now on, if writing failed.
    pub failed: Option<String>,
    /// Processes met since the controller's last look.
    pub met: Vec<u32>,
    /// For the file, taken at the next [`Event::Second`].
    pub summary: Option<Summary>,
}

/// Events that end a trace or change its course.
#[derive(Debug)]
pub enum Notable {
    /// The launched command ended with this wait status.
    CommandEnded(i32),
    /// No target is left.
    NoTargets,
    /// The capture thread cannot go on, and why.
    Failed(String),
    /// The watchdog is gone.
    Unguarded,
}

impl Notable {
    fn of(event: Event) -> Option<Self> {
        match event {
            Event::CommandEnded(status) => Some(Self::CommandEnded(status)),
            Event::NoTargets => Some(Self::NoTargets),
            Event::Failed(why) => Some(Self::Failed(why)),
            Event::Unguarded => Some(Self::Unguarded),
            _ => None,
        }
    }
}

/// Ends with the store when the queue is closed and empty.
pub type AssemblerThread = std::thread::JoinHandle<Store>;

/// How long a sample waits untouched: short distances and the thread's speed are measured
/// meanwhile, and work of ours on a processor with shared caches and units makes the thread slower.
const QUIET_NS: u64 = 5_000_000;
/// Queue length without time for this.
const MANY: usize = 64;

/// Waits until a sample has been left alone for long enough.
fn keep_quiet(event: &Event, waiting: usize) {
    let Event::Sample(sample) = event else { return };
    if waiting < MANY {
        let since_ns = sys::monotonic_ns().saturating_sub(sample.record.header.time_ns);
        std::thread::sleep(Duration::from_nanos(QUIET_NS.saturating_sub(since_ns)));
    }
}

/// Starts the thread that turns events into rows; times count from `origin_ns` of the monotonic clock.
pub fn start(
    mut queue: mpsc::Receiver<Event>,
    store: Store,
    origin_ns: u64,
    (pace, clock): (RateTracker, Periods),
    (heap, recorded): (Option<Heap>, Recorded),
    shared: SharedRegions,
    shown: Arc<Mutex<Shown>>,
) -> Result<(AssemblerThread, mpsc::UnboundedReceiver<Notable>)> {
    let (notify, notables) = mpsc::unbounded_channel();
    let thread = std::thread::Builder::new()
        .name("assemble".into())
        .spawn(move || {
            let mut assembler = Assembler::new(store, origin_ns, pace, clock, heap, recorded, shared);
            while let Some(event) = queue.blocking_recv() {
                let (mut notable, mut met) = (None, None);
                keep_quiet(&event, queue.len());
                match event {
                    Event::Second => {
                        let summary = lock(&shown).summary.take();
                        assembler.put_objects();
                        assembler.put_rates();
                        assembler.store().so_far(&summary.unwrap_or_default());
                    }
                    event if event.is_essential() => notable = Notable::of(event),
                    event => {
                        if let Event::ThreadStarted { pid, .. } = event {
                            met = Some(pid);
                        }
                        assembler.take(event);
                    }
                }
                let mut state = lock(&shown);
                state.met.extend(met);
                state.tally.clone_from(assembler.tally());
                state.failed = assembler.store().failed().map(str::to_owned);
                drop(state);
                if let Some(notable) = notable {
                    // The controller may have left its loop already.
                    let _ = notify.send(notable);
                }
            }
            assembler.into_store()
        })
        .context("cannot start the assembler thread")?;
    Ok((thread, notables))
}
