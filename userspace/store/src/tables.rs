//! Decoder of format versions 1 to 7: one function per table. Version 1 has neither windows nor
//! uses, version 2 no data objects (`data_tables`), version 3 neither loads of lines nor counts of
//! hardware, version 4 no loops (`loops`), version 5 no samples in the kernel, version 6 no
//! control flow (`flow`) and no groups. A table that cannot be read to its end gives the rows before the
//! damage, and a sentence.

use locality_model::{
    Access, AccessKind, Burst, CacheLevel, Frame, FrameId, Group, GroupId, Host, KernelSample, Ledger, Load,
    Module, ModuleId, Outcome, Overhead, Profile, Rate, Run, Sample, SampleId, Seen, Sources, Stack, StackId,
    Thread, ThreadId, Touch, Use, UseId, Watch, Window,
};
use rusqlite::types::FromSql;
use rusqlite::{Connection, Row};

use crate::reader::Decoded;
use crate::value::{
    Bounded, counts_json, kind_named, mode_named, narrow, numbers_json, pairs_json, unsigned,
};
use crate::{data_tables, flow, loops};

/// Largest id that is believed. Tables are dense vectors; a damaged id must not ask for gigabytes.
const LARGEST_ID: i64 = 1 << 24;

/// Reads everything. `is_whole`: SQLite finds no fault in the file, so a wrong value concerns its
/// row alone.
pub(crate) fn decode(database: &Connection, version: i64, is_whole: bool) -> Decoded {
    let mut tables = Tables { database, is_whole, damage: Vec::new() };
    let has_windows = version >= 2;
    let run = tables.rows("run", run).pop();
    let caches = tables.rows("cache_level", cache_level);
    let finished = tables.rows("state", |row| row.get::<bool>()).pop();
    let has_run = run.is_some();
    let mut run = run.unwrap_or_default();
    run.host.caches = caches;
    let mut ledger = tables.rows("ledger", ledger).pop().unwrap_or_default();
    for (kind, cause, n) in tables.rows("ledger_cause", cause) {
        match kind.as_str() {
            "lost" => ledger.lost.push((cause, n)),
            "filtered" => ledger.filtered_by.push((cause, n)),
            "unreachable" => ledger.unreachable.push((cause, n)),
            _ => ledger.stops.push((cause, n)),
        }
    }
    let samples = tables.rows_with_ids("sample", sample);
    let (sample_ids, samples) = samples.into_iter().map(|(id, sample)| (narrow::<u32>(id), sample)).unzip();
    let windows = if has_windows { tables.rows("window", window) } else { Vec::new() };
    let uses = if has_windows { tables.rows_with_ids("window_use", window_use) } else { Vec::new() };
    let (use_ids, mut uses): (Vec<i64>, Vec<Use>) = uses.into_iter().unzip();
    let outcomes = if has_windows { tables.rows("seen", seen) } else { Vec::new() };
    for (of_use, bytes, outcome) in outcomes {
        if let Some(of) = use_ids.binary_search(&of_use).ok().and_then(|index| uses.get_mut(index)) {
            of.seen.push((bytes, outcome));
        }
    }
    let use_ids = use_ids.into_iter().map(narrow::<u32>).collect();
    let loads = if version >= 4 { tables.rows_with_ids("line_load", line_load) } else { Vec::new() };
    let (load_ids, mut loads): (Vec<i64>, Vec<Load>) = loads.into_iter().unzip();
    for (of_load, burst) in if version >= 4 { tables.rows("burst", burst) } else { Vec::new() } {
        if let Some(of) = load_ids.binary_search(&of_load).ok().and_then(|index| loads.get_mut(index)) {
            of.bursts.push(burst);
        }
    }
    let load_ids = load_ids.into_iter().map(narrow::<u32>).collect();
    let (watch_ids, watches) = tables
        .rows_with_ids(
            "watch",
            match version {
                1 => watch_of_version_1,
                2 | 3 => watch_of_version_2,
                _ => watch,
            },
        )
        .into_iter()
        .unzip();
    let mut profile = Profile {
        run,
        threads: tables.dense("thread", thread),
        modules: tables.dense("module", module),
        frames: tables.dense("frame", frame),
        stacks: tables.dense("stack", stack),
        samples,
        watches,
        windows,
        uses,
        loads,
        ledger,
        overhead: tables.rows("overhead", overhead).pop().unwrap_or_default(),
        notices: tables.rows("notice", |row| row.get()),
        partial: finished != Some(true),
        ..Profile::default()
    };
    if version >= 3 {
        data_tables::decode(&mut tables, version, &mut profile);
    }
    if version >= 5 {
        loops::decode(&mut tables, &mut profile);
    }
    if version >= 6 {
        profile.kernel_samples = tables.rows("kernel_sample", kernel_sample);
    }
    if version >= 7 {
        profile.groups = tables.dense("process_group", process_group);
        profile.flows = tables.rows("window_flow", flow::flow);
        profile.readings = tables.rows("loop_reading", flow::reading);
    }
    if version >= 8 {
        profile.executions = tables.rows("window_execution", flow::execution);
    }
    Decoded { profile, sample_ids, use_ids, load_ids, watch_ids, has_run, damage: tables.damage }
}

/// Reads tables and keeps what went wrong.
pub(crate) struct Tables<'a> {
    database: &'a Connection,
    is_whole: bool,
    damage: Vec<String>,
}

impl Tables<'_> {
    /// All rows of a table by ascending id, as far as the file is readable; without rows with a
    /// wrong value.
    pub(crate) fn rows_with_ids<T>(&mut self, table: &str, decode: Decode<T>) -> Vec<(i64, T)> {
        let (mut values, mut wrong) = (Vec::new(), None);
        if let Err(error) = self.read_rows(table, decode, &mut values, &mut wrong) {
            self.damage.push(format!("table {table}: {error}"));
        }
        if let Some((error, rows)) = wrong {
            self.damage.push(format!("table {table}: {rows} rows: {error}"));
        }
        values
    }

    pub(crate) fn rows<T>(&mut self, table: &str, decode: Decode<T>) -> Vec<T> {
        self.rows_with_ids(table, decode).into_iter().map(|(_, value)| value).collect()
    }

    fn read_rows<T>(
        &self,
        table: &str,
        decode: Decode<T>,
        values: &mut Vec<(i64, T)>,
        wrong: &mut Option<(rusqlite::Error, u64)>,
    ) -> rusqlite::Result<()> {
        // Table names come from this file, not from outside.
        let mut statement = self.database.prepare(&format!("SELECT * FROM {table} ORDER BY id"))?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            // Column 0 is the id in every table.
            let id = get(row, 0)?;
            match decode(&mut Columns { row, next: 1 }) {
                Ok(value) => values.push((id, value)),
                Err(error) if !self.is_whole => return Err(error),
                Err(error) => wrong.get_or_insert((error, 0)).1 += 1,
            }
        }
        Ok(())
    }

    /// A table whose ids are indices. Gaps are filled with default values: a killed tracer may have
    /// written a row before one with a smaller id.
    pub(crate) fn dense<T: Default>(&mut self, table: &str, decode: Decode<T>) -> Vec<T> {
        let rows = self.rows_with_ids(table, decode);
        let mut values = Vec::with_capacity(rows.len());
        for (id, value) in rows {
            // Ids ascend, except in a damaged file.
            if id < values.len() as i64 || id >= LARGEST_ID {
                self.damage.push(format!("table {table}: impossible id {id}"));
                break;
            }
            values.resize_with(id as usize, T::default);
            values.push(value);
        }
        values
    }
}

/// As `Row::get`, which panics over a wrong value where a damaged schema has made the column's name no text.
fn get<T: FromSql>(row: &Row<'_>, at: usize) -> rusqlite::Result<T> {
    let value = row.get_ref(at)?;
    T::column_result(value)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(at, value.data_type(), error.into()))
}

/// Reads columns one after the other, in the order of the schema: looking each up by name costs
/// more than reading it. Struct literals below are in column order for that reason; the round-trip
/// tests notice a swap.
pub(crate) struct Columns<'r> {
    row: &'r Row<'r>,
    next: usize,
}

pub(crate) type Decode<T> = fn(&mut Columns<'_>) -> rusqlite::Result<T>;

impl Columns<'_> {
    pub(crate) fn get<T: FromSql>(&mut self) -> rusqlite::Result<T> {
        let at = self.next;
        self.next += 1;
        get(self.row, at)
    }

    pub(crate) fn number(&mut self) -> rusqlite::Result<u64> {
        self.get().map(unsigned)
    }

    pub(crate) fn small<T: TryFrom<i64> + Bounded>(&mut self) -> rusqlite::Result<T> {
        self.get().map(narrow)
    }

    /// Passes over columns.
    pub(crate) fn skip(&mut self, columns: usize) {
        self.next += columns;
    }

    /// A column that files of the same version may lack: it was added after the others.
    pub(crate) fn added<T: FromSql>(&mut self) -> rusqlite::Result<Option<T>> {
        if self.next < self.row.as_ref().column_count() { self.get() } else { Ok(None) }
    }

    /// SQLite has no NaN and stores NULL instead.
    pub(crate) fn real(&mut self) -> rusqlite::Result<f64> {
        Ok(self.get::<Option<f64>>()?.unwrap_or(f64::NAN))
    }

    fn kind(&mut self) -> rusqlite::Result<Option<AccessKind>> {
        Ok(self.get::<Option<String>>()?.as_deref().map(kind_named))
    }
}

fn run(row: &mut Columns<'_>) -> rusqlite::Result<Run> {
    let mut run = Run {
        command: row.get()?,
        pids: numbers_json(&row.get::<String>()?).unwrap_or_default(),
        started_unix_ns: row.number()?,
        started_mono_ns: row.number()?,
        wall_ns: row.number()?,
        cpu_ns: row.number()?,
        host: Host { kernel: row.get()?, cpu: row.get()?, cpus: row.small()?, caches: Vec::new() },
        mode: mode_named(&row.get::<String>()?),
        sources: Sources { address: row.get()?, rate: row.get()?, clock: row.get()?, heap: None },
        ended_by: row.get()?,
        policy: row.get()?,
        distance_resolution_ns: row.number()?,
        tool_version: row.get()?,
        distance_scatter_ns: row.added()?.map(unsigned),
        user_only: row.added()?.unwrap_or(false),
        ..Run::default()
    };
    run.sources.heap = row.added()?;
    run.ticks = row.added()?.map(unsigned).zip(row.added()?.map(unsigned));
    run.page_faults = row.added()?.map(unsigned);
    run.excluded = row.added::<String>()?.and_then(|text| counts_json(&text)).unwrap_or_default();
    Ok(run)
}

fn cache_level(row: &mut Columns<'_>) -> rusqlite::Result<CacheLevel> {
    Ok(CacheLevel { level: row.small()?, bytes: row.number()?, ways: row.small()?, line: row.small()? })
}

fn thread(row: &mut Columns<'_>) -> rusqlite::Result<Thread> {
    Ok(Thread {
        pid: row.small()?,
        tid: row.small()?,
        name: row.get()?,
        started_ns: row.number()?,
        ended_ns: row.get::<Option<i64>>()?.map(unsigned),
        not_held: row.get()?,
    })
}

fn module(row: &mut Columns<'_>) -> rusqlite::Result<Module> {
    Ok(Module { path: row.get()?, build_id: row.get()? })
}

fn frame(row: &mut Columns<'_>) -> rusqlite::Result<Frame> {
    Ok(Frame {
        address: row.number()?,
        module: row.get::<Option<i64>>()?.map(|id| ModuleId(narrow(id))),
        module_address: row.get::<Option<i64>>()?.map(unsigned),
        function: row.get()?,
        file: row.get()?,
        line: row.get::<Option<i64>>()?.map(narrow),
        inlined: row.get()?,
        unknown: row.get()?,
    })
}

fn stack(row: &mut Columns<'_>) -> rusqlite::Result<Stack> {
    let frames = numbers_json(&row.get::<String>()?).unwrap_or_default();
    Ok(Stack { frames: frames.into_iter().map(FrameId).collect(), cut: row.get()? })
}

fn sample(row: &mut Columns<'_>) -> rusqlite::Result<Sample> {
    Ok(Sample {
        time_ns: row.number()?,
        thread: ThreadId(row.small()?),
        stack: StackId(row.small()?),
        period_ns: row.number()?,
        held: row.get()?,
        access: access(row)?,
        group: row.added::<i64>()?.map(|id| GroupId(narrow(id))),
    })
}

fn process_group(row: &mut Columns<'_>) -> rusqlite::Result<Group> {
    Ok(Group {
        container: row.get()?,
        runtime: row.get()?,
        pod: row.get()?,
        unit: row.get()?,
        cgroup: row.get()?,
        program: row.get()?,
        comm: row.get()?,
    })
}

fn window(row: &mut Columns<'_>) -> rusqlite::Result<Window> {
    Ok(Window {
        sample: SampleId(row.small()?),
        instructions: row.number()?,
        accesses: row.number()?,
        end: row.get()?,
        touches: pairs_json(&row.get::<String>()?).unwrap_or_default(),
        rate: rate(row)?,
    })
}

fn rate(row: &mut Columns<'_>) -> rusqlite::Result<Option<Rate>> {
    let (value, low, high) =
        (row.get::<Option<f64>>()?, row.get::<Option<f64>>()?, row.get::<Option<f64>>()?);
    let source = row.get::<Option<String>>()?;
    let rate = |((value, low), high): ((f64, f64), f64)| Rate {
        value,
        low,
        high,
        source: source.unwrap_or_default(),
    };
    Ok(value.zip(low).zip(high).map(rate))
}

fn window_use(row: &mut Columns<'_>) -> rusqlite::Result<Use> {
    Ok(Use {
        sample: SampleId(row.small()?),
        skip: row.number()?,
        access: whole_access(row)?,
        address: row.number()?,
        stack: StackId(row.small()?),
        seen: Vec::new(),
    })
}

fn line_load(row: &mut Columns<'_>) -> rusqlite::Result<Load> {
    Ok(Load {
        sample: SampleId(row.small()?),
        skip: row.number()?,
        access: whole_access(row)?,
        line: row.number()?,
        stack: StackId(row.small()?),
        gap: row.get::<Option<i64>>()?.map(unsigned),
        stands_for: row.real()?,
        shown: row.number()?,
        bursts: Vec::new(),
    })
}

/// Id of the load, and touches of its line.
fn burst(row: &mut Columns<'_>) -> rusqlite::Result<(i64, Burst)> {
    let of_load = row.get()?;
    let (from, to) = (row.number()?, row.number()?);
    Ok((of_load, Burst { from, to, touches: row.number()?, bytes: row.number()? }))
}

/// An access that is always present.
fn whole_access(row: &mut Columns<'_>) -> rusqlite::Result<Access> {
    Ok(Access {
        ip: row.number()?,
        address: row.number()?,
        size: row.small()?,
        kind: row.kind()?.unwrap_or_default(),
    })
}

/// Id of the use, size of granule, what was seen of it.
fn seen(row: &mut Columns<'_>) -> rusqlite::Result<(i64, u32, Seen)> {
    let (of_use, bytes, accesses) = (row.get()?, row.small()?, row.number()?);
    let stack = row.get::<Option<i64>>()?;
    Ok((
        of_use,
        bytes,
        match stack {
            Some(stack) => {
                Seen::Reused { distance: accesses, access: whole_access(row)?, stack: StackId(narrow(stack)) }
            }
            None => Seen::Open { accesses },
        },
    ))
}

fn access(row: &mut Columns<'_>) -> rusqlite::Result<Result<Access, String>> {
    let (ip, address, size) =
        (row.get::<Option<i64>>()?, row.get::<Option<i64>>()?, row.get::<Option<i64>>()?);
    let (kind, unknown) = (row.kind()?, row.get::<Option<String>>()?);
    Ok(match (ip, address, unknown) {
        (Some(ip), Some(address), None) => Ok(Access {
            ip: unsigned(ip),
            address: unsigned(address),
            size: size.map_or(0, narrow),
            kind: kind.unwrap_or_default(),
        }),
        (_, _, reason) => Err(reason.unwrap_or_default()),
    })
}

fn touch(row: &mut Columns<'_>) -> rusqlite::Result<Option<Touch>> {
    let (time_ns, thread, stack) =
        (row.get::<Option<i64>>()?, row.get::<Option<i64>>()?, row.get::<Option<i64>>()?);
    let (kind, kernel) = (row.kind()?, row.get::<Option<bool>>()?);
    let touch = |((time_ns, thread), stack): ((i64, i64), i64)| Touch {
        time_ns: unsigned(time_ns),
        thread: ThreadId(narrow(thread)),
        stack: StackId(narrow(stack)),
        kind: kind.unwrap_or_default(),
        kernel: kernel.unwrap_or_default(),
    };
    Ok(time_ns.zip(thread).zip(stack).map(touch))
}

fn watch(row: &mut Columns<'_>) -> rusqlite::Result<Watch> {
    let mut watch = watch_of_version_2(row)?;
    let counted = row.get::<Option<i64>>()?.map(unsigned);
    if let Outcome::Reused { accesses, .. } = &mut watch.outcome {
        *accesses = counted;
    }
    Ok(watch)
}

fn kernel_sample(row: &mut Columns<'_>) -> rusqlite::Result<KernelSample> {
    Ok(KernelSample {
        time_ns: row.number()?,
        thread: ThreadId(row.small()?),
        stack: StackId(row.small()?),
        call: row.get()?,
    })
}

fn watch_of_version_2(row: &mut Columns<'_>) -> rusqlite::Result<Watch> {
    let watch = watch_of_version_1(row)?;
    Ok(Watch { of_use: row.get::<Option<i64>>()?.map(|id| UseId(narrow(id))), ..watch })
}

fn watch_of_version_1(row: &mut Columns<'_>) -> rusqlite::Result<Watch> {
    Ok(Watch {
        of_use: None,
        sample: SampleId(row.small()?),
        address: row.number()?,
        bytes: row.small()?,
        armed_ns: row.number()?,
        ended_ns: row.number()?,
        use_touch: touch(row)?,
        use_confirmed: row.get()?,
        outcome: outcome(row)?,
        p_arm: row.real()?,
        p_survive: row.real()?,
        threads_armed: row.small()?,
        threads_alive: row.small()?,
    })
}

fn outcome(row: &mut Columns<'_>) -> rusqlite::Result<Outcome> {
    let (word, reuse, distance_ns) = (row.get::<String>()?, touch(row)?, row.get::<Option<i64>>()?);
    Ok(match (word.as_str(), reuse, distance_ns) {
        ("reused", Some(touch), Some(distance_ns)) => {
            Outcome::Reused { touch, distance_ns: unsigned(distance_ns), accesses: None }
        }
        ("replaced", ..) => Outcome::Replaced,
        ("refused", ..) => Outcome::Refused,
        ("gone", ..) => Outcome::Gone,
        _ => Outcome::StillArmed,
    })
}

fn ledger(row: &mut Columns<'_>) -> rusqlite::Result<Ledger> {
    Ok(Ledger {
        seen: row.number()?,
        filtered: row.number()?,
        submitted: row.number()?,
        received: row.number()?,
        armed: row.number()?,
        trapped: row.number()?,
        censored: row.number()?,
        refused: row.number()?,
        ..Ledger::default()
    })
}

fn cause(row: &mut Columns<'_>) -> rusqlite::Result<(String, String, u64)> {
    Ok((row.get()?, row.get()?, row.number()?))
}

fn overhead(row: &mut Columns<'_>) -> rusqlite::Result<Overhead> {
    Ok(Overhead {
        budget_percent: row.real()?,
        measured_percent: row.real()?,
        stop_ns: row.number()?,
        trap_ns: row.number()?,
        bpf_ns: row.number()?,
        controller_ns: row.number()?,
        stops: row.number()?,
        longest_stop_ns: row.number()?,
        max_stop_ns: row.number()?,
        heap_ns: row.added()?.map(unsigned),
        string_ns: row.added()?.map(unsigned),
    })
}
