//! Rust: arrays as slices and vectors of structures, walked by indices and iterators. `PROGRAM KERNEL WAY
//! SECONDS` as `advice.h` says.
// build: $RUSTC --edition 2024 -C opt-level=2 -g -o $BIN $SRC

use std::hint::black_box;
use std::io::Write as _;
use std::time::{Duration, Instant};

const WIDTH: usize = 2900;
const HEIGHT: usize = 2700;

/// Heights of a landscape, row by row.
struct Terrain {
    width: usize,
    height: usize,
    metres: Vec<f64>,
}

impl Terrain {
    fn new(width: usize, height: usize) -> Self {
        let metres = (0..width * height).map(|i| (i * 7 % 1001) as f64).collect();
        Self { width, height, metres }
    }

    fn at(&self, x: usize, y: usize) -> f64 {
        self.metres[y * self.width + x]
    }
}

/// Highest point of each column, one column at a time.
#[inline(never)]
fn skyline_by_columns(terrain: &Terrain, skyline: &mut [f64]) {
    // flaw: skyline
    for x in 0..terrain.width {
        let mut highest = 0.0;
        for y in 0..terrain.height {
            let metres = terrain.at(x, y);
            if metres > highest {
                highest = metres;
            }
        }
        skyline[x] = highest;
    }
}

#[inline(never)]
fn skyline_by_rows(terrain: &Terrain, skyline: &mut [f64]) {
    skyline.fill(0.0);
    for y in 0..terrain.height {
        for x in 0..terrain.width {
            let metres = terrain.at(x, y);
            if metres > skyline[x] {
                skyline[x] = metres;
            }
        }
    }
}

const TRIPS: usize = 2_000_000;

/// A taxi's trip; the loop looks at the fare only.
// flaw: fares
#[derive(Clone)]
struct Trip {
    from: [f32; 2],
    to: [f32; 2],
    started: u64,
    ended: u64,
    fare: f32,
    tip: f32,
    driver: [u8; 24],
}

fn trips() -> Vec<Trip> {
    let trip = |i: usize| Trip {
        from: [1.0, 2.0],
        to: [3.0, i as f32],
        started: i as u64,
        ended: i as u64 + 900,
        fare: (i % 91) as f32,
        tip: 1.0,
        driver: [0; 24],
    };
    (0..TRIPS).map(trip).collect()
}

#[inline(never)]
fn takings_of_trips(trips: &[Trip]) -> f64 {
    // flaw: fares
    trips.iter().map(|trip| f64::from(trip.fare)).sum()
}

#[inline(never)]
fn takings_of_fares(fares: &[f32]) -> f64 {
    fares.iter().map(|fare| f64::from(*fare)).sum()
}

/// CPU time of the thread.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() * 1e-9
}

fn repeat(seconds: f64, mut round: impl FnMut() -> u64) {
    println!("ready\nchecksum {:016x}", round());
    std::io::stdout().flush().unwrap();
    let (start, cpu_start) = (Instant::now(), cpu_seconds());
    let mut rounds = 0u64;
    while start.elapsed() < Duration::from_secs_f64(seconds) {
        black_box(round());
        rounds += 1;
    }
    println!("rounds_per_second {:.6}", rounds as f64 / (cpu_seconds() - cpu_start));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [kernel, way, seconds] = words[..] else { panic!("usage: columns KERNEL flawed|mended SECONDS") };
    let seconds: f64 = seconds.parse().unwrap();
    match (kernel, way) {
        ("skyline", "flawed" | "mended") => {
            let terrain = Terrain::new(WIDTH, HEIGHT);
            let mut skyline = vec![0.0; WIDTH];
            let walk = if way == "flawed" { skyline_by_columns } else { skyline_by_rows };
            repeat(seconds, || {
                walk(&terrain, &mut skyline);
                skyline.iter().sum::<f64>() as u64
            });
        }
        ("fares", "flawed") => {
            let trips = trips();
            repeat(seconds, || takings_of_trips(black_box(&trips)) as u64);
            let first = &trips[black_box(0)];
            black_box((first.from, first.to, first.started, first.ended, first.tip, first.driver));
        }
        ("fares", "mended") => {
            let fares: Vec<f32> = trips().iter().map(|trip| trip.fare).collect();
            repeat(seconds, || takings_of_fares(black_box(&fares)) as u64);
        }
        _ => panic!("columns has no kernel {kernel} with a way {way}"),
    }
}
