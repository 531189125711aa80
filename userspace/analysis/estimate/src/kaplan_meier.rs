//! Kaplan–Meier: how far uses stay unreused, with uses observed only for a while.
//!
//! For uses of one calling context F(t) = 1 − ∏ (1 − Σ w of reuses at t / Σ w at risk at t)
//! (Kaplan & Meier 1958, JASA 53(282), eq. 2b, with sample weights). A use is at risk up to
//! the distance observed. Reuses at a distance come before uses censored at the distance.
//!
//! A use chosen for a watch among k open uses of a window represents the k beyond the
//! window: the use leaves with the own weight at the window's end and enters again with
//! w / p_choice (inverse probability of censoring: Robins & Finkelstein 2000, Biometrics
//! 56(3)). Otherwise windows with few open uses would outweigh windows with many.
//!
//! The sum over contexts is taken by redistribution to the right (Efron 1967,
//! Berkeley Symposium 4, §7): observations stay in place, and the weight of
//! each censored use moves on along the context's curve. The result equals
//! the product for a single context, and separates the stretches of the run.
//!
//! Distances are on the fine scale of `mrc::scale` (exact below 128, otherwise to 1.6 %).

use locality_mrc::scale;

/// Contexts with reuses in fewer samples and uses in
/// fewer than [`FEWEST_USES`] share the pooled curve.
pub const FEWEST_REUSES: u64 = 3;
/// Samples with uses and without a reuse are informative
/// too, from 12 on: the data are not reused soon, or never.
pub const FEWEST_USES: u64 = 12;
/// Contexts with a separate curve, the heaviest; the rest share the pooled curve.
pub const MOST_CURVES: usize = 64;

/// A use for the curve: present from after `entry` up to and including `exit`, as bins of the fine scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spell {
    /// Index of the context's group, 0 for contexts without a separate curve.
    pub group: usize,
    /// Weight while present.
    pub weight: f64,
    /// Bin of the last distance before observation; `None`: observed from the start.
    pub entry: Option<usize>,
    /// Bin of the last distance.
    pub exit: usize,
    /// Reused at the exit.
    pub reused: bool,
}

/// Hazards by group and distance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curves {
    bins: usize,
    hazards: Vec<f64>,
}

impl Curves {
    /// Fits curves for `groups` groups. Group 0 has the pooled
    /// curve, which also serves groups without uses at risk.
    pub fn fit<'a>(spells: impl Iterator<Item = &'a Spell> + Clone, groups: usize) -> Self {
        let bins = spells.clone().map(|spell| spell.exit + 2).max().unwrap_or(0);
        let groups = groups.max(1);
        let mut events = vec![0.0; bins * groups];
        // Change of the weight at risk on arrival in a bin.
        let mut change = vec![0.0; bins * groups];
        let mut add = |group: usize, spell: &Spell| {
            let row = group * bins;
            let first = spell.entry.map_or(0, |entry| entry + 1);
            if first > spell.exit {
                return;
            }
            change[row + first] += spell.weight;
            change[row + spell.exit + 1] -= spell.weight;
            if spell.reused {
                events[row + spell.exit] += spell.weight;
            }
        };
        for spell in spells {
            if spell.group > 0 && spell.group < groups {
                add(spell.group, spell);
            }
            add(0, spell);
        }
        let mut hazards = vec![0.0; bins * groups];
        for group in 0..groups {
            let row = group * bins;
            // Sums of floating-point numbers do not come back to 0 exactly.
            let nobody = 1e-9 * change[row..row + bins].iter().filter(|change| **change > 0.0).sum::<f64>();
            let mut risk = 0.0;
            for bin in 0..bins {
                risk += change[row + bin];
                let event = events[row + bin];
                hazards[row + bin] = if event > 0.0 && risk > nobody {
                    (event / risk).min(1.0)
                } else if risk > nobody || group == 0 {
                    0.0
                } else {
                    hazards[bin]
                };
            }
        }
        Self { bins, hazards }
    }

    /// Hazards of a group by bin.
    pub(crate) fn hazards(&self, group: usize) -> &[f64] {
        let row = (group * self.bins).min(self.hazards.len());
        self.hazards.get(row..row + self.bins).unwrap_or_default()
    }

    /// Moves weights known to lie beyond bins along a group's curve. `from[b]`
    /// lies beyond bin b, `start` beyond none. Adds the weight reused at each
    /// bin up to `last` to `to`, and returns the weight not reused until then.
    pub fn redistribute(
        &self,
        group: usize,
        start: f64,
        from: &[f64],
        last: usize,
        to: &mut Vec<f64>,
    ) -> f64 {
        let hazards = self.hazards(group);
        if to.len() < self.bins {
            to.resize(self.bins, 0.0);
        }
        let mut moving = start;
        for (bin, (hazard, to)) in hazards.iter().zip(to).enumerate() {
            if bin > last {
                break;
            }
            let stays = moving * hazard;
            *to += stays;
            moving += from.get(bin).copied().unwrap_or(0.0) - stays;
        }
        // Weight censored beyond the last bin of the curve remains.
        let rest = from.iter().skip(self.bins.min(last.saturating_add(1)));
        moving.max(0.0) + rest.sum::<f64>()
    }
}

/// Bin of a distance.
pub fn bin(distance: u64) -> usize {
    scale::index(distance)
}

#[cfg(test)]
mod tests;
