//! Work of a stop besides arming: the shadow window, and
//! the meter that shows the thread's speed afterwards.

use locality_common::record::{Meter, MeterRecord, SampleRecord};
use locality_shadow::ThreadState;

use super::{
    counters::add,
    event_loop::Capture,
    events::{Event, WindowTaken},
    ptrace_stops::{ArmOutcome, registers},
    windows::{Taken, Windows},
};
use locality_kernel::{perf::Event as PerfEvent, ptrace};

/// CPU time between readings of the faster clock: at random, to fall into step with no
/// loop, and evenly on a logarithmic scale, because fast loops are followed through
/// short intervals and slow counters seen to move in long intervals. After the
/// shortest, the thread has refilled the caches and our work beside the thread is over:
/// until half a millisecond after a stop threads were seen to run at .6 of their speed.
const PERIODS_NS: (f64, f64) = (400_000.0, 1_200_000.0);

/// The two clocks of a meter: period in fifths of the drawn period, and
/// readings. Together the clocks read after 5, 7, 10, 14 and 15 fifths,
/// with different intervals; each clock's last reading disarms the clock.
const CLOCKS: [(u64, u32); METER_CLOCKS] = [(5, 3), (7, 2)];

/// Clocks of a meter.
pub const METER_CLOCKS: usize = 2;

/// Readings after each stop.
pub const READINGS: u32 = CLOCKS[0].1 + CLOCKS[1].1;

/// Share of the longest stop that the window may take.
const SHARE_OF_STOP: u64 = 2;

/// Time that arming and resuming take.
const RESERVE_NS: u64 = 150_000;

impl Capture {
    /// Takes the window of a stopped thread, if time allows.
    pub(super) fn take_window<'a>(
        &mut self,
        windows: &'a mut Windows,
        tid: u32,
        record: &SampleRecord,
        regs: &libc::user_regs_struct,
    ) -> Option<Taken<'a>> {
        let Some(left_ns) = self.left_of_stop(record).checked_sub(RESERVE_NS) else {
            add(&self.costs.window.windows_late, 1);
            return None;
        };
        let time_ns = left_ns.min(self.settings.max_stop_ns / SHARE_OF_STOP);
        let mut state =
            ThreadState { registers: registers(regs), extended: std::mem::take(&mut self.extended_state) };
        let read = ptrace::extended_state(tid, windows.extended_bytes, &mut state.extended);
        let taken = match &read {
            Ok(()) => windows.take(record.header.tgid, &state, regs, time_ns),
            Err(error) => {
                tracing::debug!("vector registers of thread {tid}: {error}");
                None
            }
        };
        add(&self.costs.window.windows_unread, u64::from(read.is_err()));
        add(&self.costs.window.windows_without_mappings, u64::from(read.is_ok() && taken.is_none()));
        self.extended_state = state.extended;
        add(&self.costs.window.windows, u64::from(taken.is_some()));
        taken
    }

    /// The chance of being chosen among the uses that stayed open is known only after the window
    /// was read whole.
    pub(super) fn weigh_choice(&mut self, window: &WindowTaken, armed: &ArmOutcome) {
        let open = window.found.uses.iter().filter(|of_use| of_use.is_open()).count().max(1);
        let ArmOutcome::Armed(id, Some(_), companions) = armed else { return };
        for id in std::iter::once(id).chain(companions) {
            if let Some(watch) = self.watches.get_mut(*id) {
                watch.p_arm /= open as f64;
            }
        }
    }

    /// Has the stopped thread report progress a few times;
    /// returns the number of the list of words to read.
    pub(super) fn start_meter(
        &mut self,
        tid: u32,
        record: &SampleRecord,
        starter: Option<&PerfEvent>,
    ) -> Option<u32> {
        // The lock's owner may be without a CPU: rather no words than a waiting thread.
        let wanted = self.settings.wanted.try_lock().ok();
        let (number, words) =
            wanted.and_then(|wanted| wanted.get(&record.header.tgid).copied()).unwrap_or_default();
        let started = self.try_start_meter(tid, &Meter { sequence: record.sequence, words }, starter);
        if let Err(error) = &started {
            tracing::debug!("no meter in thread {tid}: {error:#}");
        }
        started.ok().map(|()| number)
    }

    fn try_start_meter(
        &mut self,
        tid: u32,
        meter: &Meter,
        starter: Option<&PerfEvent>,
    ) -> anyhow::Result<()> {
        self.kernel.set_meter(tid, meter)?;
        let Some(thread) = self.tracees.threads.get_mut(&tid) else { return Ok(()) };
        // Opened at the thread's first stop, before the watched use.
        if thread.meter[0].is_none() && thread.counted.is_none() {
            thread.counted = self.places.start(&mut self.kernel, tid);
        }
        let (shortest, longest) = PERIODS_NS;
        let drawn_ns = (shortest * (longest / shortest).powf(self.random.f64())) as u64;
        thread.readings = 0;
        for (clock, (fifths, readings)) in thread.meter.iter_mut().zip(CLOCKS) {
            let event = clock.insert(PerfEvent::meter(tid, drawn_ns / 5 * fifths, starter)?);
            event.set_program(self.kernel.program_fd("meter")?)?;
            event.enable_for(readings)?;
        }
        Ok(())
    }

    /// The process has ended or runs another program.
    pub(super) fn forget_windows(&mut self, tgid: u32) {
        if let Some(windows) = &mut self.windows {
            windows.forget(tgid);
        }
        // Knowledge of its words is obsolete; the learning thread learns of an exec by another way.
        if let Ok(mut wanted) = self.settings.wanted.try_lock() {
            wanted.remove(&tgid);
        }
    }

    pub(super) fn on_meter(&mut self, record: Box<MeterRecord>) {
        add(&self.costs.window.meter_ticks, 1);
        if let Some(thread) = self.tracees.threads.get_mut(&record.header.tid) {
            thread.readings += 1;
            let is_last = thread.readings > READINGS - METER_CLOCKS as u32;
            let disarming_ns = if is_last { self.settings.disarm_cost_ns } else { 0 };
            thread.disturbance_ns += self.settings.meter_cost_ns + disarming_ns;
        }
        self.send(Event::Meter(record));
    }
}
