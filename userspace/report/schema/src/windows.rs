//! `windows`: shadow windows of a live trace, and where the rate of accesses comes from.

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
    /// Accesses in them.
    pub accesses: u64,
    /// Accesses per nanosecond of CPU time, of the whole run; `null` where no rate is known.
    pub accesses_per_ns: Option<Number>,
    /// Its interval.
    pub accesses_per_ns_ci95: Option<Interval>,
    /// The factor by which distances in accesses and sizes of miss ratios may be wrong, up or down, where a
    /// timing model that nothing in the process scaled converted more than half of the CPU time; else `null`.
    pub accesses_per_ns_factor_of_doubt: Option<Number>,
    /// Windows by why they ended.
    pub ends: BTreeMap<String, u64>,
    /// Windows.
    pub n: u64,
    /// Shares of CPU time by where the rate comes from.
    pub rate_sources: BTreeMap<String, Number>,
    /// Of the watched uses that were seen reused, the share whose distance in accesses was counted and not
    /// converted from CPU time: by hardware counters; by registers of the loop that touched, to some percent;
    /// by those of two loops, to a fifth. `null` where there were none.
    pub reuses_counted: Option<Estimate>,
    /// Uses drawn in windows.
    pub uses: u64,
    /// Of the same uses as in `reuses_counted`, the share that trapped first at the instruction that the
    /// window had shown; `null` where there were none.
    pub uses_confirmed: Option<Estimate>,
    /// Uses whose reuse their window did not show.
    pub uses_open: u64,
}
