//! Columns and cells: numbers of a group in words, with interval or n.

use std::cmp::Ordering;

use locality_rollup::{FEWEST, Row};
use locality_units::print::shorten;

/// Fewest windows of an estimate; with fewer, the cell is empty.
pub(crate) const LEAST: u64 = 5;
/// A cell without a number.
const EMPTY: &str = "-";
/// Mark of an estimate from fewer than [`FEWEST`] windows.
const WEAK: char = '?';

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// Name of the group.
    Group,
    /// Sampled CPU time per wall time.
    Cpu,
    /// Windows that the estimates rest on.
    Windows,
    /// Miss ratio of a cache: level and bytes.
    Misses(u8, u64),
    /// Bytes per second into the cache of so many bytes.
    Loaded(u64),
    /// Cache that suffices.
    WorkingSet,
    /// Accesses per second.
    Accesses,
    /// Share of CPU time measured by windows.
    Measured,
    /// Data object with the most loads.
    Object,
}

/// A cell of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cell {
    pub text: String,
    /// Rests on few windows.
    pub is_weak: bool,
}

/// All columns, the most important first: narrow terminals show the first ones.
pub(crate) fn columns(caches: &[(u8, u64)]) -> Vec<Column> {
    let mut columns = vec![Column::Group, Column::Cpu, Column::Windows];
    let sizes = sizes(caches);
    columns.extend(sizes.iter().map(|(level, bytes)| Column::Misses(*level, *bytes)));
    columns.extend(sizes.last().map(|(_, bytes)| Column::Loaded(*bytes)));
    columns.extend([Column::WorkingSet, Column::Accesses, Column::Measured, Column::Object]);
    columns
}

/// First, second and last data cache; fixed sizes on a machine without known caches.
pub(crate) fn sizes(caches: &[(u8, u64)]) -> Vec<(u8, u64)> {
    match caches {
        [] => vec![(0, 32 << 10), (0, 1 << 20), (0, 32 << 20)],
        [first, second, .., last] => vec![*first, *second, *last],
        few => few.to_vec(),
    }
}

/// Columns with their widths that fit into a terminal.
pub(crate) fn fitting(columns: &[Column], width: usize) -> Vec<(Column, usize)> {
    let mut left = width;
    let mut fit = Vec::new();
    for column in columns {
        let needed = column.width() + usize::from(!fit.is_empty());
        if needed > left {
            break;
        }
        left -= needed;
        fit.push((*column, column.width()));
    }
    // Names take the rest, up to a limit.
    let grow = [(Column::Group, 40), (Column::Object, 60)];
    for (column, most) in grow {
        if let Some((_, width)) = fit.iter_mut().find(|(shown, _)| *shown == column) {
            let more = left.min(most - *width);
            *width += more;
            left -= more;
        }
    }
    fit
}

impl Column {
    /// Title over the column.
    pub(crate) fn title(self) -> String {
        match self {
            Self::Group => "group".to_owned(),
            Self::Cpu => "CPU".to_owned(),
            Self::Windows => "n".to_owned(),
            Self::Misses(0, bytes) => format!("misses {}", amount(bytes as f64)),
            Self::Misses(level, _) => format!("L{level} misses"),
            Self::Loaded(bytes) => format!("into {}, per s", amount(bytes as f64)),
            Self::WorkingSet => "working set".to_owned(),
            Self::Accesses => "accesses/s".to_owned(),
            Self::Measured => "seen".to_owned(),
            Self::Object => "data object".to_owned(),
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Group => 14,
            Self::Cpu => 7,
            Self::Windows => 5,
            Self::Misses(..) => 15,
            Self::Loaded(_) | Self::WorkingSet => 28,
            Self::Accesses => 10,
            Self::Measured => 6,
            Self::Object => 20,
        }
    }

    /// Names stand at the left, numbers at the right.
    pub(crate) fn is_left(self) -> bool {
        matches!(self, Self::Group | Self::Object)
    }

    /// The cell of a row whose parts lasted so many seconds.
    pub(crate) fn cell(self, row: &Row, seconds: f64) -> Cell {
        let n = row.curve_windows;
        let estimate = |text: Option<String>| match text {
            Some(text) if n >= FEWEST => Cell { text, is_weak: false },
            Some(text) if n >= LEAST => Cell { text: format!("{text}{WEAK}"), is_weak: true },
            _ => Cell { text: EMPTY.to_owned(), is_weak: true },
        };
        let plain = |text: String| Cell { text, is_weak: false };
        match self {
            Self::Group => plain(tame(&row.group)),
            Self::Cpu => plain(self.value(row, seconds).map_or_else(|| EMPTY.to_owned(), percent)),
            Self::Windows => plain(row.windows.to_string()),
            Self::Misses(_, bytes) => {
                let point = row.curve.iter().find(|point| point.bytes == bytes);
                estimate(point.map(|point| ratio(point.ratio, point.low, point.high)))
            }
            Self::Loaded(bytes) => {
                let point = row.curve.iter().find(|point| point.bytes == bytes);
                let of = |ratio: f64| Some(row.loaded_bytes(bytes)? / point?.ratio * ratio / seconds);
                let ends = point.filter(|point| point.ratio > 0.0);
                let text = ends.and_then(|point| Some([of(point.ratio)?, of(point.low)?, of(point.high)?]));
                estimate(text.map(between))
            }
            Self::WorkingSet => estimate(
                row.working_set(WORKING_SET_LOSS)
                    .map(|(value, low, high)| between([value as f64, low as f64, high as f64])),
            ),
            Self::Accesses => match self.value(row, seconds) {
                Some(value) if row.windows >= LEAST => plain(count(value)),
                _ => Cell { text: EMPTY.to_owned(), is_weak: true },
            },
            Self::Measured => plain(self.value(row, seconds).map_or_else(|| EMPTY.to_owned(), percent)),
            Self::Object => estimate(row.objects.first().map(|(name, _)| tame(name))),
        }
    }

    /// The value that rows are ordered by; `None` stands last.
    fn value(self, row: &Row, seconds: f64) -> Option<f64> {
        let cpu = row.cpu_ns.sum();
        match self {
            Self::Group | Self::Object => None,
            Self::Cpu => (seconds > 0.0).then(|| cpu / 1e9 / seconds),
            Self::Windows => Some(row.windows as f64),
            Self::Misses(_, bytes) => {
                let point = row.curve.iter().find(|point| point.bytes == bytes);
                point.filter(|_| row.curve_windows >= LEAST).map(|point| point.ratio)
            }
            Self::Loaded(bytes) => row.loaded_bytes(bytes).filter(|_| row.curve_windows >= LEAST),
            Self::WorkingSet => {
                let set = row.working_set(WORKING_SET_LOSS).filter(|_| row.curve_windows >= LEAST);
                set.map(|(value, ..)| value as f64)
            }
            Self::Accesses => row.accesses.filter(|_| seconds > 0.0).map(|n| n / seconds),
            Self::Measured => (cpu > 0.0).then(|| row.cpu_ns.windows / cpu),
        }
    }

    /// Order of two rows in this column: names from a to z, numbers from the largest.
    pub(crate) fn order(self, a: &Row, b: &Row) -> Ordering {
        let object = |row: &Row| row.objects.first().map(|(name, _)| name.clone()).unwrap_or_default();
        let ordered = match self {
            Self::Group => Ordering::Equal,
            Self::Object => object(a).cmp(&object(b)),
            _ => match (self.value(a, 1.0), self.value(b, 1.0)) {
                (Some(a), Some(b)) => b.total_cmp(&a),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => Ordering::Equal,
            },
        };
        ordered.then_with(|| a.group.cmp(&b.group))
    }
}

/// Additional misses per touch that a cache as large as the working set may have.
pub(crate) const WORKING_SET_LOSS: f64 = 0.05;

/// "19.7 % [15–25]".
pub(crate) fn ratio(value: f64, low: f64, high: f64) -> String {
    format!("{} [{:.0}–{:.0}]", percent(value), low * 100.0, high * 100.0)
}

/// "19.7 %", and from 99.95 % on without a decimal.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent < 99.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// "31 MiB [24–40]"; ends of another unit have their own: "512 KiB [32 KiB–1 MiB]".
pub(crate) fn between([value, low, high]: [f64; 3]) -> String {
    let own = unit(value);
    if [low, high].into_iter().all(|end| unit(end) == own) {
        let short = |bytes: f64| amount(bytes).split(' ').next().unwrap_or_default().to_owned();
        format!("{} [{}–{}]", amount(value), short(low), short(high))
    } else {
        format!("{} [{}–{}]", amount(value), amount(low), amount(high))
    }
}

fn unit(bytes: f64) -> (f64, &'static str) {
    const UNITS: [(f64, &str); 5] = [
        (1.0, "B"),
        (1024.0, "KiB"),
        (1_048_576.0, "MiB"),
        (1_073_741_824.0, "GiB"),
        (1_099_511_627_776.0, "TiB"),
    ];
    UNITS.into_iter().rfind(|(size, _)| bytes >= *size).unwrap_or((1.0, "B"))
}

/// "32 KiB".
pub(crate) fn amount(bytes: f64) -> String {
    let (size, unit) = unit(bytes);
    let value = bytes / size;
    if value < 9.95 && value.fract() > 0.05 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

fn count(n: f64) -> String {
    const UNITS: [(f64, &str); 4] = [(1.0, ""), (1e3, " K"), (1e6, " M"), (1e9, " G")];
    let (size, unit) = UNITS.into_iter().rfind(|(size, _)| n >= *size).unwrap_or((1.0, ""));
    if n / size < 9.95 { format!("{:.1}{unit}", n / size) } else { format!("{:.0}{unit}", n / size) }
}

/// A name without characters that a terminal obeys, or that change the direction of text.
pub(crate) fn tame(name: &str) -> String {
    let is_wild = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{61c}')
    };
    name.chars().map(|c| if is_wild(c) { '?' } else { c }).collect()
}

/// A text in a column, cut or filled to the width.
pub(crate) fn padded(text: &str, width: usize, is_left: bool) -> String {
    let text = shorten(text, width);
    if is_left { format!("{text:<width$}") } else { format!("{text:>width$}") }
}

#[cfg(test)]
pub(crate) mod tests {
    use locality_rollup::{CpuTime, Point};

    use super::*;

    pub(crate) const CACHES: [(u8, u64); 3] = [(1, 32 << 10), (2, 1 << 20), (3, 32 << 20)];

    pub(crate) fn row(group: &str, cpu_s: f64, windows: u64, ratio: f64) -> Row {
        let point = |bytes: u64, ratio: f64| {
            let (low, high) = (ratio * 0.8, ratio * 1.25);
            Point { bytes, ratio, low, high, sampling_low: low, sampling_high: high }
        };
        Row {
            group: group.to_owned(),
            samples: windows + 1,
            windows,
            curve_windows: windows,
            cpu_ns: CpuTime { windows: cpu_s * 0.9e9, registers: cpu_s * 0.1e9, none: 0.0 },
            accesses: Some(1e9),
            touches: Some(1e8),
            curve: vec![point(32 << 10, ratio), point(1 << 20, ratio / 2.0), point(32 << 20, ratio / 64.0)],
            places: vec![("walk a.c:3".to_owned(), 2e6)],
            objects: vec![("matrix".to_owned(), 3e6)],
            ..Row::default()
        }
    }

    fn cell(column: Column, row: &Row) -> String {
        column.cell(row, 10.0).text
    }

    #[test]
    fn numbers_have_an_interval_or_n() {
        let row = row("web", 5.0, 40, 0.2);
        assert_eq!(cell(Column::Cpu, &row), "50.0 %");
        assert_eq!(cell(Column::Windows, &row), "40");
        assert_eq!(cell(Column::Misses(1, 32 << 10), &row), "20.0 % [16–25]");
        // 1e8 touches of 64 bytes, a tenth of which miss, in 10 s: 61 MiB/s.
        assert_eq!(cell(Column::Loaded(1 << 20), &row), "61 MiB [49–76]");
        assert_eq!(cell(Column::Accesses, &row), "100 M");
        assert_eq!(cell(Column::Measured, &row), "90.0 %");
        assert_eq!(cell(Column::Object, &row), "matrix");
    }

    #[test]
    fn estimates_of_few_windows_are_marked_and_of_fewer_than_5_empty() {
        for (windows, text, is_weak) in
            [(30, "20.0 % [16–25]", false), (29, "20.0 % [16–25]?", true), (4, "-", true), (0, "-", true)]
        {
            let got = Column::Misses(1, 32 << 10).cell(&row("g", 1.0, windows, 0.2), 10.0);
            assert_eq!(got, Cell { text: text.to_owned(), is_weak }, "{windows}");
        }
        assert_eq!(cell(Column::Accesses, &row("g", 1.0, 4, 0.2)), "-");
        assert_eq!(cell(Column::WorkingSet, &row("g", 1.0, 4, 0.2)), "-");
    }

    #[test]
    fn ends_of_another_unit_have_their_own() {
        let mib = 1_048_576.0;
        assert_eq!(between([31.0 * mib, 24.2 * mib, 40.0 * mib]), "31 MiB [24–40]");
        assert_eq!(between([0.5 * mib, 32_768.0, 480.0 * mib]), "512 KiB [32 KiB–480 MiB]");
        assert_eq!(between([0.0, 0.0, 420.0 * mib]), "0 B [0 B–420 MiB]");
        assert_eq!(between([1.5 * mib, 1.5 * mib, 2.0 * mib]), "1.5 MiB [1.5–2]");
    }

    #[test]
    fn columns_fit_the_terminal_and_drop_from_the_right() {
        let all = columns(&CACHES);
        for width in [0, 10, 14, 40, 79, 80, 120, 200, 500] {
            let fit = fitting(&all, width);
            let used: usize = fit.iter().map(|(_, width)| width + 1).sum();
            assert!(used <= width + 1, "{width}: {used}");
        }
        assert!(fitting(&all, 13).is_empty());
        // 80 columns show the miss ratios of three caches.
        assert!(fitting(&all, 80).iter().any(|(column, _)| *column == Column::Misses(3, 32 << 20)));
        assert_eq!(fitting(&all, 200).len(), all.len());
        assert!(all.iter().all(|column| column.title().chars().count() <= column.width()));
        assert_eq!(columns(&[(1, 1), (2, 2), (3, 3), (4, 4)])[3..6].len(), 3);
        assert_eq!(sizes(&[(1, 1), (2, 2), (3, 3), (4, 4)]), [(1, 1), (2, 2), (4, 4)]);
    }

    #[test]
    fn a_name_moves_no_cursor_and_turns_no_text() {
        for wild in ["a\x1b[2Jb", "a\u{9b}2J", "a\nb\r\t\u{7f}", "\u{202e}evil\u{2066}", "\x1b]0;t\x07"] {
            let tame = tame(wild);
            assert!(
                tame.chars().all(|c| !c.is_control() && !('\u{2028}'..='\u{2069}').contains(&c)),
                "{tame}"
            );
            let row = Row { objects: vec![(wild.to_owned(), 1.0)], ..row(wild, 1.0, 40, 0.1) };
            for column in columns(&CACHES) {
                assert!(!column.cell(&row, 1.0).text.chars().any(char::is_control));
            }
        }
    }

    #[test]
    fn rows_without_a_number_stand_last() {
        let column = Column::Misses(1, 32 << 10);
        let (low, high, none) = (row("b", 1.0, 40, 0.1), row("c", 1.0, 40, 0.3), row("a", 9.0, 3, 0.9));
        let mut rows = [none, low, high];
        rows.sort_by(|a, b| column.order(a, b));
        assert_eq!(rows.map(|row| row.group), ["c", "b", "a"]);
    }
}
