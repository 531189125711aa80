//! Motion of one quantity (a memory word, a register at one block) within one window.

/// Steps larger than this are no counting.
pub(crate) const LARGEST_STEP: u64 = 1 << 32;

/// Backward steps, a quarter of all so far, after which the rest is skipped.
const HOPELESS: u32 = 8;

/// What a sequence of values does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Motion {
    /// Always the same value.
    Constant,
    /// One-signed steps, or constant steps with regular wraps.
    Moving(Steps),
    /// Anything else.
    Erratic,
}

/// Steps of one sign.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Steps {
    /// +1 or −1.
    pub sign: i8,
    /// Size of each step, if all are alike.
    pub stride: Option<u64>,
    /// The largest of them.
    pub largest: u64,
    /// Sum of steps after which the value repeats, if wraps were seen and were all alike.
    pub wrap: Option<u64>,
    /// How often it wrapped.
    pub wraps: u32,
    /// Steps seen.
    pub edges: u32,
    /// Sum of all steps, unwrapped.
    pub total: f64,
    /// Sum of the steps after the first, unwrapped.
    pub advance: f64,
    /// Accesses from the first step to the last.
    pub accesses: f64,
    /// Relative standard error of advance ÷ accesses, from its pieces; infinite with fewer than three steps.
    pub sigma: f64,
    /// Index of the access of the first step.
    pub first: u32,
    /// Index of the access of the last step.
    pub last: u32,
    /// Most accesses between two successive steps.
    pub longest: u32,
}

/// Width that stands for a double that holds whole numbers (counters of awk, Lua and JavaScript).
pub(crate) const DOUBLE: u32 = 53;

/// The whole number with these bits as a double.
pub(crate) fn whole(bits: u64) -> Option<u64> {
    let value = f64::from_bits(bits);
    let is_whole = value.is_finite() && value.fract() == 0.0 && value.abs() < 9e15;
    (bits == 0 || (is_whole && value != 0.0)).then_some(value as i64 as u64)
}

/// True for so many steps forward and back that are no counting with wraps.
pub(crate) fn turns_too_often(up: u32, down: u32) -> bool {
    up.min(down) > 0 && up.max(down) < 3 * up.min(down)
}

/// `points`: (index of the access, value), in order. `bits`: width of the value.
pub(crate) fn motion(points: &[(u32, u64)], bits: u32) -> Motion {
    let steps = || {
        points.windows(2).filter_map(|pair| match pair {
            [a, b] => Some((b.0, difference(a.1, b.1, bits))).filter(|step| step.1 != 0),
            _ => None,
        })
    };
    let (mut up, mut down) = (0_u32, 0_u32);
    for (_, step) in steps() {
        if step.unsigned_abs() > LARGEST_STEP {
            return Motion::Erratic;
        }
        if step > 0 {
            up += 1;
        } else {
            down += 1;
        }
        // Hopeless already: most registers are.
        if up.min(down) >= HOPELESS && turns_too_often(up, down) {
            return Motion::Erratic;
        }
    }
    if up + down == 0 {
        return Motion::Constant;
    }
    let sign: i8 = if up >= down { 1 } else { -1 };
    let backward = up.min(down);
    let (mut stride, mut even) = (None, true);
    let mut largest = 0;
    let (mut jump, mut even_jumps) = (None, true);
    for (_, step) in steps() {
        let size = step.unsigned_abs();
        if step.signum() == i64::from(sign) {
            largest = largest.max(size);
            even &= *stride.get_or_insert(size) == size;
        } else {
            even_jumps &= *jump.get_or_insert(size) == size;
        }
    }
    if backward > 0 && (!even || !even_jumps || turns_too_often(up, down)) {
        return Motion::Erratic;
    }
    let stride = stride.filter(|_| even);
    let wrap = jump.zip(stride).map(|(jump, stride)| jump + stride);
    let size = |step: i64| {
        if step.signum() == i64::from(sign) { step.unsigned_abs() } else { stride.unwrap_or(0) }
    };
    let edges = up + down;
    let total: u64 = steps().map(|(_, step)| size(step)).sum();
    let Some((first, first_step)) = steps().next() else { return Motion::Constant };
    let (last, longest) = steps()
        .fold((first, 0), |(last, longest), (access, _)| (access, longest.max(access.saturating_sub(last))));
    let advance = total.saturating_sub(size(first_step)) as f64;
    let accesses = f64::from(last.saturating_sub(first));
    let pieces = pieces(steps().map(|(access, step)| (access, size(step))), edges);
    let sigma = relative_error(&pieces);
    Motion::Moving(Steps {
        sign,
        stride,
        largest,
        wrap,
        wraps: if wrap.is_some() { backward } else { 0 },
        edges,
        total: total as f64,
        advance,
        accesses,
        sigma,
        first,
        last,
        longest,
    })
}

/// b − a of values that many bits wide.
pub(crate) fn difference(a: u64, b: u64, bits: u32) -> i64 {
    let difference = b.wrapping_sub(a);
    if bits == 32 { i64::from(difference as u32 as i32) } else { difference as i64 }
}

/// At most eight pieces of about equally many steps: (steps' sum, accesses).
fn pieces(steps: impl Iterator<Item = (u32, u64)>, edges: u32) -> Vec<(f64, f64)> {
    let each = (edges.saturating_sub(1)).div_ceil(8).max(1);
    let mut pieces = Vec::with_capacity(9);
    let (mut from, mut sum, mut count) = (None, 0_u64, 0);
    for (access, step) in steps {
        let Some(begin) = from else {
            from = Some(access);
            continue;
        };
        sum += step;
        count += 1;
        if count == each {
            pieces.push((sum as f64, f64::from(access.saturating_sub(begin)).max(1.0)));
            (from, sum, count) = (Some(access), 0, 0);
        }
    }
    pieces
}

/// Σx and Σa.
pub(crate) fn sums(pieces: &[(f64, f64)]) -> (f64, f64) {
    pieces.iter().fold((0.0, 0.0), |sum, piece| (sum.0 + piece.0, sum.1 + piece.1))
}

/// Relative standard error of Σx ÷ Σa by the linearised ratio estimator (Cochran, Sampling Techniques, §6.4).
pub(crate) fn relative_error(pieces: &[(f64, f64)]) -> f64 {
    let n = pieces.len() as f64;
    let (x, a) = sums(pieces);
    if n < 2.0 || x <= 0.0 || a <= 0.0 {
        return f64::INFINITY;
    }
    let slope = x / a;
    let squares: f64 = pieces.iter().map(|(x, a)| (x - slope * a).powi(2)).sum();
    (squares / (n - 1.0) * n).sqrt() / x
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moving(values: &[(u32, u64)]) -> Steps {
        match motion(values, 64) {
            Motion::Moving(steps) => steps,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn kinds_of_motion() {
        assert_eq!(motion(&[(0, 5), (1, 5), (2, 5)], 64), Motion::Constant);
        assert_eq!(motion(&[(0, 5), (1, 6), (2, 5), (3, 7)], 64), Motion::Erratic);
        assert_eq!(motion(&[(0, 5), (1, 1 << 50)], 64), Motion::Erratic);
        let steps = moving(&[(0, 100), (10, 92), (20, 84), (20, 84), (30, 76)]);
        assert_eq!((steps.sign, steps.stride, steps.wrap, steps.edges), (-1, Some(8), None, 3));
        assert_eq!((steps.total, steps.advance, steps.accesses, steps.sigma), (24.0, 16.0, 20.0, 0.0));
        // A narrow counter goes through zero.
        assert!(matches!(motion(&[(0, 0xffff_ffff), (1, 0), (2, 1)], 32), Motion::Moving(s) if s.sign == 1));
    }

    #[test]
    fn wraps_are_unwrapped() {
        let points: Vec<(u32, u64)> = (0..40).map(|n| (n * 3, u64::from(n % 8) * 4)).collect();
        let steps = moving(&points);
        assert_eq!((steps.sign, steps.stride, steps.wrap), (1, Some(4), Some(32)));
        assert_eq!((steps.total, steps.advance, steps.accesses), (156.0, 152.0, 114.0));
        assert_eq!(steps.sigma, 0.0);
    }

    #[test]
    fn uneven_steps_have_an_error() {
        let points: Vec<(u32, u64)> = (0..60).map(|n: u32| (n * 10, u64::from(n * n))).collect();
        let steps = moving(&points);
        assert_eq!((steps.stride, steps.wrap), (None, None));
        assert!(steps.sigma > 0.1 && steps.sigma < 0.4, "{}", steps.sigma);
    }
}
