//! The assembler's part about control flow, the files that transfers of a window lie in, and about
//! parallelism: the rows.

use locality_capture::events::WindowTaken;
use locality_loops::Transfers;
use locality_model::{FlowEdge, LoopReading, ModuleId, SampleId, WindowFlow};

use super::Assembler;

impl Assembler {
    /// Writes the parallelism of a window.
    pub(super) fn parallelism(&mut self, sample: SampleId, pid: u32, taken: &WindowTaken) {
        let Some(parallelism) = &mut self.parallelism else { return };
        let view = self.pace.view(taken);
        let found = view.and_then(|view| parallelism.observe(sample, pid, taken.log.generation, &view));
        if let Some(found) = found {
            self.store.execution(found);
        }
    }

    pub(super) fn forget_parallelism(&mut self, pid: u32) {
        if let Some(parallelism) = &mut self.parallelism {
            parallelism.forget(pid);
        }
    }

    /// Writes where control went in a window, and what tests of loops compared.
    pub(super) fn flow(&mut self, sample: SampleId, pid: u32, flow: &Transfers) {
        let mut modules: Vec<(ModuleId, u64)> = Vec::new();
        let addresses = flow.edges.iter().flat_map(|edge| [edge.from, edge.to]);
        let mut pages: Vec<u64> = addresses.chain([flow.first]).map(|address| address >> 12).collect();
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            if let Some((info, bias)) = self.processes.module_of(pid, page << 12) {
                let of = (self.module(&info), bias);
                if !modules.contains(&of) {
                    modules.push(of);
                }
            }
        }
        let edge = |edge: &locality_loops::Edge| FlowEdge { from: edge.from, to: edge.to, count: edge.count };
        let edges = flow.edges.iter().map(edge).collect();
        self.store.flow(WindowFlow { sample, first: flow.first, modules, edges, left_out: flow.left_out });
        for reading in flow.readings.iter().filter(|_| self.with_values) {
            let (ip, left, right) = (reading.ip, reading.left, reading.right);
            self.store.reading(LoopReading { sample, ip, left, right });
        }
    }
}
