//! What a sample's data source says (`PERF_SAMPLE_DATA_SRC`): operation, where the data was, snoop,
//! translation, lock.
//!
//! Bits are those of `union perf_mem_data_src`, the same for Intel's PEBS and AMD's IBS:
//! <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/perf_event.h>. An old kernel
//! does not write the newer level field; then the older bits are read. Not here: how a PMU's record
//! becomes these bits (the kernel does that), except for IBS's raw record (`ibs`).

/// Where the data of an access was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// First-level cache.
    L1,
    /// Second-level cache.
    L2,
    /// Third-level cache.
    L3,
    /// Fourth-level cache.
    L4,
    /// A cache, not known which; another core's or another socket's included.
    AnyCache,
    /// On its way already: line fill buffer, or AMD's miss address buffer.
    FillBuffer,
    /// Memory.
    Ram,
    /// Persistent memory.
    Persistent,
    /// Memory on CXL.
    Cxl,
    /// A device.
    Io,
    /// Uncached memory.
    Uncached,
}

/// State of the line in other caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Snoop {
    /// None was asked.
    None,
    /// Another had it clean.
    Hit,
    /// In no other cache.
    Miss,
    /// Another had it modified.
    HitModified,
}

/// How the address was translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Tlb {
    /// First-level buffer.
    L1,
    /// Second-level buffer.
    L2,
    /// A buffer, unknown which.
    Hit,
    /// By the hardware's walk of the page tables, or by the kernel.
    Walk,
}

/// A decoded data source. `None` is "the PMU does not say".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataSource {
    /// A load; `false` together with `store` for what is neither or is not known.
    pub load: bool,
    /// A store.
    pub store: bool,
    /// Where the data was. An Intel store that missed the first level has a level only if the PMU names one.
    pub level: Option<Level>,
    /// The named level belongs to another socket or node.
    pub remote: bool,
    /// State of the line in other caches.
    pub snoop: Option<Snoop>,
    /// How the address was translated.
    pub tlb: Option<Tlb>,
    /// The instruction locked the line.
    pub locked: bool,
}

/// Takes `bits` bits at `shift`.
fn field(value: u64, shift: u32, bits: u32) -> u64 {
    value >> shift & ((1 << bits) - 1)
}

impl DataSource {
    /// Decodes `perf_mem_data_src.val`.
    pub fn decode(value: u64) -> Self {
        let op = field(value, 0, 5);
        let lvl = field(value, 5, 14);
        let numbered = match field(value, 33, 4) {
            1 => Some(Level::L1),
            2 => Some(Level::L2),
            3 => Some(Level::L3),
            4 => Some(Level::L4),
            // Second-level miss handling buffer.
            5 => Some(Level::FillBuffer),
            // Memory-side cache.
            6 => Some(Level::AnyCache),
            8 => Some(Level::Uncached),
            9 => Some(Level::Cxl),
            10 => Some(Level::Io),
            11 => Some(Level::AnyCache),
            12 => Some(Level::FillBuffer),
            13 => Some(Level::Ram),
            14 => Some(Level::Persistent),
            // 15 is "not available".
            _ => None,
        };
        let snoop = field(value, 19, 5);
        Self {
            load: op & 0x02 != 0,
            store: op & 0x04 != 0,
            level: numbered.or_else(|| old_level(lvl)),
            // Remote memory or cache, one hop or two; or the newer bit.
            remote: field(value, 37, 1) != 0 || lvl & 0xf00 != 0,
            snoop: match snoop {
                _ if snoop & 0x10 != 0 => Some(Snoop::HitModified),
                _ if snoop & 0x04 != 0 => Some(Snoop::Hit),
                _ if snoop & 0x08 != 0 => Some(Snoop::Miss),
                _ if snoop & 0x02 != 0 => Some(Snoop::None),
                _ => None,
            },
            tlb: tlb(field(value, 26, 7)),
            locked: field(value, 24, 2) & 0x02 != 0,
        }
    }
}

/// The older level bits: a level counts only as a hit; `L1 | MISS` says where the data was not.
fn old_level(lvl: u64) -> Option<Level> {
    const HIT: u64 = 0x02;
    let named = [
        (0x08, Level::L1),
        (0x10, Level::FillBuffer),
        (0x20, Level::L2),
        (0x40, Level::L3),
        (0x380, Level::Ram),
        (0xc00, Level::AnyCache),
        (0x1000, Level::Io),
        (0x2000, Level::Uncached),
    ];
    (lvl & HIT != 0).then(|| named.iter().find(|(bits, _)| lvl & bits != 0).map(|(_, level)| *level))?
}

fn tlb(bits: u64) -> Option<Tlb> {
    let hit = bits & 0x02 != 0;
    match (bits & 0x08 != 0, bits & 0x10 != 0) {
        // Intel says `HIT | L1 | L2` for "either".
        (true, true) if hit => Some(Tlb::Hit),
        (true, false) if hit => Some(Tlb::L1),
        (false, true) if hit => Some(Tlb::L2),
        // A miss of the last buffer, a walk, or a fault.
        _ if bits & 0x64 != 0 => Some(Tlb::Walk),
        (false, false) if hit => Some(Tlb::Hit),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use perf_event_open_sys::bindings::{perf_mem_data_src, perf_mem_data_src__bindgen_ty_1 as Bits};

    use super::*;

    /// Builds the word with the binding's own bit fields, which come from the kernel's header.
    fn word(fill: impl FnOnce(&mut Bits)) -> u64 {
        let mut word = perf_mem_data_src { val: 0 };
        // SAFETY: all bit patterns are valid for both variants.
        unsafe { fill(&mut word.__bindgen_anon_1) };
        // SAFETY: as above.
        unsafe { word.val }
    }

    #[test]
    fn fields_lie_where_the_header_has_them() {
        let value = word(|bits| {
            bits.set_mem_op(0x02);
            bits.set_mem_lvl(0x02 | 0x40);
            bits.set_mem_lvl_num(3);
            bits.set_mem_snoop(0x10);
            bits.set_mem_lock(0x02);
            bits.set_mem_dtlb(0x02 | 0x08);
        });
        let expected = DataSource {
            load: true,
            store: false,
            level: Some(Level::L3),
            remote: false,
            snoop: Some(Snoop::HitModified),
            tlb: Some(Tlb::L1),
            locked: true,
        };
        assert_eq!(DataSource::decode(value), expected);
        assert!(DataSource::decode(word(|bits| bits.set_mem_remote(1))).remote);
        assert!(DataSource::decode(word(|bits| bits.set_mem_op(0x04))).store);
    }

    #[test]
    fn words_as_the_kernel_writes_them() {
        // `precise_store_data` and `pebs_data_source` of arch/x86/events/intel/ds.c, transcribed,
        // not recorded: load, L1 hit, no snoop, as OP_LH | P(LVL, L1) | LEVEL(L1) | P(SNOOP, NONE).
        let l1 = word(|bits| {
            bits.set_mem_op(0x02);
            bits.set_mem_lvl(0x08 | 0x02);
            bits.set_mem_lvl_num(1);
            bits.set_mem_snoop(0x02);
        });
        let found = DataSource::decode(l1);
        assert_eq!((found.level, found.snoop, found.tlb), (Some(Level::L1), Some(Snoop::None), None));
        // Load from remote memory: P(LVL, REM_RAM1) | REM | LEVEL(RAM) | P(SNOOP, HIT).
        let remote = word(|bits| {
            bits.set_mem_op(0x02);
            bits.set_mem_lvl(0x100 | 0x02);
            bits.set_mem_lvl_num(13);
            bits.set_mem_remote(1);
            bits.set_mem_snoop(0x04);
            bits.set_mem_dtlb(0x04 | 0x10);
        });
        let found = DataSource::decode(remote);
        assert_eq!((found.level, found.remote, found.tlb), (Some(Level::Ram), true, Some(Tlb::Walk)));
    }

    #[test]
    fn what_is_not_told_stays_open() {
        assert_eq!(DataSource::decode(0), DataSource::default());
        // PERF_MEM_NA: every field "not available".
        let not_available = word(|bits| {
            bits.set_mem_op(1);
            bits.set_mem_lvl(1);
            bits.set_mem_lvl_num(15);
            bits.set_mem_snoop(1);
            bits.set_mem_lock(1);
            bits.set_mem_dtlb(1);
        });
        assert_eq!(DataSource::decode(not_available), DataSource::default());
    }

    #[test]
    fn old_kernels_levels() {
        for (bits, level) in [
            (0x08, Level::L1),
            (0x10, Level::FillBuffer),
            (0x20, Level::L2),
            (0x40, Level::L3),
            (0x80, Level::Ram),
            (0x200, Level::Ram),
            (0x400, Level::AnyCache),
            (0x1000, Level::Io),
            (0x2000, Level::Uncached),
        ] {
            assert_eq!(DataSource::decode(word(|b| b.set_mem_lvl(bits | 0x02))).level, Some(level));
            assert_eq!(DataSource::decode(word(|b| b.set_mem_lvl(bits | 0x04))).level, None, "a miss");
        }
    }

    #[test]
    fn translations() {
        let of = |bits| DataSource::decode(word(|b| b.set_mem_dtlb(bits))).tlb;
        assert_eq!(of(0x02 | 0x08), Some(Tlb::L1));
        assert_eq!(of(0x02 | 0x10), Some(Tlb::L2));
        assert_eq!(of(0x02 | 0x08 | 0x10), Some(Tlb::Hit));
        assert_eq!(of(0x04 | 0x10), Some(Tlb::Walk));
        assert_eq!(of(0x20), Some(Tlb::Walk));
        assert_eq!(of(0x02), Some(Tlb::Hit));
    }
}
