//! Exports of profiles in memory: totals are those of the report, and every row's path is whole.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

use locality_model::testing::{demo, loops};
use locality_model::{Accessed, LoadId, Located, Object, ObjectId, ObjectKind};
use locality_report::json;
use locality_report::schema::Number;
use serde_json::{Value, json};

use super::*;

fn options(to: Format, metric: Option<&str>) -> Options {
    Options { to, metric: metric.map(|metric| metric.parse().unwrap()), end: End::default() }
}

fn exported(profile: &Profile, to: Format, metric: Option<&str>) -> Result<Vec<u8>, Unfit> {
    let findings = Findings::of(profile);
    let report = json::report(profile, &findings);
    live(profile, &findings, &report, &options(to, metric)).map(|exported| match exported {
        Exported::File(bytes) => bytes,
        Exported::Folder(_) => panic!("a folder"),
    })
}

fn text(profile: &Profile, to: Format, metric: Option<&str>) -> String {
    String::from_utf8(exported(profile, to, metric).unwrap()).unwrap()
}

fn folded(profile: &Profile, metric: &str) -> BTreeMap<String, u64> {
    let page = text(profile, Format::Folded, Some(metric));
    let line = |line: &str| {
        let (path, value) = line.rsplit_once(' ').unwrap();
        (path.to_owned(), value.parse().unwrap())
    };
    page.lines().map(line).collect()
}

/// What the report says of each metric.
fn totals(profile: &Profile) -> BTreeMap<String, f64> {
    let report = serde_json::to_value(json::report(profile, &Findings::of(profile))).unwrap();
    let cpu_s = report["run"]["cpu_s"].as_f64().unwrap();
    let pairs = report["pairs"].as_array().unwrap().iter();
    let far: f64 = pairs.map(|pair| pair["far_weight"].as_f64().unwrap()).sum();
    let mut totals = BTreeMap::from([("cpu".to_owned(), cpu_s * 1e9), ("far".to_owned(), far * 1e6)]);
    if let Some(rate) = report["windows"]["accesses_per_ns"].as_f64() {
        totals.insert("accesses".to_owned(), rate * cpu_s * 1e9);
    }
    for level in report["cache_use"]["levels"].as_array().into_iter().flatten() {
        let name = level["level"].as_str().unwrap().replace("LL", "LLC");
        totals.insert(format!("misses:{name}"), level["lines_loaded"].as_f64().unwrap());
        totals.insert(format!("wasted:{name}"), level["spatial_loss_bytes"].as_f64().unwrap());
    }
    totals
}

/// Windows, uses, loads and far reuses.
fn windowed() -> Profile {
    let mut profile = loops::windowed();
    profile.run.cpu_ns = profile.run.cpu_ns.max(1);
    profile
}

#[test]
fn totals_are_those_of_the_report_in_every_format() {
    for profile in [demo(), windowed()] {
        let totals = totals(&profile);
        let mut seen = 0;
        for (metric, total) in &totals {
            if total.round() < 1.0 {
                let why = exported(&profile, Format::Folded, Some(metric)).unwrap_err().0;
                assert!(why.contains("is 0 in this profile"), "{metric}: {why}");
                continue;
            }
            seen += 1;
            let sum: u64 = folded(&profile, metric).values().sum();
            assert!((sum as f64 - total).abs() <= 1.0, "{metric}: {sum} of {total}");
            let speedscope: Value =
                serde_json::from_str(&text(&profile, Format::Speedscope, Some(metric))).unwrap();
            let active = speedscope["activeProfileIndex"].as_u64().unwrap() as usize;
            let active = &speedscope["profiles"][active];
            let weights: u64 = active["weights"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
            assert_eq!((weights, active["name"].as_str().unwrap()), (sum, metric.as_str()));
            assert_eq!(active["endValue"], weights);
            let callgrind = text(&profile, Format::Callgrind, Some(metric));
            let summary = callgrind.lines().find_map(|line| line.strip_prefix("summary: ")).unwrap();
            assert_eq!(summary.split(' ').next().unwrap(), sum.to_string());
        }
        assert!(seen >= 2, "{totals:?}");
    }
}

/// Each second load is of one data object, the others of no known one.
fn with_objects() -> Profile {
    let mut profile = windowed();
    let object = Object { name: "table".to_owned(), kind: ObjectKind::Static, ..Object::default() };
    profile.objects = vec![object];
    profile.located = (0..profile.loads.len() as u32)
        .step_by(2)
        .map(|id| Located { of: Accessed::Load(LoadId(id)), object: ObjectId(0), offset: None, field: None })
        .collect();
    profile
}

#[test]
fn misses_and_wasted_bytes_have_the_data_object_as_label() {
    let profile = with_objects();
    let table = live::table(&profile, &Findings::of(&profile), End::default());
    for metric in ["misses:L1", "wasted:L1"] {
        let column = table.choose(Some(&metric.parse().unwrap()), "").unwrap();
        let sum = |labels: &[(&'static str, String)]| -> u64 {
            table.rows.iter().filter(|row| row.labels == labels).map(|row| row.values[column]).sum()
        };
        let (of_table, unknown) = (sum(&[("object", "table".to_owned())]), sum(&[]));
        assert!(of_table > 0 && unknown > 0, "{metric}: {of_table} and {unknown}");
        assert_eq!(of_table + unknown, table.columns[column].total, "{metric}");
    }
}

#[test]
fn tables_name_the_last_level_as_metrics_do_and_have_no_negative_zero() {
    let profile = windowed();
    let mut report = json::report(&profile, &Findings::of(&profile));
    for line in &mut report.cache_use.as_mut().unwrap().by_loading_line {
        line.share = Number::Real(-0.0);
    }
    let files: BTreeMap<String, Vec<u8>> = csv_tables::of(&report).unwrap().into_iter().collect();
    let mut reader = csv::Reader::from_reader(files["loading_lines.csv"].as_slice());
    let rows: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    let levels: BTreeSet<&str> = rows.iter().map(|row| row["level"].as_str()).collect();
    assert_eq!(levels.into_iter().collect::<Vec<_>>(), ["L1", "LLC"]);
    assert!(rows.iter().all(|row| row["share"] == "0"), "{rows:?}");
}

#[test]
fn far_reuses_stand_at_either_end() {
    let profile = demo();
    let at = |end| {
        let findings = Findings::of(&profile);
        let report = json::report(&profile, &findings);
        let options = Options { end, ..options(Format::Folded, Some("far")) };
        match live(&profile, &findings, &report, &options).unwrap() {
            Exported::File(bytes) => String::from_utf8(bytes).unwrap(),
            Exported::Folder(_) => panic!("a folder"),
        }
    };
    assert!(at(End::Reuse).contains("main;run;total;sum "), "{}", at(End::Reuse));
    assert!(at(End::Use).contains("main;run;step;fill "), "{}", at(End::Use));
}

#[test]
fn metrics_that_are_not_known_are_refused_in_a_sentence() {
    let why = exported(&demo(), Format::Folded, Some("misses:L1")).unwrap_err().0;
    assert!(why.contains("no misses:L1, only far, cpu") && why.contains("windows"), "{why}");
    for wrong in ["misses", "misses:", "far:L1", "cpu:", "miss:L1", "misses:1"] {
        assert!(wrong.parse::<Metric>().is_err(), "{wrong}");
    }
    assert_eq!("wasted:llc".parse::<Metric>(), Ok(Metric::Wasted("LLC".to_owned())));
}

/// Names with every character that a format gives a meaning to.
fn hostile() -> Profile {
    let mut profile = demo();
    for frame in &mut profile.frames {
        frame.function = frame.function.take().map(|name| format!("{name};</script> \"x\",y\n(2) 7"));
    }
    profile
}

#[test]
fn names_from_the_traced_program_break_no_format() {
    let profile = hostile();
    let sum: u64 = folded(&profile, "cpu").values().sum();
    assert_eq!(sum, profile.run.cpu_ns);
    serde_json::from_str::<Value>(&text(&profile, Format::Speedscope, None)).unwrap();
    serde_json::from_slice::<Value>(&exported(&profile, Format::Firefox, None).unwrap()).unwrap();
    let callgrind = text(&profile, Format::Callgrind, None);
    assert!(callgrind.lines().all(|line| !line.starts_with('(')), "a name broke a line");
}

#[test]
fn firefox_has_samples_by_thread_and_reuses_as_intervals() {
    let profile = demo();
    let page: Value = serde_json::from_slice(&exported(&profile, Format::Firefox, None).unwrap()).unwrap();
    let threads = page["threads"].as_array().unwrap();
    let weights = |thread: &Value| -> i64 {
        thread["samples"]["weight"].as_array().into_iter().flatten().filter_map(Value::as_i64).sum()
    };
    assert_eq!(threads.iter().map(weights).sum::<i64>(), 9_820);
    let reused = |watch: &&locality_model::Watch| {
        matches!(watch.outcome, locality_model::Outcome::Reused { .. }) && watch.use_touch.is_some()
    };
    let markers: u64 = threads.iter().filter_map(|thread| thread["markers"]["length"].as_u64()).sum();
    assert_eq!(markers, profile.watches.iter().filter(reused).count() as u64);
    assert_eq!(page["meta"]["markerSchema"][0]["name"], "Reuse");
}

#[test]
fn pprof_is_gzip_around_a_message() {
    let bytes = exported(&demo(), Format::Pprof, Some("cpu")).unwrap();
    let mut message = Vec::new();
    flate2::read::GzDecoder::new(bytes.as_slice()).read_to_end(&mut message).unwrap();
    for text in ["nanoseconds", "src/demo.c", "fill", "/opt/demo", "locality-bpf: ./demo --size 64M"] {
        assert!(message.windows(text.len()).any(|part| part == text.as_bytes()), "{text}");
    }
}

/// Decoded by the types that OpenTelemetry generates from its own description.
#[test]
fn otlp_is_read_by_opentelemetry_with_the_totals_and_paths_of_pprof() {
    use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
    use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
    use prost::Message as _;

    for profile in [demo(), windowed(), with_objects()] {
        let totals = totals(&profile);
        let message = exported(&profile, Format::Otlp, Some("cpu")).unwrap();
        let data = ProfilesData::decode(message.as_slice()).unwrap();
        let [resource] = data.resource_profiles.as_slice() else { panic!("{data:?}") };
        let name = &resource.resource.as_ref().unwrap().attributes[0];
        let Some(Any::StringValue(command)) = name.value.clone().unwrap().value else { panic!("{name:?}") };
        assert_eq!((name.key.as_str(), command.as_str()), ("service.name", profile.run.command.as_str()));
        let tables = data.dictionary.unwrap();
        assert_eq!(tables.string_table[0], "");
        assert_eq!(tables.location_table[0], Default::default());
        assert_eq!(tables.link_table.len(), 1);
        let text = |index: i32| tables.string_table[index as usize].as_str();
        let mut seen = 0;
        for (order, of_metric) in resource.scope_profiles[0].profiles.iter().enumerate() {
            assert_eq!(of_metric.time_unix_nano, profile.run.started_unix_ns);
            assert_eq!(of_metric.duration_nano, profile.run.wall_ns);
            let metric = text(of_metric.sample_type.unwrap().type_strindex);
            assert!(order > 0 || metric == "cpu", "{metric} comes first");
            let mut paths: BTreeMap<String, u64> = BTreeMap::new();
            for sample in &of_metric.samples {
                let stack = &tables.stack_table[sample.stack_index as usize];
                let names = stack.location_indices.iter().flat_map(|location| {
                    let lines = &tables.location_table[*location as usize].lines;
                    lines.iter().map(|line| {
                        let function = &tables.function_table[line.function_index as usize];
                        text(function.name_strindex).to_owned()
                    })
                });
                let names: Vec<String> = names.collect();
                let path = names.into_iter().rev().collect::<Vec<_>>().join(";");
                *paths.entry(path).or_default() += u64::try_from(sample.values[0]).unwrap();
                for attribute in &sample.attribute_indices {
                    let attribute = &tables.attribute_table[*attribute as usize];
                    assert!(text(attribute.key_strindex).starts_with("locality."), "{attribute:?}");
                }
                seen += 1;
            }
            let sum: u64 = paths.values().sum();
            assert!((sum as f64 - totals[metric]).abs() <= 1.0, "{metric}: {sum} of {}", totals[metric]);
            let expected: u64 = folded(&profile, metric).values().sum();
            assert_eq!(sum, expected, "{metric}");
        }
        assert!(seen > 0);
    }
}

#[test]
fn tables_have_the_rows_and_numbers_of_the_report() {
    let profile = demo();
    let findings = Findings::of(&profile);
    let report = json::report(&profile, &findings);
    let Exported::Folder(files) = live(&profile, &findings, &report, &options(Format::Csv, None)).unwrap()
    else {
        panic!("no folder")
    };
    let files: BTreeMap<String, Vec<u8>> = files.into_iter().collect();
    let mut reader = csv::Reader::from_reader(files["pairs.csv"].as_slice());
    let rows: Vec<BTreeMap<String, String>> = reader.deserialize().map(Result::unwrap).collect();
    assert_eq!(rows.len(), report.pairs.len());
    for (row, pair) in rows.iter().zip(&report.pairs) {
        assert_eq!(row["weight"].parse::<f64>().ok(), pair.weight.real());
        assert_eq!(row["n"], pair.n.to_string());
        assert_eq!(row["time_median"].parse::<f64>().ok(), pair.time_median.as_ref().unwrap().value.real());
    }
    assert!(files.contains_key("hot_lines.csv") && !files.contains_key("objects.csv"));
}

fn exact_report(report: Value) -> Report {
    serde_json::from_value(report).unwrap()
}

#[test]
fn exact_reports_export_far_reuses_and_say_what_they_lack() {
    let frame = |name: &str, line: u32| json!({ "function": name, "file": "a.c", "line": line, "module": "/a", "address": 16 * line, "inlined": false });
    let path = |name: &str, line: u32| json!({ "frames": [frame(name, line), frame("main", 9)] });
    let report = exact_report(json!({
        "schema": "locality-report/1",
        "run": { "mode": "exact", "command": "./a" },
        "pairs": [{
            "use": path("fill", 1), "reuse": path("sum", 2), "n": 100, "weight": 1.0, "misses": { "32768": 70 },
            "contexts": [{ "use": path("fill", 1), "reuse": path("sum", 2), "n": 80, "misses": { "32768": 60 } }],
        }],
    }));
    let of = |to, metric: Option<&str>| exact(&report, &options(to, metric));
    let Exported::File(page) = of(Format::Folded, None).unwrap() else { panic!("a folder") };
    assert_eq!(String::from_utf8(page).unwrap(), "main;sum 60\nsum 10\n");
    let mut sampled = report.clone();
    sampled.run.sample_lines = Some(16);
    let Exported::File(page) = exact(&sampled, &options(Format::Folded, None)).unwrap() else {
        panic!("a folder")
    };
    assert_eq!(String::from_utf8(page).unwrap(), "main;sum 960\nsum 160\n", "of the whole run");
    for (to, metric, says) in [
        (Format::Firefox, None, "no times"),
        (Format::Callgrind, None, "exact --cache-use"),
        (Format::Folded, Some("cpu"), "no cpu, only far"),
        (Format::Pprof, Some("misses:L1"), "no misses:L1, only far"),
    ] {
        let why = of(to, metric).unwrap_err().0;
        assert!(why.contains(says), "{why}");
    }
    let Exported::Folder(files) = of(Format::Csv, None).unwrap() else { panic!("a file") };
    assert!(String::from_utf8(files[0].1.clone()).unwrap().contains("fill,a.c,1,sum,a.c,2,"));
}
