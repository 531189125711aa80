//! Data objects as text: the report's second block, and the whole page of `locality-bpf objects`.

use std::collections::BTreeMap;

use locality_estimate::calling_context::{Contexts, base_name};
use locality_estimate::interval_estimate::Estimate;
use locality_findings::objects::{LINE, Layout, Objects, Piece, Row};
use locality_model::{AccessKind, Missed, Object, ObjectId, ObjectKind, Profile, Record};
use locality_units::print::{bytes, count, counted, percent, shorten};

use super::estimates::share;
use super::names::place_name;

/// Objects that get a sentence.
const SAID: f64 = 0.10;
/// Sentences.
const SENTENCES: usize = 3;
/// Rows, lines and fields below this share are left out.
const SMALL: f64 = 0.005;
/// Lines of code and fields shown with an object on the page of its own.
const DETAILS: usize = 6;
/// Share of the accesses from which on it is said why objects are known in part.
const NAMED_IN_PART: f64 = 0.05;
/// Rows of a structure's members.
const MEMBERS: usize = 24;
/// A change of layout that saves less of the lines is not printed.
const WORTH: f64 = 0.10;

/// What is printed of.
pub(super) struct Text<'a> {
    pub profile: &'a Profile,
    pub contexts: &'a Contexts,
    pub objects: &'a Objects,
}

impl Text<'_> {
    /// Sentences on the heaviest objects.
    pub fn sentences(&self) -> Vec<String> {
        let worth = |row: &&Row| self.weight(row).value >= SAID;
        self.objects
            .rows
            .iter()
            .filter(worth)
            .take(SENTENCES)
            .filter_map(|row| {
                let (share, what) = (self.weight(row).value * 100.0, self.what());
                Some(format!("{share:.0} % of the {what} fall on {}.", self.told(row)?))
            })
            .collect()
    }

    /// `grid->cells`, allocated at sim.c:88, read at step.c:140
    fn told(&self, row: &Row) -> Option<String> {
        let object = self.object(row.object?)?;
        let mut told = format!("`{}`", shorten(&object.name, 60));
        if let Some(origin) = self.origin(object) {
            told.push_str(&format!(", {origin}"));
        }
        if let Some(inferred) = inferred(object) {
            told.push_str(&format!(" ({inferred})"));
        }
        if let Some(line) = row.lines.first() {
            told.push_str(&format!(", {} at {}", verb(line.kind), self.line_of(line.place)));
        }
        Some(told)
    }

    /// The share that rows are ordered by.
    fn weight(&self, row: &Row) -> Estimate {
        let misses = self.objects.ranked_by.and_then(|level| row.miss_share.get(level));
        misses.copied().unwrap_or(row.access_share)
    }

    /// The whole of the share.
    fn what(&self) -> String {
        let Some(index) = self.objects.ranked_by else { return "accesses".to_owned() };
        match self.objects.levels.get(index) {
            Some(level) if index + 1 < self.objects.levels.len() => format!("L{} misses", level.level),
            _ => "LLC misses".to_owned(),
        }
    }

    /// The table's heading and its remark.
    pub fn heading(&self) -> (&'static str, String) {
        let remark = match self.objects.ranked_by.and_then(|level| self.objects.levels.get(level)) {
            Some(level) => format!(
                "(shares of predicted misses of {} ({}), of accesses and of CPU time)",
                bytes(level.bytes),
                self.what().trim_end_matches(" misses")
            ),
            None if self.objects.levels.is_empty() => "(shares of accesses and of CPU time)".to_owned(),
            None => "(shares of accesses and of CPU time; hardly any access misses a cache)".to_owned(),
        };
        ("Data objects", remark)
    }

    /// The table, a line each, of `top` rows; `asked`: so many rows were asked for, of this table
    /// and of those within its rows, and then small ones count too.
    pub fn table(&self, top: usize, asked: Option<usize>, with_details: bool) -> Vec<String> {
        let mut lines = Vec::new();
        let small = if asked.is_some() { f64::MIN_POSITIVE } else { SMALL };
        let details = asked.unwrap_or(DETAILS);
        let worth = |row: &&Row| self.weight(row).value >= small || row.access_share.value >= small;
        let rows: Vec<&Row> = self.objects.rows.iter().filter(worth).collect();
        if !rows.is_empty() {
            let misses = self.objects.ranked_by.map_or(String::new(), |_| format!("{:<17} ", self.what()));
            lines.push(format!("     {misses}{:<17} {:>6}  {:<8} object", "accesses", "CPU", "n"));
        }
        for (index, row) in rows.iter().enumerate().take(top) {
            let Some(object) = row.object.and_then(|id| self.object(id)) else { continue };
            let misses = match self.objects.ranked_by {
                Some(_) => format!("{:<17} ", share(&self.weight(row))),
                None => String::new(),
            };
            let number = format!("{}.", index + 1);
            lines.push(format!(
                "{number:>4} {misses}{:<17} {:>6}  n {:<6} {}",
                share(&row.access_share),
                percent(row.cpu_share.value),
                row.access_share.n,
                shorten(&object.name, 40),
            ));
            lines.push(format!("        {}", self.described(object, row)));
            let worth = |line: &&locality_findings::objects::Line| {
                let misses = self.objects.ranked_by.and_then(|level| line.miss_share.get(level));
                line.access_share.value >= small || misses.is_some_and(|misses| misses.value >= small)
            };
            for line in row.lines.iter().filter(worth).take(if with_details { details } else { 1 }) {
                let misses = self.objects.ranked_by.and_then(|level| line.miss_share.get(level));
                let of = match misses {
                    Some(misses) => {
                        format!(
                            "{} of misses, {} of accesses",
                            percent(misses.value),
                            percent(line.access_share.value)
                        )
                    }
                    None => format!("{} of accesses", percent(line.access_share.value)),
                };
                lines.push(format!(
                    "        {} at {}: {of}",
                    verb(line.kind),
                    shorten(&place_name(self.profile, self.contexts, line.place), 48)
                ));
            }
            if with_details {
                self.fields(row, (details, small), &mut lines);
                row.layouts.iter().for_each(|layout| self.layout(layout, &mut lines));
                if let Some(why) = &object.unknown {
                    lines.push(format!("        {why}"));
                }
            }
        }
        let left_out = self.objects.rows.len().saturating_sub(rows.len().min(top));
        if left_out > 0 && !rows.is_empty() {
            let sum =
                |rows: &mut dyn Iterator<Item = &Row>| rows.map(|row| self.weight(row).value).sum::<f64>();
            let shown = sum(&mut rows.iter().copied().take(top));
            let weight = (sum(&mut self.objects.rows.iter()) - shown).max(0.0);
            let more = counted(left_out as u64, "more object");
            lines.push(format!("     … {more}: {}", percent(weight)));
        }
        lines
    }

    fn fields(&self, row: &Row, (details, small): (usize, f64), lines: &mut Vec<String>) {
        let named = |used: &&locality_findings::objects::FieldUse| {
            self.profile.fields.get(used.field.0 as usize).is_some_and(|field| !field.path.is_empty())
        };
        let worth = row.fields.iter().filter(named).filter(|field| field.access_share.value >= small);
        for used in worth.take(details) {
            let Some(field) = self.profile.fields.get(used.field.0 as usize) else { continue };
            let kind = shorten(field.type_name.as_deref().unwrap_or("type unknown"), 20);
            lines.push(format!(
                "        {:<28} {:>7} of its accesses, {kind}, offset {}, {}",
                shorten(&field.path, 28),
                percent(used.access_share.value),
                field.offset,
                bytes(field.bytes),
            ));
        }
    }

    fn layout(&self, layout: &Layout, lines: &mut Vec<String>) {
        let Some(record) = self.profile.records.get(layout.record.0 as usize) else { return };
        let members = |indices: &[usize]| {
            let names: Vec<&str> = indices
                .iter()
                .filter_map(|index| record.members.get(*index))
                .map(|member| member.path.as_str())
                .collect();
            shorten(&names.join(", "), 32)
        };
        lines.push(format!(
            "        {} has {}: {} hot within {} ({}), {} of padding",
            shorten(&record.name, 36),
            bytes(record.bytes),
            bytes(layout.hot_bytes),
            bytes(layout.hot_span),
            members(&layout.hot),
            bytes(layout.padding),
        ));
        self.pieces(layout, record, lines);
        let saved = |(before, after): (f64, f64)| if before > 0.0 { 1.0 - after / before } else { 0.0 };
        let split = &layout.split;
        let sweep = saved(split.sweep_lines);
        if !layout.cold.is_empty() && sweep >= WORTH {
            lines.push(format!(
                "        without {}: {}, and a sweep fetches {} fewer lines",
                members(&layout.cold),
                bytes(split.bytes.1),
                percent(sweep)
            ));
        }
        let (visit, smaller) = (saved(layout.reorder.visit_lines), layout.reorder.bytes);
        if visit >= WORTH || smaller.1 < smaller.0 {
            let size = if smaller.1 < smaller.0 {
                format!("{} in place of {}, ", bytes(smaller.1), bytes(smaller.0))
            } else {
                String::new()
            };
            lines.push(format!(
                "        hot members first: {size}{:.2} lines a visit in place of {:.2}",
                layout.reorder.visit_lines.1, layout.reorder.visit_lines.0
            ));
        }
    }

    /// The structure as it lies in memory, as pahole shows it, with shares of accesses; members
    /// that were not seen to be accessed and follow one another are one row.
    fn pieces(&self, layout: &Layout, record: &Record, lines: &mut Vec<String>) {
        let kind = |piece: &Piece| (piece.member.is_some(), piece.access_share > 0.0, piece.offset / LINE);
        let runs: Vec<&[Piece]> = layout
            .pieces
            .chunk_by(|a, b| kind(a) == kind(b) && a.member.is_some() && a.access_share <= 0.0)
            .collect();
        lines.push("            line  offset    bytes  of its accesses".to_owned());
        for run in runs.iter().take(MEMBERS) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let name = |piece: &Piece| piece.member.and_then(|index| record.members.get(index));
            let told = match (name(first), name(last)) {
                (Some(member), _) if run.len() == 1 => {
                    let of_type = member.type_name.as_ref().map_or(String::new(), |name| format!(", {name}"));
                    shorten(&format!("{}{of_type}", member.path), 44)
                }
                (Some(from), Some(until)) => {
                    shorten(&format!("{} … {} ({} members)", from.path, until.path, run.len()), 44)
                }
                _ => "(hole)".to_owned(),
            };
            let share = match first.access_share {
                share if share > 0.0 => percent(share),
                _ => String::new(),
            };
            lines.push(format!(
                "            {:>4} {:>7} {:>8}  {share:>7}  {told}",
                first.offset / LINE,
                first.offset,
                last.offset.saturating_add(last.bytes) - first.offset,
            ));
        }
        if let Some(more) = runs.len().checked_sub(MEMBERS).filter(|more| *more > 0) {
            lines.push(format!("            … {}", counted(more as u64, "more row")));
        }
    }

    /// Evictions between objects.
    pub fn conflicts(&self, top: usize) -> Vec<String> {
        let name = |id: ObjectId| self.object(id).map_or("unknown", |object| object.name.as_str());
        let pairs = self.objects.conflicts.iter().take(top).map(|pair| {
            let (victim, by) = (shorten(name(pair.victim), 36), shorten(name(pair.by), 36));
            let whom = if pair.victim == pair.by { "by itself".to_owned() } else { format!("by {by}") };
            format!("     {:>7}  n {:<6} {victim} evicted {whom}", percent(pair.share), pair.n)
        });
        pairs.collect()
    }

    /// What a reader must know of how much is known.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let unknown = &self.objects.unknown;
        if unknown.value >= SMALL {
            remarks.push(format!("The object of {} of the accesses is not known.", share(unknown)));
        }
        let mut reasons: BTreeMap<&str, f64> = BTreeMap::new();
        for row in &self.objects.rows {
            if let Some(why) = row.object.and_then(|id| self.object(id)?.unknown.as_deref()) {
                *reasons.entry(why).or_default() += row.access_share.value;
            }
        }
        let mut reasons: Vec<_> = reasons.into_iter().filter(|(_, share)| *share >= NAMED_IN_PART).collect();
        reasons.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (why, share) in reasons.into_iter().take(2) {
            remarks.push(format!("{} of the accesses: {why}.", percent(share)));
        }
        if let Some(heap) = &self.profile.heap
            && let Some(seen) = heap.share_seen()
        {
            let folded = match heap.folded {
                0 => String::new(),
                n => format!("; records of {} were dropped to bound memory", counted(n, "block")),
            };
            remarks.push(format!(
                "Heap: {} of {} allocations recorded ({}){}{folded}.",
                count(heap.seen),
                count(heap.made),
                percent(seen),
                heap.missed.as_ref().map(why_missed).unwrap_or_default()
            ));
        }
        remarks
    }

    fn object(&self, id: ObjectId) -> Option<&Object> {
        self.profile.objects.get(id.0 as usize)
    }

    /// "heap, 35 MiB, struct cell, allocated at sim.c:88"
    fn described(&self, object: &Object, row: &Row) -> String {
        let size = row.bytes.filter(|size| *size > 0).map(bytes);
        let mut words: Vec<String> = match (object.kind, size) {
            // The kernel makes one mapping of neighbours.
            (ObjectKind::Mapped, Some(size)) => vec![format!("in {size} of mapped memory")],
            (kind, Some(size)) if self.has_several_blocks(object) => {
                vec![kind_word(kind).to_owned(), format!("blocks ≤ {size}")]
            }
            (kind, size) => [kind_word(kind).to_owned()].into_iter().chain(size).collect(),
        };
        words.extend(object.type_name.as_ref().map(|name| shorten(name, 32)));
        words.extend(self.origin(object));
        words.extend(inferred(object).map(str::to_owned));
        words.join(", ")
    }

    /// Whether several blocks of one allocating call path are the object, as far as recorded.
    fn has_several_blocks(&self, object: &Object) -> bool {
        let Some(context) = object.site.and_then(|site| self.contexts.of(site)) else { return false };
        let sites = self.profile.heap.iter().flat_map(|heap| &heap.sites);
        let of_object = sites.filter(|site| self.contexts.of(site.stack) == Some(context));
        of_object.map(|site| site.allocations).sum::<u64>() > 1
    }

    /// Where an object comes from.
    fn origin(&self, object: &Object) -> Option<String> {
        if let Some(context) = object.site.and_then(|site| self.contexts.of(site)) {
            return Some(format!("allocated at {}", self.line_of(self.contexts.place_of(context))));
        }
        if let Some((file, line)) = &object.declared {
            let line = line.map_or(String::new(), |line| format!(":{line}"));
            return Some(format!("declared at {}{line}", base_name(file)));
        }
        let function = object.function.as_ref().filter(|function| !matches!(function.as_str(), "" | "?"));
        function.map(|function| format!("in {}", shorten(function, 36)))
    }

    /// "step.c:140"; the function where the line is not known.
    fn line_of(&self, place: locality_estimate::calling_context::PlaceId) -> String {
        let frame = self.contexts.place(place).frame;
        let frame = frame.and_then(|frame| self.profile.frames.get(frame.0 as usize));
        match frame.and_then(|frame| frame.file.as_deref().zip(frame.line)) {
            Some((file, line)) => format!("{}:{line}", base_name(file)),
            None => place_name(self.profile, self.contexts, place),
        }
    }
}

/// "; 90 were of less than 1 KiB (--heap-min)"
fn why_missed(missed: &Missed) -> String {
    let mut why = String::new();
    if missed.smaller > 0 {
        let least = match missed.min_bytes_at_end > missed.min_bytes {
            true => format!("{}, later {}", bytes(missed.min_bytes), bytes(missed.min_bytes_at_end)),
            false => bytes(missed.min_bytes),
        };
        why.push_str(&format!("; {} were of less than {least} (--heap-min)", count(missed.smaller)));
    }
    if missed.unwatched > 0 {
        why.push_str(&format!(
            "; about {} came while none were followed, to keep the budget",
            count(missed.unwatched)
        ));
    }
    if missed.lost > 0 {
        why.push_str(&format!("; {} could not be followed or found no room", count(missed.lost)));
    }
    why
}

/// How much of an object is a conclusion.
fn inferred(object: &Object) -> Option<&'static str> {
    match (object.inferred, object.name_inferred) {
        (true, _) => Some("inferred"),
        (_, true) => Some("name inferred"),
        _ => None,
    }
}

fn verb(kind: AccessKind) -> &'static str {
    match kind {
        AccessKind::Load => "read",
        AccessKind::Store => "written",
        AccessKind::ReadWrite => "updated",
        AccessKind::Unknown => "touched",
    }
}

fn kind_word(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Static => "static",
        ObjectKind::ThreadLocal => "thread-local",
        ObjectKind::Stack => "stack",
        ObjectKind::Heap => "heap",
        ObjectKind::Mapped => "mapped memory",
        ObjectKind::File => "mapped file",
        ObjectKind::Unknown => "unknown",
    }
}

#[cfg(test)]
mod tests;
