//! Three loops over memory, of which windows and watches are taken as the tracer takes them.

use std::collections::HashMap;

use crate::{
    Access, AccessKind, Burst, Load, Outcome, Profile, Rate, SampleId, Seen, Touch, Use, UseId, Watch, Window,
};

use super::{Maker, PERIOD_NS};

/// Which place touches which word.
pub type Trace = Vec<(usize, u64)>;

/// Line by line, all loads, innermost first.
pub const PLACES: [&str; 3] =
    ["columns a.c:10 < step a.c:50 < main a.c:90", "pass a.c:20 < main a.c:91", "hot a.c:30 < main a.c:92"];
const ROWS: u64 = 700;
const COLUMNS: u64 = 128;

/// Three loops that take turns: a matrix column by column, an array from end to end, and a small table.
pub fn trace(accesses: u64) -> Trace {
    let mut random = fastrand::Rng::with_seed(4);
    let turn = |n: u64| {
        let (column, row) = (n / ROWS % COLUMNS, n % ROWS);
        let matrix = 0x100_0000 + row * COLUMNS * 8 + column * 8;
        let array = 0x800_0000 + n % 131_072 * 8;
        [(0, matrix), (1, array), (2, 0x10_0000 + random.u64(..64) * 8)]
    };
    (0..accesses / 3).flat_map(turn).collect()
}

/// Windows at regular moments of the second half, with first touches, uses and watches as the
/// tracer draws them; one access a nanosecond.
pub fn profile(trace: &Trace, windows: u32, length: usize) -> Profile {
    let mut make = Maker::new();
    make.profile.run.distance_resolution_ns = 0;
    let mut random = fastrand::Rng::with_seed(7);
    let next = |from: usize, granule: u64| {
        let address = trace[from].1;
        trace[from + 1..]
            .iter()
            .position(|(_, other)| other / granule == address / granule)
            .map(|after| after + 1)
    };
    let mut all = Vec::new();
    for n in 0..windows {
        // Uneven, so that windows do not keep step with a loop.
        let start = trace.len() / 2 + n as usize * (trace.len() / 4 / windows as usize) + random.usize(..500);
        let window = &trace[start..start + length];
        let sample = make.sample(PLACES[window[0].0], AccessKind::Load);
        let access = |at: usize| Access { ip: 1, address: window[at].1, size: 8, kind: AccessKind::Load };
        let mut stack = |place: usize| make.stack(PLACES[place]);
        let stacks: Vec<_> = (0..PLACES.len()).map(&mut stack).collect();
        let mut touched = HashMap::new();
        let mut firsts: Vec<(usize, Option<usize>)> = Vec::new();
        for (at, (_, address)) in window.iter().enumerate().take(length / 2) {
            let gap = touched.insert(address / 64, at).map(|before| at - before);
            if at >= length / 4 && gap.is_none_or(|gap| gap as u64 >= Burst::GAP) {
                firsts.push((at, gap));
            }
        }
        let count = firsts.len();
        random.shuffle(&mut firsts);
        firsts.truncate(8);
        for (at, gap) in &firsts {
            let mut bursts: Vec<Burst> = Vec::new();
            let line = window[*at].1 / 64;
            for (after, (_, address)) in (0..).zip(&window[*at..]).filter(|(_, one)| one.1 / 64 == line) {
                let bytes = 0xff << (address % 64);
                match bursts.last_mut() {
                    Some(last) if after - last.to < Burst::GAP => {
                        (last.to, last.touches, last.bytes) = (after, last.touches + 1, last.bytes | bytes);
                    }
                    _ => bursts.push(Burst { from: after, to: after, touches: 1, bytes }),
                }
            }
            all.push(Load {
                sample,
                skip: *at as u64,
                gap: gap.map(|gap| gap as u64),
                access: access(*at),
                line: line * 64,
                stack: stacks[window[*at].0],
                stands_for: count as f64 / (firsts.len() * (length / 4)) as f64,
                shown: (length - 1 - at) as u64,
                bursts,
            });
        }
        let mut open = Vec::new();
        for _ in 0..8 {
            let skip = random.usize(..1000);
            let seen = |granule: u64| match next(start + skip, granule).filter(|after| skip + after < length)
            {
                Some(after) => Seen::Reused {
                    distance: after as u64,
                    access: access(skip + after),
                    stack: stacks[window[skip + after].0],
                },
                None => Seen::Open { accesses: (length - 1 - skip) as u64 },
            };
            let (seen, id) = (vec![(8, seen(8)), (64, seen(64))], UseId(make.profile.uses.len() as u32));
            if matches!(seen[0].1, Seen::Open { .. }) {
                open.push((id, skip));
            }
            make.profile.uses.push(Use {
                sample,
                skip: skip as u64,
                access: access(skip),
                address: window[skip].1,
                stack: stacks[window[skip].0],
                seen,
            });
        }
        if let Some((id, skip)) = open.first().copied() {
            let used = start + skip;
            let armed_ns = u64::from(n) * PERIOD_NS;
            let mut watch = |word: u64| {
                let after = trace[used + 1..]
                    .iter()
                    .position(|(_, other)| *other == word)
                    .map(|after| after as u64 + 1);
                let touch = after.map(|after| Touch {
                    time_ns: armed_ns + after,
                    stack: stacks[trace[used + after as usize].0],
                    ..make.touch(PLACES[0], AccessKind::Load)
                });
                let left = (trace.len() - used) as u64;
                Watch {
                    sample,
                    of_use: Some(id),
                    address: word,
                    bytes: 8,
                    armed_ns,
                    ended_ns: armed_ns + after.unwrap_or(left),
                    use_touch: None,
                    use_confirmed: true,
                    outcome: match touch {
                        Some(touch) => {
                            Outcome::Reused { touch, distance_ns: touch.time_ns - armed_ns, accesses: None }
                        }
                        None => Outcome::StillArmed,
                    },
                    p_arm: 1.0 / open.len() as f64,
                    p_survive: 1.0,
                    threads_armed: 1,
                    threads_alive: 1,
                }
            };
            let own = trace[used].1;
            let line = own & !63;
            let mut words = vec![own];
            if next(used, 64).is_none_or(|after| skip + after >= length) {
                let (near, others): (Vec<u64>, Vec<u64>) = (0..8)
                    .map(|word| line + 8 * word)
                    .filter(|word| *word != own)
                    .partition(|word| word.abs_diff(own) == 8);
                words.extend(near);
                words.extend(random.choice(others));
            }
            let watches: Vec<Watch> = words.into_iter().map(&mut watch).collect();
            make.profile.watches.extend(watches);
        }
        let rate = Rate { value: 1.0, low: 0.97, high: 1.03, source: "test".to_owned() };
        make.profile.windows.push(Window {
            sample: SampleId(n),
            instructions: 2 * length as u64,
            accesses: length as u64,
            end: "whole".to_owned(),
            touches: vec![(8, length as u64), (64, length as u64)],
            rate: Some(rate),
        });
    }
    make.profile.loads = all;
    make.profile
}

/// A few windows of the three loops, with watches that see reuses.
pub fn windowed() -> Profile {
    profile(&trace(900_000), 20, 3_000)
}
