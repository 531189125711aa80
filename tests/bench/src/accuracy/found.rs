//! Findings of a live trace, as histograms and curves to be compared with the truth.
//!
//! Two ways. [`reported`] takes the report's own histograms, if in accesses. [`recipe`] is RDX's
//! recipe, made here from the profile's rows independently of the report: each reuse counts as
//! many samples as were taken in the use's calling context during the watch (RDX §IV.A,
//! proportional attribution), one rate for the whole run turns CPU time into accesses, and Shen's
//! conversion gives stack distances. The recipe has help that RDX could not have: rate, number of
//! granules and touches per access are the exact run's. First touches are unknown to the recipe.
//!
//! Source of error: a context is the outer frames and the innermost line (without a line,
//! the instruction in the function). Times below the tracer's resolution (19 µs in a
//! virtual machine: a trap) are unknown and count as the very next access: kind to S, with
//! a first bin up to 4 K, and hard on Slog2. RDX's counters would measure short times.

use std::{collections::HashMap, path::Path, process::Command};

use anyhow::{Context as _, Result, anyhow, bail};
use locality_compare::curve::Curve;
use locality_mrc::{
    distances::{Bar, Distances},
    shen,
};
use serde_json::Value;

use super::truth::Grain;

/// A number's interval: low, high.
pub type Band = (f64, f64);

/// A histogram with the interval of each bin's fraction.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// Fractions.
    pub distances: Distances,
    /// (low, high, fraction, interval); empty without intervals.
    pub bands: Vec<(u64, u64, f64, Band)>,
}

/// A miss-ratio curve with the interval of each point.
#[derive(Debug, Clone)]
pub struct Misses {
    /// The curve.
    pub curve: Curve,
    /// (bytes, interval); empty without them.
    pub bands: Vec<(f64, Band)>,
}

/// A trace's results at one granularity.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Time distances in accesses.
    pub time: Option<Histogram>,
    /// Stack distances in granules.
    pub stack: Option<Histogram>,
    /// Miss ratios.
    pub misses: Option<Misses>,
}

/// The report's own results at a granularity. Times in another unit than accesses are left out.
///
/// # Errors
/// A histogram or curve that does not follow the schema.
pub fn reported(report: &Value, granule: u64) -> Result<Found> {
    let Some(grain) = report.get("reuse").and_then(|reuse| reuse.get(granule.to_string())) else {
        return Ok(Found::default());
    };
    let histogram = |name: &str, unit: &str| match grain.get(name) {
        Some(value) if value.get("unit").and_then(Value::as_str) == Some(unit) => {
            histogram(value).with_context(|| format!("reuse.{granule}.{name}")).map(Some)
        }
        _ => Ok(None),
    };
    let points = grain.get("miss_ratio_curve").and_then(Value::as_array);
    Ok(Found {
        time: histogram("time", "accesses")?,
        stack: histogram("stack", "granules")?,
        misses: points.filter(|points| !points.is_empty()).map(|points| misses(points)).transpose()?,
    })
}

fn histogram(value: &Value) -> Result<Histogram> {
    let bins = value.get("bins").and_then(Value::as_array).context("no bins")?;
    let (mut bars, mut bands) = (Vec::new(), Vec::new());
    for bin in bins {
        let edge = |name: &str| {
            bin.get(name).and_then(Value::as_u64).with_context(|| format!("a bin without {name}"))
        };
        let (low, high) = (edge("low")?, edge("high")?);
        let fraction = bin.get("fraction").and_then(Value::as_f64).context("a bin without fraction")?;
        bars.push(Bar { low, high, weight: fraction });
        bands.extend(band(bin).map(|band| (low, high, fraction, band)));
    }
    let distances = Distances::new(bars, 0.0).map_err(|error| anyhow!("{error}"))?;
    Ok(Histogram { distances, bands })
}

fn misses(points: &[Value]) -> Result<Misses> {
    let (mut curve, mut bands) = (Vec::new(), Vec::new());
    for point in points {
        let number = |name: &str| point.get(name).and_then(Value::as_f64);
        let (Some(bytes), Some(ratio)) = (number("bytes"), number("ratio")) else {
            bail!("a point of the miss-ratio curve without bytes and ratio")
        };
        curve.push((bytes, ratio));
        bands.extend(band(point).map(|band| (bytes, band)));
    }
    Ok(Misses { curve: Curve::new(curve).context("a miss ratio that is not from 0 to 1")?, bands })
}

fn band(value: &Value) -> Option<Band> {
    let ends = value.get("ci95")?;
    Some((ends.get(0)?.as_f64()?, ends.get(1)?.as_f64()?))
}

/// How reuses are weighed where the report has no distances in accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weights {
    /// RDX's proportional attribution.
    Proportional,
    /// By the policy's probabilities (Horvitz–Thompson), as the report weighs them.
    Probability,
}

/// A sample of a profile.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    time_ns: u64,
    period_ns: f64,
    context: u32,
}

/// A watch that ended in a reuse.
#[derive(Debug, Clone, PartialEq)]
struct Reuse {
    sample: usize,
    trapped_ns: u64,
    distance_ns: u64,
    probability: f64,
}

/// Rows of a profile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rows {
    samples: Vec<Sample>,
    reuses: Vec<Reuse>,
    resolution_ns: u64,
}

/// Reads a profile with sqlite3.
///
/// # Errors
/// A failing sqlite3, or a profile with other tables than in docs/format.md.
pub fn rows(profile: &Path) -> Result<Rows> {
    let resolution = query(profile, "SELECT distance_resolution_ns AS ns FROM run")?;
    let samples = query(
        profile,
        "SELECT s.time_ns, s.period_ns, k.frames, f.function, f.line, f.address FROM sample s \
         JOIN stack k ON k.id = s.stack LEFT JOIN frame f ON f.id = json_extract(k.frames, '$[0]') ORDER BY s.id",
    )?;
    let reuses = query(
        profile,
        "SELECT sample, reuse_time_ns, distance_ns, coalesce(p_arm, 1) * coalesce(p_survive, 1) AS p FROM watch \
         WHERE outcome = 'reused' ORDER BY id",
    )?;
    let whole = |row: &Value, name: &str| row.get(name).and_then(Value::as_u64);
    let mut contexts: HashMap<String, u32> = HashMap::new();
    let resolution_ns = resolution.first().and_then(|row| whole(row, "ns")).unwrap_or(0);
    let mut found = Rows { resolution_ns, ..Rows::default() };
    for row in &samples {
        let next = contexts.len() as u32;
        let context = *contexts.entry(context(row)).or_insert(next);
        let (Some(time_ns), Some(period)) = (whole(row, "time_ns"), whole(row, "period_ns")) else {
            bail!("a sample without time_ns and period_ns in {}", profile.display())
        };
        found.samples.push(Sample { time_ns, period_ns: period as f64, context });
    }
    for row in &reuses {
        let reuse = || {
            Some(Reuse {
                sample: usize::try_from(whole(row, "sample")?).ok()?,
                trapped_ns: whole(row, "reuse_time_ns")?,
                distance_ns: whole(row, "distance_ns")?,
                probability: row.get("p")?.as_f64()?,
            })
        };
        found
            .reuses
            .push(reuse().with_context(|| format!("a reuse without its times in {}", profile.display()))?);
    }
    Ok(found)
}

/// Outer frames, and the innermost function and line, or instruction where no line is known.
fn context(row: &Value) -> String {
    let text = |name: &str| row.get(name).and_then(Value::as_str).unwrap_or_default();
    let outer = text("frames").split_once(',').map_or("", |split| split.1);
    let number = |name: &str| row.get(name).and_then(Value::as_i64);
    let place = number("line").or_else(|| number("address")).unwrap_or(0);
    format!("{}:{place}:{outer}", text("function"))
}

fn query(profile: &Path, sql: &str) -> Result<Vec<Value>> {
    let run = Command::new("sqlite3").args(["-readonly", "-json"]).arg(profile).arg(sql).output()?;
    if !run.status.success() {
        bail!("sqlite3 cannot read {}: {}", profile.display(), String::from_utf8_lossy(&run.stderr).trim());
    }
    // Without rows, sqlite3 prints no text.
    if run.stdout.iter().all(u8::is_ascii_whitespace) {
        Ok(Vec::new())
    } else {
        Ok(serde_json::from_slice(&run.stdout)?)
    }
}

/// Mean of a trace's window rates, in accesses per nanosecond, and the share of windows with a rate
/// from their own readings.
pub fn told_rates(profile: &Path) -> Option<(f64, f64)> {
    let own = "'hardware counters', 'memory counters', 'loop registers', 'pooled counters'";
    let told =
        format!("SELECT avg(rate) AS rate, avg(rate_source IN ({own})) AS own FROM window WHERE rate > 0");
    let rows = query(profile, &told).ok()?;
    let number = |name: &str| rows.first()?.get(name)?.as_f64();
    Some((number("rate")?, number("own")?))
}

/// Number of samples so far in a profile that is being written; `None` while it cannot be read.
pub fn samples_so_far(profile: &Path) -> Option<u64> {
    let rows = query(profile, "SELECT count(*) AS n FROM sample").ok()?;
    rows.first()?.get("n")?.as_u64()
}

impl Rows {
    /// Weight of each reuse, in the order of reuses.
    fn weights(&self, weights: Weights) -> Vec<f64> {
        let sample = |reuse: &Reuse| self.samples.get(reuse.sample);
        let weight = |reuse: &Reuse| match weights {
            Weights::Probability => sample(reuse).map_or(0.0, |sample| sample.period_ns / reuse.probability),
            Weights::Proportional => sample(reuse).map_or(0.0, |first| {
                let alike = self.samples.iter().filter(|other| {
                    other.context == first.context
                        && (first.time_ns..=reuse.trapped_ns).contains(&other.time_ns)
                });
                alike.map(|other| other.period_ns).sum()
            }),
        };
        self.reuses.iter().map(weight).collect()
    }

    /// Distances in accesses at `rate` (accesses per
    /// nanosecond of CPU time); 1 below the resolution.
    ///
    /// # Errors
    /// No reuses, or a rate that is none.
    fn accesses(&self, rate: f64, weights: Weights) -> Result<Distances> {
        let bar = |(reuse, weight): (&Reuse, f64)| {
            let resolved =
                if reuse.distance_ns < self.resolution_ns { 0.0 } else { reuse.distance_ns as f64 };
            let low = ((resolved * rate).round() as u64).max(1);
            Bar { low, high: low + 1, weight }
        };
        let bars: Vec<Bar> = self.reuses.iter().zip(self.weights(weights)).map(bar).collect();
        if bars.is_empty() || !(rate.is_finite() && rate > 0.0) {
            bail!("no reuses, or no rate ({rate})");
        }
        Distances::new(bars, 0.0).map_err(|error| anyhow!("{error}"))
    }
}

/// The recipe's findings at 8 bytes. `rate` is accesses per nanosecond of CPU time over the whole run.
///
/// # Errors
/// No reuses, or a rate that is none.
pub fn recipe(rows: &Rows, rate: f64, weights: Weights, truth: &Grain) -> Result<Found> {
    let time = rows.accesses(rate, weights)?;
    let stack = shen::stack_distances(&time, truth.touches_per_access, truth.granules);
    let misses = Curve::of(&stack, 8).map(|curve| Misses { curve, bands: Vec::new() });
    let histogram = |distances| Some(Histogram { distances, bands: Vec::new() });
    Ok(Found { time: histogram(time), stack: histogram(stack), misses })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample(time_ns: u64, context: u32) -> Sample {
        Sample { time_ns, period_ns: 10.0, context }
    }

    fn reuse(sample: usize, trapped_ns: u64, distance_ns: u64) -> Reuse {
        Reuse { sample, trapped_ns, distance_ns, probability: 0.25 }
    }

    #[test]
    fn a_reuse_counts_the_samples_of_its_context_while_it_was_watched() {
        let rows = Rows {
            // Two contexts; the last sample of context 1 comes after the trap.
            samples: vec![sample(100, 1), sample(200, 1), sample(300, 2), sample(400, 1), sample(900, 1)],
            reuses: vec![reuse(0, 500, 400), reuse(2, 301, 1)],
            resolution_ns: 0,
        };
        assert_eq!(rows.weights(Weights::Proportional), [30.0, 10.0]);
        assert_eq!(rows.weights(Weights::Probability), [40.0, 40.0]);
    }

    #[test]
    fn times_become_accesses_and_unresolved_ones_the_next_access() {
        let rows = Rows {
            samples: vec![sample(0, 1)],
            reuses: vec![reuse(0, 1, 1000), reuse(0, 1, 0), reuse(0, 1, 89), reuse(0, 1, 90)],
            resolution_ns: 90,
        };
        let found = rows.accesses(2.5, Weights::Probability).unwrap();
        let bars: Vec<_> = found.bars().iter().map(|bar| (bar.low, bar.high, bar.weight)).collect();
        assert_eq!(bars, [(1, 2, 80.0), (225, 226, 40.0), (2500, 2501, 40.0)]);
        assert!(rows.accesses(f64::NAN, Weights::Probability).is_err());
        assert!(Rows::default().accesses(1.0, Weights::Probability).is_err());
    }

    #[test]
    fn contexts_differ_by_line_and_by_callers() {
        let row = |frames: &str, line: Option<u32>, address: i64| {
            context(&json!({ "frames": frames, "function": "f", "line": line, "address": address }))
        };
        assert_eq!(row("[1,5,6]", Some(7), 10), row("[2,5,6]", Some(7), 20));
        assert_ne!(row("[1,5,6]", Some(7), 10), row("[1,5,7]", Some(7), 10));
        assert_ne!(row("[1,5,6]", None, 10), row("[2,5,6]", None, 20));
    }

    #[test]
    fn a_report_in_accesses_is_taken_and_one_in_time_is_not() {
        let report = |unit: &str| {
            json!({ "reuse": { "8": {
                "time": { "unit": unit, "bins": [{ "low": 0, "high": 2, "fraction": 1.0, "ci95": [0.9, 1.0] }] },
                "miss_ratio_curve": [{ "bytes": 8, "ratio": 0.5, "ci95": [0.4, 0.6] }] } } })
        };
        let found = reported(&report("accesses"), 8).unwrap();
        assert_eq!(found.time.unwrap().bands, [(0, 2, 1.0, (0.9, 1.0))]);
        assert_eq!(found.misses.unwrap().bands, [(8.0, (0.4, 0.6))]);
        assert!(reported(&report("cpu_ns"), 8).unwrap().time.is_none());
        assert!(reported(&report("accesses"), 64).unwrap().time.is_none());
    }
}
