//! perf events (`perf_event_open(2)`): common code, meters and watchpoints.
//!
//! Each watchpoint is opened when armed and closed when it ends, rather than re-programmed: an
//! event's remaining limit cannot be reset, only added to, and opening costs about what
//! `PERF_EVENT_IOC_MODIFY_ATTRIBUTES` costs.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use perf_event_open_sys::{bindings, ioctls, perf_event_open};

/// An open perf event; dropping disarms it.
#[derive(Debug)]
pub struct Event(OwnedFd);

/// Turns an `ioctl` result into an [`io::Result`].
fn checked(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Opens an event of a thread (-1: any) on a CPU (-1: any), in the group of another event if one is given.
pub(crate) fn open(
    attr: &mut bindings::perf_event_attr,
    tid: i32,
    cpu: i32,
    group: Option<&Event>,
) -> io::Result<Event> {
    attr.size = size_of::<bindings::perf_event_attr>() as u32;
    let group = group.map_or(-1, |event| event.0.as_raw_fd());
    // SAFETY: `attr` is a valid attribute structure of the size that it says.
    let fd = unsafe { perf_event_open(attr, tid, cpu, group, bindings::PERF_FLAG_FD_CLOEXEC.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system call returned a new descriptor without another owner.
    Ok(Event(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Attributes of a watchpoint on `bytes` (1, 2, 4, 8; aligned) at `address`: reads and writes, by
/// the thread or by the kernel on its behalf.
fn watchpoint_attr(address: u64, bytes: u8) -> bindings::perf_event_attr {
    let mut attr = bindings::perf_event_attr { type_: bindings::PERF_TYPE_BREAKPOINT, ..Default::default() };
    attr.bp_type = bindings::HW_BREAKPOINT_RW;
    attr.__bindgen_anon_3.bp_addr = address;
    attr.__bindgen_anon_4.bp_len = bytes.into();
    attr.__bindgen_anon_1.sample_period = 1;
    attr.set_disabled(1);
    attr.set_exclude_hv(1);
    attr
}

/// Attributes of an event that counts nothing.
fn dummy() -> bindings::perf_event_attr {
    bindings::perf_event_attr {
        type_: bindings::PERF_TYPE_SOFTWARE,
        config: bindings::PERF_COUNT_SW_DUMMY.into(),
        ..Default::default()
    }
}

impl Event {
    /// A clock of one thread's CPU time that fires each `period_ns` of it. Disabled, or as
    /// [`Event::starter`] says.
    #[doc(alias = "PERF_COUNT_SW_TASK_CLOCK")]
    pub fn meter(tid: u32, period_ns: u64, starter: Option<&Self>) -> io::Result<Self> {
        let mut attr = bindings::perf_event_attr {
            type_: bindings::PERF_TYPE_SOFTWARE,
            config: bindings::PERF_COUNT_SW_TASK_CLOCK.into(),
            ..Default::default()
        };
        attr.__bindgen_anon_1.sample_period = period_ns;
        attr.set_disabled(u64::from(starter.is_none()));
        open(&mut attr, tid as i32, -1, starter)
    }

    /// A counting-nothing event in a stopped thread. Events opened enabled in its group begin when
    /// it is dropped.
    ///
    /// To enable an event by itself, the kernel interrupts the processor on which its thread ran
    /// last and waits for the answer (`event_function_call` in kernel/events/core.c), 17 to 20 µs
    /// each here. The members of a disabled group are put into their thread's list without that
    /// (`perf_install_in_context`), and become events by themselves when their leader is closed
    /// (`perf_group_detach`), to be scheduled in with the thread.
    #[doc(alias = "PERF_COUNT_SW_DUMMY")]
    pub fn starter(tid: u32) -> io::Result<Self> {
        let mut attr = dummy();
        attr.set_disabled(1);
        open(&mut attr, tid as i32, -1, None)
    }

    /// A counting-nothing event in this thread.
    ///
    /// While any per-thread event is open, the kernel keeps its scheduling hooks enabled; enabling
    /// them for the first one waits for an RCU grace period (`account_event` in
    /// kernel/events/core.c), which took 5 to 13 ms here. Open for the whole run, this event
    /// takes that wait out of the stops.
    #[doc(alias = "PERF_COUNT_SW_DUMMY")]
    pub fn keeper() -> io::Result<Self> {
        open(&mut dummy(), 0, -1, None)
    }

    /// A watchpoint in one thread. Disabled, or as [`Event::starter`] says. `ENOSPC` means that its
    /// debug registers are taken.
    #[doc(alias = "PERF_TYPE_BREAKPOINT")]
    pub fn watchpoint(tid: u32, address: u64, bytes: u8, starter: Option<&Self>) -> io::Result<Self> {
        let mut attr = watchpoint_attr(address, bytes);
        attr.set_disabled(u64::from(starter.is_none()));
        open(&mut attr, tid as i32, -1, starter)
    }

    /// Runs an eBPF program on each overflow instead of writing a perf record.
    #[doc(alias = "PERF_EVENT_IOC_SET_BPF")]
    pub fn set_program(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: both descriptors are open.
        checked(unsafe { ioctls::SET_BPF(self.0.as_raw_fd(), program.as_raw_fd() as u32) })
    }

    /// Its count; nothing if a pinned event could not be scheduled.
    pub fn count(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        // SAFETY: the descriptor is open, and the destination live and of the size given.
        match unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) } {
            ..0 => Err(io::Error::last_os_error()),
            8 => Ok(u64::from_ne_bytes(count)),
            _ => Ok(0),
        }
    }

    /// Enables the event.
    pub fn enable(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        checked(unsafe { ioctls::ENABLE(self.0.as_raw_fd(), 0) })
    }

    /// Disables the event.
    pub fn disable(&self) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        checked(unsafe { ioctls::DISABLE(self.0.as_raw_fd(), 0) })
    }

    /// Enables the event, if it is not, until `traps` overflows were counted.
    #[doc(alias = "PERF_EVENT_IOC_REFRESH")]
    pub fn enable_for(&self, traps: u32) -> io::Result<()> {
        // SAFETY: the descriptor is open.
        checked(unsafe { ioctls::REFRESH(self.0.as_raw_fd(), traps as i32) })
    }

    /// Changes the period of a clock event.
    pub fn set_period(&self, period_ns: u64) -> io::Result<()> {
        // The kernel takes a pointer to the period, whatever the binding's type says.
        // SAFETY: the descriptor is open and the argument points to a live `u64`.
        checked(unsafe { ioctls::PERIOD(self.0.as_raw_fd(), &raw const period_ns as u64) })
    }
}

impl AsRawFd for Event {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}
