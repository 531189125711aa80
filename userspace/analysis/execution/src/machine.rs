//! Machines as files: TOML, every number with its source and its kind.
//!
//! ```toml
//! name = "BG/Q"
//! isa = "ppc64"
//! clock_ghz = { value = 1.6, source = "the paper, section VI", kind = "vendor" }
//! ```
//!
//! Kinds are `vendor`, `measured` and `guess`. Unknown keys, missing ones, and numbers that no machine has
//! are refused in a sentence. The table `[core]`, the rate of stored bytes and the rate of independent lines
//! may be absent; [`calibrated`] writes them where they were measured.

mod write;

use std::fmt;

use toml::{Table, Value};

use crate::schedule::{Level as CacheLevel, Processor};

pub use self::write::{Calibrated, calibrated};

/// Key of [`Level::bytes_per_cycle_stored`].
const STORED: &str = "bytes_per_cycle_stored";

/// Where a number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The vendor's.
    Vendor,
    /// Measured.
    Measured,
    /// A guess.
    Guess,
}

/// A level of caches, or memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// Capacity in bytes; infinite for memory.
    pub bytes: f64,
    /// Cycles of an access.
    pub latency: f64,
    /// Bytes in a cycle that come from here.
    pub bytes_per_cycle: f64,
    /// Bytes in a cycle of lines that come from here, are stored to and go back; `None`: half as many.
    pub bytes_per_cycle_stored: Option<f64>,
}

/// A number of the core that a file may have.
#[derive(Debug, Clone, Copy)]
struct CoreKey {
    name: &'static str,
    /// Least and greatest value.
    range: (f64, f64),
    of: fn(&mut Processor) -> &mut f64,
}

/// Operations in a cycle, then latencies in cycles, as in [`Processor`].
const CORE: [CoreKey; 10] = [
    CoreKey { name: "loads", range: (0.1, 16.0), of: |core| &mut core.loads },
    CoreKey { name: "wide_loads", range: (0.1, 16.0), of: |core| &mut core.wide_loads },
    CoreKey { name: "stores", range: (0.1, 16.0), of: |core| &mut core.stores },
    CoreKey { name: "close_stores", range: (0.1, 16.0), of: |core| &mut core.close_stores },
    CoreKey { name: "integers", range: (0.1, 32.0), of: |core| &mut core.integers },
    CoreKey { name: "forward", range: (0.0, 40.0), of: |core| &mut core.forward },
    CoreKey { name: "forward_anew", range: (0.0, 40.0), of: |core| &mut core.forward_anew },
    CoreKey { name: "add", range: (1.0, 40.0), of: |core| &mut core.add },
    CoreKey { name: "multiply", range: (1.0, 40.0), of: |core| &mut core.multiply },
    CoreKey { name: "independent_line", range: (1.0, 2000.0), of: |core| &mut core.parallel },
];

/// A machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Its instruction set.
    pub isa: String,
    /// Cycles in a nanosecond.
    pub clock_ghz: f64,
    /// Instructions issued in a cycle.
    pub issue_width: f64,
    /// Operations of floating point of one element in a cycle, without vectors.
    pub fp_per_cycle: f64,
    /// Bits of a vector.
    pub vector_bits: f64,
    /// Caches, the first level first, then memory.
    pub levels: Vec<Level>,
    /// Numbers of the core that the file has: key and value.
    pub core: Vec<(&'static str, f64)>,
    /// Numbers that are guesses.
    pub guesses: Vec<String>,
}

/// What is wrong with a file: one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadMachine(pub String);

impl fmt::Display for BadMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadMachine {}

struct Reader {
    guesses: Vec<String>,
}

impl Reader {
    /// A number that lies in a range.
    fn number(&mut self, table: &Table, at: &str, key: &str, range: (f64, f64)) -> Result<f64, BadMachine> {
        let name = if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
        let bad = |what: &str| BadMachine(format!("`{name}` {what}"));
        let value = table.get(key).ok_or_else(|| bad("is missing"))?;
        let Value::Table(parts) = value else {
            return Err(bad("must be { value = NUMBER, source = \"…\", kind = \"vendor\" }"));
        };
        unknown(parts, &["value", "source", "kind"], &name)?;
        let number = match parts.get("value") {
            Some(Value::Integer(number)) => *number as f64,
            Some(Value::Float(number)) => *number,
            Some(_) => return Err(bad("has a value that is no number")),
            None => return Err(bad("has no value")),
        };
        if !(range.0..=range.1).contains(&number) {
            let shown = if number.abs() < 1e9 { number.to_string() } else { format!("{number:e}") };
            return Err(bad(&format!("is {shown}: a number from {} to {} was expected", range.0, range.1)));
        }
        match parts.get("source") {
            Some(Value::String(source)) if !source.trim().is_empty() => {}
            _ => return Err(bad("has no source")),
        }
        match parts.get("kind").and_then(Value::as_str) {
            Some("vendor" | "measured") => {}
            Some("guess") => self.guesses.push(name),
            _ => return Err(bad("has no kind: vendor, measured or guess")),
        }
        Ok(number)
    }
}

fn unknown(table: &Table, known: &[&str], at: &str) -> Result<(), BadMachine> {
    match table.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) if at.is_empty() => {
            Err(BadMachine(format!("`{key}` is no key of a machine: {}", known.join(", "))))
        }
        Some(key) => Err(BadMachine(format!("`{at}.{key}` is no key: {}", known.join(", ")))),
        None => Ok(()),
    }
}

impl Machine {
    /// The machine as the timing model takes it. Operations in a cycle that a file does not have are those of
    /// common processors, as many as the machine starts at most.
    pub fn processor(&self) -> Processor {
        let usual = Processor::default();
        let load = self.levels.first().map_or(usual.load, |level| level.latency);
        let mut levels = usual.levels;
        let beyond = self.levels.len().saturating_sub(1);
        for (at, level) in levels.iter_mut().enumerate() {
            // A machine without a third cache takes the second in its place.
            let of = if at + 1 == 3 { beyond } else { (at + 1).min(beyond.saturating_sub(1)) };
            let (Some(found), Some(before)) = (self.levels.get(of), self.levels.get(of.saturating_sub(1)))
            else {
                continue;
            };
            let between = 64.0 / found.bytes_per_cycle;
            *level = CacheLevel {
                from: before.bytes / 64.0,
                latency: (found.latency - load).max(1.0),
                between,
                stored: found.bytes_per_cycle_stored.map_or(2.0 * between, |bytes| 64.0 / bytes),
            };
        }
        let most = |usual: f64| usual.min(self.issue_width);
        let mut processor = Processor {
            clock: self.clock_ghz,
            width: self.issue_width,
            loads: most(usual.loads),
            wide_loads: most(usual.wide_loads),
            stores: most(usual.stores),
            close_stores: most(usual.close_stores),
            integers: most(usual.integers),
            floats: self.fp_per_cycle,
            load,
            levels,
            ..usual
        };
        for (name, value) in &self.core {
            if let Some(key) = CORE.iter().find(|key| key.name == *name) {
                *(key.of)(&mut processor) = *value;
            }
        }
        processor
    }

    /// Reads a file's text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, BadMachine> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            BadMachine(error.to_string().lines().collect::<Vec<_>>().join(" "))
        })?;
        let keys = [
            "name",
            "isa",
            "clock_ghz",
            "issue_width",
            "fp_per_cycle",
            "vector_bits",
            "core",
            "level",
            "memory",
        ];
        unknown(&table, &keys, "")?;
        let words = |key: &str| match table.get(key) {
            Some(Value::String(text)) if !text.trim().is_empty() => Ok(text.clone()),
            _ => Err(BadMachine(format!("`{key}` is missing, or no text"))),
        };
        let (name, isa) = (words("name")?, words("isa")?);
        let mut reader = Reader { guesses: Vec::new() };
        let mut number = |key: &str, low: f64, high: f64| reader.number(&table, "", key, (low, high));
        let clock_ghz = number("clock_ghz", 0.1, 10.0)?;
        let issue_width = number("issue_width", 0.5, 32.0)?;
        let fp_per_cycle = number("fp_per_cycle", 0.1, 16.0)?;
        let vector_bits = number("vector_bits", 32.0, 2048.0)?;
        let mut core = Vec::new();
        if let Some(table) = table.get("core") {
            let Value::Table(table) = table else {
                return Err(BadMachine("`core` is no table".to_owned()));
            };
            unknown(table, &CORE.map(|key| key.name), "core")?;
            for key in CORE.iter().filter(|key| table.contains_key(key.name)) {
                core.push((key.name, reader.number(table, "core", key.name, key.range)?));
            }
        }
        let Some(Value::Array(caches)) = table.get("level") else {
            return Err(BadMachine("no cache: a [[level]] is missing".to_owned()));
        };
        let mut levels: Vec<Level> = Vec::new();
        for (place, cache) in caches.iter().enumerate() {
            let at = format!("level {}", place + 1);
            let Value::Table(cache) = cache else {
                return Err(BadMachine(format!("`{at}` is no table")));
            };
            unknown(cache, &["bytes", "latency", "bytes_per_cycle", STORED], &at)?;
            let mut number = |key: &str, low: f64, high: f64| reader.number(cache, &at, key, (low, high));
            let mut level = Level {
                bytes: number("bytes", 1024.0, 1e12)?,
                latency: number("latency", 1.0, 1000.0)?,
                bytes_per_cycle: number("bytes_per_cycle", 0.1, 1024.0)?,
                bytes_per_cycle_stored: None,
            };
            if cache.contains_key(STORED) {
                level.bytes_per_cycle_stored = Some(number(STORED, 0.1, 1024.0)?);
            }
            if let Some(before) = levels.last()
                && (level.bytes <= before.bytes || level.latency <= before.latency)
            {
                return Err(BadMachine(format!("`{at}` is not larger and slower than the level before")));
            }
            levels.push(level);
        }
        if levels.is_empty() {
            return Err(BadMachine("no cache: a [[level]] is missing".to_owned()));
        }
        let Some(Value::Table(memory_table)) = table.get("memory") else {
            return Err(BadMachine("`memory` is missing: { latency, bytes_per_cycle }".to_owned()));
        };
        unknown(memory_table, &["latency", "bytes_per_cycle", STORED], "memory")?;
        let mut number =
            |key: &str, low: f64, high: f64| reader.number(memory_table, "memory", key, (low, high));
        let mut memory = Level {
            bytes: f64::INFINITY,
            latency: number("latency", 1.0, 10_000.0)?,
            bytes_per_cycle: number("bytes_per_cycle", 0.01, 1024.0)?,
            bytes_per_cycle_stored: None,
        };
        if memory_table.contains_key(STORED) {
            memory.bytes_per_cycle_stored = Some(number(STORED, 0.01, 1024.0)?);
        }
        if levels.last().is_some_and(|last| memory.latency <= last.latency) {
            return Err(BadMachine("`memory` is not slower than the last cache".to_owned()));
        }
        levels.push(memory);
        let guesses = reader.guesses;
        Ok(Self { name, isa, clock_ghz, issue_width, fp_per_cycle, vector_bits, levels, core, guesses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BGQ: &str = include_str!("../machines/bgq.toml");
    const XEON: &str = include_str!("../machines/e5-2420.toml");

    #[test]
    fn the_papers_machines_are_read() {
        let (bgq, xeon) = (Machine::parse(BGQ).unwrap(), Machine::parse(XEON).unwrap());
        assert_eq!((bgq.clock_ghz, bgq.levels[1].latency, bgq.levels[2].latency), (1.6, 51.0, 180.0));
        assert!(xeon.levels.len() == 4 && !xeon.guesses.is_empty());
    }

    #[test]
    fn wrong_files_are_refused_in_a_sentence() {
        let change = |from: &str, to: &str| {
            assert!(BGQ.contains(from), "{from}");
            Machine::parse(&BGQ.replacen(from, to, 1)).unwrap_err().to_string()
        };
        for (from, to, expected) in [
            ("issue_width", "isue_width", "`isue_width` is no key of a machine"),
            ("value = 51,", "value = \"51 cycles\",", "`level 2.latency` has a value that is no number"),
            ("value = 51,", "value = 0,", "`level 2.latency` is 0: a number from 1"),
            ("value = 51,", "value = 5,", "is not larger and slower"),
            ("value = 180,", "value = 20,", "`memory` is not slower than the last cache"),
            ("source = \"the paper, section VI\", ", "", "has no source"),
            ("kind = \"measured\"", "kind = \"sure\"", "has no kind"),
            ("[memory]", "[memry]", "`memry` is no key of a machine"),
            ("name = \"BG/Q\"", "", "`name` is missing"),
            ("value = 1.6,", "value = nan,", "`clock_ghz` is NaN"),
            ("value = 1.6,", "value = 1e300,", "`clock_ghz` is 1e300: a number from 0.1 to 10"),
            ("[memory]", "[core]\nadds = 3\n[memory]", "`core.adds` is no key: loads, wide_loads"),
            ("[memory]", "[core]\nadd = 3\n[memory]", "`core.add` must be { value = NUMBER"),
            ("isa = ", "core = 3\nisa = ", "`core` is no table"),
            ("name =", "name", "expected"),
        ] {
            let error = change(from, to);
            assert!(error.contains(expected), "{from} → {to}: {error}");
        }
        let without: String = BGQ.split("[[level]]").next().unwrap().to_owned();
        assert!(Machine::parse(&without).unwrap_err().to_string().contains("a [[level]] is missing"));
    }
}
