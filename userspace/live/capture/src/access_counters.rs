//! Hardware counters of the accesses of threads: opened at a thread's first stop, read by the
//! kernel side with each touch and each reading of a meter. Where the machine has none, nothing is
//! opened.
//!
//! The kernel carries the counts of a thread's counters over context switches. The counters take
//! two registers of the PMU while the thread runs. Not here: the meaning of a count
//! (`kernel::sources::counters`).

use locality_kernel::{
    object::{COUNTED_MAX, Object},
    sources::counters::Counting,
};

/// Which places of the kernel's map are taken.
#[derive(Debug, Default)]
pub struct Places {
    how: Option<Counting>,
    free: Vec<u32>,
    used: u32,
}

impl Places {
    /// `how` is `None` where the machine does not count.
    pub fn new(how: Option<Counting>) -> Self {
        Self { how, ..Self::default() }
    }

    /// Counts a thread's accesses from now on. Returns the place of its counters, `None` if the
    /// kernel refuses.
    pub fn start(&mut self, kernel: &mut Object, tid: u32) -> Option<u32> {
        let how = self.how?;
        let place = self.take()?;
        let counters = how.open(tid).map_err(anyhow::Error::from);
        let started = counters.and_then(|counters| kernel.count_accesses(tid, place, &counters));
        if let Err(error) = started {
            tracing::debug!("accesses of thread {tid} not counted: {error:#}");
            self.end(kernel, tid, place);
            return None;
        }
        Some(place)
    }

    /// The thread has ended, or is let go.
    pub fn end(&mut self, kernel: &mut Object, tid: u32, place: u32) {
        kernel.uncount_accesses(tid, place);
        self.free.push(place);
    }

    fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let next = self.used;
            self.used += u32::from(next < COUNTED_MAX);
            (next < COUNTED_MAX).then_some(next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_end() {
        let mut places = Places::default();
        let taken: Vec<u32> = std::iter::from_fn(|| places.take()).collect();
        assert_eq!(taken, (0..COUNTED_MAX).collect::<Vec<_>>());
        places.free.push(7);
        assert_eq!((places.take(), places.take()), (Some(7), None));
    }
}
