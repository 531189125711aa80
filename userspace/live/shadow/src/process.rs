//! Data of a process cached between windows: its text, and the pages used last.

use crate::hash::Map;
use crate::memory::{Memory, PAGE, Page, Trust};
use crate::pages::{Ended, Pages};
use crate::window::End;

/// Most text pages cached of a process; decoded instructions outlive them.
const TEXT: usize = 1024;
/// Most pages fetched in advance.
const ADVANCE: usize = 256;

/// A process by the caller's key.
pub(crate) struct Process {
    /// Never used for another one.
    pub(crate) number: u32,
    text: Map<u64, Box<Page>>,
    /// Pages of the last window, and whether the window before used them too.
    pages: Vec<(u64, bool)>,
    /// Text pages read in this window.
    pub(crate) text_reads: u32,
}

impl Process {
    pub(crate) fn new(number: u32) -> Process {
        Process { number, text: Map::default(), pages: Vec::new(), text_reads: 0 }
    }

    /// Reads the probable pages of the window at once: those used by each of the last two. Other
    /// pages are read on demand, which takes little longer.
    pub(crate) fn fetch(&mut self, pages: &mut Pages, memory: &mut dyn Memory, most: u64) {
        self.text_reads = 0;
        let most = usize::try_from(most / 2).unwrap_or(ADVANCE).min(ADVANCE);
        let usual = self.pages.iter().filter(|(_, twice)| *twice);
        let list: Vec<u64> = usual.take(most).map(|(page, _)| *page).collect();
        pages.fetch(&list, memory, &mut Vec::with_capacity(list.len()));
    }

    /// Notes what the window used, if anything.
    pub(crate) fn learn(&mut self, pages: &Pages) {
        if !pages.slots().iter().any(|slot| slot.used) {
            return;
        }
        let before: Map<u64, bool> = self.pages.drain(..).collect();
        let used = pages.slots().iter().filter(|slot| slot.found && slot.used);
        self.pages = used.map(|slot| (slot.address, before.contains_key(&slot.address))).collect();
    }

    /// Copies the code at `ip`, at most 15 bytes. Returns their number, and whether all of it may
    /// be cached for good.
    pub(crate) fn code(
        &mut self,
        ip: u64,
        into: &mut [u8; 15],
        pages: &mut Pages,
        memory: &mut dyn Memory,
    ) -> Result<(usize, bool), Ended> {
        let offset = (ip % PAGE) as usize;
        let (page, kept) = self.page(ip - offset as u64, pages, memory)?;
        let mut count = 0;
        for (to, from) in into.iter_mut().zip(page.iter().skip(offset)) {
            *to = *from;
            count += 1;
        }
        if count == into.len() {
            return Ok((count, kept));
        }
        let Some(second) = (ip - offset as u64).checked_add(PAGE) else { return Ok((count, kept)) };
        match self.page(second, pages, memory) {
            Ok((page, also_kept)) => {
                for (to, from) in into.iter_mut().skip(count).zip(page) {
                    *to = *from;
                }
                Ok((into.len(), kept && also_kept))
            }
            Err((End::UnreadableCode, _)) => Ok((count, kept)),
            Err(ended) => Err(ended),
        }
    }

    /// A page of code, and whether it may be cached for good.
    pub(crate) fn page<'a>(
        &'a mut self,
        page: u64,
        pages: &'a mut Pages,
        memory: &mut dyn Memory,
    ) -> Result<(&'a Page, bool), Ended> {
        if !self.text.contains_key(&page) {
            if memory.trust(page) != Trust::Text {
                return pages.code(page, memory).map(|page| (page, false));
            }
            let mut bytes = Box::new([[0; PAGE as usize]]);
            let mut found = [false];
            memory.read(&[page], &mut *bytes, &mut found);
            self.text_reads += 1;
            if !found[0] {
                return Err((End::UnreadableCode, page));
            }
            if self.text.len() >= TEXT {
                self.text.clear();
            }
            let [bytes] = *bytes;
            self.text.insert(page, Box::new(bytes));
        }
        self.text.get(&page).map(|page| (&**page, true)).ok_or((End::UnreadableCode, page))
    }
}
