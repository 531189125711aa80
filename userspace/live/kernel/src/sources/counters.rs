//! Hardware counters of loads and stores: how each processor family encodes them, and whether they
//! can be opened here.
//!
//! Read at the use and at the reuse they give the distance in accesses without a rate. The table is
//! written from documentation; of none of its rows was a count compared with a known program here,
//! as this machine has no PMU. Whether a counter exists on a machine is found by opening it. Not
//! here: reading one in the kernel.
//!
//! Sources of error, all in the counts' meaning ([`Unit`]): a read-modify-write instruction is a
//! load and a store; a gather or a `rep movs` is one instruction and many accesses; AMD counts at
//! dispatch, so speculative work as well.

use std::{fmt, io, path::Path};

use perf_event_open_sys::bindings;

use super::open::explain;
use crate::{
    perf::{self, Event},
    proc,
};

/// Who made the processor, as far as events differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// `GenuineIntel`.
    Intel,
    /// `AuthenticAMD`, and Hygon, whose family 18h is AMD's 17h.
    Amd,
    /// Another, or not known.
    Other,
}

/// A processor's identity (CPUID leaf 1, as `/proc/cpuinfo` words it).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// Maker.
    pub vendor: Vendor,
    /// `cpu family`.
    pub family: u32,
    /// `model`.
    pub model: u32,
    /// Whether a hypervisor reports its presence.
    pub is_virtual: bool,
}

impl Cpu {
    /// The first processor of a text like `/proc/cpuinfo`. What is missing is 0, [`Vendor::Other`], `false`.
    pub fn parse(text: &str) -> Self {
        let field = |name: &str| {
            let lines = text.lines().filter_map(|line| line.split_once(':'));
            lines.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim()).next()
        };
        let number = |name| field(name).and_then(|value| value.parse().ok()).unwrap_or(0);
        let vendor = match field("vendor_id") {
            Some("GenuineIntel") => Vendor::Intel,
            Some("AuthenticAMD" | "HygonGenuine") => Vendor::Amd,
            _ => Vendor::Other,
        };
        let is_virtual =
            field("flags").is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"));
        Self { vendor, family: number("cpu family"), model: number("model"), is_virtual }
    }

    /// The processor of this machine.
    pub fn own() -> Self {
        Self::parse(&proc::text("/proc/cpuinfo").unwrap_or_default())
    }
}

/// Meaning of one count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// A retired instruction with at least one such access.
    Instructions,
    /// A retired micro-operation.
    Uops,
    /// An operation sent to the load-store unit, whether it retires or not.
    DispatchedOps,
}

/// How a family counts its loads and stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    /// The maker's name of the event pair.
    pub name: &'static str,
    /// `perf_event_attr.config` of a raw event that counts loads: event in bits 0-7, unit mask in 8-15.
    pub loads: u64,
    /// The same for stores.
    pub stores: u64,
    /// What a count is.
    pub unit: Unit,
    /// Whether the two, sampled with PEBS, carry the data address
    /// (`INTEL_FLAGS_UEVENT_CONSTRAINT_DATALA_*` in the kernel's tables of PEBS constraints).
    pub address: bool,
}

/// Nehalem and Westmere: `nehalem_hw_cache_event_ids`.
const NEHALEM: Encoding = Encoding {
    name: "MEM_INST_RETIRED.LOADS/STORES",
    loads: 0x010b,
    stores: 0x020b,
    unit: Unit::Instructions,
    address: false,
};

/// Sandy and Ivy Bridge: `snb_hw_cache_event_ids` (its translation buffer's rows name all loads and stores).
const SANDY_BRIDGE: Encoding = Encoding {
    name: "MEM_UOPS_RETIRED.ALL_LOADS/ALL_STORES",
    loads: 0x81d0,
    stores: 0x82d0,
    unit: Unit::Uops,
    address: false,
};

/// Haswell and Broadwell: `hsw_hw_cache_event_ids`, `intel_hsw_pebs_event_constraints`.
const HASWELL: Encoding = Encoding { address: true, ..SANDY_BRIDGE };

/// Skylake and all large cores since: `skl_hw_cache_event_ids`, `intel_skl_pebs_event_constraints`
/// and successors.
const SKYLAKE: Encoding =
    Encoding { name: "MEM_INST_RETIRED.ALL_LOADS/ALL_STORES", unit: Unit::Instructions, ..HASWELL };

/// Zen 1 to 5: `ls_dispatch`, unit masks 1 load, 2 store, 4 load and store; masks add up.
const ZEN: Encoding = Encoding {
    name: "ls_dispatch",
    loads: 0x0529,
    stores: 0x0629,
    unit: Unit::DispatchedOps,
    address: false,
};

/// Intel family 6 by model. Models: arch/x86/include/asm/intel-family.h; events:
/// arch/x86/events/intel/core.c and ds.c
/// <https://github.com/torvalds/linux/blob/v6.12/arch/x86/events/intel/core.c>. Small cores (Atom)
/// are not listed.
const INTEL: [(&[u32], Encoding); 4] = [
    (&[0x1a, 0x1e, 0x1f, 0x2e, 0x25, 0x2c, 0x2f], NEHALEM),
    (&[0x2a, 0x2d, 0x3a, 0x3e], SANDY_BRIDGE),
    (&[0x3c, 0x3f, 0x45, 0x46, 0x3d, 0x47, 0x4f, 0x56], HASWELL),
    (
        &[
            0x4e, 0x5e, 0x55, 0x8e, 0x9e, 0xa5, 0xa6, 0x66, // Skylake to Cannon Lake
            0x6a, 0x6c, 0x7d, 0x7e, 0x9d, 0x8c, 0x8d, 0xa7, // Ice, Tiger, Rocket Lake
            0x8f, 0xcf, 0x97, 0x9a, 0xb7, 0xba,
            0xbf, // Sapphire and Emerald Rapids, Alder and Raptor Lake
            0xad, 0xae, 0xaa, 0xac, 0xc5, 0xc6, 0xb5, 0xbd, // Granite Rapids, Meteor, Arrow, Lunar Lake
        ],
        SKYLAKE,
    ),
];

/// How this processor counts loads and stores; `None` if the table does not know it. For AMD see
/// <https://github.com/torvalds/linux/blob/v6.12/tools/perf/pmu-events/arch/x86/amdzen4/memory.json>
/// and its siblings.
pub fn encoding(cpu: &Cpu) -> Option<&'static Encoding> {
    match (cpu.vendor, cpu.family) {
        (Vendor::Intel, 6) => {
            INTEL.iter().find(|(models, _)| models.contains(&cpu.model)).map(|(_, encoding)| encoding)
        }
        (Vendor::Amd, 0x17..=0x1a) => Some(&ZEN),
        _ => None,
    }
}

/// Two open counters. They count in user mode while enabled; dropping closes them.
#[derive(Debug)]
pub struct Counters {
    /// Loads; goes into a `BPF_MAP_TYPE_PERF_EVENT_ARRAY` for `bpf_perf_event_read_value`.
    pub loads: Event,
    /// Stores.
    pub stores: Event,
}

/// The type of a raw event of the processor; hybrid processors want `cpu_core`'s number.
pub const RAW: u32 = bindings::PERF_TYPE_RAW;

/// Attributes of a counter (no sampling, user mode only, enabled at once) with `config` on the unit
/// of type `type_`: [`RAW`], or the number of `cpu_core`.
///
/// `leads`: scheduled always or never (pinned), so counts of the group are never partial.
pub fn attr(type_: u32, config: u64, leads: bool) -> bindings::perf_event_attr {
    let mut attr = bindings::perf_event_attr { type_, config, ..Default::default() };
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr.set_pinned(leads.into());
    attr
}

/// Opens both counters for a thread on any CPU (`tid`, -1) or for a CPU (-1, `cpu`). `ENOENT` or
/// `EOPNOTSUPP` means that the machine shows no PMU.
pub fn open(encoding: &Encoding, type_: u32, tid: i32, cpu: i32) -> io::Result<Counters> {
    let loads = perf::open(&mut attr(type_, encoding.loads, true), tid, cpu, None)?;
    let stores = perf::open(&mut attr(type_, encoding.stores, false), tid, cpu, Some(&loads))?;
    Ok(Counters { loads, stores })
}

/// Why no accesses are counted, with the name of the events.
#[derive(Debug)]
pub enum NotCounted {
    /// The table does not know this processor.
    Unknown,
    /// A thread moves between cores of two kinds, and what it does on the other kind would be
    /// missing without a sign.
    Hybrid(&'static str),
    /// They open and stay at 0.
    Silent(&'static str),
    /// The kernel refused them.
    Refused(&'static str, io::Error),
}

impl fmt::Display for NotCounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("this processor's counters of loads and stores are not known here"),
            Self::Hybrid(name) => write!(f, "{name}: each of the two kinds of cores counts only its own"),
            Self::Silent(name) => write!(f, "{name}: they open but do not count"),
            Self::Refused(name, error) => write!(f, "{name}: {}", explain(error)),
        }
    }
}

/// How this machine counts the accesses of its threads, if at all.
#[derive(Debug, Clone, Copy)]
pub struct Counting {
    /// The events.
    pub encoding: Encoding,
    /// Their type.
    pub type_: u32,
}

impl Counting {
    /// Opens the counters of this thread and checks that they count: some virtual machines show a
    /// silent unit. `devices`: [`super::EVENT_SOURCES`].
    pub fn find(devices: &Path, cpu: &Cpu) -> Result<Self, NotCounted> {
        let encoding = *encoding(cpu).ok_or(NotCounted::Unknown)?;
        if devices.join("cpu_atom").is_dir() {
            return Err(NotCounted::Hybrid(encoding.name));
        }
        let found = Self { encoding, type_: RAW };
        match found.try_here() {
            Ok((1.., 1..)) => Ok(found),
            Ok(_) => Err(NotCounted::Silent(encoding.name)),
            Err(error) => Err(NotCounted::Refused(encoding.name, error)),
        }
    }

    /// Opens the counters of a thread.
    pub fn open(&self, tid: u32) -> io::Result<Counters> {
        open(&self.encoding, self.type_, tid as i32, -1)
    }

    /// Their counts of this thread over a little work.
    fn try_here(&self) -> io::Result<(u64, u64)> {
        let counters = self.open(0)?;
        let mut words = [0_u64; 64];
        for round in 0..64 {
            std::hint::black_box(&mut words).iter_mut().for_each(|word| *word += round);
        }
        std::hint::black_box(&words);
        Ok((counters.loads.count()?, counters.stores.count()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transcribed from the shape of `/proc/cpuinfo`, shortened.
    fn cpuinfo(vendor: &str, family: u32, model: u32, flags: &str) -> String {
        format!(
            "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: X\n\
             flags\t\t: {flags}\n\nprocessor\t: 1\nvendor_id\t: {vendor}\nmodel\t\t: 255\n"
        )
    }

    #[test]
    fn a_processor_is_recognised() {
        let cpu = Cpu::parse(&cpuinfo("GenuineIntel", 6, 143, "fpu hypervisor sse"));
        assert_eq!(cpu, Cpu { vendor: Vendor::Intel, family: 6, model: 143, is_virtual: true });
        let cpu = Cpu::parse(&cpuinfo("AuthenticAMD", 25, 97, "fpu sse"));
        assert_eq!(cpu, Cpu { vendor: Vendor::Amd, family: 0x19, model: 97, is_virtual: false });
        let nothing = Cpu { vendor: Vendor::Other, family: 0, model: 0, is_virtual: false };
        assert_eq!(Cpu::parse(""), nothing);
        assert_eq!(Cpu::parse("vendor_id: Other\nmodel: x"), nothing);
    }

    #[test]
    fn each_family_has_its_events() {
        let of = |vendor, family, model| {
            let cpu = Cpu { vendor, family, model, is_virtual: false };
            encoding(&cpu).map(|encoding| (encoding.loads, encoding.stores, encoding.unit, encoding.address))
        };
        assert_eq!(of(Vendor::Intel, 6, 0x2c), Some((0x10b, 0x20b, Unit::Instructions, false)));
        assert_eq!(of(Vendor::Intel, 6, 0x3a), Some((0x81d0, 0x82d0, Unit::Uops, false)));
        assert_eq!(of(Vendor::Intel, 6, 0x4f), Some((0x81d0, 0x82d0, Unit::Uops, true)));
        for model in [0x55, 0x6a, 0x8f, 0x97, 0xcf] {
            assert_eq!(of(Vendor::Intel, 6, model), Some((0x81d0, 0x82d0, Unit::Instructions, true)));
        }
        for family in [0x17, 0x18, 0x19, 0x1a] {
            assert_eq!(of(Vendor::Amd, family, 1), Some((0x529, 0x629, Unit::DispatchedOps, false)));
        }
        assert_eq!(of(Vendor::Intel, 6, 0x37), None, "Silvermont is not in the table");
        assert_eq!(of(Vendor::Intel, 15, 2), None);
        assert_eq!(of(Vendor::Amd, 0x15, 2), None);
        assert_eq!(of(Vendor::Other, 6, 0x55), None);
    }

    #[test]
    fn no_model_is_listed_twice() {
        let mut models: Vec<u32> = INTEL.iter().flat_map(|(models, _)| models.iter().copied()).collect();
        let listed = models.len();
        models.sort_unstable();
        models.dedup();
        assert_eq!(models.len(), listed);
    }

    #[test]
    fn a_counter_of_a_missing_unit_is_refused() {
        assert!(open(&SKYLAKE, 0xffff, 0, -1).is_err());
    }

    #[test]
    fn a_counter_counts_user_mode_and_does_not_sample() {
        let pinned = [true, false].map(|leads| attr(RAW, 0x81d0, leads).pinned());
        assert_eq!(pinned, [1, 0], "the kernel refuses a pinned member of a group");
        let attr = attr(bindings::PERF_TYPE_RAW, 0x81d0, true);
        assert_eq!((attr.type_, attr.config, attr.sample_type, attr.disabled()), (4, 0x81d0, 0, 0));
        assert_eq!((attr.exclude_kernel(), attr.exclude_hv(), attr.exclude_user()), (1, 1, 0));
    }
}
