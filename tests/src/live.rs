//! One trace of a running program with its results: report, profile, messages.
//!
//! [`Live::trace`] panics if a common property of traces fails: exit status 0, equal
//! ledgers in profile and report, a balanced ledger, a reason for each unnamed
//! frame. Properties of single programs are the tests' own. A test that depends on
//! times traces [`alone`], a test without times [`beside`] further tests.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use locality_model::{Outcome, Profile, StackId};
use serde_json::Value;

use crate::tracer::{Traced, Tracer};

/// Longest wait for what a test expects.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Waits until `look` finds a value, at most [`LIMIT`].
///
/// # Panics
/// Nothing was found in time.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "there is no {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A finished trace.
#[derive(Debug)]
pub struct Live {
    /// The JSON report.
    pub report: Value,
    /// The profile file, read back.
    pub profile: Profile,
    /// Messages of the tracer.
    pub stderr: String,
}

/// Waits until no test traces, in every process; the trace is over when the file is dropped.
pub fn alone() -> File {
    let (file, path) = lock_file();
    file.lock().unwrap_or_else(|e| panic!("cannot lock {}: {e}", path.display()));
    file
}

/// Waits until no other test traces [`alone`]. The test runner starts one test per processor, so
/// each traced program has a processor of its own.
pub fn beside() -> File {
    let (file, path) = lock_file();
    file.lock_shared().unwrap_or_else(|e| panic!("cannot lock {}: {e}", path.display()));
    file
}

fn lock_file() -> (File, PathBuf) {
    let path = std::env::temp_dir().join("locality-tests.lock");
    let file = File::options().create(true).append(true).open(&path);
    (file.unwrap_or_else(|e| panic!("{}: {e}", path.display())), path)
}

impl Live {
    /// Traces a process for this time, with further arguments if given.
    pub fn trace(pid: u32, seconds: &str, more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap_or_else(|e| panic!("no temporary directory: {e}"));
        let file = dir.path().join("t.locality");
        let traced = Tracer::attach(pid, seconds).args(["-o".as_ref(), file.as_os_str()]).args(more).run();
        Self::of(&traced, &file)
    }

    /// Traces as [`Live::trace`], a second time for longer if the first was too short: on a slow
    /// or busy machine a few seconds may bring few samples. The caller asserts the needed number.
    pub fn trace_until(
        pid: u32,
        [first, second]: [&str; 2],
        more: &[&str],
        enough: impl Fn(&Self) -> bool,
    ) -> Self {
        let live = Self::trace(pid, first, more);
        if enough(&live) { live } else { Self::trace(pid, second, more) }
    }

    /// A trace with its JSON report on stdout and its profile in `file`.
    pub fn of(traced: &Traced, file: &Path) -> Self {
        let profile = locality_profile::read(file).unwrap_or_else(|e| panic!("{e}\n{}", traced.stderr));
        let live = Self { report: traced.report(), profile, stderr: traced.stderr.clone() };
        live.check();
        live
    }

    fn check(&self) {
        let (report, profile) = (&self.report, &self.profile);
        assert!(!profile.partial && report["partial"] == false, "partial: {}", self.stderr);
        assert_eq!(profile.ledger.imbalance(), None, "{:#}", report["ledger"]);
        assert_eq!(report["ledger"]["balanced"], true, "{:#}", report["ledger"]);
        // A machine too busy to analyse all events drops some, and counts them.
        let dropped =
            report["ledger"]["stops"]["events dropped before they were analysed"].as_u64().unwrap_or(0);
        let armed = report["ledger"]["watch"]["armed"].as_u64().unwrap_or_else(|| panic!("{report:#}"));
        let rows = profile.watches.len() as u64;
        assert!(
            rows <= armed && armed <= rows + dropped,
            "{armed} armed, {rows} rows: {:#}",
            report["ledger"]
        );
        assert_eq!(report["run"]["samples"], profile.samples.len());
        let silent = profile.frames.iter().find(|frame| frame.function.is_none() && frame.unknown.is_none());
        assert_eq!(silent, None, "a frame without name and without reason");
    }

    /// Samples of this run for each second of CPU time.
    pub fn samples_per_cpu_second(&self) -> f64 {
        self.profile.samples.len() as f64 / (self.profile.run.cpu_ns as f64 / 1e9)
    }

    /// Share of the reused watches of seized threads whose first trap came from the instruction that
    /// the stop foretold.
    pub fn confirmed(&self) -> f64 {
        let held = |sample: u32| self.profile.samples.get(sample as usize).is_some_and(|sample| sample.held);
        let reused = self
            .profile
            .watches
            .iter()
            .filter(|watch| matches!(watch.outcome, Outcome::Reused { .. }) && held(watch.sample.0));
        share(reused.map(|watch| watch.use_confirmed))
    }

    /// Asserts this share of confirmed uses, minus one use: among few, one may be missed.
    pub fn assert_confirmed(&self, least: f64) {
        let one = 1.0 / self.profile.watches.len() as f64;
        assert!(self.confirmed() >= least - one, "only {} of the uses were confirmed", self.confirmed());
    }

    /// Share of the stacks of samples and reuses that reach the outermost frame.
    pub fn whole_stacks(&self) -> f64 {
        let samples = self.profile.samples.iter().map(|sample| sample.stack);
        let reuses = self.profile.watches.iter().filter_map(|watch| match &watch.outcome {
            Outcome::Reused { touch, .. } => Some(touch.stack),
            _ => None,
        });
        share(samples.chain(reuses).map(|stack| self.cut(stack).is_none()))
    }

    /// Share of the samples with a stopped thread.
    pub fn held(&self) -> f64 {
        share(self.profile.samples.iter().map(|sample| sample.held))
    }

    /// Share of the samples whose next access could be foretold.
    pub fn foretold(&self) -> f64 {
        share(self.profile.samples.iter().map(|sample| sample.access.is_ok()))
    }

    fn cut(&self, stack: StackId) -> Option<&str> {
        self.profile.stacks.get(stack.0 as usize)?.cut.as_deref()
    }
}

/// Share of the true values; 0 without values: an empty set must not look perfect.
fn share(of: impl Iterator<Item = bool>) -> f64 {
    let (mut all, mut true_ones) = (0u32, 0u32);
    for one in of {
        all += 1;
        true_ones += u32::from(one);
    }
    f64::from(true_ones) / f64::from(all.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_nothing_is_not_perfect() {
        assert_eq!(share([].into_iter()), 0.0);
        assert_eq!(share([true, false, true, true].into_iter()), 0.75);
    }

    #[test]
    fn two_do_not_trace_at_once() {
        let first = alone();
        let second = std::thread::spawn(|| drop(alone()));
        let third = std::thread::spawn(|| drop(beside()));
        std::thread::sleep(std::time::Duration::from_millis(30));
        assert!(!second.is_finished() && !third.is_finished());
        drop(first);
        second.join().unwrap();
        third.join().unwrap();
        // Others may trace meanwhile, but none alone.
        let _beside = beside();
        drop(beside());
    }
}
