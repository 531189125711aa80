//! Objects whose accesses and misses are known in closed form, and what must hold of all.

use locality_model::testing::objects::two_objects;
use locality_model::testing::{Maker, PERIOD_NS};
use locality_model::{Accessed, Located, Object, ObjectKind, SampleId, StackId};

use super::*;

fn found(profile: &Profile) -> Objects {
    let (contexts, rates) = (Contexts::new(profile), Rates::of(profile));
    let case = Case::new(profile, &contexts, &rates, 64, None);
    Objects::of(profile, &contexts, &rates, &case, Estimator::default()).unwrap()
}

#[test]
fn misses_belong_to_the_large_object_and_accesses_to_both() {
    let profile = two_objects(60, 2, 8).profile;
    let found = found(&profile);
    assert_eq!(found.rows.len(), 2);
    let [large, small] = &found.rows[..] else { panic!() };
    assert_eq!((large.object, small.object), (Some(ObjectId(1)), Some(ObjectId(0))));
    assert_eq!(found.ranked_by, Some(1));
    assert!((large.access_share.value - 0.25).abs() < 1e-9 && (small.access_share.value - 0.75).abs() < 1e-9);
    // In CPU time, what samples themselves touched counts: the first use, which is the large object's.
    assert_eq!(large.cpu_share.value, 1.0);
    for level in 0..2 {
        let share = large.miss_share[level];
        assert!(share.value > 0.999 && share.low <= share.value && share.high >= share.value, "{share:?}");
        assert!(large.miss_ratio[level] > 0.99 && small.miss_ratio[level] < 1e-3, "{found:?}");
        // All of its touches, a quarter of all, miss.
        assert!((found.levels[level].miss_ratio - 0.25).abs() < 0.01, "{:?}", found.levels);
    }
    assert_eq!(large.lines.len(), 1);
    assert_eq!(found.unknown.value, 0.0);
    assert_eq!(found.n, 480);
    let accesses: f64 = found.rows.iter().filter_map(|row| row.accesses).sum();
    assert!((accesses / (60.0 * PERIOD_NS as f64) - 1.0).abs() < 1e-9);
    // The stream displaces itself.
    assert_eq!((found.conflicts[0].victim, found.conflicts[0].by), (ObjectId(1), ObjectId(1)));
}

/// The time of samples belongs to what their threads had completed, and no line of code is charged
/// with an object that is not accessed there.
#[test]
fn cpu_time_belongs_to_the_access_before_the_stop() {
    let mut profile = two_objects(60, 2, 8).profile;
    for sample in (0..60).map(SampleId) {
        let small =
            Located { of: Accessed::Before(sample), object: ObjectId(0), offset: Some(0), field: None };
        profile.located.push(small);
    }
    let found = found(&profile);
    let [large, small] = &found.rows[..] else { panic!() };
    assert_eq!((large.cpu_share.value, small.cpu_share.value), (0.0, 1.0));
    let by_line = |row: &Row| row.lines.iter().map(|line| line.cpu_share.value).sum::<f64>();
    assert_eq!((by_line(large), by_line(small)), (0.0, 0.0));
}

/// What objects miss together is what the whole misses.
#[test]
fn shares_of_misses_are_of_the_miss_ratio() {
    for (far, of) in [(1, 8), (3, 4), (8, 8)] {
        let profile = two_objects(50, far, of).profile;
        let (contexts, rates) = (Contexts::new(&profile), Rates::of(&profile));
        let whole = Case::new(&profile, &contexts, &rates, 64, None).estimate(Estimator::default(), 4);
        for level in found(&profile).levels {
            let at = whole.at(level.bytes).unwrap().ratio.value;
            assert!((at - level.miss_ratio).abs() < 0.01, "{far}/{of}: {at} {level:?}");
        }
    }
}

#[test]
fn what_was_not_located_is_said() {
    let mut profile = two_objects(20, 4, 8).profile;
    let half = profile.located.len() / 2;
    profile.located.truncate(half);
    let unknown = found(&profile).unknown;
    assert!((unknown.value - 0.5).abs() < 0.02 && unknown.low < 0.5 && unknown.high > 0.5, "{unknown:?}");
    profile.located.clear();
    let (contexts, rates) = (Contexts::new(&profile), Rates::of(&profile));
    let case = Case::new(&profile, &contexts, &rates, 64, None);
    assert!(Objects::of(&profile, &contexts, &rates, &case, Estimator::default()).is_none());
}

/// Without windows there is no rate: shares of CPU time, no misses.
#[test]
fn a_profile_without_windows_has_shares_but_no_misses() {
    let mut make = Maker::new();
    make.profile.objects = vec![Object { name: "a".to_owned(), ..Object::default() }];
    for n in 0..10 {
        make.reuse("f src/a.c:1", "g src/a.c:2", 1_000 + n);
        let of = Accessed::Sample(SampleId(n as u32));
        make.profile.located.push(Located { of, object: ObjectId(0), offset: None, field: None });
    }
    let found = found(&make.profile);
    assert_eq!((found.levels.len(), found.ranked_by), (0, None));
    assert_eq!(found.rows[0].access_share.value, 1.0);
    assert_eq!(found.rows[0].accesses, None);
    // Its kind says that nothing is known of it.
    assert_eq!(found.unknown.value, 1.0);
}

/// Heap objects of one allocation context are one row, those of another are another.
#[test]
fn the_allocation_context_tells_heap_objects_apart() {
    let mut make = two_objects(10, 4, 8);
    let sites: Vec<StackId> = ["a src/m.c:3 < main src/m.c:9", "a src/m.c:3 < main src/m.c:10"]
        .map(|text| make.stack(text))
        .to_vec();
    // The same place by another instruction is the same context.
    let twin = StackId(make.profile.stacks.len() as u32);
    let same = make.profile.stacks[sites[0].0 as usize].clone();
    make.profile.stacks.push(same);
    for (object, site) in make.profile.objects.iter_mut().zip([sites[0], sites[1], twin]) {
        (object.kind, object.name, object.site) = (ObjectKind::Heap, "p".to_owned(), Some(site));
    }
    let rows = Rows::of(&make.profile, &Contexts::new(&make.profile));
    assert_eq!(rows.len(), 2);
    assert_eq!([0, 1, 2].map(|id| rows.row(ObjectId(id))), [Some(0), Some(1), Some(0)]);
}

/// Whatever variables led to them: blocks of one allocation context are one row with one name, that
/// of the most accesses.
#[test]
fn an_allocation_context_is_one_row_whatever_its_names() {
    let mut make = two_objects(10, 6, 8);
    let site = make.stack("a src/m.c:3 < main src/m.c:9");
    for (object, name) in make.profile.objects.iter_mut().zip(["malloc at m.c:3", "q", "r"]) {
        (object.kind, object.name, object.site) = (ObjectKind::Heap, name.to_owned(), Some(site));
    }
    make.profile.objects[1].type_name = Some("cell".to_owned());
    let of = |id| make.profile.located.iter().filter(|located| located.object == ObjectId(id)).count();
    assert!(of(1) > of(0) && of(0) > 0, "{} {}", of(0), of(1));
    let found = found(&make.profile);
    assert_eq!(found.rows.len(), 1);
    assert_eq!((found.rows[0].object, found.rows[0].access_share.value), (Some(ObjectId(1)), 1.0));
    // Without a site they are what they are called.
    make.profile.objects.iter_mut().for_each(|object| object.site = None);
    assert_eq!(Rows::of(&make.profile, &Contexts::new(&make.profile)).len(), make.profile.objects.len());
}
