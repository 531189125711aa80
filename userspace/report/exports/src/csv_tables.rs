//! Tables of a report as comma-separated files (RFC 4180) with a line of names: all rows, without call paths.
//!
//! Values are as in the report's JSON, unrounded; an unknown value
//! is empty. `_low` and `_high` are the ends of a 95 % interval. The last level is `LLC` in each table.

use locality_report::schema::{
    Interval, Number, Report,
    objects::{ByLevel, Object},
    pairs::Pair,
    place::{Path, Place},
    reuse::{Bin, Histogram},
};

use crate::Unfit;

/// Files by name.
///
/// # Errors
/// A table that cannot be written, by a mistake of the module.
pub fn of(report: &Report) -> Result<Vec<(String, Vec<u8>)>, Unfit> {
    let tables = [
        ("pairs.csv", pairs(report)),
        ("objects.csv", objects(report)),
        ("fields.csv", fields(report)),
        ("object_lines.csv", object_lines(report)),
        ("loading_lines.csv", loading_lines(report)),
        ("hot_lines.csv", hot_lines(report)),
        ("curve.csv", curve(report)),
        ("distances.csv", distances(report)),
    ];
    let filled = tables.into_iter().filter(|(_, rows)| rows.len() > 1);
    filled.map(|(name, rows)| Ok((name.to_owned(), print(rows)?))).collect()
}

fn print(rows: Vec<Vec<String>>) -> Result<Vec<u8>, Unfit> {
    let cannot = |error: &dyn std::fmt::Display| Unfit(format!("a table cannot be written: {error}"));
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.write_record(&row).map_err(|error| cannot(&error))?;
    }
    writer.into_inner().map_err(|error| cannot(&error))
}

fn names(of: &str) -> Vec<String> {
    of.split_whitespace().map(str::to_owned).collect()
}

fn number(of: Number) -> String {
    match of {
        Number::Whole(n) => n.to_string(),
        // A sum with 0 has no sign at 0.
        Number::Real(n) if n.is_finite() => (n + 0.0).to_string(),
        Number::Real(_) => String::new(),
    }
}

fn known<T: ToString>(of: Option<T>) -> String {
    of.map(|value| value.to_string()).unwrap_or_default()
}

fn interval(of: Option<Interval>) -> [String; 2] {
    of.map_or_else(Default::default, |ends| ends.map(number))
}

/// Function, file and line of a path's place, or else of the innermost frame.
fn place(path: &Path) -> [String; 3] {
    if let Some(Place { function, file, line, .. }) = &path.place {
        return [known(function.as_ref()), known(file.as_ref()), known(*line)];
    }
    let frame = path.frames.iter().flatten().next();
    [
        known(frame.and_then(|frame| frame.function.as_ref())),
        known(frame.and_then(|frame| frame.file.as_ref())),
        known(frame.and_then(|frame| frame.line)),
    ]
}

fn pairs(report: &Report) -> Vec<Vec<String>> {
    let mut rows = vec![names(
        "use_function use_file use_line reuse_function reuse_file reuse_line object object_kind weight weight_low \
         weight_high n far near time_median time_low time_high time_unit stack_median stack_unit misses_32K misses_1M misses_32M",
    )];
    for pair in &report.pairs {
        let Pair { object, time_median, stack_median, .. } = pair;
        let stack = stack_median.as_ref().and_then(Option::as_ref);
        let misses = |bytes: &str| known(pair.misses.as_ref().and_then(|misses| misses.get(bytes)));
        let mut row: Vec<String> = place(&pair.used).into_iter().chain(place(&pair.reuse)).collect();
        row.extend([
            known(object.as_ref().map(|object| &object.name)),
            known(object.as_ref().map(|object| &object.kind)),
            number(pair.weight),
        ]);
        row.extend(interval(pair.weight_ci95));
        row.extend([pair.n.to_string(), known(pair.far), known(pair.near)]);
        row.push(time_median.as_ref().map(|time| number(time.value)).unwrap_or_default());
        row.extend(interval(time_median.as_ref().and_then(|time| time.ci95)));
        row.push(known(time_median.as_ref().map(|time| &time.unit)));
        row.push(stack.map(|stack| number(stack.value)).unwrap_or_default());
        row.push(known(stack.map(|stack| &stack.unit)));
        row.extend(["32768", "1048576", "33554432"].map(misses));
        rows.push(row);
    }
    rows
}

/// Names of the levels with misses, only one name for the last level.
fn levels(report: &Report) -> Vec<String> {
    let summary = report.objects_summary.as_ref();
    let levels = summary.map_or(&[][..], |summary| &summary.levels);
    levels.iter().filter_map(|level| level.names.last()).cloned().collect()
}

fn with_levels(names_of: &str, levels: &[String], intervals: bool) -> Vec<String> {
    let mut row = names(names_of);
    for level in levels {
        row.push(format!("miss_share_{level}"));
        if intervals {
            row.extend([format!("miss_share_{level}_low"), format!("miss_share_{level}_high")]);
        }
    }
    row
}

fn shares(levels: &[String], values: &ByLevel<Number>, ends: Option<&ByLevel<Interval>>) -> Vec<String> {
    let mut row = Vec::new();
    for level in levels {
        row.push(values.get(level).map(|share| number(*share)).unwrap_or_default());
        if let Some(ends) = ends {
            row.extend(interval(ends.get(level).copied()));
        }
    }
    row
}

fn all_objects(report: &Report) -> impl Iterator<Item = &Object> {
    report.objects.iter().flatten()
}

fn objects(report: &Report) -> Vec<Vec<String>> {
    let levels = levels(report);
    let head = "id name kind type bytes function declared_file declared_line n accesses access_share access_share_low \
                access_share_high cpu_share cpu_share_low cpu_share_high loads stores";
    let mut rows = vec![with_levels(head, &levels, true)];
    for object in all_objects(report) {
        let declared = object.declared.as_ref();
        let mut row = vec![
            known(object.id),
            object.name.clone(),
            object.kind.clone(),
            known(object.type_name.as_ref()),
            known(object.bytes),
            known(object.function.as_ref()),
            known(declared.map(|declared| &declared.file)),
            known(declared.and_then(|declared| declared.line)),
            object.n.to_string(),
            object.accesses.map(number).unwrap_or_default(),
            number(object.access_share),
        ];
        row.extend(interval(Some(object.access_share_ci95)));
        row.push(number(object.cpu_share));
        row.extend(interval(Some(object.cpu_share_ci95)));
        row.extend([number(object.loads), number(object.stores)]);
        row.extend(shares(&levels, &object.miss_share, Some(&object.miss_share_ci95)));
        rows.push(row);
    }
    rows
}

fn fields(report: &Report) -> Vec<Vec<String>> {
    let levels = levels(report);
    let head =
        "object_id object path type offset bytes hot n access_share access_share_low access_share_high";
    let mut rows = vec![with_levels(head, &levels, false)];
    for object in all_objects(report) {
        for field in object.fields.iter().flatten() {
            let mut row = vec![
                known(object.id),
                object.name.clone(),
                field.path.clone(),
                known(field.type_name.as_ref()),
                field.offset.to_string(),
                field.bytes.to_string(),
                field.hot.to_string(),
                field.n.to_string(),
                number(field.access_share),
            ];
            row.extend(interval(Some(field.access_share_ci95)));
            row.extend(shares(&levels, &field.miss_share, None));
            rows.push(row);
        }
    }
    rows
}

fn object_lines(report: &Report) -> Vec<Vec<String>> {
    let levels = levels(report);
    let head = "object_id object function file line via kind n access_share access_share_low access_share_high cpu_share \
                cpu_share_low cpu_share_high";
    let mut rows = vec![with_levels(head, &levels, true)];
    for object in all_objects(report) {
        for line in &object.lines {
            let mut row = vec![
                known(object.id),
                object.name.clone(),
                known(line.function.as_ref()),
                known(line.file.as_ref()),
                known(line.line),
                known(line.via.as_ref()),
                line.kind.clone(),
                line.n.to_string(),
                number(line.access_share),
            ];
            row.extend(interval(Some(line.access_share_ci95)));
            row.push(number(line.cpu_share));
            row.extend(interval(Some(line.cpu_share_ci95)));
            row.extend(shares(&levels, &line.miss_share, Some(&line.miss_share_ci95)));
            rows.push(row);
        }
    }
    rows
}

fn loading_lines(report: &Report) -> Vec<Vec<String>> {
    let mut rows = vec![names(
        "level function file line module access object n lines_loaded lines_loaded_low lines_loaded_high spatial_loss_bytes \
         spatial_loss_bytes_low spatial_loss_bytes_high used_bytes_per_line access_count share traffic_share",
    )];
    for line in report.cache_use.iter().flat_map(|cache_use| &cache_use.by_loading_line) {
        let mut row = vec![
            locality_report::level_label(&line.level).to_owned(),
            known(line.function.as_ref()),
            known(line.file.as_ref()),
            known(line.line),
            known(line.module.as_ref()),
            known(line.access.as_ref()),
            known(line.object.as_ref().and_then(Option::as_ref)),
            known(line.n),
            number(line.lines_loaded),
        ];
        row.extend(interval(line.lines_loaded_ci95));
        row.push(number(line.spatial_loss_bytes));
        row.extend(interval(line.spatial_loss_bytes_ci95));
        row.extend([
            line.used_bytes_per_line.map(number).unwrap_or_default(),
            line.access_count.map(number).unwrap_or_default(),
            number(line.share),
            number(line.traffic_share),
        ]);
        rows.push(row);
    }
    rows
}

fn hot_lines(report: &Report) -> Vec<Vec<String>> {
    let mut rows = vec![names("function file line via n share share_low share_high loads stores unknown")];
    for line in report.hot.iter().flat_map(|hot| &hot.by_line) {
        let mut row = vec![
            known(line.function.as_ref()),
            known(line.file.as_ref()),
            known(line.line),
            known(line.via.as_ref()),
            line.n.to_string(),
            number(line.share),
        ];
        row.extend(interval(Some(line.ci95)));
        row.extend([number(line.loads), number(line.stores), number(line.unknown)]);
        rows.push(row);
    }
    rows
}

fn curve(report: &Report) -> Vec<Vec<String>> {
    let mut rows = vec![names("granule bytes level miss_ratio miss_ratio_low miss_ratio_high misses")];
    for (granule, reuse) in &report.reuse {
        for point in reuse.miss_ratio_curve.iter().flatten() {
            let mut row = vec![granule.clone(), number(point.bytes), known(point.level), number(point.ratio)];
            row.extend(interval(point.ci95));
            row.push(known(point.misses));
            rows.push(row);
        }
    }
    rows
}

fn distances(report: &Report) -> Vec<Vec<String>> {
    let mut rows = vec![names("granule kind unit low high fraction fraction_low fraction_high n count")];
    let mut add = |granule: &str, kind: &str, histogram: &Histogram| {
        for bin in histogram.bins.iter().flatten() {
            let Bin { ci95, count, fraction, high, low, n } = bin;
            let mut row = vec![granule.to_owned(), kind.to_owned(), histogram.unit.clone()];
            row.extend([number(*low), number(*high), number(*fraction)]);
            row.extend(interval(*ci95));
            row.extend([known(*n), known(*count)]);
            rows.push(row);
        }
    };
    for (granule, reuse) in &report.reuse {
        reuse.time.iter().for_each(|histogram| add(granule, "time", histogram));
        reuse.stack.iter().for_each(|histogram| add(granule, "stack", histogram));
    }
    rows
}
