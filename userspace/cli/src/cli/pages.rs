//! Completions of shells and manual pages, made from the parser's own command.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use clap_complete::Shell;

use super::help::command;

/// The name of the program.
const NAME: &str = "locality-bpf";

/// The script of a shell.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), NAME, &mut script);
    script
}

/// Writes a manual page for the program and for each command into a folder, which is made where there is
/// none: `locality-bpf.1`, `locality-bpf-report.1`, ….
///
/// # Errors
/// A place that cannot be written.
pub fn manual(folder: &Path) -> Result<()> {
    let cannot = || format!("cannot write manual pages into {}", folder.display());
    fs::create_dir_all(folder).with_context(cannot)?;
    clap_mangen::generate_to(command(), folder).with_context(cannot)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn every_shell_completes_commands_and_options() {
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completions(*shell)).unwrap();
            for word in ["report", "diff", "fail-on", "speedscope"] {
                assert!(script.contains(word), "{shell}: {word}");
            }
        }
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let folder = tempfile::tempdir().unwrap();
        manual(folder.path()).unwrap();
        for name in ["locality-bpf", "locality-bpf-report", "locality-bpf-diff", "locality-bpf-export"] {
            let page = fs::read_to_string(folder.path().join(name).with_extension("1")).unwrap();
            assert!(page.contains(".TH") && page.contains("SYNOPSIS"), "{name}");
        }
    }
}
