//! `locality-bpf calibrate`: the costs of this machine as text, or the machine as a file for `model`.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use locality_execution::machine;
use locality_execution::schedule::Processor as Machine;
use locality_kernel::writing::{check_place, to_stdout};
use locality_units::parse::WrongUse;

use locality_approximate::Gaussian;
use locality_kernel::machine::describe;
use locality_tracer::{governor::UnitCosts, session, skid::Skid};

use crate::cli::calibrate_args::{CalibrateArgs, CalibrateFormat};
use crate::private_file;

/// First words of a calibration as text.
const FIRST_WORDS: &str = "One tick of the sampling clock costs the traced thread";
/// The source of numbers in a machine file, without the version.
const BY: &str = "locality-bpf calibrate";
/// Longest file that may be a calibration, in bytes.
const LONGEST: u64 = 1 << 20;

/// Measures and prints.
///
/// # Errors
/// No rights to measure, a machine too busy, or a file that cannot be written: one sentence.
pub fn run(args: &CalibrateArgs, quiet: bool) -> Result<ExitCode> {
    if let Some(output) = &args.output {
        check(output)?;
    }
    let (prices, skid, machine) = session::calibrate()?;
    let page = match args.format {
        CalibrateFormat::Text => text(&prices, skid, &machine),
        CalibrateFormat::Toml => toml(&machine)?,
    };
    match &args.output {
        Some(output) => private_file::write(output, page.as_bytes(), "calibration", quiet)?,
        None => to_stdout(page.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks, before the measurement, that a calibration may be written there: to a new or an empty file, or in
/// place of an earlier calibration.
///
/// # Errors
/// Another place.
fn check(output: &Path) -> Result<(), WrongUse> {
    private_file::keep_apart(output, &[], "calibration", "-o")?;
    check_place(output, "calibration", "-o")?;
    let Ok(about) = std::fs::metadata(output) else { return Ok(()) };
    if !about.is_file() || about.len() == 0 || is_calibration(output) {
        return Ok(());
    }
    Err(WrongUse(format!(
        "the calibration would replace {}, which `calibrate` did not write: give -o another name",
        output.display()
    )))
}

/// Whether a file is a calibration of ours, as text or as a machine file.
fn is_calibration(file: &Path) -> bool {
    let mut page = Vec::new();
    let read = File::open(file).and_then(|file| file.take(LONGEST).read_to_end(&mut page));
    let page = String::from_utf8_lossy(&page);
    read.is_ok() && (page.starts_with(FIRST_WORDS) || page.contains(BY))
}

/// The machine file.
fn toml(processor: &Machine) -> Result<String> {
    let host = describe();
    let listed = [1, 2, 3].map(|level| host.caches.iter().any(|cache| cache.level == level));
    let vector_bits = if is_x86_feature_detected!("avx512f") {
        512
    } else if is_x86_feature_detected!("avx") {
        256
    } else {
        128
    };
    let name = if host.cpu.is_empty() { "this machine".to_owned() } else { host.cpu };
    let by = format!("{BY} {}", env!("CARGO_PKG_VERSION"));
    let found = machine::Calibrated { name, processor: *processor, listed, vector_bits, by };
    machine::calibrated(&found).map_err(|why| anyhow!("{why}"))
}

/// For people.
fn text(prices: &UnitCosts, skid: Skid, machine: &Machine) -> String {
    let Skid { histogram, gaussian } = skid;
    let mut page = format!(
        "{FIRST_WORDS} {:.1} µs here, one trap of a watchpoint {:.1} µs \
         ({:.1} µs more for the last one, after which it is disarmed), one reading of its progress {:.1} µs, waking it after a stop {:.1} µs. \
         While a watchpoint is armed, it copies by string instructions {:.1} times slower, its stores across cache lines are {:.1} times slower, \
         and its switches to other threads and back {:.1} times.\n",
        prices.tick_ns as f64 / 1e3,
        prices.trap_ns as f64 / 1e3,
        prices.disarm_ns as f64 / 1e3,
        prices.meter_ns as f64 / 1e3,
        prices.wake_ns as f64 / 1e3,
        prices.string_factor(),
        prices.split_store_factor(),
        prices.switch_factor()
    );
    let (all, Gaussian { mean, variance, .. }) = (histogram.values().sum::<u64>(), gaussian);
    page += &format!(
        "\nWhile a load waits for memory, the clock's samples are found {mean:.2} instructions after it (variance {variance:.2}; \
         {all} samples).\nInstructions after   share of samples\n"
    );
    for (distance, n) in histogram {
        let share = n as f64 / all as f64 * 100.0;
        if share >= 0.1 {
            page += &format!("{distance:>19}  {share:>5.1} %\n");
        }
    }
    page += &format!(
        "For events with this skid: locality-bpf objects FILE --against approximate --level instruction --skid \
         {mean:.2},{variance:.2}\n"
    );
    let levels = ["second-level cache", "last-level cache", "memory"];
    let levels: Vec<String> = (levels.iter().zip(machine.levels))
        .map(|(name, level)| {
            format!(
                "{name} {:.0} ({:.1} in a row, {:.1} stored to)",
                level.latency, level.between, level.stored
            )
        })
        .collect();
    page += &format!(
        "\nThe processor, for the timing model of rates: {:.2} cycles a nanosecond; in a cycle up to {:.1} instructions, {:.1} loads ({:.1} \
         of 16 bytes), {:.1} stores ({:.1} to one line), {:.1} operations of integers, {:.1} of floating point. Cycles of a load {:.1}, of one out of a store {:.1} ({:.1} where the address is computed anew), of an addition of floating \
         point {:.1}, of a multiplication {:.1}; longer for a line: {}.\n",
        machine.clock,
        machine.width,
        machine.loads,
        machine.wide_loads,
        machine.stores,
        machine.close_stores,
        machine.integers,
        machine.floats,
        machine.load,
        machine.forward,
        machine.forward_anew,
        machine.add,
        machine.multiply,
        levels.join(", ")
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_calibration_replaces_calibrations_alone() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str, text: &str| {
            let file = folder.path().join(name);
            std::fs::write(&file, text).unwrap();
            file
        };
        let machine = toml(&Machine { clock: 3.21, ..Machine::default() }).unwrap();
        for (name, text) in [("empty", ""), ("machine", machine.as_str()), ("text", FIRST_WORDS)] {
            check(&place(name, text)).unwrap();
        }
        check(&folder.path().join("new")).unwrap();
        check(Path::new("/dev/null")).unwrap();
        let why = check(&place("notes", "my notes")).unwrap_err().to_string();
        assert!(why.contains("`calibrate` did not write") && why.contains("give -o another name"), "{why}");
        let why = check(folder.path()).unwrap_err().to_string();
        assert!(why.contains("cannot write the calibration") && why.contains("is a folder"), "{why}");
        let profile = folder.path().join("p.locality");
        locality_profile::write(&profile, &locality_model::testing::loops::windowed(), None).unwrap();
        let why = check(&profile).unwrap_err().to_string();
        assert!(why.contains("would replace the profile"), "{why}");
    }
}
