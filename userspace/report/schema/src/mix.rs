//! `mix`: instructions and accesses of an exact run, or of the windows of a trace.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::number::{Interval, Number};

/// Instructions by operation. Fractions are of instructions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Mix {
    /// Accesses; in a trace those of windows.
    pub accesses: u64,
    /// Fraction of branches.
    pub branches: Number,
    /// In a trace, 95 % intervals of `branches`, `loads`, `stores` and the classes, from sampling alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ci95: Option<BTreeMap<String, Interval>>,
    /// Fraction of each class.
    pub classes: BTreeMap<String, Number>,
    /// Instructions executed; in a trace those of windows.
    pub instructions: u64,
    /// Loads for each instruction.
    pub loads: Number,
    /// In a trace, windows counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n: Option<u64>,
    /// Stores for each instruction.
    pub stores: Number,
}
