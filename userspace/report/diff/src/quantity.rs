//! Compared quantities, and the parts of a run.

use std::fmt;

use locality_report::schema::place::Place;

/// A quantity. Less is better.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Quantity {
    /// Misses per 1,000 line touches at a level (`L1` … `LLC`) or size (`32K`).
    Misses(String),
    /// Bytes from memory per access.
    Memory,
    /// Bytes loaded into a level but not used, per access.
    Wasted(String),
    /// Bytes of distinct lines touched.
    Footprint,
    /// Far reuses per 1,000 reuses, of a pair.
    Reuses,
}

impl Quantity {
    /// The same with the name `LLC` for the last level, also if given by number.
    #[must_use]
    pub fn last_as_named(&self, last: Option<u8>) -> Self {
        let name = |level: &String| match last {
            Some(last) if *level == format!("L{last}") => "LLC".to_owned(),
            _ => level.clone(),
        };
        match self {
            Self::Misses(level) => Self::Misses(name(level)),
            Self::Wasted(level) => Self::Wasted(name(level)),
            other => other.clone(),
        }
    }

    /// Order of the rows of a run: the deciding rows first.
    pub fn rank(&self) -> u8 {
        match self {
            Self::Misses(level) if level.starts_with('L') => 0,
            Self::Memory => 1,
            Self::Wasted(_) => 2,
            Self::Misses(size) if size.ends_with('K') => 3,
            Self::Misses(_) => 4,
            Self::Footprint | Self::Reuses => 5,
        }
    }

    /// Unit of the numbers.
    pub fn unit(&self) -> &'static str {
        match self {
            Self::Misses(_) => "per 1,000 line touches",
            Self::Memory | Self::Wasted(_) => "bytes per access",
            Self::Footprint => "bytes",
            Self::Reuses => "per 1,000 reuses",
        }
    }

    /// A change below this size does not count, however small the base.
    pub fn least(&self) -> f64 {
        match self {
            Self::Misses(_) => 1.0,
            // A line in 1,000 accesses.
            Self::Memory | Self::Wasted(_) => 0.064,
            Self::Footprint => 4096.0,
            Self::Reuses => 5.0,
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misses(level) => write!(f, "misses:{level}"),
            Self::Memory => f.write_str("memory"),
            Self::Wasted(level) => write!(f, "wasted:{level}"),
            Self::Footprint => f.write_str("footprint"),
            Self::Reuses => f.write_str("reuses"),
        }
    }
}

/// A line of source; an unknown line is 0.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct At {
    /// Source file.
    pub file: String,
    /// Function.
    pub function: String,
    /// Line.
    pub line: u32,
}

impl At {
    /// For programs.
    pub fn place(&self) -> Place {
        let known = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Place {
            file: known(&self.file),
            function: known(&self.function),
            line: Some(self.line).filter(|line| *line > 0),
            ..Place::default()
        }
    }

    fn short(&self) -> String {
        let file = self.file.rsplit('/').next().unwrap_or_default();
        match (file.is_empty(), self.line) {
            (true, _) => self.function.clone(),
            (false, 0) => format!("{} {file}", self.function),
            (false, line) => format!("{} {file}:{line}", self.function),
        }
    }
}

/// A part of a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// A data object by name and type.
    Object(String, String),
    /// A function by name and file: loads by the function's lines.
    Function(At),
    /// A line of code: loads by the line.
    Line(At),
    /// A pair of use and reuse.
    Pair(At, At),
}

impl Part {
    /// Kind of the part.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Object(..) => "object",
            Self::Function(_) => "function",
            Self::Line(_) => "line",
            Self::Pair(..) => "pair",
        }
    }

    /// For people.
    pub fn name(&self) -> String {
        match self {
            Self::Object(name, _) => name.clone(),
            Self::Function(at) | Self::Line(at) => at.short(),
            Self::Pair(used, reuse) => format!("{} → {}", used.short(), reuse.short()),
        }
    }

    /// Line of source of the part, if any.
    pub fn at(&self) -> Option<&At> {
        match self {
            Self::Object(..) => None,
            Self::Function(at) | Self::Line(at) | Self::Pair(_, at) => Some(at),
        }
    }

    /// All lines of source in the part.
    pub fn places(&self) -> Vec<&At> {
        match self {
            Self::Object(..) | Self::Function(_) => Vec::new(),
            Self::Line(at) => vec![at],
            Self::Pair(used, reuse) => vec![used, reuse],
        }
    }

    /// The part with other texts and lines.
    #[must_use]
    pub fn renamed(&self, text: &dyn Fn(&str) -> String, line: &dyn Fn(&At) -> u32) -> Self {
        let moved = |at: &At| At { file: text(&at.file), function: text(&at.function), line: line(at) };
        match self {
            Self::Object(name, kind) => Self::Object(text(name), text(kind)),
            Self::Function(at) => Self::Function(At { line: 0, ..moved(at) }),
            Self::Line(at) => Self::Line(moved(at)),
            Self::Pair(used, reuse) => Self::Pair(moved(used), moved(reuse)),
        }
    }
}
