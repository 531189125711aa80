//! Objects of Fortran programs: common blocks, module variables, arrays.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::{Target, Workshop, check, is_installed};

#[test]
fn kinds() {
    if !is_installed("gfortran") {
        return;
    }
    let workshop = Workshop::new();
    let program = workshop.compile("kinds", "gfortran", &["kinds.f90"], "-g -O0");
    let target = Target::start(&program);
    let mut look = target.look();
    assert_eq!(check(&target, &mut look, |_| true), 7);
}
