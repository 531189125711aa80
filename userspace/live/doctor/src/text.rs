//! The report for a person: one line per capability, and below it, indented, consequence and
//! remedy.

use std::io::{self, Write};

use locality_model::printable;

use super::{Check, Report, State};

/// Longest line, if words allow.
const COLUMNS: usize = 100;

/// Where the third column begins: after the state and the name.
const FOUND_AT: usize = 34;

/// How the text looks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Style {
    /// Use terminal colours.
    pub colour: bool,
}

/// Writes the report as text.
pub fn print_text(report: &Report, style: Style, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "This machine")?;
    for check in &report.machine {
        print_check(check, style, out)?;
    }
    if let Some(target) = &report.target {
        match target.command.is_empty() {
            true => writeln!(out, "\nProcess {}", target.pid)?,
            false => writeln!(
                out,
                "\n{}",
                cut(&printable(&format!("Process {}: {}", target.pid, target.command)))
            )?,
        }
        for check in &target.checks {
            print_check(check, style, out)?;
        }
        if !target.notes.is_empty() {
            writeln!(out, "\nWhile it is traced")?;
        }
        for note in &target.notes {
            print_wrapped("  ", note, out)?;
        }
    }
    writeln!(out)?;
    print_wrapped("", &verdict(report), out)
}

/// The answer in one sentence.
fn verdict(report: &Report) -> String {
    let names = |state: State| {
        let names: Vec<_> =
            report.checks().filter(|check| check.state == state).map(|check| check.name).collect();
        names.join(", ")
    };
    match (report.possible, names(State::Degraded)) {
        (false, _) => format!("A trace is not possible: {}.", names(State::Missing)),
        (true, less) if less.is_empty() => "A trace is possible.".to_owned(),
        (true, less) => format!("A trace is possible, with less than there could be: {less}."),
    }
}

fn print_check(check: &Check, style: Style, out: &mut impl Write) -> io::Result<()> {
    let (word, colour) = match check.state {
        State::Ok => ("ok", "32"),
        State::Degraded => ("degraded", "33"),
        State::Missing => ("missing", "31"),
        State::Unknown => ("unknown", "35"),
    };
    let padded = format!("{word:<9}");
    let state = if style.colour { format!("\x1b[{colour}m{padded}\x1b[0m") } else { padded };
    // The colour takes no column, so the head is written apart from the wrapped rest.
    let mut lines = wrap(&printable(&check.found), COLUMNS - FOUND_AT).into_iter();
    let first = lines.next().unwrap_or_default();
    writeln!(out, "  {state} {:<width$}{first}", check.name, width = FOUND_AT - 12)?;
    let indent = " ".repeat(FOUND_AT);
    for line in lines {
        writeln!(out, "{indent}{line}")?;
    }
    if let Some(consequence) = &check.consequence {
        print_wrapped(&" ".repeat(FOUND_AT - 22), &printable(&format!("→ {consequence}")), out)?;
    }
    if let Some(mend) = &check.mend {
        // Never wrapped: it is to be copied.
        writeln!(out, "{}$ {mend}", " ".repeat(FOUND_AT - 22))?;
    }
    Ok(())
}

fn print_wrapped(indent: &str, text: &str, out: &mut impl Write) -> io::Result<()> {
    for (number, line) in wrap(text, COLUMNS - indent.len() - 2).into_iter().enumerate() {
        // Lines after the first stand under the first word.
        let hang = if number > 0 && text.starts_with('→') { "  " } else { "" };
        writeln!(out, "{indent}{hang}{line}")?;
    }
    Ok(())
}

/// Breaks at spaces; a word that is too long stands alone.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { break };
        match line.chars().count() {
            0 => line.push_str(word),
            used if used + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// One line of at most [`COLUMNS`], without control characters: a command line is another's text.
fn cut(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    match text.chars().count() > COLUMNS {
        true => clean.take(COLUMNS - 1).chain(['…']).collect(),
        false => clean.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Target, *};

    fn report() -> Report {
        let long = "a consequence ".repeat(20);
        let target = Target {
            pid: 7,
            command: format!("x\x1b[31m {}", "argument ".repeat(20)),
            checks: vec![Check::ok("c", "third", "many words ".repeat(15)).missing(long).mend("a command")],
            notes: vec!["a note ".repeat(20)],
        };
        Report {
            schema: "locality-doctor/1",
            possible: false,
            machine: vec![
                Check::ok("a", "first", "4 of 4"),
                Check::ok("b", "second one", "no").degraded("less comes out"),
            ],
            target: Some(target),
        }
    }

    fn text(report: &Report, colour: bool) -> String {
        let mut out = Vec::new();
        print_text(report, Style { colour }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_are_short_and_aligned() {
        let text = text(&report(), false);
        for line in text.lines() {
            assert!(line.chars().count() <= COLUMNS, "{line}");
            assert!(!line.contains('\x1b'), "{line:?}");
        }
        assert!(text.contains("  ok        first                 4 of 4\n"), "{text}");
        assert!(
            text.contains("  degraded  second one            no\n            → less comes out\n"),
            "{text}"
        );
        assert!(text.contains("            $ a command\n"), "{text}");
        assert!(text.ends_with("A trace is not possible: third.\n"), "{text}");
    }

    #[test]
    fn colours_only_when_asked_for() {
        let coloured = text(&report(), true);
        assert!(coloured.contains("\x1b[33mdegraded \x1b[0m second one"));
        let plain = ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"]
            .iter()
            .fold(coloured, |text, code| text.replace(code, ""));
        assert_eq!(plain, text(&report(), false).replace("\x1b[31m", ""));
    }

    #[test]
    fn verdicts() {
        let mut report = Report { target: None, possible: true, ..report() };
        assert!(verdict(&report).ends_with("second one."));
        report.machine.pop();
        assert_eq!(verdict(&report), "A trace is possible.");
    }
}
