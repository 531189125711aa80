//! What the machine's performance monitoring unit gives a trace: samples with data addresses, and
//! counts of accesses.
//!
//! What is offered is read by `kernel::sources`; each source of the best choice is then tried for a
//! moment (`kernel::sources::trial`), and so are both counters, because virtual machines often show
//! a unit that does not deliver. A trace looks the same way (`kernel::sources::select`).

use std::{io, path::Path};

use super::Check;
use locality_kernel::sources::{
    Cpu, EVENT_SOURCES, Kind, Offer, Source, Vendor,
    counters::{Counting, NotCounted, Unit},
    discover,
    open::explain,
    trial,
};

/// What replaces addresses from the hardware.
const OTHERWISE: &str = "accesses are found by stopping the thread (zero-skid stop) and by decoding";
/// What replaces counts from the hardware.
const WITHOUT_COUNTS: &str = "accesses per CPU time are estimated from samples, with an interval";
const BY_THE_HOST: &str = "only the owner of the host can offer a PMU (QEMU: -cpu host,pmu=on)";

pub(super) fn checks() -> Vec<Check> {
    let (devices, cpu) = (Path::new(EVENT_SOURCES), Cpu::own());
    let offer = discover(devices, &cpu);
    let tried = best(&offer).iter().map(|source| (source.kind, trial::samples_of(source))).collect();
    vec![judge_addresses(&offer, tried, &cpu), judge_counters(Counting::find(devices, &cpu), &cpu)]
}

/// The best choice that carries addresses; empty if none does.
fn best(offer: &Offer) -> &[Source] {
    offer.choices.iter().find(|choice| choice.iter().all(|source| source.address)).map_or(&[], |found| found)
}

/// Each tried source, with its samples at addresses of the memory walked meanwhile.
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
    // A refused offer is not the host's doing, unless the reason is that it cannot sample.
    match (tried.is_empty() && cpu.is_virtual, cpu.vendor) {
        (true, Vendor::Amd) => check.degraded(format!(
            "{OTHERWISE}; most hosts do not hand IBS to virtual machines: trace on the host to have it"
        )),
        (true, _) => check.degraded(format!("{OTHERWISE}; {BY_THE_HOST}")),
        (false, _) => check.degraded(OTHERWISE),
    }
}

fn judge_counters(found: Result<Counting, NotCounted>, cpu: &Cpu) -> Check {
    let check = |found| Check::ok("access_counters", "access counters", found);
    match found {
        Ok(counting) => {
            let found = check(format!("{}: both count", counting.encoding.name));
            match counting.encoding.unit {
                Unit::Instructions | Unit::Uops => found,
                Unit::DispatchedOps => {
                    found.degraded("they count at dispatch, so work that was thrown away is counted too")
                }
            }
        }
        Err(why) => {
            let no_unit = matches!(&why, NotCounted::Refused(_, error)
                if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP)));
            let reason = match cpu.is_virtual && no_unit {
                true => format!("{WITHOUT_COUNTS}; {BY_THE_HOST}"),
                false => WITHOUT_COUNTS.to_owned(),
            };
            check(why.to_string()).degraded(reason)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};
    use locality_kernel::sources::{
        Absent,
        counters::{Encoding, RAW, encoding},
    };

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
        assert_eq!((check.state, &check.mend), (State::Degraded, &None));
        assert!(check.consequence.unwrap().contains(BY_THE_HOST));
        let real = judge_addresses(&without(Kind::PebsLoads), vec![], &REAL);
        assert!(!real.consequence.unwrap().contains(BY_THE_HOST));
        let ibs = judge_addresses(&without(Kind::IbsOp), vec![], &AMD);
        assert!(ibs.mend.is_none() && ibs.consequence.unwrap().contains("on the host"));
        let arm = judge_addresses(&without(Kind::ArmSpe), vec![], &Cpu { vendor: Vendor::Other, ..REAL });
        assert!(arm.consequence.unwrap().contains("x86-64 only"));
    }

    #[test]
    fn counters_are_judged_by_what_they_count() {
        let (intel, amd) = (encoding(&REAL).unwrap(), encoding(&AMD).unwrap());
        let open =
            |encoding: &Encoding| judge_counters(Ok(Counting { encoding: *encoding, type_: RAW }), &REAL);
        assert_eq!(open(intel).state, State::Ok);
        assert!(open(amd).consequence.unwrap().contains("dispatch"));
        let error = |number| Err(NotCounted::Refused(intel.name, io::Error::from_raw_os_error(number)));
        let missing = judge_counters(error(libc::ENOENT), &VIRTUAL);
        assert_eq!((missing.state, &missing.mend), (State::Degraded, &None));
        assert!(missing.consequence.unwrap().contains(BY_THE_HOST));
        let of_host = |found, cpu| judge_counters(found, cpu).consequence.unwrap().contains(BY_THE_HOST);
        assert!(!of_host(error(libc::EACCES), &VIRTUAL));
        assert!(!of_host(error(libc::ENOENT), &REAL));
        for why in [NotCounted::Unknown, NotCounted::Hybrid(intel.name), NotCounted::Silent(intel.name)] {
            let check = judge_counters(Err(why), &VIRTUAL);
            assert_eq!((check.state, check.mend), (State::Degraded, None));
        }
    }
}
