//! Processes that are never traced: the tool's own, and processes that the tool depends on.
//!
//! Ours are the tool's process and children with our program file: the watchdog and the window
//! process. If an agent started the tracer, the agent's further children are ours too: the exporter
//! and the rollups. (The calibration's child is traced by us, before the trace begins.) Children
//! with another program file are not ours: a shell may become the tool by `exec` and leave its own
//! children, and process 1 of a container collects orphans. In a trace of a cgroup or of the
//! machine, the tool's ancestors, process 1 and threads of the kernel are left out too: a stop of a
//! shell, of `sudo` or of the server of a remote session would keep the user from ending the trace.
//! Ancestors and process 1 are traced without stops if `-p` names them. Process 1 of a pid
//! namespace below the initial namespace is the container's program, hence a target. Servers of
//! sessions and containers ([`SERVERS`]) are sampled, but not seized, unless `-p` names them.
//!
//! Programs that match a pattern of `--exclude` are not traced either.
//!
//! The kernel side has a copy of the list (`SPARED`) and
//! adds children of ours before their first instruction.

use std::{
    collections::HashMap,
    os::unix::fs::MetadataExt as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use locality_common::config::spared;

use locality_kernel::{object::Object, proc};

use crate::exclude::{Facts, Pattern};

/// The first process, parent of all orphans.
const FIRST: u32 = 1;

/// Program files, or beginnings of file names, of servers that are not
/// seized: a debugger or a locked-out user could need the server at any time.
const SERVERS: [&str; 14] = [
    "agetty",
    "conmon",
    "containerd",
    "crio",
    "crun",
    "dbus-",
    "dockerd",
    "gpg-agent",
    "kubelet",
    "login",
    "runc",
    "ssh-agent",
    "sshd",
    "systemd",
];

/// Why the threads of a named ancestor are not stopped.
pub const ANCESTOR: &str = "it started this tool, or one that did";

/// Processes that are not traced, or not stopped.
#[derive(Debug, Clone, Default)]
pub struct Exclusions {
    own: u32,
    /// Whether our pid namespace is the initial one.
    first_namespace: bool,
    /// The agent that started this process.
    agent: Option<u32>,
    /// Ancestors by process id, with their starts since boot.
    ancestors: HashMap<u32, u64>,
    /// What the user excludes; common to all copies.
    excluded: Arc<[Excluded]>,
}

/// A pattern of `--exclude`.
#[derive(Debug)]
struct Excluded {
    pattern: Pattern,
    /// Processes that matched, and no earlier pattern.
    processes: AtomicU64,
}

impl Exclusions {
    /// Exclusions of the calling process.
    pub fn of_this_process() -> Self {
        let own = std::process::id();
        let parent = |pid: u32| proc::status(pid).map_or(0, |status| status.parent);
        let chain = std::iter::successors(Some(parent(own)), |pid| Some(parent(*pid)));
        // A number may be met again if a process ends meanwhile.
        let chain = chain.take_while(|pid| *pid != 0).take(DEEPEST);
        let ancestors = chain.filter_map(|pid| Some((pid, proc::start_ticks(pid).ok()?))).collect();
        let agent = Some(parent(own)).filter(|parent| has_our_file(*parent).unwrap_or(false));
        let first_namespace = !proc::in_pid_namespace();
        Self { own, first_namespace, agent, ancestors, excluded: Arc::default() }
    }

    /// The same, and the programs that match one of these patterns.
    #[must_use]
    pub fn and(self, patterns: &[Pattern]) -> Self {
        let excluded =
            |pattern: &Pattern| Excluded { pattern: pattern.clone(), processes: AtomicU64::new(0) };
        Self { excluded: patterns.iter().map(excluded).collect(), ..self }
    }

    /// The first pattern of `--exclude` that a process matches, by its number. A process of the tool, or an
    /// ancestor, may match too: [`Exclusions::why`] comes first.
    pub fn excluded_by(&self, pid: u32) -> Option<usize> {
        let facts = Facts::of(pid);
        self.excluded.iter().position(|excluded| excluded.pattern.matches(&facts))
    }

    /// Counts a process that matches a pattern.
    pub(super) fn count(&self, pattern: usize) {
        if let Some(excluded) = self.excluded.get(pattern) {
            excluded.processes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The patterns of `--exclude`, with the number of processes that were left out for each so far.
    pub fn excluded(&self) -> Vec<(String, u64)> {
        let count =
            |excluded: &Excluded| (excluded.pattern.to_string(), excluded.processes.load(Ordering::Relaxed));
        self.excluded.iter().map(count).collect()
    }

    /// Whether there is a pattern of `--exclude`.
    pub fn has_patterns(&self) -> bool {
        !self.excluded.is_empty()
    }

    /// Tells the kernel side. A launched command is our child and waits by now.
    /// Children of our processes are no targets, the command's children are.
    ///
    /// # Errors
    /// The kernel's list is full.
    pub fn announce(&self, kernel: &mut Object, command: Option<u32>) -> anyhow::Result<()> {
        kernel.spare(self.own, spared::OWN)?;
        if self.first_namespace {
            kernel.spare(FIRST, spared::ALONE)?;
        }
        for pid in self.ancestors.keys() {
            let is_agent = self.agent == Some(*pid);
            kernel.spare(*pid, if is_agent { spared::OWN } else { spared::ALONE })?;
        }
        // Helpers that run already; the kernel side adds later helpers.
        for pid in proc::all().into_iter().filter(|pid| self.is_own(*pid) && Some(*pid) != command) {
            kernel.spare(pid, spared::OWN)?;
        }
        Ok(())
    }

    /// Whether a process is the tool's own: this process, or a
    /// child of this process or of the agent with our program file.
    fn is_own(&self, pid: u32) -> bool {
        let is_ours = |parent: u32| parent == self.own || self.agent == Some(parent);
        pid == self.own
            || (proc::status(pid).is_ok_and(|status| is_ours(status.parent)) && runs_our_program(pid))
    }

    /// Whether a process started the tool, directly or not.
    pub fn is_ancestor(&self, pid: u32) -> bool {
        self.ancestors.get(&pid).is_some_and(|start| proc::start_ticks(pid).is_ok_and(|now| now == *start))
    }

    /// Why an unnamed process is not traced, if so.
    pub fn why(&self, pid: u32) -> Option<&'static str> {
        if self.is_own(pid) {
            return Some("it is part of this tool");
        }
        if self.is_ancestor(pid) {
            return Some(ANCESTOR);
        }
        if pid == FIRST && self.first_namespace {
            return Some("it is process 1");
        }
        proc::status(pid).is_ok_and(|status| status.kernel_thread).then_some("it is a thread of the kernel")
    }
}

/// Why an unnamed process is sampled but not seized, if so.
pub fn why_not_held(pid: u32) -> Option<String> {
    // By its file: the name of a thread is the program's own choice.
    let file = proc::executable(pid).ok()?;
    let name = file.file_name()?.to_str()?;
    is_server(name).then(|| format!("it is {}, a server that sessions or containers depend on", bare(name)))
}

fn is_server(file: &str) -> bool {
    SERVERS.iter().any(|server| match bare(file).strip_prefix(server) {
        Some(rest) => rest.is_empty() || server.ends_with('-') || rest.starts_with('-'),
        None => false,
    })
}

/// The name of a program file, which may have been replaced since.
fn bare(file: &str) -> &str {
    file.strip_suffix(" (deleted)").unwrap_or(file)
}

/// Whether a process runs our program file. A child without rights hides the
/// program from a tracer without `CAP_SYS_PTRACE`; only the tool's helpers do.
fn runs_our_program(pid: u32) -> bool {
    has_our_file(pid).unwrap_or_else(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Whether a process runs our program file, if the file can be seen.
fn has_our_file(pid: u32) -> std::io::Result<bool> {
    let file = |path: String| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
    let theirs = file(format!("/proc/{pid}/exe"))?;
    Ok(file("/proc/self/exe".to_owned()).is_ok_and(|ours| ours == theirs))
}

/// More processes than any chain of parents up to process 1 has.
const DEEPEST: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_our_helpers_and_whoever_started_us_are_spared() {
        let spared = Exclusions::of_this_process();
        assert_eq!(spared.why(std::process::id()), Some("it is part of this tool"));
        // SAFETY: the child waits for its end, by system calls alone.
        let helper = match unsafe { libc::fork() } {
            0 => loop {
                // SAFETY: a system call without arguments.
                unsafe { libc::pause() };
            },
            helper => helper,
        };
        let why = spared.why(helper as u32);
        // SAFETY: system calls about our own child, which has not been waited for.
        unsafe {
            libc::kill(helper, libc::SIGKILL);
            libc::waitpid(helper, std::ptr::null_mut(), 0);
        }
        assert_eq!(why, Some("it is part of this tool"));
        // A child of another program, as a shell leaves it that becomes this tool by `exec`.
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let why = spared.why(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(why, None);
        let parent = std::os::unix::process::parent_id();
        assert!(spared.is_ancestor(parent) && spared.why(parent).is_some());
        assert_eq!(spared.why(1).is_some(), !proc::in_pid_namespace() || spared.is_ancestor(1));
        let inside = Exclusions { own: std::process::id(), ..Exclusions::default() };
        assert_eq!(inside.why(1), None, "of a container, process 1 is a target");
        if proc::status(2).is_ok_and(|status| status.kernel_thread) {
            assert_eq!(spared.why(2), Some("it is a thread of the kernel"));
        }
    }

    #[test]
    fn servers_are_known_by_their_files() {
        for server in [
            "sshd",
            "sshd-session",
            "sshd (deleted)",
            "systemd",
            "systemd-journald",
            "containerd-shim-runc-v2",
            "dbus-daemon",
        ] {
            assert!(is_server(server), "{server}");
        }
        for other in ["sshdx", "runcible", "loginctl", "redis-server", "systemdx", "", "sh"] {
            assert!(!is_server(other), "{other}");
        }
        assert_eq!(why_not_held(std::process::id()), None);
    }

    #[test]
    fn a_stranger_is_not() {
        // Its parent ends, so that it is nobody's child whom we know.
        let mut shell = std::process::Command::new("sh");
        let shell = shell.args(["-c", "sleep 100 >/dev/null 2>&1 & echo $!"]).output().unwrap();
        let pid: u32 = String::from_utf8(shell.stdout).unwrap().trim().parse().unwrap();
        let spared = Exclusions::of_this_process();
        let why = spared.why(pid);
        // SAFETY: a system call with plain arguments; the process was started above.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        assert_eq!(why, None);
        // The number of an ancestor that another process has now.
        let recycled =
            Exclusions { ancestors: HashMap::from([(std::process::id(), 0)]), ..Exclusions::default() };
        assert!(!recycled.is_ancestor(std::process::id()));
    }
}
