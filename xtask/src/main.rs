//! Developer commands, run as `cargo xtask COMMAND`.
//!
//! This file is the table of contents; each command is a
//! module. Not here: code that the product needs at run time.

mod demo;
mod distributions;
mod ebpf;
mod fuzz;
mod kernels;
mod lint;
mod package;
mod qemu;
mod reference;
mod screenshots;
mod test;
mod tidy;
mod ui;

use std::process::ExitCode;

use clap::Parser;
use locality_shell as shell;

/// Developer commands of locality-bpf
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Install what is missing, build, and trace a program with a known locality flaw for 10 s
    Demo,
    /// Install what the tests need and run all of them, those on the kernel as root
    Test(test::Options),
    /// Start a test program for cargo, if it belongs to a group
    #[command(hide = true)]
    RunTest(test::RunTest),
    /// Run a benchmark; `cargo xtask bench help` names them
    #[command(disable_help_flag = true)]
    Bench {
        /// The benchmark and its options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Check the house's conventions alone: sizes, names, packages, sentences, references
    Tidy {
        /// Print the share of vague words in the comments of each package
        #[arg(long)]
        words: bool,
    },
    /// Check format, lints and the house's conventions
    Lint,
    /// Write docs/reference/json.md from the types of the report, and docs/reference/cli.md from the help
    Reference,
    /// Install a QEMU of user mode with plugins, for `locality-bpf exact`; built where the
    /// distribution has none
    Qemu(qemu::Options),
    /// Try the README's commands on fresh systems of Debian 12 and 13, in chroots
    Distributions(distributions::Options),
    /// Compile the eBPF programs into ebpf/prebuilt
    Ebpf(ebpf::Options),
    /// Bundle the script and the style of the HTML report into userspace/html/dist
    Ui(ui::Options),
    /// Trace the demo program and take the pictures of its HTML report for README and tutorial
    Screenshots,
    /// Try hostile input of every kind by the million, in child processes; findings are saved and
    /// can be tried again
    Fuzz(fuzz::Options),
    /// Make packages for Debian's and for RPM's systems, in target/package
    Package(package::Options),
    /// Boot kernels of Debian under emulation, and try on each what is claimed for it
    Kernels(kernels::Options),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Demo => demo::run(),
        Command::Test(options) => test::run(&options),
        Command::RunTest(asked) => test::run_test(&asked),
        Command::Bench { arguments } => bench(&arguments),
        Command::Lint => lint::run(),
        Command::Tidy { words: false } => tidy::run(),
        Command::Tidy { words: true } => tidy::print_words(),
        Command::Reference => reference::run(),
        Command::Qemu(options) => qemu::run(&options),
        Command::Distributions(options) => distributions::run(&options),
        Command::Ebpf(options) => ebpf::run(&options),
        Command::Ui(options) => ui::run(&options),
        Command::Screenshots => screenshots::run(),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Package(options) => package::run(&options),
        Command::Kernels(options) => kernels::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The sentence and its causes in one line, without a backtrace.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Compiles the benchmarks and runs one.
fn bench(arguments: &[std::ffi::OsString]) -> anyhow::Result<()> {
    let run = ["run", "--quiet", "--release", "--package", "locality-bench", "--"];
    shell::run(shell::cargo().args(run).args(arguments))
}

/// Prints a result; progress goes to stderr.
#[expect(clippy::print_stdout, reason = "the result of a developer command belongs on stdout")]
fn say(line: &str) {
    println!("{line}");
}
