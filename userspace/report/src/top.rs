//! Tables of a report cut to the rows that were asked for (`--top`), and how many rows were left out.

use std::collections::BTreeMap;

use super::schema::{
    Report,
    cache_use::CacheUse,
    object_list::{Against, ObjectList},
    objects::ObjectsSummary,
    pairs::Pair,
    tables::fold,
};

/// Default number of rows of each table.
pub const ROWS: usize = 100;

/// A report of `locality-report/2`: tables cut, call paths in tables.
pub fn tables(report: &mut Report, top: Option<usize>) {
    let with_far = top.is_none();
    let top = top.unwrap_or(ROWS);
    let pairs = far_too(&mut report.pairs, top);
    cut(report, top, with_far);
    let mut cut = Cut { top, left_out: report.rows_left_out.take().unwrap_or_default() };
    cut.count("pairs", pairs);
    if let Some(heap) = report.objects_summary.as_mut().and_then(|summary| summary.heap.as_mut()) {
        cut.rows("objects_summary.heap.sites", &mut heap.sites);
    }
    report.rows_left_out = cut.left_out();
    fold(report);
}

/// Leaves `top` pairs of an exact report: the half with the most reuses, then those that miss a cache of
/// 32 KiB most often, in the order in which they stand. Returns how many are left out.
fn far_too(pairs: &mut Vec<Pair>, top: usize) -> usize {
    let misses = |pair: &Pair| pair.misses.as_ref().and_then(|misses| misses.get("32768")).copied();
    let before = pairs.len();
    if before <= top || pairs.iter().any(|pair| misses(pair).is_none()) {
        return 0;
    }
    let heaviest = top.div_ceil(2);
    let mut rest: Vec<usize> = (heaviest..before).collect();
    rest.sort_by_key(|at| (std::cmp::Reverse(pairs.get(*at).and_then(misses)), *at));
    rest.truncate(top - heaviest);
    let mut at = 0..before;
    pairs.retain(|_| at.next().is_some_and(|at| at < heaviest || rest.contains(&at)));
    before - pairs.len()
}

/// Leaves `top` rows of each table of a report, of tables by cache level so many for each level.
/// `with_far`: of pairs also those with the field `far_weight` that are far.
/// `rows_left_out {table: rows}` counts the others.
pub fn cut(report: &mut Report, top: usize, with_far: bool) {
    let mut cut = Cut { top, left_out: report.rows_left_out.take().unwrap_or_default() };
    let (before, mut at) = (report.pairs.len(), 0..);
    let is_far = |pair: &Pair| with_far && pair.far == Some(true) && pair.far_weight.is_some();
    report.pairs.retain(|pair| at.next().is_some_and(|at| at < top) || is_far(pair));
    cut.count("pairs", before - report.pairs.len());
    report.branches.iter_mut().for_each(|rows| cut.rows("branches", rows));
    report.objects.iter_mut().for_each(|rows| cut.rows("objects", rows));
    report.objects_summary.iter_mut().for_each(|summary| cut.summary(summary));
    report.not_reused.iter_mut().for_each(|table| cut.rows("not_reused.by_line", &mut table.by_line));
    if let Some(hot) = &mut report.hot {
        cut.rows("hot.by_function", &mut hot.by_function);
        cut.rows("hot.by_line", &mut hot.by_line);
    }
    report.cache_use.iter_mut().for_each(|cache_use| cut.cache_use(cache_use));
    if let Some(tasks) = &mut report.tasks {
        cut.rows("tasks.communication", &mut tasks.communication);
        cut.rows("tasks.nodes", &mut tasks.nodes);
    }
    if let Some(found) = &mut report.self_parallelism {
        cut.rows("self_parallelism.regions", &mut found.regions);
    }
    report.sharing.iter_mut().for_each(|rows| cut.rows("sharing", rows));
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
            *self.left_out.entry(table.to_owned()).or_default() += left_out as u64;
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
        objects::{Heap, HeapSite, Object},
        tasks::{TaskNode, Tasks},
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
            tasks: Some(Tasks { nodes: vec![TaskNode::default(); 4], ..Tasks::default() }),
            cache_use: Some(cache_use),
            ..Report::default()
        };
        cut(&mut report, 4, true);
        assert_eq!((report.pairs.len(), &report.rows_left_out), (4, &None));
        cut(&mut report, 2, true);
        assert_eq!(report.pairs.iter().map(|pair| pair.n).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(report.objects.as_ref().map(Vec::len), Some(1));
        let levels = report.cache_use.unwrap().by_function;
        assert_eq!(levels.iter().filter_map(|row| row.n).collect::<Vec<_>>(), [1, 2, 1, 2]);
        let left_out = [("pairs", 2), ("hot.by_line", 1), ("tasks.nodes", 2), ("cache_use.by_function", 1)];
        assert_eq!(report.rows_left_out, Some(left_out.map(|(table, rows)| (table.to_owned(), rows)).into()));
    }

    #[test]
    fn tables_have_a_hundred_rows_where_nobody_asks() {
        let heap = Heap { sites: vec![HeapSite::default(); 103], ..Heap::default() };
        let mut report = Report {
            pairs: vec![Pair::default(); 120],
            objects_summary: Some(ObjectsSummary { heap: Some(heap), ..ObjectsSummary::default() }),
            ..Report::default()
        };
        tables(&mut report, None);
        assert_eq!((report.pairs.len(), report.stacks.as_ref().map(Vec::len)), (100, Some(1)));
        let left_out = [("pairs", 20), ("objects_summary.heap.sites", 3)];
        let left_out = left_out.map(|(table, rows)| (table.to_owned(), rows));
        assert_eq!(report.rows_left_out, Some(left_out.into()));
        // Rows that an earlier cut left out stay counted.
        cut(&mut report, 90, true);
        assert_eq!(report.rows_left_out.unwrap()["pairs"], 30);
    }

    #[test]
    fn far_pairs_stay_unless_rows_are_asked_for() {
        let pair = |n: u64| Pair { n, far: Some(n == 150), far_weight: Some(0.1.into()), ..Pair::default() };
        let left = |top: Option<usize>| {
            let mut report = Report { pairs: (1..=200).map(pair).collect(), ..Report::default() };
            tables(&mut report, top);
            let has_far = report.pairs.iter().any(|pair| pair.n == 150);
            (report.pairs.len(), has_far, report.rows_left_out.unwrap()["pairs"])
        };
        assert_eq!(left(None), (101, true, 99));
        assert_eq!(left(Some(2)), (2, false, 198));
    }

    #[test]
    fn pairs_that_miss_stand_among_the_most_frequent() {
        // Fewer reuses from pair to pair; every third misses, the later ones more often.
        let pair = |n: u64| {
            let misses = if n.is_multiple_of(3) { 12 - n } else { 0 };
            Pair { n, misses: Some([("32768".to_owned(), misses)].into()), ..Pair::default() }
        };
        let mut report = Report { pairs: (0..12).rev().map(pair).collect(), ..Report::default() };
        tables(&mut report, Some(5));
        assert_eq!(report.pairs.iter().map(|pair| pair.n).collect::<Vec<_>>(), [11, 10, 9, 3, 0]);
        assert_eq!(report.rows_left_out.unwrap()["pairs"], 7);
    }
}
