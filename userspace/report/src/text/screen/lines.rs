//! Lines of a page with their colours, and the same page in ASCII.

use crate::text::Style;

/// What a part of a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// A heading.
    Bold,
    /// Good news.
    Good,
    /// What a reader must know.
    Warning,
    /// Bad news.
    Bad,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Self::Bold => "1",
            Self::Good => "1;32",
            Self::Warning => "33",
            Self::Bad => "1;31",
        }
    }
}

/// A line of a page.
#[derive(Debug, Clone, Default)]
pub struct Line {
    text: String,
    paint: Option<(Paint, usize)>,
    is_whole: bool,
}

impl Line {
    /// Without colours.
    pub fn plain(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// In one colour.
    pub fn painted(paint: Paint, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { paint: Some((paint, text.chars().count())), text, is_whole: false }
    }

    /// In one colour up to a column.
    pub fn starting(paint: Paint, columns: usize, text: impl Into<String>) -> Self {
        Self { text: text.into(), paint: Some((paint, columns)), is_whole: false }
    }

    /// A line to copy, which may be wider than the page.
    pub fn uncut(mut self) -> Self {
        self.is_whole = true;
        self
    }

    /// The printed form, without its end of line.
    pub fn print(&self, width: usize, ascii: bool, style: Style) -> String {
        let text = if self.is_whole { self.text.clone() } else { super::names::cut(&self.text, width) };
        let text = text.trim_end();
        let text = if ascii { in_ascii(text) } else { text.to_owned() };
        match self.paint {
            Some((paint, columns)) if style == Style::Ansi && columns > 0 && !text.is_empty() => {
                let end = text.char_indices().nth(columns).map_or(text.len(), |(at, _)| at);
                let (painted, rest) = text.split_at(end);
                format!("\x1b[{}m{painted}\x1b[0m{rest}", paint.code())
            }
            _ => text,
        }
    }
}

/// One character for one, to preserve columns; the gap after ± is reduced by its width.
fn in_ascii(text: &str) -> String {
    let mut ascii = String::new();
    let mut is_longer = false;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            ' ' if is_longer && rest.peek() == Some(&' ') => is_longer = false,
            '±' => {
                ascii.push_str("+-");
                is_longer = true;
            }
            _ => ascii.push(ascii_of(c)),
        }
    }
    ascii
}

fn ascii_of(c: char) -> char {
    match c {
        ' '..='~' => c,
        '–' | '−' | '—' => '-',
        '…' => '~',
        '·' => '|',
        '→' => '>',
        '≤' => '<',
        'µ' => 'u',
        '×' => 'x',
        '▇' => '#',
        '▏' => '.',
        '‘' | '’' => '\'',
        '“' | '”' => '"',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_has_the_same_columns() {
        let line = Line::plain("1.2 µs → 82 % [63–99] · ▇▇▏ naïve…");
        let text = line.print(80, true, Style::Plain);
        assert_eq!(text, "1.2 us > 82 % [63-99] | ##. na?ve~");
        assert_eq!(text.chars().count(), line.text.chars().count());
        let line = Line::plain("82 % ±18   5 %  7 % ±3").print(80, true, Style::Plain);
        assert_eq!(line, "82 % +-18  5 %  7 % +-3");
    }

    #[test]
    fn lines_end_at_the_width_unless_they_are_uncut() {
        let line = Line::plain("locality-bpf report trace.locality");
        assert_eq!(line.print(12, false, Style::Plain), "locality-bp…");
        assert_eq!(line.uncut().print(12, false, Style::Plain), "locality-bpf report trace.locality");
    }

    #[test]
    fn colours_end_where_they_should() {
        let text = |line: Line| line.print(80, false, Style::Ansi);
        assert_eq!(text(Line::starting(Paint::Bad, 4, "POOR of 1")), "\x1b[1;31mPOOR\x1b[0m of 1");
        assert_eq!(text(Line::painted(Paint::Bold, "Cost")), "\x1b[1mCost\x1b[0m");
        assert_eq!(text(Line::starting(Paint::Bold, 40, "Cost")), "\x1b[1mCost\x1b[0m");
        assert_eq!(text(Line::painted(Paint::Bold, "")), "");
    }
}
