//! Frames, places and call paths of a profile as a report has them. Equal frames are one value.

use std::{cell::OnceCell, sync::Arc};

use locality_estimate::calling_context::{ContextId, Contexts, PlaceId, function_name};
use locality_model::{Frame, FrameId, Profile, StackId};

use crate::schema::{
    objects::Site,
    place::{Caller, Frame as ReportFrame, Path, Place},
};

/// Names frames of a profile.
pub(crate) struct Frames<'a> {
    profile: &'a Profile,
    contexts: &'a Contexts,
    /// By number of the frame.
    frames: Vec<OnceCell<Arc<ReportFrame>>>,
    callers: Vec<OnceCell<Arc<Caller>>>,
}

impl<'a> Frames<'a> {
    pub fn new(profile: &'a Profile, contexts: &'a Contexts) -> Self {
        let of = profile.frames.len();
        let (frames, callers) = (vec![OnceCell::new(); of], vec![OnceCell::new(); of]);
        Self { profile, contexts, frames, callers }
    }

    /// A frame; `None` for a number that leads nowhere.
    pub fn frame(&self, id: FrameId) -> Option<Arc<ReportFrame>> {
        let frame = self.profile.frames.get(id.0 as usize)?;
        let made = self.frames.get(id.0 as usize)?.get_or_init(|| {
            Arc::new(ReportFrame {
                address: frame.address_in_file().filter(|address| *address != 0),
                file: frame.file.clone(),
                function: frame.function.clone(),
                inlined: frame.inlined,
                line: frame.line,
                module: self.module(frame),
                unknown: frame.unknown.clone(),
            })
        });
        Some(Arc::clone(made))
    }

    /// A frame without its address, named if a symbol table has a name.
    pub fn caller(&self, id: FrameId) -> Option<Arc<Caller>> {
        let frame = self.profile.frames.get(id.0 as usize)?;
        let made = self.callers.get(id.0 as usize)?.get_or_init(|| {
            Arc::new(Caller {
                file: frame.file.clone(),
                function: Some(function_name(self.profile, frame)),
                line: frame.line,
                module: self.module(frame),
            })
        });
        Some(Arc::clone(made))
    }

    fn module(&self, frame: &Frame) -> Option<String> {
        let module = self.profile.modules.get(frame.module?.0 as usize)?;
        Some(module.path.clone())
    }

    /// The frames of a context, and why the outermost are missing; no place.
    pub fn path(&self, context: Option<ContextId>) -> Path {
        let frames = context.map_or(&[][..], |context| self.contexts.frames(context));
        let cut = context.and_then(|context| self.contexts.cut(context));
        Path {
            cut: cut.map(str::to_owned),
            frames: Some(frames.iter().filter_map(|id| self.frame(*id)).collect()),
            place: None,
            stack: None,
        }
    }

    /// The call path of an allocation.
    pub fn site(&self, stack: StackId) -> Site {
        let context = self.contexts.of(stack);
        let Path { cut, frames, .. } = self.path(context);
        let place = context.map(|context| self.place(self.contexts.place_of(context)));
        Site { cut, frames, place, stack: None }
    }

    pub fn place(&self, id: PlaceId) -> Place {
        let place = self.contexts.place(id);
        let frame = place.frame.and_then(|frame| self.profile.frames.get(frame.0 as usize));
        Place {
            // Addresses of one function without lines are one place.
            address: None,
            file: frame.and_then(|frame| frame.file.clone()),
            function: frame.map(|frame| function_name(self.profile, frame)),
            line: frame.and_then(|frame| frame.line),
            module: None,
            via: place.via,
        }
    }
}
