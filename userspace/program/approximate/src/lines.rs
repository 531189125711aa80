//! Line tables: the source line of an instruction.
//!
//! Rows without a line (0) continue the row before. Inlined
//! calls are left out: the line is the innermost call's.

use std::sync::Arc;

use gimli::UnitRef;

use crate::module::Slice;

/// A source line: index of the file in the unit's table, and line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Line {
    pub(crate) file: u64,
    pub(crate) line: u32,
}

/// The line table of one unit.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// Start addresses; the end of a sequence is a row without line.
    rows: Vec<(u64, Option<Line>)>,
    files: Vec<Option<Arc<str>>>,
}

impl Lines {
    /// A table that breaks off is used up to the break.
    pub(crate) fn read<'a>(unit: &UnitRef<'a, Slice<'a>>) -> Self {
        let mut lines = Lines::default();
        let Some(program) = unit.line_program.clone() else { return lines };
        let header = program.header().clone();
        // Version 5 counts files from 0, older ones from 1.
        let files = header.file_names().len() as u64 + 1;
        lines.files = (0..files).map(|index| file_name(unit, &header, index)).collect();
        let mut rows = program.rows();
        let mut last = None;
        while let Ok(Some((_, row))) = rows.next_row() {
            let line = row.line().and_then(|line| u32::try_from(line.get()).ok());
            let line = match (row.end_sequence(), line) {
                (true, _) => None,
                (false, None) => last,
                (false, Some(line)) => Some(Line { file: row.file_index(), line }),
            };
            last = line;
            lines.rows.push((row.address(), line));
        }
        // Stable: of several rows at an address the last one holds, and a sequence's end yields to
        // the next sequence.
        lines.rows.sort_by_key(|(address, line)| (*address, line.is_some()));
        lines
    }

    /// The line of the instruction at the address.
    pub(crate) fn at(&self, address: u64) -> Option<Line> {
        let behind = self.rows.partition_point(|(start, _)| *start <= address);
        self.rows.get(behind.checked_sub(1)?)?.1
    }

    /// Path of a file of the table, as the compiler noted it.
    pub(crate) fn file(&self, index: u64) -> Option<Arc<str>> {
        self.files.get(usize::try_from(index).ok()?)?.clone()
    }
}

fn file_name<'a>(
    unit: &UnitRef<'a, Slice<'a>>,
    header: &gimli::LineProgramHeader<Slice<'a>>,
    index: u64,
) -> Option<Arc<str>> {
    let file = header.file(index)?;
    let text = |value| unit.attr_string(value).ok().map(|text| text.to_string_lossy().into_owned());
    let name = text(file.path_name())?;
    let mut path = name;
    for directory in
        [file.directory(header).and_then(text), unit.comp_dir.map(|text| text.to_string_lossy().into_owned())]
    {
        if path.starts_with('/') {
            break;
        }
        if let Some(directory) = directory.filter(|directory| !directory.is_empty()) {
            path = format!("{directory}/{path}");
        }
    }
    Some(path.into())
}
