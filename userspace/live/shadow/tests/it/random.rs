//! Random instructions from random registers and memory: a window of one instruction against the
//! processor, which a child single-steps. Compared are all registers, flags and vectors, every byte
//! of memory around the operand, and that what faults there ends the window here.
//! `LOCALITY_SHADOW_INSTRUCTIONS` asks for more of them.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use fastrand::Rng;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Register};
use locality_isa::Registers;
use locality_shadow::ThreadState;
use locality_shadow::window::End;
use locality_stream::Kind;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::programs::{differences, undefined_behind};
use crate::support::{Shadow, limits};
use crate::target::{ProcessMemory, Target, pin, set_state, state};

/// Bytes of memory that operands lie in, and how far around an operand it is compared.
const ROOM: u64 = 3 * 4096;
const AROUND: u64 = 128;

/// Bytes that are likely an instruction: an encoding, a random opcode, a ModRM byte, the rest.
fn likely(random: &mut Rng) -> [u8; 15] {
    let mut bytes = [0_u8; 15];
    random.fill(&mut bytes);
    let mut front = Vec::new();
    // Registers of all numbers, and memory as often as registers.
    let modrm = random.u8(..) | if random.bool() { 0xc0 } else { 0 };
    match random.u8(0..10) {
        0..5 => {
            front.extend([&[][..], &[0x66], &[0xf2], &[0xf3], &[0xf0], &[0x64]][random.usize(0..6)]);
            if random.bool() {
                front.push(0x40 | random.u8(0..16));
            }
            front.extend([&[][..], &[0x0f], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]][random.usize(0..5)]);
        }
        5..7 => {
            let map = random.u8(1..4);
            front.extend([0xc4, random.u8(0..8) << 5 | map, random.u8(..)]);
        }
        _ => {
            let map = [1, 1, 2, 2, 3, 5, 6][random.usize(0..7)];
            let p0 = random.u8(0..16) << 4 | map;
            front.extend([0x62, p0, random.u8(..) | 4, random.u8(..)]);
        }
    }
    front.extend([random.u8(..), modrm]);
    for (to, from) in bytes.iter_mut().zip(front) {
        *to = from;
    }
    bytes
}

fn value(random: &mut Rng) -> u64 {
    match random.u8(0..6) {
        0 => 0,
        1 => u64::MAX,
        2 => random.u64(0..256),
        3 => (1_u64 << random.u32(0..64)).wrapping_sub(random.u64(0..2)),
        _ => random.u64(..),
    }
}

/// A vector of numbers that arithmetic likes, or of anything.
fn vector(random: &mut Rng, into: &mut [u8]) {
    random.fill(into);
    match random.u8(0..4) {
        0 => into
            .chunks_exact_mut(4)
            .for_each(|c| c.copy_from_slice(&(random.i32(-99..99) as f32 / 4.0).to_le_bytes())),
        1 => into
            .chunks_exact_mut(8)
            .for_each(|c| c.copy_from_slice(&(random.i32(-99..99) as f64 / 8.0).to_le_bytes())),
        2 => into.chunks_exact_mut(4).for_each(|c| c.copy_from_slice(&random.u32(0..300).to_le_bytes())),
        _ => {}
    }
}

fn extended(random: &mut Rng, template: &[u8], small: usize) -> Vec<u8> {
    let mut bytes = template.to_vec();
    let place = |n| std::arch::x86_64::__cpuid_count(0xd, n);
    let mut present = 3_u64;
    vector(random, &mut bytes[160..416]);
    for n in [2, 5, 6, 7] {
        let leaf = place(n);
        let range = leaf.ebx as usize..(leaf.ebx + leaf.eax) as usize;
        if leaf.eax != 0 && range.end <= bytes.len() {
            vector(random, &mut bytes[range]);
            present |= 1 << n;
        }
    }
    if small > 0 {
        // Indices of gathers stay within the room.
        for range in [160..416, 576..832]
            .into_iter()
            .chain([6, 7].map(|n| place(n).ebx as usize..(place(n).ebx + place(n).eax) as usize))
        {
            if range.end <= bytes.len() {
                for element in bytes[range].chunks_exact_mut(small) {
                    element.fill(0);
                    element[0] = random.u8(..);
                }
            }
        }
    }
    // x87: control word with all exceptions masked, now and then not; some registers full.
    bytes[..32].fill(0);
    let control = if random.u8(0..20) == 0 { 0x340 } else { 0x37f | u16::from(random.u8(0..4)) << 10 };
    bytes[0..2].copy_from_slice(&control.to_le_bytes());
    bytes[3] = random.u8(0..8) << 3;
    bytes[4] = random.u8(..);
    for n in 0..8 {
        let register = &mut bytes[32 + n * 16..48 + n * 16];
        random.fill(&mut register[..8]);
        register[7] |= 0x80;
        register[8..10].copy_from_slice(&random.u16(0x3ff0..0x4010).to_le_bytes());
        register[10..].fill(0);
    }
    let mxcsr = if random.u8(0..20) == 0 { 0x1c00 } else { 0x1f80 | u32::from(random.u8(0..4)) << 13 };
    bytes[24..28].copy_from_slice(&mxcsr.to_le_bytes());
    bytes[28..32].copy_from_slice(&template[28..32]);
    bytes[512..520].copy_from_slice(&present.to_le_bytes());
    bytes
}

/// The child: where its code and data are.
struct Child {
    _target: Target,
    tid: Pid,
    file: File,
    code: u64,
    data: u64,
    start: ThreadState,
}

impl Child {
    fn start() -> Option<(Child, ProcessMemory)> {
        let mut target = Target::start(&["/bin/sleep", "1000"])?;
        target.run_for(20_000);
        target.stop();
        let tid = target.main();
        let start = state(tid)?;
        let maps = fs::read_to_string(format!("/proc/{tid}/maps")).ok()?;
        let stack = maps.lines().find(|line| line.ends_with("[stack]"))?;
        let data = u64::from_str_radix(stack.split('-').next()?, 16).ok()? + 0x2000;
        let file = OpenOptions::new().write(true).read(true).open(format!("/proc/{tid}/mem")).ok()?;
        let code = (start.registers.rip & !0xfff) + 64;
        let memory = target.memory.again();
        Some((Child { _target: target, tid, file, code, data, start }, memory))
    }
}

fn set(registers: &mut Registers, register: Register, value: u64) {
    let fields = [
        &mut registers.rax,
        &mut registers.rcx,
        &mut registers.rdx,
        &mut registers.rbx,
        &mut registers.rsp,
        &mut registers.rbp,
        &mut registers.rsi,
        &mut registers.rdi,
        &mut registers.r8,
        &mut registers.r9,
        &mut registers.r10,
        &mut registers.r11,
        &mut registers.r12,
        &mut registers.r13,
        &mut registers.r14,
        &mut registers.r15,
    ];
    for (n, field) in fields.into_iter().enumerate() {
        if n == register.full_register().number() {
            *field = value;
        }
    }
}

/// The state and where the operand lies; `None` where it cannot be put into the room.
fn prepare(child: &Child, instruction: &Instruction, random: &mut Rng) -> Option<(ThreadState, u64)> {
    let mut registers = child.start.registers;
    for n in 0..16 {
        set(&mut registers, Register::RAX + n, value(random));
    }
    // Half of the operands aligned, some across two pages.
    let near_end = random.u64(4096 - 70..4096 + 6);
    let offset = match random.u8(0..4) {
        0 => near_end,
        1 => random.u64(AROUND..8192),
        _ => random.u64(AROUND / 64..8192 / 64) * 64,
    };
    let mut operand = child.data + offset;
    registers.rsp = operand & !7;
    if instruction.is_string_instruction() {
        (registers.rsi, registers.rdi, registers.rcx) = (operand, operand + 300, random.u64(0..3));
        operand += 300;
    }
    registers.rip = child.code;
    registers.rflags = random.u64(..) & 0x8d5 | 0x202 | if random.u8(0..8) == 0 { 0x400 } else { 0 };
    let base = instruction.memory_base();
    if base.is_gpr64() && base != Register::RSP {
        let general = registers.general();
        let scale = u64::from(instruction.memory_index_scale());
        let index = instruction.memory_index();
        if index.full_register() == base {
            return None;
        }
        let index = if index.is_gpr() { general[index.number() & 15].wrapping_mul(scale) } else { 0 };
        let segment = match instruction.memory_segment() {
            Register::FS => registers.fs_base,
            Register::GS => registers.gs_base,
            _ => 0,
        };
        let rest = index.wrapping_add(instruction.memory_displacement64()).wrapping_add(segment);
        set(&mut registers, base, operand.wrapping_sub(rest));
    }
    let small = if instruction.is_vsib64() { 8 } else { 4 * usize::from(instruction.is_vsib32()) };
    let extended = extended(random, &child.start.extended, small);
    Some((ThreadState { registers, extended }, operand))
}

#[test]
fn single_instructions_are_the_processors() {
    pin();
    let wanted: u64 =
        std::env::var("LOCALITY_SHADOW_INSTRUCTIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(500);
    let Some((child, mut memory)) = Child::start() else {
        println!("skipped: no child can be traced here");
        return;
    };
    let mut random = Rng::with_seed(std::env::var("LOCALITY_SHADOW_SEED").map_or(7, |n| n.parse().unwrap()));
    let mut shadow = Shadow::new();
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let (mut faults, mut ran, mut tried) = (0, 0, 0_u64);
    let mut wrong = Vec::new();
    let mut room = vec![0_u8; ROOM as usize];
    while ran < wanted && tried < wanted * 200 {
        tried += 1;
        let bytes = likely(&mut random);
        let instruction = Decoder::with_ip(64, &bytes, child.code, DecoderOptions::NONE).decode();
        // Memory that the kernel writes (fs), and what the child's own stepping disturbs.
        let name = format!("{:?}", instruction.mnemonic());
        if instruction.is_invalid()
            || instruction.flow_control() != FlowControl::Next
            || name.starts_with("Pushf")
            || name.starts_with("Popf")
            || name == "Cpuid"
            // The clock goes on in between.
            || name.starts_with("Rdtsc")
            || seen.get(&name).is_some_and(|count| *count > wanted / 100 + 3)
        {
            continue;
        }
        let Some((before, operand)) = prepare(&child, &instruction, &mut random) else { continue };
        random.fill(&mut room[..]);
        child.file.write_all_at(&room, child.data).unwrap();
        // Behind it: a loop that loads every byte around the operand, so that the log tells what is
        // in memory.
        let length = instruction.len();
        let mut code = bytes[..length].to_vec();
        code.extend([0x48, 0xbe]);
        code.extend((operand - AROUND).to_le_bytes());
        code.extend([0xb9]);
        code.extend((2 * AROUND as u32).to_le_bytes());
        code.extend([0xfc, 0xf3, 0xac, 0xcc]);
        child.file.write_all_at(&code, child.code).unwrap();
        let one = shadow.run(&before, &mut memory, &limits(1));
        if !matches!(one.end(), End::Instructions | End::Fault) {
            continue;
        }
        // Before the child changes its memory.
        let all = shadow.run(&before, &mut memory, &limits(4 + 2 * AROUND + 20));
        let loaded: Vec<u8> = all
            .accesses()
            .iter()
            .rev()
            .take_while(|a| a.0 == Kind::LOAD && a.2 == 1)
            .map(|a| a.3 as u8)
            .collect();
        set_state(child.tid, &before);
        ptrace::step(child.tid, None).unwrap();
        let status = waitpid(child.tid, Some(WaitPidFlag::__WALL)).unwrap();
        let WaitStatus::Stopped(_, signal) = status else { panic!("{status:?}") };
        let context = format!("{:?} {:02x?}", instruction.code(), &bytes[..length]);
        *seen.entry(name.clone()).or_default() += 1;
        ran += 1;
        // What is masked off counts as zero where it is not mapped, also for those instructions
        // that read it all the same.
        let is_masked = instruction.has_op_mask() || name.to_ascii_lowercase().contains("maskmov");
        // Nor is it asked for what is only flushed.
        let is_passed_over = is_masked || name.starts_with("Clflush") || name.starts_with("Clwb");
        if is_passed_over
            && matches!(signal, Signal::SIGSEGV | Signal::SIGBUS)
            && one.end() == End::Instructions
        {
            continue;
        }
        if (signal == Signal::SIGTRAP) != (one.end() == End::Instructions) {
            wrong.push(format!("{context}: {:?}, native {signal:?}", one.end()));
            continue;
        }
        if one.end() == End::Fault {
            faults += 1;
            let differences = differences(&one.state, &before, 0);
            if !differences.is_empty() {
                wrong.push(format!("{context}: after a fault {differences}"));
            }
            continue;
        }
        let native = state(child.tid).unwrap();
        let differences = differences(&one.state, &native, undefined_behind(&instruction));
        if !differences.is_empty() {
            wrong.push(format!("{context}: {differences}"));
        }
        let mut bytes = vec![0; 2 * AROUND as usize];
        child.file.read_exact_at(&mut bytes, operand - AROUND).unwrap();
        bytes.reverse();
        // Of saved states each processor writes other parts.
        let saves = ["Xsave", "Fxsave"].iter().any(|save| name.starts_with(save));
        if !instruction.is_string_instruction() && !saves && loaded.get(..bytes.len()) != Some(&bytes[..]) {
            wrong.push(format!("{context}: memory differs ({:?})", all.end()));
        }
    }
    println!("{ran} instructions of {} kinds, {faults} faults, {tried} tried", seen.len());
    if std::env::var("LOCALITY_SHADOW_LIST").is_ok() {
        println!("{seen:?}");
    }
    assert!(wrong.is_empty(), "{} of {ran}: {wrong:#?}", wrong.len());
    assert!(seen.len() > 200, "only {} kinds", seen.len());
}
