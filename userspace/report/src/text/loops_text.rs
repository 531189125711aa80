//! The table of loops: time, limit, and the accesses of the instructions.

use locality_units::print::{count, percent};

use super::WIDTH;
use super::screen::{
    names::{self, name},
    numbers::{Between, short},
    tables::{bound_by, few_or_range, trips},
};
use crate::schema::{
    loops::{Chain, ChainStep, Loop, LoopAccess},
    parallelism::Branch,
};

/// Loops, branches, and accesses of a loop, unless rows are asked for.
const LOOPS: usize = 10;
const BRANCHES: usize = 5;
const ACCESSES: usize = 4;
/// A loop with less of the CPU time is left out.
const SMALL: f64 = 0.005;
/// A share of steps from which on the stride is said without its share.
const NEARLY_ALL: f64 = 0.95;

impl super::Page<'_> {
    /// Loops with their accesses.
    pub(super) fn loops(&mut self, loops: &[Loop]) {
        self.explained(
            ("Loops by CPU time", "(cycles of an iteration; core: if all lines were in the first cache)"),
            &table(loops, self.options.top, WIDTH),
            "Strides are bytes from one execution to the next, outer ones from one run of the loop to the \
             next. Chased: the address was loaded by the same instruction; indexed: by another load of the \
             loop. New lines are lines of 64 bytes that a window shows for the first time.",
        );
    }

    /// Branches of loops that may be mispredicted often.
    pub(super) fn branches(&mut self, branches: &[Branch]) {
        self.explained(
            ("Branches that may be mispredicted often", "(in the code of loops; share of executions)"),
            &branch_rows(branches, self.options.top, WIDTH),
            "At most: by a predictor that sees windows alone; a processor's sees all of the program and \
             misses fewer. Entropy: bits of information in an outcome if only the share taken is known.",
        );
    }

    /// A table with its heading, and the meaning of its words below; nothing without rows.
    fn explained(&mut self, (title, remark): (&str, &str), rows: &[String], words: &str) {
        if !rows.is_empty() {
            self.heading(title, remark);
            rows.iter().for_each(|line| self.line(line));
            self.paragraph(words);
        }
    }
}

/// Branches that may be mispredicted often, a line each; empty without one.
fn branch_rows(branches: &[Branch], top: Option<usize>, columns: usize) -> Vec<String> {
    /// Fewer windows, and a smaller share, say nothing of a branch.
    const FEWEST: u64 = 5;
    const LEAST: f64 = 0.01;
    let row = |branch: &Branch| {
        let missed = branch.mispredicted_at_most.as_ref()?;
        let least = missed.ci95.first().and_then(|low| low.finite())?;
        if missed.n < FEWEST || least < LEAST {
            return None;
        }
        let share = |of: &crate::schema::Estimate| Some(Between::estimate(of)?.share(false));
        let head = format!(
            "     {:<16} {:<16} {:>7.2}  ",
            share(missed)?,
            share(branch.taken_share.as_ref()?)?,
            branch.entropy.finite()?
        );
        let room = columns.saturating_sub(head.chars().count());
        Some(format!("{head}{}", names::place(&branch.place, room)))
    };
    let rows: Vec<String> = branches.iter().filter_map(row).take(top.unwrap_or(BRANCHES)).collect();
    if rows.is_empty() {
        return rows;
    }
    let head = format!("     {:<16} {:<16} {:>7}  branch", "at most", "taken", "entropy");
    std::iter::once(head).chain(rows).collect()
}

/// The table, a line each; empty without loops.
fn table(loops: &[Loop], top: Option<usize>, columns: usize) -> Vec<String> {
    let least = if top.is_some() { f64::MIN_POSITIVE } else { SMALL };
    let is_shown = |one: &&Loop| one.share.value.finite().is_some_and(|share| share >= least);
    let shown: Vec<&Loop> = loops.iter().filter(is_shown).collect();
    if shown.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![format!(
        "     {:<16} {:<14} {:<20} {:>9}  loop",
        "CPU time", "cycles (core)", "bound by", "trips"
    )];
    for (index, one) in shown.iter().enumerate().take(top.unwrap_or(LOOPS)) {
        let number = format!("{}.", index + 1);
        let share = Between::estimate(&one.share).map_or(String::new(), |share| share.share(false));
        let cycles = |of: &Option<crate::schema::Estimate>| of.as_ref().and_then(few_or_range);
        let core = cycles(&one.core_cycles).map_or(String::new(), |core| format!("({core})"));
        let cycles = [cycles(&one.cycles).unwrap_or_else(|| "?".to_owned()), core].join(" ");
        let bound = one.bound_by.as_deref().map_or("not known", bound_by);
        let head = format!(
            "{number:>4} {share:<16} {:<14} {bound:<20} {:>9}  ",
            cycles.trim_start(),
            trips(&one.trips)
        );
        let room = columns.saturating_sub(head.chars().count());
        lines.push(format!("{head}{}", names::place(&one.place, room)));
        lines.push(format!("        {}", about(one)));
        lines.extend(needs(one).into_iter().map(|needs| format!("        {needs}")));
        for access in one.accesses.iter().take(top.unwrap_or(ACCESSES)) {
            lines.push(format!("        {}", described(access, columns - 8)));
        }
        if let Some(more) = one.accesses.len().checked_sub(top.unwrap_or(ACCESSES)).filter(|more| *more > 0) {
            lines.push(format!("        … {more} more accesses"));
        }
    }
    if let Some(rest) = shown.get(top.unwrap_or(LOOPS)..).filter(|rest| !rest.is_empty()) {
        let sum: f64 = rest.iter().filter_map(|one| one.share.value.finite()).sum();
        let noun = if rest.len() == 1 { "loop" } else { "loops" };
        lines.push(format!("     … {} more {noun}: {}", rest.len(), percent(sum)));
    }
    lines
}

/// "12 instructions and 2.5 lines an iteration, seen in 40 windows"
fn about(one: &Loop) -> String {
    let known = |of: crate::schema::Number| of.finite().map(short);
    let mut parts = Vec::new();
    parts.extend(known(one.instructions).map(|n| format!("{n} instructions")));
    parts.extend(one.lines_per_iteration.finite().map(new_lines));
    let mut text = parts.join(" and ");
    if !text.is_empty() {
        text.push_str(" an iteration, ");
    }
    let windows = if one.n == 1 { "window" } else { "windows" };
    text.push_str(&format!("seen in {} {windows}", count(one.n)));
    if let Some(kernel) =
        one.kernel_share.as_ref().and_then(|kernel| kernel.value.finite()).filter(|share| *share >= SMALL)
    {
        text.push_str(&format!(", {} in the kernel", percent(kernel)));
    }
    text
}

/// "at least 3 cycles: dependency chain 3, width 1.2", "0.01 mispredictions an iteration; 4 misses in flight"
fn needs(one: &Loop) -> Vec<String> {
    /// Fewer mispredicted branches of an iteration are not said.
    const FEW: f64 = 0.005;
    let known = |of: &crate::schema::Estimate| of.value.finite();
    let Some(least) = one.cycles_at_least.as_ref().and_then(known) else { return Vec::new() };
    let chain = one
        .chain
        .as_ref()
        .and_then(|chain| Some(format!("dependency chain {}", short(known(&chain.cycles)?))));
    let unit = one
        .throughput
        .as_ref()
        .and_then(|of| Some(format!("{} {}", unit_name(&of.unit), short(known(&of.cycles)?))));
    let parts: Vec<String> = chain.into_iter().chain(unit).collect();
    let colon = if parts.is_empty() { "" } else { ": " };
    let noun = if short(least) == "1" { "cycle" } else { "cycles" };
    let first = format!("at least {} {noun}{colon}{}", short(least), parts.join(", "));
    let missed = one.mispredicted.as_ref().and_then(known).filter(|missed| *missed >= FEW);
    let missed = missed.map(|missed| match missed {
        missed if missed >= 0.995 => format!("{} mispredictions an iteration", short(missed)),
        missed => format!("{missed:.2} mispredictions an iteration"),
    });
    let lines = one.mlp.as_ref().and_then(known).map(|lines| match short(lines).as_str() {
        "1" => "1 miss in flight".to_owned(),
        lines => format!("{lines} misses in flight"),
    });
    let more: Vec<String> = missed.into_iter().chain(lines).collect();
    let path = one.chain.as_ref().and_then(chain_path);
    std::iter::once(first).chain(path).chain((!more.is_empty()).then(|| more.join("; "))).collect()
}

/// "chain: addition :22 3, load :23 1.5": instructions that wait for each other, with cycles of an iteration
fn chain_path(chain: &Chain) -> Option<String> {
    /// Instructions named.
    const NAMED: usize = 4;
    let step = |step: &ChainStep| {
        let line = match (step.place.line, step.place.address) {
            (Some(line), _) => format!(" :{line}"),
            (None, Some(address)) => format!(" {address:#x}"),
            _ => String::new(),
        };
        let class = match step.class.as_str() {
            "fp_add" => "addition",
            "fp_multiply" => "product",
            "divide" => "division",
            "store_forwarding" => "load of a store",
            other => other,
        };
        Some(format!("{class}{line} {}", short(step.cycles.value.finite()?)))
    };
    let steps: Vec<String> = chain.path.iter().take(NAMED).filter_map(step).collect();
    let more = if chain.path.len() > NAMED { ", …" } else { "" };
    (!steps.is_empty()).then(|| format!("chain: {}{more}", steps.join(", ")))
}

/// "load    8 B :31   stride 4,096 (98 %), outer 8    1 new lines   indexed  grid->cells.value"
fn described(access: &LoopAccess, columns: usize) -> String {
    let line = access.line.map_or(String::new(), |line| format!(":{line}"));
    let share = access.stride_share.finite().unwrap_or(0.0);
    let stride = match access.inner_stride {
        Some(stride) if share >= NEARLY_ALL => format!("stride {}", signed(stride)),
        Some(stride) => format!("stride {} ({:.0} %)", signed(stride), share * 100.0),
        None => "no stride".to_owned(),
    };
    let outer = access.outer_stride.map_or(String::new(), |stride| format!(", outer {}", signed(stride)));
    let lines = access.lines_per_access.finite().map_or(String::new(), |n| match n {
        _ if n > 0.0 && n < 0.1 => format!("{n:.2} new lines"),
        _ => new_lines(n),
    });
    let how = match (access.chased, access.indexed) {
        (true, _) => "chased",
        (_, true) => "indexed",
        _ => "",
    };
    let head = format!(
        "{:<5}{:>4} B {line:<6} {:<30} {lines:<14} {how:<8}",
        access.kind,
        access.bytes,
        format!("{stride}{outer}")
    );
    let field = access.field.as_deref().unwrap_or_default();
    let object = access.object.as_deref().map_or("not named".to_owned(), |object| format!("{object}{field}"));
    format!("{head}{}", name(&object, columns.saturating_sub(head.chars().count()).max(8)))
}

/// What limits the throughput, after the number of cycles.
fn unit_name(unit: &str) -> &str {
    if unit == "width" { unit } else { bound_by(unit) }
}

fn new_lines(n: f64) -> String {
    let noun = if short(n) == "1" { "line" } else { "lines" };
    format!("{} new {noun}", short(n))
}

fn signed(n: i64) -> String {
    let sign = if n < 0 { "−" } else { "" };
    format!("{sign}{}", count(n.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{
        Estimate,
        loops::{Throughput, Trips},
        place::Place,
    };

    fn estimate(value: f64, low: f64, high: f64) -> Estimate {
        Estimate { ci95: [low.into(), high.into()], n: 9, value: value.into() }
    }

    fn walk() -> Loop {
        let access = LoopAccess {
            bytes: 8,
            chased: false,
            field: Some("[]".to_owned()),
            indexed: false,
            inner_stride: Some(16_384),
            kind: "load".to_owned(),
            line: Some(12),
            lines_per_access: 1.0.into(),
            object: Some("matrix".to_owned()),
            outer_stride: Some(8),
            stride_share: 0.993.into(),
        };
        let chased = LoopAccess {
            chased: true,
            inner_stride: None,
            lines_per_access: 0.04.into(),
            object: None,
            outer_stride: None,
            ..access.clone()
        };
        let backwards = LoopAccess {
            inner_stride: Some(-8),
            indexed: true,
            stride_share: 0.6.into(),
            object: Some(
                "std::vector<std::pair<unsigned long, double>, std::allocator<int> >::_M_start".to_owned(),
            ),
            ..access.clone()
        };
        Loop {
            accesses: vec![access, chased, backwards],
            bound_by: Some("deeper_misses".to_owned()),
            core_cycles: Some(estimate(1.1, 1.0, 1.2)),
            chain: Some(Chain {
                cycles: estimate(1.0, 0.9, 1.1),
                path: vec![ChainStep {
                    class: "fp_add".to_owned(),
                    cycles: estimate(1.0, 0.9, 1.1),
                    place: Place { line: Some(7), ..Place::default() },
                    share: 1.0.into(),
                }],
            }),
            cycles: Some(estimate(14.2, 12.0, 16.0)),
            cycles_at_least: Some(estimate(1.05, 1.0, 1.1)),
            instructions: 5.0.into(),
            kernel_share: Some(estimate(0.04, 0.0, 0.1)),
            lines_per_iteration: 1.0.into(),
            mispredicted: Some(estimate(0.012, 0.0, 0.02)),
            mlp: Some(estimate(12.3, 11.0, 13.0)),
            n: 12,
            place: Place {
                file: Some("/src/column_walk.c".to_owned()),
                function: Some("sum_by_columns".to_owned()),
                line: Some(12),
                ..Place::default()
            },
            share: estimate(0.31, 0.2, 0.42),
            throughput: Some(Throughput { cycles: estimate(0.8, 0.8, 0.8), unit: "width".to_owned() }),
            trips: Trips { at_least: None, median: Some(2048), n: 3 },
            ..Loop::default()
        }
    }

    #[test]
    fn loops_say_what_they_access() {
        let bare = Loop { share: estimate(0.02, 0.0, 0.05), ..Loop::default() };
        let tiny = Loop { share: estimate(0.001, 0.0, 0.01), ..Loop::default() };
        let lines = table(&[walk(), bare, tiny], None, 100);
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{lines:#?}");
        insta::assert_snapshot!(lines.join("\n"));
    }

    #[test]
    fn rows_asked_for_are_those_of_loops_and_of_accesses() {
        assert_eq!(table(&[], None, 100), Vec::<String>::new());
        let one = table(&[walk(), walk()], Some(1), 100);
        assert_eq!(one.len(), 9, "{one:#?}");
        assert!(one[7].contains("2 more accesses") && one[8].contains("1 more loop: 31.0 %"), "{one:#?}");
    }
}
