//! The running kernel: version, types, and the settings by which it refuses.
//!
//! Settings only explain; whether the kernel refuses is tried in `probe`.

use std::{fs, path::Path};

use super::Check;
use locality_kernel::{
    btf,
    machine::{OLDEST, release_too_old, version},
    proc,
    rights::Rights,
};

/// `types`: why the kernel's types could not be used, if so.
pub(super) fn checks(rights: &Rights, types: Option<&anyhow::Error>) -> Vec<Check> {
    let security = Path::new("/sys/kernel/security");
    let mounted = fs::read_dir(security).is_ok_and(|mut entries| entries.next().is_some());
    vec![
        release_check(&setting("/proc/sys/kernel/osrelease").unwrap_or_default(), std::env::consts::ARCH),
        btf_check(types),
        lockdown_check(mounted, proc::text(security.join("lockdown")).ok().as_deref()),
        paranoid_check(setting("/proc/sys/kernel/perf_event_paranoid").as_deref(), rights),
        yama_check(setting("/proc/sys/kernel/yama/ptrace_scope").as_deref(), rights),
    ]
}

fn setting(path: &str) -> Option<String> {
    proc::text(path).ok().map(|text| text.trim().to_owned())
}

/// `arch` is this running program's, hence the kernel's.
fn release_check(release: &str, arch: &str) -> Check {
    let check = Check::ok("kernel", "kernel", format!("Linux {release}, {arch}"));
    if arch != "x86_64" {
        return check.missing("only x86-64 is supported: instructions of other machines are not decoded");
    }
    match (version(release), release_too_old(release)) {
        (_, Some(why)) => check.missing(why).mend("sudo apt-get install linux-image-amd64 && sudo reboot"),
        (Some(_), None) => check,
        (None, None) => check.unknown(format!("Linux {}.{} or newer is needed", OLDEST.0, OLDEST.1)),
    }
}

fn btf_check(error: Option<&anyhow::Error>) -> Check {
    let found = |text: String| Check::ok("btf", "kernel types (BTF)", text);
    let why = "the eBPF programs cannot find their way in the kernel's structures";
    if !Path::new(btf::KERNEL_BTF).exists() {
        return found(format!("no {}", btf::KERNEL_BTF))
            .missing(format!(
                "{why}; a kernel with CONFIG_DEBUG_INFO_BTF=y has it, as Debian's and Ubuntu's do"
            ))
            .mend("sudo apt-get install linux-image-amd64 && sudo reboot");
    }
    match error {
        None => found("all needed fields found".into()),
        Some(error) => found(format!("{error:#}")).missing(why),
    }
}

/// `/sys/kernel/security/lockdown` lists the modes with the active one in brackets (`kernel_lockdown(7)`).
fn lockdown_check(mounted: bool, text: Option<&str>) -> Check {
    let found = |text: &str| Check::ok("lockdown", "kernel lockdown", text);
    let active = text.and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0));
    match active {
        None if mounted && text.is_none() => found("not built into this kernel"),
        None => found("securityfs is not mounted")
            .unknown("in its mode \"confidentiality\" the eBPF object is refused: the line \"eBPF object\" says whether it loads")
            .mend("sudo mount -t securityfs securityfs /sys/kernel/security"),
        // Reading kernel memory from eBPF is refused in this mode only (LOCKDOWN_BPF_READ_KERNEL):
        // https://github.com/torvalds/linux/blob/v6.12/include/linux/security.h
        Some("confidentiality") => found("confidentiality")
            .missing("eBPF programs may not read kernel memory, so they cannot tell threads apart")
            .mend(
                "sudo sed -i 's/lockdown=confidentiality/lockdown=integrity/' /etc/default/grub && \
                 sudo update-grub && sudo reboot",
            ),
        Some(mode) => found(mode),
    }
}

/// Levels as in the kernel's admin guide, `sysctl/kernel.rst`; 3 and more are distributions' own.
fn paranoid_check(level: Option<&str>, rights: &Rights) -> Check {
    let found = |text: String| Check::ok("perf_event_paranoid", "perf_event_paranoid", text);
    let Some(level) = level else {
        return found("no such setting".into())
            .missing(
                "the kernel has no perf events (CONFIG_PERF_EVENTS), hence neither clock nor watchpoints",
            )
            .mend("sudo apt-get install linux-image-amd64 && sudo reboot");
    };
    let Ok(number) = level.parse::<i32>() else {
        return found(level.into()).unknown("not a number; whether events open is tried below");
    };
    if rights.has(Rights::SYS_ADMIN) || number <= 0 {
        return found(format!("{number}, does not bind us"));
    }
    let lower = "sudo sysctl kernel.perf_event_paranoid=0";
    match rights.has(Rights::PERFMON) {
        true if number <= 2 => found(format!("{number}, does not bind us (CAP_PERFMON)")),
        true => found(number.to_string())
            .degraded("above 2, some distributions' kernels ask for CAP_SYS_ADMIN even with CAP_PERFMON")
            .mend(lower),
        false => found(number.to_string())
            .degraded("without CAP_PERFMON no clock runs on whole CPUs above 0, and no event at all above 2")
            .mend(lower),
    }
}

/// Levels as in the kernel's admin guide, `LSM/Yama.rst`.
fn yama_check(level: Option<&str>, rights: &Rights) -> Check {
    let found = |text: &str| Check::ok("ptrace_scope", "yama.ptrace_scope", text);
    let lost = "no thread can be stopped, so uses are found from sampled registers and are less exact";
    match level {
        None => found("Yama is not active"),
        Some("0") => found("0, does not bind us"),
        Some(level @ ("1" | "2")) if rights.has(Rights::SYS_PTRACE) => {
            found(&format!("{level}, does not bind us (CAP_SYS_PTRACE)"))
        }
        Some(level @ ("1" | "2")) => found(level)
            .degraded(format!("without CAP_SYS_PTRACE {lost}"))
            .mend("sudo sysctl kernel.yama.ptrace_scope=0"),
        // 3 cannot be changed while the kernel runs.
        Some("3") => found("3, ptrace is off until the next boot")
            .degraded(lost)
            .mend("echo kernel.yama.ptrace_scope=1 | sudo tee /etc/sysctl.d/99-ptrace.conf && sudo reboot"),
        Some(other) => {
            found(other).unknown("not a known level; whether a thread can be stopped is tried below")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    const NOBODY: Rights = Rights(0);
    const ROOT: Rights = Rights(u64::MAX);

    #[test]
    fn releases() {
        for (release, state) in [
            ("6.18.44-fc-v657", State::Ok),
            ("6.1.0-56-cloud-amd64", State::Ok),
            ("6.0.19", State::Missing),
            ("5.15.0-91-generic", State::Missing),
            ("6.1-rc3", State::Ok),
            ("5.14.21", State::Missing),
            ("4.19.0-26-amd64", State::Missing),
            ("", State::Unknown),
            ("six.one", State::Unknown),
        ] {
            assert_eq!(release_check(release, "x86_64").state, state, "{release}");
        }
        assert_eq!(release_check("6.1.0", "aarch64").state, State::Missing);
    }

    #[test]
    fn lockdown_modes() {
        for (mounted, text, state) in [
            (true, Some("[none] integrity confidentiality\n"), State::Ok),
            (true, Some("none [integrity] confidentiality\n"), State::Ok),
            (true, Some("none integrity [confidentiality]\n"), State::Missing),
            (true, None, State::Ok),
            (false, None, State::Unknown),
            (true, Some("garbage"), State::Unknown),
        ] {
            assert_eq!(lockdown_check(mounted, text).state, state, "{text:?}");
        }
    }

    #[test]
    fn paranoid_levels() {
        let perfmon = Rights::of(&[Rights::PERFMON]);
        for (level, rights, state) in [
            (Some("4"), &ROOT, State::Ok),
            (Some("2"), &perfmon, State::Ok),
            (Some("3"), &perfmon, State::Degraded),
            (Some("2"), &NOBODY, State::Degraded),
            (Some("1"), &NOBODY, State::Degraded),
            (Some("0"), &NOBODY, State::Ok),
            (Some("-1"), &NOBODY, State::Ok),
            (Some("x"), &ROOT, State::Unknown),
            (None, &ROOT, State::Missing),
        ] {
            assert_eq!(paranoid_check(level, rights).state, state, "{level:?}");
        }
    }

    #[test]
    fn yama_levels() {
        for (level, rights, state) in [
            (None, &NOBODY, State::Ok),
            (Some("0"), &NOBODY, State::Ok),
            (Some("1"), &NOBODY, State::Degraded),
            (Some("2"), &NOBODY, State::Degraded),
            (Some("1"), &ROOT, State::Ok),
            (Some("2"), &ROOT, State::Ok),
            (Some("3"), &ROOT, State::Degraded),
            (Some("9"), &ROOT, State::Unknown),
        ] {
            assert_eq!(yama_check(level, rights).state, state, "{level:?}");
        }
    }
}
