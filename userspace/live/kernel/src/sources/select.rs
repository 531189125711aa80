//! The source of a trace's samples: the requested one, else the best that passes a trial.
//!
//! Fit for a trace is what counts every access, or every operation, at one rate: each sample then
//! stands for as many accesses as its period says. Load latency does not: it times loads that the
//! processor picks, and how many it passes over is not known. Not here: reading what the machine
//! offers (the module above), opening it ([`super::open`]).

use std::{fmt, io};

use clap::ValueEnum;

use super::{Kind, Offer, PeriodUnit, Source, open::explain};

/// What starts samples, as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum SampleSource {
    /// The best that the machine has: pebs, ibs, clock.
    #[default]
    Auto,
    /// The clock of each CPU.
    Clock,
    /// Intel's PEBS: loads and stores with their addresses.
    Pebs,
    /// AMD's IBS: operations with the addresses of their data.
    Ibs,
}

/// What starts the samples of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selected {
    /// Hardware events, each for its CPUs. A CPU without an event has the clock.
    hardware: Vec<Source>,
    /// Why not what would be better, a sentence each.
    pub refused: Vec<String>,
}

impl Selected {
    /// The events of a CPU.
    pub fn on(&self, cpu: u32) -> Vec<Source> {
        let here: Vec<Source> = self.hardware.iter().filter(|source| source.runs_on(cpu)).cloned().collect();
        if here.is_empty() { vec![Source::clock()] } else { here }
    }

    /// The hardware that samples accesses; `None` for the clock.
    pub fn hardware(&self) -> Option<&'static str> {
        self.hardware.first().map(|source| name(source.kind))
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::PebsLoads | Kind::PebsStores => "Intel PEBS",
        Kind::IbsOp => "AMD IBS",
        Kind::ArmSpe => "Arm SPE",
        Kind::Clock => "clock",
    }
}

/// The requested source is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    asked: &'static str,
    why: Vec<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, why } = self;
        let why = if why.is_empty() { "this processor has none".to_owned() } else { why.join("; ") };
        write!(
            f,
            "--source {asked} cannot be had here: {why}; without --source the best that is here is taken"
        )
    }
}

impl std::error::Error for Refused {}

/// Selects. `samples` takes some for a moment with a source and says how many had an address: some
/// virtual machines open an event that stays silent.
pub fn select(
    offer: &Offer,
    asked: SampleSource,
    samples: impl Fn(&Source) -> io::Result<usize>,
) -> Result<Selected, Refused> {
    let wanted = |kind| match asked {
        SampleSource::Auto => kind != Kind::Clock,
        SampleSource::Clock => false,
        SampleSource::Pebs => matches!(kind, Kind::PebsLoads | Kind::PebsStores),
        SampleSource::Ibs => kind == Kind::IbsOp,
    };
    let absent = offer.absent.iter().map(|absent| format!("{}: {}", absent.kind, absent.why));
    let mut refused: Vec<String> = absent.collect();
    for choice in &offer.choices {
        if !choice.iter().all(|source| wanted(source.kind)) {
            continue;
        }
        match choice.iter().try_for_each(|source| prove(source, &samples)) {
            Ok(()) => return Ok(Selected { hardware: choice.clone(), refused }),
            Err(why) => refused.push(why),
        }
    }
    match asked {
        SampleSource::Auto => Ok(Selected { hardware: Vec::new(), refused }),
        SampleSource::Clock => Ok(Selected::default()),
        SampleSource::Pebs => Err(Refused { asked: "pebs", why: refused }),
        SampleSource::Ibs => Err(Refused { asked: "ibs", why: refused }),
    }
}

fn prove(source: &Source, samples: impl Fn(&Source) -> io::Result<usize>) -> Result<(), String> {
    let counts_all = matches!(source.period_unit, PeriodUnit::Loads | PeriodUnit::Stores | PeriodUnit::Ops);
    let why = if counts_all {
        match samples(source) {
            Ok(1..) => return Ok(()),
            Ok(0) => "it opens but brings no samples".to_owned(),
            Err(error) => explain(&error),
        }
    } else {
        "its period does not count accesses".to_owned()
    };
    Err(format!("{} of {}: {why}", source.kind, source.device))
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Cpu, fixtures::*},
        *,
    };

    fn errno(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    /// What is opened on a CPU: device and configuration.
    fn on(selected: &Selected, cpu: u32) -> Vec<(String, u64)> {
        selected.on(cpu).into_iter().map(|source| (source.device, source.event.config[0])).collect()
    }

    fn events(device: &str, configs: &[u64]) -> Vec<(String, u64)> {
        configs.iter().map(|config| (device.to_owned(), *config)).collect()
    }

    const GOOD: fn(&Source) -> io::Result<usize> = |_| Ok(5);

    #[test]
    fn the_best_that_proves_itself_is_taken() {
        let auto =
            |files: &[(&str, &str)], cpu: Cpu| select(&offer(files, &cpu), SampleSource::Auto, GOOD).unwrap();
        let skylake = auto(&SKYLAKE, intel(0x55));
        assert_eq!(on(&skylake, 3), events("cpu", &[0x81d0, 0x82d0]));
        assert_eq!((skylake.hardware(), skylake.refused.len()), (Some("Intel PEBS"), 0));
        let zen = auto(&ZEN_4, AMD);
        assert_eq!((on(&zen, 0), zen.hardware()), (events("ibs_op", &[1 << 19]), Some("AMD IBS")));
        // Small cores' loads are picked, so these cores have the clock.
        let hybrid = auto(&ALDER_LAKE, intel(0x97));
        assert_eq!(on(&hybrid, 15), events("cpu_core", &[0x81d0, 0x82d0]));
        assert_eq!(on(&hybrid, 16), events("software", &[0]));
    }

    #[test]
    fn what_does_not_deliver_leaves_the_clock_and_says_why() {
        let offer = offer(&SKYLAKE, &intel(0x55));
        let with = |samples: &dyn Fn(&Source) -> io::Result<usize>| {
            select(&offer, SampleSource::Auto, samples).unwrap()
        };
        let picked = "Intel PEBS loads of cpu: its period does not count accesses";
        let silent = with(&|source| Ok(usize::from(source.kind == Kind::PebsLoads)));
        assert_eq!((on(&silent, 0), silent.hardware()), (events("software", &[0]), None));
        assert_eq!(silent.refused, ["Intel PEBS stores of cpu: it opens but brings no samples", picked]);
        let virtual_machine = with(&|_| Err(errno(libc::EOPNOTSUPP)));
        assert!(virtual_machine.refused[0].contains("as in many virtual machines"), "{virtual_machine:?}");
        let paranoid = with(&|_| Err(errno(libc::EACCES)));
        assert!(paranoid.refused[0].contains("kernel.perf_event_paranoid"), "{paranoid:?}");
        assert_eq!(paranoid.hardware(), None);
    }

    #[test]
    fn what_was_asked_for_is_had_or_refused_in_one_sentence() {
        let none = offer(&NO_PMU, &intel(0xcf));
        let asked = |offer: &Offer, source| select(offer, source, GOOD);
        assert_eq!(asked(&none, SampleSource::Auto).unwrap().hardware(), None);
        assert_eq!(
            asked(&none, SampleSource::Pebs).unwrap_err().to_string(),
            "--source pebs cannot be had here: Intel PEBS loads: the machine shows no PMU; without --source the best that is \
             here is taken"
        );
        let skylake = offer(&SKYLAKE, &intel(0x55));
        assert_eq!(asked(&skylake, SampleSource::Pebs).unwrap().hardware(), Some("Intel PEBS"));
        assert_eq!(
            asked(&skylake, SampleSource::Ibs).unwrap_err().to_string(),
            "--source ibs cannot be had here: this processor has none; without --source the best that is here is taken"
        );
        let zen = offer(&ZEN_3[..3], &AMD);
        let cycles = asked(&zen, SampleSource::Ibs).unwrap_err().to_string();
        assert!(cycles.contains("AMD IBS of ibs_op: its period does not count accesses"), "{cycles}");
        // The clock needs no trial.
        let clock = select(&skylake, SampleSource::Clock, |_| panic!("tried")).unwrap();
        assert_eq!(clock, Selected::default());
        assert_eq!(on(&clock, 0), events("software", &[0]));
    }
}
