//! The summary of a trace besides its rows: time, machine, cost, notices.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use locality_common::{counter::TARGETS_FULL, rules::START_TICK_NS};
use locality_model::{Core, Mode, Overhead, Processor, Run, Sources};
use locality_rate::Machine;

use super::{
    calibrate::Calibration,
    cpu_times::CpuTimes,
    governor::CostTotals,
    plan::{Following, Plan, Targets},
    recorder::RecorderStats,
};
use locality_capture::exclusions::ANCESTOR;
use locality_capture::watchdog;
use locality_capture::{
    self as capture,
    counters::{Costs, get},
    exclusions::Exclusions,
};
use locality_heap as heap;
use locality_kernel::{
    launch,
    lock::lock,
    machine,
    object::EventCounts,
    proc,
    rights::Rights,
    sources::{
        counters::{Counting, Unit},
        select::Selected,
    },
    sys,
};

/// Begin of the trace, and its targets then.
#[derive(Debug)]
pub struct Started {
    /// Wall clock.
    pub unix_ns: u64,
    /// Monotonic clock.
    pub mono_ns: u64,
    /// In the unit and on the clock of a process's start time.
    pub ticks: u64,
    command: String,
}

impl Started {
    /// Begins now.
    pub fn now(plan: &Plan) -> Self {
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self {
            unix_ns: unix.as_nanos() as u64,
            mono_ns: sys::monotonic_ns(),
            ticks: sys::boottime_ns() / START_TICK_NS,
            command: plan.describe(),
        }
    }
}

/// The recorder of allocations, in the report's first lines and in a notice.
pub const RECORDER: &str = "a library that the command loaded first (LD_PRELOAD)";

/// The probes of allocations, in the report's first lines.
pub const PROBES: &str = "probes of the kernel in the traced programs' allocation functions (--heap=probes)";

/// A shorter wait for a processor is not reported.
const NOTABLE: Duration = Duration::from_secs(1);

/// The longest wait that was seen; the capture thread ends before the report is written.
static LONGEST_WAIT_NS: AtomicU64 = AtomicU64::new(0);

/// Time in which the controller or the capture thread
/// was ready to run and had no processor, if notable.
pub fn starved() -> Option<Duration> {
    let waited = proc::longest_wait(capture::THREAD);
    let before = LONGEST_WAIT_NS.fetch_max(waited.as_nanos() as u64, Ordering::Relaxed);
    Some(waited.max(Duration::from_nanos(before))).filter(|waited| *waited > NOTABLE)
}

/// Sources of the ledger.
#[derive(Debug)]
pub struct RunSummary<'a> {
    /// What was asked for.
    pub plan: &'a Plan,
    /// What starts samples.
    pub selected: Selected,
    /// How accesses are counted, if they are.
    pub counting: Option<Counting>,
    /// Why no windows can be taken, if they were wanted.
    pub no_windows: Option<String>,
    /// Where the watchdog stands.
    pub standing: watchdog::Standing,
    /// Watchdogs started after a kill or a hang of the former one.
    pub watchdogs_lost: u32,
    /// Who is never traced.
    pub spared: Exclusions,
    /// Processes of the traced cgroups, or of the pid namespace, that are not traced: how many, by reason.
    pub left_out: BTreeMap<&'static str, u32>,
    /// Processes started by targets before the trace that are no targets.
    pub not_followed: Vec<u32>,
    /// Why the command is not launched with the recorder of allocations, if that was meant.
    pub no_heap: Option<String>,
    /// What is put into the traced programs to follow allocations.
    pub heap: Option<&'static str>,
    /// What things cost here.
    pub calibration: Calibration,
    /// What the processor can do.
    pub machine: Machine,
    /// What the capture thread counted.
    pub costs: Arc<Costs>,
    /// When it began.
    pub started: Started,
}

/// What advice needs of the processor.
fn processor(machine: &Machine) -> Processor {
    let level = |level: &locality_rate::Level| [level.latency, level.between, level.stored];
    Processor {
        clock: machine.clock,
        levels: machine.levels.each_ref().map(level),
        parallel_line: machine.parallel,
        page_fault_ns: machine.fault_ns,
        core: Some(core(machine)),
    }
}

fn core(machine: &Machine) -> Core {
    Core {
        width: machine.width,
        loads: machine.loads,
        wide_loads: machine.wide_loads,
        stores: machine.stores,
        close_stores: machine.close_stores,
        integers: machine.integers,
        floats: machine.floats,
        load: machine.load,
        forward: machine.forward,
        forward_anew: machine.forward_anew,
        add: machine.add,
        multiply: machine.multiply,
    }
}

impl RunSummary<'_> {
    /// What was spent up to now.
    pub fn spending(&self, cpu: &mut CpuTimes) -> CostTotals {
        let costs = &self.costs;
        std::mem::take(&mut *lock(&costs.cpu.ended)).into_iter().for_each(|ended| cpu.end(ended));
        let samples = costs.told_samples();
        CostTotals {
            stop_ns: get(&costs.stop.stop_ns),
            stops: get(&costs.stop.stops),
            imposed_ns: get(&costs.stop.imposed_ns),
            traps: get(&costs.trap.traps) + get(&costs.trap.silent_traps),
            passed: get(&costs.trap.passed),
            last_traps: get(&costs.watch.trapped) + get(&costs.trap.trap_measurements),
            ticks: get(&costs.sampling.samples) + get(&costs.sampling.kernel_ticks),
            heap_ns: get(&costs.cpu.heap_ns),
            string_ns: get(&costs.trap.string_ns),
            readings: get(&costs.window.meter_ticks),
            samples,
            cpu_ns: cpu.read(),
            page_faults: None,
            own_ns: self.own_ns(),
            wall_ns: sys::monotonic_ns().saturating_sub(self.started.mono_ns),
        }
    }

    /// CPU time of this tool with its helper processes.
    fn own_ns(&self) -> u64 {
        sys::own_cpu_ns() + get(&self.costs.cpu.helpers_cpu_ns) + locality_symbols::symbolisers_cpu_ns()
    }

    /// The costs for the report.
    pub fn overhead(&self, spending: &CostTotals) -> Overhead {
        let prices = self.calibration.prices;
        Overhead {
            budget_percent: self.plan.overhead_percent,
            measured_percent: spending.share(prices) * 100.0,
            stop_ns: spending.still_ns(prices),
            trap_ns: spending.traps_ns(prices),
            bpf_ns: spending.interrupts_ns(prices),
            heap_ns: (self.plan.heap != Following::Off).then_some(spending.heap_ns),
            string_ns: (spending.string_ns > 0).then_some(spending.string_ns),
            controller_ns: self.own_ns(),
            stops: spending.stops,
            longest_stop_ns: get(&self.costs.stop.longest_stop_ns),
            max_stop_ns: self.plan.max_stop.as_nanos() as u64,
        }
    }

    /// The run for the report; `ended_by` is empty while it runs; `pacing`: samples a second, and
    /// accesses a hardware sample.
    pub fn run(
        &self,
        pids: &[u32],
        spending: &CostTotals,
        tally: &RecorderStats,
        ended_by: &str,
        (rate, accesses): (f64, u64),
    ) -> Run {
        let started = &self.started;
        let sampling = &self.costs.sampling;
        let (user, kernel) = (self.costs.told_samples(), get(&sampling.in_kernel));
        Run {
            command: started.command.clone(),
            pids: pids.to_vec(),
            started_unix_ns: started.unix_ns,
            started_mono_ns: started.mono_ns,
            wall_ns: sys::monotonic_ns() - started.mono_ns,
            cpu_ns: spending.cpu_ns,
            host: machine::describe(),
            mode: Mode::Live,
            sources: Sources {
                address: address_source(tally, self.selected.hardware(), self.plan.user_only),
                rate: rate_sources(tally),
                clock: match self.selected.hardware() {
                    Some(hardware) => {
                        format!(
                            "{hardware}, one sample in {accesses} accesses at the end ({rate:.0} Hz aimed at)"
                        )
                    }
                    None => format!("cpu-clock, {rate:.0} Hz at the end"),
                },
                heap: self.heap.map(str::to_owned),
            },
            ended_by: ended_by.to_owned(),
            policy: self.plan.policy.to_string(),
            distance_resolution_ns: self.calibration.prices.trap_ns,
            distance_scatter_ns: Some(get(&self.costs.trap.trap_scatter_ns))
                .filter(|scatter_ns| *scatter_ns > 0),
            user_only: self.plan.user_only,
            // Samples of a hardware source do not count time.
            ticks: self.selected.hardware().is_none().then_some((user + kernel, kernel)),
            page_faults: spending.page_faults,
            processor: self.plan.windows.then(|| processor(&self.machine)),
            excluded: self.spared.excluded(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Sentences that the reader of the report needs;
    /// `before` are the kernel counters at the start.
    pub fn notices(
        &self,
        tally: &RecorderStats,
        heap: Option<&heap::Summary>,
        before: &EventCounts,
        after: &EventCounts,
    ) -> Vec<String> {
        let mut notices: Vec<String> = self.calibration.guessed.iter().cloned().collect();
        if !self.left_out.is_empty() || matches!(self.plan.targets, Targets::All) {
            notices.push(not_traced(&self.left_out, proc::in_pid_namespace()));
        }
        notices.extend(excluded(&self.spared.excluded()));
        notices.extend(not_followed(&self.not_followed));
        notices.extend(Rights::own().losses());
        if let Some(starved) = starved() {
            let why = match sys::capture_priority() > sys::CAPTURE_PRIORITY {
                true => "the traced real-time programs go before it",
                false => "real-time programs, or many others, went before it",
            };
            notices.push(format!(
                "This tool had no processor for {:.1} s, because {why}: samples of that time may be missing.",
                starved.as_secs_f64()
            ));
        }
        notices.extend(self.standing.warning());
        if self.watchdogs_lost > 0 {
            notices.push(format!(
                "The watchdog process was killed or did not answer {}, and no thread was stopped until another one watched.",
                times(self.watchdogs_lost)
            ));
        }
        notices.extend(
            self.no_windows.iter().map(|why| {
                format!("Distances are told in CPU time only, for lack of shadow windows: {why}.")
            }),
        );
        let (unread, windows) = (get(&self.costs.window.windows_unread), get(&self.costs.window.windows));
        if unread > windows {
            notices.push(format!(
                "Shadow windows are missing at {unread} stops of {}: the kernel did not give the vector registers of the \
                 stopped threads. Without any window, distances are told in CPU time only.",
                get(&self.costs.stop.stops)
            ));
        }
        notices.extend(
            self.no_heap
                .iter()
                .map(|why| format!("Heap blocks are not named by where they were allocated: {why}.")),
        );
        notices.extend(heap.into_iter().flat_map(heap_notices));
        if self.counting.is_some_and(|counting| counting.encoding.unit == Unit::DispatchedOps) {
            notices.push(
                "This processor counts accesses when it begins them, so distances include accesses that it threw away \
                 after wrongly predicted branches."
                    .to_owned(),
            );
        }
        let mut reasons: Vec<_> = tally.not_held_threads.iter().collect();
        reasons.sort();
        for (reason, threads) in reasons {
            let threads = match threads {
                1 => "One thread was".to_owned(),
                n => format!("{n} threads were"),
            };
            notices.push(match self.plan.watch_unheld {
                true => format!(
                    "{threads} measured without stops ({reason}): watchpoints were armed some 100 µs \
                     late and the first trap was taken as the use, so reuses shorter than that are missing."
                ),
                false => format!(
                    "{threads} sampled without stops and not watched ({reason}): in a virtual machine a \
                     watchpoint can end a thread that is not paused; --watch-unheld takes that risk."
                ),
            });
        }
        let (late, longest_ns) = (get(&self.costs.stop.late_stops), get(&self.costs.stop.longest_stop_ns));
        if late > 0 {
            notices.push(format!(
                "{late} of {} stops took longer than --max-stop, the longest {:.1} ms, and armed nothing. On a busy machine that is \
                 time in which the thread, or this tool, waited for a CPU.",
                get(&self.costs.stop.stops),
                longest_ns as f64 / 1e6
            ));
        }
        let (armed, refused) = (get(&self.costs.watch.armed), get(&self.costs.watch.refused));
        if refused > 0 && refused == armed && get(&self.costs.window.windows) > 0 {
            notices.push(format!(
                "Reuses beyond the windows are missing: the kernel refused all {refused} watchpoints, because the debug \
                 registers of the traced threads are taken. End the debugger or profiler that uses them, and trace again."
            ));
        }
        if refused > 0 && refused < armed {
            notices.push(format!(
                "The kernel refused {refused} of {armed} watchpoints, because others hold debug registers of the traced threads (a \
                 debugger, or the program itself), so fewer words were watched at a time."
            ));
        }
        let (withdrawn, unaffordable) = (get(&self.costs.trap.withdrawn), get(&self.costs.trap.unaffordable));
        let lost = self.costs.trap.armed_lost_ppm.each_ref().map(|ppm| get(ppm) as f64 / 1e6);
        let fewer = (withdrawn + unaffordable) as f64;
        if fewer > LEAST_LOST_WATCHES * (armed + unaffordable) as f64 {
            let why = slower_at(&self.calibration.prices, lost).map_or_else(
                || "the cost of armed watchpoints was not known yet".to_owned(),
                |slower| format!("while one is armed, this program loses time at {slower}"),
            );
            notices.push(format!(
                "To keep the budget, watchpoints were withdrawn early ({withdrawn} of {armed}), or uses not \
                 watched ({unaffordable}): {why}. --overhead allows more."
            ));
        }
        let brief = get(&self.costs.stop.brief);
        if brief > 0 {
            notices.push(format!(
                "{brief} threads or processes were not followed: they ended within 5 ms, and births came too fast to stop at each."
            ));
        }
        notices.extend(tally.shared.notice());
        let behind = get(&self.costs.loss.controller_behind);
        if behind > 0 {
            notices
                .push(format!("{behind} events were dropped because symbolisation was too slow for them."));
        }
        if !tally.refused_files.is_empty() {
            let files: Vec<&str> = tally.refused_files.iter().map(String::as_str).collect();
            notices.push(format!(
                "Lines and inlined calls are missing for {}: the debug information claims more than it can hold, or leads to \
                 a file that is no regular one.",
                files.join(", ")
            ));
        }
        notices.extend(locality_symbols::missing_names());
        let gone = locality_symbols::truncated_pages();
        if gone > 0 {
            notices.push(format!(
                "A file of a traced program was cut short while it was read ({gone} pages): names from it may be missing."
            ));
        }
        let unknown = get(&self.costs.loss.unknown_records);
        if unknown > 0 {
            notices.push(format!("{unknown} records of an unknown kind were ignored."));
        }
        let full = after[TARGETS_FULL as usize] - before[TARGETS_FULL as usize];
        if full > 0 {
            notices.push(format!("{full} new processes were not followed: more than 65536 at once."));
        }
        notices
    }

    /// Notice of own time beyond the budget, if so.
    pub fn over_own_budget(&self, spending: &CostTotals) -> Option<String> {
        let budget = self.plan.own_budget()?;
        let used = budget.used(&CostTotals { own_ns: self.own_ns(), ..*spending });
        (used > budget.share * OVER).then(|| {
            let limit = own_limit(budget.share * 100.0, self.plan.steps_aside);
            format!(
                "This tool used {:.2} % of the time of all processors, more than the {limit}: starting a \
                 trace and reading debug information cost the same however few samples come. A longer \
                 trace makes it less.",
                used * 100.0
            )
        })
    }

    /// One line for a waiting user.
    pub fn progress(&self, spending: &CostTotals, precision: &str) -> String {
        let costs = &self.costs;
        format!(
            "locality-bpf: {:.0} s, {} samples, {} reuses, {} watches without reuse{precision}, cost {:.2} % of {} % allowed (Ctrl-C ends)",
            (sys::monotonic_ns() - self.started.mono_ns) as f64 / 1e9,
            spending.samples,
            get(&costs.watch.trapped),
            get(&costs.watch.censored),
            spending.share(self.calibration.prices) * 100.0,
            self.plan.overhead_percent
        )
    }
}

/// A budget is met up to this factor: rates change ten times a second.
const OVER: f64 = 1.1;

/// Who is not traced: how many at the start, by reason. Processes started before
/// the trace are no targets: the user may have meant to include the processes.
pub fn not_followed(pids: &[u32]) -> Option<String> {
    /// Numbers that the sentence lists.
    const LISTED: usize = 5;
    let first: Vec<String> = pids.iter().take(LISTED).map(u32::to_string).collect();
    let more = if pids.len() > LISTED { ", …" } else { "" };
    let (subject, object) = match pids {
        [] => return None,
        [_] => ("A child process was".to_owned(), "it"),
        _ => (format!("{} child processes were", pids.len()), "them"),
    };
    Some(format!(
        "{subject} running before the trace began and {} not traced: name {object} too (-p {}{more}), \
         or trace their cgroup.",
        if pids.len() == 1 { "is" } else { "are" },
        first.join(","),
    ))
}

/// How many processes each pattern of `--exclude` left out; a pattern without one may be misspelt.
fn excluded(patterns: &[(String, u64)]) -> Option<String> {
    let each = patterns.iter().map(|(pattern, n)| match n {
        0 => format!("none by {pattern}"),
        1 => format!("1 process by {pattern}"),
        n => format!("{n} processes by {pattern}"),
    });
    let each: Vec<String> = each.collect();
    (!each.is_empty()).then(|| format!("Excluded: {}.", each.join(", ")))
}

fn not_traced(left_out: &BTreeMap<&str, u32>, in_namespace: bool) -> String {
    // A pid namespace does not show the machine's process 1.
    let first = if in_namespace { "" } else { ", process 1 of the machine" };
    let mut notice = format!(
        "Not traced: this tool's own processes, the processes that started it{first} and threads of the \
         kernel. -p PID traces one that started this tool, without stops."
    );
    if !left_out.is_empty() {
        let word = |why| match why {
            "it is part of this tool" => "of this tool",
            ANCESTOR => "that started it",
            "it is process 1" => "of process 1",
            "it is a thread of the kernel" => "of the kernel",
            why => why,
        };
        let reasons: Vec<String> = left_out.iter().map(|(why, n)| format!("{n} {}", word(why))).collect();
        notice = format!("Left out: {}. {notice}", reasons.join(", "));
    }
    notice
}

/// Least share of the watches lost to the cost of armed registers that a notice names.
const LEAST_LOST_WATCHES: f64 = 0.02;

/// Kinds of instructions at which the program loses time while a word is watched, each with the
/// factor of this machine; absent without such a kind. `lost`: shares of the time, in the same order.
fn slower_at(prices: &super::governor::UnitCosts, lost: [f64; 3]) -> Option<String> {
    // Of the loss: a kind that carries less explains nothing.
    const LEAST_PART: f64 = 0.1;
    // A smaller share prints as 0.
    const LEAST_LOST: f64 = 0.0005;
    let kinds = [
        ("string instructions (`rep movs`, `rep stos`: system calls, large copies)", prices.string_factor()),
        ("stores across cache lines (copies to unaligned places)", prices.split_store_factor()),
        ("switches between threads", prices.switch_factor()),
    ];
    let least = LEAST_PART * lost.iter().sum::<f64>();
    let slower = kinds.into_iter().zip(lost).filter(|(_, lost)| *lost >= least.max(LEAST_LOST));
    let times = |factor: f64| if factor < 9.95 { format!("{factor:.1}") } else { format!("{factor:.0}") };
    let slower: Vec<String> = slower
        .map(|((kind, factor), lost)| {
            format!("{kind}, {} times slower ({:.1} % of the time)", times(factor), 100.0 * lost)
        })
        .collect();
    (!slower.is_empty()).then(|| slower.join(", and "))
}

/// The limit of the tool's own time, in percent of all processors, by the option that the user knows: an
/// agent gives the tracer of a segment a part of the agent's limit.
fn own_limit(percent: f64, is_segment: bool) -> String {
    match is_segment {
        true => format!("{percent:.2} % that the agent's --own leaves to the tracer"),
        false => format!("{percent} % of --own"),
    }
}

/// How often.
fn times(n: u32) -> String {
    if n == 1 { "once".to_owned() } else { format!("{n} times") }
}

/// Where the addresses of uses come from; `hardware` samples accesses in place of the clock.
fn address_source(tally: &RecorderStats, hardware: Option<&str>, user_only: bool) -> String {
    let (stop, sampled) = match hardware {
        Some(name) => (format!("zero-skid stop after {name} samples"), format!("{name} address")),
        None => ("zero-skid stop".to_owned(), "sampled registers".to_owned()),
    };
    let source = match (tally.uses_held, tally.uses_not_held) {
        (0, 0) => return "none".to_owned(),
        (_, 0) => stop,
        (0, _) => sampled,
        _ => format!("{stop}, {sampled}"),
    };
    if user_only { source + ", touches by the kernel passed over" } else { source }
}

/// Notice of unseen allocations.
fn heap_notices(heap: &heap::Summary) -> Vec<String> {
    let mut notices = Vec::new();
    if let Some(recorded) = &heap.recorded {
        notices.extend(recorder_notices(recorded));
    } else if heap.probes == 0 {
        notices.push(
            "Heap blocks are not named by where they were allocated: no allocation function was found in the traced programs \
             (a stripped static program names none)."
                .to_owned(),
        );
    }
    if heap.pauses > 0 {
        notices.push(format!(
            "To keep the budget, allocations were followed in {:.1} % of the CPU time only: {} of about {} were recorded. --overhead \
             allows more.",
            heap.watched * 100.0,
            heap.seen,
            heap.made
        ));
    }
    if heap.lost > 0 {
        notices.push(format!("{} records of allocations found no room.", heap.lost));
    }
    notices.extend(
        heap.failures.iter().map(|why| format!("Allocations of a process were not followed: {why}.")),
    );
    notices
}

/// The notice for a probed program that ended by a trap: code with a breakpoint
/// ran unknown to the kernel, or a return came that the kernel had given up.
pub fn ended_by_a_trap(signal: i32) -> Option<String> {
    matches!(signal, libc::SIGTRAP | libc::SIGILL).then(|| {
        format!(
            "The command ended by {}, and the probes of --heap=probes are the likely cause: they put breakpoints and return addresses \
             into its allocation functions. --heap=preload or --heap=off traces it without.",
            launch::signal_name(signal)
        )
    })
}

/// Results of the preloaded recorder, and its refusals.
fn recorder_notices(recorded: &heap::recorder::Recorded) -> Vec<String> {
    let mut notices = Vec::new();
    if recorded.processes > 0 {
        notices.push(format!("Allocations were recorded by {RECORDER}; --heap=off does without."));
    } else if recorded.foreign.is_empty() {
        notices.push(
            "Heap blocks are not named by where they were allocated: the command did not load the recorder of allocations."
                .to_owned(),
        );
    }
    for name in &recorded.foreign {
        let whose = if name.is_empty() { "the program itself" } else { name };
        notices.push(format!(
            "Allocations of a process were not recorded, since it has an allocator of its own ({whose}); --heap=probes follows it."
        ));
    }
    let unrecorded = recorded.unrecorded;
    if recorded.processes > 0 && unrecorded > 0 {
        let (programs, were) = if unrecorded == 1 { ("program", "was") } else { ("programs", "were") };
        notices.push(format!(
            "Allocations of {unrecorded} {programs} that the command started {were} not recorded: started \
             by system, popen, execl, fexecve or a system call of its own, set-uid, linked statically or \
             not with glibc, or ended before the recorder was loaded."
        ));
    }
    if recorded.closed > 0 {
        notices.push(format!(
            "{} processes were recorded only until they gave up reading the time (seccomp, PR_SET_TSC).",
            recorded.closed
        ));
    }
    notices
}

/// Sources of the rates of windows, the most frequent first; `None` if no rate is known.
fn rate_sources(tally: &RecorderStats) -> Option<String> {
    let all: u64 = tally.windows.values().sum();
    let mut sources: Vec<_> = tally.rates.iter().collect();
    sources.sort_by(|a, b| b.1.cmp(a.1).then_with(|| a.0.cmp(b.0)));
    let parts: Vec<String> = sources
        .into_iter()
        .map(|(source, n)| format!("{source} {:.0} %", *n as f64 / all.max(1) as f64 * 100.0))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_by_the_option_of_who_typed_it() {
        assert_eq!(own_limit(0.05, false), "0.05 % of --own");
        assert_eq!(own_limit(0.2512, true), "0.25 % that the agent's --own leaves to the tracer");
    }

    #[test]
    fn children_of_before_are_named() {
        assert_eq!(not_followed(&[]), None);
        let one = not_followed(&[12]).unwrap();
        assert!(
            one.starts_with("A child process was") && one.contains("is not traced") && one.contains("-p 12)")
        );
        let many = not_followed(&[1, 2, 3, 4, 5, 6]).unwrap();
        assert!(many.starts_with("6 child processes") && many.contains("-p 1,2,3,4,5, …)"), "{many}");
    }

    #[test]
    fn instructions_that_cost_the_program_nothing_are_no_reason() {
        let prices = super::super::governor::UnitCosts {
            split_stores_ns: [600, 6000],
            switches_ns: [2000, 3000],
            ..super::super::calibrate::GUESS
        };
        assert_eq!(slower_at(&prices, [0.0; 3]), None);
        let slower = slower_at(&prices, [0.0, 0.2, 0.001]).unwrap();
        assert!(
            slower.starts_with("stores across") && slower.ends_with("10 times slower (20.0 % of the time)")
        );
        assert!(slower_at(&prices, [0.0, 0.2, 0.1]).unwrap().contains(", and switches between threads, 1.5"));
    }

    #[test]
    fn excluded_processes_are_counted_by_pattern() {
        let patterns = [("comm:a".to_owned(), 2), ("uid:0".to_owned(), 1), ("exe:b".to_owned(), 0)];
        let notice = "Excluded: 2 processes by comm:a, 1 process by uid:0, none by exe:b.";
        assert_eq!(excluded(&patterns).unwrap(), notice);
        assert_eq!(excluded(&[]), None);
    }

    #[test]
    fn who_is_left_out_is_counted_by_reason() {
        let left_out = BTreeMap::from([("it is process 1", 1), ("it is part of this tool", 2)]);
        let notice = not_traced(&left_out, false);
        assert!(notice.starts_with("Left out: 2 of this tool, 1 of process 1. Not traced: "), "{notice}");
        assert!(!not_traced(&BTreeMap::new(), false).contains("Left out"));
        assert!(!not_traced(&BTreeMap::new(), true).contains("process 1"));
    }

    #[test]
    fn the_source_of_addresses_names_what_chose_them() {
        let of = |uses_held, uses_not_held, hardware| {
            let tally = RecorderStats { uses_held, uses_not_held, ..RecorderStats::default() };
            address_source(&tally, hardware, false)
        };
        assert_eq!(of(0, 0, None), "none");
        assert_eq!(of(5, 0, None), "zero-skid stop");
        assert_eq!(of(5, 1, None), "zero-skid stop, sampled registers");
        assert_eq!(of(5, 0, Some("Intel PEBS")), "zero-skid stop after Intel PEBS samples");
        assert_eq!(of(0, 5, Some("AMD IBS")), "AMD IBS address");
        let tally = RecorderStats { uses_held: 5, ..RecorderStats::default() };
        assert_eq!(address_source(&tally, None, true), "zero-skid stop, touches by the kernel passed over");
    }
}
