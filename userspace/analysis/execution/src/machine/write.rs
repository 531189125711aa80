//! A measured machine as a file that [`Machine::parse`] reads.
//!
//! Only numbers with a source are written. A number that the measurement had to replace by the timing
//! model's default is left out; where the format demands the number, the kind is `guess`.

use std::fmt::Write as _;

use super::{BadMachine, CORE, Machine, STORED};
use crate::schedule::Processor;

/// A machine as measured.
#[derive(Debug, Clone)]
pub struct Calibrated {
    /// Name of the processor.
    pub name: String,
    /// Rates and latencies.
    pub processor: Processor,
    /// Whether the kernel lists the first-level, the second-level and the last-level cache.
    pub listed: [bool; 3],
    /// Bits of the widest vectors.
    pub vector_bits: u32,
    /// Tool and version, for the sources.
    pub by: String,
}

/// Text of the machine file.
///
/// # Errors
/// A sentence, if the numbers are of no possible machine: a disturbed measurement.
pub fn calibrated(found: &Calibrated) -> Result<String, BadMachine> {
    let usual = Processor::default();
    let processor = &found.processor;
    let (measured, listed) = (format!("measured by {}", found.by), "cache size that the kernel lists");
    // The timing model replaces a failed measurement by its default, to the last bit.
    let number = |value: f64, default: f64| {
        let (source, kind) = match value.to_bits() == default.to_bits() {
            true => ("not measured here: the timing model's default", "guess"),
            false => (measured.as_str(), "measured"),
        };
        row(value, source, kind)
    };
    let bytes = |level: usize| {
        let value = processor.levels[level].from * 64.0;
        match found.listed[level] {
            true => row(value, listed, "vendor"),
            false => row(value, "the kernel lists no cache of this level: a common size", "guess"),
        }
    };
    let mut page = format!(
        "# One core of this machine, for `locality-bpf model FILE --machine`.\n\
         # Numbers that were not measured are absent, or of the kind `guess`.\n\
         name = {}\nisa = \"x86-64\"\n",
        quoted(&found.name)
    );
    let _ = writeln!(page, "clock_ghz = {}", number(processor.clock, usual.clock));
    let _ = writeln!(page, "issue_width = {}", number(processor.width, usual.width));
    let _ = writeln!(page, "fp_per_cycle = {}", number(processor.floats, usual.floats));
    let vectors = row(f64::from(found.vector_bits), "the widest vectors that CPUID reports", "vendor");
    let _ = writeln!(page, "vector_bits = {vectors}");
    page.push_str("\n[core]\n");
    let (mut own, mut other) = (*processor, usual);
    for key in &CORE {
        let (value, default) = (*(key.of)(&mut own), *(key.of)(&mut other));
        if value.to_bits() != default.to_bits() {
            let _ = writeln!(page, "{} = {}", key.name, row(value, &measured, "measured"));
        }
    }
    let first = match processor.wide_loads.to_bits() == usual.wide_loads.to_bits() {
        true => row(16.0 * processor.wide_loads, "not measured here: 16 bytes a load", "guess"),
        false => row(16.0 * processor.wide_loads, &format!("{measured}: loads of 16 bytes"), "measured"),
    };
    let _ = writeln!(
        page,
        "\n[[level]]\nbytes = {}\nlatency = {}\nbytes_per_cycle = {first}",
        bytes(0),
        number(processor.load, usual.load)
    );
    let memory = processor.levels[2];
    for (at, (level, default)) in processor.levels.iter().zip(usual.levels).enumerate() {
        let is_memory = at == 2;
        if !is_memory && level.latency >= memory.latency {
            page.push_str("\n# A cache is left out: neighbours made it as slow as memory.\n");
            continue;
        }
        match is_memory {
            true => page.push_str("\n[memory]\n"),
            false => {
                let _ = writeln!(page, "\n[[level]]\nbytes = {}", bytes(at + 1));
            }
        }
        let latency = match level.latency.to_bits() == default.latency.to_bits() {
            true => {
                row(processor.load + level.latency, "not measured here: the timing model's default", "guess")
            }
            false => row(processor.load + level.latency, &measured, "measured"),
        };
        let _ = writeln!(page, "latency = {latency}");
        let rate = |between: f64, default: f64| match between.to_bits() == default.to_bits() {
            true => row(64.0 / between, "not measured here: the timing model's default", "guess"),
            false => row(64.0 / between, &measured, "measured"),
        };
        let _ = writeln!(page, "bytes_per_cycle = {}", rate(level.between, default.between));
        // Stores to caches are not measured: twice the time of loads stands for both.
        if is_memory && level.stored.to_bits() != default.stored.to_bits() {
            let _ = writeln!(page, "{STORED} = {}", row(64.0 / level.stored, &measured, "measured"));
        }
    }
    match Machine::parse(&page) {
        Ok(_) => Ok(page),
        Err(why) => Err(BadMachine(format!(
            "the numbers measured are of no possible machine ({why}): calibrate again while the machine has less \
             other work"
        ))),
    }
}

/// `{ value = …, source = "…", kind = "…" }`, with four digits.
fn row(value: f64, source: &str, kind: &str) -> String {
    let rounded: f64 =
        if value.abs() < 1e4 { format!("{value:.3e}").parse().unwrap_or(value) } else { value };
    format!("{{ value = {rounded}, source = {}, kind = \"{kind}\" }}", quoted(source))
}

/// A TOML string.
fn quoted(text: &str) -> String {
    let mut quoted = "\"".to_owned();
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => quoted.push(' '),
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Level;

    fn found() -> Calibrated {
        let mut processor = Processor {
            clock: 3.712,
            width: 7.913,
            loads: 2.951,
            wide_loads: 1.973,
            stores: 1.011,
            close_stores: 1.931,
            integers: 5.77,
            floats: 3.42,
            load: 4.03,
            forward: 0.9,
            forward_anew: 7.1,
            add: 2.01,
            multiply: 3.02,
            parallel: 21.7,
            ..Processor::default()
        };
        processor.levels = [
            Level { from: 768.0, latency: 10.2, between: 1.7, stored: 3.4 },
            Level { from: 16384.0, latency: 51.4, between: 3.1, stored: 6.2 },
            Level { from: 524_288.0, latency: 402.7, between: 12.3, stored: 33.1 },
        ];
        let by = "a \"test\" \\".to_owned();
        Calibrated { name: "A\nB".to_owned(), processor, listed: [true; 3], vector_bits: 512, by }
    }

    /// All numbers that the replay reads, without those that a file has no key for.
    fn numbers(processor: &Processor) -> Vec<f64> {
        let mut of = *processor;
        let mut numbers: Vec<f64> = CORE.iter().map(|key| *(key.of)(&mut of)).collect();
        numbers.extend([of.clock, of.width, of.floats, of.load]);
        numbers.extend(
            of.levels.iter().flat_map(|level| [level.from, level.latency, level.between, level.stored]),
        );
        numbers
    }

    #[test]
    fn a_written_machine_is_the_measured_one() {
        let found = found();
        let machine = Machine::parse(&calibrated(&found).unwrap()).unwrap();
        assert_eq!((machine.name.as_str(), machine.vector_bits), ("A B", 512.0));
        assert!(machine.guesses.is_empty(), "{:?}", machine.guesses);
        for (read, measured) in numbers(&machine.processor()).into_iter().zip(numbers(&found.processor)) {
            // Four digits, and differences of two such numbers.
            assert!((read / measured - 1.0).abs() < 2e-3, "{read} {measured}");
        }
    }

    #[test]
    fn what_was_not_measured_is_absent_or_a_guess() {
        let usual = Processor::default();
        let mut found = found();
        (found.processor.add, found.processor.width) = (usual.add, usual.width);
        found.processor.levels[1].latency = usual.levels[1].latency;
        found.listed[2] = false;
        let text = calibrated(&found).unwrap();
        let machine = Machine::parse(&text).unwrap();
        assert!(!text.contains("\nadd = ") && text.contains("\nmultiply = "), "{text}");
        assert_eq!(machine.guesses, ["issue_width", "level 3.bytes", "level 3.latency"]);
    }

    #[test]
    fn a_cache_as_slow_as_memory_is_left_out_and_nonsense_refused() {
        let mut found = found();
        found.processor.levels[1].latency = found.processor.levels[2].latency;
        assert_eq!(Machine::parse(&calibrated(&found).unwrap()).unwrap().levels.len(), 3);
        found.processor.levels[0].latency = 0.0;
        found.processor.clock = 40.0;
        assert!(calibrated(&found).unwrap_err().to_string().contains("of no possible machine (`clock_ghz`"));
    }
}
