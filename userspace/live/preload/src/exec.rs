//! Our variables in the environment: taken out before the program starts.
//!
//! The tracer adds two variables at the end: [`OURS`]'s first variable, and `LD_PRELOAD` or, if the
//! program's own `LD_PRELOAD` is extended, a filler. The removal leaves no hole before the kernel's
//! auxiliary vector, because programs look for the vector after the environment: an ignored entry
//! (`AT_IGNORE`) fills the place.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::start::{OURS, begins};

/// Longest of our paths, with the final zero.
pub const PATH_BYTES: usize = 64;
/// A stored path, because the program may overwrite the environment.
pub struct Path([AtomicU8; PATH_BYTES]);

/// The shared memory's file.
pub static RING: Path = Path([const { AtomicU8::new(0) }; PATH_BYTES]);
/// This library's file.
pub static LIBRARY: Path = Path([const { AtomicU8::new(0) }; PATH_BYTES]);

const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// `AT_IGNORE` of the auxiliary vector.
const AT_IGNORE: usize = 1;
/// More variables than this are not looked through.
const VARIABLES_MAX: usize = 1 << 16;

impl Path {
    fn set(&self, bytes: &[u8]) {
        let bytes = bytes.iter().copied().chain(core::iter::repeat(0));
        self.0
            .iter()
            .take(PATH_BYTES - 1)
            .zip(bytes)
            .for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
    }

    /// The path's bytes, with a final zero.
    pub fn as_ptr(&self) -> *const u8 {
        (&raw const self.0).cast()
    }

    /// The path's bytes without the final zero.
    pub fn bytes(&self) -> impl Iterator<Item = u8> + '_ {
        self.0.iter().map(|byte| byte.load(Ordering::Relaxed)).take_while(|byte| *byte != 0)
    }
}

/// Takes our variables out of an environment, and returns the
/// address of our main variable; `None` without our variables.
///
/// # Safety
/// An array of strings that ends with a null pointer, and may be written.
pub unsafe fn take_out(environment: *mut *mut u8) -> Option<u64> {
    if environment.is_null() {
        return None;
    }
    // SAFETY: the caller's promise; no index goes beyond the end that was found.
    unsafe {
        let mut ours = None;
        let mut count = 0;
        while !(*environment.add(count)).is_null() {
            let variable = *environment.add(count);
            if begins(variable, OURS[0]) {
                ours = Some(variable);
            }
            count += 1;
            if count == VARIABLES_MAX {
                return None;
            }
        }
        let ours = ours?;
        let value = CStr::from_ptr(ours.add(OURS[0].len()).cast()).to_bytes();
        let mut paths = value.split(|byte| *byte == b':');
        let (ring, library) = (paths.next()?, paths.next()?);
        if ring.len() >= PATH_BYTES || library.len() >= PATH_BYTES {
            return None;
        }
        RING.set(ring);
        LIBRARY.set(library);
        let mut left = 0;
        for at in 0..count {
            let variable = *environment.add(at);
            let is_ours = OURS.iter().any(|name| begins(variable, name))
                || (begins(variable, PRELOAD) && !cut(variable.add(PRELOAD.len())));
            if !is_ours {
                *environment.add(left) = variable;
                left += 1;
            }
        }
        for at in left..count {
            *environment.add(at) = core::ptr::null_mut();
        }
        if count == left + 2 {
            *environment.add(left + 1) = core::ptr::without_provenance_mut(AT_IGNORE);
        }
        Some(ours as u64)
    }
}

/// Cuts our library off the end of a list of libraries; false where nothing is left.
///
/// # Safety
/// A string that may be written.
unsafe fn cut(list: *mut u8) -> bool {
    // SAFETY: the caller's promise; only a byte of the string is written.
    unsafe {
        let bytes = CStr::from_ptr(list.cast()).to_bytes();
        let own = LIBRARY.bytes().count();
        let Some(before) = bytes.len().checked_sub(own) else { return true };
        if own == 0 || !bytes.iter().skip(before).copied().eq(LIBRARY.bytes()) {
            return true;
        }
        match before.checked_sub(1) {
            Some(colon) => {
                *list.add(colon) = 0;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    /// What is left of an environment, and what lies behind it, up to the vector's first entry.
    fn without(variables: &[&str]) -> (Vec<String>, Vec<usize>) {
        let strings: Vec<*mut u8> =
            variables.iter().map(|text| CString::new(*text).unwrap().into_raw().cast()).collect();
        let mut array: Vec<*mut u8> = strings.clone();
        array.extend([std::ptr::null_mut(), std::ptr::without_provenance_mut(33)]);
        // SAFETY: as it demands.
        unsafe { take_out(array.as_mut_ptr()) };
        let left = array.iter().take_while(|text| !text.is_null());
        // SAFETY: strings made above.
        let left: Vec<String> =
            left.map(|text| unsafe { CStr::from_ptr((*text).cast()) }.to_str().unwrap().to_owned()).collect();
        let behind = array[left.len() + 1..].iter().map(|word| word.addr()).collect();
        (left, behind)
    }

    #[test]
    fn our_variables_go_and_the_auxiliary_vector_is_found() {
        let ours = "LOCALITY_HEAP=/proc/12/fd/4:/proc/12/fd/5";
        let (left, behind) = without(&["A=1", "B=2", "LD_PRELOAD=/proc/12/fd/5", ours]);
        assert_eq!(left, ["A=1", "B=2"]);
        assert_eq!(behind, [AT_IGNORE, 0, 33]);
        let (left, behind) =
            without(&["LD_PRELOAD=a.so:b.so:/proc/12/fd/5", "B=2", ours, "LOCALITY_HEAP_END="]);
        assert_eq!(left, ["LD_PRELOAD=a.so:b.so", "B=2"]);
        assert_eq!(behind, [AT_IGNORE, 0, 33]);
        // Nothing of ours: nothing changes.
        let (left, behind) = without(&["LD_PRELOAD=a.so", "B=2"]);
        assert_eq!((left.len(), behind), (2, vec![33]));
    }
}
