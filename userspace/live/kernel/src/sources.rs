//! Event sources that can start samples: Intel's PEBS of loads
//! and stores, AMD's IBS of micro-operations, the clock.
//!
//! [`discover`] reads the list of event sources and offers choices, best first; a
//! choice is a set of events that together sample loads *and* stores, because loads
//! alone would give a biased picture. [`open::open_best`] tries the choices on a
//! CPU. An absent source is reported with the reason, and never simulated. Arm's SPE
//! is only named: SPE writes records to a separate buffer, not implemented here.
//!
//! How an address reaches a BPF program: `bpf_perf_event_data.addr` is a load of
//! `perf_sample_data.addr` (`pe_prog_convert_ctx_access`,
//! <https://github.com/torvalds/linux/blob/v6.12/kernel/trace/bpf_trace.c>). The PMUs write the
//! field only if `attr.sample_type` has `PERF_SAMPLE_ADDR` (`setup_pebs_adaptive_sample_data`,
//! <https://github.com/torvalds/linux/blob/v6.12/arch/x86/events/intel/ds.c>;
//! `perf_ibs_parse_ld_st_data`,
//! <https://github.com/torvalds/linux/blob/003c0414318a1829a1a5b195ad81e8a7960c3f5d/arch/x86/events/amd/ibs.c>).
//! Since Linux 6.3 an overflow runs `perf_prepare_sample` before the program, which makes the field
//! 0 when the PMU had no address, again only with the bit; without the bit the field has the
//! previous content of the kernel's stack (`bpf_overflow_handler`, `perf_sample_data_init`,
//! <https://github.com/torvalds/linux/blob/v6.12/kernel/events/core.c>). Every attribute made here
//! therefore has the bit, the clock's too, and the program may always read the field: 0 is "no
//! address".
//!
//! Sources of error: PEBS and IBS name the sampled instruction, but the remaining registers, and
//! therefore a stop, belong to the interrupt, several instructions later. The processor picks loads
//! for the load-latency event, so the event's period is not in loads ([`PeriodUnit::PickedLoads`]).
//! None of the hardware events was tried on hardware.

pub mod counters;
pub mod data_source;
#[cfg(test)]
mod fixtures;
pub mod ibs;
pub mod open;
pub mod select;
mod sysfs;
pub mod trial;

use std::{fmt, io, path::Path};

use perf_event_open_sys::bindings;

pub use counters::{Cpu, Vendor};
use sysfs::Device;
pub use sysfs::EventConfig;

/// The kernel's list of event sources.
pub const EVENT_SOURCES: &str = "/sys/bus/event_source/devices";

/// Kind of event that starts a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Intel's Processor Event Based Sampling of loads.
    PebsLoads,
    /// Intel's Processor Event Based Sampling of stores.
    PebsStores,
    /// AMD's Instruction Based Sampling of micro-operations; without
    /// an address for a micro-operation without memory access.
    IbsOp,
    /// Arm's Statistical Profiling Extension. Never offered.
    ArmSpe,
    /// The software clock of a CPU; without an address.
    Clock,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PebsLoads => "Intel PEBS loads",
            Self::PebsStores => "Intel PEBS stores",
            Self::IbsOp => "AMD IBS",
            Self::ArmSpe => "Arm SPE",
            Self::Clock => "clock",
        })
    }
}

/// Unit of a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PeriodUnit {
    /// Retired loads.
    Loads,
    /// Loads timed by the processor at random: fewer than all.
    PickedLoads,
    /// Retired stores.
    Stores,
    /// Dispatched micro-operations of every kind.
    Ops,
    /// Cycles.
    Cycles,
    /// Nanoseconds of a CPU that is not idle.
    Nanoseconds,
}

/// An event that can start samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Kind of the event.
    pub kind: Kind,
    /// Directory in [`EVENT_SOURCES`]; `software` for the clock.
    pub device: String,
    /// The event.
    pub event: EventConfig,
    /// The event that must lead the group: without a leader, Sapphire Rapids and Alder Lake
    /// refuse load latency together with a data source (`ENODATA`, `intel_pmu_hw_config`).
    pub leader: Option<EventConfig>,
    /// `precise_ip` to ask for; [`open::open`] asks for less after a refusal. 2 names
    /// the sampled instruction; 3 is not used, because 3 binds the event to one counter.
    pub precise_ip: u8,
    /// The CPUs with the event; all if `None`.
    pub cpus: Option<Vec<u32>>,
    /// The event can follow a thread; IBS could not before Linux 6.2.
    pub per_thread: bool,
    /// The event can leave out the kernel. Otherwise samples
    /// of the kernel are left for the program to drop.
    pub user_only: bool,
    /// Samples carry a data address.
    pub address: bool,
    /// Samples carry a latency (`PERF_SAMPLE_WEIGHT`), if asked.
    pub latency: bool,
    /// Samples carry a data source (`data_source`), if asked.
    pub data_source: bool,
    /// Unit of the period.
    pub period_unit: PeriodUnit,
    /// Step of periods: every period is a multiple.
    pub period_step: u64,
}

impl Source {
    /// The clock, which every machine has.
    pub fn clock() -> Self {
        Self {
            kind: Kind::Clock,
            device: "software".to_owned(),
            event: EventConfig {
                type_: bindings::PERF_TYPE_SOFTWARE,
                config: [bindings::PERF_COUNT_SW_CPU_CLOCK.into(), 0, 0],
            },
            leader: None,
            precise_ip: 0,
            cpus: None,
            per_thread: true,
            user_only: false,
            address: false,
            latency: false,
            data_source: false,
            period_unit: PeriodUnit::Nanoseconds,
            period_step: 1,
        }
    }

    fn hardware(kind: Kind, device: &Device, event: EventConfig, period_unit: PeriodUnit) -> Self {
        Self {
            kind,
            device: device.name.clone(),
            event,
            precise_ip: 2,
            cpus: device.cpus(),
            user_only: true,
            address: true,
            data_source: true,
            period_unit,
            ..Self::clock()
        }
    }

    /// Whether a CPU has the event.
    pub fn runs_on(&self, cpu: u32) -> bool {
        self.cpus.as_ref().is_none_or(|cpus| cpus.contains(&cpu))
    }

    /// The next allowed period, at least one step.
    pub fn period(&self, wanted: u64) -> u64 {
        let step = self.period_step.max(1);
        wanted.max(1).checked_next_multiple_of(step).unwrap_or(wanted - wanted % step)
    }

    /// The attributes of the sampling event, disabled unless switched by a leader.
    ///
    /// The sample's type is the address alone, because the program reads only the address. A PEBS
    /// event asks for a wake-up at each sample: otherwise, with a fixed period, the processor
    /// collects many records before an interrupt (`PERF_X86_EVENT_LARGE_PEBS`), and a thread would
    /// be stopped long after the sample.
    pub fn attr(&self, period: u64) -> bindings::perf_event_attr {
        let mut attr = self.plain_attr(&self.event);
        attr.__bindgen_anon_1.sample_period = self.period(period);
        attr.sample_type = bindings::PERF_SAMPLE_ADDR.into();
        attr.set_precise_ip(self.precise_ip.into());
        attr.set_disabled(u64::from(self.leader.is_none()));
        // IBS refuses `exclude_idle`.
        attr.set_exclude_idle(u64::from(self.kind == Kind::Clock));
        if matches!(self.kind, Kind::PebsLoads | Kind::PebsStores) {
            attr.__bindgen_anon_2.wakeup_events = 1;
        }
        attr
    }

    /// The attributes of the leader, disabled: the leader counts and switches the group.
    pub fn leader_attr(&self) -> Option<bindings::perf_event_attr> {
        let mut attr = self.plain_attr(self.leader.as_ref()?);
        attr.set_disabled(1);
        Some(attr)
    }

    fn plain_attr(&self, event: &EventConfig) -> bindings::perf_event_attr {
        let [config, config1, config2] = event.config;
        let mut attr = bindings::perf_event_attr { type_: event.type_, config, ..Default::default() };
        attr.__bindgen_anon_3.config1 = config1;
        attr.__bindgen_anon_4.config2 = config2;
        attr.set_exclude_kernel(self.user_only.into());
        attr.set_exclude_hv(self.user_only.into());
        attr
    }
}

/// A source that the machine does not offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// Kind of the source.
    pub kind: Kind,
    /// Why.
    pub why: String,
}

/// Sources offered by the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer {
    /// Sets of sources that sample loads and stores, best first; the clock is last. On
    /// hybrid processors a set belongs to a part of the CPUs ([`Source::runs_on`]).
    pub choices: Vec<Vec<Source>>,
    /// Missing sources.
    pub absent: Vec<Absent>,
}

/// Reads the event sources in `devices` ([`EVENT_SOURCES`]) of
/// a processor. Never fails: an unreadable source is absent.
pub fn discover(devices: &Path, cpu: &Cpu) -> Offer {
    let mut offer = Offer::default();
    let mut absent = |kind, why: String| offer.absent.push(Absent { kind, why });
    let mut choices = Vec::new();
    let cores: Vec<Device> =
        ["cpu_core", "cpu_atom", "cpu"].iter().filter_map(|name| Device::find(devices, name)).collect();
    for device in &cores {
        match pebs(device, cpu) {
            Ok(found) => choices.extend(found),
            Err(why) if cpu.vendor == Vendor::Intel => absent(Kind::PebsLoads, why),
            Err(_) => {}
        }
    }
    if cores.is_empty() && cpu.vendor == Vendor::Intel {
        absent(Kind::PebsLoads, "the machine shows no PMU".to_owned());
    }
    match Device::find(devices, "ibs_op").map(|device| ibs(&device)) {
        Some(Ok(source)) => choices.push(vec![source]),
        Some(Err(error)) => absent(Kind::IbsOp, format!("ibs_op is of unknown shape: {error}")),
        None if cpu.vendor == Vendor::Amd => absent(Kind::IbsOp, "the machine shows no ibs_op".to_owned()),
        None => {}
    }
    if let Some(device) = Device::find_prefixed(devices, "arm_spe") {
        absent(Kind::ArmSpe, format!("{} is there; this program has no part for it", device.name));
    }
    choices.push(vec![Source::clock()]);
    offer.choices = choices;
    offer
}

/// PEBS of one kind of core: first the events of every load and store, if sampled with
/// addresses, then the kernel's memory events, for randomly picked and timed loads.
fn pebs(device: &Device, cpu: &Cpu) -> Result<Vec<Vec<Source>>, String> {
    let name = &device.name;
    // Without PEBS in the processor or the hypervisor,
    // the kernel hides both files (`pebs_is_visible`).
    if device.max_precise() == Some(0) || !device.has_event("mem-loads") || !device.has_format("ldlat") {
        return Err(format!("{name} counts but does not sample addresses"));
    }
    let every = every_access(device, cpu).map_err(|error| format!("{name} is of unknown shape: {error}"))?;
    let named = named_accesses(device).map_err(|error| format!("{name} is of unknown shape: {error}"))?;
    let mut choices: Vec<_> = every.into_iter().chain(named).collect();
    for source in choices.iter_mut().flatten() {
        source.precise_ip = source.precise_ip.min(device.max_precise().unwrap_or(2));
    }
    if choices.is_empty() {
        return Err(format!("{name} samples loads but not stores"));
    }
    Ok(choices)
}

fn every_access(device: &Device, cpu: &Cpu) -> io::Result<Option<Vec<Source>>> {
    let Some(encoding) = counters::encoding(cpu).filter(|encoding| encoding.address) else {
        return Ok(None);
    };
    // The table is of large cores.
    if cpu.vendor != Vendor::Intel || device.name == "cpu_atom" {
        return Ok(None);
    }
    let source = |kind, config, unit| {
        let event = EventConfig { config: [config, 0, 0], ..device.plain()? };
        Ok(Source::hardware(kind, device, event, unit))
    };
    let loads = source(Kind::PebsLoads, encoding.loads, PeriodUnit::Loads);
    let stores = source(Kind::PebsStores, encoding.stores, PeriodUnit::Stores);
    [loads, stores].into_iter().collect::<io::Result<_>>().map(Some)
}

fn named_accesses(device: &Device) -> io::Result<Option<Vec<Source>>> {
    if !device.has_event("mem-stores") {
        return Ok(None);
    }
    let leader = device.has_event("mem-loads-aux").then(|| device.event("mem-loads-aux")).transpose()?;
    let loads = device.event("mem-loads")?;
    let loads = Source::hardware(Kind::PebsLoads, device, loads, PeriodUnit::PickedLoads);
    let stores = device.event("mem-stores")?;
    let stores = Source::hardware(Kind::PebsStores, device, stores, PeriodUnit::Stores);
    Ok(Some(vec![Source { leader, latency: true, ..loads }, stores]))
}

/// IBS: counts micro-operations where the processor can (`cnt_ctl`), otherwise
/// cycles; leaves out the kernel where the driver can (`swfilt`), otherwise
/// the driver refuses every `exclude_` bit. Periods are multiples of 16.
fn ibs(device: &Device) -> io::Result<Source> {
    let mut event = device.plain()?;
    let (counts_ops, filters) = (device.has_format("cnt_ctl"), device.has_format("swfilt"));
    if counts_ops {
        device.set(&mut event, "cnt_ctl", 1)?;
    }
    if filters {
        device.set(&mut event, "swfilt", 1)?;
    }
    let unit = if counts_ops { PeriodUnit::Ops } else { PeriodUnit::Cycles };
    Ok(Source {
        // The IBS unit is always precise; `precise_ip`
        // is for events of `cpu` forwarded to the unit.
        precise_ip: 0,
        // The driver is known to be new enough only if the driver filters.
        per_thread: filters,
        user_only: filters,
        latency: true,
        period_step: 16,
        ..Source::hardware(Kind::IbsOp, device, event, unit)
    })
}
