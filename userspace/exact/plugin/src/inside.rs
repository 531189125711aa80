//! Events within whole calls of functions (`--inclusive`), for analyses that know no regions: reuse,
//! caches, sets, and the mix of instructions.
//!
//! The state lies in the region, so that the parent goes on with what was left in buffers. What an
//! analysis must know wherever the thread is (its id, placements of objects) is always handed on.

use std::sync::atomic::{Ordering::Relaxed, Ordering::Release};

use locality_dataflow::Regions;
use locality_stream::{Event, Kind, Plain, Span};

use crate::{
    functions::BEGINS_ANY,
    region::{BLOCKS, Extra, Region},
};

/// The state.
#[derive(Clone, Copy)]
#[repr(C)]
struct State {
    regions: Regions,
    /// Events looked at.
    consumed: u64,
    /// Executions of blocks within calls.
    counts: Span<u64>,
}
// SAFETY: integers without padding.
unsafe impl Plain for State {}

/// Makes the state of a thread; `None` without room.
pub fn begin(region: &Region, extra: &Extra) -> Option<()> {
    let span = Span::<State>::allocate(region, 1)?;
    let state =
        State { regions: Regions::new(region)?, consumed: 0, counts: Span::allocate(region, BLOCKS)? };
    // SAFETY: fresh room for one state.
    unsafe { span.get(region)?.as_ptr().write(state) };
    extra.inside.store(span.offset(), Release);
    Some(())
}

/// The state, if a sound one exists.
#[expect(clippy::mut_from_ref, reason = "the state lies in the region, and one thread has it")]
fn state<'a>(region: &'a Region, extra: &Extra) -> Option<&'a mut State> {
    let offset = extra.inside.load(Relaxed);
    let place = (offset != 0).then(|| Span::<State>::from_parts(offset, 1).get(region))??;
    // SAFETY: within the region; only the thread that works on the events uses it, or the parent.
    let state = unsafe { &mut *place.as_ptr() };
    let sound = state.regions.is_whole(region)
        && state.counts.count() == BLOCKS
        && state.counts.get(region).is_some();
    sound.then_some(state)
}

/// Examined events; `None` if all are handed on.
pub fn consumed(region: &Region, extra: &Extra) -> Option<u64> {
    state(region, extra).map(|state| state.consumed)
}

/// Counts of block executions within calls; `None` if all count.
pub fn counts(region: &Region, extra: &Extra) -> Option<u64> {
    state(region, extra).map(|state| state.counts.offset())
}

/// The events that analyses are shown.
pub fn select(region: &Region, extra: &Extra, events: &[Event]) -> Option<Vec<Event>> {
    let state = state(region, extra)?;
    let code = region.code();
    let counts = state.counts.get(region)?;
    let mut chosen = Vec::new();
    for event in events {
        let mut is_chosen = state.regions.is_inside();
        match event.kind {
            Kind::BLOCK => {
                let first =
                    code.blocks.get(event.index as usize).and_then(|block| code.instruction(block.first));
                if first.is_some_and(|first| first.address & BEGINS_ANY != 0) {
                    state.regions.enter(region);
                }
                is_chosen = state.regions.is_inside();
                if is_chosen && (event.index as usize) < BLOCKS {
                    // SAFETY: below the count of the table, which this thread alone writes.
                    unsafe { *counts.as_ptr().add(event.index as usize) += 1 };
                }
            }
            Kind::CALL => is_chosen = !state.regions.call(region, event.value) && is_chosen,
            Kind::RETURN => {
                // The return itself belongs to the call.
                state.regions.leave(region, event.value);
            }
            Kind::THREAD | Kind::THREAD_END | Kind::PLACED | Kind::PHASE | Kind::LOST => is_chosen = true,
            _ => {}
        }
        if is_chosen {
            chosen.push(*event);
        }
    }
    state.consumed += events.len() as u64;
    Some(chosen)
}
