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

/// Dummy arguments lie where a register says.
#[test]
fn dummy_arguments() {
    if !is_installed("gfortran") {
        return;
    }
    let workshop = Workshop::new();
    for flags in ["-g -O0", "-g -O1", "-g -O2"] {
        let program =
            workshop.compile("arguments", "gfortran", &["arguments_main.c", "arguments.f90"], flags);
        let target = Target::start(&program);
        std::thread::sleep(std::time::Duration::from_millis(30));
        let mut look = target.look();
        let told: Vec<String> = target
            .truths
            .iter()
            .map(|truth| {
                let object = look.resolve(truth.address).object;
                assert_eq!(
                    object.type_name.as_deref(),
                    Some("real(kind=8)"),
                    "{flags} {truth:?}: {object:?}"
                );
                object.name.to_string()
            })
            .collect();
        // Of the second block two arguments name parts; where a caller's argument names it as a whole,
        // that is its name.
        assert!(["flux", "pool"].contains(&&*told[0]), "{flags}: {told:?}");
        assert!(told[1..] == ["more", "more"] || told[1..] == ["src", "weight"], "{flags}: {told:?}");
        assert_eq!(target.truths.len(), 3);
    }
}
