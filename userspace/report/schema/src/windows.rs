//! `windows`: shadow windows of a live trace, and the source of the rate of accesses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    Estimate,
    number::{Interval, Number},
};

/// Shadow windows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Windows {
    /// Accesses in windows.
    pub accesses: u64,
    /// Accesses per nanosecond of CPU time, of the whole run; `null` if no rate is known.
    pub accesses_per_ns: Option<Number>,
    /// Interval of `accesses_per_ns`.
    pub accesses_per_ns_ci95: Option<Interval>,
    /// Factor of possible error, up or down, of distances in accesses and of
    /// sizes of miss ratios, if a timing model not scaled by measurements in
    /// the process converted more than half of the CPU time; else `null`.
    pub accesses_per_ns_factor_of_doubt: Option<Number>,
    /// Windows by reason of the end.
    pub ends: BTreeMap<String, u64>,
    /// Windows.
    pub n: u64,
    /// Shares of CPU time by source of the rate.
    pub rate_sources: BTreeMap<String, Number>,
    /// Share of watched uses seen reused with a distance in accesses that was counted, not
    /// converted from CPU time: by hardware counters; by registers of the touching loop,
    /// to some percent; by registers of two loops, to a fifth. `null` without such uses.
    pub reuses_counted: Option<Estimate>,
    /// Uses drawn in windows.
    pub uses: u64,
    /// Share of the uses in `reuses_counted` that trapped first at
    /// the instruction shown by the window; `null` without such uses.
    pub uses_confirmed: Option<Estimate>,
    /// Uses with no reuse in the window.
    pub uses_open: u64,
}
