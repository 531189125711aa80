//! The process in which inputs are tried: bounded in memory, and replaced after a death.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fastrand::Rng;

use crate::shared::{MOST_INPUT, Shared};
use crate::targets::{self, Target};

/// Bytes of address space of a child process: allocations beyond are refused, which aborts the process.
const MOST_MEMORY: u64 = 4 << 30;
/// Saved findings for one place in the source.
const SAVED_OF_A_PLACE: usize = 3;

/// Place and message of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// The order to a child process.
pub struct Task {
    /// Name of the target.
    pub target: String,
    /// The run's seed.
    pub seed: u64,
    /// Number of the first execution.
    pub first: u64,
    /// Number of the execution at which to stop.
    pub end: u64,
    /// Time limit.
    pub time: Duration,
    /// Folder of seeds and saved findings.
    pub folder: PathBuf,
}

/// Random numbers of one execution: equal for equal seed, target and number.
pub fn random(seed: u64, target: &str, execution: u64) -> Rng {
    let name = target.bytes().fold(seed, |sum, byte| sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(byte));
    Rng::with_seed(name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ execution.wrapping_mul(0xd134_2543_de82_ef95))
}

/// Limits this process and has panics noted, not printed.
pub fn confine() -> Result<()> {
    let limit = libc::rlimit { rlim_cur: MOST_MEMORY, rlim_max: MOST_MEMORY };
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: two limits of this process, set from values that live here.
    let set =
        unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) | libc::setrlimit(libc::RLIMIT_CORE, &no_core) };
    anyhow::ensure!(set == 0, "cannot limit memory: {}", std::io::Error::last_os_error());
    std::panic::set_hook(Box::new(|info| {
        let payload = info.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("a panic without text");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        if let Ok(mut last) = PANIC.lock() {
            *last = format!("{place}: {text}");
        }
    }));
    Ok(())
}

/// Tries one input; returns the panic's place and message.
pub fn attempt(target: &mut dyn Target, input: &[u8]) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| target.run(input)))
        .map_err(|_| PANIC.lock().map(|text| text.clone()).unwrap_or_default())
}

/// Whether a sum overflowed in a package of the registry. In
/// a release, which has no overflow checks, the sum wraps.
fn is_of_a_library(panic: &str) -> bool {
    panic.contains("/registry/src/") && panic.ends_with("with overflow")
}

/// Tries inputs until the time or the number of executions is over.
pub fn run(task: &Task) -> Result<()> {
    let shared = Shared::open(&task.folder.join("current"), false).context("cannot map the parent's page")?;
    let open = || targets::open(&task.target, &task.folder);
    let mut target = open()?;
    confine()?;
    let started = Instant::now();
    let mut saved = std::collections::BTreeMap::<String, usize>::new();
    for execution in task.first..task.end {
        if started.elapsed() >= task.time {
            break;
        }
        let mut input = target.make(&mut random(task.seed, &task.target, execution));
        input.truncate(MOST_INPUT);
        shared.begin(&input);
        if let Err(panic) = attempt(target.as_mut(), &input) {
            if is_of_a_library(&panic) {
                shared.wrapped().fetch_add(1, Ordering::Relaxed);
                target = open()?;
                shared.ended().fetch_add(1, Ordering::Release);
                continue;
            }
            shared.panicked().fetch_add(1, Ordering::Relaxed);
            let place = panic.split(": ").next().unwrap_or_default().to_owned();
            let count = saved.entry(place).or_default();
            *count += 1;
            if *count <= SAVED_OF_A_PLACE {
                crate::save(&task.folder, &task.target, "panic", task.seed, execution, &input, &panic)?;
            }
            // Data protected by the lock may be half changed.
            target = open()?;
        }
        shared.ended().fetch_add(1, Ordering::Release);
    }
    Ok(())
}
