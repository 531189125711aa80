//! The Bayesian execution tree: how often each block is expected to be executed, by context (sections IV and
//! V-A of the paper).
//!
//! A node is a function in a context: the values of the arguments used by the function's bounds.
//! Equal contexts share a node; a function has at most [`MOST_CONTEXTS`], then the nearest stands
//! in. A loop is one node: of n iterations, each left early with probability p, (1 - (1-p)^n) / p
//! are expected. A bound with the variable of an outer loop is evaluated at points of the
//! variable's range and averaged (all values up to [`ALL_POINTS`], beyond Gauss and Legendre's
//! eight). Returns, continues and breaks are edges of the flow. Recursion is a fixed point.
//!
//! Sources of error: branches are taken to be independent of each other and
//! of contexts; if n is a mean, the expected iterations are a mean as well.

use std::collections::{BTreeMap, HashMap, hash_map::Entry};

use crate::form::{Atom, Form, NoValue};
use crate::language::{Edit, FunctionText, Input, LoopText, Part, Skeleton, Statement, VariableText};

/// Source of an input set by the user, with precedence over values passed by callers.
pub const SET: &str = "--set";
/// Most contexts of one function; more are merged.
pub const MOST_CONTEXTS: usize = 8;
/// Limit of iterations of a loop with an evaluation each.
const ALL_POINTS: f64 = 16.0;
/// Limit of rounds for recursion and irreducible regions to settle.
const MOST_ROUNDS: usize = 400;
/// Limit of evaluations of loops in one function and
/// context; after this loop variables have mean values.
const MOST_WORK: usize = 200_000;
/// Greatest number of iterations.
const GREATEST: f64 = 1e18;

/// Abscissas and weights on [-1, 1] (Abramowitz and Stegun, table 25.4).
const POINTS: [(f64, f64); 8] = [
    (-0.960_289_856_497_536_2, 0.101_228_536_290_376_26),
    (-0.796_666_477_413_626_7, 0.222_381_034_453_374_48),
    (-0.525_532_409_916_329, 0.313_706_645_877_887_27),
    (-0.183_434_642_495_649_8, 0.362_683_783_378_361_96),
    (0.183_434_642_495_649_8, 0.362_683_783_378_361_96),
    (0.525_532_409_916_329, 0.313_706_645_877_887_27),
    (0.796_666_477_413_626_7, 0.222_381_034_453_374_48),
    (0.960_289_856_497_536_2, 0.101_228_536_290_376_26),
];

/// The reason against an evaluation of a skeleton: one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Expected executions.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Expected {
    /// Of each block, by number of the function and label.
    pub blocks: BTreeMap<(usize, u64), f64>,
    /// Calls of each function.
    pub calls: Vec<f64>,
    /// Iterations of each loop per entry, by number of the function and label.
    pub trips: BTreeMap<(usize, u64), f64>,
    /// Entries of each loop.
    pub entries: BTreeMap<(usize, u64), f64>,
    /// Computing instructions in each loop, with those of its callees, by number of the function and label.
    pub within: BTreeMap<(usize, u64), f64>,
    /// Computing instructions of a call of each function, with those of its callees; 0 without calls.
    pub work: Vec<f64>,
    /// Nodes: functions in contexts.
    pub nodes: Vec<Node>,
    /// Functions with more than [`MOST_CONTEXTS`] contexts.
    pub merged: Vec<usize>,
    /// Bounds without a value, by loop, with the reason.
    pub unknown: BTreeMap<(usize, u64), String>,
    /// Least values of bounds below 0, by loop. No loop iterates so often: 1 is taken in their place.
    pub below_zero: BTreeMap<(usize, u64), f64>,
}

/// A function in a context.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Number of the function.
    pub function: usize,
    /// Values of arguments.
    pub context: Vec<(u8, f64)>,
    /// Expected calls.
    pub calls: f64,
}

/// Evaluates a skeleton from the roots: functions with `calls` outside the text.
///
/// # Errors
/// A loop with an unknown number of iterations, or an endless recursion; a sentence each.
pub fn evaluate(skeleton: &Skeleton) -> Result<Expected, Refused> {
    let mut tree =
        Tree { skeleton, nodes: Vec::new(), by_key: HashMap::new(), expected: Expected::default() };
    let roots: Vec<(usize, f64)> = (0..)
        .zip(&skeleton.functions)
        .filter(|(_, function)| function.calls > 0.0)
        .map(|(number, function)| (number, function.calls))
        .collect();
    let mut own = Vec::new();
    for (number, calls) in roots {
        own.push((tree.node(number, Vec::new())?, calls));
    }
    tree.settle(&own)?;
    Ok(tree.expected)
}

/// One function in one context, evaluated for one call.
struct Evaluated {
    function: usize,
    context: Vec<(u8, f64)>,
    /// Executions of blocks and iterations of loops in a call.
    local: Local,
    /// Calls of further nodes in a call.
    calls: Vec<(usize, f64)>,
}

/// Callee, arguments, how often.
type CallOf = (usize, Vec<(u8, f64)>, f64);

#[derive(Debug, Clone, Default)]
struct Local {
    blocks: BTreeMap<u64, f64>,
    /// Iterations and entries.
    loops: BTreeMap<u64, (f64, f64)>,
    /// Work of each loop, inner loops included.
    within: BTreeMap<u64, Within>,
    /// Callee, arguments, how often.
    calls: Vec<CallOf>,
}

/// Work of a loop in a call of its function.
#[derive(Debug, Clone, Default)]
struct Within {
    /// Computing instructions, without callees.
    own: f64,
    /// Calls of each function.
    calls: BTreeMap<usize, f64>,
}

impl Local {
    fn add(&mut self, other: &Local, weight: f64) {
        for (label, count) in &other.blocks {
            *self.blocks.entry(*label).or_default() += count * weight;
        }
        for (label, (iterations, entries)) in &other.loops {
            let sum = self.loops.entry(*label).or_default();
            (sum.0, sum.1) = (sum.0 + iterations * weight, sum.1 + entries * weight);
        }
        for (label, within) in &other.within {
            let sum = self.within.entry(*label).or_default();
            sum.own += within.own * weight;
            for (callee, count) in &within.calls {
                *sum.calls.entry(*callee).or_default() += count * weight;
            }
        }
        for (callee, arguments, count) in &other.calls {
            self.call(*callee, arguments, count * weight);
        }
    }

    fn call(&mut self, callee: usize, arguments: &[(u8, f64)], count: f64) {
        let known = self.calls.iter_mut().find(|(to, with, _)| *to == callee && with == arguments);
        match known {
            Some((.., sum)) => *sum += count,
            None => self.calls.push((callee, arguments.to_vec(), count)),
        }
    }
}

/// A function, and the bits of argument values by number.
type Key = (usize, Vec<(u8, u64)>);

struct Tree<'a> {
    skeleton: &'a Skeleton,
    nodes: Vec<Evaluated>,
    by_key: HashMap<Key, usize>,
    expected: Expected,
}

impl Tree<'_> {
    /// The node of a function in a context; adds every node called from there.
    fn node(&mut self, function: usize, context: Vec<(u8, f64)>) -> Result<usize, Refused> {
        let key = |context: &[(u8, f64)]| -> Vec<(u8, u64)> {
            context.iter().map(|(number, value)| (*number, value.to_bits())).collect()
        };
        let mut first = None;
        // Without recursion, since call chains of strangers' programs may be long.
        let mut work = vec![(function, context, None::<(usize, f64)>)];
        while let Some((function, context, caller)) = work.pop() {
            let of_function = self.nodes.iter().filter(|node| node.function == function).count();
            let known = self.by_key.get(&(function, key(&context))).copied();
            let known = known.or_else(|| {
                (of_function >= MOST_CONTEXTS).then(|| self.nearest(function, &context)).flatten()
            });
            let number = match known {
                Some(number) => number,
                None => {
                    let text = self.skeleton.functions.get(function);
                    let text = text.ok_or_else(|| Refused("a function is missing".to_owned()))?;
                    let local =
                        Flow::new(self.skeleton, text, function, &context, &mut self.expected).run()?;
                    let number = self.nodes.len();
                    self.by_key.insert((function, key(&context)), number);
                    for (callee, arguments, count) in &local.calls {
                        work.push((*callee, arguments.clone(), Some((number, *count))));
                    }
                    self.nodes.push(Evaluated { function, context, local, calls: Vec::new() });
                    number
                }
            };
            if let Some((caller, count)) = caller
                && let Some(node) = self.nodes.get_mut(caller)
            {
                node.calls.push((number, count));
            }
            first.get_or_insert(number);
        }
        first.ok_or_else(|| Refused("there is no function to begin with".to_owned()))
    }

    fn nearest(&mut self, function: usize, context: &[(u8, f64)]) -> Option<usize> {
        if !self.expected.merged.contains(&function) {
            self.expected.merged.push(function);
        }
        let far = |node: &Evaluated| -> f64 {
            let other = |number: u8| node.context.iter().find(|(of, _)| *of == number).map_or(0.0, |of| of.1);
            context.iter().map(|(number, value)| (value - other(*number)).abs()).sum()
        };
        let own = self.nodes.iter().enumerate().filter(|(_, node)| node.function == function);
        own.min_by(|a, b| far(a.1).total_cmp(&far(b.1))).map(|(number, _)| number)
    }

    /// Work of a call of each function, and of each loop in all calls. `totals`: calls of nodes.
    fn work(&mut self, totals: &[f64]) {
        let functions = self.skeleton.functions.len();
        let sizes: Vec<BTreeMap<u64, f64>> = self.skeleton.functions.iter().map(sizes).collect();
        let own = |node: &Evaluated| -> f64 {
            let size = |label: &u64| sizes[node.function].get(label).copied().unwrap_or(0.0);
            node.local.blocks.iter().map(|(label, count)| count * size(label)).sum()
        };
        let own: Vec<f64> = self.nodes.iter().map(own).collect();
        let mut all = own.clone();
        for _ in 0..MOST_ROUNDS {
            let mut change = 0.0_f64;
            for (number, node) in self.nodes.iter().enumerate().rev() {
                let below: f64 = node.calls.iter().map(|(to, count)| count * all[*to]).sum();
                let new = own[number] + below;
                change = change.max((new - all[number]).abs() / new.max(1.0));
                all[number] = new;
            }
            if change < 1e-9 {
                break;
            }
        }
        let mut sums = vec![(0.0, 0.0); functions];
        for ((node, calls), work) in self.nodes.iter().zip(totals).zip(&all) {
            let sum: &mut (f64, f64) = &mut sums[node.function];
            (sum.0, sum.1) = (sum.0 + calls * work, sum.1 + calls);
        }
        let mean = |(work, calls): (f64, f64)| if calls > 0.0 { work / calls } else { 0.0 };
        let means: Vec<f64> = sums.into_iter().map(mean).collect();
        for (node, calls) in self.nodes.iter().zip(totals) {
            for (label, within) in &node.local.within {
                let below: f64 = within.calls.iter().map(|(callee, count)| count * means[*callee]).sum();
                *self.expected.within.entry((node.function, *label)).or_default() +=
                    calls * (within.own + below);
            }
        }
        self.expected.work = means;
    }

    /// Calls of every node, from the calls of the roots.
    fn settle(&mut self, roots: &[(usize, f64)]) -> Result<(), Refused> {
        let mut own = vec![0.0; self.nodes.len()];
        for (number, calls) in roots {
            own[*number] += calls;
        }
        let mut totals = own.clone();
        let mut flow = own;
        for round in 0.. {
            let mut next = vec![0.0; self.nodes.len()];
            for (number, node) in self.nodes.iter().enumerate().filter(|(number, _)| flow[*number] > 0.0) {
                for (to, count) in &node.calls {
                    next[*to] += flow[number] * count;
                }
            }
            let (new, all): (f64, f64) = (next.iter().sum(), totals.iter().sum());
            if new <= all * 1e-12 {
                break;
            }
            if round >= MOST_ROUNDS * 10 || !new.is_finite() || all > GREATEST * 1e6 {
                return Err(Refused(
                    "the recursion of the skeleton does not end: by its probabilities each call makes \
                     one call or more"
                        .to_owned(),
                ));
            }
            totals.iter_mut().zip(&next).for_each(|(total, new)| *total += new);
            flow = next;
        }
        self.work(&totals);
        let expected = &mut self.expected;
        expected.calls = vec![0.0; self.skeleton.functions.len()];
        let mut iterations: BTreeMap<(usize, u64), f64> = BTreeMap::new();
        for (node, calls) in self.nodes.iter().zip(totals) {
            expected.calls[node.function] += calls;
            for (label, count) in &node.local.blocks {
                *expected.blocks.entry((node.function, *label)).or_default() += count * calls;
            }
            for (label, (times, entries)) in &node.local.loops {
                *iterations.entry((node.function, *label)).or_default() += times * calls;
                *expected.entries.entry((node.function, *label)).or_default() += entries * calls;
            }
            let (function, context) = (node.function, node.context.clone());
            expected.nodes.push(Node { function, context, calls });
        }
        for (key, times) in iterations {
            let entries = expected.entries.get(&key).copied().unwrap_or(0.0);
            expected.trips.insert(key, if entries > 0.0 { whole(times / entries) } else { 0.0 });
        }
        Ok(())
    }
}

/// Flow of one call of a function.
struct Flow<'a> {
    skeleton: &'a Skeleton,
    function: &'a FunctionText,
    number: usize,
    /// Values of atoms.
    values: HashMap<Atom, f64>,
    /// Loops with variables used inside the loop.
    varied: Vec<u64>,
    /// Computing instructions of blocks.
    sizes: BTreeMap<u64, f64>,
    expected: &'a mut Expected,
    work: usize,
}

/// Expected executions and exits per entry of a region.
#[derive(Debug, Clone, Default)]
struct Region {
    local: Local,
    /// Targets outside the region, with probabilities; the rest to 1 returns.
    out: BTreeMap<u64, f64>,
}

impl<'a> Flow<'a> {
    fn new(
        skeleton: &'a Skeleton,
        function: &'a FunctionText,
        number: usize,
        context: &[(u8, f64)],
        expected: &'a mut Expected,
    ) -> Self {
        let mut values = HashMap::new();
        for input in &function.inputs {
            if let Some((atom, _)) = input.name.single() {
                values.insert(atom.clone(), input.mean());
            }
        }
        for (number, value) in context {
            let name = Form::name(format!("arg{number}"));
            let is_set = |input: &Input| input.name == name && input.from == SET;
            if !function.inputs.iter().any(is_set) {
                values.insert(Atom::Name(format!("arg{number}").into()), *value);
            }
        }
        let varied = varied(function);
        let sizes = sizes(function);
        Self { skeleton, function, number, values, varied, sizes, expected, work: 0 }
    }

    fn run(mut self) -> Result<Local, Refused> {
        let function = self.function;
        let Some(first) = function.body.first() else { return Ok(Local::default()) };
        // The entry need not be the first statement if a loop begins the function.
        let entry = label(first);
        let entry = if has(&function.body, function.at.address) { function.at.address } else { entry };
        Ok(self.region(&function.body, entry, None)?.local)
    }

    fn value(&self, form: &Form) -> Result<f64, NoValue> {
        form.value(&|atom| self.values.get(atom).copied())
    }

    /// Flow through statements for one entry at `entry`; edges back to `entry` leave the region
    /// too. `test`: blocks, and the probability of the edges out of the region from the blocks.
    fn region(
        &mut self,
        body: &'a [Statement],
        entry: u64,
        test: Option<(&[u64], f64)>,
    ) -> Result<Region, Refused> {
        // Statement of each label.
        let mut holder: HashMap<u64, usize> = HashMap::new();
        for (number, statement) in body.iter().enumerate() {
            match statement {
                Statement::Block(block) => drop(holder.insert(block.label, number)),
                Statement::Loop(found) => drop(holder.insert(found.label, number)),
            }
        }
        let mut mass = vec![0.0; body.len()];
        let mut region = Region::default();
        let Some(first) = holder.get(&entry) else {
            return Err(Refused(format!("b{entry:x} is entered from outside its loop")));
        };
        mass[*first] = 1.0;
        let mut inner: HashMap<usize, Region> = HashMap::new();
        for _ in 0..MOST_ROUNDS {
            let mut again = false;
            for (number, statement) in body.iter().enumerate() {
                let flow = std::mem::take(&mut mass[number]);
                if flow <= 0.0 {
                    continue;
                }
                let edges: Vec<(u64, f64)> = match statement {
                    Statement::Block(block) => {
                        *region.local.blocks.entry(block.label).or_default() += flow;
                        self.calls(block.label, &block.parts, flow, &mut region.local);
                        let leaves = |to: &u64| !holder.contains_key(to);
                        match test.filter(|(labels, _)| labels.contains(&block.label)) {
                            Some((_, out)) => redirected(&block.next, out, &leaves),
                            None => block.next.clone(),
                        }
                    }
                    Statement::Loop(found) => {
                        let result = match inner.entry(number) {
                            Entry::Occupied(known) => known.into_mut(),
                            Entry::Vacant(free) => free.insert(self.one_loop(found)?),
                        };
                        region.local.add(&result.local, flow);
                        result.out.iter().map(|(to, share)| (*to, *share)).collect()
                    }
                };
                for (to, share) in edges {
                    let amount = flow * share;
                    match holder.get(&to) {
                        Some(holder) if to != entry => {
                            mass[*holder] += amount;
                            // An edge back in the order, as in irreducible regions.
                            again |= *holder <= number && amount > 1e-15;
                        }
                        _ => *region.out.entry(to).or_default() += amount,
                    }
                }
            }
            if !again {
                break;
            }
        }
        Ok(region)
    }

    fn calls(&self, _label: u64, parts: &[Part], flow: f64, local: &mut Local) {
        for part in parts {
            let Part::Call { to, times, arguments } = part else { continue };
            let Some(callee) = self.skeleton.find(to) else { continue };
            let with: Vec<(u8, f64)> = arguments
                .iter()
                .filter_map(|(number, form)| Some((*number, self.value(form).ok()?)))
                .filter(|(_, value)| value.is_finite())
                .collect();
            local.call(callee, &with, flow * times);
        }
    }

    /// Iterations by the bound; `None` without a value.
    fn bound(&mut self, found: &LoopText) -> Option<f64> {
        let bound = found.bound.as_ref()?;
        match self.value(bound) {
            Ok(trips) if trips.is_finite() && trips <= GREATEST => {
                if trips < 0.0 {
                    let least = self.expected.below_zero.entry((self.number, found.label)).or_insert(trips);
                    *least = least.min(trips);
                }
                Some(trips.max(1.0))
            }
            Ok(_) => {
                self.note(found, format!("`{bound}` is more than {GREATEST:e}"));
                None
            }
            Err(why) => {
                self.note(found, why.to_string());
                None
            }
        }
    }

    fn note(&mut self, found: &LoopText, why: String) {
        self.expected.unknown.entry((self.number, found.label)).or_insert(why);
    }

    /// One entry of a loop.
    fn one_loop(&mut self, found: &'a LoopText) -> Result<Region, Refused> {
        self.work += 1;
        let trips = self.bound(found).filter(|_| !found.tests.is_empty());
        // Variables of the loop have the values of the middle, until the iterations are known.
        self.vary(found, trips.or(found.seen.map(|seen| seen.0)).map_or(0.0, |trips| (trips - 1.0) / 2.0));
        let own = trips.map(|_| found.tests.as_slice());
        let once = self.region(&found.body, found.label, own.map(|test| (test, 0.0)))?;
        let back = once.out.get(&found.label).copied().unwrap_or(0.0);
        let leaves = (1.0 - back).clamp(0.0, 1.0);
        let (iterations, test_out) = match (trips, found.seen) {
            (Some(trips), _) => {
                let early = leaves;
                let iterations =
                    if early > 1e-12 { (1.0 - (1.0 - early).powf(trips)) / early } else { trips };
                let tests = found.tests.iter();
                let tested: f64 = tests.filter_map(|test| once.local.blocks.get(test)).sum();
                let ends = (1.0 - early).powf(trips);
                let per_test = (tested > 0.0).then_some(ends / tested.max(1e-300));
                (iterations, own.zip(per_test))
            }
            (None, Some((seen, _))) => (seen.max(1.0), None),
            (None, None) if leaves > 1e-9 => (1.0 / leaves, None),
            (None, None) => {
                return Err(Refused(format!(
                    "the trip count of loop L{:x} of {} is not known: no window saw it end; write `seen \
                     N` after its test",
                    found.label, self.function.name
                )));
            }
        };
        let lanes: f64 = found
            .edits
            .iter()
            .map(|edit| if let Edit::Vector(lanes) = edit { f64::from(*lanes) } else { 1.0 })
            .product();
        let iterations = (iterations / lanes).max(1.0);
        let test_out = test_out.map(|(test, ends)| (test, (ends / iterations).min(1.0)));
        let is_removed = found.edits.contains(&Edit::Remove);
        let mut sum = Region::default();
        let points = match self.varied.contains(&found.label) && self.work < MOST_WORK {
            true => points(iterations),
            false => vec![((iterations - 1.0) / 2.0, 1.0)],
        };
        for (at, weight) in points {
            self.vary(found, at);
            let one = self.region(&found.body, found.label, test_out)?;
            sum.local.add(&one.local, weight * iterations);
            for (to, share) in one.out.iter().filter(|(to, _)| **to != found.label) {
                *sum.out.entry(*to).or_default() += share * weight;
            }
        }
        // Each entry is left once, or the function returns from inside.
        let out: f64 = sum.out.values().sum();
        if out > 0.0 {
            let returns = returned(&found.body, &sum.local, iterations).min(1.0);
            let left = (1.0 - returns).max(0.0);
            sum.out.values_mut().for_each(|share| *share *= left / out);
        } else {
            let edges = exits(&found.body, found.label);
            let each = 1.0 / edges.len().max(1) as f64;
            edges.into_iter().for_each(|to| *sum.out.entry(to).or_default() += each);
        }
        if is_removed {
            sum.local = Local::default();
        }
        let mut within = Within::default();
        for (label, count) in &sum.local.blocks {
            within.own += count * self.sizes.get(label).copied().unwrap_or(0.0);
        }
        for (callee, _, count) in &sum.local.calls {
            *within.calls.entry(*callee).or_default() += count;
        }
        sum.local.within.insert(found.label, within);
        let seen = sum.local.loops.entry(found.label).or_default();
        (seen.0, seen.1) = (seen.0 + if is_removed { 0.0 } else { iterations }, seen.1 + 1.0);
        Ok(sum)
    }

    /// Sets the variables of a loop to the values after `iterations`.
    fn vary(&mut self, found: &LoopText, iterations: f64) {
        let own: Vec<&VariableText> =
            self.function.variables.iter().filter(|variable| variable.of_loop == found.label).collect();
        for variable in own {
            let name = Atom::Name(variable.name.as_str().into());
            let value =
                self.value(&variable.start).and_then(|start| Ok((start, self.value(&variable.step)?)));
            match value {
                Ok((start, step)) => drop(self.values.insert(name, start + step * iterations)),
                Err(_) => drop(self.values.remove(&name)),
            }
        }
    }
}

/// A quotient of two sums, whole where only rounding makes the difference.
fn whole(quotient: f64) -> f64 {
    const ROUNDING: f64 = 1e-12;
    let whole = quotient.round();
    if (quotient - whole).abs() <= ROUNDING * whole { whole } else { quotient }
}

/// Computing instructions of each block, an instruction each whatever its lanes.
fn sizes(function: &FunctionText) -> BTreeMap<u64, f64> {
    let mut sizes = BTreeMap::new();
    function.blocks(&mut |block| {
        let count = |part: &Part| if let Part::Compute(_, _, count) = part { *count } else { 0.0 };
        sizes.insert(block.label, block.parts.iter().map(count).sum());
    });
    sizes
}

/// Edges of a block: `out` is the probability to leave
/// the region, the rest the probability to stay.
fn redirected(next: &[(u64, f64)], out: f64, leaves: &dyn Fn(&u64) -> bool) -> Vec<(u64, f64)> {
    let sum = |is_out: bool| -> f64 {
        next.iter().filter(|(to, _)| leaves(to) == is_out).map(|(_, share)| share).sum()
    };
    let count = |is_out: bool| next.iter().filter(|(to, _)| leaves(to) == is_out).count();
    let edge = |(to, share): &(u64, f64)| {
        let is_out = leaves(to);
        let (all, part) = (sum(is_out), if is_out { out } else { 1.0 - out });
        let own = if all > 0.0 { share / all } else { 1.0 / count(is_out).max(1) as f64 };
        (*to, own * part)
    };
    next.iter().map(edge).collect()
}

/// Points of a loop's iterations to evaluate the body at, with weights that sum to 1.
fn points(iterations: f64) -> Vec<(f64, f64)> {
    if iterations <= ALL_POINTS {
        let whole = iterations.round().max(1.0);
        return (0..whole as u32).map(|at| (f64::from(at), 1.0 / whole)).collect();
    }
    let middle = (iterations - 1.0) / 2.0;
    POINTS.iter().map(|(at, weight)| (middle + at * iterations / 2.0, weight / 2.0)).collect()
}

fn label(statement: &Statement) -> u64 {
    match statement {
        Statement::Loop(found) => found.label,
        Statement::Block(block) => block.label,
    }
}

fn has(body: &[Statement], wanted: u64) -> bool {
    body.iter().any(|statement| label(statement) == wanted)
}

/// Expected returns from inside a region.
fn returned(body: &[Statement], local: &Local, _iterations: f64) -> f64 {
    let mut sum = 0.0;
    crate::language::walk(body, &mut |statement| {
        if let Statement::Block(block) = statement
            && block.next.is_empty()
        {
            sum += local.blocks.get(&block.label).copied().unwrap_or(0.0);
        }
    });
    sum
}

/// Targets of edges out of a loop.
fn exits(body: &[Statement], header: u64) -> Vec<u64> {
    let (mut inside, mut targets) = (vec![header], Vec::new());
    crate::language::walk(body, &mut |statement| {
        if let Statement::Block(block) = statement {
            inside.push(block.label);
            targets.extend(block.next.iter().map(|(to, _)| *to));
        }
    });
    targets.retain(|to| !inside.contains(to));
    targets.sort_unstable();
    targets.dedup();
    targets
}

/// Loops with variables used by bounds, by loop variables or by arguments of calls.
fn varied(function: &FunctionText) -> Vec<u64> {
    let mut used: Vec<&Form> = function.variables.iter().flat_map(|of| [&of.start, &of.step]).collect();
    function.loops(&mut |found| used.extend(&found.bound));
    function.blocks(&mut |block| {
        for part in &block.parts {
            if let Part::Call { arguments, .. } = part {
                used.extend(arguments.iter().map(|(_, form)| form));
            }
        }
    });
    let is_used = |variable: &&VariableText| {
        used.iter().any(|form| form.any(|atom| matches!(atom, Atom::Name(name) if **name == *variable.name)))
    };
    function.variables.iter().filter(is_used).map(|variable| variable.of_loop).collect()
}
