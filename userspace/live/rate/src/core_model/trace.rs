//! A window prepared for a schedule: executed instructions and accesses in order, with all facts
//! independent of time. A schedule hashes and decodes nothing.

use std::ops::Range;

use locality_stream::{BlockRecord, Branch, Event, Flow, InstructionRecord, Kind, Locations, Predictor};

use super::facts::{Facts, Form};
use super::footprint::Footprint;
use crate::core_limits::Machine;
use crate::table::Table;
use crate::types::WindowView;

/// Bytes up to which a step from one execution of an instruction to the next is foreseen by prefetchers.
const PREFETCHED: u64 = 4096;
/// Static instructions that are remembered.
const MOST_INSTRUCTIONS: usize = 1 << 16;
/// Stands for no word.
pub(super) const NO_WORD: u32 = u32::MAX;

/// Where control went after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Went {
    /// To the next line in memory, or unknown.
    On,
    /// Elsewhere, as the predictor foresaw.
    Elsewhere,
    /// Where the predictor did not foresee.
    Mispredicted,
}

/// An executed instruction.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// Index of the static instruction in the window's code.
    pub instruction: u32,
    /// Index in [`Trace::facts`].
    pub facts: u32,
    /// End of its accesses in [`Trace::touches`]; they begin at the end of the instruction before.
    pub touches: u32,
    /// Index of the word stored last, or [`NO_WORD`].
    pub stored: u32,
    pub went: Went,
    /// Whether the register that its address begins with comes out of a load.
    pub chases_base: bool,
    /// The same for the index register of the address.
    pub chases_index: bool,
    /// Top of the x87 stack, the origin of its registers' numbers.
    pub top: u8,
}

/// How a line comes to be in the first-level cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The window touched it before.
    Before,
    /// Now, and a prefetcher foresees it.
    Near,
    /// Immediately, without prefetching.
    Far,
}

/// An access.
#[derive(Debug, Clone, Copy)]
pub(super) struct Touch {
    /// Index of its line.
    pub line: u32,
    /// Index of the word if the window stored to it before, or [`NO_WORD`].
    pub word: u32,
    pub arrival: Arrival,
    pub is_store: bool,
    /// A load whose word was stored to by an address of the same form and registers.
    pub is_renamed: bool,
    /// A store to the line of the store before.
    pub is_close: bool,
    /// More than 8 bytes.
    pub is_wide: bool,
    /// The first store to its line.
    pub dirties: bool,
}

impl Touch {
    /// Whether its line was not touched before.
    pub fn is_new(&self) -> bool {
        self.arrival != Arrival::Before
    }
}

/// Counts over a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Loads of up to 8 bytes.
    pub loads: u32,
    pub wide_loads: u32,
    pub stores: u32,
    /// Lines that are loaded from only.
    pub lines: u32,
    /// Other lines.
    pub stored_lines: u32,
    /// Lines that no prefetcher foresees.
    pub far: u32,
    /// Instructions of floating point.
    pub floats: u32,
    /// Cycles that the divider is taken.
    pub divides: u32,
}

/// Prepares windows one after the other in the same memory, with the knowledge about one program.
#[derive(Debug, Clone, Default)]
pub(super) struct Trace {
    pub steps: Vec<Step>,
    pub touches: Vec<Touch>,
    pub facts: Vec<Facts>,
    /// For each line, its first access.
    pub firsts: Vec<Event>,
    /// Number of words that were stored to.
    pub words: usize,
    pub counts: Counts,
    pub footprint: Footprint,
    /// Addresses of instructions met so far, in this window or before.
    known: Table,
    /// For each of `known`, the last instruction at the address.
    known_facts: Vec<(InstructionRecord, Facts)>,
    predictor: Predictor,
    /// Blocks of the window at hand.
    blocks: Table,
    /// For each of `blocks`, the position of its instructions in `facts`.
    ranges: Vec<Range<u32>>,
    data: Data,
}

impl Trace {
    /// Takes a window in place of the last one. Predictor and footprint learn from it.
    pub fn read(&mut self, window: &WindowView<'_>, machine: &Machine) {
        self.clear();
        let mut left = window.instructions;
        let mut events = window.events.iter().peekable();
        // Registers whose values come out of loads, as they are or at a constant distance.
        let (mut from_loads, mut top) = (Locations::NONE, 0);
        let mut versions = Versions::default();
        while let Some(event) = events.next() {
            let block = window.code.blocks.get(event.index as usize).filter(|_| event.kind == Kind::BLOCK);
            let Some(BlockRecord { first, .. }) = block.copied() else { continue };
            let range = self.block(window, event.index, machine);
            for (instruction, at) in (first..).zip(range) {
                if left == 0 {
                    break;
                }
                left -= 1;
                let Some(facts) = self.facts.get(at as usize) else { break };
                let (mut stored, mut loads) = (None, false);
                let address = versions.of(facts);
                let is_chased = |register: Locations| !register.shared(from_loads).is_empty();
                let chases_base = is_chased(facts.base);
                let chases_index = is_chased(facts.index);
                while let Some(access) =
                    events.next_if(|next| next.kind.is_access() && next.index == instruction)
                {
                    let touch = self.data.touch(access, address, &mut self.counts, &mut self.firsts);
                    self.touches.push(touch);
                    if access.kind.is_store() {
                        stored = Some(access.value);
                    } else {
                        loads = true;
                    }
                }
                let inputs = facts.reads.with(facts.bases());
                let comes = facts.passes && (loads || is_chased(inputs));
                let writes = facts.writes();
                from_loads = if comes { from_loads.with(writes) } else { from_loads.without(writes) };
                versions.write(facts);
                self.counts.floats += u32::from(facts.is_float);
                self.counts.divides += facts.divides;
                let target = match facts.flow {
                    Flow::Next => None,
                    _ => {
                        let next = events.peek().filter(|next| next.kind == Kind::BLOCK);
                        next.and_then(|next| window.code.block(next.index).first())
                    }
                };
                let went = target.map_or(Went::On, |target| {
                    let branch = Branch {
                        next: facts.next,
                        target: target.address,
                        is_conditional: facts.flow == Flow::Conditional,
                    };
                    if facts.has_choice() && !self.predictor.foresees(branch) {
                        Went::Mispredicted
                    } else if branch.target != branch.next {
                        Went::Elsewhere
                    } else {
                        Went::On
                    }
                });
                self.steps.push(Step {
                    instruction,
                    facts: at,
                    touches: self.touches.len() as u32,
                    stored: stored.map_or(NO_WORD, |to| self.data.store(to, address)),
                    went,
                    chases_base,
                    chases_index,
                    top: facts.top.step(&mut top),
                });
            }
        }
        self.words = self.data.words.keys().len();
        self.footprint.learn(self.data.lines.keys());
    }

    fn clear(&mut self) {
        self.steps.clear();
        self.touches.clear();
        self.facts.clear();
        self.firsts.clear();
        self.counts = Counts::default();
        self.blocks.clear();
        self.ranges.clear();
        self.data.clear();
        if self.known.keys().len() > MOST_INSTRUCTIONS {
            self.known.clear();
            self.known_facts.clear();
        }
    }

    /// Where the instructions of a block lie in `facts`.
    fn block(&mut self, window: &WindowView<'_>, index: u32, machine: &Machine) -> Range<u32> {
        let place = self.blocks.insert(index.into()) as usize;
        if place >= self.ranges.len() {
            let start = self.facts.len() as u32;
            let records = window.code.block(index).iter();
            let (known, known_facts) = (&mut self.known, &mut self.known_facts);
            let mut fuses = false;
            self.facts.extend(records.map(|it| {
                let number = known.insert(it.address) as usize;
                let mut facts = match known_facts.get(number).filter(|(record, _)| record == it) {
                    Some((_, facts)) => *facts,
                    None => {
                        let found = (*it, Facts::of(it, machine));
                        match known_facts.get_mut(number) {
                            Some(place) => *place = found,
                            None => known_facts.push(found),
                        }
                        found.1
                    }
                };
                facts.is_fused = fuses && facts.flow == Flow::Conditional;
                fuses = facts.fuses;
                facts
            }));
            self.ranges.push(start..self.facts.len() as u32);
        }
        self.ranges.get(place).cloned().unwrap_or_default()
    }
}

/// An address by how it is formed and by how often its registers were written before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Address {
    form: Form,
    written: [u32; 2],
}

/// General registers: only these form addresses, apart from gathers.
const GENERAL: usize = 16;

/// How often each register was written.
#[derive(Debug, Clone)]
struct Versions([u32; GENERAL]);

impl Default for Versions {
    fn default() -> Self {
        Self([0; GENERAL])
    }
}

impl Versions {
    fn of(&self, facts: &Facts) -> Address {
        let version = |register: Locations| {
            let place = register.iter().next();
            place.and_then(|place| self.0.get(place)).copied().unwrap_or_default()
        };
        Address { form: facts.form, written: [facts.base, facts.index].map(version) }
    }

    fn write(&mut self, facts: &Facts) {
        if facts.steps_stack {
            return;
        }
        facts.writes().each(|place| {
            if let Some(written) = self.0.get_mut(place) {
                *written += 1;
            }
        });
    }
}

/// Which data the window has met.
#[derive(Debug, Clone, Default)]
struct Data {
    lines: Table,
    /// For each of `lines`, whether it was stored to.
    is_dirty: Vec<bool>,
    /// Words that were stored to.
    words: Table,
    /// For each of `words`, the address of the last store.
    stores: Vec<Address>,
    /// Line of the last store.
    last_store: Option<u32>,
    /// Static instructions that made accesses.
    sites: Table,
    /// For each of `sites`: last address, and the step to it.
    steps: Vec<(u64, u64)>,
}

impl Data {
    fn clear(&mut self) {
        self.lines.clear();
        self.is_dirty.clear();
        self.words.clear();
        self.stores.clear();
        self.last_store = None;
        self.sites.clear();
        self.steps.clear();
    }

    fn touch(
        &mut self,
        access: &Event,
        address: Address,
        counts: &mut Counts,
        firsts: &mut Vec<Event>,
    ) -> Touch {
        let (is_store, is_wide) = (access.kind.is_store(), access.size > 8);
        *match (is_store, is_wide) {
            (true, _) => &mut counts.stores,
            (false, true) => &mut counts.wide_loads,
            (false, false) => &mut counts.loads,
        } += 1;
        let site = self.sites.insert(access.index.into()) as usize;
        if site >= self.steps.len() {
            self.steps.push((access.value, 0));
        }
        let (mut step, mut new_step) = (0, 0);
        if let Some((last, last_step)) = self.steps.get_mut(site) {
            (step, new_step) = (*last_step, access.value.wrapping_sub(*last));
            (*last, *last_step) = (access.value, new_step);
        }
        let key = access.value >> 6;
        let line = self.lines.insert(key);
        let mut arrival = Arrival::Before;
        if line as usize >= self.is_dirty.len() {
            counts.lines += 1;
            let is_steady = step == new_step && (new_step as i64).unsigned_abs() < PREFETCHED && step != 0;
            let has = |offset: i64| self.lines.get(key.wrapping_add_signed(offset)).is_some();
            let is_near = is_steady || [-1, 1, -2].into_iter().any(has);
            counts.far += u32::from(!is_near);
            arrival = if is_near { Arrival::Near } else { Arrival::Far };
            self.is_dirty.push(false);
            firsts.push(*access);
        }
        let is_dirty = self.is_dirty.get_mut(line as usize);
        let dirties = is_store && is_dirty.is_some_and(|is_dirty| !std::mem::replace(is_dirty, true));
        if dirties {
            counts.lines -= 1;
            counts.stored_lines += 1;
        }
        let is_close = is_store && self.last_store.replace(line) == Some(line);
        let word = self.words.get(access.value >> 3).unwrap_or(NO_WORD);
        let stored = self.stores.get(word as usize);
        let is_renamed = stored.is_some_and(|stored| *stored == address && address.form != Form::default());
        Touch { line, word, arrival, is_store, is_renamed, is_close, is_wide, dirties }
    }

    /// Notes the last store of an instruction; returns the index of its word.
    fn store(&mut self, to: u64, address: Address) -> u32 {
        let word = self.words.insert(to >> 3);
        match self.stores.get_mut(word as usize) {
            Some(stored) => *stored = address,
            None => self.stores.push(address),
        }
        word
    }
}

#[cfg(test)]
mod tests {
    use locality_stream::NO_INSTRUCTION;

    use super::*;

    #[test]
    fn lines_are_counted_once_and_told_apart_by_whether_they_are_foreseen() {
        let (mut data, mut counts, mut firsts) = (Data::default(), Counts::default(), Vec::new());
        let mut touch = |kind, address| {
            let access = Event::access(kind, NO_INSTRUCTION, address, 8);
            let touch = data.touch(&access, Address::default(), &mut counts, &mut firsts);
            (touch.arrival, touch.dirties, counts)
        };
        assert_eq!(touch(Kind::LOAD, 0x10_0000).0, Arrival::Far);
        assert_eq!(touch(Kind::LOAD, 0x10_0008).0, Arrival::Before);
        // The neighbour was foreseen.
        assert_eq!(touch(Kind::LOAD, 0x10_0040).0, Arrival::Near);
        let (arrival, _, counts) = touch(Kind::LOAD, 0x90_0000);
        assert_eq!(
            (arrival, counts),
            (Arrival::Far, Counts { loads: 4, lines: 3, far: 2, ..Counts::default() })
        );
        // A line that is stored to, however often, goes back once; another one comes to be stored to.
        assert!(touch(Kind::STORE, 0x10_0000).1 && !touch(Kind::STORE, 0x10_0008).1);
        let (_, dirties, counts) = touch(Kind::STORE, 0x20_0000);
        assert!(dirties);
        assert_eq!((counts.loads, counts.stores, counts.lines, counts.stored_lines), (4, 3, 2, 2));
        assert_eq!(
            firsts.iter().map(|it| it.value).collect::<Vec<_>>(),
            [0x10_0000, 0x10_0040, 0x90_0000, 0x20_0000]
        );
    }
}
