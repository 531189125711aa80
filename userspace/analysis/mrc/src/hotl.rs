//! HOTL: the footprint of the finite trace, and the miss ratio as its slope.
//!
//! Source: Xiang et al. 2013 (ASPLOS, "HOTL: a higher order theory of locality"). Average
//! footprint (§2.3): a granule is absent from a window of w accesses that fits into a gap between
//! the granule's touches, or before the first or after the last touch, so with m granules and n
//! accesses fp(w) = m − Σ (gap − w) / (n − w + 1) over gaps longer than w, where a reuse's gap is
//! the time distance, the first gap the first touch's position from 1, the last gap the last
//! touch's from the end. The footprint is exact. Miss ratio (§2.4): mr(fp(w)) = fp(w + 1) − fp(w).
//!
//! Sources of error: the reuse-window hypothesis (see the package's page).
//! Without the first and last gaps only the sum is known, because the gaps of
//! a granule together are n + 1; the end gaps are then taken as spread evenly.

use super::distances::{Bar, Distances};
use super::scale;
use super::survival::Survival;

/// Gaps at the ends of the trace, one at each end for every granule.
#[derive(Debug, Clone, PartialEq)]
pub struct Ends {
    /// Positions of first touches, from 1.
    pub first: Distances,
    /// Positions of last touches counted from the end, from 1.
    pub last: Distances,
}

/// The average footprint of windows of a finite trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Footprint {
    granules: f64,
    accesses: f64,
    touches: f64,
    gaps: f64,
    survival: Survival,
    /// Σ over j of P(gap > j).
    mean_gap: f64,
}

impl Footprint {
    /// Of a trace of `accesses`; each cold touch is a granule. `None` without touches or with fewer
    /// accesses than 1.
    pub fn of(time: &Distances, accesses: f64, ends: Option<&Ends>) -> Option<Self> {
        let granules = time.cold();
        if accesses < 1.0 || granules <= 0.0 {
            return None;
        }
        let reuses = Distances::of_sorted(time.bars().to_vec(), 0.0);
        let gaps = match ends {
            Some(ends) => Distances::union(&[&reuses, &ends.first, &ends.last]),
            None => Distances::union(&[&reuses, &even_ends(time, accesses)]),
        };
        let survival = Survival::of(&gaps, 1.0)?;
        let mean_gap = survival.footprint(f64::MAX);
        Some(Self { granules, accesses, touches: time.touches(), gaps: gaps.reuses(), survival, mean_gap })
    }

    /// Distinct granules in a window of `window` accesses, on average.
    pub fn at(&self, window: f64) -> f64 {
        let window = window.clamp(0.0, self.accesses);
        let absent = self.gaps * (self.mean_gap - self.survival.footprint(window));
        (self.granules - absent.max(0.0) / (self.accesses - window + 1.0)).max(0.0)
    }

    /// The shortest whole window with a footprint of at
    /// least `granules`, by halving: O(log n · log bars).
    fn window(&self, granules: f64) -> f64 {
        let (mut low, mut high) = (0.0_f64, self.accesses.floor());
        while high - low > 1.0 {
            let middle = ((low + high) / 2.0).floor();
            if self.at(middle) < granules { low = middle } else { high = middle }
        }
        high
    }

    /// Miss ratio of an LRU cache of `granules`, between 1, for an empty cache, and the cold share.
    pub fn miss_ratio(&self, granules: f64) -> f64 {
        let cold = self.granules / self.touches;
        if granules <= 0.0 {
            return 1.0;
        }
        if granules >= self.granules {
            return cold;
        }
        // Between the footprints of two whole windows the slope changes evenly.
        let until = self.window(granules);
        let (low, high) = (self.at(until - 1.0), self.at(until));
        let share = if high > low { ((granules - low) / (high - low)).clamp(0.0, 1.0) } else { 1.0 };
        let slope = (1.0 - share) * (high - low) + share * (self.at(until + 1.0) - high);
        (slope * self.accesses / self.touches).clamp(cold.min(1.0), 1.0)
    }

    /// Stack distances with the miss ratios of the footprint. The lowest
    /// miss ratio so far stays if the slope rises with the window, as
    /// near the ends of the trace: more cache never misses more.
    pub fn stack_distances(&self) -> Distances {
        let mut bars = Vec::new();
        let mut ratio = 1.0_f64;
        for bin in 0.. {
            let (low, high) = (scale::low(bin), scale::low(bin + 1));
            if low as f64 >= self.granules || high <= low {
                break;
            }
            let next = self.miss_ratio(high as f64).min(ratio);
            if next < ratio {
                bars.push(Bar { low, high, weight: (ratio - next) * self.touches });
            }
            ratio = next;
        }
        Distances::of_sorted(bars, self.granules)
    }
}

/// Gaps at the ends, spread evenly from 1, with the mean left after the reuses.
fn even_ends(time: &Distances, accesses: f64) -> Distances {
    let granules = time.cold();
    let mean = (granules * (accesses + 1.0) - time.total()) / (2.0 * granules);
    let high = (2.0 * mean).min(accesses + 1.0).max(2.0) as u64;
    Distances::of_sorted(vec![Bar { low: 1, high, weight: 2.0 * granules }], 0.0)
}
