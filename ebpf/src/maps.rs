//! Maps and settings. User space sizes `SCRATCH` to the number of CPUs and fills the settings before loading.

use aya_ebpf::{
    bindings::BPF_F_NO_PREALLOC,
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, PerfEventArray, RingBuf},
};
use locality_common::{
    config::{CGROUPS_MAX, CgroupTarget, KernelOffsets},
    counter,
    heap::{HeapSettings, LiveBlock, LiveKey, Pending, ProcessText, SmallCall},
    record::{HeldThread, Meter, RECORD_BYTES_MAX, WatchKey, WatchState, WatchedWords},
};

/// Bytes of the ring buffer.
const RING_BYTES: u32 = 4 << 20;

#[map]
pub static RING: RingBuf = RingBuf::with_byte_size(RING_BYTES, 0);

#[map]
pub static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(counter::COUNT, 0);

/// Traced processes, by thread group id.
#[map]
pub static TARGETS: HashMap<u32, u32> = HashMap::with_max_entries(65536, 0);

/// Processes that are never targets of a cgroup or of everything, by thread group id: one of
/// `locality_common::config::spared`.
#[map]
pub static SPARED: HashMap<u32, u32> = HashMap::with_max_entries(4096, 0);

/// Names of debuggers (`comm`, with zeroes to the end), whose start is reported. Empty: none is.
#[map]
pub static DEBUGGERS: HashMap<[u8; 16], u32> = HashMap::with_max_entries(128, 0);

#[map]
pub static CGROUPS: Array<CgroupTarget> = Array::with_max_entries(CGROUPS_MAX, 0);

/// Threads that the freezer holds, by thread id.
#[map]
pub static HELD: HashMap<u32, HeldThread> = HashMap::with_max_entries(65536, 0);

#[map]
pub static WATCHES: HashMap<WatchKey, WatchState> = HashMap::with_max_entries(16384, 0);

/// The words that are watched in a process, by thread group id.
#[map]
pub static WATCHED: HashMap<u32, WatchedWords> = HashMap::with_max_entries(16384, 0);

/// Meters that run, by thread id.
#[map]
pub static METERS: HashMap<u32, Meter> = HashMap::with_max_entries(65536, 0);

/// Where a thread's counters of loads and stores lie in `ACCESS_EVENTS`, by thread id. Empty
/// on a machine without the counters, as the next map. User space sets the size of both.
#[map]
pub static COUNTED: HashMap<u32, u32> = HashMap::with_max_entries(1, 0);

/// The counters: at each place the loads of a thread, followed by the thread's stores.
#[map]
pub static ACCESS_EVENTS: PerfEventArray<u64> = PerfEventArray::new(0);

/// `CLOCK_MONOTONIC` of the freezer's last sign of life.
#[map]
pub static HEARTBEAT: Array<u64> = Array::with_max_entries(1, 0);

/// Time of the last record of a thread in the kernel.
#[map]
pub static KERNEL_RECORDED: PerCpuArray<u64> = PerCpuArray::with_max_entries(1, 0);

/// Room in which a record is put together: one entry per
/// CPU (a per-CPU map's value may not exceed 32 KiB).
#[repr(C, align(8))]
pub struct Scratch {
    pub bytes: [u8; RECORD_BYTES_MAX],
}

#[map]
pub static SCRATCH: Array<Scratch> = Array::with_max_entries(1, 0);

/// The allocation probes' separate ring: a busy allocator costs no
/// samples. User space sets the size of this map and the maps below.
#[map]
pub static HEAP_RING: RingBuf = RingBuf::with_byte_size(4096, 0);

/// User space replaces the settings word by word, and every mixture of old and new words is valid.
#[map]
pub static HEAP_SETTINGS: Array<HeapSettings> = Array::with_max_entries(1, 0);

/// Blocks whose free will be recorded.
#[map]
pub static HEAP_LIVE: HashMap<LiveKey, LiveBlock> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// Sites whose stack was recorded.
#[map]
pub static HEAP_SITES: LruHashMap<u64, u32> = LruHashMap::with_max_entries(1, 0);

/// Allocations under way, by thread id.
#[map]
pub static HEAP_PENDING: HashMap<u32, Pending> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// The last small allocation of a thread, where the program itself has the allocator, by thread id.
#[map]
pub static HEAP_SMALL_CALL: LruHashMap<u32, SmallCall> = LruHashMap::with_max_entries(1, 0);

/// Where code lies, by thread group id.
#[map]
pub static HEAP_TEXT: HashMap<u32, ProcessText> = HashMap::with_max_entries(1, BPF_F_NO_PREALLOC);

/// Whether allocations are followed.
#[unsafe(no_mangle)]
static HEAP: u32 = 0;

/// One of `locality_common::config::mode`.
#[unsafe(no_mangle)]
static MODE: u32 = 0;

/// Our own process: never a target.
#[unsafe(no_mangle)]
static OWN_TGID: u32 = 0;

/// Inode number of the pid namespace in which user space counts processes; 0 for the initial one.
#[unsafe(no_mangle)]
static NAMESPACE: u32 = 0;

/// Whole stack pages to copy after the first partial page.
#[unsafe(no_mangle)]
static STACK_PAGES: u32 = 8;

#[unsafe(no_mangle)]
pub static OFFSETS: KernelOffsets = KernelOffsets {
    task_pid: 0,
    task_tgid: 0,
    task_start_boottime: 0,
    task_voluntary_switches: 0,
    task_involuntary_switches: 0,
    task_ptrace: 0,
    task_sighand: 0,
    task_signal: 0,
    task_blocked: 0,
    task_pending: 0,
    task_cpu_ns: 0,
    signal_shared_pending: 0,
    signal_cpu_ns: 0,
    sighand_action: 0,
    k_sigaction_bytes: 0,
    task_thread_pid: 0,
    signal_pids: 0,
    pid_level: 0,
    pid_numbers: 0,
    upid_bytes: 0,
    upid_nr: 0,
    upid_ns: 0,
    pid_namespace_inum: 0,
};

macro_rules! setting {
    ($name:ident, $global:ident, $type:ty) => {
        pub fn $name() -> $type {
            // SAFETY: the global is valid for reads; volatile, because user space replaces the
            // value after compilation.
            unsafe { core::ptr::read_volatile(&raw const $global) }
        }
    };
}
setting!(mode, MODE, u32);
setting!(own_tgid, OWN_TGID, u32);
setting!(namespace, NAMESPACE, u32);
setting!(stack_pages, STACK_PAGES, u32);
setting!(heap, HEAP, u32);

/// One of the kernel field offsets.
macro_rules! offset {
    ($field:ident) => {
        // SAFETY: the global is valid for reads; volatile, because user space replaces the value
        // after compilation.
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::OFFSETS.$field) }
    };
}
pub(crate) use offset;
