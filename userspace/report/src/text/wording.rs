//! Words for readers of what a profile names for programs, and phrases of several parts of the text.

use locality_units::print::shorten;

use super::{WIDTH, share};

/// "Half of all reuses come within 8 accesses, 90 % within 4.5 K accesses": the second distance alone
/// where both are printed alike.
pub(super) fn reuses_within(of_words: &str, median: &str, p90: &str) -> String {
    match median == p90 {
        true => format!("90 % of all reuses{of_words} come within {p90}"),
        false => format!("Half of all reuses{of_words} come within {median}, 90 % within {p90}"),
    }
}

/// "after -d", "after -d, by SIGTERM": causes of the end, as a profile has them.
pub(super) fn ended_by(causes: &str) -> String {
    let of = |cause: &str| match cause.strip_prefix("the asked duration") {
        Some(rest) => format!("after -d{rest}"),
        None => format!("by {cause}"),
    };
    causes.split("; ").map(of).collect::<Vec<_>>().join(", ")
}

/// "cpu-clock, 41–58 Hz" of the clocks of several merged profiles; another text as given.
pub(super) fn clock(clocks: &str) -> String {
    let rate = |clock: &str| clock.strip_prefix("cpu-clock, ")?.strip_suffix(" Hz at the end")?.parse().ok();
    let rates: Option<Vec<u32>> = clocks.split("; ").map(rate).collect();
    let Some(rates) = rates.filter(|rates| rates.len() > 1) else { return clocks.to_owned() };
    match (rates.iter().min(), rates.iter().max()) {
        (Some(low), Some(high)) if low < high => format!("cpu-clock, {low}–{high} Hz at the ends"),
        (Some(one), _) => format!("cpu-clock, {one} Hz at the ends"),
        _ => clocks.to_owned(),
    }
}

/// Causes of the ledger in words for readers; the profile's names are keys of JSON.
pub(super) fn worded(causes: &[(String, u64)]) -> Vec<(String, u64)> {
    let word = |name: &str| match name {
        "asked for" => "requested".to_owned(),
        "sampled again because the thread was not held yet" => {
            "sampled again: thread not yet seized".to_owned()
        }
        "not watched because the thread was not held" => "not watched: thread not seized".to_owned(),
        "told what a trap costs" => "trap cost measured".to_owned(),
        "branch on unknown flags" => "the branch before it depends on unknown flags".to_owned(),
        _ => name.to_owned(),
    };
    causes.iter().map(|(name, n)| (word(name), *n)).collect()
}

/// A row of the tables of hot accesses.
pub(super) fn hot_row(
    row_share: &locality_estimate::interval_estimate::Estimate,
    loads: f64,
    stores: f64,
    what: &str,
) -> String {
    let part = |value: f64| format!("{:.0} %", value * 100.0);
    let numbers =
        format!("     {:<16} {:<7} {:>5} {:>7}", share(row_share), row_share.n, part(loads), part(stores));
    let room = WIDTH.saturating_sub(numbers.chars().count() + 2);
    format!("{numbers}  {}", shorten(what, room))
}
