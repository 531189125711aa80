//! The common shape of analyses: observe, merge, finish.
//!
//! Invariant 4 of ARCHITECTURE.md: state per thread (or per shard), observe, merge,
//! finish; the finding does not depend on the order of observations or merges.
//! Analyses here keep observations and sort by [`Observed::position`] before adding
//! up floating-point numbers, to make the invariant exact and not merely approximate.

/// An observation with a place in the trace.
pub trait Observed {
    /// Index in the profile, unique within a kind of observation.
    fn position(&self) -> u32;
}

/// An analysis in progress.
pub trait Analysis {
    /// The observations of the analysis.
    type Observation: Observed;
    /// The finding.
    type Finding;
    /// Takes an observation.
    fn observe(&mut self, observation: Self::Observation);
    /// Takes over the observations of another shard.
    fn merge(&mut self, other: Self);
    /// Concludes.
    fn finish(self) -> Self::Finding;
}

/// Brings observations into the order of the trace.
pub(crate) fn in_order<T: Observed>(mut observations: Vec<T>) -> Vec<T> {
    observations.sort_unstable_by_key(Observed::position);
    observations
}
