//! Merges of profiles whose rows are known.

use super::*;
use crate::testing::{Maker, demo, loops};

fn merged(profiles: &[Profile]) -> Profile {
    let mut merger = Merger::default();
    profiles.iter().for_each(|profile| merger.add(profile.clone(), |_| true).unwrap());
    merger.finish()
}

/// A call path in words.
fn path(profile: &Profile, stack: StackId) -> Vec<(Option<&str>, Option<u32>, Option<&str>)> {
    let frames = &profile.stacks[stack.0 as usize].frames;
    let of = |id: &FrameId| {
        let frame = &profile.frames[id.0 as usize];
        let module = frame.module.map(|module| profile.modules[module.0 as usize].path.as_str());
        (frame.function.as_deref(), frame.line, module)
    };
    frames.iter().map(of).collect()
}

#[test]
fn one_profile_stays_what_it_was() {
    for profile in [demo(), loops::windowed()] {
        let once = merged(std::slice::from_ref(&profile));
        assert_eq!((once.samples.len(), once.watches.len()), (profile.samples.len(), profile.watches.len()));
        assert_eq!(
            (&once.run, &once.ledger, &once.overhead),
            (&profile.run, &profile.ledger, &profile.overhead)
        );
        assert_eq!(once.notices, profile.notices);
        assert_eq!((&once.windows, &once.located), (&profile.windows, &profile.located));
    }
}

#[test]
fn every_row_of_each_part_is_there_with_its_names() {
    let parts = [demo(), loops::windowed(), demo()];
    let whole = merged(&parts);
    let sum = |of: &dyn Fn(&Profile) -> usize| parts.iter().map(of).sum::<usize>();
    assert_eq!(whole.samples.len(), sum(&|part| part.samples.len()));
    assert_eq!(whole.uses.len(), sum(&|part| part.uses.len()));
    assert_eq!(whole.loads.len(), sum(&|part| part.loads.len()));
    assert_eq!(whole.windows.len(), sum(&|part| part.windows.len()));
    assert_eq!(whole.watches.len(), sum(&|part| part.watches.len()));
    assert_eq!(whole.located.len(), sum(&|part| part.located.len()));
    assert_eq!(whole.run.wall_ns, parts.iter().map(|part| part.run.wall_ns).sum::<u64>());
    assert_eq!(whole.run.cpu_ns, parts.iter().map(|part| part.run.cpu_ns).sum::<u64>());
    assert_eq!(whole.ledger.imbalance(), None);
    let (mut first_sample, mut first_watch, mut later_ns) = (0, 0, 0);
    for part in &parts {
        for (index, sample) in part.samples.iter().enumerate() {
            let there = &whole.samples[first_sample + index];
            assert_eq!(path(&whole, there.stack), path(part, sample.stack));
            assert_eq!(there.time_ns, sample.time_ns + later_ns);
            let thread = &part.threads[sample.thread.0 as usize];
            assert_eq!(whole.threads[there.thread.0 as usize].name, thread.name);
        }
        for (index, watch) in part.watches.iter().enumerate() {
            let there = &whole.watches[first_watch + index];
            assert_eq!(there.sample.0 as usize, watch.sample.0 as usize + first_sample);
            assert_eq!(there.ended_ns, watch.ended_ns + later_ns);
            if let (Outcome::Reused { touch: a, .. }, Outcome::Reused { touch: b, .. }) =
                (there.outcome, watch.outcome)
            {
                assert_eq!(path(&whole, a.stack), path(part, b.stack));
            }
        }
        first_sample += part.samples.len();
        first_watch += part.watches.len();
        later_ns += part.run.wall_ns;
    }
    // The third part's names are those of the first.
    assert_eq!(whole.stacks.len(), merged(&parts[..2]).stacks.len());
    assert!(whole.notices[0].starts_with("3 profiles were merged"), "{:?}", whole.notices);
}

#[test]
fn processes_of_one_number_stay_apart_and_files_with_one_build_id_do_not() {
    let mut maker = Maker::new();
    maker.sample("main demo.c:1", crate::AccessKind::Load);
    let (mut here, mut there) = (maker.profile.clone(), maker.profile);
    for (profile, path) in [(&mut here, "/opt/demo"), (&mut there, "/srv/demo")] {
        profile.modules[0] = Module { path: path.to_owned(), build_id: "0a".to_owned() };
    }
    let whole = merged(&[here.clone(), there.clone()]);
    assert_eq!(whole.modules.len(), 1);
    assert_eq!(whole.stacks.len(), 1);
    let pids: HashSet<u32> = whole.threads.iter().map(|thread| thread.pid).collect();
    assert_eq!(pids, HashSet::from([100, 100 + PIDS]));
    // Reports name and count the process as the kernel did.
    assert!(whole.threads.iter().all(|thread| thread.process_id() == 100));
    let threads = here.threads.len() as u64;
    assert_eq!(threads_and_processes(&whole.threads), (threads, 1));
    // In a single profile, equal ids are of threads that followed each other.
    assert_eq!(
        threads_and_processes(&[here.threads.clone(), here.threads.clone()].concat()),
        (2 * threads, 1)
    );
    there.modules[0].build_id = "0b".to_owned();
    assert_eq!(merged(&[here, there]).modules.len(), 2);
}

#[test]
fn a_part_of_the_samples_takes_its_own_rows_along() {
    let whole = loops::windowed();
    let mut merger = Merger::default();
    let half = whole.samples.len() as u64 / 2;
    let until_ns = whole.samples[half as usize].time_ns;
    merger.add(whole.clone(), |sample| sample.time_ns >= until_ns).unwrap();
    let part = merger.finish();
    assert_eq!(part.samples.len(), whole.samples.len() - half as usize);
    assert!(part.windows.iter().all(|window| (window.sample.0 as usize) < part.samples.len()));
    let kept = |sample: SampleId| u64::from(sample.0) >= half;
    assert_eq!(part.uses.len(), whole.uses.iter().filter(|of_use| kept(of_use.sample)).count());
    assert_eq!(part.watches.len(), whole.watches.iter().filter(|watch| kept(watch.sample)).count());
    for watch in &part.watches {
        if let Some(of_use) = watch.of_use {
            assert_eq!(part.uses[of_use.0 as usize].sample, watch.sample);
        }
    }
    assert!(part.run.cpu_ns < whole.run.cpu_ns);
}

#[test]
fn what_cannot_be_one_is_refused_and_other_machines_are_named() {
    let mut merger = Merger::default();
    merger.add(demo(), |_| true).unwrap();
    let mut other = demo();
    other.run.user_only = true;
    assert_eq!(merger.add(other, |_| true), Err(Unlike::KernelTouches));
    let mut other = demo();
    other.run.host.caches[0].bytes *= 2;
    merger.add(other, |_| true).unwrap();
    assert_eq!(merger.parts(), 2);
    let whole = merger.finish();
    assert!(whole.notices.iter().any(|notice| notice.contains("several machines")), "{:?}", whole.notices);
    for _ in 0..2 {
        let mut full = Merger { parts: PARTS, ..Merger::default() };
        assert_eq!(full.add(demo(), |_| true), Err(Unlike::TooMany));
    }
}
