//! Abilities of the machine for a trace; for missing
//! abilities, the consequences and the repairing command.
//!
//! [`examine`] looks and tries; [`print_text`] prints the findings for people, [`print_json`] for
//! programs. Abilities are tried as far as possible (the eBPF object is loaded, the clock runs, a
//! child of our own is stopped, debug registers are reserved, an address sample is taken), because
//! settings explain a refusal but do not predict refusals.
//!
//! The examined process is never stopped, traced or written: `doctor` reads
//! the process through `/proc`, and only reserves debug registers, by events
//! never enabled. Not here: repairs, and measuring costs (`calibrate`).
//!
//! Limits: x86-64 Linux. A capability that fails only at times is reported by one attempt.

mod debug_info;
mod exact;
mod kernel;
mod limits;
mod pmu;
mod probe;
mod stop_test;
mod target;
mod text;
mod watchdog;
mod windows;

use std::io::{self, Write};

use serde::Serialize;

use locality_kernel::{btf, rights::Rights};

pub use text::{Style, print_text};

/// All findings. Serialises to one JSON object:
///
/// ```json
/// {"schema": "locality-doctor/1", "possible": true,
///  "machine": [{"id": "btf", "name": "kernel types (BTF)", "state": "ok", "found": "…"},
///              {"id": "pmu", "name": "PMU", "state": "degraded", "found": "…", "consequence": "…", "mend": "…"}],
///  "target": {"pid": 4242, "command": "…", "checks": [], "notes": []}}
/// ```
///
/// `state` is `ok`, `degraded`, `missing` or `unknown`; `consequence`
/// and `mend` are absent if empty; `target` is absent without a named
/// process. Checks are distinguished by `id`; new checks may be added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// `locality-doctor/1`.
    pub schema: &'static str,
    /// Whether a trace can be made: no check is [`State::Missing`].
    pub possible: bool,
    /// The machine's capabilities.
    pub machine: Vec<Check>,
    /// The named process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
}

impl Report {
    /// All checks, the machine's first.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.machine.iter().chain(self.target.iter().flat_map(|target| &target.checks))
    }
}

/// Findings about one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Target {
    /// The named process id.
    pub pid: u32,
    /// Command line; empty for an absent process.
    pub command: String,
    /// Possible measurements.
    pub checks: Vec<Check>,
    /// Effects of a trace noticed by the process and by further programs.
    pub notes: Vec<String>,
}

/// One capability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Never changes its meaning.
    pub id: &'static str,
    /// For people.
    pub name: &'static str,
    /// How well the capability serves.
    pub state: State,
    /// Finding, in a few words.
    pub found: String,
    /// Consequence for the user; `None` for [`State::Ok`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub consequence: Option<String>,
    /// The repairing command, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mend: Option<String>,
}

/// How well a capability serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As wanted.
    Ok,
    /// A trace is possible, with less content or at a higher cost.
    Degraded,
    /// No trace is possible without the capability.
    Missing,
    /// The state could not be found out.
    Unknown,
}

impl Check {
    fn ok(id: &'static str, name: &'static str, found: impl Into<String>) -> Self {
        Self { id, name, state: State::Ok, found: found.into(), consequence: None, mend: None }
    }

    fn less(self, state: State, consequence: impl Into<String>) -> Self {
        Self { state, consequence: Some(consequence.into()), ..self }
    }

    fn degraded(self, consequence: impl Into<String>) -> Self {
        self.less(State::Degraded, consequence)
    }

    fn missing(self, consequence: impl Into<String>) -> Self {
        self.less(State::Missing, consequence)
    }

    fn unknown(self, consequence: impl Into<String>) -> Self {
        self.less(State::Unknown, consequence)
    }

    fn mend(self, command: impl Into<String>) -> Self {
        Self { mend: Some(command.into()), ..self }
    }
}

/// Writes the report as the JSON object of [`Report`], for programs.
pub fn print_json(report: &Report, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    writeln!(out)
}

/// A number with a noun in the singular or plural.
fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Checks the machine and, if given, a process. Takes about half a second. Must be called
/// from one thread at a time, and from a process that does not wait for children meanwhile.
pub fn examine(pid: Option<u32>) -> Report {
    let rights = Rights::own();
    let offsets = btf::kernel_offsets();
    let mut machine = kernel::checks(&rights, offsets.as_ref().err());
    machine.extend(limits::checks(&rights));
    machine.extend(probe::checks(offsets.as_ref().ok()));
    machine.push(windows::check());
    machine.push(watchdog::check());
    machine.extend(pmu::checks());
    machine.push(exact::check());
    let target = pid.map(target::examine);
    let mut report = Report { schema: "locality-doctor/1", possible: true, machine, target };
    let possible = report.checks().all(|check| check.state != State::Missing);
    report.possible = possible;
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ok_says_what_follows() {
        for report in [examine(None), examine(Some(std::process::id())), examine(Some(u32::MAX))] {
            for check in report.checks() {
                assert_eq!(check.consequence.is_none(), check.state == State::Ok, "{check:?}");
                assert!(check.state != State::Ok || check.mend.is_none(), "{check:?}");
                assert!(!check.found.is_empty(), "{check:?}");
            }
            let mut ids: Vec<_> = report.checks().map(|check| check.id).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), report.checks().count(), "an id stands for one check");
        }
    }

    #[test]
    fn one_missing_capability_makes_a_trace_impossible() {
        let report = examine(Some(u32::MAX));
        assert!(!report.possible);
        let mut json = Vec::new();
        print_json(&report, &mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["schema"], "locality-doctor/1");
        assert_eq!(json["target"]["checks"][0]["state"], "missing");
        assert!(json["target"]["checks"][0]["found"].as_str().unwrap().contains("no process 4294967295"));
    }
}
