//! Notices another file mapped in place of a known file, as after `dlclose` and `dlopen`.
//!
//! The kernel is asked for the one mapping around an address (`PROCMAP_QUERY`, include/uapi/linux/fs.h,
//! Linux 6.11), which takes a microsecond however many mappings the process has. Older kernels refuse
//! the question; the caller then reads all mappings now and then.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

use crate::maps::Mapping;

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 0xc000_0000 | ((size_of::<Query>() as libc::c_ulong) << 16) | 0x6611;

/// `struct procmap_query`.
#[derive(Debug, Default)]
#[repr(C)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_bytes: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_bytes: u32,
    build_id_bytes: u32,
    name: u64,
    build_id: u64,
}

/// Answer about a known mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Now {
    /// The same part of the same file, or memory without a file as before.
    Same,
    /// Another file, another part of the file, or nothing.
    Other,
    /// The kernel does not answer such questions.
    NoAnswer,
    /// The process has no memory any more.
    Ended,
}

/// Whether `known` is still at `address`. `maps`: an open `/proc/PID/maps`, which stays with the program's
/// memory over an exec.
pub(crate) fn ask(maps: &File, address: u64, known: &Mapping) -> Now {
    let mut query = Query { size: size_of::<Query>() as u64, address, ..Query::default() };
    // SAFETY: the structure outlives the call, has the size
    // stated in the size field, and requests no names.
    let done = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    if done < 0 {
        return match io::Error::last_os_error().raw_os_error() {
            Some(libc::ENOENT) => Now::Other,
            Some(libc::ESRCH) => Now::Ended,
            _ => Now::NoAnswer,
        };
    }
    let same_file = query.inode == known.inode && (query.device[0], query.device[1]) == known.device;
    // Neighbours merge and split, so starts and ends alone may change.
    let same_part = query.start.wrapping_sub(query.offset) == known.start.wrapping_sub(known.offset);
    if same_file && (known.inode == 0 || same_part) { Now::Same } else { Now::Other }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::Mappings;

    /// Our own code, with the fields that the text of the maps file has.
    #[test]
    fn a_mapping_is_the_same_until_another_part_of_a_file_is_there() {
        let address = ask as *const () as u64;
        let mappings = Mappings::read(std::process::id()).unwrap();
        let known = mappings.find(address).unwrap();
        let maps = File::open("/proc/self/maps").unwrap();
        let now = ask(&maps, address, known);
        if now == Now::NoAnswer {
            return;
        }
        assert_eq!((size_of::<Query>(), now), (104, Now::Same));
        let other_part = Mapping { offset: known.offset + 0x1000, ..known.clone() };
        let other_file = Mapping { inode: known.inode + 1, ..known.clone() };
        assert_eq!(ask(&maps, address, &other_part), Now::Other);
        assert_eq!(ask(&maps, address, &other_file), Now::Other);
        assert_eq!(ask(&maps, 0, known), Now::Other);
        assert_eq!(ask(&File::open("/proc/self/stat").unwrap(), address, known), Now::NoAnswer);
    }
}
