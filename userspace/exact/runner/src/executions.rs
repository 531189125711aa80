//! Executions of each instruction, by file and address in the file, for comparisons with the execution model.
//!
//! Code outside files has no address that another run has, and is left out.

use std::collections::BTreeMap;

use locality_report::schema::executions::FileExecutions;

use super::image::Image;
use super::names::Names;

/// Executions of all images.
#[derive(Debug, Default)]
pub struct Executions {
    /// By path and build id: by address, length of the instruction and executions.
    files: BTreeMap<(String, String), BTreeMap<u64, (u8, u64)>>,
}

impl Executions {
    /// Adds an image.
    pub fn add(&mut self, image: &Image, names: &mut Names) {
        for ((number, record), count) in (0_u32..).zip(&image.records).zip(&image.executed) {
            if *count > 0
                && let Some((path, build_id, address)) = names.in_file(image, number)
            {
                let length = record.code().len() as u8;
                // Addresses repeat in blocks that overlap.
                let sums = self.files.entry((path, build_id)).or_default();
                let sum = sums.entry(address).or_insert((length, 0));
                sum.1 = sum.1.saturating_add(*count);
            }
        }
    }

    /// As the report has them; `None` without any.
    pub fn describe(&self) -> Option<Vec<FileExecutions>> {
        let files = self.files.iter().map(|((file, build_id), counts)| {
            let mut runs: Vec<(u64, u64, u64, u64)> = Vec::new();
            for (address, (length, count)) in counts {
                let end = address + u64::from(*length);
                match runs.last_mut() {
                    Some(run) if run.1 == *address && run.2 == *count => (run.1, run.3) = (end, run.3 + 1),
                    _ => runs.push((*address, end, *count, 1)),
                }
            }
            FileExecutions { build_id: build_id.clone(), file: file.clone(), runs }
        });
        let files: Vec<FileExecutions> = files.collect();
        (!files.is_empty()).then_some(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_at_gaps_and_other_counts() {
        let counts = BTreeMap::from([(0x10, (2, 5)), (0x12, (3, 5)), (0x15, (1, 6)), (0x20, (1, 6))]);
        let executions = Executions { files: BTreeMap::from([(("a".to_owned(), "1f".to_owned()), counts)]) };
        let found = executions.describe().unwrap();
        assert_eq!(found[0].runs, [(0x10, 0x15, 5, 2), (0x15, 0x16, 6, 1), (0x20, 0x21, 6, 1)]);
        assert_eq!(Executions::default().describe(), None);
    }
}
