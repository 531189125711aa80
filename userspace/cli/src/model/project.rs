//! Projection to further machines: each stop's time times the ratio
//! of the spot's cost on the machine to the cost here. Both costs
//! come from the same model, so the model's common error cancels.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use locality_execution::{
    breakdown::{self, Breakdown},
    build::Built,
    cost,
    machine::{Level, Machine},
    observed::Observed,
    schedule::{self, LineSources, Processor, Replays, SizeMisses},
    spots::{self, Place, Spot},
};
use locality_model::{Core, Profile};

use super::program::Program;
use crate::cli::model_args::CostArg;

/// Limit of bytes of a machine file.
const LARGEST: u64 = 1 << 20;

/// The run projected to another machine.
pub(crate) struct Projected {
    pub machine: Machine,
    /// Projected over measured time, and half the interval from sampling alone.
    pub ratio: (f64, f64),
    /// Shares of spots on the machine.
    pub shares: BTreeMap<Place, f64>,
    /// Heaviest spots common to both machines, and heaviest spots compared.
    pub shared: (usize, usize),
}

/// Caches of a host with unknown caches.
const USUAL_SIZES: [u64; 3] = [32 << 10, 1 << 20, 32 << 20];
/// Limit of spots compared.
const MOST: usize = 10;

/// Reads machine files; refuses two of one name.
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
    let text = std::fs::read(path).with_context(|| format!("cannot read {name}"))?;
    let text = String::from_utf8(text).map_err(|_| {
        anyhow!(
            "{name} is no machine file, but a file in binary: `locality-bpf calibrate --format toml` writes \
             one"
        )
    })?;
    Machine::parse(&text).map_err(|why| anyhow!("{name}: {why}"))
}

/// The traced machine by measurement; values not measured are of common processors.
fn here(profile: &Profile) -> Option<Machine> {
    let processor = profile.run.processor?;
    let core = processor.core.unwrap_or_default();
    let or = |measured: f64, usual: f64| if measured > 0.0 { measured } else { usual };
    let load = or(core.load, 4.0);
    let first = Level { bytes: 32768.0, latency: load, bytes_per_cycle: 64.0, bytes_per_cycle_stored: None };
    let mut levels = vec![first];
    let caches = profile.run.host.caches.iter().skip(1).map(|cache| cache.bytes as f64);
    let sizes = caches.chain([1048576.0, 33554432.0]).take(2).chain([f64::INFINITY]);
    for ([latency, between, _], bytes) in processor.levels.iter().zip(sizes) {
        let bytes_per_cycle = 64.0 / between.max(0.1);
        levels.push(Level { bytes, latency: load + latency, bytes_per_cycle, bytes_per_cycle_stored: None });
    }
    Some(Machine {
        name: profile.run.host.cpu.clone(),
        isa: "x86-64".to_owned(),
        clock_ghz: processor.clock,
        issue_width: or(core.width, 6.0),
        fp_per_cycle: or(core.floats, 2.0),
        // What ran here has no vector that the machine must split.
        vector_bits: 512.0,
        levels,
        core: Vec::new(),
        guesses: Vec::new(),
    })
}

/// Costs of a run's spots by one model, for the traced and further machines.
pub(crate) struct Costs<'a> {
    profile: &'a Profile,
    built: &'a Built,
    program: &'a Program,
    /// The model of costs.
    pub how: CostArg,
    /// Windows made again, for the schedule.
    replays: Option<Replays<'a>>,
    /// Of the traced machine's caches, for the schedule.
    misses: Vec<SizeMisses>,
    /// Nanoseconds by spot on the traced machine; `None`
    /// without windows or processor in the profile.
    here: Option<BTreeMap<Place, f64>>,
}

impl<'a> Costs<'a> {
    pub fn new(
        profile: &'a Profile,
        built: &'a Built,
        observed: &Observed,
        program: &'a Program,
        how: CostArg,
    ) -> Self {
        let mut costs = Self { profile, built, program, how, replays: None, misses: Vec::new(), here: None };
        let Some(processor) = profile.run.processor.filter(|_| !built.executions.is_empty()) else {
            return costs;
        };
        match how {
            CostArg::Paper => {
                costs.here = here(profile).map(|machine| costs.by_roofline(&machine, &built.executions));
            }
            CostArg::Schedule => {
                let misses = program.misses(profile, &sizes(profile));
                let accesses = misses.first().map(|first| program.accesses(profile, built, first));
                let replays = Replays::of(built, observed, accesses.unwrap_or_default());
                costs.here = Some(costs.by_schedule(&replays, measured(profile, &processor), &misses));
                (costs.replays, costs.misses) = (Some(replays), misses);
            }
        }
        costs
    }

    /// Nanoseconds by spot on another machine.
    fn there(&self, machine: &Machine) -> BTreeMap<Place, f64> {
        let Some(replays) = &self.replays else {
            return self.by_roofline(machine, &self.built.executions);
        };
        let caches = machine.levels.iter().map(|level| level.bytes).filter(|bytes| bytes.is_finite());
        let sizes: Vec<u64> = caches.map(|bytes| bytes as u64).collect();
        self.by_schedule(replays, machine.processor(), &self.program.misses(self.profile, &sizes))
    }

    fn by_roofline(
        &self,
        machine: &Machine,
        executions: &BTreeMap<(usize, u64), f64>,
    ) -> BTreeMap<Place, f64> {
        let costs = self.roofline(machine, executions);
        costs.into_iter().map(|(place, cost)| (place, cost.total())).collect()
    }

    fn roofline(
        &self,
        machine: &Machine,
        executions: &BTreeMap<(usize, u64), f64>,
    ) -> BTreeMap<Place, cost::Cost> {
        let spot_of = |function: usize, label: u64| spots::spot_of(self.built, function, label);
        cost::by_spot(&self.built.skeleton, executions, &spot_of, machine)
    }

    /// Parts of the time of spots on the traced machine; empty where nothing is modelled.
    pub fn breakdown(&self) -> BTreeMap<Place, Breakdown> {
        match (&self.replays, self.profile.run.processor) {
            (Some(replays), Some(processor)) => {
                let Some(sources) = sources(&self.misses) else { return BTreeMap::new() };
                breakdown::by_spot(self.built, replays, measured(self.profile, &processor), sources)
            }
            _ if self.how == CostArg::Paper => self.roofline_breakdown(),
            _ => BTreeMap::new(),
        }
    }

    fn roofline_breakdown(&self) -> BTreeMap<Place, Breakdown> {
        let Some(machine) = here(self.profile) else { return BTreeMap::new() };
        let instructions = spots::instructions(self.built);
        let parts =
            self.roofline(&machine, &self.built.executions).into_iter().filter_map(|(place, cost)| {
                let (executed, _) = *instructions.get(&place)?;
                let total = cost.total();
                (total > 0.0 && executed > 0.0).then(|| {
                    let waits = (cost.memory - cost.overlap) / total;
                    let found = Breakdown {
                        compute: 1.0 - waits,
                        waits: [0.0, 0.0, waits],
                        overlap: cost.overlap / total,
                        cycles_per_instruction: total * machine.clock_ghz / executed,
                        ..Breakdown::default()
                    };
                    (place, found)
                })
            });
        parts.collect()
    }

    /// `misses`: of the machine's caches, smallest first.
    fn by_schedule(
        &self,
        replays: &Replays<'_>,
        processor: Processor,
        misses: &[SizeMisses],
    ) -> BTreeMap<Place, f64> {
        self.by_schedule_of(replays, processor, misses, &self.built.executions)
    }

    fn by_schedule_of(
        &self,
        replays: &Replays<'_>,
        processor: Processor,
        misses: &[SizeMisses],
        executions: &BTreeMap<(usize, u64), f64>,
    ) -> BTreeMap<Place, f64> {
        let Some(sources) = sources(misses) else { return BTreeMap::new() };
        let costs = replays.costs(processor, sources);
        schedule::by_spot(self.built, &costs, executions)
    }

    /// Shares of spots on the traced machine, and the shares'
    /// selection quality against the stops, for 1 … 10 spots.
    pub fn shares(&self, spots: &[Spot]) -> Option<ByModel> {
        Some(self.shares_of(self.here.as_ref()?, spots))
    }

    /// The same with other executions of blocks, by number of the function and label.
    pub fn shares_with(&self, spots: &[Spot], executions: &BTreeMap<(usize, u64), f64>) -> Option<ByModel> {
        let costs = match (&self.replays, self.profile.run.processor) {
            (Some(replays), Some(processor)) => {
                self.by_schedule_of(replays, measured(self.profile, &processor), &self.misses, executions)
            }
            _ if self.how == CostArg::Schedule => return None,
            _ => self.by_roofline(&here(self.profile)?, executions),
        };
        Some(self.shares_of(&costs, spots))
    }

    fn shares_of(&self, costs: &BTreeMap<Place, f64>, spots: &[Spot]) -> ByModel {
        let all: f64 = costs.values().sum();
        let shares: BTreeMap<Place, f64> =
            costs.iter().map(|(place, cost)| (*place, cost / all.max(1e-300))).collect();
        let mut order: Vec<Place> = shares.keys().copied().collect();
        order.sort_by(|a, b| shares.get(b).unwrap_or(&0.0).total_cmp(shares.get(a).unwrap_or(&0.0)));
        let measured: BTreeMap<Place, f64> = spots.iter().map(|spot| (spot.place, spot.share.0)).collect();
        let quality = spots::selection_quality(&order, &measured, MOST);
        ByModel { how: self.how, shares, quality }
    }
}

/// Where lines of three levels come from. Misses of the last cache go to memory, for any number of caches.
fn sources(misses: &[SizeMisses]) -> Option<LineSources<'_>> {
    let (first, last) = (misses.first()?, misses.last()?);
    Some([first, misses.get(1).unwrap_or(last), last])
}

/// Sizes of the traced machine's caches.
fn sizes(profile: &Profile) -> Vec<u64> {
    let caches = &profile.run.host.caches;
    if caches.is_empty() { USUAL_SIZES.to_vec() } else { caches.iter().map(|cache| cache.bytes).collect() }
}

/// Shares of spots by a model.
pub(crate) struct ByModel {
    pub how: CostArg,
    pub shares: BTreeMap<Place, f64>,
    /// Selection quality for 1 … 10 spots.
    pub quality: Vec<f64>,
}

/// The traced machine by measurement, for the timing model.
fn measured(profile: &Profile, processor: &locality_model::Processor) -> Processor {
    let usual = Processor::default();
    let caches: Vec<f64> = profile.run.host.caches.iter().map(|cache| cache.bytes as f64).collect();
    let mut levels = usual.levels;
    for (at, (level, [latency, between, stored])) in levels.iter_mut().zip(processor.levels).enumerate() {
        let from = caches.get(at).map_or(level.from, |bytes| bytes / 64.0);
        *level = schedule::Level { from, latency, between, stored };
    }
    let of_core = |core: Core| Processor {
        width: core.width,
        loads: core.loads,
        wide_loads: core.wide_loads,
        stores: core.stores,
        close_stores: core.close_stores,
        integers: core.integers,
        floats: core.floats,
        load: core.load,
        forward: core.forward,
        forward_anew: core.forward_anew,
        add: core.add,
        multiply: core.multiply,
        ..usual
    };
    let parallel = if processor.parallel_line > 0.0 { processor.parallel_line } else { usual.parallel };
    let core = processor.core.map_or(usual, of_core);
    Processor { clock: processor.clock, parallel, levels, ..core }.plausible()
}

/// Projects a run.
pub(super) fn project(costs: &Costs<'_>, spots: &[Spot], machines: Vec<Machine>) -> Result<Vec<Projected>> {
    if machines.is_empty() {
        return Ok(Vec::new());
    }
    if costs.profile.run.processor.is_none() {
        bail!("the profile does not know the processor that it was taken on: trace again with this version");
    }
    let Some(before) = &costs.here else {
        bail!(
            "the profile holds no control flow, so nothing can be projected: trace again with this version"
        );
    };
    let projected = machines.into_iter().map(|machine| {
        let after = costs.there(&machine);
        let rows: Vec<(&Spot, f64)> = spots
            .iter()
            .filter_map(|spot| {
                let (old, new) = (before.get(&spot.place)?, after.get(&spot.place)?);
                (*old > 0.0).then_some((spot, new / old))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_no_machine_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("w.locality");
        std::fs::write(&file, b"SQLite format 3\0\xff\xfe").unwrap();
        let why = format!("{:#}", one(&file).unwrap_err());
        assert!(why.contains("is no machine file") && why.contains("calibrate --format toml"), "{why}");
    }
}
