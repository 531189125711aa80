//! Types of unnamed blocks, revealed by accesses: the machine code around an instruction shows the
//! accessing pointer (`locality_approximate`), and the pointer's type names the block
//! (`locality_objects`).
//!
//! Limits: the program's file is opened through `/proc`, so not after the process's end; no more
//! than [`PATIENCE`] is spent on it.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use locality_approximate::{Analyzer, Frame, Revealed};
use locality_objects::{self as objects, Named, Resolver};

/// Time that is spent on a process's code.
const PATIENCE: Duration = Duration::from_secs(3);

/// Of one process.
#[derive(Default)]
pub(super) struct Revealing {
    analyzer: Analyzer,
    /// By instruction, with `file:line`.
    known: HashMap<u64, Option<(Revealed, String)>>,
    spent: Duration,
}

impl Revealing {
    /// The answer for an address that was accessed at `ip`, with what the access reveals.
    pub(super) fn complete(&mut self, resolver: &mut Resolver, named: Named, address: u64, ip: u64) -> Named {
        if !resolver.is_nameless_block(address, &named) {
            return named;
        }
        if !self.known.contains_key(&ip) && self.spent < PATIENCE {
            let started = Instant::now();
            let found = self.look(resolver, ip);
            self.known.insert(ip, found);
            self.spent += started.elapsed();
        }
        let Some(Some((found, line))) = self.known.get(&ip) else { return named };
        let Revealed { entry, offset, through, element, .. } = found;
        let element = element.map(|element| (element.bytes, element.is_float));
        let revealed = objects::Revealed {
            ip,
            entry: *entry,
            offset: *offset,
            through: through.as_deref(),
            element,
            line,
        };
        resolver.reveal(&named, &revealed).unwrap_or(named)
    }

    fn look(&mut self, resolver: &mut Resolver, ip: u64) -> Option<(Revealed, String)> {
        let (path, address) = resolver.code(ip)?;
        let module = self.analyzer.open(&path).ok()?;
        let found = self.analyzer.revealed(Frame { module, address })?;
        let file = found.line.file.rsplit('/').next().unwrap_or_default();
        let line = format!("{file}:{}", found.line.line);
        Some((found, line))
    }
}
