//! Where a loop stands in the source: the innermost frame of the user's own code, and the line of the loop.

use locality_estimate::calling_context::{Contexts, is_toolchain};
use locality_model::{Frame, FrameId, Module, Profile, StackId};

/// Sources that a user did not write: those of installed packages.
const OTHERS: [&str; 5] =
    ["/.cargo/registry/", "/.cargo/git/", "/site-packages/", "/go/pkg/mod/", "/usr/share/"];

fn frame(profile: &Profile, id: FrameId) -> Option<(&Frame, Option<&Module>)> {
    let frame = profile.frames.get(id.0 as usize)?;
    Some((frame, frame.module.and_then(|module| profile.modules.get(module.0 as usize))))
}

/// Whether a frame is of code that the user can change.
pub(crate) fn is_own(profile: &Profile, id: FrameId) -> bool {
    frame(profile, id).is_some_and(|(frame, module)| {
        let file = frame.file.as_deref().unwrap_or_default();
        !is_toolchain(frame, module) && !OTHERS.iter().any(|part| file.contains(part))
    })
}

fn frames<'a>(contexts: &'a Contexts, stack: StackId) -> &'a [FrameId] {
    contexts.of(stack).map_or(&[], |context| contexts.frames(context))
}

/// The innermost frame of the user's own code; the innermost one where there is none.
pub(crate) fn own(profile: &Profile, contexts: &Contexts, stack: StackId) -> Option<FrameId> {
    let frames = frames(contexts, stack);
    frames.iter().copied().find(|id| is_own(profile, *id)).or_else(|| frames.first().copied())
}

/// Frame and line of a loop, from the calling contexts of its header and of the jump back to the header: the
/// smaller of both lines, which is the loop's own as compilers tell it, where both are in one function.
pub(crate) fn of_loop(
    profile: &Profile,
    contexts: &Contexts,
    header: StackId,
    latch: StackId,
) -> (Option<FrameId>, Option<u32>) {
    let own = |stack| own(profile, contexts, stack);
    let (header, latch) = (own(header), own(latch));
    let of = |id: Option<FrameId>| id.and_then(|id| frame(profile, id)).map(|(frame, _)| frame);
    match (of(header), of(latch)) {
        (Some(first), Some(last)) if first.function == last.function && first.file == last.file => {
            let lines = [first.line, last.line].into_iter().flatten().filter(|line| *line > 0);
            (header, lines.min())
        }
        (Some(first), _) => (header, first.line),
        (None, last) => (latch, last.and_then(|frame| frame.line)),
    }
}
