//! Groups of profiles whose samples are known.

use locality_model::Group;
use locality_model::testing::{Maker, PERIOD_NS};
use locality_model::{Access, AccessKind, Outcome, Rate, Seen, ThreadId, Touch, Use, UseId, Watch, Window};

use super::*;

/// Samples of each group; those of group 1 without windows, those beyond without a group.
fn profile(of_group: &[usize]) -> Profile {
    let mut maker = Maker::new();
    for (group, samples) in of_group.iter().enumerate() {
        for n in 0..*samples {
            let id = maker.sample("walk demo.c:31 < main demo.c:60", AccessKind::Load);
            let sample = maker.profile.samples.last_mut().unwrap();
            (sample.group, sample.held) = (Some(GroupId(group as u32)), group != 1);
            if group != 1 {
                let (end, touches, rate) = ("whole".to_owned(), vec![(8, 10), (64, 10)], None);
                maker.profile.windows.push(Window {
                    sample: id,
                    instructions: 9,
                    accesses: 10,
                    end,
                    touches,
                    rate,
                });
            } else if n % 2 == 0 {
                sample.access = Err("no access".to_owned());
            }
        }
    }
    maker.profile.groups = vec![Group::default(), Group { comm: "x".to_owned(), ..Group::default() }];
    maker.profile
}

fn groups(profile: &Profile) -> Groups {
    let (contexts, rates) = (Contexts::new(profile), Rates::of(profile));
    Groups::of(profile, &contexts, &rates, &[], Estimator::default()).unwrap()
}

#[test]
fn shares_counts_and_coverage_are_those_of_the_samples() {
    let mut profile = profile(&[30, 10, 20]);
    let found = groups(&profile);
    let of: Vec<_> =
        found.rows.iter().map(|row| (row.group, row.cpu.n, row.windows, row.processes)).collect();
    // Group 2 is none of the profile's.
    assert_eq!(of, [(Some(GroupId(0)), 30, 30, 1), (None, 20, 20, 1), (Some(GroupId(1)), 10, 0, 1)]);
    let sum: f64 = found.rows.iter().map(|row| row.cpu.value).sum();
    assert!((sum - 1.0).abs() < 1e-9 && (found.rows[0].cpu.value - 0.5).abs() < 1e-9);
    assert!(found.rows.iter().all(|row| row.cpu.low <= row.cpu.value && row.cpu.value <= row.cpu.high));
    assert_eq!(found.rows[0].coverage, Coverage { windows: 1.0, ..Coverage::default() });
    assert_eq!(found.rows[2].coverage, Coverage { registers: 0.5, none: 0.5, windows: 0.0 });
    profile.groups.clear();
    let (contexts, rates) = (Contexts::new(&profile), Rates::of(&profile));
    assert!(Groups::of(&profile, &contexts, &rates, &[], Estimator::default()).is_none());
}

#[test]
fn of_many_groups_the_largest_are_told() {
    let mut profile = profile(&(1..=70).collect::<Vec<_>>());
    profile.groups = vec![Group::default(); 70];
    let found = groups(&profile);
    assert_eq!((found.rows.len(), found.left_out), (MOST, 6));
    assert_eq!(found.rows[0].group, Some(GroupId(69)));
}

/// Two processes with a loop each, a line an access, an access a nanosecond: over so many lines.
fn two_programs(lines: [u64; 2]) -> Profile {
    const WINDOW: u64 = 1_000;
    let mut make = Maker::new();
    make.profile.run.distance_resolution_ns = 0;
    make.profile.threads[1].pid = 200;
    make.profile.groups = vec![Group::default(), Group { comm: "x".to_owned(), ..Group::default() }];
    for n in 0..80_u32 {
        let (number, place) = (n % 2, format!("main a.c:{}", 1 + n % 2));
        let lines = lines[number as usize];
        let sample = make.sample(&place, AccessKind::Load);
        let stack = make.stack(&place);
        let last = make.profile.samples.last_mut().unwrap();
        (last.thread, last.group) = (ThreadId(number), Some(GroupId(number)));
        let rate = Some(Rate { value: 1.0, low: 0.97, high: 1.03, source: "test".to_owned() });
        let (end, touches) = ("whole".to_owned(), vec![(8, WINDOW), (64, WINDOW)]);
        make.profile.windows.push(Window {
            sample,
            instructions: WINDOW,
            accesses: WINDOW,
            end,
            touches,
            rate,
        });
        let access = Access { ip: 1, address: 0x8000, size: 8, kind: AccessKind::Load };
        let seen = match lines < WINDOW {
            true => Seen::Reused { distance: lines, access, stack },
            false => Seen::Open { accesses: WINDOW - 1 },
        };
        let seen = vec![(8, seen), (64, seen)];
        make.profile.uses.push(Use { sample, skip: 0, access, address: 0x8000, stack, seen });
        if lines >= WINDOW {
            let time_ns = u64::from(n) * PERIOD_NS + lines;
            let touch = Touch { time_ns, thread: ThreadId(number), ..make.touch(&place, AccessKind::Load) };
            make.profile.watches.push(Watch {
                sample,
                of_use: Some(UseId(n)),
                address: 0x8000,
                bytes: 8,
                armed_ns: u64::from(n) * PERIOD_NS,
                ended_ns: time_ns,
                use_touch: None,
                use_confirmed: true,
                outcome: Outcome::Reused { touch, distance_ns: lines, accesses: None },
                p_arm: 1.0,
                p_survive: 1.0,
                threads_armed: 1,
                threads_alive: 1,
            });
        }
    }
    make.profile
}

/// Of 32 KiB, a loop over 4,000 lines misses at each access, and one over 8 lines never.
#[test]
fn each_group_has_its_own_miss_ratio() {
    let mut profile = two_programs([4_000, 8]);
    let ratios = |profile: &Profile| -> Vec<Option<f64>> {
        let mut rows = groups(profile).rows;
        rows.sort_by_key(|row| row.group);
        rows.iter().map(|row| Some(row.misses.as_ref()?.first()?.ratio.value)).collect()
    };
    let [Some(sweep), Some(stays)] = ratios(&profile)[..] else { panic!("{:?}", ratios(&profile)) };
    assert!(sweep > 0.5 && stays < 0.1, "{sweep} {stays}");
    profile.windows.truncate(FEWEST as usize - 1);
    assert!(ratios(&profile).iter().all(Option::is_none), "too few windows for a number");
}
