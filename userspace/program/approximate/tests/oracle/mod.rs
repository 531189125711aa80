//! Brute force: runs a program step by step and sees each read with its address. Tests only.

#![expect(
    clippy::unwrap_used,
    clippy::zombie_processes,
    reason = "a test's helper: what fails here fails the test; waitpid waits"
)]

use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

/// Most instructions that are stepped over.
const MOST: usize = 100_000;

/// One instruction as it ran.
#[derive(Debug)]
pub struct Step {
    /// Call path: addresses in the module, innermost first.
    pub path: Vec<u64>,
    /// Addresses in memory that it read.
    pub reads: Vec<u64>,
}

/// A run.
#[derive(Debug)]
pub struct Trace {
    pub steps: Vec<Step>,
    objects: Vec<Object>,
}

impl Trace {
    /// Name of the object at an address.
    pub fn owner(&self, address: u64) -> Option<&str> {
        let owner =
            self.objects.iter().find(|object| (object.start..object.start + object.bytes).contains(&address));
        owner.map(|object| object.name.as_str())
    }
}

/// Compiles one of the programs beside this file.
pub fn build(directory: &Path, program: &str, flags: &[&str]) -> PathBuf {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/");
    let out = directory.join(format!("{program}{}", flags.concat()));
    let plain = format!("{sources}{program}.c");
    let (compiler, source) = match Path::new(&plain).exists() {
        true => ("gcc", plain),
        false => ("g++", format!("{sources}{program}.cpp")),
    };
    let status = Command::new(compiler)
        .args(["-g", "-w", "-Wl,-z,now"])
        .args(flags)
        .arg("-o")
        .arg(&out)
        .arg(source)
        .status()
        .unwrap();
    assert!(status.success());
    out
}

#[derive(Debug)]
struct Object {
    name: String,
    start: u64,
    bytes: u64,
}

/// Runs the program to its end.
pub fn run(program: &Path) -> Trace {
    let mut command = Command::new(program);
    command.stdout(Stdio::piped());
    // SAFETY: PTRACE_TRACEME is a bare system call, which is all that the child does between fork and exec.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
    let mut child = command.spawn().unwrap();
    let pid = Pid::from_raw(child.id() as i32);
    assert!(matches!(waitpid(pid, None).unwrap(), WaitStatus::Stopped(_, Signal::SIGTRAP)));
    let mut steps = Vec::new();
    let module = mapped(pid, program);
    loop {
        ptrace::cont(pid, None).unwrap();
        match waitpid(pid, None).unwrap() {
            WaitStatus::Stopped(_, Signal::SIGTRAP) => step(pid, &module, &mut steps),
            WaitStatus::Exited(_, 0) => break,
            other => panic!("{other:?}"),
        }
    }
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let objects: Vec<Object> = text
        .lines()
        .map(|line| {
            let parts: Vec<&str> = line.split('|').collect();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            Object {
                name: format!("{} {}", parts[0], parts[1]),
                start: number(parts[2]),
                bytes: number(parts[3]),
            }
        })
        .collect();
    Trace { steps, objects }
}

struct Mapping {
    start: u64,
    end: u64,
    bias: u64,
}

/// Where the program's file is mapped; its first segment begins at 0 or where fixed programs are linked to.
fn mapped(pid: Pid, program: &Path) -> Mapping {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let program = fs::canonicalize(program).unwrap();
    let mut ranges = text.lines().filter(|line| line.ends_with(program.to_str().unwrap())).map(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        (number(start), number(rest.split(' ').next().unwrap()))
    });
    let (start, mut end) = ranges.next().unwrap();
    end = ranges.next_back().map_or(end, |(_, end)| end);
    Mapping { start, end, bias: if start == 0x40_0000 { 0 } else { start } }
}

/// Steps until the next breakpoint instruction.
fn step(pid: Pid, module: &Mapping, steps: &mut Vec<Step>) {
    let mut info = InstructionInfoFactory::new();
    let mut calls: Vec<u64> = Vec::new();
    let mut outside: Option<u64> = None;
    for _ in 0..MOST {
        let registers = ptrace::getregs(pid).unwrap();
        if outside.is_none_or(|back| back == registers.rip) {
            outside = None;
            let instruction = decode(pid, registers.rip);
            if instruction.mnemonic() == iced_x86::Mnemonic::Int3 {
                ptrace::setregs(pid, nix::libc::user_regs_struct { rip: instruction.next_ip(), ..registers })
                    .unwrap();
                return;
            }
            if !(module.start..module.end).contains(&registers.rip) {
                // A library: back at the return address.
                outside = Some(ptrace::read(pid, registers.rsp as *mut _).unwrap() as u64);
                calls.pop();
            } else {
                note(&instruction, &registers, module.bias, &calls, &mut info, steps);
                match instruction.flow_control() {
                    FlowControl::Call | FlowControl::IndirectCall => calls.push(registers.rip - module.bias),
                    FlowControl::Return => drop(calls.pop()),
                    _ => {}
                }
            }
        }
        ptrace::step(pid, None).unwrap();
        assert!(matches!(waitpid(pid, None).unwrap(), WaitStatus::Stopped(_, Signal::SIGTRAP)));
    }
    panic!("more than {MOST} instructions");
}

fn decode(pid: Pid, address: u64) -> Instruction {
    let words = [0, 8].map(|at| ptrace::read(pid, (address + at) as *mut _).unwrap().to_le_bytes());
    Decoder::with_ip(64, words.as_flattened(), address, DecoderOptions::NONE).decode()
}

fn note(
    instruction: &Instruction,
    registers: &nix::libc::user_regs_struct,
    bias: u64,
    calls: &[u64],
    info: &mut InstructionInfoFactory,
    steps: &mut Vec<Step>,
) {
    let path = [instruction.ip() - bias].into_iter().chain(calls.iter().rev().copied()).collect();
    let mut step = Step { path, reads: Vec::new() };
    for memory in info.info(instruction).used_memory() {
        if !matches!(memory.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite)
            || instruction.is_stack_instruction()
        {
            continue;
        }
        let address = memory.virtual_address(0, |register, _, _| value(register, registers)).unwrap();
        step.reads.push(address);
    }
    steps.push(step);
}

fn value(register: Register, from: &nix::libc::user_regs_struct) -> Option<u64> {
    let full = match register.full_register() {
        Register::RAX => from.rax,
        Register::RBX => from.rbx,
        Register::RCX => from.rcx,
        Register::RDX => from.rdx,
        Register::RSI => from.rsi,
        Register::RDI => from.rdi,
        Register::RBP => from.rbp,
        Register::RSP => from.rsp,
        Register::R8 => from.r8,
        Register::R9 => from.r9,
        Register::R10 => from.r10,
        Register::R11 => from.r11,
        Register::R12 => from.r12,
        Register::R13 => from.r13,
        Register::R14 => from.r14,
        Register::R15 => from.r15,
        Register::FS => from.fs_base,
        Register::GS => from.gs_base,
        _ if register.is_segment_register() => 0,
        _ => return None,
    };
    Some(if register.size() == 4 { full & 0xffff_ffff } else { full })
}
