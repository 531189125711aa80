//! Mappings of a process from `/proc/PID/maps` (proc_pid_maps(5)).
//!
//! One snapshot, parsed and sorted. A snapshot does not follow the process: [`crate::Processes`]
//! re-reads. An unparsable line is left out rather than failing the whole file.

use std::fs;
use std::io;
use std::sync::Arc;

/// One line of `/proc/PID/maps`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file of [`Mapping::start`].
    pub offset: u64,
    /// May be read.
    pub readable: bool,
    /// May be written.
    pub writable: bool,
    /// May be executed.
    pub executable: bool,
    /// Writes are seen by other processes.
    pub shared: bool,
    /// Device of the file, major and minor.
    pub device: (u32, u32),
    /// Inode of the file; 0 when there is no file.
    pub inode: u64,
    /// Path as the kernel shows it, "(deleted)" included, or a name in brackets, or empty.
    pub path: Arc<str>,
}

impl Mapping {
    /// True when the address lies inside.
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// All mappings of a process at one moment, by ascending address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mappings {
    entries: Vec<Mapping>,
}

impl Mappings {
    /// Reads `/proc/PID/maps`. A process that does not exist, or may not be inspected, is an error.
    pub fn read(pid: u32) -> io::Result<Self> {
        let text = fs::read(format!("/proc/{pid}/maps"))?;
        let mappings = Self::parse(&text);
        if mappings.entries.is_empty() {
            // Zombies and kernel threads have an empty file.
            return Err(io::Error::new(io::ErrorKind::NotFound, "the process has no memory of its own"));
        }
        Ok(mappings)
    }

    /// Parses the text of a maps file. Paths need not be UTF-8; other bytes are replaced.
    pub fn parse(text: &[u8]) -> Self {
        let mut entries: Vec<Mapping> = Vec::with_capacity(text.len() / 90);
        let mut last_path: Arc<str> = Arc::from("");
        for line in text.split(|&byte| byte == b'\n') {
            if let Some(mapping) = parse_line(&String::from_utf8_lossy(line), &mut last_path) {
                entries.push(mapping);
            }
        }
        entries.sort_by_key(|mapping| mapping.start);
        Self { entries }
    }

    /// The mapping that contains the address.
    pub fn find(&self, address: u64) -> Option<&Mapping> {
        let behind = self.entries.partition_point(|mapping| mapping.start <= address);
        let mapping = self.entries.get(behind.checked_sub(1)?)?;
        mapping.contains(address).then_some(mapping)
    }

    /// All mappings, by ascending address.
    pub fn iter(&self) -> std::slice::Iter<'_, Mapping> {
        self.entries.iter()
    }
}

/// `last_path` lets neighbouring mappings of a file share the name.
fn parse_line(line: &str, last_path: &mut Arc<str>) -> Option<Mapping> {
    let mut rest = line;
    let mut field = || {
        let (word, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = tail;
        word
    };
    let (start, end) = field().split_once('-')?;
    let permissions = field().as_bytes();
    let offset = field();
    let (major, minor) = field().split_once(':')?;
    let inode = field();
    let path = rest.trim_start_matches(' ');
    if permissions.len() < 4 {
        return None;
    }
    if &**last_path != path {
        *last_path = Arc::from(path);
    }
    Some(Mapping {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset: u64::from_str_radix(offset, 16).ok()?,
        readable: permissions[0] == b'r',
        writable: permissions[1] == b'w',
        executable: permissions[2] == b'x',
        shared: permissions[3] == b's',
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode: inode.parse().ok()?,
        path: Arc::clone(last_path),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
55d0a0000000-55d0a0001000 r--p 00000000 fe:01 131    /usr/bin/a program (deleted)
55d0a0001000-55d0a0003000 r-xp 00001000 fe:01 131    /usr/bin/a program (deleted)
7f0000000000-7f0000010000 rwxp 00000000 00:00 0 
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0                          [vdso]
not a line
7ffd-zzzz r-xp 0 0:0 0
";

    #[test]
    fn fields_and_lookup() {
        let mappings = Mappings::parse(TEXT.as_bytes());
        assert_eq!(mappings.iter().len(), 4);
        let code = mappings.find(0x55d0a0001fff).unwrap();
        assert_eq!((code.offset, code.device, code.inode), (0x1000, (0xfe, 1), 131));
        assert_eq!(&*code.path, "/usr/bin/a program (deleted)");
        assert!(code.executable && code.readable && !code.writable && !code.shared);
        assert!(Arc::ptr_eq(&code.path, &mappings.find(0x55d0a0000000).unwrap().path));
        assert_eq!(&*mappings.find(0x7f0000000000).unwrap().path, "");
        assert_eq!(&*mappings.find(0x7ffc00000000).unwrap().path, "[vdso]");
        for outside in [0, 0x55d09fffffff, 0x55d0a0003000, 0x7ffc00002000, u64::MAX] {
            assert_eq!(mappings.find(outside), None, "{outside:#x}");
        }
    }

    #[test]
    fn own_process_and_no_process() {
        let mappings = Mappings::read(std::process::id()).unwrap();
        let here = own_process_and_no_process as *const () as u64;
        assert!(mappings.find(here).unwrap().executable);
        assert!(Mappings::read(u32::MAX - 7).is_err());
    }

    /// 65,530 mappings (the default `vm.max_map_count`) must parse, and lookups must stay exact.
    #[test]
    fn huge() {
        let mut text = String::new();
        for i in 0..65_530u64 {
            text += &format!("{:x}-{:x} r-xp 0 00:00 0 \n", i * 0x2000, i * 0x2000 + 0x1000);
        }
        let mappings = Mappings::parse(text.as_bytes());
        assert_eq!(mappings.iter().len(), 65_530);
        assert_eq!(mappings.find(0x2000 * 40_000 + 5).unwrap().start, 0x2000 * 40_000);
        assert_eq!(mappings.find(0x2000 * 40_000 + 0x1000), None);
    }
}
