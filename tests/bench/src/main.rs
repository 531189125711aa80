//! `cargo xtask bench …`: builds the tracer and runs a benchmark; figures for docs/journal/2026-11.md come
//! from here.
//!
//! Benchmarks of time and memory are in `benches`, those of accuracy are modules. Both need root and
//! an otherwise idle machine.

mod accuracy;
mod advice;
mod conversions;
mod exact;
mod heap;
mod objects;
mod parallelism;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use locality_shell as shell;

/// Benchmarks of locality-bpf
#[derive(Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
enum Bench {
    /// What tracing costs, measured from outside: wall and CPU time, traced and untraced in turn;
    /// redis under load
    Overhead {
        /// Passed on: --pairs N, --only NAME,…, --overhead PERCENT, --heap
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Memory, time to the first sample and time of the report, on a trace of a minute
    Footprint {
        /// Passed on: --seconds N
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// How far stack distances and miss ratios converted from time distances are from the truth,
    /// over kernels and programs
    Conversions(conversions::Options),
    /// How right live traces are: a corpus of kernels and programs against exact runs of the same work
    Accuracy(accuracy::Options),
    /// How right the advice is: kernels with known flaws and their mended forms, and sound ones
    Advice(advice::Options),
    /// Rankings of data objects with and without addresses, on programs built from the
    /// distribution's source packages
    Objects(objects::Options),
    /// Simulated cache use against Callgrind's, by function, and the time of both; needs no root
    Cacheuse {
        /// Passed on: --rounds N, --only NAME,…, --keep FOLDER
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// What an exact run costs, beside QEMU's floor and callgrind; needs no root
    Exact(exact::Options),
    /// What parallelism of a whole run costs, beside an exact run; needs no root
    Parallelism(parallelism::Options),
    /// What following allocations costs, untraced, without and with the recorder in turn, and the
    /// share recorded with a path
    Heap(heap::Options),
}

fn main() -> ExitCode {
    match run(&Bench::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a result; progress goes to stderr.
#[expect(clippy::print_stdout, reason = "the result of a benchmark belongs on stdout")]
fn say(line: &str) {
    println!("{line}");
}

fn run(bench: &Bench) -> Result<()> {
    let (name, arguments) = match bench {
        Bench::Accuracy(options) => return accuracy::run(options),
        Bench::Advice(options) => return advice::run(options),
        Bench::Exact(options) => return exact::run(options),
        Bench::Heap(options) => return heap::run(options),
        Bench::Objects(options) => return objects::run(options),
        Bench::Parallelism(options) => return parallelism::run(options),
        Bench::Overhead { arguments } => ("overhead", arguments),
        Bench::Footprint { arguments } => ("footprint", arguments),
        Bench::Cacheuse { arguments } => ("cacheuse", arguments),
        Bench::Conversions(options) => return conversions::run(options),
    };
    shell::need(&[
        ("gcc", "gcc"),
        ("gcc", "libc6-dev"),
        ("xz", "xz-utils"),
        ("python3", "python3"),
        ("sqlite3", "sqlite3"),
        ("perl", "perl"),
        ("redis-benchmark", "redis-tools"),
    ])?;
    if name == "cacheuse" {
        shell::need(&[("qemu-x86_64", "qemu-user"), ("valgrind", "valgrind"), ("gzip", "gzip")])?;
    }
    shell::run(shell::cargo().args(["build", "--release", "--package", "locality-bpf"]))?;
    let mut command = shell::cargo();
    command.args(["bench", "--quiet", "--package", "locality-bench", "--bench", name, "--"]).args(arguments);
    command.env("LOCALITY_BPF", shell::target_dir().join("release/locality-bpf"));
    shell::run(&mut command)
}
