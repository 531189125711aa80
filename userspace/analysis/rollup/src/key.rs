//! The group of a kind of process, and the group's name.
//!
//! Names go into labels of metrics, so a name has few kinds of letters and a
//! limited length. Programs choose the names of processes: a name is no identity.

use locality_model::Group;

/// Longest name of a group.
const LONGEST: usize = 128;
/// Longest name of a process, as in the kernel.
const LONGEST_COMM: usize = 15;
/// Digits of a container's id in the group's name, as many as in `docker ps`.
const ID_DIGITS: usize = 12;

/// The key of a group of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum By {
    /// The container; outside containers the unit, or the process' name without a unit.
    #[default]
    Container,
    /// The unit of systemd, or the process' name without a unit.
    Unit,
    /// The program file.
    Exe,
    /// The process' name.
    Comm,
}

/// How groups are made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    /// Key of processes outside named cgroups.
    pub by: By,
    /// Cgroups requested by name: each is a group, named by the path.
    pub cgroups: Vec<String>,
}

impl Keys {
    /// The group's name for a kind of process.
    pub fn of(&self, group: &Group) -> String {
        let named = self.cgroups.iter().filter(|folder| is_below(&group.cgroup, folder));
        if let Some(folder) = named.max_by_key(|folder| folder.len()) {
            return tame(folder, LONGEST);
        }
        let comm = || tame(&group.comm, LONGEST_COMM);
        let unit = || group.unit.as_deref().map(|unit| tame(unit, LONGEST));
        match self.by {
            By::Container => container(group).or_else(unit).unwrap_or_else(comm),
            By::Unit => unit().unwrap_or_else(comm),
            By::Exe => match group.program.rsplit('/').next() {
                Some(file) if !file.is_empty() => tame(file, LONGEST),
                _ => comm(),
            },
            By::Comm => comm(),
        }
    }
}

fn container(group: &Group) -> Option<String> {
    let id: String = group.container.as_ref()?.chars().take(ID_DIGITS).collect();
    let runtime = if group.runtime.is_empty() { "container" } else { &group.runtime };
    Some(tame(&format!("{runtime}:{id}"), LONGEST))
}

/// Whether a cgroup, by the name in `/proc/PID/cgroup`, is or lies below the cgroup of a folder.
fn is_below(cgroup: &str, folder: &str) -> bool {
    let folder = folder.trim_end_matches('/');
    let mut path = cgroup.trim_end_matches('/');
    while !path.is_empty() {
        if folder.ends_with(path) && path.starts_with('/') {
            return true;
        }
        path = path.rsplit_once('/').map_or("", |(above, _)| above);
    }
    false
}

/// A name limited in length, and to letters without need of quotes.
fn tame(name: &str, longest: usize) -> String {
    let letter = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "_.-:@/".contains(c) => c,
        _ => '_',
    };
    let tame: String = name.chars().take(longest).map(letter).collect();
    if tame.is_empty() { "unknown".to_owned() } else { tame }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> Group {
        Group {
            container: Some("0123456789abcdef".repeat(4)),
            runtime: "docker".to_owned(),
            unit: Some("docker.service".to_owned()),
            cgroup: "/docker/0123".to_owned(),
            program: "/usr/sbin/nginx".to_owned(),
            comm: "nginx".to_owned(),
            ..Group::default()
        }
    }

    #[test]
    fn groups_are_called_by_what_was_asked_for() {
        let name = |by, group: &Group| Keys { by, cgroups: Vec::new() }.of(group);
        let inside = group();
        assert_eq!(name(By::Container, &inside), "docker:0123456789ab");
        assert_eq!(name(By::Unit, &inside), "docker.service");
        assert_eq!(name(By::Exe, &inside), "nginx");
        assert_eq!(name(By::Comm, &inside), "nginx");
        let outside = Group { container: None, ..group() };
        assert_eq!(name(By::Container, &outside), "docker.service");
        assert_eq!(name(By::Container, &Group { unit: None, ..outside }), "nginx");
        assert_eq!(name(By::Exe, &Group::default()), "unknown");
    }

    #[test]
    fn a_named_cgroup_is_a_group_with_all_below() {
        let cgroups = vec!["/sys/fs/cgroup/a".to_owned(), "/sys/fs/cgroup/a/b/".to_owned()];
        let keys = Keys { cgroups, ..Keys::default() };
        let at = |cgroup: &str| Group { cgroup: cgroup.to_owned(), ..group() };
        assert_eq!(keys.of(&at("/a")), "/sys/fs/cgroup/a");
        assert_eq!(keys.of(&at("/a/c/d")), "/sys/fs/cgroup/a");
        assert_eq!(keys.of(&at("/a/b/c")), "/sys/fs/cgroup/a/b/");
        assert_eq!(keys.of(&at("/elsewhere")), "docker:0123456789ab");
        assert_eq!(keys.of(&at("/")), "docker:0123456789ab");
        assert_eq!(keys.of(&at("group/a")), "docker:0123456789ab", "no path of a cgroup");
    }

    #[test]
    fn names_are_tame() {
        for wild in ["a\"b\n", "}}}}}}}}}}}}}}}", "na\u{7f}me\u{1f4a9}", "", "x y", "{a=\"b\"}"] {
            let name = Keys { by: By::Comm, cgroups: Vec::new() }
                .of(&Group { comm: wild.to_owned(), ..Group::default() });
            assert!(!name.is_empty() && name.len() <= LONGEST_COMM, "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-:@/".contains(&b)), "{name}");
        }
    }
}
