//! What is simulated: sizes of caches, and their text form for settings of the plugin.
//!
//! Not here: where the numbers come from (the host's caches, the command line, a machine file).

use std::fmt;

/// Data levels at most.
pub const MAX_LEVELS: usize = 3;
/// Ways of a cache at most: a way's number is stored in 8 bits.
pub const MAX_WAYS: u64 = 256;
/// Lines of a cache at most.
const MAX_LINES: u64 = 1 << 26;

/// One cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Level {
    /// Its name in messages, such as `L1`.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Lines of a set.
    pub ways: u64,
    /// Bytes of a line, 16 to 4096.
    pub line: u64,
}

/// A prefetcher of the level next to the processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefetch {
    /// Nothing is prefetched.
    #[default]
    None,
    /// With a line that misses comes the next line.
    NextLine,
    /// An instruction whose addresses advanced by the same stride twice has the line of its next
    /// address fetched (the reference prediction table of Chen and Baer, IEEE Transactions on
    /// Computers 44, 1995; 256 entries a thread).
    Stride,
}

/// The hierarchy, from the level next to the processor on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Data levels, 1 to [`MAX_LEVELS`]; of several the last one is shared by all threads of a stream.
    pub levels: Vec<Level>,
    /// The first-level instruction cache, whose misses go to the second data level; `None`: fetches
    /// are not simulated. Needs a [`locality_stream::Kind::BLOCK`] event for each block.
    pub instruction_fetch: Option<Level>,
    /// Count as Callgrind does with `--cache-sim=yes --cacheuse=yes`.
    pub compatible_callgrind: bool,
    /// The prefetcher.
    pub prefetch: Prefetch,
    /// Whether costs go to the callers too. Without, all costs of a thread are of one function: for
    /// measuring what the collection of inclusive costs takes.
    pub inclusive: bool,
    /// Whether costs of use go to data objects too; needs a source that places them
    /// ([`crate::CacheSim::show`]).
    pub objects: bool,
}

/// Why a hierarchy cannot be simulated; one sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl Level {
    /// A level of that name.
    pub fn new(name: &str, bytes: u64, ways: u64, line: u64) -> Level {
        Level { name: name.to_owned(), bytes, ways, line }
    }

    /// Number of sets; 0 when the numbers make none.
    pub fn sets(&self) -> u64 {
        self.bytes.checked_div(self.line).and_then(|lines| lines.checked_div(self.ways)).unwrap_or(0)
    }

    /// The same size and line with a number of ways for which the number of sets is a power of two,
    /// at least as many ways as now and as close as possible. Real last levels have such sizes as
    /// 33 MiB in 11 ways, because they consist of slices; `None` where no number of ways does.
    pub fn with_power_of_two_sets(&self) -> Option<Level> {
        (self.ways.max(1)..=MAX_WAYS).map(|ways| Level { ways, ..self.clone() }).find(|level| {
            level.sets().is_power_of_two()
                && level.sets().checked_mul(level.ways * level.line) == Some(level.bytes)
        })
    }

    fn check(&self) -> Result<(), ConfigError> {
        let Level { name, bytes, ways, line } = self;
        if !line.is_power_of_two() || !(16..=4096).contains(line) {
            return Err(ConfigError(format!(
                "{name}: a line of {line} bytes is no power of two from 16 to 4096."
            )));
        }
        if *ways == 0 || *ways > MAX_WAYS {
            return Err(ConfigError(format!("{name}: {ways} ways are not from 1 to {MAX_WAYS}.")));
        }
        if *bytes == 0 || bytes % (ways * line) != 0 {
            return Err(ConfigError(format!(
                "{name}: {bytes} bytes are not divisible into {ways} ways of {line}-byte lines."
            )));
        }
        let sets = self.sets();
        if !sets.is_power_of_two() {
            return Err(ConfigError(format!(
                "{name}: {bytes} bytes in {ways} ways of {line}-byte lines make {sets} sets, which is no power of two."
            )));
        }
        if bytes / line > MAX_LINES {
            return Err(ConfigError(format!("{name}: {bytes} bytes are more than can be simulated.")));
        }
        Ok(())
    }
}

impl Config {
    /// A hierarchy of these data levels without instruction fetch, prefetch or compatibility.
    pub fn new(levels: Vec<Level>) -> Config {
        Config {
            levels,
            instruction_fetch: None,
            compatible_callgrind: false,
            prefetch: Prefetch::None,
            inclusive: true,
            objects: false,
        }
    }

    /// Checks everything that the simulation relies on.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.levels.is_empty() || self.levels.len() > MAX_LEVELS {
            return Err(ConfigError(format!(
                "{} data levels: the model has 1 to {MAX_LEVELS}.",
                self.levels.len()
            )));
        }
        for level in self.levels.iter().chain(&self.instruction_fetch) {
            level.check()?;
        }
        let first = self.levels.first().map_or(64, |level| level.line);
        if let Some(level) =
            self.levels.iter().chain(&self.instruction_fetch).find(|level| level.line != first)
        {
            return Err(ConfigError(format!(
                "{}: its line of {} bytes differs from the first level's {first}; the model has one line size.",
                level.name, level.line
            )));
        }
        let farther = self.levels.iter().skip(1);
        if let Some((near, far)) = self.levels.iter().zip(farther).find(|(near, far)| far.bytes < near.bytes)
        {
            return Err(ConfigError(format!(
                "{} ({} bytes) is smaller than {} before it ({} bytes).",
                far.name, far.bytes, near.name, near.bytes
            )));
        }
        if self.compatible_callgrind {
            if self.levels.len() != 2 || self.instruction_fetch.is_none() {
                return Err(ConfigError(
                    "Callgrind's model has two data levels and an instruction cache.".to_owned(),
                ));
            }
            if self.prefetch != Prefetch::None {
                return Err(ConfigError("Callgrind counts cache use without prefetching only.".to_owned()));
            }
            if self.levels.iter().chain(&self.instruction_fetch).any(|level| level.sets() < 2) {
                return Err(ConfigError(
                    "Callgrind counts cache use of caches with two sets or more only.".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// One word without commas, for [`Config::parse`].
    pub fn encode(&self) -> String {
        self.to_string()
    }

    /// Reads the output of [`Config::encode`], and validates it. Levels get their usual names.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let mut config = Config::new(Vec::new());
        for word in text.split('+') {
            match word {
                "callgrind" => config.compatible_callgrind = true,
                "next-line" => config.prefetch = Prefetch::NextLine,
                "stride" => config.prefetch = Prefetch::Stride,
                "self" => config.inclusive = false,
                "objects" => config.objects = true,
                _ => {
                    let (name, numbers) = word.split_once(':').unwrap_or((word, ""));
                    let numbers: Option<Vec<u64>> = numbers.split('/').map(|n| n.parse().ok()).collect();
                    let Some([bytes, ways, line]) = numbers.as_deref() else {
                        return Err(ConfigError(format!("`{word}` describes no cache.")));
                    };
                    let level = Level::new(name, *bytes, *ways, *line);
                    if name == "I1" {
                        config.instruction_fetch = Some(level);
                    } else {
                        config.levels.push(level);
                    }
                }
            }
        }
        config.validate()?;
        Ok(config)
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.levels.len().saturating_sub(1);
        for (index, Level { bytes, ways, line, .. }) in self.levels.iter().enumerate() {
            let separator = if index == 0 { "" } else { "+" };
            if index == last && index > 0 {
                write!(f, "{separator}LL:{bytes}/{ways}/{line}")?;
            } else {
                write!(f, "{separator}L{}:{bytes}/{ways}/{line}", index + 1)?;
            }
        }
        if let Some(Level { bytes, ways, line, .. }) = &self.instruction_fetch {
            write!(f, "+I1:{bytes}/{ways}/{line}")?;
        }
        match self.prefetch {
            Prefetch::None => {}
            Prefetch::NextLine => f.write_str("+next-line")?,
            Prefetch::Stride => f.write_str("+stride")?,
        }
        if self.compatible_callgrind {
            f.write_str("+callgrind")?;
        }
        if !self.inclusive {
            f.write_str("+self")?;
        }
        if self.objects {
            f.write_str("+objects")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Config {
        Config::new(vec![Level::new("L1", 32 << 10, 8, 64), Level::new("LL", 8 << 20, 16, 64)])
    }

    #[test]
    fn survives_its_text() {
        let mut config = two();
        assert_eq!(Config::parse(&config.encode()).unwrap(), config);
        config.prefetch = Prefetch::Stride;
        assert_eq!(Config::parse(&config.encode()).unwrap(), config);
        config.prefetch = Prefetch::None;
        config.instruction_fetch = Some(Level::new("I1", 32 << 10, 8, 64));
        config.compatible_callgrind = true;
        assert_eq!(Config::parse(&config.encode()).unwrap(), config);
        config.compatible_callgrind = false;
        (config.inclusive, config.objects) = (false, true);
        assert_eq!(Config::parse(&config.encode()).unwrap(), config);
        config.levels.insert(1, Level::new("L2", 1 << 20, 16, 64));
        assert_eq!(Config::parse(&config.encode()).unwrap(), config);
        for bad in ["", "L1", "L1:1/2", "L1:32768/8/64+other", "L1:a/8/64"] {
            assert!(Config::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused_in_one_sentence() {
        let refused = |change: &dyn Fn(&mut Config), part: &str| {
            let mut config = two();
            change(&mut config);
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(part) && error.ends_with('.') && !error.contains('\n'), "{error}");
        };
        two().validate().unwrap();
        refused(&|config| config.levels.clear(), "0 data levels");
        refused(&|config| config.levels[0].line = 48, "48 bytes");
        refused(&|config| config.levels[0].line = 8, "8 bytes");
        refused(&|config| config.levels[0].ways = 0, "0 ways");
        refused(&|config| config.levels[0].ways = 300, "300 ways");
        refused(&|config| config.levels[0].bytes = 0, "not divisible");
        refused(&|config| config.levels[0].bytes = 40_000, "not divisible");
        refused(&|config| config.levels[1] = Level::new("LL", 33 << 20, 11, 64), "49152 sets");
        refused(&|config| config.levels[1] = Level::new("LL", 16 << 10, 8, 64), "smaller than L1");
        refused(&|config| config.levels[1].line = 128, "one line size");
        refused(&|config| config.levels[1].bytes = 1 << 40, "more than can be simulated");
        refused(&|config| config.compatible_callgrind = true, "instruction cache");
        refused(
            &|config| {
                config.compatible_callgrind = true;
                config.instruction_fetch = Some(Level::new("I1", 32 << 10, 8, 64));
                config.prefetch = Prefetch::NextLine;
            },
            "without prefetching",
        );
    }

    #[test]
    fn odd_last_levels_get_more_ways() {
        let real = Level::new("LL", 33 << 20, 11, 64);
        let rounded = real.with_power_of_two_sets().unwrap();
        assert_eq!((rounded.bytes, rounded.ways, rounded.sets()), (33 << 20, 33, 16384));
        assert_eq!(two().levels[0].with_power_of_two_sets().unwrap(), two().levels[0]);
        assert!(Level::new("LL", 1021 * 64, 1, 64).with_power_of_two_sets().is_none());
    }
}
