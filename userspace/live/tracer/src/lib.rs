//! The controller: what happens around the capture thread. `session` runs a trace from start to
//! report, `assembly` is the thread in which `assemble` turns events into rows of the model,
//! `store` writes them, `governor` keeps the cost within the budget, `books` and `ledger` sum up,
//! `cpu_times` reads what the targets used, `calibrate` measures what a tick and a trap cost here,
//! `processor` what its core can do, `launch` starts a command, in the state that `inherited` read
//! at the start, `locating` finds the data objects of addresses, `revealing` the types of those
//! without a name, `sharing` who shares watched memory, `host` describes the machine.

pub mod assemble;
pub mod assembly;
pub mod books;
pub mod calibrate;
pub mod clock;
pub mod cpu_times;
pub mod governor;
pub mod ledger;
pub mod locating;
pub mod pace;
mod paced;
pub mod plan;
mod precision;
pub mod processor;
mod progress;
mod remembered;
mod revealing;
pub mod session;
mod sharing;
pub mod sites;
pub mod skid;
pub mod store;
