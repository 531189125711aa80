//! What the allocation probes and user space share: records, map values, kinds of functions, and
//! how a site is named.
//!
//! User space decides the kinds of a library's functions; `record` has the sampling records.

use crate::record::{Header, Plain, Registers};

/// Use of arguments by an allocation function; the low byte of a probe's cookie.
pub mod function {
    /// `malloc(bytes)`, `operator new(bytes, …)`, `valloc(bytes)`.
    pub const MALLOC: u32 = 1;
    /// `calloc(n, bytes)`.
    pub const CALLOC: u32 = 2;
    /// `realloc(block, bytes, …)`.
    pub const REALLOC: u32 = 3;
    /// `reallocarray(block, n, bytes)`.
    pub const REALLOC_ARRAY: u32 = 4;
    /// `aligned_alloc(alignment, bytes)`, `memalign(alignment, bytes)`, mimalloc's
    /// `heap_malloc(heap, bytes, …)`.
    pub const MEMALIGN: u32 = 5;
    /// `posix_memalign(&block, alignment, bytes)`: returns 0 or an error.
    pub const POSIX_MEMALIGN: u32 = 6;
    /// `mmap(address, bytes, protection, flags, …)`: fails with −1.
    pub const MMAP: u32 = 7;
    /// `free(block, …)`, `operator delete(block, …)`.
    pub const FREE: u32 = 8;
    /// `munmap(block, bytes)`.
    pub const MUNMAP: u32 = 9;
    /// Rust's `realloc(block, old bytes, alignment, bytes)`.
    pub const RUST_REALLOC: u32 = 10;
    /// mimalloc's `heap_calloc(heap, n, bytes)`.
    pub const HEAP_CALLOC: u32 = 11;
    /// mimalloc's `heap_realloc(heap, block, bytes, …)`.
    pub const HEAP_REALLOC: u32 = 12;
    /// Bits of a cookie for the function.
    pub const MASK: u64 = 0xff;
    /// Cookie bit: the kernel must step over the probed instruction, the dearer kind.
    pub const STEPPED: u64 = 0x200;
    /// Cookie bit: an allocator's function in the program itself. The
    /// place of a call does not distinguish calls by the allocator.
    pub const OWN: u64 = 0x400;
}

/// Event of a block; the value of [`HeapRecord::event`].
pub mod event {
    /// The block was allocated.
    pub const ALLOCATED: u32 = 1;
    /// The block is about to be given back.
    pub const FREED: u32 = 2;
    /// The block was allocated in place of [`super::HeapRecord::old_address`].
    pub const MOVED: u32 = 3;
}

/// A block was allocated or given back.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct HeapRecord {
    /// Common part; the time is the function's return, for a free the call.
    pub header: Header,
    /// First byte.
    pub address: u64,
    /// Size as it was asked for.
    pub bytes: u64,
    /// For [`event::MOVED`] the former block, now freed; else 0.
    pub old_address: u64,
    /// Name of the place and its callers ([`site`]), for a free 0.
    pub site: u64,
    /// When the function was called.
    pub called_ns: u64,
    /// One of [`event`].
    pub event: u32,
    /// One of [`function`].
    pub function: u32,
}

/// A new site: the place. The copied stack follows, from `regs.rsp` upwards.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct HeapSiteRecord {
    /// Common part.
    pub header: Header,
    /// The site's name.
    pub site: u64,
    /// Size of the first request there.
    pub bytes: u64,
    /// One of [`function`].
    pub function: u32,
    /// Explicit padding.
    pub reserved: u32,
    /// Registers at the function's entry.
    pub regs: Registers,
}

/// Map key of a live block.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LiveKey {
    /// First byte.
    pub address: u64,
    /// Process.
    pub tgid: u32,
    /// Explicit padding, always 0 (part of the key).
    pub reserved: u32,
}

/// Map value of a live block.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LiveBlock {
    /// Size as it was asked for.
    pub bytes: u64,
    /// Time of the allocation.
    pub since_ns: u64,
}

/// Map value: the allocation that a thread is in the middle of.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pending {
    /// Stack pointer at the entry, where the return address stands.
    pub rsp: u64,
    /// The return address: a probe of the return replaces it on the stack.
    pub return_address: u64,
    /// Size that is asked for.
    pub bytes: u64,
    /// Reallocated block, or the place for the address of the new one.
    pub block: u64,
    /// Name of the site.
    pub site: u64,
    /// Time of the call.
    pub called_ns: u64,
    /// [`HeapSettings::epoch`] then: after a pause of the probes a return may have been missed.
    pub epoch: u32,
    /// One of [`function`].
    pub function: u32,
}

/// Map value: the program text of a process, in which return addresses are looked for to name a site.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextRange {
    /// First byte.
    pub start: u64,
    /// First address after the last byte.
    pub end: u64,
}

impl TextRange {
    /// Whether the range contains an address.
    #[inline(always)]
    pub const fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.end.wrapping_sub(self.start)
    }
}

/// Allocator libraries of a process, distinguished from further code.
pub const ALLOCATORS_MAX: usize = 4;

/// Map value: ranges of a process's code that decide about a call.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessText {
    /// The program's.
    pub program: TextRange,
    /// Ranges of allocator libraries: their mappings are a store of blocks.
    pub allocators: [TextRange; ALLOCATORS_MAX],
}

/// Map value: the last small allocation of a thread by an allocator in the program itself.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SmallCall {
    /// Stack pointer at the entry, where the return address stands.
    pub rsp: u64,
    /// The return address: while unchanged on the stack, the call is probably under way.
    pub return_address: u64,
}

/// Whether `mmap` with these flags gives the program memory, neither a file nor a thread's stack.
#[inline(always)]
pub const fn is_memory(mmap_flags: u64) -> bool {
    const MAP_ANONYMOUS: u64 = 0x20;
    const MAP_STACK: u64 = 0x2_0000;
    mmap_flags & (MAP_ANONYMOUS | MAP_STACK) == MAP_ANONYMOUS
}

/// Settings that user space may change while the probes run.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeapSettings {
    /// Smaller allocations are only counted.
    pub min_bytes: u64,
    /// Rises whenever the probes were away.
    pub epoch: u32,
    /// Explicit padding.
    pub reserved: u32,
}

/// Whether a function takes a block and returns another in its place.
pub const fn reallocates(which: u32) -> bool {
    matches!(
        which,
        function::REALLOC | function::REALLOC_ARRAY | function::RUST_REALLOC | function::HEAP_REALLOC
    )
}

/// Words above the return address that are looked at together, and how often.
pub const SITE_WORDS: usize = 16;
/// See [`SITE_WORDS`].
pub const SITE_PIECES: usize = 4;

/// Bits of the stack pointer that go into a site's name: two threads
/// with one call path have equal bits, two paths mostly have not.
const DEPTH_MASK: u64 = 0xffff;

/// Names a site: by the return address, the depth of the stack, and (by
/// [`site_piece`]) the words above that point into the program's text: the returns of
/// the callers, and leftovers of earlier calls. One path may thus get several names.
/// Two paths that agree in all of these inputs, but part further up, get one name.
#[inline(always)]
pub const fn site(tgid: u32, rsp: u64, return_address: u64) -> u64 {
    mix(mix(tgid as u64 | 1 << 32, rsp & DEPTH_MASK), return_address)
}

/// The name after the next words.
#[inline(always)]
pub fn site_piece(mut name: u64, words: &[u64; SITE_WORDS], text: TextRange) -> u64 {
    for word in words {
        if text.contains(*word) {
            name = mix(name, *word);
        }
    }
    name
}

/// One step of a multiplicative hash with a rotation (as FxHash does).
#[inline(always)]
const fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

const _: () = {
    assert!(size_of::<HeapRecord>() == 32 + 48);
    assert!(size_of::<HeapSiteRecord>() == 32 + 24 + 168);
    assert!(size_of::<LiveKey>() == 16);
    assert!(size_of::<LiveBlock>() == 16);
    assert!(size_of::<Pending>() == 56);
    assert!(size_of::<TextRange>() == 16);
    assert!(size_of::<ProcessText>() == 16 * (1 + ALLOCATORS_MAX));
    assert!(size_of::<SmallCall>() == 16);
    assert!(size_of::<HeapSettings>() == 16);
};

// SAFETY: integers only, padding explicit, sizes asserted above.
unsafe impl Plain for HeapRecord {}
// SAFETY: as above.
unsafe impl Plain for HeapSiteRecord {}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: integers only, no implicit padding (sizes asserted above).
    unsafe impl aya::Pod for super::LiveKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::LiveBlock {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::ProcessText {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::HeapSettings {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: TextRange = TextRange { start: 0x5500_0000_1000, end: 0x5500_0000_9000 };

    proptest! {
        #[test]
        fn data_on_the_stack_does_not_name_a_site_and_returns_do(
            data in proptest::collection::vec(any::<u64>().prop_filter("no text", |word| word.wrapping_sub(TEXT.start) >= 0x8000), SITE_WORDS),
            at in 0..SITE_WORDS,
            into in TEXT.start..TEXT.end,
        ) {
            let mut words: [u64; SITE_WORDS] = data.try_into().unwrap();
            let name = site(7, 0x7ffe_1000, TEXT.start + 8);
            prop_assert_eq!(site_piece(name, &words, TEXT), name);
            words[at] = into;
            prop_assert_ne!(site_piece(name, &words, TEXT), name);
            prop_assert_eq!(site_piece(name, &words, TextRange::default()), name);
        }
    }

    #[test]
    fn only_memory_is_a_block() {
        let private = libc_flags(&[0x02, 0x20]);
        assert!(is_memory(private) && is_memory(libc_flags(&[0x01, 0x20])));
        // A file, and glibc's stacks of threads.
        assert!(!is_memory(0x02) && !is_memory(libc_flags(&[0x02, 0x20, 0x2_0000])));
    }

    fn libc_flags(flags: &[u64]) -> u64 {
        flags.iter().fold(0, |all, flag| all | flag)
    }

    #[test]
    fn depth_and_process_tell_sites_apart_and_the_thread_does_not() {
        let at = |tgid, rsp| site(tgid, rsp, TEXT.start + 8);
        assert_eq!(at(7, 0x7f00_1234_5678), at(7, 0x7f11_4321_5678));
        assert_ne!(at(7, 0x7f00_1234_5678), at(7, 0x7f00_1234_5698));
        assert_ne!(at(7, 0x7f00_1234_5678), at(8, 0x7f00_1234_5678));
    }
}
