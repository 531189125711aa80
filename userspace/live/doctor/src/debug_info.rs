//! What the files of a process know about themselves: debug information, symbols, or neither.
//!
//! Reads headers and section tables only. A separate debug file is looked for by build id, where
//! distributions put it; other places (`.gnu_debuglink`) and whether the two files fit are left to
//! the trace's own symbols.

use std::{fs::File, io, path::Path};

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, read::ReadCache};

/// How much a file tells of its functions, most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Knows {
    /// Functions, files and lines.
    Lines,
    /// The same, from a separate file.
    LinesElsewhere,
    /// All functions, no lines.
    Functions,
    /// Exported functions only.
    Exports,
    /// No symbols: stripped, and without exports.
    Nothing,
}

impl Knows {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Lines => "has debug info",
            Self::LinesElsewhere => "has a separate debug file",
            Self::Functions => "has function names, no lines",
            Self::Exports => "is stripped: exported names only",
            Self::Nothing => "is stripped: no names",
        }
    }

    pub(super) fn has_lines(self) -> bool {
        self <= Self::LinesElsewhere
    }
}

/// Value of one file for a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) knows: Knows,
    /// Checks for leaks at its end, as the address and leak sanitizers do.
    pub(super) leak_sanitizer: bool,
}

/// Looks into an ELF file. `root` is the root directory of the process that maps it.
pub(super) fn of(file: File, root: &Path) -> io::Result<Facts> {
    let cache = ReadCache::new(file);
    let invalid = |error: object::Error| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let elf = object::File::parse(&cache).map_err(invalid)?;
    let names_leaks = |name: &str| matches!(name, "__lsan_do_leak_check" | "__lsan_init" | "__asan_init");
    // A file that only calls the sanitizer's library has an undefined symbol: that counts too.
    let leak_sanitizer =
        elf.dynamic_symbols().chain(elf.symbols()).any(|symbol| symbol.name().is_ok_and(names_leaks));
    let knows = if has_debug_info(&elf) {
        Knows::Lines
    } else if elf.build_id().ok().flatten().is_some_and(|id| has_debug_file(id, root)) {
        Knows::LinesElsewhere
    } else if elf.symbols().next().is_some() {
        Knows::Functions
    } else if elf.dynamic_symbols().any(|symbol| symbol.is_definition()) {
        Knows::Exports
    } else {
        Knows::Nothing
    };
    Ok(Facts { knows, leak_sanitizer })
}

fn has_debug_info<'d>(elf: &impl object::Object<'d>) -> bool {
    elf.section_by_name(".debug_info").is_some_and(|section| section.size() > 0)
}

/// `/usr/lib/debug/.build-id/xx/yyyy.debug`, in the process's root directory or ours (gdb's manual,
/// "Debugging Information in Separate Files").
fn has_debug_file(build_id: &[u8], root: &Path) -> bool {
    let [first, rest @ ..] = build_id else { return false };
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let below = format!("usr/lib/debug/.build-id/{first:02x}/{rest}.debug");
    [root, Path::new("/")].iter().any(|root| root.join(&below).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Compiles a C program and applies commands to it; `None`, with a printed reason, without a compiler.
    fn compiled(arguments: &[&str], strip: Option<&str>) -> Option<(tempfile::TempDir, std::path::PathBuf)> {
        let dir = tempfile::tempdir().unwrap();
        let (source, program) = (dir.path().join("a.c"), dir.path().join("a"));
        std::fs::write(&source, "int exported(void) { return 1; } int main(void) { return exported(); }")
            .unwrap();
        let built = Command::new("gcc").args(arguments).arg(&source).arg("-o").arg(&program).status();
        if !built.is_ok_and(|status| status.success()) {
            locality_kernel::testing::skip(&format!("needs gcc with {arguments:?}"));
            return None;
        }
        if let Some(flag) = strip {
            assert!(Command::new("strip").arg(flag).arg(&program).status().unwrap().success());
        }
        Some((dir, program))
    }

    fn facts(arguments: &[&str], strip: Option<&str>) -> Option<Facts> {
        let (_dir, program) = compiled(arguments, strip)?;
        Some(of(File::open(program).unwrap(), Path::new("/")).unwrap())
    }

    #[test]
    fn what_is_left_after_stripping_is_told() {
        for (arguments, strip, knows) in [
            (&["-g"][..], None, Knows::Lines),
            (&["-g0"], None, Knows::Functions),
            (&["-g", "-rdynamic"], Some("--strip-all"), Knows::Exports),
            (&["-g", "-static"], Some("--strip-all"), Knows::Nothing),
        ] {
            let Some(facts) = facts(arguments, strip) else { continue };
            assert_eq!(facts, Facts { knows, leak_sanitizer: false }, "{arguments:?} {strip:?}");
        }
    }

    #[test]
    fn a_debug_file_is_found_in_the_processs_root() {
        let Some((dir, program)) = compiled(&["-g", "-Wl,--build-id=0xabcdef"], Some("--strip-debug")) else {
            return;
        };
        let look = || of(File::open(&program).unwrap(), dir.path()).unwrap().knows;
        assert_eq!(look(), Knows::Functions);
        let place = dir.path().join("usr/lib/debug/.build-id/ab");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("cdef.debug"), "").unwrap();
        assert_eq!(look(), Knows::LinesElsewhere);
    }

    #[test]
    fn a_sanitizer_is_noticed() {
        let Some(facts) = facts(&["-g", "-fsanitize=leak"], None) else { return };
        assert!(facts.leak_sanitizer);
    }

    #[test]
    fn what_is_no_elf_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF", &[0x7f; 4096]] {
            let path = dir.path().join("x");
            std::fs::write(&path, bytes).unwrap();
            assert!(of(File::open(path).unwrap(), Path::new("/")).is_err());
        }
    }
}
