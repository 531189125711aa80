//! Accesses between two readings by the thread's hardware counters.
//!
//! Sources of error: what a count is differs from an access (a repeated string instruction is one,
//! and so is a gather; AMD counts at dispatch what is thrown away later); the readings span
//! milliseconds after the stop.

use crate::speed_fit::Track;
use crate::types::Reading;

/// Accesses per nanosecond while the thread ran without pause; `tick_ns` as for [`crate::Rates::new`].
pub(crate) fn track(readings: &[Reading], tick_ns: f64) -> Option<Track> {
    let pairs = readings.iter().zip(readings.iter().skip(1));
    let pieces: Vec<(f64, f64)> = pairs
        .filter(|(a, b)| a.switches == b.switches)
        .filter_map(|(a, b)| {
            let made = b.accesses?.checked_sub(a.accesses?)?;
            let ns = b.time_ns.saturating_sub(a.time_ns) as f64 - tick_ns;
            (made > 0 && ns > 0.0).then_some((made as f64, ns))
        })
        .collect();
    Track::pooled(&pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(time_ns: u64, switches: u64, accesses: Option<u64>) -> Reading {
        Reading { time_ns, switches, accesses, ..Reading::default() }
    }

    #[test]
    fn counts_are_divided_by_the_time_that_the_thread_ran() {
        let readings = [
            reading(1_000, 5, Some(100)),
            reading(2_500, 5, Some(2_100)),
            // It slept.
            reading(90_000, 6, Some(2_200)),
            reading(91_500, 6, Some(4_200)),
        ];
        let found = track(&readings, 500.0).unwrap();
        assert!((found.speed - 2.0).abs() < 1e-9 && found.intervals == 2, "{found:?}");
    }

    #[test]
    fn what_was_not_counted_gives_no_rate() {
        assert_eq!(track(&[reading(0, 0, None), reading(900, 0, Some(5))], 0.0), None);
        // Counters that were opened anew, and time that is all our own.
        assert_eq!(track(&[reading(0, 0, Some(9)), reading(900, 0, Some(5))], 0.0), None);
        assert_eq!(track(&[reading(0, 0, Some(1)), reading(900, 0, Some(5))], 900.0), None);
        assert_eq!(track(&[], 0.0), None);
    }
}
