//! Cache descriptions: `L1=32K,8,64` on the command line,
//! equal lines in a machine file, and the host's caches.
//!
//! Not here: how caches behave (`locality-cachesim`). Limits: a host's caches are sysfs's
//! caches of CPU 0; if the number of sets is no power of two, the next smaller power is
//! taken with more ways, as near to the size as whole ways allow (like coregrind's
//! `maybe_tweak_LLc` in valgrind), because sets are chosen by bits of addresses.

use std::{fmt, path::PathBuf, str::FromStr};

use locality_model::CacheLevel;

use locality_units::{parse::size, print as units};

/// A parsed `--cache`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheArg {
    /// `host`: as the host machine.
    Host,
    /// `L1=32K,8,64`, also several with `;` between.
    Levels(Levels),
    /// A machine file.
    File(PathBuf),
}

/// Caches with names.
pub type Levels = Vec<(Name, Geometry)>;

/// Name of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Name {
    /// The first level for instructions.
    Instructions,
    /// The first level for data.
    L1,
    /// The second.
    L2,
    /// The last.
    Last,
}

/// Size and shape of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size.
    pub bytes: u64,
    /// Associativity.
    pub ways: u32,
    /// Bytes of a line.
    pub line: u32,
}

/// Larger lines are none.
const LONGEST_LINE: u32 = 4096;
/// Nor are shorter lines.
const SHORTEST_LINE: u32 = 16;

impl FromStr for CacheArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("say which caches: host, L1=32K,8,64, or a cache file".to_owned()),
            "host" => Ok(Self::Host),
            _ if text.contains('=') => {
                let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
                let levels: Result<Vec<_>, String> = parts.map(level).collect();
                Ok(Self::Levels(levels?))
            }
            _ if text.split(',').count() == 3 => {
                Err(format!("`{text}` does not say which cache: write L1={text}"))
            }
            _ => Ok(Self::File(text.into())),
        }
    }
}

fn level(text: &str) -> Result<(Name, Geometry), String> {
    let (name, geometry) =
        text.split_once('=').ok_or_else(|| format!("`{text}` is no cache: write NAME=SIZE,WAYS,LINE"))?;
    let name: Name = name.trim().parse()?;
    let geometry = geometry.trim().parse().map_err(|why| format!("{name}: {why}"))?;
    Ok((name, geometry))
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_uppercase().as_str() {
            "I1" | "L1I" => Ok(Self::Instructions),
            "L1" | "D1" | "L1D" => Ok(Self::L1),
            "L2" => Ok(Self::L2),
            "LL" | "L3" | "LLC" => Ok(Self::Last),
            _ => Err(format!(
                "no cache is called `{text}`: use I1 (instructions), L1 (data), L2 or LL (the last)"
            )),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(match self {
            Self::Instructions => "I1",
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::Last => "LL",
        })
    }
}

impl FromStr for Geometry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.split(',').map(str::trim).collect();
        let (bytes, ways, line) = match *fields.as_slice() {
            [bytes, ways] => (bytes, ways, "64"),
            [bytes, ways, line] => (bytes, ways, line),
            _ => return Err(format!("`{text}` is no cache: write SIZE,WAYS,LINE as in 32K,8,64")),
        };
        let ways = ways
            .parse()
            .map_err(|_| format!("`{ways}` is no number of ways: write SIZE,WAYS,LINE as in 32K,8,64"))?;
        let line = line
            .parse()
            .map_err(|_| format!("`{line}` is no line size: write SIZE,WAYS,LINE as in 32K,8,64"))?;
        Self { bytes: size(bytes)?, ways, line }.checked()
    }
}

impl Geometry {
    /// Sets, if a whole number.
    pub fn sets(self) -> Option<u64> {
        let one = u64::from(self.ways) * u64::from(self.line);
        (one > 0 && self.bytes.is_multiple_of(one)).then(|| self.bytes / one)
    }

    /// Whether sets can be chosen by bits of an address.
    fn checked(self) -> Result<Self, String> {
        let Self { bytes, ways, line } = self;
        if !line.is_power_of_two() || !(SHORTEST_LINE..=LONGEST_LINE).contains(&line) {
            return Err(format!(
                "a line has {SHORTEST_LINE}, 32, 64 … {LONGEST_LINE} bytes, a power of two, not {line}"
            ));
        }
        if ways == 0 {
            return Err("a cache has at least 1 way".to_owned());
        }
        match self.sets() {
            Some(sets) if sets.is_power_of_two() => Ok(self),
            _ => {
                let sets = bytes as f64 / (f64::from(ways) * f64::from(line));
                let fit = self.fitted();
                Err(format!(
                    "{bytes} bytes in {ways} ways of {line}-byte lines make {} sets, which is no power of two: use {},{},{}",
                    if sets.fract() == 0.0 { format!("{sets:.0}") } else { format!("{sets:.2}") },
                    fit.bytes,
                    fit.ways,
                    fit.line
                ))
            }
        }
    }

    /// The nearest geometry with a power of two as number of sets.
    pub fn fitted(self) -> Self {
        let line = self.line.clamp(SHORTEST_LINE, LONGEST_LINE).next_power_of_two();
        let lines = (self.bytes / u64::from(line)).max(1);
        let sets = (lines / u64::from(self.ways.max(1))).max(1);
        let sets = 1u64 << sets.ilog2();
        let ways = ((lines + sets / 2) / sets).max(1);
        Self { bytes: sets * ways * u64::from(line), ways: ways as u32, line }
    }
}

/// The host's caches: the first and the last data level, and one between; the caller
/// chooses I1. Also returns changes and omissions, as sentences, each with the names
/// of caches; an explicit setting of a named cache makes the sentence moot.
///
/// # Errors
/// Without sysfs, a sentence with the remedy.
pub fn host(caches: &[CacheLevel]) -> Result<(Levels, Vec<(Name, String)>), String> {
    let levels = || caches.iter().map(|cache| cache.level);
    // On certain virtual machines the first level in sysfs is level 2.
    let (first, last) = (levels().min(), levels().max());
    let (mut levels, mut notices) = (Levels::new(), Vec::new());
    for cache in caches {
        let name = match cache.level {
            level if Some(level) == first => Name::L1,
            level if Some(level) == last => Name::Last,
            _ => Name::L2,
        };
        if cache.bytes == 0 || cache.ways == 0 {
            let lacking = if cache.bytes == 0 { "size" } else { "ways" };
            let notice = format!(
                "This host does not tell the {lacking} of its level {} in sysfs, so that level is not simulated: name it, as in --cache host \
                 --cache {name}=SIZE,WAYS,LINE.",
                cache.level
            );
            notices.push((name, notice));
        } else if levels.iter().any(|level| level.0 == name) {
            let notice = format!(
                "Level {} of this host is not simulated: of more than three levels the first two and the last are.",
                cache.level
            );
            notices.push((name, notice));
        } else {
            let told = Geometry { bytes: cache.bytes, ways: cache.ways, line: cache.line };
            let (fit, notice) = fit(name, told);
            levels.push((name, fit));
            notices.extend(notice.map(|notice| (name, notice)));
        }
    }
    if levels.is_empty() {
        return Err(
            "this host does not tell its caches in sysfs: give them, as in --cache L1=32K,8,64 --cache LL=8M,16,64"
                .to_owned(),
        );
    }
    Ok((levels, notices))
}

/// A cache of the host in simulable form, and the change.
pub fn fit(name: Name, told: Geometry) -> (Geometry, Option<String>) {
    if told.checked().is_ok() {
        return (told, None);
    }
    let fit = told.fitted();
    let notice = format!(
        "The {name} of this host has a number of sets that is no power of two; it is simulated as {} in {} \
         ways of {}-byte lines.",
        units::bytes(fit.bytes),
        fit.ways,
        fit.line
    );
    (fit, Some(notice))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(bytes: u64, ways: u32, line: u32) -> Geometry {
        Geometry { bytes, ways, line }
    }

    #[test]
    fn caches_of_the_contract() {
        let l1 = (Name::L1, geometry(32 << 10, 8, 64));
        let last = (Name::Last, geometry(1 << 20, 16, 64));
        assert_eq!("L1=32K,8,64".parse(), Ok(CacheArg::Levels(vec![l1])));
        assert_eq!("D1=32768,8; LL=1M,16,64".parse(), Ok(CacheArg::Levels(vec![l1, last])));
        assert_eq!("host".parse(), Ok(CacheArg::Host));
        assert_eq!("zen4.machine".parse(), Ok(CacheArg::File("zen4.machine".into())));
    }

    #[test]
    fn each_fault_has_its_sentence() {
        for (text, part) in [
            ("", "say which caches"),
            ("32K,8,64", "write L1=32K,8,64"),
            ("L4=32K,8,64", "no cache is called `L4`"),
            ("L1=32K", "write SIZE,WAYS,LINE"),
            ("L1=32X,8,64", "`32X` is no size"),
            ("L1=99999999999999999999,8,64", "is no size"),
            ("L1=18014398509481985K,8,64", "is no size"),
            ("L1=32K,8,48", "a power of two, not 48"),
            ("L1=32K,0,64", "at least 1 way"),
            ("L1=32K,x,64", "no number of ways"),
            ("L1=48K,8,64", "make 96 sets, which is no power of two: use 49152,12,64"),
            ("L1=100,8,64", "0.20 sets"),
            ("L1=0,8,64", "0 sets"),
        ] {
            let why = text.parse::<CacheArg>().unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn what_is_advised_is_accepted() {
        for bytes in [1, 100, 48 << 10, 36 << 20, 260 << 20] {
            for ways in [1, 3, 8, 12, 20] {
                let fit = geometry(bytes, ways, 64).fitted();
                assert_eq!(fit.checked(), Ok(fit), "{bytes} {ways}");
            }
        }
        assert_eq!(geometry(36 << 20, 12, 64).fitted(), geometry(36 << 20, 18, 64));
    }

    #[test]
    fn a_host_has_a_first_and_a_last_level() {
        let cache = |level, bytes, ways| CacheLevel { level, bytes, ways, line: 64 };
        let (levels, notices) =
            host(&[cache(1, 48 << 10, 12), cache(2, 2 << 20, 16), cache(3, 36 << 20, 12)]).unwrap();
        let names: Vec<Name> = levels.iter().map(|level| level.0).collect();
        assert_eq!(names, [Name::L1, Name::L2, Name::Last]);
        assert_eq!(levels[2].1, geometry(36 << 20, 18, 64));
        let told: Vec<&str> = notices.iter().map(|notice| notice.1.as_str()).collect();
        assert!(told.len() == 1 && told[0].contains("simulated as 36 MiB in 18 ways"), "{told:?}");
        assert_eq!(host(&[cache(1, 32 << 10, 8)]).unwrap().0[0].0, Name::L1);
        assert!(host(&[]).unwrap_err().contains("--cache L1="));
    }

    #[test]
    fn a_level_that_is_left_out_is_told() {
        let cache = |level, bytes, ways| CacheLevel { level, bytes, ways, line: 64 };
        let names = |caches: &[CacheLevel]| {
            let (levels, notices) = host(caches).unwrap();
            let told: Vec<String> = notices.into_iter().map(|notice| notice.1).collect();
            (levels.iter().map(|level| level.0).collect::<Vec<_>>(), told.join("\n"))
        };
        let (found, told) = names(&[cache(1, 32 << 10, 8), cache(2, 1 << 20, 0), cache(3, 8 << 20, 16)]);
        assert_eq!(found, [Name::L1, Name::Last]);
        assert!(told.contains("the ways of its level 2") && told.contains("--cache L2=SIZE"), "{told}");
        // Others keep their names, so that the one left out can be given.
        let (found, told) = names(&[cache(1, 32 << 10, 8), cache(2, 1 << 20, 16), cache(3, 0, 16)]);
        assert_eq!(found, [Name::L1, Name::L2]);
        assert!(told.contains("the size of its level 3") && told.contains("--cache LL=SIZE"), "{told}");
        let (found, told) = names(&[1, 2, 3, 4].map(|level| cache(level, 1 << 20, 16)));
        assert_eq!(found, [Name::L1, Name::L2, Name::Last]);
        assert!(told.contains("Level 3 of this host is not simulated"), "{told}");
    }
}
