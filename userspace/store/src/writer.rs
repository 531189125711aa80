//! Writes a profile while the trace runs.
//!
//! Rows wait in memory and go to the file in one short transaction per second, in rollback-journal
//! mode: between transactions exactly one file exists and it is whole. A tracer killed inside a
//! transaction leaves `FILE-journal` beside it, which the next reader plays back. `synchronous` is
//! off: a killed process must not cost data (the kernel has the pages), a power cut may.
//!
//! Limits: memory is bounded by [`PENDING_LIMIT`] rows, those of the header aside; at most one
//! writer per file.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use locality_model::{
    Field, FieldId, Frame, FrameId, Group, GroupId, Heap, KernelSample, Ledger, Load, LoadId, Located,
    LoopReading, Module, ModuleId, Object, ObjectId, Overhead, Profile, Record, RecordId, Run, Sample,
    SampleId, SeenLoop, Stack, StackId, Thread, ThreadId, Use, UseId, Watch, WatchId, Window,
    WindowExecution, WindowFlow,
};
use rusqlite::{Connection, OpenFlags, backup::Backup};

use crate::error::Error;
use crate::place::{self, Owner};
use crate::reader::Decoded;
use crate::rows::{Row, write_rows};
use crate::schema::{APPLICATION_ID, CREATE, SCHEMA_VERSION};
use crate::{repair, tables};

/// Rows that may wait in memory before they are written whether or not a second has passed.
const PENDING_LIMIT: usize = 8192;

/// Longest time that rows wait.
const COMMIT_EVERY: Duration = Duration::from_secs(1);

/// How long a commit waits for a reader. It stands in the tracer's way, so it is short; what could
/// not be written stays in memory.
const BUSY_TIMEOUT: Duration = Duration::from_millis(250);

/// An open profile. Dropping it without [`Writer::finish`] leaves a file that reads as partial.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    database: Connection,
    pending: Vec<Row>,
    /// Watches so far, those without room included.
    watches: u32,
    last_commit: Instant,
    /// The last try to write failed.
    failed: bool,
    /// Locked while we write, and closed after the database.
    _lock: File,
}

impl Writer {
    /// Creates the file with mode 0600. An earlier profile of that name becomes `FILE.old`; a file
    /// that is no profile is an error.
    pub fn create(path: &Path, owner: Option<Owner>) -> Result<Self, Error> {
        let (path, lock) = place::create_empty(path, owner, &|_| false)?;
        let made = Self::open_new(&path).map_err(|error| Error::sqlite(&path, error));
        match made {
            Ok(database) => Ok(Self {
                path,
                database,
                pending: Vec::new(),
                watches: 0,
                last_commit: Instant::now(),
                failed: false,
                _lock: lock,
            }),
            Err(error) => {
                // It holds nothing yet and is ours; if it cannot be removed either, the first error
                // tells more.
                let _ = std::fs::remove_file(&path);
                Err(error)
            }
        }
    }

    fn open_new(path: &Path) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let mut database = Connection::open_with_flags(path, flags)?;
        database.busy_timeout(BUSY_TIMEOUT)?;
        database.pragma_update(None, "journal_mode", "DELETE")?;
        database.pragma_update(None, "synchronous", "OFF")?;
        database.pragma_update(None, "temp_store", "MEMORY")?;
        database.set_prepared_statement_cache_capacity(32);
        let transaction = database.transaction()?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        transaction.execute_batch(CREATE)?;
        transaction.execute("INSERT INTO state (id, finished) VALUES (0, 0)", [])?;
        transaction.commit()?;
        Ok(database)
    }

    /// Path of the file, with its directory's symbolic links resolved.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Stores or replaces the description of the run. Call it early, for a killed trace, and again
    /// after changes.
    pub fn put_run(&mut self, run: &Run) -> Result<(), Error> {
        self.put(Row::Run(Box::new(run.clone())))
    }

    /// Stores or replaces the ledger.
    pub fn put_ledger(&mut self, ledger: &Ledger) -> Result<(), Error> {
        self.put(Row::Ledger(Box::new(ledger.clone())))
    }

    /// Stores or replaces the cost.
    pub fn put_overhead(&mut self, overhead: &Overhead) -> Result<(), Error> {
        self.put(Row::Overhead(Box::new(overhead.clone())))
    }

    /// Stores or replaces all notices, most important first.
    pub fn put_notices(&mut self, notices: &[String]) -> Result<(), Error> {
        self.put(Row::Notices(notices.to_vec()))
    }

    /// Stores or replaces a thread.
    pub fn put_thread(&mut self, id: ThreadId, thread: &Thread) -> Result<(), Error> {
        self.put(Row::Thread(id, Box::new(thread.clone())))
    }

    /// Stores or replaces a module.
    pub fn put_module(&mut self, id: ModuleId, module: &Module) -> Result<(), Error> {
        self.put(Row::Module(id, module.clone()))
    }

    /// Stores or replaces a frame; its symbols may come later than its address.
    pub fn put_frame(&mut self, id: FrameId, frame: &Frame) -> Result<(), Error> {
        self.put(Row::Frame(id, Box::new(frame.clone())))
    }

    /// Stores or replaces a stack; symbolisation may add the inlined frames later.
    pub fn put_stack(&mut self, id: StackId, stack: &Stack) -> Result<(), Error> {
        self.put(Row::Stack(id, stack.clone()))
    }

    /// Stores or replaces a group.
    pub fn put_group(&mut self, id: GroupId, group: &Group) -> Result<(), Error> {
        self.put(Row::Group(id, Box::new(group.clone())))
    }

    /// Stores or replaces a sample.
    pub fn put_sample(&mut self, id: SampleId, sample: &Sample) -> Result<(), Error> {
        self.put(Row::Sample(id, Box::new(sample.clone())))
    }

    /// Adds a watch that has ended.
    pub fn append_watch(&mut self, watch: &Watch) -> Result<(), Error> {
        let id = WatchId(self.watches);
        self.watches += 1;
        self.put(Row::Watch(id, Box::new(watch.clone())))
    }

    /// Tells how many accesses lie between the use and the reuse of a watch that was added, if that
    /// is known; ids are numbers in the order of adding.
    pub fn put_counted(&mut self, id: WatchId, accesses: Option<u64>) -> Result<(), Error> {
        self.put(Row::Counted(id, accesses))
    }

    /// Adds a window, or replaces it once more is known of its rate. Ids are numbers in order.
    pub fn put_window(&mut self, id: u32, window: &Window) -> Result<(), Error> {
        self.put(Row::Window(id, Box::new(window.clone())))
    }

    /// Adds a use with the window's view of it. Each id once.
    pub fn append_use(&mut self, id: UseId, of_use: &Use) -> Result<(), Error> {
        self.put(Row::Use(id, Box::new(of_use.clone())))
    }

    /// Adds an access in a window that may load its line. Each id once.
    pub fn append_load(&mut self, id: LoadId, load: &Load) -> Result<(), Error> {
        self.put(Row::Load(id, Box::new(load.clone())))
    }

    /// Adds a loop of a window.
    pub fn append_loop(&mut self, seen: SeenLoop) -> Result<(), Error> {
        self.put(Row::Loop(Box::new(seen)))
    }

    /// Adds the control flow of a window.
    pub fn append_flow(&mut self, flow: WindowFlow) -> Result<(), Error> {
        self.put(Row::Flow(Box::new(flow)))
    }

    /// Adds the instructions of a window.
    pub fn append_execution(&mut self, execution: WindowExecution) -> Result<(), Error> {
        self.put(Row::Execution(Box::new(execution)))
    }

    /// Adds what the test of a loop compared.
    pub fn append_reading(&mut self, reading: LoopReading) -> Result<(), Error> {
        self.put(Row::Reading(reading))
    }

    /// Adds a sample in the kernel.
    pub fn append_kernel_sample(&mut self, sample: KernelSample) -> Result<(), Error> {
        self.put(Row::Kernel(Box::new(sample)))
    }

    /// Stores or replaces a data object; more may be known of it later.
    pub fn put_object(&mut self, id: ObjectId, object: &Object) -> Result<(), Error> {
        self.put(Row::Object(id, Box::new(object.clone())))
    }

    /// Stores or replaces a structure type.
    pub fn put_record(&mut self, id: RecordId, record: &Record) -> Result<(), Error> {
        self.put(Row::Record(id, record.clone()))
    }

    /// Stores or replaces a member of a structure.
    pub fn put_field(&mut self, id: FieldId, field: &Field) -> Result<(), Error> {
        self.put(Row::Field(id, field.clone()))
    }

    /// Says in which object an access lies. Each access once. Watches are numbered in the order in
    /// which they are appended.
    pub fn append_located(&mut self, located: Located) -> Result<(), Error> {
        self.put(Row::Located(located))
    }

    /// Stores or replaces what was seen of the heap.
    pub fn put_heap(&mut self, heap: &Heap) -> Result<(), Error> {
        self.put(Row::Heap(Box::new(heap.clone())))
    }

    /// Takes a row; writes all of them when a second has passed or too many wait. After an error
    /// everything taken so far still waits; only where the limit is reached is the new row refused.
    fn put(&mut self, row: Row) -> Result<(), Error> {
        // The header is a handful of rows, and the most that a report can lose.
        if self.pending.len() >= PENDING_LIMIT && !row.is_header() {
            // Not for each row anew: to try takes as long as to write all that wait.
            if self.failed && self.last_commit.elapsed() < COMMIT_EVERY {
                return Err(Error::Waiting { path: self.path.clone() });
            }
            self.commit()?;
        }
        self.pending.push(row);
        if self.last_commit.elapsed() < COMMIT_EVERY {
            return Ok(());
        }
        match self.commit() {
            // A reader is at work; there is room to wait for the next second.
            Err(Error::Busy { .. }) => Ok(()),
            result => result,
        }
    }

    /// Writes what waits. Call it once a second also when nothing new arrives. After an error
    /// nothing of it is in the file, everything still waits, and the call can be repeated.
    pub fn commit(&mut self) -> Result<(), Error> {
        self.last_commit = Instant::now();
        if self.pending.is_empty() {
            return Ok(());
        }
        let written = write_rows(&mut self.database, &self.pending);
        let written = written.map_err(|error| Error::sqlite(&self.path, error));
        // A reader that is at work goes away.
        self.failed = written.as_ref().is_err_and(|error| !matches!(error, Error::Busy { .. }));
        written?;
        self.pending.clear();
        Ok(())
    }

    /// Writes the rest and marks the profile as whole.
    pub fn finish(mut self) -> Result<(), Error> {
        self.pending.push(Row::Finished);
        self.commit()?;
        self.database.close().map_err(|(_, error)| Error::sqlite(&self.path, error))
    }

    /// Gives up on an unwritable file: returns its content together with the waiting rows. The file
    /// stays.
    pub fn recover(self) -> Result<Profile, Error> {
        self.with_pending().map_err(|error| Error::sqlite(&self.path, error)).map(repair::finish)
    }

    fn with_pending(&self) -> rusqlite::Result<Decoded> {
        let mut memory = Connection::open_in_memory()?;
        // Through the open connection: the file may have no name any more.
        Backup::new(&self.database, &mut memory)?.run_to_completion(i32::MAX, Duration::ZERO, None)?;
        write_rows(&mut memory, &self.pending)?;
        write_rows(&mut memory, &[Row::Finished])?;
        Ok(tables::decode(&memory, SCHEMA_VERSION, true))
    }
}
