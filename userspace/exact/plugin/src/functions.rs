//! Code of the functions to which a run is restricted (`--function`), or
//! which are skipped (`--skip-function`): by the symbols of mapped files.
//!
//! A name means a symbol of equal name, as in the file or demangled without
//! parameters and template arguments' hash, whole or from a `::` on; parts split
//! off by a compiler (`name.cold`, `name.constprop.0`) belong to the function.
//!
//! Limits: copies inlined into callers are not found, nor functions of
//! files without a symbol table (separate debug files are looked for
//! below `/usr/lib/debug/.build-id`); generated code has no names.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    ops::Range,
    sync::Arc,
};

use crate::settings::INCLUSIVE;
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};

/// Set in the recorded addresses of chosen instructions; no address of a program has the bit.
pub const CHOSEN: u64 = 1 << 63;
/// Set in the recorded addresses of functions with costs charged to callers in a simulation.
pub const SKIPPED: u64 = locality_cachesim::SKIPPED;
/// Set in the recorded address of the first instruction of the first function
/// with whole calls distinguished; the bits of further functions follow.
pub const BEGINS: u64 = 1 << 48;
/// Marks of the functions with whole calls distinguished.
pub const BEGINS_ANY: u64 = (BEGINS << INCLUSIVE) - BEGINS;
/// Set in the recorded addresses of instructions of ignored lines.
pub const IGNORED: u64 = 1 << 61;
/// Possible marks of recorded addresses.
pub const MARKS: u64 = CHOSEN | SKIPPED | IGNORED | BEGINS_ANY;
/// Names with a found bit in the header.
const TOLD: usize = 64;

/// The functions asked for, and the places in the mapped files.
#[derive(Default)]
pub struct Functions {
    files: HashMap<String, Arc<[Place]>>,
    /// Start to end, in the program's addresses.
    ranges: BTreeMap<u64, u64>,
    /// Start of each function, with the index of the name.
    begins: HashMap<u64, usize>,
}

/// A function in a file.
struct Place {
    /// Offsets in the file.
    offsets: Range<u64>,
    /// Index of the name.
    name: usize,
}

/// A mapping of a file: addresses, offset of the first address, path.
pub type Mapping<'a> = (Range<u64>, u64, &'a str);

impl Functions {
    /// Looks for the names in the mapped files. Returns a bit for each found name of the first 64.
    pub fn update(&mut self, names: &[String], mappings: &[Mapping<'_>]) -> u64 {
        self.ranges.clear();
        self.begins.clear();
        let mut found = 0;
        for (addresses, offset, path) in mappings {
            let places = self
                .files
                .entry((*path).to_owned())
                .or_insert_with(|| places(names, path).unwrap_or_default().into());
            let offsets = *offset..offset.saturating_add(addresses.end.saturating_sub(addresses.start));
            for place in places.iter() {
                let (start, end) =
                    (place.offsets.start.max(offsets.start), place.offsets.end.min(offsets.end));
                if start < end {
                    self.ranges.insert(addresses.start + (start - offset), addresses.start + (end - offset));
                    if start == place.offsets.start {
                        self.begins.insert(addresses.start + (start - offset), place.name);
                    }
                    found |= if place.name < TOLD { 1 << place.name } else { 0 };
                }
            }
        }
        found
    }

    /// The index of the function beginning at an address.
    pub fn begins(&self, address: u64) -> Option<usize> {
        self.begins.get(&address).copied()
    }

    /// Whether an address lies in a function.
    pub fn contain(&self, address: u64) -> bool {
        self.ranges.range(..=address).next_back().is_some_and(|(_, end)| address < *end)
    }
}

/// Code of ignored lines: offsets in a file, found by the parent, and the addresses where the file is mapped.
#[derive(Default)]
pub struct Lines {
    files: HashMap<String, Vec<Range<u64>>>,
    /// Start to end, in the program's addresses.
    ranges: BTreeMap<u64, u64>,
}

/// Name of the parent's list in the run's folder.
pub const LINES: &str = "ignored-lines";

impl Lines {
    /// Text of a list: `START END PATH` in each line, numbers hexadecimal.
    pub fn print(path: &str, code: &[Range<u64>]) -> String {
        code.iter().map(|code| format!("{:x} {:x} {path}\n", code.start, code.end)).collect()
    }

    /// Reads the list.
    pub fn parse(text: &str) -> Self {
        let mut lines = Self::default();
        for line in text.lines() {
            let mut fields = line.splitn(3, ' ');
            let mut number = || u64::from_str_radix(fields.next()?, 16).ok();
            if let (Some(start), Some(end)) = (number(), number())
                && let Some(path) = fields.next()
            {
                lines.files.entry(path.to_owned()).or_default().push(start..end);
            }
        }
        lines
    }

    /// Whether no line is ignored.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Finds the code in the mapped files.
    pub fn update(&mut self, mappings: &[Mapping<'_>]) {
        self.ranges.clear();
        for (addresses, offset, path) in mappings {
            let end = offset.saturating_add(addresses.end.saturating_sub(addresses.start));
            for code in self.files.get(*path).into_iter().flatten() {
                let (start, end) = (code.start.max(*offset), code.end.min(end));
                if start < end {
                    let last = self.ranges.entry(addresses.start + (start - offset)).or_default();
                    *last = (*last).max(addresses.start + (end - offset));
                }
            }
        }
    }

    /// Whether an address is ignored.
    pub fn contain(&self, address: u64) -> bool {
        self.ranges.range(..=address).next_back().is_some_and(|(_, end)| address < *end)
    }
}

/// The places of the names in a file and in the separate debug file.
fn places(names: &[String], path: &str) -> Option<Vec<Place>> {
    let bytes = fs::read(path).ok()?;
    let elf = object::File::parse(&*bytes).ok()?;
    let segments: Vec<(u64, u64, u64)> = elf
        .segments()
        .map(|segment| (segment.address(), segment.file_range().0, segment.file_range().1))
        .collect();
    let mut places = Vec::new();
    collect(&elf, names, &segments, &mut places);
    if let Some(id) = elf.build_id().ok().flatten()
        && let Some((first, rest)) = id.split_first()
    {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let path = format!("/usr/lib/debug/.build-id/{first:02x}/{}.debug", hex(rest));
        if let Ok(bytes) = fs::read(path)
            && let Ok(debug) = object::File::parse(&*bytes)
        {
            collect(&debug, names, &segments, &mut places);
        }
    }
    Some(places)
}

fn collect(elf: &object::File<'_>, names: &[String], segments: &[(u64, u64, u64)], places: &mut Vec<Place>) {
    for symbol in elf.symbols().chain(elf.dynamic_symbols()) {
        if symbol.kind() != SymbolKind::Text || symbol.size() == 0 {
            continue;
        }
        let Ok(text) = symbol.name() else { continue };
        let Some(name) = names.iter().position(|name| is_named(text, name)) else { continue };
        let segment =
            segments.iter().find(|(start, _, size)| (*start..start + size).contains(&symbol.address()));
        if let Some((start, offset, _)) = segment {
            let first = symbol.address() - start + offset;
            places.push(Place { offsets: first..first.saturating_add(symbol.size()), name });
        }
    }
}

/// Whether a symbol is the function called `name` by a user.
fn is_named(symbol: &str, name: &str) -> bool {
    if symbol == name || symbol.split('.').next() == Some(name) {
        return true;
    }
    let mangled = symbol.split('.').next().unwrap_or(symbol);
    let readable = if let Ok(rust) = rustc_demangle::try_demangle(mangled) {
        format!("{rust:#}")
    } else if mangled.starts_with("_Z") {
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
        let parsed = cpp_demangle::Symbol::new(mangled).ok();
        parsed.and_then(|parsed| parsed.demangle_with_options(&options).ok()).unwrap_or_default()
    } else {
        return false;
    };
    readable == name || readable.strip_suffix(name).is_some_and(|before| before.ends_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_known_by_the_names_that_people_use() {
        for (symbol, name, is) in [
            ("main", "main", true),
            ("main", "mai", false),
            ("work.constprop.0", "work", true),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "write", true),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write", true),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "rite", false),
            ("_ZN5Table3addEi", "Table::add", true),
            ("_ZN5Table3addEi", "add", true),
            ("_ZN5Table3addEi", "Table", false),
        ] {
            assert_eq!(is_named(symbol, name), is, "{symbol} {name}");
        }
    }

    #[test]
    fn ignored_lines_are_where_the_file_is_mapped() {
        let text = Lines::print("/a b", &[0x10..0x14, 0x1020..0x1021]) + &Lines::print("/c", &[0..4, 5..9]);
        let mut lines = Lines::parse(&text);
        lines.update(&[(0x7000..0x8000, 0x1000, "/a b"), (0x5000..0x6000, 0, "/d")]);
        assert!(lines.contain(0x7020) && !lines.contain(0x7021) && !lines.contain(0x7010));
        lines.update(&[(0x7000..0x9000, 0, "/a b")]);
        assert!(lines.contain(0x7010) && lines.contain(0x7013) && lines.contain(0x8020));
        assert!(!lines.contain(0x7014) && !lines.contain(0x6fff));
        assert!(Lines::parse("").is_empty());
    }

    #[test]
    fn a_function_of_this_program_is_found_where_it_is_mapped() {
        let path = std::env::current_exe().unwrap();
        let path = path.to_str().unwrap();
        let name = "a_function_of_this_program_is_found_where_it_is_mapped".to_owned();
        let names = [name, "no_such_function_here".to_owned()];
        let bytes = fs::metadata(path).unwrap().len();
        let mut functions = Functions::default();
        let found = functions.update(&names, &[(0x1000_0000..0x1000_0000 + bytes, 0, path)]);
        assert_eq!(found, 1);
        let (start, end) = functions.ranges.iter().next().map(|(start, end)| (*start, *end)).unwrap();
        assert!(functions.contain(start) && functions.contain(end - 1) && !functions.contain(start - 1));
        assert_eq!(functions.update(&names, &[]), 0);
        assert!(!functions.contain(start));
    }
}
