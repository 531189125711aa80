//! Each addressing form, each kind of implicit access and each reason to give up, one line each. Whether the
//! interpretation is right is proven against the processor, in `src/native`.
#![expect(clippy::unwrap_used, reason = "helper functions of tests")]

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use locality_isa::{AccessForm, AccessKind, Code, Registers, Unreachable, first_access};

use AccessForm::{Operand, Stack, String};
use AccessKind::{Load, ReadWrite, Store};

const START: u64 = 0x40_1000;
const DIRECTION: u64 = 1 << 10;
const ZERO: u64 = 1 << 6;

fn assemble(write: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>) -> Vec<u8> {
    let mut assembler = CodeAssembler::new(64).unwrap();
    write(&mut assembler).unwrap();
    let mut bytes = assembler.assemble(START).unwrap();
    // What follows would be an access at once, so that a search that goes too far is seen.
    bytes.extend([0x8b, 0x04, 0x25, 0, 0, 0, 0]);
    bytes
}

fn registers() -> Registers {
    Registers {
        rax: 0x1_0000_00a0,
        rbx: 0x7000_0000,
        rcx: 3,
        rsp: 0x7fff_0000,
        rbp: 0x7fff_0100,
        rsi: 0x5000_0000,
        rdi: 0x6000_0000,
        r8: 0xffff_ffff_ffff_fff8,
        rip: START,
        rflags: ZERO,
        fs_base: 0xf000_0000,
        gs_base: 0xe000_0000,
        ..Registers::default()
    }
}

type Outcome = Result<(u32, u64, u32, AccessKind, AccessForm), Unreachable>;

fn outcome(bytes: &[u8], registers: &Registers) -> Outcome {
    first_access(&Code { address: START, bytes }, registers)
        .map(|access| (access.skipped, access.address, access.size, access.kind, access.form))
}

macro_rules! cases {
    ($($assembler:ident => $($write:expr),+ ; $expected:expr;)+) => {$(
        let bytes = assemble(|$assembler| { $($write?;)+ Ok(()) });
        assert_eq!(outcome(&bytes, &registers()), $expected, "{}", stringify!($($write),+));
    )+};
}

#[test]
fn addressing_forms() {
    cases! {
        a => a.mov(rax, qword_ptr(rbx)); Ok((0, 0x7000_0000, 8, Load, Operand));
        a => a.mov(dword_ptr(rbx + rcx * 4 + 0x10), eax); Ok((0, 0x7000_001c, 4, Store, Operand));
        a => a.add(byte_ptr(rbx - 1), 1); Ok((0, 0x6fff_ffff, 1, ReadWrite, Operand));
        a => a.cmp(word_ptr(rbx), 1); Ok((0, 0x7000_0000, 2, Load, Operand));
        a => a.mov(eax, dword_ptr(START + 0x100)); Ok((0, START + 0x100, 4, Load, Operand));
        a => a.mov(eax, dword_ptr(0x1234_u64)); Ok((0, 0x1234, 4, Load, Operand));
        a => a.mov(al, byte_ptr(0x1122_3344_5566_u64)); Ok((0, 0x1122_3344_5566, 1, Load, Operand));
        a => a.mov(rax, qword_ptr(0x28).fs()); Ok((0, 0xf000_0028, 8, Load, Operand));
        a => a.mov(qword_ptr(rcx + 5).gs(), rax); Ok((0, 0xe000_0008, 8, Store, Operand));
        a => a.mov(rax, qword_ptr(rbx + r8)); Ok((0, 0x6fff_fff8, 8, Load, Operand));
        // 32-bit addresses wrap at 4 GiB, before the segment base is added.
        a => a.mov(rax, qword_ptr(eax + ecx * 8)); Ok((0, 0xb8, 8, Load, Operand));
        a => a.mov(rax, qword_ptr(r8d + 0x10).fs()); Ok((0, 0xf000_0008, 8, Load, Operand));
        a => a.xlatb(); Ok((0, 0x7000_00a0, 1, Load, Operand));
        a => a.xchg(qword_ptr(rsp + 8), rax); Ok((0, 0x7fff_0008, 8, ReadWrite, Operand));
        a => a.lock().cmpxchg(dword_ptr(rdi), ecx); Ok((0, 0x6000_0000, 4, ReadWrite, Operand));
        a => a.cmpxchg16b(xmmword_ptr(rdi)); Ok((0, 0x6000_0000, 16, ReadWrite, Operand));
        a => a.cmovne(eax, dword_ptr(rdi)); Ok((0, 0x6000_0000, 4, Load, Operand));
        a => a.sete(byte_ptr(rdi)); Ok((0, 0x6000_0000, 1, Store, Operand));
    }
}

#[test]
fn sizes_of_vectors_and_floats() {
    cases! {
        a => a.movss(xmm0, dword_ptr(rdi)); Ok((0, 0x6000_0000, 4, Load, Operand));
        a => a.movups(xmmword_ptr(rdi), xmm0); Ok((0, 0x6000_0000, 16, Store, Operand));
        a => a.vmovups(ymm0, ymmword_ptr(rdi)); Ok((0, 0x6000_0000, 32, Load, Operand));
        a => a.vmovdqu64(zmmword_ptr(rdi), zmm0); Ok((0, 0x6000_0000, 64, Store, Operand));
        a => a.vaddps(zmm0, zmm1, dword_bcst(rdi)); Ok((0, 0x6000_0000, 4, Load, Operand));
        a => a.fld(tbyte_ptr(rdi)); Ok((0, 0x6000_0000, 10, Load, Operand));
        a => a.fxsave(byte_ptr(rdi)); Ok((0, 0x6000_0000, 512, Store, Operand));
    }
}

#[test]
fn stack() {
    cases! {
        a => a.push(rax); Ok((0, 0x7ffe_fff8, 8, Store, Stack));
        a => a.pop(rax); Ok((0, 0x7fff_0000, 8, Load, Stack));
        a => a.push(ax); Ok((0, 0x7ffe_fffe, 2, Store, Stack));
        a => a.pushfq(); Ok((0, 0x7ffe_fff8, 8, Store, Stack));
        a => a.call(START + 0x40); Ok((0, 0x7ffe_fff8, 8, Store, Stack));
        a => a.call(rax); Ok((0, 0x7ffe_fff8, 8, Store, Stack));
        a => a.ret(); Ok((0, 0x7fff_0000, 8, Load, Stack));
        a => a.leave(); Ok((0, 0x7fff_0100, 8, Load, Stack));
        a => a.enter(32, 2); Ok((0, 0x7ffe_fff8, 8, Store, Stack));
        // Of two accesses the load comes first.
        a => a.push(qword_ptr(rdi)); Ok((0, 0x6000_0000, 8, Load, Operand));
        a => a.pop(qword_ptr(rdi)); Ok((0, 0x7fff_0000, 8, Load, Stack));
        a => a.call(qword_ptr(rdi)); Ok((0, 0x6000_0000, 8, Load, Operand));
        a => a.jmp(qword_ptr(rdi + rcx * 8)); Ok((0, 0x6000_0018, 8, Load, Operand));
    }
}

#[test]
fn strings() {
    cases! {
        a => a.movsq(); Ok((0, 0x5000_0000, 8, Load, String));
        a => a.cmpsb(); Ok((0, 0x5000_0000, 1, Load, String));
        a => a.stosd(); Ok((0, 0x6000_0000, 4, Store, String));
        a => a.lodsw(); Ok((0, 0x5000_0000, 2, Load, String));
        a => a.scasb(); Ok((0, 0x6000_0000, 1, Load, String));
        a => a.rep().movsb(); Ok((0, 0x5000_0000, 1, Load, String));
        a => a.repe().cmpsd(); Ok((0, 0x5000_0000, 4, Load, String));
        a => a.repne().scasb(); Ok((0, 0x6000_0000, 1, Load, String));
        // A count of zero makes no access and leaves the registers.
        a => a.xor(ecx, ecx), a.rep().stosq(), a.mov(al, byte_ptr(rdi + rcx)); Ok((2, 0x6000_0000, 1, Load, Operand));
    }
    let bytes = assemble(|a| a.rep().stosq());
    let downward = Registers { rflags: DIRECTION, ..registers() };
    assert_eq!(outcome(&bytes, &downward), Ok((0, 0x6000_0000, 8, Store, String)));
    // Under a 32-bit address size ecx counts and edi points: zero here, whatever the upper halves.
    let bytes = [0xf3, 0x67, 0xaa, 0x8a, 0x07];
    let upper = Registers { rcx: 1 << 32, ..registers() };
    assert_eq!(outcome(&bytes, &upper), Err(Unreachable::AddressRegisterUnknown));
    let upper = Registers { rcx: 1 << 32 | 1, rdi: 1 << 32 | 0x99, ..registers() };
    assert_eq!(outcome(&bytes, &upper), Ok((0, 0x99, 1, Store, String)));
}

#[test]
fn bit_strings() {
    let table = [(3, 0x7000_0000), (64, 0x7000_0008), (-1, 0x6fff_fff8), (-65, 0x6fff_fff0)];
    let bytes = assemble(|a| a.bts(qword_ptr(rbx), rdx));
    for (bit, address) in table {
        let registers = Registers { rdx: bit as u64, ..registers() };
        assert_eq!(outcome(&bytes, &registers), Ok((0, address, 8, ReadWrite, Operand)), "bit {bit}");
    }
    cases! {
        a => a.mov(dx, 0x7fff_i32), a.bt(word_ptr(rbx), dx); Ok((1, 0x7000_0ffe, 2, Load, Operand));
        a => a.bt(dword_ptr(rbx), 40); Ok((0, 0x7000_0000, 4, Load, Operand));
    }
}

#[test]
fn no_accesses() {
    cases! {
        a => a.lea(rdi, qword_ptr(rdi + rcx * 8 + 1)), a.mov(al, byte_ptr(rdi)); Ok((1, 0x6000_0019, 1, Load, Operand));
        a => a.nop_1(dword_ptr(rax)), a.endbr64(), a.lodsb(); Ok((2, 0x5000_0000, 1, Load, String));
        a => a.prefetcht0(byte_ptr(rax)), a.prefetchw(byte_ptr(rax)), a.lodsb(); Ok((2, 0x5000_0000, 1, Load, String));
        a => a.clflush(byte_ptr(rax)), a.clflushopt(byte_ptr(rax)), a.lodsb(); Ok((2, 0x5000_0000, 1, Load, String));
        a => a.clwb(byte_ptr(rax)), a.mfence(), a.lodsb(); Ok((2, 0x5000_0000, 1, Load, String));
    }
}

#[test]
fn partial_registers() {
    cases! {
        // 32-bit writes clear the upper half, 16- and 8-bit writes keep the rest.
        a => a.mov(eax, eax), a.mov(cl, byte_ptr(rax)); Ok((1, 0xa0, 1, Load, Operand));
        a => a.mov(ax, 0x7777), a.mov(cl, byte_ptr(rax)); Ok((1, 0x1_0000_7777, 1, Load, Operand));
        a => a.mov(ah, 0x77), a.mov(cl, byte_ptr(rax)); Ok((1, 0x1_0000_77a0, 1, Load, Operand));
        a => a.mov(al, 0x77), a.mov(cl, byte_ptr(rax)); Ok((1, 0x1_0000_0077, 1, Load, Operand));
        // What is unknown stays so in its own bits only.
        a => a.xor(eax, eax), a.lahf(), a.movzx(ecx, al), a.mov(cl, byte_ptr(rcx)); Ok((3, 0, 1, Load, Operand));
        a => a.cpuid(), a.xor(eax, eax), a.mov(cl, byte_ptr(rax)); Ok((2, 0, 1, Load, Operand));
        a => a.cpuid(), a.mov(al, 1), a.movzx(eax, al), a.mov(cl, byte_ptr(rax)); Ok((3, 1, 1, Load, Operand));
    }
}

#[test]
fn branches() {
    let taken = |jump: fn(&mut CodeAssembler, iced_x86::code_asm::CodeLabel) -> Result<(), IcedError>| {
        let bytes = assemble(|a| {
            let mut target = a.create_label();
            jump(a, target)?;
            a.mov(al, byte_ptr(rsi))?;
            a.set_label(&mut target)?;
            a.mov(al, byte_ptr(rdi))
        });
        match outcome(&bytes, &registers()) {
            Ok((_, address, ..)) => address == registers().rdi,
            Err(reason) => panic!("{reason}"),
        }
    };
    assert!(taken(|a, l| a.jmp(l)));
    assert!(taken(|a, l| a.je(l)));
    assert!(!taken(|a, l| a.jne(l)));
    assert!(taken(|a, l| {
        a.cmp(rcx, 3)?;
        a.jge(l)
    }));
    assert!(!taken(|a, l| {
        a.cmp(rcx, 4)?;
        a.jae(l)
    }));
    assert!(taken(|a, l| {
        a.test(r8, r8)?;
        a.js(l)
    }));
    assert!(!taken(|a, l| a.jrcxz(l)));
    assert!(taken(|a, l| a.loop_(l)));
    assert!(!taken(|a, l| {
        a.mov(ecx, 1)?;
        a.loop_(l)
    }));
    assert!(taken(|a, l| {
        a.lea(rdx, qword_ptr(l))?;
        a.jmp(rdx)
    }));
}

#[test]
fn unreachable() {
    cases! {
        a => a.rdtsc(), a.mov(cl, byte_ptr(rax)); Err(Unreachable::AddressRegisterUnknown);
        a => a.rdtsc(), a.mov(ecx, eax), a.rep().stosb(); Err(Unreachable::AddressRegisterUnknown);
        a => a.wrfsbase(rax), a.mov(cl, byte_ptr(0).fs()); Err(Unreachable::AddressRegisterUnknown);
        a => a.comiss(xmm0, xmm1), a.ja(START); Err(Unreachable::FlagsUnknown);
        a => a.rdtsc(), a.mov(ecx, eax), a.loop_(START); Err(Unreachable::FlagsUnknown);
        a => a.jmp(START - 0x1000); Err(Unreachable::LeftCode);
        a => a.mov(eax, 1), a.syscall(); Err(Unreachable::SystemCall);
        a => a.int(0x80); Err(Unreachable::SystemCall);
        a => a.vpgatherdd(zmm0.k1(), dword_ptr(rbx + zmm2 * 4)); Err(Unreachable::GatherScatter);
        a => a.vpscatterdd(dword_ptr(rbx + zmm2 * 4).k1(), zmm0); Err(Unreachable::GatherScatter);
        a => a.vmovdqu32(zmm0.k1(), zmmword_ptr(rbx)); Err(Unreachable::Masked);
        a => a.vmaskmovps(ymm0, ymm1, ymmword_ptr(rbx)); Err(Unreachable::Masked);
        a => a.maskmovdqu(xmm0, xmm1); Err(Unreachable::Masked);
        a => a.xsavec(byte_ptr(rbx)); Err(Unreachable::SizeUnknown);
        a => a.jmp(START); Err(Unreachable::TooLong);
        a => a.rdtsc(), a.jmp(rax); Err(Unreachable::IndirectBranch);
        a => a.int3(); Err(Unreachable::Trap);
        a => a.ud2(); Err(Unreachable::Trap);
        a => a.hlt(); Err(Unreachable::Privileged);
        a => a.insb(); Err(Unreachable::Privileged);
        a => a.clzero(); Err(Unreachable::Other);
    }
    assert_eq!(outcome(&[0x06; 16], &registers()), Err(Unreachable::UndecodableCode));
    assert_eq!(outcome(&[0x48, 0x8b], &registers()), Err(Unreachable::LeftCode));
    assert_eq!(outcome(&[], &registers()), Err(Unreachable::LeftCode));
}

#[test]
fn words_are_those_touched() {
    let words = |address: u64, write: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        let bytes = assemble(write);
        let registers = Registers { rdi: address, ..registers() };
        let access = first_access(&Code { address: START, bytes: &bytes }, &registers).unwrap();
        access.words().collect::<Vec<_>>()
    };
    assert_eq!(words(0x1000, |a| a.mov(rax, qword_ptr(rdi))), [0x1000]);
    assert_eq!(words(0x1007, |a| a.mov(al, byte_ptr(rdi))), [0x1000]);
    assert_eq!(words(0x1007, |a| a.mov(ax, word_ptr(rdi))), [0x1000, 0x1008]);
    assert_eq!(words(0x1001, |a| a.movups(xmm0, xmmword_ptr(rdi))), [0x1000, 0x1008, 0x1010]);
    assert_eq!(words(0x1000, |a| a.vmovups(ymm0, ymmword_ptr(rdi))).len(), 4);
    assert_eq!(words(u64::MAX, |a| a.mov(ax, word_ptr(rdi))), [u64::MAX - 7, 0]);
}
