//! The command line, as a library for tests.
//!
//! `cli` has the user's options, `agent` starts the agent and queries the store, `plan` checks a
//! trace's options on the machine. `compare` compares two reports, `diff` two profiles, `model`
//! prints the execution model, `calibrate` the machine. `export` writes for further programs
//! (`private_file`: readable by the user alone), `objects` lists variables, `html` writes the page for
//! a browser and `browser` opens the page. `mends` has remedies of errors, `pager` shows long pages on
//! a terminal. `top` feeds the live table.
//!
//! Not here: measuring (`locality-tracer`, `locality-runner`),
//! and the limits of a machine (`locality-doctor`).

pub mod agent;
pub mod browser;
pub mod calibrate;
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
pub mod top;
