//! Cost of a probe on this machine: measured on two functions of our own, probed for a moment.
//!
//! The price of a call is the fastest of several batches, less the cost of the calls
//! without probes, and a quarter on top for the traced program's larger working set.
//! If no price can be measured, the price on the dearest virtual machine is assumed.

use std::{arch::global_asm, io, time::Instant};

use locality_common::heap::{HeapSettings, function};
use locality_symbols::Mappings;

use super::{block_table::Heap, probe_budget::Prices};
use locality_kernel::uprobe::Probe;

/// What was seen on virtual machines.
const GUESS: Prices = Prices { call_ns: 1_500, stepped_ns: 15_000, follow_ns: 4_000, site_ns: 25_000 };

/// Calls in a batch, and batches.
const CALLS: u32 = 60;
const BATCHES: usize = 5;

/// Between the sizes of the two kinds of calls.
const LEAST_BYTES: u64 = 1 << 20;

global_asm!(
    ".pushsection .text.locality_heap_price, \"ax\", @progbits",
    ".balign 16",
    ".globl locality_heap_price_emulated",
    ".hidden locality_heap_price_emulated",
    "locality_heap_price_emulated:",
    "push rbx",
    "mov rax, rdi",
    "pop rbx",
    "ret",
    ".balign 16",
    ".globl locality_heap_price_stepped",
    ".hidden locality_heap_price_stepped",
    "locality_heap_price_stepped:",
    "mov rax, rdi",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn locality_heap_price_emulated(bytes: u64) -> u64;
    fn locality_heap_price_stepped(bytes: u64) -> u64;
}

type Priced = unsafe extern "C" fn(u64) -> u64;

/// Nanoseconds of one call, the fastest batch counting.
fn time(call: Priced, bytes: u64) -> u64 {
    let batch = || {
        let began = Instant::now();
        for _ in 0..CALLS {
            // SAFETY: the functions above return their argument and touch no memory.
            std::hint::black_box(unsafe { call(bytes) });
        }
        began.elapsed().as_nanos() as u64 / u64::from(CALLS)
    };
    (0..BATCHES).map(|_| batch()).min().unwrap_or(0)
}

/// Measures the costs, or returns the reason for a failure.
pub(super) fn measure(heap: &Heap) -> (Prices, Option<String>) {
    let prices = try_measure(heap);
    let own = std::process::id();
    heap.lock().discard(own);
    match prices {
        Ok(prices) => (prices, None),
        Err(error) => (GUESS, Some(error.to_string())),
    }
}

fn try_measure(heap: &Heap) -> io::Result<Prices> {
    let own = std::process::id();
    let mappings = Mappings::read(own)?;
    let place = |call: Priced| {
        let address = call as *const () as u64;
        let mapping = mappings.find(address).filter(|mapping| mapping.inode != 0);
        let mapping = mapping.ok_or_else(|| io::Error::other("our own text is not mapped from a file"))?;
        let path = format!("/proc/{own}/map_files/{:x}-{:x}", mapping.start, mapping.end);
        Ok::<_, io::Error>((path, address - mapping.start + mapping.offset))
    };
    let (path, emulated) = place(locality_heap_price_emulated)?;
    let (_, stepped) = place(locality_heap_price_stepped)?;
    let malloc = u64::from(function::MALLOC);
    let probes = [
        Probe { offset: emulated, cookie: malloc, followed: true, byte: 0 },
        Probe { offset: stepped, cookie: malloc | function::STEPPED, followed: true, byte: 0 },
    ];
    heap.lock().set(HeapSettings { min_bytes: LEAST_BYTES, epoch: 0, reserved: 0 });
    let free_ns = time(locality_heap_price_emulated, 1);
    let programs = heap.lock().programs();
    let link = programs.map_err(io::Error::other)?.attach(own, path.as_ref(), &probes)?;
    let call_ns = time(locality_heap_price_emulated, 1).saturating_sub(free_ns);
    let stepped_ns = time(locality_heap_price_stepped, 1).saturating_sub(free_ns);
    // Addresses of no block of ours; the first of them copies the stack.
    let followed_ns = time(locality_heap_price_emulated, LEAST_BYTES).saturating_sub(free_ns);
    // Its end takes a grace period.
    std::thread::spawn(move || drop(link));
    if call_ns == 0 {
        return Err(io::Error::other("probes of our own text do not fire"));
    }
    let dearer = |ns: u64| ns + ns / 4;
    Ok(Prices {
        call_ns: dearer(call_ns),
        stepped_ns: dearer(stepped_ns.max(call_ns)),
        follow_ns: dearer(followed_ns.saturating_sub(call_ns)),
        site_ns: GUESS.site_ns,
    })
}
