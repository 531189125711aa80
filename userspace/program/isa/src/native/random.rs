//! Random instructions without memory operands, run once each on the processor from random
//! registers: every bit of the results that [`crate::interpret::step`] claims to know must be what
//! the processor left.

use std::collections::BTreeMap;

use iced_x86::{InstructionInfoFactory, Mnemonic};
use proptest::prelude::{Strategy, any};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::tracee::Tracee;
use crate::interpret::step;
use crate::known::Known;
use crate::memory::accesses;
use crate::results::results;
use crate::{Code, Registers};

/// Instructions to run.
const RUNS: usize = 20_000;
/// CF, PF, AF, ZF, SF, DF and OF: the flags that the package follows.
const FOLLOWED_FLAGS: u64 = 0xcd5;

/// First bytes that lead to the instructions that are interpreted; plain random bytes seldom do.
const OPCODES: [&[u8]; 18] = [
    &[0x0f, 0x40],
    &[0x0f, 0x90],
    &[0x0f, 0xa3],
    &[0x0f, 0xab],
    &[0x0f, 0xaf],
    &[0x0f, 0xb0],
    &[0x0f, 0xbc],
    &[0x0f, 0xc8],
    &[0x0f, 0xba],
    &[0xd0],
    &[0xf6],
    &[0xc0],
    &[0x80],
    &[0x98],
    &[0xe0],
    &[0x70],
    &[0xf3, 0x0f, 0xb8],
    &[0xf3, 0x0f, 0xbc],
];

/// An instruction of the BMI sets: VEX prefix without register extension, random width, second
/// source and opcode.
fn bmi_bytes(random: [u8; 16]) -> [u8; 16] {
    let mut bytes = random;
    let map = if random[0] & 3 == 0 { 0xe3 } else { 0xe2 };
    // The vector length bit must be 0.
    let width_and_source = random[1] & !4;
    bytes[..5].copy_from_slice(&[0xc4, map, width_and_source, 0xf0 | random[2] & 7, 0xc0 | random[3]]);
    bytes
}

/// Random bytes, half of them with a likely opcode: prefix, REX, opcode with its low bits changed, the rest.
fn code_bytes() -> impl Strategy<Value = [u8; 16]> {
    let has_bmi = std::is_x86_feature_detected!("bmi1") && std::is_x86_feature_detected!("bmi2");
    let parts = (any::<[u8; 16]>(), 0..4_u8, any::<u8>(), 0..OPCODES.len(), 0..8_u8);
    parts.prop_map(move |(random, prefix, low_bits, opcode, kind)| {
        match kind {
            0..3 => return random,
            3 if has_bmi => return bmi_bytes(random),
            _ => {}
        }
        let mut bytes = Vec::new();
        match prefix {
            0 => bytes.push(0x66),
            1 => bytes.push(0x40 | random[0] & 0xf),
            2 => bytes.push(0x48),
            _ => {}
        }
        bytes.extend(OPCODES[opcode]);
        let last = bytes.len() - 1;
        bytes[last] |= low_bits & 0xf;
        // A register operand rather than memory.
        bytes.push(random[1] | 0xc0);
        bytes.extend(&random[2..]);
        bytes.truncate(16);
        bytes.try_into().unwrap()
    })
}

/// Small and extreme values, since carries and overflows happen there, among random ones.
fn value() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..6_u8, 0..65_u32).prop_map(|(random, kind, shift)| match kind {
        0 => 0,
        1 => u64::MAX,
        2 => random & 0xff,
        3 => 1_u64.checked_shl(shift).unwrap_or(0).wrapping_sub(random & 1),
        _ => random,
    })
}

fn registers() -> impl Strategy<Value = Registers> {
    (proptest::array::uniform16(value()), any::<u64>()).prop_map(|(v, flags)| Registers {
        rax: v[0],
        rcx: v[1],
        rdx: v[2],
        rbx: v[3],
        rsp: v[4],
        rbp: v[5],
        rsi: v[6],
        rdi: v[7],
        r8: v[8],
        r9: v[9],
        r10: v[10],
        r11: v[11],
        r12: v[12],
        r13: v[13],
        r14: v[14],
        r15: v[15],
        rflags: flags & FOLLOWED_FLAGS | 0x202,
        ..Registers::default()
    })
}

#[test]
fn results_are_the_processors() {
    let Some(tracee) = Tracee::start(&["/bin/true"]) else { return };
    let start = tracee.registers();
    let mut runner = TestRunner::deterministic();
    let mut factory = InstructionInfoFactory::new();
    let mut ran: BTreeMap<String, usize> = BTreeMap::new();
    let mut runs = 0;
    while runs < RUNS {
        let bytes = code_bytes().new_tree(&mut runner).unwrap().current();
        let values = registers().new_tree(&mut runner).unwrap().current();
        let before = Registers { rip: start.rip, fs_base: start.fs_base, gs_base: start.gs_base, ..values };
        let code = Code { address: start.rip, bytes: &bytes };
        let Ok(instruction) = code.decode(&mut code.decoder(), start.rip) else { continue };
        let info = factory.info(&instruction);
        let mut known = Known::all(&before);
        let is_interpreted = results(&instruction, &known).is_some() || instruction.near_branch_target() != 0;
        // Loading a random selector faults.
        let loads_segment = instruction.op0_register().is_segment_register();
        if !is_interpreted || loads_segment || accesses(&instruction, info).next().is_some() {
            continue;
        }
        let Ok(next) = step(&instruction, info, &mut known) else { continue };
        tracee.write(start.rip, &bytes);
        tracee.set_registers(&before);
        assert!(tracee.step(), "{:?} {bytes:02x?}", instruction.code());
        let after = tracee.registers();
        let context = || format!("{:?} {bytes:02x?} from {before:x?} to {after:x?}", instruction.code());
        assert_eq!(next, after.rip, "{}", context());
        for (bits, value) in known.general_bits().iter().zip(after.general()) {
            assert_eq!(bits.value & bits.mask, value & bits.mask, "{}", context());
        }
        let mask = known.flags.mask & FOLLOWED_FLAGS;
        assert_eq!(known.flags.value & mask, after.rflags & mask, "{}", context());
        *ran.entry(format!("{:?}", instruction.mnemonic())).or_default() += 1;
        runs += 1;
    }
    println!("{runs} instructions: {ran:?}");
    for mnemonic in
        [Mnemonic::Shl, Mnemonic::Imul, Mnemonic::Sbb, Mnemonic::Ror, Mnemonic::Bsr, Mnemonic::Loop]
    {
        assert!(ran.contains_key(&format!("{mnemonic:?}")), "{mnemonic:?} was never run");
    }
}
