//! The last lines of one screen: how sure, what is left out, notices, cost, and the next command.

use locality_units::print::{count, counted, duration};
use locality_units::wrap::wrap;

use super::{LABELLED, Line, Paint, Screen, names, numbers::Between, numbers::percent};
use crate::schema::{loops::KernelEntry, number::Number, overhead::Overhead, threads::Threads};

/// Half of the widest interval of a miss ratio, up to which it is well known, and known.
const GOOD: f64 = 0.05;
const FAIR: f64 = 0.15;
/// Samples from which on distances alone are well known, and known.
const MANY: u64 = 400;
const SOME: u64 = 100;
/// Longest segment of an agent.
const LONGEST_SEGMENT_S: f64 = 3600.0;
/// Beginning of the tracer's note on assumed costs.
const ESTIMATED_COST: &str = "The cost is an estimate: ";
/// Miss ratios are of little use for advice where loops of known speed have a smaller part of the time.
const MOST_OF_TIME: f64 = 0.5;
/// Less time in the kernel is not said.
const LITTLE: f64 = 0.02;
/// Places of entry into the kernel on the screen, and required samples of each.
const KERNEL_ENTRIES: usize = 3;
const KERNEL_SAMPLES: u64 = 5;
/// Characters of such a place.
const ENTRY_NAME: usize = 44;

impl Screen<'_> {
    pub(super) fn ending(&self) -> Vec<Line> {
        let parts = [
            ("How sure", self.how_sure(), Paint::Bold),
            ("Kernel", self.kernel(), Paint::Bold),
            ("Left out", self.left_out(), Paint::Warning),
        ];
        let mut lines = Vec::new();
        for (label, text, paint) in parts {
            lines.extend(text.into_iter().flat_map(|text| self.labelled(label, &text, paint)));
        }
        lines.extend(self.notices());
        let (cost, paint) = self.cost();
        lines.extend(cost.into_iter().flat_map(|text| self.labelled("Cost", &text, paint)));
        lines.extend(self.next());
        lines
    }

    fn how_sure(&self) -> Option<String> {
        let run = &self.report.run;
        let samples = run.samples?;
        let mut seen = vec![counted(samples, "sample")];
        seen.extend(run.watches.map(|n| counted(n, "watchpoint")));
        let trapped = self.report.ledger.as_ref().and_then(|ledger| ledger.watch.trapped);
        seen.extend(trapped.map(|n| format!("{} reused", count(n))));
        let mut text = seen.join(", ");
        if self.report.empty.is_some() {
            return Some(text + ".");
        }
        let widths = self.curve().iter().filter(|point| point.level.is_some()).filter_map(|point| {
            let [low, high] = point.ci95?;
            Some((high.finite()? - low.finite()?) / 2.0)
        });
        let widest = widths.reduce(f64::max);
        let grade = match widest {
            Some(half) if half <= GOOD => "GOOD",
            Some(half) if half <= FAIR => "FAIR",
            Some(_) => "WEAK",
            None if samples >= MANY => "GOOD",
            None if samples >= SOME => "FAIR",
            None => "WEAK",
        };
        text = match widest {
            Some(_) => format!("Miss ratios {grade}: {text}"),
            None => format!("{grade}: {text}"),
        };
        if let Some(half) = widest {
            text.push_str(&format!(", within ± {:.0} points", (half * 100.0).ceil()));
        }
        text.push('.');
        text.extend(self.loops_of_known_speed());
        let wall = run.wall_s.finite().filter(|seconds| *seconds >= 1.0);
        if let Some(wall) = wall.filter(|_| grade != "GOOD") {
            let longer = rounded(wall * 4.0);
            text.push_str(&match self.is_segment() {
                false => format!(" Four times as long halves the intervals (-d {longer:.0}"),
                true if longer <= LONGEST_SEGMENT_S => {
                    format!(" Four times as long halves the intervals (agent --window {longer:.0}s")
                }
                true => " Four segments merged have half the intervals (locality-bpf merge".to_owned(),
            });
            text.push_str(").");
        }
        let doubt = self.report.windows.as_ref().and_then(|windows| windows.accesses_per_ns_factor_of_doubt);
        if let Some(doubt) = doubt.and_then(Number::finite) {
            text.push_str(&format!(
                " Long distances and miss ratios may be off by {doubt:.1} times: the speed is modelled."
            ));
        }
        Some(text)
    }

    /// Whether the profile has the name of an agent's segment.
    fn is_segment(&self) -> bool {
        let name = self.options.file.as_deref().and_then(|file| file.rsplit('/').next());
        name.is_some_and(|name| name.starts_with("segment-") && name.ends_with(".locality"))
    }

    /// The part of the CPU time in loops of known speed, if that is small.
    fn loops_of_known_speed(&self) -> Option<String> {
        let loops = self.report.loops.as_ref()?;
        let known = loops.iter().filter(|of| of.cycles.is_some() || of.iterations.is_some());
        let share: f64 = known.filter_map(|of| of.share.value.finite()).sum();
        (share < MOST_OF_TIME)
            .then(|| format!(" Loops of known speed have {} of the CPU time.", percent(share)))
    }

    fn kernel(&self) -> Option<String> {
        let kernel = self.report.kernel_time.as_ref()?;
        let share = Between::estimate(&kernel.share).filter(|share| share.value >= LITTLE)?;
        let mut text = format!("{} of the CPU time passes in the kernel", share.share(self.is_narrow()));
        if let Some(faults) = &kernel.page_faults {
            let share = Between::estimate(&faults.share)
                .map_or("part of it".to_owned(), |share| percent(share.value));
            text.push_str(&format!(", {share} in {}", counted(faults.count, "page fault")));
        }
        let entries: Vec<String> =
            kernel.entries.iter().filter_map(kernel_entry).take(KERNEL_ENTRIES).collect();
        if !entries.is_empty() {
            text.push_str(&format!("; most of it by {}", entries.join(", ")));
        }
        text.push('.');
        Some(text)
    }

    fn left_out(&self) -> Option<String> {
        let report = self.report;
        let mut parts = Vec::new();
        if report.partial {
            parts.push("the profile is not complete".to_owned());
        }
        if let Some(Threads::Summary(threads)) = &report.threads
            && threads.not_held > 0
        {
            parts.push(format!(
                "{} of {} measured without stops",
                count(threads.not_held),
                counted(threads.seen, "thread")
            ));
        }
        if let Some(ledger) = &report.ledger {
            let sum = |of: &std::collections::BTreeMap<String, u64>| {
                of.values().fold(0, |sum: u64, n| sum.saturating_add(*n))
            };
            let unknown = Some(sum(&ledger.unreachable)).filter(|n| *n > 0);
            parts.extend(unknown.map(|n| format!("{} whose access is unknown", counted(n, "sample"))));
            let refused = ledger.watch.refused.filter(|n| *n > 0);
            parts.extend(refused.map(|n| format!("{} refused by the kernel", counted(n, "watchpoint"))));
        }
        if report.run.user_only == Some(true) {
            parts.push("touches by the kernel (--user-only)".to_owned());
        }
        let (first, rest) = parts.split_first()?;
        let mut letters = first.chars();
        let first: String = letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect();
        Some(format!("{}.", [first].into_iter().chain(rest.iter().cloned()).collect::<Vec<_>>().join("; ")))
    }

    /// The most important ones, as much of each as there is room for.
    fn notices(&self) -> Vec<Line> {
        let (most, height) = (self.rows.notices, self.rows.of_notice);
        // What a trace without samples cost is of no interest here.
        let is_of_cost = |notice: &str| self.report.empty.is_some() && notice.starts_with(ESTIMATED_COST);
        let notices: Vec<&String> = self.report.notices.iter().filter(|notice| !is_of_cost(notice)).collect();
        let columns = self.columns - LABELLED;
        let more = notices.len().saturating_sub(most);
        let mut lines = Vec::new();
        for (index, notice) in notices.iter().take(most).enumerate() {
            let wrapped = wrap(notice, columns);
            let is_cut = wrapped.len() > height;
            for (row, text) in wrapped.into_iter().take(height).enumerate() {
                let text = match is_cut && row + 1 == height {
                    true => names::cut(&format!("{text} …"), columns),
                    false => text,
                };
                let label = if index == 0 && row == 0 { "Note" } else { "" };
                lines.push(Line::painted(Paint::Warning, format!("{label:<LABELLED$}{text}")));
            }
        }
        if more > 0 {
            let noun = if more == 1 { "note" } else { "notes" };
            lines.push(Line::painted(Paint::Warning, format!("{:LABELLED$}{more} more {noun}: --full", "")));
        }
        lines
    }

    fn cost(&self) -> (Option<String>, Paint) {
        let Some(overhead) = &self.report.overhead else { return (None, Paint::Bold) };
        let mut paint = Paint::Bold;
        let percent =
            |of: Number| of.finite().map_or("unknown".to_owned(), |percent| format!("{percent:.2} %"));
        let budget =
            overhead.budget_percent.finite().map_or("none".to_owned(), |budget| format!("{budget} %"));
        let mut text = format!(
            "{} of the program's CPU time (budget {budget}{})",
            percent(overhead.measured_percent),
            over_budget(overhead).unwrap_or_default()
        );
        if overhead.stops > 0 {
            text.push_str(&format!(
                ", longest of {} {}",
                counted(overhead.stops, "stop"),
                duration(overhead.longest_stop_ns as f64)
            ));
        }
        if let Some(ledger) = &self.report.ledger {
            let lost = ledger.lost.values().fold(0, |sum: u64, n| sum.saturating_add(*n));
            match ledger.balanced {
                Some(true) if lost == 0 => text.push_str("; no samples lost"),
                Some(true) => {
                    paint = Paint::Warning;
                    text.push_str(&format!("; {} lost", counted(lost, "sample")));
                }
                Some(false) => {
                    paint = Paint::Warning;
                    text.push_str("; the ledger does NOT balance (--trust)");
                }
                None => text.push_str("; losses are not known"),
            }
        }
        text.push('.');
        // Relative to programs that hardly ran, a share of their time carries no information.
        if let Some(own) = overhead.by_cause.controller.finite().filter(|own| (0.1..=100.0).contains(own)) {
            text.push_str(&format!(
                " The tool's own CPU time is {own:.1} % of the program's; --own limits it."
            ));
        }
        (Some(text), paint)
    }

    fn next(&self) -> Vec<Line> {
        let Some(file) = &self.options.file else { return Vec::new() };
        let (part, others) = match self.report.empty {
            Some(_) => ("--trust", "also --full"),
            None => ("--pairs", "also --data, --code, --trust, --full"),
        };
        let command = format!("{:<LABELLED$}locality-bpf report {part} {file}", "Next");
        let label = "Next".len();
        if command.chars().count() + 3 + others.len() <= self.columns {
            return vec![Line::starting(Paint::Bold, label, format!("{command} · {others}"))];
        }
        vec![
            Line::starting(Paint::Bold, label, command).uncut(),
            Line::plain(format!("{:<LABELLED$}{others}", "")),
        ]
    }
}

/// "; stops cost 1.70 %": the largest cost, if all together exceed the budget by a tenth.
fn over_budget(overhead: &Overhead) -> Option<String> {
    const OVER: f64 = 1.1;
    let (measured, budget) = (overhead.measured_percent.finite()?, overhead.budget_percent.finite()?);
    if measured <= OVER * budget {
        return None;
    }
    let causes = &overhead.by_cause;
    let parts = [
        ("stops", Some(causes.stop)),
        ("traps", Some(causes.trap)),
        ("BPF programs", Some(causes.bpf)),
        ("allocation records", causes.heap),
        ("armed registers", causes.strings),
    ];
    let known = parts.into_iter().filter_map(|(name, percent)| Some((name, percent?.finite()?)));
    let (name, most) = known.max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(format!("; {name} cost {most:.2} %"))
}

/// Seconds for a command line: whole ones, and round ones where there are many.
fn rounded(seconds: f64) -> f64 {
    let step = match seconds {
        _ if seconds < 20.0 => 1.0,
        _ if seconds < 100.0 => 5.0,
        _ => 10.0,
    };
    (seconds / step).round() * step
}

/// "page faults at lulesh.cc:1026 in CalcHourglassControlForElems (9 %)"; `None` with few samples.
fn kernel_entry(entry: &KernelEntry) -> Option<String> {
    let share = Between::estimate(&entry.share).filter(|share| share.value >= LITTLE)?;
    if entry.share.n < KERNEL_SAMPLES {
        return None;
    }
    let what =
        if entry.call == "page fault" { "page faults".to_owned() } else { format!("`{}`", entry.call) };
    let place = names::place(&entry.place, ENTRY_NAME);
    Some(format!("{what} at {place} ({})", percent(share.value)))
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn seconds_of_a_hint_are_round() {
        assert_eq!([12.08, 40.3, 60.6, 144.8].map(rounded), [12.0, 40.0, 60.0, 140.0]);
    }
}
