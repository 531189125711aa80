//! Places in code: frames of call paths, and lines of source.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A frame of a call path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Frame {
    /// The address for `addr2line -e module`; `null` for a thread of
    /// the kernel, with a `function` that begins with `[kernel]`.
    pub address: Option<u64>,
    /// Source file; `null` if unknown.
    pub file: Option<String>,
    /// The function. A function without a symbol has the file's name and
    /// its start in the unwind table (`zstd+0x3a580`), or `null` without
    /// a start; `address` is then an address seen in the function.
    pub function: Option<String>,
    /// Whether the compiler inlined the function into the function of the next frame.
    pub inlined: bool,
    /// Line in the file; `null` if unknown.
    pub line: Option<u32>,
    /// File of the code; `null` without a file.
    pub module: Option<String>,
    /// Why function or line are missing; absent if both are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// A frame without an address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Caller {
    /// Source file; `null` if unknown.
    pub file: Option<String>,
    /// The function; `null` if unknown.
    pub function: Option<String>,
    /// Line in the file; `null` if unknown.
    pub line: Option<u32>,
    /// File of the code; `null` without a file.
    pub module: Option<String>,
}

/// A line of source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Place {
    /// The address for `addr2line -e module`. Live: of a function with unknown line in `advice`, `loops`,
    /// `branches` and `kernel_time`. Exact: of a node in `tasks`, or a region in `self_parallelism`. Else
    /// absent, as in `pairs`, `not_reused` and `site` of objects: there, all addresses of a function without
    /// lines are one place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// Source file; `null` if unknown.
    pub file: Option<String>,
    /// The function; `null` if unknown.
    pub function: Option<String>,
    /// Line in the file; `null` if unknown.
    pub line: Option<u32>,
    /// File of the code of `address`; absent without an address or a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Library function, called at the line, that made
    /// the access; absent if the line made the access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
}

/// A call path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Path {
    /// Why the outermost frames are missing; absent for a whole path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<String>,
    /// Frames, innermost first; in `locality-report/1` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frames: Option<Vec<Arc<Frame>>>,
    /// The line of source; in `locality-report/1` absent in `contexts` and in an exact report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<Place>,
    /// Number of the call path among the report's `stacks`; absent in `locality-report/1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack: Option<u32>,
}
