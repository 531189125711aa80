//! Checks during a tracer's whole run that the tracer traces
//! neither its own processes nor the test that started the tracer.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Longest time between the start of a child and its own name, on a busy machine.
const NAMELESS: Duration = Duration::from_secs(1);

/// The looking thread.
#[derive(Debug)]
pub struct Overseer {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<BTreeSet<String>>,
}

impl Overseer {
    /// Looks after a tracer, or a process that started it, from now on.
    pub fn of(tracer: u32) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut seen = BTreeSet::new();
            while !ends.load(Ordering::Relaxed) {
                seen.extend(traced_ones(tracer));
                thread::sleep(LOOK);
            }
            seen
        });
        Self { is_over, thread }
    }

    /// Violations, one sentence each.
    pub fn finish(self) -> Vec<String> {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().map_or_else(|_| vec!["the overseer panicked".to_owned()], Vec::from_iter)
    }
}

/// Our processes that a tracer of ours traces at this moment.
fn traced_ones(tracer: u32) -> Vec<String> {
    let mut ours = vec![std::process::id(), tracer];
    let mut next = 1;
    while let Some(parent) = ours.get(next).copied() {
        // The launched command is a child, too, and the stopped
        // helpers `calibration` and `doctor-probe` are.
        ours.extend(children(parent).into_iter().filter(|child| name(*child).starts_with("locality-")));
        next += 1;
    }
    let threads = ours.iter().flat_map(|pid| threads(*pid).into_iter().map(|tid| (*pid, tid)));
    threads
        .filter_map(|(pid, tid)| {
            let by = number(tid, "TracerPid:")?;
            let by_us = by != 0 && name(number(by, "Tgid:")?).starts_with("locality-bpf");
            (by_us && is_still_ours(pid, tracer))
                .then(|| format!("thread {tid} of process {pid} ({}) was traced by {by}", name(pid)))
        })
        .collect()
}

/// Whether a process has a name of ours for longer than a child without a new name yet.
fn is_still_ours(pid: u32, tracer: u32) -> bool {
    if pid == tracer || pid == std::process::id() {
        return true;
    }
    let until = Instant::now() + NAMELESS;
    while Instant::now() < until {
        thread::sleep(LOOK / 2);
        // A process that ended has no name.
        if !name(pid).starts_with("locality-") {
            return false;
        }
    }
    true
}

fn threads(pid: u32) -> Vec<u32> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Children of all threads of a process.
pub fn children(pid: u32) -> Vec<u32> {
    let of_thread = |tid| fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    threads(pid)
        .into_iter()
        .flat_map(|tid| {
            of_thread(tid).split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

/// Name of a process.
pub fn name(pid: u32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/comm")).unwrap_or_default()).trim().to_owned()
}

fn number(tid: u32, key: &str) -> Option<u32> {
    let status = fs::read(format!("/proc/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_and_numbers_are_read() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let (found, parent) = (children(std::process::id()), number(child.id(), "PPid:"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&child.id()), "{found:?}");
        assert_eq!(parent, Some(std::process::id()));
        assert_eq!(Overseer::of(std::process::id()).finish(), Vec::<String>::new());
    }
}
