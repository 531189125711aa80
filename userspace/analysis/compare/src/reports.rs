//! Two reports (`locality_report::schema`), granule by granule.
//!
//! Reads only the compared parts: granularities, their histograms, units and miss-ratio
//! curves. A report is input from outside: a defect becomes one sentence. Curves
//! missing in a report follow from the report's stack distances and cold fraction; at
//! powers of two, the compared sizes, the result is exact, because bins end there.

use std::{collections::BTreeMap, fmt};

use locality_mrc::distances::{Bar, Distances};
use locality_report::schema::{self, SCHEMA, SCHEMA_1, Unreadable};

use super::curve::{self, Curve, Difference};
use super::{Similarity, of};

/// Fractions may miss a sum of 1 by rounding, at most by this tolerance.
const SUM_TOLERANCE: f64 = 0.01;

/// Compared parts of a report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    grains: BTreeMap<u64, Grain>,
}

/// A granularity.
#[derive(Debug, Clone, Default, PartialEq)]
struct Grain {
    time: Option<Histogram>,
    stack: Option<Histogram>,
    curve: Option<Curve>,
}

#[derive(Debug, Clone, PartialEq)]
struct Histogram {
    unit: String,
    distances: Distances,
}

/// Reasons against a comparison. Each is the end of a sentence that begins with the file's
/// name, but for [`Unfit::Granules`] and [`Unfit::Nothing`], which concern both files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// No report, or a report of another schema, with the schema's name.
    Schema(Option<String>),
    /// The report is empty, with the report's own reason, or has no reuses.
    Empty(Option<String>),
    /// A part violates the schema: place and fault.
    Damaged(String, String),
    /// No common granularity: granularities of A and of B.
    Granules(Vec<u64>, Vec<u64>),
    /// Granularities in common, but no comparable histogram or curve: the reasons.
    Nothing(Vec<String>),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |granules: &[u64]| granules.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Schema(None) => write!(
                f,
                "is no report of locality-bpf (it has no \"schema\": \"{SCHEMA}\" or \"{SCHEMA_1}\"): make one with --format json --report FILE"
            ),
            Self::Schema(Some(other)) => {
                write!(
                    f,
                    "has schema {other:?}, not \"{SCHEMA}\" or \"{SCHEMA_1}\": report again with this version of locality-bpf"
                )
            }
            Self::Empty(Some(why)) => write!(f, "is an empty report: {why}"),
            Self::Empty(None) => {
                write!(f, "has no reuses to compare: trace for longer, or while the program works")
            }
            Self::Damaged(place, what) => write!(f, "is damaged at {place} ({what}): write the report again"),
            Self::Granules(a, b) => write!(
                f,
                "the reports have no granularity in common ({} bytes in A, {} in B): make both with the same --granularity (an exact run with --granularity 8,64: live traces have these)",
                bytes(a),
                bytes(b)
            ),
            Self::Nothing(reasons) => write!(
                f,
                "nothing in these reports can be compared ({}): compare two live traces, or two exact runs",
                reasons.join("; ")
            ),
        }
    }
}

impl std::error::Error for Unfit {}

/// A part of the comparison, or the reason for its absence.
pub type Part<T> = Result<T, String>;

/// Two reports at equal granularity.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Bytes of a granule.
    pub bytes: u64,
    /// Time distances with unit.
    pub time: Part<(Similarity, String)>,
    /// Stack distances.
    pub stack: Part<(Similarity, String)>,
    /// Miss-ratio curves.
    pub misses: Part<Difference>,
}

/// Two reports.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// By granularity, ascending, if comparable.
    pub rows: Vec<Row>,
    /// Granularities in one report only.
    pub unmatched: Vec<u64>,
}

impl Unfit {
    /// Why bytes are no report; `None` for bytes without JSON.
    pub fn of(unreadable: Unreadable) -> Result<Self, serde_json::Error> {
        match unreadable {
            Unreadable::NotJson(error) => Err(error),
            Unreadable::Schema(schema) => Ok(Self::Schema(schema)),
            Unreadable::Damaged { at, what } => Ok(Self::Damaged(at, what)),
        }
    }
}

/// The compared parts of a report.
///
/// # Errors
/// No reuses, or a part that does not match the schema.
pub fn read(report: &schema::Report) -> Result<Report, Unfit> {
    if let Some(why) = &report.empty {
        return Err(Unfit::Empty(Some(why.clone())));
    }
    let mut found = Report::default();
    for (bytes, reuse) in &report.reuse {
        let place = format!("reuse.{bytes}");
        let damaged = || Unfit::Damaged(place.clone(), "not a number of bytes".to_owned());
        let bytes: u64 = bytes.parse().ok().filter(|n| *n > 0).ok_or_else(damaged)?;
        found.grains.insert(bytes, grain(reuse, bytes, &place)?);
    }
    let some = |grain: &Grain| grain.time.is_some() || grain.stack.is_some() || grain.curve.is_some();
    if found.grains.values().any(some) { Ok(found) } else { Err(Unfit::Empty(None)) }
}

fn grain(reuse: &schema::reuse::Reuse, bytes: u64, place: &str) -> Result<Grain, Unfit> {
    let cold = reuse.cold_fraction.and_then(schema::Number::real);
    let cold = cold.filter(|cold| (0.0..=1.0).contains(cold));
    let histogram = |histogram: &Option<schema::reuse::Histogram>, name: &str| match histogram {
        None => Ok(None),
        Some(histogram) => read_histogram(histogram, &format!("{place}.{name}")),
    };
    let (time, stack) = (histogram(&reuse.time, "time")?, histogram(&reuse.stack, "stack")?);
    let curve = match &reuse.miss_ratio_curve {
        Some(points) if !points.is_empty() => Some(read_curve(points, &format!("{place}.miss_ratio_curve"))?),
        _ => stack.as_ref().zip(cold).and_then(|(stack, cold)| curve_of(stack, cold, bytes)),
    };
    Ok(Grain { time, stack, curve })
}

/// `None` for a histogram without reuses.
fn read_histogram(of: &schema::reuse::Histogram, place: &str) -> Result<Option<Histogram>, Unfit> {
    let damaged = |what: &str| Unfit::Damaged(place.to_owned(), what.to_owned());
    if of.unit.is_empty() {
        return Err(damaged("no unit"));
    }
    let bins = of.bins.as_ref().ok_or_else(|| damaged("no bins"))?;
    let mut bars = Vec::with_capacity(bins.len());
    for bin in bins {
        match (bin.low.whole(), bin.high.whole(), bin.fraction.real()) {
            (Some(low), Some(high), Some(weight)) => bars.push(Bar { low, high, weight }),
            _ => return Err(damaged("a bin without low, high and fraction")),
        }
    }
    let distances = Distances::new(bars, 0.0).map_err(|error| damaged(&error.to_string()))?;
    let sum = distances.reuses();
    if sum <= 0.0 {
        return Ok(None);
    }
    if (sum - 1.0).abs() > SUM_TOLERANCE {
        return Err(damaged(&format!("its fractions sum to {sum:.3}, not 1")));
    }
    Ok(Some(Histogram { unit: of.unit.clone(), distances }))
}

fn read_curve(points: &[schema::reuse::Point], place: &str) -> Result<Curve, Unfit> {
    let point = |point: &schema::reuse::Point| Some((point.bytes.real()?, point.ratio.real()?));
    let points: Option<Vec<(f64, f64)>> = points.iter().map(point).collect();
    let damaged =
        || Unfit::Damaged(place.to_owned(), "a point without bytes and a ratio from 0 to 1".to_owned());
    points.and_then(Curve::new).ok_or_else(damaged)
}

fn curve_of(stack: &Histogram, cold_fraction: f64, bytes: u64) -> Option<Curve> {
    let reuses = stack.distances.reuses();
    let cold = cold_fraction / (1.0 - cold_fraction) * reuses;
    let all = Distances::new(stack.distances.bars().to_vec(), cold).ok()?;
    Curve::of(&all, bytes)
}

/// Compares two reports.
///
/// # Errors
/// No common granularity, or no comparable part at the common ones.
pub fn compare(a: &Report, b: &Report) -> Result<Comparison, Unfit> {
    let list = |report: &Report| report.grains.keys().copied().collect::<Vec<u64>>();
    let mut rows = Vec::new();
    for (bytes, a) in &a.grains {
        let Some(b) = b.grains.get(bytes) else { continue };
        let misses = both(&a.curve, &b.curve, "miss ratios").and_then(|(a, b)| {
            curve::difference(a, b, *bytes).ok_or_else(|| "no cache size in common".to_owned())
        });
        rows.push(Row {
            bytes: *bytes,
            time: histograms(&a.time, &b.time, "time distances"),
            stack: histograms(&a.stack, &b.stack, "stack distances"),
            misses,
        });
    }
    if rows.is_empty() {
        return Err(Unfit::Granules(list(a), list(b)));
    }
    let comparable = |row: &Row| row.time.is_ok() || row.stack.is_ok() || row.misses.is_ok();
    if !rows.iter().any(comparable) {
        let mut reasons: Vec<String> = Vec::new();
        for row in rows {
            reasons.extend([row.time.err(), row.stack.err(), row.misses.err()].into_iter().flatten());
        }
        reasons.sort();
        reasons.dedup();
        return Err(Unfit::Nothing(reasons));
    }
    let only = |one: &Report, other: &Report| {
        list(one).into_iter().filter(|bytes| !other.grains.contains_key(bytes)).collect::<Vec<u64>>()
    };
    let mut unmatched = [only(a, b), only(b, a)].concat();
    unmatched.sort_unstable();
    Ok(Comparison { rows, unmatched })
}

fn histograms(a: &Option<Histogram>, b: &Option<Histogram>, what: &str) -> Part<(Similarity, String)> {
    let (a, b) = both(a, b, what)?;
    if a.unit != b.unit {
        return Err(format!("{what} in {} in A, in {} in B", a.unit, b.unit));
    }
    let similarity = of(&a.distances, &b.distances).ok_or_else(|| format!("no {what}"))?;
    Ok((similarity, a.unit.clone()))
}

fn both<'a, T>(a: &'a Option<T>, b: &'a Option<T>, what: &str) -> Part<(&'a T, &'a T)> {
    match (a, b) {
        (Some(a), Some(b)) => Ok((a, b)),
        (None, Some(_)) => Err(format!("no {what} in A")),
        (Some(_), None) => Err(format!("no {what} in B")),
        (None, None) => Err(format!("no {what} in either")),
    }
}
