//! A branch predictor: tables of several lengths of history, of which the longest that knows a
//! branch decides (Seznec and Michaud, "A case for (partially) tagged geometric history length
//! branch prediction", 2006).
//!
//! In a live trace the predictor sees a few thousand instructions of
//! every fifty million, and retains the learnt entries from one window to
//! the next; in an exact run the predictor sees all branches of a thread.

use std::collections::{HashMap, hash_map};

/// Lengths of histories, in branches.
const HISTORIES: [u32; 6] = [4, 8, 16, 32, 64, 128];
/// Entries for each of them, a power of two.
const ENTRIES: usize = 1 << 11;

/// A branch as it was executed.
#[derive(Debug, Clone, Copy)]
pub struct Branch {
    /// Address of the next instruction in memory: stands for the branch.
    pub next: u64,
    /// Its target.
    pub target: u64,
    /// Whether it is conditional; otherwise a value decides its target.
    pub is_conditional: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// Never 0 in a used one.
    tag: u32,
    target: u64,
    counter: Counter,
    was_right: bool,
}

/// Taken if not negative; -4 to 3.
#[derive(Debug, Clone, Copy, Default)]
struct Counter(i8);

impl Counter {
    fn learn(&mut self, taken: bool) {
        self.0 = if taken { (self.0 + 1).min(3) } else { (self.0 - 1).max(-4) };
    }
}

/// What is remembered of branches.
#[derive(Debug, Clone, Default)]
pub struct Predictor {
    /// Branches unknown to all tables.
    simple: HashMap<u64, Counter>,
    /// All tables, one after the other; none before the first branch.
    entries: Vec<Entry>,
    /// Outcomes, the last one in the lowest bit.
    history: u128,
}

impl Predictor {
    /// Whether the outcome was foreseen, or the branch is met for the first time, which the program
    /// has executed often before; learns from it.
    pub fn foresees(&mut self, branch: Branch) -> bool {
        let (foreseen, is_new) = self.outcome(branch);
        foreseen || is_new
    }

    /// Whether the outcome was foreseen, and whether the branch is met for the first time; learns
    /// from it.
    pub fn outcome(&mut self, branch: Branch) -> (bool, bool) {
        self.entries.resize(ENTRIES * HISTORIES.len(), Entry::default());
        let slots: [(usize, u32); HISTORIES.len()] =
            std::array::from_fn(|table| self.slot(branch.next, table));
        let knows =
            |(slot, tag): &(usize, u32)| self.entries.get(*slot).is_some_and(|entry| entry.tag == *tag);
        let longest = slots.iter().rposition(knows);
        let taken = branch.target != branch.next;
        let known = self.simple.entry(branch.next);
        let is_new = matches!(known, hash_map::Entry::Vacant(_));
        let simple = known.or_default();
        let entry = longest.and_then(|table| self.entries.get_mut(slots.get(table)?.0));
        let counter = entry.as_ref().map_or(*simple, |entry| entry.counter);
        let foreseen = match (branch.is_conditional, &entry) {
            (true, _) => (counter.0 >= 0) == taken,
            (false, Some(entry)) => entry.target == branch.target,
            (false, None) => false,
        };
        match entry {
            Some(entry) => {
                entry.counter.learn(taken);
                entry.was_right = foreseen;
                entry.target = branch.target;
            }
            None => simple.learn(taken),
        }
        if !foreseen {
            // A longer history may predict better: the history
            // gets the first place not in use by another.
            for (slot, tag) in slots.iter().skip(longest.map_or(0, |table| table + 1)) {
                let Some(entry) = self.entries.get_mut(*slot) else { break };
                if !entry.was_right {
                    let counter = Counter(if taken { 0 } else { -1 });
                    *entry = Entry { tag: *tag, target: branch.target, counter, was_right: false };
                    break;
                }
                entry.was_right = false;
            }
        }
        self.history = match branch.is_conditional {
            true => self.history << 1 | u128::from(taken),
            false => self.history << 2 | u128::from((branch.target >> 4 ^ branch.target >> 6) & 3),
        };
        (foreseen, is_new)
    }

    /// Index of a branch in a table with the present history, and its tag there.
    fn slot(&self, branch: u64, table: usize) -> (usize, u32) {
        let length = HISTORIES.get(table).copied().unwrap_or_default();
        let history = self.history & u128::MAX.checked_shr(128 - length).unwrap_or_default();
        // Mixing as in MurmurHash3's finalizer.
        let mut hash = branch
            ^ (history as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            ^ ((history >> 64) as u64).rotate_left(17);
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^= hash >> 33;
        (table * ENTRIES + hash as usize % ENTRIES, (hash >> 40) as u32 | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Share of the last half that was foreseen.
    fn foreseen(outcomes: impl Iterator<Item = Branch>) -> f64 {
        let mut predictor = Predictor::default();
        let right: Vec<bool> = outcomes.map(|branch| predictor.foresees(branch)).collect();
        let last = &right[right.len() / 2..];
        last.iter().filter(|right| **right).count() as f64 / last.len() as f64
    }

    fn conditional(taken: bool) -> Branch {
        Branch { next: 0x1000, target: if taken { 0x800 } else { 0x1000 }, is_conditional: true }
    }

    #[test]
    fn loops_and_patterns_are_learnt_and_chance_is_not() {
        // A loop of 24 turns, whose end a history of 32 branches tells.
        assert!(foreseen((0..4000).map(|n| conditional(n % 24 != 23))) > 0.99);
        assert!(foreseen((0..4000).map(|n| conditional([true, true, false, true, false][n % 5]))) > 0.99);
        let mut random = fastrand::Rng::with_seed(1);
        let chance = foreseen((0..4000).map(|_| conditional(random.bool())));
        assert!((0.4..0.6).contains(&chance), "{chance}");
        // An interpreter's jump: where to depends on where from.
        let jumps = (0..4000).map(|n| Branch {
            next: 0x2000,
            target: [0x3000, 0x3010, 0x3020, 0x3030][n % 4],
            is_conditional: false,
        });
        assert!(foreseen(jumps) > 0.95);
    }
}
