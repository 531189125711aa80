//! How near an estimate is to the asked precision, for the line that shows progress.
//!
//! The measure is the widest half of a 95 % interval over the bins of the time histogram at 8 bytes
//! ([`crate::reuse::Reuse::half_width`]), which follows from a profile.
//!
//! Sources of error: widths shrink with 1/√n only while the samples go on to be alike.

/// Seconds until the width is reached, from a `width` after `seconds`: widths go with 1/√n, and n
/// with time. 0 if reached; `None` without data, or if unreachable.
pub fn seconds_left(width: f64, asked: f64, seconds: f64) -> Option<f64> {
    if !(width.is_finite() && width >= 0.0 && asked > 0.0 && seconds > 0.0) {
        return None;
    }
    Some((seconds * ((width / asked).powi(2) - 1.0)).max(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_the_width_takes_four_times_as_long() {
        assert_eq!(seconds_left(0.1, 0.05, 10.0), Some(30.0));
        assert_eq!(seconds_left(0.04, 0.05, 10.0), Some(0.0));
        assert_eq!(seconds_left(0.1, 0.0, 10.0), None);
    }
}
