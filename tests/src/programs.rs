//! Builds the target programs, each once for a given source.
//!
//! The commands stand in the source (`target.h` describes the syntax). A
//! program's directory is named after the inputs: an existing program is current,
//! and parallel tests need no lock. Not here: starting a program (`target.rs`).

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Languages of the programs.
const EXTENSIONS: [&str; 6] = ["c", "cc", "rs", "s", "f90", "go"];

/// The built program `name`; compiles the program unless compiled before.
pub fn build(name: &str) -> PathBuf {
    let text = read(&source(name)) + &read(&source("target"));
    let mut hasher = DefaultHasher::new();
    (&text, rustc()).hash(&mut hasher);
    let dir = programs_dir().join(format!("{name}-{:016x}", hasher.finish()));
    if !dir.exists() {
        compile(name, &dir);
    }
    dir.join(name)
}

/// The source file of a program, or the source shared by the programs.
pub fn source(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    if name == "target" {
        return dir.join("target.h");
    }
    EXTENSIONS
        .map(|extension| dir.join(name).with_extension(extension))
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("there is no program {name} in {}", dir.display()))
}

/// Names of the programs, sorted.
pub fn all() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let entries = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let extension = path.extension()?.to_str()?;
            EXTENSIONS.contains(&extension).then(|| path.file_stem()?.to_str().map(str::to_owned))?
        })
        .collect();
    names.sort();
    names
}

/// Redis's server. In Debian's and Ubuntu's package redis-tools the file
/// is named redis-check-rdb and acts according to the name of the call.
pub fn redis_server() -> Command {
    use std::os::unix::process::CommandExt as _;
    if crate::requires::command("redis-server").is_ok() {
        return Command::new("redis-server");
    }
    let mut command = Command::new("redis-check-rdb");
    command.arg0("redis-server");
    command
}

/// Runs the build commands in a temporary directory, which is then renamed to `dir` at once.
fn compile(name: &str, dir: &Path) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let making = dir.with_extension(format!("making-{}-{number}", std::process::id()));
    fs::create_dir_all(&making).unwrap_or_else(|e| panic!("cannot create {}: {e}", making.display()));
    build_in(&making, name, "");
    // Another test may have been faster, with an equal result.
    if fs::rename(&making, dir).is_err() {
        drop(fs::remove_dir_all(&making));
    }
    assert!(dir.join(name).exists(), "no program {name} in {}", dir.display());
}

/// Runs a program's build commands, more flags at their ends, in a directory; returns the program.
pub fn build_in(dir: &Path, name: &str, flags: &str) -> PathBuf {
    let source = source(name);
    let text = read(&source);
    let commands = commands(&text);
    assert!(!commands.is_empty(), "{} does not say how to build it", source.display());
    for words in commands {
        // Words are split before substitution: a path may contain blanks.
        let words: Vec<String> = words
            .split_whitespace()
            .chain(flags.split_whitespace())
            .map(|word| {
                word.replace("$SRC", &source.to_string_lossy())
                    .replace("$BIN", &dir.join(name).to_string_lossy())
                    .replace("$OUT", &dir.to_string_lossy())
                    .replace("$RUSTC", &rustc().to_string_lossy())
            })
            .collect();
        let mut command = Command::new(&words[0]);
        // Go's cache, on machines without a home for root.
        command.env("GOCACHE", dir.join("go-cache")).env("GO111MODULE", "off");
        // A variable set by the runner of the tests changes the names made by the compiler.
        command.env_remove("RUSTC_BOOTSTRAP");
        let run = command.args(&words[1..]).output();
        let run =
            run.unwrap_or_else(|e| panic!("cannot run {}: {e}; `cargo xtask test` installs it", words[0]));
        let stderr = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "`{}` failed:\n{stderr}", words.join(" "));
    }
    dir.join(name)
}

/// The build commands in a source: after `// build:`,
/// `# build:` or `! build:` at the start of a line.
fn commands(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| {
            let comment = line.strip_prefix("//").or(line.strip_prefix('#')).or(line.strip_prefix('!'))?;
            comment.strip_prefix(" build: ")
        })
        .collect()
}

/// The compiler that compiled the tests; under sudo it is not on the path.
fn rustc() -> PathBuf {
    let beside_cargo = Path::new(env!("CARGO")).with_file_name("rustc");
    if beside_cargo.exists() { beside_cargo } else { PathBuf::from("rustc") }
}

/// In the target directory of the test program; apart for each user, as the tests run as root too.
fn programs_dir() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_else(|e| panic!("where am I: {e}"));
    let target = own.ancestors().nth(2).unwrap_or(Path::new("."));
    let user = fs::metadata("/proc/self").map_or(0, |own| own.uid());
    target.join(format!("target-programs-{user}"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_commands_stand_at_the_start_of_a_line() {
        assert_eq!(commands("/* see // build: x */\n// build: gcc a\n# build: as b\n"), ["gcc a", "as b"]);
    }

    #[test]
    fn every_source_says_how_to_build_it() {
        let names = all();
        assert!(names.len() > 20, "{names:?}");
        for name in names {
            assert!(!commands(&read(&source(&name))).is_empty(), "{name}");
        }
    }
}
