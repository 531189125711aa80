//! Why a sample could not be attributed. Reasons are values
//! that a report prints; no guess replaces a reason.

use std::fmt;

/// Why a module could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The file cannot be opened; the system's words.
    #[error("the file cannot be read: {0}")]
    File(String),
    /// No x86-64 ELF file.
    #[error("not an x86-64 ELF file")]
    NotElf,
    /// The file's build id differs from the traced one's.
    #[error("it is another file than the one that ran (build id {found}, not {traced})")]
    Another {
        /// Of the file, hexadecimal; "none" without one.
        found: String,
        /// Build id of the traced file.
        traced: String,
    },
}

/// Why a share of the samples has no variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The sample has no frame, or the innermost frame is in no module that could be opened.
    NoModule,
    /// The module has no debug information.
    NoDebugInfo,
    /// The debug information of the code lies in a separate `.dwo` or `.dwp` file, which was not found.
    SplitDebugInfo,
    /// The debug information of the code is broken.
    BrokenDebugInfo,
    /// No debug information covers the code address (assembly, a library without it).
    NotCovered,
    /// The bytes at the address are no instructions, or the address does not begin an instruction.
    NotCode,
    /// The function is too large to be followed.
    TooLarge,
    /// No read there is of memory with a variable.
    NoReads,
    /// Only unnamed places on the stack are read there: spilled registers, temporaries, alignment.
    StackTemporary,
    /// The pointer's source cannot be followed to a variable.
    UnknownPointer,
    /// Constants and tables of the compiler, or data that only another module names.
    UnnamedData,
    /// All variables of the place are left out by `ignore`.
    Ignored,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reason::NoModule => "code of no readable file",
            Reason::NoDebugInfo => {
                "no debug information: build with -g, or install the package's debug symbols"
            }
            Reason::SplitDebugInfo => "debug information in a separate .dwo file, which was not found",
            Reason::BrokenDebugInfo => "broken debug information",
            Reason::NotCovered => "code that the debug information does not cover",
            Reason::NotCode => "no instruction begins at the address",
            Reason::TooLarge => "function too large to be followed",
            Reason::NoReads => "no memory of variables is read there",
            Reason::StackTemporary => "unnamed places on the stack",
            Reason::UnknownPointer => "pointers that cannot be followed to a variable",
            Reason::UnnamedData => "unnamed constants and tables",
            Reason::Ignored => "variables left out on demand",
        })
    }
}
