//! Printers: one module per format; every number comes from the findings.

mod cache_use;
mod estimates;
pub mod json;
mod misses;
mod names;
mod objects_text;
pub mod text;
pub mod top;
mod tree;

pub use locality_schema as schema;
pub use names::level_label;
pub use text::{Options, Style};

#[cfg(test)]
mod schema_tests;
#[cfg(test)]
mod tests;
