//! The variables of the stack frame at one instruction: the live ones, and the place of each
//! relative to the frame.
//!
//! Blocks and inlined calls outside the instruction's range are not alive: another variable may
//! use the space. A location is evaluated once per instruction with marks in place of the frame's
//! registers, and stored as "mark plus offset", or "the word at mark plus offset" (arrays with a
//! length known only to the running program); locations by registers except rsp and rbp cannot be
//! written in this form and are left out. Leaving out a variable in a register misses no address.
//!
//! Source: DWARF 5, §2.5 (expressions), §2.6.2 (location lists), §3.3.5 (frame base), §3.3.8
//! (inlined subroutines). Limits: the length of a variable-length array is not evaluated; a place
//! that no other variable covers is said to be inferred to belong to the nearest one below it.

use std::collections::HashMap;
use std::sync::Arc;

use gimli::{
    AttributeValue, Evaluation, EvaluationResult, Expression, Location, Register, Unit, Value, X86_64,
    constants as dw,
};

use crate::debug::{Debug, Die};
use crate::elf::Slice;
use crate::module::Context;
use crate::named::{Kind, Object};
use crate::session::{Session, at};
use crate::type_reader::TypeReader;
use crate::types::Shape;
use crate::variable::Described;

/// Nested blocks and inlined calls that are followed.
const MAX_DEPTH: u16 = 64;
/// Steps of an expression: tables may hold endless loops.
const MAX_STEPS: u32 = 1000;

/// Variables in registers, and parameters of a call, that are taken; bytes of an expression.
const MAX_HELD: usize = 256;
const MAX_EXPRESSION: usize = 256;

/// The register named by an expression that consists of a register.
pub(crate) fn register_of(bytes: &[u8], encoding: gimli::Encoding) -> Option<u16> {
    let expression = Expression(gimli::EndianSlice::new(bytes, gimli::LittleEndian));
    let mut operations = expression.operations(encoding);
    let Ok(Some(gimli::Operation::Register { register })) = operations.next() else { return None };
    matches!(operations.next(), Ok(None)).then_some(register.0)
}

/// What a variable's place is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Cfa,
    Bp,
    Sp,
}

/// A variable, or a part of a variable, in the frame.
#[derive(Debug, Clone)]
pub(crate) struct Local {
    pub(crate) anchor: Anchor,
    /// Its place is relative to the word at this offset from the anchor: arrays with a length known
    /// at run time only.
    pub(crate) slot: Option<i64>,
    pub(crate) start: i64,
    /// 0 where only the running program knows.
    pub(crate) bytes: u64,
    /// Offset in the variable of this part.
    pub(crate) skipped: u64,
    /// Blocks around it: the innermost is asked first.
    depth: u16,
    pub(crate) object: Arc<Object>,
}

/// A variable in a register, or reached through registers only: its place is evaluated for each
/// frame.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) expression: Code,
    pub(crate) object: Arc<Object>,
}

/// A DWARF expression, with the requirements of its evaluation.
#[derive(Debug, Clone)]
pub(crate) struct Code {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) encoding: gimli::Encoding,
    pub(crate) frame_base: Option<(Anchor, i64)>,
}

/// A frame at one instruction.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    /// For places that no variable covers.
    pub(crate) frame: Arc<Object>,
    /// The innermost first.
    pub(crate) locals: Vec<Local>,
    /// As the entries come: parameters of the function before all.
    pub(crate) held: Vec<Held>,
    /// Arguments that the call at the instruction passes in registers, by register number.
    pub(crate) passed: Vec<(u16, Code)>,
}

/// Objects that scopes share.
#[derive(Debug, Default)]
pub(crate) struct StackObjects {
    variables: HashMap<(u32, Die), Arc<Object>>,
    frames: HashMap<(u32, Arc<str>), Arc<Object>>,
}

impl Scope {
    /// For an address in the module's code.
    pub(crate) fn at(
        pc: u64,
        debug: Option<&Debug>,
        context: &mut Context<'_>,
        shared: &mut StackObjects,
    ) -> Self {
        let function = debug.and_then(|debug| debug.function(pc));
        let session = debug.map(|debug| debug.session(context.file));
        let mut name = None;
        let (mut locals, mut held, mut passed) = (Vec::new(), Vec::new(), Vec::new());
        if let (Some(function), Some(session)) = (function, &session) {
            let described = Described::read(session, function.die);
            let region = described.region(session, context.file, function);
            name = region.or_else(|| described.full_name());
            let mut walk = Walk {
                session,
                pc,
                context,
                shared,
                frame_base: None,
                locals: &mut locals,
                held: &mut held,
                passed: &mut passed,
            };
            walk.function(function.die, name.as_deref());
        }
        locals.sort_by_key(|local: &Local| std::cmp::Reverse(local.depth));
        let symbol = || context.file.function(pc).map(locality_symbols::demangle);
        let name: Arc<str> = name.or_else(symbol).unwrap_or_else(|| "?".to_owned()).into();
        let key = (context.module, Arc::clone(&name));
        let frame = match shared.frames.get(&key) {
            Some(frame) => Arc::clone(frame),
            None => {
                let mut object = context.blank(Kind::Stack);
                object.name = format!("{name} [stack]").into();
                object.function = Some(name);
                object.unknown = Some(match function {
                    Some(_) if context.trouble.is_empty() => {
                        "no variable's place covers it: a saved register, a temporary, or a variable that \
                                the debug info does not place there"
                            .into()
                    }
                    _ => context.undescribed("stack variables unknown"),
                });
                let frame = context.add(object);
                shared.frames.insert(key, Arc::clone(&frame));
                frame
            }
        };
        Self { frame, locals, held, passed }
    }
}

struct Walk<'w, 'c, 'a> {
    session: &'w Session<'a>,
    pc: u64,
    context: &'w mut Context<'c>,
    shared: &'w mut StackObjects,
    /// As a marked address.
    frame_base: Option<u64>,
    locals: &'w mut Vec<Local>,
    held: &'w mut Vec<Held>,
    passed: &'w mut Vec<(u16, Code)>,
}

type Units<'a> = Unit<Slice<'a>>;

impl<'a> Walk<'_, '_, 'a> {
    fn function(&mut self, die: Die, name: Option<&str>) {
        let Some(unit) = self.session.unit(die.unit) else { return };
        let Ok(entry) = unit.entry(at(die)) else { return };
        self.frame_base = entry.attr_value(dw::DW_AT_frame_base).and_then(|value| {
            let expression = self.expression(&unit, value)?;
            self.evaluate(&unit, expression)?.first().map(|piece| piece.address & !REGISTER)
        });
        let name = name.map(Arc::from);
        self.block(&unit, die, name.as_ref(), 0);
    }

    fn block(&mut self, unit: &Units<'a>, die: Die, function: Option<&Arc<str>>, depth: u16) {
        if depth > MAX_DEPTH {
            return;
        }
        let mut inside = Vec::new();
        {
            let Ok(mut tree) = unit.entries_tree(Some(at(die))) else { return };
            let Ok(root) = tree.root() else { return };
            let mut children = root.children();
            while let Ok(Some(child)) = children.next() {
                let entry = child.entry();
                let Ok(offset) = u32::try_from(entry.offset().0) else { continue };
                let child = Die { unit: die.unit, offset };
                match entry.tag() {
                    dw::DW_TAG_variable | dw::DW_TAG_formal_parameter => {
                        let Some(place) = entry.attr_value(dw::DW_AT_location) else { continue };
                        if let Some(expression) = self.expression(unit, place) {
                            let pieces = self.evaluate(unit, expression).unwrap_or_default();
                            // A reference in the frame may lead out of it.
                            let elsewhere =
                                |piece: &Piece| piece.place().is_none_or(|(_, slot, _)| slot.is_some());
                            let held = pieces.iter().all(elsewhere);
                            let code = held.then(|| self.code(unit, expression)).flatten();
                            inside.push((child, Inside::Variable(pieces, code)));
                        }
                    }
                    dw::DW_TAG_call_site | dw::DW_TAG_GNU_call_site if self.is_this_call(unit, entry) => {
                        inside.push((child, Inside::Call));
                    }
                    dw::DW_TAG_lexical_block
                    | dw::DW_TAG_inlined_subroutine
                    | dw::DW_TAG_try_block
                    | dw::DW_TAG_catch_block
                    | dw::DW_TAG_with_stmt
                        if self.contains_pc(unit, entry) =>
                    {
                        let inlined = entry.tag() == dw::DW_TAG_inlined_subroutine;
                        inside.push((child, Inside::Block { inlined }));
                    }
                    _ => {}
                }
            }
        }
        for (child, what) in inside {
            match what {
                Inside::Variable(pieces, code) => {
                    self.variable(child, &pieces, function, depth);
                    if let Some(code) = code {
                        self.held(child, code, function);
                    }
                }
                Inside::Call => self.call(unit, child),
                Inside::Block { inlined: false } => self.block(unit, child, function, depth + 1),
                Inside::Block { inlined: true } => {
                    let described = Described::read(self.session, child);
                    // clang inlines a region into another function of the same region.
                    let name = match function.filter(|_| described.is_region()) {
                        Some(outer) => Some(Arc::clone(outer)),
                        None => described.full_name().map(Arc::from),
                    };
                    self.block(unit, child, name.as_ref(), depth + 1);
                }
            }
        }
    }

    fn contains_pc(&self, unit: &Units<'a>, entry: &gimli::DebuggingInformationEntry<Slice<'a>>) -> bool {
        let Ok(mut ranges) = self.session.dwarf.die_ranges(unit, entry) else { return false };
        let mut some = false;
        while let Ok(Some(range)) = ranges.next() {
            some = true;
            if (range.begin..range.end).contains(&self.pc) {
                return true;
            }
        }
        // A block without code exists for its names only.
        !some && entry.tag() == dw::DW_TAG_lexical_block
    }

    fn variable(&mut self, die: Die, pieces: &[Piece], function: Option<&Arc<str>>, depth: u16) {
        let (mut placed, mut skipped) = (Vec::new(), 0);
        for piece in pieces {
            placed.extend(piece.place().map(|place| (place, piece.bytes, skipped)));
            skipped += piece.bytes;
        }
        if placed.is_empty() {
            return;
        }
        let object = self.object(die, function);
        for ((anchor, slot, start), bytes, skipped) in placed {
            // A single piece has the size of its type.
            let bytes = if bytes > 0 { bytes } else { object.bytes };
            let object = Arc::clone(&object);
            self.locals.push(Local { anchor, slot, start, bytes, skipped, depth, object });
        }
    }

    /// Takes a variable placed by the registers of a frame, if the variable may lead to memory.
    fn held(&mut self, die: Die, expression: Code, function: Option<&Arc<str>>) {
        if self.held.len() >= MAX_HELD {
            return;
        }
        let object = self.object(die, function);
        // Compilers name their own variables so.
        let made = object.name.starts_with('.') || object.name.starts_with("__") || &*object.name == "?";
        let ty = object.ty.and_then(|ty| self.context.types.get(self.context.types.strip(ty)));
        let leads = ty.is_some_and(|ty| !matches!(ty.shape, Shape::Scalar));
        if leads && !made {
            self.held.push(Held { expression, object });
        }
    }

    /// Whether the instruction is this call.
    fn is_this_call(&self, unit: &Units<'a>, entry: &gimli::DebuggingInformationEntry<Slice<'a>>) -> bool {
        let after = [dw::DW_AT_call_return_pc, dw::DW_AT_low_pc]
            .into_iter()
            .find_map(|name| self.session.dwarf.attr_address(unit, entry.attr_value(name)?).ok()?);
        after.is_some_and(|after| after == self.pc.wrapping_add(1))
    }

    /// Takes what a call passes in registers.
    fn call(&mut self, unit: &Units<'a>, die: Die) {
        let Ok(mut tree) = unit.entries_tree(Some(at(die))) else { return };
        let Ok(root) = tree.root() else { return };
        let mut children = root.children();
        while let Ok(Some(child)) = children.next() {
            let entry = child.entry();
            let value = match entry.tag() {
                dw::DW_TAG_call_site_parameter => dw::DW_AT_call_value,
                dw::DW_TAG_GNU_call_site_parameter => dw::DW_AT_GNU_call_site_value,
                _ => continue,
            };
            let expression = |name| match entry.attr_value(name) {
                Some(AttributeValue::Exprloc(expression)) => Some(expression),
                _ => None,
            };
            let register = expression(dw::DW_AT_location)
                .and_then(|place| register_of(place.0.slice(), unit.encoding()));
            let value = expression(value).and_then(|value| self.code(unit, value));
            if let (Some(register), Some(value)) = (register, value)
                && self.passed.len() < MAX_HELD
            {
                self.passed.push((register, value));
            }
        }
    }

    fn code(&self, unit: &Units<'a>, expression: Expression<Slice<'a>>) -> Option<Code> {
        let bytes = expression.0.slice();
        let frame_base = self.frame_base.and_then(unmark);
        let short = !bytes.is_empty() && bytes.len() <= MAX_EXPRESSION;
        short.then(|| Code { bytes: bytes.into(), encoding: unit.encoding(), frame_base })
    }

    fn object(&mut self, die: Die, function: Option<&Arc<str>>) -> Arc<Object> {
        let described = Described::read(self.session, die);
        let key = (self.context.module, described.origin.unwrap_or(die));
        match self.shared.variables.get(&key) {
            Some(object) => Arc::clone(object),
            None => {
                let mut object = self.context.blank(Kind::Stack);
                let mut reader = TypeReader::new(self.session, self.context.types, self.context.module);
                object.ty = described.ty.and_then(|ty| reader.read(ty));
                let ty = object.ty.and_then(|ty| self.context.types.get(ty));
                object.type_name = ty.map(|ty| Arc::clone(&ty.name));
                object.bytes = ty.and_then(|ty| ty.bytes).unwrap_or(0);
                object.name = described.name.unwrap_or_else(|| "?".to_owned()).into();
                object.function = function.cloned();
                object.declared = described.declared;
                if object.bytes == 0 {
                    object.inferred = true;
                    object.unknown =
                        Some("its length is not known: told because no other variable is there".into());
                }
                let object = self.context.add(object);
                self.shared.variables.insert(key, Arc::clone(&object));
                object
            }
        }
    }

    /// The expression that holds at the instruction.
    fn expression(
        &self,
        unit: &Units<'a>,
        value: AttributeValue<Slice<'a>>,
    ) -> Option<Expression<Slice<'a>>> {
        if let AttributeValue::Exprloc(expression) = value {
            return Some(expression);
        }
        let mut list = self.session.dwarf.attr_locations(unit, value).ok()??;
        while let Ok(Some(entry)) = list.next() {
            if (entry.range.begin..entry.range.end).contains(&self.pc) {
                return Some(entry.data);
            }
        }
        None
    }

    /// The pieces of a variable's place.
    fn evaluate(&self, unit: &Units<'a>, expression: Expression<Slice<'a>>) -> Option<Vec<Piece>> {
        let mut slot = None;
        let mut evaluation = Evaluation::new(expression.0, unit.encoding());
        evaluation.set_max_iterations(MAX_STEPS);
        let mut state = evaluation.evaluate().ok()?;
        loop {
            state = match state {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => {
                    evaluation.resume_with_register(Value::Generic(mark_of(register)?))
                }
                EvaluationResult::RequiresFrameBase => evaluation.resume_with_frame_base(self.frame_base?),
                EvaluationResult::RequiresCallFrameCfa => {
                    evaluation.resume_with_call_frame_cfa(mark(Anchor::Cfa))
                }
                EvaluationResult::RequiresMemory { address, size: 8, .. } if slot.is_none() => {
                    slot = Some(address);
                    evaluation.resume_with_memory(Value::Generic(BEHIND))
                }
                // Addresses and constants of the file may take part, but then it is no place in the frame.
                EvaluationResult::RequiresRelocatedAddress(address) => {
                    evaluation.resume_with_relocated_address(address)
                }
                _ => return None,
            }
            .ok()?;
        }
        let pieces = evaluation.as_result().iter().map(|piece| {
            let address = match piece.location {
                Location::Address { address } => address,
                // `DW_AT_frame_base` may name a register for its content.
                Location::Register { register } if piece.size_in_bits.is_none() => {
                    mark_of(register).unwrap_or(0)
                }
                _ => 0,
            };
            let in_register = matches!(piece.location, Location::Register { .. });
            let address = if in_register { address | REGISTER } else { address };
            Piece { address, slot, bytes: piece.size_in_bits.unwrap_or(0) / 8 }
        });
        Some(pieces.collect())
    }
}

enum Inside {
    Variable(Vec<Piece>, Option<Code>),
    Call,
    Block { inlined: bool },
}

/// A part of a variable.
struct Piece {
    /// Marked; 0 when it is not in memory.
    address: u64,
    /// The marked address of the word that was read on the way.
    slot: Option<u64>,
    /// 0: the whole variable.
    bytes: u64,
}

impl Piece {
    /// Anchor, slot and start, as [`Local`] has them.
    fn place(&self) -> Option<(Anchor, Option<i64>, i64)> {
        if self.address.wrapping_add(1 << (MARK_SHIFT - 1)) >> MARK_SHIFT == BEHIND >> MARK_SHIFT {
            let (anchor, slot) = unmark(self.slot?)?;
            return Some((anchor, Some(slot), self.address.wrapping_sub(BEHIND).cast_signed()));
        }
        unmark(self.address).map(|(anchor, start)| (anchor, None, start))
    }
}

/// Marks lie far from each other and from every address of a file: offsets in a frame cannot lead
/// from one to another.
const MARK_SHIFT: u32 = 58;
/// In the place of a word that was read.
const BEHIND: u64 = 4 << MARK_SHIFT;
/// Marks a register, as opposed to a place in memory.
const REGISTER: u64 = 1 << 63;

fn mark(anchor: Anchor) -> u64 {
    match anchor {
        Anchor::Cfa => 1 << MARK_SHIFT,
        Anchor::Bp => 2 << MARK_SHIFT,
        Anchor::Sp => 3 << MARK_SHIFT,
    }
}

fn mark_of(register: Register) -> Option<u64> {
    match register {
        X86_64::RBP => Some(mark(Anchor::Bp)),
        X86_64::RSP => Some(mark(Anchor::Sp)),
        _ => None,
    }
}

/// The anchor and offset of a marked address.
fn unmark(address: u64) -> Option<(Anchor, i64)> {
    if address & REGISTER != 0 {
        return None;
    }
    let nearest = address.wrapping_add(1 << (MARK_SHIFT - 1)) >> MARK_SHIFT;
    let anchor = [Anchor::Cfa, Anchor::Bp, Anchor::Sp]
        .into_iter()
        .find(|anchor| mark(*anchor) == nearest << MARK_SHIFT)?;
    Some((anchor, address.wrapping_sub(mark(anchor)).cast_signed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_keep_offsets() {
        for anchor in [Anchor::Cfa, Anchor::Bp, Anchor::Sp] {
            for offset in [0, 1, -1, 4096, -(1 << 30), 1 << 30] {
                assert_eq!(unmark(mark(anchor).wrapping_add_signed(offset)), Some((anchor, offset)));
            }
        }
        for address in [0, 0x40_1000, 0x7fff_ffff_f000, mark(Anchor::Bp) | REGISTER] {
            assert_eq!(unmark(address), None);
        }
    }
}
