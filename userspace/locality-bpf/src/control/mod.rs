//! The controller: what happens around the capture thread. `session` runs a trace from start to report, `assemble` turns
//! events into rows of the model, `store` writes them, `governor` keeps the cost within the budget, `ledger` closes the
//! books, `calibrate` measures what a tick and a trap cost here, `launch` starts a command, `host` describes the machine.

pub mod assemble;
pub mod calibrate;
pub mod clock;
pub mod governor;
pub mod host;
pub mod launch;
pub mod ledger;
pub mod progress;
pub mod session;
pub mod sites;
pub mod store;
