//! Groups of processes for programs.

use locality_findings::groups::{Groups, Row};
use locality_model::{Group, Profile};

use crate::estimates::estimate;
use crate::schema::groups as schema;

/// Digits of a container's id in its name, as printed by runtimes.
const SHORT_ID: usize = 12;

pub(super) fn groups(profile: &Profile, groups: &Groups) -> schema::Groups {
    let rows = groups.rows.iter().map(|row| {
        let known = row.group.and_then(|group| profile.groups.get(group.0 as usize));
        of_row(row, known)
    });
    schema::Groups { left_out: groups.left_out, rows: rows.collect() }
}

fn of_row(row: &Row, known: Option<&Group>) -> schema::Group {
    let name = known.map_or_else(|| "(not known)".to_owned(), name);
    let group = known.cloned().unwrap_or_default();
    schema::Group {
        cgroup: group.cgroup,
        comm: group.comm,
        container: group.container,
        coverage: schema::Coverage {
            none: row.coverage.none.into(),
            registers: row.coverage.registers.into(),
            windows: row.coverage.windows.into(),
        },
        cpu_share: estimate(&row.cpu),
        miss_ratios: row.misses.as_ref().map(|points| points.iter().map(super::reuse::point).collect()),
        name,
        pod: group.pod,
        processes: row.processes,
        program: group.program,
        runtime: group.runtime,
        unit: group.unit,
        windows: row.windows,
    }
}

/// "docker 0123456789ab › redis-server", "nginx.service › nginx", "python3 (worker)".
fn name(group: &Group) -> String {
    let container = group.container.as_ref().map(|id| {
        let short: String = id.chars().take(SHORT_ID).collect();
        format!("{} {short}", if group.runtime.is_empty() { "container" } else { &group.runtime })
    });
    let pod = || group.pod.as_ref().map(|id| format!("pod {id}"));
    let around = container.or_else(pod).or_else(|| group.unit.clone());
    let file = group.program.rsplit('/').next().unwrap_or_default();
    // The kernel cuts the name to 15 bytes.
    let inner = match (file.is_empty(), file.as_bytes().starts_with(group.comm.as_bytes())) {
        (true, _) => group.comm.clone(),
        (false, true) => file.to_owned(),
        (false, false) => format!("{file} ({})", group.comm),
    };
    around.into_iter().chain([inner]).collect::<Vec<_>>().join(" › ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_innermost_that_is_known() {
        let of = |change: fn(&mut Group)| {
            let mut group = Group {
                program: "/usr/bin/redis-server".to_owned(),
                comm: "redis-server".to_owned(),
                unit: Some("redis.service".to_owned()),
                ..Group::default()
            };
            change(&mut group);
            name(&group)
        };
        assert_eq!(of(|_| {}), "redis.service › redis-server");
        assert_eq!(
            of(|group| group.container = Some("0123456789abcdef".repeat(4))),
            "container 0123456789ab › redis-server"
        );
        assert_eq!(
            of(|group| (group.container, group.runtime) = (Some("web".to_owned()), "lxc".to_owned())),
            "lxc web › redis-server"
        );
        assert_eq!(
            of(|group| (group.unit, group.pod) = (None, Some("1a".to_owned()))),
            "pod 1a › redis-server"
        );
        let long = |group: &mut Group| {
            (group.program, group.comm) =
                ("/a-name-of-many-letters".to_owned(), "a-name-of-many-".to_owned());
            group.unit = None;
        };
        assert_eq!(of(long), "a-name-of-many-letters");
        assert_eq!(
            of(|group| (group.comm, group.unit) = ("worker".to_owned(), None)),
            "redis-server (worker)"
        );
        assert_eq!(of(|group| (group.program, group.unit) = (String::new(), None)), "redis-server");
    }
}
