//! The line that tells a person at a terminal how the trace goes.

use std::io::{IsTerminal as _, Write as _};

use locality_kernel::sys;

/// Writes and rewrites one line on stderr; nothing when stderr is no terminal or the user wants quiet.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    wanted: bool,
}

impl Progress {
    /// `quiet` as on the command line.
    pub fn new(quiet: bool) -> Self {
        // A dumb terminal cannot rewrite a line.
        let rewrites = std::env::var_os("TERM").is_none_or(|name| name != "dumb");
        Self { shown: false, wanted: !quiet && rewrites && std::io::stderr().is_terminal() }
    }

    /// Whether anybody sees the line.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Replaces the line.
    pub fn show(&mut self, line: &str) {
        // A terminal that was stopped (Ctrl-S) would stop the trace, too.
        if self.wanted && sys::takes_writing(&std::io::stderr()) {
            self.shown = true;
            // A terminal that is gone needs no progress.
            let _ = write!(std::io::stderr(), "\r\x1b[2K{line}");
        }
    }

    /// Removes the line.
    pub fn clear(&mut self) {
        if std::mem::take(&mut self.shown) && sys::takes_writing(&std::io::stderr()) {
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
