//! The tables that format version 7 added for control flow, `window_flow` and `loop_reading`, and
//! `window_execution` of version 8, both ways.
//!
//! Transfers are packed: of each, ascending, how much its address is greater than the one before, how far
//! it leads (both ends of the number line by turns: 0, -1, 1, -2 …), how often; each number with seven bits
//! a byte, the lowest first, the eighth bit set where more follow (LEB128).
//!
//! Not here: when rows are written (`writer`), that ids lead somewhere (`repair`).

use locality_model::{ExecutionSpan, FlowEdge, LoopReading, ModuleId, SampleId, WindowExecution, WindowFlow};
use rusqlite::{Transaction, params};

use crate::tables::Columns;
use crate::value::{json_pairs, pairs_json, signed};

pub(crate) fn write_flow(to: &Transaction<'_>, flow: &WindowFlow) -> rusqlite::Result<()> {
    let modules: Vec<(u32, u64)> = flow.modules.iter().map(|(id, bias)| (id.0, *bias)).collect();
    to.prepare_cached("INSERT INTO window_flow VALUES (NULL, ?, ?, ?, ?, ?)")?
        .execute(params![
            flow.sample.0,
            signed(flow.first),
            json_pairs(&modules),
            packed(&flow.edges),
            signed(flow.left_out)
        ])
        .map(drop)
}

pub(crate) fn write_reading(to: &Transaction<'_>, reading: &LoopReading) -> rusqlite::Result<()> {
    let LoopReading { sample, ip, left, right } = *reading;
    to.prepare_cached("INSERT INTO loop_reading VALUES (NULL, ?, ?, ?, ?)")?
        .execute(params![sample.0, signed(ip), left, right])
        .map(drop)
}

pub(crate) fn write_execution(to: &Transaction<'_>, execution: &WindowExecution) -> rusqlite::Result<()> {
    let span = |span: &ExecutionSpan| -> Span { (span.in_flight, span.instructions, span.cycles) };
    let spans: Vec<Span> = execution.spans.iter().map(span).collect();
    let json = |text: serde_json::Result<String>| {
        text.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
    };
    to.prepare_cached("INSERT INTO window_execution VALUES (NULL, ?, ?, ?, ?, ?, ?)")?
        .execute(params![
            execution.sample.0,
            signed(execution.instructions),
            signed(execution.loads),
            signed(execution.stores),
            json(serde_json::to_string(&execution.classes))?,
            json(serde_json::to_string(&spans))?
        ])
        .map(drop)
}

/// In the order of [`ExecutionSpan`]'s fields.
type Span = (u32, u64, u64);

pub(crate) fn execution(row: &mut Columns<'_>) -> rusqlite::Result<WindowExecution> {
    let (sample, instructions, loads) = (SampleId(row.small()?), row.number()?, row.number()?);
    let (stores, classes, spans) = (row.number()?, row.get::<String>()?, row.get::<String>()?);
    let damaged = |error: serde_json::Error| {
        rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, error.into())
    };
    let spans: Vec<Span> = serde_json::from_str(&spans).map_err(damaged)?;
    let span = |(in_flight, instructions, cycles)| ExecutionSpan { in_flight, instructions, cycles };
    Ok(WindowExecution {
        sample,
        instructions,
        loads,
        stores,
        classes: serde_json::from_str(&classes).map_err(damaged)?,
        spans: spans.into_iter().map(span).collect(),
    })
}

pub(crate) fn flow(row: &mut Columns<'_>) -> rusqlite::Result<WindowFlow> {
    let (sample, first) = (SampleId(row.small()?), row.number()?);
    let modules = pairs_json(&row.get::<String>()?).unwrap_or_default();
    Ok(WindowFlow {
        sample,
        first,
        modules: modules.into_iter().map(|(id, bias)| (ModuleId(id), bias)).collect(),
        edges: unpacked(&row.get::<Vec<u8>>()?),
        left_out: row.number()?,
    })
}

pub(crate) fn reading(row: &mut Columns<'_>) -> rusqlite::Result<LoopReading> {
    Ok(LoopReading { sample: SampleId(row.small()?), ip: row.number()?, left: row.get()?, right: row.get()? })
}

fn packed(edges: &[FlowEdge]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(edges.len() * 6);
    let mut put = |mut number: u64| {
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
    };
    let mut before = 0;
    for edge in edges {
        put(edge.from.wrapping_sub(before));
        let far = edge.to.wrapping_sub(edge.from) as i64;
        put((far << 1 ^ far >> 63) as u64);
        put(edge.count);
        before = edge.from;
    }
    bytes
}

/// The readable part of it.
fn unpacked(bytes: &[u8]) -> Vec<FlowEdge> {
    let mut rest = bytes.iter();
    let mut number = || {
        let mut sum = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = rest.next()?;
            sum |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(sum);
            }
        }
        None
    };
    let (mut edges, mut before) = (Vec::new(), 0_u64);
    while let (Some(step), Some(far), Some(count)) = (number(), number(), number()) {
        let from = before.wrapping_add(step);
        let far = (far >> 1) as i64 ^ -((far & 1) as i64);
        edges.push(FlowEdge { from, to: from.wrapping_add(far as u64), count });
        before = from;
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_packed_without_loss() {
        let edge = |from, to, count| FlowEdge { from, to, count };
        let edges = vec![
            edge(0, u64::MAX, 1),
            edge(0x5555_0000, 0x5555_0010, 300),
            edge(0x5555_0000, 0x10, u64::MAX),
        ];
        let bytes = packed(&edges);
        assert_eq!(unpacked(&bytes), edges);
        assert_eq!(unpacked(&bytes[..bytes.len() - 1]), edges[..2]);
        assert_eq!(unpacked(&[0xff; 40]), []);
    }
}
