//! Measures what names from a symboliser process cost beside names read here: `isolation FILE
//! [BATCH]` asks for 3,000 addresses of the file's code in either way, so many at once, and prints
//! CPU times.
#![expect(clippy::print_stdout, reason = "prints its figures")]
#![expect(clippy::unwrap_used, reason = "a measurement may fail loudly")]

use std::time::{Duration, Instant};

use locality_symbols::{
    Isolation, ModuleInfo, Processes, Symbolizer, become_symboliser_if_asked, symbolisers_cpu_ns,
};
use nix::sys::resource::{UsageWho, getrusage};
use object::{Object as _, ObjectSection as _};

const ADDRESSES: u64 = 3000;

fn main() {
    become_symboliser_if_asked();
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap();
    let batch: usize = arguments.next().map_or(10, |batch| batch.parse().unwrap());
    let bytes = std::fs::read(&path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let build_id = file.build_id().unwrap().unwrap_or_default();
    let build_id = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = file.section_by_name(".text").unwrap();
    // Scattered, each once.
    let step = (text.size() / ADDRESSES).max(1);
    let addresses: Vec<u64> = (0..ADDRESSES).map(|n| text.address() + n * 1231 % ADDRESSES * step).collect();
    let module = ModuleInfo { path, build_id };
    for _ in 0..3 {
        measure("here", Processes::new(), &module, &addresses, batch);
        measure("isolated", Processes::isolated(Isolation::default()), &module, &addresses, batch);
    }
}

fn measure(how: &str, processes: Processes, module: &ModuleInfo, addresses: &[u64], batch: usize) {
    let (cpu, others, began) = (own_cpu(), symbolisers_cpu_ns(), Instant::now());
    let mut symbolizer = Symbolizer::new(processes);
    for batch in addresses.chunks(batch) {
        symbolizer.prepare_in_file(module, batch.to_vec());
        for address in batch {
            std::hint::black_box(symbolizer.symbolize_in_file(module, *address));
        }
    }
    let (own, others) = (own_cpu() - cpu, Duration::from_nanos(symbolisers_cpu_ns() - others));
    let elapsed = began.elapsed();
    println!("{how}: CPU time {:?} ({own:?} here, {others:?} there) in {elapsed:?}", own + others);
}

fn own_cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let time = |time: nix::sys::time::TimeVal| {
        Duration::from_micros(time.tv_sec() as u64 * 1_000_000 + time.tv_usec() as u64)
    };
    time(usage.user_time()) + time(usage.system_time())
}
