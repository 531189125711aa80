//! Cache use, for programs (`cache_use` of the JSON report, the fields of the exact one) and as text.

use serde_json::{Map, Value, json};

use crate::cacheuse::{CacheUse, FunctionLoss, LevelUse, LoadingLine};
use crate::context::{ContextId, Contexts, UNKNOWN_CALLER, base_name, function_name};
use crate::model::{AccessKind, FieldId, Frame, FrameId, ObjectId, Profile};

use super::json::ci95;
use super::units::{bytes, percent, share, shorten};

/// Bytes of a line.
const LINE: f64 = 64.0;
/// Rows of each table in JSON, a level.
const ROWS: usize = 100;
/// Callers told of a line, and in text.
const DEPTH: usize = 16;
const CALLERS: usize = 6;
/// Functions and lines of a level in text.
const FUNCTIONS: usize = 5;
const LINES: usize = 3;
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
                "lines_loaded": level.lines.value,
                "lines_loaded_ci95": ci95(&level.lines),
                "bytes_loaded": level.lines.value * LINE,
                "spatial_loss_bytes": level.lost.value,
                "spatial_loss_bytes_ci95": ci95(&level.lost),
                "lost_share": ratio(level.lost.value, level.lines.value * LINE),
            })
        });
        let lines = self
            .cache_use
            .levels
            .iter()
            .flat_map(|level| level.by_line.iter().take(ROWS).map(|line| self.line_value(level, line)));
        let functions = self.cache_use.levels.iter().flat_map(|level| {
            level.by_function.iter().take(ROWS).map(|function| self.function_value(level, function))
        });
        let by_level = |value: &dyn Fn(&LevelUse) -> Value| -> Map<String, Value> {
            self.cache_use.levels.iter().map(|level| (level.name.clone(), value(level))).collect()
        };
        json!({
            "levels": levels.collect::<Vec<_>>(),
            "by_loading_line": lines.collect::<Vec<_>>(),
            "by_function": functions.collect::<Vec<_>>(),
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
        let callers = self.frames(line.context).iter().skip(1).take(DEPTH);
        let object = |(object, field, share): &(ObjectId, Option<FieldId>, f64)| json!({ "name": self.object(*object), "field": field.and_then(|field| self.field(field)), "share": share });
        let mut value = self.frame(line.frame);
        extend(
            &mut value,
            json!({
                "level": level.name,
                "share": line.share.value,
                "ci95": ci95(&line.share),
                "traffic_share": ratio(line.lines, level.lines.value),
                "lines_loaded": line.lines,
                "spatial_loss_bytes": line.lost.value,
                "spatial_loss_bytes_ci95": ci95(&line.lost),
                "used_bytes_per_line": line.used.value,
                "used_bytes_per_line_ci95": ci95(&line.used),
                "access_count": line.accesses,
                "access": if line.kind == AccessKind::Store { "store" } else { "load" },
                "object": line.objects.first().map(|(object, ..)| self.object(*object)),
                "objects": line.objects.iter().take(OBJECTS).map(object).collect::<Vec<_>>(),
                "callers": callers.map(|frame| self.frame(Some(*frame))).collect::<Vec<_>>(),
                "n": line.n,
            }),
        );
        if let Some(why) = self.cut(line.context) {
            value["cut"] = json!(why);
        }
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
                "self": function.own,
                "inclusive": function.inclusive,
                "share": function.share.value,
                "ci95": ci95(&function.share),
                "traffic_share": ratio(function.inclusive, level.lines.value * LINE),
                "lines_loaded": { "inclusive": function.lines },
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

    /// The block of the text report, a line each; sentences are to be wrapped.
    pub fn text(&self) -> Vec<Text> {
        let mut text = Vec::new();
        for level in &self.cache_use.levels {
            let (lost, loaded) = (level.lost.value, level.lines.value * LINE);
            if loaded < HARDLY * self.cache_use.touches * LINE {
                text.push(Text::Sentence(format!(
                    "{} {}: hardly anything is loaded",
                    level.name,
                    bytes(level.bytes)
                )));
                continue;
            }
            text.push(Text::Sentence(format!(
                "{} {}: {} loaded in a second of CPU time, {} of it never used before it was evicted",
                level.name,
                bytes(level.bytes),
                self.per_second(loaded),
                percent(ratio(lost, loaded)),
            )));
            // What is lost below unknown callers is missing further out, so that row is never left out.
            let worth = level.by_function.iter().filter(|function| function.share.value >= SMALL).enumerate();
            let shown = worth.filter(|(row, function)| *row < FUNCTIONS || function.frame.is_none());
            let functions: Vec<_> = shown.map(|(_, function)| function).collect();
            if !functions.is_empty() {
                text.push(Text::Row(format!(
                    "  {:>12}/s {:>11} {:>12}/s  function",
                    "lost below", "of traffic", "by itself"
                )));
            }
            for function in functions {
                text.push(Text::Row(format!(
                    "  {:>12}/s {:>11} {:>12}/s  {}",
                    self.per_second(function.inclusive),
                    percent(ratio(function.inclusive, loaded)),
                    self.per_second(function.own),
                    shorten(&self.function(function.frame), 48),
                )));
            }
            let lines = level.by_line.iter().filter(|line| line.share.value >= SMALL).take(LINES);
            lines.for_each(|line| text.push(Text::Sentence(self.said(line))));
        }
        text
    }

    /// "8 of 64 bytes per line used at conserver.c:106 in gather, of uold[]; …"
    fn said(&self, line: &LoadingLine) -> String {
        let frame = line.frame.and_then(|id| self.profile.frames.get(id.0 as usize));
        let used = line.used.value;
        let digits = usize::from((used - used.round()).abs() > 0.05);
        let by = if line.kind == AccessKind::Store { " by stores" } else { "" };
        let callers = self.frames(line.context).iter().skip(1);
        let mut callers: Vec<String> =
            callers.take(CALLERS).map(|frame| self.function(Some(*frame))).collect();
        callers.extend(self.cut(line.context).map(|why| format!("… {UNKNOWN_CALLER}: {why}")));
        let below =
            if callers.is_empty() { String::new() } else { format!(", below {}", callers.join(", ")) };
        format!(
            "{used:.digits$} of 64 bytes per line used{by} {}{}: {}/s lost, {} of all, each line accessed {:.1} times{below}",
            frame.map_or("at an unknown place".to_owned(), |frame| self.place(frame)),
            self.data(line),
            self.per_second(line.lost.value),
            share(&line.share),
            line.accesses,
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

/// A piece of the text report.
pub(super) enum Text {
    /// As it is.
    Row(String),
    /// To be wrapped.
    Sentence(String),
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn extend(value: &mut Value, more: Value) {
    if let (Some(ours), Value::Object(more)) = (value.as_object_mut(), more) {
        ours.extend(more);
    }
}
