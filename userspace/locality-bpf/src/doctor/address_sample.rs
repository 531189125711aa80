//! Opens an address-sampling event for a moment, walks through memory of our own, and counts the samples whose address
//! lies in it.
//!
//! Layouts are those of `perf_event_open(2)`. Not here: which event that is (`pmu`), and sampling in a trace.

use std::{fs, io, os::fd::AsRawFd as _, path::Path, ptr::NonNull, sync::atomic::Ordering, time::Duration};

use perf_event_open_sys::bindings;

use crate::kernel::{perf, sys};

/// An event as `perf_event_attr` wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventConfig {
    pub(super) type_: u32,
    /// `config`, `config1`, `config2`.
    pub(super) config: [u64; 3],
}

impl EventConfig {
    /// A device without further terms.
    pub(super) fn plain(device: &Path) -> io::Result<Self> {
        let type_ = fs::read_to_string(device.join("type"))?;
        let type_ = type_.trim().parse().map_err(|_| invalid("the device's type is no number"))?;
        Ok(Self { type_, config: [0; 3] })
    }

    /// A named event of a device, in terms of its formats.
    pub(super) fn read(device: &Path, name: &str) -> io::Result<Self> {
        let mut this = Self::plain(device)?;
        for term in fs::read_to_string(device.join("events").join(name))?.trim().split(',') {
            let (key, value) = term.split_once('=').unwrap_or((term, "1"));
            let format = fs::read_to_string(device.join("format").join(key))?;
            let value = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => value.parse(),
            };
            let value = value.map_err(|_| invalid("an event's term is no number"))?;
            let placed = place(format.trim(), value).ok_or_else(|| invalid("a format of unknown shape"))?;
            this.config[placed.0] |= placed.1;
        }
        Ok(this)
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Puts a value into the bits that a format names: `config:0-7`, `config1:0,4-7`. Returns which word, and its bits.
fn place(format: &str, mut value: u64) -> Option<(usize, u64)> {
    let (word, ranges) = format.split_once(':')?;
    let word = ["config", "config1", "config2"].iter().position(|name| *name == word)?;
    let mut bits = 0;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        for bit in first..=last.min(63) {
            bits |= (value & 1) << bit;
            value >>= 1;
        }
    }
    Some((word, bits))
}

/// What to sample, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    /// Event that must lead the group.
    pub(super) leader: Option<EventConfig>,
    /// Event that carries addresses.
    pub(super) event: EventConfig,
    pub(super) period: u64,
    /// Ask for the most precise sampling that the event takes.
    pub(super) precise: bool,
    /// The unit samples a CPU with whatever runs there, the kernel included.
    pub(super) whole_cpu: bool,
    /// A CPU that has the unit; any when `None`.
    pub(super) cpu: Option<u32>,
}

/// Samples with an address in the memory that was walked. On a thread of its own, because it binds itself to a CPU.
pub(super) fn try_for_a_moment(source: &Source) -> io::Result<usize> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let cpu = bind(source.cpu)?;
            let (leader, event) = open(source, cpu)?;
            let ring = SampleRing::map(&event)?;
            let walked = vec![0u64; WALKED_WORDS];
            let start = walked.as_ptr() as u64;
            let of_us = start..start + size_of_val(walked.as_slice()) as u64;
            let switch = leader.as_ref().unwrap_or(&event);
            switch.enable()?;
            walk(&walked);
            switch.disable()?;
            Ok(samples(&ring.bytes()).filter(|sample| of_us.contains(&sample.address)).count())
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the test's thread panicked")))
    })
}

/// 4 MiB: more than the second-level cache holds.
const WALKED_WORDS: usize = 512 * 1024;

/// Reads the memory again and again for 30 ms.
fn walk(words: &[u64]) {
    let end_ns = sys::monotonic_ns() + Duration::from_millis(30).as_nanos() as u64;
    while sys::monotonic_ns() < end_ns {
        // One word per line; the value must be used for the load to stay.
        std::hint::black_box(words.iter().step_by(8).fold(0, |sum, word| sum ^ std::hint::black_box(*word)));
    }
}

/// Binds this thread to a CPU, the present one when none is named.
fn bind(cpu: Option<u32>) -> io::Result<u32> {
    // SAFETY: a system call without arguments.
    let cpu = cpu.unwrap_or_else(|| unsafe { libc::sched_getcpu() }.max(0) as u32);
    // SAFETY: all-zero bytes are an empty set.
    let mut set = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
    // SAFETY: the set is live; the macro ignores a CPU beyond it.
    unsafe { libc::CPU_SET(cpu as usize, &mut set) };
    // SAFETY: the set is live and its size is given.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) } {
        0 => Ok(cpu),
        _ => Err(io::Error::last_os_error()),
    }
}

fn attributes(config: &EventConfig, whole_cpu: bool) -> bindings::perf_event_attr {
    let mut attr =
        bindings::perf_event_attr { type_: config.type_, config: config.config[0], ..Default::default() };
    attr.__bindgen_anon_3.config1 = config.config[1];
    attr.__bindgen_anon_4.config2 = config.config[2];
    attr.set_exclude_kernel(u64::from(!whole_cpu));
    attr.set_exclude_hv(u64::from(!whole_cpu));
    attr
}

/// Opens the leader, if there is one, and the sampling event.
fn open(source: &Source, cpu: u32) -> io::Result<(Option<perf::Event>, perf::Event)> {
    let (tid, cpu) = if source.whole_cpu { (-1, cpu as i32) } else { (0, -1) };
    let leader = source.leader.map(|config| {
        let mut attr = attributes(&config, source.whole_cpu);
        attr.set_disabled(1);
        perf::open(&mut attr, tid, cpu, None)
    });
    let leader = leader.transpose()?;
    let mut attr = attributes(&source.event, source.whole_cpu);
    attr.__bindgen_anon_1.sample_period = source.period;
    attr.sample_type = SAMPLE_TYPE;
    attr.set_disabled(u64::from(leader.is_none()));
    let mut precision = if source.precise { 3 } else { 0 };
    loop {
        attr.set_precise_ip(precision);
        match perf::open(&mut attr, tid, cpu, leader.as_ref()) {
            // The event takes less precision, or the processor has less.
            Err(error)
                if precision > 1 && !matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) =>
            {
                precision -= 1
            }
            other => return Ok((leader, other?)),
        }
    }
}

const SAMPLE_TYPE: u64 =
    (bindings::PERF_SAMPLE_IP | bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_ADDR) as u64;

/// A sample of [`SAMPLE_TYPE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    ip: u64,
    pid: u32,
    tid: u32,
    address: u64,
}

/// The samples among the records in a ring's bytes; ends at a record that is not whole.
fn samples(bytes: &[u8]) -> impl Iterator<Item = Sample> + '_ {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        loop {
            // struct perf_event_header: type, misc, size of the record with it.
            let kind = u32::from_le_bytes(rest.get(..4)?.try_into().ok()?);
            let size = usize::from(u16::from_le_bytes(rest.get(6..8)?.try_into().ok()?));
            let record = rest.get(8..size)?;
            rest = &rest[size..];
            if kind == bindings::PERF_RECORD_SAMPLE {
                return decode(record);
            }
        }
    })
}

fn decode(record: &[u8]) -> Option<Sample> {
    let eight = |at: usize| Some(u64::from_le_bytes(record.get(at..at + 8)?.try_into().ok()?));
    let ids = eight(8)?;
    Some(Sample { ip: eight(0)?, pid: ids as u32, tid: (ids >> 32) as u32, address: eight(16)? })
}

/// The ring buffer of one event, read once, after the event was disabled.
struct SampleRing {
    start: NonNull<u8>,
    page_bytes: usize,
}

/// Pages of records; the kernel wants a power of two. With the page of pointers 36 KiB of locked memory.
const DATA_PAGES: usize = 8;

impl SampleRing {
    fn map(event: &perf::Event) -> io::Result<Self> {
        // SAFETY: a system call without pointers.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        let len = (1 + DATA_PAGES) * page_bytes;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, event.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| invalid("mapped at 0"))?;
        Ok(Self { start, page_bytes })
    }

    /// What was written since the start. The kernel stops writing when the ring is full, so it never wraps.
    fn bytes(&self) -> Vec<u8> {
        let page = self.start.as_ptr().cast::<bindings::perf_event_mmap_page>();
        // SAFETY: the first page holds this structure. The kernel writes `data_head` as one word.
        let head = unsafe { (&raw const (*page).data_head).read_volatile() };
        std::sync::atomic::fence(Ordering::Acquire);
        let len = (head as usize).min(DATA_PAGES * self.page_bytes);
        // SAFETY: the records begin behind the first page and are `len` bytes; the event is disabled, so the kernel
        // does not write them any more.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(self.page_bytes), len) }.to_vec()
    }
}

impl Drop for SampleRing {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing refers to any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), (1 + DATA_PAGES) * self.page_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with its header.
    fn record(kind: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(2u16.to_le_bytes());
        bytes.extend((8 + body.len() as u16).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn sample_body(ip: u64, pid: u32, tid: u32, address: u64) -> Vec<u8> {
        [&ip.to_le_bytes()[..], &pid.to_le_bytes(), &tid.to_le_bytes(), &address.to_le_bytes()].concat()
    }

    #[test]
    fn a_recorded_sample_is_decoded() {
        // PERF_RECORD_SAMPLE is 9, user mode is misc 2, 32 bytes in all.
        let recorded = [
            9, 0, 0, 0, 2, 0, 32, 0, // header
            0x8c, 0x1a, 0x40, 0, 0, 0, 0, 0, // ip
            0x39, 5, 0, 0, 0x3a, 5, 0, 0, // pid, tid
            0x08, 0xe0, 0xff, 0xf7, 0xff, 0x7f, 0, 0, // address
        ];
        let expected = Sample { ip: 0x401a8c, pid: 1337, tid: 1338, address: 0x7fff_f7ff_e008 };
        assert_eq!(samples(&recorded).collect::<Vec<_>>(), [expected]);
        assert_eq!(recorded.to_vec(), record(9, &sample_body(0x401a8c, 1337, 1338, 0x7fff_f7ff_e008)));
    }

    #[test]
    fn other_records_are_skipped_and_broken_ones_end_the_list() {
        let sample = record(bindings::PERF_RECORD_SAMPLE, &sample_body(1, 2, 3, 4));
        let lost = record(bindings::PERF_RECORD_LOST, &[0; 16]);
        let bytes = [&lost[..], &sample, &lost, &sample].concat();
        assert_eq!(samples(&bytes).count(), 2);
        for len in 0..bytes.len() {
            assert_eq!(samples(&bytes[..len]).count(), usize::from(len >= 56), "{len}");
        }
        assert_eq!(samples(&record(9, &[0; 4])).count(), 0);
        assert_eq!(samples(&[0; 64]).count(), 0);
    }

    #[test]
    fn formats_place_values() {
        assert_eq!(place("config:0-7", 0xcd), Some((0, 0xcd)));
        assert_eq!(place("config:8-15", 1), Some((0, 0x100)));
        assert_eq!(place("config1:0-15", 0x12345), Some((1, 0x2345)));
        assert_eq!(place("config2:0-3,8", 0x1f), Some((2, 0x10f)));
        assert_eq!(place("config:0-7,32-35", 0xabc), Some((0, 0xa_0000_00bc)));
        assert_eq!(place("config:19", 1), Some((0, 1 << 19)));
        for format in ["", "config", "config9:0", "config:x", "config:0-"] {
            assert_eq!(place(format, 1), None, "{format}");
        }
    }

    /// Page faults carry the faulting address in the same record, and every machine has them.
    #[test]
    fn the_ring_delivers_addresses() {
        let config = [u64::from(bindings::PERF_COUNT_SW_PAGE_FAULTS), 0, 0];
        let source = Source {
            leader: None,
            event: EventConfig { type_: bindings::PERF_TYPE_SOFTWARE, config },
            period: 1,
            precise: false,
            whole_cpu: false,
            cpu: None,
        };
        match try_for_a_moment(&source) {
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                crate::doctor::skip(&format!("{error}"))
            }
            // Zeroed memory comes untouched from the kernel: each page faults once, huge or not.
            Ok(samples) => assert!(samples > 0),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn an_event_that_does_not_exist_is_an_error() {
        let event = EventConfig { type_: 0xffff, config: [0; 3] };
        let source = Source { leader: None, event, period: 1, precise: true, whole_cpu: false, cpu: None };
        assert!(try_for_a_moment(&source).is_err());
    }
}
