//! Histograms in fine bins (`--fine`): input and
//! reference of conversions from time to stack distances.
//!
//! 32 bins for each power of two, one bin for each distance below 64. A bin of time
//! distances stores the mean, because conversions depend on the reuses' place in the bin:
//! a loop's reuses have a single distance, perhaps next to the edge of a cache size.

use locality_report::schema::{
    Number,
    reuse::{Fine, FineHistogram},
};
use locality_reuse::{GrainSummary, Phase, fine_low};

/// Of the whole run.
pub fn of_run(sum: &GrainSummary) -> Fine {
    fine(&sum.time, &sum.time_sums, &sum.stack)
}

/// Of a phase.
pub fn of_phase(phase: &Phase) -> Fine {
    fine(&phase.time, &phase.time_sums, &phase.stack)
}

fn fine(time: &[u64], sums: &[u64], stack: &[u64]) -> Fine {
    let table = |unit: &str, columns: &[&str], rows| FineHistogram {
        columns: columns.iter().map(|column| (*column).to_owned()).collect(),
        rows,
        unit: unit.to_owned(),
    };
    Fine {
        stack: table("granules", &["low", "high", "count"], rows(stack, None)),
        time: table("accesses", &["low", "high", "count", "mean"], rows(time, Some(sums))),
    }
}

/// Bins with counts.
fn rows(counts: &[u64], sums: Option<&[u64]>) -> Vec<Vec<Number>> {
    let row = |(bin, count): (usize, &u64)| {
        let mut row = vec![fine_low(bin).into(), fine_low(bin + 1).into(), (*count).into()];
        if let Some(sums) = sums {
            row.push((sums.get(bin).copied().unwrap_or(0) as f64 / *count as f64).into());
        }
        row
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
        let as_json = |rows: Vec<Vec<Number>>| serde_json::to_string(&rows).unwrap();
        assert_eq!(as_json(rows(&counts, Some(&sums))), "[[3,4,2,3.0],[68,70,4,68.5]]");
        assert_eq!(as_json(rows(&counts, None)), "[[3,4,2],[68,70,4]]");
    }
}
