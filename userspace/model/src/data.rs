//! Data objects: what accesses touched, in the words of the program's source.
//!
//! An [`Object`] is a row of its own for each variable and each allocation context, not for each
//! block of memory: all blocks that one call path allocates are one object. [`Located`] says which
//! object an access of the profile lies in; the accesses themselves stand in their own tables. Not
//! here: how an address is resolved (`locality-objects`).

use super::{LoadId, ModuleId, SampleId, StackId, UseId, WatchId};

/// What kind of memory an object lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum ObjectKind {
    /// A global or static variable.
    Static,
    /// A thread-local variable.
    ThreadLocal,
    /// A variable of a function's frame, or a frame whose variables are not known.
    Stack,
    /// Blocks of an allocation context.
    Heap,
    /// Anonymous memory that the program mapped itself.
    Mapped,
    /// A mapped file.
    File,
    /// Nothing is known; [`Object::unknown`] says why.
    #[default]
    Unknown,
}

/// A data object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Object {
    /// Kind of memory.
    pub kind: ObjectKind,
    /// As a reader knows it: `grid->cells`, `malloc at sim.c:88`, `main's frame`.
    pub name: String,
    /// Source type.
    pub type_name: Option<String>,
    /// The file that it is mapped from or defined in.
    pub module: Option<ModuleId>,
    /// Where it is declared: source file, and line where that is known.
    pub declared: Option<(String, Option<u32>)>,
    /// Bytes: of a variable, or of the largest block seen.
    pub bytes: Option<u64>,
    /// Function of a variable of its frame.
    pub function: Option<String>,
    /// Call stack of the allocation, innermost frame the allocating call.
    pub site: Option<StackId>,
    /// A conclusion (from a pointer that holds its base, from a size class), not a record of what happened.
    pub inferred: bool,
    /// Name and type are a conclusion, also those of a block whose allocation was recorded.
    pub name_inferred: bool,
    /// Why something is missing.
    pub unknown: Option<String>,
}

/// A structure type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Source name.
    pub name: String,
    /// Bytes of one element.
    pub bytes: u64,
    /// Its members that are not structures themselves, nested ones by path, by offset.
    pub members: Vec<Member>,
}

/// A member of a structure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Member {
    /// `vx`, `position.x`, `tail[]`.
    pub path: String,
    /// Source type.
    pub type_name: Option<String>,
    /// First byte within an element.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// What its address is a multiple of; a power of two.
    pub align: u64,
}

/// A part of an object that accesses lie in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Field {
    /// From the object's name on, all elements of an array being one: `[].vx`, `.head.next`.
    pub path: String,
    /// Source type.
    pub type_name: Option<String>,
    /// First byte in the object, indices being 0.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// The structure around it whose layout matters, where it is known.
    pub record: Option<RecordId>,
    /// First byte in that structure.
    pub record_offset: u64,
}

/// Which access of the profile is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Accessed {
    /// A sample's own access.
    Sample(SampleId),
    /// An access by the instruction that the thread had completed when the clock interrupted it: the
    /// CPU time of the sample passed there, not at its own access.
    Before(SampleId),
    /// A use drawn in a window.
    Use(UseId),
    /// The reuse that a window showed of a use's granule of so many bytes.
    Seen(UseId, u32),
    /// An access in a window that may load its line.
    Load(LoadId),
    /// The use of a watch, where there was no window.
    WatchUse(WatchId),
    /// The reuse that a watch trapped.
    WatchReuse(WatchId),
}

/// The object that an access lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// The access.
    pub of: Accessed,
    /// The object.
    pub object: ObjectId,
    /// First byte of the access within the object (of a heap object: within its block); `None`
    /// where the base is not known.
    pub offset: Option<u64>,
    /// The part that it touched.
    pub field: Option<FieldId>,
}

/// What was seen of the heap: allocations by call path, and how many were not seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Heap {
    /// Allocations that were recorded.
    pub seen: u64,
    /// Allocations that the process made meanwhile, as far as they could be counted; at least [`Heap::seen`].
    pub made: u64,
    /// Blocks whose records were folded or dropped to bound memory.
    pub folded: u64,
    /// Where, the most bytes first.
    pub sites: Vec<AllocationSite>,
    /// Which were not recorded, and why; older profiles do not say.
    pub missed: Option<Missed>,
}

/// Allocations that were not recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missed {
    /// Smaller ones were only counted, to begin with.
    pub min_bytes: u64,
    /// The same at the end: it rises where the budget would not suffice.
    pub min_bytes_at_end: u64,
    /// How many were smaller.
    pub smaller: u64,
    /// How many were made while the probes were away, as far as known.
    pub unwatched: u64,
    /// How many could not be followed, and records that found no room.
    pub lost: u64,
}

/// Allocations of one call path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationSite {
    /// The call path.
    pub stack: StackId,
    /// Recorded allocations.
    pub allocations: u64,
    /// Their bytes in all.
    pub bytes: u64,
}

impl Heap {
    /// Share of the allocations that was recorded; `None` where there were none.
    pub fn share_seen(&self) -> Option<f64> {
        (self.made > 0).then(|| self.seen as f64 / self.made as f64)
    }
}

macro_rules! index_types {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
    )*};
}
index_types! {
    /// Index into [`super::Profile::objects`].
    ObjectId,
    /// Index into [`super::Profile::records`].
    RecordId,
    /// Index into [`super::Profile::fields`].
    FieldId,
}
