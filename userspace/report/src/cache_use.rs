//! Cache use, for programs (`cache_use` of the JSON report, the fields of the exact one) and as text.

use locality_estimate::calling_context::{ContextId, Contexts, UNKNOWN_CALLER, base_name, function_name};
use locality_findings::cache_use::{
    CacheUse, Costs, FunctionLoss, LevelUse, Loaded, LoadingLine, ObjectLoss,
};
use locality_model::{AccessKind, FieldId, Frame, FrameId, ObjectId, Profile};
use locality_units::print::{bytes, percent, shorten};
use serde_json::{Map, Value, json};

use super::estimates::{ci95, share};
use super::names::kind_name;

/// Bytes of a line.
const LINE: f64 = 64.0;
/// Callers told of a line, and in text.
const DEPTH: usize = 16;
const CALLERS: usize = 6;
/// Functions, lines and data objects of a level in text.
const FUNCTIONS: usize = 5;
const LINES: usize = 3;
const DATA: usize = 3;
/// What no object is known of.
const UNKNOWN: &str = "[unknown]";
/// Why a call path is cut that the profile lacks.
const NO_PATH: &str = "the profile lacks this stack";
/// Objects told with a line.
const OBJECTS: usize = 4;
/// Fewer loads for each touch of a line are not worth a word.
const HARDLY: f64 = 1e-5;
/// Rows below this share of what is lost are left out in text.
const SMALL: f64 = 0.01;

/// What is printed of.
pub(super) struct Report<'a> {
    pub profile: &'a Profile,
    pub contexts: &'a Contexts,
    pub cache_use: &'a CacheUse,
}

impl Report<'_> {
    /// The JSON field.
    pub fn value(&self) -> Value {
        let levels = self.cache_use.levels.iter().map(|level| {
            json!({
                "level": level.name,
                "bytes": level.bytes,
                "line": LINE,
                "lines_loaded": level.costs.lines.value,
                "lines_loaded_ci95": ci95(&level.costs.lines),
                "bytes_loaded": level.costs.lines.value * LINE,
                "spatial_loss_bytes": level.costs.lost.value,
                "spatial_loss_bytes_ci95": ci95(&level.costs.lost),
                "lost_share": level.lost_share.value,
                "lost_share_ci95": ci95(&level.lost_share),
                "access_cost": level.costs.access_cost.value,
                "access_cost_ci95": ci95(&level.costs.access_cost),
            })
        });
        let levels_of = || self.cache_use.levels.iter();
        let lines =
            levels_of().flat_map(|level| level.by_line.iter().map(|line| self.line_value(level, line)));
        let functions = levels_of()
            .flat_map(|level| level.by_function.iter().map(|function| self.function_value(level, function)));
        let objects: Vec<Value> = levels_of()
            .flat_map(|level| level.by_object.iter().map(|object| self.object_value(level, object)))
            .collect();
        let by_level = |value: &dyn Fn(&LevelUse) -> Value| -> Map<String, Value> {
            self.cache_use.levels.iter().map(|level| (level.name.clone(), value(level))).collect()
        };
        json!({
            "levels": levels.collect::<Vec<_>>(),
            "by_loading_line": lines.collect::<Vec<_>>(),
            "by_function": functions.collect::<Vec<_>>(),
            "by_object": Some(objects).filter(|objects| !objects.is_empty()),
            "rows_left_out": levels_of().map(|level| level.rows_left_out).sum::<usize>(),
            "unknown_caller": {
                "spatial_loss_bytes": by_level(&|level| json!(level.unknown_caller.value)),
                "spatial_loss_bytes_ci95": by_level(&|level| ci95(&level.unknown_caller)),
            },
            "balanced": self.cache_use.levels.iter().all(|level| level.balanced),
            "n": self.cache_use.n,
            "left_out": self.cache_use.left_out,
        })
    }

    /// A call path, innermost frame first.
    fn frames(&self, context: Option<ContextId>) -> &[FrameId] {
        context.map_or(&[], |context| self.contexts.frames(context))
    }

    /// Why the outermost frames of a call path are missing.
    fn cut(&self, context: Option<ContextId>) -> Option<&str> {
        context.map_or(Some(NO_PATH), |context| self.contexts.cut(context))
    }

    fn line_value(&self, level: &LevelUse, line: &LoadingLine) -> Value {
        let object = |(object, field, share): &(ObjectId, Option<FieldId>, f64)| json!({ "name": self.object(*object), "field": field.and_then(|field| self.field(field)), "share": share });
        let mut value = self.frame(line.frame);
        extend(
            &mut value,
            json!({
                "level": level.name,
                "access": if line.kind == AccessKind::Store { "store" } else { "load" },
                "object": line.objects.first().map(|(object, ..)| self.object(*object)),
                "objects": line.objects.iter().take(OBJECTS).map(object).collect::<Vec<_>>(),
                "contexts": line.contexts.iter().map(|(context, loaded)| {
                    let mut value = self.callers(*context);
                    extend(&mut value, loaded_value(loaded));
                    value
                }).collect::<Vec<_>>(),
                "contexts_total": line.contexts_total,
            }),
        );
        extend(&mut value, loaded_value(&line.loaded));
        extend(&mut value, self.callers(line.context()));
        value
    }

    /// The callers on a call path, innermost first, and why outer ones are missing.
    fn callers(&self, context: Option<ContextId>) -> Value {
        let callers = self.frames(context).iter().skip(1).take(DEPTH);
        let mut value =
            json!({ "callers": callers.map(|frame| self.frame(Some(*frame))).collect::<Vec<_>>() });
        if let Some(why) = self.cut(context) {
            value["cut"] = json!(why);
        }
        value
    }

    fn object_value(&self, level: &LevelUse, object: &ObjectLoss) -> Value {
        let known = object.object.and_then(|id| self.profile.objects.get(id.0 as usize));
        let mut value = json!({
            "level": level.name,
            "name": known.map_or(UNKNOWN, |object| &object.name),
            "kind": kind_name(known.map(|object| object.kind).unwrap_or_default()),
        });
        extend(&mut value, loaded_value(&object.loaded));
        value
    }

    fn function_value(&self, level: &LevelUse, function: &FunctionLoss) -> Value {
        let mut value = self.frame(function.frame);
        extend(
            &mut value,
            json!({
                "function": self.function(function.frame),
                "line": null,
                "level": level.name,
                "self": function.own.lost.value,
                "self_ci95": ci95(&function.own.lost),
                "inclusive": function.inclusive.lost.value,
                "inclusive_ci95": ci95(&function.inclusive.lost),
                "share": function.share.value,
                "ci95": ci95(&function.share),
                "traffic_share": function.of_traffic.value,
                "traffic_share_ci95": ci95(&function.of_traffic),
                "lines_loaded": both(function, |costs| json!(costs.lines.value)),
                "lines_loaded_ci95": both(function, |costs| ci95(&costs.lines)),
                "access_cost": both(function, |costs| json!(costs.access_cost.value)),
                "access_cost_ci95": both(function, |costs| ci95(&costs.access_cost)),
                "n": function.share.n,
            }),
        );
        value
    }

    fn frame(&self, id: Option<FrameId>) -> Value {
        let frame = id.and_then(|id| self.profile.frames.get(id.0 as usize));
        let module = frame.and_then(|frame| frame.module);
        let module = module.and_then(|module| self.profile.modules.get(module.0 as usize));
        json!({
            "function": frame.map(|frame| function_name(self.profile, frame)),
            "file": frame.and_then(|frame| frame.file.as_deref()),
            "line": frame.and_then(|frame| frame.line),
            "module": module.map(|module| &module.path),
        })
    }

    fn object(&self, id: ObjectId) -> Option<&str> {
        self.profile.objects.get(id.0 as usize).map(|object| object.name.as_str())
    }

    fn field(&self, id: FieldId) -> Option<&str> {
        let field = self.profile.fields.get(id.0 as usize)?;
        (!field.path.is_empty()).then_some(field.path.as_str())
    }

    /// The block of the text report, a line each, with so many rows of each table if asked for;
    /// sentences are to be wrapped.
    pub fn text(&self, top: Option<usize>) -> Vec<Text> {
        let mut text = Vec::new();
        for level in &self.cache_use.levels {
            let lines = level.costs.lines;
            if lines.value < HARDLY * self.cache_use.touches {
                text.push(Text::Sentence(format!(
                    "{} {}: hardly anything is loaded",
                    level.name,
                    bytes(level.bytes)
                )));
                continue;
            }
            text.push(Text::Sentence(format!(
                "{} {}: {} [{}–{}] loaded in a second of CPU time, {} of it never used before it was evicted",
                level.name,
                bytes(level.bytes),
                self.per_second(lines.value * LINE),
                self.per_second(lines.low * LINE),
                self.per_second(lines.high * LINE),
                share(&level.lost_share),
            )));
            // What is lost below unknown callers is missing further out, so that row is never left out.
            let functions = functions(&level.by_function, top);
            if !functions.is_empty() {
                text.push(Text::Row(format!(
                    "  {:>12}/s {:>11} {:>12}/s  function",
                    "lost below", "of traffic", "by itself"
                )));
            }
            for function in functions {
                text.push(Text::Row(format!(
                    "  {:>12}/s {:>11} {:>12}/s  {}",
                    self.per_second(function.inclusive.lost.value),
                    percent(function.of_traffic.value),
                    self.per_second(function.own.lost.value),
                    shorten(&self.function(function.frame), 48),
                )));
            }
            let lines = level
                .by_line
                .iter()
                .filter(|line| least(top, line.loaded.share.value))
                .take(top.unwrap_or(LINES));
            lines.for_each(|line| text.push(Text::Sentence(self.said(line))));
            let objects = level.by_object.iter().filter(|object| least(top, object.loaded.share.value));
            let objects: Vec<_> = objects.take(top.unwrap_or(DATA)).collect();
            if !objects.is_empty() {
                text.push(Text::Row(format!(
                    "  {:>12}/s {:>11} {:>14}  data whose lines are not used",
                    "lost", "of all lost", "used a line"
                )));
            }
            for ObjectLoss { object, loaded } in objects {
                text.push(Text::Row(format!(
                    "  {:>12}/s {:>11} {:>14}  {}",
                    self.per_second(loaded.costs.lost.value),
                    percent(loaded.share.value),
                    bytes(loaded.used.value.round() as u64),
                    shorten(object.and_then(|id| self.object(id)).unwrap_or(UNKNOWN), 48),
                )));
            }
        }
        text
    }

    /// "8 of 64 bytes per line used at conserver.c:106 in gather, of uold[]; …"
    fn said(&self, line: &LoadingLine) -> String {
        let frame = line.frame.and_then(|id| self.profile.frames.get(id.0 as usize));
        let (loaded, context) = (&line.loaded, line.context());
        let used = loaded.used.value;
        let digits = usize::from((used - used.round()).abs() > 0.05);
        let by = if line.kind == AccessKind::Store { " by stores" } else { "" };
        let callers = self.frames(context).iter().skip(1);
        let mut callers: Vec<String> =
            callers.take(CALLERS).map(|frame| self.function(Some(*frame))).collect();
        callers.extend(self.cut(context).map(|why| format!("… {UNKNOWN_CALLER}: {why}")));
        let below =
            if callers.is_empty() { String::new() } else { format!(", below {}", callers.join(", ")) };
        format!(
            "{used:.digits$} of 64 bytes per line used{by} {}{}: {}/s lost, {} of all, each line accessed {:.1} times (harmonic mean){below}",
            frame.map_or("at an unknown place".to_owned(), |frame| self.place(frame)),
            self.data(line),
            self.per_second(loaded.costs.lost.value),
            share(&loaded.share),
            loaded.accesses.value,
        )
    }

    /// The data that it loads: objects with their parts.
    fn data(&self, line: &LoadingLine) -> String {
        let mut names: Vec<String> = Vec::new();
        for (object, field, _) in line.objects.iter().filter(|(.., share)| *share >= SMALL).take(OBJECTS) {
            let Some(object) = self.object(*object) else { continue };
            let name =
                format!("{}{}", shorten(object, 32), field.and_then(|field| self.field(field)).unwrap_or(""));
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() { String::new() } else { format!(", of {}", names.join(", ")) }
    }

    fn place(&self, frame: &Frame) -> String {
        let function = shorten(&function_name(self.profile, frame), 48);
        match (&frame.file, frame.line) {
            (Some(file), Some(line)) => format!("at {}:{line} in {function}", base_name(file)),
            _ => format!("in {function}"),
        }
    }

    fn function(&self, frame: Option<FrameId>) -> String {
        let frame = frame.and_then(|frame| self.profile.frames.get(frame.0 as usize));
        frame.map_or(UNKNOWN_CALLER.to_owned(), |frame| function_name(self.profile, frame))
    }

    fn per_second(&self, of: f64) -> String {
        bytes((of * 1e9 / (self.profile.run.cpu_ns as f64).max(1.0)) as u64)
    }
}

/// Whether a row is shown: small ones only where rows were asked for.
fn least(top: Option<usize>, share: f64) -> bool {
    share >= if top.is_some() { f64::MIN_POSITIVE } else { SMALL }
}

/// The rows of functions, and a line for unknown callers wherever it stands: what is lost below
/// them is missing further out.
fn functions(all: &[FunctionLoss], top: Option<usize>) -> Vec<&FunctionLoss> {
    let rows = top.unwrap_or(FUNCTIONS);
    let worth = all.iter().filter(|function| least(top, function.share.value)).enumerate();
    worth
        .filter(|(row, function)| *row < rows || function.frame.is_none())
        .map(|(_, function)| function)
        .collect()
}

/// A piece of the text report.
pub(super) enum Text {
    /// As it is.
    Row(String),
    /// To be wrapped.
    Sentence(String),
}

/// The fields that lines of code, call paths and data objects have in common.
fn loaded_value(loaded: &Loaded) -> Value {
    let Loaded { costs, traffic, share, used, accesses } = loaded;
    json!({
        "share": share.value,
        "ci95": ci95(share),
        "traffic_share": traffic.value,
        "traffic_share_ci95": ci95(traffic),
        "lines_loaded": costs.lines.value,
        "lines_loaded_ci95": ci95(&costs.lines),
        "spatial_loss_bytes": costs.lost.value,
        "spatial_loss_bytes_ci95": ci95(&costs.lost),
        "used_bytes_per_line": used.value,
        "used_bytes_per_line_ci95": ci95(used),
        "access_count": accesses.value,
        "access_count_ci95": ci95(accesses),
        "access_cost": costs.access_cost.value,
        "access_cost_ci95": ci95(&costs.access_cost),
        "n": share.n,
    })
}

fn both(function: &FunctionLoss, value: impl Fn(&Costs) -> Value) -> Value {
    json!({ "self": value(&function.own), "inclusive": value(&function.inclusive) })
}

fn extend(value: &mut Value, more: Value) {
    if let (Some(ours), Value::Object(more)) = (value.as_object_mut(), more) {
        ours.extend(more);
    }
}

#[cfg(test)]
mod tests;
