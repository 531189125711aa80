//! Rust: a vector of structures and a static, accesses known by construction: .75 the vector's
//! block (.5 x, .25 mass), .25 `COUNTS`.
// build: $RUSTC --edition 2024 -C opt-level=2 -g -o $BIN $SRC

use std::io::Write as _;
use std::ptr::{read_volatile, write_volatile};
use std::time::{Duration, Instant};

/// One structure fills a cache line.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Particle {
    x: f64,
    rest: [f64; 6],
    mass: f64,
}

const PARTICLES: usize = 1 << 14;
static mut COUNTS: [u64; PARTICLES] = [0; PARTICLES];

#[inline(never)]
fn run(particles: *mut Particle, counts: *mut u64) {
    for i in 0..PARTICLES {
        // SAFETY: both have so many elements, and nobody else looks at them.
        unsafe {
            let one = particles.add(i);
            read_volatile(&raw const (*one).x);
            write_volatile(counts.add(i), 1);
            write_volatile(&raw mut (*one).x, 2.0);
            read_volatile(&raw const (*one).mass);
        }
    }
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(3600.0);
    let mut particles = vec![Particle::default(); PARTICLES];
    println!("ready {}", std::process::id());
    std::io::stdout().flush().unwrap();
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < until {
        for _ in 0..8 {
            run(particles.as_mut_ptr(), &raw mut COUNTS as *mut u64);
        }
    }
    println!("checksum {}", particles.len());
}
