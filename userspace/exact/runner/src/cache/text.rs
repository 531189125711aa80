//! Cache use on a terminal: where lines are wasted, top down, from the report's `cache_use`.
//!
//! Nothing is computed here that is not in the report, but for shares of its sums.

use serde_json::Value;

use crate::text::{Page, count, counted, function, percent, size};

impl Page {
    /// The block; nothing where no caches were simulated.
    pub(crate) fn cache_use(&mut self, report: &Value, top: usize) {
        let cache_use = &report["cache_use"];
        let Some(levels) = cache_use["levels"].as_array() else { return };
        let described: Vec<String> = levels.iter().map(|level| cache(&level["level"], level)).collect();
        let instructions = &cache_use["instruction_cache"];
        let instructions = if instructions.is_null() {
            "instruction fetches are not simulated".to_owned()
        } else {
            format!(
                "instructions in {}, whose lines are in the rows of L1",
                cache(&Value::from("I1"), instructions)
            )
        };
        self.line("");
        self.wrapped(&format!(
            "Cache use: {}; lines of {} bytes; {instructions}; {}.",
            described.join(", "),
            levels.first().map_or(0, |level| level["line"].as_u64().unwrap_or(0)),
            match (cache_use["compatible"].as_str(), cache_use["prefetch"].as_str()) {
                (Some(_), _) => "counted as Callgrind does".to_owned(),
                (None, Some("none") | None) => "nothing is prefetched".to_owned(),
                (None, Some(what)) => format!("{what} prefetching"),
            },
        ));
        for level in levels {
            self.level(cache_use, level, top);
        }
        let tree = &cache_use["tree"];
        self.line("");
        self.wrapped(&format!(
            "A line of cache is charged to the code that loaded it, and to all that called that code then; bytes that were \
             not used until it was evicted, or until the end, are lost. Back-dating trees: {:.0} nodes on average, at most {}.",
            tree["nodes_mean"].as_f64().unwrap_or(0.0),
            count(&tree["nodes_most"]),
        ));
        let folded = tree["calls_folded"].as_u64().unwrap_or(0);
        if folded > 0 {
            self.wrapped(&format!(
                "{} charged to the caller: the stack was too deep, or the memory used up.",
                counted(folded as usize, "call")
            ));
        }
        if cache_use["balanced"] == false {
            self.wrapped("Own and inclusive costs do not balance: this is a fault of locality-bpf.");
        }
    }

    fn level(&mut self, cache_use: &Value, level: &Value, top: usize) {
        let name = level["level"].as_str().unwrap_or_default();
        let bytes = |value: &Value| size(value.as_u64().unwrap_or(0));
        self.line("");
        self.wrapped(&format!(
            "{name}: {} lines loaded ({}); {} ({}) never used",
            count(&level["lines_loaded"]),
            bytes(&level["bytes_loaded"]),
            bytes(&level["spatial_loss_bytes"]),
            percent(level["lost_share"].as_f64().unwrap_or(0.0)),
        ));
        let rows = |table: &str| -> Vec<&Value> {
            let all = cache_use[table].as_array().into_iter().flatten();
            all.filter(|row| row["level"] == name).collect()
        };
        let lost: Vec<&Value> =
            rows("by_function").into_iter().filter(|row| row["inclusive"].as_u64() > Some(0)).collect();
        if lost.is_empty() {
            return;
        }
        self.line(&format!(
            "  {:>12} {:>11} {:>12}  {}",
            "lost below", "of traffic", "lost by self", "function"
        ));
        for row in lost.into_iter().take(top) {
            self.line(&format!(
                "  {:>12} {:>11} {:>12}  {}",
                bytes(&row["inclusive"]),
                percent(row["traffic_share"].as_f64().unwrap_or(0.0)),
                bytes(&row["self"]),
                function(row),
            ));
        }
        let wasteful =
            rows("by_loading_line").into_iter().filter(|row| row["spatial_loss_bytes"].as_u64() > Some(0));
        for (at, row) in wasteful.take(top).enumerate() {
            if at == 0 {
                self.line(&format!("  Lines of code that load what is not used in {name}:"));
            }
            self.loading_line(at + 1, row, level["line"].as_u64().unwrap_or(0));
        }
        let data = rows("by_object").into_iter().filter(|row| row["spatial_loss_bytes"].as_u64() > Some(0));
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
                bytes(&row["spatial_loss_bytes"]),
                percent(row["share"].as_f64().unwrap_or(0.0)),
                format!("{} B", round(row["used_bytes_per_line"].as_f64().unwrap_or(0.0))),
                count(&row["lines_loaded"]),
                data_object(row),
            ));
        }
    }

    fn loading_line(&mut self, number: usize, row: &Value, line: u64) {
        let place = match (row["file"].as_str(), row["line"].as_u64()) {
            (Some(file), Some(line)) => format!("at {}:{line} in {}", base(file), function(row)),
            _ => match row["module"].as_str() {
                Some(module) => format!("in {} of {}", function(row), base(module)),
                None => format!("in {}", function(row)),
            },
        };
        let by = if row["access"] == "store" { " by stores" } else { "" };
        let accesses = row["access_count"].as_f64().map(|count| format!(", accessed {count:.1} times"));
        let sentence = format!(
            "{number:>4}. {} of {line} bytes per line used{by} {place}, {} lost ({} of all that is lost){}",
            round(row["used_bytes_per_line"].as_f64().unwrap_or(0.0)),
            size(row["spatial_loss_bytes"].as_u64().unwrap_or(0)),
            percent(row["share"].as_f64().unwrap_or(0.0)),
            accesses.unwrap_or_default(),
        );
        self.wrapped_with(&sentence, "      ");
        let callers: Vec<String> =
            row["callers"].as_array().into_iter().flatten().take(6).map(function).collect();
        if !callers.is_empty() {
            self.wrapped_with(&format!("      below {}", callers.join(", ")), "      ");
        }
    }
}

/// "table of prog, 64 KiB", "[anonymous memory] of 1 MiB, mapped 7 times".
fn data_object(row: &Value) -> String {
    let name = row["name"].as_str().unwrap_or_default();
    let bytes = row["bytes"].as_u64().map(size);
    match (row["kind"].as_str(), row["module"].as_str(), bytes) {
        (Some("file"), _, _) => base(name).to_owned(),
        (_, Some(module), Some(bytes)) => format!("{name} of {}, {bytes}", base(module)),
        (_, _, Some(bytes)) => match row["mappings"].as_u64() {
            Some(times) if times > 1 => format!("{name} of {bytes}, mapped {times} times"),
            _ => format!("{name} of {bytes}"),
        },
        _ => name.to_owned(),
    }
}

fn cache(name: &Value, cache: &Value) -> String {
    format!(
        "{} {} in {}",
        name.as_str().unwrap_or_default(),
        size(cache["bytes"].as_u64().unwrap_or(0)),
        counted(cache["ways"].as_u64().unwrap_or(0) as usize, "way"),
    )
}

fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
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
                "bytes_loaded": 64 << 20, "spatial_loss_bytes": 56 << 20, "lost_share": 0.875 }],
            "prefetch": "none",
            "instruction_cache": { "bytes": 32768, "ways": 4 },
            "by_function": [{ "function": "main", "level": "L1", "self": 0, "inclusive": 56 << 20, "traffic_share": 0.875 }],
            "by_loading_line": [row],
            "tree": { "nodes_mean": 3.4, "nodes_most": 7 },
        } });
        let page = print(&report, 5);
        for part in [
            "L1 32 KiB in 8 ways; lines of 64 bytes; instructions in I1 32 KiB in 4 ways, whose lines",
            "L1: 1,048,576 lines loaded (64 MiB); 56 MiB (87.5 %) never used",
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
