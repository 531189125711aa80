//! A running program whose threads are stopped and stepped under ptrace, and its memory as windows read it.

use std::fs;
use std::process::{Child, Command, Stdio};

use locality_isa::{Registers, registers_of};
use locality_shadow::{Memory, PAGE, Page, ThreadState, Trust};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The program, all of its threads seized.
pub struct Target {
    child: Child,
    /// Threads, with the signal that is to be handed on.
    threads: Vec<(Pid, Option<Signal>)>,
    pub memory: ProcessMemory,
    pub ended: bool,
}

impl Target {
    /// Starts the command and seizes it; `None` where ptrace is refused or the program is missing.
    pub fn start(command: &[&str]) -> Option<Target> {
        let mut child = Command::new(command[0]);
        child.args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
        let mut child = child.spawn().ok()?;
        let pid = Pid::from_raw(child.id() as i32);
        if ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACECLONE | ptrace::Options::PTRACE_O_EXITKILL)
            .is_err()
        {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        let memory = ProcessMemory { pid: pid.as_raw(), text: Vec::new(), reads: 0, calls: 0 };
        Some(Target { child, threads: vec![(pid, None)], memory, ended: false })
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// The first thread.
    pub fn main(&self) -> Pid {
        self.pid()
    }

    /// Threads that run in user mode, going by the scheduler.
    fn running(&self) -> Vec<Pid> {
        let is_running = |tid: &Pid| {
            let stat =
                fs::read_to_string(format!("/proc/{}/task/{tid}/stat", self.pid())).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
        };
        self.threads.iter().map(|thread| thread.0).filter(is_running).collect()
    }

    /// Stops all threads; one that ran, if any did.
    pub fn stop(&mut self) -> Option<Pid> {
        self.collect();
        let running = self.running();
        let mut n = 0;
        while n < self.threads.len() {
            let tid = self.threads[n].0;
            if ptrace::interrupt(tid).is_err() || !self.wait_stop(n) {
                self.threads.remove(n);
            } else {
                n += 1;
            }
        }
        self.ended = self.threads.is_empty();
        running.into_iter().find(|tid| self.threads.iter().any(|thread| thread.0 == *tid))
    }

    /// Takes up threads that were created meanwhile, and resumes what stopped by itself.
    fn collect(&mut self) {
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", self.pid())) else { return };
        for tid in tasks.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).map(Pid::from_raw) {
            if !self.threads.iter().any(|thread| thread.0 == tid) {
                self.threads.push((tid, None));
            }
        }
    }

    /// Waits until thread `n` stands.
    fn wait_stop(&mut self, n: usize) -> bool {
        let tid = self.threads[n].0;
        loop {
            match waitpid(tid, Some(WaitPidFlag::__WALL)) {
                Ok(WaitStatus::PtraceEvent(_, _, event)) => {
                    // The stop that was asked for; any other event comes before it.
                    if event == libc::PTRACE_EVENT_STOP {
                        return true;
                    }
                    let _ = ptrace::cont(tid, None);
                }
                Ok(WaitStatus::Stopped(_, signal)) => {
                    // The interrupt is still to come, as a stop that changes nothing.
                    let _ = ptrace::cont(tid, Some(signal));
                }
                Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(_) => return false,
                Ok(_) => {}
            }
        }
    }

    /// Lets all threads run.
    pub fn resume(&mut self) {
        for (tid, signal) in &mut self.threads {
            let _ = ptrace::cont(*tid, signal.take());
        }
    }

    /// Resumes threads that stand at signals or events, for `micros`.
    pub fn run_for(&mut self, micros: u64) {
        let until = std::time::Instant::now() + std::time::Duration::from_micros(micros);
        loop {
            let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
            for (tid, _) in self.threads.clone() {
                match waitpid(tid, Some(flags)) {
                    Ok(WaitStatus::Stopped(_, signal)) => drop(ptrace::cont(tid, Some(signal))),
                    Ok(WaitStatus::PtraceEvent(..)) => drop(ptrace::cont(tid, None)),
                    Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => {
                        self.threads.retain(|thread| thread.0 != tid);
                    }
                    _ => {}
                }
            }
            self.ended = self.threads.is_empty();
            if self.ended || std::time::Instant::now() >= until {
                return;
            }
            std::thread::sleep(std::time::Duration::from_micros(micros.min(200)));
        }
    }

    /// Runs one instruction of a stopped thread; false when something else happened.
    pub fn step(&mut self, tid: Pid) -> bool {
        if ptrace::step(tid, None).is_err() {
            return false;
        }
        match waitpid(tid, Some(WaitPidFlag::__WALL)) {
            Ok(WaitStatus::Stopped(_, Signal::SIGTRAP)) => true,
            Ok(WaitStatus::Stopped(_, signal)) => {
                if let Some(thread) = self.threads.iter_mut().find(|thread| thread.0 == tid) {
                    thread.1 = Some(signal);
                }
                false
            }
            Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(_) => {
                self.threads.retain(|thread| thread.0 != tid);
                self.ended = self.threads.is_empty();
                false
            }
            _ => false,
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        self.collect();
        // A traced thread stays until its tracer has waited for it, and the first one for the others.
        for (tid, _) in self.threads.iter().filter(|thread| thread.0 != self.pid()) {
            while matches!(
                waitpid(*tid, Some(WaitPidFlag::__WALL)),
                Ok(status) if !matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..))
            ) {}
        }
        let _ = self.child.wait();
    }
}

/// Keeps this thread, and what it starts, on one processor: a step takes a third of the time.
pub fn pin() {
    // SAFETY: a zeroed set is an empty one; the calls read and write it only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap_or(0), &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// General registers of a stopped thread.
pub fn registers(tid: Pid) -> Option<Registers> {
    let r = ptrace::getregs(tid).ok()?;
    Some(registers_of!(r))
}

/// All registers of a stopped thread.
pub fn state(tid: Pid) -> Option<ThreadState> {
    const NT_X86_XSTATE: usize = 0x202;
    let mut extended = vec![0_u8; 16384];
    let mut room = libc::iovec { iov_base: extended.as_mut_ptr().cast(), iov_len: extended.len() };
    // SAFETY: the kernel writes at most `iov_len` bytes.
    let done = unsafe {
        libc::ptrace(libc::PTRACE_GETREGSET, tid.as_raw(), NT_X86_XSTATE, std::ptr::from_mut(&mut room))
    };
    extended.truncate(room.iov_len);
    (done == 0).then_some(ThreadState { registers: registers(tid)?, extended })
}

/// Sets all registers of a stopped thread but the segment bases.
pub fn set_state(tid: Pid, state: &ThreadState) {
    const NT_X86_XSTATE: usize = 0x202;
    let registers = &state.registers;
    let mut r = ptrace::getregs(tid).unwrap();
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
    ptrace::setregs(tid, r).unwrap();
    let mut extended = state.extended.clone();
    let mut room = libc::iovec { iov_base: extended.as_mut_ptr().cast(), iov_len: extended.len() };
    // SAFETY: the kernel reads `iov_len` bytes.
    let done = unsafe {
        libc::ptrace(libc::PTRACE_SETREGSET, tid.as_raw(), NT_X86_XSTATE, std::ptr::from_mut(&mut room))
    };
    assert_eq!(done, 0);
}

/// Memory of a process by `process_vm_readv`, with the mappings as they were when last looked at.
pub struct ProcessMemory {
    pid: i32,
    /// Ranges of text, start and end.
    text: Vec<(u64, u64)>,
    pub reads: u64,
    pub calls: u64,
}

impl ProcessMemory {
    /// Looks at the mappings; true when text was mapped or unmapped since.
    pub fn look(&mut self) -> bool {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap_or_default();
        let text = maps.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let is_text = words.next()? == "r-xp" && words.nth(2)? != "0";
            let number = |hex| u64::from_str_radix(hex, 16).ok();
            if is_text { Some((number(start)?, number(end)?)) } else { None }
        });
        let text: Vec<_> = text.collect();
        let changed = text != self.text;
        self.text = text;
        changed
    }

    /// The same process' memory again, with no mapping known.
    pub fn again(&self) -> ProcessMemory {
        ProcessMemory { pid: self.pid, text: Vec::new(), reads: 0, calls: 0 }
    }

    /// Some bytes, if they can be read.
    pub fn bytes(&self, address: u64, into: &mut [u8]) -> bool {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: address as *mut _, iov_len: into.len() };
        // SAFETY: the kernel writes at most the local range.
        let read = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        read == into.len() as isize
    }
}

impl Memory for ProcessMemory {
    fn read(&mut self, pages: &[u64], into: &mut [Page], found: &mut [bool]) {
        self.reads += pages.len() as u64;
        let mut done = 0;
        while done < pages.len() {
            let count = (pages.len() - done).min(512);
            let local =
                libc::iovec { iov_base: into[done..].as_mut_ptr().cast(), iov_len: count * PAGE as usize };
            let remote: Vec<libc::iovec> = pages[done..done + count]
                .iter()
                .map(|page| libc::iovec { iov_base: *page as *mut _, iov_len: PAGE as usize })
                .collect();
            self.calls += 1;
            // SAFETY: the kernel writes at most the local range.
            let read = unsafe {
                libc::process_vm_readv(self.pid, &raw const local, 1, remote.as_ptr(), count as u64, 0)
            };
            let whole = if read < 0 { 0 } else { read as usize / PAGE as usize };
            found[done..done + whole].fill(true);
            done += whole;
            if whole < count {
                found[done] = false;
                done += 1;
            }
        }
    }

    fn trust(&self, page: u64) -> Trust {
        let is_text = self.text.iter().any(|(start, end)| (*start..*end).contains(&page));
        if is_text { Trust::Text } else { Trust::Nothing }
    }
}
