//! `mix`: instructions and accesses of an exact run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::number::Number;

/// Instructions by operation. Fractions are of instructions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Mix {
    /// Accesses.
    pub accesses: u64,
    /// Fraction of branches.
    pub branches: Number,
    /// Fraction of each class.
    pub classes: BTreeMap<String, Number>,
    /// Instructions executed.
    pub instructions: u64,
    /// Loads for each instruction.
    pub loads: Number,
    /// Stores for each instruction.
    pub stores: Number,
}
