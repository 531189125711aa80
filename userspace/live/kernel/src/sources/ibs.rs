//! The raw record of AMD's Instruction Based Sampling (`PERF_SAMPLE_RAW` of `ibs_op`): one sampled
//! micro-operation.
//!
//! Layout: the capability word (CPUID `8000_001B` EAX, 32 bits), then the operation's
//! model-specific registers from `C001_1033` on, 64 bits each, unaligned (`struct perf_ibs_data`,
//! `perf_ibs_handle_irq`); bits as in `amd-ibs.h`:
//! <https://github.com/torvalds/linux/blob/003c0414318a1829a1a5b195ad81e8a7960c3f5d/arch/x86/events/amd/ibs.c>,
//! <https://github.com/torvalds/linux/blob/550d14e3942c7d93ed3a3f38d6de94673e24988f/arch/x86/include/asm/amd-ibs.h>.
//! Not here: opening the event; and a BPF program needs none of this, it reads the address that the
//! kernel takes out.
//!
//! Limits: tested on layouts built from that header, not on a recording. Before Zen 4 a software
//! prefetch or a miss without a buffer can carry a wrong level (erratum 1293), so none is reported for
//! those.

use super::data_source::{DataSource, Level, Tlb};

/// A sampled micro-operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Its instruction; `None` if the processor lost it.
    pub rip: Option<u64>,
    /// The linear address of its data.
    pub address: Option<u64>,
    /// The physical address of its data.
    pub physical: Option<u64>,
    /// Bytes of the access; `None` if not known.
    pub bytes: Option<u32>,
    /// Cycles from the miss of the first-level cache to the data; loads that missed only.
    pub miss_cycles: Option<u16>,
    /// A software prefetch.
    pub prefetch: bool,
    /// What, from where. Neither load nor store: the operation accessed no memory.
    pub source: DataSource,
}

/// Positions of the registers after the capability word.
const RIP: usize = 1;
const DATA: usize = 2;
const DATA_2: usize = 3;
const DATA_3: usize = 4;
const LINEAR: usize = 5;
const PHYSICAL: usize = 6;

/// Capabilities: the processor tells an invalid address of the instruction; finer data sources.
const CAP_RIP_INVALID: u32 = 1 << 7;
const CAP_ZEN4: u32 = 1 << 11;

/// Decodes the bytes after a raw sample's size word. `None` if they are too short.
pub fn decode(raw: &[u8]) -> Option<Op> {
    let capabilities = u32::from_le_bytes(raw.get(..4)?.try_into().ok()?);
    let register = |at: usize| {
        let start = 4 + 8 * at;
        Some(u64::from_le_bytes(raw.get(start..start + 8)?.try_into().ok()?))
    };
    let (data, data_2, data_3) = (register(DATA)?, register(DATA_2)?, register(DATA_3)?);
    let (linear, physical) = (register(LINEAR)?, register(PHYSICAL)?);
    let is = |bit: u32| data_3 >> bit & 1 == 1;
    // IbsLdOp, IbsStOp. An operation with both counts as both here, and as a load in the kernel.
    let (load, store) = (is(0), is(1));
    let accessed = load || store;
    let rip_lost = capabilities & CAP_RIP_INVALID != 0 && data >> 38 & 1 == 1;
    let level = accessed.then(|| level(capabilities & CAP_ZEN4 != 0, load, data_2, data_3)).flatten();
    Some(Op {
        rip: (!rip_lost).then_some(register(RIP)?),
        // IbsDcLinAddrValid, IbsDcPhyAddrValid.
        address: (accessed && is(17)).then_some(linear),
        physical: (accessed && is(18)).then_some(physical),
        // IbsOpMemWidth: 1 is one byte, each step doubles.
        bytes: match data_3 >> 22 & 0xf {
            0 => None,
            width => Some(1 << (width - 1)),
        },
        miss_cycles: (load && is(7)).then_some((data_3 >> 32) as u16),
        prefetch: is(21),
        source: DataSource {
            load,
            store,
            level: level.map(|(level, _)| level),
            remote: level.is_some_and(|(_, remote)| remote),
            snoop: None,
            tlb: (accessed && is(17)).then(|| match (is(2), is(3)) {
                (false, _) => Tlb::L1,
                (true, false) => Tlb::L2,
                (true, true) => Tlb::Walk,
            }),
            locked: is(15),
        },
    })
}

/// Source of the data, and whether on another node.
fn level(zen4: bool, load: bool, data_2: u64, data_3: u64) -> Option<(Level, bool)> {
    let is = |bit: u32| data_3 >> bit & 1 == 1;
    let low = data_2 & 7;
    let source = if zen4 { (data_2 >> 6 & 3) << 3 | low } else { low };
    let other_node = data_2 >> 4 & 1 == 1;
    // IbsDcUcMemAcc: the other fields are not valid for uncached memory, except when it is a device's.
    if is(14) && source != 7 {
        return Some((Level::Uncached, false));
    }
    // IbsDcMiss, IbsL2Miss, IbsSwPf, IbsDcMissNoMabAlloc.
    if !is(7) {
        return Some((Level::L1, false));
    }
    let doubtful = !zen4 && (is(21) || is(16));
    if !is(20) && !doubtful {
        return Some((Level::L2, false));
    }
    // IbsOpData2 is valid for loads only.
    let told = match (zen4, source) {
        _ if !load || doubtful => None,
        (true, 1) => Some((Level::L3, false)),
        (true, 2) => Some((Level::AnyCache, false)),
        (true, 5) => Some((Level::AnyCache, true)),
        (true, 6) => Some((Level::Persistent, other_node)),
        (true, 8) => Some((Level::Cxl, other_node)),
        (false, 2) => Some((Level::AnyCache, false)),
        (false, 4) => Some((Level::AnyCache, true)),
        (_, 3) => Some((Level::Ram, other_node)),
        (_, 7) => Some((Level::Io, false)),
        _ => None,
    };
    told.or_else(|| is(16).then_some((Level::FillBuffer, false)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A raw record as the kernel lays it out, from its registers; more may follow (branch target, data 4).
    fn raw(capabilities: u32, registers: [u64; 7]) -> Vec<u8> {
        let mut bytes = capabilities.to_le_bytes().to_vec();
        bytes.extend(registers.iter().flat_map(|register| register.to_le_bytes()));
        bytes
    }

    const CONTROL: u64 = 1 << 19 | 1 << 18 | 1 << 17 | 0x400;
    /// Load, L1 translation hit, both addresses valid, 8 bytes wide (4 in the width field).
    const LOAD: u64 = 1 | 1 << 17 | 1 << 18 | 4 << 22;
    const MISS: u64 = 1 << 7;
    const L2_MISS: u64 = 1 << 20;
    /// AVAIL … OPDATA4, without and with the Zen 4 extensions.
    const ZEN_3: u32 = 0x3ff;
    const ZEN_4: u32 = ZEN_3 | CAP_ZEN4;

    fn op(capabilities: u32, data_2: u64, data_3: u64) -> Op {
        decode(&raw(capabilities, [CONTROL, 0x40_1000, 0, data_2, data_3, 0x7fff_0008, 0x1_2345_0008]))
            .unwrap()
    }

    #[test]
    fn a_load_that_hits() {
        let expected = Op {
            rip: Some(0x40_1000),
            address: Some(0x7fff_0008),
            physical: Some(0x1_2345_0008),
            bytes: Some(8),
            miss_cycles: None,
            prefetch: false,
            source: DataSource {
                load: true,
                level: Some(Level::L1),
                tlb: Some(Tlb::L1),
                ..DataSource::default()
            },
        };
        assert_eq!(op(ZEN_3, 0, LOAD), expected);
        assert_eq!(op(ZEN_4, 0, LOAD), expected);
    }

    #[test]
    fn an_operation_without_memory_has_no_address() {
        let found = op(ZEN_4, 3, 0);
        assert_eq!((found.address, found.physical, found.bytes), (None, None, None));
        assert_eq!(found.source, DataSource::default());
        // The address register keeps an old value; without the valid bit it says nothing.
        assert_eq!(op(ZEN_4, 0, LOAD & !(1 << 17)).address, None);
        assert_eq!(op(ZEN_4, 0, 1 << 17).address, None, "neither load nor store");
    }

    #[test]
    fn levels_before_and_since_zen_4() {
        let of = |capabilities, data_2, data_3| {
            let source = op(capabilities, data_2, LOAD | data_3).source;
            (source.level, source.remote)
        };
        let missed = MISS | L2_MISS;
        assert_eq!(of(ZEN_3, 0, MISS), (Some(Level::L2), false));
        assert_eq!(of(ZEN_3, 2, missed), (Some(Level::AnyCache), false));
        assert_eq!(of(ZEN_3, 3, missed), (Some(Level::Ram), false));
        assert_eq!(of(ZEN_3, 3 | 1 << 4, missed), (Some(Level::Ram), true));
        assert_eq!(of(ZEN_3, 4, missed), (Some(Level::AnyCache), true));
        assert_eq!(of(ZEN_3, 7, missed), (Some(Level::Io), false));
        // Bits 6 and 7 belong to the source since Zen 4 only.
        assert_eq!(of(ZEN_3, 3 | 1 << 6, missed), (Some(Level::Ram), false));
        assert_eq!(of(ZEN_4, 1, missed), (Some(Level::L3), false));
        assert_eq!(of(ZEN_4, 2, missed), (Some(Level::AnyCache), false));
        assert_eq!(of(ZEN_4, 5, missed), (Some(Level::AnyCache), true));
        assert_eq!(of(ZEN_4, 6 | 1 << 4, missed), (Some(Level::Persistent), true));
        assert_eq!(of(ZEN_4, 1 << 6, missed), (Some(Level::Cxl), false));
        assert_eq!(of(ZEN_4, 0, missed), (None, false));
        assert_eq!(of(ZEN_4, 0, missed | 1 << 16), (Some(Level::FillBuffer), false));
        assert_eq!(of(ZEN_4, 0, missed | 1 << 14), (Some(Level::Uncached), false));
        // Erratum 1293: a software prefetch's data source is not to be trusted before Zen 4.
        assert_eq!(of(ZEN_3, 3, missed | 1 << 21), (None, false));
        assert_eq!(of(ZEN_3, 0, MISS | 1 << 21), (None, false));
    }

    #[test]
    fn a_store_has_no_data_source() {
        let store = LOAD & !1 | 1 << 1;
        let found = op(ZEN_4, 3, store | MISS | L2_MISS | 77 << 32);
        assert_eq!((found.source.store, found.source.load, found.source.level), (true, false, None));
        assert_eq!((found.miss_cycles, found.address), (None, Some(0x7fff_0008)));
    }

    #[test]
    fn latency_translation_lock_and_lost_instruction() {
        let found = op(ZEN_4, 3, LOAD | MISS | L2_MISS | 1 << 2 | 1 << 3 | 1 << 15 | 345 << 32);
        assert_eq!((found.miss_cycles, found.source.tlb), (Some(345), Some(Tlb::Walk)));
        assert!(found.source.locked);
        assert_eq!(op(ZEN_4, 0, LOAD | 1 << 2).source.tlb, Some(Tlb::L2));
        let lost = [CONTROL, 0x40_1000, 1 << 38, 0, LOAD, 0, 0];
        assert_eq!(decode(&raw(ZEN_4, lost)).unwrap().rip, None);
        assert_eq!(
            decode(&raw(0x1f, lost)).unwrap().rip,
            Some(0x40_1000),
            "an old processor has no such bit"
        );
    }

    #[test]
    fn short_records_are_refused_and_longer_ones_read() {
        let whole = raw(ZEN_4, [CONTROL, 1, 0, 0, LOAD, 2, 3]);
        for len in 0..whole.len() {
            assert_eq!(decode(&whole[..len]), None, "{len}");
        }
        let mut longer = whole.clone();
        longer.extend([0xff; 16]);
        assert_eq!(decode(&longer), decode(&whole));
        assert!(decode(&whole).is_some());
    }
}
