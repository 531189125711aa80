//! Profiles that differ by chance alone, and one with twice the data: the whole way from profile to verdict.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use locality_diff::{Input, Options, compare};
use locality_findings::Findings;
use locality_model::{Profile, testing::halves::halves, testing::loops};
use locality_report::json;
use locality_report::schema::diff::{Diff, Verdict};

fn side(profile: &Profile) -> Input {
    Input { files: vec![String::new()], reports: vec![json::report(profile, &Findings::of(profile))] }
}

fn diff(base: &Profile, new: &Profile) -> Diff {
    compare(&side(base), &side(new), &Options { margin: 0.1, ..Options::default() }).unwrap()
}

/// Eight cuts of a profile into halves: an alarm in one of forty is what chance may make of a row.
#[test]
fn halves_of_one_profile_raise_no_alarm() {
    let profile = loops::windowed();
    let mut random = fastrand::Rng::with_seed(3);
    let failed: usize = (0..8)
        .map(|_| {
            let [base, new] = halves(&profile, &mut random);
            assert_eq!(base.samples.len() + new.samples.len(), profile.samples.len());
            assert_eq!(base.uses.len() + new.uses.len(), profile.uses.len());
            assert_eq!(base.watches.len() + new.watches.len(), profile.watches.len());
            usize::from(diff(&base, &new).failed)
        })
        .sum();
    assert!(failed <= 1, "{failed} of 8");
}

/// The same loops, of which one walks along its rows in the new profile.
#[test]
fn a_planted_change_is_found() {
    let trace = loops::trace(1_200_000);
    // Of the three accesses that take turns, the first and the second touch what the third touches.
    let near: loops::Trace = trace
        .iter()
        .map(|(place, address)| match place {
            2 => (2, *address),
            place => (*place, 0x100_0000 + (address / 8 % 64) * 8),
        })
        .collect();
    let [far, near] = [&trace, &near].map(|trace| loops::profile(trace, 60, 3_000));
    let worse = diff(&near, &far);
    assert!(worse.failed, "{}", worse.verdict);
    let better = diff(&far, &near);
    let l1 = better.rows.iter().find(|row| row.part.is_none() && row.quantity == "misses:L1").unwrap();
    assert_eq!((better.failed, l1.verdict), (false, Verdict::Improved), "{}", better.verdict);
}
