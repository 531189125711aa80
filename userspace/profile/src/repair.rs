//! Makes what was decoded whole: every id refers to something, and a notice says what is missing.
//!
//! Needed after a kill (a row written, its partner not yet) and for damaged files. A healthy finished file passes
//! unchanged.

use locality_analysis::model::{
    Frame, Outcome, Profile, SampleId, Seen, Stack, StackId, Thread, ThreadId, Touch, UseId,
};

use crate::reader::Decoded;

/// Closes gaps and adds the notice.
pub(crate) fn finish(decoded: Decoded) -> Profile {
    let Decoded { mut profile, sample_ids, use_ids, damage, .. } = decoded;
    let find = |id: &mut SampleId| match sample_ids.binary_search(&id.0) {
        Ok(index) => {
            id.0 = index as u32;
            true
        }
        Err(_) => false,
    };
    let watches_before = profile.watches.len();
    profile.watches.retain_mut(|watch| find(&mut watch.sample));
    let orphans = watches_before - profile.watches.len();
    profile.windows.retain_mut(|window| find(&mut window.sample));
    // Uses are known by their ids, so those that stay must be counted anew.
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
    for watch in &mut profile.watches {
        watch.of_use = watch.of_use.and_then(|id| Some(UseId(kept.binary_search(&id.0).ok()? as u32)));
    }
    let placeholders = add_placeholders(&mut profile);

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

/// Points ids that lead nowhere to one placeholder per table. Returns how many ids led nowhere.
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
    for id in profile.stacks.iter_mut().flat_map(|stack| &mut stack.frames) {
        frame |= check(&mut id.0, frames);
    }
    let lost = "its row is missing in the profile file";
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
