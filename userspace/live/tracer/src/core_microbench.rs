//! Measures the present processor's speed for the timing model of `locality_rate`:
//! short runs of one kind of instruction, the fastest of several, and walks
//! through memory of two sizes, and through memory flushed from the caches.
//!
//! Takes about 100 ms, a quarter of them at rest (`sys::Slices`), and 8 MiB meanwhile.
//! Sources of error: the measured core may be of another kind than the program's, share units
//! with another thread, or run at another clock later; the best case stands for every case;
//! wide loads are of 16 bytes. An implausible result is replaced by the model's default.

use std::{
    arch::{asm, x86_64::_mm_clflush},
    hint::black_box,
    time::{Duration, Instant},
};

use locality_model::CacheLevel;
use locality_rate::{Level, Machine};

use locality_kernel::sys::Slices;

/// Repetitions of each run, fewer where they take long; the fastest counts.
const ROUNDS: u32 = 24;
const FEWEST_ROUNDS: u32 = 3;
const LONG: Duration = Duration::from_millis(1);
/// Times that a piece of code is run in a repetition.
const TURNS: u32 = 64;
/// Copies of the instruction in one run, as in `.rept` below.
const COPIES: f64 = 128.0;
/// Time for a sleeping core to reach its clock.
const WARMING: Duration = Duration::from_millis(5);
/// Words of a line.
const LINE: usize = 8;
/// Lines walked through, as a multiple of the lines of the cache before. Most lines
/// must lie beyond the cache before, and the walk may need no more of a shared
/// cache than neighbours leave. At most half of the lines of the walked cache.
const BEYOND: f64 = 6.0;
/// Lines of memory walked through, as a power of two, and the most lines of a cache.
const LONGEST_WALK: u32 = 17;
/// Lines that are walked through in the first-level cache, as a power of two.
const NEAREST_WALK: u32 = 6;
/// Steps from one line to another.
const STEPS: usize = 8 << 10;
/// Lines read in a row.
const STREAM: usize = 2 << 10;
/// Passes over all lines when reading or storing in a row.
const PASSES: usize = 5;
/// Pages touched for the first time in a row, and how often.
const FAULTS: usize = 256;
const PIECES: usize = 9;
const PAGE: usize = 4096;
/// Lines of the three levels of caches where the machine does not tell.
const USUAL_LINES: [f64; 3] = [750.0, 32e3, 500e3];

/// Repetitions of the shared cache's measurement while slower than memory.
const TRIES: usize = 4;

/// Measures this processor; `caches`: sizes reported by the machine.
pub fn measure(caches: &[CacheLevel]) -> Machine {
    let slices = Slices::begin();
    let machine = core(&slices).plausible();
    let parallel = parallel_ns(&room(LONGEST_WALK), &slices) * machine.clock;
    let fault_ns = fault_ns(&slices);
    Machine { levels: levels(caches, machine.clock, &slices), parallel, fault_ns, ..machine }.plausible()
}

/// Caches beyond the first, and memory.
fn levels(caches: &[CacheLevel], clock: f64, slices: &Slices) -> [Level; 3] {
    let mut lines = USUAL_LINES;
    for (lines, number) in lines.iter_mut().zip(1..) {
        let told = caches.iter().find(|cache| cache.level == number);
        *lines = told.map_or(*lines, |cache| cache.bytes as f64 / 64.0);
    }
    let [first, second, last] = lines;
    let bits = |before: f64, lines: f64| {
        let walked = (before * BEYOND).min(lines / 2.0).max(64.0);
        (walked.log2() as u32).min(LONGEST_WALK)
    };
    // With the arithmetic that finds the next line.
    let nearest_ns = walk_ns(&room(NEAREST_WALK), NEAREST_WALK, false, slices);
    let level = |from: f64, bits: u32, flushed: bool, before: f64| {
        let mut words = room(bits);
        let mean = (walk_ns(&words, bits, flushed, slices) - nearest_ns) * clock;
        // Some of the lines are in the cache before.
        let nearer = if flushed { 0.0 } else { (from / f64::from(1 << bits)).min(0.5) };
        let latency = (mean - nearer * before) / (1.0 - nearer);
        let between = stream_ns(&words, flushed, slices) * clock;
        // A line comes and one goes back. Stores to few lines of a cache took
        // no longer than loads (2.3 cycles a line), a program's took 6.2.
        let stored =
            if flushed { (store_ns(&mut words, slices) * clock).max(between) } else { 2.0 * between };
        Level { from, latency, between, stored }
    };
    let nearest = level(first, bits(first, second), false, 0.0);
    let shared = || level(second, bits(second, last), false, nearest.latency);
    let mut shared_levels = vec![shared()];
    let memory = level(last, LONGEST_WALK, true, 0.0);
    // Neighbours occupy the shared cache at times, but the cache is no slower than memory.
    while shared_levels.len() < TRIES && shared_levels.iter().all(|shared| shared.latency >= memory.latency) {
        shared_levels.push(shared());
    }
    let fastest = shared_levels.into_iter().min_by(|a, b| a.latency.total_cmp(&b.latency));
    let shared = fastest.map_or(memory, |fastest| Level {
        from: second,
        latency: fastest.latency.min(memory.latency),
        between: fastest.between.min(memory.between),
        stored: fastest.stored.min(memory.stored),
    });
    [nearest, shared, memory]
}

/// Words with the value 0, of `2^bits` lines, each page with memory of its own.
fn room(bits: u32) -> Vec<u64> {
    let mut words = black_box(vec![0_u64; LINE << bits]);
    words.fill(0);
    words
}

fn flush(words: &[u64], slices: &Slices) {
    for piece in words.chunks(STREAM * LINE) {
        slices.rest();
        // SAFETY: every x86-64 processor has the instruction, and the address is that of a word.
        piece.iter().step_by(LINE).for_each(|word| unsafe { _mm_clflush(std::ptr::from_ref(word).cast()) });
    }
}

/// The next number of Knuth's MMIX generator, whose high bits are random.
fn next_random(at: u64) -> u64 {
    at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// Nanoseconds from one line to the next, dependent line. Every word is 0.
fn walk_ns(words: &[u64], bits: u32, flushed: bool, slices: &Slices) -> f64 {
    // Elsewhere each time: lines that were walked to before are near.
    let walk = |mut at: u64| {
        if flushed {
            flush(words, slices);
        } else {
            read_in_a_row(words, slices);
        }
        let began = Instant::now();
        for _ in 0..STEPS {
            at = next_random(at);
            let line = (at >> (64 - bits)) as usize;
            at = at.wrapping_add(words.get(line * LINE).copied().unwrap_or_default());
        }
        black_box(at);
        began.elapsed().as_nanos() as f64 / STEPS as f64
    };
    (1..6).map(walk).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds a line of memory where independent lines at random places are
/// read: as many loads are under way as the processor can have. Every word is 0.
fn parallel_ns(words: &[u64], slices: &Slices) -> f64 {
    let run = |mut at: u64| {
        flush(words, slices);
        slices.rest();
        let began = Instant::now();
        let mut sum = 0_u64;
        for _ in 0..STEPS {
            at = next_random(at);
            let line = (at >> (64 - LONGEST_WALK)) as usize;
            sum = sum.wrapping_add(words.get(line * LINE).copied().unwrap_or_default());
        }
        black_box(sum);
        began.elapsed().as_nanos() as f64 / STEPS as f64
    };
    (1..4).map(run).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds of a page fault that finds a new page of fresh memory: the
/// median of several pieces, because the host may have to find memory too.
fn fault_ns(slices: &Slices) -> f64 {
    let piece = |_: usize| {
        let bytes = FAULTS * PAGE;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let room = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if room == libc::MAP_FAILED {
            return f64::NAN;
        }
        // SAFETY: the mapping is ours. If the kernel does
        // not know the advice, the mapping is unchanged.
        unsafe { libc::madvise(room, bytes, libc::MADV_NOHUGEPAGE) };
        // SAFETY: the addresses are those of bytes of the mapping.
        let touch =
            || (0..FAULTS).for_each(|page| unsafe { room.cast::<u8>().add(page * PAGE).write_volatile(1) });
        let ns = timed(slices, touch) / FAULTS as f64;
        // SAFETY: the mapping is this function's own, without remaining references.
        unsafe { libc::munmap(room, bytes) };
        ns
    };
    let mut pieces: Vec<f64> = (0..PIECES).map(piece).collect();
    pieces.sort_unstable_by(f64::total_cmp);
    pieces.get(PIECES / 2).copied().unwrap_or(f64::NAN)
}

/// Nanoseconds a line when reading in a row: the least of several passes, since other guests of the
/// machine slow single passes down.
fn stream_ns(words: &[u64], flushed: bool, slices: &Slices) -> f64 {
    least_of_passes(|| {
        if flushed {
            flush(words, slices);
        }
        read_in_a_row(words, slices)
    })
}

/// Nanoseconds a line in one pass.
fn read_in_a_row(words: &[u64], slices: &Slices) -> f64 {
    let stream = |piece: &[u64]| {
        black_box(piece.iter().step_by(LINE).fold(0, |sum: u64, word| sum.wrapping_add(*word)))
    };
    median_ns(words.chunks_exact(STREAM * LINE).map(|piece| timed(slices, || stream(piece))))
}

/// Nanoseconds a line of memory when storing in a row: the least of several passes. The way back to
/// memory of lines beyond the last cache is not included.
fn store_ns(words: &mut [u64], slices: &Slices) -> f64 {
    let store = |piece: &mut [u64]| black_box(piece).iter_mut().step_by(LINE).for_each(|word| *word = 0);
    least_of_passes(|| {
        flush(words, slices);
        median_ns(words.chunks_exact_mut(STREAM * LINE).map(|piece| timed(slices, || store(piece))))
    })
}

fn least_of_passes(pass: impl FnMut() -> f64) -> f64 {
    std::iter::repeat_with(pass).take(PASSES).fold(f64::NAN, f64::min)
}

fn timed<T>(slices: &Slices, run: impl FnOnce() -> T) -> f64 {
    slices.rest();
    let began = Instant::now();
    black_box(run());
    began.elapsed().as_nanos() as f64
}

/// Nanoseconds a line, from times of many pieces of a stream.
fn median_ns(times: impl Iterator<Item = f64>) -> f64 {
    let mut pieces: Vec<f64> = times.collect();
    pieces.sort_unstable_by(f64::total_cmp);
    pieces.get(pieces.len() / 2).map_or(f64::NAN, |ns| ns / STREAM as f64)
}

/// Nanoseconds of one copy of `code`.
fn time(slices: &Slices, mut code: impl FnMut()) -> f64 {
    slices.rest();
    let mut round = || {
        let began = Instant::now();
        (0..TURNS).for_each(|_| code());
        began.elapsed().as_nanos() as f64 / (f64::from(TURNS) * COPIES)
    };
    let began = Instant::now();
    let is_due = |done: &u32| *done < FEWEST_ROUNDS || began.elapsed() < LONG;
    (0..ROUNDS).take_while(is_due).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// Memory that the code below uses.
#[repr(align(64))]
struct Room([u64; 32]);

/// Runs 128 copies of the instructions given. The instructions may use rcx (1 at first),
/// and rax, rdx and xmm0 to xmm15 (0 at first); rsi points to 256 bytes of zeroes.
macro_rules! copies {
    ($slices:expr, $($code:literal),+) => {{
        let mut room = Room([0; 32]);
        // What a turn waits for comes from the turn before.
        let (mut rax, mut xmm0) = (0_u64, 0.0_f64);
        time($slices, move || {
            let place = room.0.as_mut_ptr();
            // SAFETY: the instructions given below touch only the registers named and the 256 bytes
            // above rsi, none of them jumps.
            unsafe {
                asm!(
                    ".rept 128", $($code),+, ".endr",
                    in("rsi") place,
                    inout("rax") rax, inout("rcx") 1_u64 => _, inout("rdx") 0_u64 => _,
                    inout("xmm0") xmm0, inout("xmm1") 0.0 => _, inout("xmm2") 0.0 => _, inout("xmm3") 0.0 => _,
                    inout("xmm4") 0.0 => _, inout("xmm5") 0.0 => _, inout("xmm6") 0.0 => _, inout("xmm7") 0.0 => _,
                    inout("xmm8") 0.0 => _, inout("xmm9") 0.0 => _, inout("xmm10") 0.0 => _, inout("xmm11") 0.0 => _,
                    inout("xmm12") 0.0 => _, inout("xmm13") 0.0 => _, inout("xmm14") 0.0 => _, inout("xmm15") 0.0 => _,
                    options(nostack)
                );
            }
        })
    }};
}

/// Measured abilities of the core.
fn core(slices: &Slices) -> Machine {
    // A dependent addition takes one cycle.
    let cycle = || copies!(slices, "add rax, rcx");
    let began = Instant::now();
    let mut shortest = cycle();
    while began.elapsed() < WARMING {
        shortest = shortest.min(cycle());
    }
    // The clock may change meanwhile: each time is compared with a cycle measured right after.
    let mut cycles = |ns: f64| {
        let now = cycle();
        shortest = shortest.min(now);
        ns / now
    };
    // A mixture that no kind of units limits. Of no-operations processors start more (Zen 4: twice
    // as many).
    let width = 8.0
        / cycles(copies!(
            slices,
            "lea rax, [rsi + 1]",
            "mov rdx, [rsi]",
            "movaps xmm0, xmm15",
            "lea rax, [rsi + 2]",
            "movaps xmm1, xmm15",
            "mov rdx, [rsi + 72]",
            "lea rax, [rsi + 3]",
            "movaps xmm2, xmm15"
        ));
    let integers = 4.0
        / cycles(copies!(slices, "lea rax, [rsi + 1]", "cmp rsi, rcx", "lea rdx, [rsi + 2]", "cmp rsi, rcx"));
    let loads = 4.0
        / cycles(copies!(
            slices,
            "mov rax, [rsi]",
            "mov rcx, [rsi + 72]",
            "mov rdx, [rsi + 144]",
            "mov rax, [rsi + 216]"
        ));
    let wide_loads = 4.0
        / cycles(copies!(
            slices,
            "movups xmm0, [rsi]",
            "movups xmm1, [rsi + 80]",
            "movups xmm2, [rsi + 160]",
            "movups xmm3, [rsi + 240]"
        ));
    let stores = 4.0
        / cycles(copies!(
            slices,
            "mov [rsi], rax",
            "mov [rsi + 72], rcx",
            "mov [rsi + 144], rdx",
            "mov [rsi + 216], rax"
        ));
    let close_stores = 4.0
        / cycles(copies!(
            slices,
            "mov [rsi], rax",
            "mov [rsi + 8], rcx",
            "mov [rsi + 16], rdx",
            "mov [rsi + 24], rax"
        ));
    let floats = 14.0
        / cycles(copies!(
            slices,
            "addsd xmm0, xmm15",
            "mulsd xmm1, xmm15",
            "addsd xmm2, xmm15",
            "mulsd xmm3, xmm15",
            "addsd xmm4, xmm15",
            "mulsd xmm5, xmm15",
            "addsd xmm6, xmm15",
            "mulsd xmm7, xmm15",
            "addsd xmm8, xmm15",
            "mulsd xmm9, xmm15",
            "addsd xmm10, xmm15",
            "mulsd xmm11, xmm15",
            "addsd xmm12, xmm15",
            "mulsd xmm13, xmm15"
        ));
    let add = cycles(copies!(slices, "addsd xmm0, xmm0"));
    let multiply = cycles(copies!(slices, "mulsd xmm0, xmm0"));
    let pause = cycles(copies!(slices, "pause"));
    let timestamp = cycles(copies!(slices, "rdtsc"));
    // Through memory, and the addition.
    let forward = cycles(copies!(slices, "add qword ptr [rsi], 1")) - 1.0;
    // One word each time, found by an address.
    let forward_anew = cycles(copies!(slices, "xor edx, edx", "add qword ptr [rsi + rdx], 1")) - 1.0;
    // The words are 0: each address equals the address before.
    let load = cycles(copies!(slices, "mov rax, [rsi + rax]"));
    // As fast as an addition: a measurement may come out a little shorter.
    let at_least_none = |cycles: f64| if cycles > -0.2 { cycles.max(0.0) } else { f64::NAN };
    Machine {
        clock: 1.0 / shortest,
        width,
        loads,
        wide_loads,
        stores,
        close_stores,
        integers,
        floats,
        load,
        forward: at_least_none(forward),
        forward_anew: at_least_none(forward_anew),
        add,
        multiply,
        pause,
        timestamp,
        ..Machine::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the processor, its parts come in an order, and nothing has to be replaced.
    #[test]
    fn what_is_measured_is_a_processor() {
        let slices = Slices::begin();
        let raw = core(&slices);
        assert_eq!(raw, raw.plausible());
        assert!(raw.width + 0.5 > raw.loads && raw.loads + 0.2 > raw.wide_loads, "{raw:?}");
        assert!(raw.width + 0.5 > raw.integers && raw.integers > 0.9, "{raw:?}");
        assert!(raw.close_stores + 0.2 > raw.stores && raw.forward_anew + 0.5 > raw.forward, "{raw:?}");
        assert!(raw.width > 1.5 && raw.multiply + 0.2 > raw.add && raw.load > 2.5, "{raw:?}");
        let [second, last, memory] = levels(&[], raw.clock, &slices);
        // Equal where a neighbour has the last cache for itself all the while.
        assert!(
            second.latency < memory.latency && last.latency <= memory.latency,
            "{second:?} {last:?} {memory:?}"
        );
        assert!(
            [second, last, memory].iter().all(|level| level.stored >= level.between && level.stored < 200.0),
            "{second:?} {last:?} {memory:?}"
        );
        assert_eq!([second.from, last.from, memory.from], USUAL_LINES);
    }
}
