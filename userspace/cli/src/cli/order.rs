//! From words to [`Cli`]: options before a command, colours of the parser's pages, further hints.
//!
//! The parser takes options of a trace before a command, and options of
//! the command after the name. Here words before a command move after
//! the name, so `-q doctor` and `--format json report FILE` work.

use std::ffi::{OsStr, OsString};

use clap::{
    Arg, ArgAction, Command, Error, FromArgMatches as _,
    error::{ContextKind, ContextValue, ErrorKind},
};

use super::{Cli, colour::When, config, help};

/// A page of the parser in place of work: help, the version, or an error in the words.
#[derive(Debug)]
pub struct Page {
    /// With escape sequences of colours.
    pub coloured: String,
    /// Without.
    pub plain: String,
    /// Whether the page is an answer (exit status 0, stdout), or a refusal (2, stderr).
    pub is_answer: bool,
    /// Value of `--color` in the words.
    pub when: When,
}

/// Reads the words of a command line; the first names the program.
///
/// # Errors
/// A page to print in place of work.
pub fn parse(words: Vec<OsString>) -> Result<Cli, Page> {
    let when = colours(&words);
    let command = help::command();
    let refused = |why: String| {
        let coloured = format!("\x1b[1m\x1b[31merror:\x1b[0m {why}\n");
        Page { coloured, plain: format!("error: {why}\n"), is_answer: false, when }
    };
    let first = first_bare(&command, &words);
    let bare = first.and_then(|at| words.get(at)).cloned();
    let with_equals = first.and_then(|at| lacks_equals(&command, words.get(at - 1)?, words.get(at)?));
    let words = match first {
        // The version is the whole program's, whatever command follows.
        Some(at) if words[1..at].iter().any(|word| word == "-V" || word == "--version") => {
            words[..at].to_vec()
        }
        Some(at) => match words.get(at).and_then(|word| command.find_subcommand(word)) {
            Some(other) => {
                if let Some(option) = options(&command, &words[1..at]).find(|option| !takes(other, option)) {
                    let name = other.get_name();
                    return Err(refused(format!(
                        "{} is an option of a trace, and `{name}` does not take it: leave it out; `locality-bpf {name} --help` \
                         lists its options",
                        spelt(option)
                    )));
                }
                let mut moved = vec![words[0].clone(), words[at].clone()];
                moved.extend_from_slice(&words[1..at]);
                moved.extend_from_slice(&words[at + 1..]);
                moved
            }
            None => words,
        },
        None => words,
    };
    let words = with_negative_values(&command, words);
    let (words, added) = config::with_file(&command, words).map_err(refused)?;
    let parsed = command.try_get_matches_from(&words).and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| {
        let text = error.render();
        let other = bare.as_deref().and_then(OsStr::to_str);
        let lacks = [ErrorKind::MissingRequiredArgument, ErrorKind::TooFewValues].contains(&error.kind());
        let lacking = invalid(&error);
        if lacks && other == Some("merge") {
            return refused("merge needs at least two profiles and a name: `locality-bpf merge A B -o BOTH`".to_owned());
        }
        if lacks && other == Some("agent") && lacking.iter().any(|arg| arg.starts_with("--listen ")) {
            return refused("--listen-anywhere needs --listen ADDRESS:PORT".to_owned());
        }
        if lacks && other == Some("top") {
            return refused(without_whom(&words));
        }
        if lacks && other == Some("agent") && error.to_string().contains("--all") {
            return refused(
                "say what to trace: --all, --namespace, --cgroup PATH or -p PID; `locality-bpf agent --help` has the rest"
                    .to_owned(),
            );
        }
        // The parser names one of four ways.
        if error.kind() == ErrorKind::MissingRequiredArgument && error.to_string().contains("--pid") {
            return refused(
                "say what to trace: -p PID for a running process, -- COMMAND to launch one, --cgroup PATH, or -a for \
                 everything; `locality-bpf --help` has examples"
                    .to_owned(),
            );
        }
        let unknown = bare.as_ref().filter(|_| {
            let kinds = [ErrorKind::InvalidSubcommand, ErrorKind::UnknownArgument, ErrorKind::ArgumentConflict];
            kinds.contains(&error.kind())
        });
        if let Some(word) = unknown.filter(|word| help::command().find_subcommand(word).is_none()) {
            // The words after `help` name a command.
            let after = words.iter().skip_while(|other| *other != word).nth(1).filter(|_| word == "help");
            return refused(with_equals.clone().unwrap_or_else(|| unknown_word(after.unwrap_or(word))));
        }
        if let Some(why) = added.and_then(|added| added.blame(&text.to_string())) {
            return refused(why);
        }
        Page {
            coloured: text.ansi().to_string(),
            plain: text.to_string(),
            is_answer: !error.use_stderr(),
            when,
        }
    })
}

/// The words with `--option=-1` for `--option -1`: the parser would take `-1` or `-5m` for an option, and
/// not say what is wrong with the number.
fn with_negative_values(command: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let other = words.get(1).and_then(|word| command.find_subcommand(word));
    let own = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let mut joined: Vec<OsString> = Vec::with_capacity(words.len());
    for (at, word) in words.into_iter().enumerate() {
        let is_negative = matches!(word.as_encoded_bytes(), [b'-', b'.' | b'0'..=b'9', ..]) && at < own;
        let takes = |option: &OsString| {
            let text = option.to_string_lossy();
            text.starts_with('-')
                && [other, Some(command)].into_iter().flatten().any(|command| wants_next(command, option))
        };
        match joined.last_mut().filter(|option| is_negative && takes(option)) {
            Some(option) => {
                option.push("=");
                option.push(word);
            }
            None => joined.push(word),
        }
    }
    joined
}

/// Least similarity of a word to a command's name for a hint; the parser's bound for options.
pub(super) const ALIKE: f64 = 0.7;

/// Message for an unknown word, with the likely meaning.
fn unknown_word(word: &OsStr) -> String {
    let shown = word.to_string_lossy();
    let command = help::command();
    let names = command.get_subcommands().map(Command::get_name);
    let alike = names.map(|name| (strsim::jaro(name, &shown), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    let meant = if let Some((_, name)) = alike.filter(|(alike, _)| *alike > ALIKE) {
        format!("is `{name}` meant?")
    } else if shown.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("a running process is traced by `locality-bpf -p {shown}`;")
    } else if shown.ends_with(".locality") {
        format!("a profile is reported by `locality-bpf report {shown}`;")
    } else {
        format!("a program is launched by `locality-bpf -- {shown}`;")
    };
    format!("there is no command `{shown}`: {meant} `locality-bpf --help` lists the commands")
}

/// Options that an error of the parser names.
fn invalid(error: &Error) -> Vec<String> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(args)) => args.clone(),
        Some(ContextValue::String(arg)) => vec![arg.clone()],
        _ => Vec::new(),
    }
}

/// The refusal of a value that lacks its equals sign, as in `--heap probes`.
fn lacks_equals(command: &Command, option: &OsStr, value: &OsStr) -> Option<String> {
    let arg = named(command, option).into_iter().next_back()?;
    let value = value.to_str()?;
    let is_optional = arg.is_require_equals_set() && takes_value(arg);
    let is_value = arg.get_possible_values().iter().any(|known| known.matches(value, false));
    let long = arg.get_long().filter(|_| is_optional && is_value)?;
    Some(format!("write --{long}={value}, with an equals sign"))
}

/// The refusal of options of tracing for `top` without anything to trace.
fn without_whom(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let has = |option: &str| {
        let is = |word: &str| {
            word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        };
        words.iter().any(|word| is(word))
    };
    let option = ["--overhead", "--own", "--group", "--exclude"].into_iter().find(|option| has(option));
    let store = if has("--store") { ", and leave --store out" } else { "" };
    format!(
        "{} belongs to tracing: add -p, --cgroup, --namespace or --all{store}",
        option.unwrap_or("this option")
    )
}

/// Value of `--color`, also for a wrong command line.
fn colours(words: &[OsString]) -> When {
    let mut words = words.iter().skip(1).take_while(|word| *word != "--");
    let mut when = When::Auto;
    while let Some(word) = words.next() {
        let word = word.to_string_lossy();
        let value = match word.strip_prefix("--colo").and_then(|rest| rest.strip_prefix('u').or(Some(rest))) {
            Some("r") => words.next().map(|value| value.to_string_lossy().into_owned()),
            Some(rest) => rest.strip_prefix("r=").map(str::to_owned),
            None => None,
        };
        when = match value.as_deref() {
            Some("always") => When::Always,
            Some("never") => When::Never,
            Some("auto") => When::Auto,
            _ => when,
        };
    }
    when
}

/// Index of the first word before `--` other than an option or an option's value.
fn first_bare(command: &Command, words: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while let Some(word) = words.get(at) {
        if word == "--" {
            return None;
        }
        at += match word.as_encoded_bytes() {
            [b'-', _, ..] => 1 + usize::from(wants_next(command, word)),
            _ => return Some(at),
        };
    }
    None
}

/// Options of a trace among words before a command, without bare words.
fn options<'a>(command: &'a Command, words: &'a [OsString]) -> impl Iterator<Item = &'a Arg> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let word = words.get(at)?;
        at += 1 + usize::from(wants_next(command, word));
        Some(named(command, word))
    })
    .flatten()
}

/// The options in one word: one long name, or several letters.
pub(super) fn named<'a>(command: &'a Command, word: &OsStr) -> Vec<&'a Arg> {
    let word = word.to_string_lossy();
    let mut args = command.get_arguments();
    if let Some(long) = word.strip_prefix("--") {
        let name = long.split('=').next().unwrap_or(long);
        let is = |arg: &&Arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
        };
        return args.find(is).into_iter().collect();
    }
    let mut found = Vec::new();
    for letter in word.chars().skip(1) {
        let Some(arg) = command.get_arguments().find(|arg| arg.get_short() == Some(letter)) else { break };
        found.push(arg);
        if takes_value(arg) {
            break;
        }
    }
    found
}

/// Whether the value of a word's last option is the next word.
pub(super) fn wants_next(command: &Command, word: &OsStr) -> bool {
    let Some(arg) = named(command, word).into_iter().next_back().filter(|arg| takes_value(arg)) else {
        return false;
    };
    let is_optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0);
    let word = word.to_string_lossy();
    let is_last = word.starts_with("--") && !word.contains('=') || arg.get_short() == word.chars().last();
    is_last && !is_optional
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Whether a command has an option of the name, or the option is common to every command.
fn takes(other: &Command, option: &Arg) -> bool {
    let has = |arg: &Arg| {
        arg.get_long().is_some_and(|long| option.get_long() == Some(long))
            || arg.get_short().is_some_and(|short| option.get_short() == Some(short))
    };
    option.is_global_set()
        || matches!(option.get_id().as_str(), "help" | "version")
        || other.get_arguments().any(has)
}

fn spelt(option: &Arg) -> String {
    match (option.get_short(), option.get_long()) {
        (Some(short), Some(long)) => format!("-{short} (--{long})"),
        (_, Some(long)) => format!("--{long}"),
        (short, None) => format!("-{}", short.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Format, Other};

    fn of(line: &str) -> Result<Cli, Page> {
        parse(line.split(' ').map(OsString::from).collect())
    }

    fn refusal(line: &str) -> String {
        let page = of(line).unwrap_err();
        assert!(!page.is_answer, "{line}");
        page.plain
    }

    #[test]
    fn what_lacks_is_named_by_command() {
        for line in ["x merge a", "x merge a -o b", "x merge a b"] {
            assert!(refusal(line).contains("`locality-bpf merge A B -o BOTH`"), "{line}");
        }
        assert!(of("x merge a b -o c").is_ok());
        for line in ["x agent", "x agent --window 5m"] {
            let said = refusal(line);
            assert!(
                said.contains("--namespace, --cgroup PATH or -p PID") && !said.contains("COMMAND"),
                "{said}"
            );
        }
        assert!(refusal("x -d 3").contains("-- COMMAND"));
    }

    #[test]
    fn a_negative_number_is_a_value() {
        for (line, said) in [
            ("x agent --all --overhead -1", "write a percentage above 0"),
            ("x agent --all --own -0.5%", "write a percentage above 0"),
            ("x agent --all --window -5m", "must be longer than 0"),
            ("x agent --all --store-bytes -1", "is no size"),
            ("x agent -p -1", "no process id"),
            ("x top -p 1 --overhead -1", "write a percentage above 0"),
            ("x top -i -2s", "must be longer than 0"),
            ("x top -n -1", "write a whole number from 1"),
            ("x -p 1 -d -5m", "must be longer than 0"),
            ("x -p 1 --max-stop -1ms", "must be longer than 0"),
            ("x --overhead -1 -p 1", "write a percentage above 0"),
            ("x query --since -1h", "must be longer than 0"),
            ("x release --for -1", "must be longer than 0"),
        ] {
            let refusal = refusal(line);
            assert!(refusal.contains("invalid value '-") && refusal.contains(said), "{line}: {refusal}");
        }
        let cli = of("x -p 1 -d 5 -q").unwrap();
        assert!(cli.quiet);
        assert_eq!(of("x -- prog -1").unwrap().trace.command, ["prog", "-1"]);
    }

    #[test]
    fn options_may_stand_before_a_command_or_after_it() {
        for line in [
            "x -q doctor -p 3 --json",
            "x doctor -q -p 3 --json",
            "x -qp 3 doctor --json",
            "x -p 3 -q doctor --json",
            "x -p3 -q doctor --json",
            "x --pid=3 --quiet doctor --json",
        ] {
            let cli = of(line).unwrap();
            assert!(cli.quiet, "{line}");
            assert!(matches!(cli.other, Some(Other::Doctor { pid: Some(3), json: true })), "{line}");
        }
        for line in [
            "x --format json -v report report",
            "x -v --format=json report report",
            "x report report -v --format json",
        ] {
            let cli = of(line).unwrap();
            let Some(Other::Report { file, output, .. }) = cli.other else { panic!("{line}") };
            assert_eq!(
                (file.to_str(), output.format, cli.verbose),
                (Some("report"), Format::Json, 1),
                "{line}"
            );
        }
        // A value that looks like a command is a value.
        let cli = of("x -o report -q exact -- doctor").unwrap();
        let Some(Other::Exact(exact)) = cli.other else { panic!("no exact run") };
        assert_eq!(exact.output.as_deref(), Some("report".as_ref()));
        let cli = of("x -o report -q -- doctor").unwrap();
        assert_eq!((cli.other.is_none(), cli.trace.command), (true, vec!["doctor".into()]));
    }

    #[test]
    fn options_of_a_trace_are_no_options_of_a_command() {
        let why = refusal("x -d 5 report f");
        assert!(why.contains("-d (--duration) is an option of a trace") && why.contains("`report`"), "{why}");
        assert!(refusal("x -q -p 1 compare a b").contains("-p (--pid)"));
        assert!(refusal("x --no-stop doctor").contains("--no-stop"));
    }

    #[test]
    fn words_that_are_no_command_get_a_hint() {
        assert!(refusal("x reprot f").contains("is `report` meant?"));
        assert!(refusal("x -q docter").contains("is `doctor` meant?"));
        assert!(refusal("x ls").contains("`locality-bpf -- ls`"));
        assert!(refusal("x -d 5 ./prog arg").contains("`locality-bpf -- ./prog`"));
        assert!(refusal("x 1234").contains("`locality-bpf -p 1234`"));
        assert!(refusal("x run.locality").contains("`locality-bpf report run.locality`"));
        assert!(refusal("x -p 1 ls").contains("`locality-bpf -- ls`"));
        assert!(refusal("x help foo").contains("there is no command `foo`"));
        assert!(refusal("x help docter").contains("is `doctor` meant?"));
        for line in ["x --heap probes -- true", "x -q --heap probes -- true"] {
            assert!(refusal(line).contains("write --heap=probes, with an equals sign"), "{line}");
        }
        assert!(refusal("x --heap ./prog").contains("`locality-bpf -- ./prog`"));
        assert!(refusal("x").contains("say what to trace"));
        assert!(refusal("x -q").contains("say what to trace"));
    }

    #[test]
    fn the_version_is_an_answer_before_any_command() {
        for line in ["x -V", "x -V report", "x -q --version report f"] {
            let page = of(line).unwrap_err();
            assert!(page.is_answer && page.plain.contains(env!("CARGO_PKG_VERSION")), "{line}: {page:?}");
        }
        assert!(of("x help report").unwrap_err().is_answer);
    }

    #[test]
    fn options_that_need_another_name_it() {
        let said = refusal("x agent --all --listen-anywhere");
        assert!(said.contains("--listen-anywhere needs --listen ADDRESS:PORT"), "{said}");
        assert!(refusal("x agent --listen-anywhere --listen 1.2.3.4:5").contains("say what to trace"));
        let add = "belongs to tracing: add -p, --cgroup, --namespace or --all";
        for option in ["--overhead 5", "--own=5", "--group exe", "--exclude comm:x"] {
            let name = option.split([' ', '=']).next().unwrap();
            let said = refusal(&format!("x top --store d {option}"));
            assert!(said.contains(&format!("{name} {add}, and leave --store out")), "{said}");
            let said = refusal(&format!("x -q top {option}"));
            assert!(said.contains(&format!("{name} {add}")) && !said.contains("--store"), "{said}");
        }
    }

    #[test]
    fn help_is_an_answer_and_obeys_what_is_said_of_colours() {
        for (line, when) in [
            ("x --help", When::Auto),
            ("x --color always --help", When::Always),
            ("x --help --color=never", When::Never),
            ("x --colour=always doctor --help", When::Always),
            ("x --help -- --color always", When::Auto),
        ] {
            let page = of(line).unwrap_err();
            assert_eq!((page.is_answer, page.when), (true, when), "{line}");
            assert!(page.coloured.contains('\x1b') && !page.plain.contains('\x1b'), "{line}");
        }
        assert!(of("x --color some -p 1").unwrap_err().plain.contains("always"));
    }
}
