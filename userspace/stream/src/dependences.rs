//! Inputs and outputs of an instruction, from its bytes: the only decoder of dependences, used by
//! all schedules.
//!
//! A location is a general register, one of two groups of flags (the carry; overflow, sign, zero,
//! auxiliary and parity), the direction flag, an x87 or MMX register, the x87 condition codes, a
//! mask, a vector register. Parts of a register are the register, but a write to the low 8 or 16
//! bits of a general register, or to some flags of a group, is a merge: the value there is complete
//! when both the old one and the new one are, and the instruction does not wait for the old one.
//! Bytes of memory are locations too; addresses are the stream's.
//!
//! Registers and flags are iced-x86's; corrected are conditional writes (the old value is read),
//! pushes on the x87 stack (they write its new top), what the kernel reads and writes in a system
//! call, and `vzeroupper` (the values of the lower halves stay). Not locations: bases of segments,
//! the control words of floating point. Sources of error: an instruction that saves or restores a
//! whole state has what iced lists; a shift by `cl` may leave the flags as they were.

use std::fmt;

use iced_x86::{
    Code, Decoder, DecoderOptions, InstructionInfo, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register, RflagsBits, UsedRegister,
};

use crate::classify::{is_read, is_write};
use crate::code::InstructionRecord;

mod latency;

pub use latency::LatencyClass;

/// A set of locations.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Locations(u128);

/// First place of each kind in a set.
const X87: u32 = 24;
const MASKS: u32 = 32;
const VECTORS: u32 = 64;

impl Locations {
    /// No location.
    pub const NONE: Locations = Locations(0);
    /// The carry flag.
    pub const CARRY: Locations = Locations(1 << 16);
    /// The flags of overflow, sign, zero, auxiliary carry and parity.
    pub const FLAGS: Locations = Locations(1 << 17);
    /// The direction flag.
    pub const DIRECTION: Locations = Locations(1 << 18);
    /// The condition codes of x87.
    pub const X87_STATUS: Locations = Locations(1 << 19);
    /// The stack pointer.
    pub const STACK_POINTER: Locations = Locations(1 << 4);
    /// Places that a set may have: [`Locations::iter`] gives numbers below.
    pub const PLACES: usize = 96;

    /// A general register by its number in encodings, 0 to 15.
    pub fn general(number: u8) -> Locations {
        Locations(1 << (number & 15))
    }

    /// An x87 or MMX register, 0 to 7: in [`Dependences`] counted from the top before the
    /// instruction; after [`Locations::at_top`] the physical one.
    pub fn x87(number: u8) -> Locations {
        Locations(1 << (X87 + u32::from(number & 7)))
    }

    /// A mask register, 0 to 7.
    pub fn mask(number: u8) -> Locations {
        Locations(1 << (MASKS + u32::from(number & 7)))
    }

    /// A vector register, 0 to 31, whatever its width.
    pub fn vector(number: u8) -> Locations {
        Locations(1 << (VECTORS + u32::from(number & 31)))
    }

    /// The location of a register or part of a register; none for segment and system registers.
    pub fn of(register: Register) -> Locations {
        let full = register.full_register();
        let number = full.number() as u8;
        if full.is_gpr() {
            Self::general(number)
        } else if full.is_vector_register() {
            Self::vector(number)
        } else if full.is_k() {
            Self::mask(number)
        } else if full.is_st() || full.is_mm() {
            Self::x87(number)
        } else {
            Self::NONE
        }
    }

    /// All locations of both.
    #[must_use]
    pub fn with(self, other: Locations) -> Locations {
        Locations(self.0 | other.0)
    }

    /// The locations missing in the other set.
    #[must_use]
    pub fn without(self, other: Locations) -> Locations {
        Locations(self.0 & !other.0)
    }

    /// The locations of both.
    #[must_use]
    pub fn shared(self, other: Locations) -> Locations {
        Locations(self.0 & other.0)
    }

    /// Whether this set contains all locations of `other`.
    pub fn has(self, other: Locations) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether it has x87 or MMX registers, for which [`Locations::at_top`] matters.
    pub fn has_x87(self) -> bool {
        self.0 & (0xff << X87) != 0
    }

    /// With physical x87 registers, counted from this top until now.
    #[must_use]
    pub fn at_top(self, top: u8) -> Locations {
        let registers = (self.0 >> X87) as u8;
        let others = self.0 & !(0xff << X87);
        Locations(others | u128::from(registers.rotate_left(u32::from(top & 7))) << X87)
    }

    /// Calls with the number of each location: [`Locations::iter`] for loops that must be fast.
    #[inline(always)]
    pub fn each(self, mut visit: impl FnMut(usize)) {
        for (mut half, first) in [(self.0 as u64, 0), ((self.0 >> 64) as u64, 64)] {
            while half != 0 {
                visit(first + half.trailing_zeros() as usize);
                half &= half - 1;
            }
        }
    }

    /// Numbers of the locations, from the lowest on, each below [`Locations::PLACES`].
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut low = self.0 as u64;
        let mut high = (self.0 >> 64) as u64;
        std::iter::from_fn(move || {
            let (half, first) = if low != 0 { (&mut low, 0) } else { (&mut high, 64) };
            let place = half.trailing_zeros();
            *half &= half.wrapping_sub(1);
            (place < 64).then_some((first + place) as usize)
        })
    }
}

impl fmt::Debug for Locations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |place: usize| match place {
            0..16 => format!("r{place}"),
            16 => "carry".to_owned(),
            17 => "flags".to_owned(),
            18 => "direction".to_owned(),
            19 => "x87 status".to_owned(),
            24..32 => format!("st{}", place - 24),
            32..40 => format!("k{}", place - 32),
            _ => format!("v{}", place.saturating_sub(64)),
        };
        f.debug_set().entries(self.iter().map(name)).finish()
    }
}

/// How an instruction changes the top of the x87 stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Top {
    /// Not at all.
    #[default]
    Stays,
    /// By so many afterwards: -1 for a push, 1 for a pop. A push that depends on the value is taken
    /// to happen.
    Moves(i8),
    /// To 0 before the instruction: MMX instructions, and what sets the state anew.
    Resets,
}

impl Top {
    /// The top of an instruction's registers, for `top` before
    /// the instruction; changes `top` to the value after.
    pub fn step(self, top: &mut u8) -> u8 {
        if self == Top::Resets {
            *top = 0;
        }
        let before = *top;
        if let Top::Moves(by) = self {
            *top = top.wrapping_add_signed(by) & 7;
        }
        before
    }
}

/// What an induction step adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum By {
    /// A number.
    Constant(i64),
    /// A general register, added, subtracted or scaled.
    Register(u8),
}

/// A step `r ← r ± c` of a whole general register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// Number of the register.
    pub register: u8,
    /// What is added.
    pub by: By,
}

/// A memory operand, also an implicit one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MemoryOperand {
    /// Locations that form the operand's address.
    pub address: Locations,
    /// Whether it is read.
    pub is_loaded: bool,
    /// Whether it is written.
    pub is_stored: bool,
}

/// Memory operands that are distinguished.
const OPERANDS: usize = 2;

/// The dependences of one static instruction. A REP iteration is an execution of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dependences {
    /// Locations read as data, by what a processor waits for.
    pub data: Locations,
    /// Locations of `data` on which the result depends only for unchanged upper elements: a scalar
    /// conversion or root to a vector register. Values alone do not wait for these locations.
    pub kept: Locations,
    /// Memory operands; further ones are joined with the last.
    pub memory: [MemoryOperand; OPERANDS],
    /// Locations of an address without an access, as in a prefetch.
    pub hints: Locations,
    /// Locations written as a whole, conditional writes included (their old value is in `data`).
    pub whole: Locations,
    /// Locations written in part.
    pub merged: Locations,
    /// How the top of the x87 stack moves: [`Locations::at_top`] of what [`Top::step`] returns makes
    /// the sets physical.
    pub top: Top,
    /// Its induction step.
    pub step: Option<Step>,
    /// Bytes by which the instruction moves the stack pointer beside further
    /// effects: push, pop, call, return, and steps of the pointer by a constant.
    pub stack: i64,
    /// Whether the instruction only moves one value, perhaps widened.
    pub is_copy: bool,
    /// Whether the result is constant for all operands: `xor eax, eax`.
    pub is_constant: bool,
    /// Whether the instruction only compares operands: `cmp` and `test`.
    pub is_comparison: bool,
    /// Whether it makes the frame pointer the stack pointer: `leave`.
    pub leaves: bool,
    /// The register whose old value is combined with the remaining operands in any order: the
    /// accumulator of a sum, product, minimum, maximum or bit operation.
    pub reduces: Locations,
    /// Two locations that change places.
    pub exchange: Option<[Locations; 2]>,
    /// Class of its latency.
    pub latency: LatencyClass,
}

impl Dependences {
    /// Dependences of one instruction; none for undecodable bytes.
    pub fn of(record: &InstructionRecord) -> Dependences {
        Self::decode(record, &mut InstructionInfoFactory::new())
    }

    /// Those of many.
    pub fn of_all(records: &[InstructionRecord]) -> Vec<Dependences> {
        let mut factory = InstructionInfoFactory::new();
        records.iter().map(|record| Self::decode(record, &mut factory)).collect()
    }

    /// Locations that form the address of any memory operand.
    pub fn addresses(&self) -> Locations {
        self.memory.iter().fold(Locations::NONE, |all, operand| all.with(operand.address))
    }

    /// All locations written.
    pub fn writes(&self) -> Locations {
        self.whole.with(self.merged)
    }

    fn decode(record: &InstructionRecord, factory: &mut InstructionInfoFactory) -> Dependences {
        let decoded = Decoder::with_ip(64, record.code(), record.address, DecoderOptions::NONE).decode();
        if decoded.is_invalid() {
            return Dependences::default();
        }
        let mut found = Dependences::default();
        let mut count = 0_usize;
        let info = factory.info(&decoded);
        for used in info.used_memory() {
            let operand = MemoryOperand {
                address: Locations::of(used.base()).with(Locations::of(used.index())),
                is_loaded: is_read(used.access()),
                is_stored: is_write(used.access()),
            };
            if let Some(joined) = found.memory.get_mut(count.min(OPERANDS - 1)) {
                joined.address = joined.address.with(operand.address);
                joined.is_loaded |= operand.is_loaded;
                joined.is_stored |= operand.is_stored;
            }
            count += 1;
        }
        let all_read = registers(info, |used| is_read(used.access()));
        found.is_constant = is_constant(&decoded);
        // Without the explicit address, the remaining reads
        // are data. `lea` computes with the address.
        let mut bare = decoded;
        if decoded.mnemonic() != Mnemonic::Lea {
            bare.set_memory_base(Register::None);
            bare.set_memory_index(Register::None);
        }
        let info = factory.info(&bare);
        found.data = registers(info, |used| is_read(used.access()) || is_conditional(used.access()));
        if count == 0 {
            found.hints = all_read.without(found.data);
        }
        found.write_registers(info);
        found.flags(&decoded);
        found.x87(&decoded);
        found.correct(&decoded);
        found.kept = kept(&decoded).shared(found.data);
        if found.is_constant {
            found.data = Locations::NONE;
        }
        found.step = step(&decoded);
        // `pop rsp` loads the pointer.
        let is_loaded = decoded.mnemonic() == Mnemonic::Pop && decoded.op_register(0) == Register::RSP;
        found.stack = if is_loaded { 0 } else { i64::from(decoded.stack_pointer_increment()) };
        if let Some(Step { register: 4, by: By::Constant(by) }) = found.step {
            found.stack = by;
        }
        found.reduces = reduces(&decoded).shared(found.data).shared(found.whole);
        found.exchange = exchange(&decoded);
        found.is_comparison = matches!(decoded.mnemonic(), Mnemonic::Cmp | Mnemonic::Test);
        found.leaves = decoded.mnemonic() == Mnemonic::Leave;
        found.latency = latency::of(&decoded, &found);
        found.is_copy = latency::is_copy(&decoded);
        found
    }

    fn write_registers(&mut self, info: &InstructionInfo) {
        for used in info.used_registers().iter().filter(|used| is_write(used.access())) {
            let register = used.register();
            let location = Locations::of(register);
            if register.is_gpr8() || register.is_gpr16() {
                self.merged = self.merged.with(location);
            } else {
                self.whole = self.whole.with(location);
            }
        }
        self.merged = self.merged.without(self.whole);
    }

    fn flags(&mut self, decoded: &iced_x86::Instruction) {
        const OTHERS: u32 =
            RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;
        const CODES: u32 = RflagsBits::C0 | RflagsBits::C1 | RflagsBits::C2 | RflagsBits::C3;
        let (read, modified) = (decoded.rflags_read(), decoded.rflags_modified());
        // A count of 0 leaves the flags as they are.
        let may_stay = is_shift(decoded.mnemonic())
            && (0..decoded.op_count()).any(|operand| decoded.op_register(operand) == Register::CL);
        for (location, bits) in [
            (Locations::CARRY, RflagsBits::CF),
            (Locations::FLAGS, OTHERS),
            (Locations::DIRECTION, RflagsBits::DF),
            (Locations::X87_STATUS, CODES),
        ] {
            if read & bits != 0 {
                self.data = self.data.with(location);
            }
            // `fnstsw` is listed as modifying its source.
            if modified & bits == bits && !may_stay {
                self.whole = self.whole.with(location);
            } else if modified & bits != 0 {
                self.merged = self.merged.with(location);
            }
        }
        if matches!(decoded.mnemonic(), Mnemonic::Fnstsw | Mnemonic::Fstsw) {
            self.whole = self.whole.without(Locations::X87_STATUS);
        }
    }

    fn x87(&mut self, decoded: &iced_x86::Instruction) {
        let increment = decoded.fpu_stack_increment_info();
        let is_mmx = self.data.with(self.writes()).has_x87()
            && (0..decoded.op_count()).any(|operand| decoded.op_register(operand).is_mm());
        self.top = match (increment.writes_top(), increment.increment()) {
            _ if is_mmx => Top::Resets,
            (false, _) => Top::Stays,
            (true, 0) => Top::Resets,
            (true, by) => Top::Moves(by as i8),
        };
        // A push writes the new top, which is the register before the old one. Moving the top is no push.
        if self.top == Top::Moves(-1) && decoded.mnemonic() != Mnemonic::Fdecstp {
            self.whole = self.whole.with(Locations::x87(7));
        }
    }

    /// What iced lists otherwise.
    fn correct(&mut self, decoded: &iced_x86::Instruction) {
        match decoded.mnemonic() {
            Mnemonic::Vzeroupper => {
                (self.data, self.whole) = (Locations::NONE, Locations::NONE);
            }
            Mnemonic::Syscall => {
                // rax, rdi, rsi, rdx, r10, r8 and r9 go in, rax comes out.
                let read = [0, 7, 6, 2, 10, 8, 9].map(Locations::general);
                self.data = read.into_iter().fold(self.data, Locations::with);
                self.whole = self.whole.with(Locations::general(0));
                // Flags come back as they were.
                let flags = Locations::CARRY.with(Locations::FLAGS).with(Locations::DIRECTION);
                self.data = self.data.without(flags);
                self.whole = self.whole.without(flags);
                self.merged = self.merged.without(flags);
            }
            _ => {}
        }
    }
}

/// Locations of the registers with this use in an instruction.
fn registers(info: &InstructionInfo, is_used: impl Fn(&UsedRegister) -> bool) -> Locations {
    let used = info.used_registers().iter().filter(|used| is_used(used));
    used.fold(Locations::NONE, |all, used| all.with(Locations::of(used.register())))
}

/// Whether the old value may stay.
fn is_conditional(access: OpAccess) -> bool {
    matches!(access, OpAccess::CondWrite | OpAccess::ReadCondWrite)
}

fn is_shift(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Shl
            | Mnemonic::Sal
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Shld
            | Mnemonic::Shrd
    )
}

/// Zero idioms, and comparisons of a register with itself that set all bits or none.
fn is_constant(decoded: &iced_x86::Instruction) -> bool {
    let register = |operand| match operand < decoded.op_count() {
        true => decoded.op_register(operand),
        false => Register::None,
    };
    let (first, second) = match decoded.op_count() {
        2 => (register(0), register(1)),
        3 => (register(1), register(2)),
        _ => return false,
    };
    if first != second || first == Register::None {
        return false;
    }
    match decoded.mnemonic() {
        Mnemonic::Xor | Mnemonic::Sub => true,
        Mnemonic::Xorps
        | Mnemonic::Xorpd
        | Mnemonic::Vxorps
        | Mnemonic::Vxorpd
        | Mnemonic::Pxor
        | Mnemonic::Vpxor
        | Mnemonic::Vpxord
        | Mnemonic::Vpxorq
        | Mnemonic::Andnps
        | Mnemonic::Andnpd
        | Mnemonic::Vandnps
        | Mnemonic::Vandnpd
        | Mnemonic::Pandn
        | Mnemonic::Vpandn
        | Mnemonic::Psubb
        | Mnemonic::Psubw
        | Mnemonic::Psubd
        | Mnemonic::Psubq
        | Mnemonic::Vpsubb
        | Mnemonic::Vpsubw
        | Mnemonic::Vpsubd
        | Mnemonic::Vpsubq
        | Mnemonic::Pcmpeqb
        | Mnemonic::Pcmpeqw
        | Mnemonic::Pcmpeqd
        | Mnemonic::Pcmpeqq
        | Mnemonic::Pcmpgtb
        | Mnemonic::Pcmpgtw
        | Mnemonic::Pcmpgtd
        | Mnemonic::Pcmpgtq
        | Mnemonic::Vpcmpeqb
        | Mnemonic::Vpcmpeqw
        | Mnemonic::Vpcmpeqd
        | Mnemonic::Vpcmpeqq
        | Mnemonic::Vpcmpgtb
        | Mnemonic::Vpcmpgtw
        | Mnemonic::Vpcmpgtd
        | Mnemonic::Vpcmpgtq
        | Mnemonic::Kxorb
        | Mnemonic::Kxorw
        | Mnemonic::Kxord
        | Mnemonic::Kxorq => decoded.op_mask() == Register::None,
        _ => false,
    }
}

/// See [`Dependences::kept`].
fn kept(decoded: &iced_x86::Instruction) -> Locations {
    let operand = match decoded.mnemonic() {
        Mnemonic::Cvtsi2sd
        | Mnemonic::Cvtsi2ss
        | Mnemonic::Cvtsd2ss
        | Mnemonic::Cvtss2sd
        | Mnemonic::Sqrtsd
        | Mnemonic::Sqrtss
        | Mnemonic::Rcpss
        | Mnemonic::Rsqrtss
        | Mnemonic::Roundsd
        | Mnemonic::Roundss => 0,
        Mnemonic::Vcvtsi2sd
        | Mnemonic::Vcvtsi2ss
        | Mnemonic::Vcvtusi2sd
        | Mnemonic::Vcvtusi2ss
        | Mnemonic::Vcvtsd2ss
        | Mnemonic::Vcvtss2sd
        | Mnemonic::Vsqrtsd
        | Mnemonic::Vsqrtss
        | Mnemonic::Vrcpss
        | Mnemonic::Vrsqrtss
        | Mnemonic::Vroundsd
        | Mnemonic::Vroundss
        | Mnemonic::Vrndscalesd
        | Mnemonic::Vrndscaless
            if decoded.op_mask() == Register::None =>
        {
            1
        }
        _ => return Locations::NONE,
    };
    let register = Locations::of(decoded.op_register(operand));
    let source = (operand + 1 < decoded.op_count()).then(|| Locations::of(decoded.op_register(operand + 1)));
    register.without(source.unwrap_or_default())
}

/// See [`Dependences::step`].
fn step(decoded: &iced_x86::Instruction) -> Option<Step> {
    let number = |register: Register| {
        let is_whole = register.is_gpr32() || register.is_gpr64();
        is_whole.then(|| register.full_register().number() as u8)
    };
    if decoded.op_count() == 0 || decoded.op_kind(0) != OpKind::Register {
        return None;
    }
    let register = number(decoded.op_register(0))?;
    let by = match decoded.mnemonic() {
        Mnemonic::Inc => By::Constant(1),
        Mnemonic::Dec => By::Constant(-1),
        mnemonic @ (Mnemonic::Add | Mnemonic::Sub) => {
            if decoded.op_kind(1) == OpKind::Register {
                let by = number(decoded.op_register(1)).filter(|by| *by != register)?;
                By::Register(by)
            } else if decoded.op_kind(1) == OpKind::Memory {
                return None;
            } else {
                let by = match decoded.op_kind(1) {
                    OpKind::Immediate8to32 => i64::from(decoded.immediate8to32()),
                    OpKind::Immediate32 => i64::from(decoded.immediate32() as i32),
                    _ => decoded.immediate(1) as i64,
                };
                By::Constant(if mnemonic == Mnemonic::Add { by } else { by.wrapping_neg() })
            }
        }
        Mnemonic::Lea => {
            let (base, index) = (number(decoded.memory_base()), number(decoded.memory_index()));
            let displacement = decoded.memory_displacement64() as i64;
            match (base, index) {
                (Some(base), None) if base == register => By::Constant(displacement),
                (None, Some(index)) if index == register && decoded.memory_index_scale() == 1 => {
                    By::Constant(displacement)
                }
                (Some(base), Some(index)) if base == register && index != register => By::Register(index),
                (Some(base), Some(index))
                    if index == register && base != register && decoded.memory_index_scale() == 1 =>
                {
                    By::Register(base)
                }
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(Step { register, by })
}

/// See [`Dependences::reduces`].
fn reduces(decoded: &iced_x86::Instruction) -> Locations {
    let operand = |number| match number < decoded.op_count() {
        true if decoded.op_kind(number) == OpKind::Register => Locations::of(decoded.op_register(number)),
        true if decoded.op_kind(number) == OpKind::Memory => {
            Locations::of(decoded.memory_base()).with(Locations::of(decoded.memory_index()))
        }
        _ => Locations::NONE,
    };
    if decoded.op_mask() != Register::None || decoded.op_count() == 0 {
        return Locations::NONE;
    }
    let (own, first, second) = (operand(0), operand(1), operand(2));
    // A part of a register is no accumulator; a memory operand has none.
    let is_register = decoded.op_kind(0) == OpKind::Register;
    let register = if is_register { decoded.op_register(0) } else { Register::None };
    if own.is_empty() || register.is_gpr8() || register.is_gpr16() || !is_register {
        return Locations::NONE;
    }
    let name = latency::name(decoded.mnemonic());
    let others = match latency::combines(&name) {
        latency::Combines::No => return Locations::NONE,
        // The product is added to the first operand.
        latency::Combines::Third => first.with(second),
        _ if decoded.op_count() < 3 => first,
        // Of three operands, the first source is the accumulator, or either.
        _ if first == own => second,
        latency::Combines::AnyOrder if second == own => first,
        _ => return Locations::NONE,
    };
    if others.has(own) { Locations::NONE } else { own }
}

/// See [`Dependences::exchange`].
fn exchange(decoded: &iced_x86::Instruction) -> Option<[Locations; 2]> {
    let is_of_whole = match decoded.code() {
        Code::Xchg_r32_EAX | Code::Xchg_r64_RAX | Code::Xchg_rm32_r32 | Code::Xchg_rm64_r64 => true,
        _ => decoded.mnemonic() == Mnemonic::Fxch,
    };
    let [one, other] = [0, 1].map(|operand| match operand < decoded.op_count() {
        true if decoded.op_kind(operand) == OpKind::Register => Locations::of(decoded.op_register(operand)),
        _ => Locations::NONE,
    });
    (is_of_whole && !one.is_empty() && !other.is_empty() && one != other).then_some([one, other])
}

#[cfg(test)]
mod tests;
