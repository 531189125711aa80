//! `hot` and `not_reused`: sampled accesses by place, and uses that were not touched again.

use serde::{Deserialize, Serialize};

use super::{
    Estimate,
    number::{Interval, Number},
    place::Place,
};

/// Sampled accesses of a live trace, heaviest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Hot {
    /// By function.
    pub by_function: Vec<HotFunction>,
    /// By line of code.
    pub by_line: Vec<HotLine>,
}

/// Samples in a function.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HotFunction {
    /// Interval of `share`.
    pub ci95: Interval,
    /// The function.
    pub function: String,
    /// Share of its samples at loads.
    pub loads: Number,
    /// Its file; `null` where there is none.
    pub module: Option<String>,
    /// Samples.
    pub n: u64,
    /// Share of the targets' CPU time.
    pub share: Number,
    /// Share of its samples at stores.
    pub stores: Number,
    /// Share of its samples at accesses of unknown direction.
    pub unknown: Number,
}

/// Samples at a line of code.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HotLine {
    /// Interval of `share`.
    pub ci95: Interval,
    /// Source file; `null` where it is not known.
    pub file: Option<String>,
    /// The function; `null` where it is not known.
    pub function: Option<String>,
    /// Line in the file; `null` where it is not known.
    pub line: Option<u32>,
    /// Share of its samples at loads.
    pub loads: Number,
    /// Samples.
    pub n: u64,
    /// Share of the targets' CPU time.
    pub share: Number,
    /// Share of its samples at stores.
    pub stores: Number,
    /// Share of its samples at accesses of unknown direction.
    pub unknown: Number,
    /// The library function called there that made the access; absent where the line made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
}

/// Uses whose watch ended without a reuse.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NotReused {
    /// By line of code, heaviest first.
    pub by_line: Vec<NotReusedLine>,
    /// Interval of `fraction`.
    pub ci95: Interval,
    /// Their share of all uses.
    pub fraction: Number,
    /// Uses watched.
    pub n: u64,
}

/// Uses of a line of code that were not touched again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NotReusedLine {
    /// Their share of the line's uses.
    pub share_of_line: Estimate,
    /// The line.
    #[serde(rename = "use")]
    pub used: Place,
    /// Watched uses of the line.
    pub watched: u64,
    /// Their share of all uses.
    pub weight: Number,
    /// Its interval.
    pub weight_ci95: Interval,
    /// Watches of the line that were withdrawn.
    pub withdrawn: u64,
}
