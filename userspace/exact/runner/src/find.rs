//! Finds the parts of an exact run: QEMU, and the command's file.
//!
//! Each failure is one sentence with a remedy. Not here: starting the command.

use std::{
    env,
    ffi::{CString, OsStr, OsString},
    io,
    os::unix::{
        ffi::{OsStrExt as _, OsStringExt as _},
        fs::MetadataExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, anyhow, bail};
use locality_plugin::{
    program::{Program, Refusal},
    settings::Settings,
};

use super::{embedded::Plugin, folder::Folder};
use locality_kernel::launch::{self, CannotRun};

/// The emulator's name.
const QEMU: &str = "qemu-x86_64";
/// Names an emulator elsewhere.
const QEMU_VARIABLE: &str = "LOCALITY_QEMU";
/// Place of an installation by `cargo xtask qemu` for root.
const LIBRARIES: &str = "/usr/local/lib/locality-bpf";
/// The command to install QEMU.
pub const INSTALL: &str = "`cargo xtask qemu` in a clone of locality-bpf";
/// As `execvp(3)` when `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The emulator.
#[derive(Debug, Clone)]
pub struct Qemu {
    /// The emulator's file.
    pub file: PathBuf,
    /// "7.2.22".
    pub version: String,
}

impl Qemu {
    /// Whether QEMU reverses the order of the environment: true before version 8.1.
    pub fn reverses(&self) -> bool {
        number(&self.version) < Some((8, 1))
    }
}

/// The first two numbers of a version.
fn number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// Finds an emulator with plugins: named by `LOCALITY_QEMU`,
/// otherwise installed by `cargo xtask qemu`, otherwise in `PATH`.
///
/// # Errors
/// Without an emulator; names the found programs, and the command for an installation.
pub fn qemu() -> Result<Qemu> {
    if let Some(named) = env::var_os(QEMU_VARIABLE).filter(|value| !value.is_empty()) {
        let named = PathBuf::from(named);
        if !is_executable(&named) {
            bail!("{QEMU_VARIABLE} names {}, which is no program", named.display());
        }
        return examine(named);
    }
    let mut first_refusal = None;
    for file in emulators() {
        match examine(file) {
            Ok(found) => return Ok(found),
            Err(why) => first_refusal = first_refusal.or(Some(why)),
        }
    }
    Err(first_refusal.unwrap_or_else(|| {
        anyhow!(
            "an exact run needs {QEMU} with plugins, which is not installed: {INSTALL} installs one (on Debian 12, \
             `apt-get install qemu-user` is enough)"
        )
    }))
}

/// Possible files, in order.
fn emulators() -> Vec<PathBuf> {
    let beside = env::current_exe().ok().and_then(|file| Some(file.parent()?.join("../lib/locality-bpf")));
    let folders = beside.into_iter().chain([LIBRARIES.into()]).chain(own_libraries());
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let in_path: Vec<PathBuf> = env::split_paths(&path).collect();
    folders.chain(in_path).map(|folder| folder.join(QEMU)).filter(|file| is_executable(file)).collect()
}

/// The folder of a user other than root. Under sudo the home folder
/// may be another user's: programs in the folder are not run.
fn own_libraries() -> Option<PathBuf> {
    let folder = Path::new(&env::var_os("HOME")?).join(".local/lib/locality-bpf");
    // SAFETY: a system call without arguments.
    let user = unsafe { libc::geteuid() };
    (std::fs::metadata(&folder).ok()?.uid() == user).then_some(folder)
}

/// Asks an emulator for the version and for plugins.
fn examine(file: PathBuf) -> Result<Qemu> {
    let ask = |option| {
        let said = Command::new(&file).arg(option).output();
        said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned())
            .with_context(|| format!("cannot run {}", file.display()))
    };
    let said = ask("--version")?;
    let version = said.split_whitespace().skip_while(|word| *word != "version").nth(1);
    let version =
        version.with_context(|| format!("{} does not tell its version", file.display()))?.to_owned();
    if number(&version) < Some((7, 2)) {
        bail!(
            "{} is version {version}: an exact run needs QEMU 7.2 or newer, which {INSTALL} installs",
            file.display()
        );
    }
    if !ask("--help")?.lines().any(|line| line.starts_with("-plugin")) {
        bail!(
            "{} (QEMU {version}) was built without plugins, which an exact run needs: {INSTALL} builds one with them",
            file.display()
        );
    }
    Ok(Qemu { file, version })
}

/// Runs a program under QEMU with the plugin, to check that an exact run is possible.
///
/// # Errors
/// The missing part, or QEMU's message.
pub fn tried() -> Result<Qemu> {
    let (found, plugin, folder) = (qemu()?, Plugin::create()?, Folder::create()?);
    let itself = env::current_exe().context("cannot tell where this program lies")?;
    let file = CString::new(itself.into_os_string().into_vec())?;
    let program = Program { arguments: vec![file.clone(), c"--version".to_owned()], file };
    let mut settings = Settings::parse(&["mode=empty".to_owned()]).map_err(|why| anyhow!(why))?;
    (settings.qemu, settings.reverses) = (found.file.clone(), found.reverses());
    settings.plugin = plugin.path();
    folder.path().clone_into(&mut settings.folder);
    let (words, _) = settings.command(&program, Vec::new());
    let words = words.iter().skip(1).map(|word| OsStr::from_bytes(word.as_bytes()));
    let done = Command::new(&found.file)
        .args(words)
        .output()
        .with_context(|| format!("cannot run {}", found.file.display()))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let line = said.lines().next().unwrap_or("nothing").to_owned();
        bail!(
            "{} (QEMU {}) with the plugin ended with {}: {line}",
            found.file.display(),
            found.version,
            done.status
        );
    }
    Ok(found)
}

/// The program run by a command line, with scripts followed to the interpreter.
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

/// No zero byte in the file's beginning.
fn is_text(file: &CString) -> bool {
    std::fs::read(OsStr::from_bytes(file.to_bytes()))
        .is_ok_and(|bytes| !bytes.iter().take(256).any(|byte| *byte == 0))
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
    fn versions_have_two_numbers() {
        assert_eq!((number("7.2.22"), number("10.0.13"), number("x.1")), (Some((7, 2)), Some((10, 0)), None));
        let reverses = |version: &str| Qemu { file: PathBuf::new(), version: version.to_owned() }.reverses();
        assert!(reverses("7.2.22") && reverses("8.0.4") && !reverses("8.1.0") && !reverses("10.0.13"));
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
