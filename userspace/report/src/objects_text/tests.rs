//! What data objects look like in the reports, in full.

use locality_findings::Findings;
use locality_model::testing::objects::two_objects;
use locality_model::*;

use crate::{Options, json, text};

/// A table on the heap whose cells have a hot and a cold part, allocated at one place, and a small global.
fn heap_and_global() -> Profile {
    let mut make = two_objects(60, 2, 8);
    let site = make.stack("malloc@/lib/libc.so.6 < make_grid src/grid.c:88 < main src/demo.c:55");
    let member = |path: &str, kind: &str, offset, bytes| Member {
        path: path.to_owned(),
        type_name: Some(kind.to_owned()),
        offset,
        bytes,
        align: if kind == "char" { 1 } else { bytes },
    };
    let members = vec![
        member("vx", "double", 0, 8),
        member("id", "int", 8, 4),
        member("name[]", "char", 12, 36),
        member("next", "struct cell *", 48, 8),
    ];
    let mut profile = make.balanced();
    profile.records = vec![Record { name: "struct cell".to_owned(), bytes: 56, members }];
    let field = |path: &str, kind: &str, offset, bytes| Field {
        path: path.to_owned(),
        type_name: Some(kind.to_owned()),
        offset,
        bytes,
        record: Some(RecordId(0)),
        record_offset: offset,
    };
    profile.fields = vec![field("[].vx", "double", 0, 8), field("[].next", "struct cell *", 48, 8)];
    let large = &mut profile.objects[1];
    (large.kind, large.site, large.declared) = (ObjectKind::Heap, Some(site), None);
    (large.name, large.type_name) = ("grid->cells".to_owned(), Some("struct cell".to_owned()));
    large.bytes = Some(56 * 1_000_000);
    for (n, located) in profile.located.iter_mut().filter(|located| located.object == ObjectId(1)).enumerate()
    {
        located.field = Some(FieldId(u32::from(n % 60 == 7)));
    }
    profile.heap = Some(Heap {
        seen: 900,
        made: 1_000,
        folded: 3,
        sites: vec![AllocationSite { stack: site, allocations: 900, bytes: 56_000_000 }],
        missed: Some(Missed { min_bytes: 1024, min_bytes_at_end: 4096, smaller: 70, unwatched: 28, lost: 2 }),
    });
    profile
}

#[test]
fn the_second_block_of_the_report() {
    let profile = heap_and_global();
    let page = text::print(&profile, &Findings::of(&profile), Options::default());
    let from = page.find("Data objects").unwrap();
    insta::assert_snapshot!(&page[..from + page[from..].find("\n\n").unwrap()]);
}

#[test]
fn the_page_of_objects() {
    let profile = heap_and_global();
    let page = text::objects(&profile, &Findings::of(&profile), Options::default());
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    insta::assert_snapshot!(page);
}

#[test]
fn objects_as_json() {
    let profile = heap_and_global();
    let report = serde_json::to_value(json::report(&profile, &Findings::of(&profile))).unwrap();
    let summary = &report["objects_summary"];
    insta::assert_json_snapshot!(
        serde_json::json!({ "objects": report["objects"], "objects_summary": summary })
    );
}

/// What misses no cache is ranked by accesses; what is inferred or unknown says so.
#[test]
fn what_is_not_known_is_said() {
    let mut profile = two_objects(40, 0, 8).profile;
    profile.watches.clear();
    profile.objects[0].inferred = true;
    profile.objects[2] = Object {
        kind: ObjectKind::Unknown,
        name: "unknown".to_owned(),
        unknown: Some("The address is not mapped.".to_owned()),
        ..Object::default()
    };
    let page = text::objects(&profile, &Findings::of(&profile), Options::default());
    for words in [
        "of the accesses fall on `small`, declared at demo.c:7 (inferred), read at demo.c:31",
        "hardly any access misses a cache",
        "The object of 50.0 % [",
        "The address is not mapped.",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn a_profile_without_objects_has_no_block() {
    let profile = locality_model::testing::demo();
    let findings = Findings::of(&profile);
    assert!(findings.objects.is_none());
    assert!(!text::print(&profile, &findings, Options::default()).contains("Data objects"));
    assert!(json::report(&profile, &findings).objects.is_none());
}
