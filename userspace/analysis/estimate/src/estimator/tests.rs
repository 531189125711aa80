//! Estimators on subjects whose truth is known; unbiasedness by enumeration.

use super::*;
use crate::censored_uses::{Exit, Followed};

fn subject(sample: u32, at: u64, reused: bool) -> Subject {
    Subject {
        sample,
        rests_on: sample,
        used: None,
        watch: None,
        time_ns: u64::from(sample) * 100,
        context: ContextId(0),
        reuse_context: None,
        weight: 1.0,
        shown: Exit { at, reused },
        followed: None,
    }
}

fn follow(subject: &mut Subject, at: u64, reused: bool, p: f64) {
    let exit = Exit { at, reused };
    let ended_ns = subject.time_ns + 1_000;
    subject.followed = Some(Followed {
        part: false,
        exit,
        within: None,
        measured: None,
        counted: false,
        p_choice: p,
        p_arm: p,
        p_survive: 1.0,
        ended_ns,
        to_the_end: !reused,
    });
}

fn estimate(subjects: &[Subject], estimator: Estimator) -> WeightedHistogram {
    let study = Study::new(subjects, vec![0; subjects.len()], vec![None]);
    study.estimate(estimator, BootstrapReplicate::SEEN).remove(0)
}

#[test]
fn names_round_trip() {
    for estimator in Estimator::ALL {
        assert_eq!(estimator.to_string().parse(), Ok(estimator));
    }
    assert!("none".parse::<Estimator>().unwrap_err().contains("kaplan-meier"));
}

/// A window shows one reuse at 10 and three open uses, whose reuses come at 50, 60 and never; one
/// of them is watched. Over the three choices the mean must be the truth, for both estimators that
/// use the chance of being chosen.
#[test]
fn the_mean_over_choices_is_the_truth() {
    for estimator in [Estimator::KaplanMeier, Estimator::HorvitzThompson] {
        let mut mean = WeightedHistogram::default();
        for chosen in 0..3 {
            let mut subjects = vec![subject(0, 10, true)];
            for (index, after) in [Some(50), Some(60), None].into_iter().enumerate() {
                let mut open = subject(0, 20, false);
                if index == chosen {
                    follow(&mut open, after.unwrap_or(100), after.is_some(), 1.0 / 3.0);
                }
                subjects.push(open);
            }
            mean.add(&estimate(&subjects, estimator));
        }
        let of = |bin: usize| mean.reused.get(bin).copied().unwrap_or(0.0) / 3.0;
        assert!((mean.total() / 3.0 - 4.0).abs() < 1e-9, "{estimator}");
        for (bin, truth) in [(10, 1.0), (50, 1.0), (60, 1.0)] {
            assert!((of(bin) - truth).abs() < 1e-9, "{estimator} {bin}: {}", of(bin));
        }
    }
}

/// A clock that goes half as fast in a draw moves the distance that it measured, and not the one
/// that was counted.
#[test]
fn what_was_counted_is_not_doubted_with_the_clock() {
    for (counted, expected) in [(false, 100), (true, 50)] {
        let mut open = subject(0, 20, false);
        follow(&mut open, 50, true, 1.0);
        open.followed.iter_mut().for_each(|followed| followed.counted = counted);
        let open = [open];
        let study = Study::new(&open, vec![0], vec![None]);
        let mass = study
            .estimate(
                Estimator::HorvitzThompson,
                BootstrapReplicate { clocks: &[2.0], ..BootstrapReplicate::SEEN },
            )
            .remove(0);
        assert!(mass.reused.get(bin(expected)).is_some_and(|weight| *weight > 0.0), "{counted}: {mass:?}");
    }
}

/// RDX, listing 2: a trap of a context stands for the samples of the context since it was armed.
#[test]
fn a_trap_stands_for_the_samples_of_its_context() {
    let mut subjects: Vec<Subject> = (0..10).map(|sample| subject(sample, 0, false)).collect();
    follow(&mut subjects[0], 500, true, 1.0);
    let mut other = subject(20, 0, false);
    other.context = ContextId(1);
    follow(&mut other, 3, true, 1.0);
    subjects.push(other);
    let mass = estimate(&subjects, Estimator::Proportional);
    // Ended at 1,000 ns: samples 0 to 9 lie between. Weights are scaled to the eleven uses.
    assert!((mass.reused[bin(500)] - 10.0).abs() < 1e-9 && (mass.reused[3] - 1.0).abs() < 1e-9);
}

#[test]
fn weights_of_reuses_add_up_to_what_is_reused() {
    let mut random = fastrand::Rng::with_seed(9);
    let mut subjects = Vec::new();
    for sample in 0..200 {
        let mut one = subject(sample, random.u64(1..40), random.bool());
        one.context = ContextId(random.u32(..9));
        if !one.shown.reused && random.bool() {
            let at = one.shown.at + random.u64(1..100);
            follow(&mut one, at, random.bool(), 0.5);
        }
        subjects.push(one);
    }
    let study = Study::new(&subjects, vec![0; subjects.len()], vec![None]);
    let sum: f64 = study.weights(Estimator::KaplanMeier).iter().sum();
    let reused: f64 = estimate(&subjects, Estimator::KaplanMeier).reused.iter().sum();
    assert!((sum - reused).abs() < 1e-6 * reused, "{sum} {reused}");
    let seen = study.weights(Estimator::KaplanMeier);
    assert!(subjects.iter().zip(&seen).all(|(subject, weight)| subject.reused() || *weight == 0.0));
}

/// Data that a context never touches again is not given the reuses of others.
#[test]
fn a_context_without_reuses_stays_without() {
    let mut subjects: Vec<Subject> = (0..40).map(|sample| subject(sample, 100, sample % 2 == 0)).collect();
    subjects.iter_mut().skip(1).step_by(2).for_each(|dead| dead.context = ContextId(7));
    let mass = estimate(&subjects, Estimator::KaplanMeier);
    assert!((mass.beyond - 20.0).abs() < 1e-9, "{}", mass.beyond);
}

#[test]
fn nothing_is_reused_beyond_the_end() {
    let mut one = subject(0, 5, false);
    follow(&mut one, 90, true, 1.0);
    let subjects = [one, subject(1, 5, false)];
    let study = Study::new(&subjects, vec![0, 1], vec![None, Some(50.0)]);
    let masses = study.estimate(Estimator::KaplanMeier, BootstrapReplicate::SEEN);
    assert!((masses[0].reused.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    assert!((masses[1].beyond - 1.0).abs() < 1e-9);
}

/// Lines of which one word is watched. Half are reused after 300 touches, by another word; the
/// watched word comes at 70,000. One window in five reaches 5,000 touches and shows the 300, the
/// others end at 100.
#[test]
fn where_windows_reach_a_watched_word_does_not_speak_for_its_line() {
    let mut subjects = Vec::new();
    for sample in 0..200 {
        let (long, never) = (sample % 5 == 0, sample % 10 < 2);
        // Half of the lines of long windows are not touched again in them.
        let at = if long { 5_000 } else { 100 };
        let mut one = if long && !never { subject(sample, 300, true) } else { subject(sample, at, false) };
        if !one.shown.reused {
            follow(&mut one, 70_000, true, 1.0);
            one.followed.as_mut().unwrap().part = true;
        }
        subjects.push(one);
    }
    let mass = estimate(&subjects, Estimator::KaplanMeier);
    let share = |range: std::ops::Range<u64>| -> f64 {
        let bins = bin(range.start)..bin(range.end);
        let inside = mass.reused.iter().enumerate().filter(|(at, _)| bins.contains(at));
        inside.map(|(_, weight)| weight).sum::<f64>() / mass.total()
    };
    let (near, far) = (share(290..310), share(60_000..80_000));
    assert!((near - 0.5).abs() < 0.02 && (far - 0.5).abs() < 0.02, "{near} {far}");
}
