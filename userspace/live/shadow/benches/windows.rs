//! Cost of windows on real programs. `cargo bench -p locality-shadow [-- NAME]`.
//!
//! Each program is stopped at random points; a window of 10,000 instructions is executed there,
//! then once more, when its code is known (warm), then one of 200,000 twice, of which the second
//! gives the speed. Times are the executor's own: from the registers to the filled log, reading
//! pages included.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and ends when it cannot run"
)]

#[path = "../tests/it/commands.rs"]
mod commands;
#[expect(dead_code, reason = "shared with the tests")]
#[path = "../tests/it/support.rs"]
mod support;
#[expect(dead_code, reason = "shared with the tests")]
#[path = "../tests/it/target.rs"]
mod target;

use locality_shadow::ThreadState;
use locality_shadow::window::Limits;
use support::{Ran, Shadow};
use target::{ProcessMemory, Target, state};

const PLACES: usize = 40;

fn main() {
    let only = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    println!(
        "{:<20}{:>8}{:>12}{:>12}{:>12}{:>8}{:>8}{:>14}",
        "program", "windows", "first µs", "mean µs", "warm µs", "pages", "fresh", "M instr/s"
    );
    for (name, command) in commands::commands() {
        if only.as_ref().is_none_or(|only| name.contains(only.as_str())) {
            measure(name, &command);
        }
    }
}

fn window(shadow: &mut Shadow, state: &ThreadState, memory: &mut ProcessMemory, instructions: u64) -> Ran {
    let limits = Limits { instructions, pages: 4096, time_ns: 1_000_000_000 };
    shadow.run_with(1, state, memory, &limits, instructions as usize * 3, instructions as usize)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn measure(name: &str, command: &[&str]) {
    let Some(mut target) = Target::start(command) else { return };
    let mut shadow = Shadow::new();
    let (mut cold, mut warm, mut speed, mut pages, mut fresh) = (vec![], vec![], vec![], vec![], vec![]);
    target.run_for(400_000);
    for _ in 0..PLACES * 4 {
        if cold.len() >= PLACES || target.ended {
            break;
        }
        if let Some(state) = target.stop().and_then(state) {
            if target.memory.look() {
                shadow.executor.forget(1);
            }
            let micros = |ran: &Ran| ran.counts.time_ns as f64 / 1000.0;
            let calls = target.memory.calls;
            let first = window(&mut shadow, &state, &mut target.memory, 10_000);
            if first.counts.instructions == 10_000 {
                fresh.push((target.memory.calls - calls) as f64);
                cold.push(micros(&first));
                pages.push(f64::from(first.counts.pages));
                warm.push(micros(&window(&mut shadow, &state, &mut target.memory, 10_000)));
                window(&mut shadow, &state, &mut target.memory, 200_000);
                let long = window(&mut shadow, &state, &mut target.memory, 200_000);
                speed.push(long.counts.instructions as f64 / micros(&long));
                // Pages used by long windows are not those that a sampler would have used before.
                window(&mut shadow, &state, &mut target.memory, 10_000);
                window(&mut shadow, &state, &mut target.memory, 10_000);
            }
        }
        target.resume();
        target.run_for(3_000);
    }
    if cold.is_empty() {
        println!("{name:<20} no whole window");
        return;
    }
    println!(
        "{name:<20}{:>8}{:>12.1}{:>12.1}{:>12.1}{:>8.0}{:>8.0}{:>14.1}",
        cold.len(),
        cold[0],
        mean(&cold[1..]),
        mean(&warm),
        mean(&pages),
        mean(&fresh),
        mean(&speed)
    );
}
