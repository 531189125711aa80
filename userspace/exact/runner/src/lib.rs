//! `locality-bpf exact`: a whole run under QEMU with our plugin, every access counted.
//!
//! `find` QEMU and program, `embedded` the plugin, `folder` for the counts of traced
//! processes, `run` the command, `image` a process' results, `names` functions'
//! names, `total` the whole run, `report` and `text` the output. Needs no root.
//!
//! Limits: see the plugin; programs outliving the command are reported in part.

pub mod cache;
pub mod embedded;
pub mod ending;
mod executions;
mod extra;
pub mod find;
mod fine;
mod folder;
mod ignored;
mod image;
mod names;
mod options;
mod pairs;
mod parallelism;
mod regions;
mod report;
mod run;
mod sampled;
mod tasks;
pub mod text;
mod total;

use std::{
    collections::HashSet,
    io::Read as _,
    os::unix::{fs::FileExt as _, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::mpsc::{self, RecvTimeoutError},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result};
use locality_exports::callgrind;
use locality_plugin::{
    functions::LINES,
    region::{Header, state},
    settings::{Mode, Settings},
};
use locality_profile::Reserved;
use locality_report::schema::{self, Report, Unreadable, run::Mode as RunMode};
use locality_reuse::{MOST_LINES, SampledLines};

use locality_kernel::{launch, machine, writing};

use cache::machine::Machine;
use embedded::Plugin;
use folder::Folder;
use ignored::Ignored;
use image::Image;
use names::Names;
pub use options::{CacheOptions, Options};
pub use parallelism::{IgnoreArg, LatencyArg, ParallelismOptions, PredictArg, ViewArg, WindowArg};
pub use tasks::TasksArg;
use total::Total;

/// How often finished processes are collected.
const PERIOD: Duration = Duration::from_millis(50);
/// Longest wait for processes outliving the command.
const GRACE: Duration = Duration::from_millis(500);
/// log2 of a usual line of cache.
const LINE_BITS: u8 = 6;

/// A finished run.
pub struct Outcome {
    /// The report.
    pub report: Report,
    /// The command's exit status, as shown by a shell.
    pub exit_status: u8,
    /// Place to store the report.
    pub file: Option<Reserved>,
    /// The signal at the command's end, with a remedy.
    pub death: Option<String>,
}

/// Runs the command and reports the results.
pub fn run(args: &Options) -> Result<Outcome> {
    args.check()?;
    let parallelism = args.parallelism.setup()?;
    let tasks = args.parallelism.tasks_setup(parallelism.as_ref());
    let nest = args.parallelism.nest_setup(parallelism.as_ref());
    let host = machine::describe();
    let fetches = machine::instruction_cache();
    let machine =
        args.simulation().map(|asked| Machine::new(&asked, &host.caches, fetches.as_ref())).transpose()?;
    let cache = machine.as_ref().map(Machine::config).transpose()?;
    let qemu = find::qemu()?;
    let program = find::program(&args.command)?;
    let mut ignored = Ignored::look_up(&args.ignore_lines, &program)?;
    let plugin = Plugin::create()?;
    let folder = Folder::create()?;
    if let Some(ignored) = &ignored {
        std::fs::write(folder.path().join(LINES), &ignored.list)
            .context("cannot write the list of ignored lines")?;
    }
    let granules: Vec<u8> = args.granules().iter().map(|bytes| bytes.trailing_zeros() as u8).collect();
    // Callgrind runs one thread at a time, with common caches.
    let compatible = machine.as_ref().is_some_and(|machine| machine.compatible);
    let one_order = args.one_order || compatible;
    let settings = Settings {
        reverses: qemu.reverses(),
        qemu: qemu.file,
        plugin: plugin.path(),
        folder: folder.path().to_owned(),
        mode: Mode::Full,
        one_order,
        // An arbitrary granule, if reuse is not counted.
        granules: if granules.is_empty() { vec![LINE_BITS] } else { granules.clone() },
        fetches: args.instructions,
        functions: args.function.clone(),
        data_types: args.data_type.clone(),
        sets: args.sets.unwrap_or(0),
        optimal: args.optimal,
        sums: args.fine,
        reuse: !granules.is_empty(),
        sample_lines: args.sample_lines.unwrap_or(0),
        cache,
        skipped: args.caches.skip_function.clone(),
        parallelism,
        sharing: args.one_order,
        tasks,
        nest,
        ignores_lines: ignored.is_some(),
        inclusive: args.parallelism.inclusive.clone(),
        program: PathBuf::new(),
    };
    if let Some(report) = &args.report {
        let taken = args.output.iter().flat_map(|file| [file.clone(), locality_profile::earlier(file)]);
        writing::check_report(report, &taken.collect::<Vec<_>>())?;
    }
    let file = args.output.as_deref().map(reserve).transpose()?;
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let running = run::start(&settings, &program)
        .with_context(|| format!("cannot start {}", settings.qemu.display()))?;
    // A process with several threads must not fork.
    ending::watch(folder.path()).context("cannot wait for signals")?;
    let pid = running.pid.cast_unsigned();
    let (ended, total) = std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let folder = &folder;
        let collector = scope.spawn(move || collect(folder, Names::new(!compatible), &told));
        let ended = running.wait();
        // The collector ends with the command, or without a request after an error.
        let _ = tell.send(());
        (ended, collector.join())
    });
    let ended = ended.context("cannot wait for the command")?;
    let mut total = match total {
        Ok(total) => total,
        Err(_) => anyhow::bail!(
            "collecting the counts failed; the command {}",
            ended.wait_status.map_or("runs on".to_owned(), |status| {
                format!("ended with status {}", launch::exit_code(status))
            })
        ),
    };
    let signal = ended.wait_status.and_then(|status| ExitStatus::from_raw(status).signal());
    let ended_by = match (ended.wait_status, signal, ended.interrupted) {
        (Some(_), Some(signal), _) => {
            let lacking = total.lacking.get(&pid).filter(|_| signal == libc::SIGILL);
            let why = lacking.map(|what| format!(": QEMU has not the instruction {what}"));
            format!("the command was ended by {}{}", launch::signal_name(signal), why.unwrap_or_default())
        }
        (None, _, signal) => format!(
            "a second signal ({}) ended the recording; the command (process {pid}) runs on, unrecorded",
            signal.map(launch::signal_name).unwrap_or_default()
        ),
        (_, _, Some(signal)) => format!("the command ended after {}", launch::signal_name(signal)),
        (_, _, None) => "the command ended".to_owned(),
    };
    if signal.is_some() || ended.interrupted.is_some() {
        total.partial = true;
    }
    let exit_status = match (ended.wait_status, ended.interrupted) {
        (Some(status), _) => launch::exit_code(status),
        (None, signal) => 128u8.wrapping_add(signal.unwrap_or_default() as u8),
    };
    let about = report::About {
        command: args.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "),
        pids: vec![pid],
        started_unix_ns: started.as_nanos() as u64,
        wall_s: ended.wall.as_secs_f64(),
        cpu_s: ended.cpu.as_secs_f64(),
        qemu: qemu.version,
        ended_by,
        exit_status,
        one_order,
        fetches: args.instructions,
        fine: args.fine,
        functions: args.function.clone(),
        data_types: args.data_type.clone(),
        skipped: args.caches.skip_function.clone(),
        inclusive: args.parallelism.inclusive.clone(),
        ignored_lines: args.ignore_lines.iter().map(ToString::to_string).collect(),
        partition: args.parallelism.partition,
        processors: args.parallelism.processors.unwrap_or(host.cpus),
        host,
        machine,
    };
    total.name_missing_skipped(&args.caches.skip_function);
    total.name_missing_functions(&args.function);
    total.name_missing_inclusive(&args.parallelism.inclusive);
    if let names @ [_, ..] = args.parallelism.inclusive.as_slice() {
        let whole = args.parallelism.parallelism && names.len() > 1;
        let but = if whole { "; `parallelism` is that of the whole run" } else { "" };
        let names = names.join(", ");
        let notice = format!("Only what runs in calls of {names} is counted, with all that they call{but}.");
        total.notices.push(notice);
    }
    if !about.ignored_lines.is_empty() {
        let lines = about.ignored_lines.join(", ");
        total.notices.push(format!(
            "Lines {lines} are ignored: no dependence passes through the values computed there, and accesses \
             by these lines are no reuse."
        ));
    }
    if let Some(ignored) = &mut ignored {
        total.notices.extend(ignored.name_later(&args.ignore_lines, &total.files));
    }
    total.name_forked_processes(pid);
    let death = ended.wait_status.and_then(launch::ended_by_signal);
    Ok(Outcome { report: report::report(&total, &about), exit_status, file, death })
}

/// Takes the results of processes at the processes'
/// end, to save memory in long runs of many processes.
fn collect(folder: &Folder, mut names: Names, told: &mpsc::Receiver<()>) -> Total {
    let mut total = Total::default();
    let mut told_to_stop = HashSet::new();
    let mut until = None;
    loop {
        let left = take_finished(folder, &mut total, &mut names);
        if until.is_some_and(|until| left.is_empty() || Instant::now() >= until) {
            finish_the_rest(left, &mut total, &mut names);
            total.notices.extend(locality_symbols::missing_names());
            total.notices.sort();
            total.notices.dedup();
            return total;
        }
        if folder.free() < folder::RESERVE_BYTES {
            for path in &left {
                if told_to_stop.insert(path.clone()) {
                    tell_to_stop(path, 2);
                }
            }
        }
        match told.recv_timeout(PERIOD) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                until.get_or_insert(Instant::now() + GRACE);
                std::thread::sleep(if left.is_empty() { Duration::ZERO } else { PERIOD / 10 });
            }
        }
    }
}

/// Files of running processes.
fn take_finished(folder: &Folder, total: &mut Total, names: &mut Names) -> Vec<PathBuf> {
    let images = folder.images();
    let mut left = Vec::new();
    for (at, (pid, _, path)) in images.iter().enumerate() {
        // A later file of a process shows an exec.
        let replaced = images.get(at + 1).is_some_and(|(next, _, _)| next == pid);
        if replaced && header_field(path, std::mem::offset_of!(Header, state)) == Some(state::EXECUTED)
            || !is_alive(*pid)
        {
            take(path, total, names);
        } else {
            left.push(path.clone());
        }
    }
    left
}

fn take(path: &Path, total: &mut Total, names: &mut Names) {
    match Image::take(path) {
        Ok(image) => total.add(image, names),
        Err(error) => {
            total.partial = true;
            total.notices.push(format!("The counts of one process cannot be read: {error}."));
        }
    }
    if let Err(error) = std::fs::remove_file(path) {
        tracing::debug!("{} is not removed: {error}", path.display());
    }
}

/// Processes outliving the command, with results up to now.
fn finish_the_rest(left: Vec<PathBuf>, total: &mut Total, names: &mut Names) {
    for path in &left {
        tell_to_stop(path, 1);
    }
    if !left.is_empty() {
        // To let a worker finish a buffer.
        std::thread::sleep(PERIOD);
        total.partial = true;
    }
    for path in &left {
        take(path, total, names);
    }
}

/// Running or stopped, not a zombie.
fn is_alive(pid: u32) -> bool {
    let Ok(stat) = std::fs::read(format!("/proc/{pid}/stat")) else { return false };
    // The name, in parentheses, may hold anything.
    let after = stat.iter().rposition(|byte| *byte == b')').map_or(0, |at| at + 2);
    !matches!(stat.get(after), None | Some(b'Z' | b'X'))
}

fn header_field(path: &Path, offset: usize) -> Option<u32> {
    let mut bytes = [0; 4];
    std::fs::File::open(path).ok()?.read_exact_at(&mut bytes, offset as u64).ok()?;
    Some(u32::from_le_bytes(bytes))
}

fn tell_to_stop(path: &Path, why: u32) {
    let file = std::fs::File::options().write(true).open(path);
    let done = file
        .and_then(|file| file.write_all_at(&why.to_le_bytes(), std::mem::offset_of!(Header, stop) as u64));
    if let Err(error) = done {
        tracing::debug!("{} cannot be told to stop: {error}", path.display());
    }
}

/// A place for the report; an earlier report becomes `FILE.old`.
fn reserve(file: &Path) -> Result<Reserved> {
    Reserved::create(file, locality_profile::Owner::of_sudo(), |path| !matches!(stored(path), Ok(None)))
        .context("the profile cannot be written; name another place for it with -o FILE")
}

/// Stores the report for `locality-bpf report`.
///
/// # Errors
/// If the disk is full, or another process has taken the file's place.
pub fn store(report: &Report, file: Reserved) -> Result<PathBuf> {
    let mut bytes = serde_json::to_vec(report)?;
    bytes.push(b'\n');
    Ok(file.write(&bytes)?)
}

/// The stored report of an exact run; `None` for another file.
///
/// # Errors
/// A report with a part contrary to the schema.
pub fn stored(file: &Path) -> Result<Option<Report>> {
    // To open a pipe might take for ever.
    if !std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(None);
    }
    let Some(bytes) = read_object(file) else { return Ok(None) };
    match schema::read(&bytes) {
        Ok(report) => Ok(Some(report).filter(|report| report.run.mode == RunMode::Exact)),
        Err(Unreadable::Damaged { at, what }) => {
            anyhow::bail!("the report {} is damaged at {at} ({what}): run the command again", file.display())
        }
        Err(Unreadable::NotJson(_) | Unreadable::Schema(_)) => Ok(None),
    }
}

/// The bytes of a file with the beginning of a JSON object.
fn read_object(file: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = std::fs::File::open(file).ok()?;
    file.by_ref().take(1).read_to_end(&mut bytes).ok()?;
    if bytes != b"{" {
        return None;
    }
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// A report for printing: without the tables of costs and executions, which only `-o` keeps.
pub fn without_costs(mut report: Report) -> Report {
    report.executions = None;
    if let Some(cache_use) = &mut report.cache_use {
        cache_use.costs = None;
    }
    report
}

/// A report's costs as a Callgrind file.
///
/// # Errors
/// If no caches were simulated.
pub fn callgrind(report: &Report) -> Result<String> {
    let costs = report.cache_use.as_ref().and_then(|cache_use| cache_use.costs.as_ref()).context(
        "this report has no costs of lines and calls: run `locality-bpf exact --cache-use -o FILE -- COMMAND`",
    )?;
    Ok(callgrind::print(costs, &callgrind::Header::of(report)))
}

/// A granularity from the command line.
pub fn granularity(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(bytes) if bytes.is_power_of_two() && bytes <= 1 << 20 => Ok(bytes),
        _ => Err("a granularity is a power of two, from 1 to 1048576 bytes".to_owned()),
    }
}

/// Reads a value of `--sample-lines`: a power of two.
///
/// # Errors
/// Another number, in words.
pub fn sample_lines(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| SampledLines::one_in(*number).is_some());
    number.ok_or_else(|| format!("a power of two from 2 to {MOST_LINES} is needed, such as 16"))
}
