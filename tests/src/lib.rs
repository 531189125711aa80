//! Shared parts of the tests on real processes: target
//! programs, known pairs, the tracer, the conditions of a test.
//!
//! The tests are in `tests/tests`, the programs in `tests/programs` (begin with `target.h`).
//! Functions here panic with a sentence when a test's surroundings are wrong: a test cannot go on.
//!
//! Limits: x86-64 Linux; a test that needs root, a program or the kernel begins with [`requires!`].

pub mod callgrind;
pub mod cgroups;
pub mod known;
pub mod live;
pub mod markers;
pub mod overseer;
pub mod programs;
pub mod requires;
pub mod target;
pub mod tracer;

pub use cgroups::Cgroup;
pub use live::Live;
pub use markers::{Pair, Place, markers};
pub use programs::build;
pub use target::{Finished, Target};
pub use tracer::{Traced, Tracer};
