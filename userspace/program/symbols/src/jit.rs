//! Names of generated code, from the perf map that a runtime writes (`/tmp/perf-PID.map`; the
//! format is one line per function, "START SIZE NAME" with hexadecimal numbers:
//! tools/perf/Documentation/jit-interface.txt of Linux).
//!
//! The file is opened while the process lives and read through the descriptor, and may be
//! deleted later. A map grows: only appended lines are read. Runtimes reuse addresses,
//! hence a later line replaces all overlapping earlier lines. A name is therefore the name
//! at the time of reading, not of the sample. Lines and inlining are not in this format.
//!
//! Anyone can create files in `/tmp`. A map is believed only when it is a regular file of the
//! process's user or of root, and was written after the process began: process ids come again, and
//! old maps stay. Limit: where the wall clock was set forward after a map was last written, the map
//! looks older than it is.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::frame::Unknown;
use crate::opening::{Links, open_below};

/// Larger maps are not read further; node.js writes about 10 MB in hours.
const MAX_BYTES: u64 = 256 << 20;
/// A map with more functions than this is not read further.
const MAX_FUNCTIONS: usize = 1 << 20;
/// So much is read at a time; a longer line is left out.
const PIECE: u64 = 1 << 20;
/// A runtime writes its map some time after the start of code generation.
const RETRY: Duration = Duration::from_millis(100);
/// The kernel counts process starts, and some file systems changes, in ticks of 10 ms.
const CLOCK_ERROR: Duration = Duration::from_millis(50);

/// The perf map of one process.
#[derive(Debug, Default)]
pub(crate) struct PerfMap {
    file: Option<File>,
    tried: Option<Instant>,
    /// Why an existing file is not used.
    refused: Option<Unknown>,
    /// Up to here lines were read.
    read_bytes: u64,
    /// The file's length at the last reading.
    seen_bytes: u64,
    /// The line at `read_bytes` began before, and is too long.
    in_long_line: bool,
    /// By start address: end and name. They do not overlap.
    functions: BTreeMap<u64, (u64, Box<str>)>,
}

impl PerfMap {
    /// True when there is no file yet and the last look is [`RETRY`] ago.
    pub(crate) fn wants_file(&self) -> bool {
        self.file.is_none() && self.tried.is_none_or(|tried| tried.elapsed() > RETRY)
    }

    /// Opens the file if present by now. `started`: start
    /// of the process since boot, in clock ticks.
    pub(crate) fn open(&mut self, pid: u32, started: Option<u64>) {
        self.tried = Some(Instant::now());
        (self.file, self.refused) = match open(pid, started) {
            Ok(file) => (Some(file), None),
            Err(refused) => (None, refused),
        };
    }

    /// Name of the generated function around an address, or why there is none.
    pub(crate) fn find(&mut self, address: u64) -> Result<&str, Unknown> {
        // An unreadable file leaves the known functions.
        let _ = self.read_appended();
        let nothing = self.refused.unwrap_or(Unknown::NoPerfMap);
        let (_, (end, name)) = self.functions.range(..=address).next_back().ok_or(nothing)?;
        if address < *end { Ok(name) } else { Err(nothing) }
    }

    fn read_appended(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let bytes = file.metadata()?.len();
        if bytes < self.seen_bytes {
            (self.read_bytes, self.in_long_line) = (0, false);
            self.functions.clear();
        }
        if bytes == self.seen_bytes {
            return Ok(());
        }
        self.seen_bytes = bytes;
        let mut text = Vec::new();
        while self.read_bytes < bytes {
            if bytes > MAX_BYTES || self.functions.len() >= MAX_FUNCTIONS {
                self.refused = Some(Unknown::PerfMapTooLarge);
                return Ok(());
            }
            text.clear();
            file.seek(SeekFrom::Start(self.read_bytes))?;
            file.take(PIECE.min(bytes - self.read_bytes)).read_to_end(&mut text)?;
            let Some(last) = text.iter().rposition(|&byte| byte == b'\n') else {
                if (text.len() as u64) < PIECE {
                    // The runtime may be writing the last line at this moment.
                    break;
                }
                self.in_long_line = true;
                self.read_bytes += text.len() as u64;
                continue;
            };
            let mut lines = text[..last].split(|&byte| byte == b'\n');
            if std::mem::take(&mut self.in_long_line) {
                lines.next();
            }
            for (start, end, name) in lines.filter_map(|line| parse_line(&String::from_utf8_lossy(line))) {
                insert(&mut self.functions, start, end, name);
            }
            self.read_bytes += last as u64 + 1;
        }
        Ok(())
    }
}

/// Adds a function in place of all overlapping functions.
fn insert(functions: &mut BTreeMap<u64, (u64, Box<str>)>, start: u64, end: u64, name: Box<str>) {
    if start >= end {
        return;
    }
    while let Some((&before, _)) =
        functions.range(..end).next_back().filter(|(before, (until, _))| **before >= start || *until > start)
    {
        functions.remove(&before);
    }
    functions.insert(start, (end, name));
}

/// Opens the map of a process, or gives the reason for not using it.
fn open(pid: u32, started: Option<u64>) -> Result<File, Option<Unknown>> {
    let status = fs::read(format!("/proc/{pid}/status")).map_err(|_| None)?;
    let status = String::from_utf8_lossy(&status);
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    // The file's name has the process's id in the innermost
    // namespace: the last of NSpid (proc_pid_status(5)).
    let own_id =
        field("NSpid:").split_whitespace().next_back().map_or_else(|| pid.to_string(), str::to_owned);
    let users: Vec<u32> = field("Uid:").split_whitespace().filter_map(|user| user.parse().ok()).collect();
    let root = format!("/proc/{pid}/root");
    let file = open_below(Path::new(&root), Path::new(&format!("/tmp/perf-{own_id}.map")), Links::NotTheLast);
    let file = file.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => Some(Unknown::PerfMapIrregular),
        _ => None,
    })?;
    let metadata = file.metadata().map_err(|_| None)?;
    judge(&metadata, &users, started.and_then(wall_time))?;
    Ok(file)
}

/// Whether a file can be the map of a process with the given user ids and start time.
fn judge(file: &Metadata, users: &[u32], began: Option<SystemTime>) -> Result<(), Unknown> {
    if file.uid() != 0 && !users.contains(&file.uid()) {
        return Err(Unknown::PerfMapForeign);
    }
    if let (Ok(written), Some(began)) = (file.modified(), began)
        && written + CLOCK_ERROR < began
    {
        return Err(Unknown::PerfMapOlder);
    }
    Ok(())
}

/// The wall time of a moment in clock ticks since boot.
fn wall_time(ticks: u64) -> Option<SystemTime> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the destination is live.
    let read = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut now) };
    // SAFETY: asks for a number.
    let ticks_a_second =
        u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok().filter(|n| *n > 0)?;
    let now = Duration::new(u64::try_from(now.tv_sec).ok()?, u32::try_from(now.tv_nsec).ok()?);
    let then = Duration::from_millis(ticks.checked_mul(1000)? / ticks_a_second);
    (read == 0).then(|| SystemTime::now().checked_sub(now.saturating_sub(then)))?
}

fn parse_line(line: &str) -> Option<(u64, u64, Box<str>)> {
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.split_once(' ')?;
    let start = u64::from_str_radix(start.trim_start_matches("0x"), 16).ok()?;
    let size = u64::from_str_radix(size.trim_start_matches("0x"), 16).ok()?;
    Some((start, start.checked_add(size)?, name.trim_end().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn map_of(text: &str) -> (PerfMap, tempfile::NamedTempFile) {
        let mut written = tempfile::NamedTempFile::new().unwrap();
        write!(written, "{text}").unwrap();
        (PerfMap { file: Some(written.reopen().unwrap()), ..PerfMap::default() }, written)
    }

    #[test]
    fn grows_shrinks_and_survives_nonsense() {
        let (mut map, mut written) = map_of("");
        assert_eq!(map.find(0x1000), Err(Unknown::NoPerfMap));
        write!(written, "1000 10 first\nnonsense\nffffffffffffffff 2 overflow\n2000 20 half").unwrap();
        assert_eq!(map.find(0x100f), Ok("first"));
        assert_eq!(map.find(0x1010), Err(Unknown::NoPerfMap));
        assert!(map.find(0x2000).is_err(), "an unfinished line is not read");
        writeln!(written, "-written name").unwrap();
        assert_eq!(map.find(0x201f), Ok("half-written name"));
        writeln!(written, "1000 8 second").unwrap();
        assert_eq!(map.find(0x1000), Ok("second"), "later lines win");
        written.as_file().set_len(0).unwrap();
        assert!(map.find(0x1000).is_err());
    }

    #[test]
    fn a_later_function_takes_the_place_of_all_that_it_overlaps() {
        let small: String = (0..16).map(|i| format!("{:x} 10 old_{i}\n", 0x1040 + i * 16)).collect();
        let (mut map, _kept) = map_of(&format!("{small}1000 400 new\n"));
        assert!((0x1000..0x1400).all(|address| map.find(address) == Ok("new")));
        // Of the large function whose middle is taken, nothing is left.
        let (mut map, _kept) =
            map_of("1000 400 old\n1100 20 new\n2000 10 beside\n1120 10 next\n3000 0 empty\n");
        for (address, name) in [(0x1100, "new"), (0x1120, "next"), (0x2000, "beside")] {
            assert_eq!(map.find(address), Ok(name));
        }
        assert!([0x1000, 0x10ff, 0x1130, 0x13ff, 0x3000].iter().all(|address| map.find(*address).is_err()));
    }

    /// The map as an array of names, one for each address.
    #[test]
    fn any_order_of_functions_is_as_if_each_address_were_written() {
        let mut random = 7u64;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        let (mut functions, mut expected) = (BTreeMap::new(), [None; 64]);
        for name in 0..3000 {
            let (start, bytes) = (draw(60), draw(12));
            let end = (start + bytes).min(64);
            let old: Vec<_> = (start..end).filter_map(|at| expected[at as usize]).collect();
            for slot in expected.iter_mut().filter(|slot| slot.is_some_and(|of| old.contains(&of))) {
                *slot = None;
            }
            expected[start as usize..end as usize].fill(Some(name));
            insert(&mut functions, start, end, name.to_string().into());
            let mut found = [None; 64];
            for (start, (end, name)) in &functions {
                found[*start as usize..*end as usize].fill(name.parse().ok());
            }
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn long_lines_large_files_and_many_functions_are_bounded() {
        let long = "x".repeat(3 * PIECE as usize);
        let (mut map, written) = map_of(&format!("1000 10 first\n2000 10 {long}\n3000 10 third\n"));
        assert_eq!((map.find(0x1000).is_ok(), map.find(0x2000).is_ok()), (true, false));
        assert_eq!(map.find(0x3000), Ok("third"));
        written.as_file().set_len(1 << 40).unwrap();
        assert_eq!(map.find(0x4000), Err(Unknown::PerfMapTooLarge));
        assert_eq!(map.find(0x3000), Ok("third"), "what was read before stays");
    }

    #[test]
    fn only_a_map_of_the_processs_own_time_and_users_is_believed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let metadata = file.as_file().metadata().unwrap();
        let (own, now) = (metadata.uid(), SystemTime::now());
        let hour = Duration::from_secs(3600);
        assert_eq!(judge(&metadata, &[own], Some(now - hour)), Ok(()));
        assert_eq!(judge(&metadata, &[own], Some(now + hour)), Err(Unknown::PerfMapOlder));
        if own != 0 {
            assert_eq!(judge(&metadata, &[own + 1], None), Err(Unknown::PerfMapForeign));
        }
        // This process began after the machine and before now.
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let ticks = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
        let began = wall_time(ticks).unwrap();
        assert!(began <= SystemTime::now() && SystemTime::now().duration_since(began).unwrap() < 24 * hour);
        assert_eq!(judge(&metadata, &[own], Some(began)), Ok(()));
    }
}
