//! No more misses than lines: first touches in windows bound the misses of a line of code.
//!
//! An access that misses in a cache of 32 KiB or more touches a line left alone for [`Burst::GAP`]
//! accesses at least, because fewer accesses cannot touch as many lines as the cache has. Windows
//! show such *first touches* (`Load`): each stands for `stands_for` first touches per access of the
//! thread. With w the accesses represented by a sample, a cell (an object at a line of code) has
//!
//! f = Σ w · stands_for first touches and a = Σ w / uses of the sample accesses: f / a
//! is the cell's lines per access: 1/8 for a sweep over doubles, 1 for a walk by lines.
//!
//! Misses by cell come from few reuses seen by watches, each standing for many. A single
//! watch may then give a sweep more misses than lines. Misses of a cell are limited to a
//! · (f/a + z²/2n) / (1 + z²/n), the centre of Wilson's interval for lines per access at
//! the effective number n of the cell's uses (Wilson 1927, JASA 22, p. 209), the upper
//! end of the misses' interval to the upper end of Wilson's. A cell without a use in N
//! has at most z²/2N of the accesses by the formula, each with one line.
//!
//! The excess over the bound goes to cells of the object in proportion to remaining room: an
//! object's misses are better known than the division among lines of code. Excess beyond the
//! room of the object's cells is no miss: at the object, at the level and in every share.
//!
//! Sources of error: chance in f and a, allowed for by n as if uses were
//! independent; kernel code, hidden from windows; smaller caches, left unbounded.

use std::collections::BTreeMap;

use locality_estimate::access_rates::Rates;
use locality_estimate::calling_context::{Contexts, PlaceId};
use locality_estimate::interval_estimate::{Estimate, effective_size, wilson};
use locality_model::{Accessed, Burst, LoadId, Profile};

use super::{DataUse, LINE, Locations, Objects, Row};

/// Two-sided 95 % of the normal distribution.
const Z: f64 = 1.959_964;
/// Smallest cache with only first touches as misses: two lines for each access of a gap.
pub const SMALLEST: u64 = Burst::GAP * 2 * LINE;

/// An object's row at a line of code.
type Cell = (usize, PlaceId);

/// Most misses of a cell: as a best guess, and at the upper end of an interval.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Most {
    value: f64,
    high: f64,
}

/// First touches for each touch of a line: Σx / Σt over the samples with windows,
/// with x the first touches and t the touches of lines represented by a sample.
/// No greater share of touches misses in a cache of [`SMALLEST`] bytes or more.
///
/// The variance by linearisation is C/(C−1) · Σ(x − pt)² / (Σt)² over C samples (Cochran 1977,
/// Sampling Techniques, §2.11); the upper end allows for phases without a sample, as Wilson's
/// interval of none out of C. `None` without first touches in windows, or with too few windows.
pub fn share(profile: &Profile, rates: &Rates) -> Option<Estimate> {
    let here = |sample: u32| {
        let period = profile.samples.get(sample as usize).map_or(0, |sample| sample.period_ns);
        rates.at(sample as usize).value * period as f64
    };
    let mut samples: BTreeMap<u32, [f64; 2]> = BTreeMap::new();
    for window in profile.windows.iter().filter(|window| window.accesses > 0) {
        let lines = window.touches.iter().find(|(bytes, _)| u64::from(*bytes) == LINE);
        let per_access = lines.map_or(1.0, |(_, touches)| *touches as f64 / window.accesses as f64);
        samples.entry(window.sample.0).or_default()[1] += here(window.sample.0) * per_access;
    }
    for load in &profile.loads {
        let weight = here(load.sample.0) * load.stands_for;
        if let Some([firsts, _]) =
            samples.get_mut(&load.sample.0).filter(|_| weight > 0.0 && weight.is_finite())
        {
            *firsts += weight;
        }
    }
    let sum = |of: &dyn Fn(&[f64; 2]) -> f64| samples.values().map(of).sum::<f64>();
    let (whole, n) = (sum(&|[_, touches]| *touches), samples.len() as f64);
    if n < 2.0 || whole <= 0.0 || profile.loads.is_empty() {
        return None;
    }
    let value = sum(&|[firsts, _]| *firsts) / whole;
    let variance = n / (n - 1.0) * sum(&|[x, t]| (x - value * t).powi(2)) / (whole * whole);
    let half = Z * variance.sqrt();
    let high = (value + half).max(wilson(0.0, n).1);
    Some(Estimate { value, low: (value - half).max(0.0), high, n: samples.len() as u64 })
}

/// The bounds of cells.
#[derive(Debug, Clone, Default)]
pub(super) struct FirstTouches {
    most: BTreeMap<Cell, Most>,
    /// Bound of a cell without uses.
    unused: Option<Most>,
    /// Touches of lines, in the unit of misses.
    touches: f64,
}

impl FirstTouches {
    /// Sums up a profile's first touches and uses.
    pub(super) fn of(
        profile: &Profile,
        contexts: &Contexts,
        rates: &Rates,
        locations: &Locations,
        uses: &[DataUse],
    ) -> Self {
        let here = |sample: u32| {
            let period = profile.samples.get(sample as usize).map_or(0, |sample| sample.period_ns);
            rates.at(sample as usize).value * period as f64
        };
        let mut firsts: BTreeMap<Cell, f64> = BTreeMap::new();
        let (mut all, mut found) = (0.0, 0.0);
        for (id, load) in (0..).map(LoadId).zip(&profile.loads) {
            let weight = here(load.sample.0) * load.stands_for;
            if !(weight > 0.0 && weight.is_finite()) {
                continue;
            }
            all += weight;
            let at = locations.of_access(Accessed::Load(id));
            let context = contexts.of(load.stack);
            if let Some((at, context)) = at.zip(context) {
                found += weight;
                *firsts.entry((at.row, contexts.place_of(context))).or_default() += weight;
            }
        }
        let mut accesses: BTreeMap<Cell, Vec<f64>> = BTreeMap::new();
        for one in uses.iter().filter(|one| one.accesses > 0.0) {
            if let Some(row) = one.row {
                accesses.entry((row, one.place)).or_default().push(one.accesses);
            }
        }
        let sum = |of: fn(&DataUse) -> f64| uses.iter().map(of).sum::<f64>();
        let located = |one: &DataUse| if one.row.is_some() { one.accesses } else { 0.0 };
        let (whole, known) = (sum(|one| one.accesses), sum(located));
        if found <= 0.0 || known <= 0.0 {
            return Self::default();
        }
        // With objects for fewer first touches than uses, the rest is taken as typical.
        let missing = ((known / whole) / (found / all)).max(1.0);
        let bound = |(cell, uses): (&Cell, &Vec<f64>)| {
            let first = firsts.get(cell).copied().unwrap_or(0.0) * missing;
            (*cell, Most::of(first, uses.iter().sum(), effective_size(uses.iter().copied())))
        };
        let most = accesses.iter().map(bound).collect();
        let n = effective_size(uses.iter().map(|one| one.accesses).filter(|accesses| *accesses > 0.0));
        let none = Most { value: whole * Z * Z / 2.0 / (n + Z * Z), high: whole * wilson(0.0, n).1 };
        Self { most, unused: Some(none), touches: sum(|one| one.touches) }
    }

    fn most(&self, cell: Cell) -> Most {
        self.most.get(&cell).copied().or(self.unused).unwrap_or(Most { value: f64::MAX, high: f64::MAX })
    }

    /// Holds the misses of each line of code to the lines
    /// touched. `row_of` gives a row's number in the cells.
    pub(super) fn hold(&self, found: &mut Objects, row_of: impl Fn(&Row) -> Option<usize>) {
        if self.unused.is_none() {
            return;
        }
        let mut changed = false;
        for level in 0..found.levels.len() {
            let Some(known) = found.levels.get_mut(level).filter(|level| level.bytes >= SMALLEST) else {
                continue;
            };
            let misses = known.miss_ratio * self.touches;
            if misses <= 0.0 {
                continue;
            }
            let rows: Vec<Held> =
                found.rows.iter().map(|row| self.held(row, row_of(row), level, misses)).collect();
            if rows.iter().all(|row| row.lines.is_empty()) {
                continue;
            }
            changed = true;
            let rest = 1.0 - rows.iter().map(|row| row.dropped).sum::<f64>();
            let rest = rest.clamp(f64::MIN_POSITIVE, 1.0);
            known.miss_ratio *= rest;
            for (row, held) in found.rows.iter_mut().zip(rows) {
                held.apply(row, level, rest);
            }
        }
        if changed {
            found.sort();
        }
    }

    /// A row's misses after the bound, in shares of the level's misses.
    fn held(&self, row: &Row, number: Option<usize>, level: usize, misses: f64) -> Held {
        let share =
            |n: usize| row.lines.get(n).and_then(|line| line.miss_share.get(level)).map_or(0.0, |s| s.value);
        let Some(number) = number else { return Held::default() };
        let most: Vec<Most> = row
            .lines
            .iter()
            .map(|line| self.most((number, line.place)))
            .map(|most| Most { value: most.value / misses, high: most.high / misses })
            .collect();
        if most.iter().enumerate().all(|(n, most)| share(n) <= most.value) {
            return Held::default();
        }
        let least: Vec<f64> = most.iter().enumerate().map(|(n, most)| share(n).min(most.value)).collect();
        let over: f64 = least.iter().enumerate().map(|(n, least)| share(n) - least).sum();
        let room: f64 = most.iter().zip(&least).map(|(most, least)| most.value - least).sum();
        let part = if room > 0.0 { (over / room).min(1.0) } else { 0.0 };
        let lines =
            most.iter().zip(least).map(|(most, least)| (least + (most.value - least) * part, most.high));
        Held { lines: lines.collect(), dropped: (over - room).max(0.0) }
    }
}

impl Most {
    /// Bound of a cell with `accesses` accesses, `firsts`
    /// first touches among the accesses, and `n` uses.
    fn of(firsts: f64, accesses: f64, n: f64) -> Self {
        let per_access = firsts / accesses;
        if n <= 0.0 || !per_access.is_finite() || per_access >= 1.0 {
            // Operands across lines touch more than a line per access.
            let most = firsts.max(accesses);
            return Self { value: most, high: most * (1.0 + Z / n.max(1.0).sqrt()) };
        }
        let centre = (per_access + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
        Self { value: accesses * centre, high: accesses * wilson(per_access, n).1.max(centre) }
    }
}

/// New values of a row's lines of code, in shares of a level's misses.
#[derive(Debug, Default)]
struct Held {
    /// For each line: share and bound; empty without a change.
    lines: Vec<(f64, f64)>,
    /// Share without room in a line.
    dropped: f64,
}

impl Held {
    /// Changes the row, with a share `rest` of the misses left.
    fn apply(self, row: &mut Row, level: usize, rest: f64) {
        let own = row.miss_share.get(level).map_or(0.0, |share| share.value);
        let part = if own > 0.0 { ((own - self.dropped) / own).max(0.0) } else { 1.0 };
        let scaled = |share: f64| (share / rest).min(1.0);
        if let Some(share) = row.miss_share.get_mut(level) {
            let [value, low, high] = [share.value, share.low, share.high].map(|share| scaled(share * part));
            *share = Estimate { value, low, high, ..*share };
        }
        if let Some(ratio) = row.miss_ratio.get_mut(level) {
            *ratio *= part;
        }
        for (n, line) in row.lines.iter_mut().enumerate() {
            let Some(share) = line.miss_share.get_mut(level) else { continue };
            let (value, most) = self.lines.get(n).copied().unwrap_or((share.value, f64::MAX));
            let value = scaled(value);
            let high = scaled(share.high).min(scaled(most)).max(value);
            *share = Estimate { value, low: scaled(share.low).min(value), high, ..*share };
        }
    }
}

#[cfg(test)]
mod tests;
