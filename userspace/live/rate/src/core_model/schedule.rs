//! The schedule: when each instruction of a window is
//! done, within all or a part of a machine's limits.

use locality_stream::Locations;

use super::facts::Latency;
use super::footprint::Memory;
use super::trace::{Arrival, NO_WORD, Step, Touch, Trace, Went};
use crate::core_limits::Machine;

/// Instructions from the oldest unfinished to the youngest that may start.
pub(super) const REORDER: usize = 320;
/// Cycles from a mispredicted branch to the next instruction.
pub(super) const MISPREDICTED: u32 = 16;
/// Cycles before the first bytes of a repeated string
/// instruction, and the instruction's accesses in a cycle.
const STRING: (u32, u32) = (30, 2);

/// Cycles of a repeated string instruction with so many accesses.
pub(super) fn string_cycles(accesses: usize) -> u32 {
    STRING.0 + accesses as u32 / STRING.1
}

/// Parts of a cycle, the resolution of bookings: a
/// unit that works 2.5 times a cycle is taken for 0.4.
const CYCLE: u32 = 1024;
/// Parts of a cycle's width per instruction.
const SLOT: u32 = 64;
/// Cycles booked ahead, a power of two.
const AHEAD: usize = 1024;

/// A kind of unit assigned cycle by cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Load,
    Store,
    Integer,
    Float,
    Divider,
}
/// Kinds of units.
const UNITS: usize = 5;

/// Limits of a schedule.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Instructions started in a cycle, in parts of [`SLOT`];
    /// `None`: unlimited, and taken branches end no cycle.
    pub width: Option<u32>,
    /// Whether the reorder window is finite.
    pub has_window: bool,
    /// Whether mispredicted branches cost cycles.
    pub mispredicts: bool,
    /// Whether an access waits for an address from a load.
    pub chases: bool,
    /// Latency without a cost.
    pub free: Option<Latency>,
    /// Cycles from an address to the value, in the first-level cache.
    pub load: u32,
    /// Cycles from an address to the value, for an address from a load.
    pub chased_load: u32,
    /// Cycles from a store's value to a load of the value.
    pub forward: u32,
    /// Cycles from a store's value to a load with a newly computed address.
    pub forward_anew: u32,
    /// Parts of a cycle for a store to the previous store's line.
    pub close_store: u32,
    /// Parts of a cycle for a load of more than 8 bytes.
    pub wide_load: u32,
    /// Parts of a cycle for each kind of unit, in the order of [`Unit`]; 0: unlimited units.
    pub units: [u32; UNITS],
}

impl Limits {
    /// All limits of a machine.
    pub fn of(machine: &Machine) -> Self {
        let parts = |in_a_cycle: f64| (f64::from(CYCLE) / in_a_cycle).round() as u32;
        let load = machine.load.round() as u32;
        Self {
            width: Some((machine.width * f64::from(SLOT)).round() as u32),
            has_window: true,
            mispredicts: true,
            chases: true,
            free: None,
            load,
            chased_load: load,
            forward: machine.forward.round() as u32,
            forward_anew: machine.forward_anew.round() as u32,
            close_store: parts(machine.close_stores),
            wide_load: parts(machine.wide_loads),
            units: [
                parts(machine.loads),
                parts(machine.stores),
                parts(machine.integers),
                parts(machine.floats),
                CYCLE,
            ],
        }
    }

    /// All limits, with a whole number of instructions in a cycle, and equal
    /// latencies of values from stores. For a schedule without assigned units.
    pub fn in_whole_slots(machine: &Machine) -> Self {
        let all = Self::of(machine);
        Self { width: Some(machine.width.round() as u32 * SLOT), forward_anew: all.forward, ..all }
    }

    /// Limits with unlimited units of one kind.
    fn without(mut self, unit: Unit) -> Self {
        if let Some(parts) = self.units.get_mut(unit as usize) {
            *parts = 0;
        }
        self
    }

    /// Dependences and the reorder window only.
    pub fn of_chains(self) -> Self {
        Self { width: None, mispredicts: false, close_store: 0, wide_load: 0, units: [0; UNITS], ..self }
    }

    pub fn without_loads(self) -> Self {
        Self { wide_load: 0, ..self.without(Unit::Load) }
    }

    pub fn without_stores(self) -> Self {
        Self { close_store: 0, ..self.without(Unit::Store) }
    }

    pub fn without_integers(self) -> Self {
        self.without(Unit::Integer)
    }

    pub fn without_floats(self) -> Self {
        self.without(Unit::Float)
    }

    pub fn without_divider(self) -> Self {
        self.without(Unit::Divider)
    }
}

/// One cycle of all units.
#[derive(Debug, Clone, Copy, Default)]
struct Booked {
    cycle: u32,
    /// Parts taken of each kind.
    taken: [u16; UNITS],
}

/// The present cycle, and the work in flight.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    limits: Limits,
    cycle: u32,
    /// Parts of this cycle's width in use.
    started: u32,
    /// Cycle of the last taken branch.
    jumped: Option<u32>,
    /// Cycle at which each location's value is ready.
    locations: [u32; Locations::PLACES],
    /// Completion of each of the last instructions and of all previous instructions.
    retired: [u32; REORDER],
    /// Place of the next instruction in `retired`.
    next: usize,
    /// Completion of all instructions so far.
    all_done: u32,
    /// Cycle at which each line arrives.
    arrivals: Vec<u32>,
    /// Cycle at which each stored word's value is ready.
    words: Vec<u32>,
    /// Cycle at which the last line so far arrives from beyond the first-level cache.
    bus: f64,
    /// A ring of cycles.
    booked: Vec<Booked>,
    /// For each kind of unit, the first cycle that may have room: earlier cycles are full or over.
    room: [u32; UNITS],
}

impl Schedule {
    pub fn new(limits: Limits) -> Self {
        Schedule {
            limits,
            cycle: 0,
            started: 0,
            jumped: None,
            locations: [0; Locations::PLACES],
            retired: [0; REORDER],
            next: 0,
            all_done: 0,
            arrivals: Vec::new(),
            words: Vec::new(),
            bus: 0.0,
            booked: Vec::new(),
            room: [0; UNITS],
        }
    }

    /// Begins anew, in the same memory.
    fn restart(&mut self, limits: Limits, trace: &Trace, books: bool) {
        self.limits = limits;
        (self.cycle, self.started, self.next, self.all_done) = (0, 0, 0, 0);
        self.jumped = None;
        self.locations = [0; Locations::PLACES];
        self.retired = [0; REORDER];
        self.room = [0; UNITS];
        self.bus = 0.0;
        self.arrivals.clear();
        self.arrivals.resize(trace.firsts.len(), 0);
        self.words.clear();
        self.words.resize(trace.words, 0);
        if books {
            self.booked.clear();
            self.booked.resize(AHEAD, Booked::default());
        }
    }

    /// Completion of a window, in cycles, with unlimited units. Lines come from `memory`.
    pub fn run(&mut self, trace: &Trace, limits: Limits, memory: Memory) -> u32 {
        self.restart(limits, trace, false);
        self.each::<false>(trace, |_| memory, |_| {});
        self.all_done.max(self.cycle)
    }

    /// As [`Schedule::run`], with units booked cycle by cycle. `memory`: source of a line,
    /// by index. `cycles` gets for each instruction in order how much later the instruction
    /// completes than the latest before, in cycles, waits for mispredictions included.
    pub fn replay(
        &mut self,
        trace: &Trace,
        limits: Limits,
        memory: impl Fn(u32) -> Memory,
        mut cycles: impl FnMut(u32),
    ) {
        self.restart(limits, trace, true);
        let mut end = 0;
        self.each::<true>(trace, memory, |at| {
            cycles(at.saturating_sub(end));
            end = end.max(at);
        });
    }

    /// Goes through all instructions. `BOOKS`: units are booked cycle by cycle, and lines come one
    /// after another. `done` gets the completion of each instruction, mispredictions included.
    fn each<const BOOKS: bool>(
        &mut self,
        trace: &Trace,
        memory: impl Fn(u32) -> Memory,
        mut done: impl FnMut(u32),
    ) {
        let mut rest = trace.touches.as_slice();
        let mut before = 0;
        for step in &trace.steps {
            let Some((touches, later)) = rest.split_at_checked((step.touches - before) as usize) else {
                break;
            };
            (rest, before) = (later, step.touches);
            done(self.step::<BOOKS>(trace, step, touches, &memory));
        }
    }

    /// The next instruction; returns the cycle of completion.
    #[inline(always)]
    fn step<const BOOKS: bool>(
        &mut self,
        trace: &Trace,
        step: &Step,
        touches: &[Touch],
        memory: &impl Fn(u32) -> Memory,
    ) -> u32 {
        let Some(facts) = trace.facts.get(step.facts as usize) else { return self.all_done };
        self.dispatch(if BOOKS && facts.is_fused { 0 } else { SLOT });
        self.wait(self.cycle + facts.holds);
        let is_chased = step.chases_base || step.chases_index;
        let bases = match self.limits.chases {
            true => facts.bases(),
            false => {
                let base = if step.chases_base { Locations::NONE } else { facts.base };
                let index = if step.chases_index { Locations::NONE } else { facts.index };
                base.with(index).with(facts.implicit)
            }
        };
        let addressed = self.ready(bases);
        let latency = if is_chased { self.limits.chased_load } else { self.limits.load };
        let mut loaded = 0;
        for touch in touches {
            let at = self.touch::<BOOKS>(touch, addressed, latency, memory);
            if !touch.is_store {
                loaded = loaded.max(at);
            }
        }
        let physical = |set: Locations| if facts.has_x87 { set.at_top(step.top) } else { set };
        if let Some([one, other]) = facts.exchange {
            return self.exchange(physical(one), physical(other));
        }
        let mut start = self.ready(physical(facts.reads)).max(loaded);
        if BOOKS {
            if facts.is_float {
                start = self.book(Unit::Float, start);
            } else if facts.takes_integer_unit() {
                start = self.book(Unit::Integer, start);
            }
            if facts.divides > 0 {
                start = self.book_for(Unit::Divider, start, facts.divides * self.parts(Unit::Divider));
            }
        }
        let string = if facts.is_string { string_cycles(touches.len()) } else { 0 };
        let is_free = self.limits.free == Some(facts.kind);
        let done = start + if is_free { 0 } else { facts.latency } + string;
        physical(facts.writes).each(|place| {
            if let Some(at) = self.locations.get_mut(place) {
                *at = done;
            }
        });
        physical(facts.merges).each(|place| {
            if let Some(at) = self.locations.get_mut(place) {
                *at = done.max(*at);
            }
        });
        let mut retires = done;
        if BOOKS {
            for touch in touches.iter().filter(|touch| touch.is_store) {
                let parts = if touch.is_close { self.limits.close_store } else { self.parts(Unit::Store) };
                retires = retires.max(self.book_for(Unit::Store, done, parts));
            }
            if touches.iter().any(|touch| touch.dirties || touch.is_new()) {
                retires = retires.max(self.bus as u32);
            }
        }
        self.retire(retires);
        if step.stored != NO_WORD
            && let Some(at) = self.words.get_mut(step.stored as usize)
        {
            *at = done;
        }
        match step.went {
            Went::Mispredicted if self.limits.mispredicts => {
                self.wait(done + MISPREDICTED);
                retires = retires.max(done + MISPREDICTED);
            }
            Went::Elsewhere if self.limits.width.is_some() => {
                // Starts an instruction in a cycle: fetched instructions fill the cycle up.
                if !BOOKS || self.jumped == Some(self.cycle) {
                    self.next_cycle();
                }
                self.jumped = Some(self.cycle);
            }
            _ => {}
        }
        retires
    }

    /// Exchanges two locations in no time; returns the cycle of completion.
    #[cold]
    fn exchange(&mut self, one: Locations, other: Locations) -> u32 {
        if let (Some(one), Some(other)) = (one.iter().next(), other.iter().next())
            && one.max(other) < self.locations.len()
        {
            self.locations.swap(one, other);
        }
        self.retire(self.cycle);
        self.cycle
    }

    /// Retires the next instruction, done at `at`, after all previous instructions.
    #[inline(always)]
    fn retire(&mut self, at: u32) {
        self.all_done = self.all_done.max(at);
        if let Some(retired) = self.retired.get_mut(self.next) {
            *retired = self.all_done;
        }
        self.next = if self.next + 1 == REORDER { 0 } else { self.next + 1 };
    }

    /// Time of an access's value, for an address known at `addressed`.
    #[inline(always)]
    fn touch<const BOOKS: bool>(
        &mut self,
        touch: &Touch,
        addressed: u32,
        latency: u32,
        memory: &impl Fn(u32) -> Memory,
    ) -> u32 {
        let mut started = addressed;
        if BOOKS && !touch.is_store {
            let parts = if touch.is_wide { self.limits.wide_load } else { self.parts(Unit::Load) };
            started = self.book_for(Unit::Load, addressed, parts);
        }
        let value = started + latency;
        if touch.is_new() {
            let memory = memory(touch.line);
            let mut arrives = value + if touch.arrival == Arrival::Near { memory.near } else { memory.far };
            if BOOKS {
                self.bus = self.bus.max(f64::from(started)) + memory.between;
                arrives = arrives.max(self.bus as u32);
            }
            if let Some(arrival) = self.arrivals.get_mut(touch.line as usize) {
                *arrival = arrives;
            }
        }
        if BOOKS && touch.dirties {
            let memory = memory(touch.line);
            self.bus += memory.stored - memory.between;
        }
        let arrival = self.arrivals.get(touch.line as usize).copied().unwrap_or_default();
        let stored = if touch.word == NO_WORD { None } else { self.words.get(touch.word as usize) };
        let forward = if touch.is_renamed { self.limits.forward } else { self.limits.forward_anew };
        value.max(arrival).max(stored.map_or(0, |at| at + forward))
    }

    fn parts(&self, unit: Unit) -> u32 {
        self.limits.units.get(unit as usize).copied().unwrap_or_default()
    }

    /// Start of a unit's work on operands ready at `from`.
    #[inline(always)]
    fn book(&mut self, unit: Unit, from: u32) -> u32 {
        self.book_for(unit, from, self.parts(unit))
    }

    /// Start of a unit's work for `parts` of a cycle, possibly across several cycles.
    #[inline(always)]
    fn book_for(&mut self, unit: Unit, from: u32, mut parts: u32) -> u32 {
        if parts == 0 {
            return from;
        }
        let kind = unit as usize;
        let Some(room) = self.room.get_mut(kind) else { return from };
        *room = (*room).max(self.cycle);
        let mut cycle = from.max(*room);
        let mut start = None;
        while let Some(booked) = self.booked.get_mut(cycle as usize & (AHEAD - 1)) {
            if booked.cycle < cycle {
                *booked = Booked { cycle, taken: [0; UNITS] };
            }
            // A cycle further ahead has the place: the room of `cycle` is not known.
            let Some(taken) = booked.taken.get_mut(kind).filter(|_| booked.cycle == cycle) else { break };
            let takes = parts.min(CYCLE.saturating_sub(u32::from(*taken)));
            if takes > 0 {
                start.get_or_insert(cycle);
                *taken += takes as u16;
                parts -= takes;
            }
            if u32::from(*taken) >= CYCLE && *room == cycle {
                *room += 1;
            }
            if parts == 0 {
                break;
            }
            cycle += 1;
        }
        start.unwrap_or(cycle)
    }

    /// Dispatches the next instruction, for `parts` of the width.
    fn dispatch(&mut self, parts: u32) {
        if let Some(width) = self.limits.width
            && self.started >= width
            && parts > 0
        {
            let over = self.started - width;
            self.next_cycle();
            self.started = over;
        }
        if self.limits.has_window {
            self.wait(self.retired.get(self.next).copied().unwrap_or(0));
        }
        self.started = self.started.saturating_add(parts);
    }

    fn next_cycle(&mut self) {
        self.wait(self.cycle + 1);
    }

    fn wait(&mut self, cycle: u32) {
        if cycle > self.cycle {
            (self.cycle, self.started) = (cycle, 0);
        }
    }

    /// Cycle at which all `locations` are ready.
    #[inline(always)]
    fn ready(&self, locations: Locations) -> u32 {
        let mut latest = self.cycle;
        locations.each(|place| latest = latest.max(self.locations.get(place).copied().unwrap_or_default()));
        latest
    }
}
