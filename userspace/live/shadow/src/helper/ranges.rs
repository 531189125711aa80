//! Ranges of a process' memory that may be remembered, and
//! ranges that must not be read at all, from `/proc/PID/maps`.
//!
//! Limits: a list is true at the moment of reading. A range that became text later is
//! read anew for each window, at a cost in time only; a range that ceased to be text,
//! or a device mapped later, must be reported ([`super::Helper::update_maps`]).

use super::layout::MOST_RANGES;
use crate::memory::{PAGE, Page};

/// Kind of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum What {
    /// Private, executable, not writable, of a file: device and
    /// inode as one number, and the offset of the first byte.
    Text {
        /// The file: device (major, minor) and inode mixed.
        file: u64,
        /// Offset of the range in the file.
        offset: u64,
    },
    /// Registers or memory of a device: reading may change them, so a window ends there.
    Closed,
    /// Pages of the kernel's clock, unreadable in the target: the window process has equal pages.
    Clock(Clock),
    /// Clock pages of a process in another time namespace:
    /// a window ends there. Never in [`ranges`].
    OtherClock,
    /// One byte of text with a breakpoint of the kernel in memory (a uprobe), and the file's
    /// byte. Never in [`ranges`], because `/proc` does not show the breakpoint. `end` is ignored.
    Probed(u8),
}

/// A mapping of the kernel's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Clock {
    /// `[vvar]`: the kernel's times; before Linux 6.13 also the hypervisors'.
    Kernel,
    /// `[vvar_vclock]`: the hypervisors' times.
    Hypervisor,
}

/// A range of addresses that is not ordinary data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextRange {
    /// First byte, a multiple of the page size but for a probed byte.
    pub start: u64,
    /// After the last byte, a multiple of the page size.
    pub end: u64,
    /// Kind of the range.
    pub what: What,
}

/// The ranges in the text of `/proc/PID/maps` that matter here (`proc_pid_maps(5)`).
pub fn ranges(maps: &str) -> Vec<TextRange> {
    maps.lines().filter_map(range).collect()
}

fn range(line: &str) -> Option<TextRange> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).ok());
    let (start, end) = (start?, end?);
    let mode = words.next()?.as_bytes();
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let (major, minor) = words.next()?.split_once(':')?;
    let device = u64::from_str_radix(major, 16).ok()? << 32 | u64::from_str_radix(minor, 16).ok()?;
    let inode: u64 = words.next()?.parse().ok()?;
    let path = words.next().unwrap_or_default().trim_start();
    let what = if let Some(clock) = clock_of(path).filter(|_| inode == 0) {
        What::Clock(clock)
    } else if is_device(path) {
        What::Closed
    } else if matches!(mode, [_, b'-', b'x', b'p']) && inode != 0 {
        What::Text { file: inode ^ device.rotate_left(24), offset }
    } else {
        return None;
    };
    (start < end && start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE)).then_some(TextRange {
        start,
        end,
        what,
    })
}

/// The clock mappings in the text of `/proc/PID/maps`: which, first byte, byte after the last.
pub(super) fn clock_mappings(maps: &str) -> impl Iterator<Item = (Clock, u64, u64)> {
    maps.lines().filter_map(range).filter_map(|range| match range.what {
        What::Clock(clock) => Some((clock, range.start, range.end)),
        _ => None,
    })
}

fn clock_of(path: &str) -> Option<Clock> {
    match path {
        "[vvar]" => Some(Clock::Kernel),
        "[vvar_vclock]" => Some(Clock::Hypervisor),
        _ => None,
    }
}

/// Whether this is mapped by a driver rather than a file system: PCI resources, `/dev/mem`, graphics, vfio.
fn is_device(path: &str) -> bool {
    const MEMORY: [&str; 5] =
        ["/dev/zero", "/dev/shm/", "/dev/hugepages", "anon_inode:[io_uring]", "anon_inode:[perf_event]"];
    ["/dev/", "/sys/", "/proc/", "anon_inode:", "socket:"].iter().any(|start| path.starts_with(start))
        && !MEMORY.iter().any(|start| path.starts_with(start))
}

/// The ranges of a process, adapted to the process' time namespace.
pub(super) fn in_namespace(ranges: &[TextRange], is_same_time: bool) -> Vec<TextRange> {
    let seen = |range: &TextRange| match range.what {
        What::Clock(_) if !is_same_time => TextRange { what: What::OtherClock, ..*range },
        _ => *range,
    };
    ranges.iter().map(seen).collect()
}

/// Whether memory remembered from text of `old` may be
/// wrong with `new`: a range is gone, or is another file's.
pub(super) fn text_lost(old: &[TextRange], new: &[TextRange]) -> bool {
    let is_text = |range: &&TextRange| matches!(range.what, What::Text { .. });
    old.iter().filter(is_text).any(|range| !new.contains(range))
}

/// Marks a packed entry as a probed byte; no user address has this bit.
const PROBED: u64 = 1 << 63;

/// The kernel's breakpoint over an instruction's first byte (`int3`).
const BREAKPOINT: u8 = 0xcc;

/// Kinds of packed ranges, in the bits of the first byte's address that are 0.
const KINDS: u64 = PAGE - 1;
const TEXT: u64 = 0;
const CLOSED: u64 = 1;
const KERNEL_CLOCK: u64 = 2;
const HYPERVISOR_CLOCK: u64 = 3;
const OTHER_CLOCK: u64 = 4;

/// The list as sent to the window process: by address, first byte with the kind in the low
/// bits, byte after the last; then marked addresses of probed bytes, and the file's bytes.
/// Too many ranges: text is left out, always correctly, because omitted text is read anew.
pub(super) fn packed(ranges: &[TextRange]) -> Vec<[u64; 2]> {
    let mut sorted: Vec<&TextRange> = ranges.iter().collect();
    let may_be_left_out = |what: What| matches!(what, What::Text { .. } | What::Probed(_));
    sorted.sort_unstable_by_key(|range| (may_be_left_out(range.what), range.start));
    sorted.truncate(MOST_RANGES);
    sorted.sort_unstable_by_key(|range| (matches!(range.what, What::Probed(_)), range.start));
    let entry = |range: &&TextRange| match range.what {
        What::Closed => [range.start | CLOSED, range.end],
        What::Clock(Clock::Kernel) => [range.start | KERNEL_CLOCK, range.end],
        What::Clock(Clock::Hypervisor) => [range.start | HYPERVISOR_CLOCK, range.end],
        What::OtherClock => [range.start | OTHER_CLOCK, range.end],
        What::Text { .. } => [range.start | TEXT, range.end],
        What::Probed(byte) => [range.start | PROBED, byte.into()],
    };
    sorted.iter().map(entry).collect()
}

/// Kind of memory at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    /// Readable memory that changes.
    Data,
    /// Text of a file.
    Text,
    /// Memory that must not be read.
    Closed,
    /// The clock, of another time namespace.
    OtherClock,
    /// Page number, number of pages, and clock mapping.
    Clock(Clock, u64, u64),
}

/// A packed list, looked up by address.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    ranges: Vec<[u64; 2]>,
    /// Addresses and the file's bytes, by address.
    probed: Vec<(u64, u8)>,
}

impl Lookup {
    /// From the result of [`packed`]; `ranges` does not overlap.
    pub(super) fn new(mut ranges: Vec<[u64; 2]>) -> Lookup {
        let behind = ranges.partition_point(|[start, _]| start & PROBED == 0);
        let probed = ranges.split_off(behind).into_iter();
        let probed = probed.map(|[address, byte]| (address & !PROBED, byte as u8)).collect();
        Lookup { ranges, probed }
    }

    /// Restores the file's bytes where a page shows the kernel's breakpoints.
    pub(super) fn unprobe(&self, page: u64, bytes: &mut Page) {
        let first = self.probed.partition_point(|(address, _)| *address < page);
        for (address, byte) in self.probed.iter().skip(first) {
            let Some(at) = bytes.get_mut(usize::try_from(address - page).unwrap_or(usize::MAX)) else {
                break;
            };
            if *at == BREAKPOINT {
                *at = *byte;
            }
        }
    }

    /// Content of the range.
    pub(super) fn at(&self, address: u64) -> At {
        let behind = self.ranges.partition_point(|[start, _]| start & !KINDS <= address);
        let found = behind.checked_sub(1).and_then(|n| self.ranges.get(n));
        let Some([start, end]) = found.filter(|[_, end]| address < *end) else { return At::Data };
        let first = start & !KINDS;
        let clock = |clock| At::Clock(clock, (address - first) / PAGE, (end - first) / PAGE);
        match start & KINDS {
            TEXT => At::Text,
            KERNEL_CLOCK => clock(Clock::Kernel),
            HYPERVISOR_CLOCK => clock(Clock::Hypervisor),
            OTHER_CLOCK => At::OtherClock,
            _ => At::Closed,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAPS: &str = "\
55d000000000-55d000001000 r--p 00000000 fe:00 11                         /usr/bin/a b
55d000001000-55d000003000 r-xp 00001000 fe:00 11                         /usr/bin/a b
55d000003000-55d000004000 rw-p 00003000 fe:00 11                         /usr/bin/a b
55d000004000-55d000005000 rwxp 00003000 fe:00 11                         /usr/bin/a b
55d000005000-55d000006000 r-xs 00003000 fe:00 11                         /usr/bin/a b
7f0000000000-7f0000001000 r-xp 00000000 00:00 0 
7f0000001000-7f0000002000 rw-s 00000000 00:15 4                          /sys/bus/pci/devices/0000:00:02.0/resource0
7f0000002000-7f0000003000 rw-s 00000000 00:05 4                          /dev/shm/queue
7f0000003000-7f0000004000 rw-s 00000000 00:05 4                          anon_inode:[io_uring]
7f0000004000-7f0000005000 rw-s 00000000 00:05 4                          /dev/nvidia0 (deleted)
7ffff0000000-7ffff0001000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn text_and_devices_are_found_and_nothing_else() {
        let found = ranges(MAPS);
        let starts: Vec<_> = found.iter().map(|range| (range.start, range.what == What::Closed)).collect();
        assert_eq!(starts, [(0x55d0_0000_1000, false), (0x7f00_0000_1000, true), (0x7f00_0000_4000, true)]);
        let lookup = Lookup::new(packed(&found));
        assert_eq!(lookup.at(0x55d0_0000_0fff), At::Data);
        assert_eq!(lookup.at(0x55d0_0000_1000), At::Text);
        assert_eq!(lookup.at(0x55d0_0000_2fff), At::Text);
        assert_eq!(lookup.at(0x55d0_0000_3000), At::Data);
        assert_eq!(lookup.at(0x7f00_0000_1000), At::Closed);
        assert_eq!((lookup.at(0), lookup.at(u64::MAX)), (At::Data, At::Data));
    }

    #[test]
    fn clock_pages_are_found_and_those_of_another_namespace_are_not_read() {
        let clocks = "\
7ffff1000000-7ffff1004000 r--p 00000000 00:00 0                          [vvar]
7ffff1004000-7ffff1006000 r--p 00000000 00:00 0                          [vvar_vclock]
7ffff2000000-7ffff2001000 r--p 00000000 fe:00 9                          [vvar]
";
        let found = ranges(&format!("{MAPS}{clocks}"));
        let lookup = Lookup::new(packed(&found));
        let clock = |clock, page, count| At::Clock(clock, page, count);
        assert_eq!(lookup.at(0x7fff_f100_0000), clock(Clock::Kernel, 0, 4));
        assert_eq!(lookup.at(0x7fff_f100_3fff), clock(Clock::Kernel, 3, 4));
        assert_eq!(lookup.at(0x7fff_f100_5000), clock(Clock::Hypervisor, 1, 2));
        // The vDSO itself, and a file by that name.
        assert_eq!((lookup.at(0x7fff_f000_0000), lookup.at(0x7fff_f200_0000)), (At::Data, At::Data));
        assert_eq!(in_namespace(&found, true), found);
        let other = in_namespace(&found, false);
        let lookup = Lookup::new(packed(&other));
        assert_eq!([0x7fff_f100_0000, 0x7fff_f100_5000].map(|at| lookup.at(at)), [At::OtherClock; 2]);
        assert_eq!(lookup.at(0x55d0_0000_1000), At::Text);
        assert!(!text_lost(&found, &other));
    }

    #[test]
    fn our_own_text_is_found() {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let lookup = Lookup::new(packed(&ranges(&maps)));
        assert_eq!(lookup.at(our_own_text_is_found as *const () as u64), At::Text);
        assert_eq!(lookup.at(&raw const maps as u64), At::Data);
    }

    #[test]
    fn another_file_at_the_same_place_is_a_loss_and_a_further_one_is_not() {
        let old = ranges(MAPS);
        let more = format!("{MAPS}7f1000000000-7f1000001000 r-xp 00000000 fe:00 12 /lib/more\n");
        assert!(!text_lost(&old, &ranges(&more)) && text_lost(&ranges(&more), &old));
        assert!(text_lost(&old, &ranges(&MAPS.replace("r-xp 00001000 fe:00 11", "r-xp 00001000 fe:00 12"))));
        assert!(text_lost(&old, &ranges(&MAPS.replace("r-xp 00001000 fe:00", "r-xp 00001000 fe:01"))));
        assert!(text_lost(&old, &[]) && !text_lost(&[], &old));
    }

    #[test]
    fn breakpoints_are_replaced_where_a_probe_is_known_and_nowhere_else() {
        let probed = |start: u64, byte| TextRange { start, end: start, what: What::Probed(byte) };
        let mut list = ranges(MAPS);
        list.extend([
            probed(0x55d0_0000_1ffe, 0x53),
            probed(0x55d0_0000_2000, 0x41),
            probed(0x55d0_0000_1003, 0x55),
        ]);
        let lookup = Lookup::new(packed(&list));
        assert_eq!(lookup.at(0x55d0_0000_1003), At::Text);
        let mut page = [0x90; PAGE as usize];
        (page[3], page[4], page[0xfff]) = (BREAKPOINT, BREAKPOINT, BREAKPOINT);
        lookup.unprobe(0x55d0_0000_1000, &mut page);
        // The third is not known, and where a known one shows no breakpoint it has gone.
        assert_eq!((page[3], page[4], page[0xffe], page[0xfff]), (0x55, BREAKPOINT, 0x90, BREAKPOINT));
        let mut page = [BREAKPOINT; PAGE as usize];
        lookup.unprobe(0x55d0_0000_2000, &mut page);
        assert_eq!((page[0], page[1]), (0x41, BREAKPOINT));
        lookup.unprobe(0x7f00_0000_0000, &mut page);
        assert_eq!(page[0], 0x41);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in ".{0,200}") {
            ranges(&text);
        }

        #[test]
        fn lookup_finds_what_a_search_finds(
            cuts in prop::collection::btree_set(0_u64..400, 0..60),
            address in 0_u64..400 * 4096,
        ) {
            let cuts: Vec<u64> = cuts.into_iter().collect();
            let list: Vec<TextRange> = cuts.chunks_exact(2).enumerate().map(|(n, pair)| TextRange {
                start: pair[0] * PAGE,
                end: pair[1] * PAGE,
                what: if n % 3 == 0 { What::Closed } else { What::Text { file: 1, offset: 0 } },
            }).collect();
            let expected = list
                .iter()
                .find(|range| (range.start..range.end).contains(&address))
                .map_or(At::Data, |range| if range.what == What::Closed { At::Closed } else { At::Text });
            prop_assert_eq!(Lookup::new(packed(&list)).at(address), expected);
        }
    }
}
