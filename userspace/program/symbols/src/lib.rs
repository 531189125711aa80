//! Mappings, call stacks and symbols of live processes.
//!
//! [`Processes`] holds what is known of each traced process, [`Unwinder`] turns registers and a
//! copy of the stack into code addresses, [`Symbolizer`] turns code addresses into functions, files
//! and lines. All of it works from `/proc` and files; no process is ever stopped, written or traced
//! here, and nothing is lost when one ends: files that an address fell in stay open. Unknown is a
//! value with a reason, not an error.
//!
//! [`Processes::isolated`] leaves debug information and symbol tables, which a stranger may have
//! written, to a process whose death costs names alone.
//!
//! Not here: taking stacks, kernel symbols, other architectures than x86-64.

mod cfi;
mod changed;
mod code_file;
mod compressed;
mod debug_file;
mod demangle;
mod elf;
mod frame;
mod ignored;
mod isolated;
mod jit;
mod maps;
mod module;
mod opening;
mod process;
mod regions;
mod stubs;
mod symbolize;
mod truncated;
mod unnamed;
mod unsplit;
mod unwind;

pub use code_file::{CodeFile, CodeUnreadable, FunctionCode};
pub use compressed::{claims_are_bounded, unpacked};
pub use demangle::{demangle, parallel_region, region_name};
pub use frame::{ModuleInfo, SourceFrame, Unknown};
pub use ignored::{BadLines, IgnoreLines, LineCode, NoCode, code_of_lines};
pub use isolated::{Isolation, Unnamed, become_symboliser_if_asked, symbolisers_cpu_ns, unnamed};
pub use maps::{Mapping, Mappings};
pub use module::ModuleFile;
pub use process::Processes;
pub use symbolize::Symbolizer;
pub use truncated::{survive_truncation, truncated_pages};
pub use unnamed::missing_names;
pub use unsplit::unsplit;
pub use unwind::{
    CodeAddress, CutReason, MAX_FRAMES, RegisterFile, Registers, StackFrame, StackSlice, Unwinder,
};
