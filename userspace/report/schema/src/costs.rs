//! `cache_use.costs` of a stored exact report: costs of every line and call, one column an event.

use serde::{Deserialize, Serialize};

/// The table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Costs {
    /// Costs by call, none twice, ordered by caller, file, line and callee.
    pub calls: Vec<Call>,
    /// Simulated caches and predictors, one sentence each.
    pub described: Vec<String>,
    /// Columns.
    pub events: Vec<Event>,
    /// Source files; `???` if unknown.
    pub files: Vec<String>,
    /// Functions.
    pub functions: Vec<Function>,
    /// Costs by line, none twice, ordered by function, file and line.
    pub lines: Vec<Line>,
    /// Sums over the run.
    pub total: Vec<u64>,
}

/// A column.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Event {
    /// For people.
    pub long: String,
    /// Short, as Callgrind calls it.
    pub name: String,
}

/// A function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Function {
    /// Number of the source file among [`Costs::files`].
    pub file: u32,
    /// ELF file of the function; empty without a file.
    pub module: String,
    /// Name of the function.
    pub name: String,
}

/// Own costs of a line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Line {
    /// By event.
    pub costs: Vec<u64>,
    /// Number of the file among [`Costs::files`].
    pub file: u32,
    /// Number of the function among [`Costs::functions`].
    pub function: u32,
    /// 0: not known.
    pub line: u32,
}

/// Calls from a line to a function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Call {
    /// Number of the called function.
    pub callee: u32,
    /// Number of the calling function.
    pub caller: u32,
    /// Costs below the call, by event.
    pub costs: Vec<u64>,
    /// Calls.
    pub count: u64,
    /// Number of the file of the call.
    pub file: u32,
    /// Line of the call; 0: not known.
    pub line: u32,
}

/// Name of unknown files and functions.
pub const UNKNOWN: &str = "???";

impl Costs {
    /// Column of an event.
    pub fn column(&self, name: &str) -> Option<usize> {
        self.events.iter().position(|event| event.name == name)
    }

    /// The name of a file.
    pub fn file(&self, number: u32) -> &str {
        self.files.get(number as usize).map_or(UNKNOWN, String::as_str)
    }
}
