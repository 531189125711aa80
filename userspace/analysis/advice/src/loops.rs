//! Loops in windows: time, iterations, trips, and the accesses of each instruction.
//!
//! A sample represents CPU time, and the sample's window represents the thread's
//! accesses at the sample's rate. A loop's time is the time of samples with
//! windows beginning in the loop. The loop's iterations are summed over windows,
//! weighted by represented time. Cycles of an iteration are the quotient.
//!
//! Sources of error: a sample lies after the waiting load, sometimes after the loop; rates
//! are means over milliseconds: a window with several loops gives each an equal speed.

use std::collections::{BTreeMap, HashMap};

use locality_estimate::access_rates::{Rates, Unit};
use locality_estimate::calling_context::Contexts;
use locality_estimate::interval_estimate::{Estimate, effective_size, wilson};
use locality_model::{
    AccessKind, ChainStep, Dependence, FieldId, FrameId, LoopNeeds, ObjectId, Profile, SeenLoop, StackId,
};

use crate::place;

/// Mispredictions whose removal shortens a loop less, as a factor, do not bind it.
const LEAST_SAVED: f64 = 1.02;
const MISPREDICTIONS: &str = "mispredictions";
/// Bootstrap draws.
pub(crate) const DRAWS: usize = 200;
const SEED: u64 = 0x10CA_10C5;
/// Two loops are merged if the code overlaps by this share:
/// windows without a loop entry show a different header.
const SAME: f64 = 0.8;

/// Share of first touches missing each cache, smallest first.
pub type Misses = [f64; 3];

/// Knowledge about access instructions from further analyses.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// By instruction address and whether the instruction stores: the shares of the
    /// instruction's first touches of lines in windows missing the first-level,
    /// second-level and last-level cache, and the number of first touches.
    pub misses: BTreeMap<(u64, bool), (Misses, u64)>,
    /// The shares over the instructions together.
    pub all: Misses,
    /// By instruction address, watched words beside a used word: words touched next by the
    /// instruction itself, upwards and downwards, and words touched by a different instruction.
    pub neighbours: HashMap<u64, (u64, u64, u64)>,
    /// By address of the instruction, the object and the field touched most.
    pub objects: HashMap<u64, (ObjectId, Option<FieldId>)>,
}

/// A loop.
#[derive(Debug, Clone, Default)]
pub struct Loop {
    /// Address of the header.
    pub header: u64,
    /// Addresses taken as the header in windows.
    pub headers: Vec<u64>,
    /// Number of the loop around.
    pub around: Option<usize>,
    /// Lowest and highest address of an instruction.
    pub span: (u64, u64),
    /// Frame with function, file and line, in the user's own code if present in the path.
    pub frame: Option<FrameId>,
    /// Line of the loop in the file of `frame`.
    pub line: Option<u32>,
    /// Calling context of the header in the window with most of the loop.
    pub stack: StackId,
    /// Windows with the loop.
    pub windows: u64,
    /// Samples in the loop.
    pub samples: u64,
    /// Share of the loop's time in the kernel; `None` if unknown.
    pub kernel: Option<Estimate>,
    /// Share of the targets' CPU time in user mode.
    pub share: Estimate,
    /// Iterations in windows, and the executions.
    pub iterations: f64,
    /// Instructions of an iteration.
    pub instructions: f64,
    /// Iterations in a nanosecond of CPU time, and cycles of an iteration, never fewer than
    /// [`Needs::cycles`]; `None` without rates, with fewer than [`FEWEST`] samples, and where all of the
    /// interval lies below the least cycles.
    pub speed: Option<(Estimate, Estimate)>,
    /// Cycles of an iteration with every line in the first-level cache; `None` if unknown.
    pub core: Option<Estimate>,
    /// The limit of the core, by saved cycles.
    pub bound_by: Option<(String, f64)>,
    /// Least cycles of an iteration; `None` without an examined window.
    pub needs: Option<Needs>,
    /// Median iterations of a run, runs shown whole by
    /// windows, and the most iterations in a window.
    pub trips: (Option<u64>, u64, u64),
    /// Access instructions, by lines, most first.
    pub accesses: Vec<Access>,
    /// By draw: share of CPU time, cycles of an iteration, core cycles.
    pub(crate) draws: Vec<[f64; 3]>,
}

/// An instruction of a loop's longest chain.
#[derive(Debug, Clone, PartialEq)]
pub struct ChainPart {
    /// Address of the instruction.
    pub ip: u64,
    /// Innermost frame in the user's own code.
    pub frame: Option<FrameId>,
    /// What the instruction takes its time for, as in [`locality_model::ChainStep`].
    pub class: String,
    /// Cycles of an iteration; intervals are over windows with a chain.
    pub cycles: Estimate,
    /// Share of the chain's cycles.
    pub share: f64,
}

/// Least cycles of an iteration of a loop by the timing model; intervals are over windows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Needs {
    /// With every line in the first-level cache and every branch foreseen.
    pub cycles: Estimate,
    /// Of dependences alone.
    pub chain: Estimate,
    /// Instructions of the longest chain of dependences, most cycles first; empty without a chain through
    /// most iterations.
    pub path: Vec<ChainPart>,
    /// Of the busiest unit alone.
    pub throughput: Estimate,
    /// The unit, in the form of `bound_by`.
    pub unit: String,
    /// Branches of an iteration, mispredicted by the model.
    pub mispredicted: Estimate,
    /// Lines under way at a time while at least one is (Chou, Fahs and
    /// Abraham, ISCA 2004), if each of a window's new lines came from memory;
    /// `None` without new lines, or without measurements of the processor.
    pub lines_at_a_time: Option<Estimate>,
}

/// An access instruction of a loop. Numbers are over windows.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Address of the instruction.
    pub ip: u64,
    /// Load or store.
    pub kind: AccessKind,
    /// Calling context.
    pub stack: StackId,
    /// Innermost frame in the user's own code.
    pub frame: Option<FrameId>,
    /// Bytes of an access.
    pub bytes: u32,
    /// Executions of an iteration.
    pub per_iteration: f64,
    /// Lines touched first in a window, by execution.
    pub lines: f64,
    /// Pages touched first, by execution.
    pub pages: f64,
    /// The most frequent step, and the step's share.
    pub stride: Option<i64>,
    /// Share of the steps.
    pub stride_share: f64,
    /// The step between runs in most windows.
    pub outer_stride: Option<i64>,
    /// Windows or watches with the step between runs.
    pub outer_windows: u64,
    /// Source of the address.
    pub dependence: Dependence,
    /// Least and greatest value, and how many windows show values.
    pub values: Option<(i64, i64, u64)>,
    /// Lines of the windows with the most lines: number, and the sets of two caches.
    pub sets: (u64, [u64; 2]),
    /// Object and field.
    pub object: Option<(ObjectId, Option<FieldId>)>,
    /// Share of first touches missing each cache, and the number of first touches. The shares agree with
    /// the loop's time ([`crate::gain::correct`]).
    pub misses: (Misses, u64),
    /// The shares as reuses show them.
    pub seen_misses: Misses,
    /// For short, distant runs, the part of the lines at the start of a run, which hardware does
    /// not foresee.
    pub restarts: f64,
    /// The access's lines are stored to in the loop, by the instruction or a further one.
    pub dirties: bool,
    /// Executions in windows.
    pub executions: u64,
}

/// Loops, heaviest first.
pub fn of(profile: &Profile, contexts: &Contexts, rates: &Rates, known: &Known) -> Vec<Loop> {
    let groups = groups(profile);
    let mut loops: Vec<Loop> = groups.iter().map(|rows| joined(profile, contexts, known, rows)).collect();
    time(profile, rates, &groups, &mut loops);
    let mut order: Vec<usize> = (0..loops.len()).collect();
    order.sort_by(|a, b| {
        loops[*b].share.value.total_cmp(&loops[*a].share.value).then(loops[*a].header.cmp(&loops[*b].header))
    });
    let mut rank = vec![0; loops.len()];
    order.iter().enumerate().for_each(|(at, from)| rank[*from] = at);
    let headers: HashMap<u64, usize> = groups
        .iter()
        .enumerate()
        .flat_map(|(number, rows)| rows.iter().map(move |row| (row.header, number)))
        .collect();
    for (number, rows) in groups.iter().enumerate() {
        let around = most(rows.iter().filter_map(|row| Some((row.around?, row.instructions))));
        loops[number].around = around
            .and_then(|header| headers.get(&header))
            .filter(|around| **around != number)
            .map(|around| rank[*around]);
    }
    let mut sorted: Vec<Option<Loop>> = loops.into_iter().map(Some).collect();
    order.into_iter().filter_map(|at| sorted[at].take()).collect()
}

/// Rows grouped by loop.
fn groups(profile: &Profile) -> Vec<Vec<&SeenLoop>> {
    let mut groups: Vec<Vec<&SeenLoop>> = Vec::new();
    let mut of_header: HashMap<u64, usize> = HashMap::new();
    let overlap = |a: (u64, u64), b: (u64, u64)| {
        let both = a.1.min(b.1).saturating_add(1).saturating_sub(a.0.max(b.0)) as f64;
        let longer = (a.1.saturating_sub(a.0)).max(b.1.saturating_sub(b.0)) as f64 + 1.0;
        both / longer
    };
    for row in &profile.loops {
        let near = || groups.iter().position(|rows| overlap(rows[0].span, row.span) >= SAME);
        let number = of_header.get(&row.header).copied().or_else(near).unwrap_or(groups.len());
        of_header.insert(row.header, number);
        match groups.get_mut(number) {
            Some(rows) => rows.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

/// The value with the most weight.
pub(crate) fn most<T: Ord + Copy>(values: impl Iterator<Item = (T, u64)>) -> Option<T> {
    let mut weights: BTreeMap<T, u64> = BTreeMap::new();
    for (value, weight) in values {
        let sum = weights.entry(value).or_default();
        *sum = sum.saturating_add(weight);
    }
    weights.into_iter().max_by_key(|(_, weight)| *weight).map(|(value, _)| value)
}

/// Everything but time.
fn joined(profile: &Profile, contexts: &Contexts, known: &Known, rows: &[&SeenLoop]) -> Loop {
    let sum = |of: fn(&SeenLoop) -> u64| rows.iter().map(|row| of(row)).fold(0, u64::saturating_add);
    let iterations = sum(|row| row.iterations).max(1) as f64;
    let largest = rows.iter().max_by_key(|row| row.instructions);
    let (stack, latch) = largest.map_or_else(Default::default, |row| (row.stack, row.latch));
    let (frame, line) = place::of_loop(profile, contexts, stack, latch);
    let mut trips: Vec<(u64, u64)> =
        rows.iter().filter(|row| row.runs > 0).map(|row| (row.trips, row.runs)).collect();
    trips.sort_unstable();
    let runs = trips.iter().map(|(_, runs)| runs).fold(0, |sum: u64, runs| sum.saturating_add(*runs));
    let mut left = runs / 2;
    let median = trips.iter().find(|(_, runs)| match left.checked_sub(*runs) {
        Some(rest) if rest > 0 => {
            left = rest;
            false
        }
        _ => true,
    });
    let mut by_access: BTreeMap<(u64, bool), Vec<(&SeenLoop, &locality_model::LoopAccess)>> = BTreeMap::new();
    for row in rows {
        for access in &row.by_access {
            by_access.entry((access.ip, access.kind == AccessKind::Store)).or_default().push((row, access));
        }
    }
    let mut accesses: Vec<Access> = by_access
        .iter()
        .map(|(key, seen)| joined_access(profile, contexts, known, *key, seen, iterations))
        .collect();
    // A store along another access's walk, without own lines, stores to the other access's lines.
    let followers: Vec<(Option<i64>, f64)> =
        accesses.iter().filter(|access| access.dirties).map(|access| (access.stride, access.lines)).collect();
    for access in accesses.iter_mut().filter(|access| access.stride.is_some()) {
        access.dirties |=
            followers.iter().any(|(stride, lines)| *stride == access.stride && lines * 4.0 < access.lines);
    }
    for access in &mut accesses {
        access.restarts = restarts(access, median.map(|(trips, _)| *trips));
    }
    let lines = |access: &Access| access.per_iteration * access.lines;
    accesses.sort_by(|a, b| lines(b).total_cmp(&lines(a)).then(a.ip.cmp(&b.ip)));
    let bound = most(rows.iter().filter_map(|row| Some((row.bound_by.as_deref()?, row.instructions))));
    let saved = |name: &str| {
        let of_it = rows.iter().filter(|row| row.bound_by.as_deref() == Some(name));
        let (with, without) =
            of_it.fold((0.0, 0.0), |(a, b), row| (a + row.core_cycles, b + row.unbound_cycles));
        if without > 0.0 { with / without } else { 1.0 }
    };
    Loop {
        header: rows.first().map_or(0, |row| row.header),
        headers: {
            let mut headers: Vec<u64> = rows.iter().map(|row| row.header).collect();
            headers.sort_unstable();
            headers.dedup();
            headers
        },
        span: largest.map_or((0, 0), |row| row.span),
        frame,
        line,
        stack,
        windows: rows.len() as u64,
        iterations,
        instructions: sum(|row| row.instructions) as f64 / iterations,
        // A branch or two of a window that end foreseen runs bind nothing.
        bound_by: bound
            .map(|name| (name.to_owned(), saved(name)))
            .filter(|(name, saved)| name != MISPREDICTIONS || *saved >= LEAST_SAVED),
        needs: needs(profile, contexts, rows),
        trips: (
            median.map(|(trips, _)| *trips),
            runs,
            rows.iter().map(|row| row.iterations).max().unwrap_or(0),
        ),
        accesses,
        ..Loop::default()
    }
}

/// Sums of windows that were asked, each per iteration, with draws of windows.
fn needs(profile: &Profile, contexts: &Contexts, rows: &[&SeenLoop]) -> Option<Needs> {
    /// New lines in all windows from which on lines at a time are given.
    const LINES: u64 = 50;
    let asked: Vec<(&SeenLoop, &LoopNeeds)> =
        rows.iter().filter_map(|row| Some((*row, row.needs.as_ref()?))).collect();
    let unit = most(asked.iter().map(|(row, needs)| (needs.unit.as_str(), row.instructions)))?;
    let mut random = fastrand::Rng::with_seed(SEED);
    let draws: Vec<Vec<usize>> =
        (0..DRAWS).map(|_| asked.iter().map(|_| random.usize(..asked.len())).collect()).collect();
    let n = asked.len() as u64;
    let ratio = |above: &dyn Fn(&SeenLoop, &LoopNeeds) -> f64,
                 below: &dyn Fn(&SeenLoop, &LoopNeeds) -> f64| {
        let of = |numbers: &mut dyn Iterator<Item = usize>| {
            let sums =
                numbers.filter_map(|number| asked.get(number)).fold((0.0, 0.0), |sums, (row, needs)| {
                    (sums.0 + above(row, needs), sums.1 + below(row, needs))
                });
            sums.0 / sums.1
        };
        let mut drawn: Vec<f64> = draws.iter().map(|draw| of(&mut draw.iter().copied())).collect();
        drawn.retain(|value| value.is_finite());
        estimate(of(&mut (0..asked.len())), &mut drawn, n)
    };
    let iterations = |row: &SeenLoop, _: &LoopNeeds| row.iterations as f64;
    let lines: u64 = asked.iter().map(|(_, needs)| needs.new_lines).fold(0, u64::saturating_add);
    let latency = profile.run.processor.map_or(0.0, |processor| processor.levels[2][0]);
    let at_a_time = (lines >= LINES && latency > 0.0).then(|| {
        let waited = |row: &SeenLoop, needs: &LoopNeeds| (needs.distant_cycles - row.core_cycles).max(0.0);
        ratio(&|_, needs| needs.new_lines as f64 * latency, &waited)
    });
    // Parts of the least cycles are computed apart, in fractions of a cycle, and none exceeds the whole.
    Some(Needs {
        path: path(profile, contexts, rows),
        cycles: ratio(&|_, needs| needs.cycles, &iterations),
        chain: ratio(&|_, needs| needs.chain_cycles.min(needs.cycles), &iterations),
        throughput: ratio(&|_, needs| needs.unit_cycles.min(needs.cycles), &iterations),
        unit: unit.to_owned(),
        mispredicted: ratio(&|_, needs| needs.mispredicted as f64, &iterations),
        lines_at_a_time: at_a_time.filter(|lines| lines.value.is_finite() && lines.high.is_finite()),
    })
    .filter(|needs| needs.cycles.value.is_finite())
}

/// Instructions of the longest chain, from the windows that show one.
fn path(profile: &Profile, contexts: &Contexts, rows: &[&SeenLoop]) -> Vec<ChainPart> {
    /// Instructions in a report.
    const MOST: usize = 8;
    /// Smaller shares of the chain are left out.
    const LEAST: f64 = 0.02;
    let shown: Vec<&SeenLoop> = rows.iter().copied().filter(|row| !row.chain.is_empty()).collect();
    // A chain that few windows show is none of the loop.
    let asked = rows.iter().filter(|row| row.needs.is_some()).count();
    if 2 * shown.len() <= asked {
        return Vec::new();
    }
    let mut parts: BTreeMap<(u64, &str), StackId> = BTreeMap::new();
    for step in shown.iter().flat_map(|row| &row.chain) {
        parts.entry((step.ip, &step.class)).or_insert(step.stack);
    }
    let of = |row: &SeenLoop, key: &(u64, &str)| {
        let is = |step: &&ChainStep| (step.ip, step.class.as_str()) == *key;
        row.chain.iter().filter(is).map(|step| step.cycles).sum::<f64>()
    };
    let total: f64 = shown.iter().flat_map(|row| &row.chain).map(|step| step.cycles).sum();
    let mut random = fastrand::Rng::with_seed(SEED);
    let draws: Vec<Vec<usize>> =
        (0..DRAWS).map(|_| shown.iter().map(|_| random.usize(..shown.len())).collect()).collect();
    let part = |(key, stack): (&(u64, &str), &StackId)| {
        let mean = |numbers: &mut dyn Iterator<Item = usize>| {
            let rows = numbers.filter_map(|number| shown.get(number));
            let sums =
                rows.fold((0.0, 0.0), |sums, row| (sums.0 + of(row, key), sums.1 + row.iterations as f64));
            sums.0 / sums.1
        };
        let mut drawn: Vec<f64> = draws.iter().map(|draw| mean(&mut draw.iter().copied())).collect();
        drawn.retain(|value| value.is_finite());
        let cycles = estimate(mean(&mut (0..shown.len())), &mut drawn, shown.len() as u64);
        let sum: f64 = shown.iter().map(|row| of(row, key)).sum();
        let frame = place::own(profile, contexts, *stack);
        ChainPart { ip: key.0, frame, class: key.1.to_owned(), cycles, share: sum / total }
    };
    let mut path: Vec<ChainPart> =
        parts.iter().map(part).filter(|part| part.share >= LEAST && part.cycles.value.is_finite()).collect();
    path.sort_by(|one, other| other.share.total_cmp(&one.share).then(one.ip.cmp(&other.ip)));
    path.truncate(MOST);
    path
}

fn joined_access(
    profile: &Profile,
    contexts: &Contexts,
    known: &Known,
    (ip, is_store): (u64, bool),
    seen: &[(&SeenLoop, &locality_model::LoopAccess)],
    iterations: f64,
) -> Access {
    let sum = |of: fn(&locality_model::LoopAccess) -> u64| {
        seen.iter().map(|(_, access)| of(access)).fold(0, u64::saturating_add)
    };
    let executions = sum(|access| access.executions);
    let per = |count: u64| count as f64 / executions.max(1) as f64;
    let stride = most(seen.iter().filter_map(|(_, access)| Some((access.stride?, access.stride_count))));
    let of_stride = seen.iter().filter(|(_, access)| access.stride == stride && stride.is_some());
    let count = of_stride.map(|(_, access)| access.stride_count).fold(0, u64::saturating_add);
    let outer = most(seen.iter().filter_map(|(_, access)| Some((access.outer_stride?, 1))));
    let dependence = most(seen.iter().map(|(_, access)| {
        let number = match access.dependence {
            Dependence::None => 0_u8,
            Dependence::Indexed => 1,
            Dependence::Chased => 2,
        };
        (number, access.executions)
    }));
    let values = seen.iter().filter_map(|(_, access)| access.values);
    let stack = seen.first().map_or_else(StackId::default, |(_, access)| access.stack);
    let most_lines = seen.iter().max_by_key(|(_, access)| access.lines);
    let misses = known.misses.get(&(ip, is_store)).copied().unwrap_or((known.all, 0));
    let bytes = seen.iter().map(|(_, access)| access.bytes).max().unwrap_or(0);
    // Runs longer than a window do not show the next one, but a watch of the neighbour in the line does.
    let neighbours = known.neighbours.get(&ip).copied().unwrap_or_default();
    let watched = neighbour(neighbours, stride, bytes).map(|step| (step, neighbours.0.max(neighbours.1)));
    // A step of another size inside a run is no end of a run: the walk wraps around, as a random walk or a
    // hash table does, and no outer loop goes on along the line.
    let is_steady = seen.iter().all(|(_, access)| access.stride_count == access.steps);
    let beside = || watched.or_else(|| columns(seen, stride?, bytes)).filter(|_| is_steady);
    let shown =
        seen.iter().filter(|(_, access)| outer.is_some() && access.outer_stride == outer).count() as u64;
    let (outer, outer_windows) = match outer {
        Some(outer) => (Some(outer), shown),
        None => beside().map_or((None, 0), |(step, n)| (Some(step), n)),
    };
    Access {
        ip,
        kind: if is_store { AccessKind::Store } else { AccessKind::Load },
        stack,
        frame: place::own(profile, contexts, stack),
        bytes,
        per_iteration: executions as f64 / iterations,
        lines: per(sum(|access| access.lines)),
        pages: per(sum(|access| access.pages)),
        stride,
        stride_share: count as f64 / sum(|access| access.steps).max(1) as f64,
        outer_stride: outer,
        outer_windows,
        restarts: 0.0,
        dependence: match dependence {
            Some(2) => Dependence::Chased,
            Some(1) => Dependence::Indexed,
            _ => Dependence::None,
        },
        values: values.fold(None, |all, (low, high)| match all {
            None => Some((low, high, 1)),
            Some((least, greatest, n)) => Some((low.min(least), high.max(greatest), n + 1)),
        }),
        sets: most_lines.map_or((0, [0, 0]), |(_, access)| (access.lines, access.sets)),
        object: known.objects.get(&ip).copied(),
        misses,
        seen_misses: misses.0,
        dirties: is_store,
        executions,
    }
}

/// The step from run to run of an instruction that walks across lines, by who touched the neighbour
/// of a word.
fn neighbour((up, down, others): (u64, u64, u64), stride: Option<i64>, bytes: u32) -> Option<i64> {
    /// Watches that must agree.
    const FEWEST: u64 = 2;
    let across = stride.is_some_and(|step| step.saturating_abs() >= 64);
    let step = i64::from(bytes.clamp(1, 16));
    let agree = up.max(down);
    (across && agree >= FEWEST && agree > up.min(down) + others).then_some(if up > down {
        step
    } else {
        -step
    })
}

/// The step from run to run of an instruction that walks across lines, by the columns seen in
/// windows: in rows without gaps, the address modulo the row length is the place in the row. Only a
/// distance of one element between columns proves an outer loop along the row; arrays of other
/// callers lie farther apart. Returns the step and the columns.
fn columns(seen: &[(&SeenLoop, &locality_model::LoopAccess)], stride: i64, bytes: u32) -> Option<(i64, u64)> {
    /// Columns that must have been met.
    const FEWEST: usize = 3;
    if stride.saturating_abs() < 64 || bytes == 0 {
        return None;
    }
    let walks = seen.iter().filter(|(_, access)| {
        access.stride == Some(stride) && access.stride_count.saturating_mul(2) >= access.steps
    });
    let columns: std::collections::BTreeSet<u64> =
        walks.map(|(_, access)| access.address % stride.unsigned_abs()).collect();
    let least = columns.first()?;
    let step = columns.iter().fold(0, |step, column| gcd(step, column - least));
    (columns.len() >= FEWEST && step == u64::from(bytes)).then_some((step as i64, columns.len() as u64))
}

/// Greatest common divisor; that of a number and 0 is the number.
pub(crate) fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The share of an access's lines that begin a run, where runs are short and each begins far from
/// the end of the previous run.
fn restarts(access: &Access, trips: Option<u64>) -> f64 {
    /// Bytes from one run to the next over which hardware does not foresee lines: a page.
    const FAR: i64 = 4096;
    /// Lines of a run from which its start no longer matters.
    const LONG: f64 = 128.0;
    let along =
        access.stride.filter(|step| *step != 0 && step.saturating_abs() < 64 && access.stride_share >= 0.5);
    let (Some(step), Some(outer), Some(trips)) = (along, access.outer_stride, trips) else { return 0.0 };
    let walked = step.saturating_mul(trips.min(1 << 32) as i64);
    let lines = walked.unsigned_abs() as f64 / 64.0;
    let is_far = outer != 0 && outer.saturating_sub(walked).saturating_abs() >= FAR;
    if is_far && access.outer_windows > 0 && (1.0..LONG).contains(&lines) { 1.0 / lines } else { 0.0 }
}

/// A window's part in the time of loops.
struct Part {
    number: usize,
    iterations: f64,
    core: f64,
}

/// A sample with its loop and its window's view of all loops.
#[derive(Default)]
struct Here {
    weight: f64,
    /// Nanoseconds that the window stands for; 0 without a window or a rate.
    window_ns: f64,
    sigma: f64,
    source: usize,
    in_loop: Option<usize>,
    parts: Vec<Part>,
}

/// The smallest loop around an instruction, by its number.
pub(crate) fn smallest_around(loops: &[Loop], address: u64) -> Option<usize> {
    let around = loops.iter().enumerate().filter(|(_, of)| of.span.0 <= address && address <= of.span.1);
    around.min_by_key(|(_, of)| of.span.1 - of.span.0).map(|(number, _)| number)
}

/// Time by loop, with draws.
fn time(profile: &Profile, rates: &Rates, groups: &[Vec<&SeenLoop>], loops: &mut [Loop]) {
    let mut heres: Vec<Here> = profile
        .samples
        .iter()
        .enumerate()
        .map(|(number, sample)| {
            let local = rates.at(number);
            Here {
                weight: sample.period_ns as f64,
                sigma: local.sigma,
                source: local.source,
                ..Here::default()
            }
        })
        .collect();
    if rates.unit() == Unit::Accesses {
        for window in &profile.windows {
            let rate = rates.at(window.sample.0 as usize).value;
            if let Some(here) = heres.get_mut(window.sample.0 as usize).filter(|_| rate > 0.0) {
                here.window_ns = window.accesses as f64 / rate;
            }
        }
    }
    for (number, rows) in groups.iter().enumerate() {
        for row in rows {
            let Some(here) = heres.get_mut(row.sample.0 as usize) else { continue };
            here.parts.push(Part { number, iterations: row.iterations as f64, core: row.core_cycles });
            if row.is_first {
                here.in_loop = Some(number);
            }
        }
    }
    // Samples without loops in their windows lie in the smallest loop around their instruction.
    let with_loops: std::collections::HashSet<u32> = profile.loops.iter().map(|row| row.sample.0).collect();
    for (number, sample) in profile.samples.iter().enumerate() {
        if with_loops.contains(&(number as u32)) {
            continue;
        }
        let frame = profile.stacks.get(sample.stack.0 as usize).and_then(|stack| stack.frames.first());
        let Some(address) = frame.and_then(|frame| Some(profile.frames.get(frame.0 as usize)?.address))
        else {
            continue;
        };
        heres[number].in_loop = smallest_around(loops, address);
    }
    let clock = profile.run.processor.map_or(0.0, |processor| processor.clock);
    let effective = effective_size(heres.iter().map(|here| here.weight));
    let mut random = fastrand::Rng::with_seed(SEED);
    let whole = sums(&heres, loops.len(), |_| 1.0, |_| 1.0);
    let drawn: Vec<Vec<[f64; 5]>> = (0..DRAWS)
        .map(|_| {
            let mut times = vec![0.0; heres.len()];
            (0..heres.len()).for_each(|_| times[random.usize(..heres.len())] += 1.0);
            let common: Vec<f64> = (0..rates.sources().len().max(1))
                .map(|_| locality_estimate::reuse::normal(&mut random))
                .collect();
            let factor = |here: &Here| (here.sigma * common.get(here.source).copied().unwrap_or(0.0)).exp();
            sums(&heres, loops.len(), |number| times[number], factor)
        })
        .collect();
    for (number, of) in loops.iter_mut().enumerate() {
        // No order or place of data makes an iteration shorter than the least cycles.
        let least = of.needs.as_ref().map(|needs| needs.cycles);
        let measured = |all: &[[f64; 5]]| {
            let [.., iterations, _, shown] = all[number];
            if iterations > 0.0 { shown / iterations * clock } else { f64::NAN }
        };
        let numbers = |all: &[[f64; 5]]| {
            let [total, time, iterations, core, _] = all[number];
            let cycles = match (measured(all), least) {
                (cycles, Some(least)) if cycles < least.value => least.value,
                (cycles, _) => cycles,
            };
            let core = if iterations > 0.0 { core / iterations } else { f64::NAN };
            let share = time / total.max(1.0);
            [share, cycles, core, share * clock / cycles]
        };
        let value = numbers(&whole);
        let draws: Vec<[f64; 4]> = drawn.iter().map(|all| numbers(all)).collect();
        of.samples = heres.iter().filter(|here| here.in_loop == Some(number)).count() as u64;
        let estimate = |at: usize| {
            let mut column: Vec<f64> =
                draws.iter().map(|draw| draw[at]).filter(|it| it.is_finite()).collect();
            estimate(value[at], &mut column, of.samples)
        };
        // Draws of samples that all lie in the loop do not vary.
        let (low, high) = wilson(value[0].clamp(0.0, 1.0), effective);
        let drawn_share = estimate(0);
        of.share =
            Estimate { low: drawn_share.low.min(low), high: drawn_share.high.max(high), ..drawn_share };
        // A loop whose iterations include other loops, as those of interpreters do, has iterations in
        // windows that begin elsewhere: their time is missing here.
        let fits = least.is_none_or(|least| {
            let mut cycles: Vec<f64> =
                drawn.iter().map(|all| measured(all)).filter(|it| it.is_finite()).collect();
            measured(&whole) >= least.low
                || self::estimate(measured(&whole), &mut cycles, of.samples).high >= least.low
        });
        let is_seen = of.samples >= crate::FEWEST;
        let has_speed = is_seen && fits && clock > 0.0 && value[1].is_finite() && value[1] > 0.0;
        of.speed = has_speed.then(|| (estimate(3), estimate(1)));
        of.core = (value[2].is_finite() && value[2] > 0.0).then(|| estimate(2));
        of.draws = draws.iter().map(|[share, cycles, core, _]| [*share, *cycles, *core]).collect();
    }
}

/// The middle 95 % of draws around a value.
pub(crate) fn estimate(value: f64, draws: &mut [f64], n: u64) -> Estimate {
    draws.sort_unstable_by(f64::total_cmp);
    let at = |q: f64| draws.get(((draws.len() as f64 - 1.0) * q).round() as usize).copied().unwrap_or(value);
    Estimate { value, low: at(0.025).min(value), high: at(0.975).max(value), n }
}

/// For each loop: time of all samples, of samples in the loop, iterations, core cycles, and time of
/// samples in the loop whose windows show loops, the only ones with known iterations.
fn sums(
    heres: &[Here],
    loops: usize,
    times: impl Fn(usize) -> f64,
    factor: impl Fn(&Here) -> f64,
) -> Vec<[f64; 5]> {
    let mut sums = vec![[0.0; 5]; loops];
    let mut total = 0.0;
    for (number, here) in heres.iter().enumerate() {
        let weight = here.weight * times(number);
        if weight <= 0.0 {
            continue;
        }
        total += weight;
        if let Some(of) = here.in_loop {
            sums[of][1] += weight;
            sums[of][4] += if here.window_ns > 0.0 && !here.parts.is_empty() { weight } else { 0.0 };
        }
        if here.window_ns > 0.0 {
            // As often as the window fits into the time that the sample stands for.
            let often = weight / (here.window_ns / factor(here));
            for part in &here.parts {
                sums[part.number][2] += part.iterations * often;
                sums[part.number][3] += part.core * often;
            }
        }
    }
    sums.iter_mut().for_each(|sum| sum[0] = total);
    sums
}
