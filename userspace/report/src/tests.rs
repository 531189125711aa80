//! A profile full of nonsense, and counts that findings hand to both reports.

use locality_findings::Findings;
use locality_model::testing::{Maker, demo};
use locality_model::{
    Access, AccessKind, FrameId, Outcome, Rate, Sample, SampleId, Seen, Stack, StackId, ThreadId, Use, UseId,
    Window,
};

use super::*;

/// Ids that lead nowhere, extreme numbers, empty stacks: no panic in any analysis or printer.
#[test]
fn nonsense_is_survived() {
    let mut profile = demo();
    let rng = &mut fastrand::Rng::with_seed(3);
    let extreme = |rng: &mut fastrand::Rng| [0, 1, u64::MAX, rng.u64(..)][rng.usize(..4)];
    for _ in 0..50 {
        profile.stacks.push(Stack { frames: vec![FrameId(rng.u32(..300)); rng.usize(..40)], cut: None });
        profile.samples.push(Sample {
            time_ns: extreme(rng),
            thread: ThreadId(rng.u32(..9)),
            stack: StackId(rng.u32(..200)),
            period_ns: extreme(rng),
            held: rng.bool(),
            access: Err(String::new()),
            group: Some(locality_model::GroupId(rng.u32(..9))),
        });
    }
    for index in 0..200 {
        let mut watch = profile.watches[index % 60].clone();
        watch.sample = SampleId(rng.u32(..400));
        watch.p_arm = [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, 1.0][rng.usize(..6)];
        if let Outcome::Reused { touch, distance_ns, .. } = &mut watch.outcome {
            touch.stack = StackId(rng.u32(..200));
            touch.thread = ThreadId(rng.u32(..9));
            *distance_ns = extreme(rng);
        }
        profile.watches.push(watch);
    }
    let plain = Findings::of(&profile);
    assert!(plain.unusable > 0 && plain.windowed.is_none());
    let access = Access { ip: 1, address: u64::MAX, size: u32::MAX, kind: AccessKind::Load };
    for index in 0..60 {
        let value = [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 0.7][rng.usize(..6)];
        profile.windows.push(Window {
            sample: SampleId(rng.u32(..400)),
            instructions: extreme(rng),
            accesses: extreme(rng),
            end: "whole".to_owned(),
            touches: vec![(8, extreme(rng)), (0, 1)],
            rate: Some(Rate { value, low: value, high: -value, source: String::new() }),
        });
        let seen = match index % 3 {
            0 => Seen::Open { accesses: extreme(rng) },
            _ => Seen::Reused { distance: extreme(rng), access, stack: StackId(rng.u32(..200)) },
        };
        profile.uses.push(Use {
            sample: SampleId(rng.u32(..100)),
            skip: extreme(rng),
            access,
            address: extreme(rng),
            stack: StackId(rng.u32(..200)),
            seen: vec![(8, seen), (64, seen)],
        });
        profile.watches[index].of_use = Some(UseId(rng.u32(..80)));
    }
    // Threads are the same again, only slower.
    profile.samples.iter_mut().for_each(|sample| sample.thread = ThreadId(0));
    profile.samples.truncate(100);
    profile.run.wall_ns = u64::MAX;
    profile.run.started_unix_ns = u64::MAX;
    profile.run.cpu_ns = u64::MAX - 1;
    profile.overhead.measured_percent = f64::NAN;
    profile.overhead.stop_ns = u64::MAX;
    let many = vec![("x".to_owned(), u64::MAX), ("x".to_owned(), 2)];
    let ledger = &mut profile.ledger;
    (ledger.lost, ledger.unreachable, ledger.stops) = (many.clone(), many.clone(), many);
    (ledger.filtered, ledger.trapped, ledger.censored) = (u64::MAX, u64::MAX, u64::MAX);
    let findings = Findings::of(&profile);
    assert!(findings.unusable > 0);
    let text = super::text::print(&profile, &findings, Options::default());
    assert!(text.contains("left out"), "{text}");
    assert!(super::json::print(&profile, &findings).contains("locality-report/1"));
}

/// Of ten threads eight are reported apart, and of the reused watches of uses those that confirmed
/// their window are counted.
#[test]
fn threads_left_out_and_uses_confirmed_are_counted() {
    let mut make = Maker::new();
    make.profile.threads = (0..10).map(|tid| locality_model::Thread { tid, ..Default::default() }).collect();
    for n in 0..10_u32 {
        let watch = make.reuse("fill a.c:3 < main a.c:9", "sum a.c:5 < main a.c:9", 40_000);
        // One watch is of no use in a window.
        (watch.of_use, watch.use_confirmed) = ((n > 0).then_some(UseId(n)), n > 3);
        if let Outcome::Reused { accesses, .. } = &mut watch.outcome {
            *accesses = (n > 6).then_some(40_000);
        }
        let sample = &mut make.profile.samples[n as usize];
        sample.thread = ThreadId(n);
        let (access, stack) = (sample.access.clone().unwrap(), sample.stack);
        let seen = [8, 64].map(|granule| (granule, Seen::Open { accesses: 900 })).to_vec();
        let (sample, address) = (SampleId(n), access.address);
        make.profile.uses.push(Use { sample, skip: 0, access, address, stack, seen });
        make.profile.windows.push(Window {
            sample,
            instructions: 2_000,
            accesses: 1_000,
            end: "whole".to_owned(),
            touches: vec![(8, 1_000), (64, 1_000)],
            rate: Some(Rate { value: 1.0, low: 0.9, high: 1.1, source: "test".to_owned() }),
        });
    }
    let profile = make.balanced();
    let findings = Findings::of(&profile);
    let report = serde_json::to_value(super::json::report(&profile, &findings)).unwrap();
    assert_eq!(report["threads"]["reuse"].as_array().map(Vec::len), Some(8));
    assert_eq!(report["threads"]["reuse_left_out"], 2);
    let confirmed = &report["windows"]["uses_confirmed"];
    assert_eq!(
        (confirmed["n"].as_u64(), confirmed["value"].as_f64()),
        (Some(9), Some(6.0 / 9.0)),
        "{confirmed}"
    );
    assert_eq!(report["windows"]["reuses_counted"]["value"].as_f64(), Some(3.0 / 9.0));
    let text = super::text::print(&profile, &findings, Options::default());
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("of 9 reused watchpoints, 66.7 %"), "{text}");
    assert!(words.contains("; the accesses of 33.3 %"), "{text}");
}
