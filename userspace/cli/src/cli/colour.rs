//! Whether text is printed in colours: `--color`, then the variables that people set for all programs.
//!
//! `NO_COLOR` (no-color.org) goes before `CLICOLOR_FORCE`, and that before `CLICOLOR`
//! (bixense.com/clicolors). A terminal of type `dumb` shows none.

use std::{ffi::OsString, io::IsTerminal};

use clap::ValueEnum;

/// What `--color` says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// On a terminal, unless the environment says otherwise.
    #[default]
    Auto,
    /// Everywhere, also into a file.
    Always,
    /// Nowhere.
    Never,
}

impl When {
    /// Whether text has colours there.
    pub fn on(self, to: &impl IsTerminal) -> bool {
        self.decide(to.is_terminal(), |name| std::env::var_os(name))
    }

    /// Whether text has colours in a file that was asked for by name. No variable means files.
    pub fn in_file(self) -> bool {
        self == Self::Always
    }

    fn decide(self, is_terminal: bool, variable: impl Fn(&str) -> Option<OsString>) -> bool {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto if set("NO_COLOR").is_some() => false,
            Self::Auto if set("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
            Self::Auto if set("CLICOLOR").is_some_and(|value| value == "0") => false,
            Self::Auto => is_terminal && set("TERM").is_none_or(|term| term != "dumb"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_follow_the_option_then_the_environment() {
        let on = |when: When, terminal: bool, set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
            when.decide(terminal, value)
        };
        let auto = |terminal, set: &[(&str, &str)]| on(When::Auto, terminal, set);
        assert!(auto(true, &[]) && !auto(false, &[]));
        assert!(auto(true, &[("TERM", "xterm")]) && !auto(true, &[("TERM", "dumb")]));
        assert!(!auto(true, &[("NO_COLOR", "1")]) && auto(true, &[("NO_COLOR", "")]));
        assert!(!auto(true, &[("CLICOLOR", "0")]) && auto(true, &[("CLICOLOR", "1")]));
        assert!(auto(false, &[("CLICOLOR_FORCE", "1"), ("TERM", "dumb"), ("CLICOLOR", "0")]));
        assert!(!auto(false, &[("CLICOLOR_FORCE", "0")]) && !auto(false, &[("CLICOLOR_FORCE", "")]));
        assert!(!auto(true, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
        assert!(on(When::Always, false, &[("NO_COLOR", "1")]));
        assert!(!on(When::Never, true, &[("CLICOLOR_FORCE", "1")]));
        assert!(When::Always.in_file() && !When::Auto.in_file() && !When::Never.in_file());
    }
}
