//! The attribution: samples in, variables with their shares out.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;

use crate::graph::LoopAt;
use crate::library;
use crate::lines::Line;
use crate::names::{PathFrame, Resolver};
use crate::object::{Kind, Named};
use crate::places::{Accesses, Level, Place, PlaceReads, Read, before, line_of, place};
use crate::program::{Analysed, ModuleId, Program};
use crate::reason::{Reason, Unreadable};
use crate::skid::{Gaussian, negate};
use crate::value::Value;
use crate::weights::{THRESHOLD, loop_weights, raw};
use locality_symbols::IgnoreLines;

/// Most frames that a function of the C library makes.
const MOST_LIBRARY_FRAMES: usize = 3;

/// How to attribute.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Weigh down variables read all over a loop (eq. 1 to 5).
    pub loop_compensation: bool,
    /// How far samples land after their events (eq. 6 to 8),
    /// in places of the level; `None` for exact addresses.
    pub skid: Option<Gaussian>,
    /// Source lines or instructions.
    pub level: Level,
    /// Whether writes take part.
    pub accesses: Accesses,
    /// Variables declared there are left out.
    pub ignore: Vec<IgnoreLines>,
}

impl Default for Options {
    /// As in the paper, without skid: lines, loop compensation;
    /// reads, and writes at places without reads.
    fn default() -> Self {
        Options {
            loop_compensation: true,
            skid: None,
            level: Level::Line,
            accesses: Accesses::default(),
            ignore: Vec::new(),
        }
    }
}

/// A code address of a module, in the module's own address space (as `addr2line` takes it). For
/// callers either the return address or an address inside the call instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// From [`Analyzer::open`].
    pub module: ModuleId,
    /// Address in it.
    pub address: u64,
}

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The call path, innermost first: functions that exist in the code, without inlined
    /// functions (frames that repeat the address of the frame before are taken for
    /// inlined and left out). `None` for a frame of a module that could not be opened.
    pub frames: Vec<Option<Frame>>,
    /// Misses, accesses or nanoseconds that the sample stands
    /// for. Samples of weight 0 or less, or NaN, are left out.
    pub weight: f64,
}

/// A place in the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceLine {
    /// As the compiler noted it.
    pub file: String,
    /// From 1.
    pub line: u32,
}

/// The share of one variable.
#[derive(Debug, Clone, PartialEq)]
pub struct VariableShare {
    /// In the source's notation: `cells`, `grid->cells`,
    /// `rows[]`. With only the call known, `malloc at sim.c:88`.
    pub name: String,
    /// What the name stands for.
    pub kind: Kind,
    /// Place of the declaration of the name's first variable.
    pub declared: Option<SourceLine>,
    /// Its function; `None` for globals.
    pub function: Option<String>,
    /// Type of the variable; of a pointer's target the type of one element.
    pub type_name: Option<String>,
    /// Further names of the pointer.
    pub aliases: Vec<String>,
    /// The function that returned the pointer, and `file:line` of the call, if seen.
    pub made_by: Option<(String, String)>,
    /// Part of the weight of all samples, 0 to 1.
    pub share: f64,
    /// Lines with reads, with their parts of `share`, largest first.
    pub read_at: Vec<(SourceLine, f64)>,
}

/// The result. Shares and unattributed shares sum to 1 if samples exist.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Attribution {
    /// Largest share first.
    pub variables: Vec<VariableShare>,
    /// Shares without a variable, by reason.
    pub unattributed: BTreeMap<Reason, f64>,
    /// Number of samples that took part.
    pub samples: u64,
    /// Their weight.
    pub weight: f64,
}

/// Attributes samples of the opened modules.
#[derive(Default)]
pub struct Analyzer {
    pub(crate) program: Program,
    reads: HashMap<ReadsKey, Rc<PlaceReads>>,
    weights: HashMap<ReadsKey, Rc<Option<BTreeMap<Read, f64>>>>,
    /// Reads that may have made a sample at an address,
    /// with the options of the running call of `rank`.
    values: HashMap<Frame, Result<Rc<Values>, Reason>>,
}

/// Reads with their parts of one sample.
type Values = BTreeMap<(Place, Read), f64>;

/// Module, function entry, loop, level, accesses.
type ReadsKey = (ModuleId, u64, Option<LoopAt>, Level, Accesses);

/// Attribution of one variable so far.
#[derive(Default)]
struct Sum {
    weight: f64,
    aliases: BTreeSet<String>,
    made_by: Option<(String, String)>,
    read_at: BTreeMap<SourceLine, f64>,
}

impl Analyzer {
    /// An analyser without open modules.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the file of a module, or returns the id that it has already.
    /// Debug information of a separate file is found by build id. Missing
    /// debug information is no error of `open` but a reason for samples.
    ///
    /// # Errors
    /// No file that can be read, or no x86-64 ELF file.
    pub fn open(&mut self, path: &Path) -> Result<ModuleId, Unreadable> {
        self.program.open(path, None)
    }

    /// Opens the file with the given build id, in lower-case hexadecimal.
    ///
    /// # Errors
    /// As above, or a file with another build id.
    pub fn open_traced(&mut self, path: &Path, build_id: &str) -> Result<ModuleId, Unreadable> {
        self.program.open(path, Some(build_id))
    }

    /// Attributes samples to variables.
    pub fn rank(&mut self, samples: impl IntoIterator<Item = Sample>, options: &Options) -> Attribution {
        let mut result = Attribution::default();
        self.values.clear();
        // Equal paths are attributed once.
        let mut paths: BTreeMap<Vec<Option<Frame>>, f64> = BTreeMap::new();
        for sample in samples {
            if sample.weight > 0.0 && sample.weight.is_finite() {
                result.samples += 1;
                result.weight += sample.weight;
                *paths.entry(sample.frames).or_default() += sample.weight;
            }
        }
        let mut sums: BTreeMap<Named, Sum> = BTreeMap::new();
        for (frames, weight) in paths {
            match self.parts(&frames, options) {
                Err(reason) => *result.unattributed.entry(reason).or_default() += weight,
                Ok(parts) => {
                    for part in parts {
                        match part.object {
                            Err(reason) => {
                                *result.unattributed.entry(reason).or_default() += weight * part.part
                            }
                            Ok(mut named) => {
                                let aliases = std::mem::take(&mut named.aliases);
                                let made_by = named.made_by.take();
                                let sum = sums.entry(named).or_default();
                                sum.weight += weight * part.part;
                                sum.aliases.extend(aliases);
                                sum.made_by = sum.made_by.take().or(made_by);
                                if let Some(line) = part.line {
                                    *sum.read_at.entry(line).or_default() += weight * part.part;
                                }
                            }
                        }
                    }
                }
            }
        }
        let whole = result.weight;
        result.unattributed.values_mut().for_each(|weight| *weight /= whole);
        result.variables = sums.into_iter().map(|(named, sum)| share(named, sum, whole)).collect();
        result.variables.sort_by(|a, b| b.share.total_cmp(&a.share));
        result
    }

    /// The objects of one path, with parts that sum to 1.
    fn parts(&mut self, frames: &[Option<Frame>], options: &Options) -> Result<Vec<Part>, Reason> {
        let (path, touched) = match self.in_function(frames, options) {
            Ok(found) => found,
            Err(reason) => self.in_library(frames, options).ok_or(reason)?,
        };
        let mut parts = Vec::new();
        let mut resolver = Resolver::new(&mut self.program, path);
        for Touched { address, line, part } in touched {
            let targets = resolver.address(address);
            if targets.is_empty() {
                parts.push(Part { object: Err(Reason::UnknownPointer), line, part });
                continue;
            }
            let each = part / targets.len() as f64;
            for target in targets {
                parts.push(Part { object: resolver.object(&target), line: line.clone(), part: each });
            }
        }
        without_ignored(parts, &options.ignore)
    }

    /// What a sample in code with debug information may have touched.
    fn in_function(
        &mut self,
        frames: &[Option<Frame>],
        options: &Options,
    ) -> Result<(Vec<PathFrame>, Vec<Touched>), Reason> {
        let innermost = frames.first().copied().flatten().ok_or(Reason::NoModule)?;
        let function = self.program.function(innermost.module, innermost.address)?;
        let index = function.graph.instruction_at(innermost.address).ok_or(Reason::NotCode)?;
        // Many paths end at one address.
        let values = match self.values.get(&innermost) {
            Some(known) => known.clone(),
            None => {
                let found = self.values(&function, index, options).map(Rc::new);
                self.values.insert(innermost, found.clone());
                found
            }
        }?;
        let touched = values.iter().map(|((place, read), part)| Touched {
            address: read.address(),
            line: source_line(&function, line_of(&function, *place)),
            part: *part,
        });
        Ok((self.path(function.clone(), frames), touched.collect()))
    }

    /// Objects that a sample in a function of the C library
    /// may have touched: the caller's arguments.
    fn in_library(
        &mut self,
        frames: &[Option<Frame>],
        options: &Options,
    ) -> Option<(Vec<PathFrame>, Vec<Touched>)> {
        let unknown = |frame: &Option<Frame>| match frame {
            Some(at) => self.program.function(at.module, at.address).is_err(),
            None => true,
        };
        let inside =
            frames.iter().take(MOST_LIBRARY_FRAMES + 1).map(unknown).take_while(|unknown| *unknown).count();
        let caller = frames.get(inside).copied().flatten().filter(|_| inside > 0)?;
        let function = self.program.function(caller.module, caller.address).ok()?;
        let call = function.call_at(caller.address)?;
        let passed = function.flow.calls.get(&call)?;
        let pointers = library::pointers(&self.program.callee(caller.module, passed.target?)?)?;
        let registers: BTreeSet<u8> = match options.accesses {
            Accesses::Reads => pointers.reads.iter().copied().collect(),
            Accesses::ReadsElseWrites if !pointers.reads.is_empty() => {
                pointers.reads.iter().copied().collect()
            }
            _ => pointers.reads.iter().chain(pointers.writes).copied().collect(),
        };
        let line =
            function.graph.instruction_at(call).and_then(|at| function.lines.get(at).copied().flatten());
        let line = source_line(&function, line);
        let part = 1.0 / registers.len() as f64;
        let address = |register| passed.registers.get(&register).copied().unwrap_or(Value::unknown(0));
        let touched = registers
            .into_iter()
            .map(|register| Touched { address: address(register), line: line.clone(), part })
            .collect::<Vec<_>>();
        let path = self.path(function.clone(), frames.get(inside..)?);
        (!touched.is_empty()).then_some((path, touched))
    }

    /// Eq. 1 to 8 for one sample: each possible read, with its part.
    fn values(&mut self, function: &Analysed, index: usize, options: &Options) -> Result<Values, Reason> {
        let own = place(function, index, options.level).ok_or(Reason::NotCovered)?;
        let around = function.graph.block_of(index).and_then(|at| function.graph.blocks.get(at)?.innermost);
        let key = (function.module, function.entry(), around, options.level, options.accesses);
        let in_loop = self.reads(function, key);
        let in_function = self.reads(function, (key.0, key.1, None, key.3, key.4));
        // A line may have code in several loops; the sample's own loop decides.
        let reads = |at: Place| in_loop.at(at).or_else(|_| in_function.at(at));
        let mut values: Values = match &options.skid {
            None => raw(reads(own)?).into_iter().map(|(read, part)| ((own, read), part)).collect(),
            Some(skid) => {
                let values = negate(&before(function, index, options.level, skid), |at| reads(at).ok());
                if values.is_empty() {
                    return Err(reads(own).err().unwrap_or(Reason::NoReads));
                }
                values
            }
        };
        if options.loop_compensation && around.is_some() {
            let weights = self.weights.entry(key).or_insert_with(|| {
                Rc::new(loop_weights(&in_loop.reads, THRESHOLD).map(|weights| weights.last))
            });
            if let Some(weights) = weights.as_ref() {
                compensate(&mut values, weights);
            }
        }
        Ok(values)
    }

    fn reads(&mut self, function: &Analysed, key: ReadsKey) -> Rc<PlaceReads> {
        if let Some(reads) = self.reads.get(&key) {
            return reads.clone();
        }
        let reads = Rc::new(PlaceReads::of(&mut self.program, function, key.2, key.3, key.4));
        self.reads.insert(key, reads.clone());
        reads
    }

    /// The frames of a path as far as they can be followed: up to the first that is no call of known code.
    fn path(&mut self, innermost: std::sync::Arc<Analysed>, frames: &[Option<Frame>]) -> Vec<PathFrame> {
        let mut path = vec![PathFrame { function: innermost, caller: None }];
        let mut last = frames.first().copied().flatten();
        for frame in frames.iter().skip(1) {
            if *frame == last {
                continue;
            }
            last = *frame;
            let Some(frame) = frame else { break };
            let Ok(function) = self.program.function(frame.module, frame.address) else { break };
            let Some(call) = function.call_at(frame.address) else { break };
            let at = path.len();
            if let Some(inner) = path.last_mut() {
                inner.caller = Some((at, call));
            }
            path.push(PathFrame { function, caller: None });
        }
        path
    }
}

/// An address that a sample may have touched, in terms of the innermost function of its path.
struct Touched {
    address: Value,
    line: Option<SourceLine>,
    part: f64,
}

pub(crate) fn source_line(function: &Analysed, line: Option<Line>) -> Option<SourceLine> {
    let line = line?;
    let file = function.state.unit.lines.file(line.file)?;
    Some(SourceLine { file: file.to_string(), line: line.line })
}

/// A part of a sample.
struct Part {
    object: Result<Named, Reason>,
    line: Option<SourceLine>,
    part: f64,
}

/// Multiplies by the loop's weights and scales to the same sum: a sample is one event,
/// whatever the loop. With all weights 0 the equations leave no read, and the values stay.
fn compensate(values: &mut Values, weights: &BTreeMap<Read, f64>) {
    let weigh = |read: &Read, value: f64| value * weights.get(read).copied().unwrap_or(1.0);
    let before: f64 = values.values().sum();
    let after: f64 = values.iter().map(|((_, read), value)| weigh(read, *value)).sum();
    if after > 0.0 {
        values.iter_mut().for_each(|((_, read), value)| *value = weigh(read, *value) * before / after);
    }
}

/// Leaves out variables declared on ignored lines; the remaining variables share the parts.
fn without_ignored(parts: Vec<Part>, ignore: &[IgnoreLines]) -> Result<Vec<Part>, Reason> {
    let ignored = |part: &Part| match &part.object {
        Ok(Named { file: Some(file), line, .. }) => ignore.iter().any(|lines| lines.contains(file, *line)),
        _ => false,
    };
    let mut kept: Vec<Part> = parts.into_iter().filter(|part| !ignored(part)).collect();
    let sum: f64 = kept.iter().map(|part| part.part).sum();
    if sum <= 0.0 {
        return Err(Reason::Ignored);
    }
    kept.iter_mut().for_each(|part| part.part /= sum);
    Ok(kept)
}

fn share(named: Named, sum: Sum, whole: f64) -> VariableShare {
    let mut read_at: Vec<(SourceLine, f64)> =
        sum.read_at.into_iter().map(|(line, weight)| (line, weight / whole)).collect();
    read_at.sort_by(|a, b| b.1.total_cmp(&a.1));
    VariableShare {
        declared: named.file.as_ref().map(|file| SourceLine { file: file.to_string(), line: named.line }),
        function: named.function.as_deref().map(str::to_owned),
        type_name: named.of.as_ref().and_then(|of| of.name()),
        aliases: sum.aliases.into_iter().collect(),
        made_by: sum.made_by,
        share: sum.weight / whole,
        read_at,
        name: named.name,
        kind: named.kind,
    }
}

#[cfg(test)]
mod tests;
