//! Objects of C programs, resolved in live processes against what the programs say of themselves.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::collections::BTreeMap;
use std::time::Instant;

use locality_objects::{HeapBlock, HeapBlocks, Place};
use support::{Target, Workshop, check, is_installed, line_of};

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

#[test]
fn stack_and_thread_local_variables() {
    let workshop = Workshop::new();
    for flags in [
        "-g -O0",
        "-g -O0 -gsplit-dwarf",
        "-g -O0 -fomit-frame-pointer",
        "-g -O1",
        "-g -O2 -gdwarf-4",
        "-g -O2",
    ] {
        let program = workshop.compile("kinds", "gcc", &["kinds.c", "kinds_hidden.c"], flags);
        let target = Target::start(&program);
        let mut look = target.look();
        // Optimised code keeps the address of an array of variable length in a register.
        let placed = |name: &str| name != "variable" || flags.contains("-O0");
        let local = |kind: &str| kind == "stack" || kind == "thread-local";
        let checked = check(&target, &mut look, |truth| local(&truth.kind) && placed(&truth.name));
        assert_eq!(checked, 6 + usize::from(flags.contains("-O0")), "{flags}");
        let own = target.truths.iter().find(|truth| truth.name == "own").unwrap();
        let own = look.resolve(own.address);
        assert_eq!(own.object.function.as_deref(), Some("inner"), "{flags}");
        assert_eq!(own.object.declared.as_ref().unwrap().line, line_of("kinds.c", "own"), "{flags}");
    }
}

/// The C library's `errno` is found through the thread's vector of blocks.
#[test]
fn thread_local_of_a_library() {
    let workshop = Workshop::new();
    let program = workshop.compile("tls", "gcc", &["library_tls.c"], "-g");
    let target = Target::start(&program);
    let mut look = target.look();
    for truth in &target.truths {
        let named = look.resolve(truth.address);
        assert_eq!(
            (named.object.kind.as_str(), &*named.object.name),
            ("thread-local", &*truth.name),
            "{named:?}"
        );
        assert_eq!(named.offset, 0);
    }
    assert_eq!(target.truths.len(), 2);
}

/// Blocks without records are named by the pointers to them; files and mappings by themselves.
#[test]
fn heap_files_and_mappings() {
    let workshop = Workshop::new();
    let program = workshop.compile("kinds", "gcc", &["kinds.c", "kinds_hidden.c"], "-g -O0");
    let target = Target::start(&program);
    let mut look = target.look();
    let kinds = ["heap", "file", "mapped"];
    assert_eq!(check(&target, &mut look, |truth| kinds.contains(&truth.kind.as_str())), 10);
    for truth in target.truths.iter().filter(|truth| truth.kind == "heap") {
        assert!(look.resolve(truth.address).object.inferred);
    }
}

/// Allocation records as a tracer would keep them.
struct Recorded {
    blocks: BTreeMap<u64, HeapBlock>,
    /// Whether they still stand.
    stand: bool,
}

impl HeapBlocks for Recorded {
    fn block(&self, address: u64) -> Option<HeapBlock> {
        let (_, block) = self.blocks.range(..=address).next_back()?;
        (address - block.start < block.bytes).then_some(*block)
    }

    fn stood_at(&self, _: &HeapBlock, _: Instant) -> bool {
        true
    }

    fn stands(&self, _: &HeapBlock) -> bool {
        self.stand
    }
}

/// Recorded blocks are known; their names and types are inferred from pointers, or missing without
/// memory to read.
#[test]
fn recorded_blocks() {
    let workshop = Workshop::new();
    let program = workshop.compile("kinds", "gcc", &["kinds.c", "kinds_hidden.c"], "-g -O0");
    let target = Target::start(&program);
    let mut look = target.look();
    let at = |name: &str| target.truths.iter().find(|truth| truth.name == name).unwrap().address;
    // `heap_cells[77].at.x` and `list->value`.
    let (cells, node) = (at("heap_cells") - 77 * 56 - 16, at("list") - 8);
    let second = at("list->next") - 8;
    let block = |start, bytes, site| (start, HeapBlock { start, bytes, site, mapped: false, since_ns: 0 });
    let blocks: BTreeMap<u64, HeapBlock> =
        [block(cells, 56_000, 1), block(node, 16, 2), block(second, 16, 2), block(8, 72_000, 1)]
            .into_iter()
            .collect();
    let gone = Recorded { blocks: BTreeMap::from([block(cells, 56_000, 9)]), stand: false };
    let recorded = Recorded { blocks, stand: true };
    let blind = Place { heap: Some(&recorded), ..Default::default() };
    let named = look.resolver.resolve(cells + 10, &blind);
    assert_eq!((&*named.object.name, named.object.site, named.offset), ("[heap]", Some(1), 10));
    assert!(!named.object.inferred && named.field.is_none());
    let seeing = Place { memory: Some(&look.memory), frames: &look.frames, ..blind };
    // A pointer that leads to the place of a block that is gone leads to another one.
    for _ in 0..100 {
        let named = look.resolver.resolve(cells, &Place { heap: Some(&gone), ..seeing });
        assert_eq!((&*named.object.name, named.object.inferred), ("[heap]", false));
    }
    let mut full = |address| look.resolver.resolve(address, &seeing);
    let first = full(cells + 56 * 3 + 8);
    assert_eq!((first.full_name().as_str(), first.object.inferred), ("heap_cells[].vx", true));
    assert_eq!((first.object.id, first.object.site, first.object.bytes), (named.object.id, Some(1), 56_000));
    assert_eq!(first.object.type_name.as_deref(), Some("cell"));
    // Two blocks of one site are one object, each a single node.
    let (one, two) = (full(node + 8), full(second));
    assert_eq!((one.full_name().as_str(), two.full_name().as_str()), ("list.value", "list.next"));
    assert_eq!(one.object.id, two.object.id);
    // Of a site's blocks the largest tells its size.
    let large = full(1000).object;
    assert_eq!((large.id, large.bytes), (first.object.id, 72_000));
    assert_eq!(full(cells).object.bytes, 72_000);
    assert_eq!(look.resolver.object(named.object.id).map(|object| &*object.name), Some("heap_cells"));
}

/// What pahole prints of this struct.
#[test]
fn layout_of_a_struct() {
    let workshop = Workshop::new();
    let program = workshop.compile("kinds", "gcc", &["kinds.c", "kinds_hidden.c"], "-g -O0");
    let target = Target::start(&program);
    let mut look = target.look();
    let of = |look: &mut support::Look, name: &str| {
        let address = target.truths.iter().find(|truth| truth.name == name).unwrap().address;
        let ty = look.resolve(address).object.ty.unwrap();
        look.resolver.layout(ty).unwrap()
    };
    let layout = of(&mut look, "cells");
    let fields: Vec<(&str, u64, u64)> =
        layout.fields.iter().map(|field| (&*field.path, field.offset, field.bytes)).collect();
    assert_eq!(
        fields,
        [
            ("tag", 0, 1),
            ("<padding>", 1, 7),
            ("vx", 8, 8),
            ("at.x", 16, 8),
            ("at.y", 24, 8),
            ("count", 32, 2),
            ("<padding>", 34, 2),
            ("v[]", 36, 16),
            ("<padding>", 52, 4),
        ]
    );
    assert_eq!((layout.bytes, layout.align, layout.padding(), layout.lines(64)), (56, 8, 13, 1));
    assert_eq!((&*layout.name, layout.declared.unwrap().line), ("cell", 14));
    let bits = of(&mut look, "flags");
    let bits: Vec<(&str, u64)> = bits.fields.iter().map(|field| (&*field.path, field.offset)).collect();
    assert_eq!(bits, [("(first|second)", 0), ("third", 1), ("<padding>", 3), ("after", 4)]);
    let mixed = of(&mut look, "mixed");
    assert_eq!(mixed.fields.iter().map(|field| field.bytes).collect::<Vec<_>>(), [8]);
}

/// A thread's own copy and frame are found; another thread's stack is told as what it is, without a name.
#[test]
fn a_second_thread() {
    let workshop = Workshop::new();
    let program = workshop.compile("threads", "gcc", &["threads.c"], "-g -O0 -pthread");
    let target = Target::start(&program);
    assert_ne!(target.thread, target.pid);
    let mut look = target.look();
    assert_eq!(check(&target, &mut look, |truth| truth.name != "of_main"), 3);
    let of_main = target.truths.iter().find(|truth| truth.name == "of_main").unwrap();
    let named = look.resolve(of_main.address);
    assert_eq!((named.object.kind.as_str(), &*named.object.name), ("stack", "[stack]"));
    assert_eq!(named.object.unknown.as_deref(), Some("on another thread's stack"));
}

/// The compiler makes a function of a parallel region; its frame is named after the function of the source.
#[test]
fn frames_of_parallel_regions() {
    let workshop = Workshop::new();
    for (compiler, flags) in [("gcc", "-g -O1 -fopenmp"), ("clang", "-g -O1 -fopenmp")] {
        if !is_installed(compiler) {
            continue;
        }
        let program = workshop.compile("regions", compiler, &["regions.c"], flags);
        let target = Target::start(&program);
        let mut look = target.look();
        let first = line_of("regions.c", "region");
        let names = [first, first + 1].map(|line| format!("relax (parallel loop, regions.c:{line})"));
        assert_eq!(check(&target, &mut look, |_| true), 1);
        let own = look.resolve(target.truths[0].address).object;
        assert!(names.iter().any(|name| own.function.as_deref() == Some(name)), "{own:?}");
        let frame = look.resolve(look.frames[0].cfa.unwrap() - 8).object;
        assert!(names.iter().any(|name| *frame.name == format!("{name} [stack]")), "{frame:?}");
    }
}

/// The header of a block has the block's bounds before it, and no name of what begins later.
#[test]
fn a_header_before_what_a_variable_leads_to() {
    let workshop = Workshop::new();
    let program = workshop.compile("header", "gcc", &["header.c"], "-g -O1");
    let target = Target::start(&program);
    let mut look = target.look();
    let [item, header] = [0, 1].map(|place| look.resolve(target.truths[place].address));
    assert!(item.object.name.contains("items"), "{:?}", item.object);
    assert_eq!(item.offset, 7 * 16 + 8);
    assert!(header.offset < 1 << 20, "{header:?}");
}

/// Arrays that no variable but an argument of the hot function names, at the levels of optimisation
/// at which arguments live in registers, in blocks and mappings of every kind.
#[test]
fn arrays_that_only_arguments_name() {
    let workshop = Workshop::new();
    for (compiler, flags) in [("gcc", "-g -O0"), ("gcc", "-g -O1"), ("gcc", "-g -O2"), ("clang", "-g -O2")] {
        if !is_installed(compiler) {
            continue;
        }
        let program = workshop.compile("arguments", compiler, &["arguments.c"], flags);
        // How memory is made, and how much: blocks in the break, aligned ones, blocks with mappings of
        // their own as neighbours, mappings as neighbours.
        for arguments in [["0", "300"], ["1", "300"], ["0", "100000"], ["1", "100000"], ["2", "200"]] {
            let target = Target::start_with(&program, &arguments);
            std::thread::sleep(std::time::Duration::from_millis(30));
            let mut look = target.look();
            assert_eq!(check(&target, &mut look, |_| true), 4, "{compiler} {flags} {arguments:?}");
        }
    }
}
