//! Brute force: one machine at a time, one entry a byte, every instruction's times kept. Shares
//! nothing with the engine but the decoder of dependences and the setup.

use std::collections::{HashMap, HashSet};

use locality_stream::{By, Code, Dependences, Event, Flow, Instruction, Kind, LatencyClass, Locations, Top};

use crate::{BINS, Lane, Latency, Predict, Setup};

struct Executed {
    block: u32,
    place: usize,
    index: usize,
    loads: Vec<(u64, u16)>,
    stores: Vec<(u64, u16)>,
    /// Where the next block begins, of a block's last instruction.
    next: Option<u64>,
}

/// What the oracle says of a machine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub cycles: u64,
    pub instructions: u64,
    pub mispredicted: u64,
    /// Cycles and instructions by bin.
    pub bins: Vec<(u64, u64)>,
}

fn executed(code: &Code<'_>, events: &[Event]) -> Vec<Executed> {
    let mut all: Vec<Executed> = Vec::new();
    let mut from = 0;
    for event in events {
        if event.kind == Kind::BLOCK {
            let block = code.blocks[event.index as usize];
            let address = code.instructions[block.first as usize].address;
            if let Some(last) = all.last_mut() {
                last.next = Some(address);
            }
            from = all.len();
            all.extend((0..block.count as usize).map(|place| Executed {
                block: event.index,
                place,
                index: block.first as usize + place,
                loads: Vec::new(),
                stores: Vec::new(),
                next: None,
            }));
        } else if event.kind.is_access() {
            let one = all[from..].iter_mut().find(|one| one.index == event.index as usize).unwrap();
            let list = if event.kind.is_store() { &mut one.stores } else { &mut one.loads };
            list.push((event.value, event.size));
        }
    }
    all
}

fn latency(model: Latency, found: &Dependences, copies: bool) -> u64 {
    use LatencyClass as C;
    if model == Latency::Unit {
        return u64::from(!(copies && found.is_copy));
    }
    match found.latency {
        C::Nothing | C::Copy | C::Load | C::Store => 0,
        C::IntegerMultiply | C::Transfer | C::FpAdd => 3,
        C::VectorMultiply | C::FpOther | C::FpSum | C::Convert | C::FpMultiply | C::FpMultiplyAdd => 4,
        C::IntegerDivide => 14,
        C::FpDivide => 13,
        C::FpFunction => 60,
        C::Atomic => 18,
        _ => 1,
    }
}

/// Cycles of all instructions, one after the other.
pub(crate) fn serial(code: &Code<'_>, events: &[Event], setup: &Setup) -> u64 {
    let dependences = Dependences::of_all(code.instructions);
    let of = |one: &Executed| {
        let found = &dependences[one.index];
        let loads = found.memory.iter().any(|operand| operand.is_loaded);
        let ahead = if loads && setup.latency == Latency::Machine { 5 } else { 0 };
        ahead + latency(setup.latency, found, setup.view.copies)
    };
    executed(code, events).iter().map(of).sum()
}

/// Ordinary and early times of a location.
type Times = HashMap<usize, (u64, u64)>;

fn get(times: &Times, place: usize, early: bool) -> u64 {
    let (ordinary, before) = times.get(&place).copied().unwrap_or_default();
    if early && place < 18 { before } else { ordinary }
}

pub(crate) fn run(code: &Code<'_>, events: &[Event], setup: &Setup, lane: Lane) -> Found {
    let view = setup.view;
    let dependences = Dependences::of_all(code.instructions);
    let facts: Vec<Instruction> = code.classify();
    let (mut times, mut memory): (Times, HashMap<u64, u64>) = (HashMap::new(), HashMap::new());
    let mut retired: Vec<u64> = Vec::new();
    let mut starts: Vec<u64> = Vec::new();
    // The reduction whose result lies in a location, and those with a result that others took.
    let mut origins: HashMap<usize, (u32, usize)> = HashMap::new();
    let mut taken: HashSet<(u32, usize)> = HashSet::new();
    let (mut barrier, mut mispredicted, mut top) = (0, 0, 0_u8);
    let mut stepped: HashMap<(u32, usize), usize> = HashMap::new();
    let (mut written, mut used) = (HashMap::<usize, usize>::new(), HashMap::<usize, usize>::new());
    let (mut counters, mut history, mut targets) = (HashMap::<u64, i32>::new(), 0_u32, HashMap::new());
    for (number, one) in executed(code, events).iter().enumerate() {
        let (found, facts) = (&dependences[one.index], &facts[one.index]);
        let floor =
            lane.window.and_then(|window| number.checked_sub(window as usize)).map_or(0, |at| retired[at]);
        let mut start = floor.max(barrier);
        let loads = found.memory.iter().any(|operand| operand.is_loaded);
        let ahead = if loads && setup.latency == Latency::Machine { 5 } else { 0 };
        let cycles = ahead + latency(setup.latency, found, view.copies);
        let before = found.top.step(&mut top);
        let physical = |set: Locations| set.at_top(before);
        let is_pointer = view.stack && (found.stack != 0 || found.leaves);
        let mut data = physical(found.data);
        if view.copies {
            data = data.without(found.kept);
        }
        let mut addresses = found.addresses().with(found.hints);
        let (mut whole, mut merged) = (physical(found.whole), physical(found.merged));
        if is_pointer {
            if found.step.is_none() {
                data = data.without(Locations::STACK_POINTER);
            }
            if found.leaves {
                addresses = addresses.without(Locations::STACK_POINTER);
            }
            whole = whole.without(Locations::STACK_POINTER);
            merged = merged.without(Locations::STACK_POINTER);
        }
        let is_exchange = view.copies && found.exchange.is_some();
        let step = found.step.filter(|_| view.induction && !(view.stack && found.stack != 0) && !is_exchange);
        let is_step = step.is_some_and(|step| match step.by {
            By::Constant(_) => true,
            By::Register(by) => stepped.get(&(one.block, one.place)).is_some_and(|last| {
                let since = |map: &HashMap<usize, usize>, register: u8| {
                    map.get(&register.into()).is_some_and(|at| at > last)
                };
                !since(&written, by) && since(&used, step.register)
            }),
        });
        if step.is_some() {
            stepped.insert((one.block, one.place), number);
        }
        let early_data = view.induction
            && (found.is_comparison
                || matches!(facts.flow, Flow::Conditional | Flow::IndirectJump | Flow::IndirectCall));
        let reduced = found.reduces.iter().next().filter(|place| {
            view.reductions
                && !(view.stack && found.stack != 0)
                && !is_exchange
                && origins.get(place) == Some(&(one.block, one.place))
                && !taken.contains(&(one.block, one.place))
        });
        let waits = |place: &usize| reduced != Some(*place) || (is_step && step.is_some());
        for place in data.iter().filter(waits) {
            start = start.max(get(&times, place, is_step || early_data).saturating_sub(ahead));
        }
        for place in addresses.iter() {
            // A step by `lea` has its address among the data.
            if step.is_none() {
                start = start.max(get(&times, place, view.induction));
            }
        }
        for (address, size) in &one.loads {
            for byte in *address..address + u64::from(*size) {
                start = start.max(memory.get(&byte).copied().unwrap_or(0));
            }
        }
        let done = start + cycles;
        if is_step {
            let step = step.unwrap();
            let by = match step.by {
                By::Constant(_) => None,
                By::Register(by) => Some(usize::from(by)),
            };
            let register = usize::from(step.register);
            let pick = |early| get(&times, register, early).max(by.map_or(0, |by| get(&times, by, early)));
            let mut result = (pick(false).max(start) + cycles, pick(true));
            if reduced.is_some() {
                let others = by.map_or(0, |by| get(&times, by, false)).max(start) + cycles;
                result.0 = others.max(get(&times, register, false));
            }
            for place in whole.iter() {
                times.insert(place, result);
            }
        } else if is_exchange {
            let [one, other] = found.exchange.unwrap().map(|set| physical(set).iter().next().unwrap());
            let (a, b) = (times.get(&one).copied(), times.get(&other).copied());
            times.insert(one, b.unwrap_or_default());
            times.insert(other, a.unwrap_or_default());
        } else {
            for place in whole.iter() {
                let old = times.get(&place).copied().filter(|_| reduced == Some(place)).unwrap_or_default();
                times.insert(place, (done.max(old.0), done.max(old.1)));
            }
            for place in merged.iter() {
                let (ordinary, early) = times.get(&place).copied().unwrap_or_default();
                times.insert(place, (ordinary.max(done), early.max(done)));
            }
        }
        for (address, size) in &one.stores {
            for byte in *address..address + u64::from(*size) {
                memory.insert(byte, done);
            }
        }
        let own = (one.block, one.place);
        let is_single = |set: Locations| set.iter().count() == 1;
        let touches = found.memory.iter().any(|operand| operand.is_loaded || operand.is_stored);
        let is_move = view.copies && found.is_copy && !touches && is_single(data) && is_single(whole);
        if is_exchange {
            let [one, other] = found.exchange.unwrap().map(|set| physical(set).iter().next().unwrap());
            let (a, b) = (origins.remove(&one), origins.remove(&other));
            origins.extend(b.map(|b| (one, b)));
            origins.extend(a.map(|a| (other, a)));
        } else if is_move && merged.is_empty() && step.is_none() {
            let from = origins.get(&data.iter().next().unwrap()).copied();
            let to = whole.iter().next().unwrap();
            origins.remove(&to);
            origins.extend(from.map(|from| (to, from)));
        } else {
            for place in data.with(addresses).iter() {
                taken.extend(origins.get(&place).filter(|origin| **origin != own));
            }
            origins.retain(|place, _| !whole.with(merged).iter().any(|written| written == *place));
            let accumulator = found.reduces.iter().next().filter(|_| !(view.stack && found.stack != 0));
            if let Some(place) = accumulator {
                origins.insert(place, own);
                taken.remove(&own);
            }
        }
        for register in found.writes().iter().filter(|place| *place < 16) {
            written.insert(register, number);
        }
        let compared = if found.is_comparison { found.data } else { Locations::NONE };
        for register in found.addresses().with(found.hints).with(compared).iter().filter(|place| *place < 16)
        {
            used.insert(register, number);
        }
        starts.push(start);
        retired.push(retired.last().copied().unwrap_or(0).max(done));
        let predicted = matches!(facts.flow, Flow::Conditional | Flow::IndirectJump | Flow::IndirectCall);
        if let Some(next) = one.next.filter(|_| predicted) {
            let record = &code.instructions[one.index];
            let end = record.address + u64::from(record.length);
            let (taken, conditional) = (next != end, facts.flow == Flow::Conditional);
            let foreseen = match lane.predict {
                Predict::Perfect => true,
                Predict::None => false,
                // Branches of the random programs go back.
                Predict::Static => conditional && taken,
                Predict::Gshare(bits) if conditional => {
                    let at = (end ^ u64::from(history)) & ((1 << bits) - 1);
                    let counter = counters.entry(at).or_insert(1);
                    let foreseen = (*counter > 1) == taken;
                    *counter = (*counter + if taken { 1 } else { -1 }).clamp(0, 3);
                    history = history << 1 | u32::from(taken);
                    foreseen
                }
                Predict::Gshare(_) => targets.insert(end, next) == Some(next),
                Predict::Tage => unreachable!("not in the oracle"),
            };
            if !foreseen {
                barrier = barrier.max(done);
                mispredicted += 1;
            }
        }
    }
    let cycles = retired.last().copied().unwrap_or(0);
    let mut counts: HashMap<u64, u64> = HashMap::new();
    starts.iter().for_each(|start| *counts.entry(*start).or_default() += 1);
    let mut bins = vec![(0, 0); BINS];
    let last = cycles.max(starts.iter().max().map_or(0, |start| start + 1));
    for cycle in 0..last {
        let count = counts.get(&cycle).copied().unwrap_or(0);
        let bin = if count == 0 { 0 } else { count.ilog2() as usize + 1 };
        bins[bin].0 += 1;
        bins[bin].1 += count;
    }
    let _ = Top::Stays;
    Found { cycles, instructions: starts.len() as u64, mispredicted, bins }
}
