//! The default report: one screen with the run, the verdict, advice, places, and the precision.
//!
//! At most [`LINES`] lines at 100 columns, unless `--top` asks for rows. Printed from a report's
//! values alone, so a stored report prints as a live one. Every part may be missing: profiles of
//! earlier versions have no loops and no advice, those without windows no miss ratios; a line says
//! so.

mod advice;
mod ending;
mod groups;
mod lines;
pub(crate) mod names;
pub(in crate::text) mod numbers;
pub(in crate::text) mod tables;

use std::collections::BTreeMap;

use locality_units::print::{counted, duration};
use locality_units::wrap::wrap;

use super::Style;
use crate::json::verdict;
use crate::names::numbered_level;
use crate::schema::{
    Interval, Report,
    advice::{Grade, Verdict},
    cache_use::LevelUse,
    reuse::{Distance, Point, Reuse},
};

use lines::{Line, Paint};
use numbers::{Between, NARROW_SHARE, SHARE, large, percent, size};

/// Lines of a screen.
pub const LINES: usize = 60;
/// Columns: of a page that is no terminal's, and the least and the most of a terminal's.
pub const COLUMNS: usize = 100;
const LEAST_COLUMNS: usize = 72;
const MOST_COLUMNS: usize = 160;
/// Fewer columns leave little room for intervals, more leave room for types and objects.
const INTERVALS_FROM: usize = 80;
const TYPES_FROM: usize = 121;
/// Less that a cache loads in a second of CPU time is not said.
const LEAST_LOADED: f64 = 1e6;
/// Misses of a thousand touches that print as 0 are fewer.
const LEAST_PER_MILLE: f64 = 0.05;
/// A quantile of distances whose interval is wider, as a factor, is not said.
const MOST_SPREAD: f64 = 10.0;
/// Column of the text after a label.
const LABELLED: usize = 12;

/// What the reader has.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Columns of the terminal; `None` for [`COLUMNS`].
    pub columns: Option<usize>,
    /// ASCII only.
    pub ascii: bool,
    /// Colours or none.
    pub style: Style,
    /// Rows of each table; `None` for as many as fit on a screen.
    pub top: Option<usize>,
    /// The profile, quoted for a shell; `None` without one.
    pub file: Option<String>,
}

/// Rows of the parts of a page.
#[derive(Debug, Clone, Copy)]
struct Rows {
    /// Lines of evidence of an advice.
    evidence: usize,
    /// Lines of the obstacles.
    in_the_way: usize,
    groups: usize,
    objects: usize,
    /// Lines of code of the first object.
    code: usize,
    loops: usize,
    pairs: usize,
    notices: usize,
    /// Lines of a notice.
    of_notice: usize,
}

/// From many rows to few: the first that fits on the screen is printed.
const ROWS: [Rows; 6] = [
    Rows {
        evidence: 4,
        in_the_way: 2,
        groups: 5,
        objects: 5,
        code: 3,
        loops: 5,
        pairs: 4,
        notices: 3,
        of_notice: 3,
    },
    Rows {
        evidence: 3,
        in_the_way: 2,
        groups: 5,
        objects: 4,
        code: 3,
        loops: 5,
        pairs: 4,
        notices: 3,
        of_notice: 2,
    },
    Rows {
        evidence: 2,
        in_the_way: 1,
        groups: 4,
        objects: 4,
        code: 2,
        loops: 4,
        pairs: 3,
        notices: 3,
        of_notice: 2,
    },
    Rows {
        evidence: 2,
        in_the_way: 1,
        groups: 4,
        objects: 3,
        code: 2,
        loops: 3,
        pairs: 3,
        notices: 2,
        of_notice: 1,
    },
    Rows {
        evidence: 1,
        in_the_way: 1,
        groups: 3,
        objects: 3,
        code: 1,
        loops: 3,
        pairs: 2,
        notices: 2,
        of_notice: 1,
    },
    Rows {
        evidence: 1,
        in_the_way: 1,
        groups: 3,
        objects: 2,
        code: 0,
        loops: 2,
        pairs: 1,
        notices: 1,
        of_notice: 1,
    },
];

/// Prints a report on a screen.
pub fn print(report: &Report, options: &Options) -> String {
    let columns = options.columns.unwrap_or(COLUMNS).clamp(LEAST_COLUMNS, MOST_COLUMNS);
    let page = |rows: Rows| Screen { report, options, columns, rows }.page();
    let lines = match options.top {
        Some(top) => {
            page(Rows { groups: top, objects: top, code: top.min(3), loops: top, pairs: top, ..ROWS[0] })
        }
        None => {
            let mut pages = ROWS.iter().map(|rows| page(*rows));
            let mut last = pages.next().unwrap_or_default();
            while last.len() > LINES {
                match pages.next() {
                    Some(shorter) => last = shorter,
                    None => break,
                }
            }
            last
        }
    };
    let printed = lines.iter().map(|line| line.print(columns, options.ascii, options.style) + "\n");
    printed.collect()
}

struct Screen<'a> {
    report: &'a Report,
    options: &'a Options,
    columns: usize,
    rows: Rows,
}

impl Screen<'_> {
    fn page(&self) -> Vec<Line> {
        let middle = match &self.report.empty {
            Some(_) => Vec::new(),
            None => {
                vec![self.groups(), self.advice(), self.objects(), self.places(), self.pairs(), self.curves()]
            }
        };
        let blocks = [self.headline(), self.verdict()].into_iter().chain(middle).chain([self.ending()]);
        let mut page: Vec<Line> = Vec::new();
        for block in blocks.filter(|block| !block.is_empty()) {
            if !page.is_empty() {
                page.push(Line::default());
            }
            page.extend(block);
        }
        page
    }

    /// Whether there is little room for intervals.
    fn is_narrow(&self) -> bool {
        self.columns < INTERVALS_FROM
    }

    /// Whether there is room for types and objects.
    fn is_wide(&self) -> bool {
        self.columns >= TYPES_FROM
    }

    /// A share with its interval, or with half of the width where that says as much.
    fn share(&self, of: Option<Between>) -> String {
        of.map_or(String::new(), |of| of.share(self.is_narrow()))
    }

    /// Columns of a share.
    fn share_columns(&self) -> usize {
        if self.is_narrow() { NARROW_SHARE } else { SHARE }
    }

    fn heading(text: impl Into<String>) -> Line {
        Line::painted(Paint::Bold, text)
    }

    /// A label and text, continued below the text.
    fn labelled(&self, label: &str, text: &str, paint: Paint) -> Vec<Line> {
        let wrapped = wrap(text, self.columns - LABELLED).into_iter().enumerate();
        let line = |(index, text): (usize, String)| match index {
            0 => Line::starting(paint, label.chars().count(), format!("{label:<LABELLED$}{text}")),
            _ => Line::plain(format!("{:<LABELLED$}{text}", "")),
        };
        wrapped.map(line).collect()
    }

    /// Pieces in as few lines as they need, none of them broken.
    fn pieces(&self, pieces: &[String]) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for piece in pieces {
            match lines.last_mut() {
                Some(line) if line.chars().count() + 3 + piece.chars().count() <= self.columns => {
                    line.push_str(" · ");
                    line.push_str(piece);
                }
                _ => lines.push(piece.clone()),
            }
        }
        lines
    }

    fn headline(&self) -> Vec<Line> {
        let run = &self.report.run;
        let mut words = run.command.split(' ');
        let program = names::base(words.next().unwrap_or_default()).to_owned();
        let command = words.fold(program, |command, word| format!("{command} {word}"));
        let mut pieces = vec![names::cut(&command, self.columns / 2)];
        let (shown, more) = run.pids.split_at(run.pids.len().min(3));
        let shown: Vec<String> = shown.iter().map(u32::to_string).collect();
        pieces.push(match (run.pids.len(), more.len()) {
            (0, _) => String::new(),
            (1, _) => format!("pid {}", shown.join("")),
            (_, 0) => format!("pids {}", shown.join(", ")),
            (_, more) => format!("pids {} and {more} more", shown.join(", ")),
        });
        let seconds = |of: crate::schema::Number| of.finite().map(|seconds| duration(seconds * 1e9));
        let threads = match &self.report.threads {
            Some(crate::schema::threads::Threads::Summary(threads)) => Some(threads.seen),
            Some(crate::schema::threads::Threads::List(threads)) => Some(threads.len() as u64),
            None => None,
        };
        let threads = threads.map_or(String::new(), |n| format!(" in {}", counted(n, "thread")));
        let times = [
            seconds(run.wall_s).map(|wall| format!("{wall} traced")),
            seconds(run.cpu_s).map(|cpu| format!("{cpu} of CPU time{threads}")),
        ];
        pieces.push(times.into_iter().flatten().collect::<Vec<_>>().join(", "));
        let caches = run.host.caches.iter().map(|cache| format!("L{} {}", cache.level, size(cache.bytes)));
        let machine: Vec<String> = [run.host.cpu.clone()].into_iter().chain(caches).collect();
        pieces.push(machine.join(" ").trim().to_owned());
        pieces.retain(|piece| !piece.is_empty());
        self.pieces(&pieces).into_iter().map(|line| Line::painted(Paint::Bold, line)).collect()
    }

    fn verdict(&self) -> Vec<Line> {
        if let Some(why) = &self.report.empty {
            return wrap(why, self.columns)
                .into_iter()
                .map(|line| Line::painted(Paint::Warning, line))
                .collect();
        }
        let mut sentences = Vec::new();
        let (title, paint) = match &self.report.verdict {
            Some(verdict) => {
                sentences.extend(self.misses(verdict));
                sentences.extend(self.wait(verdict));
                title(verdict)
            }
            None => {
                sentences.push(self.why_no_verdict().to_owned());
                ("NO VERDICT".to_owned(), Paint::Warning)
            }
        };
        sentences.extend(self.traffic());
        if self.report.verdict.as_ref().is_none_or(|verdict| verdict.grade != Grade::Poor) {
            sentences.extend(self.distances());
        }
        // The first line begins with the title in place of a part of the text that is as long.
        let title = format!("{title:<width$}  ", width = LABELLED - 2);
        let place_of_title = "x".repeat((title.chars().count() - LABELLED).saturating_sub(1));
        let text = format!("{place_of_title} {}", sentences.join(" "));
        let mut wrapped = wrap(&text, self.columns - LABELLED).into_iter();
        let first = wrapped.next().unwrap_or_default();
        let first = format!("{title}{}", first.get(place_of_title.len()..).unwrap_or_default().trim_start());
        let rest = wrapped.map(|line| Line::plain(format!("{:LABELLED$}{line}", "")));
        [Line::starting(paint, title.trim_end().chars().count(), first)].into_iter().chain(rest).collect()
    }

    /// "Of 1,000 line touches 127 [2–265] go to memory, 212 [108–343] miss L2 and 279 [160–414] miss L1."
    fn misses(&self, verdict: &Verdict) -> Option<String> {
        let per_mille = &verdict.per_mille;
        let last = per_mille.get("LLC");
        let of = |(name, estimate): (&String, &crate::schema::Estimate)| {
            let number = Between::estimate(estimate)?.per_mille(self.is_narrow());
            match name.as_str() {
                "LLC" => Some(format!("{number} go to memory")),
                _ if last == Some(estimate) => None,
                name => Some(format!("{number} miss {name}")),
            }
        };
        let parts: Vec<String> = per_mille.iter().rev().filter_map(of).collect();
        let (end, begin) = parts.split_last()?;
        let begin = begin.join(", ");
        let and = if begin.is_empty() { "" } else { " and " };
        Some(format!("Of 1,000 line touches {begin}{and}{end}."))
    }

    fn wait(&self, verdict: &Verdict) -> Option<String> {
        let share = Between::estimate(verdict.waits_share.as_ref()?)?.share(self.is_narrow());
        Some(format!("{share} of the CPU time waits for data that is not in the first cache."))
    }

    /// What the lowest cache with traffic loads.
    fn traffic(&self) -> Option<String> {
        let levels = &self.report.cache_use.as_ref()?.levels;
        let per_second = |level: &LevelUse| self.loaded_per_second(level);
        // Bytes are of the same data as the miss ratio: of a cache that may have no misses, none is said.
        let has_misses = |level: &LevelUse| {
            let ratios = self.report.verdict.as_ref().map(|verdict| &verdict.per_mille);
            let ratio = ratios.and_then(|ratios| ratios.get(crate::level_label(&level.level)));
            ratio.and_then(|ratio| ratio.ci95[0].finite()).is_none_or(|low| low >= LEAST_PER_MILLE)
        };
        let has_loads =
            |level: &LevelUse| has_misses(level) && per_second(level).is_some_and(|n| n >= LEAST_LOADED);
        let (index, level) = levels.iter().enumerate().rfind(|(_, level)| has_loads(level))?;
        let bytes = locality_units::print::bytes(per_second(level)? as u64);
        let from = match index + 1 == levels.len() {
            true => "come from memory".to_owned(),
            false => format!("come into {}", level.level),
        };
        let lost = Between::of(level.lost_share, level.lost_share_ci95).filter(|lost| lost.value >= 0.01);
        let lost = lost.map_or(String::new(), |lost| {
            format!("; {} of these bytes are never used", lost.share(self.is_narrow()))
        });
        Some(format!("{bytes} per second of CPU time {from}{lost}."))
    }

    /// Bytes that a cache loads in a second of CPU time.
    fn loaded_per_second(&self, level: &LevelUse) -> Option<f64> {
        let cpu_s = self.report.run.cpu_s.finite().filter(|cpu_s| *cpu_s > 0.0)?;
        level.bytes_loaded.finite().map(|bytes| bytes / cpu_s)
    }

    /// Why there is no verdict.
    fn why_no_verdict(&self) -> &'static str {
        match &self.report.windows {
            None => "Miss ratios are not known: the profile has no windows.",
            Some(windows) if windows.accesses_per_ns.and_then(crate::schema::Number::finite).is_none() => {
                "Miss ratios are not known: nothing showed how many accesses the program makes in a second."
            }
            Some(_) => "Miss ratios are not known: this machine's caches are not, or too little was seen.",
        }
    }

    /// "Half of all reuses of words come within 48 accesses, 90 % within 4.5 K accesses."
    fn distances(&self) -> Option<String> {
        let time = self.words()?.time.as_ref()?;
        let least = time.resolution.map_or(1.0, |least| least as f64);
        // Where half of the reuses are near, and the others far, the median is either by chance.
        let is_sure = |ci95: &Interval| {
            let ends = ci95[0].finite().zip(ci95[1].finite());
            ends.is_some_and(|(low, high)| high <= MOST_SPREAD * low.max(least))
        };
        let known = |of: &Option<Distance>| {
            let sure = of.as_ref().filter(|distance| distance.ci95.as_ref().is_none_or(is_sure));
            sure.and_then(|distance| distance.value.finite())
        };
        let within = |distance: f64| match time.unit.as_str() {
            "cpu_ns" if time.resolution.is_some_and(|least| distance < least as f64) => {
                format!("less than {} of CPU time", duration(time.resolution.unwrap_or_default() as f64))
            }
            "cpu_ns" => format!("{} of CPU time", duration(distance)),
            "accesses" if large(distance) == "1" => "1 access".to_owned(),
            unit => format!("{} {unit}", large(distance)),
        };
        let said = match (known(&time.median), known(&time.p90)) {
            (Some(median), Some(p90)) => {
                super::wording::reuses_within(" of words", &within(median), &within(p90))
            }
            (Some(median), None) => format!("Half of all reuses of words come within {}", within(median)),
            (None, Some(p90)) => format!("90 % of all reuses of words come within {}", within(p90)),
            (None, None) => return None,
        };
        Some(format!("{said}."))
    }

    /// Reuse of words.
    fn words(&self) -> Option<&Reuse> {
        let by_granule = &self.report.reuse;
        by_granule.get("8").or_else(|| by_granule.values().next())
    }

    /// Reuse of lines.
    fn curve(&self) -> &[Point] {
        let lines = self.report.reuse.get("64").and_then(|reuse| reuse.miss_ratio_curve.as_deref());
        lines.unwrap_or_default()
    }

    /// Both curves side by side, or one if the other is unknown.
    fn curves(&self) -> Vec<Line> {
        const GAP: usize = 3;
        let half = (self.columns - GAP) / 2;
        let (left, right) = (self.miss_ratios(half), self.histogram(half));
        let rows = left.len().max(right.len());
        let row = |index: usize| {
            let [left, right] = [&left, &right].map(|side| side.get(index).map_or("", String::as_str));
            let text = match left.is_empty() && right.is_empty() {
                true => String::new(),
                false => format!("{left:<half$}{:GAP$}{right}", ""),
            };
            if index == 0 { Self::heading(text) } else { Line::plain(text) }
        };
        if left.is_empty() {
            let heading = |(index, text): (usize, &String)| match index {
                0 => Self::heading(text.as_str()),
                _ => Line::plain(text.as_str()),
            };
            return right.iter().enumerate().map(heading).collect();
        }
        (0..rows).map(row).collect()
    }

    fn miss_ratios(&self, columns: usize) -> Vec<String> {
        const FIXED: [u64; 3] = [32 << 10, 1 << 20, 32 << 20];
        let shown = self.curve().iter().filter_map(|point| {
            let bytes = point.bytes.whole()?;
            let is_shown = point.level.is_some() || FIXED.contains(&bytes);
            is_shown.then_some((bytes, point))
        });
        let shown: Vec<_> = shown.collect();
        let ratio = |point: &Point| point.ratio.finite().unwrap_or(0.0);
        let most = shown.iter().map(|(_, point)| ratio(point)).fold(0.0, f64::max);
        let last = shown.iter().filter_map(|(_, point)| point.level).max();
        let rows = shown.iter().map(|(bytes, point)| {
            let share = self.share(Between::of(point.ratio, point.ci95));
            let level = point.level.map_or(String::new(), |level| numbered_level(level, last));
            let bar = bar(ratio(point), most, columns.saturating_sub(12 + self.share_columns()));
            format!(" {:>5} {level:<3} {bar} {share}", size(*bytes))
        });
        let mut lines: Vec<String> = rows.collect();
        if !lines.is_empty() {
            lines.insert(0, "Miss ratio by cache size".to_owned());
        }
        lines
    }

    fn histogram(&self, columns: usize) -> Vec<String> {
        // Bins are powers of two: 2^14 ns are called 16 µs.
        const ACCESSES: [(u64, &str); 4] = [(4, "< 16"), (10, "16–1 K"), (16, "1–64 K"), (20, "64 K–1 M")];
        const TIMES: [(u64, &str); 4] =
            [(14, "< 16 µs"), (20, "16 µs–1 ms"), (24, "1–16 ms"), (30, "16 ms–1 s")];
        let Some(time) = self.words().and_then(|words| words.time.as_ref()) else { return Vec::new() };
        let is_time = time.unit == "cpu_ns";
        let (edges, last) = if is_time { (TIMES, "> 1 s") } else { (ACCESSES, "> 1 M") };
        let mut shares = [0.0; 5];
        for bin in time.bins.iter().flatten() {
            let low = bin.low.whole().unwrap_or(0);
            let of = edges.iter().position(|(edge, _)| low < 1 << edge).unwrap_or(edges.len());
            if let (Some(share), Some(fraction)) = (shares.get_mut(of), bin.fraction.finite()) {
                *share += fraction;
            }
        }
        let most = shares.iter().copied().fold(0.0, f64::max);
        if most <= 0.0 {
            return Vec::new();
        }
        let labels = edges.iter().map(|(_, label)| *label).chain([last]);
        let rows = labels.zip(shares).map(|(label, share)| {
            format!(" {label:<10} {} {}", bar(share, most, columns.saturating_sub(19)), percent(share))
        });
        let unit = if is_time { "CPU time" } else { "accesses" };
        [format!("Distances in {unit}")].into_iter().chain(rows).collect()
    }

    /// Names of caches of reports and of cache use: `LL` is the last one, `L3` for instance.
    fn cache_name(&self, level: &str) -> String {
        let levels = self.report.objects_summary.as_ref().map(|summary| summary.levels.as_slice());
        let last = levels.and_then(<[_]>::last);
        match last.is_some_and(|last| last.names.iter().any(|name| name == level)) {
            true => "LL".to_owned(),
            false => level.to_owned(),
        }
    }

    /// Name of a cache for readers: `LLC` for the last one of several.
    fn level_name<'a>(&self, level: &'a str) -> &'a str {
        if level != "L1" && self.cache_name(level) == "LL" { "LLC" } else { level }
    }

    /// Bytes used of a line, by name of the object, at a level.
    fn used_of_line(&self, level: &str) -> BTreeMap<&str, f64> {
        let level = self.cache_name(level);
        let rows = self.report.cache_use.iter().flat_map(|cache_use| cache_use.by_object.iter().flatten());
        let of_level = rows.filter(|row| row.level == level);
        of_level.filter_map(|row| Some((row.name.as_str(), row.used_bytes_per_line?.finite()?))).collect()
    }
}

/// "PROBABLY POOR LOCALITY".
fn title(verdict: &Verdict) -> (String, Paint) {
    let (probably, grade) = (if verdict.probably { "PROBABLY " } else { "" }, verdict.grade);
    match grade {
        Grade::Unsure => {
            let range = verdict::range(verdict)
                .map(|(best, worst)| format!(" ({} to {})", verdict::name(best), verdict::name(worst)));
            (format!("LOCALITY UNSURE{}", range.unwrap_or_default()), Paint::Warning)
        }
        _ => {
            let paint = match grade {
                Grade::Good => Paint::Good,
                Grade::Poor => Paint::Bad,
                _ => Paint::Warning,
            };
            (format!("{probably}{} LOCALITY", verdict::name(grade).to_uppercase()), paint)
        }
    }
}

/// A bar whose whole length stands for the most.
fn bar(of: f64, most: f64, columns: usize) -> String {
    let length = if most > 0.0 { (of / most * columns as f64).round() as usize } else { 0 };
    match length {
        0 if of > 0.0005 => "▏".to_owned(),
        _ => "▇".repeat(length.min(columns)),
    }
}

#[cfg(test)]
mod tests;
