//! `--ignore-lines`: the code of the lines, looked up before the start in the program and in the libraries
//! that the dynamic linker loads with it.
//!
//! The linker itself lists the libraries, without running the program. Not looked up before the start:
//! libraries loaded later (`dlopen`), and child programs. Their files are examined after the run, and a
//! sentence names the lines that were not ignored there.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};
use locality_plugin::{functions::Lines, program::Program};
use locality_symbols::{IgnoreLines, code_of_lines};
use locality_units::parse::WrongUse;
use object::{Endianness, elf::FileHeader64, read::elf::ElfFile};

/// Code of ignored lines.
pub struct Ignored {
    /// The list for the plugin.
    pub list: String,
    /// Files that were examined.
    examined: BTreeSet<PathBuf>,
}

impl Ignored {
    /// Looks the lines up; `None` without lines.
    ///
    /// # Errors
    /// Lines without code in the program and in all of its libraries.
    pub fn look_up(lines: &[IgnoreLines], program: &Program) -> Result<Option<Self>> {
        if lines.is_empty() {
            return Ok(None);
        }
        let path = canonical(Path::new(OsStr::from_bytes(program.file.as_bytes())));
        let mut ignored = Self { list: String::new(), examined: BTreeSet::new() };
        let own = code_of_lines(&path, lines);
        let mut missing: Vec<_> = match &own {
            Ok(found) => found.missing.clone(),
            Err(why) => lines.iter().map(|_| Some(why.clone())).collect(),
        };
        if let Ok(found) = &own {
            ignored.list.push_str(&Lines::print(&path.to_string_lossy(), &found.code));
        }
        ignored.examined.insert(path.clone());
        for library in libraries(&path) {
            // Most libraries have no debug information, and none of the lines.
            if let Ok(found) = code_of_lines(&library, lines) {
                ignored.list.push_str(&Lines::print(&library.to_string_lossy(), &found.code));
                for (missing, here) in missing.iter_mut().zip(&found.missing) {
                    if here.is_none() {
                        *missing = None;
                    }
                }
            }
            ignored.examined.insert(library);
        }
        match missing.into_iter().flatten().next() {
            Some(why) => bail!(WrongUse(why.to_string())),
            None => Ok(Some(ignored)),
        }
    }

    /// Sentences about lines in files that the run mapped without having been examined.
    pub fn name_later(&mut self, lines: &[IgnoreLines], files: &BTreeSet<String>) -> Vec<String> {
        let mut notices = Vec::new();
        for file in files {
            let path = PathBuf::from(file);
            if !self.examined.insert(path.clone()) {
                continue;
            }
            let Ok(found) = code_of_lines(&path, lines) else { continue };
            let here = lines.iter().zip(&found.missing).filter(|(_, missing)| missing.is_none());
            let here: Vec<String> = here.map(|(lines, _)| lines.to_string()).collect();
            if !here.is_empty() {
                notices.push(format!(
                    "Lines {} of {file} were not ignored: the file was loaded later, or by a child program.",
                    here.join(", ")
                ));
            }
        }
        notices
    }
}

/// As mappings name the file.
fn canonical(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// The libraries that the dynamic linker loads with a program, the linker included; none for a static
/// program.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let Some(linker) = linker(program) else { return Vec::new() };
    let listed = Command::new(&linker).arg("--list").arg(program).output();
    let text = listed.map(|listed| listed.stdout).unwrap_or_default();
    let mut all = parse(&String::from_utf8_lossy(&text));
    all.push(canonical(&linker));
    all.sort();
    all.dedup();
    all
}

/// Reads `name => path (address)`, and `path (address)`.
fn parse(text: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let file = line.split_once("=> ").map_or(line, |(_, file)| file);
        let file = file.rsplit_once(" (").map_or(file, |(file, _)| file).trim();
        file.starts_with('/').then(|| canonical(Path::new(file)))
    };
    text.lines().filter_map(path).collect()
}

/// The program's dynamic linker.
fn linker(program: &Path) -> Option<PathBuf> {
    let bytes = fs::read(program).ok()?;
    let elf = ElfFile::<FileHeader64<Endianness>>::parse(&*bytes).ok()?;
    let interpreter =
        |header| object::read::elf::ProgramHeader::interpreter(header, elf.endian(), &*bytes).ok().flatten();
    let name = elf.elf_program_headers().iter().find_map(interpreter)?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_of_the_linker() {
        let own = std::env::current_exe().unwrap();
        let all = libraries(&own);
        let has = |name: &str| all.iter().any(|path| path.to_string_lossy().contains(name));
        assert!(has("libc.so") && has("ld-linux"), "{all:?}");
        assert_eq!(libraries(Path::new("/etc/passwd")), Vec::<PathBuf>::new());
    }

    #[test]
    fn lists_of_linkers_are_read() {
        let text = "\tlinux-vdso.so.1 (0x7ffc)\n\tliba b.so => /no/liba b.so (0x7f00)\n\t/no/ld.so (0x7f01)\n\
                    \tlibc.so => not found\n";
        assert_eq!(parse(text), ["/no/liba b.so", "/no/ld.so"].map(PathBuf::from));
    }
}
