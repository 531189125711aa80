//! Allocations of real programs, followed by probes: each block printed by a program is found at
//! the printed moment, with the allocating function, and is not found after the free; the budget
//! holds; a killed tracer leaves clean text.
//!
//! Assertions count and never time. The programs print moments of
//! `CLOCK_MONOTONIC`, at which the blocks are looked up later.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use locality_capture::events::Event;
use locality_common::record::Registers;
use locality_heap::{self as heap, Block, Heap, HeapSite, HeapThread};
use locality_kernel::btf;
use locality_kernel::object::{Filter, Object};
use locality_symbols::{CodeAddress, Mappings, Processes, Symbolizer};
use locality_tests::live::alone;
use locality_tests::overseer::{children, name};
use locality_tests::{Finished, Target, Tracer, requires};
use locality_tracer::call_stacks::Sites;
use tokio::sync::mpsc;

const LIMIT: Duration = Duration::from_secs(60);

/// A share of the CPU time large enough to follow every test program.
const UNBOUNDED: f64 = 1e6;

/// Follows allocations in this process, without a surrounding trace.
struct Follower {
    /// Owns the maps.
    _object: Object,
    thread: HeapThread,
    events: mpsc::Receiver<Event>,
    processes: Processes,
    sites: RefCell<Sites>,
    symbolizer: RefCell<Symbolizer>,
}

impl Follower {
    /// `None`, with a message, where the kernel cannot.
    fn start(share: f64) -> Option<Self> {
        let (object, _, heap) =
            Object::load_with(&Filter::Processes, &btf::kernel_offsets().unwrap(), true).unwrap();
        let heap = match heap.unwrap() {
            Ok(heap) => heap,
            Err(error) => {
                locality_tests::requires::skip(&format!("needs Linux 6.6: {error:#}"));
                return None;
            }
        };
        locality_kernel::uprobe::start_probe_process_from(locality_tests::tracer::binary());
        let (sender, events) = mpsc::channel(4096);
        let settings = heap::Settings { share, min_bytes: heap::MIN_BYTES, copy_ns: 10_000 };
        let thread = heap::start(heap, settings, Arc::default(), sender).unwrap();
        let processes = Processes::new();
        let sites = RefCell::new(Sites::new(processes.clone()));
        let symbolizer = RefCell::new(Symbolizer::new(processes.clone()));
        Some(Self { _object: object, thread, events, processes, sites, symbolizer })
    }

    fn heap(&self) -> &Heap {
        self.thread.heap()
    }

    /// Has a process probed, and waits for the probes.
    fn attach(&self, pid: u32) {
        self.know(pid);
        self.heap().launched(pid, PathBuf::from(format!("/proc/{pid}/exe")));
    }

    /// Reads the rules of unwinding the process's stacks, while the process runs.
    fn know(&self, pid: u32) {
        self.processes.attach(pid).unwrap();
        // A file can be opened as long as the process maps the file.
        for mapping in Mappings::read(pid).unwrap().iter().filter(|mapping| mapping.executable) {
            let inside = Registers { rip: mapping.start + 16, ..Registers::default() };
            drop(self.sites.borrow_mut().walk(pid, &inside, &[]));
            drop(self.symbolizer.borrow_mut().symbolize(pid, CodeAddress::Exact(inside.rip)));
        }
    }

    /// Ends, and names the functions of each site's stack, innermost first. The processes may be gone.
    fn finish(mut self) -> Followed {
        self.thread.finish();
        let sites = self.sites.get_mut();
        let symbolizer = self.symbolizer.get_mut();
        let mut paths: HashMap<u64, Vec<String>> = HashMap::new();
        while let Ok(event) = self.events.try_recv() {
            let Event::HeapSite(site) = event else { panic!("{event:?}") };
            let HeapSite { pid, regs, stack, .. } = &*site;
            let walk = sites.walk(*pid, regs, stack);
            let frames = walk.addresses.iter().flat_map(|address| symbolizer.symbolize(*pid, *address));
            let names = frames.map(|frame| frame.function.unwrap_or_default()).collect();
            assert!(paths.insert(site.site, names).is_none(), "site {} was told twice", site.site);
        }
        Followed { heap: self.thread.heap().clone(), paths }
    }
}

/// Results of a follower.
struct Followed {
    heap: Heap,
    paths: HashMap<u64, Vec<String>>,
}

/// A program's statement about an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A block stands at the address.
    Stands,
    /// The block is gone.
    Gone,
    /// No block stood at the address.
    Never,
}

/// A line of a program.
#[derive(Debug)]
struct Said {
    pid: u32,
    kind: Kind,
    at_ns: u64,
    name: String,
    address: u64,
    bytes: u64,
}

/// Lines of a program, and of a child of the program in between.
fn said(finished: &Finished, pid: u32) -> Vec<Said> {
    let mut by = pid;
    let mut all = Vec::new();
    for line in &finished.stdout {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["child", child] => by = child.parse().unwrap(),
            ["parent"] => by = pid,
            [kind @ ("at" | "gone" | "none"), at_ns, name, address, ref bytes @ ..] => all.push(Said {
                pid: by,
                kind: match kind {
                    "at" => Kind::Stands,
                    "gone" => Kind::Gone,
                    _ => Kind::Never,
                },
                at_ns: at_ns.parse().unwrap(),
                name: name.to_owned(),
                address: address.parse().unwrap(),
                bytes: bytes.first().map_or(0, |bytes| bytes.parse().unwrap()),
            }),
            _ => {}
        }
    }
    all
}

impl Followed {
    fn block(&self, said: &Said, offset: u64) -> Option<Block> {
        self.heap.find(said.pid, said.address + offset, said.at_ns)
    }

    /// Checks each line; returns the names of the sites met.
    fn check(&self, lines: &[Said]) -> HashSet<String> {
        let mut met = HashSet::new();
        let mut stood_at: HashMap<(u32, u64), u64> = HashMap::new();
        for said in lines {
            if said.kind == Kind::Never {
                assert_eq!(self.block(said, 0), None, "{said:?}");
                continue;
            }
            if said.kind == Kind::Gone {
                // Another block may have taken the place.
                let stood_ns = stood_at.get(&(said.pid, said.address)).copied().unwrap_or(0);
                let found = self.block(said, 0).filter(|block| block.since_ns <= stood_ns);
                assert_eq!(found, None, "{said:?}");
                continue;
            }
            stood_at.insert((said.pid, said.address), said.at_ns);
            for offset in [0, said.bytes / 2, said.bytes - 1] {
                let block = self.block(said, offset).unwrap_or_else(|| panic!("not found: {said:?}"));
                assert_eq!(
                    (block.start, block.bytes, block.certain),
                    (said.address, said.bytes, true),
                    "{said:?}"
                );
                let path = self.paths.get(&block.site).unwrap_or_else(|| panic!("no stack: {said:?}"));
                assert!(path.contains(&said.name), "{said:?} from {path:?}");
                assert!(path.iter().any(|frame| frame == "main" || frame == "in_thread"), "{path:?}");
            }
            let behind = self.block(said, said.bytes + 64);
            assert!(behind.is_none_or(|block| block.start > said.address), "{said:?} {behind:?}");
            met.insert(said.name.clone());
        }
        met
    }
}

/// Starts a program, probes the process, and lets the program run on; returns the output.
fn follow(program: PathBuf, arguments: &[&str]) -> Option<(Followed, Vec<Said>, Finished)> {
    follow_command(std::process::Command::new(program), arguments)
}

fn follow_command(
    mut command: std::process::Command,
    arguments: &[&str],
) -> Option<(Followed, Vec<Said>, Finished)> {
    let follower = Follower::start(UNBOUNDED)?;
    command.args(["0"]).args(arguments);
    let target = Target::start_command(command);
    let pid = target.pid();
    follower.attach(pid);
    target.signal(libc::SIGUSR1);
    if arguments.contains(&"fork") {
        let child = child_of(pid);
        follower.know(child);
        follower.heap().forked(pid, child, monotonic_ns());
    }
    let finished = target.finish(LIMIT);
    let said = said(&finished, pid);
    Some((follower.finish(), said, finished))
}

fn child_of(pid: u32) -> u32 {
    let deadline = Instant::now() + LIMIT;
    loop {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        if let Some(child) = children.split_whitespace().next() {
            return child.parse().unwrap();
        }
        assert!(Instant::now() < deadline, "no child came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the destination is a live `timespec`.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) }, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn names(of: &[&str]) -> HashSet<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

const C_SITES: [&str; 8] = [
    "site_malloc",
    "site_calloc",
    "site_memalign",
    "site_posix",
    "site_mmap",
    "site_realloc",
    "site_reallocarray",
    "site_thread",
];

#[test]
fn blocks_of_every_kind_are_found_at_their_moments() {
    requires!(root, btf);
    let _alone = alone();
    let Some((followed, lines, _)) = follow(locality_tests::build("heap_sites"), &[]) else { return };
    assert_eq!(followed.check(&lines), names(&C_SITES));
    let never: Vec<&str> =
        lines.iter().filter(|said| said.kind == Kind::Never).map(|said| said.name.as_str()).collect();
    assert_eq!(never, ["small", "stack", "file"]);
    let summary = followed.heap.summary();
    assert_eq!(
        (summary.lost, summary.folded, summary.unseen_frees, summary.pauses),
        (0, 0, 0, 0),
        "{summary:?}"
    );
    // Four threads of 51 each, and a dozen more; small blocks are counted, earlier blocks are not.
    assert!((210..260).contains(&summary.seen) && summary.small > 0, "{summary:?}");
    assert!(summary.made >= summary.seen + summary.small && summary.watched == 1.0, "{summary:?}");
    let totals = followed.heap.totals();
    let at = |name: &str| {
        let of = totals.iter().filter(|total| followed.paths[&total.site].iter().any(|frame| frame == name));
        of.fold((0, 0), |sum, total| (sum.0 + total.allocations, sum.1 + total.bytes))
    };
    let small: u64 = (2000..2050).sum();
    assert_eq!(at("site_thread"), (204, 4 * small + (0..4).map(|n| 40_000 + 16 * n).sum::<u64>()));
    assert_eq!(at("site_posix"), (1, 70_000));
}

#[test]
fn a_child_has_a_copy_of_the_blocks() {
    requires!(root, btf);
    let _alone = alone();
    let Some((followed, lines, _)) = follow(locality_tests::build("heap_sites"), &["fork"]) else { return };
    let parent = lines.first().unwrap().pid;
    assert_eq!(lines.iter().filter(|said| said.pid != parent).count(), 4, "{lines:?}");
    followed.check(&lines);
}

#[test]
fn a_statically_linked_program_is_followed() {
    requires!(root, btf);
    let _alone = alone();
    let program = locality_tests::build("heap_sites").with_extension("static");
    let Some((followed, lines, _)) = follow(program, &[]) else { return };
    assert_eq!(followed.check(&lines), names(&C_SITES));
}

/// The libraries that replace the C library's allocator, and Debian's packages of them.
const ALLOCATORS: [(&str, &str); 3] = [
    ("libjemalloc.so.2", "libjemalloc2"),
    ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    ("libmimalloc.so.2", "libmimalloc2.0"),
];

fn preloaded(program: &str, library: &str) -> std::process::Command {
    let mut command = std::process::Command::new(locality_tests::build(program));
    command.env("LD_PRELOAD", library);
    command
}

#[test]
fn blocks_of_other_allocators_are_followed() {
    requires!(root, btf);
    let _alone = alone();
    for (library, package) in ALLOCATORS {
        if let Err(reason) = locality_tests::requires::library(library, package) {
            locality_tests::requires::skip(&reason);
            continue;
        }
        let Some((followed, lines, _)) = follow_command(preloaded("heap_sites", library), &[]) else {
            return;
        };
        eprintln!("{library}: {:?}", followed.heap.summary());
        assert_eq!(followed.check(&lines), names(&C_SITES), "{library}");
        let summary = followed.heap.summary();
        assert_eq!((summary.lost, summary.folded, summary.pauses), (0, 0, 0), "{library} {summary:?}");
        // Each allocation once, through whichever of the library's functions.
        assert!((210..260).contains(&summary.seen), "{library} {summary:?}");
    }
}

#[test]
fn functions_of_mimalloc_alone_are_followed() {
    let (library, package) = ALLOCATORS[2];
    requires!(root, btf, library(library, package));
    let _alone = alone();
    let Some((followed, lines, _)) = follow_command(preloaded("heap_mimalloc", library), &[]) else { return };
    assert_eq!(followed.check(&lines), names(&["main"]));
    assert!(lines.iter().filter(|said| said.kind == Kind::Stands).count() == 27, "{lines:?}");
    assert!(lines.iter().filter(|said| said.kind == Kind::Gone).count() >= 4, "{lines:?}");
}

#[test]
fn cpp_blocks_are_followed_and_a_failed_one_throws() {
    requires!(root, btf);
    let _alone = alone();
    let program = locality_tests::build("heap_new");
    for program in [program.clone(), program.with_extension("static")] {
        let Some((followed, lines, finished)) = follow(program, &[]) else { return };
        assert_eq!(finished.status.code(), Some(0), "{finished:?}");
        for said in &lines {
            let block = followed.block(said, 0).unwrap_or_else(|| panic!("not found: {said:?}"));
            assert_eq!((block.start, block.bytes), (said.address, said.bytes), "{said:?}");
            let path = &followed.paths[&block.site];
            assert!(path.iter().any(|frame| frame.contains(&said.name)), "{said:?} from {path:?}");
        }
        assert_eq!(lines.len(), 3);
        assert_eq!(followed.heap.summary().pauses, 0);
    }
}

#[test]
fn a_program_that_only_allocates_is_watched_within_the_share() {
    requires!(root, btf);
    let _alone = alone();
    let share = 0.004;
    let Some(follower) = Follower::start(share) else { return };
    let target = Target::start("heap_storm", &["6"]);
    let pid = target.pid();
    follower.attach(pid);
    let finished = target.finish(LIMIT);
    // The program runs 6 s, on a busy machine with less CPU time.
    let cpu_ns = 6e9;
    let calls: u64 =
        finished.stdout.iter().find_map(|line| line.strip_prefix("calls ")?.parse().ok()).unwrap();
    let summary = follower.finish().heap.summary();
    eprintln!("{calls} calls, {summary:?}");
    // Counted probes times their price; beyond the share, the
    // credit of the start and one or two bursts over the limit.
    let allowed_ns = share * cpu_ns + 5e6 + 10e6;
    assert!((summary.cost_ns as f64) < allowed_ns, "{summary:?}");
    assert!(summary.pauses >= 1 && summary.watched < 0.5, "{summary:?}");
    assert!(summary.seen > 0 && summary.seen < calls / 10, "{calls} {summary:?}");
    // The extrapolation uses CPU time spent mostly in
    // probes; on a busy machine the number is far too low.
    assert!(
        (summary.seen + summary.small..calls.saturating_mul(50)).contains(&summary.made),
        "{calls} {summary:?}"
    );
}

/// Bytes of a process' text that differ from the file, file by file.
fn changed_text(pid: u32) -> usize {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mappings = Mappings::read(pid).unwrap();
    let mut changed = 0;
    for mapping in mappings.iter().filter(|mapping| mapping.executable && mapping.inode != 0) {
        let bytes = (mapping.end - mapping.start) as usize;
        let (mut now, mut then) = (vec![0u8; bytes], vec![0u8; bytes]);
        memory.read_exact_at(&mut now, mapping.start).unwrap();
        let file =
            fs::File::open(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end)).unwrap();
        let read = file.read_at(&mut then, mapping.offset).unwrap();
        if now[..read] != then[..read] {
            changed += now.iter().zip(&then).take(read).filter(|(now, then)| now != then).count();
        }
    }
    changed
}

/// A tracer of a process, returned as soon as the process has a probe.
fn probing_tracer(pid: u32, heap: &str, folder: &Path) -> Target {
    let (pid_text, profile) = (pid.to_string(), folder.join("t.locality"));
    let arguments =
        ["-q", heap, "--overhead", "90", "-p", &pid_text, "-o", profile.to_str().unwrap()].map(str::to_owned);
    let mut tracer = Tracer::new().args(&arguments).start();
    let deadline = Instant::now() + LIMIT;
    while changed_text(pid) == 0 {
        assert!(Instant::now() < deadline && tracer.is_running(), "no probe was put into the program");
        std::thread::sleep(Duration::from_millis(1));
    }
    tracer
}

/// Descriptors of a process that are links of probes.
fn probe_links(pid: u32) -> usize {
    let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return 0 };
    let link = |path: PathBuf| fs::read_to_string(path).is_ok_and(|info| info.contains("link_type:\tuprobe"));
    descriptors.flatten().filter(|descriptor| link(descriptor.path())).count()
}

/// A thread with a fatal signal can neither write nor remove breakpoints.
/// The killed tracer must therefore make no call that does.
#[test]
fn links_of_probes_belong_to_a_process_that_outlives_the_tracer() {
    requires!(root, btf);
    let _alone = alone();
    let target = Target::start("heap_storm", &[]);
    let pid = target.pid();
    let dir = tempfile::tempdir().unwrap();
    let tracer = probing_tracer(pid, "--heap=probes", dir.path());
    let holder = children(tracer.pid()).into_iter().find(|child| name(*child) == "locality-probes");
    let holder = holder.expect("no process for probes");
    let deadline = Instant::now() + LIMIT;
    while probe_links(holder) == 0 {
        assert!(Instant::now() < deadline, "the process for probes has no link");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(probe_links(tracer.pid()), 0);
    // Its own death by a signal of a terminal or of a service's end would be as bad.
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: a system call with plain arguments.
        assert_eq!(unsafe { libc::kill(holder as i32, signal) }, 0);
    }
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(name(holder), "locality-probes");
    tracer.signal(libc::SIGKILL);
    let deadline = Instant::now() + LIMIT;
    while changed_text(pid) > 0 || name(holder) == "locality-probes" {
        assert!(Instant::now() < deadline, "{} bytes of text are still changed", changed_text(pid));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_tracer_leaves_the_text_clean() {
    requires!(root, btf);
    let _alone = alone();
    let mut target = Target::start("heap_storm", &[]);
    let pid = target.pid();
    assert_eq!(changed_text(pid), 0);
    let dir = tempfile::tempdir().unwrap();
    let tracer = probing_tracer(pid, "--heap", dir.path());
    tracer.signal(libc::SIGKILL);
    let killed = Instant::now();
    let deadline = killed + LIMIT;
    while changed_text(pid) > 0 {
        assert!(Instant::now() < deadline, "{} bytes of text are still changed", changed_text(pid));
        std::thread::sleep(Duration::from_millis(5));
    }
    eprintln!("clean {:?} after the tracer was killed", killed.elapsed());
    // The program allocates all the time: a remaining breakpoint would end the program at once.
    std::thread::sleep(Duration::from_millis(200));
    assert!(target.is_running());
    target.signal(libc::SIGTERM);
    let finished = target.finish(LIMIT);
    assert_eq!(finished.status.signal(), Some(libc::SIGTERM), "{finished:?}");
}
