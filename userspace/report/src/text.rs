//! The report for a terminal: one screen by default ([`screen`]), and the whole text with its parts, the
//! verdict first, then what it rests on.
//!
//! The whole text has at most [`WIDTH`] columns where names allow it. Colour only on request
//! ([`Style`]); the caller knows about terminals and `NO_COLOR`.

use std::collections::BTreeMap;

use std::collections::BTreeSet;

use locality_estimate::access_rates::Unit;
use locality_estimate::calling_context::{PlaceId, base_name};
use locality_findings::cpu_time_histogram::FAR_NS;
use locality_findings::execution::Machine;
use locality_findings::pairs::Pair;
use locality_findings::{Findings, NEAR_ACCESSES, causes, cost_percent, why_empty};
use locality_model::{ObjectKind, Outcome, Profile};
use locality_units::print::{accesses, bytes, count, counted, duration, percent, shorten, timestamp};
use locality_units::wrap::wrap;

use super::estimates::share;
use super::names::place_name;
use super::objects_text::Text;

/// Share of the targets' CPU time up to which ours is printed as such.
const MOST_PERCENT: f64 = 400.0;
use super::{cache_use, json::verdict, misses, schema, tree};
use screen::numbers::Between;
use wording::{clock, ended_by, hot_row, reuses_within, worded};

mod loops_text;
pub mod screen;
mod wording;
pub use screen::tables::bound_by;

/// Columns of the report.
const WIDTH: usize = 100;
/// Rows of a table.
pub const TOP: usize = 10;
/// Objects, and uses without a reuse, in the whole report; `locality-bpf objects` has more objects.
const FEW: usize = 5;
/// Windows from which a parallelism is printed.
const FEWEST_WINDOWS: u64 = 5;
/// Lines without a row.
const SMALL_SHARE: f64 = 0.005;
/// An interval of a share at this width carries no information.
const WIDE: f64 = 0.5;

/// Colours or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// Text only.
    #[default]
    Plain,
    /// ANSI escape sequences.
    Ansi,
}

/// What the reader asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Rows of each table that are shown; `None` for each table's own number, [`TOP`] or fewer.
    pub top: Option<usize>,
    /// Colours or none.
    pub style: Style,
}

impl Default for Options {
    fn default() -> Self {
        Self { top: None, style: Style::Plain }
    }
}

impl Options {
    /// Default number of rows of a table.
    fn rows(&self, of_its_own: usize) -> usize {
        self.top.unwrap_or(of_its_own)
    }

    /// The least share of a row in a table that leaves smaller ones out unless rows are asked for.
    fn least(&self, of_its_own: f64) -> f64 {
        if self.top.is_some() { f64::MIN_POSITIVE } else { of_its_own }
    }
}

/// A part of the text report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// One screen.
    #[default]
    Screen,
    /// Everything.
    Full,
    /// Reuse pairs with their call paths.
    Pairs,
    /// Data objects.
    Data,
    /// Loops, hot code and cache use.
    Code,
    /// How sure, how measured, and at what cost.
    Trust,
}

/// Prints a part of a report other than the screen ([`screen::print`]); `report` belongs to the
/// same findings.
pub fn part(
    profile: &Profile,
    findings: &Findings,
    report: &schema::Report,
    part: Part,
    options: Options,
) -> String {
    let loops = report.loops.as_deref().unwrap_or_default();
    let branches = report.branches.as_deref().unwrap_or_default();
    if part == Part::Full {
        return print_with(profile, findings, (loops, branches), options);
    }
    let mut page = Page { profile, findings, options, text: String::new() };
    page.headline();
    if let Some(why) = why_empty(profile) {
        page.line("");
        page.paragraph(&why);
    }
    match part {
        Part::Screen | Part::Full => {}
        Part::Pairs => {
            page.pairs();
            page.unseen();
        }
        Part::Data => page.all_objects(),
        Part::Code => {
            if report.loops.is_none() {
                page.line("");
                page.paragraph(
                    "Loops are not known: this profile is of an earlier version, or no window was taken.",
                );
            }
            page.loops(loops);
            page.branches(branches);
            page.parallelism();
            page.hot();
            page.cache_use();
        }
        Part::Trust => {
            page.facts();
            page.notices();
            page.how_to_read();
        }
    }
    page.text
}

/// Prints the whole report.
pub fn print(profile: &Profile, findings: &Findings, options: Options) -> String {
    print_with(profile, findings, (&[], &[]), options)
}

fn print_with(
    profile: &Profile,
    findings: &Findings,
    (loops, branches): (&[schema::loops::Loop], &[schema::parallelism::Branch]),
    options: Options,
) -> String {
    let mut page = Page { profile, findings, options, text: String::new() };
    page.headline();
    page.verdict();
    page.objects();
    page.facts();
    page.notices();
    page.misses();
    page.cache_use();
    page.pairs();
    page.unseen();
    page.loops(loops);
    page.branches(branches);
    page.parallelism();
    page.hot();
    page.how_to_read();
    page.text
}

/// Prints the page of `locality-bpf objects`: data objects with their lines, fields, layout and conflicts.
pub fn objects(profile: &Profile, findings: &Findings, options: Options) -> String {
    let mut page = Page { profile, findings, options, text: String::new() };
    page.headline();
    page.all_objects();
    page.text
}

struct Page<'a> {
    profile: &'a Profile,
    findings: &'a Findings,
    options: Options,
    text: String,
}

impl<'a> Page<'a> {
    fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn paint(&self, code: &str, text: &str) -> String {
        match self.options.style {
            Style::Plain => text.to_owned(),
            Style::Ansi => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }

    fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    fn warning(&self, text: &str) -> String {
        self.paint("33", text)
    }

    fn heading(&mut self, title: &str, remark: &str) {
        let title = self.bold(title);
        self.line("");
        self.line(&format!("{title}  {remark}"));
    }

    /// A label and text, continued below the text.
    fn labelled(&mut self, label: &str, text: &str) {
        const INDENT: usize = 10;
        for (index, line) in wrap(text, WIDTH - INDENT).into_iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            self.line(&format!("{label:<INDENT$}{line}"));
        }
    }

    fn paragraph(&mut self, text: &str) {
        for line in wrap(text, WIDTH) {
            self.line(&line);
        }
    }

    fn headline(&mut self) {
        let run = &self.profile.run;
        let pids: Vec<String> = run.pids.iter().take(8).map(u32::to_string).collect();
        let more = if run.pids.len() > 8 { ", …" } else { "" };
        let noun = if run.pids.len() == 1 { "pid" } else { "pids" };
        let pids =
            if pids.is_empty() { String::new() } else { format!(" ({noun} {}{more})", pids.join(", ")) };
        let heap = run.sources.heap.as_ref();
        let heap = heap.map_or(String::new(), |heap| format!(" Allocations were recorded by {heap}."));
        let text = format!(
            "{}{pids}: traced for {}, {} of CPU time in {}; {}, {}, {} seen.{heap}",
            shorten(&run.command, 60),
            duration(run.wall_ns as f64),
            duration(run.cpu_ns as f64),
            counted(locality_model::merge::threads_and_processes(&self.profile.threads).0, "thread"),
            counted(self.profile.samples.len() as u64, "sample"),
            self.watchpoints(),
            counted(self.findings.histogram.n, "reuse"),
        );
        for line in wrap(&text, WIDTH) {
            let line = self.bold(&line);
            self.line(&line);
        }
    }

    /// "59 watchpoints for 31 uses": other words of a line are watched for the same use.
    fn watchpoints(&self) -> String {
        let watches = &self.profile.watches;
        let of_uses: BTreeSet<u32> = watches.iter().map(|watch| watch.sample.0).collect();
        let all = counted(watches.len() as u64, "watchpoint");
        match of_uses.len() {
            uses if uses == watches.len() => all,
            uses => format!("{all} for {}", counted(uses as u64, "use")),
        }
    }

    fn verdict(&mut self) {
        if let Some(why) = why_empty(self.profile) {
            self.line("");
            for line in wrap(&why, WIDTH) {
                let line = self.warning(&line);
                self.line(&line);
            }
            return;
        }
        if let Some(words) = self.findings.windowed.as_ref().and_then(|windowed| windowed.whole.first()) {
            let never = match words.cold.high - words.cold.low {
                ..WIDE => format!("{} of all uses are never reused", share(&words.cold)),
                _ => "the share never reused is unknown".to_owned(),
            };
            let doubt = self.findings.windowed.as_ref().and_then(|windowed| windowed.doubt);
            self.paragraph(&format!(
                "{}; {never}.{}",
                reuses_within(" of words", &self.between(words.median.value), &self.between(words.p90.value)),
                doubt.map_or(String::new(), |doubt| format!(
                    " Far distances may be off by {doubt:.1} times (Rate below)."
                )),
            ));
        } else {
            self.times();
        }
        let unheld = self.profile.samples.iter().filter(|sample| !sample.held).count();
        if unheld * 2 > self.profile.samples.len() {
            self.paragraph(&format!(
                "Most of the program is not in these figures: {unheld} of {} samples were taken without a stop (Threads and Note below \
                 tell why).",
                self.profile.samples.len()
            ));
        }
        if let Some((_, pair)) = self.far_pairs().first() {
            self.paragraph(&format!(
                "The heaviest far pair is {} → {}{}: {} of all reuses, {} between use and reuse.",
                self.place(pair.use_place),
                self.place(pair.reuse_place),
                self.object_of(pair).map_or(String::new(), |name| format!(", on `{name}`")),
                percent(pair.far_weight.value),
                self.between(pair.far_median.map_or(pair.median_ns.value, |median| median.value)),
            ));
        }
    }

    /// The name of a pair's data object.
    fn object_of(&self, pair: &Pair) -> Option<&str> {
        let object = self.profile.objects.get(pair.object?.0.0 as usize)?;
        (object.kind != ObjectKind::Unknown).then_some(&object.name)
    }

    fn times(&mut self) {
        let histogram = &self.findings.histogram;
        let within = |ns: f64| {
            if ns < histogram.resolution_ns as f64 {
                format!("less than {}", duration(histogram.resolution_ns as f64))
            } else {
                duration(ns)
            }
        };
        self.paragraph(&format!(
            "{}; {} take {} or longer.",
            reuses_within(
                "",
                &format!("{} of CPU time", within(histogram.median_ns.value)),
                &format!("{} of CPU time", within(histogram.p90_ns.value)),
            ),
            share(&histogram.far),
            duration(FAR_NS as f64),
        ));
    }

    /// The far pairs with their numbers, the most far reuses first.
    fn far_pairs(&self) -> Vec<(usize, &'a Pair)> {
        let mut far: Vec<_> = self.findings.pairs.iter().enumerate().filter(|(_, pair)| pair.far).collect();
        far.sort_by(|(_, a), (_, b)| b.far_weight.value.total_cmp(&a.far_weight.value));
        far
    }

    /// A time between use and reuse.
    fn between(&self, time: f64) -> String {
        match self.findings.unit {
            Unit::Accesses => accesses(time),
            Unit::CpuNs => duration(time),
        }
    }

    fn misses(&mut self) {
        let Some(windowed) = &self.findings.windowed else { return };
        let table = misses::table(windowed);
        if !table.is_empty() {
            self.heading("Miss ratios", "(of touches, in a fully associative cache of that size)");
            table.iter().for_each(|line| self.line(line));
        }
        let bins = misses::histogram(windowed);
        if !bins.is_empty() {
            let unit = if self.findings.unit == Unit::Accesses { "accesses" } else { "CPU time" };
            self.heading("Time distances of words", &format!("({unit} from use to reuse; share of reuses)"));
            bins.iter().for_each(|line| self.line(line));
        }
    }

    fn cache_use(&mut self) {
        let (profile, contexts) = (self.profile, &self.findings.contexts);
        let Some(cache_use) = &self.findings.cache_use else { return };
        let text = cache_use::Report { profile, contexts, cache_use }.text(self.options.top);
        self.heading(
            "Cache use",
            "(lines loaded into fully associative caches, and what of them is used until they are evicted)",
        );
        for piece in text {
            match piece {
                cache_use::Text::Row(row) => self.line(&row),
                cache_use::Text::Sentence(sentence) => {
                    wrap(&sentence, WIDTH - 2).iter().for_each(|line| self.line(&format!("  {line}")));
                }
            }
        }
    }

    fn facts(&mut self) {
        self.line("");
        let profile = self.profile;
        let run = &profile.run;
        let ended = match run.ended_by.as_str() {
            "" => String::new(),
            // "the command ended", "the last traced process ended".
            event if event.ends_with(" ended") => format!(" until {event}"),
            causes => format!(", ended {}", ended_by(causes)),
        };
        self.labelled(
            "Measured",
            &format!("from {}{ended}; {}", timestamp(run.started_unix_ns), self.fates()),
        );

        let overhead = &profile.overhead;
        let of_base = |ns: u64| match cost_percent(profile, ns) {
            Some(percent) => format!("{percent:.2} %"),
            None => duration(ns as f64),
        };
        let cost = format!(
            "{:.2} % of the program's CPU time (budget {:.2} %): stops {}, traps {}, BPF {}{}{}; the tool's own CPU time is {}",
            overhead.measured_percent,
            overhead.budget_percent,
            of_base(overhead.stop_ns),
            of_base(overhead.trap_ns),
            of_base(overhead.bpf_ns),
            overhead
                .heap_ns
                .map_or(String::new(), |ns| format!(", recording of allocations {}", of_base(ns))),
            overhead.string_ns.map_or(String::new(), |ns| format!(", armed registers {}", of_base(ns))),
            // Relative to targets that hardly ran the share would be thousands of percent.
            match cost_percent(profile, overhead.controller_ns) {
                Some(percent) if percent <= MOST_PERCENT => format!("{percent:.2} %"),
                _ => duration(overhead.controller_ns as f64),
            },
        );
        self.labelled("Cost", &cost);
        if overhead.stops > 0 {
            let stops = format!(
                "longest of {}: {} (target {})",
                counted(overhead.stops, "stop"),
                duration(overhead.longest_stop_ns as f64),
                duration(overhead.max_stop_ns as f64)
            );
            self.labelled("", &stops);
        }
        self.ledger();
        let source = [run.sources.address.as_str(), &clock(&run.sources.clock)].join(", ");
        let policy = if run.policy.is_empty() { String::new() } else { format!(", policy {}", run.policy) };
        self.labelled("Source", &format!("{source}{policy}"));
        if let Some(windowed) = &self.findings.windowed {
            for (label, text) in misses::sources(self.profile, windowed) {
                self.labelled(label, &text);
            }
        }
        let caches = run.host.caches.iter().map(|cache| format!("L{} {}", cache.level, bytes(cache.bytes)));
        let caches: Vec<String> = caches.collect();
        let (cpu, kernel) = (&run.host.cpu, &run.host.kernel);
        let cpus = counted(u64::from(run.host.cpus), "CPU");
        let machine = format!("{cpu}, {cpus}, Linux {kernel}; {}", caches.join(", "));
        self.labelled("Machine", machine.trim_end_matches([';', ' ']));
        self.not_held();
    }

    fn fates(&self) -> String {
        let watches = &self.profile.watches;
        type Is = fn(&Outcome) -> bool;
        let kinds: [(Is, &str); 5] = [
            (|outcome| matches!(outcome, Outcome::Reused { .. }), "reused"),
            (|outcome| *outcome == Outcome::Replaced, "replaced by newer samples"),
            (|outcome| *outcome == Outcome::StillArmed, "still armed at the end"),
            (|outcome| *outcome == Outcome::Refused, "refused by the kernel"),
            (|outcome| *outcome == Outcome::Gone, "open at process exit"),
        ];
        let counts =
            kinds.iter().map(|(is, what)| (watches.iter().filter(|watch| is(&watch.outcome)).count(), what));
        let parts = counts.filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", count(n as u64)));
        let colon = if watches.is_empty() { "" } else { ": " };
        let parts: Vec<String> = parts.collect();
        format!("{}{colon}{}", counted(watches.len() as u64, "watchpoint"), parts.join(", "))
    }

    fn ledger(&mut self) {
        let Some(ledger) = self.profile.known_ledger() else {
            let text = "not known: the trace was cut short before what was seen and lost was written";
            self.labelled("Ledger", text);
            return;
        };
        let lost = ledger.lost_total();
        match ledger.imbalance() {
            None => {
                let text = format!(
                    "balanced: {} seen = {} filtered + {} recorded + {} lost",
                    counted(ledger.seen, "event"),
                    count(ledger.filtered),
                    count(ledger.submitted),
                    count(lost)
                );
                self.labelled("Ledger", &text);
            }
            Some(equation) => {
                let text = self.warning(&format!("does NOT balance: {equation}"));
                self.line(&format!("{:<10}{text}", "Ledger"));
            }
        }
        if lost > 0 {
            self.labelled("", &format!("lost: {}", causes(&ledger.lost)));
        }
        let unreachable = causes(&worded(&ledger.unreachable));
        if !unreachable.is_empty() {
            self.labelled("", &format!("samples whose access is unknown: {unreachable}"));
        }
        // The row of windows has the causes of their ends.
        let has_windows_row = self.findings.windowed.is_some();
        let mut stops = worded(&ledger.stops);
        stops.retain(|(name, _)| !(has_windows_row && name.starts_with("window ended: ")));
        let stops = causes(&stops);
        if !stops.is_empty() {
            self.labelled("", &format!("stops: {stops}"));
        }
    }

    fn not_held(&mut self) {
        let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
        for reason in self.profile.threads.iter().filter_map(|thread| thread.not_held.as_deref()) {
            *reasons.entry(reason).or_default() += 1;
        }
        for (reason, n) in reasons {
            let text = format!("{} measured without stops: {reason}", counted(n, "thread"));
            self.labelled("Threads", &text);
        }
    }

    fn notices(&mut self) {
        let mut notices = self.profile.notices.clone();
        if self.findings.unusable > 0 {
            let n = counted(self.findings.unusable, "watchpoint");
            notices
                .push(format!("{n} left out: the profile gives them impossible probabilities or no stack."));
        }
        for notice in notices {
            for (index, line) in wrap(&notice, WIDTH - 10).into_iter().enumerate() {
                let label = if index == 0 { "Note" } else { "" };
                let line = self.warning(&line);
                self.line(&format!("{label:<10}{line}"));
            }
        }
    }

    fn pairs(&mut self) {
        let pairs = &self.findings.pairs;
        if pairs.is_empty() {
            return;
        }
        let top = self.options.rows(TOP);
        let unit = if self.findings.unit == Unit::Accesses {
            "time between in accesses"
        } else {
            "time between is CPU time"
        };
        self.heading("Reuse pairs by weight", &format!("(share of all reuses; {unit}, median)"));
        for (index, pair) in pairs.iter().enumerate().take(top) {
            self.pair(index, pair, true);
        }
        self.rest(
            pairs.len().saturating_sub(top),
            pairs.iter().skip(top).map(|pair| pair.weight.value).sum(),
        );

        let far = self.far_pairs();
        // A second list is omitted if it would repeat the far pairs just shown.
        if far.is_empty() || far.len() == pairs.len().min(top) && far.iter().all(|(index, _)| *index < top) {
            return;
        }
        let remark = format!(
            "(by reuses with {} or more between; same numbers as above)",
            self.between(self.findings.far_from)
        );
        self.heading("Far reuse pairs", &remark);
        for &(index, pair) in far.iter().take(top) {
            self.pair(index, pair, index >= top);
        }
        let rest = far.iter().skip(top).map(|(_, pair)| pair.weight.value).sum();
        self.rest(far.len().saturating_sub(top), rest);
    }

    fn rest(&mut self, n: usize, weight: f64) {
        if n > 0 {
            self.line(&format!("     … {}: {}", counted(n as u64, "more pair"), percent(weight)));
        }
    }

    fn pair(&mut self, index: usize, pair: &Pair, with_paths: bool) {
        let resolution_ns = self.profile.run.distance_resolution_ns;
        let (median, p90) = (self.between(pair.median_ns.value), self.between(pair.p90_ns.value));
        let resolution = duration(resolution_ns as f64);
        let far_share = pair.far_weight.value / pair.weight.value.max(f64::MIN_POSITIVE);
        let far = match pair.far {
            true if pair.median_ns.value >= self.findings.far_from => ": far".to_owned(),
            true => format!(": {} far", percent(far_share.min(1.0))),
            false => String::new(),
        };
        let between = if pair.near && self.findings.unit == Unit::Accesses {
            format!("{median} between: near (cache-resident)")
        } else if pair.near {
            format!("under {resolution} between: near (cache-resident)")
        } else if pair.near_median {
            let half = if self.findings.unit == Unit::Accesses { median } else { resolution };
            format!("mixed: half within {half}, 10 % beyond {p90}{far}")
        } else {
            format!("{median} between (90 % within {p90}){far}")
        };
        let mut remarks = vec![between];
        if pair.kernel.value >= SMALL_SHARE {
            remarks.push(format!("kernel {:.0} %", pair.kernel.value * 100.0));
        }
        if pair.cross_thread.value >= SMALL_SHARE {
            remarks.push(format!("across threads {:.0} %", pair.cross_thread.value * 100.0));
        }
        remarks.extend(self.object_of(pair).map(|name| format!("on `{name}`")));
        let number = format!("{}.", index + 1);
        let weight = format!("{:<15}", share(&pair.weight));
        let weight = if pair.far { self.paint("1;31", &weight) } else { self.bold(&weight) };
        self.line(&format!("{number:>4} {weight}  n {:<6} {}", pair.weight.n, remarks.join(", ")));
        let (used, reused) = (self.place(pair.use_place), self.place(pair.reuse_place));
        let ends = format!("     {used} → {reused}");
        if ends.chars().count() <= WIDTH {
            self.line(&self.bold(&ends));
        } else {
            self.line(&self.bold(&format!("     {used}")));
            self.line(&self.bold(&format!("       → {reused}")));
        }
        if !with_paths {
            return;
        }
        let Some(heaviest) = pair.contexts.first() else { return };
        if pair.contexts.len() > 1 {
            let part = heaviest.weight.value / pair.weight.value.max(f64::MIN_POSITIVE);
            let contexts = format!("{} pairs of call paths", count(pair.contexts.len() as u64));
            self.line(&format!("     heaviest of {contexts} ({:.0} % of this pair):", part * 100.0));
        }
        for line in tree::lines(self.profile, self.findings, heaviest, WIDTH) {
            self.line(&line);
        }
    }

    fn place(&self, id: PlaceId) -> String {
        place_name(self.profile, &self.findings.contexts, id)
    }

    /// Data objects: sentences on the heaviest, and a short table.
    fn objects(&mut self) {
        let Some(text) = self.data() else { return };
        let (sentences, (title, remark)) = (text.sentences(), text.heading());
        let rows = text.table(self.options.rows(FEW), self.options.top, false);
        let remarks = text.remarks();
        self.heading(title, &remark);
        sentences.iter().for_each(|sentence| self.paragraph(sentence));
        rows.iter().for_each(|line| self.line(line));
        remarks.iter().for_each(|remark| self.paragraph(remark));
    }

    /// Parallelism of windows.
    fn parallelism(&mut self) {
        let Some(found) = &self.findings.execution else { return };
        let enough = found.machines.iter().filter(|machine| machine.ilp.n >= FEWEST_WINDOWS);
        let size = |machine: &Machine| {
            let ilp =
                Between { value: machine.ilp.value, interval: Some((machine.ilp.low, machine.ilp.high)) };
            format!("{} with {} in flight", ilp.factor(false), machine.in_flight)
        };
        let sizes: Vec<String> = enough.map(size).collect();
        if sizes.is_empty() {
            return;
        }
        let windows = count(found.machines.iter().map(|machine| machine.ilp.n).max().unwrap_or(0));
        self.heading("Parallelism", "(instructions a cycle, limited by dependences of values alone)");
        self.paragraph(&format!("{}; {windows} windows.", sizes.join(", ")));
    }

    fn data(&self) -> Option<Text<'_>> {
        let objects = self.findings.objects.as_ref()?;
        Some(Text { profile: self.profile, contexts: &self.findings.contexts, objects })
    }

    /// Data objects with all details.
    fn all_objects(&mut self) {
        let Some(text) = self.data() else { return };
        let (sentences, (title, remark)) = (text.sentences(), text.heading());
        let rows = text.table(self.options.rows(TOP), self.options.top, true);
        let (conflicts, remarks) = (text.conflicts(self.options.rows(TOP)), text.remarks());
        self.line("");
        sentences.iter().for_each(|sentence| self.paragraph(sentence));
        self.heading(title, &remark);
        rows.iter().for_each(|line| self.line(line));
        if !conflicts.is_empty() {
            self.heading("Objects that evict each other", "(share of misses)");
            conflicts.iter().for_each(|line| self.line(line));
        }
        if !remarks.is_empty() {
            self.line("");
        }
        remarks.iter().for_each(|remark| self.paragraph(remark));
    }

    fn unseen(&mut self) {
        let unseen = &self.findings.unseen;
        let least = self.options.least(2.0 * SMALL_SHARE);
        let worth = |share: f64| share >= least;
        if unseen.overall.n == 0 || !worth(unseen.overall.value) {
            return;
        }
        let remark = format!("({} of all uses: dead data, or reused later)", share(&unseen.overall));
        self.heading("Uses without a reuse while watched", &remark);
        self.line("     of all uses      of this line's    n      use");
        for line in unseen.lines.iter().filter(|line| worth(line.weight.value)).take(self.options.rows(FEW)) {
            let row = format!(
                "     {:<16} {:<17} {:<6} {}",
                share(&line.weight),
                share(&line.not_reused),
                line.not_reused.n,
                self.place(line.place)
            );
            self.line(&row);
        }
    }

    fn hot(&mut self) {
        let hot = &self.findings.hot;
        if hot.functions.is_empty() {
            return;
        }
        let columns = "     share            n       loads  stores";
        let (top, least) = (self.options.rows(TOP), self.options.least(SMALL_SHARE));
        self.heading("Hot accesses by function", "(share of sampled CPU time)");
        self.line(&format!("{columns}  function"));
        for row in hot.functions.iter().take(top).filter(|row| row.share.value >= least) {
            let module = row
                .what
                .module
                .as_deref()
                .map(|path| base_name(path).trim_matches(['[', ']']))
                .filter(|module| !row.what.name.starts_with(&format!("{module}+")))
                .map(|module| format!("[{module}]"));
            let what = format!("{} {}", shorten(&row.what.name, 40), module.unwrap_or_default());
            self.line(&hot_row(&row.share, row.loads, row.stores, &what));
        }
        // Without lines the table would repeat the functions.
        let has_line = |place: PlaceId| {
            let frame = self.findings.contexts.place(place).frame;
            frame
                .and_then(|frame| self.profile.frames.get(frame.0 as usize))
                .is_some_and(|frame| frame.line.is_some())
        };
        if !hot.lines.iter().take(top).any(|row| has_line(row.what)) {
            return;
        }
        self.heading("Hot accesses by source line", "");
        self.line(&format!("{columns}  line"));
        for row in hot.lines.iter().take(top).filter(|row| row.share.value >= least) {
            self.line(&hot_row(&row.share, row.loads, row.stores, &self.place(row.what)));
        }
    }

    fn how_to_read(&mut self) {
        self.heading("How to read this", "");
        let (near, unit) = match self.findings.unit {
            Unit::Accesses => (accesses(NEAR_ACCESSES as f64), "counted in memory accesses of the process"),
            Unit::CpuNs => {
                (duration(self.profile.run.distance_resolution_ns as f64), "CPU time of the process")
            }
        };
        let by = if self.profile.run.user_only {
            "thread; what system calls touch was passed over"
        } else {
            "thread or by the kernel"
        };
        self.paragraph(&format!(
            "A use is a sampled memory access; its reuse is the next access to the same location (8 bytes or less), by any \
             {by}. Shares are estimates with their 95 % interval in brackets, unless the interval rounds to the share; n is what was seen. Time between use and \
             reuse is {unit}. Near pairs (nine of ten reuses under {near}) need no change; the far reuses of far and mixed ones are \
             where bringing use and reuse closer together (fusing loops, blocking, reordering) saves cache misses. The clock finds a program after \
             a slow access, not at it."
        ));
        if self.findings.reuse(64).is_some_and(|lines| !lines.curve.is_empty()) {
            self.paragraph(&verdict::rule());
        }
    }
}

#[cfg(test)]
mod tests;
