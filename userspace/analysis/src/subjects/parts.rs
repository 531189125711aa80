//! Lines that are watched in part: when one was touched first, if the words that nobody watched count too.
//!
//! Of a line the use's own word is watched, its neighbours, and one of the others, drawn at random. What touches own or
//! neighbours is always seen; what touches u of the R others is seen with the chance u / R. So the others are touched R / u times as often as the drawn one,
//! and for the first time, if touches come independently of each other, after u / R of its time: that holds of each line, however often it is visited, and
//! so of any mixture of busy and idle ones.
//!
//! Not so where touches depend on each other: a sweep touches all words of a line within a small part of the distance, and a walk by columns one
//! after the other at equal distances, the neighbour first. There nothing is hidden, and the first watched word's distance is the line's.
//! u is the mean over the first touches of lines that windows show at the same line of code ([`crate::model::Load`]), of those that
//! may miss own and neighbours.
//!
//! Sources of error: independent touches that look like a sweep or a walk by chance; walks by every second word, whose lines are told too near, or by so few
//! columns that a line's words come far apart in the next round too; the others may have favourites, and those that the window
//! shows touched before the use are never drawn; a drawn word that was given up untouched says nothing, so that distances beyond the next
//! sample are the own word's.

use std::collections::BTreeMap;

use super::Exit;
use crate::context::Contexts;
use crate::model::{Burst, FrameId, Profile};

/// Words of a line.
const WORDS: f64 = 8.0;
/// Share of the earlier distance within which two words' touches are one visit.
const TOGETHER: f64 = 0.25;
/// Fewer first touches at a line of code say less of it than those of the whole program.
const FEWEST: usize = 3;

/// How many words of a line are touched by what comes to it, by the line of code where that begins.
pub(super) struct Visits {
    at: BTreeMap<FrameId, Vec<f64>>,
    all: Vec<f64>,
}

/// What was seen of a line's words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    /// Number of the use's own word.
    pub own: u64,
    /// The watched words' numbers and ends, in accesses.
    pub watched: &'a [(u64, Exit)],
    /// Accesses behind the use in which the window shows no touch.
    pub open: u64,
    /// How exactly ends are known, in accesses.
    pub resolution: f64,
}

impl Visits {
    pub(super) fn of(profile: &Profile, contexts: &Contexts) -> Self {
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

    /// The mean of those that touch `most` words at most, which itself stands for none.
    fn words(&self, frame: Option<FrameId>, most: f64) -> f64 {
        let own = frame.and_then(|frame| self.at.get(&frame)).filter(|visits| visits.len() >= FEWEST);
        let few = own.unwrap_or(&self.all).iter().filter(|words| **words <= most);
        let (sum, count) = few.fold((0.0, 0.0), |(sum, count), words| (sum + words, count + 1.0));
        if count > 0.0 { sum / count } else { most }
    }

    /// The distance to the first touch of words that nobody watched and the drawn one, and which of the watched is that; `None`
    /// where the watches hide nothing. `frame` tells of a watch the line of code that ended it.
    pub(super) fn hidden(
        &self,
        line: Line<'_>,
        frame: impl Fn(usize) -> Option<FrameId>,
    ) -> Option<(u64, usize)> {
        let is_near = |word: u64| word.abs_diff(line.own) <= 1;
        let drawn = line.watched.iter().position(|(word, exit)| !is_near(*word) && exit.reused)?;
        let (word, Exit { at, .. }) = *line.watched.get(drawn)?;
        let near = || line.watched.iter().filter(|(word, _)| is_near(*word));
        let is_same = |a: f64, b: f64| a.max(b) <= a.min(b) * (1.0 + TOGETHER) + line.resolution;
        // One that was given up at about that time may have been touched with it.
        let is_swept = |exit: &Exit| is_same(at as f64, exit.at as f64);
        let is_on_the_way = |near: u64| near != line.own && (near > line.own) == (word > line.own);
        let steps = word.abs_diff(line.own) as f64;
        let is_walked = |near: u64, exit: &Exit| {
            exit.reused && is_on_the_way(near) && is_same(at as f64, exit.at as f64 * steps)
        };
        if near().any(|(word, exit)| is_swept(exit) || is_walked(*word, exit)) {
            return None;
        }
        let others = WORDS - near().count() as f64;
        let share = self.words(frame(drawn), others) / others;
        let first = line.open as f64 + at.saturating_sub(line.open) as f64 * share;
        Some(((first.round() as u64).max(line.open.saturating_add(1)), drawn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Access, Load, SampleId};
    use crate::testing::Maker;

    fn touch(at: u64) -> Exit {
        Exit { at, reused: true }
    }

    fn visits(words: f64) -> Visits {
        Visits { at: BTreeMap::new(), all: vec![words] }
    }

    fn hidden(visits: &Visits, watched: &[(u64, Exit)], resolution: f64) -> Option<(u64, usize)> {
        visits.hidden(Line { own: 3, watched, open: 1_000, resolution }, |_| None)
    }

    #[test]
    fn the_drawn_word_tells_of_the_others() {
        let one = visits(1.0);
        let line = |own, drawn| [(3, touch(own)), (4, touch(90_000)), (2, touch(80_000)), (7, touch(drawn))];
        // Five others.
        assert_eq!(hidden(&one, &line(50_000, 11_000), 0.0), Some((3_000, 3)));
        assert_eq!(hidden(&one, &line(10_000, 51_000), 0.0), Some((11_000, 3)));
        // With the own word, or with a neighbour; a trap's cost apart; the fourth word of a walk.
        assert_eq!(hidden(&one, &line(10_000, 12_000), 0.0), None);
        assert_eq!(hidden(&one, &line(12_000, 10_000), 0.0), None);
        assert_eq!(hidden(&one, &line(90_000, 75_000), 0.0), None);
        assert_eq!(hidden(&one, &line(3_000, 100), 2_900.0), None);
        assert_eq!(hidden(&one, &line(500_000, 340_000), 0.0), None);
        // What comes touches two words; or all, so that it cannot miss the own one.
        assert_eq!(hidden(&visits(2.0), &line(50_000, 11_000), 0.0), Some((5_000, 3)));
        assert_eq!(hidden(&visits(8.0), &line(50_000, 11_000), 0.0), Some((11_000, 3)));
        // The window shows the line untouched so far.
        assert_eq!(hidden(&one, &line(50_000, 1_002), 0.0), Some((1_001, 3)));
        // Given up untouched: the drawn one; the own one at about that time, or long before it, when the other was not touched either.
        let given_up = |at| Exit { at, reused: false };
        assert_eq!(hidden(&one, &[(3, touch(5_000)), (7, given_up(9_000))], 0.0), None);
        assert_eq!(hidden(&one, &[(3, given_up(9_000)), (7, touch(8_000))], 0.0), None);
        assert_eq!(hidden(&one, &[(3, given_up(2_000)), (7, touch(8_000))], 0.0), Some((2_000, 1)));
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
        assert_eq!((visits.words(frame(1), 8.0), visits.words(frame(2), 8.0)), (1.5, 1.5));
        assert_eq!((visits.words(frame(0), 8.0), visits.words(frame(0), 5.0)), (8.0, 5.0));
        assert_eq!((visits.words(frame(3), 8.0), visits.words(None, 5.0)), (4.0, 8.0 / 6.0));
    }

    /// Of 20,000 lines, visited every 1,000 accesses on average (or a third of them twenty times more rarely, a third never), of each `words`
    /// words from a random one on, or from the use's own one, `favourite` of the time: the shares that are touched first within 300 and within 3,000 accesses
    /// in truth, as told, and as watched.
    fn shares(words: u64, favourite: f64, alike: bool) -> [[f64; 3]; 2] {
        let mut random = fastrand::Rng::with_seed(3);
        let mut shares = [[0.0; 3]; 2];
        let visits = visits(words as f64);
        let n = 20_000;
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
            let seen = ends.iter().map(|(_, exit)| exit.at).min().unwrap();
            let line = Line { own, watched: &ends, open: 0, resolution: 0.0 };
            let told = visits.hidden(line, |_| None).map_or(seen, |(at, _)| at.min(seen));
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
