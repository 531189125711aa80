//! Life of a line after a load: used bytes and number of accesses, until eviction.
//!
//! A line leaves a cache after an idle time of T accesses, the cache's fill time. A
//! longer window shows everything. Otherwise each unused byte has two possible fates,
//! use or eviction, whichever comes first. Lines of the place seen for longer give the
//! probability of the first (Aalen & Johansen 1978, Scandinavian Journal of Statistics
//! 5(3), for two competing risks). The rest is left to the caller ([`Later::open`]).
//!
//! A line still resident at the window's end is expected to have further bursts
//! like the observed bursts, each with the chance of a touch before eviction.
//!
//! Sources of error: a burst later on uses as many accesses as earlier
//! bursts; a place with few lines seen long has the common hazards.

use locality_model::{Burst, Load};
use locality_mrc::scale;

/// Bytes of a line.
pub(super) const LINE: f64 = 64.0;
/// Bins of the fine scale in a bin of ages, or of moved distances.
const COARSE: usize = 8;
/// Observations at risk from which a place's own hazard is taken.
const ENOUGH: i32 = 4;

/// Bin of an age.
pub(super) fn bin(age: u64) -> usize {
    scale::index(age) / COARSE
}

/// The window's view of a line after the load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Shown {
    /// Bytes used.
    pub used: f64,
    /// Words of eight bytes with a used byte.
    pub words: f64,
    /// Accesses to the line.
    pub touches: f64,
    /// Whether the view is complete.
    pub state: State,
}

/// Ages are accesses since the load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum State {
    /// Age at eviction.
    Evicted(u64),
    /// Still cached at `age`, when the window ended, and not touched in the last `idle` accesses.
    Open { age: u64, idle: u64 },
}

/// Follows a line until eviction or the end of the
/// window; reports each new use of bytes with the age.
pub(super) fn follow(load: &Load, fill: u64, mut used_at: impl FnMut(u64, f64)) -> Shown {
    let (mut mask, mut touches, mut last) = (0u64, 0, 0);
    let mut state = None;
    for Burst { from, to, touches: more, bytes } in &load.bursts {
        if touches > 0 && from - last >= fill {
            state = Some(State::Evicted(last.saturating_add(fill)));
            break;
        }
        used_at(*from, f64::from((bytes & !mask).count_ones()));
        mask |= bytes;
        touches = u64::saturating_add(touches, *more);
        last = *to;
    }
    let idle = load.shown.saturating_sub(last);
    let state = state.unwrap_or(match idle < fill {
        true => State::Open { age: load.shown, idle },
        false => State::Evicted(last.saturating_add(fill)),
    });
    Shown {
        used: f64::from(mask.count_ones()),
        words: Burst::words(mask),
        touches: touches.max(1) as f64,
        state,
    }
}

/// Whether a load's bursts are in order; false only for a damaged file.
pub(super) fn is_ordered(load: &Load) -> bool {
    let mut last = 0;
    !load.bursts.is_empty()
        && load.bursts.iter().all(|burst| {
            let fits = last <= burst.from && burst.from <= burst.to && burst.to <= load.shown;
            last = burst.to;
            fits
        })
}

/// Time for which a loaded line's bytes were seen unused.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spell {
    /// Age at the end.
    pub until: u64,
    /// The end of the observation.
    pub end: End,
    /// Bytes represented.
    pub weight: f64,
}

/// End of a spell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Used,
    Evicted,
    /// The window or the watch was over.
    Unknown,
}

/// The future of a byte unused at an age.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Later {
    /// Chance of a use before the eviction of the line, as far as lines were seen.
    pub used: f64,
    /// Chance of neither use nor eviction in the time observed.
    pub open: f64,
}

/// No observation.
const UNSEEN: Later = Later { used: 0.0, open: 1.0 };

/// Chances by age, of a place or of all.
#[derive(Debug, Clone, Default)]
pub(super) struct Fates {
    bins: Vec<Bin>,
    later: Vec<Later>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Bin {
    used: f64,
    evicted: f64,
    /// Change of the weight at risk; after [`Fates::finish`], the weight at risk.
    at_risk: f64,
    n: i32,
}

impl Fates {
    pub fn add(&mut self, spell: &Spell) {
        let last = bin(spell.until);
        if spell.weight <= 0.0 {
            return;
        }
        if self.bins.len() < last + 2 {
            self.bins.resize(last + 2, Bin::default());
        }
        for (at, sign) in [(0, 1), (last + 1, -1)] {
            if let Some(bin) = self.bins.get_mut(at) {
                bin.at_risk += f64::from(sign) * spell.weight;
                bin.n += sign;
            }
        }
        if let Some(bin) = self.bins.get_mut(last) {
            match spell.end {
                End::Used => bin.used += spell.weight,
                End::Evicted => bin.evicted += spell.weight,
                End::Unknown => {}
            }
        }
    }

    /// To be called after the last spell; with too few at risk, the hazards of `all` count.
    pub fn finish(&mut self, all: Option<&Self>) {
        let (mut at_risk, mut n) = (0.0, 0);
        for bin in &mut self.bins {
            at_risk += bin.at_risk;
            n += bin.n;
            (bin.at_risk, bin.n) = (at_risk, n);
        }
        let length = self.bins.len().max(all.map_or(0, |all| all.bins.len()));
        let mut later = vec![UNSEEN; length + 1];
        for at in (0..length).rev() {
            let own = self.bins.get(at).copied().unwrap_or_default();
            let common = all.and_then(|all| all.bins.get(at)).copied();
            let bin = common.filter(|_| own.n < ENOUGH).unwrap_or(own);
            if bin.n > 0 && bin.at_risk > 0.0 {
                let hazard = |of: f64| (of / bin.at_risk).clamp(0.0, 1.0);
                let used = hazard(bin.used);
                let stays = (1.0 - used - hazard(bin.evicted)).max(0.0);
                let after = later[at + 1];
                later[at] = Later { used: used + stays * after.used, open: stays * after.open };
            }
        }
        self.later = later;
    }

    /// Future after an age.
    pub fn later(&self, age: u64) -> Later {
        self.later.get(bin(age) + 1).copied().unwrap_or(UNSEEN)
    }
}

/// Mean of 1/n for a number of bursts n, each the last with a chance p: p/(1 − p) · ln(1/p).
pub(super) fn mean_reciprocal(last: f64) -> f64 {
    let p = last.clamp(1e-9, 1.0);
    if p > 1.0 - 1e-9 { 1.0 } else { p / (1.0 - p) * -p.ln() }
}
