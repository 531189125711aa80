//! From profile rows to what analyses observe: weights, contexts and flags instead of ids and probabilities.
//!
//! Watches that cannot be weighed (impossible probabilities, stacks that are missing) are counted,
//! not dropped in silence: see [`Observations::unusable`].

use std::collections::HashMap;

use locality_estimate::calling_context::{ContextId, Contexts};
use locality_estimate::censored_uses::Subject;
use locality_estimate::interval_estimate::{Counted, horvitz_thompson};
use locality_model::{AccessKind, FrameId, ObjectId, Outcome, Profile, Sample, Seen, StackId, Touch, Watch};

use crate::analysis_trait::Observed;
use crate::objects::Locations;

/// A location touched again while watched.
#[derive(Debug, Clone, PartialEq)]
pub struct Reuse {
    /// Index of the watch in the profile.
    pub watch: u32,
    /// Index of the sample.
    pub sample: u32,
    /// Horvitz–Thompson weight, in nanoseconds of CPU time that the sample stands for.
    pub weight: f64,
    /// Calling context of the use.
    pub use_context: ContextId,
    /// Calling context of the reuse.
    pub reuse_context: ContextId,
    /// Direction of the use.
    pub use_kind: AccessKind,
    /// Direction of the reuse.
    pub reuse_kind: AccessKind,
    /// CPU time between them; accesses in a profile with windows whose rate is known.
    pub distance_ns: u64,
    /// In between: the watch trapped sooner than its clock can resolve.
    pub within: Option<(u64, u64)>,
    /// The kernel touched on the thread's behalf, at either end.
    pub kernel: bool,
    /// Use and reuse came from different threads.
    pub cross_thread: bool,
    /// The data object of the use; the representative of its row.
    pub object: Option<ObjectId>,
}

impl Reuse {
    /// Its weight.
    pub fn counted(&self) -> Counted {
        Counted { weight: self.weight, sample: self.sample }
    }
}

/// A watched location, touched again or not.
#[derive(Debug, Clone, PartialEq)]
pub struct Watched {
    /// Index of the watch in the profile.
    pub watch: u32,
    /// Index of the sample.
    pub sample: u32,
    /// Horvitz–Thompson weight.
    pub weight: f64,
    /// Calling context of the use.
    pub use_context: ContextId,
    /// The outcome.
    pub fate: Fate,
}

impl Watched {
    /// Its weight.
    pub fn counted(&self) -> Counted {
        Counted { weight: self.weight, sample: self.sample }
    }
}

/// What became of a watched location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Touched again.
    Reused,
    /// Not touched again before the trace or the process ended.
    NotReused,
    /// Its register went to another sample: unknown.
    Withdrawn,
}

/// A sampled access.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// Index of the sample in the profile.
    pub sample: u32,
    /// CPU time represented.
    pub weight: f64,
    /// Where the access is made; where the thread was interrupted, if the access is unknown.
    pub context: ContextId,
    /// Direction; unknown where the access is.
    pub kind: AccessKind,
}

impl Observed for Reuse {
    fn position(&self) -> u32 {
        self.watch
    }
}

impl Observed for Watched {
    fn position(&self) -> u32 {
        self.watch
    }
}

impl Observed for Hit {
    fn position(&self) -> u32 {
        self.sample
    }
}

/// Everything there is to observe in a profile.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observations {
    /// Reuses, in the order of watches.
    pub reuses: Vec<Reuse>,
    /// Watches whose use is known, in the order of watches.
    pub watched: Vec<Watched>,
    /// Samples, in order.
    pub hits: Vec<Hit>,
    /// Watches left out for want of a weight or a place.
    pub unusable: u64,
}

impl Observations {
    /// Reads a profile.
    pub fn of(profile: &Profile, contexts: &Contexts) -> Self {
        let mut found = Self { hits: hits(profile, contexts), ..Self::default() };
        let locations = Locations::new(profile, contexts);
        for (index, watch) in (0..).zip(&profile.watches) {
            if watch.outcome == Outcome::Refused {
                continue;
            }
            let sample = profile.samples.get(watch.sample.0 as usize);
            let Some(use_touch) = sample.and_then(|sample| use_of(watch, sample)) else { continue };
            let weight = sample.and_then(|s| horvitz_thompson(s.period_ns, watch.p_arm, watch.p_survive));
            let (Some(weight), Some(use_context)) = (weight, contexts.of(use_touch.stack)) else {
                found.unusable += 1;
                continue;
            };
            let fate = match watch.outcome {
                Outcome::Reused { touch, distance_ns, .. } => {
                    let Some(reuse_context) = contexts.of(touch.stack) else {
                        found.unusable += 1;
                        continue;
                    };
                    found.reuses.push(Reuse {
                        watch: index,
                        sample: watch.sample.0,
                        weight,
                        use_context,
                        reuse_context,
                        use_kind: use_touch.kind,
                        reuse_kind: touch.kind,
                        distance_ns,
                        within: None,
                        kernel: use_touch.kernel || touch.kernel,
                        cross_thread: use_touch.thread != touch.thread,
                        object: locations.object_of_watch(index, watch.sample),
                    });
                    Fate::Reused
                }
                Outcome::StillArmed | Outcome::Gone => Fate::NotReused,
                Outcome::Replaced | Outcome::Refused => Fate::Withdrawn,
            };
            found.watched.push(Watched { watch: index, sample: watch.sample.0, weight, use_context, fate });
        }
        found
    }
}

impl Observations {
    /// The same for a profile with windows: reuses in windows count as well, with an estimator's
    /// weights. Distances are in the subjects' unit. `weights` are those of the subjects' reuses.
    pub fn of_subjects(
        profile: &Profile,
        contexts: &Contexts,
        subjects: &[Subject],
        weights: &[f64],
    ) -> Self {
        let mut found = Self { hits: hits(profile, contexts), ..Self::default() };
        let locations = Locations::new(profile, contexts);
        for ((index, subject), weight) in (0..).zip(subjects).zip(weights) {
            let fate = match subject.followed {
                _ if subject.reused() => Fate::Reused,
                Some(followed) if followed.to_the_end => Fate::NotReused,
                _ => Fate::Withdrawn,
            };
            let seen = subject.followed.map_or(1.0, |followed| followed.p_arm * followed.p_survive);
            let inverse = if subject.shown.reused { subject.weight } else { subject.weight / seen };
            let use_context = subject.context;
            let sample = subject.sample;
            found.watched.push(Watched { watch: index, sample, weight: inverse, use_context, fate });
            let (Fate::Reused, Some(reuse_context)) = (fate, subject.reuse_context) else { continue };
            let ends = Ends::of(profile, subject);
            found.reuses.push(Reuse {
                watch: index,
                sample,
                weight: *weight,
                use_context,
                reuse_context,
                use_kind: ends.use_kind,
                reuse_kind: ends.reuse_kind,
                distance_ns: subject.distance(),
                within: subject
                    .followed
                    .filter(|_| !subject.shown.reused)
                    .and_then(|followed| followed.within),
                kernel: ends.kernel,
                cross_thread: ends.cross_thread,
                object: locations.of_subject(subject).and_then(|at| locations.object(at)),
            });
        }
        found
    }
}

/// What is known of both ends of a subject's reuse.
#[derive(Default)]
struct Ends {
    use_kind: AccessKind,
    reuse_kind: AccessKind,
    kernel: bool,
    cross_thread: bool,
}

impl Ends {
    fn of(profile: &Profile, subject: &Subject) -> Self {
        let used = subject.used.and_then(|row| profile.uses.get(row as usize));
        let sample = profile.samples.get(subject.sample as usize);
        let own = sample.and_then(|sample| sample.access.as_ref().ok());
        let mut ends = Self {
            use_kind: used.map(|used| &used.access).or(own).map(|access| access.kind).unwrap_or_default(),
            ..Self::default()
        };
        if subject.shown.reused {
            let word = used.and_then(|used| used.seen.iter().find(|(bytes, _)| *bytes == 8));
            if let Some((_, Seen::Reused { access, .. })) = word {
                ends.reuse_kind = access.kind;
            }
            return ends;
        }
        let watch = subject.watch.and_then(|row| profile.watches.get(row as usize));
        if let Some(Watch { outcome: Outcome::Reused { touch, .. }, use_touch, .. }) = watch {
            ends.reuse_kind = touch.kind;
            ends.kernel = touch.kernel || use_touch.is_some_and(|used| used.kernel);
            ends.cross_thread = sample.is_some_and(|sample| sample.thread != touch.thread);
        }
        ends
    }
}

/// The use of a watch. If the first trap should have shown the use and never came, only a reuse
/// proves the use.
fn use_of(watch: &Watch, sample: &Sample) -> Option<Touch> {
    let reused = matches!(watch.outcome, Outcome::Reused { .. });
    watch.use_touch.or_else(|| {
        let kind = sample.access.as_ref().map_or(AccessKind::Unknown, |access| access.kind);
        let (time_ns, thread, stack) = (sample.time_ns, sample.thread, sample.stack);
        reused.then_some(Touch { time_ns, thread, stack, kind, kernel: false })
    })
}

/// The access may lie some instructions after the interrupted one, on another line. Its stack is
/// known if a watch was armed for it. Other samples of the same instruction in the same process
/// borrow the innermost frames from there.
fn hits(profile: &Profile, contexts: &Contexts) -> Vec<Hit> {
    let mut stack_of_access: HashMap<(u32, u64), StackId> = HashMap::new();
    let mut stack_of_sample: HashMap<u32, StackId> = HashMap::new();
    for watch in &profile.watches {
        let Some(sample) = profile.samples.get(watch.sample.0 as usize) else { continue };
        if let (Some(touch), Ok(access)) = (watch.use_touch, &sample.access)
            && starts_at(profile, touch.stack, access.ip)
        {
            stack_of_sample.insert(watch.sample.0, touch.stack);
            stack_of_access.insert((pid(profile, sample), access.ip), touch.stack);
        }
    }
    let hit = |(index, sample): (u32, &Sample)| {
        let borrowed = sample.access.as_ref().ok().and_then(|access| {
            let own = stack_of_sample.get(&index);
            own.or_else(|| stack_of_access.get(&(pid(profile, sample), access.ip)))
        });
        Some(Hit {
            sample: index,
            weight: sample.period_ns as f64,
            context: contexts.of(borrowed.copied().unwrap_or(sample.stack))?,
            kind: sample.access.as_ref().map_or(AccessKind::Unknown, |access| access.kind),
        })
    };
    (0..).zip(&profile.samples).filter_map(hit).collect()
}

fn starts_at(profile: &Profile, stack: StackId, ip: u64) -> bool {
    let innermost = profile.stacks.get(stack.0 as usize).and_then(|stack| stack.frames.first());
    let frame = innermost.and_then(|&FrameId(id)| profile.frames.get(id as usize));
    frame.is_some_and(|frame| frame.address == ip)
}

fn pid(profile: &Profile, sample: &Sample) -> u32 {
    profile.threads.get(sample.thread.0 as usize).map_or(0, |thread| thread.pid)
}

#[cfg(test)]
mod tests;
