//! Allocations: the heap block that contained an address at a moment, and its allocation site.
//!
//! Allocation functions of the targets are probed (`kernel::uprobe`, `ebpf/src/heap.rs`). Files:
//! `allocators` functions and their probed instructions, `modules` executed files, `copied_code`
//! execution of copied code, `probed_sites` bytes that windows must restore, `block_map` blocks
//! over time, `block_table` from ring records to blocks, `probe_budget` the budget, `probe_cost`
//! the cost, `tracker` the driving thread. Not here: unwinding and naming of sites (the recorder
//! thread).
//!
//! The only writer to a traced program: breakpoints into the text, and the return
//! address in functions with a followed return. The changes go with our descriptors,
//! also when we are killed. Limits: Linux 6.6; functions that may throw are not
//! probed (`allocators`), for an exception could not pass our probe of the return.

pub mod allocators;
pub mod block_map;
mod block_table;
mod copied_code;
pub mod eligible;
mod follower;
pub mod modules;
mod preloaded;
pub mod probe_budget;
mod probe_cost;
mod probed_sites;
pub mod recorder;
mod tracker;

pub use block_map::Block;
pub use block_table::{Heap, HeapSite, SiteTotal, Summary};
pub use preloaded::start as start_recorder;
pub use probed_sites::Probed;
pub use tracker::{HeapThread, Settings, start};

/// Allocations of fewer bytes are only counted, to begin with and unless `--heap-min` says otherwise.
pub const MIN_BYTES: u64 = 1024;
