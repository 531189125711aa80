//! Places of memory accesses: shares of CPU time by
//! function and by source line of the sampled access.
//!
//! Sources of error: a clock samples time, not accesses: a slow access
//! counts for more than a quick access (as a reader of "hot" wants, but
//! unlike an access count); a timer lands on the access after a slow access.

use std::collections::HashMap;

use locality_estimate::calling_context::{Contexts, PlaceId, function_name};
use locality_estimate::interval_estimate::{Counted, Estimate, shares};
use locality_model::{AccessKind, Profile};

use crate::analysis_trait::{Analysis, in_order};
use crate::observation::Hit;

/// Both tables, heaviest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hot {
    /// By function; a library function counts under the function's name.
    pub functions: Vec<Row<Function>>,
    /// By source line of the program.
    pub lines: Vec<Row<PlaceId>>,
}

/// A function, for a table row.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Function {
    /// Name, or module and address.
    pub name: String,
    /// Path of the module, if known.
    pub module: Option<String>,
}

/// Row of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Row<T> {
    /// Key of the row.
    pub what: T,
    /// Share of the sampled CPU time.
    pub share: Estimate,
    /// Part of the row's samples with a reading access, 0 to 1.
    pub loads: f64,
    /// Part with a writing access; a read-modify-write counts here and under loads.
    pub stores: f64,
    /// Part with unknown access.
    pub unknown: f64,
}

/// The analysis in progress.
#[derive(Debug, Clone)]
pub struct HotAccesses<'a> {
    profile: &'a Profile,
    contexts: &'a Contexts,
    hits: Vec<Hit>,
}

impl<'a> HotAccesses<'a> {
    /// Starts empty.
    pub fn new(profile: &'a Profile, contexts: &'a Contexts) -> Self {
        Self { profile, contexts, hits: Vec::new() }
    }

    fn function(&self, hit: &Hit) -> Function {
        let place = self.contexts.place(self.contexts.place_of(hit.context));
        let innermost = self.contexts.frames(hit.context).first().copied();
        let frame_id = if place.via.is_some() { innermost } else { place.frame };
        let frame = frame_id.and_then(|id| self.profile.frames.get(id.0 as usize));
        let module =
            frame.and_then(|frame| frame.module).and_then(|id| self.profile.modules.get(id.0 as usize));
        Function {
            name: frame.map_or_else(|| "unknown".to_owned(), |frame| function_name(self.profile, frame)),
            module: module.map(|module| module.path.clone()),
        }
    }
}

impl Analysis for HotAccesses<'_> {
    type Observation = Hit;
    type Finding = Hot;

    fn observe(&mut self, hit: Hit) {
        self.hits.push(hit);
    }

    fn merge(&mut self, other: Self) {
        self.hits.extend(other.hits);
    }

    fn finish(mut self) -> Hot {
        let hits = in_order(std::mem::take(&mut self.hits));
        Hot {
            functions: rows(&hits, |hit| self.function(hit)),
            lines: rows(&hits, |hit| self.contexts.place_of(hit.context)),
        }
    }
}

fn rows<T: Clone + Eq + std::hash::Hash>(hits: &[Hit], what: impl Fn(&Hit) -> T) -> Vec<Row<T>> {
    let mut index = HashMap::new();
    let mut rows: Vec<Row<T>> = Vec::new();
    let mut members = Vec::with_capacity(hits.len());
    for hit in hits {
        let what = what(hit);
        let at = *index.entry(what.clone()).or_insert(rows.len());
        if at == rows.len() {
            rows.push(Row { what, share: Estimate::default(), loads: 0.0, stores: 0.0, unknown: 0.0 });
        }
        members.push((at, Counted { weight: hit.weight, sample: hit.sample }));
        let row = &mut rows[at];
        match hit.kind {
            AccessKind::Load => row.loads += hit.weight,
            AccessKind::Store => row.stores += hit.weight,
            AccessKind::Unknown => row.unknown += hit.weight,
            AccessKind::ReadWrite => {
                row.loads += hit.weight;
                row.stores += hit.weight;
            }
        }
    }
    let mut sums = vec![0.0; rows.len()];
    for (at, counted) in &members {
        sums[*at] += counted.weight;
    }
    for ((row, share), sum) in rows.iter_mut().zip(shares(&members, sums.len())).zip(sums) {
        row.share = share;
        if sum > 0.0 {
            row.loads /= sum;
            row.stores /= sum;
            row.unknown /= sum;
        }
    }
    rows.sort_by(|a, b| b.share.value.total_cmp(&a.share.value));
    rows
}

#[cfg(test)]
mod tests;
