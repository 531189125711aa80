//! Call paths with costs in whole numbers, with the report's total as the sum.

use std::collections::HashMap;
use std::hash::Hash;

use crate::{Metric, Unfit};

/// A frame of a call path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function, or the module and address without a symbol.
    pub name: String,
    /// Source file; empty if unknown.
    pub file: String,
    /// Line in the file; 0 if unknown.
    pub line: u32,
    /// File of the code; empty without one.
    pub module: String,
    /// Address in the module; 0 if unknown.
    pub address: u64,
    /// Whether the compiler inlined the function into the next outer frame's.
    pub inlined: bool,
}

impl Frame {
    /// "function file:line".
    pub fn label(&self) -> String {
        match (self.file.is_empty(), self.line) {
            (true, _) => self.name.clone(),
            (false, 0) => format!("{} {}", self.name, self.file),
            (false, line) => format!("{} {}:{line}", self.name, self.file),
        }
    }
}

/// Further properties of a call path by name.
pub type Labels = Vec<(&'static str, String)>;

/// A call path and its labels.
type Key = (Vec<u32>, Labels);

/// A metric of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// The metric.
    pub metric: Metric,
    /// Unit, as pprof calls units: `count`, `bytes` or `nanoseconds`.
    pub unit: &'static str,
    /// Sum over all rows.
    pub total: u64,
}

/// A call path with its costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Frames as numbers among the table's, outermost first.
    pub path: Vec<u32>,
    /// Further properties: `object`, `thread`, and the place at the other end of a reuse.
    pub labels: Labels,
    /// Costs by column.
    pub values: Vec<u64>,
}

/// All call paths of a profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// Frames.
    pub frames: Vec<Frame>,
    /// Metrics.
    pub columns: Vec<Column>,
    /// Call paths, none twice with the same labels.
    pub rows: Vec<Row>,
}

impl Table {
    /// The column of a metric; of none, the first column that is not empty.
    ///
    /// # Errors
    /// A metric missing in the table or 0 in all rows; `lacking` gives the reason.
    pub fn choose(&self, metric: Option<&Metric>, lacking: &str) -> Result<usize, Unfit> {
        let has = |column: &Column| column.total > 0;
        let Some(metric) = metric else {
            let nothing =
                || Unfit(format!("nothing was measured that a call path could be weighed by: {lacking}"));
            return self.columns.iter().position(has).ok_or_else(nothing);
        };
        let found = self.columns.iter().position(|column| self.is(column, metric));
        let others: Vec<String> = self
            .columns
            .iter()
            .filter(|column| has(column))
            .map(|column| column.metric.to_string())
            .collect();
        match found {
            Some(at) if self.columns.get(at).is_some_and(has) => Ok(at),
            Some(_) => Err(Unfit(format!(
                "{metric} is 0 in this profile; it has {}",
                if others.is_empty() { "no other metric".to_owned() } else { others.join(", ") }
            ))),
            None if self.columns.iter().any(|column| same_kind(&column.metric, metric)) => {
                Err(Unfit(format!("this profile has no {metric}; it has {}", others.join(", "))))
            }
            None if others.is_empty() => Err(Unfit(format!("this profile has no {metric}: {lacking}"))),
            None => {
                Err(Unfit(format!("this profile has no {metric}, only {}: {lacking}", others.join(", "))))
            }
        }
    }

    /// Places of a call path, innermost first. A place has a frame with the inlined frames before it.
    pub fn places(&self, path: &[u32]) -> Vec<Vec<u32>> {
        let mut places = Vec::new();
        let mut open = Vec::new();
        for frame in path.iter().rev() {
            open.push(*frame);
            let goes_on = self.frames.get(*frame as usize).is_some_and(|frame| frame.inlined);
            if !goes_on {
                places.push(std::mem::take(&mut open));
            }
        }
        if !open.is_empty() {
            places.push(open);
        }
        places
    }

    /// Whether a column is meant by the user's metric: the last level has three names.
    fn is(&self, column: &Column, asked: &Metric) -> bool {
        let levels = self.columns.iter().filter(|column| matches!(column.metric, Metric::Misses(_))).count();
        let same = |own: &str, asked: &str| {
            own == asked || own == "LLC" && (asked == "LL" || asked == format!("L{levels}"))
        };
        match (&column.metric, asked) {
            (Metric::Misses(own), Metric::Misses(asked)) | (Metric::Wasted(own), Metric::Wasted(asked)) => {
                same(own, asked)
            }
            (own, asked) => own == asked,
        }
    }
}

/// Whether two metrics differ by the level at most.
fn same_kind(a: &Metric, b: &Metric) -> bool {
    std::mem::discriminant(a) == std::mem::discriminant(b)
}

/// Makes a table; costs with equal call path and labels are added up.
pub struct Builder<K> {
    table: Table,
    /// Numbers of frames by key.
    frames: HashMap<K, u32>,
    rows: HashMap<Key, Vec<f64>>,
    order: Vec<Key>,
    totals: Vec<Option<f64>>,
}

impl<K: Eq + Hash> Default for Builder<K> {
    fn default() -> Self {
        Self {
            table: Table::default(),
            frames: HashMap::new(),
            rows: HashMap::new(),
            order: Vec::new(),
            totals: Vec::new(),
        }
    }
}

impl<K: Eq + Hash> Builder<K> {
    /// A further column. With a given total, costs are scaled to add up to it.
    pub fn column(&mut self, metric: Metric, unit: &'static str, total: Option<f64>) -> usize {
        self.table.columns.push(Column { metric, unit, total: 0 });
        self.totals.push(total);
        self.table.columns.len() - 1
    }

    /// The number of a frame.
    pub fn frame(&mut self, key: K, frame: impl FnOnce() -> Frame) -> u32 {
        let next = self.table.frames.len() as u32;
        let number = *self.frames.entry(key).or_insert(next);
        if number == next {
            self.table.frames.push(frame());
        }
        number
    }

    /// Adds a cost. The path has its outermost frame first.
    pub fn add(&mut self, column: usize, path: Vec<u32>, labels: Labels, value: f64) {
        if !(value.is_finite() && value > 0.0) {
            return;
        }
        let key = (path, labels);
        if !self.rows.contains_key(&key) {
            self.order.push(key.clone());
        }
        let values = self.rows.entry(key).or_default();
        if values.len() <= column {
            values.resize(column + 1, 0.0);
        }
        if let Some(sum) = values.get_mut(column) {
            *sum += value;
        }
    }

    /// The table. Rounding preserves the rounded sum of each column.
    pub fn finish(self) -> Table {
        let Self { mut table, rows, order, totals, .. } = self;
        let columns = table.columns.len();
        let mut sums = vec![0.0; columns];
        for values in rows.values() {
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        let factors: Vec<f64> = (sums.iter().zip(&totals))
            .map(|(sum, total)| {
                total.filter(|total| *total > 0.0 && *sum > 0.0).map_or(1.0, |total| total / sum)
            })
            .collect();
        let mut so_far = vec![0.0_f64; columns];
        for key in order {
            let values = rows.get(&key).map_or(&[][..], Vec::as_slice);
            let whole = (so_far.iter_mut().zip(&factors).enumerate())
                .map(|(column, (so_far, factor))| {
                    let before = so_far.round();
                    *so_far += values.get(column).copied().unwrap_or(0.0) * factor;
                    (so_far.round() - before) as u64
                })
                .collect::<Vec<u64>>();
            if whole.iter().any(|value| *value > 0) {
                let (path, labels) = key;
                table.rows.push(Row { path, labels, values: whole });
            }
        }
        for (index, column) in table.columns.iter_mut().enumerate() {
            column.total = table.rows.iter().filter_map(|row| row.values.get(index)).sum();
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_keeps_the_sum_and_equal_paths_are_one() {
        let mut builder = Builder::default();
        let column = builder.column(Metric::Accesses, "count", None);
        for number in 0..10_u32 {
            let frame = builder.frame(number, || Frame { name: format!("f{number}"), ..Frame::default() });
            assert_eq!(builder.frame(number, || panic!("known")), frame);
            builder.add(column, vec![frame], Vec::new(), 0.2);
            builder.add(column, vec![frame], Vec::new(), 0.15);
        }
        let table = builder.finish();
        assert_eq!(table.columns[0].total, 4);
        assert_eq!(table.rows.iter().map(|row| row.values[0]).sum::<u64>(), 4);
        assert!(table.rows.len() == 4, "{:?}", table.rows);
    }

    #[test]
    fn totals_that_are_given_are_met() {
        let mut builder = Builder::default();
        let column = builder.column(Metric::Cpu, "nanoseconds", Some(1e9));
        let frame = builder.frame(1, Frame::default);
        builder.add(column, vec![frame], Vec::new(), 3.0);
        builder.add(column, Vec::new(), Vec::new(), 1.0);
        builder.add(column, Vec::new(), Vec::new(), f64::NAN);
        let table = builder.finish();
        assert_eq!(table.columns[0].total, 1_000_000_000);
        assert_eq!(table.rows[0].values, [750_000_000]);
    }

    #[test]
    fn levels_have_several_names_and_lacking_metrics_are_named() {
        let mut builder: Builder<u32> = Builder::default();
        for (level, value) in [("L1", 3.0), ("L2", 2.0), ("LLC", 0.0)] {
            let column = builder.column(Metric::Misses(level.to_owned()), "count", None);
            builder.add(column, Vec::new(), Vec::new(), value);
        }
        let table = builder.finish();
        let chosen = |metric: &str| table.choose(Some(&metric.parse().unwrap()), "because");
        assert_eq!((chosen("misses:l2"), table.choose(None, "because")), (Ok(1), Ok(0)));
        for name in ["misses:LLC", "misses:LL", "misses:L3"] {
            assert!(
                chosen(name).unwrap_err().0.contains("is 0 in this profile; it has misses:L1, misses:L2")
            );
        }
        assert!(chosen("cpu").unwrap_err().0.contains("no cpu, only misses:L1, misses:L2: because"));
        assert_eq!(
            chosen("misses:L9").unwrap_err().0,
            "this profile has no misses:L9; it has misses:L1, misses:L2"
        );
        assert!(Table::default().choose(None, "because").is_err());
    }
}
