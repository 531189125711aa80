//! What lies where in the memory that the tracer and the window process share. Not here: how it is
//! read and written ([`super::shared`]).

use std::marker::PhantomData;

use locality_isa::Registers;
use locality_stream::{BlockRecord, Event, InstructionRecord, Plain};

use crate::memory::PAGE;
use crate::window::Counts;

/// Longest saved vector state: with AMX it is 11,008 bytes (CPUID leaf 13).
pub(super) const MOST_EXTENDED: usize = 16 << 10;
/// Most ranges of a process' map; the kernel's default allows 65,530 mappings.
pub(super) const MOST_RANGES: usize = 1 << 16;
pub(super) const WORD: usize = size_of::<u64>();

/// How much a window and the code tables may hold; each is a number of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Events of a window.
    pub events: u32,
    /// Accesses of a window.
    pub values: u32,
    /// Blocks begun in a window.
    pub registers: u32,
    /// Static instructions of all processes.
    pub instructions: u32,
    /// Static blocks of all processes.
    pub blocks: u32,
}

impl Room {
    /// Room for windows of so many instructions: two accesses each at most, on average, and a block each.
    pub fn for_windows_of(instructions: u32) -> Room {
        let twice = instructions.saturating_mul(2);
        Room {
            events: twice.saturating_add(instructions),
            values: twice,
            registers: instructions,
            instructions: 1 << 20,
            blocks: 1 << 19,
        }
    }
}

/// What is asked of the window process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Ask {
    /// Execute a window.
    Run = 0,
    /// Take a new process, whose descriptor waits in the socket, and its ranges.
    Take = 1,
    /// Take new ranges of a process.
    Ranges = 2,
    /// Forget a process.
    Drop = 3,
    /// Nothing: for measuring.
    Nothing = 4,
}

/// A question, as plain data for shared memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Request {
    pub(super) key: u64,
    pub(super) instructions: u64,
    pub(super) pages: u64,
    pub(super) time_ns: u64,
    pub(super) registers: [u64; 20],
    pub(super) ask: u32,
    /// Bytes of vector state.
    pub(super) extended: u32,
    pub(super) ranges: u32,
    /// Of [`Ask::Ranges`]: 1 when what was decoded from text must be forgotten.
    pub(super) forget: u32,
}

/// An answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Answer {
    pub(super) counts: Counts,
    pub(super) registers: [u64; 20],
    /// Changes when the code tables start again from empty.
    pub(super) epoch: u64,
    /// Bytes of vector state.
    pub(super) extended: u32,
    /// 1 when the process' memory is gone: it has ended or executed another program.
    pub(super) gone: u32,
    /// Entries of the code tables.
    pub(super) instructions: u32,
    pub(super) blocks: u32,
    /// 0, or an error number.
    pub(super) error: u32,
    pub(super) unused: u32,
}

const _: () = assert!(size_of::<Request>() == 208 && size_of::<Answer>() == 240);
// SAFETY: repr(C) without padding, integers only.
unsafe impl Plain for Request {}
// SAFETY: as above.
unsafe impl Plain for Answer {}

/// Text that is fit for a log: what is not plain ASCII is a space.
pub(super) fn plain(bytes: &[u8]) -> String {
    let text = bytes.iter().map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { ' ' });
    text.collect::<String>().trim_end().to_owned()
}

/// Registers in a fixed order.
pub(super) fn flat(registers: &Registers) -> [u64; 20] {
    let mut flat = [0; 20];
    for (to, from) in flat.iter_mut().zip(registers.general()) {
        *to = from;
    }
    let [.., rip, rflags, fs_base, gs_base] = &mut flat;
    (*rip, *rflags, *fs_base, *gs_base) =
        (registers.rip, registers.rflags, registers.fs_base, registers.gs_base);
    flat
}

/// The inverse of [`flat`].
pub(super) fn unflat(flat: &[u64; 20]) -> Registers {
    let [general @ .., rip, rflags, fs_base, gs_base] = *flat;
    Registers { rip, rflags, fs_base, gs_base, ..Registers::of_general(general) }
}

/// `count` values of `T`, `offset` bytes from the start.
#[derive(Debug)]
pub(super) struct Section<T> {
    /// Bytes from the start of the memory.
    pub(super) offset: usize,
    /// Entries.
    pub(super) count: usize,
    of: PhantomData<T>,
}

impl<T> Clone for Section<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Section<T> {}

/// Positions of all parts. Both sides compute them from the same [`Room`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) request: Section<Request>,
    pub(super) request_extended: Section<u64>,
    pub(super) answer: Section<Answer>,
    pub(super) answer_extended: Section<u64>,
    pub(super) ranges: Section<[u64; 2]>,
    /// Last words of a window process that ends by its own fault: a length and text.
    pub(super) note: Section<u64>,
    pub(super) events: Section<Event>,
    pub(super) values: Section<u64>,
    pub(super) registers: Section<[u64; 16]>,
    pub(super) instructions: Section<InstructionRecord>,
    pub(super) blocks: Section<BlockRecord>,
    /// Bytes of the whole.
    pub(super) bytes: usize,
}

impl Layout {
    /// The layout for this room; each section begins a page.
    pub(super) fn new(room: &Room) -> Layout {
        fn next<T>(end: &mut usize, count: usize) -> Section<T> {
            let offset = *end;
            *end = (offset + count * size_of::<T>()).next_multiple_of(PAGE as usize);
            Section { offset, count, of: PhantomData }
        }
        // The first page holds the three words by which questions, answers and death are announced.
        let mut end = PAGE as usize;
        Layout {
            request: next(&mut end, 1),
            request_extended: next(&mut end, MOST_EXTENDED / WORD),
            answer: next(&mut end, 1),
            answer_extended: next(&mut end, MOST_EXTENDED / WORD),
            ranges: next(&mut end, MOST_RANGES),
            note: next(&mut end, PAGE as usize / WORD),
            events: next(&mut end, room.events as usize),
            values: next(&mut end, room.values as usize),
            registers: next(&mut end, room.registers as usize),
            instructions: next(&mut end, room.instructions as usize),
            blocks: next(&mut end, room.blocks as usize),
            bytes: end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_do_not_overlap() {
        let layout = Layout::new(&Room::for_windows_of(1 << 20));
        let ends = [
            (layout.request.offset, size_of::<Request>()),
            (layout.request_extended.offset, MOST_EXTENDED),
            (layout.answer.offset, size_of::<Answer>()),
            (layout.answer_extended.offset, MOST_EXTENDED),
            (layout.ranges.offset, MOST_RANGES * 16),
            (layout.note.offset, PAGE as usize),
            (layout.events.offset, layout.events.count * 16),
            (layout.values.offset, layout.values.count * 8),
            (layout.registers.offset, layout.registers.count * 128),
            (layout.instructions.offset, layout.instructions.count * 24),
            (layout.blocks.offset, layout.blocks.count * 8),
            (layout.bytes, 0),
        ];
        assert!(ends[0].0 >= 192);
        assert!(ends.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{ends:?}");
    }

    #[test]
    fn registers_keep_their_order() {
        let numbers: [u64; 20] = std::array::from_fn(|n| n as u64 + 1);
        let registers = unflat(&numbers);
        assert_eq!((registers.rax, registers.rbx, registers.rsp, registers.r15), (1, 4, 5, 16));
        assert_eq!((registers.rip, registers.rflags, registers.fs_base, registers.gs_base), (17, 18, 19, 20));
        assert_eq!(flat(&registers), numbers);
    }
}
