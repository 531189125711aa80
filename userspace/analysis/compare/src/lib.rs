//! How alike two histograms or miss-ratio curves are.
//!
//! | number | what | where from |
//! |---|---|---|
//! | S | 1 − Σ \|B − B̂\| / 2 over 20 bins `[0,4K) [4K,8K) … [1G,2G)`, longer distances in the last | RDX eq. 1 and §V.A |
//! | Ŝ | the same over averages of adjacent bins, mild to reuses that land one bin off | RDX eq. 2 |
//! | Slog2 | eq. 1 over log2 bins from 0, `[0,1) [1,2) [2,4) …`, because most reuses are below 4K | this project |
//! | Slong | eq. 1 over the bins from 4K up, renormalised | this project |
//! | miss-ratio error | mean of \|difference\| over cache sizes 1, 2, 4 … granules, up to the larger footprint | this project |
//!
//! B and B̂ are shares of all reuses; cold touches have no bin and show in
//! the miss ratios alone. Histograms of unlike bins are compared on the bins
//! that both can distinguish: an edge inside a bar of either is dropped. S of
//! 1 says that the shares agree, not that the same reuses are in the bins.
//!
//! Sources of error: S changes with the bins (a histogram with a coarse
//! first bin looks better than the truth; the dropped edges are reported);
//! the mean over sizes weighs every doubling of the cache alike.

use locality_mrc::distances::{Bar, Distances};

pub mod curve;
pub mod print;
pub mod reports;

/// First edge of RDX's bins; all shorter distances are one bin.
pub const RDX_FIRST: u64 = 4 << 10;
/// Start of RDX's last bin.
const RDX_LAST: u64 = 1 << 30;

/// Likeness of two histograms, each number from 0 (nothing in common) to 1 (equal).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Similarity {
    /// S, RDX eq. 1.
    pub s: f64,
    /// Ŝ, RDX eq. 2.
    pub s_hat: f64,
    /// S over log2 bins from 0.
    pub s_log2: f64,
    /// S over RDX's bins from 4K up, renormalised; `None` if both lack reuses from 4K up.
    pub s_long: Option<f64>,
    /// Edges of the log2 bins dropped because a bar of either histogram crosses the edge.
    pub dropped_edges: usize,
}

/// Compares two histograms in the same unit. `None` if either has no reuses.
pub fn of(a: &Distances, b: &Distances) -> Option<Similarity> {
    if a.reuses() <= 0.0 || b.reuses() <= 0.0 {
        return None;
    }
    let top = [a, b].iter().filter_map(|d| d.bars().last()).map(|bar| bar.high).max().unwrap_or(1);
    let log2: Vec<u64> = std::iter::successors(Some(1_u64), |edge| edge.checked_mul(2)).collect();
    let told = |edges: &[u64]| -> Vec<u64> {
        edges.iter().copied().filter(|edge| !crosses(a, *edge) && !crosses(b, *edge)).collect()
    };
    let rdx: Vec<u64> = log2.iter().copied().filter(|edge| (RDX_FIRST..=RDX_LAST).contains(edge)).collect();
    let (log2_told, rdx_told) = (told(&log2), told(&rdx));
    let rdx_bins = (fractions(a, &rdx_told), fractions(b, &rdx_told));
    // Without the edge at 4K, the first bin above 4K is the first long one.
    let long = |bins: &[f64]| bins.get(1..).unwrap_or_default().to_vec();
    Some(Similarity {
        s: equation_1(&rdx_bins.0, &rdx_bins.1),
        s_hat: equation_2(&rdx_bins.0, &rdx_bins.1),
        s_log2: equation_1(&fractions(a, &log2_told), &fractions(b, &log2_told)),
        s_long: renormalised(&long(&rdx_bins.0), &long(&rdx_bins.1)),
        dropped_edges: log2.iter().filter(|edge| **edge < top).count()
            - log2_told.iter().filter(|edge| **edge < top).count(),
    })
}

/// RDX eq. 1: half the sum of differences, from 1. Bins are fractions that sum to 1.
pub fn equation_1(a: &[f64], b: &[f64]) -> f64 {
    let differences: f64 = a.iter().zip(b).map(|(a, b)| (a - b).abs()).sum();
    (1.0 - differences / 2.0).clamp(0.0, 1.0)
}

/// RDX eq. 2: eq. 1 over averages of adjacent bins. A
/// single bin has no averages, and all histograms agree.
pub fn equation_2(a: &[f64], b: &[f64]) -> f64 {
    let averages =
        |bins: &[f64]| -> Vec<f64> { bins.windows(2).map(|pair| pair.iter().sum::<f64>() / 2.0).collect() };
    equation_1(&averages(a), &averages(b))
}

/// Eq. 1 of parts, each scaled to sum to 1. `None` if both are empty, 0 if one is.
fn renormalised(a: &[f64], b: &[f64]) -> Option<f64> {
    let (sum_a, sum_b) = (a.iter().sum::<f64>(), b.iter().sum::<f64>());
    if sum_a <= 0.0 && sum_b <= 0.0 {
        return None;
    }
    if sum_a <= 0.0 || sum_b <= 0.0 {
        return Some(0.0);
    }
    let scaled = |bins: &[f64], sum: f64| -> Vec<f64> { bins.iter().map(|bin| bin / sum).collect() };
    Some(equation_1(&scaled(a, sum_a), &scaled(b, sum_b)))
}

/// Shares of reuses below the first edge, between edges, and from the last edge up.
fn fractions(distances: &Distances, edges: &[u64]) -> Vec<f64> {
    let mut bins = vec![0.0; edges.len() + 1];
    let reuses = distances.reuses();
    for bar in distances.bars() {
        if let Some(bin) = bins.get_mut(edges.partition_point(|edge| *edge <= bar.low)) {
            *bin += bar.weight / reuses;
        }
    }
    bins
}

/// Whether reuses on both sides of the edge are in one bar.
fn crosses(distances: &Distances, edge: u64) -> bool {
    let inside = |bar: &Bar| bar.low < edge && edge < bar.high;
    let at = distances.bars().partition_point(|bar| bar.high <= edge);
    distances.bars().get(at).is_some_and(inside)
}

#[cfg(test)]
mod tests;
