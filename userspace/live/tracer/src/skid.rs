//! The skid of the sampling clock: how many instructions after the one that takes the time its
//! samples are found.
//!
//! A child chases pointers through memory that no cache holds: one load whose address the last one
//! loaded, then [`NOPS`] instructions that take next to no time, and again. Nearly all its time
//! passes while that load is waited for, so its samples ought to be found at the load; each one's
//! distance after it is its skid. What falls on the far half of the nops is taken for what nops
//! take themselves, and as much is taken off everywhere (at distance 0 too, where the load's
//! own samples lie).
//!
//! Sources of error: in a virtual machine the host decides when a tick comes in; other events
//! (counters, PEBS) skid otherwise.

use std::{
    collections::BTreeMap,
    io,
    ptr::NonNull,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use locality_approximate::Gaussian;

use super::sampling_clock::Clock;
use locality_kernel::{
    object::{Object, Ring},
    records::{Record, decode},
    sys,
};

/// Instructions between two loads, besides the jump.
const NOPS: u32 = 63;
/// Bytes that are walked through, a node in each line.
const BYTES: usize = 64 << 20;
const LINE: usize = 64;
const PERIOD_NS: u64 = 200_000;
/// Sufficient number of samples, and the longest wait for them.
const SAMPLES: u64 = 4000;
const PATIENCE: Duration = Duration::from_secs(5);
/// Samples that are too few.
const SAMPLES_LEAST: u64 = 200;
/// Bytes of the load.
const LOAD: u64 = 3;

/// What was found.
#[derive(Debug, Clone, PartialEq)]
pub struct Skid {
    /// Samples by their distance from the load, in instructions.
    pub histogram: BTreeMap<u32, u64>,
    /// Mean and variance of the distance, less what the instructions between take themselves.
    pub gaussian: Gaussian,
}

/// Measures it. Must be called while the process has one thread; leaves the ring empty.
///
/// # Errors
/// No memory or child, a clock that does not run, a machine too busy to give the child time.
pub fn measure(object: &mut Object, ring: &mut Ring) -> Result<Skid> {
    let walker = Walker::start().context("cannot start the child that shows the skid")?;
    object.add_target(walker.pid)?;
    let counted = walker.count(object, ring);
    object.remove_target(walker.pid);
    while ring.next().is_some() {}
    let histogram = counted?;
    let gaussian = of(&histogram).context("the clock was not seen to fire while a load was waited for")?;
    Ok(Skid { histogram, gaussian })
}

/// Mean and variance; `None` of too little.
fn of(histogram: &BTreeMap<u32, u64>) -> Option<Gaussian> {
    let all: u64 = histogram.values().sum();
    let far: u64 = histogram.range(NOPS / 2..).map(|(_, count)| count).sum();
    let themselves = far.div_ceil(u64::from(NOPS + 2 - NOPS / 2));
    let own = histogram.range(..NOPS / 2).map(|(at, count)| (*at, count.saturating_sub(themselves)));
    (all >= SAMPLES_LEAST).then(|| Gaussian::of_histogram(own))?
}

/// A child that walks until killed.
struct Walker {
    pid: u32,
    nodes: NonNull<u8>,
    code: NonNull<u8>,
}

impl Walker {
    fn start() -> io::Result<Self> {
        let nodes = sys::shared_memory(BYTES)?;
        let mut walker = Self { pid: 0, nodes, code: nodes };
        walker.code = sys::shared_memory(CODE)?;
        walker.link();
        let code = code();
        // SAFETY: the mapping is ours and larger than the code, which nobody runs yet.
        let protected = unsafe {
            std::ptr::copy_nonoverlapping(code.as_ptr(), walker.code.as_ptr(), code.len());
            libc::mprotect(walker.code.as_ptr().cast(), CODE, libc::PROT_READ | libc::PROT_EXEC)
        };
        if protected != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: with one thread the child may continue as a copy of this process.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // SAFETY: the child does not outlive this process; `code` walks the nodes for ever
                // and touches no other memory.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    let walk: extern "C" fn(*const u8) -> ! = std::mem::transmute(walker.code.as_ptr());
                    walk(nodes.as_ptr())
                }
            }
            pid => {
                walker.pid = pid as u32;
                Ok(walker)
            }
        }
    }

    /// Makes one cycle through all lines, in random order (Sattolo's shuffle).
    fn link(&self) {
        let mut order: Vec<usize> = (0..BYTES / LINE).collect();
        let mut random = fastrand::Rng::with_seed(1);
        for at in (1..order.len()).rev() {
            order.swap(at, random.usize(..at));
        }
        for (at, next) in order.into_iter().enumerate() {
            // SAFETY: both lines lie in the mapping, which is aligned to pages.
            unsafe {
                self.nodes.add(at * LINE).cast::<usize>().write(self.nodes.as_ptr() as usize + next * LINE)
            }
        }
    }

    fn count(&self, object: &Object, ring: &mut Ring) -> Result<BTreeMap<u32, u64>> {
        let mut clock = Clock::open(object, PERIOD_NS)?;
        clock.start()?;
        let (mut histogram, mut samples) = (BTreeMap::new(), 0);
        let until = Instant::now() + PATIENCE;
        while samples < SAMPLES && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
            while let Some(item) = ring.next() {
                if let Record::Sample(sample, _) = decode(&item)
                    && let Some(at) = distance(sample.regs.rip.wrapping_sub(self.code.as_ptr() as u64))
                {
                    *histogram.entry(at).or_default() += 1;
                    samples += 1;
                }
            }
        }
        clock.stop();
        Ok(histogram)
    }
}

impl Drop for Walker {
    fn drop(&mut self) {
        // SAFETY: our own child, if there is one, is killed and reaped once; our own mappings are
        // unmapped once.
        unsafe {
            if self.pid != 0 {
                libc::kill(self.pid as i32, libc::SIGKILL);
                libc::waitpid(self.pid as i32, std::ptr::null_mut(), 0);
            }
            if self.code != self.nodes {
                libc::munmap(self.code.as_ptr().cast(), CODE);
            }
            libc::munmap(self.nodes.as_ptr().cast(), BYTES);
        }
    }
}

/// Bytes of the page of code.
const CODE: usize = 4096;

/// `again: mov (%rdi), %rdi; nop …; jmp again`.
fn code() -> Vec<u8> {
    let mut code = vec![0x48, 0x8b, 0x3f];
    code.resize(code.len() + NOPS as usize, 0x90);
    let back = -(code.len() as i8 + 2);
    code.extend([0xeb, back as u8]);
    code
}

/// Instructions from the load to the one at an offset of the code.
fn distance(offset: u64) -> Option<u32> {
    match offset {
        0 => Some(0),
        LOAD.. => u32::try_from(offset - LOAD).ok().map(|nops| nops + 1).filter(|at| *at <= NOPS + 1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_those_of_the_instructions() {
        let code = code();
        let mut decoder = iced_x86::Decoder::with_ip(64, &code, 0, iced_x86::DecoderOptions::NONE);
        let instructions: Vec<_> = decoder.iter().collect();
        assert_eq!(instructions.len() as u32, NOPS + 2);
        for (at, instruction) in (0..).zip(&instructions) {
            assert_eq!(distance(instruction.ip()), Some(at));
        }
        assert_eq!(instructions.last().map(|last| last.near_branch_target()), Some(0));
        assert_eq!((distance(1), distance(code.len() as u64 + 1), distance(u64::MAX)), (None, None, None));
    }

    #[test]
    fn what_the_nops_take_is_no_skid() {
        let mut histogram: BTreeMap<u32, u64> = (0..=NOPS + 1).map(|at| (at, 10)).collect();
        histogram.insert(1, 1010);
        histogram.insert(3, 1010);
        let found = of(&histogram).unwrap();
        assert!((found.mean - 2.0).abs() < 1e-9 && (found.variance - 1.0).abs() < 1e-9, "{found:?}");
        assert_eq!(of(&BTreeMap::from([(1, SAMPLES_LEAST - 1)])), None);
    }
}
