//! The simulated machine: from the command line, from a machine file, from the host.
//!
//! A machine file has a `KEY = VALUE` per line and comments after `#`; keys
//! are the names of caches, `prefetch`, `compatible` and `instruction-fetch`,
//! values are as on the command line, bare or in double quotes:
//!
//! ```text
//! # a small core
//! L1 = 32K,8,64
//! LL = "8M,16,64"
//! prefetch = next-line
//! ```
//!
//! The command line wins over the file. Not here: the form of one cache (`spec`).

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::ValueEnum;
use locality_cachesim::{Config, Level};
use locality_model::CacheLevel;

use super::spec::{self, CacheArg, Geometry, Name};
use locality_units::parse::WrongUse;

/// A machine file is no longer.
const MACHINE_FILE_BYTES: u64 = 64 << 10;

/// Prefetching, beside the requested lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Prefetch {
    /// Nothing.
    #[default]
    None,
    /// The line after one that missed.
    NextLine,
    /// The line that an instruction will touch next, where its last touches are evenly apart.
    Stride,
}

/// Whose rules of counting hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Compatible {
    /// Callgrind's, of valgrind 3.19.
    Callgrind,
}

/// Requests of the command line.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// `--cache`, in order.
    pub caches: &'a [CacheArg],
    /// `--prefetch`.
    pub prefetch: Option<Prefetch>,
    /// `--compatible`.
    pub compatible: Option<Compatible>,
    /// `--instruction-fetch`.
    pub instruction_fetch: bool,
    /// `--objects`.
    pub objects: bool,
}

/// The simulated machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// The first level for instructions, if fetches are simulated.
    pub instructions: Option<Geometry>,
    /// Data levels, 1 to 3, the smallest first.
    pub levels: Vec<(Name, Geometry)>,
    /// Kind of prefetching.
    pub prefetch: Prefetch,
    /// Whether counts follow Callgrind's rules.
    pub compatible: bool,
    /// Whether costs go to data objects too.
    pub objects: bool,
    /// Changes made, in sentences.
    pub notices: Vec<String>,
}

impl Machine {
    /// Configuration for the simulation.
    ///
    /// # Errors
    /// Requests beyond the simulation, in a sentence.
    pub fn config(&self) -> Result<Config> {
        let level = |name: &str, cache: Geometry| {
            Level::new(name, cache.bytes, u64::from(cache.ways), u64::from(cache.line))
        };
        let config = Config {
            levels: self.levels.iter().map(|(name, cache)| level(&name.to_string(), *cache)).collect(),
            instruction_fetch: self.instructions.map(|cache| level("I1", cache)),
            compatible_callgrind: self.compatible,
            inclusive: true,
            objects: self.objects,
            prefetch: match self.prefetch {
                Prefetch::None => locality_cachesim::Prefetch::None,
                Prefetch::NextLine => locality_cachesim::Prefetch::NextLine,
                Prefetch::Stride => locality_cachesim::Prefetch::Stride,
            },
        };
        config.validate().map_err(|why| WrongUse(format!("these caches cannot be simulated: {why}")))?;
        Ok(config)
    }
}

/// Settings from file and command line.
#[derive(Default)]
struct Said {
    caches: BTreeMap<Name, Geometry>,
    /// The host's levels, for unnamed levels.
    host: BTreeMap<Name, Geometry>,
    /// Changed or omitted parts.
    host_notices: Vec<(Name, String)>,
    /// The host's cache for instructions, if requested and known.
    host_instructions: Option<Geometry>,
    prefetch: Option<Prefetch>,
    compatible: Option<Compatible>,
    instruction_fetch: bool,
    objects: bool,
    notices: Vec<String>,
}

impl Machine {
    /// The requested configuration on the host, with the host's data levels and instruction cache.
    ///
    /// # Errors
    /// Unreadable or invalid files, and contradicting caches, with the remedy.
    pub fn new(asked: &Asked<'_>, host: &[CacheLevel], instructions: Option<&CacheLevel>) -> Result<Self> {
        let mut said = Said {
            prefetch: asked.prefetch,
            compatible: asked.compatible,
            instruction_fetch: asked.instruction_fetch,
            objects: asked.objects,
            ..Said::default()
        };
        let mut filled = Said::default();
        for arg in asked.caches {
            match arg {
                CacheArg::Levels(levels) => {
                    for (name, geometry) in levels {
                        said.put(*name, *geometry).map_err(|why| WrongUse(format!("--cache: {why}")))?;
                    }
                }
                CacheArg::Host => filled.fill_from(host, instructions)?,
                CacheArg::File(path) => filled.read(path).map_err(wrong)?,
            }
        }
        if said.caches.is_empty() && filled.caches.is_empty() && filled.host.is_empty() {
            filled.fill_from(host, instructions)?;
        }
        said.or(filled);
        // A contradiction by the host is not the user's error.
        let by_user = !asked.caches.is_empty() || asked.compatible.is_some() || asked.prefetch.is_some();
        said.finish().map_err(|error| if by_user { wrong(error) } else { error })
    }
}

/// Errors in the file were written by the user.
fn wrong(error: anyhow::Error) -> anyhow::Error {
    WrongUse(format!("{error:#}")).into()
}

impl Said {
    fn put(&mut self, name: Name, geometry: Geometry) -> Result<(), String> {
        match self.caches.insert(name, geometry) {
            Some(before) if before != geometry => Err(format!("{name} is given twice, and differently")),
            _ => Ok(()),
        }
    }

    fn fill_from(&mut self, host: &[CacheLevel], instructions: Option<&CacheLevel>) -> Result<()> {
        let (levels, notices) = spec::host(host).map_err(|why| anyhow!(why))?;
        self.host.extend(levels);
        let told = instructions.filter(|cache| cache.bytes > 0 && cache.ways > 0);
        self.host_instructions =
            told.map(|cache| Geometry { bytes: cache.bytes, ways: cache.ways, line: cache.line });
        self.host_notices.extend(notices);
        Ok(())
    }

    fn read(&mut self, path: &Path) -> Result<()> {
        let unreadable = || {
            format!(
                "--cache {}: neither `host`, nor caches as in L1=32K,8,64, nor a cache file that can be read",
                path.display()
            )
        };
        let about = std::fs::metadata(path).with_context(unreadable)?;
        // A pipe or a device might never end.
        if !about.is_file() || about.len() > MACHINE_FILE_BYTES {
            bail!("{}: it is no text file of {} KiB or less", unreadable(), MACHINE_FILE_BYTES >> 10);
        }
        let text = std::fs::read_to_string(path).with_context(unreadable)?;
        for (at, line) in text.lines().enumerate() {
            self.take_line(line).map_err(|why| anyhow!("{}:{}: {why}", path.display(), at + 1))?;
        }
        if self.caches.is_empty() {
            bail!("{} names no cache: write L1 = 32K,8,64", path.display());
        }
        Ok(())
    }

    fn take_line(&mut self, line: &str) -> Result<(), String> {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            return Ok(());
        }
        let (key, value) = line.split_once('=').ok_or_else(|| format!("`{line}` is no KEY = VALUE"))?;
        let (key, value) = (key.trim(), value.trim());
        let value = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(value);
        match key {
            "prefetch" => self.prefetch = Some(choice(key, value)?),
            "compatible" => self.compatible = Some(choice(key, value)?),
            "instruction-fetch" => {
                self.instruction_fetch = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(format!("`{value}` is no instruction-fetch: write true or false")),
                }
            }
            _ => {
                let name: Name = key.parse().map_err(|_| {
                    format!(
                        "unknown key `{key}`: a cache file has I1, L1, L2, LL, prefetch, compatible and \
                         instruction-fetch"
                    )
                })?;
                self.put(name, value.parse().map_err(|why| format!("{name}: {why}"))?)?;
            }
        }
        Ok(())
    }

    /// Adds settings not yet made.
    fn or(&mut self, other: Self) {
        for (name, geometry) in other.caches {
            self.caches.entry(name).or_insert(geometry);
        }
        self.host = other.host;
        self.host_notices = other.host_notices;
        self.host_instructions = other.host_instructions;
        self.prefetch = self.prefetch.or(other.prefetch);
        self.compatible = self.compatible.or(other.compatible);
        self.instruction_fetch |= other.instruction_fetch;
        self.notices.extend(other.notices);
    }

    fn finish(mut self) -> Result<Machine> {
        let compatible = self.compatible.is_some();
        let prefetch = self.prefetch.unwrap_or_default();
        if compatible && prefetch != Prefetch::None {
            bail!(
                "Callgrind counts without this prefetcher: leave out --prefetch, or --compatible callgrind"
            );
        }
        if compatible {
            if self.caches.contains_key(&Name::L2) {
                bail!("Callgrind has two levels of caches: leave out L2, or --compatible callgrind");
            }
            self.host.remove(&Name::L2);
            self.host_notices.retain(|notice| notice.0 != Name::L2);
        }
        let moot = |name: &Name| self.caches.contains_key(name);
        self.notices
            .extend(self.host_notices.into_iter().filter(|(name, _)| !moot(name)).map(|notice| notice.1));
        let from_host = !self.host.is_empty();
        for (name, geometry) in self.host {
            self.caches.entry(name).or_insert(geometry);
        }
        let named = self.caches.remove(&Name::Instructions);
        let levels: Vec<(Name, Geometry)> = self.caches.into_iter().collect();
        let Some((Name::L1, first)) = levels.first().copied() else {
            bail!("no first level of caches: add --cache L1=32K,8,64");
        };
        if compatible && levels.len() != 2 {
            bail!("Callgrind has two levels of caches: add --cache LL=8M,16,64");
        }
        for pair in levels.windows(2) {
            let [(near, a), (far, b)] = pair else { continue };
            if b.bytes < a.bytes {
                bail!(
                    "{far} has {} bytes, fewer than {near} with {}: a farther level holds at least as much",
                    b.bytes,
                    a.bytes
                );
            }
        }
        let fetches = self.instruction_fetch || compatible || named.is_some();
        let instructions = fetches.then(|| match (named, self.host_instructions) {
            (Some(named), _) => named,
            (None, Some(host)) => {
                let (fit, notice) = spec::fit(Name::Instructions, host);
                self.notices.extend(notice);
                fit
            }
            (None, None) => {
                if from_host {
                    let said = "This host does not tell its I1 in sysfs; it is simulated as large as L1.";
                    self.notices.push(said.to_owned());
                }
                first
            }
        });
        let all = levels.iter().map(|level| level.1).chain(instructions);
        if let Some(other) = all.into_iter().find(|cache| cache.line != first.line) {
            bail!(
                "lines of {} bytes and of {} in one machine: give all caches the same line size",
                first.line,
                other.line
            );
        }
        Ok(Machine {
            instructions,
            levels,
            prefetch,
            compatible,
            objects: self.objects,
            notices: self.notices,
        })
    }
}

fn choice<T: ValueEnum>(key: &str, value: &str) -> Result<T, String> {
    T::from_str(value, false).map_err(|_| {
        let all = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<String> = all.map(|value| value.get_name().to_owned()).collect();
        format!("`{value}` is no {key}: write {}", names.join(" or "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: [CacheLevel; 3] = [
        CacheLevel { level: 1, bytes: 32 << 10, ways: 8, line: 64 },
        CacheLevel { level: 2, bytes: 1 << 20, ways: 16, line: 64 },
        CacheLevel { level: 3, bytes: 8 << 20, ways: 16, line: 64 },
    ];

    const HOST_I1: CacheLevel = CacheLevel { level: 1, bytes: 16 << 10, ways: 4, line: 64 };

    fn machine(caches: &[&str], change: impl FnOnce(&mut Asked<'_>)) -> Result<Machine, String> {
        let caches: Vec<CacheArg> = caches.iter().map(|text| text.parse().unwrap()).collect();
        let mut asked = Asked {
            caches: &caches,
            prefetch: None,
            compatible: None,
            instruction_fetch: false,
            objects: false,
        };
        change(&mut asked);
        Machine::new(&asked, &HOST, Some(&HOST_I1)).map_err(|error| {
            assert!(error.is::<WrongUse>(), "{error:#}");
            format!("{error:#}")
        })
    }

    fn names(machine: &Machine) -> Vec<(Name, u64)> {
        machine.levels.iter().map(|(name, geometry)| (*name, geometry.bytes)).collect()
    }

    #[test]
    fn nothing_named_is_the_host_and_what_is_named_wins() {
        let host = machine(&[], |_| {}).unwrap();
        assert_eq!(names(&host), [(Name::L1, 32 << 10), (Name::L2, 1 << 20), (Name::Last, 8 << 20)]);
        assert_eq!(host.instructions, None);
        assert_eq!(host.config().unwrap().levels[2], Level::new("LL", 8 << 20, 16, 64));
        assert_eq!(host, machine(&["host"], |_| {}).unwrap());
        let mixed = machine(&["host", "L1=64K,8,64"], |asked| asked.instruction_fetch = true).unwrap();
        assert_eq!(names(&mixed)[0], (Name::L1, 64 << 10));
        let fetched = Geometry { bytes: 16 << 10, ways: 4, line: 64 };
        assert_eq!(mixed.instructions, Some(fetched));
        let named = machine(&["host", "I1=8K,2,64"], |_| {}).unwrap();
        assert_eq!(named.instructions.unwrap().bytes, 8 << 10);
        // Without the host's caches, I1 is as large as L1.
        let own = machine(&["L1=64K,8,64"], |asked| asked.instruction_fetch = true).unwrap();
        assert_eq!((own.instructions, own.notices.len()), (Some(own.levels[0].1), 0));
        let one = machine(&["L1=4K,4,64"], |_| {}).unwrap();
        assert_eq!(names(&one), [(Name::L1, 4096)]);
    }

    #[test]
    fn an_instruction_cache_that_the_host_does_not_tell_is_as_l1() {
        let asked =
            Asked { caches: &[], prefetch: None, compatible: None, instruction_fetch: true, objects: false };
        for told in [None, Some(CacheLevel { ways: 0, ..HOST_I1 })] {
            let machine = Machine::new(&asked, &HOST, told.as_ref()).unwrap();
            assert_eq!(machine.instructions, Some(machine.levels[0].1));
            assert!(machine.notices[0].contains("does not tell its I1"), "{:?}", machine.notices);
        }
        let odd = Machine::new(&asked, &HOST, Some(&CacheLevel { bytes: 48 << 10, ..HOST_I1 })).unwrap();
        assert_eq!(odd.instructions.unwrap(), Geometry { bytes: 48 << 10, ways: 6, line: 64 });
        assert!(odd.notices[0].contains("The I1 of this host"), "{:?}", odd.notices);
    }

    #[test]
    fn what_the_host_lacks_is_told_unless_it_is_given() {
        let mut host = HOST;
        host[1].ways = 0;
        for (caches, told) in [("host", true), ("L2=256K,4,64", false)] {
            let caches: Vec<CacheArg> = vec!["host".parse().unwrap(), caches.parse().unwrap()];
            let asked = Asked {
                caches: &caches,
                prefetch: None,
                compatible: None,
                instruction_fetch: false,
                objects: false,
            };
            let machine = Machine::new(&asked, &host, None).unwrap();
            assert_eq!(machine.levels.len(), if told { 2 } else { 3 });
            assert_eq!(machine.notices.iter().any(|said| said.contains("level 2")), told);
        }
    }

    #[test]
    fn callgrind_has_two_levels() {
        let compatible =
            |caches: &[&str]| machine(caches, |asked| asked.compatible = Some(Compatible::Callgrind));
        let host = compatible(&[]).unwrap();
        assert_eq!(names(&host), [(Name::L1, 32 << 10), (Name::Last, 8 << 20)]);
        assert!(host.compatible && host.instructions.is_some());
        assert!(compatible(&["L1=4K,4;L2=8K,4;LL=64K,4"]).unwrap_err().contains("leave out L2"));
        assert!(compatible(&["L1=4K,4"]).unwrap_err().contains("add --cache LL"));
        let both = machine(&[], |asked| {
            asked.compatible = Some(Compatible::Callgrind);
            asked.prefetch = Some(Prefetch::Stride);
        });
        assert!(both.unwrap_err().contains("leave out --prefetch"));
    }

    #[test]
    fn contradictions_are_told() {
        for (caches, part) in [
            (&["LL=1M,16,64"][..], "add --cache L1"),
            (&["L1=1M,16,64", "LL=32K,8,64"], "LL has 32768 bytes, fewer than L1"),
            (&["L1=32K,8,32", "LL=1M,16,64"], "lines of 32 bytes and of 64"),
            (&["L1=32K,8,64", "L1=64K,8,64"], "L1 is given twice"),
            (&["no-such-file"], "neither `host`, nor caches"),
        ] {
            let why = machine(caches, |_| {}).unwrap_err();
            assert!(why.contains(part), "{caches:?}: {why}");
        }
    }

    #[test]
    fn a_machine_file_says_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("core.machine");
        let path = file.to_str().unwrap();
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            machine(&[path], |_| {})
        };
        let text = "# small\nL1 = 32K,8,64\nLL = \"1M,16,64\" # last\n\nprefetch = next-line\ninstruction-fetch = true\n";
        let found = read(text).unwrap();
        assert_eq!(names(&found), [(Name::L1, 32 << 10), (Name::Last, 1 << 20)]);
        assert_eq!((found.prefetch, found.instructions.is_some()), (Prefetch::NextLine, true));
        let compatible = read("L1=32K,8\nLL=1M,16\ncompatible=callgrind\n").unwrap();
        assert!(compatible.compatible);
        for (text, part) in [
            ("", "names no cache"),
            ("L1 = 32K,8,64\nsize = 3\n", ":2: unknown key `size`"),
            ("L1\n", ":1: `L1` is no KEY = VALUE"),
            ("L1 = 32K,8,48\n", ":1: L1: a line has"),
            ("prefetch = all\n", "`all` is no prefetch: write none or next-line or stride"),
            ("instruction-fetch = yes\n", "write true or false"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }
}
