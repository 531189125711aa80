//! What windows and stacks of the live process tell: executions of blocks and edges, weighed by time.
//!
//! A stop is uniform in CPU time, and a window holds so many instructions, not so much time. Of a window that
//! takes T and stands for a period P of CPU time, each execution counts P / T times
//! (docs/method/execution-model.md). Unweighed windows would tell where time is spent, not what is executed.
//!
//! Sources of error: T comes from the rate of the sample; windows whose rate nobody knows have the median of
//! the others. Transfers that found no room in the profile are missing.

use std::collections::{BTreeMap, BTreeSet};

/// A file, by its number, and an address in it.
pub type At = (usize, u64);

/// A window.
#[derive(Debug, Clone, Default)]
pub struct WindowSeen {
    /// Executions that each of its executions stands for.
    pub weight: f64,
    /// Instructions executed; 0 where not known.
    pub instructions: u64,
    /// Where it begins.
    pub first: Option<At>,
    /// Transfers: from, to, how often.
    pub edges: Vec<(At, At, f64)>,
    /// Comparisons: where, and what with what.
    pub readings: Vec<(At, i64, i64)>,
}

/// A sample's call stack.
#[derive(Debug, Clone, Default)]
pub struct StackSeen {
    /// CPU time that it stands for, in nanoseconds.
    pub time: f64,
    /// Innermost first: the sampled instruction, then addresses inside the calls.
    pub frames: Vec<At>,
}

/// All of a profile.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// Windows.
    pub windows: Vec<WindowSeen>,
    /// Stacks of all samples.
    pub stacks: Vec<StackSeen>,
}

/// A function's bytes.
#[derive(Debug, Clone)]
pub struct FunctionBytes {
    /// Its name.
    pub name: String,
    /// Its symbol as the file has it; `None` where it has none.
    pub symbol: Option<String>,
    /// Where it begins.
    pub start: u64,
    /// Its code.
    pub bytes: Vec<u8>,
}

/// The files of the program, given by the caller.
pub trait Binaries {
    /// Name and build id of each file.
    fn files(&self) -> Vec<(String, String)>;
    /// The function around an address.
    fn function(&self, at: At) -> Option<FunctionBytes>;
    /// Name of the function that a stub of the linkage table leads to.
    fn stub(&self, at: At) -> Option<String>;
}

/// Transfers summed over windows.
#[derive(Debug, Clone, Default)]
pub struct Sums {
    /// Weighed executions of each transfer, by source.
    pub edges: BTreeMap<At, BTreeMap<At, f64>>,
    /// Where windows begin.
    pub firsts: BTreeMap<At, f64>,
}

impl Sums {
    /// Of some windows.
    pub fn of<'a>(windows: impl Iterator<Item = &'a WindowSeen>) -> Self {
        let mut sums = Self::default();
        for window in windows {
            for (from, to, count) in &window.edges {
                *sums.edges.entry(*from).or_default().entry(*to).or_default() += count * window.weight;
            }
            if let Some(first) = window.first {
                *sums.firsts.entry(first).or_default() += window.weight;
            }
        }
        sums
    }

    /// All addresses that control arrived at.
    pub fn arrivals(&self) -> BTreeMap<At, f64> {
        let mut arrivals = self.firsts.clone();
        for to in self.edges.values() {
            for (at, count) in to {
                *arrivals.entry(*at).or_default() += count;
            }
        }
        arrivals
    }
}

/// Targets of transfers by source in one file, for the code reader.
pub(crate) fn targets_in(sums: &Sums, file: usize) -> BTreeMap<u64, BTreeSet<u64>> {
    let in_file = sums.edges.iter().filter(|((of, _), _)| *of == file);
    in_file
        .map(|((_, from), to)| (*from, to.keys().filter(|(of, _)| *of == file).map(|(_, at)| *at).collect()))
        .collect()
}
