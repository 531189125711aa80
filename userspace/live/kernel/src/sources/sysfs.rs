//! Reads one event source's directory (`/sys/bus/event_source/devices/…`): type, formats, events,
//! capabilities.
//!
//! Directories are given by path, for tests with their own. Formats are those of the kernel's
//! `Documentation/ABI/testing/sysfs-bus-event_source-devices-{format,events,caps}`. Not here: the
//! meaning of a device.
//!
//! Limits: a term that the kernel wants from the user (`event=?`) and a format over several words are errors.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// An event as `perf_event_attr` wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventConfig {
    /// The device's type number.
    pub type_: u32,
    /// `config`, `config1`, `config2`.
    pub config: [u64; 3],
}

/// One directory of the list of event sources.
#[derive(Debug, Clone)]
pub(super) struct Device {
    pub(super) name: String,
    path: PathBuf,
}

impl Device {
    /// The device of this name, if present.
    pub(super) fn find(devices: &Path, name: &str) -> Option<Self> {
        let path = devices.join(name);
        path.is_dir().then(|| Self { name: name.to_owned(), path })
    }

    /// The first device with this beginning of its name, in alphabetical order.
    pub(super) fn find_prefixed(devices: &Path, prefix: &str) -> Option<Self> {
        let names =
            fs::read_dir(devices).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let name = names.filter(|name| name.starts_with(prefix)).min()?;
        Self::find(devices, &name)
    }

    fn text(&self, file: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.path.join(file))?.trim().to_owned())
    }

    pub(super) fn has_event(&self, name: &str) -> bool {
        self.path.join("events").join(name).exists()
    }

    pub(super) fn has_format(&self, name: &str) -> bool {
        self.path.join("format").join(name).exists()
    }

    /// `caps/max_precise`; `None` where the kernel does not say.
    pub(super) fn max_precise(&self) -> Option<u8> {
        self.text("caps/max_precise").ok()?.parse().ok()
    }

    /// The CPUs that have the unit; `None` when all have it. The file is `cpus` on hybrid processors.
    pub(super) fn cpus(&self) -> Option<Vec<u32>> {
        cpu_list(&self.text("cpus").ok()?)
    }

    /// The device without further terms.
    pub(super) fn plain(&self) -> io::Result<EventConfig> {
        let type_ = self.text("type")?.parse().map_err(|_| invalid("the device's type is no number"))?;
        Ok(EventConfig { type_, config: [0; 3] })
    }

    /// A named event, in terms of the device's formats.
    pub(super) fn event(&self, name: &str) -> io::Result<EventConfig> {
        let mut event = self.plain()?;
        for term in self.text(&format!("events/{name}"))?.split(',') {
            let (key, value) = term.split_once('=').unwrap_or((term, "1"));
            let value = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => value.parse(),
            };
            self.set(&mut event, key, value.map_err(|_| invalid("an event's term is no number"))?)?;
        }
        Ok(event)
    }

    /// Sets a format's bits in an event.
    pub(super) fn set(&self, event: &mut EventConfig, format: &str, value: u64) -> io::Result<()> {
        let shape = self.text(&format!("format/{format}"))?;
        let (word, bits) = place(&shape, value).ok_or_else(|| invalid("a format of unknown shape"))?;
        if let Some(word) = event.config.get_mut(word) {
            *word |= bits;
        }
        Ok(())
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Puts a value into the bits that a format names: `config:0-7`, `config1:0,4-7`. Returns which
/// word, and its bits.
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

/// More CPUs than the kernel can be built for.
const CPUS_AT_MOST: u32 = 1 << 16;

/// A list like `0-15,32`; `None` if it is empty or not of that shape.
fn cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        cpus.extend(first..=last.min(CPUS_AT_MOST));
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_place_values() {
        assert_eq!(place("config:0-7", 0xcd), Some((0, 0xcd)));
        assert_eq!(place("config:8-15", 1), Some((0, 0x100)));
        assert_eq!(place("config1:0-15", 0x12345), Some((1, 0x2345)));
        assert_eq!(place("config2:0-3,8", 0x1f), Some((2, 0x10f)));
        assert_eq!(place("config:0-7,32-35", 0xabc), Some((0, 0xa_0000_00bc)));
        assert_eq!(place("config:0-7,21", 0x1ff), Some((0, 0x20_00ff)));
        assert_eq!(place("config:19", 1), Some((0, 1 << 19)));
        for format in ["", "config", "config9:0", "config:x", "config:0-"] {
            assert_eq!(place(format, 1), None, "{format}");
        }
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(cpu_list("0-3,8"), Some(vec![0, 1, 2, 3, 8]));
        assert_eq!(cpu_list("3"), Some(vec![3]));
        assert_eq!(cpu_list(""), None);
        assert_eq!(cpu_list("a-b"), None);
        assert!(cpu_list("0-4294967295").unwrap().len() <= CPUS_AT_MOST as usize + 1);
    }
}
