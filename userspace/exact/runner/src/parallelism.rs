//! `--parallelism`: what is asked for, the sums over threads and processes, and their report.
//!
//! Threads have clocks of their own that cannot be compared: the report sums their instructions and
//! cycles. Not here: counting (`locality-dataflow`).

use std::collections::HashMap;

use locality_dataflow::{
    CLASSES, LANES, Lane, Latency, NestSetup, Predict, Setup, Summary, TaskSetup, View, window,
};
use locality_plugin::settings::INCLUSIVE;
use locality_report::schema::{
    parallelism::{
        Branch, Parallelism as Report, ParallelismBin, Stretch, ThreadParallelism, Window, WindowSize,
    },
    place::Place,
};
use locality_units::parse::WrongUse;

use crate::{image::Image, names::Names, report::ratio, tasks::TasksArg};

/// Branches in the report.
const BRANCHES: usize = 200;
/// Threads in the report.
const THREADS: usize = 64;
/// Windows where none are asked for.
const WINDOWS: [Option<u32>; 3] = [Some(64), Some(512), None];

/// Which dependences are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ViewArg {
    /// All of the machine code.
    Machine,
    /// Those of values alone: the stack pointer, induction variables and copies are ignored.
    Values,
}

/// A kind of dependence that is not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum IgnoreArg {
    /// Steps of the stack pointer by pushes, pops, calls and returns.
    Stack,
    /// Steps of induction variables, for addresses, comparisons and branches.
    Induction,
    /// Copies between registers and memory, which take no time then.
    Copies,
    /// The order in which accumulators of sums, products, minima, maxima and bit operations grow.
    Reductions,
}

/// How long instructions take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LatencyArg {
    /// A cycle each.
    Unit,
    /// As on server processors of the early 2020s.
    Machine,
}

/// A size of a window on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowArg(Option<u32>);

impl std::str::FromStr for WindowArg {
    type Err = locality_dataflow::BadSetup;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        window(text).map(WindowArg)
    }
}

/// A predictor on the command line.
pub type PredictArg = Predict;

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct ParallelismOptions {
    /// Whether parallelism is reported.
    pub parallelism: bool,
    /// Which dependences are followed.
    pub view: Option<ViewArg>,
    /// Which are not.
    pub ignore: Vec<IgnoreArg>,
    /// Sizes of windows.
    pub window: Vec<WindowArg>,
    /// Predictors of branches.
    pub predict: Vec<PredictArg>,
    /// How long instructions take.
    pub latency: Option<LatencyArg>,
    /// Nodes of task parallelism.
    pub tasks: Option<TasksArg>,
    /// Parts into which the nodes are divided.
    pub partition: Option<u32>,
    /// Whether self-parallelism of calls and loops is reported.
    pub self_parallelism: bool,
    /// Processors for the speed-up by self-parallelism; `None`: those of the machine.
    pub processors: Option<u32>,
    /// Functions of which whole calls are reported.
    pub inclusive: Vec<String>,
}

impl ParallelismOptions {
    /// Refuses more functions than are distinguished.
    ///
    /// # Errors
    /// A sentence that says how many.
    pub fn check(&self) -> Result<(), WrongUse> {
        match self.inclusive.len() > INCLUSIVE {
            true => Err(WrongUse(format!("--inclusive takes {INCLUSIVE} functions at most"))),
            false => Ok(()),
        }
    }

    /// The tasks, in the machines' view; `None` where not asked for.
    pub fn tasks_setup(&self, setup: Option<&Setup>) -> Option<TaskSetup> {
        Some(TaskSetup { node: self.tasks?.node(), view: setup?.view })
    }

    /// The regions, in the machines' view; `None` where not asked for.
    pub fn nest_setup(&self, setup: Option<&Setup>) -> Option<NestSetup> {
        let setup = setup.filter(|_| self.self_parallelism)?;
        Some(NestSetup { view: setup.view, latency: setup.latency })
    }

    /// The machines; `None` where parallelism is not reported.
    ///
    /// # Errors
    /// A sentence for contradicting options.
    pub fn setup(&self) -> Result<Option<Setup>, WrongUse> {
        if !self.parallelism {
            return Ok(None);
        }
        let wrong = |sentence: &str| Err(WrongUse(sentence.to_owned()));
        if self.view.is_some() && !self.ignore.is_empty() {
            return wrong("--view names what is ignored, and so does --ignore: leave one of them out");
        }
        let latency = match self.latency.unwrap_or(LatencyArg::Unit) {
            LatencyArg::Unit => Latency::Unit,
            LatencyArg::Machine => Latency::Machine,
        };
        let ignores = |what: IgnoreArg| self.ignore.contains(&what);
        let view = match self.view {
            Some(ViewArg::Machine) => View::MACHINE,
            Some(ViewArg::Values) => View::VALUES,
            // Copies take no time in cycles of one instruction each only.
            None if self.ignore.is_empty() => View { copies: latency == Latency::Unit, ..View::VALUES },
            None => View {
                stack: ignores(IgnoreArg::Stack),
                induction: ignores(IgnoreArg::Induction),
                copies: ignores(IgnoreArg::Copies),
                reductions: ignores(IgnoreArg::Reductions),
            },
        };
        if view.reductions && self.tasks.is_some() {
            return wrong(
                "--tasks follows values, and --ignore reductions removes them: leave one of them out",
            );
        }
        if view.copies && latency == Latency::Machine {
            return wrong(
                "--latency machine gives copies their time, and the view ignores them: add --ignore \
                 stack,induction or --view machine, or leave --latency out",
            );
        }
        let windows: Vec<Option<u32>> = match self.window.is_empty() {
            true => WINDOWS.to_vec(),
            false => self.window.iter().map(|window| window.0).collect(),
        };
        let predicts = if self.predict.is_empty() { vec![Predict::Perfect] } else { self.predict.clone() };
        let mut lanes: Vec<Lane> = Vec::new();
        for lane in predicts
            .iter()
            .flat_map(|predict| windows.iter().map(|window| Lane { window: *window, predict: *predict }))
        {
            if !lanes.contains(&lane) {
                lanes.push(lane);
            }
        }
        if lanes.len() > LANES {
            return Err(WrongUse(format!(
                "--window and --predict ask for {} machines, and {LANES} at most go side by side: name fewer",
                lanes.len()
            )));
        }
        Ok(Some(Setup { view, latency, lanes }))
    }
}

/// Results of the run.
#[derive(Debug, Default)]
pub struct Parallelism {
    /// Of all, and of each function; a single function stands alone.
    sums: Vec<Summary>,
    threads: Vec<ThreadParallelism>,
    branches: HashMap<Place, (u64, u64, u64)>,
}

impl Parallelism {
    /// Adds what an image's threads came to.
    pub fn add(&mut self, image: &Image, names: &mut Names) {
        let branches =
            || image.parallelism.iter().filter_map(|(_, all)| all.first()).flat_map(|one| &one.branches);
        // Names are looked up for reported functions.
        let mut wanted: Vec<_> = branches().copied().collect();
        wanted.sort_by_key(|count| std::cmp::Reverse((count.mispredicted, count.executed)));
        wanted.truncate(8 * BRANCHES);
        names.ahead(image, wanted.iter().map(|count| count.instruction as u32));
        for count in wanted {
            let frames = names.frames(image, count.instruction as u32);
            let Some(frame) = frames.first() else { continue };
            let function = frame.function.clone().or_else(|| {
                let module = frame.module.as_deref().unwrap_or_default().rsplit('/').next()?;
                Some(format!("{module}+{:#x}", frame.address?))
            });
            let place = Place { file: frame.file.clone(), function, line: frame.line, ..Place::default() };
            let sum = self.branches.entry(place).or_default();
            sum.0 += count.executed;
            sum.1 += count.taken;
            sum.2 += count.mispredicted;
        }
        for (tid, all) in &image.parallelism {
            if let Some(one) = all.first().filter(|one| one.instructions > 0) {
                let ilp = one.lanes.iter().map(|lane| ratio(one.instructions, lane.cycles).into()).collect();
                self.threads.push(ThreadParallelism {
                    ilp,
                    instructions: one.instructions,
                    pid: image.pid,
                    tid: *tid,
                });
            }
            for (at, one) in all.iter().enumerate() {
                let bare = Summary { branches: Vec::new(), ..one.clone() };
                match self.sums.get_mut(at) {
                    Some(sum) => sum.merge(&bare),
                    None => self.sums.push(bare),
                }
            }
        }
    }

    /// The report's `parallelism`, and its `functions` if several.
    pub fn describe(&self, inclusive: &[String], lines: &[String]) -> (Option<Report>, Option<Vec<Report>>) {
        let of = |sum: &Summary| {
            let mut report = of(sum);
            report.ignored.extend(lines.iter().cloned());
            report
        };
        let alone = inclusive.first().filter(|_| inclusive.len() == 1);
        let first = self.sums.first().map(|sum| Report {
            calls: alone.map(|_| sum.calls),
            function: alone.cloned(),
            threads: self.threads(),
            ..of(sum)
        });
        let others = self.sums.iter().skip(1).zip(inclusive);
        let others: Vec<Report> = others
            .map(|(sum, name)| Report { calls: Some(sum.calls), function: Some(name.clone()), ..of(sum) })
            .collect();
        (first, (!others.is_empty()).then_some(others))
    }

    fn threads(&self) -> Vec<ThreadParallelism> {
        let mut threads = self.threads.clone();
        threads.sort_by_key(|thread| (std::cmp::Reverse(thread.instructions), thread.pid, thread.tid));
        threads.truncate(THREADS);
        threads
    }

    /// The report's `branches`: most mispredicted, else most executed.
    pub fn branches(&self) -> Vec<Branch> {
        let branch = |(place, (executed, taken, mispredicted)): (&Place, &(u64, u64, u64))| Branch {
            entropy: entropy(*taken, *executed).into(),
            executed: *executed,
            mispredicted: *mispredicted,
            place: place.clone(),
            taken: *taken,
            ..Branch::default()
        };
        let mut all: Vec<Branch> = self.branches.iter().map(branch).collect();
        all.sort_by_cached_key(|branch| {
            let place = &branch.place;
            (
                std::cmp::Reverse((branch.mispredicted, branch.executed)),
                (place.file.clone(), place.function.clone(), place.line),
            )
        });
        all.truncate(BRANCHES);
        all
    }
}

/// Bits of an outcome.
fn entropy(taken: u64, executed: u64) -> f64 {
    let share = ratio(taken, executed);
    let part = |share: f64| if share > 0.0 { -share * share.log2() } else { 0.0 };
    part(share) + part(1.0 - share)
}

fn of(sum: &Summary) -> Report {
    let lanes = sum.lanes.iter().map(|lane| {
        let histogram = &lane.histogram;
        let bins = histogram.cycles.iter().zip(&histogram.instructions).zip(&histogram.classes).enumerate();
        let used = bins.filter(|(_, ((cycles, _), classes))| **cycles > 0 || **classes != [0; 16]);
        let bin =
            |(at, ((cycles, instructions), classes)): (usize, ((&u64, &u64), &[u64; 16]))| ParallelismBin {
                by_class: CLASSES
                    .iter()
                    .zip(classes)
                    .filter(|(_, count)| **count > 0)
                    .map(|(name, count)| ((*name).to_owned(), *count))
                    .collect(),
                cycles: *cycles,
                high: 1 << at,
                instructions: *instructions,
                low: if at == 0 { 0 } else { 1 << (at - 1) },
            };
        let stretch = |(from, instructions, cycles): &(u64, u64, u64)| Stretch {
            from: *from,
            ilp: ratio(*instructions, *cycles).into(),
        };
        Window {
            by_parallelism: used.map(bin).collect(),
            cycles: lane.cycles,
            ilp: ratio(sum.instructions, lane.cycles).into(),
            mispredicted: lane.mispredicted,
            over_time: lane.over_time.iter().map(stretch).collect(),
            predictor: lane.lane.predict.to_string(),
            window: lane
                .lane
                .window
                .map_or_else(WindowSize::default, |window| WindowSize::Instructions(window.into())),
            ..Window::default()
        }
    });
    let predictor = sum.setup.lanes.first().map_or(Predict::Perfect, |lane| lane.predict);
    Report {
        ignored: sum.setup.view.ignored().into_iter().map(str::to_owned).collect(),
        instructions: sum.instructions,
        latency: sum.setup.latency.name().to_owned(),
        predictor: predictor.to_string(),
        resolution: sum.lanes.iter().map(|lane| lane.resolution).max().unwrap_or(1),
        view: sum.setup.view.name().to_owned(),
        windows: lanes.collect(),
        ..Report::default()
    }
}
