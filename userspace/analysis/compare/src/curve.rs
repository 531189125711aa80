//! Miss-ratio curves and the difference between two.
//!
//! A curve is points; between points the ratio is taken to fall evenly with the
//! logarithm of the size, before the first and beyond the last point the ratio
//! is constant (beyond the last computed size, only cold misses are left).

use locality_mrc::distances::Distances;

/// Miss ratios of LRU caches by size.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    /// (bytes, miss ratio), ascending in size.
    points: Vec<(f64, f64)>,
}

/// Difference between two curves.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Mean of |a − b| over `sizes` sizes.
    pub mean: f64,
    /// Largest difference, and size of the cache in bytes.
    pub worst: (f64, u64),
    /// Sizes compared: 1, 2, 4 … granules.
    pub sizes: usize,
}

impl Curve {
    /// From (bytes, ratio) in any order. `None` without points, or with a size
    /// that is not finite or below a byte, or with a ratio outside of 0 to 1.
    pub fn new(mut points: Vec<(f64, f64)>) -> Option<Self> {
        let sound =
            |&(bytes, ratio): &(f64, f64)| bytes >= 1.0 && bytes.is_finite() && (0.0..=1.0).contains(&ratio);
        if points.is_empty() || !points.iter().all(sound) {
            return None;
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(Self { points })
    }

    /// Of stack distances in granules of `granule_bytes`,
    /// at 1, 2, 4 … granules. `None` without touches.
    pub fn of(stack: &Distances, granule_bytes: u64) -> Option<Self> {
        let points = stack.miss_ratio_curve();
        let bytes =
            |(granules, ratio): (u64, f64)| (granules as f64 * granule_bytes as f64, ratio.clamp(0.0, 1.0));
        if stack.touches() > 0.0 { Self::new(points.into_iter().map(bytes).collect()) } else { None }
    }

    /// Miss ratio of a cache of the given size.
    pub fn at(&self, bytes: f64) -> f64 {
        let next = self.points.partition_point(|point| point.0 < bytes);
        let before = next.checked_sub(1).and_then(|i| self.points.get(i));
        match (before, self.points.get(next)) {
            (Some(a), Some(b)) => {
                let share = (bytes / a.0).log2() / (b.0 / a.0).log2();
                // Of neighbouring floating-point numbers the ratio rounds to 1.
                if share.is_finite() { a.1 + share * (b.1 - a.1) } else { b.1 }
            }
            (Some(only), None) | (None, Some(only)) => only.1,
            (None, None) => f64::NAN,
        }
    }

    fn first(&self) -> f64 {
        self.points.first().map_or(0.0, |point| point.0)
    }

    fn last(&self) -> f64 {
        self.points.last().map_or(0.0, |point| point.0)
    }
}

/// Compares two curves at 1, 2, 4 … granules: from the
/// smallest size in both to the largest size in either.
pub fn difference(a: &Curve, b: &Curve, granule_bytes: u64) -> Option<Difference> {
    let (first, last) = (a.first().max(b.first()), a.last().max(b.last()));
    let sizes = (0..64).filter_map(|bit| granule_bytes.checked_mul(1 << bit));
    let compared: Vec<(f64, u64)> = sizes
        .filter(|size| (first..=last).contains(&(*size as f64)))
        .map(|size| ((a.at(size as f64) - b.at(size as f64)).abs(), size))
        .collect();
    let worst = compared.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let mean = compared.iter().map(|found| found.0).sum::<f64>() / compared.len() as f64;
    Some(Difference { mean, worst, sizes: compared.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_cache_has_are_refused_and_close_ones_have_a_ratio() {
        for bytes in [0.0, -1.0, 1e-320, f64::MIN_POSITIVE, f64::INFINITY, f64::NAN] {
            assert!(Curve::new(vec![(bytes, 0.5), (4096.0, 0.5)]).is_none(), "{bytes}");
        }
        for below in [4096_f64.next_down(), 1.0, 4096.0, 1e308] {
            let curve = Curve::new(vec![(below, 1.0), (4096.0, 0.5)]).unwrap();
            let other = Curve::new(vec![(8.0, 1.0), (1e308, 0.0)]).unwrap();
            assert!((0.0..=1.0).contains(&curve.at(4096.0)), "{below}: {}", curve.at(4096.0));
            let found = difference(&curve, &other, 8).unwrap();
            assert!(found.mean.is_finite() && found.worst.0.is_finite(), "{below}: {found:?}");
        }
    }
}
