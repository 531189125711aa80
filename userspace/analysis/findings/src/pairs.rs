//! Use → reuse pairs: code bringing data in, code touching the data again, and the time between.
//!
//! RDX §IV attributes every reuse to the pair of full calling contexts ⟨C_use, C_reuse⟩,
//! here [`ContextPair`]. Readers first want source lines: contexts with equal places at
//! both ends form a [`Pair`]. A line going through several data objects has a pair for
//! each important object, because distances of different objects are unrelated. Weights
//! are Horvitz–Thompson (`interval_estimate`, with sources of error).
//!
//! Sources of error in addition: places are guessed if stacks are cut or
//! stripped (module `context`); the time between is CPU time of the process,
//! which ignores foreign threads' accesses and counts stalls in full.

use std::collections::{BTreeMap, HashMap};

use locality_estimate::calling_context::{ContextId, Contexts, PlaceId};
use locality_estimate::interval_estimate::{Counted, Estimate, quantile, share_of, shares};
use locality_model::{AccessKind, ObjectId};

use crate::analysis_trait::{Analysis, in_order};
use crate::observation::Reuse;

/// Share in the known weight between two places, from which a data object has a separate pair.
const MATTERS: f64 = 0.1;

/// A pair is far from this share of far reuses among the pair's reuses on …
const FAR_OF_PAIR: f64 = 0.1;
/// … or from this share of all reuses on.
const FAR_OF_ALL: f64 = 0.01;

/// Reuses between two source places, of a single data object if several matter.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Place of the use.
    pub use_place: PlaceId,
    /// Place of the next touch.
    pub reuse_place: PlaceId,
    /// Share of the reuses.
    pub weight: Estimate,
    /// Median CPU time between.
    pub median_ns: Estimate,
    /// 90 % of the reuses come sooner.
    pub p90_ns: Estimate,
    /// Share of this pair's reuses with a touch by the kernel at either end.
    pub kernel: Estimate,
    /// Share of this pair's reuses between two threads.
    pub cross_thread: Estimate,
    /// The median is indistinguishable from 0: at least half of the reuses find the data in the nearest
    /// cache.
    pub near_median: bool,
    /// The same of the 90th percentile, in a pair that is not far.
    pub near: bool,
    /// Far reuses are a tenth of the pair's reuses, or a hundredth of all reuses.
    pub far: bool,
    /// Share of all reuses that are far reuses of this pair; `n` counts them.
    pub far_weight: Estimate,
    /// Median CPU time between of the far reuses; `None` without any.
    pub far_median: Option<Estimate>,
    /// The data object with at least half of the weight, and the object's share.
    pub object: Option<(ObjectId, f64)>,
    /// The calling contexts, heaviest first; never empty.
    pub contexts: Vec<ContextPair>,
}

/// Reuses between two calling contexts.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextPair {
    /// Context of the use.
    pub use_context: ContextId,
    /// Context of the reuse.
    pub reuse_context: ContextId,
    /// Direction of the use, if the members agree.
    pub use_kind: AccessKind,
    /// Direction of the reuse, if the members agree.
    pub reuse_kind: AccessKind,
    /// Share of the reuses.
    pub weight: Estimate,
    /// Share of all reuses that are far reuses between these contexts.
    pub far_weight: f64,
    /// Median CPU time between.
    pub median_ns: Estimate,
}

/// The analysis in progress.
#[derive(Debug, Clone)]
pub struct Pairs<'a> {
    contexts: &'a Contexts,
    resolution_ns: u64,
    far_from: f64,
    reuses: Vec<Reuse>,
}

impl<'a> Pairs<'a> {
    /// Starts empty. Distances below `resolution_ns` are near, those of `far_from` or more are far.
    pub fn new(contexts: &'a Contexts, resolution_ns: u64, far_from: f64) -> Self {
        Self { contexts, resolution_ns, far_from, reuses: Vec::new() }
    }
}

impl Analysis for Pairs<'_> {
    type Observation = Reuse;
    type Finding = Vec<Pair>;

    fn observe(&mut self, reuse: Reuse) {
        self.reuses.push(reuse);
    }

    fn merge(&mut self, other: Self) {
        self.reuses.extend(other.reuses);
    }

    /// Pairs, heaviest first.
    fn finish(self) -> Vec<Pair> {
        let reuses = in_order(self.reuses);
        let place_pair = |reuse: &Reuse| {
            (self.contexts.place_of(reuse.use_context), self.contexts.place_of(reuse.reuse_context))
        };
        let several = several(&reuses, place_pair);
        // Objects of little weight stay together, as do reuses without a known object.
        let object = |reuse: &Reuse| {
            reuse
                .object
                .filter(|object| several.get(&place_pair(reuse)).is_some_and(|all| all.contains(object)))
        };
        let pair_of = |reuse: &Reuse| (place_pair(reuse), object(reuse));
        let is_far = |reuse: &Reuse| reuse.distance_ns as f64 >= self.far_from;
        let whole: f64 = reuses.iter().map(|reuse| reuse.weight).sum();
        let mut by_pair: HashMap<_, Vec<ContextPair>> = HashMap::new();
        let key = |reuse: &Reuse| (reuse.use_context, reuse.reuse_context, object(reuse));
        for ((use_context, reuse_context, _), weight, members) in groups(&reuses, key) {
            by_pair.entry(pair_of(members[0])).or_default().push(ContextPair {
                use_context,
                reuse_context,
                use_kind: agreed(members.iter().map(|reuse| reuse.use_kind)),
                reuse_kind: agreed(members.iter().map(|reuse| reuse.reuse_kind)),
                weight,
                far_weight: members
                    .iter()
                    .filter(|reuse| is_far(reuse))
                    .map(|reuse| reuse.weight)
                    .sum::<f64>()
                    / whole.max(f64::MIN_POSITIVE),
                median_ns: between(&members, 0.5),
            });
        }
        let pairs = groups(&reuses, pair_of);
        let far_weights = far_weights(&pairs, is_far);
        type PairKey = ((PlaceId, PlaceId), Option<ObjectId>);
        let pair = |((key, weight, members), far_weight): (Group<'_, PairKey>, Estimate)| {
            let (use_place, reuse_place) = key.0;
            let (median_ns, p90_ns) = (between(&members, 0.5), between(&members, 0.9));
            // Distances indistinguishable from far distances are not called near.
            let unsure = members.iter().all(|reuse| reuse.within.is_some());
            let is_near = |distance: &Estimate| {
                let most = if unsure { distance.high } else { distance.value };
                most < self.resolution_ns as f64
            };
            let far = far_weight.n > 0
                && (far_weight.value >= FAR_OF_PAIR * weight.value || far_weight.value >= FAR_OF_ALL);
            let far_members: Vec<&Reuse> = members.iter().copied().filter(|reuse| is_far(reuse)).collect();
            Pair {
                use_place,
                reuse_place,
                weight,
                median_ns,
                p90_ns,
                kernel: share_of(members.iter().map(|reuse| (reuse.kernel, reuse.counted()))),
                cross_thread: share_of(members.iter().map(|reuse| (reuse.cross_thread, reuse.counted()))),
                near_median: is_near(&median_ns),
                near: is_near(&p90_ns) && !far,
                far,
                far_weight,
                far_median: (!far_members.is_empty()).then(|| between(&far_members, 0.5)),
                object: most_of(&members),
                contexts: by_pair.remove(&key).unwrap_or_default(),
            }
        };
        pairs.into_iter().zip(far_weights).map(pair).collect()
    }
}

/// Share of all reuses that are far reuses of each group.
fn far_weights<K>(groups: &[Group<'_, K>], is_far: impl Fn(&Reuse) -> bool) -> Vec<Estimate> {
    let members = groups.iter().enumerate().flat_map(|(group, (_, _, members))| {
        // Reuses that are not far are one more group.
        let is_far = &is_far;
        members.iter().map(move |reuse| (if is_far(reuse) { group } else { groups.len() }, reuse.counted()))
    });
    let members: Vec<(usize, Counted)> = members.collect();
    let mut far = shares(&members, groups.len() + 1);
    far.truncate(groups.len());
    far
}

/// The objects with separate pairs, for each pair of places with at least two.
fn several(
    reuses: &[Reuse],
    place_pair: impl Fn(&Reuse) -> (PlaceId, PlaceId),
) -> HashMap<(PlaceId, PlaceId), Vec<ObjectId>> {
    let mut weights: HashMap<_, BTreeMap<ObjectId, f64>> = HashMap::new();
    for reuse in reuses {
        if let Some(object) = reuse.object {
            *weights.entry(place_pair(reuse)).or_default().entry(object).or_default() += reuse.weight;
        }
    }
    let that_matter = |objects: BTreeMap<ObjectId, f64>| -> Vec<ObjectId> {
        let least = MATTERS * objects.values().sum::<f64>();
        objects
            .into_iter()
            .filter(|(_, weight)| *weight > 0.0 && *weight >= least)
            .map(|(id, _)| id)
            .collect()
    };
    let all = weights.into_iter().map(|(places, objects)| (places, that_matter(objects)));
    all.filter(|(_, objects)| objects.len() > 1).collect()
}

/// A key, the key's share of the weight, and the members.
type Group<'a, K> = (K, Estimate, Vec<&'a Reuse>);

/// Groups reuses by key, heaviest first, ties by key.
fn groups<K: Copy + Ord>(reuses: &[Reuse], key: impl Fn(&Reuse) -> K) -> Vec<Group<'_, K>> {
    let mut keys: Vec<K> = reuses.iter().map(&key).collect();
    keys.sort_unstable();
    keys.dedup();
    let mut members = vec![Vec::new(); keys.len()];
    let mut weights = Vec::with_capacity(reuses.len());
    for reuse in reuses {
        // Every key is in the list made of the keys.
        let group = keys.partition_point(|other| *other < key(reuse));
        members[group].push(reuse);
        weights.push((group, reuse.counted()));
    }
    let shares = shares(&weights, keys.len());
    let mut groups: Vec<_> = keys.into_iter().zip(shares).zip(members).map(|((k, s), m)| (k, s, m)).collect();
    groups.sort_by(|a, b| b.1.value.total_cmp(&a.1.value));
    groups
}

/// Quantile of distances. If every member is an interval, the quantile is no better known.
fn between(members: &[&Reuse], q: f64) -> Estimate {
    let distances: Vec<(f64, Counted)> =
        members.iter().map(|reuse| (reuse.distance_ns as f64, reuse.counted())).collect();
    let mut found = quantile(&distances, q);
    let within: Option<Vec<(u64, u64)>> = members.iter().map(|reuse| reuse.within).collect();
    for (low, high) in within.unwrap_or_default() {
        (found.low, found.high) = (found.low.min(low as f64), found.high.max(high as f64));
    }
    found
}

/// The object of at least half of the weight, with the share.
fn most_of(members: &[&Reuse]) -> Option<(ObjectId, f64)> {
    let mut by_object: BTreeMap<ObjectId, f64> = BTreeMap::new();
    for reuse in members {
        if let Some(object) = reuse.object {
            *by_object.entry(object).or_default() += reuse.weight;
        }
    }
    let whole: f64 = members.iter().map(|reuse| reuse.weight).sum();
    let (object, weight) = by_object.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    (weight > 0.0 && weight >= whole / 2.0).then_some((object, weight / whole))
}

fn agreed(mut kinds: impl Iterator<Item = AccessKind>) -> AccessKind {
    let first = kinds.next().unwrap_or_default();
    if kinds.all(|kind| kind == first) { first } else { AccessKind::Unknown }
}

#[cfg(test)]
mod tests;
