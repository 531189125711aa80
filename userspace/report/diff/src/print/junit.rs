//! JUnit's XML: a test case for each condition, or for each quantity of the whole run without conditions.
//!
//! Format: the schema of Jenkins' xUnit plugin, which GitLab, Azure and others read: `testsuites`,
//! `testsuite`, `testcase`, `failure`, `skipped`, `system-out`.

use std::fmt::Write as _;

use locality_report::schema::diff::{Diff, Verdict};

use super::{markup, sentence, text, whole};

enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// The file.
pub fn junit(diff: &Diff) -> String {
    let cases: Vec<(String, Outcome, String)> = if diff.conditions.is_empty() {
        let case = |row| {
            let row: &locality_report::schema::diff::Row = row;
            let outcome = match row.verdict {
                Verdict::Regressed => Outcome::Failed,
                Verdict::Inconclusive => Outcome::Skipped,
                Verdict::Improved | Verdict::Unchanged => Outcome::Passed,
            };
            (row.quantity.clone(), outcome, sentence(row))
        };
        whole(diff).map(case).collect()
    } else {
        let case = |condition: &locality_report::schema::diff::Condition| {
            let outcome = match (condition.failed, condition.inconclusive) {
                (true, _) => Outcome::Failed,
                (_, true) => Outcome::Skipped,
                _ => Outcome::Passed,
            };
            let quantity = condition.condition.split('>').next().unwrap_or_default().trim();
            let row = whole(diff).find(|row| row.quantity.eq_ignore_ascii_case(quantity));
            (condition.condition.clone(), outcome, row.map(sentence).unwrap_or_default())
        };
        diff.conditions.iter().map(case).collect()
    };
    let count = |of: fn(&Outcome) -> bool| cases.iter().filter(|(_, outcome, _)| of(outcome)).count();
    let failures = count(|outcome| matches!(outcome, Outcome::Failed));
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped));
    let all = cases.len();
    let counts = format!("tests=\"{all}\" failures=\"{failures}\" errors=\"0\"");
    let mut page = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"locality-bpf diff\" {counts}>\n  <testsuite name=\"locality\" \
         {counts} skipped=\"{skipped}\">\n"
    );
    for (name, outcome, says) in cases {
        let (name, says) = (escaped(&name), escaped(&says));
        let _ = match outcome {
            Outcome::Passed => {
                writeln!(
                    page,
                    "    <testcase classname=\"locality\" name=\"{name}\"><system-out>{says}</system-out></testcase>"
                )
            }
            Outcome::Failed => writeln!(
                page,
                "    <testcase classname=\"locality\" name=\"{name}\"><failure message=\"{says}\" type=\"regression\">{says}</failure></testcase>"
            ),
            Outcome::Skipped => writeln!(
                page,
                "    <testcase classname=\"locality\" name=\"{name}\"><skipped message=\"inconclusive: {says}\"/></testcase>"
            ),
        };
    }
    let _ = write!(
        page,
        "    <system-out>{}</system-out>\n  </testsuite>\n</testsuites>\n",
        escaped(&text(diff))
    );
    page
}

/// XML 1.0 has no control characters but tabs and line breaks.
fn escaped(text: &str) -> String {
    markup(text, |c| match c {
        '\n' | '\t' => None,
        c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => Some("?"),
        _ => None,
    })
}
