//! A profile's samples in two halves: traces of one program, of which nothing but chance is different.

use std::collections::HashMap;

use crate::{Accessed, LoadId, Located, Profile, SampleId, UseId, WatchId};

/// Two profiles with half of the samples each, drawn at random.
pub fn halves(profile: &Profile, random: &mut fastrand::Rng) -> [Profile; 2] {
    let mut numbers: Vec<u32> = (0..profile.samples.len() as u32).collect();
    random.shuffle(&mut numbers);
    let (one, other) = numbers.split_at(numbers.len() / 2);
    [part(profile, one), part(profile, other)]
}

/// The profile of these samples alone.
pub fn part(profile: &Profile, samples: &[u32]) -> Profile {
    let mut kept = samples.to_vec();
    kept.sort_unstable();
    let numbers: HashMap<u32, u32> = kept.iter().copied().zip(0..).collect();
    let renumbered = |sample: SampleId| numbers.get(&sample.0).copied().map(SampleId);
    let mut part = profile.clone();
    let sum = |profile: &Profile| profile.samples.iter().map(|sample| sample.period_ns as f64).sum::<f64>();
    let all = sum(&part);
    part.samples = kept.iter().filter_map(|at| profile.samples.get(*at as usize)).cloned().collect();
    part.run.cpu_ns = (part.run.cpu_ns as f64 * sum(&part) / all.max(1.0)) as u64;
    macro_rules! keep {
        ($rows:ident, $id:ident) => {{
            let mut numbers: HashMap<u32, u32> = HashMap::new();
            let mut rows = Vec::new();
            for (at, row) in (0..).zip(std::mem::take(&mut part.$rows)) {
                if let Some(sample) = renumbered(row.sample) {
                    numbers.insert(at, rows.len() as u32);
                    let mut row = row;
                    row.sample = sample;
                    rows.push(row);
                }
            }
            part.$rows = rows;
            move |id: $id| numbers.get(&id.0).copied().map($id)
        }};
    }
    part.windows.retain_mut(|window| {
        renumbered(window.sample).is_some_and(|sample| {
            window.sample = sample;
            true
        })
    });
    part.loops.retain_mut(|seen| {
        renumbered(seen.sample).is_some_and(|sample| {
            seen.sample = sample;
            true
        })
    });
    let of_use = keep!(uses, UseId);
    let load = keep!(loads, LoadId);
    let watch = keep!(watches, WatchId);
    for watch in &mut part.watches {
        watch.of_use = watch.of_use.and_then(&of_use);
    }
    part.located = std::mem::take(&mut part.located)
        .into_iter()
        .filter_map(|located| {
            let of = match located.of {
                Accessed::Sample(id) => renumbered(id).map(Accessed::Sample),
                Accessed::Before(id) => renumbered(id).map(Accessed::Before),
                Accessed::Use(id) => of_use(id).map(Accessed::Use),
                Accessed::Seen(id, bytes) => of_use(id).map(|id| Accessed::Seen(id, bytes)),
                Accessed::Load(id) => load(id).map(Accessed::Load),
                Accessed::WatchUse(id) => watch(id).map(Accessed::WatchUse),
                Accessed::WatchReuse(id) => watch(id).map(Accessed::WatchReuse),
            };
            of.map(|of| Located { of, ..located })
        })
        .collect();
    part
}
