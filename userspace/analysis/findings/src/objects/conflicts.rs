//! Displacement: pairs of objects competing for a cache level.
//!
//! **Definition.** A use of A predicted to miss at the level (the line is gone at the next
//! touch) was displaced by the lines fetched between the use and the reuse. Hence the use's
//! expected misses are shared out among objects as the line fetches in between are, and summed
//! over the uses of A: conflict(A, B) = Σ misses(u) · fetches of B between ÷ fetches between. A
//! *fetch* is a use predicted to miss at the smallest level: the use brings a line in. *Between*
//! are the uses sampled in one process from the use to the reuse trapped by a watch, or, if no
//! reuse was trapped or fewer than [`NEAREST`] uses lie in between, the [`NEAREST`] uses nearest
//! in time. Victim and cause may be one object, like a stream larger than the cache.
//!
//! Sources of error: the mix in between is a sample's, and the neighbourhood's for near reuses.
//! Surviving lines of A do not enter. A fetch of a line displaced just before counts in full.

use std::collections::BTreeMap;

use locality_model::ObjectId;

use super::{DataUse, Rows};

/// Least number of uses to show the fetches between use and reuse: several windows of 64 uses each.
pub const NEAREST: usize = 256;
/// Uses looked at, evenly spread.
const MOST_USES: usize = 40_000;
/// Objects distinguished, by most fetches.
const MOST_ROWS: usize = 24;
/// Pairs with a smaller share of the misses are left out.
const SMALL: f64 = 0.005;

/// Displacement between two objects, or within one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Conflict {
    /// Object of the displaced lines.
    pub victim: ObjectId,
    /// Object fetched meanwhile.
    pub by: ObjectId,
    /// Share of the predicted misses at the level.
    pub share: f64,
    /// Uses of the victim, as the basis of the share.
    pub n: u64,
}

/// Finds the pairs at a level, heaviest first. `uses` are in order.
pub(super) fn find(uses: &[DataUse], rows: &Rows, level: usize) -> Vec<Conflict> {
    let step = (uses.len() / MOST_USES).max(1);
    let uses: Vec<&DataUse> = uses.iter().step_by(step).filter(|one| one.touches > 0.0).collect();
    let mut fetches: BTreeMap<usize, f64> = BTreeMap::new();
    for one in &uses {
        if let Some(row) = one.row {
            *fetches.entry(row).or_default() += one.misses[0];
        }
    }
    let mut heaviest: Vec<(usize, f64)> = fetches.into_iter().filter(|(_, sum)| *sum > 0.0).collect();
    heaviest.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    heaviest.truncate(MOST_ROWS);
    let told: Vec<usize> = heaviest.into_iter().map(|(row, _)| row).collect();

    let mut processes: BTreeMap<u32, Vec<&DataUse>> = BTreeMap::new();
    for one in uses {
        processes.entry(one.pid).or_default().push(one);
    }
    let mut found: BTreeMap<(usize, usize), (f64, u64)> = BTreeMap::new();
    let mut total = 0.0;
    for mut of_process in processes.into_values() {
        of_process.sort_by_key(|one| (one.time_ns, one.position));
        total += of_process.iter().map(|one| one.misses[level]).sum::<f64>();
        in_process(&of_process, level, &told, &mut found);
    }
    if total <= 0.0 {
        return Vec::new();
    }
    let conflict = |((victim, by), (misses, n)): ((usize, usize), (f64, u64))| {
        Some(Conflict { victim: rows.object(victim)?, by: rows.object(by)?, share: misses / total, n })
    };
    let mut found: Vec<Conflict> = found.into_iter().filter_map(conflict).collect();
    found.retain(|pair| pair.share >= SMALL);
    found.sort_by(|a, b| b.share.total_cmp(&a.share).then((a.victim, a.by).cmp(&(b.victim, b.by))));
    found
}

fn in_process(
    uses: &[&DataUse],
    level: usize,
    told: &[usize],
    found: &mut BTreeMap<(usize, usize), (f64, u64)>,
) {
    // Running sums of fetches: by distinguished object, and in total.
    let columns = told.len() + 1;
    let mut sums = vec![0.0; columns];
    for (index, one) in uses.iter().enumerate() {
        for column in 0..columns {
            let here = if column == told.len() || one.row == told.get(column).copied() {
                one.misses[0]
            } else {
                0.0
            };
            sums.push(sums[index * columns + column] + here);
        }
    }
    for one in uses.iter().filter(|one| one.misses[level] > 0.0) {
        let Some(victim) = one.row else { continue };
        let (from, until) = between(uses, one);
        let all = sums[until * columns + told.len()] - sums[from * columns + told.len()];
        if all <= 0.0 {
            continue;
        }
        for (column, by) in told.iter().enumerate() {
            let fetched = sums[until * columns + column] - sums[from * columns + column];
            if fetched > 0.0 {
                let (misses, n) = found.entry((victim, *by)).or_default();
                *misses += one.misses[level] * fetched / all;
                *n += 1;
            }
        }
    }
}

/// The uses between a use and the reuse.
fn between(uses: &[&DataUse], one: &DataUse) -> (usize, usize) {
    let end_ns = one.reused_ns.unwrap_or(one.time_ns).max(one.time_ns);
    let mut from = uses.partition_point(|other| other.time_ns < one.time_ns);
    let mut until = uses.partition_point(|other| other.time_ns <= end_ns);
    let least = NEAREST.min(uses.len());
    while until - from < least {
        // The nearer neighbour in time; the later use for
        // equal distances, or without an earlier use.
        let before = from.checked_sub(1).and_then(|at| uses.get(at)).map(|other| one.time_ns - other.time_ns);
        let after = uses.get(until).map(|other| other.time_ns.saturating_sub(end_ns));
        match (before, after) {
            (Some(before), Some(after)) if before < after => from -= 1,
            (Some(_), None) => from -= 1,
            _ => until += 1,
        }
    }
    (from, until)
}

#[cfg(test)]
mod tests;
