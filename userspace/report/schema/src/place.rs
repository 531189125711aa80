//! Places in code: frames of call paths, and lines of source.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A frame of a call path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Frame {
    /// The address that `addr2line -e module` takes; `null` of a thread of the kernel, whose `function`
    /// begins with `[kernel]`.
    pub address: Option<u64>,
    /// Source file; `null` where it is not known.
    pub file: Option<String>,
    /// The function. One that no symbol table names is the file's name and the address where the unwind
    /// table has its start (`zstd+0x3a580`), `null` where that has none; `address` is then one of those
    /// seen in it.
    pub function: Option<String>,
    /// Whether the compiler inlined this function into that of the next frame.
    pub inlined: bool,
    /// Line in the file; `null` where it is not known.
    pub line: Option<u32>,
    /// File that the code comes from; `null` where there is none.
    pub module: Option<String>,
    /// Why function or line are missing; absent where they are known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

/// A frame without its address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Caller {
    /// Source file; `null` where it is not known.
    pub file: Option<String>,
    /// The function; `null` where it is not known.
    pub function: Option<String>,
    /// Line in the file; `null` where it is not known.
    pub line: Option<u32>,
    /// File that the code comes from; `null` where there is none.
    pub module: Option<String>,
}

/// A line of source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Place {
    /// Of a function whose line is not known, the address that `addr2line -e module` takes; else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// Source file; `null` where it is not known.
    pub file: Option<String>,
    /// The function; `null` where it is not known.
    pub function: Option<String>,
    /// Line in the file; `null` where it is not known.
    pub line: Option<u32>,
    /// The library function called there that made the access; absent where the line made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<String>,
}

/// A call path.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Path {
    /// Why the outermost frames are missing; absent where the path is whole.
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
