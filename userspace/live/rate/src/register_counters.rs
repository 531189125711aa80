//! Registers that advance from visit to visit of a block.

use std::collections::BTreeMap;

use crate::induction::Quantity;
use crate::steps::{LARGEST_STEP, Motion, motion, turns_too_often};
use crate::window_digest::{Digest, Visit};

/// Blocks remembered; beyond, those not seen for longest go.
const MOST_BLOCKS: usize = 2048;
/// Fewest visits in a window from which a motion can be recognised.
const FEWEST_VISITS: usize = 4;
/// Windows remembered of a block.
const MOST_VISITS: usize = 24;

/// A block with its advancing registers.
#[derive(Debug, Clone)]
struct Block {
    start: u64,
    end: u64,
    last_seen: u32,
    /// [`Digest::hottest`] of the last visiting window.
    place: Option<u64>,
    /// (register, quantity)
    registers: Vec<(u8, u32)>,
    /// Recent visiting windows, for registers not seen moving yet.
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
            let new = || Block {
                start: first.start,
                end: first.end,
                last_seen: sample,
                place: None,
                registers: Vec::new(),
                visits: Vec::new(),
            };
            let block = self.by_start.entry(first.start).or_insert_with(new);
            (block.last_seen, block.place) = (sample, digest.hottest);
            let mut visited =
                Visited { sample, accesses: last.access - first.access, weight: digest.weight, erratic: 0 };
            let turns = Turns::of(visits, digest.registers);
            let mut moved = [(0, 0); 16];
            for register in 0..16_u8 {
                let motion = turns.motion(usize::from(register)).unwrap_or_else(|| {
                    points.clear();
                    points.extend(visits.iter().filter_map(|visit| {
                        let values = digest.registers.get(visit.order as usize)?;
                        Some((visit.access, *values.get(usize::from(register))?))
                    }));
                    motion(&points, 64)
                });
                visited.erratic |= u16::from(motion == Motion::Erratic) << register;
                if let (Motion::Moving(steps), Some(moved)) = (&motion, moved.get_mut(usize::from(register)))
                {
                    *moved = (steps.edges, steps.wraps);
                }
                block.learn(
                    sample,
                    register,
                    &motion,
                    (first.access, last.access),
                    digest.weight,
                    quantities,
                );
            }
            block.compare(&moved, quantities);
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

    /// The place to which the block around an instruction belongs: the hottest block of the window
    /// that showed it last.
    pub fn place(&self, ip: u64) -> Option<u64> {
        self.around(ip)?.place
    }

    /// The advancing registers of the block around an instruction.
    pub fn at(&self, ip: u64) -> &[(u8, u32)] {
        self.around(ip).map_or(&[], |block| &block.registers)
    }

    fn around(&self, ip: u64) -> Option<&Block> {
        self.by_start.range(..=ip).next_back().map(|(_, block)| block).filter(|block| ip < block.end)
    }
}

/// How often each register grew and shrank from visit to visit, which is enough for most registers.
struct Turns {
    up: [u64; 16],
    down: [u64; 16],
    /// Bits of all steps' sizes.
    sizes: [u64; 16],
}

impl Turns {
    fn of(visits: &[Visit], registers: &[[u64; 16]]) -> Turns {
        let mut turns = Turns { up: [0; 16], down: [0; 16], sizes: [0; 16] };
        let mut before: Option<&[u64; 16]> = None;
        for now in visits.iter().filter_map(|visit| registers.get(visit.order as usize)) {
            if let Some(before) = before {
                // Without comparisons, since a processor's vectors do these at once.
                let counts = turns.up.iter_mut().zip(&mut turns.down).zip(&mut turns.sizes);
                for (((up, down), sizes), (before, now)) in counts.zip(before.iter().zip(now)) {
                    let step = now.wrapping_sub(*before);
                    let is_down = step >> 63;
                    *up += step.wrapping_neg() >> 63;
                    *down += is_down;
                    *sizes |= step ^ is_down.wrapping_neg();
                }
            }
            before = Some(now);
        }
        turns
    }

    /// The motion of a register that does not count; `None` for a possible counter.
    fn motion(&self, register: usize) -> Option<Motion> {
        let (up, down) = (*self.up.get(register)?, *self.down.get(register)?);
        if up + down == 0 {
            return Some(Motion::Constant);
        }
        let is_large = self.sizes.get(register).is_some_and(|sizes| *sizes >= 2 * LARGEST_STEP);
        (is_large || turns_too_often(up as u32, down as u32)).then_some(Motion::Erratic)
    }
}

impl Block {
    /// Compares the steps of each register with the wraps of the others, by what a window showed of both.
    fn compare(&self, moved: &[(u32, u32); 16], quantities: &mut [Quantity]) {
        let of = |register: u8| moved.get(usize::from(register)).copied().unwrap_or_default();
        for (register, index) in &self.registers {
            let (edges, own) = of(*register);
            for (other, number) in self.registers.iter().filter(|(other, _)| other != register) {
                let (_, wraps) = of(*other);
                let Some(quantity) = quantities.get_mut(*index as usize) else { continue };
                if own == 0 && (edges > 0 || wraps > 0) {
                    quantity.note_beside(*number, edges == wraps);
                }
            }
        }
    }

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
            quantity.block = Some(self.start);
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
