//! Pages of made-up reports, unpacked again.

use locality_report::json;
use locality_report::schema::{
    Estimate, Report, advice, objects,
    pairs::{Pair, PairContext, PairObject},
    place::{Frame, Path, Place},
    reuse::Distance,
    run::Run,
};
use serde_json::Value;
use std::sync::Arc;

use super::*;

const HOSTILE: &str = "</script><img src=x onerror=alert(1)>\u{202e}]]>--><!--";

fn frame(function: &str, line: u32) -> Arc<Frame> {
    let file = Some("/src/a.c".to_owned());
    Arc::new(Frame { function: Some(function.to_owned()), file, line: Some(line), ..Frame::default() })
}

fn path(frames: &[Arc<Frame>]) -> Path {
    let first = &frames[0];
    let place = Place {
        function: first.function.clone(),
        file: first.file.clone(),
        line: first.line,
        ..Place::default()
    };
    Path { frames: Some(frames.to_vec()), place: Some(place), ..Path::default() }
}

fn estimate(value: f64) -> Estimate {
    Estimate { value: value.into(), ci95: [(value / 2.0).into(), (value * 2.0).into()], n: 7 }
}

fn pair(weight: f64, used: &[Arc<Frame>], reuse: &[Arc<Frame>]) -> Pair {
    let time = Distance {
        unit: "accesses".to_owned(),
        value: 1234.56.into(),
        ci95: Some([1000.0.into(), 2000.0.into()]),
        ..Distance::default()
    };
    Pair {
        used: path(used),
        reuse: path(reuse),
        weight: weight.into(),
        weight_ci95: Some([0.1.into(), 0.9.into()]),
        time_median: Some(time),
        n: 3,
        contexts_total: 1,
        far: Some(true),
        near: Some(false),
        object: Some(PairObject { name: HOSTILE.to_owned(), kind: "heap".to_owned(), share: 1.0.into() }),
        contexts: vec![PairContext::default()],
        ..Pair::default()
    }
}

fn report() -> Report {
    let (main, inner) = (frame("main", 1), frame(HOSTILE, 5));
    Report {
        schema: locality_report::schema::SCHEMA_1.to_owned(),
        run: Run { command: HOSTILE.to_owned(), ..Run::default() },
        pairs: vec![
            pair(0.612_345_678, &[inner.clone(), main.clone()], std::slice::from_ref(&main)),
            pair(0.387_654_321, std::slice::from_ref(&main), &[inner, main.clone()]),
        ],
        verdict: Some(advice::Verdict { sentence: "The locality is poor.".to_owned(), ..Default::default() }),
        advice: Some(vec![advice::Advice {
            title: "Fuse <the> loops".to_owned(),
            evidence: vec![HOSTILE.to_owned()],
            gain: advice::Gain { speedup: estimate(1.5), misses: None },
            ..Default::default()
        }]),
        objects: Some(vec![objects::Object { name: HOSTILE.to_owned(), ..Default::default() }]),
        ..Report::default()
    }
}

fn unpacked(page: &str) -> Value {
    let data = page.split("id=\"data\">").nth(1).unwrap().split('<').next().unwrap();
    let bytes = miniz_oxide::inflate::decompress_to_vec(&from_base64(data)).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |letter: u8| match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::new();
    for group in text.as_bytes().chunks(4) {
        let known = group.iter().filter(|letter| **letter != b'=').count();
        let word = group.iter().fold(0_u32, |word, letter| word << 6 | u32::from(digit(*letter)));
        bytes.extend(&word.to_be_bytes()[1..known]);
    }
    bytes
}

#[test]
fn the_tables_have_what_the_report_has() {
    let source = Source { file: "/src/a.c".to_owned(), text: Ok("int a;".to_owned()), changed: true };
    let missing = Source { file: "/src/b.c".to_owned(), text: Err("not there".to_owned()), changed: false };
    let tables = unpacked(&page(report(), None, &[source, missing], None));
    assert_eq!(tables["view"], "locality-view/1");
    let pairs = &tables["pairs"];
    assert_eq!(pairs["n"], 2);
    assert_eq!(pairs["weight"][0], 0.6123);
    assert_eq!((pairs["time"][1].as_f64(), &pairs["unit"]), (Some(1234.0), &"accesses".into()));
    assert_eq!(pairs["far"], serde_json::json!([2, 2]));
    let text = |number: &Value| tables["strings"][number.as_u64().unwrap() as usize - 1].clone();
    assert_eq!(text(&pairs["object"][0]), HOSTILE);
    let place = pairs["use"][0].as_u64().unwrap() as usize - 1;
    assert_eq!(text(&tables["places"]["function"][place]), HOSTILE);
    assert_eq!(tables["places"]["line"][place], 5);
    // From the innermost node of the first use outwards: the hostile name, then main, then nothing.
    let (up, frames) = (&tables["nodes"]["up"], &tables["nodes"]["frame"]);
    let mut node = pairs["useNode"][0].as_u64().unwrap();
    let mut names = Vec::new();
    while node > 0 {
        let frame = frames[node as usize - 1].as_u64().unwrap() as usize - 1;
        names.push(text(&tables["frames"]["function"][frame]));
        node -= up[node as usize - 1].as_u64().unwrap();
    }
    assert_eq!(names, [HOSTILE, "main"]);
    assert_eq!(tables["sources"][0]["text"], "int a;");
    assert_eq!(
        (&tables["sources"][0]["changed"], &tables["sources"][1]["why"]),
        (&true.into(), &"not there".into())
    );
    assert_eq!(tables["report"]["advice"][0]["gain"]["speedup"]["value"], 1.5);
    assert!(tables["report"].get("stacks").is_none() && tables["live"].is_null());
}

#[test]
fn names_stand_in_the_page_as_text_only() {
    let page = page(report(), None, &[], None);
    let outside = page.replace(STYLE, "");
    assert!(!outside.contains("<img") && !outside.contains('\u{202e}'));
    assert_eq!(outside.matches("<script").count(), 3);
    assert_eq!(outside.matches("</script>").count(), 3);
    assert!(outside.contains("default-src 'none'; script-src 'sha256-") && !outside.contains("unsafe"));
    // Without scripts: verdict, advice, pairs.
    let fallback = outside.split("<noscript>").nth(1).unwrap().split("</noscript>").next().unwrap();
    for words in
        ["The locality is poor.", "Fuse &lt;the&gt; loops", "1.50 times as fast [0.75–3.00]", "61.2 %"]
    {
        assert!(fallback.contains(words), "{words} is not in {fallback}");
    }
}

#[test]
fn rows_that_are_not_wanted_are_counted() {
    let tables = unpacked(&page(report(), None, &[], Some(1)));
    assert_eq!((&tables["pairs"]["n"], &tables["report"]["rows_left_out"]["pairs"]), (&1.into(), &1.into()));
}

#[test]
fn a_report_without_anything_has_a_page() {
    let tables = unpacked(&page(Report::default(), None, &[], None));
    assert_eq!((&tables["pairs"]["n"], &tables["strings"]), (&0.into(), &serde_json::json!([])));
}

#[test]
fn a_profile_adds_samples_and_threads() {
    let profile = locality_model::testing::demo();
    let report = Report { schema: locality_report::schema::SCHEMA_1.to_owned(), ..Report::default() };
    let tables = unpacked(&page(report, Some(&profile), &[], None));
    let samples = &tables["live"]["samples"];
    assert_eq!(samples["us"].as_array().unwrap().len(), profile.samples.len());
    let cpu: u64 = samples["cpuUs"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
    assert_eq!(cpu, profile.samples.iter().map(|sample| sample.period_ns / 1000).sum::<u64>());
    assert!(!tables["live"]["threads"].as_array().unwrap().is_empty());
}

#[test]
fn files_of_the_heaviest_places_come_first() {
    let mut report = report();
    let other = Arc::new(Frame { file: Some("/src/z.c".to_owned()), ..Frame::default() });
    report.pairs.push(pair(1.5, std::slice::from_ref(&other), std::slice::from_ref(&other)));
    assert_eq!(files(&report), ["/src/z.c", "/src/a.c"]);
}

#[test]
fn many_pairs_make_a_small_page_soon() {
    let frames: Vec<Arc<Frame>> = (0..5_000).map(|n| frame(&format!("function_{n}"), n)).collect();
    let mut state = 1_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let paths: Vec<Vec<Arc<Frame>>> =
        (0..3_000).map(|_| (0..6).map(|_| frames[random(5_000) as usize].clone()).collect()).collect();
    let pairs = (0..20_000).map(|n| {
        let (used, reuse) = (&paths[random(3_000) as usize], &paths[random(3_000) as usize]);
        pair(1.0 / f64::from(n + 1), used, reuse)
    });
    let report = Report { pairs: pairs.collect(), ..report() };
    let page = page(report, None, &[], None);
    let most = 150_000 + 20_000 * 30;
    assert!(page.len() < most, "{} bytes, at most {most}", page.len());
}

#[test]
fn reports_read_back_make_the_same_page() {
    let whole = report();
    let again = locality_report::schema::read(json::page(&whole).as_bytes()).unwrap();
    assert_eq!(page(whole, None, &[], None), page(again, None, &[], None));
}
