//! The breakdown of each spot as text and JSON: computing, waits for lines by level, what binds the spot, its
//! issue rate, and instructions of a miss of the first-level cache.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use locality_execution::breakdown::Breakdown;
use locality_execution::spots::Place;
use locality_report::text;
use serde_json::{Value, json};

use super::Model;
use super::page::{Names, ROWS, digits, how, shortened};
use crate::cli::model_args::CostArg;

/// A table of the heaviest spots.
pub(super) fn table(model: &Model, names: &Names, page: &mut String) {
    if !model.spots.iter().take(ROWS).any(|spot| model.breakdown.contains_key(&spot.place)) {
        return;
    }
    let _ = writeln!(page, "\nHow the time of spots passes here, by {}", how(model.cost));
    let _ = writeln!(
        page,
        "{:<33}{:>9}{:>7}{:>7}{:>8}{:>9}{:>7}{:>9}  bound by",
        "", "computing", "L2", "LLC", "memory", "covered", "issue", "L1 every"
    );
    for (number, spot) in model.spots.iter().take(ROWS).enumerate() {
        let Some(found) = model.breakdown.get(&spot.place) else { continue };
        let percent = |share: f64| format!("{} %", digits(100.0 * share));
        let [second, last, memory] = found.waits;
        let near = |share: f64| if model.cost == CostArg::Paper { "-".to_owned() } else { percent(share) };
        let _ = writeln!(
            page,
            "{:>3} {:<29}{:>9}{:>7}{:>7}{:>8}{:>9}{:>7.2}{:>9}  {}",
            number + 1,
            shortened(&names.spot(model, spot.place), 28),
            percent(found.compute),
            near(second),
            near(last),
            percent(memory),
            covered(found).map_or_else(|| "-".to_owned(), percent),
            1.0 / found.cycles_per_instruction,
            found.instructions_per_miss.map_or_else(|| "-".to_owned(), per_miss),
            found.bound_by.map_or("-", |(limit, _)| text::bound_by(limit.name())),
        );
    }
    page.push_str(
        "   computing, and waits for lines of L2, LLC and memory: they sum to 100 %. covered: the part of the\n   \
         lines' latency with other work meanwhile. issue: instructions in a cycle; many where they run in the\n   \
         waits of another spot. L1 every: instructions from one L1 miss to the next. bound by: the limit\n   \
         without which the spot gains most.\n",
    );
}

fn per_miss(instructions: f64) -> String {
    if instructions < 1e6 { digits(instructions) } else { "1 M+".to_owned() }
}

/// Share of the latency of lines that other work covers.
fn covered(found: &Breakdown) -> Option<f64> {
    let latencies = found.overlap + found.waits.iter().sum::<f64>();
    (latencies > 1e-9).then(|| found.overlap / latencies)
}

/// Fields of a spot in JSON. `instructions`: those of [`locality_execution::spots::instructions`].
pub(super) fn json(
    model: &Model,
    place: Place,
    instructions: &BTreeMap<Place, (f64, usize)>,
) -> [(&'static str, Value); 5] {
    let found = model.breakdown.get(&place);
    let [second, last, memory] = found.map(|found| found.waits).unwrap_or_default();
    let waits = match model.cost {
        CostArg::Schedule => json!({ "L2": second, "LLC": last, "memory": memory }),
        CostArg::Paper => json!({ "memory": memory }),
    };
    let parts = found
        .map(|found| json!({ "compute": found.compute, "waits": waits, "overlap": found.overlap }))
        .unwrap_or_default();
    [
        ("breakdown", parts),
        ("bound_by", json!(found.and_then(|found| Some(found.bound_by?.0.name())))),
        ("cycles", json!(found.and_then(|found| cycles(model, place, found, instructions)))),
        ("instructions_per_cycle", json!(found.map(|found| 1.0 / found.cycles_per_instruction))),
        ("instructions_per_l1_miss", json!(found.and_then(|found| found.instructions_per_miss))),
    ]
}

/// Cycles of an iteration of a loop, without inner loops; of a call of a function, without its loops.
fn cycles(
    model: &Model,
    place: Place,
    found: &Breakdown,
    instructions: &BTreeMap<Place, (f64, usize)>,
) -> Option<f64> {
    let entry = || {
        let code = &model.built.functions.get(place.0)?.code;
        Some(code.blocks.get(code.first)?.start)
    };
    let first = place.1.or_else(entry)?;
    let executions = model.built.executions.get(&(place.0, first)).filter(|count| **count > 0.0)?;
    let (instructions, _) = *instructions.get(&place)?;
    Some(found.cycles_per_instruction * instructions / executions)
}
