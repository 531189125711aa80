//! Capabilities of a trace (`capabilities(7)`), and the loss without each.
//!
//! User ids say nothing: root in a container may lack any of them, and an image can give them to a user.
//! Capabilities in a user namespace do not count for eBPF and perf events; see
//! [`crate::machine::check_rights`].

use super::proc;

/// Effective capabilities, as a bit set (numbers of `linux/capability.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights(pub u64);

/// A capability by its number and its name.
pub type Capability = (u32, &'static str);

/// No trace is possible without one of these.
pub const NEEDED: [Capability; 3] =
    [(Rights::BPF, "CAP_BPF"), (Rights::PERFMON, "CAP_PERFMON"), (Rights::SYS_PTRACE, "CAP_SYS_PTRACE")];

/// No shadow windows are possible without one of these: their process gives up its user id.
pub const NEEDED_BY_WINDOWS: [Capability; 2] =
    [(Rights::SETUID, "CAP_SETUID"), (Rights::SETGID, "CAP_SETGID")];

/// Capabilities that a trace can do without, and what is lost then.
pub const WANTED: [(Capability, &str); 3] = [
    (
        (Rights::DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH"),
        "processes of other users have no shadow windows, and their private files no names",
    ),
    (
        (Rights::CHECKPOINT_RESTORE, "CAP_CHECKPOINT_RESTORE"),
        "program files that were deleted or replaced since they were started have no names",
    ),
    (
        (Rights::SYS_NICE, "CAP_SYS_NICE"),
        "stops have no priority and last longer on a busy machine, and real-time programs go before them",
    ),
];

/// How a container gets all of them. The guide and the manifests have the same list.
pub const CONTAINER: &str = "docker run --cap-add BPF --cap-add PERFMON --cap-add SYS_PTRACE --cap-add SETUID \
     --cap-add SETGID --cap-add DAC_READ_SEARCH --cap-add CHECKPOINT_RESTORE --cap-add SYS_NICE \
     --pid=container:NAME IMAGE";

/// Where a container of Kubernetes has the list.
pub const POD: &str = "securityContext.capabilities.add";

impl Rights {
    /// `CAP_DAC_OVERRIDE`
    pub const DAC_OVERRIDE: u32 = 1;
    /// `CAP_DAC_READ_SEARCH`
    pub const DAC_READ_SEARCH: u32 = 2;
    /// `CAP_SETGID`
    pub const SETGID: u32 = 6;
    /// `CAP_SETUID`
    pub const SETUID: u32 = 7;
    /// `CAP_SYS_PTRACE`
    pub const SYS_PTRACE: u32 = 19;
    /// `CAP_SYS_ADMIN`
    pub const SYS_ADMIN: u32 = 21;
    /// `CAP_SYS_NICE`
    pub const SYS_NICE: u32 = 23;
    /// `CAP_PERFMON`
    pub const PERFMON: u32 = 38;
    /// `CAP_BPF`
    pub const BPF: u32 = 39;
    /// `CAP_CHECKPOINT_RESTORE`
    pub const CHECKPOINT_RESTORE: u32 = 40;

    /// Capabilities of this process; none if unreadable.
    pub fn own() -> Self {
        let status = proc::text("/proc/self/status").unwrap_or_default();
        let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Self(set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0))
    }

    /// Exactly these.
    pub fn of(capabilities: &[u32]) -> Self {
        Self(capabilities.iter().map(|capability| 1 << capability).sum())
    }

    /// Whether a capability is effective.
    pub fn has(self, capability: u32) -> bool {
        let includes = match capability {
            Self::PERFMON | Self::BPF | Self::CHECKPOINT_RESTORE => Self::SYS_ADMIN,
            // Either is enough for reading.
            Self::DAC_READ_SEARCH => Self::DAC_OVERRIDE,
            itself => itself,
        };
        (self.0 >> capability | self.0 >> includes) & 1 == 1
    }

    /// Names of the missing capabilities.
    pub fn lacking(self, of: &[Capability]) -> Vec<&'static str> {
        of.iter().filter(|(bit, _)| !self.has(*bit)).map(|(_, name)| *name).collect()
    }

    /// For each missing capability, one sentence about the loss.
    pub fn losses(self) -> Vec<String> {
        let missing = WANTED.iter().filter(|((bit, _), _)| !self.has(*bit));
        missing.map(|((_, name), lost)| format!("Without {name}, {lost}.")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_has_every_capability() {
        let wanted = WANTED.iter().map(|(capability, _)| capability);
        for (_, name) in NEEDED.iter().chain(&NEEDED_BY_WINDOWS).chain(wanted) {
            let bare = name.strip_prefix("CAP_").unwrap();
            assert!(CONTAINER.contains(&format!("--cap-add {bare} ")), "{bare}");
            for list in [
                include_str!("../../../../docs/guide/containers.md"),
                include_str!("../../../../packaging/kubernetes/sidecar.yaml"),
                include_str!("../../../../packaging/kubernetes/daemonset.yaml"),
            ] {
                assert!(list.contains(&format!("\"{bare}\"")), "{bare}");
            }
            let guide = include_str!("../../../../docs/guide/containers.md");
            assert_eq!(guide.matches(&format!("--cap-add {bare}")).count(), 2, "{bare}");
        }
    }

    #[test]
    fn wide_capabilities_include_narrow_ones() {
        let admin = Rights::of(&[Rights::SYS_ADMIN, Rights::DAC_OVERRIDE]);
        assert_eq!(admin.lacking(&NEEDED), ["CAP_SYS_PTRACE"]);
        assert_eq!(admin.lacking(&NEEDED_BY_WINDOWS), ["CAP_SETUID", "CAP_SETGID"]);
        let losses = admin.losses();
        assert!(losses.len() == 1 && losses[0].starts_with("Without CAP_SYS_NICE, stops"), "{losses:?}");
        assert_eq!(Rights(u64::MAX).losses(), [""; 0]);
        assert_eq!(Rights(0).losses().len(), WANTED.len());
    }
}
