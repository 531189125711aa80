//! Place of a loop in the source: the innermost frame
//! of the user's own code, and the line of the loop.

use locality_estimate::calling_context::{Contexts, is_toolchain};
use locality_model::{Frame, FrameId, Module, Profile, StackId};

/// Sources outside of the user's code: installed packages.
const OTHERS: [&str; 5] =
    ["/.cargo/registry/", "/.cargo/git/", "/site-packages/", "/go/pkg/mod/", "/usr/share/"];

fn frame(profile: &Profile, id: FrameId) -> Option<(&Frame, Option<&Module>)> {
    let frame = profile.frames.get(id.0 as usize)?;
    Some((frame, frame.module.and_then(|module| profile.modules.get(module.0 as usize))))
}

/// Whether the user can change a frame's code.
pub(crate) fn is_own(profile: &Profile, id: FrameId) -> bool {
    frame(profile, id).is_some_and(|(frame, module)| {
        let file = frame.file.as_deref().unwrap_or_default();
        !is_toolchain(frame, module) && !OTHERS.iter().any(|part| file.contains(part))
    })
}

fn frames(contexts: &Contexts, stack: StackId) -> &[FrameId] {
    contexts.of(stack).map_or(&[], |context| contexts.frames(context))
}

/// The innermost frame of the user's own code, otherwise the innermost frame.
pub(crate) fn own(profile: &Profile, contexts: &Contexts, stack: StackId) -> Option<FrameId> {
    let frames = frames(contexts, stack);
    frames.iter().copied().find(|id| is_own(profile, *id)).or_else(|| frames.first().copied())
}

/// Frame and line of a loop, from the calling contexts of the header and of the jump back to
/// the header: the innermost function of the user's own code with both, whatever is inlined,
/// and the smaller of both lines, which is the loop's own in compilers' debug information.
pub(crate) fn of_loop(
    profile: &Profile,
    contexts: &Contexts,
    header: StackId,
    latch: StackId,
) -> (Option<FrameId>, Option<u32>) {
    // Frames of an instruction's machine code: inlined functions, and the surrounding function.
    let piece = |stack: StackId| {
        let all = frames(contexts, stack);
        let inlined = |id: &FrameId| frame(profile, *id).is_some_and(|(frame, _)| frame.inlined);
        let length = all.iter().take_while(|id| inlined(id)).count() + 1;
        all.get(..length.min(all.len())).unwrap_or_default()
    };
    let of = |id: &FrameId| frame(profile, *id).map(|(frame, _)| frame);
    let same = |id: &&FrameId| {
        let (known, own) = (of(id)?, is_own(profile, **id));
        let other = piece(latch).iter().filter_map(of).find(|other| {
            other.function == known.function && other.file == known.file && known.function.is_some()
        })?;
        own.then_some((**id, [known.line, other.line].into_iter().flatten().filter(|line| *line > 0).min()))
    };
    if let Some((id, line)) = piece(header).iter().find_map(|id| same(&id)) {
        return (Some(id), line);
    }
    let header = own(profile, contexts, header);
    (header, header.as_ref().and_then(of).and_then(|frame| frame.line))
}
