//! Time in the kernel, by cause of entry: system calls by name, and page faults.
//!
//! The clock's ticks in user mode and in the kernel give the share; samples in the
//! kernel give the system call or the page fault, and the place in the program.
//!
//! Sources of error: an interrupt looks like a page fault;
//! faults of two places within a page count for the first place.

use std::collections::BTreeMap;

use locality_estimate::calling_context::{Contexts, function_name};
use locality_estimate::interval_estimate::{Estimate, wilson};
use locality_model::{AccessKind, FrameId, Profile, StackId};

use crate::{
    Advice, Kind, Loop, Place, View,
    loops::{estimate, smallest_around},
    place, words,
};

/// Share of the kernel time at which faults explain the whole, and the explained part.
const MOSTLY: f64 = 0.6;
const ALL: f64 = 0.95;
/// Share of the time from which page faults deserve a change.
const MUCH: f64 = 0.03;
/// Samples in page faults required to locate new pages.
const FEWEST: u64 = 5;

/// Time of the targets in the kernel.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KernelTime {
    /// Share of the CPU time.
    pub share: Estimate,
    /// Page faults, and the share of the CPU time taken by faults.
    pub faults: Option<(u64, Estimate)>,
    /// Places of entry into the kernel, most time first.
    pub entries: Vec<Entry>,
}

/// A function with entries into the kernel.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Entry {
    /// The system call; `None` for page faults and interrupts.
    pub call: Option<String>,
    /// Innermost frame of the user's own code, of the line with the most samples.
    pub frame: Option<FrameId>,
    /// Calling context of a sample, from the entering instruction on.
    pub stack: StackId,
    /// Share of the CPU time.
    pub share: Estimate,
}

impl KernelTime {
    /// Of a profile; `None` if unknown.
    pub fn of(profile: &Profile, contexts: &Contexts) -> Option<Self> {
        let (all, kernel) = profile.run.ticks?;
        let share = share_of(kernel, all);
        let entries = entries(profile, contexts, (all, kernel));
        let faults = profile.run.page_faults.zip(profile.run.processor).filter(|_| profile.run.cpu_ns > 0);
        let faults = faults.map(|(faults, processor)| {
            let of_time = faults as f64 * processor.page_fault_ns / profile.run.cpu_ns as f64;
            // A fault of the program may cost half or twice a lone fault's kernel time. If faults
            // have most of the kernel time, the rest is mostly the return of the faulted pages.
            let mostly = of_time > MOSTLY * share.value;
            let share = Estimate {
                value: if mostly { share.value * ALL } else { of_time.min(share.value) },
                low: (of_time / 2.0).min(share.low),
                high: if mostly { share.high } else { (of_time * 2.0).min(share.high) },
                n: all,
            };
            (faults, share)
        });
        Some(Self { share, faults, entries })
    }

    /// Advice about page faults, if faults take much of the time.
    pub(crate) fn advice(&self, view: &View<'_>) -> Option<Advice> {
        let (count, share) = self.faults?;
        if share.low < MUCH {
            return None;
        }
        let (place, name, mut evidence) = self
            .fault_site(view)
            .or_else(|| most_new_pages(view).map(|(place, name)| (place, name, Vec::new())))?;
        let at = words::at(view.profile, place.0, place.1);
        let seconds = view.profile.run.wall_ns as f64 / 1e9;
        let faster = |share: f64| 1.0 / (1.0 - share.clamp(0.0, 0.95));
        Some(Advice {
            kind: Kind::KeepBuffer,
            title: format!(
                "Use the memory of {} again, which {at} fills, in place of new pages each time: page \
                 faults take {} of the time",
                name.0,
                words::percent(share.value)
            ),
            place,
            other: None,
            object: name.1,
            speedup: estimate(faster(share.value), &mut [faster(share.low), faster(share.high)], share.n),
            misses: None,
            evidence: {
                let whole = format!(
                    "{:.0} page faults a second; {} of the CPU time passes in the kernel.",
                    count as f64 / seconds.max(1e-9),
                    words::percent(self.share.value)
                );
                evidence.splice(0..0, [whole]);
                evidence
            },
            in_the_way: vec![
                "Where the allocator returns the memory to the system, MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ of glibc \
                 do the same without a change of code."
                    .to_owned(),
            ],
            n: share.n,
        })
    }
}

/// A name for data with the object of the name.
type Named = (String, Option<(locality_model::ObjectId, Option<locality_model::FieldId>)>);

impl KernelTime {
    /// The function with the most page faults, the place
    /// within, and the data; `None` with too few samples.
    fn fault_site(&self, view: &View<'_>) -> Option<(Place, Named, Vec<String>)> {
        let faults: Vec<&Entry> = self.entries.iter().filter(|entry| entry.call.is_none()).collect();
        let n: u64 = faults.iter().map(|entry| entry.share.n).sum();
        if n < FEWEST {
            return None;
        }
        let entry = faults.first()?;
        let frame = entry.frame.and_then(|id| view.profile.frames.get(id.0 as usize));
        let all: f64 = faults.iter().map(|entry| entry.share.value).sum();
        let place = (entry.frame, frame.and_then(|frame| frame.line));
        let stack = view.profile.stacks.get(entry.stack.0 as usize);
        let ip = stack.and_then(|stack| view.profile.frames.get(stack.frames.first()?.0 as usize));
        let access = ip.and_then(|frame| {
            let mut accesses = view.loops.iter().flat_map(|of| &of.accesses);
            accesses.find(|access| access.ip == frame.address)
        });
        let name = match access {
            Some(access) if access.object.is_some() => (view.name(access), access.object),
            _ => ("the data".to_owned(), None),
        };
        let function =
            frame.map_or_else(|| "unknown code".to_owned(), |frame| function_name(view.profile, frame));
        let share = words::percent(entry.share.value / all);
        let evidence = vec![format!("{share} of the {n} samples in page faults lie in {function}.")];
        Some((place, name, evidence))
    }
}

/// Without samples in the kernel: the pages are new at the
/// place with the most pages stored to for the first time.
fn most_new_pages(view: &View<'_>) -> Option<(Place, Named)> {
    let pages = |access: &crate::Access, speed: f64| {
        let is_store = access.kind == AccessKind::Store;
        if is_store { access.pages * access.per_iteration * speed } else { 0.0 }
    };
    let of = view.loops.iter().filter_map(|of| {
        let speed = of.speed?.0.value;
        let access = of.accesses.iter().max_by(|a, b| pages(a, speed).total_cmp(&pages(b, speed)))?;
        let pages = pages(access, speed);
        (pages > 0.0).then_some((of, access, pages))
    });
    let (of, access, _) = of.max_by(|a, b| a.2.total_cmp(&b.2))?;
    Some(((of.frame, of.line), (view.name(access), access.object)))
}

/// Samples in the kernel by system call and function of the user's own
/// code. `ticks`: ticks of the clock in total, and ticks in the kernel.
fn entries(profile: &Profile, contexts: &Contexts, (all, kernel): (u64, u64)) -> Vec<Entry> {
    let function = |id: FrameId| Some(function_name(profile, profile.frames.get(id.0 as usize)?));
    // By system call and function, samples by frame and stack.
    type Places = BTreeMap<(Option<FrameId>, StackId), u64>;
    let mut by_function: BTreeMap<(Option<&str>, Option<String>), Places> = BTreeMap::new();
    for sample in &profile.kernel_samples {
        let frame = place::own(profile, contexts, sample.stack);
        let places = by_function.entry((sample.call.as_deref(), frame.and_then(function))).or_default();
        *places.entry((frame, sample.stack)).or_default() += 1;
    }
    let recorded = profile.kernel_samples.len() as u64;
    // Ticks in total, thinned in the proportion of kernel ticks.
    let ticks = (all as f64 * recorded as f64 / kernel.max(1) as f64).round() as u64;
    let entry = |((call, _), places): ((Option<&str>, Option<String>), Places)| {
        let n = places.values().sum();
        let ((frame, stack), _) = places.into_iter().max_by_key(|(_, n)| *n)?;
        let share = Estimate { n, ..share_of(n, ticks.max(recorded)) };
        Some(Entry { call: call.map(str::to_owned), frame, stack, share })
    };
    let mut entries: Vec<Entry> = by_function.into_iter().filter_map(entry).collect();
    entries.sort_by(|a, b| b.share.value.total_cmp(&a.share.value));
    entries
}

/// For each loop, the share of time in the kernel: kernel samples called
/// from the loop's own code, among kernel samples and the loop's samples.
pub(crate) fn of_loops(profile: &Profile, loops: &mut [Loop]) {
    let Some((_, kernel)) = profile.run.ticks else { return };
    let recorded = profile.kernel_samples.len() as u64;
    if recorded == 0 {
        return;
    }
    let mut counts = vec![0_u64; loops.len()];
    for sample in &profile.kernel_samples {
        let frames = profile.stacks.get(sample.stack.0 as usize).map_or(&[][..], |stack| &stack.frames);
        let mut addresses = frames.iter().filter_map(|id| Some(profile.frames.get(id.0 as usize)?.address));
        let innermost = addresses.find_map(|address| smallest_around(loops, address));
        if let Some(count) = innermost.and_then(|number| counts.get_mut(number)) {
            *count += 1;
        }
    }
    for (of, count) in loops.iter_mut().zip(counts) {
        let ticks = (count as f64 * kernel as f64 / recorded as f64).round() as u64;
        of.kernel = (of.samples + ticks > 0).then(|| share_of(ticks, of.samples + ticks));
    }
}

/// A share of ticks of the clock, with Wilson's interval.
fn share_of(part: u64, all: u64) -> Estimate {
    let n = all.max(1) as f64;
    let value = part as f64 / n;
    let (low, high) = wilson(value, n);
    Estimate { value, low, high, n: all }
}
