//! The programs of the accuracy bench, and each
//! program's way to repeat the work within one process.
//!
//! Repetition in one process makes short exact runs comparable with a long traced run:
//! the exact reports of one and of a few repetitions are subtracted, which leaves
//! neither start-up code nor first touches. `sort` and `cc1` cannot repeat; both are
//! started again and again, start-up belongs to both sides, and a run must be long
//! against the 3 ms for which the tracer leaves a new process alone. Sizes are chosen
//! for about ten million accesses a repetition. Not here: the inputs (`inputs`).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Origin of the code; the two are summarised apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// A kernel from `tests/programs/corpus`.
    Own,
    /// An installed program.
    Real,
}

/// How to do the work several times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// The word `$N` is the number of repetitions.
    Number,
    /// The word `$FILES` stands for this file, named once a repetition.
    Files(&'static str),
    /// Standard input is a text for each repetition, or a file's contents (`@FILE`).
    Input(&'static str),
    /// It must be started again.
    Process,
}

/// A program of the corpus.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Short name, for `--only`.
    pub name: &'static str,
    /// Origin of the code.
    pub group: Group,
    /// Command; `$DIR` is the folder of inputs, `$CC1` the C compiler proper.
    words: &'static [&'static str],
    /// How it repeats.
    pub repeat: Repeat,
    /// Repetitions in the longer exact run, besides the one of the shorter.
    pub more: u32,
}

const fn own(name: &'static str, words: &'static [&'static str], more: u32) -> Entry {
    Entry { name, group: Group::Own, words, repeat: Repeat::Number, more }
}

const fn real(name: &'static str, words: &'static [&'static str], repeat: Repeat) -> Entry {
    Entry { name, group: Group::Real, words, repeat, more: 2 }
}

const TEXT: Repeat = Repeat::Files("$DIR/text");
const SMALL: Repeat = Repeat::Files("$DIR/small");
const LARGE: Repeat = Repeat::Files("$DIR/large");
const TINY: Repeat = Repeat::Files("$DIR/tiny");

/// The corpus.
pub const ENTRIES: [Entry; 34] = [
    own("stream", &["$DIR/dense", "stream", "$N"], 2),
    own("matmul", &["$DIR/dense", "matmul", "$N"], 2),
    own("blocked", &["$DIR/dense", "blocked", "$N"], 2),
    own("stencil2d", &["$DIR/dense", "stencil2d", "$N"], 2),
    own("stencil3d", &["$DIR/dense", "stencil3d", "$N"], 2),
    own("lu", &["$DIR/dense", "lu", "$N"], 2),
    own("fft", &["$DIR/dense", "fft", "$N"], 2),
    own("transpose", &["$DIR/dense", "transpose", "$N"], 2),
    own("nbody", &["$DIR/dense", "nbody", "$N"], 2),
    own("lcs", &["$DIR/dense", "lcs", "$N"], 2),
    own("list", &["$DIR/irregular", "list", "$N"], 2),
    own("hash", &["$DIR/irregular", "hash", "$N"], 2),
    own("tree", &["$DIR/irregular", "tree", "$N"], 2),
    own("quicksort", &["$DIR/irregular", "quicksort", "$N"], 2),
    own("spmv", &["$DIR/irregular", "spmv", "$N"], 2),
    own("histogram", &["$DIR/irregular", "histogram", "$N"], 2),
    own("walk", &["$DIR/irregular", "walk", "$N"], 2),
    own("search", &["$DIR/irregular", "search", "$N"], 2),
    own("bfs", &["$DIR/irregular", "bfs", "$N"], 2),
    real("xz", &["xz", "-T1", "-6", "-c", "$FILES"], SMALL),
    real("gzip", &["gzip", "-c", "$FILES"], SMALL),
    real("bzip2", &["bzip2", "-c", "$FILES"], SMALL),
    real("zstd", &["zstd", "-q", "-3", "--single-thread", "-c", "$FILES"], TEXT),
    real("sha256sum", &["sha256sum", "$FILES"], LARGE),
    real("grep", &["grep", "-E", "-c", "(ta|ro)[a-z]+e [a-m]", "$FILES"], LARGE),
    real("sed", &["sed", "-E", "s/([a-z]+) ([a-z]+)/\\2 \\1/g", "$FILES"], TINY),
    real("mawk", &["mawk", "-f", "$DIR/work.awk", "$FILES"], TEXT),
    real("objdump", &["objdump", "-d", "$FILES"], Repeat::Files("/bin/ls")),
    real("python3", &["python3", "-E", "-S", "$DIR/work.py", "$N"], Repeat::Number),
    real("perl", &["perl", "$DIR/work.pl", "$N"], Repeat::Number),
    real("sqlite3", &["sqlite3", "-batch", ":memory:"], Repeat::Input(".read $DIR/work.sql\n")),
    real("git", &["git", "-C", "$DIR/repository", "cat-file", "--batch"], Repeat::Input("@$DIR/objects")),
    real("sort", &["sort", "--parallel=1", "-S", "64M", "$DIR/large"], Repeat::Process),
    real("cc1", &["$CC1", "-quiet", "-O2", "-o", "/dev/null", "$DIR/source.i"], Repeat::Process),
];

/// Programs and their packages.
pub const PACKAGES: [(&str, &str); 16] = [
    ("gcc", "gcc"),
    ("qemu-x86_64", "qemu-user"),
    ("xz", "xz-utils"),
    ("gzip", "gzip"),
    ("bzip2", "bzip2"),
    ("zstd", "zstd"),
    ("sha256sum", "coreutils"),
    ("grep", "grep"),
    ("sed", "sed"),
    ("mawk", "mawk"),
    ("objdump", "binutils"),
    ("python3", "python3"),
    ("perl", "perl"),
    ("sqlite3", "sqlite3"),
    ("git", "git"),
    ("sort", "coreutils"),
];

/// A command that is ready to start.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ready {
    /// Program and arguments.
    pub words: Vec<String>,
    /// Its input.
    pub stdin: String,
}

impl Entry {
    /// The command for a number of repetitions; a program to be started anew does one.
    ///
    /// # Errors
    /// A missing program or input.
    pub fn ready(&self, repetitions: u32, dir: &Path, cc1: &Path) -> Result<Ready> {
        let fill =
            |word: &str| word.replace("$DIR", &dir.to_string_lossy()).replace("$CC1", &cc1.to_string_lossy());
        let mut words = Vec::new();
        for word in self.words {
            match (*word, self.repeat) {
                ("$N", _) => words.push(repetitions.to_string()),
                ("$FILES", Repeat::Files(file)) => words.extend((0..repetitions).map(|_| fill(file))),
                _ => words.push(fill(word)),
            }
        }
        if let Some(program) = words.first_mut() {
            *program = found(program)?.to_string_lossy().into_owned();
        }
        let once = match self.repeat {
            Repeat::Input(text) => match text.strip_prefix('@') {
                Some(file) => std::fs::read_to_string(fill(file)).with_context(|| fill(file))?,
                None => fill(text),
            },
            _ => String::new(),
        };
        Ok(Ready { words, stdin: once.repeat(repetitions as usize) })
    }
}

/// Programs of the system before those of wrappers and version managers, which are scripts.
fn found(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        [PathBuf::from("/usr/bin"), PathBuf::from("/bin")].into_iter().chain(std::env::split_paths(&path));
    let mut files = folders.map(|folder| folder.join(program));
    files.find(|file| file.is_file()).with_context(|| format!("{program} is not installed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(name: &str, repetitions: u32) -> Vec<String> {
        let entry = ENTRIES.iter().find(|entry| entry.name == name).unwrap();
        entry.ready(repetitions, Path::new("/d"), Path::new("/cc1")).unwrap().words.split_off(1)
    }

    #[test]
    fn repetitions_are_numbers_files_or_input() {
        assert_eq!(ready("gzip", 3), ["-c", "/d/small", "/d/small", "/d/small"]);
        assert_eq!(ready("perl", 7), ["/d/work.pl", "7"]);
        let sqlite = ENTRIES.iter().find(|entry| entry.name == "sqlite3").unwrap();
        let input = sqlite.ready(2, Path::new("/d"), Path::new("/cc1")).unwrap().stdin;
        assert_eq!(input, ".read /d/work.sql\n.read /d/work.sql\n");
        // One that must be started again does the work once, whatever is asked.
        assert_eq!(ready("sort", 5), ready("sort", 1));
    }

    #[test]
    fn the_corpus_is_large_enough_and_names_are_unique() {
        let count = |group| ENTRIES.iter().filter(|entry| entry.group == group).count();
        assert!(count(Group::Own) >= 12 && count(Group::Real) >= 10);
        let mut names: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ENTRIES.len());
        for entry in ENTRIES {
            let has = |mark| entry.words.contains(&mark);
            assert_eq!(has("$N"), entry.repeat == Repeat::Number, "{}", entry.name);
            assert_eq!(has("$FILES"), matches!(entry.repeat, Repeat::Files(_)), "{}", entry.name);
        }
    }
}
