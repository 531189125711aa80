//! Histograms in fine bins (`--fine`): what conversions from time to stack distances start from and
//! are held against.
//!
//! 32 bins for each power of two, one for each distance below 64. A bin of time distances has its
//! mean, because where its reuses lie decides conversions: a loop's reuses all have one distance,
//! which may lie next to the edge of a cache size.

use locality_reuse::{GrainSummary, Phase, fine_low};
use serde_json::{Value, json};

/// Of the whole run.
pub fn of_run(sum: &GrainSummary) -> Value {
    value(&sum.time, &sum.time_sums, &sum.stack)
}

/// Of a phase.
pub fn of_phase(phase: &Phase) -> Value {
    value(&phase.time, &phase.time_sums, &phase.stack)
}

fn value(time: &[u64], sums: &[u64], stack: &[u64]) -> Value {
    json!({
        "time": { "unit": "accesses", "columns": ["low", "high", "count", "mean"], "rows": rows(time, Some(sums)) },
        "stack": { "unit": "granules", "columns": ["low", "high", "count"], "rows": rows(stack, None) },
    })
}

/// Bins that are not empty.
fn rows(counts: &[u64], sums: Option<&[u64]>) -> Vec<Value> {
    let row = |(bin, count): (usize, &u64)| {
        let mut row = vec![json!(fine_low(bin)), json!(fine_low(bin + 1)), json!(count)];
        if let Some(sums) = sums {
            row.push(json!(sums.get(bin).copied().unwrap_or(0) as f64 / *count as f64));
        }
        Value::Array(row)
    };
    counts.iter().enumerate().filter(|(_, count)| **count > 0).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_the_bins_that_are_not_empty() {
        let mut counts = vec![0; 70];
        (counts[3], counts[66]) = (2, 4);
        let mut sums = vec![0; 70];
        (sums[3], sums[66]) = (6, 4 * 68 + 2);
        assert_eq!(rows(&counts, Some(&sums)), [json!([3, 4, 2, 3.0]), json!([68, 70, 4, 68.5])]);
        assert_eq!(rows(&counts, None), [json!([3, 4, 2]), json!([68, 70, 4])]);
    }
}
