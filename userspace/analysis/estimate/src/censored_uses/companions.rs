//! Companions without a register: the observation of another line's companion, at the same line of code.
//!
//! The use's own word is watched always, the word after the access, the word before and a drawn one
//! only with registers that are free at that moment. Without its companion, a line of a walk by
//! columns seems to come back with its own word, one round of the matrix later. Whether a register
//! is free depends on earlier uses, not on this one. So companions are missing at random, and a
//! line of the same line of code, whose companion was watched, can give its observation: hot-deck
//! imputation (Andridge & Little 2010, International Statistical Review 78, section 3.2, donors
//! near by a measure of distance).
//!
//! The measure is the end of the own word's watch, since words of a line depend on each other: words
//! of a sweep end together, and idle lines are idle as a whole. A line whose own word was given up
//! has donors whose own words lasted as long. Of the [`NEAREST`] donors uses take turns. A companion
//! that ended together with its donor's own word shows nothing new; any other companion counts as
//! touched when the donor's was, if later than this line's window reaches.
//!
//! A line that rests on a donor is drawn with the donor's sample (`Subject::rests_on`), and counts
//! with it as one observation: few donors make wide intervals.
//!
//! Sources of error: companions that were not wanted, since their word was touched before the use in
//! the window, look like companions without a register; the two companions of a line can come from
//! two donors, and from any caller of the line of code.

use std::collections::BTreeMap;

use locality_model::{FrameId, Profile};

use super::parts::{End, Line, Part, TOGETHER};
use super::{Exit, Followed, Subject, earlier};
use crate::calling_context::Contexts;

/// Donors at a line of code below which nothing is taken from them.
const FEWEST: usize = 3;
/// Donors that take turns.
const NEAREST: usize = 5;
/// Donors that are looked at on each side, of which most fit.
const SCAN: usize = 64;

/// Which companion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// The word after the access.
    After,
    /// The word before the access.
    Before,
    /// A word drawn among the others.
    Drawn,
}

const PLACES: [Place; 3] = [Place::After, Place::Before, Place::Drawn];

/// What a watched companion showed.
#[derive(Debug, Clone, Copy)]
struct Donor {
    /// Index of the subject.
    subject: usize,
    /// Its sample.
    sample: u32,
    /// The end of the own word's watch.
    own: Exit,
    /// The companion's word, counted from the first word of the access.
    offset: i64,
    /// The companion's end.
    end: End,
    /// From the use to the end of the companion's watch, in nanoseconds.
    watched_ns: u64,
}

/// Adds missing companions to lines, and ends a line's subject at an added companion's touch that
/// comes first.
pub(super) fn complete(
    profile: &Profile,
    contexts: &Contexts,
    parts: &mut [(usize, Part)],
    subjects: &mut [Subject],
) {
    let began = |row: u32| {
        let watch = profile.watches.get(row as usize);
        watch.map_or(0, |watch| watch.use_touch.map_or(watch.armed_ns, |touch| touch.time_ns))
    };
    let frame = |subject: &Subject| contexts.frames(subject.context).first().copied();
    let mut donors: BTreeMap<(Option<FrameId>, Place), Vec<Donor>> = BTreeMap::new();
    for (index, part) in parts.iter() {
        let Some(subject) = subjects.get(*index) else { continue };
        let Some(own) = part.own() else { continue };
        for ((word, _), end) in part.line.watched.iter().zip(&part.ends) {
            if let Some(place) = place(&part.line, *word) {
                let offset = word.wrapping_sub(*part.line.access.start()).cast_signed();
                let watched_ns = end.0.ended_ns.saturating_sub(began(end.2));
                let donor = Donor {
                    subject: *index,
                    sample: subject.sample,
                    own: own.exit,
                    offset,
                    end: *end,
                    watched_ns,
                };
                donors.entry((frame(subject), place)).or_default().push(donor);
            }
        }
    }
    donors.values_mut().for_each(|donors| donors.sort_by_key(|donor| (donor.own.at, donor.subject)));
    for (turn, (index, part)) in parts.iter_mut().enumerate() {
        let Some(subject) = subjects.get_mut(*index) else { continue };
        let Some(own) = part.own() else { continue };
        let from_ns = subject.watch.map_or(0, began);
        let watched: Vec<Option<Place>> =
            part.line.watched.iter().map(|(word, _)| place(&part.line, *word)).collect();
        let mut rests_on = None;
        for wanted in PLACES.into_iter().filter(|wanted| !watched.contains(&Some(*wanted))) {
            let donors = donors.get(&(frame(subject), wanted)).map_or(&[][..], Vec::as_slice);
            let recipient = (*index, turn);
            let Some((word, donor)) = choose(&part.line, wanted, own.exit, recipient, donors) else {
                continue;
            };
            let (next, context, row) = given(donor, own, part.line.open, from_ns);
            part.line.watched.push((word, next.exit));
            part.ends.push((next, context, row));
            let (first, is_companion) = match subject.followed {
                Some(so_far) if next.exit.reused => earlier(Some(so_far), next),
                so_far => (so_far.unwrap_or(next), false),
            };
            subject.followed = Some(first);
            if is_companion {
                (subject.reuse_context, subject.watch) = (context, Some(row));
                rests_on = Some(donor.sample);
            } else if wanted != Place::Drawn {
                // The companion's silence is the donor's, too.
                rests_on = rests_on.or(Some(donor.sample));
            }
        }
        subject.rests_on = rests_on.unwrap_or(subject.rests_on);
    }
}

/// Which companion a watched word is; `None` for a word of the access.
fn place(line: &Line, word: u64) -> Option<Place> {
    let (first, last) = (*line.access.start(), *line.access.end());
    match word {
        word if line.access.contains(&word) => None,
        word if word == last.wrapping_add(1) => Some(Place::After),
        word if word.wrapping_add(1) == first => Some(Place::Before),
        _ => Some(Place::Drawn),
    }
}

/// One of the donors that are nearest by the own word's end, and the word of this line that it stands
/// for. `None` where donors are few, or where the line has no such word. `donors` ascend by that end. The
/// recipient has the index of its subject, and a number by which lines take turns.
fn choose<'a>(
    line: &Line,
    wanted: Place,
    own: Exit,
    (subject, turn): (usize, usize),
    donors: &'a [Donor],
) -> Option<(u64, &'a Donor)> {
    let first = *line.access.start();
    let fits = |donor: &'a Donor| {
        let word = first.checked_add_signed(donor.offset)?;
        let is_there = line.has(word) && place(line, word) == Some(wanted);
        // A companion that ended within the reach of this line's window says nothing of the time after.
        let is_later = donor.end.0.exit.at > line.open;
        (donor.subject != subject && is_there && is_later).then_some((word, donor))
    };
    let lasted = donors.partition_point(|donor| donor.own.at < own.at);
    let shorter = if own.reused { lasted } else { 0 };
    let mut before = donors.iter().take(shorter).rev().take(SCAN).filter_map(fits).peekable();
    let mut after = donors.iter().skip(lasted).take(SCAN).filter_map(fits).peekable();
    let away = |donor: &Donor| (donor.own.at.max(1) as f64 / own.at.max(1) as f64).ln().abs();
    let nearer = || -> Option<(u64, &Donor)> {
        let is_before = match (before.peek(), after.peek()) {
            (Some((_, before)), Some((_, after))) => away(before) < away(after),
            (before, _) => before.is_some(),
        };
        if is_before { before.next() } else { after.next() }
    };
    let near: Vec<(u64, &Donor)> = std::iter::from_fn(nearer).take(NEAREST).collect();
    if near.len() < FEWEST { None } else { near.get(turn % near.len()).copied() }
}

/// The donor's observation as one of a line whose own word ended as given, used at `from_ns`, and open up
/// to `open` accesses.
fn given(donor: &Donor, own: Followed, open: u64, from_ns: u64) -> End {
    let (end, context, row) = donor.end;
    let (at, own_at) = (end.exit.at as f64, donor.own.at.max(1) as f64);
    let is_together = end.exit.reused && donor.own.reused && (at / own_at).ln().abs() < TOGETHER.ln_1p();
    // Nothing is known beyond the end of the own word's watch.
    let is_beyond = !own.exit.reused && end.exit.at > own.exit.at;
    if is_together || is_beyond || !end.exit.reused {
        let exit = if is_together { own.exit } else { Exit { reused: false, ..end.exit } };
        return (Followed { exit, within: None, measured: None, counted: false, ..own }, None, row);
    }
    let within = end.within.map(|(_, longest)| (open, longest));
    let ended_ns = from_ns.saturating_add(donor.watched_ns).min(own.ended_ns.max(from_ns));
    let next = Followed {
        exit: end.exit,
        within,
        measured: end.measured,
        counted: false,
        p_survive: end.p_survive,
        ended_ns,
        ..own
    };
    (next, context, row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::RangeInclusive;

    use locality_model::testing::Maker;

    fn touch(at: u64) -> Exit {
        Exit { at, reused: true }
    }

    fn given_up(at: u64) -> Exit {
        Exit { at, reused: false }
    }

    /// A line: the use's line of code (0 or 1), the access's words, the ends of the own word and of
    /// watched companions.
    type Watched = (usize, RangeInclusive<u64>, Exit, Vec<(u64, Exit)>);

    /// The lines after [`complete`].
    fn completed(lines: &[Watched]) -> Vec<Subject> {
        let mut make = Maker::new();
        let stacks = ["f a.c:1", "f a.c:2", "g a.c:9"].map(|stack| make.stack(stack));
        let contexts = Contexts::new(&make.profile);
        let context = |stack: usize| contexts.of(stacks[stack]).unwrap();
        let followed = |exit: Exit| Followed {
            exit,
            within: None,
            measured: None,
            counted: false,
            part: true,
            p_choice: 1.0,
            p_arm: 1.0,
            p_survive: 1.0,
            ended_ns: 0,
            to_the_end: false,
        };
        let (mut parts, mut subjects) = (Vec::new(), Vec::new());
        for (code, access, own, companions) in lines {
            let watched: Vec<(u64, Exit)> =
                [(*access.end(), *own)].into_iter().chain(companions.iter().copied()).collect();
            let so_far = watched.iter().map(|(_, exit)| followed(*exit));
            subjects.push(Subject {
                sample: subjects.len() as u32,
                rests_on: subjects.len() as u32,
                used: None,
                watch: Some(0),
                time_ns: 0,
                context: context(*code),
                reuse_context: None,
                weight: 1.0,
                shown: given_up(10),
                followed: so_far.fold(None, |before, next| Some(earlier(before, next).0)),
            });
            let ends = watched
                .iter()
                .map(|(_, exit)| (followed(*exit), exit.reused.then(|| context(2)), subjects.len() as u32));
            let part = Part {
                ends: ends.collect(),
                line: Line {
                    access: access.clone(),
                    observed: watched.len(),
                    watched,
                    open: 10,
                    resolution: 0.0,
                },
            };
            parts.push((subjects.len() - 1, part));
        }
        complete(&make.profile, &contexts, &mut parts, &mut subjects);
        subjects
    }

    /// The ends of the lines.
    fn ends(lines: &[Watched]) -> Vec<Exit> {
        completed(lines).iter().map(|subject| subject.followed.unwrap().exit).collect()
    }

    /// Columns of two words each: a line comes back with the next pair, its last pair a round later.
    #[test]
    fn a_walk_comes_back_with_the_next_word_whether_or_not_a_register_was_free() {
        let (near, far) = (1_000, 1_000_000);
        let lines = (0..64).map(|number: u64| {
            let pair = number % 4 * 2;
            let is_watched = number.is_multiple_of(3) && pair < 6;
            let next = is_watched.then_some((pair + 2, touch(near)));
            (0, pair..=pair + 1, touch(far + number), next.into_iter().collect())
        });
        let lines: Vec<_> = lines.collect();
        for (number, subject) in (0..).zip(completed(&lines)) {
            let (_, access, own, next) = &lines[number];
            let end = subject.followed.unwrap().exit;
            assert_eq!(end, if *access.end() < 7 { touch(near) } else { *own }, "{access:?}");
            // Draws repeat the line and the one that it rests on.
            let rests_on = subject.rests_on as usize;
            let is_given = *access.end() < 7 && next.is_empty();
            assert!(if is_given { !lines[rests_on].3.is_empty() } else { rests_on == number });
        }
    }

    #[test]
    fn a_sweep_ends_where_its_own_word_ends() {
        let lines = (0..200).map(|number: u64| {
            let at = 1_000 + number * number * 100;
            (
                0,
                3..=3,
                touch(at),
                if number.is_multiple_of(2) { vec![(4, touch(at + 1))] } else { Vec::new() },
            )
        });
        let lines: Vec<_> = lines.collect();
        for ((_, _, own, _), end) in lines.iter().zip(ends(&lines)) {
            assert!(end.reused && end.at.abs_diff(own.at) <= 1, "{end:?} {own:?}");
        }
    }

    /// Touches of words that do not depend on each other, of busy and of idle lines: the share of
    /// lines that come back in time is what it would be with a register for each companion.
    #[test]
    fn independent_words_end_as_often_as_if_all_were_watched() {
        let mut random = fastrand::Rng::with_seed(11);
        let mut all = Vec::new();
        let lines = (0..6_000).map(|number: u64| {
            let every = if number.is_multiple_of(2) { 1_000.0 } else { 50_000.0 };
            let mut end = || touch(10 + (-every * (1.0 - random.f64()).ln()) as u64);
            let (own, next) = (end(), end());
            all.push(own.at.min(next.at));
            (0, 3..=3, own, if number % 5 < 2 { vec![(4, next)] } else { Vec::new() })
        });
        let lines: Vec<_> = lines.collect();
        let ends = ends(&lines);
        for within in [300, 1_000, 5_000, 30_000] {
            let share = |ends: &mut dyn Iterator<Item = u64>| {
                ends.filter(|at| *at < within).count() as f64 / lines.len() as f64
            };
            let truth = share(&mut all.iter().copied());
            let own = share(&mut lines.iter().map(|(_, _, own, _)| own.at));
            let found = share(&mut ends.iter().map(|end| end.at));
            assert!((found - truth).abs() < 0.025, "{within}: {found} of {truth} ({own})");
            assert!(truth - own > 0.04, "{within}: nothing to make up for");
        }
    }

    #[test]
    fn few_donors_other_code_and_the_unknown_give_nothing() {
        let near = vec![(4, touch(100))];
        let with = |code, own| (code, 3..=3, own, near.clone());
        let without = |own| (0, 3..=3, own, Vec::new());
        let last = |lines: Vec<_>| *ends(&lines).last().unwrap();
        let far = touch(90_000);
        assert_eq!(last(vec![with(0, far), with(0, far), without(far)]), far);
        assert_eq!(last(vec![with(1, far), with(1, far), with(1, far), without(far)]), far);
        assert_eq!(last(vec![with(0, far), with(0, far), with(0, far), without(far)]), touch(100));
        // Within the reach of the window nothing came back, whatever a shorter window left to the donors.
        let early = || (0, 3..=3, far, vec![(4, touch(5))]);
        assert_eq!(last(vec![early(), early(), early(), without(far)]), far);
        // Given up: lines whose own words came back earlier are busier ones.
        let busy = || (0, 3..=3, touch(60), vec![(4, touch(40))]);
        assert_eq!(last(vec![busy(), busy(), busy(), without(given_up(500))]), given_up(500));
        // Given up before the donors' companions came back: nothing is known of the time after.
        let three = || vec![with(0, far), with(0, far), with(0, far)];
        let ended = |own| last(three().into_iter().chain([without(own)]).collect());
        assert_eq!((ended(given_up(50)), ended(given_up(500))), (given_up(50), touch(100)));
    }
}
