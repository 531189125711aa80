//! Rankings of data objects, from addresses and without
//! addresses, on real programs with debug information.
//!
//! The programs are built here from the distribution's source packages (lists of source packages
//! are stored apart from the machine's own), and traced from the start, with allocations followed.
//! `locality-bpf objects --against approximate` then ranks variables by predicted misses: by
//! instructions and by lines with each sample at the exact place, and by lines after samples were
//! displaced by the paper's skid (`--simulate-skid`), without and with the skid's negation.
//!
//! Sources of error: a trace of a busy machine may be cut short by the watchdog (and is
//! then repeated); misses are of the last cache level at which enough was seen to miss,
//! reported beside the name; the displaced samples follow the static control flow.

use std::{
    fmt::Write as _,
    io::Write as _,
    path::{Path, PathBuf},
    process::{ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::accuracy::{
    inputs::{AWK, Random, text},
    score::median,
};
use locality_shell as shell;

/// Options.
#[derive(clap::Args)]
pub struct Options {
    /// Only these programs, traced even if they were
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Length of a trace
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// The tracer's budget in percent: a large one, so that nearly all allocations are seen and
    /// samples are many
    #[arg(long, default_value_t = 20)]
    overhead: u32,
    /// How programs are compiled
    #[arg(long, default_value = "-g -O1 -fno-strict-aliasing")]
    flags: String,
    /// Print the table of what was traced with these flags, trace nothing
    #[arg(long)]
    table: bool,
}

/// Standard input of a program.
enum Input {
    /// The text, again and again; the program ends with the input.
    Text,
    /// A line every four seconds, again and again; the program ends with the input.
    Lines(&'static [&'static str]),
    /// No input; the program must be ended.
    Nothing,
}

struct Program {
    /// Names of the program and of the source package.
    name: &'static str,
    package: &'static str,
    /// Build command in the package's folder, with `$CFLAGS`.
    build: &'static str,
    /// Command in the package's folder; `$TEXT`, `$AWK` and `$FORMULA` are inputs.
    words: &'static [&'static str],
    input: Input,
}

const PROGRAMS: [Program; 7] = [
    Program {
        name: "bzip2",
        package: "bzip2",
        build: "gcc $CFLAGS -D_FILE_OFFSET_BITS=64 -o program blocksort.c huffman.c crctable.c randtable.c compress.c \
                decompress.c bzlib.c bzip2.c",
        words: &["./program", "-c"],
        input: Input::Text,
    },
    Program {
        name: "gzip",
        package: "gzip",
        // The distribution's patches are newer than the files generated from the patched ones.
        build: "./configure -q && make -s ACLOCAL=: AUTOCONF=: AUTOMAKE=: AUTOHEADER=: MAKEINFO=:",
        words: &["./gzip", "-c"],
        input: Input::Text,
    },
    Program {
        name: "minigzip",
        package: "zlib",
        build: "gcc $CFLAGS -DHAVE_UNISTD_H -I. -o program adler32.c crc32.c deflate.c infback.c inffast.c inflate.c inftrees.c \
                trees.c zutil.c compress.c uncompr.c gz*.c test/minigzip.c",
        words: &["./program"],
        input: Input::Text,
    },
    Program {
        name: "lz4",
        package: "lz4",
        build: "gcc $CFLAGS -Ilib -DXXH_NAMESPACE=LZ4_ -o program lib/*.c programs/*.c",
        words: &["./program", "-9", "-c"],
        input: Input::Text,
    },
    Program {
        name: "mawk",
        package: "mawk",
        build: "./configure -q && make -s",
        words: &["./mawk", "$AWK"],
        input: Input::Text,
    },
    Program {
        name: "picosat",
        package: "picosat",
        build: "./configure.sh >/dev/null && sh mkconfig.sh > config.h && gcc $CFLAGS -DNDEBUG -o program picosat.c app.c main.c \
                version.c",
        words: &["./program", "$FORMULA"],
        input: Input::Nothing,
    },
    Program {
        name: "phalanx",
        package: "phalanx",
        // Without the collection of openings, the program computes from the first move on.
        build: "rm -f *book.phalanx; gcc $CFLAGS --std=gnu89 -D_GNU_SOURCE -DGNUFUN -DPBOOK_DIR='\"\"' -DSBOOK_DIR='\"\"' -DLEARN_DIR='\"\"' \
                -DLEARN_FILE='\"\"' -o program *.c",
        words: &["./program"],
        input: Input::Lines(&["sd 30\n", "go\n"]),
    },
];

/// Columns: heading, and options of `objects`.
const SETTINGS: [(&str, &[&str]); 4] = [
    ("instructions", &["--level", "instruction"]),
    ("lines", &[]),
    ("lines, skid", &["--simulate-skid", "paper"]),
    ("lines, skid negated", &["--simulate-skid", "paper", "--skid", "paper"]),
];

/// Agreement of a program's rankings in one setting.
struct Found {
    overlap: f64,
    possible: f64,
    tau_top: Option<f64>,
    tau: Option<f64>,
}

/// Traces the chosen programs and prints the table.
pub fn run(options: &Options) -> Result<()> {
    if let Some(name) = options.only.iter().find(|name| !PROGRAMS.iter().any(|entry| entry.name == **name)) {
        bail!("there is no {name}; there are {}", PROGRAMS.map(|program| program.name).join(", "));
    }
    shell::need(&[("gcc", "gcc"), ("gcc", "libc6-dev"), ("make", "make"), ("dpkg-source", "dpkg-dev")])?;
    shell::run_aside(shell::cargo().args(["build", "--release", "--package", "locality-bpf"]))?;
    let tool = shell::target_dir().join("release/locality-bpf");
    let flags: String = options.flags.chars().filter(char::is_ascii_alphanumeric).collect();
    let folder = shell::target_dir().join("objects").join(flags);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for program in &PROGRAMS {
        let profile = folder.join(program.name).with_extension("locality");
        let named = options.only.iter().any(|name| name == program.name);
        if !options.table && (named || (options.only.is_empty() && !profile.exists())) {
            let traced = program
                .built(&folder, &options.flags)
                .and_then(|place| program.trace(&tool, &place, &profile, options));
            if let Err(error) = traced {
                eprintln!("{}: {error:#}", program.name);
                drop(std::fs::remove_file(&profile));
                failed.push(program.name);
            }
        }
        if profile.exists() {
            match read(&tool, &profile) {
                Ok(row) => rows.push((program.name, row)),
                Err(error) => {
                    eprintln!("{}: {error:#}", program.name);
                    failed.push(program.name);
                }
            }
        }
    }
    crate::say(&format!("{} programs, {}", rows.len(), options.flags));
    crate::say(&table(&rows));
    if failed.is_empty() { Ok(()) } else { bail!("not traced, or not read: {}", failed.join(", ")) }
}

impl Program {
    /// The folder of the program, built.
    fn built(&self, folder: &Path, flags: &str) -> Result<PathBuf> {
        let place = folder.join(self.package);
        if place.join("built").exists() {
            return Ok(place);
        }
        std::fs::create_dir_all(&place)?;
        let source = fetch(self.package, &place)?;
        let mut build = Command::new("sh");
        build.args(["-e", "-c", self.build]).env("CFLAGS", flags).current_dir(&source);
        shell::run_aside(&mut build)?;
        std::os::unix::fs::symlink(&source, place.join("built"))?;
        Ok(place)
    }

    fn trace(&self, tool: &Path, place: &Path, profile: &Path, options: &Options) -> Result<()> {
        let inputs = Inputs::prepare(place)?;
        let mut ended = None;
        for _ in 0..3 {
            drop(std::fs::remove_file(profile));
            let mut command = shell::as_root(tool)?;
            command.current_dir(place.join("built")).args([
                "-q",
                "--overhead",
                &options.overhead.to_string(),
            ]);
            command.arg("-o").arg(profile).arg("--report").arg(place.join("report"));
            command.arg("--");
            if matches!(self.input, Input::Nothing) {
                command.args(["timeout", &options.seconds.to_string()]);
            }
            command.args(self.words.iter().map(|word| inputs.fill(word)));
            eprintln!("$ {}", shell::words(&command));
            let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
            let pipe = child.stdin.take().context("the program has no standard input")?;
            let until = Instant::now() + Duration::from_secs(options.seconds.into());
            let text = inputs.text.clone();
            let feeder = match self.input {
                Input::Text => std::thread::spawn(move || feed(pipe, &[&text], Duration::ZERO, until)),
                Input::Lines(lines) => {
                    std::thread::spawn(move || feed(pipe, lines, Duration::from_secs(4), until))
                }
                Input::Nothing => std::thread::spawn(move || drop(pipe)),
            };
            let status = child.wait()?;
            drop(feeder.join());
            // 124: ended by `timeout`.
            if status.success() || status.code() == Some(124) {
                return Ok(());
            }
            ended = Some(status);
        }
        let ended = ended.map_or_else(String::new, |status| status.to_string());
        if !profile.exists() {
            bail!("the trace failed three times ({ended})");
        }
        eprintln!(
            "{}: the trace did not end well in three attempts ({ended}); the table has what the last one wrote",
            self.name
        );
        Ok(())
    }
}

/// Writes the pieces again and again, until the time `until` or until the reader is gone.
fn feed(mut pipe: ChildStdin, pieces: &[&str], pause: Duration, until: Instant) {
    for piece in pieces.iter().cycle() {
        if Instant::now() >= until || pipe.write_all(piece.as_bytes()).is_err() {
            return;
        }
        std::thread::sleep(pause);
    }
}

/// Inputs of the programs.
struct Inputs {
    text: String,
    awk: PathBuf,
    formula: PathBuf,
}

impl Inputs {
    fn prepare(place: &Path) -> Result<Self> {
        let this = Self {
            text: text(&mut Random(1), 1_500_000),
            awk: place.join("awk"),
            formula: place.join("formula"),
        };
        std::fs::write(&this.awk, AWK)?;
        std::fs::write(&this.formula, formula(&mut Random(2), 450)?)?;
        Ok(this)
    }

    fn fill(&self, word: &str) -> PathBuf {
        match word {
            "$AWK" => self.awk.clone(),
            "$FORMULA" => self.formula.clone(),
            word => PathBuf::from(word),
        }
    }
}

/// A random 3-SAT formula with 4.26 clauses a variable,
/// the hardest ratio (Mitchell, Selman and Levesque 1992).
fn formula(random: &mut Random, variables: u64) -> Result<String> {
    let clauses = variables * 426 / 100;
    let mut text = format!("p cnf {variables} {clauses}\n");
    for _ in 0..clauses {
        for _ in 0..3 {
            let sign = if random.below(2) == 0 { "" } else { "-" };
            write!(text, "{sign}{} ", 1 + random.below(variables))?;
        }
        text += "0\n";
    }
    Ok(text)
}

/// Fetches and unpacks a source package; returns the folder.
fn fetch(package: &str, place: &Path) -> Result<PathBuf> {
    let apt = place.join("apt");
    std::fs::create_dir_all(apt.join("lists/partial"))?;
    std::fs::write(apt.join("sources.sources"), sources()?)?;
    let get = || {
        let mut command = Command::new("apt-get");
        let path = |name: &str| apt.join(name).display().to_string();
        for option in [
            format!("Dir::Etc::SourceList={}", path("sources.sources")),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={}", path("lists")),
            format!("Dir::Cache={}", path("cache")),
            "APT::Sandbox::User=".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command.arg("-qq").current_dir(place);
        command
    };
    shell::run_aside(get().arg("update"))?;
    shell::run_aside(get().args(["source", package]))?;
    let unpacked = std::fs::read_dir(place)?.flatten().map(|entry| entry.path());
    let mut unpacked = unpacked.filter(|path| path.is_dir() && *path != apt);
    unpacked.next().with_context(|| format!("apt-get source {package} unpacked nothing"))
}

/// The distribution's own package sources, as sources of source packages.
fn sources() -> Result<String> {
    let files =
        ["debian.sources", "ubuntu.sources"].map(|name| Path::new("/etc/apt/sources.list.d").join(name));
    let file = files
        .iter()
        .find(|file| file.exists())
        .context("there is no debian.sources in /etc/apt/sources.list.d")?;
    let text = std::fs::read_to_string(file)?;
    let line =
        |line: &str| if line.starts_with("Types:") { "Types: deb-src".to_owned() } else { line.to_owned() };
    Ok(text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n")
}

/// Rankings shown by a profile.
struct Row {
    objects: usize,
    ranked_by: String,
    samples: u64,
    found: Vec<Found>,
}

/// Compares the rankings of a profile in every setting.
fn read(tool: &Path, profile: &Path) -> Result<Row> {
    let mut row = Row { objects: 0, ranked_by: String::new(), samples: 0, found: Vec::new() };
    for (_, setting) in SETTINGS {
        let mut command = Command::new(tool);
        command
            .arg("objects")
            .arg(profile)
            .args(["--against", "approximate", "--format", "json"])
            .args(setting);
        let out = command.output()?;
        if !out.status.success() {
            bail!("{}: {}", shell::words(&command), String::from_utf8_lossy(&out.stderr));
        }
        let page: Value = serde_json::from_slice(&out.stdout)?;
        let against = &page["against"];
        let number = |name: &str| against[name].as_f64();
        let rows = against["rows"].as_array().map_or(&[][..], Vec::as_slice);
        row.objects = rows.iter().filter(|row| row["direct"]["rank"].is_u64()).count();
        row.ranked_by = against["ranked_by"].as_str().unwrap_or("accesses").to_owned();
        row.samples = page["run"]["samples"].as_u64().unwrap_or(0);
        row.found.push(Found {
            overlap: number("top_overlap").context("no overlap was told")?,
            possible: number("top_possible").context("no overlap was told")?,
            tau_top: number("kendall_tau_b_top"),
            tau: number("kendall_tau_b"),
        });
    }
    Ok(row)
}

/// A row per program; then medians and the worst. Overlaps of fewer than ten objects count as that
/// share of ten.
fn table(rows: &[(&str, Row)]) -> String {
    let tau = |tau: Option<f64>| tau.map_or("–".to_owned(), |tau| format!("{tau:.2}"));
    let cell = |found: &Found| {
        format!("{} of {}, {} / {}", found.overlap, found.possible, tau(found.tau_top), tau(found.tau))
    };
    let headings: Vec<&str> = SETTINGS.iter().map(|setting| setting.0).collect();
    let mut text = format!("| program | objects | misses of | samples | {} |\n|---", headings.join(" | "));
    text += &"|---".repeat(3 + SETTINGS.len());
    text += "|\n";
    for (name, row) in rows {
        let cells: Vec<String> = row.found.iter().map(cell).collect();
        text += &format!(
            "| {name} | {} | {} | {} | {} |\n",
            row.objects,
            row.ranked_by,
            row.samples,
            cells.join(" | ")
        );
    }
    let summary = |of: &dyn Fn(&[f64]) -> Option<f64>| {
        let column = |setting: usize| {
            let found = || rows.iter().filter_map(move |(_, row)| row.found.get(setting));
            let overlaps = found().filter(|found| found.possible > 0.0);
            let overlaps: Vec<f64> = overlaps.map(|found| 10.0 * found.overlap / found.possible).collect();
            let tops: Vec<f64> = found().filter_map(|found| found.tau_top).collect();
            let all: Vec<f64> = found().filter_map(|found| found.tau).collect();
            let overlap = of(&overlaps).map_or("–".to_owned(), |overlap| format!("{overlap:.1}"));
            format!("{overlap} of 10, {} / {}", tau(of(&tops)), tau(of(&all)))
        };
        (0..SETTINGS.len()).map(column).collect::<Vec<_>>().join(" | ")
    };
    let worst = |values: &[f64]| values.iter().copied().reduce(f64::min);
    text += &format!("| **median** | | | | {} |\n", summary(&median));
    text += &format!("| **worst** | | | | {} |", summary(&worst));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_have_clauses_of_three() {
        let text = formula(&mut Random(2), 100).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("p cnf 100 426"));
        let clauses: Vec<Vec<i64>> =
            lines.map(|line| line.split(' ').map(|word| word.parse().unwrap()).collect()).collect();
        assert_eq!(clauses.len(), 426);
        assert!(clauses.iter().all(|clause| clause.len() == 4 && clause[3] == 0));
        assert!(clauses.iter().flatten().all(|literal| literal.abs() <= 100));
    }

    #[test]
    fn medians_and_worst_of_what_is_defined() {
        let found = |overlap, possible, tau| Found { overlap, possible, tau_top: tau, tau };
        let row = |found: [Found; 4]| Row {
            objects: 5,
            ranked_by: "L2".to_owned(),
            samples: 7,
            found: found.into(),
        };
        let one = row([0.5, 1.0, 0.0, 0.25].map(|tau| found(4.0, 5.0, Some(tau))));
        let other = row([(); 4].map(|()| found(10.0, 10.0, None)));
        let text = table(&[("a", one), ("b", other)]);
        assert!(text.contains("| a | 5 | L2 | 7 | 4 of 5, 0.50 / 0.50 |"), "{text}");
        assert!(text.contains("| b | 5 | L2 | 7 | 10 of 10, – / – |"), "{text}");
        assert!(text.contains("**median** | | | | 9.0 of 10, 0.50 / 0.50 |"), "{text}");
        assert!(text.contains("**worst** | | | | 8.0 of 10, 0.50 / 0.50 |"), "{text}");
    }
}
