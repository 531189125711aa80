//! `--tasks`: what is asked for, the sums over threads and processes, and their report.
//!
//! Nodes of several threads and processes are one if they begin at the same place of a file. Not here:
//! counting and partitioning (`locality-dataflow`).

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
};

use locality_dataflow::{NO_BLOCK, Node, TaskSetup, partition};
use locality_report::schema::{
    place::Place,
    tasks::{Communication, LeftOut, Part, Partition, TaskNode, Tasks as Report},
};

use crate::{image::Image, names::Names, report::ratio};

/// Rows of a table in the report.
const ROWS: usize = 200;
/// Nodes listed of a part.
const LISTED: usize = 20;

/// Nodes on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum TasksArg {
    /// Basic blocks.
    Blocks,
    /// Functions: each call is an execution.
    Functions,
    /// Loops: each iteration is an execution.
    Loops,
}

impl TasksArg {
    /// As the engine names them.
    pub fn node(self) -> Node {
        match self {
            TasksArg::Blocks => Node::Blocks,
            TasksArg::Functions => Node::Functions,
            TasksArg::Loops => Node::Loops,
        }
    }
}

/// What makes nodes one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// Code outside loops.
    Outside,
    /// Path and offset.
    File(String, u64),
    /// Process and address of generated code.
    Generated(u32, u64),
}

/// A node's sums.
#[derive(Debug, Clone)]
struct Sum {
    key: Key,
    place: Option<Place>,
    executions: u64,
    work: u64,
}

/// Results of the run.
#[derive(Debug, Default)]
pub struct Tasks {
    setup: Option<TaskSetup>,
    work: u64,
    span: u64,
    executions: u64,
    index: HashMap<Key, usize>,
    nodes: Vec<Sum>,
    /// Bytes and values by writer, reader, and whether through memory.
    edges: HashMap<(usize, usize, bool), (u64, u64)>,
}

impl Tasks {
    /// Adds what an image's threads came to.
    pub fn add(&mut self, image: &Image, names: &mut Names) {
        for found in &image.tasks {
            self.setup = Some(found.setup);
            self.work += found.work;
            self.span += found.span;
            self.executions += found.executions;
            // Names are looked up for nodes that may be reported.
            let mut heaviest: Vec<_> = (0..found.nodes.len()).collect();
            heaviest.sort_by_key(|at| Reverse(found.nodes.get(*at).map(|node| node.work)));
            heaviest.truncate(2 * ROWS);
            let mut edges: Vec<_> = found.edges.iter().collect();
            edges.sort_by_key(|edge| (Reverse(edge.bytes), edge.from, edge.to));
            let ends = edges.iter().take(2 * ROWS).flat_map(|edge| [edge.from as usize, edge.to as usize]);
            let named: BTreeSet<usize> = heaviest.into_iter().chain(ends).collect();
            let first = |block: u32| image.blocks.get(block as usize).map(|block| block.first);
            let wanted = named.iter().filter_map(|at| first(found.nodes.get(*at)?.block));
            names.ahead(image, wanted.collect::<Vec<_>>());
            let mut positions = Vec::new();
            for (at, node) in found.nodes.iter().enumerate() {
                let instruction = if node.block == NO_BLOCK { None } else { first(node.block) };
                let key = instruction.map_or(Key::Outside, |instruction| key(image, instruction));
                let nodes = &mut self.nodes;
                let position = *self.index.entry(key.clone()).or_insert_with(|| {
                    nodes.push(Sum { key, place: None, executions: 0, work: 0 });
                    nodes.len() - 1
                });
                positions.push(position);
                let Some(sum) = self.nodes.get_mut(position) else { continue };
                sum.executions += node.executions;
                sum.work += node.work;
                if let Some(instruction) = instruction.filter(|_| sum.place.is_none() && named.contains(&at))
                {
                    sum.place = Some(place(image, names, instruction, found.setup.node == Node::Functions));
                }
            }
            for edge in &found.edges {
                let position = |node: u32| positions.get(node as usize).copied().unwrap_or(usize::MAX);
                let sum =
                    self.edges.entry((position(edge.from), position(edge.to), edge.memory)).or_default();
                (sum.0, sum.1) = (sum.0 + edge.bytes, sum.1 + edge.values);
            }
        }
    }

    /// The report's `tasks`; `None` if not measured.
    pub fn describe(&self, parts: Option<u32>, lines: &[String]) -> Option<Report> {
        let setup = self.setup?;
        let place = |at: usize| self.nodes.get(at).map(Sum::place).unwrap_or_default();
        let mut edges: Vec<_> = self.edges.iter().collect();
        edges.sort_by_key(|(ends, (bytes, values))| (Reverse((*bytes, *values)), **ends));
        let left = edges.split_off(edges.len().min(ROWS));
        let communication = edges.iter().map(|((from, to, memory), (bytes, values))| Communication {
            bytes: *bytes,
            from: place(*from),
            through: if *memory { "memory" } else { "registers" }.to_owned(),
            to: place(*to),
            values: *values,
        });
        let ignored = setup.view.ignored().into_iter().map(str::to_owned);
        Some(Report {
            communication: communication.collect(),
            executions: self.executions,
            ignored: ignored.chain(lines.iter().cloned()).collect(),
            left_out: LeftOut {
                bytes: left.iter().map(|(_, sum)| sum.0).sum(),
                rows: left.len() as u64,
                values: left.iter().map(|(_, sum)| sum.1).sum(),
            },
            node: setup.node.name().to_owned(),
            nodes: self.rows((0..self.nodes.len()).collect(), ROWS),
            nodes_total: self.nodes.len() as u64,
            partitions: parts.map(|parts| self.partition(parts as usize)).into_iter().collect(),
            span: self.span,
            tlp: ratio(self.work, self.span).into(),
            view: setup.view.name().to_owned(),
            work: self.work,
        })
    }

    /// The heaviest of these nodes.
    fn rows(&self, mut nodes: Vec<usize>, most: usize) -> Vec<TaskNode> {
        let work = |at: &usize| self.nodes.get(*at).map_or(0, |node| node.work);
        nodes.sort_by_key(|at| (Reverse(work(at)), *at));
        let row = |sum: &Sum| TaskNode { executions: sum.executions, place: sum.place(), work: sum.work };
        nodes.iter().take(most).filter_map(|at| self.nodes.get(*at)).map(row).collect()
    }

    fn partition(&self, parts: usize) -> Partition {
        let work: Vec<u64> = self.nodes.iter().map(|node| node.work).collect();
        let mut edges: Vec<(usize, usize, u64)> =
            self.edges.iter().map(|((from, to, _), (bytes, _))| (*from, *to, *bytes)).collect();
        edges.sort_unstable();
        let found = partition::partition(&work, &edges, parts);
        let mut list: Vec<Part> = (0..found.work.len())
            .map(|part| {
                let of = |(at, other): (usize, &usize)| (*other == part).then_some(at);
                let nodes: Vec<usize> = found.part.iter().enumerate().filter_map(of).collect();
                Part {
                    nodes_total: nodes.len() as u64,
                    nodes: self.rows(nodes, LISTED),
                    work: found.work.get(part).copied().unwrap_or(0),
                }
            })
            .collect();
        list.sort_by_key(|part| Reverse(part.work));
        Partition {
            acyclic: found.is_acyclic,
            balance: found.balance().into(),
            bound: found.bound().into(),
            cut_bytes: found.cut,
            nodes_bytes: edges.iter().filter(|(from, to, _)| from != to).map(|edge| edge.2).sum(),
            parts: list,
        }
    }
}

impl Sum {
    fn place(&self) -> Place {
        self.place.clone().unwrap_or_else(|| self.key.place())
    }
}

impl Key {
    /// Without names.
    pub(crate) fn place(&self) -> Place {
        match self {
            Key::Outside => Place { function: Some("[outside loops]".to_owned()), ..Place::default() },
            Key::File(path, offset) => {
                let module = path.rsplit('/').next().unwrap_or_default();
                let function = Some(format!("{module} at {offset:#x} of the file"));
                Place { function, ..Place::default() }
            }
            Key::Generated(_, address) => Place {
                address: Some(*address),
                function: Some(format!("[jit] {address:#x}")),
                ..Place::default()
            },
        }
    }
}

pub(crate) fn key(image: &Image, instruction: u32) -> Key {
    let address = image.records.get(instruction as usize).map_or(0, |record| record.address);
    match image.mapping(instruction) {
        Some(mapping) => Key::File(mapping.path.clone(), address - mapping.start + mapping.offset),
        None => Key::Generated(image.pid, address),
    }
}

pub(crate) fn place(image: &Image, names: &mut Names, instruction: u32, is_function: bool) -> Place {
    let frames = names.frames(image, instruction);
    // A function's first instruction may be inlined from another one.
    let frame = if is_function { frames.last() } else { frames.first() };
    let Some(frame) = frame else { return Place::default() };
    let function = frame.function.clone().or_else(|| {
        let module = frame.module.as_deref().unwrap_or_default().rsplit('/').next()?;
        Some(format!("{module}+{:#x}", frame.address?))
    });
    let (file, module) = (frame.file.clone(), frame.module.clone().filter(|_| frame.address.is_some()));
    Place { address: frame.address, file, function, line: frame.line, module, via: None }
}
