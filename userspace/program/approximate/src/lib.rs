//! Attribution of samples to program variables from instruction pointers and call paths alone: no
//! data addresses, no records of allocations (Rutar and Hollingsworth, "Software Analysis
//! Techniques to Approximate Data Centric Direct Measurements", 2011).
//!
//! [`Analyzer::rank`] takes samples and gives each variable's share. For each sample: what is read
//! at its line or instruction ([`Level`]) is found by following pointers through the function's
//! machine code with DWARF's names; one sample is divided among the reads (raw assignment, §3.3.1),
//! spread over where its event may have been (skid negation, eq. 6 to 8), weighed by how much of
//! the innermost loop reads the same (loop compensation, eq. 1 to 5), and a pointer's name is
//! looked for with the callers on the sampled path (alias classes, §3.1). [`compare`] sets two
//! rankings side by side.
//!
//! Differences from the paper: reads are those of the machine code, so a variable in a register is
//! none. Unnamed stack slots (spilled registers) and constants are none. Skid in lines counts
//! changes of the line along the control flow backwards, not line numbers. After loop compensation
//! the parts of a sample are scaled to sum to one. A sample at a place with writes only belongs to
//! the written variable, and a sample in a function like `memcpy` to the caller's arguments. In a
//! loop with all reads on all of its lines each weight is 0, and the raw assignment stays.
//!
//! Sources of error: a sample is divided equally among the reads at a place, cache hits
//! included; a heap block made by a function outside the sampled path bears the name of
//! the pointer to the block, perhaps another name in each function; see `flow`,
//! `names`, `graph` for the static analysis. Limits: x86-64 ELF; debug information of
//! several units in one (LTO's references between units, type units) costs types.
//!
//! Not here: samples of events (`locality-bpf`), naming by addresses (`objects`).

mod clobber;
mod debug;
mod displace;
#[cfg(test)]
mod figure2;
mod flow;
mod graph;
mod library;
mod lines;
mod module;
mod names;
mod object;
mod places;
mod program;
mod rank;
mod ranking;
mod reason;
mod revealed;
mod skid;
mod state;
mod statics;
mod transfer;
mod types;
mod unit;
mod value;
mod weights;

pub use locality_symbols::{BadLines, IgnoreLines};
pub use object::Kind;
pub use places::{Accesses, Level};
pub use program::ModuleId;
pub use rank::{Analyzer, Attribution, Frame, Options, Sample, SourceLine, VariableShare};
pub use ranking::{RankComparison, RankRow, TOP, compare, kendall_tau_b};
pub use reason::{Reason, Unreadable};
pub use revealed::{Element, Revealed};
pub use skid::{BadSkid, Gaussian, negate};
pub use weights::{LoopWeights, Reads, THRESHOLD, loop_weights, raw};
