//! Differences of machine, options and programs between two sides: a change of misses may be theirs.

use locality_report::schema::{Report, diff::Environment, run::Mode};

/// Factor of trace lengths above which the difference is reported.
const LENGTHS: f64 = 2.0;

/// Differences between two sides. Different values of a side's profiles stand beside each other.
pub fn differences(base: &[Report], new: &[Report]) -> Vec<Environment> {
    let mut found = Vec::new();
    let mut compare = |what: &str, of: &dyn Fn(&Report) -> String| {
        let (base, new) = (values(base, of), values(new, of));
        if base != new {
            found.push(Environment { base, new, what: what.to_owned() });
        }
    };
    compare("command", &|report| report.run.command.clone());
    compare("kind of report", &|report| match report.run.mode {
        Mode::Live => "live".to_owned(),
        Mode::Exact => "exact".to_owned(),
    });
    compare("processor", &|report| report.run.host.cpu.clone());
    compare("processors", &|report| report.run.host.cpus.to_string());
    compare("caches", &|report| {
        let caches = report.run.host.caches.iter();
        caches.map(|cache| format!("L{} {}", cache.level, size(cache.bytes))).collect::<Vec<_>>().join(", ")
    });
    compare("kernel", &|report| report.run.host.kernel.clone());
    compare("version of locality-bpf", &|report| report.tool_version.clone());
    compare("estimator", &|report| report.run.estimator.clone().unwrap_or_default());
    compare("policy", &|report| report.run.policy.clone().unwrap_or_default());
    compare("--user-only", &|report| report.run.user_only.unwrap_or(false).to_string());
    compare("addresses", &|report| report.run.sources.address.clone());
    compare("allocations", &|report| {
        report.run.sources.heap.clone().unwrap_or_else(|| "not followed".to_owned())
    });
    compare("budget, percent", &|report| {
        report
            .overhead
            .as_ref()
            .and_then(|overhead| overhead.budget_percent.finite())
            .map(|n| n.to_string())
            .unwrap_or_default()
    });
    compare("complete", &|report| (!report.partial).to_string());
    let lengths = |side: &[Report]| side.iter().filter_map(|report| report.run.wall_s.finite()).sum::<f64>();
    let (a, b) = (lengths(base), lengths(new));
    if a.max(b) > LENGTHS * a.min(b) {
        let seconds = |length: f64| format!("{length:.1} s");
        found.push(Environment { base: seconds(a), new: seconds(b), what: "length".to_owned() });
    }
    found
}

fn values(side: &[Report], of: &dyn Fn(&Report) -> String) -> String {
    let mut all: Vec<String> = side.iter().map(of).collect();
    all.sort();
    all.dedup();
    all.join(" | ")
}

fn size(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} M", bytes >> 20),
        _ => format!("{} K", bytes >> 10),
    }
}
