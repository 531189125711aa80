//! The parser's command with options in groups, and help of two
//! lengths: `-h` fits on a screen, and `--help` has every option.

use std::sync::LazyLock;

use clap::{Arg, Command, CommandFactory as _};

use super::Cli;

const WHAT: &str = "What to trace";
const HOW_LONG: &str = "How long and how much";
const OUTPUT: &str = "Output";
const EXPERT: &str = "Expert";

/// Options of a trace by group; the rest are for experts.
const GROUPS: [(&str, &[&str]); 3] = [
    (WHAT, &["pids", "all", "namespace", "cgroup", "exclude", "command"]),
    (HOW_LONG, &["duration", "overhead", "own", "heap", "until_ci"]),
    (
        OUTPUT,
        &[
            "output", "format", "report", "full", "pairs", "data", "code", "trust", "top", "quiet", "color",
            "verbose",
        ],
    ),
];

/// Options in `-h`, with a line each; the rest stand in `--help` alone.
const SHORT: [(&str, &str); 7] = [
    ("pids", "Trace running processes"),
    ("all", "Trace everything that runs, without pausing threads"),
    ("cgroup", "Trace the processes of a cgroup, for instance of one container"),
    ("command", "Launch this command, trace it, exit with its status"),
    ("duration", "Stop after 10 (seconds), 500ms, 2m [default: at Ctrl-C or the end]"),
    ("output", "The profile file [default: trace.locality]"),
    ("format", "text, json, json1, html or callgrind"),
];

/// Commands that print a report, and launch no command that owns stdout.
const LAUNCH_NOTHING: [&str; 2] = ["report", "objects"];

/// Commands in `-h`, with a line each.
const COMMANDS: [(&str, &str); 15] = [
    ("report", "Report again from a profile"),
    ("compare", "Compare the distance histograms and miss ratios of two reports"),
    ("diff", "What changed between two profiles; exit status 3 for a regression"),
    ("model", "Hot spots, the path to them, trip counts as expressions of inputs"),
    ("export", "Write for pprof, OpenTelemetry, flame graphs, speedscope, Firefox, KCachegrind"),
    ("merge", "Several profiles as one"),
    ("agent", "Trace without end, in segments, with metrics for Prometheus"),
    ("top", "A live table of groups, of an agent or traced by -p"),
    ("query", "What an agent found of each group"),
    ("release", "Have an agent release all programs, so that a debugger can attach"),
    ("objects", "Which variables the accesses and the predicted misses fall on"),
    ("exact", "Run a command under QEMU and count every access, without root"),
    ("doctor", "What this machine can do, and how to get what is missing"),
    ("completions", "Print the completions of a shell"),
    ("calibrate", "Measure the costs of ticks and traps on this machine"),
];

/// Version with the commit and the checksum of the embedded eBPF object.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let object = locality_kernel::object::SHA256.get(..16).unwrap_or_default();
    let (version, commit) = (env!("CARGO_PKG_VERSION"), env!("LOCALITY_COMMIT"));
    format!("{version} (commit {commit}, eBPF object sha256 {object})")
});

/// The command of a whole command line.
pub fn command() -> Command {
    let command = Cli::command().mut_args(grouped).version(VERSION.as_str());
    let examples = command.get_after_help().cloned().unwrap_or_default();
    let command = command.after_help("").after_long_help(examples);
    let command = LAUNCH_NOTHING.iter().fold(command, |command, name| {
        let place = "Write the report to a file [default: stdout]";
        command.mut_subcommand(*name, |other| other.mut_arg("report", |arg| arg.help(place)))
    });
    COMMANDS.iter().fold(command, |command, (name, short)| {
        command.mut_subcommand(*name, |other| {
            let long = other.get_long_about().or(other.get_about()).cloned().unwrap_or_default();
            other.about(*short).long_about(long)
        })
    })
}

fn grouped(arg: Arg) -> Arg {
    let id = arg.get_id().as_str().to_owned();
    if matches!(id.as_str(), "help" | "version") {
        return arg;
    }
    let group = GROUPS.iter().find(|(_, ids)| ids.contains(&id.as_str())).map_or(EXPERT, |(group, _)| group);
    let arg = arg.help_heading(group);
    let Some((_, short)) = SHORT.iter().find(|(short, _)| *short == id) else {
        return arg.hide_short_help(true);
    };
    // The long texts say the values.
    let long = arg.get_long_help().or(arg.get_help()).cloned().unwrap_or_default();
    let arg = arg.help(*short).long_help(long);
    // A flag has no values to hide.
    if arg.get_action().takes_values() { arg.hide_possible_values(true) } else { arg }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines at the width that help has without a terminal.
    fn lines(long: bool) -> Vec<String> {
        let mut command = command().term_width(100);
        let page = if long { command.render_long_help() } else { command.render_help() };
        page.to_string().lines().map(str::to_owned).collect()
    }

    #[test]
    fn short_help_is_a_screen_in_groups() {
        let page = lines(false);
        assert!(page.len() <= 40, "{} lines:\n{}", page.len(), page.join("\n"));
        assert!(page.iter().all(|line| line.chars().count() <= 100), "{page:#?}");
        for group in [WHAT, HOW_LONG, OUTPUT] {
            assert!(page.iter().any(|line| line.starts_with(group)), "{group}: {page:#?}");
        }
        assert!(!page.iter().any(|line| line.contains("--policy")), "{page:#?}");
    }

    #[test]
    fn long_help_has_every_option_and_the_examples() {
        let page = lines(true).join("\n");
        for arg in command().get_arguments().filter(|arg| !arg.is_hide_set()) {
            let Some(long) = arg.get_long() else { continue };
            assert!(page.contains(&format!("--{long}")), "{long}");
        }
        let places = [WHAT, HOW_LONG, OUTPUT, EXPERT, "Examples"];
        let places = places.map(|title| page.find(&format!("\n{title}:")).expect(title));
        assert!(places.is_sorted(), "experts come last: {page}");
        command().debug_assert();
    }

    #[test]
    fn options_say_their_ranges_and_defaults() {
        for (name, option, said) in [
            ("report", "report", "[default: stdout]"),
            ("objects", "report", "[default: stdout]"),
            ("exact", "report", "stderr when a command is launched"),
            ("exact", "granularity", "from 1 to 1048576 bytes"),
            ("exact", "granularity", "none with simulated caches or --parallelism"),
            ("exact", "sets", "1 to 1048576"),
            ("exact", "partition", "2 to 1024"),
            ("exact", "sample-lines", "from 2 to 4096"),
            ("exact", "cache", "or a cache file"),
            ("agent", "store-bytes", "16M to 4G"),
            ("agent", "dry-run", "the form of the options"),
            ("top", "count", "Print N tables, then end"),
            ("top", "interval", "200ms to 1h"),
        ] {
            let command = command();
            let command = command.find_subcommand(name).unwrap();
            let arg = command.get_arguments().find(|arg| arg.get_long() == Some(option)).unwrap();
            let long = arg.get_long_help().or(arg.get_help()).unwrap().to_string();
            assert!(long.contains(said), "{name} --{option}: {long}");
        }
        let command = command();
        let exact = command.find_subcommand("exact").unwrap().get_long_about().unwrap().to_string();
        assert!(exact.contains("`locality-bpf doctor` says how to get QEMU"), "{exact}");
    }

    #[test]
    fn groups_name_options_that_exist() {
        let command = Cli::command();
        let ids: Vec<&str> = command.get_arguments().map(|arg| arg.get_id().as_str()).collect();
        for id in GROUPS.iter().flat_map(|(_, ids)| ids.iter()).chain(SHORT.iter().map(|(id, _)| id)) {
            assert!(ids.contains(id), "{id}");
        }
    }
}
