//! The eBPF object: loading, settings and maps.

use std::{
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, RawFd},
    sync::Arc,
};

use anyhow::{Context, Result};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, Map, MapData, PerCpuArray, RingBuf},
    programs::{PerfEvent, RawTracePoint, raw_trace_point::RawTracePointLink},
};
use aya_obj::generated::{bpf_cmd, bpf_map_type};
use locality_common::{
    config::{CGROUPS_MAX, CgroupTarget, KernelOffsets, mode},
    counter,
    heap::{HeapSettings, LiveBlock, LiveKey, ProcessText},
    record::{HeldThread, Meter, WatchKey, WatchState, WatchedWords},
};

use super::{
    proc,
    sources::counters::Counters,
    uprobe::{self, Programs},
    verifier::refusal,
};

/// The compiled object: prebuilt, or rebuilt by the build script when the sources differ.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/locality.bpf.o"));

/// SHA-256 of the compiled object, hexadecimal.
pub const SHA256: &str = env!("LOCALITY_OBJECT_SHA256");

/// Threads measured by the kernel side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Filter {
    /// The processes in the target map, with forks.
    Processes,
    /// The given cgroups and all cgroups below.
    Cgroups(Vec<CgroupTarget>),
    /// Everyone in our pid namespace but us.
    All,
}

/// Sizes of the maps for followed allocations: bytes of
/// the ring; blocks, sites, threads (twice), processes.
const HEAP_MAPS: [(&str, u32); 6] = [
    ("HEAP_RING", 8 << 20),
    ("HEAP_LIVE", HEAP_BLOCKS_MAX),
    ("HEAP_SITES", 1 << 14),
    ("HEAP_PENDING", 1 << 14),
    ("HEAP_SMALL_CALL", 1 << 14),
    ("HEAP_TEXT", 1 << 14),
];

/// Programs that run at events.
const AT_EVENTS: [&str; 3] = ["sample", "touch", "meter"];

/// Programs for births and deaths of threads, with tracepoints.
const AT_LIFECYCLE: [(&str, &str); 3] = [
    ("thread_fork", "sched_process_fork"),
    ("process_exec", "sched_process_exec"),
    ("thread_exit", "sched_process_exit"),
];

/// Most threads with accesses counted at once.
pub const COUNTED_MAX: u32 = 1024;

/// The `bpf_attr` of commands on a map's element.
#[repr(C)]
struct ElementAttr {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Most live blocks known to the kernel side, of all processes.
pub const HEAP_BLOCKS_MAX: u32 = 1 << 17;

/// The kernel side's counters, by index in `counter`.
pub type EventCounts = [u64; counter::COUNT as usize];

/// The loaded object. Dropping it unloads the programs.
pub struct Object {
    ebpf: Ebpf,
    targets: HashMap<MapData, u32, u32>,
    spared: HashMap<MapData, u32, u32>,
    held: HashMap<MapData, u32, HeldThread>,
    watches: HashMap<MapData, WatchKey, WatchState>,
    watched: HashMap<MapData, u32, WatchedWords>,
    /// Copy of the content of `watched`.
    watched_words: std::collections::HashMap<u32, WatchedWords>,
    meters: HashMap<MapData, u32, Meter>,
    counted: HashMap<MapData, u32, u32>,
    access_events: MapData,
    heartbeat: Array<MapData, u64>,
    counters: PerCpuArray<MapData, u64>,
    lifecycle: Vec<RawTracePointLink>,
}

/// Programs and maps that follow allocations, for the driving thread.
pub struct HeapObject {
    /// The programs.
    pub programs: Arc<Programs>,
    /// Records of the programs.
    pub ring: Ring,
    settings: Array<MapData, HeapSettings>,
    live: HashMap<MapData, LiveKey, LiveBlock>,
    text: HashMap<MapData, u32, ProcessText>,
    sites: HashMap<MapData, u64, u32>,
    counters: PerCpuArray<MapData, u64>,
}

impl std::fmt::Debug for HeapObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeapObject").field("programs", &self.programs).finish_non_exhaustive()
    }
}

impl HeapObject {
    fn load(ebpf: &mut Ebpf) -> Result<Self> {
        let maps: std::collections::HashMap<String, RawFd> = ebpf
            .maps()
            .filter_map(|(name, map)| Some((name.to_owned(), map_data(map)?.fd().as_fd().as_raw_fd())))
            .collect();
        let programs = Arc::new(Programs::load(OBJECT, &maps)?);
        // The counters are read by the capture thread too.
        let counters = ebpf.map("COUNTERS").and_then(map_data).context("map COUNTERS missing")?;
        let counters = MapData::from_fd(counters.fd().as_fd().try_clone_to_owned()?)?;
        let mut take = |name: &str| ebpf.take_map(name).with_context(|| format!("map {name} missing"));
        Ok(Self {
            programs,
            ring: RingBuf::try_from(take("HEAP_RING")?)?,
            settings: Array::try_from(take("HEAP_SETTINGS")?)?,
            live: HashMap::try_from(take("HEAP_LIVE")?)?,
            text: HashMap::try_from(take("HEAP_TEXT")?)?,
            sites: HashMap::try_from(take("HEAP_SITES")?)?,
            counters: PerCpuArray::try_from(Map::PerCpuArray(counters))?,
        })
    }

    /// Changes the probes' settings.
    pub fn set(&mut self, settings: HeapSettings) -> Result<()> {
        Ok(self.settings.set(0, settings, 0)?)
    }

    /// Sets the address range of a process's code.
    pub fn set_text(&mut self, pid: u32, text: ProcessText) -> Result<()> {
        Ok(self.text.insert(pid, text, 0)?)
    }

    /// Adds a block without a probed allocation: a copy of the parent process's block.
    pub fn add_block(&mut self, pid: u32, address: u64, block: LiveBlock) -> Result<()> {
        Ok(self.live.insert(LiveKey { address, tgid: pid, reserved: 0 }, block, 0)?)
    }

    /// Forgets a block; the block's free is no longer followed.
    pub fn forget_block(&mut self, pid: u32, address: u64) {
        // Absent when the free came first.
        let _ = self.live.remove(&LiveKey { address, tgid: pid, reserved: 0 });
    }

    /// Forgets a site without a stored stack: the next
    /// allocation at the site reports the stack again.
    pub fn forget_site(&mut self, site: u64) {
        // Absent if the kernel has forgotten the thread meanwhile.
        let _ = self.sites.remove(&site);
    }

    /// All counters, summed over CPUs.
    pub fn counters(&self) -> Result<EventCounts> {
        sums(&self.counters)
    }

    /// An entry of the map.
    pub fn counter(&self, index: u32) -> Result<u64> {
        sum(&self.counters, index)
    }

    /// A process is gone.
    pub fn forget_process(&mut self, pid: u32) {
        // Absent for a process without found text.
        let _ = self.text.remove(&pid);
    }
}

/// Data of a map, for the kinds of maps in the object.
fn map_data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::PerCpuArray(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerfEventArray(data)
        | Map::RingBuf(data) => Some(data),
        _ => None,
    }
}

/// The `bpf_attr` of `BPF_MAP_CREATE` up to the last used field.
#[repr(C)]
struct CreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

/// Replaces an array of events for the CPUs, the only size made by aya,
/// by an array with room for all counters. No program is loaded yet.
/// Instructions name the map by the descriptor, which does not change.
fn widen(map: &MapData) -> std::io::Result<()> {
    let map_type = bpf_map_type::BPF_MAP_TYPE_PERF_EVENT_ARRAY as u32;
    let mut attr = CreateAttr { map_type, key_size: 4, value_size: 4, max_entries: 2 * COUNTED_MAX };
    let wide = uprobe::bpf(bpf_cmd::BPF_MAP_CREATE, &mut attr)?;
    // SAFETY: both descriptors are open and ours; the second
    // now refers to the new map, and is closed by the owner.
    match unsafe { libc::dup3(wide.as_raw_fd(), map.fd().as_fd().as_raw_fd(), libc::O_CLOEXEC) } {
        ..0 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Counters summed over CPUs.
fn sums(counters: &PerCpuArray<MapData, u64>) -> Result<EventCounts> {
    let mut sums = [0; counter::COUNT as usize];
    for (index, total) in (0..).zip(&mut sums) {
        *total = sum(counters, index)?;
    }
    Ok(sums)
}

fn sum(counters: &PerCpuArray<MapData, u64>, index: u32) -> Result<u64> {
    Ok(counters.get(&index, 0)?.iter().sum())
}

/// Records of the ring buffer; taken once by the capture thread.
pub type Ring = RingBuf<MapData>;

impl Object {
    /// Loads programs and maps; attaches nothing yet.
    pub fn load(filter: &Filter, offsets: &KernelOffsets) -> Result<(Self, Ring)> {
        let (object, ring, _) = Self::load_with(filter, offsets, false)?;
        Ok((object, ring))
    }

    /// As [`Object::load`], with programs that follow
    /// allocations if `heap`, or the reason for the absence.
    pub fn load_with(
        filter: &Filter,
        offsets: &KernelOffsets,
        heap: bool,
    ) -> Result<(Self, Ring, Option<Result<HeapObject>>)> {
        let mode = match filter {
            Filter::Processes => mode::PROCESSES,
            Filter::Cgroups(_) => mode::CGROUPS,
            Filter::All => mode::ALL,
        };
        let cpus = aya::util::nr_cpus().map_err(|(_, error)| error).context("cannot count the CPUs")?;
        let own = std::process::id();
        // Ids belong to our own namespace everywhere but in the kernel.
        let namespace = proc::pid_namespace().filter(|inode| *inode != proc::FIRST_PID_NAMESPACE);
        let namespace = u32::try_from(namespace.unwrap_or(0)).context("the inode of the pid namespace")?;
        let mut loader = EbpfLoader::new();
        for (name, entries) in HEAP_MAPS.iter().filter(|_| heap) {
            loader.map_max_entries(name, *entries);
        }
        let followed = u32::from(heap);
        let mut ebpf = loader
            .override_global("MODE", &mode, true)
            .override_global("HEAP", &followed, true)
            .override_global("OWN_TGID", &own, true)
            .override_global("NAMESPACE", &namespace, true)
            .override_global("OFFSETS", offsets, true)
            .map_max_entries("SCRATCH", cpus as u32)
            .map_max_entries("COUNTED", COUNTED_MAX)
            .load(OBJECT)
            .context("the kernel refused the eBPF object")?;
        #[cfg(feature = "ebpf-log")]
        super::ebpf_log::start(&mut ebpf)?;
        let access_events =
            ebpf.map("ACCESS_EVENTS").and_then(map_data).context("map ACCESS_EVENTS missing")?;
        widen(access_events).context("cannot make the map of counters")?;
        for name in AT_EVENTS {
            let program: &mut PerfEvent = ebpf.program_mut(name).context("program missing")?.try_into()?;
            program.load().map_err(|error| refusal(name, error))?;
        }
        if let Filter::Cgroups(cgroups) = filter {
            let mut map: Array<_, CgroupTarget> =
                Array::try_from(ebpf.map_mut("CGROUPS").context("map missing")?)?;
            for (index, cgroup) in (0..CGROUPS_MAX).zip(cgroups) {
                map.set(index, *cgroup, 0)?;
            }
        }
        let heap = heap.then(|| HeapObject::load(&mut ebpf));
        let mut take = |name: &str| ebpf.take_map(name).with_context(|| format!("map {name} missing"));
        let ring = RingBuf::try_from(take("RING")?)?;
        let (targets, spared, held, watches, watched, meters, heartbeat, counters) = (
            HashMap::try_from(take("TARGETS")?)?,
            HashMap::try_from(take("SPARED")?)?,
            HashMap::try_from(take("HELD")?)?,
            HashMap::try_from(take("WATCHES")?)?,
            HashMap::try_from(take("WATCHED")?)?,
            HashMap::try_from(take("METERS")?)?,
            Array::try_from(take("HEARTBEAT")?)?,
            PerCpuArray::try_from(take("COUNTERS")?)?,
        );
        let (counted, Map::PerfEventArray(access_events)) =
            (HashMap::try_from(take("COUNTED")?)?, take("ACCESS_EVENTS")?)
        else {
            anyhow::bail!("map ACCESS_EVENTS is of another kind");
        };
        let (lifecycle, watched_words) = (Vec::new(), std::collections::HashMap::new());
        Ok((
            Self {
                ebpf,
                targets,
                spared,
                held,
                watches,
                watched,
                watched_words,
                meters,
                counted,
                access_events,
                heartbeat,
                counters,
                lifecycle,
            },
            ring,
            heap,
        ))
    }

    /// Has the start of programs with these names reported, also of processes that are no targets.
    ///
    /// # Errors
    /// There are too many, or the map is missing.
    pub fn report_debuggers(&mut self, names: &[String]) -> Result<()> {
        let mut map: HashMap<_, [u8; 16], u32> =
            HashMap::try_from(self.ebpf.map_mut("DEBUGGERS").context("map DEBUGGERS missing")?)?;
        for name in names {
            let mut comm = [0; 16];
            // The kernel's names end with a zero.
            comm.iter_mut().zip(name.bytes().take(15)).for_each(|(to, byte)| *to = byte);
            map.insert(comm, 1, 0)?;
        }
        Ok(())
    }

    /// Attaches the programs that follow births and deaths.
    pub fn attach_lifecycle(&mut self) -> Result<()> {
        for (name, tracepoint) in AT_LIFECYCLE {
            let program: &mut RawTracePoint =
                self.ebpf.program_mut(name).context("program missing")?.try_into()?;
            program.load().map_err(|error| refusal(name, error))?;
            let link = program
                .attach(tracepoint)
                .with_context(|| format!("cannot attach to the tracepoint {tracepoint}"))?;
            self.lifecycle.push(program.take_link(link)?);
        }
        Ok(())
    }

    /// Detaches the programs that follow births and deaths.
    pub fn detach_lifecycle(&mut self) {
        // Dropping a link detaches the program.
        self.lifecycle.clear();
    }

    fn program(&self, name: &str) -> Result<&PerfEvent> {
        Ok(self.ebpf.program(name).context("program missing")?.try_into()?)
    }

    /// Descriptor of a loaded perf-event program ("sample", "touch", "meter").
    pub fn program_fd(&self, name: &str) -> Result<BorrowedFd<'_>> {
        Ok(self.program(name)?.fd()?.as_fd())
    }

    /// Makes a process a target.
    pub fn add_target(&mut self, pid: u32) -> Result<()> {
        Ok(self.targets.insert(pid, 1, 0)?)
    }

    /// Excludes a process from the targets of a cgroup or of the whole
    /// system: `why` is a value of `locality_common::config::spared`.
    pub fn spare(&mut self, pid: u32, why: u32) -> Result<()> {
        Ok(self.spared.insert(pid, why, 0)?)
    }

    /// Undoes [`Object::spare`].
    pub fn unspare(&mut self, pid: u32) {
        // The kernel side removes the entries of dead processes itself.
        let _ = self.spared.remove(&pid);
    }

    /// Removes a process from the targets.
    pub fn remove_target(&mut self, pid: u32) {
        // Absent when the process was never listed.
        let _ = self.targets.remove(&pid);
    }

    /// Allows the kernel side to stop a thread.
    pub fn hold(&mut self, tid: u32, start_ticks: u64) -> Result<()> {
        Ok(self.held.insert(tid, HeldThread { start_ticks, ..HeldThread::default() }, 0)?)
    }

    /// Undoes [`Object::hold`].
    pub fn unhold(&mut self, tid: u32) {
        // The kernel side removes the entries of dead threads itself.
        let _ = self.held.remove(&tid);
    }

    /// The newest stop requested in a thread: sequence of the sample, and signal.
    pub fn newest_stop(&self, tid: u32) -> Option<(u64, u32)> {
        self.held.get(&tid, 0).ok().map(|held| (held.sequence, held.signal))
    }

    /// Announces a watch, before the watch's events are armed.
    pub fn add_watch(&mut self, key: WatchKey, state: WatchState) -> Result<()> {
        let words = self.watched_words.entry(key.tgid).or_default();
        if let Some(free) = words.words.iter_mut().find(|word| **word == 0) {
            *free = key.address;
        }
        self.watched.insert(key.tgid, *words, 0)?;
        Ok(self.watches.insert(key, state, 0)?)
    }

    /// Forgets a watch, after the watch's events are disarmed.
    pub fn remove_watch(&mut self, key: &WatchKey) {
        // A watch is removed once; a second time is harmless, here and below.
        let _ = self.watches.remove(key);
        let Some(words) = self.watched_words.get_mut(&key.tgid) else { return };
        words.words.iter_mut().filter(|word| **word == key.address).for_each(|word| *word = 0);
        let _ = match *words == WatchedWords::default() {
            true => {
                self.watched_words.remove(&key.tgid);
                self.watched.remove(&key.tgid)
            }
            false => self.watched.insert(key.tgid, *words, 0),
        };
    }

    /// Sets the readings of a thread's meter, before the meter's event is armed.
    pub fn set_meter(&mut self, tid: u32, meter: &Meter) -> Result<()> {
        Ok(self.meters.insert(tid, meter, 0)?)
    }

    /// Undoes [`Object::set_meter`].
    pub fn remove_meter(&mut self, tid: u32) {
        // Absent for a thread never metered.
        let _ = self.meters.remove(&tid);
    }

    /// Has the kernel side read a thread's counters of accesses, at a place below
    /// [`COUNTED_MAX`], unique to the thread. The map keeps the counters open.
    pub fn count_accesses(&mut self, tid: u32, place: u32, counters: &Counters) -> Result<()> {
        for (index, event) in (2 * place..).zip([&counters.loads, &counters.stores]) {
            self.set_access_event(bpf_cmd::BPF_MAP_UPDATE_ELEM, index, event.as_raw_fd())?;
        }
        Ok(self.counted.insert(tid, 2 * place, 0)?)
    }

    /// Undoes [`Object::count_accesses`], and closes the counters.
    pub fn uncount_accesses(&mut self, tid: u32, place: u32) {
        // Absent if counting began only in part.
        let _ = self.counted.remove(&tid);
        for index in [2 * place, 2 * place + 1] {
            let _ = self.set_access_event(bpf_cmd::BPF_MAP_DELETE_ELEM, index, -1);
        }
    }

    /// aya's type for this kind of map is for ring buffers.
    fn set_access_event(&self, command: bpf_cmd, index: u32, event: RawFd) -> Result<()> {
        let (key, value) = (&raw const index as u64, &raw const event as u64);
        let map = self.access_events.fd().as_fd().as_raw_fd() as u32;
        uprobe::call(command, &mut ElementAttr { map, reserved: 0, key, value, flags: 0 })
            .context("the kernel did not take a counter")?;
        Ok(())
    }

    /// Reports that the freezer is alive at `now_ns`; 0 forbids stops at once.
    pub fn beat(&mut self, now_ns: u64) -> Result<()> {
        Ok(self.heartbeat.set(0, now_ns, 0)?)
    }

    /// All counters, summed over CPUs.
    pub fn counters(&self) -> Result<EventCounts> {
        sums(&self.counters)
    }

    /// An entry of the map.
    pub fn counter(&self, index: u32) -> Result<u64> {
        sum(&self.counters, index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_program_of_the_object_is_left_unloaded() {
        let object = aya_obj::Object::parse(OBJECT).unwrap();
        let mut all: Vec<&str> = object.programs.keys().map(String::as_str).collect();
        all.sort_unstable();
        let mut loaded: Vec<&str> = AT_EVENTS.to_vec();
        loaded.extend(AT_LIFECYCLE.map(|(name, _)| name));
        loaded.extend(uprobe::NAMES);
        loaded.sort_unstable();
        assert_eq!(all, loaded);
    }
}
