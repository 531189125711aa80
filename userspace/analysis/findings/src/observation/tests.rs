//! What becomes of each kind of watch and sample.

use locality_model::testing::{Maker, PERIOD_NS, demo};

use super::*;

fn observe(make: &Maker) -> Observations {
    Observations::of(&make.profile, &Contexts::new(&make.profile))
}

#[test]
fn each_outcome_has_its_fate() {
    let mut make = Maker::new();
    make.reuse("use a.c:1", "reuse a.c:2", 50).p_survive = 0.25;
    make.watch("use a.c:1", Outcome::Replaced);
    make.watch("use a.c:1", Outcome::StillArmed);
    make.watch("use a.c:1", Outcome::Gone);
    make.watch("use a.c:1", Outcome::Refused);
    let found = observe(&make);
    let fates: Vec<Fate> = found.watched.iter().map(|watched| watched.fate).collect();
    assert_eq!(fates, [Fate::Reused, Fate::Withdrawn, Fate::NotReused, Fate::NotReused]);
    assert_eq!(found.reuses.len(), 1);
    assert_eq!(found.reuses[0].weight, 4.0 * PERIOD_NS as f64);
    assert_eq!((found.reuses[0].kernel, found.reuses[0].cross_thread), (false, false));
    assert_eq!((found.hits.len(), found.unusable), (5, 0));
}

#[test]
fn what_cannot_be_weighed_is_counted() {
    let mut make = Maker::new();
    make.reuse("use a.c:1", "reuse a.c:2", 50).p_arm = 0.0;
    make.reuse("use a.c:1", "reuse a.c:2", 50).p_survive = f64::NAN;
    make.reuse("use a.c:1", "reuse a.c:2", 50);
    if let Outcome::Reused { touch, .. } = &mut make.profile.watches[2].outcome {
        touch.stack = StackId(99);
    }
    make.watch("use a.c:1", Outcome::Gone).sample.0 = 99;
    let found = observe(&make);
    assert_eq!((found.reuses.len(), found.watched.len(), found.unusable), (0, 0, 3));
}

#[test]
fn a_use_that_never_came_is_no_use_but_a_reuse_proves_one() {
    let mut make = Maker::new();
    make.watch("use a.c:1", Outcome::StillArmed).use_touch = None;
    make.reuse("use a.c:1", "reuse a.c:2", 50).use_touch = None;
    let found = observe(&make);
    assert_eq!(found.watched.len(), 1);
    assert_eq!(found.watched[0].watch, 1);
    assert_eq!(found.reuses.len(), 1);
}

#[test]
fn a_hit_lies_where_the_access_is() {
    let mut make = Maker::new();
    // The thread was interrupted on line 1; the access follows on line 2. The second sample has no
    // watch but the same instruction, the third has one in another process, the fourth has no known
    // access.
    let access = make.stack("work a.c:2 < main a.c:9");
    make.watch("work a.c:2 < main a.c:9", Outcome::Gone);
    let interrupted = make.stack("work a.c:1 < main a.c:9");
    make.profile.samples[0].stack = interrupted;
    let template = make.profile.samples[0].clone();
    make.profile.threads.push(locality_model::Thread { pid: 200, ..Default::default() });
    make.profile.samples.push(template.clone());
    make.profile.samples.push(Sample { thread: locality_model::ThreadId(2), ..template.clone() });
    make.profile.samples.push(Sample { access: Err("call through register".to_owned()), ..template });
    let contexts = Contexts::new(&make.profile);
    let found = Observations::of(&make.profile, &contexts);
    let of = |stack| contexts.of(stack).unwrap();
    let places: Vec<_> = found.hits.iter().map(|hit| (hit.context, hit.kind)).collect();
    let store = AccessKind::Store;
    let expected = [
        (of(access), store),
        (of(access), store),
        (of(interrupted), store),
        (of(interrupted), AccessKind::Unknown),
    ];
    assert_eq!(places, expected);
}

#[test]
fn the_demo_has_what_it_says() {
    let profile = demo();
    assert_eq!(profile.ledger.imbalance(), None);
    let found = Observations::of(&profile, &Contexts::new(&profile));
    assert_eq!((found.reuses.len(), found.watched.len(), found.hits.len()), (80, 84, 85));
    assert_eq!(found.reuses.iter().filter(|reuse| reuse.cross_thread).count(), 4);
    assert_eq!(found.reuses.iter().filter(|reuse| reuse.kernel).count(), 3);
}
