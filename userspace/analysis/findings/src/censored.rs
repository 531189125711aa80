//! Uses without an observed reuse while watched, to make long reuses visible.
//!
//! Of the watches of one line, weights are known for the trapped and for watches untouched until
//! the end of the trace (or the process); Horvitz–Thompson weights of both represent the withdrawn
//! as well. Untouched data is dead, or the reuse takes longer than the rest of the trace.
//!
//! Sources of error: as in `estimate`; samples near the end of the trace have little time left
//! for a reuse: the share falls with longer traces; lines with few survivors have wide intervals.

use std::collections::BTreeMap;

use locality_estimate::calling_context::{Contexts, PlaceId};
use locality_estimate::interval_estimate::{Counted, Estimate, share_of, shares};

use crate::analysis_trait::{Analysis, in_order};
use crate::observation::{Fate, Watched};

/// Uses without a reuse.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Unseen {
    /// Over watched uses: share not touched again.
    pub overall: Estimate,
    /// By line of the use, most first.
    pub lines: Vec<UnseenLine>,
}

/// Uses at one line.
#[derive(Debug, Clone, PartialEq)]
pub struct UnseenLine {
    /// Line of the use.
    pub place: PlaceId,
    /// Share of the watched uses made here and not touched again.
    pub weight: Estimate,
    /// Share of this line's uses without another touch. n counts watches with a known end.
    pub not_reused: Estimate,
    /// Watches of this line.
    pub watched: u64,
    /// … and withdrawn for newer samples.
    pub withdrawn: u64,
}

/// The analysis in progress.
#[derive(Debug, Clone)]
pub struct UnseenUses<'a> {
    contexts: &'a Contexts,
    watched: Vec<Watched>,
}

impl<'a> UnseenUses<'a> {
    /// Starts empty.
    pub fn new(contexts: &'a Contexts) -> Self {
        Self { contexts, watched: Vec::new() }
    }
}

impl Analysis for UnseenUses<'_> {
    type Observation = Watched;
    type Finding = Unseen;

    fn observe(&mut self, watched: Watched) {
        self.watched.push(watched);
    }

    fn merge(&mut self, other: Self) {
        self.watched.extend(other.watched);
    }

    fn finish(self) -> Unseen {
        let watched = in_order(self.watched);
        let mut by_place: BTreeMap<PlaceId, Vec<&Watched>> = BTreeMap::new();
        for watch in &watched {
            by_place.entry(self.contexts.place_of(watch.use_context)).or_default().push(watch);
        }
        let places: Vec<PlaceId> = by_place.keys().copied().collect();
        // Group 0 is reused watches, group 1 + i the watches of place i without reuse.
        let ended: Vec<(usize, Counted)> = watched
            .iter()
            .filter(|watch| watch.fate != Fate::Withdrawn)
            .map(|watch| {
                let place =
                    places.partition_point(|place| *place < self.contexts.place_of(watch.use_context));
                (if watch.fate == Fate::Reused { 0 } else { 1 + place }, watch.counted())
            })
            .collect();
        let weights = shares(&ended, places.len() + 1).into_iter().skip(1);
        let line = |((place, members), weight): ((PlaceId, Vec<&Watched>), Estimate)| UnseenLine {
            place,
            weight,
            not_reused: not_reused(members.iter().copied()),
            watched: members.len() as u64,
            withdrawn: members.iter().filter(|watch| watch.fate == Fate::Withdrawn).count() as u64,
        };
        let mut lines: Vec<UnseenLine> = by_place.into_iter().zip(weights).map(line).collect();
        lines.sort_by(|a, b| {
            let by_weight = b.weight.value.total_cmp(&a.weight.value);
            by_weight.then(b.watched.cmp(&a.watched))
        });
        Unseen { overall: not_reused(watched.iter()), lines }
    }
}

fn not_reused<'a>(watched: impl Iterator<Item = &'a Watched>) -> Estimate {
    let ended = watched.filter(|watch| watch.fate != Fate::Withdrawn);
    share_of(ended.map(|watch| (watch.fate == Fate::NotReused, watch.counted())))
}

#[cfg(test)]
mod tests;
