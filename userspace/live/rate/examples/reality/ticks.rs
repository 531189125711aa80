//! A perf event on one thread: CPU time, and registers at each tick.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys as sys;
use sys::bindings as b;

const PAGES: usize = 64;
const PAGE: usize = 4096;
/// perf's numbers of the registers in the order of their encoding, and of the instruction pointer last.
const ORDER: [u32; 17] = [0, 2, 3, 1, 7, 6, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23, 8];

/// One tick.
#[derive(Debug, Clone, Copy)]
pub struct Tick {
    /// CPU time of the thread.
    pub cpu_ns: u64,
    /// Monotonic clock.
    pub clock_ns: u64,
    pub registers: [u64; 16],
    pub ip: u64,
}

pub struct Ticks {
    fd: i32,
    map: NonNull<u8>,
    tail: u64,
    /// Ticks so far.
    pub count: u64,
}

impl Ticks {
    pub fn open(tid: i32, period_ns: u64) -> io::Result<Ticks> {
        let mut attr =
            b::perf_event_attr { size: size_of::<b::perf_event_attr>() as u32, ..Default::default() };
        attr.type_ = b::PERF_TYPE_SOFTWARE;
        attr.config = b::PERF_COUNT_SW_TASK_CLOCK.into();
        attr.__bindgen_anon_1.sample_period = period_ns;
        attr.sample_type = u64::from(b::PERF_SAMPLE_TIME | b::PERF_SAMPLE_READ | b::PERF_SAMPLE_REGS_USER);
        attr.sample_regs_user = ORDER.iter().map(|bit| 1_u64 << bit).sum();
        attr.set_use_clockid(1);
        attr.clockid = libc::CLOCK_MONOTONIC;
        attr.__bindgen_anon_2.wakeup_events = 1 << 20;
        // SAFETY: a valid attribute.
        let fd = unsafe { sys::perf_event_open(&raw mut attr, tid, -1, -1, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new mapping of the event's ring.
        let map = unsafe {
            libc::mmap(
                ptr::null_mut(),
                (PAGES + 1) * PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        let map = NonNull::new(map.cast()).filter(|_| map != libc::MAP_FAILED);
        Ok(Ticks { fd, map: map.ok_or_else(io::Error::last_os_error)?, tail: 0, count: 0 })
    }

    /// The thread's CPU time now.
    pub fn cpu_ns(&self) -> u64 {
        let mut value = [0_u8; 8];
        // SAFETY: eight bytes of room.
        unsafe { libc::read(self.fd, value.as_mut_ptr().cast(), 8) };
        u64::from_ne_bytes(value)
    }

    /// The clock that ticks have.
    pub fn clock_ns() -> u64 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the destination is live.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    fn word(&self, at: u64) -> u64 {
        let at = PAGE + (at as usize) % (PAGES * PAGE);
        // SAFETY: within the mapping; records are multiples of 8 bytes.
        unsafe { self.map.as_ptr().add(at).cast::<u64>().read_volatile() }
    }

    /// Ticks since the last call, each with the number of ticks before it.
    pub fn take(&mut self) -> Vec<(u64, Tick)> {
        let page = self.map.as_ptr().cast::<b::perf_event_mmap_page>();
        // SAFETY: the first page of the ring; the kernel writes the head.
        let head = unsafe { AtomicU64::from_ptr(&raw mut (*page).data_head).load(Ordering::Acquire) };
        let mut ticks = Vec::new();
        while self.tail < head {
            let header = self.word(self.tail);
            let (kind, size) = (header as u32, header >> 48);
            if kind == b::PERF_RECORD_SAMPLE {
                let clock_ns = self.word(self.tail + 8);
                let cpu_ns = self.word(self.tail + 16);
                let abi = self.word(self.tail + 24);
                if abi != 0 {
                    let mut by_number: Vec<u32> = ORDER.to_vec();
                    by_number.sort_unstable();
                    let value = |number: u32| {
                        let at = by_number.iter().position(|n| *n == number).unwrap_or(0);
                        self.word(self.tail + 32 + 8 * at as u64)
                    };
                    let mut registers = [0; 16];
                    for (to, number) in registers.iter_mut().zip(ORDER) {
                        *to = value(number);
                    }
                    ticks.push((self.count, Tick { cpu_ns, clock_ns, registers, ip: value(8) }));
                }
                self.count += 1;
            }
            self.tail += size.max(8);
        }
        // SAFETY: as above; we write the tail.
        unsafe { AtomicU64::from_ptr(&raw mut (*page).data_tail).store(self.tail, Ordering::Release) };
        ticks
    }
}
