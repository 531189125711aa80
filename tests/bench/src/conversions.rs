//! `cargo xtask bench conversions`: differences of stack distances and miss ratios, converted from
//! exact time distances, from exact values, over own kernels and programs of the distribution.
//!
//! `locality-bpf exact --fine` counts both in one run; the example
//! `conversions` of `locality-compare` converts and compares. Needs no root.
//! Figures vary a little between runs, with the addresses of heap and stack.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// The kernels' source.
const KERNELS: &str = include_str!("conversions/kernels.c");
/// The kernels: kernels at odd places, from 0, were in
/// sight while the methods were chosen (see [`PROGRAMS`]).
const KERNEL_NAMES: &str = "stream matmul blocked transpose stencil fft quicksort mergesort list hash bfs zipf uniform spmv btree \
                            phases vector qsort";
/// Programs of the distribution. Programs at even places, from 0, were
/// in sight while the methods were chosen; the rest were first converted
/// after the last change. `$DIR` stands for the folder of inputs.
const PROGRAMS: [(&str, &str); 16] = [
    ("gzip", "gzip -c $DIR/input.txt"),
    ("bzip2", "bzip2 -c $DIR/input.txt"),
    ("xz", "xz -1 -T1 -c $DIR/input.txt"),
    ("grep", "grep -o -E '[0-9]+7.*[13579]2' $DIR/input.txt"),
    ("sed", "sed s/1/one/g $DIR/input.txt"),
    ("sha256sum", "sha256sum /usr/bin/git"),
    ("objdump", "objdump -d $DIR/kernels"),
    ("find", "find /usr/share/doc -name none"),
    ("git", "git --no-pager log --stat -5"),
    ("bc", "bc -l -q $DIR/input.bc"),
    ("sort", "sort -n $DIR/input.txt"),
    ("awk", "awk '{n[$2]+=$1} END {for (i in n) print i, n[i]}' $DIR/input.txt"),
    ("perl", "perl -e 'for (1..30000) { $h{$_*7919&0xffff} .= $_ }'"),
    ("python3", "python3 -I -S -c 'd={}\nfor i in range(10000): d[i*7919&0xffff]=str(i)'"),
    ("cc1", "$CC1 -quiet -O1 -o /dev/null $DIR/input.i"),
    ("sqlite3", "sqlite3 :memory: '.read $DIR/input.sql'"),
];

/// Options.
#[derive(clap::Args)]
pub struct Options {
    /// Only these programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only the programs that were, or were not, in sight while the methods were chosen
    #[arg(long, value_enum, default_value_t = Half::Both)]
    half: Half,
}

/// Which programs.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Half {
    /// All programs.
    Both,
    /// Programs seen in the choice of the methods.
    Seen,
    /// The others.
    Unseen,
}

/// Runs them and prints the tables.
pub fn run(options: &Options) -> Result<()> {
    shell::need(&[
        ("gcc", "gcc"),
        ("qemu-x86_64", "qemu-user"),
        ("bc", "bc"),
        ("bzip2", "bzip2"),
        ("xz", "xz-utils"),
        ("objdump", "binutils"),
        ("git", "git"),
        ("sqlite3", "sqlite3"),
        ("perl", "perl"),
        ("python3", "python3"),
    ])?;
    let build = |arguments: &[&str]| {
        shell::run_aside(shell::cargo().args(["build", "--quiet", "--release"]).args(arguments))
    };
    build(&["--package", "locality-bpf"])?;
    build(&["--package", "locality-compare", "--example", "conversions"])?;
    let folder = std::env::temp_dir().join(format!("locality-bench-conversions-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let done = measured(options, &folder);
    std::fs::remove_dir_all(&folder)?;
    done
}

fn measured(options: &Options, folder: &Path) -> Result<()> {
    let cc1 = prepare(folder)?;
    let exact = shell::target_dir().join("release/locality-bpf");
    let kernels = KERNEL_NAMES.split_whitespace().map(|name| (name, format!("$DIR/kernels {name}")));
    let kernels = kernels.enumerate().map(|(place, program)| (place % 2 == 1, program));
    let programs = PROGRAMS.iter().map(|(name, command)| (*name, (*command).to_owned()));
    let programs = programs.enumerate().map(|(place, program)| (place % 2 == 0, program));
    let mut reports = Vec::new();
    for (seen, (name, command)) in kernels.chain(programs) {
        let other_half = options.half != Half::Both && (options.half == Half::Seen) != seen;
        let not_named = !options.only.is_empty() && !options.only.iter().any(|only| only == name);
        if other_half || not_named {
            continue;
        }
        let report = folder.join(format!("{name}.json"));
        let command = command.replace("$DIR", &folder.to_string_lossy()).replace("$CC1", &cc1);
        eprintln!("{name}");
        let status = Command::new("sh")
            .args([
                "-c",
                &format!(
                    "exec \"$0\" exact -q --fine --granularity 8,64 -o \"$1\" --report /dev/null -- {command}"
                ),
            ])
            .arg(&exact)
            .arg(&report)
            .current_dir(shell::root())
            .stdin(Stdio::null())
            // A file: grep ends at the first match when nobody reads.
            .stdout(std::fs::File::create(folder.join("output"))?)
            .status()
            .context("cannot run sh")?;
        if !status.success() {
            bail!("`locality-bpf exact -- {command}` failed: {status}");
        }
        reports.push(report);
    }
    shell::run(Command::new(shell::target_dir().join("release/examples/conversions")).args(reports))
}

/// Makes kernels and inputs; the path of cc1.
fn prepare(folder: &Path) -> Result<String> {
    let path = |name: &str| folder.join(name);
    std::fs::write(path("kernels.c"), KERNELS)?;
    let compiled = ["-O2", "-g", "-o"];
    shell::run_aside(Command::new("gcc").args(compiled).arg(path("kernels")).arg(path("kernels.c")))?;
    let text: String =
        (0..12_000_u32).map(|i| format!("{} {}\n", i.wrapping_mul(2_654_435_761), i % 97)).collect();
    std::fs::write(path("input.txt"), text)?;
    std::fs::write(path("input.bc"), "scale=200\n4*a(1)\ne(1)\nquit\n")?;
    std::fs::write(
        path("input.sql"),
        "create table t(a integer primary key, b text, c int);\n\
         with recursive n(i) as (select 1 union all select i+1 from n where i<15000) \
         insert into t select i, hex(i*7919%1000003), i*31%1009 from n;\n\
         create index ti on t(c);\nselect sum(length(b)) from t where c between 100 and 600;\n",
    )?;
    let functions: String = (0..6)
        .map(|i| format!("int f{i}(int *a, int n) {{ int s = {i}; for (int j = 0; j < n; j++) s += a[j] * (s ^ j); return s; }}\n"))
        .collect();
    std::fs::write(path("input.i"), functions)?;
    let cc1 = Command::new("gcc").arg("-print-prog-name=cc1").output()?;
    Ok(String::from_utf8_lossy(&cc1.stdout).trim().to_owned())
}
