//! From events to a batch of accesses: where each stands in the program.

use locality_stream::{Arena, ArenaFull, Code, Event, Kind};

use super::{Scratch, State};
use crate::batch::{BATCH, bits, last_byte};
use crate::lanes::Lanes;

impl State {
    /// Takes all accesses of `chunk`, at most [`BATCH`] events, into the batch.
    #[inline(always)]
    pub(super) fn gather<A: Arena + ?Sized>(&mut self, arena: &A, chunk: &[Event], scratch: &mut Scratch) {
        let batch = &mut scratch.batch;
        let taken = <&[Event; BATCH]>::try_from(chunk).ok().and_then(|events| batch.take(events));
        let Some(taken) = taken else { return self.gather_singly(arena, chunk, scratch) };
        self.stores += taken.stores;
        batch.set_context(0, self.contexts.current);
        for index in bits(taken.flow) {
            if let Some(event) = chunk.get(index) {
                self.flow(arena, event);
                batch.set_context(index + 1, self.contexts.current);
            }
        }
        // SAFETY: nothing else refers to the sites meanwhile.
        let missed = batch.find_sites(unsafe { self.sites.cache(arena) });
        for index in bits(missed) {
            let (context, instruction) = batch.place(index);
            batch.site[index & (BATCH - 1)] = self.sites.find(arena, context, instruction);
        }
    }

    /// As [`State::gather`], for events not all of which are accesses, and for fewer.
    fn gather_singly<A: Arena + ?Sized>(&mut self, arena: &A, chunk: &[Event], scratch: &mut Scratch) {
        scratch.batch.clear();
        for event in chunk {
            if event.kind.is_access() {
                let site = self.sites.find(arena, self.contexts.current, event.index);
                scratch.batch.push(event.value, last_byte(event.value, event.size.into()), site);
                self.stores += u64::from(event.kind.is_store());
                if event.kind.is_flow() {
                    self.flow(arena, event);
                }
            } else {
                self.switch_or_lose(arena, event);
            }
        }
    }

    /// As [`State::gather`], for one event, where not every access is seen.
    pub(super) fn pick<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        event: &Event,
        code: &Code<'_>,
        scratch: &mut Scratch,
        unsettled: &mut u64,
        selected: Option<&Vec<bool>>,
    ) -> Result<(), ArenaFull> {
        if !event.kind.is_access() {
            return self.other::<L, A>(arena, event, code, scratch, unsettled, selected);
        }
        let chosen = |all: &Vec<bool>| all.get(event.index as usize).copied().unwrap_or(false);
        if self.fetches == 0 && selected.is_none_or(chosen) {
            let site = self.sites.find(arena, self.contexts.current, event.index);
            scratch.batch.push(event.value, last_byte(event.value, event.size.into()), site);
            self.stores += u64::from(event.kind.is_store());
        }
        if event.kind.is_flow() {
            self.flow(arena, event);
        }
        Ok(())
    }

    /// Takes the events of sampled lines. Between accesses stand events that are none, so batches are
    /// filled over chunks of events.
    pub(super) fn gather_sampled<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        events: &[Event],
        scratch: &mut Scratch,
    ) -> Result<(), ArenaFull> {
        let mut unsettled = 0;
        for event in events {
            unsettled += 1;
            match event.kind {
                kind if kind.is_access() => {
                    let site = self.sites.find(arena, self.contexts.current, event.index);
                    scratch.batch.push(event.value, last_byte(event.value, event.size.into()), site);
                    if kind.is_flow() {
                        self.flow(arena, event);
                    }
                }
                Kind::SKIPPED => scratch.batch.skipped = scratch.batch.skipped.saturating_add(event.value),
                _ => self.switch_or_lose(arena, event),
            }
            if scratch.batch.len == BATCH {
                self.settle::<L, A>(arena, scratch, &mut unsettled)?;
            }
        }
        self.settle::<L, A>(arena, scratch, &mut unsettled)
    }

    #[inline(always)]
    fn flow<A: Arena + ?Sized>(&mut self, arena: &A, event: &Event) {
        if event.kind.is_store() {
            self.contexts.call(arena, event.value, event.index);
        } else {
            self.contexts.r#return(arena, event.value);
        }
    }

    /// An event that is no access, for what concerns all analyses.
    #[inline(never)]
    fn switch_or_lose<A: Arena + ?Sized>(&mut self, arena: &A, event: &Event) {
        match event.kind {
            Kind::THREAD => self.full |= u64::from(self.contexts.switch(arena, event.value).is_none()),
            Kind::CALLED => self.contexts.call(arena, event.value, event.index),
            Kind::RETURNED => self.contexts.r#return(arena, event.value),
            Kind::LOST => self.lost = self.lost.saturating_add(event.value),
            _ => {}
        }
    }

    /// An event that is no access.
    #[inline(never)]
    fn other<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        event: &Event,
        code: &Code<'_>,
        scratch: &mut Scratch,
        unsettled: &mut u64,
        selected: Option<&Vec<bool>>,
    ) -> Result<(), ArenaFull> {
        match event.kind {
            Kind::BLOCK if self.fetches == 1 => {
                self.fetch::<L, A>(arena, code, usize::MAX, scratch, unsettled, selected)?;
                self.contexts.now.block_context = self.contexts.current;
                self.contexts.now.block = event.index.saturating_add(1);
            }
            Kind::BLOCK_CUT | Kind::THREAD_END if self.fetches == 1 => {
                let limit = if event.kind == Kind::BLOCK_CUT { event.value as usize } else { usize::MAX };
                self.fetch::<L, A>(arena, code, limit, scratch, unsettled, selected)?;
            }
            _ => self.switch_or_lose(arena, event),
        }
        Ok(())
    }

    /// Counts the fetches of the block begun last, of at most `limit` instructions.
    fn fetch<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        code: &Code<'_>,
        limit: usize,
        scratch: &mut Scratch,
        unsettled: &mut u64,
        selected: Option<&Vec<bool>>,
    ) -> Result<(), ArenaFull> {
        let context = self.contexts.now.block_context;
        let Some(block) = std::mem::take(&mut self.contexts.now.block).checked_sub(1) else { return Ok(()) };
        let Some(first) = code.blocks.get(block as usize).map(|block| block.first) else { return Ok(()) };
        for (index, record) in (first..).zip(code.block(block)).take(limit) {
            if selected.is_some_and(|selected| !selected.get(index as usize).copied().unwrap_or(false)) {
                continue;
            }
            let site = self.sites.find(arena, context, index);
            scratch.batch.push(record.address, last_byte(record.address, record.length.into()), site);
            if scratch.batch.len == BATCH {
                self.settle::<L, A>(arena, scratch, unsettled)?;
            }
        }
        Ok(())
    }
}
