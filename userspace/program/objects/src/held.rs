//! Variables found by the registers of the sampled frame and of its callers: pointers in registers,
//! arguments known only to the caller, arrays passed by reference.
//!
//! A location is evaluated with the registers at the stop, callers' registers as restored by the
//! unwinder. An argument whose register is overwritten is looked up at the call: the debug
//! information describes the caller's value (`DW_OP_entry_value`, DWARF 5, §2.5.1.7, §3.4.2).
//! Memory words in a location are read now, so names from here are inferred.

use gimli::{EndianSlice, Evaluation, EvaluationResult, LittleEndian, Location, Value};

use locality_symbols::StackFrame;

use crate::named::TypeId;
use crate::place::{Memory, Place};
use crate::resolver::Resolver;
use crate::scope::{Anchor, Code, register_of};
use crate::types::Shape;

/// Steps of one evaluation.
const MAX_STEPS: u32 = 1000;
/// Callers to follow for one value.
const MAX_CALLS: usize = 16;
/// Bytes of a structure that counts as an object.
const LARGE: u64 = 4096;
/// Frames that are looked at.
const MAX_FRAMES: usize = 64;
/// Most questions of one evaluation.
const MAX_QUESTIONS: usize = 64;

/// What a location turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// The variable's own value.
    Value(u64),
    /// Where the variable lies.
    Address(u64),
}

/// Pointers by variables of a stack: addresses and targets
/// ([`crate::infer::Target`]), the outermost frame first.
#[derive(Debug, Default)]
pub(crate) struct HeldPointers {
    /// The stop of the reading: the innermost frame's stack
    /// pointer and instruction, and the registers.
    of: Option<StackFrame>,
    pub(crate) pointers: Vec<HeldPointer>,
}

/// Target of one variable.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldPointer {
    pub(crate) value: u64,
    pub(crate) target: u32,
    /// The variable is an array at this place, perhaps within a block.
    pub(crate) is_array: bool,
    /// Bytes of the smallest block that the pointer names:
    /// of a single structure a pointer is no name.
    pub(crate) least: u64,
}

/// A frame of a stack, with its caller's.
struct At<'a> {
    frames: &'a [StackFrame],
    /// The call of each frame, if the call passes arguments.
    passed: &'a [std::sync::Arc<crate::scope::Scope>],
    biases: &'a [u64],
    memory: &'a dyn Memory,
}

impl Resolver {
    /// Finds the targets of variables in registers, once a stop.
    pub(crate) fn read_held(&mut self, at: &Place<'_>) {
        let frames = at.with_registers();
        let Some(memory) = at.memory else { return };
        if self.held.of.as_ref() == frames.first() {
            return;
        }
        self.held = HeldPointers { of: frames.first().copied(), pointers: Vec::new() };
        let (mut scopes, mut biases) = (Vec::new(), Vec::new());
        for frame in frames.iter().take(MAX_FRAMES) {
            let Some(scope) = self.scope(frame) else { break };
            scopes.push(scope);
            biases.push(self.bias_at(frame.at.lookup()).unwrap_or(0));
        }
        let stack = At { frames, passed: &scopes, biases: &biases, memory };
        let mut found = Vec::new();
        for (index, scope) in scopes.iter().enumerate().rev() {
            for held in &scope.held {
                if let Some(place) = evaluate(&held.expression, index, &stack, 0) {
                    found.push((std::sync::Arc::clone(&held.object), place));
                }
            }
        }
        for (object, place) in found {
            let Some(ty) = object.ty else { continue };
            let about = (object.declared.clone(), object.module.clone());
            let shape = self.types.get(self.types.strip(ty)).map(|ty| ty.shape.clone());
            let is_array = matches!(shape, Some(Shape::Array { .. }));
            let lead = match (place, shape) {
                (Found::Value(value), Some(Shape::Pointer { to })) => {
                    let to = to.and_then(|to| self.pointed_type(to));
                    Some((value, to))
                }
                // An array with a descriptor lies where the descriptor's first word says.
                (Found::Address(address), Some(Shape::Pointer { to })) => {
                    let to = to.and_then(|to| self.pointed_type(to));
                    memory.word(address).map(|value| (value, to))
                }
                (Found::Address(address), Some(Shape::Array { element, .. })) => {
                    let whole = self.types.bytes(ty).filter(|bytes| *bytes > 0).map(|_| ty);
                    Some((address, whole.or(Some(element))))
                }
                (Found::Address(address), Some(Shape::Record { .. })) => Some((address, Some(ty))),
                _ => None,
            };
            // A pointer to a node may be any of a list or tree.
            let is_node = |ty: TypeId, this: &mut Self| {
                let inside = this.pointers_of(ty);
                inside.iter().any(|pointer| this.pointee(pointer) == Some(ty))
            };
            if let Some((value, ty)) = lead
                && value >= 4096
                && !ty.is_some_and(|ty| is_node(ty, self))
            {
                let target = self.target_of(&object.name, &object.name, ty, false, 0, about);
                let is_array = matches!(place, Found::Address(_)) && is_array;
                let is_structure = ty.is_some_and(|ty| {
                    let ty = self.types.get(self.types.strip(ty));
                    ty.is_some_and(|ty| matches!(ty.shape, Shape::Record { .. }))
                });
                let one = ty.and_then(|ty| self.types.bytes(ty)).unwrap_or(1);
                let least = if is_structure { one.saturating_mul(2).min(LARGE) } else { 1 };
                self.held.pointers.push(HeldPointer { value, target, is_array, least });
            }
        }
    }

    fn bias_at(&mut self, address: u64) -> Option<u64> {
        let region = self.space.find(address)?;
        let module = self.space.module(region, &self.processes, self.pid)?;
        Some(self.space.modules.get(module as usize)?.bias)
    }
}

fn evaluate(code: &Code, index: usize, stack: &At<'_>, calls: usize) -> Option<Found> {
    let frame = stack.frames.get(index)?;
    let bytes = EndianSlice::new(&code.bytes, LittleEndian);
    let mut evaluation = Evaluation::new(bytes, code.encoding);
    evaluation.set_max_iterations(MAX_STEPS);
    let mut state = evaluation.evaluate().ok()?;
    for _ in 0..MAX_QUESTIONS {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                evaluation.resume_with_register(Value::Generic(register_in(frame, register.0)?))
            }
            EvaluationResult::RequiresFrameBase => {
                let (anchor, offset) = code.frame_base?;
                let base = match anchor {
                    Anchor::Cfa => frame.cfa?,
                    Anchor::Bp => frame.bp,
                    Anchor::Sp => frame.sp,
                };
                evaluation.resume_with_frame_base(base.wrapping_add_signed(offset))
            }
            EvaluationResult::RequiresCallFrameCfa => evaluation.resume_with_call_frame_cfa(frame.cfa?),
            EvaluationResult::RequiresMemory { address, size, .. } if (1..=8).contains(&size) => {
                let mut word = [0; 8];
                if !stack.memory.read(address, word.get_mut(..usize::from(size))?) {
                    return None;
                }
                evaluation.resume_with_memory(Value::Generic(u64::from_le_bytes(word)))
            }
            EvaluationResult::RequiresEntryValue(expression) if calls < MAX_CALLS => {
                let register = register_of(expression.0.slice(), code.encoding)?;
                // What a signal interrupted was not called.
                frame.cfa?;
                let caller = stack.passed.get(index + 1)?;
                let (_, passed) = caller.passed.iter().find(|(passed, _)| *passed == register)?;
                let Found::Value(value) = evaluate(passed, index + 1, stack, calls + 1).map(as_value)? else {
                    return None;
                };
                evaluation.resume_with_entry_value(Value::Generic(value))
            }
            EvaluationResult::RequiresRelocatedAddress(address) => {
                let bias = *stack.biases.get(index)?;
                evaluation.resume_with_relocated_address(address.wrapping_add(bias))
            }
            _ => return None,
        }
        .ok()?;
    }
    if state != EvaluationResult::Complete {
        return None;
    }
    let result = evaluation.as_result();
    let [piece] = result else { return None };
    if piece.size_in_bits.is_some() {
        return None;
    }
    match piece.location {
        Location::Register { register } => register_in(frame, register.0).map(Found::Value),
        Location::Value { value } => value.to_u64(u64::MAX).ok().map(Found::Value),
        Location::Address { address } => Some(Found::Address(address)),
        _ => None,
    }
}

/// Of a call's parameter the expression gives the value itself.
fn as_value(found: Found) -> Found {
    match found {
        Found::Value(value) | Found::Address(value) => Found::Value(value),
    }
}

fn register_in(frame: &StackFrame, register: u16) -> Option<u64> {
    match register {
        6 => Some(frame.bp),
        7 => Some(frame.sp),
        register => frame.registers.get(register),
    }
}
