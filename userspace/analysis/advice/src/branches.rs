//! Branches of loops: how often taken, how many bits an outcome has, and how often mispredicted at most.
//!
//! Windows show outcomes; each window counts as often as the window fits into the time that its sample
//! stands for. The model's predictor learns from window to window, and is judged in the second half of each
//! window alone. A processor's predictor sees all of the program and misses fewer branches: the model's
//! share is an upper bound. Random outcomes had 1.1 times the share of a whole run, `xz` 2.7 times.
//!
//! Sources of error: the kind of predictor; branches in functions that a loop calls are not recorded.

use std::collections::BTreeMap;

use locality_estimate::access_rates::{Rates, Unit};
use locality_estimate::calling_context::Contexts;
use locality_estimate::interval_estimate::{Counted, Estimate, ratio};
use locality_model::{FrameId, LoopBranch, Profile, SampleId};

use crate::place;

/// A conditional branch, or an indirect jump or call, of a loop. Intervals are over windows.
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    /// Address of the instruction.
    pub ip: u64,
    /// Innermost frame in the user's own code.
    pub frame: Option<FrameId>,
    /// Executions in windows.
    pub executed: u64,
    /// Of `executed`, executions not followed by the next instruction.
    pub taken: u64,
    /// Executions with a prediction that counts.
    pub judged: u64,
    /// Of `judged`, executions mispredicted by the model.
    pub mispredicted: u64,
    /// Share taken of the executions.
    pub taken_share: Estimate,
    /// Bits of information in an outcome if only the share taken is known.
    pub entropy: Estimate,
    /// Share mispredicted by the model, of which a processor's predictor, which sees more, misses a part;
    /// `None` without a prediction that counts.
    pub mispredicted_at_most: Option<Estimate>,
}

/// Entropy of an outcome with this chance, in bits.
fn entropy(chance: f64) -> f64 {
    let term = |chance: f64| if chance > 0.0 { -chance * chance.log2() } else { 0.0 };
    term(chance) + term(1.0 - chance)
}

/// Branches of the profile's loops, by mispredictions of the program, most first, then by executions.
pub fn of(profile: &Profile, contexts: &Contexts, rates: &Rates) -> Vec<Branch> {
    let often = often(profile, rates);
    let mut seen: BTreeMap<u64, Vec<(&LoopBranch, Counted)>> = BTreeMap::new();
    for row in &profile.loops {
        let Some(weight) = often.get(&row.sample) else { continue };
        for branch in &row.branches {
            let counted = Counted { weight: *weight, sample: row.sample.0 };
            seen.entry(branch.ip).or_default().push((branch, counted));
        }
    }
    let mut found: Vec<(f64, Branch)> =
        seen.into_iter().filter_map(|(ip, rows)| joined(profile, contexts, ip, &rows)).collect();
    let missed = |(executed, branch): &(f64, Branch)| {
        branch.mispredicted_at_most.as_ref().map_or(0.0, |share| share.value * executed)
    };
    found.sort_by(|one, other| {
        let by_executions = || other.0.total_cmp(&one.0).then(one.1.ip.cmp(&other.1.ip));
        missed(other).total_cmp(&missed(one)).then_with(by_executions)
    });
    found.into_iter().map(|(_, branch)| branch).collect()
}

/// A branch, with its executions, each window's as often as the window stands for.
fn joined(
    profile: &Profile,
    contexts: &Contexts,
    ip: u64,
    rows: &[(&LoopBranch, Counted)],
) -> Option<(f64, Branch)> {
    let largest = rows.iter().max_by_key(|(row, _)| row.executed)?.0;
    let sum = |of: fn(&LoopBranch) -> u64| rows.iter().map(|(row, _)| of(row)).fold(0, u64::saturating_add);
    let share = |part: fn(&LoopBranch) -> u64, whole: fn(&LoopBranch) -> u64| {
        let shown = rows.iter().filter(|(row, _)| whole(row) > 0);
        let observed = shown.map(|(row, counted)| ((part(row) as f64, whole(row) as f64), *counted));
        let observed: Vec<_> = observed.collect();
        (!observed.is_empty()).then(|| ratio(&observed))
    };
    let taken_share = share(|row| row.taken, |row| row.executed)?;
    let branch = Branch {
        ip,
        frame: place::own(profile, contexts, largest.stack),
        executed: sum(|row| row.executed),
        taken: sum(|row| row.taken),
        judged: sum(|row| row.judged),
        mispredicted: sum(|row| row.mispredicted),
        entropy: entropy_of(&taken_share),
        taken_share,
        mispredicted_at_most: share(|row| row.mispredicted, |row| row.judged),
    };
    Some((rows.iter().map(|(row, counted)| row.executed as f64 * counted.weight).sum(), branch))
}

/// Entropy of an outcome with an estimated chance. Entropy rises up to a chance of one half, and falls then.
fn entropy_of(chance: &Estimate) -> Estimate {
    let ends = [entropy(chance.low), entropy(chance.high)];
    let most = if (chance.low..=chance.high).contains(&0.5) { 1.0 } else { f64::max(ends[0], ends[1]) };
    Estimate { value: entropy(chance.value), low: f64::min(ends[0], ends[1]), high: most, n: chance.n }
}

/// How often each window counts: the time of its sample over the window's; 1 without rates of accesses.
fn often(profile: &Profile, rates: &Rates) -> BTreeMap<SampleId, f64> {
    let has_rates = rates.unit() == Unit::Accesses;
    let of = |window: &locality_model::Window| {
        let sample = profile.samples.get(window.sample.0 as usize)?;
        let rate = rates.at(window.sample.0 as usize).value;
        let often = match has_rates {
            true => sample.period_ns as f64 * rate / window.accesses.max(1) as f64,
            false => 1.0,
        };
        (often > 0.0 && often.is_finite()).then_some((window.sample, often))
    };
    profile.windows.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use locality_model::{Sample, SeenLoop, StackId, ThreadId, Window};

    use super::*;

    /// Two branches in each window, without rates.
    fn profile(windows: &[[LoopBranch; 2]]) -> Profile {
        let mut profile = Profile::default();
        for (number, branches) in windows.iter().enumerate() {
            let sample = SampleId(number as u32);
            profile.samples.push(Sample {
                time_ns: number as u64,
                thread: ThreadId(0),
                stack: StackId(0),
                period_ns: 1_000_000,
                held: true,
                access: Err(String::new()),
                group: None,
            });
            profile.windows.push(Window {
                sample,
                instructions: 40,
                accesses: 10,
                end: String::new(),
                touches: Vec::new(),
                rate: None,
            });
            profile.loops.push(SeenLoop { sample, branches: branches.to_vec(), ..SeenLoop::default() });
        }
        profile
    }

    fn seen(ip: u64, executed: u64, taken: u64, mispredicted: u64) -> LoopBranch {
        LoopBranch { ip, executed, taken, judged: executed / 2, mispredicted, ..LoopBranch::default() }
    }

    #[test]
    fn branches_are_sums_over_windows_with_intervals() {
        let profile = profile(&[
            [seen(1, 100, 50, 10), seen(2, 100, 100, 0)],
            [seen(1, 100, 25, 20), seen(2, 100, 100, 0)],
        ]);
        let found = of(&profile, &Contexts::new(&profile), &Rates::of(&profile));
        let [coin, always] = &found[..] else { panic!("{found:?}") };
        assert_eq!(
            (coin.ip, coin.executed, coin.taken, coin.judged, coin.mispredicted),
            (1, 200, 75, 100, 30)
        );
        assert_eq!((coin.taken_share.value, coin.taken_share.n), (0.375, 2));
        assert_eq!((coin.taken_share.low, coin.taken_share.high), (0.25, 0.5));
        assert!((coin.entropy.value - entropy(0.375)).abs() < 1e-12 && coin.entropy.high == 1.0);
        assert_eq!(coin.mispredicted_at_most.as_ref().map(|share| share.value), Some(0.3));
        assert_eq!((always.ip, always.taken_share.value, always.entropy.value), (2, 1.0, 0.0));
    }

    #[test]
    fn an_outcome_without_doubt_has_no_entropy() {
        assert_eq!((entropy(0.0), entropy(1.0), entropy(0.5)), (0.0, 0.0, 1.0));
        assert!((entropy(0.25) - 0.811_278).abs() < 1e-6);
    }
}
