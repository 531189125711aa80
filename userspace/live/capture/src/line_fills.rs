//! Accesses in a shadow window that may load a line of cache, and what the window does with the
//! line afterwards.
//!
//! Pure. An access loads its line if the line was idle for as long as other accesses take to fill
//! the cache; the analysis estimates that time (`locality_findings::cache_use`). Candidates here
//! are accesses to lines idle for as long as the smallest cache needs at least. They are drawn in
//! the second quarter: a quarter of the window lies before them, and half of it after them.

use std::collections::{HashMap, HashSet};

use locality_model::Burst;
use locality_stream::Event;

use super::window_sampling::{LINE, last_byte, touched};

/// Accesses drawn in a window.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Firsts {
    /// In order.
    pub drawn: Vec<Draft>,
    /// Candidates that each stands for, for each access of the thread.
    pub stands_for: f64,
}

/// An access that was drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Draft {
    /// Position among the accesses.
    pub at: usize,
    /// First byte of the line.
    pub line: u64,
    /// Accesses since the touch before, if the window shows it.
    pub gap: Option<usize>,
}

impl Firsts {
    /// Draws at most `most` among the accesses of a window.
    pub fn draw(accesses: &[(Event, u64)], most: usize, random: &mut fastrand::Rng) -> Self {
        let (from, until) = (accesses.len() / 4, accesses.len() / 2);
        let least = (Burst::GAP as usize).min(from.max(1));
        let mut touched = HashMap::new();
        let mut drawn = Vec::new();
        for (at, (event, _)) in accesses.iter().enumerate().take(until) {
            for line in lines(event) {
                let gap = touched.insert(line, at).map(|before| at - before);
                if at >= from && gap.is_none_or(|gap| gap >= least) {
                    drawn.push(Draft { at, line, gap });
                }
            }
        }
        let all = drawn.len();
        random.shuffle(&mut drawn);
        drawn.truncate(most);
        drawn.sort_unstable();
        let stands_for = all as f64 / (drawn.len() * (until - from)).max(1) as f64;
        Self { drawn, stands_for }
    }
}

/// Stores across two lines in the second half of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SplitStores {
    /// Accesses of that half.
    pub accesses: u64,
    /// Stores to lines that the window touched before.
    pub near: u64,
    /// Stores with a line that the window did not touch before.
    pub far: u64,
}

impl SplitStores {
    /// Counts the stores of a window.
    pub fn of(events: &[Event]) -> Self {
        let accesses = || events.iter().filter(|event| event.kind.is_access());
        let all = accesses().count();
        let half = all / 2;
        let is_split = |event: &Event| event.kind.is_store() && lines(event).nth(1).is_some();
        let mut found = Self { accesses: (all - half) as u64, ..Self::default() };
        // Most windows have none.
        if !accesses().skip(half).any(is_split) {
            return found;
        }
        let mut touched = HashSet::new();
        for (at, event) in accesses().enumerate() {
            let is_new = lines(event).fold(false, |is_new, line| touched.insert(line) | is_new);
            if at >= half && is_split(event) {
                *if is_new { &mut found.far } else { &mut found.near } += 1;
            }
        }
        found
    }
}

/// For each draft, the touches of its line from the draft on.
pub fn bursts(accesses: &[(Event, u64)], drafts: &[Draft]) -> Vec<Vec<Burst>> {
    let mut found: Vec<Vec<Burst>> = vec![Vec::new(); drafts.len()];
    let mut by_line: Vec<(u64, usize)> =
        drafts.iter().enumerate().map(|(index, draft)| (draft.line, index)).collect();
    by_line.sort_unstable();
    let lines: Vec<u64> = by_line.iter().map(|(line, _)| *line).collect();
    let first = drafts.iter().map(|draft| draft.at).min().unwrap_or(accesses.len());
    for (at, (event, _)) in accesses.iter().enumerate().skip(first) {
        for of_line in touched(&lines, LINE, event) {
            let Some((line, index)) = by_line.get(of_line).copied() else { continue };
            let Some(after) = drafts.get(index).and_then(|draft| at.checked_sub(draft.at)) else { continue };
            let (after, bytes) = (after as u64, bytes_of(event, line));
            let Some(bursts) = found.get_mut(index) else { continue };
            match bursts.last_mut() {
                Some(last) if after - last.to < Burst::GAP => {
                    last.to = after;
                    last.touches += 1;
                    last.bytes |= bytes;
                }
                _ => bursts.push(Burst { from: after, to: after, touches: 1, bytes }),
            }
        }
    }
    found
}

fn lines(event: &Event) -> impl Iterator<Item = u64> {
    (event.value / LINE..=last_byte(event) / LINE).map(|line| line * LINE)
}

/// The bytes of a line that an access touches, a bit each.
fn bytes_of(event: &Event, line: u64) -> u64 {
    let (first, last) = (event.value.max(line), last_byte(event).min(line + (LINE - 1)));
    if first > last {
        return 0;
    }
    let count = last - first + 1;
    (u64::MAX >> (LINE - count)) << (first - line)
}

#[cfg(test)]
mod tests {
    use locality_stream::Kind;
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 8;

    fn accesses(raw: &[(u64, u16)]) -> Vec<(Event, u64)> {
        raw.iter().map(|(address, size)| (Event::access(Kind::LOAD, 0, *address, *size), 0)).collect()
    }

    /// Twelve stores before the middle warm the lines; four are counted, two of them to new lines.
    #[test]
    fn stores_across_lines_are_counted_in_the_second_half() {
        let store = |value| Event::access(locality_stream::Kind::STORE, 0, value, 8);
        let load = |value| Event::access(locality_stream::Kind::LOAD, 0, value, 8);
        let mut events: Vec<Event> = (0..12).map(|n| store(n * 64 + 60)).collect();
        events.push(Event::new(locality_stream::Kind::BLOCK, 0, 0));
        events.extend([60, 124, 64 * 100 + 60, 64 * 101 + 60].map(store));
        events.extend((0..8).map(|n| load(n * 64 + 60)));
        assert_eq!(SplitStores::of(&events), SplitStores { accesses: 12, near: 2, far: 2 });
        assert_eq!(SplitStores::of(&[]), SplitStores::default());
    }

    proptest! {
        /// Against sets of bytes.
        #[test]
        fn candidates_are_those_of_the_window(
            raw in proptest::collection::vec((0u64..2000, 1u16..80), 0..400),
            seed: u64,
        ) {
            let accesses = accesses(&raw);
            let firsts = Firsts::draw(&accesses, MOST, &mut fastrand::Rng::with_seed(seed));
            let (from, until) = (raw.len() / 4, raw.len() / 2);
            let touches = |(address, size): (u64, u16), line: u64| {
                let touched = (0..64).filter(|byte| (address..address + u64::from(size)).contains(&(line + byte)));
                touched.fold(0u64, |sum, byte| sum | 1 << byte)
            };
            let mut all = 0;
            for at in from..until {
                for line in (0..40).map(|line| line * 64) {
                    let before = raw[..at].iter().rposition(|before| touches(*before, line) != 0);
                    let gap = before.map(|before| at - before);
                    let is_one = touches(raw[at], line) != 0 && gap.is_none_or(|gap| gap >= from.clamp(1, 256));
                    all += usize::from(is_one);
                    let drawn = firsts.drawn.iter().find(|draft| (draft.at, draft.line) == (at, line));
                    prop_assert!(drawn.is_none_or(|draft| is_one && draft.gap == gap));
                }
            }
            prop_assert_eq!(firsts.drawn.len(), all.min(MOST));
            let stood_for = firsts.stands_for * firsts.drawn.len() as f64 * (until - from) as f64;
            prop_assert!((stood_for - all as f64).abs() < 1e-9);
            let all = bursts(&accesses, &firsts.drawn);
            for (Draft { at, line, .. }, found) in firsts.drawn.into_iter().zip(all) {
                let after = (0..).zip(&raw[at..]).map(|(n, one)| (n, touches(*one, line)));
                let seen: Vec<(u64, u64)> = after.filter(|one| one.1 != 0).collect();
                prop_assert_eq!(found.iter().map(|burst| burst.touches).sum::<u64>(), seen.len() as u64);
                for burst in &found {
                    let own = seen.iter().filter(|one| (burst.from..=burst.to).contains(&one.0));
                    prop_assert_eq!(own.fold(0, |sum, one| sum | one.1), burst.bytes);
                }
                for (a, b) in seen.iter().zip(seen.iter().skip(1)) {
                    let together = found.iter().any(|burst| burst.from <= a.0 && b.0 <= burst.to);
                    prop_assert_eq!(together, b.0 - a.0 < Burst::GAP);
                }
            }
        }
    }
}
