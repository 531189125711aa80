//! Compressed sections of files from untrusted makers: each claimed size
//! is checked before allocation, and unpacking ends at the claimed size.
//!
//! A header may claim any size, and an allocation that fails ends the process. Deflate cannot give
//! more than 1,032 times its bytes (zlib's technical notes, <https://zlib.net/zlib_tech.html>);
//! debug information compresses to a fifth.

use std::io::Read as _;

use object::read::elf::ElfFile64;
use object::{CompressedData, CompressionFormat, Endianness, Object as _, ObjectSection as _};

/// Largest section, in bytes as unpacked.
const SECTION_BYTES: u64 = 1 << 30;
/// Largest sum of a file's compressed sections, in bytes as unpacked.
const FILE_BYTES: u64 = 2 << 30;
/// Largest ratio of the bytes as unpacked to the bytes in the file.
const RATIO: u64 = 1032;

/// Whether the compressed sections of an ELF file claim no more than
/// possible, each and in sum. True for bytes that are no ELF file of 64 bits.
pub fn claims_are_bounded(elf: &[u8]) -> bool {
    ElfFile64::<Endianness>::parse(elf).map_or(true, |file| compressed(&file).is_some())
}

/// The same, within the claimed size.
pub(crate) fn is_bounded(elf: &[u8]) -> bool {
    let Ok(file) = ElfFile64::<Endianness>::parse(elf) else { return true };
    let Some((compressed, packed)) = compressed(&file) else { return false };
    // blazesym unpacks to the end of the stream, whatever the header claims.
    packed.saturating_mul(RATIO) <= SECTION_BYTES
        || compressed.iter().all(|data| inflated_bytes(data.data, data.uncompressed_size).is_some())
}

/// The sections packed by zlib, and the bytes of all packed
/// sections in the file; `None` if a section claims too much.
fn compressed<'d>(file: &ElfFile64<'d, Endianness>) -> Option<(Vec<CompressedData<'d>>, u64)> {
    let (mut claimed, mut packed) = (0u64, 0u64);
    let mut compressed = Vec::new();
    for section in file.sections() {
        let Ok(range) = section.compressed_file_range() else {
            // A section outside the file, or with half a header: no reader gets anything from it.
            continue;
        };
        if range.format == CompressionFormat::None {
            continue;
        }
        claimed = claimed.saturating_add(range.uncompressed_size);
        packed = packed.saturating_add(range.compressed_size);
        if !may_claim(range.uncompressed_size, range.compressed_size) || claimed > FILE_BYTES {
            return None;
        }
        if range.format == CompressionFormat::Zlib {
            compressed.extend(section.compressed_data());
        }
    }
    Some((compressed, packed))
}

fn may_claim(unpacked: u64, packed: u64) -> bool {
    unpacked <= SECTION_BYTES && unpacked <= packed.saturating_mul(RATIO)
}

/// The bytes of a zlib stream; `None` for more than `most`. A broken stream gives its bytes up to
/// the fault.
fn inflated_bytes(stream: &[u8], most: u64) -> Option<u64> {
    let mut decoder = flate2::bufread::ZlibDecoder::new(stream);
    let (mut piece, mut bytes) = (vec![0; 1 << 16], 0u64);
    loop {
        match decoder.read(&mut piece) {
            Ok(0) | Err(_) => return Some(bytes),
            Ok(read) => bytes += read as u64,
        }
        if bytes > most {
            return None;
        }
    }
}

/// The bytes of a compressed section; a sentence for a claim that is too large, or wrong.
///
/// # Errors
/// Why it is refused.
pub fn unpacked(data: &CompressedData<'_>) -> Result<Vec<u8>, String> {
    if !may_claim(data.uncompressed_size, data.data.len() as u64) {
        return Err("claims more than it can hold".to_owned());
    }
    let mut bytes = Vec::new();
    // One byte more than was claimed betrays a section that holds more.
    let most = data.uncompressed_size + 1;
    let read = match data.format {
        CompressionFormat::Zlib => {
            flate2::bufread::ZlibDecoder::new(data.data).take(most).read_to_end(&mut bytes)
        }
        CompressionFormat::Zstandard => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(data.data);
            decoder
                .map_err(std::io::Error::other)
                .and_then(|decoder| decoder.take(most).read_to_end(&mut bytes))
        }
        _ => return Err("is compressed in an unknown way".to_owned()),
    };
    match read {
        Err(error) => Err(format!("cannot be unpacked: {error}")),
        Ok(read) if read as u64 != data.uncompressed_size => Err("does not hold what it claims".to_owned()),
        Ok(_) => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::ZlibEncoder};
    use std::io::Write as _;

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// An ELF file with such compressed sections: claimed size and zlib stream.
    fn elf(sections: &[(u64, Vec<u8>)]) -> Vec<u8> {
        let mut file = object::write::Object::new(
            object::BinaryFormat::Elf,
            object::Architecture::X86_64,
            object::Endianness::Little,
        );
        for (index, (claimed, stream)) in sections.iter().enumerate() {
            let name = format!(".debug_{index}").into_bytes();
            let section = file.add_section(Vec::new(), name, object::SectionKind::Debug);
            file.section_mut(section).flags =
                object::SectionFlags::Elf { sh_flags: u64::from(object::elf::SHF_COMPRESSED) };
            // Elf64_Chdr: type, reserved, size, alignment.
            let header = [1, *claimed, 1].map(u64::to_le_bytes).concat();
            file.append_section_data(section, &[&header, stream.as_slice()].concat(), 1);
        }
        file.write().unwrap()
    }

    #[test]
    fn claims_and_bombs() {
        let stream = zlib(&[7; 100_000]);
        assert!(is_bounded(&elf(&[(100_000, stream.clone())])) && is_bounded(b"no ELF file"));
        for claimed in [1 << 60, u64::MAX, SECTION_BYTES + 1, stream.len() as u64 * RATIO + 1] {
            assert!(!is_bounded(&elf(&[(claimed, stream.clone())])), "{claimed}");
        }
        // Each claims what it may, all of them more than a file may.
        let large = vec![0; (SECTION_BYTES / RATIO + 1) as usize];
        assert!(!is_bounded(&elf(&[(1 << 30, large.clone()), (1 << 30, large.clone()), (1 << 30, large)])));
        // A stream that gives more than it claims, in a file large enough for the difference to matter.
        let bomb = (1000, zlib(&vec![0; 1 << 20]));
        let ballast = (10, vec![0; (SECTION_BYTES / RATIO) as usize]);
        assert!(is_bounded(&elf(std::slice::from_ref(&bomb))));
        assert!(!is_bounded(&elf(&[bomb, ballast.clone()])) && is_bounded(&elf(&[ballast])));
    }

    #[test]
    fn unpacking_ends_where_the_claim_ends() {
        let data = |claimed: u64, format, data: &[u8]| {
            let data = CompressedData { format, data, uncompressed_size: claimed };
            unpacked(&data)
        };
        let stream = zlib(&[7; 100_000]);
        assert_eq!(data(100_000, CompressionFormat::Zlib, &stream).unwrap(), [7; 100_000]);
        for claimed in [0, 99_999, 100_001, 1 << 60] {
            assert!(data(claimed, CompressionFormat::Zlib, &stream).is_err(), "{claimed}");
        }
        // A frame of zstd whose one block repeats a byte 100,000 times (RFC 8878, 3.1.1).
        let zstd = [0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0xa0, 0x86, 0x01, 0x00, 0x03, 0x35, 0x0c, 0x07];
        assert!(data(100_000, CompressionFormat::Zstandard, &zstd).is_err(), "13 bytes cannot claim so much");
        let padded = [zstd.as_slice(), &[0; 200]].concat();
        assert_eq!(data(100_000, CompressionFormat::Zstandard, &padded).unwrap(), [7; 100_000]);
        assert!(data(5_000, CompressionFormat::Zstandard, &padded).is_err());
    }
}
