//! Detects code with breakpoints executed in anonymous memory,
//! in which the kernel does not know of the breakpoints.
//!
//! A breakpoint of a probe belongs to a place in a file. A program that copies its
//! code, or replaces the mapping by a copy (checkpointers, translators, programs
//! that patch themselves), copies the breakpoint, and ends by SIGTRAP when running
//! the copy. Limits: memory is looked at when a process is looked through (each
//! second, and less often while the ranges stay), at most [`BYTES_MAX`].

use std::{collections::HashMap, fs::File, hash::Hasher as _, os::unix::fs::FileExt as _};

use locality_common::heap::TextRange;
use locality_symbols::{Mapping, Mappings};

use super::modules::FileId;
use locality_kernel::uprobe::Probe;

/// The byte that the kernel puts in place of an instruction's first (`int3`).
const BREAKPOINT: u8 = 0xcc;

/// Bytes after a breakpoint by which a copy is known.
const TAIL: usize = 12;

/// So much anonymous code is looked through at a time.
const BYTES_MAX: usize = 4 << 20;

/// Looks at unchanged ranges; afterwards each eighth time only.
const LOOKS: u8 = 3;

/// Executable ranges of a process at the last look.
#[derive(Debug, Default)]
pub struct Seen {
    texts: HashMap<FileId, TextRange>,
    /// Ranges of anonymous code, hashed, and how often they were looked at.
    anonymous: (u64, u8),
}

/// Probed files of the process, with their places.
pub type Probed<'a> = &'a [(FileId, TextRange, &'a [Probe])];

impl Seen {
    /// Whether code of a probed file is executed from anonymous memory.
    pub fn is_copied(&mut self, pid: u32, mappings: &Mappings, probed: Probed<'_>) -> bool {
        let anonymous: Vec<TextRange> = mappings
            .iter()
            .filter(|mapping| mapping.executable && is_anonymous(mapping))
            .map(|mapping| TextRange { start: mapping.start, end: mapping.end })
            .collect();
        let replaced = self.is_replaced(&anonymous);
        self.texts = probed.iter().map(|(file, text, _)| (*file, *text)).collect();
        if replaced || anonymous.is_empty() || probed.is_empty() {
            return replaced;
        }
        let mut hasher = std::hash::DefaultHasher::new();
        for range in &anonymous {
            hasher.write_u64(range.start);
            hasher.write_u64(range.end);
        }
        let hash = hasher.finish();
        self.anonymous = if self.anonymous.0 == hash { self.anonymous } else { (hash, 0) };
        let looks = self.anonymous.1;
        self.anonymous.1 = looks.wrapping_add(1);
        if looks >= LOOKS && !looks.is_multiple_of(8) {
            return false;
        }
        let Some(tails) = tails(pid, mappings, probed) else { return false };
        let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else { return false };
        let mut left = BYTES_MAX;
        anonymous.iter().any(|range| {
            let bytes = left.min(usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
            left -= bytes;
            let mut code = vec![0; bytes];
            memory.read_exact_at(&mut code, range.start).is_ok() && holds_a_breakpoint(&code, &tails)
        })
    }

    /// Where a probed file was executed, anonymous memory is.
    fn is_replaced(&self, anonymous: &[TextRange]) -> bool {
        let overlap = |a: &TextRange, b: &TextRange| a.start < b.end && b.start < a.end;
        self.texts.values().any(|text| anonymous.iter().any(|range| overlap(text, range)))
    }
}

/// Memory of no file; shared or named memory too, but not the kernel's own mappings.
fn is_anonymous(mapping: &Mapping) -> bool {
    let path = &*mapping.path;
    let of_the_kernel = ["[vdso]", "[vsyscall]", "[uprobes]"].contains(&path);
    !of_the_kernel
        && (mapping.inode == 0 || ["/memfd:", "/dev/zero"].iter().any(|name| path.starts_with(name)))
}

/// The bytes after each breakpoint, read from the process itself.
fn tails(pid: u32, mappings: &Mappings, probed: Probed<'_>) -> Option<Vec<[u8; TAIL]>> {
    let memory = File::open(format!("/proc/{pid}/mem")).ok()?;
    let mut tails = Vec::new();
    for (file, _, probes) in probed {
        for mapping in mappings.iter().filter(|mapping| mapping.executable && file.is_of(mapping)) {
            for probe in *probes {
                let within = probe.offset.checked_sub(mapping.offset);
                let Some(at) = within.filter(|within| *within < mapping.end - mapping.start) else {
                    continue;
                };
                let mut tail = [0; TAIL];
                if memory.read_exact_at(&mut tail, mapping.start + at + 1).is_ok() {
                    tails.push(tail);
                }
            }
        }
    }
    Some(tails)
}

fn holds_a_breakpoint(code: &[u8], tails: &[[u8; TAIL]]) -> bool {
    code.windows(1 + TAIL).any(|window| {
        window.first() == Some(&BREAKPOINT)
            && tails.iter().any(|tail| window.get(1..) == Some(tail.as_slice()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Anonymous code of our own with these bytes in it.
    fn copy(code: &[u8]) -> memmap2::Mmap {
        let mut memory = memmap2::MmapMut::map_anon(8192).unwrap();
        memory[100..100 + code.len()].copy_from_slice(code);
        memory.make_exec().unwrap()
    }

    #[test]
    fn a_copy_is_known_by_the_breakpoint_and_what_follows() {
        let pid = std::process::id();
        let file = super::super::modules::own().unwrap();
        let here = holds_a_breakpoint as *const () as u64;
        let mappings = Mappings::read(pid).unwrap();
        let mapping = mappings.find(here).unwrap();
        let text = TextRange { start: mapping.start, end: mapping.end };
        let offset = here - mapping.start + mapping.offset;
        let probes = [Probe { offset, cookie: 1, followed: true, byte: 0 }];
        let probed = [(file, text, probes.as_slice())];
        // SAFETY: code of this program, which is longer than this.
        let mut code = unsafe { std::slice::from_raw_parts(here as *const u8, 1 + TAIL) }.to_vec();
        // As it is without a probe: not ours.
        let plain = copy(&code);
        let look = |seen: &mut Seen| seen.is_copied(pid, &Mappings::read(pid).unwrap(), &probed);
        let mut seen = Seen::default();
        assert!(!look(&mut seen));
        code[0] = BREAKPOINT;
        let probed_copy = copy(&code);
        assert!(look(&mut seen));
        drop((plain, probed_copy));
        assert!(!look(&mut seen));
    }

    #[test]
    fn text_that_became_anonymous_is_noticed() {
        let file = super::super::modules::own().unwrap();
        let text = TextRange { start: 0x40_0000, end: 0x50_0000 };
        let seen = Seen { texts: HashMap::from([(file, text)]), anonymous: (0, 0) };
        let range = |start, end| [TextRange { start, end }];
        assert!(seen.is_replaced(&range(0x48_0000, 0x48_1000)));
        assert!(!seen.is_replaced(&range(0x50_0000, 0x50_1000)));
        assert!(!Seen::default().is_replaced(&range(0x48_0000, 0x48_1000)));
    }
}
