//! Windows against what the same thread then does: stopped at random points, executed here, then
//! single-stepped.
//!
//! Compared are the address of each instruction, every access (direction, address, size) as iced
//! computes it from the stepped registers, every value loaded, at the end all registers and what
//! was stored. All threads but the stepped one stand still. `LOCALITY_SHADOW_WINDOWS` asks for so
//! many windows a program, `LOCALITY_SHADOW_PROGRAM` for one program.

use std::collections::BTreeMap;

use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, RflagsBits,
};
use locality_isa::Registers;
use locality_shadow::ThreadState;
use locality_shadow::window::End;
use locality_stream::Kind;
use nix::sys::ptrace;
use nix::unistd::Pid;

use crate::commands::commands;
use crate::support::{Ran, Shadow, limits};
use crate::target::{ProcessMemory, Target, pin, registers, state};

/// Trap and resume flag: the stepping's own.
const STEPPING: u64 = 0x1_0100;

/// What became of the windows of a program.
#[derive(Debug, Default)]
struct Tally {
    windows: u64,
    instructions: u64,
    accesses: u64,
    whole: u64,
    ends: BTreeMap<&'static str, u64>,
    causes: BTreeMap<String, u64>,
    diverged: Vec<String>,
}

/// One executed instruction as the log tells it.
struct Told {
    ip: u64,
    length: u8,
    accesses: Vec<(Kind, u64, u16, u64)>,
}

/// The log, instruction by instruction; an iteration of a repeated one counts as one.
fn told(ran: &Ran, shadow: &Shadow) -> Vec<Told> {
    let code = shadow.code();
    let mut list: Vec<Told> = Vec::new();
    let mut values = ran.values.iter();
    let mut events = ran.events.iter().peekable();
    while let Some(event) = events.next() {
        if event.kind == Kind::BLOCK_CUT {
            assert!(events.peek().is_none(), "an event after the last");
            break;
        }
        assert_eq!(event.kind, Kind::BLOCK);
        let block = code.blocks[event.index as usize];
        for index in block.first..block.first + block.count {
            let record = &code.instructions[index as usize];
            let bytes = record.code();
            let instruction = Decoder::with_ip(64, bytes, record.address, DecoderOptions::NONE).decode();
            let repeats = instruction.is_string_instruction()
                && (instruction.has_rep_prefix() || instruction.has_repne_prefix());
            let each = match instruction.mnemonic() {
                Mnemonic::Movsb
                | Mnemonic::Movsw
                | Mnemonic::Movsd
                | Mnemonic::Movsq
                | Mnemonic::Cmpsb
                | Mnemonic::Cmpsw
                | Mnemonic::Cmpsd
                | Mnemonic::Cmpsq => 2,
                _ => 1,
            };
            let mut accesses = Vec::new();
            while let Some(next) = events.next_if(|next| next.kind.is_access() && next.index == index) {
                accesses.push((next.kind, next.value, next.size, *values.next().unwrap()));
                if repeats && accesses.len() == each {
                    let accesses = std::mem::take(&mut accesses);
                    list.push(Told { ip: record.address, length: record.length, accesses });
                }
            }
            let had_rounds = repeats
                && list.last().is_some_and(|last| last.ip == record.address && !last.accesses.is_empty());
            if !had_rounds {
                list.push(Told { ip: record.address, length: record.length, accesses });
            }
        }
    }
    // What the cut block did not execute any more.
    list.truncate(ran.counts.instructions as usize);
    assert_eq!(list.len() as u64, ran.counts.instructions, "events do not add up to the count");
    assert_eq!(values.next(), None);
    list
}

/// What an instruction will access, from the registers before it; `None` where iced does not tell.
fn foreseen(
    instruction: &Instruction,
    registers: &Registers,
    factory: &mut InstructionInfoFactory,
) -> Option<Vec<(bool, u64, u16)>> {
    let is_bit_string =
        matches!(instruction.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
    let name = format!("{:?}", instruction.mnemonic()).to_ascii_lowercase();
    if instruction.is_vsib()
        || instruction.has_op_mask()
        || is_bit_string
        || instruction.is_save_restore_instruction()
        || name.contains("mask")
        || name.starts_with("prefetch")
        || matches!(instruction.mnemonic(), Mnemonic::Clflush | Mnemonic::Clwb | Mnemonic::Clflushopt)
    {
        return None;
    }
    let general = registers.general();
    let value = |register: iced_x86::Register, _, _| {
        use iced_x86::Register as R;
        match register {
            R::FS => Some(registers.fs_base),
            R::GS => Some(registers.gs_base),
            R::ES | R::CS | R::SS | R::DS => Some(0),
            _ => {
                let full = general.get(register.full_register().number()).copied()?;
                Some(match register.size() {
                    1 => full & 0xff,
                    2 => full & 0xffff,
                    4 => full & 0xffff_ffff,
                    _ => full,
                })
            }
        }
    };
    let is_string = instruction.is_string_instruction();
    if is_string && (instruction.has_rep_prefix() || instruction.has_repne_prefix()) && registers.rcx == 0 {
        return Some(Vec::new());
    }
    let mut list = Vec::new();
    for memory in factory.info(instruction).used_memory() {
        let address = memory.virtual_address(0, value)?;
        let size = if is_string { instruction.memory_size() } else { memory.memory_size() }.size() as u16;
        let access = memory.access();
        use OpAccess as A;
        if matches!(access, A::Read | A::CondRead | A::ReadWrite | A::ReadCondWrite) {
            list.push((false, address, size));
        }
        if matches!(access, A::Write | A::CondWrite | A::ReadWrite | A::ReadCondWrite) {
            list.push((true, address, size));
        }
    }
    list.sort_unstable();
    Some(list)
}

/// Steps the thread along the window. `Err` is a cause or a divergence (`true`).
fn compare(
    target: &mut Target,
    tid: Pid,
    list: &[Told],
    ran: &Ran,
    check_values: bool,
) -> Result<(), (bool, String)> {
    let mut factory = InstructionInfoFactory::new();
    let mut stored: BTreeMap<u64, (u8, usize)> = BTreeMap::new();
    let (mut last, mut undefined): (Option<String>, u64) = (None, 0);
    for (n, told) in list.iter().enumerate() {
        let now = registers(tid).ok_or((false, "gone".to_owned()))?;
        let place = || format!("instruction {n} of {} at {:#x} ({last:?})", list.len(), told.ip);
        if now.rip != told.ip {
            return Err((true, format!("{}: native is at {:#x}", place(), now.rip)));
        }
        let mut bytes = [0; 15];
        let length = usize::from(told.length);
        if !target.memory.bytes(told.ip, &mut bytes[..length]) {
            return Err((false, "code gone".to_owned()));
        }
        let instruction = Decoder::with_ip(64, &bytes[..length], told.ip, DecoderOptions::NONE).decode();
        if let Some(expected) = foreseen(&instruction, &now, &mut factory) {
            let mut found: Vec<_> = told.accesses.iter().map(|a| (a.0.is_store(), a.1, a.2)).collect();
            found.sort_unstable();
            if found != expected {
                return Err((
                    true,
                    format!("{} {:?}: {found:x?} instead of {expected:x?}", place(), instruction.code()),
                ));
            }
        }
        for (kind, address, size, value) in &told.accesses {
            // Of saved states the values are not told.
            let known = if *size > 64 { 0 } else { usize::from(*size).min(8) };
            if kind.is_store() {
                for (at, byte) in value.to_le_bytes().iter().enumerate().take(known) {
                    stored.insert(address.wrapping_add(at as u64), (*byte, n));
                }
                if *size > 8 {
                    let rest = address + known as u64..address + u64::from(*size);
                    stored.retain(|at, _| !rest.contains(at));
                }
            } else if check_values && *size <= 64 {
                let mut bytes = [0; 8];
                if target.memory.bytes(*address, &mut bytes[..known]) && u64::from_le_bytes(bytes) != *value {
                    let native = u64::from_le_bytes(bytes);
                    if is_rseq(&now, *address, &target.memory) {
                        return Err((false, "rseq area".to_owned()));
                    }
                    return Err((
                        true,
                        format!(
                            "{} {:?}: loaded {value:#x}, native {native:#x}",
                            place(),
                            instruction.code()
                        ),
                    ));
                }
            }
        }
        last = Some(format!("after {:?}", instruction.code()));
        undefined = undefined & !flags(instruction.rflags_modified()) | undefined_behind(&instruction);
        if !target.step(tid) {
            return Err((false, "signal".to_owned()));
        }
        if instruction.mnemonic() == Mnemonic::Pushfq {
            // The trap flag of the stepping was pushed: it is taken out, as it would not have been there.
            let top = now.rsp.wrapping_sub(8) as *mut std::ffi::c_void;
            let pushed = ptrace::read(tid, top).unwrap();
            ptrace::write(tid, top, pushed & !0x100).unwrap();
        }
    }
    let now = state(tid).ok_or((false, "gone".to_owned()))?;
    let differences = differences(&ran.state, &now, undefined);
    if !differences.is_empty() {
        return Err((true, format!("at the end ({last:?}): {differences}")));
    }
    for (address, (byte, n)) in stored {
        let mut native = [0];
        if target.memory.bytes(address, &mut native) && native[0] != byte {
            let mut bytes = [0; 15];
            target.memory.bytes(list[n].ip, &mut bytes);
            let code = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE).decode().code();
            let by = format!("{code:?} {:x?}", list[n].accesses);
            return Err((
                true,
                format!("stored at {address:#x} by {by}: {byte:#x}, native {:#x}", native[0]),
            ));
        }
    }
    Ok(())
}

/// Whether an address lies in what the kernel writes when it moves a thread (glibc: behind the
/// thread's control block).
fn is_rseq(registers: &Registers, address: u64, _: &ProcessMemory) -> bool {
    address.wrapping_sub(registers.fs_base) < 0x1000 && address.wrapping_sub(registers.fs_base) >= 0x900
}

/// Components in use, as bytes.
fn parts(extended: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let word = |at: usize| u64::from_le_bytes(extended[at..at + 8].try_into().unwrap());
    let present = word(512);
    let mut parts = BTreeMap::new();
    let mut part = |name: &str, n: u32, at: usize, size: usize, initial: Option<&[u8]>| {
        let used = present >> n & 1 != 0;
        let bytes = if used { extended[at..at + size].to_vec() } else { vec![0; size] };
        let bytes = if used { bytes } else { initial.map_or(bytes, <[u8]>::to_vec) };
        parts.insert(name.to_owned(), bytes);
    };
    part("fcw fsw ftw", 0, 0, 5, Some(&[0x7f, 3, 0, 0, 0]));
    for n in 0..8 {
        part(&format!("st{n}"), 0, 32 + n * 16, 10, None);
    }
    for n in 0..16 {
        part(&format!("xmm{n}"), 1, 160 + n * 16, 16, None);
    }
    let mut component = |name: &str, n: u32, count: usize, size: usize| {
        let leaf = std::arch::x86_64::__cpuid_count(0xd, n);
        let at = leaf.ebx as usize;
        if leaf.eax == 0 || at + count * size > extended.len() {
            return;
        }
        for register in 0..count {
            part(&format!("{name}{register}"), n, at + register * size, size, None);
        }
    };
    component("ymm", 2, 16, 16);
    component("k", 5, 8, 8);
    component("zmm", 6, 16, 32);
    component("zmm16+", 7, 16, 64);
    parts.insert("mxcsr".to_owned(), extended[24..28].to_vec());
    parts
}

/// Flags of the register for those of the decoder.
fn flags(decoded: u32) -> u64 {
    let bits = [
        (RflagsBits::OF, 0x800),
        (RflagsBits::SF, 0x80),
        (RflagsBits::ZF, 0x40),
        (RflagsBits::AF, 0x10),
        (RflagsBits::PF, 4),
        (RflagsBits::CF, 1),
    ];
    bits.into_iter().filter(|(flag, _)| decoded & flag != 0).fold(0, |all, (_, bit)| all | bit)
}

/// Flags that differ from processor to processor behind an instruction: what it leaves undefined,
/// and all that a repeated comparison sets, which AMD processors show only once all of it is done.
pub fn undefined_behind(instruction: &Instruction) -> u64 {
    let is_comparison = instruction.is_string_instruction() && instruction.rflags_written() != 0;
    let is_repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    let of_comparison = if is_comparison && is_repeated { instruction.rflags_modified() } else { 0 };
    // Also by a whole number of turns.
    let turns = matches!(instruction.mnemonic(), Mnemonic::Rcl | Mnemonic::Rcr);
    let of_turns = if turns { RflagsBits::OF } else { 0 };
    flags(instruction.rflags_undefined() | of_comparison | of_turns)
}

/// What differs between two states, in words; flags of `undefined` do not count.
pub fn differences(ours: &ThreadState, native: &ThreadState, undefined: u64) -> String {
    let mut found = String::new();
    let names = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    let (a, b) = (&ours.registers, &native.registers);
    for (name, (a, b)) in names.iter().zip(a.general().into_iter().zip(b.general())) {
        if a != b {
            found += &format!("{name} {a:#x} native {b:#x}; ");
        }
    }
    if a.rip != b.rip {
        found += &format!("rip {:#x} native {:#x}; ", a.rip, b.rip);
    }
    if (a.rflags ^ b.rflags) & !(STEPPING | undefined) != 0 {
        found += &format!("rflags {:#x} native {:#x}; ", a.rflags, b.rflags);
    }
    let native_parts = parts(&native.extended);
    for (name, bytes) in parts(&ours.extended) {
        if native_parts[&name] != bytes {
            found += &format!("{name} {bytes:02x?} native {:02x?}; ", native_parts[&name]);
        }
    }
    found
}

/// One window of a stopped thread, then the steps.
fn window(target: &mut Target, tid: Pid, shadow: &mut Shadow, key: u64, length: u64, tally: &mut Tally) {
    let Some(before) = state(tid) else { return };
    if target.memory.look() {
        shadow.executor.forget(key);
    }
    let room = (length * 3 + 300) as usize;
    let ran = shadow.run_with(key, &before, &mut target.memory, &limits(length), room, room);
    *tally.ends.entry(ran.end().name()).or_default() += 1;
    tally.windows += 1;
    tally.instructions += ran.counts.instructions;
    tally.accesses += ran.counts.accesses;
    if ran.end() == End::Instructions {
        tally.whole += 1;
    } else if !matches!(ran.end(), End::SystemCall | End::Log) {
        let mut bytes = [0; 15];
        target.memory.bytes(ran.state.registers.rip, &mut bytes);
        let code = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE).decode().code();
        *tally.causes.entry(format!("{} at {code:?}", ran.end().name())).or_default() += 1;
    }
    let list = told(&ran, shadow);
    match compare(target, tid, &list, &ran, tally.windows.is_multiple_of(4)) {
        Ok(()) => {}
        Err((false, cause)) => *tally.causes.entry(cause).or_default() += 1,
        Err((true, what)) => {
            tally.diverged.push(what);
        }
    }
}

/// Windows of one program; `None` where it does not run here.
fn measure(name: &str, command: &[&str], windows: u64, seed: u64) -> Option<Tally> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut shadow = Shadow::new();
    let mut tally = Tally::default();
    let mut key = 0;
    let mut empty = 0;
    while tally.windows < windows && empty < 20 {
        key += 1;
        let mut target = Target::start(command)?;
        let before = tally.windows;
        target.run_for(random.u64(0..30_000));
        // A program is started anew from time to time, so that its beginning is seen too.
        let some = tally.windows + random.u64(1..60);
        let mut idle = 0;
        while !target.ended && tally.windows < windows.min(some) && idle < 200 {
            if let Some(tid) = target.stop() {
                let length = match random.u8(0..10) {
                    0 => random.u64(2000..10_000),
                    1..4 => random.u64(300..2000),
                    _ => random.u64(1..300),
                };
                window(&mut target, tid, &mut shadow, key, length, &mut tally);
            } else {
                idle += 1;
            }
            target.resume();
            target.run_for(random.u64(50..3000));
        }
        shadow.executor.forget(key);
        empty = if tally.windows == before { empty + 1 } else { 0 };
    }
    println!(
        "{name}: {} windows, {} whole, {} instructions, {} accesses, {} diverged; {:?}; {:?}",
        tally.windows,
        tally.whole,
        tally.instructions,
        tally.accesses,
        tally.diverged.len(),
        tally.ends,
        tally.causes
    );
    for what in &tally.diverged {
        println!("  {what}");
    }
    Some(tally)
}

#[test]
fn programs_do_what_their_windows_say() {
    pin();
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let windows: u64 = number("LOCALITY_SHADOW_WINDOWS").unwrap_or(3);
    let seed: u64 = number("LOCALITY_SHADOW_SEED").unwrap_or(1);
    let only = std::env::var("LOCALITY_SHADOW_PROGRAM").ok();
    let is_long = windows > 3;
    let short =
        ["python3", "sqlite3", "gzip", "sse, mmx", "x87", "string instructions", "integer", "avx2", "avx512"];
    let mut diverged = Vec::new();
    let mut ran = 0;
    for (name, command) in commands() {
        if only.as_ref().map_or(!is_long && !short.contains(&name), |only| only != name) {
            continue;
        }
        let Some(tally) = measure(name, &command, windows, seed) else {
            println!("skipped: {name} is missing or cannot be traced");
            continue;
        };
        ran += tally.windows;
        diverged.extend(tally.diverged.iter().map(|what| format!("{name}: {what}")));
    }
    println!("{ran} windows");
    assert!(diverged.is_empty(), "{} of {ran}: {diverged:#?}", diverged.len());
}
