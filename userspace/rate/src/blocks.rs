//! Registers that advance from visit to visit of a block.

use std::collections::BTreeMap;

use crate::digest::Digest;
use crate::quantity::Quantity;
use crate::sequence::{Motion, motion};

/// Blocks remembered; beyond, those not seen for longest go.
const MOST_BLOCKS: usize = 2048;
/// Fewest visits in a window from which a motion can be told.
const FEWEST_VISITS: usize = 4;
/// Windows remembered of a block.
const MOST_VISITS: usize = 24;

/// A block with the registers that advance there.
#[derive(Debug, Clone)]
struct Block {
    end: u64,
    last_seen: u32,
    /// (register, quantity)
    registers: Vec<(u8, u32)>,
    /// Windows that visited it lately, for registers that are yet to be seen moving.
    visits: Vec<Visited>,
}

/// A window's visits to a block.
#[derive(Debug, Clone, Copy)]
struct Visited {
    sample: u32,
    /// Accesses from the first visit to the last.
    accesses: u32,
    weight: f64,
    /// Bit per register: it moved, but not as a counter does.
    erratic: u16,
}

/// All blocks of a process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Blocks {
    by_start: BTreeMap<u64, Block>,
}

impl Blocks {
    /// Learns from a window.
    pub fn learn(&mut self, sample: u32, digest: &Digest<'_>, quantities: &mut Vec<Quantity>) {
        let mut points: Vec<(u32, u64)> = Vec::new();
        for visits in digest.visits.chunk_by(|a, b| a.start == b.start) {
            let ends = visits.first().zip(visits.last()).filter(|_| visits.len() >= FEWEST_VISITS);
            let Some((first, last)) = ends else { continue };
            let new =
                || Block { end: first.end, last_seen: sample, registers: Vec::new(), visits: Vec::new() };
            let block = self.by_start.entry(first.start).or_insert_with(new);
            block.last_seen = sample;
            let mut visited =
                Visited { sample, accesses: last.access - first.access, weight: digest.weight, erratic: 0 };
            for register in 0..16_u8 {
                points.clear();
                points.extend(visits.iter().filter_map(|visit| {
                    let values = digest.registers.get(visit.order as usize)?;
                    Some((visit.access, *values.get(usize::from(register))?))
                }));
                let motion = motion(&points, 64);
                visited.erratic |= u16::from(motion == Motion::Erratic) << register;
                block.learn(
                    sample,
                    register,
                    &motion,
                    (first.access, last.access),
                    digest.weight,
                    quantities,
                );
            }
            if block.visits.len() >= MOST_VISITS {
                block.visits.remove(0);
            }
            block.visits.push(visited);
        }
        if self.by_start.len() > MOST_BLOCKS {
            let mut ages: Vec<u32> = self.by_start.values().map(|block| block.last_seen).collect();
            ages.sort_unstable();
            let oldest = ages.get(ages.len() / 4).copied().unwrap_or(0);
            self.by_start.retain(|_, block| block.last_seen > oldest);
        }
    }

    /// The advancing registers of the block around an instruction.
    pub fn at(&self, ip: u64) -> &[(u8, u32)] {
        self.by_start
            .range(..=ip)
            .next_back()
            .filter(|(_, block)| ip < block.end)
            .map_or(&[], |(_, block)| &block.registers)
    }
}

impl Block {
    fn learn(
        &mut self,
        sample: u32,
        register: u8,
        motion: &Motion,
        seen: (u32, u32),
        weight: f64,
        quantities: &mut Vec<Quantity>,
    ) {
        let known = self.registers.iter().find(|entry| entry.0 == register).map(|entry| entry.1 as usize);
        if let Some(quantity) = known.and_then(|index| quantities.get_mut(index)) {
            quantity.observe(sample, motion, seen, weight);
        } else if let Motion::Moving(steps) = motion {
            let mut quantity = Quantity::new(steps, 64);
            for visited in &self.visits {
                let was_erratic = visited.erratic >> register & 1 == 1;
                let motion = if was_erratic { Motion::Erratic } else { Motion::Constant };
                quantity.observe(visited.sample, &motion, (0, visited.accesses), visited.weight);
            }
            quantity.observe(sample, motion, seen, weight);
            self.registers.push((register, quantities.len() as u32));
            quantities.push(quantity);
        }
    }
}
