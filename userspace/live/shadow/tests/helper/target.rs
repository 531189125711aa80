//! Processes to be traced, and `ptrace` as far as the tests need.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use locality_isa::registers_of;
use locality_shadow::helper::{TextRange, ranges};
use locality_shadow::{Memory, Page, ThreadState, Trust};

/// A process traced by the test's thread, killed on drop.
pub struct Target {
    pub pid: u32,
}

pub fn request(request: libc::c_uint, pid: u32, address: usize, data: usize) -> libc::c_long {
    // SAFETY: callers pass pointers to live values of the request's type.
    let result = unsafe { libc::ptrace(request, pid as i32, address, data) };
    assert!(result >= 0, "ptrace {request:#x}: {}", std::io::Error::last_os_error());
    result
}

/// Waits for the next stop or the end; the status.
pub fn wait(pid: u32) -> i32 {
    let mut status = 0;
    // SAFETY: the destination is live.
    let got = unsafe { libc::waitpid(pid as i32, &raw mut status, libc::__WALL) };
    assert_eq!(got, pid as i32, "{}", std::io::Error::last_os_error());
    status
}

impl Target {
    /// A shell that computes without end.
    pub fn busy() -> Target {
        Target::shell("i=0; while :; do i=$((i*7+1)); case $i in *99) i=1;; esac; done")
    }

    /// A loaded shell, running `script`.
    #[expect(clippy::zombie_processes, reason = "reaped by its id in the end")]
    pub fn shell(script: &str) -> Target {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("echo; {script}")).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let target = Target { pid: child.id() };
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        request(libc::PTRACE_SEIZE, target.pid, 0, 0);
        target
    }

    /// A process that waits, and an address in a page never present: a read of
    /// the page waits for ever. `None` on a kernel without `userfaultfd(2)`.
    pub fn with_a_page_that_blocks() -> Option<(Target, u64)> {
        // `include/uapi/linux/userfaultfd.h`: UFFDIO_API
        // and UFFDIO_REGISTER with argument structures.
        const API: libc::c_ulong = 0xc018_aa3f;
        const REGISTER: libc::c_ulong = 0xc020_aa00;
        let (mut ready, tell) = std::io::pipe().unwrap();
        let tell = tell.as_raw_fd();
        // SAFETY: the child makes system calls on live arguments only.
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let (protection, flags) =
                    (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) as u64;
                let fd = libc::syscall(libc::SYS_userfaultfd, 0) as i32;
                let mut api = [0xaa_u64, 0, 0];
                let mut register = [page, 4096, 1, 0];
                let done = fd >= 0
                    && libc::ioctl(fd, API, api.as_mut_ptr()) == 0
                    && libc::ioctl(fd, REGISTER, register.as_mut_ptr()) == 0;
                let address = if done { page } else { 0 };
                libc::write(tell, address.to_ne_bytes().as_ptr().cast(), 8);
                loop {
                    libc::pause();
                }
            }
            pid as u32
        };
        let target = Target { pid };
        let mut address = [0; 8];
        ready.read_exact(&mut address).unwrap();
        let address = u64::from_ne_bytes(address);
        (address != 0).then_some((target, address))
    }

    /// A process of another user, not dumpable, that computes in `body`; `body` must only compute.
    pub fn secret(body: extern "C" fn() -> !) -> Target {
        let (mut ready, tell) = std::io::pipe().unwrap();
        let tell = tell.as_raw_fd();
        // SAFETY: the child makes a few system calls and then computes.
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::setresuid(12_345, 12_345, 12_345);
                libc::prctl(libc::PR_SET_DUMPABLE, 0);
                libc::write(tell, [0_u8].as_ptr().cast(), 1);
                body();
            }
            pid as u32
        };
        let target = Target { pid };
        ready.read_exact(&mut [0]).unwrap();
        request(libc::PTRACE_SEIZE, pid, 0, 0);
        target
    }

    /// A process that reads a clock again and again, into memory at the returned
    /// address. The process's monotonic clock is `ahead` seconds ahead, in an
    /// own time namespace. `None` on a kernel without time namespaces.
    pub fn with_a_clock(ahead: u64) -> Option<(Target, u64)> {
        const NEW_TIME: i32 = 0x80;
        let (mut ready, tell) = std::io::pipe().unwrap();
        let tell = tell.as_raw_fd();
        let text = format!("monotonic {ahead} 0\n");
        // SAFETY: the child makes system calls on live arguments only, and has one thread.
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let enter = || {
                    let open = |path: &std::ffi::CStr, flags| libc::open(path.as_ptr(), flags);
                    libc::unshare(NEW_TIME) == 0
                        && libc::write(
                            open(c"/proc/self/timens_offsets", libc::O_WRONLY),
                            text.as_ptr().cast(),
                            text.len(),
                        ) > 0
                        && libc::setns(open(c"/proc/self/ns/time_for_children", libc::O_RDONLY), NEW_TIME)
                            == 0
                };
                let (protection, flags) =
                    (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
                let told = if ahead > 0 && !enter() { 0 } else { page as u64 };
                libc::write(tell, told.to_ne_bytes().as_ptr().cast(), 8);
                loop {
                    libc::clock_gettime(libc::CLOCK_MONOTONIC, page.cast());
                }
            }
            pid as u32
        };
        let target = Target { pid };
        let mut address = [0; 8];
        ready.read_exact(&mut address).unwrap();
        let address = u64::from_ne_bytes(address);
        if address == 0 {
            return None;
        }
        request(libc::PTRACE_SEIZE, target.pid, 0, 0);
        Some((target, address))
    }

    /// Stops the process in computation, not in a system call.
    pub fn stop(&self) -> ThreadState {
        loop {
            let state = self.stop_anywhere();
            let mut before = [0; 2];
            let memory = File::open(format!("/proc/{}/mem", self.pid)).unwrap();
            memory.read_exact_at(&mut before, state.registers.rip - 2).unwrap();
            if before != [0x0f, 0x05] {
                return state;
            }
            self.resume();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Stops the process, also in a system call, and returns the registers.
    pub fn stop_anywhere(&self) -> ThreadState {
        request(libc::PTRACE_INTERRUPT, self.pid, 0, 0);
        assert!(libc::WIFSTOPPED(wait(self.pid)));
        let regs = registers(self.pid);
        let mut extended = vec![0_u8; 16 << 10];
        let mut part = libc::iovec { iov_base: extended.as_mut_ptr().cast(), iov_len: extended.len() };
        const NT_X86_XSTATE: usize = 0x202;
        request(libc::PTRACE_GETREGSET, self.pid, NT_X86_XSTATE, &raw mut part as usize);
        extended.truncate(part.iov_len);
        ThreadState { registers: registers_of!(regs), extended }
    }

    pub fn resume(&self) {
        request(libc::PTRACE_CONT, self.pid, 0, 0);
    }

    pub fn kill(&mut self) {
        // SAFETY: a system call with plain arguments on a child not reaped yet.
        unsafe { libc::kill(self.pid as i32, libc::SIGKILL) };
        while libc::WIFSTOPPED(wait(self.pid)) {}
        self.pid = 0;
    }

    pub fn ranges(&self) -> Vec<TextRange> {
        ranges(&std::fs::read_to_string(format!("/proc/{}/maps", self.pid)).unwrap())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.pid != 0 {
            self.kill();
        }
    }
}

/// Writes a word of a stopped process' text.
pub fn poke(pid: u32, address: u64, word: u64) {
    request(libc::PTRACE_POKETEXT, pid, address as usize, word as usize);
}

pub fn registers(pid: u32) -> libc::user_regs_struct {
    // SAFETY: all-zero bytes are a valid value to overwrite.
    let mut regs = unsafe { std::mem::zeroed::<libc::user_regs_struct>() };
    request(libc::PTRACE_GETREGS, pid, 0, &raw mut regs as usize);
    regs
}

/// The target's memory without the window process:
/// one page at a time, by linear search of the list.
pub struct Plainly {
    file: File,
    ranges: Vec<TextRange>,
}

impl Plainly {
    pub fn new(target: &Target) -> Plainly {
        let file = File::open(format!("/proc/{}/mem", target.pid)).unwrap();
        Plainly { file, ranges: target.ranges() }
    }
}

impl Memory for Plainly {
    fn read(&mut self, pages: &[u64], into: &mut [Page], found: &mut [bool]) {
        for ((page, into), found) in pages.iter().zip(into).zip(found) {
            *found = self.file.read_exact_at(into, *page).is_ok();
        }
    }

    fn trust(&self, page: u64) -> Trust {
        let is_text = self.ranges.iter().any(|range| (range.start..range.end).contains(&page));
        if is_text { Trust::Text } else { Trust::Nothing }
    }
}
