//! State of the screen, and the effect of keys.

use std::time::Duration;

use locality_rollup::{Row, merged};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::Snapshot;
use crate::rows::{Column, columns, tame};

/// Times that the table may cover, with their keys.
pub(crate) const SPANS: [(char, Duration, &str); 3] = [
    ('1', Duration::from_secs(60), "1 min"),
    ('5', Duration::from_secs(300), "5 min"),
    ('h', Duration::from_secs(3600), "1 h"),
];
/// Longest filter.
const FILTER: usize = 64;

/// What the screen shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Page {
    /// The table.
    Groups,
    /// The selected group.
    Group,
    /// Keys and columns.
    Help,
}

/// The state of the screen.
#[derive(Debug, Clone)]
pub struct View {
    pub(crate) snapshot: Snapshot,
    pub(crate) page: Page,
    pub(crate) span: usize,
    pub(crate) sort: Column,
    pub(crate) is_reversed: bool,
    /// Numbers stay until the key is pressed again.
    pub(crate) is_frozen: bool,
    /// Rows stay in their order.
    pub(crate) is_order_fixed: bool,
    pub(crate) filter: String,
    pub(crate) is_typing: bool,
    /// Name of the selected group.
    pub(crate) selected: Option<String>,
    pub(crate) rows: Vec<Row>,
    /// Length of the covered parts.
    pub(crate) seconds: f64,
    pub(crate) has_colours: bool,
    latest: Option<Snapshot>,
}

impl View {
    /// The first screen: groups that contain `filter`, over five minutes, by CPU time.
    pub fn new(filter: &str, has_colours: bool) -> Self {
        Self {
            snapshot: Snapshot::default(),
            page: Page::Groups,
            span: 1,
            sort: Column::Cpu,
            is_reversed: false,
            is_frozen: false,
            is_order_fixed: false,
            filter: filter.chars().take(FILTER).collect(),
            is_typing: false,
            selected: None,
            rows: Vec::new(),
            seconds: 0.0,
            has_colours,
            latest: None,
        }
    }

    /// Takes new numbers; frozen screens show them later.
    pub fn take(&mut self, snapshot: Snapshot) {
        if self.is_frozen {
            self.latest = Some(snapshot);
        } else {
            self.snapshot = snapshot;
            self.refresh();
        }
    }

    /// Whether nothing is left to wait for: tracing has ended.
    pub fn is_over(&self) -> bool {
        self.latest.as_ref().unwrap_or(&self.snapshot).is_over
    }

    /// Whether a group is shown.
    pub fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// Names of the groups, if there are groups, and the filter hides each of them.
    pub fn hidden(&self) -> Option<Vec<String>> {
        let names = self.snapshot.parts.iter().flat_map(|part| &part.rows).map(|row| tame(&row.group));
        let names: std::collections::BTreeSet<String> = names.collect();
        let wanted = self.filter.to_lowercase();
        let all_are = !names.iter().any(|name| name.to_lowercase().contains(&wanted));
        (all_are && !names.is_empty()).then(|| names.into_iter().collect())
    }

    /// Sums the parts of the span, and orders the rows.
    fn refresh(&mut self) {
        let span_ns = SPANS.get(self.span).map_or(0, |(_, span, _)| span.as_nanos() as u64);
        let from = self.snapshot.now_ns.saturating_sub(span_ns);
        let parts = self.snapshot.parts.iter().filter(|part| part.started_ns + part.wall_ns >= from);
        let mut by_group: std::collections::BTreeMap<&str, Vec<&Row>> = std::collections::BTreeMap::new();
        self.seconds = 0.0;
        for part in parts {
            self.seconds += part.wall_ns as f64 / 1e9;
            for row in &part.rows {
                by_group.entry(&row.group).or_default().push(row);
            }
        }
        let wanted = self.filter.to_lowercase();
        let is_wanted = |row: &Row| tame(&row.group).to_lowercase().contains(&wanted);
        let sums = by_group.into_iter().filter_map(|(name, rows)| merged(name, rows));
        let mut rows: Vec<Row> = sums.filter(is_wanted).collect();
        let (sort, is_reversed) = (self.sort, self.is_reversed);
        rows.sort_by(|a, b| {
            let order = sort.order(a, b);
            if is_reversed { order.reverse() } else { order }
        });
        if self.is_order_fixed {
            let place = |row: &Row| self.rows.iter().position(|old| old.group == row.group);
            rows.sort_by_key(|row| place(row).unwrap_or(usize::MAX));
        }
        self.rows = rows;
        if self.position().is_none() {
            self.selected = self.rows.first().map(|row| row.group.clone());
        }
    }

    /// Row of the selected group.
    pub(crate) fn position(&self) -> Option<usize> {
        let selected = self.selected.as_ref()?;
        self.rows.iter().position(|row| row.group == *selected)
    }

    fn select(&mut self, step: isize) {
        let last = self.rows.len().saturating_sub(1);
        let at = self.position().unwrap_or(0).saturating_add_signed(step).min(last);
        self.selected = self.rows.get(at).map(|row| row.group.clone());
    }

    fn sort_by(&mut self, step: isize) {
        let all = columns(&self.snapshot.caches);
        let at = all.iter().position(|column| *column == self.sort).unwrap_or(0);
        let next = (at.cast_signed() + step).rem_euclid(all.len().cast_signed());
        if let Some(column) = all.get(next.cast_unsigned()) {
            self.sort = *column;
        }
        self.is_order_fixed = false;
        self.refresh();
    }

    /// The effect of a key; true if the key ends the table.
    pub fn press(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c' | 'C' | 'd' | 'D')) {
            return true;
        }
        if self.is_typing {
            self.type_filter(key.code);
            return false;
        }
        match key.code {
            KeyCode::Esc | KeyCode::Backspace if self.page != Page::Groups => self.page = Page::Groups,
            KeyCode::Esc if !self.filter.is_empty() => {
                self.filter.clear();
                self.refresh();
            }
            KeyCode::Char('q' | 'Q') => return true,
            KeyCode::Char('?') | KeyCode::F(1) => {
                self.page = if self.page == Page::Help { Page::Groups } else { Page::Help };
            }
            KeyCode::Enter if self.page == Page::Group => self.page = Page::Groups,
            KeyCode::Enter if self.selected.is_some() => self.page = Page::Group,
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::PageUp => self.select(-10),
            KeyCode::PageDown => self.select(10),
            KeyCode::Home => self.select(isize::MIN),
            KeyCode::End => self.select(isize::MAX),
            KeyCode::Char('s' | '>') | KeyCode::Right => self.sort_by(1),
            KeyCode::Char('S' | '<') | KeyCode::Left => self.sort_by(-1),
            KeyCode::Char('r') => {
                self.is_reversed = !self.is_reversed;
                self.refresh();
            }
            KeyCode::Char('o') => self.is_order_fixed = !self.is_order_fixed,
            KeyCode::Char('p' | ' ') => self.freeze(),
            KeyCode::Char('/') => {
                self.is_typing = true;
                self.page = Page::Groups;
            }
            KeyCode::Char(key) => {
                if let Some(span) = SPANS.iter().position(|(of, ..)| *of == key) {
                    self.span = span;
                    self.refresh();
                }
            }
            _ => {}
        }
        false
    }

    fn freeze(&mut self) {
        self.is_frozen = !self.is_frozen;
        if let Some(latest) = self.latest.take().filter(|_| !self.is_frozen) {
            self.take(latest);
        }
    }

    fn type_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Char(c) if !c.is_control() && self.filter.chars().count() < FILTER => {
                self.filter.push(c)
            }
            _ => {}
        }
        self.refresh();
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Part;
    use crate::rows::tests::{CACHES, row};

    pub(crate) fn snapshot() -> Snapshot {
        let second = 1_000_000_000;
        let part = |ago_s: u64, rows| {
            let started_ns = (10_000 - ago_s) * second;
            Part { started_ns, wall_ns: 10 * second, rows }
        };
        Snapshot {
            now_ns: 10_000 * second,
            parts: vec![
                part(3000, vec![row("old", 1.0, 40, 0.1)]),
                part(200, vec![row("web", 2.0, 40, 0.2), row("db", 9.0, 20, 0.1)]),
                part(10, vec![row("web", 4.0, 40, 0.4), row("cron", 0.1, 2, 0.9)]),
            ],
            caches: CACHES.to_vec(),
            cost: Some(0.0083),
            state: "agent 7".to_owned(),
            is_over: false,
        }
    }

    pub(crate) fn view() -> View {
        let mut view = View::new("", true);
        view.take(snapshot());
        view
    }

    pub(crate) fn press(view: &mut View, keys: &str) {
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                key => KeyCode::Char(key),
            };
            assert!(!view.press(KeyEvent::new(code, KeyModifiers::NONE)), "{key}");
        }
    }

    fn names(view: &View) -> Vec<&str> {
        view.rows.iter().map(|row| row.group.as_str()).collect()
    }

    #[test]
    fn a_span_sums_its_parts() {
        let mut view = view();
        assert_eq!((names(&view), view.seconds), (vec!["db", "web", "cron"], 20.0));
        let web = &view.rows[1];
        assert_eq!((web.windows, web.cpu_ns.sum()), (80, 6e9));
        press(&mut view, "1");
        assert_eq!((names(&view), view.seconds), (vec!["web", "cron"], 10.0));
        press(&mut view, "h");
        assert_eq!((names(&view), view.seconds), (vec!["db", "web", "old", "cron"], 30.0));
    }

    #[test]
    fn keys_sort_filter_and_select() {
        let mut view = view();
        press(&mut view, "jj");
        assert_eq!(view.selected.as_deref(), Some("cron"));
        press(&mut view, "jr");
        assert_eq!((names(&view), view.position()), (vec!["cron", "web", "db"], Some(0)));
        press(&mut view, "rs");
        assert_eq!((view.sort, names(&view)), (Column::Windows, vec!["web", "db", "cron"]));
        press(&mut view, "S<");
        assert_eq!((view.sort, names(&view)), (Column::Group, vec!["cron", "db", "web"]));
        press(&mut view, "S");
        assert_eq!(view.sort, Column::Object);
        press(&mut view, "/Wq\n");
        assert!(names(&view).is_empty() && view.selected.is_none(), "q is a letter there");
        press(&mut view, "\x1b/WE\n");
        assert_eq!((names(&view), view.selected.as_deref()), (vec!["web"], Some("web")));
        press(&mut view, "\x1b");
        assert_eq!(names(&view).len(), 3);
        let key = |code, modifiers| KeyEvent::new(code, modifiers);
        assert!(view.press(key(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(view.press(key(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }

    #[test]
    fn a_frozen_screen_stays_and_a_fixed_order_too() {
        let mut view = view();
        press(&mut view, "p");
        let then = Snapshot { parts: Vec::new(), is_over: true, ..snapshot() };
        view.take(then);
        assert!(view.is_over() && names(&view).len() == 3);
        press(&mut view, "p");
        assert!(names(&view).is_empty());
        view.take(snapshot());
        press(&mut view, "o");
        let mut later = snapshot();
        later.parts[2].rows[1].cpu_ns.windows = 1e12;
        view.take(later);
        assert_eq!(names(&view), ["db", "web", "cron"]);
        press(&mut view, "os<");
        assert_eq!(names(&view), ["cron", "db", "web"]);
    }
}
