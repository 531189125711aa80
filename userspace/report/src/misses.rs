//! Additions by windows, as text: miss ratios by size, the histogram in accesses, and their
//! sources.

use locality_estimate::access_rates::Unit;
use locality_estimate::interval_estimate::Estimate;
use locality_estimate::reuse::{CrossCheck, FIXED_SIZES, Reuse};
use locality_findings::Windowed;
use locality_model::Profile;
use locality_units::print::{accesses, bytes, count, counted, percent};

use super::estimates::share;
use super::names::numbered_level;

/// Share below which rows of the histogram are left out.
const SMALL: f64 = 0.002;

/// The miss-ratio table and the histogram, a line each.
pub(super) fn table(windowed: &Windowed) -> Vec<String> {
    let mut lines = Vec::new();
    let [words, rows] = windowed.whole.as_slice() else { return lines };
    if !rows.curve.is_empty() {
        lines.push("     cache             64-byte lines          8-byte words".to_owned());
        let sizes =
            rows.curve.iter().filter(|point| point.level.is_some() || FIXED_SIZES.contains(&point.bytes));
        let last = rows.curve.iter().filter_map(|point| point.level).max();
        for point in sizes {
            let level =
                point.level.map_or(String::new(), |level| format!(" ({})", numbered_level(level, last)));
            let word = words.at(point.bytes).map_or(String::new(), |point| share(&point.ratio));
            let size = format!("{}{level}", bytes(point.bytes));
            lines.push(format!("     {size:<17} {:<22} {word}", share(&point.ratio)));
        }
        lines.push(format!("     {:<17} {:<22} {}", "never reused", share(&rows.cold), share(&words.cold)));
        let footprint = |reuse: &Reuse| {
            let Estimate { value, low, high, .. } = reuse.footprint_bytes;
            if value <= 0.0 {
                return String::new();
            }
            let low = match low as u64 {
                0 => "0".to_owned(),
                low => bytes(low),
            };
            format!("{} [{low}–{}]", bytes(value as u64), bytes(high as u64))
        };
        let footprints = [footprint(rows), footprint(words)];
        if footprints.iter().any(|footprint| !footprint.is_empty()) {
            lines.push(format!("     {:<17} {:<22} {}", "touched in all", footprints[0], footprints[1]));
        }
    }
    lines
}

/// The time histogram at 8 bytes.
pub(super) fn histogram(windowed: &Windowed) -> Vec<String> {
    let Some(words) = windowed.whole.first() else { return Vec::new() };
    let widest = words.time.iter().map(|bin| bin.fraction.value).fold(0.0, f64::max);
    let row = |bin: &locality_estimate::reuse::Bin| {
        let bar = "▪".repeat((bin.fraction.value / widest * 40.0).round() as usize);
        let from =
            if words.unit == Unit::Accesses { count(bin.low) } else { format!("{} ns", count(bin.low)) };
        format!("     {from:>15}  {:<19} n {:<6} {bar}", share(&bin.fraction), bin.fraction.n)
    };
    let rows = words.time.iter().filter(|bin| bin.fraction.value >= SMALL).map(row);
    let blurred = words.blurred.iter().map(|(edge, near)| {
        let unit = if words.unit == Unit::Accesses { "" } else { " ns" };
        format!(
            "     {} of reuses are so near {}{unit} that their row is uncertain",
            percent(*near),
            count(*edge)
        )
    });
    rows.chain(blurred).collect()
}

/// Windows and rates in a sentence each.
pub(super) fn sources(profile: &Profile, windowed: &Windowed) -> Vec<(&'static str, String)> {
    let ends = windowed.ends.iter().map(|(end, n)| match &**end {
        "whole" => format!("complete {}", count(*n)),
        end => format!("{end} {}", count(*n)),
    });
    let ends: Vec<String> = ends.collect();
    let confirmed = match windowed.confirmed.n {
        0 => String::new(),
        n => format!(
            "; of {}, {} trapped where predicted; the accesses of {} were counted",
            counted(n, "reused watchpoint"),
            share(&windowed.confirmed),
            share(&windowed.counted)
        ),
    };
    let windows = format!(
        "{} of {} in all ({}); {}, {} not reused within their window{confirmed}",
        counted(profile.windows.len() as u64, "window"),
        accesses(windowed.accesses as f64),
        ends.join(", "),
        counted(windowed.uses, "use"),
        count(windowed.open),
    );
    let mut shares: Vec<&(String, f64)> = windowed.rates.iter().collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    let shares: Vec<String> =
        shares.iter().map(|(source, share)| format!("{source} {}", percent(*share))).collect();
    let said = |rate: &Estimate| {
        format!("{:.2} [{:.2}–{:.2}] accesses per ns of CPU time", rate.value, rate.low, rate.high)
    };
    let rate = match (&windowed.mean_rate, windowed.doubt) {
        (Some(rate), Some(doubt)) => format!(
            "about {} by a timing model: nothing showed the program's progress, so long distances and miss \
             ratios may be off by {doubt:.1} times",
            said(rate)
        ),
        (Some(rate), None) => format!("{}; from {}", said(rate), shares.join(", ")),
        (None, _) => "not known: distances are CPU time, and an access in a window counts as 1 ns; no stack distances, no miss \
                      ratios"
            .to_owned(),
    };
    let mut estimate = windowed.estimator.to_string();
    for reuse in &windowed.whole {
        estimate.extend(reuse.cross_check.as_ref().and_then(|check| disagreement(reuse, check)));
    }
    vec![("Windows", windows), ("Rate", rate), ("Estimate", estimate)]
}

/// Contradictions between the checking estimator and the reported intervals.
fn disagreement(reuse: &Reuse, check: &CrossCheck) -> Option<String> {
    let (low, high, difference) = check.largest;
    let seen = reuse.time.iter().find(|bin| bin.low == low).map_or(Estimate::default(), |bin| bin.fraction);
    check.outside.then(|| {
        format!(
            "; a second estimator ({}, {} bytes) finds {} of reuses at distances of {}–{} where this one finds {}: \
             trust these distances less, or trace longer",
            check.estimator,
            reuse.bytes,
            percent(seen.value + difference),
            count(low),
            count(high.saturating_sub(1)),
            share(&seen)
        )
    })
}
