//! `parallelism` and `mix` of a trace.

use locality_estimate::interval_estimate::Estimate;
use locality_findings::execution::{Execution, Machine};

use crate::{
    estimates::ci95,
    schema::{
        mix::Mix,
        parallelism::{Parallelism, Window, WindowSize},
    },
};

/// Of every window.
const PREDICTOR: &str = "perfect";

pub(super) fn parallelism(found: &Execution) -> Parallelism {
    Parallelism {
        ignored: ["stack", "induction", "copies"].map(str::to_owned).into(),
        instructions: found.instructions,
        latency: "unit".to_owned(),
        predictor: PREDICTOR.to_owned(),
        resolution: 1,
        view: "values".to_owned(),
        windows: found.machines.iter().map(window).collect(),
        ..Parallelism::default()
    }
}

fn window(machine: &Machine) -> Window {
    Window {
        ci95: Some(ci95(&machine.ilp)),
        cycles: machine.cycles,
        ilp: machine.ilp.value.into(),
        n: Some(machine.ilp.n),
        predictor: PREDICTOR.to_owned(),
        spread: Some(machine.spread.map(Into::into)),
        window: WindowSize::Instructions(machine.in_flight.into()),
        ..Window::default()
    }
}

pub(super) fn mix(found: &Execution) -> Mix {
    let branches = found.classes.iter().find(|(class, _)| class == "branch");
    let branches = branches.map_or_else(Estimate::default, |(_, share)| *share);
    let parts = [("branches", branches), ("loads", found.loads), ("stores", found.stores)];
    let intervals = parts.iter().map(|(name, share)| ((*name).to_owned(), ci95(share)));
    let of_classes = found.classes.iter().map(|(class, share)| (class.clone(), ci95(share)));
    Mix {
        accesses: found.accesses,
        branches: branches.value.into(),
        ci95: Some(intervals.chain(of_classes).collect()),
        classes: found.classes.iter().map(|(class, share)| (class.clone(), share.value.into())).collect(),
        instructions: found.instructions,
        loads: found.loads.value.into(),
        n: Some(found.loads.n),
        stores: found.stores.value.into(),
    }
}
