//! What `/proc` says about processes and threads (`proc(5)`). Reads only; a process may vanish
//! between two reads.
//!
//! Names in these files are bytes that programs chose. A name may be any bytes, and the kernel cuts
//! a name after 15 bytes, which may be within a letter. Bytes that are no UTF-8 are replaced; a
//! file is never refused for them.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// The fields of `/proc/PID/status` that matter for tracing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Name of the thread.
    pub name: String,
    /// State letter: R, S, D, T (stopped), t (stopped by a tracer), Z, X.
    pub state: char,
    /// Thread group.
    pub tgid: u32,
    /// Its parent's process id; 0 for processes started by the kernel.
    pub parent: u32,
    /// Process id of its tracer, or 0.
    pub tracer: u32,
    /// Real user id.
    pub uid: u32,
    /// Blocked signals, as a kernel set.
    pub blocked: u64,
    /// Signals that the process catches.
    pub caught: u64,
    /// True for a thread of the kernel.
    pub kernel_thread: bool,
}

/// Text of a file of the kernel. Bytes that are no UTF-8 become replacement characters.
///
/// # Errors
/// Errors of the kernel for this file.
pub fn text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// Reads `/proc/PID/status`; also for a thread id.
pub fn status(tid: u32) -> io::Result<Status> {
    Ok(parse_status(&text(format!("/proc/{tid}/status"))?))
}

/// Fields of the text of `/proc/PID/status`. The kernel writes newlines in the name as `\n` here,
/// so a line is a field whatever the name is.
pub fn parse_status(text: &str) -> Status {
    let mut status = Status { kernel_thread: true, ..Status::default() };
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        let set = || u64::from_str_radix(value, 16).unwrap_or(0);
        match key {
            "Name" => status.name = value.to_owned(),
            "State" => status.state = value.chars().next().unwrap_or('?'),
            "Tgid" => status.tgid = value.parse().unwrap_or(0),
            "PPid" => status.parent = value.parse().unwrap_or(0),
            "TracerPid" => status.tracer = value.parse().unwrap_or(0),
            "Uid" => {
                status.uid = value.split_whitespace().next().and_then(|uid| uid.parse().ok()).unwrap_or(0)
            }
            "SigBlk" => status.blocked = set(),
            "SigCgt" => status.caught = set(),
            // Only a process with an address space has this line. A zombie has none either: see `State`.
            "VmSize" => status.kernel_thread = false,
            _ => {}
        }
    }
    if matches!(status.state, 'Z' | 'X') {
        status.kernel_thread = false;
    }
    status
}

/// The longer of the times that the first thread of our own process, and the thread with this name,
/// were ready to run and waited for a processor, since each began: the second field of
/// `/proc/PID/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst of Linux), in
/// nanoseconds there. Zero where the kernel was built without these accounts.
pub fn longest_wait(thread: &str) -> Duration {
    let own = std::process::id();
    let waited = |tid: u32| {
        let folder = Path::new("/proc/self/task").join(tid.to_string());
        if tid != own && text(folder.join("comm")).ok()?.trim_end() != thread {
            return None;
        }
        text(folder.join("schedstat")).ok()?.split_whitespace().nth(1)?.parse().ok()
    };
    let threads = threads(own).unwrap_or_default();
    Duration::from_nanos(threads.into_iter().filter_map(waited).max().unwrap_or(0))
}

/// CPU time of a thread so far in nanoseconds, and how often it got a processor: the first and third
/// fields of `/proc/TID/schedstat` (Documentation/scheduler/sched-stats.rst of Linux). Zeros where
/// the kernel was built without these accounts.
pub fn turns(tid: u32) -> Option<[u64; 2]> {
    let text = text(format!("/proc/{tid}/schedstat")).ok()?;
    let mut numbers = text.split_whitespace().map(|word| word.parse().ok());
    Some([numbers.next()??, numbers.nth(1)??])
}

/// Start of a thread since boot, in clock ticks (field 22 of `/proc/PID/stat`).
pub fn start_ticks(tid: u32) -> io::Result<u64> {
    parse_start_ticks(&text(format!("/proc/{tid}/stat"))?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected /proc/PID/stat"))
}

/// Start in clock ticks, from the text of `/proc/PID/stat`. The name, in parentheses, may itself
/// hold spaces, parentheses and newlines, so fields count from its end.
pub fn parse_start_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Whether a thread is waiting, hence without a processor.
pub fn is_waiting(tid: u32) -> bool {
    text(format!("/proc/{tid}/stat")).is_ok_and(|stat| parse_is_waiting(&stat))
}

/// Whether its state is one of waiting, from the text of `/proc/PID/stat`.
pub fn parse_is_waiting(stat: &str) -> bool {
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| matches!(rest.trim_start().as_bytes().first(), Some(b'S' | b'D')))
}

/// Page faults of a process without input or output, those of threads that ended included (field 10 of
/// `/proc/PID/stat`).
pub fn page_faults(pid: u32) -> io::Result<u64> {
    parse_page_faults(&text(format!("/proc/{pid}/stat"))?)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unexpected /proc/PID/stat"))
}

/// Page faults without input or output, from the text of `/proc/PID/stat`.
pub fn parse_page_faults(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(7)?.parse().ok()
}

/// The kernel's first PID namespace, in which it counts processes (`PROC_PID_INIT_INO`:
/// https://github.com/torvalds/linux/blob/v6.12/include/linux/proc_ns.h).
pub const FIRST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// The kernel's first user namespace (`PROC_USER_INIT_INO` in the same file).
const FIRST_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// The kernel's first cgroup namespace (`PROC_CGROUP_INIT_INO` in the same file).
const FIRST_CGROUP_NAMESPACE: u64 = 0xEFFF_FFFB;

/// Inode of our PID namespace.
pub fn pid_namespace() -> Option<u64> {
    own_namespace("pid")
}

/// Whether our process ids are others than the kernel's own.
pub fn in_pid_namespace() -> bool {
    pid_namespace().is_some_and(|inode| inode != FIRST_PID_NAMESPACE)
}

/// Whether our user ids and rights are those of a user namespace.
pub fn in_user_namespace() -> bool {
    own_namespace("user").is_some_and(|inode| inode != FIRST_USER_NAMESPACE)
}

/// Whether the root of the cgroups that we see may be another than the kernel's.
pub fn in_cgroup_namespace() -> bool {
    own_namespace("cgroup").is_some_and(|inode| inode != FIRST_CGROUP_NAMESPACE)
}

/// Whether `/proc` counts processes as we do: it is of the namespace of whoever mounted it.
pub fn is_of_our_namespace() -> bool {
    // `self` leads to our number there, and to none where we have none.
    fs::read_link("/proc/self").is_ok_and(|own| own.to_str() == Some(&std::process::id().to_string()))
}

/// Inode of a namespace of ours; `None` where the kernel has none of that kind.
fn own_namespace(kind: &str) -> Option<u64> {
    namespace_inode(fs::read_link(format!("/proc/thread-self/ns/{kind}")).ok()?.to_str()?)
}

/// The number in `pid:[4026531836]` (`namespaces(7)`).
fn namespace_inode(link: &str) -> Option<u64> {
    link.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

/// Thread ids of a process.
pub fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// All visible processes.
pub fn all() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Processes that run below a process, at most `most`; none where the kernel does not list children.
pub fn descendants(pid: u32, most: usize) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for thread in threads(parent).unwrap_or_default() {
            let children = text(format!("/proc/{parent}/task/{thread}/children")).unwrap_or_default();
            for child in children.split_ascii_whitespace().filter_map(|child| child.parse().ok()) {
                if found.len() < most && !found.contains(&child) {
                    found.push(child);
                    parents.push(child);
                }
            }
        }
    }
    found
}

/// Whether a thread exists, be it as a zombie.
pub fn exists(tid: u32) -> bool {
    fs::metadata(format!("/proc/{tid}/stat")).is_ok()
}

/// Whether a process has a sanitizer with a leak check at its end, which fails under ptrace: its
/// library is loaded, or the program is linked with AddressSanitizer, whose shadow memory has a
/// unique place.
pub fn leak_checker(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/maps")).is_ok_and(|maps| has_leak_checker(&String::from_utf8_lossy(&maps)))
}

/// The same, from the text of `/proc/PID/maps`.
pub fn has_leak_checker(maps: &str) -> bool {
    const LIBRARIES: [&str; 4] = ["/liblsan.so", "/libasan.so", "/libhwasan.so", "/libclang_rt."];
    // "AddressSanitizer Algorithm", mapping for x86-64 Linux: HighShadow and LowShadow begin at
    // these addresses.
    const SHADOWS: [&str; 2] = ["00007fff7000-", "7fff7000-"];
    maps.lines().any(|line| {
        SHADOWS.iter().any(|start| line.starts_with(start))
            || LIBRARIES.iter().any(|name| line.contains(name))
    })
}

/// Whether code at this address is the dynamic loader's.
pub fn is_loading(pid: u32, ip: u64) -> bool {
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    loader_base(&read("auxv"))
        .is_some_and(|base| is_in_file_at(base, ip, &String::from_utf8_lossy(&read("maps"))))
}

/// Place of a program's interpreter in memory, if it has one (`AT_BASE`, getauxval(3)).
pub fn loader_base(auxv: &[u8]) -> Option<u64> {
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
    let mut pairs =
        auxv.chunks_exact(16).map(|pair| pair.split_at(8)).map(|(key, value)| (word(key), word(value)));
    pairs.find(|(key, base)| *key == libc::AT_BASE && *base != 0).map(|(_, base)| base)
}

/// Whether both addresses lie in mappings of one file, by the text of `/proc/PID/maps`.
pub fn is_in_file_at(base: u64, ip: u64, maps: &str) -> bool {
    let file_at = |address: u64| {
        maps.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            let is_here = (number(start)?..number(end)?).contains(&address);
            // After permissions and offset: device and inode.
            is_here.then(|| (words.nth(2), words.next()))
        })
    };
    file_at(base).is_some_and(|file| file_at(ip) == Some(file))
}

/// Command line with spaces between arguments; the name in brackets when there is none.
pub fn command_line(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> =
        bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(String::from_utf8_lossy).collect();
    match words.is_empty() {
        false => words.join(" "),
        true => format!("[{}]", status(pid).map(|status| status.name).unwrap_or_default()),
    }
}

/// The program file of a process.
pub fn executable(pid: u32) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe"))
}

/// Whether the program file is a 64-bit ELF for x86-64, judged by its header.
pub fn is_x86_64(pid: u32) -> io::Result<bool> {
    use std::io::Read as _;
    let mut header = [0u8; 20];
    fs::File::open(format!("/proc/{pid}/exe"))?.read_exact(&mut header)?;
    // EI_CLASS is 2 for 64-bit files; e_machine is 62 for x86-64.
    Ok(header.starts_with(b"\x7fELF") && header[4] == 2 && u16::from_le_bytes([header[18], header[19]]) == 62)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_by_their_links() {
        assert_eq!(namespace_inode("pid:[4026531836]"), Some(FIRST_PID_NAMESPACE));
        assert_eq!(namespace_inode("pid"), None);
    }

    #[test]
    fn our_own_status_is_read() {
        let own = status(std::process::id()).unwrap();
        assert_eq!((own.tgid, own.tracer, own.kernel_thread), (std::process::id(), 0, false));
        assert!(is_x86_64(std::process::id()).unwrap());
        assert!(threads(std::process::id()).unwrap().len() >= 2);
        assert!(start_ticks(std::process::id()).unwrap() > 0);
    }

    #[test]
    fn a_kernel_thread_and_a_zombie_are_told_apart() {
        assert!(parse_status("Name:\tkthreadd\nState:\tS (sleeping)\nTgid:\t2\n").kernel_thread);
        assert!(!parse_status("Name:\tx\nState:\tZ (zombie)\nTgid:\t2\n").kernel_thread);
        assert_eq!(parse_status("SigCgt:\t0000000180004002\n").caught, 0x1_8000_4002);
    }

    #[test]
    fn leak_checkers_are_found_by_their_mappings() {
        let maps = |last: &str| format!("55d0-55d1 r-xp 00000000 fe:00 1 /bin/x\n{last}\n");
        assert!(!has_leak_checker(&maps("7f00-7f01 r-xp 00000000 fe:00 2 /lib/libc.so.6")));
        assert!(has_leak_checker(&maps("7f00-7f01 r-xp 00000000 fe:00 2 /usr/lib/liblsan.so.0.0.0")));
        assert!(has_leak_checker(&maps("7fff7000-8fff7000 rw-p 00000000 00:00 0")));
        assert!(!leak_checker(std::process::id()) && exists(std::process::id()) && !exists(0x3fff_fff0));
    }

    #[test]
    fn the_loader_is_known_by_its_mappings() {
        let maps = "1000-2000 r--p 00000000 fe:00 11 /bin/x\n2000-3000 r-xp 00001000 fe:00 11 /bin/x\n\
            7000-8000 r--p 00000000 fe:00 12 /lib/ld.so\n8000-9000 r-xp 00001000 fe:00 12 /lib/ld.so\n";
        let is_loading = |base, ip| is_in_file_at(base, ip, maps);
        assert!(is_loading(0x7000, 0x8123) && !is_loading(0x7000, 0x2123) && !is_loading(0x7000, 0x9000));
        assert!(!is_loading(0x9000, 0x9000), "no loader");
        let auxv: Vec<u8> =
            [6, 4096, libc::AT_BASE, 0x7000, 0, 0].iter().flat_map(|word: &u64| word.to_ne_bytes()).collect();
        assert_eq!((loader_base(&auxv), loader_base(&auxv[..30])), (Some(0x7000), None));
        // SAFETY: reads a number.
        let loader = unsafe { libc::getauxval(libc::AT_BASE) };
        assert!(loader == 0 || super::is_loading(std::process::id(), loader));
        // Our own code is not the loader's.
        assert!(!super::is_loading(std::process::id(), loader_base as *const () as u64));
    }

    #[test]
    fn a_name_with_parentheses_does_not_confuse_the_start_time() {
        let stat = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(parse_start_ticks(stat), Some(4242));
        let stat = "7 (a\nS 1) 2) S 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        assert_eq!(parse_start_ticks(stat), Some(4242));
        assert_eq!(parse_start_ticks("garbage"), None);
    }

    /// Each thread of this test takes a name that some reader of text could fail at.
    #[test]
    fn any_name_leaves_status_and_start_readable() {
        let names: [&std::ffi::CStr; 5] = [
            c"\xe8\xa8\x88\xe7\xae\x97\xe3\x82",
            c") S 1 2 3",
            c"a\nTracerPid:\t1",
            c"\xff\xfe",
            c" \t\x1b[31m ",
        ];
        for name in names {
            let named = std::thread::spawn(move || {
                // SAFETY: the name is a C string that outlives the call.
                unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
                let tid = crate::sys::this_thread();
                (status(tid).unwrap(), start_ticks(tid).unwrap())
            });
            let (status, start) = named.join().unwrap();
            assert_eq!((status.tgid, status.tracer, status.state), (std::process::id(), 0, 'R'), "{name:?}");
            assert!(!status.name.is_empty() && start >= start_ticks(std::process::id()).unwrap(), "{name:?}");
        }
    }
}
