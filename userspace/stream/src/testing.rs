//! For tests of analyses whose state another process may open: damage to an arena. Compiled with
//! the feature `testing` only.

use std::ops::Range;
use std::sync::atomic::Ordering;

use crate::arena::Arena;

/// One damaged word: position, value, bits of reduction, and whether it lies in the state itself.
pub type Damage = (u32, u64, u32, bool);

/// Number of cases from `PROPTEST_CASES`, if a number, else this few.
pub fn cases(few: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(few)
}

/// Overwrites words of an unused arena; `state`: words near to which the damage lies.
pub fn damage(arena: &impl Arena, state: Range<usize>, damages: &[Damage]) {
    let words = arena.taken().load(Ordering::Relaxed) / 8;
    for &(at, word, bits, near) in damages {
        let at = at as usize;
        let at = if near { state.start + at % state.len() } else { at % words };
        // SAFETY: within the taken range, whose words may have any value.
        unsafe { *arena.base().as_ptr().cast::<u64>().add(at.min(words - 1)) = word >> bits };
    }
}
