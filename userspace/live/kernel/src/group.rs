//! Container, unit, program file and name of a process: what its group is.
//!
//! Containers and units are known by the names of cgroups (`/proc/PID/cgroup`), which their runtimes choose:
//! `docker-ID.scope`, `cri-containerd-ID.scope`, `libpod-ID.scope`, `crio-ID.scope`, or a folder that is
//! named by the id, below `docker` or the pod's folder.

use locality_model::Group;

use crate::proc;

/// Group of a process. `None` for an ended process, reaped or not.
pub fn look_up(pid: u32) -> Option<Group> {
    let comm = name(pid)?;
    Some(Group { program: program(pid)?, comm, ..cgroups(pid)? })
}

/// Name of a process.
pub fn name(pid: u32) -> Option<String> {
    let comm = proc::text(format!("/proc/{pid}/comm")).ok()?;
    Some(comm.trim_end_matches('\n').to_owned())
}

/// Program file of a process, which may have been deleted since.
pub fn program(pid: u32) -> Option<String> {
    let program = proc::executable(pid).ok()?.to_string_lossy().into_owned();
    Some(program.strip_suffix(" (deleted)").map(str::to_owned).unwrap_or(program))
}

/// Container, pod, unit and path of a process; program file and name are empty.
pub fn cgroups(pid: u32) -> Option<Group> {
    Some(of_cgroups(&proc::text(format!("/proc/{pid}/cgroup")).ok()?))
}

/// Container, pod, unit and path from the text of `/proc/PID/cgroup` (`cgroups(7)`): a line for each
/// hierarchy, `ID:CONTROLLERS:PATH`, with id 0 for version 2. On hosts with both versions a runtime may use
/// any of them.
fn of_cgroups(text: &str) -> Group {
    let mut lines: Vec<(&str, &str)> = text.lines().filter_map(parts).collect();
    // Version 2 first, then the hierarchy of systemd.
    lines.sort_by_key(|(controllers, _)| (!controllers.is_empty(), *controllers != "name=systemd"));
    let of_path = |path: &str| {
        let (container, pod) = (container(path), pod(path));
        (container.is_some() || pod.is_some()).then(|| (container, pod, path.to_owned()))
    };
    let inside = lines.iter().find_map(|(_, path)| of_path(path));
    let unit = lines.iter().find_map(|(_, path)| unit(path)).map(str::to_owned);
    let (container, pod, cgroup) = inside.unwrap_or_else(|| {
        let named = lines.iter().find(|(_, path)| *path != "/").or(lines.first());
        (None, None, named.map(|(_, path)| (*path).to_owned()).unwrap_or_default())
    });
    let (runtime, container) = container.unzip();
    Group { container, runtime: runtime.unwrap_or_default(), pod, unit, cgroup, ..Group::default() }
}

fn parts(line: &str) -> Option<(&str, &str)> {
    let mut parts = line.splitn(3, ':');
    parts.next()?;
    Some((parts.next()?, parts.next()?))
}

/// Runtime and id of the innermost container of a cgroup.
fn container(path: &str) -> Option<(String, String)> {
    let components: Vec<&str> = path.split('/').collect();
    let at = |index: usize| {
        let around =
            index.checked_sub(1).and_then(|index| components.get(index)).copied().unwrap_or_default();
        container_of(components.get(index)?, around)
    };
    (0..components.len()).rev().find_map(at)
}

fn container_of(component: &str, around: &str) -> Option<(String, String)> {
    let found = |runtime: &str, id: &str| Some((runtime.to_owned(), id.to_owned()));
    if let Some(name) = component.strip_prefix("lxc.payload.") {
        return found("lxc", name);
    }
    if around == "lxc" && !component.is_empty() {
        return found("lxc", component);
    }
    let name = component.strip_suffix(".scope").unwrap_or(component);
    if is_id(name) {
        return found(if around == "docker" { "docker" } else { "" }, name);
    }
    let (prefix, id) = name.rsplit_once(['-', ':'])?;
    if !is_id(id) || prefix.ends_with("conmon") {
        return None;
    }
    let runtime = prefix.rsplit(':').next().unwrap_or(prefix);
    match runtime {
        "libpod" => found("podman", id),
        "cri-containerd" => found("containerd", id),
        "crio" => found("cri-o", id),
        _ => found(runtime, id),
    }
}

/// Whether this is the id of a container: 64 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 64 && is_hexadecimal(text)
}

fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Id of the pod of a cgroup: `podUID`, or `…-podUID.slice` with `_` for `-`. Pods of files have 32 digits
/// without dashes.
fn pod(path: &str) -> Option<String> {
    let of = |component: &str| {
        let name = component.strip_suffix(".slice").unwrap_or(component);
        let id = name.strip_prefix("pod").or_else(|| Some(name.rsplit_once("-pod")?.1))?.replace('_', "-");
        (matches!(id.len(), 32 | 36) && is_hexadecimal(&id.replace('-', ""))).then_some(id)
    };
    path.split('/').rev().find_map(of)
}

/// The innermost service or scope of a cgroup that is no container's.
fn unit(path: &str) -> Option<&str> {
    let is_unit = |component: &&str| {
        (component.ends_with(".service") || component.ends_with(".scope"))
            && container_of(component, "").is_none()
    };
    path.split('/').rev().find(is_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const POD: &str = "1a2b3c4d-0000-1111-2222-333344445555";

    /// Runtime, container, pod and unit.
    fn told(text: &str) -> (String, Option<String>, Option<String>, Option<String>) {
        let group = of_cgroups(text);
        (group.runtime, group.container, group.pod, group.unit)
    }

    #[test]
    fn containers_and_pods_are_told_by_their_cgroups() {
        let pod = POD.replace('-', "_");
        let mirrored = POD.replace('-', "");
        for (path, runtime, of_pod) in [
            (format!("/docker/{ID}"), "docker", None),
            (format!("/system.slice/docker-{ID}.scope"), "docker", None),
            (format!("/../{ID}"), "", None),
            (format!("/machine.slice/libpod-{ID}.scope/container"), "podman", None),
            (format!("/kubepods/burstable/pod{POD}/{ID}"), "", Some(POD)),
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod}.slice/cri-containerd-{ID}.scope"
                ),
                "containerd",
                Some(POD),
            ),
            (
                format!("/kubepods.slice/kubepods-pod{mirrored}.slice/crio-{ID}.scope"),
                "cri-o",
                Some(mirrored.as_str()),
            ),
            (format!("/system.slice/kubepods-pod{pod}.slice:cri-containerd:{ID}"), "containerd", None),
        ] {
            let expected = (runtime.to_owned(), Some(ID.to_owned()), of_pod.map(str::to_owned), None);
            assert_eq!(told(&format!("0::{path}\n")), expected, "{path}");
        }
        let inner = ID.replace('0', "f");
        assert_eq!(told(&format!("0::/docker/{ID}/docker/{inner}")).1, Some(inner));
        assert_eq!(told("0::/lxc.payload.web/system.slice/a.service").1.unwrap(), "web");
    }

    #[test]
    fn a_runtime_may_use_any_hierarchy() {
        let text = format!("5:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/\n");
        assert_eq!(told(&text), ("docker".to_owned(), Some(ID.to_owned()), None, None));
        let group = of_cgroups(
            "2:cpu,cpuacct:/x\n1:name=systemd:/system.slice/nginx.service\n0::/system.slice/nginx.service\n",
        );
        assert_eq!(
            (group.unit.as_deref(), group.cgroup.as_str()),
            (Some("nginx.service"), "/system.slice/nginx.service")
        );
        assert_eq!(group.container, None);
    }

    #[test]
    fn odd_names_are_no_containers() {
        let short = &ID[..63];
        for path in [
            format!("/docker/{short}"),
            format!("/docker/{short}g"),
            format!("/machine.slice/libpod-conmon-{ID}.scope"),
            "/user.slice/user-0.slice/session-3.scope".to_owned(),
            "/pod".to_owned(),
            "/a:b::c".to_owned(),
            "/".to_owned(),
        ] {
            let group = of_cgroups(&format!("0::{path}\n"));
            assert_eq!((group.container, group.pod), (None, None), "{path}");
            assert_eq!(group.cgroup, path);
        }
        assert_eq!(told("0::/user.slice/user@0.service/app.slice/run-7.scope").3.unwrap(), "run-7.scope");
        for text in ["", "garbage", "0", "0:", ":::", "\n\n"] {
            assert_eq!(of_cgroups(text).container, None, "{text:?}");
        }
    }
}
