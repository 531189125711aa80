//! Lists of event sources for tests, and what is made of them.
//!
//! Transcribed from the kernel's sources, not recorded on machines: formats and events of Intel's
//! are `EVENT_ATTR_STR`, `EVENT_ATTR_STR_HYBRID` and `PMU_FORMAT_ATTR` of
//! <https://github.com/torvalds/linux/blob/v6.12/arch/x86/events/intel/core.c>, those of IBS are in
//! <https://github.com/torvalds/linux/blob/003c0414318a1829a1a5b195ad81e8a7960c3f5d/arch/x86/events/amd/ibs.c>;
//! `caps/max_precise` is `x86_pmu_max_precise` of arch/x86/events/core.c. Type numbers of `ibs_op`
//! and `cpu_atom` are given out at boot, so any will do. Only the list without PMU is recorded, on
//! the machine on which this was written.

use std::fs;

use perf_event_open_sys::bindings;

use super::{counters::Counting, *};

/// A tree of event sources: files with their contents.
pub(super) fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }
    dir
}

/// Skylake: `skl_format_attr`, `mem_ld_hsw`, `mem_st_hsw`.
pub(super) const SKYLAKE: [(&str, &str); 7] = [
    ("cpu/type", "4"),
    ("cpu/caps/max_precise", "3"),
    ("cpu/format/event", "config:0-7"),
    ("cpu/format/umask", "config:8-15"),
    ("cpu/format/ldlat", "config1:0-15"),
    ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
    ("cpu/events/mem-stores", "event=0xd0,umask=0x82"),
];

/// Sapphire Rapids: `mem_ld_hsw`, `mem_st_spr`, `mem_ld_aux`.
pub(super) const SAPPHIRE_RAPIDS: [(&str, &str); 8] = [
    ("cpu/type", "4"),
    ("cpu/caps/max_precise", "3"),
    ("cpu/format/event", "config:0-7"),
    ("cpu/format/umask", "config:8-15"),
    ("cpu/format/ldlat", "config1:0-15"),
    ("cpu/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
    ("cpu/events/mem-stores", "event=0xcd,umask=0x2"),
    ("cpu/events/mem-loads-aux", "event=0x03,umask=0x82"),
];

/// Alder Lake: `mem_ld_adl`, `mem_st_adl`, `mem_ld_aux_adl`, `adl_hybrid_extra_attr`.
pub(super) const ALDER_LAKE: [(&str, &str); 17] = [
    ("cpu_core/type", "4"),
    ("cpu_core/cpus", "0-15"),
    ("cpu_core/caps/max_precise", "3"),
    ("cpu_core/format/event", "config:0-7"),
    ("cpu_core/format/umask", "config:8-15"),
    ("cpu_core/format/ldlat", "config1:0-15"),
    ("cpu_core/events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
    ("cpu_core/events/mem-stores", "event=0xcd,umask=0x2"),
    ("cpu_core/events/mem-loads-aux", "event=0x03,umask=0x82"),
    ("cpu_atom/type", "10"),
    ("cpu_atom/cpus", "16-23"),
    ("cpu_atom/caps/max_precise", "3"),
    ("cpu_atom/format/event", "config:0-7"),
    ("cpu_atom/format/umask", "config:8-15"),
    ("cpu_atom/format/ldlat", "config1:0-15"),
    ("cpu_atom/events/mem-loads", "event=0xd0,umask=0x5,ldlat=3"),
    ("cpu_atom/events/mem-stores", "event=0xd0,umask=0x6"),
];

/// Zen 3 under a kernel without the driver's filter.
pub(super) const ZEN_3: [(&str, &str); 5] = [
    ("cpu/type", "4"),
    ("cpu/format/event", "config:0-7,32-35"),
    ("ibs_op/type", "11"),
    ("ibs_op/format/cnt_ctl", "config:19"),
    ("ibs_fetch/type", "10"),
];

/// Zen 4 under a newer kernel.
pub(super) const ZEN_4: [(&str, &str); 7] = [
    ("cpu/type", "4"),
    ("cpu/format/event", "config:0-7,32-35"),
    ("ibs_op/type", "11"),
    ("ibs_op/format/cnt_ctl", "config:19"),
    ("ibs_op/format/l3missonly", "config:16"),
    ("ibs_op/format/swfilt", "config2:0"),
    ("ibs_op/caps/zen4_ibs_extensions", "1"),
];

/// A virtual machine without PMU.
pub(super) const NO_PMU: [(&str, &str); 6] = [
    ("breakpoint/type", "5"),
    ("msr/type", "10"),
    ("power/type", "9"),
    ("software/type", "1"),
    ("tracepoint/type", "2"),
    ("uprobe/type", "8"),
];

pub(super) const fn intel(model: u32) -> Cpu {
    Cpu { vendor: Vendor::Intel, family: 6, model, is_virtual: false }
}

pub(super) const AMD: Cpu = Cpu { vendor: Vendor::Amd, family: 0x19, model: 0x61, is_virtual: false };

pub(super) fn offer(files: &[(&str, &str)], cpu: &Cpu) -> Offer {
    discover(tree(files).path(), cpu)
}

/// Kind, type and configuration of each source of each choice.
fn kinds(offer: &Offer) -> Vec<Vec<(Kind, u32, [u64; 3])>> {
    let of = |source: &Source| (source.kind, source.event.type_, source.event.config);
    offer.choices.iter().map(|choice| choice.iter().map(of).collect()).collect()
}

const CLOCK: (Kind, u32, [u64; 3]) = (Kind::Clock, 1, [0; 3]);

#[test]
fn skylake_samples_every_load_and_store_or_times_some() {
    let offer = offer(&SKYLAKE, &intel(0x55));
    let (loads, stores) = (Kind::PebsLoads, Kind::PebsStores);
    let expected = [
        vec![(loads, 4, [0x81d0, 0, 0]), (stores, 4, [0x82d0, 0, 0])],
        vec![(loads, 4, [0x1cd, 3, 0]), (stores, 4, [0x82d0, 0, 0])],
        vec![CLOCK],
    ];
    assert_eq!(kinds(&offer), expected);
    assert_eq!(offer.absent, []);
    let every = &offer.choices[0][0];
    assert_eq!((every.latency, every.precise_ip, every.period_unit), (false, 2, PeriodUnit::Loads));
    let timed = &offer.choices[1][0];
    assert_eq!((timed.latency, timed.leader, timed.period_unit), (true, None, PeriodUnit::PickedLoads));
    // A processor that the table of counters does not know still has the kernel's own events.
    let unknown = discover(tree(&SKYLAKE).path(), &intel(0xff));
    assert_eq!(kinds(&unknown), expected[1..]);
}

#[test]
fn sapphire_rapids_wants_a_leader_for_latency_only() {
    let offer = offer(&SAPPHIRE_RAPIDS, &intel(0x8f));
    assert_eq!(offer.choices.len(), 3);
    assert!(offer.choices[0].iter().all(|source| source.leader.is_none()));
    let [loads, stores] = &offer.choices[1][..] else { panic!("{offer:?}") };
    assert_eq!(loads.leader, Some(EventConfig { type_: 4, config: [0x8203, 0, 0] }));
    assert_eq!((stores.event.config[0], stores.leader), (0x2cd, None));
    let (leader, attr) = (loads.leader_attr().unwrap(), loads.attr(1000));
    assert_eq!((leader.config, leader.disabled(), leader.sample_type), (0x8203, 1, 0));
    assert_eq!((attr.disabled(), attr.precise_ip(), attr.exclude_kernel()), (0, 2, 1));
    // SAFETY: all bit patterns are valid for each variant of these unions.
    unsafe {
        assert_eq!((attr.config, attr.__bindgen_anon_3.config1), (0x1cd, 3));
        assert_eq!((attr.__bindgen_anon_1.sample_period, attr.__bindgen_anon_2.wakeup_events), (1000, 1));
    }
}

#[test]
fn alder_lakes_cores_have_their_own_events() {
    let offer = offer(&ALDER_LAKE, &intel(0x97));
    let configs: Vec<_> = offer.choices.iter().map(|choice| choice[0].event).collect();
    let expected = [(4, 0x81d0, 0), (4, 0x1cd, 3), (10, 0x5d0, 3), (1, 0, 0)]
        .map(|(type_, config, latency)| EventConfig { type_, config: [config, latency, 0] });
    assert_eq!(configs, expected);
    let on = |cpu| -> Vec<&str> {
        let here = offer.choices.iter().filter(|choice| choice.iter().all(|source| source.runs_on(cpu)));
        here.map(|choice| choice[0].device.as_str()).collect()
    };
    assert_eq!(on(15), ["cpu_core", "cpu_core", "software"]);
    assert_eq!(on(16), ["cpu_atom", "software"]);
    assert_eq!(offer.choices[2][1].event.config[0], 0x6d0);
    assert_eq!(offer.choices[2][0].leader, None, "small cores want no leader");
}

#[test]
fn zen_3_samples_whole_cpus_and_the_kernel() {
    let offer = offer(&ZEN_3, &AMD);
    assert_eq!(kinds(&offer), [vec![(Kind::IbsOp, 11, [1 << 19, 0, 0])], vec![CLOCK]]);
    let ibs = &offer.choices[0][0];
    assert_eq!(
        (ibs.per_thread, ibs.user_only, ibs.address, ibs.period_unit),
        (false, false, true, PeriodUnit::Ops)
    );
    let attr = ibs.attr(1001);
    assert_eq!(
        (attr.exclude_kernel(), attr.exclude_hv(), attr.exclude_idle(), attr.precise_ip()),
        (0, 0, 0, 0)
    );
    // SAFETY: all bit patterns are valid for each variant of this union.
    assert_eq!(unsafe { attr.__bindgen_anon_1.sample_period }, 1008);
    let cycles = discover(tree(&[ZEN_3[2]]).path(), &AMD);
    assert_eq!(cycles.choices[0][0].period_unit, PeriodUnit::Cycles);
}

#[test]
fn zen_4_filters_in_the_driver() {
    let offer = offer(&ZEN_4, &AMD);
    assert_eq!(kinds(&offer), [vec![(Kind::IbsOp, 11, [1 << 19, 0, 1])], vec![CLOCK]]);
    let ibs = &offer.choices[0][0];
    assert_eq!((ibs.per_thread, ibs.user_only, ibs.latency), (true, true, true));
    assert_eq!((ibs.attr(16).exclude_kernel(), ibs.attr(16).exclude_hv()), (1, 1));
}

#[test]
fn without_a_pmu_there_is_the_clock_and_a_reason() {
    let clock_because = |files: &[(&str, &str)], cpu: &Cpu, kind, why: &str| {
        let offer = offer(files, cpu);
        assert_eq!(kinds(&offer), [vec![CLOCK]]);
        let [absent] = &offer.absent[..] else { panic!("{offer:?}") };
        assert_eq!(absent.kind, kind);
        assert!(absent.why.contains(why), "{absent:?}");
    };
    clock_because(&NO_PMU, &intel(0xcf), Kind::PebsLoads, "shows no PMU");
    clock_because(&NO_PMU, &AMD, Kind::IbsOp, "shows no ibs_op");
    // PEBS hidden by a hypervisor, in both ways that kernels show it.
    let mut hidden = SKYLAKE;
    hidden[1].1 = "0";
    clock_because(&hidden, &intel(0x55), Kind::PebsLoads, "does not sample addresses");
    clock_because(&SKYLAKE[..4], &intel(0x55), Kind::PebsLoads, "does not sample addresses");
    // Nehalem: loads only, which would be a biased picture.
    let mut nehalem = SKYLAKE;
    nehalem[5].1 = "event=0x0b,umask=0x10,ldlat=3";
    clock_because(&nehalem[..6], &intel(0x1a), Kind::PebsLoads, "loads but not stores");
    // A device that is not of the known shape.
    let mut broken = SKYLAKE;
    broken[0].1 = "four";
    clock_because(&broken, &intel(0x55), Kind::PebsLoads, "unknown shape");
    let other = Cpu { vendor: Vendor::Other, ..AMD };
    clock_because(&[("arm_spe_0/type", "12")], &other, Kind::ArmSpe, "arm_spe_0");
    assert_eq!(discover(Path::new("/nonexistent"), &other).absent, []);
}

#[test]
fn every_source_asks_for_the_address() {
    for (files, cpu) in
        [(&SKYLAKE[..], intel(0x55)), (&ALDER_LAKE, intel(0x97)), (&ZEN_4, AMD), (&NO_PMU, AMD)]
    {
        for source in offer(files, &cpu).choices.iter().flatten() {
            let attr = source.attr(0);
            assert!(source.period(u64::MAX) > u64::MAX - source.period_step, "no overflow");
            assert_eq!(attr.sample_type, u64::from(bindings::PERF_SAMPLE_ADDR), "{source:?}");
            // SAFETY: all bit patterns are valid for each variant of this union.
            assert!(unsafe { attr.__bindgen_anon_1.sample_period } > 0);
            assert_eq!(source.address, source.kind != Kind::Clock);
        }
    }
}

/// Byte by byte what the kernel gets, up to `config2`: `struct perf_event_attr` of
/// <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>.
fn bytes(attr: &bindings::perf_event_attr) -> [u8; 72] {
    // SAFETY: a structure of integers, longer than this, without padding in its first 72 bytes.
    unsafe { (&raw const *attr).cast::<[u8; 72]>().read() }
}

/// The same from numbers: type, config, period, sample type, flags, wake-up, config1, config2.
fn laid_out(numbers: [u64; 8]) -> [u8; 72] {
    let [type_, config, period, sample_type, flags, wakeup, config1, config2] = numbers;
    let words = [type_, config, period, sample_type, 0, flags, wakeup, config1, config2];
    let mut bytes = [0; 72];
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

const DISABLED: u64 = 1;
const PINNED: u64 = 1 << 2;
/// `exclude_kernel`, `exclude_hv`.
const USER_ONLY: u64 = 1 << 5 | 1 << 6;
const EXCLUDE_IDLE: u64 = 1 << 7;
const PRECISE_2: u64 = 2 << 15;
/// `PERF_SAMPLE_ADDR`.
const ADDR: u64 = 1 << 3;

#[test]
fn attributes_byte_by_byte() {
    let of = |source: &Source, period| bytes(&source.attr(period));
    let pebs = DISABLED | USER_ONLY | PRECISE_2;
    let skylake = offer(&SKYLAKE, &intel(0x55));
    let [loads, stores] = &skylake.choices[0][..] else { panic!("{skylake:?}") };
    assert_eq!(of(loads, 1_000_003), laid_out([4, 0x81d0, 1_000_003, ADDR, pebs, 1, 0, 0]));
    assert_eq!(of(stores, 7), laid_out([4, 0x82d0, 7, ADDR, pebs, 1, 0, 0]));
    // Switched on by its leader.
    let timed = &offer(&SAPPHIRE_RAPIDS, &intel(0x8f)).choices[1][0];
    assert_eq!(of(timed, 100), laid_out([4, 0x1cd, 100, ADDR, pebs & !DISABLED, 1, 3, 0]));
    let leader = timed.leader_attr().unwrap();
    assert_eq!(bytes(&leader), laid_out([4, 0x8203, 0, 0, DISABLED | USER_ONLY, 0, 0, 0]));
    // Small cores: their own type.
    let small = &offer(&ALDER_LAKE, &intel(0x97)).choices[2][1];
    assert_eq!(of(small, 100), laid_out([10, 0x6d0, 100, ADDR, pebs, 1, 0, 0]));
    // IBS refuses every `exclude_` bit without the driver's filter, and its periods are multiples of 16.
    let [zen_3, zen_4] = [&ZEN_3[..], &ZEN_4].map(|files| offer(files, &AMD).choices[0][0].clone());
    assert_eq!(of(&zen_3, 1_000_000), laid_out([11, 1 << 19, 1_000_000, ADDR, DISABLED, 0, 0, 0]));
    assert_eq!(of(&zen_4, 1_001), laid_out([11, 1 << 19, 1_008, ADDR, DISABLED | USER_ONLY, 0, 0, 1]));
    let clock = laid_out([1, 0, 10_000_000, ADDR, DISABLED | EXCLUDE_IDLE, 0, 0, 0]);
    assert_eq!(of(&Source::clock(), 10_000_000), clock);
    // Counters count at once.
    let counter = |leads| bytes(&counters::attr(counters::RAW, 0x629, leads));
    assert_eq!(counter(true), laid_out([4, 0x629, 0, 0, PINNED | USER_ONLY, 0, 0, 0]));
    assert_eq!(counter(false), laid_out([4, 0x629, 0, 0, USER_ONLY, 0, 0, 0]));
}

#[test]
fn cores_of_two_kinds_are_not_counted() {
    let find = |files: &[(&str, &str)], cpu: &Cpu| Counting::find(tree(files).path(), cpu);
    let hybrid = find(&ALDER_LAKE, &intel(0x97)).unwrap_err().to_string();
    assert_eq!(
        hybrid,
        "MEM_INST_RETIRED.ALL_LOADS/ALL_STORES: each of the two kinds of cores counts only its own"
    );
    let unknown = find(&SKYLAKE, &intel(0x37)).unwrap_err().to_string();
    assert_eq!(unknown, "this processor's counters of loads and stores are not known here");
}
