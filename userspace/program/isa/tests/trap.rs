//! Traps whose cause is known, explained. How often real programs' traps are explained is measured
//! in `src/native`.
#![expect(clippy::unwrap_used, reason = "helper functions of tests")]

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use locality_isa::{
    AccessKind, Certainty, Code, Found, NotFound, Registers, Site, Trap, Watched, accessing_instruction,
};

const START: u64 = 0x40_1000;

/// A function: some code, which falls into step with any wrong start, then what the test writes.
/// Returns the bytes and the address of the test's first instruction.
fn function(write: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>) -> (Vec<u8>, u64) {
    let mut a = CodeAssembler::new(64).unwrap();
    for _ in 0..8 {
        a.push(rbp).unwrap();
        a.mov(rbp, rsp).unwrap();
        a.sub(rsp, 0x20).unwrap();
    }
    let first = START + a.assemble(START).unwrap().len() as u64;
    write(&mut a).unwrap();
    (a.assemble(START).unwrap(), first)
}

fn after() -> Registers {
    Registers { rsp: 0x7fff_0000, rsi: 0x5000_0000, rdi: 0x6000_0000, ..Registers::default() }
}

/// The explanation of a trap at the end of `write`, with the start of the function known or not:
/// both must agree.
fn explain(
    write: impl Fn(&mut CodeAssembler) -> Result<(), IcedError>,
    registers: Registers,
    address: u64,
) -> (Result<Found, NotFound>, u64) {
    let (bytes, first) = function(write);
    let code = Code { address: START, bytes: &bytes };
    let registers = Registers { rip: START + bytes.len() as u64, ..registers };
    let watched = Watched { address, bytes: 8 };
    let trap = Trap { registers, watched, function_start: None, top_of_stack: None, call_site: None };
    let found = accessing_instruction(&code, &trap);
    let from_start = accessing_instruction(&code, &Trap { function_start: Some(START), ..trap });
    assert_eq!(found.map(|f| (f.site, f.kind)), from_start.map(|f| (f.site, f.kind)));
    (found, first)
}

macro_rules! found {
    ($assembler:ident => $write:expr, $address:expr, $kind:ident, $certainty:ident) => {
        let (found, ip) = explain(|$assembler| $write, after(), $address);
        let found = found.unwrap();
        assert_eq!(found.site, Site::Instruction { ip }, "{}", stringify!($write));
        assert_eq!(
            (found.kind, found.certainty),
            (AccessKind::$kind, Certainty::$certainty),
            "{}",
            stringify!($write)
        );
    };
}

#[test]
fn instructions_before_the_trap() {
    found!(a => a.mov(rax, qword_ptr(rdi)), 0x6000_0000, Load, Verified);
    found!(a => a.mov(dword_ptr(rsi + rdi * 1), eax), 0xb000_0000, Store, Verified);
    found!(a => a.add(qword_ptr(rdi + 0x10), 1), 0x6000_0010, ReadWrite, Verified);
    // The second word of a wide access.
    found!(a => a.movups(xmm0, xmmword_ptr(rdi)), 0x6000_0008, Load, Verified);
    // The stack pointer has moved.
    found!(a => a.push(rax), 0x7fff_0000, Store, Verified);
    found!(a => a.pop(rax), 0x7ffe_fff8, Load, Verified);
    found!(a => a.leave(), 0x7ffe_fff8, Load, Verified);
    found!(a => a.push(qword_ptr(rdi)), 0x7fff_0000, Store, Verified);
    found!(a => a.push(qword_ptr(rdi)), 0x6000_0000, Load, Verified);
    found!(a => a.pop(qword_ptr(rsp + 8)), 0x7fff_0008, Store, Verified);
    // String instructions have moved their pointers.
    found!(a => a.movsq(), 0x4fff_fff8, Load, Verified);
    found!(a => a.movsq(), 0x5fff_fff8, Store, Verified);
    found!(a => a.stosb(), 0x5fff_fff8, Store, Verified);
    found!(a => a.rep().stosq(), 0x5fff_fff8, Store, Verified);
    // A fast string operation that ran on for some iterations.
    found!(a => a.rep().stosb(), 0x5fff_ffd0, Store, Consistent);
    // The instruction has overwritten its own address.
    found!(a => a.mov(rdi, qword_ptr(rdi + 8)), 0x1234_5678, Load, Consistent);
    found!(a => a.xchg(qword_ptr(rdi), rdi), 0x1234_5678, ReadWrite, Consistent);
    found!(a => a.xsavec(byte_ptr(rdi)), 0x6000_0200, Store, Consistent);
}

#[test]
fn downward_strings() {
    let downward = Registers { rflags: 1 << 10, ..after() };
    let (found, ip) = explain(|a| a.stosq(), downward, 0x6000_0008);
    assert_eq!(found.unwrap().site, Site::Instruction { ip });
}

#[test]
fn a_repeated_string_instruction_traps_at_itself() {
    let (bytes, ip) = function(|a| a.rep().movsq());
    let registers = Registers { rip: ip, rcx: 9, ..after() };
    let watched = Watched { address: 0x5fff_fff8, bytes: 8 };
    let trap = Trap { registers, watched, function_start: None, top_of_stack: None, call_site: None };
    let found = accessing_instruction(&Code { address: START, bytes: &bytes }, &trap).unwrap();
    assert_eq!(found.site, Site::Instruction { ip });
    assert_eq!((found.kind, found.certainty), (AccessKind::Store, Certainty::Verified));
}

/// A prefix byte that ends the instruction before must not be taken for part of the access.
#[test]
fn trailing_prefix_bytes() {
    let (found, first) = explain(
        |a| {
            a.mov(eax, 0x4811_2233)?;
            a.mov(ecx, dword_ptr(rdi))
        },
        after(),
        0x6000_0000,
    );
    assert_eq!(found.unwrap().site, Site::Instruction { ip: first + 5 });
}

#[test]
fn calls_and_returns() {
    let (bytes, first) = function(|a| {
        a.call(START)?;
        a.nop()
    });
    let code = Code { address: START, bytes: &bytes };
    let return_address = Some(first + 5);
    let trap = |rip: u64, address: u64, function_start: Option<u64>, top_of_stack: Option<u64>| Trap {
        registers: Registers { rip, ..after() },
        watched: Watched { address, bytes: 8 },
        function_start,
        top_of_stack,
        call_site: None,
    };

    let called = accessing_instruction(&code, &trap(START, 0x7fff_0000, None, return_address)).unwrap();
    assert_eq!(called.site, Site::Call { return_address });
    assert_eq!((called.kind, called.certainty), (AccessKind::Store, Certainty::Verified));
    // Without the word on the stack, that `rip` is an entry still says that it was a call.
    let called = accessing_instruction(&code, &trap(START, 0x7fff_0000, Some(START), None)).unwrap();
    assert_eq!(called.site, Site::Call { return_address: None });
    // The call that the return address follows goes elsewhere.
    let elsewhere =
        accessing_instruction(&code, &trap(START + 1, 0x7fff_0000, Some(START + 1), return_address));
    assert_eq!(elsewhere, Err(NotFound::AfterBranch));

    let returned = accessing_instruction(&code, &trap(first + 5, 0x7ffe_fff8, None, None)).unwrap();
    assert_eq!((returned.site, returned.certainty), (Site::Return, Certainty::Verified));
    // Something else that was read elsewhere: the jump that read it left no trace.
    let jumped = accessing_instruction(&code, &trap(first + 5, 0x1234_5678, None, None));
    assert_eq!(jumped, Err(NotFound::AfterBranch));
}

/// A caller in another module: its code is given apart, and decides.
#[test]
fn a_call_from_elsewhere() {
    let (bytes, _) = function(|a| a.nop());
    let code = Code { address: START, bytes: &bytes };
    let mut a = CodeAssembler::new(64).unwrap();
    a.call(START).unwrap();
    let caller = 0x7000_0000;
    let call = a.assemble(caller).unwrap();
    let return_address = Some(caller + call.len() as u64);
    let trap = Trap {
        registers: Registers { rip: START, ..after() },
        watched: Watched { address: 0x7fff_0000, bytes: 8 },
        function_start: None,
        top_of_stack: return_address,
        call_site: None,
    };
    assert!(trap.is_on_top_of_stack());
    let explained = |call_site| accessing_instruction(&code, &Trap { call_site, ..trap });
    assert_eq!(explained(None).unwrap().certainty, Certainty::Unverifiable);
    let found = explained(Some(Code { address: caller, bytes: &call })).unwrap();
    assert_eq!((found.site, found.certainty), (Site::Call { return_address }, Certainty::Verified));
    // No call ends there: the word on the stack is no return address.
    let no_call = Code { address: caller, bytes: &[0x90; 5] };
    assert_eq!(explained(Some(no_call)), Err(NotFound::NoInstruction));
}

/// `push rbx` leaves rbx on the stack; another value there was pushed by a call.
#[test]
fn a_push_of_another_value_was_a_call() {
    let (bytes, _) = function(|a| a.push(rbx));
    let code = Code { address: START, bytes: &bytes };
    let end = START + bytes.len() as u64;
    let trap = Trap {
        registers: Registers { rip: end, rbx: 7, ..after() },
        watched: Watched { address: 0x7fff_0000, bytes: 8 },
        function_start: None,
        top_of_stack: Some(7),
        call_site: None,
    };
    let site = |trap: &Trap| accessing_instruction(&code, trap).map(|found| found.site);
    assert_eq!(site(&trap), Ok(Site::Instruction { ip: end - 1 }));
    let elsewhere = Trap { top_of_stack: Some(0x50_0000), ..trap };
    assert_eq!(site(&elsewhere), Ok(Site::Call { return_address: Some(0x50_0000) }));
}

#[test]
fn missing_code() {
    let trap = Trap {
        registers: Registers { rip: START, ..after() },
        watched: Watched { address: 0x1000, bytes: 8 },
        function_start: None,
        top_of_stack: None,
        call_site: None,
    };
    for bytes in [&[][..], &[0x90]] {
        let code = Code { address: START, bytes };
        assert_eq!(accessing_instruction(&code, &trap), Err(NotFound::NoInstruction));
    }
}
