//! Cost of the two questions, on the code of the example itself: nanoseconds per call.
//!
//! Run with `cargo run --release -p locality-isa --example cost`.
#![expect(clippy::print_stdout, reason = "a benchmark's result is what it prints")]

use std::hint::black_box;
use std::time::Instant;

use locality_isa::{Code, Registers, Trap, Watched, accessing_instruction, first_access};

const ROUNDS: u32 = 200;
/// Bytes to each side of the instruction, as the tracer copies them.
const REACH_BYTES: usize = 128;

fn main() -> std::io::Result<()> {
    // Real code, from the middle of this program's file.
    let file = std::fs::read(std::env::current_exe()?)?;
    let middle = file.len() / 8;
    let offsets: Vec<usize> = (0..1000).map(|step| middle + step * 37).collect();
    let registers = Registers { rsp: 0x7fff_0000, rdi: 0x1000, rsi: 0x2000, rcx: 9, ..Registers::default() };
    let codes: Vec<(Code<'_>, Registers)> = offsets
        .iter()
        .filter_map(|&at| Some((at, file.get(at - REACH_BYTES..at + REACH_BYTES)?)))
        .map(|(at, bytes)| {
            let address = 0x40_0000 + (at - REACH_BYTES) as u64;
            (Code { address, bytes }, Registers { rip: 0x40_0000 + at as u64, ..registers })
        })
        .collect();

    let mut known = 0_u32;
    let mut skipped = 0_u32;
    let started = Instant::now();
    for _ in 0..ROUNDS {
        for (code, registers) in &codes {
            if let Ok(access) = black_box(first_access(black_box(code), registers)) {
                known += 1;
                skipped += access.skipped;
            }
        }
    }
    let calls = ROUNDS * codes.len() as u32;
    let each = started.elapsed() / calls;
    println!(
        "first_access {} ns; {:.2} of the calls find one, after {:.1} instructions",
        each.as_nanos(),
        f64::from(known) / f64::from(calls),
        f64::from(skipped) / f64::from(known)
    );

    let started = Instant::now();
    for _ in 0..ROUNDS {
        for (code, registers) in &codes {
            let watched = Watched { address: 0x1000, bytes: 8 };
            let trap = Trap {
                registers: *registers,
                watched,
                function_start: None,
                top_of_stack: None,
                call_site: None,
            };
            let _ = black_box(accessing_instruction(black_box(code), &trap));
        }
    }
    println!("accessing_instruction {} ns", (started.elapsed() / calls).as_nanos());
    Ok(())
}
