//! Allocation functions of a module, and their instructions to probe.
//!
//! Known by name in any library: the C and C++ functions, with or without the prefixes of jemalloc,
//! tcmalloc and mimalloc, and Rust's. Known forwarders are left out: a probe costs, and the called
//! function reports.
//!
//! A probe costs about 0.6 µs if the kernel emulates the probed instruction (`push`, `nop`
//! and near jumps: `arch_uprobe_analyze_insn` in arch/x86/kernel/uprobes.c) and about 10 µs
//! in a virtual machine if the kernel must step over the instruction. The probed instruction
//! is therefore the first emulated instruction that every call reaches with the arguments
//! and, if the return is of interest, with the return address on top of the stack.
//!
//! Pure: takes symbols and bytes. Sources of error:
//! a function with a known name and another purpose.

use std::collections::{BTreeMap, HashSet};

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use locality_common::heap::function;

/// A function symbol that a module defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// Its address in the module's own numbering.
    pub address: u64,
}

/// A place to probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Its address in the module's own numbering.
    pub address: u64,
    /// As in `locality_common::heap::function`.
    pub cookie: u64,
    /// Whether the function's return is of interest.
    pub followed: bool,
}

/// What libraries put before the C functions' names.
const PREFIXES: [&str; 6] = ["__libc_", "_rjem_", "_rjem_je_", "je_", "tc_", "mi_"];

/// Bytes of a function that are looked at.
pub const BODY_BYTES: usize = 256;

/// The kind of a function by its name, as a cookie.
fn kind(name: &str) -> Option<u64> {
    let bare = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    let prefixed = bare.len() < name.len();
    let kind = match bare {
        "malloc" | "valloc" | "pvalloc" => function::MALLOC,
        "calloc" => function::CALLOC,
        "realloc" => function::REALLOC,
        "reallocarray" => function::REALLOC_ARRAY,
        "aligned_alloc" | "memalign" => function::MEMALIGN,
        "posix_memalign" => function::POSIX_MEMALIGN,
        "free" | "cfree" | "free_sized" | "free_aligned_sized" => function::FREE,
        "mmap" | "mmap64" if !prefixed => function::MMAP,
        "munmap" if !prefixed => function::MUNMAP,
        // jemalloc's and mimalloc's own.
        "mallocx"
        | "zalloc"
        | "malloc_small"
        | "zalloc_small"
        | "malloc_aligned"
        | "zalloc_aligned"
        | "malloc_aligned_at"
        | "zalloc_aligned_at"
        | "malloc_skip_new_handler"
        | "new_nothrow"
        | "newarray_nothrow"
            if prefixed =>
        {
            function::MALLOC
        }
        "mallocn" | "calloc_aligned" | "calloc_aligned_at" if prefixed => function::CALLOC,
        "rallocx" | "reallocf" | "rezalloc" | "realloc_aligned" | "rezalloc_aligned" if prefixed => {
            function::REALLOC
        }
        "reallocn" | "recalloc" | "recalloc_aligned" if prefixed => function::REALLOC_ARRAY,
        "heap_malloc"
        | "heap_zalloc"
        | "heap_malloc_small"
        | "heap_malloc_aligned"
        | "heap_zalloc_aligned"
            if prefixed =>
        {
            function::MEMALIGN
        }
        "heap_calloc" | "heap_mallocn" | "heap_calloc_aligned" if prefixed => function::HEAP_CALLOC,
        "heap_realloc" | "heap_reallocf" | "heap_rezalloc" | "heap_realloc_aligned" if prefixed => {
            function::HEAP_REALLOC
        }
        "dallocx" | "sdallocx" | "free_size" | "free_size_aligned" | "free_aligned" | "delete"
        | "deletearray" | "delete_sized" | "deletearray_sized"
            if prefixed =>
        {
            function::FREE
        }
        _ if is_cpp(name) => return cpp(name),
        _ if name.contains("__rust_") => return rust(name),
        // `new` and the like with a prefix throw too.
        _ => return None,
    };
    Some(kind.into())
}

/// Whether a name is of a C++ operator: `operator new`,
/// `new[]`, `delete`, `delete[]` (Itanium C++ ABI 5.1.5).
fn is_cpp(name: &str) -> bool {
    ["_Znwm", "_Znam", "_ZdlPv", "_ZdaPv"].iter().any(|prefix| name.starts_with(prefix))
}

/// Functions that report failure by an exception are not probed: the
/// exception could not pass a probe of the return, and the program would
/// end. In the common case the functions call `malloc`, which is probed.
fn cpp(name: &str) -> Option<u64> {
    match (name.starts_with("_Zd"), name.contains("nothrow_t")) {
        (true, _) => Some(function::FREE.into()),
        (_, true) => Some(function::MALLOC.into()),
        _ => None,
    }
}

/// Rust's allocator functions, under their plain names or mangled (`__rustc::__rust_alloc`).
fn rust(name: &str) -> Option<u64> {
    let bare = name.rsplit_once("7___rustc").map_or(name, |(_, rest)| {
        rest.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches('_')
    });
    match bare.trim_start_matches('_') {
        "rust_alloc" | "rust_alloc_zeroed" => Some(function::MALLOC.into()),
        "rust_dealloc" => Some(function::FREE.into()),
        "rust_realloc" => Some(function::RUST_REALLOC.into()),
        _ => None,
    }
}

fn is_rust(name: &str) -> bool {
    name.contains("__rust_") && rust(name).is_some()
}

/// Whether a symbol may be of interest, hence stored.
pub fn is_candidate(name: &str) -> bool {
    kind(name).is_some()
}

/// The places to probe in a module, whose functions' bytes `body` reads.
pub fn points(symbols: &[Symbol], body: impl Fn(u64) -> Vec<u8>) -> Vec<Point> {
    let mut by_address: BTreeMap<u64, (&str, u64)> = BTreeMap::new();
    for symbol in symbols {
        if let Some(cookie) = kind(&symbol.name) {
            by_address.entry(symbol.address).or_insert((&symbol.name, cookie));
        }
    }
    let allocator = by_address.values().any(|(name, cookie)| {
        let which = (cookie & function::MASK) as u32;
        !is_cpp(name) && !is_rust(name) && !matches!(which, function::MMAP | function::MUNMAP)
    });
    // C++ operators call another module's allocator if their own
    // module has none; with an allocator, the operators stay.
    by_address.retain(|_, (name, _)| !is_cpp(name) || allocator);
    by_address.retain(|_, (name, _)| !is_rust(name) || (!allocator && is_own_rust_allocator(symbols)));
    let plain: HashSet<u64> =
        by_address.iter().filter(|(_, (name, _))| !is_cpp(name)).map(|(address, _)| *address).collect();
    let mut points: Vec<Point> = Vec::new();
    for (address, (name, cookie)) in by_address {
        let bytes = body(address);
        if is_cpp(name) && hands_on(address, &bytes, &plain) {
            continue;
        }
        let which = (cookie & function::MASK) as u32;
        let followed = !matches!(which, function::FREE | function::MUNMAP);
        let (at, emulated) = place(address, &bytes, followed);
        let cookie = if emulated { cookie } else { cookie | function::STEPPED };
        points.push(Point { address: at, cookie, followed });
    }
    points.sort_by_key(|point| point.address);
    points.dedup_by_key(|point| point.address);
    points
}

/// Whether the program's global allocator is not the
/// standard allocator, which calls the C library's.
fn is_own_rust_allocator(symbols: &[Symbol]) -> bool {
    !symbols.iter().any(|symbol| symbol.name.contains("__rdl_alloc"))
}

/// Symbols that are informative though not probed.
pub fn is_hint(name: &str) -> bool {
    name.contains("__rdl_alloc")
}

fn decode(address: u64, bytes: &[u8]) -> impl Iterator<Item = Instruction> + '_ {
    let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    std::iter::from_fn(move || (decoder.can_decode()).then(|| decoder.decode()))
        .take_while(|instruction| !instruction.is_invalid())
}

/// Whether a function calls or jumps to an address of `to`.
fn hands_on(address: u64, bytes: &[u8], to: &HashSet<u64>) -> bool {
    decode(address, bytes)
        .any(|instruction| is_near_branch(&instruction) && to.contains(&instruction.near_branch_target()))
}

fn is_near_branch(instruction: &Instruction) -> bool {
    instruction.op_count() > 0
        && matches!(
            instruction.op0_kind(),
            OpKind::NearBranch64 | OpKind::NearBranch32 | OpKind::NearBranch16
        )
}

/// Registers of the arguments that a probe reads.
const ARGUMENTS: [Register; 4] = [Register::RDI, Register::RSI, Register::RDX, Register::RCX];

/// The address at which to probe a function, and whether the kernel emulates the instruction.
fn place(address: u64, bytes: &[u8], followed: bool) -> (u64, bool) {
    let targets: HashSet<u64> = decode(address, bytes)
        .filter(is_near_branch)
        .map(|instruction| instruction.near_branch_target())
        .collect();
    for instruction in decode(address, bytes).take(6) {
        // What is jumped to runs more than once a call, or not in each.
        let at = instruction.ip();
        if at != address && targets.contains(&at) {
            break;
        }
        if is_emulated(&instruction) {
            return (at, true);
        }
        if !leaves_as_is(&instruction, followed) {
            break;
        }
    }
    (address, false)
}

fn is_emulated(instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::ConditionalBranch => instruction.is_jcc_short_or_near(),
        FlowControl::UnconditionalBranch | FlowControl::Call => is_near_branch(instruction),
        _ => {
            instruction.code() == Code::Push_r64
                || (instruction.mnemonic() == Mnemonic::Nop && instruction.len() == 1)
        }
    }
}

/// Whether the call's arguments are unchanged after an instruction, and the return address if it
/// matters.
fn leaves_as_is(instruction: &Instruction, followed: bool) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Endbr64 | Mnemonic::Nop | Mnemonic::Test | Mnemonic::Cmp => true,
        Mnemonic::Mov | Mnemonic::Lea | Mnemonic::Xor => {
            instruction.op0_kind() == OpKind::Register && !holds_argument(instruction.op0_register())
        }
        Mnemonic::Sub => !followed && instruction.op0_register() == Register::RSP,
        _ => false,
    }
}

fn holds_argument(register: Register) -> bool {
    let whole = register.full_register();
    whole == Register::RSP || ARGUMENTS.contains(&whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookie_of(name: &str) -> Option<u64> {
        kind(name)
    }

    #[test]
    fn allocation_functions_are_known_by_their_names() {
        for (name, which) in [
            ("malloc", function::MALLOC),
            ("__libc_malloc", function::MALLOC),
            ("_rjem_malloc", function::MALLOC),
            ("_rjem_mallocx", function::MALLOC),
            ("_rjem_sdallocx", function::FREE),
            ("tc_malloc", function::MALLOC),
            ("mi_zalloc_aligned", function::MALLOC),
            ("mi_realloc", function::REALLOC),
            ("mi_calloc_aligned", function::CALLOC),
            ("mi_mallocn", function::CALLOC),
            ("mi_recalloc", function::REALLOC_ARRAY),
            ("mi_heap_malloc", function::MEMALIGN),
            ("mi_heap_calloc", function::HEAP_CALLOC),
            ("mi_heap_realloc", function::HEAP_REALLOC),
            ("calloc", function::CALLOC),
            ("reallocarray", function::REALLOC_ARRAY),
            ("posix_memalign", function::POSIX_MEMALIGN),
            ("mmap64", function::MMAP),
            ("munmap", function::MUNMAP),
            ("_ZdlPvm", function::FREE),
            ("_ZdaPvSt11align_val_t", function::FREE),
            ("_ZnamRKSt9nothrow_t", function::MALLOC),
            ("__rust_alloc", function::MALLOC),
            ("_RNvCs1234_7___rustc12___rust_alloc", function::MALLOC),
            ("_RNvCs1234_7___rustc14___rust_realloc", function::RUST_REALLOC),
        ] {
            assert_eq!(cookie_of(name), Some(which.into()), "{name}");
        }
        for name in [
            // An exception could not pass through a probe of their return.
            "_Znwm",
            "_Znam",
            "_ZnwmSt11align_val_t",
            "tc_new",
            "mi_new",
            "mi_new_n",
            "mi_heap_new",
            "mi_heap_delete",
            "heap_malloc",
            "mallopt",
            "xmalloc",
            "_ZnwmPv",
            "je_mmap",
            "zalloc",
            "new",
            "delete",
            "malloc_aligned",
            "free_list",
        ] {
            assert_eq!(cookie_of(name), None, "{name}");
        }
    }

    /// glibc 2.36: malloc begins with a push; free tests its argument and jumps.
    const MALLOC: [u8; 8] = [0x41, 0x54, 0x55, 0x53, 0x48, 0x89, 0xfb, 0xc3];
    const FREE: [u8; 12] = [0x48, 0x85, 0xff, 0x0f, 0x84, 0xbf, 0, 0, 0, 0x55, 0x48, 0xc3];

    #[test]
    fn the_first_emulated_instruction_is_probed() {
        assert_eq!(place(0x1000, &MALLOC, true), (0x1000, true));
        assert_eq!(place(0x1000, &FREE, false), (0x1003, true));
        // endbr64; push rbx
        assert_eq!(place(0x1000, &[0xf3, 0x0f, 0x1e, 0xfa, 0x53, 0xc3], true), (0x1004, true));
        // mov rax,rdi; push rbx
        assert_eq!(place(0x1000, &[0x48, 0x89, 0xf8, 0x53, 0xc3], true), (0x1003, true));
        // mov edi,1; push rbx: the argument is gone.
        assert_eq!(place(0x1000, &[0xbf, 1, 0, 0, 0, 0x53, 0xc3], true), (0x1000, false));
        // sub rsp,8; push rbx: the return address is no longer on top.
        assert_eq!(place(0x1000, &[0x48, 0x83, 0xec, 8, 0x53, 0xc3], true), (0x1000, false));
        assert_eq!(place(0x1000, &[0x48, 0x83, 0xec, 8, 0x53, 0xc3], false), (0x1004, true));
        // test rdi,rdi; push rbx; jmp to the push: a loop begins there.
        assert_eq!(place(0x1000, &[0x48, 0x85, 0xff, 0x53, 0xeb, 0xfd], true), (0x1000, false));
        assert_eq!(place(0x1000, &[], true), (0x1000, false));
    }

    fn symbols(of: &[(&str, u64)]) -> Vec<Symbol> {
        of.iter().map(|(name, address)| Symbol { name: (*name).to_owned(), address: *address }).collect()
    }

    #[test]
    fn aliases_are_probed_once_and_what_hands_on_is_not() {
        let libc =
            symbols(&[("malloc", 0x1000), ("__libc_malloc", 0x1000), ("free", 0x2000), ("qsort", 0x3000)]);
        let of_libc =
            points(&libc, |address| if address == 0x1000 { MALLOC.to_vec() } else { FREE.to_vec() });
        assert_eq!(of_libc.iter().map(|point| point.address).collect::<Vec<_>>(), [0x1000, 0x2003]);
        assert_eq!(of_libc.iter().map(|point| point.followed).collect::<Vec<_>>(), [true, false]);
        // libstdc++ has no allocator of its own.
        assert_eq!(points(&symbols(&[("_Znwm", 0x1000), ("_ZdlPv", 0x2000)]), |_| MALLOC.to_vec()), []);
        // Statically linked: operator new calls malloc (push rbx; call 0x1000).
        let program = symbols(&[("malloc", 0x1000), ("_Znwm", 0x5000)]);
        let calls = [0x53, 0xe8, 0xfa, 0xbf, 0xff, 0xff, 0xc3];
        let body = |address| if address == 0x5000 { calls.to_vec() } else { MALLOC.to_vec() };
        assert_eq!(points(&program, body).len(), 1);
        // tcmalloc's allocates by itself, but may throw; the variant that may not is followed,
        // unless it hands on.
        assert_eq!(points(&program, |_| MALLOC.to_vec()).len(), 1);
        let nothrow = symbols(&[("malloc", 0x1000), ("_ZnwmRKSt9nothrow_t", 0x5000)]);
        assert_eq!(points(&nothrow, |_| MALLOC.to_vec()).len(), 2);
        assert_eq!(points(&nothrow, body).len(), 1);
    }

    #[test]
    fn rust_functions_are_probed_only_where_nothing_else_would_tell() {
        let own = [("__rust_alloc", 0x1000), ("__rust_dealloc", 0x2000)];
        assert_eq!(points(&symbols(&own), |_| MALLOC.to_vec()).len(), 2);
        let standard = [own.as_slice(), &[("_RNvCs1_3std5alloc12___rdl_alloc", 0x3000)]].concat();
        let standard: Vec<_> = standard
            .into_iter()
            .map(|(name, at)| if at == 0x3000 { ("__rdl_alloc", at) } else { (name, at) })
            .collect();
        assert_eq!(points(&symbols(&standard), |_| MALLOC.to_vec()), []);
        let jemalloc = [own.as_slice(), &[("_rjem_malloc", 0x3000)]].concat();
        assert_eq!(points(&symbols(&jemalloc), |_| MALLOC.to_vec()).len(), 1);
    }
}
