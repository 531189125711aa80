//! The command line, as a library for its tests.
//!
//! `cli` is what the user typed, `agent` starts the agent and asks for what it stored, `plan` what a
//! trace's options mean on this machine, `compare` sets two reports against each other, `diff` says
//! what changed between two profiles, `export` writes for other programs (`private_file`: for one's own
//! eyes), `objects` lists variables, `html` writes the page for a browser and `browser` opens it,
//! `mends` says what mends an error, `pager` shows long pages on a terminal.
//!
//! Not here: measuring (`locality-tracer`, `locality-runner`), and what a machine allows
//! (`locality-doctor`).

pub mod agent;
pub mod browser;
pub mod cli;
pub mod compare;
pub mod diff;
pub mod export;
pub mod html;
pub mod mends;
pub mod model;
pub mod objects;
pub mod pager;
pub mod plan;
pub mod private_file;
