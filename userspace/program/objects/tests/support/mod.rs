//! Helpers of the tests: compile a program that prints where its objects lie, run it until it says
//! "ready", take registers and stack as the tracer would, and resolve what it printed.
#![expect(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use locality_objects::{Named, Place, ProcessMemory, RegisterFile, Resolver, StackFrame};
use locality_symbols::{Mappings, Processes, Registers, StackSlice, Unwinder};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// A directory of programs that vanishes with it.
pub struct Workshop {
    pub directory: tempfile::TempDir,
}

impl Workshop {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Compiles files of `tests/programs` with a compiler and its flags, in words.
    pub fn compile(&self, name: &str, compiler: &str, sources: &[&str], flags: &str) -> PathBuf {
        let out = self.path(name);
        let mut command = Command::new(compiler);
        command.current_dir(self.directory.path()).arg("-o").arg(&out);
        command.args(sources.iter().map(|source| source_path(source)));
        run(command.args(flags.split_whitespace()));
        out
    }

    /// Runs a tool with arguments in this directory.
    pub fn tool(&self, line: &str) {
        let mut words = line.split_whitespace();
        run(Command::new(words.next().unwrap()).args(words).current_dir(self.directory.path()));
    }
}

fn run(command: &mut Command) {
    // What the runner of the tests sets changes the names that the compiler makes.
    command.env_remove("RUSTC_BOOTSTRAP");
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn source_path(source: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source)
}

/// Line number of the comment "AT name" in a program's source.
pub fn line_of(source: &str, name: &str) -> u32 {
    let text = std::fs::read_to_string(source_path(source)).unwrap();
    let marker = format!("AT {name} ");
    text.lines().position(|line| (line.to_owned() + " ").contains(&marker)).unwrap() as u32 + 1
}

/// What a program says of one address.
#[derive(Debug, Clone)]
pub struct Truth {
    pub kind: String,
    pub address: u64,
    pub name: String,
    pub field: String,
    pub type_name: String,
}

/// A program that told its addresses and waits; killed when dropped.
pub struct Target {
    pub child: Child,
    pub pid: u32,
    /// The thread that is looked at.
    pub thread: u32,
    pub truths: Vec<Truth>,
    /// Kept open: a program that finds nobody at its output is killed.
    output: BufReader<ChildStdout>,
}

impl Target {
    pub fn start(program: &Path) -> Self {
        Self::start_with(program, &[])
    }

    /// The same with arguments.
    pub fn start_with(program: &Path, arguments: &[&str]) -> Self {
        let start = || Command::new(program).args(arguments).stdout(Stdio::piped()).spawn();
        let mut started = start();
        for _ in 0..1000 {
            // What this test has just written is open for writing in what another test forks, until
            // that calls exec.
            if !matches!(&started, Err(error) if error.kind() == ErrorKind::ExecutableFileBusy) {
                break;
            }
            thread::sleep(Duration::from_millis(1));
            started = start();
        }
        let mut child = started.unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut truths = Vec::new();
        let mut thread = None;
        loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "the program ended");
            let line = line.trim();
            if line == "ready" {
                break;
            }
            let (kind, rest) = line.split_once(' ').unwrap();
            if kind == "thread" {
                thread = rest.parse().ok();
                continue;
            }
            let (address, rest) = rest.split_once(' ').unwrap();
            let mut parts = rest.split('|').collect::<Vec<_>>();
            let type_name = parts.pop().unwrap().to_owned();
            let name = parts.remove(0).to_owned();
            truths.push(Truth {
                kind: kind.to_owned(),
                address: u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap(),
                name: name.replace("EXE", program.to_str().unwrap()),
                field: parts.join("|"),
                type_name,
            });
        }
        let pid = child.id();
        std::thread::sleep(std::time::Duration::from_millis(20));
        Self { child, pid, thread: thread.unwrap_or(pid), truths, output }
    }

    /// Stops the thread for a moment and copies registers, fs base and stack.
    pub fn capture(&self) -> (Registers, RegisterFile, u64, Vec<u8>) {
        let pid = Pid::from_raw(self.thread as i32);
        ptrace::seize(pid, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(pid).unwrap();
        waitpid(pid, Some(WaitPidFlag::__WALL)).unwrap();
        let user = ptrace::getregs(pid).unwrap();
        let stack_end = Mappings::read(self.pid).unwrap().find(user.rsp).unwrap().end;
        let mut bytes = vec![0; (stack_end - user.rsp).min(256 << 10) as usize];
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.pid)).unwrap();
        memory.read_exact_at(&mut bytes, user.rsp).unwrap();
        ptrace::detach(pid, None).unwrap();
        let all = RegisterFile::whole([
            user.rax, user.rdx, user.rcx, user.rbx, user.rsi, user.rdi, user.rbp, user.rsp, user.r8, user.r9,
            user.r10, user.r11, user.r12, user.r13, user.r14, user.r15,
        ]);
        (Registers { rip: user.rip, rsp: user.rsp, rbp: user.rbp }, all, user.fs_base, bytes)
    }

    /// Everything the tracer would know at this moment.
    pub fn look(&self) -> Look {
        let (registers, all, fs_base, stack) = self.capture();
        let processes = Processes::new();
        let mut unwinder = Unwinder::for_process(&processes, self.pid).unwrap();
        let mut frames = Vec::new();
        let slice = StackSlice { base: registers.rsp, bytes: &stack };
        unwinder.unwind_frames(registers, &slice, &mut frames);
        unwinder.restore(all, &slice, &mut frames);
        let resolver = Resolver::new(&processes, self.pid).unwrap();
        let memory = ProcessMemory::open(self.pid).unwrap();
        Look { resolver, frames, ip: registers.rip, fs_base, memory }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One look at a waiting program.
pub struct Look {
    pub resolver: Resolver,
    pub frames: Vec<StackFrame>,
    pub ip: u64,
    pub fs_base: u64,
    pub memory: ProcessMemory,
}

impl Look {
    pub fn resolve(&mut self, address: u64) -> Named {
        let place = Place {
            ip: self.ip,
            frames: &self.frames,
            fs_base: Some(self.fs_base),
            memory: Some(&self.memory),
            ..Default::default()
        };
        self.resolver.resolve(address, &place)
    }
}

/// Compares the answers with what the program said; all differences at once.
pub fn check(target: &Target, look: &mut Look, wanted: impl Fn(&Truth) -> bool) -> usize {
    let mut wrong = Vec::new();
    let mut checked = 0;
    for truth in target.truths.iter().filter(|truth| wanted(truth)) {
        checked += 1;
        let named = look.resolve(truth.address);
        let object = &named.object;
        let field = named.field.as_ref().map_or("-", |field| &field.path);
        let told = (object.kind.as_str(), &*object.name, field, object.type_name.as_deref().unwrap_or("-"));
        let known = (&*truth.kind, &*truth.name, &*truth.field, &*truth.type_name);
        if told != known {
            wrong.push(format!(
                "{:#x}: wanted {known:?}\n   got {told:?} {:?}",
                truth.address, object.unknown
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    checked
}

/// True when a tool can be started; otherwise says past the test runner why the test is skipped, or
/// fails where skips are not allowed (`LOCALITY_REQUIRE=all`, as in the tests on the kernel).
pub fn is_installed(tool: &str) -> bool {
    let asked = if tool == "go" { "version" } else { "--version" };
    let found = Command::new(tool).arg(asked).output().is_ok_and(|output| output.status.success());
    if !found {
        let test = std::thread::current().name().unwrap_or("test").to_owned();
        assert_ne!(std::env::var("LOCALITY_REQUIRE").as_deref(), Ok("all"), "{test} needs {tool}");
        // Past the capture of the test runner, which would hide the output of a test that returns.
        std::io::stderr().write_all(format!("SKIP {test}: needs {tool}\n").as_bytes()).unwrap();
    }
    found
}
