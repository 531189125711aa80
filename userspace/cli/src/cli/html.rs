//! Options of the HTML report.

use std::path::PathBuf;

use clap::Args;
use locality_units::parse::WrongUse;

use super::{Format, OutputArgs};

/// Destination and content of the HTML report.
#[derive(Debug, Clone, Default, Args)]
pub struct HtmlArgs {
    /// Write the report to a file, as --report does [default of html on a terminal and with --open: the
    /// profile's name with .html].
    #[arg(short = 'o', value_name = "OUT", conflicts_with = "report")]
    pub out: Option<PathBuf>,
    /// Open the HTML report in a browser, as the user who called sudo and never as root.
    #[arg(long)]
    pub open: bool,
    /// Leave source lines out of the HTML report.
    #[arg(long)]
    pub no_source: bool,
}

impl HtmlArgs {
    /// Only HTML has a browser and sources.
    ///
    /// # Errors
    /// An option of another format.
    pub fn check(&self, format: Format) -> Result<(), WrongUse> {
        let flag = if self.open { "--open" } else { "--no-source" };
        if format != Format::Html && (self.open || self.no_source) {
            return Err(WrongUse(format!("{flag} is an option of the HTML report: add --format html")));
        }
        Ok(())
    }

    /// The same printing, with the place that `-o` names.
    pub fn placed(&self, output: OutputArgs) -> OutputArgs {
        OutputArgs { report: output.report.or_else(|| self.out.clone()), ..output }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_belong_to_html() {
        let open = HtmlArgs { open: true, ..HtmlArgs::default() };
        assert!(open.check(Format::Html).is_ok() && HtmlArgs::default().check(Format::Json).is_ok());
        assert!(
            open.check(Format::Text).unwrap_err().to_string().contains("--open is an option of the HTML")
        );
        let bare = HtmlArgs { no_source: true, ..HtmlArgs::default() };
        assert!(bare.check(Format::Json1).unwrap_err().to_string().contains("--no-source"));
    }
}
