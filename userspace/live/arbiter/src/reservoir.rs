//! Slots that form a reservoir: every candidate since a slot
//! was last free has the same chance to be in the slot.
//!
//! Not here: the choice of candidates among samples (the policy's
//! business), and any limit on slots except the one passed in.

use super::{Held, WatchKey};

/// A taken slot.
#[derive(Debug, Clone, Copy)]
struct Slot {
    held: Held,
    /// Candidates since the slot was last free, the successful one included (k of RDX §IV.A).
    candidates: u64,
}

/// Result of one competition.
pub(super) enum Contest {
    /// The candidate has a slot now; a former holder may have lost it.
    Placed(Option<Held>),
    /// The candidate found no slot.
    Lost,
}

/// The taken slots. Free slots need no memory: a slot's counter restarts when the slot is taken.
#[derive(Debug, Clone, Default)]
pub(super) struct Reservoir {
    taken: Vec<Slot>,
}

impl Reservoir {
    pub fn len(&self) -> usize {
        self.taken.len()
    }

    pub fn holds(&self, id: WatchKey) -> bool {
        self.taken.iter().any(|slot| slot.held.id == id)
    }

    /// Gives a watch a free slot without a contest.
    pub fn seat(&mut self, held: Held) {
        self.taken.push(Slot { held, candidates: 1 });
    }

    pub fn remove(&mut self, id: WatchKey) -> Option<Held> {
        let at = self.taken.iter().position(|slot| slot.held.id == id)?;
        Some(self.taken.remove(at).held)
    }

    pub fn take_newest(&mut self) -> Option<Held> {
        let newest = self.taken.iter().map(|slot| slot.held).max_by_key(|held| held.serial)?;
        self.remove(newest.id)
    }

    /// Removes the newest of several watches with probability 1/2.
    pub fn thin(&mut self, random: &mut fastrand::Rng) -> Option<Held> {
        let newest = (0..self.taken.len()).max_by_key(|slot| self.taken[*slot].held.serial)?;
        if self.taken.len() < 2 {
            return None;
        }
        if random.bool() {
            return Some(self.taken.remove(newest).held);
        }
        self.taken[newest].held.p_survive *= 0.5;
        None
    }

    pub fn drain(&mut self) -> impl Iterator<Item = Held> + '_ {
        self.taken.drain(..).map(|slot| slot.held)
    }

    /// Probability of a slot for the next candidate, of `slots` slots.
    pub fn p_placed(&self, slots: usize) -> f64 {
        if self.taken.len() < slots {
            return 1.0;
        }
        1.0 - self.yields().iter().map(|p| 1.0 - p).product::<f64>()
    }

    /// A candidate competes for `slots` slots. RDX §IV.A: a free slot takes the
    /// candidate at once; else the slots are visited in random order and each yields
    /// with probability 1/k until one does. Every k moves on, whatever happened.
    pub fn compete(&mut self, candidate: Held, slots: usize, random: &mut fastrand::Rng) -> Contest {
        let yields = self.yields();
        for slot in &mut self.taken {
            slot.candidates += 1;
        }
        if self.taken.len() < slots {
            self.seat(candidate);
            return Contest::Placed(None);
        }
        let mut order: Vec<usize> = (0..yields.len()).collect();
        random.shuffle(&mut order);
        let winner = order.into_iter().find(|&slot| random.f64() < yields[slot]);

        for (index, slot) in self.taken.iter_mut().enumerate() {
            if Some(index) != winner {
                slot.held.p_survive *= 1.0 - eviction_probability(&yields, index);
            }
        }
        match winner {
            Some(index) => Contest::Placed(Some(std::mem::replace(&mut self.taken[index].held, candidate))),
            None => Contest::Lost,
        }
    }

    /// Each slot's probability to yield to the next candidate, the (k + 1)-th.
    fn yields(&self) -> Vec<f64> {
        self.taken.iter().map(|slot| 1.0 / (slot.candidates + 1) as f64).collect()
    }
}

/// Probability that slot `index` yields, if the slots are asked in uniformly
/// random order until one yields and slot j yields with probability `yields[j]`.
///
/// Random order is the order of independent uniform arrival times, so with u the arrival of slot i:
/// P = y_i · ∫₀¹ ∏_{j≠i} (1 − u·y_j) du. The product is a polynomial in u, integrated term by term.
pub(super) fn eviction_probability(yields: &[f64], index: usize) -> f64 {
    let mut polynomial = vec![1.0];
    for (_, y) in yields.iter().enumerate().filter(|&(other, _)| other != index) {
        polynomial.push(0.0);
        for power in (1..polynomial.len()).rev() {
            polynomial[power] -= y * polynomial[power - 1];
        }
    }
    let integral: f64 = polynomial.iter().enumerate().map(|(power, c)| c / (power + 1) as f64).sum();
    yields[index] * integral
}
