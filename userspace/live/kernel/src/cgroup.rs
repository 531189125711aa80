//! Cgroups of the unified hierarchy (`cgroups(7)`, version 2), as the kernel side knows them: by
//! inode and depth. Paths of mounts and cgroups are bytes: anyone who may mount or make a cgroup
//! chose them.

use std::{
    ffi::OsString,
    fs,
    os::unix::{ffi::OsStringExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use locality_common::config::CgroupTarget;

use super::proc;

/// A mounted cgroup2 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    /// Mount point of the hierarchy.
    at: PathBuf,
    /// Depth of the folder that is mounted there; 0 for the whole hierarchy.
    depth: u32,
}

/// A cgroup by its folder; a relative path counts from the root of the hierarchy.
pub fn target(path: &Path) -> Result<CgroupTarget> {
    if proc::in_cgroup_namespace() {
        bail!(
            "in a cgroup namespace of its own, as containers have one, the depth of a cgroup is not known: trace all \
             processes of this pid namespace (--namespace), or run it outside of the container"
        );
    }
    let mountinfo = fs::read("/proc/self/mountinfo").context("cannot list the mounts")?;
    target_in(path, &mounts(&mountinfo))
}

/// The present processes in a cgroup and below; none for a removed cgroup.
pub fn processes(path: &Path) -> Vec<u32> {
    let Ok(mountinfo) = fs::read("/proc/self/mountinfo") else { return Vec::new() };
    let Some(mount) = mounts(&mountinfo).into_iter().next() else { return Vec::new() };
    let (mut found, mut folders) = (Vec::new(), vec![mount.at.join(path)]);
    while let Some(folder) = folders.pop() {
        let pids = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        found.extend(pids.lines().filter_map(|line| line.parse::<u32>().ok()));
        let below = fs::read_dir(&folder).into_iter().flatten().flatten();
        folders.extend(
            below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
    }
    found
}

fn target_in(path: &Path, mounts: &[Mount]) -> Result<CgroupTarget> {
    let Some(first) = mounts.first() else {
        bail!(
            "no cgroup hierarchy of version 2 is mounted; `mount -t cgroup2 none /mnt` mounts it, and {} must lie below it",
            path.display()
        );
    };
    let folder = first.at.join(path);
    let folder = folder.canonicalize().with_context(|| {
        format!("there is no cgroup {}; `find {} -type d` lists them", path.display(), first.at.display())
    })?;
    let below = mounts.iter().find_map(|mount| Some((mount, folder.strip_prefix(&mount.at).ok()?)));
    let Some((mount, inside)) = below.filter(|_| folder.join("cgroup.procs").exists()) else {
        bail!(
            "{} is not a cgroup of the unified hierarchy (version 2), which is mounted at {}",
            folder.display(),
            first.at.display()
        );
    };
    let level = mount.depth + inside.components().count() as u32;
    if level == 0 {
        bail!(
            "{} is the root of all cgroups, so this is the whole machine: -a traces that, without stops; or name \
             cgroups below it",
            folder.display()
        );
    }
    Ok(CgroupTarget { id: folder.metadata()?.ino(), level, used: 1 })
}

/// The cgroup2 mounts in the text of `/proc/self/mountinfo` (`proc_pid_mountinfo(5)`): field 4 is
/// the root of the mount within its file system, field 5 where it is mounted, and the type follows
/// a lone dash. Mounts of a whole hierarchy come first, because relative paths count from the first
/// mount.
fn mounts(mountinfo: &[u8]) -> Vec<Mount> {
    let mount = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        // Between the options and the dash lies any number of optional fields.
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        // A root above our cgroup namespace has no known depth.
        if kind != b"cgroup2" || root.starts_with(b"/..") {
            return None;
        }
        let depth = root.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).count() as u32;
        Some(Mount { at: OsString::from_vec(unescaped(at)).into(), depth })
    };
    let mut found: Vec<Mount> = mountinfo.split(|byte| *byte == b'\n').filter_map(mount).collect();
    found.sort_by_key(|mount| mount.depth > 0);
    found
}

/// A path of `mountinfo`, where the kernel writes space, tab, newline, backslash and `#` as a
/// backslash and three octal digits (`mangle` in fs/seq_file.c, `show_mountinfo` in
/// fs/proc_namespace.c).
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, behind)) = rest.split_first() {
        match behind {
            [high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', behind @ ..] if first == b'\\' => {
                bytes.push((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'));
                rest = behind;
            }
            _ => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTINFO: &[u8] = b"\
        25 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        26 25 0:23 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        36 25 0:33 / /sys/fs/cgroup/unified rw,relatime shared:3 - cgroup2 cgroup2 rw\n\
        37 25 0:33 /a/b /mnt/part rw - cgroup2 cgroup2 rw\n\
        38 25 0:33 /../.. /mnt/above rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn only_unified_mounts_of_known_depth_count() {
        let expected = [
            Mount { at: "/sys/fs/cgroup/unified".into(), depth: 0 },
            Mount { at: "/mnt/part".into(), depth: 2 },
        ];
        assert_eq!(mounts(MOUNTINFO), expected);
        assert!(mounts(b"garbage\n\n").is_empty());
    }

    #[test]
    fn odd_mounts_neither_hide_others_nor_lead_elsewhere() {
        let odd = b"\
            20 1 0:40 / /mnt/\xff\xe8 rw - tmpfs odd\\040name rw\n\
            21 1 0:41 / /mnt/a\\040-\\040cgroup2 rw - tmpfs - rw\n\
            22 1 0:33 /x /mnt/part rw shared:1 master:2 propagate_from:3 - cgroup2 none rw\n\
            23 1 0:33 / /mnt/c\\040g\\012\\134\\011\xff rw - cgroup2 none rw\n";
        let whole = OsString::from_vec(b"/mnt/c g\n\\\t\xff".to_vec());
        let expected = [Mount { at: whole.into(), depth: 0 }, Mount { at: "/mnt/part".into(), depth: 1 }];
        assert_eq!(mounts(odd), expected);
        assert_eq!(unescaped(b"\\04\\477\\0"), b"\\04\\477\\0", "no code of a byte");
    }

    #[test]
    fn wrong_paths_are_named_with_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let mounts = [Mount { at: root.path().canonicalize().unwrap(), depth: 1 }];
        let why = |path: &str| format!("{:#}", target_in(Path::new(path), &mounts).unwrap_err());
        assert!(why("no.slice").contains("there is no cgroup no.slice"));
        fs::create_dir(root.path().join("a.slice")).unwrap();
        assert!(why("a.slice").contains("not a cgroup of the unified hierarchy"));
        assert!(why("/proc").contains("not a cgroup of the unified hierarchy"));
        assert!(format!("{:#}", target_in(Path::new("x"), &[]).unwrap_err()).contains("no cgroup hierarchy"));
        fs::write(root.path().join("a.slice/cgroup.procs"), "").unwrap();
        assert_eq!(target_in(Path::new("a.slice"), &mounts).unwrap().level, 2);
        fs::write(root.path().join("cgroup.procs"), "").unwrap();
        let whole = [Mount { depth: 0, ..mounts[0].clone() }];
        for root in ["", ".", "a.slice/.."] {
            let why = format!("{:#}", target_in(Path::new(root), &whole).unwrap_err());
            assert!(why.contains("the root of all cgroups"), "{root}: {why}");
        }
    }
}
