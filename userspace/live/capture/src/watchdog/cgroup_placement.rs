//! Cgroups that the watchdog leaves, to escape a freeze or a throttle of the tracer's cgroup.
//!
//! `docker pause` and `systemctl freeze` freeze a cgroup with all that is below it; a root cgroup
//! cannot be frozen. So the watchdog goes to the root of the unified hierarchy and of each
//! hierarchy of version 1 that freezes or gives out processors (`cgroups(7)`). A container's own
//! root is a folder that its host can freeze: the host's is reached through process 1, where the
//! container sees that.
//!
//! Limits: without the right to write there, the watchdog stays with the tracer, which is reported
//! before the trace. A container with separate process numbers has no way out; neither have the
//! programs that it could trace.

use std::{
    ffi::{OsStr, OsString},
    fmt, fs,
    fs::File,
    io::{self, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
};

/// The kernel's first cgroup namespace (`PROC_CGROUP_INIT_INO`:
/// https://github.com/torvalds/linux/blob/v6.12/include/linux/proc_ns.h).
const FIRST_CGROUP_NAMESPACE: &str = "cgroup:[4026531835]";

/// Where the watchdog stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// In the root cgroups, safe from freezing.
    Apart,
    /// In a cgroup of this version that can be frozen together with the tracer, with the number of
    /// the error (0: no way out exists).
    Together(u8, i32),
    /// Nowhere: it did not start.
    Absent,
}

impl Standing {
    /// As a number other than 0.
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Apart => 1,
            Self::Absent => 3,
            Self::Together(version, error) => {
                2 | u64::from(version) << 8 | u64::from(error.cast_unsigned()) << 32
            }
        }
    }

    /// From such a number.
    pub(super) fn from_number(number: u64) -> Option<Self> {
        match number & 0xff {
            1 => Some(Self::Apart),
            3 => Some(Self::Absent),
            2 => Some(Self::Together((number >> 8) as u8, ((number >> 32) as u32).cast_signed())),
            _ => None,
        }
    }

    /// What follows for the reader, if anything.
    pub fn warning(self) -> Option<String> {
        if self == Self::Absent {
            return Some("No thread is stopped: the watchdog process, which would free it if this tool hung, did not start.".to_owned());
        }
        (self != Self::Apart).then(|| format!(
            "A freeze of this tool's own cgroup (docker pause, systemctl freeze) would stop the traced program for as long: the \
             watchdog process {self}. Start the tool as root outside of containers to mend that."
        ))
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => write!(f, "does not start"),
            Self::Apart => write!(f, "stands where nobody can freeze it"),
            Self::Together(version, 0) => {
                write!(f, "cannot leave it, since no root cgroup of version {version} is within reach")
            }
            Self::Together(version, error) => write!(
                f,
                "cannot move to the root cgroup of version {version}: {}",
                io::Error::from_raw_os_error(*error)
            ),
        }
    }
}

/// The roots of the hierarchies in which a process could be frozen or throttled.
#[derive(Debug, Default)]
pub(super) struct Roots(Vec<File>);

impl Roots {
    /// Moves a process to these roots. A frozen process wakes (`freezer_attach` in the kernel's
    /// kernel/cgroup/legacy_freezer.c), and one whose CPU quota is used up runs at once.
    pub(super) fn take_in(&self, pid: u32) {
        for mut root in &self.0 {
            // Fails for an ended process.
            let _ = root.write_all(pid.to_string().as_bytes());
        }
    }
}

/// A hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hierarchy {
    Unified,
    /// Of version 1, by a controller.
    Old(&'static str),
}

/// Hierarchies to leave. Hierarchies that share out processors without freezing are harmless for a
/// process of the highest real-time priority.
const HIERARCHIES: [(Hierarchy, bool); 4] = [
    (Hierarchy::Unified, true),
    (Hierarchy::Old("freezer"), true),
    (Hierarchy::Old("cpu"), false),
    (Hierarchy::Old("cpuset"), false),
];

impl Hierarchy {
    fn version(self) -> u8 {
        if self == Self::Unified { 2 } else { 1 }
    }

    /// A file of every cgroup that can be frozen: roots have none.
    fn freeze_file(self) -> &'static str {
        if self == Self::Unified { "cgroup.freeze" } else { "freezer.state" }
    }

    /// Our cgroup in this hierarchy, from the text of `/proc/self/cgroup`.
    fn own(self, cgroups: &[u8]) -> Option<&[u8]> {
        cgroups.split(|byte| *byte == b'\n').find_map(|line| {
            let mut fields = line.splitn(3, |byte| *byte == b':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_it = match self {
                Self::Unified => number == b"0" && controllers.is_empty(),
                Self::Old(name) => has(controllers, name),
            };
            is_it.then_some(path)
        })
    }

    /// Where the whole of this hierarchy is mounted, from the text of a `mountinfo`
    /// (`proc_pid_mountinfo(5)`).
    fn mounted(self, mountinfo: &[u8]) -> Vec<PathBuf> {
        let root = |line: &[u8]| {
            let dash = line.windows(3).position(|three| three == b" - ")?;
            let (before, behind) = (line.get(..dash)?, line.get(dash + 3..)?);
            let mut fields = before.split(|byte| *byte == b' ').skip(3);
            let (root, at) = (fields.next()?, fields.next()?);
            let mut behind = behind.split(|byte| *byte == b' ');
            let (kind, options) = (behind.next()?, behind.nth(1)?);
            let is_it = match self {
                Self::Unified => kind == b"cgroup2",
                Self::Old(name) => kind == b"cgroup" && has(options, name),
            };
            (is_it && root == b"/").then(|| unescaped(at))
        };
        mountinfo.split(|byte| *byte == b'\n').filter_map(root).collect()
    }
}

/// Whether a list with commas has a name.
fn has(list: &[u8], name: &str) -> bool {
    list.split(|byte| *byte == b',').any(|item| item == name.as_bytes())
}

/// A path in which the kernel wrote some bytes as a backslash and three octal digits.
fn unescaped(path: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first() {
        let octal =
            behind.get(..3).and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        match octal.filter(|_| *first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// Leaves every cgroup in which the calling process could be frozen. Returns the placement, and the
/// roots for a killed tracer.
pub(super) fn leave() -> (Standing, Roots) {
    let (mut standing, mut roots) = (Standing::Apart, Roots::default());
    let is_first =
        fs::read_link("/proc/self/ns/cgroup").is_ok_and(|link| link == Path::new(FIRST_CGROUP_NAMESPACE));
    let cgroups = fs::read("/proc/self/cgroup").unwrap_or_default();
    for (hierarchy, freezes) in HIERARCHIES {
        let Some(own) = hierarchy.own(&cgroups) else { continue };
        let (left, procs) = leave_one(hierarchy, is_first && own == b"/");
        if let (Err(error), true) = (left, freezes) {
            standing = Standing::Together(hierarchy.version(), error.raw_os_error().unwrap_or(0));
        }
        roots.0.extend(procs);
    }
    (standing, roots)
}

/// Goes to the root of a hierarchy, unless we are there. The file of that root's processes, too.
fn leave_one(hierarchy: Hierarchy, is_there: bool) -> (io::Result<()>, Option<File>) {
    let mut left = Err(io::ErrorKind::NotFound.into());
    for base in ["", "/proc/1/root"] {
        if !base.is_empty() {
            // Of the namespace that the folder is of, or the kernel refuses (`nsdelegate` of cgroup2).
            join_first_namespace();
        }
        let of = if base.is_empty() { "self" } else { "1" };
        let mountinfo = fs::read(format!("/proc/{of}/mountinfo")).unwrap_or_default();
        for root in hierarchy.mounted(&mountinfo) {
            let root = below(base, root.as_os_str());
            if root.join(hierarchy.freeze_file()).exists() {
                continue;
            }
            let opened = File::options().write(true).open(root.join("cgroup.procs"));
            let moved = opened.and_then(|procs| match is_there {
                true => Ok(procs),
                false => (&procs).write_all(b"0").map(|()| procs),
            });
            match moved {
                Ok(procs) => return (Ok(()), Some(procs)),
                Err(error) => left = Err(error),
            }
        }
        if is_there {
            // Nothing to do, nothing mounted.
            return (Ok(()), None);
        }
    }
    (left, None)
}

fn below(base: &str, path: &OsStr) -> PathBuf {
    OsString::from_vec([base.as_bytes(), path.as_bytes()].concat()).into()
}

fn join_first_namespace() {
    let Ok(namespace) = File::open("/proc/1/ns/cgroup") else { return };
    // SAFETY: a system call with plain arguments. A failure makes the next one fail too.
    unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWCGROUP) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &[u8] = b"\
        25 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        26 25 0:23 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n\
        27 25 0:23 /a /mnt/part rw - cgroup cgroup rw,freezer\n\
        28 25 0:24 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        36 25 0:33 / /mnt/odd\\040name\\012\xff rw,relatime shared:3 - cgroup2 cgroup2 rw\n\
        38 25 0:33 /../.. /mnt/above rw - cgroup2 cgroup2 rw\n\
        garbage - cgroup2\n\n";

    #[test]
    fn only_whole_hierarchies_have_a_root() {
        let mounted = |hierarchy: Hierarchy| hierarchy.mounted(MOUNTINFO);
        assert_eq!(mounted(Hierarchy::Old("freezer")), [PathBuf::from("/sys/fs/cgroup/freezer")]);
        assert_eq!(mounted(Hierarchy::Old("cpu")), [PathBuf::from("/sys/fs/cgroup/cpu,cpuacct")]);
        assert!(mounted(Hierarchy::Old("cpuset")).is_empty());
        assert_eq!(
            mounted(Hierarchy::Unified),
            [PathBuf::from(OsString::from_vec(b"/mnt/odd name\n\xff".to_vec()))]
        );
    }

    #[test]
    fn our_cgroup_is_found_in_each_hierarchy() {
        let cgroups = b"9:name=systemd:/x\n6:freezer:/a:b\n2:cpu,cpuacct:/\n0::/user.slice/\xff\n";
        assert_eq!(Hierarchy::Unified.own(cgroups), Some(&b"/user.slice/\xff"[..]));
        assert_eq!(Hierarchy::Old("freezer").own(cgroups), Some(&b"/a:b"[..]));
        assert_eq!(Hierarchy::Old("cpu").own(cgroups), Some(&b"/"[..]));
        assert_eq!(Hierarchy::Old("cpuset").own(cgroups), None);
    }

    #[test]
    fn a_standing_survives_as_a_number() {
        for standing in
            [Standing::Apart, Standing::Absent, Standing::Together(2, libc::EACCES), Standing::Together(1, 0)]
        {
            assert_eq!(Standing::from_number(standing.number()), Some(standing));
        }
        assert_eq!(Standing::from_number(0), None);
        assert_eq!(Standing::Apart.warning(), None);
        let warning = Standing::Together(2, libc::EACCES).warning().unwrap();
        assert!(warning.contains("docker pause") && warning.contains("Permission denied"), "{warning}");
    }
}
