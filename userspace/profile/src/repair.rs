//! Makes what was decoded whole: every id refers to something, and a notice says what is missing.
//!
//! Needed after a kill (a row written, its partner not yet) and for damaged files. A healthy finished file passes
//! unchanged.

use locality_analysis::model::{Frame, Outcome, Profile, Stack, StackId, Thread, ThreadId, Touch};

use crate::reader::Decoded;

/// Closes gaps and adds the notice.
pub(crate) fn finish(decoded: Decoded) -> Profile {
    let Decoded { mut profile, sample_ids, damage, .. } = decoded;
    let watches_before = profile.watches.len();
    profile.watches.retain_mut(|watch| match sample_ids.binary_search(&watch.sample.0) {
        Ok(index) => {
            watch.sample.0 = index as u32;
            true
        }
        Err(_) => false,
    });
    let orphans = watches_before - profile.watches.len();
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
