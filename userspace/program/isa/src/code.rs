//! A piece of the traced program's code. Decoding only; what an instruction does is elsewhere.

use iced_x86::{self as x86, Decoder, DecoderError, DecoderOptions, FlowControl, Instruction};

/// Code bytes with the address of the first byte.
#[derive(Debug, Clone, Copy)]
pub struct Code<'a> {
    /// Address of `bytes[0]` in the traced program.
    pub address: u64,
    /// The bytes, with uprobe breakpoints already replaced by the file's own bytes.
    pub bytes: &'a [u8],
}

/// Why there is no instruction at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undecoded {
    /// The address, or the end of the instruction there, lies outside the bytes.
    Outside,
    /// The bytes are no instruction, or a different one on other processors.
    Invalid,
}

impl<'a> Code<'a> {
    /// Index of the byte at `address`.
    pub(crate) fn index(&self, address: u64) -> Option<usize> {
        let index = usize::try_from(address.wrapping_sub(self.address)).ok()?;
        (index < self.bytes.len()).then_some(index)
    }

    /// A decoder that can be moved through the bytes with [`Code::decode`].
    pub(crate) fn decoder(&self) -> Decoder<'a> {
        Decoder::with_ip(64, self.bytes, self.address, DecoderOptions::NONE)
    }

    /// The instruction at `address`.
    pub(crate) fn decode(&self, decoder: &mut Decoder<'a>, address: u64) -> Result<Instruction, Undecoded> {
        let index = self.index(address).ok_or(Undecoded::Outside)?;
        decoder.set_position(index).map_err(|_| Undecoded::Outside)?;
        decoder.set_ip(address);
        let instruction = decoder.decode();
        match decoder.last_error() {
            DecoderError::None if is_ambiguous(self.bytes.get(index..).unwrap_or_default(), &instruction) => {
                Err(Undecoded::Invalid)
            }
            DecoderError::None => Ok(instruction),
            DecoderError::NoMoreBytes => Err(Undecoded::Outside),
            _ => Err(Undecoded::Invalid),
        }
    }
}

/// Whether AMD processors take the instruction that `bytes` begin with for another than
/// Intel's: they obey the operand-size prefix of a branch (the target has 16 bits),
/// know no prefetch of a register, and exchange registers where a pause has REX.B.
/// Compilers make no ambiguous instructions: branches with the prefix have REX.W too.
pub fn is_ambiguous(bytes: &[u8], instruction: &Instruction) -> bool {
    match instruction.code() {
        x86::Code::Reservednop_rm16_r16_0F0D
        | x86::Code::Reservednop_rm32_r32_0F0D
        | x86::Code::Reservednop_rm64_r64_0F0D => true,
        x86::Code::Pause => instruction.len() != 2,
        code => {
            instruction.flow_control() != FlowControl::Next
                && bytes.iter().take(instruction.len()).any(|byte| *byte == 0x66)
                && Decoder::with_ip(64, bytes, instruction.ip(), DecoderOptions::AMD).decode().code() != code
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processors_of_two_makers_take_for_different_instructions() {
        let is_decoded = |bytes: &[u8]| {
            let code = Code { address: 0x1000, bytes };
            code.decode(&mut code.decoder(), 0x1000).is_ok()
        };
        // loope, jmp, call and ret with the prefix; a prefetch of a register; xchg r8, rax or pause.
        let others: [&[u8]; 6] = [
            &[0x66, 0xe1, 0x10],
            &[0x66, 0xe9, 0x10, 0, 0, 0],
            &[0x66, 0xe8, 0x10, 0, 0, 0],
            &[0x66, 0xc3],
            &[0x0f, 0x0d, 0xd4],
            &[0xf3, 0x49, 0x90],
        ];
        assert_eq!(others.map(is_decoded), [false; 6]);
        // Without the prefix, or as compilers have it: call __tls_get_addr; prefetchw [rax]; pause.
        let same: [&[u8]; 5] = [
            &[0xe1, 0x10],
            &[0xe9, 0x10, 0, 0, 0],
            &[0x66, 0x66, 0x48, 0xe8, 0x10, 0, 0, 0],
            &[0x0f, 0x0d, 0x08],
            &[0xf3, 0x90],
        ];
        assert_eq!(same.map(is_decoded), [true; 5]);
    }
}
