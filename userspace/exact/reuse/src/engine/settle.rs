//! From a batch to the counts of each granularity, and the ends of phases.

use std::sync::atomic::{Ordering, compiler_fence};

use locality_stream::{Arena, ArenaFull};

use super::{Option64, Scratch, State};
use crate::batch::{BATCH, Batch, Touches};
use crate::lanes::Lanes;

impl State {
    /// Counts a batch in all granularities, parted where a phase ends.
    #[inline(always)]
    pub(super) fn settle<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        scratch: &mut Scratch,
        unsettled: &mut u64,
    ) -> Result<(), ArenaFull> {
        self.busy = *unsettled;
        compiler_fence(Ordering::SeqCst);
        let left = self.left_of_phase();
        let result = if (scratch.batch.len as u64) < left {
            self.count::<L, A>(arena, &scratch.batch, &mut scratch.touches)
        } else {
            self.count_across_phases::<L, A>(arena, scratch)
        };
        self.full |= u64::from(result.is_err());
        scratch.batch.clear();
        compiler_fence(Ordering::SeqCst);
        self.consumed += *unsettled;
        self.busy = 0;
        *unsettled = 0;
        result
    }

    #[inline(always)]
    fn count<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        batch: &Batch,
        touches: &mut Touches,
    ) -> Result<(), ArenaFull> {
        let first = self.accesses + 1;
        for grain in self.grains.iter_mut().filter_map(Option64::get_mut) {
            grain.take::<L, A>(arena, batch, touches, first)?;
        }
        self.accesses += batch.len as u64 + batch.skipped;
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn count_across_phases<L: Lanes, A: Arena + ?Sized>(
        &mut self,
        arena: &A,
        scratch: &mut Scratch,
    ) -> Result<(), ArenaFull> {
        let Scratch { batch, touches } = scratch;
        let mut done = 0;
        while done < batch.len {
            let left = self.left_of_phase();
            let until = batch.len.min(done + usize::try_from(left).unwrap_or(BATCH));
            let mut part = Batch::EMPTY;
            let accesses = batch.address.iter().zip(&batch.last).zip(&batch.site);
            for ((address, last), site) in accesses.take(until).skip(done) {
                part.push(*address, *last, *site);
            }
            self.count::<L, A>(arena, &part, touches)?;
            done = until;
            if self.left_of_phase() == 0 {
                self.end_phase(arena);
            }
        }
        Ok(())
    }

    /// Accesses up to the phase's end; 0 after it too, where a kill left it.
    #[inline(always)]
    fn left_of_phase(&self) -> u64 {
        self.phase_accesses.saturating_mul(self.phases + 1).saturating_sub(self.accesses)
    }

    fn end_phase<A: Arena + ?Sized>(&mut self, arena: &A) {
        let grains = self.grains;
        for grain in grains.iter().filter_map(Option64::get) {
            grain.end_phase(arena, self.phases as usize);
        }
        self.phases += 1;
        if self.phases == self.max_phases {
            for grain in grains.iter().filter_map(Option64::get) {
                grain.merge_phases(arena, self.phases as usize);
            }
            self.phases /= 2;
            self.phase_accesses *= 2;
        }
    }
}
