//! Hot accesses of a small profile, by hand.

use locality_model::Outcome;
use locality_model::testing::Maker;

use super::*;
use crate::observation::Observations;

fn analyse(profile: &Profile, reverse: bool) -> Hot {
    let contexts = Contexts::new(profile);
    let mut hits = Observations::of(profile, &contexts).hits;
    let (mut first, mut second) =
        (HotAccesses::new(profile, &contexts), HotAccesses::new(profile, &contexts));
    if reverse {
        hits.reverse();
    }
    for (index, hit) in hits.into_iter().enumerate() {
        if index % 3 == 0 { first.observe(hit) } else { second.observe(hit) }
    }
    if reverse {
        second.merge(first);
        second.finish()
    } else {
        first.merge(second);
        first.finish()
    }
}

#[test]
fn shares_are_of_time_and_kinds_of_each_row() {
    let mut make = Maker::new();
    for kind in [AccessKind::Load, AccessKind::Load, AccessKind::ReadWrite] {
        make.sample("sum a.c:4 < main a.c:9", kind);
    }
    let slow = make.sample("sum a.c:5 < main a.c:9", AccessKind::Store);
    make.profile.samples[slow.0 as usize].period_ns *= 3;
    make.sample("memcpy@/lib/libc.so.6 < copy a.c:7 < main a.c:9", AccessKind::Store);
    let lost = make.sample("copy a.c:7 < main a.c:9", AccessKind::Store);
    make.profile.samples[lost.0 as usize].access = Err("no memory operand".to_owned());
    let hot = analyse(&make.profile, false);

    let functions: Vec<_> =
        hot.functions.iter().map(|row| (row.what.name.as_str(), row.share.value, row.share.n)).collect();
    assert_eq!(functions, [("sum", 0.75, 4), ("memcpy", 0.125, 1), ("copy", 0.125, 1)]);
    assert_eq!(hot.functions[1].what.module.as_deref(), Some("/lib/libc.so.6"));
    let sum = &hot.functions[0];
    assert_eq!((sum.loads, sum.stores, sum.unknown), (0.5, 4.0 / 6.0, 0.0));
    assert_eq!(hot.functions[2].unknown, 1.0);
    // Lines 4 and 5 weigh the same and keep the order of the trace; line 7 is two places, with
    // memcpy and without.
    let shares: Vec<f64> = hot.lines.iter().map(|row| row.share.value).collect();
    assert_eq!(shares, [0.375, 0.375, 0.125, 0.125]);
    assert_eq!(analyse(&make.profile, true), hot);
}

#[test]
fn no_samples_no_rows() {
    let mut make = Maker::new();
    make.stack("main a.c:1");
    assert_eq!(analyse(&make.profile, false), Hot::default());
    make.watch("main a.c:1", Outcome::Gone);
    assert_eq!(analyse(&make.profile, false).lines.len(), 1);
}
