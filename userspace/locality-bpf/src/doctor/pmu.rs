//! Which performance monitoring unit the machine has, and whether it delivers samples with data addresses.
//!
//! The kind is read from the kernel's list of event sources; a kind that samples addresses is then tried for a moment
//! (`address_sample`), because virtual machines often show a unit that does not deliver.

use std::{fs, io, path::Path};

use super::{
    Check,
    address_sample::{self, EventConfig, Source},
};

const EVENT_SOURCES: &str = "/sys/bus/event_source/devices";

/// What can sample data addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Intel's Processor Event Based Sampling, in this device (`cpu`, or `cpu_core` on hybrid processors).
    IntelPebs(String),
    /// AMD's Instruction Based Sampling of micro-operations.
    AmdIbs,
    /// Arm's Statistical Profiling Extension.
    ArmSpe(String),
    /// Counters without addresses.
    Counters(String),
    /// Nothing.
    None,
}

fn kind(devices: &Path) -> Kind {
    let names: Vec<String> = fs::read_dir(devices)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let has = |name: &str| names.iter().any(|found| found == name);
    if let Some(device) =
        ["cpu_core", "cpu"].into_iter().find(|name| has(name) && has_pebs(&devices.join(name)))
    {
        return Kind::IntelPebs(device.to_owned());
    }
    if has("ibs_op") {
        return Kind::AmdIbs;
    }
    if let Some(device) = names.iter().find(|name| name.starts_with("arm_spe")) {
        return Kind::ArmSpe(device.clone());
    }
    let counters = |name: &&String| matches!(name.as_str(), "cpu" | "cpu_core") || name.starts_with("armv");
    names.iter().find(counters).map_or(Kind::None, |device| Kind::Counters(device.clone()))
}

/// Load latency needs its threshold as a format and the event; `caps/max_precise` is 0 where the hypervisor hides PEBS.
fn has_pebs(device: &Path) -> bool {
    let hidden = fs::read_to_string(device.join("caps/max_precise")).is_ok_and(|text| text.trim() == "0");
    !hidden && device.join("format/ldlat").exists() && device.join("events/mem-loads").exists()
}

/// The event that samples addresses, for the kinds that can be tried here.
fn source(kind: &Kind, devices: &Path) -> io::Result<Option<Source>> {
    match kind {
        Kind::IntelPebs(name) => {
            let device = devices.join(name);
            // Newer processors want the event in a group behind this one (`intel_pmu_hw_config`):
            // https://github.com/torvalds/linux/blob/v6.12/arch/x86/events/intel/core.c
            let leader = device.join("events/mem-loads-aux").exists().then_some("mem-loads-aux");
            Ok(Some(Source {
                leader: leader.map(|name| EventConfig::read(&device, name)).transpose()?,
                event: EventConfig::read(&device, "mem-loads")?,
                period: 1000,
                precise: true,
                whole_cpu: false,
                cpu: fs::read_to_string(device.join("cpus")).ok().and_then(|list| first_cpu(&list)),
            }))
        }
        Kind::AmdIbs => Ok(Some(Source {
            leader: None,
            event: EventConfig::plain(&devices.join("ibs_op"))?,
            // A multiple of 16, as the unit counts.
            period: 0x4000,
            precise: false,
            // Before Linux 6.2 the unit belongs to CPUs, not to threads, and cannot exclude the kernel.
            whole_cpu: true,
            cpu: None,
        })),
        _ => Ok(None),
    }
}

/// First of a list like `0-15,32`.
fn first_cpu(list: &str) -> Option<u32> {
    list.trim().split(['-', ',']).next()?.parse().ok()
}

pub(super) fn check() -> Check {
    let devices = Path::new(EVENT_SOURCES);
    let kind = kind(devices);
    let tried = source(&kind, devices)
        .and_then(|source| source.map(|source| address_sample::try_for_a_moment(&source)).transpose());
    judge(&kind, tried)
}

/// `tried`: samples with an address of the memory that was walked meanwhile; `None` when nothing can be tried.
fn judge(kind: &Kind, tried: io::Result<Option<usize>>) -> Check {
    let found = |text: String| Check::ok("pmu", "PMU", text);
    let name = match kind {
        Kind::IntelPebs(device) => format!("Intel PEBS ({device})"),
        Kind::AmdIbs => "AMD IBS".to_owned(),
        Kind::ArmSpe(device) => format!("Arm SPE ({device})"),
        Kind::Counters(device) => format!("counters ({device}), no address samples"),
        Kind::None => "no PMU".to_owned(),
    };
    let otherwise = "accesses are found by stopping the thread (zero-skid stop) and by decoding";
    let on_the_host = "qemu-system-x86_64 -cpu host,pmu=on …";
    match (kind, tried) {
        (_, Ok(Some(samples @ 1..))) => found(format!("{name}: {samples} samples with an address in a test")),
        (_, Ok(Some(_))) => {
            found(format!("{name}: no sample with an address came in a test")).degraded(otherwise)
        }
        (_, Err(error)) => found(format!("{name}: refused: {error}")).degraded(otherwise),
        (Kind::ArmSpe(_), Ok(None)) => found(name).degraded("this program is for x86-64 only"),
        (_, Ok(None)) if is_virtual() => found(name)
            .degraded(format!("{otherwise}; a virtual machine's host may offer one"))
            .mend(on_the_host),
        (_, Ok(None)) => found(name).degraded(otherwise),
    }
}

/// Whether the processor says that it runs under a hypervisor.
fn is_virtual() -> bool {
    fs::read_to_string("/proc/cpuinfo")
        .is_ok_and(|text| text.split_whitespace().any(|word| word == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    /// A tree of event sources: files with their contents.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    const PEBS: [(&str, &str); 6] = [
        ("cpu/type", "4\n"),
        ("cpu/caps/max_precise", "3\n"),
        ("cpu/format/event", "config:0-7\n"),
        ("cpu/format/umask", "config:8-15\n"),
        ("cpu/format/ldlat", "config1:0-15\n"),
        ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3\n"),
    ];

    #[test]
    fn intel_with_pebs() {
        let dir = tree(&PEBS);
        let kind = kind(dir.path());
        assert_eq!(kind, Kind::IntelPebs("cpu".into()));
        let source = source(&kind, dir.path()).unwrap().unwrap();
        assert_eq!(source.event, EventConfig { type_: 4, config: [0x1cd, 3, 0] });
        assert_eq!((source.leader, source.cpu, source.precise), (None, None, true));
    }

    #[test]
    fn intel_whose_pebs_the_hypervisor_hides() {
        let mut files = PEBS;
        files[1].1 = "0\n";
        assert_eq!(kind(tree(&files).path()), Kind::Counters("cpu".into()));
        assert_eq!(kind(tree(&PEBS[..4]).path()), Kind::Counters("cpu".into()));
    }

    #[test]
    fn intel_hybrid_uses_its_large_cores_and_the_auxiliary_event() {
        let mut files: Vec<(String, &str)> =
            PEBS.iter().map(|(path, text)| (path.replacen("cpu/", "cpu_core/", 1), *text)).collect();
        files.push(("cpu_core/cpus".into(), "2-15\n"));
        files.push(("cpu_core/events/mem-loads-aux".into(), "event=0x03,umask=0x82\n"));
        files.push(("cpu_atom/type".into(), "10\n"));
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let dir = tree(&files);
        let kind = kind(dir.path());
        assert_eq!(kind, Kind::IntelPebs("cpu_core".into()));
        let source = source(&kind, dir.path()).unwrap().unwrap();
        assert_eq!(source.cpu, Some(2));
        assert_eq!(source.leader, Some(EventConfig { type_: 4, config: [0x8203, 0, 0] }));
    }

    #[test]
    fn amd_arm_and_nothing() {
        let dir = tree(&[("cpu/type", "4"), ("ibs_op/type", "11\n"), ("ibs_fetch/type", "10\n")]);
        assert_eq!(kind(dir.path()), Kind::AmdIbs);
        let source = source(&Kind::AmdIbs, dir.path()).unwrap().unwrap();
        assert_eq!((source.event.type_, source.whole_cpu, source.period % 16), (11, true, 0));
        let dir = tree(&[("armv8_pmuv3_0/type", "8"), ("arm_spe_0/type", "9")]);
        assert_eq!(kind(dir.path()), Kind::ArmSpe("arm_spe_0".into()));
        assert_eq!(kind(tree(&[("armv8_pmuv3_0/type", "8")]).path()), Kind::Counters("armv8_pmuv3_0".into()));
        assert_eq!(kind(tree(&[("software/type", "1"), ("breakpoint/type", "5")]).path()), Kind::None);
        assert_eq!(kind(Path::new("/nonexistent")), Kind::None);
    }

    #[test]
    fn a_unit_that_does_not_deliver_is_not_called_good() {
        let pebs = Kind::IntelPebs("cpu".into());
        assert_eq!(judge(&pebs, Ok(Some(12))).state, State::Ok);
        for tried in [Ok(Some(0)), Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))] {
            let check = judge(&pebs, tried);
            assert_eq!(check.state, State::Degraded);
            assert!(check.consequence.unwrap().contains("zero-skid stop"));
        }
        for kind in [Kind::None, Kind::Counters("cpu".into()), Kind::ArmSpe("arm_spe_0".into())] {
            assert_eq!(judge(&kind, Ok(None)).state, State::Degraded);
        }
    }

    #[test]
    fn a_cpu_list() {
        assert_eq!(first_cpu("0-15\n"), Some(0));
        assert_eq!(first_cpu("3,5\n"), Some(3));
        assert_eq!(first_cpu("\n"), None);
    }
}
