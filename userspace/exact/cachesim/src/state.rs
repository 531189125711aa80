//! The whole state of a simulation in the arena.

use locality_stream::{Arena, Event, List, NO_INSTRUCTION, Offset, Plain, Range, Span, are_apart};

use crate::cache::Cache;
use crate::columns::Costs;
use crate::config::{Config, MAX_LEVELS, Prefetch};
use crate::objects::ObjectUse;
use crate::table::{Keyed, Map};
use crate::totals::UNKNOWN_CALLER;

/// Marks a complete state of the current version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"cachsim\x06");
/// Frames stored per thread; deeper calls stay in the context of the deepest.
pub(crate) const DEPTH: usize = 1 << 16;
/// Entries of a thread's stride prefetcher.
pub(crate) const STRIDES: usize = 256;
/// Stands for no block and for no signal.
pub(crate) const NONE: u32 = u32::MAX;
/// The node for costs without room: the root of the unknown caller.
pub(crate) const UNKNOWN_NODE: u32 = 1;

/// A function.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct FunctionRecord {
    pub(crate) entry: u64,
    pub(crate) instruction: u32,
    /// 1 if the caller pays the function's costs.
    pub(crate) skipped: u32,
    pub(crate) inclusive: Costs,
}
// SAFETY: integers without padding.
unsafe impl Plain for FunctionRecord {}

/// A call arc.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct ArcRecord {
    pub(crate) caller: u32,
    pub(crate) site: u32,
    pub(crate) callee: u32,
    /// The next arc from the caller and site; 0 for none.
    pub(crate) next: u32,
    pub(crate) calls: u64,
    pub(crate) inclusive: Costs,
}
// SAFETY: integers without padding.
unsafe impl Plain for ArcRecord {}

/// A root.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct RootRecord {
    pub(crate) function: u32,
    /// [`NONE`] for a thread.
    pub(crate) signal: u32,
    pub(crate) inclusive: Costs,
}
// SAFETY: integers without padding.
unsafe impl Plain for RootRecord {}

/// Kind of a node.
pub(crate) mod flag {
    /// Free for use.
    pub(crate) const FREE: u32 = 1;
    /// A root; `arc` is the index of the root's record.
    pub(crate) const ROOT: u32 = 2;
    /// The first of the function on the path from the root.
    pub(crate) const FIRST_OF_FUNCTION: u32 = 4;
    /// The first of the arc on the path from the root.
    pub(crate) const FIRST_OF_ARC: u32 = 8;
}

/// A node of the back-dating trees: a function called by a path of calls.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Node {
    /// 0 for a root; for a free node, the next free node.
    pub(crate) parent: u32,
    pub(crate) function: u32,
    pub(crate) arc: u32,
    /// Resident lines loaded by the node, over the levels.
    pub(crate) lines: u32,
    pub(crate) children: u32,
    pub(crate) flags: u32,
    /// Functions on the path, as bits of the numbers' hashes.
    pub(crate) path: u64,
    pub(crate) costs: Costs,
}
const _: () = assert!(size_of::<Node>() == 200);
// SAFETY: integers without padding.
unsafe impl Plain for Node {}

/// Kind of a frame.
pub(crate) mod kind {
    /// A call.
    pub(crate) const CALL: u32 = 0;
    /// The thread's begin.
    pub(crate) const ROOT: u32 = 1;
    /// Begin of a signal handler; `stack` is the place of the return address.
    pub(crate) const SIGNAL: u32 = 2;
}

/// A frame of a call stack.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Frame {
    /// Place of the return address.
    pub(crate) stack: u64,
    pub(crate) node: u32,
    pub(crate) function: u32,
    /// Not 0 in a skipped function: the cell of the call that is charged.
    pub(crate) instead: u32,
    pub(crate) kind: u32,
}
// SAFETY: integers without padding.
unsafe impl Plain for Frame {}

/// An entry of the stride prefetcher.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Stride {
    /// The instruction plus 1.
    pub(crate) instruction: u32,
    /// 1 when the last two strides were equal.
    pub(crate) steady: u32,
    pub(crate) address: u64,
    pub(crate) stride: u64,
}
// SAFETY: integers without padding.
unsafe impl Plain for Stride {}

/// Caches of a thread alone.
pub(crate) const PRIVATE: usize = 3;
/// The thread's instruction cache.
pub(crate) const I1: usize = 0;
/// The thread's first data level.
pub(crate) const D1: usize = 1;
/// The thread's second level, if not the last.
pub(crate) const L2: usize = 2;

/// A thread.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Thread {
    pub(crate) id: u64,
    pub(crate) frames: Span<Frame>,
    pub(crate) strides: Span<Stride>,
    pub(crate) depth: u32,
    /// 1 after the thread's end.
    pub(crate) ended: u32,
    /// Not 0 when the newest frame's function is not known yet.
    pub(crate) pending: u32,
    /// The call instruction of the frame.
    pub(crate) pending_site: u32,
    /// The block being fetched, plus 1, and the block's next run.
    pub(crate) block: u32,
    pub(crate) run: u32,
    /// The number of the block's runs.
    pub(crate) run_end: u32,
    pub(crate) reserved: u32,
    pub(crate) caches: [Cache; PRIVATE],
}
// SAFETY: integers without padding.
unsafe impl Plain for Thread {}

/// Numbers of the configuration.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Model {
    /// Data levels.
    pub(crate) levels: u32,
    pub(crate) fetch: u32,
    pub(crate) callgrind: u32,
    /// 0 none, 1 next line, 2 stride.
    pub(crate) prefetch: u32,
    /// log2 of a line's bytes, of the bits of a mask of use, and of the bytes represented by a bit.
    pub(crate) line_bits: u32,
    pub(crate) mask_bits: u32,
    pub(crate) unit_bits: u32,
    /// log2 of a byte's bits, for lines with fewer bytes than Callgrind's mask has bits.
    pub(crate) spread_bits: u32,
    /// 1 if calls and returns are followed.
    pub(crate) inclusive: u32,
    /// 1 if costs go to data objects too.
    pub(crate) objects: u32,
    /// Unit of a whole reciprocal access.
    pub(crate) unit: u64,
    /// Bytes, ways and line of the caches: instructions, then data.
    pub(crate) sizes: [[u64; 3]; 1 + MAX_LEVELS],
}
// SAFETY: integers without padding.
unsafe impl Plain for Model {}

impl Model {
    pub(crate) fn new(config: &Config) -> Model {
        let mut sizes = [[0; 3]; 1 + MAX_LEVELS];
        let (instruction, data) = sizes.split_at_mut(1);
        let filled = instruction.iter_mut().zip(&config.instruction_fetch);
        for (size, level) in filled.chain(data.iter_mut().zip(&config.levels)) {
            *size = [level.bytes, level.ways, level.line];
        }
        let line_bits = config.levels.first().map_or(6, |level| level.line.trailing_zeros());
        let mask_bits = if config.compatible_callgrind { 5 } else { line_bits.min(6) };
        Model {
            levels: config.levels.len() as u32,
            fetch: config.instruction_fetch.is_some().into(),
            callgrind: config.compatible_callgrind.into(),
            prefetch: match config.prefetch {
                Prefetch::None => 0,
                Prefetch::NextLine => 1,
                Prefetch::Stride => 2,
            },
            line_bits,
            mask_bits,
            unit_bits: line_bits.saturating_sub(mask_bits),
            spread_bits: mask_bits.saturating_sub(line_bits),
            inclusive: config.inclusive.into(),
            objects: config.objects.into(),
            unit: config.access_cost_unit(),
            sizes,
        }
    }

    /// The configuration of the state.
    pub(crate) fn config(&self) -> Config {
        let level = |index: usize, name: &str| {
            let [bytes, ways, line] = self.sizes.get(index).copied().unwrap_or_default();
            crate::config::Level::new(name, bytes, ways, line)
        };
        let names = ["L1", "L2", "L3"];
        let levels = self.levels.min(MAX_LEVELS as u32) as usize;
        Config {
            levels: (0..levels).map(|at| level(at + 1, names.get(at).copied().unwrap_or_default())).collect(),
            instruction_fetch: (self.fetch == 1).then(|| level(0, "I1")),
            compatible_callgrind: self.callgrind == 1,
            inclusive: self.inclusive == 1,
            objects: self.objects == 1,
            prefetch: match self.prefetch {
                1 => Prefetch::NextLine,
                2 => Prefetch::Stride,
                _ => Prefetch::None,
            },
        }
    }

    /// The cache of a size in `sizes`.
    pub(crate) fn cache<A: Arena + ?Sized>(&self, arena: &A, index: usize) -> Option<Cache> {
        let [bytes, ways, line] = self.sizes.get(index).copied()?;
        Cache::new(arena, &crate::config::Level::new("", bytes, ways, line))
    }
}

/// The state.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct State {
    pub(crate) magic: u64,
    pub(crate) consumed: u64,
    /// Events of the batch under way; 0 between batches.
    pub(crate) busy: u64,
    pub(crate) torn: u64,
    pub(crate) full: u64,
    /// Lines touched up to now: the time of the caches.
    pub(crate) clock: u64,
    pub(crate) model: Model,

    /// Instructions, reads and writes up to now, and up to the last change of node.
    pub(crate) counts: [u64; 3],
    pub(crate) settled: [u64; 3],
    /// Lines loaded into the first level, and at the last pruning.
    pub(crate) loads: u64,
    pub(crate) pruned_at: u64,

    /// Position of the current thread: copies of the newest frame.
    pub(crate) node: u32,
    pub(crate) function: u32,
    pub(crate) instead: u32,
    /// Index of the current thread; `now` is stored at the index before a switch of threads.
    pub(crate) thread: u32,
    pub(crate) now: Thread,
    /// A read, possibly half of a change; Callgrind's model only. Size 0 without a read.
    pub(crate) held: Event,

    pub(crate) threads: List<Thread>,
    /// The last of several levels.
    pub(crate) last: Cache,
    pub(crate) cells: Keyed<Costs>,
    /// Executions of blocks.
    pub(crate) blocks: Keyed<u64>,
    pub(crate) functions: List<FunctionRecord>,
    pub(crate) function_numbers: Map,
    pub(crate) arcs: List<ArcRecord>,
    pub(crate) arc_numbers: Map,
    pub(crate) roots: List<RootRecord>,
    pub(crate) nodes: List<Node>,
    pub(crate) node_numbers: Map,
    /// Costs by data object, the unknown object first; empty if objects are not distinguished.
    pub(crate) objects: List<ObjectUse>,
    /// Placements in force.
    pub(crate) placed: u64,
    /// The first free node; 0 for none.
    pub(crate) free: u32,
    /// Nodes in use, without [`UNKNOWN_NODE`].
    pub(crate) used: u32,
    /// Number of nodes at which pruning starts.
    pub(crate) limit: u32,
    pub(crate) reserved: u32,
    /// As [`crate::TreeStatistics`].
    pub(crate) prunings: u64,
    pub(crate) nodes_sum: u64,
    pub(crate) nodes_most: u64,
    pub(crate) nodes_made: u64,
    pub(crate) calls_folded: u64,
}
// SAFETY: integers; 4-byte integers in pairs, hence without padding.
unsafe impl Plain for State {}

impl Thread {
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, id: u64, model: &Model) -> Option<Thread> {
        let mut caches = [Cache::none(); PRIVATE];
        if model.fetch == 1 {
            caches[I1] = model.cache(arena, 0)?;
        }
        caches[D1] = model.cache(arena, 1)?;
        if model.levels > 2 {
            caches[L2] = model.cache(arena, 2)?;
        }
        Self::with_caches(arena, id, model, caches)
    }

    pub(crate) fn with_caches<A: Arena + ?Sized>(
        arena: &A,
        id: u64,
        model: &Model,
        caches: [Cache; PRIVATE],
    ) -> Option<Thread> {
        let strides = if model.prefetch == 2 { STRIDES } else { 0 };
        Some(Thread {
            id,
            frames: Span::allocate(arena, DEPTH)?,
            strides: Span::allocate(arena, strides)?,
            depth: 0,
            ended: 0,
            pending: 0,
            pending_site: NO_INSTRUCTION,
            block: 0,
            run: 0,
            run_end: 0,
            reserved: 0,
            caches,
        })
    }

    /// A frame.
    ///
    /// # Safety
    /// `depth` is below `self.depth`, the arena outlives the
    /// reference, and no second reference to the frame is in use.
    #[inline(always)]
    pub(crate) unsafe fn frame<'a, A: Arena + ?Sized>(&self, arena: &A, depth: u32) -> &'a mut Frame {
        // SAFETY: `self.depth` is at most the span's count, allocated or checked before.
        unsafe {
            &mut *arena.base().as_ptr().add(self.frames.offset() as usize).cast::<Frame>().add(depth as usize)
        }
    }

    /// Appends a frame; false when the stack is too deep.
    pub(crate) fn push<A: Arena + ?Sized>(&mut self, arena: &A, frame: Frame) -> bool {
        if self.depth as usize >= DEPTH {
            return false;
        }
        self.depth += 1;
        // SAFETY: just made valid: below DEPTH, the span's count.
        unsafe { *self.frame(arena, self.depth - 1) = frame };
        true
    }

    /// Positions of the thread's tables, in a fixed order.
    fn ranges(&self) -> impl Iterator<Item = Range> + use<> {
        let caches = self.caches.into_iter().flat_map(|cache| cache.ranges());
        [self.frames.range(), self.strides.range()].into_iter().chain(caches)
    }

    /// Checks a thread from another process.
    pub(crate) fn is_whole<A: Arena + ?Sized>(
        &self,
        arena: &A,
        functions: usize,
        [nodes, cells, objects]: [usize; 3],
    ) -> bool {
        let sound = self.frames.count() == DEPTH
            && self.frames.get(arena).is_some()
            && self.depth as usize <= DEPTH
            && (self.strides.count() == 0 || self.strides.count() == STRIDES)
            && self.strides.get(arena).is_some()
            && self.caches.iter().all(|cache| cache.is_whole(arena, [nodes, cells, objects]));
        sound
            && (0..self.depth).all(|depth| {
                // SAFETY: below the depth.
                let frame = unsafe { self.frame(arena, depth) };
                (frame.node as usize) < nodes
                    && (frame.function as usize) < functions
                    && (frame.instead as usize) < cells
            })
    }
}

impl State {
    /// An empty state; `None` when the arena is full.
    pub(crate) fn new<A: Arena + ?Sized>(arena: &A, config: &Config) -> Option<State> {
        let model = Model::new(config);
        let nobody =
            FunctionRecord { entry: 0, instruction: NO_INSTRUCTION, skipped: 0, inclusive: Costs::default() };
        let mut functions = List::new(arena, 256)?;
        functions.push(arena, nobody)?;
        let mut roots = List::new(arena, 16)?;
        roots.push(
            arena,
            RootRecord { function: UNKNOWN_CALLER, signal: NONE, inclusive: Costs::default() },
        )?;
        let mut nodes = List::new(arena, 1024)?;
        let free = Node {
            parent: 0,
            function: UNKNOWN_CALLER,
            arc: 0,
            lines: 0,
            children: 0,
            flags: 0,
            path: 0,
            costs: Costs::default(),
        };
        nodes.push(arena, free)?;
        nodes.push(arena, Node { flags: flag::ROOT | flag::FIRST_OF_FUNCTION, path: 1, ..free })?;
        let mut arcs = List::new(arena, 256)?;
        // Number 0 stands for none.
        arcs.push(
            arena,
            ArcRecord {
                caller: 0,
                site: NO_INSTRUCTION,
                callee: 0,
                next: 0,
                calls: 0,
                inclusive: Costs::default(),
            },
        )?;
        let mut threads = List::new(arena, 4)?;
        let now = Thread::new(arena, 0, &model)?;
        threads.push(arena, now)?;
        let mut objects = List::new(arena, 256)?;
        objects.extend(arena, model.objects as usize)?;
        Some(State {
            magic: 0,
            consumed: 0,
            busy: 0,
            torn: 0,
            full: 0,
            clock: 0,
            counts: [0; 3],
            settled: [0; 3],
            loads: 0,
            pruned_at: 0,
            node: UNKNOWN_NODE,
            function: UNKNOWN_CALLER,
            instead: 0,
            thread: 0,
            now,
            held: Event::from_words(0, 0),
            threads,
            last: if model.levels > 1 { model.cache(arena, model.levels as usize)? } else { Cache::none() },
            cells: Keyed::new(arena, NO_INSTRUCTION, Costs::default())?,
            blocks: Keyed::new(arena, NONE, 0)?,
            functions,
            function_numbers: Map::new(arena)?,
            arcs,
            arc_numbers: Map::new(arena)?,
            roots,
            nodes,
            node_numbers: Map::new(arena)?,
            objects,
            placed: 0,
            free: 0,
            used: 0,
            limit: 1024,
            reserved: 0,
            prunings: 0,
            nodes_sum: 0,
            nodes_most: 0,
            nodes_made: 0,
            calls_folded: 0,
            model,
        })
    }

    /// Positions of the state and the tables; `offset` is the state's own.
    fn ranges<A: Arena + ?Sized>(&self, arena: &A, offset: Offset) -> Vec<Range> {
        // The current thread has tables twice, and in Callgrind's model the threads share
        // caches. A table may only coincide with itself, as shown by the number of the role.
        let threads = self.threads.values(arena).iter().chain([&self.now]);
        let mut shared: Vec<(usize, Range)> =
            threads.flat_map(|thread| thread.ranges().enumerate().collect::<Vec<_>>()).collect();
        shared.sort_unstable();
        shared.dedup();
        let mut ranges: Vec<Range> = shared.into_iter().map(|(_, range)| range).collect();
        ranges.push(Span::<State>::from_parts(offset, 1).range());
        ranges.extend([
            self.threads.range(),
            self.functions.range(),
            self.function_numbers.range(),
            self.arcs.range(),
            self.arc_numbers.range(),
            self.roots.range(),
            self.nodes.range(),
            self.node_numbers.range(),
            self.objects.range(),
        ]);
        ranges.extend(self.last.ranges());
        ranges.extend(self.cells.ranges());
        ranges.extend(self.blocks.ranges());
        ranges
    }

    /// Checks a state at `offset` from another process.
    pub(crate) fn is_whole<A: Arena + ?Sized>(&mut self, arena: &A, offset: Offset) -> bool {
        let tables = self.cells.is_whole(arena)
            && self.blocks.is_whole(arena)
            && self.functions.is_whole(arena)
            && self.arcs.is_whole(arena)
            && self.roots.is_whole(arena)
            && self.nodes.is_whole(arena)
            && self.objects.is_whole(arena)
            && self.threads.is_whole(arena);
        let (nodes, cells) = (self.nodes.len(), self.cells.list.len());
        let (functions, arcs, roots) = (self.functions.len(), self.arcs.len(), self.roots.len());
        if !tables || self.model.config().validate().is_err() || nodes <= UNKNOWN_NODE as usize {
            return false;
        }
        let node_is_whole = |node: &Node| {
            (node.parent as usize) < nodes
                && (node.function as usize) < functions
                && (node.arc as usize) < if node.flags & flag::ROOT == 0 { arcs } else { roots }
        };
        let model = Model::new(&self.model.config());
        // Values derived from the configuration are not trusted.
        self.model = model;
        let shapes = |thread: &Thread| {
            let wanted = [(I1, 0, model.fetch == 1), (D1, 1, true), (L2, 2, model.levels > 2)];
            wanted.iter().all(|(cache, size, is_there)| {
                let [bytes, _, line] = model.sizes[*size];
                let slots = if *is_there { bytes / line } else { 0 };
                thread.caches[*cache].slots() as u64 == slots
            })
        };
        // Only an instruction cache has runs to fetch.
        let fetches = |thread: &Thread| model.fetch == 1 || thread.run >= thread.run_end;
        let [bytes, _, line] = model.sizes.get(model.levels as usize).copied().unwrap_or([0, 0, 1]);
        let last = if model.levels > 1 { bytes / line } else { 0 };
        // The unknown object always exists, if only as a number.
        let objects = self.objects.len().max(1);
        are_apart(arena, self.ranges(arena, offset))
            && self.objects.len() >= model.objects as usize
            && self.last.slots() as u64 == last
            && self.last.is_whole(arena, [nodes, cells, objects])
            && self.function_numbers.is_whole(arena, functions)
            && self.arc_numbers.is_whole(arena, arcs)
            && self.node_numbers.is_whole(arena, nodes)
            && self.nodes.values(arena).iter().all(node_is_whole)
            && self.arcs.values(arena).iter().enumerate().all(|(index, arc)| {
                (arc.next as usize) < index.max(1)
                    && (arc.caller as usize) < functions
                    && (arc.callee as usize) < functions
            })
            && self.roots.values(arena).iter().all(|root| (root.function as usize) < functions)
            && (self.node as usize) < nodes
            && (self.function as usize) < functions
            && (self.instead as usize) < cells
            && (self.free as usize) < nodes
            && (self.thread as usize) < self.threads.len()
            && self.threads.values(arena).iter().chain([&self.now]).all(|thread| {
                thread.is_whole(arena, functions, [nodes, cells, objects])
                    && shapes(thread)
                    && fetches(thread)
            })
    }
}
