//! Which file a command really runs: scripts name an interpreter, and QEMU takes only x86-64 ELF files.
//!
//! Follows `load_script` and `load_elf_binary` of the kernel (`fs/binfmt_script.c`,
//! `fs/binfmt_elf.c`) as far as a choice of file and arguments goes. Used by the parent for the
//! command and by the plugin for what the command executes. Not here: searching `PATH`,
//! `binfmt_misc` (such a file counts as foreign and runs natively).

use std::{
    ffi::{CStr, CString, OsStr},
    fs::File,
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _, fs::PermissionsExt as _},
    path::Path,
};

/// As `BINPRM_BUF_SIZE` in `include/uapi/linux/binfmts.h`.
const HEAD: usize = 256;
/// The kernel follows this many interpreters of interpreters (`fs/exec.c`, `exec_binprm`).
const DEPTH: u32 = 5;
/// `EM_X86_64`.
const X86_64: u16 = 62;

/// What to give QEMU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The ELF file.
    pub file: CString,
    /// Its arguments, with its own name first.
    pub arguments: Vec<CString>,
}

/// Why a file cannot be run under QEMU.
#[derive(Debug)]
pub enum Refusal {
    /// It cannot be opened, or is no file.
    Unreadable(io::Error),
    /// No right to execute it.
    NotExecutable,
    /// An ELF file for another processor: `e_machine`, and whether it is a 32-bit file.
    Foreign(u16, bool),
    /// Neither ELF nor a script.
    UnknownFormat,
    /// It takes other rights when executed, which QEMU cannot give.
    Privileged,
    /// Its interpreter cannot be run.
    Interpreter(String, Box<Refusal>),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable(error) => match error.raw_os_error() {
                Some(libc::ENOENT) => f.write_str("no such file"),
                Some(libc::EACCES) => f.write_str("permission denied"),
                _ => write!(f, "it cannot be read: {error}"),
            },
            Self::NotExecutable => f.write_str("it is not executable"),
            Self::Foreign(machine, is_32_bit) => {
                let name = machine_name(*machine);
                let width = if *is_32_bit { "32-bit " } else { "" };
                write!(
                    f,
                    "it is a {width}{name} program (ELF machine {machine}); only 64-bit x86 programs can be run"
                )
            }
            Self::UnknownFormat => f.write_str("it is neither an ELF program nor a script with a #! line"),
            Self::Privileged => {
                f.write_str("it is set-user-ID, set-group-ID or unreadable, which QEMU cannot honour")
            }
            Self::Interpreter(path, why) => write!(f, "its interpreter {path} cannot be run: {why}"),
        }
    }
}

fn machine_name(machine: u16) -> &'static str {
    match machine {
        3 => "x86",
        8 => "MIPS",
        20 | 21 => "PowerPC",
        22 => "s390",
        40 => "ARM",
        62 => "x86-64",
        183 => "AArch64",
        243 => "RISC-V",
        258 => "LoongArch",
        _ => "foreign",
    }
}

impl Program {
    /// Follows scripts from `file` to the ELF program that runs it. `arguments` as for `execve`.
    pub fn resolve(file: &CStr, arguments: Vec<CString>) -> Result<Self, Refusal> {
        let mut program = Self { file: file.to_owned(), arguments };
        let mut via = None;
        for _ in 0..=DEPTH {
            match look(&program.file).and_then(|head| kind(&head)) {
                Ok(Kind::Elf) => return Ok(program),
                Ok(Kind::Script { interpreter, argument }) => {
                    let rest = program.arguments.into_iter().skip(1);
                    let mut arguments = vec![interpreter.clone()];
                    arguments.extend(argument);
                    arguments.push(program.file);
                    arguments.extend(rest);
                    via = Some(interpreter.to_string_lossy().into_owned());
                    program = Self { file: interpreter, arguments };
                }
                Err(why) => {
                    return Err(match via {
                        None => why,
                        Some(path) => Refusal::Interpreter(path, Box::new(why)),
                    });
                }
            }
        }
        Err(Refusal::Unreadable(io::Error::from_raw_os_error(libc::ELOOP)))
    }
}

enum Kind {
    Elf,
    Script { interpreter: CString, argument: Option<CString> },
}

/// The first bytes of a file that we may execute.
fn look(path: &CStr) -> Result<Vec<u8>, Refusal> {
    let as_path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let about = std::fs::metadata(as_path).map_err(Refusal::Unreadable)?;
    // SAFETY: `path` ends in 0.
    let may_execute = unsafe { libc::access(path.as_ptr(), libc::X_OK) } == 0;
    if !about.is_file() || !may_execute {
        return Err(Refusal::NotExecutable);
    }
    // SAFETY: the call has no arguments and cannot fail.
    let user = unsafe { libc::geteuid() };
    let mode = about.permissions().mode();
    let takes_user = mode & libc::S_ISUID != 0 && about.uid() != user;
    let takes_group = mode & libc::S_ISGID != 0 && mode & libc::S_IXGRP != 0;
    if takes_user || takes_group {
        return Err(Refusal::Privileged);
    }
    let file = File::open(as_path).map_err(|error| match error.raw_os_error() {
        // May be executed but not read.
        Some(libc::EACCES) => Refusal::Privileged,
        _ => Refusal::Unreadable(error),
    })?;
    let mut head = Vec::with_capacity(HEAD);
    file.take(HEAD as u64).read_to_end(&mut head).map_err(Refusal::Unreadable)?;
    Ok(head)
}

fn kind(head: &[u8]) -> Result<Kind, Refusal> {
    if let [0x7f, b'E', b'L', b'F', class, order, ..] = head {
        let machine = head.get(18..20).and_then(|bytes| bytes.try_into().ok()).map(|bytes| match order {
            2 => u16::from_be_bytes(bytes),
            _ => u16::from_le_bytes(bytes),
        });
        return match (class, machine) {
            (2, Some(X86_64)) => Ok(Kind::Elf),
            (class, Some(machine)) => Err(Refusal::Foreign(machine, *class == 1)),
            (_, None) => Err(Refusal::UnknownFormat),
        };
    }
    let line = head.strip_prefix(b"#!").ok_or(Refusal::UnknownFormat)?;
    let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.trim_ascii();
    let end = line.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(line.len());
    let (interpreter, argument) = line.split_at(end);
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Refusal::UnknownFormat);
    if interpreter.is_empty() {
        return Err(Refusal::UnknownFormat);
    }
    let argument = argument.trim_ascii();
    Ok(Kind::Script {
        interpreter: text(interpreter)?,
        argument: if argument.is_empty() { None } else { Some(text(argument)?) },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, bytes: &[u8], mode: u32) -> (tempfile::TempDir, CString) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (folder, CString::new(path.as_os_str().as_bytes()).unwrap())
    }

    fn words(words: &[&str]) -> Vec<CString> {
        words.iter().map(|word| CString::new(*word).unwrap()).collect()
    }

    #[test]
    fn an_elf_program_is_itself() {
        let shell = CString::new("/bin/sh").unwrap();
        let program = Program::resolve(&shell, words(&["sh", "-c", "x"])).unwrap();
        assert_eq!(program, Program { file: shell, arguments: words(&["sh", "-c", "x"]) });
    }

    #[test]
    fn a_script_is_its_interpreter_with_one_argument() {
        let (_folder, path) = file("script", b"#! /bin/sh  -e -u \necho\n", 0o755);
        let program = Program::resolve(&path, words(&["name", "a", "b"])).unwrap();
        assert_eq!(program.file, CString::new("/bin/sh").unwrap());
        let path = path.to_str().unwrap();
        assert_eq!(program.arguments, words(&["/bin/sh", "-e -u", path, "a", "b"]));
    }

    #[test]
    fn what_cannot_be_run_has_its_reason() {
        let why = |bytes: &[u8], mode| {
            let (_folder, path) = file("file", bytes, mode);
            Program::resolve(&path, words(&["file"])).unwrap_err().to_string()
        };
        let mut arm = [0u8; 64];
        arm[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        arm[18] = 183;
        assert!(why(&arm, 0o755).contains("AArch64"));
        arm[4] = 1;
        arm[18] = 3;
        assert!(why(&arm, 0o755).contains("32-bit x86"));
        assert!(why(b"hello", 0o755).contains("neither"));
        assert!(why(b"", 0o755).contains("neither"));
        assert!(why(b"#!\n", 0o755).contains("neither"));
        assert!(why(b"\x7fELF\x02\x01", 0o755).contains("neither"));
        assert!(
            why(b"#!/nowhere/sh\n", 0o755).contains("interpreter /nowhere/sh cannot be run: no such file")
        );
        assert!(why(b"#!/bin/sh\n", 0o644).contains("not executable"));
        let (folder, path) = file("loop", b"", 0o755);
        std::fs::write(folder.path().join("loop"), [b"#!", path.as_bytes()].concat()).unwrap();
        assert!(Program::resolve(&path, words(&["loop"])).is_err());
    }
}
