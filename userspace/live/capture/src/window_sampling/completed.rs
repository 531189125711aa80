//! The instruction that the thread had completed at the stop.
//!
//! A processor takes an interrupt between two instructions, once the oldest one under way
//! has completed. The CPU time in which a load waits for a line is found one instruction
//! after the load, where another object may be accessed; `locality-bpf calibrate` measures
//! the distance, the skid. Rutar and Hollingsworth ("Software Analysis Techniques to
//! Approximate Data Centric Direct Measurements", 2011, section 3.3.3, equations 6 to 8)
//! spread a sample over the preceding source lines. Here a loop comes by the place of the
//! stop again, and the window shows the instruction executed right before.
//!
//! Sources of error: the first round shown may take another way than the round before the
//! stop. A full store buffer delays instructions later than the next after the store.

use locality_stream::{Class, Event, Instruction, Kind};

use super::View;

/// Position, among the accesses of a window, of the load (else the access) of the instruction
/// executed right before the thread passes the place of the stop again. `None` if the window lacks
/// such an instruction, or the instruction accesses nothing.
pub(super) fn access(view: &View<'_>) -> Option<usize> {
    let first = view.events.first().filter(|event| event.kind == Kind::BLOCK)?;
    let stop = view.code.block(first.index).first()?;
    // An interrupted string instruction has not completed, and goes on at the stop.
    if Instruction::classify(stop).class == Class::String {
        return None;
    }
    let mut before: Option<(Block<'_>, usize)> = None;
    let mut made = 0;
    for (number, block) in view.events.chunk_by(|_, next| next.kind != Kind::BLOCK).enumerate() {
        let block = Block::of(view, block)?;
        let again = block.code().position(|address| address == stop.address).filter(|_| number > 0);
        match again {
            Some(0) => {
                let (block, made) = before?;
                return block.access(block.count().checked_sub(1)?).map(|at| made + at);
            }
            Some(place) => return block.access(place - 1).map(|at| made + at),
            None => {}
        }
        let accesses = block.accesses().count();
        before = Some((block, made));
        made += accesses;
    }
    None
}

/// An execution of a block.
struct Block<'a> {
    view: View<'a>,
    /// The first event of the instruction, and its accesses.
    events: &'a [Event],
}

impl<'a> Block<'a> {
    fn of(view: &View<'a>, events: &'a [Event]) -> Option<Self> {
        (events.first()?.kind == Kind::BLOCK).then_some(Self { view: *view, events })
    }

    fn index(&self) -> u32 {
        self.events.first().map_or(u32::MAX, |event| event.index)
    }

    /// Addresses of its instructions.
    fn code(&self) -> impl Iterator<Item = u64> + 'a {
        self.view.code.block(self.index()).iter().map(|instruction| instruction.address)
    }

    fn count(&self) -> usize {
        self.view.code.block(self.index()).len()
    }

    fn accesses(&self) -> impl Iterator<Item = &'a Event> {
        self.events.iter().filter(|event| event.kind.is_access())
    }

    /// Position, among the block's accesses, of the access by the
    /// instruction at `place`. Calls and returns wait for no data.
    fn access(&self, place: usize) -> Option<usize> {
        let first = self.view.code.blocks.get(self.index() as usize)?.first;
        let index = first.checked_add(u32::try_from(place).ok()?)?;
        let own = |event: &Event| event.index == index && !event.kind.is_flow();
        let load = self.accesses().position(|event| own(event) && !event.kind.is_store());
        load.or_else(|| self.accesses().position(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use locality_stream::{BlockRecord, Code, InstructionRecord};

    /// A loop of four instructions: a load of one array, a multiplication with another, an addition
    /// without access, and a jump back.
    const LOOP: [&[u8]; 4] = [
        &[0xf2, 0x0f, 0x10, 0x06], // movsd xmm0, [rsi]
        &[0xf2, 0x0f, 0x59, 0x07], // mulsd xmm0, [rdi]
        &[0xf2, 0x0f, 0x58, 0xc8], // addsd xmm1, xmm0
        &[0xeb, 0xf2],             // jmp
    ];

    fn code() -> Vec<InstructionRecord> {
        (0..).zip(LOOP).map(|(index, bytes)| InstructionRecord::new(0x1000 + 4 * index, bytes)).collect()
    }

    /// The whole loop, and the loop from each other instruction on.
    fn blocks() -> Vec<BlockRecord> {
        (0..4).map(|first| BlockRecord { first, count: 4 - first }).collect()
    }

    /// A window that begins at an instruction of the loop, with so many rounds after the first end.
    fn window(start: u32, rounds: u64) -> Vec<Event> {
        let round = |from: u32, number: u64| {
            let accesses = [
                Event::access(Kind::LOAD, 0, 0x10_0000 + 8 * number, 8),
                Event::access(Kind::LOAD, 1, 0x20_0000 + 8 * number, 8),
            ];
            let own = accesses.into_iter().filter(move |access| access.index >= from);
            std::iter::once(Event::new(Kind::BLOCK, from, 0)).chain(own)
        };
        round(start, 0).chain((1..=rounds).flat_map(|number| round(0, number))).collect()
    }

    fn completed(events: &[Event]) -> Option<(u32, u64)> {
        let (instructions, blocks) = (code(), blocks());
        let code = Code { instructions: &instructions, blocks: &blocks };
        let at = access(&View { events, values: &[], code })?;
        let event = events.iter().filter(|event| event.kind.is_access()).nth(at)?;
        Some((event.index, event.value))
    }

    #[test]
    fn a_round_shows_what_was_completed_at_the_stop() {
        // Stopped at the multiplication: the load before it, in the next round.
        assert_eq!(completed(&window(1, 3)), Some((0, 0x10_0008)));
        // Stopped at the addition: the multiplication.
        assert_eq!(completed(&window(2, 3)), Some((1, 0x20_0008)));
        // Stopped at the jump or at the loop's begin: neither an addition nor a jump accesses.
        assert_eq!(completed(&window(3, 3)), None);
        assert_eq!(completed(&window(0, 3)), None);
    }

    #[test]
    fn a_window_that_does_not_come_by_again_shows_nothing() {
        assert_eq!(completed(&window(1, 0)), None);
        assert_eq!(completed(&[]), None);
        assert_eq!(completed(&window(1, 3)[1..]), None);
        // The window ends before the load of the next round.
        assert_eq!(completed(&window(1, 1)[..3]), None);
    }

    #[test]
    fn an_instruction_at_the_end_of_the_block_before_counts() {
        // A load that jumps back by itself would end its block; here blocks are cut after each load.
        let instructions = code();
        let blocks: Vec<BlockRecord> = (0..4).map(|first| BlockRecord { first, count: 1 }).collect();
        let round = |number: u64| {
            [
                Event::new(Kind::BLOCK, 0, 0),
                Event::access(Kind::LOAD, 0, 0x10_0000 + 8 * number, 8),
                Event::new(Kind::BLOCK, 1, 0),
                Event::access(Kind::LOAD, 1, 0x20_0000 + 8 * number, 8),
            ]
        };
        let events: Vec<Event> = (0..3).flat_map(round).skip(2).collect();
        let code = Code { instructions: &instructions, blocks: &blocks };
        assert_eq!(access(&View { events: &events, values: &[], code }), Some(1));
    }
}
