//! Parallelism of windows: instructions by class, and the cycles that dependences alone allow.
//!
//! An engine of each process ([`locality_dataflow`], after Caparrós Cabezas, RZ 3834, 2012) takes window
//! after window, so that values in memory last. A machine with W instructions in flight
//! counts from the first end of a part with W instructions on, since before it is not full: the quotient of
//! both differences is the parallelism. Windows shorter than five times W say nothing about W.
//!
//! Sources of error: a window's last block counts whole in the classes; values computed between two windows
//! count as computed before both; other threads' writes.
//!
//! Not here: sums over windows (`locality_findings`).

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use locality_dataflow::{Engine, Lane, Latency, Marks, Predict, Progress, Setup, View};
use locality_model::{ExecutionSpan, SampleId, WindowExecution};
use locality_rate::WindowView;
use locality_stream::{Analysis as _, ArenaFull, Code, Event, Heap, Instruction, Kind};
use self_cell::self_cell;

/// Machines, by instructions in flight. All foresee every branch: a predictor that sees one window in a
/// thousand learns too little, and 3.4 times the mispredictions of a whole run came out in one trace of xz.
const MACHINES: [u32; 4] = [64, 128, 256, 512];
/// A window has so many times the instructions in flight, or does not count.
const TIMES: u64 = 5;
/// Parts of a window, at whose ends sums are read.
const PARTS: usize = 24;
/// Processes with an engine: those met last.
const ENGINES: usize = 4;
/// Address space of an engine, of which touched pages count.
const ROOM: usize = 96 << 20;
/// An engine that took more begins anew.
const MOST_TAKEN: usize = 8 << 20;
/// Part of the time since the start that parallelism may take of the assembler's thread, beyond a first
/// while.
const MOST_TIME: f64 = 0.01;
const FIRST: Duration = Duration::from_millis(100);

type WindowEngine<'a> = Engine<'a, Heap>;
/// Instructions of a block by class: index in [`locality_stream::Class::ALL`], and number.
type Classes = Box<[(usize, u32)]>;

self_cell!(
    struct Owned {
        owner: Heap,
        #[not_covariant]
        dependent: WindowEngine,
    }
);

/// Parallelism of all processes.
pub struct ParallelismTracker {
    setup: Setup,
    /// By process, with the moment of the last window.
    engines: HashMap<u32, (Owned, u64)>,
    windows: u64,
    /// The generation of the code's numbering, and the classes of each block.
    generation: u32,
    blocks: Vec<Option<Classes>>,
    started: Instant,
    spent: Duration,
}

impl std::fmt::Debug for ParallelismTracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParallelismTracker").field("spent", &self.spent).finish_non_exhaustive()
    }
}

impl Default for ParallelismTracker {
    fn default() -> Self {
        let lane = |window| Lane { window: Some(window), predict: Predict::Perfect };
        Self {
            setup: Setup {
                view: View::VALUES,
                latency: Latency::Unit,
                lanes: MACHINES.into_iter().map(lane).collect(),
            },
            engines: HashMap::new(),
            windows: 0,
            generation: 0,
            blocks: Vec::new(),
            started: Instant::now(),
            spent: Duration::ZERO,
        }
    }
}

impl ParallelismTracker {
    /// A window of a process. `generation`: numbering of the window's code. `None` without memory, and where
    /// parallelism has taken its share of the time.
    pub fn observe(
        &mut self,
        sample: SampleId,
        pid: u32,
        generation: u32,
        view: &WindowView<'_>,
    ) -> Option<WindowExecution> {
        if self.spent > FIRST + self.started.elapsed().mul_f64(MOST_TIME) {
            return None;
        }
        let began = Instant::now();
        if self.generation != generation {
            self.generation = generation;
            self.engines.clear();
            self.blocks.clear();
        }
        let found = self.look(sample, pid, view);
        self.spent += began.elapsed();
        found
    }

    fn look(&mut self, sample: SampleId, pid: u32, view: &WindowView<'_>) -> Option<WindowExecution> {
        self.windows += 1;
        let spans = match self.run(pid, view) {
            Some(Ok(spans)) => spans,
            // A fresh engine has the most room.
            Some(Err(ArenaFull)) => {
                self.engines.remove(&pid);
                self.run(pid, view)?.ok()?
            }
            None => return None,
        };
        let stores = view.events.iter().filter(|event| event.kind.is_store()).count() as u64;
        Some(WindowExecution {
            sample,
            instructions: view.instructions,
            loads: view.accesses.saturating_sub(stores),
            stores,
            classes: self.classes(view.events, &view.code),
            spans,
        })
    }

    /// Runs a window; `None` if the system refuses memory.
    fn run(&mut self, pid: u32, view: &WindowView<'_>) -> Option<Result<Vec<ExecutionSpan>, ArenaFull>> {
        if self.engines.get(&pid).is_some_and(|(owned, _)| owned.borrow_owner().in_use() > MOST_TAKEN) {
            self.engines.remove(&pid);
        }
        if !self.engines.contains_key(&pid) {
            if self.engines.len() >= ENGINES {
                let oldest = self.engines.iter().min_by_key(|(_, (_, last))| *last).map(|(pid, _)| *pid);
                oldest.map(|oldest| self.engines.remove(&oldest));
            }
            let made =
                Owned::try_new(Heap::new(ROOM)?, |heap| Engine::create(heap, &self.setup, Marks::default()));
            self.engines.insert(pid, (made.ok()?, 0));
        }
        let (owned, last) = self.engines.get_mut(&pid)?;
        *last = self.windows;
        Some(owned.with_dependent_mut(|_, engine| run(engine, view)))
    }

    /// Instructions by class.
    fn classes(&mut self, events: &[Event], code: &Code<'_>) -> BTreeMap<String, u64> {
        let mut counts = [0_u64; locality_stream::Class::ALL.len()];
        for event in events.iter().filter(|event| event.kind == Kind::BLOCK) {
            let index = event.index as usize;
            if self.blocks.len() <= index {
                self.blocks.resize(index + 1, None);
            }
            let Some(slot) = self.blocks.get_mut(index) else { continue };
            for (class, executed) in slot.get_or_insert_with(|| of_block(code, event.index)) {
                if let Some(count) = counts.get_mut(*class) {
                    *count += u64::from(*executed);
                }
            }
        }
        let names = locality_stream::Class::ALL.iter().map(|class| class.name().replace(' ', "_"));
        names.zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    /// Another program runs in the process, or the process has ended.
    pub fn forget(&mut self, pid: u32) {
        self.engines.remove(&pid);
    }
}

fn of_block(code: &Code<'_>, index: u32) -> Classes {
    let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
    for instruction in Instruction::classify_all(code.block(index)) {
        let class = locality_stream::Class::ALL.iter().position(|class| *class == instruction.class);
        if let Some(class) = class {
            *counts.entry(class).or_default() += 1;
        }
    }
    counts.into_iter().collect()
}

/// Runs a window, and reads sums at the ends of its parts.
fn run(engine: &mut Engine<'_, Heap>, view: &WindowView<'_>) -> Result<Vec<ExecutionSpan>, ArenaFull> {
    let before = engine.progress();
    let mut sums = Vec::with_capacity(PARTS);
    let length = view.events.len().div_ceil(PARTS).max(1);
    let mut rest = view.events;
    while !rest.is_empty() {
        // An instruction's accesses stay together: a part ends where a block begins.
        let end = rest.iter().skip(length).position(|event| event.kind == Kind::BLOCK);
        let (part, others) = rest.split_at(end.map_or(rest.len(), |end| end + length));
        engine.observe(part, &view.code)?;
        sums.push(engine.progress());
        rest = others;
    }
    // The next window is no successor of the last block.
    engine.observe(&[Event::new(Kind::SYSTEM_CALL, 0, 0)], &view.code)?;
    Ok(MACHINES.iter().enumerate().filter_map(|(lane, size)| span(&before, &sums, lane, *size)).collect())
}

fn span(before: &Progress, sums: &[Progress], lane: usize, in_flight: u32) -> Option<ExecutionSpan> {
    let last = sums.last()?;
    if last.instructions - before.instructions < TIMES * u64::from(in_flight) {
        return None;
    }
    let full = |sum: &&Progress| sum.instructions - before.instructions >= u64::from(in_flight);
    let first = sums.iter().find(full)?;
    let instructions = last.instructions - first.instructions;
    let cycles = last.cycles.get(lane)?.checked_sub(*first.cycles.get(lane)?)?;
    (cycles > 0 && instructions > 0).then_some(ExecutionSpan { in_flight, instructions, cycles })
}

#[cfg(test)]
mod tests {
    use locality_stream::{BlockRecord, InstructionRecord};

    use super::*;

    /// An iteration of a chain of multiplications, and three multiplications that nothing waits for.
    fn chain_and_three() -> Vec<InstructionRecord> {
        // imul rax, rax; imul rcx, rsi, 3; imul r8, rsi, 5; imul r9, rsi, 7
        let bytes: [[u8; 4]; 4] =
            [[0x48, 0x0f, 0xaf, 0xc0], [0x48, 0x6b, 0xce, 3], [0x4c, 0x6b, 0xc6, 5], [0x4c, 0x6b, 0xce, 7]];
        (0x1000..).step_by(4).zip(&bytes).map(|(at, bytes)| InstructionRecord::new(at, bytes)).collect()
    }

    fn window(tracker: &mut ParallelismTracker, pid: u32, iterations: usize) -> WindowExecution {
        let records = chain_and_three();
        let blocks = [BlockRecord { first: 0, count: 4 }];
        let events = vec![Event::new(Kind::BLOCK, 0, 0); iterations];
        let view = WindowView {
            events: &events,
            values: &[],
            registers: &[],
            code: Code { instructions: &records, blocks: &blocks },
            instructions: iterations as u64 * 4,
            accesses: 0,
        };
        tracker.observe(SampleId(0), pid, 1, &view).unwrap()
    }

    #[test]
    fn windows_have_the_parallelism_of_their_dependences() {
        let mut tracker = ParallelismTracker::default();
        // The second window finds the engine in the state of the first.
        for _ in 0..2 {
            let found = window(&mut tracker, 7, 1000);
            let sizes: Vec<u32> = found.spans.iter().map(|span| span.in_flight).collect();
            assert_eq!(sizes, MACHINES);
            for span in &found.spans {
                let ilp = span.instructions as f64 / span.cycles as f64;
                assert!((ilp - 4.0).abs() < 0.05, "{span:?}");
                assert!(span.instructions <= 4000 - u64::from(span.in_flight), "{span:?}");
            }
            assert_eq!(found.classes, [("integer_multiply".to_owned(), 4000)].into());
        }
    }

    #[test]
    fn short_windows_say_nothing_of_many_instructions_in_flight() {
        let mut tracker = ParallelismTracker::default();
        let sizes =
            |found: WindowExecution| found.spans.iter().map(|span| span.in_flight).collect::<Vec<u32>>();
        assert!(sizes(window(&mut tracker, 7, 70)).is_empty());
        assert_eq!(sizes(window(&mut tracker, 7, 90)), [64]);
        assert_eq!(sizes(window(&mut tracker, 7, 400)), [64, 128, 256]);
    }

    #[test]
    fn engines_of_few_processes_are_in_memory() {
        let mut tracker = ParallelismTracker::default();
        for pid in 0..3 * ENGINES as u32 {
            window(&mut tracker, pid, 100);
        }
        assert_eq!(tracker.engines.len(), ENGINES);
        assert!(tracker.engines.contains_key(&(3 * ENGINES as u32 - 1)));
        tracker.forget(3 * ENGINES as u32 - 1);
        assert_eq!(tracker.engines.len(), ENGINES - 1);
    }
}
