//! Writes a window's log. Not here: what is written ([`crate::machine`]).

use locality_stream::{Event, Kind};

use crate::window::Log;

/// The log's slices and how far they are filled.
pub(crate) struct Record<'a> {
    events: &'a mut [Event],
    values: &'a mut [u64],
    registers: &'a mut [[u64; 16]],
    pub(crate) event_count: usize,
    pub(crate) value_count: usize,
    pub(crate) block_count: usize,
}

impl<'a> Record<'a> {
    pub(crate) fn new(log: &'a mut Log<'_>) -> Record<'a> {
        Record {
            events: &mut *log.events,
            values: &mut *log.values,
            registers: &mut *log.registers,
            event_count: 0,
            value_count: 0,
            block_count: 0,
        }
    }

    /// Whether so many accesses fit, and the event that ends the window.
    #[inline(always)]
    pub(crate) fn has_room(&self, accesses: usize) -> bool {
        self.event_count + accesses < self.events.len() && self.value_count + accesses <= self.values.len()
    }

    /// An access; `what` as in [`Event::what`] less the index.
    #[inline(always)]
    pub(crate) fn access(&mut self, kind: Kind, index: u32, address: u64, size: u16, value: u64) {
        if let (Some(event), Some(slot)) =
            (self.events.get_mut(self.event_count), self.values.get_mut(self.value_count))
        {
            *event = Event::access(kind, index, address, size);
            *slot = value;
            self.event_count += 1;
            self.value_count += 1;
        }
    }

    /// A block begins; false without room for it.
    #[inline(always)]
    pub(crate) fn block(&mut self, block: u32, registers: [u64; 16]) -> bool {
        if !self.has_room(1) {
            return false;
        }
        let (Some(event), Some(slot)) =
            (self.events.get_mut(self.event_count), self.registers.get_mut(self.block_count))
        else {
            return false;
        };
        *event = Event::new(Kind::BLOCK, block, 0);
        *slot = registers;
        self.event_count += 1;
        self.block_count += 1;
        true
    }

    /// The last block was left after so many instructions.
    pub(crate) fn cut(&mut self, block: u32, instructions: u64) {
        if let Some(event) = self.events.get_mut(self.event_count) {
            *event = Event::new(Kind::BLOCK_CUT, block, instructions);
            self.event_count += 1;
        }
    }
}
