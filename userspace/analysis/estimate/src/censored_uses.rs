//! Subjects of the estimators: each use with a reuse looked
//! for, the accesses represented and the distance observed.
//!
//! A use of a window was seen exactly as far as the window reaches, and further if a word
//! of the use was watched; the use of a sample without a window only by the watch. A sample
//! without a followed use is a subject too (seen to 0): the weight counts for the context.
//!
//! Weight: w = ρ · period · granules / uses of the sample. An access across
//! several granules is drawn once by word: at 8 bytes the draw represents the
//! access's words, at lines the words divided by the number in the drawn line.
//!
//! A line's outcome is the window's, otherwise the outcome of the line's watched
//! words, the use's own and companions: reused at the first trap, and not seen again
//! as long as the last word was watched, though companions were withdrawn before.
//!
//! Sources of error: with at most four words watched, a line is reused as late as
//! the watched words (`Followed::part`), compensated by what other lines at the same line
//! of code show (module `companions`), and by the randomly drawn word (module `parts`);
//! up to the reach of the longest windows estimators take line distances from windows
//! alone; accesses between use and trap come from the rate; samples with unknown access
//! are taken as typical.

use std::collections::{BTreeMap, BTreeSet};

use locality_model::{Access, Outcome, Profile, Seen, StackId, Touch, Use, Watch};

use crate::access_rates::{Rates, Unit};
use crate::calling_context::{ContextId, Contexts};
use crate::interval_censoring::{Measured, RESOLUTIONS};

mod companions;
mod parts;

use parts::{Line, Part};

/// Lines of code are counted for as many uses of a window, as more uses have fewer lines each. The
/// first windows of a trace draw 64.
const USES_TELL: usize = 32;
/// Bytes of a line of code.
const CODE_LINE: u64 = 64;

/// Time for which a use was observed, in accesses. Without a known
/// rate, in CPU nanoseconds: an access of a window then counts as 1 ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exit {
    /// Distance to the reuse, otherwise the last distance observed without a reuse.
    pub at: u64,
    /// Whether the granule was touched again.
    pub reused: bool,
}

/// A watch's observation beyond the window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Followed {
    /// How far, counted from the use.
    pub exit: Exit,
    /// Reused after more than the first and at most the second,
    /// if the clock is imprecise (module `interval_censoring`).
    pub within: Option<(u64, u64)>,
    /// The clock's value for a reuse in an interval.
    pub measured: Option<Measured>,
    /// Accesses were counted by hardware counters, or by registers, with clock and rate only
    /// choosing among several numbers.
    pub counted: bool,
    /// Only a part of the granule was watched; the rest may have been touched before.
    pub part: bool,
    /// Chance to be watched for a use open at the window's end; 1 without a window.
    pub p_choice: f64,
    /// Chance to be chosen and armed.
    pub p_arm: f64,
    /// Chance to live until the watch's end.
    pub p_survive: f64,
    /// End of the watch.
    pub ended_ns: u64,
    /// Not withdrawn: watched until the trace or the process ended.
    pub to_the_end: bool,
}

/// A use and the outcome.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Subject {
    /// Index of the sample; uses of a sample are alike.
    pub sample: u32,
    /// The sample whose watch decides the outcome: its own, or that of the line whose companion stands
    /// in for a missing one (module `companions`). Bootstrap draws repeat both together.
    pub rests_on: u32,
    /// The row of the use; `None` for a sample's own access.
    pub used: Option<u32>,
    /// The row of the deciding watch.
    pub watch: Option<u32>,
    /// When the sample was taken.
    pub time_ns: u64,
    /// Calling context of the use.
    pub context: ContextId,
    /// Calling context of the reuse, if observed.
    pub reuse_context: Option<ContextId>,
    /// Touches of granules represented.
    pub weight: f64,
    /// The window's view; empty without a window.
    pub shown: Exit,
    /// A watch's observation.
    pub followed: Option<Followed>,
}

impl Subject {
    /// True if a window or a watch saw a reuse.
    pub fn reused(&self) -> bool {
        self.shown.reused || self.followed.is_some_and(|followed| followed.exit.reused)
    }

    /// Distance observed.
    pub fn distance(&self) -> u64 {
        match self.followed {
            Some(followed) if !self.shown.reused => followed.exit.at,
            _ => self.shown.at,
        }
    }

    /// Inverse-probability weight of an observed reuse, 0 without a reuse.
    pub fn horvitz_thompson(&self) -> f64 {
        match (self.shown.reused, self.followed) {
            (true, _) => self.weight,
            (_, Some(followed)) if followed.exit.reused => {
                self.weight / (followed.p_arm * followed.p_survive)
            }
            _ => 0.0,
        }
    }
}

/// The subjects at one size of granule, in the order of samples.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Subjects {
    /// All subjects.
    pub all: Vec<Subject>,
    /// Uses or watches that were left out because the profile has impossible values for them.
    pub unusable: u64,
}

impl Subjects {
    /// Reads a profile.
    pub fn of(profile: &Profile, contexts: &Contexts, rates: &Rates, granule: u32) -> Self {
        Self::of_samples(profile, contexts, rates, granule, |_| true)
    }

    /// Reads the samples of a profile that belong to a part of the run, by their index. Observations of
    /// other samples say nothing of this part.
    pub fn of_samples(
        profile: &Profile,
        contexts: &Contexts,
        rates: &Rates,
        granule: u32,
        is_of_part: impl Fn(u32) -> bool,
    ) -> Self {
        let mut found = Self::default();
        let mut uses: BTreeMap<u32, Vec<(u32, &Use)>> = BTreeMap::new();
        for (index, used) in (0..).zip(&profile.uses) {
            uses.entry(used.sample.0).or_default().push((index, used));
        }
        let mut of_use: BTreeMap<u32, Vec<(u32, &Watch)>> = BTreeMap::new();
        let mut of_sample: BTreeMap<u32, (u32, &Watch)> = BTreeMap::new();
        for (row, watch) in (0..).zip(&profile.watches) {
            if watch.outcome == Outcome::Refused {
                continue;
            }
            match watch.of_use {
                Some(id) => of_use.entry(id.0).or_default().push((row, watch)),
                None => {
                    of_sample.entry(watch.sample.0).or_insert((row, watch));
                }
            }
        }
        let code = Code::of_windows(&uses);
        let maker = Maker { profile, contexts, rates, granule, code };
        let mut parts = Vec::new();
        for (index, sample) in (0..).zip(&profile.samples).filter(|(index, _)| is_of_part(*index)) {
            let here = rates.at(index as usize).value * sample.period_ns as f64;
            match uses.get(&index) {
                Some(uses) => {
                    let weight = here / uses.len() as f64;
                    for (id, used) in uses {
                        let watches = of_use.get(id).map_or(&[][..], Vec::as_slice);
                        let (subject, part) = maker.of_use(index, (*id, used), watches, weight).unzip();
                        parts.extend(found.add(subject).zip(part.flatten()));
                    }
                }
                None if sample.access.is_ok() => {
                    found.add(maker.of_sample(index, of_sample.get(&index).copied(), here));
                }
                None => {}
            }
        }
        if !parts.is_empty() {
            companions::complete(profile, contexts, &mut parts, &mut found.all);
            parts::reveal(profile, contexts, &parts, &mut found.all);
        }
        found
    }

    /// Adds a subject; returns its index.
    fn add(&mut self, subject: Option<Subject>) -> Option<usize> {
        let usable = subject.filter(|subject| subject.weight > 0.0 && subject.weight.is_finite());
        match usable {
            Some(subject) => self.all.push(subject),
            None => self.unusable += 1,
        }
        usable.map(|_| self.all.len() - 1)
    }
}

/// Lines of code for each use of a window, by sample.
struct Code {
    by_sample: BTreeMap<u32, f64>,
    /// Where windows have too few uses to tell.
    mean: f64,
}

impl Code {
    fn of_windows(uses: &BTreeMap<u32, Vec<(u32, &Use)>>) -> Self {
        let lines = uses.iter().filter(|(_, uses)| uses.len() >= USES_TELL).map(|(sample, uses)| {
            let drawn = (0..USES_TELL).filter_map(|number| uses.get(number * uses.len() / USES_TELL));
            let lines: BTreeSet<u64> = drawn.map(|(_, used)| used.access.ip / CODE_LINE).collect();
            (*sample, lines.len() as f64 / USES_TELL as f64)
        });
        let by_sample: BTreeMap<u32, f64> = lines.collect();
        let mean = by_sample.values().sum::<f64>() / by_sample.len().max(1) as f64;
        Self { by_sample, mean }
    }

    fn of(&self, sample: u32) -> f64 {
        self.by_sample.get(&sample).copied().unwrap_or(self.mean)
    }
}

struct Maker<'a> {
    profile: &'a Profile,
    contexts: &'a Contexts,
    rates: &'a Rates,
    granule: u32,
    code: Code,
}

impl Maker<'_> {
    fn of_use(
        &self,
        sample: u32,
        (id, used): (u32, &Use),
        watches: &[(u32, &Watch)],
        weight: f64,
    ) -> Option<(Subject, Option<Part>)> {
        let mut reuse_context = None;
        let shown = match seen(used, self.granule) {
            Some(Seen::Reused { distance, stack, .. }) => {
                reuse_context = self.contexts.of(stack);
                Exit { at: distance, reused: true }
            }
            Some(Seen::Open { accesses }) => Exit { at: accesses, reused: false },
            None => Exit::default(),
        };
        let granule = u64::from(self.granule);
        let mine = |watch: &&(u32, &Watch)| watch.1.address / granule == used.address / granule;
        let (mut followed, mut row, mut part) = (None, None, None);
        if !shown.reused && used.address != 0 {
            // At 8 bytes a watch of one to eight bytes in the word is the word's.
            let (mut watched, mut ends) = (Vec::new(), Vec::new());
            for (number, watch) in watches.iter().filter(mine) {
                let (next, context) = self.follow(sample, watch, used.address, shown)?;
                watched.push((watch.address / 8, next.exit));
                ends.push((next, context, *number));
                let (so_far, first) = earlier(followed, next);
                followed = Some(so_far);
                if first {
                    (reuse_context, row) = (context, Some(*number));
                }
            }
            let resolution =
                self.profile.run.distance_resolution_ns as f64 * self.rates.at(sample as usize).value;
            let (first, last) =
                touched(&used.access, used.address, granule).unwrap_or((used.address, used.address));
            let observed = watched.len();
            let line = Line { access: first / 8..=last / 8, watched, observed, open: shown.at, resolution };
            part = (self.granule > 8 && !ends.is_empty()).then_some(Part { line, ends });
        }
        let subject = Subject {
            sample,
            rests_on: sample,
            used: Some(id),
            watch: row,
            time_ns: self.profile.samples.get(sample as usize)?.time_ns,
            context: self.contexts.of(used.stack)?,
            reuse_context,
            weight: weight * granules(&used.access, used.address, self.granule),
            shown,
            followed,
        };
        Some((subject, part))
    }

    fn of_sample(&self, index: u32, watch: Option<(u32, &Watch)>, weight: f64) -> Option<Subject> {
        let sample = self.profile.samples.get(index as usize)?;
        let access = sample.access.as_ref().ok()?;
        let stack =
            watch.and_then(|watch| watch.1.use_touch).map_or(sample.stack, |touch: Touch| touch.stack);
        let address = watch.map_or(access.address, |watch| watch.1.address.max(access.address));
        // A watch without its use observed nothing.
        let began = watch.filter(|watch| watch.1.use_touch.is_some() || is_reused(watch.1));
        let (mut followed, mut reuse_context) = (None, None);
        if let Some((_, watch)) = began {
            let (next, context) = self.follow(index, watch, watch.address, Exit::default())?;
            (followed, reuse_context) = (Some(next), context);
        }
        Some(Subject {
            sample: index,
            rests_on: index,
            used: None,
            watch: began.map(|watch| watch.0),
            time_ns: sample.time_ns,
            context: self.contexts.of(stack)?,
            reuse_context,
            weight: weight * granules(access, address, self.granule),
            shown: Exit::default(),
            followed,
        })
    }

    /// What a watch saw of a use of the word at an address, and the context of the reuse. `None`
    /// for impossible probabilities and stacks.
    fn follow(
        &self,
        sample: u32,
        watch: &Watch,
        word: u64,
        shown: Exit,
    ) -> Option<(Followed, Option<ContextId>)> {
        let possible = |p: f64| p > 0.0 && p <= 1.0;
        if !possible(watch.p_arm) || !possible(watch.p_survive) {
            return None;
        }
        let index = sample as usize;
        let from_ns = watch.use_touch.map_or(watch.armed_ns, |touch| touch.time_ns.max(watch.armed_ns));
        let (mut within, mut measured, mut counted) = (None, None, false);
        let (at, context) = match watch.outcome {
            // Counted, not converted: free of the clock's resolution, and affected by the rate only
            // in the choice of the round.
            Outcome::Reused { touch, accesses: Some(accesses), .. }
                if self.rates.unit() == Unit::Accesses =>
            {
                counted = true;
                (accesses.max(shown.at + 1), Some(self.stack(touch.stack)?))
            }
            Outcome::Reused { touch, distance_ns, .. } => {
                let rate = self.rates.between(index, from_ns, touch.time_ns.max(from_ns));
                let at = (distance_ns as f64 * rate).round().max(shown.at as f64 + 1.0);
                let resolution_ns = self.profile.run.distance_resolution_ns as f64;
                if (distance_ns as f64) < RESOLUTIONS * resolution_ns {
                    let clock = Measured {
                        at: distance_ns as f64 * rate,
                        resolution: resolution_ns * rate,
                        scatter: self.profile.run.distance_scatter_ns.unwrap_or(0) as f64 * rate,
                        code: self.code.of(sample),
                        // Of another word of the line only the first touch was measured, and the
                        // window's exclusion is not believed as far.
                        is_warm: watch.address / 8 == word / 8
                            && at > shown.at as f64 + 1.0
                            && is_measured_again(watch, touch),
                    };
                    within = Some((shown.at, (clock.longest() as u64).max(at as u64)));
                    measured = Some(clock);
                }
                (at as u64, Some(self.stack(touch.stack)?))
            }
            _ => {
                let seen = self.rates.accesses_behind(index, from_ns, watch.ended_ns.max(from_ns));
                ((seen as u64).max(shown.at), None)
            }
        };
        let followed = Followed {
            exit: Exit { at, reused: context.is_some() },
            within,
            measured,
            counted,
            part: self.granule > 8,
            p_choice: if watch.of_use.is_some() { watch.p_arm } else { 1.0 },
            p_arm: watch.p_arm,
            p_survive: watch.p_survive,
            ended_ns: watch.ended_ns,
            to_the_end: matches!(watch.outcome, Outcome::StillArmed | Outcome::Gone),
        };
        Some((followed, context))
    }

    fn stack(&self, stack: StackId) -> Option<ContextId> {
        self.contexts.of(stack)
    }
}

/// The earliest reuse seen by two watches of one line decides, else the longer observation; returns
/// whether that is the second one.
fn earlier(before: Option<Followed>, next: Followed) -> (Followed, bool) {
    let Some(before) = before else { return (next, true) };
    let second = match (before.exit.reused, next.exit.reused) {
        (true, true) => next.exit.at < before.exit.at,
        (false, false) => next.exit.at > before.exit.at,
        (_, reused) => reused,
    };
    if second { (next, true) } else { (before, false) }
}

/// Whether a watch went on after a near reuse and measured an interval between later touches by
/// the instructions and the thread of both (`rules::behind_reuse`).
fn is_measured_again(watch: &Watch, reuse: Touch) -> bool {
    watch.ended_ns > reuse.time_ns && watch.use_touch.is_some_and(|used| used.thread == reuse.thread)
}

fn is_reused(watch: &Watch) -> bool {
    matches!(watch.outcome, Outcome::Reused { .. })
}

fn seen(used: &Use, granule: u32) -> Option<Seen> {
    used.seen.iter().find(|(bytes, _)| *bytes == granule).map(|(_, seen)| *seen)
}

/// Granules' touches represented by a use whose word was drawn at random among those of its access.
fn granules(access: &Access, address: u64, granule: u32) -> f64 {
    let words = (last_byte(access) / 8 - access.address / 8 + 1) as f64;
    // An address outside of its access (a damaged file) stands for one granule.
    let touched = touched(access, address, granule.max(8).into());
    touched.map_or(1.0, |(low, high)| words / (high / 8 - low / 8 + 1) as f64)
}

/// First and last byte that an access touches of the granule of an address.
fn touched(access: &Access, address: u64, granule: u64) -> Option<(u64, u64)> {
    let line = address / granule * granule;
    let (low, high) = (line.max(access.address), line.saturating_add(granule - 1).min(last_byte(access)));
    (low <= high).then_some((low, high))
}

fn last_byte(access: &Access) -> u64 {
    access.address.saturating_add(u64::from(access.size.max(1)) - 1)
}

#[cfg(test)]
mod tests;
