//! The sink of rows: the profile file. With a full disk, rows wait in memory for the report.

use std::path::{Path, PathBuf};

use locality_model::{
    Field, FieldId, Frame, FrameId, Group, GroupId, Heap, KernelSample, Ledger, Load, LoadId, Located,
    LoopReading, Module, ModuleId, Object, ObjectId, Overhead, Profile, Record, RecordId, Run, Sample,
    SampleId, SeenLoop, Stack, StackId, Thread, ThreadId, Use, UseId, Watch, WatchId, Window,
    WindowExecution, WindowFlow,
};
use locality_profile::{Error, Owner, Writer};

/// The profile being written.
#[derive(Debug)]
pub struct Store {
    writer: Writer,
    failed: Option<String>,
}

/// Everything that is known only at the end, or again and again.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// The run.
    pub run: Run,
    /// The ledger.
    pub ledger: Ledger,
    /// The costs.
    pub overhead: Overhead,
    /// Sentences for the reader.
    pub notices: Vec<String>,
}

impl Store {
    /// Creates the file, owned by the user who called sudo.
    pub fn create(path: &Path) -> Result<Self, Error> {
        Ok(Self { writer: Writer::create(path, Owner::of_sudo())?, failed: None })
    }

    /// The file.
    pub fn path(&self) -> PathBuf {
        self.writer.path().to_owned()
    }

    /// Why writing failed, if it did.
    pub fn failed(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    fn note(&mut self, result: Result<(), Error>) {
        if let Err(error) = result
            && !matches!(error, Error::Busy { .. })
            && self.failed.is_none()
        {
            self.failed = Some(error.to_string());
        }
    }

    /// Adds or replaces a thread.
    pub fn thread(&mut self, id: ThreadId, thread: &Thread) {
        let result = self.writer.put_thread(id, thread);
        self.note(result);
    }

    /// Adds a module.
    pub fn module(&mut self, id: ModuleId, module: &Module) {
        let result = self.writer.put_module(id, module);
        self.note(result);
    }

    /// Adds a frame.
    pub fn frame(&mut self, id: FrameId, frame: &Frame) {
        let result = self.writer.put_frame(id, frame);
        self.note(result);
    }

    /// Adds a stack.
    pub fn stack(&mut self, id: StackId, stack: &Stack) {
        let result = self.writer.put_stack(id, stack);
        self.note(result);
    }

    /// Adds a group.
    pub fn group(&mut self, id: GroupId, group: &Group) {
        let result = self.writer.put_group(id, group);
        self.note(result);
    }

    /// Adds a sample.
    pub fn sample(&mut self, id: SampleId, sample: &Sample) {
        let result = self.writer.put_sample(id, sample);
        self.note(result);
    }

    /// Adds a watch that ended.
    pub fn watch(&mut self, watch: &Watch) {
        let result = self.writer.append_watch(watch);
        self.note(result);
    }

    /// Tells how many accesses lie between a watch's use and reuse, if that is known.
    pub fn counted(&mut self, id: WatchId, accesses: Option<u64>) {
        let result = self.writer.put_counted(id, accesses);
        self.note(result);
    }

    /// Adds or replaces a window.
    pub fn window(&mut self, id: u32, window: &Window) {
        let result = self.writer.put_window(id, window);
        self.note(result);
    }

    /// Adds a use.
    pub fn window_use(&mut self, id: UseId, of_use: &Use) {
        let result = self.writer.append_use(id, of_use);
        self.note(result);
    }

    /// Adds an access of a window that may load a line.
    pub fn load(&mut self, id: LoadId, load: &Load) {
        let result = self.writer.append_load(id, load);
        self.note(result);
    }

    /// Adds a loop of a window.
    pub fn seen_loop(&mut self, seen: SeenLoop) {
        let result = self.writer.append_loop(seen);
        self.note(result);
    }

    /// Adds the control flow of a window.
    pub fn flow(&mut self, flow: WindowFlow) {
        let result = self.writer.append_flow(flow);
        self.note(result);
    }

    /// Adds the instructions of a window.
    pub fn execution(&mut self, execution: WindowExecution) {
        let result = self.writer.append_execution(execution);
        self.note(result);
    }

    /// Adds what the test of a loop compared.
    pub fn reading(&mut self, reading: LoopReading) {
        let result = self.writer.append_reading(reading);
        self.note(result);
    }

    /// Adds a sample in the kernel.
    pub fn kernel_sample(&mut self, sample: KernelSample) {
        let result = self.writer.append_kernel_sample(sample);
        self.note(result);
    }

    /// Adds or replaces a data object.
    pub fn object(&mut self, id: ObjectId, object: &Object) {
        let result = self.writer.put_object(id, object);
        self.note(result);
    }

    /// Adds a structure type.
    pub fn record(&mut self, id: RecordId, record: &Record) {
        let result = self.writer.put_record(id, record);
        self.note(result);
    }

    /// Adds a part of an object.
    pub fn field(&mut self, id: FieldId, field: &Field) {
        let result = self.writer.put_field(id, field);
        self.note(result);
    }

    /// Says in which object an access lies.
    pub fn located(&mut self, located: Located) {
        let result = self.writer.append_located(located);
        self.note(result);
    }

    /// Adds or replaces what was seen of the heap.
    pub fn heap(&mut self, heap: &Heap) {
        let result = self.writer.put_heap(heap);
        self.note(result);
    }

    /// Adds or replaces the header.
    pub fn summary(&mut self, summary: &Summary) {
        for result in [
            self.writer.put_run(&summary.run),
            self.writer.put_ledger(&summary.ledger),
            self.writer.put_overhead(&summary.overhead),
            self.writer.put_notices(&summary.notices),
        ] {
            self.note(result);
        }
    }

    /// Writes the waiting rows, with the present header; the ledger balances only at the end.
    pub fn so_far(&mut self, summary: &Summary) {
        for result in [
            self.writer.put_run(&summary.run),
            self.writer.put_overhead(&summary.overhead),
            self.writer.commit(),
        ] {
            self.note(result);
        }
    }

    /// Closes the file and reads the profile back, with the reason if rows could not be written.
    pub fn finish(mut self) -> Result<(Profile, Option<String>), Error> {
        let path = self.path();
        if let Err(error) = self.writer.commit() {
            let why = self.failed.unwrap_or_else(|| error.to_string());
            return Ok((self.writer.recover()?, Some(why)));
        }
        // Every row is in the file; without the last mark the file reads as unfinished.
        let marked = self.writer.finish().err().map(|error| error.to_string());
        Ok((locality_profile::read(&path)?, self.failed.or(marked)))
    }
}

/// Why no profile exists, with the remedy if the reason lacks one.
pub fn unwritable(error: Error) -> anyhow::Error {
    let says_how = error.to_string().contains("-o FILE");
    let mend = if says_how { "" } else { "; name another place for it with -o FILE" };
    anyhow::Error::from(error).context(format!("the profile cannot be written{mend}"))
}
