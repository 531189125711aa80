//! Objects of C programs, resolved in live processes against what the programs say of themselves.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use support::{Target, Workshop, check, line_of};

#[test]
fn static_variables() {
    let workshop = Workshop::new();
    let program = workshop.compile("kinds", "gcc", &["kinds.c", "kinds_hidden.c"], "-g -O0");
    let target = Target::start(&program);
    let mut look = target.look();
    let told = |name: &str| name == "stdout";
    let checked = check(&target, &mut look, |truth| truth.kind == "static" && !told(&truth.name));
    assert!(checked >= 14, "{checked}");

    let at = |name: &str| target.truths.iter().find(|truth| truth.name == name).unwrap().address;
    let ticks = look.resolve(at("ticks"));
    assert_eq!(ticks.object.function.as_deref(), Some("tick"));
    let declared = ticks.object.declared.clone().unwrap();
    assert_eq!(declared.line, line_of("kinds.c", "ticks"));
    assert!(declared.file.ends_with("tests/programs/kinds.c"), "{declared:?}");
    let cells = look.resolve(at("cells"));
    assert_eq!(cells.object.bytes, 50 * 56);
    let field = cells.field.unwrap();
    assert_eq!((field.offset, field.bytes, field.offset_within), (8, 8, 8));
    assert_eq!(&*field.path_within, "vx");
}
