//! What the rows say, in JSON and as text, of findings put together by hand.

use std::collections::BTreeMap;

use locality_estimate::interval_estimate::Estimate;
use locality_model::testing::{MS, Maker};
use locality_model::{Field, Object, ObjectKind};

use locality_findings::cache_use::{Costs, LevelUse, Loaded};
use serde_json::{Value, json};

use super::*;
use crate::json::{cache_use::Json, frames::Frames};

fn about(value: f64) -> Estimate {
    Estimate { value, low: 0.9 * value, high: 1.1 * value, n: 40 }
}

fn costs(lines: f64, lost: f64, accesses: f64) -> Costs {
    Costs { lines: about(lines), lost: about(lost), access_cost: about(lines / accesses) }
}

/// Of a level that loads 1,000,000 lines and loses 50,000,000 bytes.
fn loaded(lines: f64, lost: f64, accesses: f64) -> Loaded {
    Loaded {
        costs: costs(lines, lost, accesses),
        traffic: about(lines / 1e6),
        share: about(lost / 5e7),
        used: about(64.0 - lost / lines),
        accesses: about(accesses),
    }
}

/// `gather` loads most, half of it below a path that is cut; `scatter` the rest.
fn example() -> (Profile, Contexts, CacheUse) {
    let mut make = Maker::new();
    let whole = make.stack("gather a.c:20 < sweep a.c:40 < main a.c:90");
    let cut = make.stack("gather a.c:20 < step a.c:50");
    make.profile.stacks[cut.0 as usize].cut = Some("no unwind information".to_owned());
    let scatter = make.stack("scatter a.c:30 < main a.c:91");
    let mut profile = make.profile;
    profile.run.cpu_ns = 1_000 * MS;
    let object =
        |(name, kind): (&str, ObjectKind)| Object { name: name.to_owned(), kind, ..Object::default() };
    profile.objects = [("old", ObjectKind::Static), ("cells", ObjectKind::Heap)].map(object).to_vec();
    profile.fields = vec![Field { path: "[]".to_owned(), ..Field::default() }];
    let contexts = Contexts::new(&profile);
    let frame = |stack: locality_model::StackId, depth: usize| profile.stacks[stack.0 as usize].frames[depth];
    let function = |frame: Option<FrameId>, own: f64, inclusive: f64| FunctionLoss {
        frame,
        own: costs(own / 56.0, own, 2.0),
        inclusive: costs(inclusive / 56.0, inclusive, 2.0),
        share: about(inclusive / 5e7),
        of_traffic: about(inclusive / 6.4e7),
    };
    let level = LevelUse {
        name: "L1".to_owned(),
        bytes: 32 << 10,
        costs: costs(1e6, 5e7, 2.0),
        lost_share: about(5e7 / 6.4e7),
        by_path: Vec::new(),
        by_instruction: BTreeMap::new(),
        by_line: vec![
            LoadingLine {
                frame: Some(frame(whole, 0)),
                kind: AccessKind::Load,
                loaded: loaded(8e5, 4.48e7, 1.6),
                contexts: vec![
                    (contexts.of(whole), loaded(4e5, 2.24e7, 1.6)),
                    (contexts.of(cut), loaded(4e5, 2.24e7, 1.6)),
                ],
                contexts_total: 7,
                objects: vec![(ObjectId(0), Some(FieldId(0)), 0.75), (ObjectId(1), None, 0.25)],
            },
            LoadingLine {
                frame: Some(frame(scatter, 0)),
                kind: AccessKind::Store,
                loaded: loaded(2e5, 5.2e6, 4.0),
                contexts: vec![(None, loaded(2e5, 5.2e6, 4.0))],
                contexts_total: 1,
                objects: Vec::new(),
            },
        ],
        by_function: vec![
            function(Some(frame(whole, 0)), 4.48e7, 4.48e7),
            function(Some(frame(whole, 2)), 0.0, 2.76e7),
            function(None, 0.0, 2.24e7),
        ],
        by_object: vec![
            ObjectLoss { object: Some(ObjectId(0)), loaded: loaded(6e5, 3.36e7, 1.6) },
            ObjectLoss { object: None, loaded: loaded(4e5, 1.64e7, 3.0) },
        ],
        rows_left_out: 3,
        unknown_caller: about(2.24e7),
        balanced: true,
    };
    let empty = LevelUse { name: "LL".to_owned(), bytes: 1 << 20, balanced: true, ..LevelUse::default() };
    let cache_use = CacheUse { levels: vec![level, empty], touches: 1e8, n: 80, left_out: 2 };
    (profile, contexts, cache_use)
}

/// The report for programs, as it prints.
fn value(profile: &Profile, contexts: &Contexts, cache_use: &CacheUse) -> Value {
    let frames = &Frames::new(profile, contexts);
    serde_json::to_value(Json { profile, contexts, cache_use, frames }.report()).unwrap()
}

#[test]
fn every_number_of_a_row_has_its_interval() {
    let (profile, contexts, cache_use) = example();
    let value = value(&profile, &contexts, &cache_use);
    let tables = ["levels", "by_loading_line", "by_function", "by_object"];
    for row in tables.iter().flat_map(|table| value[table].as_array().expect(table)) {
        let row = row.as_object().unwrap();
        for field in [
            "lines_loaded",
            "spatial_loss_bytes",
            "lost_share",
            "traffic_share",
            "used_bytes_per_line",
            "access_count",
            "access_cost",
            "self",
            "inclusive",
        ] {
            assert_eq!(
                row.contains_key(field),
                row.contains_key(&format!("{field}_ci95")),
                "{field}: {row:?}"
            );
        }
        assert!(
            !row.contains_key("share") || row["ci95"].as_array().is_some_and(|ends| ends.len() == 2),
            "{row:?}"
        );
    }
}

#[test]
fn rows_have_the_fields_of_the_exact_report() {
    let (profile, contexts, cache_use) = example();
    let value = value(&profile, &contexts, &cache_use);
    let line = &value["by_loading_line"][0];
    assert_eq!(
        (&line["function"], &line["line"], &line["level"]),
        (&json!("gather"), &json!(20), &json!("L1"))
    );
    assert_eq!((&line["access"], &line["object"]), (&json!("load"), &json!("old")));
    assert_eq!((&line["used_bytes_per_line"], &line["access_count"]), (&json!(8.0), &json!(1.6)));
    assert_eq!(line["access_cost"], 5e5);
    let names = |callers: &Value| -> Vec<String> {
        callers
            .as_array()
            .unwrap()
            .iter()
            .map(|frame| frame["function"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&line["callers"]), ["sweep", "main"]);
    assert!(line.get("cut").is_none(), "{line:#}");
    assert_eq!((line["contexts_total"].as_u64(), line["contexts"].as_array().unwrap().len()), (Some(7), 2));
    let second = &line["contexts"][1];
    assert_eq!(
        (names(&second["callers"]), &second["cut"]),
        (vec!["step".to_owned()], &json!("no unwind information"))
    );
    assert_eq!((&second["lines_loaded"], &second["n"]), (&json!(4e5), &json!(40)));
    assert_eq!(
        (&value["by_loading_line"][1]["access"], &value["by_loading_line"][1]["cut"]),
        (&json!("store"), &json!(NO_PATH))
    );

    let functions = value["by_function"].as_array().unwrap();
    assert_eq!((&functions[1]["function"], &functions[1]["line"]), (&json!("main"), &Value::Null));
    assert_eq!((&functions[1]["self"], &functions[1]["inclusive"]), (&json!(0.0), &json!(2.76e7)));
    assert_eq!(functions[0]["lines_loaded"], json!({ "self": 8e5, "inclusive": 8e5 }));
    assert_eq!(functions[0]["access_cost"], json!({ "self": 4e5, "inclusive": 4e5 }));
    assert_eq!((&functions[2]["function"], &functions[2]["module"]), (&json!(UNKNOWN_CALLER), &Value::Null));
    assert_eq!(value["unknown_caller"]["spatial_loss_bytes"], json!({ "L1": 2.24e7, "LL": 0.0 }));

    let objects = value["by_object"].as_array().unwrap();
    let named: Vec<_> = objects.iter().map(|row| (&row["name"], &row["kind"], &row["level"])).collect();
    assert_eq!(named[0], (&json!("old"), &json!("static"), &json!("L1")));
    assert_eq!(named[1], (&json!("[unknown]"), &json!("unknown"), &json!("L1")));
    assert_eq!(
        (&value["rows_left_out"], &value["balanced"], &value["left_out"]),
        (&json!(3), &json!(true), &json!(2))
    );
}

#[test]
fn objects_were_not_looked_for_and_the_ledger_does_not_balance() {
    let (profile, contexts, mut cache_use) = example();
    cache_use.levels[0].by_object.clear();
    cache_use.levels[0].balanced = false;
    let value = value(&profile, &contexts, &cache_use);
    assert_eq!((&value["by_object"], &value["balanced"]), (&Value::Null, &json!(false)));
}

/// As many rows as asked for, but what unknown callers lose is always said.
#[test]
fn as_many_rows_as_asked_for() {
    let (profile, contexts, cache_use) = example();
    let rows = |top: Option<usize>| {
        let text = Report { profile: &profile, contexts: &contexts, cache_use: &cache_use }.text(top);
        let count = |words: &str| {
            let has = |piece: &&Text| match piece {
                Text::Row(text) | Text::Sentence(text) => text.contains(words),
            };
            text.iter().filter(has).count()
        };
        ["gather", "main", UNKNOWN_CALLER, " per line used", "old", UNKNOWN].map(count)
    };
    // Names stand in rows and in the sentences on lines of code; the second line's call path is an
    // unknown caller's.
    assert_eq!(rows(None), [2, 2, 2, 2, 2, 1]);
    assert_eq!(rows(Some(1)), [2, 1, 1, 1, 2, 0]);
}

#[test]
fn the_page_says_who_loads_what_is_not_used() {
    let (profile, contexts, cache_use) = example();
    let text = Report { profile: &profile, contexts: &contexts, cache_use: &cache_use }.text(None);
    let lines = text.iter().map(|piece| match piece {
        Text::Row(text) => format!("row       {text}"),
        Text::Sentence(text) => format!("sentence  {text}"),
    });
    insta::assert_snapshot!(lines.collect::<Vec<_>>().join("\n"));
}
