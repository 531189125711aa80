//! Optional counts beside reuse: stacks within sets (`--sets`), and
//! the order of touches for optimal replacement (`--optimal`); and for
//! the parent, the end of a simulation of caches and of parallelism.
//!
//! Works buffer by buffer, after the engine: if the process is killed
//! meanwhile, the buffer is counted in part and the parent reports the fact.
//! Not here: the distances under optimal replacement, computed by the parent.

use std::sync::atomic::Ordering::{Relaxed, Release};

use locality_cachesim::{CacheSim, OpenError, Totals};
use locality_dataflow::{
    Engine as Dataflow, NestEngine, NestSummary, Shared, Sharing, Summary, TaskEngine, TaskSummary,
};
use locality_reuse::SetStacks;
use locality_stream::{Analysis as _, Code, Event, Span};

use crate::{
    analyses::{TASK_MARKS, marks},
    functions::CHOSEN,
    process::Process,
    region::{Extra, Region, TOUCHES},
};

/// Greatest associativity examined, in ways.
pub const WAYS: u64 = 32;

/// The granule of sets and optimal replacement: 64 bytes
/// if requested, otherwise the largest. log2 of bytes.
pub fn granule(granules: &[u8]) -> u8 {
    if granules.contains(&6) { 6 } else { granules.iter().copied().max().unwrap_or(6) }
}

/// Makes room for the requested counts.
pub fn begin(process: &Process, extra: &Extra) -> Result<(), &'static str> {
    const FULL: &str = "the memory for analyses is used up";
    let (settings, region) = (process.settings(), process.region());
    if settings.sets > 0 {
        let bytes = 1 << granule(&settings.granules).min(63);
        let sets = SetStacks::create(region, bytes, settings.sets.into(), WAYS).map_err(|_| FULL)?;
        extra.sets.store(sets.state(), Release);
    }
    if settings.optimal {
        let touches = Span::<u64>::allocate(region, TOUCHES).ok_or(FULL)?;
        extra.touches.store(touches.offset(), Release);
    }
    Ok(())
}

/// Takes the events of a buffer.
pub fn observe(process: &Process, extra: &Extra, events: &[Event]) {
    let settings = process.settings();
    if settings.sets == 0 && !settings.optimal {
        return;
    }
    extra.busy.store(1, Release);
    take(process.region(), extra, events);
    extra.busy.store(0, Release);
}

/// Counting by the parent, of the events left in a buffer.
pub fn take(region: &Region, extra: &Extra, events: &[Event]) {
    let header = region.header();
    let restricted = header.restricted.load(Relaxed) != 0;
    let bits = header.extra_granule.load(Relaxed).min(63);
    let code = region.code();
    let chosen = |event: &Event| {
        let record = code.instruction(event.index);
        event.kind.is_access() && (!restricted || record.is_some_and(|record| record.address & CHOSEN != 0))
    };
    let events: Vec<Event> = events.iter().filter(|event| chosen(event)).copied().collect();
    if let Some(mut sets) = SetStacks::open(region, extra.sets.load(Relaxed)) {
        // Cannot be full: the tables do not grow.
        let _full = sets.observe(&events, &Code::default());
    }
    keep(region, extra, bits, &events);
}

fn keep(region: &Region, extra: &Extra, bits: u32, events: &[Event]) {
    let offset = extra.touches.load(Relaxed);
    let span = Span::<u64>::from_parts(offset, TOUCHES);
    let Some(first) = (if offset == 0 { None } else { span.get(region) }) else { return };
    let mut count = (extra.count.load(Relaxed) as usize).min(TOUCHES);
    // SAFETY: below `count` numbers are written, and only
    // the thread working on the events writes the numbers.
    let mut last = count.checked_sub(1).map(|at| unsafe { first.add(at).read() });
    for event in events {
        let end = event.value.saturating_add(u64::from(event.size).max(1) - 1) >> bits;
        for granule in event.value >> bits..=end {
            if extra.lost.load(Relaxed) > 0 || count == TOUCHES {
                extra.lost.fetch_add(1, Relaxed);
            } else if last == Some(granule) {
                extra.repeats.fetch_add(1, Relaxed);
            } else {
                // SAFETY: `count` is below the span's length.
                unsafe { first.add(count).write(granule) };
                (count, last) = (count + 1, Some(granule));
            }
        }
    }
    extra.count.store(count as u64, Release);
}

/// The results of a simulation of caches, finished with the events left in
/// the buffers of the given threads (indices of thread records), supplied
/// by `rest`; `None` without a simulation. The process must be gone.
pub fn simulated(
    region: &Region,
    extra: &Extra,
    threads: impl IntoIterator<Item = usize>,
    rest: impl Fn(usize, u64) -> Vec<Event>,
) -> Option<Result<Totals, OpenError>> {
    let state = Some(extra.cache.load(Relaxed)).filter(|state| *state != 0)?;
    let code = region.code();
    let finish = || {
        let mut simulation = CacheSim::open(region, state)?;
        simulation.show(region.placed());
        let consumed = simulation.consumed();
        for thread in threads {
            // A full arena has been noted in the state.
            let _full = simulation.observe(&rest(thread, consumed), &code);
        }
        Ok(simulation.finish(&code))
    };
    Some(finish())
}

/// Parallelism of a thread and of each function distinguished, finished with the events
/// left in the thread's buffers (index of the thread's record). The process must be gone.
///
/// # Errors
/// A state damaged by the program.
pub fn parallelism(
    region: &Region,
    extra: &Extra,
    thread: usize,
) -> Result<Vec<Summary>, locality_dataflow::OpenError> {
    let code = region.code();
    let places = extra.parallelism.iter().map(|place| place.load(Relaxed)).enumerate();
    let finish = |(number, state): (usize, u64)| {
        let mut engine = Dataflow::open(region, state, marks(number))?;
        // A full arena has been noted in the state.
        let _full = engine.observe(&region.unseen(thread, engine.consumed()), &code);
        Ok(engine.finish())
    };
    places.filter(|(_, state)| *state != 0).map(finish).collect()
}

/// Tasks of a thread, finished with the events left in buffers, supplied by `rest`; `None` if not
/// measured. The process must be gone.
///
/// # Errors
/// A state damaged by the program.
pub fn tasks(
    region: &Region,
    extra: &Extra,
    rest: impl Fn(u64) -> Vec<Event>,
) -> Result<Option<TaskSummary>, locality_dataflow::OpenError> {
    let Some(state) = Some(extra.tasks.load(Relaxed)).filter(|state| *state != 0) else { return Ok(None) };
    let mut engine = TaskEngine::open(region, state, TASK_MARKS)?;
    // A full arena has been noted in the state.
    let _full = engine.observe(&rest(engine.consumed()), &region.code());
    Ok(Some(engine.finish()))
}

/// Self-parallelism of a thread's calls and loops, finished with the events left in buffers, supplied by
/// `rest`; `None` if not measured. The process must be gone.
///
/// # Errors
/// A state damaged by the program.
pub fn nest(
    region: &Region,
    extra: &Extra,
    rest: impl Fn(u64) -> Vec<Event>,
) -> Result<Option<NestSummary>, locality_dataflow::OpenError> {
    let Some(state) = Some(extra.nest.load(Relaxed)).filter(|state| *state != 0) else { return Ok(None) };
    let mut engine = NestEngine::open(region, state, TASK_MARKS)?;
    // A full arena has been noted in the state.
    let _full = engine.observe(&rest(engine.consumed()), &region.code());
    Ok(Some(engine.finish()))
}

/// Bytes between threads, finished with the events left in the buffers of the given threads (indices of
/// thread records), and whether room ran out before; `None` if not counted. The process must be gone.
///
/// # Errors
/// A state damaged by the program.
pub fn sharing(
    region: &Region,
    extra: &Extra,
    threads: impl IntoIterator<Item = usize>,
) -> Result<Option<(Vec<Shared>, bool)>, locality_dataflow::OpenError> {
    let Some(state) = Some(extra.sharing.load(Relaxed)).filter(|state| *state != 0) else { return Ok(None) };
    let mut sharing = Sharing::open(region, state)?;
    let consumed = sharing.consumed();
    for thread in threads {
        // A full arena has been noted in the state.
        let _full = sharing.observe(&region.unseen(thread, consumed), &region.code());
    }
    let is_full = sharing.is_full();
    Ok(Some((sharing.finish(), is_full)))
}

/// The granules stored.
///
/// # Safety
/// The ranges must have no writer.
pub unsafe fn touches<'a>(region: &'a Region, extra: &Extra) -> &'a [u64] {
    let offset = extra.touches.load(Relaxed);
    let count = (extra.count.load(Relaxed) as usize).min(TOUCHES);
    if offset == 0 {
        return &[];
    }
    // SAFETY: the caller excludes writers.
    unsafe { Span::<u64>::from_parts(offset, count).slice(region) }.unwrap_or_default()
}
