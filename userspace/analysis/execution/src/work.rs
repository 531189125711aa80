//! Operations of a block's instructions, by class, for the language and the roofline.
//!
//! Sources of error: an instruction belongs to one class, by
//! name; lanes of vectors follow from the register's width.

use std::collections::BTreeMap;

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, UsedMemory};

use crate::language::{CLASSES, Part};

/// Parts of a block but for calls.
pub fn parts(instructions: &[Instruction], factory: &mut InstructionInfoFactory) -> Vec<Part> {
    let mut computes: BTreeMap<(usize, u32), f64> = BTreeMap::new();
    let (mut loads, mut stores) = (BTreeMap::<u32, f64>::new(), BTreeMap::<u32, f64>::new());
    let mut system = false;
    for instruction in instructions {
        if let Some((class, lanes)) = class(instruction) {
            *computes.entry((class, lanes)).or_default() += 1.0;
        }
        system |= instruction.mnemonic() == Mnemonic::Syscall;
        for (used, is_loaded, is_stored) in accesses(instruction, factory) {
            let bytes = u32::try_from(used.memory_size().size()).unwrap_or(8).max(1);
            if is_loaded {
                *loads.entry(bytes).or_default() += 1.0;
            }
            if is_stored {
                *stores.entry(bytes).or_default() += 1.0;
            }
        }
    }
    let mut parts: Vec<Part> =
        computes.into_iter().map(|((class, lanes), count)| Part::Compute(class, lanes, count)).collect();
    parts.extend(loads.into_iter().map(|(bytes, count)| Part::Load(bytes, count)));
    parts.extend(stores.into_iter().map(|(bytes, count)| Part::Store(bytes, count)));
    parts.extend(system.then_some(Part::System));
    parts
}

/// Memory operands of an instruction, and whether each is loaded and stored.
pub(crate) fn accesses(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
) -> Vec<(UsedMemory, bool, bool)> {
    // Operands of memory without an access.
    if matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop) {
        return Vec::new();
    }
    let access = |used: &UsedMemory| {
        use OpAccess::{CondRead, CondWrite, Read, ReadCondWrite, ReadWrite, Write};
        let loads = matches!(used.access(), Read | CondRead | ReadWrite | ReadCondWrite);
        let stores = matches!(used.access(), Write | CondWrite | ReadWrite | ReadCondWrite);
        (loads || stores).then_some((*used, loads, stores))
    };
    factory.info(instruction).used_memory().iter().filter_map(access).collect()
}

/// Class and lanes of an instruction.
fn class(instruction: &Instruction) -> Option<(usize, u32)> {
    let of = |name: &str| CLASSES.iter().position(|known| *known == name);
    let name = format!("{:?}", instruction.mnemonic()).to_ascii_lowercase();
    if instruction.flow_control() != FlowControl::Next {
        return Some((of("branch")?, 1));
    }
    let vector_bytes = (0..instruction.op_count())
        .filter(|operand| instruction.op_kind(*operand) == OpKind::Register)
        .map(|operand| instruction.op_register(operand))
        .filter(|register| register.is_vector_register())
        .map(iced_x86::Register::size)
        .max();
    if name.starts_with("nop") || name.starts_with("endbr") || name.starts_with("prefetch") {
        return Some((of("other")?, 1));
    }
    let plain = if vector_bytes.is_some() { name.trim_start_matches('v') } else { &name };
    if let Some(bytes) = vector_bytes {
        let (element, packed) = match plain.get(plain.len().saturating_sub(2)..)? {
            "ps" => (4, true),
            "pd" => (8, true),
            "ss" => (4, false),
            "sd" => (8, false),
            _ => (0, false),
        };
        let lanes = if packed { (bytes / element).max(1) as u32 } else { 1 };
        let float = if element == 4 { "fp32" } else { "fp64" };
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| plain.starts_with(prefix));
        return Some(match element {
            _ if plain.starts_with("mov") || plain.contains("broadcast") => (of("move")?, 1),
            4 | 8 if plain.contains("fmadd") || plain.contains("fmsub") || plain.contains("fnm") => {
                (of("fma")?, lanes)
            }
            4 | 8 if starts(&["div", "sqrt", "rcp", "rsqrt"]) => (of("fdiv")?, lanes),
            4 | 8 if !starts(&["and", "or", "xor", "unpck", "shuf", "perm", "blend"]) => (of(float)?, lanes),
            _ => (of("vint")?, 1),
        });
    }
    Some(match plain {
        "imul" | "mul" | "mulx" => (of("imul")?, 1),
        "idiv" | "div" => (of("idiv")?, 1),
        "push" | "pop" | "leave" => (of("move")?, 1),
        _ if plain.starts_with("mov") || plain.starts_with("cmov") => (of("move")?, 1),
        _ if plain.starts_with('f') => (of("fp64")?, 1),
        _ => (of("int")?, 1),
    })
}
