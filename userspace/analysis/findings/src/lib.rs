//! Findings of a profile, ready to be printed.
//!
//! Not here: formatting. A profile of one minute takes 1
//! to 2 seconds on two processors, mostly for intervals.
//!
//! Modules stand in the order of data: observations, a
//! module for each analysis, and here the findings together.

pub mod analysis_trait;
pub mod observation;

pub mod censored;
pub mod cpu_time_histogram;
pub mod hotspots;
pub mod pairs;

pub mod objects;

pub mod cache_use;

pub mod groups;

pub mod execution;

mod advised;

use std::collections::{BTreeMap, BTreeSet};
use std::thread::{Scope, ScopedJoinHandle};

use locality_advice::Advised;
use locality_estimate::access_rates::{Rates, Unit};
use locality_estimate::calling_context::Contexts;
use locality_estimate::censored_uses::Subjects;
use locality_estimate::estimator::Estimator;
use locality_estimate::interval_estimate::{Counted, Estimate, share_of};
use locality_estimate::reuse::{self, Case, REPLICATES, Reuse};
use locality_model::{Outcome, Profile, Seen, ThreadId, Use, Watch};

use crate::analysis_trait::Analysis;
use crate::cache_use::CacheUse;
use crate::censored::{Unseen, UnseenUses};
use crate::cpu_time_histogram::{FAR_NS, Histogram, TimeDistances};
use crate::execution::Execution;
use crate::groups::Groups;
use crate::hotspots::{Hot, HotAccesses};
use crate::objects::Objects;
use crate::observation::Observations;
use crate::pairs::{Pair, Pairs};

/// Reuses after fewer accesses are near: a first-level cache of
/// 32 KiB has 512 lines, and 512 accesses cannot touch more.
pub const NEAR_ACCESSES: u64 = 512;

/// The findings of all analyses.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// Contexts and places, referred to by the rest.
    pub contexts: Contexts,
    /// Use → reuse pairs, heaviest first.
    pub pairs: Vec<Pair>,
    /// Distribution of time distances.
    pub histogram: Histogram,
    /// Hot accesses.
    pub hot: Hot,
    /// Uses not followed by a reuse.
    pub unseen: Unseen,
    /// Reuse in accesses, stack distances and miss ratios; `None` for a profile without windows.
    pub windowed: Option<Windowed>,
    /// Data objects of accesses and misses; `None` for a profile without objects.
    pub objects: Option<Objects>,
    /// Code loading lines of little use; `None` if unknown.
    pub cache_use: Option<CacheUse>,
    /// Kinds of processes; `None` for a profile without them.
    pub groups: Option<Groups>,
    /// Loops and advice; `None` for a profile without loops.
    pub advised: Option<Advised>,
    /// Parallelism and mix of instructions; `None` for a profile without them.
    pub execution: Option<Execution>,
    /// A reuse of `far_from` or more is called far: [`FAR_NS`], or as many accesses as the program makes
    /// meanwhile.
    pub far_from: f64,
    /// Unit of pairs' distances.
    pub unit: Unit,
    /// Watches left out because the profile has impossible values for them.
    pub unusable: u64,
}

/// Findings from windows.
#[derive(Debug, Clone, Default)]
pub struct Windowed {
    /// How weights were found.
    pub estimator: Estimator,
    /// The whole, at 8 and 64 bytes.
    pub whole: Vec<Reuse>,
    /// Reuse by thread for several threads, the busiest first, [`THREADS`] at most.
    pub threads: Vec<(ThreadId, Vec<Reuse>)>,
    /// Threads with samples left out of `threads`.
    pub threads_left_out: usize,
    /// Sources of the rate, with shares of CPU time.
    pub rates: Vec<(String, f64)>,
    /// Accesses per nanosecond of CPU time; `None` where no rate is known.
    pub mean_rate: Option<Estimate>,
    /// Possible factor of error of distances in accesses, if no rate was measured.
    pub doubt: Option<f64>,
    /// Windows by cause of the end, most frequent first.
    pub ends: Vec<(String, u64)>,
    /// Accesses in windows.
    pub accesses: u64,
    /// Uses chosen in windows.
    pub uses: u64,
    /// … whose reuse no window showed, at 8 bytes.
    pub open: u64,
    /// Of the watched uses with a reuse, those with the first trap at the predicted instruction:
    /// the quality of the prediction.
    pub confirmed: Estimate,
    /// Of the same uses, those with a distance counted in accesses, not converted from time
    /// ([`Outcome::Reused`]).
    pub counted: Estimate,
}

/// Granules that live reports have.
const GRANULES: [u32; 2] = [8, 64];
/// Threads reported apart, and bootstrap draws for each.
const THREADS: usize = 8;
const THREAD_DRAWS: usize = 24;

impl Findings {
    /// Runs every analysis, with the default estimator.
    pub fn of(profile: &Profile) -> Self {
        Self::with(profile, Estimator::default())
    }

    /// Runs every analysis.
    pub fn with(profile: &Profile, estimator: Estimator) -> Self {
        let contexts = Contexts::new(profile);
        let resolution_ns = profile.run.distance_resolution_ns;
        let rates = Rates::of(profile);
        let mut found = Self { far_from: FAR_NS as f64, ..Self::default() };
        let [words, lines] = GRANULES.map(|granule| Case::new(profile, &contexts, &rates, granule, None));
        let cases = [&words, &lines];
        let (observations, resolution) = if profile.windows.is_empty() {
            (Observations::of(profile, &contexts), resolution_ns)
        } else {
            let weights = words.weights(estimator);
            let mut seen = Observations::of_subjects(profile, &contexts, words.subjects(), &weights);
            seen.unusable = Subjects::of(profile, &contexts, &rates, 8).unusable;
            found.unit = rates.unit();
            let per_ns = if found.unit == Unit::Accesses { rates.mean() } else { 1.0 };
            found.far_from *= per_ns;
            (seen, if found.unit == Unit::Accesses { NEAR_ACCESSES } else { resolution_ns })
        };
        found.unusable = observations.unusable;
        // Each part draws separate intervals, which takes most of the report's time.
        let windowed = || Windowed::of(profile, &contexts, &rates, cases, estimator);
        let cache_use = || CacheUse::of(profile, &contexts, &rates, cases, estimator);
        let objects = || Objects::of(profile, &contexts, &rates, &lines, estimator);
        std::thread::scope(|scope| {
            let windowed = (!profile.windows.is_empty()).then(|| Part::begin(scope, &windowed));
            let cache_use = Part::begin(scope, &cache_use);
            let objects = Part::begin(scope, &objects);
            found.pairs = run(Pairs::new(&contexts, resolution, found.far_from), observations.reuses.clone());
            found.histogram = run(TimeDistances::new(resolution), observations.reuses);
            found.hot = run(HotAccesses::new(profile, &contexts), observations.hits);
            found.unseen = run(UnseenUses::new(&contexts), observations.watched);
            found.windowed = windowed.map(Part::finish);
            found.cache_use = cache_use.finish();
            found.objects = objects.finish();
        });
        found.agree(objects::first_touches::share(profile, &rates));
        let whole = found.windowed.as_ref().map(|windowed| windowed.whole.as_slice()).unwrap_or_default();
        found.groups = Groups::of(profile, &contexts, &rates, whole, estimator);
        found.execution = Execution::of(profile, &rates);
        found.advised = advised::of(profile, &contexts, &rates, found.cache_use.as_ref());
        Self { contexts, ..found }
    }

    /// Miss ratios and cache use agree about a cache, and neither has more misses than lines.
    fn agree(&mut self, first_touches: Option<Estimate>) {
        let (Some(windowed), Some(cache_use)) = (self.windowed.as_mut(), self.cache_use.as_mut()) else {
            return;
        };
        if let Some(lines) = windowed.whole.iter_mut().find(|reuse| u64::from(reuse.bytes) == objects::LINE) {
            if let Some(most) = first_touches {
                lines.hold_misses(objects::first_touches::SMALLEST, most);
            }
            cache_use.agree(lines);
        }
    }

    /// Reuse at a size of granule.
    pub fn reuse(&self, bytes: u32) -> Option<&Reuse> {
        self.windowed.as_ref()?.whole.iter().find(|reuse| reuse.bytes == bytes)
    }
}

impl Windowed {
    fn of(
        profile: &Profile,
        contexts: &Contexts,
        rates: &Rates,
        whole: [&Case<'_>; 2],
        estimator: Estimator,
    ) -> Self {
        let mut samples: BTreeMap<ThreadId, u64> = BTreeMap::new();
        for sample in &profile.samples {
            *samples.entry(sample.thread).or_default() += 1;
        }
        let mut threads: Vec<(ThreadId, u64)> = samples.into_iter().collect();
        threads.sort_by_key(|(thread, n)| (std::cmp::Reverse(*n), *thread));
        let most = if threads.len() > 1 { THREADS } else { 0 };
        let threads_left_out = if most > 0 { threads.len().saturating_sub(most) } else { 0 };
        threads.truncate(most);
        let of_thread = |(thread, _): (ThreadId, u64)| {
            let case = |granule| Case::new(profile, contexts, rates, granule, Some(thread));
            let mut whole = GRANULES.map(|granule| case(granule).estimate(estimator, THREAD_DRAWS));
            reuse::agree(&mut whole);
            (thread, whole.to_vec())
        };
        let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
        for window in &profile.windows {
            *ends.entry(&window.end).or_default() += 1;
        }
        let mut ends: Vec<(String, u64)> = ends.into_iter().map(|(end, n)| (end.to_owned(), n)).collect();
        ends.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let open =
            |of: &&Use| of.seen.iter().any(|(bytes, seen)| *bytes == 8 && matches!(seen, Seen::Open { .. }));
        let checked = |case: &Case<'_>| {
            let mut reuse = case.estimate(estimator, REPLICATES);
            reuse.cross_check = case.cross_check(estimator, &reuse);
            reuse
        };
        Self {
            estimator,
            whole: {
                let checked = whole.map(|case| move || checked(case));
                std::thread::scope(|scope| {
                    let parts = checked.each_ref().map(|work| Part::begin(scope, work));
                    let mut whole = parts.map(Part::finish);
                    reuse::agree(&mut whole);
                    whole.to_vec()
                })
            },
            threads: threads.into_iter().map(of_thread).collect(),
            threads_left_out,
            rates: rates.sources().to_vec(),
            mean_rate: whole[0].rate(),
            doubt: rates.doubt(),
            ends,
            accesses: profile.windows.iter().fold(0, |sum, window| u64::saturating_add(sum, window.accesses)),
            uses: profile.uses.len() as u64,
            open: profile.uses.iter().filter(open).count() as u64,
            confirmed: of_reused(profile, |watch| watch.use_confirmed),
            counted: of_reused(profile, |watch| {
                matches!(watch.outcome, Outcome::Reused { accesses: Some(_), .. })
            }),
        }
    }
}

/// Share of the watches of uses in windows with a reuse, hence with an earlier trap of the use.
fn of_reused(profile: &Profile, has: impl Fn(&Watch) -> bool) -> Estimate {
    let reused = |watch: &&Watch| watch.of_use.is_some() && matches!(watch.outcome, Outcome::Reused { .. });
    let counted = |watch: &Watch| Counted { weight: 1.0, sample: watch.sample.0 };
    share_of(profile.watches.iter().filter(reused).map(|watch| (has(watch), counted(watch))))
}

/// A part of the findings, computed by a separate thread, or at once if no thread could start.
enum Part<'scope, T> {
    Begun(ScopedJoinHandle<'scope, T>),
    Made(T),
}

impl<'scope, T: Send + 'scope> Part<'scope, T> {
    fn begin(scope: &'scope Scope<'scope, '_>, work: &'scope (impl Fn() -> T + Sync)) -> Self {
        match std::thread::Builder::new().spawn_scoped(scope, work) {
            Ok(thread) => Self::Begun(thread),
            Err(_) => Self::Made(work()),
        }
    }

    /// The finding; a panic in the thread is passed on.
    fn finish(self) -> T {
        match self {
            Self::Begun(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Self::Made(made) => made,
        }
    }
}

fn run<A: Analysis>(mut analysis: A, observations: Vec<A::Observation>) -> A::Finding {
    for observation in observations {
        analysis.observe(observation);
    }
    analysis.finish()
}

/// Time of tracing, in percent of the targets' CPU time plus the time of standing still.
///
/// `None` for targets without readable CPU time, which have no shares.
pub fn cost_percent(profile: &Profile, ns: u64) -> Option<f64> {
    let base = profile.run.cpu_ns as f64 + profile.overhead.stop_ns as f64;
    (profile.run.cpu_ns > 0).then(|| ns as f64 / base * 100.0)
}

/// Why a profile shows no reuse, in a sentence or two; `None` for a profile with
/// reuses. A program must not exit 0 after printing a report without reuses.
pub fn why_empty(profile: &Profile) -> Option<String> {
    if profile.samples.is_empty() && profile.partial {
        return Some(
            "No sample could be read: this profile is damaged, or its trace was cut short; the notes below say what is missing."
                .to_owned(),
        );
    }
    if profile.samples.is_empty() {
        return Some(why_no_samples(profile));
    }
    if profile.watches.is_empty() && profile.uses.is_empty() {
        return Some(why_no_watches(profile));
    }
    let count =
        |wanted: fn(&Outcome) -> bool| profile.watches.iter().filter(|watch| wanted(&watch.outcome)).count();
    let in_window = |used: &Use| used.seen.iter().any(|(_, seen)| matches!(seen, Seen::Reused { .. }));
    if count(|outcome| matches!(outcome, Outcome::Reused { .. })) > 0 || profile.uses.iter().any(in_window) {
        return None;
    }
    if count(|outcome| *outcome == Outcome::Refused) == profile.watches.len() {
        return Some(format!(
            "No reuse could be seen: the kernel refused all {} watchpoints, because the debug registers of the traced threads \
             are taken. End the debugger or profiler that uses them, and trace again.",
            profile.watches.len()
        ));
    }
    Some(format!(
        "No reuse was seen: none of {} watched locations was touched again ({} gave their debug register to a newer \
         sample, {} were still watched when the trace ended, {} were refused by the kernel, {} belonged to a process that \
         ended). Trace for longer, or while the program works on data it has used before.",
        profile.watches.len(),
        count(|outcome| *outcome == Outcome::Replaced),
        count(|outcome| *outcome == Outcome::StillArmed),
        count(|outcome| *outcome == Outcome::Refused),
        count(|outcome| *outcome == Outcome::Gone),
    ))
}

/// Causes in the ledger of ticks in other processes' threads.
const OF_OTHERS: [&str; 2] = ["not a target", "thread of another process"];

/// Beginning of the reason for the end of a trace where the launched command ended.
const COMMAND_ENDED: &str = "the command";
/// CPU time of a command that is too short for samples, in nanoseconds: some periods of the sampling clock.
const SHORT_NS: u64 = 100_000_000;

fn why_no_samples(profile: &Profile) -> String {
    let ledger = &profile.ledger;
    // A short command has few samples or none by its length alone, in whatever place they fell.
    let is_short = profile.run.cpu_ns < SHORT_NS && ledger.lost_total() == 0;
    if is_short && profile.run.ended_by.starts_with(COMMAND_ENDED) {
        return format!(
            "Nothing was sampled: the command ended after {:.1} ms of CPU time. Give the command more work, \
             or use `locality-bpf exact`.",
            profile.run.cpu_ns as f64 / 1e6
        );
    }
    let idle = profile.run.cpu_ns < profile.run.wall_ns / 100;
    let of_others = |(cause, _): &(String, u64)| OF_OTHERS.contains(&cause.as_str());
    if idle && ledger.seen > 0 && ledger.filtered == ledger.seen && ledger.filtered_by.iter().all(of_others) {
        return format!(
            "Nothing was sampled: the traced processes used {:.3} s of CPU time in {:.1} s. Trace them while they work.",
            profile.run.cpu_ns as f64 / 1e9,
            profile.run.wall_ns as f64 / 1e9
        );
    }
    let why = if ledger.seen == 0 {
        "the sampling clock never fired in the traced processes".to_owned()
    } else if ledger.lost_total() > 0 && ledger.received == 0 {
        format!("all {} events were lost ({})", ledger.lost_total(), causes(&ledger.lost))
    } else if ledger.filtered == ledger.seen {
        let by = if ledger.filtered_by.is_empty() {
            String::new()
        } else {
            format!(": {}", causes(&ledger.filtered_by))
        };
        format!("all {} clock events were filtered out{by}", ledger.seen)
    } else {
        format!(
            "of {} events seen, {} were filtered out, {} were lost and none of the {} received was a sample",
            ledger.seen,
            ledger.filtered,
            ledger.lost_total(),
            ledger.received
        )
    };
    let mend = if idle {
        "The traced processes hardly ran (they waited, or were stopped): trace them while they work."
    } else {
        "Trace for longer, or look at `locality-bpf doctor`."
    };
    format!("Nothing was sampled: {why}. {mend}")
}

/// A cause in the ledger: the stop had taken too long before anything could be armed.
const TOO_LATE: &str = "stopped too late";

fn why_no_watches(profile: &Profile) -> String {
    let ledger = &profile.ledger;
    let reasons: BTreeSet<&str> =
        profile.threads.iter().filter_map(|thread| thread.not_held.as_deref()).collect();
    let unheld = profile.samples.iter().filter(|sample| !sample.held).count() * 2 > profile.samples.len();
    let why = if unheld && !reasons.is_empty() {
        let reasons: Vec<&str> = reasons.into_iter().collect();
        format!(
            "the threads could not be held ({}); `locality-bpf doctor -p PID` tells more",
            reasons.join("; ")
        )
    } else if unheld {
        "the threads were not held yet: what was just started is left alone for some milliseconds".to_owned()
    } else if ledger.refused > 0 {
        format!("the kernel refused all {} debug registers that were asked for", ledger.refused)
    } else if ledger
        .unreachable
        .iter()
        .any(|(cause, n)| cause == TOO_LATE && 2 * *n as usize > profile.samples.len())
    {
        "every stop took longer than --max-stop allows; allow more, 1ms is usual".to_owned()
    } else if !ledger.unreachable.is_empty() {
        format!("no access could be reached from the sampled instructions ({})", causes(&ledger.unreachable))
    } else {
        "no debug register was given out".to_owned()
    };
    let samples = match profile.samples.len() {
        1 => "One sample was".to_owned(),
        n => format!("{n} samples were"),
    };
    format!("{samples} taken but no location was watched: {why}.")
}

/// "ring full 12, too late 3", largest first.
pub fn causes(causes: &[(String, u64)]) -> String {
    let mut sorted: Vec<_> = causes.iter().filter(|cause| cause.1 > 0).collect();
    sorted.sort_by_key(|cause| std::cmp::Reverse(cause.1));
    sorted.iter().map(|(cause, n)| format!("{cause} {n}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
