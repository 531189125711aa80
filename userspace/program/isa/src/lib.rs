//! x86-64 instruction facts for measuring memory accesses: which access a stopped thread makes
//! next, and which instruction made the access that a watchpoint reported.
//!
//! Pure: bytes and register values in, facts out. It reads no process, allocates little, never
//! panics, whatever the bytes. Not here: running instructions against a copy of memory (shadow
//! windows), symbols, anything of the kernel.
//!
//! * [`first_access`]: the first data access at or after `rip` whose address follows from the
//!   registers alone.
//! * [`accessing_instruction`]: the instruction of a data-watchpoint trap, which reports the
//!   `rip` *after* it.
//!
//! Limits: 64-bit user code only; faults are not foreseen (the access of a faulting instruction is
//! still reported); shadow-stack accesses (CET) and the descriptor-table reads of segment loads are
//! not seen.

mod backward;
mod before;
mod code;
mod first_access;
mod interpret;
mod known;
mod memory;
#[cfg(test)]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod native;
mod registers;
mod results;
mod trap;

pub use code::{Code, is_ambiguous};
pub use first_access::{KnownAccess, Unreachable, first_access};
pub use memory::{AccessForm, AccessKind};
pub use registers::Registers;
pub use trap::{Certainty, Found, NotFound, Site, Trap, Watched, accessing_instruction};
