//! `mix`: what an exact run executed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::number::Number;

/// Instructions by what they do. Fractions are of instructions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Mix {
    /// Accesses.
    pub accesses: u64,
    /// Fraction that branch.
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
