//! The file with the counts of a traced process: layout and mapping.
//!
//! One file for each image (a process between two `execve`), sparse and far larger than the used
//! part, mapped shared by the process and, after the process's end, by the parent. The whole file
//! starts zeroed. Order: [`Header`], [`Lane`]s (one for each vCPU), [`ThreadRecord`]s, the log of
//! mappings, rings of event buffers, tables of code and placements, and then the arena of analyses.
//!
//! A reader must bear torn values: the writer may have been killed at every instruction.

use std::{
    fs::OpenOptions,
    io,
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use crate::settings::INCLUSIVE;
use locality_stream::{Arena, BlockRecord, Code, Event, InstructionRecord, Offset, Placement};

/// Marks a file of the layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"locality");
/// Version of the layout; parent and plugin must agree.
pub const VERSION: u32 = 9;
/// Most recorded vCPUs (simultaneous threads).
pub const LANES: usize = 4096;
/// Most recorded threads of an image.
pub const THREADS: usize = 1 << 16;
/// Events of a buffer: 64 KiB, a part of the second-level cache.
pub const BUFFER_EVENTS: usize = 4096;
/// Buffers of a lane: one is filled while the rest wait for processing.
pub const BUFFERS: usize = 8;
/// Events of a lane's buffers.
pub const RING_EVENTS: usize = BUFFERS * BUFFER_EVENTS;
/// Most static instructions.
pub const INSTRUCTIONS: usize = 1 << 26;
/// Most static blocks.
pub const BLOCKS: usize = 1 << 23;
/// Most placements of data objects.
pub const PLACEMENTS: usize = 1 << 22;
/// Most touches of a thread stored for optimal replacement: 512 MiB.
pub const TOUCHES: usize = 1 << 26;
/// Bytes of the log of mappings.
const LOG_BYTES: usize = 16 << 20;
const PAGE: usize = 4096;

const LANES_AT: usize = 4 * PAGE;
const THREADS_AT: usize = LANES_AT + LANES * size_of::<Lane>();
const LOG_AT: usize = (THREADS_AT + THREADS * size_of::<ThreadRecord>()).next_multiple_of(PAGE);
const BUFFERS_AT: usize = LOG_AT + LOG_BYTES;
const INSTRUCTIONS_AT: usize = BUFFERS_AT + LANES * RING_EVENTS * size_of::<Event>();
const BLOCKS_AT: usize =
    INSTRUCTIONS_AT + (INSTRUCTIONS * size_of::<InstructionRecord>()).next_multiple_of(PAGE);
const PLACEMENTS_AT: usize = BLOCKS_AT + BLOCKS * size_of::<BlockRecord>();
const ARENA_AT: usize = (PLACEMENTS_AT + PLACEMENTS * size_of::<Placement>()).next_multiple_of(PAGE);

/// Sizes of a file in order of trial, largest first: limits of the process may forbid large files.
const SIZES: [usize; 4] = [1 << 40, 1 << 37, 1 << 34, ARENA_AT + (1 << 30)];

/// How an image stands.
pub mod state {
    /// Being set up.
    pub const NEW: u32 = 0;
    /// Running, or killed.
    pub const RUNNING: u32 = 1;
    /// Ended by `exit`.
    pub const ENDED: u32 = 2;
    /// Replaced the program; the next image is another file.
    pub const EXECUTED: u32 = 3;
}

/// The first page of a file.
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU32,
    /// A state of [`state`].
    pub state: AtomicU32,
    /// Process id.
    pub pid: AtomicU32,
    /// Process id of the forking process, or of the parent.
    pub parent: AtomicU32,
    /// Set by the parent to end the recording: 1 asked by the user, 2 memory is short.
    pub stop: AtomicU32,
    /// Not 0 when recording has stopped early; the reason is in [`Header::reason`].
    pub stopped: AtomicU32,
    /// Threads recorded, indices into the thread records.
    pub threads: AtomicU32,
    /// Threads without room.
    pub threads_lost: AtomicU32,
    /// Static instructions recorded.
    pub instructions: AtomicU32,
    /// Static blocks recorded.
    pub blocks: AtomicU32,
    /// Bytes of the log of mappings.
    pub log: AtomicU32,
    /// Forked children not recorded.
    pub children_lost: AtomicU32,
    /// Times that a thread went on without the turn, in a serialised run.
    pub out_of_turn: AtomicU32,
    /// Not 0 if counts of accesses are restricted to chosen instructions.
    pub restricted: AtomicU32,
    /// log2 of the granule of sets and optimal replacement.
    pub extra_granule: AtomicU32,
    /// Placements of data objects.
    pub placements: AtomicU32,
    /// Mappings without room.
    pub placements_lost: AtomicU32,
    /// Not 0 if the mix of instructions is restricted too.
    pub mix_restricted: AtomicU32,
    /// Number of lines of which one is sampled; 0: all are seen.
    pub sample_lines: AtomicU32,
    /// Reserved.
    pub reserved: AtomicU32,
    /// Address of the file's first byte in the traced process.
    pub address: AtomicU64,
    /// Bytes of the file.
    pub bytes: AtomicU64,
    /// Host address minus guest address.
    pub guest_base: AtomicU64,
    /// Taken bytes of the arena.
    pub taken: AtomicUsize,
    /// Offset in the arena of the whole process' analysis state (serialised runs).
    pub whole: AtomicU64,
    /// Signals handled by the program.
    pub signals: AtomicU64,
    /// A bit for each function found, of the first 64 asked for.
    pub functions_found: AtomicU64,
    /// A bit for each function found, of the first 64 to be skipped.
    pub skipped_found: AtomicU64,
    /// A bit for each function found, of the functions with whole calls distinguished.
    pub inclusive_found: AtomicU64,
    /// Additional counts of the whole process (serialised runs).
    pub extra: Extra,
    /// Why recording stopped, or a program was run without recording: text, zero at the end.
    pub reason: [AtomicU32; 128],
    /// Path of the program's file, zero at the end.
    pub program: [AtomicU32; 256],
}

const _: () = assert!(size_of::<Header>() <= LANES_AT);

/// Data touched by a vCPU's callbacks at every event; a separate cache line.
#[repr(C, align(64))]
pub struct Lane {
    /// Place of the next event: an address in the traced process.
    pub cursor: AtomicU64,
    /// End of the buffer in use; equal to `cursor` before the first buffer.
    pub end: AtomicU64,
    /// Index of the thread record plus 1; 0 before the thread's first event.
    pub thread: AtomicU32,
    /// Placements known to the thread.
    pub placed: AtomicU32,
    /// Number of the first event in the ring's first buffer: events seen before by the engine.
    pub base: AtomicU64,
    /// Filled buffers since the ring's first event; the
    /// cursor is in the buffer `filled` modulo [`BUFFERS`].
    pub filled: AtomicU64,
    /// Place of the thread's counts of block executions: an address
    /// in the traced process; 0 before the thread has begun.
    pub counts: AtomicU64,
    /// Place of the thread's [`Seen`], in the same way; 0 also unless lines are sampled.
    pub seen: AtomicU64,
}

/// Accesses of a thread in a run of sampled lines, and what the next access must know.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Seen {
    /// Loads, of sampled lines or not.
    pub loads: AtomicU64,
    /// Stores.
    pub stores: AtomicU64,
    /// Lines touched by an access beside its first line.
    pub further: AtomicU64,
    /// Accesses in the stream, those reported as skipped included.
    pub told: AtomicU64,
    /// The last piece of an operand: second word of its event without size, end, and size of all pieces
    /// up to there.
    pub piece: AtomicU64,
    /// See `piece`.
    pub piece_end: AtomicU64,
    /// See `piece`.
    pub piece_size: AtomicU64,
}

/// Record of a thread.
#[repr(C, align(128))]
pub struct ThreadRecord {
    /// Thread id.
    pub tid: AtomicU32,
    /// The vCPU of the thread.
    pub lane: AtomicU32,
    /// 1 after the thread's end and the work on the last buffer.
    pub ended: AtomicU32,
    /// Reserved.
    pub reserved: AtomicU32,
    /// Offset in the arena of the engine's state; 0 if the whole process has an engine.
    pub analyses: AtomicU64,
    /// Offset in the arena of [`BLOCKS`] numbers: executions of each block.
    pub counts: AtomicU64,
    /// Events worked off.
    pub events: AtomicU64,
    /// Accesses in a run of sampled lines.
    pub seen: Seen,
    /// Additional counts.
    pub extra: Extra,
}

/// States of further analyses: offsets in the arena, 0 for none.
#[repr(C)]
pub struct Extra {
    /// Simulation of caches.
    pub cache: AtomicU64,
    /// Parallelism: of the whole thread, and of each function with whole calls measured.
    pub parallelism: [AtomicU64; 1 + INCLUSIVE],
    /// Task parallelism.
    pub tasks: AtomicU64,
    /// Self-parallelism of calls and loops.
    pub nest: AtomicU64,
    /// Bytes between threads, of the whole process.
    pub sharing: AtomicU64,
    /// State of execution within whole calls of functions.
    pub inside: AtomicU64,
    /// Stacks within sets.
    pub sets: AtomicU64,
    /// Granules touched, in order, for optimal replacement: [`TOUCHES`] numbers.
    pub touches: AtomicU64,
    /// Number of touches.
    pub count: AtomicU64,
    /// Touches of the granule touched just before, not stored, because the distance is 0.
    pub repeats: AtomicU64,
    /// Touches without room.
    pub lost: AtomicU64,
    /// Not 0 while a buffer is processed: if left set, the buffer's events were counted in part.
    pub busy: AtomicU64,
}

/// A mapped file.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: shared data is reached through atomics, or through an analysis owned by one thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Makes and maps the file, with the size of `like` if given.
    pub fn create(path: &Path, like: Option<&Region>) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let sizes = SIZES.iter().copied().filter(|bytes| like.is_none_or(|old| old.bytes == *bytes));
        let _raised = RaisedLimit::begin();
        let limit = file_size_limit();
        let mut refused = io::Error::from_raw_os_error(libc::EFBIG);
        for bytes in sizes.filter(|bytes| *bytes as u64 <= limit) {
            let mapped = file.set_len(bytes as u64).and_then(|()| map(file.as_raw_fd(), bytes));
            match mapped {
                Ok(base) => {
                    let region = Self { base, bytes };
                    let header = region.header();
                    header.magic.store(MAGIC, Ordering::Relaxed);
                    header.version.store(VERSION, Ordering::Relaxed);
                    header.address.store(base.as_ptr() as u64, Ordering::Relaxed);
                    header.bytes.store(bytes as u64, Ordering::Relaxed);
                    // Offset 0 stands for "none" in tables.
                    header.taken.store(64, Ordering::Relaxed);
                    return Ok(region);
                }
                Err(error) => refused = error,
            }
        }
        std::fs::remove_file(path).ok();
        Err(refused)
    }

    /// Private memory of the process in place of a file not made: callbacks still find lanes.
    pub fn replace_by_private(at: &Region) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: replaces the process's mapping by a mapping of equal size.
        let mapped = unsafe { libc::mmap(at.base.as_ptr().cast(), at.bytes, READ_WRITE, flags, -1, 0) };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Maps a traced process's file. Writes stay in the caller's process: finishing is harmless.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).open(path)?;
        let bytes = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        if bytes <= ARENA_AT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is too short"));
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
        // SAFETY: a new mapping of an open file.
        let mapped =
            unsafe { libc::mmap(std::ptr::null_mut(), bytes, READ_WRITE, flags, file.as_raw_fd(), 0) };
        let base = mapping(mapped)?;
        let region = Self { base, bytes };
        let header = region.header();
        if header.magic.load(Ordering::Relaxed) != MAGIC || header.version.load(Ordering::Relaxed) != VERSION
        {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the plugin is of another version"));
        }
        region.empty_free_room()?;
        Ok(region)
    }

    /// Puts fresh memory into the unused part: stray writes of
    /// the program into the unused part would be taken as zeros.
    fn empty_free_room(&self) -> io::Result<()> {
        let taken = self.taken().load(Ordering::Relaxed).min(self.len()).next_multiple_of(PAGE);
        let bytes = self.len().saturating_sub(taken);
        self.taken().store(taken, Ordering::Relaxed);
        if bytes == 0 {
            return Ok(());
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let from: NonNull<u8> = self.at(ARENA_AT + taken);
        // SAFETY: replaces the end of our own mapping, without references yet.
        mapping(unsafe { libc::mmap(from.as_ptr().cast(), bytes, READ_WRITE, flags, -1, 0) }).map(drop)
    }

    /// Gives the address range back.
    pub fn unmap(self) {
        // SAFETY: mapped by us with `self.bytes`; reached only through `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }

    fn at<T>(&self, offset: usize) -> NonNull<T> {
        debug_assert!(offset + size_of::<T>() <= self.bytes);
        // SAFETY: callers pass offsets of the fixed part, contained in every size of `SIZES`.
        unsafe { self.base.add(offset) }.cast()
    }

    /// The header.
    pub fn header(&self) -> &Header {
        // SAFETY: atomics, valid for every byte value, and mapped as long as the region.
        unsafe { self.at(0).as_ref() }
    }

    /// The lanes, one for each vCPU.
    pub fn lanes(&self) -> &[Lane] {
        // SAFETY: as `header`; the range belongs to the fixed part.
        unsafe { std::slice::from_raw_parts(self.at(LANES_AT).as_ptr(), LANES) }
    }

    /// Room for thread records; the first [`Header::threads`] are in use.
    pub fn threads(&self) -> &[ThreadRecord] {
        // SAFETY: as `lanes`.
        unsafe { std::slice::from_raw_parts(self.at(THREADS_AT).as_ptr(), THREADS) }
    }

    /// A lane's event buffer by number since the ring was empty.
    pub fn buffer(&self, lane: usize, number: u64) -> NonNull<Event> {
        let at = (lane % LANES) * RING_EVENTS + number as usize % BUFFERS * BUFFER_EVENTS;
        self.at(BUFFERS_AT + at * size_of::<Event>())
    }

    /// The events in a thread's buffers unseen by the
    /// engine, after `consumed` events seen; for the parent.
    pub fn unseen(&self, thread: usize, consumed: u64) -> Vec<Event> {
        let record = self.threads().get(thread);
        let lane_number = record.map_or(usize::MAX, |record| record.lane.load(Ordering::Relaxed) as usize);
        let Some(lane) = self.lanes().get(lane_number) else { return Vec::new() };
        if lane.thread.load(Ordering::Relaxed) as usize != thread + 1 {
            // Another thread has the lane now; the ended
            // thread's buffers were processed at the end.
            return Vec::new();
        }
        let (base, filled) = (lane.base.load(Ordering::Relaxed), lane.filled.load(Ordering::Relaxed));
        // SAFETY: both lie in the mapping of the region.
        let offset = unsafe { self.buffer(lane_number, filled).cast::<u8>().offset_from(self.base) };
        let start = self.header().address.load(Ordering::Relaxed).wrapping_add(offset as u64);
        let partial = lane.cursor.load(Ordering::Relaxed).wrapping_sub(start) / size_of::<Event>() as u64;
        // Between two buffers the cursor is at the end of the earlier buffer.
        let partial = if partial > BUFFER_EVENTS as u64 { 0 } else { partial };
        let end = filled.saturating_mul(BUFFER_EVENTS as u64).saturating_add(partial);
        let seen = consumed.saturating_sub(base);
        if end.saturating_sub(seen) > RING_EVENTS as u64 {
            // Recording had stopped, and the ring went on without the engine.
            return Vec::new();
        }
        let event = |number: u64| {
            let buffer = self.buffer(lane_number, number / BUFFER_EVENTS as u64);
            // SAFETY: within the buffer; every byte pattern
            // is a valid event, and the writer is gone.
            unsafe { buffer.add(number as usize % BUFFER_EVENTS).read() }
        };
        (seen..end).map(event).collect()
    }

    /// The table of static instructions, of which the first [`Header::instructions`] are written.
    pub fn instructions(&self) -> NonNull<InstructionRecord> {
        self.at(INSTRUCTIONS_AT)
    }

    /// The table of blocks, of which the first [`Header::blocks`] are written.
    pub fn blocks(&self) -> NonNull<BlockRecord> {
        self.at(BLOCKS_AT)
    }

    /// The table of placements, of which the first [`Header::placements`] are written.
    pub fn placements(&self) -> NonNull<Placement> {
        self.at(PLACEMENTS_AT)
    }

    /// Placements up to now.
    pub fn placed(&self) -> &[Placement] {
        let count = (self.header().placements.load(Ordering::Acquire) as usize).min(PLACEMENTS);
        // SAFETY: within the fixed part; entries below the count are written and do not change.
        unsafe { std::slice::from_raw_parts(self.placements().as_ptr(), count) }
    }

    /// The code translated up to now.
    pub fn code(&self) -> Code<'_> {
        let header = self.header();
        let blocks = (header.blocks.load(Ordering::Acquire) as usize).min(BLOCKS);
        let instructions = (header.instructions.load(Ordering::Acquire) as usize).min(INSTRUCTIONS);
        // SAFETY: within the fixed part; records below the counts are written and do not change.
        unsafe {
            Code {
                instructions: std::slice::from_raw_parts(self.instructions().as_ptr(), instructions),
                blocks: std::slice::from_raw_parts(self.blocks().as_ptr(), blocks),
            }
        }
    }

    /// Adds text to the log of mappings; false if the log is full.
    pub fn append_log(&self, text: &[u8]) -> bool {
        let used = self.header().log.load(Ordering::Relaxed) as usize;
        if used + text.len() > LOG_BYTES {
            return false;
        }
        // SAFETY: the range was just checked, and only the holder of the translation lock writes the log.
        unsafe {
            let to: NonNull<u8> = self.at(LOG_AT + used);
            to.as_ptr().copy_from_nonoverlapping(text.as_ptr(), text.len());
        }
        self.header().log.store((used + text.len()) as u32, Ordering::Release);
        true
    }

    /// The log of mappings.
    ///
    /// # Safety
    /// The range must have no writer.
    pub unsafe fn log(&self) -> &[u8] {
        let used = (self.header().log.load(Ordering::Acquire) as usize).min(LOG_BYTES);
        // SAFETY: within the fixed part; the caller excludes writers.
        unsafe { std::slice::from_raw_parts(self.at(LOG_AT).as_ptr(), used) }
    }

    /// Copies code tables, placements and log from another region, for
    /// a forked child with translated code referring to the tables.
    ///
    /// # Safety
    /// Neither region may have a concurrent writer.
    pub unsafe fn copy_code(&self, from: &Region) {
        let (ours, theirs) = (self.header(), from.header());
        let counted = |count: &AtomicU32, most: usize| (count.load(Ordering::Acquire) as usize).min(most);
        let parts = [
            (INSTRUCTIONS_AT, counted(&theirs.instructions, INSTRUCTIONS) * size_of::<InstructionRecord>()),
            (BLOCKS_AT, counted(&theirs.blocks, BLOCKS) * size_of::<BlockRecord>()),
            (PLACEMENTS_AT, counted(&theirs.placements, PLACEMENTS) * size_of::<Placement>()),
            (LOG_AT, counted(&theirs.log, LOG_BYTES)),
        ];
        for (offset, bytes) in parts {
            // SAFETY: parts of the fixed layout of both mappings; the caller excludes writers.
            unsafe {
                self.at::<u8>(offset).as_ptr().copy_from_nonoverlapping(from.at(offset).as_ptr(), bytes);
            }
        }
        for (to, from) in [
            (&ours.instructions, &theirs.instructions),
            (&ours.blocks, &theirs.blocks),
            (&ours.placements, &theirs.placements),
            (&ours.log, &theirs.log),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
        ours.guest_base.store(theirs.guest_base.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Moves another mapping of equal size to the region's address.
    pub fn take_place_of(self, old: &Region) -> io::Result<()> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both mappings are ours and of equal size; the old mapping is replaced as a whole.
        let moved = unsafe {
            libc::mremap(self.base.as_ptr().cast(), self.bytes, self.bytes, flags, old.base.as_ptr())
        };
        mapping(moved)?;
        old.header().address.store(old.base.as_ptr() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

// SAFETY: the range after the fixed part, mapped as long
// as the region; no further user of the range exists.
unsafe impl Arena for Region {
    fn base(&self) -> NonNull<u8> {
        self.at(ARENA_AT)
    }
    fn len(&self) -> usize {
        self.bytes - ARENA_AT
    }
    fn taken(&self) -> &AtomicUsize {
        &self.header().taken
    }
    fn release(&self, offset: Offset, bytes: usize) {
        let start = (offset as usize).next_multiple_of(PAGE);
        let end = (offset as usize).saturating_add(bytes).min(self.len()) / PAGE * PAGE;
        if start < end {
            // SAFETY: whole pages of the arena, given up by
            // the owner. A refusal only keeps the memory.
            unsafe {
                libc::madvise(
                    self.at::<u8>(ARENA_AT + start).as_ptr().cast(),
                    end - start,
                    libc::MADV_REMOVE,
                );
            }
        }
    }
}

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn mapping(address: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    match NonNull::new(address.cast()) {
        Some(base) if address != libc::MAP_FAILED => Ok(base),
        _ => Err(io::Error::last_os_error()),
    }
}

fn map(file: i32, bytes: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    // SAFETY: a new mapping of an open file.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), bytes, READ_WRITE, flags, file, 0) };
    let base = mapping(mapped)?;
    // A core dump of the program is about the program.
    // SAFETY: the mapping just made.
    unsafe { libc::madvise(mapped, bytes, libc::MADV_DONTDUMP) };
    Ok(base)
}

/// The soft limit of a file's size, raised to the hard limit until dropped:
/// the limit is on the program's writes, not on counts about the program.
struct RaisedLimit(libc::rlimit);

impl RaisedLimit {
    fn begin() -> Self {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the structures are live. If a call is refused, the limit stays.
        unsafe {
            if libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) == 0 && limit.rlim_cur != limit.rlim_max {
                let raised = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
                libc::setrlimit(libc::RLIMIT_FSIZE, &raw const raised);
            }
        }
        Self(limit)
    }
}

impl Drop for RaisedLimit {
    fn drop(&mut self) {
        if self.0.rlim_cur != self.0.rlim_max {
            // SAFETY: the structure is live; to lower a soft limit is always allowed.
            unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const self.0) };
        }
    }
}

/// A larger file would earn a SIGXFSZ.
fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for the write.
    match unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } {
        0 => limit.rlim_cur,
        _ => u64::MAX,
    }
}

/// Stores a text in words, cut to the words' room.
pub fn store_text(words: &[AtomicU32], text: &[u8]) {
    let room = (words.len() * 4).saturating_sub(1);
    let text = text.get(..room).unwrap_or(text);
    for (at, word) in words.iter().enumerate() {
        let mut bytes = [0; 4];
        for (to, from) in bytes.iter_mut().zip(text.iter().skip(at * 4)) {
            *to = *from;
        }
        word.store(u32::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

/// The text stored by [`store_text`].
pub fn load_text(words: &[AtomicU32]) -> Vec<u8> {
    let bytes = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes());
    bytes.take_while(|byte| *byte != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_and_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.0");
        let region = Region::create(&path, None).unwrap();
        store_text(&region.header().program, b"/bin/true");
        assert!(region.append_log(b"one\n") && region.append_log(b"two\n"));
        region.header().instructions.store(3, Ordering::Relaxed);
        let offset = region.allocate(10_000).unwrap();
        assert!(Region::create(&path, None).is_err(), "an existing file is not taken over");

        let seen = Region::open(&path).unwrap();
        assert_eq!(load_text(&seen.header().program), b"/bin/true");
        // SAFETY: no writer.
        assert_eq!(unsafe { seen.log() }, b"one\ntwo\n");
        assert!(seen.allocate(1).unwrap() > offset, "the arena goes on where it stood");
        assert!(region.header().taken.load(Ordering::Relaxed) < seen.header().taken.load(Ordering::Relaxed));

        let child = Region::create(&folder.path().join("2.0"), None).unwrap();
        // SAFETY: no writer.
        unsafe { child.copy_code(&region) };
        assert_eq!(child.header().instructions.load(Ordering::Relaxed), 3);
        child.take_place_of(&region).unwrap();
        assert_eq!(region.header().taken.load(Ordering::Relaxed), 64, "the old address shows the new file");
        region.unmap();
        seen.unmap();
    }

    /// What was recorded and not seen, with buffers full and not, and across the ring's end.
    #[test]
    fn unseen_events_are_found_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let region = Region::create(&folder.path().join("1.0"), None).unwrap();
        let lane = &region.lanes()[7];
        region.threads()[2].lane.store(7, Ordering::Relaxed);
        lane.thread.store(3, Ordering::Relaxed);
        let base = 1000;
        lane.base.store(base, Ordering::Relaxed);
        let per_buffer = BUFFER_EVENTS as u64;
        let mut written = 0;
        for (filled, partial, seen) in
            [(0, 0, 0), (0, 5, 2), (3, 0, 0), (8, 9, 5000), (11, per_buffer, 4 * per_buffer), (11, 3, 99)]
        {
            let end = filled * per_buffer + partial;
            for number in written..end {
                let at = region.buffer(7, number / per_buffer);
                let event = Event::access(locality_stream::Kind::LOAD, 0, number, 8);
                // SAFETY: within the buffer.
                unsafe { at.add((number % per_buffer) as usize).write(event) };
            }
            written = written.max(end);
            lane.filled.store(filled, Ordering::Relaxed);
            let cursor = region.buffer(7, filled).as_ptr() as u64 + partial * 16;
            lane.cursor.store(cursor, Ordering::Relaxed);
            let found: Vec<u64> = region.unseen(2, base + seen).iter().map(|event| event.value).collect();
            let lost = end - seen > RING_EVENTS as u64;
            assert_eq!(found, if lost { Vec::new() } else { (seen..end).collect::<Vec<_>>() });
            assert!(region.unseen(2, base + end + 1).is_empty() && region.unseen(1, base + seen).is_empty());
        }
        // The last buffer of the ring is full, and no other one was begun.
        lane.filled.store(16, Ordering::Relaxed);
        lane.cursor.store(region.buffer(7, 15).as_ptr() as u64 + per_buffer * 16, Ordering::Relaxed);
        assert_eq!(region.unseen(2, base + 15 * per_buffer).len(), BUFFER_EVENTS);
        region.unmap();
    }

    /// Whoever goes on with a file finds zeros in new room, whatever the program wrote there by mistake.
    #[test]
    fn free_room_of_an_opened_file_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.0");
        let region = Region::create(&path, None).unwrap();
        let taken = region.allocate(100).unwrap() as usize;
        for at in [taken, taken + PAGE, taken + (1 << 20)] {
            // SAFETY: within the arena.
            unsafe { region.base().add(at).write(7) };
        }
        let seen = Region::open(&path).unwrap();
        // SAFETY: within the arena.
        assert_eq!(unsafe { seen.base().add(taken).read() }, 7);
        let new = seen.allocate(1 << 21).unwrap() as usize;
        // SAFETY: the range just taken.
        let bytes = unsafe { std::slice::from_raw_parts(seen.base().add(new).as_ptr(), 1 << 21) };
        assert!(new >= taken + 100 && bytes.iter().all(|byte| *byte == 0));
        region.unmap();
        seen.unmap();
    }

    #[test]
    fn what_is_no_such_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("short");
        std::fs::write(&path, [0; 100]).unwrap();
        assert!(Region::open(&path).is_err());
        std::fs::File::options().write(true).open(&path).unwrap().set_len(SIZES[3] as u64).unwrap();
        assert!(Region::open(&path).is_err());
    }

    #[test]
    fn texts_are_cut_to_their_room() {
        let words: [AtomicU32; 2] = Default::default();
        store_text(&words, b"0123456789");
        assert_eq!(load_text(&words), b"0123456");
    }
}
