//! Rates of real programs against the truth: runs a command, samples it, and compares with accesses
//! known from elsewhere.
//!
//! The timing model is that of a typical processor, not of the one it runs on, which only
//! `locality-bpf` measures. `reality NAME ACCESSES INSTRUCTIONS SAMPLES COMMAND…`: ACCESSES and
//! INSTRUCTIONS are those of the whole run as `locality-bpf exact` counts them. Readings come from
//! a perf event (registers every 120 µs, a third of them used) and from another processor (words,
//! read without stopping the program); the stop is a ptrace interrupt. Time is the thread's CPU
//! time less a cost for each tick, `TICK` nanoseconds. `VERBOSE=1` prints each sample. Programs of
//! one thread only.
#![expect(clippy::print_stdout, reason = "what it is for")]

#[cfg(target_os = "linux")]
mod target;
#[cfg(target_os = "linux")]
mod ticks;

use locality_rate::{Machine, Rates, Source};

/// Pauses between samples in µs: from, and as much again at random.
const PAUSE: u64 = 10_000;

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, name, accesses, instructions, samples, command @ ..] = arguments.as_slice() else {
        return Err("reality NAME ACCESSES INSTRUCTIONS SAMPLES COMMAND…".into());
    };
    let tick = std::env::var("TICK").ok().and_then(|text| text.parse().ok()).unwrap_or(0.0);
    let mut target = target::Target::start(command, tick)?;
    let mut rates = Rates::new(0.0, Machine::default());
    let mut random = fastrand::Rng::with_seed(1);
    let mut ends = std::collections::BTreeMap::new();
    let most: usize = samples.parse()?;
    while rates.len() < most {
        let pause = PAUSE + random.u64(0..PAUSE);
        let length =
            if random.u32(0..8) == 0 { 100_000 } else { [3_000, 10_000, 10_000][random.usize(0..3)] };
        match target.sample(pause, length, &mut rates, &mut random)? {
            Some(end) => *ends.entry(end).or_insert(0_u32) += 1,
            None => break,
        }
    }
    let observing = target.observing.as_secs_f64() * 1e6 / rates.len().max(1) as f64;
    let cpu_ns = target.finish()?;
    let truth = accesses.parse::<f64>()? / cpu_ns;
    let truth_instructions = instructions.parse::<f64>()? / cpu_ns;
    let all = rates.rates();
    let verbose = std::env::var_os("VERBOSE").is_some();
    let mut by_source = std::collections::BTreeMap::new();
    let (mut own, mut every, mut of_instructions) = (Vec::new(), Vec::new(), Vec::new());
    for (number, rate) in all.iter().enumerate() {
        *by_source.entry(rate.source).or_insert(0_u32) += 1;
        let Some(estimate) = rate.accesses_per_ns else { continue };
        if verbose {
            println!(
                "{number} {:?} {:.3} [{:.3} {:.3}] {}",
                rate.source,
                estimate.value / truth,
                estimate.low / truth,
                estimate.high / truth,
                rates.explain(number)
            );
        }
        if rate.source.is_own() {
            own.push(estimate.value / truth);
        }
        if rate.source != Source::Unknown {
            every.push(estimate.value / truth);
            of_instructions.extend(rate.instructions_per_ns.map(|rate| rate.value / truth_instructions));
        }
    }
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    own.sort_unstable_by(f64::total_cmp);
    let quantile = |q: f64| own.get((own.len() as f64 * q) as usize).copied().unwrap_or(f64::NAN);
    let n = all.len().max(1) as f64;
    println!(
        "{name:14} n {:3} cpu {:.2}s truth {truth:.3}/ns own {:.2} mean {:.3} [p10 {:.2} p50 {:.2} p90 {:.2}]; known {:.2} mean {:.3} instr {:.3}; {observing:.0} µs a sample; {:?} {:?}",
        all.len(),
        cpu_ns / 1e9,
        own.len() as f64 / n,
        mean(&own),
        quantile(0.1),
        quantile(0.5),
        quantile(0.9),
        every.len() as f64 / n,
        mean(&every),
        mean(&of_instructions),
        by_source,
        ends
    );
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("needs Linux");
}
