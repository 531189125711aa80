//! Names the data object at an address of a live process: the direct method of data-centric
//! attribution (Cache Scope, HPCToolkit; `approximate-data-centric-2011`, "direct data centric").
//!
//! [`Resolver`] answers for one process: the static, thread-local, stack or heap variable, file or
//! mapping of an effective address, the element and field by its DWARF type, and [`Layout`] the
//! cache lines of the type. Everything is read from the mapped files, lazily, module by module; of
//! the process itself only through a [`Memory`] (thread-local blocks of libraries, pointer
//! variables), and nothing is ever written.
//!
//! An answer is one of three things: known (symbol, debug information, allocation record),
//! inferred from a pointer ([`Object::inferred`]), or a place without a name and the reason
//! ([`Object::unknown`]). Never a guess without its mark.
//!
//! Not here: recording allocations ([`HeapBlocks`] hands them over), unwinding
//! (`locality-symbols`), shares and reports.
//!
//! Limits: x86-64 ELF. An address alone says nothing about the width of the access, so bit-fields
//! and union members that share the byte are named together (`a|b`). Dwz supplements are not read,
//! with a report; split DWARF (`.dwo`, `.dwp`) is read as put together by `locality-symbols`.
mod chunks;
mod debug;
mod definitions;
mod elf;
mod held;
mod infer;
mod layout;
mod module;
mod named;
mod path;
mod place;
mod pointers;
mod reading;
mod resolver;
mod revealed;
mod scope;
mod session;
mod space;
mod stack;
mod statics;
mod tls;
mod type_reader;
mod types;
mod variable;

pub use debug::DebugFaults;
pub use layout::{Layout, LayoutField};
pub use locality_symbols::{CodeAddress, RegisterFile, StackFrame};
pub use named::{Declared, Field, Kind, Named, Object, ObjectId, TypeId};
pub use place::{HeapBlock, HeapBlocks, Memory, Place, ProcessMemory};
pub use resolver::Resolver;
pub use revealed::Revealed;
