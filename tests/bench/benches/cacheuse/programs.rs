//! The programs of the comparison and their inputs: kernels of the corpus, the transposition
//! kernel, installed programs.
//!
//! Each does equal work each time, in about a second under QEMU, in one thread.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A program.
pub struct Program {
    /// Short name, for `--only`.
    pub name: &'static str,
    /// Command; `$DIR` is the folder of inputs, `$CC1` the C compiler proper.
    words: &'static [&'static str],
}

const fn program(name: &'static str, words: &'static [&'static str]) -> Program {
    Program { name, words }
}

/// All programs.
pub const PROGRAMS: [Program; 17] = [
    program("matmul", &["$DIR/dense", "matmul", "1"]),
    program("stencil2d", &["$DIR/dense", "stencil2d", "1"]),
    program("lu", &["$DIR/dense", "lu", "1"]),
    program("transpose", &["$DIR/dense", "transpose", "1"]),
    program("list", &["$DIR/irregular", "list", "1"]),
    program("tree", &["$DIR/irregular", "tree", "1"]),
    program("quicksort", &["$DIR/irregular", "quicksort", "1"]),
    program("spmv", &["$DIR/irregular", "spmv", "1"]),
    program("hash", &["$DIR/irregular", "hash", "1"]),
    program("openmp", &["$DIR/transposition", "0", "4"]),
    program("sqlite3", &["sqlite3", "-batch", ":memory:", ".read $DIR/input.sql"]),
    program("xz", &["xz", "-1", "-k", "-c", "-T1", "$DIR/input.txt"]),
    program("gzip", &["gzip", "-c", "$DIR/input.txt"]),
    program("python3", &["/usr/bin/python3", "-S", "-c", PYTHON]),
    program("perl", &["perl", "-e", "for (1..100000) { $h{$_*7919&0xffff} .= $_ }"]),
    program("sort", &["sort", "--parallel=1", "-S", "64M", "$DIR/input.txt"]),
    program("cc1", &["$CC1", "-quiet", "-O2", "-o", "/dev/null", "$DIR/input.i"]),
];

const PYTHON: &str = "d={}\nfor i in range(60000): d[i*7919&0xffff]=str(i)";

impl Program {
    /// The command, with the program's whole path: QEMU does not search for it.
    pub fn words(&self, folder: &Path) -> Vec<String> {
        let cc1 = || {
            let said = Command::new("gcc").arg("-print-prog-name=cc1").output().expect("gcc");
            String::from_utf8_lossy(&said.stdout).trim().to_owned()
        };
        let fill = |word: &&str| match *word {
            "$CC1" => cc1(),
            word => word.replace("$DIR", &folder.display().to_string()),
        };
        let mut words: Vec<String> = self.words.iter().map(fill).collect();
        if !words[0].starts_with('/') {
            words[0] = find(&words[0]).display().to_string();
        }
        words
    }
}

fn find(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| panic!("{name} is not installed"))
}

/// Compiles the kernels and writes the inputs.
pub fn prepare(folder: &Path) {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs");
    for name in ["dense", "irregular"] {
        let source = programs.join("corpus").join(name).with_extension("c");
        let mut gcc = Command::new("gcc");
        let gcc = gcc.args(["-O2", "-g", "-o"]).arg(folder.join(name)).arg(source).arg("-lm");
        assert!(gcc.status().expect("gcc").success(), "{name} does not compile");
    }
    std::fs::copy(locality_tests::build("transposition"), folder.join("transposition")).expect("a copy");
    let text: String =
        (0..60_000u32).map(|i| format!("{} {}\n", i.wrapping_mul(2_654_435_761), i % 97)).collect();
    let functions: String = (0..10)
        .map(|i| format!("int f{i}(int *a, int n) {{ int s = {i}; for (int j = 0; j < n; j++) s += a[j] * (s ^ j); return s; }}\n"))
        .collect();
    let table = "create table t(a integer primary key, b text, c int);\n\
         with recursive n(i) as (select 1 union all select i+1 from n where i<20000) \
         insert into t select i, hex(i*7919%1000003), i*31%1009 from n;\n\
         create index ti on t(c);\nselect sum(length(b)) from t where c between 100 and 600;\n";
    for (name, text) in [("input.txt", text.as_str()), ("input.i", &functions), ("input.sql", table)] {
        std::fs::write(folder.join(name), text).expect("an input");
    }
}
