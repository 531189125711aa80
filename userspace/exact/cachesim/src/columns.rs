//! Counted events, and rows of their counts.

use std::ops::{AddAssign, Index, IndexMut, SubAssign};

use locality_stream::Plain;

use crate::config::Config;

/// One counted event. Columns of absent levels stay 0; [`Config::columns`] lists the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Column {
    /// Instructions executed (with instruction fetch only).
    Ir,
    /// Data reads.
    Dr,
    /// Data writes.
    Dw,
    /// Fetches that miss the first-level instruction cache.
    I1mr,
    /// Data reads that miss the first level.
    D1mr,
    /// Data writes that miss the first level.
    D1mw,
    /// Data reads that miss the second of three levels; an instruction's fetch counts here too.
    D2mr,
    /// Data writes that miss the second of three levels.
    D2mw,
    /// Fetches that miss the last level.
    ILmr,
    /// Data reads that miss the last of several levels.
    DLmr,
    /// Data writes that miss the last of several levels.
    DLmw,
    /// Lines that the prefetcher brought into the first level.
    Pf1,
    /// 1 / accesses, summed over the lines that left the first level; in units of
    /// [`Config::access_cost_unit`].
    AcCost1,
    /// Bytes never used, summed over the lines that left the first level (of instructions too,
    /// where simulated).
    SpLoss1,
    /// As [`Column::AcCost1`], of the second of three levels.
    AcCost2,
    /// As [`Column::SpLoss1`], of the second of three levels.
    SpLoss2,
    /// As [`Column::AcCost1`], of the last of several levels.
    AcCostL,
    /// As [`Column::SpLoss1`], of the last of several levels.
    SpLossL,
    /// Lines that left the first level, hence all loads into it: by misses (both lines of an access
    /// to two) and by the prefetcher. Not listed in Callgrind's model.
    Lines1,
    /// As [`Column::Lines1`], of the second of three levels.
    Lines2,
    /// As [`Column::Lines1`], of the last of several levels.
    LinesL,
}

/// Number of columns.
pub const COLUMNS: usize = 21;

impl Column {
    /// All columns, in the order of their values.
    pub const ALL: [Column; COLUMNS] = [
        Column::Ir,
        Column::Dr,
        Column::Dw,
        Column::I1mr,
        Column::D1mr,
        Column::D1mw,
        Column::D2mr,
        Column::D2mw,
        Column::ILmr,
        Column::DLmr,
        Column::DLmw,
        Column::Pf1,
        Column::AcCost1,
        Column::SpLoss1,
        Column::AcCost2,
        Column::SpLoss2,
        Column::AcCostL,
        Column::SpLossL,
        Column::Lines1,
        Column::Lines2,
        Column::LinesL,
    ];

    /// The event's name in our reports.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; COLUMNS] = [
            "Ir", "Dr", "Dw", "I1mr", "D1mr", "D1mw", "D2mr", "D2mw", "ILmr", "DLmr", "DLmw", "Pf1",
            "AcCost1", "SpLoss1", "AcCost2", "SpLoss2", "AcCostL", "SpLossL", "Lines1", "Lines2", "LinesL",
        ];
        NAMES.get(self as usize).copied().unwrap_or_default()
    }

    /// The event's name in Callgrind's files (valgrind 3.19), which call the last level's use `2`;
    /// lines are our own event.
    pub fn callgrind_name(self) -> &'static str {
        match self {
            Column::AcCostL => "AcCost2",
            Column::SpLossL => "SpLoss2",
            Column::LinesL => "Lines2",
            _ => self.name(),
        }
    }
}

impl Config {
    /// The columns of this hierarchy, in Callgrind's order of printing, then the absent ones.
    pub fn columns(&self) -> Vec<Column> {
        let levels = self.levels.len();
        let fetch = self.instruction_fetch.is_some();
        let counts = |column: &Column| match column {
            Column::Ir | Column::I1mr => fetch,
            Column::ILmr => fetch && levels > 1,
            Column::D2mr | Column::D2mw | Column::AcCost2 | Column::SpLoss2 => levels > 2,
            Column::DLmr | Column::DLmw | Column::AcCostL | Column::SpLossL => levels > 1,
            Column::Lines1 => !self.compatible_callgrind,
            Column::Lines2 => levels > 2 && !self.compatible_callgrind,
            Column::LinesL => levels > 1 && !self.compatible_callgrind,
            Column::Pf1 => self.prefetch != crate::config::Prefetch::None,
            Column::Dr | Column::Dw | Column::D1mr | Column::D1mw | Column::AcCost1 | Column::SpLoss1 => true,
        };
        Column::ALL.into_iter().filter(counts).collect()
    }

    /// Count of one whole reciprocal access in the `AcCost` columns: 1,000 in Callgrind's model,
    /// else 1,000,000. A line accessed n times adds this divided by n, rounded down.
    pub fn access_cost_unit(&self) -> u64 {
        if self.compatible_callgrind { 1000 } else { 1_000_000 }
    }
}

/// One count a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct Costs(pub [u64; COLUMNS]);
// SAFETY: integers.
unsafe impl Plain for Costs {}

impl Costs {
    /// Whether nothing is counted.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|count| *count == 0)
    }
}

impl Index<Column> for Costs {
    type Output = u64;
    #[inline(always)]
    fn index(&self, column: Column) -> &u64 {
        &self.0[column as usize]
    }
}

impl IndexMut<Column> for Costs {
    #[inline(always)]
    fn index_mut(&mut self, column: Column) -> &mut u64 {
        &mut self.0[column as usize]
    }
}

impl AddAssign<&Costs> for Costs {
    fn add_assign(&mut self, other: &Costs) {
        self.0.iter_mut().zip(&other.0).for_each(|(ours, theirs)| *ours = ours.wrapping_add(*theirs));
    }
}

impl SubAssign<&Costs> for Costs {
    fn sub_assign(&mut self, other: &Costs) {
        self.0.iter_mut().zip(&other.0).for_each(|(ours, theirs)| *ours = ours.wrapping_sub(*theirs));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Level;

    #[test]
    fn columns_are_those_of_the_hierarchy_in_callgrinds_order() {
        let names = |config: &Config| -> String {
            let names: Vec<&str> = config.columns().iter().map(|column| column.callgrind_name()).collect();
            names.join(" ")
        };
        let level = |bytes| Level::new("L", bytes, 8, 64);
        let mut config = Config::new(vec![level(1 << 15), level(1 << 20)]);
        assert_eq!(names(&config), "Dr Dw D1mr D1mw DLmr DLmw AcCost1 SpLoss1 AcCost2 SpLoss2 Lines1 Lines2");
        config.instruction_fetch = Some(level(1 << 15));
        config.compatible_callgrind = true;
        // The line `events:` of a file of Callgrind's.
        assert_eq!(names(&config), "Ir Dr Dw I1mr D1mr D1mw ILmr DLmr DLmw AcCost1 SpLoss1 AcCost2 SpLoss2");
        assert_eq!(names(&Config::new(vec![level(1 << 15)])), "Dr Dw D1mr D1mw AcCost1 SpLoss1 Lines1");
        for (index, column) in Column::ALL.into_iter().enumerate() {
            assert_eq!(column as usize, index);
        }
    }
}
