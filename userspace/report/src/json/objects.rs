//! Data objects for programs: the report's `objects` and `objects_summary` (`schema::objects`).

use locality_estimate::interval_estimate::Estimate;
use locality_findings::objects::{Change, FieldUse, LINE, Layout, Line, Objects, Piece, Row};
use locality_model::{AccessKind, Object, ObjectId, ObjectKind, Profile, Record};

use super::frames::Frames;
use crate::estimates::{ci95, known};
use crate::names::kind_name;
use crate::schema::{
    Interval, Number,
    objects::{
        self as schema, ByLevel, Conflict, Declared, Field, Heap, HeapSite, Member, NotRecorded, ObjectLevel,
        ObjectLine, ObjectsSummary, Site,
    },
};

/// Lines and fields given with each object.
const LINES: usize = 16;
/// Pairs of objects in conflict.
const CONFLICTS: usize = 32;

/// Names of levels: `L1`, `L2`, …; the last is `LLC` too.
fn level_names(objects: &Objects) -> Vec<Vec<String>> {
    let last = objects.levels.len().saturating_sub(1);
    let names = |(index, level): (usize, &locality_findings::objects::Level)| {
        let own = format!("L{}", level.level);
        if index == last { vec![own, "LLC".to_owned()] } else { vec![own] }
    };
    objects.levels.iter().enumerate().map(names).collect()
}

/// Prints what is needed of frames and places.
pub(super) struct Json<'a> {
    pub profile: &'a Profile,
    pub objects: &'a Objects,
    pub frames: &'a Frames<'a>,
}

impl Json<'_> {
    /// `objects`.
    pub fn rows(&self) -> Vec<schema::Object> {
        self.objects.rows.iter().filter_map(|row| self.row(row)).collect()
    }

    /// `objects_summary`.
    pub fn summary(&self) -> ObjectsSummary {
        let names = level_names(self.objects);
        let levels = self.objects.levels.iter().zip(&names).map(|(level, names)| ObjectLevel {
            bytes: level.bytes,
            miss_ratio: level.miss_ratio.into(),
            names: names.clone(),
        });
        let ranked_by = self.objects.ranked_by.and_then(|level| names.get(level)?.first()).cloned();
        let conflicts = self.objects.conflicts.iter().take(CONFLICTS).map(|pair| Conflict {
            displaced_by: self.name(pair.by),
            displaced_by_id: pair.by.0,
            level: ranked_by.clone(),
            n: pair.n,
            object: self.name(pair.victim),
            object_id: pair.victim.0,
            share: pair.share.into(),
        });
        ObjectsSummary {
            conflicts: conflicts.collect(),
            heap: self.profile.heap.as_ref().map(|heap| self.heap(heap)),
            levels: levels.collect(),
            n: self.objects.n,
            ranked_by: ranked_by.clone(),
            unknown_share: self.objects.unknown.value.into(),
            unknown_share_ci95: ci95(&self.objects.unknown),
        }
    }

    fn heap(&self, heap: &locality_model::Heap) -> Heap {
        let sites = heap.sites.iter().map(|site| {
            let Site { cut, frames, place, stack } = self.frames.site(site.stack);
            HeapSite { allocations: site.allocations, bytes: site.bytes, cut, frames, place, stack }
        });
        let missed = heap.missed.as_ref();
        Heap {
            allocations_made: heap.made,
            allocations_seen: heap.seen,
            folded: heap.folded,
            min_bytes: missed.map(|missed| missed.min_bytes),
            min_bytes_at_end: missed.map(|missed| missed.min_bytes_at_end),
            not_recorded: missed.map(|missed| NotRecorded {
                lost: missed.lost,
                smaller: missed.smaller,
                unwatched: missed.unwatched,
            }),
            share_seen: known(heap.share_seen()),
            sites: sites.collect(),
        }
    }

    fn object(&self, id: ObjectId) -> Option<&Object> {
        self.profile.objects.get(id.0 as usize)
    }

    fn name(&self, id: ObjectId) -> Option<String> {
        self.object(id).map(|object| object.name.clone())
    }

    fn row(&self, row: &Row) -> Option<schema::Object> {
        let object = self.object(row.object?)?;
        let module = object.module.and_then(|module| self.profile.modules.get(module.0 as usize));
        let declared = |(file, line): &(String, Option<u32>)| Declared { file: file.clone(), line: *line };
        let fields = || row.fields.iter().filter_map(|field| self.field(field)).collect();
        let layouts = || row.layouts.iter().filter_map(|layout| self.layout(layout)).collect();
        Some(schema::Object {
            access_share: row.access_share.value.into(),
            access_share_ci95: ci95(&row.access_share),
            accesses: row.accesses.map(|accesses| accesses.round().into()),
            bytes: row.bytes,
            cpu_share: row.cpu_share.value.into(),
            cpu_share_ci95: ci95(&row.cpu_share),
            declared: object.declared.as_ref().map(declared),
            fields: (!row.fields.is_empty()).then(fields),
            function: object.function.clone(),
            id: row.object.map(|id| id.0),
            inferred: object.inferred,
            kind: kind_name(object.kind).to_owned(),
            layout: (!row.layouts.is_empty()).then(layouts),
            lines: row.lines.iter().take(LINES).map(|line| self.line(line)).collect(),
            loads: row.loads.into(),
            miss_ratio: self.by_level(&row.miss_ratio, |ratio| (*ratio).into()),
            miss_share: self.shares(&row.miss_share),
            miss_share_ci95: self.intervals(&row.miss_share),
            module: module.map(|module| module.path.clone()),
            n: row.access_share.n,
            name: object.name.clone(),
            name_inferred: object.name_inferred,
            site: object.site.map(|site| self.frames.site(site)),
            stores: row.stores.into(),
            thread_local: (object.kind == ObjectKind::ThreadLocal).then_some(true),
            type_name: object.type_name.clone(),
            unknown: object.unknown.clone(),
        })
    }

    fn by_level<T, U: Clone>(&self, values: &[T], of: impl Fn(&T) -> U) -> ByLevel<U> {
        let entries = level_names(self.objects).into_iter().zip(values).flat_map(|(names, value)| {
            let value = of(value);
            names.into_iter().map(move |name| (name, value.clone()))
        });
        entries.collect()
    }

    fn shares(&self, of: &[Estimate]) -> ByLevel<Number> {
        self.by_level(of, |share| share.value.into())
    }

    fn intervals(&self, of: &[Estimate]) -> ByLevel<Interval> {
        self.by_level(of, ci95)
    }

    fn line(&self, line: &Line) -> ObjectLine {
        let place = self.frames.place(line.place);
        let kind = match line.kind {
            AccessKind::Load => "load",
            AccessKind::Store => "store",
            AccessKind::ReadWrite => "read-write",
            AccessKind::Unknown => "unknown",
        };
        ObjectLine {
            access_share: line.access_share.value.into(),
            access_share_ci95: ci95(&line.access_share),
            cpu_share: line.cpu_share.value.into(),
            cpu_share_ci95: ci95(&line.cpu_share),
            file: place.file,
            function: place.function,
            kind: kind.to_owned(),
            line: place.line,
            miss_share: self.shares(&line.miss_share),
            miss_share_ci95: self.intervals(&line.miss_share),
            n: line.access_share.n,
            via: place.via,
        }
    }

    fn field(&self, used: &FieldUse) -> Option<Field> {
        let field = self.profile.fields.get(used.field.0 as usize)?;
        Some(Field {
            access_share: used.access_share.value.into(),
            access_share_ci95: ci95(&used.access_share),
            bytes: field.bytes,
            hot: used.hot,
            miss_share: self.shares(&used.miss_share),
            n: used.access_share.n,
            offset: field.offset,
            path: field.path.clone(),
            type_name: field.type_name.clone(),
        })
    }

    fn layout(&self, layout: &Layout) -> Option<schema::Layout> {
        let record = self.profile.records.get(layout.record.0 as usize)?;
        let member = |index: &usize| {
            let locality_model::Member { path, offset, bytes, .. } = record.members.get(*index)?;
            Some(Member { bytes: *bytes, offset: *offset, path: path.clone() })
        };
        let members = |indices: &[usize]| indices.iter().filter_map(member).collect();
        Some(schema::Layout {
            bytes: record.bytes,
            cold: members(&layout.cold),
            hot: members(&layout.hot),
            hot_bytes: layout.hot_bytes,
            hot_span_bytes: layout.hot_span,
            members: layout.pieces.iter().map(|each| piece(record, each)).collect(),
            padding_bytes: layout.padding,
            reorder: change(&layout.reorder),
            split: change(&layout.split),
            type_name: record.name.clone(),
        })
    }
}

fn piece(record: &Record, piece: &Piece) -> schema::Piece {
    let member = piece.member.and_then(|index| record.members.get(index));
    schema::Piece {
        access_share: member.map(|_| piece.access_share.into()),
        bytes: piece.bytes,
        hole: member.is_none().then_some(true),
        line: piece.offset / LINE,
        offset: piece.offset,
        path: member.map(|member| member.path.clone()),
        type_name: member.map(|member| member.type_name.clone()),
    }
}

fn change(of: &Change) -> schema::Change {
    schema::Change {
        bytes: [of.bytes.0, of.bytes.1],
        lines_per_sweep: [of.sweep_lines.0.into(), of.sweep_lines.1.into()],
        lines_per_visit: [of.visit_lines.0.into(), of.visit_lines.1.into()],
    }
}
