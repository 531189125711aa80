//! Projection to other machines: each stop's time times what its spot takes there over what it takes here,
//! both by the same model, so that the model's common error cancels.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use locality_execution::{
    build::Built,
    cost,
    machine::{Level, Machine},
    spots::{self, Place, Spot},
};
use locality_model::Profile;

/// Bytes of a machine file that are read.
const LARGEST: u64 = 1 << 20;

/// What another machine would make of the run.
pub(crate) struct Projected {
    pub machine: Machine,
    /// Time there over time here, and half of its interval, of sampling alone.
    pub ratio: (f64, f64),
    /// Shares of spots there.
    pub shares: BTreeMap<Place, f64>,
    /// Of the heaviest spots here and there, how many both have.
    pub shared: (usize, usize),
}

/// Spots that are compared.
const MOST: usize = 10;

/// Reads machine files; two of one name are refused.
pub(super) fn read(paths: &[std::path::PathBuf]) -> Result<Vec<Machine>> {
    let mut machines: Vec<Machine> = Vec::new();
    for path in paths {
        let machine = one(path)?;
        if machines.iter().any(|known| known.name == machine.name) {
            bail!("{} is the second machine of the name {}", path.display(), machine.name);
        }
        machines.push(machine);
    }
    Ok(machines)
}

fn one(path: &Path) -> Result<Machine> {
    let name = path.display();
    let size = std::fs::metadata(path).with_context(|| format!("cannot read {name}"))?.len();
    if size > LARGEST {
        bail!("{name} is too large for a machine file");
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    Machine::parse(&text).map_err(|why| anyhow!("{name}: {why}"))
}

/// This machine, as the trace measured it; what a trace does not measure is that of common processors.
fn here(profile: &Profile) -> Option<Machine> {
    let processor = profile.run.processor?;
    let mut levels = vec![Level { bytes: 32768.0, latency: 4.0, bytes_per_cycle: 64.0 }];
    let caches = profile.run.host.caches.iter().skip(1).map(|cache| cache.bytes as f64);
    let sizes = caches.chain([1048576.0, 33554432.0]).take(2).chain([f64::INFINITY]);
    for ([latency, between, _], bytes) in processor.levels.iter().zip(sizes) {
        let bytes_per_cycle = 64.0 / between.max(0.1);
        levels.push(Level { bytes, latency: 4.0 + latency, bytes_per_cycle });
    }
    Some(Machine {
        name: profile.run.host.cpu.clone(),
        isa: "x86-64".to_owned(),
        clock_ghz: processor.clock,
        issue_width: 6.0,
        fp_per_cycle: 2.0,
        vector_bits: 256.0,
        levels,
        guesses: ["issue_width", "fp_per_cycle", "vector_bits"].map(str::to_owned).to_vec(),
    })
}

/// Shares of spots by the paper's roofline on this machine, and the selection quality that they have against
/// the stops, for 1 … 10 spots. `None` where the profile has no windows or no processor.
pub(super) fn by_roofline(
    profile: &Profile,
    built: &Built,
    spots: &[Spot],
) -> Option<(BTreeMap<Place, f64>, Vec<f64>)> {
    let own = here(profile).filter(|_| !built.executions.is_empty())?;
    let spot_of = |function: usize, label: u64| spots::spot_of(built, function, label);
    let costs = cost::by_spot(&built.skeleton, &built.executions, &spot_of, &own);
    let all: f64 = costs.values().map(|cost| cost.total()).sum();
    let shares: BTreeMap<Place, f64> =
        costs.into_iter().map(|(place, cost)| (place, cost.total() / all.max(1e-300))).collect();
    let mut order: Vec<Place> = shares.keys().copied().collect();
    order.sort_by(|a, b| shares.get(b).unwrap_or(&0.0).total_cmp(shares.get(a).unwrap_or(&0.0)));
    let measured: BTreeMap<Place, f64> = spots.iter().map(|spot| (spot.place, spot.share.0)).collect();
    let quality = spots::selection_quality(&order, &measured, MOST);
    Some((shares, quality))
}

/// Projects a run.
pub(super) fn project(
    profile: &Profile,
    built: &Built,
    spots: &[Spot],
    machines: Vec<Machine>,
) -> Result<Vec<Projected>> {
    if machines.is_empty() {
        return Ok(Vec::new());
    }
    let Some(own) = here(profile) else {
        bail!("the profile does not know the processor that it was taken on: trace again with this version");
    };
    if built.executions.is_empty() {
        bail!(
            "the profile holds no control flow, so nothing can be projected: trace again with this version"
        );
    }
    let costs = |machine: &Machine| {
        let spot_of = |function: usize, label: u64| spots::spot_of(built, function, label);
        cost::by_spot(&built.skeleton, &built.executions, &spot_of, machine)
    };
    let before = costs(&own);
    let projected = machines.into_iter().map(|machine| {
        let after = costs(&machine);
        let rows: Vec<(&Spot, f64)> = spots
            .iter()
            .filter_map(|spot| {
                let (old, new) = (before.get(&spot.place)?.total(), after.get(&spot.place)?.total());
                (old > 0.0).then_some((spot, new / old))
            })
            .collect();
        let known: f64 = rows.iter().map(|(spot, _)| spot.share.0).sum();
        let all: f64 = rows.iter().map(|(spot, ratio)| spot.share.0 * ratio).sum();
        let ratio = all / known.max(1e-300);
        let variance: f64 = rows
            .iter()
            .map(|(spot, own)| ((spot.share.2 - spot.share.1) / 3.92 * (own - ratio)).powi(2))
            .sum();
        let shares: BTreeMap<Place, f64> =
            rows.iter().map(|(spot, own)| (spot.place, spot.share.0 * own / all.max(1e-300))).collect();
        let mut there: Vec<(Place, f64)> = shares.iter().map(|(place, share)| (*place, *share)).collect();
        there.sort_by(|a, b| b.1.total_cmp(&a.1));
        let most = MOST.min(there.len());
        let is_heavy = |place: &Place| there.iter().take(most).any(|(other, _)| other == place);
        let both = rows.iter().take(most).filter(|(spot, _)| is_heavy(&spot.place)).count();
        Projected {
            machine,
            ratio: (ratio, 1.96 * variance.sqrt() / known.max(1e-300)),
            shares,
            shared: (both, most),
        }
    });
    Ok(projected.collect())
}
