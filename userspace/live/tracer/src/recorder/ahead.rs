//! The assembler's part about asking for many names at once: each request to the symboliser process
//! costs two switches of task, and a sample with its window has dozens of addresses.

use locality_model::Access;
use locality_symbols::CodeAddress;

use super::{Assembler, Walk};
use locality_capture::{
    events::WindowTaken,
    window_sampling::{Point, Seen},
};

impl Assembler {
    /// Asks for all names of a sample.
    pub(super) fn ask_ahead(
        &mut self,
        pid: u32,
        walk: &Walk,
        access: Option<&Access>,
        window: Option<&WindowTaken>,
    ) {
        let found = window.map(|taken| &taken.found);
        let uses = found.into_iter().flat_map(|found| &found.uses);
        let seen = uses.clone().flat_map(|chosen| &chosen.seen).filter_map(|seen| match seen {
            Seen::Reused(_, point) => Some(point),
            Seen::Open(_) => None,
        });
        let loads = found.into_iter().flat_map(|found| &found.loads).map(|load| &load.point);
        let points = uses.map(|chosen| &chosen.point).chain(seen).chain(loads);
        let inside = points.flat_map(|Point { access, path }| {
            let called = path.called.iter().map(|address| CodeAddress::Return(*address));
            called.chain([CodeAddress::Exact(access.ip)])
        });
        let own = access.map(|access| CodeAddress::Exact(access.ip));
        self.prepare(pid, walk.addresses.iter().copied().chain(own).chain(inside));
    }

    /// Asks for the unknown ones of these names.
    pub(super) fn prepare(&mut self, pid: u32, addresses: impl Iterator<Item = CodeAddress>) {
        let resolved = &self.resolved;
        self.symbolizer.prepare(pid, addresses.filter(|address| !resolved.contains_key(&(pid, *address))));
    }
}
