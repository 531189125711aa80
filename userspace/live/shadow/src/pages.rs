//! The private copy of the target's pages that a window works on: read once, in batches where it
//! can be foreseen, and written to here only.
//!
//! A page lies in one place for the whole window, so that a stub can be handed its address. Not
//! here: which pages a process will need ([`crate::process`]).

use std::io;
use std::ptr::NonNull;

use crate::hash::Map;
use crate::memory::{Memory, PAGE, Page, Trust};
use crate::window::End;

/// Most pages of a window, whatever its limits.
pub(crate) const MOST: usize = 16_384;
const LOOKASIDE: usize = 256;

/// A page's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Address in the target.
    pub(crate) address: u64,
    /// False if the target lacks the page.
    pub(crate) found: bool,
    /// Looked at in this window, not only fetched in advance.
    pub(crate) used: bool,
    /// The page's instructions were executed in this window.
    pub(crate) code: bool,
}

/// Why an address has no bytes.
pub(crate) type Ended = (End, u64);

#[derive(Clone, Copy)]
struct Aside {
    page: u64,
    host: usize,
}

const NOTHING: Aside = Aside { page: u64::MAX, host: 0 };

/// The pages of a window.
pub(crate) struct Pages {
    pool: NonNull<Page>,
    slots: Vec<Slot>,
    index: Map<u64, u32>,
    reads: [Aside; LOOKASIDE],
    writes: [Aside; LOOKASIDE],
    most: usize,
}

// SAFETY: owned memory without other references.
unsafe impl Send for Pages {}

impl Pages {
    /// Reserves address space; pages take memory as they are first used.
    pub(crate) fn new() -> io::Result<Pages> {
        // SAFETY: a fresh anonymous mapping.
        let pool = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                MOST * PAGE as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        let pool = if pool == libc::MAP_FAILED { None } else { NonNull::new(pool.cast::<Page>()) };
        let Some(pool) = pool else { return Err(io::Error::last_os_error()) };
        Ok(Pages {
            pool,
            slots: Vec::with_capacity(1024),
            index: Map::default(),
            reads: [NOTHING; LOOKASIDE],
            writes: [NOTHING; LOOKASIDE],
            most: 0,
        })
    }

    /// Forgets everything; from now on at most `most` pages.
    pub(crate) fn begin(&mut self, most: u64) {
        self.slots.clear();
        self.index.clear();
        self.reads = [NOTHING; LOOKASIDE];
        self.writes = [NOTHING; LOOKASIDE];
        self.most = usize::try_from(most).unwrap_or(MOST).min(MOST);
    }

    /// Pages read so far.
    pub(crate) fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Reads these pages at once, each given once and none of them read yet.
    pub(crate) fn fetch(&mut self, pages: &[u64], memory: &mut dyn Memory, found: &mut Vec<bool>) {
        let pages = pages.get(..self.most.saturating_sub(self.slots.len())).unwrap_or(pages);
        if pages.is_empty() {
            return;
        }
        found.clear();
        found.resize(pages.len(), false);
        // SAFETY: `slots.len() + pages.len()` is at most MOST, the room of the pool; slots from
        // `slots.len()` on are referred to by nothing.
        let into =
            unsafe { std::slice::from_raw_parts_mut(self.pool.as_ptr().add(self.slots.len()), pages.len()) };
        memory.read(pages, into, found);
        for (page, found) in pages.iter().zip(found.iter()) {
            self.index.insert(*page, self.slots.len() as u32);
            self.slots.push(Slot { address: *page, found: *found, used: false, code: false });
        }
    }

    /// The place of the page at `page`, read now if need be.
    #[cold]
    fn slot(&mut self, page: u64, memory: &mut dyn Memory) -> Result<usize, Ended> {
        if let Some(slot) = self.index.get(&page) {
            return Ok(*slot as usize);
        }
        if self.slots.len() >= self.most {
            return Err((End::Pages, page));
        }
        let mut found = [false];
        let slot = self.slots.len();
        // SAFETY: slot is below MOST, and nothing refers to it yet.
        let into = unsafe { &mut *self.pool.as_ptr().add(slot) };
        memory.read(&[page], std::slice::from_mut(into), &mut found);
        self.index.insert(page, slot as u32);
        self.slots.push(Slot { address: page, found: found[0], used: false, code: false });
        Ok(slot)
    }

    fn use_slot(&mut self, address: u64, memory: &mut dyn Memory) -> Result<(usize, Slot), Ended> {
        let slot = self.slot(address & !(PAGE - 1), memory)?;
        let Some(found) = self.slots.get_mut(slot) else { return Err((End::Unreadable, address)) };
        found.used = true;
        if found.found { Ok((slot, *found)) } else { Err((memory.refusal(found.address), address)) }
    }

    fn host(&self, slot: usize) -> usize {
        // SAFETY: slots are below MOST, the room of the pool.
        unsafe { self.pool.as_ptr().add(slot) as usize }
    }

    /// Where the byte at `address`, and the rest of its page, may be read.
    #[inline(always)]
    pub(crate) fn read(&mut self, address: u64, memory: &mut dyn Memory) -> Result<*const u8, Ended> {
        let page = address / PAGE;
        let aside = self.reads[page as usize % LOOKASIDE];
        if aside.page == page {
            return Ok((aside.host + (address % PAGE) as usize) as *const u8);
        }
        self.read_slowly(address, memory)
    }

    #[cold]
    fn read_slowly(&mut self, address: u64, memory: &mut dyn Memory) -> Result<*const u8, Ended> {
        let (slot, _) = self.use_slot(address, memory)?;
        let (page, host) = (address / PAGE, self.host(slot));
        self.reads[page as usize % LOOKASIDE] = Aside { page, host };
        Ok((host + (address % PAGE) as usize) as *const u8)
    }

    /// Where the byte at `address`, and the rest of its page, may be written. Never a page of code.
    #[inline(always)]
    pub(crate) fn write(&mut self, address: u64, memory: &mut dyn Memory) -> Result<*mut u8, Ended> {
        let page = address / PAGE;
        let aside = self.writes[page as usize % LOOKASIDE];
        if aside.page == page {
            return Ok((aside.host + (address % PAGE) as usize) as *mut u8);
        }
        self.write_slowly(address, memory)
    }

    #[cold]
    fn write_slowly(&mut self, address: u64, memory: &mut dyn Memory) -> Result<*mut u8, Ended> {
        let (slot, what) = self.use_slot(address, memory)?;
        // Text may not be written: the program would get a signal, or the caller is out of date.
        if what.code || memory.trust(what.address) == Trust::Text {
            return Err((End::CodeWritten, address));
        }
        let (page, host) = (address / PAGE, self.host(slot));
        self.writes[page as usize % LOOKASIDE] = Aside { page, host };
        Ok((host + (address % PAGE) as usize) as *mut u8)
    }

    /// The page of code at `page`, which from now on may not be written.
    pub(crate) fn code(&mut self, page: u64, memory: &mut dyn Memory) -> Result<&Page, Ended> {
        let slot = self.slot(page, memory)?;
        let aside = &mut self.writes[(page / PAGE) as usize % LOOKASIDE];
        if aside.page == page / PAGE {
            *aside = NOTHING;
        }
        let Some(what) = self.slots.get_mut(slot) else { return Err((End::UnreadableCode, page)) };
        what.used = true;
        what.code = what.found;
        if !what.found {
            return Err((End::UnreadableCode, page));
        }
        // SAFETY: slots are below MOST; the page is not written while the reference lives, as
        // `self` is borrowed.
        Ok(unsafe { &*self.pool.as_ptr().add(slot) })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, without remaining references.
        unsafe { libc::munmap(self.pool.as_ptr().cast(), MOST * PAGE as usize) };
    }
}
