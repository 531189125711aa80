//! `--self-parallelism`: sums over threads and processes, and their report.
//!
//! Regions of several threads and processes are one if they begin at the same place of a file. Not here:
//! counting (`locality-dataflow`).

use std::{cmp::Reverse, collections::HashMap};

use locality_dataflow::{NestSetup, RegionCount};
use locality_report::schema::{
    number::Number,
    place::Place,
    self_parallelism::{Region, SelfParallelism},
};

use crate::{
    image::Image,
    names::Names,
    report::ratio,
    tasks::{Key, key, place},
};

/// Rows of the table in the report.
const ROWS: usize = 200;

/// A region's sums.
#[derive(Debug, Clone)]
struct Sum {
    key: Key,
    is_loop: bool,
    place: Option<Place>,
    counts: RegionCount,
}

/// Results of the run.
#[derive(Debug, Default)]
pub struct Regions {
    setup: Option<NestSetup>,
    work: u64,
    index: HashMap<(Key, bool), usize>,
    regions: Vec<Sum>,
}

impl Regions {
    /// Adds what an image's threads came to.
    pub fn add(&mut self, image: &Image, names: &mut Names) {
        for found in &image.nests {
            self.setup = Some(found.setup);
            self.work += found.work;
            let first = |region: &RegionCount| Some(image.blocks.get(region.block as usize)?.first);
            // Names are looked up for regions that may be reported.
            let mut named: Vec<&RegionCount> = found.regions.iter().collect();
            named.sort_by_key(|region| Reverse(region.work));
            named.truncate(2 * ROWS);
            names.ahead(image, named.iter().filter_map(|region| first(region)));
            let least = named.last().map_or(0, |region| region.work);
            for region in &found.regions {
                let Some(instruction) = first(region) else { continue };
                let key = key(image, instruction);
                let regions = &mut self.regions;
                let position = *self.index.entry((key.clone(), region.is_loop)).or_insert_with(|| {
                    let counts = RegionCount {
                        instances: 0,
                        iterations: 0,
                        work: 0,
                        span: 0,
                        parts: 0,
                        unmeasured: 0,
                        ..*region
                    };
                    regions.push(Sum { key, is_loop: region.is_loop, place: None, counts });
                    regions.len() - 1
                });
                let Some(sum) = self.regions.get_mut(position) else { continue };
                let counts = &mut sum.counts;
                counts.instances += region.instances;
                counts.iterations += region.iterations;
                counts.work += region.work;
                counts.span += region.span;
                counts.parts += region.parts;
                counts.unmeasured += region.unmeasured;
                if sum.place.is_none() && region.work >= least {
                    sum.place = Some(place(image, names, instruction, !region.is_loop));
                }
            }
        }
    }

    /// The report's `self_parallelism`; `None` if not measured.
    pub fn describe(&self, processors: u32, lines: &[String]) -> Option<SelfParallelism> {
        let setup = self.setup?;
        let mut rows: Vec<(f64, Region)> = self.regions.iter().map(|sum| self.row(sum, processors)).collect();
        rows.sort_by(|(one, first), (other, second)| {
            other.total_cmp(one).then_with(|| second.work.cmp(&first.work)).then_with(|| {
                let order = |row: &Region| (row.place.file.clone(), row.place.line, row.place.address);
                order(first).cmp(&order(second))
            })
        });
        rows.truncate(ROWS);
        let ignored = setup.view.ignored().into_iter().map(str::to_owned);
        Some(SelfParallelism {
            ignored: ignored.chain(lines.iter().cloned()).collect(),
            latency: setup.latency.name().to_owned(),
            processors,
            regions: rows.into_iter().map(|(_, row)| row).collect(),
            regions_total: self.regions.len() as u64,
            view: setup.view.name().to_owned(),
            work: self.work,
        })
    }

    /// A row, with the speed-up by which it is ranked.
    fn row(&self, sum: &Sum, processors: u32) -> (f64, Region) {
        let counts = &sum.counts;
        let share = ratio(counts.work, self.work);
        // A region of copies alone takes no time.
        let parallelism = (counts.span > 0).then(|| ratio(counts.parts, counts.span));
        let speed_up = |most: f64| parallelism.map(|own| speed_up(share, own.min(most)));
        let row = Region {
            instances: counts.instances,
            iterations: sum.is_loop.then_some(counts.iterations),
            kind: if sum.is_loop { "loop" } else { "function" }.to_owned(),
            parts: counts.parts,
            place: sum.place.clone().unwrap_or_else(|| sum.key.place()),
            self_parallelism: parallelism.map(Number::from),
            share: share.into(),
            span: counts.span,
            speed_up: speed_up(processors.into()).map(Number::from),
            speed_up_unlimited: speed_up(f64::INFINITY).map(Number::from),
            unmeasured: counts.unmeasured,
            work: counts.work,
        };
        (speed_up(processors.into()).unwrap_or(0.0), row)
    }
}

/// Amdahl's law: only this share of the run is so many times as fast.
fn speed_up(share: f64, by: f64) -> f64 {
    1.0 / (1.0 - share + share / by.max(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_run_gains_a_part() {
        assert_eq!(speed_up(1.0, 4.0), 4.0);
        assert_eq!(speed_up(0.0, 4.0), 1.0);
        assert_eq!(speed_up(0.5, f64::INFINITY), 2.0);
        assert_eq!(speed_up(0.5, 2.0), 1.0 / 0.75);
        // Rounding of sums never slows a run down.
        assert_eq!(speed_up(0.5, 0.99), 1.0);
    }
}
