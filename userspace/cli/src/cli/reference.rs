//! docs/reference/cli.md: the help of the program and of each command, as printed by `--help`.
//!
//! A test writes the page under `LOCALITY_WRITE_REFERENCE`
//! (`cargo xtask reference`), and otherwise fails if the page differs from the help.

use std::{fmt::Write as _, fs, path::Path};

use super::help::command;

const PAGE: &str = "docs/reference/cli.md";
const WRITE: &str = "LOCALITY_WRITE_REFERENCE";
/// Columns of a line, as of help without a terminal.
const WIDTH: usize = 100;

/// Start of the options common to every command; the program's section lists the common options.
const COMMON: &str = "\n\nOutput:\n  -v, --verbose";

const HEAD: &str = "\
# The command line

<!-- Written by `cargo xtask reference` from the parser's own help. -->

Each section is the output of `--help`; `-h` prints a summary. Options may stand before a command or after
it, and each command has `--verbose`, `--quiet` and `--color`. Durations are `10` (seconds), `500ms`, `10s`
or `2m`; sizes are `512`, `32K` or `1M`.
";

/// The page: one section for the program, and for each command listed by help.
fn page() -> String {
    let mut program = command().term_width(WIDTH);
    program.build();
    let mut text = HEAD.to_owned();
    section(&mut text, "locality-bpf", &program.render_long_help().to_string());
    for other in program.get_subcommands_mut().filter(|other| !other.is_hide_set()) {
        if other.get_name() != "help" {
            let name = format!("locality-bpf {}", other.get_name());
            let help = other.render_long_help().to_string();
            section(&mut text, &name, help.split(COMMON).next().unwrap_or_default());
        }
    }
    text
}

/// A heading and a block of help, without spaces at the ends of lines.
fn section(text: &mut String, name: &str, help: &str) {
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    let _ = write!(text, "\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"));
}

#[test]
fn the_page_is_the_help() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let page = page();
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "{PAGE} differs from --help: run `cargo xtask reference`");
}

#[test]
fn every_command_of_the_help_has_a_section() {
    let page = page();
    for name in ["report", "diff", "export", "model", "exact", "doctor", "completions", "calibrate"] {
        assert!(page.contains(&format!("\n## locality-bpf {name}\n")), "{name}");
    }
    assert!(page.contains("--policy <POLICY>") && !page.contains("## locality-bpf man\n"), "{page}");
}
