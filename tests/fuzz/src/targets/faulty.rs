//! A reader with a fault of each kind, by which the driver is tested.

use std::time::Duration;

use fastrand::Rng;

use super::Target;

/// Panics, aborts, hangs, or allocates too much, according to the first byte.
pub struct Faulty;

impl Target for Faulty {
    fn make(&mut self, random: &mut Rng) -> Vec<u8> {
        // Hangs are found slowly, and are few therefore.
        vec![if random.u8(..10) == 0 { 4 } else { random.u8(..4) }]
    }

    fn run(&mut self, input: &[u8]) {
        match input.first() {
            Some(1) => {
                let sum = std::hint::black_box(u8::MAX) + std::hint::black_box(1);
                std::hint::black_box(sum);
            }
            Some(2) => {
                std::hint::black_box(Vec::<u8>::with_capacity(std::hint::black_box(5 << 30)));
            }
            Some(3) => std::process::abort(),
            Some(4) => std::thread::sleep(Duration::from_secs(60)),
            _ => {}
        }
    }
}
