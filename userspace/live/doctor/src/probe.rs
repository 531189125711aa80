//! Tries the kernel features of a trace: the eBPF object, the clock, debug registers, a stop.
//!
//! Debug registers are counted by opening watchpoints that stay disabled: the
//! kernel reserves a register when the event is opened and loads the register
//! when the event is enabled (`register_perf_hw_breakpoint` reserves:
//! <https://github.com/torvalds/linux/blob/v6.12/kernel/events/hw_breakpoint.c>),
//! so that no thread notices.

use std::{io, time::Duration};

use anyhow::{Context as _, Result};
use locality_common::{config::KernelOffsets, counter};

use super::{Check, count, stop_test};
use locality_kernel::machine;
use locality_kernel::{
    object::{Filter, Object, Ring},
    perf::Event,
    sources::{
        Source,
        open::{Opened, open},
    },
    sys,
};

/// Debug registers of an x86 thread.
pub(super) const DEBUG_REGISTERS: usize = 4;

/// A user address never watched by an enabled event: the last page below 2^47.
const UNTOUCHED: u64 = 0x7fff_ffff_e000;

/// `offsets`: offsets of the kernel's fields; without offsets the object is not loaded.
pub(super) fn checks(offsets: Option<&KernelOffsets>) -> Vec<Check> {
    let mut loaded = offsets.context("not tried without the kernel's types").and_then(load);
    let heap = offsets.map(heap_probes);
    // The settings of a trace are constants, so each
    // setting makes a separate program for the verifier.
    let others = offsets.filter(|_| loaded.is_ok()).and_then(|offsets| load_others(offsets).err());
    let online = aya::util::online_cpus().unwrap_or_else(|_| vec![0]);
    let object = loaded.as_mut().ok();
    let stop = stop_test::check(object, &online);
    vec![
        object_check(loaded.as_ref().err().or(others.as_ref())),
        heap_check(heap),
        clock_check(loaded.as_ref().ok().map(|(object, _)| object), &online),
        registers_check(free_registers(0)),
        stop,
    ]
}

fn load(offsets: &KernelOffsets) -> Result<(Object, Ring)> {
    let (mut object, ring) = Object::load(&Filter::Processes, offsets)?;
    object.attach_lifecycle()?;
    Ok((object, ring))
}

/// Loads the programs for traces of cgroups and of the machine.
fn load_others(offsets: &KernelOffsets) -> Result<()> {
    for filter in [Filter::Cgroups(Vec::new()), Filter::All] {
        Object::load(&filter, offsets)?.0.attach_lifecycle()?;
    }
    Ok(())
}

/// Loads the programs that follow allocations, and returns their kind.
fn heap_probes(offsets: &KernelOffsets) -> Result<&'static str> {
    let (_, _, heap) = Object::load_with(&Filter::Processes, offsets, true)?;
    Ok(heap.context("not loaded")??.programs.shape())
}

fn heap_check(shape: Option<Result<&'static str>>) -> Check {
    let found = |text: String| Check::ok("heap_probes", "allocation probes", text);
    let refused = "--heap=probes is refused; heap blocks are named by what is inferred from accesses";
    match (shape, machine::harmful_returns()) {
        (None, _) => found("not tried without the kernel's types".to_owned()).degraded(refused),
        (Some(Err(error)), _) => found(format!("{error:#}")).degraded(refused),
        (Some(Ok(shape)), Some(why)) => found(format!("can be linked, {shape}; {why}")).degraded(refused),
        (Some(Ok(shape)), None) => found(format!("can be linked, {shape}")),
    }
}

fn object_check(error: Option<&anyhow::Error>) -> Check {
    let check = Check::ok("ebpf", "eBPF object", "loads and attaches");
    let Some(error) = error else { return check };
    let check = Check { found: format!("{error:#}"), ..check }.missing("nothing can be sampled or watched");
    mend_rights(check, io_error(error))
}

pub(super) fn io_error(error: &anyhow::Error) -> Option<&io::Error> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// For missing rights, names the command that gets rights. Root has no further rights.
pub(super) fn mend_rights(check: Check, error: Option<&io::Error>) -> Check {
    match error.and_then(io::Error::raw_os_error) {
        Some(libc::EPERM | libc::EACCES) if !sys::is_root() => check.mend("sudo locality-bpf doctor"),
        _ => check,
    }
}

/// Opens the clock on every CPU and checks that the clock runs the `sample` program.
fn clock_check(object: Option<&Object>, online: &[u32]) -> Check {
    let check =
        Check::ok("clock", "software clock event", format!("opens on {}", count(online.len(), "CPU")));
    match (open_clocks(object, online), object) {
        (Err(error), _) => {
            let check =
                Check { found: format!("{error:#}"), ..check }.missing("there is nothing to sample with");
            mend_rights(check, io_error(&error))
        }
        (Ok(_), None) => check.unknown("whether it fires was not tried without the eBPF object"),
        (Ok(clocks), Some(object)) => match fires(&clocks, object) {
            Ok(true) => Check { found: format!("fires; opens on {}", count(online.len(), "CPU")), ..check },
            Ok(false) => check.missing("it never fired, so there is nothing to sample with"),
            Err(error) => check.unknown(format!("whether it fires could not be seen: {error:#}")),
        },
    }
}

/// A clock of 1 ms on each CPU, disabled, with the `sample` program.
pub(super) fn open_clocks(object: Option<&Object>, online: &[u32]) -> Result<Vec<Opened>> {
    let mut clocks = Vec::new();
    for cpu in online {
        let clock = open(&Source::clock(), -1, *cpu as i32, 1_000_000)?;
        if let Some(object) = object {
            clock.event.set_program(object.program_fd("sample")?)?;
        }
        clocks.push(clock);
    }
    Ok(clocks)
}

fn fires(clocks: &[Opened], object: &Object) -> Result<bool> {
    let runs = || Ok::<u64, anyhow::Error>(object.counters()?[counter::FILTERED_OTHER as usize]);
    let before = runs()?;
    for clock in clocks {
        clock.enable()?;
    }
    // Idle CPUs do not tick, so the present CPU stays busy.
    let end_ns = sys::monotonic_ns() + Duration::from_millis(100).as_nanos() as u64;
    while sys::monotonic_ns() < end_ns {
        if runs()? > before {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Number of free debug registers in a thread (0: the calling thread).
pub(super) fn free_registers(tid: u32) -> io::Result<usize> {
    let mut reserved = Vec::new();
    while reserved.len() < DEBUG_REGISTERS {
        match Event::watchpoint(tid, UNTOUCHED, 8, None) {
            Ok(event) => reserved.push(event),
            Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(reserved.len())
}

fn registers_check(free: io::Result<usize>) -> Check {
    let found = |text: String| Check::ok("debug_registers", "debug registers", text);
    match free {
        Ok(DEBUG_REGISTERS) => found(format!("{DEBUG_REGISTERS} of {DEBUG_REGISTERS} free")),
        Ok(0) => found(format!("0 of {DEBUG_REGISTERS} free"))
            .missing(
                "no location can be watched; end the tool that holds them on all CPUs, perhaps one of these",
            )
            .mend("ps -C perf,bpftrace,gdb,rr -o pid,args"),
        Ok(free) => found(format!("{free} of {DEBUG_REGISTERS} free"))
            .degraded("fewer locations can be watched at a time, so more samples stay without a reuse"),
        Err(error) => {
            let check = found(format!("refused: {error}")).missing("no location can be watched");
            mend_rights(check, Some(&error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::State, *};

    #[test]
    fn a_refusal_names_the_systems_error_and_sudo_unless_we_are_root() {
        let error =
            anyhow::Error::new(io::Error::from_raw_os_error(libc::EPERM)).context("the kernel refused it");
        let check = object_check(Some(&error));
        assert_eq!(check.state, State::Missing);
        assert!(check.found.starts_with("the kernel refused it: Operation not permitted"), "{}", check.found);
        assert_eq!(check.mend.is_some(), !sys::is_root(), "{:?}", check.mend);
    }

    #[test]
    fn without_the_kernels_types_the_object_is_not_tried() {
        let found = checks(None);
        assert_eq!((found[0].id, found[0].state), ("ebpf", State::Missing));
        assert_eq!(found[0].found, "not tried without the kernel's types");
        assert_eq!((found[1].id, found[1].state), ("heap_probes", State::Degraded));
        assert_eq!((found[2].id, found[2].state == State::Ok), ("clock", false));
    }

    #[test]
    fn registers() {
        assert_eq!(registers_check(Ok(4)).state, State::Ok);
        assert_eq!(registers_check(Ok(1)).state, State::Degraded);
        assert_eq!(registers_check(Ok(0)).state, State::Missing);
        assert_eq!(registers_check(Err(io::Error::from_raw_os_error(libc::EACCES))).state, State::Missing);
    }

    #[test]
    fn reserved_registers_are_missed_and_given_back() {
        let free = match free_registers(0) {
            Ok(free) if free > 0 => free,
            other => {
                locality_kernel::testing::skip(&format!("no free debug register here: {other:?}"));
                return;
            }
        };
        // Reserved for this thread, as another tool would.
        let taken = Event::watchpoint(0, UNTOUCHED, 8, None).unwrap();
        assert_eq!(free_registers(0).unwrap(), free - 1);
        drop(taken);
        assert_eq!(free_registers(0).unwrap(), free);
    }

    #[test]
    fn everything_can_be_tried_by_root_here() {
        if !sys::is_root() {
            locality_kernel::testing::skip("needs root");
            return;
        }
        let offsets = locality_kernel::btf::kernel_offsets().unwrap();
        for check in checks(Some(&offsets)) {
            let may_lack = check.id == "heap_probes" && machine::harmful_returns().is_some();
            assert!(check.state == State::Ok || may_lack, "{check:?}");
        }
    }
}
