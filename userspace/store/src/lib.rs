//! The profile file `*.locality`: a SQLite database, written while a trace runs, read by reports.
//!
//! It holds what [`locality_model::Profile`] holds and nothing else; above all no memory
//! of the traced program. `docs/format.md` describes tables, units and keys for people with the
//! `sqlite3` shell. Not here: any analysis.
//!
//! Limits: one writer per file. Rows wait in memory until [`Writer::commit`], so a killed tracer
//! loses what came after its last commit.

mod data_rows;
mod data_tables;
mod error;
mod flow;
mod loops;
mod place;
mod reader;
mod repair;
mod reserved;
mod rows;
mod schema;
mod sound;
mod tables;
mod value;
mod whole;
mod writer;

pub use error::Error;
pub use place::{Owner, earlier};
pub use reader::read;
pub use reserved::Reserved;
pub use schema::{APPLICATION_ID, SCHEMA_VERSION};
pub use whole::write;
pub use writer::Writer;
