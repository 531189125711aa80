//! Small programs whose events are known.

use iced_x86::code_asm::*;
use locality_isa::Registers;
use locality_shadow::ThreadState;
use locality_shadow::window::End;
use locality_stream::Kind;

use crate::support::{Made, Shadow, limits};

pub const CODE: u64 = 0x40_0000;
pub const STACK: u64 = 0x7fff_0000;
pub const DATA: u64 = 0x60_0000;

/// A page of code, three of stack, two of data.
pub fn made(assembler: &mut CodeAssembler) -> Made {
    let mut memory = Made::default();
    memory.put(CODE, &assembler.assemble(CODE).unwrap());
    memory.put(STACK - 4096, &[0; 3 * 4096]);
    memory.put(DATA, &[0; 2 * 4096]);
    memory.text.push(CODE);
    memory
}

pub fn start() -> ThreadState {
    let registers = Registers { rip: CODE, rsp: STACK, rflags: 0x202, ..Registers::default() };
    ThreadState { registers, extended: Vec::new() }
}

#[test]
fn a_loop_with_a_call() {
    let mut a = CodeAssembler::new(64).unwrap();
    let (mut again, mut function) = (a.create_label(), a.create_label());
    a.mov(rdi, DATA).unwrap();
    a.mov(ecx, 3).unwrap();
    a.set_label(&mut again).unwrap();
    a.call(function).unwrap();
    a.dec(ecx).unwrap();
    a.jne(again).unwrap();
    a.mov(eax, 60).unwrap();
    a.syscall().unwrap();
    a.set_label(&mut function).unwrap();
    a.add(dword_ptr(rdi + rcx * 4), ecx).unwrap();
    a.push(rcx).unwrap();
    a.pop(rdx).unwrap();
    a.ret().unwrap();
    let mut memory = made(&mut a);
    let mut shadow = Shadow::new();
    let ran = shadow.run(&start(), &mut memory, &limits(1000));
    assert_eq!((ran.end(), ran.counts.detail), (End::SystemCall, 60));
    assert_eq!(ran.counts.instructions, 2 + 3 * 7 + 1);
    let back = ran.accesses()[0].3;
    let round = |n: u64| {
        vec![
            (Kind::CALL, STACK - 8, 8, back),
            (Kind::LOAD, DATA + n * 4, 4, 0),
            (Kind::STORE, DATA + n * 4, 4, n),
            (Kind::STORE, STACK - 16, 8, n),
            (Kind::LOAD, STACK - 16, 8, n),
            (Kind::RETURN, STACK - 8, 8, back),
        ]
    };
    assert_eq!(ran.accesses(), [round(3), round(2), round(1)].concat());
    assert_eq!(ran.state.registers.rdx, 1);
    assert_eq!(ran.state.registers.rsp, STACK);
    // The target's memory is as it was.
    assert_eq!(memory.pages[&DATA], [0; 4096]);

    // The second window begins where a block is known, and at an address inside one.
    let known = shadow.code().instructions.len();
    let inside = ThreadState {
        registers: Registers { rip: back, rcx: 5, rdi: DATA, ..start().registers },
        extended: Vec::new(),
    };
    let ran = shadow.run(&inside, &mut memory, &limits(2));
    assert_eq!((ran.end(), ran.counts.instructions), (End::Instructions, 2));
    assert_eq!(shadow.code().instructions.len(), known);
}

#[test]
fn registers_are_told_at_each_block() {
    let mut a = CodeAssembler::new(64).unwrap();
    let mut again = a.create_label();
    a.mov(ecx, 2).unwrap();
    a.set_label(&mut again).unwrap();
    a.lea(rbx, ptr(rbx + 3)).unwrap();
    a.loop_(again).unwrap();
    a.hlt().unwrap();
    let ran = Shadow::new().run(&start(), &mut made(&mut a), &limits(1000));
    assert_eq!((ran.end(), ran.counts.blocks), (End::Unsupported, 3));
    let of = |number: usize| ran.registers.iter().map(|r| r[number]).collect::<Vec<_>>();
    assert_eq!((of(1), of(3), of(4)), (vec![0, 1, 0], vec![0, 3, 6], vec![STACK; 3]));
    let cut = ran.events.last().unwrap();
    assert_eq!((cut.kind, cut.value), (Kind::BLOCK_CUT, 0));
}
