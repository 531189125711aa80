//! Targets: each makes inputs, and hands the inputs to the code that reads them in a trace.

mod arenas;
mod code;
mod execution;
mod faulty;
mod files;
mod profiles;
mod texts;

use std::path::Path;

use anyhow::{Result, bail};
use fastrand::Rng;

/// One kind of input.
pub trait Target {
    /// An input, nearly right.
    fn make(&mut self, random: &mut Rng) -> Vec<u8>;

    /// Has our code read the input. Panics if an answer cannot be right.
    fn run(&mut self, input: &[u8]);
}

/// The targets, the cheap first.
pub const NAMES: [&str; 19] = [
    "isa",
    "classify",
    "stream",
    "records",
    "maps",
    "proc",
    "perfmap",
    "demangle",
    "json",
    "skeleton",
    "functions",
    "windows",
    "reuse",
    "cachesim",
    "symbols",
    "objects",
    "approximate",
    "profile",
    "cells",
];

/// A target with a fault of each kind, for the driver's own test: tried by name only.
pub const FAULTY: &str = "faulty";

/// Makes the seeds that targets mutate: programs with debug information, and a profile.
pub fn prepare(folder: &Path) -> Result<()> {
    files::prepare(folder)?;
    profiles::prepare(folder)
}

/// A target by its name.
pub fn open(name: &str, folder: &Path) -> Result<Box<dyn Target>> {
    Ok(match name {
        "isa" => Box::new(code::Isa::open()?),
        "classify" => Box::new(code::Classify::open()?),
        "stream" => Box::new(code::Stream::open()?),
        "records" => Box::new(code::Records),
        "windows" => Box::new(code::Windows::open()?),
        "maps" => Box::new(texts::Maps),
        "proc" => Box::new(texts::Proc),
        "perfmap" => Box::new(texts::PerfMap::open()?),
        "demangle" => Box::new(texts::Demangle),
        "json" => Box::new(texts::Json),
        "skeleton" => Box::new(execution::Skeletons),
        "functions" => Box::new(execution::Functions::open()?),
        "reuse" => Box::new(arenas::Reuse),
        "cachesim" => Box::new(arenas::CacheSim),
        "symbols" => Box::new(files::Files::open(files::Reader::Symbols, folder)?),
        "objects" => Box::new(files::Files::open(files::Reader::Objects, folder)?),
        "approximate" => Box::new(files::Files::open(files::Reader::Approximate, folder)?),
        "profile" => Box::new(profiles::Profiles::open(false, folder)?),
        "cells" => Box::new(profiles::Profiles::open(true, folder)?),
        FAULTY => Box::new(faulty::Faulty),
        _ => bail!("there is no target {name}"),
    })
}
