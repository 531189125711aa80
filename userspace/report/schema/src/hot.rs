//! `hot` and `not_reused`: sampled accesses by place, and uses not touched again.

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
    /// Share of the function's samples at loads.
    pub loads: Number,
    /// File of the code; `null` without a file.
    pub module: Option<String>,
    /// Samples.
    pub n: u64,
    /// Share of the targets' CPU time.
    pub share: Number,
    /// Share of the function's samples at stores.
    pub stores: Number,
    /// Share of the function's samples at accesses of unknown direction.
    pub unknown: Number,
}

/// Samples at a line of code.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct HotLine {
    /// Interval of `share`.
    pub ci95: Interval,
    /// Source file; `null` if unknown.
    pub file: Option<String>,
    /// The function; `null` if unknown.
    pub function: Option<String>,
    /// Line in the file; `null` if unknown.
    pub line: Option<u32>,
    /// Share of the line's samples at loads.
    pub loads: Number,
    /// Samples.
    pub n: u64,
    /// Share of the targets' CPU time.
    pub share: Number,
    /// Share of the line's samples at stores.
    pub stores: Number,
    /// Share of the line's samples at accesses of unknown direction.
    pub unknown: Number,
    /// Library function, called at the line, that made
    /// the access; absent if the line made the access.
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
    /// Share of all uses.
    pub fraction: Number,
    /// Uses watched.
    pub n: u64,
}

/// Uses of a line of code not touched again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct NotReusedLine {
    /// Share of the line's uses.
    pub share_of_line: Estimate,
    /// The line.
    #[serde(rename = "use")]
    pub used: Place,
    /// Watched uses of the line.
    pub watched: u64,
    /// Share of all uses.
    pub weight: Number,
    /// Interval of `weight`.
    pub weight_ci95: Interval,
    /// Watches of the line that were withdrawn.
    pub withdrawn: u64,
}
