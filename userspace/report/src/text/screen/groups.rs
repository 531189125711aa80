//! Groups of processes on one screen: CPU time, misses by level, and how much was seen.

use super::{
    Line, Screen, names,
    numbers::{Between, percent},
};
use crate::schema::groups::Group;

/// Cells of miss ratios at most: of the first level, the second, and the last.
const LEVELS: usize = 3;
/// Columns of the cells beside the name and the miss ratios: CPU, samples, and how much was seen.
const OTHERS: usize = 6 + 7 + 7;

impl Screen<'_> {
    /// For several groups.
    pub(super) fn groups(&self) -> Vec<Line> {
        let Some(groups) = self.report.groups.as_ref().filter(|groups| groups.rows.len() > 1) else {
            return Vec::new();
        };
        let levels = self.levels();
        let share_columns = self.share_columns() + 2;
        let room = self.columns.saturating_sub(3 + OTHERS + levels.len() * share_columns);
        let heads = levels.iter().map(|(name, _)| format!("{:<share_columns$}", format!("{name} misses")));
        let head = format!(
            "{:<width$}{:>6}{:>7}{:>7}  {}",
            "What ran",
            "CPU",
            "n",
            "seen",
            heads.collect::<String>(),
            width = room + 1,
        );
        let mut lines = vec![Self::heading(head.trim_end())];
        let rows = groups.rows.iter().take(self.rows.groups);
        lines.extend(rows.enumerate().map(|(index, group)| {
            let misses = levels
                .iter()
                .map(|(_, level)| format!("{:<share_columns$}", self.group_misses(group, *level)));
            let text = format!(
                "{:>2} {:<width$}{:>6}{:>7}{:>7}  {}",
                index + 1,
                names::cut(&group.name, room.saturating_sub(3)),
                group.cpu_share.value.finite().map_or(String::new(), percent),
                group.cpu_share.n,
                group.coverage.windows.finite().map_or(String::new(), percent),
                misses.collect::<String>(),
                width = room - 2,
            );
            Line::plain(text.trim_end())
        }));
        let more = groups.rows.len().saturating_sub(self.rows.groups) as u64 + groups.left_out;
        if more > 0 {
            let noun = if more == 1 { "group" } else { "groups" };
            lines.push(Line::plain(format!("   {more} more {noun}")));
        }
        lines
    }

    /// Names and levels of the caches that have a cell; none where no group has miss ratios.
    fn levels(&self) -> Vec<(String, u8)> {
        let groups = self.report.groups.iter().flat_map(|groups| &groups.rows);
        let known = groups.filter_map(|group| group.miss_ratios.as_ref()).max_by_key(|points| points.len());
        let mut levels: Vec<u8> = known.into_iter().flatten().filter_map(|point| point.level).collect();
        levels.sort_unstable();
        levels.dedup();
        let last = levels.last().copied();
        if levels.len() > LEVELS {
            levels.truncate(LEVELS - 1);
            levels.extend(last);
        }
        // On a narrow page, the first and the last.
        if self.is_narrow() && levels.len() > 2 {
            levels.drain(1..levels.len() - 1);
        }
        let several = levels.len() > 1;
        let name = |level: u8| match several && Some(level) == last {
            true => "LLC".to_owned(),
            false => format!("L{level}"),
        };
        levels.into_iter().map(|level| (name(level), level)).collect()
    }

    fn group_misses(&self, group: &Group, level: u8) -> String {
        let points = group.miss_ratios.iter().flatten();
        let at = points.filter(|point| point.level == Some(level));
        at.map(|point| self.share(Between::of(point.ratio, point.ci95)))
            .next()
            .unwrap_or_else(|| "-".to_owned())
    }
}
