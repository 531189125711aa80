//! Windows on made-up memory, and against what the processor does.

mod code;
mod support;
