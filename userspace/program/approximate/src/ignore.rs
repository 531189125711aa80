//! `FILE:LINES`: source lines with variables left out of the
//! attribution (`application-properties-2012` calls them ignore lines).

use std::{fmt, str::FromStr};

/// Lines of one file. Variables defined on the lines are ignored.
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
    /// Whether a place is among the lines. A file given
    /// without directories stands for any directory.
    pub fn contains(&self, file: &str, line: u32) -> bool {
        let ends = file.strip_suffix(self.file.as_str());
        ends.is_some_and(|before| before.is_empty() || before.ends_with('/'))
            && self.ranges.iter().any(|(first, last)| (*first..=*last).contains(&line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
