//! What a window shows of one access instruction of a loop: steps, lines, pages, values.

use locality_stream::{Event, Kind};

use crate::origin::Origin;

/// Different steps that are counted (Misra and Gries, "Finding repeated elements", 1982).
const STEPS: usize = 6;
/// Sets of a first-level and of a second-level cache, by number of the line.
pub(crate) const SETS: [u64; 2] = [64, 1024];
/// Bytes of a line: a step between runs below this distance leads to the neighbour.
const LINE: i64 = 64;

/// The inputs of an address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dependence {
    /// Registers without a value from a load of the loop.
    #[default]
    None,
    /// A value from another load of the loop.
    Indexed,
    /// A value loaded before by the instruction itself.
    Chased,
}

/// One access instruction of a loop, as shown by a window.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LoopAccess {
    /// Address of the instruction.
    pub ip: u64,
    /// Whether the instruction stores.
    pub is_store: bool,
    /// Return addresses of the calls that lead from the loop's function to the instruction, outermost first.
    pub called: Vec<u64>,
    /// Bytes of an access.
    pub bytes: u32,
    /// Executions in the loop.
    pub executions: u64,
    /// Lines of 64 bytes with their first touch in the window.
    pub lines: u64,
    /// Pages of 4 KiB with their first touch in the window.
    pub pages: u64,
    /// Sets of a first-level cache with 64 sets, and of a
    /// second-level cache with 1,024, that the lines fall on.
    pub sets: [u64; 2],
    /// The most frequent step from one execution to the next in a run.
    pub stride: Option<i64>,
    /// Number of occurrences of the stride.
    pub stride_count: u64,
    /// Steps seen.
    pub steps: u64,
    /// The most frequent step from the first execution of a run to the next run's.
    pub outer_stride: Option<i64>,
    /// The inputs of the address.
    pub dependence: Dependence,
    /// First address in the window.
    pub address: u64,
    /// Least and greatest value, as signed integers of the access's size; `None` where the operand
    /// is no integer.
    pub values: Option<(i64, i64)>,
}

/// A [`LoopAccess`] while a window is followed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub access: LoopAccess,
    pub index: u32,
    pub origins: Vec<Origin>,
    run: u64,
    last: Option<u64>,
    /// First address of the run, where the run began in the window.
    first: Option<u64>,
    steps: Counts,
    outer: Counts,
    /// Steps from the last execution of a run that began before the window to the first of the next.
    beyond: Counts,
    sets: [Vec<u64>; 2],
}

/// Steps by how often they occur, the rarest given up.
#[derive(Debug, Clone, Default)]
struct Counts(Vec<(i64, u64)>);

impl Counts {
    fn add(&mut self, step: i64) {
        if let Some((_, count)) = self.0.iter_mut().find(|(known, _)| *known == step) {
            *count += 1;
        } else if self.0.len() < STEPS {
            self.0.push((step, 1));
        } else {
            self.0.retain_mut(|(_, count)| {
                *count -= 1;
                *count > 0
            });
        }
    }

    fn most(&self) -> Option<(i64, u64)> {
        self.0.iter().copied().max_by_key(|(step, count)| (*count, -step.saturating_abs()))
    }
}

impl Seen {
    pub fn new(index: u32, ip: u64, called: Vec<u64>) -> Self {
        Self { index, access: LoopAccess { ip, called, ..LoopAccess::default() }, ..Self::default() }
    }

    /// Takes in an execution in a run of the loop; `is_whole`: the window shows the run from its entry on.
    pub fn add(&mut self, event: &Event, run: u64, is_whole: bool) {
        let address = event.value;
        let access = &mut self.access;
        access.executions += 1;
        access.bytes = access.bytes.max(u32::from(event.size));
        access.is_store = event.kind == Kind::STORE;
        match self.last {
            None => (access.address, self.first) = (address, is_whole.then_some(address)),
            Some(last) if run == self.run => {
                access.steps += 1;
                self.steps.add(address.wrapping_sub(last) as i64);
            }
            Some(last) => {
                match self.first {
                    Some(first) => self.outer.add(address.wrapping_sub(first) as i64),
                    None => self.beyond.add(address.wrapping_sub(last) as i64),
                }
                self.first = Some(address);
            }
        }
        (self.last, self.run) = (Some(address), run);
    }

    /// The instruction touched a line that the window had not touched before.
    pub fn first_touch(&mut self, line: u64, is_new_page: bool) {
        self.access.lines += 1;
        self.access.pages += u64::from(is_new_page);
        for (of, seen) in SETS.iter().zip(&mut self.sets) {
            seen.push(line % of);
        }
    }

    pub fn value(&mut self, value: u64, bytes: u16) {
        let unused = 64 - 8 * u32::from(bytes.clamp(1, 8));
        let value = (value << unused) as i64 >> unused;
        let (low, high) = self.access.values.unwrap_or((value, value));
        self.access.values = Some((low.min(value), high.max(value)));
    }

    /// Steps in a run of the loop, from a run whose end alone the window shows: the first address of that run
    /// is not known, but lies a whole number of steps before the last, and near the first of the next run.
    pub fn steps_of_run(&self) -> Option<i64> {
        let (stride, _) = self.steps.most().filter(|(stride, _)| *stride != 0)?;
        let (beyond, _) = self.beyond.most()?;
        let size = stride.checked_abs().filter(|size| *size > 2 * LINE)?;
        let rest = beyond.rem_euclid(size);
        let rest = if rest > size / 2 { rest - size } else { rest };
        let steps = rest.checked_sub(beyond)?.checked_div(stride)?;
        (rest.abs() < LINE && steps > 0).then_some(steps)
    }

    /// Observed steps; `run`: steps in a run of the loop, if known.
    pub fn finish(mut self, run: Option<i64>) -> LoopAccess {
        let access = &mut self.access;
        if let Some((stride, count)) = self.steps.most() {
            (access.stride, access.stride_count) = (Some(stride), count.min(access.steps));
        }
        access.outer_stride = self.outer.most().map(|(step, _)| step).or_else(|| {
            let (stride, (beyond, _)) = (access.stride?, self.beyond.most()?);
            beyond.checked_add(stride.checked_mul(run?)?)
        });
        for (sets, count) in self.sets.iter_mut().zip(&mut access.sets) {
            sets.sort_unstable();
            sets.dedup();
            *count = sets.len() as u64;
        }
        self.access
    }
}
