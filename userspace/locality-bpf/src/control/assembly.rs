//! The thread around the assembler, and what it shows to the controller.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context as _, Result};
use tokio::sync::mpsc;

use super::{
    assemble::{Assembler, Tally},
    pace::Pace,
    store::{Store, Summary},
};
use crate::{capture::event::Event, heap::Heap};

/// What the assembler thread shows to the controller.
#[derive(Debug, Default)]
pub struct Shown {
    /// What passed so far.
    pub tally: Tally,
    /// Why the profile cannot be written any more, if so.
    pub failed: Option<String>,
    /// Processes that were met.
    pub pids: HashSet<u32>,
    /// For the file, taken at the next [`Event::Second`].
    pub summary: Option<Summary>,
}

/// What ends a trace or changes its course, as the assembler saw it.
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

/// Locks what threads share; a panic of the other side does not matter for plain values.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the thread that turns events into rows; times count from `origin_ns` of the monotonic clock.
pub fn start(
    mut queue: mpsc::Receiver<Event>,
    store: Store,
    origin_ns: u64,
    pace: Pace,
    heap: Option<Heap>,
    shown: Arc<Mutex<Shown>>,
) -> Result<(AssemblerThread, mpsc::UnboundedReceiver<Notable>)> {
    let (notify, notables) = mpsc::unbounded_channel();
    let thread = std::thread::Builder::new()
        .name("assemble".into())
        .spawn(move || {
            let mut assembler = Assembler::new(store, origin_ns, pace, heap);
            while let Some(event) = queue.blocking_recv() {
                let (mut notable, mut met) = (None, None);
                match event {
                    Event::Second => {
                        let summary = lock(&shown).summary.take();
                        assembler.put_objects();
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
                state.pids.extend(met);
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
