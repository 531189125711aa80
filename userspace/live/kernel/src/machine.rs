//! Describes the machine: kernel, CPU, caches (from sysfs; in a VM the CPUID leaf may lie).

use std::{fs, path::Path};

use anyhow::{Result, bail};

use locality_model::{CacheLevel, Host};

use super::{
    btf, proc,
    rights::{self, Rights},
    sys,
};

/// This machine.
pub fn describe() -> Host {
    let read = |path: &str| proc::text(path).unwrap_or_default().trim().to_owned();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    Host {
        kernel: release().trim().to_owned(),
        cpu: model.map(|(_, name)| name.trim().to_owned()).unwrap_or_default(),
        cpus: aya::util::online_cpus().map(|cpus| cpus.len() as u32).unwrap_or(1),
        caches: data_caches(),
    }
}

/// This machine's caches of data, smallest level first.
pub fn data_caches() -> Vec<CacheLevel> {
    caches(Path::new(CACHES), false)
}

/// This machine's first-level instruction cache; `None` if sysfs lacks it.
pub fn instruction_cache() -> Option<CacheLevel> {
    caches(Path::new(CACHES), true).into_iter().next().filter(|cache| cache.level == 1)
}

/// Their place in sysfs.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";

/// Data and unified caches below a sysfs `cache` folder, or those of instructions alone, smallest
/// level first.
fn caches(folder: &Path, instructions: bool) -> Vec<CacheLevel> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut caches: Vec<CacheLevel> =
        entries.filter_map(|entry| cache(&entry.path(), instructions)).collect();
    caches.sort_by_key(|cache| cache.level);
    caches
}

fn cache(index: &Path, instructions: bool) -> Option<CacheLevel> {
    let read = |name: &str| proc::text(index.join(name)).ok().map(|text| text.trim().to_owned());
    if (read("type")? == "Instruction") != instructions {
        return None;
    }
    let size = read("size")?;
    let (number, unit) = size.split_at(size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len()));
    let factor = match unit {
        "K" => 1 << 10,
        "M" => 1 << 20,
        _ => 1,
    };
    Some(CacheLevel {
        level: read("level")?.parse().ok()?,
        bytes: number.parse::<u64>().ok()? * factor,
        ways: read("ways_of_associativity").and_then(|ways| ways.parse().ok()).unwrap_or(0),
        line: read("coherency_line_size").and_then(|line| line.parse().ok()).unwrap_or(64),
    })
}

/// The running kernel's release; empty if unreadable.
fn release() -> String {
    proc::text("/proc/sys/kernel/osrelease").unwrap_or_default()
}

/// The oldest kernel that the programs were run on (`cargo xtask kernels`).
pub const OLDEST: (u32, u32) = (6, 1);

/// Why a kernel of this release cannot trace: older than any tried one. `None` for an unknown form
/// of release.
pub fn release_too_old(release: &str) -> Option<String> {
    let is_older = version(release).is_some_and(|version| version < OLDEST);
    is_older.then(|| {
        format!("too old: Linux {}.{} is the oldest kernel that the eBPF programs run on", OLDEST.0, OLDEST.1)
    })
}

/// Major and minor version of `uname -r`.
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Why the eBPF programs are not loaded on this kernel: older kernels refuse them with obscure
/// words.
pub fn too_old() -> Option<String> {
    let release = release();
    release_too_old(&release).map(|why| format!("Linux {} is {why}", release.trim()))
}

/// Why probes of returns could harm a program on this kernel. From 6.11 on they return through a
/// system call of their own, and until 6.14 a seccomp filter that does not know it ends the program
/// (Linux commit "seccomp: passthrough uretprobe systemcall without filtering").
pub fn harmful_returns() -> Option<String> {
    returns_harm(&release()).then(|| "probes end programs under seccomp on Linux 6.11 to 6.13".to_owned())
}

fn returns_harm(release: &str) -> bool {
    version(release).is_some_and(|version| ((6, 11)..(6, 14)).contains(&version))
}

/// Why the kernel's touches cannot be passed over on this kernel. Until 6.10 a trap counts towards
/// its event's limit whatever the eBPF program returns (Linux commit "perf/bpf: Allow a BPF program
/// to suppress all sample side effects").
pub fn cannot_pass() -> Option<&'static str> {
    counts_all_traps(&release()).then_some("--user-only needs Linux 6.10 or later: leave it out")
}

fn counts_all_traps(release: &str) -> bool {
    version(release).is_some_and(|version| version < (6, 10))
}

/// Whether we may trace at all; `windows` asks for shadow windows too.
///
/// # Errors
/// One sentence with the missing rights and how to get them.
pub fn check_rights(windows: bool) -> Result<()> {
    check_capabilities(sys::is_root(), Rights::own(), windows)?;
    if let Some(why) = too_old() {
        bail!("{why}: boot a newer kernel");
    }
    if proc::in_user_namespace() {
        bail!(
            "in a user namespace of its own, rights do not count for eBPF and perf events: run it outside, as in \
             `sudo nsenter --user --target 1 locality-bpf …`, or start its container without user namespaces \
             (`--userns=host`, `hostUsers: true`)"
        );
    }
    if !proc::is_of_our_namespace() {
        bail!(
            "/proc is that of another pid namespace, so it tells of other processes: mount this one's, as in \
             `mount -t proc proc /proc` (`unshare --mount-proc` does so)"
        );
    }
    if !Path::new(btf::KERNEL_BTF).exists() {
        bail!(
            "this kernel does not publish its types in {}: boot one built with CONFIG_DEBUG_INFO_BTF=y \
             (every current distribution kernel is), and mount /sys",
            btf::KERNEL_BTF
        );
    }
    Ok(())
}

fn check_capabilities(root: bool, rights: Rights, windows: bool) -> Result<()> {
    let mut lacking = rights.lacking(&rights::NEEDED);
    if !lacking.is_empty() {
        if windows {
            lacking.extend(rights.lacking(&rights::NEEDED_BY_WINDOWS));
        }
        let lacking = lacking.join(", ");
        match root {
            true => bail!(
                "tracing needs {lacking}, which root does not have here: a container gets them by `{}`, or in a pod by {}",
                rights::CONTAINER,
                rights::POD
            ),
            false => {
                bail!("tracing needs root, or {lacking}: run it again with sudo, as in `sudo locality-bpf …`")
            }
        }
    }
    let lacking = rights.lacking(&rights::NEEDED_BY_WINDOWS);
    if windows && !lacking.is_empty() {
        bail!(
            "shadow windows need {}: add {}, or trace without windows (--no-window)",
            lacking.join(" and "),
            if lacking.len() == 1 { "it" } else { "them" }
        );
    }
    Ok(())
}

/// Whether a hypervisor runs this machine (CPUID leaf 1, ECX bit 31, which processors themselves leave 0).
pub fn in_virtual_machine() -> bool {
    std::arch::x86_64::__cpuid(1).ecx >> 31 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_caches_are_apart_and_sizes_have_units() {
        let folder = tempfile::tempdir().unwrap();
        let write = |index: &str, files: &[(&str, &str)]| {
            fs::create_dir(folder.path().join(index)).unwrap();
            for (name, text) in files {
                fs::write(folder.path().join(index).join(name), text).unwrap();
            }
        };
        write(
            "index3",
            &[("type", "Unified\n"), ("level", "3\n"), ("size", "36M\n"), ("ways_of_associativity", "12\n")],
        );
        write("index1", &[("type", "Instruction\n"), ("level", "1\n"), ("size", "32K\n")]);
        write(
            "index0",
            &[("type", "Data\n"), ("level", "1\n"), ("size", "48K\n"), ("coherency_line_size", "64\n")],
        );
        write("broken", &[("type", "Data\n")]);
        let found = caches(folder.path(), false);
        let sizes: Vec<_> = found.iter().map(|cache| (cache.level, cache.bytes)).collect();
        assert_eq!(sizes, [(1, 48 << 10), (3, 36 << 20)]);
        assert_eq!(found[1].ways, 12);
        let fetched = caches(folder.path(), true);
        assert_eq!(fetched, [CacheLevel { level: 1, bytes: 32 << 10, ways: 0, line: 64 }]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let why = |root, rights: &[u32], windows| {
            check_capabilities(root, Rights::of(rights), windows).map_err(|error| error.to_string())
        };
        let most = [Rights::BPF, Rights::PERFMON, Rights::SYS_PTRACE];
        let all = [most.as_slice(), &[Rights::SETUID, Rights::SETGID]].concat();
        assert_eq!((why(false, &all, true), why(true, &most, false)), (Ok(()), Ok(())));
        let refused = why(true, &most, true).unwrap_err();
        assert!(refused.contains("CAP_SETUID and CAP_SETGID: add them") && refused.contains("--no-window"));
        let refused = why(true, &all[1..], true).unwrap_err();
        assert!(refused.contains("needs CAP_BPF, which root") && refused.contains("--cap-add"), "{refused}");
        assert!(why(false, &[], true).unwrap_err().contains("sudo"));
    }

    #[test]
    fn kernels_that_count_all_traps() {
        for (release, counts) in
            [("5.15.0", true), ("6.9.12", true), ("6.10.0", false), ("7.0.0", false), ("", false)]
        {
            assert_eq!(counts_all_traps(release), counts, "{release}");
        }
    }

    #[test]
    fn kernels_whose_probes_harm() {
        for (release, harm) in
            [("6.10.9", false), ("6.11.0-1-amd64", true), ("6.13.7", true), ("6.14.0", false), ("", false)]
        {
            assert_eq!(returns_harm(release), harm, "{release}");
        }
    }
}
