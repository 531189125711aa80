//! The granules touched last, newest first, in one vector register: which of them is touched again,
//! and moving it to the front.
//!
//! Three forms of the same operations: plain Rust, AVX2 and AVX-512. The latter two move the list
//! without a memory access and without a branch. Not here: what follows from a hit or a miss
//! (`grain`).

use crate::places::Reference;

/// Length of the list.
pub(crate) const RECENT: usize = 16;

/// Keys compared at once.
pub(crate) const KEYS: usize = 8;

/// The list in an arena: references, newest first; 0 where there is none yet.
pub(crate) type Recent = [Reference; RECENT];

/// One form of the operations.
///
/// # Safety
/// All functions may only be called on a processor that has the instructions of the form.
pub(crate) trait Lanes {
    /// The list in registers.
    type List: Copy;
    unsafe fn load(recent: &Recent) -> Self::List;
    unsafe fn store(list: Self::List) -> Recent;
    /// Bit `i` is set when place `i` holds `reference`.
    unsafe fn find(list: Self::List, reference: Reference) -> u32;
    /// Moves the place of the lowest bit of `found` to the front, where `reference` is; with no
    /// bit, all places move by one and the last one drops out.
    unsafe fn front(list: Self::List, reference: Reference, found: u32) -> Self::List;
    /// What is in the last place.
    unsafe fn last(list: Self::List) -> Reference;
    /// Bit `i` is set when `keys[i]` is `key`. The keys must be readable and aligned.
    unsafe fn find_key(keys: *const [u64; KEYS], key: u64) -> u32;
}

/// Plain Rust.
pub(crate) struct Portable;

impl Lanes for Portable {
    type List = Recent;
    #[inline(always)]
    unsafe fn load(recent: &Recent) -> Recent {
        *recent
    }
    #[inline(always)]
    unsafe fn store(list: Recent) -> Recent {
        list
    }
    #[inline(always)]
    unsafe fn find(list: Recent, reference: Reference) -> u32 {
        list.iter().enumerate().fold(0, |found, (place, held)| found | u32::from(*held == reference) << place)
    }
    #[inline(always)]
    unsafe fn front(mut list: Recent, reference: Reference, found: u32) -> Recent {
        let place = (found.trailing_zeros() as usize).min(RECENT - 1);
        let mut carried = reference;
        for held in list.iter_mut().take(place + 1) {
            carried = std::mem::replace(held, carried);
        }
        list
    }
    #[inline(always)]
    unsafe fn last(list: Recent) -> Reference {
        let [.., last] = list;
        last
    }
    #[inline(always)]
    unsafe fn find_key(keys: *const [u64; KEYS], key: u64) -> u32 {
        // SAFETY: as the caller promises.
        let keys = unsafe { &*keys };
        keys.iter().enumerate().fold(0, |found, (place, held)| found | u32::from(*held == key) << place)
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{V3, V4};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{KEYS, Lanes, RECENT, Recent, Reference};

    /// AVX2 (`x86-64-v3`).
    pub(crate) struct V3;

    /// All ones in places 0 to `i` of row `i`.
    static UP_TO: [[u32; RECENT]; RECENT + 1] = {
        let mut rows = [[0; RECENT]; RECENT + 1];
        let mut row = 0;
        while row <= RECENT {
            let mut at = 0;
            while at < RECENT && at <= row {
                rows[row][at] = u32::MAX;
                at += 1;
            }
            row += 1;
        }
        rows
    };

    impl Lanes for V3 {
        type List = (__m256i, __m256i);
        #[inline(always)]
        unsafe fn load(recent: &Recent) -> Self::List {
            // SAFETY: 64 bytes; the caller promises AVX2.
            unsafe {
                let first = recent.as_ptr().cast::<__m256i>();
                (_mm256_loadu_si256(first), _mm256_loadu_si256(first.add(1)))
            }
        }
        #[inline(always)]
        unsafe fn store(list: Self::List) -> Recent {
            // SAFETY: both are 64 bytes of integers.
            unsafe { std::mem::transmute(list) }
        }
        #[inline(always)]
        unsafe fn find(list: Self::List, reference: Reference) -> u32 {
            // SAFETY: the caller promises AVX2.
            unsafe {
                let wanted = _mm256_set1_epi32(reference as i32);
                let low = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(list.0, wanted)));
                let high = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(list.1, wanted)));
                (low | high << 8) as u32
            }
        }
        #[inline(always)]
        unsafe fn front(list: Self::List, reference: Reference, found: u32) -> Self::List {
            // SAFETY: the caller promises AVX2; a place is at most `RECENT`, the last row.
            unsafe {
                let place = ((found | 1 << RECENT).trailing_zeros()) as usize;
                let row = UP_TO.get_unchecked(place).as_ptr().cast::<__m256i>();
                let turn = _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6);
                let low = _mm256_permutevar8x32_epi32(list.0, turn);
                let high = _mm256_permutevar8x32_epi32(list.1, turn);
                let first = _mm256_set1_epi32(reference as i32);
                (
                    _mm256_blendv_epi8(list.0, _mm256_blend_epi32::<1>(low, first), _mm256_loadu_si256(row)),
                    _mm256_blendv_epi8(
                        list.1,
                        _mm256_blend_epi32::<1>(high, low),
                        _mm256_loadu_si256(row.add(1)),
                    ),
                )
            }
        }
        #[inline(always)]
        unsafe fn last(list: Self::List) -> Reference {
            // SAFETY: the caller promises AVX2.
            unsafe { _mm256_extract_epi32::<7>(list.1) as Reference }
        }
        #[inline(always)]
        unsafe fn find_key(keys: *const [u64; KEYS], key: u64) -> u32 {
            // SAFETY: 64 readable bytes; the caller promises AVX2.
            unsafe {
                let wanted = _mm256_set1_epi64x(key as i64);
                let half = |at: usize| {
                    let held = _mm256_loadu_si256(keys.cast::<__m256i>().add(at));
                    _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(held, wanted)))
                };
                (half(0) | half(1) << 4) as u32
            }
        }
    }

    /// AVX-512 (`x86-64-v4`).
    pub(crate) struct V4;

    impl Lanes for V4 {
        type List = __m512i;
        #[inline(always)]
        unsafe fn load(recent: &Recent) -> __m512i {
            // SAFETY: 64 bytes; the caller promises AVX-512.
            unsafe { _mm512_loadu_si512(recent.as_ptr().cast()) }
        }
        #[inline(always)]
        unsafe fn store(list: __m512i) -> Recent {
            // SAFETY: both are 64 bytes of integers.
            unsafe { std::mem::transmute(list) }
        }
        #[inline(always)]
        unsafe fn find(list: __m512i, reference: Reference) -> u32 {
            // SAFETY: the caller promises AVX-512.
            unsafe { _mm512_cmpeq_epi32_mask(list, _mm512_set1_epi32(reference as i32)).into() }
        }
        #[inline(always)]
        unsafe fn front(list: __m512i, reference: Reference, found: u32) -> __m512i {
            // SAFETY: the caller promises AVX-512.
            unsafe {
                // Up to and with the lowest bit; everything when there is none.
                let moved = (found ^ found.wrapping_sub(1)) as __mmask16;
                let first = _mm512_set1_epi32(reference as i32);
                _mm512_mask_alignr_epi32::<15>(list, moved, list, first)
            }
        }
        #[inline(always)]
        unsafe fn last(list: __m512i) -> Reference {
            // SAFETY: the caller promises AVX-512.
            unsafe { _mm_extract_epi32::<3>(_mm512_extracti32x4_epi32::<3>(list)) as Reference }
        }
        #[inline(always)]
        unsafe fn find_key(keys: *const [u64; KEYS], key: u64) -> u32 {
            // SAFETY: 64 readable bytes; the caller promises AVX-512.
            unsafe {
                let held = _mm512_loadu_si512(keys.cast());
                _mm512_cmpeq_epi64_mask(held, _mm512_set1_epi64(key as i64)).into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list that does it the plain way.
    fn agrees<L: Lanes>() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut oracle = vec![0; RECENT];
        // SAFETY: the callers have asked the processor.
        unsafe {
            let mut list = L::load(&[0; RECENT]);
            for _ in 0..3000 {
                let reference = random.u32(1..24);
                let found = L::find(list, reference);
                let place = oracle.iter().position(|held| *held == reference);
                assert_eq!((found != 0).then(|| found.trailing_zeros() as usize), place);
                assert_eq!(Some(&L::last(list)), oracle.last());
                list = L::front(list, reference, found);
                oracle.remove(place.unwrap_or(RECENT - 1));
                oracle.insert(0, reference);
                assert_eq!(L::store(list).as_slice(), oracle);
            }
            let keys = [9, 4, 0, 0, u64::MAX, 5, 1 << 32, 4];
            for (key, found) in [(9, 1), (4, 0x82), (0, 0xc), (u64::MAX, 0x10), (1 << 32, 0x40), (1, 0)] {
                assert_eq!(L::find_key(&raw const keys, key), found);
            }
        }
    }

    #[test]
    fn all_forms_agree_with_a_plain_list() {
        agrees::<Portable>();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            agrees::<V3>();
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            agrees::<V4>();
        }
    }
}
