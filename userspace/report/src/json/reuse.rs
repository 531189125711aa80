//! Reuse by granule for programs: the fields of an exact run's `reuse`, with intervals.

use locality_estimate::interval_estimate::Estimate;
use locality_estimate::reuse::{Bin, CrossCheck, Point, Reuse};
use locality_findings::Windowed;
use locality_model::Profile;

use crate::estimates::{ci95, distance, estimate};
use crate::schema::{
    reuse::{self as schema, ByGranule, Histogram, LargestDifference},
    windows::Windows,
};

/// `{"8": …, "64": …}`.
pub(super) fn of_all(all: &[Reuse]) -> ByGranule {
    all.iter().map(|reuse| (reuse.bytes.to_string(), of(reuse))).collect()
}

fn of(reuse: &Reuse) -> schema::Reuse {
    let unit = reuse.unit.name();
    let mut of = schema::Reuse {
        cold_fraction: Some(reuse.cold.value.into()),
        cold_fraction_ci95: Some(ci95(&reuse.cold)),
        cross_check: reuse.cross_check.as_ref().map(cross_check),
        time: Some(Histogram {
            bins: Some(bins(&reuse.time, true)),
            median: Some(distance(&reuse.median, unit)),
            n: Some(reuse.n),
            p90: Some(distance(&reuse.p90, unit)),
            resolution: None,
            unit: unit.to_owned(),
        }),
        touches: Some(reuse.touches.into()),
        ..schema::Reuse::default()
    };
    if !reuse.curve.is_empty() {
        of.stack = Some(Histogram {
            bins: Some(bins(&reuse.stack, false)),
            n: Some(reuse.n),
            unit: "granules".to_owned(),
            ..Histogram::default()
        });
        of.miss_ratio_curve = Some(reuse.curve.iter().map(point).collect());
        let caches = reuse.curve.iter().filter(|point| point.level.is_some());
        of.at_caches = Some(caches.map(point).collect());
        let footprint = reuse.footprint_bytes;
        if footprint.value > 0.0 {
            of.footprint_bytes = Some(footprint.value.round().into());
            of.footprint_bytes_ci95 = Some(ci95(&footprint));
        }
    }
    of
}

fn cross_check(of: &CrossCheck) -> schema::CrossCheck {
    let CrossCheck { estimator, s, largest: (low, high, difference), outside } = of;
    schema::CrossCheck {
        estimator: estimator.to_string(),
        largest_difference: LargestDifference {
            difference: (*difference).into(),
            high: *high,
            low: *low,
            outside_ci95: *outside,
        },
        s: (*s).into(),
    }
}

/// Windows: number, content, ends, and the sources of the rate.
pub(super) fn windows(profile: &Profile, windowed: &Windowed) -> Windows {
    let seen = |share: &Estimate| (share.n > 0).then(|| estimate(share));
    Windows {
        accesses: windowed.accesses,
        accesses_per_ns: windowed.mean_rate.map(|rate| rate.value.into()),
        accesses_per_ns_ci95: windowed.mean_rate.map(|rate| ci95(&rate)),
        accesses_per_ns_factor_of_doubt: windowed.doubt.map(Into::into),
        ends: windowed.ends.iter().cloned().collect(),
        n: profile.windows.len() as u64,
        rate_sources: windowed
            .rates
            .iter()
            .map(|(source, share)| (source.clone(), (*share).into()))
            .collect(),
        reuses_counted: seen(&windowed.counted),
        uses: windowed.uses,
        uses_confirmed: seen(&windowed.confirmed),
        uses_open: windowed.open,
    }
}

fn bins(bins: &[Bin], counted: bool) -> Vec<schema::Bin> {
    let bin = |bin: &Bin| schema::Bin {
        ci95: Some(ci95(&bin.fraction)),
        count: None,
        fraction: bin.fraction.value.into(),
        high: bin.high.into(),
        low: bin.low.into(),
        n: counted.then_some(bin.fraction.n),
    };
    bins.iter().map(bin).collect()
}

pub(super) fn point(point: &Point) -> schema::Point {
    schema::Point {
        bytes: point.bytes.into(),
        ci95: Some(ci95(&point.ratio)),
        ci95_sampling: Some(ci95(&point.sampling)),
        level: point.level,
        misses: None,
        n: None,
        ratio: point.ratio.value.into(),
    }
}
