//! Helpers of the tests: compile a program, run it until it says "ready", and take registers and
//! stack as the kernel program would.
#![expect(dead_code, reason = "each test file uses its own part")]

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use locality_symbols::{
    CodeAddress, CutReason, Mappings, Processes, Registers, SourceFrame, StackSlice, Symbolizer, Unwinder,
};
use nix::sys::ptrace;
use nix::sys::wait::waitpid;
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

    /// Compiles `tests/programs/SOURCE` with a compiler and its flags, in words.
    pub fn compile(&self, name: &str, compiler: &str, source: &str, flags: &str) -> PathBuf {
        let out = self.path(name);
        let flags = flags.split_whitespace();
        run(Command::new(compiler)
            .args(["-o".as_ref(), out.as_os_str(), source_path(source).as_os_str()])
            .args(flags));
        out
    }

    /// Writes the last compiled object of binutils' tools: runs a tool with arguments in this directory.
    pub fn tool(&self, line: &str) {
        let mut words = line.split_whitespace();
        run(Command::new(words.next().unwrap()).args(words).current_dir(self.directory.path()));
    }
}

/// True when we are root; otherwise says why a test is skipped.
pub fn is_root(needed_for: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        eprintln!("skipped: root is needed for {needed_for}");
    }
    root
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

/// A running program; killed when dropped.
pub struct Target {
    pub child: Child,
    pub pid: u32,
    /// Kept open: a program that finds nobody at its output is killed.
    output: BufReader<ChildStdout>,
}

impl Target {
    /// Starts a program and waits until it prints "ready".
    pub fn start(program: &Path, arguments: &[&str]) -> Self {
        Self::spawn(Command::new(program).args(arguments))
    }

    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let pid = child.id();
        std::thread::sleep(Duration::from_millis(20));
        Self { child, pid, output }
    }

    /// Stops the main thread for a moment and copies registers and up to 256 KiB of stack.
    pub fn capture(&self) -> (Registers, Vec<u8>) {
        let pid = Pid::from_raw(self.pid as i32);
        ptrace::seize(pid, ptrace::Options::empty()).unwrap();
        ptrace::interrupt(pid).unwrap();
        waitpid(pid, None).unwrap();
        let user = ptrace::getregs(pid).unwrap();
        let stack_end = Mappings::read(self.pid).unwrap().find(user.rsp).unwrap().end;
        let mut bytes = vec![0; (stack_end - user.rsp).min(256 << 10) as usize];
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.pid)).unwrap();
        memory.read_exact_at(&mut bytes, user.rsp).unwrap();
        ptrace::detach(pid, None).unwrap();
        (Registers { rip: user.rip, rsp: user.rsp, rbp: user.rbp }, bytes)
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One captured and unwound stack.
pub struct Walk {
    pub addresses: Vec<CodeAddress>,
    pub cut: Option<CutReason>,
    pub registers: Registers,
    pub stack: Vec<u8>,
    pub processes: Processes,
    pub pid: u32,
}

pub fn walk(target: &Target) -> Walk {
    walk_until(target, |_| true)
}

/// Captures again and again until the registers are as wanted.
pub fn walk_until(target: &Target, wanted: impl Fn(&Registers) -> bool) -> Walk {
    let deadline = Instant::now() + Duration::from_secs(10);
    let (registers, stack) = loop {
        let captured = target.capture();
        if wanted(&captured.0) {
            break captured;
        }
        assert!(Instant::now() < deadline, "the program never came where it was wanted");
    };
    let processes = Processes::new();
    let mut unwinder = Unwinder::for_process(&processes, target.pid).unwrap();
    let mut addresses = Vec::new();
    let slice = StackSlice { base: registers.rsp, bytes: &stack };
    let cut = unwinder.unwind(registers, &slice, &mut addresses);
    Walk { addresses, cut, registers, stack, processes, pid: target.pid }
}

impl Walk {
    /// All source frames, innermost first.
    pub fn frames(&self) -> Vec<SourceFrame> {
        let mut symbolizer = Symbolizer::new(self.processes.clone());
        self.addresses.iter().flat_map(|&at| symbolizer.symbolize(self.pid, at)).collect()
    }

    /// Function names, "?" where there is none.
    pub fn names(&self) -> Vec<String> {
        self.frames().into_iter().map(|frame| frame.function.unwrap_or_else(|| "?".into())).collect()
    }
}

/// Asserts function, file name and line of a frame.
pub fn assert_at(frame: &SourceFrame, function: &str, source: &str, marker: &str) {
    assert_eq!(frame.function.as_deref(), Some(function), "{frame:?}");
    let file = frame.file.as_deref().unwrap_or_default();
    assert_eq!(Path::new(file), source_path(source), "{frame:?}");
    assert_eq!(frame.line, Some(line_of(source, marker)), "{frame:?}");
    assert_eq!(frame.unknown, None, "{frame:?}");
}
