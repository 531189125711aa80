//! `locality-bpf objects FILE`: data objects of a profile with their lines, fields, layout and conflicts; and beside them, at
//! request, what attribution without addresses makes of the same samples (`locality_approximate`).
//!
//! Both rankings have the same weights: predicted misses of the level by which objects are ranked, else accesses. A variable
//! is known in both by its name, without the marks of elements (`rows[]` is `rows`); two of the same name are one there. Not here:
//! how either is computed. Limits: the approximate side reads the program's files, which must be where they were, unchanged.

use std::{collections::HashMap, path::Path};

use anyhow::{Result, bail};
use locality_analysis::{
    estimator::Estimator,
    findings::Findings,
    model::{Profile, StackId},
    objects::{Objects, StackWeight},
    report::{
        json,
        text::{self, Options},
    },
};
use locality_approximate as approximate;
use serde_json::{Value, json};

use crate::{cli::Format, exact};

/// What to set beside the objects.
#[derive(Debug, Clone, Default)]
pub struct Against {
    /// How to attribute.
    pub options: approximate::Options,
}

/// The page for a profile.
///
/// # Errors
/// A file that is no profile, or one that knows no objects, a format that has none; a sentence each.
pub fn run(
    file: &Path,
    estimator: Estimator,
    against: Option<&Against>,
    format: Format,
    options: Options,
) -> Result<String> {
    let name = file.display();
    if format == Format::Callgrind {
        bail!(
            "data objects are told as text or json: a file for KCachegrind is made by `locality-bpf exact`"
        );
    }
    if exact::stored(file).is_some() {
        bail!(
            "{name} is the report of an exact run, which does not tell data objects: give the profile of a trace"
        );
    }
    let profile = locality_profile::read(file)?;
    let findings = Findings::with(&profile, estimator);
    let Some(objects) = &findings.objects else {
        bail!(
            "{name} knows no data objects: it was written by an older locality-bpf (profile format 1 or 2), or no access was \
             seen in the trace; trace the program again"
        );
    };
    let both = against.map(|against| compare(&profile, objects, against));
    Ok(match format {
        Format::Json => {
            let report = json::value(&profile, &findings);
            let mut page = json!({
                "schema": "locality-objects/1",
                "run": report["run"],
                "objects": report["objects"],
                "objects_summary": report["objects_summary"],
            });
            if let Some(both) = both {
                page["against"] = both.json(objects);
            }
            format!("{page:#}\n")
        }
        Format::Text | Format::Callgrind => {
            let mut page = text::objects(&profile, &findings, options);
            if let Some(both) = both {
                page.push_str(&both.text(objects, options.top));
            }
            page
        }
    })
}

/// The two rankings.
struct Both {
    found: approximate::Attribution,
    ranks: approximate::RankComparison<String>,
}

/// What uses weigh: misses of the level by which objects are ranked, else accesses.
fn weight(objects: &Objects, stack: &StackWeight) -> f64 {
    let misses = objects.ranked_by.and_then(|level| stack.misses.get(level));
    misses.copied().unwrap_or(stack.accesses)
}

fn compare(profile: &Profile, objects: &Objects, against: &Against) -> Both {
    let mut analyzer = approximate::Analyzer::new();
    let mut modules = HashMap::new();
    let mut frames = |stack: StackId| -> Vec<Option<approximate::Frame>> {
        let stack = profile.stacks.get(stack.0 as usize);
        let frames = stack.map_or(&[][..], |stack| stack.frames.as_slice());
        let frame = |id: &locality_analysis::model::FrameId| {
            let frame = profile.frames.get(id.0 as usize)?;
            let module = frame.module?;
            let opened = *modules.entry(module).or_insert_with(|| {
                let path = &profile.modules.get(module.0 as usize)?.path;
                analyzer.open(Path::new(path)).ok()
            });
            Some(approximate::Frame { module: opened?, address: frame.module_address? })
        };
        frames.iter().map(frame).collect()
    };
    let samples: Vec<approximate::Sample> = objects
        .stacks
        .iter()
        .map(|stack| approximate::Sample { frames: frames(stack.stack), weight: weight(objects, stack) })
        .collect();
    let found = analyzer.rank(samples, &against.options);
    let direct = objects.rows.iter().filter_map(|row| {
        let object = profile.objects.get(row.object?.0 as usize)?;
        let misses = objects.ranked_by.and_then(|level| row.miss_share.get(level));
        Some((plain(&object.name), misses.unwrap_or(&row.access_share).value))
    });
    let other = found.variables.iter().map(|variable| (plain(&variable.name), variable.share));
    // What neither side gives a thousandth is noise, and Kendall's τ weighs it like the rest.
    let worth = |entry: &(String, f64)| entry.1 >= 0.001;
    let ranks = approximate::compare(direct.filter(worth), other.filter(worth).collect::<Vec<_>>());
    Both { found, ranks }
}

/// A variable's name without marks of elements and indirection.
fn plain(name: &str) -> String {
    name.trim_start_matches('*').trim_end_matches("[]").to_owned()
}

impl Both {
    fn json(&self, objects: &Objects) -> Value {
        let rows = self.ranks.rows.iter().map(|row| {
            json!({
                "name": row.key,
                "direct": { "rank": row.left_rank, "share": row.left_share },
                "approximate": { "rank": row.right_rank, "share": row.right_share },
            })
        });
        let reasons: serde_json::Map<String, Value> = self
            .found
            .unattributed
            .iter()
            .map(|(reason, share)| (reason.to_string(), json!(share)))
            .collect();
        let variables = self.found.variables.iter().map(|variable| {
            let at = |line: &approximate::SourceLine| json!({ "file": line.file, "line": line.line });
            json!({
                "name": variable.name,
                "kind": variable.kind.to_string(),
                "type": variable.type_name,
                "function": variable.function,
                "declared": variable.declared.as_ref().map(at),
                "aliases": variable.aliases,
                "share": variable.share,
            })
        });
        json!({
            "method": "approximate",
            "ranked_by": objects.ranked_by.and_then(|level| objects.levels.get(level)).map(|l| format!("L{}", l.level)),
            "rows": rows.collect::<Vec<_>>(),
            "kendall_tau_b": self.ranks.tau_b,
            "kendall_tau_b_top": self.ranks.tau_b_top,
            "top_overlap": self.ranks.top_overlap,
            "top_possible": self.ranks.top_possible,
            "variables": variables.collect::<Vec<_>>(),
            "unattributed": reasons,
        })
    }

    fn text(&self, objects: &Objects, top: usize) -> String {
        let what = match objects.ranked_by.and_then(|level| objects.levels.get(level)) {
            Some(level) => format!("L{} misses", level.level),
            None => "accesses".to_owned(),
        };
        let mut page = format!(
            "\nDirect and approximate  (ranked by {what}; approximate: from code addresses and call paths alone)\n     \
             direct           approximate      object\n"
        );
        let side = |rank: Option<usize>, share: f64| match rank {
            Some(rank) => format!("{rank:>3}. {:>6.1} %", share * 100.0),
            None => "  –         ".to_owned(),
        };
        for row in self.ranks.rows.iter().take(top) {
            let (left, right) = (side(row.left_rank, row.left_share), side(row.right_rank, row.right_share));
            page.push_str(&format!("     {left:<16} {right:<16} {}\n", row.key));
        }
        let tau = |tau: Option<f64>| tau.map_or("not defined".to_owned(), |tau| format!("{tau:.2}"));
        page.push_str(&format!(
            "Kendall's tau-b {} over {} variables, {} over the first ten of the direct ranking; {} of the first {} are \
             the same.\n",
            tau(self.ranks.tau_b),
            self.ranks.rows.len(),
            tau(self.ranks.tau_b_top),
            self.ranks.top_overlap,
            self.ranks.top_possible,
        ));
        for (reason, share) in self.found.unattributed.iter().filter(|(_, share)| **share >= 0.005) {
            page.push_str(&format!(
                "Not attributed by the approximate method: {:.1} %, {reason}.\n",
                share * 100.0
            ));
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_elements_are_names_of_objects() {
        assert_eq!(["rows[]", "*p", "grid->cells"].map(plain), ["rows", "p", "grid->cells"]);
    }

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
        assert!(why(&file).contains("report of an exact run"));
        std::fs::write(&file, "hello").unwrap();
        assert!(why(&file).contains("not a locality profile but a text file"));
        let profile = directory.path().join("old.locality");
        let mut writer = locality_profile::Writer::create(&profile, None).unwrap();
        writer.put_run(&locality_analysis::model::Run::default()).unwrap();
        writer.finish().unwrap();
        assert!(why(&profile).contains("knows no data objects"));
    }
}
