//! Against a simulated cache, on a trace of which windows and watches are taken as the tracer takes them.

use std::collections::{BTreeMap, HashMap};

use locality_model::testing::loops::{PLACES, Trace, profile, trace};

use super::*;

/// Lines loaded and bytes lost by place, in a cache of so many lines with LRU, after the first half
/// of the trace.
fn simulated(trace: &Trace, lines: usize) -> Vec<(f64, f64)> {
    let mut cache: HashMap<u64, (usize, usize, u8)> = HashMap::new();
    let mut order: BTreeMap<usize, u64> = BTreeMap::new();
    let mut found = vec![(0.0, 0.0); PLACES.len()];
    for (at, (place, address)) in trace.iter().enumerate() {
        let (line, bit) = (address / 64, 1 << (address / 8 % 8));
        let counts = at > trace.len() / 2;
        if let Some((last, _, mask)) = cache.get_mut(&line) {
            order.remove(last);
            (*last, *mask) = (at, *mask | bit);
        } else {
            cache.insert(line, (at, *place, bit));
            found[*place].0 += f64::from(u8::from(counts));
            if cache.len() > lines {
                let (_, oldest) = order.pop_first().unwrap();
                let (_, place, mask) = cache.remove(&oldest).unwrap();
                found[place].1 += if counts { 64.0 - 8.0 * f64::from(mask.count_ones()) } else { 0.0 };
            }
        }
        order.insert(at, line);
    }
    found
}

fn found(profile: &Profile) -> Option<CacheUse> {
    let (contexts, rates) = (Contexts::new(profile), Rates::of(profile));
    let [words, lines] = [8, 64].map(|granule| Case::new(profile, &contexts, &rates, granule, None));
    CacheUse::of(profile, &contexts, &rates, [&words, &lines], Estimator::default())
}

/// Windows of 6,000 accesses see what becomes of lines in 32 KiB, those of 2,000 hardly; 1 MiB is
/// for watchpoints.
#[test]
fn rows_are_those_of_a_simulated_cache() {
    let trace = trace(900_000);
    for length in [6_000, 2_000] {
        let profile = profile(&trace, 400, length);
        let found = found(&profile).unwrap();
        assert_eq!(found.levels.iter().map(|level| level.name.as_str()).collect::<Vec<_>>(), ["L1", "LL"]);
        for (level, near) in found.levels.iter().zip([0.03, 0.2]) {
            let truth = simulated(&trace, level.bytes as usize / 64);
            let (lines, lost) =
                truth.iter().fold((0.0, 0.0), |sum, (lines, lost)| (sum.0 + lines, sum.1 + lost));
            let what = format!("{length} {}", level.name);
            let ratio = level.costs.lines.value / found.touches * trace.len() as f64 / (2.0 * lines);
            assert!((ratio - 1.0).abs() < near, "{what}: {ratio} of the lines");
            let (share, truly) =
                (level.costs.lost.value / level.costs.lines.value / 64.0, lost / lines / 64.0);
            assert!((share - truly).abs() < near, "{what}: {share} of {truly} lost");
            for (place, (loaded, bytes)) in
                truth.iter().enumerate().filter(|(_, truth)| truth.0 > 0.02 * lines)
            {
                let of_place = |line: &&LoadingLine| {
                    let frame = line.frame.and_then(|id| profile.frames.get(id.0 as usize));
                    frame.and_then(|frame| frame.line) == Some(10 * (place as u32 + 1))
                };
                let row = level.by_line.iter().find(of_place).unwrap();
                let what = format!("{what} {place}: {row:?}");
                assert!(
                    (row.loaded.costs.lines.value / level.costs.lines.value - loaded / lines).abs() < near,
                    "{what} of {loaded}"
                );
                let used = 64.0 - bytes / loaded;
                assert!((row.loaded.used.value - used).abs() < 2.0 * 64.0 * near, "{what} used {used}");
                assert!(
                    row.loaded.used.low <= used && used <= row.loaded.used.high + 1.0,
                    "{what} used {used}"
                );
                if lost > 0.0 {
                    assert!(
                        (row.loaded.share.value - bytes / lost).abs() < 0.05,
                        "{what} lost {bytes} of {lost}"
                    );
                }
            }
            let main = level.by_function.iter().find(|function| {
                function
                    .frame
                    .is_some_and(|id| profile.frames[id.0 as usize].function.as_deref() == Some("main"))
            });
            assert!(
                (main.unwrap().inclusive.lost.value / level.costs.lost.value - 1.0).abs() < 1e-6,
                "{what}"
            );
            let own: f64 = level.by_function.iter().map(|function| function.own.lost.value).sum();
            assert!((own / level.costs.lost.value - 1.0).abs() < 1e-6, "{what}: self costs are all costs");
        }
    }
}

#[test]
fn damaged_bursts_are_left_out() {
    let mut profile = profile(&trace(60_000), 4, 3_000);
    let before = found(&profile).unwrap();
    assert_eq!(before.left_out, 0);
    profile.loads[0].bursts.clear();
    profile.loads[1].bursts[0].to = u64::MAX;
    profile.loads[2].stands_for = f64::NAN;
    let found = found(&profile).unwrap();
    assert_eq!((found.n, found.left_out), (before.n - 3, 3));
}

/// What is lost below a call path that is cut is missing in the functions further out, not in the whole.
#[test]
fn what_cut_call_paths_lose_is_an_unknown_callers() {
    let named = |profile: &Profile, level: &LevelUse, name: Option<&str>| {
        let named = |function: &&FunctionLoss| {
            let frame = function.frame.map(|id| &profile.frames[id.0 as usize]);
            frame.and_then(|frame| frame.function.as_deref()) == name
        };
        level.by_function.iter().find(named).cloned()
    };
    let mut profile = profile(&trace(60_000), 8, 3_000);
    let whole = found(&profile).unwrap();
    for level in &whole.levels {
        assert!(level.balanced && level.unknown_caller.value == 0.0, "{level:?}");
        assert_eq!(named(&profile, level, None), None);
    }
    let columns = profile
        .stacks
        .iter()
        .position(|stack| profile.frames[stack.frames[0].0 as usize].function.as_deref() == Some("columns"));
    let stack = &mut profile.stacks[columns.unwrap()];
    stack.frames.truncate(2);
    stack.cut = Some("no unwind information".to_owned());
    let cut = found(&profile).unwrap();
    for (before, level) in whole.levels.iter().zip(&cut.levels) {
        assert!(level.balanced, "{level:?}");
        let [columns, step, main] =
            ["columns", "step", "main"].map(|name| named(&profile, level, Some(name)).unwrap());
        let unknown = named(&profile, level, None).unwrap();
        let near = |one: f64, other: f64| (one - other).abs() < 1e-6 * level.costs.lost.value;
        assert!(
            columns.own.lost.value > 0.0 && near(columns.own.lost.value, step.inclusive.lost.value),
            "{columns:?} {step:?}"
        );
        assert!(
            near(unknown.inclusive.lost.value, columns.own.lost.value) && unknown.own.lost.value == 0.0,
            "{unknown:?} {columns:?}"
        );
        assert!(near(level.unknown_caller.value, unknown.inclusive.lost.value), "{level:?}");
        assert!(level.unknown_caller.low < level.unknown_caller.value, "{level:?}");
        assert!(
            near(main.inclusive.lost.value + unknown.inclusive.lost.value, level.costs.lost.value),
            "{main:?} {unknown:?}"
        );
        assert!(near(before.costs.lost.value, level.costs.lost.value), "{before:?} {level:?}");
    }
}

/// A load whose stack the file lacks counts, with nothing known of where it is.
#[test]
fn a_first_touch_without_a_stack_is_an_unknown_callers() {
    let mut profile = profile(&trace(60_000), 8, 3_000);
    let before = found(&profile).unwrap();
    for load in &mut profile.loads {
        load.stack = locality_model::StackId(9_999);
    }
    let found = found(&profile).unwrap();
    assert_eq!((found.n, found.left_out), (before.n, 0));
    for level in &found.levels {
        assert!(level.balanced && level.costs.lost.value > 0.0, "{level:?}");
        assert_eq!(level.by_function.len(), 1, "{level:?}");
        let only = &level.by_function[0];
        assert!(only.frame.is_none() && only.own == only.inclusive, "{only:?}");
        assert_eq!(
            (level.by_line.len(), level.by_line[0].frame, level.by_line[0].context()),
            (1, None, None)
        );
        assert!((level.unknown_caller.value / level.costs.lost.value - 1.0).abs() < 1e-9, "{level:?}");
    }
}

#[test]
fn without_a_rate_nothing_is_said() {
    let mut profile = profile(&trace(60_000), 4, 3_000);
    profile.windows.iter_mut().for_each(|window| window.rate = None);
    assert_eq!(found(&profile), None);
}

#[test]
fn the_mean_reciprocal_of_geometric_numbers() {
    for last in [0.1_f64, 0.5, 0.9, 1.0] {
        let sum: f64 = (1..10_000).map(|n| last * (1.0 - last).powi(n - 1) / f64::from(n)).sum();
        assert!((line_lifetimes::mean_reciprocal(last) - sum).abs() < 1e-6, "{last}");
    }
}

/// Call paths of a line, data objects and functions each come to the whole, with the value within
/// the interval.
#[test]
fn parts_come_to_the_whole() {
    use locality_model::{Accessed, LoadId, Located, Object, ObjectKind, Stack, StackId};
    let mut profile = profile(&trace(90_000), 30, 3_000);
    let object = |name: &str| Object { kind: ObjectKind::Static, name: name.to_owned(), ..Object::default() };
    // Two rows of the file are one object; of the table nothing is known.
    profile.objects = ["matrix", "array", "matrix"].map(object).to_vec();
    let first = |at: usize| profile.stacks[at].frames[0];
    let columns = (0..profile.stacks.len())
        .find(|at| profile.frames[first(*at).0 as usize].function.as_deref() == Some("columns"));
    let columns = columns.unwrap();
    let other =
        Stack { frames: vec![first(columns), *profile.stacks[columns].frames.last().unwrap()], cut: None };
    profile.stacks.push(other);
    let other = StackId(profile.stacks.len() as u32 - 1);
    for (number, load) in (0..).zip(&mut profile.loads) {
        let object = match load.line {
            0x800_0000.. => ObjectId(1),
            0x100_0000.. => ObjectId(number % 2 * 2),
            _ => continue,
        };
        if load.stack.0 as usize == columns && number % 4 == 0 {
            load.stack = other;
        }
        profile.located.push(Located {
            of: Accessed::Load(LoadId(number)),
            object,
            offset: None,
            field: None,
        });
    }
    for level in &found(&profile).unwrap().levels {
        let near = |one: f64, other: f64| (one - other).abs() <= 1e-9 * level.costs.lost.value;
        let inside = |estimate: &Estimate| estimate.low <= estimate.value && estimate.value <= estimate.high;
        let sure = |loaded: &Loaded| {
            let Loaded { costs, traffic, share, used, accesses } = loaded;
            let all = [&costs.lines, &costs.lost, &costs.access_cost, traffic, share, used, accesses];
            all.into_iter().all(inside) && accesses.low >= 1.0 && accesses.high > accesses.low
        };
        assert!(level.balanced && inside(&level.lost_share), "{level:?}");
        let whole = |cost: fn(&Costs) -> f64| {
            let own: f64 = level.by_function.iter().map(|function| cost(&function.own)).sum();
            let main = level.by_function.iter().find(|function| {
                function
                    .frame
                    .is_some_and(|id| profile.frames[id.0 as usize].function.as_deref() == Some("main"))
            });
            assert!(near(own, cost(&level.costs)) && near(cost(&main.unwrap().inclusive), own), "{level:?}");
            own
        };
        let (lines, cost) = (whole(|costs| costs.lines.value), whole(|costs| costs.access_cost.value));
        assert!(0.0 < cost && cost <= lines, "{cost} of {lines}");
        let line = |number: u32| {
            let is = |line: &&LoadingLine| {
                line.frame.and_then(|id| profile.frames[id.0 as usize].line) == Some(number)
            };
            level.by_line.iter().find(is)
        };
        let columns = line(10).unwrap();
        assert_eq!((columns.contexts_total, columns.contexts.len()), (2, 2), "{columns:?}");
        let [(_, one), (_, two)] = &columns.contexts[..] else { panic!("{columns:?}") };
        let lost = |loaded: &Loaded| loaded.costs.lost.value;
        assert!(lost(one) >= lost(two) && lost(two) > 0.0, "{columns:?}");
        assert!(near(lost(one) + lost(two), lost(&columns.loaded)), "{columns:?}");
        assert_eq!(one.share.n + two.share.n, columns.loaded.share.n);
        let object = |name: Option<&str>| {
            let is =
                |row: &&ObjectLoss| row.object.map(|id| profile.objects[id.0 as usize].name.as_str()) == name;
            let rows: Vec<_> = level.by_object.iter().filter(is).collect();
            assert!(rows.len() <= 1, "{rows:?}");
            rows.first().map_or(0.0, |row| lost(&row.loaded))
        };
        for (name, number) in [(Some("matrix"), 10), (Some("array"), 20), (None, 30)] {
            assert!(
                near(object(name), line(number).map_or(0.0, |line| lost(&line.loaded))),
                "{name:?} {level:?}"
            );
        }
        assert!(level.by_line.iter().all(|line| sure(&line.loaded)), "{level:?}");
        assert!(columns.contexts.iter().all(|(_, loaded)| sure(loaded)), "{columns:?}");
        assert!(level.by_object.iter().all(|object| sure(&object.loaded)), "{level:?}");
    }
}

/// Draws in which each sample is there once and the cache has the size that it has are as the
/// trace; smaller caches are full sooner, larger ones later.
#[test]
fn fill_times_of_draws_vary_with_the_size_in_effect() {
    let profile = profile(&trace(3_000_000), 120, 3_000);
    let (contexts, rates) = (Contexts::new(&profile), Rates::of(&profile));
    let case = Case::new(&profile, &contexts, &rates, 64, None);
    let masses = case.masses(Estimator::default());
    let fills = Fills::of(&case, Estimator::default(), &masses, [1 << 15, 1 << 20].into_iter());
    let once = vec![1.0; profile.samples.len()];
    let [smaller, same, larger] = [-2.0, 0.0, 2.0].map(|deviations| fills.drawn(&once, deviations));
    for cache in 0..2 {
        assert_eq!(same[cache], fills.seen(cache));
        assert!(same[cache].len() > 1 && same[cache].iter().all(|fill| *fill < u64::MAX));
        let mut ordered = smaller[cache].iter().zip(&same[cache]).zip(&larger[cache]);
        assert!(
            ordered.all(|((less, fill), more)| less < fill && fill < more),
            "{smaller:?} {same:?} {larger:?}"
        );
    }
}

/// Where nothing was seen to load, nobody is sure that nothing does: as many lines may as may miss.
#[test]
fn cache_use_and_miss_ratio_agree() {
    let estimate = |value, low, high| Estimate { value, low, high, n: 5 };
    let lines = |ratio| {
        let mut lines = Reuse::default();
        lines.curve.push(locality_estimate::reuse::Point {
            bytes: 1 << 20,
            level: Some(2),
            ratio,
            sampling: ratio,
        });
        lines
    };
    let used = |lines, lost| {
        let costs = Costs { lines, lost, access_cost: Estimate::default() };
        let level =
            LevelUse { bytes: 1 << 20, costs, lost_share: estimate(0.5, 0.4, 0.6), ..LevelUse::default() };
        let other = LevelUse { bytes: 1 << 25, ..level.clone() };
        CacheUse { levels: vec![level, other], touches: 1000.0, ..CacheUse::default() }
    };
    let none = || used(estimate(0.0, 0.0, 0.0), estimate(0.0, 0.0, 0.0));
    let mut found = none();
    found.agree(&lines(estimate(0.0, 0.0, 0.39)));
    let level = &found.levels[0];
    assert_eq!(level.costs.lines, estimate(0.0, 0.0, 390.0));
    assert_eq!(level.costs.lost, estimate(0.0, 0.0, 390.0 * 64.0));
    assert_eq!((level.lost_share.low, level.lost_share.high), (0.0, 1.0));
    // A size that the curve lacks.
    assert_eq!(found.levels[1], none().levels[1]);
    // Fewer than windows show, and within.
    let some = || used(estimate(200.0, 100.0, 300.0), estimate(6400.0, 3200.0, 9600.0));
    let mut found = some();
    found.agree(&lines(estimate(0.04, 0.02, 0.05)));
    assert_eq!(found.levels[0].costs.lines, estimate(200.0, 50.0, 300.0));
    assert_eq!(found.levels[0].costs.lost.low, 1600.0);
    found = some();
    found.agree(&lines(estimate(0.2, 0.1, 0.25)));
    assert_eq!(found, some());
}

/// Miss ratios are those of a simulated cache, of which windows show every candidate.
#[test]
fn no_cache_misses_more_than_first_touches() {
    let trace = trace(300_000);
    let profile = profile(&trace, 200, 4_000);
    let found = crate::Findings::of(&profile);
    let first = objects::first_touches::share(&profile, &Rates::of(&profile)).unwrap();
    let cache_use = found.cache_use.unwrap();
    // Counted in the trace itself.
    let mut last: HashMap<u64, usize> = HashMap::new();
    let firsts = trace
        .iter()
        .enumerate()
        .filter(|(at, (_, address))| last.insert(address / 64, *at).is_none_or(|before| at - before >= 256));
    let truth = firsts.count() as f64 / trace.len() as f64;
    assert!(
        first.low < truth && truth < first.high && (first.value - truth).abs() < 0.05,
        "{truth} {first:?}"
    );
    let lines = found.windowed.unwrap().whole.into_iter().find(|reuse| reuse.bytes == 64).unwrap();
    for level in &cache_use.levels {
        let ratio = lines.at(level.bytes).unwrap().ratio;
        assert!(
            ratio.value <= first.value && ratio.high <= first.high.max(ratio.value),
            "{ratio:?} {first:?}"
        );
        let loaded = level.costs.lines;
        assert!(
            loaded.low <= ratio.high * cache_use.touches && ratio.high * cache_use.touches <= loaded.high
        );
    }
}
