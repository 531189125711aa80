//! Cache use as text. For programs: `json::cache_use`.

use locality_estimate::calling_context::{ContextId, Contexts, UNKNOWN_CALLER, base_name, function_name};
use locality_findings::cache_use::{CacheUse, FunctionLoss, LoadingLine, ObjectLoss};
use locality_model::{AccessKind, FieldId, Frame, FrameId, ObjectId, Profile};
use locality_units::print::{bytes, percent, shorten};

use super::estimates::share;
use super::names::level_label;

/// Bytes of a line.
pub(super) const LINE: f64 = 64.0;
/// Callers printed of a line.
const CALLERS: usize = 6;
/// Functions, lines and data objects of a level in text.
const FUNCTIONS: usize = 5;
const LINES: usize = 3;
const DATA: usize = 3;
/// What no object is known of.
pub(super) const UNKNOWN: &str = "[unknown]";
/// Why a call path is cut that the profile lacks.
pub(super) const NO_PATH: &str = "the profile lacks this stack";
/// Objects printed with a line.
const OBJECTS: usize = 4;
/// Fewer loads for each touch of a line are not printed.
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
    /// A call path, innermost frame first.
    fn frames(&self, context: Option<ContextId>) -> &[FrameId] {
        context.map_or(&[], |context| self.contexts.frames(context))
    }

    /// Why the outermost frames of a call path are missing.
    fn cut(&self, context: Option<ContextId>) -> Option<&str> {
        context.map_or(Some(NO_PATH), |context| self.contexts.cut(context))
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
                    level_label(&level.name),
                    bytes(level.bytes)
                )));
                continue;
            }
            text.push(Text::Sentence(format!(
                "{} {}: {} [{}–{}] loaded in a second of CPU time, {} of it never used before it was evicted",
                level_label(&level.name),
                bytes(level.bytes),
                self.per_second(lines.value * LINE),
                self.per_second(lines.low * LINE),
                self.per_second(lines.high * LINE),
                share(&level.lost_share),
            )));
            // Losses below unknown callers are missing further out, so the row is never left out.
            let functions = functions(&level.by_function, top);
            if !functions.is_empty() {
                text.push(Text::Row(format!(
                    "  {:>12}/s {:>11} {:>12}/s  function",
                    "with callees", "of traffic", "itself"
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
            if callers.is_empty() { String::new() } else { format!(", called from {}", callers.join(", ")) };
        format!(
            "{used:.digits$} of 64 bytes per line used{by} {}{}: {}/s lost, {} of all, each line accessed {:.1} times{below}",
            frame.map_or("at an unknown place".to_owned(), |frame| self.place(frame)),
            self.data(line),
            self.per_second(loaded.costs.lost.value),
            share(&loaded.share),
            loaded.accesses.value,
        )
    }

    /// Its loaded data: objects with their parts.
    fn data(&self, line: &LoadingLine) -> String {
        let mut names: Vec<String> = Vec::new();
        for (object, field, _) in line.objects.iter().filter(|(.., share)| *share >= SMALL).take(OBJECTS) {
            let Some(object) = self.object(*object) else { continue };
            let name = format!(
                "`{}{}`",
                shorten(object, 32),
                field.and_then(|field| self.field(field)).unwrap_or("")
            );
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

#[cfg(test)]
mod tests;
