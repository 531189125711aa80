//! The kernel's clock pages, mapped into every process beside the vDSO: `[vvar]`
//! and, since Linux 6.13, `[vvar_vclock]`. No process can read another's clock pages
//! through `/proc/PID/mem`, so a window that reads the clock sees our pages instead.
//!
//! Pages of a mapping have different contents on different kernels, so our page stands for the
//! target's page at an equal offset in an equal mapping of equal length, on one kernel. Pages of
//! `[vvar]` differ between time namespaces (`time_namespaces(7)`), hence [`is_same_time`]; unused
//! pages (another hypervisor's clock) fault, and are left out.
//!
//! Limits: a page is a copy at one moment, so a window's clock advances by the processor's clock
//! alone and a coarse clock stands still. A clock source first used later stays unreadable.

use std::fs;
use std::os::fd::AsRawFd as _;

use super::ranges::{Clock, clock_mappings};
use crate::memory::{PAGE, Page};

/// Copies that may differ before the last is taken: the kernel writes for less than a microsecond
/// and at most some thousand times a second.
const ATTEMPTS: usize = 16;

/// Our own clock pages.
#[derive(Debug, Default)]
pub(super) struct ClockPages {
    mappings: Vec<(Clock, Vec<Option<u64>>)>,
}

impl ClockPages {
    /// Finds the pages in `/proc/self/maps`. No pages after an error.
    pub(super) fn find() -> ClockPages {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mappings = clock_mappings(&maps).map(|(clock, start, end)| {
            let pages = (start..end).step_by(PAGE as usize);
            (clock, pages.map(|page| is_readable(page).then_some(page)).collect())
        });
        ClockPages { mappings: mappings.collect() }
    }

    /// Copies page `number` of a mapping with `count` pages. Returns whether the page exists.
    pub(super) fn copy(&self, clock: Clock, number: u64, count: u64, into: &mut Page) -> bool {
        let ours = self.mappings.iter().find(|(kind, pages)| *kind == clock && pages.len() as u64 == count);
        let page = ours.and_then(|(_, pages)| *pages.get(usize::try_from(number).ok()?)?);
        let Some(page) = page else { return false };
        let words = page as *const u64;
        let (whole, _) = into.as_chunks_mut::<{ size_of::<u64>() }>();
        for _ in 0..ATTEMPTS {
            let mut differs = false;
            // Twice, to exclude a page under the kernel's hands.
            for pass in 0..2 {
                for (n, word) in whole.iter_mut().enumerate() {
                    // SAFETY: our page was readable, and stays mapped for the life
                    // of the process; the kernel writes the page, hence volatile.
                    let now = unsafe { words.add(n).read_volatile() }.to_ne_bytes();
                    differs |= pass == 1 && now != *word;
                    *word = now;
                }
            }
            if !differs {
                break;
            }
        }
        true
    }
}

/// Whether a page of ours can be read: the kernel tries the
/// read in our place, and refuses where we would get `SIGBUS`.
fn is_readable(page: u64) -> bool {
    let Ok((_reader, writer)) = std::io::pipe() else { return false };
    // SAFETY: the kernel checks the address.
    unsafe { libc::write(writer.as_raw_fd(), page as *const libc::c_void, 1) == 1 }
}

/// Whether a process that we may trace sees the times that our children
/// see. A kernel without time namespaces (before 5.6) has a single time.
///
/// Limit: after a change of the namespace without `execve` (`setns(2)`),
/// the change is found at the next reading of the mappings.
pub(super) fn is_same_time(pid: u32) -> bool {
    let missing = |path: &str| {
        fs::read_link(path).map_or_else(
            |e| (e.kind() == std::io::ErrorKind::NotFound).then_some(None),
            |link| Some(Some(link)),
        )
    };
    let ours = missing("/proc/self/ns/time_for_children");
    ours.is_some() && ours == missing(&format!("/proc/{pid}/ns/time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_pages_are_copied_and_nothing_beyond_them() {
        let ours = ClockPages::find();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let (_, start, end) = clock_mappings(&maps).find(|(clock, ..)| *clock == Clock::Kernel).unwrap();
        let count = (end - start) / PAGE;
        let mut page = [0; PAGE as usize];
        let copied = (0..count).filter(|n| ours.copy(Clock::Kernel, *n, count, &mut page)).count();
        // The kernel's times; pages of another namespace's are there only in one.
        assert!(copied >= 1, "{ours:?}");
        assert!(!ours.copy(Clock::Kernel, count, count, &mut page));
        assert!(!ours.copy(Clock::Kernel, u64::MAX, count, &mut page));
        // A mapping of another length is another kernel's.
        assert!(!ours.copy(Clock::Kernel, 0, count + 1, &mut page));
        assert!(!ClockPages::default().copy(Clock::Kernel, 0, count, &mut page));
    }

    #[test]
    fn the_page_of_times_goes_on() {
        let ours = ClockPages::find();
        let (_, pages) = ours.mappings.iter().find(|(clock, _)| *clock == Clock::Kernel).unwrap();
        let mut page = [0; PAGE as usize];
        let mut all = || {
            let count = pages.len() as u64;
            let copies = (0..count).map(|n| ours.copy(Clock::Kernel, n, count, &mut page).then_some(page));
            copies.collect::<Vec<_>>()
        };
        let first = all();
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert_ne!(first, all());
    }

    #[test]
    fn an_unreadable_page_is_found_out_without_harm() {
        assert!(is_readable(std::ptr::from_ref(&[1_u8]) as u64));
        assert!(!is_readable(0) && !is_readable(u64::MAX - PAGE));
    }

    #[test]
    fn our_children_see_our_time_and_nobody_sees_that_of_the_missing() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(is_same_time(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        // Gone, so that its link is missing as on a kernel without namespaces, which ours is not.
        assert!(!is_same_time(child.id()) || !fs::exists("/proc/self/ns/time_for_children").unwrap());
    }
}
