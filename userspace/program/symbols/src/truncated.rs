//! Files cut short while mapped: the missing pages read as zeros.
//!
//! A read beyond the end of a mapped file raises `SIGBUS` (mmap(2)), whose default ends the
//! process. Any user may cut a file of a traced program short while its symbols are read. The
//! handler puts an empty page in the place of the page that is gone, so the reader finds zeros,
//! which it must survive like any other bytes of a stranger's file.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE_BYTES: usize = 4096;

static PAGES: AtomicU64 = AtomicU64::new(0);

/// Unreadable pages met in this process.
pub fn truncated_pages() -> u64 {
    PAGES.load(Ordering::Relaxed)
}

/// Counts unreadable pages met by another process for this one.
pub(crate) fn add_truncated_pages(pages: u64) {
    PAGES.fetch_add(pages, Ordering::Relaxed);
}

/// From now on, reads beyond the end of a mapped file find zeros in all threads of this process.
pub fn survive_truncation() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: zeros are a valid action; the handler only makes system calls and changes an atomic.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    });
}

extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives the handler a whole record, and an address with this code.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let page = address & !(PAGE_BYTES - 1);
    if code == libc::BUS_ADRERR && page != 0 {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the page is unreadable, so no content is lost; it stays mapped until its mapping
        // goes.
        let mapped = unsafe { libc::mmap(page as *mut libc::c_void, PAGE_BYTES, protection, flags, -1, 0) };
        if mapped != libc::MAP_FAILED {
            PAGES.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
    // SAFETY: with the default action, the instruction that is repeated now ends the process as it
    // would have.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::Bytes;

    #[test]
    fn a_file_that_is_cut_short_reads_as_zeros() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 10).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 64 << 10], 0).unwrap();
        let bytes = Bytes::map(&file).unwrap();
        assert_eq!((bytes[0], bytes[60_000]), (7, 7));
        file.set_len(5000).unwrap();
        let before = truncated_pages();
        assert_eq!((bytes[0], bytes[60_000], bytes[4999], bytes[5000]), (7, 0, 7, 0));
        assert_eq!(truncated_pages(), before + 1);
    }
}
