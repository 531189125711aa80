//! Starting the corpus's programs: natively with their CPU time, and for as long as a trace takes.
//!
//! Output goes through a pipe and is dropped: grep, for instance, does less work
//! with `/dev/null`. The amount of output shows how often the work was done.

use std::{
    io::{Read as _, Write as _},
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use super::corpus::Ready;

/// Equal for native, traced and exact runs. QEMU's processor lacks AVX-512, and glibc
/// chooses string functions by the processor and `rep movsb` by cache sizes; without
/// the variables the two would not run equal instructions. Hashes are not to be random.
pub const ENVIRONMENT: [(&str, &str); 5] = [
    (
        "GLIBC_TUNABLES",
        "glibc.cpu.hwcaps=-AVX512VL,-AVX512BW,-AVX512F,-ERMS:glibc.cpu.x86_rep_movsb_threshold=1073741824:\
         glibc.cpu.x86_rep_stosb_threshold=1073741824:glibc.cpu.x86_non_temporal_threshold=67108864",
    ),
    ("LC_ALL", "C"),
    ("PYTHONHASHSEED", "0"),
    ("PERL_HASH_SEED", "0"),
    ("PERL_PERTURB_KEYS", "0"),
];

/// Starts a command, after the words of `before` (`exact … --`); `times` times in turn.
pub fn start(before: &[String], ready: &Ready, times: u32) -> Result<Started> {
    let mut words: Vec<String> = before.to_vec();
    if times > 1 {
        let again = r#"n=$1; shift; while [ $n -gt 0 ]; do "$@" || exit 1; n=$((n-1)); done"#;
        words.extend(["/bin/sh", "-c", again, "sh", &times.to_string()].map(str::to_owned));
    }
    words.extend(ready.words.iter().cloned());
    let Some((program, arguments)) = words.split_first() else { bail!("there is no command") };
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(ENVIRONMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    // A separate group, to end the command with its children.
    command.process_group(0);
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    if let Some(mut pipe) = child.stdin.take() {
        let text = ready.stdin.clone();
        // A program that ends before reading the whole input is no
        // error here; the status shows whether the work was done.
        std::thread::spawn(move || drop(pipe.write_all(text.as_bytes())));
    }
    let output = Arc::new(Output::default());
    let counted = Arc::clone(&output);
    let reader = child.stdout.take().map(|mut pipe| {
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                counted.bytes.fetch_add(n as u64, Ordering::Relaxed);
                counted.writes.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    Ok(Started { child, output, reader })
}

/// A program that runs.
pub struct Started {
    /// The process.
    pub child: Child,
    output: Arc<Output>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Output {
    bytes: AtomicU64,
    writes: AtomicU64,
}

/// What a whole run took and printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// CPU time, user and system, of the command and its children, in seconds.
    pub cpu_s: f64,
    /// Bytes on its standard output.
    pub bytes: f64,
}

/// Runs a command to its end.
///
/// # Errors
/// A command that does not start or fails.
pub fn run(ready: &Ready) -> Result<Run> {
    let before = children_seconds()?;
    let mut started = start(&[], ready, 1)?;
    let status = started.child.wait()?;
    if !status.success() {
        bail!("`{}` failed: {status}", ready.words.first().map_or("", String::as_str));
    }
    let cpu_s = children_seconds()? - before;
    if let Some(reader) = started.reader.take() {
        drop(reader.join());
    }
    Ok(Run { cpu_s, bytes: started.output.bytes.load(Ordering::Relaxed) as f64 })
}

/// CPU seconds of all reaped children.
///
/// # Errors
/// A system call that fails.
pub fn children_seconds() -> Result<f64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a whole rusage, which the call fills.
    let done = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) };
    if done != 0 {
        bail!("cannot read the CPU time of children: {}", std::io::Error::last_os_error());
    }
    // SAFETY: all zeros is a valid rusage, and the call succeeded.
    let usage = unsafe { usage.assume_init() };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    Ok(seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

/// A program that works until dropped. After a kill of
/// the bench the program ends with the last repetition.
pub struct Working(Started);

/// How far a working program has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// CPU time of the first thread, in seconds, without children.
    pub cpu_s: f64,
    /// Bytes of output.
    pub bytes: f64,
    /// Number of reads of output: a program that prints
    /// by the buffer shows progress in as many steps.
    pub steps: f64,
}

impl Working {
    /// Starts the program `times` times in turn, and waits until the first start-up is over.
    pub fn start(ready: &Ready, times: u32) -> Result<Self> {
        let mut working = Self(start(&[], ready, times)?);
        std::thread::sleep(Duration::from_secs(1));
        if let Some(status) = working.0.child.try_wait()? {
            bail!("`{}` ended at once: {status}", ready.words.first().map_or("", String::as_str));
        }
        Ok(working)
    }

    /// Progress of the program; `None` if the kernel does not give the CPU time.
    pub fn progress(&self) -> Option<Progress> {
        let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", self.pid())).ok()?;
        let cpu_s = stat.split_whitespace().next()?.parse::<f64>().ok()? * 1e-9;
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed) as f64;
        Some(Progress { cpu_s, bytes: count(&self.0.output.bytes), steps: count(&self.0.output.writes) })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.child.id()
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        signal(-i64::from(self.pid()), libc::SIGKILL);
        drop(self.0.child.wait());
    }
}

impl Progress {
    /// What was done since then.
    pub fn since(self, before: Self) -> Self {
        Self {
            cpu_s: self.cpu_s - before.cpu_s,
            bytes: self.bytes - before.bytes,
            steps: self.steps - before.steps,
        }
    }
}

/// Sends a signal to a process, or with a negative number to a group.
pub fn signal(pid: i64, number: i32) {
    if let Ok(pid) = libc::pid_t::try_from(pid) {
        // SAFETY: the call takes numbers only; the process is a child of ours that has not been waited for.
        unsafe { libc::kill(pid, number) };
    }
}

/// Waits for the end, and asks now and then whether to interrupt it as Ctrl-C would.
pub fn wait(child: &mut Child, mut enough: impl FnMut() -> bool) -> Result<(std::process::ExitStatus, f64)> {
    let started = Instant::now();
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, started.elapsed().as_secs_f64()));
        }
        std::thread::sleep(Duration::from_millis(500));
        if !asked && enough() {
            signal(i64::from(child.id()), libc::SIGINT);
            asked = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, stdin: &str) -> Ready {
        Ready { words: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(), stdin: stdin.to_owned() }
    }

    #[test]
    fn a_command_gets_its_input_and_its_failure_is_told() {
        let done = run(&shell("read a; test \"$a\" = x && printf 12345", "x\n")).unwrap();
        assert!(done.cpu_s > 0.0 && done.bytes == 5.0, "{done:?}");
        let failed = run(&shell("exit 3", "")).unwrap_err().to_string();
        assert!(failed.contains("exit status: 3"), "{failed}");
    }

    #[test]
    fn a_worker_and_what_it_started_end_together() {
        let worker = Working::start(&shell("sleep 1", ""), 99).unwrap();
        let pid = worker.pid();
        assert_eq!(worker.progress().map(|progress| progress.bytes), Some(0.0));
        drop(worker);
        // A killed process is there until whoever inherited it has taken notice.
        // SAFETY: as in `signal`; 0 only asks whether the group exists.
        let exists = || unsafe { libc::kill(-(pid as libc::pid_t), 0) } == 0;
        let end = Instant::now() + Duration::from_secs(20);
        while exists() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!exists());
    }
}
