//! From uses to rows: sums by object, by object and line of code, by part, with intervals.
//!
//! A share is a ratio of two sums over samples, p = Σx / Σt, with the uses of a sample
//! together. The variance by linearisation is C/(C−1) · Σ(x − p·t)² / (Σt)² over C samples
//! (Cochran 1977, Sampling Techniques, §2.11 and §9A.1: ratio estimates and clusters). The
//! equivalent number of independent uses is n = p(1−p)/variance. The interval is Wilson's
//! at n (`interval_estimate`): lopsided for small shares, wide for shares seen by few uses.
//!
//! Sources of error: the weights' own errors, absent from a share if a common factor; samples
//! of a phase are alike, which makes intervals too narrow for programs with few long phases.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use locality_estimate::calling_context::PlaceId;
use locality_estimate::interval_estimate::{Distinct, Estimate, wilson};
use locality_model::{AccessKind, FieldId, Profile, RecordId, StackId};

use super::{DataUse, FieldUse, LEVELS, Level, Line, Objects, Row, Rows, StackWeight, conflicts, layout};
use crate::analysis_trait::{Analysis, in_order};

/// Objects are ranked by the last level with at least `ENOUGH_MISSES` misses per touch.
const ENOUGH_MISSES: f64 = 1e-3;
/// … and with the misses of at least `ENOUGH_USES` uses of like weight: one or two may be chance.
const ENOUGH_USES: f64 = 2.5;

/// Ratios to a common whole, by key. Weights come sample by sample.
#[derive(Debug, Clone)]
pub(super) struct Ratios<K> {
    sample: u32,
    /// Of the sample at hand.
    whole: f64,
    touched: Vec<usize>,
    /// Sums over earlier samples.
    samples: f64,
    sum: f64,
    squares: f64,
    of_key: HashMap<K, usize>,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Default)]
struct Part {
    /// Of the sample at hand.
    here: f64,
    x: f64,
    xx: f64,
    xt: f64,
    n: u64,
}

impl<K: Copy + Ord + Hash> Ratios<K> {
    pub(super) fn new() -> Self {
        Self {
            sample: 0,
            whole: 0.0,
            touched: Vec::new(),
            samples: 0.0,
            sum: 0.0,
            squares: 0.0,
            of_key: HashMap::new(),
            parts: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, key: Option<K>, sample: u32, weight: f64) {
        if weight <= 0.0 || !weight.is_finite() {
            return;
        }
        if sample != self.sample {
            self.next();
            self.sample = sample;
        }
        self.whole += weight;
        let Some(key) = key else { return };
        let next = self.parts.len();
        let index = *self.of_key.entry(key).or_insert(next);
        if index == next {
            self.parts.push(Part::default());
        }
        if let Some(part) = self.parts.get_mut(index) {
            if part.here == 0.0 {
                self.touched.push(index);
            }
            part.here += weight;
            part.n += 1;
        }
    }

    /// The sample at hand is complete.
    fn next(&mut self) {
        if self.whole > 0.0 {
            self.samples += 1.0;
        }
        for index in self.touched.drain(..) {
            if let Some(part) = self.parts.get_mut(index) {
                part.x += part.here;
                part.xx += part.here * part.here;
                part.xt += part.here * self.whole;
                part.here = 0.0;
            }
        }
        self.sum += self.whole;
        self.squares += self.whole * self.whole;
        self.whole = 0.0;
    }

    pub(super) fn finish(mut self) -> BTreeMap<K, Estimate> {
        self.next();
        let clusters = if self.samples > 1.0 { self.samples / (self.samples - 1.0) } else { 1.0 };
        let squared = self.sum * self.sum;
        let share = |part: &Part| {
            let p = (part.x / self.sum).clamp(0.0, 1.0);
            let spread = part.xx - 2.0 * p * part.xt + p * p * self.squares;
            let variance = clusters * spread.max(0.0) / squared;
            // With a single object the share does not vary;
            // the number of samples is then the basis.
            let most = squared / self.squares;
            let n = if variance > 0.0 { (p * (1.0 - p) / variance).min(most) } else { most };
            let (low, high) = wilson(p, n);
            Estimate { value: p, low, high, n: part.n }
        };
        let found =
            self.of_key.iter().filter_map(|(key, index)| Some((*key, share(self.parts.get(*index)?))));
        found.collect()
    }
}

/// The analysis in progress.
#[derive(Debug, Clone)]
pub struct Shares<'a> {
    profile: &'a Profile,
    rows: &'a Rows,
    levels: &'a [(u8, u64)],
    /// Weights are accesses, not times.
    counted: bool,
    uses: Vec<DataUse>,
}

impl<'a> Shares<'a> {
    /// Starts empty. `counted`: the rate of accesses is known.
    pub fn new(profile: &'a Profile, rows: &'a Rows, levels: &'a [(u8, u64)], counted: bool) -> Self {
        Self { profile, rows, levels, counted, uses: Vec::new() }
    }

    /// Sums of a weight by key over uses.
    fn by<'u, K: Copy + Ord + Hash>(
        &self,
        uses: impl Iterator<Item = &'u DataUse>,
        key: impl Fn(&DataUse) -> Option<K>,
        weight: impl Fn(&DataUse) -> f64,
    ) -> BTreeMap<K, Estimate> {
        let mut ratios = Ratios::new();
        uses.for_each(|one| ratios.add(key(one), one.sample, weight(one)));
        ratios.finish()
    }

    fn row(&self, row: usize, own: &[&DataUse]) -> Row {
        let sum = |of: fn(&DataUse) -> f64| own.iter().map(|one| of(one)).sum::<f64>();
        let (accesses, touches) = (sum(|one| one.accesses), sum(|one| one.touches));
        let of_kind = |kinds: &[AccessKind]| {
            let these: f64 = own.iter().filter(|one| kinds.contains(&one.kind)).map(|one| one.accesses).sum();
            if accesses > 0.0 { these / accesses } else { 0.0 }
        };
        let misses = |level: usize| own.iter().map(|one| one.misses[level]).sum::<f64>();
        Row {
            object: self.rows.object(row),
            bytes: self.rows.bytes(row),
            accesses: self.counted.then_some(accesses),
            miss_ratio: (0..self.levels.len())
                .map(|level| if touches > 0.0 { misses(level) / touches } else { 0.0 })
                .collect(),
            loads: of_kind(&[AccessKind::Load]),
            stores: of_kind(&[AccessKind::Store, AccessKind::ReadWrite]),
            fields: self.fields(own),
            ..Row::default()
        }
    }

    /// Parts by path: a part shared by several objects of a row counts once.
    fn fields(&self, own: &[&DataUse]) -> Vec<FieldUse> {
        let name = |id: FieldId| {
            let field = self.profile.fields.get(id.0 as usize)?;
            Some((field.path.as_str(), field.offset))
        };
        let key = |one: &DataUse| one.field.and_then(name);
        let uses = || own.iter().copied();
        let accesses = self.by(uses(), key, |one| one.accesses);
        let misses: Vec<_> =
            (0..self.levels.len()).map(|level| self.by(uses(), key, |one| one.misses[level])).collect();
        let mut first: BTreeMap<(&str, u64), FieldId> = BTreeMap::new();
        for id in own.iter().filter_map(|one| one.field) {
            if let Some(name) = name(id) {
                first.entry(name).or_insert(id);
            }
        }
        let part = |(name, share): ((&str, u64), Estimate)| {
            let field = *first.get(&name)?;
            Some(FieldUse {
                field,
                record: self.profile.fields.get(field.0 as usize).and_then(|field| field.record),
                access_share: share,
                miss_share: misses
                    .iter()
                    .map(|shares| shares.get(&name).copied().unwrap_or_default())
                    .collect(),
                hot: false,
            })
        };
        let mut fields: Vec<FieldUse> = accesses.into_iter().filter_map(part).collect();
        fields.sort_by(|a, b| b.access_share.value.total_cmp(&a.access_share.value));
        layout::mark_hot(&mut fields);
        fields
    }

    /// Accesses by the line of the use; misses by the line of
    /// the next touch, in the proportions of the misses seen.
    fn lines(&self, uses: &[DataUse], rows: &mut [Option<Row>]) {
        type At = (usize, PlaceId);
        let at = |one: &DataUse| Some((one.row.filter(|_| one.is_at_place)?, one.place));
        let accesses = self.by(uses.iter(), at, |one| one.accesses);
        let cpu = self.by(uses.iter(), at, |one| one.cpu_ns);
        let mut kinds: BTreeMap<At, [f64; 4]> = BTreeMap::new();
        // Seen missing reuses by line, or for objects without:
        // expected misses by the line of the use; with numbers.
        let mut seen: BTreeMap<At, OfLine> = BTreeMap::new();
        let mut used: BTreeMap<At, OfLine> = BTreeMap::new();
        for one in uses {
            let Some(row) = one.row.filter(|_| one.is_at_place) else { continue };
            kinds.entry((row, one.place)).or_default()[kind_index(one.kind)] +=
                one.accesses + f64::MIN_POSITIVE;
            used.entry((row, one.place)).or_default().add(one.sample, &one.misses);
            if let Some((place, kind)) = one.reuse.filter(|_| one.missed.iter().any(|missed| *missed > 0.0)) {
                seen.entry((row, place)).or_default().add(one.sample, &one.missed);
                kinds.entry((row, place)).or_default()[kind_index(kind)] += f64::MIN_POSITIVE;
            }
        }
        let mut totals: BTreeMap<usize, ([f64; LEVELS], [f64; LEVELS])> = BTreeMap::new();
        for ((row, _), line) in &seen {
            totals.entry(*row).or_default().0.iter_mut().zip(&line.misses).for_each(|(sum, by)| *sum += by);
        }
        for ((row, _), line) in &used {
            totals.entry(*row).or_default().1.iter_mut().zip(&line.misses).for_each(|(sum, by)| *sum += by);
        }
        for (at, weights) in kinds {
            let Some(Some(row)) = rows.get_mut(at.0) else { continue };
            let (of_seen, of_used) = totals.get(&at.0).copied().unwrap_or_default();
            let share = |level: usize| {
                let whole = row.miss_share.get(level).copied().unwrap_or_default();
                let (sums, total) =
                    if of_seen[level] > 0.0 { (&seen, of_seen[level]) } else { (&used, of_used[level]) };
                let (own, n) = sums.get(&at).map_or((0.0, 0), |line| (line.misses[level], line.n));
                let part = if total > 0.0 { (own / total).clamp(0.0, 1.0) } else { 0.0 };
                let of_row: u64 =
                    sums.range((at.0, PlaceId(0))..=(at.0, PlaceId(u32::MAX))).map(|s| s.1.samples.n).sum();
                let (low, high) = wilson(part, of_row as f64);
                Estimate { value: whole.value * part, low: whole.low * low, high: whole.high * high, n }
            };
            let miss_share: Vec<Estimate> = (0..self.levels.len()).map(share).collect();
            let access_share = accesses.get(&at).copied().unwrap_or_default();
            let cpu_share = cpu.get(&at).copied().unwrap_or_default();
            if access_share.n == 0 && cpu_share.n == 0 && miss_share.iter().all(|misses| misses.value <= 0.0)
            {
                continue;
            }
            let heaviest = KINDS.iter().zip(weights).max_by(|a, b| a.1.total_cmp(&b.1));
            row.lines.push(Line {
                place: at.1,
                kind: heaviest.map(|(kind, _)| *kind).unwrap_or_default(),
                access_share,
                cpu_share,
                miss_share,
            });
        }
    }
}

const KINDS: [AccessKind; 4] =
    [AccessKind::Unknown, AccessKind::Load, AccessKind::Store, AccessKind::ReadWrite];

fn kind_index(kind: AccessKind) -> usize {
    KINDS.iter().position(|known| *known == kind).unwrap_or(0)
}

/// Whether a row's object consists of a reason alone.
fn is_unknown(profile: &Profile, row: &Row) -> bool {
    let object = row.object.and_then(|id| profile.objects.get(id.0 as usize));
    object.is_none_or(|object| object.kind == locality_model::ObjectKind::Unknown)
}

/// Equivalent number of equal weights (Kish's effective number).
fn alike(weights: impl Iterator<Item = f64>) -> f64 {
    let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), one| (sum + one, squares + one * one));
    if squares > 0.0 { sum * sum / squares } else { 0.0 }
}

/// Weights by calling context; contexts without weight are left out.
fn stacks(uses: &[DataUse]) -> Vec<StackWeight> {
    let mut stacks: BTreeMap<StackId, StackWeight> = BTreeMap::new();
    for one in uses.iter().filter(|one| one.accesses > 0.0) {
        let stack = stacks.entry(one.stack).or_insert(StackWeight {
            stack: one.stack,
            accesses: 0.0,
            misses: [0.0; LEVELS],
        });
        stack.accesses += one.accesses;
        stack.misses.iter_mut().zip(one.misses).for_each(|(sum, misses)| *sum += misses);
    }
    stacks.into_values().collect()
}

impl Analysis for Shares<'_> {
    type Observation = DataUse;
    type Finding = Objects;

    fn observe(&mut self, one: DataUse) {
        self.uses.push(one);
    }

    fn merge(&mut self, other: Self) {
        self.uses.extend(other.uses);
    }

    fn finish(mut self) -> Objects {
        let uses = in_order(std::mem::take(&mut self.uses));
        let mut own: BTreeMap<usize, Vec<&DataUse>> = BTreeMap::new();
        for one in &uses {
            if let Some(row) = one.row {
                own.entry(row).or_default().push(one);
            }
        }
        let touches: f64 = uses.iter().map(|one| one.touches).sum();
        let level = |(index, (level, bytes)): (usize, &(u8, u64))| {
            let misses: f64 = uses.iter().map(|one| one.misses[index]).sum();
            let miss_ratio = if touches > 0.0 { misses / touches } else { 0.0 };
            Level { level: *level, bytes: *bytes, miss_ratio }
        };
        let levels: Vec<Level> = self.levels.iter().enumerate().map(level).collect();
        let is_enough = |(index, level): (usize, &Level)| {
            level.miss_ratio >= ENOUGH_MISSES
                && alike(uses.iter().map(|one| one.misses[index])) >= ENOUGH_USES
        };
        let ranked_by = levels.iter().enumerate().rposition(is_enough);

        let mut rows: Vec<Option<Row>> = vec![None; self.rows.len()];
        for (row, own) in &own {
            if let Some(place) = rows.get_mut(*row) {
                *place = Some(self.row(*row, own));
            }
        }
        let key = |one: &DataUse| one.row;
        let accesses = self.by(uses.iter(), key, |one| one.accesses);
        let cpu = self.by(uses.iter(), key, |one| one.cpu_ns);
        let misses: Vec<_> =
            (0..levels.len()).map(|level| self.by(uses.iter(), key, |one| one.misses[level])).collect();
        for (row, share) in accesses {
            if let Some(Some(row)) = rows.get_mut(row) {
                row.access_share = share;
            }
        }
        for (row, share) in cpu {
            if let Some(Some(row)) = rows.get_mut(row) {
                row.cpu_share = share;
            }
        }
        for shares in &misses {
            for (index, row) in rows.iter_mut().enumerate() {
                if let Some(row) = row {
                    row.miss_share.push(shares.get(&index).copied().unwrap_or_default());
                }
            }
        }
        self.lines(&uses, &mut rows);
        let conflicts = match ranked_by {
            Some(level) => conflicts::find(&uses, self.rows, level),
            None => Vec::new(),
        };
        let known = |one: &DataUse| {
            let row = one.row.and_then(|row| rows.get(row)).and_then(Option::as_ref);
            Some(row.is_none_or(|row| is_unknown(self.profile, row)))
        };
        let unknown = self.by(uses.iter(), known, |one| one.accesses);
        let unknown = unknown.get(&true).copied().unwrap_or_default();

        let mut rows: Vec<Row> = rows.into_iter().flatten().collect();
        for row in &mut rows {
            let records: std::collections::BTreeSet<RecordId> =
                row.fields.iter().filter_map(|field| field.record).collect();
            row.layouts =
                records.into_iter().filter_map(|id| layout::of(self.profile, id, &row.fields)).collect();
        }
        let n = uses.iter().filter(|one| one.accesses > 0.0).count() as u64;
        let mut found = Objects { levels, ranked_by, rows, unknown, conflicts, stacks: stacks(&uses), n };
        found.sort();
        found
    }
}

/// Misses by a line of code.
#[derive(Default)]
struct OfLine {
    misses: [f64; LEVELS],
    n: u64,
    /// Samples of the sums: uses of a sample are alike.
    samples: Distinct,
}

impl OfLine {
    /// Takes the next use, in the order of samples.
    fn add(&mut self, sample: u32, misses: &[f64; LEVELS]) {
        self.misses.iter_mut().zip(misses).for_each(|(sum, by)| *sum += by);
        self.n += 1;
        self.samples.add(sample);
    }
}

#[cfg(test)]
pub(in crate::objects) mod tests;
