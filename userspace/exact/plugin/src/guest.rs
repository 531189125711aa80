//! The program's memory, read so that a bad address is an answer and not a fault.

use std::{ffi::CString, sync::atomic::Ordering::Relaxed};

use crate::process::Process;

/// Longest string of an argument list, as the kernel's `MAX_ARG_STRLEN`.
const STRING_MAX: usize = 32 * 4096;
/// Most strings of an argument list.
const STRINGS_MAX: u64 = 1 << 20;

/// Copies guest memory; the number of bytes that could be read.
pub fn read(process: &Process, address: u64, into: &mut [u8]) -> usize {
    let host = address.wrapping_add(process.region().header().guest_base.load(Relaxed));
    let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let remote = libc::iovec { iov_base: host as *mut libc::c_void, iov_len: into.len() };
    // SAFETY: `local` is ours and valid for writing; the kernel checks `remote`.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    usize::try_from(copied).unwrap_or(0)
}

/// A string.
pub fn string(process: &Process, address: u64) -> Option<CString> {
    let mut text = Vec::new();
    let mut chunk = [0u8; 256];
    while text.len() < STRING_MAX {
        let at = address.checked_add(text.len() as u64)?;
        // Up to a page's end, since the next page may be missing.
        let room = (4096 - at % 4096).min(chunk.len() as u64) as usize;
        let part = chunk.get_mut(..room)?;
        let count = read(process, at, part);
        let part = part.get(..count).filter(|part| !part.is_empty())?;
        match part.iter().position(|byte| *byte == 0) {
            Some(end) => {
                text.extend_from_slice(part.get(..end)?);
                return CString::new(text).ok();
            }
            None => text.extend_from_slice(part),
        }
    }
    None
}

/// A list of strings that a null pointer ends; empty for a null list, as the kernel takes it.
pub fn strings(process: &Process, list: u64) -> Option<Vec<CString>> {
    let mut strings = Vec::new();
    if list == 0 {
        return Some(strings);
    }
    for at in 0..STRINGS_MAX {
        let mut pointer = [0; 8];
        if read(process, list.checked_add(at * 8)?, &mut pointer) != pointer.len() {
            return None;
        }
        match u64::from_le_bytes(pointer) {
            0 => return Some(strings),
            address => strings.push(string(process, address)?),
        }
    }
    None
}
