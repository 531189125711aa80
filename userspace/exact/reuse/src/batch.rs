//! A batch of accesses on the way through the engine, as arrays.
//!
//! Loops over whole arrays, in use or not, have no branches: the
//! compiler makes vector instructions, look-ups (gathers) included.

use locality_stream::Event;

use crate::map::{Slot, hash};
use crate::places::{CHUNK_BITS, Reference, cached};

/// Accesses of a batch.
pub(crate) const BATCH: usize = 64;

/// Accesses on the way.
pub(crate) struct Batch {
    pub(crate) address: [u64; BATCH],
    /// Addresses of last bytes. The end of the address space does not wrap.
    pub(crate) last: [u64; BATCH],
    pub(crate) site: [u32; BATCH],
    /// At most [`BATCH`].
    pub(crate) len: usize,
    /// Accesses in the batch's time that are not in the stream: before each access, and in all. 0
    /// unless lines are sampled.
    before: [u64; BATCH],
    pub(crate) skipped: u64,
    /// Second words of the events.
    what: [u64; BATCH],
    /// Calling contexts.
    context: [u32; BATCH],
}

/// Findings of [`Batch::take`].
pub(crate) struct Taken {
    /// Calls or returns among the events, as bits.
    pub(crate) flow: u64,
    pub(crate) stores: u64,
}

impl Batch {
    pub(crate) const EMPTY: Batch = Batch {
        address: [0; BATCH],
        last: [0; BATCH],
        site: [0; BATCH],
        len: 0,
        before: [0; BATCH],
        skipped: 0,
        what: [0; BATCH],
        context: [0; BATCH],
    };

    /// Adds an access; of no effect on a full batch.
    #[inline(always)]
    pub(crate) fn push(&mut self, address: u64, last: u64, site: u32) {
        let at = self.len;
        if at < BATCH {
            (self.address[at], self.last[at], self.site[at]) = (address, last, site);
            self.before[at] = self.skipped;
            self.len = at + 1;
        }
    }

    /// Empties the batch.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        (self.len, self.skipped) = (0, 0);
    }

    /// Takes events if every event is an access; the sites are still open.
    #[inline(always)]
    pub(crate) fn take(&mut self, events: &[Event; BATCH]) -> Option<Taken> {
        let (mut all, mut stores, mut flow) = (0, 0, 0);
        for (index, event) in events.iter().enumerate() {
            let what = event.what();
            self.address[index] = event.value;
            self.last[index] = last_byte(event.value, what >> 32 & 0xffff);
            self.what[index] = what;
            all |= what;
            stores += what >> 48 & 1;
            flow |= (what >> 49 & 1) << index;
        }
        // Kinds below 4 are accesses.
        if all >> 50 & 0x3f != 0 {
            return None;
        }
        self.len = BATCH;
        Some(Taken { flow, stores })
    }

    /// Sets the calling context of the accesses from number `from` on.
    #[inline(always)]
    pub(crate) fn set_context(&mut self, from: usize, context: u32) {
        for (index, held) in self.context.iter_mut().enumerate() {
            *held = if index >= from { context } else { *held };
        }
    }

    /// Sets the sites found in a cache, and returns the missing sites, as bits.
    #[inline(always)]
    pub(crate) fn find_sites<const N: usize>(&mut self, cache: &[Slot; N]) -> u64 {
        let mut missed = 0;
        for index in 0..BATCH {
            let key = site_key(self.context[index], self.what[index] as u32);
            // The upper bits: below N, a power of two.
            let slot = cache[(hash(key) >> (64 - N.trailing_zeros())) as usize & (N - 1)];
            self.site[index] = slot.value as u32;
            missed |= u64::from(slot.key != key) << index;
        }
        missed
    }

    /// Context and instruction of an access taken by [`Batch::take`].
    #[inline(always)]
    pub(crate) fn place(&self, index: usize) -> (u32, u32) {
        (self.context[index & (BATCH - 1)], self.what[index & (BATCH - 1)] as u32)
    }
}

/// The key of a site in cache and table; never 0.
#[inline(always)]
pub(crate) fn site_key(context: u32, instruction: u32) -> u64 {
    (u64::from(context) + 1) << 32 | u64::from(instruction)
}

/// Address of an access' last byte.
#[inline(always)]
pub(crate) fn last_byte(address: u64, size: u64) -> u64 {
    address.saturating_add(size.saturating_sub(1))
}

/// The numbers of the bits set, ascending.
pub(crate) fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = set.checked_ilog2().map(|_| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(bit)
    })
}

/// Touches of granules by a batch, and facts about the touches. Reused by the
/// engine between batches only because creation would mean filling with zeros.
pub(crate) struct Touches {
    pub(crate) granule: [u64; BATCH],
    pub(crate) reference: [Reference; BATCH],
    pub(crate) site: [u32; BATCH],
    pub(crate) time: [u64; BATCH],
    /// Of the touch before: time, 0 for a first touch, and site.
    pub(crate) use_time: [u64; BATCH],
    pub(crate) use_site: [u32; BATCH],
    /// Stack distance; every bit 1 for a first touch.
    pub(crate) stack: [u64; BATCH],
    pub(crate) time_bin: [u64; BATCH],
    pub(crate) stack_bin: [u64; BATCH],
    pub(crate) key: [u64; BATCH],
    pub(crate) home: [u64; BATCH],
    pub(crate) len: usize,
}

impl Touches {
    pub(crate) const EMPTY: Touches = Touches {
        granule: [0; BATCH],
        reference: [0; BATCH],
        site: [0; BATCH],
        time: [0; BATCH],
        use_time: [0; BATCH],
        use_site: [0; BATCH],
        stack: [0; BATCH],
        time_bin: [0; BATCH],
        stack_bin: [0; BATCH],
        key: [0; BATCH],
        home: [0; BATCH],
        len: 0,
    };

    /// Takes the granules of accesses from number `access` on, with
    /// `beyond` granules done, until the accesses or the room for touches
    /// are used up. The batch's first access has the number `first`.
    #[inline(always)]
    pub(crate) fn split(
        &mut self,
        batch: &Batch,
        bits: u32,
        first: u64,
        access: &mut usize,
        beyond: &mut u64,
    ) {
        let mut several = 0;
        if *access == 0 && *beyond == 0 {
            for index in 0..BATCH {
                let granule = batch.address[index] >> bits;
                several |= (batch.last[index] >> bits) ^ granule;
                self.granule[index] = granule;
                self.time[index] = first + index as u64 + batch.before[index];
                self.site[index] = batch.site[index];
            }
            self.len = batch.len;
            if several == 0 {
                *access = batch.len;
                return;
            }
        }
        let (mut at, mut carry, mut len) = (*access, *beyond, 0);
        while at < batch.len.min(BATCH) && len < BATCH {
            let granule = (batch.address[at] >> bits) + carry;
            self.granule[len] = granule;
            self.time[len] = first + at as u64 + batch.before[at];
            self.site[len] = batch.site[at];
            len += 1;
            if granule < batch.last[at] >> bits {
                carry += 1;
            } else {
                carry = 0;
                at += 1;
            }
        }
        (*access, *beyond, self.len) = (at, carry, len);
    }

    /// An entry has moved.
    #[inline(always)]
    pub(crate) fn follow(&mut self, from: Reference, to: Reference) {
        for reference in &mut self.reference {
            *reference = if *reference == from { to } else { *reference };
        }
    }

    /// Sets the references found in a cache of chunks, and returns the missing references, as bits.
    #[inline(always)]
    pub(crate) fn find_places<const N: usize>(&mut self, cache: &[Slot; N]) -> u64 {
        let mut missed = 0;
        for index in 0..BATCH {
            let granule = self.granule[index];
            let (reference, known) = cached(&cache[(granule >> CHUNK_BITS) as usize & (N - 1)], granule);
            self.reference[index] = reference;
            missed |= u64::from(!known) << index;
        }
        missed & u64::MAX.checked_shr(64 - self.len as u32).unwrap_or(0)
    }
}
