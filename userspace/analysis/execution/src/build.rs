//! Builds a skeleton from the program's code and from windows: probabilities
//! of branches, iterations of loops, input values of bounds, calls.
//!
//! Iterations, in order of preference: the bound with the values compared by tests;
//! iterations seen, 2H / (E + X) of H arrivals at the header, E entries and X
//! exits; without entries and exits in windows, the iterations left to go at stops,
//! by the tests. A bound contradicted by iterations seen is left out, and counted.
//!
//! Sources of error: branches without a window go on in the loop, or fall through outside loops.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{FlowControl, InstructionInfoFactory};

use crate::bounds::{self, Bound};
use crate::code::{Function, Leave};
use crate::form::{Atom, Form};
use crate::graph::Graph;
use crate::inputs;
use crate::language::{
    BlockText, FunctionText, Input, Location, LoopText, Part, Skeleton, Statement, VariableText, rounded,
};
use crate::observed::{At, Binaries, FunctionBytes, Observed, Sums, targets_in};
use crate::outer;
use crate::trips::{self, Seen};
use crate::values::{self, Values};
use crate::work;

/// Limit of functions read.
const MOST_FUNCTIONS: usize = 4_000;
/// Limit of values of an input; more are merged.
pub const MOST_VALUES: usize = 8;

/// A function with the analyses of the code read.
#[derive(Debug)]
pub struct Read {
    /// Number of the file.
    pub file: usize,
    /// Bytes and name.
    pub bytes: FunctionBytes,
    /// Code.
    pub code: Function,
    /// Loops.
    pub graph: Graph,
    /// Symbolic values.
    pub values: Values,
    /// Bounds of loops.
    pub bounds: Vec<Bound>,
}

/// A skeleton with the functions read and the counts.
#[derive(Debug, Default)]
pub struct Built {
    /// The text.
    pub skeleton: Skeleton,
    /// Functions in the order of the text.
    pub functions: Vec<Read>,
    /// Weighed executions of blocks, by number of the function and label.
    pub executions: BTreeMap<(usize, u64), f64>,
    /// Observations of loops beside the text, by number of the function and label.
    pub loops: BTreeMap<(usize, u64), Seen>,
    /// Blocks with several successors and no transfer in windows.
    pub branches_unseen: usize,
    /// Conditional branches of the text.
    pub branches: usize,
    /// Bounds contradicted by iterations seen.
    pub contradicted: usize,
    /// Loops without an estimate from windows.
    pub guessed: usize,
    /// Back edges outside natural loops.
    pub irreducible: usize,
    /// Weighed executions in unreadable code.
    pub unread: f64,
}

/// Builds the skeleton of every function met by windows or stacks.
pub fn build(binaries: &dyn Binaries, observed: &Observed) -> Built {
    let sums = Sums::of(observed.windows.iter());
    let mut built = Built::default();
    let index = read_functions(binaries, observed, &sums, &mut built);
    let (executions, unread) = count(&built, &index, &sums);
    built.unread = unread;
    let parts = (0..PARTS).map(|part| {
        let windows = observed.windows.iter().enumerate();
        let sums = Sums::of(windows.filter(|(number, _)| number % PARTS == part).map(|(_, window)| window));
        let executions = count(&built, &index, &sums).0;
        Counts { sums, executions }
    });
    let parts: Vec<Counts> = parts.filter(|part| !part.executions.is_empty()).collect();
    built.executions = executions.clone();
    let counts = Counts { sums, executions };
    let files = binaries.files();
    built.skeleton.files = files.clone();
    let root = roots(observed, &index, &built.functions);
    for number in 0..built.functions.len() {
        let text =
            function_text(binaries, observed, (&counts, &parts), &mut built, &index, &files, number, &root);
        built.skeleton.functions.push(text);
    }
    needed_arguments(&mut built.skeleton);
    inputs::lift(&mut built.skeleton);
    outer::fit(&mut built, observed, &index);
    built
}

/// Functions by file and range of addresses.
pub struct Index(BTreeMap<(usize, u64), (u64, usize)>);

impl Index {
    /// Index of a built skeleton.
    pub fn of(built: &Built) -> Self {
        let range = |(number, read): (usize, &Read)| {
            let end = read.bytes.start + read.bytes.bytes.len() as u64;
            ((read.file, read.bytes.start), (end, number))
        };
        Self(built.functions.iter().enumerate().map(range).collect())
    }

    /// The function around an address.
    pub fn find(&self, at: At) -> Option<usize> {
        let (start, (end, number)) = self.0.range(..=at).next_back()?;
        (start.0 == at.0 && at.1 < *end).then_some(*number)
    }
}

fn read_functions(binaries: &dyn Binaries, observed: &Observed, sums: &Sums, built: &mut Built) -> Index {
    let mut index = Index(BTreeMap::new());
    let mut unreadable: BTreeSet<At> = BTreeSet::new();
    let files = binaries.files().len();
    let targets: Vec<_> = (0..files).map(|file| targets_in(sums, file)).collect();
    let sources = sums.edges.keys().copied();
    let frames = observed.stacks.iter().flat_map(|stack| stack.frames.iter().copied());
    let all: BTreeSet<At> = sums.arrivals().into_keys().chain(sources).chain(frames).collect();
    for at in all {
        if index.find(at).is_some() || built.functions.len() >= MOST_FUNCTIONS || unreadable.contains(&at) {
            continue;
        }
        let found = binaries.function(at).and_then(|bytes| {
            let no_targets = BTreeMap::new();
            let arrivals = targets.get(at.0).unwrap_or(&no_targets);
            let code = Function::read(bytes.start, bytes.start, &bytes.bytes, arrivals)?;
            Some((bytes, code))
        });
        let Some((bytes, code)) = found else {
            unreadable.insert(at);
            continue;
        };
        let graph = Graph::of(&code);
        let values = values::follow(&code, &graph);
        let bounds = bounds::find(&code, &graph, &values);
        built.irreducible += graph.irreducible.len();
        let end = bytes.start + bytes.bytes.len() as u64;
        index.0.insert((at.0, bytes.start), (end, built.functions.len()));
        built.functions.push(Read { file: at.0, bytes, code, graph, values, bounds });
    }
    index
}

/// Parts of the windows, left out by turns for intervals.
const PARTS: usize = 16;

/// Counts of a set of windows.
#[derive(Debug, Clone)]
pub struct Counts {
    /// Transfers.
    pub sums: Sums,
    /// Executions of blocks, by function and address.
    pub executions: BTreeMap<(usize, u64), f64>,
}

impl Counts {
    /// Executions of the edge between two blocks of a function.
    pub fn edge(&self, number: usize, read: &Read, block: usize, to: usize) -> f64 {
        let info = &read.code.blocks[block];
        if info.next.len() == 1 && info.leave == Leave::Goes {
            return self.executions.get(&(number, info.start)).copied().unwrap_or(0.0);
        }
        let Some(last) = read.code.last(block) else { return 0.0 };
        let seen = self.sums.edges.get(&(read.file, last.ip()));
        seen.and_then(|to_counts| to_counts.get(&(read.file, read.code.blocks[to].start)))
            .copied()
            .unwrap_or(0.0)
    }
}

/// Executions of blocks, and of unreadable code.
fn count(built: &Built, index: &Index, sums: &Sums) -> (BTreeMap<(usize, u64), f64>, f64) {
    let mut counter = Counter { built, index, sums, blocks: BTreeMap::new(), unread: 0.0 };
    for (at, weight) in sums.arrivals() {
        counter.run(at, weight);
    }
    (counter.blocks, counter.unread)
}

/// Counts executions of blocks from arrivals.
struct Counter<'a> {
    built: &'a Built,
    index: &'a Index,
    sums: &'a Sums,
    blocks: BTreeMap<(usize, u64), f64>,
    unread: f64,
}

impl Counter<'_> {
    /// Follows the code from an arrival to the first transfer of unknown target.
    fn run(&mut self, at: At, weight: f64) {
        let (mut at, mut steps) = (at, 0);
        while steps < 10_000 {
            steps += 1;
            let Some(number) = self.index.find(at) else {
                self.unread += weight;
                return;
            };
            let Some(read) = self.built.functions.get(number) else { return };
            let Some(block) = read.code.block_of(at.1) else { return };
            let info = &read.code.blocks[block];
            if info.start == at.1 {
                *self.blocks.entry((number, info.start)).or_default() += weight;
            }
            let rest = read.code.of(block).iter().skip_while(|instruction| instruction.ip() < at.1);
            let call = rest.clone().find(|instruction| {
                matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
            });
            if let Some(call) = call {
                if call.flow_control() == FlowControl::IndirectCall {
                    return;
                }
                at = (read.file, call.near_branch_target());
                continue;
            }
            match (&info.leave, info.next.as_slice()) {
                (Leave::Goes, [next]) => at = (read.file, read.code.blocks[*next].start),
                (Leave::TailCalls(Some(target)), _) => at = (read.file, *target),
                _ => return,
            }
            // A stub of the linkage table only jumps on through memory; windows recorded the jump.
            if self.sums.edges.contains_key(&at) && self.index.find(at).is_none() {
                return;
            }
        }
    }
}

/// Functions that begin stacks: `main` if present, or the outermost.
fn roots(observed: &Observed, index: &Index, functions: &[Read]) -> BTreeSet<usize> {
    let mut times: BTreeMap<usize, f64> = BTreeMap::new();
    for stack in &observed.stacks {
        let found: Vec<usize> = stack.frames.iter().rev().filter_map(|at| index.find(*at)).collect();
        let name = |number: &usize| functions.get(*number).map_or("", |read| read.bytes.name.as_str());
        // Without symbols `main` is unnamed, but its caller in the C library has a name.
        let behind_start = found.iter().rposition(|number| name(number).starts_with("__libc_start_"));
        let outermost = found
            .iter()
            .find(|number| name(number) == "main")
            .or_else(|| found.get(behind_start? + 1))
            .or_else(|| found.first())
            .copied();
        if let Some(outermost) = outermost {
            *times.entry(outermost).or_default() += stack.time;
        }
    }
    let all: f64 = times.values().sum();
    times.into_iter().filter(|(_, time)| *time >= 0.01 * all).map(|(function, _)| function).collect()
}

#[expect(clippy::too_many_arguments, reason = "all that a function's text is made of")]
fn function_text(
    binaries: &dyn Binaries,
    observed: &Observed,
    (counts, part_counts): (&Counts, &[Counts]),
    built: &mut Built,
    index: &Index,
    files: &[(String, String)],
    number: usize,
    roots: &BTreeSet<usize>,
) -> FunctionText {
    let sums = &counts.sums;
    let file_name = |file: usize| files.get(file).map_or_else(String::new, |(name, _)| name.clone());
    let read = &built.functions[number];
    let file = read.file;
    let mut text = FunctionText {
        name: read.bytes.name.clone(),
        at: Location { file: file_name(file), address: read.code.entry },
        calls: if roots.contains(&number) { 1.0 } else { 0.0 },
        ..FunctionText::default()
    };
    let on_stacks: BTreeSet<u64> = observed
        .stacks
        .iter()
        .flat_map(|stack| stack.frames.iter().skip(1))
        .filter(|at| index.find(**at) == Some(number))
        .filter_map(|at| Some(read.code.blocks[read.code.block_of_byte(at.1)?].start))
        .collect();
    // Probabilities.
    let is_met = |block: usize| {
        let start = read.code.blocks[block].start;
        on_stacks.contains(&start)
            || counts.executions.get(&(number, start)).is_some_and(|executions| *executions > 0.0)
    };
    let steps = ahead(read, &is_met);
    let mut shares: Vec<Vec<(usize, f64)>> = vec![Vec::new(); read.code.blocks.len()];
    let (mut branches, mut unseen) = (0, 0);
    for (block, info) in read.code.blocks.iter().enumerate() {
        let Some(last) = read.code.last(block) else { continue };
        let seen = sums.edges.get(&(file, last.ip()));
        let count = |to: &usize| {
            seen.and_then(|to_counts| to_counts.get(&(file, read.code.blocks[*to].start)))
                .copied()
                .unwrap_or(0.0)
        };
        let counts: Vec<f64> = info.next.iter().map(count).collect();
        let all: f64 = counts.iter().sum();
        shares[block] = match info.next.as_slice() {
            [] => Vec::new(),
            [only] => vec![(*only, 1.0)],
            next if all > 0.0 => next.iter().copied().zip(counts.iter().map(|count| count / all)).collect(),
            next => {
                unseen += 1;
                let likely = likely(read, block, next, &steps);
                next.iter().enumerate().map(|(at, to)| (*to, f64::from(u8::from(at == likely)))).collect()
            }
        };
        branches += usize::from(info.leave == Leave::Branches);
    }
    let headers: Vec<u64> =
        read.graph.loops.iter().map(|found| read.code.blocks[found.header].start).collect();
    // Calls by block.
    let mut factory = InstructionInfoFactory::new();
    let mut calls: BTreeMap<usize, Vec<Part>> = BTreeMap::new();
    for call in &read.values.calls {
        let targets: Vec<(At, f64)> = match call.target {
            Some(target) => {
                through_stub(sums, file, target, index, from_stacks(observed, index, built, read, call.ip))
            }
            None if !sums.edges.contains_key(&(file, call.ip)) => {
                from_stacks(observed, index, built, read, call.ip)
            }
            None => {
                let seen = sums.edges.get(&(file, call.ip));
                let all: f64 = seen.iter().flat_map(|to| to.values()).sum();
                seen.into_iter().flatten().map(|(to, count)| (*to, count / all.max(1e-300))).collect()
            }
        };
        for (to, share) in targets {
            let part = match index.find(to).and_then(|callee| built.functions.get(callee)) {
                Some(callee) => Part::Call {
                    to: Location { file: file_name(callee.file), address: callee.code.entry },
                    times: rounded(share),
                    arguments: (0..6)
                        .zip(call.arguments.iter().map(|form| read.values.counted(form, &headers)))
                        .collect(),
                },
                None => {
                    let name = binaries.stub(to).or_else(|| Some(binaries.function(to)?.name));
                    Part::Library(name.unwrap_or_else(|| format!("{:x}", to.1)), rounded(share))
                }
            };
            calls.entry(call.block).or_default().push(part);
        }
    }
    // Loops.
    let seen: Vec<Seen> = (0..read.graph.loops.len())
        .map(|of| trips::of_loop(observed, (number, read), of, counts, part_counts))
        .collect();
    let inputs = trips::inputs(observed, read, file, &seen);
    let mut loops: Vec<LoopText> = Vec::new();
    let (mut contradicted, mut guessed) = (0, 0);
    for (of, found) in read.graph.loops.iter().enumerate() {
        let header = read.code.blocks[found.header].start;
        let bound = read.bounds.iter().find(|bound| bound.of_loop == of);
        let is_wrong = bound.is_some_and(|bound| trips::contradicts(bound, &inputs, &seen[of]));
        contradicted += usize::from(is_wrong);
        let leaves = found.blocks.iter().flat_map(|block| &read.code.blocks[*block].next);
        let bound = bound.filter(|_| !is_wrong);
        let iterations = seen[of].value.map(|(value, width)| (rounded(value.max(1.0)), rounded(width)));
        // A loop without an estimate iterates once, unless the bound says more.
        let iterations = iterations.or_else(|| {
            guessed += 1;
            Some((1.0, 0.0))
        });
        let tests = bound.into_iter().flat_map(|bound| std::iter::once(&bound.test).chain(&bound.others));
        let tests = tests.map(|test| read.code.blocks[*test].start);
        loops.push(LoopText {
            label: header,
            bound: bound.map(|bound| bound.trips.clone()),
            tests: tests.collect(),
            seen: iterations,
            exits: leaves.filter(|to| !found.has(**to)).count() as u32,
            ..LoopText::default()
        });
    }
    let block_text = |block: usize, factory: &mut InstructionInfoFactory| {
        let mut parts = work::parts(read.code.of(block), factory);
        parts.extend(calls.get(&block).cloned().unwrap_or_default());
        let mut next: Vec<(u64, f64)> =
            shares[block].iter().map(|(to, share)| (read.code.blocks[*to].start, rounded(*share))).collect();
        next.sort_unstable_by_key(|(to, _)| *to);
        next.dedup_by(|again, first| {
            let is_same = again.0 == first.0;
            if is_same {
                first.1 += again.1;
            }
            is_same
        });
        BlockText { label: read.code.blocks[block].start, parts, next }
    };
    text.body = region(read, None, &mut loops.clone(), &mut |block| block_text(block, &mut factory));
    let names = used_names(&text);
    text.inputs = inputs.into_iter().filter(|input| names.contains(&input.name)).collect();
    let counters = read.graph.loops.iter().map(|found| read.code.blocks[found.header].start);
    let variables = counters.map(|label| VariableText {
        name: format!("it{label:x}"),
        start: Form::default(),
        step: Form::number(1),
        of_loop: label,
    });
    text.variables =
        variables.filter(|variable| names.contains(&Form::name(variable.name.as_str()))).collect();
    let labels: Vec<u64> =
        read.graph.loops.iter().map(|found| read.code.blocks[found.header].start).collect();
    for (label, seen) in labels.into_iter().zip(seen) {
        built.loops.insert((number, label), seen);
    }
    built.branches += branches;
    built.branches_unseen += unseen;
    built.contradicted += contradicted;
    built.guessed += guessed;
    text
}

/// Atoms of bounds and of arguments of calls.
fn used_names(text: &FunctionText) -> BTreeSet<Form> {
    let mut names = BTreeSet::new();
    let mut add = |form: &Form| form.visit(&mut |atom| names.extend([Form::atom(atom.clone())]));
    text.loops(&mut |found| found.bound.iter().for_each(&mut add));
    text.blocks(&mut |block| {
        for part in &block.parts {
            if let Part::Call { arguments, .. } = part {
                arguments.iter().for_each(|(_, form)| add(form));
            }
        }
    });
    names
}

/// For each block the steps forward to a block met by windows or stacks; `None` if none is ahead.
fn ahead(read: &Read, is_met: &dyn Fn(usize) -> bool) -> Vec<Option<usize>> {
    let mut steps = vec![None; read.code.blocks.len()];
    for block in read.graph.order.iter().rev() {
        let forward = |to: &&usize| read.graph.place[**to] > read.graph.place[*block];
        let next = read.code.blocks[*block].next.iter().filter(forward);
        let least = next.filter_map(|to| steps[*to]).min();
        steps[*block] = if is_met(*block) { Some(0) } else { least.map(|least| least + 1) };
    }
    steps
}

/// Way of a branch without a window: towards blocks met, or on in the loop, or through.
fn likely(read: &Read, block: usize, next: &[usize], steps: &[Option<usize>]) -> usize {
    let depth = |to: &usize| {
        read.graph.innermost[*to].and_then(|of| read.graph.loops.get(of)).map_or(0, |of| of.depth + 1)
    };
    let ends = |to: &usize| read.code.blocks[*to].leave == Leave::Stops;
    let best = next.iter().enumerate().max_by_key(|(at, to)| {
        let ahead = std::cmp::Reverse(steps[**to].unwrap_or(usize::MAX));
        (!ends(to), ahead, depth(to).min(depth(&block)), std::cmp::Reverse(*at))
    });
    best.map_or(0, |(at, _)| at)
}

/// Targets of a direct call: through a stub, the functions seen after the stub in windows.
fn through_stub(
    sums: &Sums,
    file: usize,
    target: u64,
    index: &Index,
    on_stacks: Vec<(At, f64)>,
) -> Vec<(At, f64)> {
    if index.find((file, target)).is_some() {
        return vec![((file, target), 1.0)];
    }
    let stub = sums.edges.range((file, target)..(file, target + 16)).next();
    match stub {
        Some((_, to)) => {
            let all: f64 = to.values().sum();
            to.iter().map(|(to, count)| (*to, count / all.max(1e-300))).collect()
        }
        None if !on_stacks.is_empty() => on_stacks,
        None => vec![((file, target), 1.0)],
    }
}

/// Functions below a call in stacks, with shares of the time at the call.
fn from_stacks(observed: &Observed, index: &Index, built: &Built, read: &Read, ip: u64) -> Vec<(At, f64)> {
    let Some(call) = read.code.instructions.iter().find(|instruction| instruction.ip() == ip) else {
        return Vec::new();
    };
    let mut times: BTreeMap<At, f64> = BTreeMap::new();
    for stack in &observed.stacks {
        for (callee, caller) in stack.frames.iter().zip(stack.frames.iter().skip(1)) {
            let is_here = caller.0 == read.file && (ip..call.next_ip()).contains(&caller.1);
            let function = index.find(*callee).and_then(|number| built.functions.get(number));
            if let Some(function) = function.filter(|_| is_here) {
                *times.entry((function.file, function.code.entry)).or_default() += stack.time;
            }
        }
    }
    let all: f64 = times.values().sum();
    times.into_iter().map(|(at, time)| (at, time / all.max(1e-300))).collect()
}

/// Statements of a region, in the forward order of control.
fn region(
    read: &Read,
    of: Option<usize>,
    loops: &mut Vec<LoopText>,
    block_text: &mut dyn FnMut(usize) -> BlockText,
) -> Vec<Statement> {
    let mut statements = Vec::new();
    for block in &read.graph.order {
        let own_header = of.is_some_and(|of| read.graph.loops[of].header == *block);
        let around = read.graph.around(*block);
        if around.first().copied() == of || own_header {
            statements.push(Statement::Block(block_text(*block)));
            continue;
        }
        // A loop of the region begins.
        let inner = around
            .iter()
            .copied()
            .find(|inner| read.graph.loops[*inner].header == *block && read.graph.loops[*inner].parent == of);
        if let Some(inner) = inner {
            let mut text = std::mem::take(&mut loops[inner]);
            text.body = region(read, Some(inner), loops, block_text);
            statements.push(Statement::Loop(text));
        }
    }
    statements
}

/// Leaves out arguments of calls without an effect on bounds of the callee or of further callees.
fn needed_arguments(skeleton: &mut Skeleton) {
    let argument = |atom: &Atom| match atom {
        Atom::Name(name) => name.strip_prefix("arg").and_then(|digits| digits.parse::<u8>().ok()),
        _ => None,
    };
    let mut needed: Vec<BTreeSet<u8>> = vec![BTreeSet::new(); skeleton.functions.len()];
    let add = |form: &Form, to: &mut BTreeSet<u8>| form.visit(&mut |atom| to.extend(argument(atom)));
    for (function, needs) in skeleton.functions.iter().zip(&mut needed) {
        function.loops(&mut |found| found.bound.iter().for_each(|bound| add(bound, needs)));
    }
    let places = skeleton.places();
    loop {
        let mut changed = false;
        for (number, function) in skeleton.functions.iter().enumerate() {
            let mut more = BTreeSet::new();
            function.blocks(&mut |block| {
                for part in &block.parts {
                    if let Part::Call { to, arguments, .. } = part
                        && let Some(callee) = places.get(to)
                    {
                        let wanted = arguments.iter().filter(|(number, _)| needed[*callee].contains(number));
                        wanted.for_each(|(_, form)| add(form, &mut more));
                    }
                }
            });
            changed |= !more.is_subset(&needed[number]);
            needed[number].extend(more);
        }
        if !changed {
            break;
        }
    }
    for function in &mut skeleton.functions {
        trim(&mut function.body, &places, &needed);
        let names = used_names(function);
        let of_variables: BTreeSet<Form> = {
            let mut all = names.clone();
            for variable in &function.variables {
                variable.start.visit(&mut |atom| all.extend([Form::atom(atom.clone())]));
            }
            all
        };
        function.inputs.retain(|input: &Input| of_variables.contains(&input.name));
        let is_used = |variable: &VariableText| {
            let name = Form::name(variable.name.as_str());
            names.contains(&name)
                || function.variables.iter().any(|other| {
                    other.name != variable.name && other.start.any(|atom| Form::atom(atom.clone()) == name)
                })
        };
        let kept: Vec<VariableText> =
            function.variables.iter().filter(|variable| is_used(variable)).cloned().collect();
        function.variables = kept;
    }
}

fn trim(body: &mut [Statement], places: &BTreeMap<Location, usize>, needed: &[BTreeSet<u8>]) {
    for statement in body {
        match statement {
            Statement::Loop(found) => trim(&mut found.body, places, needed),
            Statement::Block(block) => {
                for part in &mut block.parts {
                    if let Part::Call { to, arguments, .. } = part {
                        let wanted = places.get(to).and_then(|callee| needed.get(*callee));
                        arguments.retain(|(number, _)| wanted.is_some_and(|wanted| wanted.contains(number)));
                    }
                }
            }
        }
    }
}
