//! SQL of the tables about data objects: `object`, `record`, `member`, `field`, `located`, `heap`,
//! `allocation_site`. Columns stand in the order of `schema`.
//!
//! Not here: when rows are written (`writer`), and how rows are read (`data_tables`).

use locality_model::{
    Accessed, Field, FieldId, Heap, Located, Member, Missed, Object, ObjectId, Record, RecordId, WatchId,
};
use rusqlite::{Transaction, params};

use crate::value::{object_kind_name, signed};

pub(crate) fn write_object(to: &Transaction<'_>, id: ObjectId, object: &Object) -> rusqlite::Result<()> {
    let declared = object.declared.as_ref();
    to.prepare_cached("INSERT OR REPLACE INTO object VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![
            id.0,
            object_kind_name(object.kind),
            object.name,
            object.type_name,
            object.module.map(|module| module.0),
            declared.map(|declared| &declared.0),
            declared.and_then(|declared| declared.1),
            object.bytes.map(signed),
            object.function,
            object.site.map(|site| site.0),
            object.inferred,
            object.unknown,
            object.name_inferred
        ])
        .map(drop)
}

pub(crate) fn write_record(to: &Transaction<'_>, id: RecordId, record: &Record) -> rusqlite::Result<()> {
    to.prepare_cached("INSERT OR REPLACE INTO record VALUES (?, ?, ?)")?.execute(params![
        id.0,
        record.name,
        signed(record.bytes)
    ])?;
    to.prepare_cached("DELETE FROM member WHERE record = ?")?.execute([id.0])?;
    let mut insert = to.prepare_cached("INSERT INTO member VALUES (NULL, ?, ?, ?, ?, ?, ?)")?;
    for Member { path, type_name, offset, bytes, align } in &record.members {
        insert.execute(params![id.0, path, type_name, signed(*offset), signed(*bytes), signed(*align)])?;
    }
    Ok(())
}

pub(crate) fn write_field(to: &Transaction<'_>, id: FieldId, field: &Field) -> rusqlite::Result<()> {
    to.prepare_cached("INSERT OR REPLACE INTO field VALUES (?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![
            id.0,
            field.path,
            field.type_name,
            signed(field.offset),
            signed(field.bytes),
            field.record.map(|record| record.0),
            signed(field.record_offset)
        ])
        .map(drop)
}

/// A watch's row has the watch's index plus 1 as number.
pub(crate) fn watch_row(id: WatchId) -> i64 {
    i64::from(id.0) + 1
}

pub(crate) fn write_located(to: &Transaction<'_>, located: &Located) -> rusqlite::Result<()> {
    let (mut sample, mut of_use, mut granule, mut watch, mut reuse, mut of_load, mut before) =
        Default::default();
    let row = |watch: WatchId| Some(watch_row(watch));
    match located.of {
        Accessed::Sample(id) => sample = Some(id.0),
        Accessed::Before(id) => before = Some(id.0),
        Accessed::Use(id) => of_use = Some(id.0),
        Accessed::Seen(id, bytes) => (of_use, granule) = (Some(id.0), Some(bytes)),
        Accessed::Load(id) => of_load = Some(id.0),
        Accessed::WatchUse(id) => (watch, reuse) = (row(id), Some(false)),
        Accessed::WatchReuse(id) => (watch, reuse) = (row(id), Some(true)),
    }
    to.prepare_cached("INSERT INTO located VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)")?
        .execute(params![
            sample,
            of_use,
            granule,
            watch,
            reuse,
            located.object.0,
            located.offset.map(signed),
            located.field.map(|field| field.0),
            of_load,
            before
        ])
        .map(drop)
}

pub(crate) fn write_heap(to: &Transaction<'_>, heap: &Heap) -> rusqlite::Result<()> {
    let missed = |of: fn(&Missed) -> u64| heap.missed.as_ref().map(|missed| signed(of(missed)));
    to.prepare_cached("INSERT OR REPLACE INTO heap VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?)")?.execute(params![
        signed(heap.seen),
        signed(heap.made),
        signed(heap.folded),
        missed(|missed| missed.min_bytes),
        missed(|missed| missed.min_bytes_at_end),
        missed(|missed| missed.smaller),
        missed(|missed| missed.unwatched),
        missed(|missed| missed.lost)
    ])?;
    to.execute("DELETE FROM allocation_site", [])?;
    let mut insert = to.prepare_cached("INSERT INTO allocation_site VALUES (NULL, ?, ?, ?)")?;
    for site in &heap.sites {
        insert.execute(params![site.stack.0, signed(site.allocations), signed(site.bytes)])?;
    }
    Ok(())
}
