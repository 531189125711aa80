//! Cost of blocks by the paper's extended roofline (section V-A): T = Tc + Tm - To, with To = min(Tc, Tm)·ô
//! and ô = 1 - 1 / flops.
//!
//! Tc is the longer of all instructions at the issue width and of floating-point elements at their rate. Tm
//! takes the paper's constant miss rate, [`MISSES`], at the first level and at the last: what misses the
//! first comes from the last cache, what misses that too from memory, each at the bytes of a cycle there.
//!
//! Sources of error, those that the paper names: a division counts as any operation; dependences, reuse
//! between blocks and real miss ratios are not seen. A block without floating point overlaps nothing.
//! Good for ratios between machines, not for seconds.

use std::collections::BTreeMap;

use crate::language::{BlockText, CLASSES, Part, Skeleton};
use crate::machine::Machine;

/// The paper's constant miss rate at the first and at the last level.
pub const MISSES: f64 = 0.85;

/// Nanoseconds of an execution: computing, memory, overlap.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Tc.
    pub compute: f64,
    /// Tm.
    pub memory: f64,
    /// To.
    pub overlap: f64,
}

impl Cost {
    /// T.
    pub fn total(self) -> f64 {
        self.compute + self.memory - self.overlap
    }

    /// Adds another one so many times.
    pub fn add(&mut self, other: Cost, times: f64) {
        self.compute += other.compute * times;
        self.memory += other.memory * times;
        self.overlap += other.overlap * times;
    }
}

/// What an execution of a block costs.
pub fn paper(block: &BlockText, machine: &Machine) -> Cost {
    let (mut instructions, mut elements, mut cycles_fp, mut bytes) = (0.0, 0.0, 0.0, 0.0);
    for part in &block.parts {
        match part {
            Part::Compute(class, lanes, count) => {
                let lanes = f64::from(*lanes);
                // A vector wider than the machine's takes several instructions.
                let name = CLASSES.get(*class).copied().unwrap_or("other");
                let element_bits = if name == "fp32" { 32.0 } else { 64.0 };
                let splits = (lanes * element_bits / machine.vector_bits).ceil().max(1.0);
                instructions += count * splits;
                if matches!(name, "fp32" | "fp64" | "fma" | "fdiv") {
                    let flops = if name == "fma" { 2.0 } else { 1.0 };
                    elements += count * lanes * flops;
                    cycles_fp += count * splits / machine.fp_per_cycle;
                }
            }
            Part::Load(size, count) | Part::Store(size, count) => bytes += f64::from(*size) * count,
            Part::Call { .. } | Part::Library(..) | Part::System => {}
        }
    }
    let cycles = (instructions / machine.issue_width).max(cycles_fp);
    let last = machine.levels.len().saturating_sub(2);
    let rate = |level: usize| machine.levels.get(level).map_or(1.0, |level| level.bytes_per_cycle);
    let waits = bytes * MISSES * (1.0 - MISSES) / rate(last) + bytes * MISSES * MISSES / rate(last + 1);
    let (compute, memory) = (cycles / machine.clock_ghz, waits / machine.clock_ghz);
    let share = if elements >= 1.0 { 1.0 - 1.0 / elements } else { 0.0 };
    Cost { compute, memory, overlap: compute.min(memory) * share }
}

/// Costs of all executions by function and innermost loop.
pub fn by_spot(
    skeleton: &Skeleton,
    executions: &BTreeMap<(usize, u64), f64>,
    spot_of: &dyn Fn(usize, u64) -> Option<(usize, Option<u64>)>,
    machine: &Machine,
) -> BTreeMap<(usize, Option<u64>), Cost> {
    let mut sums: BTreeMap<(usize, Option<u64>), Cost> = BTreeMap::new();
    for (number, function) in skeleton.functions.iter().enumerate() {
        function.blocks(&mut |block| {
            let count = executions.get(&(number, block.label)).copied().unwrap_or(0.0);
            if let Some(place) = spot_of(number, block.label).filter(|_| count > 0.0) {
                sums.entry(place).or_default().add(paper(block, machine), count);
            }
        });
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_grows_with_floating_point() {
        let machine = Machine::parse(include_str!("../machines/e5-2420.toml")).unwrap();
        let of = |name: &str| CLASSES.iter().position(|known| *known == name).unwrap();
        let block = |parts: Vec<Part>| BlockText { label: 1, parts, next: Vec::new() };
        let integer = paper(&block(vec![Part::Compute(of("int"), 1, 8.0), Part::Load(8, 2.0)]), &machine);
        // 8 instructions at 4 a cycle; 16 bytes · .85 · .15 at 8, and 16 · .85² at 4 bytes a cycle.
        assert!((integer.compute - 2.0 / 1.9).abs() < 1e-9 && integer.overlap == 0.0);
        assert!((integer.memory - (16.0 * 0.1275 / 8.0 + 16.0 * 0.7225 / 4.0) / 1.9).abs() < 1e-9);
        let vector = paper(&block(vec![Part::Compute(of("fp64"), 4, 4.0), Part::Load(32, 2.0)]), &machine);
        assert!((vector.compute - 2.0 / 1.9).abs() < 1e-9);
        assert!((vector.overlap / vector.compute - 15.0 / 16.0).abs() < 1e-9);
    }
}
