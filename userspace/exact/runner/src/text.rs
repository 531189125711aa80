//! The report of an exact run for a terminal, printed from its JSON: what `-o` stored can be printed again.
//!
//! Nothing is computed here that is not in the report. Fields that are missing print as nothing.

use std::fmt::Write as _;

use locality_units::print as units;
use serde_json::Value;

/// Columns of the report.
const WIDTH: usize = 100;

/// The page. `top` rows of each table.
pub fn print(report: &Value, top: usize) -> String {
    let mut page = Page { text: String::new() };
    let run = &report["run"];
    page.wrapped(&format!("Exact run of `{}`", words(&run["command"])));
    page.wrapped(&format!(
        "{} accesses ({} loads, {} stores) by {} instructions in {}; {}, {:.2} s, exit status {}",
        count(&report["mix"]["accesses"]),
        percent(share_of_accesses(report, "loads")),
        percent(share_of_accesses(report, "stores")),
        count(&report["mix"]["instructions"]),
        counted(report["threads"].as_array().map_or(0, Vec::len), "thread"),
        words(&run["sources"]["address"]),
        run["wall_s"].as_f64().unwrap_or(0.0),
        run["exit_status"],
    ));
    if let Some(why) = report["empty"].as_str() {
        page.line("");
        page.wrapped(why);
    }
    if report["partial"] == true {
        page.line("");
        page.wrapped(&format!("This report is partial: {}.", words(&run["ended_by"])));
    }
    for notice in report["notices"].as_array().into_iter().flatten() {
        page.wrapped(&words(notice));
    }
    for (restriction, names) in [("by instructions of", "functions"), ("to data of type", "data_types")] {
        let names: Vec<String> = run[names].as_array().into_iter().flatten().map(words).collect();
        if !names.is_empty() {
            page.wrapped(&format!("Only accesses {restriction} {} are counted.", names.join(", ")));
        }
    }
    for (bytes, reuse) in by_granule(report) {
        page.granule(bytes, reuse);
        page.extra(reuse);
        page.types(reuse, top);
    }
    page.cache_use(report, top);
    page.pairs(report, top);
    page.mix(&report["mix"], top);
    if report["reuse"].as_object().is_none_or(serde_json::Map::is_empty) {
        return page.text;
    }
    page.line("");
    page.wrapped(
        "Distances are exact: every access was seen. A time distance is the number of accesses from a use to its reuse, a \
         stack distance the number of other granules touched between them; a fully associative LRU cache that holds more \
         granules than the stack distance keeps the data. What the kernel reads and writes in system calls is not seen.",
    );
    if run["order"] == "each thread's own" && report["threads"].as_array().is_some_and(|all| all.len() > 1) {
        page.wrapped(
            "Distances are those of each thread's own accesses, summed over threads; --one-order puts the threads of a \
             process into one order instead.",
        );
    }
    page.text
}

fn by_granule(report: &Value) -> Vec<(u64, &Value)> {
    let all = report["reuse"].as_object().into_iter().flatten();
    let mut sorted: Vec<_> = all.filter_map(|(bytes, reuse)| Some((bytes.parse().ok()?, reuse))).collect();
    sorted.sort_by_key(|(bytes, _)| *bytes);
    sorted
}

/// The page so far.
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

    fn granule(&mut self, bytes: u64, reuse: &Value) {
        self.line("");
        self.wrapped(&format!(
            "Reuse of {}: {} touches, footprint {}, {} touched for the first time",
            if bytes == 64 { "cache lines (64 bytes)".to_owned() } else { counted(bytes as usize, "byte") },
            count(&reuse["touches"]),
            size(reuse["footprint_bytes"].as_u64().unwrap_or(0)),
            percent(reuse["cold_fraction"].as_f64().unwrap_or(0.0)),
        ));
        let mut sizes = String::from("  Misses of a fully associative cache:");
        let curve = reuse["miss_ratio_curve"].as_array();
        let fixed = curve.into_iter().flatten().filter(|point| {
            super::report::FIXED_SIZES.iter().any(|bytes| point["bytes"].as_u64() == Some(*bytes))
        });
        let hosts = reuse["at_caches"].as_array().into_iter().flatten();
        let mut seen = Vec::new();
        for point in hosts.chain(fixed) {
            let bytes = point["bytes"].as_u64().unwrap_or(0);
            if seen.contains(&bytes) {
                continue;
            }
            seen.push(bytes);
            let level = point["level"].as_u64().map(|level| format!("L{level} ")).unwrap_or_default();
            // Cannot fail: a string takes all text.
            let _ = write!(
                sizes,
                "{} {level}{} {}",
                if seen.len() > 1 { "," } else { "" },
                size(bytes),
                percent(point["ratio"].as_f64().unwrap_or(0.0))
            );
        }
        self.wrapped_with(&sizes, "    ");
        self.line("");
        self.line(&format!("  {:>22} {:>10} {:>10}", "distance from", "time", "stack"));
        let rows = |kind: &str| reuse[kind]["bins"].as_array().cloned().unwrap_or_default();
        let (time, stack) = (rows("time"), rows("stack"));
        for at in 0..time.len().max(stack.len()) {
            let fraction = |bins: &[Value]| {
                bins.get(at).and_then(|bin| bin["fraction"].as_f64()).map(percent).unwrap_or_default()
            };
            let low = time.get(at).or(stack.get(at)).map(|bin| count(&bin["low"])).unwrap_or_default();
            self.line(&format!("  {low:>22} {:>10} {:>10}", fraction(&time), fraction(&stack)));
        }
    }

    /// Sets and optimal replacement.
    fn extra(&mut self, reuse: &Value) {
        let list = |points: &Value, name: &dyn Fn(&Value) -> Option<String>| {
            let points = points.as_array().into_iter().flatten();
            let told = points.filter_map(|point| {
                Some(format!("{} {}", name(point)?, percent(point["ratio"].as_f64().unwrap_or(0.0))))
            });
            told.collect::<Vec<_>>().join(", ")
        };
        let sets = &reuse["set_associative"];
        let ways = list(&sets["miss_ratios"], &|point| {
            let ways = point["ways"].as_u64().filter(|ways| ways.is_power_of_two())?;
            Some(counted(ways as usize, "way"))
        });
        if !ways.is_empty() {
            self.line("");
            let sentence = format!("  Misses with {}: {ways}", counted_value(&sets["sets"], "set"));
            self.wrapped_with(&sentence, "    ");
        }
        let optimal = &reuse["optimal_replacement"];
        let sizes = list(&optimal["miss_ratio_curve"], &|point| point["bytes"].as_u64().map(size));
        if !sizes.is_empty() {
            self.line("");
            self.wrapped_with(&format!("  Misses under optimal replacement: {sizes}"), "    ");
            if optimal["touches_not_kept"].as_u64() > Some(0) {
                let lost = count(&optimal["touches_not_kept"]);
                self.wrapped(&format!("  Of the first touches only: {lost} later ones found no room."));
            }
        }
    }

    /// Reuse by type and width of data.
    fn types(&mut self, reuse: &Value, top: usize) {
        let types = reuse["by_data_type"].as_object().into_iter().flatten();
        let touches = |value: &Value| value["touches"].as_u64().unwrap_or(0);
        let mut rows: Vec<(&String, &Value)> = types.filter(|(_, value)| touches(value) > 0).collect();
        rows.sort_by_key(|(name, value)| (std::cmp::Reverse(touches(value)), *name));
        if rows.is_empty() {
            return;
        }
        let all: u64 = rows.iter().map(|(_, value)| touches(value)).sum();
        self.line("");
        self.line(&format!(
            "  {:>22} {:>10} {:>10} {:>22}",
            "type of data", "touches", "first", "median stack distance"
        ));
        for (name, value) in rows.into_iter().take(top) {
            let part = |part: u64, of: u64| percent(part as f64 / of.max(1) as f64);
            self.line(&format!(
                "  {:>22} {:>10} {:>10} {:>22}",
                name.replace('_', " "),
                part(touches(value), all),
                part(value["cold"].as_u64().unwrap_or(0), touches(value)),
                median_bin(&value["stack"]["bins"]),
            ));
        }
    }

    pub(super) fn wrapped_with(&mut self, sentence: &str, indent: &str) {
        if sentence.chars().count() <= WIDTH {
            return self.line(sentence);
        }
        let cut = sentence.char_indices().take(WIDTH).filter(|(_, c)| *c == ',').last().map(|(at, _)| at + 1);
        match cut {
            Some(at) => {
                let (first, rest) = sentence.split_at(at);
                self.line(first);
                self.wrapped_with(&format!("{indent}{}", rest.trim_start()), indent);
            }
            None => self.line(sentence),
        }
    }

    fn pairs(&mut self, report: &Value, top: usize) {
        let pairs = report["pairs"].as_array().map(Vec::as_slice).unwrap_or_default();
        if pairs.is_empty() {
            return;
        }
        let near = super::report::FIXED_SIZES[0].to_string();
        let misses = |pair: &Value| pair["misses"][&near].as_u64().unwrap_or(0);
        let mut far: Vec<&Value> = pairs.iter().filter(|pair| misses(pair) > 0).collect();
        far.sort_by_key(|pair| std::cmp::Reverse(misses(pair)));
        let all: u64 =
            report["reuse"][&report["pairs_granularity"].to_string()]["stack"]["n"].as_u64().unwrap_or(0);
        self.line("");
        if far.is_empty() {
            self.line("No pair of use and reuse misses a cache of 32 KiB. The most frequent pairs:");
        } else {
            self.line("Pairs of use and reuse that miss a cache of 32 KiB most often:");
        }
        let shown: Vec<&Value> = if far.is_empty() { pairs.iter().collect() } else { far };
        for (at, pair) in shown.into_iter().take(top).enumerate() {
            self.line("");
            let sentence = format!(
                "{:>3}. {} of all reuses, {} misses of 32 KiB; stack distance {}, time distance {} (medians)",
                at + 1,
                percent(pair["n"].as_f64().unwrap_or(0.0) / (all.max(1) as f64)),
                count(&pair["misses"][&near]),
                median(&pair["stack_median"]),
                median(&pair["time_median"]),
            );
            self.wrapped_with(&sentence, "     ");
            self.line(&format!("     use    {}", frame(&pair["use"]["frames"][0])));
            self.line(&format!("     reuse  {}", frame(&pair["reuse"]["frames"][0])));
            if !pair["common_ancestor"].is_null() {
                self.line(&format!("     both below {}", function(&pair["common_ancestor"])));
            }
        }
    }

    fn mix(&mut self, mix: &Value, top: usize) {
        let classes = mix["classes"].as_object().into_iter().flatten();
        let mut rows: Vec<(f64, &String)> = classes
            .filter_map(|(name, share)| Some((share.as_f64()?, name)))
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

fn share_of_accesses(report: &Value, kind: &str) -> f64 {
    let mix = &report["mix"];
    let accesses = mix["accesses"].as_f64().unwrap_or(0.0);
    if accesses == 0.0 {
        return 0.0;
    }
    mix[kind].as_f64().unwrap_or(0.0) * mix["instructions"].as_f64().unwrap_or(0.0) / accesses
}

fn words(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub(super) fn function(frame: &Value) -> String {
    let module = || {
        let path = words(&frame["module"]);
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        format!("{name}+{:#x}", frame["address"].as_u64().unwrap_or(0))
    };
    frame["function"].as_str().map_or_else(module, str::to_owned)
}

fn frame(frame: &Value) -> String {
    let place = match (frame["file"].as_str(), frame["line"].as_u64()) {
        (Some(file), Some(line)) => {
            format!("  {}:{line}", file.rsplit('/').next().unwrap_or_default())
        }
        _ => match frame["module"].as_str() {
            Some(module) => format!("  in {}", module.rsplit('/').next().unwrap_or_default()),
            None => String::new(),
        },
    };
    format!("{}{place}", function(frame))
}

/// The bin of a median, for no more is known of it: "16 to 31 accesses".
fn median(value: &Value) -> String {
    format!("{} {}", whole_bin(value), words(&value["unit"]))
}

/// The numbers of a bin: "16 to 31".
fn whole_bin(bin: &Value) -> String {
    let last = bin["high"].as_u64().unwrap_or(1).saturating_sub(1);
    let (low, last) = (count(&bin["low"]), count(&serde_json::json!(last)));
    if low == last { low } else { format!("{low} to {last}") }
}

/// The bin that the median lies in: "16 to 31".
fn median_bin(bins: &Value) -> String {
    let mut left = 0.5;
    for bin in bins.as_array().into_iter().flatten() {
        left -= bin["fraction"].as_f64().unwrap_or(0.0);
        if left <= 0.0 {
            return whole_bin(bin);
        }
    }
    String::new()
}

fn counted_value(n: &Value, noun: &str) -> String {
    counted(n.as_u64().unwrap_or(0) as usize, noun)
}

/// "12,034".
pub(super) fn count(value: &Value) -> String {
    units::count(value.as_u64().unwrap_or(0))
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
    fn a_page_has_what_the_report_has_and_bears_what_it_lacks() {
        let page = print(&serde_json::json!({}), 3);
        assert!(page.starts_with("Exact run of"));
        let report = serde_json::json!({
            "run": { "command": "a b", "order": "each thread's own", "ended_by": "SIGSEGV" },
            "partial": true,
            "threads": [1, 2],
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
        let page = print(&report, 3);
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
