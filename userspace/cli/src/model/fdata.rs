//! Taken branches in BOLT's text format, `fdata`: like a
//! processor's branch records, but also in virtual machines.
//!
//! A line is `1 FUNCTION OFFSET 1 FUNCTION OFFSET MISPREDICTED COUNT`, names as
//! in the symbol table, offsets in hexadecimal. Counts are executions weighed by
//! time, scaled to 1 for the rarest transfer. Mispredictions are not known and 0.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use iced_x86::FlowControl;
use locality_execution::build::Read;
use locality_execution::observed::{At, Sums};

use super::Model;

/// Greatest count.
const MOST: f64 = 1e15;

/// The branches of the file with the most branches.
pub(super) fn page(model: &Model) -> String {
    let sums = Sums::of(model.observed.windows.iter());
    let find = |at: At| {
        let holds = |read: &&Read| {
            let end = read.bytes.start + read.bytes.bytes.len() as u64;
            read.file == at.0 && (read.bytes.start..end).contains(&at.1)
        };
        model.built.functions.iter().find(holds)
    };
    let mut taken: BTreeMap<(At, At), f64> = BTreeMap::new();
    for (from, targets) in &sums.edges {
        let instruction = find(*from)
            .and_then(|read| read.code.instructions.iter().find(|instruction| instruction.ip() == from.1));
        for (to, count) in targets {
            let falls_through = instruction.is_some_and(|instruction| {
                instruction.flow_control() == FlowControl::ConditionalBranch && to.1 == instruction.next_ip()
            });
            if !falls_through {
                *taken.entry((*from, *to)).or_default() += count;
            }
        }
    }
    // Direct jumps and calls follow from executions of blocks.
    for (number, read) in model.built.functions.iter().enumerate() {
        for (block, info) in read.code.blocks.iter().enumerate() {
            let count = model.built.executions.get(&(number, info.start)).copied().unwrap_or(0.0);
            let direct = read.code.of(block).iter().filter(|instruction| {
                matches!(instruction.flow_control(), FlowControl::UnconditionalBranch | FlowControl::Call)
            });
            for instruction in direct.filter(|_| count > 0.0) {
                let (from, to) =
                    ((read.file, instruction.ip()), (read.file, instruction.near_branch_target()));
                *taken.entry((from, to)).or_default() += count;
            }
        }
    }
    let mut by_file: BTreeMap<usize, f64> = BTreeMap::new();
    for ((from, _), count) in &taken {
        *by_file.entry(from.0).or_default() += count;
    }
    let file = by_file.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(file, _)| file);
    let least = taken.values().copied().filter(|count| *count > 0.0).fold(f64::INFINITY, f64::min);
    let mut page = String::new();
    for ((from, to), count) in taken.iter().filter(|((from, to), _)| Some(from.0) == file && from.0 == to.0) {
        let (Some(source), Some(target)) = (find(*from), find(*to)) else { continue };
        let (Some(source_name), Some(target_name)) = (&source.bytes.symbol, &target.bytes.symbol) else {
            continue;
        };
        let scaled = (count / least).round().clamp(1.0, MOST);
        let _ = writeln!(
            page,
            "1 {source_name} {:x} 1 {target_name} {:x} 0 {scaled:.0}",
            from.1 - source.bytes.start,
            to.1 - target.bytes.start
        );
    }
    page
}
