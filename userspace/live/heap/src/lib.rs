//! Allocations: which heap block held an address at a moment, and where it was allocated.
//!
//! Allocation functions of the targets are probed (`kernel::uprobe`, `ebpf/src/heap.rs`). Files:
//! `functions` which functions and where in them, `modules` what a process executes, `copies`
//! whether it executes copies of probed code, `probed` which bytes windows must put back, `map` the
//! blocks in time, `state` ring records to blocks, `duty` what it may cost, `price` what it costs,
//! `tracker` the thread that drives all this. Not here: unwinding and naming the sites (the
//! assembler).
//!
//! The only thing that writes to a traced program: breakpoints into its text, and in functions
//! whose return is followed the return address. They go with our descriptors, so also when we are
//! killed. Limits: Linux 6.6; what may throw is not probed (`functions`), for an exception could
//! not pass our probe of its return.

mod copies;
pub mod duty;
pub mod eligible;
pub mod functions;
pub mod map;
pub mod modules;
mod preloaded;
mod price;
mod probed;
pub mod recorder;
mod state;
mod tracker;

pub use map::Block;
pub use preloaded::start as start_recorder;
pub use probed::Probed;
pub use state::{Heap, HeapSite, SiteTotal, Summary};
pub use tracker::{HeapThread, Settings, start};

/// Allocations of fewer bytes are only counted, to begin with and unless `--heap-min` says otherwise.
pub const MIN_BYTES: u64 = 1024;
