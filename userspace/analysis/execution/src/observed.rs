//! Windows and stacks of the live process: executions of blocks and edges, weighed by time.
//!
//! A stop is uniform in CPU time, but a window has a number of instructions, not a length of
//! time. In a window of duration T for a period P of CPU time, each execution counts P / T times
//! (docs/method/execution-model.md). Unweighed windows would show time spent, not executions.
//!
//! Sources of error: T comes from the rate of the sample; windows of unknown rate
//! have the median of the rest. Transfers without room in the profile are missing.

use std::collections::{BTreeMap, BTreeSet};

/// Number of a file, and an address in the file.
pub type At = (usize, u64);

/// A window.
#[derive(Debug, Clone, Default)]
pub struct WindowSeen {
    /// Executions of the program per execution in the window.
    pub weight: f64,
    /// Instructions executed; 0: unknown.
    pub instructions: u64,
    /// Number of the sample's stack in [`Observed::stacks`].
    pub stack: Option<usize>,
    /// Address of the beginning, if known.
    pub first: Option<At>,
    /// Transfers: from, to, how often.
    pub edges: Vec<(At, At, f64)>,
    /// Comparisons: address, left and right value.
    pub readings: Vec<(At, i64, i64)>,
}

/// A sample's call stack.
#[derive(Debug, Clone, Default)]
pub struct StackSeen {
    /// CPU time of the sample's period, in nanoseconds.
    pub time: f64,
    /// Innermost first: the sampled instruction, then addresses inside the calls.
    pub frames: Vec<At>,
}

/// Windows and stacks of a profile.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// Windows.
    pub windows: Vec<WindowSeen>,
    /// Stacks of the samples.
    pub stacks: Vec<StackSeen>,
}

/// A function's bytes.
#[derive(Debug, Clone)]
pub struct FunctionBytes {
    /// Name of the function.
    pub name: String,
    /// Symbol as in the file; `None`: no symbol.
    pub symbol: Option<String>,
    /// Address of the beginning.
    pub start: u64,
    /// Code.
    pub bytes: Vec<u8>,
}

/// The files of the program, given by the caller.
pub trait Binaries {
    /// Name and build id of each file.
    fn files(&self) -> Vec<(String, String)>;
    /// The function around an address.
    fn function(&self, at: At) -> Option<FunctionBytes>;
    /// Name of the function after a stub of the linkage table.
    fn stub(&self, at: At) -> Option<String>;
}

/// Transfers summed over windows.
#[derive(Debug, Clone, Default)]
pub struct Sums {
    /// Weighed executions of each transfer, by source.
    pub edges: BTreeMap<At, BTreeMap<At, f64>>,
    /// Weighed windows by first address.
    pub firsts: BTreeMap<At, f64>,
}

impl Sums {
    /// Sums of the given windows.
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

    /// Weighed arrivals by address.
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
