//! Blocks of glibc's heaps, found by walking its bookkeeping: for blocks without a record or a
//! pointer, to know their size at least.
//!
//! Source: glibc 2.36, malloc/malloc.c, `struct malloc_chunk`: each block is preceded by its
//! chunk's size and flags, and the next chunk follows. The walk ends at the first word that cannot
//! be a chunk header, and at [`MAX_BYTES`]. Whether a block is in use is unknown (freed blocks in
//! thread caches look the same), and another block may have been here at the sample's time. Not
//! here: heaps of other threads' arenas, other allocators.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::module::{add, blank};
use crate::named::{Kind, Named, Object};
use crate::place::Memory;
use crate::resolver::Resolver;

/// Limits of one walk: memory and chunks.
const MAX_BYTES: u64 = 256 << 20;
const MAX_CHUNKS: usize = 4 << 20;
/// Bytes read at once.
const WINDOW: usize = 256 << 10;
/// One part in this many of the time may go into walking.
const WALKING_SHARE: u32 = 50;
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// Alignment of the heaps of other arenas than the first (`HEAP_MAX_SIZE` of glibc's malloc/arena.c).
const HEAP_ALIGN: u64 = 64 << 20;
/// Bytes of `struct malloc_state`, before the chunks of an arena's first heap.
const ARENA_BYTES: u64 = 0x898;
/// Most consecutive blocks with mappings of their own.
const MAX_MAPPED: usize = 4096;
const PAGE: u64 = 4096;

/// What walks found.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    /// By the start of the mapping.
    walked: HashMap<u64, Walked>,
    next_walk: Option<Instant>,
    /// By usable bytes.
    objects: HashMap<u64, Arc<Object>>,
    /// Of blocks with a mapping of their own, by start and usable bytes.
    mapped: HashMap<(u64, u64), Arc<Object>>,
}

impl Chunks {
    /// Name of a block with a separate mapping, from before a pointer led to the block.
    pub(crate) fn of_mapped(&self, start: u64, bytes: u64) -> Option<Arc<Object>> {
        self.mapped.get(&(start, bytes)).cloned()
    }
}

/// Result of one walk.
#[derive(Debug, Default)]
struct Walked {
    end: u64,
    /// Starts of the chunks, ascending; the last is the end of the walk.
    starts: Vec<u64>,
    /// Each chunk is a mapping of its own.
    mapped: bool,
}

/// A block of the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// The block has its own mapping, and lives as long.
    pub(crate) mapped: bool,
}

impl Resolver {
    /// Names a place by the size of the block around it.
    pub(crate) fn by_size(&mut self, address: u64, memory: &dyn Memory, region: usize) -> Option<Named> {
        let Bounds { start, bytes, mapped } = self.bounds(address, memory, region)?;
        let objects = &mut self.objects;
        let named = |name: String| {
            let unknown = Some("known by its size in the allocator's list only".into());
            Object { name: name.into(), bytes, inferred: true, unknown, ..blank(Kind::Heap) }
        };
        let object = if mapped {
            let new = || add(objects, named(format!("[malloc block of {bytes} bytes]")));
            self.chunks.mapped.entry((start, bytes)).or_insert_with(new)
        } else {
            let new = || add(objects, named(format!("[malloc blocks of {bytes} bytes]")));
            self.chunks.objects.entry(bytes).or_insert_with(new)
        };
        let object = Arc::clone(object);
        // A place in the header counts as the block's start.
        Some(Named { object, offset: address.saturating_sub(start), field: None })
    }

    /// The block of glibc's around an address, by the allocator's own bookkeeping.
    pub(crate) fn bounds(&mut self, address: u64, memory: &dyn Memory, region: usize) -> Option<Bounds> {
        let region = self.space.region(region)?;
        let (start, end) = (region.mapping.start, region.mapping.end);
        let main = &*region.mapping.path == "[heap]";
        if !main && !region.mapping.path.is_empty() || !self.space.maps_file_named("libc.so") {
            return None;
        }
        let now = Instant::now();
        let known = self.chunks.walked.get(&start).is_some_and(|walked| walked.end == end);
        if !known || self.chunks.next_walk.is_none_or(|next| next <= now) {
            let first = if main { Some(start) } else { first_chunk(start, memory) };
            let walked = match first {
                Some(first) => Walked { end, starts: walk(first, end, memory), mapped: false },
                None => Walked { end, starts: mapped_chunks(start, end, memory), mapped: true },
            };
            let took = now.elapsed();
            self.chunks.walked.insert(start, walked);
            self.chunks.next_walk = Some(Instant::now() + (took * WALKING_SHARE).max(MIN_INTERVAL));
        }
        let Walked { starts, mapped, .. } = self.chunks.walked.get(&start)?;
        let behind = starts.partition_point(|chunk| *chunk <= address);
        let (chunk, next) = (*starts.get(behind.checked_sub(1)?)?, *starts.get(behind)?);
        // A block's last word is the next chunk's first, if one follows.
        let tail = if *mapped { 16 } else { 8 };
        Some(Bounds { start: chunk + 16, bytes: (next - chunk).checked_sub(tail)?, mapped: *mapped })
    }
}

/// The first chunk of a heap of a secondary arena (`struct heap_info`, whose first word is the
/// arena's address), if a mapping is such a heap.
fn first_chunk(start: u64, memory: &dyn Memory) -> Option<u64> {
    let arena = if start.is_multiple_of(HEAP_ALIGN) { memory.word(start)? } else { return None };
    let header = arena % HEAP_ALIGN;
    if !(0x20..=0x40).contains(&header) || !header.is_multiple_of(16) {
        return None;
    }
    let own = arena - header == start;
    Some((start + header + if own { ARENA_BYTES } else { 0 }).next_multiple_of(16))
}

/// Starts of blocks with separate, adjacent mappings, from a mapping's start: the
/// kernel shows neighbours as one mapping. The last entry is the last block's end.
fn mapped_chunks(start: u64, end: u64, memory: &dyn Memory) -> Vec<u64> {
    const MAPPED: u64 = 2;
    let mut found = Vec::new();
    let mut at = start;
    while at < end && found.len() < MAX_MAPPED {
        found.push(at);
        let (Some(before), Some(word)) = (memory.word(at), memory.word(at + 8)) else { break };
        let bytes = word & !7;
        let sound = word & 7 == MAPPED && before == 0 && bytes >= PAGE && bytes.is_multiple_of(PAGE);
        if !sound || bytes > end - at {
            break;
        }
        at += bytes;
    }
    if at == end {
        found.push(end);
    }
    found
}

/// Starts of the chunks from the start of a heap on.
fn walk(start: u64, end: u64, memory: &dyn Memory) -> Vec<u64> {
    let end = end.min(start.saturating_add(MAX_BYTES));
    let mut found = Vec::new();
    let (mut window, mut window_at, mut at) = (Vec::new(), 0u64, start);
    while at < end && found.len() < MAX_CHUNKS {
        found.push(at);
        let word_at = at + 8;
        let inside = |window: &[u8], window_at: u64| {
            let from = usize::try_from(word_at.checked_sub(window_at)?).ok()?;
            window.get(from..)?.first_chunk::<8>().map(|word| u64::from_le_bytes(*word))
        };
        let word = match inside(&window, window_at) {
            Some(word) => word,
            None => {
                window_at = at;
                window.resize(usize::try_from(end - at).unwrap_or(WINDOW).min(WINDOW), 0);
                if !memory.read(window_at, &mut window) {
                    break;
                }
                match inside(&window, window_at) {
                    Some(word) => word,
                    None => break,
                }
            }
        };
        // Size 0 ends heaps; the flag of mapped chunks has no place here.
        let bytes = word & !7;
        if bytes < 32 || !bytes.is_multiple_of(16) || word & 2 != 0 || bytes > end - at {
            break;
        }
        at += bytes;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(u64, Vec<u8>);

    impl Memory for Bytes {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            let from = (address - self.0) as usize;
            match self.1.get(from..from + into.len()) {
                Some(bytes) => {
                    into.copy_from_slice(bytes);
                    true
                }
                None => false,
            }
        }
    }

    /// Blocks with mappings of their own that the kernel shows as one mapping.
    #[test]
    fn neighbouring_mapped_blocks_are_told_apart() {
        let base = 0x7000_0000u64;
        let mut bytes = vec![0; 64 << 10];
        let mut at = 0;
        for pages in [3u64, 1, 5] {
            bytes[at + 8..at + 16].copy_from_slice(&((pages * PAGE) | 2).to_le_bytes());
            at += (pages * PAGE) as usize;
        }
        let end = base + bytes.len() as u64;
        let starts = [0, 3, 4, 9].map(|page| base + page * PAGE);
        assert_eq!(mapped_chunks(base, end, &Bytes(base, bytes.clone())), starts);
        assert_eq!(mapped_chunks(base, base + 9 * PAGE, &Bytes(base, bytes.clone())), starts);
        // Data that no allocator wrote, and a block that would reach behind the end.
        assert_eq!(mapped_chunks(base, end, &Bytes(base, vec![7; 64 << 10])), [base]);
        assert_eq!(mapped_chunks(base, base + 2 * PAGE, &Bytes(base, bytes)), [base]);
    }

    /// A made-up heap of a million chunks' worth of sizes is found whole; the walk stops at nonsense.
    #[test]
    fn walks_to_the_end_and_no_further() {
        let base = 0x1000u64;
        let sizes: Vec<u64> = (0..20_000).map(|i| 32 + 16 * (i * i % 40)).collect();
        let total: u64 = sizes.iter().sum();
        let mut heap = vec![0; total as usize + 4096];
        let (mut at, mut wanted) = (0, vec![base]);
        for size in &sizes {
            heap[at + 8..at + 16].copy_from_slice(&(size | 1).to_le_bytes());
            at += *size as usize;
            wanted.push(base + at as u64);
        }
        let end = base + heap.len() as u64;
        assert_eq!(walk(base, end, &Bytes(base, heap.clone())), wanted);
        // A size that leads past the end.
        heap[at + 8..at + 16].copy_from_slice(&(1u64 << 40 | 1).to_le_bytes());
        assert_eq!(walk(base, end, &Bytes(base, heap)).len(), wanted.len());
        assert_eq!(walk(base, end, &Bytes(base, Vec::new())), [base]);
    }
}
