//! The truth about a program's work: exact reports, stored on disk, and the difference of two of them.
//!
//! The report of one repetition taken from the report of several leaves the repetitions
//! between: the average view of a trace of a long run. Counts are subtracted bin by bin, misses
//! size by size. Source of error: differences between two runs of one program (addresses, the
//! first repetition's place in memory) are left over; [`Truth::leftover`] has the amount.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use locality_compare::curve::Curve;
use locality_mrc::distances::{Bar, Distances};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{
    corpus::{Entry, Ready, Repeat},
    process,
};

/// What is compared at each granularity.
pub const GRANULES: [u64; 2] = [8, 64];

/// One granularity of the truth.
#[derive(Debug, Clone)]
pub struct Grain {
    /// Time distances in accesses.
    pub time: Distances,
    /// Stack distances in granules.
    pub stack: Distances,
    /// Miss ratios at powers of two of the granule and at the host's caches.
    pub curve: Curve,
    /// Distinct granules.
    pub granules: f64,
    /// Touches per access.
    pub touches_per_access: f64,
}

/// The truth about one repetition.
#[derive(Debug, Clone)]
pub struct Truth {
    /// Accesses of one repetition.
    pub accesses: f64,
    /// By granule size.
    pub grains: BTreeMap<u64, Grain>,
    /// The host's caches as (level, bytes).
    pub caches: Vec<(u64, u64)>,
    /// Largest share of counts that were larger in the shorter run.
    pub leftover: f64,
}

/// The exact engine, and the place of its stored reports.
pub struct Exact<'a> {
    /// The tool.
    pub tool: &'a Path,
    /// Folder of reports.
    pub kept: PathBuf,
    /// Version of the tool and of QEMU.
    pub version: &'a str,
}

/// What an exact run counts; a simulation takes the place of reuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// Reuses, at both granularities.
    Reuse,
    /// Cache use, of this host's caches.
    CacheUse,
}

impl Exact<'_> {
    /// The truth about an entry, from stored reports if present.
    ///
    /// # Errors
    /// An exact run that fails, or reports that do not fit together.
    pub fn truth(&self, entry: &Entry, ready: impl Fn(u32) -> Result<Ready>) -> Result<Truth> {
        let (one, all) = self.reports(entry, ready, Counts::Reuse)?;
        truth(one.as_ref(), &all, if one.is_some() { entry.more } else { 1 })
    }

    /// The report of one repetition, to be taken from the report
    /// of several; `None` of a program that cannot repeat.
    ///
    /// # Errors
    /// An exact run that fails.
    pub fn reports(
        &self,
        entry: &Entry,
        ready: impl Fn(u32) -> Result<Ready>,
        counts: Counts,
    ) -> Result<(Option<Value>, Value)> {
        let one = self.report(entry.name, &ready(1)?, counts)?;
        if entry.repeat == Repeat::Process {
            return Ok((None, one));
        }
        Ok((Some(one), self.report(entry.name, &ready(1 + entry.more)?, counts)?))
    }

    /// Whether reports are stored and a request needs no run.
    pub fn has(&self, entry: &Entry, ready: impl Fn(u32) -> Result<Ready>, counts: Counts) -> bool {
        let has = |repetitions| {
            let file = ready(repetitions).and_then(|ready| self.file(entry.name, &ready, counts));
            file.is_ok_and(|file| file.exists())
        };
        has(1) && (entry.repeat == Repeat::Process || has(1 + entry.more))
    }

    fn file(&self, name: &str, ready: &Ready, counts: Counts) -> Result<PathBuf> {
        let what = if counts == Counts::CacheUse { "-cache-use" } else { "" };
        Ok(self.kept.join(format!("{name}-{}{what}.json", self.key(ready)?)))
    }

    fn report(&self, name: &str, ready: &Ready, counts: Counts) -> Result<Value> {
        let file = self.file(name, ready, counts)?;
        if !file.exists() {
            std::fs::create_dir_all(&self.kept)?;
            let making = file.with_extension("making");
            let tool = self.tool.to_string_lossy().into_owned();
            let making_name = making.to_string_lossy().into_owned();
            let wanted = match counts {
                Counts::Reuse => "--granularity=8,64",
                Counts::CacheUse => "--cache-use",
            };
            let before = [&tool, "exact", "-q", wanted, "--format", "json1", "--report", &making_name, "--"];
            let before = before.map(str::to_owned);
            let (status, seconds) = process::wait(&mut process::start(&before, ready, 1)?.child, || false)?;
            if !status.success() {
                bail!("the exact run of {name} failed: {status}");
            }
            eprintln!("{name}: exact run of {seconds:.1} s");
            keep(&making, &file)?;
        }
        let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
        serde_json::from_slice(&bytes).with_context(|| format!("{} is damaged: delete it", file.display()))
    }

    /// Hash of the report's inputs: command, input, program, files named, environment, versions.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn key(&self, ready: &Ready) -> Result<String> {
        let environment = format!("{:?}", process::ENVIRONMENT);
        let mut parts = vec![self.version.to_owned(), environment, ready.stdin.clone()];
        let mut files: Vec<&String> = ready.words.iter().filter(|word| is_file(word)).collect();
        files.sort_unstable();
        files.dedup();
        parts.extend(ready.words.iter().cloned());
        for file in files {
            parts.push(file_digest(Path::new(file))?);
        }
        Ok(digest(&parts, 8))
    }
}

fn is_file(word: &str) -> bool {
    let path = Path::new(word);
    path.is_absolute() && path.is_file()
}

/// Hash of a file, by sha256sum: programs are large,
/// and the bench is compiled without optimisation.
pub fn file_digest(file: &Path) -> Result<String> {
    let run = Command::new("sha256sum").arg(file).output().context("cannot run sha256sum")?;
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    let hash = text.split_whitespace().next().filter(|_| run.status.success());
    hash.map(str::to_owned).with_context(|| format!("cannot read {}", file.display()))
}

/// First bytes of the hash of some texts, in hexadecimal.
pub fn digest(parts: &[impl AsRef<str>], bytes: usize) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.as_ref().len() as u64).to_le_bytes());
        hash.update(part.as_ref());
    }
    hash.finalize().iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// Keeps what is needed of a report: pairs and phases are large.
fn keep(from: &Path, to: &Path) -> Result<()> {
    let mut report: Value = serde_json::from_slice(&std::fs::read(from)?)?;
    if let Some(report) = report.as_object_mut() {
        for large in ["pairs", "phases", "threads"] {
            report.remove(large);
        }
    }
    for grain in
        report.get_mut("reuse").and_then(Value::as_object_mut).into_iter().flat_map(|all| all.values_mut())
    {
        if let Some(grain) = grain.as_object_mut() {
            grain.remove("phases");
            grain.remove("by_data_type");
        }
    }
    std::fs::remove_file(from)?;
    let making = to.with_extension("new");
    std::fs::write(&making, format!("{report:#}\n"))?;
    Ok(std::fs::rename(making, to)?)
}

/// The work in `all` beyond `one`: `repetitions` repetitions.
fn truth(one: Option<&Value>, all: &Value, repetitions: u32) -> Result<Truth> {
    let number = |report: &Value, path: &str| report.pointer(path).and_then(Value::as_f64);
    let needed = |report: &Value, path: &str| {
        number(report, path).with_context(|| format!("no {path} in an exact report"))
    };
    let less = |path: &str| -> Result<f64> {
        let before = one.map_or(Ok(0.0), |one| needed(one, path))?;
        Ok((needed(all, path)? - before).max(0.0))
    };
    let accesses = less("/mix/accesses")?;
    let mut found = Truth {
        accesses: accesses / f64::from(repetitions),
        grains: BTreeMap::new(),
        caches: caches(all),
        leftover: 0.0,
    };
    for bytes in GRANULES {
        let at = |field: &str| format!("/reuse/{bytes}/{field}");
        let (touches, cold) = (less(&at("touches"))?, less(&at("cold"))?);
        let mut histogram = |name: &str, cold: f64| -> Result<Distances> {
            let counts = |report: &Value| counts(report, &at(name));
            let (bars, left) = subtract(&one.map(counts).unwrap_or_default(), &counts(all));
            found.leftover = found.leftover.max(left);
            Distances::new(bars, cold)
                .map_err(|error| anyhow::anyhow!("{} of an exact report: {error}", at(name)))
        };
        let (time, stack) = (histogram("time", cold)?, histogram("stack", cold)?);
        if touches <= 0.0 || time.reuses() <= 0.0 {
            bail!("the exact reports show no reuse of {bytes} bytes between the repetitions");
        }
        let mut sizes: Vec<u64> =
            (0..40).map(|bit| bytes << bit).take_while(|size| *size <= 1 << 34).collect();
        sizes.extend(found.caches.iter().map(|cache| cache.1));
        let point = |size: &u64| {
            let before = one.map_or(Some(0.0), |one| misses(one, bytes, *size))?;
            let ratio = (misses(all, bytes, *size)? - before) / touches;
            Some((*size as f64, ratio.clamp(0.0, 1.0)))
        };
        let points = sizes.iter().filter_map(point).collect();
        let curve = Curve::new(points).context("no miss ratios in an exact report")?;
        let granules = needed(all, &at("footprint_bytes"))? / bytes as f64;
        found
            .grains
            .insert(bytes, Grain { time, stack, curve, granules, touches_per_access: touches / accesses });
    }
    Ok(found)
}

fn caches(report: &Value) -> Vec<(u64, u64)> {
    let caches = report.pointer("/run/host/caches").and_then(Value::as_array);
    let one = |cache: &Value| Some((cache.get("level")?.as_u64()?, cache.get("bytes")?.as_u64()?));
    caches.into_iter().flatten().filter_map(one).collect()
}

/// Counts by (low, high).
fn counts(report: &Value, path: &str) -> BTreeMap<(u64, u64), f64> {
    let bins = report.pointer(path).and_then(|histogram| histogram.get("bins")).and_then(Value::as_array);
    let bin = |bin: &Value| {
        Some(((bin.get("low")?.as_u64()?, bin.get("high")?.as_u64()?), bin.get("count")?.as_f64()?))
    };
    bins.into_iter().flatten().filter_map(bin).collect()
}

/// b − a if positive, and the negative share of b's total.
fn subtract(a: &BTreeMap<(u64, u64), f64>, b: &BTreeMap<(u64, u64), f64>) -> (Vec<Bar>, f64) {
    let total: f64 = b.values().sum();
    let mut negative = 0.0;
    let mut bars = Vec::new();
    let edges: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    for edge in edges {
        let count = |of: &BTreeMap<(u64, u64), f64>| of.get(edge).copied().unwrap_or(0.0);
        let left = count(b) - count(a);
        negative += (-left).max(0.0);
        bars.push(Bar { low: edge.0, high: edge.1, weight: left.max(0.0) });
    }
    (bars, if total > 0.0 { negative / total } else { 0.0 })
}

/// Misses of a cache of `size`. Beyond the sizes in a report only first touches miss.
fn misses(report: &Value, granule: u64, size: u64) -> Option<f64> {
    let reuse = report.get("reuse")?.get(granule.to_string())?;
    let list = |name: &str| reuse.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    let points: Vec<(u64, f64)> = [list("miss_ratio_curve"), list("at_caches")]
        .concat()
        .iter()
        .filter_map(|point| Some((point.get("bytes")?.as_u64()?, point.get("misses")?.as_f64()?)))
        .collect();
    if let Some(point) = points.iter().find(|point| point.0 == size) {
        return Some(point.1);
    }
    let cold = reuse.get("cold")?.as_f64()?;
    points.iter().any(|point| point.0 < size && point.1 <= cold).then_some(cold)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(near: u64, far: u64, cold: u64) -> Value {
        let histogram = |unit: &str| {
            json!({ "unit": unit, "bins": [
                { "low": 1, "high": 2, "count": near }, { "low": 4, "high": 8, "count": far } ] })
        };
        let curve = |bytes: u64| json!([{ "bytes": bytes, "misses": far + cold }, { "bytes": bytes * 8, "misses": cold }]);
        let grain = |bytes: u64| {
            json!({ "time": histogram("accesses"), "stack": histogram("granules"), "miss_ratio_curve": curve(bytes),
                    "touches": near + far + cold, "cold": cold, "footprint_bytes": cold * bytes })
        };
        json!({
            "run": { "host": { "caches": [{ "level": 1, "bytes": 4096 }] } },
            "mix": { "accesses": near + far + cold },
            "reuse": { "8": grain(8), "64": grain(64) },
        })
    }

    #[test]
    fn repetitions_are_what_two_runs_differ_by() {
        let truth = truth(Some(&report(100, 30, 20)), &report(300, 130, 20), 2).unwrap();
        assert!((truth.accesses - 150.0).abs() < 1e-9);
        let grain = &truth.grains[&8];
        assert!((grain.time.reuses() - 300.0).abs() < 1e-9 && grain.time.cold() == 0.0);
        assert!((grain.curve.at(8.0) - 100.0 / 300.0).abs() < 1e-9);
        // No cache of the listed sizes, but larger than one that only misses first touches.
        assert_eq!(grain.curve.at(4096.0), 0.0);
        assert_eq!((truth.leftover, truth.caches.as_slice()), (0.0, &[(1, 4096)][..]));
    }

    #[test]
    fn a_whole_run_keeps_its_first_touches() {
        let truth = truth(None, &report(70, 20, 10), 1).unwrap();
        assert!((truth.grains[&64].curve.at(4096.0) - 0.1).abs() < 1e-9);
        assert_eq!(truth.grains[&64].time.cold(), 10.0);
    }

    #[test]
    fn what_is_left_over_is_told() {
        let (bars, left) = subtract(
            &counts(&report(50, 30, 0), "/reuse/8/time"),
            &counts(&report(90, 10, 0), "/reuse/8/time"),
        );
        assert_eq!(bars.iter().map(|bar| bar.weight).collect::<Vec<_>>(), [40.0, 0.0]);
        assert!((left - 0.2).abs() < 1e-9);
    }

    #[test]
    fn a_digest_tells_where_one_part_ends() {
        assert_ne!(digest(&["ab", "c"], 8), digest(&["a", "bc"], 8));
        assert_eq!(digest(&["ab", "c"], 8).len(), 16);
    }

    #[test]
    fn reports_without_a_difference_are_refused() {
        assert!(truth(Some(&report(10, 5, 1)), &report(10, 5, 1), 2).is_err());
    }
}
