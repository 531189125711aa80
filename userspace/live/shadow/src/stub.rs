//! Makes the stub of an instruction: load its input registers, run it, store its output registers.
//!
//! The memory operand is re-encoded to the address that the stub gets in RDI; RSP, which is ours,
//! is replaced by another register. Nothing of the target's is an address here.

use iced_x86::{
    CpuidFeature, Encoder, EncodingKind, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};

use crate::context::Places;
use crate::whitelist::Host;

/// General registers in the order in which they are taken for our own use: the low ones go with AH
/// and its like.
const FREE: [Register; 14] = [
    Register::RDI,
    Register::RSI,
    Register::RBX,
    Register::RCX,
    Register::RDX,
    Register::RAX,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// Registers of a stub, as sets of numbers.
#[derive(Debug, Default)]
struct Used {
    general: u32,
    general_written: u32,
    vectors: u32,
    vectors_written: u32,
    masks: u32,
    masks_written: u32,
    x87: bool,
}

/// The code of the stub, or `None` where the instruction cannot be re-encoded.
pub(crate) fn assemble(
    instruction: &Instruction,
    host: Host,
    places: &Places,
    factory: &mut InstructionInfoFactory,
) -> Option<Vec<u8>> {
    let mut copy = *instruction;
    copy.set_has_lock_prefix(false);
    copy.set_has_xacquire_prefix(false);
    copy.set_has_xrelease_prefix(false);
    copy.set_has_rep_prefix(false);
    copy.set_has_repne_prefix(false);
    copy.set_segment_prefix(Register::None);
    let has_memory = (0..copy.op_count()).any(|op| copy.op_kind(op) == OpKind::Memory);
    if has_memory {
        copy.set_memory_base(Register::None);
        copy.set_memory_index(Register::None);
        copy.set_memory_index_scale(1);
        copy.set_memory_displacement64(0);
        copy.set_memory_displ_size(8);
    }
    let mut used = registers(&copy, factory);
    let mut free = FREE.iter().copied().filter(|register| used.general & bit(*register) == 0);
    let operand = if has_memory { Some(free.next()?) } else { None };
    let stack = if used.general & bit(Register::RSP) == 0 { None } else { Some(free.next()?) };
    if let Some(operand) = operand {
        // RDI and its likes need no displacement; R12 and R13 are never reached, as few registers are in use.
        copy.set_memory_base(operand);
        copy.set_memory_displ_size(0);
    }
    if let Some(stack) = stack {
        for op in 0..copy.op_count() {
            if copy.op_kind(op) == OpKind::Register && copy.op_register(op).full_register() == Register::RSP {
                copy.set_op_register(op, sized(stack, copy.op_register(op).size())?);
            }
        }
    }
    let mut encoder = Encoder::new(64);
    encoder.encode(&copy, 0).ok()?;
    let encoded = encoder.take_buffer();

    let mut code = Code { bytes: Vec::with_capacity(192), places, host };
    if let Some(operand) = operand.filter(|operand| *operand != Register::RDI) {
        code.copy_rdi(operand.number());
    }
    let level = match copy.encoding() {
        EncodingKind::Legacy => Level::Xmm,
        EncodingKind::VEX => Level::Ymm,
        _ => Level::Zmm,
    };
    let mxcsr = computes(copy.mnemonic(), used.vectors | used.masks != 0);
    if used.x87 {
        code.fx(false);
    }
    code.vectors(used.vectors, level, false);
    code.masks(used.masks, false);
    if mxcsr {
        code.mxcsr(places.mxcsr(), false);
    }
    let keeps_flags = copy.rflags_read() | copy.rflags_modified() != 0 && !sets_all_flags(copy.mnemonic());
    if keeps_flags {
        code.push_flags();
    }
    // The stack pointer lives in its stand-in.
    used.general &= !bit(Register::RSP);
    let stack_written = used.general_written & bit(Register::RSP) != 0;
    used.general_written &= !bit(Register::RSP);
    code.general(used.general, false);
    if let Some(stack) = stack {
        code.one_general(stack.number(), 4, false);
    }
    code.bytes.extend_from_slice(&encoded);
    code.general(used.general_written, true);
    if let Some(stack) = stack.filter(|_| stack_written) {
        code.one_general(stack.number(), 4, true);
    }
    if copy.rflags_modified() != 0 {
        code.pop_flags();
    }
    code.vectors(used.vectors_written, level, true);
    code.masks(used.masks_written, true);
    if mxcsr {
        code.mxcsr(places.mxcsr(), true);
    }
    if mxcsr || used.x87 {
        code.mxcsr(places.host_mxcsr(), false);
    }
    if used.x87 {
        code.fx(true);
    }
    if level != Level::Xmm && used.vectors != 0 {
        code.bytes.extend_from_slice(&[0xc5, 0xf8, 0x77]); // vzeroupper
    }
    code.bytes.push(0xc3);
    Some(code.bytes)
}

fn bit(register: Register) -> u32 {
    1 << register.full_register().number()
}

/// The part of a 64-bit register that has `size` bytes.
fn sized(register: Register, size: usize) -> Option<Register> {
    let number = register.number() as u32;
    Some(match size {
        8 => Register::RAX + number,
        4 => Register::EAX + number,
        2 => Register::AX + number,
        // AL, CL, DL, BL, then AH … BH, then SPL on.
        1 if number < 4 => Register::AL + number,
        1 => Register::SPL + (number - 4),
        _ => return None,
    })
}

fn registers(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> Used {
    let mut used = Used { x87: uses_x87(instruction), ..Used::default() };
    for register in factory.info(instruction).used_registers() {
        let writes = matches!(
            register.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        let full = register.register().full_register();
        let (all, written) = if full.is_gpr() {
            (&mut used.general, &mut used.general_written)
        } else if full.is_vector_register() {
            (&mut used.vectors, &mut used.vectors_written)
        } else if full.is_k() {
            (&mut used.masks, &mut used.masks_written)
        } else {
            used.x87 |= full.is_mm() || full.is_st();
            continue;
        };
        let bit = 1 << full.number();
        *all |= bit;
        *written |= if writes { bit } else { 0 };
    }
    // A pair of masks is written by the one that is named and the next.
    if matches!(instruction.mnemonic(), Mnemonic::Vp2intersectd | Mnemonic::Vp2intersectq) {
        let pair = 3 << (instruction.op0_register().number() & !1);
        used.masks |= pair;
        used.masks_written |= pair;
    }
    used
}

pub(crate) fn uses_x87(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Fisttp | Mnemonic::Wait)
        || instruction.cpuid_features().iter().any(|feature| {
            matches!(
                feature,
                CpuidFeature::FPU | CpuidFeature::FPU287 | CpuidFeature::FPU387 | CpuidFeature::MMX
            )
        })
}

/// True when no earlier status flag outlives the instruction and none is read. Not the shifts: by
/// zero they change none.
fn sets_all_flags(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Add
            | Mnemonic::Sub
            | Mnemonic::Cmp
            | Mnemonic::And
            | Mnemonic::Or
            | Mnemonic::Xor
            | Mnemonic::Test
            | Mnemonic::Neg
            | Mnemonic::Comisd
            | Mnemonic::Comiss
            | Mnemonic::Ucomisd
            | Mnemonic::Ucomiss
            | Mnemonic::Vcomisd
            | Mnemonic::Vcomiss
            | Mnemonic::Vucomisd
            | Mnemonic::Vucomiss
            | Mnemonic::Ptest
            | Mnemonic::Vptest
    )
}

/// Beginnings of the names, less the `v`, of vector instructions that neither read nor write MXCSR.
const MOVERS: [&str; 31] = [
    "p",
    "mov",
    "andp",
    "andn",
    "orp",
    "xorp",
    "shuf",
    "unpck",
    "blend",
    "insert",
    "extract",
    "broadcast",
    "perm",
    "aes",
    "sha",
    "gf2p8",
    "lddqu",
    "zero",
    "mask",
    "expand",
    "compress",
    "align",
    "dbps",
    "test",
    "kand",
    "kmov",
    "kor",
    "kx",
    "kn",
    "kshift",
    "kunpck",
];

/// Whether it may round or raise floating-point flags; true in doubt. Conversions do so from memory
/// to general registers too.
fn computes(mnemonic: Mnemonic, uses_vectors: bool) -> bool {
    let name = format!("{mnemonic:?}").to_ascii_lowercase();
    let name = name.strip_prefix('v').unwrap_or(&name);
    (uses_vectors || name.starts_with("cvt")) && !MOVERS.iter().any(|mover| name.starts_with(mover))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Xmm,
    Ymm,
    Zmm,
}

/// Machine code being written. Fields of the context are absolute 32-bit addresses (SIB form without base).
struct Code<'a> {
    bytes: Vec<u8>,
    places: &'a Places,
    host: Host,
}

impl Code<'_> {
    /// ModRM and SIB of `[address]` with this register or opcode extension.
    fn absolute(&mut self, register: usize, address: u32) {
        self.bytes.extend_from_slice(&[(register as u8 & 7) << 3 | 4, 0x25]);
        self.bytes.extend_from_slice(&address.to_le_bytes());
    }

    /// mov register, rdi
    fn copy_rdi(&mut self, register: usize) {
        let register = register as u8;
        self.bytes.extend_from_slice(&[0x48 | register >> 3, 0x89, 0xf8 | register & 7]);
    }

    fn one_general(&mut self, register: usize, from: usize, store: bool) {
        self.bytes.extend_from_slice(&[0x48 | (register as u8 >> 3) << 2, if store { 0x89 } else { 0x8b }]);
        self.absolute(register, self.places.gpr(from));
    }

    fn general(&mut self, set: u32, store: bool) {
        for number in members(set) {
            self.one_general(number, number, store);
        }
    }

    fn vectors(&mut self, set: u32, level: Level, store: bool) {
        for number in members(set) {
            let n = number as u8;
            let opcode = if store { 0x11 } else { 0x10 };
            // What VEX writes clears the rest of the register.
            let wide = level == Level::Zmm || level == Level::Ymm && store && self.host.avx512;
            if wide {
                let p0 = (!n >> 3 & 1) << 7 | 0x60 | (!n >> 4 & 1) << 4 | 1;
                self.bytes.extend_from_slice(&[0x62, p0, 0x7c, 0x48, opcode]);
            } else if level == Level::Ymm {
                self.bytes.extend_from_slice(&[0xc4, (!n >> 3 & 1) << 7 | 0x61, 0x7c, opcode]);
            } else {
                self.bytes.extend_from_slice(&[0x40 | (n >> 3 & 1) << 2, 0x0f, opcode]);
            }
            self.absolute(number, self.places.vector(number));
        }
    }

    /// kmovq
    fn masks(&mut self, set: u32, store: bool) {
        for number in members(set) {
            self.bytes.extend_from_slice(&[0xc4, 0xe1, 0xf8, if store { 0x91 } else { 0x90 }]);
            self.absolute(number, self.places.mask(number));
        }
    }

    fn mxcsr(&mut self, address: u32, store: bool) {
        self.bytes.extend_from_slice(&[0x0f, 0xae]);
        self.absolute(if store { 3 } else { 2 }, address);
    }

    /// fxrstor64, or fxsave64 and fninit.
    fn fx(&mut self, store: bool) {
        self.bytes.extend_from_slice(&[0x48, 0x0f, 0xae]);
        self.absolute(usize::from(!store), self.places.fx());
        if store {
            self.bytes.extend_from_slice(&[0xdb, 0xe3]);
        }
    }

    /// push [flags]; popfq
    fn push_flags(&mut self) {
        self.bytes.push(0xff);
        self.absolute(6, self.places.flags());
        self.bytes.push(0x9d);
    }

    /// pushfq; pop [flags]
    fn pop_flags(&mut self) {
        self.bytes.extend_from_slice(&[0x9c, 0x8f]);
        self.absolute(0, self.places.flags());
    }
}

fn members(set: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |number| set >> number & 1 != 0)
}
