//! Cost of a watch besides its traps, and the withdrawal of watches for it.
//!
//! While a debug register is armed, at whatever address, some machines are slower in three ways.
//! `calibrate` measures all.
//!
//! - Repeated string instructions are carried out element by element: `rep movsb` 36 times slower
//!   (AMD Zen 5), the kernel's copies for a system call and clearing of pages included. Cost = lost
//!   × share × armed: the part lost of the time in a string instruction, the share of string
//!   instructions among the ticks in processes with watched words, and the CPU time of processes
//!   with watched words.
//! - Stores that cross a cache line leave the store buffer slowly: one in 6 ns in place of .6 ns
//!   (Intel Xeon, family 6, model 167), and one that misses the caches waits for its lines alone.
//!   Copies to unaligned places are full of such stores. The recorder counts them in windows, and
//!   knows the windows' speed: more = the share of time by which they lengthen the program. Cost =
//!   more ÷ (1 + more) × armed.
//! - Switches from a thread to another and back write the debug registers, which in a virtual
//!   machine may need the host: 1.2 µs more of 2.1 µs (the same Xeon). more = time more × switches
//!   per CPU time of the sampled threads.
//!
//! Watching may continue until the loss exceeds the part of the budget for armed registers,
//! plus the savings of a few seconds, plus an overdraft. The overdraft is drawn at random, between
//! very little and seconds of the part. Then every watch is withdrawn, and none is armed until the
//! debt is paid. The end is independent of the next touches of the watched words: the watches are
//! censored like replaced watches. Sources of error: one share for every traced process and the
//! whole trace; the loss of `rep movsb` for every string instruction, too much for wider elements;
//! the loss of stores in a row for every store across lines, too much for single stores.

use std::{collections::HashMap, time::Duration};

use locality_common::{counter, rules};

use super::{
    counters::{add, get},
    event_loop::Capture,
};
use locality_kernel::{proc, sys};

/// Least loss that anything is done about.
const LEAST_LOST: f64 = 0.3;

/// Its part of the budget.
const PART: f64 = 0.4;

/// The greatest overdraft, as the CPU time with this
/// allowance, and the most times that the overdraft is halved.
const OVERDRAFT_S: f64 = 2.5;
const HALVINGS: f64 = 6.0;

/// CPU time with an allowance that may be saved: a tick in a
/// string instruction stands for the allowance of several seconds.
const SAVED_S: f64 = 10.0;

/// Assumed at the start: ticks, and ticks in string instructions. Likewise windows, and the share
/// of their time that stores across lines lose.
const BELIEVED: [f64; 2] = [1.0, 0.02];

/// Least time more for a store across lines that anything is done about, in nanoseconds.
const LEAST_STORE_NS: f64 = 0.5;

/// The same for a switch.
const LEAST_SWITCH_NS: u64 = 200;

/// Threads whose switches are followed at a time.
const MOST_THREADS: usize = 4096;

/// A lost share of armed time too small for waking up.
const LITTLE: f64 = 0.01;

/// Shortest and longest sleep while watching costs. The thread sleeps for whole milliseconds:
/// for less the poll would return at once, and the thread would run beside the watched thread.
const SLEEPS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(20)];

/// The account of it. Pure: readings of clocks and counters come in.
#[derive(Debug)]
pub struct ArmedCost {
    /// Lost part of the time in a string instruction while a watch is armed, 0 if small.
    lost: f64,
    /// Whether stores across lines are slower while a watch is armed.
    has_slow_stores: bool,
    /// Time more for a switch to another thread and back while a watch is armed, 0 if small.
    switch_ns: u64,
    /// Share of the targets' CPU time that may be lost.
    allowed: f64,
    /// Processes with watched words, and the CPU time up to which each is counted.
    armed: HashMap<u32, u64>,
    /// CPU time with watched words.
    armed_ns: u64,
    /// Allowance that expired unused.
    forgone_ns: f64,
    /// Cost of waking up for this, and the time of the next wake-up; 0: none.
    wakes_ns: u64,
    due_ns: u64,
    /// Ticks, and ticks in string instructions.
    ticks: [u64; 2],
    /// Windows, and the sum of the shares by which stores across lines lengthen them.
    stores: (u64, f64),
    /// CPU time and switches of each sampled thread, as last read.
    turns: HashMap<u32, [u64; 2]>,
    /// CPU time and switches of sampled threads, from sample to sample.
    switched: [u64; 2],
    /// How far the allowance may be exceeded; absent while nothing may be armed.
    overdraft_ns: Option<f64>,
}

impl ArmedCost {
    /// `budget`: share of the targets' CPU time; `lost`: of the time in a string instruction, while
    /// a watch is armed; `store_ns`, `switch_ns`: time more for a store across lines and for a switch
    /// then.
    pub fn new(budget: f64, lost: f64, (store_ns, switch_ns): (f64, u64)) -> Self {
        let lost = if lost < LEAST_LOST { 0.0 } else { lost };
        Self {
            lost,
            has_slow_stores: store_ns >= LEAST_STORE_NS,
            switch_ns: if switch_ns < LEAST_SWITCH_NS { 0 } else { switch_ns },
            allowed: PART * budget,
            armed: HashMap::new(),
            armed_ns: 0,
            forgone_ns: 0.0,
            wakes_ns: 0,
            due_ns: 0,
            ticks: [0; 2],
            stores: (0, 0.0),
            turns: HashMap::new(),
            switched: [0; 2],
            overdraft_ns: None,
        }
    }

    /// Whether this processor is slower at anything while a word is watched.
    pub fn is_needed(&self) -> bool {
        self.lost > 0.0 || self.has_slow_stores || self.switch_ns > 0
    }

    /// Shares of CPU time with watched words that string instructions, stores across lines and
    /// switches lose; `believed` as in [`BELIEVED`].
    fn lost_shares(&self, believed: f64) -> [f64; 3] {
        let [ticks, strings] = self.ticks.map(|n| n as f64);
        let (windows, stores) = self.stores;
        let by_strings = self.lost * (strings + believed) / (ticks + BELIEVED[0]);
        let by_stores = match self.has_slow_stores {
            true => (stores + believed) / (windows as f64 + BELIEVED[0]),
            false => 0.0,
        };
        let [cpu_ns, switches] = self.switched.map(|n| n as f64);
        let by_switches = switches * self.switch_ns as f64 / cpu_ns.max(1.0);
        // Of time that is longer by the loss.
        let longer = 1.0 + by_stores + by_switches;
        [by_strings, by_stores / longer, by_switches / longer]
    }

    /// Share of CPU time with watched words that is lost.
    fn lost_share(&self, believed: f64) -> f64 {
        self.lost_shares(believed).iter().sum()
    }

    /// Share of CPU time with watched words that is lost, as assumed for the next watch.
    fn rate(&self) -> f64 {
        self.lost_share(BELIEVED[1])
    }

    /// CPU time that the targets lost.
    pub fn cost_ns(&self) -> u64 {
        // A share believed without a tick or window is no cost yet.
        (self.lost_share(0.0) * self.armed_ns as f64) as u64 + self.wakes_ns
    }

    /// The allowed loss from now on, after `cpu_ns` of CPU time in total.
    fn left_ns(&self, cpu_ns: u64) -> f64 {
        let lost_ns = self.rate() * self.armed_ns as f64 + self.wakes_ns as f64;
        self.allowed * cpu_ns as f64 - lost_ns - self.forgone_ns
    }

    /// A sampled thread has had so much CPU time and so many switches.
    fn switched(&mut self, tid: u32, now: [u64; 2]) {
        if self.turns.len() >= MOST_THREADS {
            self.turns.clear();
        }
        let before = self.turns.insert(tid, now).unwrap_or(now);
        // A number smaller than before is another thread's.
        if let [Some(cpu_ns), Some(switches)] = [0, 1].map(|n| now[n].checked_sub(before[n])) {
            self.switched[0] += cpu_ns;
            self.switched[1] += switches;
        }
    }

    /// The first word of a process is watched, or time has
    /// passed since; at the process's CPU time `cpu_ns`.
    fn armed(&mut self, tgid: u32, cpu_ns: u64) {
        let until_ns = self.armed.entry(tgid).or_insert(cpu_ns);
        self.armed_ns += cpu_ns.saturating_sub(*until_ns);
        *until_ns = cpu_ns;
    }

    /// No word of a process is watched any more.
    fn disarmed(&mut self, tgid: u32, cpu_ns: u64) {
        if let Some(until_ns) = self.armed.remove(&tgid) {
            self.armed_ns += cpu_ns.saturating_sub(until_ns);
        }
    }

    /// Whether a word may be watched, with `cpu_ns` CPU time in all; `random`: in 0..1.
    fn may_arm(&mut self, cpu_ns: u64, random: f64) -> bool {
        let [most_ns, saved_ns] = [OVERDRAFT_S, SAVED_S].map(|seconds| self.allowed * seconds * 1e9);
        self.forgone_ns += (self.left_ns(cpu_ns) - saved_ns).max(0.0);
        let left_ns = self.left_ns(cpu_ns);
        self.overdraft_ns = match self.overdraft_ns {
            Some(overdraft_ns) => Some(overdraft_ns).filter(|overdraft_ns| left_ns + overdraft_ns > 0.0),
            None => (left_ns >= 0.0).then(|| most_ns * (-HALVINGS * random).exp2()),
        };
        self.overdraft_ns.is_some()
    }

    /// Time until one thread has lost the allowed loss, in whole milliseconds.
    fn patience(&self, cpu_ns: u64) -> Option<Duration> {
        let rate = self.rate();
        (rate > LITTLE && !self.armed.is_empty()).then(|| {
            let left_ns = self.left_ns(cpu_ns) + self.overdraft_ns.unwrap_or(0.0);
            whole(Duration::from_nanos((left_ns.max(0.0) / rate) as u64))
        })
    }
}

/// A sleep of about so long.
fn whole(sleep: Duration) -> Duration {
    let [shortest, longest] = SLEEPS;
    Duration::from_millis(sleep.as_millis() as u64).clamp(shortest, longest)
}

impl Capture {
    /// Notes how often a sampled thread lost its processor.
    pub(super) fn note_switches(&mut self, tid: u32) {
        if self.armed_cost.switch_ns > 0
            && let Some(turns) = proc::turns(tid)
        {
            self.armed_cost.switched(tid, turns);
        }
    }

    /// Notes that a word of a process is watched.
    pub(super) fn note_armed(&mut self, tgid: u32) {
        if self.armed_cost.is_needed()
            && !self.armed_cost.armed.contains_key(&tgid)
            && let Ok(cpu_ns) = sys::process_cpu_ns(tgid)
        {
            self.armed_cost.armed(tgid, cpu_ns);
        }
    }

    /// Records that a process has had no watched word since `since_ns`.
    pub(super) fn note_disarmed(&mut self, tgid: u32, since_ns: u64) {
        if self.armed_cost.is_needed() {
            // Of an ended process, the last counted value stands.
            let cpu_ns = sys::process_cpu_ns(tgid).unwrap_or(0);
            // A trap is read a while after the end of the watch;
            // later CPU time of the threads does not count.
            let process = self.tracees.processes.get(&tgid);
            let threads = process.map_or(1, |process| process.threads.len()).clamp(1, self.processors) as u64;
            let since_ns = sys::monotonic_ns().saturating_sub(since_ns);
            self.armed_cost.disarmed(tgid, cpu_ns.saturating_sub(threads * since_ns));
            self.publish_armed_cost();
        }
    }

    /// For the governor.
    fn publish_armed_cost(&self) {
        let (trap, relaxed) = (&self.costs.trap, std::sync::atomic::Ordering::Relaxed);
        trap.string_ns.store(self.armed_cost.cost_ns(), relaxed);
        for (share, published) in self.armed_cost.lost_shares(0.0).into_iter().zip(&trap.armed_lost_ppm) {
            published.store((share * 1e6) as u64, relaxed);
        }
    }

    /// Whether slower instructions leave room for a watch.
    pub(super) fn may_slow(&mut self) -> bool {
        if !self.armed_cost.is_needed() {
            return true;
        }
        let (cpu_ns, random) = (get(&self.costs.cpu.target_cpu_ns), self.random.f64());
        self.armed_cost.may_arm(cpu_ns, random)
    }

    /// Keeps the account, and withdraws every watch when they have cost too much. Returns how long
    /// the thread may sleep.
    pub(super) fn update_armed_cost(&mut self) -> Option<Duration> {
        let due_ns = std::mem::take(&mut self.armed_cost.due_ns);
        if !self.armed_cost.is_needed() || self.armed_cost.armed.is_empty() {
            return None;
        }
        let now_ns = sys::monotonic_ns();
        let before_ns = self.armed_cost.armed_ns;
        let armed: Vec<u32> = self.armed_cost.armed.keys().copied().collect();
        for tgid in &armed {
            if let Ok(cpu_ns) = sys::process_cpu_ns(*tgid) {
                self.armed_cost.armed(*tgid, cpu_ns);
            }
        }
        let has_run = self.armed_cost.armed_ns > before_ns;
        if due_ns != 0 && now_ns >= due_ns && has_run {
            self.armed_cost.wakes_ns += self.settings.tick_cost_ns;
        }
        self.armed_cost.ticks = [counter::ARMED_TICKS, counter::ARMED_STRING_TICKS].map(|index| {
            let now = self.kernel.counter(index).unwrap_or(0);
            now.saturating_sub(self.before[index as usize])
        });
        let windows = get(&self.costs.trap.store_windows);
        self.armed_cost.stores = (windows, get(&self.costs.trap.split_stores_ppm) as f64 / 1e6);
        self.publish_armed_cost();
        let cost = &self.armed_cost;
        tracing::trace!(
            ticks = ?cost.ticks,
            stores = ?cost.stores,
            switched = ?cost.switched,
            armed_ns = cost.armed_ns,
            cost_ns = cost.cost_ns(),
            overdraft_ns = ?cost.overdraft_ns,
            "armed registers"
        );
        let (cpu_ns, random) = (get(&self.costs.cpu.target_cpu_ns), self.random.f64());
        if !self.armed_cost.may_arm(cpu_ns, random) {
            armed.iter().for_each(|tgid| self.withdraw(*tgid));
        }
        let patience = self.armed_cost.patience(cpu_ns)?;
        armed.iter().for_each(|tgid| self.end_waiting(*tgid));
        // A process that does not run is not slowed.
        let patience = if has_run { patience.min(self.until_waited(now_ns)) } else { SLEEPS[1] };
        self.armed_cost.due_ns = now_ns + patience.as_nanos() as u64;
        Some(patience)
    }

    /// Ends every watch of a process as replaced.
    fn withdraw(&mut self, tgid: u32) {
        let ids: Vec<u64> = self
            .tracees
            .processes
            .get(&tgid)
            .into_iter()
            .flat_map(|process| process.watched.values().copied())
            .collect();
        for id in ids {
            let is_cut = self.watches.get_mut(id).is_some_and(|watch| {
                watch.follows.is_none() && !watch.measures_trap && watch.reused.is_none()
            });
            add(&self.costs.trap.withdrawn, u64::from(is_cut));
            self.end_unseen(id, sys::monotonic_ns());
        }
        // Also if the last watch ended with the thread.
        self.note_disarmed(tgid, sys::monotonic_ns());
    }

    /// Forgets every watch: no thread is traced from now on.
    pub(super) fn end_armed_cost(&mut self) {
        self.armed_cost.armed.clear();
    }

    /// How long until a watch has waited long enough for a touch after its reuse.
    fn until_waited(&mut self, now_ns: u64) -> Duration {
        let waits = self.watches.iter_mut().filter_map(|watch| {
            let (reuse, _) = watch.reused.as_ref()?;
            Some((reuse.trap.record.header.time_ns + rules::NEAR_NS).saturating_sub(now_ns))
        });
        waits.min().map_or(SLEEPS[1], |ns| whole(Duration::from_nanos(ns)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Watches all the time that it may for so long; returns the shares of CPU time that were lost
    /// and watched.
    fn follow(share: f64, lost: f64, seconds: u64) -> (f64, f64) {
        let mut random = fastrand::Rng::with_seed(5);
        let mut strings = ArmedCost::new(0.01, lost, (0.0, 0));
        let (mut told_ns, mut left) = (0, [0.0; 2]);
        for ms in 0..seconds * 1000 {
            let cpu_ns = ms * MS;
            if ms % 100 == 0 {
                told_ns = cpu_ns;
            }
            match strings.may_arm(told_ns, random.f64()) {
                true => strings.armed(1, cpu_ns),
                false => strings.disarmed(1, cpu_ns),
            }
            if ms % 20 == 0 && strings.armed.contains_key(&1) {
                left[0] += 1.0;
                left[1] += share;
                strings.ticks = left.map(|n: f64| n as u64);
            }
        }
        let all_ns = (seconds * 1000 * MS) as f64;
        (share * lost * strings.armed_ns as f64 / all_ns, strings.armed_ns as f64 / all_ns)
    }

    #[test]
    fn what_string_instructions_lose_stays_within_its_part_of_the_budget() {
        for share in [0.9, 0.3, 0.05] {
            let (lost, watched) = follow(share, 0.97, 60);
            assert!((0.0015..0.0055).contains(&lost), "{share}: {lost} of {watched}");
        }
    }

    #[test]
    fn who_copies_little_is_watched_all_the_time() {
        let (_, watched) = follow(0.002, 0.97, 60);
        assert!(watched > 0.9, "{watched}");
        assert!(
            !ArmedCost::new(0.01, 0.1, (0.1, 100)).is_needed(),
            "no account is kept where little is lost"
        );
    }

    /// A program takes twice as long if a word is watched.
    #[test]
    fn what_stores_across_lines_lose_stays_within_its_part_of_the_budget() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut cost = ArmedCost::new(0.01, 0.0, (6.0, 0));
        assert!(cost.is_needed());
        let until_ms = 60_000;
        for ms in 0..until_ms {
            let cpu_ns = ms * MS;
            match cost.may_arm(cpu_ns, random.f64()) {
                true => cost.armed(1, cpu_ns),
                false => cost.disarmed(1, cpu_ns),
            }
            let windows = ms / 100;
            cost.stores = (windows, windows as f64);
        }
        let lost = 0.5 * cost.armed_ns as f64 / (until_ms * MS) as f64;
        assert!((0.0015..0.0055).contains(&lost), "{lost}");
        assert!((cost.lost_share(0.0) - 0.5).abs() < 0.01, "{}", cost.lost_share(0.0));
    }

    #[test]
    fn a_program_without_stores_across_lines_is_watched_all_the_time() {
        let mut cost = ArmedCost::new(0.01, 0.0, (6.0, 0));
        cost.stores = (1000, 0.1);
        assert!(cost.rate() < 0.0008, "{}", cost.rate());
        assert_eq!(ArmedCost::new(0.01, 0.0, (6.0, 0)).cost_ns(), 0);
    }

    #[test]
    fn overdrafts_are_of_many_lengths() {
        let overdraft_ns = |random| {
            let mut strings = ArmedCost::new(0.01, 0.97, (0.0, 0));
            assert!(strings.may_arm(0, random));
            strings.overdraft_ns.unwrap()
        };
        assert_eq!(overdraft_ns(0.0), 10e6);
        assert!((overdraft_ns(1.0) - 10e6 / 64.0).abs() < 1.0);
    }

    /// 10,000 switches a second of CPU time, 2 µs more for each: 2 % of the time.
    #[test]
    fn switches_of_sampled_threads_count() {
        let mut cost = ArmedCost::new(0.01, 0.0, (0.0, 2_000));
        for second in 1..4 {
            cost.switched(1, [second * 1_000_000_000, second * 10_000]);
        }
        // Its number was given to another thread.
        cost.switched(1, [5, 1]);
        assert_eq!(cost.switched, [2_000_000_000, 20_000]);
        assert!((cost.lost_share(0.0) - 0.02 / 1.02).abs() < 1e-6, "{}", cost.lost_share(0.0));
    }

    /// Sleep is as long as the rest lasts.
    #[test]
    fn the_capture_thread_wakes_when_the_rest_is_used_up() {
        let mut strings = ArmedCost::new(0.01, 0.97, (0.0, 0));
        assert!(strings.may_arm(0, 0.0));
        assert_eq!(strings.patience(0), None, "nothing is armed");
        strings.armed(1, 0);
        strings.ticks = [98, 98];
        // 10 ms may be lost, .95 of each.
        let patience = strings.patience(0).unwrap();
        assert!((10_000..11_500).contains(&patience.as_micros()), "{patience:?}");
        strings.armed(1, 9 * MS);
        assert!(strings.patience(0).unwrap() < Duration::from_millis(2));
        strings.armed(1, 12 * MS);
        assert!(!strings.may_arm(0, 0.0));
        assert_eq!(strings.patience(0).unwrap(), SLEEPS[0]);
    }
}
