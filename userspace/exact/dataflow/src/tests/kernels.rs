//! Kernels whose cycles follow from their dependences by hand.

use iced_x86::code_asm::{registers::*, *};

use super::*;

const N: u64 = 1000;
const STEPS: View = View { stack: true, induction: true, ..View::MACHINE };
const STACK: View = View { stack: true, ..View::MACHINE };

/// Runs of one block, with accesses by turn: place, kind, address, bytes.
fn turns(
    write: impl FnOnce(&mut CodeAssembler),
    accesses: impl Fn(u64) -> Vec<(u32, Kind, u64, u16)>,
) -> (Program, Vec<Event>) {
    let mut program = Program::default();
    let block = program.block(write);
    let mut events = Vec::new();
    for turn in 0..N {
        events.push(program.begin(block));
        for (place, kind, address, size) in accesses(turn) {
            events.push(program.access(block, place, kind, address, size));
        }
    }
    (program, events)
}

fn none(_: u64) -> Vec<(u32, Kind, u64, u16)> {
    Vec::new()
}

/// Cycles by view and latency: machine, stack and steps, values, all with unit latency; machine
/// latencies less the stack.
fn cycles((program, events): &(Program, Vec<Event>)) -> [u64; 4] {
    let of = |view, latency| span(program, events, view, latency);
    [
        of(View::MACHINE, Latency::Unit),
        of(STEPS, Latency::Unit),
        of(View::VALUES, Latency::Unit),
        of(STACK, Latency::Machine),
    ]
}

/// The loop's end: a counter and a branch.
fn end(a: &mut CodeAssembler) {
    a.dec(rcx).unwrap();
    a.jne(0x1000).unwrap();
}

#[test]
fn a_chain_and_independent_chains() {
    let chain = turns(
        |a| {
            (0..8).for_each(|_| a.add(rax, rbx).unwrap());
            end(a);
        },
        none,
    );
    // The accumulator is no step, since no address and no comparison uses it.
    assert_eq!(cycles(&chain), [8 * N, 8 * N, 8 * N, 8 * N]);
    let independent = turns(
        |a| {
            for register in [rax, rdx, rsi, rdi, r8, r9, r10, r11] {
                a.add(register, rbx).unwrap();
            }
            end(a);
        },
        none,
    );
    // The last branch waits for the counter, but where the counter is known.
    assert_eq!(cycles(&independent), [N + 1, N, N, N + 1]);
}

#[test]
fn reductions() {
    let sum = |registers: &'static [AsmRegisterXmm]| {
        turns(
            move |a| {
                for (at, register) in registers.iter().enumerate() {
                    a.addsd(*register, qword_ptr(rsi + at as u64 as i32 * 8)).unwrap();
                }
                a.add(rsi, registers.len() as i32 * 8).unwrap();
                end(a);
            },
            move |turn| {
                let count = registers.len() as u64;
                (0..count).map(|at| (at as u32, Kind::LOAD, 0x10_0000 + (turn * count + at) * 8, 8)).collect()
            },
        )
    };
    for registers in [&[xmm0][..], &[xmm0, xmm1, xmm2, xmm3]] {
        assert_eq!(cycles(&sum(registers)), [N + 1, N, N, 3 * N + 5]);
    }
}

#[test]
fn pointer_chases() {
    let chase = |registers: &'static [AsmRegister64]| {
        turns(
            move |a| {
                registers.iter().for_each(|register| a.mov(*register, qword_ptr(*register)).unwrap());
                end(a);
            },
            move |turn| {
                (0..registers.len() as u64)
                    .map(|at| (at as u32, Kind::LOAD, 0x10_0000 + (at * N + turn) * 64, 8))
                    .collect()
            },
        )
    };
    for registers in [&[rax][..], &[rax, rdx, rsi, rdi]] {
        // Loads of what nobody wrote are copies.
        assert_eq!(cycles(&chase(registers)), [N + 1, N, 1, 5 * N]);
    }
}

/// `c[i] = a[i] + b[i]`, and `a[i] = a[i - 1] + 1`.
#[test]
fn streams_and_recurrences_through_memory() {
    let stream = turns(
        |a| {
            a.movsd_2(xmm0, qword_ptr(rsi + rax)).unwrap();
            a.addsd(xmm0, qword_ptr(rdx + rax)).unwrap();
            a.movsd_2(qword_ptr(rdi + rax), xmm0).unwrap();
            a.add(rax, 8).unwrap();
            a.cmp(rax, rbx).unwrap();
            a.jne(0x1000).unwrap();
        },
        |turn| {
            let at = |array: u64| 0x10_0000 * array + turn * 8;
            vec![(0, Kind::LOAD, at(1), 8), (1, Kind::LOAD, at(2), 8), (2, Kind::STORE, at(3), 8)]
        },
    );
    // The step, the comparison and the branch of the last turn: N + 2. Without steps: load, add, store.
    assert_eq!(cycles(&stream), [N + 2, 3, 2, N - 1 + 5 + 3]);
    let through = turns(
        |a| {
            a.mov(rdx, qword_ptr(rax - 8)).unwrap();
            a.add(rdx, 1).unwrap();
            a.mov(qword_ptr(rax), rdx).unwrap();
            a.add(rax, 8).unwrap();
            a.cmp(rax, rbx).unwrap();
            a.jne(0x1000).unwrap();
        },
        |turn| {
            let at = |back: u64| 0x10_0000 + turn * 8 - back;
            vec![(0, Kind::LOAD, at(8), 8), (2, Kind::STORE, at(0), 8)]
        },
    );
    // The addition is of a loaded value, which a load wrote anew: its ordinary result goes on.
    assert_eq!(cycles(&through), [3 * N, 3 * N, N, 6 * N]);
}

/// Sums in the x87 stack: each turn loads and adds to the register below.
#[test]
fn x87_chains() {
    let chain = turns(
        |a| {
            a.fld(qword_ptr(rsi)).unwrap();
            a.faddp(st1, st0).unwrap();
            end(a);
        },
        |turn| vec![(0, Kind::LOAD, 0x10_0000 + turn * 8, 8)],
    );
    // Loads are copies.
    assert_eq!(cycles(&chain), [N + 1, N + 1, N, 3 * N + 5]);
    // Two sums in turn: `fxch` takes no time where copies are free, and no sum waits for the other.
    let two = turns(
        |a| {
            a.fadd_2(st0, st2).unwrap();
            a.fxch(st0, st1).unwrap();
            end(a);
        },
        none,
    );
    let [machine, _, values, _] = cycles(&two);
    assert_eq!((machine, values), (2 * N, N / 2));
}

/// `adc` with `dec` as the counter: the carry goes past `dec`, so that the chain is that of `adc`.
#[test]
fn two_groups_of_flags() {
    let big = turns(
        |a| {
            a.mov(rax, qword_ptr(rsi)).unwrap();
            a.adc(rax, qword_ptr(rdx)).unwrap();
            a.mov(qword_ptr(rdi), rax).unwrap();
            a.lea(rsi, rsi + 8).unwrap();
            a.lea(rdx, rdx + 8).unwrap();
            a.lea(rdi, rdi + 8).unwrap();
            end(a);
        },
        |turn| {
            let at = |array: u64| 0x10_0000 * array + turn * 8;
            vec![(0, Kind::LOAD, at(1), 8), (1, Kind::LOAD, at(2), 8), (2, Kind::STORE, at(3), 8)]
        },
    );
    // A load, N additions with carry, a store.
    assert_eq!(cycles(&big), [N + 2, N + 2, N, N + 5]);
}

/// A byte written into a register: the instruction does not wait for the others, readers of the whole do.
#[test]
fn partial_registers() {
    let partial = turns(
        |a| {
            a.mov(al, byte_ptr(rsi)).unwrap();
            a.add(rbx, rax).unwrap();
            a.inc(rsi).unwrap();
            end(a);
        },
        |turn| vec![(0, Kind::LOAD, 0x10_0000 + turn, 1)],
    );
    // The sum is the chain: a load, N additions.
    assert_eq!(cycles(&partial)[..2], [N + 1, N + 1]);
    // A chain of the low bytes alone.
    let low = turns(
        |a| {
            a.add(al, bl).unwrap();
            a.add(ah, bl).unwrap();
            end(a);
        },
        none,
    );
    // Both are parts of one register here.
    assert_eq!(cycles(&low)[0], 2 * N);
}

#[test]
fn repeated_strings_are_one_execution_an_iteration() {
    let events = |program: &Program, block: u32, alone: u32, is_apart: bool| {
        let mut events = vec![program.begin(block)];
        for turn in 0..N {
            let block = if turn > 0 && is_apart { alone } else { block };
            if turn > 0 && is_apart {
                events.push(program.begin(alone));
            }
            events.push(program.access(
                block,
                if block == alone { 0 } else { 1 },
                Kind::LOAD,
                0x10_0000 + turn,
                1,
            ));
            events.push(program.access(
                block,
                if block == alone { 0 } else { 1 },
                Kind::STORE,
                0x20_0000 + turn,
                1,
            ));
        }
        if is_apart {
            // The test that finds nothing left.
            events.push(program.begin(alone));
        }
        events
    };
    let mut program = Program::default();
    let copy: &[u8] = &[0xf3, 0xa4];
    let block = program.bytes(&[&[0x31, 0xc0], copy]);
    let alone = program.bytes(&[copy]);
    // The same instruction, as a block of its own.
    program.records[2].address = program.records[1].address;
    for is_apart in [false, true] {
        let events = events(&program, block, alone, is_apart);
        let found = run(&program, &events, &setup(View::MACHINE, Latency::Unit, &[None]));
        // Each iteration waits for the registers of the one before.
        assert_eq!((found.instructions, found.lanes[0].cycles), (N + 1, N), "{is_apart}");
    }
    // One that repeats nothing is executed.
    let found = run(&program, &[program.begin(block)], &setup(View::MACHINE, Latency::Unit, &[None]));
    assert_eq!(found.instructions, 2);
}

/// A recursion as deep as N, of which each level pushes, calls and returns.
#[test]
fn recursion_is_a_chain_of_the_stack_only_for_the_machine() {
    let mut program = Program::default();
    let down = program.block(|a| {
        a.push(rbx).unwrap();
        a.call(0x1000).unwrap();
    });
    let up = program.block(|a| {
        a.pop(rbx).unwrap();
        a.ret().unwrap();
    });
    let mut events = Vec::new();
    let top = 0x80_0000;
    for depth in 0..N {
        events.push(program.begin(down));
        events.push(program.access(down, 0, Kind::STORE, top - depth * 16 - 8, 8));
        events.push(program.access(down, 1, Kind::CALL, top - depth * 16 - 16, 8));
    }
    for depth in (0..N).rev() {
        events.push(program.begin(up));
        events.push(program.access(up, 0, Kind::LOAD, top - depth * 16 - 8, 8));
        events.push(program.access(up, 1, Kind::RETURN, top - depth * 16 - 16, 8));
    }
    assert_eq!(span(&program, &events, View::MACHINE, Latency::Unit), 4 * N);
    assert_eq!(
        span(&program, &events, STACK, Latency::Unit),
        2,
        "pops wait for pushes, and these for nothing"
    );
}

/// Two registers that change places: the chain takes two turns.
#[test]
fn a_cycle_over_two_turns() {
    let swap = turns(
        |a| {
            a.mov(rdx, rax).unwrap();
            a.lea(rax, rbx + rsi).unwrap();
            a.mov(rbx, rdx).unwrap();
            end(a);
        },
        none,
    );
    // Of values one addition in two turns; in the machine's view three operations.
    assert_eq!(cycles(&swap)[0], N * 3 / 2);
    assert_eq!(cycles(&swap)[2], N / 2);
    let exchange = turns(
        |a| {
            a.xchg(rax, rbx).unwrap();
            a.imul_2(rax, rsi).unwrap();
            end(a);
        },
        none,
    );
    // Each register is multiplied every second turn; an exchange as an instruction waits for both.
    assert_eq!((cycles(&exchange)[0], cycles(&exchange)[2]), (2 * N, N / 2));
}

/// Wall's windows: with one instruction at a time everything is serial; N independent instructions
/// go W at a time.
#[test]
fn windows_and_barriers() {
    let independent = turns(|a| (0..8).for_each(|_| a.mov(rax, rbx).unwrap()), none);
    let windows = [Some(1), Some(2), Some(8), Some(64), Some(512), None];
    let found = run(&independent.0, &independent.1, &setup(View::MACHINE, Latency::Unit, &windows));
    let cycles: Vec<u64> = found.lanes.iter().map(|lane| lane.cycles).collect();
    assert_eq!(cycles, [8 * N, 4 * N, N, N / 8, (8 * N).div_ceil(512), 1]);
    let branches = turns(
        |a| {
            a.mov(rax, rbx).unwrap();
            a.jne(0x1000).unwrap();
        },
        none,
    );
    let lanes = [Predict::Perfect, Predict::None, Predict::Static, Predict::Gshare(16), Predict::Tage];
    let lanes = lanes.map(|predict| Lane { window: None, predict }).to_vec();
    let setup = Setup { view: View::MACHINE, latency: Latency::Unit, lanes };
    let found = run(&branches.0, &branches.1, &setup);
    let cycles: Vec<u64> = found.lanes.iter().map(|lane| lane.cycles).collect();
    // Without prediction each turn waits for the branch before; gshare learns it in a few turns.
    assert_eq!(cycles[..3], [1, N, 1]);
    assert!((2..40).contains(&cycles[3]) && cycles[4] < 40, "{cycles:?}");
    let branch = found.branches[0];
    assert_eq!((branch.executed, branch.taken, branch.mispredicted > 1), (N - 1, N - 1, true));
}

/// Lines that are ignored: what they write is there at once.
#[test]
fn ignored_instructions_hold_nobody_up() {
    let (mut program, events) = turns(
        |a| {
            a.imul_2(rax, rbx).unwrap();
            end(a);
        },
        none,
    );
    let ignored = 1 << 61;
    program.records[0].address |= ignored;
    let marks = Marks { all: ignored, ignored, begins: 0 };
    let found = run_marked(&program, &events, &setup(STEPS, Latency::Unit, &[None]), marks);
    assert_eq!(found.lanes[0].cycles, 1);
    let found =
        run_marked(&program, &events, &setup(STEPS, Latency::Unit, &[None]), Marks { ignored: 0, ..marks });
    assert_eq!(found.lanes[0].cycles, N);
}

/// A block that was left early has executed so many instructions.
#[test]
fn blocks_that_are_cut() {
    let mut program = Program::default();
    let block = program.block(|a| (0..5).for_each(|_| a.imul_2(rax, rbx).unwrap()));
    let events = [program.begin(block), Event::new(Kind::BLOCK_CUT, 0, 2), program.begin(block)];
    let found = run(&program, &events, &setup(View::MACHINE, Latency::Unit, &[None]));
    assert_eq!((found.instructions, found.lanes[0].cycles), (7, 7));
}

/// A function called twice, with work around the calls: only what runs below it counts, and its
/// arguments are there.
#[test]
fn regions_are_whole_calls() {
    let mut program = Program::default();
    let caller = program.block(|a| {
        (0..10).for_each(|_| a.imul_2(rax, rax).unwrap());
        a.call(0x1000).unwrap();
    });
    let function = program.block(|a| {
        a.imul_2(rax, rax).unwrap();
        a.call(0x1000).unwrap();
    });
    let inner = program.block(|a| {
        a.imul_2(rax, rax).unwrap();
        a.ret().unwrap();
    });
    let outer = program.block(|a| {
        a.imul_2(rdx, rdx).unwrap();
        a.ret().unwrap();
    });
    let begins = 1 << 48;
    let first = program.first(function) as usize;
    program.records[first].address |= begins;
    let mut events = Vec::new();
    for _ in 0..2 {
        events.push(program.begin(caller));
        events.push(program.access(caller, 10, Kind::CALL, 0x1000, 8));
        events.push(program.begin(function));
        events.push(program.access(function, 1, Kind::CALL, 0xff8, 8));
        events.push(program.begin(inner));
        events.push(program.access(inner, 1, Kind::RETURN, 0xff8, 8));
        events.push(program.begin(outer));
        events.push(program.access(outer, 1, Kind::RETURN, 0x1000, 8));
    }
    events.push(program.begin(caller));
    let marks = Marks { all: begins, ignored: 0, begins };
    let found = run_marked(&program, &events, &setup(STACK, Latency::Unit, &[Some(64), None]), marks);
    assert_eq!((found.instructions, found.calls), (2 * 6, 2));
    // Two multiplications in a row in each call.
    assert_eq!(found.lanes[1].cycles, 2 * 2);
}
