//! What a trace of one process can have. Reads `/proc` and reserves debug registers; the process is
//! neither stopped nor traced nor written.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use locality_common::rules;
use locality_symbols::Mappings;

use super::{
    Check, State, Target, count,
    debug_info::{self, Facts},
    probe::{self, DEBUG_REGISTERS},
    stop_test::signal_name,
};
use locality_kernel::proc::{self, Status};

/// A watch is armed in the sampled thread and in this many others.
const SIBLINGS: usize = 16;

/// Libraries that are looked into, the largest first.
const LIBRARIES: usize = 5;

pub(super) fn examine(pid: u32) -> Target {
    let mut target = Target { pid, command: String::new(), checks: Vec::new(), notes: Vec::new() };
    let (check, status) = process_check(pid, proc::status(pid));
    target.checks.push(check);
    let Some(status) = status else { return target };
    target.command = proc::command_line(pid);
    let access = access_check(pid, &status);
    let readable = access.state == State::Ok;
    target.checks.push(access);
    let threads = statuses(pid);
    let tracer = threads.values().map(|thread| thread.tracer).find(|tracer| *tracer != 0);
    target.checks.push(threads_check(threads.len()));
    target.checks.push(tracer_check(tracer.map(|pid| (pid, proc::command_line(pid)))));
    target.checks.push(signal_check(&threads));
    target.checks.push(registers_check(&threads));
    if readable {
        target.checks.extend(file_checks(pid));
        target.notes = NOTES.map(str::to_owned).to_vec();
    }
    target
}

/// What being seized makes visible (`ptrace(2)`, "PTRACE_SEIZE" and "BUGS"); reproduced on Linux 6.18.
const NOTES: [&str; 3] = [
    "No debugger, strace or other tracer can attach to it, and its TracerPid names us.",
    "Signals that it ignores by default (SIGURG, SIGWINCH, SIGCHLD) end a waiting epoll_wait with EINTR.",
    "With --no-stop it is not seized: none of this holds, and uses are found from sampled registers.",
];

/// Whether the process can be traced at all; its status if so.
fn process_check(pid: u32, status: io::Result<Status>) -> (Check, Option<Status>) {
    let found = |text: String| Check::ok("process", "process", text);
    let status = match status {
        Ok(status) => status,
        // Kernel thread ids and those beyond pid_max are answered alike.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
            let check = found(format!("no process {pid}"))
                .missing("there is nothing to trace: it ended, or never was");
            return (check.mend("ps -e -o pid,comm,args"), None);
        }
        Err(error) => {
            return (found(format!("/proc/{pid}: {error}")).missing("it cannot be looked at"), None);
        }
    };
    let name = &status.name;
    let check = if status.tgid != pid {
        found(format!("{pid} is a thread of process {} ({name})", status.tgid))
            .missing("processes are traced whole")
            .mend(format!("locality-bpf doctor -p {}", status.tgid))
    } else if matches!(status.state, 'Z' | 'X') {
        found(format!("{name} is a zombie")).missing("it has ended and waits for its parent to notice")
    } else if status.kernel_thread {
        found(format!("{name} is a thread of the kernel"))
            .missing("it has no user code and no memory of its own")
    } else if pid == std::process::id() {
        found("it is this process".into()).missing("a process cannot trace itself")
    } else {
        match proc::is_x86_64(pid) {
            Ok(false) => found(format!("{name} is not a 64-bit x86 program"))
                .missing("its instructions are not decoded; only 64-bit programs can be traced"),
            Err(error) if error.kind() != io::ErrorKind::PermissionDenied => {
                found(format!("{name}: its program cannot be read: {error}"))
                    .unknown("whether it is a 64-bit x86 program is not known")
            }
            // Rights are the next check's matter.
            _ => found(format!("{name}, user {}", status.uid)),
        }
    };
    let usable = check.state != State::Missing;
    (check, usable.then_some(status))
}

/// Whether locality may attach: opening its memory requires the same right as ptrace
/// (`PTRACE_MODE_ATTACH`, `ptrace(2)`, "Ptrace access mode checking"), without further effects. The file's
/// owner counts besides: a root without the right to pass over owners may attach and not open.
fn access_check(pid: u32, status: &Status) -> Check {
    // SAFETY: a system call without arguments.
    let own = unsafe { libc::geteuid() };
    // Its files in /proc belong to root when it is not dumpable (`proc(5)`).
    let dumpable = fs::metadata(format!("/proc/{pid}/mem")).map_or(true, |file| file.uid() == status.uid);
    let opened = File::open(format!("/proc/{pid}/mem")).map(drop);
    let may_attach = may_attach(pid);
    judge_access(opened, may_attach, own, status.uid, dumpable)
}

/// Asks for a byte at an address that no process has: the kernel looks at the rights first
/// (`process_vm_readv(2)`, `PTRACE_MODE_ATTACH_REALCREDS`).
fn may_attach(pid: u32) -> bool {
    let mut byte = 0_u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
    // SAFETY: the local vector describes a live byte; nothing else is written.
    let read = unsafe { libc::process_vm_readv(pid.cast_signed(), &here, 1, &there, 1, 0) };
    read >= 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
}

fn judge_access(opened: io::Result<()>, may_attach: bool, own: u32, uid: u32, dumpable: bool) -> Check {
    let found = |text: &str| Check::ok("access", "rights on it", text);
    let consequence = "it can neither be stopped nor read";
    match opened {
        Ok(()) if dumpable => found("may be read and stopped"),
        Ok(()) => found("may be read and stopped (it is not dumpable)"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && may_attach && own == 0 => {
            found(&format!("may be stopped; its memory is user {uid}'s and may not be read"))
                .degraded("it is traced without windows: no rates, no loops, no advice")
                .mend("the capability DAC_READ_SEARCH (docs/guide/containers.md)")
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let why = match () {
                () if own != uid => format!("refused: it is user {uid}'s, we are user {own}"),
                () if !dumpable => "refused: it is not dumpable (setuid, or by its own wish)".to_owned(),
                () => {
                    "refused, though it is ours: it is protected, or a security module forbids it".to_owned()
                }
            };
            let check = found(&why).missing(consequence);
            // More than root there is not.
            if own == 0 { check } else { check.mend("sudo locality-bpf doctor") }
        }
        Err(error) => found(&format!("its memory cannot be opened: {error}")).unknown(consequence),
    }
}

/// Status of every thread; threads that end meanwhile are left out.
fn statuses(pid: u32) -> BTreeMap<u32, Status> {
    let threads = proc::threads(pid).unwrap_or_default();
    threads.into_iter().filter_map(|tid| Some((tid, proc::status(tid).ok()?))).collect()
}

fn threads_check(threads: usize) -> Check {
    let check = Check::ok("threads", "threads", threads.to_string());
    match threads <= 1 + SIBLINGS {
        true => check,
        false => check.degraded(format!(
            "a location is watched in the sampled thread and in the {SIBLINGS} that ran last; touches by others are not seen"
        )),
    }
}

fn tracer_check(tracer: Option<(u32, String)>) -> Check {
    match tracer {
        None => Check::ok("tracer", "other debuggers", "none"),
        Some((pid, name)) => Check::ok(
            "tracer",
            "other debuggers",
            format!("traced by process {pid}: {name}"),
        )
        .degraded(
            "its threads cannot be stopped for us, so uses are found from sampled registers; detach it first",
        )
        .mend(format!("ps -p {pid} -o pid,args")),
    }
}

/// The first stop signal that the thread neither catches nor blocks.
fn free_signal(thread: &Status) -> Option<u32> {
    rules::STOP_SIGNALS
        .into_iter()
        .find(|signal| (thread.caught | thread.blocked) & rules::signal_bit(*signal) == 0)
}

fn signal_check(threads: &BTreeMap<u32, Status>) -> Check {
    let mut counts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for thread in threads.values() {
        *counts.entry(free_signal(thread)).or_default() += 1;
    }
    let words = |(signal, number): (&Option<u32>, &usize)| {
        let name = signal.map_or("none", signal_name);
        match *number == threads.len() {
            true => format!("{name} in every thread"),
            false => format!("{name} in {}", count(*number, "thread")),
        }
    };
    let found = counts.iter().rev().map(words).collect::<Vec<_>>().join(", ");
    let check = Check::ok("stop_signal", "free stop signal", found);
    match counts.get(&None).copied().unwrap_or(0) {
        0 if threads.is_empty() => {
            Check { found: "no thread".into(), ..check }.unknown("it ended while we looked")
        }
        0 => check,
        _ => check.degraded(
            "threads that catch or block SIGURG, SIGWINCH and SIGCHLD are measured without being stopped",
        ),
    }
}

fn registers_check(threads: &BTreeMap<u32, Status>) -> Check {
    // The first threads are the oldest: a debugger arms all of them.
    let tried: Vec<_> = threads.keys().take(1 + SIBLINGS).map(|tid| probe::free_registers(*tid)).collect();
    judge_registers(tried)
}

fn judge_registers(tried: Vec<io::Result<usize>>) -> Check {
    let found = |text: String| Check::ok("target_registers", "its debug registers", text);
    let several = tried.len();
    let fewest = tried.into_iter().filter(|free| {
        // A thread may end between being listed and being tried.
        !matches!(free, Err(error) if error.raw_os_error() == Some(libc::ESRCH))
    });
    let fewest = fewest.collect::<io::Result<Vec<_>>>().map(|free| free.into_iter().min());
    match fewest {
        Ok(None) => found("no thread could be asked".into()).unknown("it ended while we looked"),
        Ok(Some(DEBUG_REGISTERS)) => found(format!("{DEBUG_REGISTERS} of {DEBUG_REGISTERS} free in {}", count(several, "thread"))),
        Ok(Some(0)) => found("none free in at least one thread".into())
            .missing("no location can be watched there; end the debugger or tracer that holds them, perhaps one of these")
            .mend("ps -C gdb,lldb,perf,rr,locality-bpf -o pid,args"),
        Ok(Some(free)) => found(format!("{free} of {DEBUG_REGISTERS} free in at least one thread"))
            .degraded("fewer locations can be watched at a time, so more samples stay without a reuse"),
        Err(error) => found(format!("refused: {error}"))
            .missing("no location can be watched")
            .mend("sudo locality-bpf doctor"),
    }
}

/// A mapped program file.
struct Mapped {
    path: String,
    bytes: u64,
    facts: io::Result<Facts>,
}

/// Files with code in the process: the program first, then libraries by size.
fn mapped_files(pid: u32) -> io::Result<Vec<Mapped>> {
    let mut sizes: BTreeMap<(String, u64), (u64, PathBuf)> = BTreeMap::new();
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    for mapping in Mappings::read(pid)?.iter().filter(|mapping| mapping.executable && mapping.inode != 0) {
        // A device is not opened for its contents.
        if mapping.path.starts_with("/dev/") || mapping.path.starts_with("/memfd:") {
            continue;
        }
        let key = (mapping.path.to_string(), mapping.inode);
        let link = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end));
        sizes.entry(key).or_insert((0, link)).0 += mapping.end - mapping.start;
    }
    let program = fs::metadata(format!("/proc/{pid}/exe")).map(|file| file.ino()).ok();
    let mut files: Vec<_> = sizes.into_iter().collect();
    files.sort_by_key(|((_, inode), (bytes, _))| (Some(*inode) != program, u64::MAX - bytes));
    files.truncate(1 + LIBRARIES);
    let look = |link: &Path, path: &str| {
        // The link reaches replaced files too, but wants more rights than the path.
        let file = File::open(link).or_else(|_| File::open(root.join(path.trim_start_matches('/'))))?;
        debug_info::of(file, &root)
    };
    Ok(files
        .into_iter()
        .map(|((path, _), (bytes, link))| Mapped { facts: look(&link, &path), path, bytes })
        .collect())
}

fn file_checks(pid: u32) -> Vec<Check> {
    let files = match mapped_files(pid) {
        Ok(files) if !files.is_empty() => files,
        other => {
            let why = other.err().map_or("no program file is mapped".to_owned(), |error| error.to_string());
            return vec![Check::ok("debug_info", "debug info", why).unknown("frames may stay without names")];
        }
    };
    let (program, libraries) = files.split_at(1);
    let mut checks = vec![debug_info_check("debug_info", "debug info: program", program, pid)];
    if !libraries.is_empty() {
        checks.push(debug_info_check("debug_info_libraries", "debug info: libraries", libraries, pid));
    }
    let sanitized = files.iter().find(|file| matches!(file.facts, Ok(Facts { leak_sanitizer: true, .. })));
    checks.push(sanitizer_check(sanitized.map(|file| file_name(&file.path)), pid));
    checks
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn debug_info_check(id: &'static str, name: &'static str, files: &[Mapped], pid: u32) -> Check {
    let words = |file: &Mapped| {
        let facts = file
            .facts
            .as_ref()
            .map_or_else(|error| format!("cannot be read: {error}"), |facts| facts.knows.words().into());
        format!("{} ({} KiB of code) {facts}", file_name(&file.path), file.bytes / 1024)
    };
    let check = Check::ok(id, name, files.iter().map(words).collect::<Vec<_>>().join("; "));
    match files.iter().all(|file| file.facts.as_ref().is_ok_and(|facts| facts.knows.has_lines())) {
        true => check,
        false => check
            .degraded(
                "frames there have no source lines; compile with -g, or install the packages that this names",
            )
            .mend(format!("find-dbgsym-packages {pid}   # from: sudo apt-get install debian-goodies")),
    }
}

fn sanitizer_check(file: Option<&str>, pid: u32) -> Check {
    match file {
        None => Check::ok("leak_sanitizer", "leak sanitizer", "none"),
        Some(file) => Check::ok("leak_sanitizer", "leak sanitizer", format!("in {file}"))
            .degraded(
                "it refuses to look for leaks in a traced process, and makes the program fail at its end",
            )
            .mend(format!("sudo locality-bpf --no-stop -p {pid}")),
    }
}

#[cfg(test)]
mod tests;
