//! Which part of the text report is printed, and on what: the width and the letters of the terminal.

use std::{ffi::OsString, os::fd::AsRawFd};

use clap::Args;
use locality_report::text::Part;
use locality_units::parse::WrongUse;

use super::Format;

/// Parts of the text report.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct PartArgs {
    /// The whole text report in place of one screen; on a terminal through a pager (LOCALITY_PAGER,
    /// PAGER, or less).
    #[arg(long, group = "part")]
    pub full: bool,
    /// Only the pairs of use and reuse, with their call paths.
    #[arg(long, group = "part")]
    pub pairs: bool,
    /// Only the data objects, with their lines of code, fields and layout.
    #[arg(long, group = "part")]
    pub data: bool,
    /// Only code: loops with what they access, hot functions and lines, use of loaded lines.
    #[arg(long, group = "part")]
    pub code: bool,
    /// Only how sure the report is: ledger, windows, rate of accesses, cost and notices.
    #[arg(long, group = "part")]
    pub trust: bool,
}

impl PartArgs {
    /// The part that was asked for.
    pub fn part(self) -> Part {
        match self {
            Self { full: true, .. } => Part::Full,
            Self { pairs: true, .. } => Part::Pairs,
            Self { data: true, .. } => Part::Data,
            Self { code: true, .. } => Part::Code,
            Self { trust: true, .. } => Part::Trust,
            _ => Part::Screen,
        }
    }

    /// The flag of a part, as it is typed; `None` for the screen.
    pub fn flag(self) -> Option<&'static str> {
        match self.part() {
            Part::Screen => None,
            Part::Full => Some("--full"),
            Part::Pairs => Some("--pairs"),
            Part::Data => Some("--data"),
            Part::Code => Some("--code"),
            Part::Trust => Some("--trust"),
        }
    }

    /// Only text has parts.
    ///
    /// # Errors
    /// A part of another format.
    pub fn check(self, format: Format) -> Result<(), WrongUse> {
        match self.flag() {
            Some(flag) if format != Format::Text => {
                Err(WrongUse(format!("{flag} is a part of the text report: leave {flag} or --format out")))
            }
            _ => Ok(()),
        }
    }
}

/// Whether letters beyond ASCII print: what the locale says.
pub fn is_ascii() -> bool {
    ascii(|name| std::env::var_os(name))
}

/// The first of these variables that is set decides (POSIX.1-2024, Base Definitions, 8.2).
fn ascii(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set);
    let locale = locale.map(|locale| locale.to_string_lossy().to_uppercase()).unwrap_or_default();
    !locale.contains("UTF-8") && !locale.contains("UTF8")
}

/// Columns of a terminal; `None` where there is none.
pub fn columns(of: &impl AsRawFd) -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the destination is live and as large as this call fills.
    let done = unsafe { libc::ioctl(of.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    (done == 0 && size.ws_col > 0).then_some(usize::from(size.ws_col))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_names_the_letters() {
        let of = |set: &[(&str, &str)]| {
            ascii(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
        };
        assert!(of(&[]) && of(&[("LANG", "C")]) && of(&[("LANG", "de_DE.ISO-8859-1")]));
        assert!(!of(&[("LANG", "C.UTF-8")]) && !of(&[("LANG", "en_GB.utf8")]));
        assert!(of(&[("LC_ALL", "C"), ("LANG", "C.UTF-8")]));
        assert!(!of(&[("LC_ALL", ""), ("LC_CTYPE", "C.UTF-8"), ("LANG", "C")]));
    }

    #[test]
    fn a_file_has_no_columns() {
        assert_eq!(columns(&tempfile::tempfile().unwrap()), None);
    }

    #[test]
    fn parts_belong_to_text() {
        let args = PartArgs { trust: true, ..PartArgs::default() };
        assert_eq!((args.part(), args.check(Format::Text).is_ok()), (Part::Trust, true));
        assert!(args.check(Format::Json).unwrap_err().to_string().contains("--trust is a part of the text"));
        assert!(PartArgs::default().check(Format::Json1).is_ok());
    }
}
