//! How alike two rankings of variables are: Kendall's τ-b, the overlap of the first ten, and the
//! table of both ranks.
//!
//! τ-b (Kendall 1945): (concordant − discordant) ÷ √((pairs − ties in a)(pairs − ties
//! in b)). Variables of one side only have share 0 on the opposite side, tied there.
//!
//! Sources of error: τ weighs the tail like the head; a long
//! tail of noise lowers τ, and callers should cut the tail off.

use std::collections::{BTreeMap, BTreeSet};

/// Kendall's τ-b of pairs of values; `None` if there are fewer than two or one side is all ties.
/// Pairs with a NaN are neither concordant nor discordant.
pub fn kendall_tau_b(pairs: &[(f64, f64)]) -> Option<f64> {
    let (mut concordant, mut discordant, mut tied_a, mut tied_b, mut all) =
        (0_u64, 0_u64, 0_u64, 0_u64, 0_u64);
    for (at, (a, b)) in pairs.iter().enumerate() {
        for (other_a, other_b) in pairs.iter().skip(at + 1) {
            all += 1;
            let (of_a, of_b) = (a.partial_cmp(other_a)?, b.partial_cmp(other_b)?);
            tied_a += u64::from(of_a.is_eq());
            tied_b += u64::from(of_b.is_eq());
            if of_a.is_ne() && of_b.is_ne() {
                *if of_a == of_b { &mut concordant } else { &mut discordant } += 1;
            }
        }
    }
    let scale = ((all - tied_a) as f64 * (all - tied_b) as f64).sqrt();
    (scale > 0.0).then(|| (concordant as f64 - discordant as f64) / scale)
}

/// One variable in both rankings.
#[derive(Debug, Clone, PartialEq)]
pub struct RankRow<K> {
    /// Whatever names the variable.
    pub key: K,
    /// The key's rank on the left, from 1, equal shares with equal rank; `None` if absent.
    pub left_rank: Option<usize>,
    /// Its rank on the right.
    pub right_rank: Option<usize>,
    /// Its share on the left, 0 if absent.
    pub left_share: f64,
    /// Its share on the right.
    pub right_share: f64,
}

/// Two rankings side by side.
#[derive(Debug, Clone, PartialEq)]
pub struct RankComparison<K> {
    /// All variables of either side, in the order of the left, then variables of the right alone.
    pub rows: Vec<RankRow<K>>,
    /// τ-b over all rows.
    pub tau_b: Option<f64>,
    /// τ-b over the variables that are among the first ten of the left.
    pub tau_b_top: Option<f64>,
    /// How many of the first ten of the left are among the first ten of the right.
    pub top_overlap: usize,
    /// How many could be: the smaller of ten and the lengths of both sides.
    pub top_possible: usize,
}

/// Number of variables that the overlap looks at.
pub const TOP: usize = 10;

/// Compares two rankings. A key that stands twice on a side has its shares added.
pub fn compare<K: Ord + Clone>(
    left: impl IntoIterator<Item = (K, f64)>,
    right: impl IntoIterator<Item = (K, f64)>,
) -> RankComparison<K> {
    let (left, right) = (ranked(left), ranked(right));
    let rank = |side: &[(K, f64)]| -> BTreeMap<K, (usize, f64)> {
        let before = |share: f64| side.partition_point(|(_, other)| *other > share);
        side.iter().map(|(key, share)| (key.clone(), (before(*share) + 1, *share))).collect()
    };
    let (of_left, of_right) = (rank(&left), rank(&right));
    let only_right = right.iter().filter(|(key, _)| !of_left.contains_key(key));
    let rows: Vec<RankRow<K>> = left
        .iter()
        .chain(only_right)
        .map(|(key, _)| {
            let (l, r) = (of_left.get(key), of_right.get(key));
            RankRow {
                key: key.clone(),
                left_rank: l.map(|(rank, _)| *rank),
                right_rank: r.map(|(rank, _)| *rank),
                left_share: l.map_or(0.0, |(_, share)| *share),
                right_share: r.map_or(0.0, |(_, share)| *share),
            }
        })
        .collect();
    let pairs: Vec<(f64, f64)> = rows.iter().map(|row| (row.left_share, row.right_share)).collect();
    let top =
        |side: &[(K, f64)]| -> BTreeSet<K> { side.iter().take(TOP).map(|(key, _)| key.clone()).collect() };
    RankComparison {
        tau_b: kendall_tau_b(&pairs),
        tau_b_top: kendall_tau_b(pairs.get(..TOP.min(left.len())).unwrap_or_default()),
        top_overlap: top(&left).intersection(&top(&right)).count(),
        top_possible: TOP.min(left.len()).min(right.len()),
        rows,
    }
}

/// Sums of equal keys, largest first, equal shares by key; values that are no numbers count as 0.
fn ranked<K: Ord + Clone>(side: impl IntoIterator<Item = (K, f64)>) -> Vec<(K, f64)> {
    let mut sums: BTreeMap<K, f64> = BTreeMap::new();
    for (key, share) in side {
        *sums.entry(key).or_default() += if share.is_finite() { share } else { 0.0 };
    }
    let mut ranked: Vec<(K, f64)> = sums.into_iter().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_values() {
        let tau = |pairs: &[(f64, f64)]| kendall_tau_b(pairs);
        assert_eq!(tau(&[(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]), Some(1.0));
        assert_eq!(tau(&[(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]), Some(-1.0));
        assert_eq!(tau(&[(1.0, 1.0)]), None);
        assert_eq!(tau(&[(1.0, 1.0), (1.0, 2.0)]), None);
        // scipy.stats.kendalltau([12, 2, 1, 12, 2], [1, 4, 7, 1, 0]) from its documentation.
        let found = tau(&[(12.0, 1.0), (2.0, 4.0), (1.0, 7.0), (12.0, 1.0), (2.0, 0.0)]).unwrap();
        assert!((found + 0.471_404_520_791_031_8).abs() < 1e-12, "{found}");
    }

    /// The paper's table for ART (§4.3.2): 7 of the first ten stay, τ .78 for the skid-adjusted ranks.
    #[test]
    fn the_papers_rank_table() {
        let adjusted = [1, 2, 3, 4, 14, 6, 7, 8, 11, 12].map(f64::from);
        let pairs: Vec<(f64, f64)> = (1..=10).map(f64::from).zip(adjusted).collect();
        let tau = kendall_tau_b(&pairs).unwrap();
        assert!((tau - 0.78).abs() < 0.005, "{tau}");
        let left = pairs.iter().map(|(rank, _)| (*rank as u32, -rank));
        let mut right: Vec<(u32, f64)> = pairs.iter().map(|(rank, other)| (*rank as u32, -other)).collect();
        right.extend([5, 9, 10, 13].map(|rank| (100 + rank, -f64::from(rank))));
        let found = compare(left, right);
        assert_eq!((found.top_overlap, found.top_possible), (7, 10));
    }

    #[test]
    fn one_side_only() {
        let found = compare([("a", 0.5), ("b", 0.5), ("a", 0.1)], [("c", 1.0)]);
        let ranks: Vec<_> = found.rows.iter().map(|row| (row.key, row.left_rank, row.right_rank)).collect();
        assert_eq!(ranks, [("a", Some(1), None), ("b", Some(2), None), ("c", None, Some(1))]);
        assert_eq!((found.top_overlap, found.top_possible), (0, 1));
        let ties = compare([("a", 0.5), ("b", 0.5)], [("a", 0.5), ("b", 0.5)]);
        assert_eq!((ties.rows[0].left_rank, ties.rows[1].left_rank), (Some(1), Some(1)));
        assert_eq!(compare::<u8>([], []).rows, []);
    }

    proptest! {
        /// Bounds, symmetry, and the sign of order.
        #[test]
        fn tau_properties(pairs in prop::collection::vec((0_u8..6, 0_u8..6), 0..12)) {
            let pairs: Vec<(f64, f64)> = pairs.iter().map(|(a, b)| (f64::from(*a), f64::from(*b))).collect();
            let swapped: Vec<_> = pairs.iter().map(|(a, b)| (*b, *a)).collect();
            let reversed: Vec<_> = pairs.iter().map(|(a, b)| (*a, -b)).collect();
            let itself: Vec<_> = pairs.iter().map(|(a, _)| (*a, *a)).collect();
            let tau = kendall_tau_b(&pairs);
            prop_assert_eq!(tau, kendall_tau_b(&swapped));
            if let Some(tau) = tau {
                prop_assert!((-1.0 - 1e-12..=1.0 + 1e-12).contains(&tau));
                prop_assert!((tau + kendall_tau_b(&reversed).unwrap()).abs() < 1e-12);
            }
            if let Some(one) = kendall_tau_b(&itself) {
                prop_assert!((one - 1.0).abs() < 1e-12);
            }
        }
    }
}
