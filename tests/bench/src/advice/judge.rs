//! Whether a report's advice is right: kind and place against the table of truth, gain against the
//! measured one.

use serde_json::Value;

use super::truth::Place;

/// A predicted speed-up may differ from the measured speed-up by this part.
const TOLERANCE: f64 = 0.2;
/// An interval that holds the measured speed-up may be as wide as this factor.
const WIDEST: f64 = 2.5;
/// The gain of a second processor is no matter of the use of one.
const NOT_JUDGED: &str = "parallelise";

/// A change, and its measured speed-up.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Kinds of advice that ask for the change.
    pub kinds: Vec<String>,
    /// Time before divided by time after.
    pub speedup: f64,
}

/// The advice that was found right.
#[derive(Debug, Clone, PartialEq)]
pub struct Right {
    /// Its place in the list, from 1.
    pub rank: usize,
    /// Its kind.
    pub kind: String,
    /// The speed-up that was measured of the change.
    pub measured: f64,
    /// The report's predicted speed-up, with its interval.
    pub predicted: Option<(f64, [f64; 2])>,
}

/// What a report advises, against the truth.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// Right in kind and place, the first in the list.
    pub right: Option<Right>,
    /// All advice, as `kind file:line`.
    pub given: Vec<String>,
    /// Kinds that would not pay, of all kinds given, if the program is sound.
    pub false_alarms: Vec<String>,
}

impl Right {
    /// Whether the advice is the first or the second.
    pub fn is_seen(&self) -> bool {
        self.rank <= 2
    }

    /// Whether the predicted gain is near the measured gain,
    /// or a narrow interval contains the measured gain.
    pub fn gain_is_right(&self) -> bool {
        let Some((value, [low, high])) = self.predicted else { return false };
        let near = (value / self.measured - 1.0).abs() <= TOLERANCE;
        let holds = low <= self.measured && self.measured <= high && low > 0.0 && high / low <= WIDEST;
        near || holds
    }
}

/// Judges a report in JSON. A sound program has no places.
pub fn judge(report: &Value, fixes: &[Measured], places: &[Place]) -> Judgement {
    let advice = report["advice"].as_array().map_or(&[][..], Vec::as_slice);
    let right = advice.iter().enumerate().find_map(|(at, row)| {
        let kind = self::kind(row);
        let fix = fixes.iter().find(|fix| fix.kinds.contains(&kind))?;
        let here = is_here(row, places);
        here.then(|| {
            // A change of several loops has advice for each.
            let rest = advice.get(at..).unwrap_or_default().iter();
            let same = rest.filter(|row| fix.kinds.contains(&self::kind(row)) && is_here(row, places));
            let predicted = same.filter_map(predicted).reduce(both);
            Right { rank: at + 1, kind, measured: fix.speedup, predicted }
        })
    });
    let given = advice.iter().map(|row| format!("{} {}", kind(row), place_of(&row["where"]))).collect();
    let alarms = advice.iter().map(kind).filter(|kind| places.is_empty() && kind != NOT_JUDGED);
    Judgement { right, given, false_alarms: alarms.collect() }
}

fn kind(row: &Value) -> String {
    row["kind"].as_str().unwrap_or("no kind").to_owned()
}

fn is_here(row: &Value, places: &[Place]) -> bool {
    [&row["where"], &row["other"]].iter().any(|place| lies_in(place, places))
}

/// Speed-ups with intervals, of the changes of two loops together.
fn both(one: (f64, [f64; 2]), other: (f64, [f64; 2])) -> (f64, [f64; 2]) {
    let sum = |a: f64, b: f64| 1.0 / (1.0 / a + 1.0 / b - 1.0).max(0.01);
    (sum(one.0, other.0), [sum(one.1[0], other.1[0]), sum(one.1[1], other.1[1])])
}

fn predicted(row: &Value) -> Option<(f64, [f64; 2])> {
    let speedup = &row["gain"]["speedup"];
    let bound = |at: usize| speedup["ci95"][at].as_f64();
    Some((speedup["value"].as_f64()?, [bound(0)?, bound(1)?]))
}

fn file_of(place: &Value) -> &str {
    let file = place["file"].as_str().unwrap_or_default();
    file.rsplit('/').next().unwrap_or(file)
}

fn place_of(place: &Value) -> String {
    match place["line"].as_u64() {
        Some(line) => format!("{}:{line}", file_of(place)),
        None => place["function"].as_str().unwrap_or("nowhere").to_owned(),
    }
}

fn lies_in(place: &Value, places: &[Place]) -> bool {
    let Some(line) = place["line"].as_u64() else { return false };
    places.iter().any(|known| known.file == file_of(place) && (known.first..=known.last).contains(&line))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn advice(kind: &str, line: u64, speedup: f64, ci95: [f64; 2]) -> Value {
        json!({"kind": kind, "where": {"function": "f", "file": "/src/a.c", "line": line},
               "gain": {"speedup": {"value": speedup, "ci95": ci95, "n": 9}}})
    }

    fn place() -> Vec<Place> {
        vec![Place { file: "a.c".to_owned(), first: 10, last: 14 }]
    }

    fn fixes() -> Vec<Measured> {
        let measured = |kind: &str, speedup| Measured { kinds: vec![kind.to_owned()], speedup };
        vec![measured("tile", 2.0), measured("interchange", 3.0)]
    }

    #[test]
    fn the_first_right_advice_counts_with_the_gain_of_its_own_change() {
        let report = json!({"advice": [
            advice("fuse", 12, 2.0, [1.0, 3.0]),
            advice("interchange", 15, 2.0, [1.0, 3.0]),
            advice("interchange", 14, 3.5, [1.0, 9.0]),
            advice("tile", 10, 2.0, [1.0, 3.0]),
        ]});
        let judged = judge(&report, &fixes(), &place());
        let right = judged.right.unwrap();
        assert_eq!((right.rank, right.kind.as_str(), right.measured), (3, "interchange", 3.0));
        assert!(!right.is_seen() && right.gain_is_right());
        assert_eq!(judged.given[1], "interchange a.c:15");
        assert!(judged.false_alarms.is_empty());
    }

    #[test]
    fn the_other_place_of_two_is_a_place() {
        let mut row = advice("tile", 3, 2.0, [1.0, 3.0]);
        row["other"] = json!({"function": "g", "file": "a.c", "line": 10});
        assert!(judge(&json!({"advice": [row]}), &fixes(), &place()).right.is_some());
        let elsewhere = json!({"advice": [advice("tile", 3, 2.0, [1.0, 3.0])]});
        assert_eq!(judge(&elsewhere, &fixes(), &place()).right, None);
    }

    #[test]
    fn a_gain_is_right_by_its_value_or_by_a_narrow_interval() {
        let right = |value, ci95| Right {
            rank: 1,
            kind: "tile".to_owned(),
            measured: 2.0,
            predicted: Some((value, ci95)),
        };
        assert!(right(2.39, [2.3, 2.4]).gain_is_right());
        assert!(!right(2.5, [2.3, 2.7]).gain_is_right());
        assert!(right(3.0, [1.9, 4.0]).gain_is_right());
        assert!(!right(3.0, [1.5, 4.0]).gain_is_right());
        assert!(!Right { predicted: None, ..right(2.0, [1.0, 3.0]) }.gain_is_right());
    }

    #[test]
    fn any_advice_on_a_sound_program_but_for_more_processors_is_a_false_alarm() {
        let report = json!({"advice": [
            advice("parallelise", 12, 2.0, [1.0, 3.0]),
            advice("prefetch", 12, 2.0, [1.0, 3.0]),
        ]});
        assert_eq!(judge(&report, &[], &[]).false_alarms, ["prefetch"]);
        assert_eq!(judge(&json!({}), &[], &[]).given, Vec::<String>::new());
    }
}
