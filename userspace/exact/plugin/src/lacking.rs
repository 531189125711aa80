//! Whether processors have an instruction that QEMU's user mode lacks.
//!
//! For the message after a SIGILL. By encoding: QEMU (7.2 to 10.0,
//! `target/i386/tcg/decode-new.c.inc`) decodes no EVEX prefix, hence no AVX-512,
//! and neither XOP nor 3DNow!. Not here: whether the instruction was executed.

use iced_x86::{Decoder, DecoderOptions, EncodingKind, Mnemonic};

/// Name of the instruction in the bytes: "vpaddd (AVX512F)";
/// `None` if QEMU has the instruction, or no processor has.
pub fn lacking(bytes: &[u8]) -> Option<String> {
    let decoded = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    let lacks = matches!(decoded.encoding(), EncodingKind::EVEX | EncodingKind::XOP | EncodingKind::D3NOW);
    if decoded.is_invalid() || decoded.mnemonic() == Mnemonic::INVALID || !lacks {
        return None;
    }
    let features: Vec<String> = decoded.cpuid_features().iter().map(|each| format!("{each:?}")).collect();
    let name = format!("{:?}", decoded.mnemonic()).to_lowercase();
    Some(format!("{name} ({})", features.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_qemu_lacks_is_named() {
        let vpaddd = [0x62, 0xf1, 0x7d, 0x48, 0xfe, 0xc1];
        assert_eq!(lacking(&vpaddd).unwrap(), "vpaddd (AVX512F)");
        assert_eq!(lacking(&vpaddd[..3]), None, "cut short");
        assert_eq!(lacking(&[0x0f, 0x0b]), None, "ud2 is for nobody");
        assert_eq!(lacking(&[0xc5, 0xfd, 0xfe, 0xc1]), None, "QEMU has AVX2");
        assert_eq!(lacking(&[]), None);
    }
}
