//! The stubs of the procedure linkage table: which function each one jumps to.
//!
//! A stub has no symbol, so the symbol before it would be named in its place (`_init`). Every form
//! jumps through a word of the global offset table, and the relocation of that word names the
//! function (AMD64 supplement, §5.2): lazy and immediate binding, `.plt.sec` for processors that
//! check branch targets, `.plt.got`. The lazy half of a table with `.plt.sec` pushes the number of
//! the relocation instead. Names are those of perf and objdump: `memcpy@plt`.
//!
//! Limits: found by section headers; 65,536 stubs and a million relocations of a file are read.

use std::collections::HashMap;

use object::Endianness;
use object::elf;
use object::read::elf::{ElfFile64, Rela, SectionHeader, Sym};

/// Most stubs and relocations of one file.
const MAX_STUBS: usize = 1 << 16;
const MAX_RELOCATIONS: usize = 1 << 20;
/// Bytes of a stub, where the section does not say.
const STUB_BYTES: u64 = 16;
/// A stub to no function.
const RESOLVER: &str = "[.plt]";

/// A stub.
#[derive(Debug, PartialEq, Eq)]
struct Stub {
    start: u64,
    end: u64,
    name: String,
}

/// All stubs of a file, by address.
#[derive(Debug, Default)]
pub(crate) struct Stubs(Vec<Stub>);

/// What a relocation puts into a word.
enum Put {
    Symbol(String),
    /// The address of a function that chooses another one.
    Chooser(u64),
}

impl Stubs {
    /// Reads the sections that hold stubs. `function` names a function of the file by its address.
    pub(crate) fn read(bytes: &[u8], function: &dyn Fn(u64) -> Option<String>) -> Self {
        let Ok(file) = ElfFile64::<Endianness>::parse(bytes) else { return Self::default() };
        let mut stubs = Vec::new();
        let mut found: Option<(HashMap<u64, Put>, Vec<u64>)> = None;
        for section in file.elf_section_table().iter() {
            let endian = file.endian();
            let name = file.elf_section_table().section_name(endian, section).unwrap_or_default();
            if section.sh_type(endian) != elf::SHT_PROGBITS
                || !matches!(name, b".plt" | b".plt.sec" | b".plt.got" | b".plt.bnd" | b".iplt")
            {
                continue;
            }
            let Ok(code) = section.data(endian, bytes) else { continue };
            let (words, numbers) = found.get_or_insert_with(|| relocations(&file, bytes));
            let named = section.sh_entsize(endian);
            let step = if matches!(named, 8 | 16) { named } else { STUB_BYTES };
            let start = section.sh_addr(endian);
            for (index, code) in code.chunks(step as usize).enumerate().take(MAX_STUBS) {
                let at = start.wrapping_add(index as u64 * step);
                let word = slot(code, at).or_else(|| numbers.get(pushed(code)?).copied());
                let target = word.and_then(|word| words.get(&word)).and_then(|put| match put {
                    Put::Symbol(name) => Some(name.clone()),
                    Put::Chooser(address) => function(*address),
                });
                // The first of a lazy table leads to the dynamic linker's resolver.
                let name = target.map_or_else(|| RESOLVER.to_owned(), |target| format!("{target}@plt"));
                stubs.push(Stub { start: at, end: at.saturating_add(step), name });
            }
            if stubs.len() >= MAX_STUBS {
                break;
            }
        }
        stubs.sort_by_key(|stub| stub.start);
        Self(stubs)
    }

    /// Start and name of the stub around an address.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &str)> {
        let behind = self.0.partition_point(|stub| stub.start <= address);
        let stub = self.0.get(behind.checked_sub(1)?)?;
        (address < stub.end).then_some((stub.start, &*stub.name))
    }
}

/// Targets of the dynamic relocations, and the places numbered for lazy binding.
fn relocations(file: &ElfFile64<'_, Endianness>, bytes: &[u8]) -> (HashMap<u64, Put>, Vec<u64>) {
    let endian = file.endian();
    let (mut words, mut numbers, mut left) = (HashMap::new(), Vec::new(), MAX_RELOCATIONS);
    let table = file.elf_dynamic_symbol_table();
    for section in file.elf_section_table().iter() {
        let Ok(Some((entries, _))) = SectionHeader::rela(section, endian, bytes) else { continue };
        // Those of relocatable files are no matter of a loaded one.
        if section.sh_flags(endian) & u64::from(elf::SHF_ALLOC) == 0 {
            continue;
        }
        let name = file.elf_section_table().section_name(endian, section).unwrap_or_default();
        let is_lazy = matches!(name, b".rela.plt" | b".rela.iplt");
        for entry in entries.iter().take(left) {
            let place = entry.r_offset(endian);
            if is_lazy && numbers.len() < MAX_STUBS {
                numbers.push(place);
            }
            let put = match entry.r_type(endian, false) {
                elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT | elf::R_X86_64_64 => {
                    let number = entry.symbol(endian, false);
                    let symbol = number.and_then(|number| table.symbol(number).ok());
                    let name = symbol.and_then(|symbol| symbol.name(endian, table.strings()).ok());
                    name.map(|name| Put::Symbol(String::from_utf8_lossy(name).into_owned()))
                }
                elf::R_X86_64_IRELATIVE => Some(Put::Chooser(entry.r_addend.get(endian).cast_unsigned())),
                _ => None,
            };
            if let Some(put) = put {
                words.insert(place, put);
            }
        }
        left = left.saturating_sub(entries.len());
    }
    (words, numbers)
}

/// The word that a stub at an address jumps through: `jmp *displacement(%rip)`.
fn slot(code: &[u8], at: u64) -> Option<u64> {
    let found = code.windows(6).position(|window| window.starts_with(&[0xff, 0x25]))?;
    let displacement = code.get(found + 2..)?.first_chunk::<4>()?;
    let next = at.wrapping_add(found as u64 + 6);
    Some(next.wrapping_add_signed(i32::from_le_bytes(*displacement).into()))
}

/// The number that a stub of lazy binding pushes: `endbr64; push $number; jmp`.
fn pushed(code: &[u8]) -> Option<usize> {
    let code = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    let number = code.strip_prefix(&[0x68])?.first_chunk::<4>()?;
    usize::try_from(u32::from_le_bytes(*number)).ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SOURCE: &str = "#include <string.h>\n#include <stdlib.h>\n#include <stdio.h>\n\
        int main(int n, char **v) { void *(*p)(size_t) = malloc; char *a = p(n), *b = malloc(64);\n\
        memcpy(a, v, n); memset(b, n, 64); puts(a); return strlen(b) > 9; }\n";

    /// Names by address, as objdump has them.
    fn oracle(program: &std::path::Path) -> Vec<(u64, String)> {
        let mut objdump = Command::new("objdump");
        objdump.args(["-d", "-j.plt", "-j.plt.sec", "-j.plt.got"]).arg(program);
        let said = objdump.output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let labels = said.lines().filter_map(|line| {
            let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
            Some((u64::from_str_radix(address, 16).ok()?, name.to_owned()))
        });
        labels.filter(|(_, name)| name.ends_with("@plt")).collect()
    }

    /// Every form of table, with symbols and without, by objdump's reading.
    #[test]
    fn every_form_is_named_as_objdump_does() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("calls.c");
        std::fs::write(&source, SOURCE).unwrap();
        for flags in [
            "-Wl,-z,lazy",
            "-Wl,-z,now",
            "-fcf-protection=full -Wl,-z,ibtplt -Wl,-z,lazy",
            "-fcf-protection=full -Wl,-z,ibtplt -Wl,-z,now",
            "-no-pie -Wl,-z,lazy",
            "-Wl,-z,lazy -s",
            "-Wl,-z,now -s",
        ] {
            let program = folder.path().join("calls");
            let mut gcc = Command::new("gcc");
            gcc.args(["-O1", "-fno-builtin", "-o"]).arg(&program).arg(&source).args(flags.split(' '));
            assert!(gcc.status().unwrap().success());
            let stubs = Stubs::read(&std::fs::read(&program).unwrap(), &|_| None);
            let wanted = oracle(&program);
            assert!(wanted.len() >= 5, "{flags}: {wanted:?}");
            assert!(wanted.iter().any(|(_, name)| name == "memcpy@plt"), "{flags}: {wanted:?}");
            for (address, name) in wanted {
                for inside in [0, 5, 7] {
                    assert_eq!(stubs.find(address + inside), Some((address, &*name)), "{flags}");
                }
            }
        }
    }

    /// Any bytes in the place of the file's may be read.
    #[test]
    fn broken_files_cost_only_names() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let header = usize::try_from(u64::from_le_bytes(whole[40..48].try_into().unwrap())).unwrap();
        for number in 0..200 {
            let mut bytes = whole.clone();
            for at in (0..64).map(|index| header + (number * 64 + index * 7919) % (whole.len() - header)) {
                bytes[at] = bytes[at].wrapping_mul(31).wrapping_add(number as u8);
            }
            let _ = Stubs::read(&bytes, &|_| None);
        }
        let empty = Stubs::default();
        assert_eq!(empty.find(0), None);
    }
}
