//! Allocation of the few debug registers, with the probability of each decision.
//!
//! A pure state machine: offers and endings in, decisions out. The package is separate, because
//! tests of the estimators need the chance of each observation. There are no system calls and no
//! clock; chance comes from a seeded generator, so a recorded sequence of calls replays exactly.
//!
//! Slots are logical. A watch that moves from the quick slot into the reservoir keeps its debug
//! register; nothing is re-armed. Invariant: watches granted ≤ slots owned, always.
//!
//! The reservoir is that of RDX §IV.A: each slot counts the offers k since it was last free and is
//! replaced with probability 1/k; several slots are visited in random order until one yields. The
//! quick slot is described in [`Policy::QuickReservoir`].
//!
//! Probabilities are exact and conditional on the history: each decision's chance is computed
//! from the state before the decision. The product over a watch's decisions is therefore a
//! valid divisor for Horvitz–Thompson weights (the inverse has expectation 1 at each step),
//! as long as the moment a location is touched again does not depend on our choices.
//!
//! Limits: the caller must report traps (`ended`) before the
//! offer of the next sample, else a dead watch competes.

use std::fmt;
use std::str::FromStr;

mod reservoir;
#[cfg(test)]
mod tests;

use reservoir::{Contest, Reservoir};

/// Debug registers that x86-64 has for each thread (DR0 to DR3).
pub const MAX_SLOTS: u8 = 4;

/// The caller's name for a watch; one key has at most one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchKey(pub u64);

/// How registers are given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// RDX §IV.A: all slots form the reservoir; a sample may be refused.
    Reservoir,
    /// One quick slot takes every sample, to observe all short reuses. Its former watch, if it has
    /// not trapped (the survivor), competes for the other slots as a reservoir. A single slot would
    /// be replace-newest, which never observes long reuses, so one slot is a plain reservoir.
    #[default]
    QuickReservoir,
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "reservoir" => Ok(Self::Reservoir),
            "quick+reservoir" => Ok(Self::QuickReservoir),
            other => Err(format!("unknown policy \"{other}\"; known: reservoir, quick+reservoir")),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reservoir => "reservoir",
            Self::QuickReservoir => "quick+reservoir",
        })
    }
}

/// A watch without its slot.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ended {
    /// Which.
    pub id: WatchKey,
    /// Product of its survival probabilities over the survived decisions, in (0, 1]. The evicting
    /// decision is not among them: the watch was observed until then.
    pub p_survive: f64,
}

/// What to do with an offered sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// Arm a watchpoint for it, after disarming [`Decision::evict`].
    pub arm: bool,
    /// The watch whose register is needed.
    pub evict: Option<Ended>,
    /// Probability that this sample was going to be armed, whatever the dice then said; 0 without slots.
    pub p_arm: f64,
}

impl Decision {
    const NOTHING: Self = Self { arm: false, evict: None, p_arm: 0.0 };
}

/// A watch that owns a slot.
#[derive(Debug, Clone, Copy)]
struct Held {
    id: WatchKey,
    p_survive: f64,
    /// Order of arrival, to find the newest.
    serial: u64,
}

impl Held {
    fn end(self) -> Ended {
        Ended { id: self.id, p_survive: self.p_survive }
    }
}

/// The state machine. One per set of debug registers that are handed out together.
#[derive(Debug, Clone)]
pub struct Arbiter {
    policy: Policy,
    /// Slots at the start.
    full: u8,
    /// Slots the kernel still grants.
    owned: u8,
    quick: Option<Held>,
    reservoir: Reservoir,
    random: fastrand::Rng,
    serial: u64,
}

impl Arbiter {
    /// An arbiter over `slots` registers (more than [`MAX_SLOTS`] count as that many).
    pub fn new(policy: Policy, slots: u8, seed: u64) -> Self {
        let full = slots.min(MAX_SLOTS);
        Self {
            policy,
            full,
            owned: full,
            quick: None,
            reservoir: Reservoir::default(),
            random: fastrand::Rng::with_seed(seed),
            serial: 0,
        }
    }

    /// Slots that the kernel grants at the moment.
    pub fn owned(&self) -> usize {
        usize::from(self.owned)
    }

    /// Watches that hold a slot.
    pub fn granted(&self) -> usize {
        self.reservoir.len() + usize::from(self.quick.is_some())
    }

    /// True when the watch holds a slot.
    pub fn holds(&self, id: WatchKey) -> bool {
        self.quick.is_some_and(|held| held.id == id) || self.reservoir.holds(id)
    }

    /// A sample asks for a register. A key that has a slot already is not armed twice.
    pub fn offer(&mut self, id: WatchKey) -> Decision {
        if self.owned == 0 || self.holds(id) {
            return Decision::NOTHING;
        }
        self.serial += 1;
        let newcomer = Held { id, p_survive: 1.0, serial: self.serial };
        if !self.has_quick_slot() {
            let p_arm = self.reservoir.p_placed(self.owned());
            return match self.reservoir.compete(newcomer, self.owned(), &mut self.random) {
                Contest::Placed(evicted) => Decision { arm: true, evict: evicted.map(Held::end), p_arm },
                Contest::Lost => Decision { arm: false, evict: None, p_arm },
            };
        }
        let evict = self.quick.replace(newcomer).and_then(|survivor| self.move_on(survivor));
        Decision { arm: true, evict: evict.map(Held::end), p_arm: 1.0 }
    }

    /// The former holder of the quick slot competes for the reservoir. Returns whoever has no slot
    /// afterwards.
    fn move_on(&mut self, survivor: Held) -> Option<Held> {
        let slots = self.owned() - 1;
        let winner = Held { p_survive: survivor.p_survive * self.reservoir.p_placed(slots), ..survivor };
        match self.reservoir.compete(winner, slots, &mut self.random) {
            Contest::Placed(evicted) => evicted,
            Contest::Lost => Some(survivor),
        }
    }

    /// Frees a slot for another use of its register until the next offer: in half of the calls the newest
    /// watch of the reservoir ends, if the reservoir has older ones, which stay and observe long reuses.
    /// `None`: no watch ended. The quick slot's watch stays, too.
    pub fn make_room(&mut self) -> Option<Ended> {
        if !self.has_quick_slot() {
            return None;
        }
        self.reservoir.thin(&mut self.random).map(Held::end)
    }

    /// The watch trapped, or its thread is gone: its slot is free. Returns its survival
    /// probability, `None` when the key holds no slot.
    pub fn ended(&mut self, id: WatchKey) -> Option<f64> {
        if self.quick.is_some_and(|held| held.id == id) {
            return self.quick.take().map(|held| held.p_survive);
        }
        self.reservoir.remove(id).map(|held| held.p_survive)
    }

    /// The kernel refused the granted register (ENOSPC), because another program uses one. The
    /// watch and one slot are gone until [`Arbiter::restore`]. A key without a slot changes
    /// nothing.
    pub fn refused(&mut self, id: WatchKey) {
        if self.ended(id).is_none() {
            return;
        }
        self.owned -= 1;
        let reservoir_slots = self.owned() - usize::from(self.has_quick_slot());
        if self.has_quick_slot() {
            // The reservoir shrank below its number of watches: its newest watch takes the quick
            // slot, which is empty then.
            if self.reservoir.len() > reservoir_slots && self.quick.is_none() {
                self.quick = self.reservoir.take_newest();
            }
        } else if let Some(held) = self.quick.take() {
            self.reservoir.seat(held);
        }
        debug_assert!(self.reservoir.len() <= reservoir_slots);
    }

    /// The kernel may grant all slots again.
    pub fn restore(&mut self) {
        // From one slot back to several, the quick slot starts empty and the reservoir keeps what it has.
        self.owned = self.full;
    }

    /// Ends every watch, oldest slot first (end of the trace).
    pub fn drain(&mut self) -> Vec<Ended> {
        self.quick.take().into_iter().chain(self.reservoir.drain()).map(Held::end).collect()
    }

    fn has_quick_slot(&self) -> bool {
        self.policy == Policy::QuickReservoir && self.owned >= 2
    }
}
