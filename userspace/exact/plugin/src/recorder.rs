//! The hot path: callbacks for putting events into the vCPU's
//! buffer, and the cold callback for emptying a full buffer.
//!
//! A vCPU runs one thread at a time: the lane has one writer and no lock. Lanes and
//! buffers lie in the region: after the process's death, the parent processes the rest.

use std::{
    ffi::{c_uint, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed, Ordering::Release},
};

use locality_stream::{Event, Kind, NO_INSTRUCTION};

use crate::{
    analyses, objects,
    process::{self, Process},
    region::{BUFFER_EVENTS, LANES, Lane, THREADS, ThreadRecord},
    sampled,
    shape::Template,
    turn, worker,
};

/// First lane of the region; null before the region exists, and without a region.
static FIRST_LANE: AtomicPtr<Lane> = AtomicPtr::new(std::ptr::null_mut());
/// Whether the size and direction of an access can be read off QEMU's word.
static PLAIN_INFO: AtomicBool = AtomicBool::new(false);
/// Bytes of an event.
const EVENT: u64 = size_of::<Event>() as u64;

/// Gives the callbacks the lanes' address.
pub fn start(process: &Process) {
    let api = process.api();
    // log2 size in bits 4 to 6 (`MemOpIdx`), direction in bits
    // 16 and 17 (`plugins/api.c`, in every version up to now).
    let sizes = (0..5u32).all(|shift| {
        // SAFETY: the function only looks at the argument.
        unsafe { (api.memory_size_shift)(shift << 4) == shift }
    });
    // SAFETY: as above.
    let directions = unsafe { (api.memory_is_store)(2 << 16) && !(api.memory_is_store)(1 << 16) };
    PLAIN_INFO.store(sizes && directions, Relaxed);
    sampled::start(process);
    FIRST_LANE.store(process.region().lanes().as_ptr().cast_mut(), Release);
}

#[inline(always)]
pub fn lane(vcpu: c_uint) -> Option<&'static Lane> {
    let first = FIRST_LANE.load(Relaxed);
    if first.is_null() || vcpu as usize >= LANES {
        return None;
    }
    // SAFETY: the region has LANES lanes from `first` on, and stays mapped as long as the process.
    Some(unsafe { &*first.add(vcpu as usize) })
}

/// Puts an event at the end of the vCPU's buffer.
#[inline(always)]
pub fn push(vcpu: c_uint, value: u64, what: u64) {
    let Some(lane) = lane(vcpu) else { return };
    let mut cursor = lane.cursor.load(Relaxed);
    if cursor == lane.end.load(Relaxed) {
        cursor = make_room(vcpu, lane);
        if cursor == 0 {
            return;
        }
    }
    let event = cursor as *mut u64;
    // SAFETY: the cursor lies in the lane's buffer, before
    // the end, and only the current thread writes the buffer.
    unsafe {
        event.write(value);
        event.add(1).write(what);
    }
    lane.cursor.store(cursor + EVENT, Relaxed);
}

/// An access of known size and direction; `what` is the event's second word.
pub unsafe extern "C" fn on_access(vcpu: c_uint, _: u32, address: u64, what: *mut c_void) {
    push(vcpu, address, what as u64);
}

/// An access described by QEMU; the word is a [`Template`].
pub unsafe extern "C" fn on_mixed(vcpu: c_uint, info: u32, address: u64, template: *mut c_void) {
    let template = Template(template as u64);
    let (loads, stores, size) = describe(info);
    // An atomic read-modify-write is a single callback.
    if loads {
        push(vcpu, address, template.what(false, size));
    }
    if stores {
        push(vcpu, address, template.what(true, size));
    }
}

/// A piece of an operand; the word is a [`Template`].
pub unsafe extern "C" fn on_piece(vcpu: c_uint, info: u32, address: u64, template: *mut c_void) {
    let template = Template(template as u64);
    let (loads, stores, size) = describe(info);
    for is_store in [false, true] {
        if (is_store && stores) || (!is_store && loads) {
            let what = template.what(is_store, size);
            if !join(vcpu, address, size, what, template.most()) {
                push(vcpu, address, what);
            }
        }
    }
}

/// Adds a piece to the preceding access, if the pieces belong together.
#[inline(always)]
pub fn join(vcpu: c_uint, address: u64, size: u64, what: u64, most: u64) -> bool {
    /// Everything but the size.
    const SAME: u64 = !(0xffff << 32);
    let Some(lane) = lane(vcpu) else { return false };
    let (cursor, end) = (lane.cursor.load(Relaxed), lane.end.load(Relaxed));
    // The first event of a buffer has no changeable predecessor.
    if cursor <= end.wrapping_sub(BUFFER_EVENTS as u64 * EVENT) || cursor > end {
        return false;
    }
    let before = (cursor - EVENT) as *mut u64;
    // SAFETY: the event before the cursor lies in the lane's
    // buffer, and only the current thread writes the buffer.
    unsafe {
        let (start, earlier) = (before.read(), before.add(1).read());
        let joined = (earlier >> 32 & 0xffff) + size;
        if earlier & SAME != what & SAME || start + joined - size != address || joined > most {
            return false;
        }
        before.add(1).write(what & SAME | joined << 32);
    }
    true
}

/// Whether an access loads, whether an access stores, and the size in bytes.
#[inline(always)]
pub fn describe(info: u32) -> (bool, bool, u64) {
    if PLAIN_INFO.load(Relaxed) {
        return (info & 1 << 16 != 0, info & 2 << 16 != 0, 1 << (info >> 4 & 7));
    }
    let Some(process) = process::current() else { return (false, false, 1) };
    // SAFETY: the functions only look at the argument.
    let (shift, store) =
        unsafe { ((process.api().memory_size_shift)(info), (process.api().memory_is_store)(info)) };
    (!store, store, 1 << (shift & 7))
}

/// An access without a record: the floor measured by `mode=empty`.
pub unsafe extern "C" fn on_nothing(_: c_uint, _: u32, _: u64, _: *mut c_void) {}

/// A block begins; the word is the block's index.
/// Executions are counted, without an event in the stream.
pub unsafe extern "C" fn on_block(vcpu: c_uint, block: *mut c_void) {
    count_block(vcpu, block as u64);
}

#[inline(always)]
fn count_block(vcpu: c_uint, block: u64) {
    let Some(lane) = lane(vcpu) else { return };
    let mut counts = lane.counts.load(Relaxed);
    if counts == 0 {
        make_room(vcpu, lane);
        counts = lane.counts.load(Relaxed);
        if counts == 0 {
            return;
        }
    }
    let count = (counts + block * 8) as *mut u64;
    // SAFETY: the thread has room for a number for each block, and is the only writer.
    unsafe { count.write(count.read().wrapping_add(1)) };
}

/// As [`on_block`], for analyses of instruction fetches: the stream has a block event too.
pub unsafe extern "C" fn on_told_block(vcpu: c_uint, block: *mut c_void) {
    count_block(vcpu, block as u64);
    push(vcpu, 0, Event::new(Kind::BLOCK, block as u32, 0).what());
}

/// As [`on_block`], for simulations: the stream has an event
/// for blocks beginning a function, a thread or a handler.
pub unsafe extern "C" fn on_entered_block(vcpu: c_uint, block: *mut c_void) {
    count_block(vcpu, block as u64);
    // Kind and flags: a call, an event beside accesses and blocks, or a jump out of a stub.
    let before = what_before(vcpu) >> 48;
    if before == u64::from(Kind::CALL.0) || before > u64::from(Kind::SYSTEM_CALL.0) {
        push(vcpu, 0, Event::new(Kind::BLOCK, block as u32, 0).what());
    }
}

/// The first block of a signal handler begins; the word
/// is the block's index and, above, the signal's number.
pub unsafe extern "C" fn on_handler(vcpu: c_uint, word: *mut c_void) {
    let word = word as u64;
    if !called(vcpu) {
        cut_block(vcpu, (word >> 32) as i32);
        let event = Event::new(Kind::SIGNAL, NO_INSTRUCTION, word >> 32);
        push(vcpu, event.value, event.what());
    }
    count_block(vcpu, word & 0xffff_ffff);
    let tells = |process: &Process| process.settings().tells_blocks() || process.settings().cache.is_some();
    if process::current().is_some_and(tells) {
        push(vcpu, 0, Event::new(Kind::BLOCK, word as u32, 0).what());
    }
}

/// Reports the block under way as left early: QEMU delivers signals between blocks,
/// except signals of faulting instructions. The faulting instruction is the first
/// capable of faulting after the last access, for a faulting access has no event.
#[cold]
fn cut_block(vcpu: c_uint, signal: i32) {
    let Some(process) = process::current().filter(|process| process.settings().tells_blocks()) else {
        return;
    };
    let faults = matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL | libc::SIGTRAP);
    let Some(lane) = lane(vcpu).filter(|_| faults) else { return };
    let code = process.region().code();
    // The block's event is among the events since the buffer began, if the block did.
    let mut last = None;
    for event in recorded(process, vcpu, lane).iter().rev() {
        match event.kind {
            Kind::BLOCK => {
                let Some(block) = code.blocks.get(event.index as usize) else { return };
                let done = last.map_or(0, |index: u32| index.wrapping_sub(block.first).wrapping_add(1));
                let faulting = |record: &locality_stream::InstructionRecord| match signal {
                    libc::SIGSEGV | libc::SIGBUS => {
                        let facts = locality_stream::Instruction::classify(record);
                        facts.loads || facts.stores
                    }
                    libc::SIGFPE => {
                        locality_stream::Dependences::of(record).latency
                            == locality_stream::LatencyClass::IntegerDivide
                    }
                    // The last of the block.
                    _ => false,
                };
                let rest = code.block(event.index).get(done as usize..).unwrap_or_default();
                if let Some(more) = rest.iter().position(faulting) {
                    note(vcpu, Kind::BLOCK_CUT, u64::from(done) + more as u64);
                }
                return;
            }
            kind if kind.is_access() => last = last.or(Some(event.index)),
            _ => return,
        }
    }
}

/// Whether the event before was a call.
fn called(vcpu: c_uint) -> bool {
    let kind = Kind((what_before(vcpu) >> 48) as u8);
    kind == Kind::CALL || kind == Kind::CALLED
}

/// The second word of the event before; 0 without an event.
#[inline(always)]
fn what_before(vcpu: c_uint) -> u64 {
    let Some(lane) = lane(vcpu) else { return 0 };
    let (cursor, end) = (lane.cursor.load(Relaxed), lane.end.load(Relaxed));
    if cursor <= end.wrapping_sub(BUFFER_EVENTS as u64 * EVENT) || cursor > end {
        return 0;
    }
    // SAFETY: as in `join`.
    unsafe { ((cursor - EVENT) as *const u64).add(1).read() }
}

/// Puts an event other than access or block.
pub fn note(vcpu: c_uint, kind: Kind, value: u64) {
    push(vcpu, value, Event::new(kind, NO_INSTRUCTION, value).what());
}

/// Places the program's initial memory objects, by the vCPU thread's latest recorded events.
pub fn begin_objects(process: &Process, vcpu: c_uint) {
    if let Some(lane) = lane(vcpu).filter(|lane| lane.cursor.load(Relaxed) != 0) {
        objects::begin(process, recorded(process, vcpu, lane));
    }
}

/// Tells the vCPU's thread that data objects lie elsewhere, if not yet known.
pub fn tell_placed(process: &Process, vcpu: c_uint) {
    let Some(lane) = lane(vcpu) else { return };
    let count = process.region().header().placements.load(Relaxed);
    if lane.placed.swap(count, Relaxed) != count {
        note(vcpu, Kind::PLACED, count.into());
    }
}

/// Makes the cursor point to free room, and returns the cursor; 0 if recording is impossible.
#[cold]
#[inline(never)]
pub fn make_room(vcpu: c_uint, lane: &Lane) -> u64 {
    let done = catch_unwind(AssertUnwindSafe(|| {
        let process = process::current()?;
        if lane.thread.load(Relaxed) == 0 {
            begin_thread(process, vcpu, lane)
        } else {
            next_buffer(process, vcpu, lane)
        }
    }));
    match done {
        Ok(cursor) => cursor.unwrap_or(0),
        Err(_) => {
            process::stop("a fault in the recording");
            0
        }
    }
}

fn begin_thread(process: &'static Process, vcpu: c_uint, lane: &Lane) -> Option<u64> {
    let region = process.region();
    if process.has_stopped() {
        return None;
    }
    let index = region.header().threads.fetch_add(1, Relaxed);
    let Some(record) = region.threads().get(index as usize) else {
        region.header().threads.store(THREADS as u32, Relaxed);
        region.header().threads_lost.fetch_add(1, Relaxed);
        process::stop("more threads than an image may have");
        return None;
    };
    // SAFETY: the call has no arguments.
    let tid = unsafe { libc::gettid() } as u32;
    record.tid.store(tid, Relaxed);
    record.lane.store(vcpu, Relaxed);
    turn::take();
    if process.settings().sample_lines > 0 {
        lane.seen.store(&raw const record.seen as u64, Relaxed);
    }
    if let Err(why) = analyses::begin(process, vcpu, lane, record) {
        process::stop(why);
        return None;
    }
    lane.thread.store(index + 1, Release);
    let start = region.buffer(vcpu as usize, 0).as_ptr() as u64;
    lane.end.store(start + BUFFER_EVENTS as u64 * EVENT, Relaxed);
    name_thread(lane, start, tid);
    tell_placed(process, vcpu);
    Some(lane.cursor.load(Relaxed))
}

/// Begins the buffer with the event naming the thread. Returns the new cursor.
fn name_thread(lane: &Lane, start: u64, tid: u32) -> u64 {
    let first = Event::new(Kind::THREAD, NO_INSTRUCTION, u64::from(tid));
    // SAFETY: the first event of the lane's buffer, still empty.
    unsafe { (start as *mut Event).write(first) };
    lane.cursor.store(start + EVENT, Relaxed);
    start + EVENT
}

/// Has a full buffer processed, by the thread's worker
/// or here. Afterwards the cursor is in an empty buffer.
fn next_buffer(process: &'static Process, vcpu: c_uint, lane: &Lane) -> Option<u64> {
    let is_full = lane.cursor.load(Relaxed) != 0;
    if is_full {
        begin_objects(process, vcpu);
    }
    let Some(worker) = worker::of(process, vcpu, record(process, lane)?).filter(|_| is_full) else {
        work_off(process, vcpu, lane)?;
        tell_placed(process, vcpu);
        return Some(lane.cursor.load(Relaxed));
    };
    // In the given order, for a kill at every moment: the events of a filled buffer exist.
    let filled = lane.filled.load(Relaxed) + 1;
    lane.filled.store(filled, Release);
    worker.hand_over();
    let start = process.region().buffer(vcpu as usize, filled).as_ptr() as u64;
    lane.cursor.store(start, Release);
    lane.end.store(start + BUFFER_EVENTS as u64 * EVENT, Relaxed);
    tell_placed(process, vcpu);
    Some(lane.cursor.load(Relaxed))
}

/// Events of the vCPU's thread in the buffer in use.
fn recorded(process: &Process, vcpu: c_uint, lane: &Lane) -> &'static [Event] {
    let buffer = process.region().buffer(vcpu as usize, lane.filled.load(Relaxed)).as_ptr();
    let count = (lane.cursor.load(Relaxed).saturating_sub(buffer as u64) / EVENT) as usize;
    // SAFETY: `count` events of the buffer are written, and only the
    // current thread writes the buffer; the region stays mapped.
    unsafe { std::slice::from_raw_parts(buffer, count.min(BUFFER_EVENTS)) }
}

/// Runs the analyses over the recorded events. Afterwards the ring is empty.
fn work_off(process: &'static Process, vcpu: c_uint, lane: &Lane) -> Option<u64> {
    let region = process.region();
    if let Some(worker) = worker::known(vcpu) {
        worker.finish();
    }
    let events = recorded(process, vcpu, lane);
    let start = region.buffer(vcpu as usize, 0).as_ptr() as u64;
    let record = record(process, lane)?;
    let mut seen = None;
    if !process.has_stopped() && !events.is_empty() {
        seen = Some(analyses::observe(process, vcpu, record, events));
        record.events.fetch_add(events.len() as u64, Relaxed);
    }
    // In the given order, against a kill by another process:
    // the events are either in the ring with numbers, or gone.
    lane.cursor.store(start, Release);
    lane.filled.store(0, Release);
    match seen {
        Some(Ok(seen)) => lane.base.store(seen, Release),
        Some(Err(why)) => process::stop(why),
        None => {}
    }
    if !process.settings().one_order {
        lane.end.store(start + BUFFER_EVENTS as u64 * EVENT, Relaxed);
        return Some(start);
    }
    turn::pass_on();
    lane.base.store(analyses::seen_by_whole(process), Release);
    lane.end.store(start + BUFFER_EVENTS as u64 * EVENT, Relaxed);
    Some(name_thread(lane, start, record.tid.load(Relaxed)))
}

fn record(process: &'static Process, lane: &Lane) -> Option<&'static ThreadRecord> {
    process.region().threads().get((lane.thread.load(Relaxed) as usize).checked_sub(1)?)
}

/// Processes the buffer of the vCPU's thread, and gives
/// the turn away: the thread may be about to block.
pub fn rest(vcpu: c_uint) {
    let Some(lane) = lane(vcpu) else { return };
    drain(vcpu);
    turn::give_back();
    // The next event asks for room, and hence for the turn.
    lane.cursor.store(0, Relaxed);
    lane.end.store(0, Relaxed);
}

/// Works off the buffer of the vCPU's thread.
fn drain(vcpu: c_uint) {
    let Some(lane) = lane(vcpu) else { return };
    let done = catch_unwind(AssertUnwindSafe(|| {
        if let Some(process) = process::current()
            && lane.thread.load(Relaxed) != 0
        {
            work_off(process, vcpu, lane);
        }
    }));
    if done.is_err() {
        process::stop("a fault in the recording");
    }
}

/// The vCPU's thread has ended: the vCPU's next thread is a different thread.
pub fn end_thread(vcpu: c_uint) {
    let Some(lane) = lane(vcpu) else { return };
    if lane.thread.load(Relaxed) == 0 {
        return;
    }
    sampled::finish(vcpu);
    let event = Event::new(Kind::THREAD_END, NO_INSTRUCTION, u64::from(thread_id(lane)));
    push(vcpu, event.value, event.what());
    drain(vcpu);
    if let Some(process) = process::current()
        && let Some(record) = record(process, lane)
    {
        record.ended.store(1, Release);
    }
    worker::end(vcpu);
    forget(lane);
}

fn thread_id(lane: &Lane) -> u32 {
    process::current().and_then(|process| Some(record(process, lane)?.tid.load(Relaxed))).unwrap_or(0)
}

fn forget(lane: &Lane) {
    lane.thread.store(0, Release);
    lane.counts.store(0, Release);
    lane.seen.store(0, Release);
    lane.placed.store(0, Relaxed);
    lane.filled.store(0, Relaxed);
    lane.cursor.store(0, Relaxed);
    lane.end.store(0, Relaxed);
}

/// Ends recording, even into the buffers, which are gone.
pub fn give_up() {
    FIRST_LANE.store(std::ptr::null_mut(), Release);
}
