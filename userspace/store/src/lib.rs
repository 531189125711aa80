//! The profile file `*.locality`: a SQLite database, written while a trace runs, read by reports.
//!
//! The file has the content of [`locality_model::Profile`] and no more; in
//! particular no memory of the traced program. `docs/format.md` describes tables,
//! units and keys for people with the `sqlite3` shell. Not here: analysis.
//!
//! Limits: one writer per file. Rows wait in memory until [`Writer::commit`],
//! hence a killed tracer loses the rows after the last commit.

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
pub use place::{Owner, earlier, is_profile};
pub use reader::read;
pub use reserved::Reserved;
pub use schema::{APPLICATION_ID, SCHEMA_VERSION};
pub use whole::write;
pub use writer::Writer;
