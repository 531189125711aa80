//! Copies registers, text and stack of the current thread into a record. Reads never block: a page
//! that is not present ends the copy.

use core::arch::asm;

use aya_ebpf::{
    bindings::pt_regs,
    helpers::generated::{bpf_probe_read_user, bpf_probe_read_user_str},
};
use locality_common::{
    record::{CODE_BYTES, Code, REGISTERS, Registers, STACK_BYTES_MAX, WatchedWords},
    rules::{self, PAGE_BYTES, WORD_BYTES},
};

use crate::maps::{self, WATCHED};

/// Pages that the scratch buffer has room for after the first partial page.
const PAGES_MAX: u32 = 8;

/// Field by field, because the verifier allows only whole-field reads of the context.
#[inline(always)]
pub fn registers(from: *const pt_regs, to: *mut Registers) {
    macro_rules! copy {
        ($($field:ident)*) => {
            // SAFETY: `from` is the program's context or a verified copy, `to` lies in the scratch value.
            $(unsafe { (*to).$field = (*from).$field };)*
        };
    }
    copy!(r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss);
}

/// Text around `ip`: centred if the neighbouring page is present too, else inside the page of `ip`.
#[inline(always)]
pub fn code(ip: u64, to: *mut Code) {
    let centred = ip.wrapping_sub(CODE_BYTES as u64 / 2);
    let mut start = centred;
    // SAFETY: `to` lies in the scratch value; the helper checks the source.
    let mut failed =
        unsafe { bpf_probe_read_user((&raw mut (*to).bytes).cast(), CODE_BYTES as u32, centred as *const _) };
    if failed != 0 {
        start = rules::code_window_in_page(ip, CODE_BYTES as u64);
        // SAFETY: as above.
        failed = unsafe {
            bpf_probe_read_user((&raw mut (*to).bytes).cast(), CODE_BYTES as u32, start as *const _)
        };
    }
    // SAFETY: `to` lies in the scratch value.
    unsafe {
        (*to).start = start;
        (*to).len = if failed == 0 { CODE_BYTES as u32 } else { 0 };
        (*to).reserved = 0;
    }
}

/// The copied part of a stack.
pub struct Copied {
    pub bytes: u32,
    /// Watched words fetched apart.
    pub nested_traps: u32,
}

/// Copies the stack of a thread of `tgid` from `rsp` upwards; stops at the first absent page.
#[inline(always)]
pub fn stack(tgid: u32, rsp: u64, to: *mut u8) -> Copied {
    let none = WatchedWords::default().words;
    // SAFETY: the entry may change while it is read; each word is then an old or a new one, and
    // both are addresses.
    let watched = unsafe { WATCHED.get(tgid) }.map_or(none, |watched| watched.words);
    let pages = maps::stack_pages();
    let mut copied = Copied { bytes: 0, nested_traps: 0 };
    let first = PAGE_BYTES - (rsp & (PAGE_BYTES - 1));
    if !piece(rsp, 0, first, &watched, to, &mut copied) {
        return copied;
    }
    for page in 0..PAGES_MAX {
        let at = first + u64::from(page) * PAGE_BYTES;
        if page >= pages || !piece(rsp, at, PAGE_BYTES, &watched, to, &mut copied) {
            break;
        }
    }
    copied
}

/// Copies `bytes` bytes of one page of the stack, `at` bytes above `rsp`, to
/// offset `at` in `to`, a watched word separately: in a bulk copy, each byte of
/// the word would trap. With two watched words in a page, one is fetched apart.
#[inline(always)]
fn piece(
    rsp: u64,
    at: u64,
    bytes: u64,
    watched: &[u64; REGISTERS],
    to: *mut u8,
    copied: &mut Copied,
) -> bool {
    let done = match rules::watched_offset(rsp.wrapping_add(at), bytes, watched) {
        None => read(rsp, at, bytes, to),
        Some(offset) => {
            copied.nested_traps += 1;
            let word = at + offset;
            let behind = word + WORD_BYTES;
            read(rsp, at, offset, to)
                && read_watched(rsp, word, to)
                && read(rsp, behind, (at + bytes).wrapping_sub(behind), to)
        }
    };
    if done {
        copied.bytes += bytes as u32;
    }
    done
}

#[inline(always)]
fn read(rsp: u64, at: u64, bytes: u64, to: *mut u8) -> bool {
    // The verifier does not follow the callers' bounds, and the compiler does:
    // hide the values from the compiler, which then leaves the checks in.
    let (at, bytes) = (opaque(at), opaque(bytes));
    if at > STACK_BYTES_MAX as u64 || bytes > PAGE_BYTES {
        return false;
    }
    // SAFETY: `to` has room for `STACK_BYTES_MAX` bytes and a page; the helper checks the source.
    unsafe {
        bpf_probe_read_user(to.add(at as usize).cast(), bytes as u32, rsp.wrapping_add(at) as *const _) == 0
    }
}

/// Copies a watched word with one trap. Only the string helper loads whole
/// words (`do_strncpy_from_user` in lib/strncpy_from_user.c); the helper
/// blanks the bytes after a zero byte, and the bytes after the first zero are
/// fetched again. The eighth byte comes out as zero, as in every address.
#[inline(always)]
fn read_watched(rsp: u64, at: u64, to: *mut u8) -> bool {
    let at = opaque(at);
    if at > STACK_BYTES_MAX as u64 {
        return false;
    }
    let from = rsp.wrapping_add(at);
    // SAFETY: `to` has room for `STACK_BYTES_MAX` bytes and a page; the helper checks the source.
    unsafe {
        let to = to.add(at as usize);
        to.cast::<u64>().write_unaligned(0);
        let until_zero =
            opaque(bpf_probe_read_user_str(to.cast(), WORD_BYTES as u32, from as *const _) as u64);
        if (1..=5).contains(&until_zero) {
            // The compiler tests a copy of the count. Verifiers before Linux 7.0 do not
            // carry the bound back to the count, and the mask bounds the used value.
            let behind = opaque(until_zero) & 7;
            let rest = (WORD_BYTES - behind) as u32;
            bpf_probe_read_user_str(
                to.add(behind as usize).cast(),
                rest,
                from.wrapping_add(behind) as *const _,
            );
        }
        until_zero as i64 > 0
    }
}

/// Replaces a word of the copy `to`, `at` bytes from its start.
#[inline(always)]
pub fn put_word(at: u64, word: u64, to: *mut u8) {
    let at = opaque(at);
    if at > STACK_BYTES_MAX as u64 {
        return;
    }
    // SAFETY: `to` has room for `STACK_BYTES_MAX` bytes and a page.
    unsafe { to.add(at as usize).cast::<u64>().write_unaligned(word) };
}

/// The same value, hidden from the compiler.
#[inline(always)]
fn opaque(mut value: u64) -> u64 {
    // SAFETY: a register is moved to itself. (Without an instruction, two lines would
    // claim one place in the line table, and the kernel would refuse the program.)
    unsafe { asm!("{0} = {0}", inout(reg) value) };
    value
}
