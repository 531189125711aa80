//! How fast threads make accesses: brings each window together with the meter's
//! later readings, and keeps the rows of windows until the rate is known.
//!
//! Not here: how a rate follows from readings (`locality_rate`).

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use locality_common::record::{MeterRecord, NOT_COUNTED};
use locality_model::{Rate, SampleId, WatchId, Window};
use locality_rate::{Machine, Moment, Rates, Reading, Sample, SampleRate, Source, Span, WindowView};

use locality_capture::{
    CodeTables, READINGS, SharedCode, Wanted,
    counters::Costs,
    events::{WindowLog, WindowTaken},
    line_fills::SplitStores,
};
use locality_kernel::lock::lock;

use super::governor::UnitCosts;

/// A window without readings by then gets none: the thread sleeps, or the meter was used again.
const PATIENCE_NS: u64 = 500_000_000;

/// Standard deviation of a time between two traps, in costs of one trap.
const CLOCK_ERROR: f64 = 0.25;

/// Accesses per nanosecond of a window of unknown speed, for the price of a watch: those of
/// ordinary code.
const UNKNOWN_RATE: f64 = 1.0;

/// Part of a line's latency that a store across lines adds while a word is watched, because such
/// stores wait for their lines one after another. Measured for random stores on an Intel Xeon
/// (family 6, model 167): .1 of 56 ns in 8 MiB, .27 and .4 of 173 ns in 64 and 256 MiB.
const SERIAL: f64 = 0.4;

/// Number of windows at which every window's rate is sent again for the first time.
const FIRST_NEWS: u32 = 16;

/// A window whose readings are awaited.
#[derive(Debug)]
struct Pending {
    id: u32,
    row: Window,
    pid: u32,
    tid: u32,
    since_ns: u64,
    taken: Box<WindowTaken>,
    readings: Vec<Reading>,
}

/// Two touches of a watched word.
#[derive(Debug)]
struct Touched {
    watch: WatchId,
    sample: SampleId,
    between: Box<[Moment; 2]>,
    cpu_ns: u64,
    /// The same from the stop to the second.
    until_ns: u64,
    /// Accesses after the first that did certainly not touch the word.
    without: u64,
}

/// Complete knowledge at the end.
#[derive(Debug, Default)]
pub struct Known {
    /// Windows by number.
    pub windows: Vec<(u32, Window)>,
    /// Accesses between use and reuse, if registers count them; `None` withdraws an earlier count.
    pub counted: Vec<(WatchId, Option<u64>)>,
}

/// What a process' rates are learnt from.
struct Process {
    rates: Rates,
    /// Touches of watched words in it, in order.
    touched: Vec<Touched>,
    /// The windows observed, in order, with their rows.
    rows: Vec<(u32, Window)>,
    /// Number of the list of words that was handed out last.
    wanted: u32,
}

/// All processes.
pub struct RateTracker {
    reading_cost_ns: f64,
    disarm_cost_ns: u64,
    trap_cost_ns: u64,
    /// Time more for a store across lines while a word is watched.
    split_store_ns: f64,
    machine: Machine,
    costs: Arc<Costs>,
    wanted: Wanted,
    shared: SharedCode,
    /// A copy, because learning may take long and must not delay the capture thread.
    code: CodeTables,
    processes: HashMap<u32, Process>,
    /// Trackers of programs replaced by an exec.
    replaced: Vec<Process>,
    /// By sequence of the sample.
    pending: HashMap<u64, Pending>,
    windows: u32,
    /// Number of windows at which every window's rate is sent again.
    news_at: u32,
    /// What was sent last of accesses between use and reuse.
    counted: HashMap<WatchId, u64>,
}

impl std::fmt::Debug for RateTracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pace").field("windows", &self.windows).finish_non_exhaustive()
    }
}

impl RateTracker {
    /// With the calibrated costs of this machine.
    pub fn new(
        prices: &UnitCosts,
        machine: Machine,
        costs: Arc<Costs>,
        wanted: Wanted,
        code: SharedCode,
    ) -> Self {
        Self {
            reading_cost_ns: prices.meter_ns as f64,
            disarm_cost_ns: prices.disarm_ns,
            trap_cost_ns: prices.trap_ns,
            split_store_ns: prices.split_store_ns(),
            machine,
            costs,
            wanted,
            shared: code,
            code: CodeTables::default(),
            processes: HashMap::new(),
            replaced: Vec::new(),
            pending: HashMap::new(),
            windows: 0,
            news_at: FIRST_NEWS,
            counted: HashMap::new(),
        }
    }

    /// Takes a window in; returns the window's number. Rows known by now are added to `ready`.
    pub fn window(
        &mut self,
        at: (u32, u32),
        sequence: u64,
        time_ns: u64,
        row: Window,
        taken: Box<WindowTaken>,
        ready: &mut Vec<(u32, Window)>,
    ) -> u32 {
        let id = self.windows;
        self.windows += 1;
        let (pid, tid) = at;
        // The thread's meter was used again, and others have waited long enough.
        let over: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| {
                pending.tid == tid || time_ns.saturating_sub(pending.since_ns) > PATIENCE_NS
            })
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in over {
            self.settle(sequence, ready);
        }
        let pending = Pending { id, row, pid, tid, since_ns: time_ns, taken, readings: Vec::new() };
        self.pending.insert(sequence, pending);
        id
    }

    /// The processor.
    pub fn machine(&self) -> Machine {
        self.machine
    }

    /// A window with its code; `None` for an unmetered thread, or after a change of the window
    /// process.
    pub fn view<'a>(&'a mut self, taken: &'a WindowTaken) -> Option<WindowView<'a>> {
        self.follow();
        view(taken, &self.code)
    }

    /// Takes over what was added to the code.
    fn follow(&mut self) {
        let shared = lock(&self.shared);
        self.code.follow(shared.generation, &shared.code());
    }

    /// Takes a reading.
    pub fn reading(&mut self, record: &MeterRecord, ready: &mut Vec<(u32, Window)>) {
        let Some(pending) = self.pending.get_mut(&record.sequence) else { return };
        pending.readings.push(Reading {
            time_ns: record.header.time_ns,
            switches: record.switches,
            accesses: (record.accesses != NOT_COUNTED).then_some(record.accesses),
            ip: record.ip,
            registers: record.registers,
            words: record.words,
            read: record.readable as u8,
            wanted: pending.taken.wanted,
        });
        if pending.readings.len() >= READINGS as usize {
            self.settle(record.sequence, ready);
        }
    }

    /// Takes the two touches of a watched word: CPU time, the time from the stop to the
    /// second touch, and accesses after the first touch that did not touch the word.
    pub fn touched(
        &mut self,
        pid: u32,
        (watch, sample): (WatchId, SampleId),
        between: Box<[Moment; 2]>,
        (cpu_ns, until_ns, without): (u64, u64, u64),
    ) {
        let process =
            self.processes.entry(pid).or_insert_with(|| Process::new(self.reading_cost_ns, self.machine));
        process.touched.push(Touched { watch, sample, between, cpu_ns, until_ns, without });
    }

    /// Another program runs in the process, or another process has the id: earlier knowledge is
    /// void. Rows that are now final are added to `ready`.
    pub fn begin(&mut self, pid: u32, ready: &mut Vec<(u32, Window)>) {
        let mut of_pid: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.pid == pid)
            .map(|(sequence, _)| *sequence)
            .collect();
        of_pid.sort_unstable();
        for sequence in of_pid {
            self.settle(sequence, ready);
        }
        self.replaced.extend(self.processes.remove(&pid));
        lock(&self.wanted).remove(&pid);
    }

    fn settle(&mut self, sequence: u64, ready: &mut Vec<(u32, Window)>) {
        let Some(pending) = self.pending.remove(&sequence) else { return };
        let Pending { id, mut row, pid, tid, taken, mut readings, .. } = pending;
        // Readings of another CPU may stand before earlier readings in the ring.
        readings.sort_by_key(|reading| reading.time_ns);
        // The reading before was the last of the other clock.
        if readings.len() == READINGS as usize
            && let Some(last) = readings.last_mut()
        {
            last.time_ns -= self.disarm_cost_ns.min(last.time_ns);
        }
        self.follow();
        let process =
            self.processes.entry(pid).or_insert_with(|| Process::new(self.reading_cost_ns, self.machine));
        let window = view(&taken, &self.code);
        let rate = process.rates.observe(&Sample { thread: tid, readings: &readings, window });
        row.rate = told(&rate, user_share(&self.costs));
        // Copies go to memory allocated just now, whatever the footprint of the rest.
        let last_ns = self.machine.levels[1].latency / self.machine.clock;
        let far_ns = self.split_store_ns + SERIAL * process.rates.line_latency_ns().max(last_ns);
        let stores_ns = [self.split_store_ns, far_ns];
        note_split_stores(&self.costs, taken.split_stores, stores_ns, row.rate.as_ref());
        process.rows.push((id, row.clone()));
        let words = process.rates.words();
        if words.number != process.wanted {
            process.wanted = words.number;
            let mut wanted = lock(&self.wanted);
            wanted.insert(pid, (words.number, words.addresses));
        }
        ready.push((id, row));
    }

    /// All rows, with the complete knowledge at the end.
    pub fn finish(&mut self) -> Known {
        let mut unused = Vec::new();
        let mut waiting: Vec<u64> = self.pending.keys().copied().collect();
        waiting.sort_unstable();
        for sequence in waiting {
            self.settle(sequence, &mut unused);
        }
        self.known()
    }

    /// The knowledge so far about windows with readings.
    fn known(&mut self) -> Known {
        let share = user_share(&self.costs);
        let mut known = Known::default();
        let mut counted = Vec::new();
        for process in self.replaced.iter().chain(self.processes.values()) {
            let rates = process.rates.rates();
            counted.extend(process.counted(&rates, self.trap_cost_ns as f64));
            known.windows.extend(process.rows.iter().zip(rates).map(|((id, row), rate)| {
                let rate = told(&rate, share);
                (*id, Window { rate, ..row.clone() })
            }));
        }
        let before = std::mem::replace(&mut self.counted, counted.iter().copied().collect());
        let withdrawn = before.into_keys().filter(|watch| !self.counted.contains_key(watch));
        known.counted.extend(withdrawn.map(|watch| (watch, None)));
        known.counted.extend(counted.into_iter().map(|(watch, accesses)| (watch, Some(accesses))));
        known
    }

    /// The knowledge so far, each time that the windows have grown by
    /// half. Each window had only the knowledge of earlier windows; a
    /// reader of the profile meanwhile shall know as much as at the end.
    pub fn news(&mut self) -> Option<Known> {
        let is_due = self.windows >= self.news_at;
        is_due.then(|| {
            self.news_at = self.windows * 3 / 2 + 1;
            self.known()
        })
    }
}

impl Process {
    fn new(reading_cost_ns: f64, machine: Machine) -> Self {
        let rates = Rates::new(reading_cost_ns, machine);
        Self { rates, touched: Vec::new(), rows: Vec::new(), wanted: 0 }
    }

    /// Watches whose accesses between use and reuse registers count.
    fn counted(&self, rates: &[SampleRate], trap_cost_ns: f64) -> Vec<(WatchId, u64)> {
        let counts = self.rates.counts(rates);
        let numbers: HashMap<u32, usize> = self.rows.iter().map(|(_, row)| row.sample.0).zip(0..).collect();
        let count = |touched: &Touched| {
            let Touched { watch, sample, between, cpu_ns, until_ns, without } = touched;
            let [from, to] = **between;
            let sample = *numbers.get(&sample.0)?;
            let (cpu_ns, error_ns) = (*cpu_ns as f64, CLOCK_ERROR * trap_cost_ns);
            let (until_ns, without) = (*until_ns as f64, *without);
            let span = Span { sample, from, to, cpu_ns, error_ns, until_ns, without };
            let accesses = counts.between(&span)?;
            Some((*watch, accesses.value.round() as u64))
        };
        self.touched.iter().filter_map(count).collect()
    }
}

fn view<'a>(taken: &'a WindowTaken, code: &'a CodeTables) -> Option<WindowView<'a>> {
    let WindowLog { events, values, registers, generation } = &taken.log;
    (*generation == code.generation && !events.is_empty()).then(|| WindowView {
        events,
        values,
        registers,
        code: code.code(),
        instructions: taken.counts.instructions,
        accesses: taken.counts.accesses,
    })
}

/// A rate for the profile. A mere bracket is marked, and used by readers for want of a better rate.
/// The timing model does not see CPU time in the kernel, without accesses of the program; readings
/// beside a stop do.
fn told(rate: &SampleRate, user_share: f64) -> Option<Rate> {
    let known = rate.accesses_per_ns?;
    let known = if rate.source == Source::Unknown { known.times(user_share) } else { known };
    Some(Rate { value: known.value, low: known.low, high: known.high, source: rate.source.name().to_owned() })
}

/// Counts by how much a window's stores across lines would lengthen its time while a word is
/// watched; `stores_ns`: time more for a near and a far one.
fn note_split_stores(costs: &Costs, stores: SplitStores, stores_ns: [f64; 2], rate: Option<&Rate>) {
    if stores.accesses == 0 {
        return;
    }
    let more_ns = stores.near as f64 * stores_ns[0] + stores.far as f64 * stores_ns[1];
    let accesses_per_ns = rate.map_or(UNKNOWN_RATE, |rate| rate.value);
    let share = more_ns / stores.accesses as f64 * accesses_per_ns;
    costs.trap.split_stores_ppm.fetch_add((share * 1e6).clamp(0.0, 1e9) as u64, Relaxed);
    costs.trap.store_windows.fetch_add(1, Relaxed);
}

/// Share of the targets' clock ticks in user mode, all processes together.
fn user_share(costs: &Costs) -> f64 {
    let [user, kernel] =
        [costs.told_samples(), costs.sampling.in_kernel.load(Relaxed)].map(|count| count as f64);
    if user > 0.0 { user / (user + kernel) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use locality_common::record::Header;
    use locality_model::SampleId;
    use locality_shadow::{Counts, End};

    use super::*;
    use crate::calibrate::GUESS;
    use locality_capture::window_sampling::Found;

    /// The report tells by these names for how long a rate holds, and how doubtful distances are.
    #[test]
    fn reports_know_the_names_of_modelled_rates() {
        use locality_estimate::access_rates::{MODELLED, UNSCALED};
        assert_eq!([Source::Model.name(), Source::Unknown.name()], [MODELLED, UNSCALED]);
    }

    fn taken() -> Box<WindowTaken> {
        let (counts, found, log) = (Counts::default(), Found::default(), WindowLog::default());
        Box::new(WindowTaken {
            counts,
            end: End::SystemCall,
            gone: false,
            found,
            first: None,
            split_stores: SplitStores::default(),
            log,
            wanted: 0,
        })
    }

    fn row(sample: u32) -> Window {
        let (instructions, accesses, end, touches, rate) = (0, 0, String::new(), Vec::new(), None);
        Window { sample: SampleId(sample), instructions, accesses, end, touches, rate }
    }

    fn reading(tid: u32, sequence: u64, time_ns: u64) -> MeterRecord {
        let header = Header { tid, tgid: 1, time_ns, ..Header::default() };
        let (registers, words) = ([0; 16], [0; 4]);
        MeterRecord {
            header,
            sequence,
            switches: 0,
            accesses: NOT_COUNTED,
            ip: 0,
            registers,
            words,
            readable: 0,
            reserved: 0,
        }
    }

    #[test]
    fn a_window_waits_for_its_readings_or_for_the_next_one_of_its_thread() {
        let mut pace = RateTracker::new(
            &UnitCosts { meter_ns: 5_000, disarm_ns: 0, trap_ns: 0, ..GUESS },
            Machine::default(),
            Arc::default(),
            Wanted::default(),
            SharedCode::default(),
        );
        let mut ready = Vec::new();
        for (tid, sequence) in [(7, 100), (8, 101)] {
            pace.window((1, tid), sequence, 0, row(sequence as u32), taken(), &mut ready);
        }
        for n in 1..u64::from(READINGS) {
            pace.reading(&reading(7, 100, n * 300_000), &mut ready);
            pace.reading(&reading(7, 99, n * 300_000), &mut ready);
        }
        assert!(ready.is_empty());
        pace.reading(&reading(7, 100, 9_000_000), &mut ready);
        assert_eq!(ready.drain(..).map(|(id, row)| (id, row.sample.0)).collect::<Vec<_>>(), [(0, 100)]);
        pace.window((1, 8), 102, 1_000, row(102), taken(), &mut ready);
        assert_eq!(ready.drain(..).map(|(id, _)| id).collect::<Vec<_>>(), [1]);
        pace.window((1, 9), 103, PATIENCE_NS * 2, row(103), taken(), &mut ready);
        assert_eq!(ready.drain(..).map(|(id, _)| id).collect::<Vec<_>>(), [2]);
        // Another program in the process: what waits is settled with what the old one was, and is
        // still there at the end.
        pace.window((1, 7), 104, PATIENCE_NS * 2, row(104), taken(), &mut ready);
        pace.begin(1, &mut ready);
        assert_eq!(ready.drain(..).map(|(id, _)| id).collect::<Vec<_>>(), [3, 4]);
        assert!(pace.processes.is_empty() && pace.replaced.len() == 1);
        pace.window((1, 7), 105, PATIENCE_NS * 2, row(105), taken(), &mut ready);
        let mut ids: Vec<u32> = pace.finish().windows.into_iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
    }

    /// Ten stores of 6 ns more and five of 20 ns in a thousand accesses of a nanosecond each.
    #[test]
    fn stores_across_lines_lengthen_a_window_by_their_prices() {
        let costs = Costs::default();
        let stores = SplitStores { accesses: 1000, near: 10, far: 5 };
        note_split_stores(&costs, stores, [6.0, 20.0], None);
        note_split_stores(&costs, SplitStores::default(), [6.0, 20.0], None);
        let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
        assert_eq!((count(&costs.trap.split_stores_ppm), count(&costs.trap.store_windows)), (160_000, 1));
    }

    #[test]
    fn the_model_is_told_of_time_in_the_kernel() {
        let costs = Costs::default();
        assert_eq!(user_share(&costs), 1.0);
        costs.sampling.samples.store(1, Relaxed);
        costs.sampling.in_kernel.store(3, Relaxed);
        let accesses_per_ns = Some(locality_rate::Estimate { value: 4.0, low: 2.0, high: 8.0 });
        let of = |source| {
            let rate = SampleRate { accesses_per_ns, instructions_per_ns: None, source };
            told(&rate, user_share(&costs)).map(|rate| (rate.low, rate.value, rate.high)).unwrap()
        };
        assert_eq!(of(Source::Unknown), (0.5, 1.0, 2.0));
        assert_eq!(of(Source::Model), (2.0, 4.0, 8.0));
    }
}
