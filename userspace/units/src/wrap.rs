//! Line breaks for running text. Counts characters, not terminal cells; wide scripts come out too long.

/// Breaks at spaces, but not between a number and its unit. Words longer than a line stay whole.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    const UNITS: [&str; 9] = ["%", "ns", "µs", "ms", "s", "min", "B", "KiB", "MiB"];
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let is_unit = UNITS.contains(&word.trim_end_matches([',', '.', ';', ':', ')']));
        match words.last_mut() {
            Some(number) if is_unit => {
                number.push(' ');
                number.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    let mut lines = vec![String::new()];
    let mut column = 0;
    for word in words {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            lines.push(String::new());
            column = 0;
        }
        if let Some(line) = lines.last_mut() {
            if column > 0 {
                line.push(' ');
                column += 1;
            }
            line.push_str(&word);
            column += length;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapping_keeps_all_words() {
        assert_eq!(wrap("a bb ccc dddd", 6), ["a bb", "ccc", "dddd"]);
        assert_eq!(wrap("incomprehensibilities a", 5), ["incomprehensibilities", "a"]);
        assert_eq!(wrap("", 5), [""]);
        assert_eq!(wrap("about 5 ms, 3 %", 8), ["about", "5 ms,", "3 %"]);
    }
}
