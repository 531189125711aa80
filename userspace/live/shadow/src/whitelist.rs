//! Which instructions may be run natively, by CPUID feature and mnemonic. What is not listed ends the window.
//!
//! Of the features of vectors and the like everything is listed but what [`NEVER`] names; of the
//! base set, in which privileged and system instructions lie, only what [`BASE`] names. A feature
//! counts only where this processor has it. Control flow, stack and string instructions and what
//! [`crate::decode`] emulates need not be here.

use std::arch::{is_x86_feature_detected as host_has, x86_64::__cpuid};

use iced_x86::{CpuidFeature as F, EncodingKind, Instruction, Mnemonic, Mnemonic as M};

/// Features of this processor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Host {
    pub(crate) avx: bool,
    /// With the parts F, BW, DQ and VL, without which AVX-512 is left alone.
    pub(crate) avx512: bool,
    pub(crate) rdtscp: bool,
}

impl Host {
    pub(crate) fn detect() -> Host {
        Host {
            avx: host_has!("avx"),
            avx512: host_has!("avx512f")
                && host_has!("avx512bw")
                && host_has!("avx512dq")
                && host_has!("avx512vl"),
            // CPUID leaf 0x8000_0001, EDX.
            rdtscp: __cpuid(0x8000_0000).eax > 0x8000_0000 && __cpuid(0x8000_0001).edx >> 27 & 1 == 1,
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
            // `xtest` alone, which glibc's `_rtm` functions end with. No transaction survives a
            // stop, and none is in a window.
            F::HLE_or_RTM => host_has!("rtm"),
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

/// Within listed features, but not as a stub: they touch memory in ways that the operand does not
/// tell, are emulated, or do nothing that a window needs.
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
    // They load or store MXCSR, which stubs exchange anyway.
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

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, FlowControl};

    use super::*;

    fn decoded(bytes: &[u8]) -> Instruction {
        Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode()
    }

    /// Instructions of the two lists, each with its bytes.
    const LISTED: &[&[u8]] = &[
        &[0x48, 0xf7, 0xf1],             // div rcx
        &[0x0f, 0xa3, 0xc8],             // bt eax, ecx
        &[0x48, 0x0f, 0xc1, 0x0f],       // xadd [rdi], rcx
        &[0xf0, 0x48, 0x0f, 0xc7, 0x0f], // lock cmpxchg16b [rdi]
        &[0x0f, 0x58, 0x07],             // addps xmm0, [rdi]
        &[0xd9, 0xfe],                   // fsin
        &[0x0f, 0xfe, 0xc1],             // paddd mm0, mm1
        &[0x0f, 0x94, 0x07],             // sete [rdi]
        &[0x48, 0x0f, 0x44, 0x07],       // cmove rax, [rdi]
    ];
    const UNLISTED: &[&[u8]] = &[
        &[0xf4],                         // hlt
        &[0xe4, 0x10],                   // in al, 0x10
        &[0xfa],                         // cli
        &[0x0f, 0x01, 0xef],             // wrpkru
        &[0x0f, 0x01, 0xee],             // rdpkru
        &[0xf3, 0x48, 0x0f, 0xae, 0xd0], // wrfsbase rax
        &[0x0f, 0xae, 0x27],             // xsave [rdi]
        &[0x0f, 0xae, 0x2f],             // xrstor [rdi]
        &[0x0f, 0xae, 0x07],             // fxsave [rdi]
        &[0x0f, 0x01, 0x07],             // sgdt [rdi]
        &[0x0f, 0x00, 0xc0],             // sldt eax
        &[0x0f, 0x02, 0xc0],             // lar eax, eax
        &[0x8e, 0xd8],                   // mov ds, eax
        &[0x0f, 0xb2, 0x07],             // lss eax, [rdi]
        &[0x0f, 0x20, 0xc0],             // mov rax, cr0
        &[0x66, 0x0f, 0x38, 0xf8, 0x07], // movdir64b rax, [rdi]
        &[0x0f, 0x31],                   // rdtsc
        &[0x0f, 0xc7, 0xf0],             // rdrand eax
        &[0x0f, 0x0f, 0xc1, 0x9e],       // pfadd mm0, mm1 (3DNow!)
        &[0x66, 0x0f, 0xf7, 0xc1],       // maskmovdqu xmm0, xmm1
        &[0xc4, 0xe2, 0x7b, 0x49, 0xc0], // tilezero tmm0
        &[0xf3, 0x48, 0x0f, 0x1e, 0xc8], // rdsspq rax
        &[0x0f, 0x38, 0xf6, 0x07],       // wrssd [rdi], eax
        &[0xc7, 0xf8, 0, 0, 0, 0],       // xbegin
        &[0x0f, 0x01, 0xd5],             // xend
        &[0x66, 0x0f, 0xae, 0xf1],       // tpause ecx
    ];

    #[test]
    fn known_instructions() {
        let host = Host::detect();
        for bytes in LISTED {
            assert!(host.lists(&decoded(bytes)), "{:?}", decoded(bytes).code());
        }
        for bytes in UNLISTED {
            let instruction = decoded(bytes);
            assert!(!instruction.is_invalid(), "{bytes:02x?}");
            assert!(!host.lists(&instruction), "{:?}", instruction.code());
        }
    }

    #[test]
    fn a_feature_that_the_processor_lacks_is_not_listed() {
        let host = Host { avx: false, avx512: false, rdtscp: false };
        let vaddps = decoded(&[0xc5, 0xfc, 0x58, 0xc1]);
        let vaddps_512 = decoded(&[0x62, 0xf1, 0x7c, 0x48, 0x58, 0xc1]);
        assert!(!host.lists(&vaddps) && !host.lists(&vaddps_512));
        assert_eq!(Host::detect().lists(&vaddps), host_has!("avx"));
        assert_eq!(Host::detect().lists(&vaddps_512), Host::detect().avx512);
    }

    #[test]
    fn lists_do_not_overlap_and_hold_nothing_twice() {
        for (n, mnemonic) in BASE.iter().enumerate() {
            assert!(!NEVER.contains(mnemonic) && !BASE[..n].contains(mnemonic), "{mnemonic:?}");
        }
    }

    /// Every opcode of every map, with registers and with memory: nothing privileged, no transfer
    /// of control and nothing that touches memory beside its operand is listed.
    #[test]
    fn no_opcode_slips_through() {
        let host = Host::detect();
        let mut factory = iced_x86::InstructionInfoFactory::new();
        let mut listed = 0;
        let prefixes: [&[u8]; 5] = [&[], &[0x66], &[0xf2], &[0xf3], &[0x48]];
        let mut fronts: Vec<Vec<u8>> = Vec::new();
        for prefix in prefixes {
            for map in [&[][..], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]] {
                fronts.push([prefix, map].concat());
            }
        }
        for map in 1..=3 {
            for last in [0x78_u8, 0x79, 0x7a, 0x7b, 0x7c, 0x7d, 0xf8, 0xf9, 0xfd] {
                fronts.push(vec![0xc4, 0xe0 | map, last]);
                fronts.push(vec![0x62, 0xf0 | map, last, 0x48]);
            }
        }
        for front in &fronts {
            for opcode in 0..=255_u8 {
                for modrm in (0..8).flat_map(|n| [n << 3 | 7, n << 3 | 0xc7]) {
                    let mut bytes = front.clone();
                    bytes.extend([opcode, modrm, 1, 0, 0, 0, 0, 0, 0, 0]);
                    let instruction = decoded(&bytes);
                    if instruction.is_invalid() || !host.lists(&instruction) {
                        continue;
                    }
                    let code = instruction.code();
                    listed += 1;
                    assert!(!instruction.is_privileged(), "{code:?}");
                    let is_flow = instruction.flow_control() != FlowControl::Next;
                    let info = factory.info(&instruction);
                    let operands = (0..instruction.op_count())
                        .filter(|op| instruction.op_kind(*op) == iced_x86::OpKind::Memory)
                        .count();
                    let implicit = info.used_memory().len() > operands;
                    // Those of the base set are taken by `crate::simple` and `crate::special`
                    // before the list is asked.
                    let emulated = is_flow || implicit;
                    assert!(!emulated || is_conditional(&instruction), "{code:?}");
                }
            }
        }
        assert!(listed > 5000, "{listed}");
    }
}
