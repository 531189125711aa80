//! Records that the eBPF programs write to the ring buffer.
//!
//! A record is a fixed part that begins with [`Header`], followed by [`Header::bytes`] −
//! `size_of::<fixed part>()` bytes of copied user stack, which starts at the recorded `rsp`. All
//! fields are in the machine's byte order; times are `CLOCK_MONOTONIC` nanoseconds. Limits: x86-64
//! only.

/// Most bytes of user stack that one record carries: a partial first page and eight whole pages.
pub const STACK_BYTES_MAX: usize = 9 * 4096;

/// Room for the largest record, the fixed part and the stack, and for
/// a page more: the verifier's bound for the last piece of a stack.
pub const RECORD_BYTES_MAX: usize = 2048 + STACK_BYTES_MAX + 4096;

/// Bytes of program text copied around the instruction pointer.
pub const CODE_BYTES: usize = 1024;

/// Kind of a record; the value of [`Header::kind`].
pub mod kind {
    /// [`super::SampleRecord`]
    pub const SAMPLE: u32 = 1;
    /// [`super::TouchRecord`]
    pub const TOUCH: u32 = 2;
    /// [`super::LifecycleRecord`]
    pub const LIFECYCLE: u32 = 3;
    /// [`super::MeterRecord`]
    pub const METER: u32 = 4;
    /// [`crate::heap::HeapRecord`]
    pub const HEAP: u32 = 5;
    /// [`crate::heap::HeapSiteRecord`]
    pub const HEAP_SITE: u32 = 6;
    /// [`super::KernelRecord`]
    pub const KERNEL: u32 = 7;
}

/// The beginning of every record.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Header {
    /// One of [`kind`].
    pub kind: u32,
    /// Length of the whole record, stack included.
    pub bytes: u32,
    /// When.
    pub time_ns: u64,
    /// Process (thread group) in the tracer's pid namespace.
    pub tgid: u32,
    /// Thread in the tracer's pid namespace.
    pub tid: u32,
    /// CPU of the event.
    pub cpu: u32,
    /// Watched words in the copied stack: the copy of each cost
    /// the thread one trap, not counted in any other field.
    pub nested_traps: u32,
}

/// User registers in the order of the kernel's `struct pt_regs`.
#[doc(alias = "pt_regs")]
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the registers' names say what they are")]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// Program text around an instruction pointer, as it stood in memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Code {
    /// Address of the first byte.
    pub start: u64,
    /// Valid bytes: [`CODE_BYTES`], or 0 when the text could not be read.
    pub len: u32,
    /// Explicit padding.
    pub reserved: u32,
    /// The bytes.
    pub bytes: [u8; CODE_BYTES],
}

/// A thread of a target was interrupted in user mode by the clock, or by a hardware event that
/// samples accesses.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct SampleRecord {
    /// Common part.
    pub header: Header,
    /// Number of this sample, unique in the run; names the sample in [`HeldThread::sequence`].
    pub sequence: u64,
    /// The event's period: accesses or, where [`SampleRecord::address`] is 0, nanoseconds with
    /// which the clock was opened (of software clocks the kernel does not tell later changes).
    pub period: u64,
    /// Cgroup of the thread (v2 inode number).
    pub cgroup: u64,
    /// Signal sent to stop the thread at the sample, or 0.
    pub signal: u32,
    /// Why no signal was sent: one of [`no_stop`].
    pub no_stop: u32,
    /// Address of the access that the hardware sampled; 0 from the clock.
    pub address: u64,
    /// The instruction of the access, executed shortly before the interrupt; 0 from the clock.
    pub accessed_by: u64,
    /// Registers at the interrupt.
    pub regs: Registers,
    /// Text around `regs.rip`.
    pub code: Code,
}

/// The clock met a thread of a target in the kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct KernelRecord {
    /// Common part.
    pub header: Header,
    /// The program's registers, as the kernel saved them on the way in. [`Registers::orig_rax`] is the
    /// number of the system call, and negative in a page fault or an interrupt.
    pub regs: Registers,
}

/// Least time between two kernel records of a processor: a program mostly in the
/// kernel is often sampled in the kernel, and each record has a copy of the stack.
pub const KERNEL_RECORD_NS: u64 = 20_000_000;

/// Why a sampled thread was not stopped; the value of [`SampleRecord::no_stop`].
pub mod no_stop {
    /// The thread was stopped.
    pub const STOPPED: u32 = 0;
    /// The freezer does not hold the thread (no rights, debugger, `--no-stop`, not yet seized).
    pub const NOT_HELD: u32 = 1;
    /// The freezer's heartbeat is old.
    pub const NO_HEARTBEAT: u32 = 2;
    /// No default-ignored signal is free in this thread.
    pub const NO_FREE_SIGNAL: u32 = 3;
    /// `bpf_send_signal_thread` failed.
    pub const SEND_FAILED: u32 = 4;
    /// The thread id now belongs to another thread.
    pub const RECYCLED: u32 = 5;
}

/// A watched location was touched.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TouchRecord {
    /// Common part.
    pub header: Header,
    /// Number that user space gave to the watch.
    pub watch: u64,
    /// Watched address.
    pub address: u64,
    /// Meaning of the touch for the watch: one of [`touch`].
    pub role: u32,
    /// 1 when the kernel touched on the thread's behalf.
    pub kernel: u32,
    /// CPU time of the thread while the event was enabled, cumulative since it was opened
    /// (`bpf_perf_event_value.enabled`); `u64::MAX` when it could not be read.
    pub enabled_ns: u64,
    /// `enabled_ns` at the end of the kernel side's work on the watch's former
    /// touch, or on the use that the watch [follows](WatchState::follows), if
    /// the use was the last touch of the use's word; 0 without such a touch,
    /// and `u64::MAX` as above. Another thread's event has another count.
    pub since_ns: u64,
    /// Accesses of the thread in user mode up to and including this
    /// touch, by the thread's hardware counters, or [`NOT_COUNTED`].
    pub accesses: u64,
    /// Instruction pointer of the trap; differs from `regs.rip` for a kernel touch.
    pub trap_ip: u64,
    /// User registers after the access (at the system call for a kernel touch).
    pub regs: Registers,
    /// Text around `regs.rip`.
    pub code: Code,
}

/// Stands for a number of accesses without a hardware counter.
pub const NOT_COUNTED: u64 = u64::MAX;

/// Role of a touch for the watch; the value of [`TouchRecord::role`].
pub mod touch {
    /// The first touch by the sampled thread: the use.
    pub const USE: u32 = 1;
    /// The next touch by any thread: the reuse.
    pub const REUSE: u32 = 2;
    /// The reuse, if the next touch of the thread is recorded too ([`crate::rules::behind_reuse`]).
    pub const NEAR_REUSE: u32 = 3;
    /// The touch after a near reuse, or after [`USE_AGAIN`]: the watch is complete.
    pub const AGAIN: u32 = 4;
    /// After a near reuse by another instruction: the using instruction touches again. [`AGAIN`] follows.
    pub const USE_AGAIN: u32 = 5;
    /// A touch by the kernel that the watch passes over
    /// ([`WatchState::passes`](super::WatchState::passes)); the watch waits on.
    pub const PASSED: u32 = 6;
}

/// A target's thread or process began, ended or changed its program.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LifecycleRecord {
    /// Common part; `tgid` and `tid` are the thread that forked, exec'ed or ended.
    pub header: Header,
    /// One of [`lifecycle`].
    pub event: u32,
    /// For a fork the new thread; else 0.
    pub other_tid: u32,
    /// For a fork the process of the new thread; else 0.
    pub other_tgid: u32,
    /// Explicit padding.
    pub reserved: u32,
    /// Name of the thread (`comm`).
    pub comm: [u8; 16],
    /// Of an end: CPU time of this thread, up to the last scheduler
    /// tick, and of the process's threads that ended before, in ns; else 0.
    pub cpu_ns: u64,
}

/// Kind of event; the value of [`LifecycleRecord::event`].
pub mod lifecycle {
    /// A thread or process was created.
    pub const FORK: u32 = 1;
    /// The process runs another program.
    pub const EXEC: u32 = 2;
    /// The thread ended.
    pub const EXIT: u32 = 3;
    /// The process runs the program of a debugger; also reported of processes that are no targets.
    pub const DEBUGGER: u32 = 4;
}

/// A thread's progress a short while after a stop: basis of the rate of the thread's accesses.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct MeterRecord {
    /// Common part.
    pub header: Header,
    /// [`SampleRecord::sequence`] of the sample at whose stop the meter was started.
    pub sequence: u64,
    /// Number of times that the thread has left a CPU: between two
    /// readings with equal numbers, the thread had the whole time.
    pub switches: u64,
    /// Accesses of the thread in user mode until the reading,
    /// by the thread's hardware counters, or [`NOT_COUNTED`].
    pub accesses: u64,
    /// User instruction pointer.
    pub ip: u64,
    /// User general registers in the order of their encoding (rax, rcx, rdx, rbx, rsp, rbp, rsi,
    /// rdi, r8 … r15).
    pub registers: [u64; 16],
    /// Values at [`Meter::words`].
    pub words: [u64; METER_WORDS],
    /// Bit i: word i could be read.
    pub readable: u32,
    /// Explicit padding.
    pub reserved: u32,
}

/// Words of memory that a meter reads.
pub const METER_WORDS: usize = 4;

/// Map value: places that the meter of a thread reads.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meter {
    /// [`SampleRecord::sequence`] of the sample with the stop that started the meter.
    pub sequence: u64,
    /// Addresses of 8-byte words; 0 for none.
    pub words: [u64; METER_WORDS],
}

/// Map key of an armed watch.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WatchKey {
    /// Watched address.
    pub address: u64,
    /// Process.
    pub tgid: u32,
    /// Explicit padding, always 0 (it is part of the key).
    pub reserved: u32,
}

/// Map value of an armed watch.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct WatchState {
    /// Number that user space gave to the watch.
    pub watch: u64,
    /// One of [`crate::rules::phase`]; changed only by compare-and-swap, for which BPF has 64-bit words only.
    pub phase: u64,
    /// The thread whose touch is the use, or 0 for any.
    pub owner_tid: u32,
    /// 1 if an interval of two alternating instructions may not replace
    /// the interval to the reuse ([`crate::rules::behind_reuse`]).
    pub no_turns: u32,
    /// Instruction pointer of the use's trap; 0 before the use.
    pub used_ip: u64,
    /// [`TouchRecord::enabled_ns`] when the kernel side was done with the watch's last touch, if it
    /// waits for another.
    pub used_ns: u64,
    /// The word with the watch that sees the use, if this watch waits for a touch
    /// after the use; else 0. Both were enabled at once, with equal counts.
    pub follows: u64,
    /// Number of touches by the kernel still to be passed over, as neither use nor reuse.
    pub passes: u64,
    /// The word by its address in the process of the use, if this entry is for another process
    /// with the word; else 0. Further fields except `watch` are then in the entry of the use.
    pub main_word: u64,
    /// Thread group of the process of the use.
    pub main_tgid: u32,
    /// Explicit padding.
    pub reserved: u32,
}

/// Debug registers of an x86 thread, hence the most watched words in a process.
pub const REGISTERS: usize = 4;

/// Map value: the watched words of a process. The copy of a stack goes around
/// watched words, because a bulk copy traps once for each byte of a watched word.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WatchedWords {
    /// Addresses, in no order; 0 for none.
    pub words: [u64; REGISTERS],
}

/// Map value of a thread that the freezer holds.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct HeldThread {
    /// Start of the thread since boot, in [`crate::rules::START_TICK_NS`] (field 22 of
    /// `/proc/PID/stat`); a recycled thread id has another.
    pub start_ticks: u64,
    /// [`SampleRecord::sequence`] of the sample that raised the newest stop; 0 before the first.
    pub sequence: u64,
    /// Signal sent for it.
    pub signal: u32,
    /// Explicit padding.
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<Header>() == 32);
    assert!(size_of::<Registers>() == 168);
    assert!(size_of::<Code>() == 16 + CODE_BYTES);
    assert!(size_of::<SampleRecord>() == 32 + 48 + 168 + 16 + CODE_BYTES);
    assert!(size_of::<TouchRecord>() == 32 + 56 + 168 + 16 + CODE_BYTES);
    assert!(size_of::<LifecycleRecord>() == 32 + 40);
    assert!(size_of::<MeterRecord>() == 32 + 32 + 128 + 32 + 8);
    assert!(size_of::<KernelRecord>() == 32 + 168);
    assert!(size_of::<Meter>() == 40);
    assert!(size_of::<WatchKey>() == 16);
    assert!(size_of::<WatchState>() == 72);
    assert!(size_of::<HeldThread>() == 24);
    assert!(size_of::<WatchedWords>() == 32);
};

/// Types that may be read from arbitrary bytes of the type's size.
///
/// # Safety
///
/// Every bit pattern is a value, and there is no implicit padding.
pub unsafe trait Plain: Copy {}

// SAFETY: integers only, padding explicit, sizes asserted above.
unsafe impl Plain for Header {}
// SAFETY: as above.
unsafe impl Plain for SampleRecord {}
// SAFETY: as above.
unsafe impl Plain for TouchRecord {}
// SAFETY: as above.
unsafe impl Plain for LifecycleRecord {}
// SAFETY: as above.
unsafe impl Plain for MeterRecord {}
// SAFETY: as above.
unsafe impl Plain for KernelRecord {}

/// Reads a `T` from the start of `bytes` (any alignment); `None` for too few bytes.
pub fn read_plain<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: the length was checked, `T` is valid for every bit pattern, and the read tolerates
    // any alignment.
    Some(unsafe { core::ptr::read_unaligned(bytes.as_ptr().cast()) })
}

#[cfg(feature = "user")]
mod pod {
    // SAFETY: integers only, no implicit padding (sizes asserted above).
    unsafe impl aya::Pod for super::WatchKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::WatchState {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::HeldThread {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::WatchedWords {}
    // SAFETY: as above.
    unsafe impl aya::Pod for super::Meter {}
}
