//! Nanoseconds of processor time per access of the engine on synthetic streams.
//! `cargo bench -p locality-reuse [-- NAME]`.
//!
//! Events are made in blocks outside the measured time. The arena is the heap, pages touched for
//! the first time included.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and ends when it cannot run"
)]

use locality_reuse::{Config, Engine};
use locality_stream::{Analysis as _, Code, Event, Heap, Kind};

const BLOCK: usize = 2048;

type Source = Box<dyn FnMut(&mut Vec<Event>)>;

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let accesses: u64 = std::env::var("ACCESSES").ok().and_then(|n| n.parse().ok()).unwrap_or(40_000_000);
    println!(
        "{:<14}{:>10}{:>10}{:>10}{:>14}{:>12}",
        "ns/access", "64", "64+pairs", "8,64+p", "lines", "bytes/line"
    );
    for (name, make) in sources() {
        if only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        let plain =
            measure(make(), accesses, Config { granularities: vec![64], pairs: vec![], ..Config::default() });
        let pairs = measure(make(), accesses, Config { granularities: vec![64], ..Config::default() });
        let both = measure(make(), accesses, Config::default());
        println!(
            "{name:<14}{:>10.2}{:>10.2}{:>10.2}{:>14}{:>12.1}",
            plain.0, pairs.0, both.0, plain.1, plain.2
        );
    }
}

fn measure(mut source: Source, accesses: u64, config: Config) -> (f64, u64, f64) {
    let heap = Heap::new(12 << 30).unwrap();
    let mut engine = Engine::create(&heap, &config).unwrap();
    let mut events = Vec::with_capacity(BLOCK);
    let mut spent = 0;
    let mut done = 0;
    let code = Code::default();
    while done < accesses {
        events.clear();
        source(&mut events);
        let start = thread_ns();
        engine.observe(&events, &code).unwrap();
        spent += thread_ns() - start;
        done += events.len() as u64;
    }
    let summary = engine.summary(0);
    let grain = &summary.grains[0];
    let bytes = heap.in_use() as f64 / grain.cold as f64;
    (spent as f64 / summary.accesses as f64, grain.cold, bytes)
}

/// Processor time of the calling thread: foreign load on
/// the machine does not count, except for the caches.
fn thread_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the struct.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

type Sources = Vec<(&'static str, fn() -> Source)>;

fn sources() -> Sources {
    vec![
        ("sequential", || {
            let mut at = 0_u64;
            Box::new(move |events| {
                for _ in 0..BLOCK {
                    at += 8;
                    events.push(load(1, 0x10_0000 + at % (64 << 20)));
                }
            })
        }),
        ("matmul", || {
            // c[i][j] += a[i][k] * b[k][j], 512 x 512 doubles, with the loop counter on the stack.
            let (mut i, mut j, mut k) = (0_u64, 0_u64, 0_u64);
            Box::new(move |events| {
                for _ in 0..BLOCK / 4 {
                    events.push(load(1, 0x100_0000 + (i * 512 + k) * 8));
                    events.push(load(2, 0x200_0000 + (k * 512 + j) * 8));
                    events.push(load(3, 0x300_0000 + (i * 512 + j) * 8));
                    events.push(Event::access(Kind::STORE, 4, 0x300_0000 + (i * 512 + j) * 8, 8));
                    k += 1;
                    (j, k) = if k == 512 { (j + 1, 0) } else { (j, k) };
                    (i, j) = if j == 512 { ((i + 1) % 512, 0) } else { (i, j) };
                }
            })
        }),
        ("stack", || {
            // Calls three deep, each with a frame of 96 bytes and six accesses to the frame.
            let mut random = fastrand::Rng::with_seed(7);
            Box::new(move |events| {
                while events.len() < BLOCK - 64 {
                    let mut stack = 0x7fff_0000_u64;
                    for depth in 0..3 {
                        let call = random.u32(0..8) + depth * 8;
                        stack -= 8;
                        events.push(Event::access(Kind::CALL, call, stack, 8));
                        for n in 0..6 {
                            events.push(load(100 + call * 8 + n, stack - 8 - random.u64(0..12) * 8));
                        }
                        stack -= 96;
                    }
                    for _ in 0..3 {
                        stack += 96;
                        events.push(Event::access(Kind::RETURN, 50, stack, 8));
                        stack += 8;
                    }
                }
            })
        }),
        ("mixed", || {
            // Nine of ten accesses among 300 lines by a power law, the rest among 20,000; 200 instructions.
            let mut random = fastrand::Rng::with_seed(3);
            Box::new(move |events| {
                for _ in 0..BLOCK {
                    let x = random.f64();
                    let line = if random.u8(0..10) > 0 {
                        (300.0 * x * x * x * x) as u64
                    } else {
                        random.u64(0..20_000)
                    };
                    events.push(load((line % 200) as u32, 0x100_0000 + line * 64));
                }
            })
        }),
        ("sparse 1e6", || {
            // One line in sixteen.
            let mut random = fastrand::Rng::with_seed(5);
            Box::new(move |events| {
                for _ in 0..BLOCK {
                    events.push(load(1, 0x100_0000 + random.u64(0..1_000_000) * 1024));
                }
            })
        }),
        ("random 1e3", || random(1000)),
        ("random 1e4", || random(10_000)),
        ("random 1e5", || random(100_000)),
        ("random 1e6", || random(1_000_000)),
        ("random 1e7", || random(10_000_000)),
    ]
}

fn random(lines: u64) -> Source {
    let mut random = fastrand::Rng::with_seed(lines);
    Box::new(move |events| {
        for _ in 0..BLOCK {
            events.push(load(1, 0x100_0000 + random.u64(0..lines) * 64));
        }
    })
}

fn load(index: u32, address: u64) -> Event {
    Event::access(Kind::LOAD, index, address, 8)
}
