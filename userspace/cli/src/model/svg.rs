//! The hot path as a picture: a self-contained SVG without scripts, a row a node of the tree with its share
//! as a bar, the number of iterations of loops, and colours for light and dark surroundings.

use std::fmt::Write as _;

use locality_execution::paths::{PathNode, Step};

use super::Model;
use super::page::{Names, iterations, shortened};

/// Pixels: of a row, above the first row, of the bar for 100 %, of a step of the tree, of the picture.
const ROW: usize = 22;
const TOP: usize = 64;
const BAR: f64 = 180.0;
const STEP: usize = 16;
const WIDTH: usize = 1100;
/// Where percentages end, and where names begin.
const PERCENT: usize = 250;
const NAMES: usize = 266;
/// Deeper nodes are drawn at this depth.
const DEEPEST: usize = 30;
/// Letters of a name; the whole name is the row's title.
const LETTERS: usize = 90;
/// Rows of a picture.
const MOST_ROWS: usize = 2000;

const STYLE: &str = "\
svg{background:#fff;font:13px system-ui,sans-serif}text{fill:#1a1a1a}.dim{fill:#666}.bar{fill:#d9822b}\
.loop .bar{fill:#2f6fb5}.loop text.name{fill:#1d4f86}.hot text.name{font-weight:600}\
path{stroke:#bbb;fill:none}.track{fill:#eee}\
@media(prefers-color-scheme:dark){svg{background:#16181c}text{fill:#e6e6e6}.dim{fill:#9aa0a6}\
.bar{fill:#e79a4b}.loop .bar{fill:#5b9bdf}.loop text.name{fill:#9cc5f2}path{stroke:#555}.track{fill:#2a2d33}}";

struct Row {
    depth: usize,
    share: f64,
    class: &'static str,
    name: String,
}

/// The picture.
pub(super) fn page(model: &Model) -> String {
    let mut rows = Vec::new();
    for node in &model.path {
        gather(model, node, 0, &mut rows);
    }
    let left_out = rows.len().saturating_sub(MOST_ROWS);
    rows.truncate(MOST_ROWS);
    let coverage = format!(
        "{:.0} % of the time in {:.1} % of the code: names of these hot spots are bold. Blue: loops.{}",
        100.0 * model.selected.0,
        100.0 * model.selected.1,
        if left_out > 0 { format!(" {left_out} more rows: --format json.") } else { String::new() }
    );
    draw(&format!("Hot path of {}", shortened(&model.profile.run.command, LETTERS)), &coverage, &rows)
}

fn gather(model: &Model, node: &PathNode, depth: usize, rows: &mut Vec<Row>) {
    let (place, name) = match node.step {
        Step::Function(function) => ((function, None), Names::function(model, function).to_owned()),
        Step::Loop(function, label) => {
            let words = format!("loop L{label:x}{}", iterations(model, function, label));
            ((function, Some(label)), words)
        }
    };
    let selected = model.spots.iter().any(|spot| spot.selected && spot.place == place);
    let class = match (place.1.is_some(), selected) {
        (true, true) => "loop hot",
        (true, false) => "loop",
        (false, true) => "hot",
        (false, false) => "function",
    };
    rows.push(Row { depth: depth.min(DEEPEST), share: node.share, class, name });
    for below in &node.below {
        gather(model, below, depth + 1, rows);
    }
}

fn draw(title: &str, note: &str, rows: &[Row]) -> String {
    let height = TOP + ROW * rows.len() + 16;
    let mut page = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <text x=\"16\" y=\"26\" font-size=\"16\">{title}</text>\n\
         <text x=\"16\" y=\"46\" class=\"dim\">{note}</text>\n",
        title = escaped(title),
        note = escaped(note)
    );
    // The last row of each depth, from which lines lead to the rows below.
    let mut above: Vec<usize> = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let (y, x) = (TOP + ROW * number, NAMES + STEP * row.depth);
        above.truncate(row.depth);
        if let Some(parent) = above.last() {
            let from = TOP + ROW * parent + ROW - 4;
            let (left, middle) = (x - STEP + 4, y + ROW / 2);
            let _ = writeln!(page, "<path d=\"M{left} {from}V{middle}H{}\"/>", x - 2);
        }
        above.push(number);
        let width = (BAR * row.share.clamp(0.0, 1.0)).max(0.5);
        let _ = writeln!(
            page,
            "<g class=\"{}\"><title>{:.1} % of the CPU time: {}</title><rect class=\"track\" x=\"16\" y=\"{}\" \
             width=\"{BAR}\" height=\"{}\"/><rect class=\"bar\" x=\"16\" y=\"{}\" width=\"{width:.1}\" \
             height=\"{}\"/><text x=\"{PERCENT}\" y=\"{}\" text-anchor=\"end\">{:.1} %</text>\
             <text class=\"name\" x=\"{x}\" y=\"{}\">{}</text></g>",
            row.class,
            100.0 * row.share,
            escaped(&row.name),
            y + 4,
            ROW - 8,
            y + 4,
            ROW - 8,
            y + 16,
            100.0 * row.share,
            y + 16,
            escaped(&shortened(&row.name, LETTERS)),
        );
    }
    page.push_str("</svg>\n");
    page
}

/// Text of an element. Letters that XML does not allow become question marks.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => escaped.push('?'),
            letter if letter.is_control() => escaped.push('?'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str =
        "</text><script>alert(1)</script> a<b>::operator&&(\"x\", '\u{1}\u{0}\u{ffff}') ]]> &#0;";

    /// Elements in order, a depth each; panics where the text is not well formed.
    fn elements(page: &str) -> Vec<(usize, String)> {
        let (mut open, mut found): (Vec<String>, Vec<(usize, String)>) = (Vec::new(), Vec::new());
        let mut rest = page;
        while let Some(at) = rest.find('<') {
            assert!(!rest[..at].contains('>') || open.last().is_some_and(|name| name == "style"), "{rest}");
            let mut text = &rest[..at];
            while let Some(and) = text.find('&') {
                let end = and + text[and..].find(';').expect("an entity ends");
                assert!(["amp", "lt", "gt", "quot", "#39"].contains(&&text[and + 1..end]), "{text}");
                text = &text[end..];
            }
            assert!(rest.chars().all(|letter| letter == '\n' || !letter.is_control()));
            let end = at + rest[at..].find('>').expect("a tag ends");
            let tag = &rest[at + 1..end];
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            let name = tag.trim_matches('/').split([' ', '/']).next().expect("a name").to_owned();
            if tag.starts_with('/') {
                assert_eq!(open.pop().as_deref(), Some(name.as_str()), "{tag}");
            } else {
                found.push((open.len(), name.clone()));
                if !tag.ends_with('/') {
                    open.push(name);
                }
            }
            rest = &rest[end + 1..];
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
        found
    }

    #[test]
    fn hostile_names_stay_text() {
        let row = |depth: usize, share: f64| Row { depth, share, class: "loop hot", name: HOSTILE.repeat(3) };
        let page = draw(HOSTILE, HOSTILE, &[row(0, 1.0), row(1, 0.5), row(2, f64::NAN), row(1, 0.25)]);
        let found = elements(&page);
        let known = ["svg", "title", "style", "text", "path", "g", "rect"];
        assert!(found.iter().all(|(_, name)| known.contains(&name.as_str())), "{found:?}");
        assert_eq!(found.iter().filter(|(_, name)| name == "g").count(), 4);
        // A line from each row below another one.
        assert_eq!(found.iter().filter(|(_, name)| name == "path").count(), 3);
        assert!(!page.contains("href") && !page.contains("url(") && !page.contains("<script"), "{page}");
        assert!(page.contains("prefers-color-scheme:dark"));
    }
}
