//! Costs of an exact run: each program natively, under QEMU with an empty memory callback (the
//! floor) and with one that stores 16 bytes an access, under `locality-bpf exact` of all lines and of a
//! sample, and under callgrind with cache simulation, in the same run.
//!
//! Wall time, the best of `--rounds`. Sources of error: the machine must be idle; the start
//! of each tool is included (0.1 s for the exact run, 0.4 s for callgrind), hence programs of
//! a second or more under the floor. On two threads callgrind runs one at a time by nature.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// Matrix product, in one thread and in two threads with data of their own.
const KERNELS: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { N = 320 };
static double *product(double *m) {
    double *a = m, *b = m + N * N, *c = m + 2 * N * N;
    for (int i = 0; i < N * N; i++) { a[i] = i % 7; b[i] = i % 5; }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double s = 0;
            for (int k = 0; k < N; k++) s += a[i * N + k] * b[k * N + j];
            c[i * N + j] = s;
        }
    return c;
}
static void *run(void *unused) { double *m = malloc(3 * N * N * sizeof *m); double *c = product(m); return c[unused != 0] < 0 ? m : 0; }
static void *walk(void *unused) {
    enum { WORDS = 1 << 21 };
    unsigned *next = malloc(WORDS * sizeof *next), at = 0;
    for (unsigned i = 0; i < WORDS; i++) next[i] = (i * 5 + 12345) & (WORDS - 1);
    for (int i = 0; i < 8000000; i++) at = next[at];
    return at == 1 ? next : unused;
}
int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "walk")) return walk(0) != 0;
    pthread_t other;
    if (argc > 1) pthread_create(&other, 0, run, 0);
    int bad = run(0) != 0;
    if (argc > 1) pthread_join(other, 0);
    return bad;
}
"#;

/// A program with its arguments; `$DIR` stands for the folder of inputs.
pub(crate) const PROGRAMS: [(&str, &str); 8] = [
    ("matrix", "$DIR/kernels"),
    ("threads", "$DIR/kernels threads"),
    ("walk", "$DIR/kernels walk"),
    ("sqlite3", "/usr/bin/sqlite3 :memory: '.read $DIR/input.sql'"),
    ("xz", "xz -1 -k -c -T1 $DIR/input.txt"),
    ("python3", "/usr/bin/python3 -c 'd={}\nfor i in range(200000): d[i*7919&0xffff]=str(i)'"),
    ("perl", "perl -e 'for (1..300000) { $h{$_*7919&0xffff} .= $_ }'"),
    ("cc1", "$CC1 -quiet -O2 -o /dev/null $DIR/input.i"),
];

/// Options.
#[derive(clap::Args)]
pub struct Options {
    /// Rounds; the best counts
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Number of lines of which one is sampled in the sampled run
    #[arg(long, default_value_t = 16)]
    sample_lines: u32,
}

/// Builds the tool, and runs a measurement `name` with a folder of the programs' inputs and the path of cc1.
pub(crate) fn with_inputs(name: &str, measure: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<()> {
    shell::need(&[
        ("gcc", "gcc"),
        ("qemu-x86_64", "qemu-user"),
        ("sqlite3", "sqlite3"),
        ("xz", "xz-utils"),
        ("perl", "perl"),
    ])?;
    shell::run(shell::cargo().args(["build", "--release", "--package", "locality-bpf"]))?;
    let folder = std::env::temp_dir().join(format!("locality-bench-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let measured = prepare(&folder).and_then(|cc1| measure(&folder, &cc1));
    std::fs::remove_dir_all(&folder)?;
    measured
}

/// Measures and prints a table.
pub fn run(options: &Options) -> Result<()> {
    shell::need(&[("valgrind", "valgrind")])?;
    with_inputs("exact", |folder, cc1| table(options, folder, cc1))
}

/// Makes the inputs; the path of cc1.
pub(crate) fn prepare(folder: &Path) -> Result<PathBuf> {
    let path = |name: &str| folder.join(name);
    std::fs::write(path("kernels.c"), KERNELS)?;
    shell::run(
        Command::new("gcc").args(["-O1", "-g", "-pthread", "-o"]).arg(path("kernels")).arg(path("kernels.c")),
    )?;
    std::fs::write(
        path("input.sql"),
        "create table t(a integer primary key, b text, c int);\n\
         with recursive n(i) as (select 1 union all select i+1 from n where i<60000) \
         insert into t select i, hex(i*7919%1000003), i*31%1009 from n;\n\
         create index ti on t(c);\nselect sum(length(b)) from t where c between 100 and 600;\n",
    )?;
    let text: String =
        (0..60_000u32).map(|i| format!("{} {}\n", i.wrapping_mul(2_654_435_761), i % 97)).collect();
    std::fs::write(path("input.txt"), text)?;
    let functions: String = (0..30)
        .map(|i| format!("int f{i}(int *a, int n) {{ int s = {i}; for (int j = 0; j < n; j++) s += a[j] * (s ^ j); return s; }}\n"))
        .collect();
    std::fs::write(path("input.i"), functions)?;
    let cc1 = Command::new("gcc").arg("-print-prog-name=cc1").output()?;
    Ok(PathBuf::from(String::from_utf8_lossy(&cc1.stdout).trim()))
}

fn table(options: &Options, folder: &Path, cc1: &Path) -> Result<()> {
    let k = options.sample_lines;
    crate::say(&format!(
        "| program | native s | QEMU, empty callback s | QEMU, 16 bytes an access s | exact s | 1 of {k} lines s \
         | callgrind s | exact ÷ floor | exact ÷ 16 bytes | 1 of {k} ÷ 16 bytes | exact ÷ 1 of {k} | callgrind ÷ exact |"
    ));
    crate::say("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let release = shell::target_dir().join("release");
    let plugin = shell::plugin();
    let qemu = |mode: &str| {
        let (plugin, folder) = (plugin.display(), folder.display());
        format!("exec qemu-x86_64 -cpu max -plugin file={plugin},folder={folder},mode={mode} ")
    };
    let (floor, store) = (qemu("empty"), qemu("record"));
    let sampled = format!(
        "exec {} exact -q --sample-lines {k} --report /dev/null -- ",
        release.join("locality-bpf").display()
    );
    let exact = format!("exec {} exact -q --report /dev/null -- ", release.join("locality-bpf").display());
    let callgrind =
        "exec valgrind -q --tool=callgrind --cache-sim=yes --cacheuse=yes --callgrind-out-file=/dev/null "
            .to_owned();
    for (name, command) in PROGRAMS {
        if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
            continue;
        }
        let command = self::command(command, folder, cc1)?;
        let mut best = [f64::INFINITY; 6];
        for _ in 0..options.rounds {
            for (best, tool) in best.iter_mut().zip(["exec ", &floor, &store, &exact, &sampled, &callgrind]) {
                *best = best.min(seconds(&format!("{tool}{command}"))?);
            }
        }
        let [native, floor, store, exact, sampled, callgrind] = best;
        crate::say(&format!(
            "| {name} | {native:.3} | {floor:.2} | {store:.2} | {exact:.2} | {sampled:.2} | {callgrind:.2} | {:.2} \
             | {:.2} | {:.2} | {:.2} | {:.2} |",
            exact / floor,
            exact / store,
            sampled / store,
            exact / sampled,
            callgrind / exact
        ));
    }
    Ok(())
}

/// A program's command with its inputs.
pub(crate) fn command(command: &str, folder: &Path, cc1: &Path) -> Result<String> {
    with_path(&command.replace("$DIR", &folder.to_string_lossy()).replace("$CC1", &cc1.to_string_lossy()))
}

/// QEMU does not search the PATH.
fn with_path(command: &str) -> Result<String> {
    let (program, rest) = command.split_once(' ').unwrap_or((command, ""));
    if program.starts_with('/') {
        return Ok(command.to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
    let found = found.with_context(|| format!("{program} is not installed"))?;
    Ok(format!("{} {rest}", found.display()))
}

/// Wall time of a shell command.
pub(crate) fn seconds(command: &str) -> Result<f64> {
    let started = Instant::now();
    let status = Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if !status.success() {
        bail!("`{command}` failed: {status}");
    }
    Ok(started.elapsed().as_secs_f64())
}
