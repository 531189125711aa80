//! Sentences for empty profiles.

use locality_model::testing::{MS, Maker, demo};

use super::*;

#[test]
fn a_profile_with_reuses_is_not_empty() {
    assert_eq!(why_empty(&demo()), None);
}

#[test]
fn emptiness_has_a_cause_from_the_ledger() {
    let says = |profile: &Profile, words: &str| {
        let why = why_empty(profile).unwrap();
        assert!(why.contains(words), "{why}");
    };
    let mut profile = Maker::new().profile;
    (profile.run.cpu_ns, profile.ledger.seen, profile.ledger.filtered) = (MS, 2, 2);
    profile.run.wall_ns = 3_000 * MS;
    profile.ledger.filtered_by = vec![("not a target".to_owned(), 2)];
    says(&profile, "the traced processes used 0.001 s of CPU time in 3.0 s. Trace them while they work.");
    let mut profile = Maker::new().profile;
    says(&profile, "the sampling clock never fired");
    profile.run.cpu_ns = MS;
    says(&profile, "hardly ran");
    profile.ledger.seen = 12;
    profile.ledger.filtered = 12;
    profile.ledger.filtered_by = vec![("not a target".to_owned(), 2), ("kernel mode".to_owned(), 10)];
    says(&profile, "all 12 clock events were filtered out: kernel mode 10, not a target 2");
    profile.ledger.filtered = 2;
    profile.ledger.lost = vec![("ring full".to_owned(), 10)];
    says(&profile, "all 10 events were lost (ring full 10)");
    profile.ledger.received = 3;
    says(&profile, "none of the 3 received was a sample");
    // A launched command that was short, unless events were lost.
    profile.run.cpu_ns = 13 * MS / 10;
    profile.run.wall_ns = 2 * MS;
    profile.run.ended_by = "the command ended".to_owned();
    says(&profile, "none of the 3 received was a sample");
    profile.ledger.lost.clear();
    says(&profile, "the command ended after 1.3 ms of CPU time. Give the command more work");
    profile.run.cpu_ns = 200 * MS;
    says(&profile, "none of the 3 received was a sample");

    let mut make = Maker::new();
    make.sample("main a.c:1", locality_model::AccessKind::Load);
    says(&make.profile, "no debug register was given out");
    make.profile.ledger.unreachable = vec![("indirect call".to_owned(), 1)];
    says(&make.profile, "no access could be reached from the sampled instructions (indirect call 1)");
    make.profile.ledger.refused = 4;
    says(&make.profile, "refused all 4 debug registers");
    make.watch("main a.c:1", Outcome::StillArmed);
    make.watch("main a.c:1", Outcome::Replaced);
    says(&make.profile, "none of 2 watched locations was touched again");
}
