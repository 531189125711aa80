//! Windows of code that an assembler made, executed by hand.

use iced_x86::code_asm::*;
use locality_stream::{BlockRecord, InstructionRecord, NO_INSTRUCTION};

use super::*;

const CODE: u64 = 0x40_0000;

/// A program: blocks of instructions, and what was executed of them.
struct Program {
    instructions: Vec<InstructionRecord>,
    blocks: Vec<BlockRecord>,
    events: Vec<Event>,
    values: Vec<u64>,
    executed: u64,
}

impl Program {
    /// Each block has these instructions; blocks lie one after the other.
    fn new(blocks: &[&dyn Fn(&mut CodeAssembler)]) -> Self {
        let mut program =
            Program { instructions: vec![], blocks: vec![], events: vec![], values: vec![], executed: 0 };
        let mut address = CODE;
        for block in blocks {
            let mut assembler = CodeAssembler::new(64).unwrap();
            block(&mut assembler);
            let bytes = assembler.assemble(address).unwrap();
            let first = program.instructions.len() as u32;
            let decoder = iced_x86::Decoder::with_ip(64, &bytes, address, 0);
            let mut at = 0;
            for instruction in decoder {
                let next = at + instruction.len();
                program.instructions.push(InstructionRecord::new(address + at as u64, &bytes[at..next]));
                at = next;
            }
            address += bytes.len() as u64;
            let count = program.instructions.len() as u32 - first;
            program.blocks.push(BlockRecord { first, count });
        }
        program
    }

    /// A further block, of the code of two that lie one after the other. Returns its number.
    fn join(&mut self, blocks: [usize; 2]) -> u32 {
        let [BlockRecord { first, count }, last] = blocks.map(|block| self.blocks[block]);
        let count = count + last.count;
        let records = self.instructions[first as usize..(first + count) as usize].to_vec();
        self.blocks.push(BlockRecord { first: self.instructions.len() as u32, count });
        self.instructions.extend(records);
        self.blocks.len() as u32 - 1
    }

    /// Executes a block with these accesses: instruction in the block, kind, address, value.
    fn execute(&mut self, block: u32, accesses: &[(u32, locality_stream::Kind, u64, u64)]) {
        self.events.push(Event::new(locality_stream::Kind::BLOCK, block, 0));
        let BlockRecord { first, count } = self.blocks[block as usize];
        for (at, kind, address, value) in accesses {
            self.events.push(Event::access(*kind, first + at, *address, 8));
            self.values.push(*value);
        }
        self.executed += u64::from(count);
    }

    fn window(&self) -> Window<'_> {
        Window {
            events: &self.events,
            values: &self.values,
            code: Code { instructions: &self.instructions, blocks: &self.blocks },
            instructions: self.executed,
        }
    }

    fn start(&self, block: usize) -> u64 {
        self.instructions[self.blocks[block].first as usize].address
    }

    fn end(&self, block: usize) -> u64 {
        let BlockRecord { first, count } = self.blocks[block];
        self.instructions[(first + count - 1) as usize].address
    }
}

const LOAD: locality_stream::Kind = locality_stream::Kind::LOAD;
const STORE: locality_stream::Kind = locality_stream::Kind::STORE;

/// Two nested loops: 0 before, 1 head of the outer one, 2 the inner one, 3 tail of the outer one, 4 behind.
fn nest() -> Program {
    Program::new(&[
        &|a| a.xor(ecx, ecx).unwrap(),
        &|a| a.xor(edx, edx).unwrap(),
        &|a| {
            a.mov(rax, qword_ptr(rsi + rdx * 8)).unwrap();
            a.add(qword_ptr(rdi), rax).unwrap();
            a.inc(rdx).unwrap();
        },
        &|a| a.inc(rcx).unwrap(),
        &|a| a.nop().unwrap(),
    ])
}

#[test]
fn nested_loops_have_trips_and_both_strides() {
    let mut program = nest();
    program.execute(0, &[]);
    for outer in 0..10_u64 {
        program.execute(1, &[]);
        for inner in 0..20_u64 {
            let at = 0x10_0000 + inner * 4096 + outer * 8;
            program.execute(2, &[(0, LOAD, at, inner), (1, LOAD, 0x9000, 1), (1, STORE, 0x9000, 2)]);
        }
        program.execute(3, &[]);
    }
    program.execute(4, &[]);
    let found = Graph::default().observe(&program.window()).loops;
    let [inner, outer] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((inner.header, inner.latch, inner.iterations), (program.start(2), program.end(2), 200));
    assert_eq!((inner.around, inner.trips.as_slice()), (Some(outer.header), &[20; 10][..]));
    assert_eq!((outer.header, outer.latch, outer.iterations), (program.start(1), program.end(3), 10));
    assert_eq!((outer.around, outer.trips.as_slice(), outer.instructions), (None, &[10][..], 20));
    let of = Graph::default().observe(&program.window()).of_instruction;
    assert_eq!((of.len(), of[0], of[1], of[2]), (622, None, Some(1), Some(0)));
    let column = &inner.by_access[0];
    assert_eq!((column.stride, column.stride_count, column.outer_stride), (Some(4096), 190, Some(8)));
    assert_eq!((column.executions, column.lines, column.pages, column.steps), (200, 40, 20, 190));
    assert_eq!((column.sets, column.values), ([2, 32], Some((0, 19))));
    let sum = inner.by_access.iter().find(|access| access.is_store).unwrap();
    assert_eq!((sum.stride, sum.outer_stride, sum.dependence), (Some(0), Some(0), Dependence::None));
}

#[test]
fn a_window_inside_a_nest_shows_what_it_can() {
    // Begins in the middle of a run, and ends in another one; the entry of the outer loop is not seen.
    let mut program = nest();
    for outer in 0..3_u64 {
        let from = if outer == 0 { 15 } else { 0 };
        for inner in from..if outer == 2 { 5 } else { 20_u64 } {
            program.execute(2, &[(0, LOAD, 0x10_0000 + inner * 4096 + outer * 8, 7)]);
        }
        if outer < 2 {
            program.execute(3, &[]);
            program.execute(1, &[]);
        }
    }
    let found = Graph::default().observe(&program.window()).loops;
    let [inner, outer] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!(
        (inner.header, inner.around, outer.header),
        (program.start(2), Some(program.start(1)), program.start(1))
    );
    assert!(inner.is_first && !outer.is_first);
    // One run is whole, and from its first address to that of the next is a word.
    assert_eq!((inner.trips.as_slice(), inner.by_access[0].outer_stride), (&[20][..], Some(8)));

    // A single change of runs tells the neighbour by what is left of whole steps.
    let mut program = nest();
    for inner in 10..20_u64 {
        program.execute(2, &[(0, LOAD, 0x10_0000 + inner * 4096, 7)]);
    }
    program.execute(3, &[]);
    program.execute(1, &[]);
    for inner in 0..5_u64 {
        program.execute(2, &[(0, LOAD, 0x10_0008 + inner * 4096, 7)]);
    }
    let found = Graph::default().observe(&program.window()).loops;
    assert_eq!((found[0].by_access[0].outer_stride, found[0].trips.as_slice()), (Some(8), &[20][..]));
}

/// The first iteration of a loop that is entered by falling through runs in a block that begins before the
/// loop. Its accesses are those of the other iterations.
#[test]
fn a_loop_entered_by_falling_through_has_all_its_iterations() {
    let mut program = nest();
    let enter = program.join([1, 2]);
    let access = |at: u32, inner: u64, outer: u64| [(at, LOAD, 0x10_0000 + inner * 4096 + outer * 8, 7)];
    (50..80).for_each(|inner| program.execute(2, &access(0, inner, 3)));
    program.execute(3, &[]);
    program.execute(enter, &access(1, 0, 4));
    (1..30).for_each(|inner| program.execute(2, &access(0, inner, 4)));
    let found = Graph::default().observe(&program.window()).loops;
    let [load] = found[0].by_access.as_slice() else { panic!("{found:#?}") };
    assert_eq!((load.executions, load.outer_stride), (60, Some(8)));
    assert_eq!(found[0].trips.as_slice(), &[80]);
}

/// A transposition: columns of one matrix are rows of the other, and the rows' step from run to run
/// follows from the length of the columns.
#[test]
fn the_length_of_a_column_tells_the_step_between_rows() {
    let mut program = nest();
    let access = |inner: u64, outer: u64| {
        let (column, row) = (0x10_0000 + inner * 4096 + outer * 8, 0x90_0000 + outer * 640 + inner * 8);
        [(0, LOAD, row, 7), (1, LOAD, column, 7), (1, STORE, column, 7)]
    };
    (50..80).for_each(|inner| program.execute(2, &access(inner, 3)));
    program.execute(3, &[]);
    program.execute(1, &[]);
    (0..30).for_each(|inner| program.execute(2, &access(inner, 4)));
    let found = Graph::default().observe(&program.window()).loops;
    let outer = |stride: i64| {
        found[0].by_access.iter().find(|access| access.stride == Some(stride)).unwrap().outer_stride
    };
    assert_eq!((outer(4096), outer(8), found[0].trips.as_slice()), (Some(8), Some(640), &[80][..]));
}

#[test]
fn what_a_called_function_accesses_belongs_to_the_loop_that_calls() {
    // 0: the loop calls 1, which has no loop; 2: the loop goes on.
    let mut program = Program::new(&[
        &|a| a.call(CODE + 6).unwrap(),
        &|a| {
            a.nop().unwrap();
            a.mov(rax, qword_ptr(rax)).unwrap();
            a.ret().unwrap();
        },
        &|a| a.inc(rcx).unwrap(),
    ]);
    let returns_to = program.start(1);
    for turn in 0..8_u64 {
        program.execute(0, &[(0, locality_stream::Kind::CALL, 0x7000, returns_to)]);
        program.execute(1, &[(1, LOAD, 0x10_0000 + turn * 640, 0x10_0000 + turn * 640 + 640)]);
        program.events.push(Event::access(locality_stream::Kind::RETURN, 3, 0x7000, 8));
        program.values.push(returns_to);
        program.execute(2, &[]);
    }
    let found = Graph::default().observe(&program.window()).loops;
    let [all] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((all.header, all.iterations, all.accesses), (program.start(0), 8, 8));
    let chase = &all.by_access[0];
    assert_eq!((chase.dependence, chase.stride, chase.lines), (Dependence::Chased, Some(640), 8));
    assert_eq!(chase.called, [returns_to]);
}

#[test]
fn addresses_from_other_loads_are_indexed() {
    let mut program = Program::new(&[&|a| {
        a.movsxd(rax, dword_ptr(rsi + rdx * 4)).unwrap();
        a.mov(rbx, qword_ptr(rdi + rax * 8)).unwrap();
        a.inc(rdx).unwrap();
    }]);
    for turn in 0..50_u64 {
        let random = turn * turn * 7919 % 1000;
        program.execute(0, &[(0, LOAD, 0x9000 + turn * 4, random), (1, LOAD, 0x10_0000 + random * 8, 1)]);
    }
    let found = Graph::default().observe(&program.window()).loops;
    let access = |at: usize| {
        let ip = program.instructions[at].address;
        found[0].by_access.iter().find(|access| access.ip == ip).unwrap()
    };
    assert_eq!((access(0).dependence, access(0).stride), (Dependence::None, Some(4)));
    assert_eq!(access(1).dependence, Dependence::Indexed);
    assert!(access(1).stride_count * 2 < access(1).steps);
}

#[test]
fn odd_windows_give_nothing() {
    let program = nest();
    assert!(Graph::default().observe(&program.window()).loops.is_empty());
    let mut program = nest();
    program.executed = 100;
    program.events.push(Event::new(locality_stream::Kind::BLOCK, 77, 0));
    program.events.push(Event::access(LOAD, NO_INSTRUCTION, u64::MAX, 0));
    program.events.push(Event::access(locality_stream::Kind::RETURN, 9999, 1, u16::MAX));
    for block in [4, 0, 3, 2] {
        program.events.push(Event::new(locality_stream::Kind::BLOCK, block, 0));
    }
    assert!(Graph::default().observe(&program.window()).loops.is_empty());
}
