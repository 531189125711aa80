//! Cache simulation of an access stream: misses, and how well each line was used, charged back to
//! the instruction and call path that loaded it (Weidendorfer and Breitbart, ICCS 2016, Procedia
//! Computer Science 80).
//!
//! [`Config`] says which caches (the model stands in `hierarchy`), [`CacheSim`] takes the events
//! and keeps its state in an arena; [`Totals`] is what a simulation comes to: self costs by
//! instruction, inclusive costs by function and call arc, with one [`Column`] an event; [`Named`]
//! is the same by names, of any number of processes.
//!
//! Pure: no I/O, no threads. Not here: names of functions, printing.

mod cache;
mod columns;
mod config;
mod facts;
mod finish;
mod hierarchy;
mod hot;
mod named;
mod objects;
mod sim;
mod stack;
mod state;
mod table;
mod totals;
mod tree;

pub use columns::{COLUMNS, Column, Costs};
pub use config::{Config, ConfigError, Level, MAX_LEVELS, MAX_WAYS, Prefetch};
pub use facts::{SKIPPED, is_stub};
pub use named::{CallCosts, FunctionCosts, Named};
pub use objects::{LevelUse, ObjectUse, UNKNOWN_OBJECT};
pub use sim::{CacheSim, CreateError, OpenError};
pub use totals::{
    CallArc, Function, Root, SelfCost, Totals, TreeStatistics, UNKNOWN_CALLER, UNKNOWN_CALLER_NAME,
};

#[cfg(test)]
mod tests;
