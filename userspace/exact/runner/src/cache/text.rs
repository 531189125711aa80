//! Cache use on a terminal: places of wasted lines, top down, from the report's `cache_use`.
//!
//! No number is computed here except shares of the report's sums.

use locality_report::level_label;
use locality_report::schema::{
    Report,
    cache_use::{CacheShape, CacheUse, LevelUse, LoadingLine, ObjectLoss, Tree},
};
use locality_units::print::count;

use crate::text::{Page, base, counted, function, percent, real, size, whole};

impl Page {
    /// The block; empty without simulated caches.
    pub(crate) fn cache_use(&mut self, report: &Report, top: usize) {
        let Some(cache_use) = &report.cache_use else { return };
        let levels = &cache_use.levels;
        let shape = |level: &LevelUse| (level.bytes, level.ways.unwrap_or(0));
        let described: Vec<String> =
            levels.iter().map(|level| cache(level_label(&level.level), shape(level))).collect();
        let instructions = match cache_use.instruction_cache.as_ref().and_then(Option::as_ref) {
            None => "instruction fetches are not simulated".to_owned(),
            Some(CacheShape { bytes, ways, .. }) => {
                format!("instructions in {}, whose lines are in the rows of L1", cache("I1", (*bytes, *ways)))
            }
        };
        let is_compatible = cache_use.compatible.as_ref().is_some_and(Option::is_some);
        self.line("");
        self.wrapped(&format!(
            "Cache use: {}; lines of {} bytes; {instructions}; {}.",
            described.join(", "),
            levels.first().map_or(0, |level| whole(Some(level.line))),
            match (is_compatible, cache_use.prefetch.as_deref()) {
                (true, _) => "counted as Callgrind does".to_owned(),
                (false, Some("none") | None) => "nothing is prefetched".to_owned(),
                (false, Some(what)) => format!("{what} prefetching"),
            },
        ));
        for level in levels {
            self.level(cache_use, level, top);
        }
        let unknown = Tree::default();
        let tree = cache_use.tree.as_ref().unwrap_or(&unknown);
        self.line("");
        self.wrapped(&format!(
            "A line of cache is charged to the code that loaded it, and to all that called that code then; bytes that were \
             not used until it was evicted, or until the end, are lost. Back-dating trees: {:.0} nodes on average, at most {}.",
            real(tree.nodes_mean),
            count(tree.nodes_most),
        ));
        if tree.calls_folded > 0 {
            self.wrapped(&format!(
                "{} charged to the caller: the stack was too deep, or the memory used up.",
                counted(tree.calls_folded as usize, "call")
            ));
        }
        if cache_use.balanced == Some(false) {
            self.wrapped("Own and inclusive costs do not balance: this is a fault of locality-bpf.");
        }
    }

    fn level(&mut self, cache_use: &CacheUse, level: &LevelUse, top: usize) {
        let name = level.level.as_str();
        let bytes = |number| size(whole(Some(number)));
        self.line("");
        self.wrapped(&format!(
            "{}: {} lines loaded ({}); {} ({}) never used",
            level_label(name),
            count(whole(Some(level.lines_loaded))),
            bytes(level.bytes_loaded),
            bytes(level.spatial_loss_bytes),
            percent(real(level.lost_share)),
        ));
        let functions = cache_use.by_function.iter().filter(|row| row.level == name);
        let lost: Vec<_> = functions.filter(|row| whole(Some(row.inclusive)) > 0).collect();
        if lost.is_empty() {
            return;
        }
        self.line(&format!("  {:>12} {:>11} {:>12}  {}", "inclusive", "of traffic", "own loss", "function"));
        for row in lost.into_iter().take(top) {
            self.line(&format!(
                "  {:>12} {:>11} {:>12}  {}",
                bytes(row.inclusive),
                percent(real(row.traffic_share)),
                bytes(row.own),
                function(row.function.as_deref(), row.module.as_deref(), None),
            ));
        }
        let lines = cache_use.by_loading_line.iter().filter(|row| row.level == name);
        let wasteful = lines.filter(|row| whole(Some(row.spatial_loss_bytes)) > 0);
        for (at, row) in wasteful.take(top).enumerate() {
            if at == 0 {
                self.line(&format!("  Lines of code that load what is not used in {}:", level_label(name)));
            }
            self.loading_line(at + 1, row, whole(Some(level.line)));
        }
        let data = cache_use.by_object.iter().flatten().filter(|row| row.level == name);
        let data = data.filter(|row| whole(Some(row.spatial_loss_bytes)) > 0);
        for (at, row) in data.take(top).enumerate() {
            if at == 0 {
                self.line("  Data whose lines are not used:");
                let heads = ("lost", "of all lost", "used a line", "lines");
                self.line(&format!(
                    "  {:>12} {:>11} {:>12} {:>12}  data",
                    heads.0, heads.1, heads.2, heads.3
                ));
            }
            self.line(&format!(
                "  {:>12} {:>11} {:>12} {:>12}  {}",
                bytes(row.spatial_loss_bytes),
                percent(real(row.share)),
                format!("{} B", round(row.used_bytes_per_line.map_or(0.0, real))),
                count(whole(Some(row.lines_loaded))),
                data_object(row),
            ));
        }
    }

    fn loading_line(&mut self, number: usize, row: &LoadingLine, line: u64) {
        let name = function(row.function.as_deref(), row.module.as_deref(), None);
        let place = match (&row.file, row.line, &row.module) {
            (Some(file), Some(line), _) => format!("at {}:{line} in {name}", base(file)),
            (_, _, Some(module)) => format!("in {name} of {}", base(module)),
            (_, _, None) => format!("in {name}"),
        };
        let by = if row.access.as_deref() == Some("store") { " by stores" } else { "" };
        let accesses = row.access_count.and_then(locality_report::schema::Number::real);
        let accesses = accesses.map(|count| format!(", accessed {count:.1} times"));
        let sentence = format!(
            "{number:>4}. {} of {line} bytes per line used{by} {place}, {} lost ({} of all that is lost){}",
            round(row.used_bytes_per_line.map_or(0.0, real)),
            size(whole(Some(row.spatial_loss_bytes))),
            percent(real(row.share)),
            accesses.unwrap_or_default(),
        );
        self.wrapped_with(&sentence, "      ");
        let callers = row.callers.iter().take(6);
        let callers: Vec<String> = callers
            .map(|caller| function(caller.function.as_deref(), caller.module.as_deref(), None))
            .collect();
        if !callers.is_empty() {
            self.wrapped_with(&format!("      below {}", callers.join(", ")), "      ");
        }
    }
}

/// "table of prog, 64 KiB", "[anonymous memory] of 1 MiB, mapped 7 times".
fn data_object(row: &ObjectLoss) -> String {
    let name = row.name.as_str();
    let bytes = row.bytes.flatten().map(size);
    match (row.kind.as_str(), row.module.as_ref().and_then(Option::as_ref), bytes) {
        ("file", _, _) => base(name).to_owned(),
        (_, Some(module), Some(bytes)) => format!("{name} of {}, {bytes}", base(module)),
        (_, _, Some(bytes)) => match row.mappings.flatten() {
            Some(times) if times > 1 => format!("{name} of {bytes}, mapped {times} times"),
            _ => format!("{name} of {bytes}"),
        },
        _ => name.to_owned(),
    }
}

fn cache(name: &str, (bytes, ways): (u64, u64)) -> String {
    format!("{name} {} in {}", size(bytes), counted(ways as usize, "way"))
}

/// "8", "8.4".
fn round(value: f64) -> String {
    let tenths = (value * 10.0).round() / 10.0;
    if tenths.fract() == 0.0 { format!("{tenths:.0}") } else { format!("{tenths:.1}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::text::print;

    #[test]
    fn the_block_says_where_lines_are_wasted() {
        let row = json!({
            "function": "gather", "file": "/src/conserver.c", "line": 106, "level": "L1", "share": 0.25,
            "spatial_loss_bytes": 56 << 20, "used_bytes_per_line": 8.0, "access_count": 1.0,
            "callers": [{ "function": "main" }, { "function": "(below main)" }],
        });
        let report = json!({ "cache_use": {
            "levels": [{ "level": "L1", "bytes": 32768, "ways": 8, "line": 64, "lines_loaded": 1 << 20,
                "bytes_loaded": 64 << 20, "spatial_loss_bytes": 56 << 20, "lost_share": 0.875 },
                { "level": "LL", "bytes": 1 << 20, "ways": 16, "line": 64, "lines_loaded": 3 }],
            "prefetch": "none",
            "instruction_cache": { "bytes": 32768, "ways": 4 },
            "by_function": [{ "function": "main", "level": "L1", "self": 0, "inclusive": 56 << 20, "traffic_share": 0.875 }],
            "by_loading_line": [row],
            "tree": { "nodes_mean": 3.4, "nodes_most": 7 },
        } });
        let page = print(&serde_json::from_value(report).unwrap(), 5);
        for part in [
            "L1 32 KiB in 8 ways, LLC 1 MiB in 16 ways; lines of 64 bytes; instructions in I1 32 KiB\nin 4 ways",
            "L1: 1,048,576 lines loaded (64 MiB); 56 MiB (87.5 %) never used",
            "LLC: 3 lines loaded",
            "inclusive  of traffic     own loss  function",
            "56 MiB      87.5 %          0 B  main",
            "1. 8 of 64 bytes per line used at conserver.c:106 in gather,",
            "56 MiB lost (25.0 % of all that is lost), accessed 1.0 times",
            "below main, (below main)",
            "Back-dating trees: 3 nodes",
        ] {
            assert!(page.contains(part), "{part} in\n{page}");
        }
        assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    }
}
