//! The page shared by a child process and the parent: the child's progress, and the current input.
//!
//! The input is written to the page before the attempt:
//! the parent has the input after every end of the child.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longer inputs are cut.
pub const MOST_INPUT: usize = 4 << 20;
/// Offset of the input; the counters lie before.
const INPUT_AT: usize = 64;

/// The mapping.
pub struct Shared(NonNull<AtomicU64>);

impl Shared {
    /// Maps the file, which is made or made empty first if `is_new`.
    pub fn open(path: &Path, is_new: bool) -> io::Result<Shared> {
        let file = File::options().read(true).write(true).create(is_new).truncate(is_new).open(path)?;
        file.set_len((INPUT_AT + MOST_INPUT) as u64)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (len, fd) = (INPUT_AT + MOST_INPUT, file.as_raw_fd());
        // SAFETY: a new mapping of a file that is as long as the mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(start.cast()).map(Shared).ok_or_else(|| io::Error::other("mapped at 0"))
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the first 64 bytes of the mapping, which lives as long as the process, are words.
        unsafe { &*self.0.as_ptr().add(index) }
    }

    /// Executions begun.
    pub fn begun(&self) -> &AtomicU64 {
        self.word(0)
    }

    /// Executions that ended, by a panic or well.
    pub fn ended(&self) -> &AtomicU64 {
        self.word(1)
    }

    /// Executions that panicked.
    pub fn panicked(&self) -> &AtomicU64 {
        self.word(2)
    }

    /// Overflowing sums in a library, which wrap in releases.
    pub fn wrapped(&self) -> &AtomicU64 {
        self.word(4)
    }

    /// Writes the input of the execution that begins.
    pub fn begin(&self, input: &[u8]) {
        // SAFETY: the room after the counters, which the parent reads only when this process is
        // dead or stands still.
        unsafe {
            let room = self.0.as_ptr().cast::<u8>().add(INPUT_AT);
            std::ptr::copy_nonoverlapping(input.as_ptr(), room, input.len().min(MOST_INPUT));
        }
        self.word(3).store(input.len().min(MOST_INPUT) as u64, Ordering::Release);
        self.begun().fetch_add(1, Ordering::Release);
    }

    /// The input of the execution that began last.
    pub fn input(&self) -> Vec<u8> {
        let len = (self.word(3).load(Ordering::Acquire) as usize).min(MOST_INPUT);
        // SAFETY: within the mapping.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast::<u8>().add(INPUT_AT), len) }.to_vec()
    }
}
