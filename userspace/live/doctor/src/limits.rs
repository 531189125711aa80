//! Rights and limits of our own process: capabilities, containers, descriptors, locked memory.

use std::path::Path;

use super::Check;
use locality_capture::{REGISTERS, SIBLINGS};
use locality_kernel::{
    proc,
    rights::{CONTAINER, NEEDED, NEEDED_BY_WINDOWS, Rights},
};

/// Descriptors of one process whose debug registers are all in use: 4 watches, each in the sampled
/// thread and in up to 16 siblings.
const DESCRIPTORS_A_PROCESS: u64 = REGISTERS as u64 * (1 + SIBLINGS as u64);

/// Descriptors beside those: ring, maps, programs, clocks, the profile, and the program's files for symbols.
const OTHER_DESCRIPTORS: u64 = 128;

pub(super) fn checks(rights: &Rights) -> Vec<Check> {
    // SAFETY: a system call without arguments.
    let uid = unsafe { libc::geteuid() };
    let (open_files, open_files_hard) = limit(libc::RLIMIT_NOFILE);
    vec![
        rights_check(uid, rights),
        surroundings_check(&Surroundings::own()),
        open_files_check(open_files, open_files_hard),
        locked_memory_check(limit(libc::RLIMIT_MEMLOCK).0),
    ]
}

fn status_field(name: &str) -> Option<String> {
    let status = proc::text("/proc/self/status").ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned()))
}

/// Soft and hard limit of `getrlimit(2)`.
fn limit(resource: libc::__rlimit_resource_t) -> (u64, u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the destination is live. It cannot fail for a known resource, and zeros are the
    // cautious answer.
    unsafe { libc::getrlimit(resource, &mut limit) };
    (limit.rlim_cur, limit.rlim_max)
}

fn rights_check(uid: u32, rights: &Rights) -> Check {
    let (needed, for_windows) = (rights.lacking(&NEEDED), rights.lacking(&NEEDED_BY_WINDOWS));
    let losses = rights.losses();
    let lacking = [needed.as_slice(), for_windows.as_slice()].concat();
    let who = if uid == 0 { "root".to_owned() } else { format!("user {uid}") };
    let check = Check::ok(
        "rights",
        "rights",
        match lacking.is_empty() {
            true => format!("{who}, with all needed capabilities"),
            false => format!("{who}, without {}", lacking.join(", ")),
        },
    );
    let mend = match uid {
        // Root without capabilities is a container's.
        0 => CONTAINER,
        _ => "sudo locality-bpf doctor",
    };
    if !needed.is_empty() {
        check
            .missing("the kernel refuses the eBPF programs, the clock, or access to other processes")
            .mend(mend)
    } else if !for_windows.is_empty() {
        check
            .missing("no process can be made that may run the windows; --no-window traces without them")
            .mend(mend)
    } else if !losses.is_empty() {
        check.degraded(losses.join(" ")).mend(mend)
    } else {
        check
    }
}

/// Signs of a container around us.
#[derive(Debug, Default)]
struct Surroundings {
    own_pid_namespace: bool,
    /// Whether `/proc` is of another one.
    foreign_proc: bool,
    own_user_namespace: bool,
    seccomp_filter: bool,
    container: Option<String>,
}

impl Surroundings {
    fn own() -> Self {
        let marks = [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman")];
        let mark =
            marks.iter().find(|(path, _)| Path::new(path).exists()).map(|(_, name)| (*name).to_owned());
        Self {
            own_pid_namespace: proc::in_pid_namespace(),
            foreign_proc: !proc::is_of_our_namespace(),
            own_user_namespace: proc::in_user_namespace(),
            seccomp_filter: status_field("Seccomp").as_deref() == Some("2"),
            container: mark
                .or_else(|| proc::text("/run/systemd/container").ok().map(|name| name.trim().to_owned())),
        }
    }
}

fn surroundings_check(around: &Surroundings) -> Check {
    let mut signs: Vec<String> =
        around.container.iter().map(|name| format!("in a container ({name})")).collect();
    for (sign, name) in [
        (around.own_pid_namespace, "a PID namespace of its own"),
        (around.own_user_namespace, "a user namespace of its own"),
        (around.seccomp_filter, "under a seccomp filter"),
    ] {
        if sign {
            signs.push(name.to_owned());
        }
    }
    let check = Check::ok(
        "container",
        "container, seccomp",
        match signs.is_empty() {
            true => "none".to_owned(),
            false => signs.join(", "),
        },
    );
    if around.foreign_proc {
        return check
            .missing("/proc is that of another PID namespace, so it tells of other processes")
            .mend("mount -t proc proc /proc");
    }
    if around.own_user_namespace {
        return check
            .missing("rights in a user namespace do not count for eBPF and perf events")
            .mend("sudo nsenter --user --target 1 locality-bpf doctor");
    }
    if around.seccomp_filter {
        return check
            .degraded(
                "the filter may refuse bpf, perf_event_open and ptrace: the lines below show what it does",
            )
            .mend(CONTAINER);
    }
    check
}

fn open_files_check(soft: u64, hard: u64) -> Check {
    let processes = soft.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS_A_PROCESS;
    let check = Check::ok(
        "open_files",
        "open files limit",
        match soft {
            libc::RLIM_INFINITY => "unlimited".to_owned(),
            _ => format!("{soft}, enough for {processes} processes with every watchpoint in use"),
        },
    );
    // A forking program soon is several processes.
    if processes >= 4 {
        return check;
    }
    let mend = match hard {
        4096.. => "ulimit -n 4096",
        _ => "sudo prlimit --nofile=4096:4096 --pid $$",
    };
    check.degraded("watchpoints are descriptors: those above the limit are refused").mend(mend)
}

/// eBPF memory is charged to the cgroup, not to this limit, since Linux 5.11 (commit series "bpf:
/// switch to memcg-based memory accounting"); what is left of it are the ring buffers of address
/// samples.
fn locked_memory_check(soft: u64) -> Check {
    let check = Check::ok(
        "locked_memory",
        "locked memory limit",
        match soft {
            libc::RLIM_INFINITY => "unlimited".to_owned(),
            bytes => format!("{} KiB", bytes / 1024),
        },
    );
    match soft >= 64 * 1024 {
        true => check,
        false => {
            check.degraded("the ring buffer of address samples may be refused").mend("ulimit -l unlimited")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn rights_are_judged_by_capability_not_by_user() {
        let needed = [Rights::BPF, Rights::PERFMON, Rights::SYS_PTRACE, Rights::SETUID, Rights::SETGID];
        let wanted = [Rights::CHECKPOINT_RESTORE, Rights::SYS_NICE, Rights::DAC_READ_SEARCH];
        assert_eq!(rights_check(1000, &Rights::of(&[needed.as_slice(), &wanted].concat())).state, State::Ok);
        let least = rights_check(0, &Rights::of(&needed));
        assert_eq!(least.state, State::Degraded);
        assert!(least.consequence.unwrap().contains("Without CAP_SYS_NICE, stops"));
        let no_windows = rights_check(0, &Rights::of(&needed[..4]));
        assert_eq!(no_windows.state, State::Missing);
        assert!(no_windows.found.contains("without CAP_SETGID"));
        assert_eq!(rights_check(0, &Rights(0)).state, State::Missing);
        assert!(rights_check(0, &Rights(0)).mend.unwrap().contains("--cap-add"));
        assert!(rights_check(1000, &Rights(0)).mend.unwrap().starts_with("sudo"));
        assert_eq!(rights_check(1000, &Rights::of(&[Rights::BPF, Rights::PERFMON])).state, State::Missing);
        let older = [Rights::SYS_ADMIN, Rights::SYS_PTRACE, Rights::SETUID, Rights::SETGID];
        let older = Rights::of(&[older.as_slice(), &[Rights::SYS_NICE, Rights::DAC_OVERRIDE]].concat());
        assert_eq!(rights_check(1000, &older).state, State::Ok);
        assert_eq!(rights_check(1000, &Rights::of(&[Rights::BPF, Rights::SYS_PTRACE])).state, State::Missing);
    }

    #[test]
    fn namespaces_and_filters_are_told_apart() {
        assert_eq!(surroundings_check(&Surroundings::default()).state, State::Ok);
        let inner = Surroundings { own_pid_namespace: true, ..Surroundings::default() };
        let inside = surroundings_check(&inner);
        assert_eq!((inside.state, inside.found.as_str()), (State::Ok, "a PID namespace of its own"));
        let foreign = Surroundings { foreign_proc: true, ..inner };
        assert_eq!(surroundings_check(&foreign).state, State::Missing);
        let filtered = Surroundings { seccomp_filter: true, ..Surroundings::default() };
        assert_eq!(surroundings_check(&filtered).state, State::Degraded);
        let users = Surroundings { own_user_namespace: true, ..Surroundings::default() };
        assert_eq!(surroundings_check(&users).state, State::Missing);
    }

    #[test]
    fn limits_name_the_command_that_can_work() {
        assert_eq!(open_files_check(libc::RLIM_INFINITY, libc::RLIM_INFINITY).state, State::Ok);
        assert!(open_files_check(1024, 4096).found.contains("13 processes"));
        assert_eq!(open_files_check(256, 1 << 20).mend.unwrap(), "ulimit -n 4096");
        assert!(open_files_check(256, 256).mend.unwrap().starts_with("sudo prlimit"));
        assert_eq!(locked_memory_check(0).state, State::Degraded);
        assert_eq!(locked_memory_check(8 << 20).found, "8192 KiB");
    }
}
