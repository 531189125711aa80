//! A decoded instruction as the machine runs it.

use iced_x86::{ConditionCode, Instruction, Register};

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Do {
    Nothing,
    /// The stub; no memory operand.
    Stub,
    /// The stub, whose operand is read, written, or both (first read).
    StubLoad,
    StubStore,
    StubModify,
    /// Register from memory, zero-extended.
    Load,
    /// Register from memory, sign-extended to `width` bytes.
    LoadSigned,
    /// Memory from a register.
    Store,
    /// Memory from `value`.
    StoreValue,
    /// Register from `source`'s low `size` bytes, zero-extended.
    Move,
    /// Register from `source`'s low `size` bytes, sign-extended to `width`.
    MoveSigned,
    /// Register from `value`.
    MoveValue,
    /// The address, cut to `width`.
    Address,
    /// Arithmetic on registers, `value` or memory.
    RegisterRegister(Arithmetic),
    RegisterValue(Arithmetic),
    RegisterMemory(Arithmetic),
    MemoryRegister(Arithmetic),
    MemoryValue(Arithmetic),
    /// Shift of a register by `value`, which is not 0.
    Shift(Shift),
    Increment,
    Decrement,
    MoveIf,
    SetIf,
    Push,
    PushValue,
    PushMemory,
    PushFlags,
    Pop,
    PopMemory,
    PopFlags,
    Leave,
    Enter,
    Call,
    CallRegister,
    CallMemory,
    Return,
    Jump,
    JumpRegister,
    JumpMemory,
    JumpIf,
    /// loop, loope, loopne, jrcxz and their 32-bit forms, by the instruction.
    Loop,
    /// Anything rare; `value` is the index of the iced instruction.
    Complex,
    /// Ends the window.
    End(crate::window::End),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Sub,
    And,
    Or,
    Xor,
    Cmp,
    Test,
}

impl Arithmetic {
    /// True when the result goes nowhere but into the flags.
    #[inline(always)]
    pub(crate) fn only_compares(self) -> bool {
        matches!(self, Arithmetic::Cmp | Arithmetic::Test)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shift {
    Left,
    Right,
    RightSigned,
}

/// Which segment's base is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Segment {
    None,
    Fs,
    Gs,
}

/// An effective address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) displacement: u64,
    /// Numbers of registers; [`crate::context::ZERO`] for none.
    pub(crate) base: u8,
    pub(crate) index: u8,
    /// The index is shifted left by this.
    pub(crate) shift: u8,
    pub(crate) segment: Segment,
    /// Computed in 32 bits.
    pub(crate) is_short: bool,
}

/// A decoded instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) ip: u64,
    /// Immediate, branch target, or index.
    pub(crate) value: u64,
    /// Address of the stub, or 0.
    pub(crate) stub: u64,
    pub(crate) place: Place,
    pub(crate) what: Do,
    pub(crate) condition: Condition,
    /// Bytes of the instruction.
    pub(crate) length: u8,
    /// Bytes of the memory operand or of the source.
    pub(crate) size: u16,
    /// Bytes of the destination register.
    pub(crate) width: u8,
    pub(crate) register: u8,
    pub(crate) source: u8,
    /// Most access events it makes at a time.
    pub(crate) events: u8,
}

impl Op {
    /// Address of the next instruction.
    #[inline(always)]
    pub(crate) fn next(&self) -> u64 {
        self.ip.wrapping_add(self.length.into())
    }
}

/// A condition of the flags, by the low four bits of its opcode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Condition(pub(crate) u8);

impl Condition {
    pub(crate) fn of(instruction: &Instruction) -> Condition {
        Condition(match instruction.condition_code() {
            ConditionCode::None | ConditionCode::o => 0,
            ConditionCode::no => 1,
            ConditionCode::b => 2,
            ConditionCode::ae => 3,
            ConditionCode::e => 4,
            ConditionCode::ne => 5,
            ConditionCode::be => 6,
            ConditionCode::a => 7,
            ConditionCode::s => 8,
            ConditionCode::ns => 9,
            ConditionCode::p => 10,
            ConditionCode::np => 11,
            ConditionCode::l => 12,
            ConditionCode::ge => 13,
            ConditionCode::le => 14,
            ConditionCode::g => 15,
        })
    }

    /// Whether it holds.
    #[inline(always)]
    pub(crate) fn holds(self, flags: u64) -> bool {
        let (cf, pf, zf) = (flags & 1 != 0, flags & 4 != 0, flags & 0x40 != 0);
        let (sf, of) = (flags & 0x80 != 0, flags & 0x800 != 0);
        let holds = match self.0 >> 1 {
            0 => of,
            1 => cf,
            2 => zf,
            3 => cf | zf,
            4 => sf,
            5 => pf,
            6 => sf != of,
            _ => zf | (sf != of),
        };
        holds != (self.0 & 1 != 0)
    }
}

/// Number of a general register whose low bytes are meant; `None` for AH, CH, DH, BH and others.
pub(crate) fn low_register(register: Register) -> Option<u8> {
    let is_high = matches!(register, Register::AH | Register::CH | Register::DH | Register::BH);
    (register.is_gpr() && !is_high).then(|| register.full_register().number() as u8)
}
