//! Callbacks of runs in which only some lines are sampled (`--sample-lines`): an access to another line
//! is counted, and leaves no event.
//!
//! Counted exactly are accesses, stores and touches of lines, by thread ([`Seen`]). Events are those of
//! sampled lines; before an event stands the number of accesses skipped ([`Kind::SKIPPED`]), so time
//! distances stay exact. Calls and returns always have an event, because contexts follow from them.
//!
//! An access of several lines is cut to the sampled ones. Pieces of one operand are joined as in
//! [`crate::recorder`], but with the piece before, sampled or not: an access of a line is one touch.

use std::{
    ffi::{c_uint, c_void},
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, Release},
    },
};

use locality_reuse::{LINE_BITS, SampledLines, hash_of_line};
use locality_stream::{Event, Kind, NO_INSTRUCTION};

use crate::{
    process::Process,
    recorder::{describe, join, lane, make_room, push},
    region::{Lane, Seen},
    shape::Template,
};

/// Hashes of sampled lines are below.
static LIMIT: AtomicU64 = AtomicU64::new(0);
/// The bytes of a line.
const LINE: u64 = 1 << LINE_BITS;
/// Set in the second word of calls and returns.
const FLOW: u64 = 2 << 48;
/// The size in the second word.
const SIZE: u64 = 0xffff << 32;
/// An operand without a largest size.
const ANY: u64 = u64::MAX;

/// Gives the callbacks the sample.
pub fn start(process: &Process) {
    let lines = SampledLines::one_in(process.settings().sample_lines);
    LIMIT.store(lines.map_or(0, SampledLines::limit), Release);
}

#[inline(always)]
fn is_sampled(line: u64) -> bool {
    hash_of_line(line) < LIMIT.load(Relaxed)
}

/// Lane and counts of the vCPU's thread, which begins with its first event.
#[inline(always)]
fn thread(vcpu: c_uint) -> Option<(&'static Lane, &'static Seen)> {
    let lane = lane(vcpu)?;
    let mut seen = lane.seen.load(Relaxed);
    if seen == 0 {
        make_room(vcpu, lane);
        seen = lane.seen.load(Relaxed);
        if seen == 0 {
            return None;
        }
    }
    // SAFETY: the record of the lane's thread, in a mapping that stays as long as the process.
    Some((lane, unsafe { &*(seen as *const Seen) }))
}

#[inline(always)]
fn add(counter: &AtomicU64, number: u64) {
    // Only the thread itself counts.
    counter.store(counter.load(Relaxed).wrapping_add(number), Relaxed);
}

#[inline(always)]
fn count(seen: &Seen, what: u64) {
    add(if what >> 48 & 1 == 0 { &seen.loads } else { &seen.stores }, 1);
}

/// An access of known size and direction, no call or return; `what` is the event's second word.
pub unsafe extern "C" fn on_access(vcpu: c_uint, _: u32, address: u64, what: *mut c_void) {
    access(vcpu, address, what as u64, false);
}

/// A call or a return; `what` is the event's second word.
pub unsafe extern "C" fn on_flow(vcpu: c_uint, _: u32, address: u64, what: *mut c_void) {
    access(vcpu, address, what as u64, true);
}

/// An access described by QEMU; the word is a [`Template`].
pub unsafe extern "C" fn on_mixed(vcpu: c_uint, info: u32, address: u64, template: *mut c_void) {
    let template = Template(template as u64);
    let (loads, stores, size) = describe(info);
    for is_store in [false, true] {
        if (is_store && stores) || (!is_store && loads) {
            let what = template.what(is_store, size);
            access(vcpu, address, what, what & FLOW != 0);
        }
    }
}

/// A call or return by an instruction whose accesses are not asked for; the word is a [`Template`].
pub unsafe extern "C" fn on_flow_only(vcpu: c_uint, info: u32, address: u64, template: *mut c_void) {
    let template = Template(template as u64);
    let (loads, stores, size) = describe(info);
    for is_store in [false, true] {
        let what = template.what(is_store, size);
        if what & FLOW != 0 && ((is_store && stores) || (!is_store && loads)) {
            push(vcpu, address, flow_alone(what));
        }
    }
}

/// The second word of a call or a return without its access.
fn flow_alone(what: u64) -> u64 {
    let kind = if what >> 48 & 1 == 0 { Kind::RETURNED } else { Kind::CALLED };
    what & 0xffff_ffff | u64::from(kind.0) << 48
}

#[inline(always)]
fn access(vcpu: c_uint, address: u64, what: u64, is_flow: bool) {
    let Some((_, seen)) = thread(vcpu) else { return };
    count(seen, what);
    let size = (what & SIZE) >> 32;
    if (address & (LINE - 1)) + size > LINE {
        return straddle(vcpu, seen, address, what, is_flow);
    }
    if is_sampled(address >> LINE_BITS) {
        record(vcpu, seen, address, what);
    } else if is_flow {
        push(vcpu, address, flow_alone(what));
    }
}

/// An access of several lines: an event for each stretch of sampled ones.
#[cold]
#[inline(never)]
fn straddle(vcpu: c_uint, seen: &Seen, address: u64, what: u64, is_flow: bool) {
    let end = address.saturating_add((what & SIZE) >> 32);
    add(&seen.further, ((end - 1) >> LINE_BITS) - (address >> LINE_BITS));
    // A part of the access would give a wrong stack pointer.
    parts(address, end, |from, to| record(vcpu, seen, from, what & !(SIZE | FLOW) | (to - from) << 32));
    if is_flow {
        push(vcpu, address, flow_alone(what));
    }
}

/// Stretches of sampled lines from `address` to `end`.
fn parts(address: u64, end: u64, mut take: impl FnMut(u64, u64)) {
    let mut start = None;
    let mut from = address;
    while from < end {
        let to = ((from | (LINE - 1)).saturating_add(1)).min(end);
        if is_sampled(from >> LINE_BITS) {
            start.get_or_insert(from);
        } else if let Some(start) = start.take() {
            take(start, from);
        }
        from = to;
    }
    if let Some(start) = start {
        take(start, end);
    }
}

/// Puts an access into the stream, after the number of accesses skipped.
#[inline(never)]
fn record(vcpu: c_uint, seen: &Seen, address: u64, what: u64) {
    let now = seen.loads.load(Relaxed) + seen.stores.load(Relaxed);
    skip(vcpu, seen, now - 1);
    push(vcpu, address, what);
    seen.told.store(now, Relaxed);
}

/// Reports the accesses skipped up to `now`.
fn skip(vcpu: c_uint, seen: &Seen, now: u64) {
    let told = seen.told.load(Relaxed);
    if now > told {
        let event = Event::new(Kind::SKIPPED, NO_INSTRUCTION, now - told);
        push(vcpu, event.value, event.what());
        seen.told.store(now, Relaxed);
    }
}

/// The vCPU's thread ends: the accesses since the last event are reported.
pub fn finish(vcpu: c_uint) {
    let Some(lane) = lane(vcpu).filter(|lane| lane.seen.load(Relaxed) != 0) else { return };
    // SAFETY: as in `thread`.
    let seen = unsafe { &*(lane.seen.load(Relaxed) as *const Seen) };
    skip(vcpu, seen, seen.loads.load(Relaxed) + seen.stores.load(Relaxed));
}

/// A piece of an operand; the word is a [`Template`].
pub unsafe extern "C" fn on_piece(vcpu: c_uint, info: u32, address: u64, template: *mut c_void) {
    let template = Template(template as u64);
    let (loads, stores, size) = describe(info);
    for is_store in [false, true] {
        if (is_store && stores) || (!is_store && loads) {
            piece(vcpu, address, template.what(is_store, size), size, template.most());
        }
    }
}

fn piece(vcpu: c_uint, address: u64, what: u64, size: u64, most: u64) {
    let Some((_, seen)) = thread(vcpu) else { return };
    let joined = seen.piece_size.load(Relaxed) + size;
    let continues =
        seen.piece.load(Relaxed) == what & !SIZE && seen.piece_end.load(Relaxed) == address && joined <= most;
    let end = address.saturating_add(size);
    let mut lines = (end.saturating_sub(1) >> LINE_BITS) - (address >> LINE_BITS);
    if continues {
        seen.piece_size.store(joined, Relaxed);
        lines += u64::from(address & (LINE - 1) == 0);
    } else {
        count(seen, what);
        seen.piece.store(what & !SIZE, Relaxed);
        seen.piece_size.store(size, Relaxed);
    }
    seen.piece_end.store(end, Relaxed);
    if lines > 0 {
        add(&seen.further, lines);
    }
    parts(address, end, |from, to| {
        let what = what & !SIZE | (to - from) << 32;
        if !(continues && join(vcpu, from, to - from, what, ANY)) {
            record(vcpu, seen, from, what);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_is_cut_to_its_sampled_lines() {
        LIMIT.store(1 << 63, Relaxed);
        for address in [0x1000, 0x103c, 0x1fff, 0x7fff_0000_0001] {
            for size in [1, 8, 65, 512] {
                let mut found = Vec::new();
                parts(address, address + size, |from, to| found.extend(from..to));
                let expected: Vec<u64> =
                    (address..address + size).filter(|byte| is_sampled(byte >> LINE_BITS)).collect();
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn a_call_alone_names_its_instruction() {
        let what = Event::access(Kind::CALL, 77, 0, 8).what();
        let event = Event::from_words(0x1000, flow_alone(what));
        assert_eq!((event.kind, event.index, event.size), (Kind::CALLED, 77, 0));
        let what = Event::access(Kind::RETURN, 5, 0, 8).what();
        assert_eq!(Event::from_words(0, flow_alone(what)).kind, Kind::RETURNED);
    }
}
