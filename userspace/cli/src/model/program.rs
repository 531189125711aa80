//! The traced program's files for the execution model, and a
//! profile's windows and stacks by addresses in the files.
//!
//! A file replaced since the trace is not read, and is named.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use locality_execution::build::{Built, Index};
use locality_execution::observed::{At, Binaries, FunctionBytes, Observed, StackSeen, WindowSeen};
use locality_execution::schedule::{AccessSeen, SizeMisses};
use locality_findings::cache_use::FirstTouchMisses;
use locality_model::{ModuleId, Profile, SampleId, StackId};
use locality_symbols::CodeFile;

/// Least share of an access's most frequent step to be used.
const USUAL_STEPS: f64 = 0.6;

/// The files.
pub struct Program {
    /// Name, build id, and the file if readable.
    files: Vec<(String, String, Option<CodeFile>)>,
    /// Files not read, with the reason.
    pub unread: BTreeMap<String, String>,
    found: RefCell<HashMap<At, Option<FunctionBytes>>>,
}

impl Program {
    /// Opens the files of a profile's modules.
    pub fn open(profile: &Profile) -> Self {
        let mut program = Self { files: Vec::new(), unread: BTreeMap::new(), found: RefCell::default() };
        for module in &profile.modules {
            let path = Path::new(&module.path);
            let name = path
                .file_name()
                .map_or_else(|| module.path.clone(), |name| name.to_string_lossy().into_owned());
            // Relative paths are mappings with a name in brackets.
            let opened = path.is_absolute().then(|| CodeFile::open(path, &module.build_id));
            let file = match opened {
                Some(Ok(file)) => Some(file),
                Some(Err(why)) => {
                    program.unread.insert(module.path.clone(), why.to_string());
                    None
                }
                None => None,
            };
            program.files.push((name, module.build_id.clone(), file));
        }
        program
    }

    fn file(&self, number: usize) -> Option<&CodeFile> {
        self.files.get(number)?.2.as_ref()
    }

    /// File and address in the file, from an address of the process.
    fn place(&self, modules: &[(ModuleId, u64)], address: u64) -> Option<At> {
        modules.iter().find_map(|(module, bias)| {
            let inside = address.wrapping_sub(*bias);
            let file = self.file(module.0 as usize)?;
            file.has_code(inside).then_some((module.0 as usize, inside))
        })
    }

    /// A profile's windows and stacks.
    pub fn observe(&self, profile: &Profile) -> Observed {
        let durations = durations(profile);
        let instructions: HashMap<SampleId, u64> =
            profile.windows.iter().map(|window| (window.sample, window.instructions)).collect();
        let mut readings: HashMap<SampleId, Vec<(u64, i64, i64)>> = HashMap::new();
        for reading in &profile.readings {
            readings.entry(reading.sample).or_default().push((reading.ip, reading.left, reading.right));
        }
        let windows = profile.flows.iter().filter_map(|flow| {
            let sample = profile.samples.get(flow.sample.0 as usize)?;
            let duration = durations.get(&flow.sample).copied()?;
            let place = |address: u64| self.place(&flow.modules, address);
            let edges = flow
                .edges
                .iter()
                .filter_map(|edge| Some((place(edge.from)?, place(edge.to)?, edge.count as f64)));
            let readings = readings.get(&flow.sample).into_iter().flatten();
            Some(WindowSeen {
                weight: sample.period_ns as f64 / duration,
                instructions: instructions.get(&flow.sample).copied().unwrap_or_default(),
                stack: Some(flow.sample.0 as usize),
                first: place(flow.first),
                edges: edges.collect(),
                readings: readings
                    .filter_map(|(ip, left, right)| Some((place(*ip)?, *left, *right)))
                    .collect(),
            })
        });
        let windows = windows.collect();
        let stacks = profile.samples.iter().map(|sample| StackSeen {
            time: sample.period_ns as f64,
            frames: self.frames(profile, sample.stack),
        });
        Observed { windows, stacks: stacks.collect() }
    }

    /// Accesses in windows: steps in loops, and lines touched first.
    /// `misses`: of any cache size, since touches are equal for every size.
    pub fn accesses(
        &self,
        profile: &Profile,
        built: &Built,
        misses: &SizeMisses,
    ) -> BTreeMap<At, AccessSeen> {
        #[derive(Default)]
        struct Counts {
            strides: BTreeMap<i64, u64>,
            steps: u64,
        }
        let mut counts: BTreeMap<u64, Counts> = BTreeMap::new();
        for access in profile.loops.iter().flat_map(|seen| &seen.by_access) {
            let sums = counts.entry(access.ip).or_default();
            if let Some(stride) = access.stride {
                *sums.strides.entry(stride).or_default() += access.stride_count;
                sums.steps += access.steps;
            }
        }
        let place = self.placing(profile);
        let mut found: BTreeMap<At, AccessSeen> = BTreeMap::new();
        for (ip, sums) in counts {
            let most = sums.strides.into_iter().max_by_key(|(_, count)| *count);
            let stride = most.map(|(stride, count)| (stride, count as f64 / sums.steps.max(1) as f64));
            let stride = stride.filter(|(_, share)| *share >= USUAL_STEPS);
            if let Some(at) = place(ip) {
                found.entry(at).or_default().stride = stride;
            }
        }
        let index = Index::of(built);
        for ((at, _), misses) in &misses.by_instruction {
            let executions = index.find(*at).and_then(|number| {
                let code = &built.functions.get(number)?.code;
                let block = code.blocks.get(code.block_of(at.1)?)?;
                built.executions.get(&(number, block.start))
            });
            if let Some(executions) = executions.filter(|executions| **executions > 0.0) {
                *found.entry(*at).or_default().lines.get_or_insert(0.0) += misses.touches / executions;
            }
        }
        found
    }

    /// Share of first touches of lines that miss caches of given sizes; 1 if unknown.
    pub fn misses(&self, profile: &Profile, sizes: &[u64]) -> Vec<SizeMisses> {
        let Some(found) = FirstTouchMisses::of(profile, sizes) else {
            return sizes.iter().map(|_| SizeMisses { all: 1.0, ..SizeMisses::default() }).collect();
        };
        let place = self.placing(profile);
        let of_size = |found: FirstTouchMisses| {
            let mut misses = SizeMisses { all: found.all, ..SizeMisses::default() };
            for ((ip, stores), (touches, share)) in found.by_instruction {
                if let Some(at) = place(ip) {
                    // Processes have an instruction at several addresses.
                    misses.by_instruction.entry((at, stores)).or_default().add(touches, share);
                }
            }
            misses
        };
        found.into_iter().map(of_size).collect()
    }

    /// Finds file and address in the file, from an address of any process of the profile.
    fn placing<'a>(&'a self, profile: &'a Profile) -> impl Fn(u64) -> Option<At> + 'a {
        let mappings: BTreeSet<&[(ModuleId, u64)]> =
            profile.flows.iter().map(|flow| flow.modules.as_slice()).collect();
        let found: RefCell<HashMap<u64, Option<At>>> = RefCell::default();
        move |ip| {
            let find = || mappings.iter().find_map(|modules| self.place(modules, ip));
            *found.borrow_mut().entry(ip).or_insert_with(find)
        }
    }

    fn frames(&self, profile: &Profile, stack: StackId) -> Vec<At> {
        let frames = profile.stacks.get(stack.0 as usize).map_or(&[][..], |stack| &stack.frames);
        let frame = |id: &locality_model::FrameId| {
            let frame = profile.frames.get(id.0 as usize).filter(|frame| !frame.inlined)?;
            Some((frame.module?.0 as usize, frame.module_address?))
        };
        frames.iter().filter_map(frame).collect()
    }
}

/// Duration of each window in nanoseconds: accesses over the rate;
/// without a rate, instructions times the median time per instruction.
fn durations(profile: &Profile) -> HashMap<SampleId, f64> {
    let known = |window: &locality_model::Window| {
        let rate = window.rate.as_ref()?.value;
        (rate > 0.0 && window.accesses > 0).then(|| window.accesses as f64 / rate)
    };
    let mut speeds: Vec<f64> = profile
        .windows
        .iter()
        .filter_map(|window| Some(known(window)? / window.instructions.max(1) as f64))
        .collect();
    speeds.sort_by(f64::total_cmp);
    let median = speeds.get(speeds.len() / 2).copied().unwrap_or(0.3);
    let duration = |window: &locality_model::Window| {
        (window.sample, known(window).unwrap_or(median * window.instructions as f64).max(1.0))
    };
    profile.windows.iter().map(duration).collect()
}

impl Binaries for Program {
    fn files(&self) -> Vec<(String, String)> {
        self.files.iter().map(|(name, build_id, _)| (name.clone(), build_id.clone())).collect()
    }

    fn function(&self, at: At) -> Option<FunctionBytes> {
        let find = || {
            let found = self.file(at.0)?.function(at.1)?;
            Some(FunctionBytes {
                name: found.name,
                symbol: found.symbol,
                start: found.start,
                bytes: found.bytes,
            })
        };
        self.found.borrow_mut().entry(at).or_insert_with(find).clone()
    }

    fn stub(&self, at: At) -> Option<String> {
        self.file(at.0)?.stub(at.1)
    }
}
