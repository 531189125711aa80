//! Loops of the traced programs: follows each window through the loops of its program, and asks the
//! timing model what the loops would take with all lines in the first-level cache, and which limit
//! binds them then.
//!
//! Not here: how loops are found (`locality_loops`), how long instructions take (`locality_rate`),
//! source lines.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use locality_loops::{Graph, Loop, Observed, Transfers, Window, transfers};
use locality_model::{Dependence, LoopBranch, LoopNeeds, StackId};
use locality_rate::{ChainStep, Constraint, Demand, Machine, Misses, Replay, Timing, WindowView};

/// Recorded loops of one window: those with the most instructions.
const MOST: usize = 8;
/// Recorded instructions of a loop's chain: those with the most cycles.
const CHAIN: usize = 8;
/// Recorded branches of a loop: those with the most executions.
const BRANCHES: usize = 12;
/// Least share of a window's instructions that a recorded loop has.
const LEAST: f64 = 0.02;
/// Windows of a loop with limits removed in turn, each by a replay.
const STUDIED: u32 = 24;
/// Longer windows are studied only for loops that no other window has shown.
const SHORT: u64 = 6_000;
/// Part of the time since the start that loops may take of the assembler's thread, beyond a first
/// while: what waits after it would be dropped at last.
const MOST_TIME: f64 = 0.04;
const FIRST: Duration = Duration::from_millis(200);
/// Part of the cycles that a limit's removal must save to be named.
const SAVES: f64 = 0.02;

/// A loop of a window, with its time by the model.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedLoop {
    /// The loop.
    pub found: Loop,
    /// Cycles of its instructions with all lines in the first-level cache.
    pub core_cycles: f64,
    /// The limit whose removal shortens the loop most, and the cycles without the limit.
    pub bound: Option<(Constraint, f64)>,
    /// Least cycles of the loop; `None` if not computed for this window.
    pub needs: Option<LoopNeeds>,
    /// Its chain of dependences: the address of each instruction too. Empty if not computed.
    pub chain: Vec<(u64, ChainStep)>,
    /// Its branches, without those of functions that it calls, the most executed first.
    pub branches: Vec<LoopBranch>,
}

/// The loops of all processes.
#[derive(Debug)]
pub struct LoopTracker {
    machine: Machine,
    processes: HashMap<u32, Process>,
    timing: Timing,
    started: Instant,
    spent: Duration,
}

#[derive(Debug)]
struct Process {
    graph: Graph,
    replay: Replay,
    /// Windows in which the limits of a loop were studied, by header.
    studied: HashMap<u64, u32>,
}

impl LoopTracker {
    /// For programs on this machine.
    pub fn new(machine: Machine) -> Self {
        let (processes, timing) = (HashMap::new(), Timing::default());
        Self { machine, processes, timing, started: Instant::now(), spent: Duration::ZERO }
    }

    /// The loops that a window of a process shows, those with the most instructions first, and where control
    /// went; none where loops have taken their share of the time: the sample then counts for none.
    pub fn observe(&mut self, pid: u32, view: &WindowView<'_>) -> Option<(Vec<TimedLoop>, Transfers)> {
        if self.spent > FIRST + self.started.elapsed().mul_f64(MOST_TIME) {
            return None;
        }
        let began = Instant::now();
        let found = self.look(pid, view);
        let spans: Vec<(u64, u64)> = found.iter().map(|of| of.found.span).collect();
        let WindowView { events, values, code, instructions, registers, .. } = *view;
        let flow = transfers(&Window { events, values, code, instructions }, registers, &spans);
        self.spent += began.elapsed();
        Some((found, flow))
    }

    fn look(&mut self, pid: u32, view: &WindowView<'_>) -> Vec<TimedLoop> {
        let machine = self.machine;
        let Process { graph, replay, studied } = self.processes.entry(pid).or_insert_with(|| Process {
            graph: Graph::default(),
            replay: Replay::new(machine),
            studied: HashMap::new(),
        });
        let WindowView { events, values, code, instructions, .. } = *view;
        let Observed { mut loops, of_instruction } =
            graph.observe(&Window { events, values, code, instructions });
        let least = instructions as f64 * LEAST;
        loops.truncate(MOST);
        replay.read(view);
        let is_due = |found: &Loop| {
            let before = studied.get(&found.header).copied().unwrap_or(0);
            before < STUDIED && (before == 0 || instructions <= SHORT)
        };
        let is_studied = loops.iter().any(is_due);
        let may_bind = |limit: &Constraint| is_studied && replay.may_bind(*limit);
        let limits: Vec<Constraint> = Constraint::ALL.into_iter().filter(may_bind).collect();
        let timing = &mut self.timing;
        let mut cycles = |without: Option<Constraint>| {
            replay.time_into(Misses::None, without, timing);
            by_loop(timing, &of_instruction)
        };
        let core = cycles(None);
        let mut bounds: Vec<Option<(Constraint, f64)>> = vec![None; MOST];
        let mut needs = vec![None; MOST];
        let mut chains = vec![Vec::new(); MOST];
        if is_studied {
            let mut foreseen = core.clone();
            for constraint in limits {
                let without = cycles(Some(constraint));
                for ((bound, without), core) in bounds.iter_mut().zip(&without).zip(&core) {
                    let least = bound.map_or(core * (1.0 - SAVES), |(_, least)| least);
                    if *without < least {
                        *bound = Some((constraint, *without));
                    }
                }
                if constraint == Constraint::Mispredictions {
                    foreseen = without;
                }
            }
            loops.iter().for_each(|found| *studied.entry(found.header).or_default() += 1);
            let needs_of = at_least(&machine, replay, &of_instruction, foreseen, timing);
            needs = needs_of.into_iter().map(Some).collect();
            let iterations: Vec<u64> = loops.iter().map(|found| found.iterations).collect();
            let steps = replay.chain_steps(&of_instruction, &iterations);
            for (chain, steps) in chains.iter_mut().zip(steps) {
                let steps = steps.into_iter().take(CHAIN);
                let of = |step: ChainStep| Some((code.instruction(step.instruction)?.address, step));
                *chain = steps.filter_map(of).collect();
            }
        }
        let spans: Vec<(u64, u64)> = loops.iter().map(|found| found.span).collect();
        let branches = branches(replay, &of_instruction, &spans, view);
        let timed = |(((((found, core_cycles), bound), needs), chain), branches)| TimedLoop {
            found,
            core_cycles,
            bound,
            needs,
            chain,
            branches,
        };
        let mut timed: Vec<TimedLoop> =
            loops.into_iter().zip(core).zip(bounds).zip(needs).zip(chains).zip(branches).map(timed).collect();
        let is_large = |found: &Loop| found.is_first || found.instructions as f64 >= least;
        let around: Vec<u64> =
            timed.iter().filter(|of| is_large(&of.found)).filter_map(|of| of.found.around).collect();
        timed.retain(|of| is_large(&of.found) || around.contains(&of.found.header));
        timed
    }

    /// Another program runs in the process, or the process has ended.
    pub fn forget(&mut self, pid: u32) {
        self.processes.remove(&pid);
    }
}

/// Branches of each loop in the loop's own code, whose addresses `spans` has. The last instruction of the
/// window has an unknown outcome. Predictions count in the second half of the window.
fn branches(
    replay: &Replay,
    of_instruction: &[Option<u32>],
    spans: &[(u64, u64)],
    view: &WindowView<'_>,
) -> Vec<Vec<LoopBranch>> {
    let mut found: Vec<HashMap<u64, LoopBranch>> = vec![HashMap::new(); spans.len()];
    let warm = of_instruction.len() / 2;
    let mut executed = replay.executed().zip(of_instruction).enumerate().peekable();
    while let Some((at, (executed_now, number))) = executed.next() {
        let loop_number = number.map(|number| number as usize).filter(|_| executed_now.has_choice);
        let (Some(number), Some((_, (after, _)))) = (loop_number, executed.peek()) else { continue };
        let instruction = |index: u32| view.code.instruction(index);
        let (Some(record), Some(after), Some(span)) =
            (instruction(executed_now.instruction), instruction(after.instruction), spans.get(number))
        else {
            continue;
        };
        if !(span.0..=span.1).contains(&record.address) {
            continue;
        }
        let branch = found[number]
            .entry(record.address)
            .or_insert_with(|| LoopBranch { ip: record.address, ..LoopBranch::default() });
        branch.executed += 1;
        branch.taken += u64::from(after.address != record.address + record.code().len() as u64);
        if at >= warm {
            branch.judged += 1;
            branch.mispredicted += u64::from(executed_now.is_mispredicted);
        }
    }
    let sorted = |of: HashMap<u64, LoopBranch>| {
        let mut of: Vec<LoopBranch> = of.into_values().collect();
        of.sort_by_key(|branch| (std::cmp::Reverse(branch.executed), branch.ip));
        of.truncate(BRANCHES);
        of
    };
    found.into_iter().map(sorted).collect()
}

/// The source of an address for the profile.
pub fn source_of(found: locality_loops::Dependence) -> Dependence {
    match found {
        locality_loops::Dependence::None => Dependence::None,
        locality_loops::Dependence::Indexed => Dependence::Indexed,
        locality_loops::Dependence::Chased => Dependence::Chased,
    }
}

/// An instruction of a chain for the profile.
pub fn recorded(ip: u64, stack: StackId, step: &ChainStep) -> locality_model::ChainStep {
    let class = step.class.name().to_owned();
    locality_model::ChainStep { ip, stack, class, cycles: step.cycles }
}

/// Cycles of each loop.
fn by_loop(timing: &Timing, of_instruction: &[Option<u32>]) -> Vec<f64> {
    let mut sums = vec![0.0; MOST];
    for (cycles, number) in timing.cycles.iter().zip(of_instruction) {
        if let Some(sum) = number.and_then(|number| sums.get_mut(number as usize)) {
            *sum += f64::from(*cycles);
        }
    }
    sums
}

/// Least cycles of each loop; `foreseen`: cycles with all branches foreseen.
fn at_least(
    machine: &Machine,
    replay: &mut Replay,
    of_instruction: &[Option<u32>],
    foreseen: Vec<f64>,
    timing: &mut Timing,
) -> Vec<LoopNeeds> {
    replay.chains_into(timing);
    let chains = by_loop(timing, of_instruction);
    let memory = machine.levels.len() - 1;
    replay.time_into(Misses::Each(&|_| Some(memory)), None, timing);
    let distant = by_loop(timing, of_instruction);
    let mut needs = vec![LoopNeeds::default(); MOST];
    let mut demands = vec![(Demand::default(), 0); MOST];
    for (executed, number) in replay.executed().zip(of_instruction) {
        let Some(number) = number.map(|number| number as usize).filter(|number| *number < MOST) else {
            continue;
        };
        let (demand, instructions) = &mut demands[number];
        demand.add(executed.demand);
        *instructions += 1;
        needs[number].mispredicted += u64::from(executed.is_mispredicted);
        needs[number].new_lines += u64::from(executed.new_lines);
    }
    for (number, of) in needs.iter_mut().enumerate() {
        let (demand, instructions) = demands[number];
        let (unit_cycles, unit) = demand.cycles(instructions, machine);
        (of.cycles, of.chain_cycles, of.distant_cycles) = (foreseen[number], chains[number], distant[number]);
        (of.unit_cycles, of.unit) = (unit_cycles, unit.name().to_owned());
    }
    needs
}
