//! `locality-bpf objects FILE`: data objects of a profile with lines, fields, layout and
//! conflicts; at request, beside an attribution of the samples without addresses (`against`).

mod against;

use std::path::Path;

use anyhow::{Result, bail};
use locality_estimate::estimator::Estimator;
use locality_findings::Findings;
use locality_report::{
    json,
    schema::object_list::ObjectList,
    text::{self, Options},
    top,
};

pub use self::against::Against;
use crate::cli::Format;
use locality_runner as exact;

/// A page, and whether the page's profile is complete.
#[derive(Debug)]
pub struct Listed {
    /// Text or JSON.
    pub page: String,
    /// False if the trace was cut short or the file is damaged.
    pub is_complete: bool,
}

/// The page for a profile.
///
/// # Errors
/// A file other than a profile, a profile without
/// objects, or a format without objects; a sentence each.
pub fn run(
    file: &Path,
    estimator: Estimator,
    against: Option<&Against>,
    format: Format,
    options: Options,
) -> Result<Listed> {
    let name = file.display();
    if format == Format::Html {
        bail!("data objects are a page of the whole report: `locality-bpf report {name} --format html`");
    }
    if format == Format::Callgrind {
        bail!(
            "data objects are told as text or json: a file for KCachegrind is made by `locality-bpf exact`"
        );
    }
    if let Some(report) = exact::stored(file)? {
        if report.cache_use.is_some_and(|cache_use| cache_use.by_object.is_some()) {
            bail!(
                "{name} is the report of an exact run, which tells its data objects with the caches: `locality-bpf report {name}`"
            );
        }
        bail!(
            "{name} is the report of an exact run that was not asked for data objects: `locality-bpf exact --objects -o FILE -- \
             COMMAND` tells what is lost in each, a trace more of them"
        );
    }
    let mut profile = locality_profile::read(file)?;
    profile.make_printable();
    let findings = Findings::with(&profile, estimator);
    let Some(objects) = &findings.objects else {
        if profile.partial {
            bail!(
                "{name} holds no data objects: its trace was cut short or the file is damaged; `locality-bpf report {name}` tells what is left"
            );
        }
        bail!(
            "{name} knows no data objects: it was written by an older locality-bpf (profile format 1 or 2), or no access was \
             seen in the trace; trace the program again"
        );
    };
    let both = against.map(|against| against::compare(&profile, objects, against));
    let page = match format {
        Format::Json | Format::Json1 => {
            let report = json::report(&profile, &findings);
            let mut list = ObjectList {
                against: both.map(|both| both.value(objects)),
                objects: report.objects.unwrap_or_default(),
                objects_summary: report.objects_summary.unwrap_or_default(),
                rows_left_out: None,
                run: report.run,
                schema: "locality-objects/1".to_owned(),
            };
            options.top.into_iter().for_each(|rows| top::cut_objects(&mut list, rows));
            json::page(&list)
        }
        Format::Text | Format::Callgrind | Format::Html => {
            let mut page = text::objects(&profile, &findings, options);
            if let Some(both) = both {
                page.push_str(&both.text(objects, options.top.unwrap_or(text::TOP)));
            }
            page
        }
    };
    Ok(Listed { page, is_complete: !profile.partial })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_know_no_objects_are_refused_in_a_sentence() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x");
        let why = |file: &Path| {
            let refused = run(file, Estimator::default(), None, Format::Text, Options::default());
            refused.unwrap_err().to_string()
        };
        assert!(why(&file).contains("no such profile file"));
        let exact = r#"{"schema":"locality-report/1","run":{"mode":"exact"}}"#;
        std::fs::write(&file, exact).unwrap();
        assert!(why(&file).contains("exact --objects -o FILE"));
        let exact = r#"{"schema":"locality-report/1","run":{"mode":"exact"},"cache_use":{"by_object":[]}}"#;
        std::fs::write(&file, exact).unwrap();
        assert!(why(&file).contains(&format!("`locality-bpf report {}`", file.display())));
        std::fs::write(&file, "hello").unwrap();
        assert!(why(&file).contains("not a locality profile but a text file"));
        let profile = directory.path().join("old.locality");
        let mut writer = locality_profile::Writer::create(&profile, None).unwrap();
        writer.put_run(&locality_model::Run::default()).unwrap();
        writer.finish().unwrap();
        assert!(why(&profile).contains("knows no data objects"));
    }
}
