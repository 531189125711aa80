//! Counters of the agent since the start, and the part exposed as metrics.
//!
//! Counters rise with each ended segment, and never fall. At most
//! [`GROUPS`] groups have a name; the rest is one group. A group absent
//! for [`ABSENT`] segments makes room, and the counts go to the rest.

use std::collections::BTreeMap;

use locality_rollup::{CpuTime, OTHER, Rollup, Row, Who, without_small};
use serde::{Deserialize, Serialize};

/// Groups with a name.
const GROUPS: usize = 64;
/// Segments without a sample before a group makes room.
const ABSENT: u64 = 24;
/// Limit of reasons and causes distinguished.
const CAUSES: usize = 24;
/// Limit of sizes of caches shown.
const SIZES: usize = 6;
/// Sizes shown on every machine.
const FIXED: [u64; 3] = [32 << 10, 1 << 20, 32 << 20];

/// Counters of a group.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Group {
    pub cpu_ns: CpuTime,
    pub samples: u64,
    pub accesses: f64,
    /// By size of cache.
    pub loaded_bytes: Vec<(u64, f64)>,
    pub who: Who,
    last: u64,
}

/// Counters shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub groups: BTreeMap<String, Group>,
    pub lost: BTreeMap<String, u64>,
    pub not_held: BTreeMap<String, u64>,
    pub segments: u64,
    pub partial_segments: u64,
    pub failed_segments: u64,
    pub failed_rollups: u64,
    pub cut_watches: u64,
    pub unbalanced_segments: u64,
    /// Time between segments, without measurement.
    pub untraced_ns: u64,
    /// Exporters that ended and were replaced.
    pub exporters_lost: u64,
    /// Segments for a Collector, by fate; empty without a Collector.
    pub sent: BTreeMap<String, u64>,
}

/// Message to the exporter after each segment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Exposed {
    pub totals: Totals,
    /// Rows of the last segment, without places and objects.
    pub rows: Vec<Row>,
    /// Sizes of caches shown, ascending.
    pub sizes: Vec<u64>,
    /// Cost for the targets in the last segment, as a share of the targets' CPU time.
    pub targets_cost: f64,
    /// The agent's own CPU time since the segment before,
    /// as a share of the time of every processor.
    pub own_cost: f64,
    pub longest_stop_ns: u64,
    /// Processes left out by `--exclude` in the last segment, by kind of pattern.
    #[serde(default)]
    pub excluded: BTreeMap<String, u64>,
    pub balanced: bool,
    /// When the last segment ended, seconds since the Unix epoch.
    pub last_s: f64,
    pub store_bytes: u64,
}

impl Totals {
    /// Counts a segment.
    pub(crate) fn add(&mut self, rollup: &Rollup) {
        let health = &rollup.health;
        self.segments += 1;
        self.partial_segments += u64::from(health.partial);
        self.cut_watches += health.cut_watches;
        self.unbalanced_segments += u64::from(!health.balanced);
        add_causes(&mut self.lost, &health.lost);
        add_causes(&mut self.not_held, &health.not_held);
        self.make_room();
        for row in &rollup.rows {
            let has_room = self.groups.len() < GROUPS || self.groups.contains_key(&row.group);
            let name = if has_room { row.group.as_str() } else { OTHER };
            let segment = self.segments;
            let is_new = !self.groups.contains_key(name);
            let group = self.groups.entry(name.to_owned()).or_default();
            group.add(row, &shown_sizes(rollup));
            group.last = segment;
            match (name == OTHER, is_new) {
                (false, true) => group.who = row.who.clone(),
                (true, _) => group.who = Who::default(),
                _ => {}
            }
        }
    }

    fn make_room(&mut self) {
        let is_absent = |name: &String, group: &Group, now: u64| name != OTHER && now - group.last > ABSENT;
        let now = self.segments;
        if self.groups.len() < GROUPS {
            return;
        }
        let absent: Vec<String> = self
            .groups
            .iter()
            .filter(|(name, group)| is_absent(name, group, now))
            .map(|(name, _)| name.clone())
            .collect();
        for name in absent {
            let Some(gone) = self.groups.remove(&name) else { continue };
            let other = self.groups.entry(OTHER.to_owned()).or_default();
            other.last = now;
            other.sum(&gone);
        }
    }

    /// Rows of the last segment under the names shown.
    pub(crate) fn shown(&self, rollup: &Rollup) -> Vec<Row> {
        let named = |name: &str| name != OTHER && self.groups.contains_key(name);
        let mut rows = without_small(&rollup.rows, named);
        for row in &mut rows {
            row.places.clear();
            row.objects.clear();
        }
        rows
    }
}

impl Group {
    fn add(&mut self, row: &Row, sizes: &[u64]) {
        let loaded_bytes = sizes.iter().filter_map(|size| Some((*size, row.loaded_bytes(*size)?))).collect();
        self.sum(&Self {
            cpu_ns: row.cpu_ns,
            samples: row.samples,
            accesses: row.accesses.unwrap_or(0.0),
            loaded_bytes,
            ..Self::default()
        });
    }

    fn sum(&mut self, other: &Self) {
        self.cpu_ns.windows += other.cpu_ns.windows;
        self.cpu_ns.registers += other.cpu_ns.registers;
        self.cpu_ns.none += other.cpu_ns.none;
        self.samples += other.samples;
        self.accesses += other.accesses;
        for (size, bytes) in &other.loaded_bytes {
            match self.loaded_bytes.iter_mut().find(|(known, _)| known == size) {
                Some((_, sum)) => *sum += bytes,
                None => self.loaded_bytes.push((*size, *bytes)),
            }
        }
    }
}

/// Processes left out by `--exclude` in a segment, by kind of pattern.
pub(crate) fn excluded(rollup: &Rollup) -> BTreeMap<String, u64> {
    let mut by_kind: BTreeMap<String, u64> = BTreeMap::new();
    for (pattern, n) in &rollup.health.excluded {
        let kind = pattern.split(':').next().unwrap_or_default();
        *by_kind.entry(kind.to_owned()).or_default() += n;
    }
    by_kind
}

/// Sizes of caches shown: the machine's and [`FIXED`].
pub(crate) fn shown_sizes(rollup: &Rollup) -> Vec<u64> {
    let mut sizes: Vec<u64> =
        FIXED.into_iter().chain(rollup.caches.iter().map(|(_, bytes)| *bytes)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if sizes.len() > SIZES {
        sizes.retain(|size| FIXED.contains(size) || rollup.caches.iter().any(|(_, bytes)| bytes == size));
        sizes.truncate(SIZES);
    }
    sizes
}

fn add_causes(into: &mut BTreeMap<String, u64>, more: &[(String, u64)]) {
    for (cause, n) in more {
        let has_room = into.len() < CAUSES || into.contains_key(cause);
        *into.entry(if has_room { cause.clone() } else { OTHER.to_owned() }).or_default() += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollup(groups: &[(&str, f64)]) -> Rollup {
        let row = |(name, ns): &(&str, f64)| Row {
            group: (*name).to_owned(),
            samples: 1,
            cpu_ns: CpuTime { windows: *ns, ..CpuTime::default() },
            ..Row::default()
        };
        Rollup { rows: groups.iter().map(row).collect(), ..Rollup::default() }
    }

    fn cpu(totals: &Totals) -> f64 {
        totals.groups.values().map(|group| group.cpu_ns.sum()).sum()
    }

    #[test]
    fn counters_never_fall_and_groups_are_bounded() {
        let mut totals = Totals::default();
        let names: Vec<String> = (0..500).map(|n| format!("g{n}")).collect();
        let mut before: BTreeMap<String, f64> = BTreeMap::new();
        for round in 0..3 {
            for chunk in names.chunks(50) {
                let rows: Vec<(&str, f64)> = chunk.iter().map(|name| (name.as_str(), 1.0)).collect();
                let rollup = rollup(&rows);
                totals.add(&rollup);
                assert!(totals.groups.len() <= GROUPS + 1, "{}", totals.groups.len());
                assert!(totals.shown(&rollup).len() <= GROUPS + 1);
                for (name, group) in &totals.groups {
                    let last = before.insert(name.clone(), group.cpu_ns.sum()).unwrap_or(0.0);
                    assert!(group.cpu_ns.sum() >= last, "{name} in round {round}");
                }
            }
        }
        assert_eq!(cpu(&totals), 1500.0);
        assert_eq!(totals.groups.values().map(|group| group.samples).sum::<u64>(), 1500);
    }

    #[test]
    fn a_group_that_is_gone_makes_room() {
        let mut totals = Totals::default();
        let old: Vec<String> = (0..GROUPS).map(|n| format!("old{n}")).collect();
        totals.add(&rollup(&old.iter().map(|name| (name.as_str(), 1.0)).collect::<Vec<_>>()));
        for _ in 0..ABSENT {
            totals.add(&rollup(&[("new", 1.0)]));
        }
        assert!(!totals.groups.contains_key("new"));
        totals.add(&rollup(&[("new", 1.0)]));
        totals.add(&rollup(&[("new", 1.0)]));
        assert!(totals.groups.contains_key("new") && !totals.groups.contains_key("old0"));
        assert_eq!(cpu(&totals), (GROUPS as u64 + ABSENT + 2) as f64);
    }

    #[test]
    fn six_sizes_are_shown_at_most() {
        let caches = vec![(1, 48 << 10), (2, 2 << 20), (3, 30 << 20), (4, 128 << 20)];
        let sizes = shown_sizes(&Rollup { caches, ..Rollup::default() });
        assert_eq!(sizes.len(), SIZES);
        assert!(sizes.contains(&(32 << 10)) && sizes.contains(&(1 << 20)) && sizes.contains(&(32 << 20)));
        assert_eq!(shown_sizes(&Rollup::default()), FIXED);
    }
}
