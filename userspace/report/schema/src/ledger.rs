//! `ledger`: what was seen, filtered, lost and refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Counts of a live trace. All numbers of a trace that was cut short are `null`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Ledger {
    /// Whether seen = filtered + submitted + lost, submitted = received and armed = trapped + censored +
    /// refused.
    pub balanced: Option<bool>,
    /// Samples that belong to no target.
    pub filtered: Option<u64>,
    /// Samples filtered, by reason.
    pub filtered_by: BTreeMap<String, u64>,
    /// The equation that does not hold; absent where `balanced` is not `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imbalance: Option<String>,
    /// Samples lost, by cause.
    pub lost: BTreeMap<String, u64>,
    /// Records that userspace received.
    pub received: Option<u64>,
    /// Samples that the kernel side saw.
    pub seen: Option<u64>,
    /// Stops by what became of them: asked for, made, imposed, ….
    pub stops: BTreeMap<String, u64>,
    /// Records that the kernel side submitted.
    pub submitted: Option<u64>,
    /// Uses that could not be known, by reason.
    pub unreachable: BTreeMap<String, u64>,
    /// Watchpoints.
    pub watch: Watches,
}

/// Watchpoints by their end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Watches {
    /// Watchpoints armed.
    pub armed: Option<u64>,
    /// Watchpoints withdrawn before they trapped.
    pub censored: Option<u64>,
    /// Watchpoints that the kernel refused.
    pub refused: Option<u64>,
    /// Watchpoints that trapped.
    pub trapped: Option<u64>,
}
