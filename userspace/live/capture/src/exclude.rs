//! `--exclude KIND:GLOB`: which programs are never traced, by what `/proc` says of a process.
//!
//! Globs are those of the shell (`*`, `?`, `[a-z]`), and `*` matches `/` too. Here is the pattern alone;
//! when processes are looked at is `excluded`.

use std::{cell::OnceCell, fmt, str::FromStr};

use locality_kernel::{group, proc};
use locality_model::Group;

/// What of a process a pattern is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The container's id.
    Container,
    /// The unit of systemd.
    Unit,
    /// The program file: the path, or the name where the glob has no `/`.
    Exe,
    /// The process's name.
    Comm,
    /// The cgroup's path, or the path of a cgroup above.
    Cgroup,
    /// The number of the real user.
    Uid,
}

const KINDS: [(&str, Kind); 6] = [
    ("container", Kind::Container),
    ("unit", Kind::Unit),
    ("exe", Kind::Exe),
    ("comm", Kind::Comm),
    ("cgroup", Kind::Cgroup),
    ("uid", Kind::Uid),
];

/// Where hierarchies of cgroups are mounted; a path of `/proc/PID/cgroup` begins below.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

/// A pattern of `--exclude`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    kind: Kind,
    glob: glob::Pattern,
    text: String,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const HOW: &str = "write KIND:GLOB, as in comm:nginx* or unit:ssh.service";
        let (kind, glob) = text.split_once(':').ok_or_else(|| format!("a kind is missing: {HOW}"))?;
        let Some((name, kind)) = KINDS.iter().find(|(name, _)| *name == kind) else {
            return Err(format!(
                "there is no kind `{kind}`: write container, unit, exe, comm, cgroup or uid, as in comm:nginx*"
            ));
        };
        if glob.is_empty() {
            return Err(format!("nothing follows `{name}:`: {HOW}"));
        }
        if *kind == Kind::Uid && !glob.chars().all(|c| c.is_ascii_digit() || "*?[-]!".contains(c)) {
            return Err("a user is a number, as in uid:1000: `id -u NAME` prints it".to_owned());
        }
        if *kind == Kind::Cgroup && !glob.starts_with(['/', '*']) {
            return Err("the path of a cgroup begins with `/`, as in cgroup:/system.slice/*".to_owned());
        }
        let below = |mount: &&str| glob.strip_prefix(*mount).filter(|rest| rest.starts_with('/'));
        let meant = match kind {
            Kind::Cgroup => MOUNTS.iter().find_map(below).unwrap_or(glob),
            _ => glob,
        };
        let meant = if meant.len() > 1 { meant.trim_end_matches('/') } else { meant };
        let glob = glob::Pattern::new(meant).map_err(|error| {
            format!(
                "`{glob}` is no glob ({} at character {}): write [[] for a bracket",
                error.msg,
                error.pos + 1
            )
        })?;
        Ok(Self { kind: *kind, glob, text: text.to_owned() })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is known of a process, read at the first question.
#[derive(Debug)]
pub struct Facts {
    pid: u32,
    name: OnceCell<Option<String>>,
    program: OnceCell<Option<String>>,
    cgroups: OnceCell<Option<Group>>,
    user: OnceCell<Option<String>>,
}

impl Facts {
    /// Nothing is read yet.
    pub fn of(pid: u32) -> Self {
        let (name, program, cgroups, user) = Default::default();
        Self { pid, name, program, cgroups, user }
    }

    fn name(&self) -> Option<&str> {
        self.name.get_or_init(|| group::name(self.pid)).as_deref()
    }

    fn program(&self) -> Option<&str> {
        self.program.get_or_init(|| group::program(self.pid)).as_deref()
    }

    fn cgroups(&self) -> Option<&Group> {
        self.cgroups.get_or_init(|| group::cgroups(self.pid)).as_ref()
    }

    fn user(&self) -> Option<&str> {
        self.user.get_or_init(|| proc::status(self.pid).ok().map(|status| status.uid.to_string())).as_deref()
    }
}

impl Pattern {
    /// Whether a process matches. What cannot be read does not match.
    pub fn matches(&self, facts: &Facts) -> bool {
        let is = |text: Option<&str>| text.is_some_and(|text| self.glob.matches(text));
        match self.kind {
            Kind::Container => is(facts.cgroups().and_then(|group| group.container.as_deref())),
            Kind::Unit => is(facts.cgroups().and_then(|group| group.unit.as_deref())),
            Kind::Comm => is(facts.name()),
            Kind::Uid => is(facts.user()),
            Kind::Exe if self.glob.as_str().contains('/') => is(facts.program()),
            Kind::Exe => is(facts.program().and_then(|program| program.rsplit('/').next())),
            Kind::Cgroup => facts.cgroups().is_some_and(|group| self.matches_cgroup(&group.cgroup)),
        }
    }

    /// Whether the cgroup or one above matches.
    fn matches_cgroup(&self, path: &str) -> bool {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        ends.filter_map(|end| path.get(..end)).any(|above| !above.is_empty() && self.glob.matches(above))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(text: &str) -> String {
        text.parse::<Pattern>().unwrap_err()
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_the_fix() {
        assert!(why("nginx").contains("KIND:GLOB"));
        assert!(why("name:x").contains("no kind `name`") && why("name:x").contains("comm"));
        assert!(why("comm:").contains("nothing follows `comm:`"));
        assert!(why("comm:a[").contains("is no glob") && why("comm:a[").contains("[[]"));
        assert!(why("uid:root").contains("id -u"));
        assert!(why("cgroup:system.slice").contains("begins with `/`"));
        for right in ["comm:a b", "exe:/usr/*/x", "cgroup:/a", "uid:10??", "container:*", "unit:a@*.service"]
        {
            assert_eq!(right.parse::<Pattern>().unwrap().to_string(), right);
        }
    }

    #[test]
    fn a_process_is_known_by_what_the_kernel_says() {
        let child = std::process::Command::new("sleep").arg("100").spawn();
        let mut child = child.unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while group::name(child.id()).as_deref() != Some("sleep") && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let facts = Facts::of(child.id());
        let matches = |text: &str| text.parse::<Pattern>().unwrap().matches(&facts);
        let program = group::program(child.id()).unwrap();
        let file = program.rsplit('/').next().unwrap().to_owned();
        let user = proc::status(child.id()).unwrap().uid;
        let cgroup = group::cgroups(child.id()).unwrap().cgroup;
        let right = [
            "comm:sleep".to_owned(),
            "comm:sl*".to_owned(),
            format!("exe:{program}"),
            format!("exe:{file}"),
            "exe:/*".to_owned(),
            format!("uid:{user}"),
            format!("cgroup:{cgroup}"),
        ];
        let found = right.map(|text| (matches(&text), text));
        let wrong = ["comm:slee", "exe:/sleep", "uid:4294967294", "container:*", "cgroup:/no/such", "unit:x"];
        let wrong = wrong.map(|text| (matches(text), text));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.iter().all(|(matches, _)| *matches), "{found:?}");
        assert!(wrong.iter().all(|(matches, _)| !matches), "{wrong:?}");
        assert!(!"comm:*".parse::<Pattern>().unwrap().matches(&Facts::of(0x3fff_fff0)), "nobody");
    }

    #[test]
    fn a_cgroup_has_the_cgroups_below() {
        let matches = |glob: &str, path: &str| {
            format!("cgroup:{glob}").parse::<Pattern>().unwrap().matches_cgroup(path)
        };
        for glob in ["/a", "/a/", "/a/b", "/a/*", "*/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup/unified/a/b/c"] {
            assert!(matches(glob, "/a/b/c"), "{glob}");
        }
        for glob in ["/", "/ab", "/a/bc", "/b", "/a/b/c/d"] {
            assert!(!matches(glob, "/a/b/c"), "{glob}");
        }
        assert!(matches("/", "/"));
    }
}
