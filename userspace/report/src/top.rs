//! Tables of a report cut to the rows that were asked for (`--top`), and how many rows were left out.

use std::collections::BTreeMap;

use super::schema::{
    Report,
    cache_use::CacheUse,
    object_list::{Against, ObjectList},
    objects::ObjectsSummary,
};

/// Leaves `top` rows of each table of a report, of tables by cache level so many for each level.
/// `rows_left_out {table: rows}` counts the others.
pub fn cut(report: &mut Report, top: usize) {
    let mut cut = Cut { top, left_out: BTreeMap::new() };
    cut.rows("pairs", &mut report.pairs);
    report.objects.iter_mut().for_each(|rows| cut.rows("objects", rows));
    report.objects_summary.iter_mut().for_each(|summary| cut.summary(summary));
    report.not_reused.iter_mut().for_each(|table| cut.rows("not_reused.by_line", &mut table.by_line));
    if let Some(hot) = &mut report.hot {
        cut.rows("hot.by_function", &mut hot.by_function);
        cut.rows("hot.by_line", &mut hot.by_line);
    }
    report.cache_use.iter_mut().for_each(|cache_use| cut.cache_use(cache_use));
    report.rows_left_out = cut.left_out();
}

/// The same of a list of data objects.
pub fn cut_objects(list: &mut ObjectList, top: usize) {
    let mut cut = Cut { top, left_out: BTreeMap::new() };
    cut.rows("objects", &mut list.objects);
    cut.summary(&mut list.objects_summary);
    if let Some(Against { rows, variables, .. }) = &mut list.against {
        cut.rows("against.rows", rows);
        cut.rows("against.variables", variables);
    }
    list.rows_left_out = cut.left_out();
}

struct Cut {
    top: usize,
    left_out: BTreeMap<String, u64>,
}

impl Cut {
    /// A table, heaviest row first.
    fn rows<T>(&mut self, table: &str, rows: &mut Vec<T>) {
        let before = rows.len();
        rows.truncate(self.top);
        self.count(table, before - rows.len());
    }

    /// A table whose rows are each of a level.
    fn by_level<T>(&mut self, table: &str, rows: &mut Vec<T>, level: impl Fn(&T) -> &str) {
        let before = rows.len();
        let mut of_level: BTreeMap<String, usize> = BTreeMap::new();
        rows.retain(|row| {
            let n = of_level.entry(level(row).to_owned()).or_default();
            *n += 1;
            *n <= self.top
        });
        self.count(table, before - rows.len());
    }

    fn summary(&mut self, summary: &mut ObjectsSummary) {
        self.rows("objects_summary.conflicts", &mut summary.conflicts);
    }

    fn cache_use(&mut self, cache_use: &mut CacheUse) {
        self.by_level("cache_use.by_loading_line", &mut cache_use.by_loading_line, |row| &row.level);
        self.by_level("cache_use.by_function", &mut cache_use.by_function, |row| &row.level);
        if let Some(rows) = &mut cache_use.by_object {
            self.by_level("cache_use.by_object", rows, |row| &row.level);
        }
    }

    fn count(&mut self, table: &str, left_out: usize) {
        if left_out > 0 {
            self.left_out.insert(table.to_owned(), left_out as u64);
        }
    }

    fn left_out(self) -> Option<BTreeMap<String, u64>> {
        Some(self.left_out).filter(|left_out| !left_out.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{
        cache_use::FunctionLoss,
        hot::{Hot, HotLine},
        objects::Object,
        pairs::Pair,
    };

    #[test]
    fn each_table_has_the_rows_asked_for_and_counts_the_others() {
        let row = |level: &str, n: u64| FunctionLoss {
            level: level.to_owned(),
            n: Some(n),
            ..FunctionLoss::default()
        };
        let pair = |n: u64| Pair { n, ..Pair::default() };
        let cache_use = CacheUse {
            by_function: vec![row("L1", 1), row("L1", 2), row("L1", 3), row("L2", 1), row("L2", 2)],
            ..CacheUse::default()
        };
        let mut report = Report {
            pairs: [1, 2, 3, 4].map(pair).to_vec(),
            objects: Some(vec![Object::default()]),
            hot: Some(Hot { by_line: vec![HotLine::default(); 3], ..Hot::default() }),
            cache_use: Some(cache_use),
            ..Report::default()
        };
        cut(&mut report, 4);
        assert_eq!((report.pairs.len(), &report.rows_left_out), (4, &None));
        cut(&mut report, 2);
        assert_eq!(report.pairs.iter().map(|pair| pair.n).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(report.objects.as_ref().map(Vec::len), Some(1));
        let levels = report.cache_use.unwrap().by_function;
        assert_eq!(levels.iter().filter_map(|row| row.n).collect::<Vec<_>>(), [1, 2, 1, 2]);
        let left_out = [("pairs", 2), ("hot.by_line", 1), ("cache_use.by_function", 1)];
        assert_eq!(report.rows_left_out, Some(left_out.map(|(table, rows)| (table.to_owned(), rows)).into()));
    }
}
