//! The window process by itself, for the tests of this crate. The product's own program becomes it
//! ([`locality_shadow::helper::become_helper_if_asked`]).

use std::process::ExitCode;

fn main() -> ExitCode {
    locality_shadow::helper::become_helper_if_asked();
    eprintln!("started by the tests of locality-shadow; it does nothing by itself");
    ExitCode::from(2)
}
