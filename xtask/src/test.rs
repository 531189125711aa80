//! `cargo xtask test`: installs the tests' packages, builds,
//! and runs every test, tests on the real kernel as root.
//!
//! cargo's own runner, present on every machine. The runner's output is passed on; the closing
//! line has the sums. The test programs come from one compilation: cargo selects the whole
//! workspace each time, and starts each program through [`RunTest`], which skips the other group.
//!
//! Tests on live processes, which many packages have, share the machine with other work.
//! A failed test is therefore run a second time, alone: a fault of ours fails again.
//! Tests that pass only then are named in the closing lines. Output of failed tests is
//! printed a second time at the end, since the middle of a long log is often cut.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, bail};

use locality_shell as shell;

/// Programs of the tests, with packages. Not the package redis-server, which would start a service
/// on this machine: the binary is in redis-tools, too (`locality_tests::programs::redis_server`).
const PROGRAMS: [(&str, &str); 20] = [
    ("gcc", "gcc"),
    ("gcc", "libc6-dev"),
    ("g++", "g++"),
    ("as", "binutils"),
    ("llvm-dwp", "llvm"),
    ("dwz", "dwz"),
    ("gdb", "gdb"),
    ("python3", "python3"),
    ("sqlite3", "sqlite3"),
    ("xz", "xz-utils"),
    ("redis-benchmark", "redis-tools"),
    ("git", "git"),
    ("gfortran", "gfortran"),
    ("go", "golang-go"),
    ("valgrind", "valgrind"),
    ("node", "nodejs"),
    ("npm", "npm"),
    ("chromium", "chromium"),
    ("jsonschema", "python3-jsonschema"),
    ("runc", "runc"),
];

/// Libraries of the tests, with packages.
const LIBRARIES: [(&str, &str); 3] = [
    ("libjemalloc.so.2", "libjemalloc2"),
    ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    ("libmimalloc.so.2", "libmimalloc2.0"),
];

/// What `cargo xtask test` can be asked for.
#[derive(clap::Args)]
pub struct Options {
    /// Leave out the tests on the real kernel, which need root
    #[arg(long)]
    no_kernel: bool,
    /// Passed on to every test program: a filter, or options of cargo's test runner
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Runs every test, also after a failure; fails after a failure.
pub fn run(options: &Options) -> Result<()> {
    shell::need(&PROGRAMS)?;
    shell::need_libraries(&LIBRARIES);
    need_speedscope()?;
    need_metrics_parser()?;
    need_terminal()?;
    crate::qemu::need()?;
    crate::ui::verify_where_possible()?;
    shell::run(shell::cargo().args(SELECTION).arg("--no-run"))?;
    // The tracer of the tests on the kernel, compiled beside the other tests.
    let tracer = if options.no_kernel { None } else { Some(background_build()?) };
    let mut sum = Sum::default();
    let failures = sum.add(Group::Plain.tests()?.args(&options.arguments))?;
    sum.again(&failures, Group::Plain.tests()?, options)?;
    if options.arguments.is_empty() {
        sum.add(shell::cargo().args(["test", "--workspace", "--doc"]))?;
    }
    if let Some(mut tracer) = tracer {
        if !tracer.wait()?.success() {
            bail!("the tracer does not compile");
        }
        let failures = sum.add(Group::Kernel.tests()?.args(&options.arguments))?;
        sum.again(&failures, Group::Kernel.tests()?, options)?;
    }
    crate::say(&sum.slowest());
    for output in &sum.outputs {
        crate::say(output.trim_end());
    }
    crate::say(&sum.closing_line());
    if sum.failed > 0 || sum.broken > 0 {
        bail!("{} tests failed, {} test programs did not finish", sum.failed, sum.broken);
    }
    if sum.passed == 0 && options.arguments.is_empty() {
        bail!("no test ran");
    }
    Ok(())
}

/// Installs speedscope, whose schema checks our exports.
fn need_speedscope() -> Result<()> {
    if shell::has("speedscope") {
        return Ok(());
    }
    let mut npm = shell::as_root("npm")?;
    shell::run(npm.args(["install", "--global", "speedscope@1.25.0"]))
}

/// Installs a parser of OpenMetrics, which checks our metrics.
fn need_metrics_parser() -> Result<()> {
    let mut python = std::process::Command::new("/usr/bin/python3");
    let has = python.args(["-c", "import prometheus_client"]).output().is_ok_and(|run| run.status.success());
    if has { Ok(()) } else { shell::install(&["python3-prometheus-client"]) }
}

/// Installs a terminal that tests can read.
fn need_terminal() -> Result<()> {
    if shell::has("tmux") { Ok(()) } else { shell::install(&["tmux"]) }
}

/// The variable by which cargo starts test programs through another command.
const RUNNER: &str = "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER";

/// Options by which each test's time is printed. The runner of a stable
/// toolchain takes the options if the variable [`STABLE_TOO`] is set.
const TIMES: [&str; 2] = ["-Zunstable-options", "--report-time"];

/// For the test programs only: the compiler would build other code with this variable.
const STABLE_TOO: &str = "RUSTC_BOOTSTRAP=1";

/// Selection of every run of `cargo test`: equal selections
/// have equal features, and share compiled code.
const SELECTION: [&str; 6] = ["test", "--no-fail-fast", "--workspace", "--lib", "--bins", "--tests"];

/// The package of the tests on the kernel.
const KERNEL_PACKAGE: &str = "locality-tests";

/// Test programs that run together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Group {
    /// Every test not on the kernel.
    Plain,
    /// Tests on the kernel, as root.
    Kernel,
}

impl Group {
    /// Whether a package's test programs belong here.
    fn has(self, package: &str) -> bool {
        (package == KERNEL_PACKAGE) == (self == Self::Kernel)
    }

    /// `cargo test` of this group, up to the arguments of the test programs.
    ///
    /// cargo compiles as the user; only the test programs
    /// run as root, through cargo's `runner` setting.
    fn tests(self) -> Result<Command> {
        let mut command = shell::cargo();
        let own = std::env::current_exe().context("the path of this program is not known")?;
        let own = own.to_str().context("the path of this program is not text")?;
        let name = if self == Self::Plain { "plain" } else { "kernel" };
        let mut runner = format!("env {STABLE_TOO} {own} run-test {name}");
        if self == Self::Kernel {
            if !shell::is_root() {
                let sudo = shell::words(&shell::as_root("env")?).replacen("sudo", "sudo --preserve-env", 1);
                let path = std::env::var("PATH").context("PATH is not text")?;
                runner = format!("{sudo} PATH={path} {STABLE_TOO} {own} run-test {name}");
            }
            command.env("LOCALITY_BPF", shell::target_dir().join("release/locality-bpf"));
            if std::env::var_os("CI").is_some() && std::env::var_os("LOCALITY_REQUIRE").is_none() {
                // In CI, a test that cannot run is a fault of
                // the machine and must not look like success.
                command.env("LOCALITY_REQUIRE", "all");
            }
        }
        command.env(RUNNER, runner).args(SELECTION).arg("--").args(TIMES);
        Ok(command)
    }
}

/// What cargo starts in place of each test program.
#[derive(clap::Args)]
pub struct RunTest {
    group: Group,
    program: std::path::PathBuf,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<std::ffi::OsString>,
}

/// Becomes the test program, unless another group has it.
pub fn run_test(asked: &RunTest) -> Result<()> {
    let package = std::env::var("CARGO_PKG_NAME").context("this command is for cargo, as its runner")?;
    if !asked.group.has(&package) {
        return Ok(());
    }
    let error = Command::new(&asked.program).args(&asked.arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", asked.program.display()))
}

/// Compiles the tracer while tests run, so that no test waits for a processor.
fn background_build() -> Result<std::process::Child> {
    let mut command = Command::new("nice");
    let build = shell::cargo();
    command.current_dir(shell::root()).args(["-n", "19"]).arg(build.get_program());
    command.args(["build", "--quiet", "--release", "--package", "locality-bpf"]).stdin(Stdio::null());
    eprintln!("$ {} &", shell::words(&command));
    command.spawn().context("cannot run nice")
}

/// The closing lines of the test programs, added up.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    passed: u64,
    failed: u64,
    ignored: u64,
    skipped: u64,
    /// cargo runs that failed without a failed test: a crash, or code that does not compile.
    broken: u64,
    /// Tests that failed and then passed alone.
    unsteady: Vec<String>,
    /// How long each test took, in milliseconds, with its name.
    times: Vec<(u64, String)>,
    /// Output of failed tests, without stack backtraces.
    outputs: Vec<String>,
}

/// Number of the slowest tests printed at the end.
const SLOWEST: usize = 20;

/// Lines, and characters of a line, that the closing output repeats of a failed test.
const REPEATED: (usize, usize) = (40, 400);

impl Sum {
    /// Runs a command and counts; returns the names of failed tests.
    fn add(&mut self, command: &mut Command) -> Result<Vec<String>> {
        eprintln!("$ {}", shell::words(command));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let errors = thread::spawn(move || pass_on(stderr, &mut std::io::stderr()));
        let Passed { mut lines, output } = pass_on(stdout, &mut std::io::stdout())?;
        lines.extend(errors.join().unwrap_or_else(|_| Ok(Passed::default()))?.lines);
        if !output.is_empty() {
            self.outputs.push(output);
        }
        let failed_before = self.failed;
        lines.iter().for_each(|line| self.count(line));
        if !child.wait()?.success() && self.failed == failed_before {
            self.broken += 1;
        }
        self.times.extend(lines.iter().filter_map(|line| time_of(line)));
        Ok(lines.iter().filter_map(|line| failed_test(line)).map(str::to_owned).collect())
    }

    /// Runs tests that failed a second time, one at a time; the
    /// second result counts. Not for a run of chosen tests.
    fn again(&mut self, failures: &[String], mut command: Command, options: &Options) -> Result<()> {
        if failures.is_empty() || !options.arguments.is_empty() {
            return Ok(());
        }
        eprintln!("a second time, alone: {}", failures.join(", "));
        command.args(["--exact", "--test-threads=1"]).args(failures);
        let mut second = Self::default();
        let still = second.add(&mut command)?;
        self.failed = self.failed.saturating_sub(failures.len() as u64) + second.failed;
        self.passed += second.passed;
        self.broken += second.broken;
        self.outputs.append(&mut second.outputs);
        self.unsteady.extend(failures.iter().filter(|name| !still.contains(name)).cloned());
        Ok(())
    }

    /// Counts one line; most lines are irrelevant.
    fn count(&mut self, line: &str) {
        if line.starts_with("SKIP ") {
            self.skipped += 1;
        }
        let Some((_, result)) = line.split_once("test result: ") else { return };
        let number = |word: &str| {
            let before = result.split(word).next().filter(|before| before.len() < result.len())?;
            before.trim_end().rsplit(' ').next()?.parse::<u64>().ok()
        };
        self.passed += number("passed").unwrap_or(0);
        self.failed += number("failed").unwrap_or(0);
        self.ignored += number("ignored").unwrap_or(0);
    }

    /// The slowest tests, a line each.
    fn slowest(&self) -> String {
        let mut times: Vec<_> = self.times.iter().collect();
        times.sort_by_key(|(time_ms, name)| (std::cmp::Reverse(*time_ms), name));
        times.truncate(SLOWEST);
        let rows = times.iter().map(|(time_ms, name)| format!("\n{:>8.1} s  {name}", *time_ms as f64 / 1e3));
        format!("the slowest tests:{}", rows.collect::<String>())
    }

    /// One line of cargo's runner. A skipped test returns early, and counts as passed for the
    /// runner.
    fn closing_line(&self) -> String {
        let verdict = if self.failed == 0 && self.broken == 0 { "ok" } else { "FAILED" };
        let Self { passed, failed, ignored, skipped, .. } = self;
        let passed = passed.saturating_sub(*skipped);
        let unsteady = match self.unsteady.as_slice() {
            [] => String::new(),
            names => format!("passed only at the second try: {}\n", names.join(", ")),
        };
        format!(
            "{unsteady}test result: {verdict}. {passed} passed; {failed} failed; {skipped} skipped; {ignored} ignored (all test programs)"
        )
    }
}

/// The name in a line `test NAME ... FAILED`, where a time may follow.
fn failed_test(line: &str) -> Option<&str> {
    let (name, rest) = line.strip_prefix("test ")?.rsplit_once(" ... FAILED")?;
    (rest.is_empty() || rest.starts_with(" <")).then_some(name)
}

/// Milliseconds and name of a test in a line `test NAME ... RESULT <SECONDSs>`.
fn time_of(line: &str) -> Option<(u64, String)> {
    let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let seconds: f64 = result.rsplit_once('<')?.1.strip_suffix("s>")?.parse().ok()?;
    Some(((seconds * 1e3) as u64, name.to_owned()))
}

/// Lines collected by [`pass_on`].
#[derive(Debug, Default)]
struct Passed {
    /// Lines that are counted.
    lines: Vec<String>,
    /// Output of the tests that failed.
    output: String,
}

/// Copies a child's output to `to`, and collects the counted lines and the output of failed tests.
fn pass_on(from: Option<impl Read>, to: &mut impl Write) -> Result<Passed> {
    let mut passed = Passed::default();
    let Some(from) = from else { return Ok(passed) };
    // Lines of the present failed test's output that may still be repeated.
    let mut left = 0;
    for line in BufReader::new(from).split(b'\n') {
        let line = line?;
        to.write_all(&line)?;
        to.write_all(b"\n")?;
        // A test may print bytes that are no text: passed on and never counted.
        let Ok(line) = String::from_utf8(line) else { continue };
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            left = REPEATED.0;
        } else if line == "stack backtrace:" || line == "failures:" {
            left = 0;
        }
        if left > 0 && !line.is_empty() {
            left -= 1;
            passed.output.extend(line.chars().take(REPEATED.1));
            passed.output.push('\n');
        }
        if line.starts_with("SKIP ")
            || line.contains("test result: ")
            || failed_test(&line).is_some()
            || time_of(&line).is_some()
        {
            passed.lines.push(line);
        }
    }
    Ok(passed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_add_up() {
        let mut sum = Sum::default();
        for line in [
            "running 3 tests",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s",
            "SKIP attach: needs root",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 9.00s",
        ] {
            sum.count(line);
        }
        assert_eq!(sum, Sum { passed: 15, failed: 2, ignored: 1, skipped: 1, ..Sum::default() });
        assert_eq!(
            sum.closing_line(),
            "test result: FAILED. 14 passed; 2 failed; 1 skipped; 1 ignored (all test programs)"
        );
    }

    #[test]
    fn a_failure_is_known_by_name() {
        let output = "test a::b ... FAILED <0.250s>\ntest c ... ok\ntest result: FAILED. 1 passed; 1 failed"
            .as_bytes();
        let lines = pass_on(Some(output), &mut std::io::sink()).unwrap().lines;
        let failures: Vec<_> = lines.iter().filter_map(|line| failed_test(line)).collect();
        assert_eq!((lines.len(), failures), (2, vec!["a::b"]));
        let sum = Sum { unsteady: vec!["a::b".to_owned()], ..Sum::default() };
        assert!(sum.closing_line().starts_with("passed only at the second try: a::b\ntest result: ok."));
    }

    #[test]
    fn output_of_a_failed_test_is_repeated_without_its_backtrace() {
        let output = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\nmeasured 3\n\npanicked at x:1\n\
                      stack backtrace:\n   0: f\n\nfailures:\n    a\n";
        let passed = pass_on(Some(output.as_bytes()), &mut std::io::sink()).unwrap();
        assert_eq!(passed.output, "---- a stdout ----\nmeasured 3\npanicked at x:1\n");
    }

    #[test]
    fn the_slowest_tests_come_first() {
        let lines = ["test a ... ok <0.010s>", "test b ... FAILED <12.500s>", "test c ... ignored", "a <3s>"];
        let sum = Sum { times: lines.iter().filter_map(|line| time_of(line)).collect(), ..Sum::default() };
        assert_eq!(sum.slowest(), "the slowest tests:\n    12.5 s  b\n     0.0 s  a");
    }

    #[test]
    fn each_package_is_in_one_group() {
        for package in ["locality-tests", "locality-shadow", "xtask"] {
            assert_ne!(Group::Plain.has(package), Group::Kernel.has(package), "{package}");
        }
    }

    #[test]
    fn a_run_that_fails_without_a_failed_test_is_broken() {
        let mut sum = Sum::default();
        sum.add(&mut Command::new("false")).unwrap();
        assert_eq!(sum.broken, 1);
        assert!(sum.closing_line().contains("FAILED"));
    }
}
