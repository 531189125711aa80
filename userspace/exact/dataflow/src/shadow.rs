//! Who wrote memory last: a time for each word of 8 bytes, and for each byte where a word was
//! written in pieces.
//!
//! Pages that were never written have no room; a page whose words were written whole has one time a
//! word, and one of which some were not has room for a time a byte, of which only the words in
//! question are touched. A word that is written whole again is whole again.

use locality_stream::{Arena, Plain, Range, Span};

/// Words of a page.
const WORDS: usize = 512;
/// Bytes of a page.
const BYTES: u64 = 4096;
/// Pages remembered beside the table.
const NEAR: usize = 512;
/// Pages for which room is taken at once.
const TOGETHER: usize = 32;
/// Slots of the table at first.
const SLOTS: usize = 1 << 10;

/// The table of pages; lies in an arena. A slot: number of the page plus 1, offset of its room.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Pages {
    slots: Span<[u64; 2]>,
    used: u64,
    /// Room taken for pages to come: offset of the next, and how many are left.
    room: u64,
    left: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Pages {}

/// What a page has before its words: a bit for each word that is in pieces, and the offset of the
/// times of bytes, 0 for none.
#[derive(Clone, Copy)]
#[repr(C)]
struct Head {
    split: [u64; WORDS / 64],
    bytes: u64,
}

/// Room before the words.
const HEAD: usize = 128;

/// The table, with its index of pages.
pub(crate) struct Shadow<'a, const L: usize, A: ?Sized> {
    arena: &'a A,
    near: Box<[(u64, *mut u8); NEAR]>,
}

// SAFETY: the pointers lead into the arena, whose pages belong to the one owner of the state.
unsafe impl<const L: usize, A: Sync + ?Sized> Send for Shadow<'_, L, A> {}

fn page_bytes<const L: usize>() -> usize {
    HEAD + WORDS * L * 4
}

fn byte_times<const L: usize>() -> usize {
    BYTES as usize * L * 4
}

impl Pages {
    pub fn new<A: Arena + ?Sized>(arena: &A) -> Option<Pages> {
        Some(Pages { slots: Span::allocate(arena, SLOTS)?, used: 0, room: 0, left: 0 })
    }

    /// Forgets the room for pages to come, which another process may have changed.
    pub fn forget_room(&mut self) {
        self.left = 0;
    }

    /// Room of all tables, whose pages are counted again; `None` for impossible sizes.
    pub fn ranges<const L: usize, A: Arena + ?Sized>(&mut self, arena: &A) -> Option<Vec<Range>> {
        let mut ranges = vec![self.slots.range()];
        if !self.slots.count().is_power_of_two() || self.used as usize >= self.slots.count() {
            return None;
        }
        // SAFETY: the state has no other reference.
        let slots = unsafe { self.slots.slice(arena) }?;
        let mut used = 0;
        for [_, offset] in slots.iter().filter(|[key, _]| *key != 0) {
            used += 1;
            let page = Span::<u8>::from_parts(*offset, page_bytes::<L>());
            let at = Span::<Head64>::from_parts(*offset, 1).get(arena)?;
            page.get(arena)?;
            ranges.push(page.range());
            // SAFETY: within the arena and aligned, as just checked.
            let Head { split, bytes } = unsafe { at.cast::<Head>().read() };
            if bytes == 0 && split.iter().any(|bits| *bits != 0) {
                return None;
            }
            if bytes != 0 {
                let times = Span::<[u32; L]>::from_parts(bytes, BYTES as usize);
                times.get(arena)?;
                ranges.push(times.range());
            }
        }
        self.used = used as u64;
        // An empty slot must remain, to end searches.
        (used < slots.len()).then_some(ranges)
    }
}

/// A head as a plain value.
type Head64 = [u64; HEAD / 8];

impl<'a, const L: usize, A: Arena + ?Sized> Shadow<'a, L, A> {
    pub fn new(arena: &'a A) -> Self {
        Shadow { arena, near: Box::new([(0, std::ptr::null_mut()); NEAR]) }
    }

    fn slots(&self, pages: &Pages) -> (*mut [u64; 2], usize) {
        // The span was checked when the table was made or opened.
        let first = pages.slots.get(self.arena).map_or(std::ptr::null_mut(), |first| first.as_ptr());
        (first, pages.slots.count())
    }

    /// The page's slot, or the empty one for it.
    fn slot(&self, pages: &Pages, key: u64) -> Option<*mut [u64; 2]> {
        let (first, count) = self.slots(pages);
        if first.is_null() {
            return None;
        }
        let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (count - 1);
        loop {
            // SAFETY: below the count of the table.
            let slot = unsafe { first.add(at) };
            // SAFETY: as above.
            let found = unsafe { (*slot)[0] };
            if found == key || found == 0 {
                return Some(slot);
            }
            at = (at + 1) & (count - 1);
        }
    }

    /// A page's room; null for an unwritten page.
    #[inline(always)]
    fn page(&mut self, pages: &Pages, number: u64) -> *mut u8 {
        let key = number + 1;
        let near = &mut self.near[number as usize % NEAR];
        if near.0 == key { near.1 } else { self.look_up(pages, key) }
    }

    #[inline(never)]
    fn look_up(&mut self, pages: &Pages, key: u64) -> *mut u8 {
        let Some(slot) = self.slot(pages, key) else { return std::ptr::null_mut() };
        // SAFETY: a slot of the table.
        let [found, offset] = unsafe { *slot };
        let room = if found == key { self.at(offset) } else { std::ptr::null_mut() };
        self.near[(key - 1) as usize % NEAR] = (key, room);
        room
    }

    fn at(&self, offset: u64) -> *mut u8 {
        // SAFETY: offsets in the table were allocated, or checked when it was opened.
        unsafe { self.arena.base().as_ptr().add(offset as usize) }
    }

    #[inline(never)]
    fn make(&mut self, pages: &mut Pages, number: u64) -> Option<*mut u8> {
        if (pages.used as usize + 1) * 2 > pages.slots.count() {
            self.grow(pages)?;
        }
        if pages.left == 0 {
            (pages.room, pages.left) = (self.arena.allocate(page_bytes::<L>() * TOGETHER)?, TOGETHER as u64);
        }
        let offset = pages.room;
        (pages.room, pages.left) = (offset + page_bytes::<L>() as u64, pages.left - 1);
        let slot = self.slot(pages, number + 1)?;
        // SAFETY: an empty slot of the table.
        unsafe { *slot = [number + 1, offset] };
        pages.used += 1;
        let room = self.at(offset);
        self.near[number as usize % NEAR] = (number + 1, room);
        Some(room)
    }

    fn grow(&mut self, pages: &mut Pages) -> Option<()> {
        let (first, count) = self.slots(pages);
        let larger = Pages { slots: Span::allocate(self.arena, count * 2)?, ..*pages };
        for at in 0..count {
            // SAFETY: below the count of the old table.
            let [key, offset] = unsafe { *first.add(at) };
            if key != 0 {
                let slot = self.slot(&larger, key)?;
                // SAFETY: an empty slot of the new table.
                unsafe { *slot = [key, offset] };
            }
        }
        let old = std::mem::replace(&mut pages.slots, larger.slots);
        old.release(self.arena);
        Some(())
    }

    /// Raises `time` to that of the bytes' writers.
    #[inline(always)]
    pub fn load(&mut self, pages: &Pages, address: u64, size: u16, time: &mut [u32; L]) {
        let within = address & (BYTES - 1);
        let word = (within / 8) as usize;
        if within % 8 + u64::from(size) <= 8 {
            let page = self.page(pages, address / BYTES);
            if page.is_null() {
                return;
            }
            // SAFETY: a page's room, without other references.
            let head = unsafe { &*page.cast::<Head>() };
            if head.split[word / 64] >> (word % 64) & 1 == 0 {
                // SAFETY: below the words of the page.
                let written = unsafe { &*page.add(HEAD).cast::<[u32; L]>().add(word) };
                raise(time, written);
                return;
            }
        }
        self.load_pieces(pages, address, size, time);
    }

    #[inline(never)]
    fn load_pieces(&mut self, pages: &Pages, address: u64, size: u16, time: &mut [u32; L]) {
        self.visit(pages, address, size, |written, _| raise(time, written));
    }

    /// Shows the values of written bytes, each with a bit for each byte of the word (bit 0: the
    /// lowest address). Values may be changed; unwritten bytes are not shown.
    #[inline(always)]
    pub fn visit(&mut self, pages: &Pages, address: u64, size: u16, mut see: impl FnMut(&mut [u32; L], u8)) {
        let mut at = address;
        let end = address.saturating_add(u64::from(size));
        while at < end {
            let next = ((at | 7) + 1).min(end);
            let page = self.page(pages, at / BYTES);
            if !page.is_null() {
                let word = (at & (BYTES - 1)) as usize / 8;
                // SAFETY: a page's room, without other references.
                let head = unsafe { &*page.cast::<Head>() };
                if head.split[word / 64] >> (word % 64) & 1 == 0 {
                    let bytes = (0xff_u32 >> (8 - (next - at))) << (at % 8);
                    // SAFETY: below the words of the page.
                    see(unsafe { &mut *page.add(HEAD).cast::<[u32; L]>().add(word) }, bytes as u8);
                } else {
                    let cells = self.at(head.bytes).cast::<[u32; L]>();
                    for byte in at..next {
                        // SAFETY: a word in pieces has a page with values of bytes.
                        see(unsafe { &mut *cells.add((byte & (BYTES - 1)) as usize) }, 1 << (byte % 8));
                    }
                }
            }
            at = next;
        }
    }

    /// Notes a writer. `None` when the arena is full.
    #[inline(always)]
    pub fn store(&mut self, pages: &mut Pages, address: u64, size: u16, time: &[u32; L]) -> Option<()> {
        let within = address & (BYTES - 1);
        if size == 8 && within.is_multiple_of(8) {
            let mut page = self.page(pages, address / BYTES);
            if page.is_null() {
                page = self.make(pages, address / BYTES)?;
            }
            whole(page, within as usize / 8, time);
            return Some(());
        }
        self.store_pieces(pages, address, size, time)
    }

    #[inline(never)]
    fn store_pieces(&mut self, pages: &mut Pages, address: u64, size: u16, time: &[u32; L]) -> Option<()> {
        let mut at = address;
        let end = address.saturating_add(u64::from(size));
        while at < end {
            let next = ((at | 7) + 1).min(end);
            let mut page = self.page(pages, at / BYTES);
            if page.is_null() {
                page = self.make(pages, at / BYTES)?;
            }
            let word = (at & (BYTES - 1)) as usize / 8;
            if next - at == 8 {
                whole(page, word, time);
            } else {
                self.pieces(page, word, at..next, time)?;
            }
            at = next;
        }
        Some(())
    }

    fn pieces(
        &mut self,
        page: *mut u8,
        word: usize,
        piece: std::ops::Range<u64>,
        time: &[u32; L],
    ) -> Option<()> {
        // SAFETY: a page's room, without other references.
        let head = unsafe { &mut *page.cast::<Head>() };
        if head.bytes == 0 {
            head.bytes = self.arena.allocate(byte_times::<L>())?;
        }
        let bytes = self.at(head.bytes).cast::<[u32; L]>();
        if head.split[word / 64] >> (word % 64) & 1 == 0 {
            // SAFETY: below the words of the page.
            let before = unsafe { *page.add(HEAD).cast::<[u32; L]>().add(word) };
            for byte in word * 8..word * 8 + 8 {
                // SAFETY: below the bytes of the page.
                unsafe { *bytes.add(byte) = before };
            }
            head.split[word / 64] |= 1 << (word % 64);
        }
        for byte in piece {
            // SAFETY: as above.
            unsafe { *bytes.add((byte & (BYTES - 1)) as usize) = *time };
        }
        Some(())
    }

    /// Reduces all times by this, to 0 at least.
    pub fn rebase(&mut self, pages: &Pages, by: &[u32; L]) {
        self.each(pages, |times| {
            times.iter_mut().zip(by).for_each(|(time, by)| *time = time.saturating_sub(*by));
        });
    }

    /// Shows every value.
    pub fn each(&mut self, pages: &Pages, mut see: impl FnMut(&mut [u32; L])) {
        let (first, count) = self.slots(pages);
        let mut several = |cells: *mut [u32; L], count: usize| {
            for at in 0..count {
                // SAFETY: below the values of the page.
                see(unsafe { &mut *cells.add(at) });
            }
        };
        for at in 0..count {
            // SAFETY: below the count of the table.
            let [key, offset] = unsafe { *first.add(at) };
            if key != 0 {
                let page = self.at(offset);
                // SAFETY: a page's room.
                let head = unsafe { &*page.cast::<Head>() };
                // SAFETY: the words follow the head.
                several(unsafe { page.add(HEAD).cast() }, WORDS);
                for word in (0..WORDS).filter(|word| head.split[word / 64] >> (word % 64) & 1 == 1) {
                    // SAFETY: the word's bytes, in allocated room.
                    several(unsafe { self.at(head.bytes).cast::<[u32; L]>().add(word * 8) }, 8);
                }
            }
        }
    }
}

#[inline(always)]
fn whole<const L: usize>(page: *mut u8, word: usize, time: &[u32; L]) {
    // SAFETY: a page's room without other references, and a word of it.
    unsafe {
        let head = &mut *page.cast::<Head>();
        head.split[word / 64] &= !(1 << (word % 64));
        *page.add(HEAD).cast::<[u32; L]>().add(word) = *time;
    }
}

#[inline(always)]
pub(crate) fn raise<const L: usize>(time: &mut [u32; L], by: &[u32; L]) {
    for (time, by) in time.iter_mut().zip(by) {
        *time = (*time).max(*by);
    }
}
