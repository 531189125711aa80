//! Decisions that the kernel programs take, as pure functions that the host can test.

/// Phases of a watch; the value of [`crate::record::WatchState::phase`].
pub mod phase {
    /// Armed; the use has not been seen.
    pub const ARMED: u64 = 0;
    /// The use was seen; the next touch is the reuse.
    pub const USED: u64 = 1;
    /// All was seen.
    pub const DONE: u64 = 2;
    /// The reuse was seen, and the next touch of the owner is
    /// recorded too, as the end of the interval measured again.
    pub const NEAR: u64 = 3;
    /// [`NEAR`], but the next touch of the owner begins the
    /// interval, if made by the instruction of the use.
    pub const NEAR_PAIR: u64 = 4;
    /// `EARLIER + n`: the thread will touch the word `n` times before the use; the n-th leads to [`ARMED`].
    pub const EARLIER: u64 = 1 << 32;
}

/// Meaning of a touch for the watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TouchMeaning {
    /// The use: go to [`phase::USED`].
    Use,
    /// The reuse: go to the phase by [`behind_reuse`].
    Reuse,
    /// The touch after a near reuse by another instruction: by the
    /// instruction of the use, the touch is as a use (go to
    /// [`phase::NEAR`]); else the watch is complete (go to [`phase::DONE`]).
    UseAgain,
    /// The touch that ends the interval after a near reuse: go to [`phase::DONE`].
    Again,
    /// Another thread came first after a near reuse, whose own distance stands: go to [`phase::DONE`].
    Forgone,
    /// A touch known to come before the use: go to the given phase, and let it count.
    Before(u64),
    /// Another thread came before the use: ignore it and stay armed.
    Early,
    /// The watch was complete already: let the event run out.
    Late,
}

/// Meaning of a touch by `tid` for a watch in `phase` with a use by `owner_tid` (0: by any thread).
pub const fn touch_meaning(phase: u64, owner_tid: u32, tid: u32) -> TouchMeaning {
    const LAST: u64 = phase::EARLIER + 1;
    let owns = owner_tid == 0 || owner_tid == tid;
    match phase {
        phase::ARMED if owns => TouchMeaning::Use,
        LAST if owns => TouchMeaning::Before(phase::ARMED),
        LAST.. if owns => TouchMeaning::Before(phase - 1),
        phase::ARMED | phase::EARLIER.. => TouchMeaning::Early,
        phase::USED => TouchMeaning::Reuse,
        phase::NEAR_PAIR if owner_tid == tid => TouchMeaning::UseAgain,
        phase::NEAR if owner_tid == tid => TouchMeaning::Again,
        phase::NEAR | phase::NEAR_PAIR => TouchMeaning::Forgone,
        _ => TouchMeaning::Late,
    }
}

/// Longest time from a use to a reuse, our traps included, that is measured again: the first
/// milliseconds after a stop are slower than others, which made a sweep of .55 ms .53 to .96 ms
/// long.
pub const NEAR_NS: u64 = 2_000_000;
/// [`NEAR_NS`] for two alternating instructions, with one trap more: reports know a
/// clock's time well from about 100 µs on, and our traps may be half of this time. Also
/// the longest time from the reuse to the next touch by the instruction of the use.
pub const NEAR_PAIR_NS: u64 = 200_000;

/// Next phase of a watch after the owner's reuse: [`phase::NEAR`] or [`phase::NEAR_PAIR`]
/// if a later interval between the same instructions shall replace the interval from the
/// use at `used` to the reuse at `reuse`, each an instruction pointer and a time of the
/// thread's clock (0 and `u64::MAX`: unknown); else [`phase::DONE`].
///
/// After a stop, a thread finds caches and translations cold, and short distances become longer.
/// The touch after a uniformly drawn touch is uniformly drawn too, as is the next touch: a later
/// interval of the same word represents all intervals as well. The later interval is taken between
/// the same instructions only: the next interval if one instruction touches the word repeatedly,
/// the second next if two instructions alternate, as in a loop that loads and stores a word.
///
/// Watched uses are drawn among uses without a reuse in the window: the argument is valid
/// only if one instruction's uses of a word are all alike. If two instructions alternate,
/// [`crate::record::WatchState::no_turns`] marks windows with the using instruction at the
/// word before (elements smaller than a word), and [`is_alike`] decides. Of one instruction
/// only intervals with `no_turns` are checked, and the rest are believed: in compressors
/// both are drawn from the same many distances, and the longer of two would be too long.
pub const fn behind_reuse(used: (u64, u64), reuse: (u64, u64)) -> u64 {
    if is_near(used, reuse, NEAR_NS) && used.0 == reuse.0 {
        phase::NEAR
    } else if is_near(used, reuse, NEAR_PAIR_NS) && used.0 != 0 {
        phase::NEAR_PAIR
    } else {
        phase::DONE
    }
}

/// Whether the interval between the touches `again`, by the two instructions `pair`, may take the
/// place of theirs; as in [`behind_reuse`].
pub const fn stands_for(pair: (u64, u64), again: [(u64, u64); 2]) -> bool {
    let [from, to] = again;
    let longest_ns = if pair.0 == pair.1 { NEAR_NS } else { NEAR_PAIR_NS };
    from.0 == pair.0 && to.0 == pair.1 && is_near(from, to, longest_ns)
}

/// Whether an interval of two instructions that take turns, or of one at elements smaller than a
/// word, may, by CPU times of both without our traps: cold caches make the first one longer by up
/// to two traps (`trap_ns`), or half; one that is longer by more is one of another kind.
pub const fn is_alike(first_ns: u64, later_ns: u64, trap_ns: u64) -> bool {
    first_ns <= later_ns.saturating_mul(2).saturating_add(trap_ns.saturating_mul(2))
}

/// Whether a touch is one by the instruction of the use, soon enough after the reuse. `used`: that
/// instruction, and when the kernel side was done with the reuse.
pub const fn is_use_again(used: (u64, u64), touched: (u64, u64)) -> bool {
    used.0 == touched.0 && is_near(used, touched, NEAR_PAIR_NS)
}

const fn is_near(from: (u64, u64), to: (u64, u64), longest_ns: u64) -> bool {
    from.1 != u64::MAX && to.1 != u64::MAX && to.1.wrapping_sub(from.1) < longest_ns
}

/// Signals whose default is to be ignored, in order of preference, for stopping a thread: `SIGURG`,
/// `SIGWINCH`, `SIGCHLD`.
///
/// `SIGCONT` is ignored by default too, but generating it discards a pending `SIGTSTP`.
pub const STOP_SIGNALS: [u32; 3] = [23, 28, 17];

/// Unit of a thread's start time in `/proc/PID/stat` (`USER_HZ` is 100 in the x86 ABI).
pub const START_TICK_NS: u64 = 10_000_000;

/// Handlers that make a signal harmless: `SIG_DFL` (for [`STOP_SIGNALS`]) and `SIG_IGN`.
pub const fn handler_is_harmless(handler: u64) -> bool {
    handler <= 1
}

/// Bit of `signal` (1-based) in a kernel signal set.
pub const fn signal_bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

/// Whether the thread may be stopped with `signal`: not caught, not blocked, without a pending one
/// to lose.
pub const fn signal_is_free(signal: u32, handler: u64, blocked: u64, pending: u64) -> bool {
    handler_is_harmless(handler) && (blocked | pending) & signal_bit(signal) == 0
}

/// Size of a page.
pub const PAGE_BYTES: u64 = 4096;

/// Bytes of a watched word.
pub const WORD_BYTES: u64 = 8;

/// Offset of a watched word that lies whole in the `bytes` bytes from `start` on, if present.
pub const fn watched_offset(
    start: u64,
    bytes: u64,
    watched: &[u64; crate::record::REGISTERS],
) -> Option<u64> {
    let mut index = 0;
    while index < watched.len() {
        let offset = watched[index].wrapping_sub(start);
        if offset < bytes && bytes - offset >= WORD_BYTES {
            return Some(offset);
        }
        index += 1;
    }
    None
}

/// First byte of the [`crate::record::CODE_BYTES`] of text to copy when the bytes around
/// `ip` straddle an absent page: the window nearest to `ip` inside the page of `ip`.
pub const fn code_window_in_page(ip: u64, window: u64) -> u64 {
    let page = ip & !4095;
    let wanted = ip.wrapping_sub(window / 2);
    let last = page + 4096 - window;
    if wanted < page || wanted > ip {
        page
    } else if wanted > last {
        last
    } else {
        wanted
    }
}

/// Bytes of an instruction examined by [`is_string_copy`].
pub const STRING_COPY_BYTES: usize = 4;

/// Whether these bytes begin a repeated `movs` or `stos`. An interrupt
/// within the copy finds the instruction pointer still at the copy. (Intel
/// SDM vol. 2, "REP"; the order of prefixes that assemblers write.)
pub fn is_string_copy(code: [u8; STRING_COPY_BYTES]) -> bool {
    let [first, second, third, fourth] = code;
    let is_rep = |byte| matches!(byte, 0xf2 | 0xf3);
    let is_width = |byte: u8| byte == 0x66 || byte & 0xf0 == 0x40;
    let is_copy = |byte| matches!(byte, 0xa4 | 0xa5 | 0xaa | 0xab);
    (is_rep(first) && (is_copy(second) || (is_width(second) && is_copy(third))))
        || (first == 0x66 && is_rep(second) && (is_copy(third) || (is_width(third) && is_copy(fourth))))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_the_owner_makes_the_use() {
        assert_eq!(touch_meaning(phase::ARMED, 7, 7), TouchMeaning::Use);
        assert_eq!(touch_meaning(phase::ARMED, 7, 8), TouchMeaning::Early);
        assert_eq!(touch_meaning(phase::ARMED, 0, 8), TouchMeaning::Use);
        assert_eq!(touch_meaning(phase::USED, 7, 8), TouchMeaning::Reuse);
        assert_eq!(touch_meaning(phase::DONE, 7, 7), TouchMeaning::Late);
        assert_eq!(touch_meaning(99, 7, 7), TouchMeaning::Late);
        assert_eq!(touch_meaning(phase::NEAR, 7, 7), TouchMeaning::Again);
        assert_eq!(touch_meaning(phase::NEAR, 7, 8), TouchMeaning::Forgone);
        assert_eq!(touch_meaning(phase::EARLIER + 2, 7, 8), TouchMeaning::Early);
        let mut now = phase::EARLIER + 3;
        for _ in 0..3 {
            let TouchMeaning::Before(next) = touch_meaning(now, 7, 7) else { panic!("phase {now}") };
            now = next;
        }
        assert_eq!(now, phase::ARMED);
    }

    #[test]
    fn near_reuses_are_measured_again() {
        assert_eq!(behind_reuse((0x1000, 50), (0x1000, 50 + NEAR_NS - 1)), phase::NEAR);
        assert_eq!(behind_reuse((0x1000, 50), (0x1000, 50 + NEAR_NS)), phase::DONE);
        assert_eq!(behind_reuse((0x1000, 50), (0x1004, 50 + NEAR_PAIR_NS - 1)), phase::NEAR_PAIR);
        assert_eq!(behind_reuse((0x1000, 50), (0x1004, 50 + NEAR_PAIR_NS)), phase::DONE);
        // A watch without a use of its own, and clocks that cannot be read.
        assert_eq!(behind_reuse((0, 0), (0x1000, 60)), phase::DONE);
        assert_eq!(behind_reuse((0x1000, u64::MAX), (0x1000, u64::MAX)), phase::DONE);
        assert_eq!(behind_reuse((0x1000, 50), (0x1004, u64::MAX)), phase::DONE);
    }

    #[test]
    fn an_interval_stands_for_one_between_the_same_instructions() {
        let (load, store) = (0x1000, 0x1004);
        assert!(stands_for((load, load), [(load, 50), (load, 50 + NEAR_NS - 1)]));
        assert!(!stands_for((load, load), [(load, 50), (load, 50 + NEAR_NS)]));
        assert!(!stands_for((load, load), [(load, 50), (store, 60)]));
        assert!(stands_for((store, load), [(store, 50), (load, 50 + NEAR_PAIR_NS - 1)]));
        assert!(!stands_for((store, load), [(store, 50), (load, 50 + NEAR_PAIR_NS)]));
        // Loaded twice before it is stored.
        assert!(!stands_for((store, load), [(load, 50), (load, 60)]));
        assert!(!stands_for((store, load), [(store, 50), (load, u64::MAX)]));
    }

    #[test]
    fn a_later_interval_is_hardly_shorter() {
        let trap_ns = 10_000;
        assert!(is_alike(25_000, 10_000, trap_ns) && is_alike(20_000, 0, trap_ns));
        assert!(is_alike(500_000, 300_000, trap_ns) && is_alike(10_000, 1_000_000, trap_ns));
        assert!(!is_alike(50_000, 10, trap_ns) && !is_alike(700_000, 300_000, trap_ns));
    }

    #[test]
    fn the_use_comes_again_soon_or_not_at_all() {
        assert!(is_use_again((0x1000, 50), (0x1000, 50 + NEAR_PAIR_NS - 1)));
        assert!(!is_use_again((0x1000, 50), (0x1000, 50 + NEAR_PAIR_NS)));
        assert!(!is_use_again((0x1000, 50), (0x1004, 60)));
        assert!(!is_use_again((0x1000, u64::MAX), (0x1000, 60)));
    }

    #[test]
    fn two_instructions_that_take_turns_end_at_the_second_pair() {
        assert_eq!(touch_meaning(phase::NEAR_PAIR, 7, 7), TouchMeaning::UseAgain);
        assert_eq!(touch_meaning(phase::NEAR_PAIR, 7, 8), TouchMeaning::Forgone);
    }

    #[test]
    fn a_caught_blocked_or_pending_signal_is_not_free() {
        assert!(signal_is_free(23, 0, 0, 0));
        assert!(signal_is_free(23, 1, 0, 0));
        assert!(!signal_is_free(23, 0x40_1000, 0, 0));
        assert!(!signal_is_free(23, 0, 1 << 22, 0));
        assert!(!signal_is_free(23, 0, 0, 1 << 22));
        assert!(signal_is_free(23, 0, !(1 << 22), !(1 << 22)));
    }

    proptest! {
        #[test]
        fn a_watched_word_is_found_where_it_lies_whole(
            start in 0x7fff_0000u64..0x7fff_1000,
            bytes in 1u64..=4096,
            words in proptest::array::uniform4(0x7fff_0000u64 / 8..0x7fff_2000 / 8),
        ) {
            let watched = words.map(|word| if word % 5 == 0 { 0 } else { word * 8 });
            let inside = |word: &&u64| **word >= start && **word + 8 <= start + bytes;
            let expected: Vec<u64> = watched.iter().filter(inside).map(|word| word - start).collect();
            match watched_offset(start, bytes, &watched) {
                Some(offset) => prop_assert!(expected.contains(&offset)),
                None => prop_assert!(expected.is_empty()),
            }
        }

        #[test]
        fn the_code_window_stays_in_the_page_and_holds_the_ip(ip in 0u64..1 << 47) {
            let start = code_window_in_page(ip, 256);
            prop_assert_eq!(start & !4095, ip & !4095);
            prop_assert_eq!((start + 255) & !4095, ip & !4095);
            prop_assert!(start <= ip && ip < start + 256);
        }
    }
}
