//! One event of the stream. 16 bytes: four fit a cache line,
//! and a buffer of events lives in the second-level cache.
//!
//! The source fills `what` (everything but `value`) from a template made when the code was
//! translated: a memory callback stores two words. There is no event per executed instruction: a
//! block event names the block, whose instructions are known ([`crate::Code`]). A block that ends
//! early (a fault, a signal) has executed fewer of them; the stream does not say how many unless
//! the source adds a [`Kind::BLOCK_CUT`].
//!
//! Calls and returns are accesses: a call stores its return address, a return loads it, and both
//! thereby tell the stack pointer. A source that leaves block events out therefore still gives
//! calling contexts.

use crate::arena::Plain;

/// Index that stands for no known instruction.
pub const NO_INSTRUCTION: u32 = u32::MAX;

/// What an event tells. A number rather than an enumeration, since events may come out of another
/// process' memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Kind(pub u8);

impl Kind {
    /// `value`: address; `size`: bytes; `index`: instruction.
    pub const LOAD: Kind = Kind(0);
    /// As [`Kind::LOAD`]. An atomic read-modify-write is a load and a store.
    pub const STORE: Kind = Kind(1);
    /// The load of a return address by a near return.
    pub const RETURN: Kind = Kind(2);
    /// The store of a return address by a near call; an indirect call through memory makes a
    /// [`Kind::LOAD`] before it.
    pub const CALL: Kind = Kind(3);
    /// A block begins. `index`: block; `value`: the source's sequence number over all threads, 0
    /// where it keeps none.
    pub const BLOCK: Kind = Kind(4);
    /// The block that began last was left after `value` instructions.
    pub const BLOCK_CUT: Kind = Kind(5);
    /// A system call begins. `value`: its number.
    pub const SYSTEM_CALL: Kind = Kind(6);
    /// The events that follow, up to the next of this kind, are of thread `value`. The first event
    /// of a stream.
    pub const THREAD: Kind = Kind(7);
    /// Thread `value` has ended.
    pub const THREAD_END: Kind = Kind(8);
    /// A signal handler begins. `value`: signal number.
    pub const SIGNAL: Kind = Kind(9);
    /// A signal handler has returned.
    pub const SIGNAL_END: Kind = Kind(10);
    /// Begin of a phase marked by the program or the user. `value`: its number.
    pub const PHASE: Kind = Kind(11);
    /// `value` events are missing here.
    pub const LOST: Kind = Kind(12);
    /// Data objects lie elsewhere: the source's first `value` [`crate::Placement`]s hold from here on.
    pub const PLACED: Kind = Kind(13);
    /// `value` accesses were made here that are not in the stream, because their lines are not sampled.
    pub const SKIPPED: Kind = Kind(14);
    /// A near call whose store of the return address is not in the stream. `value`: address of the
    /// return address; `index`: instruction.
    pub const CALLED: Kind = Kind(15);
    /// A near return whose load of the return address is not in the stream. As [`Kind::CALLED`].
    pub const RETURNED: Kind = Kind(16);

    /// True for loads and stores, calls and returns included.
    #[inline(always)]
    pub fn is_access(self) -> bool {
        self.0 < 4
    }

    /// True for stores, of calls also.
    #[inline(always)]
    pub fn is_store(self) -> bool {
        self.0 & 1 == 1 && self.is_access()
    }

    /// True for the access that a call or a return makes to its return address.
    #[inline(always)]
    pub fn is_flow(self) -> bool {
        self.0 & 2 == 2 && self.is_access()
    }
}

/// One event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// Address, or what [`Kind`] says.
    pub value: u64,
    /// Index of the static instruction or block.
    pub index: u32,
    /// Bytes of an access, at least 1; else 0.
    pub size: u16,
    /// What the event tells.
    pub kind: Kind,
    /// Reserved, 0.
    pub flags: u8,
}

const _: () = assert!(size_of::<Event>() == 16);
// SAFETY: repr(C) without padding; every bit pattern is a value of each field.
unsafe impl Plain for Event {}

impl Event {
    /// An event other than an access.
    pub fn new(kind: Kind, index: u32, value: u64) -> Event {
        Event { value, index, size: 0, kind, flags: 0 }
    }

    /// An access of `size` bytes at `address` by the instruction `index`.
    pub fn access(kind: Kind, index: u32, address: u64, size: u16) -> Event {
        Event { value: address, index, size, kind, flags: 0 }
    }

    /// Everything but `value`, as the second of the two words that make up an event in memory.
    #[inline(always)]
    pub fn what(self) -> u64 {
        if cfg!(target_endian = "little") {
            // SAFETY: both are 16 bytes without padding. One load instead of four.
            let [_, what]: [u64; 2] = unsafe { std::mem::transmute(self) };
            return what;
        }
        u64::from(self.index)
            | u64::from(self.size) << 32
            | u64::from(self.kind.0) << 48
            | u64::from(self.flags) << 56
    }

    /// The event of these two words, the inverse of [`Event::what`].
    #[inline(always)]
    pub fn from_words(value: u64, what: u64) -> Event {
        let byte = |shift: u32| (what >> shift & 0xff) as u8;
        Event { value, index: what as u32, size: (what >> 32) as u16, kind: Kind(byte(48)), flags: byte(56) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_memory_image() {
        let event = Event { value: 0x1122, index: 0xa1b2_c3d4, size: 0x506, kind: Kind::CALL, flags: 9 };
        assert_eq!(Event::from_words(event.value, event.what()), event);
        // SAFETY: both are 16 bytes without padding.
        let words: [u64; 2] = unsafe { std::mem::transmute(event) };
        if cfg!(target_endian = "little") {
            assert_eq!(words, [event.value, event.what()]);
        }
    }

    #[test]
    fn kinds_of_access() {
        for (kind, access, store, flow) in [
            (Kind::LOAD, true, false, false),
            (Kind::STORE, true, true, false),
            (Kind::RETURN, true, false, true),
            (Kind::CALL, true, true, true),
            (Kind::BLOCK, false, false, false),
            (Kind::BLOCK_CUT, false, false, false),
            (Kind::SYSTEM_CALL, false, false, false),
            (Kind::THREAD, false, false, false),
        ] {
            assert_eq!((kind.is_access(), kind.is_store(), kind.is_flow()), (access, store, flow));
        }
    }
}
