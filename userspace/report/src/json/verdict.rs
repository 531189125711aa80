//! The verdict: how many of a thousand touches of lines miss each cache of the machine, and a grade.
//!
//! Source: the miss ratios of `locality_estimate::reuse` at 64 bytes (fully associative LRU, Mattson et al.
//! 1970). Sources of error: theirs, and the distribution assumed here. The bootstrap draws of an
//! interval are not part of the findings. A draw is therefore taken from two half normal distributions
//! around the value, whose 2.5 % and 97.5 % points are the interval's ends, cut off at zero. All caches
//! share one draw: what makes one miss ratio too high makes the others too high.

use std::collections::BTreeMap;

use locality_findings::{Findings, why_empty};
use locality_model::Profile;

use crate::estimates::ci95;
use crate::schema::{
    Estimate,
    advice::{Grade, Verdict},
};

/// Good locality has fewer misses of the last cache than this, of a thousand touches of lines.
pub const GOOD_BELOW_LAST: f64 = 4.0;
/// Good locality also has fewer misses of the first cache than this.
pub const GOOD_BELOW_FIRST: f64 = 50.0;
/// Poor locality has more misses of the last cache than this.
pub const POOR_ABOVE_LAST: f64 = 20.0;
/// Share of the draws that a grade needs which the interval does not lie within.
const MOST: f64 = 0.8;
/// Standard deviations from the value to the ends of a 95 % interval.
const Z: f64 = 1.96;
/// Draws lie up to so many standard deviations from the value, this far apart.
const FARTHEST: f64 = 4.0;
const STEP: f64 = 0.01;

/// What the grades are, in a sentence.
pub fn rule() -> String {
    format!(
        "Of 1,000 line touches, good locality has fewer than {GOOD_BELOW_LAST} that miss the last cache and fewer \
         than {GOOD_BELOW_FIRST} that miss the first one, and poor locality has more than {POOR_ABOVE_LAST} \
         that miss the last cache. A verdict says \"probably\" where the 95 % interval reaches beyond the grade, \
         but four fifths of the draws lie within it and none of the interval lies in the opposite grade. \
         Draws: normal, with the interval's ends as 95 % limits."
    )
}

/// The verdict of a profile; `None` where no miss ratio is known.
pub(super) fn verdict(profile: &Profile, findings: &Findings) -> Option<Verdict> {
    let lines = findings.reuse(64).filter(|_| why_empty(profile).is_none())?;
    let at_caches = lines.curve.iter().filter_map(|point| {
        let [value, low, high] =
            [point.ratio.value, point.ratio.low, point.ratio.high].map(|ratio| ratio * 1000.0);
        let ratio = locality_estimate::interval_estimate::Estimate { value, low, high, n: point.ratio.n };
        let is_known = [value, low, high].iter().all(|ratio| ratio.is_finite());
        point.level.filter(|_| is_known).map(|level| (level, ratio))
    });
    let levels: BTreeMap<u8, _> = at_caches.collect();
    let last = *levels.keys().next_back()?;
    let mut per_mille = BTreeMap::new();
    for (level, ratio) in levels {
        let estimate = Estimate { ci95: ci95(&ratio), n: ratio.n, value: ratio.value.into() };
        if level <= 2 || level < last {
            per_mille.insert(format!("L{level}"), estimate.clone());
        }
        if level == last {
            per_mille.insert("LLC".to_owned(), estimate);
        }
    }
    of(per_mille)
}

/// The verdict on misses per thousand touches of `L1` … `LLC`; `None` without those.
fn of(per_mille: BTreeMap<String, Estimate>) -> Option<Verdict> {
    let spread = Spread::of(&per_mille)?;
    let (grade, probably) = spread.grade();
    let sentence = sentence(grade, probably, &per_mille, spread.range());
    Some(Verdict { grade, per_mille, probably, sentence, waits_share: None })
}

/// The best and the worst grade within the intervals of a verdict.
pub fn range(verdict: &Verdict) -> Option<(Grade, Grade)> {
    Spread::of(&verdict.per_mille).map(|spread| spread.range())
}

/// Value and interval of the misses of the first and the last cache.
struct Spread {
    first: [f64; 3],
    last: [f64; 3],
}

impl Spread {
    fn of(per_mille: &BTreeMap<String, Estimate>) -> Option<Self> {
        let known = |name: &str| {
            let Estimate { ci95: [low, high], value, .. } = per_mille.get(name)?;
            Some([value.real()?, low.real()?, high.real()?])
        };
        let last = known("LLC")?;
        Some(Self { first: known("L1").unwrap_or(last), last })
    }

    /// The grade so many standard deviations from the value.
    fn at(&self, z: f64) -> Grade {
        let drawn = |[value, low, high]: [f64; 3]| {
            let deviation = if z < 0.0 { value - low } else { high - value };
            (value + z * deviation.max(0.0) / Z).max(0.0)
        };
        grade(drawn(self.first), drawn(self.last))
    }

    /// From the lower to the upper end of the interval.
    fn range(&self) -> (Grade, Grade) {
        (self.at(-Z), self.at(Z))
    }

    /// The grade, and whether it is only probable.
    fn grade(&self) -> (Grade, bool) {
        let (best, worst) = self.range();
        if best == worst {
            return (best, false);
        }
        let steps = (FARTHEST / STEP) as i32;
        let mut weights = [(Grade::Good, 0.0), (Grade::Fair, 0.0), (Grade::Poor, 0.0)];
        for z in (-steps..=steps).map(|step| f64::from(step) * STEP) {
            let of = self.at(z);
            for (grade, weight) in &mut weights {
                *weight += if *grade == of { (-z * z / 2.0).exp() } else { 0.0 };
            }
        }
        let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
        let spans_all = best == Grade::Good && worst == Grade::Poor;
        let likely = weights.iter().find(|(grade, weight)| {
            let is_opposed = spans_all && *grade != Grade::Fair;
            *weight >= MOST * total && !is_opposed
        });
        likely.map_or((Grade::Unsure, false), |(grade, _)| (*grade, true))
    }
}

/// The grade of misses of the first and the last cache, of a thousand touches.
fn grade(first: f64, last: f64) -> Grade {
    match last {
        _ if last > POOR_ABOVE_LAST => Grade::Poor,
        _ if last < GOOD_BELOW_LAST && first < GOOD_BELOW_FIRST => Grade::Good,
        _ => Grade::Fair,
    }
}

/// What a grade is called.
pub fn name(grade: Grade) -> &'static str {
    match grade {
        Grade::Good => "good",
        Grade::Fair => "fair",
        Grade::Poor => "poor",
        Grade::Unsure => "unsure",
    }
}

/// "127 [2–265]": a number of accesses with its interval.
fn counted(of: &Estimate) -> String {
    let digits =
        |value: f64| if value > 0.0 && value < 9.5 { format!("{value:.1}") } else { format!("{value:.0}") };
    let [value, low, high] = [of.value, of.ci95[0], of.ci95[1]].map(|n| digits(n.real().unwrap_or(0.0)));
    format!("{value} [{low}–{high}]")
}

fn sentence(
    grade: Grade,
    probably: bool,
    per_mille: &BTreeMap<String, Estimate>,
    (best, worst): (Grade, Grade),
) -> String {
    let misses = |name: &str| per_mille.get(name).map(counted);
    let mut parts: Vec<String> = misses("LLC").map(|n| format!("{n} go to memory")).into_iter().collect();
    if let Some(first) = misses("L1").filter(|_| per_mille.get("L1") != per_mille.get("LLC")) {
        parts.push(format!("{first} miss the first cache"));
    }
    let of = format!("of 1,000 line touches {}", parts.join(" and "));
    match grade {
        Grade::Unsure => format!(
            "The locality is not certain, from {} to {}: {of}; a longer trace narrows the intervals.",
            name(best),
            name(worst)
        ),
        _ if probably => format!("The locality is probably {}: {of}.", name(grade)),
        _ => format!("The locality is {}: {of}.", name(grade)),
    }
}

#[cfg(test)]
mod tests {
    use locality_model::testing::{demo, loops};

    use super::*;

    fn verdict_on(first: [f64; 3], last: [f64; 3]) -> Verdict {
        let estimate = |[value, low, high]: [f64; 3]| Estimate {
            ci95: [low.into(), high.into()],
            n: 40,
            value: value.into(),
        };
        of([("L1".to_owned(), estimate(first)), ("LLC".to_owned(), estimate(last))].into()).unwrap()
    }

    #[test]
    fn a_grade_whose_interval_lies_within_it_is_certain() {
        let graded = |first, last| {
            let Verdict { grade, probably, .. } = verdict_on(first, last);
            (grade, probably)
        };
        assert_eq!(graded([17.0, 9.0, 25.0], [0.0, 0.0, 3.0]), (Grade::Good, false));
        assert_eq!(graded([279.0, 160.0, 414.0], [127.0, 21.0, 265.0]), (Grade::Poor, false));
        assert_eq!(graded([60.0, 51.0, 70.0], [0.0, 0.0, 3.0]), (Grade::Fair, false));
        assert_eq!(graded([60.0, 51.0, 70.0], [10.0, 5.0, 15.0]), (Grade::Fair, false));
        // Each threshold belongs to the grade in the middle.
        assert_eq!(graded([50.0; 3], [0.0; 3]), (Grade::Fair, false));
        assert_eq!(graded([1.0; 3], [4.0; 3]), (Grade::Fair, false));
        assert_eq!(graded([30.0; 3], [20.0; 3]), (Grade::Fair, false));
        assert_eq!(graded([30.0; 3], [20.1; 3]), (Grade::Poor, false));
    }

    #[test]
    fn four_fifths_of_the_draws_make_a_grade_probable_and_fewer_make_none() {
        // The lower half lies at zero, and the upper one passes the threshold at 1.96 · 4 / high.
        let good_to_fair = |high: f64| verdict_on([10.0; 3], [0.0, 0.0, high]);
        assert_eq!((good_to_fair(9.0).grade, good_to_fair(9.0).probably), (Grade::Good, true));
        assert_eq!(good_to_fair(12.0).grade, Grade::Unsure);
        // The threshold lies 0.84 deviations from the value where a fifth of the draws passes it.
        let fair_to_poor = |value: f64| verdict_on([90.0; 3], [value, value - 10.0, value + 10.0]);
        assert_eq!((fair_to_poor(15.5).grade, fair_to_poor(15.5).probably), (Grade::Fair, true));
        assert_eq!(fair_to_poor(16.0).grade, Grade::Unsure);
        assert_eq!((fair_to_poor(24.5).grade, fair_to_poor(24.5).probably), (Grade::Poor, true));
        assert_eq!(fair_to_poor(24.0).grade, Grade::Unsure);
    }

    #[test]
    fn no_grade_is_probable_whose_opposite_the_interval_reaches() {
        let spans = verdict_on([30.0, 10.0, 49.0], [127.0, 3.0, 265.0]);
        assert_eq!(
            (spans.grade, spans.probably, range(&spans)),
            (Grade::Unsure, false, Some((Grade::Good, Grade::Poor)))
        );
        assert!(spans.sentence.contains("from good to poor"), "{}", spans.sentence);
        // As many misses of the first cache make the best grade a fair one.
        let near = verdict_on([279.0, 160.0, 414.0], [127.0, 3.0, 265.0]);
        assert_eq!((near.grade, near.probably), (Grade::Poor, true));
        assert_eq!(
            near.sentence,
            "The locality is probably poor: of 1,000 line touches 127 [3.0–265] go to memory and 279 [160–414] miss the first cache."
        );
    }

    #[test]
    fn verdicts_need_miss_ratios_and_name_the_caches_of_the_machine() {
        let of_profile = |profile: &Profile| verdict(profile, &Findings::of(profile));
        assert!(of_profile(&demo()).is_none());
        assert!(of_profile(&Profile::default()).is_none());
        let mut profile = loops::windowed();
        let names = |verdict: &Verdict| verdict.per_mille.keys().cloned().collect::<Vec<_>>();
        let two = of_profile(&profile).unwrap();
        assert_eq!(names(&two), ["L1", "L2", "LLC"]);
        assert_eq!(two.per_mille["L2"], two.per_mille["LLC"]);
        let first = &two.per_mille["L1"];
        let findings = Findings::of(&profile);
        let ratio = findings.reuse(64).unwrap().at(32 << 10).unwrap().ratio;
        assert_eq!(first.value.real(), Some(ratio.value * 1000.0));
        assert_eq!(first.ci95[1].real(), Some(ratio.high * 1000.0));
        profile.run.host.caches.truncate(1);
        assert_eq!(names(&of_profile(&profile).unwrap()), ["L1", "LLC"]);
    }

    #[test]
    fn damaged_numbers_make_no_verdict() {
        assert!(of(BTreeMap::new()).is_none());
        assert!(of([("LLC".to_owned(), Estimate::default())].into()).is_none());
    }
}
