//! Records of a call: names of sites, events, stacks.
//!
//! An event takes a place in the ring by one atomic exchange, and is read once the sequence number
//! is written, so a signal may interrupt a thread at every point without leaving state. The order
//! of the ring is the order of the blocks: an end is written before the allocator can give the
//! address away again, a beginning before the block could be ended.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::layout::{
    Ends, Front, OFF, PROCESSES, Process, SITE_PROBES, SITES, STACK_BYTES, STRIPES, Shared, Stack, Stripe,
    kind, state,
};
use crate::resolve::{FUNCTIONS, place};
use crate::{stack, sys};

/// Addresses of the real functions; by [`place`].
pub type Real = [AtomicU64; FUNCTIONS];

/// Counters used while recording is off; never read.
pub static NOWHERE: Front = Front {
    min_bytes: AtomicU64::new(OFF),
    free_min: AtomicU64::new(OFF),
    reserved: [0; 6],
    small: [const { Stripe(AtomicU64::new(0)) }; STRIPES],
};

/// The shared memory; null while recording is off.
pub static SHARED: AtomicPtr<Shared> = AtomicPtr::new(core::ptr::null_mut());
/// A separate page with the process' number plus 1; a copy made by fork finds 0.
pub static TOKEN: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
/// The number stored on the wiped page: in a copy, the parent's.
pub static LAST: AtomicU64 = AtomicU64::new(0);
/// The program's text: words of the stack that point into the text name a site.
pub static TEXT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Kinds of functions, as in `locality_common::heap::function`; by [`place`].
const KINDS: [u8; FUNCTIONS] = [1, 2, 3, 4, 6, 5, 5, 1, 1, 7, 7, 8, 9, 0, 0, 0, 0, 0, 0, 0, 0];
/// `locality_common::heap::event`.
const ALLOCATED: u8 = 1;
const FREED: u8 = 2;
const MOVED: u8 = 3;

/// The registers of a call, in the assembly's order on the stack.
#[repr(C)]
pub struct Frame {
    /// rdi, rsi, rdx, rcx, r8, r9.
    pub arguments: [u64; 6],
    /// rbx, r12, r13, r14, r15, rbp.
    pub kept: [u64; 6],
    /// The return address; the caller's stack follows.
    pub back: u64,
}

/// Bits of the stack pointer in a site's name, as in `locality_common::heap::site`.
const DEPTH_MASK: u64 = 0xffff;
/// Words of the stack to examine.
const SITE_WORDS: u64 = 64;

/// One step of a multiplicative hash with a rotation.
const fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The caller, and the place of the call.
struct Call<'a> {
    shared: &'a Shared,
    process: u32,
    called: u64,
}

impl<'a> Call<'a> {
    /// `None` while recording is off, and in processes beyond [`PROCESSES`].
    fn begin() -> Option<Self> {
        // SAFETY: null, or mapped until the process ends.
        let shared = unsafe { SHARED.load(Ordering::Acquire).as_ref() }?;
        Some(Self { shared, process: process(shared)?, called: sys::time() })
    }

    /// Names the site of a call with the return address
    /// in `frame`, and copies the stack of a new site.
    fn site(&self, frame: &Frame, which: usize, bytes: u64, real: u64) -> u64 {
        let rsp = &raw const frame.back as u64;
        let end = stack::end(rsp);
        // SAFETY: mapped up to `end`, which is not below the end of this page.
        let word = |at: u64| unsafe { (at as *const u64).read_volatile() };
        let mut name = mix(mix(u64::from(self.process) | 1 << 32, rsp & DEPTH_MASK), frame.back);
        let (start, length) = (TEXT[0].load(Ordering::Relaxed), TEXT[1].load(Ordering::Relaxed));
        let last = end.min(rsp + 8 + SITE_WORDS * 8);
        let mut at = rsp + 8;
        while at + 8 <= last {
            let word = word(at);
            if word.wrapping_sub(start) < length {
                name = mix(name, word);
            }
            at += 8;
        }
        // 0 is a free place.
        let name = name | 1;
        if !is_new(&self.shared.sites, name) {
            return name;
        }
        let Some(position) = take(&self.shared.stack_ends, self.shared.stacks.len()) else {
            // The next call tells.
            forget(&self.shared.sites, name);
            return name;
        };
        let Some(to) = self.shared.stacks.get(position as usize % self.shared.stacks.len()) else {
            return name;
        };
        self.copy(to, frame, (rsp, end), (name, bytes, kind(ALLOCATED, kind_of(which), self.process), real));
        to.sequence.store(position + 1, Ordering::Release);
        self.shared.copied.fetch_add(1, Ordering::Relaxed);
        name
    }

    fn copy(&self, to: &Stack, frame: &Frame, from: (u64, u64), of: (u64, u64, u64, u64)) {
        let ((rsp, end), (name, bytes, kind, real)) = (from, of);
        let put = |to: &AtomicU64, value: u64| to.store(value, Ordering::Relaxed);
        put(&to.at, self.called);
        put(&to.site, name);
        put(&to.bytes, bytes);
        put(&to.kind, kind);
        let registers = frame.kept.iter().chain([&rsp, &real]);
        to.registers.iter().zip(registers).for_each(|(to, value)| put(to, *value));
        let copied = (end - rsp).min(STACK_BYTES as u64) & !7;
        let mut at = rsp;
        for word in to.words.iter().take(copied as usize / 8) {
            // SAFETY: mapped up to `end`.
            put(word, unsafe { (at as *const u64).read_volatile() });
            at += 8;
        }
        put(&to.copied, copied);
    }

    fn event(&self, what: (u8, u8), at: u64, block: (u64, u64), old: u64, site: u64) {
        let ends = &self.shared.event_ends;
        let Some(position) = take(ends, self.shared.events.len()) else { return };
        let Some(to) = self.shared.events.get(position as usize % self.shared.events.len()) else { return };
        let put = |to: &AtomicU64, value: u64| to.store(value, Ordering::Relaxed);
        put(&to.at, at);
        put(&to.address, block.0);
        put(&to.bytes, block.1);
        put(&to.old, old);
        put(&to.site, site);
        put(&to.called, self.called);
        put(&to.kind, kind(what.0, what.1, self.process));
        to.sequence.store(position + 1, Ordering::Release);
    }
}

/// Takes a place in a ring of `places`, and counts records without a place.
fn take(ends: &Ends, places: usize) -> Option<u64> {
    let mut head = ends.head.load(Ordering::Relaxed);
    loop {
        if head.wrapping_sub(ends.tail.load(Ordering::Acquire)) >= places as u64 {
            ends.lost.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        match ends.head.compare_exchange_weak(
            head,
            head.wrapping_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        ) {
            Ok(_) => return Some(head),
            Err(now) => head = now,
        }
    }
}

/// The places of a site's name.
fn places(sites: &[AtomicU64; SITES], name: u64) -> impl Iterator<Item = &AtomicU64> {
    let first = (name >> 1) as usize;
    (0..SITE_PROBES).filter_map(move |at| sites.get((first + at) % SITES))
}

/// Whether a site's name was unknown. Adds an unknown
/// name, in the place of an old name if no place is free.
fn is_new(sites: &[AtomicU64; SITES], name: u64) -> bool {
    for place in places(sites, name) {
        let known = place.load(Ordering::Relaxed);
        if known == name {
            return false;
        }
        if known == 0 {
            match place.compare_exchange(0, name, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                // Another thread reported it.
                Err(now) if now == name => return false,
                Err(_) => {}
            }
        }
    }
    if let Some(place) = places(sites, name).next() {
        place.store(name, Ordering::Relaxed);
    }
    true
}

/// Forgets a site's name, so the site's next call reports the stack again.
pub fn forget(sites: &[AtomicU64; SITES], name: u64) {
    for place in places(sites, name) {
        // Another name there stays.
        let _ = place.compare_exchange(name, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The process's number; a copy by fork takes a number here.
fn process(shared: &Shared) -> Option<u32> {
    // SAFETY: set before the shared memory is, and never unmapped.
    let token = unsafe { TOKEN.load(Ordering::Relaxed).as_ref() }?;
    let number = match token.load(Ordering::Relaxed) {
        0 => meet(shared, token, LAST.load(Ordering::Relaxed) as u32, 0)?,
        known => known - 1,
    };
    ((number as usize) < PROCESSES).then_some(number as u32)
}

/// Takes and reports a number for this process.
pub fn meet(shared: &Shared, token: &AtomicU64, parent: u32, pid: u32) -> Option<u64> {
    let number = shared.processes_met.fetch_add(1, Ordering::Relaxed);
    if let Err(known) = token.compare_exchange(0, number + 1, Ordering::Relaxed, Ordering::Relaxed) {
        // Another thread of the copy was first.
        return Some(known - 1);
    }
    LAST.store(number, Ordering::Relaxed);
    let process: &Process = shared.processes.get(number as usize)?;
    process.pid.store(pid, Ordering::Relaxed);
    process.parent.store(if pid == 0 { parent } else { number as u32 }, Ordering::Relaxed);
    process.token_at.store(&raw const *token as u64, Ordering::Relaxed);
    process.since.store(sys::time(), Ordering::Relaxed);
    process.state.store(state::RECORDED, Ordering::Release);
    Some(number)
}

fn kind_of(which: usize) -> u8 {
    KINDS.get(which).copied().unwrap_or(0)
}

/// The requested size, and the reallocated block.
fn asked(which: usize, arguments: &[u64; 6]) -> (u64, u64) {
    let [a, b, c, ..] = *arguments;
    match which {
        place::CALLOC => (a.wrapping_mul(b), 0),
        place::REALLOC => (b, a),
        place::REALLOCARRAY => (b.wrapping_mul(c), a),
        place::POSIX_MEMALIGN => (c, 0),
        place::ALIGNED_ALLOC | place::MEMALIGN | place::MMAP | place::MMAP64 => (b, 0),
        _ => (a, 0),
    }
}

/// Calls a function with a call's arguments.
///
/// # Safety
/// `real` is a function of the place `which` in [`place`].
unsafe fn hand_on(real: u64, which: usize, arguments: &[u64; 6]) -> u64 {
    type Function = unsafe extern "C" fn(u64, u64, u64, u64, u64, u64) -> u64;
    // SAFETY: the C calling convention passes six integers in
    // registers, and the function reads as many as declared.
    let result = unsafe {
        let function: Function = core::mem::transmute(real as *const ());
        let [a, b, c, d, e, f] = *arguments;
        function(a, b, c, d, e, f)
    };
    // An `int` leaves the upper half undefined.
    if which == place::POSIX_MEMALIGN { result & 0xffff_ffff } else { result }
}

/// An allocation that may be recorded: calls the real function, and returns the result.
///
/// # Safety
/// Called by the assembly, with the registers of a call of the
/// function of the place `which`, and the table of real functions.
pub unsafe fn followed(frame: &Frame, which: usize, real: &Real) -> u64 {
    let real = real.get(which).map_or(0, |real| real.load(Ordering::Relaxed));
    let arguments = &frame.arguments;
    let (bytes, old) = asked(which, arguments);
    let Some(call) = Call::begin() else {
        // SAFETY: the caller's promise.
        return unsafe { hand_on(real, which, arguments) };
    };
    call.shared.followed.fetch_add(1, Ordering::Relaxed);
    let site = call.site(frame, which, bytes, real);
    // SAFETY: the caller's promise.
    let result = unsafe { hand_on(real, which, arguments) };
    let address = match which {
        // SAFETY: on success, the function has written the address.
        place::POSIX_MEMALIGN if result == 0 => unsafe { (arguments[0] as *const u64).read_volatile() },
        place::POSIX_MEMALIGN => 0,
        place::MMAP | place::MMAP64 if result > u64::MAX - 4096 => 0,
        _ => result,
    };
    let by = kind_of(which);
    if address == 0 {
        call.shared.failed.fetch_add(1, Ordering::Relaxed);
        // The old block stays if memory was short, and is gone if size 0 was requested.
        if old != 0 && bytes == 0 {
            call.event((FREED, KINDS[place::FREE]), call.called, (old, 0), 0, 0);
        }
        return result;
    }
    let what = if old == 0 { ALLOCATED } else { MOVED };
    call.event((what, by), sys::time(), (address, bytes), old, site);
    result
}

/// A block is about to be given back, or part of a mapping.
pub fn freed(which: usize, address: u64, bytes: u64) {
    if let Some(call) = Call::begin() {
        call.event((FREED, kind_of(which)), call.called, (address, bytes), 0, 0);
    }
}

/// The process may soon not read the time any more (`prctl`): recording ends here.
pub fn leave() {
    // SAFETY: null, or mapped until the process ends.
    if let Some(shared) = unsafe { SHARED.swap(core::ptr::null_mut(), Ordering::AcqRel).as_ref() }
        && let Some(number) = process_known(shared)
    {
        number.state.store(state::CLOSED, Ordering::Release);
    }
}

fn process_known(shared: &Shared) -> Option<&Process> {
    // SAFETY: as in `process`.
    let token = unsafe { TOKEN.load(Ordering::Relaxed).as_ref() }?;
    shared.processes.get(token.load(Ordering::Relaxed).checked_sub(1)? as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sites() -> Box<[AtomicU64; SITES]> {
        let all: Vec<AtomicU64> = (0..SITES).map(|_| AtomicU64::new(0)).collect();
        all.into_boxed_slice().try_into().unwrap()
    }

    #[test]
    fn a_site_is_new_once_and_again_when_it_was_forgotten() {
        let sites = sites();
        assert!(is_new(&sites, 77) && !is_new(&sites, 77));
        forget(&sites, 77);
        assert!(is_new(&sites, 77));
        // As many as have one first place: each is new once, and the last takes the place of the first.
        let crowd: Vec<u64> = (1..=9).map(|n| 77 + n * 2 * SITES as u64).collect();
        assert!(crowd.iter().all(|name| is_new(&sites, *name)));
        assert!(!is_new(&sites, crowd[8]) && is_new(&sites, 77));
    }

    #[test]
    fn a_full_ring_counts_what_it_drops() {
        let zero = || AtomicU64::new(0);
        let ends = Ends { head: zero(), reserved: [0; 7], tail: zero(), lost: zero() };
        assert_eq!((0..4).map(|_| take(&ends, 4)).collect::<Vec<_>>(), [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!((take(&ends, 4), ends.lost.load(Ordering::Relaxed)), (None, 1));
        ends.tail.store(2, Ordering::Relaxed);
        assert_eq!((take(&ends, 4), take(&ends, 4), take(&ends, 4)), (Some(4), Some(5), None));
    }

    #[test]
    fn sizes_are_where_each_function_has_them() {
        let of = |which| asked(which, &[3, 5, 7, 0, 0, 0]);
        assert_eq!(of(place::MALLOC), (3, 0));
        assert_eq!(of(place::CALLOC), (15, 0));
        assert_eq!(of(place::REALLOC), (5, 3));
        assert_eq!(of(place::REALLOCARRAY), (35, 3));
        assert_eq!(of(place::POSIX_MEMALIGN), (7, 0));
        assert_eq!(of(place::ALIGNED_ALLOC), (5, 0));
        assert_eq!(of(place::MMAP), (5, 0));
    }
}
