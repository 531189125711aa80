//! Rights and limits of our own process: capabilities, containers, descriptors, locked memory.

use std::path::Path;

use super::Check;
use locality_capture::{REGISTERS, SIBLINGS};
use locality_kernel::proc::{self, FIRST_PID_NAMESPACE, pid_namespace};

/// Descriptors of one process whose debug registers are all in use: 4 watches, each in the sampled
/// thread and in up to 16 siblings.
const DESCRIPTORS_A_PROCESS: u64 = REGISTERS as u64 * (1 + SIBLINGS as u64);

/// Descriptors beside those: ring, maps, programs, clocks, the profile, and the program's files for symbols.
const OTHER_DESCRIPTORS: u64 = 128;

/// Effective capabilities, as a bit set (`capabilities(7)`, numbers in `linux/capability.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rights(pub(super) u64);

impl Rights {
    pub(super) const SYS_PTRACE: u32 = 19;
    pub(super) const SYS_ADMIN: u32 = 21;
    pub(super) const PERFMON: u32 = 38;
    pub(super) const BPF: u32 = 39;

    pub(super) fn own() -> Self {
        Self(status_field("CapEff").and_then(|text| u64::from_str_radix(&text, 16).ok()).unwrap_or(0))
    }

    #[cfg(test)]
    pub(super) fn of(capabilities: &[u32]) -> Self {
        Self(capabilities.iter().map(|capability| 1 << capability).sum())
    }

    pub(super) fn has(self, capability: u32) -> bool {
        // CAP_SYS_ADMIN includes the two that were split off from it.
        let split_off = matches!(capability, Self::PERFMON | Self::BPF);
        self.0 >> capability & 1 == 1 || split_off && self.0 >> Self::SYS_ADMIN & 1 == 1
    }
}

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
    let needed =
        [(Rights::BPF, "CAP_BPF"), (Rights::PERFMON, "CAP_PERFMON"), (Rights::SYS_PTRACE, "CAP_SYS_PTRACE")];
    let lacking: Vec<_> = needed.iter().filter(|(bit, _)| !rights.has(*bit)).map(|(_, name)| *name).collect();
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
        0 => "docker run --privileged --pid=host IMAGE",
        _ => "sudo locality-bpf doctor",
    };
    if !rights.has(Rights::BPF) || !rights.has(Rights::PERFMON) {
        check.missing("the kernel refuses the eBPF programs and the clock").mend(mend)
    } else if !rights.has(Rights::SYS_PTRACE) {
        check.degraded("other users' processes cannot be traced, nor setuid ones").mend(mend)
    } else {
        check
    }
}

/// Signs of a container around us.
#[derive(Debug, Default)]
struct Surroundings {
    /// Inode of our PID namespace.
    pid_namespace: Option<u64>,
    /// Whether user ids are the machine's own.
    own_user_namespace: bool,
    seccomp_filter: bool,
    container: Option<String>,
}

impl Surroundings {
    fn own() -> Self {
        let map = proc::text("/proc/self/uid_map").unwrap_or_default();
        let marks = [("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman")];
        let mark =
            marks.iter().find(|(path, _)| Path::new(path).exists()).map(|(_, name)| (*name).to_owned());
        Self {
            pid_namespace: pid_namespace(),
            // Absent where the kernel has no user namespaces.
            own_user_namespace: !map.is_empty() && map.split_whitespace().ne(["0", "0", "4294967295"]),
            seccomp_filter: status_field("Seccomp").as_deref() == Some("2"),
            container: mark
                .or_else(|| proc::text("/run/systemd/container").ok().map(|name| name.trim().to_owned())),
        }
    }
}

fn surroundings_check(around: &Surroundings) -> Check {
    let mut signs: Vec<String> =
        around.container.iter().map(|name| format!("in a container ({name})")).collect();
    let other_pids = around.pid_namespace.is_some_and(|inode| inode != FIRST_PID_NAMESPACE);
    for (sign, name) in [
        (other_pids, "a PID namespace of its own"),
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
    if other_pids {
        return check
            .missing("the kernel counts processes as the host does, so no process would be recognised from in here")
            .mend("docker run --privileged --pid=host IMAGE");
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
            .mend("docker run --privileged --pid=host IMAGE");
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
        let all = Rights::of(&[Rights::BPF, Rights::PERFMON, Rights::SYS_PTRACE]);
        assert_eq!(rights_check(1000, &all).state, State::Ok);
        assert_eq!(rights_check(0, &Rights(0)).state, State::Missing);
        assert!(rights_check(0, &Rights(0)).mend.unwrap().contains("--privileged"));
        assert!(rights_check(1000, &Rights(0)).mend.unwrap().starts_with("sudo"));
        assert_eq!(rights_check(1000, &Rights::of(&[Rights::BPF, Rights::PERFMON])).state, State::Degraded);
        assert_eq!(
            rights_check(1000, &Rights::of(&[Rights::SYS_ADMIN, Rights::SYS_PTRACE])).state,
            State::Ok
        );
        assert_eq!(rights_check(1000, &Rights::of(&[Rights::BPF, Rights::SYS_PTRACE])).state, State::Missing);
    }

    #[test]
    fn namespaces_and_filters_are_told_apart() {
        assert_eq!(surroundings_check(&Surroundings::default()).state, State::Ok);
        let inner = Surroundings { pid_namespace: Some(7), ..Surroundings::default() };
        assert_eq!(surroundings_check(&inner).state, State::Missing);
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
