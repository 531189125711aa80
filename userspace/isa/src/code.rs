//! A piece of the traced program's code. Decoding only; what an instruction does is elsewhere.

use iced_x86::{Decoder, DecoderError, DecoderOptions, FlowControl, Instruction};

/// Code bytes with the address of the first one.
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
    /// The bytes are no instruction, or another one to other processors.
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
            DecoderError::None if self.is_ambiguous(index, &instruction) => Err(Undecoded::Invalid),
            DecoderError::None => Ok(instruction),
            DecoderError::NoMoreBytes => Err(Undecoded::Outside),
            _ => Err(Undecoded::Invalid),
        }
    }

    /// Whether it is a branch whose operand-size prefix AMD processors heed (the target has 16 bits) and Intel's ignore. No compiler
    /// makes such: theirs have REX.W too.
    fn is_ambiguous(&self, index: usize, instruction: &Instruction) -> bool {
        let bytes = self.bytes.get(index..).unwrap_or_default();
        instruction.flow_control() != FlowControl::Next
            && bytes.iter().take(instruction.len()).any(|byte| *byte == 0x66)
            && Decoder::with_ip(64, bytes, instruction.ip(), DecoderOptions::AMD).decode().code()
                != instruction.code()
    }
}
