//! Files without debug information, with it elsewhere, compressed, split, damaged or replaced: the
//! answer says what is missing, and is never wrong.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use locality_objects::{Named, Resolver};
use locality_symbols::Processes;
use support::{Look, Target, Workshop, check};

fn build(workshop: &Workshop, flags: &str) {
    workshop.compile("plain", "gcc", &["plain.c"], flags);
}

fn all(target: &Target, look: &mut Look) -> Vec<Named> {
    target.truths.iter().map(|truth| look.resolve(truth.address)).collect()
}

fn names(named: &[Named]) -> Vec<&str> {
    named.iter().map(|named| &*named.object.name).collect()
}

fn reason(named: &Named) -> &str {
    named.object.unknown.as_deref().unwrap_or("")
}

#[test]
fn no_debug_info() {
    let workshop = Workshop::new();
    build(&workshop, "-O0");
    let target = Target::start(&workshop.path("plain"));
    let named = all(&target, &mut target.look());
    assert_eq!(names(&named), ["pairs", "own_counter", "zeroed", "text", "main [stack]"]);
    for named in &named {
        assert!(
            reason(named).contains("no debug info (install its -dbgsym package or build with -g)"),
            "{named:?}"
        );
        assert_eq!((&named.object.type_name, &named.field), (&None, &None));
    }
    assert_eq!((named[0].object.bytes, named[0].offset), (512, 3 * 16 + 8));
}

#[test]
fn stripped() {
    let workshop = Workshop::new();
    build(&workshop, "-O0 -s");
    let target = Target::start(&workshop.path("plain"));
    let named = all(&target, &mut target.look());
    assert_eq!(names(&named), ["[.data]", "[.data]", "[.bss]", "[.rodata]", "? [stack]"]);
    assert!(named.iter().all(|named| reason(named).contains("no debug info")), "{named:?}");
    let module = workshop.path("plain");
    assert!(named.iter().all(|named| named.object.module.as_deref() == module.to_str()));
}

/// Without a section table there are only segments left.
#[test]
fn no_sections() {
    let workshop = Workshop::new();
    build(&workshop, "-O0 -s");
    let path = workshop.path("plain");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[0x28..0x30].fill(0); // e_shoff
    bytes[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
    std::fs::write(&path, bytes).unwrap();
    let target = Target::start(&path);
    let named = all(&target, &mut target.look());
    assert_eq!(names(&named)[..4], ["[module]"; 4]);
}

#[test]
fn compressed_sections() {
    let workshop = Workshop::new();
    build(&workshop, "-O0 -g");
    let mut tried = 0;
    for kind in ["zlib", "zlib-gnu", "zstd"] {
        let made = std::process::Command::new("objcopy")
            .arg(format!("--compress-debug-sections={kind}"))
            .args([workshop.path("plain"), workshop.path("packed")])
            .output()
            .unwrap();
        // Older binutils have no zstd.
        if made.status.success() {
            let target = Target::start(&workshop.path("packed"));
            assert_eq!(check(&target, &mut target.look(), |_| true), 5, "{kind}");
            tried += 1;
        }
    }
    assert!(tried >= 2);
}

#[test]
fn debug_info_in_another_file() {
    let workshop = Workshop::new();
    build(&workshop, "-O0 -g");
    workshop.tool("objcopy --only-keep-debug plain plain.debug");
    workshop.tool("strip plain");
    workshop.tool("objcopy --add-gnu-debuglink=plain.debug plain");
    let target = Target::start(&workshop.path("plain"));
    assert_eq!(check(&target, &mut target.look(), |_| true), 5);
    drop(target);
    // The debug file of another build is not taken.
    build(&workshop, "-O1 -g -DANOTHER");
    std::fs::rename(workshop.path("plain"), workshop.path("plain2")).unwrap();
    build(&workshop, "-O0 -g");
    workshop.tool("strip plain");
    workshop.tool("objcopy --only-keep-debug plain2 plain.debug");
    let target = Target::start(&workshop.path("plain"));
    let named = all(&target, &mut target.look());
    assert_eq!(&*named[0].object.name, "[.data]");
}

#[test]
fn split_debug_info() {
    let workshop = Workshop::new();
    // binutils' tool knows DWARF 4 only.
    for (flags, tool) in [
        ("-O0 -gdwarf-5 -gsplit-dwarf", "llvm-dwp"),
        ("-O0 -gdwarf-4 -gsplit-dwarf", "dwp"),
        // Variables in registers have lists of locations, by address in a unit that has a base.
        ("-O2 -gdwarf-4 -gsplit-dwarf", "dwp"),
        ("-O2 -gdwarf-4 -gsplit-dwarf -ffunction-sections", "dwp"),
        // Several versions of llvm-dwp take no compressed files.
        ("-O0 -gdwarf-5 -gsplit-dwarf -gz", "dwp-of-none"),
        ("-O0 -gdwarf-5 -gsplit-dwarf -fdebug-types-section", "llvm-dwp"),
    ] {
        build(&workshop, flags);
        let target = Target::start(&workshop.path("plain"));
        let mut look = target.look();
        assert_eq!(check(&target, &mut look, |_| true), 5, "{flags}");
        let declared = look.resolve(target.truths[0].address).object.declared.clone().unwrap();
        assert!(declared.file.ends_with("/plain.c") && declared.line == 6, "{flags}: {declared:?}");
        drop(target);
        // A package in place of the files.
        if std::process::Command::new(tool).arg("--version").output().is_ok() {
            workshop.tool(&format!("{tool} -e plain -o plain.dwp"));
            workshop.tool("find . -name *.dwo -delete");
            let target = Target::start(&workshop.path("plain"));
            assert_eq!(check(&target, &mut target.look(), |_| true), 5, "{flags}");
            workshop.tool("rm plain.dwp");
        }
        workshop.tool("find . -name *.dwo -delete");
        let target = Target::start(&workshop.path("plain"));
        let mut look = target.look();
        let named = all(&target, &mut look);
        assert_eq!(names(&named), ["pairs", "own_counter", "zeroed", "text", "main [stack]"]);
        for named in &named {
            assert!(reason(named).contains("split into .dwo files that were not found"), "{named:?}");
        }
        assert!(look.resolver.debug_faults().iter().any(|(_, faults)| faults.split == 1));
    }
}

/// Type units of DWARF 4 are not put together, and no type is guessed.
#[test]
fn split_type_units_of_dwarf_4() {
    let workshop = Workshop::new();
    build(&workshop, "-O0 -gdwarf-4 -gsplit-dwarf -fdebug-types-section");
    for packed in [false, true] {
        if packed {
            workshop.tool("dwp -e plain -o plain.dwp");
            workshop.tool("find . -name *.dwo -delete");
        }
        let target = Target::start(&workshop.path("plain"));
        let named = all(&target, &mut target.look());
        assert_eq!(names(&named), ["pairs", "own_counter", "zeroed", "text", "main [stack]"]);
        for named in &named {
            assert!(reason(named).contains("type units of DWARF 4"), "{named:?}");
        }
    }
}

/// Classes with members in namespaces, each in its type unit, and in one unit of DWARF 4 with what
/// was optimised.
#[test]
fn split_units_of_cpp() {
    let workshop = Workshop::new();
    for (flags, tool, packed) in [
        ("-O0 -gdwarf-5 -gsplit-dwarf -fdebug-types-section", "llvm-dwp", false),
        ("-O0 -gdwarf-5 -gsplit-dwarf -fdebug-types-section", "llvm-dwp", true),
        ("-O2 -gdwarf-4 -gsplit-dwarf", "dwp", false),
        ("-O2 -gdwarf-4 -gsplit-dwarf", "dwp", true),
    ] {
        workshop.compile("classes", "g++", &["kinds.cc"], flags);
        if packed && std::process::Command::new(tool).arg("--version").output().is_ok() {
            workshop.tool(&format!("{tool} -e classes -o classes.dwp"));
            workshop.tool("find . -name *.dwo -delete");
        }
        let target = Target::start(&workshop.path("classes"));
        let mut look = target.look();
        assert_eq!(check(&target, &mut look, |_| true), 17, "{flags}");
        for truth in target.truths.iter().filter(|truth| truth.kind == "static") {
            let declared = look.resolve(truth.address).object.declared.clone().unwrap();
            assert!(declared.file.ends_with("/kinds.cc"), "{}: {declared:?}", truth.name);
        }
    }
}

/// A file with common parts moved away by dwz lacks the moved entries,
/// and reports the lack; a file that dwz compressed alone is whole.
#[test]
fn debug_info_that_dwz_compressed() {
    if !support::is_installed("dwz") {
        return;
    }
    let workshop = Workshop::new();
    build(&workshop, "-O0 -g");
    workshop.tool("dwz -l 1000000 plain");
    let target = Target::start(&workshop.path("plain"));
    assert_eq!(check(&target, &mut target.look(), |_| true), 5);
    drop(target);
    for name in ["plain", "other"] {
        workshop.compile(name, "gcc", &["plain.c"], "-O0 -g");
    }
    workshop.tool("dwz -L 1000000 -l 1000000 -m common.dwz plain other");
    let target = Target::start(&workshop.path("plain"));
    let named = all(&target, &mut target.look());
    assert_eq!(names(&named), ["pairs", "own_counter", "zeroed", "text", "main [stack]"]);
    for named in &named {
        assert!(reason(named).contains("in a common file that dwz made, which is not read"), "{named:?}");
        assert_eq!((&named.object.type_name, &named.field), (&None, &None));
    }
}

/// The file at the path is another by now; the process runs the old file, and the old file is read.
#[test]
fn replaced_while_running() {
    let workshop = Workshop::new();
    build(&workshop, "-O0 -g");
    let target = Target::start(&workshop.path("plain"));
    std::fs::remove_file(workshop.path("plain")).unwrap();
    workshop.compile("plain", "gcc", &["kinds.c", "kinds_hidden.c"], "-g");
    if std::fs::File::open(format!("/proc/{}/map_files", target.pid)).is_ok() {
        assert_eq!(check(&target, &mut target.look(), |_| true), 5);
    }
}

/// After the end no new file can be read, with a report; known facts stay
/// known, as does a file opened for another of the process's mappings.
#[test]
fn resolved_after_the_end() {
    let workshop = Workshop::new();
    build(&workshop, "-O0 -g");
    let mut target = Target::start(&workshop.path("plain"));
    let mut before = target.look();
    check(&target, &mut before, |_| true);
    let mut unwound = target.look();
    let mut late = target.look();
    late.resolver = Resolver::new(&Processes::new(), target.pid).unwrap();
    target.child.kill().unwrap();
    target.child.wait().unwrap();
    assert_eq!(check(&target, &mut before, |_| true), 5);
    for truth in &target.truths {
        let named = late.resolve(truth.address);
        assert!(named.object.unknown.is_some(), "{named:?}");
        if truth.name == "pairs" {
            assert_eq!((named.object.kind.as_str(), reason(&named)), ("static", "file gone"));
            assert_eq!(&*unwound.resolve(truth.address).object.name, "pairs", "its code was unwound");
        }
    }
}

/// Random bytes in every debug section: wrong names at most, never a panic, never an endless loop.
#[test]
fn damaged_debug_info() {
    let workshop = Workshop::new();
    for flags in ["-O0 -g", "-O2 -g -gdwarf-4"] {
        build(&workshop, flags);
        let whole = std::fs::read(workshop.path("plain")).unwrap();
        let sections = debug_sections(&whole);
        assert!(sections.len() >= 4, "{sections:?}");
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for round in 0..25 {
            let mut bytes = whole.clone();
            for section in &sections {
                for _ in 0..1 + round % 8 {
                    let at = section.start + next() as usize % section.len();
                    bytes[at] = next() as u8;
                }
            }
            let path = workshop.path(&format!("damaged{round}"));
            std::fs::write(&path, &bytes).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            let target = Target::start(&path);
            let mut look = target.look();
            // The C library's debug info, where it is installed, is large.
            look.frames.retain(|frame| look.resolver.module_path(frame.at.lookup()) == path.to_str());
            assert!(!look.frames.is_empty());
            for named in all(&target, &mut look) {
                if let Some(ty) = named.object.ty {
                    let _ = look.resolver.layout(ty);
                }
            }
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// Where the debug sections lie in a file.
fn debug_sections(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    use object::{Object, ObjectSection};
    let file = object::File::parse(bytes).unwrap();
    let debug =
        file.sections().filter(|section| section.name().is_ok_and(|name| name.starts_with(".debug_")));
    debug
        .filter_map(|section| section.file_range())
        .map(|(start, len)| start as usize..(start + len) as usize)
        .filter(|range| !range.is_empty())
        .collect()
}

/// A unit with broken abbreviations is skipped and counted; further units are read.
#[test]
fn one_broken_unit() {
    let workshop = Workshop::new();
    workshop.compile("two", "gcc", &["kinds.c", "kinds_hidden.c"], "-O0 -g");
    let path = workshop.path("two");
    let mut bytes = std::fs::read(&path).unwrap();
    let info = {
        use object::{Object, ObjectSection};
        let file = object::File::parse(&*bytes).unwrap();
        let (start, _) = file.section_by_name(".debug_info").unwrap().file_range().unwrap();
        start as usize
    };
    // The second unit's offset of its abbreviations (DWARF 5: length, version, kind, address size, then it).
    let length = u32::from_le_bytes(*bytes[info..].first_chunk().unwrap()) as usize;
    let second = info + 4 + length;
    bytes[second + 8..second + 12].fill(0xee);
    std::fs::write(&path, bytes).unwrap();
    let target = Target::start(&path);
    let mut look = target.look();
    let of_second = |name: &str| name == "hidden_object";
    check(&target, &mut look, |t| t.kind == "static" && !of_second(&t.name) && t.name != "stdout");
    let hidden = target.truths.iter().find(|truth| of_second(&truth.name)).unwrap();
    let hidden = look.resolve(hidden.address);
    assert_eq!(&*hidden.object.name, "hidden_object");
    assert!(reason(&hidden).contains("1 units of its debug info cannot be read"), "{hidden:?}");
    assert!(look.resolver.debug_faults().iter().any(|(_, faults)| faults.broken == 1 && faults.units == 2));
}

#[test]
fn wild_addresses() {
    let workshop = Workshop::new();
    build(&workshop, "-O0 -g");
    let target = Target::start(&workshop.path("plain"));
    let mut look = target.look();
    for address in [0, 1, 4095, 1 << 47, u64::MAX, u64::MAX - 7, 0xffff_ffff_ff60_0000] {
        let named = look.resolve(address);
        assert!(named.object.unknown.is_some() || &*named.object.name == "[vsyscall]", "{named:?}");
    }
    look.frames.iter_mut().for_each(|frame| {
        frame.sp = u64::MAX - 3;
        frame.cfa = Some(u64::MAX);
        frame.bp = 0;
    });
    look.fs_base = u64::MAX - 2;
    for truth in &target.truths {
        look.resolve(truth.address);
        look.resolve(u64::MAX - 1);
    }
}
