//! What the parent asks of the plugin: words of QEMU's `-plugin` option, and QEMU's whole command line.
//!
//! The command line is made here for both, the parent that starts the first program and the plugin
//! that starts what that program executes.

use std::{
    ffi::{CString, OsStr},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use locality_cachesim::Config;
use locality_dataflow::{NestSetup, Setup, TaskSetup};
use locality_stream::DataType;

use crate::program::Program;

/// What is done at an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Record, and run the analyses.
    #[default]
    Full,
    /// Record, but run no analysis: what the stream alone costs.
    Record,
    /// Call back and do nothing: the floor of QEMU with a memory callback.
    Empty,
}

/// Settings of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The emulator's file.
    pub qemu: PathBuf,
    /// Whether that QEMU reverses the order of the environment, as versions before 8.1 do.
    pub reverses: bool,
    /// The plugin's file.
    pub plugin: PathBuf,
    /// Folder of the run's files.
    pub folder: PathBuf,
    /// What is done at an access.
    pub mode: Mode,
    /// One global order: threads take turns, and one analysis sees all of them.
    pub one_order: bool,
    /// log2 of the granules of which reuse is counted.
    pub granules: Vec<u8>,
    /// Reuse of instructions instead of data.
    pub fetches: bool,
    /// Only accesses by instructions of functions with these names; empty: all.
    pub functions: Vec<String>,
    /// Only accesses by instructions with data of these types; empty: all.
    pub data_types: Vec<DataType>,
    /// Number of sets of which stacks are counted apart; 0: none.
    pub sets: u32,
    /// Whether touches are stored for optimal replacement.
    pub optimal: bool,
    /// Whether the time distances in each bin are summed.
    pub sums: bool,
    /// Whether reuse is counted.
    pub reuse: bool,
    /// Number of lines of which one is sampled; 0: all are seen.
    pub sample_lines: u32,
    /// Simulated caches, if any. With `one_order` all threads share the last of several levels;
    /// else each thread has its own caches.
    pub cache: Option<Config>,
    /// Functions whose simulated costs go to their callers.
    pub skipped: Vec<String>,
    /// The machines for parallelism, if measured.
    pub parallelism: Option<Setup>,
    /// Whether bytes between threads are counted; needs `one_order`.
    pub sharing: bool,
    /// Task parallelism, if measured.
    pub tasks: Option<TaskSetup>,
    /// Self-parallelism of calls and loops, if measured.
    pub nest: Option<NestSetup>,
    /// Whether lines are ignored: by the list [`crate::functions::LINES`] in the folder.
    pub ignores_lines: bool,
    /// Functions whose whole calls are measured, [`INCLUSIVE`] at most.
    pub inclusive: Vec<String>,
    /// The program's file, as the plugin receives it; [`Settings::command`] puts in the started
    /// one.
    pub program: PathBuf,
}

/// Most functions whose whole calls are measured.
pub const INCLUSIVE: usize = 8;

/// The model of processor: everything that QEMU can do.
const PROCESSOR: &str = "max";
/// Room for a stack without limit; memory is taken as it grows.
const UNLIMITED_STACK: &str = "1G";

impl Settings {
    /// Reads what [`Settings::command`] wrote.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let mut settings = Self {
            qemu: PathBuf::new(),
            reverses: false,
            plugin: PathBuf::new(),
            folder: PathBuf::new(),
            mode: Mode::Full,
            one_order: false,
            granules: vec![6],
            fetches: false,
            functions: Vec::new(),
            data_types: Vec::new(),
            sets: 0,
            optimal: false,
            sums: false,
            reuse: true,
            sample_lines: 0,
            cache: None,
            skipped: Vec::new(),
            parallelism: None,
            sharing: false,
            tasks: None,
            nest: None,
            ignores_lines: false,
            inclusive: Vec::new(),
            program: PathBuf::new(),
        };
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("no value in {word}"))?;
            match (name, value) {
                ("qemu", path) => settings.qemu = path.into(),
                ("reverses", number) => settings.reverses = number == "1",
                ("plugin", path) => settings.plugin = path.into(),
                ("folder", path) => settings.folder = path.into(),
                ("program", path) => settings.program = path.into(),
                ("mode", "full") => settings.mode = Mode::Full,
                ("mode", "record") => settings.mode = Mode::Record,
                ("mode", "empty") => settings.mode = Mode::Empty,
                // QEMU turns yes and no into on and off.
                ("order", "one") => settings.one_order = true,
                ("order", "threads") => settings.one_order = false,
                ("what", "instructions") => settings.fetches = true,
                ("what", "data") => settings.fetches = false,
                // The colon keeps a function called "yes" from being one of QEMU's words.
                ("function", name) => {
                    settings.functions.push(name.strip_prefix(':').unwrap_or(name).to_owned());
                }
                ("type", name) => {
                    settings.data_types.push(name.parse().map_err(|_| format!("no type of data: {name}"))?);
                }
                ("sets", number) => {
                    settings.sets = number.parse().map_err(|_| format!("no number of sets: {number}"))?;
                }
                ("optimal", number) => settings.optimal = number == "1",
                ("sums", number) => settings.sums = number == "1",
                ("reuse", number) => settings.reuse = number == "1",
                ("sample", number) => {
                    settings.sample_lines = number.parse().map_err(|_| format!("no sample: {number}"))?;
                }
                ("cache", text) => {
                    let config = Config::parse(text).map_err(|error| error.to_string())?;
                    settings.cache = Some(config);
                }
                ("skip", name) => {
                    settings.skipped.push(name.strip_prefix(':').unwrap_or(name).to_owned());
                }
                ("parallelism", text) => {
                    settings.parallelism = Some(text.parse::<Setup>().map_err(|error| error.to_string())?);
                }
                ("tasks", text) => {
                    settings.tasks = Some(text.parse::<TaskSetup>().map_err(|error| error.to_string())?);
                }
                ("nest", text) => {
                    settings.nest = Some(text.parse::<NestSetup>().map_err(|error| error.to_string())?);
                }
                ("sharing", number) => settings.sharing = number == "1",
                ("ignored", number) => settings.ignores_lines = number == "1",
                ("inclusive", name) => {
                    settings.inclusive.push(name.strip_prefix(':').unwrap_or(name).to_owned());
                }
                ("granules", list) => {
                    let parsed: Option<Vec<u8>> = list.split('+').map(|n| n.parse().ok()).collect();
                    settings.granules = parsed.ok_or_else(|| format!("no granules: {list}"))?;
                }
                _ => return Err(format!("unknown setting {word}")),
            }
        }
        Ok(settings)
    }

    /// Whether only some instructions' accesses are counted.
    pub fn is_restricted(&self) -> bool {
        self.restricts_mix() || self.ignores_lines
    }

    /// Whether only some instructions are counted in the mix.
    pub fn restricts_mix(&self) -> bool {
        !self.functions.is_empty() || !self.data_types.is_empty()
    }

    /// Whether the stream has an event of every block.
    pub fn tells_blocks(&self) -> bool {
        self.fetches
            || self.parallelism.is_some()
            || self.tasks.is_some()
            || self.nest.is_some()
            || !self.inclusive.is_empty()
            || self.cache.as_ref().is_some_and(|cache| cache.instruction_fetch.is_some())
    }

    /// Whether the stream tells where data objects lie.
    pub fn tells_objects(&self) -> bool {
        self.mode != Mode::Empty && self.cache.as_ref().is_some_and(|cache| cache.objects)
    }

    fn option(&self, program: &Path) -> Vec<u8> {
        let mode = match self.mode {
            Mode::Full => "full",
            Mode::Record => "record",
            Mode::Empty => "empty",
        };
        let order = if self.one_order { "one" } else { "threads" };
        let granules: Vec<String> = self.granules.iter().map(u8::to_string).collect();
        let mut option = b"file=".to_vec();
        option.extend(escape(&self.plugin));
        let paths: [(&str, &Path); 4] =
            [("qemu", &self.qemu), ("plugin", &self.plugin), ("folder", &self.folder), ("program", program)];
        for (name, path) in paths {
            option.extend(format!(",{name}=").bytes());
            option.extend(escape(path));
        }
        let what = if self.fetches { "instructions" } else { "data" };
        let granules = granules.join("+");
        option.extend(format!(",mode={mode},order={order},what={what},granules={granules}").bytes());
        let (optimal, sums) = (u8::from(self.optimal), u8::from(self.sums));
        option.extend(format!(",sets={},optimal={optimal},sums={sums}", self.sets).bytes());
        option
            .extend(format!(",reuse={},reverses={}", u8::from(self.reuse), u8::from(self.reverses)).bytes());
        if let Some(cache) = &self.cache {
            option.extend(format!(",cache={}", cache.encode()).bytes());
        }
        if let Some(setup) = &self.parallelism {
            option.extend(format!(",parallelism={setup}").bytes());
        }
        if let Some(setup) = &self.tasks {
            option.extend(format!(",tasks={setup}").bytes());
        }
        if let Some(setup) = &self.nest {
            option.extend(format!(",nest={setup}").bytes());
        }
        if self.sample_lines > 0 {
            option.extend(format!(",sample={}", self.sample_lines).bytes());
        }
        if self.sharing {
            option.extend(b",sharing=1");
        }
        if self.ignores_lines {
            option.extend(b",ignored=1");
        }
        for name in &self.inclusive {
            option.extend(b",inclusive=:");
            option.extend(escape(Path::new(name)));
        }
        for name in &self.skipped {
            option.extend(b",skip=:");
            option.extend(escape(Path::new(name)));
        }
        for data in &self.data_types {
            option.extend(format!(",type={data}").bytes());
        }
        for name in &self.functions {
            option.extend(b",function=:");
            option.extend(escape(Path::new(name)));
        }
        option
    }

    /// Arguments (the first is QEMU itself) and environment that run a program under QEMU with the plugin.
    ///
    /// Variables of the dynamic linker and of QEMU are the program's, and are handed over by `-E`;
    /// one with a comma, which `-E` would split, stays in the environment of both. Those of `-E`
    /// come first. QEMU before 8.1 hands the others over in reverse (`linux-user/main.c`), so they
    /// are reversed here. Without a limit of the stack QEMU would give 8 MiB.
    pub fn command(&self, program: &Program, environment: Vec<CString>) -> (Vec<CString>, Vec<CString>) {
        let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
        let mut arguments = vec![text(self.qemu.as_os_str().as_bytes())];
        arguments.extend([text(b"-cpu"), text(PROCESSOR.as_bytes())]);
        let file = Path::new(OsStr::from_bytes(program.file.as_bytes()));
        arguments.extend([text(b"-plugin"), text(&self.option(file))]);
        if has_unlimited_stack() {
            arguments.extend([text(b"-s"), text(UNLIMITED_STACK.as_bytes())]);
        }
        let is_programs = |word: &CString| {
            let word = word.as_bytes();
            (word.starts_with(b"LD_") || word.starts_with(b"QEMU_")) && !word.contains(&b',')
        };
        let (programs, mut others): (Vec<_>, Vec<_>) = environment.into_iter().partition(is_programs);
        for word in programs.into_iter().rev() {
            arguments.extend([text(b"-E"), word]);
        }
        if self.reverses {
            others.reverse();
        }
        if let Some(name) = program.arguments.first() {
            arguments.extend([text(b"-0"), name.clone()]);
        }
        arguments.push(program.file.clone());
        arguments.extend(program.arguments.iter().skip(1).cloned());
        (arguments, others)
    }
}

/// Whether the stack may grow without a limit.
fn has_unlimited_stack() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the destination is live.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_STACK, &raw mut limit) };
    done == 0 && limit.rlim_cur == libc::RLIM_INFINITY
}

/// QEMU's options are separated by commas; a doubled one stands for itself (`util/keyval.c`).
fn escape(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_bytes();
    bytes.iter().flat_map(|byte| if *byte == b',' { vec![b',', b','] } else { vec![*byte] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_qemus_option() {
        let settings = Settings {
            qemu: "/usr/bin/qemu-x86_64".into(),
            reverses: true,
            plugin: "/a,b/plugin.so".into(),
            folder: "/dev/shm/x,y".into(),
            mode: Mode::Record,
            one_order: true,
            granules: vec![0, 6],
            fetches: true,
            functions: vec!["f<a, b>".into(), "yes".into()],
            data_types: vec![DataType::Float(8), DataType::IntegerVector(16)],
            sets: 64,
            optimal: true,
            sums: true,
            reuse: false,
            sample_lines: 16,
            cache: Some(Config::parse("L1:32768/8/64+LL:1048576/16/64").unwrap()),
            skipped: vec!["g<a, b>".into()],
            parallelism: Some("si/unit+64/gshare:16+inf/perfect".parse().unwrap()),
            sharing: true,
            tasks: Some("sc/functions".parse().unwrap()),
            nest: Some("sir/machine".parse().unwrap()),
            ignores_lines: true,
            inclusive: vec!["h<a, b>".into()],
            program: "/bin/true".into(),
        };
        let option = String::from_utf8(settings.option(&settings.program)).unwrap().replace(",,", "\0");
        let words: Vec<String> = option.split(',').skip(1).map(|word| word.replace('\0', ",")).collect();
        assert_eq!(Settings::parse(&words).unwrap(), settings);
        assert!(Settings::parse(&["mode=other".into()]).is_err());
        assert!(Settings::parse(&["mode".into()]).is_err());
    }

    #[test]
    fn the_linkers_variables_are_the_programs() {
        let words = ["qemu=/q", "plugin=/p", "reverses=1"].map(str::to_owned);
        let mut settings = Settings::parse(&words).unwrap();
        let words = |words: &[&str]| words.iter().map(|w| CString::new(*w).unwrap()).collect::<Vec<_>>();
        let program = Program { file: c"/bin/ls".to_owned(), arguments: words(&["ls", "-l"]) };
        let environment = words(&["A=1", "LD_PRELOAD=x.so", "LD_X=a,b", "QEMU_STRACE=1"]);
        let (arguments, others) = settings.command(&program, environment.clone());
        assert_eq!(others, words(&["LD_X=a,b", "A=1"]));
        settings.reverses = false;
        assert_eq!(settings.command(&program, environment).1, words(&["A=1", "LD_X=a,b"]));
        let start = arguments.iter().position(|word| word.as_bytes() == b"-E").unwrap();
        let expected = ["-E", "QEMU_STRACE=1", "-E", "LD_PRELOAD=x.so", "-0", "ls", "/bin/ls", "-l"];
        assert_eq!(arguments[start..], words(&expected));
    }
}
