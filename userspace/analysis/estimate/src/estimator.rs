//! From subjects to weight by distance: Kaplan–Meier, Horvitz–Thompson, and RDX's proportional attribution.
//!
//! | | a reuse counts for | what is not seen |
//! |---|---|---|
//! | Kaplan–Meier (default) | its own weight | follows the uses of its context that were seen longer (module `kaplan_meier`) |
//! | Horvitz–Thompson | w / (p_arm · p_survive) | is in the weights of what was seen; assumes nothing about contexts |
//! | proportional | all uses of its context since it was armed (RDX §IV.A) | is like the next trap of its context |
//!
//! All three take reuses seen in windows at their own weight, and give one output: weight by
//! distance and weight not reused, for each stretch of the run. Where a process was seen to end, a
//! reuse beyond its end is none (the weight of the uses is not reused), whatever the curve says.
//!
//! A watch of eight bytes of a line (`Followed::part`) enters Kaplan–Meier's curve where the longer
//! windows end: up to there they show the whole line, and a watched word says less.
//!
//! Sources of error: Kaplan–Meier takes withdrawal to be unrelated to the distance within a
//! context; Horvitz–Thompson has few and heavy observations; the proportional estimate takes every
//! use since the arming for one that is reused as late.

mod beyond;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

use crate::calling_context::ContextId;
use crate::censored_uses::{Followed, Subject};
use crate::interval_censoring::{DistanceDistribution, DistanceDistributions, IntervalCensored};
use crate::interval_estimate::Distinct;
use crate::kaplan_meier::{Curves, FEWEST_REUSES, FEWEST_USES, MOST_CURVES, Spell, bin};

/// Windows reach as far as this fraction of the windows without a reuse.
const REACHED: usize = 50;

/// Extension of the observations to the unobserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Estimator {
    /// Weighted product-limit curves by calling context.
    #[default]
    KaplanMeier,
    /// Inverse probabilities of having been seen.
    HorvitzThompson,
    /// RDX's scaling by samples of the context.
    Proportional,
}

impl Estimator {
    /// All estimators, the default first.
    pub const ALL: [Self; 3] = [Self::KaplanMeier, Self::HorvitzThompson, Self::Proportional];
}

impl fmt::Display for Estimator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KaplanMeier => "kaplan-meier",
            Self::HorvitzThompson => "horvitz-thompson",
            Self::Proportional => "proportional",
        })
    }
}

impl FromStr for Estimator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.iter().find(|estimator| estimator.to_string() == text);
        known.copied().ok_or_else(|| {
            let names: Vec<String> = Self::ALL.iter().map(ToString::to_string).collect();
            format!("unknown estimator \"{text}\"; known: {}", names.join(", "))
        })
    }
}

/// Weight by distance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WeightedHistogram {
    /// Reused at distances of each bin of the fine scale.
    pub reused: Vec<f64>,
    /// Not reused, as far as is known.
    pub beyond: f64,
}

impl WeightedHistogram {
    /// Uses.
    pub fn total(&self) -> f64 {
        self.reused.iter().sum::<f64>() + self.beyond
    }

    /// Adds another.
    pub fn add(&mut self, other: &Self) {
        self.add_part(other, 1.0);
    }

    /// Adds another so many times.
    pub fn add_part(&mut self, other: &Self, part: f64) {
        if self.reused.len() < other.reused.len() {
            self.reused.resize(other.reused.len(), 0.0);
        }
        self.reused.iter_mut().zip(&other.reused).for_each(|(sum, more)| *sum += part * more);
        self.beyond += part * other.beyond;
    }

    fn put(&mut self, bin: usize, weight: f64) {
        if self.reused.len() <= bin {
            self.reused.resize(bin + 1, 0.0);
        }
        if let Some(sum) = self.reused.get_mut(bin) {
            *sum += weight;
        }
    }

    fn scale(&mut self, factor: f64) {
        self.reused.iter_mut().for_each(|weight| *weight *= factor);
        self.beyond *= factor;
    }
}

/// Subjects prepared for estimates: groups and stretches are fixed, weights may be drawn anew.
#[derive(Debug, Clone)]
pub struct Study<'a> {
    subjects: &'a [Subject],
    groups: usize,
    group_of: Vec<usize>,
    stretch_of: Vec<usize>,
    /// For each stretch the accesses that were left on average when its uses were made, if the end was seen.
    horizons: Vec<Option<f64>>,
    spreads: DistanceDistributions,
    /// Bin up to which windows alone tell of granules that are watched in part.
    reach: usize,
}

/// One draw: how often each sample counts, and by how much its rate is taken to be wrong.
#[derive(Debug, Clone, Copy)]
pub struct BootstrapReplicate<'a> {
    /// Factors of weights, by sample; missing ones are 1.
    pub weights: &'a [f64],
    /// Factors of distances that rest on the clock, by sample; missing ones are 1.
    pub clocks: &'a [f64],
    /// By sample: the share of a reuse's distribution before the draw's position; missing entries
    /// stay distributed.
    pub picks: &'a [f64],
    /// The same for all distributions that are guesses.
    pub guess: f64,
}

impl BootstrapReplicate<'_> {
    /// As it was seen.
    pub const SEEN: Self = Self { weights: &[], clocks: &[], picks: &[], guess: 0.5 };

    fn weight(&self, subject: &Subject) -> f64 {
        subject.weight * self.weights.get(subject.rests_on as usize).copied().unwrap_or(1.0)
    }

    fn at(&self, subject: &Subject, distance: u64) -> usize {
        match self.clocks.get(subject.rests_on as usize) {
            Some(factor) if *factor != 1.0 && !subject.followed.is_some_and(|followed| followed.counted) => {
                bin(((distance as f64 * factor) as u64).max(subject.shown.at.saturating_add(1)))
            }
            _ => bin(distance),
        }
    }

    /// Bins of a reuse that was followed, with shares.
    fn places(&self, subject: &Subject, at: u64, spread: Option<&DistanceDistribution>) -> Vec<(usize, f64)> {
        match (spread, self.picks.get(subject.rests_on as usize)) {
            (None, _) => vec![(self.at(subject, at), 1.0)],
            (Some(spread), None) => spread.shares.clone(),
            (Some(spread), Some(_)) if spread.guess => vec![(spread.quantile(self.guess), 1.0)],
            (Some(spread), Some(pick)) => vec![(spread.quantile(*pick), 1.0)],
        }
    }
}

impl<'a> Study<'a> {
    /// `stretch_of` gives the stretch of the run for each subject, `horizons` has an entry for each
    /// stretch.
    pub fn new(subjects: &'a [Subject], stretch_of: Vec<usize>, horizons: Vec<Option<f64>>) -> Self {
        let mut contexts: BTreeMap<ContextId, Evidence> = BTreeMap::new();
        for subject in subjects {
            contexts.entry(subject.context).or_default().add(subject);
        }
        let mut own: Vec<(ContextId, f64)> = contexts
            .into_iter()
            .filter(|(_, evidence)| evidence.suffices())
            .map(|(context, evidence)| (context, evidence.weight))
            .collect();
        own.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        own.truncate(MOST_CURVES);
        let group: HashMap<ContextId, usize> = own.iter().map(|own| own.0).zip(1..).collect();
        let group_of = subjects.iter().map(|s| group.get(&s.context).copied().unwrap_or(0)).collect();
        let groups = own.len() + 1;
        let reach = reach(subjects);
        Self {
            subjects,
            groups,
            group_of,
            stretch_of,
            horizons,
            spreads: DistanceDistributions::default(),
            reach,
        }
    }

    /// With reuses in intervals spread like that.
    pub fn spread(mut self, spreads: &DistanceDistributions) -> Self {
        self.spreads = spreads.clone();
        self
    }

    /// Finds how reuses that are known to lie in intervals are spread over them.
    pub fn spreads(&self) -> DistanceDistributions {
        let (mut shown, mut followed, mut unsure) = (Vec::new(), Vec::new(), Vec::new());
        for (index, spell) in self.spells(BootstrapReplicate::SEEN) {
            let Some(subject) = self.subjects.get(index) else { continue };
            let of_window = spell.entry.is_none() && subject.shown.at > 0;
            match subject.followed.filter(|_| !of_window) {
                None => shown.push(spell),
                Some(Followed { within: Some((_, last)), measured, .. }) => {
                    unsure.push((index, IntervalCensored { spell, last: bin(last), measured }));
                }
                Some(_) => followed.push(spell),
            }
        }
        DistanceDistributions::find(&shown, &followed, &unsure, self.groups)
    }

    /// Weight by distance for each stretch.
    pub fn estimate(&self, estimator: Estimator, draw: BootstrapReplicate<'_>) -> Vec<WeightedHistogram> {
        match estimator {
            Estimator::KaplanMeier => self.kaplan_meier(draw),
            Estimator::HorvitzThompson => self.normalised(draw, self.horvitz_thompson(draw)),
            Estimator::Proportional => self.normalised(draw, self.proportional(draw)),
        }
    }

    /// Subjects with their stretches.
    fn placed(&self) -> impl Iterator<Item = (&'a Subject, usize)> {
        self.subjects.iter().zip(self.stretch_of.iter().copied())
    }

    fn kaplan_meier(&self, draw: BootstrapReplicate<'_>) -> Vec<WeightedHistogram> {
        let (curves, _) = self.curves(draw);
        let mut masses = vec![WeightedHistogram::default(); self.horizons.len()];
        for (subject, stretch) in self.placed().filter(|(subject, _)| subject.shown.reused) {
            if let Some(mass) = masses.get_mut(stretch) {
                mass.put(bin(subject.shown.at), draw.weight(subject));
            }
        }
        for ((stretch, group), (start, from)) in self.moving(draw) {
            let last = self.horizon(stretch);
            if let Some(mass) = masses.get_mut(stretch) {
                mass.beyond += curves.redistribute(group, start, &from, last, &mut mass.reused);
            }
        }
        masses
    }

    /// The curves, with their spells and subjects.
    fn curves(&self, draw: BootstrapReplicate<'_>) -> (Curves, Vec<(usize, Spell)>) {
        let spells = self.spells(draw);
        (Curves::fit(spells.iter().map(|(_, spell)| spell), self.groups), spells)
    }

    /// Observation periods. A watch of a part of a granule says nothing about distances within the
    /// reach of windows, where the rest of the granule may have been touched. It enters beyond
    /// them, with the weight left in its context by then.
    fn spells(&self, draw: BootstrapReplicate<'_>) -> Vec<(usize, Spell)> {
        let mut spells = Vec::with_capacity(self.subjects.len());
        let left = self.left_at_reach(draw);
        for (index, (subject, &group)) in self.subjects.iter().zip(&self.group_of).enumerate() {
            let weight = draw.weight(subject);
            let exit = bin(subject.shown.at);
            let shown = Spell { group, weight, entry: None, exit, reused: subject.shown.reused };
            if shown.reused || shown.exit > 0 {
                spells.push((index, shown));
            }
            if let Some(followed) = subject.followed {
                let mut entry = (shown.exit > 0).then_some(shown.exit);
                let mut weight = weight / followed.p_choice;
                if followed.part && shown.exit < self.reach {
                    entry = Some(self.reach);
                    weight *= left.get(group).map_or(1.0, |left| left.from(shown.exit));
                }
                let reused = followed.exit.reused;
                for (exit, share) in draw.places(subject, followed.exit.at, self.spreads.get(index)) {
                    spells.push((index, Spell { weight: weight * share, entry, exit, reused, ..shown }));
                }
            }
        }
        spells
    }

    /// For each group, the share that windows alone leave unreused at their reach; empty without
    /// partial watches.
    fn left_at_reach(&self, draw: BootstrapReplicate<'_>) -> Vec<Left> {
        if self.reach == 0 {
            return Vec::new();
        }
        let shown = |(subject, &group): (&Subject, &usize)| Spell {
            group,
            weight: draw.weight(subject),
            entry: None,
            exit: bin(subject.shown.at),
            reused: subject.shown.reused,
        };
        let spells: Vec<Spell> = self.subjects.iter().zip(&self.group_of).map(shown).collect();
        let curves = Curves::fit(spells.iter(), self.groups);
        (0..self.groups).map(|group| Left::new(curves.hazards(group), self.reach)).collect()
    }

    /// Weight that moves along the curves, by stretch and group: from the start, and from beyond each bin.
    fn moving(&self, draw: BootstrapReplicate<'_>) -> BTreeMap<(usize, usize), (f64, Vec<f64>)> {
        let mut moving: BTreeMap<(usize, usize), (f64, Vec<f64>)> = BTreeMap::new();
        for ((subject, stretch), &group) in self.placed().zip(&self.group_of) {
            if subject.shown.reused {
                continue;
            }
            let (weight, at) = (draw.weight(subject), bin(subject.shown.at));
            let (start, from) = moving.entry((stretch, group)).or_default();
            if at == 0 {
                *start += weight;
                continue;
            }
            if from.len() <= at {
                from.resize(at + 1, 0.0);
            }
            if let Some(sum) = from.get_mut(at) {
                *sum += weight;
            }
        }
        moving
    }

    fn horizon(&self, stretch: usize) -> usize {
        let accesses = self.horizons.get(stretch).copied().flatten();
        accesses.map_or(usize::MAX, |accesses| bin(accesses as u64))
    }

    /// Weight of each subject's reuse, 0 without one: the same estimate, divided among the
    /// observations. Weight along the pooled curve goes to the reuses of all contexts at its
    /// distance.
    pub fn weights(&self, estimator: Estimator) -> Vec<f64> {
        match estimator {
            Estimator::KaplanMeier => self.kaplan_meier_weights(),
            Estimator::HorvitzThompson => self.subjects.iter().map(Subject::horvitz_thompson).collect(),
            Estimator::Proportional => {
                let since = self.open_uses(BootstrapReplicate::SEEN);
                let weight = |subject: &Subject| match (subject.shown.reused, subject.followed) {
                    (true, _) => subject.weight,
                    (_, Some(followed)) if followed.exit.reused => since.of(subject, followed.ended_ns),
                    _ => 0.0,
                };
                self.subjects.iter().map(weight).collect()
            }
        }
    }

    fn kaplan_meier_weights(&self) -> Vec<f64> {
        let (curves, spells) = self.curves(BootstrapReplicate::SEEN);
        // Reused weight by group and bin: arriving weight, and observed weight.
        let mut arrives: Vec<Vec<f64>> = vec![Vec::new(); self.groups];
        for ((stretch, group), (start, from)) in self.moving(BootstrapReplicate::SEEN) {
            let last = self.horizon(stretch);
            if let Some(arrives) = arrives.get_mut(group) {
                curves.redistribute(group, start, &from, last, arrives);
            }
        }
        let mut seen: HashMap<(usize, usize), f64> = HashMap::new();
        let reuses = || spells.iter().filter(|(_, spell)| spell.reused);
        for (_, spell) in reuses() {
            *seen.entry((spell.group, spell.exit)).or_default() += spell.weight;
        }
        let mut pooled: HashMap<usize, (f64, f64)> = HashMap::new();
        for (_, spell) in reuses() {
            pooled.entry(spell.exit).or_default().1 += spell.weight;
        }
        for (group, arrives) in arrives.iter().enumerate() {
            for (bin, weight) in arrives.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
                if !seen.contains_key(&(group, bin))
                    && let Some(pooled) = pooled.get_mut(&bin)
                {
                    pooled.0 += weight;
                }
            }
        }
        let mut weights: Vec<f64> =
            self.subjects.iter().map(|s| if s.shown.reused { s.weight } else { 0.0 }).collect();
        for (index, spell) in reuses() {
            let own = arrives.get(spell.group).and_then(|arrives| arrives.get(spell.exit)).copied();
            let share = seen.get(&(spell.group, spell.exit)).map_or(0.0, |seen| spell.weight / seen);
            let (extra, all) = pooled.get(&spell.exit).copied().unwrap_or_default();
            if let Some(weight) = weights.get_mut(*index) {
                *weight += own.unwrap_or(0.0) * share;
                *weight += if all > 0.0 { extra * spell.weight / all } else { 0.0 };
            }
        }
        weights
    }

    fn horvitz_thompson(&self, draw: BootstrapReplicate<'_>) -> Vec<WeightedHistogram> {
        let mut masses = vec![WeightedHistogram::default(); self.horizons.len()];
        for (index, (subject, stretch)) in self.placed().enumerate() {
            let Some(mass) = masses.get_mut(stretch) else { continue };
            let times = draw.weight(subject) / subject.weight;
            match (subject.shown.reused, subject.followed) {
                (true, _) => mass.put(bin(subject.shown.at), times * subject.weight),
                (_, Some(followed)) if followed.exit.reused => {
                    for (at, share) in draw.places(subject, followed.exit.at, self.spreads.get(index)) {
                        mass.put(at, share * times * subject.horvitz_thompson());
                    }
                }
                (_, Some(followed)) if followed.to_the_end => {
                    mass.beyond += times * subject.weight / (followed.p_arm * followed.p_survive);
                }
                _ => {}
            }
        }
        masses
    }

    fn proportional(&self, draw: BootstrapReplicate<'_>) -> Vec<WeightedHistogram> {
        let since = self.open_uses(draw);
        let mut masses = vec![WeightedHistogram::default(); self.horizons.len()];
        for (index, (subject, stretch)) in self.placed().enumerate() {
            let Some(mass) = masses.get_mut(stretch) else { continue };
            let weight = draw.weight(subject);
            match (subject.shown.reused, subject.followed) {
                (true, _) => mass.put(bin(subject.shown.at), weight),
                (_, Some(followed)) if weight > 0.0 => {
                    if followed.exit.reused {
                        let all = since.of(subject, followed.ended_ns).max(weight);
                        for (at, share) in draw.places(subject, followed.exit.at, self.spreads.get(index)) {
                            mass.put(at, share * all);
                        }
                    } else if followed.to_the_end {
                        mass.beyond += since.of(subject, followed.ended_ns).max(weight);
                    }
                }
                _ => {}
            }
        }
        masses
    }

    /// Uses by context whose reuse no window showed, with running sums of their weights.
    fn open_uses(&self, draw: BootstrapReplicate<'_>) -> OpenUses {
        let mut uses: HashMap<ContextId, Vec<(u64, f64)>> = HashMap::new();
        for subject in self.subjects.iter().filter(|subject| !subject.shown.reused) {
            uses.entry(subject.context).or_default().push((subject.time_ns, draw.weight(subject)));
        }
        for uses in uses.values_mut() {
            uses.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
            let mut sum = 0.0;
            for entry in uses {
                sum += entry.1;
                entry.1 = sum;
            }
        }
        OpenUses(uses)
    }

    /// Scales all stretches to the weight of their uses, to give phases their share; a stretch
    /// without observations is taken as the whole.
    fn normalised(
        &self,
        draw: BootstrapReplicate<'_>,
        mut masses: Vec<WeightedHistogram>,
    ) -> Vec<WeightedHistogram> {
        let mut uses = vec![0.0; masses.len()];
        for (subject, stretch) in self.placed() {
            if let Some(sum) = uses.get_mut(stretch) {
                *sum += draw.weight(subject);
            }
        }
        let (used, seen): (f64, f64) = (uses.iter().sum(), masses.iter().map(WeightedHistogram::total).sum());
        if seen > 0.0 {
            masses.iter_mut().for_each(|mass| mass.scale(used / seen));
        }
        masses
    }
}

/// Data of a context. Uses of one sample are alike and count as one.
#[derive(Debug, Default)]
struct Evidence {
    /// Samples with a use, and with a reuse of one.
    samples: Distinct,
    reused: Distinct,
    weight: f64,
}

impl Evidence {
    /// Takes the next subject, in the order of samples. A reuse that rests on another line's watch is none
    /// more.
    fn add(&mut self, subject: &Subject) {
        self.samples.add(subject.sample);
        if subject.reused() && (subject.shown.reused || subject.rests_on == subject.sample) {
            self.reused.add(subject.sample);
        }
        self.weight += subject.weight;
    }

    /// Whether the data suffice for a separate curve.
    fn suffices(&self) -> bool {
        self.reused.n >= FEWEST_REUSES || self.samples.n >= FEWEST_USES
    }
}

/// How far the windows of a case reach that are watched beyond in part, as a bin: as far as enough
/// of them do. 0: none is.
fn reach(subjects: &[Subject]) -> usize {
    if !subjects.iter().any(|subject| subject.followed.is_some_and(|followed| followed.part)) {
        return 0;
    }
    let mut ends: Vec<usize> = subjects
        .iter()
        .filter(|subject| !subject.shown.reused)
        .map(|subject| bin(subject.shown.at))
        .filter(|end| *end > 0)
        .collect();
    ends.sort_unstable_by(|a, b| b.cmp(a));
    let enough = (ends.len() / REACHED).max(FEWEST_USES as usize);
    ends.get(enough.saturating_sub(1)).copied().unwrap_or(0)
}

/// The share of uses without a reuse up to a bin that have none until the reach of windows, by bin.
struct Left(Vec<f64>);

impl Left {
    fn new(hazards: &[f64], reach: usize) -> Self {
        let mut left = vec![1.0; reach + 1];
        let mut share = 1.0;
        for at in (0..reach).rev() {
            share *= 1.0 - hazards.get(at + 1).copied().unwrap_or(0.0);
            if let Some(left) = left.get_mut(at) {
                *left = share;
            }
        }
        Self(left)
    }

    fn from(&self, bin: usize) -> f64 {
        self.0.get(bin).copied().unwrap_or(1.0)
    }
}

/// By context: moments, and the weight of the uses up to each.
struct OpenUses(HashMap<ContextId, Vec<(u64, f64)>>);

impl OpenUses {
    /// Weight of the uses of a subject's context from its sample until then; its own at least.
    fn of(&self, subject: &Subject, until_ns: u64) -> f64 {
        let uses = self.0.get(&subject.context).map_or(&[][..], Vec::as_slice);
        let sum = |at: usize| at.checked_sub(1).and_then(|at| uses.get(at)).map_or(0.0, |entry| entry.1);
        let from = uses.partition_point(|entry| entry.0 < subject.time_ns);
        let until = uses.partition_point(|entry| entry.0 < until_ns.max(subject.time_ns.saturating_add(1)));
        sum(until) - sum(from)
    }
}

#[cfg(test)]
mod tests;
