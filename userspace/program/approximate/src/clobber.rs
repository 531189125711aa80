//! Registers that a function may change: compilers that see a callee leave values in the
//! callee's unused registers, against the calling convention (gcc's `-fipa-ra`, on from `-O2`).
//!
//! An opaque function changes all registers that the convention allows.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, OpKind};

use crate::module::Module;

/// Registers that a call may change: rax, rcx, rdx, rsi, rdi, r8 to r11.
const CHANGED: [u8; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];
/// Deepest chain of calls that is looked at.
const DEEPEST: usize = 4;
/// Most instructions read of one function.
const MOST: usize = 4000;

/// Numbers of registers.
pub(crate) type Registers = BTreeSet<u8>;

/// Registers that each function may change, by entry address.
pub(crate) fn of_targets(module: &Module, targets: impl Iterator<Item = u64>) -> HashMap<u64, Registers> {
    targets.map(|target| (target, changed(module, target, DEEPEST))).collect()
}

/// Every register that the convention allows.
pub(crate) fn all() -> Registers {
    CHANGED.into()
}

fn changed(module: &Module, target: u64, depth: usize) -> Registers {
    let symbol = Module::covering(&module.functions, target).filter(|symbol| symbol.address == target);
    let (Some(symbol), Some(deeper)) = (symbol, depth.checked_sub(1)) else { return all() };
    let range = target..target.saturating_add(symbol.size);
    let mut info = InstructionInfoFactory::new();
    let mut found = Registers::from([0]);
    let decoder = Decoder::with_ip(64, module.code(&range), target, DecoderOptions::NONE);
    for (count, instruction) in decoder.into_iter().enumerate() {
        if instruction.is_invalid() || count > MOST {
            return all();
        }
        for used in info.info(&instruction).used_registers() {
            let full = used.register().full_register();
            let reads = matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::None);
            if full.is_gpr64() && !reads {
                found.insert(full.number() as u8);
            }
        }
        match leaves_to(&instruction, &range) {
            Leaves::No => {}
            Leaves::To(other) => found.extend(changed(module, other, deeper)),
            Leaves::Somewhere => return all(),
        }
    }
    found.retain(|register| CHANGED.contains(register));
    found
}

enum Leaves {
    No,
    To(u64),
    Somewhere,
}

fn leaves_to(instruction: &Instruction, range: &Range<u64>) -> Leaves {
    let target = instruction.near_branch_target();
    match instruction.flow_control() {
        FlowControl::Call if instruction.op0_kind() == OpKind::NearBranch64 && target != range.start => {
            Leaves::To(target)
        }
        FlowControl::Call if target == range.start => Leaves::No,
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch if range.contains(&target) => {
            Leaves::No
        }
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => Leaves::To(target),
        FlowControl::Next | FlowControl::Return | FlowControl::Exception => Leaves::No,
        _ => Leaves::Somewhere,
    }
}
