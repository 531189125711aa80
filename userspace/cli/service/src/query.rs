//! `locality-bpf query`: the rollups of an agent's store, summed over time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};
use locality_rollup::{FEWEST, PLACE_SIZE, Point, Row, merged};
use locality_units::print::{self, shorten};

use crate::rollups::Rollups;
use crate::store;

/// Sizes of caches in the table.
const SIZES: [u64; 3] = [32 << 10, 1 << 20, 32 << 20];
/// Groups that an error names.
const LISTED: usize = 20;
/// Width of a group's name.
const NAME: usize = 32;
/// Width of a footprint with its interval.
const FOOTPRINT: usize = 31;

/// The widest interval of a footprint that is printed, upper end ÷ lower end.
const WIDEST: f64 = 10.0;

/// Sums of each group, or of one group with places, over the time `since`.
///
/// # Errors
/// The store is missing, or has no rollup of the group in the time.
pub fn page(folder: &Path, group: Option<&str>, since: Duration, is_json: bool) -> Result<String> {
    store::check_readable(folder)?;
    let rollups = Rollups::read(folder)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let rows = rollups.since(now.saturating_sub(since).as_nanos() as u64)?;
    let mut by_group: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| group.is_none_or(|group| group == row.group)) {
        by_group.entry(&row.group).or_default().push(row);
    }
    let mut sums: Vec<Row> = by_group.into_iter().filter_map(|(name, rows)| merged(name, rows)).collect();
    for row in sums.iter_mut().filter(|row| !row.is_known()) {
        (row.curve, row.footprint_bytes) = (Vec::new(), None);
    }
    sums.sort_by(|a, b| b.cpu_ns.sum().total_cmp(&a.cpu_ns.sum()));
    if sums.is_empty() {
        let place = folder.display();
        if let Some(group) = group.filter(|_| !rows.is_empty()) {
            let groups: BTreeSet<&str> = rows.iter().map(|row| row.group.as_str()).collect();
            let groups = groups.into_iter().take(LISTED).collect::<Vec<_>>().join(", ");
            bail!(
                "there is no group {group} in {place} since then; groups: {groups} (--since goes further back)"
            );
        }
        if rollups.since(0)?.is_empty() {
            if store::agent(folder).is_some() {
                bail!(
                    "the agent's first segment has not ended: try again after its --window (by default 5m)"
                );
            }
            bail!(
                "there are no rollups in {place}: start an agent, which also reads segments that stand there"
            );
        }
        bail!("there are no rollups in {place} since then: give more time with --since");
    }
    if is_json {
        return Ok(serde_json::to_string_pretty(&serde_json::json!({
            "schema": "locality-query/1",
            "groups": sums,
        }))? + "\n");
    }
    Ok(text(&sums, group.is_some()))
}

fn text(sums: &[Row], with_places: bool) -> String {
    let mut page = format!("{:<NAME$} {:>9} {:>7}", "group", "CPU", "windows");
    for size in SIZES {
        let _ = write!(page, " {:>17}", format!("misses {}", print::bytes(size)));
    }
    let _ = writeln!(page, " {:>FOOTPRINT$}", "footprint");
    for row in sums {
        let seconds = row.cpu_ns.sum() / 1e9;
        let _ = write!(page, "{:<NAME$} {:>7.1} s {:>7}", shorten(&row.group, NAME), seconds, row.windows);
        for size in SIZES {
            let point = row.curve.iter().find(|point| point.bytes == size);
            let _ = write!(page, " {:>17}", point.map_or_else(|| "n/a".to_owned(), ratio));
        }
        let _ = writeln!(page, " {:>FOOTPRINT$}", row.footprint_bytes.map_or_else(|| "n/a".to_owned(), size));
    }
    let _ = writeln!(
        page,
        "\nMisses are shares of touches of cache lines; footprint is the bytes touched in a typical segment. \
         95 % intervals\nin brackets; n/a: fewer than {FEWEST} windows, or the interval of the footprint \
         spans more than a factor of {WIDEST}."
    );
    if with_places {
        for row in sums {
            list(&mut page, "Places", &row.places);
            list(&mut page, "Data objects", &row.objects);
        }
    }
    page
}

fn ratio(point: &Point) -> String {
    let percent = |share: f64| share * 100.0;
    format!("{:.1} ({:.1}-{:.1}) %", percent(point.ratio), percent(point.low), percent(point.high))
}

/// A footprint, unless the interval spans too much to say anything.
fn size((value, low, high): (f64, f64, f64)) -> String {
    if low * WIDEST < high {
        return "n/a".to_owned();
    }
    let [value, low, high] = [value, low, high].map(|bytes| print::bytes(bytes as u64));
    format!("{value} ({low}-{high})")
}

fn list(page: &mut String, what: &str, rows: &[(String, f64)]) {
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(page, "\n{what} by bytes loaded into a cache of {}:", print::bytes(PLACE_SIZE));
    for (name, bytes) in rows {
        let _ = writeln!(page, "{:>12}  {}", print::bytes(*bytes as u64), shorten(name, 90));
    }
}

#[cfg(test)]
mod tests {
    use locality_rollup::{CpuTime, Rollup};

    use super::*;

    #[test]
    fn a_footprint_of_any_size_is_not_printed() {
        assert_eq!(size((3e6, 0.0, 5e9)), "n/a");
        assert_eq!(size((3e6, 1e6, 11e6)), "n/a");
        assert_eq!(size((3e6, 1.2e6, 11e6)), "2.86 MiB (1.14 MiB-10.5 MiB)");
    }

    #[test]
    fn rollups_are_summed_by_group() {
        let folder = tempfile::tempdir().unwrap();
        let hour = Duration::from_secs(3600);
        assert!(format!("{:#}", page(folder.path(), None, hour, false).unwrap_err()).contains("no rollups"));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let mut rollups = Rollups::open(folder.path()).unwrap();
        let empty = page(folder.path(), None, hour, false).unwrap_err().to_string();
        assert!(empty.contains("start an agent"), "{empty}");
        let agent = store::Store::open(folder.path(), 1).unwrap();
        let early = page(folder.path(), None, hour, false).unwrap_err().to_string();
        assert!(early.contains("first segment has not ended"), "{early}");
        drop(agent);
        for ago in [1, 2] {
            let cpu_ns = CpuTime { windows: 1.5e9, ..CpuTime::default() };
            let row = Row {
                group: "web".to_owned(),
                cpu_ns,
                windows: 20,
                curve_windows: 20,
                touches: Some(1e6),
                curve: vec![Point { bytes: 1 << 20, ratio: 0.25, low: 0.2, high: 0.3, ..Point::default() }],
                footprint_bytes: Some((3e6, 2e6, 5e6)),
                places: vec![("walk a.c:3".to_owned(), 1e6)],
                ..Row::default()
            };
            let started_unix_ns = now - ago * 1_000_000_000;
            rollups.put(&Rollup { started_unix_ns, rows: vec![row], ..Rollup::default() }).unwrap();
        }
        let all = page(folder.path(), None, hour, false).unwrap();
        assert!(all.contains("web") && all.contains("3.0 s") && all.contains("40"), "{all}");
        assert!(all.contains("25.0 (") && !all.contains("walk"), "{all}");
        assert!(all.contains(" 2.86 MiB (1.91 MiB-4.77 MiB)\n"), "{all}");
        let one = page(folder.path(), Some("web"), hour, false).unwrap();
        assert!(one.contains("walk a.c:3"), "{one}");
        let json: serde_json::Value =
            serde_json::from_str(&page(folder.path(), None, hour, true).unwrap()).unwrap();
        assert_eq!(json["groups"][0]["windows"], 40);
        let none = page(folder.path(), Some("db"), hour, false).unwrap_err().to_string();
        assert!(none.contains("no group db") && none.contains("groups: web"), "{none}");
    }
}
