//! Windows made by hand, each bound by a constraint, on the default machine.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use locality_stream::{BlockRecord, Code, Event, Instruction, InstructionRecord, Kind};

use super::*;
use crate::core_limits::Level;

/// Turns of a loop, many against its first ones.
const TURNS: u64 = 1000;

/// A window of blocks that follow one another as one likes.
#[derive(Debug, Default)]
struct Window {
    instructions: Vec<InstructionRecord>,
    blocks: Vec<BlockRecord>,
    events: Vec<Event>,
    executed: u64,
}

impl Window {
    /// Adds a block of code at an address.
    fn block(
        &mut self,
        address: u64,
        assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
    ) -> u32 {
        let mut assembler = CodeAssembler::new(64).unwrap();
        assemble(&mut assembler).unwrap();
        let bytes = assembler.assemble(address).unwrap();
        let first = self.instructions.len() as u32;
        let mut decoder = iced_x86::Decoder::with_ip(64, &bytes, address, iced_x86::DecoderOptions::NONE);
        while decoder.can_decode() {
            let at = decoder.position();
            let length = decoder.decode().len();
            let record = InstructionRecord::new(address + at as u64, &bytes[at..at + length]);
            self.instructions.push(record);
        }
        let count = self.instructions.len() as u32 - first;
        self.blocks.push(BlockRecord { first, count });
        self.blocks.len() as u32 - 1
    }

    /// Executes a block, whose accesses go where `address` says for each access in the block.
    fn execute(&mut self, block: u32, address: impl Fn(u64) -> u64) {
        self.events.push(Event::new(Kind::BLOCK, block, 0));
        let BlockRecord { first, count } = self.blocks[block as usize];
        let mut number = 0;
        for index in first..first + count {
            let facts = Instruction::classify(&self.instructions[index as usize]);
            for (is_made, is_store) in [(facts.loads, false), (facts.stores, true)] {
                if is_made {
                    let kind = facts.access_kind(is_store);
                    self.events.push(Event::access(kind, index, address(number), 8));
                    // What loads and stores one word does so at one address.
                    number += u64::from(!(facts.loads && facts.stores && !is_store));
                }
            }
        }
        self.executed += u64::from(count);
    }

    fn view(&self) -> WindowView<'_> {
        WindowView {
            events: &self.events,
            values: &[],
            registers: &[],
            code: Code { instructions: &self.instructions, blocks: &self.blocks },
            instructions: self.executed,
            accesses: self.events.iter().filter(|event| event.kind.is_access()).count() as u64,
        }
    }

    fn replay(&self, machine: Machine) -> Replay {
        let mut replay = Replay::new(machine);
        replay.read(&self.view());
        replay
    }
}

/// A loop's cycles a turn, with all constraints and without each; `address` by turn and access.
struct Found {
    cycles: f64,
    without: Vec<(Constraint, f64)>,
}

/// A loop of one block; a jump back is added to the code.
fn of_loop(
    misses: Misses<'_>,
    address: impl Fn(u64, u64) -> u64,
    assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Found {
    of_loop_on(Machine::default(), misses, address, assemble)
}

fn of_loop_on(
    machine: Machine,
    misses: Misses<'_>,
    address: impl Fn(u64, u64) -> u64,
    assemble: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Found {
    let mut window = Window::default();
    let block = window.block(0x1000, |a| {
        assemble(a)?;
        a.jne(0x1000)
    });
    for turn in 0..TURNS {
        window.execute(block, |access| address(turn, access));
    }
    let mut replay = window.replay(machine);
    let idle: Vec<Constraint> = Constraint::ALL.into_iter().filter(|it| !replay.may_bind(*it)).collect();
    let mut cycles = |misses, without| replay.time(misses, without).total / TURNS as f64;
    for limit in idle {
        let (all, without) = (cycles(Misses::None, None), cycles(Misses::None, Some(limit)));
        assert!((all - without).abs() < 1e-9, "{limit:?} was said not to bind: {all} {without}");
    }
    Found {
        cycles: cycles(misses, None),
        without: Constraint::ALL.iter().map(|it| (*it, cycles(misses, Some(*it)))).collect(),
    }
}

impl Found {
    /// Checks the cycles a turn, and the constraint that binds with the cycles without it: no other
    /// removal brings more.
    fn is_bound_by(&self, cycles: f64, binds: Constraint, left: f64) {
        let is_near = |found: f64, expected: f64| (found - expected).abs() < 0.02 * expected + 0.02;
        assert!(is_near(self.cycles, cycles), "{} in place of {cycles}", self.cycles);
        let without = self.without.iter().find(|(it, _)| *it == binds).unwrap().1;
        assert!(is_near(without, left), "{binds:?}: {without} in place of {left}");
        for (other, others) in &self.without {
            assert!(*other == binds || *others > without + 0.2, "{other:?}: {others}");
            assert!(*others <= self.cycles * 1.001, "{other:?}: {others}");
        }
    }
}

fn nowhere(_: u64, _: u64) -> u64 {
    0x9000
}

#[test]
fn chains_of_arithmetic_take_their_latencies() {
    let found = of_loop(Misses::None, nowhere, |a| a.addsd(xmm0, xmm1));
    // A turn takes a cycle at least, as its jump is taken.
    found.is_bound_by(3.0, Constraint::FpAddChain, 1.0);
    let found = of_loop(Misses::None, nowhere, |a| a.mulsd(xmm0, xmm1));
    found.is_bound_by(4.0, Constraint::FpMultiplyChain, 1.0);
    // Without its latency a division takes the divider no shorter.
    let found = of_loop(Misses::None, nowhere, |a| a.divsd(xmm0, xmm1));
    found.is_bound_by(13.0, Constraint::DivideChain, 4.0);
    let found = of_loop(Misses::None, nowhere, |a| a.imul_2(rax, rbx));
    found.is_bound_by(3.0, Constraint::IntegerChain, 1.0);
    // Two chains side by side take what the longer one takes.
    let found = of_loop(Misses::None, nowhere, |a| {
        a.addsd(xmm0, xmm1)?;
        a.addsd(xmm2, xmm1)?;
        a.imul_2(rax, rbx)?;
        a.mulsd(xmm3, xmm1)
    });
    found.is_bound_by(4.0, Constraint::FpMultiplyChain, 3.0);
}

#[test]
fn instructions_with_vex_prefix_have_the_latencies_of_those_without() {
    let found = of_loop(Misses::None, nowhere, |a| a.vaddsd(xmm0, xmm0, xmm1));
    found.is_bound_by(3.0, Constraint::FpAddChain, 1.0);
    let found = of_loop(Misses::None, nowhere, |a| a.vmulpd(ymm0, ymm0, ymm1));
    found.is_bound_by(4.0, Constraint::FpMultiplyChain, 1.0);
    let found = of_loop(Misses::None, nowhere, |a| a.vdivsd(xmm0, xmm0, xmm1));
    found.is_bound_by(13.0, Constraint::DivideChain, 4.0);
    // A sum of products, and a polynomial.
    let found = of_loop(Misses::None, nowhere, |a| a.vfmadd231sd(xmm0, xmm1, xmm2));
    found.is_bound_by(4.0, Constraint::FpAddChain, 1.0);
    let found = of_loop(Misses::None, nowhere, |a| a.vfmadd213sd(xmm0, xmm1, xmm2));
    found.is_bound_by(4.0, Constraint::FpMultiplyChain, 1.0);
}

#[test]
fn flags_stack_registers_and_parts_are_told_apart() {
    let cycles = |code: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        of_loop(Misses::None, |_, access| 0x9000 + access * 64, code).cycles
    };
    let is_near = |found: f64, expected: f64| assert!((found - expected).abs() < 0.05, "{found} {expected}");
    // The carry goes from addition to addition beside the counter of the loop, whose flags it is none of.
    let long_addition = |a: &mut CodeAssembler| {
        a.adc(rbx, rcx)?;
        a.adc(rdx, rcx)?;
        (0..3).try_for_each(|_| a.dec(rax))
    };
    is_near(cycles(long_addition), 3.0);
    // Two sums on the x87 stack: their additions take turns.
    let two_sums = |a: &mut CodeAssembler| {
        a.fadd(qword_ptr(rsi))?;
        a.fxch(st0, st1)?;
        a.fadd(qword_ptr(rsi))?;
        a.fxch(st0, st1)
    };
    let one_sum = |a: &mut CodeAssembler| {
        a.fadd(qword_ptr(rsi))?;
        a.fadd(qword_ptr(rsi))
    };
    is_near(cycles(one_sum), 6.0);
    is_near(cycles(two_sums), 3.0);
    // A value that is pushed and popped is no chain from turn to turn.
    is_near(
        cycles(|a| {
            a.fld(qword_ptr(rsi))?;
            a.fmul(qword_ptr(rsi))?;
            a.fstp(qword_ptr(rdi))
        }),
        1.0,
    );
    // What writes the low part does not wait for the rest; a constant waits for nothing.
    is_near(
        cycles(|a| {
            a.imul_2(rax, rax)?;
            a.mov(al, bl)?;
            a.xor(eax, eax)
        }),
        1.0,
    );
}

#[test]
fn loads_that_wait_for_loads_are_chases_or_chains() {
    let chase = of_loop(Misses::None, nowhere, |a| a.mov(rax, qword_ptr(rax + 8)));
    chase.is_bound_by(5.0, Constraint::PointerChase, 1.0);
    // An index, extended and at a distance.
    let chase = of_loop(Misses::None, nowhere, |a| {
        a.mov(eax, dword_ptr(rdi + rax * 4))?;
        a.movsxd(rax, eax)?;
        a.add(rax, 1)
    });
    chase.is_bound_by(7.0, Constraint::PointerChase, 1.0);
    // The address is computed from more than the load.
    let chain = of_loop(Misses::None, nowhere, |a| {
        a.xor(rax, rbx)?;
        a.mov(rax, qword_ptr(rdi + rax * 8))
    });
    chain.is_bound_by(6.0, Constraint::LoadChain, 1.0);
    // What one chase of several waits for is no chain of the loop: each turn begins at an array.
    let each = of_loop(Misses::None, nowhere, |a| {
        a.mov(rax, qword_ptr(rdi + rcx * 8))?;
        a.add(rbx, qword_ptr(rax))?;
        a.add(rcx, 1)
    });
    assert!((each.cycles - 1.0).abs() < 0.05, "{}", each.cycles);
}

#[test]
fn values_that_go_through_memory_wait_for_the_store() {
    let found = of_loop(Misses::None, nowhere, |a| a.add(qword_ptr(rsi), rax));
    found.is_bound_by(6.0, Constraint::StoreForwarding, 5.0 + 1.0 - 5.0);
    // Some processors know the word by the registers of its address.
    let machine = Machine { forward: 0.0, forward_anew: 6.0, ..Machine::default() };
    let cycles = |code: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        let found = of_loop_on(machine, Misses::None, nowhere, code);
        found.cycles
    };
    // Loads are waited for no shorter than their latency where they are not renamed.
    assert_eq!(cycles(|a| a.add(qword_ptr(rsi + rdi * 8 + 16), rax)).round(), 1.0);
    let anew = cycles(|a| {
        a.xor(edi, edi)?;
        a.add(qword_ptr(rsi + rdi * 8 + 16), rax)
    });
    assert_eq!(anew.round(), 7.0);
    let other_form = cycles(|a| {
        a.mov(rbx, qword_ptr(rdx))?;
        a.add(rbx, 1)?;
        a.mov(qword_ptr(rsi), rbx)
    });
    assert_eq!(other_form.round(), 7.0);
    // Steps of the stack pointer are followed.
    let stack = cycles(|a| {
        a.mov(rbx, qword_ptr(rsp + 8))?;
        a.add(rbx, 1)?;
        a.sub(rsp, 8)?;
        a.mov(qword_ptr(rsp + 16), rbx)?;
        a.add(rsp, 8)
    });
    assert!(stack < 2.1, "{stack}");
    // Elsewhere each turn: nothing is waited for.
    let apart = of_loop(Misses::None, |turn, _| 0x9000 + turn % 8 * 8, |a| a.mov(qword_ptr(rsi), rax));
    assert!((apart.cycles - 1.0).abs() < 0.05, "{}", apart.cycles);
}

#[test]
fn units_are_taken_cycle_by_cycle() {
    let of = |count: usize, each: fn(&mut CodeAssembler, usize) -> Result<(), IcedError>| {
        of_loop(Misses::None, nowhere, |a| (0..count).try_for_each(|number| each(a, number)))
    };
    const WIDE: [AsmRegisterXmm; 12] =
        [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11];
    // With its jump, which no comparison goes before, 24 instructions. Four jumps a cycle.
    of(23, |a, _| a.nop()).is_bound_by(4.0, Constraint::Width, 0.25);
    // 2.5 in a cycle.
    of(10, |a, _| a.mov(rax, qword_ptr(rsi))).is_bound_by(4.0, Constraint::Loads, 11.0 / 6.0);
    of(6, |a, _| a.mov(qword_ptr(rsi), rax)).is_bound_by(4.0, Constraint::Stores, 7.0 / 6.0);
    // To one line, and to two by turns.
    let machine = Machine { stores: 1.0, close_stores: 2.0, ..Machine::default() };
    for (apart, expected) in [(8, 3.0), (64, 6.0)] {
        let found = of_loop_on(
            machine,
            Misses::None,
            |_, access| 0x9000 + access % 2 * apart,
            |a| (0..6).try_for_each(|_| a.mov(qword_ptr(rsi), rax)),
        );
        found.is_bound_by(expected, Constraint::Stores, 7.0 / 6.0);
    }
    of(12, |a, number| a.addsd(WIDE[number], xmm15)).is_bound_by(6.0, Constraint::FpUnits, 3.0);
    // The jump takes an integer unit also.
    of(15, |a, _| a.lea(rax, qword_ptr(rsi + 8))).is_bound_by(4.0, Constraint::IntUnits, 16.0 / 6.0);
    // A copy breaks the chain.
    let divisions = of_loop(Misses::None, nowhere, |a| {
        a.movapd(xmm0, xmm1)?;
        a.divsd(xmm0, xmm2)
    });
    divisions.is_bound_by(4.0, Constraint::Divider, 1.0);
}

#[test]
fn a_comparison_and_its_branch_are_one_operation() {
    let cycles = |last: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        let found = of_loop(Misses::None, nowhere, |a| {
            (0..17).try_for_each(|_| a.nop())?;
            last(a)
        });
        found.cycles
    };
    let (fused, apart) = (cycles(|a| a.cmp(rax, rbx)), cycles(|a| a.bt(rax, rbx)));
    assert!((fused - 18.0 / 6.0).abs() < 0.02 && (apart - 19.0 / 6.0).abs() < 0.02, "{fused} {apart}");
}

#[test]
fn lines_cost_what_their_level_costs() {
    let machine = Machine::default();
    let elsewhere = |turn: u64, _: u64| turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12 << 12;
    let chase = |a: &mut CodeAssembler| a.mov(rax, qword_ptr(rax));
    for (level, binds) in
        [(0, Constraint::L1Misses), (1, Constraint::DeeperMisses), (2, Constraint::DeeperMisses)]
    {
        let misses = |_: &Event| Some(level);
        let found = of_loop(Misses::Each(&misses), elsewhere, chase);
        let Level { latency, between, .. } = machine.levels[level];
        let without =
            |binds| found.without.iter().find(|(it, _)| *it == binds).map(|(_, cycles)| *cycles).unwrap();
        assert!((found.cycles - 5.0 - latency).abs() < 0.02 * latency, "{level}: {}", found.cycles);
        assert!((without(binds) - 5.0).abs() < 0.3, "{level}: {}", without(binds));
        // The lines come side by side then.
        let beside = without(Constraint::PointerChase);
        assert!((beside - between).abs() < 0.02 * between + 0.5, "{level}: {beside}");
    }
    // One after the other, foreseen: as fast as lines come, and as lines come and go.
    let next = |turn: u64, _: u64| 0x10_0000 + turn * 64;
    let memory = |_: &Event| Some(2);
    let loads = of_loop(Misses::Each(&memory), next, |a| a.add(rbx, qword_ptr(rsi)));
    loads.is_bound_by(machine.levels[2].between, Constraint::DeeperMisses, 1.0);
    let stores = of_loop(Misses::Each(&memory), next, |a| a.mov(qword_ptr(rsi), rbx));
    stores.is_bound_by(machine.levels[2].stored, Constraint::DeeperMisses, 1.0);
}

#[test]
fn few_instructions_wait_beside_a_line_from_memory() {
    let mut window = Window::default();
    let block = window.block(0x1000, |a| {
        a.mov(rax, qword_ptr(rsi))?;
        (0..399).try_for_each(|_| a.nop())
    });
    for turn in 0..100_u64 {
        window.execute(block, |_| turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 12 << 12);
    }
    let mut replay = window.replay(Machine::default());
    let memory = |_: &Event| Some(2);
    let mut cycles = |without| replay.time(Misses::Each(&memory), without).total / 100.0;
    // The next load is 400 instructions later, of which 320 come in while the line is waited for.
    let waits = cycles(None);
    assert!((285.0..285.0 + 80.0 / 6.0 + 4.0).contains(&waits), "{waits}");
    let dispatched = cycles(Some(Constraint::Window));
    assert!((400.0 / 6.0..400.0 / 6.0 + 4.0).contains(&dispatched), "{dispatched}");
}

#[test]
fn mispredictions_cost_their_penalty_where_the_branch_is() {
    let mut window = Window::default();
    let head = window.block(0x1000, |a| {
        a.test(rax, rax)?;
        a.jne(0x1040)
    });
    let tails = [0x1005, 0x1040].map(|address| window.block(address, |a| a.jmp(0x1000)));
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..TURNS {
        window.execute(head, |_| 0);
        window.execute(tails[usize::from(random.bool())], |_| 0);
    }
    let mut replay = window.replay(Machine::default());
    let missed = replay.executed().filter(|executed| executed.is_mispredicted).count() as f64;
    assert!((0.4..0.6).contains(&(missed / TURNS as f64)), "{missed}");
    let timing = replay.time(Misses::None, None);
    let foreseen = replay.time(Misses::None, Some(Constraint::Mispredictions));
    // A branch is done two cycles after its turn begins; without the jumps that are taken.
    assert!((timing.total - foreseen.total) > missed * 16.0, "{} {}", timing.total, foreseen.total);
    let branches = replay.executed().zip(&timing.cycles).filter(|(executed, _)| executed.is_mispredicted);
    let at_branches: f32 = branches.map(|(_, cycles)| cycles).sum();
    assert!(f64::from(at_branches) >= missed * 16.0, "{at_branches}");
    assert!(foreseen.total < 2.6 * TURNS as f64, "{}", foreseen.total);
}

#[test]
fn chains_and_the_busiest_unit_are_known_apart() {
    let machine = Machine::default();
    let turns = |body: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        let mut window = Window::default();
        let block = window.block(0x1000, body);
        (0..TURNS).for_each(|_| window.execute(block, |_| 0x9000));
        let mut replay = window.replay(machine);
        let mut timing = Timing::default();
        replay.chains_into(&mut timing);
        let mut demand = Demand::default();
        let executed: Vec<Executed> = replay.executed().collect();
        executed.iter().for_each(|executed| demand.add(executed.demand));
        let (cycles, unit) = demand.cycles(executed.len() as u64, &machine);
        (timing.total / TURNS as f64, cycles / TURNS as f64, unit)
    };
    let (chain, unit_cycles, unit) = turns(|a| {
        a.addsd(xmm0, xmm1)?;
        a.jne(0x1000)
    });
    assert!((chain - machine.add).abs() < 0.05, "{chain}");
    assert_eq!(unit, Constraint::FpUnits);
    assert!((unit_cycles - 1.0 / machine.floats).abs() < 1e-9, "{unit_cycles}");
    let (chain, unit_cycles, unit) = turns(|a| {
        (0..4).try_for_each(|_| a.mov(rax, qword_ptr(rsi)))?;
        a.jne(0x1000)
    });
    assert!(chain < 0.1, "nothing waits: {chain}");
    assert_eq!(unit, Constraint::Loads);
    assert!((unit_cycles - 4.0 / machine.loads).abs() < 1e-9, "{unit_cycles}");
}

/// The chain's instructions with their latencies; nothing for a loop whose iterations are apart.
#[test]
fn a_chain_has_its_instructions() {
    use crate::core_model::{ChainClass, ChainStep};
    let turns = |body: fn(&mut CodeAssembler) -> Result<(), IcedError>| {
        let mut window = Window::default();
        let block = window.block(0x1000, body);
        (0..TURNS).for_each(|_| window.execute(block, |_| 0x9000));
        let mut replay = window.replay(Machine::default());
        let mut timing = Timing::default();
        replay.chains_into(&mut timing);
        let all = vec![Some(0); replay.executed().count()];
        let steps = replay.chain_steps(&all, &[TURNS]).remove(0);
        let sum: f64 = steps.iter().map(|step| step.cycles).sum();
        if !steps.is_empty() {
            assert!((sum - timing.total).abs() < 0.01 * timing.total, "{sum} {}", timing.total);
        }
        let row = |step: &ChainStep| {
            (step.instruction, step.class, (step.cycles / TURNS as f64 * 10.0).round() / 10.0)
        };
        let mut rows: Vec<_> = steps.iter().map(row).filter(|row| row.2 > 0.0).collect();
        rows.sort_by_key(|row| row.0);
        rows
    };
    let machine = Machine::default();
    let sum = turns(|a| {
        a.mov(rax, qword_ptr(rsi))?;
        a.mulsd(xmm0, xmm2)?;
        a.addsd(xmm0, xmm1)?;
        a.jne(0x1000)
    });
    assert_eq!(sum, [(1, ChainClass::FpMultiply, machine.multiply), (2, ChainClass::FpAdd, machine.add)]);
    let chase = turns(|a| {
        a.imul_2(rcx, rdx)?;
        a.add(rax, qword_ptr(rax))?;
        a.jne(0x1000)
    });
    assert_eq!((chase.len(), chase[0].0, chase[0].1), (1, 1, ChainClass::Load));
    assert!(chase[0].2 > machine.load, "{chase:?}");
    let apart = turns(|a| {
        (0..4).try_for_each(|_| a.mov(rax, qword_ptr(rsi)))?;
        a.imul_3(rbx, rax, 7)?;
        a.jne(0x1000)
    });
    assert_eq!(apart, []);
}

#[test]
fn cycles_of_two_loops_are_told_apart_and_sum_up() {
    let mut window = Window::default();
    let slow = window.block(0x1000, |a| {
        a.addsd(xmm0, qword_ptr(rsi))?;
        a.jne(0x1000)
    });
    let fast = window.block(0x2000, |a| {
        (0..11).try_for_each(|_| a.nop())?;
        a.jne(0x2000)
    });
    for _ in 0..10 {
        (0..100).for_each(|_| window.execute(slow, |_| 0x9000));
        (0..200).for_each(|_| window.execute(fast, |_| 0x9000));
    }
    let mut replay = window.replay(Machine::default());
    let mut by_loop = |without| {
        let timing = replay.time(Misses::None, without);
        assert_eq!(timing.cycles.len() as u64, window.executed);
        assert_eq!(timing.cycles.iter().map(|cycles| f64::from(*cycles)).sum::<f64>(), timing.total);
        let mut sums = [0.0; 2];
        for (executed, cycles) in replay.executed().zip(&timing.cycles) {
            sums[usize::from(executed.instruction >= 2)] += f64::from(*cycles) / 1000.0;
        }
        sums
    };
    let [slow_cycles, fast_cycles] = by_loop(None);
    // What follows a chain begins before its end: 320 instructions each of 10 times.
    assert!(
        (2.8..3.1).contains(&slow_cycles) && (3.4..4.1).contains(&fast_cycles),
        "{slow_cycles} {fast_cycles}"
    );
    let [without_chain, same] = by_loop(Some(Constraint::FpAddChain));
    assert!(without_chain < 1.2 && (same - 4.0).abs() < 0.2, "{without_chain} {same}");
    let [same, without_width] = by_loop(Some(Constraint::Width));
    assert!((same - 3.0).abs() < 0.1 && without_width < 0.6, "{same} {without_width}");
}

#[test]
fn a_footprint_is_that_of_the_windows_before() {
    let mut window = Window::default();
    let block = window.block(0x1000, |a| a.mov(rax, qword_ptr(rax)));
    let mut replay = Replay::new(Machine::default());
    let mut random = fastrand::Rng::with_seed(9);
    // 20,000 lines: more than the first-level cache has and fewer than the second.
    for _ in 0..100 {
        window.events.clear();
        window.executed = 0;
        for _ in 0..200 {
            let line = random.u64(0..20_000);
            window.execute(block, |_| 0x10_0000 + line * 64);
        }
        replay.read(&window.view());
    }
    let near = replay.time(Misses::None, None).total;
    let far = replay.time(Misses::Footprint, None).total;
    let of_levels = replay.time(Misses::Footprint, Some(Constraint::L1Misses)).total;
    assert_eq!(near, of_levels);
    assert!(far > near + 150.0 * 14.0, "{near} {far}");
    let empty = Timing::default();
    assert_eq!(Replay::new(Machine::default()).time(Misses::Footprint, None), empty);
}

#[test]
fn demands_are_those_of_the_instructions() {
    let mut window = Window::default();
    let block = window.block(0x1000, |a| {
        a.add(qword_ptr(rsi), rax)?;
        a.divsd(xmm0, qword_ptr(rsi))?;
        a.mov(rax, qword_ptr(rax))?;
        a.mov(rbx, qword_ptr(rax))?;
        a.cmp(rax, rbx)?;
        a.jne(0x1000)
    });
    window.execute(block, |access| 0x9000 + access * 64);
    let executed: Vec<Executed> = window.replay(Machine::default()).executed().collect();
    let none = Demand::default();
    assert_eq!(
        executed.iter().map(|it| it.demand).collect::<Vec<_>>(),
        [
            Demand { loads: 1, stores: 1, integers: 1, ..none },
            Demand { loads: 1, floats: 1, divides: 4, ..none },
            Demand { loads: 1, ..none },
            Demand { loads: 1, ..none },
            Demand { integers: 1, ..none },
            none,
        ]
    );
    assert_eq!(executed.iter().map(|it| it.new_lines).collect::<Vec<_>>(), [1, 1, 1, 1, 0, 0]);
    let chased = executed.iter().map(|it| it.is_chased).collect::<Vec<_>>();
    assert_eq!(chased, [false, false, false, true, false, false]);
}
