//! Each rule on an instruction assembled for it, and all instructions against the coarse sets.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use proptest::prelude::*;

use super::*;
use crate::classify::{Class, Instruction};

fn of(assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>) -> Dependences {
    let mut assembler = CodeAssembler::new(64).unwrap();
    assemble(&mut assembler).unwrap();
    Dependences::of(&InstructionRecord::new(0x1000, &assembler.assemble(0x1000).unwrap()))
}

fn of_bytes(code: &[u8]) -> Dependences {
    Dependences::of(&InstructionRecord::new(0x1000, code))
}

fn general(numbers: &[u8]) -> Locations {
    numbers.iter().fold(Locations::NONE, |all, number| all.with(Locations::general(*number)))
}

fn vector(numbers: &[u8]) -> Locations {
    numbers.iter().fold(Locations::NONE, |all, number| all.with(Locations::vector(*number)))
}

fn x87(numbers: &[u8]) -> Locations {
    numbers.iter().fold(Locations::NONE, |all, number| all.with(Locations::x87(*number)))
}

const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RBX: u8 = 3;
const RSP: u8 = 4;
const RBP: u8 = 5;
const RSI: u8 = 6;
const RDI: u8 = 7;
const BOTH_FLAGS: Locations = Locations(1 << 16 | 1 << 17);

#[test]
fn addresses_are_told_from_data() {
    let row = |found: Dependences| (found.data, found.addresses(), found.whole);
    // A base that is data as well.
    assert_eq!(row(of(|a| a.mov(qword_ptr(rax), rax))), (general(&[RAX]), general(&[RAX]), Locations::NONE));
    assert_eq!(
        row(of(|a| a.mov(rax, qword_ptr(rax + rbx * 8)))),
        (Locations::NONE, general(&[RAX, RBX]), general(&[RAX]))
    );
    assert_eq!(
        row(of(|a| a.add(rcx, qword_ptr(rbx)))),
        (general(&[RCX]), general(&[RBX]), general(&[RCX]).with(BOTH_FLAGS))
    );
    // Implicit operands that are the base as well.
    let multiply = of(|a| a.mul(qword_ptr(rax)));
    assert_eq!((multiply.data, multiply.addresses()), (general(&[RAX]), general(&[RAX])));
    let divide = of(|a| a.div(qword_ptr(rcx)));
    assert_eq!((divide.data, divide.addresses()), (general(&[RAX, RDX]), general(&[RCX])));
    let exchange = of(|a| a.lock().cmpxchg(qword_ptr(rdi), rcx));
    assert_eq!((exchange.data, exchange.addresses()), (general(&[RAX, RCX]), general(&[RDI])));
    // No access: `lea` computes, a prefetch does nothing with the value.
    assert_eq!(
        row(of(|a| a.lea(rax, qword_ptr(rbx + rcx * 8)))),
        (general(&[RBX, RCX]), Locations::NONE, general(&[RAX]))
    );
    let prefetch = of(|a| a.prefetcht0(byte_ptr(rax)));
    assert_eq!((row(prefetch), prefetch.hints), (Default::default(), general(&[RAX])));
    // A vector of addresses.
    let gather = of(|a| a.vpgatherdd(zmm0.k1(), dword_ptr(rax + zmm1 * 4)));
    assert_eq!(gather.addresses(), general(&[RAX]).with(vector(&[1])));
    assert_eq!(gather.data, vector(&[0]).with(Locations::mask(1)));
}

#[test]
fn each_memory_operand_has_its_address() {
    let operand = |address, is_loaded, is_stored| MemoryOperand { address, is_loaded, is_stored };
    assert_eq!(
        of(|a| a.push(qword_ptr(rax))).memory,
        [operand(general(&[RAX]), true, false), operand(general(&[RSP]), false, true)]
    );
    assert_eq!(
        of(|a| a.movsb()).memory,
        [operand(general(&[RDI]), false, true), operand(general(&[RSI]), true, false)]
    );
    assert_eq!(of(|a| a.add(qword_ptr(rbx), rax)).memory[0], operand(general(&[RBX]), true, true));
    assert_eq!(of(|a| a.call(qword_ptr(rax))).memory[1], operand(general(&[RSP]), false, true));
    // Pointers of strings are stepped as well as used.
    let copy = of(|a| a.rep().movsb());
    assert_eq!(copy.data, general(&[RCX, RSI, RDI]).with(Locations::DIRECTION));
    assert_eq!(copy.whole, general(&[RCX, RSI, RDI]));
}

#[test]
fn parts_of_registers_merge_and_halves_do_not() {
    let row = |found: Dependences| (found.data, found.whole, found.merged);
    let none = Locations::NONE;
    assert_eq!(row(of(|a| a.mov(al, bl))), (general(&[RBX]), none, general(&[RAX])));
    assert_eq!(row(of(|a| a.mov(ah, bl))), (general(&[RBX]), none, general(&[RAX])));
    assert_eq!(row(of(|a| a.mov(ax, bx))), (general(&[RBX]), none, general(&[RAX])));
    assert_eq!(row(of(|a| a.mov(eax, ebx))), (general(&[RBX]), general(&[RAX]), none));
    assert_eq!(row(of(|a| a.add(al, bl))), (general(&[RAX, RBX]), BOTH_FLAGS, general(&[RAX])));
    assert_eq!(row(of(|a| a.setb(al))), (Locations::CARRY, none, general(&[RAX])));
    assert_eq!(row(of(|a| a.movzx(eax, bl))), (general(&[RBX]), general(&[RAX]), none));
    // Vectors are whole, whatever the width.
    assert_eq!(row(of(|a| a.addsd(xmm0, xmm1))), (vector(&[0, 1]), vector(&[0]), none));
    assert_eq!(row(of(|a| a.vaddpd(ymm0, ymm1, ymm2))), (vector(&[1, 2]), vector(&[0]), none));
    assert_eq!(row(of(|a| a.vaddpd(zmm31, zmm1, zmm2))), (vector(&[1, 2]), vector(&[31]), none));
}

#[test]
fn flags_are_two_groups() {
    let flags = |found: Dependences| {
        let of = |set: Locations| set.shared(BOTH_FLAGS.with(Locations::DIRECTION));
        (of(found.data), of(found.whole), of(found.merged))
    };
    let (none, carry, others) = (Locations::NONE, Locations::CARRY, Locations::FLAGS);
    assert_eq!(flags(of(|a| a.add(rax, rbx))), (none, BOTH_FLAGS, none));
    // What counts down in a loop of long additions leaves their carry alone.
    assert_eq!(flags(of(|a| a.dec(rax))), (none, others, none));
    assert_eq!(flags(of(|a| a.adc(rax, rbx))), (carry, BOTH_FLAGS, none));
    assert_eq!(flags(of(|a| a.jb(0x2000))), (carry, none, none));
    assert_eq!(flags(of(|a| a.je(0x2000))), (others, none, none));
    assert_eq!(flags(of(|a| a.jbe(0x2000))), (BOTH_FLAGS, none, none));
    assert_eq!(flags(of(|a| a.stc())), (none, carry, none));
    assert_eq!(flags(of(|a| a.bt(rax, rbx))), (none, carry, others));
    assert_eq!(flags(of(|a| a.adcx(rax, rbx))), (carry, carry, none));
    assert_eq!(flags(of(|a| a.adox(rax, rbx))), (others, none, others));
    assert_eq!(flags(of(|a| a.shl(rax, 3))), (none, BOTH_FLAGS, none));
    // A count of 0 leaves all as they are.
    assert_eq!(flags(of(|a| a.shl(rax, cl))), (none, none, BOTH_FLAGS));
    assert_eq!(flags(of(|a| a.std())), (none, Locations::DIRECTION, none));
    assert_eq!(flags(of(|a| a.stosq())).0, Locations::DIRECTION);
    assert_eq!(flags(of(|a| a.comisd(xmm0, xmm1))), (none, BOTH_FLAGS, none));
    assert_eq!(flags(of(|a| a.mulx(rax, rbx, rcx))), (none, none, none));
}

#[test]
fn constants_wait_for_nothing() {
    for found in [
        of(|a| a.xor(eax, eax)),
        of(|a| a.sub(rbx, rbx)),
        of(|a| a.pxor(xmm1, xmm1)),
        of(|a| a.vpxor(xmm1, xmm2, xmm2)),
        of(|a| a.vxorps(ymm1, ymm2, ymm2)),
        of(|a| a.vpxord(zmm1, zmm2, zmm2)),
        of(|a| a.pcmpeqd(xmm1, xmm1)),
        of(|a| a.vpcmpeqb(ymm1, ymm2, ymm2)),
        of(|a| a.pcmpgtd(xmm1, xmm1)),
        of(|a| a.xorps(xmm0, xmm0)),
    ] {
        assert!(found.is_constant && found.data.is_empty() && !found.whole.is_empty(), "{found:?}");
        assert_eq!(found.latency, LatencyClass::Nothing);
    }
    // The carry spread over a register; what is no constant; a part of a register.
    let spread = of(|a| a.sbb(rax, rax));
    assert!(!spread.is_constant && spread.data.has(Locations::CARRY));
    assert!(!of(|a| a.and(rax, rax)).is_constant && !of(|a| a.xor(rax, rbx)).is_constant);
    assert_eq!(of(|a| a.cmp(rax, rax)).data, general(&[RAX]));
    let part = of(|a| a.xor(ax, ax));
    assert_eq!(
        (part.data, part.merged, part.latency),
        (Locations::NONE, general(&[RAX]), LatencyClass::Integer)
    );
}

#[test]
fn conditional_writes_read_the_old_value() {
    assert_eq!(of(|a| a.cmovb(rax, rbx)).data, general(&[RAX, RBX]).with(Locations::CARRY));
    assert_eq!(of(|a| a.cmovb(eax, ebx)).data, general(&[RAX, RBX]).with(Locations::CARRY));
    let scan = of(|a| a.bsf(rax, rbx));
    assert_eq!((scan.data, scan.whole), (general(&[RAX, RBX]), general(&[RAX]).with(BOTH_FLAGS)));
    assert_eq!(of(|a| a.tzcnt(rax, rbx)).data, general(&[RBX]));
    let (merging, zeroing) =
        (of(|a| a.vaddpd(zmm0.k1(), zmm1, zmm2)), of(|a| a.vaddpd(zmm0.k1().z(), zmm1, zmm2)));
    assert_eq!(merging.data, vector(&[0, 1, 2]).with(Locations::mask(1)));
    assert_eq!(zeroing.data, vector(&[1, 2]).with(Locations::mask(1)));
}

#[test]
fn scalars_keep_upper_elements_that_are_no_part_of_their_value() {
    let row = |found: Dependences| (found.data, found.kept);
    let none = Locations::NONE;
    assert_eq!(row(of(|a| a.cvtsi2sd(xmm0, rax))), (vector(&[0]).with(general(&[RAX])), vector(&[0])));
    assert_eq!(row(of(|a| a.sqrtsd(xmm0, xmm1))), (vector(&[0, 1]), vector(&[0])));
    assert_eq!(row(of(|a| a.sqrtsd(xmm0, xmm0))), (vector(&[0]), none));
    assert_eq!(row(of(|a| a.vcvtsi2sd(xmm0, xmm1, rax))), (vector(&[1]).with(general(&[RAX])), vector(&[1])));
    assert_eq!(row(of(|a| a.vsqrtsd(xmm0, xmm1, xmm1))), (vector(&[1]), none));
    assert_eq!(row(of(|a| a.addsd(xmm0, xmm1))).1, none);
    // A load of a scalar clears the rest; upper halves that are cleared leave the values.
    assert_eq!(row(of(|a| a.movsd_2(xmm0, qword_ptr(rax)))), (none, none));
    assert_eq!(of(|a| a.movss(xmm0, xmm1)).data, vector(&[0, 1]));
    assert_eq!(of(|a| a.vzeroupper()).writes(), none);
}

#[test]
fn x87_registers_are_counted_from_the_top() {
    let row = |found: Dependences| (found.data, found.whole.without(Locations::X87_STATUS), found.top);
    let none = Locations::NONE;
    // A push writes the register before the top.
    assert_eq!(row(of(|a| a.fld(qword_ptr(rax)))), (none, x87(&[7]), Top::Moves(-1)));
    assert_eq!(row(of(|a| a.fld(st2))), (x87(&[2]), x87(&[7]), Top::Moves(-1)));
    assert_eq!(row(of(|a| a.fldz())), (none, x87(&[7]), Top::Moves(-1)));
    assert_eq!(row(of(|a| a.faddp(st1, st0))), (x87(&[0, 1]), x87(&[1]), Top::Moves(1)));
    assert_eq!(row(of(|a| a.fadd(qword_ptr(rax)))), (x87(&[0]), x87(&[0]), Top::Stays));
    assert_eq!(row(of(|a| a.fstp(qword_ptr(rax)))), (x87(&[0]), none, Top::Moves(1)));
    assert_eq!(row(of(|a| a.fstp(st3))), (x87(&[0]), x87(&[3]), Top::Moves(1)));
    assert_eq!(row(of(|a| a.fucompp())), (x87(&[0, 1]), none, Top::Moves(2)));
    assert_eq!(row(of(|a| a.fincstp())), (none, none, Top::Moves(1)));
    assert_eq!(row(of(|a| a.fdecstp())), (none, none, Top::Moves(-1)));
    assert_eq!(row(of(|a| a.fninit())).2, Top::Resets);
    assert_eq!(row(of(|a| a.paddd(mm1, mm2))), (x87(&[1, 2]), x87(&[1]), Top::Resets));
    assert_eq!(of(|a| a.fxch(st0, st2)).exchange, Some([x87(&[0]), x87(&[2])]));
    // A comparison goes to the flags through the condition codes, or at once.
    let status = of(|a| a.fnstsw(ax));
    assert!(status.data.has(Locations::X87_STATUS) && status.merged == general(&[RAX]));
    assert!(!status.writes().has(Locations::X87_STATUS));
    assert_eq!(of(|a| a.fcomip(st0, st1)).whole.shared(BOTH_FLAGS), BOTH_FLAGS);

    // Two values go up and come down again as physical registers.
    let (mut top, mut written) = (0, Vec::new());
    for found in
        [of(|a| a.fldz()), of(|a| a.fld1()), of(|a| a.faddp(st1, st0)), of(|a| a.fstp(qword_ptr(rax)))]
    {
        let before = found.top.step(&mut top);
        written.push((found.data.at_top(before), found.whole.without(Locations::X87_STATUS).at_top(before)));
    }
    assert_eq!(written, [(none, x87(&[7])), (none, x87(&[6])), (x87(&[6, 7]), x87(&[7])), (x87(&[7]), none)]);
    assert_eq!(top, 0);
    // Nothing else moves.
    let mixed = general(&[3]).with(vector(&[31])).with(Locations::mask(7)).with(x87(&[1, 7]));
    let moved = general(&[3]).with(vector(&[31])).with(Locations::mask(7)).with(x87(&[3, 1]));
    assert_eq!(mixed.at_top(2), moved);
}

#[test]
fn steps_are_additions_to_a_whole_register() {
    let step = |register, by| Some(Step { register, by });
    assert_eq!(of(|a| a.add(rax, 8)).step, step(RAX, By::Constant(8)));
    assert_eq!(of(|a| a.add(eax, -1)).step, step(RAX, By::Constant(-1)));
    assert_eq!(of(|a| a.sub(rbx, 4096)).step, step(RBX, By::Constant(-4096)));
    assert_eq!(of(|a| a.sub(rbx, -128)).step, step(RBX, By::Constant(128)));
    assert_eq!(of(|a| a.inc(rcx)).step, step(RCX, By::Constant(1)));
    assert_eq!(of(|a| a.dec(ecx)).step, step(RCX, By::Constant(-1)));
    assert_eq!(of(|a| a.lea(rax, qword_ptr(rax - 24))).step, step(RAX, By::Constant(-24)));
    assert_eq!(of(|a| a.lea(rax, qword_ptr(rax + rbx * 8))).step, step(RAX, By::Register(RBX)));
    assert_eq!(of(|a| a.lea(rax, qword_ptr(rbx + rax))).step, step(RAX, By::Register(RBX)));
    assert_eq!(of(|a| a.add(rax, rdx)).step, step(RAX, By::Register(RDX)));
    for found in [
        of(|a| a.add(al, 1)),
        of(|a| a.add(ax, 1)),
        of(|a| a.add(rax, rax)),
        of(|a| a.add(rax, qword_ptr(rbx))),
        of(|a| a.add(qword_ptr(rax), 1)),
        of(|a| a.adc(rax, 1)),
        of(|a| a.lea(rax, qword_ptr(rbx + 8))),
        of(|a| a.lea(rax, qword_ptr(rax + rax * 2))),
        of(|a| a.lea(rax, qword_ptr(rbx + rax * 2))),
        of(|a| a.xor(rax, 1)),
        of(|a| a.cmp(rax, 1)),
    ] {
        assert_eq!(found.step, None, "{found:?}");
    }
}

#[test]
fn the_stack_pointer_is_moved_by_constants() {
    for (found, by) in [
        (of(|a| a.push(rax)), -8),
        (of(|a| a.pop(rax)), 8),
        (of(|a| a.call(0x2000)), -8),
        (of(|a| a.ret()), 8),
        (of(|a| a.ret_1(8)), 16),
        (of(|a| a.sub(rsp, 32)), -32),
        (of(|a| a.lea(rsp, qword_ptr(rsp + 8))), 8),
        (of(|a| a.pop(rsp)), 0),
        (of(|a| a.leave()), 0),
        (of(|a| a.sub(rsp, rax)), 0),
        (of(|a| a.mov(rsp, rbp)), 0),
    ] {
        assert_eq!(found.stack, by, "{found:?}");
    }
    let push = of(|a| a.push(rax));
    assert_eq!((push.data, push.whole), (general(&[RAX, RSP]), general(&[RSP])));
    let leave = of(|a| a.leave());
    assert_eq!((leave.addresses(), leave.whole), (general(&[RBP]), general(&[RSP, RBP])));
}

#[test]
fn copies_and_exchanges_compute_nothing() {
    for (found, latency) in [
        (of(|a| a.mov(rax, rbx)), LatencyClass::Copy),
        (of(|a| a.mov(rax, qword_ptr(rbx))), LatencyClass::Load),
        (of(|a| a.mov(qword_ptr(rbx), rax)), LatencyClass::Store),
        (of(|a| a.movzx(eax, byte_ptr(rbx))), LatencyClass::Load),
        // An operation between registers, but of the same value.
        (of(|a| a.movsxd(rax, ebx)), LatencyClass::Integer),
        (of(|a| a.push(rax)), LatencyClass::Store),
        (of(|a| a.pop(rax)), LatencyClass::Load),
        (of(|a| a.movapd(xmm0, xmm1)), LatencyClass::Copy),
        (of(|a| a.vmovupd(ymm0, ymmword_ptr(rax))), LatencyClass::Load),
        (of(|a| a.movsd_2(qword_ptr(rax), xmm0)), LatencyClass::Store),
        (of(|a| a.fld(st1)), LatencyClass::Copy),
        (of(|a| a.fstp(qword_ptr(rax))), LatencyClass::Store),
    ] {
        assert!(found.is_copy, "{found:?}");
        assert_eq!(found.latency, latency, "{found:?}");
    }
    for found in [
        of(|a| a.mov(al, bl)),
        of(|a| a.movsd_2(xmm0, xmm1)),
        of(|a| a.lea(rax, qword_ptr(rbx))),
        of(|a| a.movq(xmm0, rax)),
        of(|a| a.vmovups(zmm0.k1(), zmm1)),
        of(|a| a.movhps(xmm0, qword_ptr(rax))),
    ] {
        assert!(!found.is_copy, "{found:?}");
    }
    assert_eq!(of(|a| a.xchg(rax, rbx)).exchange, Some([general(&[RAX]), general(&[RBX])]));
    assert_eq!(of(|a| a.xchg(al, bl)).exchange, None);
    assert_eq!(of(|a| a.xchg(qword_ptr(rax), rbx)).exchange, None);
}

#[test]
fn latencies_are_of_classes() {
    for (found, latency) in [
        (of(|a| a.nop()), LatencyClass::Nothing),
        (of(|a| a.prefetcht0(byte_ptr(rax))), LatencyClass::Nothing),
        (of(|a| a.add(rax, qword_ptr(rbx))), LatencyClass::Integer),
        (of(|a| a.cmovb(rax, rbx)), LatencyClass::Integer),
        (of(|a| a.imul_2(rax, rbx)), LatencyClass::IntegerMultiply),
        (of(|a| a.popcnt(rax, rbx)), LatencyClass::IntegerMultiply),
        (of(|a| a.idiv(rcx)), LatencyClass::IntegerDivide),
        (of(|a| a.addsd(xmm0, xmm1)), LatencyClass::FpAdd),
        (of(|a| a.vsubps(ymm0, ymm1, ymm2)), LatencyClass::FpAdd),
        (of(|a| a.ucomisd(xmm0, xmm1)), LatencyClass::FpAdd),
        (of(|a| a.fadd(qword_ptr(rax))), LatencyClass::FpAdd),
        (of(|a| a.maxsd(xmm0, xmm1)), LatencyClass::FpOther),
        (of(|a| a.mulsd(xmm0, xmm1)), LatencyClass::FpMultiply),
        (of(|a| a.vmulpd(zmm0, zmm1, zmm2)), LatencyClass::FpMultiply),
        (of(|a| a.fmul(qword_ptr(rax))), LatencyClass::FpMultiply),
        (of(|a| a.vfmadd231pd(ymm0, ymm1, ymm2)), LatencyClass::FpSum),
        (of(|a| a.vfnmadd213sd(xmm0, xmm1, xmm2)), LatencyClass::FpMultiplyAdd),
        (of(|a| a.divsd(xmm0, xmm1)), LatencyClass::FpDivide),
        (of(|a| a.vsqrtpd(ymm0, ymm1)), LatencyClass::FpDivide),
        (of(|a| a.fsqrt()), LatencyClass::FpDivide),
        (of(|a| a.fsin()), LatencyClass::FpFunction),
        (of(|a| a.cvttsd2si(rax, xmm0)), LatencyClass::Convert),
        (of(|a| a.fild(dword_ptr(rax))), LatencyClass::Convert),
        (of(|a| a.paddd(xmm0, xmm1)), LatencyClass::VectorInteger),
        (of(|a| a.andpd(xmm0, xmm1)), LatencyClass::VectorInteger),
        (of(|a| a.vpmulld(ymm0, ymm1, ymm2)), LatencyClass::VectorMultiply),
        (of(|a| a.aesenc(xmm0, xmm1)), LatencyClass::VectorMultiply),
        (of(|a| a.shl(rax, 3)), LatencyClass::Integer),
        (of(|a| a.movq(rax, xmm0)), LatencyClass::Transfer),
        (of(|a| a.pmovmskb(eax, xmm0)), LatencyClass::Transfer),
        (of(|a| a.lock().add(qword_ptr(rax), rbx)), LatencyClass::Atomic),
        (of(|a| a.xchg(qword_ptr(rax), rbx)), LatencyClass::Atomic),
        (of(|a| a.rep().movsb()), LatencyClass::String),
        (of(|a| a.jne(0x2000)), LatencyClass::Branch),
        (of(|a| a.jmp(qword_ptr(rax))), LatencyClass::Branch),
        (of(|a| a.call(0x2000)), LatencyClass::Call),
        (of(|a| a.ret()), LatencyClass::Return),
        (of(|a| a.syscall()), LatencyClass::System),
        (of(|a| a.cpuid()), LatencyClass::System),
    ] {
        assert_eq!(found.latency, latency, "{found:?}");
    }
}

#[test]
fn system_calls_take_arguments_and_return_a_value() {
    let call = of(|a| a.syscall());
    assert!(
        call.data.has(general(&[RAX, RDI, RSI, RDX, 8, 9, 10])) && call.whole.has(general(&[RAX, RCX, 11]))
    );
    assert!(call.writes().shared(BOTH_FLAGS).is_empty());
}

#[test]
fn what_is_no_instruction_depends_on_nothing() {
    for bytes in [&[0x06_u8][..], &[], &[0x48], &[0xff; 20]] {
        assert_eq!(of_bytes(bytes), Dependences::default(), "{bytes:x?}");
    }
}

#[test]
fn sets_have_their_places() {
    let all =
        general(&[0, 15]).with(BOTH_FLAGS).with(vector(&[0, 31])).with(Locations::mask(7)).with(x87(&[0]));
    assert_eq!(all.iter().collect::<Vec<_>>(), [0, 15, 16, 17, 24, 39, 64, 95]);
    let mut each = Vec::new();
    all.each(|place| each.push(place));
    assert!(all.iter().eq(each));
    assert_eq!(
        format!("{:?}", all.without(general(&[0]))),
        "{\"r15\", \"carry\", \"flags\", \"st0\", \"k7\", \"v0\", \"v31\"}"
    );
    assert!(all.has_x87() && !general(&[3]).has_x87() && Locations::NONE.is_empty());
}

/// In the places of [`Instruction::register_bit`].
fn coarse(set: Locations) -> u64 {
    let flags = BOTH_FLAGS.with(Locations::DIRECTION).with(Locations::X87_STATUS);
    set.iter().fold(0, |all, place| {
        all | match place {
            0..16 => 1 << place,
            _ if flags.0 >> place & 1 == 1 => 1 << 16,
            24..32 => 1 << 17,
            32..40 => 1 << (place - 8),
            _ => 1 << (place - 32),
        }
    })
}

/// Whether the coarse sets and the fine ones agree but for the rules above.
fn agree(bytes: &[u8]) -> Result<(), TestCaseError> {
    const SYSTEM: u64 = 1 << 18;
    const FLAGS: u64 = 1 << 16;
    const X87: u64 = 1 << 17;
    let record = InstructionRecord::new(0x1000, bytes);
    let decoded = Decoder::with_ip(64, record.code(), 0x1000, DecoderOptions::NONE).decode();
    let (wide, fine) = (Instruction::classify(&record), Dependences::of(&record));
    if matches!(decoded.mnemonic(), Mnemonic::Vzeroupper) || wide.class == Class::SystemCall {
        return Ok(());
    }
    let known = RflagsBits::CF
        | RflagsBits::OF
        | RflagsBits::SF
        | RflagsBits::ZF
        | RflagsBits::AF
        | RflagsBits::PF
        | RflagsBits::DF
        | RflagsBits::C0
        | RflagsBits::C1
        | RflagsBits::C2
        | RflagsBits::C3;
    let of_flags = |bits: u32| if bits & known == 0 { FLAGS } else { 0 };
    let reads = coarse(fine.data.with(fine.addresses()).with(fine.hints));
    let writes = coarse(fine.writes());
    let constant = if fine.is_constant { u64::MAX } else { 0 };
    let lost = wide.reads & !reads & !SYSTEM & !of_flags(decoded.rflags_read()) & !constant;
    prop_assert_eq!(lost, 0, "reads of {}: {:x?} {:?} {:?}", decoded.code() as u32, bytes, wide, fine);
    // Old values that stay under a condition.
    let added = reads & !wide.reads & !wide.writes;
    prop_assert_eq!(added, 0, "reads of {}: {:x?} {:?} {:?}", decoded.code() as u32, bytes, wide, fine);
    let is_status = matches!(decoded.mnemonic(), Mnemonic::Fnstsw | Mnemonic::Fstsw);
    let unlisted = of_flags(decoded.rflags_modified()) | if is_status { FLAGS } else { 0 };
    let lost = wide.writes & !writes & !SYSTEM & !unlisted;
    prop_assert_eq!(lost, 0, "writes of {}: {:x?} {:?} {:?}", decoded.code() as u32, bytes, wide, fine);
    // A push writes the new top.
    let pushed = if fine.top == Top::Moves(-1) { X87 } else { 0 };
    prop_assert_eq!(writes & !wide.writes & !pushed, 0, "writes of {:x?} {:?} {:?}", bytes, wide, fine);
    prop_assert_eq!(fine.memory.iter().any(|operand| operand.is_loaded), wide.loads);
    prop_assert_eq!(fine.memory.iter().any(|operand| operand.is_stored), wide.stores);
    prop_assert!(fine.data.has(fine.kept) && fine.merged.shared(fine.whole).is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn coarse_sets_are_covered(bytes in prop::collection::vec(any::<u8>(), 1..16)) {
        agree(&bytes)?;
    }

    /// Most random bytes begin with one of the short opcodes: these have prefixes of vectors and of
    /// two bytes.
    #[test]
    fn coarse_sets_are_covered_of_long_opcodes(
        prefix in prop::sample::select(vec![
            vec![0x0f], vec![0x66, 0x0f], vec![0xf2, 0x0f], vec![0xf3, 0x0f], vec![0x48, 0x0f],
            vec![0x0f, 0x38], vec![0x66, 0x0f, 0x38], vec![0x66, 0x0f, 0x3a], vec![0xc5], vec![0xc4, 0xe2],
            vec![0xc4, 0xe1], vec![0xc4, 0xe3], vec![0x62, 0xf1, 0x7d], vec![0x62, 0xf2, 0xfd], vec![0xd8],
            vec![0xd9], vec![0xda], vec![0xdb], vec![0xdc], vec![0xdd], vec![0xde], vec![0xdf],
            vec![0xf0, 0x48],
        ]),
        bytes in prop::collection::vec(any::<u8>(), 8..10),
    ) {
        agree(&[prefix, bytes].concat())?;
    }
}
