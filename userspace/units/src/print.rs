//! Numbers for people: every duration, size and count with its unit, three significant digits.

/// "850 ns", "1.24 ms", "12.3 s", "2 min 5 s".
pub fn duration(ns: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")];
    if ns >= 119.5e9 {
        let seconds = (ns / 1e9).round() as u64;
        return format!("{} min {} s", seconds / 60, seconds % 60);
    }
    // 999.6 µs rounds to 1000 µs: then the next unit reads better.
    let unit = UNITS.iter().rfind(|(size, _)| ns >= 0.9995 * size).unwrap_or(&UNITS[0]);
    format!("{} {}", three_digits(ns / unit.0), unit.1)
}

/// "1 access", "850 accesses", "12.4 K accesses".
pub fn accesses(n: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1.0, ""), (1e3, " K"), (1e6, " M"), (1e9, " G")];
    let unit = UNITS.iter().rfind(|(size, _)| n >= 0.9995 * size).unwrap_or(&UNITS[0]);
    let noun = if n == 1.0 { "access" } else { "accesses" };
    format!("{}{} {noun}", three_digits(n / unit.0), unit.1)
}

/// "1.24", "12.4", "124", and whole numbers as they are.
fn three_digits(value: f64) -> String {
    if value == value.round() && value < 1000.0 {
        format!("{value:.0}")
    } else if value < 9.995 {
        format!("{value:.2}")
    } else if value < 99.95 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

/// "63.1 %".
pub fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// "12,034".
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "1 sample", "2,000 samples".
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// "32 KiB".
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", three_digits(value), UNITS[unit])
}

/// Shortens in the middle to so many characters.
pub fn shorten(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width || width < 3 {
        return text.to_owned();
    }
    let head = width / 2;
    let tail = width - head - 1;
    text.chars().take(head).chain(['…']).chain(text.chars().skip(length - tail)).collect()
}

/// Shortens a path from the left.
pub fn shorten_path(path: &str, width: usize) -> String {
    let length = path.chars().count();
    if length <= width || width < 2 {
        return path.to_owned();
    }
    ['…'].into_iter().chain(path.chars().skip(length - (width - 1))).collect()
}

/// Seconds since the Unix epoch as RFC 3339 in UTC. Days become a date by Howard Hinnant's `civil_from_days`
/// (<https://howardhinnant.github.io/date_algorithms.html>).
pub fn timestamp(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_units_and_three_digits() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (0.4, "0.40 ns"),
            (850.0, "850 ns"),
            (999.7, "1.00 µs"),
            (1_000.0, "1 µs"),
            (1_240_000.0, "1.24 ms"),
            (31_200_000.0, "31.2 ms"),
            (999_600_000.0, "1.00 s"),
            (12_345_000_000.0, "12.3 s"),
            (125e9, "2 min 5 s"),
        ] {
            assert_eq!(duration(ns), text);
        }
    }

    #[test]
    fn counts_and_sizes() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([512, 32 << 10, 36_700_160].map(bytes), ["512 B", "32 KiB", "35 MiB"]);
        assert_eq!(counted(1, "sample"), "1 sample");
    }

    #[test]
    fn shortening_keeps_both_ends() {
        assert_eq!(shorten("abcdefghij", 5), "ab…ij");
        assert_eq!(shorten("äöü", 3), "äöü");
        assert_eq!(shorten_path("/a/long/path.c", 7), "…path.c");
    }

    #[test]
    fn timestamps_match_known_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_704_067_199, "2023-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(seconds * 1_000_000_000), text);
        }
    }
}
