//! Call paths of a live profile with all metrics.
//!
//! Totals are as in the report (locality-report/2): `cpu` is `run.cpu_s`, `accesses` is `run.cpu_s`
//! times `windows.accesses_per_ns`, `far` is the share of far reuses in millionths,
//! `misses` and `wasted` are `lines_loaded` and `spatial_loss_bytes` of the levels of `cache_use`.

use std::collections::HashMap;

use locality_estimate::access_rates::{Rates, Unit};
use locality_estimate::calling_context::{ContextId, UNKNOWN_CALLER, function_name};
use locality_findings::Findings;
use locality_findings::cache_use::CacheUse;
use locality_findings::pairs::Pair;
use locality_model::{Accessed, FrameId, ObjectId, ObjectKind, Profile, SampleId, StackId, UseId};

use crate::table::{Builder, Frame, Labels, Table};
use crate::{End, Metric};

/// Millionths.
const MILLION: f64 = 1e6;

/// All call paths.
pub fn table(profile: &Profile, findings: &Findings, end: End) -> Table {
    let mut paths = Paths { profile, findings, builder: Builder::default() };
    paths.far(end);
    paths.cache_use();
    paths.cpu_and_accesses();
    paths.builder.finish()
}

/// A frame of a profile in the form for exports.
pub fn frame(profile: &Profile, id: FrameId) -> Frame {
    let Some(frame) = profile.frames.get(id.0 as usize) else { return Frame::default() };
    let module = frame.module.and_then(|module| profile.modules.get(module.0 as usize));
    Frame {
        name: function_name(profile, frame),
        file: frame.file.clone().unwrap_or_default(),
        line: frame.line.unwrap_or(0),
        module: module.map(|module| module.path.clone()).unwrap_or_default(),
        address: frame.address_in_file().unwrap_or(0),
        inlined: frame.inlined,
    }
}

/// The name of an object, if known.
pub fn object_name(profile: &Profile, object: Option<ObjectId>) -> Option<&str> {
    let object = profile.objects.get(object?.0 as usize)?;
    (object.kind != ObjectKind::Unknown).then_some(object.name.as_str())
}

struct Paths<'a> {
    profile: &'a Profile,
    findings: &'a Findings,
    builder: Builder<Option<FrameId>>,
}

impl Paths<'_> {
    /// Frames of a context, outermost first; a cut path begins with a frame that says so.
    fn path(&mut self, context: Option<ContextId>) -> Vec<u32> {
        let contexts = &self.findings.contexts;
        let frames = context.map_or(&[][..], |context| contexts.frames(context));
        let whole = context.is_some_and(|context| contexts.cut(context).is_none()) && !frames.is_empty();
        let mut path = Vec::with_capacity(frames.len() + 1);
        if !whole {
            let name = UNKNOWN_CALLER.to_owned();
            path.push(self.builder.frame(None, || Frame { name, ..Frame::default() }));
        }
        for id in frames.iter().rev() {
            path.push(self.builder.frame(Some(*id), || frame(self.profile, *id)));
        }
        path
    }

    fn path_of(&mut self, stack: StackId) -> Vec<u32> {
        self.path(self.findings.contexts.of(stack))
    }

    fn far(&mut self, end: End) {
        let is_far = |pair: &&Pair| pair.far_weight.n > 0;
        let far: Vec<&Pair> = self.findings.pairs.iter().filter(is_far).collect();
        let column = self.builder.column(Metric::Far, "count", None);
        for pair in far {
            let (other, key) = match end {
                End::Use => (pair.reuse_place, "reuse"),
                End::Reuse => (pair.use_place, "use"),
            };
            let place = self.findings.contexts.place(other);
            let name = place.frame.map(|id| frame(self.profile, id).label());
            let mut labels: Labels = name.into_iter().map(|name| (key, name)).collect();
            let object = pair.object.and_then(|(object, _)| object_name(self.profile, Some(object)));
            labels.extend(object.map(|name| ("object", name.to_owned())));
            for context in pair.contexts.iter().filter(|context| context.far_weight > 0.0) {
                let at = match end {
                    End::Use => context.use_context,
                    End::Reuse => context.reuse_context,
                };
                let path = self.path(Some(at));
                self.builder.add(column, path, labels.clone(), context.far_weight * MILLION);
            }
        }
    }

    fn cache_use(&mut self) {
        let levels = self.findings.cache_use.as_ref().map_or(&[][..], |CacheUse { levels, .. }| levels);
        for level in levels {
            let name = locality_report::level_label(&level.name);
            let misses = self.builder.column(Metric::Misses(name.to_owned()), "count", None);
            let wasted = self.builder.column(Metric::Wasted(name.to_owned()), "bytes", None);
            for loaded in &level.by_path {
                let path = self.path(loaded.context);
                let object = object_name(self.profile, loaded.object);
                let labels: Labels = object.map(|name| ("object", name.to_owned())).into_iter().collect();
                self.builder.add(misses, path.clone(), labels.clone(), loaded.lines);
                self.builder.add(wasted, path, labels, loaded.lost);
            }
        }
    }

    fn cpu_and_accesses(&mut self) {
        let profile = self.profile;
        let rates = Rates::of(profile);
        let cpu_ns = profile.run.cpu_ns as f64;
        let in_accesses = rates.unit() == Unit::Accesses;
        let cpu = self.builder.column(Metric::Cpu, "nanoseconds", Some(cpu_ns));
        let accesses =
            in_accesses.then(|| self.builder.column(Metric::Accesses, "count", Some(rates.mean() * cpu_ns)));
        let located: HashMap<Accessed, ObjectId> =
            profile.located.iter().map(|located| (located.of, located.object)).collect();
        let mut uses: HashMap<u32, Vec<(StackId, Accessed)>> = HashMap::new();
        for (id, used) in (0..).zip(&profile.uses) {
            uses.entry(used.sample.0).or_default().push((used.stack, Accessed::Use(UseId(id))));
        }
        for (id, sample) in (0..).zip(&profile.samples) {
            let thread = profile.threads.get(sample.thread.0 as usize);
            let thread = thread.map(|thread| ("thread", format!("{} {}", thread.name, thread.tid)));
            let period = sample.period_ns as f64;
            let path = self.path_of(sample.stack);
            self.builder.add(cpu, path, thread.clone().into_iter().collect(), period);
            let Some(accesses) = accesses else { continue };
            let own = [(sample.stack, Accessed::Sample(SampleId(id)))];
            let uses = uses.get(&id).map_or(&own[..], Vec::as_slice);
            let each = rates.at(id as usize).value * period / uses.len() as f64;
            for (stack, of) in uses {
                let object = object_name(profile, located.get(of).copied());
                let object = object.map(|name| ("object", name.to_owned()));
                let path = self.path_of(*stack);
                self.builder.add(accesses, path, object.into_iter().chain(thread.clone()).collect(), each);
            }
        }
    }
}
