//! Loops of the traced programs: follows each window through the loops of its program, and makes rows of
//! what the window shows.
//!
//! Not here: how loops are found (`locality_loops`), how long they would take (`locality_rate`), their source
//! lines.

use std::collections::HashMap;

use locality_loops::{Graph, Loop, Window};
use locality_rate::WindowView;

/// Loops of one window that are recorded, those with the most instructions.
const MOST: usize = 6;
/// Least share of a window's instructions that a recorded loop has.
const LEAST: f64 = 0.02;

/// The loops of all processes.
#[derive(Debug, Default)]
pub struct LoopTracker {
    graphs: HashMap<u32, Graph>,
}

impl LoopTracker {
    /// The loops that a window of a process shows, those with the most instructions first.
    pub fn observe(&mut self, pid: u32, view: &WindowView<'_>) -> Vec<Loop> {
        let WindowView { events, values, code, instructions, .. } = *view;
        let window = Window { events, values, code, instructions, core_cycles: &[] };
        let mut loops = self.graphs.entry(pid).or_default().observe(&window);
        let least = instructions as f64 * LEAST;
        loops.truncate(MOST);
        loops.retain(|found| found.is_first || found.instructions as f64 >= least);
        loops
    }

    /// Another program runs in the process, or the process has ended.
    pub fn forget(&mut self, pid: u32) {
        self.graphs.remove(&pid);
    }
}
