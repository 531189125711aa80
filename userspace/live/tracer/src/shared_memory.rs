//! Watched memory that other processes map too. A watch sees the touches of its own process alone,
//! so a reuse by another process is missed, and the report says how many uses that concerns and who
//! shares the memory.
//!
//! Not here: where an address lies (`locality_symbols`). Limits: who shares an object is looked for
//! when it is met for the first, second, fourth … time, [`LOOKS`] times in all; a second mapping of
//! it in the same process is not looked for.

use std::{collections::HashMap, fs, sync::Arc};

use locality_symbols::{Mapping, Mappings, Processes};

use locality_kernel::proc;

/// Looks at the mappings of all processes in a trace.
const LOOKS: u32 = 24;
/// Processes that are named.
const NAMED: usize = 3;

/// What several processes map: a file, or memory that the kernel gives a number as it does files.
type Key = ((u32, u32), u64, Arc<str>);

#[derive(Debug, Default)]
struct Shared {
    uses: u64,
    with: Vec<u32>,
}

/// What is known of shared memory.
#[derive(Debug, Default)]
pub struct Sharing {
    objects: HashMap<Key, Shared>,
    /// Mappings of processes, and which reading they are.
    mappings: HashMap<u32, (u64, Mappings)>,
    uses: u64,
    looks: u32,
    names: Vec<(u32, String)>,
}

/// For the report: watched uses whose memory another process maps, and all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedUses {
    /// Those.
    pub uses: u64,
    /// All.
    pub of: u64,
    /// Who shares, "process 12 (postgres)"; `NAMED` at most.
    pub with: Vec<String>,
    /// How many more share.
    pub more: usize,
}

impl Sharing {
    /// A use was watched at `address` of the process.
    pub fn watched(&mut self, processes: &Processes, pid: u32, address: u64) {
        self.uses += 1;
        let Some(mapping) = self.mapping(processes, pid, address).filter(|mapping| mapping.shared) else {
            return;
        };
        let key = (mapping.device, mapping.inode, mapping.path);
        let shared = self.objects.entry(key.clone()).or_default();
        shared.uses += 1;
        if shared.with.is_empty() && shared.uses.is_power_of_two() && self.looks < LOOKS {
            self.looks += 1;
            shared.with = sharers(&key, pid);
            for pid in &shared.with {
                if self.names.len() < NAMED && !self.names.iter().any(|(named, _)| named == pid) {
                    let name = proc::status(*pid).map(|status| status.name).unwrap_or_default();
                    self.names.push((*pid, format!("process {pid} ({name})")));
                }
            }
        }
    }

    /// A process is gone, or runs another program.
    pub fn forget(&mut self, pid: u32) {
        self.mappings.remove(&pid);
    }

    /// The sums so far.
    pub fn sums(&self) -> SharedUses {
        let shared = || self.objects.values().filter(|shared| !shared.with.is_empty());
        let all: std::collections::HashSet<u32> = shared().flat_map(|shared| &shared.with).copied().collect();
        SharedUses {
            uses: shared().map(|shared| shared.uses).sum(),
            of: self.uses,
            with: self.names.iter().map(|(_, name)| name.clone()).collect(),
            more: all.len().saturating_sub(self.names.len()),
        }
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

/// Other processes that map an object so that they see what `pid` writes.
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
    /// For the reader, where there are such uses.
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
        alone.watched(&processes, me, shared);
        alone.watched(&processes, me, private);
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
        alone.watched(&processes, me, shared);
        let sums = alone.sums();
        // SAFETY: our child, which was not waited for.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!((sums.uses, sums.of, sums.more), (2, 3, 0));
        let notice = sums.notice().unwrap();
        assert!(notice.contains(&format!("process {child} (")) && notice.contains("2 of 3"), "{notice}");
    }
}
