//! Lines of the screen: head, table or page of a group, and the line of keys.

use locality_rollup::{FEWEST, PLACE_SIZE, Row};
use locality_units::print::duration;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use crate::rows::{LEAST, amount, between, columns, fitting, padded, ratio, tame};
use crate::view::{Page, SPANS, View};

/// Least size of a terminal.
const LEAST_WIDTH: u16 = 24;
const LEAST_HEIGHT: u16 = 5;
/// Places and objects of a group's page.
const LISTED: usize = 6;
/// Longest bar of a miss ratio.
const BAR: usize = 30;

/// Draws the screen.
pub(crate) fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    if area.width < LEAST_WIDTH || area.height < LEAST_HEIGHT {
        frame.render_widget(Line::raw("larger window needed; q quits"), area);
        return;
    }
    let width = usize::from(area.width);
    let height = usize::from(area.height);
    let mut lines = vec![head(view), second(view)];
    let room = height - 3;
    lines.extend(match view.page {
        Page::Groups => table(view, width, room),
        Page::Group => group(view, width),
        Page::Help => help(),
    });
    lines.truncate(height - 1);
    for (row, line) in lines.iter().enumerate() {
        frame.render_widget(line, Rect { y: row as u16, height: 1, ..area });
    }
    frame.render_widget(keys(view), Rect { y: area.height - 1, height: 1, ..area });
}

fn styled(view: &View, text: impl Into<String>, colour: Color, modifier: Modifier) -> Span<'static> {
    let style = Style::new().add_modifier(modifier);
    Span::styled(text.into(), if view.has_colours { style.fg(colour) } else { style })
}

fn head(view: &View) -> Line<'static> {
    let mut text = format!(" {}", tame(&view.snapshot.state));
    if let Some(cost) = view.snapshot.cost {
        text.push_str(&format!(" · cost {:.2} % of their CPU time", cost * 100.0));
    }
    Line::from(vec![styled(view, "locality-bpf top", Color::Reset, Modifier::BOLD), Span::raw(text)])
}

fn second(view: &View) -> Line<'static> {
    let span = SPANS.get(view.span).map_or("", |(_, _, name)| name);
    let mut text = format!("last {span}: {} traced, sorted by ", duration(view.seconds * 1e9));
    text.push_str(&view.sort.title());
    if view.is_reversed {
        text.push_str(" (reversed)");
    }
    if view.is_order_fixed {
        text.push_str(" · order fixed");
    }
    if !view.filter.is_empty() {
        text.push_str(&format!(" · filter {}", view.filter));
    }
    let mut spans = vec![Span::raw(text)];
    if view.is_frozen {
        spans.push(styled(view, " · FROZEN", Color::Yellow, Modifier::BOLD));
    }
    if view.snapshot.is_over {
        spans.push(styled(view, " · ENDED", Color::Yellow, Modifier::BOLD));
    }
    Line::from(spans)
}

fn table(view: &View, width: usize, room: usize) -> Vec<Line<'static>> {
    let shown = fitting(&columns(&view.snapshot.caches), width);
    let titles: Vec<String> =
        shown.iter().map(|(column, width)| padded(&column.title(), *width, column.is_left())).collect();
    let mut lines = vec![Line::from(styled(view, titles.join(" "), Color::Cyan, Modifier::BOLD))];
    if view.rows.is_empty() {
        lines.push(Line::raw(match view.filter.is_empty() {
            true => "no samples yet",
            false => "no group has this filter in its name: Esc shows all",
        }));
        return lines;
    }
    let room = room.saturating_sub(1).max(1);
    let at = view.position().unwrap_or(0);
    let first = (at + 1).saturating_sub(room);
    for (index, row) in view.rows.iter().enumerate().skip(first).take(room) {
        let mut spans = Vec::new();
        for (number, (column, width)) in shown.iter().enumerate() {
            let cell = column.cell(row, view.seconds);
            let text = padded(&cell.text, *width, column.is_left());
            let text = if number > 0 { format!(" {text}") } else { text };
            let modifier = if cell.is_weak { Modifier::DIM } else { Modifier::empty() };
            spans.push(Span::styled(text, Style::new().add_modifier(modifier)));
        }
        let mut line = Line::from(spans);
        if index == at {
            line = line.style(Style::new().add_modifier(Modifier::REVERSED));
        }
        lines.push(line);
    }
    lines
}

fn group(view: &View, width: usize) -> Vec<Line<'static>> {
    let Some(row) = view.position().and_then(|at| view.rows.get(at)) else {
        return vec![Line::raw("the group has no samples in this time")];
    };
    let mut lines = vec![Line::from(styled(
        view,
        format!(
            "{}: n {} windows of {} samples, {:.1} s of CPU time",
            tame(&row.group),
            row.windows,
            row.samples,
            row.cpu_ns.sum() / 1e9
        ),
        Color::Reset,
        Modifier::BOLD,
    ))];
    lines.extend(curve(row).into_iter().map(Line::raw));
    for (what, named) in [("Places", &row.places), ("Data objects", &row.objects)] {
        if named.is_empty() || row.curve_windows < LEAST {
            continue;
        }
        let title = format!(
            "{what} by bytes loaded into a cache of {} (n {})",
            amount(PLACE_SIZE as f64),
            row.curve_windows
        );
        lines.push(Line::from(styled(view, title, Color::Cyan, Modifier::BOLD)));
        for (name, bytes) in named.iter().take(LISTED) {
            lines.push(Line::raw(padded(&format!("{:>10}  {}", amount(*bytes), tame(name)), width, true)));
        }
    }
    lines
}

/// Miss ratios by size as bars, with intervals.
pub(crate) fn curve(row: &Row) -> Vec<String> {
    if row.curve.is_empty() || row.curve_windows < LEAST {
        return vec![format!("no miss ratio: fewer than {LEAST} windows, or no reuse was seen")];
    }
    let bar = |ratio: f64| "#".repeat((ratio * BAR as f64).round() as usize);
    let mark = if row.is_known() { "" } else { "?" };
    let mut lines = vec!["Miss ratio by cache size".to_owned()];
    let is_shown = |bytes: u64| bytes >= 16 << 10 && bytes.is_power_of_two() && bytes.ilog2() % 2 == 1;
    let named = [32_u64 << 10, 1 << 20, 32 << 20];
    for point in row.curve.iter().filter(|point| is_shown(point.bytes) || named.contains(&point.bytes)) {
        lines.push(format!(
            "{:>9} {:<15}{mark:<1} {}",
            amount(point.bytes as f64),
            ratio(point.ratio, point.low, point.high),
            bar(point.ratio)
        ));
    }
    if let Some((value, low, high)) = row.footprint_bytes {
        lines.push(format!("touched {}{mark} in the longest part", between([value, low, high])));
    }
    lines
}

fn help() -> Vec<Line<'static>> {
    let text = [
        "1 5 h     numbers of the last minute, five minutes, hour",
        "s S       sort by the next column, by the one before; r reverses",
        "↑ ↓ j k   select a group; Enter shows its curve, places and data objects",
        "/         filter by name; Esc ends the filter",
        "p         freeze the numbers; o fixes the order alone",
        "q         quit (Ctrl-C too)",
        "",
        "CPU       sampled CPU time in user mode, in percent of a processor",
        "n         windows that estimates rest on",
        "misses    misses per touch of a cache line, with 95 % interval",
        "into …    bytes loaded into the last cache, per second",
        "working set   least cache within 5 points of the best miss ratio",
        "seen      share of the CPU time in which accesses were found by windows",
    ];
    let mut lines: Vec<Line<'static>> = text.into_iter().map(Line::raw).collect();
    lines.push(Line::raw(format!(
        "? grey    rests on fewer than {FEWEST} windows; - fewer than {LEAST}, or none"
    )));
    lines
}

fn keys(view: &View) -> Line<'static> {
    let text = if view.is_typing {
        format!("filter: {}_  Enter keeps, Esc clears", view.filter)
    } else {
        match view.page {
            Page::Groups => "q quit  s sort  / filter  p freeze  Enter open  1 5 h time  ? help".to_owned(),
            Page::Group => "Esc back  ↑ ↓ other group  1 5 h time  q quit".to_owned(),
            Page::Help => "Esc back  q quit".to_owned(),
        }
    };
    Line::from(styled(view, text, Color::Reset, Modifier::DIM))
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::Part;
    use crate::rows::tests::row;
    use crate::view::tests::{press, snapshot, view};

    fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..height).map(line).map(|line| line.trim_end().to_owned()).collect()
    }

    #[test]
    fn a_table_of_80_columns() {
        let screen = screen(&view(), 80, 24);
        assert_eq!(screen[0], "locality-bpf top agent 7 · cost 0.83 % of their CPU time");
        assert_eq!(screen[1], "last 5 min: 20 s traced, sorted by CPU");
        assert_eq!(
            screen[2],
            "group                  CPU     n       L1 misses       L2 misses       L3 misses"
        );
        assert_eq!(
            screen[3],
            "db                  45.0 %    20  10.0 % [8–12]?    5.0 % [4–6]?    0.2 % [0–0]?"
        );
        assert!(screen[4].starts_with("web                 30.0 %    80  30.0 % ["), "{}", screen[4]);
        assert!(screen[5].ends_with("2               -               -               -"), "{}", screen[5]);
        assert!(screen[23].starts_with("q quit"), "{}", screen[23]);
    }

    #[test]
    fn wide_terminals_show_all_columns() {
        let screen = screen(&view(), 200, 50);
        for title in ["into 32 MiB, per s", "working set", "accesses/s", "seen", "data object"] {
            assert!(screen[2].contains(title), "{title}: {}", screen[2]);
        }
        assert!(screen[4].contains("matrix"), "{}", screen[4]);
    }

    #[test]
    fn every_size_of_terminal_is_drawn() {
        let mut view = view();
        for keys in ["", "?", "\x1b\n", "\x1b/web"] {
            press(&mut view, keys);
            for width in [1, 5, 23, 24, 40, 81, 300] {
                for height in [1, 4, 5, 6, 24] {
                    let screen = screen(&view, width, height);
                    assert!(screen.iter().any(|line| !line.is_empty()), "{width}×{height} {keys:?}");
                }
            }
        }
    }

    #[test]
    fn a_group_has_a_curve_with_intervals() {
        let mut view = view();
        press(&mut view, "j\n");
        let screen = screen(&view, 80, 24).join("\n");
        for words in ["web: n 80 windows", "32 KiB 30.0 % [", "#########", "walk a.c:3", "matrix", "(n 80)"] {
            assert!(screen.contains(words), "{words}: {screen}");
        }
        press(&mut view, "j");
        assert!(self::screen(&view, 80, 24).join("\n").contains("fewer than 5 windows"));
    }

    #[test]
    fn the_selected_row_is_always_on_the_screen() {
        let rows = (0..100).map(|n| row(&format!("g{n:02}"), f64::from(100 - n), 40, 0.1)).collect();
        let mut view = View::new("", false);
        let part = Part { started_ns: snapshot().now_ns - 1, wall_ns: 1, rows };
        view.take(crate::Snapshot { parts: vec![part], ..snapshot() });
        press(&mut view, &"j".repeat(60));
        assert!(screen(&view, 80, 10).iter().any(|line| line.starts_with("g60")));
    }

    #[test]
    fn colours_are_left_out_where_asked_and_names_are_inert() {
        let mut snapshot = snapshot();
        snapshot.parts[2].rows[0].group = "a\x1b[31mb\u{9b}2J".to_owned();
        snapshot.state = "\x1b]0;title\x07".to_owned();
        let mut view = View::new("", false);
        view.take(snapshot);
        press(&mut view, "\n");
        for page in ["", "\x1b", "?"] {
            press(&mut view, page);
            let mut terminal = Terminal::new(TestBackend::new(120, 24)).unwrap();
            terminal.draw(|frame| draw(frame, &view)).unwrap();
            for cell in terminal.backend().buffer().content() {
                assert!(cell.fg == Color::Reset && cell.bg == Color::Reset);
                assert!(!cell.symbol().chars().any(char::is_control), "{:?}", cell.symbol());
            }
        }
    }
}
