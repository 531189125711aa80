//! Calling contexts and source places: which stacks mean the same thing to a reader.
//!
//! Two stacks are one context when their frames agree in function, file and line, whatever the
//! instruction addresses, and both are whole, or cut for the same reason. A worker of a parallel loop
//! has the callers of the loop's master (`thread_pools`). The place of a context is
//! the innermost frame of the program's own source: an access inside `memcpy` or inside an inlined
//! iterator counts for the line that asked for it.
//!
//! Limits: what belongs to the toolchain is guessed from paths ([`is_toolchain`]); frames that have
//! no name, not even by where their function starts, are distinguished by module address only.

use std::collections::HashMap;
use std::hash::Hash;

use locality_model::{Frame, FrameId, Module, Profile, StackId};

use crate::thread_pools::Pools;

/// Index of a distinct context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u32);

/// Index of a distinct source place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlaceId(pub u32);

/// Stands for the functions that would follow where a call path is cut.
pub const UNKNOWN_CALLER: &str = "[unknown caller]";

/// Why a context is cut whose stack has frames that the profile lacks.
const FRAMES_LACKING: &str = "the profile lacks frames of this stack";

/// A source place: where the program's own code asked for an access.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The frame that names function, file and line; `None` where the stack is empty.
    pub frame: Option<FrameId>,
    /// The library function that made the access for the frame ("memcpy"), if not the frame's own
    /// function.
    pub via: Option<String>,
}

/// All contexts and places of a profile.
#[derive(Debug, Clone, Default)]
pub struct Contexts {
    /// Contexts by stack.
    of_stack: Vec<ContextId>,
    /// By context, frames innermost first, equal frames with equal ids; and why the outermost are missing.
    paths: Vec<(Vec<FrameId>, Option<String>)>,
    /// Places by context.
    place_of: Vec<PlaceId>,
    places: Vec<Place>,
}

/// Identity of a frame.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Source(Option<&'a str>, &'a str, u32),
    Symbol(&'a str, Option<&'a str>),
    Address(Option<&'a str>, u64),
}

fn key<'a>(frame: &'a Frame, module: Option<&'a Module>) -> Key<'a> {
    let module = module.map(|module| module.path.as_str());
    match (&frame.file, frame.line, &frame.function) {
        (Some(file), Some(line), function) => Key::Source(function.as_deref(), file, line),
        (_, _, Some(function)) => Key::Symbol(function, module),
        _ => Key::Address(module, frame.module_address.unwrap_or(frame.address)),
    }
}

impl Contexts {
    /// Finds the contexts and places of all stacks.
    pub fn new(profile: &Profile) -> Self {
        let canonical = canonical_frames(profile);
        let mut contexts = Interner::default();
        let mut places = Interner::default();
        let mut place_of = Vec::new();
        let known = |stack: &locality_model::Stack| -> Vec<FrameId> {
            let known = stack.frames.iter().filter_map(|frame| canonical.get(frame.0 as usize));
            known.copied().collect()
        };
        let paths: Vec<Vec<FrameId>> = profile.stacks.iter().map(known).collect();
        let whole = profile
            .stacks
            .iter()
            .zip(&paths)
            .filter(|(stack, path)| stack.cut.is_none() && stack.frames.len() == path.len());
        let pools = Pools::new(profile, whole.map(|(_, path)| path.as_slice()));
        let of_stack = profile.stacks.iter().zip(&paths).map(|(stack, frames)| {
            let lacking = frames.len() < stack.frames.len();
            let cut = stack.cut.clone().or_else(|| lacking.then(|| FRAMES_LACKING.to_owned()));
            let joined = if cut.is_none() { pools.joined(frames) } else { None };
            let (frames, cut) = joined.unwrap_or_else(|| (frames.clone(), cut));
            let place = place(profile, &frames);
            let context = contexts.id_of((frames, cut));
            if context as usize == place_of.len() {
                place_of.push(PlaceId(places.id_of(place)));
            }
            ContextId(context)
        });
        let of_stack = of_stack.collect();
        Self { of_stack, paths: contexts.values, place_of, places: places.values }
    }

    /// The context of a stack; `None` for a stack that the profile does not have.
    pub fn of(&self, stack: StackId) -> Option<ContextId> {
        self.of_stack.get(stack.0 as usize).copied()
    }

    /// Frames of a context, innermost first.
    pub fn frames(&self, context: ContextId) -> &[FrameId] {
        self.paths.get(context.0 as usize).map_or(&[], |(frames, _)| frames)
    }

    /// Why the outermost frames of a context are missing; `None` where it is whole.
    pub fn cut(&self, context: ContextId) -> Option<&str> {
        self.paths.get(context.0 as usize)?.1.as_deref()
    }

    /// The place of a context.
    pub fn place_of(&self, context: ContextId) -> PlaceId {
        self.place_of.get(context.0 as usize).copied().unwrap_or(PlaceId(u32::MAX))
    }

    /// A place by its id; the empty place for a foreign id.
    pub fn place(&self, id: PlaceId) -> Place {
        self.places.get(id.0 as usize).cloned().unwrap_or_default()
    }

    /// Number of places.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// Deepest common frame of two contexts, counted from the root: the number of equal outer
    /// frames, and the frame of divergence. That frame is the first unequal one if the function is
    /// equal and the line is not, else the last equal one.
    pub fn common_ancestor(&self, profile: &Profile, a: ContextId, b: ContextId) -> (usize, Option<FrameId>) {
        let (a, b) = (self.frames(a), self.frames(b));
        let equal = a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count();
        let at = |frames: &[FrameId], from_root: usize| frames.iter().rev().nth(from_root).copied();
        let last_equal = equal.checked_sub(1).and_then(|depth| at(a, depth));
        let parting = at(a, equal).zip(at(b, equal)).filter(|&(a, b)| same_function(profile, a, b));
        (equal, parting.map(|(a, _)| a).or(last_equal))
    }
}

/// Numbers distinct values in order of first appearance.
struct Interner<T> {
    ids: HashMap<T, u32>,
    values: Vec<T>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { ids: HashMap::new(), values: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    fn id_of(&mut self, value: T) -> u32 {
        let next = self.values.len() as u32;
        let id = *self.ids.entry(value.clone()).or_insert(next);
        if id == next {
            self.values.push(value);
        }
        id
    }
}

/// For each frame, the first equal one.
fn canonical_frames(profile: &Profile) -> Vec<FrameId> {
    let mut first = HashMap::new();
    let ids = (0..).map(FrameId).zip(&profile.frames);
    ids.map(|(id, frame)| *first.entry(key(frame, module_of(profile, frame))).or_insert(id)).collect()
}

fn place(profile: &Profile, frames: &[FrameId]) -> Place {
    let frame = |id: &FrameId| profile.frames.get(id.0 as usize);
    let own = |id: &FrameId| frame(id).is_some_and(|frame| !is_toolchain(frame, module_of(profile, frame)));
    let with_line =
        |id: &FrameId| frame(id).is_some_and(|frame| frame.file.is_some() && frame.line.is_some());
    let at = frames
        .iter()
        .position(|id| own(id) && with_line(id))
        .or_else(|| frames.iter().position(own))
        .or_else(|| frames.iter().position(with_line))
        .unwrap_or(0);
    // Frames inlined into the place's own function are that function to a reader; a called one is named.
    let callee = frames.iter().take(at).filter_map(frame).rfind(|frame| !frame.inlined);
    let via = callee.and(frames.first()).and_then(frame).map(|frame| function_name(profile, frame));
    Place { frame: frames.get(at).copied(), via }
}

fn same_function(profile: &Profile, a: FrameId, b: FrameId) -> bool {
    let frame = |id: FrameId| profile.frames.get(id.0 as usize);
    match (frame(a), frame(b)) {
        (Some(a), Some(b)) => {
            a.function.is_some() && a.function == b.function && a.file == b.file && a.module == b.module
        }
        _ => false,
    }
}

fn module_of<'a>(profile: &'a Profile, frame: &Frame) -> Option<&'a Module> {
    frame.module.and_then(|module| profile.modules.get(module.0 as usize))
}

/// The function's name, else its module, else the address.
pub fn function_name(profile: &Profile, frame: &Frame) -> String {
    match (&frame.function, module_of(profile, frame)) {
        (Some(function), _) => function.clone(),
        (None, Some(module)) => match frame.address_in_file() {
            Some(address) => format!("{}+{address:#x}", base_name(&module.path)),
            None => format!("{} at {:#x}", base_name(&module.path), frame.address),
        },
        (None, None) if frame.address != 0 => format!("{:#x}", frame.address),
        (None, None) => "unknown".to_owned(),
    }
}

/// The last component of a path.
pub fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Source trees of compilers and system headers, as debug information names them.
const TOOLCHAIN_SOURCES: [&str; 6] =
    ["/rustc/", "/usr/include/", "/usr/lib/gcc/", "/usr/lib/rustlib/", "/usr/src/", "../sysdeps/"];

/// Libraries that a program did not choose: the C and C++ run time.
const TOOLCHAIN_MODULES: [&str; 8] =
    ["libc.so", "libc-", "libm.so", "libpthread", "libstdc++", "libgcc_s", "ld-linux", "[vdso]"];

/// True for code of the compiler's or the C library's, which a reader does not look for.
pub fn is_toolchain(frame: &Frame, module: Option<&Module>) -> bool {
    let file = frame.file.as_deref().unwrap_or_default();
    let source = TOOLCHAIN_SOURCES.iter().any(|prefix| file.starts_with(prefix))
        || file.contains("/rustlib/src/rust/")
        || file.contains("/include/c++/");
    let name = module.map_or("", |module| base_name(&module.path));
    source || TOOLCHAIN_MODULES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests;
