//! The armed watchpoints: perf events in threads, and the entry in the kernel's watch map.
//!
//! A watch is announced in the map before its first event is armed and forgotten after the last is
//! closed, so a trap always finds its watch. Not here: allocation of registers
//! (`locality_arbiter`).

use std::{collections::HashMap, io, os::fd::BorrowedFd};

use locality_common::{
    record::{WatchKey, WatchState},
    rules::phase,
};

use super::{
    events::{Reuse, Trap},
    ring_events::TracerTime,
};
use locality_kernel::perf::Event as PerfEvent;

/// Bytes covered by one watchpoint.
pub const WATCH_BYTES: u8 = 8;

/// The watch that a companion belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Followed {
    /// Its number.
    pub id: u64,
    /// Its word.
    pub word: u64,
}

/// Most touches by the kernel that a watch passes over; the next one ends it, without a reuse. Each
/// costs a trap, and where the kernel copies byte by byte a copied word has eight.
const PASSES: u64 = 64;

/// Another process in which a watch is armed, since both map the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guest {
    /// The process.
    pub tgid: u32,
    /// The word's address there.
    pub address: u64,
    /// CPU time of the process when the watch was armed there.
    pub cpu_ns: u64,
}

/// One armed watch.
#[derive(Debug)]
pub struct Watch {
    /// Number, unique in the run.
    pub id: u64,
    /// Its process.
    pub tgid: u32,
    /// Watched word.
    pub address: u64,
    /// Executed instructions of the owner that touch the word before the use.
    pub earlier: u32,
    /// The thread whose next touch is the use; 0 when any thread's is (armed without a stop).
    pub owner: u32,
    /// No later interval of two alternating instructions may replace the one to the reuse; of one
    /// instruction only a similar interval.
    pub no_turns: bool,
    /// Touches by the kernel are passed over.
    pub user_only: bool,
    /// Time of these traps.
    pub passed_ns: u64,
    /// For a companion: the watch of the use's own word. The next touch is the reuse of the line.
    pub follows: Option<Followed>,
    /// The watch measures the cost of a trap (`trap_cost`), and nothing of the program.
    pub measures_trap: bool,
    /// Monotonic clock.
    pub armed_ns: u64,
    /// Chance of being armed.
    pub p_arm: f64,
    /// CPU time of the process when it was armed, for reuses in another thread.
    pub process_cpu_ns: u64,
    /// Threads alive when it was armed.
    pub threads_alive: u32,
    /// Threads in which the watch was ever armed.
    pub threads_armed: u32,
    /// The use, once it trapped, and what we had taken of the thread then.
    pub used: Option<(Box<Trap>, TracerTime)>,
    /// The reuse, while touches after it are awaited.
    pub reused: Option<(Reuse, TracerTime)>,
    /// After that, the next touch by the using instruction, if another instruction made the reuse.
    pub used_again: Option<(Box<Trap>, TracerTime)>,
    /// Other traced processes that map the word, until the watch is armed there.
    pub elsewhere: Vec<(u32, u64)>,
    /// Other processes with the watch armed.
    pub guests: Vec<Guest>,
    events: Vec<(u32, PerfEvent)>,
}

impl Watch {
    /// A watch without events.
    pub fn new(id: u64, tgid: u32, address: u64, earlier: u32, owner: u32) -> Self {
        Self {
            id,
            tgid,
            address,
            earlier,
            owner,
            no_turns: false,
            user_only: false,
            passed_ns: 0,
            follows: None,
            measures_trap: false,
            armed_ns: 0,
            p_arm: 1.0,
            process_cpu_ns: 0,
            threads_alive: 1,
            threads_armed: 0,
            used: None,
            reused: None,
            used_again: None,
            elsewhere: Vec::new(),
            guests: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Whether the watch waits for a touch after the use of the watch with this number.
    pub fn is_behind(&self, id: u64) -> bool {
        self.follows.is_some_and(|followed| followed.id == id)
    }

    /// Key of the kernel's watch map.
    pub fn key(&self) -> WatchKey {
        WatchKey { address: self.address, tgid: self.tgid, reserved: 0 }
    }

    /// Value of the kernel's watch map when the watch is armed.
    pub fn state(&self) -> WatchState {
        WatchState {
            watch: self.id,
            phase: match (self.follows, self.earlier) {
                (Some(_), _) => phase::USED,
                (None, 0) => phase::ARMED,
                (None, earlier) => phase::EARLIER + u64::from(earlier),
            },
            owner_tid: self.owner,
            no_turns: u32::from(self.no_turns),
            follows: self.follows.map_or(0, |followed| followed.word),
            passes: if self.user_only { PASSES } else { 0 },
            ..WatchState::default()
        }
    }

    /// Arms it in a thread until `traps` traps were counted, at once or with a stopped thread's `starter`.
    pub fn arm_in(
        &mut self,
        tid: u32,
        traps: u32,
        program: BorrowedFd<'_>,
        starter: Option<&PerfEvent>,
    ) -> io::Result<()> {
        let event = PerfEvent::watchpoint(tid, self.address, WATCH_BYTES, starter)?;
        event.set_program(program)?;
        event.enable_for(traps)?;
        self.events.push((tid, event));
        self.threads_armed += 1;
        Ok(())
    }

    /// Arms the watch in threads of another process, whose next touch after the use is the reuse;
    /// false if the kernel refused in all of them.
    pub fn arm_guest(&mut self, guest: Guest, threads: &[u32], program: BorrowedFd<'_>) -> bool {
        let armed_before = self.events.len();
        for tid in threads {
            let event = PerfEvent::watchpoint(*tid, guest.address, WATCH_BYTES, None).and_then(|event| {
                event.set_program(program)?;
                event.enable_for(1)?;
                Ok(event)
            });
            match event {
                Ok(event) => self.events.push((*tid, event)),
                Err(error) => tracing::trace!("not armed in thread {tid} of process {}: {error}", guest.tgid),
            }
        }
        let is_armed = self.events.len() > armed_before;
        if is_armed {
            self.guests.push(guest);
        }
        is_armed
    }

    /// Disarms the watch in one thread.
    pub fn disarm_in(&mut self, tid: u32) {
        self.events.retain(|(in_tid, _)| *in_tid != tid);
    }

    /// Disarms it everywhere.
    pub fn disarm(&mut self) {
        self.events.clear();
    }
}

/// Live watches by number.
#[derive(Debug, Default)]
pub struct Watches {
    live: HashMap<u64, Watch>,
    last_id: u64,
}

impl Watches {
    /// A number that no watch had.
    pub fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Adds a watch.
    pub fn insert(&mut self, watch: Watch) {
        self.live.insert(watch.id, watch);
    }

    /// A live watch.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Watch> {
        self.live.get_mut(&id)
    }

    /// Takes a watch out.
    pub fn remove(&mut self, id: u64) -> Option<Watch> {
        self.live.remove(&id)
    }

    /// The companions of a process' watches, and its measurement of traps.
    pub fn companions(&self, tgid: u32) -> Vec<u64> {
        let is_one = |watch: &&Watch| watch.tgid == tgid && (watch.follows.is_some() || watch.measures_trap);
        let companions = self.live.values().filter(is_one);
        companions.map(|watch| watch.id).collect()
    }

    /// All live watches.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Watch> {
        self.live.values_mut()
    }
}
