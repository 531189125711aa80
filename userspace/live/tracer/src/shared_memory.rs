//! Memory mapped by several processes. Traced processes are reported to the capture
//! thread, which watches a shared word in every sharing process. Processes without a
//! trace are named in the report, with a note that touches by these processes are unseen.
//!
//! Not here: finding an address's mapping (`locality_symbols`), and watches (`locality_capture`).
//! Limits: an object's sharers are read when the object is met, when a traced process comes or
//! goes, and at the object's second, fourth … use. Processes without a trace are looked for
//! [`LOOKS`] times in total. A second mapping of an object in one process is not looked for.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use locality_capture::{Overlap, Regions, SharedRegions};
use locality_symbols::{Mapping, Mappings, Processes};

use locality_kernel::{lock::lock, proc};

/// Looks at the mappings of all processes in a trace.
const LOOKS: u32 = 24;
/// Processes that are named.
const NAMED: usize = 3;
/// Traced processes whose mappings are compared.
const TRACED: usize = 64;
/// Pause after a comparison because a process came or
/// went, in times of the comparison, and the least pause.
const COMPARING_SHARE: u32 = 50;
const COMPARED_EVERY: Duration = Duration::from_millis(20);
/// Ranges of the table of one object.
const OVERLAPS: usize = 4096;

/// An object mapped by several processes: a file, or memory numbered by the kernel like a file.
type Key = ((u32, u32), u64, Arc<str>);

#[derive(Debug, Default)]
struct Shared {
    uses: u64,
    /// Further processes that map the object, traced or not.
    with: BTreeSet<u32>,
    /// Which set of traced processes was compared.
    compared: u64,
    overlaps: Vec<(u32, Overlap)>,
}

/// What is known of shared memory.
#[derive(Debug, Default)]
pub struct Sharing {
    objects: HashMap<Key, Shared>,
    /// Mappings of processes, and the number of their reading.
    mappings: HashMap<u32, (u64, Mappings)>,
    /// Traced processes, and how often that set changed.
    traced: BTreeSet<u32>,
    changes: u64,
    next_comparison: Option<Instant>,
    /// Where the capture thread looks.
    table: SharedRegions,
    uses: u64,
    unseen: u64,
    looks: u32,
    names: Vec<(u32, String)>,
    unnamed: BTreeSet<u32>,
}

/// For the report: watched uses in memory that another
/// process may touch unseen, and the total of uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedUses {
    /// Watched uses in memory that another process may touch unseen.
    pub uses: u64,
    /// Watched uses in total.
    pub of: u64,
    /// Who shares, "process 12 (postgres)"; `NAMED` at most.
    pub with: Vec<String>,
    /// How many more share.
    pub more: usize,
}

impl Sharing {
    /// Writes what traced processes share to `table`.
    pub fn new(table: SharedRegions) -> Self {
        Self { table, ..Self::default() }
    }

    /// A process is traced, or runs another program.
    pub fn begin(&mut self, pid: u32) {
        self.forget(pid);
        self.traced.insert(pid);
    }

    /// A process is gone.
    pub fn forget(&mut self, pid: u32) {
        self.mappings.remove(&pid);
        self.traced.remove(&pid);
        self.changes += 1;
        let mut was_shared = false;
        for shared in self.objects.values_mut() {
            was_shared |= shared.with.remove(&pid);
            shared.overlaps.retain(|(of, overlap)| *of != pid && overlap.other != pid);
        }
        if was_shared {
            self.publish();
        }
    }

    /// The process accesses `address`.
    pub fn met(&mut self, processes: &Processes, pid: u32, address: u64) {
        if let Some(key) = self.key(processes, pid, address) {
            self.compare(processes, &key, pid, false);
        }
    }

    /// A use was watched at `address` of the process, and touches by the processes `also_in` would
    /// have been seen.
    pub fn watched(&mut self, processes: &Processes, pid: u32, address: u64, also_in: &[(u32, u64)]) {
        self.uses += 1;
        let Some(key) = self.key(processes, pid, address) else { return };
        let shared = self.objects.entry(key.clone()).or_default();
        shared.uses += 1;
        let is_due = shared.uses.is_power_of_two();
        if is_due {
            self.look(&key, pid);
        }
        self.compare(processes, &key, pid, is_due);
        let Some(shared) = self.objects.get(&key) else { return };
        let is_seen = |other: &u32| *other == pid || also_in.iter().any(|(seen, _)| seen == other);
        let unseen: Vec<u32> = shared.with.iter().copied().filter(|other| !is_seen(other)).collect();
        self.unseen += u64::from(!unseen.is_empty());
        for other in unseen {
            let is_named = self.names.iter().any(|(named, _)| *named == other);
            if !is_named && self.names.len() < NAMED {
                let name = proc::status(other).map(|status| status.name).unwrap_or_default();
                self.names.push((other, format!("process {other} ({name})")));
            } else if !is_named {
                self.unnamed.insert(other);
            }
        }
    }

    /// The sums so far.
    pub fn sums(&self) -> SharedUses {
        SharedUses {
            uses: self.unseen,
            of: self.uses,
            with: self.names.iter().map(|(_, name)| name.clone()).collect(),
            more: self.unnamed.len(),
        }
    }

    /// The shared object at an address, if any.
    fn key(&mut self, processes: &Processes, pid: u32, address: u64) -> Option<Key> {
        let mapping = self.mapping(processes, pid, address).filter(|mapping| mapping.shared)?;
        Some(key_of(&mapping))
    }

    /// Searches all processes for mappings of an object.
    fn look(&mut self, key: &Key, pid: u32) {
        if self.looks < LOOKS {
            self.looks += 1;
            let found = sharers(key, pid);
            self.objects.entry(key.clone()).or_default().with.extend(found);
        }
    }

    /// Compares the mappings of an object by traced processes, unless none has changed since.
    fn compare(&mut self, processes: &Processes, key: &Key, pid: u32, anew: bool) {
        let changes = self.changes;
        let is_new = !self.objects.contains_key(key);
        let shared = self.objects.entry(key.clone()).or_default();
        let started = Instant::now();
        let is_allowed = self.next_comparison.is_none_or(|next| started >= next);
        if !(anew || is_new || (is_allowed && shared.compared != changes)) {
            return;
        }
        shared.compared = changes;
        let of_object = |other: u32| -> Vec<(u32, Mapping)> {
            // A process that has just ended has no mappings.
            let _ = processes.refresh(other);
            let mappings = processes.mappings(other).unwrap_or_default();
            let own = mappings.iter().filter(|mapping| mapping.shared && key_of(mapping) == *key);
            own.map(|mapping| (other, mapping.clone())).collect()
        };
        let others = self.traced.iter().copied().filter(|other| *other != pid).take(TRACED);
        let all: Vec<(u32, Mapping)> = std::iter::once(pid).chain(others).flat_map(of_object).collect();
        let pairs = all.iter().flat_map(|one| all.iter().map(move |other| (one, other)));
        let overlaps: Vec<(u32, Overlap)> = pairs
            .filter(|((of, _), (other, _))| of != other)
            .filter_map(|((of, one), (other, there))| Some((*of, overlap(one, *other, there)?)))
            .take(OVERLAPS)
            .collect();
        shared.with.extend(overlaps.iter().flat_map(|(of, overlap)| [*of, overlap.other]));
        if shared.overlaps != overlaps {
            shared.overlaps = overlaps;
            self.publish();
        }
        let pause = (started.elapsed() * COMPARING_SHARE).max(COMPARED_EVERY);
        self.next_comparison = Some(Instant::now() + pause);
    }

    fn publish(&self) {
        let all = self.objects.values().flat_map(|shared| shared.overlaps.iter().copied());
        let regions = Regions::new(all);
        // The old table is freed after the lock.
        let _old = std::mem::replace(&mut *lock(&self.table), regions);
    }

    fn mapping(&mut self, processes: &Processes, pid: u32, address: u64) -> Option<Mapping> {
        let known = self.mappings.entry(pid).or_default();
        let found = |known: &(u64, Mappings)| known.1.find(address).cloned();
        if known.0 == processes.readings(pid)
            && let Some(mapping) = found(known)
        {
            return Some(mapping);
        }
        if known.0 == processes.readings(pid) {
            // Mapped since.
            let _ = processes.refresh(pid);
        }
        *known = (processes.readings(pid), processes.mappings(pid).unwrap_or_default());
        found(known)
    }
}

fn key_of(mapping: &Mapping) -> Key {
    (mapping.device, mapping.inode, Arc::clone(&mapping.path))
}

/// The addresses of `one` with memory also in `there`, another process's mapping of the object.
fn overlap(one: &Mapping, other: u32, there: &Mapping) -> Option<Overlap> {
    let end = |mapping: &Mapping| mapping.offset.saturating_add(mapping.end - mapping.start);
    let (from, to) = (one.offset.max(there.offset), end(one).min(end(there)));
    let start = one.start + (from - one.offset);
    (from < to).then(|| Overlap {
        start,
        end: start + (to - from),
        other,
        there: there.start + (from - there.offset),
    })
}

/// Further processes with a mapping of an object that shows writes by `pid`.
fn sharers((device, inode, path): &Key, pid: u32) -> Vec<u32> {
    let number = format!(" {:02x}:{:02x} {inode} ", device.0, device.1);
    let has = |other: &u32| {
        let text = fs::read(format!("/proc/{other}/maps")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        text.lines().any(|line| {
            let permissions = line.split(' ').nth(1).unwrap_or_default();
            permissions.ends_with('s') && line.contains(&number) && line.ends_with(&**path)
        })
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let others = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    others.filter(|other| *other != pid && *other != std::process::id()).filter(has).collect()
}

impl SharedUses {
    /// A notice, if such uses exist.
    pub fn notice(&self) -> Option<String> {
        let Self { uses, of, with, more } = self;
        let mut with = with.join(", ");
        if *more > 0 {
            with = format!("{with} and {more} more");
        }
        (*uses > 0).then(|| {
            format!(
                "Touches of shared memory by other processes are not seen: {uses} of {of} watched uses lay in memory that {with} \
                 may touch too, so their next touch may come sooner than this report says, and by that process."
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_a_child_maps_is_shared_and_other_memory_is_not() {
        let page = 4096;
        let map = |flags| {
            // SAFETY: a new anonymous mapping, placed by the kernel.
            unsafe { libc::mmap(std::ptr::null_mut(), page, 3, flags | libc::MAP_ANONYMOUS, -1, 0) as u64 }
        };
        let (shared, private) = (map(libc::MAP_SHARED), map(libc::MAP_PRIVATE));
        let me = std::process::id();
        let processes = Processes::new();
        processes.attach(me).unwrap();
        let mut alone = Sharing::default();
        alone.watched(&processes, me, shared, &[]);
        alone.watched(&processes, me, private, &[]);
        assert_eq!((alone.sums().uses, alone.sums().of), (0, 2));
        assert_eq!(alone.sums().notice(), None);
        // SAFETY: the child only waits for its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: as above.
                unsafe { libc::pause() };
            }
        }
        // The second time, somebody is there.
        alone.watched(&processes, me, shared, &[]);
        // Traced processes find each other.
        processes.attach(child as u32).unwrap();
        alone.begin(me);
        alone.begin(child as u32);
        alone.next_comparison = None;
        alone.met(&processes, me, shared);
        let elsewhere = lock(&alone.table).elsewhere(me, shared + 8);
        alone.watched(&processes, me, shared, &[(child as u32, shared)]);
        alone.forget(child as u32);
        let after = lock(&alone.table).elsewhere(me, shared + 8);
        let sums = alone.sums();
        // SAFETY: our child, which was not waited for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(elsewhere, [(child as u32, shared + 8)]);
        assert!(after.is_empty());
        // The use before the child was there, and the one that was seen there, are not among them.
        assert_eq!((sums.uses, sums.of, sums.more), (1, 4, 0));
        let notice = sums.notice().unwrap();
        assert!(notice.contains(&format!("process {child} (")) && notice.contains("1 of 4"), "{notice}");
    }

    #[test]
    fn mappings_overlap_by_their_place_in_the_object() {
        let mapping = |start, end, offset| {
            let maps = format!("{start:x}-{end:x} rw-s {offset:08x} 00:01 77 /dev/zero\n");
            Mappings::parse(maps.as_bytes()).iter().next().unwrap().clone()
        };
        let (one, other) = (mapping(0x10_000, 0x14_000, 0x2000), mapping(0x90_000, 0x93_000, 0x4000));
        let found = overlap(&one, 5, &other);
        assert_eq!(found, Some(Overlap { start: 0x12_000, end: 0x14_000, other: 5, there: 0x90_000 }));
        let back = overlap(&other, 4, &one);
        assert_eq!(back, Some(Overlap { start: 0x90_000, end: 0x92_000, other: 4, there: 0x12_000 }));
        assert_eq!(overlap(&one, 5, &mapping(0x90_000, 0x93_000, 0x6000)), None);
    }
}
