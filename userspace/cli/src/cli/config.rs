//! `agent --config FILE`: options of an agent in a TOML file, by their names on the command line.
//!
//! The file becomes words of the command line, so values have one parser. Words that the user typed win, and
//! who is traced is one choice: a typed `--cgroup` replaces `all = true` of the file.

use std::{
    ffi::{OsStr, OsString},
    fmt::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Arg, ArgAction, Command, ValueEnum as _};
use toml::{Table, Value};

use super::{
    agent_args::AgentArgs,
    order::{ALIKE, named, wants_next},
};

/// The command that has the option.
const COMMAND: &str = "agent";
/// Options that name who is traced.
const WHOM: [&str; 4] = ["all", "cgroup", "namespace", "pid"];
/// Options that a file cannot have.
const TYPED: [&str; 3] = ["config", "dry-run", "help"];

/// What a file added to the command line.
#[derive(Debug)]
pub(super) struct Added {
    file: PathBuf,
    options: Vec<String>,
}

impl Added {
    /// The parser's refusal in one sentence, with the file's name, where an option of the file is refused.
    pub(super) fn blame(&self, refusal: &str) -> Option<String> {
        let said = refusal.split("\n\n").next().unwrap_or_default();
        let is_of_file = |option: &&String| {
            said.contains(&format!("'--{option} ")) || said.contains(&format!("'--{option}'"))
        };
        self.options.iter().find(is_of_file)?;
        let words: Vec<&str> = said.strip_prefix("error: ").unwrap_or(said).split_whitespace().collect();
        Some(format!("{}: {}", self.file.display(), words.join(" ")))
    }
}

/// The words of a command line, with those of the file of `--config` after the command's name.
///
/// # Errors
/// The file cannot be read, or has something that is no option: a sentence with the fix.
pub(super) fn with_file(
    command: &Command,
    words: Vec<OsString>,
) -> Result<(Vec<OsString>, Option<Added>), String> {
    let Some(agent) =
        command.find_subcommand(COMMAND).filter(|_| words.get(1).is_some_and(|word| word == COMMAND))
    else {
        return Ok((words, None));
    };
    let (given, file) = typed(agent, words.get(2..).unwrap_or_default());
    let Some(file) = file else { return Ok((words, None)) };
    let text = std::fs::read_to_string(&file).map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::InvalidData => "the file is no text".to_owned(),
            _ => error.to_string(),
        };
        format!("cannot read {}: {why}; --config names a file of options, as `all = true`", file.display())
    })?;
    let options = options(agent, &text, &given).map_err(|why| format!("{}: {why}", file.display()))?;
    let added: Vec<OsString> = options.iter().map(|(_, word)| word.into()).collect();
    let options = options.into_iter().map(|(name, _)| name).collect();
    let (before, after) = words.split_at(2);
    Ok(([before, &added, after].concat(), Some(Added { file, options })))
}

/// Names of the typed options, and the file of `--config`.
fn typed(agent: &Command, words: &[OsString]) -> (Vec<String>, Option<PathBuf>) {
    let (mut given, mut file) = (Vec::new(), None);
    let mut words = words.iter().take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        if !word.as_encoded_bytes().starts_with(b"-") {
            continue;
        }
        let names = named(agent, word).into_iter().filter_map(Arg::get_long);
        let names: Vec<String> = names.map(str::to_owned).collect();
        let next = if wants_next(agent, word) { words.next() } else { None };
        if names.iter().any(|name| name == "config") {
            let joined = word.to_str().and_then(|word| word.split_once('=')).map(|(_, value)| value);
            file = next.map(OsString::as_os_str).or(joined.map(OsStr::new)).map(PathBuf::from);
        }
        given.extend(names);
    }
    (given, file)
}

/// Name and word of each option of a file that was not typed.
fn options(agent: &Command, text: &str, given: &[String]) -> Result<Vec<(String, String)>, String> {
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
        format!("line {line}: {}", error.message().replace('\n', ", "))
    })?;
    let is_given = |name: &str| given.iter().any(|given| given == name);
    let has_whom = WHOM.iter().any(|name| is_given(name));
    let mut found = Vec::new();
    for (name, value) in &table {
        let arg = option(agent, name)?;
        let words = words(arg, name, value)?;
        let is_replaced = is_given(name)
            || (has_whom && WHOM.contains(&name.as_str()))
            // Processes are named one by one.
            || (name == "exclude" && is_given("pid"));
        if !is_replaced {
            found.extend(words.into_iter().map(|word| (name.clone(), word)));
        }
    }
    Ok(found)
}

fn option<'a>(agent: &'a Command, name: &str) -> Result<&'a Arg, String> {
    let all = || {
        let long = agent.get_arguments().filter(|arg| !arg.is_hide_set());
        long.filter_map(|arg| Some((arg.get_long()?, arg))).filter(|(name, _)| !TYPED.contains(name))
    };
    if let Some((_, arg)) = all().find(|(known, _)| *known == name) {
        return Ok(arg);
    }
    let alike = all().map(|(known, _)| (strsim::jaro(known, name), known)).max_by(|a, b| a.0.total_cmp(&b.0));
    Err(match alike.filter(|(alike, _)| *alike > ALIKE) {
        Some((_, known)) => format!("there is no option `{name}`: is `{known}` meant?"),
        None => format!("there is no option `{name}`: `locality-bpf agent --help` lists them"),
    })
}

/// The words for one option; none for `false`.
fn words(arg: &Arg, name: &str, value: &Value) -> Result<Vec<String>, String> {
    if !matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) {
        return match value {
            Value::Boolean(true) => Ok(vec![format!("--{name}")]),
            Value::Boolean(false) => Ok(Vec::new()),
            _ => Err(format!("`{name}` is true or false")),
        };
    }
    let one = |value: &Value| match value {
        Value::String(text) => Ok(format!("--{name}={text}")),
        Value::Integer(number) => Ok(format!("--{name}={number}")),
        Value::Float(number) => Ok(format!("--{name}={number}")),
        _ => Err(format!("`{name}` is a text or a number, as on the command line")),
    };
    match (value, arg.get_action()) {
        (Value::Array(values), ArgAction::Append) => values.iter().map(one).collect(),
        (Value::Array(_), _) => Err(format!("`{name}` has one value, and no list")),
        (value, _) => Ok(vec![one(value)?]),
    }
}

/// The options of an agent as a file for `--config`.
pub fn page(args: &AgentArgs) -> String {
    let whom = &args.whom;
    let texts = |texts: Vec<String>| Value::Array(texts.into_iter().map(Value::String).collect());
    let path = |path: &Path| path.to_string_lossy().into_owned();
    let mut table = Table::new();
    let mut put = |name: &str, value: Value| drop(table.insert(name.to_owned(), value));
    if whom.all {
        put("all", true.into());
    }
    if whom.namespace {
        put("namespace", true.into());
    }
    if !whom.cgroup.is_empty() {
        put("cgroup", texts(whom.cgroup.iter().map(|folder| path(folder)).collect()));
    }
    if !whom.pids.is_empty() {
        put("pid", Value::Array(whom.pids.iter().map(|pid| i64::from(*pid).into()).collect()));
    } else {
        put("exclude", texts(whom.exclude.iter().map(ToString::to_string).collect()));
    }
    put("overhead", whom.overhead().into());
    put("own", whom.own().into());
    if let Some(by) = whom.by().to_possible_value() {
        put("group", by.get_name().into());
    }
    put("window", duration(args.window).into());
    put("store", path(&args.store).into());
    put("store-bytes", i64::try_from(args.store_bytes).unwrap_or(i64::MAX).into());
    put("listen", texts(args.listen.iter().map(ToString::to_string).collect()));
    put("listen-anywhere", args.listen_anywhere.into());
    if let Some(collector) = &args.otlp {
        put("otlp", collector.to_string().into());
    }
    put("no-paths", args.no_paths.into());
    let mut page = String::new();
    for (name, value) in &table {
        let _ = writeln!(page, "{name} = {value}");
    }
    page
}

fn duration(time: Duration) -> String {
    match time.subsec_nanos() {
        0 => format!("{}s", time.as_secs()),
        _ => format!("{}us", time.as_micros()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Other, help, order};
    use super::*;

    /// The options of an agent with a file, after `line`.
    fn agent(file: &str, line: &str) -> Result<AgentArgs, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.toml");
        std::fs::write(&path, file).unwrap();
        let words = format!("x agent --config {} {line}", path.display());
        let parsed = order::parse(words.split_whitespace().map(OsString::from).collect());
        match parsed.map_err(|page| page.plain)?.other {
            Some(Other::Agent(args)) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    const FILE: &str = "cgroup = ['/a', '/b']\nexclude = ['comm:x']\noverhead = 2.5\nown = 3\nwindow = '10s'\n\
        group = 'exe'\nstore = '/s'\nstore-bytes = '32M'\nlisten = '127.0.0.1:9955'\notlp = 'http://a'\n\
        no-paths = true\n";

    #[test]
    fn a_file_has_the_options_and_typed_options_win() {
        let args = agent(FILE, "").unwrap();
        assert_eq!(args.whom.cgroup, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!((args.whom.overhead(), args.whom.own(), args.store_bytes), (2.5, 3.0, 32 << 20));
        assert_eq!((args.window, args.listen.len(), args.no_paths), (Duration::from_secs(10), 1, true));
        assert!(!args.listen_anywhere);
        let args = agent(FILE, "--cgroup /c --overhead 1 --store-bytes=64M").unwrap();
        assert_eq!(args.whom.cgroup, [PathBuf::from("/c")]);
        assert_eq!((args.whom.overhead(), args.store_bytes, args.whom.exclude.len()), (1.0, 64 << 20, 1));
        let args = agent(FILE, "-p 7").unwrap();
        assert!(args.whom.pids == [7] && args.whom.cgroup.is_empty() && args.whom.exclude.is_empty());
        let args = agent("all = false\nnamespace = true\n", "-q --own 2").unwrap();
        assert!(args.whom.namespace && !args.whom.all);
    }

    #[test]
    fn what_a_file_has_wrong_is_named_with_the_fix() {
        for (file, said) in [
            ("ovrhead = 1\nall = true", "is `overhead` meant?"),
            ("store_bytes = 1", "is `store-bytes` meant?"),
            ("zzz = 1", "--help` lists them"),
            ("config = 'x'", "there is no option `config`"),
            ("only-for = 1", "there is no option `only-for`"),
            ("all = 1", "`all` is true or false"),
            ("all = true\nwindow = ['1s']", "`window` has one value"),
            ("all = true\nwindow = true", "`window` is a text or a number"),
            ("all = true\n[window]\nx = 1", "`window` is a text or a number"),
            ("all = true\nall = true", "line 2: duplicate key"),
            ("all = true\nwindow = ", "line 2: "),
            ("all = true\noverhead = -1", "agent.toml: invalid value '-1' for '--overhead <PERCENT>': write"),
            ("all = true\nexclude = ['x:y']", "agent.toml: invalid value 'x:y' for '--exclude"),
            ("all = true\ngroup = 'x'", "possible values: container"),
            ("all = true\nnamespace = true", "cannot be used with"),
            ("own = 1", "say what to trace"),
        ] {
            let why = agent(file, "").unwrap_err();
            assert!(why.contains(said) && why.trim_end().lines().count() == 1, "{file}: {why}");
        }
        let program = std::env::current_exe().unwrap();
        let words = ["x".into(), "agent".into(), "--config".into(), program.into_os_string()];
        assert!(order::parse(words.into()).unwrap_err().plain.contains("the file is no text"));
        let missing = order::parse(["x", "agent", "--config", "/no/such"].map(OsString::from).into());
        let why = missing.unwrap_err().plain;
        assert!(why.contains("cannot read /no/such") && why.contains("--config names"), "{why}");
    }

    #[test]
    fn the_printed_options_are_a_file_with_every_option() {
        let args = agent(FILE, "").unwrap();
        let printed = page(&args);
        assert_eq!(page(&agent(&printed, "").unwrap()), printed);
        let whom = ["all = true", "namespace = true", "pid = [1, 2]"];
        let pages = whom.map(|file| page(&agent(file, "").unwrap())).concat() + &printed;
        let command = help::command();
        let options =
            command.find_subcommand("agent").unwrap().get_arguments().filter(|arg| !arg.is_hide_set());
        let options = options.filter_map(Arg::get_long).filter(|name| !TYPED.contains(name));
        let missing: Vec<&str> = options.filter(|name| !pages.contains(&format!("{name} = "))).collect();
        assert_eq!(missing, [""; 0], "{pages}");
    }
}
