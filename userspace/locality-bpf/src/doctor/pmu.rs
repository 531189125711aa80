//! What the machine's performance monitoring unit gives a trace: samples with data addresses, and counts of accesses.
//!
//! What is offered is read by `kernel::sources`; each source of the best choice is then tried for a moment
//! (`address_sample`), and both counters are opened and closed, because virtual machines often show a unit that does not
//! deliver. Not here: using them in a trace.

use std::{io, path::Path};

use super::{Check, address_sample};
use crate::kernel::sources::{
    Cpu, EVENT_SOURCES, Kind, Offer, PeriodUnit, Source, Vendor,
    counters::{self, Encoding, Unit},
    discover,
    open::explain,
};

/// What replaces addresses from the hardware.
const OTHERWISE: &str = "accesses are found by stopping the thread (zero-skid stop) and by decoding";
/// What replaces counts from the hardware.
const WITHOUT_COUNTS: &str = "accesses per CPU time are estimated from samples, with an interval";
const ON_THE_HOST: &str = "qemu-system-x86_64 -cpu host,pmu=on …";

pub(super) fn checks() -> Vec<Check> {
    let (devices, cpu) = (Path::new(EVENT_SOURCES), Cpu::own());
    let offer = discover(devices, &cpu);
    let tried = best(&offer).iter().map(|source| (source.kind, try_one(source))).collect();
    let counted = counters::encoding(&cpu).map(|encoding| (encoding, count(encoding, devices)));
    vec![judge_addresses(&offer, tried, &cpu), judge_counters(counted, &cpu)]
}

/// The best choice that carries addresses; empty if none does.
fn best(offer: &Offer) -> &[Source] {
    offer.choices.iter().find(|choice| choice.iter().all(|source| source.address)).map_or(&[], |found| found)
}

fn try_one(source: &Source) -> io::Result<usize> {
    let period = match source.period_unit {
        PeriodUnit::Ops | PeriodUnit::Cycles => 0x4000,
        _ => 1000,
    };
    address_sample::try_for_a_moment(source, period)
}

/// Opens both counters for this thread. On hybrid processors those of the large cores.
fn count(encoding: &Encoding, devices: &Path) -> io::Result<()> {
    let hybrid = std::fs::read_to_string(devices.join("cpu_core/type"));
    let type_ = hybrid.ok().and_then(|text| text.trim().parse().ok());
    counters::open(encoding, type_.unwrap_or(counters::RAW), 0, -1).map(drop)
}

/// Each source that was tried, with its samples that had an address of the memory that was walked meanwhile.
type Tried = Vec<(Kind, io::Result<usize>)>;

fn judge_addresses(offer: &Offer, tried: Tried, cpu: &Cpu) -> Check {
    let good = !tried.is_empty() && tried.iter().all(|(_, result)| matches!(result, Ok(1..)));
    let of_one = |(kind, result): &(Kind, io::Result<usize>)| match result {
        Ok(0) => format!("{kind}: no sample with an address came in a test"),
        Ok(samples) => format!("{kind}: {samples} samples with an address in a test"),
        Err(error) => format!("{kind}: refused: {}", explain(error)),
    };
    let absent = offer.absent.iter().map(|absent| format!("{}: {}", absent.kind, absent.why));
    let mut found: Vec<String> = tried.iter().map(of_one).chain(absent).collect();
    if found.is_empty() {
        found.push("no PMU".to_owned());
    }
    let check = Check::ok("pmu", "PMU", found.join("; "));
    if good {
        return check;
    }
    if offer.absent.iter().any(|absent| absent.kind == Kind::ArmSpe) {
        return check.degraded("this program is for x86-64 only");
    }
    // What is offered but refused is not the host's doing, unless it says that it cannot sample.
    match (tried.is_empty() && cpu.is_virtual, cpu.vendor) {
        (true, Vendor::Amd) => check.degraded(format!(
            "{OTHERWISE}; most hosts do not hand IBS to virtual machines: trace on the host to have it"
        )),
        (true, _) => {
            check.degraded(format!("{OTHERWISE}; a virtual machine's host may offer a PMU")).mend(ON_THE_HOST)
        }
        (false, _) => check.degraded(OTHERWISE),
    }
}

/// `counted`: how this processor counts, if the table knows, and whether both counters opened.
fn judge_counters(counted: Option<(&Encoding, io::Result<()>)>, cpu: &Cpu) -> Check {
    let check = |found| Check::ok("access_counters", "access counters", found);
    match counted {
        None => check("this processor's counters of loads and stores are not known here".to_owned())
            .degraded(WITHOUT_COUNTS),
        Some((encoding, Ok(()))) => {
            let found = check(format!("{}: both open", encoding.name));
            match encoding.unit {
                Unit::Instructions | Unit::Uops => found,
                Unit::DispatchedOps => {
                    found.degraded("they count at dispatch, so work that was thrown away is counted too")
                }
            }
        }
        Some((encoding, Err(error))) => {
            let refused = check(format!("{}: {}", encoding.name, explain(&error))).degraded(WITHOUT_COUNTS);
            let no_unit =
                matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP));
            if cpu.is_virtual && no_unit { refused.mend(ON_THE_HOST) } else { refused }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};
    use crate::kernel::sources::Absent;

    const REAL: Cpu = Cpu { vendor: Vendor::Intel, family: 6, model: 0x55, is_virtual: false };
    const VIRTUAL: Cpu = Cpu { is_virtual: true, ..REAL };
    const AMD: Cpu = Cpu { vendor: Vendor::Amd, family: 0x19, model: 1, is_virtual: true };

    fn without(kind: Kind) -> Offer {
        Offer {
            choices: vec![vec![Source::clock()]],
            absent: vec![Absent { kind, why: "the machine shows no PMU".to_owned() }],
        }
    }

    fn pair(loads: io::Result<usize>, stores: io::Result<usize>) -> Tried {
        vec![(Kind::PebsLoads, loads), (Kind::PebsStores, stores)]
    }

    #[test]
    fn the_clock_is_no_source_of_addresses() {
        assert_eq!(best(&without(Kind::PebsLoads)), []);
        let ibs = Source { kind: Kind::IbsOp, address: true, ..Source::clock() };
        let offer = Offer { choices: vec![vec![ibs.clone()], vec![Source::clock()]], absent: vec![] };
        assert_eq!(best(&offer), [ibs]);
    }

    #[test]
    fn a_unit_that_does_not_deliver_is_not_called_good() {
        let judge = |tried| judge_addresses(&Offer::default(), tried, &REAL);
        let good = judge(pair(Ok(12), Ok(3)));
        assert_eq!((good.state, good.consequence), (State::Ok, None));
        assert!(good.found.contains("loads: 12 samples") && good.found.contains("stores: 3 samples"));
        let refused = || Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        for tried in
            [pair(Ok(12), Ok(0)), pair(Ok(0), Ok(3)), pair(refused(), Ok(3)), pair(Ok(3), refused()), vec![]]
        {
            let check = judge(tried);
            assert_eq!(check.state, State::Degraded);
            assert!(check.consequence.unwrap().contains("zero-skid stop"));
        }
        let forbidden = vec![(Kind::IbsOp, Err(io::Error::from_raw_os_error(libc::EACCES)))];
        assert!(judge(forbidden).found.contains("perf_event_paranoid"));
    }

    #[test]
    fn what_is_missing_is_told_with_what_mends_it() {
        let check = judge_addresses(&without(Kind::PebsLoads), vec![], &VIRTUAL);
        assert_eq!(check.found, "Intel PEBS loads: the machine shows no PMU");
        assert_eq!((check.state, check.mend.as_deref()), (State::Degraded, Some(ON_THE_HOST)));
        assert_eq!(judge_addresses(&without(Kind::PebsLoads), vec![], &REAL).mend, None);
        let ibs = judge_addresses(&without(Kind::IbsOp), vec![], &AMD);
        assert!(ibs.mend.is_none() && ibs.consequence.unwrap().contains("on the host"));
        let arm = judge_addresses(&without(Kind::ArmSpe), vec![], &Cpu { vendor: Vendor::Other, ..REAL });
        assert!(arm.consequence.unwrap().contains("x86-64 only"));
    }

    #[test]
    fn counters_are_judged_by_what_they_count() {
        let (intel, amd) = (counters::encoding(&REAL).unwrap(), counters::encoding(&AMD).unwrap());
        let open = |encoding| judge_counters(Some((encoding, Ok(()))), &REAL);
        assert_eq!(open(intel).state, State::Ok);
        assert!(open(amd).consequence.unwrap().contains("dispatch"));
        let error = |number| Some((intel, Err(io::Error::from_raw_os_error(number))));
        let missing = judge_counters(error(libc::ENOENT), &VIRTUAL);
        assert_eq!((missing.state, missing.mend.as_deref()), (State::Degraded, Some(ON_THE_HOST)));
        assert_eq!(judge_counters(error(libc::EACCES), &VIRTUAL).mend, None);
        assert_eq!(judge_counters(error(libc::ENOENT), &REAL).mend, None);
        assert_eq!(judge_counters(None, &REAL).state, State::Degraded);
    }
}
