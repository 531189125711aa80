//! Files of the program's code: read from `/proc/self/maps` when code runs at a
//! new place, and logged in the region, since a dead process cannot be asked.
//!
//! A line of the log is `AT START END OFFSET PATH`: a file mapping (numbers hexadecimal,
//! guest addresses) found when `AT` instructions were recorded. For an instruction the
//! last fitting line not younger than the instruction counts, to distinguish a library
//! mapped in the place of an earlier library. Not here: generated code, without a line.

use std::{fmt::Write as _, ops::Range, sync::atomic::Ordering::Relaxed};

use crate::{functions::Mapping, process::Process};

/// State of the last reading.
#[derive(Default)]
pub struct Mappings {
    /// File mappings.
    files: Vec<(Range<u64>, u64, String)>,
    /// Pages with code in no known file: generated, or looked up already.
    pages: std::collections::HashSet<u64>,
    /// Lines logged last.
    lines: std::collections::HashSet<String>,
    stale: bool,
}

const PAGE: u64 = 4096;

impl Mappings {
    /// Mappings may have changed in the given range.
    pub fn changed(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes.max(1));
        if self.files.iter().any(|(range, ..)| range.start < end && start < range.end) {
            self.stale = true;
        }
        if self.pages.iter().any(|page| page * PAGE < end && start < (page + 1) * PAGE) {
            self.pages.clear();
        }
    }

    /// Code runs at guest address `address`. True if the mappings were read again.
    pub fn note(&mut self, process: &Process, address: u64) -> bool {
        let known = self.files.iter().any(|(range, ..)| range.contains(&address))
            || self.pages.contains(&(address / PAGE));
        if known && !self.stale {
            return false;
        }
        self.stale = false;
        self.read(process);
        self.pages.insert(address / PAGE);
        true
    }

    /// The mappings: addresses, offset in the file, path.
    pub fn files(&self) -> Vec<Mapping<'_>> {
        self.files.iter().map(|(range, offset, path)| (range.clone(), *offset, path.as_str())).collect()
    }

    fn read(&mut self, process: &Process) {
        let Ok(text) = std::fs::read("/proc/self/maps") else { return };
        let region = process.region();
        let header = region.header();
        let base = header.guest_base.load(Relaxed);
        self.files.clear();
        let mut fresh = std::collections::HashSet::new();
        for line in text.split(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(line);
            let Some((range, offset, path)) = parse_file(&line) else { continue };
            let (start, end) = (range.start.wrapping_sub(base), range.end.wrapping_sub(base));
            self.files.push((start..end, offset, path.to_owned()));
            let what = format!("{start:x} {end:x} {offset:x} {path}\n");
            if !self.lines.contains(&what) {
                let mut line = String::new();
                // Cannot fail: a string takes every text.
                let _ = write!(line, "{:x} {what}", header.instructions.load(Relaxed));
                region.append_log(line.as_bytes());
            }
            fresh.insert(what);
        }
        self.lines = fresh;
    }
}

/// As [`parse`], of a mapping of a file.
fn parse_file(line: &str) -> Option<(Range<u64>, u64, &str)> {
    parse(line).filter(|(.., path)| path.starts_with('/'))
}

/// Addresses, offset in the file and path of a line of `/proc/self/maps`; the path may be empty.
pub fn parse(line: &str) -> Option<(Range<u64>, u64, &str)> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let offset = number(fields.nth(1)?)?;
    Some((number(start)?..number(end)?, offset, fields.nth(2).unwrap_or_default().trim_start()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_are_kept() {
        let line = "7f0000000000-7f0000002000 r--p 00001000 fe:00 1234                       /usr/lib/a b.so";
        assert_eq!(parse_file(line), Some((0x7f00_0000_0000..0x7f00_0000_2000, 0x1000, "/usr/lib/a b.so")));
        assert_eq!(parse_file("7f0000000000-7f0000002000 rw-p 00000000 00:00 0 "), None);
        assert_eq!(
            parse_file("7ffc00000000-7ffc00002000 rw-p 00000000 00:00 0                  [stack]"),
            None
        );
        assert_eq!(parse_file(""), None);
    }

    #[test]
    fn lines_of_maps_are_read() {
        let line = "7f0000000000-7f0000002000 r--p 00001000 fe:00 1234                       /usr/lib/a b.so";
        assert_eq!(parse(line), Some((0x7f00_0000_0000..0x7f00_0000_2000, 0x1000, "/usr/lib/a b.so")));
        let line = "7f0000000000-7f0000002000 rw-p 00000000 00:00 0 ";
        assert_eq!(parse(line), Some((0x7f00_0000_0000..0x7f00_0000_2000, 0, "")));
        assert_eq!(parse(""), None);
    }
}
