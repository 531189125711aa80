//! Weights of uses against counting granules; what becomes of watches.

use locality_model::testing::Maker;
use locality_model::{AccessKind, ThreadId, Use, UseId};

use super::*;

#[test]
fn a_drawn_word_stands_for_the_granules_of_its_access() {
    for (first, size) in [(0, 1), (0, 8), (4, 8), (60, 8), (56, 32), (8, 48), (63, 2)] {
        let access = Access { ip: 0, address: first, size, kind: Default::default() };
        let words: Vec<u64> = (first / 8..=(first + u64::from(size) - 1) / 8).collect();
        for granule in [8_u32, 64] {
            let bytes = u64::from(granule);
            let touched = (first + u64::from(size) - 1) / bytes - first / bytes + 1;
            // Each granule's weight over the draws of its words: 1 for each granule.
            let mean: f64 =
                words.iter().map(|word| granules(&access, (8 * word).max(first), granule)).sum::<f64>()
                    / words.len() as f64;
            assert!((mean - touched as f64).abs() < 1e-12, "{first} {size} {granule}: {mean}");
        }
    }
}

#[test]
fn the_first_watched_word_of_a_line_to_be_reused_decides() {
    let end = |at, reused| Followed {
        part: false,
        exit: Exit { at, reused },
        within: None,
        measured: None,
        counted: false,
        p_choice: 1.0,
        p_arm: 1.0,
        p_survive: 1.0,
        ended_ns: 0,
        to_the_end: false,
    };
    let (both, second) = earlier(Some(end(50, true)), end(20, true));
    assert_eq!((both.exit.at, second), (20, true));
    let (both, second) = earlier(Some(end(10, false)), end(20, true));
    assert_eq!((both.exit, second), (Exit { at: 20, reused: true }, true));
    let (both, second) = earlier(Some(end(30, true)), end(10, false));
    assert_eq!((both.exit, second), (Exit { at: 30, reused: true }, false));
    let (both, second) = earlier(Some(end(10, false)), end(40, false));
    assert_eq!((both.exit, second), (Exit { at: 40, reused: false }, true));
}

/// A later interval was measured where the watch went on behind the reuse; not of another word of
/// the line, nor by another thread.
#[test]
fn the_clock_is_trusted_behind_the_reuse() {
    let mut make = Maker::new();
    make.profile.run.distance_resolution_ns = 27_000;
    for (reused, third, thread) in [
        ("f a.c:1 < g a.c:9", 1, 0),
        ("f a.c:2 < g a.c:9", 1, 0),
        ("f a.c:2 < g a.c:9", 0, 0),
        ("f a.c:1 < g a.c:9", 0, 0),
        ("f a.c:1 < g a.c:9", 1, 1),
    ] {
        let watch = make.reuse("f a.c:1 < g a.c:9", reused, 5_000);
        watch.ended_ns = third;
        watch.use_touch = watch.use_touch.map(|used| Touch { thread: ThreadId(thread), ..used });
    }
    // A use of a window, with a watch of its word or of the next one; and one whose window excludes
    // what was measured.
    for (word, open) in [(0x7000, 10), (0x7008, 10), (0x7000, 20_000)] {
        let stack = make.stack("main a.c:1");
        let of_use = Some(UseId(make.profile.uses.len() as u32));
        let watch = make.reuse("main a.c:1", "main a.c:1", 5_000);
        (watch.address, watch.of_use, watch.ended_ns) = (word, of_use, 1);
        let sample = watch.sample;
        let access = Access { ip: 1, address: 0x7000, size: 8, kind: AccessKind::Load };
        let (address, seen) = (access.address, vec![(64, Seen::Open { accesses: open })]);
        make.profile.uses.push(Use { sample, skip: 0, access, address, stack, seen });
    }
    let profile = make.profile;
    let subjects = Subjects::of(&profile, &Contexts::new(&profile), &Rates::of(&profile), 64);
    let warm = |subject: &Subject| subject.followed.unwrap().measured.unwrap().is_warm;
    let all: Vec<bool> = subjects.all.iter().map(warm).collect();
    assert_eq!(all, [true, true, false, false, false, true, false, false]);
}

/// Lines of code are counted for as many uses, whatever the window has; windows with too few are
/// like the others.
#[test]
fn code_is_counted_for_as_many_uses() {
    let used = |ip| Use {
        sample: locality_model::SampleId(0),
        skip: 0,
        access: Access { ip, address: 0, size: 8, kind: AccessKind::Load },
        address: 0,
        stack: StackId(0),
        seen: Vec::new(),
    };
    // Uses of a loop of four lines, and of code that never comes back.
    let uses: Vec<Use> = (0..64).map(|n| used(n % 4 * 64)).chain((0..64).map(|n| used(n * 64))).collect();
    let some = |from: usize, n: usize| uses.iter().skip(from).take(n).map(|used| (0, used)).collect();
    let windows = BTreeMap::from([(1, some(0, 64)), (2, some(0, 32)), (3, some(64, 64)), (4, some(64, 31))]);
    let code = Code::of_windows(&windows);
    let all = [1, 2, 3, 4, 5].map(|sample| code.of(sample));
    let mean = (2.0 * all[1] + 1.0) / 3.0;
    assert!(all[0] <= all[1] && all[1] == 4.0 / 32.0 && all[2] == 1.0, "{all:?}");
    assert!((all[3] - mean).abs() < 0.03 && all[3] == all[4], "{all:?}");
    assert_eq!(Code::of_windows(&BTreeMap::new()).of(0), 0.0);
}
