//! The model as text, as JSON (`locality-model/1`), and as a graph for Graphviz.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use anyhow::Result;
use locality_execution::language::LoopText;
use locality_execution::paths::{PathNode, Step};
use locality_execution::spots::{Place, Spot};
use locality_execution::trips::From;
use locality_units::print as units;
use serde_json::{Value, json};

use super::{Model, breakdown, check, cost_name};
use crate::cli::model_args::CostArg;

/// Spots and inputs that the text lists.
pub(super) const ROWS: usize = 12;

/// The name of a spot: function, loop, and the source line that most stops in it are of.
pub(super) struct Names {
    lines: HashMap<Place, String>,
}

impl Names {
    pub(super) fn of(model: &Model) -> Self {
        let mut votes: HashMap<Place, BTreeMap<String, u64>> = HashMap::new();
        for (sample, stack) in model.profile.samples.iter().zip(&model.observed.stacks) {
            let Some(at) = stack.frames.first() else { continue };
            let function = model.built.functions.iter().position(|read| {
                let end = read.bytes.start + read.bytes.bytes.len() as u64;
                read.file == at.0 && (read.bytes.start..end).contains(&at.1)
            });
            let place = function
                .and_then(|function| locality_execution::spots::spot_of(&model.built, function, at.1));
            let frame = model
                .profile
                .stacks
                .get(sample.stack.0 as usize)
                .and_then(|stack| stack.frames.first())
                .and_then(|frame| model.profile.frames.get(frame.0 as usize));
            let line = frame.and_then(|frame| Some((frame.file.as_ref()?, frame.line?)));
            if let (Some(place), Some((file, line))) = (place, line) {
                let file = file.rsplit('/').next().unwrap_or(file);
                *votes.entry(place).or_default().entry(format!("{file}:{line}")).or_default() += 1;
            }
        }
        let most = |votes: BTreeMap<String, u64>| votes.into_iter().max_by_key(|(_, votes)| *votes);
        let lines = votes.into_iter().filter_map(|(place, votes)| Some((place, most(votes)?.0))).collect();
        Self { lines }
    }

    pub(super) fn function(model: &Model, number: usize) -> &str {
        model.built.skeleton.functions.get(number).map_or("", |function| &function.name)
    }

    /// Without the types of parameters.
    fn short(model: &Model, number: usize, most: usize) -> String {
        let name = Self::function(model, number);
        let end = name.find('(').filter(|at| *at > 0 && !name.contains("operator")).unwrap_or(name.len());
        shortened(name.get(..end).unwrap_or(name), most)
    }

    pub(super) fn spot(&self, model: &Model, place: Place) -> String {
        let mut name = Self::short(model, place.0, 40);
        if let Some(label) = place.1 {
            let _ = write!(name, " L{label:x}");
        }
        if let Some(line) = self.lines.get(&place) {
            let _ = write!(name, " {line}");
        }
        name
    }
}

pub(super) fn shortened(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most.saturating_sub(1)).collect();
    format!("{head}…")
}

/// "68 % [57–80]".
fn share((value, low, high): (f64, f64, f64)) -> String {
    format!("{} % [{}–{}]", digits(100.0 * value), digits(100.0 * low), digits(100.0 * high))
}

pub(super) fn digits(value: f64) -> String {
    if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") }
}

/// "2.0 times", for ratios.
pub(super) fn times(ratio: f64) -> String {
    format!("{} times", if ratio < 9.95 { format!("{ratio:.2}") } else { format!("{ratio:.0}") })
}

/// For people.
pub(super) fn text(model: &Model) -> String {
    let names = Names::of(model);
    let mut page = String::new();
    let run = &model.profile.run;
    let windows = model.observed.windows.len() as u64;
    let _ = writeln!(
        page,
        "MODEL  {} · {} of CPU time · {} · {}\n",
        shortened(&run.command, 50),
        units::duration(run.cpu_ns as f64),
        units::counted(model.profile.samples.len() as u64, "stop"),
        units::counted(windows, "window"),
    );
    let selected = model.spots.iter().filter(|spot| spot.selected).count() as u64;
    let _ = writeln!(
        page,
        "{} hold{} {:.0} % of the time with {:.1} % of the code that was met (asked for: {:.0} % with \
         {:.0} % at most).",
        units::counted(selected, "hot spot"),
        if selected == 1 { "s" } else { "" },
        100.0 * model.selected.0,
        100.0 * model.selected.1,
        100.0 * model.coverage,
        100.0 * model.leanness,
    );
    if let Some(changed) = &model.changed {
        let _ = writeln!(
            page,
            "With the changes {} as many instructions, and {} the time if each instruction of a spot \
             takes as long as now.",
            times(changed.instructions),
            times(changed.time),
        );
    }
    projected_text(model, &names, &mut page);
    let _ = writeln!(page, "\nHot spots{:<41}CPU time         instructions  model  stops", "");
    for (number, spot) in model.spots.iter().take(ROWS).enumerate() {
        let mark = if spot.selected { "*" } else { " " };
        let mut row = format!(
            "{mark}{:>2} {:<46}{:<17}",
            number + 1,
            shortened(&names.spot(model, spot.place), 45),
            share(spot.share)
        );
        let executed = match windows {
            0 => "not known".to_owned(),
            _ => format!("{} %", digits(100.0 * spot.instructions)),
        };
        let modelled = model.by_model.first().and_then(|by| by.shares.get(&spot.place));
        let modelled = modelled.map_or_else(String::new, |share| format!("{} %", digits(100.0 * share)));
        let _ = write!(row, "{executed:<14}{modelled:<7}{:>5}", spot.n);
        if let Some(ratio) = model.changed.as_ref().and_then(|changed| changed.spots.get(&spot.place)) {
            let _ = write!(row, "  then {}", times(*ratio));
        }
        let _ = writeln!(page, "{row}");
    }
    if model.spots.len() > ROWS {
        let _ = writeln!(page, "   {} more: --format json", model.spots.len() - ROWS);
    }
    for by in model.by_model.iter().filter(|by| !by.quality.is_empty()) {
        let mean = by.quality.iter().sum::<f64>() / by.quality.len() as f64;
        let worst = by.quality.iter().copied().fold(f64::INFINITY, f64::min);
        let _ = writeln!(
            page,
            "   The spots that {} puts first hold {:.0} % of what the same number of spots really holds, \
             {:.0} % at worst.",
            how(by.how),
            100.0 * mean,
            100.0 * worst
        );
    }
    breakdown::table(model, &names, &mut page);
    page.push_str("\nHot path: share of the CPU time, and iterations of loops\n");
    for node in &model.path {
        path_text(model, node, 1, &mut page);
    }
    inputs_text(model, &mut page);
    check::tables(model, &names, &mut page);
    unknown_text(model, &mut page);
    page
}

/// A model of costs in words.
pub(super) fn how(cost: CostArg) -> &'static str {
    match cost {
        CostArg::Schedule => "the schedule",
        CostArg::Paper => "the paper's roofline",
    }
}

/// A sentence a machine: how long, what becomes the first spot, how sure that is.
fn projected_text(model: &Model, names: &Names, page: &mut String) {
    for projected in &model.projected {
        let machine = &projected.machine;
        let (ratio, width) = projected.ratio;
        let first = projected.shares.iter().max_by(|a, b| a.1.total_cmp(b.1));
        let first = first.map(|(place, share)| {
            let name = names.spot(model, *place);
            match model.spots.first().is_some_and(|spot| spot.place == *place) {
                true => format!("the first spot stays {name} ({:.0} %)", 100.0 * share),
                false => format!("the first spot becomes {name} ({:.0} %)", 100.0 * share),
            }
        });
        let other_isa = if machine.isa == "x86-64" {
            ""
        } else {
            " Another instruction set: instructions are taken one to one."
        };
        let guesses = match machine.guesses.len() {
            0 => String::new(),
            n => format!(" {} of its file are guesses.", units::counted(n as u64, "number")),
        };
        let sentence = format!(
            "On {} {ratio:.2} ± {width:.2} times as long, by {} (first order; the interval is that of \
             sampling alone); {}; {} of the {} heaviest spots are among them there.{other_isa}{guesses}",
            machine.name,
            how(model.cost),
            first.unwrap_or_else(|| "no spot is known there".to_owned()),
            projected.shared.0,
            projected.shared.1,
        );
        for line in wrapped(&sentence, 100) {
            let _ = writeln!(page, "{line}");
        }
    }
}

fn loop_text(model: &Model, function: usize, label: u64) -> Option<&LoopText> {
    let mut found = None;
    model.built.skeleton.functions.get(function)?.loops(&mut |text| {
        if text.label == label {
            found = Some(text);
        }
    });
    found
}

/// "L1660, ret@1118 = 2,048 iterations".
pub(super) fn iterations(model: &Model, function: usize, label: u64) -> String {
    let mut words = String::new();
    if let Some(bound) = loop_text(model, function, label).and_then(|text| text.bound.as_ref()) {
        let _ = write!(words, " `{}`", shortened(&bound.to_string(), 50));
    }
    let key = (function, label);
    let expected = model.expected.as_ref().ok();
    let trips = expected.and_then(|expected| expected.trips.get(&key));
    let seen = model.built.loops.get(&key);
    let has_no_value = seen.is_none_or(|seen| seen.value.is_none());
    let is_evaluated = loop_text(model, function, label).is_some_and(|text| text.bound.is_some())
        && expected.is_some_and(|expected| !expected.unknown.contains_key(&key));
    if has_no_value && !is_evaluated {
        words.push_str(" iterations not known");
        return words;
    }
    match (trips, seen.and_then(|seen| seen.value.map(|value| (value, seen)))) {
        (Some(trips), _) if *trips > 0.0 => {
            let _ = write!(words, " = {}", digits_of(*trips));
        }
        (_, Some(((value, width), seen))) => {
            let how = match seen.from {
                From::LeftToGo => "left to go",
                From::Stacks => "by stacks",
                From::Stays | From::Nothing => "seen",
            };
            let _ = write!(words, " {} ± {} ({how}, n = {})", digits_of(value), digits_of(width), seen.n);
        }
        _ => words.push_str(" iterations not known"),
    }
    let before = trips.copied().unwrap_or(0.0);
    let then = model.changed.as_ref().and_then(|changed| changed.trips.get(&key));
    if let Some(then) = then.filter(|then| (**then - before).abs() > 1e-6 * before) {
        let _ = write!(words, ", then {}", digits_of(*then));
    }
    words
}

pub(super) fn digits_of(value: f64) -> String {
    if value >= 1000.0 {
        units::count(value.round() as u64)
    } else {
        format!("{}", (value * 100.0).round() / 100.0)
    }
}

fn path_text(model: &Model, node: &PathNode, depth: usize, page: &mut String) {
    let what = match node.step {
        Step::Function(function) => Names::short(model, function, 60),
        Step::Loop(function, label) => format!("loop L{label:x}{}", iterations(model, function, label)),
    };
    let _ = writeln!(page, "{}{:>5.1} %  {what}", "  ".repeat(depth.min(16)), 100.0 * node.share);
    for below in &node.below {
        path_text(model, below, depth + 1, page);
    }
}

fn inputs_text(model: &Model, page: &mut String) {
    let mut rows = Vec::new();
    for (number, function) in model.built.skeleton.functions.iter().enumerate() {
        for input in &function.inputs {
            let values: Vec<String> = input
                .values
                .iter()
                .map(|(value, share)| match input.values.len() {
                    1 => digits_of(value.abs()),
                    _ => format!("{} ({:.0} %)", digits_of(value.abs()), 100.0 * share),
                })
                .collect();
            let sign = if input.mean() < 0.0 { "-" } else { "" };
            let name = format!("{}.{}", Names::short(model, number, 30), input.name);
            rows.push(format!("  {name} = {sign}{}  ({})\n", values.join(", "), input.from));
        }
    }
    if rows.is_empty() {
        return;
    }
    page.push_str("\nInputs: what trip counts depend on; --set NAME=VALUE changes one\n");
    rows.iter().take(2 * ROWS).for_each(|row| page.push_str(row));
    if rows.len() > 2 * ROWS {
        let _ = writeln!(page, "  {} more: --format skeleton", rows.len() - 2 * ROWS);
    }
}

/// What is not known, a sentence each.
pub(super) fn unknown(model: &Model) -> Vec<String> {
    let built = &model.built;
    let mut notes = Vec::new();
    if model.profile.flows.is_empty() {
        notes.push(
            "The profile holds no control flow: it was written by an older locality-bpf, or no window \
             was taken. Probabilities and \
             iterations are guesses; trace again."
                .to_owned(),
        );
    }
    if let Err(why) = &model.expected {
        notes.push(format!("Expected repetitions are not known: {why}."));
    }
    for (path, why) in model.unread.iter().take(4) {
        notes.push(format!("{path} was not read: {why}."));
    }
    let loops: usize = built.functions.iter().map(|read| read.graph.loops.len()).sum();
    let mut bounds = 0;
    built
        .skeleton
        .functions
        .iter()
        .for_each(|function| function.loops(&mut |found| bounds += usize::from(found.bound.is_some())));
    notes.push(format!(
        "{bounds} of {loops} loops have an expression for their iterations; {} more were contradicted \
         by windows and left out. {} of {} \
         branches were seen by no window: they go on in their loops, else fall through.",
        built.contradicted, built.branches_unseen, built.branches
    ));
    if built.guessed > 0 {
        notes.push(format!(
            "{} that no window met: 1 iteration is assumed unless the bound says more.",
            units::counted(built.guessed as u64, "loop")
        ));
    }
    if built.irreducible > 0 {
        notes.push(format!(
            "{} jumps back lead into the middle of loops; such regions are flat.",
            built.irreducible
        ));
    }
    let left_out: u64 = model.profile.flows.iter().map(|flow| flow.left_out).sum();
    if left_out > 0 {
        notes.push(format!(
            "{} of windows found no room in the profile.",
            units::counted(left_out, "transfer")
        ));
    }
    if let Ok(expected) = &model.expected {
        if !expected.merged.is_empty() {
            notes.push(format!(
                "{} with more than {} contexts: the rest are merged.",
                units::counted(expected.merged.len() as u64, "function"),
                locality_execution::tree::MOST_CONTEXTS
            ));
        }
        if !expected.unknown.is_empty() {
            let names: Vec<String> = expected
                .unknown
                .iter()
                .take(3)
                .map(|((function, label), why)| {
                    format!("L{label:x} of {}: {why}", Names::short(model, *function, 30))
                })
                .collect();
            notes.push(format!(
                "{} with a bound that has no value: iterations are those that windows saw, else 1 ({}).",
                units::counted(expected.unknown.len() as u64, "loop"),
                names.join("; ")
            ));
        }
    }
    notes
}

fn unknown_text(model: &Model, page: &mut String) {
    page.push_str("\nWhat is not known\n");
    for note in unknown(model) {
        for (number, line) in wrapped(&note, 96).into_iter().enumerate() {
            let _ = writeln!(page, "{}{line}", if number == 0 { "- " } else { "  " });
        }
    }
}

pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// For programs.
pub(super) fn json(model: &Model) -> Result<String> {
    let names = Names::of(model);
    let of_spots = locality_execution::spots::instructions(&model.built);
    let spot = |spot: &Spot| {
        let line = names.lines.get(&spot.place);
        let file = model.built.functions.get(spot.place.0).map(|read| read.file);
        let module = file.and_then(|file| model.built.skeleton.files.get(file)).map(|(name, _)| name);
        let mut row = json!({
            "place": {
                "function": Names::function(model, spot.place.0),
                "loop": spot.place.1.map(|label| format!("L{label:x}")),
                "line": line,
                "module": module,
            },
            "selected": spot.selected,
            "bound": spot.place.1.and_then(|label| loop_text(model, spot.place.0, label)?.bound.as_ref().map(ToString::to_string)),
            "iterations": spot.place.1.and_then(|label| model.expected.as_ref().ok()?.trips.get(&(spot.place.0, label))),
            "share_here": { "value": spot.share.0, "ci95": [spot.share.1, spot.share.2] },
            "share_model": model.by_model.first().and_then(|by| by.shares.get(&spot.place)),
            "share_instructions": (!model.observed.windows.is_empty()).then_some(spot.instructions),
            "code_instructions": spot.code,
            "n": spot.n,
            "share_there": model.projected.iter().map(|projected| projected.shares.get(&spot.place)).collect::<Vec<_>>(),
            "executions_ratio": model.changed.as_ref().and_then(|changed| changed.spots.get(&spot.place)),
        });
        for (key, value) in breakdown::json(model, spot.place, &of_spots) {
            row[key] = value;
        }
        row
    };
    let inputs: Vec<Value> = model
        .built
        .skeleton
        .functions
        .iter()
        .flat_map(|function| {
            function.inputs.iter().map(|input| {
                json!({
                    "name": format!("{}.{}", function.name, input.name),
                    "value": input.mean(),
                    "values": input.values,
                    "from": input.from,
                })
            })
        })
        .collect();
    let paper = model.by_model.iter().find(|by| by.how == CostArg::Paper);
    let page = json!({
        "schema": "locality-model/1",
        "command": model.profile.run.command,
        "coverage": { "asked": model.coverage, "value": model.selected.0 },
        "leanness": { "asked": model.leanness, "value": model.selected.1 },
        "spots": model.spots.iter().map(spot).collect::<Vec<Value>>(),
        "path": model.path.iter().map(|node| path_json(model, node)).collect::<Vec<Value>>(),
        "inputs": inputs,
        "selection_quality": model.by_model.first().map(|by| &by.quality),
        "selection_quality_paper": paper.map(|by| &by.quality),
        "check": check::json(model),
        "cost": cost_name(model.cost),
        "machine": model.projected.iter().map(|projected| &projected.machine.name).collect::<Vec<_>>(),
        "speed_ratio": model.projected.iter().map(|projected| {
            let (value, width) = projected.ratio;
            json!({ "value": value, "ci95": [value - width, value + width] })
        }).collect::<Vec<Value>>(),
        "instructions_ratio": model.changed.as_ref().map(|changed| changed.instructions),
        "time_ratio": model.changed.as_ref().map(|changed| changed.time),
        "tree": model.expected.as_ref().ok().map(|expected| json!({
            "nodes": expected.nodes.len(),
            "contexts_merged": expected.merged.len(),
            "instructions": instructions(model, expected),
        })),
        "not_known": unknown(model),
    });
    Ok(serde_json::to_string_pretty(&page)? + "\n")
}

/// Instructions that the tree expects in a run.
fn instructions(model: &Model, expected: &locality_execution::tree::Expected) -> f64 {
    let of = |((function, label), count): (&(usize, u64), &f64)| {
        let read = model.built.functions.get(*function)?;
        Some(read.code.of(read.code.block_at(*label)?).len() as f64 * count)
    };
    expected.blocks.iter().filter_map(of).sum()
}

fn path_json(model: &Model, node: &PathNode) -> Value {
    let below: Vec<Value> = node.below.iter().map(|below| path_json(model, below)).collect();
    let expected = model.expected.as_ref().ok();
    match node.step {
        Step::Function(function) => json!({
            "function": Names::function(model, function),
            "share": node.share,
            "calls": expected.and_then(|expected| expected.calls.get(function)),
            "below": below,
        }),
        Step::Loop(function, label) => {
            let text = loop_text(model, function, label);
            let seen = model.built.loops.get(&(function, label));
            let changed = model.changed.as_ref();
            json!({
                "loop": format!("L{label:x}"),
                "share": node.share,
                "bound": text.and_then(|text| text.bound.as_ref()).map(ToString::to_string),
                "iterations": expected.and_then(|expected| expected.trips.get(&(function, label))),
                "seen": seen.and_then(|seen| seen.value).map(|(value, width)| json!({ "value": value, "half_interval": width })),
                "seen_n": seen.map(|seen| seen.n),
                "iterations_changed": changed.and_then(|changed| changed.trips.get(&(function, label))),
                "below": below,
            })
        }
    }
}

/// The hot path for Graphviz.
pub(super) fn dot(model: &Model) -> String {
    let mut page = "digraph model {\n  node [shape=box, fontname=\"sans-serif\"];\n".to_owned();
    let mut count = 0;
    for node in &model.path {
        dot_node(model, node, None, &mut count, &mut page);
    }
    page.push_str("}\n");
    page
}

fn dot_node(model: &Model, node: &PathNode, above: Option<usize>, count: &mut usize, page: &mut String) {
    let number = *count;
    *count += 1;
    let what = match node.step {
        Step::Function(function) => Names::short(model, function, 60),
        Step::Loop(function, label) => format!("loop L{label:x}{}", iterations(model, function, label)),
    };
    let what = what.replace('\\', "\\\\").replace('"', "\\\"");
    let _ = writeln!(page, "  n{number} [label=\"{what}\\n{:.1} %\"];", 100.0 * node.share);
    if let Some(above) = above {
        let _ = writeln!(page, "  n{above} -> n{number};");
    }
    for below in &node.below {
        dot_node(model, below, Some(number), count, page);
    }
}
