//! Finds what an exact run needs: QEMU, our plugin, and the file that the command means.
//!
//! Each failure is one sentence with its mend. Not here: starting anything, apart from asking QEMU for its version.

use std::{
    env,
    ffi::{CString, OsStr, OsString},
    io,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, anyhow, bail};
use locality_plugin::program::{Program, Refusal};

use crate::control::launch::{self, CannotRun};

/// The emulator's name.
const QEMU: &str = "qemu-x86_64";
/// Names a plugin elsewhere.
const PLUGIN_VARIABLE: &str = "LOCALITY_PLUGIN";
/// The plugin's file name.
pub const PLUGIN: &str = "liblocality_plugin.so";
/// As `execvp(3)` when `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The emulator.
#[derive(Debug, Clone)]
pub struct Qemu {
    /// Its file.
    pub file: PathBuf,
    /// "7.2.22".
    pub version: String,
}

/// Finds the emulator.
pub fn qemu() -> Result<Qemu> {
    let file = in_path(OsStr::new(QEMU)).ok_or_else(|| {
        anyhow!("an exact run needs {QEMU}, which is not installed: `apt-get install qemu-user` (Debian, Ubuntu), `dnf install qemu-user` (Fedora)")
    })?;
    let said = Command::new(&file)
        .arg("--version")
        .output()
        .with_context(|| format!("cannot run {}", file.display()))?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let version = said.split_whitespace().skip_while(|word| *word != "version").nth(1);
    let version =
        version.with_context(|| format!("{} does not tell its version", file.display()))?.to_owned();
    let number = |at| version.split('.').nth(at).and_then(|part: &str| part.parse::<u32>().ok());
    if (number(0), number(1)) < (Some(7), Some(2)) {
        bail!("{} is version {version}: an exact run needs QEMU 7.2 or newer", file.display());
    }
    Ok(Qemu { file, version })
}

/// Finds the plugin: named by `LOCALITY_PLUGIN`, beside this program, in `../lib/locality-bpf`, or where cargo leaves it.
pub fn plugin() -> Result<PathBuf> {
    if let Some(named) = env::var_os(PLUGIN_VARIABLE).filter(|value| !value.is_empty()) {
        let named = PathBuf::from(named);
        if !named.is_file() {
            bail!("{PLUGIN_VARIABLE} names {}, which is not there", named.display());
        }
        return named.canonicalize().with_context(|| format!("cannot find {}", named.display()));
    }
    let program = env::current_exe().context("cannot tell where this program lies")?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = ["", "../lib/locality-bpf", "deps", ".."];
    let found = places.iter().map(|place| folder.join(place).join(PLUGIN)).find(|path| path.is_file());
    let found = found.with_context(|| {
        format!(
            "{PLUGIN} lies neither beside {} nor in ../lib/locality-bpf: install it there, or build it with `cargo build -p locality-plugin`",
            program.display()
        )
    })?;
    found.canonicalize().with_context(|| format!("cannot find {}", found.display()))
}

/// The program that a command line runs, scripts followed to their interpreter.
pub fn program(command: &[OsString]) -> Result<Program> {
    let found = launch::find(command)?;
    let file = CString::new(found.into_os_string().into_vec()).context("the command has a zero byte")?;
    let words: Result<Vec<CString>, _> = command.iter().map(|word| CString::new(word.as_bytes())).collect();
    let words = words.context("an argument has a zero byte")?;
    let resolved = match Program::resolve(&file, words.clone()) {
        // As execvp(3) and every shell: a text file without a first line is a script of sh.
        Err(Refusal::UnknownFormat) if is_text(&file) => {
            let shell = c"/bin/sh".to_owned();
            let rest = words.into_iter().skip(1);
            Program::resolve(&shell, [c"sh".to_owned(), file].into_iter().chain(rest).collect())
        }
        resolved => resolved,
    };
    resolved.map_err(|why| {
        let source = match why {
            Refusal::Unreadable(error) => error,
            why => io::Error::new(io::ErrorKind::PermissionDenied, why.to_string()),
        };
        CannotRun::new(command, source).into()
    })
}

/// No zero byte in its beginning.
fn is_text(file: &CString) -> bool {
    std::fs::read(OsStr::from_bytes(file.to_bytes()))
        .is_ok_and(|bytes| !bytes.iter().take(256).any(|byte| *byte == 0))
}

/// The first executable file of that name in `PATH`.
fn in_path(name: &OsStr) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    let Ok(text) = CString::new(file.as_os_str().as_bytes()) else { return false };
    // SAFETY: `text` ends in 0.
    file.is_file() && unsafe { libc::access(text.as_ptr(), libc::X_OK) } == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &[&str]) -> Result<Program> {
        program(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    fn code(words: &[&str]) -> u8 {
        run(words).unwrap_err().downcast_ref::<CannotRun>().unwrap().exit_code()
    }

    #[test]
    fn commands_are_found_as_a_shell_finds_them() {
        let program = run(&["sh", "-c", "true"]).unwrap();
        assert!(program.file.to_str().unwrap().ends_with("/sh"));
        assert_eq!(program.arguments.len(), 3);
        assert_eq!(code(&["no-such-command-here"]), 127);
        assert_eq!(code(&["/no/such/file"]), 127);
        assert_eq!(code(&["/etc/passwd"]), 126);
        assert_eq!(code(&["/"]), 126);
    }

    #[test]
    fn a_text_file_without_first_line_runs_in_sh() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("script");
        std::fs::write(&path, "exit 3\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let program = run(&[path.to_str().unwrap(), "a"]).unwrap();
        assert_eq!(program.file.to_str().unwrap(), "/bin/sh");
        assert_eq!(program.arguments.last().unwrap().to_str().unwrap(), "a");
    }
}
