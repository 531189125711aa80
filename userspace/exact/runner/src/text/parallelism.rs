//! Parallelism and branches as text.

use locality_report::schema::{
    Report,
    parallelism::{Parallelism, Window, WindowSize},
};
use locality_units::print as units;

use super::{Page, base, percent, real};

impl Page {
    /// Parallelism of the run and of functions.
    pub(super) fn parallelism(&mut self, report: &Report, top: usize) {
        for parallelism in report.parallelism.iter().chain(report.functions.iter().flatten()) {
            self.machines(parallelism);
        }
        let branches = report.branches.as_deref().unwrap_or_default();
        let predicted = branches.iter().any(|branch| branch.mispredicted > 0);
        if !predicted || top == 0 {
            return;
        }
        self.line("");
        self.line("Branches that were mispredicted most often:");
        self.line(&format!("  {:>12} {:>10} {:>8} {:>8}", "mispredicted", "executed", "taken", "entropy"));
        for branch in branches.iter().filter(|branch| branch.mispredicted > 0).take(top) {
            let place = &branch.place;
            let line = match (&place.file, place.line) {
                (Some(file), Some(line)) => format!("  {}:{line}", base(file)),
                _ => String::new(),
            };
            self.line(&format!(
                "  {:>12} {:>10} {:>8} {:>8.2}  {}{line}",
                units::count(branch.mispredicted),
                units::count(branch.executed),
                percent(branch.taken as f64 / branch.executed.max(1) as f64),
                real(branch.entropy),
                place.function.as_deref().unwrap_or("unknown"),
            ));
        }
    }

    fn machines(&mut self, parallelism: &Parallelism) {
        self.line("");
        let calls = parallelism.calls.unwrap_or(0);
        let of = parallelism.function.as_ref().map_or(String::new(), |function| {
            format!(" of {} and what it calls, in {}", function, super::counted(calls as usize, "call"))
        });
        let ignored = match parallelism.ignored.is_empty() {
            true => "all dependences are followed".to_owned(),
            false => format!("dependences of {} are ignored", parallelism.ignored.join(", ")),
        };
        let latency = match parallelism.latency.as_str() {
            "machine" => "latencies of a server processor",
            _ => "one cycle an instruction",
        };
        self.wrapped(&format!(
            "Parallelism{of}: {} instructions; view {}: {ignored}; {latency}",
            units::count(parallelism.instructions),
            parallelism.view
        ));
        if parallelism.instructions == 0 {
            return;
        }
        self.line("");
        self.line(&format!(
            "  {:>8} {:>10} {:>16} {:>8} {:>13}  {}",
            "window",
            "predictor",
            "cycles",
            "ILP",
            "mispredicted",
            "instructions by parallelism: 1  2-3  4-15  16-63  64-"
        ));
        for window in &parallelism.windows {
            let size = match &window.window {
                WindowSize::Instructions(size) => size.to_string(),
                WindowSize::Unlimited(text) => text.clone(),
            };
            let shares = shares(window, parallelism.instructions).map(percent).join("  ");
            self.line(&format!(
                "  {size:>8} {:>10} {:>16} {:>8.2} {:>13}  {shares}",
                window.predictor,
                window.cycles,
                real(window.ilp),
                units::count(window.mispredicted),
            ));
        }
        if parallelism.threads.len() > 1 {
            self.wrapped(&format!(
                "Instructions and cycles of {} threads are summed; threads have times of their own.",
                parallelism.threads.len()
            ));
        }
        if parallelism.resolution > 1 {
            self.wrapped(&format!(
                "Without a window the distribution is that of {} cycles at a time.",
                parallelism.resolution
            ));
        }
    }
}

/// Shares of instructions starting with 1, 2 to 3, 4 to 15, 16 to 63 and more at once.
fn shares(window: &Window, instructions: u64) -> [f64; 5] {
    [(1, 2), (2, 4), (4, 16), (16, 64), (64, u64::MAX)].map(|(low, high)| {
        let bins = window.by_parallelism.iter().filter(|bin| (low..high).contains(&bin.low));
        bins.map(|bin| bin.instructions).sum::<u64>() as f64 / instructions.max(1) as f64
    })
}
