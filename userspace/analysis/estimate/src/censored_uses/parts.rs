//! Lines watched in part: the time of the first touch, unwatched words included.
//!
//! Of a line the use's own word is watched, the neighbours, and a further word, drawn
//! at random. Touches of the own word and the neighbours are always observed. A visit
//! of u words touches the drawn word with chance u / 8, and misses every near watched
//! word with the chance for u of 8 words. If visits are independent, the first visit
//! missing the near words comes after the quotient of the first chance and the
//! second, times the drawn word's time, on average. The quotient holds for each line
//! and frequency of visits, hence for every mixture of busy and idle lines.
//!
//! Both chances are means over the first touches of lines in windows at the line of
//! code ([`locality_model::Load`]), restricted to visits that may miss the near words.
//!
//! Dependent touches are different: a sweep touches the words of a line within a small part of the
//! distance, and a walk by columns touches the words in turn at equal distances, the neighbour
//! first. Then no touch is hidden, and the first watched word's distance is the line's. Independent
//! touches look like a sweep or walk by chance: of two words of a line with equal frequency, the
//! second's time is below r times the first's with chance r / (1 + r), at every rate. Hence lines
//! used at one line of code and touched next by another are examined together. The share e of bound
//! lines (touched by a sweep or walk) follows from the number with the look and the number expected
//! by chance, c each. Among lines with the look, the part e / (e + (1 - e) c) hides no touch.
//!
//! Sources of error: only the number of bound lines is known, not the lines; walks by
//! every second word, with lines estimated too near, or by too few columns, with a
//! line's words far apart in the next round too; favourites among the unwatched words,
//! and words touched before the use in the window, never drawn; a drawn word given up
//! untouched, which is no evidence: distances beyond the next sample are the own word's.

use std::{collections::BTreeMap, ops::RangeInclusive};

use locality_model::{Burst, FrameId, Profile};

use super::{Exit, Followed, Subject};
use crate::calling_context::{ContextId, Contexts};

/// Words of a line.
const LINE: u64 = 8;
const WORDS: f64 = LINE as f64;
/// Share of the earlier distance within which two words' touches form a visit.
pub(super) const TOGETHER: f64 = 0.1;
/// Above this chance of looking like a sweep, as for times
/// near the clock's resolution, looks are no evidence.
const TELLING: f64 = 0.9;
/// Fewer first touches at a line of code say less of the line of code than the whole program's;
/// also the number of lines, per pair of lines of code, that the program's share counts for.
const FEWEST: usize = 3;

/// Words of a line touched by a visit, by the visit's first line of code.
pub(super) struct Visits {
    at: BTreeMap<FrameId, Vec<f64>>,
    all: Vec<f64>,
}

/// Observations of a line's words.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// Numbers of the words of the use's access in the line, the use's own one among them.
    pub access: RangeInclusive<u64>,
    /// The watched words' numbers and ends, in accesses: of this line, then of others in the place of
    /// companions without a register.
    pub watched: Vec<(u64, Exit)>,
    /// How many are of this line.
    pub observed: usize,
    /// Accesses after the use without a touch in the window.
    pub open: u64,
    /// How exactly ends are known, in accesses.
    pub resolution: f64,
}

impl Part {
    /// The observation of the use's own word.
    pub fn own(&self) -> Option<Followed> {
        let own = self.line.watched.iter().position(|(word, _)| self.line.access.contains(word))?;
        self.ends.get(own).map(|(own, ..)| *own)
    }
}

impl Line {
    /// Whether a word is of this line.
    pub fn has(&self, word: u64) -> bool {
        word / LINE == self.access.start() / LINE
    }

    /// Whether a word is of the access, or the next or the previous one.
    pub fn is_near(&self, word: u64) -> bool {
        let (first, last) = (*self.access.start(), *self.access.end());
        (first.saturating_sub(1)..=last.saturating_add(1)).contains(&word)
    }

    /// Steps as wide as the access that bring a walk to a word outside of the access.
    fn steps_to(&self, word: u64) -> u64 {
        let (first, last) = (*self.access.start(), *self.access.end());
        let width = last.saturating_sub(first).saturating_add(1);
        let distance = if word > last { word - first } else { last.saturating_sub(word) };
        (distance / width).max(1)
    }
}

/// A watched word's end: the watch's observation, the context of the reuse, the watch's row.
pub(super) type End = (Followed, Option<ContextId>, u32);

/// A line watched in part.
pub(super) struct Part {
    /// Observations.
    pub line: Line,
    /// Of each watched word.
    pub ends: Vec<End>,
}

/// Evidence of a touched drawn word about unwatched words.
struct Look {
    /// Distance to the first touch of an unwatched word.
    at: u64,
    /// Index of the watched word.
    drawn: usize,
    /// The touch looks like a sweep's or a walk's.
    is_bound: bool,
    /// Frequency of the look with independent touches.
    by_chance: f64,
    /// The drawn word of this line was watched, not of another line in its place.
    is_own: bool,
}

/// Number of lines that look touched by a sweep or a walk.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    lines: f64,
    bound: f64,
    by_chance: f64,
}

impl Tally {
    /// A look that another line has, too, counts there.
    fn of(look: &Look) -> Self {
        if !look.is_own {
            return Self::default();
        }
        Self { lines: 1.0, bound: f64::from(u8::from(look.is_bound)), by_chance: look.by_chance }
    }

    fn add(&mut self, other: Self) {
        self.lines += other.lines;
        self.bound += other.bound;
        self.by_chance += other.by_chance;
    }

    fn without(self, other: Self) -> Self {
        Self {
            lines: self.lines - other.lines,
            bound: self.bound - other.bound,
            by_chance: self.by_chance - other.by_chance,
        }
    }

    /// The share of bound lines, if `before` is believed of as many as [`FEWEST`].
    fn share(&self, before: f64) -> f64 {
        let prior = FEWEST as f64;
        let share = (self.bound - self.by_chance + before * prior) / (self.lines - self.by_chance + prior);
        share.clamp(0.0, 1.0)
    }
}

/// Ends lines sooner if unwatched words were touched before
/// the watched words; each part has the index of the subject.
pub(super) fn reveal(
    profile: &Profile,
    contexts: &Contexts,
    parts: &[(usize, Part)],
    subjects: &mut [Subject],
) {
    let visits = Visits::of(profile, contexts);
    let innermost = |context| contexts.frames(context).first().copied();
    let looks = parts.iter().filter_map(|(subject, part)| {
        let frame = |watched: usize| part.ends.get(watched)?.1.and_then(innermost);
        let look = visits.look(&part.line, frame)?;
        let end = part.ends.get(look.drawn)?;
        let pair = (innermost(subjects.get(*subject)?.context), end.1.and_then(innermost));
        Some((*subject, end, pair, look))
    });
    let looks: Vec<_> = looks.collect();
    let hides = hide(looks.iter().map(|(.., at, look)| (*at, look)));
    for ((subject, (followed, context, row), _, look), hides) in looks.iter().zip(hides) {
        let Some(subject) = subjects.get_mut(*subject) else { continue };
        let is_sooner = subject.followed.is_none_or(|so_far| !so_far.exit.reused || look.at < so_far.exit.at);
        if hides && is_sooner {
            // The distance was not measured by the clock.
            let exit = Exit { at: look.at, reused: true };
            subject.followed =
                Some(Followed { exit, within: None, measured: None, counted: false, ..*followed });
            (subject.reuse_context, subject.watch) = (*context, Some(*row));
            subject.rests_on =
                profile.watches.get(*row as usize).map_or(subject.rests_on, |watch| watch.sample.0);
        }
    }
}

/// Lines of code of a use and of the drawn word's touch.
type Pair = (Option<FrameId>, Option<FrameId>);

/// Lines with hidden touches, each with the lines of code of the use and of the drawn word's touch.
fn hide<'a>(looks: impl Iterator<Item = (Pair, &'a Look)> + Clone) -> Vec<bool> {
    let (mut all, mut at) = (Tally::default(), BTreeMap::<_, Tally>::new());
    for (frame, look) in looks.clone() {
        all.add(Tally::of(look));
        at.entry(frame).or_default().add(Tally::of(look));
    }
    let mut bound = 0.0;
    let is_hidden = looks.map(|(frame, look)| {
        if !look.is_bound {
            return true;
        }
        // By the remaining words: the line at hand has the look.
        let others = |of: Tally| of.without(Tally::of(look));
        let share = others(at.get(&frame).copied().unwrap_or_default()).share(others(all).share(0.0));
        // Expected number of bound lines, as a running sum.
        bound += share / (share + (1.0 - share) * look.by_chance).max(f64::MIN_POSITIVE);
        let hides = bound < 0.5;
        bound -= f64::from(u8::from(!hides));
        hides
    });
    is_hidden.collect()
}

impl Visits {
    fn of(profile: &Profile, contexts: &Contexts) -> Self {
        let mut visits = Self { at: BTreeMap::new(), all: Vec::new() };
        for load in &profile.loads {
            let words = Burst::words(load.bursts.iter().fold(0, |bytes, burst| bytes | burst.bytes));
            if words == 0.0 {
                continue;
            }
            let context = contexts.of(load.stack);
            if let Some(frame) = context.and_then(|context| contexts.frames(context).first()) {
                visits.at.entry(*frame).or_default().push(words);
            }
            visits.all.push(words);
        }
        visits
    }

    /// Chance of a visit to touch a given word, over the chance to miss the
    /// `near` words, 1 at most; for visits that may miss the near words.
    fn share(&self, frame: Option<FrameId>, near: usize) -> f64 {
        let own = frame.and_then(|frame| self.at.get(&frame)).filter(|visits| visits.len() >= FEWEST);
        let (mut touched, mut missed) = (0.0, 0.0);
        for words in own.unwrap_or(&self.all) {
            let all_are_missed: f64 =
                (0..near).map(|k| (WORDS - words - k as f64).max(0.0) / (WORDS - k as f64)).product();
            if all_are_missed > 0.0 {
                (touched, missed) = (touched + words / WORDS, missed + all_are_missed);
            }
        }
        if touched < missed { touched / missed } else { 1.0 }
    }

    /// Evidence of the drawn word; `None` without a touch, or if too near for a sweep to be
    /// distinguished ([`TELLING`]). `frame` gives the line of code ending a watched word.
    fn look(&self, line: &Line, frame: impl Fn(usize) -> Option<FrameId>) -> Option<Look> {
        let drawn = line.watched.iter().position(|(word, exit)| !line.is_near(*word) && exit.reused)?;
        let (word, Exit { at, .. }) = *line.watched.get(drawn)?;
        let near: Vec<(u64, Exit)> =
            line.watched.iter().filter(|(word, _)| line.is_near(*word)).copied().collect();
        let behind = at.saturating_sub(line.open) as f64;
        let first = line.open as f64 + behind * self.share(frame(drawn), near.len());
        let is_above = |word: u64| word > *line.access.end();
        let is_on_the_way = |near: u64| !line.access.contains(&near) && is_above(near) == is_above(word);
        let mut is_bound = false;
        let mut together = Vec::new();
        for (number, exit) in near {
            // A watch given up at about the time may have
            // been touched together with the drawn word.
            let sweep = about(at as f64, line.resolution);
            let walk = about(at as f64 / line.steps_to(word) as f64, line.resolution);
            let walk = Some(walk).filter(|_| is_on_the_way(number));
            let looks_so = |around: &(f64, f64)| (around.0..=around.1).contains(&(exit.at as f64));
            is_bound |= looks_so(&sweep) || (exit.reused && walk.as_ref().is_some_and(looks_so));
            together.push(Together { sweep, walk });
        }
        let by_chance = by_chance(&together, line.open as f64, behind);
        let at = (first.round() as u64).max(line.open.saturating_add(1));
        let is_own = drawn < line.observed;
        (by_chance <= TELLING).then_some(Look { at, drawn, is_bound, by_chance, is_own })
    }
}

/// When a near word is touched by the sweep or, before that, by the walk that touches the drawn
/// one: first and last, counted from the use.
struct Together {
    sweep: (f64, f64),
    walk: Option<(f64, f64)>,
}

/// Chance of a touch of a near word by then, if the words are touched independently
/// and equally often, and the drawn word `behind` accesses after `open`.
fn by_chance(near: &[Together], open: f64, behind: f64) -> f64 {
    // The rate follows from a single touch: rate × time
    // is exponential, here in a number of quantiles.
    const RATES: u32 = 16;
    let missed = |place: u32| -> f64 {
        let rate = -((f64::from(place) + 0.5) / f64::from(RATES)).ln() / behind.max(1.0);
        let touched = |from: f64, to: f64| {
            let until = |edge: f64| (-rate * (edge - open).max(0.0)).exp();
            (until(from) - until(to)).max(0.0)
        };
        let missed = |&Together { sweep, walk }: &Together| {
            1.0 - touched(sweep.0, sweep.1) - walk.map_or(0.0, |walk| touched(walk.0, walk.1.min(sweep.0)))
        };
        near.iter().map(missed).product()
    };
    1.0 - (0..RATES).map(missed).sum::<f64>() / f64::from(RATES)
}

/// Possible times of a visit's second touch, besides a touch at `at`.
fn about(at: f64, resolution: f64) -> (f64, f64) {
    ((at - resolution) / (1.0 + TOGETHER), at * (1.0 + TOGETHER) + resolution)
}

#[cfg(test)]
mod tests {
    use super::*;
    use locality_model::testing::Maker;
    use locality_model::{Access, Load, SampleId};

    fn touch(at: u64) -> Exit {
        Exit { at, reused: true }
    }

    fn visits(words: f64) -> Visits {
        Visits { at: BTreeMap::new(), all: vec![words] }
    }

    /// The drawn word's look, with five others.
    fn look(visits: &Visits, watched: &[(u64, Exit)], resolution: f64) -> Option<Look> {
        let line = Line {
            access: 3..=3,
            observed: watched.len(),
            watched: watched.to_vec(),
            open: 1_000,
            resolution,
        };
        visits.look(&line, |_| None)
    }

    fn line(own: u64, drawn: u64) -> [(u64, Exit); 4] {
        [(3, touch(own)), (4, touch(90_000)), (2, touch(80_000)), (7, touch(drawn))]
    }

    #[test]
    fn the_drawn_word_tells_of_the_others() {
        let one = visits(1.0);
        let at = |visits: &Visits, watched: &[(u64, Exit)]| {
            let look = look(visits, watched, 0.0)?;
            Some((look.at, look.drawn))
        };
        assert_eq!(at(&one, &line(50_000, 11_000)), Some((3_000, 3)));
        assert_eq!(at(&one, &line(10_000, 51_000)), Some((11_000, 3)));
        // What comes touches two words; or all, so that it cannot miss the own one.
        assert_eq!(at(&visits(2.0), &line(50_000, 11_000)), Some((8_000, 3)));
        assert_eq!(at(&visits(8.0), &line(50_000, 11_000)), Some((11_000, 3)));
        // The window shows the line untouched so far; right behind it all is as good as one.
        assert_eq!(at(&one, &[(3, touch(50_000)), (7, touch(1_900))]), Some((1_129, 1)));
        assert_eq!(at(&one, &line(50_000, 1_002)), None);
        // Given up untouched: the drawn one; the own one long before it, when the other was not
        // touched either.
        let given_up = |at| Exit { at, reused: false };
        assert_eq!(at(&one, &[(3, touch(5_000)), (7, given_up(9_000))]), None);
        assert_eq!(at(&one, &[(3, given_up(2_000)), (7, touch(8_000))]), Some((2_000, 1)));
    }

    #[test]
    fn sweeps_and_walks_look_so() {
        let one = visits(1.0);
        let is_bound =
            |watched: &[(u64, Exit)], resolution| look(&one, watched, resolution).unwrap().is_bound;
        // With the own word, or with a neighbour; a trap's cost apart; the fourth word of a walk.
        assert!(is_bound(&line(10_000, 10_900), 0.0));
        assert!(is_bound(&line(10_900, 10_000), 0.0));
        assert!(is_bound(&line(90_000, 75_000), 0.0));
        assert!(is_bound(&line(30_000, 22_000), 6_000.0) && !is_bound(&line(30_000, 22_000), 0.0));
        assert!(is_bound(&line(500_000, 340_000), 0.0));
        assert!(!is_bound(&line(50_000, 11_000), 0.0));
        assert!(!is_bound(&line(500_000, 240_000), 0.0));
        // Given up untouched at about that time.
        let given_up = Exit { at: 8_500, reused: false };
        assert!(is_bound(&[(3, given_up), (7, touch(8_000))], 0.0));
    }

    /// Against draws of words that are touched equally often, however often that is.
    #[test]
    fn what_looks_like_a_sweep_by_chance() {
        for (near, resolution, open) in
            [(&[3][..], 0.0, 0.0), (&[2, 3, 4], 0.0, 0.0), (&[2, 3, 4], 50_000.0, 20_000.0)]
        {
            let drawn = 100_000.0;
            let line = |ends: &[f64]| {
                let near = near.iter().zip(ends).map(|(word, at)| (*word, touch(*at as u64)));
                let watched = near.chain([(7, touch(drawn as u64))]).collect();
                let line = Line { access: 3..=3, observed: 4, watched, open: open as u64, resolution };
                visits(1.0).look(&line, |_| None).unwrap()
            };
            let mut random = fastrand::Rng::with_seed(5);
            let n = 20_000;
            let looks_so = (0..n).filter(|_| {
                let rate = -random.f64().ln() / (drawn - open);
                let ends: Vec<f64> = near.iter().map(|_| open - random.f64().ln() / rate).collect();
                line(&ends).is_bound
            });
            let (seen, told) = (looks_so.count() as f64 / f64::from(n), line(&[1e9; 3]).by_chance);
            assert!((seen - told).abs() < 0.02, "{near:?} {resolution}: {told}, {seen} of draws");
        }
        // Close to the resolution everything does.
        let line = Line {
            access: 3..=3,
            observed: 4,
            watched: line(2_000, 2_500).to_vec(),
            open: 0,
            resolution: 50_000.0,
        };
        assert!(visits(1.0).look(&line, |_| None).is_none());
    }

    /// Of 1,000 lines at each of two lines of code the share that hides nothing: where touches are
    /// independent, and where `bound` of the lines of the second are bound to look like a sweep.
    #[test]
    fn what_looks_so_by_chance_hides_something() {
        for bound in [0.0, 0.5, 1.0] {
            let mut random = fastrand::Rng::with_seed(7);
            let mut looks = Vec::new();
            for number in 0..2_000 {
                let at = FrameId(number % 2);
                let is_swept = at.0 == 1 && random.f64() < bound;
                let is_bound = is_swept || random.f64() < 0.3;
                looks.push((at, is_swept, Look { at: 1, drawn: 0, is_bound, by_chance: 0.3, is_own: true }));
            }
            // Of one line of code that uses them, by what touched them next.
            let hides = hide(looks.iter().map(|(at, _, look)| ((None, Some(*at)), look)));
            let share = |at: u32, of: &dyn Fn(usize) -> bool| {
                let mine = (0..looks.len()).filter(|number| looks[*number].0 == FrameId(at));
                mine.filter(|number| of(*number)).count() as f64 / 1_000.0
            };
            for at in [0, 1] {
                let swept = share(at, &|number| looks[number].1);
                let told = share(at, &|number| !hides[number]);
                assert!((told - swept).abs() < 0.05, "{bound} {at}: {told} of {swept}");
            }
        }
        // Of many lines of code with a look or two each, of which a tenth is bound to look so.
        let mut random = fastrand::Rng::with_seed(8);
        let (mut swept, mut looks) = (0.0, Vec::new());
        for number in 0..1_000 {
            let is_swept = random.f64() < 0.1;
            swept += f64::from(u8::from(is_swept));
            let is_bound = is_swept || random.f64() < 0.3;
            looks.push((
                FrameId(number / 3 * 2),
                Look { at: 1, drawn: 0, is_bound, by_chance: 0.3, is_own: true },
            ));
        }
        let told = hide(looks.iter().map(|(at, look)| ((Some(*at), None), look)))
            .iter()
            .filter(|hides| !**hides)
            .count();
        assert!((told as f64 - swept).abs() < 50.0, "{told} of {swept}");
        // Few say what the program's are like.
        let look = |is_bound| Look { at: 1, drawn: 0, is_bound, by_chance: 0.3, is_own: true };
        let (one, other) = (look(true), look(false));
        let few = |common| {
            let at = |frame| (Some(FrameId(frame)), None);
            let looks = [(at(1), &one)].into_iter();
            hide(looks.chain((0..100).map(|_| (at(0), common)))).first().copied()
        };
        assert_eq!((few(&one), few(&other)), (Some(false), Some(true)));
    }

    #[test]
    fn words_are_those_that_windows_show_there() {
        let mut make = Maker::new();
        let stacks = ["wide a.c:1", "narrow a.c:2", "narrow a.c:2 < main b.c:1", "rare a.c:3"]
            .map(|stack| make.stack(stack));
        for (stack, bytes, times) in [(0, !0, 4), (1, 0xff00, 2), (2, 0xff_ff00, 2), (3, 0xff, 2), (1, 0, 1)]
        {
            for _ in 0..times {
                let first = Burst { from: 0, to: 0, touches: 1, bytes: bytes & 0xffff };
                let rest = Burst { from: 300, to: 310, touches: 1, bytes };
                make.profile.loads.push(Load {
                    sample: SampleId(0),
                    skip: 0,
                    gap: None,
                    access: Access { ip: 0, address: 0, size: 8, kind: Default::default() },
                    line: 0,
                    stack: stacks[stack],
                    stands_for: 1.0,
                    shown: 1000,
                    bursts: vec![first, rest],
                });
            }
        }
        let contexts = Contexts::new(&make.profile);
        let frame = |stack: usize| {
            let context = contexts.of(stacks[stack]).unwrap();
            contexts.frames(context).first().copied()
        };
        let visits = Visits::of(&make.profile, &contexts);
        // By whatever path; a row that was lost says nothing.
        assert_eq!(visits.share(frame(1), 3), visits.share(frame(2), 3));
        let [one, two] =
            [1.0, 2.0].map(|words| (words / 8.0, if words == 1.0 { 5.0 / 8.0 } else { 5.0 / 14.0 }));
        let is = |frame, ones: f64, twos: f64| {
            let share = (ones * one.0 + twos * two.0) / (ones * one.1 + twos * two.1);
            assert!((visits.share(frame, 3) - share).abs() < 1e-12, "{ones} {twos}: {share}");
        };
        is(frame(1), 2.0, 2.0);
        // Seldom seen, and unknown: the program's that can miss three words. All can miss none.
        is(frame(3), 4.0, 2.0);
        is(None, 4.0, 2.0);
        assert_eq!((visits.share(frame(0), 3), visits.share(frame(1), 0)), (1.0, 1.5 / 8.0));
    }

    /// Of 20,000 lines, visited every 1,000 accesses on average (or a third of them twenty times
    /// more rarely, a third never), of each `words` words from a random one on, or from the use's
    /// own one, `favourite` of the time: the shares that are touched first within 300 and within
    /// 3,000 accesses in truth, as told, and as watched.
    fn shares(words: u64, favourite: f64, alike: bool) -> [[f64; 3]; 2] {
        let mut random = fastrand::Rng::with_seed(3);
        let mut shares = [[0.0; 3]; 2];
        let visits = visits(words as f64);
        let (n, mut seen, mut looks) = (20_000, Vec::new(), Vec::new());
        for sample in 0..n {
            let every = match sample % 3 {
                _ if alike => 1_000.0,
                0 => 1_000.0,
                1 => 20_000.0,
                _ => f64::INFINITY,
            };
            let own = random.u64(0..8);
            let mut watched: Vec<u64> = (0..8_u64).filter(|word| word.abs_diff(own) <= 1).collect();
            let others: Vec<u64> = (0..8_u64).filter(|word| word.abs_diff(own) > 1).collect();
            watched.push(others[random.usize(..others.len())]);
            let mut touched = [None; 8];
            let (mut now, mut first) = (0.0, None);
            while every.is_finite() && watched.iter().any(|word| touched[*word as usize].is_none()) {
                now -= every * (1.0 - random.f64()).ln();
                let from = if random.f64() < favourite { own } else { random.u64(0..8) };
                first.get_or_insert(now);
                for word in from..from + words {
                    touched[word as usize % 8].get_or_insert(now as u64);
                }
            }
            let end = |word: &u64| touched[*word as usize].map_or(Exit { at: 1 << 40, reused: false }, touch);
            let ends: Vec<(u64, Exit)> = watched.iter().map(|word| (*word, end(word))).collect();
            seen.push((first, ends.iter().map(|(_, exit)| exit.at).min().unwrap()));
            let line =
                Line { access: own..=own, observed: ends.len(), watched: ends, open: 0, resolution: 0.0 };
            looks.push(visits.look(&line, |_| None));
        }
        let mut hides = hide(looks.iter().flatten().map(|look| ((None, None), look))).into_iter();
        for ((first, seen), look) in seen.into_iter().zip(looks) {
            let hidden = look.filter(|_| hides.next().unwrap());
            let told = hidden.map_or(seen, |look| look.at.min(seen));
            for (within, shares) in [300, 3_000].into_iter().zip(&mut shares) {
                let is_within =
                    [first.is_some_and(|first| first < within as f64), told < within, seen < within];
                shares
                    .iter_mut()
                    .zip(is_within)
                    .for_each(|(share, is)| *share += f64::from(u8::from(is)) / f64::from(n));
            }
        }
        shares
    }

    #[test]
    fn first_touches_by_words_that_nobody_watched_are_made_up_for() {
        for (words, favourite, alike) in [
            (1, 0.0, true),
            (1, 0.0, false),
            (2, 0.0, true),
            (2, 0.0, false),
            (1, 0.7, false),
            (8, 0.0, false),
        ] {
            for [truth, told, seen] in shares(words, favourite, alike) {
                let what = format!("{words} {favourite} {alike}: {told} of {truth} ({seen})");
                assert!(
                    (seen..truth + 0.01).contains(&told) && truth - told <= 0.8 * (truth - seen) + 0.01,
                    "{what}"
                );
            }
        }
        let [[truth, _, seen], _] = shares(1, 0.0, true);
        assert!(seen < truth - 0.1, "nothing to make up for: {seen} {truth}");
    }
}
