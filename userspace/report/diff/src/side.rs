//! From a report to the compared quantities, for the whole run and for parts of the run.
//!
//! An access is a touch of a line of 64 bytes, as in the report's verdict. Misses of an object
//! are its share of all misses times the run's misses; misses of a line of code are the share
//! of the lines loaded times the run's misses. A miss ratio of a live report has the interval
//! from sampling alone (`ci95_sampling`): the conversion of distances errs alike on both sides.

use std::collections::BTreeMap;

use locality_report::schema::{
    Interval, Number, Report,
    cache_use::LevelUse,
    place::Path,
    reuse::{Point, Reuse},
    run::Mode,
};

use crate::interval::Value;
use crate::quantity::{At, Part, Quantity};

/// Factor by which the footprint of a trace is known: walks over 32 and 71 MiB had estimates of 42 to 76 and
/// of 58 MiB, in other directions on both sides of a comparison.
const FOOTPRINT_DOUBT: f64 = 2.0;
/// Sizes in each report, whatever the machine.
const FIXED: [(u64, &str); 3] = [(32 << 10, "32K"), (1 << 20, "1M"), (32 << 20, "32M")];
/// Remainder of 0 after rounding.
const ROUNDING: f64 = 1e-9;
/// Bytes of a line.
const LINE: f64 = 64.0;

/// The quantities of a part, or of the whole run.
pub type Values = BTreeMap<Quantity, Value>;

/// Compared quantities of a report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Side {
    /// Of the whole run.
    pub run: Values,
    /// Quantities of parts.
    pub parts: BTreeMap<Part, Values>,
}

impl Side {
    /// Reads a report with all rows. Far pairs count with their far reuses (`far_weights`), or with all.
    pub fn of(report: &Report, far_weights: bool) -> Self {
        let mut side = Self::default();
        let lines = report.reuse.get("64");
        let levels = Levels::of(report);
        side.whole(report, lines, &levels);
        side.objects(report, &levels);
        side.code(report, &levels);
        side.pairs(report, far_weights);
        side
    }

    fn add(&mut self, part: Part, quantity: Quantity, value: Value) {
        if !value.value.is_finite() {
            return;
        }
        let values = self.parts.entry(part).or_default();
        let sum = values.get(&quantity).map_or(value, |before| before.plus(value));
        values.insert(quantity, sum);
    }

    fn whole(&mut self, report: &Report, lines: Option<&Reuse>, levels: &Levels) {
        for (name, ratio) in &levels.ratios {
            self.run.insert(Quantity::Misses(name.clone()), ratio.times(1000.0));
        }
        if let Some(ratio) = levels.ratio("LLC") {
            self.run.insert(Quantity::Memory, ratio.times(LINE));
        }
        for (size, name) in FIXED {
            let point =
                lines.and_then(|lines| lines.miss_ratio_curve.as_ref()).and_then(|curve| at(curve, size));
            if let Some(ratio) = point.and_then(ratio) {
                self.run.insert(Quantity::Misses(name.to_owned()), ratio.times(1000.0));
            }
        }
        for level in report.cache_use.iter().flat_map(|cache_use| &cache_use.levels) {
            let name = common_name(&level.level);
            let lost = value(level.lost_share, level.lost_share_ci95);
            if let (Some(ratio), Some(lost)) = (levels.ratio(name), lost) {
                self.run.insert(Quantity::Wasted(name.to_owned()), ratio.times(LINE).product(lost));
            }
        }
        let footprint = lines.and_then(|lines| value(lines.footprint_bytes?, lines.footprint_bytes_ci95));
        if let Some(mut footprint) = footprint.filter(|footprint| footprint.value > 0.0) {
            if lines.is_some_and(|lines| lines.footprint_bytes_ci95.is_some()) {
                footprint.low = footprint.low.min(footprint.value / FOOTPRINT_DOUBT);
                footprint.high = footprint.high.max(footprint.value * FOOTPRINT_DOUBT);
            }
            self.run.insert(Quantity::Footprint, footprint);
        }
    }

    fn objects(&mut self, report: &Report, levels: &Levels) {
        for object in report.objects.iter().flatten().filter(|object| object.kind != "unknown") {
            let part = Part::Object(object.name.clone(), object.type_name.clone().unwrap_or_default());
            for (name, ratio) in &levels.ratios {
                let share = object.miss_share.get(name).copied();
                let share = share.and_then(|share| value(share, object.miss_share_ci95.get(name).copied()));
                if let Some(share) = share {
                    let misses = ratio.times(1000.0).product(share);
                    self.add(part.clone(), Quantity::Misses(name.clone()), misses);
                }
            }
        }
    }

    fn code(&mut self, report: &Report, levels: &Levels) {
        let Some(cache_use) = &report.cache_use else { return };
        for line in &cache_use.by_loading_line {
            let name = common_name(&line.level);
            let share = value(line.traffic_share, line.traffic_share_ci95);
            if let (Some(ratio), Some(share)) = (levels.ratio(name), share) {
                let at = place(line.function.as_ref(), line.file.as_ref(), line.line);
                let misses = ratio.times(1000.0).product(share);
                self.add(Part::Line(at), Quantity::Misses(name.to_owned()), misses);
            }
        }
        for function in cache_use.by_function.iter().filter(|function| function.file.is_some()) {
            let name = common_name(&function.level);
            let level = cache_use.levels.iter().find(|level| level.level == function.level);
            let whole = level.and_then(|LevelUse { lines_loaded, .. }| lines_loaded.finite());
            let ends = function.lines_loaded_ci95.as_ref().map(|both| both.own);
            let own = value(function.lines_loaded.own, ends);
            if let (Some(ratio), Some(own), Some(whole)) =
                (levels.ratio(name), own, whole.filter(|whole| *whole > 0.0))
            {
                let at = place(function.function.as_ref(), function.file.as_ref(), None);
                let misses = ratio.times(1000.0).product(own.times(1.0 / whole));
                if misses.value > 0.0 {
                    self.add(Part::Function(at), Quantity::Misses(name.to_owned()), misses);
                }
            }
        }
    }

    fn pairs(&mut self, report: &Report, far_weights: bool) {
        for pair in report.pairs.iter().filter(|pair| pair.far == Some(true)) {
            let (weight, ci95) = match pair.far_weight.filter(|_| far_weights) {
                Some(weight) => (weight, pair.far_weight_ci95),
                None => (pair.weight, pair.weight_ci95),
            };
            let Some(weight) = value(weight, ci95) else { continue };
            let part = Part::Pair(end(&pair.used), end(&pair.reuse));
            self.add(part, Quantity::Reuses, Value { n: Some(pair.n), ..weight }.times(1000.0));
        }
    }
}

/// Miss ratios at the levels of the machine, or of the simulated caches.
struct Levels {
    ratios: BTreeMap<String, Value>,
}

impl Levels {
    fn of(report: &Report) -> Self {
        let lines = report.reuse.get("64");
        let points = lines.and_then(|lines| lines.at_caches.as_ref()).map_or(&[][..], Vec::as_slice);
        let last = points.iter().filter_map(|point| point.level).max();
        let named = points.iter().filter_map(|point| {
            let level = point.level?;
            let name = if Some(level) == last { "LLC".to_owned() } else { format!("L{level}") };
            Some((name, ratio(point)?))
        });
        let mut ratios: BTreeMap<String, Value> = named.collect();
        let touches = lines.and_then(|lines| lines.touches).and_then(Number::finite);
        let simulated = report.run.mode == Mode::Exact;
        for level in report.cache_use.iter().flat_map(|cache_use| &cache_use.levels).filter(|_| simulated) {
            let loaded = level.lines_loaded.finite();
            if let (Some(touches), Some(loaded)) = (touches.filter(|touches| *touches > 0.0), loaded) {
                ratios.insert(common_name(&level.level).to_owned(), Value::exact(loaded / touches));
            }
        }
        Self { ratios }
    }

    fn ratio(&self, name: &str) -> Option<Value> {
        self.ratios.get(name).copied()
    }
}

/// The single name of the last level in a comparison.
fn common_name(level: &str) -> &str {
    if level == "LL" { "LLC" } else { level }
}

fn at(curve: &[Point], bytes: u64) -> Option<&Point> {
    curve.iter().find(|point| point.bytes.whole() == Some(bytes))
}

fn ratio(point: &Point) -> Option<Value> {
    value(point.ratio, point.ci95_sampling.or(point.ci95))
}

/// A number with an interval; without an interval the number is counted.
fn value(of: Number, ci95: Option<Interval>) -> Option<Value> {
    // Sums of cancelling terms leave a remainder.
    let value = of.finite().map(|value| if value.abs() < ROUNDING { 0.0 } else { value })?;
    let Some([low, high]) = ci95 else { return Some(Value::exact(value)) };
    let (low, high) = (low.finite()?, high.finite()?);
    Some(Value { value, low: low.min(value), high: high.max(value), n: None })
}

fn place(function: Option<&String>, file: Option<&String>, line: Option<u32>) -> At {
    At {
        file: file.cloned().unwrap_or_default(),
        function: function.cloned().unwrap_or_default(),
        line: line.unwrap_or(0),
    }
}

fn end(path: &Path) -> At {
    match &path.place {
        Some(of) => place(of.function.as_ref(), of.file.as_ref(), of.line),
        None => {
            let frame = path.frames.iter().flatten().next();
            frame.map_or_else(At::default, |frame| {
                place(frame.function.as_ref(), frame.file.as_ref(), frame.line)
            })
        }
    }
}
