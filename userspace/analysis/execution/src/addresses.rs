//! Addresses that code forms, without the contents of registers and memory.
//!
//! Each register and word begins with a different arbitrary value. Copies, sums, shifts,
//! products and loads of stored values are computed. Thus walks have the strides of the code,
//! a word stored and loaded again has one address, and other loads bring arbitrary pointers.
//!
//! An access takes the windows' step, even against the
//! computed address: a loaded index is often the next index.
//!
//! Sources of error: arbitrary values are far apart, so a line shared by two pointers becomes two
//! lines; results of further instructions are arbitrary as well; every conditional move is made.

use std::collections::{HashMap, HashSet};

use iced_x86::{
    ConditionCode, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory,
    UsedRegister,
};
use locality_stream::{Event, Kind};

use crate::work;

/// Top of the stack at the beginning.
const STACK: u64 = 0x7ffd_0000_0000;
/// Base of thread-local data.
const SEGMENT: u64 = 0x7e00_0000_0000;

/// Accesses and written registers of an instruction, found once.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    instruction: Instruction,
    memory: Vec<(UsedMemory, bool, bool)>,
    writes: Vec<usize>,
    kinds: (Kind, Kind),
    seen: Option<AccessSeen>,
}

/// Steps and new lines of an access in windows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AccessSeen {
    /// The most frequent step between executions in bytes
    /// and the share of the step; only with a majority.
    pub stride: Option<(i64, f64)>,
    /// Lines touched first by the access in a window, per execution.
    pub lines: Option<f64>,
}

impl Known {
    pub fn of(
        instruction: &Instruction,
        seen: Option<AccessSeen>,
        factory: &mut InstructionInfoFactory,
    ) -> Self {
        use iced_x86::FlowControl::{Call, IndirectCall, Return};
        let memory = work::accesses(instruction, factory);
        let info = factory.info(instruction);
        let is_written = |used: &&UsedRegister| {
            !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
        };
        let mut writes: Vec<usize> = info
            .used_registers()
            .iter()
            .filter(is_written)
            .filter_map(|used| general(used.register()))
            .filter(|register| *register != RSP)
            .collect();
        writes.dedup();
        let kinds = match instruction.flow_control() {
            Call | IndirectCall => (Kind::LOAD, Kind::CALL),
            Return => (Kind::RETURN, Kind::STORE),
            _ => (Kind::LOAD, Kind::STORE),
        };
        Self { instruction: *instruction, memory, writes, kinds, seen }
    }
}

const RSP: usize = 4;
const RBP: usize = 5;

/// Number of the general register around a register.
fn general(register: Register) -> Option<usize> {
    register.is_gpr().then(|| register.full_register().number())
}

/// A pseudo-random value of a seed.
fn any(seed: u64) -> u64 {
    let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 32)
}

/// An arbitrary value fit for a pointer: in the lower half of the addresses, aligned.
fn pointer(seed: u64) -> u64 {
    any(seed) & 0x3fff_ffff_ffc0
}

/// A thread's registers and memory.
#[derive(Debug)]
pub(crate) struct Addresses {
    registers: [u64; 16],
    words: HashMap<u64, u64>,
    count: u64,
    /// Executions so far, by instruction seen in windows.
    last: HashMap<u32, Last>,
    /// Accessed addresses by computed address, if different.
    moved: HashMap<u64, u64>,
    /// Lines touched.
    lines: HashSet<u64>,
}

/// Executions of an access so far.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    /// Address of the last execution.
    accessed: u64,
    executed: u32,
    /// Executions with a new line.
    new: u32,
}

impl Addresses {
    pub fn new(seed: u64) -> Self {
        let mut registers = [0; 16];
        for (number, register) in registers.iter_mut().enumerate() {
            *register = pointer(seed.wrapping_mul(16).wrapping_add(number as u64));
        }
        (registers[RSP], registers[RBP]) = (STACK, STACK + 0x100);
        Self {
            registers,
            words: HashMap::new(),
            count: seed << 32,
            last: HashMap::new(),
            moved: HashMap::new(),
            lines: HashSet::new(),
        }
    }

    /// Executes an instruction and appends the accesses to `events` under `index`.
    pub fn step(&mut self, known: &Known, index: u32, events: &mut Vec<Event>) {
        let (mut loaded, mut stored) = (None, None);
        let address = |this: &mut Self, used: &UsedMemory| {
            let computed = this.address(used)?;
            let address = match known.seen {
                Some(seen) => this.stepped(index, seen, computed),
                None => this.moved.get(&computed).copied().unwrap_or(computed),
            };
            this.lines.insert(address >> 6);
            Some((address, used.memory_size().size().clamp(1, 64) as u16))
        };
        let mut accesses = Vec::new();
        for (used, loads, stores) in &known.memory {
            let Some((address, size)) = address(self, used) else { continue };
            if *loads {
                events.push(Event::access(known.kinds.0, index, address, size));
                loaded = Some((address, size));
            }
            if *stores {
                accesses.push(Event::access(known.kinds.1, index, address, size));
                stored = Some((address, size));
            }
        }
        events.append(&mut accesses);
        self.compute(known, loaded, stored);
    }

    /// Address of an access seen in windows.
    fn stepped(&mut self, index: u32, seen: AccessSeen, computed: u64) -> u64 {
        let chance = (any(self.count ^ computed ^ self.lines.len() as u64) % 1024) as f64 / 1024.0;
        let last = self.last.get(&index).copied().unwrap_or_default();
        let mut address = match (self.moved.get(&computed), seen.stride) {
            (Some(moved), _) => *moved,
            (None, Some((stride, share))) if last.executed > 0 && chance < share => {
                last.accessed.wrapping_add_signed(stride)
            }
            _ => computed,
        };
        let mut is_new = !self.lines.contains(&(address >> 6));
        // New lines rarer than in windows: the access goes to a new line.
        let wanted = seen.lines.unwrap_or(0.0) * (last.executed + 1) as f64;
        if !is_new && (last.new + 1) as f64 <= wanted {
            (address, is_new) = (pointer(any(computed) ^ self.count ^ self.lines.len() as u64), true);
        }
        if address != computed {
            self.moved.insert(computed, address);
        }
        let new = last.new + u32::from(is_new);
        self.last.insert(index, Last { accessed: address, executed: last.executed + 1, new });
        address
    }

    fn address(&self, used: &UsedMemory) -> Option<u64> {
        used.virtual_address(0, |register, _, _| match register {
            Register::FS | Register::GS => Some(SEGMENT),
            Register::None | Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
            Register::RIP => None,
            register => self.register(register),
        })
    }

    fn register(&self, register: Register) -> Option<u64> {
        let value = *self.registers.get(general(register)?)?;
        Some(match register.size() {
            4 => value & 0xffff_ffff,
            2 => value & 0xffff,
            1 => value & 0xff,
            _ => value,
        })
    }

    fn set(&mut self, register: Register, value: u64) {
        let Some(to) = general(register).and_then(|number| self.registers.get_mut(number)) else { return };
        *to = match register.size() {
            4 => value & 0xffff_ffff,
            2 => (*to & !0xffff) | (value & 0xffff),
            1 => (*to & !0xff) | (value & 0xff),
            _ => value,
        };
    }

    fn load(&self, (address, size): (u64, u16)) -> u64 {
        let value = self.words.get(&address).copied().unwrap_or_else(|| pointer(address ^ 0x5bd1_e995) + 8);
        match size {
            1 => (value >> 6) & 0xff,
            2 => (value >> 6) & 0xffff,
            4 => (value >> 6) & 0xffff_ffff,
            _ => value,
        }
    }

    fn next(&mut self) -> u64 {
        self.count += 1;
        pointer(self.count)
    }

    /// Value of an integer operand; `None` for the rest.
    fn operand(&self, instruction: &Instruction, operand: u32, loaded: Option<(u64, u16)>) -> Option<u64> {
        match instruction.op_kind(operand) {
            OpKind::Register => self.register(instruction.op_register(operand)),
            OpKind::Memory => loaded.map(|from| self.load(from)),
            _ => instruction.try_immediate(operand).ok(),
        }
    }

    fn compute(&mut self, known: &Known, loaded: Option<(u64, u16)>, stored: Option<(u64, u16)>) {
        let instruction = &known.instruction;
        let of = |operand: u32| self.operand(instruction, operand, loaded);
        let both = || Some((of(0)?, of(1)?));
        let value = match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movq | Mnemonic::Movd => of(1),
            Mnemonic::Movsx | Mnemonic::Movsxd => of(1).map(|value| match instruction.op_kind(1) {
                OpKind::Register if instruction.op_register(1).size() == 4 => value as i32 as u64,
                _ => value,
            }),
            Mnemonic::Lea => instruction.virtual_address(1, 0, |register, _, _| match register {
                Register::None => Some(0),
                register => self.register(register),
            }),
            Mnemonic::Add => both().map(|(a, b)| a.wrapping_add(b)),
            Mnemonic::Sub => both().map(|(a, b)| a.wrapping_sub(b)),
            Mnemonic::And => both().map(|(a, b)| a & b),
            Mnemonic::Or => both().map(|(a, b)| a | b),
            Mnemonic::Xor => both().map(|(a, b)| a ^ b),
            Mnemonic::Shl => both().map(|(a, b)| a.wrapping_shl(b as u32)),
            Mnemonic::Shr => both().map(|(a, b)| a.wrapping_shr(b as u32)),
            Mnemonic::Inc => of(0).map(|a| a.wrapping_add(1)),
            Mnemonic::Dec => of(0).map(|a| a.wrapping_sub(1)),
            Mnemonic::Imul if instruction.op_count() == 3 => of(1).and_then(|a| Some(a.wrapping_mul(of(2)?))),
            Mnemonic::Imul if instruction.op_count() == 2 => both().map(|(a, b)| a.wrapping_mul(b)),
            Mnemonic::Push => of(0),
            Mnemonic::Pop => loaded.map(|from| self.load(from)),
            // The condition of a move between two operands.
            _ if instruction.condition_code() != ConditionCode::None && instruction.op_count() == 2 => of(1),
            _ => None,
        };
        self.move_stack(instruction, loaded);
        let compares = matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test);
        if let Some((address, _)) = stored {
            let value = value.unwrap_or_else(|| self.next());
            self.words.insert(address, value);
        }
        let to = (instruction.op_count() > 0 && instruction.op_kind(0) == OpKind::Register)
            .then(|| instruction.op_register(0));
        match (value, to) {
            _ if compares || instruction.mnemonic() == Mnemonic::Push => {}
            (Some(value), Some(to)) => self.set(to, value),
            (Some(_), None) => {}
            (None, _) if instruction.mnemonic() == Mnemonic::Leave => {}
            (None, _) => {
                for number in &known.writes {
                    let value = self.next();
                    if let Some(register) = self.registers.get_mut(*number) {
                        *register = value;
                    }
                }
            }
        }
    }

    fn move_stack(&mut self, instruction: &Instruction, loaded: Option<(u64, u16)>) {
        let by: i64 = match instruction.mnemonic() {
            Mnemonic::Push | Mnemonic::Call => -8,
            Mnemonic::Pop | Mnemonic::Ret => 8,
            Mnemonic::Leave => {
                let value = loaded.map_or(STACK, |from| self.load(from));
                self.registers[RSP] = self.registers[RBP].wrapping_add(8);
                self.registers[RBP] = value;
                0
            }
            _ => 0,
        };
        self.registers[RSP] = self.registers[RSP].wrapping_add_signed(by);
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions};

    use super::*;

    fn run(code: &[u8], times: usize) -> Vec<(Kind, u64)> {
        let mut factory = InstructionInfoFactory::new();
        let known: Vec<Known> = Decoder::with_ip(64, code, 0x1000, DecoderOptions::NONE)
            .iter()
            .map(|it| Known::of(&it, None, &mut factory))
            .collect();
        let (mut addresses, mut events) = (Addresses::new(1), Vec::new());
        for _ in 0..times {
            known.iter().enumerate().for_each(|(at, it)| addresses.step(it, at as u32, &mut events));
        }
        events.iter().map(|event| (event.kind, event.value)).collect()
    }

    #[test]
    fn a_walk_has_its_stride() {
        // mov rax, [rbx]; add rbx, 24
        let found = run(&[0x48, 0x8b, 0x03, 0x48, 0x83, 0xc3, 0x18], 3);
        let first = found[0].1;
        assert_eq!(found, [0, 24, 48].map(|step| (Kind::LOAD, first + step)));
    }

    #[test]
    fn what_is_stored_is_loaded() {
        // push rbx; pop rax; mov [rsp+16], rax; mov rcx, [rsp+16]; mov rdx, [rcx]; mov rdx, [rbx]
        let code = [
            0x53, 0x58, 0x48, 0x89, 0x44, 0x24, 0x10, 0x48, 0x8b, 0x4c, 0x24, 0x10, 0x48, 0x8b, 0x11, 0x48,
            0x8b, 0x13,
        ];
        let found = run(&code, 1);
        assert_eq!(found[0].1, found[1].1);
        assert_eq!((found[0].0, found[1].0), (Kind::STORE, Kind::LOAD));
        assert_eq!(found[2].1, found[3].1);
        assert_eq!(found[4], found[5]);
    }

    #[test]
    fn a_chase_leads_elsewhere_each_time() {
        // mov rax, [rax]
        let found = run(&[0x48, 0x8b, 0x00], 50);
        let lines: std::collections::BTreeSet<u64> = found.iter().map(|(_, address)| address >> 6).collect();
        assert!(lines.len() > 45, "{}", lines.len());
    }
}
