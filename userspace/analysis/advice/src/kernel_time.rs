//! Time in the kernel, and what page faults have of it.

use locality_estimate::interval_estimate::Estimate;
use locality_model::{AccessKind, Profile};

use crate::{Advice, Kind, View, loops::estimate, words};

/// Two-sided 95 % of the normal distribution.
const Z: f64 = 1.959_964;
/// Share of the time in the kernel from which faults account for it, and how much of it then.
const MOSTLY: f64 = 0.6;
const ALL: f64 = 0.95;
/// Share of the time from which page faults are something to change.
const MUCH: f64 = 0.03;

/// Time of the targets in the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KernelTime {
    /// Share of the CPU time.
    pub share: Estimate,
    /// Page faults, and the share of the CPU time that they took.
    pub faults: Option<(u64, Estimate)>,
}

impl KernelTime {
    /// Of a profile; `None` where it does not know.
    pub fn of(profile: &Profile) -> Option<Self> {
        let (all, kernel) = profile.run.ticks?;
        let share = wilson(kernel, all);
        let faults = profile.run.page_faults.zip(profile.run.processor).filter(|_| profile.run.cpu_ns > 0);
        let faults = faults.map(|(faults, processor)| {
            let of_time = faults as f64 * processor.page_fault_ns / profile.run.cpu_ns as f64;
            // A fault of this program may cost half or twice what one costs alone, and passes in
            // the kernel. Where faults have most of that time, what is left is mostly the way back
            // of the same pages.
            let mostly = of_time > MOSTLY * share.value;
            let share = Estimate {
                value: if mostly { share.value * ALL } else { of_time.min(share.value) },
                low: (of_time / 2.0).min(share.low),
                high: if mostly { share.high } else { (of_time * 2.0).min(share.high) },
                n: all,
            };
            (faults, share)
        });
        Some(Self { share, faults })
    }

    /// What to do about page faults, where they take much of the time.
    pub(crate) fn advice(&self, view: &View<'_>) -> Option<Advice> {
        let (count, share) = self.faults?;
        if share.low < MUCH {
            return None;
        }
        // The pages are new where the most pages are stored to for the first time.
        let pages = |access: &crate::Access, speed: f64| {
            let is_store = access.kind == AccessKind::Store;
            if is_store { access.pages * access.per_iteration * speed } else { 0.0 }
        };
        let of = view.loops.iter().enumerate().filter_map(|(number, of)| {
            let speed = of.speed?.0.value;
            let access = of.accesses.iter().max_by(|a, b| pages(a, speed).total_cmp(&pages(b, speed)))?;
            let pages = pages(access, speed);
            (pages > 0.0).then_some((number, access, pages))
        });
        let (number, access, _) = of.max_by(|a, b| a.2.total_cmp(&b.2))?;
        let place = view.loops.get(number).map_or((None, None), |of| (of.frame, of.line));
        let name = view.name(access);
        let seconds = view.profile.run.wall_ns as f64 / 1e9;
        let faster = |share: f64| 1.0 / (1.0 - share.clamp(0.0, 0.95));
        Some(Advice {
            kind: Kind::KeepBuffer,
            title: format!(
                "Use the memory of {name} again, which {} fills, in place of new pages each time: page \
                 faults take {} of the time",
                view.at(number),
                words::percent(share.value)
            ),
            place,
            other: None,
            object: access.object,
            speedup: estimate(faster(share.value), &mut [faster(share.low), faster(share.high)], share.n),
            misses: None,
            evidence: vec![format!(
                "{:.0} page faults a second; {} of the CPU time passes in the kernel.",
                count as f64 / seconds.max(1e-9),
                words::percent(self.share.value)
            )],
            in_the_way: vec![
                "Where the allocator returns the memory to the system, MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ of glibc \
                 do the same without a change of code."
                    .to_owned(),
            ],
            n: share.n,
        })
    }
}

/// Wilson's interval of a share (Wilson 1927, JASA 22(158)).
fn wilson(part: u64, all: u64) -> Estimate {
    let n = (all.max(1)) as f64;
    let value = part as f64 / n;
    let middle = (value + Z * Z / (2.0 * n)) / (1.0 + Z * Z / n);
    let half = Z / (1.0 + Z * Z / n) * (value * (1.0 - value) / n + Z * Z / (4.0 * n * n)).sqrt();
    Estimate {
        value,
        low: (middle - half).max(0.0).min(value),
        high: (middle + half).min(1.0).max(value),
        n: all,
    }
}
