//! Decisions that the kernel programs take, as pure functions that the host can test.

/// Phases of a watch; the value of [`crate::record::WatchState::phase`].
pub mod phase {
    /// Armed; the use has not been seen.
    pub const ARMED: u64 = 0;
    /// The use was seen; the next touch is the reuse.
    pub const USED: u64 = 1;
    /// All was seen.
    pub const DONE: u64 = 2;
    /// The reuse was seen, and the next touch of the owner is told too.
    pub const NEAR: u64 = 3;
    /// `EARLIER + n`: the thread will touch the word `n` times before the use; the n-th leads to [`ARMED`].
    pub const EARLIER: u64 = 1 << 32;
}

/// What a touch means for its watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TouchMeaning {
    /// It is the use: go to [`phase::USED`].
    Use,
    /// It is the reuse: go to [`phase::DONE`], or to [`phase::NEAR`] as [`is_measured_again`] says.
    Reuse,
    /// It is the touch behind a near reuse: go to [`phase::DONE`].
    Again,
    /// Another thread came first behind a near reuse, whose own distance stands: go to [`phase::DONE`].
    Forgone,
    /// One of those that were known to come before the use: go to the phase given, and let it count.
    Before(u64),
    /// Another thread came before the use: ignore it and stay armed.
    Early,
    /// All was seen already: let the event run out.
    Late,
}

/// What a touch by `tid` means for a watch in `phase` whose use belongs to `owner_tid` (0: to anyone).
pub const fn touch_meaning(phase: u64, owner_tid: u32, tid: u32) -> TouchMeaning {
    const LAST: u64 = phase::EARLIER + 1;
    let owns = owner_tid == 0 || owner_tid == tid;
    match phase {
        phase::ARMED if owns => TouchMeaning::Use,
        LAST if owns => TouchMeaning::Before(phase::ARMED),
        LAST.. if owns => TouchMeaning::Before(phase - 1),
        phase::ARMED | phase::EARLIER.. => TouchMeaning::Early,
        phase::USED => TouchMeaning::Reuse,
        phase::NEAR if owner_tid == tid => TouchMeaning::Again,
        phase::NEAR => TouchMeaning::Forgone,
        _ => TouchMeaning::Late,
    }
}

/// Longest time from a use to a reuse, our traps included, that is measured again: the first milliseconds behind a stop are slower
/// than others, which made a sweep of .55 ms .53 to .96 ms long.
pub const NEAR_NS: u64 = 2_000_000;

/// Whether the distance to the next touch shall take the place of that from the use at `used` to the reuse at `reuse`, each an
/// instruction pointer and a time of the thread's clock (`u64::MAX`: unknown).
///
/// Behind a stop, a thread finds its caches and translations cold, which makes short distances longer. The touch after a
/// uniformly drawn one is uniformly drawn too, so the next interval of the same word stands as well for all of them; it is taken where it
/// is one between the same instructions.
pub const fn is_measured_again(used: (u64, u64), reuse: (u64, u64)) -> bool {
    let (known, same) = (reuse.1 != u64::MAX && used.1 != u64::MAX, used.0 == reuse.0);
    known && same && reuse.1.wrapping_sub(used.1) < NEAR_NS
}

/// Signals whose default is to be ignored, in order of preference, for stopping a thread: `SIGURG`, `SIGWINCH`, `SIGCHLD`.
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

/// Whether the thread may be stopped with `signal`: nobody catches it, blocks it, or would lose a pending one.
pub const fn signal_is_free(signal: u32, handler: u64, blocked: u64, pending: u64) -> bool {
    handler_is_harmless(handler) && (blocked | pending) & signal_bit(signal) == 0
}

/// Size of a page.
pub const PAGE_BYTES: u64 = 4096;

/// Bytes of a watched word.
pub const WORD_BYTES: u64 = 8;

/// Offset of a watched word that lies whole in the `bytes` bytes from `start` on, if there is one.
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

/// First byte of the [`crate::record::CODE_BYTES`] of text to copy when the bytes around `ip` straddle a page that is not
/// there: the window nearest to `ip` inside its own page.
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
    fn near_reuses_by_the_same_instruction_are_measured_again() {
        assert!(is_measured_again((0x1000, 50), (0x1000, 50 + NEAR_NS - 1)));
        assert!(!is_measured_again((0x1000, 50), (0x1000, 50 + NEAR_NS)));
        assert!(!is_measured_again((0x1000, 50), (0x1004, 60)));
        // A watch without a use, and clocks that cannot be read.
        assert!(!is_measured_again((0, 0), (0x1000, 60)));
        assert!(!is_measured_again((0x1000, u64::MAX), (0x1000, u64::MAX)));
        assert!(!is_measured_again((0x1000, 50), (0x1000, u64::MAX)));
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
