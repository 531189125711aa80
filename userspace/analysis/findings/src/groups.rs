//! Work of each group of processes: share of CPU time, misses, and how much was observed.
//!
//! A group is a kind of process (`locality_model::Group`). Its misses are those that its processes
//! would have in a cache of their own. Of groups with fewer than [`FEWEST`] windows no miss ratio
//! is given. Only CPU time in user mode is known by group. Sources of error: those of
//! `locality_estimate::reuse`.

use std::collections::{BTreeMap, BTreeSet};

use locality_estimate::access_rates::Rates;
use locality_estimate::calling_context::Contexts;
use locality_estimate::estimator::Estimator;
use locality_estimate::interval_estimate::{Counted, Estimate, shares};
use locality_estimate::reuse::{Case, Point, Reuse};
use locality_model::{GroupId, Profile, Sample};

use crate::objects::LINE;

/// Windows from which on miss ratios are given.
pub const FEWEST: u64 = 30;
/// Reported groups, and groups with miss ratios: those with the most CPU time.
const MOST: usize = 64;
const WITH_MISSES: usize = 16;
/// Bootstrap draws of each.
const DRAWS: usize = 24;

/// Groups of a trace.
#[derive(Debug, Clone, Default)]
pub struct Groups {
    /// By CPU time, most first.
    pub rows: Vec<Row>,
    /// Groups with samples beside these.
    pub left_out: u64,
}

/// One group.
#[derive(Debug, Clone)]
pub struct Row {
    /// The group; `None` for samples of unknown processes.
    pub group: Option<GroupId>,
    /// Share of the sampled CPU time; n counts its samples.
    pub cpu: Estimate,
    /// Processes that were sampled.
    pub processes: u64,
    /// Samples with a window.
    pub windows: u64,
    /// How its CPU time was seen.
    pub coverage: Coverage,
    /// Miss ratios at this machine's caches; `None` if unknown.
    pub misses: Option<Vec<Point>>,
}

/// Shares of a group's CPU time. They sum to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Coverage {
    /// A shadow window was executed.
    pub windows: f64,
    /// Without a window, the access was found from registers.
    pub registers: f64,
    /// No access was found.
    pub none: f64,
}

impl Groups {
    /// `None` for a profile that does not know groups. `whole`: reuse of the whole run.
    pub(crate) fn of(
        profile: &Profile,
        contexts: &Contexts,
        rates: &Rates,
        whole: &[Reuse],
        estimator: Estimator,
    ) -> Option<Self> {
        if profile.groups.is_empty() {
            return None;
        }
        let windows: BTreeSet<u32> = profile.windows.iter().map(|window| window.sample.0).collect();
        let mut members: BTreeMap<Option<GroupId>, Vec<(u32, &Sample)>> = BTreeMap::new();
        for (index, sample) in (0..).zip(&profile.samples) {
            members.entry(known(profile, sample)).or_default().push((index, sample));
        }
        let counted = members.values().enumerate().flat_map(|(group, samples)| {
            samples.iter().map(move |(index, sample)| {
                (group, Counted { weight: sample.period_ns as f64, sample: *index })
            })
        });
        let of_cpu = shares(&counted.collect::<Vec<_>>(), members.len());
        let only_one = members.len() == 1;
        let mut rows: Vec<Row> = members
            .into_iter()
            .zip(of_cpu)
            .map(|((group, samples), cpu)| Row {
                group,
                cpu: Estimate { n: samples.len() as u64, ..cpu },
                processes: processes(profile, &samples),
                windows: samples.iter().filter(|(index, _)| windows.contains(index)).count() as u64,
                coverage: Coverage::of(&samples, &windows),
                misses: None,
            })
            .collect();
        rows.sort_by(|a, b| b.cpu.value.total_cmp(&a.cpu.value).then(a.group.cmp(&b.group)));
        let left_out = rows.len().saturating_sub(MOST) as u64;
        rows.truncate(MOST);
        let enough = rows.iter_mut().filter(|row| row.windows >= FEWEST).take(WITH_MISSES);
        for row in enough {
            let curve = match (row.group, only_one) {
                (_, true) => whole.iter().find(|reuse| u64::from(reuse.bytes) == LINE).cloned(),
                (Some(group), false) => {
                    let case = Case::of_group(profile, contexts, rates, LINE as u32, group);
                    Some(case.estimate(estimator, DRAWS))
                }
                (None, false) => None,
            };
            let at_caches = curve.map(|reuse| reuse.curve).unwrap_or_default();
            let at_caches: Vec<Point> = at_caches.into_iter().filter(|point| point.level.is_some()).collect();
            row.misses = (!at_caches.is_empty()).then_some(at_caches);
        }
        Some(Self { rows, left_out })
    }
}

/// The group of a sample, if the profile has it.
fn known(profile: &Profile, sample: &Sample) -> Option<GroupId> {
    sample.group.filter(|group| (group.0 as usize) < profile.groups.len())
}

fn processes(profile: &Profile, samples: &[(u32, &Sample)]) -> u64 {
    let pids = samples
        .iter()
        .filter_map(|(_, sample)| Some(profile.threads.get(sample.thread.0 as usize)?.process_id()));
    pids.collect::<BTreeSet<u32>>().len() as u64
}

impl Coverage {
    fn of(samples: &[(u32, &Sample)], windows: &BTreeSet<u32>) -> Self {
        let mut of = Self::default();
        for (index, sample) in samples {
            let part = match (windows.contains(index), &sample.access) {
                (true, _) => &mut of.windows,
                (false, Ok(_)) => &mut of.registers,
                (false, Err(_)) => &mut of.none,
            };
            *part += sample.period_ns as f64;
        }
        let sum = of.windows + of.registers + of.none;
        if sum > 0.0 {
            [&mut of.windows, &mut of.registers, &mut of.none].into_iter().for_each(|part| *part /= sum);
        }
        of
    }
}

#[cfg(test)]
mod tests;
