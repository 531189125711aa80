//! P(T > j), its sum fp(w), and the inverse: the mean of all conversions.
//!
//! Everything is a closed sum over bars: O(bars) to build, O(log bars) to ask, for
//! all distances. Exact at whole arguments for exact histograms; between them linear.

use super::distances::Distances;

/// Survival function of time distances and footprint of windows.
#[derive(Debug, Clone, PartialEq)]
pub struct Survival {
    pieces: Vec<Piece>,
    touches_per_access: f64,
}

/// A stretch of equal steps of P(T > j), or of constant P(T > j).
#[derive(Debug, Clone, Copy, PartialEq)]
struct Piece {
    /// First j.
    start: f64,
    /// Σ P(T > i) over i < start.
    area: f64,
    /// P(T ≥ start).
    before: f64,
    /// P(T = j) for each j of the stretch.
    step: f64,
    /// Σ over whole j < start of the addition of [`Survival::stack_distance`].
    itself: f64,
}

impl Piece {
    /// P(T > start + k), k whole.
    fn beyond(&self, k: f64) -> f64 {
        (self.before - self.step * (k + 1.0)).max(0.0)
    }

    /// Σ P(T > j) over j < start + k, k whole.
    fn sum(&self, k: f64) -> f64 {
        self.area + k * self.before - self.step * k * (k + 1.0) / 2.0
    }

    /// Σ P(T = j) · P(T > j) / P(T ≠ j) over the first k of the stretch.
    fn excluded(&self, k: f64) -> f64 {
        if self.step >= 1.0 { 0.0 } else { (self.sum(k) - self.area) * self.step / (1.0 - self.step) }
    }
}

impl Survival {
    /// Of all touches, with cold touches beyond every distance.
    /// `touches_per_access` is τ, 1 if time counts touches. `None` without touches.
    pub fn of(time: &Distances, touches_per_access: f64) -> Option<Self> {
        let touches = time.touches();
        if touches <= 0.0 || !touches.is_finite() {
            return None;
        }
        // Summed from the far end, to preserve the digits of small probabilities.
        let mut above = time.cold();
        let mut befores: Vec<f64> = Vec::with_capacity(time.bars().len());
        for bar in time.bars().iter().rev() {
            above += bar.weight;
            befores.push(above / touches);
        }
        let mut pieces = vec![Piece { start: 0.0, area: 0.0, before: 1.0, step: 0.0, itself: 0.0 }];
        let mut push = |start: f64, before: f64, step: f64| {
            if let Some(last) = pieces.last() {
                let area = last.sum(start - last.start);
                let itself = last.itself + last.excluded(start - last.start);
                pieces.push(Piece { start, area, before, step, itself });
            }
        };
        let after = befores.iter().rev().skip(1).copied().chain([time.cold() / touches]);
        for ((bar, before), after) in time.bars().iter().zip(befores.iter().rev()).zip(after) {
            push(bar.low as f64, *before, bar.weight / touches / (bar.high - bar.low) as f64);
            push(bar.high as f64, after, 0.0);
        }
        Some(Self { pieces, touches_per_access })
    }

    /// Share of touches with a time distance above `distance`, or cold.
    pub fn beyond(&self, distance: f64) -> f64 {
        let piece = self.piece(|piece| piece.start <= distance);
        piece.beyond((distance - piece.start).floor())
    }

    /// Average number of distinct granules in a window of `window` accesses.
    pub fn footprint(&self, window: f64) -> f64 {
        let whole = window.max(0.0).floor();
        let piece = self.piece(|piece| piece.start <= whole);
        let k = whole - piece.start;
        self.touches_per_access * (piece.sum(k) + (window.max(0.0) - whole) * piece.beyond(k))
    }

    /// Window with a footprint of `granules`: AET(c). Infinite if no window has as many.
    pub fn fill_time(&self, granules: f64) -> f64 {
        let area = granules.max(0.0) / self.touches_per_access;
        let piece = self.piece(|piece| piece.area <= area);
        if piece.beyond(0.0) <= 0.0 && piece.area < area {
            return f64::INFINITY;
        }
        // The last whole k with a sum not above the area.
        let (mut low, mut high) = (0.0_f64, 1.0_f64);
        while piece.sum(high) <= area && piece.step == 0.0 && high < 1e300 {
            high *= 2.0;
        }
        if piece.step > 0.0 {
            high = (piece.before / piece.step).max(1.0).ceil();
        }
        while high - low > 1.0 {
            let middle = ((low + high) / 2.0).floor();
            if middle <= low || middle >= high {
                break;
            }
            if piece.sum(middle) <= area { low = middle } else { high = middle }
        }
        let slope = piece.beyond(low);
        let rest = if slope > 0.0 { ((area - piece.sum(low)) / slope).clamp(0.0, 1.0) } else { 0.0 };
        piece.start + low + rest
    }

    /// Mean stack distance, 0-based, of reuses at a time distance: the window's footprint
    /// without the reused granule. Between a use and the reuse no access can return to the
    /// granule, so a touch at offset j is new to the window with P(T > j | T ≠ j) in place
    /// of P(T > j). The sum adds less than one granule, of importance in the shortest
    /// windows alone: at time distance 2 the stack distance is then 1, as required.
    pub fn stack_distance(&self, time_distance: f64) -> f64 {
        (self.footprint(time_distance) - 1.0 + self.itself(time_distance)).max(0.0)
    }

    /// Addition of [`Self::stack_distance`], because the reused granule cannot lie in between.
    pub(super) fn itself(&self, time_distance: f64) -> f64 {
        let whole = time_distance.max(0.0).floor();
        let piece = self.piece(|piece| piece.start <= whole);
        self.touches_per_access * (piece.itself + piece.excluded(whole - piece.start))
    }

    /// The last piece for which the condition, true for the first pieces, holds.
    fn piece(&self, holds: impl Fn(&Piece) -> bool) -> Piece {
        let at = self.pieces.partition_point(holds).saturating_sub(1);
        self.pieces.get(at).copied().unwrap_or(Piece {
            start: 0.0,
            area: 0.0,
            before: 1.0,
            step: 0.0,
            itself: 0.0,
        })
    }
}
