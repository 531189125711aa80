//! Gathers and scatters, element by element: one access for each element that the mask selects.

use iced_x86::{CpuidFeature, Instruction, Mnemonic as M, Register};
use locality_stream::Kind;

use crate::machine::{Machine, Step};
use crate::op::Op;
use crate::whitelist::Host;
use crate::window::End;

/// Bytes of an index and of a datum, and whether it stores.
fn shape(mnemonic: M) -> Option<(usize, usize, bool)> {
    Some(match mnemonic {
        M::Vpgatherdd | M::Vgatherdps => (4, 4, false),
        M::Vpgatherdq | M::Vgatherdpd => (4, 8, false),
        M::Vpgatherqd | M::Vgatherqps => (8, 4, false),
        M::Vpgatherqq | M::Vgatherqpd => (8, 8, false),
        M::Vpscatterdd | M::Vscatterdps => (4, 4, true),
        M::Vpscatterdq | M::Vscatterdpd => (4, 8, true),
        M::Vpscatterqd | M::Vscatterqps => (8, 4, true),
        M::Vpscatterqq | M::Vscatterqpd => (8, 8, true),
        _ => return None,
    })
}

/// Whether the instruction is a gather known to this processor.
pub(crate) fn is_known(instruction: &Instruction, host: Host) -> bool {
    let has = |feature: &CpuidFeature| match feature {
        CpuidFeature::AVX2 => std::is_x86_feature_detected!("avx2"),
        CpuidFeature::AVX512F | CpuidFeature::AVX512VL => host.avx512,
        _ => false,
    };
    shape(instruction.mnemonic()).is_some() && instruction.cpuid_features().iter().all(has)
}

/// An element of a vector register, of 4 or 8 bytes.
fn element(vector: &[u8; 64], n: usize, size: usize) -> u64 {
    let (words, pairs) = (vector.as_chunks::<4>().0, vector.as_chunks::<8>().0);
    match size {
        4 => words.get(n).map_or(0, |bytes| u32::from_le_bytes(*bytes).into()),
        _ => pairs.get(n).map_or(0, |bytes| u64::from_le_bytes(*bytes)),
    }
}

fn set_element(vector: &mut [u8; 64], n: usize, size: usize, value: u64) {
    for (to, from) in vector.iter_mut().skip(n * size).take(size).zip(value.to_le_bytes()) {
        *to = from;
    }
}

impl Machine<'_> {
    fn vector(&self, register: Register) -> [u8; 64] {
        self.context.vectors[register.number() & 31]
    }

    /// Runs a gather or a scatter.
    pub(crate) fn gather(&mut self, op: &Op, index: u32, instruction: &Instruction) -> Step {
        let Some((index_size, size, stores)) = shape(instruction.mnemonic()) else {
            return self.stop(End::Unsupported, op.ip);
        };
        if op.place.is_short {
            return self.stop(End::Unsupported, op.ip);
        }
        let named = instruction.op_register(if stores { 1 } else { 0 });
        let indices = instruction.memory_index();
        let count = (named.size() / size).min(indices.size() / index_size);
        let mask = instruction.op_mask();
        let uses_mask_register = mask != Register::None;
        let selected: u64 = if uses_mask_register {
            self.context.masks[mask.number() & 7]
        } else {
            let signs = self.vector(instruction.op2_register());
            (0..count).map(|n| (element(&signs, n, size) >> (size * 8 - 1) & 1) << n).sum()
        };
        let base = self.address(&op.place);
        let scale = instruction.memory_index_scale();
        let index_vector = self.vector(indices);
        let address = |n: usize| {
            let at = element(&index_vector, n, index_size);
            let at = if index_size == 4 { at as u32 as i32 as i64 as u64 } else { at };
            base.wrapping_add(at.wrapping_mul(scale.into()))
        };
        let chosen = || (0..count).filter(|n| selected >> n & 1 != 0);
        let mut data = self.vector(named);
        let bytes = size as u16;
        if stores {
            // First whether all may be written, since a window stops before an instruction, not in it.
            for n in chosen() {
                for at in [address(n), address(n).wrapping_add(size as u64 - 1)] {
                    if let Err((end, detail)) = self.pages.write(at, self.memory) {
                        return self.stop(end, detail);
                    }
                }
            }
            for n in chosen() {
                self.store_event(Kind::STORE, index, address(n), bytes, element(&data, n, size))?;
            }
        } else {
            for n in chosen() {
                let value = self.load(address(n), bytes)?;
                set_element(&mut data, n, size, value);
            }
            for n in chosen() {
                self.record.access(Kind::LOAD, index, address(n), bytes, element(&data, n, size));
            }
            data[(count * size).min(64)..].fill(0);
            self.context.vectors[named.number() & 31] = data;
        }
        if uses_mask_register {
            self.context.masks[mask.number() & 7] = 0;
        } else {
            self.context.vectors[instruction.op2_register().number() & 31] = [0; 64];
        }
        Ok(())
    }
}
