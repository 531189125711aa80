//! Expected fate of each single use: the share reused beyond a distance, or never.
//!
//! The redistribution of [`Study::estimate`] with [`super::Estimator::KaplanMeier`],
//! separated by use: observations of a window stay in place, the rest follows the
//! context's curve from the window's end on. The sum over uses is the estimate's weight
//! beyond the distance: shares by every grouping of uses refer to a common whole.
//!
//! Sources of error: as in module `kaplan_meier`; uses of a context differ only in the windows.

use super::{BootstrapReplicate, Study};
use crate::kaplan_meier::bin;

/// Products of (1 − hazard) up to each bin, by group, in logarithms.
struct Left {
    /// Σ ln(1 − h) over the bins before, certain reuses left out.
    logs: Vec<f64>,
    /// Certain reuses before.
    certain: Vec<u32>,
}

impl Left {
    fn of(hazards: &[f64]) -> Self {
        let (mut logs, mut certain) = (vec![0.0], vec![0]);
        let (mut log, mut sure) = (0.0, 0);
        for hazard in hazards {
            if *hazard < 1.0 {
                log += (-hazard).ln_1p()
            } else {
                sure += 1
            }
            logs.push(log);
            certain.push(sure);
        }
        Self { logs, certain }
    }

    /// Weight left of a use after the bins `from..until`.
    fn after(&self, from: usize, until: usize) -> f64 {
        let last = self.logs.len() - 1;
        let (from, until) = (from.min(last), until.min(last));
        if until <= from {
            return 1.0;
        }
        if self.certain[until] > self.certain[from] {
            0.0
        } else {
            (self.logs[until] - self.logs[from]).exp()
        }
    }
}

impl Study<'_> {
    /// By subject, consecutively, and by limit: the weight reused at the limit's bin or beyond, or
    /// never. `limits[limit][stretch]` are equally likely bins; a stretch without bins gives 0.
    pub fn beyond(&self, draw: BootstrapReplicate<'_>, limits: &[Vec<Vec<usize>>]) -> Vec<f64> {
        let (curves, _) = self.curves(draw);
        let left: Vec<Left> = (0..self.groups).map(|group| Left::of(curves.hazards(group))).collect();
        let mut found = Vec::with_capacity(self.subjects.len() * limits.len());
        for ((subject, stretch), group) in self.placed().zip(&self.group_of) {
            let weight = draw.weight(subject);
            let at = bin(subject.shown.at);
            let from = if at == 0 { 0 } else { at + 1 };
            let end = self.horizon(stretch).saturating_add(1);
            let share = |limit: usize| match (subject.shown.reused, left.get(*group)) {
                (true, _) => f64::from(u8::from(at >= limit)),
                (false, Some(left)) => left.after(from, limit.min(end)),
                (false, None) => 1.0,
            };
            for limit in limits {
                let bins = limit.get(stretch).map_or(&[][..], Vec::as_slice);
                let sum: f64 = bins.iter().map(|bin| share(*bin)).sum();
                found.push(if bins.is_empty() { 0.0 } else { weight * sum / bins.len() as f64 });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calling_context::ContextId;
    use crate::censored_uses::{Exit, Followed, Subject};
    use crate::estimator::Estimator;

    /// Uses of two contexts, some seen by windows, some followed, some open.
    fn subjects(seed: u64) -> Vec<Subject> {
        let mut random = fastrand::Rng::with_seed(seed);
        (0..120)
            .map(|sample| {
                let shown = Exit { at: random.u64(0..30), reused: random.bool() };
                let at = shown.at + random.u64(1..300);
                let followed = (!shown.reused && random.bool()).then(|| Followed {
                    exit: Exit { at, reused: random.bool() },
                    within: None,
                    measured: None,
                    counted: false,
                    part: false,
                    p_choice: 0.5,
                    p_arm: 0.5,
                    p_survive: 1.0,
                    ended_ns: 0,
                    to_the_end: false,
                });
                Subject {
                    sample,
                    rests_on: sample,
                    used: None,
                    watch: None,
                    time_ns: 0,
                    context: ContextId(random.u32(..4)),
                    reuse_context: None,
                    weight: 1.0 + random.f64(),
                    shown,
                    followed,
                }
            })
            .collect()
    }

    /// The sum over uses is what the estimate itself has at or beyond the limit, bin by bin.
    #[test]
    fn the_sum_over_uses_is_the_estimate() {
        for seed in 0..20 {
            let subjects = subjects(seed);
            let stretch_of: Vec<usize> = (0..subjects.len()).map(|index| index % 2).collect();
            let study = Study::new(&subjects, stretch_of, vec![None, Some(60.0)]);
            let masses = study.estimate(Estimator::KaplanMeier, BootstrapReplicate::SEEN);
            for limit in [0, 1, 7, 29, 30, 61, 100, 200, usize::MAX] {
                let found = study.beyond(BootstrapReplicate::SEEN, &[vec![vec![limit], vec![limit]]]);
                let sum: f64 = found.iter().sum();
                let truth: f64 =
                    masses.iter().map(|mass| mass.beyond + mass.reused.iter().skip(limit).sum::<f64>()).sum();
                assert!((sum - truth).abs() < 1e-6 * truth.max(1.0), "{seed} {limit}: {sum} {truth}");
            }
        }
    }

    #[test]
    fn equally_likely_limits_are_averaged() {
        let subjects = subjects(3);
        let study = Study::new(&subjects, vec![0; subjects.len()], vec![None]);
        let at = |bins: Vec<usize>| study.beyond(BootstrapReplicate::SEEN, &[vec![bins]]);
        let both = at(vec![5, 90]);
        for ((both, a), b) in both.iter().zip(at(vec![5])).zip(at(vec![90])) {
            assert!((both - (a + b) / 2.0).abs() < 1e-9);
        }
        assert!(at(vec![]).iter().all(|none| *none == 0.0));
    }
}
