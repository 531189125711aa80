//! `executions` of a stored exact report: how often each instruction of each file was executed.

use serde::{Deserialize, Serialize};

/// Executions in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FileExecutions {
    /// Build id of the file, in hexadecimal digits; empty without one.
    pub build_id: String,
    /// Path of the file.
    pub file: String,
    /// Instructions without a gap and with equal counts: first address in the file's address
    /// space, first address after, executions, instructions. Ascending, none twice.
    pub runs: Vec<(u64, u64, u64, u64)>,
}
