//! Costs of tracing, measured from outside: `cargo xtask bench overhead`.
//!
//! Each program works on equal units until killed; the tracer attaches with the default budget for
//! 5 s, detaches for 5 s, and so on (A B A B … A). The time of a unit in a traced stretch, from the
//! tracer's start to its end, is compared with the mean of the two neighbouring untraced stretches;
//! the figures are medians over the pairs. One process for both, because the kernel's placement of
//! a program's pages changes the speed by up to a tenth from start to start, here, and by a
//! hundredth during a run. Sources of error: further work on the machine; the noise column is the
//! median change between neighbouring untraced stretches and bounds what can be distinguished.
//!
//! With `--heap`, allocations are followed too, `small` and `large` make a
//! million allocations in a second, and the table shows the part seen (recorded,
//! of the allocations made) and the probes' cost by the governor's own figure.
//!
//! Arguments: `--pairs N` (default 7), `--only NAME[,NAME…]` (redis too), `--overhead PERCENT`, `--heap`.
#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark prints its table and ends with the first thing that is wrong"
)]

mod redis;
mod units;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use locality_tests::Tracer;
use serde_json::Value;
use units::{PerUnit, Work, Worker};

/// Length of a stretch.
const STRETCH: Duration = Duration::from_secs(5);

/// A program that works until killed.
struct Program {
    name: &'static str,
    start: fn() -> Worker,
}

const PROGRAMS: [Program; 14] = [
    Program { name: "stream", start: || kernel("stream") },
    Program { name: "matmul", start: || kernel("matmul") },
    Program { name: "list", start: || kernel("list") },
    Program { name: "hash", start: || kernel("hash") },
    Program { name: "xz", start: xz },
    Program { name: "python3", start: || script("python3", "-c", PYTHON) },
    Program { name: "perl", start: || script("perl", "-e", PERL) },
    Program { name: "sqlite3", start: sqlite },
    Program { name: "small", start: || kernel("small") },
    Program { name: "large", start: || kernel("large") },
    Program { name: "reads", start: || kernel("reads") },
    Program { name: "copies", start: || kernel("copies") },
    Program { name: "splits", start: || kernel("splits") },
    Program { name: "text", start: || script("python3", "-c", TEXT) },
];

const PYTHON: &str = "
d = {}
while True:
    s = 0
    for i in range(160000):
        k = (i * 7919) & 0xffff
        d[k] = d.get(k, 0) + 1
        s ^= d[k] * k
    d.clear()
    print(s, flush=True)
";

/// Copies of some hundred bytes to unaligned places.
const TEXT: &str = "
d = {}
while True:
    for i in range(100000):
        d[i * 7919 & 0xffff] = str(i) * (i % 90)
    print(len(d), flush=True)
";

const PERL: &str = "
$| = 1;
my %h;
while (1) {
    my $s = 0;
    for my $i (1 .. 250000) { my $k = ($i * 7919) & 0xffff; $h{$k} .= 'x' if $i % 97 == 0; $s += length($h{$k} // '') ^ $k; }
    %h = ();
    print \"$s\\n\";
}
";

const TABLE: &str = "CREATE TABLE t(a INTEGER PRIMARY KEY, b INTEGER, c TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
INSERT INTO t SELECT i, (i * 7919) % 10003, 'row ' || i FROM n;
CREATE INDEX tb ON t(b);
";

const QUERY: &str =
    "SELECT sum(x.a * y.b % 1000), max(x.c) FROM t x JOIN t y ON x.b = y.b WHERE x.a % 41 = 7;";

fn kernel(name: &str) -> Worker {
    let mut command = Command::new(locality_tests::build("bench_kernels"));
    command.arg(name);
    Worker::start(command, Work::Lines)
}

fn script(program: &str, option: &str, text: &str) -> Worker {
    let mut command = Command::new(program);
    command.args([option, text]);
    Worker::start(command, Work::Lines)
}

fn sqlite() -> Worker {
    // A line larger than the pipe: a query is not taken before the previous answer.
    let query = format!("{QUERY} --{}\n", "-".repeat(8192));
    let mut command = Command::new("sqlite3");
    command.args(["-batch", ":memory:"]);
    Worker::start(command, Work::Blocks(Arc::new(vec![TABLE.into(), query.into()]), 1))
}

/// Compresses words in random order, repeated after 64 MiB,
/// well beyond the 8 MiB in which `-6` looks for matches.
fn xz() -> Worker {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    let block = |_| {
        let mut text = String::with_capacity(66_000);
        while text.len() < 1 << 16 {
            write!(text, "{:x} ", (next() % 4000).wrapping_mul(0x9e37_79b9_7f4a)).expect("memory");
        }
        text.into_bytes()
    };
    let mut command = Command::new("xz");
    command.args(["-c", "-6", "-T1"]);
    Worker::start(command, Work::Blocks(Arc::new((0..1024).map(block).collect()), 0))
}

struct Options {
    pairs: usize,
    only: Option<Vec<String>>,
    overhead: String,
    heap: bool,
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|wanted| wanted == name))
    }

    /// Arguments of the tracer.
    fn tracer(&self) -> impl Iterator<Item = &str> {
        ["--overhead", &self.overhead].into_iter().chain(self.heap.then_some("--heap"))
    }
}

fn main() {
    let options = options();
    let folder = tempfile::tempdir().expect("a folder for the reports");
    println!("budget {} %, {} pairs of stretches of 5 s, medians", options.overhead, options.pairs);
    let (columns, rule) =
        if options.heap { (" of it heap | allocations seen |", "---|---|") } else { ("", "") };
    println!(
        "| program | unit untraced | wall traced/untraced | CPU traced/untraced | noise | governor's own figure | longest stop | samples a stretch |{columns}"
    );
    println!("|---|---|---|---|---|---|---|---|{rule}");
    for program in PROGRAMS.iter().filter(|program| options.wants(program.name)) {
        measure(program, folder.path(), &options);
    }
    if options.wants("redis") {
        redis::measure(folder.path(), &options);
    }
}

fn options() -> Options {
    let mut options = Options { pairs: 7, only: None, overhead: "1".to_owned(), heap: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
        match argument.as_str() {
            "--pairs" => options.pairs = value().parse().expect("a number of pairs"),
            "--only" => options.only = Some(value().split(',').map(str::to_owned).collect()),
            "--overhead" => options.overhead = value(),
            "--heap" => options.heap = true,
            // Cargo says this to every benchmark.
            "--bench" => {}
            other => panic!("unknown argument {other}"),
        }
    }
    options
}

fn measure(program: &Program, folder: &Path, options: &Options) {
    let worker = (program.start)();
    // Caches, the clock frequency and the program's own tables settle.
    std::thread::sleep(Duration::from_secs(2));
    let (mut untraced, mut traced, mut reports) = (vec![alone(&worker)], Vec::new(), Vec::new());
    for _ in 0..options.pairs {
        let start = Instant::now();
        reports.push(trace(&worker, folder, options));
        traced.push(worker.per_unit(start, Instant::now()));
        untraced.push(alone(&worker));
    }
    let ratio = |of: fn(&PerUnit) -> f64| {
        let beside = untraced.windows(2).map(|two| two.iter().map(of).sum::<f64>() / 2.0);
        median(traced.iter().zip(beside).map(|(traced, beside)| of(traced) / beside))
    };
    let noise = median(untraced.windows(2).map(|two| match two {
        [before, after] => (after.wall_s / before.wall_s - 1.0).abs(),
        _ => f64::NAN,
    }));
    let own = |path: &'static str| {
        reports.iter().map(move |report| report.pointer(path).and_then(Value::as_f64).expect("a figure"))
    };
    let heap = options.heap.then(|| {
        let cost = median(own("/overhead/by_cause/heap"));
        // A program without allocations has no share.
        let seen =
            reports.iter().filter_map(|report| report.pointer("/objects_summary/heap/share_seen")?.as_f64());
        format!(" {cost:.2} % | {:.2} % |", median(seen) * 100.0)
    });
    println!(
        "| {} | {:.1} ms | {:.4} | {:.4} | ±{:.4} | {:.2} % | {:.0} µs | {:.0} |{}",
        program.name,
        median(untraced.iter().map(|stretch| stretch.wall_s)) * 1e3,
        ratio(|stretch| stretch.wall_s),
        ratio(|stretch| stretch.cpu_s),
        noise,
        median(own("/overhead/measured_percent")),
        own("/overhead/longest_stop_ns").fold(0.0, f64::max) / 1e3,
        median(own("/run/samples")),
        heap.unwrap_or_default(),
    );
}

/// A stretch without the tracer.
fn alone(worker: &Worker) -> PerUnit {
    let start = Instant::now();
    std::thread::sleep(STRETCH);
    worker.per_unit(start, Instant::now())
}

/// A stretch with the tracer; returns its report.
fn trace(worker: &Worker, folder: &Path, options: &Options) -> Value {
    let (pid, report) = (worker.pid().to_string(), folder.join("report.json"));
    let mut tracer = Tracer::new();
    tracer.command().current_dir(folder);
    let seconds = STRETCH.as_secs().to_string();
    tracer.command().args(options.tracer());
    let arguments = ["-p", &pid, "-d", &seconds, "-q", "--format", "json", "--report"];
    let done = tracer.args(arguments).args([&report]).run();
    assert!(done.status.success(), "the tracer failed: {}", done.stderr);
    let text = std::fs::read_to_string(&report).expect("the report was written");
    serde_json::from_str(&text).expect("the report is JSON")
}

fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}
