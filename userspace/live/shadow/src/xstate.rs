//! Vector and x87 state to and from the XSAVE area's standard form (Intel SDM, volume 1, chapter 13).
//!
//! Stored are x87, SSE, AVX and the three components of AVX-512; others (PKRU, AMX tiles, shadow
//! stacks) are passed on unchanged.

use std::arch::x86_64::{__cpuid_count, __get_cpuid_max, _xgetbv};

use crate::context::{Context, HOST_MXCSR};

/// First byte of the header.
pub(crate) const HEADER: usize = 512;
/// First byte of the components, in the compacted form too.
pub(crate) const COMPONENTS: usize = 576;
pub(crate) const MXCSR: usize = 24;
pub(crate) const XMM: usize = 160;
/// Components that a context holds.
pub(crate) const HELD: u64 = 0xe7;
/// PKRU.
pub(crate) const PROTECTION_KEYS: u64 = 1 << 9;
/// Shadow-stack pointers of user mode.
pub(crate) const SHADOW_STACK: u64 = 1 << 11;

/// One component of the area.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Component {
    /// In the standard form.
    pub(crate) offset: usize,
    pub(crate) size: usize,
    /// Aligned to 64 in the compacted form.
    pub(crate) aligned: bool,
}

/// Layout of this processor's area.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layout {
    /// Components that the kernel has enabled (XCR0); 0 without XSAVE.
    pub(crate) enabled: u64,
    pub(crate) components: [Component; 32],
}

impl Layout {
    pub(crate) fn detect() -> Layout {
        let mut layout = Layout::default();
        if !std::is_x86_feature_detected!("xsave") || __get_cpuid_max(0).0 < 0xd {
            return layout;
        }
        // SAFETY: the processor has XSAVE, and std's detection says that the kernel enabled it.
        layout.enabled = unsafe { _xgetbv(0) };
        for (n, component) in layout.components.iter_mut().enumerate().skip(2) {
            if layout.enabled >> n & 1 != 0 {
                let leaf = __cpuid_count(0xd, n as u32);
                *component = Component {
                    offset: leaf.ebx as usize,
                    size: leaf.eax as usize,
                    aligned: leaf.ecx & 2 != 0,
                };
            }
        }
        layout
    }

    fn of(&self, component: usize) -> Component {
        self.components.get(component).copied().unwrap_or_default()
    }

    /// Bytes of the standard form with these components, and where each begins.
    pub(crate) fn standard(&self, components: u64) -> (usize, [usize; 32]) {
        let mut offsets = [0; 32];
        let mut end = COMPONENTS;
        for n in (2..32).filter(|n| components >> n & 1 != 0) {
            offsets[n] = self.of(n).offset;
            end = end.max(self.of(n).offset + self.of(n).size);
        }
        (end, offsets)
    }

    /// The same of the compacted form.
    pub(crate) fn compacted(&self, components: u64) -> (usize, [usize; 32]) {
        let mut offsets = [0; 32];
        let mut end = COMPONENTS;
        for n in (2..32).filter(|n| components >> n & 1 != 0) {
            if self.of(n).aligned {
                end = end.next_multiple_of(64);
            }
            offsets[n] = end;
            end += self.of(n).size;
        }
        (end, offsets)
    }
}

/// The number at `offset`; 0 where the bytes end before.
pub(crate) fn word(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(found) = bytes.get(offset..offset + 8) {
        word.copy_from_slice(found);
    }
    u64::from_le_bytes(word)
}

/// Copies `from` to the place `at` in `to`, as far as there is room.
fn put(to: &mut [u8], at: usize, from: &[u8]) {
    if let Some(place) = to.get_mut(at..at + from.len()) {
        place.copy_from_slice(from);
    }
}

/// Copies from the place `at`; false, and zeros, where the bytes end before.
fn take(from: &[u8], at: usize, to: &mut [u8]) -> bool {
    match from.get(at..at + to.len()) {
        Some(found) => {
            to.copy_from_slice(found);
            true
        }
        None => {
            to.fill(0);
            false
        }
    }
}

/// The x87 state after `fninit`, with the host's MXCSR.
pub(crate) fn initial_fx(context: &mut Context) {
    context.fx = [0; 512];
    put(&mut context.fx, 0, &0x37f_u16.to_le_bytes());
    put(&mut context.fx, MXCSR, &HOST_MXCSR.to_le_bytes());
}

/// Loads component `n` of those stored, which begins at `at` (x87 and SSE: anywhere), or its initial state.
pub(crate) fn load(context: &mut Context, n: usize, area: &[u8], at: usize, present: bool) {
    let none: &[u8] = &[];
    let area = if present { area } else { none };
    match n {
        0 => {
            initial_fx(context);
            let mut fx = [0; 160];
            if take(area, 0, &mut fx) {
                put(&mut context.fx, 0, &fx);
                put(&mut context.fx, MXCSR, &HOST_MXCSR.to_le_bytes());
                put(&mut context.fx, MXCSR + 4, &[0; 4]);
            }
        }
        1 => {
            for (register, vector) in context.vectors.iter_mut().enumerate().take(16) {
                take(area, XMM + register * 16, &mut vector[..16]);
            }
        }
        2 => {
            for (register, vector) in context.vectors.iter_mut().enumerate().take(16) {
                take(area, at + register * 16, &mut vector[16..32]);
            }
        }
        5 => {
            for (register, mask) in context.masks.iter_mut().enumerate() {
                *mask = word(area, at + register * 8);
            }
        }
        6 => {
            for (register, vector) in context.vectors.iter_mut().enumerate().take(16) {
                take(area, at + register * 32, &mut vector[32..]);
            }
        }
        7 => {
            for (register, vector) in context.vectors.iter_mut().skip(16).enumerate() {
                take(area, at + register * 64, vector);
            }
        }
        _ => {}
    }
}

/// Stores component `n`, of which MXCSR is not a part.
pub(crate) fn store(context: &Context, n: usize, area: &mut [u8], at: usize) {
    match n {
        0 => {
            put(area, 0, &context.fx[..MXCSR]);
            put(area, 32, &context.fx[32..XMM]);
        }
        1 => {
            for (register, vector) in context.vectors.iter().enumerate().take(16) {
                put(area, XMM + register * 16, &vector[..16]);
            }
        }
        2 => {
            for (register, vector) in context.vectors.iter().enumerate().take(16) {
                put(area, at + register * 16, &vector[16..32]);
            }
        }
        5 => {
            for (register, mask) in context.masks.iter().enumerate() {
                put(area, at + register * 8, &mask.to_le_bytes());
            }
        }
        6 => {
            for (register, vector) in context.vectors.iter().enumerate().take(16) {
                put(area, at + register * 32, &vector[32..]);
            }
        }
        7 => {
            for (register, vector) in context.vectors.iter().skip(16).enumerate() {
                put(area, at + register * 64, vector);
            }
        }
        _ => {}
    }
}

/// Components not in their initial state.
pub(crate) fn in_use(context: &Context) -> u64 {
    let any = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    let low = &context.vectors[..16];
    let x87 =
        context.fx[..2] != 0x37f_u16.to_le_bytes() || any(&context.fx[2..MXCSR]) || any(&context.fx[32..XMM]);
    u64::from(x87)
        | u64::from(low.iter().any(|vector| any(&vector[..16]))) << 1
        | u64::from(low.iter().any(|vector| any(&vector[16..32]))) << 2
        | u64::from(context.masks != [0; 8]) << 5
        | u64::from(low.iter().any(|vector| any(&vector[32..]))) << 6
        | u64::from(context.vectors[16..].iter().any(|vector| any(vector))) << 7
}

/// Loads a thread's state; missing bytes are taken as the initial state.
pub(crate) fn enter(context: &mut Context, layout: &Layout, extended: &[u8]) {
    let present = word(extended, HEADER);
    let has_legacy = extended.len() >= HEADER;
    // Without a header (fxsave alone) the legacy part counts.
    let present = if extended.len() >= COMPONENTS { present } else { 3 };
    for n in [0, 1, 2, 5, 6, 7] {
        let at = layout.of(n).offset;
        let known = n < 2 || at != 0;
        load(context, n, extended, at, has_legacy && known && present >> n & 1 != 0);
    }
    context.mxcsr = if has_legacy { word(extended, MXCSR) as u32 & 0xffff } else { HOST_MXCSR };
}

/// Writes the state back over `extended`, as far as that reaches.
pub(crate) fn leave(context: &Context, layout: &Layout, extended: &mut [u8]) {
    if extended.len() < HEADER {
        return;
    }
    let used = in_use(context);
    for n in [0, 1, 2, 5, 6, 7] {
        let at = layout.of(n).offset;
        if n < 2 || at != 0 {
            store(context, n, extended, at);
        }
    }
    put(extended, MXCSR, &context.mxcsr.to_le_bytes());
    let present = word(extended, HEADER) & !HELD | used;
    put(extended, HEADER, &present.to_le_bytes());
}
