//! A traced process image: opens the image's file after
//! the end, finishes the analyses, takes the results.
//!
//! No content of the file causes a panic: the process may have been killed at every
//! instruction. Not here: names of functions (`names`), sums over images (`total`).

use std::{io, os::unix::fs::FileExt as _, path::Path, sync::atomic::Ordering::Relaxed};

use locality_cachesim::{Column, Totals};
use locality_dataflow::{NestSummary, Shared, Summary as Parallel, TaskSummary};
use locality_plugin::{
    extra::{nest, parallelism, sharing, simulated, tasks},
    functions::{CHOSEN, MARKS, SKIPPED},
    inside, lacking,
    region::{BLOCKS, Region, Seen, load_text},
};
use locality_reuse::{Engine, OpenError, Summary};
use locality_stream::{Analysis as _, BlockRecord, Code, Instruction, InstructionRecord, Mix, Span};

use super::cache::objects::Numbered;
use super::extra::{self, Extra};

/// Results of an image.
#[derive(Debug)]
pub struct Image {
    /// Process id.
    pub pid: u32,
    /// File of the program.
    pub program: String,
    /// Threads, in order of start.
    pub threads: Vec<Thread>,
    /// Results of the threads; `None` without a recorded access.
    pub summary: Option<Summary>,
    /// Executions of the threads.
    pub mix: Mix,
    /// Executions of each static instruction; empty where only chosen ones are counted.
    pub executed: Vec<u64>,
    /// Static instructions as recorded.
    pub records: Vec<InstructionRecord>,
    /// Static blocks as recorded.
    pub blocks: Vec<BlockRecord>,
    /// Facts from the instructions' bytes.
    pub facts: Vec<Instruction>,
    /// Mapped files.
    pub mappings: Vec<MappedFile>,
    /// Data objects of simulated caches.
    pub objects: Numbered,
    /// Why recording stopped before the program did.
    pub stopped: Option<String>,
    /// Further notices.
    pub remark: Option<String>,
    /// Children and programs not recorded.
    pub children_lost: u32,
    /// Buffers out of the promised global order.
    pub out_of_turn: u32,
    /// A bit for each requested function in the image.
    pub functions_found: u64,
    /// Sets and optimal replacement.
    pub extra: Extra,
    /// Instructions of functions with costs charged to callers, in ascending order.
    pub skipped: Vec<u32>,
    /// Simulated caches.
    pub simulated: Option<Totals>,
    /// A bit for each function to skip in the image.
    pub skipped_found: u64,
    /// Parallelism of each thread: thread id; the whole, then functions.
    pub parallelism: Vec<(u32, Vec<Parallel>)>,
    /// Bytes between threads; `None` if not counted.
    pub sharing: Option<(Vec<Shared>, bool)>,
    /// Task parallelism of each thread.
    pub tasks: Vec<TaskSummary>,
    /// Self-parallelism of each thread.
    pub nests: Vec<NestSummary>,
    /// A bit for each function in the image with measured whole calls.
    pub inclusive_found: u64,
    /// Counts of all accesses, if only some lines are sampled.
    pub sampled: Option<Sampled>,
    /// The last instruction of the last translated
    /// block, if absent in QEMU: the origin of a SIGILL.
    pub lacking: Option<String>,
}

/// A thread's results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Thread id.
    pub tid: u32,
    /// Accesses; 0 in a run in one order, without distinction of threads.
    pub accesses: u64,
    /// Instructions executed.
    pub instructions: u64,
}

/// Counts of all accesses in a run of which only some lines are sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampled {
    /// Number of lines of which one is sampled.
    pub one_in: u32,
    /// Accesses.
    pub accesses: u64,
    /// Stores among them.
    pub stores: u64,
    /// Touches of lines.
    pub touches: u64,
}

impl Sampled {
    /// Adds other counts of the same run.
    pub fn merge(&mut self, other: &Self) {
        self.accesses += other.accesses;
        self.stores += other.stores;
        self.touches += other.touches;
    }

    fn of(seen: &Seen, one_in: u32) -> Self {
        let (loads, stores) = (seen.loads.load(Relaxed), seen.stores.load(Relaxed));
        let accesses = loads.saturating_add(stores);
        Self { one_in, accesses, stores, touches: accesses.saturating_add(seen.further.load(Relaxed)) }
    }
}

/// A mapped file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MappedFile {
    /// Number of instructions recorded when the mapping was found.
    pub at: u32,
    /// First address.
    pub start: u64,
    /// First address after the mapping.
    pub end: u64,
    /// Offset in the file of the first address.
    pub offset: u64,
    /// Path.
    pub path: String,
}

impl Image {
    /// Takes the results out of a file. The process must be gone.
    pub fn take(path: &Path) -> io::Result<Self> {
        let region = Region::open(path)?;
        let image = finish(&region);
        region.unmap();
        Ok(image)
    }

    /// Whether an instruction belongs to a function with costs charged to the caller.
    pub fn is_skipped(&self, instruction: u32) -> bool {
        self.skipped.binary_search(&instruction).is_ok()
    }

    /// The mapped file of an instruction.
    pub fn mapping(&self, instruction: u32) -> Option<&MappedFile> {
        let address = self.records.get(instruction as usize)?.address;
        let fits = |file: &&MappedFile| file.at <= instruction && (file.start..file.end).contains(&address);
        self.mappings.iter().rev().find(fits)
    }
}

impl Image {
    /// Adds the simulation of a thread or of the process. Returns the number of accesses.
    fn add_simulated(&mut self, found: Option<Result<Totals, locality_cachesim::OpenError>>) -> Option<u64> {
        match found? {
            Ok(totals) => {
                let accesses = totals.sum[Column::Dr] + totals.sum[Column::Dw];
                self.simulated.get_or_insert_default().merge(&totals);
                Some(accesses)
            }
            Err(why) => {
                self.stopped = Some(unreadable(&why));
                None
            }
        }
    }
}

fn finish(region: &Region) -> Image {
    let header = region.header();
    let marked = region.code();
    let records: Vec<InstructionRecord> = marked
        .instructions
        .iter()
        .map(|record| InstructionRecord { address: record.address & !MARKS, ..*record })
        .collect();
    let facts = Code { instructions: &records, blocks: marked.blocks }.classify();
    // SAFETY: the process is gone, hence the log has no writer.
    let log = String::from_utf8_lossy(unsafe { region.log() });
    let mut image = Image {
        pid: header.pid.load(Relaxed),
        program: String::from_utf8_lossy(&load_text(&header.program)).into_owned(),
        threads: Vec::new(),
        summary: None,
        mix: Mix::default(),
        executed: Vec::new(),
        records,
        blocks: marked.blocks.to_vec(),
        mappings: parse_log(&log),
        objects: Numbered::parse(&log, region.placed()),
        stopped: None,
        remark: None,
        children_lost: header.children_lost.load(Relaxed),
        out_of_turn: header.out_of_turn.load(Relaxed),
        facts,
        functions_found: header.functions_found.load(Relaxed),
        extra: Extra::default(),
        skipped: (0..)
            .zip(marked.instructions)
            .filter(|(_, record)| record.address & SKIPPED != 0)
            .map(|(index, _)| index)
            .collect(),
        simulated: None,
        skipped_found: header.skipped_found.load(Relaxed),
        parallelism: Vec::new(),
        sharing: None,
        tasks: Vec::new(),
        nests: Vec::new(),
        inclusive_found: header.inclusive_found.load(Relaxed),
        lacking: None,
        sampled: None,
    };
    let code = marked;
    let last = code.blocks.last().and_then(|block| (block.first + block.count).checked_sub(1));
    image.lacking = last.and_then(|last| lacking(&image, last));
    let reason = String::from_utf8_lossy(&load_text(&header.reason)).into_owned();
    match (header.stopped.load(Relaxed), header.stop.load(Relaxed)) {
        (0, 0) => image.remark = Some(reason).filter(|reason| !reason.is_empty()),
        (0, 1) => image.stopped = Some("the command had ended".to_owned()),
        (0, _) => image.stopped = Some("memory was short".to_owned()),
        _ => image.stopped = Some(reason),
    }
    let lost = header.placements_lost.load(Relaxed);
    if lost > 0 {
        image.remark = Some(format!("{lost} mappings too many to tell their data apart"));
    }
    let whole = header.whole.load(Relaxed);
    if whole != 0 {
        match whole_summary(region, &code, whole) {
            Ok(summary) => {
                image.extra.add(region, &header.extra);
                image.summary = Some(summary);
            }
            Err(why) => image.stopped = Some(unreadable(&why)),
        }
    }
    let count = (header.threads.load(Relaxed) as usize).min(region.threads().len());
    let unseen = |thread: usize, consumed: u64| region.unseen(thread, consumed);
    image.add_simulated(simulated(region, &header.extra, 0..count, unseen));
    match sharing(region, &header.extra, 0..count) {
        Ok(found) => image.sharing = found,
        Err(why) => image.stopped = Some(unreadable(&why)),
    }
    for (index, record) in region.threads().iter().enumerate().take(count) {
        let tid = record.tid.load(Relaxed);
        // Only for whole function calls, if calls are distinguished;
        // only once, because the call advances the state.
        let seen = inside::consumed(region, &record.extra);
        let left = seen.map(|seen| region.unseen(index, seen));
        let left = left.and_then(|left| inside::select(region, &record.extra, &left));
        let unseen = |consumed: u64| left.clone().unwrap_or_else(|| region.unseen(index, consumed));
        let inside = inside::counts(region, &record.extra);
        let counts = inside.unwrap_or_else(|| record.counts.load(Relaxed));
        if inside.is_none() && header.mix_restricted.load(Relaxed) == 0 {
            add_executions(region, &code, counts, &mut image.executed);
        }
        let mix = thread_mix(region, &code, &image.facts, counts);
        image.mix.merge(&mix);
        let mut accesses = 0;
        let state = record.analyses.load(Relaxed);
        // 0: the thread had not begun, or the whole process has a common state.
        let engine = (state != 0).then(|| Engine::open(region, state));
        match engine {
            Some(Ok(mut engine)) => {
                // A full arena has been noted in the state.
                let rest = unseen(engine.consumed());
                let _full = engine.observe(&rest, &code);
                // Sequentially: each analysis has checked the size of the
                // own tables, not the distance to another analysis' tables.
                let summary = engine.finish(tid.into(), &code);
                extra::take(region, &record.extra, &rest);
                image.extra.add(region, &record.extra);
                accesses = summary.accesses;
                match &mut image.summary {
                    Some(sum) => sum.merge(&summary),
                    None => image.summary = Some(summary),
                }
            }
            Some(Err(why)) => image.stopped = Some(unreadable(&why)),
            None => {}
        }
        if let Some(totals) =
            image.add_simulated(simulated(region, &record.extra, [index], |_, consumed| unseen(consumed)))
        {
            accesses = totals;
        }
        let one_in = header.sample_lines.load(Relaxed);
        if one_in > 0 {
            let all = Sampled::of(&record.seen, one_in);
            accesses = all.accesses;
            match &mut image.sampled {
                Some(sum) => sum.merge(&all),
                none => *none = Some(all),
            }
        }
        match parallelism(region, &record.extra, index) {
            Ok(found) if found.is_empty() => {}
            Ok(found) => image.parallelism.push((tid, found)),
            Err(why) => image.stopped = Some(unreadable(&why)),
        }
        match nest(region, &record.extra, unseen) {
            Ok(found) => image.nests.extend(found),
            Err(why) => image.stopped = Some(unreadable(&why)),
        }
        match tasks(region, &record.extra, unseen) {
            Ok(found) => image.tasks.extend(found),
            Err(why) => image.stopped = Some(unreadable(&why)),
        }
        image.threads.push(Thread { tid, accesses, instructions: mix.instructions });
    }
    image
}

/// Killed while the state was set up.
fn unreadable(why: &impl std::fmt::Display) -> String {
    format!("{why} (killed at its start)")
}

fn whole_summary(region: &Region, code: &Code<'_>, state: u64) -> Result<Summary, OpenError> {
    let mut engine = Engine::open(region, state)?;
    let mut rests = Vec::new();
    // Not the count that rises below: events of several threads may be left after an end out of turn.
    let consumed = engine.consumed();
    for index in 0..(region.header().threads.load(Relaxed) as usize).min(region.threads().len()) {
        let rest = region.unseen(index, consumed);
        let _full = engine.observe(&rest, code);
        rests.push(rest);
    }
    let summary = engine.finish(region.header().pid.load(Relaxed).into(), code);
    rests.iter().for_each(|rest| extra::take(region, &region.header().extra, rest));
    Ok(summary)
}

/// Kind of an instruction absent in QEMU. QEMU may have
/// read the first bytes only; the file has the rest.
fn lacking(image: &Image, instruction: u32) -> Option<String> {
    let record = image.records.get(instruction as usize)?;
    let mapping = image.mapping(instruction)?;
    let mut bytes = [0; 15];
    let file = std::fs::File::open(&mapping.path).ok()?;
    let count = file.read_at(&mut bytes, record.address - mapping.start + mapping.offset).ok()?;
    let bytes = bytes.get(..count)?;
    let name = lacking::lacking(bytes).filter(|_| bytes.starts_with(record.code()))?;
    Some(format!("{name} at {:#x} of {}", record.address - mapping.start + mapping.offset, mapping.path))
}

/// Executions of a thread; `offset` is the place of the thread's counts of blocks, 0 for none.
fn thread_mix(region: &Region, code: &Code<'_>, facts: &[Instruction], offset: u64) -> Mix {
    let span = Span::<u64>::from_parts(offset, BLOCKS);
    // SAFETY: the process is gone, hence the numbers have no writer.
    let Some(counts) = (if offset == 0 { None } else { unsafe { span.slice(region) } }) else {
        return Mix::default();
    };
    let restricted = region.header().mix_restricted.load(Relaxed) != 0;
    Mix::of_chosen(code, facts, counts, |index| {
        !restricted || code.instructions.get(index).is_some_and(|record| record.address & CHOSEN != 0)
    })
}

/// Adds a thread's executions to those of each instruction.
fn add_executions(region: &Region, code: &Code<'_>, offset: u64, executed: &mut Vec<u64>) {
    let span = Span::<u64>::from_parts(offset, BLOCKS);
    // SAFETY: the process is gone, hence the numbers have no writer.
    let Some(counts) = (if offset == 0 { None } else { unsafe { span.slice(region) } }) else { return };
    executed.resize(code.instructions.len(), 0);
    for (block, count) in code.blocks.iter().zip(counts).filter(|(_, count)| **count > 0) {
        let first = block.first as usize;
        let of_block = executed.get_mut(first..first.saturating_add(block.count as usize));
        of_block.into_iter().flatten().for_each(|sum| *sum = sum.saturating_add(*count));
    }
}

fn parse_log(log: &str) -> Vec<MappedFile> {
    let parse = |line: &str| {
        let mut fields = line.splitn(5, ' ');
        let mut number = || u64::from_str_radix(fields.next()?, 16).ok();
        let (at, start, end, offset) = (number()?, number()?, number()?, number()?);
        Some(MappedFile { at: at.try_into().ok()?, start, end, offset, path: fields.next()?.to_owned() })
    };
    log.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_mapping_holds_for_later_instructions() {
        let mappings = parse_log("0 1000 2000 0 /a b\n5 1000 2000 1000 /c\nbroken\n");
        assert_eq!(mappings.len(), 2);
        let record = InstructionRecord::new(0x1800, &[0x90]);
        let image = Image {
            pid: 1,
            program: String::new(),
            threads: Vec::new(),
            summary: None,
            mix: Mix::default(),
            executed: Vec::new(),
            records: vec![record; 10],
            blocks: Vec::new(),
            facts: Vec::new(),
            mappings,
            objects: Numbered::default(),
            stopped: None,
            remark: None,
            children_lost: 0,
            out_of_turn: 0,
            functions_found: 0,
            extra: Extra::default(),
            skipped: Vec::new(),
            simulated: None,
            skipped_found: 0,
            parallelism: Vec::new(),
            sharing: None,
            tasks: Vec::new(),
            nests: Vec::new(),
            inclusive_found: 0,
            lacking: None,
            sampled: None,
        };
        assert_eq!(image.mapping(4).unwrap().path, "/a b");
        assert_eq!(image.mapping(5).unwrap().path, "/c");
        assert_eq!(image.mapping(10), None);
    }

    #[test]
    fn an_untouched_file_is_an_empty_image() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.0");
        let region = Region::create(&path, None).unwrap();
        let image = Image::take(&path).unwrap();
        assert!(image.threads.is_empty() && image.summary.is_none() && image.mix == Mix::default());
        region.unmap();
    }
}
