//! Call paths of threads that run a parallel region for another thread: below the region stands
//! only the thread pool's code, and the functions that led to the region stand on the master's stack.
//!
//! The master runs the same region, so samples show the region's callers, and a worker's path
//! continues with them. For a region entered from several places, only the common part of the paths
//! outside is reported, and the path is cut there. Without a sample of the master in the region,
//! the worker's path stays.
//!
//! Source of error: a region sampled from one place and entered from another one too. Not here:
//! pools that hand over queued tasks (threads of C++ and Rust, Java's).

use std::collections::HashMap;

use locality_model::{FrameId, Profile};

/// How the symboliser calls the function of a parallel region.
const REGION: &str = " (parallel loop";
/// Functions that a thread begins with.
const THREAD_STARTS: [&str; 6] = ["clone3", "__clone3", "clone", "__clone", "start_thread", "thread_start"];
/// Why a worker's path is cut.
pub(crate) const SEVERAL: &str = "a thread of a pool: the parallel loop was entered from several places";

/// The callers of a region, as far as the masters' paths agree.
struct Callers {
    path: Vec<FrameId>,
    /// Some path differs from this frame on.
    is_cut: bool,
}

/// The callers of regions, by the region's function.
pub(crate) struct Pools<'p> {
    profile: &'p Profile,
    callers: HashMap<&'p str, Callers>,
}

impl<'p> Pools<'p> {
    /// From the whole paths of a profile, innermost first, equal frames with equal ids.
    pub(crate) fn new<'s>(profile: &'p Profile, paths: impl Iterator<Item = &'s [FrameId]>) -> Self {
        let mut this = Self { profile, callers: HashMap::new() };
        for path in paths {
            let Some((at, function)) = this.region(path) else { continue };
            if this.is_worker(path, at) {
                continue;
            }
            let Some(path) = path.get(at + 1..).filter(|path| !path.is_empty()) else { continue };
            match this.callers.get_mut(function) {
                None => {
                    this.callers.insert(function, Callers { path: path.to_vec(), is_cut: false });
                }
                Some(known) => {
                    let same = known.path.iter().zip(path).take_while(|(a, b)| a == b).count();
                    known.is_cut |= same < known.path.len() || same < path.len();
                    known.path.truncate(same);
                }
            }
        }
        this
    }

    /// The path of a worker with the master's callers in the place of the pool's, and why it is
    /// cut; `None` for every other path.
    pub(crate) fn joined(&self, path: &[FrameId]) -> Option<(Vec<FrameId>, Option<String>)> {
        let (at, function) = self.region(path)?;
        let callers = self.callers.get(function).filter(|_| self.is_worker(path, at))?;
        if callers.path.is_empty() {
            return None;
        }
        let mut joined = path.get(..=at)?.to_vec();
        joined.extend(&callers.path);
        Some((joined, callers.is_cut.then(|| SEVERAL.to_owned())))
    }

    /// The outermost frame that is a region's.
    fn region(&self, path: &[FrameId]) -> Option<(usize, &'p str)> {
        path.iter().enumerate().rev().find_map(|(at, frame)| {
            let function = self.function(*frame)?;
            function.contains(REGION).then_some((at, function))
        })
    }

    /// Whether outside the region come only the pool's frames, to the start of a thread.
    fn is_worker(&self, path: &[FrameId], at: usize) -> bool {
        let starts = |frame: &FrameId| {
            let function = self.function(*frame);
            function.is_some_and(|function| THREAD_STARTS.contains(&function))
        };
        let region = path.get(at).and_then(|frame| self.module(*frame));
        let behind = path.get(at + 1..).unwrap_or_default();
        let own = behind.iter().any(|frame| self.module(*frame) == region);
        behind.last().is_some_and(starts) && !own
    }

    fn function(&self, frame: FrameId) -> Option<&'p str> {
        self.profile.frames.get(frame.0 as usize)?.function.as_deref()
    }

    fn module(&self, frame: FrameId) -> Option<locality_model::ModuleId> {
        self.profile.frames.get(frame.0 as usize)?.module
    }
}

#[cfg(test)]
mod tests;
