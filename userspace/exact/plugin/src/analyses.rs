//! Analyses of events, for each thread or for the whole process.
//!
//! Analyses keep state in the region; here is only the access to the state, by lane.

use std::{
    ffi::c_uint,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed, Ordering::Release},
    },
};

use locality_cachesim::CacheSim;
use locality_dataflow::{Engine as Dataflow, Marks, NestEngine, Sharing, TaskEngine};
use locality_reuse::{Config, Engine, What};
use locality_stream::{Analysis as _, ArenaFull, Code, Event, Span};

use crate::{
    extra,
    functions::{BEGINS, BEGINS_ANY, CHOSEN, IGNORED, MARKS},
    inside,
    process::Process,
    region::{BLOCKS, Extra, LANES, Lane, Region, ThreadRecord},
    settings::{Mode, Settings},
};

/// Requested analyses of a stream.
struct Exact {
    reuse: Option<Engine<'static, Region>>,
    cache: Option<CacheSim<'static, Region>>,
    parallelism: Vec<Dataflow<'static, Region>>,
    tasks: Option<TaskEngine<'static, Region>>,
    nest: Option<NestEngine<'static, Region>>,
    sharing: Option<Sharing<'static, Region>>,
}

/// The marks of an engine of parallelism: the first is of the whole thread, the rest of functions.
pub fn marks(number: usize) -> Marks {
    Marks { all: MARKS, ignored: IGNORED, begins: number.checked_sub(1).map_or(0, |name| BEGINS << name) }
}

/// The marks of the engines of tasks and of regions, which begin anew with each function distinguished.
pub const TASK_MARKS: Marks = Marks { all: MARKS, ignored: IGNORED, begins: BEGINS_ANY };

/// The analyses of each lane's thread, lent to the worker.
static ENGINES: [AtomicPtr<Exact>; LANES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; LANES];
/// The analyses of a run in one global order. Locked,
/// since threads without a turn may come simultaneously.
static WHOLE: Mutex<Option<Exact>> = Mutex::new(None);

const FULL: &str = "the memory for analyses is used up";

/// Configuration of the engines.
fn config(settings: &Settings) -> Config {
    let granularities: Vec<u64> = settings.granules.iter().map(|bits| 1 << bits.min(&63)).collect();
    Config {
        what: if settings.fetches { What::Instructions } else { What::Data },
        pairs: granularities.clone(),
        granularities,
        sums: settings.sums,
        // Chosen instructions are marked in the recorded address.
        // Of sampled lines the stream has chosen accesses only.
        functions: std::iter::repeat_n(
            CHOSEN..u64::MAX,
            (settings.is_restricted() && settings.sample_lines == 0).into(),
        )
        .collect(),
        sample_lines: settings.sample_lines,
        ..Config::default()
    }
}

impl Exact {
    /// Makes the analyses, and publishes the places of the states.
    fn create(process: &'static Process, reuse: &AtomicU64, extra: &Extra) -> Result<Self, &'static str> {
        let (region, settings) = (process.region(), process.settings());
        let mut exact = Self {
            reuse: None,
            cache: None,
            parallelism: Vec::new(),
            tasks: None,
            nest: None,
            sharing: None,
        };
        if settings.reuse {
            let engine = Engine::create(region, &config(settings)).map_err(|_| FULL)?;
            reuse.store(engine.state(), Release);
            exact.reuse = Some(engine);
        }
        if let Some(config) = &settings.cache {
            // The configuration was checked when read.
            let simulation = CacheSim::create(region, config).map_err(|_| FULL)?;
            extra.cache.store(simulation.state(), Release);
            exact.cache = Some(simulation);
        }
        if let Some(setup) = &settings.parallelism {
            for (number, place) in extra.parallelism.iter().enumerate().take(1 + settings.inclusive.len()) {
                // A single function stands for the whole.
                if number == 0 && settings.inclusive.len() == 1 {
                    continue;
                }
                let engine = Dataflow::create(region, setup, marks(number)).map_err(|_| FULL)?;
                place.store(engine.state(), Release);
                exact.parallelism.push(engine);
            }
        }
        if let Some(setup) = settings.tasks {
            let engine = TaskEngine::create(region, setup, TASK_MARKS).map_err(|_| FULL)?;
            extra.tasks.store(engine.state(), Release);
            exact.tasks = Some(engine);
        }
        if let Some(setup) = settings.nest {
            let engine = NestEngine::create(region, setup, TASK_MARKS).map_err(|_| FULL)?;
            extra.nest.store(engine.state(), Release);
            exact.nest = Some(engine);
        }
        if settings.sharing {
            let sharing = Sharing::create(region).map_err(|_| FULL)?;
            extra.sharing.store(sharing.state(), Release);
            exact.sharing = Some(sharing);
        }
        if !settings.inclusive.is_empty() {
            inside::begin(region, extra).ok_or(FULL)?;
        }
        extra::begin(process, extra)?;
        Ok(exact)
    }

    fn observe(
        &mut self,
        process: &'static Process,
        extra: &Extra,
        events: &[Event],
    ) -> Result<(), ArenaFull> {
        let code = code(process.region());
        for engine in &mut self.parallelism {
            engine.observe(events, &code)?;
        }
        if let Some(sharing) = &mut self.sharing {
            // The state says that room ran out; the other analyses go on.
            if sharing.observe(events, &code).is_err() {
                self.sharing = None;
            }
        }
        let chosen = inside::select(process.region(), extra, events);
        let events = chosen.as_deref().unwrap_or(events);
        if let Some(tasks) = &mut self.tasks {
            tasks.observe(events, &code)?;
        }
        if let Some(nest) = &mut self.nest {
            nest.observe(events, &code)?;
        }
        if let Some(cache) = &mut self.cache {
            cache.show(process.region().placed());
            cache.observe(events, &code)?;
        }
        if let Some(reuse) = &mut self.reuse {
            reuse.observe(events, &code)?;
        }
        extra::observe(process, extra, events);
        Ok(())
    }

    /// Events taken, an equal number in each analysis.
    fn consumed(&self, process: &'static Process, extra: &Extra) -> u64 {
        if let Some(consumed) = inside::consumed(process.region(), extra) {
            return consumed;
        }
        let parallelism = || self.parallelism.first().map_or(0, Dataflow::consumed);
        let cache = || self.cache.as_ref().map_or_else(parallelism, CacheSim::consumed);
        self.reuse.as_ref().map_or_else(cache, Engine::consumed)
    }
}

/// Makes room for a thread's counts and analyses.
pub fn begin(
    process: &'static Process,
    vcpu: c_uint,
    lane: &Lane,
    record: &ThreadRecord,
) -> Result<(), &'static str> {
    let region = process.region();
    let counts = Span::<u64>::allocate(region, BLOCKS).ok_or(FULL)?;
    record.counts.store(counts.offset(), Relaxed);
    lane.counts.store(counts.get(region).ok_or(FULL)?.as_ptr() as u64, Release);
    lane.base.store(0, Relaxed);
    lane.filled.store(0, Relaxed);
    if process.settings().mode != Mode::Full {
        return Ok(());
    }
    if process.settings().one_order {
        let mut whole = WHOLE.lock().unwrap_or_else(PoisonError::into_inner);
        if whole.is_none() {
            let header = region.header();
            *whole = Some(Exact::create(process, &header.whole, &header.extra)?);
        }
        return Ok(());
    }
    let engine = Exact::create(process, &record.analyses, &record.extra)?;
    if let Some(slot) = ENGINES.get(vcpu as usize) {
        let old = slot.swap(Box::into_raw(Box::new(engine)), Release);
        if !old.is_null() {
            // SAFETY: made by `Box::into_raw`; owned by the lane's ended thread alone.
            drop(unsafe { Box::from_raw(old) });
        }
    }
    Ok(())
}

/// Shows the analyses the next events. Returns the number of events seen.
pub fn observe(
    process: &'static Process,
    vcpu: c_uint,
    record: &ThreadRecord,
    events: &[Event],
) -> Result<u64, &'static str> {
    if process.settings().mode != Mode::Full {
        return Ok(0);
    }
    if process.settings().one_order {
        let mut whole = WHOLE.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(engine) = whole.as_mut() else { return Ok(0) };
        let extra = &process.region().header().extra;
        engine.observe(process, extra, events).map_err(|_| FULL)?;
        return Ok(engine.consumed(process, extra));
    }
    let engine = ENGINES.get(vcpu as usize).map_or(std::ptr::null_mut(), |slot| slot.load(Relaxed));
    // SAFETY: made by `Box::into_raw` in `begin`, and used by the lane's
    // thread alone, or by the worker while the thread waits or records.
    let Some(engine) = (unsafe { engine.as_mut() }) else { return Ok(0) };
    engine.observe(process, &record.extra, events).map_err(|_| FULL)?;
    Ok(engine.consumed(process, &record.extra))
}

/// Events seen by the whole process' analyses.
pub fn seen_by_whole(process: &'static Process) -> u64 {
    let whole = WHOLE.lock().unwrap_or_else(PoisonError::into_inner);
    whole.as_ref().map_or(0, |whole| whole.consumed(process, &process.region().header().extra))
}

/// The code translated up to now.
pub fn code(region: &Region) -> Code<'_> {
    region.code()
}

/// In a forked child: the engines were the parent's. The
/// handles are left alone, since possibly half changed.
pub fn reset() {
    for slot in &ENGINES {
        if !slot.load(Relaxed).is_null() {
            slot.store(std::ptr::null_mut(), Relaxed);
        }
    }
    // A lock of another thread of the parent stays locked in
    // the child: recording in one order would wait for ever.
    match WHOLE.try_lock() {
        Ok(mut whole) => std::mem::forget(whole.take()),
        Err(std::sync::TryLockError::Poisoned(held)) => std::mem::forget(held.into_inner().take()),
        Err(std::sync::TryLockError::WouldBlock) => {
            crate::process::stop("forked while another thread was analysed")
        }
    }
}
