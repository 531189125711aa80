//! The beginning of a trace, as if the trace had been shorter.
//!
//! Limits: rates come from the whole trace, the cost is assumed to
//! be spread evenly, and the ledger stays that of the whole trace.

use super::{Accessed, Located, Outcome, Overhead, Profile, Sample, WatchId};

impl Profile {
    /// Keeps the first `ns` nanoseconds: samples taken until
    /// then, and the state of their watches at that time.
    pub fn first(mut self, ns: u64) -> Self {
        if ns >= self.run.wall_ns {
            return self;
        }
        let samples = self.samples.iter().take_while(|sample| sample.time_ns < ns).count();
        let is_kept = |sample: u32| (sample as usize) < samples;
        let periods = |samples: &[Sample]| samples.iter().map(|sample| sample.period_ns).sum::<u64>();
        let all = periods(&self.samples).max(1);
        self.samples.truncate(samples);
        let part = periods(&self.samples) as f64 / all as f64;
        let Overhead { stop_ns, trap_ns, bpf_ns, heap_ns, string_ns, controller_ns, .. } = &mut self.overhead;
        let costs = [stop_ns, trap_ns, bpf_ns, controller_ns, &mut self.run.cpu_ns];
        for time_ns in costs.into_iter().chain(heap_ns).chain(string_ns) {
            *time_ns = (*time_ns as f64 * part) as u64;
        }
        self.run.wall_ns = ns;
        for thread in &mut self.threads {
            thread.ended_ns = thread.ended_ns.filter(|ended_ns| *ended_ns <= ns);
        }
        self.windows.retain(|window| is_kept(window.sample.0));
        // In the order of samples, so that numbers stay.
        self.uses.retain(|of_use| is_kept(of_use.sample.0));
        self.loads.retain(|load| is_kept(load.sample.0));
        self.loops.retain(|seen| is_kept(seen.sample.0));
        self.flows.retain(|flow| is_kept(flow.sample.0));
        self.executions.retain(|execution| is_kept(execution.sample.0));
        self.readings.retain(|reading| is_kept(reading.sample.0));
        self.kernel_samples.retain(|sample| sample.time_ns < ns);
        let scaled = |count: u64| (count as f64 * part) as u64;
        self.run.ticks = self.run.ticks.map(|(all, kernel)| (scaled(all), scaled(kernel)));
        self.run.page_faults = self.run.page_faults.map(scaled);
        let mut numbers: Vec<Option<WatchId>> = Vec::with_capacity(self.watches.len());
        let mut kept = 0;
        for watch in &mut self.watches {
            let number = (is_kept(watch.sample.0) && watch.armed_ns < ns).then_some(WatchId(kept));
            kept += u32::from(number.is_some());
            numbers.push(number);
            if matches!(watch.outcome, Outcome::Reused { touch, .. } if touch.time_ns <= ns) {
                // Of a reuse in time the touch after it may have been waited for.
                watch.ended_ns = watch.ended_ns.min(ns);
            }
            if watch.ended_ns > ns {
                // Replacement by the policy is assumed equally likely at any moment.
                let lived =
                    ns.saturating_sub(watch.armed_ns) as f64 / (watch.ended_ns - watch.armed_ns) as f64;
                watch.p_survive = watch.p_survive.powf(lived);
                (watch.ended_ns, watch.outcome) = (ns, Outcome::StillArmed);
            }
            if watch.use_touch.is_some_and(|touch| touch.time_ns > ns) {
                (watch.use_touch, watch.use_confirmed) = (None, false);
            }
        }
        let mut number = numbers.iter();
        self.watches.retain(|_| number.next().is_some_and(Option::is_some));
        let (uses, loads, watches) = (self.uses.len(), self.loads.len(), &self.watches);
        let renumbered = |id: WatchId| numbers.get(id.0 as usize).copied().flatten();
        let watch = |id: WatchId| watches.get(id.0 as usize);
        self.located = std::mem::take(&mut self.located)
            .into_iter()
            .filter_map(|located| {
                let of = match located.of {
                    Accessed::Sample(id) | Accessed::Before(id) => is_kept(id.0).then_some(located.of),
                    Accessed::Use(id) | Accessed::Seen(id, _) => {
                        ((id.0 as usize) < uses).then_some(located.of)
                    }
                    Accessed::Load(id) => ((id.0 as usize) < loads).then_some(located.of),
                    Accessed::WatchUse(id) => renumbered(id)
                        .filter(|id| watch(*id).is_some_and(|watch| watch.use_touch.is_some()))
                        .map(Accessed::WatchUse),
                    Accessed::WatchReuse(id) => renumbered(id)
                        .filter(|id| {
                            watch(*id).is_some_and(|watch| matches!(watch.outcome, Outcome::Reused { .. }))
                        })
                        .map(Accessed::WatchReuse),
                };
                of.map(|of| Located { of, ..located })
            })
            .collect();
        self
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Access, Located, ObjectId, Sample, SampleId, StackId, Thread, ThreadId, Touch, Use, UseId, Watch,
        Window,
    };

    use super::*;

    /// Ten samples a second apart, each with a window, a use, and a watch on it that traps
    /// `distance_s` later; watches are recorded at their end, the watch of the first sample last.
    fn profile(distance_s: impl Fn(u32) -> u64) -> Profile {
        const S: u64 = 1_000_000_000;
        let mut profile = Profile::default();
        (profile.run.wall_ns, profile.run.cpu_ns) = (10 * S, 8 * S);
        (profile.overhead.stop_ns, profile.overhead.heap_ns) = (S / 100, Some(S / 50));
        profile.threads = vec![Thread { ended_ns: Some(9 * S), ..Thread::default() }];
        let access = Access { ip: 1, address: 8, size: 8, kind: Default::default() };
        for n in 0..10 {
            let (time_ns, sample) = (u64::from(n) * S, SampleId(n));
            profile.samples.push(Sample {
                time_ns,
                thread: ThreadId(0),
                stack: StackId(0),
                period_ns: S,
                held: true,
                access: Ok(access),
                group: None,
            });
            let (end, touches, rate) = (String::new(), Vec::new(), None);
            profile.windows.push(Window { sample, instructions: 1, accesses: 1, end, touches, rate });
            profile.uses.push(Use {
                sample,
                skip: 0,
                access,
                address: 8,
                stack: StackId(0),
                seen: Vec::new(),
            });
        }
        for n in (0..10).rev() {
            let touch = |time_ns| Touch {
                time_ns,
                thread: ThreadId(0),
                stack: StackId(0),
                kind: Default::default(),
                kernel: false,
            };
            let (armed_ns, distance_ns) = (u64::from(n) * S + S / 10, distance_s(n) * S);
            let ended_ns = armed_ns + distance_ns;
            profile.watches.push(Watch {
                sample: SampleId(n),
                of_use: Some(UseId(n)),
                address: 8,
                bytes: 8,
                armed_ns,
                ended_ns,
                use_touch: Some(touch(armed_ns + 1)),
                use_confirmed: true,
                outcome: Outcome::Reused { touch: touch(ended_ns), distance_ns, accesses: None },
                p_arm: 1.0,
                p_survive: 0.25,
                threads_armed: 1,
                threads_alive: 1,
            });
            for of in [Accessed::WatchUse(WatchId(9 - n)), Accessed::WatchReuse(WatchId(9 - n))] {
                profile.located.push(Located { of, object: ObjectId(n), offset: None, field: None });
            }
            let of = Accessed::Use(UseId(n));
            profile.located.push(Located { of, object: ObjectId(n), offset: None, field: None });
        }
        profile
    }

    #[test]
    fn a_reuse_in_time_whose_watch_went_on_stays() {
        let mut whole = profile(|_| 1);
        // Of sample 2: armed after 2.1 s, reused after 3.1 s.
        whole.watches[7].ended_ns += 5_000_000_000;
        let first = whole.clone().first(4_000_000_000);
        let watch = first.watches.iter().find(|watch| watch.sample.0 == 2).unwrap();
        assert_eq!(
            (watch.outcome, watch.ended_ns, watch.p_survive),
            (whole.watches[7].outcome, 4_000_000_000, 0.25)
        );
    }

    #[test]
    fn what_was_known_by_then() {
        let whole = profile(|n| if n == 1 { 7 } else { 1 });
        assert_eq!(whole.clone().first(u64::MAX), whole);
        let first = whole.first(4_000_000_000);
        assert_eq!((first.samples.len(), first.windows.len(), first.uses.len()), (4, 4, 4));
        assert_eq!((first.run.wall_ns, first.run.cpu_ns), (4_000_000_000, 3_200_000_000));
        assert_eq!((first.overhead.stop_ns, first.overhead.heap_ns), (4_000_000, Some(8_000_000)));
        // Of 7 s it lived 2.9.
        assert!((first.watches[2].p_survive - 0.25_f64.powf(2.9 / 7.0)).abs() < 1e-9);
        assert!(first.watches[1].p_survive == 0.25);
        // What ended later was still running then.
        assert_eq!(first.threads[0].ended_ns, None);
        let told: Vec<(u32, bool, u64)> = first
            .watches
            .iter()
            .map(|watch| {
                (
                    watch.sample.0,
                    matches!(watch.outcome, Outcome::Reused { .. }),
                    watch.ended_ns / 100_000_000,
                )
            })
            .collect();
        assert_eq!(told, [(3, false, 40), (2, true, 31), (1, false, 40), (0, true, 11)]);
        assert!(first.watches.iter().all(|watch| watch.use_touch.is_some()));
        // Each still belongs to its object, which has its sample's number here.
        for located in &first.located {
            let sample = match located.of {
                Accessed::WatchUse(id) => first.watches[id.0 as usize].sample.0,
                Accessed::WatchReuse(id) => {
                    assert!(matches!(first.watches[id.0 as usize].outcome, Outcome::Reused { .. }));
                    first.watches[id.0 as usize].sample.0
                }
                Accessed::Use(id) => id.0,
                other => panic!("{other:?}"),
            };
            assert_eq!(located.object.0, sample);
        }
        assert_eq!(first.located.len(), 4 + 4 + 2);
    }

    #[test]
    fn a_use_that_comes_later_is_not_known() {
        let mut whole = profile(|_| 1);
        for watch in &mut whole.watches {
            watch.use_touch.as_mut().unwrap().time_ns += 500_000_000;
        }
        let first = whole.first(3_400_000_000);
        let last = &first.watches[0];
        assert!(last.sample == SampleId(3) && last.use_touch.is_none() && !last.use_confirmed);
        assert!(first.watches[1].use_touch.is_some());
        assert!(first.first(0).samples.is_empty());
    }
}
