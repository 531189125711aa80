//! Source files to show on a page, the heaviest first.

use std::collections::HashMap;

use locality_report::schema::{Report, place::Place};

/// A source file, or the reason for its absence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The path in the debug information.
    pub file: String,
    /// The text, or the reason for its absence.
    pub text: Result<String, String>,
    /// Whether the file is newer than the trace, so the lines may differ.
    pub changed: bool,
}

/// Paths of the files with a number on a line, the largest shares first.
pub fn files(report: &Report) -> Vec<String> {
    let mut weights: HashMap<String, f64> = HashMap::new();
    let mut add = |file: Option<&str>, weight: Option<f64>| {
        if let Some(file) = file.filter(|file| !file.is_empty()) {
            *weights.entry(file.to_owned()).or_default() += weight.unwrap_or(0.0).max(0.0);
        }
    };
    let of = |place: Option<&Place>| place.and_then(|place| place.file.clone());
    let places: Vec<(Option<String>, Option<f64>)> = report
        .pairs
        .iter()
        .flat_map(|pair| {
            let weight = pair.weight.finite();
            let ends = [&pair.used, &pair.reuse].map(|path| match (&path.place, &path.frames) {
                (Some(place), _) => of(Some(place)),
                (None, Some(frames)) => frames.first().and_then(|frame| frame.file.clone()),
                _ => None,
            });
            let ancestor = pair.common_ancestor.as_ref().and_then(|frame| frame.file.clone());
            ends.into_iter().map(move |file| (file, weight)).chain([(ancestor, None)])
        })
        .collect();
    places.iter().for_each(|(file, weight)| add(file.as_deref(), *weight));
    for line in report.hot.iter().flat_map(|hot| &hot.by_line) {
        add(line.file.as_deref(), line.share.finite());
    }
    for line in report.objects.iter().flatten().flat_map(|object| &object.lines) {
        add(line.file.as_deref(), line.access_share.finite());
    }
    for line in report.cache_use.iter().flat_map(|cache_use| &cache_use.by_loading_line) {
        add(line.file.as_deref(), line.share.finite());
    }
    for row in report.loops.iter().flatten() {
        add(row.place.file.as_deref(), row.share.value.finite());
    }
    for advice in report.advice.iter().flatten() {
        for place in [Some(&advice.place), advice.other.as_ref()].into_iter().flatten() {
            add(place.file.as_deref(), Some(1.0));
        }
    }
    let mut files: Vec<(String, f64)> = weights.into_iter().collect();
    files.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    files.into_iter().map(|(file, _)| file).collect()
}
