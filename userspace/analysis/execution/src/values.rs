//! Symbolic values of registers and stack slots: forward execution of a function in reverse post-order.
//!
//! Values are forms over arguments (`arg0` …), results of calls (`ret@ADDRESS`), words
//! of memory, and loop variables (`ivHEADER_PLACE`: the value of a register or stack
//! slot whenever the header is reached). A value not followed has a separate name
//! (`vADDRESS_PLACE`; `phiADDRESS_PLACE` where ways with different values meet). A
//! loop variable is a place with the variable plus one step as value at every latch.
//!
//! Optimistic about aliases: a store to an unknown address changes no other place, a call changes
//! no stack slot. Windows must check the results. Arithmetic of less than 32 bits is not followed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use iced_x86::{
    ConditionCode, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use crate::code::{Function, Leave};
use crate::form::{Atom, Form, Op};
use crate::graph::Graph;

/// Registers in the order of the encoding.
pub(crate) const REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];
/// Registers of integer arguments, in order.
const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];
/// Registers changed by calls, but for the result.
const CHANGED_BY_CALLS: [usize; 8] = [1, 2, 6, 7, 8, 9, 10, 11];
const RSP: usize = 4;
/// Limit of stack slots followed.
const MOST_SLOTS: usize = 512;

/// Place of a value: a register, or a stack slot by
/// the distance from the stack pointer at the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    Register(usize),
    Slot(i64),
}

impl Place {
    fn word(self) -> String {
        match self {
            Place::Register(number) => REGISTERS.get(number).copied().unwrap_or("r").to_owned(),
            Place::Slot(at) if at < 0 => format!("m{}", at.unsigned_abs()),
            Place::Slot(at) => format!("p{at}"),
        }
    }
}

/// A loop variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    /// Name, `ivHEADER_PLACE`.
    pub name: Arc<str>,
    /// Number of the loop.
    pub of_loop: usize,
    /// Value at the loop's entry.
    pub start: Form,
    /// Increment of each iteration.
    pub step: Form,
}

/// The comparison of a conditional branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Test {
    /// Block ended by the branch.
    pub block: usize,
    /// Address of the comparing instruction.
    pub ip: u64,
    /// Left operand of the comparison, or the result of an instruction that only computes.
    pub left: Form,
    /// Right operand; 0 for an instruction that only computes.
    pub right: Form,
    /// When the branch is taken.
    pub condition: ConditionCode,
}

/// A call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Block of the call.
    pub block: usize,
    /// Address of the instruction.
    pub ip: u64,
    /// Target; `None`: an indirect call.
    pub target: Option<u64>,
    /// Constant address of the word with the target of an indirect call or jump.
    pub through: Option<u64>,
    /// Values of the six integer arguments.
    pub arguments: Vec<Form>,
}

/// Values computed by a function, as far as loops depend on the values.
#[derive(Debug, Clone, Default)]
pub struct Values {
    /// Loop variables.
    pub variables: Vec<Variable>,
    /// Comparisons, by block.
    pub tests: BTreeMap<usize, Test>,
    /// Calls and tail calls, by address.
    pub calls: Vec<Call>,
    /// Defining block of each name.
    pub defined: BTreeMap<Arc<str>, usize>,
    /// Address of each access, by instruction.
    pub addresses: BTreeMap<u64, Form>,
}

impl Values {
    /// A form with variables of loops replaced by the start and the iterations since
    /// (`itHEADER`), to cancel common terms. `headers`: the address of each loop's header.
    pub fn counted(&self, form: &Form, headers: &[u64]) -> Form {
        let with = |atom: &Atom| {
            let Atom::Name(name) = atom else { return None };
            let variable = self.variables.iter().find(|variable| variable.name == *name)?;
            let count = Form::name(format!("it{:x}", headers.get(variable.of_loop)?));
            variable.start.plus(&Form::op(Op::Times, variable.step.clone(), count)?, 1)
        };
        let mut form = form.clone();
        // A variable may start at an outer loop's variable.
        for _ in 0..8 {
            match form.replaced(&with) {
                Some(new) if new != form => form = new,
                _ => break,
            }
        }
        form
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Flags {
    ip: u64,
    left: Form,
    right: Form,
}

#[derive(Debug, Clone)]
struct State {
    registers: Vec<Form>,
    slots: BTreeMap<i64, Form>,
    flags: Option<Flags>,
}

impl State {
    fn entry() -> Self {
        let name = |number: usize| match ARGUMENTS.iter().position(|argument| *argument == number) {
            Some(argument) => format!("arg{argument}"),
            None if number == RSP => "sp".to_owned(),
            None => format!("in_{}", Place::Register(number).word()),
        };
        let registers = (0..REGISTERS.len()).map(|number| Form::name(name(number))).collect();
        Self { registers, slots: BTreeMap::new(), flags: None }
    }

    fn get(&self, place: Place) -> Form {
        match place {
            Place::Register(number) => self.registers.get(number).cloned().unwrap_or_default(),
            Place::Slot(at) => {
                self.slots.get(&at).cloned().unwrap_or_else(|| Form::name(format!("stk_{}", place.word())))
            }
        }
    }

    fn set(&mut self, place: Place, value: Form) {
        match place {
            Place::Register(number) => {
                if let Some(register) = self.registers.get_mut(number) {
                    *register = value;
                }
            }
            Place::Slot(at) => {
                if self.slots.len() < MOST_SLOTS || self.slots.contains_key(&at) {
                    self.slots.insert(at, value);
                }
            }
        }
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        (0..REGISTERS.len()).map(Place::Register).chain(self.slots.keys().map(|at| Place::Slot(*at)))
    }
}

/// Follows the values of a function.
pub fn follow(function: &Function, graph: &Graph) -> Values {
    let mut run = Run {
        function,
        graph,
        written: vec![BTreeSet::new(); function.blocks.len()],
        ends: vec![None; function.blocks.len()],
        values: Values::default(),
        factory: InstructionInfoFactory::new(),
    };
    // The first pass finds the places written by each block; the
    // second has variables for the places written in a loop.
    for _ in 0..2 {
        run.values = Values::default();
        run.ends = vec![None; function.blocks.len()];
        for block in graph.order.clone() {
            run.block(block);
        }
    }
    run.find_variables();
    run.values
}

struct Run<'a> {
    function: &'a Function,
    graph: &'a Graph,
    written: Vec<BTreeSet<Place>>,
    ends: Vec<Option<State>>,
    values: Values,
    factory: InstructionInfoFactory,
}

impl Run<'_> {
    /// The state at the start of a block, with the names of loop variables at a header.
    fn begin(&mut self, block: usize) -> State {
        let start = self.function.blocks[block].start;
        let header = self.graph.loops.iter().position(|found| found.header == block);
        let is_latch =
            |from: &usize| header.is_some_and(|number| self.graph.loops[number].latches.contains(from));
        let before: Vec<usize> = self.graph.before[block].iter().copied().filter(|b| !is_latch(b)).collect();
        let entry = State::entry();
        let at_entry = (block == self.function.first).then_some(&entry);
        let ends: Vec<&State> =
            at_entry.into_iter().chain(before.iter().filter_map(|from| self.ends[*from].as_ref())).collect();
        let mut state = match ends.split_first() {
            None => entry.clone(),
            Some((first, rest)) => {
                let mut met = (*first).clone();
                let mut defined = Vec::new();
                let name = |place: Place| -> Arc<str> { format!("phi{start:x}_{}", place.word()).into() };
                for place in first.places().collect::<Vec<_>>() {
                    let value = first.get(place);
                    if place != Place::Register(RSP) && rest.iter().any(|other| other.get(place) != value) {
                        defined.push(name(place));
                        met.set(place, Form::name(name(place)));
                    }
                }
                // A slot written on a part of the ways is unknown.
                for at in rest.iter().flat_map(|other| other.slots.keys()) {
                    if !first.slots.contains_key(at) {
                        defined.push(name(Place::Slot(*at)));
                        met.set(Place::Slot(*at), Form::name(name(Place::Slot(*at))));
                    }
                }
                met.flags = None;
                for name in defined {
                    self.values.defined.insert(name, block);
                }
                met
            }
        };
        if let Some(number) = header {
            let blocks = &self.graph.loops[number].blocks;
            let mut written: BTreeSet<Place> =
                blocks.iter().flat_map(|inside| self.written[*inside].iter().copied()).collect();
            written.remove(&Place::Register(RSP));
            for place in written {
                let name: Arc<str> = format!("iv{start:x}_{}", place.word()).into();
                self.values.defined.insert(name.clone(), block);
                state.set(place, Form::name(name));
            }
        }
        state
    }

    fn block(&mut self, block: usize) {
        let mut state = self.begin(block);
        for instruction in self.function.of(block) {
            self.step(block, &mut state, instruction);
        }
        if let (Leave::Branches, Some(last)) = (&self.function.blocks[block].leave, self.function.last(block))
            && let Some(Flags { ip, left, right }) = state.flags.clone()
        {
            let condition = last.condition_code();
            self.values.tests.insert(block, Test { block, ip, left, right, condition });
        }
        self.ends[block] = Some(state);
    }

    fn step(&mut self, block: usize, state: &mut State, instruction: &Instruction) {
        let ip = instruction.ip();
        if memory_operand(instruction).is_some() && instruction.mnemonic() != Mnemonic::Lea {
            let address = address(state, instruction);
            self.values.addresses.insert(ip, address.unwrap_or_else(|| Form::name(format!("v{ip:x}_at"))));
        }
        match instruction.flow_control() {
            FlowControl::Call | FlowControl::IndirectCall => {
                self.call(block, state, instruction);
                let name: Arc<str> = format!("ret@{ip:x}").into();
                self.values.defined.insert(name.clone(), block);
                self.write(block, state, Place::Register(0), Form::name(name));
                for number in CHANGED_BY_CALLS {
                    self.unknown(block, state, ip, Place::Register(number));
                }
                state.flags = None;
                return;
            }
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch => {
                if matches!(self.function.blocks[block].leave, Leave::TailCalls(_)) {
                    self.call(block, state, instruction);
                }
                return;
            }
            FlowControl::ConditionalBranch | FlowControl::Return => return,
            _ => {}
        }
        if self.known(block, state, instruction).is_some() {
            return;
        }
        let info = self.factory.info(instruction).clone();
        let writes = |access: OpAccess| {
            matches!(
                access,
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            )
        };
        for used in info.used_registers().iter().filter(|used| writes(used.access())) {
            if let Some(number) = general(used.register()) {
                self.unknown(block, state, ip, Place::Register(number));
            }
        }
        if info.used_memory().iter().any(|used| writes(used.access()))
            && let Some(slot) = address(state, instruction).and_then(|at| slot_of(&at))
        {
            self.unknown(block, state, ip, Place::Slot(slot));
        }
        if instruction.rflags_modified() != 0 {
            state.flags = None;
        }
    }

    fn call(&mut self, block: usize, state: &State, instruction: &Instruction) {
        let target = match instruction.flow_control() {
            FlowControl::Call | FlowControl::UnconditionalBranch => Some(instruction.near_branch_target()),
            _ => None,
        };
        let through = memory_operand(instruction).and_then(|_| address(state, instruction)?.as_number());
        let arguments = ARGUMENTS.iter().map(|number| state.get(Place::Register(*number))).collect();
        let through = through.map(|at| at as u64);
        self.values.calls.push(Call { block, ip: instruction.ip(), target, through, arguments });
    }

    fn write(&mut self, block: usize, state: &mut State, place: Place, value: Form) {
        self.written[block].insert(place);
        state.set(place, value);
    }

    fn unknown(&mut self, block: usize, state: &mut State, ip: u64, place: Place) {
        let name: Arc<str> = format!("v{ip:x}_{}", place.word()).into();
        self.values.defined.insert(name.clone(), block);
        self.write(block, state, place, Form::name(name));
    }

    /// Executes an instruction with a followed result; `None` for the rest.
    fn known(&mut self, block: usize, state: &mut State, instruction: &Instruction) -> Option<()> {
        use Mnemonic as M;
        let ip = instruction.ip();
        let bytes = operand_bytes(instruction);
        let wide = bytes >= 4;
        let get = |state: &State, operand: u32| value(state, instruction, operand);
        let is_same = |a: u32, b: u32| {
            instruction.op_kind(a) == OpKind::Register
                && instruction.op_kind(b) == OpKind::Register
                && instruction.op_register(a) == instruction.op_register(b)
        };
        let mut flags = None;
        let result = match instruction.mnemonic() {
            M::Nop | M::Endbr64 | M::Prefetcht0 => return Some(()),
            M::Cmp => {
                let (left, right) = (get(state, 0)?, get(state, 1)?);
                state.flags = Some(Flags { ip, left, right });
                return Some(());
            }
            M::Test => {
                let left = get(state, 0)?;
                state.flags = is_same(0, 1).then(|| Flags { ip, left, right: Form::default() });
                return Some(());
            }
            M::Mov if wide => get(state, 1)?,
            M::Movzx | M::Movsx | M::Movsxd if wide && operand_width(instruction, 1) >= 4 => get(state, 1)?,
            M::Movzx | M::Movsx if wide && instruction.op_kind(1) == OpKind::Memory => get(state, 1)?,
            M::Cdqe => state.get(Place::Register(0)),
            M::Lea if wide => address(state, instruction)?,
            M::Add if wide => get(state, 0)?.plus(&get(state, 1)?, 1)?,
            M::Sub if wide => {
                let (left, right) = (get(state, 0)?, get(state, 1)?);
                let result = left.plus(&right, -1)?;
                flags = Some(Flags { ip, left, right });
                result
            }
            M::Inc | M::Dec if wide => {
                let by = if instruction.mnemonic() == M::Inc { 1 } else { -1 };
                let result = get(state, 0)?.add(by)?;
                flags = Some(Flags { ip, left: result.clone(), right: Form::default() });
                result
            }
            M::Neg if wide => get(state, 0)?.scaled(-1)?,
            M::Imul if wide && instruction.op_count() == 2 => {
                Form::op(Op::Times, get(state, 0)?, get(state, 1)?)?
            }
            M::Imul if wide && instruction.op_count() == 3 => {
                Form::op(Op::Times, get(state, 1)?, get(state, 2)?)?
            }
            M::Shl if wide => {
                let by = get(state, 1)?.as_number().filter(|by| (0..62).contains(by))?;
                get(state, 0)?.scaled(1 << by)?
            }
            M::Shr | M::Sar if wide => {
                let by = get(state, 1)?.as_number().filter(|by| (0..62).contains(by))?;
                Form::op(Op::Floor, get(state, 0)?, Form::number(1 << by))?
            }
            M::Xor if is_same(0, 1) => Form::default(),
            M::And if wide => {
                let mask = get(state, 1)?;
                mask.as_number()?;
                let result = Form::op(Op::And, get(state, 0)?, mask)?;
                flags = Some(Flags { ip, left: result.clone(), right: Form::default() });
                result
            }
            M::Push => {
                let pushed = get(state, 0)?;
                let sp = state.get(Place::Register(RSP)).add(-8)?;
                if let Some(slot) = slot_of(&sp) {
                    self.write(block, state, Place::Slot(slot), pushed);
                }
                self.write(block, state, Place::Register(RSP), sp);
                return Some(());
            }
            M::Pop => {
                let sp = state.get(Place::Register(RSP));
                let popped = slot_of(&sp).map(|slot| state.get(Place::Slot(slot)));
                self.write(block, state, Place::Register(RSP), sp.add(8)?);
                let number = general(instruction.op_register(0))?;
                match popped {
                    Some(value) => self.write(block, state, Place::Register(number), value),
                    None => self.unknown(block, state, ip, Place::Register(number)),
                }
                return Some(());
            }
            _ => return None,
        };
        match instruction.op_kind(0) {
            OpKind::Memory => {
                if let Some(slot) = slot_of(&address(state, instruction)?) {
                    self.write(block, state, Place::Slot(slot), result.clone());
                }
            }
            OpKind::Register => {
                let number = general(instruction.op_register(0))?;
                // A form too deep to follow gets a name.
                if result.depth() > 4 {
                    self.unknown(block, state, ip, Place::Register(number));
                } else {
                    self.write(block, state, Place::Register(number), result.clone());
                }
            }
            _ => return None,
        }
        let computes = !matches!(instruction.mnemonic(), M::Mov | M::Lea | M::Movzx | M::Movsx | M::Movsxd);
        if instruction.rflags_modified() != 0 {
            state.flags = flags
                .or_else(|| computes.then(|| Flags { ip, left: result, right: Form::default() }))
                .filter(|_| computes);
        }
        Some(())
    }

    /// Finds the places with the variable plus one step as value at every latch.
    fn find_variables(&mut self) {
        for (number, found) in self.graph.loops.iter().enumerate() {
            let header = &self.function.blocks[found.header];
            let prefix = format!("iv{:x}_", header.start);
            let mut written: BTreeSet<Place> =
                found.blocks.iter().flat_map(|inside| self.written[*inside].iter().copied()).collect();
            written.remove(&Place::Register(RSP));
            for place in written {
                let name: Arc<str> = format!("{prefix}{}", place.word()).into();
                let variable = Form::name(name.clone());
                let mut step = None;
                let is_one = found.latches.iter().all(|latch| {
                    let Some(end) = self.ends[*latch].as_ref() else { return false };
                    let Some(difference) = end.get(place).plus(&variable, -1) else { return false };
                    let known = step.get_or_insert_with(|| difference.clone());
                    *known == difference
                });
                let Some(step) = step.filter(|step| is_one && self.is_invariant(step, number)) else {
                    continue;
                };
                let mut start: Option<Form> = None;
                let mut meets = false;
                for from in &self.graph.before[found.header] {
                    let Some(end) = self.ends[*from].as_ref().filter(|_| !found.latches.contains(from))
                    else {
                        continue;
                    };
                    let value = end.get(place);
                    meets |= start.as_ref().is_some_and(|known| *known != value);
                    start = Some(value);
                }
                if found.header == self.function.first {
                    let value = State::entry().get(place);
                    meets |= start.as_ref().is_some_and(|known| *known != value);
                    start = Some(value);
                }
                let unknown = || Form::name(format!("phi{:x}_{}", header.start, place.word()));
                let start = start.filter(|_| !meets).unwrap_or_else(unknown);
                self.values.variables.push(Variable { name, of_loop: number, start, step });
            }
        }
        self.resolve();
    }

    /// A place written in a loop without a change has the value from before the loop.
    fn resolve(&mut self) {
        let is_constant = |variable: &Variable| variable.step.as_number() == Some(0);
        let mut constants: BTreeMap<Arc<str>, Form> = BTreeMap::new();
        // Outer loops come first; an inner loop may start with a constant of an outer loop.
        for variable in self.values.variables.iter().filter(|variable| is_constant(variable)) {
            let start = with_constants(&variable.start, &constants);
            constants.insert(variable.name.clone(), start);
        }
        self.values.variables.retain(|variable| !is_constant(variable));
        let new = |form: &mut Form| *form = with_constants(form, &constants);
        for variable in &mut self.values.variables {
            new(&mut variable.start);
            new(&mut variable.step);
        }
        for test in self.values.tests.values_mut() {
            new(&mut test.left);
            new(&mut test.right);
        }
        self.values.calls.iter_mut().flat_map(|call| &mut call.arguments).for_each(new);
        self.values.addresses.values_mut().for_each(new);
    }

    fn is_invariant(&self, form: &Form, number: usize) -> bool {
        is_invariant(form, &self.graph.loops[number].blocks, &self.values)
    }
}

fn with_constants(form: &Form, constants: &BTreeMap<Arc<str>, Form>) -> Form {
    let with = |atom: &Atom| match atom {
        Atom::Name(name) => constants.get(name).cloned(),
        _ => None,
    };
    form.replaced(&with).unwrap_or_else(|| form.clone())
}

/// Whether a form has one value in every iteration of a loop, by the names in the form.
pub(crate) fn is_invariant(form: &Form, blocks: &[usize], values: &Values) -> bool {
    !form.any(|atom| match atom {
        Atom::Name(name) => values.defined.get(name).is_some_and(|block| blocks.binary_search(block).is_ok()),
        _ => false,
    })
}

/// Number of a general register, or of the general register around a part.
fn general(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

fn memory_operand(instruction: &Instruction) -> Option<u32> {
    (0..instruction.op_count()).find(|operand| instruction.op_kind(*operand) == OpKind::Memory)
}

/// Bytes of the first operand.
fn operand_bytes(instruction: &Instruction) -> usize {
    operand_width(instruction, 0)
}

fn operand_width(instruction: &Instruction, operand: u32) -> usize {
    match instruction.op_kind(operand) {
        OpKind::Register => instruction.op_register(operand).size(),
        OpKind::Memory => instruction.memory_size().size(),
        _ => 8,
    }
}

/// The address of the memory operand.
fn address(state: &State, instruction: &Instruction) -> Option<Form> {
    if matches!(instruction.segment_prefix(), Register::FS | Register::GS) {
        return None;
    }
    let displacement = instruction.memory_displacement64() as i64;
    let mut sum = Form::number(displacement);
    let base = instruction.memory_base();
    if base != Register::None && base != Register::RIP && base != Register::EIP {
        sum = sum.plus(&state.get(Place::Register(general(base)?)), 1)?;
    }
    let index = instruction.memory_index();
    if index != Register::None {
        let scale = i64::from(instruction.memory_index_scale());
        sum = sum.plus(&state.get(Place::Register(general(index)?)), scale)?;
    }
    Some(sum)
}

/// The stack slot at an address.
fn slot_of(address: &Form) -> Option<i64> {
    let rest = address.plus(&Form::name("sp"), -1)?;
    rest.as_number()
}

fn value(state: &State, instruction: &Instruction, operand: u32) -> Option<Form> {
    match instruction.op_kind(operand) {
        OpKind::Register => {
            let register = instruction.op_register(operand);
            let number = general(register)?;
            (register.size() >= 4).then(|| state.get(Place::Register(number)))
        }
        OpKind::Memory => {
            let at = address(state, instruction)?;
            let bytes = instruction.memory_size().size();
            match slot_of(&at) {
                Some(slot) if bytes >= 4 => Some(state.get(Place::Slot(slot))),
                Some(_) => None,
                None => at.load(u8::try_from(bytes).ok()?),
            }
        }
        _ => instruction.try_immediate(operand).ok().map(|value| Form::number(value as i64)),
    }
}
