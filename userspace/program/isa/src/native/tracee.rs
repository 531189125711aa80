//! A child process, stopped at its first instruction, for single steps.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::{Code, Registers};

const PAGE_BYTES: u64 = 4096;
/// How far the code around an instruction is read; the figures beside `first_access` are for 128 and 512.
const REACH_BYTES: u64 = 128;
/// Key of the entry address in the auxiliary vector (getauxval(3)).
const AT_ENTRY: u64 = 9;

pub(super) struct Tracee {
    pid: Pid,
    memory: File,
    code: Vec<u8>,
}

impl Tracee {
    /// Starts `command`; `None`, with the reason printed, where ptrace is refused.
    pub(super) fn start(command: &[&str]) -> Option<Tracee> {
        let mut child = Command::new(command[0]);
        child.args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
        // SAFETY: PTRACE_TRACEME is one system call, without allocation or lock after the fork.
        unsafe { child.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
        let child = match child.spawn() {
            Ok(child) => child,
            Err(error) => {
                println!("skipped: {} cannot be traced here: {error}", command[0]);
                return None;
            }
        };
        let pid = Pid::from_raw(child.id() as i32);
        assert_eq!(waitpid(pid, None).unwrap(), WaitStatus::Stopped(pid, Signal::SIGTRAP));
        ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL).unwrap();
        let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem")).unwrap();
        Some(Tracee { pid, memory, code: Vec::new() })
    }

    /// Lets the dynamic linker do its work, up to the program's own first instruction.
    pub(super) fn run_to_entry(&self) {
        let auxv = std::fs::read(format!("/proc/{}/auxv", self.pid)).unwrap();
        let words: Vec<u64> =
            auxv.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let entry = words.chunks(2).find(|pair| pair[0] == AT_ENTRY).unwrap()[1];
        let original = self.read(entry, 1).unwrap() as u8;
        self.write(entry, &[0xcc]);
        ptrace::cont(self.pid, None).unwrap();
        assert_eq!(waitpid(self.pid, None).unwrap(), WaitStatus::Stopped(self.pid, Signal::SIGTRAP));
        self.write(entry, &[original]);
        self.set_registers(&Registers { rip: entry, ..self.registers() });
    }

    pub(super) fn registers(&self) -> Registers {
        let r = ptrace::getregs(self.pid).unwrap();
        crate::registers_of!(r)
    }

    /// Sets the general registers, `rip` and `rflags`; the segment bases stay.
    pub(super) fn set_registers(&self, registers: &Registers) {
        let mut r = ptrace::getregs(self.pid).unwrap();
        r.rax = registers.rax;
        r.rcx = registers.rcx;
        r.rdx = registers.rdx;
        r.rbx = registers.rbx;
        r.rsp = registers.rsp;
        r.rbp = registers.rbp;
        r.rsi = registers.rsi;
        r.rdi = registers.rdi;
        r.r8 = registers.r8;
        r.r9 = registers.r9;
        r.r10 = registers.r10;
        r.r11 = registers.r11;
        r.r12 = registers.r12;
        r.r13 = registers.r13;
        r.r14 = registers.r14;
        r.r15 = registers.r15;
        r.rip = registers.rip;
        r.eflags = registers.rflags;
        r.orig_rax = u64::MAX;
        ptrace::setregs(self.pid, r).unwrap();
    }

    /// Runs one instruction; false when it ended the program or raised another signal than the step's own.
    pub(super) fn step(&self) -> bool {
        ptrace::step(self.pid, None).unwrap();
        matches!(waitpid(self.pid, None).unwrap(), WaitStatus::Stopped(_, Signal::SIGTRAP))
    }

    /// The `size` bytes (at most 8) at `address`.
    pub(super) fn read(&self, address: u64, size: u32) -> Option<u64> {
        let mut bytes = [0; 8];
        self.memory.read_exact_at(bytes.get_mut(..size as usize)?, address).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Writes into the child, also to read-only memory.
    pub(super) fn write(&self, address: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, address).unwrap();
    }

    /// 80 bytes before `end`, with the address of the first.
    pub(super) fn bytes_before(&self, end: u64) -> Option<(u64, [u8; 80])> {
        let mut bytes = [0; 80];
        let start = end.wrapping_sub(80);
        self.memory.read_exact_at(&mut bytes, start).ok()?;
        Some((start, bytes))
    }

    /// [`REACH_BYTES`] of code to both sides of `ip`, less where the mapping ends.
    pub(super) fn code_around(&mut self, ip: u64) -> Code<'_> {
        let page = ip & !(PAGE_BYTES - 1);
        let narrow = (ip - REACH_BYTES).max(page)..(ip + REACH_BYTES).min(page + PAGE_BYTES);
        let ranges = [
            ip - REACH_BYTES..ip + REACH_BYTES,
            narrow.start..ip + REACH_BYTES,
            ip - REACH_BYTES..narrow.end,
            narrow,
        ];
        for range in ranges {
            self.code.resize((range.end - range.start) as usize, 0);
            if self.memory.read_exact_at(&mut self.code, range.start).is_ok() {
                return Code { address: range.start, bytes: &self.code };
            }
        }
        panic!("no code at {ip:#x}");
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // The child may have ended already.
        if ptrace::kill(self.pid).is_ok() {
            let _ = waitpid(self.pid, None);
        }
    }
}
