//! Progress inside one repeated string instruction: its counter gives the accesses between two
//! readings.
//!
//! No window need be asked for accesses per step, since each repetition makes one access or two. Two
//! readings belong to one execution if both stand at the instruction and foretell the same end.
//! Sources of error: bytes that the processor moves in blocks count one by one, as they do in
//! windows and in exact runs.

use locality_stream::Code;

use crate::speed_fit::Track;
use crate::types::Reading;

const RCX: usize = 1;
const RSI: usize = 6;
const RDI: usize = 7;
/// Repetitions from which an interval counts.
const FEWEST: u64 = 64;

/// A repeated string instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Repeated {
    /// Bytes of an element.
    size: u64,
    /// Accesses of a repetition.
    accesses: u64,
    /// The register that points to the elements.
    pointer: usize,
}

/// Reads an instruction's bytes: prefixes, a repetition among them, and the opcode of a string instruction.
fn repeated(code: &[u8]) -> Option<Repeated> {
    let (mut repeats, mut narrow, mut wide) = (false, false, false);
    let opcode = code.iter().find(|byte| match byte {
        0xf2 | 0xf3 => {
            repeats = true;
            false
        }
        0x66 => {
            narrow = true;
            false
        }
        0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x67 => false,
        0x40..=0x4f => {
            wide = **byte & 8 != 0;
            false
        }
        _ => true,
    })?;
    let (accesses, pointer) = match opcode & !1 {
        0xa4 | 0xa6 => (2, RDI),
        0xaa | 0xae => (1, RDI),
        0xac => (1, RSI),
        _ => return None,
    };
    let size = match (opcode & 1, wide, narrow) {
        (0, ..) => 1,
        (_, true, _) => 8,
        (_, _, true) => 2,
        _ => 4,
    };
    repeats.then_some(Repeated { size, accesses, pointer })
}

/// Accesses per nanosecond while the readings stood in one execution of such an instruction; `tick_ns` as for
/// [`crate::Rates::new`].
pub(crate) fn track(readings: &[Reading], code: &Code<'_>, tick_ns: f64) -> Option<Track> {
    let mut pieces: Vec<(f64, f64)> = Vec::new();
    for (a, b) in readings.iter().zip(readings.iter().skip(1)) {
        if a.ip != b.ip || a.switches != b.switches {
            continue;
        }
        // Code that was changed has a newer record.
        let Some(record) = code.instructions.iter().rev().find(|record| record.address == a.ip) else {
            continue;
        };
        let Some(found) = repeated(record.code()) else { continue };
        let left = |reading: &Reading| reading.registers.get(RCX).copied().unwrap_or(0);
        let done = left(a).wrapping_sub(left(b));
        // The pointer moves as the counter does, in the direction that the flag says.
        let at = |reading: &Reading| reading.registers.get(found.pointer).copied().unwrap_or(0);
        let moved = at(b).wrapping_sub(at(a));
        let expected = done.wrapping_mul(found.size);
        if left(b) >= left(a) || done < FEWEST || (moved != expected && moved != expected.wrapping_neg()) {
            continue;
        }
        let ns = b.time_ns.saturating_sub(a.time_ns) as f64 - tick_ns;
        if ns > 0.0 {
            pieces.push(((done * found.accesses) as f64, ns));
        }
    }
    Track::pooled(&pieces)
}

#[cfg(test)]
mod tests {
    use locality_stream::InstructionRecord;

    use super::*;

    #[test]
    fn string_instructions_are_told_from_others() {
        let of = |size, accesses, pointer| Some(Repeated { size, accesses, pointer });
        assert_eq!(repeated(&[0xf3, 0xaa]), of(1, 1, RDI));
        assert_eq!(repeated(&[0xf3, 0x48, 0xa5]), of(8, 2, RDI));
        assert_eq!(repeated(&[0x66, 0xf3, 0xab]), of(2, 1, RDI));
        assert_eq!(repeated(&[0xf2, 0xae]), of(1, 1, RDI));
        assert_eq!(repeated(&[0xf3, 0xad]), of(4, 1, RSI));
        // Once, not repeated; and `popcnt`, whose prefix means something else.
        assert_eq!(repeated(&[0x48, 0xab]), None);
        assert_eq!(repeated(&[0xf3, 0x0f, 0xb8, 0xc1]), None);
    }

    fn reading(time_ns: u64, left: u64, at: u64) -> Reading {
        let mut registers = [0; 16];
        (registers[RCX], registers[RDI]) = (left, at);
        Reading { time_ns, ip: 0x1000, registers, ..Reading::default() }
    }

    #[test]
    fn only_one_execution_counts() {
        let instructions = [InstructionRecord::new(0x1000, &[0xf3, 0x48, 0xab])];
        let code = Code { instructions: &instructions, blocks: &[] };
        // 1,000 words in 500 ns; then another fill, which began anew; then 600 in 300.
        let readings = [
            reading(0, 5_000, 0),
            reading(500, 4_000, 8_000),
            reading(900, 9_000, 100),
            reading(1_200, 8_400, 4_900),
        ];
        let found = track(&readings, &code, 0.0).unwrap();
        assert!((found.speed - 2.0).abs() < 1e-9 && found.intervals == 2, "{found:?}");
        assert_eq!(track(&readings[1..3], &code, 0.0), None);
        // Backwards, as the direction flag has it, and a tick's cost.
        let found = track(&[reading(0, 5_000, 40_000), reading(600, 4_000, 32_000)], &code, 100.0).unwrap();
        assert!((found.speed - 2.0).abs() < 1e-9, "{found:?}");
        // No such instruction.
        let other = [InstructionRecord::new(0x1000, &[0x48, 0x89, 0x07])];
        assert_eq!(track(&readings, &Code { instructions: &other, blocks: &[] }, 0.0), None);
    }
}
