//! `advice`, `loops` and `kernel_time` of a report.

use std::collections::BTreeMap;

use locality_advice::{Access, Advice, Advised, Branch, ChainPart, Entry, Loop};
use locality_estimate::calling_context::function_name;
use locality_estimate::interval_estimate;
use locality_model::{AccessKind, Dependence, FieldId, Frame, FrameId, ObjectId, Profile};

use crate::estimates::{ci95, estimate};
use crate::schema::{
    advice::{Advice as AdviceRow, Gain},
    loops::{
        Chain, ChainStep, KernelEntry, KernelTime, Loop as LoopRow, LoopAccess, PageFaults, Throughput, Trips,
    },
    parallelism::Branch as BranchRow,
    place::Place,
};

/// Names of the caches, smallest first.
const CACHES: [&str; 3] = ["L1", "L2", "LLC"];

/// Places at which the program enters the kernel that a report names.
const ENTRIES: usize = 20;

pub(super) struct Json<'a> {
    pub profile: &'a Profile,
    pub advised: &'a Advised,
}

impl Json<'_> {
    pub fn advice(&self) -> Vec<AdviceRow> {
        self.advised.advice.iter().map(|advice| self.row(advice)).collect()
    }

    pub fn loops(&self) -> Vec<LoopRow> {
        self.advised.loops.iter().map(|of| self.of_loop(of)).collect()
    }

    pub fn kernel_time(&self) -> Option<KernelTime> {
        let kernel = self.advised.kernel.as_ref()?;
        let faults = kernel.faults.map(|(count, share)| PageFaults { count, share: estimate(&share) });
        let line = |frame: FrameId| self.profile.frames.get(frame.0 as usize)?.line;
        let entry = |entry: &Entry| KernelEntry {
            call: entry.call.clone().unwrap_or_else(|| "page fault".to_owned()),
            place: self.place((entry.frame, entry.frame.and_then(line))),
            share: estimate(&entry.share),
        };
        let entries = kernel.entries.iter().take(ENTRIES).map(entry).collect();
        Some(KernelTime { entries, page_faults: faults, share: estimate(&kernel.share) })
    }

    fn row(&self, advice: &Advice) -> AdviceRow {
        let misses = advice.misses.and_then(|misses| {
            let row = |(name, saved): (&str, Option<interval_estimate::Estimate>)| {
                Some((name.to_owned(), estimate(&saved?)))
            };
            let saved: BTreeMap<_, _> = CACHES.into_iter().zip(misses).filter_map(row).collect();
            (!saved.is_empty()).then_some(saved)
        });
        AdviceRow {
            evidence: advice.evidence.clone(),
            field: advice.object.and_then(|(_, field)| self.field(field)),
            gain: Gain { misses, speedup: estimate(&advice.speedup) },
            in_the_way: advice.in_the_way.clone(),
            kind: advice.kind.name().to_owned(),
            n: advice.n,
            object: advice.object.and_then(|(object, _)| self.object(object)),
            other: advice.other.map(|place| self.place(place)),
            title: advice.title.clone(),
            place: self.place(advice.place),
        }
    }

    fn object(&self, id: ObjectId) -> Option<String> {
        Some(self.profile.objects.get(id.0 as usize)?.name.clone())
    }

    fn field(&self, id: Option<FieldId>) -> Option<String> {
        let path = &self.profile.fields.get(id?.0 as usize)?.path;
        (!path.is_empty()).then(|| path.clone())
    }

    fn place(&self, (frame, line): (Option<FrameId>, Option<u32>)) -> Place {
        let frame = frame.and_then(|id| self.profile.frames.get(id.0 as usize));
        // A function without a name is called by its address.
        let address =
            frame.filter(|frame| line.is_none() && frame.function.is_some()).and_then(Frame::address_in_file);
        let module = frame.and_then(|frame| frame.module).filter(|_| address.is_some());
        Place {
            address,
            file: frame.and_then(|frame| frame.file.clone()),
            function: frame.map(|frame| function_name(self.profile, frame)),
            line,
            module: module
                .and_then(|id| self.profile.modules.get(id.0 as usize))
                .map(|module| module.path.clone()),
            via: None,
        }
    }

    /// Branches of the loops; absent where no window shows one, and in profiles of earlier builds.
    pub fn branches(&self) -> Option<Vec<BranchRow>> {
        let branches = &self.advised.branches;
        (!branches.is_empty()).then(|| branches.iter().map(|of| self.branch(of)).collect())
    }

    fn branch(&self, of: &Branch) -> BranchRow {
        let frame = of.frame.and_then(|id| self.profile.frames.get(id.0 as usize));
        BranchRow {
            entropy: of.entropy.value.into(),
            entropy_ci95: Some(ci95(&of.entropy)),
            executed: of.executed,
            judged: Some(of.judged),
            mispredicted: of.mispredicted,
            mispredicted_at_most: of.mispredicted_at_most.as_ref().map(estimate),
            place: self.place_at((of.frame, frame.and_then(|frame| frame.line)), of.ip),
            taken: of.taken,
            taken_share: Some(estimate(&of.taken_share)),
        }
    }

    /// A place whose address is that of an instruction: the address distinguishes loops and branches of a
    /// function without lines.
    fn place_at(&self, (frame, line): locality_advice::Place, ip: u64) -> Place {
        let mut place = self.place((frame, line));
        let frame = frame.and_then(|id| self.profile.frames.get(id.0 as usize));
        let offset = frame.map(|frame| ip.wrapping_sub(frame.address));
        place.address = place.address.zip(offset).map(|(address, offset)| address.wrapping_add(offset));
        place
    }

    fn of_loop(&self, of: &Loop) -> LoopRow {
        let (median, n, most) = of.trips;
        let needs = of.needs.as_ref();
        let lines = of.accesses.iter().fold(0.0, |sum, access| sum + access.per_iteration * access.lines);
        LoopRow {
            accesses: of.accesses.iter().map(|access| self.access(access)).collect(),
            bound_by: of.bound_by.as_ref().map(|(name, _)| name.clone()),
            chain: needs.map(|needs| Chain {
                cycles: estimate(&needs.chain),
                path: needs.path.iter().map(|part| self.chain_step(part)).collect(),
            }),
            core_cycles: of.core.as_ref().map(estimate),
            cycles: of.speed.as_ref().map(|(_, cycles)| estimate(cycles)),
            cycles_at_least: needs.map(|needs| estimate(&needs.cycles)),
            instructions: of.instructions.into(),
            iterations: of.speed.as_ref().map(|(per_ns, _)| estimate(&scaled(per_ns, 1e9))),
            kernel_share: of.kernel.as_ref().map(estimate),
            lines_per_iteration: lines.into(),
            mispredicted: needs.map(|needs| estimate(&needs.mispredicted)),
            mlp: needs.and_then(|needs| needs.lines_at_a_time.as_ref()).map(estimate),
            n: of.windows,
            place: self.place_at((of.frame, of.line), of.header),
            share: estimate(&of.share),
            throughput: needs
                .map(|needs| Throughput { cycles: estimate(&needs.throughput), unit: needs.unit.clone() }),
            trips: Trips { at_least: median.is_none().then_some(most), median, n },
        }
    }

    fn chain_step(&self, part: &ChainPart) -> ChainStep {
        let frame = part.frame.and_then(|id| self.profile.frames.get(id.0 as usize));
        ChainStep {
            class: part.class.clone(),
            cycles: estimate(&part.cycles),
            place: self.place((part.frame, frame.and_then(|frame| frame.line))),
            share: part.share.into(),
        }
    }

    fn access(&self, access: &Access) -> LoopAccess {
        let frame = access.frame.and_then(|id| self.profile.frames.get(id.0 as usize));
        LoopAccess {
            bytes: access.bytes.into(),
            chased: access.dependence == Dependence::Chased,
            field: access.object.and_then(|(_, field)| self.field(field)),
            indexed: access.dependence == Dependence::Indexed,
            inner_stride: access.stride.filter(|_| access.stride_share >= 0.5),
            kind: if access.kind == AccessKind::Store { "store" } else { "load" }.to_owned(),
            line: frame.and_then(|frame| frame.line),
            lines_per_access: access.lines.into(),
            object: access.object.and_then(|(object, _)| self.object(object)),
            outer_stride: access.outer_stride,
            stride_share: access.stride_share.into(),
        }
    }
}

fn scaled(estimate: &interval_estimate::Estimate, by: f64) -> interval_estimate::Estimate {
    let (value, low, high) = (estimate.value * by, estimate.low * by, estimate.high * by);
    interval_estimate::Estimate { value, low, high, n: estimate.n }
}
