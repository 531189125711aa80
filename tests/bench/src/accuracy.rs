//! How right a live trace is: each program of a corpus traced for a while, compared with exact runs
//! of the same work.
//!
//! For each program: exact reports of one repetition and of a few (stored in `--truth`, by a
//! hash of command, inputs and versions; delete the folder after a change to the exact engine),
//! CPU time of a repetition natively before and after each trace and, if the program's output
//! shows the progress, during the trace; and a trace with each recipe, attached after a second
//! to a program that repeats for long enough. `live` is the tracer with the given options;
//! `rdx` is RDX's recipe (`found::recipe`). While the tracer's report has time distances in CPU
//! time only, `live` too is converted with one rate for the run, with the weights of the
//! policy. A longer trace than 30 s is reported once more by the first 30 s (`report --first`).
//! The cache use reported by `live` is compared with separate exact runs (`cacheuse`).
//!
//! Traces are stored too, by a hash of the tracer and the options, and a run can be cut short and
//! continued; traces named by `--only` are made anew. The tables are made from every stored trace.
//!
//! Sources of error: further work on the machine (carried into `rdx` by native CPU time; the
//! spread is in a table); the first repetition's own part is gone, see `truth`; the exact engine
//! and the traces (`--user-only`) see user mode only, but for the CPU time of system calls; the
//! first milliseconds of each process of `sort` and `cc1` have no windows (docs/limitations.md).

mod cacheuse;
mod corpus;
mod found;
pub(super) mod inputs;
mod native;
pub(super) mod process;
pub(super) mod score;
mod table;
mod truth;

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use self::{
    corpus::{ENTRIES, Entry, PACKAGES, Ready, Repeat},
    found::Weights,
    native::Native,
    score::Figures,
    truth::{Counts, Exact, GRANULES, Truth},
};
use locality_shell as shell;

/// Options.
#[derive(clap::Args)]
pub struct Options {
    /// Only these programs, measured even if they were
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Length of a trace [default: 30; with --samples at most 600]
    #[arg(long)]
    seconds: Option<u32>,
    /// End a trace when it has this many samples
    #[arg(long)]
    samples: Option<u64>,
    /// The tracer's --policy
    #[arg(long)]
    policy: Option<String>,
    /// The tracer's --overhead, percent
    #[arg(long)]
    overhead: Option<String>,
    /// The tracer's --estimator
    #[arg(long)]
    estimator: Option<String>,
    /// Recipes: rdx, live
    #[arg(long, value_delimiter = ',', default_value = "rdx,live")]
    recipes: Vec<String>,
    /// Folder of exact reports, inputs and traces [default: accuracy in the target directory]
    #[arg(long)]
    truth: Option<PathBuf>,
    /// Make the exact reports and stop
    #[arg(long)]
    exact_only: bool,
    /// Print the tables of what was measured, measure nothing
    #[arg(long)]
    table: bool,
}

/// The recipes, in the order of columns, and how reuses are weighed if that is done here.
const RECIPES: [(&str, Weights); 2] = [("rdx", Weights::Proportional), ("live", Weights::Probability)];

/// As a recipe: the live trace again, with rates multiplied by a factor
/// that makes the mean rate true. The rest of the difference to the
/// truth is not the rate's, but for the rate's changes along the run.
const TRUE_RATE: &str = "true rate";
/// As a recipe: the first 30 s of a longer live trace.
const FIRST: &str = "first 30 s";
const FIRST_S: u32 = 30;

/// The setting of a run of the bench.
struct Bench<'a> {
    options: &'a Options,
    tool: PathBuf,
    folder: PathBuf,
    cc1: PathBuf,
    version: String,
    settings: String,
    /// Hash of the tracer and the settings.
    key: String,
}

/// Measures the chosen programs and prints the tables.
pub fn run(options: &Options) -> Result<()> {
    if let Some(name) = options.only.iter().find(|name| !ENTRIES.iter().any(|entry| entry.name == **name)) {
        let names: Vec<&str> = ENTRIES.iter().map(|entry| entry.name).collect();
        bail!("the corpus has no {name}; it has {}", names.join(", "));
    }
    if let Some(name) = options.recipes.iter().find(|name| !RECIPES.iter().any(|recipe| recipe.0 == **name)) {
        bail!("there is no recipe {name}: rdx, live");
    }
    shell::need(&PACKAGES)?;
    let bench = Bench::new(options)?;
    let mut failed = Vec::new();
    for entry in ENTRIES {
        let named = options.only.iter().any(|name| name == entry.name);
        let wanted = named
            || (options.only.is_empty()
                && !bench.recipes().all(|recipe| bench.native(&entry, recipe).is_some()));
        if options.table || !wanted {
            continue;
        }
        if let Err(error) = bench.measure(&entry) {
            eprintln!("{}: {error:#}", entry.name);
            failed.push(entry.name);
        }
    }
    let mut recipes: Vec<&str> = RECIPES.iter().map(|recipe| recipe.0).collect();
    let kept = |entry: &&Entry| recipes.iter().any(|recipe| bench.native(entry, recipe).is_some());
    let rows = ENTRIES.iter().filter(kept).map(|entry| bench.row(entry)).collect::<Result<Vec<_>>>()?;
    crate::say(&format!("{} programs, {}", rows.len(), bench.settings));
    recipes.extend([TRUE_RATE, FIRST]);
    crate::say(&table::markdown(&rows, &recipes));
    let mut cacheuse = Vec::new();
    for entry in ENTRIES {
        if let Some((samples, levels)) = bench.cache_use(&entry)? {
            cacheuse.push((entry.name, samples, levels));
        }
    }
    if !cacheuse.is_empty() {
        crate::say(&cacheuse::markdown(&cacheuse));
    }
    if failed.is_empty() { Ok(()) } else { bail!("not measured: {}", failed.join(", ")) }
}

impl<'a> Bench<'a> {
    fn new(options: &'a Options) -> Result<Self> {
        let folder = options.truth.clone().unwrap_or_else(|| shell::target_dir().join("accuracy"));
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let folder = folder.canonicalize()?;
        let cc1 = inputs::prepare(&folder.join("inputs"))?;
        let tool = match std::env::var_os("LOCALITY_BPF") {
            Some(tool) => PathBuf::from(tool).canonicalize().context("LOCALITY_BPF")?,
            None => {
                let build = ["build", "--release", "--package", "locality-bpf"];
                shell::run_aside(shell::cargo().args(build))?;
                shell::target_dir().join("release/locality-bpf")
            }
        };
        let first_line = |program: &Path| -> Result<String> {
            let out = Command::new(program)
                .arg("--version")
                .output()
                .with_context(|| format!("{}", program.display()))?;
            Ok(String::from_utf8_lossy(&out.stdout).lines().next().unwrap_or_default().to_owned())
        };
        let version = format!("{}; {}", first_line(&tool)?, first_line(Path::new("qemu-x86_64"))?);
        let mut settings = format!(
            "seconds {}, samples {}, policy {}, estimator {}",
            options.seconds(),
            options.samples.map_or("any".to_owned(), |n| n.to_string()),
            options.policy.as_deref().unwrap_or("default"),
            options.estimator.as_deref().unwrap_or("default"),
        );
        settings +=
            &options.overhead.as_ref().map_or(String::new(), |percent| format!(", overhead {percent}"));
        let key = truth::digest(&[&truth::file_digest(&tool)?, &settings], 6);
        Ok(Self { options, tool, folder, cc1, version, settings, key })
    }

    /// The path of a stored trace of an entry by a recipe: profile,
    /// report, or CPU times of native repetitions around the trace.
    fn kept(&self, entry: &Entry, recipe: &str, what: &str) -> PathBuf {
        self.folder.join("traces").join(&self.key).join(format!("{}-{recipe}.{what}", entry.name))
    }

    fn recipes(&self) -> impl Iterator<Item = &'static str> {
        let wanted = |recipe: &&str| self.options.recipes.iter().any(|name| name == recipe);
        RECIPES.iter().map(|recipe| recipe.0).filter(wanted)
    }

    /// Speeds stored with a trace, if the trace is of the present work.
    fn native(&self, entry: &Entry, recipe: &str) -> Option<Native> {
        let kept = serde_json::from_slice(&std::fs::read(self.kept(entry, recipe, "native")).ok()?).ok()?;
        Native::of_json(&kept, &self.work(entry).ok()?)
    }

    /// Hash of the work that a repetition does.
    fn work(&self, entry: &Entry) -> Result<String> {
        self.exact().key(&self.ready(entry, 1)?)
    }

    fn exact(&self) -> Exact<'_> {
        Exact { tool: &self.tool, kept: self.folder.join("exact"), version: &self.version }
    }

    fn truth(&self, entry: &Entry) -> Result<Truth> {
        self.exact().truth(entry, |repetitions| self.ready(entry, repetitions))
    }

    fn ready(&self, entry: &Entry, repetitions: u32) -> Result<Ready> {
        entry.ready(repetitions, &self.folder.join("inputs"), &self.cc1)
    }

    /// Makes the inputs of a row.
    fn measure(&self, entry: &Entry) -> Result<()> {
        eprintln!("{}: …", entry.name);
        self.truth(entry)?;
        self.exact().reports(entry, |repetitions| self.ready(entry, repetitions), Counts::CacheUse)?;
        if self.options.exact_only {
            return Ok(());
        }
        let ready = |repetitions| self.ready(entry, repetitions);
        let runs = native::Runs::new(entry, ready)?;
        for recipe in self.recipes() {
            let mut native = Native::default();
            native.add(&runs, ready)?;
            native.traced = self.trace(entry, recipe, native.once())?;
            native.add(&runs, ready)?;
            // Last, as a mark of completeness.
            let kept = native.json(&self.work(entry)?);
            std::fs::write(self.kept(entry, recipe, "native"), kept.to_string())?;
        }
        let row = self.row(entry)?;
        let told = |name: &str| row.figures.get(name).map_or("–".to_owned(), |value| format!("{value:.3}"));
        eprintln!(
            "{}: S time 8 bytes: rdx {}, live {}; S stack: rdx {}, live {}",
            entry.name,
            told("rdx/time.s.8"),
            told("live/time.s.8"),
            told("rdx/stack.s.8"),
            told("live/stack.s.8"),
        );
        Ok(())
    }

    /// Samples and comparison of cache use of an entry, if a trace and exact reports are stored.
    fn cache_use(&self, entry: &Entry) -> Result<Option<(f64, Vec<cacheuse::Level>)>> {
        let ready = |repetitions| self.ready(entry, repetitions);
        if self.native(entry, "live").is_none() || !self.exact().has(entry, ready, Counts::CacheUse) {
            return Ok(None);
        }
        let live: Value = serde_json::from_slice(&std::fs::read(self.kept(entry, "live", "json"))?)?;
        let (one, all) = self.exact().reports(entry, ready, Counts::CacheUse)?;
        let samples = live["run"]["samples"].as_f64().unwrap_or(0.0);
        Ok(Some((samples, cacheuse::compare(one.as_ref(), &all, &live))))
    }

    /// The figures of an entry's stored traces.
    fn row(&self, entry: &Entry) -> Result<table::Row> {
        let truth = self.truth(entry)?;
        let mut figures = Figures::from([
            ("accesses".to_owned(), truth.accesses / 1e6),
            ("leftover".to_owned(), truth.leftover * 100.0),
        ]);
        for (recipe, weights) in RECIPES {
            let Some(native) = self.native(entry, recipe) else { continue };
            let rate = truth.accesses / (native.traced_once().unwrap_or_else(|| native.once()) * 1e9);
            let report = std::fs::read(self.kept(entry, recipe, "json"))?;
            let rows = found::rows(&self.kept(entry, recipe, "locality"))?;
            let trace = Trace { report: serde_json::from_slice(&report)?, rows };
            let found = trace.figures(recipe == "rdx", weights, rate, &truth);
            let mut found = found.with_context(|| format!("recipe {recipe}"))?;
            let mut put = |name: &str, value| found.insert(name.to_owned(), value);
            put("native_ms", native.once() * 1e3);
            put("native_spread", native.spread() * 100.0);
            put("rate", rate);
            let told = found::told_rates(&self.kept(entry, recipe, "locality"));
            if let Some((told, own)) = told {
                put("told_rate", told / rate);
                put("own_rates", own);
            }
            if let Some(once) = native.traced_once() {
                put("traced_ms", once * 1e3);
            }
            figures.extend(found.into_iter().map(|(name, value)| (format!("{recipe}/{name}"), value)));
            if recipe != "live" {
                continue;
            }
            let mut derived = Vec::new();
            if let Some((told, _)) = told {
                let with_rates = |profile: &Path, into: &Path| self.with_rates(profile, rate / told, into);
                derived.push((TRUE_RATE, self.derived(entry, TRUE_RATE, with_rates)?));
            }
            if trace.report["run"]["wall_s"].as_f64() > Some(f64::from(FIRST_S)) {
                let first = |profile: &Path, into: &Path| {
                    self.report(profile, &["--first", &FIRST_S.to_string()], into)
                };
                derived.push((FIRST, self.derived(entry, FIRST, first)?));
            }
            for (name, report) in derived {
                let found =
                    Trace { report, rows: trace.rows.clone() }.figures(false, weights, rate, &truth)?;
                let shown = |figure: &String| {
                    ["time.", "stack.", "miss."].iter().any(|of| figure.starts_with(of))
                        || (figure == "samples" && name == FIRST)
                };
                let found = found.into_iter().filter(|(figure, _)| shown(figure));
                figures.extend(found.map(|(figure, value)| (format!("{name}/{figure}"), value)));
            }
        }
        Ok(table::Row { name: entry.name, group: entry.group, figures })
    }

    /// A report made from an entry's live trace; stored as the trace is.
    fn derived(
        &self,
        entry: &Entry,
        name: &str,
        make: impl FnOnce(&Path, &Path) -> Result<()>,
    ) -> Result<Value> {
        let kept = self.kept(entry, "live", name);
        if !kept.exists() {
            make(&self.kept(entry, "live", "locality"), &kept)?;
        }
        Ok(serde_json::from_slice(&std::fs::read(kept)?)?)
    }

    /// The report of a profile with all rates multiplied by a factor.
    fn with_rates(&self, profile: &Path, factor: f64, into: &Path) -> Result<()> {
        let multiplied = profile.with_extension("multiplied");
        std::fs::copy(profile, &multiplied)?;
        let columns =
            ["rate", "rate_low", "rate_high"].map(|column| format!("{column} = {column} * {factor}"));
        let update = format!("UPDATE window SET {}", columns.join(", "));
        shell::run_aside(Command::new("sqlite3").arg(&multiplied).arg(update))?;
        self.report(&multiplied, &[], into)?;
        Ok(std::fs::remove_file(multiplied)?)
    }

    fn report(&self, profile: &Path, options: &[&str], into: &Path) -> Result<()> {
        let mut report = Command::new(&self.tool);
        let estimator = self.options.estimator.iter().flat_map(|name| ["--estimator", name]);
        report
            .arg("report")
            .arg(profile)
            .args(options)
            .args(estimator)
            .args(["--format", "json1", "--report"])
            .arg(into);
        shell::run(report.stdout(Stdio::null()))
    }

    /// Traces the program during repetitions of the work;
    /// returns the progress, if one process repeats.
    fn trace(&self, entry: &Entry, recipe: &str, once_s: f64) -> Result<Option<process::Progress>> {
        let seconds = self.options.seconds();
        // Traced, on a shared machine, and with a start: work for
        // three times the time, or as much as a command can be given.
        let mut repetitions = (f64::from(seconds + 10) * 3.0 / once_s).ceil().clamp(1.0, 1e6) as u32;
        let working = loop {
            let ready = self.ready(entry, repetitions)?;
            let processes = if entry.repeat == Repeat::Process { repetitions } else { 1 };
            match process::Working::start(&ready, processes) {
                Err(error) if repetitions > 1 && is_too_long(&error) => repetitions = repetitions * 3 / 4,
                started => break started?,
            }
        };
        let (profile, report) = (self.kept(entry, recipe, "locality"), self.kept(entry, recipe, "json"));
        std::fs::create_dir_all(profile.parent().unwrap_or(&self.folder))?;
        let derived = [TRUE_RATE, FIRST, "native"].map(|what| self.kept(entry, recipe, what));
        for old in derived.iter().chain([&profile, &report]) {
            drop(std::fs::remove_file(old));
        }
        let mut command = shell::as_root(&self.tool)?;
        command.args([
            "-q",
            "-p",
            &working.pid().to_string(),
            "-d",
            &seconds.to_string(),
            // The exact engine sees the program's user mode.
            "--user-only",
            "--format",
            "json1",
        ]);
        command.arg("-o").arg(&profile).arg("--report").arg(&report);
        if recipe == "rdx" {
            // The access at the stop, as RDX takes the access
            // at which the counter stopped: no skip, no window.
            command.args(["--policy", "reservoir", "--no-window"]);
        } else {
            let Options { policy, estimator, overhead, .. } = self.options;
            for (name, value) in [("--policy", policy), ("--estimator", estimator), ("--overhead", overhead)]
            {
                command.args(value.iter().flat_map(|value| [name, value]));
            }
        }
        let before = working.progress();
        let mut tracer =
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("cannot run the tracer")?;
        let enough = || {
            self.options
                .samples
                .is_some_and(|most| found::samples_so_far(&profile).is_some_and(|n| n >= most))
        };
        let (status, _) = process::wait(&mut tracer, enough)?;
        if !status.success() {
            bail!("the tracer failed: {status}");
        }
        let progress = before.zip(working.progress()).map(|(before, after)| after.since(before));
        Ok(progress.filter(|_| entry.repeat != Repeat::Process))
    }
}

/// Whether a program could not be run because its command line was too long.
fn is_too_long(error: &anyhow::Error) -> bool {
    let error = error.root_cause().downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == std::io::ErrorKind::ArgumentListTooLong)
}

impl Options {
    fn seconds(&self) -> u32 {
        self.seconds.unwrap_or(if self.samples.is_some() { 600 } else { 30 })
    }
}

/// A finished trace.
struct Trace {
    report: Value,
    rows: found::Rows,
}

impl Trace {
    fn figures(&self, recipe: bool, weights: Weights, rate: f64, truth: &Truth) -> Result<Figures> {
        let mut figures = self.facts();
        for granule in GRANULES {
            let Some(grain) = truth.grains.get(&granule) else { continue };
            let mut found =
                if recipe { found::Found::default() } else { found::reported(&self.report, granule)? };
            if found.time.is_none() && granule == 8 {
                found = found::recipe(&self.rows, rate, weights, grain)?;
            }
            figures.extend(score::figures(&found, grain, granule, &truth.caches));
        }
        let covered: Vec<(String, f64)> = figures
            .iter()
            .filter_map(|(name, inside)| {
                let (of, covered) =
                    (name.replace(".inside.", ".bands."), name.replace(".inside.", ".covered."));
                let of = figures.get(&of).filter(|_| name.contains(".inside."))?;
                Some((covered, inside / of))
            })
            .collect();
        figures.extend(covered);
        Ok(figures)
    }

    fn facts(&self) -> Figures {
        let number = |path: &str| self.report.pointer(path).and_then(Value::as_f64);
        let facts = [
            ("seconds", number("/run/wall_s")),
            ("samples", number("/run/samples")),
            ("windows", number("/windows/n")),
            ("watches", number("/ledger/watch/armed")),
            ("traps", number("/ledger/watch/trapped")),
            ("overhead", number("/overhead/measured_percent")),
            ("longest_stop", number("/overhead/longest_stop_ns").map(|ns| ns / 1e3)),
        ];
        facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}
