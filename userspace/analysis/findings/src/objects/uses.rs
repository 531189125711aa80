//! Sampled uses with objects: the analysis's observations.

use std::collections::HashMap;

use locality_estimate::access_rates::Rates;
use locality_estimate::calling_context::{Contexts, PlaceId};
use locality_estimate::censored_uses::Subject;
use locality_model::{
    AccessKind, Accessed, FieldId, ObjectId, Outcome, Profile, SampleId, Seen, StackId, Use, UseId, WatchId,
};

use super::{LINE, Rows};
use crate::analysis_trait::Observed;

/// Cache levels at most.
pub const LEVELS: usize = 4;

/// A use, or the moment of a sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DataUse {
    /// Number among the uses of the profile.
    pub position: u32,
    /// Index of the sample: uses of a sample are alike.
    pub sample: u32,
    /// Process of the use.
    pub pid: u32,
    /// When the sample was taken.
    pub time_ns: u64,
    /// When the reuse came, for uses followed until then.
    pub reused_ns: Option<u64>,
    /// Row of the object, if known.
    pub row: Option<usize>,
    /// The touched part.
    pub field: Option<FieldId>,
    /// Calling context, as in the profile.
    pub stack: StackId,
    /// Line of code.
    pub place: PlaceId,
    /// Whether the object is accessed at `place`: a sample's CPU time
    /// may be charged to an object not accessed at the line of the stop.
    pub is_at_place: bool,
    /// Direction.
    pub kind: AccessKind,
    /// Accesses represented; 0 for entries of CPU time alone.
    pub accesses: f64,
    /// Touches of lines represented.
    pub touches: f64,
    /// … predicted to miss, by level.
    pub misses: [f64; LEVELS],
    /// Place and kind of the observed reuse.
    pub reuse: Option<(PlaceId, AccessKind)>,
    /// Reuses at a missing distance, by level, represented by the use (inverse probabilities;
    /// 0 if not observed): the proportions show the lines of code with an object's misses.
    pub missed: [f64; LEVELS],
    /// CPU time represented.
    pub cpu_ns: f64,
}

impl Observed for DataUse {
    fn position(&self) -> u32 {
        self.position
    }
}

/// Location of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Row of the object.
    pub row: usize,
    /// The part.
    pub field: Option<FieldId>,
}

/// Rows and fields by access.
#[derive(Debug, Clone, Default)]
pub struct Locations {
    of: HashMap<Accessed, At>,
    rows: Rows,
}

impl Locations {
    /// Reads a profile.
    pub fn of(profile: &Profile, rows: &Rows) -> Self {
        let known = profile.located.iter().filter_map(|located| {
            Some((located.of, At { row: rows.row(located.object)?, field: located.field }))
        });
        Self { of: known.collect(), rows: rows.clone() }
    }

    /// Reads a profile and finds the rows.
    pub fn new(profile: &Profile, contexts: &Contexts) -> Self {
        Self::of(profile, &Rows::of(profile, contexts))
    }

    /// Location of an access.
    pub(super) fn of_access(&self, of: Accessed) -> Option<At> {
        self.of.get(&of).copied()
    }

    /// A row's representative object.
    pub fn object(&self, at: At) -> Option<ObjectId> {
        self.rows.object(at.row)
    }

    /// The object of a watch's use, in profiles without windows.
    pub fn object_of_watch(&self, watch: u32, sample: SampleId) -> Option<ObjectId> {
        let at = self.of.get(&Accessed::WatchUse(WatchId(watch))).copied();
        at.or_else(|| self.of_sample(sample.0)).and_then(|at| self.object(at))
    }

    /// Of a subject's use.
    pub fn of_subject(&self, subject: &Subject) -> Option<At> {
        let of = |of: Accessed| self.of.get(&of).copied();
        match (subject.used, subject.watch) {
            (Some(id), _) => of(Accessed::Use(UseId(id))),
            (None, Some(watch)) => {
                of(Accessed::WatchUse(WatchId(watch))).or_else(|| self.of_sample(subject.sample))
            }
            (None, None) => self.of_sample(subject.sample),
        }
    }

    pub(super) fn row_of_object(&self, object: ObjectId) -> Option<usize> {
        self.rows.row(object)
    }

    pub(super) fn rows(&self) -> usize {
        self.rows.len()
    }

    fn of_sample(&self, sample: u32) -> Option<At> {
        self.of.get(&Accessed::Sample(SampleId(sample))).copied()
    }

    /// Place of a sample's CPU time: the instruction completed by the thread,
    /// if known to access an object; otherwise the sample's own access.
    fn of_time(&self, sample: u32) -> Option<At> {
        self.of.get(&Accessed::Before(SampleId(sample))).copied().or_else(|| self.of_sample(sample))
    }
}

/// Predictions for subjects, for each level.
pub(super) struct Predicted<'a> {
    /// Expected misses.
    pub misses: &'a [f64],
    /// Seen missing reuses, weighed.
    pub missed: &'a [f64],
    /// Levels.
    pub levels: usize,
}

impl Predicted<'_> {
    fn of(&self, values: &[f64], subject: usize) -> [f64; LEVELS] {
        let mut by_level = [0.0; LEVELS];
        let first = subject * self.levels;
        let own = values.get(first..first + self.levels).unwrap_or_default();
        by_level.iter_mut().zip(own).for_each(|(level, value)| *level = *value);
        by_level
    }
}

/// Direction of the reuse seen of a subject's line.
pub(crate) fn reuse_kind(profile: &Profile, subject: &Subject) -> AccessKind {
    let line = |used: &Use| used.seen.iter().find(|(bytes, _)| u64::from(*bytes) == LINE).map(|seen| seen.1);
    let used = subject.used.and_then(|row| profile.uses.get(row as usize));
    if let Some(Seen::Reused { access, .. }) = used.and_then(line) {
        return access.kind;
    }
    match subject.watch.and_then(|row| profile.watches.get(row as usize)).map(|watch| watch.outcome) {
        Some(Outcome::Reused { touch, .. }) => touch.kind,
        _ => AccessKind::Unknown,
    }
}

/// Uses of a profile, and the CPU time of the samples.
pub(super) fn all(
    profile: &Profile,
    contexts: &Contexts,
    rates: &Rates,
    subjects: &[Subject],
    locations: &Locations,
    predicted: &Predicted<'_>,
) -> Vec<DataUse> {
    let mut uses_of: HashMap<u32, f64> = HashMap::new();
    for subject in subjects {
        *uses_of.entry(subject.sample).or_default() += 1.0;
    }
    let pid = |thread: locality_model::ThreadId| {
        profile.threads.get(thread.0 as usize).map_or(0, |thread| thread.pid)
    };
    let mut uses = Vec::with_capacity(subjects.len() + profile.samples.len());
    for (position, subject) in (0..).zip(subjects) {
        let Some(sample) = profile.samples.get(subject.sample as usize) else { continue };
        let at = locations.of_subject(subject);
        let used = subject.used.and_then(|row| profile.uses.get(row as usize));
        let access = used.map(|used| &used.access).or(sample.access.as_ref().ok());
        let stack = used.map_or(sample.stack, |used| used.stack);
        let here = rates.at(subject.sample as usize).value * sample.period_ns as f64;
        let followed = subject.followed.filter(|followed| followed.exit.reused && !subject.shown.reused);
        uses.push(DataUse {
            position,
            sample: subject.sample,
            pid: pid(sample.thread),
            time_ns: sample.time_ns,
            reused_ns: followed.map(|followed| followed.ended_ns),
            row: at.map(|at| at.row),
            field: at.and_then(|at| at.field),
            stack,
            place: contexts.of(stack).map_or(PlaceId(u32::MAX), |context| contexts.place_of(context)),
            is_at_place: true,
            kind: access.map(|access| access.kind).unwrap_or_default(),
            accesses: here / uses_of.get(&subject.sample).copied().unwrap_or(1.0),
            touches: subject.weight,
            misses: predicted.of(predicted.misses, position as usize),
            reuse: subject
                .reuse_context
                .map(|context| (contexts.place_of(context), reuse_kind(profile, subject))),
            missed: predicted.of(predicted.missed, position as usize),
            cpu_ns: 0.0,
        });
    }
    for (position, (index, sample)) in (uses.len() as u32..).zip((0..).zip(&profile.samples)) {
        let at = locations.of_time(index);
        uses.push(DataUse {
            position,
            sample: index,
            pid: pid(sample.thread),
            time_ns: sample.time_ns,
            reused_ns: None,
            row: at.map(|at| at.row),
            field: at.and_then(|at| at.field),
            stack: sample.stack,
            place: contexts.of(sample.stack).map_or(PlaceId(u32::MAX), |context| contexts.place_of(context)),
            is_at_place: at.map(|at| at.row) == locations.of_sample(index).map(|at| at.row),
            kind: sample.access.as_ref().map(|access| access.kind).unwrap_or_default(),
            accesses: 0.0,
            touches: 0.0,
            misses: [0.0; LEVELS],
            reuse: None,
            missed: [0.0; LEVELS],
            cpu_ns: sample.period_ns as f64,
        });
    }
    uses
}
