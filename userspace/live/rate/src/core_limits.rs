//! The processor that the timing model schedules for.

/// Properties of a processor for the timing model. Counts are averages over code of one kind of
/// instruction. An implausible count is replaced by the [default](Machine::default)'s
/// ([`Machine::plausible`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Cycles in a nanosecond.
    pub clock: f64,
    /// Instructions that are started in a cycle.
    pub width: f64,
    /// Loads of at most 8 bytes in a cycle, from the first-level cache.
    pub loads: f64,
    /// Loads of 16 bytes and more in a cycle.
    pub wide_loads: f64,
    /// Stores in a cycle, each to another line than the one before.
    pub stores: f64,
    /// Stores in a cycle, each to the line of the one before.
    pub close_stores: f64,
    /// Integer operations in a cycle; a comparison and the branch on it are one.
    pub integers: f64,
    /// Additions and multiplications of floating point in a cycle.
    pub floats: f64,
    /// Cycles from a load's address to its value, in the first-level cache.
    pub load: f64,
    /// Cycles from a stored value to a load right after, with an address of the same, unwritten
    /// registers: some processors rename such a word as a register.
    pub forward: f64,
    /// The same for a load with a newly computed address.
    pub forward_anew: f64,
    /// Cycles of an addition of floating point.
    pub add: f64,
    /// Cycles of a multiplication of floating point.
    pub multiply: f64,
    /// Cycles of a `pause`: waiting loops do little else.
    pub pause: f64,
    /// The same of `rdtsc`.
    pub timestamp: f64,
    /// Cycles between two lines of memory at random places, if their loads do not depend on each other.
    pub parallel: f64,
    /// Nanoseconds of a page fault that finds a new page of zeroes.
    pub fault_ns: f64,
    /// The second-level cache, the last-level cache and memory.
    pub levels: [Level; 3],
}

/// A level of caches beyond the first, or memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Level {
    /// Footprint in lines of 64 bytes from which on lines come from here: the size of the cache before.
    pub from: f64,
    /// Cycles of a line beyond one in the first-level cache, without prefetching.
    pub latency: f64,
    /// Cycles between two consecutive lines.
    pub between: f64,
    /// The same for stored lines, which come and go back.
    pub stored: f64,
}

impl Default for Machine {
    /// Round numbers that server processors of the early 2020s share (Fog, "The microarchitecture
    /// of Intel, AMD and VIA CPUs", 2023).
    fn default() -> Self {
        Self {
            clock: 3.0,
            width: 6.0,
            loads: 2.5,
            wide_loads: 2.5,
            stores: 1.5,
            close_stores: 1.5,
            integers: 4.0,
            floats: 2.0,
            load: 5.0,
            forward: 5.0,
            forward_anew: 5.0,
            add: 3.0,
            multiply: 4.0,
            pause: 60.0,
            timestamp: 30.0,
            parallel: 40.0,
            fault_ns: 1000.0,
            levels: [
                Level { from: 750.0, latency: 14.0, between: 2.5, stored: 5.0 },
                Level { from: 32e3, latency: 110.0, between: 7.0, stored: 14.0 },
                Level { from: 500e3, latency: 280.0, between: 14.0, stored: 28.0 },
            ],
        }
    }
}

impl Machine {
    /// Replaces each implausible number by the default's, to limit the damage of a failed
    /// measurement.
    #[must_use]
    pub fn plausible(self) -> Self {
        let default = Self::default();
        let within = |value: f64, usual: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) { value } else { usual }
        };
        let mut from = 0.0;
        let mut levels = self.levels;
        for (level, usual) in levels.iter_mut().zip(default.levels) {
            from = within(level.from, usual.from, 64.0, 1e9).max(from);
            level.from = from;
            level.latency = within(level.latency, usual.latency, 1.0, 5e3);
            level.between = within(level.between, usual.between, 0.1, 200.0);
            level.stored = within(level.stored, usual.stored, 0.1, 400.0);
        }
        Self {
            clock: within(self.clock, default.clock, 0.5, 8.0),
            width: within(self.width, default.width, 1.0, 16.0),
            loads: within(self.loads, default.loads, 0.5, 8.0),
            wide_loads: within(self.wide_loads, default.wide_loads, 0.25, 8.0),
            stores: within(self.stores, default.stores, 0.25, 8.0),
            close_stores: within(self.close_stores, default.close_stores, 0.25, 8.0),
            integers: within(self.integers, default.integers, 0.5, 16.0),
            floats: within(self.floats, default.floats, 0.25, 8.0),
            load: within(self.load, default.load, 2.0, 12.0),
            forward: within(self.forward, default.forward, 0.0, 20.0),
            forward_anew: within(self.forward_anew, default.forward_anew, 0.0, 40.0),
            add: within(self.add, default.add, 1.0, 10.0),
            multiply: within(self.multiply, default.multiply, 1.0, 10.0),
            pause: within(self.pause, default.pause, 0.5, 5e3),
            timestamp: within(self.timestamp, default.timestamp, 5.0, 2e4),
            parallel: within(self.parallel, default.parallel, 1.0, 2e3),
            fault_ns: within(self.fault_ns, default.fault_ns, 50.0, 1e5),
            levels,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_processor_has_is_replaced() {
        let default = Machine::default();
        assert_eq!(default.plausible(), default);
        let mut odd = Machine { clock: f64::NAN, width: 7.5, forward: -3.0, ..default };
        odd.levels[1] = Level { from: 10.0, latency: f64::INFINITY, between: 3.0, stored: f64::NAN };
        let mended = odd.plausible();
        assert_eq!((mended.clock, mended.width, mended.forward), (default.clock, 7.5, default.forward));
        let [second, last, memory] = mended.levels;
        let usual = default.levels[1];
        assert_eq!((last.latency, last.between, last.stored), (usual.latency, 3.0, usual.stored));
        assert!(second.from <= last.from && last.from <= memory.from);
    }
}
