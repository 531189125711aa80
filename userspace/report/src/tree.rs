//! Two call paths as one indented tree: the common part once, then the branch of the use and that
//! of the reuse. A path whose outermost frames are missing begins with a line that says why.

use locality_estimate::calling_context::{ContextId, UNKNOWN_CALLER, base_name, function_name};
use locality_findings::Findings;
use locality_findings::pairs::ContextPair;
use locality_model::{AccessKind, Frame, FrameId, Profile};
use locality_units::print::{shorten, shorten_path};

use super::text::screen::names::cut;

/// Frames of the common part that are shown; outer ones are counted.
const COMMON_SHOWN: usize = 4;
/// Frames of a branch at its top and at its end.
const BRANCH_TOP: usize = 2;
const BRANCH_END: usize = 3;

const NAME_COLUMN: usize = 10;
const PLACE_COLUMN: usize = 56;

/// Lines of the tree, no wider than `width`.
pub(crate) fn lines(profile: &Profile, findings: &Findings, pair: &ContextPair, width: usize) -> Vec<String> {
    let path =
        |context: ContextId| findings.contexts.frames(context).iter().rev().copied().collect::<Vec<_>>();
    let (used, reused) = (path(pair.use_context), path(pair.reuse_context));
    let [use_cut, reuse_cut] =
        [pair.use_context, pair.reuse_context].map(|context| findings.contexts.cut(context));
    let mut tree = Tree { profile, width, lines: Vec::new() };
    if used == reused {
        let tail = format!("{}, then {}", verb(pair.use_kind), verb(pair.reuse_kind));
        let (common, leaf) = used.split_at(used.len().saturating_sub(1));
        let start = tree.unknown("", use_cut.or(reuse_cut));
        let depth = tree.common(start, common);
        tree.branch("both", leaf, depth, &tail);
        return tree.lines;
    }
    let (equal, _) = findings.contexts.common_ancestor(profile, pair.use_context, pair.reuse_context);
    // Each branch has at least its own last frame, even if one path is the beginning of the other.
    let shared = equal.min(used.len().saturating_sub(1)).min(reused.len().saturating_sub(1));
    if shared > 0 {
        let start = tree.unknown("", use_cut.or(reuse_cut));
        let depth = tree.common(start, &used[..shared]);
        tree.branch("use", &used[shared..], depth, verb(pair.use_kind));
        tree.branch("reuse", &reused[shared..], depth, verb(pair.reuse_kind));
    } else {
        for (label, frames, cut, kind) in
            [("use", &used, use_cut, pair.use_kind), ("reuse", &reused, reuse_cut, pair.reuse_kind)]
        {
            let depth = tree.unknown(label, cut);
            tree.branch(if depth > 0 { "" } else { label }, frames, depth, verb(kind));
        }
    }
    tree.lines
}

struct Tree<'a> {
    profile: &'a Profile,
    width: usize,
    lines: Vec<String>,
}

impl Tree<'_> {
    /// Says why outer frames are missing, if they are; returns the depth at which the known ones start.
    fn unknown(&mut self, label: &str, cut: Option<&str>) -> usize {
        if let Some(why) = cut {
            let text = shorten(&format!("… {UNKNOWN_CALLER}: {why}"), self.width.saturating_sub(11));
            self.lines.push(format!("     {label:<6}{text}"));
        }
        usize::from(cut.is_some())
    }

    /// Prints the common part from a depth on; returns the depth at which branches start.
    fn common(&mut self, start: usize, frames: &[FrameId]) -> usize {
        let hidden = frames.len().saturating_sub(COMMON_SHOWN);
        if hidden > 0 {
            self.hidden("", start, hidden, "outer frame");
        }
        let start = start + usize::from(hidden > 0);
        for (depth, id) in frames[hidden..].iter().enumerate() {
            self.frame("", start + depth, *id, "");
        }
        start + frames.len() - hidden
    }

    fn branch(&mut self, label: &str, frames: &[FrameId], mut depth: usize, tail: &str) {
        let hidden = frames.len().saturating_sub(BRANCH_TOP + BRANCH_END);
        for (index, id) in frames.iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            if hidden > 0 && index == BRANCH_TOP {
                self.hidden(label, depth, hidden, "frame");
                depth += 1;
            }
            if hidden == 0 || !(BRANCH_TOP..BRANCH_TOP + hidden).contains(&index) {
                let tail = if index + 1 == frames.len() { tail } else { "" };
                self.frame(label, depth, *id, tail);
                depth += 1;
            }
        }
        if frames.is_empty() {
            self.lines.push(format!("     {label:<6}(no call path: the stack could not be read)"));
        }
    }

    fn hidden(&mut self, label: &str, depth: usize, n: usize, noun: &str) {
        let plural = if n == 1 { "" } else { "s" };
        self.lines.push(format!("     {label:<6}{:indent$}… {n} {noun}{plural}", "", indent = depth * 2));
    }

    fn frame(&mut self, label: &str, depth: usize, id: FrameId, tail: &str) {
        let Some(frame) = self.profile.frames.get(id.0 as usize) else { return };
        let indent = depth * 2;
        let room = PLACE_COLUMN.saturating_sub(NAME_COLUMN + indent + 2).max(12);
        let name = shorten(&function_name(self.profile, frame), room);
        let left = format!("     {label:<6}{:indent$}{name}", "");
        let tail = if tail.is_empty() { String::new() } else { format!("  {tail}") };
        let room = self.width.saturating_sub(PLACE_COLUMN + 1 + tail.chars().count());
        let place = location(self.profile, frame, room);
        self.lines.push(format!("{left:<PLACE_COLUMN$} {place}{tail}").trim_end().to_owned());
    }
}

/// "src/demo.c:31", else the module, unless the function's name has it, and the reason why there is no line.
/// Where there is no room the module stands alone.
pub(crate) fn location(profile: &Profile, frame: &Frame, width: usize) -> String {
    if let Some(file) = &frame.file {
        let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
        return format!("{}{line}", shorten_path(file, width.saturating_sub(line.len())));
    }
    let module = frame.module.and_then(|module| profile.modules.get(module.0 as usize));
    let module = module.map(|module| base_name(&module.path).trim_matches(['[', ']']));
    let function = function_name(profile, frame);
    let is_in_name = |module: &&str| function.strip_prefix(module).is_some_and(|rest| rest.starts_with('+'));
    let module = module.filter(|module| !is_in_name(module)).map(|module| format!("[{module}]"));
    // The JSON report and the profile have the whole reason; what mends it stands once in the text report.
    let reason = frame.unknown.as_deref().map(|reason| match reason.split([':', '(']).next() {
        Some(short) if !short.trim().is_empty() => format!("({})", short.trim()),
        _ => format!("({reason})"),
    });
    let words: Vec<String> = module.iter().cloned().chain(reason).collect();
    match (words.join(" "), module) {
        (text, Some(module)) if text.chars().count() > width => cut(&module, width),
        (text, _) => cut(&text, width),
    }
}

fn verb(kind: AccessKind) -> &'static str {
    match kind {
        AccessKind::Load => "← load",
        AccessKind::Store => "← store",
        AccessKind::ReadWrite => "← load+store",
        AccessKind::Unknown => "← access",
    }
}
