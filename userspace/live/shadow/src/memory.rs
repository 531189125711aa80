//! Where a window reads the target's memory. Not here: the private copy that it writes to.

use crate::window::End;

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// A page's bytes.
pub type Page = [u8; PAGE as usize];

/// What may be cached of a page from one window to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Text of a file, mapped private, executable and not writable: it does not change while it is mapped.
    Text,
    /// Anything else: read anew for each window; decoded code from it is checked anew.
    Nothing,
}

/// A process' memory.
pub trait Memory {
    /// Copies whole pages. `pages` are addresses of first bytes, multiples of [`PAGE`], each given
    /// once; `found[i]` is set to whether page i could be read. The three slices are equally long.
    fn read(&mut self, pages: &[u64], into: &mut [Page], found: &mut [bool]);

    /// Permission to cache the page at this address.
    fn trust(&self, page: u64) -> Trust;

    /// How a window ends at data of a page that could not be read.
    fn refusal(&self, _page: u64) -> End {
        End::Unreadable
    }
}
