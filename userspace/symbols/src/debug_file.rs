//! Finds the separate debug file of a stripped binary.
//!
//! Search order and places are those of gdb's manual, "Debugging Information in Separate Files": by build id below
//! `/usr/lib/debug/.build-id`, then by the name in `.gnu_debuglink` beside the binary, in `.debug` beside it, and below
//! `/usr/lib/debug`. Each is looked for in the process's own root directory (containers) and then in ours. A file is
//! taken only when its build id is the binary's, or, for binaries without one, when the CRC of the link is right.
//! Not here: debuginfod; supplementary dwz files (blazesym follows those).

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::elf::{Bytes, Elf};
use crate::opening::{Links, open_below, open_regular};

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
    (right && (debug.has_debug_info || debug.has_symbol_table)).then_some(file)
}
