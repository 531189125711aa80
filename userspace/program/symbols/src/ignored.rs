//! `FILE:LINES`: source lines left out of an analysis (`application-properties-2012` calls them ignore
//! lines), and the code of the lines, by DWARF.

use std::{collections::BTreeSet, fmt, fs::File, ops::Range, path::Path, str::FromStr};

use gimli::{Dwarf, DwarfSections, EndianSlice, LittleEndian};
use object::read::elf::ElfFile64;
use object::{CompressedData, CompressionFormat, Endianness, Object as _, ObjectSection as _};

use crate::compressed::unpacked;
use crate::debug_file;
use crate::elf::{Bytes, Elf};

/// Files named in a refusal at most.
const NAMED: usize = 5;

/// Lines of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IgnoreLines {
    file: String,
    ranges: Vec<(u32, u32)>,
}

/// What is wrong with a `FILE:LINES`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not FILE:LINES, as in sim.c:12 or sim.c:10-20,31")]
pub struct BadLines(pub String);

impl FromStr for IgnoreLines {
    type Err = BadLines;

    fn from_str(text: &str) -> Result<Self, BadLines> {
        let bad = || BadLines(text.to_owned());
        let (file, lines) = text.rsplit_once(':').filter(|(file, _)| !file.is_empty()).ok_or_else(bad)?;
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0).ok_or_else(bad);
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last { Err(bad()) } else { Ok((first, last)) }
        };
        let ranges = lines.split(',').map(range).collect::<Result<_, _>>()?;
        Ok(IgnoreLines { file: file.to_owned(), ranges })
    }
}

impl fmt::Display for IgnoreLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (first, last)) in self.ranges.iter().enumerate() {
            match n {
                0 => write!(f, "{}:", self.file)?,
                _ => f.write_str(",")?,
            }
            if first == last { write!(f, "{first}")? } else { write!(f, "{first}-{last}")? }
        }
        Ok(())
    }
}

impl IgnoreLines {
    /// Whether a path is the file.
    fn is_of(&self, file: &str) -> bool {
        let ends = file.strip_suffix(self.file.as_str());
        ends.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }

    /// Lines between a line and the nearest of these.
    fn distance(&self, line: u32) -> u32 {
        let of = |(first, last): &(u32, u32)| first.saturating_sub(line).max(line.saturating_sub(*last));
        self.ranges.iter().map(of).min().unwrap_or(u32::MAX)
    }

    /// Whether a place is among the lines. A file given
    /// without directories stands for any directory.
    pub fn contains(&self, file: &str, line: u32) -> bool {
        self.is_of(file) && self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&line))
    }
}

/// Why lines have no code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCode {
    /// The program cannot be read.
    #[error("{0} cannot be read: {1}")]
    Unreadable(String, String),
    /// There is no debug information.
    #[error("--ignore-lines needs debug information, and {0} has none: compile it with -g")]
    NoDebug(String),
    /// No such source file.
    #[error("{0} has no code of a file {1}: name one of its files, such as {2}")]
    NoFile(String, String, String),
    /// No code on the lines.
    #[error("{0} has no code of {1}: name lines with statements{2}")]
    NoLine(String, IgnoreLines, String),
}

/// Code of lines in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LineCode {
    /// Offsets in the file, in ascending order.
    pub code: Vec<Range<u64>>,
    /// For each of the lines asked for, why it has no code here; `None` if it has some.
    pub missing: Vec<Option<NoCode>>,
}

/// Code of the lines in a program or library.
///
/// # Errors
/// A file without debug information, or one that cannot be read.
pub fn code_of_lines(path: &Path, lines: &[IgnoreLines]) -> Result<LineCode, NoCode> {
    let name = path.display().to_string();
    let unreadable = |why: &str| NoCode::Unreadable(name.clone(), why.to_owned());
    let file = File::open(path).map_err(|error| unreadable(&error.to_string()))?;
    let bytes = Bytes::map(&file).map_err(|error| unreadable(&error.to_string()))?;
    let elf = Elf::parse(bytes).ok_or_else(|| unreadable("it is no x86-64 ELF file"))?;
    let apart = debug_file::find(&elf, Path::new("/"), &path.to_string_lossy());
    let apart = apart.and_then(|file| Bytes::map(&file).ok());
    let found = [Some(&*elf.bytes), apart.as_deref()];
    let rows: Vec<Row> =
        found.into_iter().flatten().filter_map(|bytes| rows(bytes, lines)).flatten().collect();
    if rows.is_empty() {
        return Err(NoCode::NoDebug(name));
    }
    let files: BTreeSet<&str> = rows.iter().map(|row| row.file.as_str()).collect();
    let missing = |(at, wanted): (usize, &IgnoreLines)| {
        if rows.iter().any(|row| row.wanted.contains(&at)) {
            return None;
        }
        let own = |line: u32| rows.iter().any(|row| row.line == line && wanted.is_of(&row.file));
        if !files.iter().any(|file| wanted.is_of(file)) {
            let few: Vec<&str> =
                files.iter().take(NAMED).map(|file| file.rsplit('/').next().unwrap_or(file)).collect();
            return Some(NoCode::NoFile(name.clone(), wanted.file.clone(), few.join(", ")));
        }
        let last = rows.iter().filter(|row| wanted.is_of(&row.file)).map(|row| row.line).max().unwrap_or(0);
        let near = (1..=last).filter(|line| own(*line)).min_by_key(|line| wanted.distance(*line));
        let near = near.map_or(String::new(), |line| format!(" (the nearest is {line})"));
        Some(NoCode::NoLine(name.clone(), wanted.clone(), near))
    };
    let missing = lines.iter().enumerate().map(missing).collect();
    let parsed =
        ElfFile64::<Endianness>::parse(&*elf.bytes).map_err(|error| unreadable(&error.to_string()))?;
    let segments: Vec<_> = parsed
        .segments()
        .map(|segment| {
            (object::ObjectSegment::address(&segment), object::ObjectSegment::file_range(&segment))
        })
        .collect();
    let offset = |address: u64| {
        let fits = |(start, (_, size)): &&(u64, (u64, u64))| {
            (*start..start.saturating_add(*size)).contains(&address)
        };
        segments.iter().find(fits).map(|(start, (offset, _))| address - start + offset)
    };
    let code = rows.iter().filter(|row| !row.wanted.is_empty());
    let mut code: Vec<Range<u64>> =
        code.filter_map(|row| Some(offset(row.code.start)?..offset(row.code.end - 1)? + 1)).collect();
    code.sort_by_key(|code| (code.start, code.end));
    code.dedup();
    Ok(LineCode { code, missing })
}

/// A row of a line table.
struct Row {
    file: String,
    line: u32,
    code: Range<u64>,
    /// The lines that contain it, by position.
    wanted: Vec<usize>,
}

/// All rows of the wanted files, and one of each further file; `None` without line tables.
fn rows(elf: &[u8], lines: &[IgnoreLines]) -> Option<Vec<Row>> {
    let file = ElfFile64::<Endianness>::parse(elf).ok()?;
    let load = |id: gimli::SectionId| -> Result<Vec<u8>, gimli::Error> {
        let data = file.section_by_name(id.name()).and_then(|section| section.compressed_data().ok());
        let plain = |data: CompressedData<'_>| match data.format {
            CompressionFormat::None => Some(data.data.to_vec()),
            _ => unpacked(&data).ok(),
        };
        Ok(data.and_then(plain).unwrap_or_default())
    };
    let sections = DwarfSections::load(load).ok()?;
    let dwarf: Dwarf<EndianSlice<'_, LittleEndian>> =
        sections.borrow(|section| EndianSlice::new(section, LittleEndian));
    let mut all = Vec::new();
    let mut known = BTreeSet::new();
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let Ok(unit) = dwarf.unit(header) else { continue };
        let Some(program) = unit.line_program.clone() else { continue };
        let mut names: Vec<(u64, String)> = Vec::new();
        let mut before: Option<(u64, u64, u32)> = None;
        let mut table = program.rows();
        while let Ok(Some((header, row))) = table.next_row() {
            if let Some((start, file, line)) = before.take() {
                let name = match names.iter().find(|(number, _)| *number == file) {
                    Some((_, name)) => name.clone(),
                    None => {
                        let name = file_name(&dwarf, &unit, header, file).unwrap_or_default();
                        names.push((file, name.clone()));
                        name
                    }
                };
                let is_of = lines.iter().any(|wanted| wanted.is_of(&name));
                // A row of no instruction names the file, and nothing that could be ignored.
                let has_code = start < row.address();
                if (is_of && has_code) || known.insert(name.clone()) {
                    let contains =
                        |(_, wanted): &(usize, &IgnoreLines)| has_code && wanted.contains(&name, line);
                    let wanted = lines.iter().enumerate().filter(contains).map(|(at, _)| at).collect();
                    all.push(Row { file: name, line, code: start..row.address(), wanted });
                }
            }
            if !row.end_sequence() {
                let line = row.line().map_or(0, |line| u32::try_from(line.get()).unwrap_or(0));
                before = Some((row.address(), row.file_index(), line));
            }
        }
    }
    (!all.is_empty()).then_some(all)
}

/// The path of a file of a line table.
fn file_name<'a>(
    dwarf: &Dwarf<EndianSlice<'a, LittleEndian>>,
    unit: &gimli::Unit<EndianSlice<'a, LittleEndian>>,
    header: &gimli::LineProgramHeader<EndianSlice<'a, LittleEndian>>,
    number: u64,
) -> Option<String> {
    let file = header.file(number)?;
    let text = |value| -> Option<String> {
        let text = dwarf.attr_string(unit, value).ok()?;
        Some(text.to_string_lossy().into_owned())
    };
    let name = text(file.path_name())?;
    match file.directory(header).and_then(text) {
        Some(folder) if !name.starts_with('/') && !folder.is_empty() => Some(format!("{folder}/{name}")),
        _ => Some(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_this_file_have_code_and_comments_have_none() {
        let own = std::env::current_exe().unwrap();
        let ask = |text: &str| {
            let mut found = code_of_lines(&own, &[text.parse().unwrap()]).unwrap();
            found.missing.remove(0).map_or(Ok(found.code), Err)
        };
        // The macro's own line has the panic's code.
        let here = line!() + 1;
        let found = ask(&format!("ignored.rs:{here}")).unwrap();
        assert!(!found.is_empty() && found.iter().all(|code| code.start < code.end), "{found:?}");
        let missing = ask("no_such_file.rs:1").unwrap_err().to_string();
        assert!(missing.contains("no code of a file no_such_file.rs"), "{missing}");
        let comment = ask("ignored.rs:1").unwrap_err().to_string();
        assert!(comment.contains("no code of ignored.rs:1") && comment.contains("nearest"), "{comment}");
        let text = code_of_lines(Path::new("/etc/passwd"), &[]).unwrap_err();
        assert!(matches!(text, NoCode::Unreadable(..)), "{text}");
    }

    #[test]
    fn parses_and_matches() {
        let lines: IgnoreLines = "sim.c:3-5,9".parse().unwrap();
        for (file, line, wanted) in [
            ("sim.c", 3, true),
            ("/a/sim.c", 5, true),
            ("/a/sim.c", 9, true),
            ("sim.c", 6, false),
            ("mysim.c", 3, false),
            ("sim.cc", 3, false),
        ] {
            assert_eq!(lines.contains(file, line), wanted, "{file}:{line}");
        }
        assert_eq!(lines.to_string(), "sim.c:3-5,9");
        assert!("src/sim.c:7".parse::<IgnoreLines>().unwrap().contains("/a/src/sim.c", 7));
    }

    #[test]
    fn refuses() {
        for text in
            ["", "sim.c", "sim.c:", ":3", "sim.c:0", "sim.c:5-3", "sim.c:1,", "sim.c:a", "sim.c:1-2-3"]
        {
            assert_eq!(text.parse::<IgnoreLines>(), Err(BadLines(text.to_owned())));
        }
    }
}
