//! The values that symbolisation returns.

use std::fmt;
use std::sync::Arc;

/// A file that code was mapped from, or a named place without a file ("[vdso]", "[jit]", "[anon]").
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ModuleInfo {
    /// Path as the process sees it, without " (deleted)".
    pub path: String,
    /// GNU build id, lower-case hexadecimal; empty when there is none.
    pub build_id: String,
}

/// One source-level frame. An address inside inlined calls has several, innermost first; the
/// last is the function that really exists in the code, with [`SourceFrame::inlined`] false.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SourceFrame {
    /// Demangled; without a name in any table, the file's name and the function's start
    /// address, as "zstd+0x3a580", if unwind tables contain the start (see `unknown`).
    pub function: Option<String>,
    /// Source file, absolute as far as the debug information is.
    pub file: Option<String>,
    /// Source line, 1-based.
    pub line: Option<u32>,
    /// Where the code comes from.
    pub module: Option<Arc<ModuleInfo>>,
    /// Address in the module's own address space, for `addr2line`. A return address is reduced by
    /// one, to lie inside the call.
    pub module_address: Option<u64>,
    /// Address in the process, as it was asked for.
    pub address: u64,
    /// True for a call that the compiler inlined into the frame that follows.
    pub inlined: bool,
    /// Why function, file or line is missing.
    pub unknown: Option<Unknown>,
}

impl SourceFrame {
    /// False for generated code: another function may replace it at any time.
    pub fn is_lasting(&self) -> bool {
        !matches!(
            self.unknown,
            Some(
                Unknown::NoPerfMap
                    | Unknown::PerfMapHasNoLines
                    | Unknown::PerfMapOlder
                    | Unknown::PerfMapForeign
                    | Unknown::PerfMapIrregular
                    | Unknown::PerfMapTooLarge
            )
        )
    }
}

/// Why something about a frame is not known. `Display` is a short text for the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Unknown {
    /// The symbol table gave a name, but there are no lines.
    NoDebugInfo,
    /// There is only the dynamic symbol table.
    Stripped,
    /// No table has a name for the address.
    NoSymbols,
    /// No table has a name for the address, but the unwind table has the function's start.
    OnlyStart,
    /// A stub by the linker, without source.
    LinkersStub,
    /// The debug information is there but cannot be read.
    BadDebugInfo,
    /// The debug information claims an impossible size, or leads to a file that is not regular.
    DebugInfoRefused,
    /// The symboliser process ended or hung while it read the file.
    SymboliserEnded,
    /// No executable mapping has the address, or the process was never seen.
    Unmapped,
    /// The mapped file could not be opened any more.
    FileGone,
    /// The file at this path is not the mapped file.
    FileReplaced,
    /// We have no right to open the mapped file.
    NotPermitted,
    /// The mapped file is not an x86-64 ELF file.
    NotElf,
    /// Generated code, and its runtime writes no perf map.
    NoPerfMap,
    /// Generated code: perf maps have names but no lines.
    PerfMapHasNoLines,
    /// Generated code: the perf map was last written before the process began.
    PerfMapOlder,
    /// Generated code: the perf map belongs to another user.
    PerfMapForeign,
    /// Generated code: at the place of the perf map lies a link, a FIFO or a device.
    PerfMapIrregular,
    /// Generated code: the perf map is too large to be read.
    PerfMapTooLarge,
}

impl Unknown {
    /// The text for the user.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoDebugInfo => {
                "no debug info: file and line unknown (install its -dbgsym package or build with -g)"
            }
            Self::Stripped => "stripped: name from dynamic symbols",
            Self::NoSymbols => "no symbols",
            Self::OnlyStart => "no symbols: named by where the function starts",
            Self::LinkersStub => "the linker's stub that jumps to the function: no source has it",
            Self::BadDebugInfo => "debug info unreadable",
            Self::DebugInfoRefused => {
                "debug info refused: it claims more than it can hold, or leads to no regular file"
            }
            Self::SymboliserEnded => "no names: the process that read the file ended or hung",
            Self::Unmapped => "unmapped",
            Self::FileGone => "file gone",
            Self::FileReplaced => "file replaced",
            Self::NotPermitted => "no permission to read the file",
            Self::NotElf => "not an x86-64 ELF file",
            Self::NoPerfMap => "generated code: no perf map",
            Self::PerfMapHasNoLines => "generated code: name from the perf map, line unknown",
            Self::PerfMapOlder => "generated code: its perf map is older than the process",
            Self::PerfMapForeign => "generated code: its perf map belongs to another user",
            Self::PerfMapIrregular => "generated code: its perf map is not a regular file",
            Self::PerfMapTooLarge => "generated code: its perf map is too large",
        }
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
