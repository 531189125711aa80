//! Classification of instructions assembled for the purpose.

use iced_x86::code_asm::*;

use super::*;

fn facts(assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), iced_x86::IcedError>) -> Instruction {
    let mut assembler = CodeAssembler::new(64).unwrap();
    assemble(&mut assembler).unwrap();
    Instruction::classify(&InstructionRecord::new(0x1000, &assembler.assemble(0x1000).unwrap()))
}

#[test]
fn classes_and_types() {
    let row = |facts: Instruction| (facts.class, facts.data, facts.loads, facts.stores, facts.flow);
    assert_eq!(
        row(facts(|a| a.mov(rax, qword_ptr(rbx)))),
        (Class::Move, DataType::Integer(8), true, false, Flow::Next)
    );
    assert_eq!(
        row(facts(|a| a.add(dword_ptr(rbx), eax))),
        (Class::Integer, DataType::Integer(4), true, true, Flow::Next)
    );
    assert_eq!(
        row(facts(|a| a.addsd(xmm0, qword_ptr(rbx)))),
        (Class::Float, DataType::Float(8), true, false, Flow::Next)
    );
    assert_eq!(
        row(facts(|a| a.vaddps(ymm0, ymm1, ymmword_ptr(rbx)))),
        (Class::Vector, DataType::FloatVector(32), true, false, Flow::Next)
    );
    assert_eq!(
        row(facts(|a| a.movdqu(xmmword_ptr(rbx), xmm3))),
        (Class::Vector, DataType::IntegerVector(16), false, true, Flow::Next)
    );
    assert_eq!(row(facts(|a| a.push(rax))), (Class::Stack, DataType::Integer(8), false, true, Flow::Next));
    assert_eq!(row(facts(|a| a.ret())), (Class::Return, DataType::Integer(8), true, false, Flow::Return));
    assert_eq!(row(facts(|a| a.call(0x2000))), (Class::Call, DataType::Integer(8), false, true, Flow::Call));
    assert_eq!(
        row(facts(|a| a.call(qword_ptr(rax)))),
        (Class::Call, DataType::Integer(8), true, true, Flow::IndirectCall)
    );
    assert_eq!(
        row(facts(|a| a.syscall())),
        (Class::SystemCall, DataType::None, false, false, Flow::SystemCall)
    );
    assert_eq!(
        row(facts(|a| a.je(0x2000))),
        (Class::Branch, DataType::None, false, false, Flow::Conditional)
    );
    assert_eq!(
        row(facts(|a| a.rep().movsb())),
        (Class::String, DataType::Integer(1), true, true, Flow::Next)
    );
    assert_eq!(row(facts(|a| a.fld(qword_ptr(rax)))).0, Class::Float);
    assert_eq!(row(facts(|a| a.psrad(xmm0, xmm1))).0, Class::Vector);
    assert_eq!(row(facts(|a| a.imul_2(rax, rbx))).0, Class::IntegerMultiply);
}

#[test]
fn registers_are_sets_of_whole_registers() {
    let facts = facts(|a| a.add(al, byte_ptr(rbx + rcx * 2)));
    assert_eq!(facts.reads, 1 | 1 << 1 | 1 << 3);
    assert_eq!(facts.writes, 1 | FLAGS);
    let vector = self::facts(|a| a.vaddpd(ymm1, ymm2, ymm15));
    assert_eq!((vector.reads, vector.writes), (1 << 34 | 1 << 47, 1 << 33));
}

#[test]
fn accesses_of_calls_and_returns_are_told_apart() {
    let call = facts(|a| a.call(qword_ptr(rax)));
    assert_eq!((call.access_kind(false), call.access_kind(true)), (Kind::LOAD, Kind::CALL));
    let ret = facts(|a| a.ret());
    assert_eq!(ret.access_kind(false), Kind::RETURN);
    let push = facts(|a| a.push(rax));
    assert_eq!((push.access_kind(true), push.access_kind(false)), (Kind::STORE, Kind::LOAD));
}

#[test]
fn no_instruction_is_a_trap_of_length_zero() {
    for bytes in [&[0x06_u8][..], &[], &[0x48], &[0xff; 20]] {
        let facts = Instruction::classify(&InstructionRecord::new(0, bytes));
        assert_eq!((facts.length, facts.flow, facts.class), (0, Flow::Trap, Class::Other), "{bytes:x?}");
    }
}
