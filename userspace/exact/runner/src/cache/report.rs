//! `cache_use` of the report, and the table of costs for a Callgrind file.
//!
//! For each level: lines of code loading cache lines of little use, and the functions of
//! the accesses. Spatial loss, access counts and inclusive costs are from Weidendorfer
//! and Breitbart, ICCS 2016, sections 2 and 3. A level's traffic is the number of loaded
//! lines, on a miss (two for an access across lines) or ahead of a miss, times the line
//! size. The functions of the dynamic linker form one row of each table,
//! `[dynamic linker]`, and no part of a call path: the program's author cannot change
//! program start. The table of costs lists the linker's functions singly. Limit: the path
//! to a line is the heaviest caller at each step, exact for a function with one caller.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use locality_cachesim::{Column, Costs as Row, MAX_LEVELS};
use locality_exports::costs::Builder;
use locality_report::schema::{
    Number,
    cache_use::{Both, CacheShape, CacheUse, FunctionLoss, LevelUse, LoadingLine, Tree, UnknownCaller},
    costs::{Costs, Event, UNKNOWN},
    place::Caller,
};

use super::{
    machine::{Machine, Prefetch},
    naming::{FunctionNumber, Place, Simulated},
    objects,
    spec::Geometry,
};
use crate::report::ratio;

/// Rows of each table, a level.
const ROWS: usize = 100;
/// The dynamic linker's row.
const LINKER: &str = "[dynamic linker]";
/// Callers reported of a line.
const DEPTH: usize = 16;

/// Columns of a level.
struct Columns {
    lines: Column,
    loss: Column,
    access_cost: Column,
}

const FIRST: Columns = Columns { lines: Column::Lines1, loss: Column::SpLoss1, access_cost: Column::AcCost1 };
const SECOND: Columns =
    Columns { lines: Column::Lines2, loss: Column::SpLoss2, access_cost: Column::AcCost2 };
const LAST: Columns = Columns { lines: Column::LinesL, loss: Column::SpLossL, access_cost: Column::AcCostL };

impl Columns {
    fn of(level: usize, levels: usize) -> &'static Self {
        match level {
            0 => &FIRST,
            _ if level + 1 == levels => &LAST,
            _ => &SECOND,
        }
    }

    /// Lines loaded.
    fn lines(&self, row: &Row) -> u64 {
        row[self.lines]
    }
}

/// The field.
pub fn of(simulated: &Simulated, machine: &Machine, skipped: &[String]) -> CacheUse {
    let named = &simulated.named;
    let count = machine.levels.len();
    let (mut levels, mut lines, mut functions) = (Vec::new(), Vec::new(), Vec::new());
    let mut by_object = Vec::new();
    let mut left_out = 0;
    for (at, (name, geometry)) in machine.levels.iter().enumerate() {
        let columns = Columns::of(at, count);
        let all = Whole {
            level: name.to_string(),
            columns,
            line: u64::from(geometry.line),
            unit: named.access_cost_unit,
            lines: columns.lines(&named.sum),
            lost: named.sum[columns.loss],
        };
        levels.push(LevelUse {
            bytes: geometry.bytes,
            bytes_loaded: (all.lines * all.line).into(),
            level: all.level.clone(),
            line: all.line.into(),
            lines_loaded: all.lines.into(),
            lost_share: ratio(all.lost, all.lines * all.line).into(),
            spatial_loss_bytes: all.lost.into(),
            ways: Some(shape(*geometry).ways),
            ..LevelUse::default()
        });
        left_out += by_line(simulated, &all, &mut lines);
        left_out += by_function(simulated, &all, &mut functions);
        let column = if at > 0 && at + 1 == count { MAX_LEVELS - 1 } else { at };
        let units = (all.line, all.unit);
        left_out += objects::rows(&simulated.objects, &all.level, column, units, ROWS, &mut by_object);
    }
    let all_events = |costs: &Row| -> BTreeMap<String, u64> {
        named.columns.iter().map(|column| (column.name().to_owned(), costs[*column])).collect()
    };
    let unknown = |column: fn(&Columns) -> Column| {
        let levels = machine.levels.iter().enumerate();
        let of = move |at| named.unknown_caller[column(Columns::of(at, count))];
        levels.map(move |(at, (name, _))| (name.to_string(), of(at)))
    };
    let tree = &named.tree;
    CacheUse {
        access_cost_unit: Some(named.access_cost_unit),
        balanced: Some(simulated.unbalanced == 0),
        by_function: functions,
        by_loading_line: lines,
        by_object: Some(by_object).filter(|_| !simulated.objects.is_empty()),
        compatible: Some(machine.compatible.then(|| "callgrind".to_owned())),
        costs: Some(table(simulated, machine)),
        events: Some(all_events(&named.sum)),
        instruction_cache: Some(machine.instructions.map(shape)),
        left_out: None,
        levels,
        n: None,
        prefetch: Some(prefetch(machine.prefetch).to_owned()),
        rows_left_out: left_out as u64,
        skipped_functions: Some(skipped.to_vec()),
        streams: Some(named.streams),
        tree: Some(Tree {
            calls_folded: tree.calls_folded,
            nodes_made: tree.nodes_made,
            nodes_mean: ratio(tree.nodes_sum, tree.prunings).into(),
            nodes_most: tree.nodes_most,
            prunings: tree.prunings,
        }),
        unknown_caller: UnknownCaller {
            access_cost: Some(unknown(|columns| columns.access_cost).collect()),
            events: Some(all_events(&named.unknown_caller)),
            spatial_loss_bytes: unknown(|columns| columns.loss)
                .map(|(level, lost)| (level, Number::Whole(lost)))
                .collect(),
            spatial_loss_bytes_ci95: None,
        },
    }
}

/// Sums of a level.
struct Whole {
    level: String,
    columns: &'static Columns,
    line: u64,
    unit: u64,
    lines: u64,
    lost: u64,
}

fn shape(geometry: Geometry) -> CacheShape {
    CacheShape { bytes: geometry.bytes, line: u64::from(geometry.line), ways: u64::from(geometry.ways) }
}

fn prefetch(what: Prefetch) -> &'static str {
    match what {
        Prefetch::None => "none",
        Prefetch::NextLine => "next-line",
        Prefetch::Stride => "stride",
    }
}

fn by_line(simulated: &Simulated, all: &Whole, rows: &mut Vec<LoadingLine>) -> usize {
    let columns = all.columns;
    let (mut ranked, mut linkers) = (Vec::new(), None);
    for ((function, place), row) in &simulated.named.places {
        match simulated.is_linkers(*function) {
            true => add(&mut linkers, (*function, Place::default()), row),
            false => ranked.push(((*function, *place), *row)),
        }
    }
    ranked.extend(linkers);
    ranked.retain(|(_, row)| columns.lines(row) > 0 || row[columns.loss] > 0);
    ranked.sort_by_key(|(place, row)| (std::cmp::Reverse(row[columns.loss]), *place));
    let callers = Callers::of(simulated, columns.loss);
    for ((function, place), row) in ranked.iter().take(ROWS) {
        let (lines, lost, cost) = (columns.lines(row), row[columns.loss], row[columns.access_cost]);
        let at = simulated.frame(*function, *place);
        let used = (lines * all.line).saturating_sub(lost);
        let access = if place.stores { "store" } else { "load" };
        rows.push(LoadingLine {
            access: Some(access.to_owned()).filter(|_| !simulated.is_linkers(*function)),
            access_count: (cost > 0).then(|| (lines as f64 * all.unit as f64 / cost as f64).into()),
            callers: callers.path(simulated, *function),
            file: at.file,
            function: at.function,
            level: all.level.clone(),
            line: at.line,
            lines_loaded: lines.into(),
            module: at.module,
            share: ratio(lost, all.lost).into(),
            spatial_loss_bytes: lost.into(),
            traffic_share: ratio(lines, all.lines).into(),
            used_bytes_per_line: (lines > 0).then(|| ratio(used, lines).into()),
            ..LoadingLine::default()
        });
    }
    ranked.len().saturating_sub(ROWS)
}

fn by_function(simulated: &Simulated, all: &Whole, rows: &mut Vec<FunctionLoss>) -> usize {
    let columns = all.columns;
    let lost = |row: &Row| row[columns.loss].min(all.lost);
    let (mut ranked, mut linkers) = (Vec::new(), None);
    for (function, costs) in &simulated.named.functions {
        match simulated.is_linkers(*function) {
            true => add(&mut linkers, *function, &costs.own),
            false => ranked.push((*function, (costs.own, costs.inclusive))),
        }
    }
    // The linker's functions call each other and the program's
    // functions: the inclusive cost would be the program's.
    ranked.extend(linkers.map(|(function, own)| (function, (own, own))));
    ranked.retain(|(_, (_, inclusive))| columns.lines(inclusive) > 0 || lost(inclusive) > 0);
    ranked.sort_by_key(|(function, (own, inclusive))| {
        (std::cmp::Reverse(lost(inclusive)), std::cmp::Reverse(lost(own)), *function)
    });
    for (function, (own, inclusive)) in ranked.iter().take(ROWS) {
        let at = simulated.frame(*function, simulated.whole(*function));
        rows.push(FunctionLoss {
            file: at.file,
            function: at.function,
            inclusive: lost(inclusive).into(),
            level: all.level.clone(),
            line: at.line,
            lines_loaded: Both {
                inclusive: columns.lines(inclusive).min(all.lines).into(),
                own: columns.lines(own).into(),
            },
            module: at.module,
            own: lost(own).into(),
            share: ratio(lost(inclusive), all.lost).into(),
            traffic_share: ratio(lost(inclusive), all.lines * all.line).into(),
            ..FunctionLoss::default()
        });
    }
    ranked.len().saturating_sub(ROWS)
}

/// Adds to the dynamic linker's row, under the row's first key.
fn add<Key>(sum: &mut Option<(Key, Row)>, key: Key, row: &Row) {
    sum.get_or_insert((key, Row::default())).1 += row;
}

impl Simulated {
    /// A function without a line.
    fn whole(&self, function: FunctionNumber) -> Place {
        let file = self.functions.get(function as usize).map_or(0, |function| function.file);
        Place { file, ..Place::default() }
    }

    /// Whether a function belongs to the dynamic linker:
    /// `ld-linux-x86-64.so.2`, `ld-musl-x86_64.so.1`, `ld-2.28.so`.
    fn is_linkers(&self, function: FunctionNumber) -> bool {
        self.functions.get(function as usize).is_some_and(|function| {
            let file = function.module.rsplit('/').next().unwrap_or_default();
            file.starts_with("ld-") && file.contains(".so")
        })
    }

    fn frame(&self, function: FunctionNumber, Place { file, line, .. }: Place) -> Caller {
        let names = self.functions.get(function as usize);
        if self.is_linkers(function) {
            let module = names.map(|names| names.module.clone());
            return Caller { function: Some(LINKER.to_owned()), module, ..Caller::default() };
        }
        let file = self.files.get(file as usize).filter(|file| *file != UNKNOWN);
        Caller {
            file: file.cloned(),
            function: names.map(|names| names.name.clone()),
            line: (line > 0).then_some(line),
            module: names.map(|names| names.module.clone()).filter(|module| !module.is_empty()),
        }
    }
}

/// The caller with most of a function's cost; `None` if the function mostly begins a thread.
struct Callers(HashMap<FunctionNumber, (u64, Option<(FunctionNumber, Place)>)>);

impl Callers {
    fn of(simulated: &Simulated, column: Column) -> Self {
        let mut heaviest = HashMap::new();
        for ((function, _), row) in &simulated.named.roots {
            heaviest.entry(*function).or_insert((0, None)).0 += row[column];
        }
        for ((caller, place, callee), call) in &simulated.named.calls {
            let cost = call.inclusive[column];
            let best = heaviest.entry(*callee).or_insert((0, None));
            if cost > best.0 {
                *best = (cost, Some((*caller, *place)));
            }
        }
        Self(heaviest)
    }

    /// From the function's caller outwards.
    fn path(&self, simulated: &Simulated, function: FunctionNumber) -> Vec<Arc<Caller>> {
        let mut seen = HashSet::from([function]);
        let mut at = function;
        let mut path = Vec::new();
        while let Some((_, Some((caller, place)))) = self.0.get(&at).filter(|_| path.len() < DEPTH) {
            if !seen.insert(*caller) {
                break;
            }
            // The resolver of a library's function, or the caller of a constructor.
            if !simulated.is_linkers(*caller) {
                path.push(Arc::new(simulated.frame(*caller, *place)));
            }
            at = *caller;
        }
        path
    }
}

/// Costs by line and call.
fn table(simulated: &Simulated, machine: &Machine) -> Costs {
    let named = &simulated.named;
    let events = named.columns.iter().map(|column| Event {
        // Callgrind calls the last of two levels the second.
        name: if machine.levels.len() > 2 { column.name() } else { column.callgrind_name() }.to_owned(),
        long: long(*column, machine.compatible).to_owned(),
    });
    let said = |name: &str, cache: &Geometry| {
        format!("{name} cache: {} B, {} B, {}-way associative", cache.bytes, cache.line, cache.ways)
    };
    let instructions = machine.instructions.iter().map(|cache| said("I1", cache));
    let data = machine.levels.iter().enumerate().map(|(at, (name, cache))| match at {
        0 => said("D1", cache),
        _ => said(&name.to_string(), cache),
    });
    let mut builder = Builder::new(instructions.chain(data).collect(), events.collect());
    let files: Vec<u32> = simulated.files.iter().map(|file| builder.file(file)).collect();
    let file = |number: u32| files.get(number as usize).copied().unwrap_or(0);
    let functions: Vec<u32> = simulated
        .functions
        .iter()
        .map(|function| builder.function(&function.name, file(function.file), &function.module))
        .collect();
    let function = |number: u32| functions.get(number as usize).copied().unwrap_or(0);
    let numbers = |row: &Row| -> Vec<u64> { named.columns.iter().map(|column| row[*column]).collect() };
    for ((number, place), row) in &named.places {
        builder.line(function(*number), (file(place.file), place.line), &numbers(row));
    }
    for ((caller, place, callee), call) in &named.calls {
        let place = (file(place.file), place.line);
        builder.call(function(*caller), place, function(*callee), call.calls, &numbers(&call.inclusive));
    }
    builder.finish()
}

/// KCachegrind's name of a column, if present.
fn long(column: Column, compatible: bool) -> &'static str {
    match column {
        Column::Ir => "Instruction Fetch",
        Column::Dr => "Data Read Access",
        Column::Dw => "Data Write Access",
        Column::I1mr => "L1 Instr. Fetch Miss",
        Column::D1mr => "L1 Data Read Miss",
        Column::D1mw => "L1 Data Write Miss",
        Column::D2mr => "L2 Read Miss",
        Column::D2mw => "L2 Data Write Miss",
        Column::ILmr => "LL Instr. Fetch Miss",
        Column::DLmr => "LL Data Read Miss",
        Column::DLmw => "LL Data Write Miss",
        Column::Pf1 => "L1 Lines Prefetched",
        Column::AcCost1 if compatible => "Temporal Locality L1 (1000 / accesses)",
        Column::AcCost1 => "Temporal Locality L1 (1000000 / accesses)",
        Column::SpLoss1 => "Spatial Loss L1 (bytes)",
        Column::AcCost2 => "Temporal Locality L2 (1000000 / accesses)",
        Column::SpLoss2 => "Spatial Loss L2 (bytes)",
        Column::AcCostL if compatible => "Temporal Locality LL (1000 / accesses)",
        Column::AcCostL => "Temporal Locality LL (1000000 / accesses)",
        Column::SpLossL => "Spatial Loss LL (bytes)",
        Column::Lines1 => "L1 Lines Loaded",
        Column::Lines2 => "L2 Lines Loaded",
        Column::LinesL => "LL Lines Loaded",
    }
}

#[cfg(test)]
mod tests {
    use locality_cachesim::{CallCosts, FunctionCosts};
    use serde_json::{Value, json};

    use super::*;
    use crate::cache::{naming::FunctionName, spec::Name};

    fn row(reads: u64, misses: u64, lost: u64) -> Row {
        let mut row = Row::default();
        (row[Column::Dr], row[Column::D1mr], row[Column::SpLoss1]) = (reads, misses, lost);
        row[Column::Lines1] = misses;
        // Each line was accessed four times.
        row[Column::AcCost1] = misses * 250;
        row
    }

    /// `main` (0) calls `walk` (1), which calls itself and, for less, is called by `other` (2).
    fn example() -> (Simulated, Machine) {
        let function = |name: &str| FunctionName { name: name.into(), file: 0, module: "/bin/a".into() };
        let mut simulated = Simulated::default();
        simulated.functions = vec![function("main"), function("walk"), function("other")];
        simulated.files = vec!["a.c".into(), UNKNOWN.into()];
        let named = &mut simulated.named;
        let place = |file, line| Place { file, line, stores: false };
        named.columns = vec![Column::Dr, Column::D1mr, Column::AcCost1, Column::SpLoss1];
        named.access_cost_unit = 1000;
        named.places.insert((1, place(0, 7)), row(400, 100, 5600));
        named.places.insert((0, place(0, 3)), row(9, 0, 0));
        named.places.insert((2, place(1, 0)), row(50, 10, 40));
        named.sum = row(459, 110, 5640);
        named.unknown_caller = row(2, 1, 8);
        let costs = |own, inclusive| FunctionCosts { own, inclusive };
        named.functions.insert(0, costs(row(9, 0, 0), row(459, 110, 5640)));
        named.functions.insert(1, costs(row(400, 100, 5600), row(400, 100, 5600)));
        let call = |calls, inclusive| CallCosts { calls, inclusive };
        named.calls.insert((0, place(0, 3), 1), call(1, row(300, 80, 4600)));
        named.calls.insert((2, place(1, 0), 1), call(2, row(100, 20, 1000)));
        named.calls.insert((1, place(0, 8), 1), call(5, row(40, 9, 500)));
        let geometry = Geometry { bytes: 4096, ways: 4, line: 64 };
        let machine = Machine {
            instructions: None,
            levels: vec![(Name::L1, geometry)],
            prefetch: Prefetch::None,
            compatible: false,
            objects: false,
            notices: Vec::new(),
        };
        (simulated, machine)
    }

    #[test]
    fn rows_say_who_loads_what_is_not_used() {
        let (simulated, machine) = example();
        let value = serde_json::to_value(of(&simulated, &machine, &[])).unwrap();
        let level = &value["levels"][0];
        assert_eq!((&level["lines_loaded"], &level["bytes_loaded"]), (&json!(110), &json!(7040)));
        let lines = value["by_loading_line"].as_array().unwrap();
        assert_eq!(lines.len(), 2, "a line that loads nothing has no row");
        assert_eq!(
            (&lines[0]["function"], &lines[0]["line"], &lines[0]["level"]),
            (&json!("walk"), &json!(7), &json!("L1"))
        );
        assert_eq!((&lines[0]["used_bytes_per_line"], &lines[0]["access_count"]), (&json!(8.0), &json!(4.0)));
        assert_eq!(lines[0]["share"], 5600.0 / 5640.0);
        assert_eq!(lines[0]["callers"].as_array().unwrap().len(), 1, "its own recursion is no caller");
        assert_eq!(lines[0]["callers"][0]["function"], "main");
        assert_eq!((&lines[1]["file"], &lines[1]["line"]), (&Value::Null, &Value::Null));
        let first = &value["by_function"][0];
        assert_eq!(
            (&first["function"], &first["self"], &first["inclusive"]),
            (&json!("main"), &json!(0), &json!(5640))
        );
        assert_eq!(first["traffic_share"], 5640.0 / 7040.0);
        assert_eq!(value["events"]["Dr"], 459);
        let unknown = &value["unknown_caller"];
        assert_eq!(
            (&unknown["access_cost"]["L1"], &unknown["spatial_loss_bytes"]["L1"]),
            (&json!(250), &json!(8))
        );
        assert_eq!((&unknown["events"]["Dr"], &unknown["events"]["D1mr"]), (&json!(2), &json!(1)));
    }

    #[test]
    fn the_table_has_everything() {
        let (simulated, machine) = example();
        let table = table(&simulated, &machine);
        assert_eq!(table.total, [459, 110, 27500, 5640]);
        assert_eq!((table.lines.len(), table.calls.len(), table.calls[2].count), (3, 3, 2));
        assert_eq!(table.described, ["D1 cache: 4096 B, 64 B, 4-way associative"]);
    }
}
