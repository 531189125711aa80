//! A live trace of a program that is known in full: a clock, stops, windows, the real arbiter and
//! watchpoints, written down as the tracer writes them.
//!
//! Not simulated: the cost of stops and traps (but for what it adds to measured distances), other
//! threads, the kernel's touches.

use locality_arbiter::{Arbiter, Policy, WatchKey};
use locality_model::{
    Access, AccessKind, Frame, FrameId, Module, ModuleId, Outcome, Profile, Rate, Run, Sample, SampleId,
    Seen, Sources, Stack, StackId, Thread, ThreadId, Touch, Use, UseId, Watch, Window,
};

use crate::trace::{Level, NEVER, Trace};

/// How a program is sampled.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub samples: usize,
    /// Lengths of windows in accesses and how many of so many samples get them: the first is dealt first.
    pub windows: Vec<(u64, u32)>,
    /// Uses of a window.
    pub uses: u32,
    /// Uses lie this far from the stop at most (and within the first half of the window).
    pub spread: u64,
    /// Use of registers that are free at the stop, besides one for one use.
    pub fill: Fill,
    pub policy: Policy,
    /// Without windows: the use lies up to so many accesses beyond the stop.
    pub skip: u64,
    /// Log standard deviation of the rate's error; none: no rate at all.
    pub rate_error: Option<f64>,
    /// Cost of a trap, which measured distances are off by up to: uniform in 0..trap_ns.
    pub trap_ns: u64,
    /// Whether the profile says so.
    pub told: bool,
}

/// What free registers are used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Nothing.
    Nothing,
    /// Further open uses of the window.
    Uses,
    /// Other words of the use's line, if the line is open.
    Words,
    /// Uses at every other stop, words at the rest.
    Both,
}

struct Armed {
    key: WatchKey,
    row: usize,
    /// Access that traps.
    traps: u32,
    used: usize,
}

/// Traces once.
pub fn profile(trace: &Trace, recipe: &Recipe, seed: u64) -> Profile {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut sim = Simulation {
        trace,
        recipe,
        random: random.fork(),
        arbiter: Arbiter::new(recipe.policy, 4, random.u64(..)),
        profile: empty(trace),
        armed: Vec::new(),
    };
    let period = trace.end_ns() / recipe.samples as f64;
    for sample in 0..recipe.samples {
        let now = (sample as f64 + random.f64()) * period;
        let at = trace.at(now);
        sim.trapped_until(at);
        if at + 1 < trace.len() {
            sim.stop(now, at, period, sample);
        }
    }
    sim.finish()
}

struct Simulation<'a> {
    trace: &'a Trace,
    recipe: &'a Recipe,
    random: fastrand::Rng,
    arbiter: Arbiter,
    profile: Profile,
    armed: Vec<Armed>,
}

impl Simulation<'_> {
    fn stop(&mut self, now: f64, at: usize, period: f64, number: usize) {
        let skip = if self.recipe.skip == 0 { 0 } else { self.random.u64(..self.recipe.skip) };
        let at_use = (at + skip as usize).min(self.trace.len() - 1);
        let sample = SampleId(self.profile.samples.len() as u32);
        self.profile.samples.push(Sample {
            time_ns: now as u64,
            thread: ThreadId(0),
            stack: StackId(u32::from(self.trace.place[at_use])),
            period_ns: period as u64,
            held: true,
            access: Ok(self.access(at_use)),
            group: None,
        });
        let rate = self.recipe.rate_error.map(|error| self.rate(now, at, period, error));
        let Some(length) = self.length(number) else {
            if rate.is_some() {
                self.window(sample, 0, at, rate);
            }
            let word = self.word(at_use);
            let key = self.profile.watches.len() as u64;
            self.offer(sample, None, at_use, &[word], 1.0, key, now);
            return;
        };
        self.window(sample, length, at, rate);
        let end = (at + length as usize).min(self.trace.len());
        let spread = self.recipe.spread.min(length / 2).max(1);
        let mut open = Vec::new();
        for _ in 0..self.recipe.uses {
            let skip = self.random.u64(..spread);
            let index = at + skip as usize;
            if index >= end {
                continue;
            }
            let address = self.word(index);
            let seen = |level: &Level| {
                let next = level.next(index, self.trace.address[index], address);
                if (next as usize) < end {
                    let access = self.access(next as usize);
                    let stack = StackId(u32::from(self.trace.place[next as usize]));
                    Seen::Reused { distance: u64::from(next) - index as u64, access, stack }
                } else {
                    Seen::Open { accesses: (end - 1 - index) as u64 }
                }
            };
            let seen = vec![(8, seen(&self.trace.words)), (64, seen(&self.trace.lines))];
            let id = self.profile.uses.len() as u32;
            if matches!(seen[0].1, Seen::Open { .. }) {
                open.push((id, index, address, matches!(seen[1].1, Seen::Open { .. })));
            }
            self.profile.uses.push(Use {
                sample,
                skip,
                access: self.access(index),
                address,
                stack: StackId(u32::from(self.trace.place[index])),
                seen,
            });
        }
        if open.is_empty() {
            return;
        }
        let free = self.arbiter.owned() - self.arbiter.granted();
        self.random.shuffle(&mut open);
        let words = match self.recipe.fill {
            Fill::Words => true,
            Fill::Both => number % 2 == 1,
            _ => false,
        };
        let several = !words && self.recipe.fill != Fill::Nothing;
        let n = if several { free.clamp(1, open.len()) } else { 1 };
        let p_choice = n as f64 / open.len() as f64;
        for &(id, index, address, line_open) in open.iter().take(n) {
            let mut watched = vec![address];
            if words && line_open {
                let own = address / 8 * 8;
                // The same place in other objects of 32 and 16 bytes.
                let others = [32, 16, 48].map(|flip| own ^ flip);
                watched.extend(others.into_iter().take(free.saturating_sub(1)));
            }
            let key = self.profile.watches.len() as u64;
            self.offer(sample, Some(UseId(id)), index, &watched, p_choice, key, now);
        }
    }

    /// Offers the watches of one use, its own word last, to make it the newest.
    #[expect(clippy::too_many_arguments, reason = "one call site each, all of them facts of one stop")]
    fn offer(
        &mut self,
        sample: SampleId,
        of_use: Option<UseId>,
        index: usize,
        words: &[u64],
        p_choice: f64,
        first_key: u64,
        now: f64,
    ) {
        for (at, word) in words.iter().enumerate().rev() {
            let key = WatchKey(first_key + at as u64 + ((index as u64) << 24));
            let decision = self.arbiter.offer(key);
            if let Some(evicted) = decision.evict
                && let Some(place) = self.armed.iter().position(|armed| armed.key == evicted.id)
            {
                let armed = self.armed.remove(place);
                self.end(&armed, Outcome::Replaced, evicted.p_survive, now);
            }
            if !decision.arm {
                continue;
            }
            let traps = if at == 0 {
                self.trace.words.next(index, self.trace.address[index], *word)
            } else {
                self.next_touch_of(index, *word)
            };
            self.armed.push(Armed { key, row: self.profile.watches.len(), traps, used: index });
            let used = self.trace.start[index];
            self.profile.watches.push(Watch {
                sample,
                of_use,
                address: word / 8 * 8,
                bytes: 8,
                armed_ns: now as u64,
                ended_ns: 0,
                use_touch: Some(self.touch(index, used)),
                use_confirmed: true,
                outcome: Outcome::StillArmed,
                p_arm: decision.p_arm * p_choice,
                p_survive: 1.0,
                threads_armed: 1,
                threads_alive: 1,
            });
        }
    }

    /// Follows the touches of the line until one is of the word.
    fn next_touch_of(&self, index: usize, word: u64) -> u32 {
        let mut at = index;
        let mut address = self.trace.address[index].max(word / 64 * 64);
        loop {
            let next = self.trace.lines.next(at, self.trace.address[at], address);
            if next == NEVER {
                return NEVER;
            }
            at = next as usize;
            let (first, size) = (self.trace.address[at], u64::from(self.trace.size[at]));
            if (first / 8..=(first + size - 1) / 8).contains(&(word / 8)) {
                return next;
            }
            address = first.max(word / 64 * 64);
        }
    }

    fn trapped_until(&mut self, at: usize) {
        while let Some(place) = self.armed.iter().position(|armed| (armed.traps as usize) < at) {
            let armed = self.armed.remove(place);
            let p_survive = self.arbiter.ended(armed.key).unwrap_or(1.0);
            let index = armed.traps as usize;
            let ns = self.trace.start[index];
            let noise = self.random.u64(..=self.recipe.trap_ns);
            let distance_ns = (ns - self.trace.start[armed.used]) as u64 + noise;
            let touch = self.touch(index, ns);
            self.end(&armed, Outcome::Reused { touch, distance_ns, accesses: None }, p_survive, ns);
        }
    }

    fn end(&mut self, armed: &Armed, outcome: Outcome, p_survive: f64, ns: f64) {
        let watch = &mut self.profile.watches[armed.row];
        watch.outcome = outcome;
        watch.p_survive = p_survive;
        watch.ended_ns = ns as u64;
    }

    fn finish(mut self) -> Profile {
        self.profile.run.distance_resolution_ns = if self.recipe.told { self.recipe.trap_ns } else { 0 };
        self.trapped_until(self.trace.len());
        let end = self.trace.end_ns();
        for ended in self.arbiter.drain() {
            if let Some(place) = self.armed.iter().position(|armed| armed.key == ended.id) {
                let armed = self.armed.remove(place);
                self.end(&armed, Outcome::Gone, ended.p_survive, end);
            }
        }
        self.profile
    }

    /// Lengths of windows, dealt in turn to spread all lengths over the run.
    fn length(&self, number: usize) -> Option<u64> {
        let all: u32 = self.recipe.windows.iter().map(|window| window.1).sum();
        let mut turn = (number * 7919) as u32 % all.max(1);
        self.recipe.windows.iter().find_map(|(length, share)| {
            let mine = turn < *share;
            turn = turn.saturating_sub(*share);
            (mine && *length > 0).then_some(*length)
        })
    }

    fn window(&mut self, sample: SampleId, length: u64, at: usize, rate: Option<Rate>) {
        let end = (at + length as usize).min(self.trace.len());
        let touches = [&self.trace.words, &self.trace.lines];
        self.profile.windows.push(Window {
            sample,
            instructions: 2 * (end - at) as u64,
            accesses: (end - at) as u64,
            end: "whole".to_owned(),
            touches: touches.map(|level| (level.bytes as u32, level.touches_between(at, end))).to_vec(),
            rate,
        });
    }

    /// Looks back over a quarter of a period.
    fn rate(&mut self, now: f64, at: usize, period: f64, error: f64) -> Rate {
        let from = (now - period / 4.0).max(0.0);
        let first = self.trace.at(from);
        let truth = (at - first).max(1) as f64 / (now - from).max(1.0);
        let normal = (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0;
        let value = truth * (error * normal).exp();
        let half = (1.96 * error).exp();
        Rate { value, low: value / half, high: value * half, source: "simulated".to_owned() }
    }

    fn access(&self, index: usize) -> Access {
        let (address, size) = (self.trace.address[index], u32::from(self.trace.size[index]));
        Access { ip: u64::from(self.trace.place[index]), address, size, kind: AccessKind::Load }
    }

    /// A random word of an access; its first byte that is the access's.
    fn word(&mut self, index: usize) -> u64 {
        let (first, size) = (self.trace.address[index], u64::from(self.trace.size[index]));
        let word = self.random.u64(first / 8..=(first + size - 1) / 8);
        (8 * word).max(first)
    }

    fn touch(&self, index: usize, ns: f64) -> Touch {
        let stack = StackId(u32::from(self.trace.place[index]));
        Touch { time_ns: ns as u64, thread: ThreadId(0), stack, kind: AccessKind::Load, kernel: false }
    }
}

/// A profile of nothing yet, with a frame and a stack for each place.
fn empty(trace: &Trace) -> Profile {
    let end = trace.end_ns() as u64;
    let frame = |place: u32| Frame {
        address: u64::from(place),
        module: Some(ModuleId(0)),
        module_address: Some(u64::from(place)),
        function: Some("kernel".to_owned()),
        file: Some("kernel.c".to_owned()),
        line: Some(place + 1),
        ..Frame::default()
    };
    Profile {
        run: Run {
            wall_ns: end,
            cpu_ns: end,
            sources: Sources { clock: "simulated".to_owned(), ..Sources::default() },
            ended_by: "last target ended".to_owned(),
            ..Run::default()
        },
        threads: vec![Thread { pid: 1, tid: 1, ended_ns: Some(end), ..Thread::default() }],
        modules: vec![Module { path: "kernel".to_owned(), build_id: String::new() }],
        frames: (0..256).map(frame).collect(),
        stacks: (0..256).map(|place| Stack { frames: vec![FrameId(place)], cut: None }).collect(),
        ..Profile::default()
    }
}
