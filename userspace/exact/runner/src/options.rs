//! What an exact run is asked for.

use std::{ffi::OsString, path::PathBuf};

use locality_reuse::MAX_GRANULARITIES;
use locality_stream::DataType;
use locality_symbols::IgnoreLines;
use locality_units::parse::WrongUse;

use super::{
    cache::{
        machine::{Asked, Compatible, Prefetch},
        spec::CacheArg,
    },
    parallelism::ParallelismOptions,
};

/// Options of an exact run.
#[derive(Debug, Clone)]
pub struct Options {
    /// File in which the report is stored.
    pub output: Option<PathBuf>,
    /// Place to which the report is printed, if not a stream.
    pub report: Option<PathBuf>,
    /// Whether the report is printed in Callgrind's format.
    pub callgrind: bool,
    /// Bytes of which reuse is counted: powers of two.
    pub granularity: Vec<u64>,
    /// Whether one thread runs at a time.
    pub one_order: bool,
    /// Whether the reuse of instructions is counted instead of that of data.
    pub instructions: bool,
    /// Functions to which the run is restricted, by name; empty: all.
    pub function: Vec<String>,
    /// Types of data to which the run is restricted; empty: all.
    pub data_type: Vec<DataType>,
    /// Number of lines of which one is sampled; `None`: all are seen.
    pub sample_lines: Option<u32>,
    /// Number of sets of a cache within which stack distances are counted too.
    pub sets: Option<u32>,
    /// Whether misses under optimal replacement are computed.
    pub optimal: bool,
    /// Whether the report has 32 bins for each power of two too.
    pub fine: bool,
    /// Lines with values that pass on no dependence, and with accesses that are no reuse.
    pub ignore_lines: Vec<IgnoreLines>,
    /// How parallelism is reported.
    pub parallelism: ParallelismOptions,
    /// How caches are simulated.
    pub caches: CacheOptions,
    /// The command.
    pub command: Vec<OsString>,
}

/// Options of a cache simulation, each of which requests it.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// Whether the use of this host's caches is reported.
    pub cache_use: bool,
    /// Caches that are simulated.
    pub cache: Vec<CacheArg>,
    /// Tool whose rules of counting hold.
    pub compatible: Option<Compatible>,
    /// Prefetching.
    pub prefetch: Option<Prefetch>,
    /// Whether a cache for instructions is simulated.
    pub instruction_fetch: bool,
    /// Whether costs are charged to data objects too.
    pub objects: bool,
    /// Functions whose costs go to their callers.
    pub skip_function: Vec<String>,
}

impl Options {
    /// Refuses combinations beyond the option parser: cache simulation requires a Callgrind file
    /// and all data accesses; reuse options require reuse counting, with at most a maximum of
    /// granules.
    pub fn check(&self) -> Result<(), WrongUse> {
        let names = [
            (&self.function, "--function"),
            (&self.parallelism.inclusive, "--inclusive"),
            (&self.caches.skip_function, "--skip-function"),
        ];
        let unnamed = names.iter().find(|(names, _)| names.iter().any(|name| name.trim().is_empty()));
        if let Some((_, option)) = unnamed {
            return Err(WrongUse(format!(
                "{option} has an empty name: write the function's name, or leave {option} out"
            )));
        }
        let restrictions = [
            (!self.function.is_empty(), "--function"),
            (!self.data_type.is_empty(), "--data-type"),
            (self.instructions, "--instructions"),
        ];
        let restriction = restrictions.iter().find(|(given, _)| *given);
        if let Some((_, option)) = restriction.filter(|_| self.callgrind) {
            return Err(WrongUse(format!(
                "--format callgrind tells of simulated caches, which see all accesses to data: leave out \
                 {option}, or print text or json"
            )));
        }
        let parts = [(!self.function.is_empty(), "--function"), (!self.data_type.is_empty(), "--data-type")];
        let part = parts.iter().find(|(given, _)| *given && self.parallelism.parallelism);
        if let Some((_, option)) = part {
            return Err(WrongUse(format!(
                "--parallelism needs all accesses, and {option} leaves some out: restrict the run with \
                 --inclusive FUNCTION, or leave {option} out"
            )));
        }
        if self.one_order && self.parallelism.parallelism {
            return Err(WrongUse(
                "--parallelism tells each thread apart, and --one-order joins them: leave one of them out"
                    .to_owned(),
            ));
        }
        self.parallelism.check()?;
        if self.one_order && !self.parallelism.inclusive.is_empty() {
            return Err(WrongUse(
                "--inclusive follows each thread's calls, and --one-order joins threads: leave one \
                 of them out"
                    .to_owned(),
            ));
        }
        self.check_sample()?;
        let of_reuse = [(self.sets.is_some(), "--sets"), (self.optimal, "--optimal"), (self.fine, "--fine")];
        let asked = of_reuse.iter().find(|(given, _)| *given);
        if let Some((_, option)) = asked.filter(|_| self.granules().is_empty()) {
            return Err(WrongUse(format!(
                "{option} tells of reuse, which is not counted beside simulated caches and parallelism \
                 unless asked for: add --granularity 64"
            )));
        }
        if !self.ignore_lines.is_empty() && self.simulation().is_some() {
            return Err(WrongUse(
                "--ignore-lines is for reuse and parallelism, and simulated caches see all accesses: leave one \
                 of them out"
                    .to_owned(),
            ));
        }
        if self.granularity.len() > MAX_GRANULARITIES {
            return Err(WrongUse(format!("--granularity takes {MAX_GRANULARITIES} sizes at most")));
        }
        Ok(())
    }

    /// Refuses what needs all accesses beside a sample of lines.
    fn check_sample(&self) -> Result<(), WrongUse> {
        if self.sample_lines.is_none() {
            return Ok(());
        }
        let needs_all = [
            (
                self.simulation().is_some(),
                "simulated caches need every line of each of their sets: leave --sample-lines out, or read the \
                 misses of a fully associative cache in the report of --sample-lines alone",
            ),
            (
                self.parallelism.parallelism,
                "--parallelism follows values through every access: leave --sample-lines out, or restrict the \
                 run with --inclusive FUNCTION to save time",
            ),
            (
                !self.parallelism.inclusive.is_empty(),
                "--inclusive follows every block: leave it out, or use --function for a function's own \
                 instructions",
            ),
            (
                self.instructions,
                "--sample-lines samples lines of data, and --instructions counts instruction fetches: leave one of \
                 them out",
            ),
            (
                self.one_order,
                "--one-order counts the bytes between threads by every access: leave it out, and each thread \
                 has distances of its own",
            ),
            (
                self.sets.is_some(),
                "--sets counts distances of few lines within a set, too few to sample: leave --sample-lines out",
            ),
            (self.optimal, "--optimal needs the next use of every line: leave --sample-lines out"),
            (self.fine, "--fine has a count of every reuse in narrow bins: leave --sample-lines out"),
            (
                self.granularity.iter().any(|bytes| *bytes != DEFAULT_GRANULE),
                "--sample-lines samples lines of 64 bytes: leave --granularity out, or give 64",
            ),
        ];
        match needs_all.iter().find(|(asked, _)| *asked) {
            Some((_, why)) => Err(WrongUse((*why).to_owned())),
            None => Ok(()),
        }
    }

    /// What is asked of the cache simulation; `None`: no simulation.
    pub fn simulation(&self) -> Option<Asked<'_>> {
        let CacheOptions {
            cache_use,
            cache,
            compatible,
            prefetch,
            instruction_fetch,
            objects,
            skip_function,
        } = &self.caches;
        let wanted = *cache_use
            || !cache.is_empty()
            || compatible.is_some()
            || prefetch.is_some()
            || *instruction_fetch
            || *objects
            || !skip_function.is_empty()
            || self.callgrind;
        wanted.then_some(Asked {
            caches: cache,
            prefetch: *prefetch,
            compatible: *compatible,
            instruction_fetch: *instruction_fetch,
            objects: *objects,
        })
    }

    /// Granules of which reuse is counted.
    pub fn granules(&self) -> Vec<u64> {
        let counts_reuse =
            self.simulation().is_none() && (!self.parallelism.parallelism || self.instructions);
        if self.granularity.is_empty() && counts_reuse {
            return vec![DEFAULT_GRANULE];
        }
        self.granularity.clone()
    }
}

/// Bytes of the lines of most machines.
const DEFAULT_GRANULE: u64 = 64;
