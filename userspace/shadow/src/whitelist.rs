//! Which instructions may be run natively, by CPUID feature and mnemonic. What is not listed ends the window.
//!
//! Of the features of vectors and the like everything is listed but what [`NEVER`] names; of the base set, in which
//! privileged and system instructions lie, only what [`BASE`] names. A feature counts only where this processor has it.
//! Control flow, stack and string instructions and what [`crate::decode`] emulates need not be here.

use std::arch::is_x86_feature_detected as host_has;

use iced_x86::{CpuidFeature as F, EncodingKind, Instruction, Mnemonic, Mnemonic as M};

/// What this processor has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Host {
    pub(crate) avx: bool,
    /// With the parts F, BW, DQ and VL, without which AVX-512 is left alone.
    pub(crate) avx512: bool,
}

impl Host {
    pub(crate) fn detect() -> Host {
        Host {
            avx: host_has!("avx"),
            avx512: host_has!("avx512f")
                && host_has!("avx512bw")
                && host_has!("avx512dq")
                && host_has!("avx512vl"),
        }
    }

    /// Whether instructions of this feature may be run.
    fn allows(self, feature: F) -> bool {
        match feature {
            F::INTEL8086
            | F::INTEL186
            | F::INTEL286
            | F::INTEL386
            | F::INTEL486
            | F::X64
            | F::CMOV
            | F::CX8
            | F::FPU
            | F::FPU287
            | F::FPU387
            | F::MMX
            | F::SSE
            | F::SSE2
            | F::FXSR
            | F::MULTIBYTENOP => true,
            F::CMPXCHG16B => host_has!("cmpxchg16b"),
            F::SSE3 => host_has!("sse3"),
            F::SSSE3 => host_has!("ssse3"),
            F::SSE4_1 => host_has!("sse4.1"),
            F::SSE4_2 => host_has!("sse4.2"),
            F::POPCNT => host_has!("popcnt"),
            F::LZCNT => host_has!("lzcnt"),
            F::BMI1 => host_has!("bmi1"),
            F::BMI2 => host_has!("bmi2"),
            F::ADX => host_has!("adx"),
            F::MOVBE => host_has!("movbe"),
            F::AES => host_has!("aes"),
            F::SHA => host_has!("sha"),
            F::PCLMULQDQ => host_has!("pclmulqdq"),
            F::GFNI => host_has!("gfni"),
            F::AVX => self.avx,
            F::AVX2 => host_has!("avx2"),
            F::FMA => host_has!("fma"),
            F::F16C => host_has!("f16c"),
            F::VAES => host_has!("vaes"),
            F::VPCLMULQDQ => host_has!("vpclmulqdq"),
            F::AVX_VNNI => host_has!("avxvnni"),
            F::AVX_IFMA => host_has!("avxifma"),
            F::AVX512F | F::AVX512BW | F::AVX512DQ | F::AVX512VL => self.avx512,
            F::AVX512CD => self.avx512 && host_has!("avx512cd"),
            F::AVX512_IFMA => self.avx512 && host_has!("avx512ifma"),
            F::AVX512_VBMI => self.avx512 && host_has!("avx512vbmi"),
            F::AVX512_VBMI2 => self.avx512 && host_has!("avx512vbmi2"),
            F::AVX512_VNNI => self.avx512 && host_has!("avx512vnni"),
            F::AVX512_BITALG => self.avx512 && host_has!("avx512bitalg"),
            F::AVX512_VPOPCNTDQ => self.avx512 && host_has!("avx512vpopcntdq"),
            F::AVX512_BF16 => self.avx512 && host_has!("avx512bf16"),
            F::AVX512_FP16 => self.avx512 && host_has!("avx512fp16"),
            F::AVX512_VP2INTERSECT => self.avx512 && host_has!("avx512vp2intersect"),
            _ => false,
        }
    }

    /// Whether a stub may be made of this instruction.
    pub(crate) fn lists(self, instruction: &Instruction) -> bool {
        let mnemonic = instruction.mnemonic();
        let features = instruction.cpuid_features();
        // The mnemonics of the base set lie in several features; those of extensions are all listed.
        let is_base = features.iter().all(|feature| BASE_FEATURES.contains(feature));
        !instruction.is_privileged()
            && !NEVER.contains(&mnemonic)
            && matches!(instruction.encoding(), EncodingKind::Legacy | EncodingKind::VEX | EncodingKind::EVEX)
            && !features.is_empty()
            && features.iter().all(|feature| self.allows(*feature))
            && (!is_base || BASE.contains(&mnemonic) || is_conditional(instruction))
            && !touches_system_registers(instruction)
    }
}

const BASE_FEATURES: [F; 7] =
    [F::INTEL8086, F::INTEL186, F::INTEL286, F::INTEL386, F::INTEL486, F::X64, F::CX8];

/// Of the base set. (`setcc` and `cmovcc` besides.)
pub(crate) const BASE: &[Mnemonic] = &[
    M::Adc,
    M::Add,
    M::And,
    M::Bsf,
    M::Bsr,
    M::Bswap,
    M::Bt,
    M::Btc,
    M::Btr,
    M::Bts,
    M::Cbw,
    M::Cdq,
    M::Cdqe,
    M::Clc,
    M::Cmc,
    M::Cmp,
    M::Cmpxchg,
    M::Cmpxchg8b,
    M::Cqo,
    M::Cwd,
    M::Cwde,
    M::Dec,
    M::Div,
    M::Idiv,
    M::Imul,
    M::Inc,
    M::Lahf,
    M::Lea,
    M::Mov,
    M::Movsx,
    M::Movsxd,
    M::Movzx,
    M::Mul,
    M::Neg,
    M::Not,
    M::Or,
    M::Rcl,
    M::Rcr,
    M::Rol,
    M::Ror,
    M::Sahf,
    M::Sal,
    M::Sar,
    M::Sbb,
    M::Shl,
    M::Shld,
    M::Shr,
    M::Shrd,
    M::Stc,
    M::Sub,
    M::Test,
    M::Wait,
    M::Xadd,
    M::Xchg,
    M::Xor,
];

/// Within listed features, but not as a stub: they touch memory in ways that the operand does not tell, are emulated,
/// or do nothing that a window needs.
pub(crate) const NEVER: &[Mnemonic] = &[
    M::Maskmovq,
    M::Maskmovdqu,
    M::Vmaskmovdqu,
    M::Vpgatherdd,
    M::Vpgatherdq,
    M::Vpgatherqd,
    M::Vpgatherqq,
    M::Vgatherdps,
    M::Vgatherdpd,
    M::Vgatherqps,
    M::Vgatherqpd,
    M::Vpscatterdd,
    M::Vpscatterdq,
    M::Vpscatterqd,
    M::Vpscatterqq,
    M::Vscatterdps,
    M::Vscatterdpd,
    M::Vscatterqps,
    M::Vscatterqpd,
    M::Fxsave,
    M::Fxsave64,
    M::Fxrstor,
    M::Fxrstor64,
    M::Vzeroall,
    M::Vzeroupper,
    // They load or store MXCSR, which a stub exchanges by itself.
    M::Ldmxcsr,
    M::Stmxcsr,
    M::Vldmxcsr,
    M::Vstmxcsr,
];

fn is_conditional(instruction: &Instruction) -> bool {
    instruction.condition_code() != iced_x86::ConditionCode::None && instruction.near_branch_target() == 0
}

fn touches_system_registers(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|op| {
        let register = instruction.op_register(op);
        register.is_segment_register() || register.is_cr() || register.is_dr() || register.is_tr()
    })
}
