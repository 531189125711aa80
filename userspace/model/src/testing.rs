//! A tiny vocabulary for tests: profiles that read like what happened.

#![expect(clippy::unwrap_used, reason = "a word that cannot be read is a mistake of the test")]

use std::collections::HashMap;

use crate::*;

pub mod halves;
pub mod loops;
pub mod objects;

/// A call path in words, innermost first: "fill demo.c:31 < run demo.c:52 < main demo.c:60". A
/// frame without a colon has no line; a leading "+" marks an inlined one; "@libc.so.6" after the
/// function names a module other than "demo".
pub struct Maker {
    /// What was made so far.
    pub profile: Profile,
    frames: HashMap<String, FrameId>,
    stacks: HashMap<String, StackId>,
}

/// Nanoseconds.
pub const MS: u64 = 1_000_000;
/// Nanoseconds.
pub const US: u64 = 1_000;
/// Every sample stands for 10 ms.
pub const PERIOD_NS: u64 = 10 * MS;

impl Default for Maker {
    fn default() -> Self {
        Self::new()
    }
}

impl Maker {
    /// A run of "demo" with two threads, without samples.
    pub fn new() -> Self {
        let mut profile = Profile::default();
        profile.threads.push(Thread { pid: 100, tid: 100, name: "demo".to_owned(), ..Thread::default() });
        profile.threads.push(Thread { pid: 100, tid: 101, name: "worker".to_owned(), ..Thread::default() });
        profile.run = Run {
            command: "./demo --size 64M".to_owned(),
            pids: vec![100],
            started_unix_ns: 1_700_000_000_000_000_000,
            wall_ns: 10_000 * MS,
            cpu_ns: 9_820 * MS,
            host: Host {
                kernel: "6.18.0".to_owned(),
                cpu: "Example CPU".to_owned(),
                cpus: 2,
                caches: vec![
                    CacheLevel { level: 1, bytes: 32 << 10, ways: 8, line: 64 },
                    CacheLevel { level: 2, bytes: 1 << 20, ways: 16, line: 64 },
                ],
            },
            sources: Sources {
                address: "zero-skid stop".to_owned(),
                rate: None,
                clock: "cpu-clock 100 Hz".to_owned(),
                heap: None,
            },
            ended_by: "duration".to_owned(),
            policy: "quick+reservoir".to_owned(),
            distance_resolution_ns: 10 * US,
            distance_scatter_ns: None,
            user_only: false,
            tool_version: "0.1.0".to_owned(),
            ..Run::default()
        };
        profile.overhead = Overhead {
            budget_percent: 1.0,
            measured_percent: 0.7412,
            stop_ns: 50 * MS,
            trap_ns: 19 * MS,
            bpf_ns: 4 * MS,
            heap_ns: None,
            string_ns: None,
            controller_ns: 90 * MS,
            stops: 964,
            longest_stop_ns: 310 * US,
            max_stop_ns: MS,
        };
        Self { profile, frames: HashMap::new(), stacks: HashMap::new() }
    }

    fn module(&mut self, path: &str) -> ModuleId {
        let known = self.profile.modules.iter().position(|module| module.path == path);
        let index = known.unwrap_or_else(|| {
            self.profile.modules.push(Module { path: path.to_owned(), build_id: String::new() });
            self.profile.modules.len() - 1
        });
        ModuleId(index as u32)
    }

    fn frame(&mut self, text: &str) -> FrameId {
        if let Some(&id) = self.frames.get(text) {
            return id;
        }
        let inlined = text.starts_with('+');
        let (name, place) = text.trim_start_matches('+').split_once(' ').unwrap_or((text, ""));
        let (function, module) = name.split_once('@').unwrap_or((name, "/opt/demo"));
        let source = place.split_once(':');
        let address = 0x1000 + 16 * self.profile.frames.len() as u64;
        let frame = Frame {
            address: 0x5555_0000_0000 + address,
            module: Some(self.module(module)),
            module_address: Some(address),
            function: (function != "?").then(|| function.to_owned()),
            file: source.map(|(file, _)| file.to_owned()),
            line: source.map(|(_, line)| line.parse().unwrap()),
            inlined,
            unknown: source.is_none().then(|| "no debug info".to_owned()),
        };
        let id = FrameId(self.profile.frames.len() as u32);
        self.profile.frames.push(frame);
        self.frames.insert(text.to_owned(), id);
        id
    }

    /// A stack in words.
    pub fn stack(&mut self, text: &str) -> StackId {
        if let Some(&id) = self.stacks.get(text) {
            return id;
        }
        let words = text.split(" < ").map(str::trim).filter(|word| !word.is_empty());
        let frames = words.map(|word| self.frame(word)).collect();
        let id = StackId(self.profile.stacks.len() as u32);
        self.profile.stacks.push(Stack { frames, cut: None });
        self.stacks.insert(text.to_owned(), id);
        id
    }

    /// A touch by thread 0.
    pub fn touch(&mut self, stack: &str, kind: AccessKind) -> Touch {
        Touch { time_ns: 0, thread: ThreadId(0), stack: self.stack(stack), kind, kernel: false }
    }

    /// A sample whose access stores, at the innermost frame of the stack.
    pub fn sample(&mut self, stack: &str, kind: AccessKind) -> SampleId {
        let stack = self.stack(stack);
        let id = SampleId(self.profile.samples.len() as u32);
        let first = self.profile.stacks[stack.0 as usize].frames.first();
        let ip = first.map_or(0, |frame| self.profile.frames[frame.0 as usize].address);
        self.profile.samples.push(Sample {
            time_ns: u64::from(id.0) * PERIOD_NS,
            thread: ThreadId(0),
            stack,
            period_ns: PERIOD_NS,
            held: true,
            access: Ok(Access { ip, address: 0x7000 + 8 * u64::from(id.0), size: 8, kind }),
            group: None,
        });
        id
    }

    /// A watch with a known use; probability 1 everywhere.
    pub fn watch(&mut self, used: &str, outcome: Outcome) -> &mut Watch {
        let sample = self.sample(used, AccessKind::Store);
        let use_touch = Some(self.touch(used, AccessKind::Store));
        self.profile.watches.push(Watch {
            sample,
            of_use: None,
            address: 0x7000,
            bytes: 8,
            armed_ns: 0,
            ended_ns: 0,
            use_touch,
            use_confirmed: true,
            outcome,
            p_arm: 1.0,
            p_survive: 1.0,
            threads_armed: 2,
            threads_alive: 2,
        });
        self.profile.watches.last_mut().unwrap()
    }

    /// A store at `used`, loaded again at `reused`, with CPU time between.
    pub fn reuse(&mut self, used: &str, reused: &str, distance_ns: u64) -> &mut Watch {
        let touch = self.touch(reused, AccessKind::Load);
        self.watch(used, Outcome::Reused { touch, distance_ns, accesses: None })
    }

    /// Sets the ledger to what the rows say, so that it balances.
    pub fn balanced(mut self) -> Profile {
        let profile = &mut self.profile;
        let reused = |watch: &&Watch| matches!(watch.outcome, Outcome::Reused { .. });
        let refused = |watch: &&Watch| watch.outcome == Outcome::Refused;
        let ledger = &mut profile.ledger;
        ledger.armed = profile.watches.len() as u64;
        ledger.trapped = profile.watches.iter().filter(reused).count() as u64;
        ledger.refused = profile.watches.iter().filter(refused).count() as u64;
        ledger.censored = ledger.armed - ledger.trapped - ledger.refused;
        ledger.received = profile.samples.len() as u64 + ledger.trapped;
        ledger.submitted = ledger.received;
        ledger.filtered = 11_000;
        ledger.filtered_by = vec![("not a target".to_owned(), 10_000), ("kernel mode".to_owned(), 1_000)];
        ledger.seen = ledger.filtered + ledger.submitted;
        ledger.stops =
            vec![("asked for".to_owned(), 976), ("made".to_owned(), 964), ("thread ended".to_owned(), 12)];
        self.profile
    }
}

/// A program with a known flaw: an array filled in one function and summed in another, a hot loop
/// on one cell, a copy through memcpy and read(), a queue between two threads, and a table that is
/// written but never read.
pub fn demo() -> Profile {
    let mut make = Maker::new();
    let main = "run src/demo.c:52 < main src/demo.c:60";
    for n in 0..30 {
        let used = format!("fill src/demo.c:31 < step src/demo.c:40 < {main}");
        let reused = "sum src/demo.c:44 < total src/demo.c:48 < run src/demo.c:53 < main src/demo.c:60";
        let watch = make.reuse(&used, reused, 30 * MS + n * MS / 10);
        (watch.p_arm, watch.p_survive) = (1.0, 0.5);
    }
    for n in 0..40 {
        let cell = format!("count src/demo.c:12 < {main}");
        make.reuse(&cell, &cell, n * 100);
    }
    for n in 0..6 {
        let copy = "memcpy@/lib/libc.so.6 < copy src/demo.c:70 < main src/demo.c:61";
        let watch = make.reuse(copy, "parse src/demo.c:80 < main src/demo.c:62", 200 * US + n * US);
        if let Outcome::Reused { touch, .. } = &mut watch.outcome {
            touch.kernel = n % 2 == 0;
        }
    }
    for n in 0..4 {
        let watch =
            make.reuse("push src/queue.c:9 < produce src/queue.c:20", "pop src/queue.c:15", 40 * US + n);
        if let Outcome::Reused { touch, .. } = &mut watch.outcome {
            touch.thread = ThreadId(1);
        }
    }
    for outcome in
        [Outcome::StillArmed, Outcome::StillArmed, Outcome::Replaced, Outcome::Replaced, Outcome::Refused]
    {
        make.watch("log_write src/log.c:5 < main src/demo.c:63", outcome);
    }
    make.balanced()
}
