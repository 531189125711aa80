//! Costs of use by data object, over the processes: the objects'
//! names in the plugin's log, and the rows of the report.
//!
//! Objects of two processes are merged if the log's descriptions are equal: a variable by
//! module, address and name, a mapping without a file by size. Kinds are as in live reports.
//! Not here: finding the objects (the plugin), charging an access (`locality-cachesim`).

use std::collections::BTreeMap;

use locality_cachesim::{ObjectUse, UNKNOWN_OBJECT};
use locality_plugin::objects::{HEAP, STACK};
use locality_report::schema::cache_use::ObjectLoss;
use locality_stream::Placement;
use locality_symbols::demangle;

use crate::report::ratio;

/// A data object.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct DataObject {
    kind: String,
    /// Name for readers.
    name: String,
    /// The ELF file of a variable.
    module: String,
    /// 0: not known.
    bytes: u64,
    /// Of a variable, in the module.
    address: u64,
}

/// Costs of the object's lines.
#[derive(Debug, Clone, Copy, Default)]
pub struct Charged {
    used: ObjectUse,
    /// Placements of the object.
    placements: u64,
}

/// By object; empty if objects were not distinguished.
pub type Objects = BTreeMap<DataObject, Charged>;

/// The objects of a process by the plugin's numbers.
#[derive(Debug, Default)]
pub struct Numbered {
    objects: BTreeMap<u32, DataObject>,
    placements: BTreeMap<u32, u64>,
}

impl Numbered {
    /// Reads objects and placements from a process's log.
    pub fn parse(log: &str, placed: &[Placement]) -> Self {
        let plain = |kind: &str| DataObject {
            kind: kind.to_owned(),
            name: format!("[{kind}]"),
            ..DataObject::default()
        };
        let fixed = [(UNKNOWN_OBJECT, plain("unknown")), (STACK, plain("stack")), (HEAP, plain("heap"))];
        let objects = fixed.into_iter().chain(log.lines().filter_map(object)).collect();
        let mut placements = BTreeMap::new();
        for placement in placed {
            *placements.entry(placement.object).or_default() += 1;
        }
        Self { objects, placements }
    }

    /// Adds the costs of a process' objects, by number.
    pub fn charge(&self, costs: &[ObjectUse], to: &mut Objects) {
        for (number, used) in (0..).zip(costs) {
            // A number with an incomplete line.
            let object = self.objects.get(&number).or_else(|| self.objects.get(&UNKNOWN_OBJECT));
            let Some(object) = object.filter(|_| *used != ObjectUse::default()) else { continue };
            let charged = to.entry(object.clone()).or_default();
            charged.used += used;
            charged.placements += self.placements.get(&number).copied().unwrap_or(0);
        }
    }
}

/// Parses an object's line of the log, of the form
/// `object NUMBER KIND BYTES ADDRESS<TAB>MODULE<TAB>NAME`.
fn object(line: &str) -> Option<(u32, DataObject)> {
    let mut parts = line.strip_prefix("object ")?.splitn(3, '\t');
    let mut words = parts.next()?.split(' ');
    let number = u32::from_str_radix(words.next()?, 16).ok()?;
    let kind = words.next()?.to_owned();
    let mut hexadecimal = || u64::from_str_radix(words.next()?, 16).ok();
    let (bytes, address) = (hexadecimal()?, hexadecimal()?);
    let (module, name) = (parts.next()?.to_owned(), parts.next()?);
    let name = match (kind.as_str(), name) {
        ("static", name) => demangle(name),
        (_, "") => "[anonymous memory]".to_owned(),
        (_, path) => path.to_owned(),
    };
    Some((number, DataObject { kind, name, module, bytes, address }))
}

/// Rows of a level (0 the first, 1 the second of three, 2 the last of several), heaviest first;
/// `line` bytes a line, and `unit` for a whole access. Returns how many were left out.
pub fn rows(
    objects: &Objects,
    name: &str,
    level: usize,
    (line, unit): (u64, u64),
    most: usize,
    rows: &mut Vec<ObjectLoss>,
) -> usize {
    let at = |charged: &Charged| charged.used.levels.get(level).copied().unwrap_or_default();
    let mut ranked: Vec<_> = objects
        .iter()
        .map(|(object, charged)| (object, charged, at(charged)))
        .filter(|(_, _, used)| used.lines > 0)
        .collect();
    ranked.sort_by_key(|(object, _, used)| (std::cmp::Reverse(used.spatial_loss), *object));
    let lost: u64 = ranked.iter().map(|(_, _, used)| used.spatial_loss).sum();
    let lines: u64 = ranked.iter().map(|(_, _, used)| used.lines).sum();
    for (object, charged, used) in ranked.iter().take(most) {
        let bytes = used.lines * line;
        let used_bytes = ratio(bytes.saturating_sub(used.spatial_loss), used.lines);
        let access_count = used.lines as f64 * unit as f64 / used.access_cost as f64;
        rows.push(ObjectLoss {
            access_count: (used.access_cost > 0).then(|| access_count.into()),
            bytes: Some(Some(object.bytes).filter(|bytes| *bytes > 0)),
            kind: object.kind.clone(),
            level: name.to_owned(),
            lines_loaded: used.lines.into(),
            mappings: Some(Some(charged.placements).filter(|_| object.kind == "mapped")),
            module: Some(Some(object.module.clone()).filter(|module| !module.is_empty())),
            name: object.name.clone(),
            share: ratio(used.spatial_loss, lost).into(),
            spatial_loss_bytes: used.spatial_loss.into(),
            traffic_share: ratio(used.lines, lines).into(),
            used_bytes_per_line: Some(used_bytes.into()),
            ..ObjectLoss::default()
        });
    }
    ranked.len().saturating_sub(most)
}

#[cfg(test)]
mod tests {
    use locality_cachesim::LevelUse;

    use super::*;

    fn used(lines: u64, spatial_loss: u64) -> ObjectUse {
        let mut used = ObjectUse::default();
        used.levels[0] = LevelUse { lines, access_cost: lines * 250, spatial_loss };
        used
    }

    #[test]
    fn objects_are_named_by_the_log_and_summed_over_processes() {
        let log = "0 1000 2000 0 /bin/a\nobject 3 static 40 4010\t/bin/a\t_ZN5space4hereE\nobject 4 static 9000 0\t/bin/a\t[.bss]\n\
                   object 5 mapped 100000 0\t\t\nobject 6 file 10 0\t\t/tmp/a b\nobject 7 static";
        let place = |object| Placement { start: 0, end: 1, object, reserved: 0 };
        let first = Numbered::parse(log, &[place(5), place(5), place(3)]);
        let mut objects = Objects::default();
        let costs = [
            used(1, 1),
            used(2, 0),
            used(0, 0),
            used(100, 5600),
            used(4, 4),
            used(10, 40),
            used(6, 6),
            used(7, 7),
        ];
        first.charge(&costs, &mut objects);
        // The same object has another number in another process.
        let second = Numbered::parse("object 3 mapped 100000 0\t\t\n", &[place(3)]);
        second.charge(&[used(0, 0), used(0, 0), used(0, 0), used(5, 8)], &mut objects);
        let mut table = Vec::new();
        assert_eq!(rows(&objects, "L1", 0, (64, 1000), 3, &mut table), 3);
        let text: Vec<(&str, &str, Option<u64>)> = table
            .iter()
            .map(|row| (row.name.as_str(), row.kind.as_str(), row.lines_loaded.whole()))
            .collect();
        assert_eq!(
            text,
            [
                ("space::here", "static", Some(100)),
                ("[anonymous memory]", "mapped", Some(15)),
                ("[unknown]", "unknown", Some(8))
            ],
        );
        let first = &table[0];
        assert_eq!((first.used_bytes_per_line, first.access_count), (Some(8.0.into()), Some(4.0.into())));
        let module = first.module.as_ref().and_then(Option::as_deref);
        assert_eq!((table[1].mappings, module), (Some(Some(3)), Some("/bin/a")));
        assert_eq!(first.share, (5600.0 / 5666.0).into());
        assert_eq!(first.traffic_share, (100.0 / 135.0).into());
        assert_eq!(rows(&objects, "LL", 2, (64, 1000), 3, &mut Vec::new()), 0);
    }
}
