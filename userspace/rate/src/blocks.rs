//! Registers that advance from visit to visit of a block.

use std::collections::BTreeMap;

use crate::digest::Digest;
use crate::quantity::Quantity;
use crate::sequence::{Motion, motion};

/// Blocks remembered; beyond, those not seen for longest go.
const MOST_BLOCKS: usize = 2048;
/// Fewest visits in a window from which a motion can be told.
const FEWEST_VISITS: usize = 4;

/// A block with the registers that advance there.
#[derive(Debug, Clone)]
struct Block {
    end: u64,
    last_seen: u32,
    /// (register, quantity)
    registers: Vec<(u8, u32)>,
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
            let Some(first) = visits.first().filter(|_| visits.len() >= FEWEST_VISITS) else { continue };
            for register in 0..16_u8 {
                points.clear();
                points.extend(visits.iter().filter_map(|visit| {
                    let values = digest.registers.get(visit.order as usize)?;
                    Some((visit.access, *values.get(usize::from(register))?))
                }));
                self.learn_register(sample, (first.start, first.end), register, &points, quantities);
            }
        }
        if self.by_start.len() > MOST_BLOCKS {
            let mut ages: Vec<u32> = self.by_start.values().map(|block| block.last_seen).collect();
            ages.sort_unstable();
            let oldest = ages.get(ages.len() / 4).copied().unwrap_or(0);
            self.by_start.retain(|_, block| block.last_seen > oldest);
        }
    }

    fn learn_register(
        &mut self,
        sample: u32,
        (start, end): (u64, u64),
        register: u8,
        points: &[(u32, u64)],
        quantities: &mut Vec<Quantity>,
    ) {
        let motion = motion(points, 64);
        let known = self.by_start.get_mut(&start);
        let quantity = known.and_then(|block| {
            block.last_seen = sample;
            block.registers.iter().find(|entry| entry.0 == register).map(|entry| entry.1)
        });
        match (quantity, &motion) {
            (Some(index), _) => {
                if let Some(quantity) = quantities.get_mut(index as usize) {
                    quantity.observe(sample, &motion, None);
                }
            }
            (None, Motion::Moving(steps)) => {
                let mut quantity = Quantity::new(steps, 64);
                quantity.observe(sample, &motion, None);
                let index = quantities.len() as u32;
                quantities.push(quantity);
                let block = self.by_start.entry(start).or_insert_with(|| Block {
                    end,
                    last_seen: sample,
                    registers: Vec::new(),
                });
                block.registers.push((register, index));
            }
            _ => {}
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
