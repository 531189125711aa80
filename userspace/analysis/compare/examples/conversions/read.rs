//! Reads the input of the conversions from the report of `locality-bpf exact --fine`.
//!
//! Threads are converted apart, because distances are per thread: a stream is one thread's phases.

use locality_mrc::{
    distances::{Bar, Distances},
    phases::Phase,
};
use serde_json::Value;

/// A run at a granularity.
pub struct Run {
    /// Of each thread of each program, in order of time.
    pub streams: Vec<Vec<Phase>>,
    /// The exact stack distances of all threads.
    pub stack: Distances,
    pub touches: f64,
}

/// Granularities of a report in bytes, with the run measured at each.
pub fn runs(report: &Value) -> Result<Vec<(u64, Run)>, String> {
    let grains = report["reuse"].as_object().ok_or("no report of locality-bpf")?;
    let mut runs = Vec::new();
    for (bytes, grain) in grains {
        let bytes: u64 = bytes.parse().map_err(|_| format!("reuse.{bytes} is no granularity"))?;
        runs.push((bytes, run(grain)?));
    }
    runs.sort_by_key(|run| run.0);
    Ok(runs)
}

fn run(grain: &Value) -> Result<Run, String> {
    let phases = grain["phases"].as_array().ok_or("no phases")?;
    let mut streams: Vec<Vec<Phase>> = Vec::new();
    for value in phases {
        if number(&value["first_access"])? == 0.0 {
            streams.push(Vec::new());
        }
        let phase = Phase {
            time: histogram(&value["fine"]["time"], number(&value["cold"])?)?,
            accesses: number(&value["accesses"])?,
        };
        streams.last_mut().ok_or("the first phase does not begin at the first access")?.push(phase);
    }
    let stack = histogram(&grain["fine"]["stack"], number(&grain["cold"])?)?;
    let of_phases: f64 = streams.iter().flatten().map(|phase| phase.time.touches()).sum();
    if of_phases != stack.touches() {
        return Err(format!("phases have {of_phases} touches, the run has {}", stack.touches()));
    }
    Ok(Run { touches: stack.touches(), streams, stack })
}

fn number(value: &Value) -> Result<f64, String> {
    value.as_f64().ok_or_else(|| format!("{value} is no number"))
}

fn histogram(value: &Value, cold: f64) -> Result<Distances, String> {
    let rows = value["rows"].as_array().ok_or("no fine bins: run locality-bpf exact with --fine")?;
    let mut bins = Vec::with_capacity(rows.len());
    for row in rows {
        let whole = |column: usize| row[column].as_u64().ok_or_else(|| format!("{row} is no bin"));
        let bar = Bar { low: whole(0)?, high: whole(1)?, weight: number(&row[2])? };
        bins.push((bar, row[3].as_f64()));
    }
    let found = if bins.iter().all(|bin| bin.1.is_some()) {
        Distances::with_means(bins.iter().map(|(bar, mean)| (*bar, mean.unwrap_or_default())), cold)
    } else {
        Distances::new(bins.iter().map(|bin| bin.0).collect(), cold)
    };
    found.map_err(|error| error.to_string())
}
