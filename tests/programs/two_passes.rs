//! Rust: two passes over a vector of structures by iterators that are inlined. The twin of `two_loops.c`; see
//! `target.h` for what the marks mean and why every word is read a second time.
// build: $RUSTC --edition 2024 -C opt-level=2 -g -C llvm-args=-vectorize-loops=false -o $BIN $SRC

use std::io::Write as _;
use std::time::{Duration, Instant};

/// One structure fills half a cache line.
#[derive(Clone, Copy, Default)]
struct Point {
    x: u64,
    y: u64,
    z: u64,
    w: u64,
}

const POINTS: usize = 1 << 18;

fn mix(mut x: u64) -> u64 {
    x ^= x << 13;
    x ^= x >> 7;
    x ^ (x << 17)
}

#[inline(never)]
fn write_all(points: &mut [Point], start: u64) {
    points.iter_mut().fold(start, |x, point| {
        let next = mix(mix(x));
        point.y = next; // USE:iterators
        next
    });
}

#[inline(never)]
fn read_all(points: &[Point]) -> u64 {
    points.iter().fold(0, |sum, point| {
        mix(mix(sum.wrapping_add(point.y))) // REUSE:iterators
    })
}

#[inline(never)]
fn elsewhere_0(points: &[Point]) -> u64 {
    points.iter().fold(0, |sum, point| mix(sum.wrapping_add(point.y)))
}

#[inline(never)]
fn elsewhere_1(points: &[Point]) -> u64 {
    points.iter().fold(1, |sum, point| mix(sum.wrapping_add(point.y)) ^ 1)
}

#[inline(never)]
fn elsewhere_2(points: &[Point]) -> u64 {
    points.iter().fold(2, |sum, point| mix(sum.wrapping_add(point.y)) ^ 2)
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).map(Duration::from_secs_f64);
    let mut points = vec![Point::default(); POINTS];
    println!("ready {}", std::process::id());
    std::io::stdout().flush().unwrap();
    let start = Instant::now();
    let mut sum = 0u64;
    for round in 0u64.. {
        if seconds.is_some_and(|seconds| start.elapsed() >= seconds) {
            break;
        }
        write_all(&mut points, round ^ 1);
        sum ^= read_all(&points);
        sum ^= [elsewhere_0, elsewhere_1, elsewhere_2][(round % 3) as usize](&points);
    }
    let last = points[POINTS - 1];
    println!("checksum {:016x}", sum ^ last.x ^ last.z ^ last.w);
}
