//! Instructions with more than lists of places: induction steps, reductions, exchanges, the x87 stack.

use locality_stream::Arena;

use super::Lanes;
use crate::ops::{
    CARRY_PLACES, Compiled, EARLY, FLAGS_PLACES, IGNORED, MOVE, Op, PLACES, SPECIAL, Special, WITH_EARLY,
};
use crate::shadow::raise;

impl<const L: usize, A: Arena + ?Sized> Lanes<'_, L, A> {
    /// Operands of an instruction beyond those in lists.
    #[inline(never)]
    pub(super) fn start_special(&mut self, op: &Op, start: &mut [u32; L]) {
        let s = self.values();
        let Some(special) = self.compiled.specials.get_mut(op.special as usize) else { return };
        match special {
            Special::Step { register, by, reduces, used, last, .. } => {
                let register = usize::from(*register & 15);
                self.is_reduced = *reduces && !*used && s.origins[register] == number(op);
                let is_step = match by {
                    None => true,
                    Some(by) => {
                        *last != 0
                            && s.written[usize::from(*by & 15)] <= *last
                            && s.addressed[register] > *last
                    }
                };
                *last = s.sequence;
                self.is_step = is_step;
                let from = if is_step { EARLY } else { 0 };
                if is_step || !self.is_reduced {
                    raise(start, &s.times[from + register]);
                }
                if let Some(by) = by {
                    raise(start, &s.times[from + usize::from(*by & 15)]);
                }
            }
            Special::X87 { data, top, .. } => {
                let before = top.step(&mut (s.top as u8));
                data.at_top(before).each(|place| {
                    // As in `start`: needed when the load is done.
                    let time = s.times[place % PLACES].map(|time| time.saturating_sub(op.load.into()));
                    raise(start, &time);
                });
            }
            Special::Reduction { place, used } => {
                let place = usize::from(*place) % PLACES;
                self.is_reduced = !*used && s.origins[place] == number(op);
                if !self.is_reduced {
                    // As in `start`: needed when the load is done.
                    let time = s.times[place].map(|time| time.saturating_sub(op.load.into()));
                    raise(start, &time);
                }
            }
            Special::Exchange(_) => {}
        }
    }

    /// Notes whose results an instruction takes, and where its own result lies. A move takes none.
    #[inline(never)]
    pub(super) fn touch(&mut self, op: &Op) {
        let (s, own) = (self.values(), number(op));
        let Compiled { places, specials, .. } = &mut self.compiled;
        let from = op.places as usize;
        let middle = from + usize::from(op.addresses) + usize::from(op.data);
        let end = middle + usize::from(op.writes) + usize::from(op.merges);
        let location = |place: &u8| {
            let place = usize::from(*place) % PLACES;
            if place >= EARLY { place - EARLY } else { place }
        };
        let special = if op.flags & SPECIAL == 0 { None } else { specials.get(op.special as usize).copied() };
        if let Some(Special::Exchange([one, other])) = special {
            return s.origins.swap(location(&one), location(&other));
        }
        let read = places.get(from..middle).unwrap_or_default();
        let written = places.get(middle..end).unwrap_or_default();
        if op.flags & MOVE != 0 {
            let origin = read.first().map_or(0, |place| s.origins[location(place)]);
            written.iter().for_each(|place| s.origins[location(place)] = origin);
            return;
        }
        let mut take = |place: &u8| {
            let origin = s.origins[location(place)];
            if origin == 0 || origin == own {
                return;
            }
            if let Some(Special::Step { used, .. } | Special::Reduction { used, .. }) =
                specials.get_mut(origin as usize - 1)
            {
                *used = true;
            }
        };
        read.iter().for_each(&mut take);
        match special {
            Some(Special::Step { register, by, .. }) => {
                take(&register);
                by.iter().for_each(take);
            }
            Some(Special::Reduction { place, .. }) => take(&place),
            _ => {}
        }
        written.iter().for_each(|place| s.origins[location(place)] = 0);
        match specials.get_mut(op.special as usize).filter(|_| special.is_some()) {
            Some(Special::Step { register, reduces, used, .. }) => {
                s.origins[location(register)] = if *reduces { own } else { 0 };
                *used = false;
            }
            Some(Special::Reduction { place, used }) => {
                s.origins[location(place)] = own;
                *used = false;
            }
            _ => {}
        }
    }

    /// Results of an instruction without readers, or beyond those in lists.
    #[inline(never)]
    pub(super) fn finish_special(&mut self, op: &Op, start: &[u32; L], done: &[u32; L]) {
        let s = self.values();
        let result = if op.flags & IGNORED != 0 { [0; L] } else { *done };
        let from = op.places as usize + usize::from(op.addresses) + usize::from(op.data);
        let end = from + usize::from(op.writes);
        for place in self.compiled.places.get(from..end).unwrap_or_default() {
            s.times[usize::from(*place) % PLACES] = result;
        }
        for place in self.compiled.places.get(end..end + usize::from(op.merges)).unwrap_or_default() {
            raise(&mut s.times[usize::from(*place) % PLACES], &result);
        }
        if op.flags & SPECIAL == 0 {
            return;
        }
        let Some(special) = self.compiled.specials.get(op.special as usize) else { return };
        match *special {
            Special::Step { register, by, carry, flags, .. } => {
                let register = usize::from(register & 15);
                let mut early = result;
                let mut ordinary = result;
                if self.is_reduced && op.flags & IGNORED == 0 {
                    raise(&mut ordinary, &s.times[register]);
                    raise(&mut early, &s.times[EARLY + register]);
                }
                if self.is_step && op.flags & IGNORED == 0 {
                    early = s.times[EARLY + register];
                    ordinary = *start;
                    if !self.is_reduced {
                        raise(&mut ordinary, &s.times[register]);
                    }
                    if let Some(by) = by {
                        let by = usize::from(by & 15);
                        raise(&mut early, &s.times[EARLY + by]);
                        raise(&mut ordinary, &s.times[by]);
                    }
                    ordinary = ordinary.map(|time| time.wrapping_add(op.latency.into()));
                    if self.is_reduced {
                        raise(&mut ordinary, &s.times[register]);
                    }
                }
                s.times[register] = ordinary;
                s.times[EARLY + register] = early;
                if !self.is_step {
                    // Of this sum alone, even if the accumulator's other operands come later.
                    (ordinary, early) = (result, result);
                }
                for ([place, early_place], is_written) in [(CARRY_PLACES, carry), (FLAGS_PLACES, flags)] {
                    if is_written {
                        s.times[place] = ordinary;
                        s.times[early_place] = early;
                    }
                }
            }
            Special::X87 { data, whole, merged, top, is_exchange } => {
                let mut now = s.top as u8;
                let before = top.step(&mut now);
                s.top = now.into();
                if is_exchange {
                    let mut both = data.at_top(before).iter();
                    if let (Some(one), Some(other)) = (both.next(), both.next()) {
                        s.times.swap(one, other);
                    }
                } else {
                    whole.at_top(before).each(|place| s.times[place % PLACES] = result);
                    merged.at_top(before).each(|place| raise(&mut s.times[place % PLACES], &result));
                }
            }
            Special::Reduction { place, .. } => {
                let place = usize::from(place) % PLACES;
                let early = (place < WITH_EARLY).then_some(EARLY + place);
                for place in [Some(place), early].into_iter().flatten() {
                    if self.is_reduced && op.flags & IGNORED == 0 {
                        raise(&mut s.times[place], &result);
                    } else {
                        s.times[place] = result;
                    }
                }
            }
            Special::Exchange([one, other]) => {
                let (one, other) = (usize::from(one), usize::from(other));
                s.times.swap(one % PLACES, other % PLACES);
                if one < 16 && other < 16 {
                    s.times.swap(EARLY + one, EARLY + other);
                }
            }
        }
    }
}

/// Stands for an instruction in [`crate::state::State::origins`]; 0 for one that is no reduction.
fn number(op: &Op) -> u32 {
    if op.flags & SPECIAL != 0 { op.special + 1 } else { 0 }
}
