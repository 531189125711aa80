//! Makes decoded data consistent: every id refers to a row, and a notice reports the missing parts.
//!
//! Needed after a kill (a row written, the partner not yet) and
//! for damaged files. A healthy finished file passes unchanged.

use locality_model::{
    Accessed, Frame, LoadId, Outcome, Profile, SampleId, Seen, Stack, StackId, Thread, ThreadId, Touch,
    UseId, WatchId,
};

use crate::reader::Decoded;

/// Closes gaps and adds the notice.
pub(crate) fn finish(decoded: Decoded) -> Profile {
    let Decoded { mut profile, sample_ids, use_ids, load_ids, watch_ids, damage, .. } = decoded;
    let find = |id: &mut SampleId| match sample_ids.binary_search(&id.0) {
        Ok(index) => {
            id.0 = index as u32;
            true
        }
        Err(_) => false,
    };
    let watches_before = profile.watches.len();
    let mut kept_watches = Vec::with_capacity(watch_ids.len());
    let mut ids = watch_ids.iter();
    profile.watches.retain_mut(|watch| {
        let id = ids.next();
        let found = find(&mut watch.sample);
        if found {
            kept_watches.extend(id);
        }
        found
    });
    let orphans = watches_before - profile.watches.len();
    profile.windows.retain_mut(|window| find(&mut window.sample));
    profile.loops.retain_mut(|seen| find(&mut seen.sample));
    profile.flows.retain_mut(|flow| find(&mut flow.sample));
    profile.executions.retain_mut(|execution| find(&mut execution.sample));
    profile.readings.retain_mut(|reading| find(&mut reading.sample));
    // Uses are known by id: the remaining uses are numbered anew.
    let mut kept = Vec::with_capacity(use_ids.len());
    let mut ids = use_ids.iter();
    profile.uses.retain_mut(|of_use| {
        let id = ids.next();
        let found = find(&mut of_use.sample);
        if found {
            kept.extend(id);
        }
        found
    });
    let mut kept_loads = Vec::with_capacity(load_ids.len());
    let mut ids = load_ids.iter();
    profile.loads.retain_mut(|load| {
        let id = ids.next();
        let found = find(&mut load.sample);
        if found {
            kept_loads.extend(id);
        }
        found
    });
    for watch in &mut profile.watches {
        watch.of_use = watch.of_use.and_then(|id| Some(UseId(kept.binary_search(&id.0).ok()? as u32)));
    }
    let use_of = |id: UseId| Some(UseId(kept.binary_search(&id.0).ok()? as u32));
    let watch_of =
        |id: WatchId| Some(WatchId(kept_watches.binary_search(&(i64::from(id.0) + 1)).ok()? as u32));
    settle_objects(&mut profile, |of| match of {
        Accessed::Sample(mut id) => find(&mut id).then_some(Accessed::Sample(id)),
        Accessed::Before(mut id) => find(&mut id).then_some(Accessed::Before(id)),
        Accessed::Use(id) => use_of(id).map(Accessed::Use),
        Accessed::Seen(id, granule) => use_of(id).map(|id| Accessed::Seen(id, granule)),
        Accessed::Load(id) => Some(Accessed::Load(LoadId(kept_loads.binary_search(&id.0).ok()? as u32))),
        Accessed::WatchUse(id) => watch_of(id).map(Accessed::WatchUse),
        Accessed::WatchReuse(id) => watch_of(id).map(Accessed::WatchReuse),
    });
    let placeholders = add_placeholders(&mut profile);
    if profile.partial {
        // The partial profile's run row is older than the last rows.
        let last_ns = profile.samples.iter().map(|sample| sample.time_ns).max().unwrap_or(0);
        profile.run.wall_ns = profile.run.wall_ns.max(last_ns);
        let periods = profile.samples.iter().map(|sample| sample.period_ns);
        let periods_ns = periods.fold(0, u64::saturating_add);
        profile.run.cpu_ns = profile.run.cpu_ns.max(periods_ns);
    }

    if !damage.is_empty() {
        profile.partial = true;
        profile.notices.insert(
            0,
            format!(
                "The profile file is damaged ({}). What could be read is shown: {} samples, {} watchpoints.",
                damage.join("; "),
                profile.samples.len(),
                profile.watches.len()
            ),
        );
    } else if profile.partial {
        let text = "The tracer did not end this trace itself; at most its last second is missing.";
        profile.notices.insert(0, text.to_owned());
    }
    if orphans + placeholders > 0 {
        profile.partial = true;
        profile.notices.push(format!(
            "{orphans} watchpoints without their sample were left out, {placeholders} threads, stacks or frames are unknown because their rows are missing."
        ));
    }
    profile
}

/// Dangling ids of objects, members and accesses are
/// forgotten: the access remains, with unknown object.
fn settle_objects(profile: &mut Profile, find: impl Fn(Accessed) -> Option<Accessed>) {
    let (objects, fields, records) = (profile.objects.len(), profile.fields.len(), profile.records.len());
    profile.located.retain_mut(|located| {
        located.field = located.field.filter(|field| (field.0 as usize) < fields);
        match find(located.of) {
            Some(of) if (located.object.0 as usize) < objects => {
                located.of = of;
                true
            }
            _ => false,
        }
    });
    for object in &mut profile.objects {
        object.module = object.module.filter(|module| (module.0 as usize) < profile.modules.len());
    }
    for field in &mut profile.fields {
        field.record = field.record.filter(|record| (record.0 as usize) < records);
    }
}

/// Points dangling ids to one placeholder per table. Returns the number of dangling ids.
fn add_placeholders(profile: &mut Profile) -> usize {
    let (threads, stacks) = (profile.threads.len(), profile.stacks.len());
    let (frames, modules) = (profile.frames.len(), profile.modules.len());
    let mut missing = 0;
    let mut check = |id: &mut u32, known: usize| {
        if *id as usize >= known {
            *id = known as u32;
            missing += 1;
            true
        } else {
            false
        }
    };
    let (mut thread, mut stack, mut frame) = (false, false, false);

    let mut check_touch = |ThreadId(thread_id): &mut ThreadId, StackId(stack_id): &mut StackId| {
        thread |= check(thread_id, threads);
        stack |= check(stack_id, stacks);
    };
    for sample in &mut profile.samples {
        check_touch(&mut sample.thread, &mut sample.stack);
    }
    for watch in &mut profile.watches {
        let reuse = match &mut watch.outcome {
            Outcome::Reused { touch, .. } => Some(touch),
            _ => None,
        };
        for Touch { thread, stack, .. } in watch.use_touch.iter_mut().chain(reuse) {
            check_touch(thread, stack);
        }
    }
    for of_use in &mut profile.uses {
        stack |= check(&mut of_use.stack.0, stacks);
        for (_, seen) in &mut of_use.seen {
            if let Seen::Reused { stack: StackId(id), .. } = seen {
                stack |= check(id, stacks);
            }
        }
    }
    for load in &mut profile.loads {
        stack |= check(&mut load.stack.0, stacks);
    }
    for seen in &mut profile.loops {
        stack |= check(&mut seen.stack.0, stacks);
        stack |= check(&mut seen.latch.0, stacks);
        for access in &mut seen.by_access {
            stack |= check(&mut access.stack.0, stacks);
        }
        for step in &mut seen.chain {
            stack |= check(&mut step.stack.0, stacks);
        }
        for branch in &mut seen.branches {
            stack |= check(&mut branch.stack.0, stacks);
        }
    }
    for sample in &mut profile.kernel_samples {
        stack |= check(&mut sample.stack.0, stacks);
        thread |= check(&mut sample.thread.0, threads);
    }
    let sites = profile.objects.iter_mut().filter_map(|object| object.site.as_mut());
    let of_heap = profile.heap.iter_mut().flat_map(|heap| &mut heap.sites).map(|site| &mut site.stack);
    for StackId(id) in sites.chain(of_heap) {
        stack |= check(id, stacks);
    }
    for id in profile.stacks.iter_mut().flat_map(|stack| &mut stack.frames) {
        frame |= check(&mut id.0, frames);
    }
    let lost = "its row is missing in the profile file";
    for flow in &mut profile.flows {
        flow.modules.retain(|(module, _)| (module.0 as usize) < modules);
    }
    for entry in &mut profile.frames {
        if entry.module.is_some_and(|module| module.0 as usize >= modules) {
            entry.module = None;
            missing += 1;
        }
    }
    if thread {
        profile.threads.push(Thread { name: "unknown".to_owned(), ..Thread::default() });
    }
    if stack {
        profile.stacks.push(Stack { frames: Vec::new(), cut: Some(lost.to_owned()) });
    }
    if frame {
        profile.frames.push(Frame { unknown: Some(lost.to_owned()), ..Frame::default() });
    }
    missing
}
