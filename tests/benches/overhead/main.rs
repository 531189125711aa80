//! What tracing costs, measured from outside: `cargo xtask bench overhead`.
//!
//! Each program does a fixed amount of work, untraced and traced in turn (A B A B …); the figures are medians over the
//! pairs, so that slow drifts of the machine cancel. The tracer attaches to the running program with its default budget.
//! Sources of error: other work on the machine; the program's first quarter of a second is not traced; the noise column
//! is the median change between neighbouring untraced runs and bounds what can be told apart.
//!
//! Arguments: `--pairs N` (default 7), `--only NAME[,NAME…]`, `--no-redis`, `--overhead PERCENT`.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints its table and ends with the first thing that is wrong"
)]

mod redis;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use locality_tests::Tracer;
use serde_json::Value;

/// A program with a fixed amount of work.
struct Program {
    name: &'static str,
    command: fn(&Path) -> Command,
}

const PROGRAMS: [Program; 8] = [
    Program { name: "stream", command: |_| kernel("stream") },
    Program { name: "matmul", command: |_| kernel("matmul") },
    Program { name: "list", command: |_| kernel("list") },
    Program { name: "hash", command: |_| kernel("hash") },
    Program { name: "xz", command: |folder| words("xz", &["-c", "-6", "-T1"], folder, "text") },
    Program { name: "python3", command: |folder| words("python3", &[], folder, "work.py") },
    Program {
        name: "sqlite3",
        command: |folder| words("sqlite3", &[":memory:", "-init"], folder, "work.sql"),
    },
    Program { name: "perl", command: |folder| words("perl", &[], folder, "work.pl") },
];

const PYTHON: &str = "
d = {}
s = 0
for i in range(16000000):
    k = (i * 7919) & 0xffff
    d[k] = d.get(k, 0) + 1
    s ^= d[k] * k
print(s)
";

const SQL: &str = ".mode list
CREATE TABLE t(a INTEGER PRIMARY KEY, b INTEGER, c TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2300000)
INSERT INTO t SELECT i, (i * 7919) % 100003, 'row ' || i FROM n;
CREATE INDEX tb ON t(b);
SELECT count(*), sum(length(c)) FROM t WHERE b IN (SELECT b FROM t WHERE a % 3 = 0);
SELECT sum(x.a * y.b % 1000) FROM t x JOIN t y ON x.b = y.b AND y.a % 5 = 0;
.quit
";

const PERL: &str = "
my %h; my $s = 0;
for my $i (1 .. 25000000) { my $k = ($i * 7919) & 0xffff; $h{$k} .= 'x' if $i % 97 == 0; $s += length($h{$k} // '') ^ $k; }
print \"$s\\n\";
";

fn kernel(name: &str) -> Command {
    let mut command = Command::new(locality_tests::build("bench_kernels"));
    command.arg(name);
    command
}

fn words(program: &str, arguments: &[&str], folder: &Path, file: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).arg(folder.join(file));
    command
}

/// What one run took.
#[derive(Debug, Clone, Copy)]
struct Run {
    wall_s: f64,
    cpu_s: f64,
}

/// What the tracer said of itself.
#[derive(Debug, Clone, Copy, Default)]
struct Own {
    measured_percent: f64,
    longest_stop_us: f64,
    samples: f64,
}

struct Options {
    pairs: usize,
    only: Option<Vec<String>>,
    redis: bool,
    overhead: String,
}

fn main() {
    let options = options();
    let folder = std::env::temp_dir().join(format!("locality-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the inputs");
    write_inputs(&folder);
    println!("budget {} %, {} pairs of runs, medians", options.overhead, options.pairs);
    println!(
        "| program | untraced s | wall traced/untraced | CPU traced/untraced | noise | governor's own figure | longest stop | samples |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for program in &PROGRAMS {
        let wanted = options.only.as_ref().is_none_or(|only| only.iter().any(|name| name == program.name));
        if wanted {
            measure(program, &folder, &options);
        }
    }
    if options.redis {
        redis::measure(&folder, options.pairs, &options.overhead);
    }
    std::fs::remove_dir_all(&folder).expect("the inputs can be removed");
}

fn options() -> Options {
    let mut options = Options { pairs: 7, only: None, redis: true, overhead: "1".to_owned() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--pairs" => options.pairs = value().parse().expect("a number of pairs"),
            "--only" => options.only = Some(value().split(',').map(str::to_owned).collect()),
            "--overhead" => options.overhead = value(),
            "--no-redis" => options.redis = false,
            // Cargo says this to every benchmark.
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    options
}

fn write_inputs(folder: &Path) {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    let mut text = String::new();
    for _ in 0..75_000 {
        for _ in 0..8 {
            text.push_str(&format!("{:x} ", (next() % 4000).wrapping_mul(0x9e37_79b9_7f4a)));
        }
        text.push('\n');
    }
    for (name, content) in
        [("text", text.as_str()), ("work.py", PYTHON), ("work.sql", SQL), ("work.pl", PERL)]
    {
        std::fs::write(folder.join(name), content).expect("inputs can be written");
    }
}

fn measure(program: &Program, folder: &Path, options: &Options) {
    let (mut untraced, mut traced, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.pairs {
        untraced.push(run(program, folder, None).0);
        let (run, report) = run(program, folder, Some(&options.overhead));
        traced.push(run);
        own.push(read_own(&report.expect("a traced run has a report")));
    }
    let ratios =
        |of: fn(&Run) -> f64| median(traced.iter().zip(&untraced).map(|(b, a)| of(b) / of(a)).collect());
    let noise = median(untraced.windows(2).map(|two| (two[1].wall_s / two[0].wall_s - 1.0).abs()).collect());
    println!(
        "| {} | {:.2} | {:.4} | {:.4} | ±{:.4} | {:.2} % | {:.0} µs | {:.0} |",
        program.name,
        median(untraced.iter().map(|run| run.wall_s).collect()),
        ratios(|run| run.wall_s),
        ratios(|run| run.cpu_s),
        noise,
        median(own.iter().map(|own| own.measured_percent).collect()),
        own.iter().map(|own| own.longest_stop_us).fold(0.0, f64::max),
        median(own.iter().map(|own| own.samples).collect()),
    );
}

/// Runs a program once, traced if a budget is given.
#[expect(clippy::zombie_processes, reason = "the child is waited for with wait4, for its CPU time")]
fn run(program: &Program, folder: &Path, overhead: Option<&str>) -> (Run, Option<Value>) {
    let mut command = (program.command)(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", program.name));
    let report = folder.join("report.json");
    let tracer = overhead.map(|overhead| {
        let pid = child.id().to_string();
        let mut tracer = Tracer::new();
        tracer.command().current_dir(folder);
        let arguments = ["-p", &pid, "-q", "--overhead", overhead, "--format", "json", "--report"];
        tracer.args(arguments).args([&report]).start()
    });
    let (cpu_s, wall_s) = (wait(child.id()), start.elapsed().as_secs_f64());
    let report = tracer.map(|tracer| {
        let done = tracer.finish(std::time::Duration::from_secs(30));
        assert!(done.status.success(), "the tracer failed on {}: {}", program.name, done.stderr);
        let text = std::fs::read_to_string(&report).expect("the report was written");
        serde_json::from_str(&text).expect("the report is JSON")
    });
    (Run { wall_s, cpu_s }, report)
}

/// Waits for a child and returns its CPU time in seconds.
fn wait(pid: u32) -> f64 {
    let mut status = 0;
    // SAFETY: all-zero bytes are a valid value to overwrite, and both destinations are live.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        assert_eq!(libc::wait4(pid as i32, &mut status, 0, &mut usage), pid as i32);
        usage
    };
    assert_eq!(status, 0, "the program failed");
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn read_own(report: &Value) -> Own {
    Own {
        measured_percent: report["overhead"]["measured_percent"].as_f64().expect("a measured cost"),
        longest_stop_us: report["overhead"]["longest_stop_ns"].as_f64().unwrap_or(0.0) / 1e3,
        samples: report["run"]["samples"]
            .as_f64()
            .or(report["ledger"]["watch"]["armed"].as_f64())
            .unwrap_or(0.0),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}
