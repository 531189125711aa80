//! Names of generated code, from the perf map that a runtime writes (`/tmp/perf-PID.map`; the format is one line per
//! function, "START SIZE NAME" with hexadecimal numbers: tools/perf/Documentation/jit-interface.txt of Linux).
//!
//! The file is opened while the process lives and read through that descriptor, so that it may be deleted later. A map
//! grows: only what was appended is read. Later lines win, because runtimes reuse addresses; a name is therefore the one
//! at the time of reading, not of the sample. Lines and inlining are not in this format.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::time::{Duration, Instant};

/// A map larger than this is not read further; node.js writes some 10 MB in hours.
const MAX_BYTES: u64 = 256 << 20;
/// A runtime writes its map some time after it starts to generate code.
const RETRY: Duration = Duration::from_millis(100);

/// The perf map of one process.
#[derive(Debug, Default)]
pub(crate) struct PerfMap {
    file: Option<File>,
    tried: Option<Instant>,
    read_bytes: u64,
    /// By start address: end and name.
    functions: BTreeMap<u64, (u64, Box<str>)>,
}

impl PerfMap {
    /// True when there is no file yet and the last look is [`RETRY`] ago.
    pub(crate) fn wants_file(&self) -> bool {
        self.file.is_none() && self.tried.is_none_or(|tried| tried.elapsed() > RETRY)
    }

    /// Opens the file if it is there by now.
    pub(crate) fn open(&mut self, pid: u32) {
        self.file = open(pid).ok();
        self.tried = Some(Instant::now());
    }

    /// Name of the generated function around an address.
    pub(crate) fn find(&mut self, address: u64) -> Option<&str> {
        // A file that cannot be read any more leaves what is known.
        let _ = self.read_appended();
        let (_, (end, name)) = self.functions.range(..=address).next_back()?;
        (address < *end).then_some(name)
    }

    fn read_appended(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let bytes = file.metadata()?.len();
        if bytes < self.read_bytes {
            self.read_bytes = 0;
            self.functions.clear();
        }
        if bytes == self.read_bytes || bytes > MAX_BYTES {
            return Ok(());
        }
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(self.read_bytes))?;
        file.take(bytes - self.read_bytes).read_to_end(&mut text)?;
        // The runtime may be writing its last line at this moment.
        let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        for line in text[..whole].split(|&byte| byte == b'\n') {
            if let Some((start, end, name)) = parse_line(&String::from_utf8_lossy(line)) {
                self.functions.insert(start, (end, name));
            }
        }
        self.read_bytes += whole as u64;
        Ok(())
    }
}

fn open(pid: u32) -> io::Result<File> {
    // The file's name has the id that the process knows itself by: the last one of NSpid (proc_pid_status(5)).
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let own_id = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .and_then(|ids| ids.split_whitespace().next_back())
        .map_or_else(|| pid.to_string(), str::to_owned);
    // Anyone can create files there: no links, and no waiting at a FIFO.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(format!("/proc/{pid}/root/tmp/perf-{own_id}.map"))?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
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

    #[test]
    fn grows_shrinks_and_survives_nonsense() {
        let mut written = tempfile::NamedTempFile::new().unwrap();
        let mut map = PerfMap { file: Some(written.reopen().unwrap()), ..PerfMap::default() };
        assert_eq!(map.find(0x1000), None);
        write!(written, "1000 10 first\nnonsense\nffffffffffffffff 2 overflow\n2000 20 half").unwrap();
        assert_eq!(map.find(0x100f), Some("first"));
        assert_eq!(map.find(0x1010), None);
        assert_eq!(map.find(0x2000), None, "an unfinished line is not read");
        writeln!(written, "-written name").unwrap();
        assert_eq!(map.find(0x201f), Some("half-written name"));
        writeln!(written, "1000 8 second").unwrap();
        assert_eq!(map.find(0x1000), Some("second"), "later lines win");
        written.as_file().set_len(0).unwrap();
        assert_eq!(map.find(0x1000), None);
    }
}
