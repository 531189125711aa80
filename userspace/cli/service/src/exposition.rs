//! Metrics in the text format of OpenMetrics 1.0.
//!
//! An estimate with fewer than [`locality_rollup::FEWEST`] windows is absent, never 0. Labels hold no
//! arguments, paths of files, user names or places in programs.

use std::fmt::Write as _;
use std::sync::atomic::AtomicU64;

use anyhow::Result;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info};
use prometheus_client::registry::Registry;

use crate::totals::{Exposed, Group};

/// Content type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
type Numbers = Family<Labels, Gauge<f64, AtomicU64>>;
type Counters = Family<Labels, Counter<f64, AtomicU64>>;

/// Metrics of an agent after a segment; before the first segment, only the agent's version.
///
/// # Errors
/// Text cannot be made.
pub(crate) fn text(exposed: Option<&Exposed>) -> Result<String> {
    let mut registry = Registry::default();
    let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("locality_build", "The agent's program", version);
    if let Some(exposed) = exposed {
        estimates(&mut registry, exposed);
        groups(&mut registry, exposed);
        health(&mut registry, exposed);
    }
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn numbers(registry: &mut Registry, name: &str, help: &str) -> Numbers {
    let family = Numbers::default();
    registry.register(name, help, family.clone());
    family
}

fn counters(registry: &mut Registry, name: &str, help: &str) -> Counters {
    let family = Counters::default();
    registry.register(name, help, family.clone());
    family
}

fn group(name: &str) -> (&'static str, String) {
    ("group", name.to_owned())
}

/// Estimates of the last segment.
fn estimates(registry: &mut Registry, exposed: &Exposed) {
    let ratios = [
        ("locality_miss_ratio", "Misses per touch of a cache line, by size of cache, in the last segment"),
        ("locality_miss_ratio_low", "Lower end of the 95 % interval of locality_miss_ratio"),
        ("locality_miss_ratio_high", "Upper end of the 95 % interval of locality_miss_ratio"),
    ]
    .map(|(name, help)| numbers(registry, name, help));
    let footprints = [
        ("locality_footprint_bytes", "Distinct bytes touched, in the last segment"),
        ("locality_footprint_bytes_low", "Lower end of the 95 % interval of locality_footprint_bytes"),
        ("locality_footprint_bytes_high", "Upper end of the 95 % interval of locality_footprint_bytes"),
    ]
    .map(|(name, help)| numbers(registry, name, help));
    let working_sets = [
        (
            "locality_working_set_bytes",
            "Least cache with at most `loss` more misses per touch than the largest cache, in the last segment",
        ),
        ("locality_working_set_bytes_low", "Lower end of the interval of locality_working_set_bytes"),
        ("locality_working_set_bytes_high", "Upper end of the interval of locality_working_set_bytes"),
    ]
    .map(|(name, help)| numbers(registry, name, help));
    let samples = numbers(
        registry,
        "locality_samples",
        "Samples with a window that estimates rest on, in the last segment",
    );
    for row in &exposed.rows {
        samples.get_or_create(&vec![group(&row.group)]).set(row.windows as f64);
        if let Some((value, low, high)) = row.footprint_bytes.filter(|_| !row.curve.is_empty()) {
            for (family, value) in footprints.iter().zip([value, low, high]) {
                family.get_or_create(&vec![group(&row.group)]).set(value);
            }
        }
        for loss in LOSSES_OF_SETS {
            let Some((value, low, high)) = row.working_set(loss) else { continue };
            let labels = vec![group(&row.group), ("loss", loss.to_string())];
            for (family, bytes) in working_sets.iter().zip([value, low, high]) {
                family.get_or_create(&labels).set(bytes as f64);
            }
        }
        for point in row.curve.iter().filter(|point| exposed.sizes.contains(&point.bytes)) {
            let labels = vec![group(&row.group), ("cache_bytes", point.bytes.to_string())];
            for (family, value) in ratios.iter().zip([point.ratio, point.low, point.high]) {
                family.get_or_create(&labels).set(value);
            }
        }
    }
}

/// Counters of each group over the segments.
fn groups(registry: &mut Registry, exposed: &Exposed) {
    let about = numbers(registry, "locality_group", "Who a group is: container, pod, unit; always 1");
    let cpu = counters(
        registry,
        "locality_cpu_seconds",
        "Sampled CPU time in user mode, by how accesses were found: in windows, in registers, not at all",
    );
    let accesses = counters(registry, "locality_accesses", "Memory accesses, estimated");
    let loaded = counters(
        registry,
        "locality_loaded_bytes",
        "Bytes loaded into a cache of that size, in segments with five windows or more of the group",
    );
    for (name, of) in &exposed.totals.groups {
        let Group { cpu_ns, who, .. } = of;
        let label = |key: &'static str, value: &str| (key, tame(value));
        let labels = vec![
            group(name),
            label("container_id", &who.container),
            label("runtime", &who.runtime),
            label("pod_uid", &who.pod),
            label("unit", &who.unit),
        ];
        about.get_or_create(&labels).set(1.0);
        for (measured, ns) in
            [("windows", cpu_ns.windows), ("registers", cpu_ns.registers), ("none", cpu_ns.none)]
        {
            cpu.get_or_create(&vec![group(name), ("measured", measured.to_owned())]).inc_by(ns / 1e9);
        }
        accesses.get_or_create(&vec![group(name)]).inc_by(of.accesses.round());
        for (size, bytes) in &of.loaded_bytes {
            let labels = vec![group(name), ("cache_bytes", size.to_string())];
            loaded.get_or_create(&labels).inc_by(bytes.round());
        }
    }
}

/// Costs, losses and failures of the agent.
fn health(registry: &mut Registry, exposed: &Exposed) {
    let totals = &exposed.totals;
    let cost = numbers(
        registry,
        "locality_cost_ratio",
        "In the last segment: share of the targets' CPU time that tracing cost them (targets), and of \
         all processors' time that the agent used (own)",
    );
    for (kind, value) in [("targets", exposed.targets_cost), ("own", exposed.own_cost)] {
        cost.get_or_create(&vec![("kind", kind.to_owned())]).set(value);
    }
    for (name, help, value) in [
        (
            "locality_stop_seconds_max",
            "Longest stop of a thread in the last segment",
            exposed.longest_stop_ns as f64 / 1e9,
        ),
        (
            "locality_ledger_balanced",
            "1 where all records of the last segment are accounted for",
            f64::from(u8::from(exposed.balanced)),
        ),
        ("locality_store_bytes", "Bytes of all segments in the store", exposed.store_bytes as f64),
        (
            "locality_last_segment_timestamp_seconds",
            "When the last segment ended, since the Unix epoch",
            exposed.last_s,
        ),
    ] {
        numbers(registry, name, help).get_or_create(&Vec::new()).set(value);
    }
    for (name, help, n) in [
        ("locality_segments", "Segments that have ended", totals.segments),
        ("locality_segments_partial", "Segments whose tracer was killed", totals.partial_segments),
        ("locality_segments_failed", "Tracers that failed", totals.failed_segments),
        ("locality_segments_unbalanced", "Segments with unexplained losses", totals.unbalanced_segments),
        ("locality_rollups_failed", "Segments of which no rollup could be made", totals.failed_rollups),
        (
            "locality_watches_cut",
            "Watchpoints that the end of a segment cut off: reuses known only to be longer",
            totals.cut_watches,
        ),
        ("locality_exporters_lost", "Exporters that ended and were started anew", totals.exporters_lost),
    ] {
        counters(registry, name, help).get_or_create(&Vec::new()).inc_by(n as f64);
    }
    counters(registry, "locality_untraced_seconds", "Time between segments, without samples")
        .get_or_create(&Vec::new())
        .inc_by(totals.untraced_ns as f64 / 1e9);
    if !exposed.excluded.is_empty() {
        let help = "Processes that --exclude left out, in the last segment, by kind of pattern";
        let excluded = numbers(registry, "locality_excluded_processes", help);
        for (kind, n) in &exposed.excluded {
            excluded.get_or_create(&vec![("kind", tame(kind))]).set(*n as f64);
        }
    }
    if !totals.sent.is_empty() {
        let sent =
            counters(registry, "locality_otlp_segments", "Segments for the Collector of --otlp, by fate");
        for (fate, n) in &totals.sent {
            sent.get_or_create(&vec![("fate", tame(fate))]).inc_by(*n as f64);
        }
    }
    let lost = counters(registry, "locality_lost_records", "Records that were lost, by cause");
    for cause in LOSSES {
        let _ = lost.get_or_create(&vec![("cause", cause.to_owned())]);
    }
    for (cause, n) in &totals.lost {
        lost.get_or_create(&vec![("cause", tame(cause))]).inc_by(*n as f64);
    }
    let not_held =
        counters(registry, "locality_not_held", "Threads that were sampled without stops, by reason");
    for (reason, n) in &totals.not_held {
        not_held.get_or_create(&vec![("reason", tame(reason))]).inc_by(*n as f64);
    }
}

/// Causes of lost records, exposed from the first segment: a rate needs a 0 before the first loss.
const LOSSES: [&str; 2] = ["no scratch buffer", "ring full"];
/// Additional misses per touch that a cache as large as the working set may have.
const LOSSES_OF_SETS: [f64; 2] = [0.01, 0.05];
/// Longest value of a label.
const LONGEST: usize = 100;

/// A label's value, limited in length and to characters without meaning in the format.
fn tame(value: &str) -> String {
    let mut tame = String::new();
    for c in value.chars().take(LONGEST) {
        let is_plain = c.is_ascii_alphanumeric() || " _.,:;@/()'-".contains(c);
        let _ = tame.write_char(if is_plain { c } else { '_' });
    }
    tame
}

#[cfg(test)]
mod tests {
    use locality_rollup::{CpuTime, Health, Point, Rollup, Row};

    use super::*;
    use crate::totals::{Totals, shown_sizes};

    fn exposed(rollup: &Rollup) -> Exposed {
        let mut totals = Totals::default();
        totals.add(rollup);
        let (rows, sizes) = (totals.shown(rollup), shown_sizes(rollup));
        Exposed { totals, rows, sizes, balanced: true, ..Exposed::default() }
    }

    fn row(group: &str, windows: u64) -> Row {
        let bytes = [32 << 10, 1 << 20, 32 << 20, 48 << 10, 2 << 20, 30 << 20];
        let point = |bytes| Point {
            bytes,
            ratio: 0.25,
            low: 0.125,
            high: 0.5,
            sampling_low: 0.25,
            sampling_high: 0.25,
        };
        Row {
            group: group.to_owned(),
            samples: windows,
            windows,
            curve_windows: windows,
            cpu_ns: CpuTime { windows: 1.5e9, registers: 0.25e9, none: 0.0 },
            accesses: Some(1000.4),
            touches: Some(100.0),
            curve: bytes.map(point).to_vec(),
            footprint_bytes: Some((4096.0, 1.0, 9000.0)),
            places: vec![("secret path.c:1".to_owned(), 5.0)],
            ..Row::default()
        }
    }

    #[test]
    fn estimates_of_few_windows_are_absent() {
        let rollup = Rollup { rows: vec![row("many", 40), row("few", 29)], ..Rollup::default() };
        let text = text(Some(&exposed(&rollup))).unwrap();
        assert!(
            text.contains("locality_miss_ratio{group=\"many\",cache_bytes=\"1048576\"} 0.25\n"),
            "{text}"
        );
        assert!(text.contains("locality_miss_ratio_high{group=\"many\",cache_bytes=\"1048576\"} 0.5\n"));
        for (end, value) in [("", "4096.0"), ("_low", "1.0"), ("_high", "9000.0")] {
            let line = format!("locality_footprint_bytes{end}{{group=\"many\"}} {value}\n");
            assert!(text.contains(&line), "{line}: {text}");
        }
        assert!(text.contains("locality_lost_records_total{cause=\"ring full\"} 0.0\n"), "{text}");
        // All sizes have one ratio: the least size suffices, as far as it is known.
        for (end, value) in [("", "32768.0"), ("_low", "32768.0"), ("_high", "32768.0")] {
            let line = format!("locality_working_set_bytes{end}{{group=\"many\",loss=\"0.05\"}} {value}\n");
            assert!(text.contains(&line), "{line}: {text}");
        }
        for absent in [
            "miss_ratio{group=\"few\"",
            "working_set_bytes{group=\"few\"",
            "footprint_bytes{group=\"few\"",
            "secret",
        ] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
        assert!(text.contains("locality_samples{group=\"few\"} 29.0\n"), "{text}");
        assert!(
            text.contains("locality_cpu_seconds_total{group=\"few\",measured=\"windows\"} 1.5\n"),
            "{text}"
        );
        // 100 touches, a quarter of which miss, of 64 bytes.
        assert!(
            text.contains("locality_loaded_bytes_total{group=\"many\",cache_bytes=\"1048576\"} 1600.0\n")
        );
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_machine_with_many_groups_has_at_most_2000_series() {
        let caches = vec![(1, 48 << 10), (2, 2 << 20), (3, 30 << 20)];
        // Rollups have curves of 32 groups at most.
        let of = |n: u64| match n < 32 {
            true => row(&format!("g{n}"), 40),
            false => Row { curve: Vec::new(), ..row(&format!("g{n}"), 40) },
        };
        let reasons = (0..100).map(|n| (format!("reason {n}"), 1)).collect();
        let health = Health { not_held: reasons, ..Health::default() };
        let rollup = Rollup { rows: (0..500).map(of).collect(), caches, health, ..Rollup::default() };
        let text = text(Some(&exposed(&rollup))).unwrap();
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        assert!((1000..=2000).contains(&series), "{series}");
        assert!(text.contains("group=\"other\""), "{text}");
    }

    #[test]
    fn excluded_processes_are_counted_by_kind_with_zeros() {
        let excluded = [("comm:a", 2), ("comm:b", 1), ("uid:0", 0)].map(|(text, n)| (text.to_owned(), n));
        let health = Health { excluded: excluded.to_vec(), ..Health::default() };
        let rollup = Rollup { health, ..Rollup::default() };
        let exposed = Exposed { excluded: crate::totals::excluded(&rollup), ..exposed(&rollup) };
        let text = text(Some(&exposed)).unwrap();
        for (kind, n) in [("comm", "3.0"), ("uid", "0.0")] {
            let line = format!("locality_excluded_processes{{kind=\"{kind}\"}} {n}\n");
            assert!(text.contains(&line), "{line}: {text}");
        }
        assert!(!super::text(Some(&Exposed::default())).unwrap().contains("excluded"));
    }

    #[test]
    fn odd_words_do_not_break_the_text() {
        let mut rollup = Rollup { rows: vec![row("a", 40)], ..Rollup::default() };
        rollup.rows[0].who.unit = "x\"} 1\n# EOF\n{\u{1f4a9}".to_owned();
        rollup.health.lost = vec![("cause \"quoted\"\n".to_owned(), 3)];
        let text = text(Some(&exposed(&rollup))).unwrap();
        assert_eq!(text.matches("# EOF").count(), 1, "{text}");
        assert!(text.contains("cause=\"cause _quoted__\"} 3.0"), "{text}");
        assert!(super::text(None).unwrap().contains("locality_build_info{version="));
    }
}
