//! The effect of one instruction on the knowledge of registers and slots.
//!
//! Only the instructions of compilers' address computations are followed; other results are
//! unknown.

use std::collections::HashMap;

use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};

use crate::clobber::{self, Registers};
use crate::flow::{Access, Binding, Flow, Holder, Passed, Where, block_address};
use crate::graph::Graph;
use crate::module::{Module, Slot};
use crate::state::{RSP, State, Stored, join};
use crate::value::{Base, BaseAt, Value, mix};

/// Registers that pass arguments: rdi, rsi, rdx, rcx, r8, r9.
pub(crate) const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];
/// Bytes of an object in the frame of which only the start is known.
const OBJECT_BYTES: i64 = 64;
/// Distance of a realigned frame from its former place: further than any frame is large.
const REALIGNED: i64 = -(1 << 40);
const RAX: usize = 0;
const RBP: usize = 5;

/// The transfer function, with its findings.
pub(crate) struct Transfer<'a> {
    module: &'a Module,
    bindings: Vec<Binding>,
    extents: Vec<(i64, i64)>,
    info: InstructionInfoFactory,
    /// Registers that directly called functions may change.
    changed: HashMap<u64, Registers>,
    pub(crate) flow: Flow,
}

impl<'a> Transfer<'a> {
    pub(crate) fn new(
        module: &'a Module,
        graph: &Graph,
        bindings: Vec<Binding>,
        extents: Vec<(i64, i64)>,
    ) -> Self {
        let calls =
            graph.instructions.iter().filter(|instruction| instruction.flow_control() == FlowControl::Call);
        let changed = clobber::of_targets(module, calls.map(Instruction::near_branch_target));
        Transfer {
            module,
            bindings,
            extents,
            info: InstructionInfoFactory::new(),
            changed,
            flow: Flow::default(),
        }
    }

    /// Runs over a block. With `record`, what is seen goes into the flow.
    pub(crate) fn block(&mut self, graph: &Graph, at: usize, state: &mut State, record: bool) {
        let Some(block) = graph.blocks.get(at) else { return };
        self.bind(state, block_address(graph, at), true, record);
        for index in block.instructions.clone() {
            let Some(instruction) = graph.instructions.get(index) else { continue };
            self.bind(state, instruction.ip(), false, record);
            if record {
                self.note_frame(state);
                let accesses = self.accesses(instruction, state);
                if let Some(list) = self.flow.accesses.get_mut(index) {
                    *list = accesses;
                }
                self.record_stores(instruction, state);
            }
            self.step(instruction, state, record, graph);
        }
    }

    /// Applies what the debug information says of registers: from this address on, or at the start
    /// of a block also what has begun before.
    fn bind(&mut self, state: &mut State, address: u64, covering: bool, record: bool) {
        let behind = self.bindings.partition_point(|binding| binding.start <= address);
        let first =
            if covering { 0 } else { self.bindings.partition_point(|binding| binding.start < address) };
        for at in first..behind {
            let Some(binding) = self.bindings.get(at).copied().filter(|binding| address < binding.end) else {
                continue;
            };
            let Some(value) = state.registers.get_mut(usize::from(binding.register)) else { continue };
            if value.base.is_none() && value.minus.is_none() && value.exact().is_none() {
                if let Some(base) = self.flow.bases.add(Base::Variable(binding.variable)) {
                    let signature = mix(&[21, binding.variable as u64]);
                    *value = Value { offset: binding.offset, ..Value::of(base, signature) };
                }
            } else if record && let (Some(base), None) = (value.base, value.minus) {
                let away = value.offset != binding.offset || value.modulus != 0;
                let holder = (away, address, Holder::Variable(binding.variable));
                self.flow.holders.entry(base).or_default().insert(holder);
            }
        }
    }

    fn step(&mut self, instruction: &Instruction, state: &mut State, record: bool, graph: &Graph) {
        let flow_control = instruction.flow_control();
        match flow_control {
            FlowControl::Call | FlowControl::IndirectCall => return self.call(instruction, state, record),
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch if record => {
                let target = instruction.near_branch_target();
                if flow_control == FlowControl::IndirectBranch || graph.instruction_at(target).is_none() {
                    self.note_call(instruction, state, 0);
                }
            }
            FlowControl::Return if record => {
                if let Some(value) =
                    state.registers.get(RAX).filter(|value| !self.flow.returned.contains(value))
                {
                    self.flow.returned.push(*value);
                }
            }
            _ => {}
        }
        match instruction.mnemonic() {
            Mnemonic::Push => {
                let value = self.operand(instruction, 0, state);
                let stack_pointer = self.register(Register::RSP, state).plus(Value::number(-8));
                self.set(Register::RSP, stack_pointer, state);
                self.store(stack_pointer, value, 8, state);
            }
            Mnemonic::Pop => {
                let stack_pointer = self.register(Register::RSP, state);
                let value = self.load(stack_pointer, 8, state);
                self.set(Register::RSP, stack_pointer.plus(Value::number(8)), state);
                self.result(instruction, value, state);
            }
            Mnemonic::Leave => {
                let frame = self.register(Register::RBP, state);
                let value = self.load(frame, 8, state);
                self.set(Register::RSP, frame.plus(Value::number(8)), state);
                self.set(Register::RBP, value, state);
            }
            Mnemonic::Xchg
                if instruction.op0_kind() == OpKind::Register
                    && instruction.op1_kind() == OpKind::Register =>
            {
                let (a, b) = (self.operand(instruction, 0, state), self.operand(instruction, 1, state));
                self.set(instruction.op0_register(), b, state);
                self.set(instruction.op1_register(), a, state);
            }
            Mnemonic::Cdqe => {}
            _ => match self.computed(instruction, state) {
                Some(value) => self.result(instruction, value, state),
                None => self.forget(instruction, state),
            },
        }
    }

    /// The value written to an instruction's first operand.
    fn computed(&mut self, instruction: &Instruction, state: &State) -> Option<Value> {
        let stack_pointer = self.register(Register::RSP, state);
        let realigns =
            instruction.op0_register() == Register::RSP && self.frame_offset(stack_pointer).is_some();
        let mut operand = |index| self.operand(instruction, index, state);
        Some(match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd => operand(1),
            Mnemonic::Lea => self.effective(instruction, state),
            Mnemonic::Add => operand(0).plus(operand(1)),
            Mnemonic::Sub => operand(0).minus(operand(1)),
            Mnemonic::Xor if is_zeroing(instruction) => Value::number(0),
            Mnemonic::Inc => operand(0).plus(Value::number(1)),
            Mnemonic::Dec => operand(0).plus(Value::number(-1)),
            Mnemonic::Neg => Value::number(0).minus(operand(0)),
            Mnemonic::Shl | Mnemonic::Sal => {
                let count = operand(1).exact().filter(|count| (0..63).contains(count))?;
                operand(0).times(1 << count)
            }
            Mnemonic::Imul if instruction.op_count() == 3 => operand(1).times(operand(2).exact()?),
            Mnemonic::Imul if instruction.op_count() == 2 => {
                let (a, b) = (operand(0), operand(1));
                match (a.exact(), b.exact()) {
                    (_, Some(b)) => a.times(b),
                    (Some(a), _) => b.times(a),
                    _ => return None,
                }
            }
            // A realigned frame is taken to lie far below its former place.
            Mnemonic::And if realigns => stack_pointer.plus(Value::number(REALIGNED)),
            // Rounding a pointer down leaves its object.
            Mnemonic::And if operand(0).base.is_some() && operand(1).exact().is_some_and(|mask| mask < 0) => {
                let signature = mix(&[22, instruction.ip()]);
                operand(0).blurred(signature)
            }
            mnemonic if is_conditional_move(mnemonic) => {
                let (kept, moved) = (operand(0), operand(1));
                join(kept, moved, (instruction.ip(), 0x4000_0000), &mut self.flow.bases)
            }
            _ => return None,
        })
    }

    /// Writes the first operand.
    fn result(&mut self, instruction: &Instruction, value: Value, state: &mut State) {
        match instruction.op0_kind() {
            OpKind::Register => self.set(instruction.op0_register(), value, state),
            OpKind::Memory => {
                let address = self.effective(instruction, state);
                self.store(address, value, instruction.memory_size().size() as u64, state);
            }
            _ => {}
        }
    }

    /// Everything that the instruction writes is unknown.
    fn forget(&mut self, instruction: &Instruction, state: &mut State) {
        let info = self.info.info(instruction);
        let written: Vec<Register> = info
            .used_registers()
            .iter()
            .filter(|used| !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None))
            .map(|used| used.register())
            .collect();
        for register in written {
            let full = register.full_register();
            if full.is_gpr64() {
                let signature = mix(&[23, instruction.ip(), full.number() as u64]);
                self.set(full, Value::unknown(signature), state);
            }
        }
        if instruction.op0_kind() == OpKind::Memory
            && instruction.mnemonic() != Mnemonic::Cmp
            && instruction.mnemonic() != Mnemonic::Test
        {
            let address = self.effective(instruction, state);
            let bytes = instruction.memory_size().size() as u64;
            self.store(address, Value::unknown(mix(&[24, instruction.ip()])), bytes, state);
        }
    }

    fn operand(&mut self, instruction: &Instruction, index: u32, state: &State) -> Value {
        match instruction.op_kind(index) {
            OpKind::Register => self.register(instruction.op_register(index), state),
            OpKind::Memory => {
                let address = self.effective(instruction, state);
                self.load(address, instruction.memory_size().size() as u64, state)
            }
            _ => instruction.try_immediate(index).map_or_else(
                |_| Value::unknown(mix(&[25, instruction.ip(), u64::from(index)])),
                |number| Value::number(number as i64),
            ),
        }
    }

    fn register(&self, register: Register, state: &State) -> Value {
        let full = register.full_register();
        let unknown = || Value::unknown(mix(&[26, register as u64]));
        if !full.is_gpr64() {
            return unknown();
        }
        let value = state.registers.get(full.number()).copied().unwrap_or_else(unknown);
        match register.size() {
            8 => value,
            // An int; half a pointer is none.
            4 if value.base.is_none() && value.minus.is_none() => value,
            size => Value::unknown(mix(&[27, value.signature, value.offset as u64, size as u64])),
        }
    }

    fn set(&mut self, register: Register, value: Value, state: &mut State) {
        let full = register.full_register();
        if !full.is_gpr64() {
            return;
        }
        let Some(place) = state.registers.get_mut(full.number()) else { return };
        *place = match (register.size(), value.exact()) {
            // Fixed programs load addresses as numbers.
            (4.., Some(number)) if self.module.fixed && self.module.holds_data(number as u64) => {
                match self.flow.bases.add(Base::Address(number as u64)) {
                    Some(base) => Value::of(base, mix(&[31, number as u64])),
                    None => value,
                }
            }
            (8, _) => value,
            (4, _) if value.base.is_none() && value.minus.is_none() => value,
            (size, _) => Value::unknown(mix(&[28, value.signature, value.offset as u64, size as u64])),
        };
    }

    /// The address of an instruction's memory operand.
    fn effective(&mut self, instruction: &Instruction, state: &State) -> Value {
        if instruction.is_ip_rel_memory_operand() {
            return self.address(instruction.ip_rel_memory_address());
        }
        let index = instruction.memory_index();
        let sum = self.sum(
            instruction.memory_base(),
            index,
            instruction.memory_index_scale(),
            state,
            instruction.ip(),
        );
        self.displaced(sum, instruction.memory_displacement64(), instruction.memory_segment())
    }

    fn address(&mut self, address: u64) -> Value {
        match self.flow.bases.add(Base::Address(address)) {
            Some(base) => Value::of(base, mix(&[31, address])),
            None => Value::unknown(mix(&[32, address])),
        }
    }

    fn sum(&self, base: Register, index: Register, scale: u32, state: &State, ip: u64) -> Value {
        let base = if base == Register::None { Value::number(0) } else { self.register(base, state) };
        match index {
            Register::None => base,
            index if index.is_gpr() => base.plus(self.register(index, state).times(i64::from(scale))),
            // A vector of indices.
            _ => base.plus(Value::unknown(mix(&[33, ip]))),
        }
    }

    fn displaced(&mut self, sum: Value, displacement: u64, segment: Register) -> Value {
        if matches!(segment, Register::FS | Register::GS) {
            let Some(thread) = self.flow.bases.add(Base::Thread) else { return sum };
            return sum.plus(Value::number(displacement as i64)).plus(Value::of(thread, mix(&[34])));
        }
        // `table(,%rax,8)` of fixed programs.
        if self.module.fixed
            && sum.base.is_none()
            && sum.minus.is_none()
            && self.module.holds_data(displacement)
        {
            return self.address(displacement).plus(sum);
        }
        sum.plus(Value::number(displacement as i64))
    }

    fn load(&mut self, address: Value, bytes: u64, state: &State) -> Value {
        let signature = mix(&[35, address.signature, address.offset as u64, bytes]);
        let (Some(base), None) = (address.base, address.minus) else { return Value::unknown(signature) };
        let kind = self.flow.bases.get(base);
        if kind == Some(Base::Frame)
            && address.modulus == 0
            && let Some(stored) = state.slots.get(&address.offset).filter(|stored| stored.bytes == bytes)
        {
            return stored.value;
        }
        if bytes != 8 {
            return Value::unknown(signature);
        }
        if let (Some(Base::Address(start)), 0) = (kind, address.modulus) {
            let at = start.wrapping_add_signed(address.offset);
            let named = Module::covering(&self.module.variables, at).is_some();
            match self.module.slot(at).filter(|_| !named) {
                Some(Slot::Address(target)) => return self.address(*target),
                Some(Slot::Symbol(_)) => {
                    let foreign = self.flow.bases.add(Base::Foreign(at));
                    return foreign.map_or(Value::unknown(signature), |base| Value::of(base, mix(&[36, at])));
                }
                None => {}
            }
        }
        // What the first word of the thread block holds is its own address.
        if kind == Some(Base::Thread) && address.offset == 0 && address.modulus == 0 {
            return Value::of(base, mix(&[34]));
        }
        let (base, offset, modulus) = place(base, address);
        match self.flow.bases.add(Base::Load(base, offset, modulus)) {
            Some(loaded) => Value::of(loaded, signature),
            None => Value::unknown(signature),
        }
    }

    fn store(&mut self, address: Value, value: Value, bytes: u64, state: &mut State) {
        if let Some(offset) = self.frame_offset(value) {
            state.escaped.insert(offset);
        }
        let Some(offset) = self.frame_offset(address) else { return };
        let end = offset.saturating_add(bytes as i64);
        state
            .slots
            .retain(|start, stored| *start >= end || start.saturating_add(stored.bytes as i64) <= offset);
        if matches!(bytes, 4 | 8) {
            state.slots.insert(offset, Stored { value, bytes });
        }
    }

    /// Distance from the canonical frame address, if it is known.
    fn frame_offset(&self, value: Value) -> Option<i64> {
        let base = value.base.filter(|_| value.minus.is_none() && value.modulus == 0)?;
        (self.flow.bases.get(base) == Some(Base::Frame)).then_some(value.offset)
    }

    fn call(&mut self, instruction: &Instruction, state: &mut State, record: bool) {
        if record {
            self.note_call(instruction, state, -8);
        }
        for number in ARGUMENTS {
            let value = state.registers.get(usize::from(number)).copied();
            state.escaped.extend(value.and_then(|value| self.frame_offset(value)));
        }
        let extents = &self.extents;
        state.forget_escaped(|start| {
            let around =
                extents.iter().find(|(from, size)| (*from..from.saturating_add(*size)).contains(&start));
            around.map_or(OBJECT_BYTES, |(from, size)| from.saturating_add(*size).saturating_sub(start))
        });
        let target = instruction.near_branch_target();
        for number in self.changed.get(&target).cloned().unwrap_or_else(clobber::all) {
            if let Some(register) = state.registers.get_mut(usize::from(number)) {
                *register = Value::unknown(mix(&[37, instruction.ip(), u64::from(number)]));
            }
        }
        if let (Some(base), Some(register)) =
            (self.flow.bases.add(Base::Call(instruction.ip())), state.registers.get_mut(RAX))
        {
            *register = Value::of(base, mix(&[38, instruction.ip()]));
        }
    }

    /// Notes what is passed. `pushed` is how far the stack pointer will be from here when the
    /// callee is entered.
    fn note_call(&mut self, instruction: &Instruction, state: &State, pushed: i64) {
        let direct = instruction.op0_kind() == OpKind::NearBranch64;
        let target = direct.then(|| instruction.near_branch_target());
        let mut passed = Passed { target, jumps: pushed == 0, ..Passed::default() };
        for number in ARGUMENTS {
            let value = state.registers.get(usize::from(number)).filter(|value| value.base.is_some());
            passed.registers.extend(value.map(|value| (number, *value)));
        }
        if let Some(top) = state.registers.get(RSP).and_then(|value| self.frame_offset(*value)) {
            // The callee's canonical frame address is 8 above its stack pointer.
            let frame = top.wrapping_add(pushed).wrapping_add(8);
            for (offset, stored) in state.slots.range(frame..frame.saturating_add(128)) {
                passed.stack.insert(offset - frame, stored.value);
            }
        }
        self.flow.calls.insert(instruction.ip(), passed);
    }

    /// Data accesses of an instruction; calls, returns and pushes of registers are none.
    fn accesses(&mut self, instruction: &Instruction, state: &State) -> Vec<Access> {
        let implicit = instruction.is_stack_instruction() || instruction.mnemonic() == Mnemonic::Leave;
        let repeated = instruction.is_string_instruction();
        let used: Vec<UsedMemory> = self.info.info(instruction).used_memory().to_vec();
        let mut found = Vec::new();
        for memory in used {
            let reads = matches!(
                memory.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            );
            let writes = matches!(
                memory.access(),
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            );
            if (implicit && memory.base() == Register::RSP)
                || instruction.mnemonic() == Mnemonic::Leave
                || !(reads || writes)
            {
                continue;
            }
            let mut address = if instruction.is_ip_rel_memory_operand() && memory.base() == Register::None {
                self.address(memory.displacement())
            } else {
                let sum = self.sum(memory.base(), memory.index(), memory.scale(), state, instruction.ip());
                self.displaced(sum, memory.displacement(), memory.segment())
            };
            if repeated {
                address.modulus = crate::value::gcd(address.modulus, instruction.memory_size().size() as u64);
                address.term = (0, 0);
            }
            found.push(Access { address, reads });
        }
        found
    }

    /// Notes where pointers go.
    fn record_stores(&mut self, instruction: &Instruction, state: &State) {
        if instruction.mnemonic() != Mnemonic::Mov
            || instruction.op0_kind() != OpKind::Memory
            || instruction.memory_size().size() != 8
        {
            return;
        }
        let (address, value) = (self.effective(instruction, state), self.operand(instruction, 1, state));
        let (Some(base), None) = (address.base, address.minus) else { return };
        let to: Where = place(base, address);
        let pointer = value.base.filter(|_| value.minus.is_none());
        if value.exact() != Some(0) {
            self.flow.stored.entry(to).or_default().insert(pointer);
        }
        if let Some(pointer) = pointer {
            let away = value.offset != 0 || value.modulus != 0;
            let holder = (away, instruction.ip(), Holder::Memory(to));
            self.flow.holders.entry(pointer).or_default().insert(holder);
        }
    }

    /// Notes how far rsp and rbp are from the canonical frame address. They move; the lowest place
    /// is the body's.
    fn note_frame(&mut self, state: &State) {
        for (number, lowest) in [(RSP, 0), (RBP, 1)] {
            let now = state.registers.get(number).and_then(|value| self.frame_offset(*value));
            if let (Some(now), Some(lowest)) = (now, self.flow.body.get_mut(lowest)) {
                *lowest = Some(lowest.map_or(now, |lowest| lowest.min(now)));
            }
        }
    }
}

/// An address as a place: offsets that differ by the modulus are one place.
fn place(base: BaseAt, address: Value) -> Where {
    let offset = match i64::try_from(address.modulus) {
        Ok(modulus @ 1..) => address.offset.rem_euclid(modulus),
        _ => address.offset,
    };
    (base, offset, address.modulus)
}

fn is_zeroing(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Register
        && instruction.op0_register() == instruction.op1_register()
}

fn is_conditional_move(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Cmova
            | M::Cmovae
            | M::Cmovb
            | M::Cmovbe
            | M::Cmove
            | M::Cmovg
            | M::Cmovge
            | M::Cmovl
            | M::Cmovle
            | M::Cmovne
            | M::Cmovno
            | M::Cmovnp
            | M::Cmovns
            | M::Cmovo
            | M::Cmovp
            | M::Cmovs
    )
}
