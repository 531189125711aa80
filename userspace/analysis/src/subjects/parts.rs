//! Lines that are watched in part: how many first touches the one that was seen stands for.
//!
//! Of a line the use's own word is watched, its neighbours, and one of the others, drawn at random. Whoever comes to the line
//! touches some of its words. It is seen by the own word and the neighbours whatever the draw; if it touches u of the R others
//! and none of these, it is seen with the chance u / R. So a touch that came by the drawn word alone stands for R / u (Horvitz and
//! Thompson 1952, JASA 47(260)): Kaplan–Meier's hazard takes it that often, because as many came by words that nobody
//! watched, to lines that were taken for not touched yet. A sweep touches all words of a line: nothing is hidden there.
//!
//! u is the mean over the first touches of lines that windows show at the same line of code ([`crate::model::Load`]).
//!
//! Sources of error: neighbours that the window shows touched before the use are not watched, and count among the others;
//! what touches a line is taken to have no favourites among the others; whose touches come within [`TOGETHER`] of the distance (and a trap's cost)
//! are one visit.

use std::collections::BTreeMap;

use super::Exit;
use crate::model::{FrameId, Profile};

/// Words of a line.
const WORDS: f64 = 8.0;
/// Share of the first one's distance within which other words' touches belong to the same visit.
const TOGETHER: f64 = 0.25;
/// Fewer first touches at a line of code say less of it than those of the whole program.
const FEWEST: f64 = 3.0;

/// How many words of a line are touched by what comes to it, by the line of code where that begins.
pub(super) struct Visits {
    /// Words, and visits.
    at: BTreeMap<FrameId, (f64, f64)>,
    all: (f64, f64),
}

impl Visits {
    pub(super) fn of(profile: &Profile) -> Self {
        let mut visits = Self { at: BTreeMap::new(), all: (0.0, 0.0) };
        for load in &profile.loads {
            let bytes = load.bursts.iter().fold(0, |bytes, burst| bytes | burst.bytes);
            let words = (0..64).step_by(8).filter(|first| bytes >> first & 0xff != 0).count() as f64;
            let stack = profile.stacks.get(load.stack.0 as usize);
            let frame = stack.and_then(|stack| stack.frames.first());
            let own = frame.map(|frame| visits.at.entry(*frame).or_default());
            for (sum, count) in own.into_iter().chain([&mut visits.all]) {
                (*sum, *count) = (*sum + words, *count + 1.0);
            }
        }
        visits
    }

    fn words(&self, frame: Option<FrameId>) -> f64 {
        let own = frame.and_then(|frame| self.at.get(&frame)).filter(|(_, visits)| *visits >= FEWEST);
        let (words, visits) = own.copied().unwrap_or(self.all);
        if visits > 0.0 { (words / visits).max(1.0) } else { WORDS }
    }

    /// How many first touches the one stands for that the watches of a line saw: `watched` has their words' numbers and ends, in accesses, which
    /// are known to `resolution`; `frame` is the line of code that it came from. 1 where none was touched.
    pub(super) fn stands_for(
        &self,
        own: u64,
        watched: &[(u64, Exit)],
        resolution: f64,
        frame: Option<FrameId>,
    ) -> f64 {
        let touched = || watched.iter().filter(|(_, exit)| exit.reused);
        let Some(first) = touched().map(|(_, exit)| exit.at).min() else { return 1.0 };
        let together = first as f64 * (1.0 + TOGETHER) + resolution;
        let is_near = |word: u64| word.abs_diff(own) <= 1;
        if touched().any(|(word, exit)| is_near(*word) && exit.at as f64 <= together) {
            return 1.0;
        }
        // Those that were given up before saw nothing of it.
        let near = watched.iter().filter(|(word, exit)| is_near(*word) && exit.at >= first).count() as f64;
        ((WORDS - near) / self.words(frame)).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ContextId;
    use crate::convert::scale;
    use crate::estimator::{Draw, Estimator, Study};
    use crate::model::{Access, Burst, Load};
    use crate::subjects::{Followed, Subject};
    use crate::testing::Maker;

    fn touch(at: u64) -> Exit {
        Exit { at, reused: true }
    }

    fn visits(words: f64) -> Visits {
        Visits { at: BTreeMap::new(), all: (words, 1.0) }
    }

    #[test]
    fn only_the_drawn_word_stands_for_others() {
        let one = visits(1.0);
        let line =
            |drawn, near| [(3, touch(near)), (4, touch(90_000)), (2, touch(80_000)), (7, touch(drawn))];
        assert_eq!(one.stands_for(3, &line(10_000, 50_000), 0.0, None), 5.0);
        // By the use's own word, or with it.
        assert_eq!(one.stands_for(3, &line(50_000, 10_000), 0.0, None), 1.0);
        assert_eq!(one.stands_for(3, &line(10_000, 12_000), 0.0, None), 1.0);
        // A trap's cost apart.
        assert_eq!(one.stands_for(3, &line(100, 3_000), 2_900.0, None), 1.0);
        // What comes touches two words; all of them; neither is less than one first touch.
        assert_eq!(visits(2.0).stands_for(3, &line(10_000, 50_000), 0.0, None), 2.5);
        assert_eq!(visits(8.0).stands_for(3, &line(10_000, 50_000), 0.0, None), 1.0);
        // Nobody watches the own word any more.
        let given_up = [(3, Exit { at: 5_000, reused: false }), (7, touch(10_000))];
        assert_eq!(one.stands_for(3, &given_up, 0.0, None), 8.0);
        assert_eq!(one.stands_for(3, &given_up[..1], 0.0, None), 1.0);
    }

    #[test]
    fn words_are_those_that_windows_show_there() {
        let mut make = Maker::new();
        let stacks = [make.stack("wide a.c:1"), make.stack("narrow a.c:2"), make.stack("rare a.c:3")];
        for (stack, bytes, times) in [(0, !0, 4), (1, 0xff00, 4), (2, 0xff, 2)] {
            for _ in 0..times {
                let first = Burst { from: 0, to: 0, touches: 1, bytes: bytes & 0xffff };
                let rest = Burst { from: 300, to: 310, touches: 1, bytes };
                make.profile.loads.push(Load {
                    sample: crate::model::SampleId(0),
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
        let frame = |stack: usize| make.profile.stacks[stacks[stack].0 as usize].frames.first().copied();
        let visits = Visits::of(&make.profile);
        assert_eq!((visits.words(frame(0)), visits.words(frame(1))), (8.0, 1.0));
        assert_eq!((visits.words(frame(2)), visits.words(None)), (3.8, 3.8));
    }

    /// First touches of 20,000 lines that are visited every 1,000 accesses on average, of each `words` words from a random one on (or from the
    /// use's own one, `favourite` of the time), against those that the watches make of it: (true, estimated, as watched) shares
    /// that are touched within 1,000 accesses.
    fn shares(words: u64, favourite: f64) -> (f64, f64, f64) {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut subjects, mut within, mut watched_within) = (Vec::new(), 0.0, 0.0);
        let visits = visits(words as f64);
        for sample in 0..20_000 {
            let own = random.u64(0..8);
            let mut watched: Vec<u64> = (0..8_u64).filter(|word| word.abs_diff(own) <= 1).collect();
            let others: Vec<u64> = (0..8_u64).filter(|word| word.abs_diff(own) > 1).collect();
            watched.push(others[random.usize(..others.len())]);
            let (mut now, mut first) = (0.0, None);
            let mut touched = [None; 8];
            while watched.iter().any(|word| touched[*word as usize].is_none()) {
                now -= 1_000.0 * (1.0 - random.f64()).ln();
                let from = if random.f64() < favourite { own } else { random.u64(0..8) };
                first.get_or_insert(now);
                for word in from..from + words {
                    touched[word as usize % 8].get_or_insert(now as u64 + 100);
                }
            }
            let ends: Vec<(u64, Exit)> =
                watched.iter().map(|word| (*word, touch(touched[*word as usize].unwrap()))).collect();
            let at = ends.iter().map(|end| end.1.at).min().unwrap();
            within += f64::from(u8::from(first.unwrap() < 1_000.0));
            watched_within += f64::from(u8::from(at < 1_100));
            let followed = Followed {
                exit: touch(at),
                within: None,
                measured: None,
                counted: false,
                part: true,
                stands_for: visits.stands_for(own, &ends, 0.0, None),
                p_choice: 1.0,
                p_arm: 1.0,
                p_survive: 1.0,
                ended_ns: 0,
                to_the_end: false,
            };
            subjects.push(Subject {
                sample,
                used: None,
                watch: None,
                time_ns: 0,
                context: ContextId(0),
                reuse_context: None,
                weight: 1.0,
                shown: Exit { at: 50, reused: false },
                followed: Some(followed),
            });
        }
        let study = Study::new(&subjects, vec![0; subjects.len()], vec![None]);
        let masses = study.estimate(Estimator::KaplanMeier, Draw::SEEN);
        let estimated: f64 = masses[0].reused.iter().take(scale::index(1_100)).sum();
        let n = f64::from(20_000);
        (within / n, estimated / n, watched_within / n)
    }

    #[test]
    fn first_touches_by_words_that_nobody_watched_are_made_up_for() {
        for (words, favourite) in [(1, 0.0), (2, 0.0), (1, 0.7), (8, 0.0)] {
            let (truth, estimated, watched) = shares(words, favourite);
            assert!((estimated - truth).abs() < 0.03, "{words} {favourite}: {estimated} {truth} ({watched})");
        }
        let (truth, _, watched) = shares(1, 0.0);
        assert!(watched < truth - 0.2, "nothing to make up for: {watched} {truth}");
    }
}
