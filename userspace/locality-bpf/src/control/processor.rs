//! Measures what the processor that we run on can do, for the timing model of `locality_rate`: short runs of one kind of
//! instruction, the fastest of several, and walks through memory of three sizes.
//!
//! Takes some 15 ms and 32 MiB for that time. Sources of error: a core that is shared with another thread is slower than one that is not, and a
//! machine may have cores of several kinds. Where it is no x86-64, and for what comes out implausible, the model's own
//! default is taken.

use std::{hint::black_box, time::Instant};

use locality_analysis::model::CacheLevel;
use locality_rate::{Level, Machine};

/// Repetitions of each run; the fastest counts.
const ROUNDS: u32 = 24;
/// Times that a piece of code is run in a repetition.
const TURNS: u32 = 128;
/// Words of a line.
const LINE: usize = 8;
/// Lines of memory that are walked through, as a power of two, for the second-level cache, the last-level cache and memory: less than the
/// usual sizes of these, more than those of the caches before.
const WALKS: [u32; 3] = [12, 16, 19];
/// The same for the first-level cache.
const NEAREST_WALK: u32 = 6;
/// Steps from one line to another.
const STEPS: usize = 8 << 10;
/// Lines of the first-level, second-level and last-level cache where the machine does not tell.
const USUAL_LINES: [f64; 3] = [750.0, 32e3, 500e3];

/// This processor; `caches`: what the machine tells of them.
pub fn measure(caches: &[CacheLevel]) -> Machine {
    let mut machine = Machine::default();
    #[cfg(target_arch = "x86_64")]
    x86::measure(&mut machine);
    machine = machine.plausible();
    // With the arithmetic that finds the next line.
    let nearest_ns = walk_ns(&room(NEAREST_WALK), NEAREST_WALK);
    for (at, ((level, bits), usual)) in machine.levels.iter_mut().zip(WALKS).zip(USUAL_LINES).enumerate() {
        let told = caches.iter().find(|cache| usize::from(cache.level) == at + 1);
        let words = room(bits);
        *level = Level {
            from: told.map_or(usual, |cache| cache.bytes as f64 / 64.0),
            between: stream_ns(&words) * machine.clock,
            latency: (walk_ns(&words, bits) - nearest_ns) * machine.clock,
        };
    }
    machine.plausible()
}

/// Words that are 0, of so many lines (a power of two), each page with memory of its own.
fn room(bits: u32) -> Vec<u64> {
    let mut words = black_box(vec![1_u64; LINE << bits]);
    words.fill(0);
    words
}

/// Nanoseconds from one line to another that depends on it. The words are all 0.
fn walk_ns(words: &[u64], bits: u32) -> f64 {
    // Elsewhere each time: lines that were walked to before are near.
    let walk = |mut at: u64| {
        let began = Instant::now();
        for _ in 0..STEPS {
            // Knuth's MMIX generator; its high bits say where to.
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let line = (at >> (64 - bits)) as usize;
            at = at.wrapping_add(words.get(line * LINE).copied().unwrap_or_default());
        }
        black_box(at);
        began.elapsed().as_nanos() as f64 / STEPS as f64
    };
    (1..4).map(walk).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds a line where one is read after the other.
fn stream_ns(words: &[u64]) -> f64 {
    let stream = || {
        let began = Instant::now();
        black_box(words.iter().step_by(LINE).fold(0, |sum: u64, word| sum.wrapping_add(*word)));
        began.elapsed().as_nanos() as f64 / (words.len() / LINE) as f64
    };
    (0..3).map(|_| stream()).fold(f64::INFINITY, f64::min)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::{arch::asm, time::Instant};

    use locality_rate::Machine;

    use super::{ROUNDS, TURNS};

    /// Copies of the code in one go, as in each `.rept` below.
    const COPIES: f64 = 128.0;

    /// Nanoseconds of one copy of `code`.
    fn time(mut code: impl FnMut()) -> f64 {
        let mut round = || {
            let began = Instant::now();
            (0..TURNS).for_each(|_| code());
            began.elapsed().as_nanos() as f64 / (f64::from(TURNS) * COPIES)
        };
        (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
    }

    /// Runs 128 copies of the instructions given, which may use rax, rcx, rdx and xmm0 to xmm9, all 0 at first but rcx, which is 1; rsi points to
    /// 256 bytes.
    macro_rules! copies {
        ($($code:literal),+) => {{
            let mut room = [0_u64; 32];
            // What a turn waits for comes from the turn before.
            let (mut rax, mut xmm0) = (0_u64, 0.0_f64);
            time(move || {
                let place = room.as_mut_ptr();
                // SAFETY: the instructions given below touch only the registers named and the 256 bytes behind rsi, none of them jumps.
                unsafe {
                    asm!(
                        ".rept 128", $($code),+, ".endr",
                        in("rsi") place,
                        inout("rax") rax, inout("rcx") 1_u64 => _, inout("rdx") 0_u64 => _,
                        inout("xmm0") xmm0, inout("xmm1") 0.0 => _, inout("xmm2") 0.0 => _,
                        inout("xmm3") 0.0 => _, inout("xmm4") 0.0 => _, inout("xmm5") 0.0 => _,
                        inout("xmm6") 0.0 => _, inout("xmm7") 0.0 => _, inout("xmm8") 0.0 => _,
                        inout("xmm9") 0.0 => _,
                        options(nostack)
                    );
                }
            })
        }};
    }

    pub(super) fn measure(machine: &mut Machine) {
        // An addition that waits for the one before takes one cycle.
        let cycle = copies!("add rax, rcx");
        let in_a_cycle = |n: f64, ns: f64| n * cycle / ns;
        machine.clock = 1.0 / cycle;
        machine.width = in_a_cycle(4.0, copies!("nop", "nop", "nop", "nop"));
        machine.loads = in_a_cycle(
            4.0,
            copies!("mov rax, [rsi]", "mov rcx, [rsi + 64]", "mov rdx, [rsi + 136]", "mov rax, [rsi + 200]"),
        );
        machine.wide_loads = in_a_cycle(
            4.0,
            copies!(
                "movups xmm0, [rsi]",
                "movups xmm1, [rsi + 64]",
                "movups xmm2, [rsi + 144]",
                "movups xmm3, [rsi + 208]"
            ),
        );
        machine.stores = in_a_cycle(
            4.0,
            copies!("mov [rsi], rax", "mov [rsi + 64], rcx", "mov [rsi + 136], rdx", "mov [rsi + 200], rax"),
        );
        machine.floats = in_a_cycle(
            8.0,
            copies!(
                "addsd xmm0, xmm9",
                "mulsd xmm1, xmm9",
                "addsd xmm2, xmm9",
                "mulsd xmm3, xmm9",
                "addsd xmm4, xmm9",
                "mulsd xmm5, xmm9",
                "addsd xmm6, xmm9",
                "mulsd xmm7, xmm9"
            ),
        );
        machine.add = copies!("addsd xmm0, xmm0") / cycle;
        machine.multiply = copies!("mulsd xmm0, xmm0") / cycle;
        // Through memory, and the addition.
        machine.forward = (copies!("add qword ptr [rsi], 1") / cycle - 1.0).max(0.0);
        // The words are 0, so each address is the one before.
        machine.load = copies!("mov rax, [rsi + rax]") / cycle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the machine, its parts come in an order.
    #[test]
    fn caches_are_faster_than_memory() {
        let machine = measure(&[]);
        let [second, last, memory] = machine.levels;
        assert_eq!(machine, machine.plausible());
        assert!(second.latency < memory.latency && second.between < memory.between, "{machine:?}");
        assert!(last.latency < memory.latency && machine.load > 1.5, "{machine:?}");
        assert_eq!(machine.levels.map(|level| level.from), USUAL_LINES);
    }
}
