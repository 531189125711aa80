//! Targets that are broken, hostile or beyond what windows can do: each window ends with its
//! reason, the executor works on.

use iced_x86::code_asm::*;
use locality_isa::Registers;
use locality_shadow::window::{End, Limits};
use locality_shadow::{Memory, PAGE, Page, ThreadState, Trust};
use locality_stream::{Analysis as _, Checker, Event, Kind, Rule};

use crate::code::{CODE, DATA, STACK, made, start};
use crate::support::{Made, Ran, Shadow, limits};

/// Runs what `write` assembles, from [`start`].
fn run(write: impl FnOnce(&mut CodeAssembler)) -> Ran {
    let mut a = CodeAssembler::new(64).unwrap();
    write(&mut a);
    Shadow::new().run(&start(), &mut made(&mut a), &limits(10_000))
}

#[test]
fn nothing_is_mapped() {
    let mut shadow = Shadow::new();
    let null = shadow.run(&ThreadState::default(), &mut Made::default(), &limits(1000));
    assert_eq!((null.end(), null.counts.detail, null.counts.instructions), (End::UnreadableCode, 0, 0));
    assert!(null.events.is_empty());
    let wild = ThreadState {
        registers: Registers { rip: u64::MAX - 3, rsp: u64::MAX, ..Registers::default() },
        extended: vec![0xff; 500],
    };
    assert_eq!(shadow.run(&wild, &mut Made::default(), &limits(1000)).end(), End::UnreadableCode);
    // The same with a shadow stack in use.
    let wild = ThreadState { extended: vec![0xff; 700], ..wild };
    assert_eq!(shadow.run(&wild, &mut Made::default(), &limits(1000)).end(), End::Unsupported);
}

#[test]
fn code_ends_within_an_instruction() {
    let mut memory = Made::default();
    let mut page = vec![0x90; PAGE as usize];
    page[PAGE as usize - 2..].copy_from_slice(&[0x48, 0xb8]);
    memory.put(CODE, &page);
    let at = CODE + PAGE - 4;
    let state = ThreadState { registers: Registers { rip: at, ..start().registers }, extended: Vec::new() };
    let ran = Shadow::new().run(&state, &mut memory, &limits(1000));
    assert_eq!((ran.end(), ran.counts.detail, ran.counts.instructions), (End::UnreadableCode, at + 2, 2));
    assert_eq!(ran.state.registers.rip, at + 2);
}

/// The processor's clock is read in a window, and goes on with its instructions.
#[test]
fn a_window_has_the_processors_clock() {
    // SAFETY: it has no precondition.
    let now = || unsafe { std::arch::x86_64::_rdtsc() };
    let before = now();
    let ran = run(|a| {
        a.mov(rax, -1_i64 as u64).unwrap();
        a.mov(rdx, rax).unwrap();
        a.rdtsc().unwrap();
        a.mov(r8, rax).unwrap();
        a.mov(r9, rdx).unwrap();
        a.rdtscp().unwrap();
        a.syscall().unwrap();
    });
    let after = now();
    assert_eq!((ran.end(), ran.counts.instructions), (End::SystemCall, 6));
    let registers = &ran.state.registers;
    let (first, second) = (registers.r9 << 32 | registers.r8, registers.rdx << 32 | registers.rax);
    assert!(registers.r8 >> 32 == 0 && registers.rax >> 32 == 0 && registers.rdx >> 32 == 0);
    assert_eq!(second, first + 3);
    assert!(first > before && second < after, "{before} {first} {second} {after}");
}

#[test]
fn each_reason() {
    let nothing_more = |a: &mut CodeAssembler| a.nop().unwrap();
    // A data address that is not mapped, read and written; the stack likewise.
    let ran = run(|a| a.mov(rax, qword_ptr(0x1000)).unwrap());
    assert_eq!((ran.end(), ran.counts.detail), (End::Unreadable, 0x1000));
    let ran = run(|a| a.mov(qword_ptr(DATA + 2 * PAGE - 4), rax).unwrap());
    assert_eq!((ran.end(), ran.counts.detail), (End::Unreadable, DATA + 2 * PAGE));
    let ran = run(|a| {
        a.mov(rsp, 0x1234_5678_u64).unwrap();
        a.push(rax).unwrap();
    });
    assert_eq!((ran.end(), ran.counts.instructions), (End::Unreadable, 1));
    // Faults: division by zero, a misaligned vector, an undefined instruction, #XM.
    for write in [
        |a: &mut CodeAssembler| a.div(ecx).unwrap(),
        |a: &mut CodeAssembler| a.movaps(xmm0, xmmword_ptr(DATA + 8)).unwrap(),
        |a: &mut CodeAssembler| a.ud2().unwrap(),
        |a: &mut CodeAssembler| {
            a.mov(dword_ptr(DATA), 0).unwrap();
            a.ldmxcsr(dword_ptr(DATA)).unwrap();
            a.divss(xmm1, xmm0).unwrap();
        },
    ] {
        let ran = run(write);
        assert_eq!(ran.end(), End::Fault);
        assert_eq!(ran.counts.detail, ran.state.registers.rip);
    }
    for (write, end) in [
        ((|a| a.int3().unwrap()) as fn(&mut CodeAssembler), End::Breakpoint),
        (|a| a.syscall().unwrap(), End::SystemCall),
        (|a| a.int(0x80).unwrap(), End::SystemCall),
        (|a| a.in_(al, 0x70).unwrap(), End::Unsupported),
        (|a| a.wrfsbase(rax).unwrap(), End::Unsupported),
        (|a| a.wrpkru().unwrap(), End::Unsupported),
        (|a| a.mov(ds, eax).unwrap(), End::Unsupported),
        (|a| a.sgdt(ptr(DATA)).unwrap(), End::Unsupported),
        (|a| a.iretq().unwrap(), End::Unsupported),
        (|a| a.rdpid(rax).unwrap(), End::Unrepeatable),
        (|a| a.rdrand(rax).unwrap(), End::Unrepeatable),
        (|a| a.db(&[0x06]).unwrap(), End::Invalid),
    ] {
        let ran = run(|a| {
            nothing_more(a);
            write(a);
        });
        assert_eq!((ran.end(), ran.counts.instructions), (end, 1), "{end:?}");
        assert_eq!(ran.state.registers.rip, CODE + 1);
    }
    // Transactions are none of a window's, but glibc's functions ask whether they are in one.
    for begin in [&[0xc7, 0xf8, 0, 0, 0, 0][..], &[0xc6, 0xf8, 0], &[0x0f, 0x01, 0xd5]] {
        assert_eq!(run(|a| a.db(begin).unwrap()).end(), End::Unsupported);
    }
    if std::arch::is_x86_feature_detected!("rtm") {
        let ran = run(|a| {
            a.xor(ecx, ecx).unwrap();
            a.inc(ecx).unwrap();
            a.xtest().unwrap();
            a.sete(dl).unwrap();
            nothing_more(a);
        });
        assert_eq!((ran.state.registers.rdx & 0xff, ran.counts.instructions > 4), (1, true));
    }
    // Setting the trap flag.
    let ran = run(|a| {
        a.push(0x100).unwrap();
        a.popfq().unwrap();
    });
    assert_eq!(ran.end(), End::Unsupported);
}

#[test]
fn code_that_is_written_ends_the_window_and_is_read_anew() {
    let mut a = CodeAssembler::new(64).unwrap();
    a.mov(byte_ptr(CODE + 0x40), 0x90).unwrap();
    a.nop().unwrap();
    let mut memory = made(&mut a);
    let mut shadow = Shadow::new();
    for text in [true, false] {
        memory.text = if text { vec![CODE] } else { Vec::new() };
        shadow.executor.forget(1);
        let ran = shadow.run(&start(), &mut memory, &limits(100));
        assert_eq!((ran.end(), ran.counts.instructions), (End::CodeWritten, 0));
    }
    // Other code at the same place in the next window: bytes are compared, records are new.
    memory.text.clear();
    let before = shadow.code().instructions.len();
    for (value, records) in [(1_u32, true), (1, false), (2, true), (2, false)] {
        let mut a = CodeAssembler::new(64).unwrap();
        a.mov(ebx, value).unwrap();
        a.hlt().unwrap();
        memory.put(CODE, &a.assemble(CODE).unwrap());
        let known = shadow.code().instructions.len();
        let ran = shadow.run(&start(), &mut memory, &limits(100));
        assert_eq!((ran.end(), ran.state.registers.rbx), (End::Unsupported, value.into()));
        assert_eq!(shadow.code().instructions.len() > known, records);
    }
    assert!(shadow.code().instructions.len() > before);
    // A page that was written and is then executed.
    let ran = run(|a| {
        a.mov(rax, DATA).unwrap();
        a.mov(byte_ptr(rax), 0xcc).unwrap();
        a.jmp(rax).unwrap();
    });
    assert_eq!((ran.end(), ran.counts.instructions), (End::Breakpoint, 3));
}

#[test]
fn a_huge_repetition_stops_between_iterations() {
    let mut a = CodeAssembler::new(64).unwrap();
    a.mov(rdi, DATA).unwrap();
    a.mov(rcx, 1_u64 << 60).unwrap();
    a.mov(al, 7).unwrap();
    a.rep().stosb().unwrap();
    let mut memory = made(&mut a);
    let mut shadow = Shadow::new();
    let ran = shadow.run(&start(), &mut memory, &limits(103));
    assert_eq!((ran.end(), ran.counts.instructions, ran.counts.accesses), (End::Instructions, 103, 100));
    assert_eq!((ran.state.registers.rcx, ran.state.registers.rdi), ((1 << 60) - 100, DATA + 100));
    assert_eq!(ran.events.last().map(|e| (e.kind, e.value)), Some((Kind::BLOCK_CUT, 4)));
    // It goes on from there, to where memory ends.
    let ran = shadow.run(&ran.state, &mut memory, &limits(1_000_000));
    assert_eq!((ran.end(), ran.counts.detail), (End::Unreadable, DATA + 2 * PAGE));
    assert_eq!(ran.counts.instructions, 2 * PAGE - 100);
    // Half of a string with no room in the log.
    let ran = shadow.run_with(1, &start(), &mut memory, &limits(1_000_000), 50, 10);
    assert_eq!((ran.end(), ran.counts.events), (End::Log, 50));
    assert_eq!(ran.counts.accesses, 48);
    // And with no count at all.
    let ran = run(|a| {
        a.rep().movsb().unwrap();
        a.hlt().unwrap();
    });
    assert_eq!((ran.counts.instructions, ran.counts.accesses), (1, 0));
}

/// A loop that reads a byte of one page after the other, and so many pages.
fn page_after_page(pages: usize) -> Made {
    let mut a = CodeAssembler::new(64).unwrap();
    let mut again = a.create_label();
    a.mov(rdi, 0x10_0000_u64).unwrap();
    a.set_label(&mut again).unwrap();
    a.mov(al, byte_ptr(rdi)).unwrap();
    a.add(rdi, PAGE as i32).unwrap();
    a.jmp(again).unwrap();
    let mut memory = made(&mut a);
    memory.put(0x10_0000, &vec![1; pages * PAGE as usize]);
    memory
}

#[test]
fn limits_are_kept() {
    let mut memory = page_after_page(64);
    let mut shadow = Shadow::new();
    // The first time pages come one by one, and so they do after one window that used them; then
    // half of the limit in one batch.
    for (batches, code) in [(vec![], 1), (vec![], 0), (vec![5], 0)] {
        memory.reads.clear();
        let ran = shadow.run(&start(), &mut memory, &Limits { pages: 10, ..limits(10_000) });
        assert_eq!((ran.end(), ran.counts.accesses, ran.counts.pages), (End::Pages, 10, 10 + code));
        let several = |reads: &[Vec<u64>]| reads.iter().map(Vec::len).filter(|n| *n > 1).collect::<Vec<_>>();
        assert_eq!(several(&memory.reads), batches);
        // A window that uses nothing changes nothing.
        assert!(
            shadow.run(&start(), &mut memory, &Limits { pages: 0, ..limits(10_000) }).end() == End::Pages
        );
    }
    // Time.
    let ran = run(|a| {
        let mut again = a.create_label();
        a.set_label(&mut again).unwrap();
        a.jmp(again).unwrap();
    });
    assert_eq!((ran.end(), ran.counts.instructions), (End::Instructions, 10_000));
    let mut a = CodeAssembler::new(64).unwrap();
    let mut again = a.create_label();
    a.set_label(&mut again).unwrap();
    a.jmp(again).unwrap();
    let short = Limits { instructions: u64::MAX, pages: 10, time_ns: 0 };
    let ran = Shadow::new().run_with(1, &start(), &mut made(&mut a), &short, 1 << 20, 1 << 20);
    assert_eq!(ran.end(), End::Time);
    // No log at all.
    let ran = Shadow::new().run_with(1, &start(), &mut made(&mut a), &limits(10), 0, 0);
    assert_eq!((ran.end(), ran.counts.events, ran.counts.instructions), (End::Log, 0, 0));
}

/// Memory that takes its time.
struct Slow(Made);

impl Memory for Slow {
    fn read(&mut self, pages: &[u64], into: &mut [Page], found: &mut [bool]) {
        std::thread::sleep(std::time::Duration::from_millis(2));
        self.0.read(pages, into, found);
    }

    fn trust(&self, page: u64) -> Trust {
        self.0.trust(page)
    }
}

/// A window of new pages and code is slow: its time is looked at as often as that asks for.
#[test]
fn slow_pages_do_not_outlast_the_time() {
    let mut memory = Slow(page_after_page(200));
    let short = Limits { time_ns: 20_000_000, ..limits(10_000) };
    let ran = Shadow::new().run(&start(), &mut memory, &short);
    assert_eq!(ran.end(), End::Time);
    assert!((1..40).contains(&ran.counts.pages), "{} pages", ran.counts.pages);
}

#[test]
fn full_tables_begin_a_new_epoch() {
    use std::sync::atomic::Ordering::Acquire;
    let mut shadow = Shadow::with_tables(100, 20);
    let mut memory = Made::default();
    memory.put(CODE, &[0x90; 4 * PAGE as usize]);
    let mut ends = Vec::new();
    for n in 0..10 {
        let registers = Registers { rip: CODE + n * 64 * 7, ..start().registers };
        let ran = shadow.run(&ThreadState { registers, extended: Vec::new() }, &mut memory, &limits(64));
        ends.push(ran.end());
        let code = shadow.code();
        for event in ran.events.iter().filter(|event| event.kind == Kind::BLOCK) {
            assert!(!code.block(event.index).is_empty());
        }
    }
    assert!(shadow.counts.epoch.load(Acquire) >= 4, "{ends:?}");
    assert!(ends.iter().filter(|end| **end == End::Instructions).count() >= 5, "{ends:?}");
}

#[test]
fn a_system_call_to_be_restarted_is_left_alone() {
    let mut a = CodeAssembler::new(64).unwrap();
    a.syscall().unwrap();
    a.nop().unwrap();
    a.nop().unwrap();
    let mut memory = made(&mut a);
    let at = |result: i64, rip: u64| ThreadState {
        registers: Registers { rax: result as u64, rip, ..start().registers },
        extended: Vec::new(),
    };
    let mut shadow = Shadow::new();
    assert_eq!(shadow.run(&at(-512, CODE + 2), &mut memory, &limits(1)).end(), End::Restart);
    assert_eq!(shadow.run(&at(-516, CODE + 2), &mut memory, &limits(1)).end(), End::Restart);
    assert_eq!(shadow.run(&at(-4, CODE + 2), &mut memory, &limits(1)).end(), End::Instructions);
    assert_eq!(shadow.run(&at(-512, CODE + 3), &mut memory, &limits(1)).end(), End::Instructions);
}

#[test]
fn masked_off_bytes_need_not_be_mapped() {
    if !std::is_x86_feature_detected!("avx2") {
        return;
    }
    let end = DATA + 2 * PAGE;
    let code = |a: &mut CodeAssembler, at: u64| {
        // The mask selects elements 0 and 2.
        a.mov(dword_ptr(DATA), -1).unwrap();
        a.mov(dword_ptr(DATA + 8), -1).unwrap();
        a.mov(dword_ptr(end - 12), 3).unwrap();
        a.vmovdqu(ymm1, ymmword_ptr(DATA)).unwrap();
        a.mov(rdi, at).unwrap();
        a.vmaskmovps(ymm2, ymm1, ymmword_ptr(rdi)).unwrap();
        a.vmaskmovps(ymmword_ptr(rdi), ymm1, ymm1).unwrap();
        a.hlt().unwrap();
    };
    let ran = run(|a| code(a, end - 12));
    assert_eq!((ran.end(), ran.counts.instructions), (End::Unsupported, 7));
    let accesses = ran.accesses();
    let expected = [
        (Kind::LOAD, end - 12, 4, 3),
        (Kind::LOAD, end - 4, 4, 0),
        (Kind::STORE, end - 12, 4, 0xffff_ffff),
        (Kind::STORE, end - 4, 4, 0xffff_ffff),
    ];
    assert_eq!(accesses[accesses.len() - 4..], expected);
    // Element 2 beyond the end.
    let ran = run(|a| code(a, end - 8));
    assert_eq!((ran.end(), ran.counts.detail, ran.counts.instructions), (End::Unreadable, end, 5));
}

/// Memory in which every page is random.
struct Noise(fastrand::Rng);

impl Memory for Noise {
    fn read(&mut self, pages: &[u64], into: &mut [Page], found: &mut [bool]) {
        for ((page, into), found) in pages.iter().zip(into).zip(found) {
            *found = page % (7 * PAGE) != 0;
            self.0.fill(into);
        }
    }

    fn trust(&self, page: u64) -> Trust {
        if page.is_multiple_of(3 * PAGE) { Trust::Text } else { Trust::Nothing }
    }
}

#[test]
fn garbage_is_survived_and_told_soundly() {
    let mut random = fastrand::Rng::with_seed(3);
    let mut shadow = Shadow::with_tables(2000, 500);
    let mut checker = Checker::new();
    checker.observe(&[Event::new(Kind::THREAD, 0, 1)], &shadow.code()).unwrap();
    for n in 0..4000 {
        let mut extended = vec![0; random.usize(0..3000)];
        random.fill(&mut extended);
        let registers = Registers {
            rip: random.u64(..) >> random.u32(0..64),
            rsp: random.u64(..),
            rax: random.u64(..),
            rcx: random.u64(..),
            rdi: random.u64(..),
            rsi: random.u64(..),
            rbx: random.u64(..),
            rflags: random.u64(..),
            fs_base: random.u64(..),
            ..Registers::default()
        };
        let mut memory = Noise(random.fork());
        let state = ThreadState { registers, extended };
        let limits = Limits { instructions: 1000, pages: random.u64(0..40), time_ns: 1_000_000_000 };
        let events = random.usize(0..400);
        let ran = shadow.run_with(n % 5, &state, &mut memory, &limits, events, random.usize(0..100));
        assert!(ran.counts.instructions <= 1000);
        checker.observe(&ran.events, &shadow.code()).unwrap();
        if n % 50 == 0 {
            shadow.executor.forget(random.u64(0..5));
        }
    }
    assert!(checker.events() > 1000, "{}", checker.events());
    // New tables mean other facts for an index, which the checker does not expect; all else holds.
    let bad: Vec<_> = checker
        .findings()
        .into_iter()
        .filter(|f| matches!(f.rule, Rule::UnknownEvent | Rule::NoThread | Rule::BadSize))
        .collect();
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn signals_of_other_code_reach_their_action() {
    use std::os::unix::process::ExitStatusExt as _;
    // A child of ours with an executor of its own divides by zero outside of any window.
    let exe = std::env::current_exe().unwrap();
    let status = std::process::Command::new(exe)
        .args(["input::raises", "--exact", "--ignored"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(libc::SIGILL));
}

#[test]
#[ignore = "ends its process by a signal; run by another test"]
fn raises() {
    assert_eq!(run(|a| a.ud2().unwrap()).end(), End::Fault);
    // SAFETY: raises a signal at itself, which is what the test is about.
    unsafe { libc::raise(libc::SIGILL) };
}

#[test]
fn stack_of_a_program_is_never_written() {
    let mut a = CodeAssembler::new(64).unwrap();
    for _ in 0..50 {
        a.push(rsp).unwrap();
    }
    a.hlt().unwrap();
    let mut memory = made(&mut a);
    let before = memory.pages.clone();
    let ran = Shadow::new().run(&start(), &mut memory, &limits(1000));
    assert_eq!((ran.counts.accesses, ran.state.registers.rsp), (50, STACK - 400));
    assert_eq!(memory.pages, before);
}
