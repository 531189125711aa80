//! JSON of Firefox's profiler: samples of CPU time by thread, and reuses as intervals from use to reuse.
//!
//! Only reuses seen by a watchpoint have times; reuses within a window are too short for a
//! time axis. The weight of a sample is its CPU time in milliseconds, with `run.cpu_s` as the
//! sum. Frames are labels, "function file:line", because symbols are in the profile already.

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use fxprof_processed_profile::{
    CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, MarkerFieldFlags, MarkerFieldFormat,
    MarkerTiming, Profile as Firefox, SamplingInterval, StackHandle, StaticSchemaMarker,
    StaticSchemaMarkerField, StringHandle, ThreadHandle, Timestamp, WeightType,
};
use locality_findings::Findings;
use locality_model::{Accessed, ObjectId, Outcome, Profile, StackId, Thread, ThreadId, Touch, WatchId};

use crate::live::{frame, object_name};

/// A reuse.
#[derive(Debug, Clone, Copy)]
struct Reuse {
    name: StringHandle,
    /// Of the use, of the reuse, the object, the thread of the reuse.
    texts: [StringHandle; 4],
    /// CPU milliseconds between, accesses between if counted.
    numbers: [f64; 2],
}

const fn field(key: &'static str, label: &'static str, format: MarkerFieldFormat) -> StaticSchemaMarkerField {
    StaticSchemaMarkerField { key, label, format, flags: MarkerFieldFlags::SEARCHABLE }
}

impl StaticSchemaMarker for Reuse {
    const UNIQUE_MARKER_TYPE_NAME: &'static str = "Reuse";
    const DESCRIPTION: Option<&'static str> =
        Some("Data from its use to the next touch, as a watchpoint saw it.");
    const CHART_LABEL: Option<&'static str> =
        Some("{marker.data.object}: {marker.data.use} → {marker.data.reuse}");
    const TABLE_LABEL: Option<&'static str> =
        Some("{marker.data.object}: {marker.data.use} → {marker.data.reuse}");
    const FIELDS: &'static [StaticSchemaMarkerField] = &[
        field("use", "Use", MarkerFieldFormat::String),
        field("reuse", "Reuse", MarkerFieldFormat::String),
        field("object", "Data object", MarkerFieldFormat::String),
        field("thread", "Thread of the reuse", MarkerFieldFormat::String),
        field("cpu", "CPU time between", MarkerFieldFormat::Duration),
        field("accesses", "Accesses between (0: not counted)", MarkerFieldFormat::Integer),
    ];

    fn name(&self, _profile: &mut Firefox) -> StringHandle {
        self.name
    }

    fn category(&self, _profile: &mut Firefox) -> CategoryHandle {
        CategoryHandle::OTHER
    }

    fn string_field_value(&self, field: u32) -> StringHandle {
        self.texts.get(field as usize).copied().unwrap_or(self.name)
    }

    fn number_field_value(&self, field: u32) -> f64 {
        self.numbers.get((field as usize).saturating_sub(self.texts.len())).copied().unwrap_or(0.0)
    }
}

struct Writer<'a> {
    profile: &'a Profile,
    findings: &'a Findings,
    to: Firefox,
    threads: Vec<ThreadHandle>,
}

/// The file.
pub fn print(profile: &Profile, findings: &Findings) -> Vec<u8> {
    let run = &profile.run;
    let began = UNIX_EPOCH + Duration::from_nanos(run.started_unix_ns);
    let period = run.cpu_ns.checked_div(profile.samples.len() as u64).unwrap_or(0).max(1);
    let mut to = Firefox::new(&run.command, began.into(), SamplingInterval::from_nanos(period));
    to.set_os_name(&format!("Linux {}", run.host.kernel));
    let mut writer = Writer { profile, findings, to, threads: Vec::new() };
    writer.threads();
    writer.samples();
    writer.reuses();
    // Cannot fail: keys are strings.
    serde_json::to_vec(&writer.to).unwrap_or_default()
}

fn at(time_ns: u64) -> Timestamp {
    Timestamp::from_nanos_since_reference(time_ns)
}

impl Writer<'_> {
    fn threads(&mut self) {
        let mut processes = HashMap::new();
        let unknown = Thread::default();
        let none = self.profile.threads.is_empty().then_some(&unknown);
        for thread in self.profile.threads.iter().chain(none) {
            let process = *processes
                .entry(thread.pid)
                .or_insert_with(|| self.to.add_process(&self.profile.run.command, thread.pid, at(0)));
            let handle =
                self.to.add_thread(process, thread.tid, at(thread.started_ns), thread.tid == thread.pid);
            self.to.set_thread_name(handle, &thread.name);
            self.to.set_thread_samples_weight_type(handle, WeightType::TracingMs);
            if let Some(ended) = thread.ended_ns {
                self.to.set_thread_end_time(handle, at(ended));
            }
            self.threads.push(handle);
        }
    }

    /// A thread missing in the profile becomes the first thread.
    fn thread(&self, id: ThreadId) -> Option<ThreadHandle> {
        self.threads.get(id.0 as usize).or(self.threads.first()).copied()
    }

    fn samples(&mut self) {
        let profile = self.profile;
        let sampled: f64 = profile.samples.iter().map(|sample| sample.period_ns as f64).sum();
        let scale = if sampled > 0.0 { profile.run.cpu_ns as f64 / sampled } else { 1.0 };
        let mut order: Vec<_> = profile.samples.iter().collect();
        order.sort_by_key(|sample| sample.time_ns);
        let mut before: HashMap<ThreadId, u64> = HashMap::new();
        let mut sum_ms = 0.0_f64;
        for sample in order {
            let Some(thread) = self.thread(sample.thread) else { continue };
            let stack = self.stack(thread, sample.stack);
            let last = before.insert(sample.thread, sample.time_ns).unwrap_or(0);
            let cpu_ns = sample.period_ns.min(sample.time_ns.saturating_sub(last));
            let so_far = sum_ms.round();
            sum_ms += sample.period_ns as f64 * scale / 1e6;
            let weight = (sum_ms.round() - so_far) as i32;
            self.to.add_sample(thread, at(sample.time_ns), stack, CpuDelta::from_nanos(cpu_ns), weight);
        }
    }

    fn reuses(&mut self) {
        let profile = self.profile;
        let located: HashMap<Accessed, ObjectId> =
            profile.located.iter().map(|located| (located.of, located.object)).collect();
        let name = self.to.intern_string("Reuse");
        for (id, watch) in (0..).zip(&profile.watches) {
            let (Some(used), Outcome::Reused { touch, distance_ns, accesses }) =
                (watch.use_touch, watch.outcome)
            else {
                continue;
            };
            let Some(thread) = self.thread(used.thread) else { continue };
            let of = watch.of_use.map(Accessed::Use).unwrap_or(Accessed::WatchUse(WatchId(id)));
            let object = located.get(&of).or_else(|| located.get(&Accessed::WatchUse(WatchId(id))));
            let object = object_name(profile, object.copied()).unwrap_or("unknown data");
            let again = profile.threads.get(touch.thread.0 as usize);
            let again = again.map(|thread| format!("{} {}", thread.name, thread.tid)).unwrap_or_default();
            let texts = [self.place(&used), self.place(&touch), object.to_owned(), again];
            let texts = texts.map(|text| self.to.intern_string(&text));
            let numbers = [distance_ns as f64 / 1e6, accesses.unwrap_or(0) as f64];
            let timing = MarkerTiming::Interval(at(used.time_ns), at(touch.time_ns.max(used.time_ns)));
            let marker = self.to.add_marker(thread, timing, Reuse { name, texts, numbers });
            let stack = self.stack(thread, touch.stack);
            self.to.set_marker_stack(thread, marker, stack);
        }
    }

    /// The source place of a touch.
    fn place(&self, touch: &Touch) -> String {
        let contexts = &self.findings.contexts;
        let place = contexts.of(touch.stack).map(|context| contexts.place(contexts.place_of(context)));
        place.and_then(|place| place.frame).map_or("unknown".to_owned(), |id| frame(self.profile, id).label())
    }

    fn stack(&mut self, thread: ThreadHandle, stack: StackId) -> Option<StackHandle> {
        let contexts = &self.findings.contexts;
        let ids = contexts.of(stack).map_or(&[][..], |context| contexts.frames(context));
        let labels: Vec<String> = ids.iter().rev().map(|id| frame(self.profile, *id).label()).collect();
        let frames: Vec<FrameInfo> = labels
            .iter()
            .map(|label| FrameInfo {
                frame: Frame::Label(self.to.intern_string(label)),
                category_pair: CategoryHandle::OTHER.into(),
                flags: FrameFlags::empty(),
            })
            .collect();
        self.to.intern_stack_frames(thread, frames.into_iter())
    }
}
