//! Data objects touched by accesses, in the words of the program's source.
//!
//! An [`Object`] is a row for each variable and each allocation context, not for
//! each block of memory: all blocks allocated by one call path are one object.
//! [`Located`] names the object of an access of the profile; the accesses stand
//! in other tables. Not here: how an address is resolved (`locality-objects`).

use super::{LoadId, ModuleId, SampleId, StackId, UseId, WatchId};

/// Kind of an object's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum ObjectKind {
    /// A global or static variable.
    Static,
    /// A thread-local variable.
    ThreadLocal,
    /// A variable of a function's frame, or a frame with unknown variables.
    Stack,
    /// Blocks of an allocation context.
    Heap,
    /// Anonymous memory mapped by the program.
    Mapped,
    /// A mapped file.
    File,
    /// Unknown; [`Object::unknown`] has the reason.
    #[default]
    Unknown,
}

/// A data object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Object {
    /// Kind of memory.
    pub kind: ObjectKind,
    /// Name for a reader: `grid->cells`, `malloc at sim.c:88`, `main's frame`.
    pub name: String,
    /// Source type.
    pub type_name: Option<String>,
    /// The file mapped, or the file that defines the object.
    pub module: Option<ModuleId>,
    /// Place of the declaration: source file, and line if known.
    pub declared: Option<(String, Option<u32>)>,
    /// Bytes: of a variable, or of the largest block seen.
    pub bytes: Option<u64>,
    /// Function of a variable on the stack.
    pub function: Option<String>,
    /// Call stack of the allocation, innermost frame the allocating call.
    pub site: Option<StackId>,
    /// True for a conclusion (from a pointer to the object's
    /// base, from a size class), not a recorded fact.
    pub inferred: bool,
    /// Name and type are a conclusion, even for a block with a recorded allocation.
    pub name_inferred: bool,
    /// Why parts of the description are missing.
    pub unknown: Option<String>,
}

/// A structure type.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Source name.
    pub name: String,
    /// Bytes of one element.
    pub bytes: u64,
    /// Members other than structures, nested ones by path, by offset.
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
    /// Alignment of the member's address in bytes, a power of two.
    pub align: u64,
}

/// An accessed part of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Field {
    /// Path from the object's name on, with all elements of an array as one: `[].vx`, `.head.next`.
    pub path: String,
    /// Source type.
    pub type_name: Option<String>,
    /// First byte in the object, indices being 0.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// The enclosing structure for an analysis of layout, if known.
    pub record: Option<RecordId>,
    /// First byte in the structure `record`.
    pub record_offset: u64,
}

/// An access of the profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Accessed {
    /// A sample's own access.
    Sample(SampleId),
    /// An access by the instruction completed by the thread when the clock interrupted: the
    /// CPU time of the sample passed at this instruction, not at the sample's own access.
    Before(SampleId),
    /// A use drawn in a window.
    Use(UseId),
    /// The reuse shown by a window for a use's granule of so many bytes.
    Seen(UseId, u32),
    /// An access in a window that may load a line.
    Load(LoadId),
    /// The use of a watch without a window.
    WatchUse(WatchId),
    /// The reuse trapped by a watch.
    WatchReuse(WatchId),
}

/// The object of an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// The access.
    pub of: Accessed,
    /// The object.
    pub object: ObjectId,
    /// First byte of the access within the object (for a heap
    /// object: within the block); `None` if the base is unknown.
    pub offset: Option<u64>,
    /// The accessed part.
    pub field: Option<FieldId>,
}

/// Recorded allocations by call path, and numbers of the unrecorded ones.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Heap {
    /// Recorded allocations.
    pub seen: u64,
    /// Allocations made by the process during the trace,
    /// as far as counted; at least [`Heap::seen`].
    pub made: u64,
    /// Blocks whose records were folded or dropped to bound memory.
    pub folded: u64,
    /// Call paths, the most bytes first.
    pub sites: Vec<AllocationSite>,
    /// Unrecorded allocations by reason; `None` in older profiles.
    pub missed: Option<Missed>,
}

/// Unrecorded allocations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missed {
    /// Least size recorded at first; smaller allocations are only counted.
    pub min_bytes: u64,
    /// Least size recorded at the end: the size rises if the budget does not suffice.
    pub min_bytes_at_end: u64,
    /// How many were smaller.
    pub smaller: u64,
    /// How many were made while the probes were away, as far as known.
    pub unwatched: u64,
    /// Allocations that could not be followed, and records lost for lack of room.
    pub lost: u64,
}

/// Allocations of a call path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationSite {
    /// The call path.
    pub stack: StackId,
    /// Recorded allocations.
    pub allocations: u64,
    /// Bytes of all allocations.
    pub bytes: u64,
}

impl Heap {
    /// Share of recorded allocations; `None` without allocations.
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
