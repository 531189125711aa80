//! Runs a stub and catches what it does wrong: a fault in a stub is a signal, whose handler goes on
//! after the call.
//!
//! The handlers are the process'; a signal from elsewhere is passed on to the action that was there
//! before. They need an alternate stack, which each thread that runs windows gets.

use std::arch::asm;
use std::cell::Cell;
use std::mem::{MaybeUninit, offset_of};
use std::sync::Once;
use std::{io, ptr};

use crate::context::Context;

const SIGNALS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
/// Bytes of the alternate stack: a frame with the AMX tiles takes 11 KiB.
const STACK: usize = 64 << 10;

thread_local! {
    /// The context of the stub running in this thread.
    static CURRENT: Cell<*mut Context> = const { Cell::new(ptr::null_mut()) };
    static HAS_STACK: Cell<bool> = const { Cell::new(false) };
}

static INSTALL: Once = Once::new();
static mut BEFORE: [MaybeUninit<libc::sigaction>; 5] = [const { MaybeUninit::zeroed() }; 5];

/// Installs the handlers, once a process, and this thread's alternate stack, once a thread.
pub(crate) fn prepare() -> io::Result<()> {
    let mut result = Ok(());
    INSTALL.call_once(|| {
        for (n, signal) in SIGNALS.into_iter().enumerate() {
            // SAFETY: a zeroed sigaction is a valid one; `BEFORE` is written here only, before any
            // handler runs.
            let done = unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
                let before = (&raw mut BEFORE).cast::<libc::sigaction>().add(n);
                libc::sigaction(signal, &raw const action, before)
            };
            if done != 0 {
                result = Err(io::Error::last_os_error());
            }
        }
    });
    result?;
    if !HAS_STACK.get() {
        let memory = Box::leak(vec![0_u8; STACK].into_boxed_slice());
        let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
        // SAFETY: the memory is leaked, hence permanent.
        if unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        HAS_STACK.set(true);
    }
    Ok(())
}

/// In a stub: notes the fault and goes on after the call. Elsewhere: does what would have been
/// done without us.
extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let current = CURRENT.get();
    let machine = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel hands a valid ucontext; `current` is null or a live context of this thread.
    unsafe {
        let registers = &mut (*machine).uc_mcontext.gregs;
        let ip = registers[libc::REG_RIP as usize] as u64;
        if !current.is_null() && ip >= (*current).code && ip < (*current).code_end {
            (*current).fault = signal as u64;
            registers[libc::REG_RIP as usize] = (*current).resume as i64;
            registers[libc::REG_RSP as usize] = (*current).stack as i64;
            registers[libc::REG_EFL as usize] = 0x202;
            return;
        }
        pass_on(signal, info, context);
    }
}

/// Hands a signal to the former action.
///
/// # Safety
/// Only from a handler, with its arguments.
unsafe fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type Full = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
    let Some(n) = SIGNALS.iter().position(|known| *known == signal) else { return };
    // SAFETY: `BEFORE` was filled before the handler was installed; an action that is neither of
    // the two constants is a function of the kind that its flags say.
    unsafe {
        let before = (&raw const BEFORE).cast::<libc::sigaction>().add(n);
        match (*before).sa_sigaction {
            libc::SIG_IGN if (*info).si_code <= 0 => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                // A fault comes again as soon as this returns; what somebody sent has to be sent again.
                libc::signal(signal, libc::SIG_DFL);
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
            action if (*before).sa_flags & libc::SA_SIGINFO != 0 => {
                std::mem::transmute::<usize, Full>(action)(signal, info, context);
            }
            action => std::mem::transmute::<usize, extern "C" fn(i32)>(action)(signal),
        }
    }
}

/// Runs the stub at `stub` with the address of its operand. False when it faulted: registers and
/// memory are then as before.
///
/// # Safety
/// `stub` must be one that [`crate::stub`] made for this context, and `operand` must point to as
/// many readable and writable bytes as its instruction accesses.
#[inline(always)]
pub(crate) unsafe fn call(context: &mut Context, stub: u64, operand: *mut u8) -> bool {
    // SAFETY: the stub changes no more than what is declared as clobbered, the context and the
    // operand's bytes. A fault continues at label 2 with the stack pointer stored here, hence with
    // the same frame.
    unsafe {
        asm!(
            "push rbx",
            "push rbp",
            "lea rax, [rip + 2f]",
            "mov [rdx + {resume}], rax",
            "mov [rdx + {stack}], rsp",
            "call rsi",
            "2:",
            "pop rbp",
            "pop rbx",
            resume = const offset_of!(Context, resume),
            stack = const offset_of!(Context, stack),
            inout("rdx") ptr::from_mut(context) => _,
            inout("rsi") stub => _,
            inout("rdi") operand => _,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
            clobber_abi("sysv64"),
        );
    }
    if context.fault == 0 {
        return true;
    }
    clean(context);
    false
}

/// After a fault: the state in which compiled code runs.
#[cold]
fn clean(context: &mut Context) {
    context.fault = 0;
    // SAFETY: loads the default MXCSR and an empty x87 state, which is what compiled code expects.
    unsafe {
        asm!("ldmxcsr [{0}]", "fninit", in(reg) &raw const context.host_mxcsr, clobber_abi("sysv64"));
        if std::is_x86_feature_detected!("avx") {
            asm!("vzeroupper", clobber_abi("sysv64"));
        }
    }
}

/// While it lives, faults in stubs of the context are caught in this thread.
pub(crate) struct Guard;

impl Guard {
    pub(crate) fn new(context: &mut Context) -> Guard {
        context.fault = 0;
        CURRENT.set(ptr::from_mut(context));
        Guard
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        CURRENT.set(ptr::null_mut());
    }
}
