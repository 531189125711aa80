//! Options of `exact`.

use std::{ffi::OsString, path::PathBuf};

use clap::Args;
use locality_approximate::IgnoreLines;
use locality_runner::{
    self as exact,
    cache::{
        machine::{Compatible, Prefetch},
        spec::CacheArg,
    },
};
use locality_stream::DataType;
use locality_units::parse as units;

use super::{Format, OutputArgs};

/// Options of an exact run.
#[derive(Debug, Clone, Args)]
pub struct ExactArgs {
    /// Store the report in this file, for `locality-bpf report FILE` [an earlier file becomes FILE.old].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Sizes of the units whose reuse is counted: powers of two from 1 to 1048576 bytes, at most six
    /// [default: 64; none with simulated caches or --parallelism]. Run time grows with each size.
    #[arg(long, value_parser = exact::granularity, value_delimiter = ',', value_name = "BYTES[,BYTES…]")]
    pub granularity: Vec<u64>,
    /// Run the threads of a process one at a time, and count reuse between them.
    #[arg(long)]
    pub one_order: bool,
    /// See only one of K cache lines, drawn by a hash of the address, and estimate the whole run with
    /// intervals: a power of two from 2 to 4096. The run is faster; the report has no cache below 4 K lines.
    ///
    /// Example: locality-bpf exact --sample-lines 16 -- ./prog arg
    #[arg(long, value_parser = exact::sample_lines, value_name = "K")]
    pub sample_lines: Option<u32>,
    /// Count the reuse of instructions (each executed one fetches its bytes) instead of data.
    #[arg(long)]
    pub instructions: bool,
    /// Count only accesses by the instructions of this function; may be given several times.
    ///
    /// Names are those of the symbol table, or readable: `write`, `fmt::write`. Callees and inlined
    /// copies of the function are excluded.
    #[arg(long, value_name = "NAME")]
    pub function: Vec<String>,
    /// Count only accesses to data of this type, as the instruction sees it; may be given several times.
    ///
    /// Types are named as in the report: i8 to i64, f32, f64, f80, integer_vector_128,
    /// float_vector_256 and so on. Distances and footprint then count these accesses alone. Best
    /// with `--granularity` of the type's bytes.
    #[arg(long, value_name = "TYPE", conflicts_with = "instructions")]
    pub data_type: Vec<DataType>,
    /// Ignore these source lines of the program or its libraries, by debug information: values computed
    /// there are there at once for parallelism, and accesses by the lines are no reuse; may be given
    /// several times.
    ///
    /// Example: --ignore-lines sim.c:88 --ignore-lines sim.c:102-110,120
    #[arg(long, value_name = "FILE:LINES")]
    pub ignore_lines: Vec<IgnoreLines>,
    /// Also count stack distances within the sets of a cache with this number of sets, 1 to 1048576, for up
    /// to 32 ways.
    #[arg(
        long,
        value_parser = units::whole::<u32>(1, 1 << 20),
        value_name = "N",
        conflicts_with = "instructions"
    )]
    pub sets: Option<u32>,
    /// Also compute misses under optimal replacement, for caches of 1, 2, 4 … granules. Needs 8 bytes of
    /// memory per touch during the run, at most 512 MiB a thread, and 16 bytes per touch afterwards.
    /// The computation after the run takes as long as the run or longer.
    #[arg(long, conflicts_with = "instructions")]
    pub optimal: bool,
    /// Add distances in 32 bins for each power of two, of the run and of each phase, with the mean time
    /// distance of each bin. Conversions from time to stack distances need them.
    #[arg(long)]
    pub fine: bool,
    /// How parallelism is counted.
    #[command(flatten)]
    pub parallelism: ParallelismArgs,
    /// How caches are simulated.
    #[command(flatten)]
    pub caches: CacheArgs,
    /// How to print.
    #[command(flatten)]
    pub print: OutputArgs,
    /// The command.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Options of parallelism.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Parallelism")]
pub struct ParallelismArgs {
    /// Report how many instructions could have run at once, by their dependences through registers and
    /// memory (docs/guide/loops-and-parallelism.md).
    ///
    /// Example: locality-bpf exact --parallelism --inclusive compress -- ./prog arg
    #[arg(long)]
    pub parallelism: bool,
    /// Which dependences count: values, as the algorithm needs, or machine, as executed [default:
    /// values].
    #[arg(long, value_name = "VIEW", requires = "parallelism")]
    pub view: Option<exact::ViewArg>,
    /// Which dependences are ignored, instead of a view.
    #[arg(long, value_delimiter = ',', value_name = "WHAT[,WHAT…]", requires = "parallelism")]
    pub ignore: Vec<exact::IgnoreArg>,
    /// Instructions in flight at most, as in a reorder buffer; `inf` for no limit [default: 64,512,inf].
    #[arg(long, value_delimiter = ',', value_name = "N[,N…]", requires = "parallelism")]
    pub window: Vec<exact::WindowArg>,
    /// Branch predictor: perfect, gshare:BITS, tage, static, none [default: perfect].
    #[arg(long, value_delimiter = ',', value_name = "PREDICTOR[,…]", requires = "parallelism")]
    pub predict: Vec<exact::PredictArg>,
    /// Latencies of instructions [default: unit].
    #[arg(long, value_name = "MODEL", requires = "parallelism")]
    pub latency: Option<exact::LatencyArg>,
    /// Also report parallelism of basic blocks, calls of functions, or iterations of loops in place of
    /// instructions, and the bytes that they take from each other.
    ///
    /// Example: locality-bpf exact --parallelism --tasks functions --partition 4 -- ./prog arg
    #[arg(long, value_name = "NODES", requires = "parallelism")]
    pub tasks: Option<exact::TasksArg>,
    /// Divide the nodes of --tasks into this number of parts, 2 to 1024, of about equal work, with few
    /// bytes between them.
    #[arg(long, value_name = "K", value_parser = units::whole::<u32>(2, 1024), requires = "tasks")]
    pub partition: Option<u32>,
    /// Also report which loops and functions could use several processors: how many iterations of a loop,
    /// or parts of a call, could run at once, and the speed-up at most.
    ///
    /// Example: locality-bpf exact --parallelism --self-parallelism --inclusive solve -- ./prog arg
    #[arg(long, requires = "parallelism")]
    pub self_parallelism: bool,
    /// Processors for the speed-up of --self-parallelism [default: those of this machine].
    #[arg(
        long,
        value_name = "P",
        value_parser = units::whole::<u32>(1, 1 << 20),
        requires = "self_parallelism"
    )]
    pub processors: Option<u32>,
    /// Count only calls of this function, from call to return, with all callees; may be given
    /// several times. Also restricts reuse, the mix of instructions and simulated caches.
    #[arg(long, value_name = "FUNCTION")]
    pub inclusive: Vec<String>,
}

/// Options of a cache simulation; any of them asks for one.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cache simulation")]
pub struct CacheArgs {
    /// Simulate this host's caches, and report the lines of code that load data and use little of it.
    #[arg(long, conflicts_with_all = ["instructions", "function", "data_type"])]
    pub cache_use: bool,
    /// Simulate these caches: L1=SIZE,WAYS,LINE, also I1 (instructions), L2 and LL (the last
    /// level); `host`; or a cache file. May be given several times, or several caches with `;`
    /// between them. A named cache replaces the one of `host` or file.
    ///
    /// Example: --cache L1=32K,8,64 --cache LL=8M,16,64
    #[arg(long, value_name = "CACHES", conflicts_with_all = ["instructions", "function", "data_type"])]
    pub cache: Vec<CacheArg>,
    /// Count as this tool does, for comparison: two levels, instruction fetches in the last level
    /// too, and Callgrind's rules for costs and for accesses that straddle lines.
    #[arg(long, value_name = "TOOL", conflicts_with_all = ["instructions", "function", "data_type"])]
    pub compatible: Option<Compatible>,
    /// Prefetcher to simulate [default: none].
    #[arg(long, value_name = "WHAT", conflicts_with_all = ["instructions", "function", "data_type"])]
    pub prefetch: Option<Prefetch>,
    /// Simulate a cache for instructions too.
    #[arg(long, conflicts_with_all = ["instructions", "function", "data_type"])]
    pub instruction_fetch: bool,
    /// Also charge costs to data objects: variables, mappings, heap and stacks.
    #[arg(long, conflicts_with_all = ["instructions", "function", "data_type"])]
    pub objects: bool,
    /// Charge the costs and calls of this function to its callers; may be given several times.
    ///
    /// Example: --skip-function GOMP_parallel
    #[arg(long, value_name = "NAME", conflicts_with_all = ["instructions", "function", "data_type"])]
    pub skip_function: Vec<String>,
}

impl From<ExactArgs> for exact::Options {
    fn from(args: ExactArgs) -> Self {
        let CacheArgs { cache_use, cache, compatible, prefetch, instruction_fetch, objects, skip_function } =
            args.caches;
        let ParallelismArgs {
            parallelism,
            view,
            ignore,
            window,
            predict,
            latency,
            tasks,
            partition,
            self_parallelism,
            processors,
            inclusive,
        } = args.parallelism;
        Self {
            output: args.output,
            report: args.print.report,
            callgrind: args.print.format == Format::Callgrind,
            granularity: args.granularity,
            one_order: args.one_order,
            sample_lines: args.sample_lines,
            instructions: args.instructions,
            function: args.function,
            data_type: args.data_type,
            sets: args.sets,
            optimal: args.optimal,
            fine: args.fine,
            ignore_lines: args.ignore_lines,
            parallelism: exact::ParallelismOptions {
                parallelism,
                view,
                ignore,
                window,
                predict,
                latency,
                tasks,
                partition,
                self_parallelism,
                processors,
                inclusive,
            },
            caches: exact::CacheOptions {
                cache_use,
                cache,
                compatible,
                prefetch,
                instruction_fetch,
                objects,
                skip_function,
            },
            command: args.command,
        }
    }
}
