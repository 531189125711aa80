//! Opens an address-sampling event for a moment, walks through memory of our own, and counts the
//! samples whose address lies in it.
//!
//! Layouts are those of `perf_event_open(2)`. Not here: the choice of the event, and sampling in a
//! trace.

use std::{io, os::fd::AsRawFd as _, ptr::NonNull, sync::atomic::Ordering, time::Duration};

use perf_event_open_sys::bindings;

use super::{
    PeriodUnit, Source,
    open::{Opened, open_with},
};
use crate::{perf, sys};

/// Samples with an address in memory of ours that is walked for a moment.
pub fn samples_of(source: &Source) -> io::Result<usize> {
    let period = match source.period_unit {
        PeriodUnit::Ops | PeriodUnit::Cycles => 0x4000,
        _ => 1000,
    };
    try_for_a_moment(source, period)
}

/// The same, one each `period` of the source. In a separate thread, which binds itself to a CPU.
fn try_for_a_moment(source: &Source, period: u64) -> io::Result<usize> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let cpu = bind(source.cpus.as_ref().and_then(|cpus| cpus.first().copied()))?;
            let opened = open(source, cpu, period)?;
            let ring = SampleRing::map(&opened.event)?;
            let mut walked = vec![0u64; WALKED_WORDS];
            let start = walked.as_ptr() as u64;
            let of_us = start..start + size_of_val(walked.as_slice()) as u64;
            opened.enable()?;
            walk(&mut walked);
            opened.disable()?;
            Ok(samples(&ring.bytes()).filter(|sample| of_us.contains(&sample.address)).count())
        });
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the test's thread panicked")))
    })
}

/// 40 MiB: more than the second-level cache holds, and more than the C library hands out again of
/// what was freed (`DEFAULT_MMAP_THRESHOLD_MAX`, 32 MiB), so that the pages are fresh.
const WALKED_WORDS: usize = 5 << 20;

/// Reads and writes the memory again and again for 30 ms.
fn walk(words: &mut [u64]) {
    let end_ns = sys::monotonic_ns() + Duration::from_millis(30).as_nanos() as u64;
    while sys::monotonic_ns() < end_ns {
        // One word per line; the value must be used for the load and the store to stay.
        for word in words.iter_mut().step_by(8) {
            *word = std::hint::black_box(*word) + 1;
        }
        std::hint::black_box(&mut *words);
    }
}

/// Binds this thread to a CPU, the present one when none is named.
fn bind(cpu: Option<u32>) -> io::Result<u32> {
    let cpu = cpu.unwrap_or_else(sys::this_processor);
    sys::Processors::only(cpu)?.assign(0)?;
    Ok(cpu)
}

/// Of this thread, if the source can follow one, else of the CPU with all its programs.
fn open(source: &Source, cpu: u32, period: u64) -> io::Result<Opened> {
    let (tid, cpu) = if source.per_thread { (0, -1) } else { (-1, cpu as i32) };
    open_with(source, tid, cpu, period, SAMPLE_TYPE)
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
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { start, page_bytes })
    }

    /// What was written since the start. The kernel stops writing when the ring is full, so it never wraps.
    fn bytes(&self) -> Vec<u8> {
        let page = self.start.as_ptr().cast::<bindings::perf_event_mmap_page>();
        // SAFETY: the first page holds this structure. The kernel writes `data_head` as one word.
        let head = unsafe { (&raw const (*page).data_head).read_volatile() };
        std::sync::atomic::fence(Ordering::Acquire);
        let len = (head as usize).min(DATA_PAGES * self.page_bytes);
        // SAFETY: the records begin after the first page and are `len` bytes; the event is
        // disabled, so the kernel does not write them any more.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(self.page_bytes), len) }.to_vec()
    }
}

impl Drop for SampleRing {
    fn drop(&mut self) {
        // SAFETY: this function's own mapping, without remaining references.
        unsafe { libc::munmap(self.start.as_ptr().cast(), (1 + DATA_PAGES) * self.page_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::EventConfig;

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

    /// Page faults carry the faulting address in the same record, and every machine has them.
    #[test]
    fn the_ring_delivers_addresses() {
        let config = [u64::from(bindings::PERF_COUNT_SW_PAGE_FAULTS), 0, 0];
        let event = EventConfig { type_: bindings::PERF_TYPE_SOFTWARE, config };
        let source = Source { event, user_only: true, ..Source::clock() };
        match try_for_a_moment(&source, 1) {
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                crate::testing::skip(&format!("{error}"))
            }
            // Zeroed memory comes untouched from the kernel: each page faults once, huge or not.
            Ok(samples) => assert!(samples > 0),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn an_event_that_does_not_exist_is_an_error() {
        let event = EventConfig { type_: 0xffff, config: [0; 3] };
        assert!(try_for_a_moment(&Source { event, ..Source::clock() }, 1).is_err());
    }
}
