//! Compares a report's pairs with the known pair of a program.
//!
//! A place with a line is looked for at the innermost frame in the
//! program's own source: the access may be in an inlined library function
//! or in the C library's `read`. Not here: how often the pair is seen.

use serde_json::Value;

use crate::markers::{Pair, Place, markers};

/// Panics unless the heaviest pair of the report is the program's known pair `name`.
pub fn assert_top(report: &Value, program: &str, name: &str) {
    let pairs = markers(program);
    let pair = pairs.get(name).unwrap_or_else(|| panic!("{program} marks no pair {name}"));
    if let Err(why) = top_is(report, pair) {
        let pairs = serde_json::to_string_pretty(&report["pairs"]).unwrap_or_default();
        panic!("the top pair is not {name} of {program}: {why}\n{pairs}");
    }
}

/// Whether the heaviest pair of the report is `pair`, or the difference.
pub fn top_is(report: &Value, pair: &Pair) -> Result<(), String> {
    let top = report["pairs"].get(0).ok_or("the report has no pairs")?;
    at(&top["use"], &pair.uses).map_err(|e| format!("use {e}"))?;
    at(&top["reuse"], &pair.reuse).map_err(|e| format!("reuse {e}"))
}

/// Whether an end of a pair lies at the place, with the place's call path.
pub fn at(end: &Value, place: &Place) -> Result<(), String> {
    let frames = end["frames"].as_array().filter(|frames| !frames.is_empty()).ok_or("has no frames")?;
    let functions: Vec<&str> = frames.iter().map(|frame| frame["function"].as_str().unwrap_or("?")).collect();
    if let Some(expected) = &place.function {
        if functions[0] != expected {
            return Err(format!("is in {}, not in {expected}", functions[0]));
        }
    } else {
        let own = |frame: &&Value| {
            let file = frame["file"].as_str().unwrap_or_default();
            file.rsplit('/').next() == Some(place.file.as_str())
        };
        let frame = frames
            .iter()
            .find(own)
            .ok_or_else(|| format!("has no frame in {}: {functions:?}", place.file))?;
        if frame["line"].as_u64() != Some(u64::from(place.line)) {
            return Err(format!("is at {}:{}, not at line {}", place.file, frame["line"], place.line));
        }
    }
    if !place.path.is_empty() {
        // Inlined frames lie between; the C library's start code lies outside.
        let mut rest = functions.iter();
        if !place.path.iter().all(|function| rest.any(|have| have == function)) {
            return Err(format!("has the call path {functions:?}, not {:?}", place.path));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn end(frames: &[(&str, &str, u32)]) -> Value {
        let frame = |&(function, file, line): &(&str, &str, u32)| json!({"function": function, "file": file, "line": line});
        json!({ "frames": frames.iter().map(frame).collect::<Vec<_>>() })
    }

    fn place(line: u32) -> Place {
        Place { file: "a.c".to_owned(), line, ..Place::default() }
    }

    #[test]
    fn the_first_frame_in_the_own_source_decides() {
        let end = end(&[("read", "libc/read.c", 9), ("refill", "/x/a.c", 12), ("main", "/x/a.c", 30)]);
        assert_eq!(at(&end, &place(12)), Ok(()));
        assert!(at(&end, &place(30)).unwrap_err().contains("12"));
        assert!(at(&end, &Place { file: "b.c".to_owned(), ..place(12) }).unwrap_err().contains("b.c"));
        assert!(at(&json!({ "frames": [] }), &place(1)).is_err());
    }

    #[test]
    fn a_function_without_a_line() {
        let end = end(&[("jit_write", "", 0), ("main", "/x/a.c", 30)]);
        let named = |name: &str| Place { function: Some(name.to_owned()), ..place(1) };
        assert_eq!(at(&end, &named("jit_write")), Ok(()));
        assert!(at(&end, &named("main")).is_err());
    }

    #[test]
    fn a_call_path_may_have_gaps_but_no_other_order() {
        let end = end(&[("inner", "a.c", 5), ("mix", "t.h", 1), ("outer", "a.c", 7), ("main", "a.c", 9)]);
        let with = |path: &[&str]| Place { path: path.iter().map(|&f| f.to_owned()).collect(), ..place(5) };
        assert_eq!(at(&end, &with(&["inner", "outer", "main"])), Ok(()));
        assert!(at(&end, &with(&["outer", "inner"])).is_err());
        assert!(at(&end, &with(&["inner", "middle", "main"])).is_err());
    }

    #[test]
    fn only_the_heaviest_pair_counts() {
        let pair = Pair { name: "p".to_owned(), uses: place(1), reuse: place(2) };
        let (first, second) = (end(&[("f", "a.c", 1)]), end(&[("f", "a.c", 2)]));
        let right = json!({ "use": first, "reuse": second });
        let wrong = json!({ "use": second, "reuse": first });
        assert_eq!(top_is(&json!({ "pairs": [right, wrong] }), &pair), Ok(()));
        assert!(top_is(&json!({ "pairs": [wrong, right] }), &pair).is_err());
        assert!(top_is(&json!({ "pairs": [] }), &pair).unwrap_err().contains("no pairs"));
    }
}
