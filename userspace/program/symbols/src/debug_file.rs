//! Finds the separate debug file of a stripped binary.
//!
//! Search order and places are those of gdb's manual, "Debugging Information in Separate Files": by
//! build id below `/usr/lib/debug/.build-id`, then by the name in `.gnu_debuglink` beside the
//! binary, in `.debug` beside it, and below `/usr/lib/debug`. Each is looked for in the process's
//! own root directory (containers) and then in ours. A file is taken only when its build id is the
//! binary's, or, for binaries without one, when the CRC of the link is right. Not here: debuginfod;
//! supplementary dwz files (blazesym follows those).

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSection as _};

use crate::compressed::is_bounded;
use crate::elf::{Bytes, Elf};
use crate::opening::{Links, open_below, open_regular};

/// Directories in which blazesym looks for linked debug files.
const DEBUG_DIRECTORIES: [&str; 2] = ["/usr/lib/debug", "/lib/debug"];

/// Whether the further files that blazesym will open for `file` are regular files with
/// sections that may be unpacked. blazesym follows links by name (`.gnu_debuglink`,
/// `.gnu_debugaltlink`, `.debug_sup`), and would wait for ever at a FIFO.
pub(crate) fn links_are_harmless(elf: &[u8], file: &File) -> bool {
    let Ok(parsed) = ElfFile64::<Endianness>::parse(elf) else { return true };
    let beside = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default();
    for section in [".gnu_debuglink", ".gnu_debugaltlink", ".debug_sup"] {
        let Some(section) = parsed.section_by_name(section) else { continue };
        // The last begins with its version, of two bytes, and a flag.
        let skip = if section.name() == Ok(".debug_sup") { 3 } else { 0 };
        let text = section.data().ok().and_then(|data| data.get(skip..)).unwrap_or_default();
        let name = Path::new(OsStr::from_bytes(text.split(|byte| *byte == 0).next().unwrap_or_default()));
        let mut folders: Vec<PathBuf> = DEBUG_DIRECTORIES.map(PathBuf::from).to_vec();
        for directory in DEBUG_DIRECTORIES {
            let inside = beside.parent().and_then(|folder| folder.strip_prefix("/").ok());
            folders
                .extend(inside.into_iter().flat_map(Path::ancestors).map(|at| Path::new(directory).join(at)));
        }
        folders.extend(beside.parent().map(Path::to_owned));
        let is_harmless = |place: PathBuf| match open_regular(&place) {
            Ok(file) => Bytes::map(&file).is_ok_and(|bytes| is_bounded(&bytes)),
            Err(error) => error.kind() != std::io::ErrorKind::InvalidInput,
        };
        if !folders.into_iter().map(|folder| folder.join(name)).all(is_harmless) {
            return false;
        }
    }
    true
}

/// The open debug file for `elf`, which the process sees at `path` below `root`.
pub(crate) fn find(elf: &Elf, root: &Path, path: &str) -> Option<File> {
    candidates(elf, path).into_iter().find_map(|candidate| {
        let below = open_below(root, &candidate, Links::All);
        [below, open_regular(&candidate)].into_iter().flatten().find_map(|file| if_right(file, elf))
    })
}

fn candidates(elf: &Elf, path: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if let Some((first, rest)) = elf.build_id.split_at_checked(2)
        && !rest.is_empty()
    {
        found.push(PathBuf::from(format!("/usr/lib/debug/.build-id/{first}/{rest}.debug")));
    }
    if let (Some((name, _)), Some(directory)) = (&elf.debug_link, Path::new(path).parent())
        && directory.is_absolute()
        && !name.contains('/')
    {
        found.push(directory.join(name));
        found.push(directory.join(".debug").join(name));
        found.push(
            Path::new("/usr/lib/debug").join(directory.strip_prefix("/").unwrap_or(directory)).join(name),
        );
    }
    found
}

fn if_right(file: File, binary: &Elf) -> Option<File> {
    let debug = Elf::parse(Bytes::map(&file).ok()?)?;
    let right = if binary.build_id.is_empty() {
        binary.debug_link.as_ref().is_some_and(|(_, crc)| crc32fast::hash(&debug.bytes) == *crc)
    } else {
        debug.build_id == binary.build_id
    };
    (right && (debug.has_debug_info() || debug.has_symbol_table)).then_some(file)
}
