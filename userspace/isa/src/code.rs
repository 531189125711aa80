//! A piece of the traced program's code. Decoding only; what an instruction does is elsewhere.

use iced_x86::{Decoder, DecoderError, DecoderOptions, Instruction};

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
    /// The bytes are no instruction.
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
            DecoderError::None => Ok(instruction),
            DecoderError::NoMoreBytes => Err(Undecoded::Outside),
            _ => Err(Undecoded::Invalid),
        }
    }
}
