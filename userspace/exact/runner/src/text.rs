//! The report of an exact run for a terminal: a report stored by `-o` can be printed again.
//!
//! Computes no value beyond the report. Missing fields are not printed.

mod parallelism;
mod regions;
mod tasks;

use std::fmt::Write as _;

use locality_report::schema::{
    Estimate, Interval, Number, Report,
    mix::Mix,
    pairs::Pair,
    place::Frame,
    reuse::{Bin, Distance, Histogram, Point, Reuse, TypeReuse},
    threads::Threads,
};
use locality_units::print as units;

/// Columns of the report.
const WIDTH: usize = 100;

/// The page. `top` rows of each table.
pub fn print(report: &Report, top: usize) -> String {
    let mut page = Page { text: String::new() };
    let run = &report.run;
    let threads = match &report.threads {
        Some(Threads::List(threads)) => threads.len(),
        _ => 0,
    };
    let nothing = Mix::default();
    let mix = report.mix.as_ref().unwrap_or(&nothing);
    page.wrapped(&format!("Exact run of `{}`", run.command));
    if let Some(one_in) = run.sample_lines {
        page.wrapped(&format!(
            "Estimated from a sample: only accesses to one of {one_in} cache lines were seen. Brackets hold 95 % intervals.",
        ));
    }
    page.wrapped(&format!(
        "{} accesses ({} loads, {} stores) by {} instructions in {}; {}, {:.2} s, exit status {}",
        units::count(mix.accesses),
        percent(share_of_accesses(mix, mix.loads)),
        percent(share_of_accesses(mix, mix.stores)),
        units::count(mix.instructions),
        counted(threads, "thread"),
        run.sources.address,
        real(run.wall_s),
        run.exit_status.map_or("unknown".to_owned(), |status| status.to_string()),
    ));
    if let Some(why) = &report.empty {
        page.line("");
        page.wrapped(why);
    }
    if report.partial {
        page.line("");
        page.wrapped(&format!("This report is partial: {}.", run.ended_by));
    }
    // The reason of an empty report may end with a notice.
    let is_said = |notice: &str| report.empty.as_ref().is_some_and(|why| why.contains(notice));
    for notice in report.notices.iter().filter(|notice| !is_said(notice)) {
        page.wrapped(notice);
    }
    for (restriction, names) in [("by instructions of", &run.functions), ("to data of type", &run.data_types)]
    {
        if let Some(names) = names.as_ref().filter(|names| !names.is_empty()) {
            page.wrapped(&format!("Only accesses {restriction} {} are counted.", names.join(", ")));
        }
    }
    for (bytes, reuse) in by_granule(report) {
        page.granule(bytes, reuse);
        page.extra(reuse);
        page.types(reuse, top);
    }
    page.parallelism(report, top);
    page.tasks(report, top);
    page.regions(report, top);
    page.sharing(report, top);
    page.cache_use(report, top);
    page.pairs(report, top);
    page.mix(mix, top);
    if report.reuse.is_empty() {
        return page.text;
    }
    page.line("");
    if run.sample_lines.is_some() {
        page.wrapped(
            "Time distances are exact, stack distances are scaled by the number of lines of which one is sampled. Intervals \
             say how much another draw of lines would change; n in JSON counts what was seen.",
        );
    } else {
        page.wrapped("Distances are exact: every access was seen.");
    }
    page.wrapped(
        "A time distance is the number of accesses from a use to its reuse, a \
         stack distance the number of other granules touched between them; a fully associative LRU cache that holds more \
         granules than the stack distance keeps the data. What the kernel reads and writes in system calls is not seen.",
    );
    if run.order.as_deref() == Some("each thread's own") && threads > 1 {
        page.wrapped(
            "Distances are those of each thread's own accesses, summed over threads; --one-order puts the threads of a \
             process into one order instead.",
        );
    }
    page.text
}

fn by_granule(report: &Report) -> Vec<(u64, &Reuse)> {
    let all = report.reuse.iter();
    let mut sorted: Vec<_> = all.filter_map(|(bytes, reuse)| Some((bytes.parse().ok()?, reuse))).collect();
    sorted.sort_by_key(|(bytes, _)| *bytes);
    sorted
}

/// The page up to now.
pub(super) struct Page {
    text: String,
}

impl Page {
    pub(super) fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    pub(super) fn wrapped(&mut self, sentence: &str) {
        let mut line = String::new();
        for word in sentence.split_whitespace() {
            if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
                self.line(&line);
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.line(&line);
    }

    fn granule(&mut self, bytes: u64, reuse: &Reuse) {
        self.line("");
        self.wrapped(&format!(
            "Reuse of {}: {} touches, footprint {}, {} touched for the first time",
            if bytes == 64 { "cache lines (64 bytes)".to_owned() } else { counted(bytes as usize, "byte") },
            units::count(whole(reuse.touches)),
            footprint(reuse),
            percent_between(reuse.cold_fraction.map_or(0.0, real), reuse.cold_fraction_ci95),
        ));
        if let Some(sampled) = &reuse.sampled_lines {
            self.wrapped_with(
                &format!(
                    "  {} sampled with {} touches, of {} expected",
                    units::counted(sampled.lines, "line"),
                    units::count(sampled.touches),
                    units::count(sampled.touches_expected)
                ),
                "    ",
            );
        }
        let mut sizes = String::from("  Misses of a fully associative cache:");
        let curve = reuse.miss_ratio_curve.iter().flatten();
        let fixed = curve.filter(|point| {
            point.bytes.whole().is_some_and(|bytes| super::report::FIXED_SIZES.contains(&bytes))
        });
        let hosts = reuse.at_caches.iter().flatten();
        let mut seen = Vec::new();
        for point in hosts.chain(fixed) {
            let bytes = point.bytes.whole().unwrap_or(0);
            if seen.contains(&bytes) {
                continue;
            }
            seen.push(bytes);
            let level = point.level.map(|level| format!("L{level} ")).unwrap_or_default();
            // Cannot fail: a string takes every text.
            let _ = write!(
                sizes,
                "{} {level}{} {}",
                if seen.len() > 1 { "," } else { "" },
                size(bytes),
                percent_between(real(point.ratio), point.ci95)
            );
        }
        if seen.is_empty() {
            sizes = String::from("  The sample is too small for the misses of these caches.");
        }
        self.wrapped_with(&sizes, "    ");
        if reuse.sampled_lines.is_some() {
            return self.shares(reuse);
        }
        self.line("");
        self.line(&format!("  {:>22} {:>10} {:>10}", "distance from", "time", "stack"));
        let (time, stack) = (bins(reuse.time.as_ref()), bins(reuse.stack.as_ref()));
        for at in 0..time.len().max(stack.len()) {
            let fraction = |bins: &[Bin]| {
                bins.get(at).and_then(|bin| bin.fraction.real()).map(percent).unwrap_or_default()
            };
            let low = time.get(at).or(stack.get(at)).map(|bin| units::count(bin.low.whole().unwrap_or(0)));
            let low = low.unwrap_or_default();
            self.line(&format!("  {low:>22} {:>10} {:>10}", fraction(time), fraction(stack)));
        }
    }

    /// Distances of sampled lines: stack distances have other bins than time distances.
    fn shares(&mut self, reuse: &Reuse) {
        for (head, histogram) in [("time", &reuse.time), ("stack", &reuse.stack)] {
            self.line("");
            self.line(&format!(
                "  {:>22} {:>24} {:>12}",
                format!("{head} distance from"),
                "of reuses",
                "seen"
            ));
            for bin in bins(histogram.as_ref()) {
                let low = units::count(bin.low.whole().unwrap_or(0));
                let share = percent_between(real(bin.fraction), bin.ci95);
                let seen = units::count(bin.n.unwrap_or(0));
                self.line(&format!("  {low:>22} {share:>24} {seen:>12}"));
            }
        }
    }

    /// Sets and optimal replacement.
    fn extra(&mut self, reuse: &Reuse) {
        if let Some(sets) = &reuse.set_associative {
            let points = sets.miss_ratios.iter().filter(|point| point.ways.is_power_of_two());
            let told = points.map(|point| (counted(point.ways as usize, "way"), percent(real(point.ratio))));
            let ways: Vec<String> = told.map(|(ways, ratio)| format!("{ways} {ratio}")).collect();
            if !ways.is_empty() {
                self.line("");
                let sets = counted(sets.sets as usize, "set");
                self.wrapped_with(&format!("  Misses with {sets}: {}", ways.join(", ")), "    ");
            }
        }
        if let Some(optimal) = &reuse.optimal_replacement {
            let told = |point: &Point| {
                let bytes = point.bytes.whole()?;
                Some(format!("{} {}", size(bytes), percent(real(point.ratio))))
            };
            let sizes: Vec<String> = optimal.miss_ratio_curve.iter().filter_map(told).collect();
            if sizes.is_empty() {
                return;
            }
            self.line("");
            let sizes = sizes.join(", ");
            self.wrapped_with(&format!("  Misses under optimal replacement: {sizes}"), "    ");
            if optimal.touches_not_kept > 0 {
                let lost = units::count(optimal.touches_not_kept);
                self.wrapped(&format!("  Of the first touches only: {lost} later ones found no room."));
            }
        }
    }

    /// Reuse by type and width of data.
    fn types(&mut self, reuse: &Reuse, top: usize) {
        let types = reuse.by_data_type.iter().flatten();
        let mut rows: Vec<(&String, &TypeReuse)> = types.filter(|(_, reuse)| reuse.touches > 0).collect();
        rows.sort_by_key(|(name, reuse)| (std::cmp::Reverse(reuse.touches), *name));
        if rows.is_empty() {
            return;
        }
        let all: u64 = rows.iter().map(|(_, reuse)| reuse.touches).sum();
        self.line("");
        self.line(&format!(
            "  {:>22} {:>10} {:>10} {:>22}",
            "type of data", "touches", "first", "median stack distance"
        ));
        for (name, reuse) in rows.into_iter().take(top) {
            let part = |part: u64, of: u64| percent(part as f64 / of.max(1) as f64);
            self.line(&format!(
                "  {:>22} {:>10} {:>10} {:>22}",
                name.replace('_', " "),
                part(reuse.touches, all),
                part(reuse.cold, reuse.touches),
                median_bin(bins(Some(&reuse.stack))),
            ));
        }
    }

    pub(super) fn wrapped_with(&mut self, sentence: &str, indent: &str) {
        if sentence.chars().count() <= WIDTH {
            return self.line(sentence);
        }
        // Not within a number.
        let is_end = |(at, c): &(usize, char)| {
            *c == ',' && sentence.get(at + 1..).is_some_and(|rest| rest.starts_with(' '))
        };
        let cut = sentence.char_indices().take(WIDTH).filter(is_end).last().map(|(at, _)| at + 1);
        match cut {
            Some(at) => {
                let (first, rest) = sentence.split_at(at);
                self.line(first);
                self.wrapped_with(&format!("{indent}{}", rest.trim_start()), indent);
            }
            None => self.line(sentence),
        }
    }

    fn pairs(&mut self, report: &Report, top: usize) {
        if report.pairs.is_empty() {
            return;
        }
        let near = super::report::FIXED_SIZES[0].to_string();
        let misses =
            |pair: &Pair| pair.misses.as_ref().and_then(|misses| misses.get(&near)).copied().unwrap_or(0);
        let mut far: Vec<&Pair> = report.pairs.iter().filter(|pair| misses(pair) > 0).collect();
        far.sort_by_key(|pair| std::cmp::Reverse(misses(pair)));
        let granule = report.pairs_granularity.flatten().unwrap_or(0).to_string();
        let stack = report.reuse.get(&granule).and_then(|reuse| reuse.stack.as_ref());
        let all = stack.and_then(|stack| stack.n).unwrap_or(0);
        self.line("");
        if far.is_empty() {
            self.line("No pair of use and reuse misses a cache of 32 KiB. The most frequent pairs:");
        } else {
            self.line("Pairs of use and reuse that miss a cache of 32 KiB most often:");
        }
        let shown: Vec<&Pair> = if far.is_empty() { report.pairs.iter().collect() } else { far };
        for (at, pair) in shown.into_iter().take(top).enumerate() {
            self.line("");
            let sentence = format!(
                "{:>3}. {} of all reuses, {} misses of 32 KiB; stack distance {}, time distance {} (medians)",
                at + 1,
                match pair.weight_ci95 {
                    Some(_) => percent_between(real(pair.weight), pair.weight_ci95),
                    None => percent(pair.n as f64 / (all.max(1) as f64)),
                },
                match pair.misses_estimated.as_ref().and_then(|misses| misses.get(&near)) {
                    Some(estimate) => count_between(estimate),
                    None if pair.weight_ci95.is_some() => "unknown".to_owned(),
                    None => units::count(misses(pair)),
                },
                median(pair.stack_median.as_ref().and_then(Option::as_ref)),
                median(pair.time_median.as_ref()),
            );
            self.wrapped_with(&sentence, "     ");
            let nowhere = Frame::default();
            let innermost = |path: &locality_report::schema::place::Path| {
                frame(path.frames.iter().flatten().next().map_or(&nowhere, |first| first))
            };
            self.line(&format!("     use    {}", innermost(&pair.used)));
            self.line(&format!("     reuse  {}", innermost(&pair.reuse)));
            if let Some(ancestor) = &pair.common_ancestor {
                self.line(&format!("     both below {}", function_of(ancestor)));
            }
        }
    }

    fn mix(&mut self, mix: &Mix, top: usize) {
        let classes = mix.classes.iter();
        let mut rows: Vec<(f64, &String)> = classes
            .filter_map(|(name, share)| Some((share.real()?, name)))
            .filter(|row| row.0 > 0.0)
            .collect();
        rows.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
        if rows.is_empty() {
            return;
        }
        self.line("");
        let rows: Vec<String> = rows
            .iter()
            .take(top)
            .map(|(share, name)| format!("{} {}", name.replace('_', " "), percent(*share)))
            .collect();
        self.wrapped_with(&format!("Instructions: {}", rows.join(", ")), "    ");
    }
}

fn share_of_accesses(mix: &Mix, kind: Number) -> f64 {
    if mix.accesses == 0 {
        return 0.0;
    }
    real(kind) * mix.instructions as f64 / mix.accesses as f64
}

fn bins(histogram: Option<&Histogram>) -> &[Bin] {
    histogram.and_then(|histogram| histogram.bins.as_deref()).unwrap_or_default()
}

fn function_of(frame: &Frame) -> String {
    function(frame.function.as_deref(), frame.module.as_deref(), frame.address)
}

/// A function's name, otherwise the address in the file.
pub(super) fn function(name: Option<&str>, module: Option<&str>, address: Option<u64>) -> String {
    let place = || format!("{}+{:#x}", base(module.unwrap_or("null")), address.unwrap_or(0));
    name.map_or_else(place, str::to_owned)
}

fn frame(frame: &Frame) -> String {
    let place = match (&frame.file, frame.line, &frame.module) {
        (Some(file), Some(line), _) => format!("  {}:{line}", base(file)),
        (_, _, Some(module)) => format!("  in {}", base(module)),
        (_, _, None) => String::new(),
    };
    format!("{}{place}", function_of(frame))
}

/// The bin of a median, because the exact value is unknown: "16 to 31 accesses".
fn median(median: Option<&Distance>) -> String {
    let Some(median) = median else { return "unknown".to_owned() };
    format!("{} {}", range(median.low, median.high), median.unit)
}

/// The numbers of a bin: "16 to 31".
fn range(low: Option<u64>, high: Option<u64>) -> String {
    let (low, last) = (low.unwrap_or(0), high.unwrap_or(1).saturating_sub(1));
    if low == last { units::count(low) } else { format!("{} to {}", units::count(low), units::count(last)) }
}

/// The bin of the median: "16 to 31".
fn median_bin(bins: &[Bin]) -> String {
    let mut left = 0.5;
    for bin in bins {
        left -= real(bin.fraction);
        if left <= 0.0 {
            return range(bin.low.whole(), bin.high.whole());
        }
    }
    String::new()
}

/// "12.5 % [11.9–13.2]", without brackets of a counted number.
fn percent_between(fraction: f64, ci95: Option<Interval>) -> String {
    let Some([low, high]) = ci95 else { return percent(fraction) };
    let digits = if fraction > 0.0 && fraction < 0.001 { 4 } else { 1 };
    format!("{} [{:.digits$}–{:.digits$}]", percent(fraction), real(low) * 100.0, real(high) * 100.0)
}

/// "800 [700–900]".
fn count_between(estimate: &Estimate) -> String {
    let count = |number: Number| units::count(number.whole().unwrap_or(0));
    let [low, high] = estimate.ci95;
    format!("{} [{}–{}]", count(estimate.value), count(low), count(high))
}

/// "13.4 MiB [12.9 MiB–13.9 MiB]".
fn footprint(reuse: &Reuse) -> String {
    let bytes = size(whole(reuse.footprint_bytes));
    match reuse.footprint_bytes_ci95 {
        Some([low, high]) => format!("{bytes} [{}–{}]", size(whole(Some(low))), size(whole(Some(high)))),
        None => bytes,
    }
}

/// A number, 0 if unknown.
pub(super) fn real(number: Number) -> f64 {
    number.real().unwrap_or(0.0)
}

/// A number without the fraction, 0 if unknown.
pub(super) fn whole(number: Option<Number>) -> u64 {
    number.and_then(Number::whole).unwrap_or(0)
}

/// The file name of a path.
pub(super) fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

pub(super) fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

pub(super) fn percent(fraction: f64) -> String {
    let digits = if fraction > 0.0 && fraction < 0.001 { 4 } else { 1 };
    format!("{:.digits$} %", fraction * 100.0)
}

/// "32 KiB".
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")];
    let (shift, unit) = UNITS.iter().find(|(shift, _)| bytes >= 1 << shift).unwrap_or(&UNITS[3]);
    let value = bytes as f64 / (1u64 << shift) as f64;
    if value.fract() == 0.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_in_the_reason_of_an_empty_report_is_printed_once() {
        let report = serde_json::json!({
            "run": { "command": "a" },
            "empty": "No access was recorded. No function called `nope`.",
            "notices": ["No function called `nope`.", "Another notice."],
        });
        let page = print(&serde_json::from_value(report).unwrap(), 3);
        assert_eq!(page.matches("called `nope`").count(), 1, "{page}");
        assert!(page.contains("Another notice."), "{page}");
    }

    #[test]
    fn calls_without_a_span_are_said_in_words() {
        let report = serde_json::json!({
            "run": { "command": "a" },
            "self_parallelism": {
                "regions_total": 1,
                "regions": [{ "kind": "function", "unmeasured": 95730 }]
            },
        });
        let page = print(&serde_json::from_value(report).unwrap(), 3);
        let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let said = "For 95,730 calls the longest chain was not measured, because the calls nest too deeply;";
        assert!(page.contains(said), "{page}");
    }

    #[test]
    fn a_page_of_sampled_lines_says_so_and_has_intervals() {
        let report = serde_json::json!({
            "run": { "command": "a", "sample_lines": 16 },
            "pairs_granularity": 64,
            "pairs": [{ "n": 5, "weight": 0.25, "weight_ci95": [0.125, 0.5], "misses": { "32768": 2 },
                "misses_estimated": { "32768": { "value": 3200, "ci95": [1000, 9000], "n": 2 } } }],
            "reuse": { "64": {
                "touches": 1000, "footprint_bytes": 96 << 10, "footprint_bytes_ci95": [64 << 10, 128 << 10],
                "cold_fraction": 0.5, "cold_fraction_ci95": [0.25, 0.75],
                "sampled_lines": { "lines": 96, "one_in": 16, "touches": 70, "touches_expected": 62 },
                "miss_ratio_curve": [{ "bytes": 32768, "ratio": 0.25, "ci95": [0.125, 0.375], "n": 9 }],
                "time": { "bins": [{ "low": 0, "high": 1, "fraction": 1.0, "ci95": [0.875, 1.0], "n": 7 }] },
                "stack": { "bins": [{ "low": 0, "high": 16, "fraction": 1.0, "ci95": [0.75, 1.0], "n": 8 }] },
            } },
        });
        let page = print(&serde_json::from_value(report).unwrap(), 3);
        for part in [
            "one of 16 cache lines",
            "footprint 96 KiB [64 KiB–128 KiB], 50.0 %\n[25.0–75.0] touched",
            "96 lines sampled with 70 touches, of 62 expected",
            "32 KiB 25.0 % [12.5–37.5]",
            "100.0 % [87.5–100.0]            7",
            "100.0 % [75.0–100.0]            8",
            "25.0 % [12.5–50.0] of all reuses, 3,200 [1,000–9,000] misses",
            "another draw of lines",
        ] {
            assert!(page.contains(part), "{part} in\n{page}");
        }
        assert!(!page.contains("every access was seen"), "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= WIDTH));
    }

    #[test]
    fn a_page_has_what_the_report_has_and_bears_what_it_lacks() {
        let page = print(&Report::default(), 3);
        assert!(page.starts_with("Exact run of"));
        let report = serde_json::json!({
            "run": { "command": "a b", "order": "each thread's own", "ended_by": "SIGSEGV" },
            "partial": true,
            "threads": [{ "tid": 1 }, { "tid": 2 }],
            "reuse": { "64": {
                "touches": 10, "footprint_bytes": 96 << 10, "cold_fraction": 0.5,
                "miss_ratio_curve": [{ "bytes": 32768, "ratio": 0.25 }],
                "time": { "bins": [{ "low": 0, "fraction": 1.0 }] },
                "by_data_type": { "integer_vector_128": { "touches": 8, "cold": 2, "stack": { "bins": [
                    { "low": 0, "high": 1, "fraction": 0.25 }, { "low": 2, "high": 4, "fraction": 0.75 },
                ] } } },
                "set_associative": { "sets": 4, "miss_ratios": [{ "ways": 2, "ratio": 0.5 }, { "ways": 3, "ratio": 0.4 }] },
                "optimal_replacement": { "miss_ratio_curve": [{ "bytes": 64, "ratio": 0.75 }] },
            } },
        });
        let page = print(&serde_json::from_value(report).unwrap(), 3);
        for part in [
            "`a b`",
            "partial: SIGSEGV",
            "footprint 96 KiB",
            "32 KiB 25.0 %",
            "--one-order",
            "100.0 %",
            "2 to 3",
            "integer vector 128",
            "4 sets: 2 ways 50.0 %",
            "optimal replacement: 64 B 75.0 %",
        ] {
            assert!(page.contains(part), "{part} in\n{page}");
        }
        assert!(page.lines().all(|line| line.chars().count() <= WIDTH));
    }
}
