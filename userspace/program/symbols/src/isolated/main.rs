//! The symboliser process alone, for the tests of this crate. The product's own
//! program becomes the process ([`locality_symbols::become_symboliser_if_asked`]).

use std::process::ExitCode;

fn main() -> ExitCode {
    locality_symbols::become_symboliser_if_asked();
    eprintln!("started by the tests of locality-symbols; it does nothing by itself");
    ExitCode::from(2)
}
