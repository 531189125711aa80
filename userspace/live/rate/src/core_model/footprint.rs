//! What lines of memory cost, and how many lines a program goes through.

use std::collections::HashSet;

use crate::core_limits::{Level, Machine};

/// Lines that are remembered: twice as many are more than second-level caches hold.
const MOST_LINES: usize = 1 << 17;

/// Share of the latency of a prefetched line, by level.
const FORESEEN: [f64; 3] = [0.35, 0.2, 0.1];

/// What lines cost that a window touches for the first time, in cycles.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Memory {
    /// Latency of a line that a prefetcher foresees.
    pub near: u32,
    /// Latency of another.
    pub far: u32,
    /// Time between two lines that are loaded from only.
    pub between: f64,
    /// Time between two others.
    pub stored: f64,
}

impl Memory {
    /// What lines of each level of a machine cost.
    pub fn levels(machine: &Machine) -> [Self; 3] {
        let of = |(level, foreseen): (&Level, f64)| Self {
            near: (level.latency * foreseen).round() as u32,
            far: level.latency.round() as u32,
            between: level.between,
            stored: level.stored,
        };
        let [second, last, memory] = &machine.levels;
        let [of_second, of_last, of_memory] = FORESEEN;
        [of((second, of_second)), of((last, of_last)), of((memory, of_memory))]
    }
}

/// How much memory a program goes through, by how many of a window's lines were in windows before
/// (capture and recapture).
#[derive(Debug, Clone, Default)]
pub(super) struct Footprint {
    seen: HashSet<u64>,
    /// Sum over the windows of the lines seen before times the window's own.
    pub pairs: f64,
    /// Lines of windows that were seen before.
    pub again: f64,
}

impl Footprint {
    pub fn learn(&mut self, lines: &[u64]) {
        self.pairs += self.seen.len() as f64 * lines.len() as f64;
        self.again += lines.iter().filter(|line| self.seen.contains(line)).count() as f64;
        if self.seen.len() < MOST_LINES {
            self.seen.extend(lines);
        }
    }

    /// The level of a machine, 0 to 2, with room for this much memory; `None`: the first-level
    /// cache.
    pub fn level(&self, machine: &Machine) -> Option<usize> {
        let lines = self.pairs / (self.again + 1.0);
        machine.levels.iter().rposition(|level| lines >= level.from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn footprints_follow_from_lines_that_come_again() {
        let mut random = fastrand::Rng::with_seed(4);
        for (lines, level) in [(300_u64, None), (20_000, Some(0)), (100_000, Some(1))] {
            let mut footprint = Footprint::default();
            for _ in 0..100 {
                let window: HashSet<u64> = (0..200).map(|_| random.u64(0..lines)).collect();
                footprint.learn(&window.into_iter().collect::<Vec<_>>());
            }
            let found = footprint.pairs / footprint.again;
            assert!((0.8..1.25).contains(&(found / lines as f64)), "{lines}: {found}");
            assert_eq!(footprint.level(&Machine::default()), level);
        }
        let levels = Machine::default().levels;
        let far = Memory::levels(&Machine::default()).map(|memory| f64::from(memory.far));
        assert_eq!(far, levels.map(|level| level.latency));
    }
}
