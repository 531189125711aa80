//! Self-parallelism as text.

use locality_report::schema::Report;
use locality_units::print as units;

use super::{Page, percent, real, tasks::name};

impl Page {
    /// Loops and functions by the speed-up at most.
    pub(super) fn regions(&mut self, report: &Report, top: usize) {
        let Some(found) = &report.self_parallelism else { return };
        self.line("");
        let ignored = match found.ignored.is_empty() {
            true => "all dependences are followed".to_owned(),
            false => format!("dependences of {} are ignored", found.ignored.join(", ")),
        };
        self.wrapped(&format!(
            "Self-parallelism (SP): iterations of a loop, or parts of a call, that could run at once; view {}: \
             {ignored}; {} loops and functions",
            found.view,
            units::count(found.regions_total),
        ));
        if found.regions.is_empty() || top == 0 {
            return;
        }
        let processors = match found.processors {
            1 => "1 processor".to_owned(),
            several => format!("{} processors", units::count(several.into())),
        };
        self.wrapped(&format!(
            "speed-up: of the whole run at most, if this region alone used {processors}, or any number"
        ));
        self.line("");
        self.line(&format!(
            "  {:>9} {:>9} {:>10} {:>9} {:>14} {:>10} {:>12}  {}",
            "speed-up", "any", "SP", "work", "span", "runs", "iterations", "region"
        ));
        for region in found.regions.iter().take(top) {
            let number = |value: Option<locality_report::schema::Number>| {
                value.map_or("-".to_owned(), |value| format!("{:.2}", real(value)))
            };
            self.line(&format!(
                "  {:>9} {:>9} {:>10} {:>9} {:>14} {:>10} {:>12}  {} {}",
                number(region.speed_up),
                number(region.speed_up_unlimited),
                number(region.self_parallelism),
                percent(real(region.share)),
                units::count(region.span),
                units::count(region.instances),
                region.iterations.map_or("-".to_owned(), units::count),
                region.kind,
                name(&region.place),
            ));
        }
        if found.regions_total > found.regions.len().min(top) as u64 {
            let rest = found.regions_total - found.regions.len().min(top) as u64;
            self.line(&format!("  and {} further", units::count(rest)));
        }
        let deep: u64 = found.regions.iter().map(|region| region.unmeasured).sum();
        if deep > 0 {
            self.wrapped(&format!(
                "For {} calls the longest chain was not measured, because the calls nest too deeply; \
                 --inclusive FUNCTION begins the nest at a function.",
                units::count(deep)
            ));
        }
    }
}
