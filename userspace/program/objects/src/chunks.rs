//! Blocks of glibc's main heap, by walking its own bookkeeping: for blocks that neither a record
//! nor a pointer names, so that they are at least told by their size.
//!
//! Source: glibc 2.36, malloc/malloc.c, `struct malloc_chunk`: each block is preceded by its
//! chunk's size and flags, and the next chunk follows. The walk ends at the first word that cannot
//! be a chunk's, and at [`MAX_BYTES`]. Whether a block is in use cannot be told (freed ones in
//! thread caches look the same), and it may have been another one at the sample's time. Not here:
//! heaps of other threads' arenas, other allocators.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::module::{add, blank};
use crate::named::{Kind, Named, Object};
use crate::place::Memory;
use crate::resolver::Resolver;

/// Memory that one walk may go through, and chunks that it may find.
const MAX_BYTES: u64 = 256 << 20;
const MAX_CHUNKS: usize = 4 << 20;
/// Bytes read at once.
const WINDOW: usize = 256 << 10;
/// One part in this many of the time may go into walking.
const WALKING_SHARE: u32 = 50;
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// What the last walk found.
#[derive(Debug, Default)]
pub(crate) struct Chunks {
    /// Starts of the chunks, ascending; the last one is where the walk ended.
    starts: Vec<u64>,
    next_walk: Option<Instant>,
    /// By usable bytes.
    objects: HashMap<u64, Arc<Object>>,
}

impl Resolver {
    /// Names a place in the program's break by the size of the block around it.
    pub(crate) fn by_size(&mut self, address: u64, memory: &dyn Memory, region: usize) -> Option<Named> {
        let (block, bytes) = self.chunk(address, memory, region)?;
        let objects = &mut self.objects;
        let object = self.chunks.objects.entry(bytes).or_insert_with(|| {
            let name = format!("[malloc blocks of {bytes} bytes]").into();
            let unknown =
                Some("no record and no pointer tells more than its size in the allocator's own list".into());
            add(objects, Object { name, bytes, inferred: true, unknown, ..blank(Kind::Heap) })
        });
        let object = Arc::clone(object);
        // A place in the header counts as the block's start.
        Some(Named { object, offset: address.saturating_sub(block), field: None })
    }

    /// Start and usable bytes of the block around an address of the program's break.
    fn chunk(&mut self, address: u64, memory: &dyn Memory, region: usize) -> Option<(u64, u64)> {
        let region = self.space.region(region)?;
        let (start, end) = (region.mapping.start, region.mapping.end);
        if &*region.mapping.path != "[heap]" || !self.space.maps_file_named("libc.so") {
            return None;
        }
        let now = Instant::now();
        if self.chunks.next_walk.is_none_or(|next| next <= now) {
            self.chunks.starts = walk(start, end, memory);
            let took = now.elapsed();
            self.chunks.next_walk = Some(Instant::now() + (took * WALKING_SHARE).max(MIN_INTERVAL));
        }
        let starts = &self.chunks.starts;
        let behind = starts.partition_point(|chunk| *chunk <= address);
        let (chunk, next) = (*starts.get(behind.checked_sub(1)?)?, *starts.get(behind)?);
        // The block's last word is the next chunk's first.
        Some((chunk + 16, next - chunk - 8))
    }
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
