//! Random programs and runs: the engine equals the oracle, to the cycle.

use fastrand::Rng;
use iced_x86::code_asm::{registers::*, *};

use super::*;

const GENERAL: [AsmRegister64; 8] = [rax, rcx, rdx, rbx, rsi, rdi, r8, r9];
const HALVES: [AsmRegister32; 8] = [eax, ecx, edx, ebx, esi, edi, r8d, r9d];
const BYTES: [AsmRegister8; 8] = [al, cl, dl, bl, sil, dil, r8b, r9b];
const WORDS: [AsmRegister16; 8] = [ax, cx, dx, bx, si, di, r8w, r9w];
const VECTORS: [AsmRegisterXmm; 4] = [xmm0, xmm1, xmm2, xmm3];
/// Kinds of instructions of [`write`].
const KINDS: u32 = 46;

pub(super) fn one(random: &mut Rng, a: &mut CodeAssembler) -> Result<(), iced_x86::IcedError> {
    let [p, q, r] = [(); 3].map(|()| random.usize(0..8));
    let (x, y) = (VECTORS[p % 4], VECTORS[q % 4]);
    let (g, h, i) = (GENERAL[p], GENERAL[q], GENERAL[r]);
    match random.u32(0..KINDS) {
        0 => a.add(g, h),
        1 => a.sub(g, h),
        2 => a.add(g, 8),
        3 => a.inc(g),
        4 => a.dec(HALVES[p]),
        5 => a.lea(g, g + 8),
        6 => a.lea(g, g + h),
        7 => a.lea(g, h + i * 4 + 3),
        8 => a.mov(g, h),
        9 => a.mov(g, qword_ptr(h)),
        10 => a.mov(qword_ptr(g + h), i),
        11 => a.mov(byte_ptr(g), BYTES[q]),
        12 => a.mov(word_ptr(g), WORDS[q]),
        13 => a.mov(dword_ptr(g), HALVES[q]),
        14 => a.mov(BYTES[p], byte_ptr(h)),
        15 => a.movzx(HALVES[p], byte_ptr(h)),
        16 => a.add(qword_ptr(g), h),
        17 => a.add(g, qword_ptr(h)),
        18 => a.adc(g, h),
        19 => a.sbb(g, g),
        20 => a.cmp(g, h),
        21 => a.test(g, g),
        22 => a.cmp(qword_ptr(g), h),
        23 => a.imul_2(g, h),
        24 => a.shl(g, cl),
        25 => a.shr(g, 3),
        26 => a.xor(HALVES[p], HALVES[p]),
        27 => a.cmove(g, h),
        28 => a.sete(BYTES[p]),
        29 => a.xchg(g, h),
        30 => a.push(g),
        31 => a.pop(g),
        32 => a.movups(xmmword_ptr(g), x),
        33 => a.movups(x, xmmword_ptr(g)),
        34 => a.addsd(x, y),
        35 => a.mulsd(x, qword_ptr(g)),
        36 => a.sqrtsd(x, y),
        37 => a.cvtsi2sd(x, g),
        38 => a.fld(qword_ptr(g)),
        39 => a.fstp(qword_ptr(g)),
        40 => a.faddp(st1, st0),
        41 => a.fxch(st0, st1),
        42 => a.mov(BYTES[p], BYTES[q]),
        43 => a.add(rsp, 16),
        44 => a.leave(),
        _ => a.mov(rbp, rsp),
    }
}

/// What an instruction accesses, in the order of its events.
pub(super) fn accesses(program: &Program, index: u32) -> Vec<(Kind, u16)> {
    let facts = locality_stream::Instruction::classify(&program.records[index as usize]);
    let size = match facts.data {
        locality_stream::DataType::Integer(size) | locality_stream::DataType::Float(size) => size,
        locality_stream::DataType::FloatVector(size) => size,
        _ => 8,
    };
    let mut all = Vec::new();
    if facts.loads {
        all.push((Kind::LOAD, size));
    }
    if facts.stores {
        all.push((Kind::STORE, size));
    }
    all
}

fn program(random: &mut Rng) -> Program {
    let mut program = Program::default();
    for _ in 0..random.u32(1..6) {
        let count = random.u32(1..9);
        let branches = random.bool();
        program.block(|a| {
            for _ in 0..count {
                one(random, a).unwrap();
            }
            if branches {
                a.jne(0x1000).unwrap();
            }
        });
    }
    program
}

fn events(random: &mut Rng, program: &Program, blocks: u32) -> Vec<Event> {
    let mut events = vec![Event::new(Kind::THREAD, 0, 1)];
    let room = random.u64(8..9000);
    let mut block = 0;
    for _ in 0..blocks {
        // A loop of one block most of the time.
        if random.u32(0..4) == 0 {
            block = random.u32(0..program.blocks.len() as u32);
        }
        events.push(program.begin(block));
        let record = program.blocks[block as usize];
        for index in record.first..record.first + record.count {
            for (kind, size) in accesses(program, index) {
                let align = [1, 2, 4, 8][random.usize(0..4)];
                events.push(Event::access(
                    kind,
                    index,
                    0x7f_f000 + random.u64(0..room) / align * align,
                    size,
                ));
            }
        }
    }
    events
}

/// A program whose blocks may end with a call or a return.
pub(super) fn with_calls(random: &mut Rng) -> Program {
    let mut program = Program::default();
    for number in 0..random.u32(3..9) {
        let count = random.u32(1..7);
        program.block(|a| {
            for _ in 0..count {
                one(random, a).unwrap();
            }
            match number % 3 {
                0 => a.call(0x1000).unwrap(),
                1 => a.ret().unwrap(),
                _ => a.jne(0x1000).unwrap(),
            }
        });
    }
    program
}

/// A walk over the blocks, with a stack of return addresses.
pub(super) fn walk(random: &mut Rng, program: &Program, blocks: u32) -> Vec<Event> {
    let mut events = vec![Event::new(Kind::THREAD, 0, 1)];
    let (room, mut stack) = (random.u64(8..3000), 0x9_0000_u64);
    for _ in 0..blocks {
        let block = random.u32(0..program.blocks.len() as u32);
        let record = program.blocks[block as usize];
        if block % 3 == 1 && stack == 0x9_0000 {
            continue;
        }
        events.push(program.begin(block));
        for index in record.first..record.first + record.count {
            let is_last = index + 1 == record.first + record.count;
            for (kind, size) in accesses(program, index) {
                let address = 0x7f_f000 + random.u64(0..room) / 4 * 4;
                events.push(match (is_last, block % 3) {
                    (true, 0) => {
                        stack -= 8;
                        Event::access(Kind::CALL, index, stack, 8)
                    }
                    (true, 1) => {
                        stack += 8;
                        Event::access(Kind::RETURN, index, stack - 8, 8)
                    }
                    _ => Event::access(kind, index, address, size),
                });
            }
        }
    }
    events
}

const VIEWS: [View; 8] = [
    View::MACHINE,
    View { stack: true, ..View::MACHINE },
    View { stack: true, induction: true, ..View::MACHINE },
    View { induction: true, copies: true, ..View::MACHINE },
    View::VALUES,
    View { reductions: true, ..View::MACHINE },
    View { stack: true, reductions: true, ..View::MACHINE },
    View { reductions: true, ..View::VALUES },
];

#[test]
fn the_engine_equals_the_oracle() {
    for seed in 0..u64::from(locality_stream::testing::cases(400)) {
        let mut random = Rng::with_seed(seed);
        let program = program(&mut random);
        let events = events(&mut random, &program, 300);
        let view = VIEWS[random.usize(0..VIEWS.len())];
        let latency = if view.copies || random.bool() { Latency::Unit } else { Latency::Machine };
        let lanes: Vec<Lane> = (0..random.usize(1..9))
            .map(|_| Lane {
                window: [None, Some(1), Some(2), Some(3), Some(17), Some(64), Some(500)][random.usize(0..7)],
                predict: [Predict::Perfect, Predict::None, Predict::Static, Predict::Gshare(6)]
                    [random.usize(0..4)],
            })
            .collect();
        let setup = Setup { view, latency, lanes };
        let found = run(&program, &events, &setup);
        for (at, lane) in found.lanes.iter().enumerate() {
            let expected = oracle::run(&program.code(), &events, &setup, lane.lane);
            let bins = lane.histogram.cycles.iter().copied().zip(lane.histogram.instructions).collect();
            let found = oracle::Found {
                cycles: lane.cycles,
                instructions: found.instructions,
                mispredicted: lane.mispredicted,
                bins,
            };
            assert_eq!(found, expected, "seed {seed}, lane {at} {:?} of {setup}", lane.lane);
        }
    }
}

/// The stretches over time add up to the run.
#[test]
fn stretches_are_the_run() {
    let mut random = Rng::with_seed(5);
    let program = program(&mut random);
    let events = events(&mut random, &program, 400_000);
    let found = run(&program, &events, &setup(View::MACHINE, Latency::Unit, &[Some(64), None]));
    let [window, unlimited] = &found.lanes[..] else { panic!("two lanes") };
    let sum = |stretches: &[(u64, u64, u64)]| {
        stretches.iter().fold((0, 0), |sum, (_, instructions, cycles)| (sum.0 + instructions, sum.1 + cycles))
    };
    let (instructions, cycles) = sum(&window.over_time);
    assert!(window.over_time.len() > 500, "{}", window.over_time.len());
    assert!(instructions <= found.instructions && instructions * 100 > found.instructions * 99);
    assert!(cycles <= window.cycles && cycles * 100 > window.cycles * 98);
    assert_eq!(sum(&unlimited.over_time), (found.instructions, unlimited.cycles));
}
