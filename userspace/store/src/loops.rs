//! The tables that format version 5 added: `loop`, `loop_access` and `processor`, both ways.
//!
//! Not here: when rows are written (`writer`), that ids lead somewhere (`repair`).

use locality_model::{
    ChainStep, Core, Dependence, LoopAccess, LoopBranch, LoopNeeds, Processor, Profile, SampleId, SeenLoop,
    StackId,
};
use rusqlite::{Transaction, params};

use crate::tables::{Columns, Tables};
use crate::value::{kind_name, kind_named, signed, unsigned};

/// More executions of a branch are in no window.
const MOST_EXECUTED: u64 = 1 << 48;

/// Words of what an address is made of.
const DEPENDENCES: [(Dependence, &str); 3] =
    [(Dependence::None, "none"), (Dependence::Indexed, "indexed"), (Dependence::Chased, "chased")];

pub(crate) fn write_loop(to: &Transaction<'_>, seen: &SeenLoop) -> rusqlite::Result<()> {
    let needs = seen.needs.as_ref();
    to.prepare_cached(
        "INSERT INTO loop VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?
    .execute(params![
        seen.sample.0,
        signed(seen.header),
        signed(seen.span.0),
        signed(seen.span.1),
        seen.around.map(signed),
        seen.stack.0,
        seen.latch.0,
        signed(seen.instructions),
        signed(seen.accesses),
        signed(seen.iterations),
        signed(seen.runs),
        signed(seen.trips),
        seen.core_cycles,
        seen.bound_by,
        seen.unbound_cycles,
        seen.is_first,
        needs.map(|needs| needs.cycles),
        needs.map(|needs| needs.chain_cycles),
        needs.map(|needs| needs.unit_cycles),
        needs.map(|needs| needs.unit.as_str()),
        needs.map(|needs| signed(needs.mispredicted)),
        needs.map(|needs| signed(needs.new_lines)),
        needs.map(|needs| needs.distant_cycles),
        (!seen.chain.is_empty()).then(|| chain_text(&seen.chain)),
        (!seen.branches.is_empty()).then(|| branches_text(&seen.branches))
    ])?;
    let number = to.last_insert_rowid();
    let mut insert = to.prepare_cached(
        "INSERT INTO loop_access VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    )?;
    for access in &seen.by_access {
        let word = DEPENDENCES.iter().find(|(known, _)| *known == access.dependence);
        insert.execute(params![
            number,
            signed(access.ip),
            access.stack.0,
            kind_name(access.kind),
            access.bytes,
            signed(access.executions),
            signed(access.lines),
            signed(access.pages),
            signed(access.sets[0]),
            signed(access.sets[1]),
            access.stride,
            signed(access.stride_count),
            signed(access.steps),
            access.outer_stride,
            word.map_or("none", |(_, word)| word),
            signed(access.address),
            access.values.map(|(low, _)| low),
            access.values.map(|(_, high)| high)
        ])?;
    }
    Ok(())
}

/// `IP STACK CYCLES CLASS` of each instruction, separated by semicolons; the address hexadecimal.
fn chain_text(chain: &[ChainStep]) -> String {
    let step = |step: &ChainStep| format!("{:x} {} {} {}", step.ip, step.stack.0, step.cycles, step.class);
    chain.iter().map(step).collect::<Vec<_>>().join(";")
}

/// Reads what [`chain_text`] wrote; instructions that cannot be read are left out.
fn chain(text: &str) -> Vec<ChainStep> {
    let step = |text: &str| {
        let mut words = text.splitn(4, ' ');
        let ip = u64::from_str_radix(words.next()?, 16).ok()?;
        let stack = StackId(words.next()?.parse().ok()?);
        let cycles = words.next()?.parse().ok().filter(|cycles: &f64| (0.0..1e15).contains(cycles))?;
        Some(ChainStep { ip, stack, class: words.next()?.to_owned(), cycles })
    };
    text.split(';').filter_map(step).collect()
}

/// `IP STACK EXECUTED TAKEN JUDGED MISPREDICTED` of each branch, separated by semicolons; the address
/// hexadecimal.
fn branches_text(branches: &[LoopBranch]) -> String {
    let of = |branch: &LoopBranch| {
        let LoopBranch { ip, stack, executed, taken, judged, mispredicted } = branch;
        format!("{ip:x} {} {executed} {taken} {judged} {mispredicted}", stack.0)
    };
    branches.iter().map(of).collect::<Vec<_>>().join(";")
}

/// Reads what [`branches_text`] wrote; branches that cannot be are left out.
fn branches(text: &str) -> Vec<LoopBranch> {
    let of = |text: &str| {
        let mut words = text.split(' ');
        let ip = u64::from_str_radix(words.next()?, 16).ok()?;
        let stack = StackId(words.next()?.parse().ok()?);
        let [executed, taken, judged, mispredicted] =
            [(); 4].map(|()| words.next().and_then(|word| word.parse::<u64>().ok()));
        let branch = LoopBranch {
            ip,
            stack,
            executed: executed?,
            taken: taken?,
            judged: judged?,
            mispredicted: mispredicted?,
        };
        let LoopBranch { executed, taken, judged, mispredicted, .. } = branch;
        let is_sound = taken <= executed && judged <= executed && mispredicted <= judged;
        (is_sound && (1..=MOST_EXECUTED).contains(&executed)).then_some(branch)
    };
    text.split(';').filter_map(of).collect()
}

/// A JSON array.
fn reals_json(values: &[f64]) -> String {
    let values: Vec<String> = values.iter().map(f64::to_string).collect();
    format!("[{}]", values.join(","))
}

/// The numbers of a JSON array of numbers or of such arrays; none where there is something else in it.
fn reals(json: &str) -> Vec<f64> {
    let words = json.split(['[', ']', ',']).filter(|word| !word.is_empty());
    words.map(str::parse::<f64>).collect::<Result<_, _>>().unwrap_or_default()
}

pub(crate) fn write_processor(to: &Transaction<'_>, processor: &Processor) -> rusqlite::Result<()> {
    let levels: Vec<String> = processor.levels.iter().map(|level| reals_json(level)).collect();
    to.prepare_cached("INSERT OR REPLACE INTO processor VALUES (0, ?, ?, ?, ?, ?)")?
        .execute(params![
            processor.clock,
            format!("[{}]", levels.join(",")),
            processor.parallel_line,
            processor.page_fault_ns,
            processor.core.map(|core| reals_json(&core.values()))
        ])
        .map(drop)
}

/// Reads all rows into a profile.
pub(crate) fn decode(tables: &mut Tables<'_>, profile: &mut Profile) {
    let loops = tables.rows_with_ids("loop", seen_loop);
    let (ids, mut loops): (Vec<i64>, Vec<SeenLoop>) = loops.into_iter().unzip();
    for (of, access) in tables.rows("loop_access", loop_access) {
        if let Some(of) = ids.binary_search(&of).ok().and_then(|index| loops.get_mut(index)) {
            of.by_access.push(access);
        }
    }
    profile.loops = loops;
    profile.run.processor = tables.rows("processor", processor).pop().flatten();
}

fn seen_loop(row: &mut Columns<'_>) -> rusqlite::Result<SeenLoop> {
    Ok(SeenLoop {
        sample: SampleId(row.small()?),
        header: row.number()?,
        span: (row.number()?, row.number()?),
        around: row.get::<Option<i64>>()?.map(unsigned),
        stack: StackId(row.small()?),
        latch: StackId(row.small()?),
        instructions: row.number()?,
        accesses: row.number()?,
        iterations: row.number()?,
        runs: row.number()?,
        trips: row.number()?,
        core_cycles: row.real()?,
        bound_by: row.get()?,
        unbound_cycles: row.real()?,
        is_first: row.get()?,
        needs: needs(row)?,
        chain: row.added::<String>()?.map(|text| chain(&text)).unwrap_or_default(),
        branches: row.added::<String>()?.map(|text| branches(&text)).unwrap_or_default(),
        by_access: Vec::new(),
    })
}

/// `None` if not computed, and in files of version 5.
fn needs(row: &mut Columns<'_>) -> rusqlite::Result<Option<LoopNeeds>> {
    let Some(cycles) = row.added()? else {
        row.skip(6);
        return Ok(None);
    };
    Ok(Some(LoopNeeds {
        cycles,
        chain_cycles: row.real()?,
        unit_cycles: row.real()?,
        unit: row.get::<Option<String>>()?.unwrap_or_default(),
        mispredicted: row.number()?,
        new_lines: row.number()?,
        distant_cycles: row.real()?,
    }))
}

/// Id of the loop, and the access.
fn loop_access(row: &mut Columns<'_>) -> rusqlite::Result<(i64, LoopAccess)> {
    let of = row.get()?;
    let mut access = LoopAccess {
        ip: row.number()?,
        stack: StackId(row.small()?),
        kind: kind_named(&row.get::<String>()?),
        bytes: row.small()?,
        executions: row.number()?,
        lines: row.number()?,
        pages: row.number()?,
        sets: [row.number()?, row.number()?],
        stride: row.get()?,
        stride_count: row.number()?,
        steps: row.number()?,
        outer_stride: row.get()?,
        ..LoopAccess::default()
    };
    let word = row.get::<String>()?;
    access.dependence =
        DEPENDENCES.iter().find(|(_, known)| *known == word).map_or_else(Dependence::default, |it| it.0);
    access.address = row.number()?;
    access.values = row.get::<Option<i64>>()?.zip(row.get::<Option<i64>>()?);
    Ok((of, access))
}

/// `None` where the levels cannot be read.
fn processor(row: &mut Columns<'_>) -> rusqlite::Result<Option<Processor>> {
    let (clock, levels) = (row.real()?, row.get::<String>()?);
    let (parallel_line, page_fault_ns) = (row.real()?, row.real()?);
    let core = row.added::<String>()?;
    let core = core.and_then(|core| reals(&core).try_into().ok()).map(Core::from_values);
    let numbers = reals(&levels);
    let mut levels = [[0.0; 3]; 3];
    if numbers.len() != 9 {
        return Ok(None);
    }
    levels.iter_mut().flatten().zip(numbers).for_each(|(to, from)| *to = from);
    Ok(Some(Processor { clock, levels, parallel_line, page_fault_ns, core }))
}
