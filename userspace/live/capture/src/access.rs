//! Accesses of the instruction-set package in the model's terms.

use locality_common::record::Registers as RawRegisters;
use locality_isa as isa;
use locality_model::AccessKind;

/// The model's word for a direction.
pub fn kind(kind: isa::AccessKind) -> AccessKind {
    match kind {
        isa::AccessKind::Load => AccessKind::Load,
        isa::AccessKind::Store => AccessKind::Store,
        isa::AccessKind::ReadWrite => AccessKind::ReadWrite,
    }
}

/// Registers after an access, as the instruction-set package wants them. Segment bases are not recorded.
pub fn registers(regs: &RawRegisters) -> isa::Registers {
    isa::registers_of!(regs, 0, 0)
}
