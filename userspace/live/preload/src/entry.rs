//! The functions that stand before the C library's, in assembly: a call that is not recorded ends
//! in a jump, with all arguments and the return address as they came.
//!
//! What is recorded calls `followed` with the caller's registers in a frame that unwinders know
//! (`.cfi`), so that a signal handler, a debugger or an exception finds its way through it. Only
//! the registers that a call may change are touched otherwise.

use core::arch::{global_asm, naked_asm};
use core::mem::offset_of;

use crate::layout::{Front, STRIPES};
use crate::record::{self, Frame, NOWHERE, Real};
use crate::resolve::{self, Debug, place};
use crate::run::{self, Room};
use crate::start;

global_asm!(
    ".pushsection .data.rel.local.locality, \"aw\", @progbits",
    ".balign 64",
    ".hidden locality_front, locality_real",
    ".globl locality_front, locality_real",
    // The state read by every call: the shared one, or the inactive one.
    "locality_front: .quad {nowhere}",
    // Where calls are handed on to: until the first call, to what finds out.
    "locality_real:",
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20",
    ".quad locality_first_\\n",
    ".endr",
    ".popsection",
    ".pushsection .text.locality, \"ax\", @progbits",
    // The first call of each function.
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20",
    "locality_first_\\n:",
    ".cfi_startproc",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "push rcx",
    ".cfi_adjust_cfa_offset 8",
    "push r8",
    ".cfi_adjust_cfa_offset 8",
    "push r9",
    ".cfi_adjust_cfa_offset 8",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {resolve}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "pop r9",
    ".cfi_adjust_cfa_offset -8",
    "pop r8",
    ".cfi_adjust_cfa_offset -8",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "jmp qword ptr [rip + locality_real + 8 * \\n]",
    ".cfi_endproc",
    ".endr",
    // Stands for what no library defines: no memory (ENOMEM of posix_memalign is its result).
    ".hidden locality_missing",
    ".globl locality_missing",
    "locality_missing:",
    "xor eax, eax",
    "ret",
    // A followed call: the place of the function is in r11.
    ".hidden locality_follow",
    ".globl locality_follow",
    "locality_follow:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_def_cfa_offset 16",
    ".cfi_offset rbp, -16",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push r15",
    ".cfi_offset r15, -24",
    "push r14",
    ".cfi_offset r14, -32",
    "push r13",
    ".cfi_offset r13, -40",
    "push r12",
    ".cfi_offset r12, -48",
    "push rbx",
    ".cfi_offset rbx, -56",
    "push r9",
    "push r8",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "mov rdi, rsp",
    "mov rsi, r11",
    "lea rdx, [rip + locality_real]",
    "sub rsp, 8",
    "call {followed}",
    "add rsp, 56",
    "pop rbx",
    "pop r12",
    "pop r13",
    "pop r14",
    "pop r15",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    ".cfi_restore rbp",
    "ret",
    ".cfi_endproc",
    // Functions that the compiler calls by these names, otherwise the C library's: not exported.
    ".hidden memset, memcpy, memcmp, bcmp, strlen",
    ".globl memset, memcpy, memcmp, bcmp, strlen",
    "memset:",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    "memcpy:",
    "mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    "memcmp:",
    "bcmp:",
    "xor eax, eax",
    "mov rcx, rdx",
    "test rcx, rcx",
    "repe cmpsb",
    "je 2f",
    "movzx eax, byte ptr [rdi - 1]",
    "movzx ecx, byte ptr [rsi - 1]",
    "sub ecx, eax",
    "mov eax, ecx",
    "2:",
    "ret",
    "strlen:",
    "xor eax, eax",
    "3:",
    "cmp byte ptr [rdi + rax], 0",
    "je 4f",
    "inc rax",
    "jmp 3b",
    "4:",
    "ret",
    // Named by the unwind tables of `core`; nothing unwinds.
    ".hidden rust_eh_personality",
    ".globl rust_eh_personality",
    "rust_eh_personality:",
    "ud2",
    // Addresses of what may be absent: 0 then.
    ".weak _r_debug, __environ, getauxval",
    ".hidden locality_weak",
    ".globl locality_weak",
    "locality_weak:",
    "mov rax, [rip + _r_debug@GOTPCREL]",
    "mov [rdi], rax",
    "mov rax, [rip + __environ@GOTPCREL]",
    "mov [rdi + 8], rax",
    "mov rax, [rip + getauxval@GOTPCREL]",
    "mov [rdi + 16], rax",
    ".hidden _DYNAMIC",
    "lea rax, [rip + _DYNAMIC]",
    "mov [rdi + 24], rax",
    "ret",
    ".popsection",
    nowhere = sym NOWHERE,
    resolve = sym resolve_all,
    followed = sym followed,
);

/// Functions that other libraries may have.
#[repr(C)]
#[derive(Default)]
pub struct Weak {
    debug: u64,
    environment: u64,
    auxiliary: u64,
    dynamic: u64,
}

unsafe extern "C" {
    static locality_real: Real;
    static locality_front: core::sync::atomic::AtomicPtr<Front>;
    fn locality_missing() -> u64;
    fn locality_weak(to: *mut Weak);
}

fn weak() -> Weak {
    let mut weak = Weak::default();
    // SAFETY: writes the four fields.
    unsafe { locality_weak(&mut weak) };
    weak
}

extern "C" fn resolve_all() {
    find();
}

/// Finds the real functions, and who allocates.
fn find<'a>() -> resolve::Allocator<'a> {
    let weak = weak();
    // SAFETY: the dynamic linker's record; the table is ours.
    unsafe {
        resolve::resolve(
            weak.debug as *const Debug,
            weak.dynamic,
            &locality_real,
            locality_missing as *const () as u64,
        )
    }
}

unsafe extern "C" fn followed(frame: &Frame, which: u64, real: &Real) -> u64 {
    // SAFETY: the assembly's arguments.
    unsafe { record::followed(frame, which as usize, real) }
}

extern "C" fn freed(address: u64) {
    record::freed(place::FREE, address, 0);
}

extern "C" fn unmapped(address: u64, bytes: u64) {
    record::freed(place::MUNMAP, address, bytes);
}

extern "C" fn leave() {
    // SAFETY: an atomic of ours.
    unsafe {
        locality_front.store((&raw const NOWHERE).cast_mut(), core::sync::atomic::Ordering::Release);
    }
    record::leave();
}

/// Runs before the program does.
extern "C" fn begin() {
    let weak = weak();
    let allocator = find();
    // SAFETY: the C library's own declaration.
    let front = unsafe { start::start(allocator, weak.environment, weak.auxiliary) };
    if let Some(front) = front {
        // SAFETY: an atomic of ours.
        unsafe { locality_front.store(front.cast_mut(), core::sync::atomic::Ordering::Release) };
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// An allocation of `$size` bytes (instructions that leave the size in rax, or jump to 9 on
/// overflow).
macro_rules! allocation {
    ($name:ident, $place:literal, $($size:literal),+) => {
        /// Of the C library.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "endbr64",
                $($size,)+
                "mov r10, [rip + locality_front]",
                "cmp rax, [r10 + {min}]",
                "jae 8f",
                // Counted in the stripe of this stack.
                "mov rax, rsp",
                "shr rax, 16",
                "imul eax, eax, 0x9E3779B1",
                "shr eax, {shift}",
                "shl eax, 6",
                "inc qword ptr [r10 + rax + {small}]",
                "9:",
                concat!("jmp qword ptr [rip + locality_real + 8 * ", $place, "]"),
                "8:",
                concat!("mov r11d, ", $place),
                "jmp locality_follow",
                ".cfi_endproc",
                min = const offset_of!(Front, min_bytes),
                small = const offset_of!(Front, small),
                shift = const 32 - STRIPES.ilog2(),
            )
        }
    };
}

allocation!(malloc, 0, "mov rax, rdi");
allocation!(valloc, 7, "mov rax, rdi");
allocation!(pvalloc, 8, "mov rax, rdi");
allocation!(aligned_alloc, 5, "mov rax, rsi");
allocation!(memalign, 6, "mov rax, rsi");
allocation!(posix_memalign, 4, "mov rax, rdx");
allocation!(calloc, 1, "mov r11, rdx", "mov rax, rdi", "mul rsi", "mov rdx, r11", "jo 9f");

/// A reallocation: as an allocation, but followed too where the block that goes was large.
macro_rules! reallocation {
    ($name:ident, $place:literal, $($size:literal),+) => {
        /// Of the C library.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "endbr64",
                $($size,)+
                "mov r10, [rip + locality_front]",
                "cmp rax, [r10 + {min}]",
                "jae 8f",
                "test rdi, rdi",
                "jz 7f",
                "mov rax, [r10 + {free}]",
                "cmp rax, {off}",
                "jae 7f",
                "cmp [rdi - 8], rax",
                "jae 8f",
                "7:",
                "mov rax, rsp",
                "shr rax, 16",
                "imul eax, eax, 0x9E3779B1",
                "shr eax, {shift}",
                "shl eax, 6",
                "inc qword ptr [r10 + rax + {small}]",
                "9:",
                concat!("jmp qword ptr [rip + locality_real + 8 * ", $place, "]"),
                "8:",
                concat!("mov r11d, ", $place),
                "jmp locality_follow",
                ".cfi_endproc",
                min = const offset_of!(Front, min_bytes),
                free = const offset_of!(Front, free_min),
                off = const i32::MAX,
                small = const offset_of!(Front, small),
                shift = const 32 - STRIPES.ilog2(),
            )
        }
    };
}

reallocation!(realloc, 2, "mov rax, rsi");
reallocation!(reallocarray, 3, "mov r11, rdx", "mov rax, rsi", "mul rdx", "mov rdx, r11", "jo 9f");

/// Of the C library. The size of a chunk of glibc's lies before it, with three flags.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free() {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "test rdi, rdi",
        "jz 9f",
        "mov rax, [rip + locality_front]",
        "mov rax, [rax + {free}]",
        // Off, and then what is not glibc's is not read.
        "cmp rax, {off}",
        "jae 9f",
        "cmp [rdi - 8], rax",
        "jae 8f",
        "9:",
        "jmp qword ptr [rip + locality_real + 8 * 11]",
        "8:",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "call {freed}",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp 9b",
        ".cfi_endproc",
        free = const offset_of!(Front, free_min),
        off = const i32::MAX,
        freed = sym freed,
    )
}

/// Memory that is neither a file nor marked as a stack (`MAP_ANONYMOUS` without `MAP_STACK`).
macro_rules! mapping {
    ($name:ident, $place:literal) => {
        /// Of the C library.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "endbr64",
                "mov rax, [rip + locality_front]",
                "cmp rsi, [rax + {min}]",
                "jb 9f",
                "mov eax, ecx",
                "and eax, 0x20020",
                "cmp eax, 0x20",
                "je 8f",
                "9:",
                concat!("jmp qword ptr [rip + locality_real + 8 * ", $place, "]"),
                "8:",
                concat!("mov r11d, ", $place),
                "jmp locality_follow",
                ".cfi_endproc",
                min = const offset_of!(Front, min_bytes),
            )
        }
    };
}

mapping!(mmap, 9);
mapping!(mmap64, 10);

/// Of the C library.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap() {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "mov rax, [rip + locality_front]",
        "cmp rsi, [rax + {free}]",
        "jae 8f",
        "9:",
        "jmp qword ptr [rip + locality_real + 8 * 12]",
        "8:",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {unmapped}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp 9b",
        ".cfi_endproc",
        free = const offset_of!(Front, free_min),
        unmapped = sym unmapped,
    )
}

/// Of the C library: a process that gives up reading the time stamp counter (strict seccomp,
/// `PR_SET_TSC`) is recorded no more.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl() {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        // PR_SET_SECCOMP: strict, or a filter.
        "cmp edi, 22",
        "jne 2f",
        "mov byte ptr [rip + {confined}], 1",
        "cmp rsi, 1",
        "je 8f",
        "2:",
        // PR_SET_TSC
        "cmp edi, 26",
        "je 8f",
        "9:",
        "jmp qword ptr [rip + locality_real + 8 * 13]",
        "8:",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "call {leave}",
        "pop r8",
        ".cfi_adjust_cfa_offset -8",
        "pop rcx",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp 9b",
        ".cfi_endproc",
        leave = sym leave,
        confined = sym run::CONFINED,
    )
}

/// Of the C library, for the same.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall() {
    naked_asm!(
        ".cfi_startproc",
        "endbr64",
        // prctl
        "cmp rdi, 157",
        "jne 2f",
        "cmp esi, 26",
        "je 8f",
        "cmp esi, 22",
        "jne 9f",
        "mov byte ptr [rip + {confined}], 1",
        "cmp rdx, 1",
        "je 8f",
        "jmp 9f",
        "2:",
        // seccomp(SECCOMP_SET_MODE_STRICT, …)
        "cmp rdi, 317",
        "jne 9f",
        "mov byte ptr [rip + {confined}], 1",
        "test esi, esi",
        "jz 8f",
        "9:",
        "jmp qword ptr [rip + locality_real + 8 * 14]",
        "8:",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "push rcx",
        ".cfi_adjust_cfa_offset 8",
        "push r8",
        ".cfi_adjust_cfa_offset 8",
        "push r9",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {leave}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop r9",
        ".cfi_adjust_cfa_offset -8",
        "pop r8",
        ".cfi_adjust_cfa_offset -8",
        "pop rcx",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp 9b",
        ".cfi_endproc",
        leave = sym leave,
        confined = sym run::CONFINED,
    )
}

/// The real function of a place.
fn real(at: usize) -> u64 {
    // SAFETY: a table of atomics.
    unsafe { locality_real.get(at) }.map_or(0, |real| real.load(core::sync::atomic::Ordering::Relaxed))
}

/// The process' environment; null where the C library has none that could be found.
fn environment() -> *const *const u8 {
    let at = weak().environment as *const *const *const u8;
    // SAFETY: null, or the C library's variable.
    unsafe { at.as_ref() }.copied().unwrap_or(core::ptr::null())
}

type Strings = *const *const u8;

/// Hands an exec on, with our variables where the program may be recorded.
unsafe fn exec(at: usize, program: *const u8, arguments: Strings, variables: Strings, recorded: bool) -> i32 {
    let mut room = Room::default();
    let mut variables = variables;
    if recorded && !variables.is_null() {
        // SAFETY: the environment of an exec.
        variables = unsafe { room.fill(variables) }.unwrap_or(variables);
    }
    // SAFETY: the C library's function of that name.
    unsafe {
        let real: unsafe extern "C" fn(*const u8, Strings, Strings) -> i32 =
            core::mem::transmute(real(at) as *const ());
        real(program, arguments, variables)
    }
}

/// Of the C library.
///
/// # Safety
/// As above; so for the following ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(path: *const u8, arguments: Strings, variables: Strings) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { exec(place::EXECVE, path, arguments, variables, run::may(path)) }
}

/// Of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const u8, arguments: Strings) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { exec(place::EXECVE, path, arguments, environment(), run::may(path)) }
}

/// Of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const u8, arguments: Strings) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, arguments, environment()) }
}

/// Of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(file: *const u8, arguments: Strings, variables: Strings) -> i32 {
    // SAFETY: the caller's promise.
    unsafe {
        let path = run::value(environment(), b"PATH=");
        exec(place::EXECVPE, file, arguments, variables, run::search(file, path))
    }
}

/// Hands a spawn on, as [`exec`].
unsafe fn spawn(
    at: usize,
    plan: [*const u8; 4],
    arguments: Strings,
    variables: Strings,
    recorded: bool,
) -> i32 {
    let mut room = Room::default();
    let mut variables = variables;
    // The child's actions may change its folder.
    let moves = plan[2].is_null();
    // SAFETY: the path of a spawn.
    let whole = unsafe { *plan[1] } == b'/';
    if recorded && (moves || whole) && !variables.is_null() {
        // SAFETY: the environment of a spawn.
        variables = unsafe { room.fill(variables) }.unwrap_or(variables);
    }
    // SAFETY: the C library's function of that name.
    unsafe {
        let real: unsafe extern "C" fn(*const u8, *const u8, *const u8, *const u8, Strings, Strings) -> i32 =
            core::mem::transmute(real(at) as *const ());
        real(plan[0], plan[1], plan[2], plan[3], arguments, variables)
    }
}

/// Of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *const u8,
    path: *const u8,
    actions: *const u8,
    attributes: *const u8,
    arguments: Strings,
    variables: Strings,
) -> i32 {
    let plan = [pid, path, actions, attributes];
    // SAFETY: the caller's promise.
    unsafe { spawn(place::POSIX_SPAWN, plan, arguments, variables, run::may(path)) }
}

/// Of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *const u8,
    file: *const u8,
    actions: *const u8,
    attributes: *const u8,
    arguments: Strings,
    variables: Strings,
) -> i32 {
    let plan = [pid, file, actions, attributes];
    // SAFETY: the caller's promise.
    unsafe {
        let path = run::value(environment(), b"PATH=");
        spawn(place::POSIX_SPAWNP, plan, arguments, variables, run::search(file, path))
    }
}
