//! Reuses near a bin's edge, perhaps of the next bin.
//!
//! A measured distance is known to a few percent: counts miss the work between a loop's rounds,
//! clocks contain the effect of caches left cold by a stop. If a program has one distance only, and
//! at an edge, no number of samples distinguishes the two bins. Distances in windows are exact.

use super::log2;

/// Possible relative error of a distance (measured: 3 to 7 %, from two costs of a trap on).
const NEAR: f64 = 0.03;

/// Shares of the reuses, by log2 bin.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Edges {
    /// Weight perhaps of a neighbouring bin, and neighbours' weight perhaps of the bin.
    moves: Vec<[f64; 2]>,
    /// Weight near the lower edge of each.
    near: Vec<f64>,
}

impl Edges {
    /// Of shares at distances; distances marked `is_exact` stay in the bin.
    pub fn of(shares: impl Iterator<Item = (u64, f64)>, is_exact: impl Fn(u64) -> bool) -> Self {
        let mut edges = Self::default();
        for (distance, share) in
            shares.filter(|(distance, share)| *distance as f64 * NEAR >= 1.0 && *share > 0.0)
        {
            let bin = log2(distance);
            let low = 1u64 << (bin - 1);
            let is_near = |edge: u64| (distance as f64 / edge as f64 - 1.0).abs() < NEAR && !is_exact(edge);
            if is_near(low) {
                edges.cross(bin, [bin, bin - 1], share);
            } else if low.checked_mul(2).is_some_and(is_near) {
                edges.cross(bin + 1, [bin, bin + 1], share);
            }
        }
        edges
    }

    fn cross(&mut self, edge: usize, [from, to]: [usize; 2], share: f64) {
        let most = edge.max(from).max(to) + 1;
        if self.moves.len() < most {
            self.moves.resize(most, [0.0; 2]);
            self.near.resize(most, 0.0);
        }
        let at = [(from, 0), (to, 1)];
        for (bin, way) in at {
            if let Some(moves) = self.moves.get_mut(bin) {
                moves[way] += share;
            }
        }
        if let Some(near) = self.near.get_mut(edge) {
            *near += share;
        }
    }

    /// Weight that may leave a bin, and weight that may enter.
    pub fn moves(&self, bin: usize) -> [f64; 2] {
        self.moves.get(bin).copied().unwrap_or_default()
    }

    /// End of the bins with exchanges.
    pub fn end(&self) -> usize {
        self.moves.len()
    }

    /// Edges with at least the share `least` of the reuses near, and the share.
    pub fn blurred(&self, least: f64) -> Vec<(u64, f64)> {
        let edges = self.near.iter().enumerate().filter(|(_, share)| **share >= least);
        edges.map(|(bin, share)| (super::bounds(bin).0, *share)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_distance_at_an_edge_may_be_in_either_bin() {
        let none = |_| false;
        let of =
            |distance, is_exact: &dyn Fn(u64) -> bool| Edges::of([(distance, 0.8)].into_iter(), is_exact);
        let below = of((1 << 20) - 10_000, &none);
        assert_eq!((below.moves(20), below.moves(21)), ([0.8, 0.0], [0.0, 0.8]));
        assert_eq!(below.blurred(0.5), [(1 << 20, 0.8)]);
        let at = of(1 << 20, &none);
        assert_eq!((at.moves(21), at.moves(20)), ([0.8, 0.0], [0.0, 0.8]));
        assert_eq!(at.blurred(0.5), [(1 << 20, 0.8)]);
        assert_eq!(at.blurred(0.9), []);
        // Elsewhere, and where windows show it, it is known.
        assert_eq!(of(700_000, &none), Edges::default());
        assert_eq!(of(1 << 20, &|edge| edge <= 1 << 20), Edges::default());
        assert_eq!(Edges::of([(0, 0.5), (1, 0.5)].into_iter(), none), Edges::default());
    }
}
