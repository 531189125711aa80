//! Opens the best choice accepted by a CPU, and reports the reasons of refusals.
//!
//! An open event may still deliver no samples: a few virtual
//! machines accept events and stay silent. `doctor` takes samples as
//! a check; a trace should fall back to the clock without samples.

use std::{fmt, io};

use super::{Absent, Kind, Offer, Source};
use crate::perf::{self, Event};

/// An open source, disabled. Dropping ends it.
#[derive(Debug)]
pub struct Opened {
    /// The source, with the granted precision.
    pub source: Source,
    /// The sampling event; takes the program and the period.
    pub event: Event,
    leader: Option<Event>,
}

impl Opened {
    /// Starts sampling.
    pub fn enable(&self) -> io::Result<()> {
        self.leader.as_ref().unwrap_or(&self.event).enable()
    }

    /// Stops sampling.
    pub fn disable(&self) -> io::Result<()> {
        self.leader.as_ref().unwrap_or(&self.event).disable()
    }

    /// Changes the period, in the source's unit, to the next allowed period.
    pub fn set_period(&self, period: u64) -> io::Result<()> {
        self.event.set_period(self.source.period(period))
    }
}

/// Opens a source for a thread (-1: any) on a CPU (-1: any). After
/// a refusal, tries a lower precision of the instruction, but never
/// 0: a PEBS event without precision is a counter without address.
pub fn open(source: &Source, tid: i32, cpu: i32, period: u64) -> io::Result<Opened> {
    open_with(source, tid, cpu, period, 0)
}

/// As [`open`], with more fields in a sample: bits of `PERF_SAMPLE_…`.
pub(crate) fn open_with(
    source: &Source,
    tid: i32,
    cpu: i32,
    period: u64,
    sample_type: u64,
) -> io::Result<Opened> {
    let mut source = source.clone();
    let leader = source.leader_attr().map(|mut attr| perf::open(&mut attr, tid, cpu, None)).transpose()?;
    loop {
        let mut attr = source.attr(period);
        attr.sample_type |= sample_type;
        match perf::open(&mut attr, tid, cpu, leader.as_ref()) {
            Ok(event) => return Ok(Opened { source, event, leader }),
            // The event takes less precision, or the processor has less.
            Err(error) if source.precise_ip > 1 && !is_forbidden(&error) => source.precise_ip -= 1,
            Err(error) => return Err(error),
        }
    }
}

fn is_forbidden(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

/// Why a source is not used.
#[derive(Debug)]
pub enum Why {
    /// The machine does not offer the source.
    Absent(String),
    /// The kernel refused the source.
    Refused(io::Error),
}

/// An unused source.
#[derive(Debug)]
pub struct Refusal {
    /// What.
    pub kind: Kind,
    /// Why.
    pub why: Why,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Absent(why) => write!(f, "{}: {why}", self.kind),
            Why::Refused(error) => write!(f, "{}: {}", self.kind, explain(error)),
        }
    }
}

/// The kernel's meaning of an error of `perf_event_open(2)` on a hardware event, with the error.
pub fn explain(error: &io::Error) -> String {
    let meaning = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV) => "the kernel has no such unit",
        Some(libc::EOPNOTSUPP) => "the unit does not sample this, as in many virtual machines",
        Some(libc::EACCES | libc::EPERM) => {
            "needs root, CAP_PERFMON or a lower kernel.perf_event_paranoid (0 for whole CPUs)"
        }
        Some(libc::ENODATA) => "the event that must lead its group is missing",
        Some(libc::EINVAL) => "this kernel or unit does not know one of its settings",
        Some(libc::EBUSY | libc::ENOSPC) => "another tracer holds the unit",
        _ => return error.to_string(),
    };
    format!("{meaning} ({error})")
}

/// Result of [`open_best`].
#[derive(Debug)]
pub struct Best {
    /// The open sources of the best choice; together, the sources sample loads and stores.
    pub opened: Vec<Opened>,
    /// Better sources, with the reasons of refusals.
    pub refused: Vec<Refusal>,
}

/// Opens on one CPU, for all programs there, the best choice with all
/// sources accepted. `period` gives the first period of each source in
/// the source's unit. Fails with all reasons if not even the clock opens.
pub fn open_best(offer: &Offer, cpu: u32, period: impl Fn(&Source) -> u64) -> Result<Best, Vec<Refusal>> {
    let absent = |absent: &Absent| Refusal { kind: absent.kind, why: Why::Absent(absent.why.clone()) };
    let mut refused: Vec<Refusal> = offer.absent.iter().map(absent).collect();
    for choice in offer.choices.iter().filter(|choice| choice.iter().all(|source| source.runs_on(cpu))) {
        let open_one = |source: &Source| {
            open(source, -1, cpu as i32, period(source))
                .map_err(|error| Refusal { kind: source.kind, why: Why::Refused(error) })
        };
        match choice.iter().map(open_one).collect::<Result<Vec<_>, _>>() {
            Ok(opened) => return Ok(Best { opened, refused }),
            Err(refusal) => refused.push(refusal),
        }
    }
    Err(refused)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sources::{Cpu, EVENT_SOURCES, EventConfig, discover};

    /// A source of a type that no kernel has.
    fn nowhere(kind: Kind) -> Source {
        let event = EventConfig { type_: 0xffff, config: [0; 3] };
        Source { kind, event, precise_ip: 2, address: true, ..Source::clock() }
    }

    #[test]
    fn a_refused_choice_is_told_and_the_next_is_tried() {
        let cpu = 0;
        let absent = vec![Absent { kind: Kind::ArmSpe, why: "not here".to_owned() }];
        let elsewhere = Source { cpus: Some(vec![9999]), ..nowhere(Kind::IbsOp) };
        let pebs = vec![Source::clock(), nowhere(Kind::PebsStores)];
        let offer = Offer { choices: vec![vec![elsewhere], pebs, vec![Source::clock()]], absent };
        let refused = match open_best(&offer, cpu, |_| 10_000_000) {
            Ok(best) => {
                assert_eq!(best.opened.len(), 1);
                assert_eq!(best.opened[0].source, Source::clock());
                best.opened[0].set_period(20_000_000).unwrap();
                best.opened[0].enable().unwrap();
                best.opened[0].disable().unwrap();
                best.refused
            }
            // Without rights even the clock of a CPU is refused.
            Err(mut refused) => {
                let last = refused.pop().unwrap();
                assert_eq!(last.kind, Kind::Clock);
                assert!(matches!(&last.why, Why::Refused(error) if is_forbidden(error)), "{last}");
                refused
            }
        };
        // Without rights the first source of the pair is refused, with them the second.
        assert_eq!(refused.len(), 2, "{refused:?}");
        assert_eq!(refused[0].to_string(), "Arm SPE: not here");
        assert!(matches!(refused[1].kind, Kind::PebsStores | Kind::Clock), "{}", refused[1]);
    }

    #[test]
    fn this_machine_takes_its_best_source_and_says_why_no_better() {
        let offer = discover(Path::new(EVENT_SOURCES), &Cpu::own());
        let (kinds, refused) = match open_best(&offer, 0, |_| 10_000_000) {
            Ok(best) => (best.opened.iter().map(|opened| opened.source.kind).collect(), best.refused),
            Err(refused) => (Vec::new(), refused),
        };
        assert!(kinds != [Kind::PebsLoads] && kinds != [Kind::PebsStores], "one-sided: {kinds:?}");
        let vendor = Cpu::own().vendor;
        let known = matches!(vendor, crate::sources::Vendor::Intel | crate::sources::Vendor::Amd);
        if known && kinds == [Kind::Clock] {
            assert!(!refused.is_empty(), "the clock needs a reason");
        }
    }

    #[test]
    fn errors_are_explained_with_the_kernels_words() {
        for number in [libc::ENOENT, libc::EOPNOTSUPP, libc::EACCES, libc::ENODATA, libc::EINVAL, libc::EBUSY]
        {
            let error = io::Error::from_raw_os_error(number);
            let text = explain(&error);
            assert!(text.ends_with(&format!("({error})")) && text.len() > error.to_string().len() + 2);
        }
        let other = io::Error::from_raw_os_error(libc::EMFILE);
        assert_eq!(explain(&other), other.to_string());
    }
}
