//! Completes the ledger: kernel counters, capture counters and the assembler's tally make the model's ledger.

use locality_common::counter;
use locality_model::Ledger;

use super::recorder::RecorderStats;
use locality_capture::counters::{Costs, get};

use locality_kernel::object::EventCounts;

/// The ledger of a run whose counters stood at `before` when it began.
pub fn close(before: &EventCounts, after: &EventCounts, costs: &Costs, tally: &RecorderStats) -> Ledger {
    let since = |index: u32| after[index as usize].saturating_sub(before[index as usize]);
    let fates = |wanted: fn(&str) -> bool| -> Vec<(String, u64)> {
        let all = counter::FATE.iter().filter(|(index, name)| *index != counter::SUBMITTED && wanted(name));
        all.map(|(index, name)| ((*name).to_owned(), since(*index))).filter(|(_, n)| *n > 0).collect()
    };
    let is_loss = |name: &str| name == "ring full" || name == "no scratch buffer";
    let filtered_by = fates(|name| name != "ring full" && name != "no scratch buffer");
    let lost = fates(is_loss);
    let mut unreachable: Vec<(String, u64)> =
        tally.unreachable.iter().map(|(reason, n)| ((*reason).to_owned(), *n)).collect();
    unreachable.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    let stops = [
        ("asked for", since(counter::STOP_SIGNALS)),
        ("made", get(&costs.stop.stops)),
        ("too late to arm", get(&costs.stop.late_stops)),
        ("did not come", get(&costs.stop.missed_stops)),
        ("sampled again because the thread was not held yet", get(&costs.sampling.replaced_samples)),
        ("sampled again once too often", get(&costs.sampling.surplus_samples)),
        ("not at the sampled instruction", get(&costs.stop.skidded_stops)),
        ("imposed by the program's own signals", get(&costs.stop.foreign_stops)),
        ("for a trap whose cause the machine lost", get(&costs.stop.stray_traps)),
        ("watch ended by a trap of a word watched before", tally.stale_traps),
        ("imposed by births of threads", get(&costs.stop.clone_stops)),
        ("not watched because the thread was not held", get(&costs.watch.unguarded)),
        ("word watched already", get(&costs.watch.watched_already)),
        ("with a window", get(&costs.window.windows)),
        ("without a window: no time left", get(&costs.window.windows_late)),
        ("without a window: vector registers could not be read", get(&costs.window.windows_unread)),
        ("without a window: mappings not known", get(&costs.window.windows_without_mappings)),
        ("events dropped before they were analysed", get(&costs.loss.controller_behind)),
        ("told what a trap costs", get(&costs.trap.trap_measurements)),
    ];
    let mut ends: Vec<_> = tally.windows.iter().collect();
    ends.sort();
    let ends = ends.into_iter().map(|(end, n)| (format!("window ended: {}", end.name()), *n));
    Ledger {
        seen: since(counter::SEEN),
        filtered: filtered_by.iter().map(|(_, n)| n).sum(),
        submitted: since(counter::SUBMITTED),
        received: get(&costs.loss.received),
        lost,
        filtered_by,
        armed: get(&costs.watch.armed),
        trapped: get(&costs.watch.trapped).saturating_sub(tally.stale_traps),
        censored: get(&costs.watch.censored) + tally.stale_traps,
        refused: get(&costs.watch.refused),
        unreachable,
        stops: stops
            .into_iter()
            .filter(|(_, n)| *n > 0)
            .map(|(name, n)| (name.to_owned(), n))
            .chain(ends)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use locality_capture::counters::add;

    #[test]
    fn a_balanced_run_balances_and_a_missing_record_shows() {
        let before = [5; counter::COUNT as usize];
        let mut after = before;
        after[counter::SEEN as usize] += 10;
        after[counter::SUBMITTED as usize] += 6;
        after[counter::FILTERED_OTHER as usize] += 3;
        after[counter::LOST_RING_FULL as usize] += 1;
        let costs = Costs::default();
        add(&costs.loss.received, 6);
        add(&costs.watch.armed, 3);
        for counter in [&costs.watch.trapped, &costs.watch.censored, &costs.watch.refused] {
            add(counter, 1);
        }
        let tally = RecorderStats::default();
        let ledger = close(&before, &after, &costs, &tally);
        assert_eq!(ledger.imbalance(), None);
        assert_eq!(ledger.lost, [("ring full".to_owned(), 1)]);
        add(&costs.watch.armed, 1);
        assert!(close(&before, &after, &costs, &tally).imbalance().is_some());
    }
}
