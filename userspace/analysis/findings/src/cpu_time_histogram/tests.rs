//! Bins against their definition.

use locality_estimate::calling_context::ContextId;
use locality_model::AccessKind;
use proptest::prelude::*;

use super::*;

fn reuse(watch: u32, distance_ns: u64, weight: f64) -> Reuse {
    Reuse {
        sample: watch,
        watch,
        weight,
        use_context: ContextId(0),
        reuse_context: ContextId(0),
        use_kind: AccessKind::Load,
        reuse_kind: AccessKind::Load,
        distance_ns,
        kernel: false,
        within: None,
        cross_thread: false,
        object: None,
    }
}

fn histogram(resolution_ns: u64, reuses: &[Reuse]) -> Histogram {
    let mut analysis = TimeDistances::new(resolution_ns);
    reuses.iter().for_each(|reuse| analysis.observe(reuse.clone()));
    analysis.finish()
}

fn edges(histogram: &Histogram) -> Vec<(u64, u64)> {
    histogram.bins.iter().map(|bin| (bin.low_ns, bin.high_ns)).collect()
}

#[test]
fn bins_double_from_zero() {
    let found = histogram(0, &[reuse(0, 9, 1.0)]);
    assert_eq!(edges(&found), [(0, 1), (1, 2), (2, 4), (4, 8), (8, 16)]);
    assert_eq!(found.bins[4].fraction.value, 1.0);
    assert_eq!((found.bins[2].fraction.value, found.bins[2].fraction.n), (0.0, 0));
}

#[test]
fn bins_below_the_resolution_are_one() {
    for (resolution, first) in [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (10_000, 16_384)] {
        let found = histogram(resolution, &[reuse(0, 0, 1.0), reuse(1, first, 1.0)]);
        assert_eq!(edges(&found), [(0, first), (first, 2 * first)], "{resolution}");
        assert_eq!(found.bins[0].fraction.value, 0.5);
    }
}

#[test]
fn extremes_have_a_bin() {
    let found = histogram(1, &[reuse(0, u64::MAX, 1.0), reuse(1, 0, 3.0)]);
    assert_eq!(found.bins.len(), 65);
    assert_eq!(edges(&found)[64], (1 << 63, u64::MAX));
    assert_eq!((found.bins[0].fraction.value, found.bins[64].fraction.value), (0.75, 0.25));
    assert_eq!(found.far.value, 0.25);
    assert_eq!(histogram(7, &[]).bins, []);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn every_reuse_is_in_its_bin_and_fractions_sum_to_one(
        resolution in 0..100_000_u64,
        distances in proptest::collection::vec((0..1_u64 << 40, 1..9_u32), 1..40),
        split in 0..40_usize,
    ) {
        let reuses: Vec<Reuse> =
            (0..).zip(&distances).map(|(watch, &(d, w))| reuse(watch, d, f64::from(w))).collect();
        let found = histogram(resolution, &reuses);
        let total: f64 = reuses.iter().map(|reuse| reuse.weight).sum();
        for bin in &found.bins {
            let inside = reuses.iter().filter(|r| (bin.low_ns..bin.high_ns).contains(&r.distance_ns));
            prop_assert_eq!(bin.fraction.n, inside.clone().count() as u64);
            let weight: f64 = inside.map(|reuse| reuse.weight).sum();
            prop_assert!((bin.fraction.value - weight / total).abs() < 1e-9);
        }
        let sum: f64 = found.bins.iter().map(|bin| bin.fraction.value).sum();
        prop_assert!((sum - 1.0).abs() < 1e-9);
        prop_assert!(found.bins.windows(2).all(|pair| pair[0].high_ns == pair[1].low_ns));
        prop_assert!(found.bins[0].high_ns >= resolution && found.bins[0].high_ns < 2 * resolution.max(1));

        // Merging two shards in the wrong order changes nothing.
        let (first, second) = reuses.split_at(split.min(reuses.len()));
        let mut late = TimeDistances::new(resolution);
        second.iter().for_each(|reuse| late.observe(reuse.clone()));
        let mut early = TimeDistances::new(resolution);
        first.iter().for_each(|reuse| early.observe(reuse.clone()));
        late.merge(early);
        prop_assert_eq!(late.finish(), found);
    }
}
