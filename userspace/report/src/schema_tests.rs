//! Reports print as sorted maps do, and read back as they were.

use locality_findings::Findings;
use locality_model::{
    Accessed, LoadId, Located, Object, ObjectId, ObjectKind, Profile, UseId,
    testing::{demo, loops::windowed},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::json;
use crate::schema::*;

/// Whether a value prints with its keys in order, and parses back from its print.
fn is_sound<T: Serialize + DeserializeOwned>(value: &T) {
    let text = serde_json::to_string(value).unwrap();
    let sorted = serde_json::to_value(value).unwrap();
    assert!(text == format!("{sorted}"), "keys are not in order: {text}");
    let read: T = serde_json::from_str(&text).unwrap();
    let untyped: Value = serde_json::from_str(&text).unwrap();
    assert!(serde_json::to_value(read).unwrap() == untyped, "{text}");
}

fn with_objects() -> Profile {
    let mut profile = windowed();
    let kind = ObjectKind::Heap;
    profile.objects = vec![Object { kind, name: "matrix".to_owned(), ..Object::default() }];
    let uses = (0..profile.uses.len() as u32).map(|id| Accessed::Use(UseId(id)));
    let loads = (0..profile.loads.len() as u32).map(|id| Accessed::Load(LoadId(id)));
    let located = |of| Located { of, object: ObjectId(0), offset: None, field: None };
    profile.located = uses.chain(loads).map(located).collect();
    profile
}

#[test]
fn reports_print_sorted_and_read_back() {
    for profile in [demo(), with_objects(), Profile::default()] {
        let report = json::report(&profile, &Findings::of(&profile));
        is_sound(&report);
        assert!(read(json::page(&report).as_bytes()).is_ok());
    }
}

#[test]
fn call_paths_are_tables_and_come_back() {
    for profile in [demo(), with_objects()] {
        let whole = json::report(&profile, &Findings::of(&profile));
        let mut folded = whole.clone();
        tables::fold(&mut folded);
        is_sound(&folded);
        assert_eq!(folded.schema, SCHEMA);
        let (frames, stacks) = (folded.frames.as_ref().unwrap(), folded.stacks.as_ref().unwrap());
        for (pair, whole) in folded.pairs.iter().zip(&whole.pairs) {
            assert_eq!((&pair.used.frames, &pair.used.place), (&None, &whole.used.place));
            let stack = &stacks[pair.used.stack.unwrap() as usize];
            let path: Vec<_> = stack.iter().map(|number| frames[*number as usize].clone()).collect();
            assert_eq!(Some(path), whole.used.frames);
            // A path without a place in `/1` has its innermost frame's.
            let first = frames[stack[0] as usize].line;
            assert_eq!(pair.contexts[0].used.place.as_ref().unwrap().line, first);
        }
        let unique: std::collections::BTreeSet<_> = stacks.iter().collect();
        assert_eq!(unique.len(), stacks.len());
        let again = read(json::page(&folded).as_bytes()).unwrap();
        let shape = |report: &Report| {
            let pairs =
                report.pairs.iter().map(|pair| (&pair.used.frames, &pair.reuse.frames, &pair.contexts));
            let contexts = pairs.map(|(used, reuse, contexts)| {
                let contexts: Vec<_> =
                    contexts.iter().map(|at| (at.used.frames.clone(), at.used.cut.clone())).collect();
                (used.clone(), reuse.clone(), contexts)
            });
            (report.schema.clone(), contexts.collect::<Vec<_>>())
        };
        assert_eq!(shape(&again), shape(&whole));
    }
}

#[test]
fn a_call_path_that_leads_nowhere_is_a_damage() {
    let pair = json!({ "use": { "stack": 7 }, "reuse": { "stack": 0 } });
    for (frames, stacks) in [(json!([]), json!([[]])), (json!([]), json!([[3]])), (json!(null), json!([[]]))]
    {
        let report = json!({ "schema": SCHEMA, "pairs": [pair], "frames": frames, "stacks": stacks });
        let read = read(report.to_string().as_bytes());
        assert!(matches!(read, Err(Unreadable::Damaged { .. })), "{read:?}");
    }
}

#[test]
fn what_an_earlier_version_lacks_reads_as_its_default() {
    let report = read(br#"{"schema":"locality-report/1","run":{"mode":"exact"},"to":{"come":1}}"#).unwrap();
    assert_eq!((report.run.mode, &report.pairs), (run::Mode::Exact, &Vec::new()));
    assert_eq!(report.pairs_granularity, None);
    let null = read(br#"{"schema":"locality-report/1","pairs_granularity":null}"#).unwrap();
    assert_eq!(null.pairs_granularity, Some(None));
}

#[test]
fn what_is_no_report_says_what_it_is() {
    let why = |value: Value| match read(value.to_string().as_bytes()).unwrap_err() {
        Unreadable::Schema(schema) => schema.unwrap_or_else(|| "no schema".to_owned()),
        Unreadable::Damaged { at, what } => format!("{at}: {what}"),
        Unreadable::NotJson(error) => error.to_string(),
    };
    assert_eq!(why(json!([1])), "no schema");
    assert_eq!(why(json!({ "a": 1 })), "no schema");
    assert_eq!(why(json!({ "schema": "other/1", "pairs": 3 })), "other/1");
    let damaged = why(json!({ "schema": SCHEMA, "pairs": 3 }));
    assert_eq!(damaged, "line 1 column 10: invalid type: integer `3`, expected a sequence");
    assert!(matches!(read(b"{\"schema\""), Err(Unreadable::NotJson(_))));
}
