//! The access stream: the events of a run as seen by an analysis, independent of the source.
//!
//! * [`Event`]: 16 bytes; an access, a block begun, a system call, a thread's begin and end.
//! * [`Code`]: the static facts, stored once: instruction bytes and blocks, as recorded when code was
//!   translated. [`Instruction`] is what follows from the bytes (class, data type, registers,
//!   flow).
//! * [`Dependences`]: inputs and outputs of an instruction, by locations.
//! * [`Predictor`]: which branches a processor foresees.
//! * [`Arena`]: memory for state: index-based tables in one range, which another process can map to
//!   finish the work. [`Heap`] is the arena of tests and of analyses that run where they report.
//!   [`List`] grows in one.
//! * [`Analysis`]: observes events in order, one state per thread. Merging and finishing are each
//!   analysis' own, as what they return differs.
//! * [`Checker`]: the invariants of a stream, as an analysis. [`Mix`]: instructions executed, by class.
//!
//! Pure: no I/O, no process. Not here: any distance (`locality-reuse`), the plugin, files.

mod analysis;
mod arena;
mod checker;
mod classify;
mod code;
mod dependences;
mod event;
mod list;
mod mix;
mod placement;
mod predictor;
#[cfg(feature = "testing")]
pub mod testing;

pub use analysis::{Analysis, ArenaFull};
pub use arena::{Arena, Heap, Offset, Plain, Range, Span, are_apart};
pub use checker::{Checker, Finding, Rule};
pub use classify::{Class, DataType, Flow, Instruction, NoDataType};
pub use code::{BlockRecord, Code, InstructionRecord};
pub use dependences::{By, Dependences, LatencyClass, Locations, MemoryOperand, Step, Top};
pub use event::{Event, Kind, NO_INSTRUCTION};
pub use list::List;
pub use mix::{BlockCounts, Mix};
pub use placement::Placement;
pub use predictor::{Branch, Predictor};
