//! Sampled uses with the objects that they lie in: what the analysis of objects observes.

use std::collections::HashMap;

use super::Rows;
use crate::analysis::Observed;
use crate::context::{Contexts, PlaceId};
use crate::model::{AccessKind, Accessed, FieldId, ObjectId, Profile, SampleId, UseId, WatchId};
use crate::rates::Rates;
use crate::subjects::Subject;

/// Cache levels at most.
pub const LEVELS: usize = 4;

/// A use, or the moment that a sample stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DataUse {
    /// Number among the uses of the profile.
    pub position: u32,
    /// Its sample: uses of one are alike.
    pub sample: u32,
    /// Its process.
    pub pid: u32,
    /// When the sample was taken.
    pub time_ns: u64,
    /// When the reuse came, for uses that were followed until then.
    pub reused_ns: Option<u64>,
    /// Row of its object, where that is known.
    pub row: Option<usize>,
    /// The part that it touched.
    pub field: Option<FieldId>,
    /// Line of code.
    pub place: PlaceId,
    /// Direction.
    pub kind: AccessKind,
    /// Accesses that it stands for; 0 for what stands for CPU time alone.
    pub accesses: f64,
    /// Touches of lines that it stands for.
    pub touches: f64,
    /// … of which are predicted to miss, by level.
    pub misses: [f64; LEVELS],
    /// CPU time that it stands for.
    pub cpu_ns: f64,
}

impl Observed for DataUse {
    fn position(&self) -> u32 {
        self.position
    }
}

/// Where an access lies.
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
}

/// All uses of a profile, and the CPU time of its samples. `misses` holds so many numbers for each subject.
pub(super) fn all(
    profile: &Profile,
    contexts: &Contexts,
    rates: &Rates,
    subjects: &[Subject],
    locations: &Locations,
    (misses, levels): (&[f64], usize),
) -> Vec<DataUse> {
    let mut uses_of: HashMap<u32, f64> = HashMap::new();
    for subject in subjects {
        *uses_of.entry(subject.sample).or_default() += 1.0;
    }
    let pid = |thread: crate::model::ThreadId| {
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
        let mut by_level = [0.0; LEVELS];
        let first = position as usize * levels;
        let own = misses.get(first..first + levels).unwrap_or_default();
        by_level.iter_mut().zip(own).for_each(|(level, misses)| *level = *misses);
        let followed = subject.followed.filter(|followed| followed.exit.reused && !subject.shown.reused);
        uses.push(DataUse {
            position,
            sample: subject.sample,
            pid: pid(sample.thread),
            time_ns: sample.time_ns,
            reused_ns: followed.map(|followed| followed.ended_ns),
            row: at.map(|at| at.row),
            field: at.and_then(|at| at.field),
            place: contexts.of(stack).map_or(PlaceId(u32::MAX), |context| contexts.place_of(context)),
            kind: access.map(|access| access.kind).unwrap_or_default(),
            accesses: here / uses_of.get(&subject.sample).copied().unwrap_or(1.0),
            touches: subject.weight,
            misses: by_level,
            cpu_ns: 0.0,
        });
    }
    for (position, (index, sample)) in (uses.len() as u32..).zip((0..).zip(&profile.samples)) {
        let at = locations.of_sample(index);
        uses.push(DataUse {
            position,
            sample: index,
            pid: pid(sample.thread),
            time_ns: sample.time_ns,
            reused_ns: None,
            row: at.map(|at| at.row),
            field: at.and_then(|at| at.field),
            place: contexts.of(sample.stack).map_or(PlaceId(u32::MAX), |context| contexts.place_of(context)),
            kind: sample.access.as_ref().map(|access| access.kind).unwrap_or_default(),
            accesses: 0.0,
            touches: 0.0,
            misses: [0.0; LEVELS],
            cpu_ns: sample.period_ns as f64,
        });
    }
    uses
}
