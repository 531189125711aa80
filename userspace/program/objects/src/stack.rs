//! Addresses on a thread's stack: the frame, and its variable.
//!
//! A frame reaches from its stack pointer (the innermost: from the red zone below it, AMD64
//! supplement §3.2.2) to its canonical frame address. Data in a frame may also be an argument for
//! the called frame.

use std::collections::HashMap;
use std::sync::Arc;

use locality_symbols::StackFrame;

use crate::module::{add, blank};
use crate::named::{Kind, Named, Object};
use crate::place::{Memory, Place};
use crate::resolver::Resolver;
use crate::scope::{Anchor, Local, Scope, StackObjects};

/// Bytes below the stack pointer that leaf functions use.
const RED_ZONE: u64 = 128;
/// Frames cached by instruction; beyond, all are forgotten and read again.
const MAX_SCOPES: usize = 1 << 16;

/// Frames read so far.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    /// By module and address in it.
    scopes: HashMap<(u32, u64), Arc<Scope>>,
    shared: StackObjects,
    /// For stack memory that is in no known frame, by the reason.
    outside: HashMap<&'static str, Arc<Object>>,
}

impl Resolver {
    /// Names a place on the thread's stack, or on a known stack of another thread; `None` for an
    /// address outside both.
    pub(crate) fn on_stack(&mut self, address: u64, at: &Place<'_>, region: Option<usize>) -> Option<Named> {
        let found = at.frames.iter().enumerate().find(|(index, frame)| {
            let start = if *index == 0 { frame.sp.saturating_sub(RED_ZONE) } else { frame.sp };
            start <= address && frame.cfa.is_some_and(|cfa| address < cfa)
        });
        if let Some((index, frame)) = found {
            let callee = index.checked_sub(1).and_then(|callee| at.frames.get(callee));
            return Some(self.in_frame(address, frame, callee, at));
        }
        let named_stack = || {
            let region = region.and_then(|region| self.space.region(region));
            region.is_some_and(|region| region.mapping.path.starts_with("[stack"))
        };
        if !at.on_any_stack(address) && !named_stack() {
            return None;
        }
        let same_stack = |innermost: &StackFrame| region.is_some() && self.space.peek(innermost.sp) == region;
        let reason = match at.frames {
            [] => "on a stack, but no call stack was taken",
            [innermost, ..] if !at.on_stack(address) && !same_stack(innermost) => "on another thread's stack",
            [innermost, ..] if address < innermost.sp => {
                "below the stack pointer: in a frame that had returned"
            }
            _ => "outside of the known frames: the call stack is cut, or it is the program's arguments",
        };
        let objects = &mut self.objects;
        let object = self.stacks.outside.entry(reason).or_insert_with(|| {
            let unknown = Some(reason.into());
            add(objects, Object { name: "[stack]".into(), unknown, ..blank(Kind::Stack) })
        });
        let object = Arc::clone(object);
        // There is no start to count from; the offset tells the place from the stack's upper end.
        let end = region.and_then(|region| self.space.region(region)).map_or(0, |region| region.mapping.end);
        Some(Named { object, offset: end.saturating_sub(address), field: None })
    }

    fn in_frame(
        &mut self,
        address: u64,
        frame: &StackFrame,
        callee: Option<&StackFrame>,
        at: &Place<'_>,
    ) -> Named {
        let scope = self.scope(frame);
        let own = scope.as_ref().and_then(|scope| covering(scope, frame, address, 0, at.memory));
        let found = own.map(|(local, offset)| (Arc::clone(&local.object), offset)).or_else(|| {
            let callee = callee?;
            let scope = self.scope(callee)?;
            // An argument lies above the frame of the called function.
            let (local, offset) = covering(&scope, callee, address, callee.cfa?, at.memory)?;
            Some((Arc::clone(&local.object), offset))
        });
        if let Some((object, offset)) = found {
            let field = object.ty.and_then(|ty| self.fields.at(&self.types, ty, false, offset));
            return Named { object, offset, field };
        }
        let object = match scope {
            Some(scope) => Arc::clone(&scope.frame),
            None => {
                let objects = &mut self.objects;
                let reason = "its code belongs to no module: generated code";
                let object = self.stacks.outside.entry(reason).or_insert_with(|| {
                    let unknown = Some(reason.into());
                    add(objects, Object { name: "? [stack]".into(), unknown, ..blank(Kind::Stack) })
                });
                Arc::clone(object)
            }
        };
        Named { object, offset: address.saturating_sub(frame.sp), field: None }
    }

    /// The frame's variables at the instruction; `None` for an instruction without a module.
    pub(crate) fn scope(&mut self, frame: &StackFrame) -> Option<Arc<Scope>> {
        let pc = frame.at.lookup();
        let region = self.space.find(pc)?;
        let index = self.space.module(region, &self.processes, self.pid)?;
        let module = self.space.modules.get_mut(index as usize)?;
        let inside = pc.wrapping_sub(module.bias);
        if let Some(scope) = self.stacks.scopes.get(&(index, inside)) {
            return Some(Arc::clone(scope));
        }
        if self.stacks.scopes.len() >= MAX_SCOPES {
            self.stacks.scopes.clear();
        }
        let (mut context, debug, _) = module.context(index, &mut self.types, &mut self.objects);
        let scope = Arc::new(Scope::at(inside, debug, &mut context, &mut self.stacks.shared));
        self.stacks.scopes.insert((index, inside), Arc::clone(&scope));
        Some(scope)
    }
}

/// The variable around the address with a start at `lowest` or above, and the offset in it.
fn covering<'s>(
    scope: &'s Scope,
    frame: &StackFrame,
    address: u64,
    lowest: u64,
    memory: Option<&dyn Memory>,
) -> Option<(&'s Local, u64)> {
    let offset_in = |local: &Local| {
        let start = place(local, frame, memory)?;
        address.checked_sub(start).filter(|_| start >= lowest)
    };
    let sized = scope.locals.iter().find_map(|local| {
        let offset = offset_in(local).filter(|offset| *offset < local.bytes)?;
        Some((local, offset + local.skipped))
    });
    // Variables of unknown length reach to the next above them.
    let unsized_ones = || {
        let unsized_ones = scope.locals.iter().filter(|local| local.bytes == 0 && local.slot.is_some());
        unsized_ones.filter_map(|local| Some((local, offset_in(local)?))).min_by_key(|(_, offset)| *offset)
    };
    sized.or_else(unsized_ones)
}

/// The address of a variable in this frame.
pub(crate) fn place(local: &Local, frame: &StackFrame, memory: Option<&dyn Memory>) -> Option<u64> {
    let base = match local.anchor {
        Anchor::Cfa => frame.cfa?,
        Anchor::Bp => frame.bp,
        Anchor::Sp => frame.sp,
    };
    let Some(slot) = local.slot else { return Some(base.wrapping_add_signed(local.start)) };
    let start = memory?.word(base.wrapping_add_signed(slot))?.wrapping_add_signed(local.start);
    // Targets of references elsewhere are reported there.
    (start >= frame.sp && frame.cfa.is_some_and(|cfa| start < cfa)).then_some(start)
}
