//! Memory words that count: found in windows, ranked, and the best of them read by the kernel side.

use std::collections::{BTreeMap, VecDeque};

use crate::induction::Quantity;
use crate::steps::{DOUBLE, Motion, motion, whole};
use crate::types::{Reading, WORDS, Wanted};
use crate::window_digest::Digest;

/// Words remembered; beyond, the worst go.
const MOST_WORDS: usize = 256;
/// Windows remembered for words that are new.
const MOST_WINDOWS: usize = 24;
/// Lists of which readings may still arrive.
const LISTS: usize = 8;
/// A word replaces another one if better by this factor.
const BETTER: f64 = 1.5;
/// Samples without movement after which a word counts half.
const STILL: f64 = 3.0;

/// A word: address and width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub address: u64,
    pub bits: u32,
}

impl Place {
    /// The eight bytes around the word.
    fn container(self) -> u64 {
        self.address & !7
    }

    /// Its value in these eight bytes.
    fn extract(self, container: u64) -> Option<u64> {
        let value = container >> ((self.address & 7) * 8);
        match self.bits {
            32 => Some(value & 0xffff_ffff),
            DOUBLE => whole(value),
            _ => Some(value),
        }
    }
}

#[derive(Debug, Clone)]
struct Word {
    quantity: u32,
    thread: u32,
    windows: u32,
    /// Windows with a motion of the word.
    moved: u32,
    /// Several threads count in the word: one thread's window does not show the accesses per step.
    is_shared: bool,
}

/// All words of a process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Words {
    table: BTreeMap<Place, Word>,
    lists: VecDeque<(u32, Vec<Place>)>,
    number: u32,
    /// Windows lately: sample, thread, accesses, weight. For words that are yet to be seen moving.
    windows: VecDeque<(u32, u32, u32, f64)>,
    /// Indices of quantities without a word, for new words.
    free: Vec<u32>,
}

impl Words {
    /// Learns from a window.
    pub fn learn(&mut self, sample: u32, thread: u32, digest: &Digest<'_>, quantities: &mut Vec<Quantity>) {
        let mut points: Vec<(u32, u64)> = Vec::new();
        for group in digest.words.chunk_by(|a, b| a.address == b.address) {
            let Some(first) = group.first() else { continue };
            let first_is_store = first.is_store;
            if group.iter().any(|access| access.bits != first.bits) {
                continue;
            }
            points.clear();
            // Its value before the first store, if it was loaded.
            points.extend((!first.is_store).then_some((first.access, first.value)));
            points.extend(group.iter().filter(|access| access.is_store).map(|a| (a.access, a.value)));
            let mut place = Place { address: first.address, bits: first.bits };
            if first.bits == 64
                && points.iter().any(|point| point.1 != 0)
                && points.iter().all(|point| whole(point.1).is_some())
            {
                place.bits = DOUBLE;
                for point in &mut points {
                    point.1 = whole(point.1).unwrap_or(0);
                }
            }
            let motion = motion(&points, place.bits);
            self.learn_word(sample, thread, (place, first_is_store), &motion, digest, quantities);
            if let (Some(word), Some((first, last))) =
                (self.table.get(&place), points.first().zip(points.last()))
                && let Some(quantity) = quantities.get_mut(word.quantity as usize)
            {
                quantity.note_ends(first.1, last.1);
                // Several equal values were no steps, nor was the one before them.
                if first_is_store && (points.len() == 1 || motion != Motion::Constant) {
                    quantity.note_unseen(sample);
                }
            }
        }
        for word in self.table.values_mut().filter(|word| word.thread == thread) {
            word.windows += 1;
            let Some(quantity) = quantities.get_mut(word.quantity as usize) else { continue };
            if quantity.last_seen != sample {
                quantity.observe(sample, &Motion::Constant, (0, digest.accesses as u32), digest.weight);
            }
        }
        if self.windows.len() >= MOST_WINDOWS {
            self.windows.pop_front();
        }
        self.windows.push_back((sample, thread, digest.accesses as u32, digest.weight));
        if self.table.len() > MOST_WORDS {
            let mut scores: Vec<f64> = self.table.values().map(|word| score(word, quantities)).collect();
            scores.sort_unstable_by(f64::total_cmp);
            let limit = scores.get(scores.len() / 2).copied().unwrap_or(0.0);
            let kept: Vec<Place> = self.lists.iter().flat_map(|list| list.1.iter().copied()).collect();
            let free = &mut self.free;
            self.table.retain(|place, word| {
                if score(word, quantities) > limit || kept.contains(place) {
                    return true;
                }
                // A program that stores to new words all the time would fill the memory otherwise.
                if let Some(quantity) = quantities.get_mut(word.quantity as usize)
                    && !quantity.is_cited
                {
                    quantity.clear();
                    free.push(word.quantity);
                }
                false
            });
        }
    }

    fn learn_word(
        &mut self,
        sample: u32,
        thread: u32,
        (place, first_is_store): (Place, bool),
        motion: &Motion,
        digest: &Digest<'_>,
        quantities: &mut Vec<Quantity>,
    ) {
        if let Some(word) = self.table.get_mut(&place) {
            word.is_shared |= word.thread != thread;
            word.moved += u32::from(matches!(motion, Motion::Moving(_)));
            if let Some(quantity) = quantities.get_mut(word.quantity as usize)
                && word.thread == thread
            {
                quantity.observe(sample, motion, (0, digest.accesses as u32), digest.weight);
            }
        } else if let Motion::Moving(steps) = motion {
            let mut quantity = Quantity::new(steps, place.bits);
            // A single store would not have been visible in them.
            let still = self.windows.iter().filter(|window| window.1 == thread && !first_is_store);
            for (sample, _, accesses, weight) in still {
                quantity.observe(*sample, &Motion::Constant, (0, *accesses), *weight);
            }
            quantity.observe(sample, motion, (0, digest.accesses as u32), digest.weight);
            let free = self.free.pop().and_then(|index| Some((index, quantities.get_mut(index as usize)?)));
            let index = match free {
                Some((index, slot)) => {
                    *slot = quantity;
                    index
                }
                None => {
                    quantities.push(quantity);
                    quantities.len() as u32 - 1
                }
            };
            self.table
                .insert(place, Word { quantity: index, thread, windows: 0, moved: 1, is_shared: false });
        }
    }

    /// Chooses what to read from now on.
    pub fn choose(&mut self, quantities: &[Quantity]) {
        let current = self.lists.back().map(|list| list.1.clone()).unwrap_or_default();
        let mut ranked: Vec<(f64, Place)> = self
            .table
            .iter()
            .map(|(place, word)| {
                let kept = if current.contains(place) { BETTER } else { 1.0 };
                (score(word, quantities) * kept, *place)
            })
            .filter(|(score, _)| *score > 0.01)
            .collect();
        ranked.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut chosen: Vec<Place> = Vec::new();
        let mut containers: Vec<u64> = Vec::new();
        for (_, place) in ranked {
            if containers.contains(&place.container()) {
                chosen.push(place);
            } else if containers.len() < WORDS {
                containers.push(place.container());
                chosen.push(place);
            }
            if containers.len() == WORDS {
                break;
            }
        }
        chosen.sort_unstable();
        if chosen != current {
            self.number = self.number.wrapping_add(1);
            self.lists.push_back((self.number, chosen));
            if self.lists.len() > LISTS {
                self.lists.pop_front();
            }
        }
    }

    /// The list chosen last.
    pub fn wanted(&self) -> Wanted {
        let mut wanted = Wanted { number: self.number, addresses: [0; WORDS] };
        let containers = self.lists.back().map(|list| containers(&list.1)).unwrap_or_default();
        for (to, from) in wanted.addresses.iter_mut().zip(containers) {
            *to = from;
        }
        wanted
    }

    /// The words of these readings, with their quantities.
    pub fn in_readings(&self, readings: &[Reading]) -> Vec<(Place, u32)> {
        let mut found: Vec<(Place, u32)> = Vec::new();
        for (_, list) in self.lists.iter().filter(|list| readings.iter().any(|r| r.wanted == list.0)) {
            for place in list {
                if let Some(word) = self.table.get(place).filter(|word| !word.is_shared)
                    && !found.iter().any(|entry| entry.0 == *place)
                {
                    found.push((*place, word.quantity));
                }
            }
        }
        found
    }

    /// The value of a word in a reading.
    pub fn value(&self, place: Place, reading: &Reading) -> Option<u64> {
        let list = self.lists.iter().find(|list| list.0 == reading.wanted)?;
        let slot = containers(&list.1).iter().position(|container| *container == place.container())?;
        (reading.read >> slot & 1 == 1).then_some(())?;
        place.extract(*reading.words.get(slot)?)
    }
}

/// Distinct, in the order of the list.
fn containers(list: &[Place]) -> Vec<u64> {
    let mut containers: Vec<u64> = list.iter().map(|place| place.container()).collect();
    containers.dedup();
    containers
}

/// How good a word is for telling progress: 0 to 1.
fn score(word: &Word, quantities: &[Quantity]) -> f64 {
    let Some(quantity) = quantities.get(word.quantity as usize) else { return 0.0 };
    if word.is_shared || !quantity.is_sound() || quantity.wraps_vary {
        return 0.0;
    }
    let (edges, windows) = quantity.weight();
    let presence = (f64::from(word.moved) / f64::from(word.windows.max(1))).min(1.0);
    let per_window = f64::from(edges) / f64::from(windows.max(1));
    let smooth = 1.0 - (-per_window / 3.0 - f64::from(edges) / 40.0).exp();
    // A period that windows see is far shorter than the time between two readings.
    let turning = match (quantity.wrap, quantity.period(), quantity.turns()) {
        (Some(_), _, _) => 0.02,
        (None, Some(_), _) => 0.5,
        (None, None, (share, comparisons)) => {
            (1.0 - share).powi(8) * (0.5 + 0.5 * f64::from(comparisons.min(4)) / 4.0)
        }
    };
    presence * smooth * turning * 0.5_f64.powf(f64::from(quantity.still) / STILL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window_digest::WordAccess;

    /// A walk that increments each word of a long array: each window has other words.
    #[test]
    fn quantities_of_dropped_words_are_used_again() {
        let (mut words, mut quantities) = (Words::default(), Vec::new());
        for window in 0..200_u32 {
            let first = u64::from(window) * 100;
            let accesses: Vec<WordAccess> = (0..100)
                .flat_map(|n| {
                    let touch = |access, is_store, value| WordAccess {
                        address: 0x1000 + 8 * (first + n),
                        access,
                        bits: 64,
                        is_store,
                        value,
                    };
                    [touch(2 * n as u32, false, 7), touch(2 * n as u32 + 1, true, 8)]
                })
                .collect();
            let digest = Digest {
                visits: &[],
                registers: &[],
                words: &accesses,
                hottest: None,
                accesses: 200.0,
                instructions: 400.0,
                weight: 1.0,
                waiting: 0.0,
            };
            words.learn(window, 1, &digest, &mut quantities);
            words.choose(&quantities);
        }
        assert!(words.table.len() <= MOST_WORDS && quantities.len() < 2 * MOST_WORDS, "{}", quantities.len());
        // Each word still has a quantity of its own.
        let mut used: Vec<u32> = words.table.values().map(|word| word.quantity).collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), words.table.len());
    }
}
