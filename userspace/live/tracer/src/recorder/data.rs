//! The assembler's part about data objects: asks where accesses lie, and writes the answers.
//!
//! The thread of `object_thread` does the looking; here are the ids of modules and stacks, and the heap
//! blocks, which must be asked for in the order of events. A heap object whose site is known bears
//! the name of the variable that leads to it, else that of the place of its allocation.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use locality_common::record::SampleRecord;
use locality_model::{
    Accessed, AllocationSite, Heap as HeapRow, Missed, ModuleId, Object, ObjectId, Outcome, StackId, Watch,
    WatchId,
};
use locality_symbols::{ModuleInfo, StackFrame};

use super::{Assembler, Walk};
use crate::object_thread::{Answer, Locator, Question, Told};
use locality_capture::events::{EndOutcome, Reuse, WatchEnd};
use locality_heap::{Heap, HeapSite, SiteTotal};

/// Events may be out of order by so much.
const DISORDER_NS: u64 = 2_000_000_000;

/// What is known of the place of a sample.
#[derive(Clone, Copy)]
pub(super) struct Stop<'a> {
    pub record: &'a SampleRecord,
    pub walk: &'a Walk,
    pub fs_base: Option<u64>,
    /// The walk's frames, if needed later.
    pub frames: &'a Arc<[StackFrame]>,
}

/// What is stored of data objects.
pub(super) struct Data {
    /// `None` if the thread did not start.
    locator: Option<Locator>,
    heap: Option<Heap>,
    /// Call stacks of allocation sites, with the allocating function. By the site alone: its name
    /// is unique in the trace, and a child has blocks of its parent's sites.
    sites: HashMap<u64, Site>,
    /// Objects of sites, to be sent again when more is known of the site.
    of_site: HashMap<u64, HashMap<ObjectId, Object>>,
}

/// What is known of an allocation site.
#[derive(Debug)]
struct Site {
    stack: StackId,
    /// The allocating function.
    function: String,
    /// Places on the way to the function, innermost first, as "at sim.c:88": lines of the program's own
    /// source, or without them functions, as "in lzma_alloc" or "in zstd+0x3a580".
    places: Vec<String>,
    /// The line that names the site.
    named_by: usize,
}

impl Site {
    /// "malloc at sim.c:88".
    fn made_at(&self) -> String {
        match self.places.get(self.named_by) {
            Some(place) => format!("{} {place}", self.function),
            None => format!("{}, caller unknown", self.function),
        }
    }
}

/// Lines of a site's path that may name it.
const PLACES_MAX: usize = 16;

/// For each site, by its places (innermost first) and the mean bytes of its blocks, the naming
/// place: the innermost with blocks of one size only. A place with many sizes for several callers
/// is a wrapper of the allocator. If all are, the innermost.
fn naming_places(sites: &[(&[String], u64)]) -> Vec<usize> {
    let mut sizes: HashMap<&str, HashSet<u64>> = HashMap::new();
    for (places, bytes) in sites {
        for place in *places {
            sizes.entry(place).or_default().insert(*bytes);
        }
    }
    let one_size = |place: &String| sizes.get(place.as_str()).is_none_or(|sizes| sizes.len() <= 1);
    sites.iter().map(|(places, _)| places.iter().position(one_size).unwrap_or(0)).collect()
}

impl Data {
    pub(super) fn new(heap: Option<Heap>) -> Self {
        let locator = Locator::start(heap.clone());
        Self {
            locator: locator
                .inspect_err(|error| tracing::warn!("data objects are not looked for: {error}"))
                .ok(),
            heap,
            sites: HashMap::new(),
            of_site: HashMap::new(),
        }
    }

    fn block(&self, pid: u32, address: u64, time_ns: u64) -> Option<locality_heap::Block> {
        // What may have been given back meanwhile is no record.
        self.heap.as_ref()?.find(pid, address, time_ns).filter(|block| block.certain)
    }
}

impl Assembler {
    /// Writes the present knowledge of data objects.
    pub fn put_objects(&mut self) {
        let answers: Vec<Answer> = self.data.locator.iter().flat_map(Locator::answers).collect();
        answers.into_iter().for_each(|answer| self.put_answer(answer));
    }

    /// The trace is over.
    pub(super) fn finish_objects(&mut self) {
        let rest = self.data.locator.as_mut().map(Locator::finish).unwrap_or_default();
        rest.into_iter().for_each(|answer| self.put_answer(answer));
        let Some(heap) = self.data.heap.clone() else { return };
        let totals = heap.totals();
        self.name_sites(&totals);
        let mut sites: HashMap<StackId, AllocationSite> = HashMap::new();
        for total in totals {
            let Some(Site { stack, .. }) = self.data.sites.get(&total.site) else { continue };
            let site =
                sites.entry(*stack).or_insert(AllocationSite { stack: *stack, allocations: 0, bytes: 0 });
            site.allocations += total.allocations;
            site.bytes += total.bytes;
        }
        let mut sites: Vec<AllocationSite> = sites.into_values().collect();
        sites.sort_by_key(|site| (std::cmp::Reverse(site.bytes), site.stack));
        let summary = heap.summary();
        let missed = Missed {
            min_bytes: summary.min_bytes.0,
            min_bytes_at_end: summary.min_bytes.1,
            smaller: summary.small,
            unwatched: summary.unwatched,
            lost: summary.lost + summary.unfollowed,
        };
        let row = HeapRow {
            seen: summary.seen,
            made: summary.made,
            folded: summary.folded,
            sites,
            missed: Some(missed),
        };
        self.store.heap(&row);
    }

    /// Skips the allocator's wrappers, now recognisable by the sizes of their blocks.
    fn name_sites(&mut self, totals: &[SiteTotal]) {
        let totals: Vec<(u64, u64)> = totals
            .iter()
            .map(|total| (total.site, total.bytes / total.allocations.max(1)))
            .filter(|(site, _)| self.data.sites.contains_key(site))
            .collect();
        let known: Vec<(&[String], u64)> = totals
            .iter()
            .filter_map(|(site, bytes)| Some((self.data.sites.get(site)?.places.as_slice(), *bytes)))
            .collect();
        let named = naming_places(&known);
        for ((site, _), named_by) in totals.iter().zip(named) {
            let Some(known) = self.data.sites.get_mut(site).filter(|known| known.named_by != named_by) else {
                continue;
            };
            known.named_by = named_by;
            for (id, object) in self.data.of_site.get(site).cloned().unwrap_or_default() {
                self.put_heap_object(*site, id, &object);
            }
        }
    }

    fn put_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Object(id, mut object, module, site) => {
                object.module = module.map(|path| self.module_of_path(&path));
                match site {
                    None => self.store.object(id, &object),
                    Some(site) => {
                        self.put_heap_object(site, id, &object);
                        self.data.of_site.entry(site).or_default().insert(id, *object);
                    }
                }
            }
            Answer::Record(id, record) => self.store.record(id, &record),
            Answer::Field(id, field) => self.store.field(id, &field),
            Answer::Located(located) => self.store.located(located),
        }
    }

    fn put_heap_object(&mut self, site: u64, id: ObjectId, object: &Object) {
        let mut row = object.clone();
        if let Some(site) = self.data.sites.get(&site) {
            row.site = Some(site.stack);
            if row.name == "[heap]" {
                row.name = site.made_at();
            }
        }
        self.store.object(id, &row);
    }

    /// A site was met: its stack, and a name for its allocations.
    pub(super) fn heap_site(&mut self, site: &HeapSite) {
        let walk = self.sites.walk(site.pid, &site.regs, &site.stack);
        let stack = self.stack(site.pid, &walk);
        let (function, places) = self.made_at(site.pid, &walk);
        self.data.sites.insert(site.site, Site { stack, function, places, named_by: 0 });
        for (id, object) in self.data.of_site.get(&site.site).cloned().unwrap_or_default() {
            self.put_heap_object(site.site, id, &object);
        }
    }

    /// The allocating function, and the places of [`Site`].
    fn made_at(&mut self, pid: u32, walk: &Walk) -> (String, Vec<String>) {
        let mut function = None;
        let (mut places, mut functions) = (Vec::new(), Vec::new());
        for address in &walk.addresses {
            for frame in self.symbolizer.symbolize(pid, *address) {
                let name = function.get_or_insert_with(|| frame.function.clone().unwrap_or_default());
                let in_library = frame.module.as_ref().is_some_and(|module| {
                    let base = module.path.rsplit('/').next().unwrap_or_default();
                    ["libc.so", "libc-", "libstdc++", "libjemalloc", "libtcmalloc", "libmimalloc"]
                        .iter()
                        .any(|prefix| base.starts_with(prefix))
                });
                let file = frame.file.as_deref().unwrap_or_default();
                let toolchain = file.starts_with("/rustc/")
                    || file.contains("/rustlib/src/")
                    || file.contains("/include/c++/");
                let is_allocator = frame.function.as_ref() == Some(name);
                if in_library || toolchain || (is_allocator && places.is_empty() && functions.is_empty()) {
                    continue;
                }
                if let (Some(file), Some(line)) = (&frame.file, frame.line) {
                    let file = file.rsplit('/').next().unwrap_or(file);
                    places.push(format!("at {file}:{line}"));
                } else if let Some(function) = &frame.function
                    && functions.len() < PLACES_MAX
                {
                    functions.push(format!("in {function}"));
                }
            }
            if places.len() >= PLACES_MAX {
                break;
            }
        }
        // glibc's debug symbols know its functions by several names.
        let function = function.as_deref().unwrap_or_default();
        let function = function.trim_start_matches("__GI_").trim_start_matches("__libc_");
        let function = if function.is_empty() { "allocated" } else { function };
        (function.to_owned(), if places.is_empty() { functions } else { places })
    }

    /// A module that may have been met already, with its build id.
    fn module_of_path(&mut self, path: &str) -> ModuleId {
        let known = self.modules.iter().find(|(info, _)| info.path == path);
        match known {
            Some((_, id)) => *id,
            None => self.module(&ModuleInfo { path: path.to_owned(), build_id: String::new() }),
        }
    }

    pub(super) fn tell_locator(&self, what: Told) {
        if let Some(locator) = &self.data.locator {
            locator.tell(what);
        }
    }

    /// Has the object of an access looked for.
    pub(super) fn locate(
        &self,
        of: Accessed,
        stop: &Stop<'_>,
        frames: Arc<[StackFrame]>,
        ip: u64,
        address: u64,
    ) {
        let header = &stop.record.header;
        let (pid, sp, fs_base) = (header.tgid, stop.record.regs.rsp, stop.fs_base);
        let block = self.data.block(pid, address, header.time_ns);
        let heap = block.map(|block| block.of_objects());
        let stop = Arc::clone(stop.frames);
        let question = Question { of, pid, address, ip, frames, stop, sp, fs_base, heap };
        self.tell_locator(Told::Asked(Box::new(question)));
    }

    /// Between use and reuse the block may have been given back and its place taken by another one.
    pub(super) fn locate_reuse(&mut self, id: WatchId, end: &WatchEnd, watch: &Watch) {
        let (EndOutcome::Reused(Reuse { trap, .. }), Outcome::Reused { .. }) = (&end.outcome, &watch.outcome)
        else {
            return;
        };
        let Some(used) = watch.use_touch else { return };
        let time_ns = trap.record.header.time_ns;
        let Some(block) = self.data.block(end.tgid, end.address, time_ns) else { return };
        if block.since_ns <= self.origin_ns.saturating_add(used.time_ns) {
            return;
        }
        let walk = self.sites.of_touch(trap);
        let question = Question {
            of: Accessed::WatchReuse(id),
            pid: end.tgid,
            address: end.address,
            ip: walk.addresses.first().map_or(0, |at| at.address()),
            frames: walk.frames.into(),
            stop: Arc::default(),
            sp: trap.record.regs.rsp,
            fs_base: None,
            heap: Some(block.of_objects()),
        };
        self.tell_locator(Told::Asked(Box::new(question)));
    }

    /// Blocks that were given back before need not be stored.
    pub(super) fn asked_until(&self, time_ns: u64) {
        if let Some(heap) = &self.data.heap {
            heap.passed(time_ns.saturating_sub(DISORDER_NS));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(sites: &[(&str, u64)]) -> Vec<String> {
        let split = |(path, bytes): &(&str, u64)| {
            (path.split(' ').map(str::to_owned).collect::<Vec<String>>(), *bytes)
        };
        let owned: Vec<(Vec<String>, u64)> = sites.iter().map(split).collect();
        let sites: Vec<(&[String], u64)> =
            owned.iter().map(|(places, bytes)| (places.as_slice(), *bytes)).collect();
        naming_places(&sites).iter().zip(&owned).map(|(at, (places, _))| places[*at].clone()).collect()
    }

    #[test]
    fn wrappers_of_the_allocator_name_nothing() {
        // A wrapper in a wrapper, called for three sizes.
        let sites = [
            ("wrap.h:5 wrap.h:9 sim.c:20 main.c:3", 800),
            ("wrap.h:5 wrap.h:9 sim.c:21 main.c:3", 1600),
            ("wrap.h:5 sim.c:30 main.c:4", 2400),
        ];
        assert_eq!(named(&sites), ["sim.c:20", "sim.c:21", "sim.c:30"]);
        // A constructor that makes one size for several callers names its blocks.
        let sites = [("node.c:5 sim.c:20", 64), ("node.c:5 sim.c:30", 64), ("other.c:7 sim.c:30", 80)];
        assert_eq!(named(&sites), ["node.c:5", "node.c:5", "other.c:7"]);
        // One place on all paths, and nothing else.
        assert_eq!(named(&[("wrap.h:5", 8), ("wrap.h:5", 16)]), ["wrap.h:5", "wrap.h:5"]);
    }
}
