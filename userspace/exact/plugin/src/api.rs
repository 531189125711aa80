//! The QEMU plugin interface: the few functions that we call, found by name at run time.
//!
//! Nothing is linked: `dlsym` finds what this QEMU has, so that one binary serves every version and
//! a missing function is a reason, not a crash of the loader. Source: `include/qemu/qemu-plugin.h`
//! of QEMU 7.2 (interface version 1), 8.2 (1) and 10.0 (4; its oldest accepted is 2,
//! <https://gitlab.com/qemu-project/qemu/-/blob/v10.0.0/plugins/plugin.h>). Not used, because they
//! changed between those versions: `qemu_plugin_insn_data` (3 made it copy) and inline counters (2
//! made them per vCPU). In user mode the bytes of an instruction lie at its host address.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// A plugin's number, given at installation.
pub type Id = u64;

/// A translation block while it is translated; opaque.
#[repr(C)]
pub struct Tb {
    _opaque: [u8; 0],
}

/// An instruction while it is translated; opaque.
#[repr(C)]
pub struct Insn {
    _opaque: [u8; 0],
}

/// `QEMU_PLUGIN_CB_NO_REGS`: the callback reads no registers.
pub const NO_REGS: c_int = 0;
/// `QEMU_PLUGIN_MEM_R`.
pub const MEM_READ: c_int = 1;
/// `QEMU_PLUGIN_MEM_W`.
pub const MEM_WRITE: c_int = 2;

/// A memory access: vCPU, what QEMU knows of it, guest address, our word.
pub type OnMemory = unsafe extern "C" fn(c_uint, u32, u64, *mut c_void);
/// A block begins: vCPU, our word.
pub type OnBlock = unsafe extern "C" fn(c_uint, *mut c_void);
/// A vCPU begins or ends.
pub type OnVcpu = unsafe extern "C" fn(Id, c_uint);
/// A block is translated.
pub type OnTranslate = unsafe extern "C" fn(Id, *mut Tb);
/// A system call: vCPU, number, eight arguments.
pub type OnSyscall = unsafe extern "C" fn(Id, c_uint, i64, u64, u64, u64, u64, u64, u64, u64, u64);
/// A system call returns: vCPU, number, result.
pub type OnSyscallReturn = unsafe extern "C" fn(Id, c_uint, i64, i64);

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident = $name:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of this QEMU.
        #[derive(Clone, Copy)]
        pub struct Api {
            $($(#[$doc])* pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Api {
            /// Finds all functions, or names the missing one.
            pub fn find() -> Result<Self, &'static str> {
                Ok(Self { $($field: {
                    let found = symbol($name).ok_or(concat!("this qemu-x86_64 lacks ", $name))?;
                    // SAFETY: QEMU exports a function of this name with this signature in every
                    // version listed above.
                    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found) }
                },)* })
            }
        }
    };
}

functions! {
    /// Calls back when a vCPU ends; not when the process is killed.
    register_vcpu_exit = "qemu_plugin_register_vcpu_exit_cb": fn(Id, OnVcpu);
    /// Calls back when a block is translated, before it first runs.
    register_translate = "qemu_plugin_register_vcpu_tb_trans_cb": fn(Id, OnTranslate);
    /// Calls back before a system call.
    register_syscall = "qemu_plugin_register_vcpu_syscall_cb": fn(Id, OnSyscall);
    /// Calls back after a system call.
    register_syscall_return = "qemu_plugin_register_vcpu_syscall_ret_cb": fn(Id, OnSyscallReturn);
    /// Calls back whenever the block runs.
    register_block = "qemu_plugin_register_vcpu_tb_exec_cb": fn(*mut Tb, OnBlock, c_int, *mut c_void);
    /// Calls back at the instruction's accesses in the given direction.
    register_memory = "qemu_plugin_register_vcpu_mem_cb": fn(*mut Insn, OnMemory, c_int, c_int, *mut c_void);
    /// Instructions of a block.
    block_length = "qemu_plugin_tb_n_insns": fn(*const Tb) -> usize;
    /// One instruction of a block.
    block_instruction = "qemu_plugin_tb_get_insn": fn(*const Tb, usize) -> *mut Insn;
    /// Bytes of an instruction.
    instruction_size = "qemu_plugin_insn_size": fn(*const Insn) -> usize;
    /// Guest address of an instruction.
    instruction_address = "qemu_plugin_insn_vaddr": fn(*const Insn) -> u64;
    /// Host address of an instruction's bytes.
    instruction_host = "qemu_plugin_insn_haddr": fn(*const Insn) -> *const c_void;
    /// log2 of the bytes of one access.
    memory_size_shift = "qemu_plugin_mem_size_shift": fn(u32) -> c_uint;
    /// Whether an access writes.
    memory_is_store = "qemu_plugin_mem_is_store": fn(u32) -> bool;
}

fn symbol(name: &str) -> Option<*mut c_void> {
    let mut text = [0 as c_char; 64];
    for (to, from) in text.iter_mut().take(63).zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: `text` is a string that ends in 0.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, text.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The version of the interface that we ask for: 1 is the newest of QEMU 7.2 and 8.2, and since 9.0
/// QEMU wants 2 or more. The counters that are not per vCPU went with version 2, so their presence
/// tells the two apart.
pub fn wanted_version() -> c_int {
    match symbol("qemu_plugin_register_vcpu_tb_exec_inline") {
        Some(_) => 1,
        None => 2,
    }
}

/// The words after the file name in `-plugin FILE,name=value…`.
///
/// # Safety
/// `count` strings that end in 0, as QEMU hands them to `qemu_plugin_install`.
pub unsafe fn arguments(count: c_int, words: *const *const c_char) -> Vec<String> {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: promised by the caller.
    let word = |at| unsafe { CStr::from_ptr(*words.add(at)).to_string_lossy().into_owned() };
    (0..count).map(word).collect()
}
