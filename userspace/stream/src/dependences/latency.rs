//! Classes of latency of instructions: a machine has a number for each class.

use iced_x86::{Mnemonic, OpKind, Register};

use super::Dependences;

/// Kinds of work with equal latency. Memory accesses come on top, except for the two kinds of pure
/// accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum LatencyClass {
    /// None: no-operations, hints, results that are constant whatever the operands are.
    #[default]
    Nothing,
    /// A value goes from register to register.
    Copy,
    /// A value goes from memory to a register.
    Load,
    /// A value goes from a register to memory, or from memory to memory.
    Store,
    /// Simple operations on integers.
    Integer,
    /// Multiplications, counts of bits and scans for bits, checksums.
    IntegerMultiply,
    /// Divisions.
    IntegerDivide,
    /// Simple operations on vectors, of integers or of bits; shuffles.
    VectorInteger,
    /// Multiplications of vectors of integers; steps of ciphers and hashes.
    VectorMultiply,
    /// Values that go between general and vector registers or masks.
    Transfer,
    /// Additions, subtractions and comparisons of floating point.
    FpAdd,
    /// Minimum, maximum, rounding and horizontal sums of floating point.
    FpOther,
    /// Multiplications of floating point.
    FpMultiply,
    /// Multiplications whose product is added to the destination.
    FpSum,
    /// Other multiplications with an addition: the destination is multiplied.
    FpMultiplyAdd,
    /// Divisions and square roots of floating point.
    FpDivide,
    /// Transcendental functions of x87.
    FpFunction,
    /// Conversions from, to and between floating point.
    Convert,
    /// Locked operations, and exchanges with memory.
    Atomic,
    /// String instructions.
    String,
    /// Jumps, conditional or not.
    Branch,
    /// Calls.
    Call,
    /// Returns.
    Return,
    /// System calls, and instructions that wait for all earlier instructions.
    System,
}

/// The mnemonic in lower case, of an instruction with VEX or EVEX prefix
/// the name of the equivalent older instruction: `addsd` for `Vaddsd`.
pub(super) fn name(mnemonic: Mnemonic) -> String {
    let name = format!("{mnemonic:?}").to_ascii_lowercase();
    let is_system = ["verr", "verw", "vmcall", "vmmcall", "vmread", "vmwrite"].contains(&name.as_str());
    if is_system { name } else { name.strip_prefix('v').unwrap_or(&name).to_owned() }
}

/// How an instruction combines operands with an accumulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Combines {
    /// Not in any order.
    No,
    /// Operands may change places.
    AnyOrder,
    /// As a difference: the first operand is the accumulator.
    First,
    /// As a sum with a product: the destination is the accumulator.
    Third,
}

/// Of an instruction with this [`name`].
pub(super) fn combines(name: &str) -> Combines {
    let is_float = |rest: &str| matches!(rest, "ss" | "sd" | "ps" | "pd");
    let is_vector = |rest: &str| matches!(rest, "b" | "w" | "d" | "q");
    if let Some(rest) = name.strip_prefix("fmadd231").or_else(|| name.strip_prefix("fnmadd231")) {
        return if is_float(rest) { Combines::Third } else { Combines::No };
    }
    for (known, kind) in [
        ("add", Combines::AnyOrder),
        ("mul", Combines::AnyOrder),
        ("min", Combines::AnyOrder),
        ("max", Combines::AnyOrder),
        ("and", Combines::AnyOrder),
        ("or", Combines::AnyOrder),
        ("xor", Combines::AnyOrder),
        ("sub", Combines::First),
    ] {
        if name.strip_prefix(known).is_some_and(is_float)
            || name.strip_prefix('p').and_then(|name| name.strip_prefix(known)).is_some_and(is_vector)
        {
            return kind;
        }
    }
    match name {
        "add" | "inc" | "imul" | "and" | "or" | "xor" | "pand" | "por" | "pxor" | "pmulld" | "pmullw"
        | "pmullq" | "pminsb" | "pminsw" | "pminsd" | "pminsq" | "pminub" | "pminuw" | "pminud"
        | "pminuq" | "pmaxsb" | "pmaxsw" | "pmaxsd" | "pmaxsq" | "pmaxub" | "pmaxuw" | "pmaxud"
        | "pmaxuq" => Combines::AnyOrder,
        "sub" | "dec" => Combines::First,
        _ => Combines::No,
    }
}

pub(super) fn of(decoded: &iced_x86::Instruction, found: &Dependences) -> LatencyClass {
    use iced_x86::FlowControl;
    match decoded.flow_control() {
        FlowControl::Next => {}
        FlowControl::Return => return LatencyClass::Return,
        FlowControl::Call if !decoded.is_call_near() && !decoded.is_call_far() => {
            return LatencyClass::System;
        }
        FlowControl::Call | FlowControl::IndirectCall => return LatencyClass::Call,
        FlowControl::Interrupt | FlowControl::Exception => return LatencyClass::System,
        _ => return LatencyClass::Branch,
    }
    let touches = found.memory.iter().any(|operand| operand.is_loaded || operand.is_stored);
    let name = name(decoded.mnemonic());
    let is_any = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let is_float =
        ["ps", "pd", "ss", "sd"].iter().any(|suffix| name.ends_with(suffix)) && !name.starts_with('p');
    let is_general = |operand: u32| {
        let register = decoded.op_register(operand);
        register.is_gpr() || register.is_k()
    };
    if found.is_constant && found.merged.without(found.whole).is_empty() {
        LatencyClass::Nothing
    } else if decoded.is_string_instruction() {
        LatencyClass::String
    } else if decoded.has_lock_prefix() || (decoded.mnemonic() == Mnemonic::Xchg && touches) {
        LatencyClass::Atomic
    } else if is_copy(decoded) && (touches || !changes_width(decoded.mnemonic())) {
        match (touches, found.memory.iter().any(|operand| operand.is_stored)) {
            (false, _) => LatencyClass::Copy,
            (true, false) => LatencyClass::Load,
            (true, true) => LatencyClass::Store,
        }
    } else if matches!(decoded.mnemonic(), Mnemonic::Div | Mnemonic::Idiv) {
        LatencyClass::IntegerDivide
    } else if (is_float && is_any(&["div", "sqrt"])) || is_any(&["fdiv", "fidiv", "fsqrt", "fprem"]) {
        LatencyClass::FpDivide
    } else if is_any(&["fsin", "fcos", "fptan", "fpatan", "fyl2x", "f2xm1", "fscale", "fxtract"]) {
        LatencyClass::FpFunction
    } else if is_any(&["cvt", "fild", "fist", "fbld", "fbstp"]) {
        LatencyClass::Convert
    } else if (is_float && is_any(&["add", "sub", "cmp"]))
        || is_any(&["ucomi", "comi", "fadd", "fsub", "fiadd", "fisub", "fcom", "fucom", "ficom", "ftst"])
    {
        LatencyClass::FpAdd
    } else if is_float && is_any(&["fm", "fnm"]) {
        if name.contains("231") { LatencyClass::FpSum } else { LatencyClass::FpMultiplyAdd }
    } else if (is_float && is_any(&["mul"])) || is_any(&["fmul", "fimul"]) {
        LatencyClass::FpMultiply
    } else if is_float && is_any(&["min", "max", "hadd", "hsub", "round", "rndscale", "rcp", "rsqrt", "dp"]) {
        LatencyClass::FpOther
    } else if is_any(&[
        "aes", "sha1", "sha256", "sha512", "pmul", "pmadd", "pclmul", "dpps", "dppd", "psadbw",
    ]) {
        LatencyClass::VectorMultiply
    } else if is_any(&["imul", "mul", "crc32", "popcnt", "pdep", "pext", "lzcnt", "tzcnt", "bsf", "bsr"]) {
        LatencyClass::IntegerMultiply
    } else if is_any(&["pmovmsk", "movmsk", "kmov", "pextr", "pinsr"])
        || (matches!(decoded.mnemonic(), Mnemonic::Movd | Mnemonic::Movq | Mnemonic::Vmovd | Mnemonic::Vmovq)
            && (is_general(0) || is_general(1)))
    {
        LatencyClass::Transfer
    } else if is_any(&[
        "nop",
        "endbr",
        "prefetch",
        "zeroupper",
        "zeroall",
        "clflush",
        "clwb",
        "emms",
        "pause",
    ]) {
        LatencyClass::Nothing
    } else if is_any(&[
        "cpuid", "lfence", "mfence", "sfence", "rdtsc", "xsave", "xrstor", "fxsave", "fxrstor",
    ]) {
        LatencyClass::System
    } else if uses_vectors(decoded) {
        LatencyClass::VectorInteger
    } else {
        LatencyClass::Integer
    }
}

fn uses_vectors(decoded: &iced_x86::Instruction) -> bool {
    let is_vector =
        |register: Register| register.is_vector_register() || register.is_mm() || register.is_st();
    (0..decoded.op_count()).any(|operand| is_vector(decoded.op_register(operand)))
}

/// Copies that are an operation between registers.
fn changes_width(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Mnemonic::Movzx | Mnemonic::Movsx | Mnemonic::Movsxd | Mnemonic::Xchg)
}

/// See [`Dependences::is_copy`].
pub(super) fn is_copy(decoded: &iced_x86::Instruction) -> bool {
    let is_memory = |operand| operand < decoded.op_count() && decoded.op_kind(operand) == OpKind::Memory;
    let touches = is_memory(0) || is_memory(1);
    let is_register =
        |operand: u32| operand < decoded.op_count() && decoded.op_kind(operand) == OpKind::Register;
    match decoded.mnemonic() {
        Mnemonic::Mov => {
            // Not the low bits of a register, segments, control registers.
            let plain = |operand: u32| {
                let register = decoded.op_register(operand);
                !is_register(operand) || register.is_gpr()
            };
            let merges =
                is_register(0) && (decoded.op_register(0).is_gpr8() || decoded.op_register(0).is_gpr16());
            plain(0) && plain(1) && (touches || !merges)
        }
        Mnemonic::Push
        | Mnemonic::Pop
        | Mnemonic::Movbe
        | Mnemonic::Movnti
        | Mnemonic::Movsxd
        | Mnemonic::Movsx
        | Mnemonic::Movzx => true,
        Mnemonic::Fld | Mnemonic::Fst | Mnemonic::Fstp | Mnemonic::Fxch => true,
        Mnemonic::Xchg => !touches,
        Mnemonic::Movaps
        | Mnemonic::Movapd
        | Mnemonic::Movups
        | Mnemonic::Movupd
        | Mnemonic::Movdqa
        | Mnemonic::Movdqu
        | Mnemonic::Vmovaps
        | Mnemonic::Vmovapd
        | Mnemonic::Vmovups
        | Mnemonic::Vmovupd
        | Mnemonic::Vmovdqa
        | Mnemonic::Vmovdqu
        | Mnemonic::Vmovdqa32
        | Mnemonic::Vmovdqa64
        | Mnemonic::Vmovdqu8
        | Mnemonic::Vmovdqu16
        | Mnemonic::Vmovdqu32
        | Mnemonic::Vmovdqu64 => decoded.op_mask() == Register::None,
        Mnemonic::Movq | Mnemonic::Vmovq | Mnemonic::Movd | Mnemonic::Vmovd => {
            touches || (0..2).all(|operand| !decoded.op_register(operand).is_gpr())
        }
        Mnemonic::Movss | Mnemonic::Movsd | Mnemonic::Vmovss | Mnemonic::Vmovsd => {
            touches && decoded.op_mask() == Register::None
        }
        Mnemonic::Movntdqa
        | Mnemonic::Movntdq
        | Mnemonic::Movntps
        | Mnemonic::Movntpd
        | Mnemonic::Movntq
        | Mnemonic::Vmovntdqa
        | Mnemonic::Vmovntdq
        | Mnemonic::Vmovntps
        | Mnemonic::Vmovntpd
        | Mnemonic::Lddqu
        | Mnemonic::Vlddqu
        | Mnemonic::Movddup
        | Mnemonic::Vmovddup => touches,
        _ => false,
    }
}
