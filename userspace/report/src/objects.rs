//! Data objects as JSON: the report's `objects` and `objects_summary` (docs/json.md).

use locality_estimate::calling_context::{Contexts, PlaceId, function_name};
use locality_findings::objects::{Change, FieldUse, LINE, Layout, Line, Objects, Piece, Row};
use locality_model::{AccessKind, FrameId, Member, Object, ObjectId, ObjectKind, Profile, StackId};
use serde_json::{Map, Value, json};

use super::estimates::ci95;
use super::names::kind_name;

/// Lines and fields given with each object.
const LINES: usize = 16;
/// Pairs of objects in conflict.
const CONFLICTS: usize = 32;

/// Names of levels: `L1`, `L2`, …; the last is `LLC` too.
pub fn level_names(objects: &Objects) -> Vec<Vec<String>> {
    let last = objects.levels.len().saturating_sub(1);
    let names = |(index, level): (usize, &locality_findings::objects::Level)| {
        let own = format!("L{}", level.level);
        if index == last { vec![own, "LLC".to_owned()] } else { vec![own] }
    };
    objects.levels.iter().enumerate().map(names).collect()
}

/// Prints what is needed of frames and places.
pub struct Json<'a> {
    /// The profile.
    pub profile: &'a Profile,
    /// Its contexts.
    pub contexts: &'a Contexts,
    /// Its objects.
    pub objects: &'a Objects,
    /// How a frame looks.
    pub frame: &'a dyn Fn(FrameId) -> Value,
}

impl Json<'_> {
    /// `objects`.
    pub fn rows(&self) -> Value {
        self.objects.rows.iter().filter_map(|row| self.row(row)).collect()
    }

    /// `objects_summary`.
    pub fn summary(&self) -> Value {
        let names = level_names(self.objects);
        let levels = self.objects.levels.iter().zip(&names).map(
            |(level, names)| json!({ "names": names, "bytes": level.bytes, "miss_ratio": level.miss_ratio }),
        );
        let ranked_by = self.objects.ranked_by.and_then(|level| names.get(level)?.first());
        let conflicts = self.objects.conflicts.iter().take(CONFLICTS).map(|pair| {
            json!({
                "object": self.name(pair.victim),
                "object_id": pair.victim.0,
                "displaced_by": self.name(pair.by),
                "displaced_by_id": pair.by.0,
                "level": ranked_by,
                "share": pair.share,
                "n": pair.n,
            })
        });
        let mut summary = json!({
            "ranked_by": ranked_by,
            "levels": levels.collect::<Vec<_>>(),
            "unknown_share": self.objects.unknown.value,
            "unknown_share_ci95": ci95(&self.objects.unknown),
            "n": self.objects.n,
            "conflicts": conflicts.collect::<Vec<_>>(),
        });
        if let Some(heap) = &self.profile.heap {
            let sites = heap.sites.iter().map(|site| {
                let mut value = self.site(site.stack);
                value["allocations"] = json!(site.allocations);
                value["bytes"] = json!(site.bytes);
                value
            });
            summary["heap"] = json!({
                "allocations_seen": heap.seen,
                "allocations_made": heap.made,
                "share_seen": heap.share_seen(),
                "folded": heap.folded,
                "sites": sites.collect::<Vec<_>>(),
            });
            if let Some(missed) = &heap.missed {
                summary["heap"]["min_bytes"] = json!(missed.min_bytes);
                summary["heap"]["min_bytes_at_end"] = json!(missed.min_bytes_at_end);
                summary["heap"]["not_recorded"] =
                    json!({ "smaller": missed.smaller, "unwatched": missed.unwatched, "lost": missed.lost });
            }
        }
        summary
    }

    fn object(&self, id: ObjectId) -> Option<&Object> {
        self.profile.objects.get(id.0 as usize)
    }

    fn name(&self, id: ObjectId) -> Option<&str> {
        self.object(id).map(|object| object.name.as_str())
    }

    /// The call path of an allocation.
    fn site(&self, stack: StackId) -> Value {
        let context = self.contexts.of(stack);
        let frames = context.map_or(&[][..], |context| self.contexts.frames(context));
        let mut value = json!({
            "frames": frames.iter().map(|id| (self.frame)(*id)).collect::<Vec<_>>(),
            "place": context.map(|context| self.place(self.contexts.place_of(context))),
        });
        if let Some(why) = context.and_then(|context| self.contexts.cut(context)) {
            value["cut"] = json!(why);
        }
        value
    }

    fn row(&self, row: &Row) -> Option<Value> {
        let object = self.object(row.object?)?;
        let module = object.module.and_then(|module| self.profile.modules.get(module.0 as usize));
        let declared = object.declared.as_ref().map(|(file, line)| json!({ "file": file, "line": line }));
        let mut value = json!({
            "id": row.object.map(|id| id.0),
            "name": object.name,
            "kind": kind_name(object.kind),
            "type": object.type_name,
            "module": module.map(|module| &module.path),
            "declared": declared,
            "bytes": row.bytes,
            "inferred": object.inferred,
            "name_inferred": object.name_inferred,
            "access_share": row.access_share.value,
            "access_share_ci95": ci95(&row.access_share),
            "n": row.access_share.n,
            "cpu_share": row.cpu_share.value,
            "cpu_share_ci95": ci95(&row.cpu_share),
            "miss_share": self.by_level(&row.miss_share, |share| json!(share.value)),
            "miss_share_ci95": self.by_level(&row.miss_share, ci95),
            "miss_ratio": self.by_level(&row.miss_ratio, |ratio| json!(ratio)),
            "loads": row.loads,
            "stores": row.stores,
            "lines": row.lines.iter().take(LINES).map(|line| self.line(line)).collect::<Vec<_>>(),
        });
        if let Some(accesses) = row.accesses {
            value["accesses"] = json!(accesses.round());
        }
        if object.kind == ObjectKind::ThreadLocal {
            value["thread_local"] = json!(true);
        }
        if let Some(function) = &object.function {
            value["function"] = json!(function);
        }
        if let Some(site) = object.site {
            value["site"] = self.site(site);
        }
        if let Some(reason) = &object.unknown {
            value["unknown"] = json!(reason);
        }
        if !row.fields.is_empty() {
            value["fields"] = row.fields.iter().filter_map(|field| self.field(field)).collect();
        }
        if !row.layouts.is_empty() {
            value["layout"] = row.layouts.iter().filter_map(|layout| self.layout(layout)).collect();
        }
        Some(value)
    }

    fn by_level<T>(&self, values: &[T], print: impl Fn(&T) -> Value) -> Value {
        let entries = level_names(self.objects).into_iter().zip(values).flat_map(|(names, value)| {
            let value = print(value);
            names.into_iter().map(move |name| (name, value.clone()))
        });
        Value::Object(entries.collect::<Map<String, Value>>())
    }

    fn line(&self, line: &Line) -> Value {
        let mut value = self.place(line.place);
        value["kind"] = json!(match line.kind {
            AccessKind::Load => "load",
            AccessKind::Store => "store",
            AccessKind::ReadWrite => "read-write",
            AccessKind::Unknown => "unknown",
        });
        value["access_share"] = json!(line.access_share.value);
        value["access_share_ci95"] = ci95(&line.access_share);
        value["n"] = json!(line.access_share.n);
        value["cpu_share"] = json!(line.cpu_share.value);
        value["cpu_share_ci95"] = ci95(&line.cpu_share);
        value["miss_share"] = self.by_level(&line.miss_share, |share| json!(share.value));
        value["miss_share_ci95"] = self.by_level(&line.miss_share, ci95);
        value
    }

    fn place(&self, id: PlaceId) -> Value {
        let place = self.contexts.place(id);
        let frame = place.frame.and_then(|frame| self.profile.frames.get(frame.0 as usize));
        let mut value = json!({
            "function": frame.map(|frame| function_name(self.profile, frame)),
            "file": frame.and_then(|frame| frame.file.as_deref()),
            "line": frame.and_then(|frame| frame.line),
        });
        if let Some(via) = place.via {
            value["via"] = json!(via);
        }
        value
    }

    fn field(&self, used: &FieldUse) -> Option<Value> {
        let field = self.profile.fields.get(used.field.0 as usize)?;
        Some(json!({
            "path": field.path,
            "type": field.type_name,
            "offset": field.offset,
            "bytes": field.bytes,
            "access_share": used.access_share.value,
            "access_share_ci95": ci95(&used.access_share),
            "n": used.access_share.n,
            "miss_share": self.by_level(&used.miss_share, |share| json!(share.value)),
            "hot": used.hot,
        }))
    }

    fn layout(&self, layout: &Layout) -> Option<Value> {
        let record = self.profile.records.get(layout.record.0 as usize)?;
        let member = |index: &usize| {
            let Member { path, offset, bytes, .. } = record.members.get(*index)?;
            Some(json!({ "path": path, "offset": offset, "bytes": bytes }))
        };
        let members = |indices: &[usize]| -> Value { indices.iter().filter_map(member).collect() };
        let piece = |piece: &Piece| {
            let mut value =
                json!({ "offset": piece.offset, "bytes": piece.bytes, "line": piece.offset / LINE });
            match piece.member.and_then(|index| record.members.get(index)) {
                Some(member) => {
                    value["path"] = json!(member.path);
                    value["type"] = json!(member.type_name);
                    value["access_share"] = json!(piece.access_share);
                }
                None => value["hole"] = json!(true),
            }
            value
        };
        let change = |change: &Change| {
            json!({
                "bytes": [change.bytes.0, change.bytes.1],
                "lines_per_visit": [change.visit_lines.0, change.visit_lines.1],
                "lines_per_sweep": [change.sweep_lines.0, change.sweep_lines.1],
            })
        };
        Some(json!({
            "type": record.name,
            "bytes": record.bytes,
            "padding_bytes": layout.padding,
            "members": layout.pieces.iter().map(piece).collect::<Vec<_>>(),
            "hot": members(&layout.hot),
            "cold": members(&layout.cold),
            "hot_bytes": layout.hot_bytes,
            "hot_span_bytes": layout.hot_span,
            "split": change(&layout.split),
            "reorder": change(&layout.reorder),
        }))
    }
}
