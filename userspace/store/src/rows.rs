//! One row of the profile, and the SQL to store it. All but watches, uses, loads and `located`
//! replace a row of the same id.
//!
//! Not here: when rows are written (`writer`). The columns stand in the order of `schema`.

use locality_model::{
    Access, Burst, Field, FieldId, Frame, FrameId, Group, GroupId, Heap, KernelSample, Ledger, Load, LoadId,
    Located, LoopReading, Module, ModuleId, Object, ObjectId, Outcome, Overhead, Record, RecordId, Run,
    Sample, SampleId, Seen, SeenLoop, Stack, StackId, Thread, ThreadId, Touch, Use, UseId, Watch, WatchId,
    Window, WindowExecution, WindowFlow,
};
use rusqlite::{Connection, Transaction, params};

use crate::data_rows::{self, watch_row};
use crate::value::{json_counts, json_numbers, json_pairs, kind_name, mode_name, signed};
use crate::{flow, loops};

/// Something to be written.
#[derive(Debug)]
pub(crate) enum Row {
    Run(Box<Run>),
    Ledger(Box<Ledger>),
    Overhead(Box<Overhead>),
    Notices(Vec<String>),
    Finished,
    Thread(ThreadId, Box<Thread>),
    Module(ModuleId, Module),
    Frame(FrameId, Box<Frame>),
    Stack(StackId, Stack),
    Group(GroupId, Box<Group>),
    Sample(SampleId, Box<Sample>),
    Watch(WatchId, Box<Watch>),
    /// Accesses between a watch's use and reuse.
    Counted(WatchId, Option<u64>),
    Window(u32, Box<Window>),
    Use(UseId, Box<Use>),
    Load(LoadId, Box<Load>),
    Loop(Box<SeenLoop>),
    Flow(Box<WindowFlow>),
    Execution(Box<WindowExecution>),
    Reading(LoopReading),
    Kernel(Box<KernelSample>),
    Object(ObjectId, Box<Object>),
    Record(RecordId, Record),
    Field(FieldId, Field),
    Located(Located),
    Heap(Box<Heap>),
}

impl Row {
    /// Whether a file has one such row, for a trace of any length.
    pub(crate) fn is_header(&self) -> bool {
        matches!(
            self,
            Self::Run(_)
                | Self::Ledger(_)
                | Self::Overhead(_)
                | Self::Notices(_)
                | Self::Heap(_)
                | Self::Finished
        )
    }
}

/// Writes all rows in one transaction, or none.
pub(crate) fn write_rows(database: &mut Connection, rows: &[Row]) -> rusqlite::Result<()> {
    // A transaction that is dropped rolls back.
    let transaction = database.transaction()?;
    for row in rows {
        write_row(&transaction, row)?;
    }
    transaction.commit()
}

fn write_row(to: &Transaction<'_>, row: &Row) -> rusqlite::Result<()> {
    match row {
        Row::Run(run) => write_run(to, run),
        Row::Ledger(ledger) => write_ledger(to, ledger),
        Row::Overhead(overhead) => write_overhead(to, overhead),
        Row::Notices(notices) => write_notices(to, notices),
        Row::Finished => to.prepare_cached("UPDATE state SET finished = 1")?.execute([]).map(drop),
        Row::Thread(id, thread) => to
            .prepare_cached("INSERT OR REPLACE INTO thread VALUES (?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                id.0,
                thread.pid,
                thread.tid,
                thread.name,
                signed(thread.started_ns),
                thread.ended_ns.map(signed),
                thread.not_held
            ])
            .map(drop),
        Row::Module(id, module) => to
            .prepare_cached("INSERT OR REPLACE INTO module VALUES (?, ?, ?)")?
            .execute(params![id.0, module.path, module.build_id])
            .map(drop),
        Row::Frame(id, frame) => to
            .prepare_cached("INSERT OR REPLACE INTO frame VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                id.0,
                signed(frame.address),
                frame.module.map(|module| module.0),
                frame.module_address.map(signed),
                frame.function,
                frame.file,
                frame.line,
                frame.inlined,
                frame.unknown
            ])
            .map(drop),
        Row::Stack(id, stack) => to
            .prepare_cached("INSERT OR REPLACE INTO stack VALUES (?, ?, ?)")?
            .execute(params![id.0, json_numbers(stack.frames.iter().map(|frame| frame.0)), stack.cut])
            .map(drop),
        Row::Group(id, group) => to
            .prepare_cached("INSERT OR REPLACE INTO process_group VALUES (?, ?, ?, ?, ?, ?, ?, ?)")?
            .execute(params![
                id.0,
                group.container,
                group.runtime,
                group.pod,
                group.unit,
                group.cgroup,
                group.program,
                group.comm
            ])
            .map(drop),
        Row::Sample(id, sample) => write_sample(to, *id, sample),
        Row::Watch(id, watch) => write_watch(to, *id, watch),
        Row::Counted(id, accesses) => to
            .prepare_cached("UPDATE watch SET accesses = ? WHERE id = ?")?
            .execute(params![accesses.map(signed), watch_row(*id)])
            .map(drop),
        Row::Window(id, window) => write_window(to, *id, window),
        Row::Use(id, of_use) => write_use(to, *id, of_use),
        Row::Load(id, load) => write_load(to, *id, load),
        Row::Loop(seen) => loops::write_loop(to, seen),
        Row::Flow(of) => flow::write_flow(to, of),
        Row::Execution(of) => flow::write_execution(to, of),
        Row::Reading(reading) => flow::write_reading(to, reading),
        Row::Kernel(sample) => to
            .prepare_cached("INSERT INTO kernel_sample VALUES (NULL, ?, ?, ?, ?)")?
            .execute(params![signed(sample.time_ns), sample.thread.0, sample.stack.0, sample.call])
            .map(drop),
        Row::Object(id, object) => data_rows::write_object(to, *id, object),
        Row::Record(id, record) => data_rows::write_record(to, *id, record),
        Row::Field(id, field) => data_rows::write_field(to, *id, field),
        Row::Located(located) => data_rows::write_located(to, located),
        Row::Heap(heap) => data_rows::write_heap(to, heap),
    }
}

fn write_run(to: &Transaction<'_>, run: &Run) -> rusqlite::Result<()> {
    to.prepare_cached(
        "INSERT OR REPLACE INTO run VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        run.command,
        json_numbers(run.pids.iter().copied()),
        signed(run.started_unix_ns),
        signed(run.started_mono_ns),
        signed(run.wall_ns),
        signed(run.cpu_ns),
        run.host.kernel,
        run.host.cpu,
        run.host.cpus,
        mode_name(run.mode),
        run.sources.address,
        run.sources.rate,
        run.sources.clock,
        run.ended_by,
        run.policy,
        signed(run.distance_resolution_ns),
        run.tool_version,
        run.distance_scatter_ns.map(signed),
        run.user_only,
        run.sources.heap,
        run.ticks.map(|(all, _)| signed(all)),
        run.ticks.map(|(_, kernel)| signed(kernel)),
        run.page_faults.map(signed),
        (!run.excluded.is_empty()).then(|| json_counts(&run.excluded))
    ])?;
    if let Some(processor) = &run.processor {
        loops::write_processor(to, processor)?;
    }
    to.execute("DELETE FROM cache_level", [])?;
    let mut insert = to.prepare_cached("INSERT INTO cache_level VALUES (?, ?, ?, ?, ?)")?;
    for (id, cache) in run.host.caches.iter().enumerate() {
        insert.execute(params![id as i64, cache.level, signed(cache.bytes), cache.ways, cache.line])?;
    }
    Ok(())
}

fn write_ledger(to: &Transaction<'_>, ledger: &Ledger) -> rusqlite::Result<()> {
    let Ledger { seen, filtered, submitted, received, armed, trapped, censored, refused, .. } = *ledger;
    let counts = [seen, filtered, submitted, received, armed, trapped, censored, refused].map(signed);
    to.prepare_cached("INSERT OR REPLACE INTO ledger VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?)")?
        .execute(rusqlite::params_from_iter(counts))?;
    to.execute("DELETE FROM ledger_cause", [])?;
    let mut insert = to.prepare_cached("INSERT INTO ledger_cause (kind, cause, n) VALUES (?, ?, ?)")?;
    for (kind, causes) in [
        ("lost", &ledger.lost),
        ("filtered", &ledger.filtered_by),
        ("unreachable", &ledger.unreachable),
        ("stops", &ledger.stops),
    ] {
        for (cause, n) in causes {
            insert.execute(params![kind, cause, signed(*n)])?;
        }
    }
    Ok(())
}

fn write_overhead(to: &Transaction<'_>, overhead: &Overhead) -> rusqlite::Result<()> {
    to.prepare_cached("INSERT OR REPLACE INTO overhead VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![
            overhead.budget_percent,
            overhead.measured_percent,
            signed(overhead.stop_ns),
            signed(overhead.trap_ns),
            signed(overhead.bpf_ns),
            signed(overhead.controller_ns),
            signed(overhead.stops),
            signed(overhead.longest_stop_ns),
            signed(overhead.max_stop_ns),
            overhead.heap_ns.map(signed),
            overhead.string_ns.map(signed)
        ])
        .map(drop)
}

fn write_notices(to: &Transaction<'_>, notices: &[String]) -> rusqlite::Result<()> {
    to.execute("DELETE FROM notice", [])?;
    let mut insert = to.prepare_cached("INSERT INTO notice (text) VALUES (?)")?;
    for notice in notices {
        insert.execute([notice])?;
    }
    Ok(())
}

fn write_sample(to: &Transaction<'_>, id: SampleId, sample: &Sample) -> rusqlite::Result<()> {
    let access = sample.access.as_ref().ok();
    to.prepare_cached("INSERT OR REPLACE INTO sample VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![
            id.0,
            signed(sample.time_ns),
            sample.thread.0,
            sample.stack.0,
            signed(sample.period_ns),
            sample.held,
            access.map(|access| signed(access.ip)),
            access.map(|access| signed(access.address)),
            access.map(|access| access.size),
            access.map(|access| kind_name(access.kind)),
            sample.access.as_ref().err(),
            sample.group.map(|group| group.0)
        ])
        .map(drop)
}

fn write_watch(to: &Transaction<'_>, id: WatchId, watch: &Watch) -> rusqlite::Result<()> {
    let (outcome, reuse, distance_ns, accesses) = match watch.outcome {
        Outcome::Reused { touch, distance_ns, accesses } => {
            ("reused", Some(touch), Some(signed(distance_ns)), accesses.map(signed))
        }
        Outcome::Replaced => ("replaced", None, None, None),
        Outcome::StillArmed => ("still armed", None, None, None),
        Outcome::Refused => ("refused", None, None, None),
        Outcome::Gone => ("gone", None, None, None),
    };
    let columns = |touch: Option<Touch>| {
        (
            touch.map(|touch| signed(touch.time_ns)),
            touch.map(|touch| touch.thread.0),
            touch.map(|touch| touch.stack.0),
            touch.map(|touch| kind_name(touch.kind)),
            touch.map(|touch| touch.kernel),
        )
    };
    let (used, reused) = (columns(watch.use_touch), columns(reuse));
    to.prepare_cached(
        "INSERT INTO watch VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        watch_row(id),
        watch.sample.0,
        signed(watch.address),
        watch.bytes,
        signed(watch.armed_ns),
        signed(watch.ended_ns),
        used.0,
        used.1,
        used.2,
        used.3,
        used.4,
        watch.use_confirmed,
        outcome,
        reused.0,
        reused.1,
        reused.2,
        reused.3,
        reused.4,
        distance_ns,
        watch.p_arm,
        watch.p_survive,
        watch.threads_armed,
        watch.threads_alive,
        watch.of_use.map(|id| id.0),
        accesses
    ])
    .map(drop)
}

fn write_window(to: &Transaction<'_>, id: u32, window: &Window) -> rusqlite::Result<()> {
    let rate = window.rate.as_ref();
    to.prepare_cached("INSERT OR REPLACE INTO window VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![
            id,
            window.sample.0,
            signed(window.instructions),
            signed(window.accesses),
            window.end,
            json_pairs(&window.touches),
            rate.map(|rate| rate.value),
            rate.map(|rate| rate.low),
            rate.map(|rate| rate.high),
            rate.map(|rate| &rate.source)
        ])
        .map(drop)
}

fn write_use(to: &Transaction<'_>, id: UseId, of_use: &Use) -> rusqlite::Result<()> {
    let Access { ip, address, size, kind } = of_use.access;
    to.prepare_cached("INSERT INTO window_use VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")?.execute(params![
        id.0,
        of_use.sample.0,
        signed(of_use.skip),
        signed(ip),
        signed(address),
        size,
        kind_name(kind),
        signed(of_use.address),
        of_use.stack.0
    ])?;
    let mut insert = to.prepare_cached("INSERT INTO seen VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)")?;
    for (granule, seen) in &of_use.seen {
        let (accesses, reuse) = match *seen {
            Seen::Reused { distance, access, stack } => (distance, Some((access, stack))),
            Seen::Open { accesses } => (accesses, None),
        };
        insert.execute(params![
            id.0,
            granule,
            signed(accesses),
            reuse.map(|(_, stack)| stack.0),
            reuse.map(|(access, _)| signed(access.ip)),
            reuse.map(|(access, _)| signed(access.address)),
            reuse.map(|(access, _)| access.size),
            reuse.map(|(access, _)| kind_name(access.kind))
        ])?;
    }
    Ok(())
}

fn write_load(to: &Transaction<'_>, id: LoadId, load: &Load) -> rusqlite::Result<()> {
    let Access { ip, address, size, kind } = load.access;
    to.prepare_cached("INSERT INTO line_load VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?.execute(
        params![
            id.0,
            load.sample.0,
            signed(load.skip),
            signed(ip),
            signed(address),
            size,
            kind_name(kind),
            signed(load.line),
            load.stack.0,
            load.gap.map(signed),
            load.stands_for,
            signed(load.shown)
        ],
    )?;
    let mut insert = to.prepare_cached("INSERT INTO burst VALUES (NULL, ?, ?, ?, ?, ?)")?;
    for Burst { from, to, touches, bytes } in &load.bursts {
        insert.execute(params![id.0, signed(*from), signed(*to), signed(*touches), signed(*bytes)])?;
    }
    Ok(())
}
