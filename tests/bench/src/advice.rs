//! Correctness of the advice: a corpus of kernels with
//! known flaws, each with a mended form, and sound kernels.
//!
//! For each kernel: the speed-up of each change, by rounds a second of CPU time of the
//! program's ways in turn (medians, pinned to a processor), and the advice of a trace attached
//! to the flawed way with the defaults. Advice is right if kind and place are as in the table
//! of truth (`truth`) and the advice stands first or second. A gain is right if the difference
//! to the measured gain is at most 20 %, or if an interval that contains the measured gain is
//! no wider than a factor of 2.5. A sound program is to get no advice that does not pay.
//!
//! Speed-ups are stored in `advice` of the target directory until the program or
//! `--turns` changes; the reports too, for `--table`. Sources of error: further work
//! on the machine, during the trace or the timing (two threads share lines only while
//! both run); gains depend on the machine: speed-ups of another machine are no truth.

mod judge;
mod measure;
mod public;
mod truth;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use self::{
    judge::{Judgement, Measured},
    measure::Subject,
    public::Public,
    truth::{KERNELS, Kernel},
};
use super::accuracy::score::median;
use locality_shell as shell;

/// Options.
#[derive(clap::Args)]
pub struct Options {
    /// Only these kernels and programs
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Length of a trace
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// Times that each way of a kernel is timed; the median counts
    #[arg(long, default_value_t = 3)]
    turns: usize,
    /// Length of a timing in seconds
    #[arg(long, default_value_t = 1.5)]
    timing: f64,
    /// Do not build the tracer; LOCALITY_BPF or the one of the target directory is taken
    #[arg(long)]
    no_build: bool,
    /// Measure the speed-ups anew, trace nothing
    #[arg(long)]
    speedups_only: bool,
    /// Folder of public programs too, each as its repository is cloned: LULESH, bots, gpu-rodinia,
    /// sweep3d, Hydro, PolyBenchC-4.2.1; what is missing is skipped
    #[arg(long)]
    sources: Option<PathBuf>,
    /// Judge the reports of an earlier run, trace nothing
    #[arg(long)]
    table: bool,
}

/// What was found of a kernel.
struct Row {
    name: String,
    class: String,
    /// Variants except the flawed, with speed-ups.
    speedups: Vec<(String, f64)>,
    judged: Option<Judged>,
}

struct Judged {
    judgement: Judgement,
    /// Why there is no advice, as the report says.
    none: Option<String>,
    /// Cost of the trace in percent, and the longest stop in nanoseconds.
    cost: Option<f64>,
    longest_stop: Option<f64>,
}

/// Measures what is asked for and prints the table.
pub fn run(options: &Options) -> Result<()> {
    let public = if options.sources.is_some() { public::PROGRAMS } else { &[] };
    let names: Vec<&str> =
        KERNELS.iter().map(|kernel| kernel.name).chain(public.iter().map(|program| program.name)).collect();
    if let Some(name) = options.only.iter().find(|name| !names.contains(&name.as_str())) {
        bail!("there is no {name}; there are {}", names.join(", "));
    }
    shell::need(&[("gcc", "gcc"), ("gcc", "libc6-dev"), ("g++", "g++"), ("taskset", "util-linux")])?;
    let bench = Bench::new(options)?;
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    let wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|only| only == name);
    let mut add = |name: &'static str, row: Result<Row>| match row {
        Ok(row) => {
            eprintln!("{}", row.line());
            rows.push(row);
        }
        Err(error) => {
            eprintln!("{name}: {error:#}");
            failed.push(name);
        }
    };
    for kernel in KERNELS.iter().filter(|kernel| wanted(kernel.name)) {
        add(kernel.name, bench.row(kernel));
    }
    for program in public.iter().filter(|program| wanted(program.name)) {
        let sources = options.sources.as_deref().unwrap_or(Path::new("."));
        match program.missing(sources) {
            Some(sentence) => eprintln!("{}: {sentence}", program.name),
            None => add(program.name, bench.public_row(program, sources)),
        }
    }
    crate::say(&table(&rows));
    for sentence in sums(&rows) {
        crate::say(&sentence);
    }
    if failed.is_empty() { Ok(()) } else { bail!("not measured: {}", failed.join(", ")) }
}

/// What a run of the bench works with.
struct Bench<'a> {
    options: &'a Options,
    tracer: PathBuf,
    folder: PathBuf,
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options) -> Result<Self> {
        let folder = shell::target_dir().join("advice");
        std::fs::create_dir_all(folder.join("reports"))
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let given = std::env::var_os("LOCALITY_BPF").map(PathBuf::from);
        let traces = !options.speedups_only && !options.table;
        if traces && given.is_none() && !options.no_build {
            shell::run_aside(shell::cargo().args(["build", "--release", "--package", "locality-bpf"]))?;
        }
        let tracer = given.unwrap_or_else(|| shell::target_dir().join("release/locality-bpf"));
        if traces && !tracer.exists() {
            bail!("there is no tracer {}; run the benchmark without --no-build", tracer.display());
        }
        Ok(Self { options, tracer, folder })
    }

    fn row(&self, kernel: &Kernel) -> Result<Row> {
        let program = measure::build(kernel.source, &self.folder)?;
        let speedups = self.speedups(kernel, &program)?;
        let class = kernel.class.to_owned();
        let mut row = Row { name: kernel.name.to_owned(), class, speedups, judged: None };
        if self.options.speedups_only {
            return Ok(row);
        }
        let seconds = self.options.seconds;
        let report = self.report(kernel.name, || Subject::start(kernel, &program, seconds))?;
        // Changes that do not help a sound program are measured
        // as proof; no advice of these changes is right.
        let fixes = if kernel.is_sound() { &[][..] } else { kernel.fixes };
        let fixes = fixes.iter().map(|fix| Measured {
            kinds: fix.kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            speedup: row.speedups.iter().find(|(way, _)| way == fix.way).map_or(f64::NAN, |(_, of)| *of),
        });
        let fixes: Vec<Measured> = fixes.collect();
        row.judged = Some(Judged::of(&report, judge::judge(&report, &fixes, &kernel.places()?)));
        Ok(row)
    }

    fn public_row(&self, program: &Public, sources: &Path) -> Result<Row> {
        let folder = self.folder.join("public");
        std::fs::create_dir_all(&folder)?;
        let built = program.built(sources, &folder)?;
        let [flawed, _] = &built;
        let speedup = program.speedup(&built, self.options.turns)?;
        let speedups = vec![("mended".to_owned(), speedup)];
        let mut row =
            Row { name: program.name.to_owned(), class: "public".to_owned(), speedups, judged: None };
        if self.options.speedups_only {
            return Ok(row);
        }
        let report = self.report(program.name, || Subject::after_a_while(program.endless(flawed)))?;
        let fix = |kinds: &[&str], speedup| Measured {
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            speedup,
        };
        // A change that was not made here has no gain to compare with.
        let fixes = [fix(program.kinds, speedup), fix(program.also, f64::NAN)];
        row.judged = Some(Judged::of(&report, judge::judge(&report, &fixes, &program.places(flawed)?)));
        Ok(row)
    }

    /// The report of a trace of the started program, or the stored report.
    fn report(&self, name: &str, start: impl FnOnce() -> Result<Subject>) -> Result<Value> {
        let kept = self.folder.join("reports").join(name).with_extension("json");
        if !self.options.table {
            return start()?.trace(&self.tracer, self.options.seconds, &kept);
        }
        let text = std::fs::read(&kept).with_context(|| format!("cannot read {}", kept.display()))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Speed-ups of the ways but the flawed one, measured or stored.
    fn speedups(&self, kernel: &Kernel, program: &Path) -> Result<Vec<(String, f64)>> {
        if kernel.fixes.is_empty() {
            return Ok(Vec::new());
        }
        let kept = self.folder.join(format!("{}.speedups", kernel.name));
        let key = json!([measure::digest(program)?, self.options.turns, self.options.timing]);
        let page: Option<Value> =
            std::fs::read(&kept).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let ways = || kernel.ways().skip(1);
        if let Some(page) = page.filter(|page| page["of"] == key && !self.options.speedups_only) {
            let known = ways().map(|way| Some((way.to_owned(), page["speedups"][way].as_f64()?)));
            if let Some(known) = known.collect() {
                return Ok(known);
            }
        }
        let rates = measure::rates(kernel, program, self.options.turns, self.options.timing)?;
        let flawed = rates.first().copied().context("the flawed way was not measured")?;
        let speedups: Vec<(String, f64)> =
            ways().zip(rates.iter().skip(1)).map(|(way, rate)| (way.to_owned(), rate / flawed)).collect();
        let by_way: serde_json::Map<String, Value> =
            speedups.iter().map(|(way, of)| (way.clone(), json!(of))).collect();
        std::fs::write(&kept, json!({"of": key, "speedups": by_way}).to_string())?;
        Ok(speedups)
    }
}

impl Judged {
    fn of(report: &Value, judgement: Judgement) -> Self {
        let overhead = &report["overhead"];
        Self {
            judgement,
            none: report["advice_none"].as_str().map(str::to_owned),
            cost: overhead["measured_percent"].as_f64(),
            longest_stop: overhead["longest_stop_ns"].as_f64(),
        }
    }
}

impl Row {
    fn is_sound(&self) -> bool {
        self.class == "sound"
    }

    /// The row of the table.
    fn line(&self) -> String {
        let speedups = self.speedups.iter().map(|(way, of)| match way.as_str() {
            "mended" => format!("{of:.2}"),
            way => format!("{way} {of:.2}"),
        });
        let speedups: Vec<String> = speedups.collect();
        let (told, gain, right, cost, stop) =
            self.judged.as_ref().map_or_else(Default::default, |judged| judged.cells(self.is_sound()));
        format!(
            "| {} | {} | {} | {told} | {gain} | {right} | {cost} | {stop} |",
            self.name,
            self.class,
            speedups.join(", "),
        )
    }
}

impl Judged {
    /// The report's advice, the predicted gain, its correctness, the trace's cost, and the longest
    /// stop.
    fn cells(&self, sound: bool) -> (String, String, String, String, String) {
        let given = &self.judgement.given;
        let told = match given.split_first() {
            None => self.none.as_ref().map_or("no advice".to_owned(), |none| format!("no advice: {none}")),
            Some((first, [])) => first.clone(),
            Some((first, [second])) => format!("{first}; {second}"),
            Some((first, [second, rest @ ..])) => format!("{first}; {second}; {} more", rest.len()),
        };
        let right = self.judgement.right.as_ref();
        let predicted = right.and_then(|right| right.predicted);
        let gain = predicted
            .map_or(String::new(), |(value, [low, high])| format!("{value:.2} [{low:.2}-{high:.2}]"));
        let judged = match right {
            _ if sound && self.judgement.false_alarms.is_empty() => "yes".to_owned(),
            _ if sound => format!("false alarm: {}", self.judgement.false_alarms.join(", ")),
            None => "no".to_owned(),
            Some(right) => format!(
                "{} {}, gain {}",
                right.kind,
                if right.rank == 1 { "first".to_owned() } else { format!("at {}", right.rank) },
                if right.gain_is_right() { "right" } else { "wrong" },
            ),
        };
        let cost = self.cost.map_or("–".to_owned(), |percent| format!("{percent:.2} %"));
        let stop = self.longest_stop.map_or("–".to_owned(), |ns| format!("{:.2} ms", ns / 1e6));
        (told, gain, judged, cost, stop)
    }
}

fn table(rows: &[Row]) -> String {
    let headings = ["program", "flaw", "speed-up", "advice", "predicted", "right", "cost", "longest stop"];
    let mut text = format!("| {} |\n{}|", headings.join(" | "), "|---".repeat(headings.len()));
    for row in rows {
        text += "\n";
        text += &row.line();
    }
    text
}

/// The sums, a sentence each.
fn sums(rows: &[Row]) -> Vec<String> {
    let judged = |sound: bool| {
        rows.iter()
            .filter(move |row| row.is_sound() == sound)
            .filter_map(|row| row.judged.as_ref())
            .collect::<Vec<_>>()
    };
    let (flawed, sound) = (judged(false), judged(true));
    let mut sums = Vec::new();
    if !flawed.is_empty() {
        let seen = |judged: &&&Judged| judged.judgement.right.as_ref().is_some_and(|right| right.is_seen());
        let gains =
            |judged: &&&Judged| judged.judgement.right.as_ref().is_some_and(|right| right.gain_is_right());
        sums.push(format!(
            "Right kind and place first or second: {} of {}; gain within 20 %, or in a narrow interval: {} of {}.",
            flawed.iter().filter(seen).count(),
            flawed.len(),
            flawed.iter().filter(seen).filter(gains).count(),
            flawed.len(),
        ));
    }
    if !sound.is_empty() {
        let quiet = sound.iter().filter(|judged| judged.judgement.false_alarms.is_empty()).count();
        sums.push(format!("Sound programs without advice that does not pay: {quiet} of {}.", sound.len()));
    }
    let all = || flawed.iter().chain(&sound);
    let costs: Vec<f64> = all().filter_map(|judged| judged.cost).collect();
    let stops: Vec<f64> = all().filter_map(|judged| judged.longest_stop).collect();
    let largest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    if let Some(middle) = median(&costs) {
        sums.push(format!(
            "Cost of the traces: median {middle:.2} %, largest {:.2} %; longest stop {:.2} ms.",
            largest(&costs),
            largest(&stops) / 1e6,
        ));
    }
    let (small, mended): (Vec<&Row>, Vec<&Row>) = rows
        .iter()
        .filter(|row| !row.is_sound() && !row.speedups.is_empty())
        .partition(|row| row.speedups.iter().all(|(_, of)| *of < 1.1));
    if !small.is_empty() {
        let names: Vec<&str> = small.iter().map(|row| row.name.as_str()).collect();
        let all = small.len() + mended.len();
        sums.push(format!(
            "Flaws that cost less than a tenth here: {} of {all} ({}).",
            small.len(),
            names.join(", ")
        ));
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, class: &str, report: &Value) -> Row {
        let places = if class == "sound" {
            vec![]
        } else {
            vec![truth::Place { file: "a.c".to_owned(), first: 1, last: 9 }]
        };
        let fixes = [Measured { kinds: vec!["tile".to_owned()], speedup: 2.0 }];
        Row {
            name: name.to_owned(),
            class: class.to_owned(),
            speedups: vec![("mended".to_owned(), 2.0), ("split".to_owned(), 1.05)],
            judged: Some(Judged::of(report, judge::judge(report, &fixes, &places))),
        }
    }

    fn report(kind: &str, speedup: f64) -> Value {
        json!({
            "overhead": {"measured_percent": 0.5, "longest_stop_ns": 1_500_000},
            "advice": [{"kind": kind, "where": {"function": "f", "file": "/a.c", "line": 3},
                        "gain": {"speedup": {"value": speedup, "ci95": [1.0, 4.0], "n": 9}}}],
        })
    }

    #[test]
    fn rows_and_sums_count_what_is_right() {
        let rows = [
            row("a", "tile", &report("tile", 2.2)),
            row("b", "tile", &report("tile", 3.0)),
            row("c", "tile", &report("fuse", 2.0)),
            row("d", "sound", &report("fuse", 2.0)),
            row("e", "sound", &json!({"advice": [], "advice_none": "92 % does not wait."})),
        ];
        let text = table(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[2],
            "| a | tile | 2.00, split 1.05 | tile a.c:3 | 2.20 [1.00-4.00] | tile first, gain right | 0.50 % | 1.50 ms |"
        );
        assert!(lines[3].contains("tile first, gain wrong"), "{text}");
        assert!(lines[4].contains("| fuse a.c:3 |  | no |"), "{text}");
        assert!(lines[5].contains("false alarm: fuse"), "{text}");
        assert!(lines[6].contains("no advice: 92 % does not wait. |  | yes | – | – |"), "{text}");
        let sums = sums(&rows);
        assert!(sums[0].contains("second: 2 of 3;") && sums[0].ends_with("interval: 1 of 3."), "{sums:?}");
        assert!(sums[1].ends_with("pay: 1 of 2."), "{sums:?}");
        assert!(sums[2].contains("median 0.50 %, largest 0.50 %; longest stop 1.50 ms"), "{sums:?}");
        assert_eq!(sums.len(), 3);
    }
}
