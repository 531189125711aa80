//! Printers: one module per format, nothing is computed here that is not in the findings.

mod cache_use;
mod estimates;
pub mod json;
mod misses;
mod names;
pub mod objects;
mod objects_text;
mod reuse;
pub mod text;
pub mod top;
mod tree;

pub use text::{Options, Style};

#[cfg(test)]
mod tests;
