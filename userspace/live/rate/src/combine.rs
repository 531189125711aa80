//! Combines several tracks of one sample to one rate.

use crate::types::{Estimate, Source};

/// Least uncertainty of a rate, and the amount added to every uncertainty.
const FLOOR: f64 = 0.03;
/// Relative difference up to which two sources agree, beside their own errors.
const AGREEMENT: f64 = 0.1;

/// Result of one track.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    /// Accesses per nanosecond.
    pub rate: f64,
    /// Relative standard error.
    pub sigma: f64,
    /// Intervals that agree.
    pub intervals: u32,
    pub is_word: bool,
    /// A register with a constant stride, whose accesses per step this window or several agreeing
    /// windows show.
    pub is_affine: bool,
}

/// The rate on which most evidence agrees.
pub(crate) fn combine(candidates: &[Candidate]) -> Option<(Estimate, Source)> {
    let usable: Vec<&Candidate> =
        candidates.iter().filter(|c| c.rate > 0.0 && c.rate.is_finite() && c.sigma < 0.6).collect();
    let weight = |c: &Candidate| 1.0 / (c.sigma * c.sigma + FLOOR * FLOOR);
    let agrees = |a: &Candidate, b: &Candidate| {
        (a.rate / b.rate).ln().abs() <= AGREEMENT.max(2.0 * a.sigma.hypot(b.sigma)).min(0.5)
    };
    let support = |c: &Candidate| -> f64 { usable.iter().filter(|o| agrees(c, o)).map(|o| weight(o)).sum() };
    let centre = usable.iter().copied().max_by(|a, b| support(a).total_cmp(&support(b)))?;
    let (inside, outside): (Vec<&Candidate>, Vec<&Candidate>) =
        usable.iter().copied().partition(|c| agrees(centre, c));
    let total: f64 = inside.iter().map(|c| weight(c)).sum();
    let mean = inside.iter().map(|c| weight(c) * c.rate.ln()).sum::<f64>() / total;
    let source = source(&inside)?;
    // Tracks of one sample share the noise of its intervals, so averaging does not reduce the
    // noise.
    let best = inside.iter().map(|c| c.sigma).fold(f64::INFINITY, f64::min);
    let spread =
        (inside.iter().map(|c| weight(c) * (c.rate.ln() - mean).powi(2)).sum::<f64>() / total).sqrt();
    let against: f64 = outside.iter().map(|c| weight(c)).sum();
    let disagreement = if against > 0.25 * total {
        outside.iter().map(|c| (c.rate.ln() - mean).abs()).fold(f64::INFINITY, f64::min).min(1.0) / 2.0
    } else {
        0.0
    };
    let half = FLOOR.max(2.0 * best).max(1.5 * spread).max(disagreement) + FLOOR;
    Some((Estimate::within(mean.exp(), half), source))
}

fn source(inside: &[&Candidate]) -> Option<Source> {
    let words = inside.iter().filter(|c| c.is_word && c.intervals >= 1).count();
    let steady = inside.iter().any(|c| c.is_word && c.intervals >= 4);
    if words >= 2 || steady {
        Some(Source::Words)
    } else if inside.iter().any(|c| c.is_affine && c.intervals >= 3) {
        Some(Source::Registers)
    } else if inside.iter().any(|c| c.intervals >= 2) {
        Some(Source::Slopes)
    } else {
        None
    }
}
