//! `ledger`: samples, stops and watchpoints seen, filtered, lost and refused.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Counts of a live trace; all `null` after a trace cut short.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Ledger {
    /// Whether seen = filtered + submitted + lost, submitted = received and armed = trapped + censored +
    /// refused.
    pub balanced: Option<bool>,
    /// Samples outside of the targets.
    pub filtered: Option<u64>,
    /// Samples filtered, by reason.
    pub filtered_by: BTreeMap<String, u64>,
    /// The violated equation; absent unless `balanced` is `false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imbalance: Option<String>,
    /// Samples lost, by cause.
    pub lost: BTreeMap<String, u64>,
    /// Records received by userspace.
    pub received: Option<u64>,
    /// Samples seen by the kernel side.
    pub seen: Option<u64>,
    /// Stops by outcome: asked for, made, imposed, ….
    pub stops: BTreeMap<String, u64>,
    /// Records submitted by the kernel side.
    pub submitted: Option<u64>,
    /// Unknown uses, by reason.
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
    /// Watchpoints refused by the kernel.
    pub refused: Option<u64>,
    /// Watchpoints that trapped.
    pub trapped: Option<u64>,
}
