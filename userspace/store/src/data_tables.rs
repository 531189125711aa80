//! Decoder of the tables about data objects, added in format version 3.
//!
//! Not here: the check of ids (`repair`).

use locality_model::{
    Accessed, AllocationSite, Field, FieldId, Heap, LoadId, Located, Member, Missed, ModuleId, Object,
    ObjectId, Profile, Record, RecordId, SampleId, StackId, UseId, WatchId,
};

use crate::tables::{Columns, Tables};
use crate::value::{narrow, object_kind_named, unsigned};

/// Reads the rows into a profile.
pub(crate) fn decode(tables: &mut Tables<'_>, version: i64, profile: &mut Profile) {
    profile.objects = tables.dense("object", object);
    profile.records = tables.dense("record", record);
    for (of, member) in tables.rows("member", member) {
        if let Some(record) = profile.records.get_mut(of.0 as usize) {
            record.members.push(member);
        }
    }
    profile.fields = tables.dense("field", field);
    let located = if version >= 4 { located } else { located_before_loads };
    profile.located = tables.rows("located", located).into_iter().flatten().collect();
    profile.heap = tables.rows("heap", heap).pop();
    let sites = tables.rows("allocation_site", allocation_site);
    if let Some(heap) = &mut profile.heap {
        heap.sites = sites;
    }
}

fn object(row: &mut Columns<'_>) -> rusqlite::Result<Object> {
    let kind = object_kind_named(&row.get::<String>()?);
    let (name, type_name) = (row.get()?, row.get()?);
    let module = row.get::<Option<i64>>()?.map(|id| ModuleId(narrow(id)));
    let (file, line) = (row.get::<Option<String>>()?, row.get::<Option<i64>>()?);
    let mut object = Object {
        kind,
        name,
        type_name,
        module,
        declared: file.map(|file| (file, line.map(narrow))),
        bytes: row.get::<Option<i64>>()?.map(unsigned),
        function: row.get()?,
        site: row.get::<Option<i64>>()?.map(|id| StackId(narrow(id))),
        inferred: row.get()?,
        unknown: row.get()?,
        name_inferred: false,
    };
    object.name_inferred = row.added()?.unwrap_or(object.inferred);
    Ok(object)
}

fn record(row: &mut Columns<'_>) -> rusqlite::Result<Record> {
    Ok(Record { name: row.get()?, bytes: row.number()?, members: Vec::new() })
}

/// A member, with the member's record.
fn member(row: &mut Columns<'_>) -> rusqlite::Result<(RecordId, Member)> {
    let record = RecordId(row.small()?);
    let (path, type_name) = (row.get()?, row.get()?);
    let (offset, bytes, align) = (row.number()?, row.number()?, row.number()?);
    Ok((record, Member { path, type_name, offset, bytes, align }))
}

fn field(row: &mut Columns<'_>) -> rusqlite::Result<Field> {
    Ok(Field {
        path: row.get()?,
        type_name: row.get()?,
        offset: row.number()?,
        bytes: row.number()?,
        record: row.get::<Option<i64>>()?.map(|id| RecordId(narrow(id))),
        record_offset: row.number()?,
    })
}

/// `None` for a row without an access.
fn located(row: &mut Columns<'_>) -> rusqlite::Result<Option<Located>> {
    let before = located_of(row)?;
    let load = row.get::<Option<i64>>()?.map(|id| Accessed::Load(LoadId(narrow(id))));
    let completed = row.added::<i64>()?.map(|id| Accessed::Before(SampleId(narrow(id))));
    let (of, object, offset, field) = before;
    Ok(of.or(load).or(completed).map(|of| Located { of, object, offset, field }))
}

fn located_before_loads(row: &mut Columns<'_>) -> rusqlite::Result<Option<Located>> {
    let (of, object, offset, field) = located_of(row)?;
    Ok(of.map(|of| Located { of, object, offset, field }))
}

type Place = (Option<Accessed>, ObjectId, Option<u64>, Option<FieldId>);

fn located_of(row: &mut Columns<'_>) -> rusqlite::Result<Place> {
    let (sample, of_use, granule) =
        (row.get::<Option<i64>>()?, row.get::<Option<i64>>()?, row.get::<Option<i64>>()?);
    let (watch, reuse) = (row.get::<Option<i64>>()?, row.get::<Option<bool>>()?);
    let watch = watch.map(|row| WatchId(narrow(row.saturating_sub(1))));
    let of = match (sample, of_use, watch) {
        (Some(id), None, None) => Some(Accessed::Sample(SampleId(narrow(id)))),
        (None, Some(id), None) => {
            let id = UseId(narrow(id));
            Some(granule.map_or(Accessed::Use(id), |granule| Accessed::Seen(id, narrow(granule))))
        }
        (None, None, Some(id)) if reuse == Some(true) => Some(Accessed::WatchReuse(id)),
        (None, None, Some(id)) => Some(Accessed::WatchUse(id)),
        _ => None,
    };
    let object = ObjectId(row.small()?);
    let offset = row.get::<Option<i64>>()?.map(unsigned);
    let field = row.get::<Option<i64>>()?.map(|id| FieldId(narrow(id)));
    Ok((of, object, offset, field))
}

fn heap(row: &mut Columns<'_>) -> rusqlite::Result<Heap> {
    let (seen, made, folded) = (row.number()?, row.number()?, row.number()?);
    let mut added = || row.added::<i64>().map(|number| number.map(unsigned));
    let missed = match (added()?, added()?, added()?, added()?, added()?) {
        (Some(min_bytes), Some(min_bytes_at_end), Some(smaller), Some(unwatched), Some(lost)) => {
            Some(Missed { min_bytes, min_bytes_at_end, smaller, unwatched, lost })
        }
        _ => None,
    };
    Ok(Heap { seen, made, folded, sites: Vec::new(), missed })
}

fn allocation_site(row: &mut Columns<'_>) -> rusqlite::Result<AllocationSite> {
    Ok(AllocationSite { stack: StackId(row.small()?), allocations: row.number()?, bytes: row.number()? })
}
