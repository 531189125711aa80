//! Rows of one segment.

use std::collections::{BTreeMap, HashMap};

use locality_estimate::access_rates::{Rates, Unit};
use locality_estimate::calling_context::{Contexts, base_name, function_name};
use locality_estimate::estimator::Estimator;
use locality_estimate::reuse::{Case, Reuse};
use locality_model::{Accessed, Group, GroupId, ObjectId, Outcome, Profile, Sample};
use serde::{Deserialize, Serialize};

use crate::{FEWEST, Keys};

/// Bytes of a cache line.
const LINE: u32 = 64;
/// Bootstrap draws of a curve.
const DRAWS: usize = 24;
/// Fewest windows for a curve: sums of several segments have enough.
const LEAST: u64 = 5;
/// Limit of groups with a curve, by CPU time.
const CURVES: usize = 32;
/// Places and objects of a row.
const TOP: usize = 20;
/// Size of the cache for the loads of places and objects, in bytes.
pub const PLACE_SIZE: u64 = 1 << 20;

/// Results of one segment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Rollup {
    /// Start of the segment, nanoseconds since the Unix epoch.
    pub started_unix_ns: u64,
    /// Length of the segment.
    pub wall_ns: u64,
    /// Data caches of the machine: level and bytes.
    pub caches: Vec<(u8, u64)>,
    /// Groups with samples, the most CPU time first.
    pub rows: Vec<Row>,
    /// Costs and losses of the trace.
    pub health: Health,
}

/// Costs and losses of a trace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Health {
    /// Cost for the targets, as a share of the targets' CPU time.
    pub cost: f64,
    /// Longest stop.
    pub longest_stop_ns: u64,
    /// Samples.
    pub samples: u64,
    /// Records lost, by cause.
    pub lost: Vec<(String, u64)>,
    /// Threads not stopped, by reason.
    pub not_held: Vec<(String, u64)>,
    /// Patterns of `--exclude`, with the processes that each left out.
    #[serde(default)]
    pub excluded: Vec<(String, u64)>,
    /// The ledger balances.
    pub balanced: bool,
    /// Watches cut off by the end of the segment: censored reuses.
    pub cut_watches: u64,
    /// The tracer was killed: the segment lacks its last second.
    pub partial: bool,
    /// Why the segment ended.
    pub ended_by: String,
}

/// CPU time of a group by measurement of accesses, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// By a shadow window.
    pub windows: f64,
    /// By registers alone.
    pub registers: f64,
    /// No accesses found.
    pub none: f64,
}

impl CpuTime {
    /// The sum.
    pub fn sum(&self) -> f64 {
        self.windows + self.registers + self.none
    }
}

/// Miss ratio of one size of cache, with intervals of 95 %.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Capacity.
    pub bytes: u64,
    /// Misses ÷ touches of lines.
    pub ratio: f64,
    /// The interval.
    pub low: f64,
    /// …
    pub high: f64,
    /// The interval from sampling alone, narrower with more samples.
    pub sampling_low: f64,
    /// …
    pub sampling_high: f64,
}

/// Identity of a group; a field is empty if the processes differ.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// The container's id.
    pub container: String,
    /// The container's runtime.
    pub runtime: String,
    /// The pod's id.
    pub pod: String,
    /// The unit of systemd.
    pub unit: String,
    /// The process' name.
    pub comm: String,
}

/// One group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the group.
    pub group: String,
    /// Identity of the group.
    pub who: Who,
    /// Samples.
    pub samples: u64,
    /// Samples with a window.
    pub windows: u64,
    /// Sampled CPU time.
    pub cpu_ns: CpuTime,
    /// Memory accesses; `None` without a rate.
    pub accesses: Option<f64>,
    /// Touches of cache lines, the weight of miss ratios; `None` without a rate.
    pub touches: Option<f64>,
    /// Miss ratios by size, ascending; shown only if [`Row::is_known`].
    pub curve: Vec<Point>,
    /// Windows of the curve.
    pub curve_windows: u64,
    /// Distinct bytes touched in a segment: value, low, high. Medians for several segments.
    pub footprint_bytes: Option<(f64, f64, f64)>,
    /// Places with the most bytes loaded into a cache of [`PLACE_SIZE`], with the bytes.
    pub places: Vec<(String, f64)>,
    /// Data objects of the loaded lines, with the bytes.
    pub objects: Vec<(String, f64)>,
}

impl Row {
    /// Whether the curve rests on enough windows to be shown.
    pub fn is_known(&self) -> bool {
        self.curve_windows >= FEWEST
    }

    /// Bytes loaded into a cache of a size.
    pub fn loaded_bytes(&self, size: u64) -> Option<f64> {
        let point = self.curve.iter().find(|point| point.bytes == size)?;
        Some(self.touches? * point.ratio * f64::from(LINE))
    }

    /// The working set: bytes of the least cache of the curve with at most `loss` more misses per touch
    /// than the curve's largest cache, with the ends of an interval. `None` without a curve.
    ///
    /// The ends are the least caches that the sampling intervals of both miss ratios allow. Errors of
    /// two sizes of one trace mostly have one direction, so the interval is wider than 95 %.
    pub fn working_set(&self, loss: f64) -> Option<(u64, u64, u64)> {
        let largest = self.curve.last()?;
        let least = |fits: &dyn Fn(&Point) -> bool| {
            self.curve.iter().find(|point| fits(point)).map_or(largest.bytes, |point| point.bytes)
        };
        let value = least(&|point| point.ratio - largest.ratio <= loss);
        let low = least(&|point| point.sampling_low - largest.sampling_high <= loss);
        let high = least(&|point| point.sampling_high - largest.sampling_low <= loss);
        Some((value, low.min(value), high.max(value)))
    }
}

/// The rollup of a segment.
pub fn of(profile: &Profile, keys: &Keys) -> Rollup {
    let (profile, names) = &regrouped(profile, keys);
    let (contexts, rates) = (Contexts::new(profile), Rates::of(profile));
    let mut members: BTreeMap<Option<GroupId>, Vec<usize>> = BTreeMap::new();
    for (index, sample) in profile.samples.iter().enumerate() {
        members.entry(sample.group).or_default().push(index);
    }
    let of_window: HashMap<u32, &locality_model::Window> =
        profile.windows.iter().map(|window| (window.sample.0, window)).collect();
    let mut rows: Vec<(Option<GroupId>, Row)> = members
        .iter()
        .map(|(group, members)| {
            let name = group.and_then(|group| names.get(group.0 as usize));
            let (name, who) = name.cloned().unwrap_or_else(|| ("unknown".to_owned(), Who::default()));
            let mut row = Row { group: name, who, samples: members.len() as u64, ..Row::default() };
            row.count(profile, &rates, members, &of_window);
            (*group, row)
        })
        .collect();
    rows.sort_by(|(_, a), (_, b)| b.cpu_ns.sum().total_cmp(&a.cpu_ns.sum()).then(a.group.cmp(&b.group)));
    let objects = objects(profile);
    let enough = rows.iter_mut().filter(|(group, row)| group.is_some() && row.windows >= LEAST);
    for (group, row) in enough.take(CURVES) {
        let Some(group) = group else { continue };
        let case = Case::of_group(profile, &contexts, &rates, LINE, *group);
        let reuse = case.estimate(Estimator::default(), DRAWS);
        row.curve(&reuse);
        row.load(profile, &contexts, &case, &reuse, &objects);
    }
    let run = &profile.run;
    Rollup {
        started_unix_ns: run.started_unix_ns,
        wall_ns: run.wall_ns,
        caches: run.host.caches.iter().map(|cache| (cache.level, cache.bytes)).collect(),
        rows: rows.into_iter().map(|(_, row)| row).collect(),
        health: health(profile),
    }
}

/// The profile with the groups by `keys`, and the groups' names.
fn regrouped(profile: &Profile, keys: &Keys) -> (Profile, Vec<(String, Who)>) {
    let mut names: Vec<(String, Who)> = Vec::new();
    let mut known: HashMap<String, GroupId> = HashMap::new();
    let mut now = Vec::with_capacity(profile.groups.len());
    for group in &profile.groups {
        let name = keys.of(group);
        let who = who(group);
        let id = *known.entry(name.clone()).or_insert_with(|| {
            names.push((name, who.clone()));
            GroupId(names.len() as u32 - 1)
        });
        if let Some((_, common)) = names.get_mut(id.0 as usize) {
            common.agree(&who);
        }
        now.push(id);
    }
    let mut profile = profile.clone();
    let moved = |group: Option<GroupId>| now.get(group?.0 as usize).copied();
    for sample in &mut profile.samples {
        sample.group = moved(sample.group);
    }
    profile.groups = names.iter().map(|_| Group::default()).collect();
    (profile, names)
}

fn who(group: &Group) -> Who {
    Who {
        container: group.container.clone().unwrap_or_default(),
        runtime: group.runtime.clone(),
        pod: group.pod.clone().unwrap_or_default(),
        unit: group.unit.clone().unwrap_or_default(),
        comm: group.comm.clone(),
    }
}

impl Who {
    /// Clears the fields that differ from another group's fields.
    pub(crate) fn agree(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.container, &other.container),
            (&mut self.runtime, &other.runtime),
            (&mut self.pod, &other.pod),
            (&mut self.unit, &other.unit),
            (&mut self.comm, &other.comm),
        ] {
            if mine != theirs {
                mine.clear();
            }
        }
    }
}

impl Row {
    /// CPU time, accesses and touches of a group's samples.
    fn count(
        &mut self,
        profile: &Profile,
        rates: &Rates,
        members: &[usize],
        windows: &HashMap<u32, &locality_model::Window>,
    ) {
        let (mut accesses, mut shown, mut touched) = (0.0, 0.0, 0.0);
        for index in members {
            let Some(Sample { period_ns, access, .. }) = profile.samples.get(*index) else { continue };
            let period_ns = *period_ns as f64;
            let here = rates.at(*index).value * period_ns;
            accesses += here;
            match (windows.get(&(*index as u32)), access) {
                (Some(window), _) => {
                    self.windows += 1;
                    self.cpu_ns.windows += period_ns;
                    let of_lines = window.touches.iter().find(|(bytes, _)| *bytes == LINE);
                    if let (Some((_, touches)), true) = (of_lines, window.accesses > 0) {
                        shown += here;
                        touched += here * *touches as f64 / window.accesses as f64;
                    }
                }
                (None, Ok(_)) => self.cpu_ns.registers += period_ns,
                (None, Err(_)) => self.cpu_ns.none += period_ns,
            }
        }
        if rates.unit() == Unit::Accesses && shown > 0.0 {
            self.accesses = Some(accesses);
            self.touches = Some(accesses * touched / shown);
        }
    }

    fn curve(&mut self, reuse: &Reuse) {
        let point = |point: &locality_estimate::reuse::Point| Point {
            bytes: point.bytes,
            ratio: point.ratio.value,
            low: point.ratio.low,
            high: point.ratio.high,
            sampling_low: point.sampling.low,
            sampling_high: point.sampling.high,
        };
        self.curve = reuse.curve.iter().map(point).collect();
        self.curve.sort_by_key(|point| point.bytes);
        self.curve.dedup_by_key(|point| point.bytes);
        self.curve_windows = if self.curve.is_empty() { 0 } else { self.windows };
        let bytes = reuse.footprint_bytes;
        self.footprint_bytes = (bytes.value > 0.0).then_some((bytes.value, bytes.low, bytes.high));
    }

    /// Places and objects of the loads: reuses at stack distances beyond the cache.
    fn load(
        &mut self,
        profile: &Profile,
        contexts: &Contexts,
        case: &Case<'_>,
        reuse: &Reuse,
        objects: &HashMap<u32, ObjectId>,
    ) {
        let Some(loaded) = self.loaded_bytes(PLACE_SIZE) else { return };
        let weights = case.weights(Estimator::default());
        let (mut by_place, mut by_object) = (HashMap::new(), HashMap::new());
        let mut all = 0.0;
        for (subject, weight) in case.subjects().iter().zip(weights) {
            let lines = reuse.stack_distance(subject.distance() as f64);
            let is_beyond = lines.is_some_and(|lines| lines * f64::from(LINE) >= PLACE_SIZE as f64);
            let Some(context) = subject.reuse_context.filter(|_| is_beyond && weight > 0.0) else { continue };
            all += weight;
            *by_place.entry(contexts.place_of(context)).or_insert(0.0) += weight;
            if let Some(object) = subject.used.and_then(|used| objects.get(&used)) {
                *by_object.entry(*object).or_insert(0.0) += weight;
            }
        }
        if all <= 0.0 {
            return;
        }
        let place = |id| {
            let frame = contexts.place(id).frame.and_then(|frame| profile.frames.get(frame.0 as usize));
            frame.map_or_else(
                || "unknown".to_owned(),
                |frame| {
                    let function = function_name(profile, frame);
                    match (&frame.file, frame.line) {
                        (Some(file), Some(line)) => format!("{function} {}:{line}", base_name(file)),
                        _ => function,
                    }
                },
            )
        };
        let object = |id: ObjectId| {
            let object = profile.objects.get(id.0 as usize);
            object.map(|object| object.name.clone()).unwrap_or_default()
        };
        self.places = top(by_place.into_iter().map(|(id, weight)| (place(id), weight / all * loaded)));
        self.objects = top(by_object.into_iter().map(|(id, weight)| (object(id), weight / all * loaded)));
    }
}

/// The heaviest by name.
pub(crate) fn top(rows: impl Iterator<Item = (String, f64)>) -> Vec<(String, f64)> {
    let mut sums: BTreeMap<String, f64> = BTreeMap::new();
    for (name, bytes) in rows {
        *sums.entry(name).or_default() += bytes;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    sums.truncate(TOP);
    sums
}

/// Objects of uses.
fn objects(profile: &Profile) -> HashMap<u32, ObjectId> {
    let of = profile.located.iter().filter_map(|located| match located.of {
        Accessed::Use(id) => Some((id.0, located.object)),
        _ => None,
    });
    of.collect()
}

fn health(profile: &Profile) -> Health {
    let cut = profile.watches.iter().filter(|watch| watch.outcome == Outcome::StillArmed).count();
    let mut not_held: BTreeMap<String, u64> = BTreeMap::new();
    for why in profile.threads.iter().filter_map(|thread| thread.not_held.as_ref()) {
        *not_held.entry(why.clone()).or_default() += 1;
    }
    Health {
        cost: profile.overhead.measured_percent / 100.0,
        longest_stop_ns: profile.overhead.longest_stop_ns,
        samples: profile.samples.len() as u64,
        lost: profile.ledger.lost.iter().filter(|(_, n)| *n > 0).cloned().collect(),
        not_held: not_held.into_iter().collect(),
        excluded: profile.run.excluded.clone(),
        balanced: profile.known_ledger().is_some_and(|ledger| ledger.imbalance().is_none()),
        cut_watches: cut as u64,
        partial: profile.partial,
        ended_by: profile.run.ended_by.clone(),
    }
}
