//! Rust names and inlining. Lines that tests look for carry "AT name".

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};

static WAITING: AtomicBool = AtomicBool::new(true);

trait Work {
    fn work(&self, n: u64) -> u64;
}

struct Worker<T>(T);

impl<T: Into<u64> + Copy> Work for Worker<T> {
    #[inline(never)]
    fn work(&self, n: u64) -> u64 {
        let got = innermost(n); // AT work
        black_box(got) + self.0.into()
    }
}

#[inline(always)]
fn innermost(n: u64) -> u64 {
    println!("ready");
    while spins() {} // AT innermost
    n
}

#[inline(always)]
fn spins() -> bool {
    WAITING.load(Ordering::Relaxed) // AT spins
}

#[inline(always)]
fn folded(worker: &dyn Work) -> u64 {
    let got = worker.work(3); // AT folded
    black_box(got)
}

#[inline(never)]
fn outer(worker: &dyn Work) -> u64 {
    let got = folded(worker); // AT outer
    black_box(got)
}

fn main() {
    let worker = Worker(black_box(5u32));
    let got = outer(black_box(&worker)); // AT main
    black_box(got);
}
