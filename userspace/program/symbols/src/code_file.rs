//! Functions of a file on disk with their code: for reports that read the program again.
//!
//! Sources of error: a function without unwind tables ends
//! at the symbol's stated end, or at the next symbol.

use std::fmt;
use std::fs::File;
use std::path::Path;

use crate::cfi;
use crate::demangle::demangle;
use crate::elf::Bytes;
use crate::module::Module;

/// Bytes of a function that are read.
const LARGEST: u64 = 4 << 20;

/// Why a file cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CodeUnreadable {
    /// The system says so.
    Io(String),
    /// It is no x86-64 ELF file.
    NotElf,
    /// Another build than the traced one: found, traced.
    Another(String, String),
}

impl fmt::Display for CodeUnreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodeUnreadable::Io(why) => f.write_str(why),
            CodeUnreadable::NotElf => f.write_str("it is no x86-64 ELF file"),
            CodeUnreadable::Another(found, traced) => {
                write!(
                    f,
                    "it was replaced since the trace: its build id is {found}, the traced one's {traced}"
                )
            }
        }
    }
}

/// An opened file.
#[derive(Debug)]
pub struct CodeFile(Module);

/// A function with its code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionCode {
    /// Demangled name, or the file's name and the address.
    pub name: String,
    /// Symbol at the start of the function, as in the file.
    pub symbol: Option<String>,
    /// Address in the file's own address space.
    pub start: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl CodeFile {
    /// Opens a file; with a build id, another file at the path is refused.
    ///
    /// # Errors
    /// See [`CodeUnreadable`].
    pub fn open(path: &Path, build_id: &str) -> Result<Self, CodeUnreadable> {
        let file = File::open(path).map_err(|error| CodeUnreadable::Io(error.to_string()))?;
        let bytes = Bytes::map(&file).map_err(|error| CodeUnreadable::Io(error.to_string()))?;
        let name = path.to_string_lossy();
        let module = Module::new(&name, bytes, Some(file), Path::new("/")).ok_or(CodeUnreadable::NotElf)?;
        let found = module.info.build_id.clone();
        if !build_id.is_empty() && found != build_id {
            let found = if found.is_empty() { "none".to_owned() } else { found };
            return Err(CodeUnreadable::Another(found, build_id.to_owned()));
        }
        Ok(Self(module))
    }

    /// Whether an address lies in the file's code.
    pub fn has_code(&self, address: u64) -> bool {
        self.0.elf.is_code(address)
    }

    /// The function around an address.
    pub fn function(&self, address: u64) -> Option<FunctionCode> {
        if !self.has_code(address) || self.stub(address).is_some() {
            return None;
        }
        let symbol = self.0.symbol_range(address);
        let entry = cfi::entry_range(&self.0.elf, address);
        let (start, end) = match (&entry, &symbol) {
            (Some(range), _) => (range.start, range.end),
            (None, Some((range, _))) => (range.start, range.end),
            (None, None) => return None,
        };
        let own = symbol.as_ref().filter(|(range, _)| range.start == start);
        let own = own.map(|(_, name)| name.clone());
        let name = match symbol {
            Some((range, name)) if range.start == start => demangle(&name),
            Some((_, name)) => format!("{} at {start:x}", demangle(&name)),
            None => {
                let path = Path::new(&self.0.info.path);
                let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                format!("{file}+0x{start:x}")
            }
        };
        let len = usize::try_from(end.checked_sub(start)?.min(LARGEST)).ok()?;
        let bytes = self.0.elf.at(start, len)?.to_vec();
        Some(FunctionCode { name, symbol: own, start, bytes })
    }

    /// Name of the function that a stub of the linkage table leads to.
    pub fn stub(&self, address: u64) -> Option<String> {
        self.0.stub(address).map(|(_, name)| name.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_test_itself_are_read_and_others_refused() {
        let own = Path::new("/proc/self/exe");
        let file = CodeFile::open(own, "").unwrap();
        let entry = file.0.elf.bytes.get(24..32).unwrap();
        let entry = u64::from_le_bytes(entry.try_into().unwrap());
        let start = file.function(entry).unwrap();
        assert!(start.start == entry && !start.bytes.is_empty(), "{start:?}");
        assert_eq!(file.function(1), None);
        let refused = CodeFile::open(own, "00ff").unwrap_err().to_string();
        assert!(refused.contains("replaced since the trace") && refused.contains("00ff"), "{refused}");
        assert_eq!(CodeFile::open(Path::new("/etc/passwd"), "").unwrap_err(), CodeUnreadable::NotElf);
        assert!(matches!(CodeFile::open(Path::new("/no/such/file"), ""), Err(CodeUnreadable::Io(_))));
    }
}
