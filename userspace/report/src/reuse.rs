//! Reuse by granule as JSON: the fields of an exact run's `reuse`, with intervals.

use locality_estimate::interval_estimate::Estimate;
use locality_estimate::reuse::{Bin, CrossCheck, Point, Reuse};
use locality_findings::Windowed;
use locality_model::Profile;
use serde_json::{Map, Value, json};

use super::estimates::{ci95, share_value};

/// `{"8": …, "64": …}`.
pub(super) fn of_all(all: &[Reuse]) -> Value {
    let entries = all.iter().map(|reuse| (reuse.bytes.to_string(), of(reuse)));
    Value::Object(entries.collect::<Map<String, Value>>())
}

fn of(reuse: &Reuse) -> Value {
    let unit = reuse.unit.name();
    let value = |estimate: &Estimate| json!({ "value": estimate.value, "unit": unit, "ci95": ci95(estimate), "n": estimate.n });
    let mut object = json!({
        "time": {
            "unit": unit,
            "bins": bins(&reuse.time, true),
            "n": reuse.n,
            "median": value(&reuse.median),
            "p90": value(&reuse.p90),
        },
        "cold_fraction": reuse.cold.value,
        "cold_fraction_ci95": ci95(&reuse.cold),
        "touches": reuse.touches,
    });
    if let Some(CrossCheck { estimator, s, largest: (low, high, difference), outside }) = &reuse.cross_check {
        object["cross_check"] = json!({
            "estimator": estimator.to_string(),
            "s": s,
            "largest_difference": { "low": low, "high": high, "difference": difference, "outside_ci95": outside },
        });
    }
    if !reuse.curve.is_empty() {
        object["stack"] = json!({ "unit": "granules", "bins": bins(&reuse.stack, false), "n": reuse.n });
        object["miss_ratio_curve"] = reuse.curve.iter().map(point).collect();
        object["at_caches"] = reuse.curve.iter().filter(|point| point.level.is_some()).map(point).collect();
        if reuse.footprint_bytes.value > 0.0 {
            object["footprint_bytes"] = json!(reuse.footprint_bytes.value.round());
            object["footprint_bytes_ci95"] = ci95(&reuse.footprint_bytes);
        }
    }
    object
}

/// Windows: how many, what they held, why they ended, and where the rate comes from.
pub(super) fn windows(profile: &Profile, windowed: &Windowed) -> Value {
    let ends: Map<String, Value> = windowed.ends.iter().map(|(end, n)| (end.clone(), json!(n))).collect();
    let rates: Map<String, Value> =
        windowed.rates.iter().map(|(source, share)| (source.clone(), json!(share))).collect();
    json!({
        "n": profile.windows.len(),
        "accesses": windowed.accesses,
        "ends": ends,
        "uses": windowed.uses,
        "uses_open": windowed.open,
        "uses_confirmed": (windowed.confirmed.n > 0).then(|| share_value(&windowed.confirmed)),
        "reuses_counted": (windowed.counted.n > 0).then(|| share_value(&windowed.counted)),
        "rate_sources": rates,
        "accesses_per_ns": windowed.mean_rate.map(|rate| rate.value),
        "accesses_per_ns_ci95": windowed.mean_rate.map(|rate| ci95(&rate)),
        "accesses_per_ns_factor_of_doubt": windowed.doubt,
    })
}

fn bins(bins: &[Bin], counted: bool) -> Value {
    let bin = |bin: &Bin| {
        let mut value = json!({
            "low": bin.low,
            "high": bin.high,
            "fraction": bin.fraction.value,
            "ci95": ci95(&bin.fraction),
        });
        if counted {
            value["n"] = json!(bin.fraction.n);
        }
        value
    };
    bins.iter().map(bin).collect()
}

fn point(point: &Point) -> Value {
    let mut value = json!({ "bytes": point.bytes, "ratio": point.ratio.value, "ci95": ci95(&point.ratio) });
    if let Some(level) = point.level {
        value["level"] = json!(level);
    }
    value
}
